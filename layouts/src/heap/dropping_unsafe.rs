//! How a heap table is taken apart: prefix by prefix, its entries dropped or moved out, its blocks freed.
//!
//! What it keeps true:
//! - Each entry is dropped once, whatever panics.
//! - A block is booked until it is freed.
//! - A table that is being taken apart has an empty directory: nobody reads or fills it.

use super::group_unsafe::{BlockPointer, BlockShape, SLOTS};
use super::raw_table_unsafe::RawTable;
use crate::support::first_panic::FirstPanic;

// SAFETY: in all of these, a block was made by this table, with its shape, and `groups()` groups; groups are taken below
// that number, slots below `SLOTS`. No two references to one head are there at once.
impl RawTable {
    /// Takes the blocks of the last prefix out, which the caller [frees](RawTable::free_chain). `None` in an empty table.
    pub(super) fn pop_chain(&mut self) -> Option<BlockPointer> {
        let Self { directory, leaving, .. } = self;
        if directory.is_empty() && leaving.is_none() {
            return None;
        }
        // From the first call on, look-ups and walks find nothing.
        let leaving = leaving.get_or_insert_with(|| Box::new(std::mem::take(directory)));
        let first = leaving.pop()?;
        while leaving.last() == Some(&first) {
            leaving.pop();
        }
        self.blocks -= 1;
        self.len -= self.chain_len(first) as u64;
        Some(first)
    }

    /// Frees blocks that were taken out, without dropping entries.
    pub(super) fn free_chain(&mut self, first: BlockPointer) {
        self.chain(first).for_each(|block| self.free_block(block, self.block_slots()));
        if self.leaving.as_ref().is_some_and(|leaving| leaving.is_empty()) {
            self.leaving = None;
            self.marked = 0;
            self.book(0);
        }
    }

    /// Drops the entries of one prefix of a table that is not used any more, and frees its blocks. Returns whether there
    /// was one.
    pub fn drop_step(&mut self, panic: &mut FirstPanic) -> bool {
        let Some(first) = self.pop_chain() else { return false };
        self.chain(first).for_each(|block| self.drop_entries(block, panic));
        self.free_chain(first);
        true
    }

    /// Does so, and returns how many entries there were, and the heap that they owned, but for those that panic while they
    /// are measured.
    pub fn drop_measured(&mut self, panic: &mut FirstPanic) -> Option<(usize, u64)> {
        let first = self.pop_chain()?;
        let (count, mut heap) = (self.chain_len(first), 0);
        for block in self.chain(first) {
            if !self.record_type.is_plain() {
                heap += self.heap_of(block, panic);
            }
            self.drop_entries(block, panic);
        }
        self.free_chain(first);
        Some((count, heap))
    }

    /// Returns the heap that the entries of a block own, as far as it can be measured.
    fn heap_of(&self, block: BlockPointer, panic: &mut FirstPanic) -> u64 {
        let mut heap = 0;
        for slot in self.slots_in(block) {
            // SAFETY: as said above; a slot with a tag has an entry, which nobody changes meanwhile.
            let record = unsafe { self.record((block, slot)) };
            panic.catch(|| heap += record.heap_bytes());
        }
        heap
    }

    fn drop_entries(&mut self, block: BlockPointer, panic: &mut FirstPanic) {
        if !self.record_type.needs_drop() {
            return;
        }
        // The block goes, and its tags are not looked at again.
        for slot in self.slots_in(block) {
            // SAFETY: as said above.
            let entry = unsafe { block.entry(self.shape, slot) };
            // SAFETY: the entry is dropped once.
            panic.catch(|| unsafe { self.record_type.drop_entry(entry.as_ptr()) });
        }
    }

    /// Frees a block of `slots` slots without entries.
    pub(super) fn free_block(&mut self, block: BlockPointer, slots: usize) {
        // SAFETY: as said above, and nothing leads to it any more.
        let places = unsafe { block.has_places() };
        let places = if places { BlockShape::places_bytes(slots.div_ceil(SLOTS)) } else { 0 };
        // SAFETY: as above.
        unsafe { block.free(self.shape) };
        self.book(self.booked - self.shape.block_bytes(slots) - places);
    }
}

impl Drop for RawTable {
    fn drop(&mut self) {
        let mut panic = FirstPanic::default();
        while self.drop_step(&mut panic) {}
        panic.resume();
    }
}
