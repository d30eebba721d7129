//! Lists on the heap by ranges of hashes: for lists whose key groups come and go.
//!
//! The table of a bucket stands in the order of hashes, so that those asked for are found without a look
//! at the others. A visit's cursor has the place of a list as its position; its version is how many elements of
//! the lists at that place were visited. A removal's version says whether lists are left at its place.

use std::ops::RangeInclusive;

use alluvium_pagestore::{Key, Result, State, Time};

use crate::contract::by_hash::{ByHash, VisitRun};
use crate::contract::table::Cursor;
use crate::heap::lists::reading::record_elements;
use crate::heap::lists::{HeapList, HeapLists};
use crate::heap::part_hashes::LeastHashes;

/// Where the last call began that has left lists of one hash to the next. So that one does not walk over all before
/// them again, however many they are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LastVisit {
    bucket: Time,
    hash: u64,
    /// What the table said of its [moves](crate::heap::raw_table_unsafe::RawTable::moves).
    moves: u64,
    /// The number of a window, and the elements of lists with this hash in those before.
    window: usize,
    before: u64,
}

/// Hashes of lists, and the place to go on at behind them.
type ListHashes = (LeastHashes, Option<u64>);

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
            let left = self.left_at(bucket, hashes, cursor);
            let (found, next) = left.unwrap_or_else(|| self.lists_at(bucket, hashes, cursor));
            let found = found.as_slice();
            if self.visit_lists(bucket, found, cursor, (&mut spent, fuel), visit)? {
                go_on(next, cursor);
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
        let (mut removed, fuel) = (0, fuel.max(1));
        if cursor.version > 0 && !cursor.done {
            cursor.version = 0;
            self.remove_alike(
                bucket,
                self.range.hash(cursor.position),
                cursor,
                (&mut removed, fuel),
            );
        }
        while !cursor.done && removed < fuel {
            let (found, next) = self.lists_at(bucket, hashes, cursor);
            let mut remove =
                |hash: &u64| self.remove_alike(bucket, *hash, cursor, (&mut removed, fuel));
            if found.as_slice().iter().all(&mut remove) {
                go_on(next, cursor);
            }
            removed += 1;
        }
        self.empty_if_vacant(bucket);
        Ok(removed)
    }
}

impl<K: Key, E: State> HeapLists<K, E> {
    /// Removes the lists with this hash as far as there is fuel; says whether those were all. If not, the cursor is at
    /// those that are left.
    fn remove_alike(
        &mut self,
        time: Time,
        hash: u64,
        cursor: &mut Cursor,
        (removed, fuel): (&mut usize, usize),
    ) -> bool {
        loop {
            let lists = self.buckets.get(time).map(|bucket| &bucket.lists);
            let Some(list) = lists.and_then(|lists| lists.of_hash(hash).next()) else {
                return true;
            };
            if *removed >= fuel {
                (cursor.position, cursor.version) = (self.range.place(hash), 1);
                return false;
            }
            *removed += list.elements.len().max(1);
            let key = list.key.clone();
            self.clear_list(time, hash, &key);
        }
    }

    /// Visits the lists with these hashes as far as there is fuel; says whether that were all.
    fn visit_lists(
        &mut self,
        time: Time,
        found: &[u64],
        cursor: &mut Cursor,
        (spent, fuel): (&mut usize, usize),
        visit: VisitRun<'_, K, E>,
    ) -> Result<bool> {
        for hash in found.iter().copied() {
            let place = self.range.place(hash);
            if place != cursor.position {
                (cursor.position, cursor.version) = (place, 0);
            }
            if cursor.version == 0 {
                // Lists may have changed since that visit.
                self.visited = None;
            }
            let mut begun = None;
            let fuel = (&mut *spent, fuel);
            let visited =
                self.visit_alike(time, hash, &mut cursor.version, fuel, (&mut begun, visit));
            if !matches!(visited, Ok(true)) {
                self.visited = begun;
                return visited;
            }
        }
        Ok(true)
    }

    /// Visits the lists with this hash, of which so many elements were `told`, and notes where it has `begun`.
    fn visit_alike(
        &self,
        time: Time,
        hash: u64,
        told: &mut u64,
        (spent, fuel): (&mut usize, usize),
        (begun, visit): (&mut Option<LastVisit>, VisitRun<'_, K, E>),
    ) -> Result<bool> {
        let Some(lists) = self.buckets.get(time).map(|bucket| &bucket.lists) else {
            return Ok(true);
        };
        let run_bytes = usize::try_from(self.context.max_value_bytes).unwrap_or(usize::MAX);
        let moves = lists.moves();
        let is_of = |at: &LastVisit| (at.bucket, at.hash, at.moves) == (time, hash, moves);
        let known = self.visited.filter(|at| is_of(at) && at.before <= *told);
        let none = LastVisit { bucket: time, hash, moves, window: 0, before: 0 };
        let mut at = known.unwrap_or(none);
        let mut before = at.before;
        for (window, HeapList { key, elements: list, .. }) in lists.of_hash_from(hash, at.window) {
            if window != at.window {
                (at.window, at.before) = (window, before);
            }
            let mut from = told.saturating_sub(before) as usize;
            while from < list.len() {
                begun.get_or_insert(at);
                if *spent >= fuel {
                    return Ok(false);
                }
                let rest = &list[from..];
                let count = record_elements(rest, run_bytes).min(fuel - *spent).max(1);
                visit(key, from as u64, &rest[..count])?;
                (from, *spent) = (from + count, *spent + count);
                *told = before + from as u64;
            }
            before += list.len() as u64;
        }
        Ok(true)
    }

    /// The hash of lists that a call has left, if the cursor is at them, and the place after them.
    fn left_at(
        &self,
        bucket: Time,
        hashes: &RangeInclusive<u64>,
        cursor: &Cursor,
    ) -> Option<ListHashes> {
        let hash = self.visited.filter(|left| left.bucket == bucket)?.hash;
        let is_there = cursor.version > 0 && self.range.place(hash) == cursor.position;
        let last = self.range.place(*hashes.end());
        let next = cursor.position.checked_add(1 << self.range.same_bits());
        is_there.then(|| (LeastHashes::of(hash), next.filter(|next| *next <= last)))
    }

    /// The hashes of lists at the cursor, of a part of the table at most.
    fn lists_at(&self, bucket: Time, hashes: &RangeInclusive<u64>, cursor: &Cursor) -> ListHashes {
        let mut found = LeastHashes::new();
        let (first, last) = (self.range.place(*hashes.start()), self.range.place(*hashes.end()));
        let bucket = self.buckets.get(bucket);
        let next = bucket.and_then(|bucket| {
            bucket.lists.least_hashes(cursor.position.max(first), last, &mut found)
        });
        (found, next)
    }
}

fn go_on(next: Option<u64>, cursor: &mut Cursor) {
    match next {
        Some(place) => (cursor.position, cursor.version) = (place, 0),
        None => cursor.done = true,
    }
}
