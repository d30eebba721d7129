//! Heap state by ranges of hashes: for state whose key groups come and go.
//!
//! What it keeps true: a step takes entries of one part of the table, all those of a hash that it begins
//! with, and the hashes it holds meanwhile are booked.

use std::ops::RangeInclusive;
use std::slice::from_ref;

use alluvium_pagestore::{Key, MemoryKind, Result, State};

use crate::by_hash::{ByHash, VisitRun};
use crate::heap_entries::hash_of;
use crate::split_heap::SplitHeapTable;
use crate::table::Cursor;

impl<K: Key, V: State> ByHash<K, V> for SplitHeapTable<K, V> {
    fn is_fast_in_order(&self) -> bool {
        true
    }

    fn visit_hashes(
        &mut self,
        (): (),
        hashes: &RangeInclusive<u64>,
        cursor: &mut Cursor,
        fuel: usize,
        visit: VisitRun<'_, K, V>,
    ) -> Result<()> {
        let (mut at, mut visited) = (*cursor, 0);
        while !at.done && visited < fuel.max(1) {
            let memory = self.step_bytes(hashes, &at);
            self.account().charge(MemoryKind::Buffers, memory);
            let (found, next) = self.hashes_at(hashes, &at, fuel.max(1) - visited);
            let mut scanned = Ok(());
            if let (Some(first), Some(last)) = (found.first(), found.last()) {
                let part = self.entries.table_at(self.entries.range().place(*first)).0;
                for entry in part.into_iter().flatten() {
                    let is_of_step = (*first..=*last).contains(&hash_of(entry));
                    if scanned.is_ok() && is_of_step {
                        scanned = visit(&entry.0, 0, from_ref(&entry.1));
                    }
                }
            }
            visited += found.len().max(1);
            drop(found);
            self.account().release(MemoryKind::Buffers, memory);
            scanned?;
            match next {
                Some(place) => at.position = place,
                None => at.done = true,
            }
        }
        *cursor = at;
        Ok(())
    }

    fn remove_hashes(
        &mut self,
        (): (),
        hashes: &RangeInclusive<u64>,
        cursor: &mut Cursor,
        fuel: usize,
    ) -> Result<usize> {
        let mut removed = 0;
        while !cursor.done && removed < fuel.max(1) {
            let memory = self.step_bytes(hashes, cursor);
            self.account().charge(MemoryKind::Buffers, memory);
            let (found, next) = self.hashes_at(hashes, cursor, fuel.max(1) - removed);
            for hash in &found {
                if let Some(bucket) = self.entries.find_bucket(*hash, |e| hash_of(e) == *hash) {
                    self.remove_at(bucket, *hash);
                }
            }
            removed += found.len().max(1);
            drop(found);
            self.account().release(MemoryKind::Buffers, memory);
            match next {
                Some(place) => cursor.position = place,
                None => cursor.done = true,
            }
        }
        Ok(removed)
    }
}

impl<K: Key, V: State> SplitHeapTable<K, V> {
    /// The hashes of entries in the range, the next about so many from `cursor` on, sorted; and where
    /// the step after begins. All of a step are of one part.
    fn hashes_at(
        &mut self,
        hashes: &RangeInclusive<u64>,
        cursor: &Cursor,
        fuel: usize,
    ) -> (Vec<u64>, Option<u64>) {
        let range = self.entries.range();
        let (first, last) = (range.place(*hashes.start()), range.place(*hashes.end()));
        let from = cursor.position.max(first);
        let (part, after) = self.entries.table_at(from);
        let entries = part.map_or(0, |part| part.len());
        self.sought += entries as u64;
        let all = part.into_iter().flatten().map(hash_of);
        let wanted = all.filter(|hash| (from..=last).contains(&range.place(*hash)));
        let mut found: Vec<u64> = wanted.collect();
        found.sort_unstable();
        let mut count = found.len().min(fuel);
        while count > 0 && count < found.len() && found[count] == found[count - 1] {
            count += 1;
        }
        let next = found.get(count).map(|hash| range.place(*hash)).or(after);
        found.truncate(count);
        (found, next.filter(|next| *next <= last))
    }

    /// Memory of the hashes of a step, booked while it lasts.
    fn step_bytes(&self, hashes: &RangeInclusive<u64>, cursor: &Cursor) -> u64 {
        let from = cursor.position.max(self.entries.range().place(*hashes.start()));
        let (part, _) = self.entries.table_at(from);
        part.map_or(0, |part| part.len() * size_of::<u64>()) as u64
    }
}
