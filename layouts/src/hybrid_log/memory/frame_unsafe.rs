//! Frames: page-sized memory for native records, with a header of 8 bytes per slot.
//!
//! The `unsafe` of the hybrid log's memory is all here. It pays: a slot is reached by arithmetic
//! and a record is neither boxed nor zeroed; a checked `Vec<Option<_>>` per page costs a third of
//! the point updates.
//!
//! What makes it sound:
//! - A slot's `place` word has the `USED` bit exactly while its entry is initialised. The word is
//!   initialised when the frame is made and is checked before the entry is touched.
//! - A frame is owned by one thread. While it is frozen, that is while a [`FrozenFrame`] of it
//!   exists, nobody writes to entries or `USED` bits: [`Frame::thaw`] takes the frozen handle back
//!   before `frozen` is cleared, and every write asserts that it is; those by a short cut rely on that a
//!   frozen frame has none (see `frames_unsafe`).
//! - All records of a frame are of its [`RecordType`]. A frame is not generic: what knows the types of its records
//!   names them with each call ([`Frame::entry`], [`Frame::put`], [`Frame::take`]) and promises that they are those,
//!   which debug builds check; all else is done by the functions of the record type.

use std::alloc::Layout;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::slots_unsafe::{FrameBase, FrameSlots, SlotLayout};
use crate::hybrid_log::marks::{DIED, GRAIN, SINCE, TOUCHED, USED, number_of};
pub(in crate::hybrid_log) use crate::hybrid_log::marks::{FreshFilter, MarkEpoch};
use crate::hybrid_log::pool_unsafe::{PoolPiece, piece_bytes};
use crate::support::record_type_unsafe::{NativeEntry, RecordRef, RecordType};

mod copies_unsafe;

/// The memory of a frame, shared with the helper that writes it. Does not drop entries.
struct Memory {
    slots: u32,
    /// Bytes of a slot.
    stride: u32,
    record_type: &'static RecordType,
    piece: PoolPiece,
}

/// A page of native records in memory, owned by one table.
pub struct Frame {
    /// The same as in `owner`, to save a load per access.
    memory: FrameSlots,
    owner: Arc<Memory>,
    used: u32,
    /// Used slots whose records are fresh, and how many of them since the epoch that is `last` among theirs.
    fresh: u32,
    fresh_last: u32,
    last: u8,
    /// Where the search for an unused slot goes on.
    next: u32,
    frozen: bool,
}

/// A frame as the helper sees it that writes it: read-only. Those that are due are written.
pub struct FrozenFrame(Arc<Memory>, FreshFilter);

impl Frame {
    /// Bytes of one slot.
    pub fn slot_bytes(record_type: &RecordType) -> usize {
        SlotLayout::of(record_type.layout()).stride
    }

    /// The piece of memory that a frame of so many slots takes.
    pub fn layout(record_type: &RecordType, slots: u32) -> Layout {
        let shape = SlotLayout::of(record_type.layout());
        let bytes = piece_bytes(slots as usize * shape.stride);
        Layout::from_size_align(bytes, shape.align).expect("a page's size")
    }

    /// Bytes that a frame of so many slots takes.
    pub fn memory_bytes(record_type: &RecordType, slots: u32) -> usize {
        let layout = Self::layout(record_type, slots);
        // The shared handle has two counters, two pointers and three numbers.
        alluvium_pagestore::rounded(layout.size())
            + alluvium_pagestore::rounded(56)
            + if layout.align() > 16 { layout.align() } else { 0 }
    }

    /// An empty frame in a piece of the [`layout`](Frame::layout) for so many slots. Touches all of
    /// its memory.
    pub fn new(record_type: &'static RecordType, slots: u32, piece: PoolPiece) -> Self {
        let layout = Self::layout(record_type, slots);
        assert_eq!(piece.bytes(), layout.size(), "the piece is of another layout");
        let base = piece.start();
        assert_eq!(base.addr().get() % layout.align(), 0, "the piece is of another layout");
        let (memory, stride) = (FrameSlots { base, slots }, Self::slot_bytes(record_type));
        for slot in 0..slots {
            // SAFETY: `slot` is within the piece; the word is written before it is read.
            unsafe { (&raw mut (*memory.header(stride, slot)).place).write(AtomicU32::new(0)) };
        }
        let stride = stride.try_into().expect("a record is smaller than 4 GiB");
        let owner = Arc::new(Memory { slots, stride, record_type, piece });
        let (fresh, fresh_last, last) = (0, 0, 0);
        Self { memory, owner, used: 0, fresh, fresh_last, last, next: 0, frozen: false }
    }

    /// Where its slots are, while entries may be changed.
    pub(in crate::hybrid_log) fn base(&self) -> FrameBase {
        if self.frozen { FrameBase::NONE } else { FrameBase({ self.memory.base }.as_ptr()) }
    }

    /// Bytes of a slot.
    #[inline(always)]
    fn stride(&self) -> usize {
        self.owner.stride as usize
    }

    #[inline(always)]
    fn place(&self, slot: u32) -> &AtomicU32 {
        self.memory.place(self.stride(), slot)
    }

    /// Whether the records are of these types, which is known for a frame of a table of them.
    #[inline(always)]
    fn debug_check<K: 'static, V: 'static>(&self) {
        debug_assert!(self.owner.record_type.is::<K, V>(), "a frame of other types");
    }

    /// Slots, used or not.
    pub fn slots(&self) -> u32 {
        self.memory.slots
    }

    /// Used slots.
    pub fn used(&self) -> u32 {
        self.used
    }

    /// Used slots whose records are on storage nowhere.
    pub fn fresh(&self) -> u32 {
        self.fresh
    }

    /// Those of them that are fresh since others than this epoch, before which there was none of them.
    pub(in crate::hybrid_log) fn due(&self, epoch: MarkEpoch) -> u32 {
        self.fresh - if self.last == epoch.number() { self.fresh_last } else { 0 }
    }

    /// So many more are fresh since this epoch, some of them anew.
    #[inline]
    fn add_fresh(&mut self, epoch: MarkEpoch, count: u32, new: u32) {
        if self.last != epoch.number() {
            (self.last, self.fresh_last) = (epoch.number(), 0);
        }
        self.fresh_last += count;
        self.fresh += new;
    }

    /// A record with this word is fresh no more, if it was.
    #[inline]
    fn remove_fresh(&mut self, word: u32) {
        self.fresh -= u32::from(word & SINCE != 0);
        self.fresh_last -= u32::from(word & SINCE != 0 && number_of(word) == self.last);
    }

    /// The slot that the next [`put`](Frame::put) should take. Cost: the slots passed over, each
    /// of which is passed over once per round.
    pub fn vacant(&mut self) -> Option<u32> {
        if self.used == self.memory.slots {
            return None;
        }
        let (slots, stride) = (self.memory.slots, self.stride());
        let found = (0..slots)
            .map(|step| self.next + step)
            .map(|slot| if slot >= slots { slot - slots } else { slot })
            .find(|&slot| !self.memory.is_used(stride, slot));
        self.next = found?;
        found
    }

    /// The record in a slot.
    #[inline]
    pub fn get(&self, slot: u32) -> Option<RecordRef<'_>> {
        self.memory.record(self.owner.record_type, slot)
    }

    /// The records in the slots from one on that have not died.
    pub fn live_from(&self, from: u32) -> impl Iterator<Item = RecordRef<'_>> {
        let (memory, record_type) = (self.memory, self.owner.record_type);
        let shape = SlotLayout::of(record_type.layout());
        (from..memory.slots).filter_map(move |slot| {
            let word = memory.place(shape.stride, slot).load(Ordering::Relaxed);
            // SAFETY: a used slot's entry is initialised; it is not written while `self` is borrowed.
            (word & (USED | DIED[0] | DIED[1]) == USED)
                .then(|| unsafe { RecordRef::new(record_type, memory.entry_at(shape, slot)) })
        })
    }

    /// Whether a slot is used.
    #[inline]
    pub fn is_used(&self, slot: u32) -> bool {
        self.memory.is_used(self.stride(), slot)
    }

    /// Key and value in a slot.
    ///
    /// # Safety
    /// The records are of these types.
    // SAFETY: the types are the caller's to promise, as said above.
    #[inline(always)]
    pub unsafe fn entry<K: 'static, V: 'static>(&self, slot: u32) -> Option<(&K, &V)> {
        self.debug_check::<K, V>();
        let shape = SlotLayout::for_types::<K, V>();
        // SAFETY: a used slot's entry is initialised, and of these types; it is not written while `self` is
        // borrowed: a frame's writers take `&mut Frame`, and a frozen frame has none.
        self.memory.is_used(shape.stride, slot).then(|| unsafe {
            let entry = &*self.memory.entry_at(shape, slot).cast::<NativeEntry<K, V>>();
            (&entry.key, &entry.value)
        })
    }

    /// Key and value in a slot, to be changed. The key must stay equal.
    ///
    /// # Safety
    /// The records are of these types.
    ///
    /// # Panics
    /// If the frame is frozen.
    // SAFETY: the types are the caller's to promise, as said above.
    #[inline(always)]
    pub unsafe fn entry_mut<K: 'static, V: 'static>(&mut self, slot: u32) -> Option<(&K, &mut V)> {
        self.debug_check::<K, V>();
        assert!(!self.frozen, "a frozen frame is never changed");
        let (shape, memory) = (SlotLayout::for_types::<K, V>(), self.memory);
        let place = self.memory.place(shape.stride, slot);
        let word = place.load(Ordering::Relaxed);
        if word & USED == 0 {
            return None;
        }
        place.store(word | TOUCHED, Ordering::Relaxed);
        // SAFETY: a used slot's entry is initialised, and of these types; the frame is not frozen, so that
        // `&mut self` is the only way to it.
        let entry = unsafe { &mut *memory.entry_at(shape, slot).cast::<NativeEntry<K, V>>() };
        Some((&entry.key, &mut entry.value))
    }

    /// Whether the record in a slot is on storage nowhere.
    #[inline]
    pub fn is_fresh(&self, slot: u32) -> bool {
        self.is_due(slot, FreshFilter::ALL)
    }

    /// Whether the record in a slot is fresh, and one of these.
    #[inline]
    pub(in crate::hybrid_log) fn is_due(&self, slot: u32, due: FreshFilter) -> bool {
        self.memory.is_due(self.stride(), slot, due)
    }

    /// Where the record in a used slot is on storage, if it is: segment and grain.
    #[inline]
    pub fn stored(&self, slot: u32) -> Option<(u32, u32)> {
        let place = self.place(slot).load(Ordering::Relaxed);
        if place & (USED | SINCE) != USED {
            return None;
        }
        Some((self.segment(slot), place & GRAIN))
    }

    /// The first slot from one on whose record is live and in a wanted segment.
    #[inline]
    pub(in crate::hybrid_log) fn next_stored(
        &self,
        from: u32,
        is_wanted: impl Fn(u32) -> bool,
    ) -> Option<u32> {
        const MARKS: u32 = USED | SINCE | DIED[0] | DIED[1];
        (from..self.memory.slots).find(|&slot| {
            let place = self.place(slot).load(Ordering::Relaxed);
            place & MARKS == USED && is_wanted(self.segment(slot))
        })
    }

    #[inline]
    fn segment(&self, slot: u32) -> u32 {
        // SAFETY: written before the slot was first used; only the owner reads or writes it.
        unsafe { (*self.memory.header(self.stride(), slot)).segment }
    }

    /// Where the record is in the page image that was written last, in grains.
    pub fn grain(&self, slot: u32) -> u32 {
        self.place(slot).load(Ordering::Relaxed) & GRAIN
    }

    /// The record in a used slot is about to be changed, and is fresh since this epoch: what is on storage is not
    /// it any more. Says where that is, if it was not fresh before.
    ///
    /// # Panics
    /// If the frame is frozen.
    #[inline]
    pub(in crate::hybrid_log) fn freshen(
        &mut self,
        slot: u32,
        epoch: MarkEpoch,
    ) -> Option<(u32, u32)> {
        assert!(!self.frozen, "a frozen frame is never changed");
        debug_assert!(self.is_used(slot));
        let place = self.place(slot);
        let word = place.load(Ordering::Relaxed);
        place.store(word & !SINCE | epoch.mark() | TOUCHED, Ordering::Relaxed);
        let is_new = word & SINCE == 0;
        if word & SINCE != epoch.mark() {
            self.add_fresh(epoch, 1, u32::from(is_new));
        }
        is_new.then(|| (self.segment(slot), word & GRAIN))
    }

    /// All that is fresh is fresh since this epoch: the checkpoints that were to have the others were given up.
    ///
    /// # Panics
    /// If the frame is frozen.
    pub(in crate::hybrid_log) fn carry_over(&mut self, epoch: MarkEpoch) {
        assert!(!self.frozen, "a frozen frame is never changed");
        for slot in 0..self.memory.slots {
            if self.is_due(slot, epoch.due()) {
                let place = self.place(slot);
                let word = place.load(Ordering::Relaxed);
                place.store(word & !SINCE | epoch.mark(), Ordering::Relaxed);
            }
        }
        (self.last, self.fresh_last) = (epoch.number(), self.fresh);
    }

    /// The fresh record in a slot is in a segment now, where the helper has noted.
    pub fn settle(&mut self, slot: u32, segment: u32) {
        assert!(!self.frozen && self.is_fresh(slot), "slot {slot} was not written");
        self.settle_at(slot, segment, self.grain(slot));
    }

    fn settle_at(&mut self, slot: u32, segment: u32, grain: u32) {
        let place = self.place(slot);
        let word = place.load(Ordering::Relaxed);
        let died = word & (DIED[0] | DIED[1]);
        place.store(USED | died | grain, Ordering::Relaxed);
        self.remove_fresh(word);
        // SAFETY: within the frame; only the owner reads or writes the word.
        unsafe { (*self.memory.header(self.stride(), slot)).segment = segment };
    }

    /// Notes that the record in a used slot has died in this epoch, and leaves it there: it is being
    /// written, or is yet to be.
    pub fn mark_dead(&mut self, slot: u32, epoch: u32) {
        debug_assert!(self.is_used(slot) && self.death(slot).is_none());
        let (place, died) = (self.place(slot), DIED[epoch as usize % 2]);
        if self.frozen {
            place.fetch_or(died, Ordering::Relaxed);
        } else {
            // No helper changes the word meanwhile.
            place.store(place.load(Ordering::Relaxed) | died, Ordering::Relaxed);
        }
    }

    /// If the record in a slot was [marked](Frame::mark_dead): whether its epoch was an odd one.
    pub fn death(&self, slot: u32) -> Option<bool> {
        match self.place(slot).load(Ordering::Relaxed) & (DIED[0] | DIED[1]) {
            0 => None,
            died => Some(died == DIED[1]),
        }
    }

    /// Puts an entry into an unused slot.
    ///
    /// # Safety
    /// The records are of these types.
    ///
    /// # Panics
    /// If the frame is frozen or the slot used.
    // SAFETY: the types are the caller's to promise, as said above.
    #[inline]
    pub(in crate::hybrid_log) unsafe fn put<K: 'static, V: 'static>(
        &mut self,
        slot: u32,
        (key, value): (K, V),
        epoch: MarkEpoch,
    ) {
        self.debug_check::<K, V>();
        let (shape, memory) = (SlotLayout::for_types::<K, V>(), self.memory);
        assert!(!self.frozen && !memory.is_used(shape.stride, slot), "slot {slot} is not free");
        // SAFETY: the slot is unused and the frame not frozen: nobody else reads or writes it. It has memory for
        // an entry of these types.
        unsafe {
            (&raw mut (*memory.header(shape.stride, slot)).segment).write(0);
            memory
                .entry_at(shape, slot)
                .cast::<NativeEntry<K, V>>()
                .write(NativeEntry { key, value });
        }
        memory.place(shape.stride, slot).store(USED | epoch.mark() | TOUCHED, Ordering::Relaxed);
        self.used += 1;
        self.add_fresh(epoch, 1, 1);
        self.next = slot + 1;
        if self.next == self.memory.slots {
            self.next = 0;
        }
    }

    /// A used slot is unused from now on; its entry stays where it is until its owner, who calls this, has moved or
    /// dropped it. Says where it is.
    ///
    /// # Panics
    /// If the frame is frozen or the slot unused.
    fn vacate(&mut self, slot: u32) -> *mut u8 {
        assert!(!self.frozen && self.is_used(slot), "slot {slot} holds nothing to take");
        let word = self.place(slot).load(Ordering::Relaxed);
        self.remove_fresh(word);
        self.place(slot).store(0, Ordering::Relaxed);
        self.used -= 1;
        self.memory.entry_at(SlotLayout::of(self.owner.record_type.layout()), slot)
    }

    /// Takes the entry out of a used slot.
    ///
    /// # Safety
    /// The records are of these types.
    ///
    /// # Panics
    /// If the frame is frozen or the slot unused.
    // SAFETY: the types are the caller's to promise, as said above.
    pub unsafe fn take<K: 'static, V: 'static>(&mut self, slot: u32) -> (K, V) {
        self.debug_check::<K, V>();
        let source = self.vacate(slot).cast::<NativeEntry<K, V>>();
        // SAFETY: the entry was initialised, and the cleared bit says that it is not any more.
        let NativeEntry { key, value } = unsafe { source.read() };
        (key, value)
    }

    /// Drops the entry in a used slot.
    ///
    /// # Panics
    /// If the frame is frozen or the slot unused; with a panic of the entry, of which the slot is rid all the same.
    pub fn drop_entry(&mut self, slot: u32) {
        let record_type = self.owner.record_type;
        let entry = self.vacate(slot);
        if record_type.needs_drop() {
            // SAFETY: the entry was initialised, and the cleared bit says that it is not any more.
            unsafe { record_type.drop_entry(entry) };
        }
    }

    /// Lets a helper read the frame. Until [`thaw`](Frame::thaw) nothing in it changes.
    ///
    /// # Panics
    /// If it is frozen already.
    pub fn freeze(&mut self) -> FrozenFrame {
        self.freeze_for(FreshFilter::ALL)
    }

    /// The same, to write these only.
    pub(in crate::hybrid_log) fn freeze_for(&mut self, due: FreshFilter) -> FrozenFrame {
        assert!(!self.frozen, "a frame is frozen once");
        self.frozen = true;
        FrozenFrame(self.owner.clone(), due)
    }

    /// Takes back what [`freeze`](Frame::freeze) gave; says what it was to write.
    ///
    /// # Panics
    /// If it is another frame's.
    pub(in crate::hybrid_log) fn thaw(&mut self, frozen: FrozenFrame) -> FreshFilter {
        assert!(Arc::ptr_eq(&self.owner, &frozen.0), "the frozen handle of another frame");
        self.frozen = false;
        frozen.1
    }

    /// Whether the helper may read it.
    pub fn is_frozen(&self) -> bool {
        self.frozen
    }

    /// Drops all entries. Cost: one drop per entry, or a word per slot if entries need none.
    pub fn clear(&mut self) {
        assert!(!self.frozen, "a frozen frame is never changed");
        if !self.owner.record_type.needs_drop() && self.used > 0 {
            for slot in 0..self.memory.slots {
                self.place(slot).store(0, Ordering::Relaxed);
            }
            (self.used, self.fresh, self.fresh_last) = (0, 0, 0);
        }
        for slot in 0..self.memory.slots {
            if self.used == 0 {
                break;
            }
            if self.is_used(slot) {
                self.drop_entry(slot);
            }
        }
        self.next = 0;
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        if self.frozen {
            // The helper was lost or has not answered: its values cannot be dropped safely now.
            return;
        }
        self.clear();
    }
}

impl FrozenFrame {
    fn memory(&self) -> FrameSlots {
        FrameSlots { base: self.0.piece.start(), slots: self.0.slots }
    }

    /// Slots, used or not.
    pub fn slots(&self) -> u32 {
        self.0.slots
    }

    /// The record in a slot, if it is to be written.
    pub fn get(&self, slot: u32) -> Option<RecordRef<'_>> {
        if !self.memory().is_due(self.0.stride as usize, slot, self.1) {
            return None;
        }
        let shape = SlotLayout::of(self.0.record_type.layout());
        let entry = self.memory().entry_at(shape, slot);
        // SAFETY: a used slot's entry is initialised; nobody writes it while the frame is frozen, that is while
        // `self` is there.
        Some(unsafe { RecordRef::new(self.0.record_type, entry) })
    }

    /// Says where the record in a used slot is in the page image.
    pub fn set_grain(&self, slot: u32, grain: u32) {
        debug_assert!(grain <= GRAIN);
        let memory = self.memory();
        // The owner may mark the record as dead meanwhile.
        let place = memory.place(self.0.stride as usize, slot);
        let _ = place
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |old| Some(old & !GRAIN | grain));
    }
}

#[cfg(test)]
mod tests;
