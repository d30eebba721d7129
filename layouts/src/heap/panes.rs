//! Panes kept in a plain table under composite keys of slice and key, to compare layouts.
//!
//! The keys of each slice stand in a set in memory beside the table, which is how a slice is found
//! whole. What it keeps true: a key is in the set of its slice if the table has its accumulator,
//! but what is being purged is in no such set.
//! A checkpoint that is taken in steps has what is left of it, as whole slices or what the table
//! has of them yet: who opens it purges again. The composite key's hash decides only the place
//! inside the table, which therefore owns all key groups; who owns a key is decided by the key
//! alone, before it comes here.
//!
//! Not for speed: every call clones its key, and restoring reads everything. Keys of a range of
//! hashes are found in the sets of keys; to remove one looks it up in the table, which may read it.

mod batches;
mod filling;
mod groups;
mod keys;

use std::ops::{Bound, Range};

use alluvium_pagestore::{
    Account, BlobWriter, Key, Lookup, Result, Rewrite, State, StateImage, Time,
};

use self::keys::{PaneKeys, PlacedKey};
use crate::contract::by_hash::ByHash;
use crate::contract::panes::{Merge, Panes, PanesLayout};
use crate::contract::table::{
    BatchError, CheckpointOutcome, Cursor, Layout, Pace, StateContext, Table, TableStats,
};
use crate::contract::upkeep::Upkeep;
use crate::heap::GROUP;
use crate::heap::Heap;
use crate::heap::hash_range::HashRange;
use crate::hybrid_log::HybridLog;

/// An open [`Heap`] or [`HybridLog`] that keeps panes.
pub struct TablePanes<K, A, T> {
    keys: PaneKeys<K>,
    table: T,
    merge: Merge<A>,
}

impl<K: Key, A: State> PanesLayout<K, A> for Heap {
    type Panes = TablePanes<K, A, <Heap as Layout<(Time, K), A>>::Table>;

    fn name(&self) -> &'static str {
        Layout::<(Time, K), A>::name(self)
    }

    fn memory_limit(&self) -> Option<u64> {
        Layout::<(Time, K), A>::memory_limit(self)
    }

    fn open_panes(&self, context: StateContext, merge: Merge<A>) -> Result<Self::Panes> {
        TablePanes::open(self, context, merge)
    }
}

impl<K: Key, A: State> PanesLayout<K, A> for HybridLog {
    type Panes = TablePanes<K, A, <HybridLog as Layout<(Time, K), A>>::Table>;

    fn name(&self) -> &'static str {
        Layout::<(Time, K), A>::name(self)
    }

    fn memory_limit(&self) -> Option<u64> {
        Layout::<(Time, K), A>::memory_limit(self)
    }

    fn open_panes(&self, context: StateContext, merge: Merge<A>) -> Result<Self::Panes> {
        // Key groups are found by keys in memory here, which know nothing of runs.
        TablePanes::open(&self.clone().cold_runs_if_asked(), context, merge)
    }
}

impl<K: Key, A: State, T: Table<(Time, K), A>> TablePanes<K, A, T> {
    /// Opens panes in a table of `layout`, for a [`PanesLayout`] that has no better way. Restoring reads
    /// everything.
    ///
    /// # Errors
    /// Those of opening the table; [`OverBudget`](alluvium_pagestore::ErrorKind::OverBudget) if the sets of keys
    /// do not fit.
    pub fn open<L>(layout: &L, context: StateContext, merge: Merge<A>) -> Result<Self>
    where
        L: Layout<(Time, K), A, Table = T>,
    {
        let account = context.account.clone();
        let range = HashRange::of(&context.owned, context.key_groups);
        // The table books on an account of its own: what it gives back as a whole is not the keys'.
        let below = Account::below(&account, &context.name, u64::MAX);
        let restored = context.restored.is_some();
        let owned = 0..context.key_groups;
        let table =
            layout.open(StateContext { account: below, owned, movable: false, ..context })?;
        let mut panes = Self { keys: PaneKeys::new(account, range), table, merge };
        if restored {
            panes.find_slices()?;
        }
        Ok(panes)
    }

    /// Removes up to `fuel` entries of purged slices, only of `slice` if one is given, and says how
    /// many it had fuel left for.
    fn bury(&mut self, slice: Option<Time>, fuel: usize) -> Result<usize> {
        let table = &mut self.table;
        self.keys.bury(slice, fuel, &mut |entry| table.remove(entry).map(drop))
    }

    /// Visits what `key` has in `slices`, if `first` is the first of them that has any.
    fn visit_key(
        &mut self,
        slices: &Range<Time>,
        first: Time,
        key: K,
        visit: &mut dyn FnMut(&K, A) -> Result<()>,
    ) -> Result<usize> {
        let places = self.keys.slices_of(slices, first, &key);
        if places.is_empty() {
            return Ok(1);
        }
        let (mut entry, mut merged): (_, Option<A>) = ((first, key), None);
        for &slice in &places {
            entry.0 = slice;
            match (&mut merged, self.table.get(&entry)?) {
                (Some(merged), Some(more)) => (self.merge)(merged, more),
                (None, Some(value)) => merged = Some(value.clone()),
                (_, None) => {}
            }
        }
        // A key whose `init` panicked is in its set only.
        if let Some(merged) = merged {
            visit(&entry.1, merged)?;
        }
        Ok(places.len())
    }
}

impl<K: Key, A: State, T: Table<(Time, K), A>> Panes<K, A> for TablePanes<K, A, T> {
    fn update<Q: Lookup<K> + ?Sized, R>(
        &mut self,
        slice: Time,
        key: &Q,
        init: impl FnOnce() -> A,
        change: impl FnOnce(&mut A) -> R,
    ) -> Result<R> {
        let (hash, entry) = (key.key_hash(), (slice, key.to_owned()));
        let new = self.add_new_key(slice, (hash, &entry.1))?;
        let done = self.table.update(&entry, init, change);
        if done.is_err() && new {
            self.keys.remove(slice, &entry.1);
        }
        done
    }

    fn update_batch<U, Q: Lookup<K> + ?Sized>(
        &mut self,
        batch: &[U],
        place: impl Fn(&U) -> (Time, &Q),
        mut init: impl FnMut(&U) -> A,
        mut change: impl FnMut(&U, &mut A),
    ) -> std::result::Result<(), BatchError> {
        for (nth, items) in batch.chunks(GROUP).enumerate() {
            let updated = self.update_group(items, &place, &mut init, &mut change);
            updated
                .map_err(|failed| BatchError { applied: nth * GROUP + failed.applied, ..failed })?;
        }
        Ok(())
    }

    fn expect(&mut self, panes: u64) {
        self.table.expect(panes);
    }

    fn get<Q: Lookup<K> + ?Sized>(&mut self, slice: Time, key: &Q) -> Result<Option<A>> {
        if !self.keys.slices.has(slice) {
            return Ok(None);
        }
        Ok(self.table.get(&(slice, key.to_owned()))?.cloned())
    }

    fn remove<Q: Lookup<K> + ?Sized>(&mut self, slice: Time, key: &Q) -> Result<()> {
        if self.keys.slices.has(slice) {
            let entry = (slice, key.to_owned());
            self.table.remove(&entry)?;
            self.keys.remove(slice, &entry.1);
        }
        Ok(())
    }

    fn next_slice(&self, from: Time) -> Option<Time> {
        self.keys.slices.range_from(from).next().map(|(slice, _)| slice)
    }

    fn fold(
        &mut self,
        slices: Range<Time>,
        cursor: &mut Cursor,
        fuel: usize,
        visit: &mut dyn FnMut(&K, A) -> Result<()>,
    ) -> Result<()> {
        // The cursor is a place in a slice; the slice is kept as the distance from the first.
        let mut spent = 0;
        while !cursor.done && spent < fuel.max(1) {
            let from = Time(slices.start.0.wrapping_add(cursor.version as i64));
            let next = if from < slices.end { self.next_slice(from) } else { None };
            let Some(slice) = next.filter(|slice| *slice < slices.end) else {
                cursor.done = true;
                break;
            };
            if slice > from {
                cursor.version = slice.0.wrapping_sub(slices.start.0) as u64;
                cursor.position = 0;
            }
            let (keys, next) = self.keys.at(slice, cursor.position, u64::MAX);
            let within = (Bound::Included(slices.start), Bound::Excluded(slices.end));
            if self.keys.slices.range(within).nth(1).is_none() {
                let left = fuel.max(1) - spent;
                spent += self.visit_alone(&keys, cursor, left, visit)?;
                if keys.len() > left {
                    return Ok(());
                }
            } else {
                for PlacedKey { place, entry } in keys {
                    cursor.position = place;
                    if spent >= fuel.max(1) {
                        return Ok(());
                    }
                    spent += self.visit_key(&slices, slice, entry.1, visit)?;
                }
            }
            match next {
                Some(place) => cursor.position = place,
                None => {
                    cursor.version = slice.0.wrapping_add(1).wrapping_sub(slices.start.0) as u64;
                    cursor.position = 0;
                }
            }
        }
        Ok(())
    }

    fn by_hash(&mut self) -> Option<&mut dyn ByHash<K, A, Time>> {
        Some(self)
    }

    fn purge(&mut self, before: Time, fuel: usize) -> Result<bool> {
        self.keys.purge(before);
        self.bury(None, fuel.max(1))?;
        Ok(self.keys.are_buried())
    }

    fn len(&self) -> u64 {
        self.table.len() - self.keys.dying_len()
    }
}

impl<K: Key, A: State, T: Table<(Time, K), A>> Upkeep for TablePanes<K, A, T> {
    fn tick(&mut self, work: usize) -> Result<usize> {
        let left = self.bury(None, work)?;
        Ok(work - left + self.table.tick(left)?)
    }

    fn reclaim(&mut self, bytes: u64) -> Result<u64> {
        self.table.reclaim(bytes)
    }

    fn rewriter(&mut self) -> Option<&mut dyn Rewrite> {
        self.table.rewriter()
    }

    fn checkpoint(&mut self, blobs: &mut BlobWriter) -> Result<StateImage> {
        // Who waits for all of a checkpoint can wait for this.
        while !self.keys.are_buried() {
            self.bury(None, usize::MAX)?;
        }
        self.table.checkpoint(blobs)
    }

    fn begin_checkpoint(&mut self, blobs: &mut BlobWriter) -> Result<Option<StateImage>> {
        // What is left of purged slices is in it: to bury that now would take as long as it is much.
        self.table.begin_checkpoint(blobs)
    }

    fn pace_checkpoint(&mut self, pace: Pace) {
        self.table.pace_checkpoint(pace);
    }

    fn continue_checkpoint(&mut self, blobs: &mut BlobWriter) -> Result<Option<StateImage>> {
        self.table.continue_checkpoint(blobs)
    }

    fn checkpointed(&mut self, outcome: CheckpointOutcome) {
        self.table.checkpointed(outcome);
    }

    fn fixed_bytes(&self) -> (u64, u64) {
        // The sets of keys stay in memory, whatever the table does.
        let (fixed, limit) = self.table.fixed_bytes();
        (fixed + self.keys.key_bytes, limit)
    }

    fn stats(&self) -> TableStats {
        self.table.stats()
    }
}
