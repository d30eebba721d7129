//! The log: frames in memory by age, and how records move through them.
//!
//! A frame is *mutable* (records change in place), *cooling* (a changed record moves to the fill
//! frame), *frozen* (being written; nothing in it changes), *clean* (on storage and still
//! readable; a changed record moves out), and then recycled. While memory suffices, every frame
//! stays mutable, also once a checkpoint has it on storage: a record that is changed then is *fresh*
//! again, which what is on storage is not. When memory does not suffice, each new record pays for a
//! bounded share of the way out: some slots of the oldest clean frame are redirected to storage, or
//! one frame is frozen.
//!
//! What has a story of its own is a part with private fields: the `ring` of frames, the `eviction`, what is known of the
//! last `barrier`, and the `copies` on their way to a checkpoint.
//!
//! A log knows the types of its records as a [`RecordType`]; what of it is generic is in `typed_unsafe.rs`.
//!
//! What it keeps true:
//! - An index entry into memory points to a used slot of a frame that is not vacant.
//! - An entry is written to no frame that is frozen or clean.
//! - Every frame, spare or in use, is booked from before it is allocated until it is dropped; the
//!   heap that its values own is booked with it.

mod ageing;
mod barrier;
mod beside;
mod copies;
mod eviction;
mod freeing;
mod given_up;
mod ring;

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::time::{Duration, Instant};

use alluvium_pagestore::{Account, Error, MemoryKind, Result, fingerprint};

use crate::contract::fetch::Fetch;
use crate::contract::table::{StateContext, TableStats};
use crate::heap::hash_range::HashRange;
use crate::hybrid_log::address::{Address, Location, StoredAt};
use crate::hybrid_log::cold::{ColdTier, TierSetup};
use crate::hybrid_log::config::LogSizes;
use crate::hybrid_log::deaths::Deaths;
use crate::hybrid_log::flush::{Flusher, drop_frame};
use crate::hybrid_log::frame_unsafe::Frame;
use crate::hybrid_log::frames_unsafe::{FrameStage, FrameState, Frames, NO_FRAME};
use crate::hybrid_log::index::{Index, IndexHash, Position};
use crate::hybrid_log::pool_unsafe::PiecePool;
use crate::hybrid_log::spill::DeathSpill;
use crate::hybrid_log::stored::StoredSegments;
use crate::hybrid_log::writers::Writers;
use crate::support::first_panic::FirstPanic;
use crate::support::oversize::Oversize;
use crate::support::record_type_unsafe::RecordType;
use barrier::LogBarrier;
pub use barrier::{INDEX_SEGMENT_SLOTS, SealProgress};
pub use beside::{Bookings, LogNeighbor};
pub use copies::CopyFrame;
use copies::CopyQueue;
use eviction::{Eviction, FROZEN_MAX};
pub use freeing::NeededBytes;
use ring::FrameRing;

/// Slots redirected per new record while memory is short.
pub const QUANTUM: u32 = 8;
/// Copies of frames for a checkpoint that are there at once, at the least.
pub const COPIES_MIN: usize = FROZEN_MAX;
/// Empty frames kept for reuse also while memory is short.
pub const SPARES_MIN: usize = 4;
/// Making room is tried so often: what one part of it frees another may take.
const ROUNDS_MAX: usize = 8;
/// Least free memory below which frames are on their way out.
pub const WANT_FREE_MIN: u64 = 4096;

/// An address that no record has.
pub const NOWHERE: u64 = u64::MAX;

/// Where a key's record is.
#[derive(Clone, Copy, Debug)]
pub enum RecordLocation {
    /// In memory.
    Resident { at: Position, number: u32, slot: u32 },
    /// Not in memory; storage may have it.
    Cold,
    /// Nowhere.
    Absent,
}

/// The frames, the index and the segments of one table.
pub struct Log {
    /// What is known of its records, whose types are erased.
    pub record_type: &'static RecordType,
    pub name: String,
    pub account: Rc<Account>,
    pub sizes: LogSizes,
    pub index: Index,
    pub frames: Frames,
    pub stored: Option<StoredSegments>,
    pub flusher: Option<Flusher>,
    pub stats: TableStats,
    pub oversize: Oversize,
    /// Memory for more frames.
    pub pool: PiecePool,
    ring: FrameRing,
    eviction: Eviction,
    barrier: LogBarrier,
    /// Copies of records that a checkpoint is to have.
    copies: CopyQueue,
    /// First hash of the owned key groups, and the bits that all their hashes share.
    hashes: HashRange,
    tables_booked: u64,
    flush_error: Option<Error>,
    /// The log is over, and the helper removes, or has, what only it knows of.
    is_abandoned: bool,
    /// Records that stay cold.
    pub cold: Option<Box<ColdTier>>,
    /// If there are none yet, and are to be once the index takes too much.
    pub later: Option<Box<TierSetup>>,
    /// What was there before it was cleared, until it is dropped.
    pub beside: Option<Rc<RefCell<dyn LogNeighbor>>>,
}

impl Log {
    /// An empty log for the state that `context` describes; its buffers are booked.
    pub fn open(
        context: &StateContext,
        record_type: &'static RecordType,
        sizes: LogSizes,
        index: Index,
    ) -> Self {
        let storage = context.segments.clone().map(|store| {
            let (helper, account) = (context.helper.clone(), context.account.clone());
            let (reads, patience) = ((sizes.queue_depth, sizes.read_bytes), sizes.patience);
            let floor = sizes.floor_bytes(0);
            let deaths = Deaths::new(account.clone(), sizes.deaths_max, floor);
            let (spilled, spiller) = (sizes.spilled_max, helper.clone());
            let spill = DeathSpill::new(store.clone(), spiller, patience, spilled);
            let deaths = (deaths, spill);
            let stored = StoredSegments::new(
                store.clone(),
                helper.clone(),
                account,
                reads,
                patience,
                deaths,
            );
            let writers = Writers::new(&store, fingerprint(&context.name), &sizes);
            (stored, Flusher::new(helper, store, writers))
        });
        let (name, account) = (context.name.clone(), context.account.clone());
        let hashes = HashRange::of(&context.owned, context.key_groups);
        let want_free = sizes.headroom_bytes
            + (2 * sizes.frame_bytes).max(account.limit() / 32).max(WANT_FREE_MIN);
        let (frames_max, spares_max) = (sizes.frames_max as usize, sizes.spares_max);
        let copies = CopyQueue::new(sizes.copies_max);
        let (stored, flusher) = storage.unzip();
        let (slots, helper) = (sizes.slots, Some(context.helper.clone()));
        let layout = Frame::layout(record_type, slots);
        let cold = sizes.cold_runs.then(|| ColdTier::new(context, record_type, &sizes)).flatten();
        let pool = PiecePool::new(layout, account.clone(), MemoryKind::Tables, helper);
        let mut log = Self {
            record_type,
            name,
            account,
            sizes,
            index,
            frames: Frames::new(frames_max, slots),
            pool,
            stored,
            flusher,
            stats: TableStats::default(),
            oversize: Oversize::new(&context.name, context.max_value_bytes),
            ring: FrameRing::new(frames_max, spares_max),
            eviction: Eviction::new(want_free),
            barrier: LogBarrier::default(),
            copies,
            hashes,
            tables_booked: 0,
            flush_error: None,
            is_abandoned: false,
            cold: cold.map(Box::new),
            later: None,
            beside: None,
        };
        assert!(
            log.book_first_tables(),
            "the tables are part of the least memory: {:?}",
            log.account
        );
        log
    }

    /// The index's part of a key's hash.
    #[inline(always)]
    pub fn index_hash(&self, hash: u64) -> IndexHash {
        let hash = hash & self.sizes.hash_mask;
        IndexHash::of(hash, self.hashes.place(hash))
    }

    /// Keys that are there.
    pub fn len(&self) -> u64 {
        self.index.len() + self.cold.as_ref().map_or(0, |cold| cold.live())
    }

    /// Whether a key of this hash may be there without an entry of the index.
    pub fn may_be_in_runs(&self, hash: u64) -> bool {
        self.cold.as_ref().is_some_and(|cold| cold.live() > 0 && cold.may_have(hash))
    }

    /// The same for up to 64 hashes at once, without what is being written, whose keys have an entry: a bit for each.
    pub fn may_each_be_in_levels(&self, hashes: &[u64]) -> u64 {
        let cold = self.cold.as_ref().filter(|cold| cold.live() > 0);
        cold.map_or(0, |cold| cold.levels_may_have_each(hashes))
    }

    /// Starts reading what a call for a key of this hash reads that has no entry in the index.
    pub fn fetch_from_runs(&mut self, hash: u64) -> Fetch {
        if !self.may_be_in_runs(hash) {
            return Fetch::Ready;
        }
        self.make_room_ahead(1);
        self.cold.as_mut().map_or(Fetch::Ready, |cold| cold.fetch(hash))
    }

    /// The first hash that does not stand before a place. None: all do.
    pub fn hash_from(&self, place: u64) -> Option<u64> {
        self.hashes.hash_from(place)
    }

    /// Where a key with this hash stands among those of the owned key groups.
    pub fn place(&self, hash: u64) -> u64 {
        self.hashes.place(hash)
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
    pub fn frame(&self, number: u32) -> &Frame {
        self.frames.state(number).frame.as_ref().expect("a frame in use")
    }

    #[inline(always)]
    pub fn frame_mut(&mut self, number: u32) -> &mut Frame {
        self.frames.state_mut(number).frame.as_mut().expect("a frame in use")
    }

    /// The slots of a frame before this one are being left: the index has their records on storage.
    pub fn left_before(&self, number: u32) -> u32 {
        self.eviction.left_before(number)
    }

    #[inline(always)]
    pub fn stage(&self, number: u32) -> FrameStage {
        self.frames.state(number).stage
    }

    /// Whether new records go to this frame.
    #[cfg(test)]
    pub fn is_fill(&self, number: u32) -> bool {
        self.ring.is_fill(number)
    }

    /// The hash of the key in a slot, if the slot is used.
    pub fn hash_in(&self, number: u32, slot: u32) -> Option<IndexHash> {
        self.frame(number).get(slot).map(|record| self.index_hash(record.hash()))
    }

    /// What decoding a record of so many bytes takes that no room is kept for: nothing, unless it is longer than those of
    /// values that are not too large.
    pub fn beyond_usual(&self, record_bytes: u64) -> u64 {
        let (most, record_type) = (self.oversize.max_bytes(), self.record_type);
        // An archive may be a little longer than the heap.
        let usual = most + most / 4 + 2 * record_type.layout().size() as u64 + 1024;
        let is_long = !record_type.is_plain() && record_bytes > usual;
        if is_long { 2 * record_bytes } else { 0 }
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
            Location::Stored(stored) => Some((at, stored)),
            Location::Memory(_) => None,
        }
    }

    /// The address of the first record in memory whose hash is like this one's, which the processor
    /// is hinted to load; [`NOWHERE`] if there is none. A slot has so many bytes.
    #[inline(always)]
    pub fn prefetch_candidate(&self, slot_bytes: usize, hash: IndexHash) -> u64 {
        let mut likely = NOWHERE;
        self.index.any_at_home(hash, |address| {
            likely = address;
            self.frames.prefetch(slot_bytes, address);
            true
        });
        likely
    }

    /// Makes sure that the index can take an entry of this hash and that a slot is free, freeing
    /// memory if it must; returns the slot. Nothing that a user can see has changed on an error.
    pub fn make_room(&mut self, hash: IndexHash) -> Result<(u32, u32)> {
        self.make_room_for(Some(hash))
    }

    /// [`make_room`](Log::make_room) for a record whose index entry is there already: its state
    /// can be changed also when the index cannot grow.
    pub fn make_room_to_move(&mut self) -> Result<(u32, u32)> {
        self.make_room_for(None)
    }

    /// The next slot of the fill frame, if there is one and memory is not short: then there is
    /// nothing to make room for, and no record moves.
    pub fn slot_at_hand(&mut self) -> Option<(u32, u32)> {
        if self.account.available() < self.eviction.want_free() {
            return None;
        }
        self.vacant_slot()
    }

    #[inline(always)]
    fn vacant_slot(&mut self) -> Option<(u32, u32)> {
        let number = self.ring.fill()?;
        if self.frames.state(number).heap_bytes > self.sizes.frame_heap_bytes {
            return None;
        }
        self.frames.vacant(number).map(|slot| (number, slot))
    }

    #[inline(always)]
    fn make_room_for(&mut self, new_entry: Option<IndexHash>) -> Result<(u32, u32)> {
        let (mut rounds, mut joins) = (0, 0);
        self.begin_call();
        while rounds < ROUNDS_MAX {
            if self.account.available() < self.eviction.want_free() {
                self.relieve()?;
            }
            if let Some(hash) = new_entry {
                self.pay_for_entry(hash);
                if let Err(error) = self.index.prepare(hash) {
                    self.make_room_for_index(hash, error)?;
                }
            }
            let slot = match self.free_slot() {
                Err(error) if new_entry.is_some() && self.free_tables(&error, &mut joins)? => {
                    continue;
                }
                slot => slot?,
            };
            rounds += 1;
            // The index and the frame may have taken what a value needs to grow.
            if self.account.available() >= self.sizes.headroom_bytes {
                return Ok(slot);
            }
            // Room for another fill frame as well: this one may be what is given up.
            let bytes = self.sizes.headroom_bytes + 2 * self.sizes.frame_bytes;
            self.make_free((bytes, "a value that grows and the pages it may be in"))?;
        }
        Err(self.account.over_budget(self.sizes.headroom_bytes, "room for a value"))
    }

    /// A free slot of the fill frame, which is left when its slots are used or its entries own
    /// much heap: one page turn, flush or eviction moves a bounded number of bytes.
    pub fn free_slot(&mut self) -> Result<(u32, u32)> {
        loop {
            if let Some(slot) = self.vacant_slot() {
                return Ok(slot);
            }
            self.turn_page()?;
        }
    }

    /// Estimated bytes that the live records in memory alone would take on storage.
    pub fn unstored_bytes(&self) -> u64 {
        let Some(stored) = &self.stored else { return 0 };
        stored.bytes_of(self.index.len().saturating_sub(stored.live_records()))
    }

    /// Whether what a record needs is more than its slot, so that a frame goes to the helper to be emptied.
    pub(in crate::hybrid_log) fn needs_reaper(&self) -> bool {
        self.record_type.needs_drop()
    }

    /// Whether the record in a slot may neither change nor go: its frame is being written, or a checkpoint
    /// is yet to have it from there.
    #[inline]
    pub fn is_kept(&self, number: u32, slot: u32) -> bool {
        let due = self.frames.epoch().due();
        self.stage(number) == FrameStage::Frozen
            || self.barrier.is_open() && self.frame(number).is_due(slot, due)
    }

    /// Whether the record in a slot can be changed where it is.
    #[inline]
    pub fn is_in_place(&self, number: u32, slot: u32) -> bool {
        self.stage(number) == FrameStage::Mutable && !self.is_kept(number, slot)
    }

    /// The record in a slot that [`is_in_place`](Log::is_in_place) is about to be changed.
    pub fn freshen(&mut self, number: u32, slot: u32) {
        let stored = self.frames.freshen(number, slot);
        self.copy_died(stored);
    }

    /// What is on storage of a record in memory is not it any more.
    #[inline]
    pub(in crate::hybrid_log) fn copy_died(&mut self, stored: Option<(u32, u32)>) {
        if let Some((segment, grain)) = stored {
            let stored = self.stored.as_mut().expect("a record that was written has a store");
            stored.record_died(StoredAt { segment, grain });
        }
    }

    /// Whether there is room to note the deaths of all records of a frame.
    pub fn has_room_to_note(&self) -> bool {
        self.stored.as_ref().is_some_and(|stored| stored.has_room_to_note(self.sizes.slots))
    }

    /// Marks an entry that is kept as dead.
    pub fn leave_for_dead(&mut self, number: u32, slot: u32) {
        let epoch = self.barrier.epoch();
        // Others there may be marked since a checkpoint that was given up.
        self.drop_given_up(number);
        // What is not on storage yet dies when it is.
        self.copy_died(self.frame(number).stored(slot));
        let state = self.frames.state_mut(number);
        state.dead += 1;
        state.frame.as_mut().expect("a frame in use").mark_dead(slot, epoch);
    }

    /// Drops the record in a slot that is not kept; the index is the caller's. A panic of it is given back.
    pub fn drop_record(&mut self, number: u32, slot: u32) -> std::thread::Result<()> {
        self.copy_died(self.frame(number).stored(slot));
        self.drop_known(number, slot)
    }

    /// Drops a record whose death, if it is on storage, is known.
    fn drop_known(&mut self, number: u32, slot: u32) -> std::thread::Result<()> {
        let heap = self.frame(number).get(slot).expect("a used slot").heap_bytes();
        let frame = self.frame_mut(number);
        let dropped = catch_unwind(AssertUnwindSafe(|| frame.drop_entry(slot)));
        self.vacated(number, heap);
        dropped
    }

    /// An entry that owns `heap` bytes was taken out of a frame: it may be retired by that.
    pub(in crate::hybrid_log) fn vacated(&mut self, number: u32, heap: u64) {
        let stage = self.stage(number);
        let state = self.frames.state_mut(number);
        state.heap_bytes -= heap;
        self.account.release(MemoryKind::Values, heap);
        let (frame, heap_after) = (state.frame.as_ref().expect("a frame in use"), state.heap_bytes);
        let (used, slots, heap_max) = (frame.used(), frame.slots(), self.sizes.frame_heap_bytes);
        let has_room = |used: u32, heap_bytes: u64| {
            used <= slots - slots.div_ceil(8) && heap_bytes <= heap_max - heap_max / 8
        };
        let is_wanted = self.frames.state(number).is_awaited
            || self.ring.is_fill(number)
            || self.eviction.is_of(number);
        if used == 0 && !is_wanted {
            self.retire(number);
        } else if stage == FrameStage::Mutable
            && has_room(used, heap_after)
            && !has_room(used + 1, heap_after + heap)
        {
            // Passed on the way down: an eighth of the slots, and of the heap, is free now.
            self.ring.offer(number);
        }
    }

    /// Starts a new fill frame.
    #[cold]
    fn turn_page(&mut self) -> Result<()> {
        self.carry_some_over();
        self.drop_some_beside();
        while let Some(number) = self.ring.take_offered() {
            let state = self.frames.state(number);
            let vacant = state.frame.as_ref().is_some_and(|f| f.used() < f.slots())
                && state.heap_bytes <= self.sizes.frame_heap_bytes;
            if state.stage == FrameStage::Mutable && vacant && !self.ring.is_fill(number) {
                self.ring.fill_again(number);
                return Ok(());
            }
        }
        let frame = loop {
            self.poll()?;
            // No new records without memory for the segments that they go to.
            let booked = self.book_tables();
            match self.ring.take_spare() {
                Some(frame) if booked => break frame,
                Some(frame) => {
                    drop(frame);
                    self.account.release(MemoryKind::Pages, self.sizes.frame_bytes);
                    continue;
                }
                None => {}
            }
            if booked && self.account.try_reserve(MemoryKind::Pages, self.sizes.frame_bytes) {
                break Frame::new(self.record_type, self.sizes.slots, self.pool.take());
            }
            let needed = self.needed_for_page();
            let freed = self.free_a_frame(needed);
            // Where no page is left, records in memory do not move to runs: tombstones can.
            freed.or_else(|error| self.lend_saved_for_page(needed.0, error))?;
        };
        self.stats.pages_begun += 1;
        let state = FrameState {
            frame: Some(frame),
            stage: FrameStage::Mutable,
            heap_bytes: 0,
            epoch: self.barrier.epoch(),
            dead: 0,
            is_awaited: false,
            next_copied: NO_FRAME,
        };
        let number = match self.ring.take_number() {
            Some(number) => {
                *self.frames.state_mut(number) = state;
                number
            }
            None => self.frames.push(state),
        };
        self.frames.shorten(number);
        self.ring.add(number);
        Ok(())
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        let mut panic = FirstPanic::default();
        // They give back their own.
        self.cold = None;
        panic.catch(|| self.beside = None);
        // The helper's answers carry frames; those that do not come in time leak their values,
        // which is safe, rather than block.
        let start = Instant::now();
        let is_left = |log: &Self| log.flusher.as_ref().is_some_and(Flusher::is_left_alone);
        while self.pending() > 0 && start.elapsed() < Duration::from_secs(2) && !is_left(self) {
            let _ = self.wait();
        }
        self.frames.take_all().for_each(|frame| panic.keep(drop_frame(frame)));
        self.ring.drop_spares();
        self.copies.clear();
        self.pool.close();
        for kind in [MemoryKind::Pages, MemoryKind::Values, MemoryKind::Tables] {
            self.account.release(kind, self.account.used_for(kind));
        }
        self.account.release(MemoryKind::Buffers, self.account.used_for(MemoryKind::Buffers));
        panic.resume();
    }
}
