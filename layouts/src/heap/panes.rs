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

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::rc::Rc;

use alluvium_pagestore::{
    Account, BlobWriter, Key, Lookup, MemoryKind, Result, Rewrite, State, StateImage, Time,
};

use self::batches::Item;
use crate::contract::by_hash::ByHash;
use crate::contract::panes::{Merge, Panes, PanesLayout};
use crate::contract::table::{
    BatchError, CheckpointOutcome, Cursor, Layout, Pace, StateContext, Table, TableStats,
};
use crate::contract::upkeep::Upkeep;
use crate::heap::GROUP;
use crate::heap::Heap;
use crate::heap::entry_table_unsafe::EntryTable;
use crate::heap::hash_range::HashRange;
use crate::hybrid_log::HybridLog;

/// Bytes of a slice beside its keys: an entry of a B-tree at its worst fill.
const SLICE_BYTES: u64 = 288;

/// An open [`Heap`] or [`HybridLog`] that keeps panes.
pub struct TablePanes<K, A, T> {
    account: Rc<Account>,
    range: HashRange,
    table: T,
    merge: Merge<A>,
    slices: BTreeMap<Time, Keys<K>>,
    /// Slices that are purged: their entries are still in the table.
    dying: VecDeque<Dying<K>>,
    /// Heap that the keys of the sets own.
    key_bytes: u64,
    /// Room for the keys of a group of updates, and what is booked for it.
    group: Vec<Item<K>>,
    group_bytes: u64,
}

/// The keys of a slice.
type Keys<K> = EntryTable<(K, ())>;

/// A key of a slice, and where it stands there.
#[derive(Debug)]
struct Placed<K> {
    place: u64,
    entry: (Time, K),
}

/// What is left to remove of a slice.
#[derive(Debug)]
struct Dying<K> {
    slice: Time,
    keys: Keys<K>,
    /// Keys taken out of the set.
    part: Vec<K>,
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
        TablePanes::open(self, context, merge)
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
        let (slices, dying) = (BTreeMap::new(), VecDeque::new());
        let (key_bytes, group, group_bytes) = (0, Vec::new(), 0);
        let mut panes =
            Self { account, range, table, merge, slices, dying, key_bytes, group, group_bytes };
        if restored {
            panes.find_slices()?;
        }
        Ok(panes)
    }

    /// Puts a key into the set of its slice and says whether it was new there.
    fn add_key(&mut self, slice: Time, key: K) -> Result<bool> {
        let (hash, heap) = (key.key_hash(), key.heap_bytes() as u64);
        if let Some(keys) = self.slices.get_mut(&slice) {
            if keys.find(hash, |known| known.0 == key).is_some() {
                return Ok(false);
            }
            if heap == 0 && keys.growth_bytes(hash) == 0 {
                // Takes nothing.
                return keys.insert(hash, || (key, ())).map(|_| true);
            }
        }
        self.make_room(heap + SLICE_BYTES)?;
        let mut made = false;
        let keys = self.slices.entry(slice).or_insert_with(|| {
            made = true;
            EntryTable::new(self.account.clone(), self.range)
        });
        if made {
            self.account.charge(MemoryKind::Tables, SLICE_BYTES);
        }
        // Booked before the set grows into it.
        self.account.charge(MemoryKind::Values, heap);
        let mut inserted = keys.insert(hash, || (key.clone(), ())).map(drop);
        if inserted.is_err() {
            // This state's own table may give up what other states are not asked for.
            inserted = self.table.reclaim(64 << 10).and_then(|_| {
                let keys = self.slices.get_mut(&slice).expect("made above");
                keys.insert(hash, || (key, ())).map(drop)
            });
        }
        match inserted {
            Ok(()) => {
                self.key_bytes += heap;
                Ok(true)
            }
            Err(error) => {
                self.account.release(MemoryKind::Values, heap);
                self.forget_if_empty(slice);
                Err(error)
            }
        }
    }

    fn make_room(&mut self, bytes: u64) -> Result<()> {
        if self.account.available() < bytes {
            self.table.reclaim(bytes)?;
        }
        self.account.ensure(bytes, "a key of a slice")
    }

    /// Takes a key out of the set of its slice and says whether it was there.
    fn remove_key(&mut self, slice: Time, key: &K) -> bool {
        let Some(keys) = self.slices.get_mut(&slice) else { return false };
        let removed = keys.remove(key.key_hash(), |known| known.0 == *key);
        let Some((key, ())) = removed else { return false };
        self.key_gone(key.heap_bytes() as u64);
        self.forget_if_empty(slice);
        true
    }

    fn key_gone(&mut self, heap_bytes: u64) {
        self.account.release(MemoryKind::Values, heap_bytes);
        self.key_bytes -= heap_bytes;
    }

    fn forget_if_empty(&mut self, slice: Time) {
        if self.slices.get(&slice).is_some_and(|keys| keys.is_empty()) {
            self.slices.remove(&slice);
            self.account.release(MemoryKind::Tables, SLICE_BYTES);
        }
    }

    /// Removes up to `fuel` entries of purged slices, only of `slice` if one is given, and says how
    /// many it had fuel left for.
    fn bury(&mut self, slice: Option<Time>, mut fuel: usize) -> Result<usize> {
        let at = |dying: &VecDeque<Dying<K>>| match slice {
            Some(slice) => dying.iter().position(|dying| dying.slice == slice),
            None => (!dying.is_empty()).then_some(0),
        };
        while fuel > 0 {
            let Some(i) = at(&self.dying) else { return Ok(fuel) };
            let dying = &mut self.dying[i];
            if let Some(key) = dying.part.pop() {
                fuel -= 1;
                let heap = key.heap_bytes() as u64;
                let entry = (dying.slice, key);
                if let Err(error) = self.table.remove(&entry) {
                    dying.part.push(entry.1);
                    return Err(error);
                }
                self.key_gone(heap);
            } else if let Some(part) = dying.keys.take_part() {
                dying.part.extend(part.map(|(key, ())| key));
            } else {
                self.dying.remove(i);
                self.account.release(MemoryKind::Tables, SLICE_BYTES);
            }
        }
        Ok(0)
    }

    /// The keys of the part at `place` in a slice, from `place` to `last`, in the order of places,
    /// and where the next part begins.
    fn keys_at(&self, slice: Time, place: u64, last: u64) -> (Vec<Placed<K>>, Option<u64>) {
        let (keys, next) = self.slices[&slice].part_at(place);
        let place_of = |key: &K| self.range.place(key.key_hash());
        let mut placed = Vec::with_capacity(keys.len());
        let all = keys.iter().map(|(key, ())| (place_of(key), key));
        let wanted = all.filter(|(at, _)| (place..=last).contains(at));
        placed.extend(wanted.map(|(place, key)| Placed { place, entry: (slice, key.clone()) }));
        placed.sort_unstable_by_key(|placed| placed.place);
        (placed, next)
    }

    /// Visits what `key` has in `slices`, if `first` is the first of them that has any.
    fn visit_key(
        &mut self,
        slices: &Range<Time>,
        first: Time,
        key: K,
        visit: &mut dyn FnMut(&K, A) -> Result<()>,
    ) -> Result<usize> {
        let hash = key.key_hash();
        let has = |keys: &Keys<K>| keys.find(hash, |known| known.0 == key).is_some();
        if self.slices.range(slices.start..first).any(|(_, keys)| has(keys)) {
            return Ok(1);
        }
        let places = self.slices.range(first..slices.end).filter(|(_, keys)| has(keys));
        let places: Vec<Time> = places.map(|(slice, _)| *slice).collect();
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
        if !self.dying.is_empty() {
            // A slice that begins anew must not be taken for what is left of the old one.
            self.bury(Some(slice), usize::MAX)?;
        }
        let entry = (slice, key.to_owned());
        let new = self.add_key(slice, entry.1.clone())?;
        let done = self.table.update(&entry, init, change);
        if done.is_err() && new {
            self.remove_key(slice, &entry.1);
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
        if !self.slices.contains_key(&slice) {
            return Ok(None);
        }
        Ok(self.table.get(&(slice, key.to_owned()))?.cloned())
    }

    fn remove<Q: Lookup<K> + ?Sized>(&mut self, slice: Time, key: &Q) -> Result<()> {
        if self.slices.contains_key(&slice) {
            let entry = (slice, key.to_owned());
            self.table.remove(&entry)?;
            self.remove_key(slice, &entry.1);
        }
        Ok(())
    }

    fn next_slice(&self, from: Time) -> Option<Time> {
        self.slices.range(from..).next().map(|(slice, _)| *slice)
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
            let (keys, next) = self.keys_at(slice, cursor.position, u64::MAX);
            if self.slices.range(slices.clone()).nth(1).is_none() {
                let left = fuel.max(1) - spent;
                spent += self.visit_alone(&keys, cursor, left, visit)?;
                if keys.len() > left {
                    return Ok(());
                }
            } else {
                for Placed { place, entry } in keys {
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
        let kept = self.slices.split_off(&before);
        let purged = std::mem::replace(&mut self.slices, kept);
        let dying = |(slice, keys)| Dying { slice, keys, part: Vec::new() };
        self.dying.extend(purged.into_iter().map(dying));
        self.bury(None, fuel.max(1))?;
        Ok(self.dying.is_empty())
    }

    fn len(&self) -> u64 {
        let dying = |dying: &Dying<K>| dying.keys.len() + dying.part.len() as u64;
        self.table.len() - self.dying.iter().map(dying).sum::<u64>()
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
        while !self.dying.is_empty() {
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
        (fixed + self.key_bytes, limit)
    }

    fn stats(&self) -> TableStats {
        self.table.stats()
    }
}

impl<K, A, T> Drop for TablePanes<K, A, T> {
    fn drop(&mut self) {
        // The sets and the table give their own memory back.
        self.account.release(MemoryKind::Values, self.key_bytes);
        self.account.release(MemoryKind::Buffers, self.group_bytes);
        let slices = (self.slices.len() + self.dying.len()) as u64;
        self.account.release(MemoryKind::Tables, slices * SLICE_BYTES);
    }
}
