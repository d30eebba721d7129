//! Memory for frames and for segments of the index, in pieces of one size.
//!
//! Small state takes its pieces from the allocator. A table that has grown past [`HUGE_FROM`] cuts
//! them from chunks of 2 MiB on huge pages, which a helper touches ahead. It pays: at 10 M keys
//! every access misses the processor's translation cache otherwise, which makes point updates a
//! quarter to a third slower.
//!
//! What is resident and not yet cut is booked by the pool. A piece that is given back leaves
//! memory at once; its chunk then stays on small pages, so that nothing else becomes resident with
//! a later touch. While the helper is late, or memory too short for a chunk ahead, pieces are cut from
//! a chunk aside, on small pages, that nobody touches ahead: what a table of this size gives back to an
//! allocator would stay in memory, unbooked. Before the helper is asked for a chunk there is enough of
//! it, as mapping waits for whoever touches, which can be 5 ms on a virtual machine.
//!
//! The system takes memory back by pages. Pieces that are no multiple of one are never cut from a
//! chunk, since giving one back would clear its neighbours.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;

use alluvium_pagestore::mailbox::{Mailbox, TryRecvError, mailbox};
use alluvium_pagestore::{Account, Helper, MemoryKind};

use crate::support::system_page::page_bytes;

/// Bytes of a chunk: one huge page.
const CHUNK_BYTES: usize = 2 << 20;
/// Bytes that are taken from the allocator before the first chunk.
const HUGE_FROM: u64 = 4 << 20;
/// Budgets below this never use chunks: two chunks that are not full would be much of them.
const BUDGET_MIN: u64 = 256 << 20;
/// The smallest piece that is cut from a chunk.
const PIECE_MIN: usize = 16 << 10;

/// The bytes that a piece for `bytes` takes: rounded up if little is lost, so that pieces fill a
/// chunk.
pub fn piece_bytes(bytes: usize) -> usize {
    let power = bytes.next_power_of_two();
    if (PIECE_MIN..=CHUNK_BYTES).contains(&power) && power - bytes <= power / 16 {
        power
    } else {
        bytes
    }
}

/// One piece of memory, uninitialised.
#[derive(Debug)]
pub struct PoolPiece {
    start: NonNull<u8>,
    layout: Layout,
    origin: PieceOrigin,
}

/// Where a piece came from.
#[derive(Debug)]
enum PieceOrigin {
    Allocator,
    Chunk(Arc<PoolChunk>),
    /// A chunk aside.
    Aside(Arc<PoolChunk>),
}

// SAFETY: a piece owns its memory; it is only a place.
unsafe impl Send for PoolPiece {}
// SAFETY: as above; a shared piece tells its address and nothing else.
unsafe impl Sync for PoolPiece {}

impl PoolPiece {
    /// Its first byte; aligned as the pool was asked to.
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// A piece from the allocator.
    pub fn allocated(layout: Layout) -> Self {
        assert!(layout.size() > 0, "a piece has bytes");
        // SAFETY: the size is not zero.
        let start = unsafe { alloc(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        Self { start, layout, origin: PieceOrigin::Allocator }
    }

    /// Bytes of it.
    pub fn bytes(&self) -> usize {
        self.layout.size()
    }

    /// Gives it back alone, between others that stay. The allocator may keep it then: no memory of its whole pages is
    /// resident any more. Cost: a call of the operating system.
    pub fn give_back(self) {
        if matches!(self.origin, PieceOrigin::Allocator) {
            leave_pages(self.start, self.layout.size());
        }
    }
}

impl Drop for PoolPiece {
    fn drop(&mut self) {
        match &self.origin {
            // SAFETY: it came from the allocator with this layout.
            PieceOrigin::Allocator => unsafe { dealloc(self.start.as_ptr(), self.layout) },
            PieceOrigin::Chunk(chunk) | PieceOrigin::Aside(chunk) => {
                chunk.give_back(self.start, self.layout.size());
            }
        }
    }
}

/// The pieces of one table.
#[derive(Debug)]
pub struct PiecePool {
    layout: Layout,
    account: Rc<Account>,
    kind: MemoryKind,
    /// Touches chunks ahead; without one, pieces come from the allocator only.
    helper: Option<Helper>,
    taken_bytes: u64,
    /// The chunk that pieces are cut from, and the bytes of it that are cut.
    chunk: Option<(Arc<PoolChunk>, usize)>,
    ahead: Option<Mailbox<Arc<PoolChunk>>>,
    /// The chunk aside, and the bytes of it that are cut: of it nothing is booked.
    aside: Option<(Arc<PoolChunk>, usize)>,
    /// Bytes booked for what is resident and not cut.
    booked: u64,
}

impl PiecePool {
    /// A pool of pieces of this layout. Chunks are booked on `account` as `kind`.
    pub fn new(
        layout: Layout,
        account: Rc<Account>,
        kind: MemoryKind,
        helper: Option<Helper>,
    ) -> Self {
        Self::on_pages(page_bytes(), layout, account, kind, helper)
    }

    /// [`new`](PiecePool::new) on a system with such pages.
    fn on_pages(
        page_bytes: usize,
        layout: Layout,
        account: Rc<Account>,
        kind: MemoryKind,
        helper: Option<Helper>,
    ) -> Self {
        let is_of_pages = layout.size() % page_bytes == 0;
        let fits = layout.size() >= PIECE_MIN && CHUNK_BYTES % layout.size() == 0 && is_of_pages;
        let worth = cfg!(all(target_os = "linux", not(miri)))
            && fits
            && account.limit() >= BUDGET_MIN
            && helper.as_ref().is_some_and(|helper| !helper.is_inline());
        let helper = helper.filter(|_| worth);
        let (chunk, ahead, aside) = (None, None, None);
        Self { layout, account, kind, helper, taken_bytes: 0, chunk, ahead, aside, booked: 0 }
    }

    /// Books on another account from now on, to which the caller has moved what is booked.
    pub fn book_on(&mut self, account: &Rc<Account>) {
        self.account = account.clone();
    }

    /// Takes the place of another pool: what the allocator had to give is not asked of it again.
    pub fn go_on_from(&mut self, before: &PiecePool) {
        self.taken_bytes = self.taken_bytes.max(before.taken_bytes);
    }

    /// A piece, which the caller has booked. Cost: an allocation or a mapping at the most.
    pub fn take(&mut self) -> PoolPiece {
        self.taken_bytes += self.layout.size() as u64;
        if self.taken_bytes <= HUGE_FROM || self.helper.is_none() {
            return PoolPiece::allocated(self.layout);
        }
        let piece = self.cut().or_else(|| self.cut_aside());
        piece.unwrap_or_else(|| PoolPiece::allocated(self.layout))
    }

    /// A piece of a chunk, if the helper has one ready: to touch one here would take milliseconds.
    fn cut(&mut self) -> Option<PoolPiece> {
        self.helper.as_ref()?;
        if self.chunk.as_ref().is_none_or(|(_, cut)| *cut == CHUNK_BYTES) {
            let arrived = self.ahead.as_ref().map(Mailbox::try_recv);
            match arrived {
                Some(Ok(chunk)) => (self.chunk, self.ahead) = (Some((chunk, 0)), None),
                Some(Err(TryRecvError::Disconnected)) => {
                    // The operating system refused.
                    self.unbook(CHUNK_BYTES as u64);
                    (self.chunk, self.ahead, self.helper) = (None, None, None);
                    return None;
                }
                Some(Err(TryRecvError::Empty)) | None => {
                    self.ask();
                    return None;
                }
            }
        }
        let (start, chunk) = next_of(self.chunk.as_mut()?, self.layout.size());
        self.unbook(self.layout.size() as u64);
        // For the next one at once: the helper may have other jobs before.
        self.ask();
        Some(PoolPiece { start, layout: self.layout, origin: PieceOrigin::Chunk(chunk) })
    }

    /// A piece of the chunk aside; `None` if the operating system refuses one.
    fn cut_aside(&mut self) -> Option<PoolPiece> {
        self.have_aside(self.layout.size());
        let (start, chunk) = next_of(self.aside.as_mut()?, self.layout.size());
        Some(PoolPiece { start, layout: self.layout, origin: PieceOrigin::Aside(chunk) })
    }

    /// Maps another chunk aside if so many bytes are not left. Of what is left nothing is resident.
    fn have_aside(&mut self, bytes: usize) {
        if self.aside.as_ref().is_none_or(|(_, cut)| cut + bytes > CHUNK_BYTES) {
            self.aside = PoolChunk::map_aside().map(|chunk| (Arc::new(chunk), 0));
        }
    }

    /// Has the helper touch a chunk, unless it does.
    fn ask(&mut self) {
        if self.ahead.is_some() || self.book().is_none() {
            return;
        }
        self.have_aside(CHUNK_BYTES / 2);
        let (reply, ahead) = mailbox();
        self.ahead = Some(ahead);
        let helper = self.helper.as_ref().expect("a pool that cuts has a helper");
        helper.submit(move || {
            if let Some(chunk) = PoolChunk::map() {
                chunk.touch();
                reply.send(Arc::new(chunk));
            }
        });
    }

    /// Books a chunk, if there is plenty.
    fn book(&mut self) -> Option<()> {
        let bytes = CHUNK_BYTES as u64;
        if self.account.available() < 8 * bytes || !self.account.try_reserve(self.kind, bytes) {
            return None;
        }
        self.booked += bytes;
        Some(())
    }

    fn unbook(&mut self, bytes: u64) {
        self.booked -= bytes;
        self.account.release(self.kind, bytes);
    }

    /// Gives back what is not cut.
    pub fn close(&mut self) {
        self.helper = None;
        (self.chunk, self.ahead, self.aside) = (None, None, None);
        self.unbook(self.booked);
    }
}

impl Drop for PiecePool {
    fn drop(&mut self) {
        self.close();
    }
}

/// The next piece of a chunk.
fn next_of(
    (chunk, cut): &mut (Arc<PoolChunk>, usize),
    bytes: usize,
) -> (NonNull<u8>, Arc<PoolChunk>) {
    let start = chunk.at(*cut);
    *cut += bytes;
    (start, chunk.clone())
}

/// 2 MiB of address space, on a huge page unless it is aside.
#[derive(Debug)]
struct PoolChunk {
    start: NonNull<u8>,
    /// A piece was given back, or nobody touches it ahead: on small pages from now on.
    #[cfg(all(target_os = "linux", not(miri)))]
    split: std::sync::atomic::AtomicBool,
}

// SAFETY: a chunk owns its mapping; its memory is reached through pieces only.
unsafe impl Send for PoolChunk {}
// SAFETY: as above; what a shared chunk does is calls to the operating system.
unsafe impl Sync for PoolChunk {}

impl PoolChunk {
    /// The place `offset` bytes into it.
    fn at(&self, offset: usize) -> NonNull<u8> {
        assert!(offset < CHUNK_BYTES, "{offset} is not in the chunk");
        // SAFETY: within the mapping.
        unsafe { self.start.add(offset) }
    }
}

#[cfg(all(target_os = "linux", not(miri)))]
use mapped::leave_pages;

/// Nothing is resident on the whole pages of these bytes, which nobody uses.
#[cfg(not(all(target_os = "linux", not(miri))))]
fn leave_pages(_: NonNull<u8>, _: usize) {}

#[cfg(all(target_os = "linux", not(miri)))]
mod mapped {
    use super::{CHUNK_BYTES, PoolChunk};
    use crate::support::system_page::page_bytes;
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
    use std::ptr::NonNull;
    use std::sync::atomic::{AtomicBool, Ordering};

    impl PoolChunk {
        /// A new chunk, not touched; `None` if the operating system refuses.
        pub fn map() -> Option<PoolChunk> {
            Self::map_on(Advice::LinuxHugepage, false)
        }

        /// A new chunk on small pages; `None` if the operating system refuses.
        pub fn map_aside() -> Option<PoolChunk> {
            Self::map_on(Advice::LinuxNoHugepage, true)
        }

        fn map_on(pages: Advice, split: bool) -> Option<PoolChunk> {
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
            let both = ProtFlags::READ | ProtFlags::WRITE;
            // SAFETY: a new mapping at a place that the operating system chooses.
            let raw = unsafe { mmap_anonymous(std::ptr::null_mut(), 2 * CHUNK_BYTES, both, flags) }
                .ok()?;
            let before = raw.align_offset(CHUNK_BYTES);
            // SAFETY: twice the length holds an aligned chunk; what is left of the mapping on both
            // sides is nobody's, and advice changes no content.
            unsafe {
                let start = raw.byte_add(before);
                if before > 0 {
                    let _ = munmap(raw, before);
                }
                let _ = munmap(start.byte_add(CHUNK_BYTES), CHUNK_BYTES - before);
                let _ = madvise(start, CHUNK_BYTES, pages);
                Some(PoolChunk {
                    start: NonNull::new(start.cast())?,
                    split: AtomicBool::new(split),
                })
            }
        }

        /// Makes all of it resident. By writing, not by advice: a fault holds a lock on this mapping
        /// only, `MADV_POPULATE_WRITE` one that the owner's allocator waits for.
        pub fn touch(&self) {
            for offset in (0..CHUNK_BYTES).step_by(page_bytes()) {
                // SAFETY: within the mapping, of which nothing is handed out yet.
                unsafe { self.start.add(offset).write_volatile(0) };
            }
        }

        /// Takes the memory of one of its pieces out of use.
        pub fn give_back(&self, start: NonNull<u8>, bytes: usize) {
            debug_assert!(bytes % page_bytes() == 0, "a piece of {bytes} bytes shares a page");
            // SAFETY: the piece is being dropped and is within this mapping: nobody uses its bytes.
            unsafe {
                if !self.split.swap(true, Ordering::Relaxed) {
                    let _ =
                        madvise(self.start.as_ptr().cast(), CHUNK_BYTES, Advice::LinuxNoHugepage);
                }
                let _ = madvise(start.as_ptr().cast(), bytes, Advice::LinuxDontNeed);
            }
        }
    }

    /// Nothing is resident on the whole pages of these bytes, which nobody uses.
    pub(super) fn leave_pages(start: NonNull<u8>, bytes: usize) {
        let before = start.as_ptr().align_offset(page_bytes());
        let whole = bytes.saturating_sub(before) / page_bytes() * page_bytes();
        if whole > 0 {
            // SAFETY: within the bytes, of which the caller says that nobody uses them.
            unsafe {
                let _ = madvise(start.add(before).as_ptr().cast(), whole, Advice::LinuxDontNeed);
            }
        }
    }

    impl Drop for PoolChunk {
        fn drop(&mut self) {
            // SAFETY: every piece holds a handle of its chunk: there are none any more.
            let _ = unsafe { munmap(self.start.as_ptr().cast(), CHUNK_BYTES) };
        }
    }
}

#[cfg(not(all(target_os = "linux", not(miri))))]
impl PoolChunk {
    fn map() -> Option<PoolChunk> {
        None
    }
    fn map_aside() -> Option<PoolChunk> {
        None
    }
    fn touch(&self) {}
    fn give_back(&self, _: NonNull<u8>, _: usize) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(all(target_os = "linux", not(miri)))]
    fn chunk_of(piece: &PoolPiece) -> Option<*const PoolChunk> {
        match &piece.origin {
            PieceOrigin::Chunk(chunk) => Some(Arc::as_ptr(chunk)),
            _ => None,
        }
    }

    #[test]
    fn pieces_are_apart_and_booked_until_they_are_cut() {
        let account = Account::root(1 << 30);
        let size = if cfg!(miri) { 256 } else { 64 << 10 };
        let layout = Layout::from_size_align(size, 64).unwrap();
        let helper = if cfg!(miri) { Helper::inline() } else { Helper::thread().unwrap() };
        let mut pool = PiecePool::new(layout, account.clone(), MemoryKind::Pages, Some(helper));
        let count = if cfg!(miri) { 3 } else { 300 };
        let mut pieces: Vec<PoolPiece> = (0..count).map(|_| pool.take()).collect();
        assert!(account.used() <= 2 * CHUNK_BYTES as u64, "{account:?}");
        for (i, piece) in pieces.iter().enumerate() {
            assert_eq!(piece.start().as_ptr() as usize % 64, 0);
            // SAFETY: the piece is ours and so long.
            unsafe { piece.start().as_ptr().write_bytes(i as u8, piece.bytes()) };
        }
        for (i, piece) in pieces.iter().enumerate() {
            // SAFETY: written above.
            let bytes =
                unsafe { std::slice::from_raw_parts(piece.start().as_ptr(), piece.bytes()) };
            assert!(bytes.iter().all(|&byte| byte == i as u8), "piece {i}");
        }
        drop(pieces.drain(..count / 2));
        // What is given back comes back as zeroes or as new memory, never as another's.
        pieces.extend((0..count / 2).map(|_| pool.take()));
        let mut starts: Vec<usize> = pieces.iter().map(|p| p.start().as_ptr() as usize).collect();
        starts.sort_unstable();
        assert!(starts.windows(2).all(|pair| pair[1] - pair[0] >= size));
        drop(pool);
        assert_eq!(account.used(), 0);
    }

    /// What is mapped is booked: what is cut by the caller, the rest by the pool.
    #[test]
    #[cfg(all(target_os = "linux", not(miri)))]
    fn every_mapped_byte_is_booked_once() {
        let account = Account::root(1 << 30);
        let layout = Layout::from_size_align(16 << 10, 64).unwrap();
        let helper = Some(Helper::thread().unwrap());
        let mut pool = PiecePool::new(layout, account.clone(), MemoryKind::Index, helper);
        let (mut pieces, mut cut) = (Vec::new(), 0);
        // The helper is late now and then: what it is late for comes of a chunk aside.
        while cut < 500 {
            let piece = pool.take();
            cut += usize::from(chunk_of(&piece).is_some());
            pieces.push(piece);
            let chunks: std::collections::HashSet<_> = pieces.iter().filter_map(chunk_of).collect();
            let mapped = chunks.len() + usize::from(pool.ahead.is_some());
            let booked = account.used() + (cut * layout.size()) as u64;
            assert_eq!(booked, (mapped * CHUNK_BYTES) as u64, "{cut} pieces of {mapped} chunks");
            if pool.ahead.is_some() && pieces.last().is_some_and(|piece| chunk_of(piece).is_none())
            {
                std::thread::sleep(std::time::Duration::from_micros(200));
            }
        }
        drop(pieces);
        drop(pool);
        assert_eq!(account.used(), 0);
    }

    /// On pages of 64 KiB four pieces of 16 KiB would lie in one, and go with it.
    #[test]
    #[cfg(all(target_os = "linux", not(miri)))]
    fn pieces_that_share_a_page_of_the_system_come_from_the_allocator() {
        for (page, piece, is_cut) in [
            (4 << 10, 16 << 10, true),
            (16 << 10, 16 << 10, true),
            (64 << 10, 16 << 10, false),
            (64 << 10, 32 << 10, false),
            (64 << 10, 64 << 10, true),
        ] {
            let account = Account::root(1 << 30);
            let layout = Layout::from_size_align(piece, 64).unwrap();
            let helper = Some(Helper::thread().unwrap());
            let mut pool =
                PiecePool::on_pages(page, layout, account.clone(), MemoryKind::Index, helper);
            let count = 4 * HUGE_FROM as usize / piece;
            let mut pieces: Vec<PoolPiece> = (0..count).map(|_| pool.take()).collect();
            let of_chunks = pieces
                .iter()
                .filter(|piece| !matches!(piece.origin, PieceOrigin::Allocator))
                .inspect(|piece| assert_eq!(piece.start().as_ptr().addr() % page, 0))
                .count();
            assert_eq!(of_chunks > 0, is_cut, "pieces of {piece} on pages of {page}");
            // Every other piece goes; the pages of those that stay are as they were written.
            for (i, piece) in pieces.iter().enumerate() {
                // SAFETY: the piece is ours and so long.
                unsafe { piece.start().as_ptr().write_bytes(i as u8 | 1, piece.bytes()) };
            }
            let kept: Vec<(usize, PoolPiece)> =
                pieces.drain(..).enumerate().filter(|(i, _)| i % 2 == 0).collect();
            for (i, piece) in &kept {
                // SAFETY: written above.
                let bytes =
                    unsafe { std::slice::from_raw_parts(piece.start().as_ptr(), piece.bytes()) };
                assert!(bytes.iter().all(|&byte| byte == *i as u8 | 1), "piece {i}");
            }
            drop((kept, pool));
            assert_eq!(account.used(), 0);
        }
    }

    #[test]
    fn sizes_are_rounded_only_where_little_is_lost() {
        assert_eq!(piece_bytes(65_520), 65_536);
        assert_eq!(piece_bytes(16_384), 16_384);
        assert_eq!(piece_bytes(448), 448);
        assert_eq!(piece_bytes(50_000), 50_000);
    }

    #[test]
    #[cfg(all(target_os = "linux", not(miri)))]
    fn whole_pages_of_a_piece_that_is_given_back_are_not_resident() {
        let page = page_bytes();
        for bytes in [page / 2, 4 * page, 4 * page + 64] {
            let piece = PoolPiece::allocated(Layout::from_size_align(bytes, 64).unwrap());
            let start = piece.start();
            // SAFETY: the piece is ours and so long.
            unsafe { start.as_ptr().write_bytes(1, bytes) };
            leave_pages(start, bytes);
            // SAFETY: written above; pages that were left read as zeros.
            let left = unsafe { std::slice::from_raw_parts(start.as_ptr(), bytes) };
            let before = start.as_ptr().align_offset(page).min(bytes);
            let whole = (bytes - before) / page * page;
            assert!(left[..before].iter().all(|byte| *byte == 1), "before the first whole page");
            assert!(left[before..before + whole].iter().all(|byte| *byte == 0), "{bytes}");
            assert!(left[before + whole..].iter().all(|byte| *byte == 1), "behind the last");
            assert!(whole > 0 || bytes < page);
            piece.give_back();
        }
    }
}
