//! The log: frames in memory by age, and how records move through them.
//!
//! A frame is *mutable* (records change in place), *cooling* (a changed record moves to the fill
//! frame), *frozen* (being written; nothing in it changes), *clean* (on storage and still
//! readable; a changed record moves out), and then recycled. While memory suffices, every frame
//! stays mutable. When it does not, each new record pays for a bounded share of the way out: some
//! slots of the oldest clean frame are redirected to storage, or one frame is frozen.
//!
//! What it keeps true:
//! - An index entry into memory points to a used slot of a frame that is not vacant.
//! - An entry is written to no frame that is frozen or clean.
//! - Every frame, spare or in use, is booked from before it is allocated until it is dropped; the
//!   heap that its values own is booked with it.

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{Duration, Instant};

use alluvium_pagestore::{
    Account, Error, ErrorKind, HeapSize, Key, Lookup, MemoryKind, Result, SegmentWriter, State,
    fingerprint,
};

use super::address::{Address, Place, StoredAt};
use super::config::Sizes;
use super::flush::{Answer, Flusher, drop_entries};
use super::frame_unsafe::Frame;
use super::frames_unsafe::{FrameState, Frames, Stage};
use super::index::{Index, IndexHash, Position};
use super::pool_unsafe::Pool;
use super::stored::Stored;
use crate::table::{StateContext, TableStats};
use crate::trace_event;

/// Frames with the helper at once.
const FROZEN_MAX: usize = 4;
/// Slots redirected per new record while memory is short.
pub const QUANTUM: u32 = 8;
/// Empty frames kept for reuse.
const SPARES_MAX: usize = 4;
/// Making room is tried so often: what one part of it frees another may take.
const ROUNDS_MAX: usize = 8;
/// Least free memory below which frames are on their way out.
pub const WANT_FREE_MIN: u64 = 4096;

/// An address that no record has.
pub const NOWHERE: u64 = u64::MAX;

/// Where a key's record is.
#[derive(Clone, Copy, Debug)]
pub enum Located {
    /// In memory.
    Resident { at: Position, number: u32, slot: u32 },
    /// Not in memory; storage may have it.
    Cold,
    /// Nowhere.
    Absent,
}

/// The frames, the index and the segments of one table.
pub struct Log<K: Key, V: State> {
    pub name: String,
    pub account: Rc<Account>,
    pub sizes: Sizes,
    pub index: Index,
    pub frames: Frames<K, V>,
    pub stored: Option<Stored>,
    pub flusher: Option<Flusher<K, V>>,
    pub stats: TableStats,
    vacant_numbers: Vec<u32>,
    spares: Vec<Frame<K, V>>,
    /// Memory for more frames.
    pool: Pool,
    /// Frames in use, oldest first.
    order: VecDeque<u32>,
    /// The first so many of `order` are past being mutable or cooling.
    sealed: usize,
    frozen: usize,
    failed: usize,
    fill: Option<u32>,
    /// Mutable frames with unused slots.
    sparse: Vec<u32>,
    /// The clean frame whose slots are being redirected, and the next slot.
    evicting: Option<(u32, u32)>,
    /// First hash of the owned key groups, and the bits that all their hashes share.
    groups_lo: u64,
    groups_shift: u32,
    /// Free memory below which frames are on their way out.
    want_free: u64,
    tables_booked: u64,
    flush_error: Option<Error>,
}

impl<K: Key, V: State> Log<K, V> {
    /// An empty log for the state that `context` describes; its buffers are booked.
    pub fn open(context: &StateContext, sizes: Sizes, index: Index) -> Self {
        let storage = context.segments.clone().map(|store| {
            let (helper, account) = (context.helper.clone(), context.account.clone());
            let (depth, read_bytes) = (sizes.queue_depth, sizes.read_bytes);
            let stored = Stored::new(store.clone(), helper.clone(), account, depth, read_bytes);
            let state = fingerprint(&context.name);
            let (chunk, segment) = (sizes.chunk_bytes, sizes.segment_bytes);
            let writer = SegmentWriter::new(store.clone(), state, chunk, segment);
            (stored, Flusher::new(helper, store, writer))
        });
        let (name, account) = (context.name.clone(), context.account.clone());
        let (owned, key_groups) = (context.owned.clone(), context.key_groups);
        let first = |group: u16| (u64::from(group) << 16).div_ceil(u64::from(key_groups));
        let (lo, hi) = (first(owned.start), first(owned.end));
        let want_free = sizes.headroom_bytes
            + (2 * sizes.frame_bytes).max(account.limit() / 32).max(WANT_FREE_MIN);
        let (stored, flusher) = storage.unzip();
        let (slots, helper) = (sizes.slots, Some(context.helper.clone()));
        let layout = Frame::<K, V>::layout(slots);
        let pool = Pool::new(layout, account.clone(), MemoryKind::Tables, helper);
        let frames_max = sizes.frames_max as usize;
        let mut log = Self {
            name,
            account,
            sizes,
            index,
            frames: Frames::new(frames_max, slots),
            pool,
            stored,
            flusher,
            stats: TableStats::default(),
            vacant_numbers: Vec::with_capacity(frames_max),
            spares: Vec::with_capacity(SPARES_MAX),
            order: VecDeque::with_capacity(frames_max),
            sealed: 0,
            frozen: 0,
            failed: 0,
            fill: None,
            sparse: Vec::with_capacity(frames_max / 4 + 1),
            evicting: None,
            groups_lo: lo << 48,
            groups_shift: (((hi - lo) << 48).wrapping_sub(1)).leading_zeros(),
            want_free,
            tables_booked: 0,
            flush_error: None,
        };
        assert!(log.book_tables(), "the tables are part of the least memory: {:?}", log.account);
        log
    }

    /// The index's part of a key's hash.
    #[inline(always)]
    pub fn index_hash(&self, hash: u64) -> IndexHash {
        IndexHash::of(hash & self.sizes.hash_mask, self.groups_lo, self.groups_shift)
    }

    /// The address of a slot.
    #[inline(always)]
    pub fn address_of(&self, number: u32, slot: u32) -> Address {
        Address::memory(self.frames.address_of(number, slot))
    }

    /// Frame number and slot of an address in memory.
    #[inline(always)]
    pub fn slot_of(&self, address: u64) -> (u32, u32) {
        self.frames.slot_of(address)
    }

    #[inline(always)]
    pub fn frame(&self, number: u32) -> &Frame<K, V> {
        self.frames.state(number).frame.as_ref().expect("a frame in use")
    }

    #[inline(always)]
    pub fn frame_mut(&mut self, number: u32) -> &mut Frame<K, V> {
        self.frames.state_mut(number).frame.as_mut().expect("a frame in use")
    }

    #[inline(always)]
    pub fn stage(&self, number: u32) -> Stage {
        self.frames.state(number).stage
    }

    /// Whether new records go to this frame.
    #[cfg(test)]
    pub fn is_fill(&self, number: u32) -> bool {
        self.fill == Some(number)
    }

    /// The slot of a key's record, if there is a short cut to it. The fast path of a write: two
    /// memory accesses, one for the bucket and one for the slot.
    #[inline(always)]
    pub fn find_short<Q: Lookup<K> + ?Sized>(
        &self,
        hash: IndexHash,
        key: &Q,
    ) -> Option<(u32, u32)> {
        let mut found = 0;
        let is_it = |address| {
            found = address;
            self.frames.is_at(address, |k| key.is(k))
        };
        self.index.any_in_memory(hash, is_it).then(|| self.slot_of(found))
    }

    /// The value of a key's record, if there is a short cut to it and the index has it at home.
    #[inline(always)]
    pub fn find_value<Q: Lookup<K> + ?Sized>(
        &mut self,
        hash: IndexHash,
        key: &Q,
    ) -> Option<&mut V> {
        self.frames.find(&self.index, hash, |k| key.is(k))
    }

    /// Finds a key's record without reading storage.
    #[inline]
    pub fn locate<Q: Lookup<K> + ?Sized>(&self, hash: IndexHash, key: &Q) -> Located {
        let mut cold = false;
        let found = self.index.find(hash, |address| match address.place() {
            Place::Memory(address) => {
                let (number, slot) = self.slot_of(address);
                self.frame(number).get(slot).is_some_and(|(k, _)| key.is(k))
            }
            Place::Stored(_) => {
                cold = true;
                false
            }
        });
        match found {
            Some((at, address)) => {
                let (number, slot) = self.slot_of(address.0);
                Located::Resident { at, number, slot }
            }
            None if cold => Located::Cold,
            None => Located::Absent,
        }
    }

    /// The `nth` record on storage whose hash is like this one's.
    pub fn candidate(&self, hash: IndexHash, nth: usize) -> Option<(Position, StoredAt)> {
        let mut seen = 0;
        let (at, address) = self.index.find(hash, |address| {
            let wanted = !address.is_memory() && seen == nth;
            seen += usize::from(!address.is_memory());
            wanted
        })?;
        match address.place() {
            Place::Stored(stored) => Some((at, stored)),
            Place::Memory(_) => None,
        }
    }

    /// The address of the first record in memory whose hash is like this one's, which the processor
    /// is hinted to load; [`NOWHERE`] if there is none.
    #[inline(always)]
    pub fn prefetch_candidate(&self, hash: IndexHash) -> u64 {
        let mut likely = NOWHERE;
        self.index.any_at_home(hash, |address| {
            likely = address;
            self.frames.prefetch(address);
            true
        });
        likely
    }

    /// Makes sure that the index can take an entry of this hash and that a slot is free, freeing
    /// memory if it must; returns the slot. Nothing that a user can see has changed on an error.
    #[inline]
    pub fn make_room(&mut self, hash: IndexHash) -> Result<(u32, u32)> {
        self.make_room_for(Some(hash))
    }

    /// [`make_room`](Log::make_room) for a record whose index entry is there already: its state
    /// can be changed also when the index cannot grow.
    #[inline]
    pub fn make_room_to_move(&mut self) -> Result<(u32, u32)> {
        self.make_room_for(None)
    }

    #[inline(always)]
    fn make_room_for(&mut self, new_entry: Option<IndexHash>) -> Result<(u32, u32)> {
        for _ in 0..ROUNDS_MAX {
            if self.account.available() < self.want_free {
                self.relieve()?;
            }
            if let Some(hash) = new_entry {
                if let Err(error) = self.index.prepare(hash) {
                    self.make_room_for_index(hash, error)?;
                }
            }
            let slot = self.free_slot()?;
            // The index and the frame may have taken what a value needs to grow.
            if self.account.available() >= self.sizes.headroom_bytes {
                return Ok(slot);
            }
            // Room for another fill frame as well: this one may be what is given up.
            self.make_free(self.sizes.headroom_bytes + 2 * self.sizes.frame_bytes)?;
        }
        Err(self.account.over_budget(self.sizes.headroom_bytes, "room for a value"))
    }

    /// A free slot of the fill frame, which is left when its slots are used or its entries own
    /// much heap: one page turn, flush or eviction moves a bounded number of bytes.
    #[inline]
    pub fn free_slot(&mut self) -> Result<(u32, u32)> {
        loop {
            if let Some(number) = self.fill {
                if self.frames.state(number).heap_bytes <= self.sizes.frame_heap_bytes {
                    if let Some(slot) = self.frames.vacant(number) {
                        return Ok((number, slot));
                    }
                }
            }
            self.turn_page()?;
        }
    }

    /// Puts an entry into a free slot; the index is the caller's.
    #[inline]
    pub fn put(&mut self, to: (u32, u32), hash: IndexHash, key: K, value: V) {
        let heap = heap_of(&key, &value);
        self.frames.put(to, hash, key, value, heap);
        if heap > 0 {
            self.account.charge(MemoryKind::Values, heap);
        }
    }

    /// Takes an entry out of a frame that is not frozen; the index is the caller's.
    pub fn take(&mut self, number: u32, slot: u32) -> (K, V) {
        let stage = self.stage(number);
        let state = self.frames.state_mut(number);
        let (_, key, value) = state.frame.as_mut().expect("a frame in use").take(slot);
        let heap = heap_of(&key, &value);
        state.heap_bytes -= heap;
        self.account.release(MemoryKind::Values, heap);
        let (frame, heap_after) = (state.frame.as_ref().expect("a frame in use"), state.heap_bytes);
        let (used, slots, heap_max) = (frame.used(), frame.slots(), self.sizes.frame_heap_bytes);
        let has_room = |used: u32, heap_bytes: u64| {
            used <= slots - slots.div_ceil(8) && heap_bytes <= heap_max - heap_max / 8
        };
        if stage == Stage::Clean {
            let segment = state.segment;
            self.stored.as_mut().expect("a clean frame is stored").record_died(segment);
        }
        if used == 0 && Some(number) != self.fill && self.evicting.map(|e| e.0) != Some(number) {
            self.retire(number);
        } else if stage == Stage::Mutable
            && has_room(used, heap_after)
            && !has_room(used + 1, heap_after + heap)
        {
            // Passed on the way down: an eighth of the slots, and of the heap, is free now.
            if self.sparse.len() < self.sparse.capacity() {
                self.sparse.push(number);
            }
        }
        (key, value)
    }

    /// Starts a new fill frame.
    #[cold]
    fn turn_page(&mut self) -> Result<()> {
        while let Some(number) = self.sparse.pop() {
            let state = self.frames.state(number);
            let vacant = state.frame.as_ref().is_some_and(|f| f.used() < f.slots())
                && state.heap_bytes <= self.sizes.frame_heap_bytes;
            if state.stage == Stage::Mutable && vacant && self.fill != Some(number) {
                self.fill = Some(number);
                return Ok(());
            }
        }
        let frame = loop {
            self.poll()?;
            // No new records without memory for the segments that they go to.
            let booked = self.book_tables();
            match self.spares.pop() {
                Some(frame) if booked => break frame,
                Some(frame) => {
                    drop(frame);
                    self.account.release(MemoryKind::Pages, self.sizes.frame_bytes);
                    continue;
                }
                None => {}
            }
            if booked && self.account.try_reserve(MemoryKind::Pages, self.sizes.frame_bytes) {
                break Frame::new(self.sizes.slots, self.pool.take());
            }
            self.free_a_frame()?;
        };
        self.stats.pages_begun += 1;
        let state =
            FrameState { frame: Some(frame), stage: Stage::Mutable, heap_bytes: 0, segment: 0 };
        let number = match self.vacant_numbers.pop() {
            Some(number) => {
                *self.frames.state_mut(number) = state;
                number
            }
            None => self.frames.push(state),
        };
        self.frames.shorten(number);
        self.order.push_back(number);
        self.fill = Some(number);
        Ok(())
    }

    /// Takes an empty frame out of use.
    fn retire(&mut self, number: u32) {
        let state = self.frames.state_mut(number);
        debug_assert!(state.heap_bytes == 0 && state.stage != Stage::Frozen);
        let frame = state.frame.take().expect("a frame in use");
        self.leave(number);
        self.keep_or_drop(frame);
    }

    /// Takes back that the clean frames of a segment are on storage: the segment is given up.
    pub fn give_up(&mut self, segment: u32) {
        if let Some((number, _)) = self.evicting {
            if self.frames.state(number).segment == segment {
                self.evict(u32::MAX);
            }
        }
        for &number in self.order.iter().take(self.sealed) {
            let state = self.frames.state_mut(number);
            if state.stage == Stage::Clean && state.segment == segment {
                state.stage = Stage::Failed;
                self.failed += 1;
                let records = u64::from(state.frame.as_ref().expect("a frame in use").used());
                let stored = self.stored.as_mut().expect("a clean frame is stored");
                stored.records_died(segment, records);
            }
        }
    }

    /// Freezes every frame, and waits until all are written and the open segment is sealed.
    pub fn write_all(&mut self) -> Result<()> {
        let start = Instant::now();
        loop {
            self.poll()?;
            let more = self.frozen < FROZEN_MAX && self.freeze_oldest();
            if !more && self.frozen == 0 {
                break;
            }
            if !more {
                self.wait()?;
            }
            self.check_patience(start)?;
        }
        self.flusher.as_mut().expect("a stored log").seal();
        while self.pending() > 0 {
            self.wait()?;
            self.check_patience(start)?;
        }
        Ok(())
    }

    /// Removes a frame from the order and gives its number back.
    fn leave(&mut self, number: u32) {
        let at = self.order.iter().position(|&n| n == number).expect("a frame in order");
        self.order.remove(at);
        if at < self.sealed {
            self.sealed -= 1;
        }
        let state = self.frames.state_mut(number);
        if state.stage == Stage::Failed {
            self.failed -= 1;
        }
        state.stage = Stage::Vacant;
        if self.fill == Some(number) {
            self.fill = None;
        }
        self.vacant_numbers.push(number);
    }

    fn keep_or_drop(&mut self, frame: Frame<K, V>) {
        let tight = self.account.available() < self.sizes.headroom_bytes;
        if self.spares.len() < SPARES_MAX && !tight {
            self.spares.push(frame);
        } else {
            drop(frame);
            self.account.release(MemoryKind::Pages, self.sizes.frame_bytes);
        }
    }

    /// Whether memory is short, here or in the store, so that frames are on their way out.
    pub fn is_short(&self) -> bool {
        self.flusher.is_some() && self.account.available() < self.want_free
    }

    /// While memory is short: a bounded share of the work that frees some, and, if values could
    /// not grow any more, as much as it takes.
    #[cold]
    pub fn relieve(&mut self) -> Result<()> {
        self.poll()?;
        if self.evicting.is_some() || self.first_clean().is_some() {
            self.evict(QUANTUM);
        }
        let on_the_way = (self.sealed - self.failed.min(self.sealed)) as u64;
        let target = (self.want_free / self.sizes.frame_bytes.max(1)).max(2) + 1;
        let backlog = self.flusher.as_ref().map_or(usize::MAX, Flusher::pending);
        let plenty = self.order.len() - self.sealed > 2;
        if plenty && on_the_way < target && self.frozen < FROZEN_MAX && backlog < 2 * FROZEN_MAX {
            self.freeze_oldest();
        }
        self.make_headroom()
    }

    /// Frees memory until a value can grow, or be read, without passing the budget.
    pub fn make_headroom(&mut self) -> Result<()> {
        self.make_free(self.sizes.headroom_bytes)
    }

    fn make_free(&mut self, bytes: u64) -> Result<()> {
        while self.account.available() < bytes {
            if let Some(frame) = self.spares.pop() {
                drop(frame);
                self.account.release(MemoryKind::Pages, self.sizes.frame_bytes);
            } else {
                self.free_a_frame()?;
            }
        }
        Ok(())
    }

    /// Gives up about `bytes` of frames to other states, and says how many; keeps what the log
    /// needs to work: the least frames, and as much as a value needs to grow.
    #[cold]
    pub fn give_memory_up(&mut self, bytes: u64) -> Result<u64> {
        let before = self.account.used();
        let keep = self.floor_bytes();
        loop {
            let given = before.saturating_sub(self.account.used());
            let elastic = [MemoryKind::Pages, MemoryKind::Values].map(|k| self.account.used_for(k));
            if given >= bytes || self.flusher.is_none() {
                return Ok(given);
            }
            if let Some(frame) = self.spares.pop() {
                drop(frame);
                self.account.release(MemoryKind::Pages, self.sizes.frame_bytes);
            } else if self.order.len() as u64 > super::config::FRAMES_MIN
                && elastic.iter().sum::<u64>() > keep + self.sizes.frame_bytes
            {
                self.free_a_frame()?;
            } else {
                return Ok(given);
            }
        }
    }

    #[cold]
    fn make_room_for_index(&mut self, hash: IndexHash, mut error: Error) -> Result<()> {
        while error.kind() == ErrorKind::OverBudget {
            if let Some(frame) = self.spares.pop() {
                drop(frame);
                self.account.release(MemoryKind::Pages, self.sizes.frame_bytes);
            } else if self.order.len() as u64 <= super::config::FRAMES_MIN
                || self.free_a_frame().is_err()
            {
                break;
            }
            match self.index.prepare(hash) {
                Ok(()) => return Ok(()),
                Err(again) => error = again,
            }
        }
        Err(error)
    }

    /// Frees one frame, waiting for storage if it must.
    #[cold]
    pub fn free_a_frame(&mut self) -> Result<()> {
        if self.flusher.is_none() {
            let what = "a page of the hybrid log, in a store without a directory,";
            return Err(self.account.over_budget(self.sizes.frame_bytes, what));
        }
        let start = Instant::now();
        let mut stalled = false;
        let (spares, booked) = (self.spares.len(), self.account.used());
        loop {
            if self.evicting.is_some() || self.first_clean().is_some() {
                self.evict(u32::MAX);
            }
            self.poll()?;
            if self.spares.len() > spares || self.account.used() < booked {
                return Ok(());
            }
            if self.frozen == 0 && !self.freeze_oldest() && self.pending() == 0 {
                // Nothing of its own is left to give up: other states may have some.
                let (tables, page) = (self.tables_lacking(), self.sizes.frame_bytes);
                let wanted = self.account.available() + page.max(tables);
                let what = if tables > 0 { "the table of segments" } else { "a page" };
                return self.account.ensure(wanted, what);
            }
            if self.pending() > 0 {
                if !stalled {
                    self.stats.stalls += 1;
                    trace_event!(DEBUG, "waiting for storage", state = &*self.name);
                    stalled = true;
                }
                self.wait()?;
            }
            self.check_patience(start)?;
        }
    }

    /// Answers of the helper still to come.
    pub fn pending(&self) -> usize {
        self.flusher.as_ref().map_or(0, Flusher::pending)
    }

    /// Takes the answers that are there. An error is that of a page that could not be written;
    /// its records are still in memory, and it is tried again.
    pub fn poll(&mut self) -> Result<()> {
        while let Some(answer) = self.flusher.as_mut().and_then(Flusher::poll) {
            self.take_answer(answer);
        }
        self.flush_error.take().map_or(Ok(()), Err)
    }

    /// Waits a moment for an answer.
    pub fn wait(&mut self) -> Result<()> {
        if let Some(answer) = self.flusher.as_mut().and_then(Flusher::wait) {
            self.take_answer(answer);
        }
        self.poll()
    }

    fn take_answer(&mut self, answer: Answer<K, V>) {
        match answer {
            Answer::Flushed { number, frozen, result, sealed } => {
                self.take_sealed(&sealed);
                self.frozen -= 1;
                self.frame_mut(number).thaw(frozen);
                let stored = self.stored.as_mut().expect("a flusher has a store");
                let numbered = result.and_then(|(page, records)| {
                    self.stats.codec_calls += records;
                    self.stats.flushed_bytes += page.bytes;
                    let (name, bytes) = (&*self.name, page.bytes);
                    trace_event!(
                        DEBUG,
                        "page written",
                        state = name,
                        page = number,
                        records = records,
                        bytes = bytes,
                    );
                    stored.update(&page.segment, records)
                });
                let state = self.frames.state_mut(number);
                match numbered {
                    Ok(segment) => (state.stage, state.segment) = (Stage::Clean, segment),
                    Err(error) => {
                        trace_event!(
                            WARN,
                            "page not written",
                            state = &*self.name,
                            error = error.to_string().as_str(),
                        );
                        state.stage = Stage::Failed;
                        self.failed += 1;
                        self.flush_error = Some(error.with("state", &self.name));
                    }
                }
                self.book_tables();
            }
            Answer::Reaped { frame, heap_bytes } => {
                self.account.release(MemoryKind::Values, heap_bytes);
                self.keep_or_drop(frame);
            }
            Answer::Sealed { result, sealed } => {
                self.take_sealed(&sealed);
                if let Err(error) = result {
                    self.flush_error = Some(error.with("state", &self.name));
                }
            }
        }
    }

    fn take_sealed(&mut self, sealed: &[alluvium_pagestore::SegmentInfo]) {
        let stored = self.stored.as_mut().expect("a flusher has a store");
        for info in sealed {
            // Known since its first page, so that this takes no new number.
            let _ = stored.update(info, 0);
        }
    }

    /// Freezes the oldest frame that is not on its way; says whether there was one.
    pub fn freeze_oldest(&mut self) -> bool {
        if self.flusher.is_none() {
            return false;
        }
        let failed = |log: &Self, n: u32| log.stage(n) == Stage::Failed;
        let again = if self.failed > 0 {
            self.order.iter().take(self.sealed).copied().find(|&n| failed(self, n))
        } else {
            None
        };
        let number = match again {
            Some(number) => {
                self.failed -= 1;
                number
            }
            None => {
                let Some(&number) = self.order.get(self.sealed) else { return false };
                if self.fill == Some(number) {
                    self.fill = None;
                }
                if self.frame(number).used() == 0 {
                    self.retire(number);
                    return true;
                }
                self.sealed += 1;
                number
            }
        };
        let state = self.frames.state_mut(number);
        state.stage = Stage::Frozen;
        let frozen = state.frame.as_mut().expect("a frame in use").freeze();
        self.frozen += 1;
        self.stats.pages_flushed += 1;
        self.flusher.as_mut().expect("looked at above").flush(number, frozen);
        self.cool();
        true
    }

    /// Marks the oldest unsealed frames as cooling.
    fn cool(&mut self) {
        let unsealed = self.order.len() - self.sealed;
        let cooling = unsealed * self.sizes.cooling_percent as usize / 100;
        for at in self.sealed..self.sealed + cooling {
            let number = self.order[at];
            if self.fill != Some(number) {
                self.frames.state_mut(number).stage = Stage::Cooling;
            }
        }
    }

    fn first_clean(&self) -> Option<u32> {
        let sealed = self.order.iter().take(self.sealed).copied();
        // Frames are written in order, so that a clean one is at the front unless one failed.
        sealed.take(FROZEN_MAX + self.failed + 1).find(|&n| self.stage(n) == Stage::Clean)
    }

    /// Redirects index entries of the oldest clean frame to storage, `slots` slots of it, and
    /// recycles the frame at its end.
    fn evict(&mut self, slots: u32) {
        let Some((number, start)) =
            self.evicting.or_else(|| self.first_clean().map(|number| (number, 0)))
        else {
            return;
        };
        let end = self.sizes.slots.min(start.saturating_add(slots));
        let segment = self.frames.state(number).segment;
        for slot in start..end {
            let Some(hash) = self.frame(number).hash(slot) else { continue };
            let grain = self.frame(number).grain(slot);
            let (old, new) =
                (self.address_of(number, slot), Address::stored(StoredAt { segment, grain }));
            if !self.index.replace(hash, old, new) {
                // Changed or removed while the frame was frozen.
                self.stored.as_mut().expect("a clean frame is stored").record_died(segment);
            }
            if !needs_reaper::<K, V>() {
                self.frame_mut(number).take(slot);
            }
        }
        if end < self.sizes.slots {
            self.evicting = Some((number, end));
            return;
        }
        self.evicting = None;
        trace_event!(DEBUG, "page evicted", state = &*self.name, page = number, segment = segment);
        let state = self.frames.state_mut(number);
        let frame = state.frame.take().expect("a frame in use");
        let heap_bytes = std::mem::take(&mut state.heap_bytes);
        self.leave(number);
        if needs_reaper::<K, V>() {
            self.flusher.as_mut().expect("a clean frame was flushed").reap(frame, heap_bytes);
        } else {
            self.account.release(MemoryKind::Values, heap_bytes);
            self.keep_or_drop(frame);
        }
    }

    /// Forgets everything in memory and in the index; segments are left to die. A panic of a value
    /// that is dropped goes on once all are dropped.
    pub fn clear(&mut self) -> Result<()> {
        while self.frozen > 0 || self.pending() > 0 {
            self.wait()?;
        }
        let segments: Vec<u32> = self.stored.iter().flat_map(Stored::numbers).collect();
        if let Some(stored) = &mut self.stored {
            for number in segments {
                stored.all_died(number);
            }
        }
        self.index.clear();
        self.evicting = None;
        let mut panicked = None;
        while let Some(&number) = self.order.front() {
            let state = self.frames.state_mut(number);
            let mut frame = state.frame.take().expect("a frame in use");
            let heap = std::mem::take(&mut state.heap_bytes);
            panicked = panicked.or(drop_entries(&mut frame));
            self.account.release(MemoryKind::Values, heap);
            self.leave(number);
            self.keep_or_drop(frame);
        }
        self.sparse.clear();
        panicked.map_or(Ok(()), |panic| std::panic::resume_unwind(panic))
    }

    /// Gives up when storage has not answered for long.
    fn check_patience(&self, start: Instant) -> Result<()> {
        let patience = self.sizes.patience;
        if start.elapsed() < patience {
            return Ok(());
        }
        let message = format!("storage has not taken what was given to it for {patience:?}");
        Err(Error::new(ErrorKind::Backpressure, message).with("state", &self.name))
    }

    /// Books what the tables take now, and the next growth of the table of segments, and says
    /// whether it could: not while memory is short, and not if frames, all given up, would leave too
    /// little for a value to be read and for the least frames. No frame is begun then: what is in
    /// memory can be written still.
    pub fn book_tables(&mut self) -> bool {
        let lacking = self.tables_lacking();
        if lacking == 0 {
            return true;
        }
        let [pages, values] =
            [MemoryKind::Pages, MemoryKind::Values].map(|kind| self.account.used_for(kind));
        let frames_min = super::config::FRAMES_MIN * self.sizes.frame_bytes;
        let kept = self.sizes.headroom_bytes + frames_min;
        let available = self.account.available();
        if available < lacking || available + pages + values < lacking + kept {
            return false;
        }
        self.account.charge(MemoryKind::Tables, lacking);
        self.tables_are_booked(lacking);
        true
    }

    /// [`book_tables`](Log::book_tables) while the log is restored, when no value is read yet.
    pub fn reserve_tables(&mut self) -> Result<()> {
        let lacking = self.tables_lacking();
        self.account.reserve(MemoryKind::Tables, lacking, "the table of segments")?;
        self.tables_are_booked(lacking);
        Ok(())
    }

    fn tables_are_booked(&mut self, bytes: u64) {
        self.tables_booked += bytes;
        self.index.set_floor(self.floor_bytes());
    }

    fn tables_lacking(&self) -> u64 {
        let segments = self.stored.as_ref().map_or(0, Stored::tables_bytes);
        (self.sizes.tables_bytes + segments).saturating_sub(self.tables_booked)
    }

    /// What the index and other states must leave.
    pub fn floor_bytes(&self) -> u64 {
        self.sizes.floor_bytes(self.tables_booked.saturating_sub(self.sizes.tables_bytes))
    }
}

/// Whether frames go to the helper to be emptied.
fn needs_reaper<K, V>() -> bool {
    std::mem::needs_drop::<K>() || std::mem::needs_drop::<V>()
}

/// Heap bytes of an entry.
#[inline(always)]
pub fn heap_of<K: HeapSize, V: HeapSize>(key: &K, value: &V) -> u64 {
    if K::NONE && V::NONE { 0 } else { (key.heap_bytes() + value.heap_bytes()) as u64 }
}

impl<K: Key, V: State> Drop for Log<K, V> {
    fn drop(&mut self) {
        // The helper's answers carry frames; those that do not come in time leak their values,
        // which is safe, rather than block.
        let start = Instant::now();
        while self.pending() > 0 && start.elapsed() < Duration::from_secs(2) {
            let _ = self.wait();
        }
        self.frames.clear();
        self.spares.clear();
        self.pool.close();
        for kind in [MemoryKind::Pages, MemoryKind::Values, MemoryKind::Tables] {
            self.account.release(kind, self.account.used_for(kind));
        }
        self.account.release(MemoryKind::Buffers, self.account.used_for(MemoryKind::Buffers));
    }
}
