//! Bits and places of a heap table's entries, for checkpoints: whether an entry has changed since the last barrier,
//! whether the checkpoint still has to read it, and the place of its record.
//!
//! Bits stand in each block behind its tags; places, if any are noted, in an array beside it. A barrier is a number: the
//! first touch of a block after it turns the bits of its changed entries into [captured](RawTable::follow) ones. A bit
//! for each group, in the head of its block, says whether any bit may be set there.
//!
//! What it keeps true:
//! - An entry without a bit is on storage as it is, at its place, if places are noted.
//! - The checkpoint does not read an entry that is marked as changed since its barrier.
//! - What an aborted checkpoint has not written, the next one reads.

use alluvium_pagestore::{Account, MemoryKind};

use super::group_unsafe::{BlockPointer, BlockShape, GroupBits, SLOTS};
use super::raw_table_unsafe::{BlockSlot, EntryPosition, RawTable, slots_of};
use crate::heap::record_position::RecordPosition;
use crate::support::prefetch_unsafe::prefetch;

/// Places are noted if they take at most this part of the free memory.
pub(super) const BEGIN_SHARE: u64 = 4;

/// Bits and place of an entry that moves.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct EntryMark {
    place: u32,
    changed: bool,
    captured: bool,
    owed: bool,
}

// SAFETY: in all of these, a block was made by this table, with its shape, and `groups()` groups; groups are taken below
// that number, slots below `SLOTS`. No two references to one head are there at once.
impl RawTable {
    /// Sets a barrier: its checkpoint reads what has changed until now. Cost: O(1).
    pub fn barrier(&mut self) {
        self.epoch = self.epoch.wrapping_add(1);
        self.takes_all = false;
    }

    /// Makes the checkpoint of the last barrier read all entries. Nothing has changed since the barrier.
    pub fn take_all(&mut self) {
        self.takes_all = true;
    }

    /// Returns whether the checkpoint of the last barrier reads all entries.
    pub fn takes_all(&self) -> bool {
        self.takes_all
    }

    /// Returns the most entries that can have a bit.
    pub fn marked(&self) -> u64 {
        self.marked
    }

    /// Brings a block to the last barrier: what changed before it becomes captured.
    #[inline]
    fn follow(&mut self, block: BlockPointer) {
        // SAFETY: as said above.
        if unsafe { block.head() }.epoch != self.epoch {
            self.follow_slowly(block);
        }
    }

    /// Does so in a block that is behind. Cost: in the number of groups.
    fn follow_slowly(&mut self, block: BlockPointer) {
        let takes_all = self.takes_all;
        // SAFETY: as said above.
        for group in 0..unsafe { block.groups() } {
            // SAFETY: as said above.
            let occupied = unsafe { block.occupied(group) };
            let bits = self.bits_mut((block, group));
            let before = bits.count();
            let any = bits.changed | bits.captured | bits.owed;
            let captured = if takes_all { occupied } else { any };
            *bits = GroupBits { captured, ..GroupBits::default() };
            let after = bits.count();
            self.marked = self.marked + u64::from(after) - u64::from(before);
            if after > 0 {
                self.set_dirty(block, group);
            }
        }
        // SAFETY: as said above.
        unsafe { block.head_mut() }.epoch = self.epoch;
    }

    /// Returns the bit of a group in the head of its block.
    fn dirty_bit(group: usize) -> u64 {
        1 << (group % 64)
    }

    fn set_dirty(&mut self, block: BlockPointer, group: usize) {
        // SAFETY: as said above.
        unsafe { block.head_mut() }.dirty |= Self::dirty_bit(group);
    }

    /// Marks an entry that was added to a slot.
    pub(super) fn mark_added(&mut self, (block, slot): BlockSlot) {
        // SAFETY: as said above. What was there before has no place any more.
        unsafe { block.set_place(slot, RecordPosition::NONE.word()) };
        // A block that takes all must not take this one.
        let (group, bit) = group_and_bit(slot);
        self.follow(block);
        let head = self.bits_mut((block, group));
        let was_taken = head.captured & bit != 0;
        head.captured &= !bit;
        let is_first = head.changed == 0;
        head.changed |= bit;
        self.marked += u64::from(!was_taken);
        if is_first {
            self.set_dirty(block, group);
        }
    }

    /// Clears bits and place of a slot whose entry goes. Returns the place.
    pub(super) fn unmark(&mut self, at: BlockSlot) -> RecordPosition {
        let mark = self.lift(at);
        self.marked -= u64::from(mark.changed) + u64::from(mark.captured) + u64::from(mark.owed);
        RecordPosition::from_word(mark.place)
    }

    /// Takes bits and place of an entry that moves.
    pub(super) fn lift(&mut self, (block, slot): BlockSlot) -> EntryMark {
        self.follow(block);
        // SAFETY: as said above.
        let place = unsafe {
            let place = block.place(slot);
            block.set_place(slot, RecordPosition::NONE.word());
            place
        };
        let (group, bit) = group_and_bit(slot);
        let head = self.bits_mut((block, group));
        let has = |word: u16| word & bit != 0;
        let (changed, captured, owed) = (has(head.changed), has(head.captured), has(head.owed));
        head.changed &= !bit;
        head.captured &= !bit;
        head.owed &= !bit;
        EntryMark { place, changed, captured, owed }
    }

    /// Puts bits and place of an entry that has moved to a slot.
    pub(super) fn put(&mut self, (block, slot): BlockSlot, mark: EntryMark) {
        // The slots of new blocks are of this epoch, and nothing is known of them.
        // SAFETY: as said above.
        unsafe { block.set_place(slot, mark.place) };
        let (group, bit) = group_and_bit(slot);
        let head = self.bits_mut((block, group));
        let bit_if = |is_set: bool| if is_set { bit } else { 0 };
        head.changed |= bit_if(mark.changed);
        head.captured |= bit_if(mark.captured);
        head.owed |= bit_if(mark.owed);
        if head.any() {
            self.set_dirty(block, group);
        }
    }

    /// Returns the slot of a spot that has an entry, after its block was brought to the last barrier.
    fn followed(&mut self, spot: EntryPosition) -> Option<BlockSlot> {
        let at = self.occupied(spot)?;
        self.follow(at.0);
        Some(at)
    }

    /// Marks an entry as changed since the last barrier. Its checkpoint does not read the entry any more.
    pub fn mark_changed(&mut self, spot: EntryPosition) {
        if let Some((block, slot)) = self.followed(spot) {
            let (group, bit) = group_and_bit(slot);
            let head = self.bits_mut((block, group));
            let is_new = head.changed & bit == 0;
            let was_taken = head.captured & bit != 0;
            head.changed |= bit;
            head.captured &= !bit;
            self.marked = self.marked + u64::from(is_new) - u64::from(was_taken);
            if is_new {
                self.set_dirty(block, group);
            }
        }
    }

    /// Returns whether the checkpoint has to read an entry because of its bit.
    pub fn is_captured(&mut self, spot: EntryPosition) -> bool {
        self.followed(spot).is_some_and(|(block, slot)| {
            let (group, bit) = group_and_bit(slot);
            self.bits_mut((block, group)).captured & bit != 0
        })
    }

    /// Notes that the checkpoint has read an entry, and not written it yet.
    pub fn owe(&mut self, spot: EntryPosition) {
        if let Some((block, slot)) = self.followed(spot) {
            let (group, bit) = group_and_bit(slot);
            let head = self.bits_mut((block, group));
            let bits = head.captured & bit != 0;
            let was_owed = head.owed & bit != 0;
            head.captured &= !bit;
            head.owed |= bit;
            self.marked = self.marked + u64::from(!was_owed) - u64::from(bits);
            self.set_dirty(block, group);
        }
    }

    /// Notes that the checkpoint has written an entry.
    pub fn settle(&mut self, spot: EntryPosition) {
        if let Some((block, slot)) = self.followed(spot) {
            let (group, bit) = group_and_bit(slot);
            let head = self.bits_mut((block, group));
            let bits = (head.captured & bit).count_ones() + (head.owed & bit).count_ones();
            head.captured &= !bit;
            head.owed &= !bit;
            self.marked -= u64::from(bits);
        }
    }

    /// Notes that an entry was restored: its record at `place` is current.
    pub fn mark_restored(&mut self, spot: EntryPosition, place: RecordPosition) {
        if let Some(at) = self.followed(spot) {
            self.unmark(at);
            self.set_place(spot, place);
        }
    }

    /// Returns the entries of a group that the checkpoint has to read because of their bits.
    pub fn captured(&mut self, index: usize, group: usize) -> u16 {
        let spot = EntryPosition::new(index, group, 0);
        let Some((block, group)) = self.resolve(spot) else { return 0 };
        self.follow(block);
        self.bits_mut((block, group)).captured
    }

    /// Returns the slots of a group that have an entry.
    pub fn occupied_slots(&self, index: usize, group: usize) -> u16 {
        let spot = EntryPosition::new(index, group, 0);
        // SAFETY: as said above.
        let of = |(block, group): (BlockPointer, usize)| unsafe { block.occupied(group) };
        self.resolve(spot).map_or(0, of)
    }

    /// Returns the groups at an index that may have a bit set. A bit stands for the groups of this number in all blocks
    /// of the chain.
    pub fn dirty(&self, index: usize) -> u64 {
        let blocks = self.chain(self.directory[index]);
        // SAFETY: as said above.
        blocks.fold(0, |dirty, block| dirty | unsafe { block.head() }.dirty)
    }

    /// Returns whether `dirty` has a group.
    pub fn is_dirty_in(&self, dirty: u64, group: usize) -> bool {
        dirty & Self::dirty_bit(group & self.mask()) != 0
    }

    /// Returns the slots of `groups` groups.
    pub fn slots_of_groups(groups: usize) -> usize {
        groups * SLOTS
    }

    /// Prefetches the entries of a group that a checkpoint is going to read.
    pub fn look_ahead_at_group(&self, index: usize, group: usize, reads_all: bool) {
        let Some((block, group)) = self.resolve(EntryPosition::new(index, group, 0)) else {
            return;
        };
        // SAFETY: as said above; what is brought near is only looked at by the processor.
        unsafe {
            let bits = block.bits(group);
            let slots =
                if reads_all { block.occupied(group) } else { bits.changed | bits.captured };
            for slot in slots_of(slots) {
                prefetch(block.entry(self.shape, group * SLOTS + slot).as_ptr());
            }
        }
    }

    /// Clears the dirty bit of a group that was read, unless one of its bits is set.
    pub fn clean(&mut self, index: usize, group: usize) {
        let spot = EntryPosition::new(index, group, 0);
        let Some((block, group)) = self.resolve(spot) else { return };
        if !self.bits_mut((block, group)).any() {
            // SAFETY: as said above.
            unsafe { block.head_mut() }.dirty &= !Self::dirty_bit(group);
        }
    }

    /// Starts to note places of records; none is known yet. Returns whether there is memory for them.
    pub fn note_places(&mut self) -> bool {
        self.forget_places();
        let bytes = u64::from(self.blocks) * BlockShape::places_bytes(self.groups());
        self.has_places = bytes <= self.account().available() / BEGIN_SHARE;
        self.has_places
    }

    /// Returns whether places are noted.
    #[inline]
    pub fn notes_places(&self) -> bool {
        self.has_places
    }

    /// Returns whether places were lost for lack of memory since the last call.
    pub fn take_lost(&mut self) -> bool {
        std::mem::take(&mut self.is_lost)
    }

    /// Frees the memory of places. Cost: in the number of blocks.
    pub fn forget_places(&mut self) {
        if !std::mem::take(&mut self.has_places) {
            return;
        }
        let mut freed = 0;
        let mut last = None;
        for first in self.directory.iter().copied() {
            if last.replace(first) == Some(first) {
                continue;
            }
            for block in self.chain(first) {
                // SAFETY: as said above.
                unsafe {
                    if block.has_places() {
                        freed += BlockShape::places_bytes(self.groups());
                        block.drop_places();
                    }
                }
            }
        }
        self.book(self.booked - freed);
    }

    /// Makes places for a block, all of them none. Without the memory, the places of all blocks are lost.
    pub(super) fn make_places(&mut self, block: BlockPointer) {
        let bytes = BlockShape::places_bytes(self.groups());
        let has_room = self.account().available() >= bytes;
        if !has_room || !reserve(self.account(), bytes) {
            self.forget_places();
            self.is_lost = true;
            return;
        }
        self.booked += bytes;
        // SAFETY: as said above.
        unsafe { block.make_places() };
    }

    /// Returns the place of an entry's record.
    pub fn place(&self, spot: EntryPosition) -> RecordPosition {
        let place = |(block, slot): BlockSlot| {
            // SAFETY: as said above.
            RecordPosition::from_word(unsafe { block.place(slot) })
        };
        self.occupied(spot).map_or(RecordPosition::NONE, place)
    }

    /// Notes the place of an entry's record.
    pub fn set_place(&mut self, spot: EntryPosition, place: RecordPosition) {
        let Some((block, slot)) = self.occupied(spot) else { return };
        // SAFETY: as said above.
        if self.has_places && place != RecordPosition::NONE && !unsafe { block.has_places() } {
            self.make_places(block);
        }
        // SAFETY: as said above.
        unsafe { block.set_place(slot, place.word()) };
    }
}

/// Returns the group of a slot, and its bit there.
#[inline(always)]
fn group_and_bit(slot: usize) -> (usize, u16) {
    (slot / SLOTS, 1 << (slot % SLOTS))
}

fn reserve(account: &Account, bytes: u64) -> bool {
    account.try_reserve(MemoryKind::Index, bytes)
}

const _: () = assert!(SLOTS <= u16::BITS as usize);
