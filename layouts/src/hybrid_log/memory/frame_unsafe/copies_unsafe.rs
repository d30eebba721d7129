//! Copies: clones of the records that a checkpoint is yet to have, in a frame of their own, so that the records
//! themselves may change.
//!
//! A copy knows the slot that it was made of. When it is written, a record that is still as it was has its place on
//! storage.

use std::ops::Range;
use std::sync::atomic::Ordering;

use super::Frame;
use crate::hybrid_log::marks::MarkEpoch;
use crate::hybrid_log::marks::{FIRST, SINCE, TOUCHED, USED};
use crate::hybrid_log::slots_unsafe::SlotLayout;
use crate::support::record_type_unsafe::RecordRef;

impl Frame {
    /// Clones the records that are fresh since epochs before this one behind those in `copies`, which
    /// has room for them and no other slots in use. They are fresh since this epoch then; which of them are
    /// touched from now on is known when the copies are written. If a clone panics nothing has changed.
    pub(in crate::hybrid_log) fn copy_due(&mut self, copies: &mut Self, epoch: MarkEpoch) {
        assert!(
            !self.frozen && copies.used + self.due(epoch) <= copies.memory.slots,
            "no room for the copies"
        );
        let record_type = self.owner.record_type;
        assert!(!record_type.needs_drop(), "copies are left where they are");
        let (first, due) = (copies.used, epoch.due());
        let mut to = first;
        for slot in 0..self.memory.slots {
            if self.is_due(slot, due) {
                let record = self.get(slot).expect("a used slot");
                // Behind `used` until all are there: one that panics leaves nothing.
                copies.put_copy(to, slot, to == first, record);
                to += 1;
            }
        }
        for copy in first..to {
            let place = self.place(copies.segment(copy));
            let word = place.load(Ordering::Relaxed);
            place.store(word & !(SINCE | TOUCHED) | epoch.mark(), Ordering::Relaxed);
        }
        copies.used = to;
        copies.add_fresh(MarkEpoch::FIRST, to - first, to - first);
        self.add_fresh(epoch, to - first, 0);
    }

    /// Forgets what a panic has left behind the slots in use of a frame of copies.
    pub fn forget_behind(&mut self) {
        for slot in self.used..self.memory.slots {
            self.place(slot).store(0, Ordering::Relaxed);
        }
    }

    /// Clones a record into a slot behind those in use.
    #[inline]
    fn put_copy(&mut self, to: u32, source: u32, is_first: bool, record: RecordRef<'_>) {
        assert!(!self.frozen && to >= self.used, "slot {to} is not free");
        let record_type = self.owner.record_type;
        let shape = SlotLayout::of(record_type.layout());
        let target = self.memory.header(shape.stride, to);
        // SAFETY: the slot is behind those in use and the frame not frozen: nobody else reads or writes it, and
        // it has memory for an entry.
        unsafe {
            record_type.clone_into(record, self.memory.entry_at(shape, to));
            (&raw mut (*target).segment).write(source);
        }
        let first = if is_first { FIRST } else { 0 };
        self.place(to).store(USED | MarkEpoch::FIRST.mark() | first, Ordering::Relaxed);
    }

    /// The end of the copies of one frame, of which the first is at `from`.
    pub fn end_of_copies(&self, from: u32) -> u32 {
        let is_first = |slot: &u32| self.place(*slot).load(Ordering::Relaxed) & FIRST != 0;
        (from + 1..self.used).find(is_first).unwrap_or(self.used)
    }

    /// The records of this frame that were copied in this epoch into some slots of `copies` are in a segment now: as the
    /// iterator goes on, those that are still as they were then get their place, and it gives the grains of
    /// the others.
    pub(in crate::hybrid_log) fn settle_copies(
        &mut self,
        copies: &Self,
        of: Range<u32>,
        (segment, epoch): (u32, MarkEpoch),
    ) -> impl Iterator<Item = u32> {
        assert!(!self.frozen && of.end <= copies.used, "frozen or copied, not both");
        of.filter_map(move |copy| {
            let (slot, grain) = (copies.segment(copy), copies.grain(copy));
            let word = self.place(slot).load(Ordering::Relaxed);
            let is_as_it_was = word & (USED | SINCE | TOUCHED) == USED | epoch.mark();
            if is_as_it_was {
                self.settle_at(slot, segment, grain);
            }
            (!is_as_it_was).then_some(grain)
        })
    }
}
