//! Slices by ranges of hashes: for panes whose key groups come and go.
//!
//! All parts of a slice are in the order of hashes, so that the keys asked for are found without a look at
//! the others: of a table the parts with their prefixes, of a run the images with their hashes. To remove
//! them reads nothing: what older parts have of them is behind a [gap](crate::support::gaps::HashGap).

use std::ops::RangeInclusive;
use std::slice::from_ref;

use alluvium_pagestore::{Error, ErrorKind, Key, MemoryKind, Result, State, Time};

use super::core::SegmentsCore;
use super::table::SegmentPanes;
use crate::contract::by_hash::{ByHash, VisitRun};
use crate::contract::table::Cursor;
use crate::support::gaps::GAP_BYTES;
use crate::support::record_type_unsafe::RecordRef;

impl<K: Key, A: State> ByHash<K, A, Time> for SegmentPanes<K, A> {
    fn is_fast_in_order(&self) -> bool {
        let packs = self.core.packed.as_ref().is_some_and(|packed| packed.lists.len() > 0);
        !packs && self.core.slices().all(|slice| !slice.has_older_parts())
    }

    fn visit_hashes(
        &mut self,
        slice: Time,
        hashes: &RangeInclusive<u64>,
        cursor: &mut Cursor,
        fuel: usize,
        visit: VisitRun<'_, K, A>,
    ) -> Result<()> {
        if slice == Time::MAX {
            let message = "slices at the end of time cannot be found by hash";
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        self.core.settle();
        let alone = slice..slice.plus(1);
        let (slot, is_packed) = (self.core.slot_of(slice), self.core.has_packed(&alone));
        if cursor.done || slot.is_none() && !is_packed {
            cursor.done = true;
            return Ok(());
        }
        let (first, last) =
            (self.core.range.place(*hashes.start()), self.core.range.place(*hashes.end()));
        if is_packed || slot.is_some_and(|slot| !self.core.slice_at(slot).runs.is_empty()) {
            self.core.wait_for_left()?;
        }
        let visit = &mut |key: &K, sum: A| visit(key, 0, from_ref(&sum));
        let position = cursor.position.max(first);
        let Some(mut fold) = self.core.resume_unless_packed(&alone, position, true)? else {
            cursor.position = position;
            return self.fold_packed((&alone, last), cursor, fuel, visit);
        };
        let done = self.walk(&mut fold, last, cursor, fuel, visit);
        self.core.leave_fold(fold, done.is_ok() && !cursor.done);
        done
    }

    fn remove_hashes(
        &mut self,
        slice: Time,
        hashes: &RangeInclusive<u64>,
        cursor: &mut Cursor,
        fuel: usize,
    ) -> Result<usize> {
        self.core.remove_hashes(slice, hashes, cursor, fuel)
    }
}

impl SegmentsCore {
    /// Removes keys of a slice with these hashes, about `fuel` of them, and says how many.
    pub(super) fn remove_hashes(
        &mut self,
        slice: Time,
        hashes: &RangeInclusive<u64>,
        cursor: &mut Cursor,
        fuel: usize,
    ) -> Result<usize> {
        self.settle();
        if !cursor.done {
            self.remove_packed_hashes(slice, hashes)?;
        }
        let (first, last) = (self.range.place(*hashes.start()), self.range.place(*hashes.end()));
        let mut removed = 0;
        while !cursor.done && removed < fuel.max(1) {
            let Some(slot) = self.slot_of(slice) else {
                cursor.done = true;
                break;
            };
            if self.slice_at(slot).has_older_parts() {
                // Each time: the table may have become one since the last.
                self.make_room(GAP_BYTES, "a range of removed keys")?;
                let found = self.slots[slot].as_mut().expect("a slice in use");
                let next = found.next_number;
                found.gaps.leave(hashes, next, &self.account)?;
                self.arrangement += 1;
            }
            let place = cursor.position.max(first);
            let memory = self.slice_at(slot).active.hashes_bytes(place);
            self.account.charge(MemoryKind::Buffers, memory);
            let (found, next) = self.slice_at(slot).active.hashes_at(place, last);
            let count = found.len().min(fuel.max(1) - removed);
            found[..count].iter().for_each(|hash| self.take_out(slot, *hash));
            let next = found.get(count).map(|hash| self.range.place(*hash)).or(next);
            removed += count.max(1);
            drop(found);
            self.account.release(MemoryKind::Buffers, memory);
            cursor.go_on(next);
        }
        self.end_if_empty(slice);
        Ok(removed)
    }

    /// Removes an entry with this hash from a slice's table in use.
    fn take_out(&mut self, slot: usize, hash: u64) {
        let types = self.types;
        let has_hash = &mut |record: RecordRef<'_>| record.hash() == hash;
        if self.slice_at(slot).is_watched() {
            let record = self.slice_at(slot).active.find(hash, has_hash);
            let key = record.map(|record| types.key_of(record).to_owned());
            if let Some(key) = key {
                self.keep(slot, hash, key.get());
            }
        }
        self.take_from_table(slot, hash, has_hash);
    }
}
