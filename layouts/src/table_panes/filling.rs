//! The sets of keys of a table that has its entries already, filled all at once.
//!
//! One by one, in the order of the table, each key misses the cache at the part where it belongs and at its place
//! there, and parts grow and are split over and over. So keys are counted by slice in a first walk over the
//! table and copied out in a second one; those of a slice are [divided](divide) by the first bits of their
//! places, and parts are made for all of them, so that a few parts at a time are filled and stay near.
//! That no key comes twice is known: a table has one entry of each.
//!
//! What it keeps true: copies are booked before they are made, and go slice by slice; where there is no room
//! for them, or the table would have to be read from storage twice, keys go to their sets one by one.

use std::collections::BTreeMap;
use std::rc::Rc;

use alluvium_pagestore::{
    Account, ErrorKind, Key, MemoryKind, Result, State, Time, hash_word, rounded,
};

use super::{SLICE_BYTES, TablePanes};
use crate::heap::GROUP;
use crate::split_table::SplitTable;
use crate::table::{Cursor, Table};

/// Entries that a step of a walk looks at.
const WALKED: usize = 4096;
/// Copies take no more than such a part of what is free: the sets come out of the rest.
const COPIES_SHARE: u64 = 4;
/// Slices that are found by a hash alone, unless two have the same.
const RECENT: usize = 64;
/// Keys of a division, about: they and the parts that they fill stay in the cache.
const DIVISION_KEYS: usize = 2048;
/// Divisions are of so many bits at most.
const DIVISION_BITS: u32 = 10;

/// Keys of slices, on their way into the sets.
struct Copies<K> {
    account: Rc<Account>,
    slices: Vec<Copied<K>>,
    numbers: BTreeMap<Time, usize>,
    /// Slices that were asked for, each where its hash says, and their numbers.
    recent: [Option<(Time, usize)>; RECENT],
    /// What is booked of each kind.
    tables_bytes: u64,
    buffers_bytes: u64,
    values_bytes: u64,
    /// There was no room for a slice.
    is_short: bool,
}

/// Keys of a slice.
struct Copied<K> {
    slice: Time,
    count: usize,
    /// Heap that they own.
    heap_bytes: u64,
    keys: Vec<K>,
}

impl<K: Key> Copies<K> {
    fn new(account: Rc<Account>) -> Self {
        Self {
            account,
            slices: Vec::new(),
            numbers: BTreeMap::new(),
            recent: [None; RECENT],
            tables_bytes: 0,
            buffers_bytes: 0,
            values_bytes: 0,
            is_short: false,
        }
    }

    /// The slice at `slice`. Cost: that of a hash, as long as slices are few.
    #[inline]
    fn at(&mut self, slice: Time) -> Option<&mut Copied<K>> {
        let recent = &mut self.recent[hash_word(slice.0 as u64) as usize % RECENT];
        let number = match *recent {
            Some((known, number)) if known == slice => number,
            _ => {
                let number = *self.numbers.get(&slice)?;
                *recent = Some((slice, number));
                number
            }
        };
        Some(&mut self.slices[number])
    }

    #[inline]
    fn count(&mut self, slice: Time, key: &K) {
        if self.at(slice).is_none() && !self.begin(slice) {
            self.is_short = true;
            return;
        }
        let copied = self.at(slice).expect("begun above");
        copied.count += 1;
        copied.heap_bytes += key.heap_bytes() as u64;
    }

    /// Begins a slice, if there is room for it.
    #[cold]
    fn begin(&mut self, slice: Time) -> bool {
        if !self.account.try_reserve(MemoryKind::Tables, SLICE_BYTES) {
            return false;
        }
        self.tables_bytes += SLICE_BYTES;
        self.numbers.insert(slice, self.slices.len());
        self.slices.push(Copied { slice, count: 0, heap_bytes: 0, keys: Vec::new() });
        true
    }

    /// Books and makes room for all that was counted, and says whether there is.
    fn make_room(&mut self) -> bool {
        let of = |copied: &Copied<K>| rounded(copied.count * size_of::<K>()) as u64;
        let buffers: u64 = self.slices.iter().map(of).sum();
        let values: u64 = self.slices.iter().map(|copied| copied.heap_bytes).sum();
        let fits = (buffers + values).saturating_mul(COPIES_SHARE) <= self.account.available();
        if self.is_short || !fits {
            return false;
        }
        self.account.charge(MemoryKind::Buffers, buffers);
        self.account.charge(MemoryKind::Values, values);
        (self.buffers_bytes, self.values_bytes) = (buffers, values);
        for copied in &mut self.slices {
            copied.keys.reserve_exact(copied.count);
        }
        true
    }

    #[inline]
    fn push(&mut self, slice: Time, key: &K) {
        let copied = self.at(slice).expect("counted before");
        copied.keys.push(key.clone());
    }
}

impl<K> Drop for Copies<K> {
    fn drop(&mut self) {
        self.slices.clear();
        self.account.release(MemoryKind::Tables, self.tables_bytes);
        self.account.release(MemoryKind::Buffers, self.buffers_bytes);
        self.account.release(MemoryKind::Values, self.values_bytes);
    }
}

impl<K: Key, A: State, T: Table<(Time, K), A>> TablePanes<K, A, T> {
    /// Fills the sets of keys, of which there are none, from the table. Reads all of it.
    pub(super) fn find_slices(&mut self) -> Result<()> {
        if let Some(copies) = self.copies()? {
            match self.add_copies(copies) {
                Err(error) if error.kind() == ErrorKind::OverBudget => self.forget_sets(),
                added => return added,
            }
        }
        self.find_one_by_one()
    }

    /// Without memory for more.
    fn find_one_by_one(&mut self) -> Result<()> {
        let mut cursor = Cursor::default();
        let mut found = Vec::new();
        while !cursor.done {
            let visit = &mut |(slice, key): &(Time, K), _: &A| {
                found.push((*slice, key.clone()));
                Ok(())
            };
            self.table.scan(&mut cursor, GROUP, visit)?;
            self.look_ahead(found.iter());
            for (slice, key) in found.drain(..) {
                self.add_key(slice, key)?;
            }
        }
        Ok(())
    }

    /// Copies of all keys, if there is room for them.
    fn copies(&mut self) -> Result<Option<Copies<K>>> {
        if !self.table.is_resident() {
            return Ok(None);
        }
        let mut copies = Copies::new(self.account.clone());
        self.walk(|slice, key| copies.count(slice, key))?;
        if !copies.make_room() {
            return Ok(None);
        }
        self.walk(|slice, key| copies.push(slice, key))?;
        Ok(Some(copies))
    }

    /// Shows all keys of the table.
    fn walk(&mut self, mut visit: impl FnMut(Time, &K)) -> Result<()> {
        let mut cursor = Cursor::default();
        while !cursor.done {
            self.table.scan(&mut cursor, WALKED, &mut |(slice, key), _| {
                visit(*slice, key);
                Ok(())
            })?;
        }
        Ok(())
    }

    fn add_copies(&mut self, mut copies: Copies<K>) -> Result<()> {
        for Copied { slice, count, heap_bytes, keys } in std::mem::take(&mut copies.slices) {
            // What is booked for them goes on to the set.
            let heap = keys.iter().map(|key| key.heap_bytes() as u64).sum();
            copies.values_bytes -= heap_bytes;
            copies.tables_bytes -= SLICE_BYTES;
            self.account.adjust(MemoryKind::Values, heap_bytes, heap);
            self.key_bytes += heap;
            let set = SplitTable::new(self.account.clone(), self.range);
            let set = self.slices.entry(slice).or_insert(set);
            fill(set, keys)?;
            let buffer = rounded(count * size_of::<K>()) as u64;
            copies.buffers_bytes -= buffer;
            self.account.release(MemoryKind::Buffers, buffer);
        }
        Ok(())
    }

    pub(super) fn forget_sets(&mut self) {
        self.account.release(MemoryKind::Tables, self.slices.len() as u64 * SLICE_BYTES);
        self.slices.clear();
        self.account.release(MemoryKind::Values, std::mem::take(&mut self.key_bytes));
    }
}

/// Puts keys that are not there yet into an empty set.
fn fill<K: Key>(set: &mut SplitTable<K>, mut keys: Vec<K>) -> Result<()> {
    let range = set.range();
    let place = |key: &K| range.place(key.key_hash());
    if let Some(divisions) = Divisions::of(&keys, place) {
        // In the order of places they may come only if the parts are there: each would be made for those
        // that come first.
        if set.expect(keys.len() as u64) {
            divisions.divide(&mut keys, place);
        }
    }
    for key in keys {
        set.insert(key.key_hash(), K::key_hash, || key)?;
    }
    Ok(())
}

/// How many keys have which first bits.
struct Divisions {
    bits: u32,
    counts: [u32; 1 << DIVISION_BITS],
}

impl Divisions {
    /// Of keys that are many and spread evenly.
    fn of<K>(keys: &[K], place: impl Fn(&K) -> u64) -> Option<Self> {
        let bits = (keys.len() / DIVISION_KEYS).checked_ilog2()?.min(DIVISION_BITS);
        if bits == 0 {
            return None;
        }
        let mut divisions = Self { bits, counts: [0; 1 << DIVISION_BITS] };
        for key in keys {
            divisions.counts[divisions.number(place(key))] += 1;
        }
        let most = divisions.counts.iter().max().copied().unwrap_or(0) as usize;
        let mean = keys.len() >> bits;
        (most <= mean + mean / 2).then_some(divisions)
    }

    #[inline]
    fn number(&self, place: u64) -> usize {
        (place >> (u64::BITS - self.bits)) as usize
    }

    /// Puts the keys in the order of their first bits, in place: each is exchanged for one that stands
    /// where it belongs.
    fn divide<K>(&self, keys: &mut [K], place: impl Fn(&K) -> u64) {
        let (mut next, mut end) = ([0usize; 1 << DIVISION_BITS], 0);
        for (next, count) in next.iter_mut().zip(&self.counts) {
            *next = end;
            end += *count as usize;
        }
        end = 0;
        for division in 0..1 << self.bits {
            end += self.counts[division] as usize;
            while next[division] < end {
                let at = next[division];
                let number = self.number(place(&keys[at]));
                keys.swap(at, next[number]);
                next[number] += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use alluvium_pagestore::{Helper, KeyGroup, KeyHash};

    use super::*;
    use crate::heap::Heap;
    use crate::split_table::PART_ENTRIES_MAX;
    use crate::table::{Layout, StateContext};

    type Filled<K> = TablePanes<K, u64, <Heap as Layout<(Time, K), u64>>::Table>;

    /// Panes whose table has these keys, and whose sets have none.
    fn unfilled<K: Key>(account: &Rc<Account>, keys: &[(i64, K)]) -> Result<Filled<K>> {
        let context = StateContext {
            name: "panes".into(),
            account: account.clone(),
            segments: None,
            helper: Helper::inline(),
            max_value_bytes: 4 << 10,
            key_groups: 256,
            owned: 0..256,
            movable: false,
            restored: None,
        };
        let mut panes = TablePanes::open(&Heap::new(), context, Rc::new(|a: &mut u64, b| *a += b))?;
        for (slice, key) in keys {
            panes.table.put((Time(*slice), key.clone()), 1)?;
        }
        Ok(panes)
    }

    /// All keys of the sets, and the most of a part.
    fn sets<K: Key>(panes: &Filled<K>) -> (Vec<(Time, K)>, usize) {
        let (mut all, mut most) = (Vec::new(), 0);
        for (slice, set) in &panes.slices {
            let mut next = Some(0);
            while let Some(place) = next {
                let (keys, after) = panes.keys_at(*slice, place, u64::MAX);
                most = most.max(keys.len());
                all.extend(keys.into_iter().map(|placed| placed.entry));
                next = after;
            }
            assert!(set.find(1, |_| false).is_none());
        }
        (all, most)
    }

    fn sorted<K: Ord>(mut keys: Vec<(Time, K)>) -> Vec<(Time, K)> {
        keys.sort_unstable();
        keys
    }

    /// Both ways give the same sets, and book what these take; gives the most of a part.
    fn check<K: Key + Ord + std::fmt::Debug>(keys: &[(i64, K)]) -> usize {
        let account = Account::root(1 << 30);
        let mut panes = unfilled(&account, keys).unwrap();
        let before = account.used();
        assert!(panes.copies().unwrap().is_some());
        assert_eq!(account.used(), before);
        panes.find_slices().unwrap();
        let (at_once, most) = sets(&panes);
        let (used, key_bytes) = (account.used(), panes.key_bytes);
        panes.forget_sets();
        assert_eq!(account.used(), before);
        panes.find_one_by_one().unwrap();
        let expected: Vec<_> =
            keys.iter().map(|(slice, key)| (Time(*slice), key.clone())).collect();
        assert_eq!(sorted(at_once), sorted(expected.clone()));
        assert_eq!(sorted(sets(&panes).0), sorted(expected));
        assert_eq!(panes.key_bytes, key_bytes);
        // The parts are about as full, and as many.
        assert!(used - before <= 2 * (account.used() - before), "{used} and {}", account.used());
        drop(panes);
        assert_eq!(account.used(), 0);
        most
    }

    #[test]
    fn sets_are_the_same_as_if_keys_had_come_one_by_one() {
        assert_eq!(check::<u64>(&[]), 0);
        let slices = |sizes: &[u64]| -> Vec<(i64, u64)> {
            let keys = |(nth, size): (usize, &u64)| {
                (0..*size).map(move |key| (nth as i64 * 10 - 5, key * key))
            };
            sizes.iter().enumerate().flat_map(keys).collect()
        };
        for sizes in [&[1][..], &[60_000], &[3, 30_000, 100, 9_000, 4_100], &[2_000; 12]] {
            assert!(check(&slices(sizes)) <= PART_ENTRIES_MAX, "{sizes:?}");
        }
        let owning = |n: u64| (n as i64 % 3, format!("a key that owns heap: {n}"));
        check(&(0..20_000).map(owning).collect::<Vec<_>>());
    }

    #[test]
    fn keys_of_few_groups_make_no_parts_for_others() {
        let is_there = |key: &u64| KeyGroup::of(key.key_hash(), 256).0 % 64 == 7;
        let keys: Vec<_> = (0..).filter(is_there).take(20_000).map(|key| (0, key)).collect();
        check(&keys);
    }

    #[test]
    fn any_memory_that_is_enough_for_one_by_one_is_enough() {
        let keys: Vec<_> = (0..9_000).map(|n| (n as i64 % 2, hash_word(n))).collect();
        let (mut refused, mut filled, mut copied) = (0, 0, 0);
        for limit in (256..1200).step_by(4).map(|kib| kib << 10) {
            let run = |fill: fn(&mut Filled<u64>) -> Result<()>| {
                let account = Account::root(limit);
                let done = unfilled(&account, &keys).and_then(|mut panes| {
                    fill(&mut panes)?;
                    Ok(sets(&panes).0.len())
                });
                assert!(account.stats().peak <= limit, "{limit}: {}", account.stats().peak);
                assert_eq!(account.used(), 0);
                done.ok()
            };
            let one_by_one = run(TablePanes::find_one_by_one);
            let at_once = run(TablePanes::find_slices);
            assert!(one_by_one.is_none() || at_once == one_by_one, "{limit}");
            refused += u32::from(at_once.is_none());
            filled += u32::from(at_once.is_some());
            let has_room = |panes: &mut Filled<u64>| match panes.copies()? {
                Some(_) => Ok(()),
                None => panes.account.ensure(u64::MAX, "copies"),
            };
            copied += u32::from(run(has_room).is_some());
        }
        assert!(refused > 10 && filled > 10 && copied > 10 && copied < filled);
    }

    #[test]
    fn keys_are_divided_by_their_first_bits() {
        let mut keys: Vec<u64> = (0..40_000).map(hash_word).collect();
        let divisions = Divisions::of(&keys, |key| *key).unwrap();
        assert_eq!(divisions.bits, 4);
        divisions.divide(&mut keys, |key| *key);
        assert!(keys.is_sorted_by_key(|key| key >> 60));
        keys.sort_unstable();
        let mut expected: Vec<u64> = (0..40_000).map(hash_word).collect();
        expected.sort_unstable();
        assert_eq!(keys, expected);
        assert!(Divisions::of(&keys, |key| key >> 1).is_none());
        assert!(Divisions::of(&keys[..2_000], |key| *key).is_none());
    }
}
