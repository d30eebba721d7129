//! Slices by ranges of hashes: for panes whose key groups come and go.
//!
//! All parts of a slice are in the order of hashes, so that the keys asked for are found without a look at
//! the others: of a table the parts with their prefixes, of a run the images with their hashes. To remove
//! them reads nothing: what older parts have of them is behind a [gap](crate::support::gaps::Gap).

use std::ops::RangeInclusive;
use std::slice::from_ref;

use alluvium_pagestore::{Error, ErrorKind, Key, MemoryKind, Result, State, Time};

use super::table::SegmentPanes;
use crate::contract::by_hash::{ByHash, VisitRun};
use crate::contract::table::Cursor;
use crate::support::gaps::GAP_BYTES;

impl<K: Key, A: State> ByHash<K, A, Time> for SegmentPanes<K, A> {
    fn is_fast_in_order(&self) -> bool {
        self.slices().all(|slice| !slice.has_older_parts())
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
        self.settle();
        let slot = self.slot_of(slice).filter(|_| !cursor.done);
        let Some(slot) = slot else {
            cursor.done = true;
            return Ok(());
        };
        let (first, last) = (self.range.place(*hashes.start()), self.range.place(*hashes.end()));
        if !self.slice_at(slot).runs.is_empty() {
            self.wait_for_left()?;
        }
        let mut fold = self.resume(slice..slice.plus(1), cursor.position.max(first), true)?;
        let done =
            self.walk(&mut fold, last, cursor, fuel, &mut |key, sum| visit(key, 0, from_ref(&sum)));
        self.leave_fold(fold, done.is_ok() && !cursor.done);
        done
    }

    fn remove_hashes(
        &mut self,
        slice: Time,
        hashes: &RangeInclusive<u64>,
        cursor: &mut Cursor,
        fuel: usize,
    ) -> Result<usize> {
        self.settle();
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
            match next {
                Some(place) => cursor.position = place,
                None => cursor.done = true,
            }
        }
        self.end_if_empty(slice);
        Ok(removed)
    }
}

impl<K: Key, A: State> SegmentPanes<K, A> {
    /// Removes an entry with this hash from a slice's table in use.
    fn take_out(&mut self, slot: usize, hash: u64) {
        if self.slice_at(slot).is_watched() {
            let entry = self.slice_at(slot).active.find(hash, |(key, _)| key.key_hash() == hash);
            if let Some(key) = entry.map(|(key, _)| key.clone()) {
                self.keep(slot, hash, &key);
            }
        }
        let found = self.slots[slot].as_mut().expect("a slice in use");
        if let Some((key, value)) = found.active.remove(hash, |(key, _)| key.key_hash() == hash) {
            let heap = (key.heap_bytes() + value.heap_bytes()) as u64;
            found.heap_bytes -= heap;
            self.account.release(MemoryKind::Values, heap);
        }
    }
}
