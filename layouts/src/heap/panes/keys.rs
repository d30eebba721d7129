//! The keys of each slice of panes that are kept in a table: compiled for each type of keys, whatever the table is and
//! the accumulators are.
//!
//! What it keeps true: what sets of keys take is booked. The table may give memory up for them.

use std::collections::VecDeque;
use std::ops::{Bound, Range};
use std::rc::Rc;

use alluvium_pagestore::{Account, Key, MemoryKind, Result, Time};

use super::batches::HashedKey;
use crate::contract::upkeep::Upkeep;
use crate::heap::entry_table_unsafe::EntryTable;
use crate::heap::hash_range::HashRange;
use crate::heap::{GROUP, NEAR_BYTES};
use crate::support::by_time_unsafe::ByTime;

/// Bytes of a slice beside its keys: a table, and a node of the tree of times, which the first slice takes.
const SLICE_BYTES: u64 = ByTime::<SliceKeys<()>>::memory_bytes(1);
const _: () = assert!(ByTime::<SliceKeys<()>>::fits_in(SLICE_BYTES));

/// The keys of a slice.
type SliceKeys<K> = EntryTable<(K, ())>;

/// A key of a slice, and where it stands there.
#[derive(Debug)]
pub(super) struct PlacedKey<K> {
    pub place: u64,
    pub entry: (Time, K),
}

/// What is left to remove of a slice.
#[derive(Debug)]
struct DyingSlice<K> {
    slice: Time,
    /// In a box: what is booked for a slice has room for its place in the queue then.
    keys: Box<SliceKeys<K>>,
    /// Keys taken out of the set.
    part: Vec<K>,
}

/// The keys of all slices.
pub(super) struct PaneKeys<K> {
    pub account: Rc<Account>,
    pub range: HashRange,
    pub slices: ByTime<SliceKeys<K>>,
    /// Slices that are purged: their entries are still in the table.
    dying: VecDeque<DyingSlice<K>>,
    /// Heap that the keys of the sets own.
    pub key_bytes: u64,
    /// Room for the keys of a group of updates, and what is booked for it.
    pub group: Vec<HashedKey<K>>,
    group_bytes: u64,
}

impl<K: Key> PaneKeys<K> {
    /// None.
    pub fn new(account: Rc<Account>, range: HashRange) -> Self {
        let (slices, dying, group) = (ByTime::new(), VecDeque::new(), Vec::new());
        Self { account, range, slices, dying, key_bytes: 0, group, group_bytes: 0 }
    }

    /// Puts a key, which is cloned, into the set of its slice, if it is new there; says whether it was.
    pub fn add(
        &mut self,
        slice: Time,
        (hash, key): (u64, &K),
        table: &mut dyn Upkeep,
    ) -> Result<bool> {
        let keys = self.slices.get_mut(slice);
        if keys.as_ref().is_some_and(|keys| keys.find(hash, |known| known.0 == *key).is_some()) {
            return Ok(false);
        }
        // What is in the set is measured: a clone may own less.
        let mut key = Some(key.clone());
        let heap = key.as_ref().map_or(0, |key| key.heap_bytes()) as u64;
        let mut make = || (key.take().expect("it is inserted once"), ());
        if let Some(keys) = keys.filter(|keys| heap == 0 && keys.growth_bytes(hash) == 0) {
            // Takes nothing.
            return keys.insert(hash, make).map(|_| true);
        }
        self.make_room(heap + SLICE_BYTES, table)?;
        let keys = self.slices.get_or_insert(slice, || {
            self.account.charge(MemoryKind::Tables, SLICE_BYTES);
            Ok(EntryTable::new(self.account.clone(), self.range))
        })?;
        // Booked before the set grows into it.
        self.account.charge(MemoryKind::Values, heap);
        let mut inserted = keys.insert(hash, &mut make).map(drop);
        if inserted.is_err() {
            // This state's own table may give up what other states are not asked for.
            inserted = table.reclaim(64 << 10).and_then(|_| {
                let keys = self.slices.get_mut(slice).expect("made above");
                keys.insert(hash, make).map(drop)
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

    /// Makes sure that so much can be booked.
    fn make_room(&mut self, bytes: u64, table: &mut dyn Upkeep) -> Result<()> {
        if self.account.available() < bytes {
            table.reclaim(bytes)?;
        }
        self.account.ensure(bytes, "a key of a slice")
    }

    /// Takes a key out of the set of its slice and says whether it was there.
    pub fn remove(&mut self, slice: Time, key: &K) -> bool {
        let Some(keys) = self.slices.get_mut(slice) else { return false };
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
        if self.slices.get(slice).is_some_and(|keys| keys.is_empty()) {
            self.slices.remove(slice);
            self.account.release(MemoryKind::Tables, SLICE_BYTES);
        }
    }

    /// Removes up to `fuel` entries of purged slices by `remove`, only of `slice` if one is given, and says how many it
    /// had fuel left for.
    pub fn bury(
        &mut self,
        slice: Option<Time>,
        mut fuel: usize,
        remove: &mut dyn FnMut(&(Time, K)) -> Result<()>,
    ) -> Result<usize> {
        let at = |dying: &VecDeque<DyingSlice<K>>| match slice {
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
                if let Err(error) = remove(&entry) {
                    dying.part.push(entry.1);
                    return Err(error);
                }
                self.key_gone(heap);
            } else if let Some(part) = dying.keys.take_part() {
                dying.part.extend(part.map(|(key, ())| key));
            } else {
                self.dying.remove(i);
                if self.dying.is_empty() {
                    // It keeps its places otherwise.
                    self.dying = VecDeque::new();
                }
                self.account.release(MemoryKind::Tables, SLICE_BYTES);
            }
        }
        Ok(0)
    }

    /// The keys of the part at `place` in a slice, from `place` to `last`, in the order of places,
    /// and where the next part begins.
    pub fn at(&self, slice: Time, place: u64, last: u64) -> (Vec<PlacedKey<K>>, Option<u64>) {
        let (keys, next) = self.slices.get(slice).expect("a slice that is there").part_at(place);
        let place_of = |key: &K| self.range.place(key.key_hash());
        let mut placed = Vec::with_capacity(keys.len());
        let all = keys.iter().map(|(key, ())| (place_of(key), key));
        let wanted = all.filter(|(at, _)| (place..=last).contains(at));
        placed.extend(wanted.map(|(place, key)| PlacedKey { place, entry: (slice, key.clone()) }));
        placed.sort_unstable_by_key(|placed| placed.place);
        (placed, next)
    }

    /// The slices in which a key has something, if `first` is the first of them; else none.
    pub fn slices_of(&self, slices: &Range<Time>, first: Time, key: &K) -> Vec<Time> {
        let hash = key.key_hash();
        let has = |keys: &SliceKeys<K>| keys.find(hash, |known| known.0 == *key).is_some();
        let within = |from, to| (Bound::Included(from), Bound::Excluded(to));
        if self.slices.range(within(slices.start, first)).any(|(_, keys)| has(keys)) {
            return Vec::new();
        }
        let places = self.slices.range(within(first, slices.end)).filter(|(_, keys)| has(keys));
        places.map(|(slice, _)| slice).collect()
    }

    /// Has the slices before `before` removed.
    pub fn purge(&mut self, before: Time) {
        while let Some((slice, keys)) = self.slices.pop_before(before) {
            self.dying.push_back(DyingSlice { slice, keys: Box::new(keys), part: Vec::new() });
        }
    }

    /// Whether nothing is left of purged slices.
    pub fn are_buried(&self) -> bool {
        self.dying.is_empty()
    }

    /// Entries that are left of purged slices.
    pub fn dying_len(&self) -> u64 {
        self.dying.iter().map(|dying| dying.keys.len() + dying.part.len() as u64).sum()
    }

    /// Brings near what the sets of keys have for these hashes.
    pub fn look_ahead(&self, hashes: impl Iterator<Item = (Time, u64)>) {
        for (slice, hash) in hashes {
            let known = self.slices.get(slice);
            if let Some(known) = known.filter(|known| known.memory_bytes() > NEAR_BYTES) {
                known.look_ahead(hash);
            }
        }
    }

    /// Whether there is memory for the keys of a group, which is booked once and kept.
    pub fn has_group(&mut self, table: &mut dyn Upkeep) -> bool {
        let memory = (GROUP * size_of::<HashedKey<K>>()) as u64;
        if self.group_bytes == 0 && self.make_room(memory, table).is_ok() {
            self.account.charge(MemoryKind::Buffers, memory);
            self.group_bytes = memory;
        }
        self.group_bytes > 0
    }
}

impl<K> Drop for PaneKeys<K> {
    fn drop(&mut self) {
        // The sets give their own memory back.
        self.account.release(MemoryKind::Values, self.key_bytes);
        self.account.release(MemoryKind::Buffers, self.group_bytes);
        let slices = (self.slices.len() + self.dying.len()) as u64;
        self.account.release(MemoryKind::Tables, slices * SLICE_BYTES);
    }
}
