//! Lists on the heap by ranges of hashes: for lists whose key groups come and go.
//!
//! The table of a bucket stands in the order of hashes, so that those asked for are found without a look
//! at the others. The cursor's position is the place of a list, its version how many elements of the
//! lists at that place were visited.

use std::ops::RangeInclusive;

use alluvium_pagestore::{Key, MemoryKind, Result, State, Time};

use crate::contract::by_hash::{ByHash, VisitRun};
use crate::contract::table::Cursor;
use crate::heap::lists::reading::record_elements;
use crate::heap::lists::{HeapLists, List};

impl<K: Key, E: State> ByHash<K, E, Time> for HeapLists<K, E> {
    /// Visits lists in runs of as many elements as a value may have bytes, or one.
    fn visit_hashes(
        &mut self,
        bucket: Time,
        hashes: &RangeInclusive<u64>,
        cursor: &mut Cursor,
        fuel: usize,
        visit: VisitRun<'_, K, E>,
    ) -> Result<()> {
        let (mut spent, fuel) = (0, fuel.max(1));
        while !cursor.done && spent < fuel {
            let (found, next, memory) = self.lists_at(bucket, hashes, cursor);
            let visited = self.visit_lists(bucket, &found, cursor, (&mut spent, fuel), visit);
            drop(found);
            self.context.account.release(MemoryKind::Buffers, memory);
            if visited? {
                self.go_on(next, cursor);
            }
            spent += 1;
        }
        Ok(())
    }

    /// A bucket stays, though nothing may be in it, as a fold may be under way that
    /// knows it by its number.
    fn remove_hashes(
        &mut self,
        bucket: Time,
        hashes: &RangeInclusive<u64>,
        cursor: &mut Cursor,
        fuel: usize,
    ) -> Result<usize> {
        let mut removed = 0;
        while !cursor.done && removed < fuel.max(1) {
            let (found, next, memory) = self.lists_at(bucket, hashes, cursor);
            let mut is_all = true;
            for hash in &found {
                if removed >= fuel.max(1) {
                    cursor.position = self.range.place(*hash);
                    is_all = false;
                    break;
                }
                let lists = self.buckets.get(bucket).map(|bucket| &bucket.lists);
                let list = lists.and_then(|lists| lists.of_hash(*hash).next());
                let Some(list) = list else { continue };
                removed += list.elements.len().max(1);
                let key = list.key.clone();
                self.clear_list(bucket, *hash, &key);
            }
            drop(found);
            self.context.account.release(MemoryKind::Buffers, memory);
            if is_all {
                self.go_on(next, cursor);
            }
            removed += 1;
        }
        self.empty_if_vacant(bucket);
        Ok(removed)
    }
}

impl<K: Key, E: State> HeapLists<K, E> {
    /// Visits the lists with these hashes as far as there is fuel; says whether that were all.
    fn visit_lists(
        &self,
        bucket: Time,
        found: &[u64],
        cursor: &mut Cursor,
        (spent, fuel): (&mut usize, usize),
        visit: VisitRun<'_, K, E>,
    ) -> Result<bool> {
        let Some(bucket) = self.buckets.get(bucket) else { return Ok(true) };
        let run_bytes = usize::try_from(self.context.max_value_bytes).unwrap_or(usize::MAX);
        for hash in found.chunk_by(|a, b| a == b).map(|same| same[0]) {
            let place = self.range.place(hash);
            if place != cursor.position {
                (cursor.position, cursor.version) = (place, 0);
            }
            let mut before = 0;
            for List { key, elements: list, .. } in bucket.lists.of_hash(hash) {
                let mut from = cursor.version.saturating_sub(before) as usize;
                while from < list.len() {
                    if *spent >= fuel {
                        return Ok(false);
                    }
                    let rest = &list[from..];
                    let count = record_elements(rest, run_bytes).min(fuel - *spent).max(1);
                    visit(key, from as u64, &rest[..count])?;
                    (from, *spent) = (from + count, *spent + count);
                    cursor.version = before + from as u64;
                }
                before += list.len() as u64;
            }
        }
        Ok(true)
    }

    /// The hashes of the lists at the cursor, a part of the table's; where the next part begins; and the
    /// bytes booked for them.
    fn lists_at(
        &self,
        bucket: Time,
        hashes: &RangeInclusive<u64>,
        cursor: &Cursor,
    ) -> (Vec<u64>, Option<u64>, u64) {
        let Some(bucket) = self.buckets.get(bucket) else { return (Vec::new(), None, 0) };
        let (first, last) = (self.range.place(*hashes.start()), self.range.place(*hashes.end()));
        let place = cursor.position.max(first);
        let memory = bucket.lists.hashes_bytes(place);
        self.context.account.charge(MemoryKind::Buffers, memory);
        let (found, next) = bucket.lists.hashes_at(place, last);
        (found, next, memory)
    }

    fn go_on(&self, next: Option<u64>, cursor: &mut Cursor) {
        match next {
            Some(place) => (cursor.position, cursor.version) = (place, 0),
            None => cursor.done = true,
        }
    }
}
