//! Heap state by ranges of hashes: for state whose key groups come and go.
//!
//! What it keeps true: a step takes entries of one part of the table, all those of a hash that it begins
//! with, and the hashes it holds meanwhile are booked.

use std::ops::RangeInclusive;
use std::slice::from_ref;

use alluvium_pagestore::{Key, MemoryKind, Result, State};

use super::core::HeapCore;
use super::{HeapTable, StoredValues};
use crate::contract::by_hash::{ByHash, VisitRun};
use crate::contract::table::Cursor;
use crate::support::booked::Booked;
use crate::support::record_type_unsafe::RecordRef;

impl<K: Key, V: State> ByHash<K, V> for HeapTable<K, V, StoredValues> {
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
        self.core.visit_hashes(hashes, cursor, fuel, &mut |record| {
            let (key, value) = record.get::<K, V>();
            visit(key, 0, from_ref(value))
        })
    }

    fn remove_hashes(
        &mut self,
        (): (),
        hashes: &RangeInclusive<u64>,
        cursor: &mut Cursor,
        fuel: usize,
    ) -> Result<usize> {
        self.core.remove_hashes(hashes, cursor, fuel)
    }
}

impl HeapCore {
    fn visit_hashes(
        &mut self,
        hashes: &RangeInclusive<u64>,
        cursor: &mut Cursor,
        fuel: usize,
        visit: &mut dyn FnMut(RecordRef<'_>) -> Result<()>,
    ) -> Result<()> {
        let (mut at, mut visited) = (*cursor, 0);
        while !at.done && visited < fuel.max(1) {
            let memory = self.step_bytes(hashes, &at);
            let booked = self.book_step(memory)?;
            let (found, next) = self.hashes_at(hashes, &at, fuel.max(1) - visited);
            let mut scanned = Ok(());
            if let (Some(first), Some(last)) = (found.first(), found.last()) {
                let index = self.table.part_at(self.table.range().place(*first)).0;
                for entry in index.into_iter().flat_map(|index| self.table.entries_at(index)) {
                    if scanned.is_ok() && (*first..=*last).contains(&entry.hash()) {
                        scanned = visit(entry);
                    }
                }
            }
            visited += found.len().max(1);
            drop((found, booked));
            scanned?;
            at.go_on(next);
        }
        *cursor = at;
        Ok(())
    }

    fn remove_hashes(
        &mut self,
        hashes: &RangeInclusive<u64>,
        cursor: &mut Cursor,
        fuel: usize,
    ) -> Result<usize> {
        let mut removed = 0;
        while !cursor.done && removed < fuel.max(1) {
            let memory = self.step_bytes(hashes, cursor);
            let booked = self.with_room(&mut |core| core.book_step(memory))?;
            let (found, next) = self.hashes_at(hashes, cursor, fuel.max(1) - removed);
            for hash in &found {
                if let Some(spot) = self.table.find(*hash, &mut |entry| entry.hash() == *hash) {
                    self.remove_at(spot, *hash);
                }
            }
            removed += found.len().max(1);
            drop((found, booked));
            cursor.go_on(next);
        }
        Ok(removed)
    }

    /// The hashes of entries in the range, the next about so many from `cursor` on, sorted; and where
    /// the step after begins. All of a step are of one part.
    fn hashes_at(
        &mut self,
        hashes: &RangeInclusive<u64>,
        cursor: &Cursor,
        fuel: usize,
    ) -> (Vec<u64>, Option<u64>) {
        let range = self.table.range();
        let (from, last) = (self.begin_of(hashes, cursor), range.place(*hashes.end()));
        let (mut found, after) = self.table.hashes_at(from, last);
        self.sought += found.capacity() as u64;
        let mut count = found.len().min(fuel);
        while count > 0 && count < found.len() && found[count] == found[count - 1] {
            count += 1;
        }
        let next = found.get(count).map(|hash| range.place(*hash)).or(after);
        found.truncate(count);
        (found, next)
    }

    /// Books the memory of a step's hashes while it lasts, also if code of the user panics.
    fn book_step(&self, memory: u64) -> Result<Booked> {
        let account = self.context.account.clone();
        Booked::reserve(account, MemoryKind::Buffers, memory, "the hashes of a step")
    }

    /// Memory of the hashes of a step.
    fn step_bytes(&self, hashes: &RangeInclusive<u64>, cursor: &Cursor) -> u64 {
        self.table.hashes_bytes(self.begin_of(hashes, cursor))
    }

    /// The place where a step begins.
    fn begin_of(&self, hashes: &RangeInclusive<u64>, cursor: &Cursor) -> u64 {
        cursor.position.max(self.table.range().place(*hashes.start()))
    }
}
