//! Memory for the chunks of a bucket's lists, from pieces of up to [`PIECE_BYTES_MAX`].
//!
//! One allocation per chunk took more than a third of an append. Pieces grow with what the bucket
//! has, and are freed together: when the arena and all chains that have chunks in it are gone.
//! What a chain gives back before that is kept for the next chunk of about its size. Of large state,
//! pieces come from a pool that has them on huge pages, touched before they are needed: the first
//! touch of a page and the miss of its address cost an append as much as all the rest.
//!
//! What it keeps true: a chunk lies in one piece, overlaps no other, and is known to one chain, to
//! the free lists or to nobody.
//!
//! It books nothing: callers ask for [`Arena::missing`] and book that before a chain grows.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::cell::RefCell;
use std::ptr::{NonNull, null_mut};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

use alluvium_pagestore::rounded;

use super::chain_unsafe::next_capacity;
use super::element_type_unsafe::ElementType;
use crate::hybrid_log::{PiecePool, PoolPiece as Pooled};

/// Memory that large pieces come from.
pub type SharedPool = Rc<RefCell<PiecePool>>;

/// Most bytes of a piece that has room for several chunks: few enough that the allocator recycles
/// them.
pub const PIECE_BYTES_MAX: usize = 64 << 10;
/// Bytes of a bucket's first piece.
const PIECE_BYTES_FIRST: usize = 256;
/// Bytes of a piece that may lose some for its chunks to begin with lines.
const PIECE_BYTES_LINED: usize = 4 << 10;
/// Sizes of chunks that are told apart when they are given back, by powers of two.
const CLASSES: usize = 10;

/// The head of a chunk; its elements stand behind it.
#[repr(C)]
pub struct ElementChunk {
    /// Of a chain's last chunk the first one.
    pub next: *mut ElementChunk,
    /// Elements in it; of a chain's last chunk this is not kept up.
    pub len: u32,
    pub capacity: u32,
}

/// Bytes of a line of the processor's cache. Chunks are that long or several times as long, and those
/// of a large piece begin with a line, so that none is touched for two of them.
pub const LINE_BYTES: usize = 64;

/// Where the elements of a chunk begin.
#[inline(always)]
pub fn offset_of(element: Layout) -> usize {
    size_of::<ElementChunk>().next_multiple_of(element.align())
}

/// Memory of a chunk: the header, then the elements.
#[inline(always)]
pub fn layout(element: Layout, capacity: u32) -> Layout {
    let bytes = offset_of(element) + element.size() * capacity as usize;
    let align = element.align().max(align_of::<ElementChunk>());
    Layout::from_size_align(bytes.next_multiple_of(LINE_BYTES), align).expect("a chunk is small")
}

/// The most elements that take no more memory than `capacity` of them.
#[inline(always)]
pub fn filled(element: Layout, capacity: u32) -> u32 {
    ((layout(element, capacity).size() - offset_of(element)) / element.size().max(1)) as u32
}

/// The head of a piece.
#[repr(C, align(16))]
struct ArenaPiece {
    next: *mut ArenaPiece,
    /// 0 for one of a pool, which has a longer head.
    bytes: usize,
}

/// The head of a piece that came from a pool.
#[repr(C, align(16))]
struct PooledPiece {
    piece: ArenaPiece,
    memory: Pooled,
}

/// The pieces of an arena, which live as long as it or a chain that has chunks there.
#[derive(Debug)]
pub struct ArenaPieces {
    newest: AtomicPtr<ArenaPiece>,
    /// All chunks in them are of such elements.
    elements: &'static ElementType,
}

impl ArenaPieces {
    /// What the chunks in them are of.
    #[inline(always)]
    pub fn elements(&self) -> &'static ElementType {
        self.elements
    }
}

impl Drop for ArenaPieces {
    fn drop(&mut self) {
        let mut piece = *self.newest.get_mut();
        while let Some(at) = NonNull::new(piece) {
            // SAFETY: allocated and initialised in `Arena::add_piece`; nobody knows it any more.
            let ArenaPiece { next, bytes } = unsafe { at.read() };
            if bytes == 0 {
                // SAFETY: as above; this is its head. The memory it is in goes when this is dropped,
                // which was taken out before.
                drop(unsafe { at.cast::<PooledPiece>().read() }.memory);
            } else {
                // SAFETY: as above, with this layout.
                unsafe { dealloc(at.as_ptr().cast(), piece_layout(bytes)) };
            }
            piece = next;
        }
    }
}

fn piece_layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes, align_of::<ArenaPiece>()).expect("a piece is small")
}

/// Memory for a piece that is in no pool.
fn allocated(bytes: usize) -> *mut u8 {
    let layout = piece_layout(bytes);
    assert!(bytes >= size_of::<ArenaPiece>(), "{bytes} bytes have no room for the head of a piece");
    // SAFETY: the layout's size is not 0, as asserted.
    let piece = unsafe { alloc(layout) };
    if piece.is_null() {
        handle_alloc_error(layout);
    }
    piece
}

/// What an arena is for, and where its pieces come from.
#[derive(Clone)]
pub struct ArenaKind {
    /// All its chunks are of such elements.
    pub elements: &'static ElementType,
    pub piece_bytes_max: usize,
    /// Pieces of that size come from it.
    pub pool: Option<SharedPool>,
}

/// The memory of a bucket's chains.
pub struct Arena {
    pieces: Option<Arc<ArenaPieces>>,
    /// What is left of the newest piece.
    at: *mut u8,
    left: usize,
    bytes: u64,
    kind: ArenaKind,
    /// Chunks that were given back. Each pointer is good for the whole chunk, not only for its header.
    free: [*mut ElementChunk; CLASSES],
}

impl std::fmt::Debug for Arena {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Arena({} bytes)", self.bytes)
    }
}

impl Arena {
    /// An arena without memory, with pieces of at most so many bytes from the allocator.
    #[cfg(test)]
    pub fn new(elements: &'static ElementType, piece_bytes_max: usize) -> Self {
        Self::of(ArenaKind { elements, piece_bytes_max, pool: None })
    }

    /// An arena without memory.
    pub fn of(kind: ArenaKind) -> Self {
        let (pieces, free) = (None, [null_mut(); CLASSES]);
        Self { pieces, at: null_mut(), left: 0, bytes: 0, kind, free }
    }

    /// What its chunks are of.
    #[inline(always)]
    pub fn elements(&self) -> &'static ElementType {
        self.kind.elements
    }

    /// Bytes of its pieces, as the allocator rounds them.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Takes its memory out, which goes with the last chain that is in it, and says how many bytes
    /// that is.
    pub fn leave(&mut self) -> u64 {
        std::mem::replace(self, Self::of(self.kind.clone())).bytes
    }

    /// More than a list of so many elements takes. Cost: O(chunks).
    pub fn bytes_max(&self, elements: u64) -> u64 {
        let element = self.elements().layout();
        let (mut slots, mut capacity, mut bytes) = (0, 0, element.align() as u64);
        while slots < elements {
            capacity = next_capacity(element, slots, capacity);
            slots += u64::from(capacity);
            bytes += layout(element, capacity).size() as u64;
        }
        bytes + bytes / 4 + 2 * self.kind.piece_bytes_max as u64 + 256
    }

    /// Bytes that a chunk of so many of these elements takes from outside: 0 unless it needs a new piece.
    #[inline(always)]
    pub fn missing(&self, element: Layout, capacity: u32) -> u64 {
        let layout = layout(element, capacity);
        if !self.free[class(capacity)].is_null() || self.bump(layout).is_some() {
            return 0;
        }
        self.missing_piece(self.piece_for(layout).0)
    }

    /// How far into what is left a chunk would begin, if there is room.
    #[inline]
    fn bump(&self, layout: Layout) -> Option<usize> {
        let skip = self.at.align_offset(layout.align());
        (skip.checked_add(layout.size())? <= self.left).then_some(skip)
    }

    /// Bytes of the next piece, and whether it is for this chunk alone.
    fn piece_for(&self, layout: Layout) -> (usize, bool) {
        let skip = layout.align().saturating_sub(align_of::<ArenaPiece>());
        let least = size_of::<ArenaPiece>() + skip + layout.size();
        let share = (self.bytes as usize / 2).max(PIECE_BYTES_FIRST).min(self.kind.piece_bytes_max);
        // A large chunk has a piece of its own, and wastes nothing of the newest.
        if least > share / 4 { (least, true) } else { (share, false) }
    }

    /// A chunk for about so many elements, which is the caller's.
    ///
    /// # Panics
    /// If its chunks are of elements of another size.
    #[inline(always)]
    pub(super) fn take(
        &mut self,
        element: Layout,
        capacity: u32,
    ) -> (NonNull<ElementChunk>, &Arc<ArenaPieces>) {
        assert!(element == self.elements().layout(), "elements of another size");
        let (class, layout) = (class(capacity), layout(element, capacity));
        let chunk = match NonNull::new(self.free[class]) {
            Some(chunk) => {
                // SAFETY: a chunk that was given back, known to nobody else.
                self.free[class] = unsafe { chunk.as_ref() }.next;
                chunk
            }
            None => {
                let place = match self.bump(layout) {
                    Some(skip) => self.advance(skip, layout.size()),
                    None => self.add_piece(layout),
                };
                let chunk = place.cast::<ElementChunk>();
                // SAFETY: `place` is aligned for the layout, which begins with the header, and its
                // bytes are nobody's.
                unsafe { chunk.write(ElementChunk { next: null_mut(), len: 0, capacity }) };
                chunk
            }
        };
        (chunk, self.pieces.as_ref().expect("what has a chunk has pieces"))
    }

    /// Takes bytes from what is left of the newest piece.
    fn advance(&mut self, skip: usize, size: usize) -> NonNull<u8> {
        assert!(skip + size <= self.left, "{skip} and {size} of {} bytes", self.left);
        // SAFETY: `left` bytes from `at` on are of the newest piece, as asserted.
        let place = unsafe { self.at.add(skip) };
        // SAFETY: as above.
        self.at = unsafe { place.add(size) };
        self.left -= skip + size;
        NonNull::new(place).expect("a piece is not at null")
    }

    /// Adds a piece and takes the bytes of its first chunk.
    #[cold]
    fn add_piece(&mut self, chunk: Layout) -> NonNull<u8> {
        let (bytes, alone) = self.piece_for(chunk);
        self.bytes += self.missing_piece(bytes);
        let pool = self.kind.pool.as_ref();
        let pool = pool.filter(|_| !alone && bytes == self.kind.piece_bytes_max);
        let pooled = pool.map(|pool| pool.borrow_mut().take());
        let (piece, head): (*mut ArenaPiece, usize) = match &pooled {
            Some(memory) => (memory.start().as_ptr().cast(), size_of::<PooledPiece>()),
            None => (allocated(bytes).cast(), size_of::<ArenaPiece>()),
        };
        let elements = self.elements();
        let made = || Arc::new(ArenaPieces { newest: null_mut::<ArenaPiece>().into(), elements });
        let pieces = self.pieces.get_or_insert_with(made);
        // Only this arena adds to its pieces, and nobody else reads them before they are dropped,
        // which is behind the release of the count.
        let next = pieces.newest.swap(piece, Ordering::Relaxed);
        match pooled {
            Some(memory) => {
                let head = PooledPiece { piece: ArenaPiece { next, bytes: 0 }, memory };
                // SAFETY: the piece is ours, larger than this and aligned for it.
                unsafe { piece.cast::<PooledPiece>().write(head) };
            }
            // SAFETY: freshly allocated, and as large as the head at least.
            None => unsafe { piece.write(ArenaPiece { next, bytes }) },
        }
        let kept = (self.at, self.left);
        // SAFETY: the head's size is within the piece.
        (self.at, self.left) = (unsafe { piece.byte_add(head) }.cast(), bytes - head);
        let line = if !alone && bytes >= PIECE_BYTES_LINED { LINE_BYTES } else { 1 };
        let skip = self.at.align_offset(chunk.align().max(line));
        let place = self.advance(skip, chunk.size());
        if alone {
            (self.at, self.left) = kept;
        }
        place
    }

    /// Bytes that a piece takes from the allocator.
    fn missing_piece(&self, bytes: usize) -> u64 {
        let shared = if self.pieces.is_none() { rounded(size_of::<ArenaPieces>() + 16) } else { 0 };
        (rounded(bytes) + shared) as u64
    }

    /// Whether chunks of `pieces` are its own.
    pub(super) fn has(&self, pieces: &Arc<ArenaPieces>) -> bool {
        self.pieces.as_ref().is_some_and(|own| Arc::ptr_eq(own, pieces))
    }

    /// Keeps a chunk for later.
    ///
    /// # Safety
    /// It came from [`take`](Arena::take) of this arena, and nobody knows it any more; its elements
    /// are gone.
    pub(super) unsafe fn give_back(&mut self, chunk: NonNull<ElementChunk>) {
        let chunk = chunk.as_ptr();
        // Written through the pointer itself: one made of a `&mut ElementChunk` would be good for the header
        // only, and whoever takes the chunk again writes elements behind it.
        // SAFETY: a chunk of this arena, as the caller says.
        let class = class(unsafe { (*chunk).capacity });
        // SAFETY: as above.
        unsafe { (*chunk).next = self.free[class] };
        self.free[class] = chunk;
    }
}

/// Chunks of one class have at least half the room of one another.
fn class(capacity: u32) -> usize {
    (capacity.max(1).ilog2() as usize).min(CLASSES - 1)
}
