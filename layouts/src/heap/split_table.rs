//! A hash table in the order of its hashes that grows in bounded steps.
//!
//! Entries stand in parts of at most [`PART_ENTRIES_MAX`], each of which has the entries of one
//! prefix of the hash. A part that is full is split in two by the next bit, so that an insert
//! never moves more than one part. A directory leads from the prefix to the part. What walks the
//! table goes from part to part in the order of hashes, and its place is a hash: it stays valid
//! whatever is inserted, removed or split meanwhile, and places of two tables can be compared.
//!
//! What it keeps true: every part is reached from exactly the directory entries of its prefix; all
//! that the table takes is booked.

mod expected;
mod parts;

use std::ops::Deref;
#[cfg(test)]
use std::ops::Range;
use std::rc::Rc;

use alluvium_pagestore::{Account, MemoryKind, Result, rounded};
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use self::parts::Part;
pub(crate) use crate::heap::hash_range::HashRange;
use crate::support::prefetch_unsafe::prefetch;

pub(crate) use parts::{FrozenTable, Parts, Span};

/// Most entries of a part: a hash table of 128 buckets filled to 7 in 8.
pub(crate) const PART_ENTRIES_MAX: usize = 112;
/// The directory has at most so many entries per part: a part whose entries agree in too many bits
/// grows instead of being split.
const DIRECTORY_SHARE: usize = 16;
/// Where all keys may be of one key group, this many times two as many.
const ALIKE_MAX: u32 = 8;

/// Bits of a [bucket's number](bucket_of) for the place in its part.
const PLACE_BITS: u32 = 32;

/// Tells the hash of an entry. A pointer, and no type of its own: what moves entries is compiled once for each type of
/// entry, and not for each caller.
pub(crate) type HashOf<T> = fn(&T) -> u64;

/// The number of a bucket: the `place`th of a part.
#[inline(always)]
pub(crate) fn bucket_of(part: usize, place: usize) -> usize {
    part << PLACE_BITS | place
}

/// The part of a bucket's number, and its place there.
#[inline(always)]
pub(crate) fn part_and_place(bucket: usize) -> (usize, usize) {
    (bucket >> PLACE_BITS, bucket & ((1 << PLACE_BITS) - 1))
}

/// The table. Callers give the hash with every call, and a function for it where entries move.
#[derive(Debug)]
pub struct SplitTable<T> {
    account: Rc<Account>,
    parts: Parts<T>,
    /// Bits in which all hashes may be alike: the directory may be longer by so much.
    alike: u32,
    len: u64,
    booked: u64,
}

impl<T> SplitTable<T> {
    /// An empty table, which takes no memory yet.
    pub fn new(account: Rc<Account>, range: HashRange) -> Self {
        Self { account, parts: Parts::new(range), alike: 0, len: 0, booked: 0 }
    }

    /// All entries may be of one of so many key groups.
    pub fn expect_few_of(mut self, groups: u16) -> Self {
        self.alike = (u16::BITS - groups.saturating_sub(1).leading_zeros()).min(ALIKE_MAX);
        self
    }

    /// An empty table, whose entries may all be of one of so many key groups, if that is told.
    pub fn maybe_few_of(account: Rc<Account>, range: HashRange, groups: Option<u16>) -> Self {
        let table = Self::new(account, range);
        match groups {
            Some(groups) => table.expect_few_of(groups),
            None => table,
        }
    }

    /// Entries.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes booked for the table itself.
    pub fn memory_bytes(&self) -> u64 {
        self.booked
    }

    /// [`find`](Parts::find), to be changed.
    #[inline]
    pub fn find_mut(&mut self, hash: u64, is: impl FnMut(&T) -> bool) -> Option<&mut T> {
        let part = self.parts.part_of(hash)?;
        self.parts.all[part].entries.find_mut(spread(hash), is)
    }

    /// Has the entry with this hash fetched into the cache, if there is one: reads what leads to
    /// entries, but none of them.
    #[inline]
    pub fn look_ahead(&self, hash: u64) {
        let part = self.parts.part_of(hash).map(|part| &self.parts.all[part].entries);
        let Some(entries) = part else { return };
        let entry = entries.find_bucket_index(spread(hash), |_| true);
        if let Some(entry) = entry.and_then(|entry| entries.get_bucket(entry)) {
            prefetch(std::ptr::from_ref(entry));
        }
    }

    /// Adds an entry that is not there yet and returns it.
    ///
    /// # Errors
    /// [`ErrorKind::OverBudget`](alluvium_pagestore::ErrorKind::OverBudget) if the table cannot
    /// grow; `make` was not called then.
    pub fn insert(
        &mut self,
        hash: u64,
        hash_of: HashOf<T>,
        make: impl FnOnce() -> T,
    ) -> Result<&mut T> {
        let part = self.make_room(hash, hash_of)?;
        // Before anything is counted: it may panic.
        let entry = make();
        self.len += 1;
        Ok(add(&mut self.parts.all[part].entries, hash, entry, hash_of))
    }

    /// The entry that `is` it, or else what `make` makes of it; `None` if it is not there, and adding it
    /// takes memory.
    #[inline]
    pub fn find_or_add(
        &mut self,
        hash: u64,
        is: impl FnMut(&T) -> bool,
        hash_of: HashOf<T>,
        make: impl FnOnce() -> T,
    ) -> Option<&mut T> {
        let part = self.parts.part_of(hash)?;
        find_or_add((&mut self.parts.all[part].entries, &mut self.len), hash, is, hash_of, make)
    }

    /// The part with this hash, for several calls. Its entries are on their way into the cache.
    #[inline]
    pub fn part_mut(&mut self, hash: u64) -> Option<PartMut<'_, T>> {
        let place = self.parts.range.place(hash);
        let number = self.parts.part_of(hash)?;
        self.parts.fetch_part(place);
        let Parts { range, all, .. } = &mut self.parts;
        let Part { depth, entries } = &mut all[number];
        let mask = u64::MAX.unbounded_shr(*depth);
        Some(PartMut { entries, len: &mut self.len, range: *range, first: place & !mask, mask })
    }

    /// The most that an insert of this hash takes of the account.
    pub fn growth_bytes(&self, hash: u64) -> u64 {
        let entries = self.parts.part_of(hash).map(|part| &self.parts.all[part].entries);
        if entries.is_some_and(|entries| entries.len() < entries.capacity()) {
            return 0;
        }
        let len = entries.map_or(0, HashTable::len);
        let tables =
            size_of_val(&*self.parts.directory) + self.parts.all.len() * size_of::<Part<T>>();
        // A split may leave all in one half, which is split again, with as many parts as there were.
        table_bytes::<T>(4 * len.max(2)) + 4 * rounded(tables) as u64 + 256
    }

    /// Removes the entry with this hash that `is` it.
    pub fn remove(&mut self, hash: u64, is: impl FnMut(&T) -> bool) -> Option<T> {
        let part = self.parts.part_of(hash)?;
        let entry = self.parts.all[part].entries.find_entry(spread(hash), is).ok()?;
        self.len -= 1;
        Some(entry.remove().0)
    }

    /// The entry in a bucket, to be changed.
    pub fn get_bucket_mut(&mut self, bucket: usize) -> Option<&mut T> {
        let (part, place) = part_and_place(bucket);
        self.parts.all.get_mut(part)?.entries.get_bucket_mut(place)
    }

    /// The hashes of entries from `place` to `last`, those of the part at `place`, sorted; and where
    /// the next part begins, if that is not after `last`. What the hashes take, the caller books: see
    /// [`hashes_bytes`](SplitTable::hashes_bytes).
    pub fn hashes_at(
        &self,
        place: u64,
        last: u64,
        hash_of: impl Fn(&T) -> u64,
    ) -> (Vec<u64>, Option<u64>) {
        let (entries, next) = self.parts.table_at(place);
        let mut hashes = Vec::with_capacity(entries.map_or(0, HashTable::len));
        let is_asked = |hash: &u64| (place..=last).contains(&self.parts.range.place(*hash));
        hashes.extend(entries.into_iter().flatten().map(hash_of).filter(is_asked));
        hashes.sort_unstable();
        (hashes, next.filter(|next| *next <= last))
    }

    /// Bytes of the hashes of the part at `place`.
    pub fn hashes_bytes(&self, place: u64) -> u64 {
        let entries = self.parts.table_at(place).0;
        rounded(entries.map_or(0, HashTable::len) * size_of::<u64>()) as u64
    }

    /// The entries with this hash.
    pub fn of_hash<'a>(
        &'a self,
        hash: u64,
        hash_of: impl Fn(&T) -> u64 + 'a,
    ) -> impl Iterator<Item = &'a T> {
        let part = self.parts.part_of(hash).map(|part| &self.parts.all[part].entries);
        let alike = part.into_iter().flat_map(move |part| part.iter_hash(spread(hash)));
        alike.filter(move |entry| hash_of(entry) == hash)
    }

    /// Takes some part out, in no order; `None` if the table is empty. For purging in steps: the
    /// table can only be taken apart further.
    pub fn take_part(&mut self) -> Option<impl ExactSizeIterator<Item = T> + use<T>> {
        self.parts.directory = Vec::new();
        let part = self.parts.all.pop()?;
        if self.parts.all.is_empty() {
            self.parts.all = Vec::new();
        }
        self.len -= part.entries.len() as u64;
        let freed = rounded(part.entries.allocation_size()) as u64;
        self.book(self.booked - freed.min(self.booked));
        if self.parts.all.is_empty() {
            self.book(0);
        }
        Some(part.entries.into_iter())
    }

    /// Takes all entries out, as a table that is only read and can go to another thread. What was
    /// booked for it stays booked, and is the caller's to release: see
    /// [`FrozenTable::memory_bytes`]. Cost: O(1).
    pub fn freeze(&mut self) -> FrozenTable<T> {
        let empty = Parts::new(self.parts.range);
        let parts = std::mem::replace(&mut self.parts, empty);
        FrozenTable::new(parts, std::mem::take(&mut self.len), std::mem::take(&mut self.booked))
    }

    /// The part for an insert, which has room then.
    ///
    /// # Errors
    /// As for [`insert`](SplitTable::insert).
    #[inline]
    fn make_room(&mut self, hash: u64, hash_of: HashOf<T>) -> Result<usize> {
        loop {
            let Some(part) = self.parts.part_of(hash) else {
                self.begin()?;
                continue;
            };
            let Part { entries, depth } = &self.parts.all[part];
            if entries.len() < entries.capacity() {
                return Ok(part);
            }
            let directory_max = (DIRECTORY_SHARE * self.parts.all.len()) << self.alike;
            let is_deep = *depth == self.parts.depth && self.parts.directory.len() >= directory_max;
            if entries.len() < PART_ENTRIES_MAX || is_deep {
                self.grow(part, hash_of)?;
                return Ok(part);
            }
            self.split(part, hash, hash_of)?;
        }
    }

    #[cold]
    fn begin(&mut self) -> Result<()> {
        self.account.ensure(256, "a hash table")?;
        self.parts.directory = vec![0];
        self.parts.all = vec![Part { depth: 0, entries: HashTable::new() }];
        self.parts.depth = 0;
        self.book_tables(0);
        Ok(())
    }

    /// Moves a part to a table twice as large, or as large if it only has traces of what was
    /// removed.
    #[cold]
    fn grow(&mut self, part: usize, hash_of: HashOf<T>) -> Result<()> {
        let entries = &mut self.parts.all[part].entries;
        let wanted = match entries.len() {
            len if len < PART_ENTRIES_MAX => (2 * len).clamp(3, PART_ENTRIES_MAX),
            len => 2 * len,
        };
        let before = rounded(entries.allocation_size()) as u64;
        self.account.ensure(table_bytes::<T>(wanted * 8 / 7), "a hash table")?;
        let mut grown = HashTable::with_capacity(wanted);
        for from in 0..entries.num_buckets() {
            let Ok(entry) = entries.get_bucket_entry(from) else { continue };
            let entry = entry.remove().0;
            add(&mut grown, hash_of(&entry), entry, hash_of);
        }
        *entries = grown;
        let after = rounded(entries.allocation_size()) as u64;
        self.book(self.booked - before + after);
        Ok(())
    }

    /// Splits a full part by the next bit.
    #[cold]
    fn split(&mut self, part: usize, hash: u64, hash_of: HashOf<T>) -> Result<()> {
        let depth = self.parts.all[part].depth + 1;
        let directory = if depth > self.parts.depth { self.parts.directory.len() * 8 } else { 0 };
        let parts = if self.parts.all.len() == self.parts.all.capacity() {
            2 * self.parts.all.len() * size_of::<Part<T>>()
        } else {
            0
        };
        let needed = table_bytes::<T>(PART_ENTRIES_MAX * 8 / 7)
            + rounded(directory) as u64
            + rounded(parts) as u64;
        self.account.ensure(needed, "a hash table")?;
        let tables = self.tables_bytes();
        if depth > self.parts.depth {
            self.parts.directory = doubled(&self.parts.directory);
            self.parts.depth = depth;
        }
        let bit = 1 << (64 - depth);
        let range = self.parts.range;
        let mut upper = HashTable::with_capacity(PART_ENTRIES_MAX);
        let new = self.parts.all.len() as u32;
        let lower = &mut self.parts.all[part];
        lower.depth = depth;
        for from in 0..lower.entries.num_buckets() {
            let Ok(entry) = lower.entries.get_bucket_entry(from) else { continue };
            let hash = hash_of(entry.get());
            if range.place(hash) & bit != 0 {
                add(&mut upper, hash, entry.remove().0, hash_of);
            }
        }
        let added = rounded(upper.allocation_size()) as u64;
        self.parts.all.push(Part { depth, entries: upper });
        let longer = self.parts.depth - depth;
        lead(&mut self.parts.directory, range.place(hash) >> (64 - depth) | 1, longer, new);
        self.book(self.booked + added);
        self.book_tables(tables);
        Ok(())
    }

    fn tables_bytes(&self) -> u64 {
        let directory = self.parts.directory.capacity() * size_of::<u32>();
        let parts = self.parts.all.capacity() * size_of::<Part<T>>();
        (rounded(directory) + rounded(parts)) as u64
    }

    fn book_tables(&mut self, before: u64) {
        self.book(self.booked - before + self.tables_bytes());
    }

    fn book(&mut self, bytes: u64) {
        self.account.adjust(MemoryKind::Index, self.booked, bytes);
        self.booked = bytes;
    }
}

/// One part of a table, where keys may be added as long as it need not grow.
pub struct PartMut<'a, T> {
    entries: &'a mut HashTable<T>,
    len: &'a mut u64,
    range: HashRange,
    first: u64,
    /// The bits in which its places differ.
    mask: u64,
}

impl<T> PartMut<'_, T> {
    /// Whether keys with this hash stand here.
    #[inline(always)]
    pub fn has(&self, hash: u64) -> bool {
        self.range.place(hash) & !self.mask == self.first
    }

    /// The entry with this hash that `is` it.
    #[inline(always)]
    pub fn find_mut(&mut self, hash: u64, is: impl FnMut(&T) -> bool) -> Option<&mut T> {
        self.entries.find_mut(spread(hash), is)
    }

    /// [`SplitTable::find_or_add`] of a hash that it has.
    #[inline]
    pub fn find_or_add(
        &mut self,
        hash: u64,
        is: impl FnMut(&T) -> bool,
        hash_of: HashOf<T>,
        make: impl FnOnce() -> T,
    ) -> Option<&mut T> {
        find_or_add((self.entries, self.len), hash, is, hash_of, make)
    }
}

#[inline(always)]
fn find_or_add<'a, T>(
    (entries, len): (&'a mut HashTable<T>, &mut u64),
    hash: u64,
    is: impl FnMut(&T) -> bool,
    hash_of: HashOf<T>,
    make: impl FnOnce() -> T,
) -> Option<&'a mut T> {
    if entries.len() == entries.capacity() {
        return entries.find_mut(spread(hash), is);
    }
    match entries.entry(spread(hash), is, move |entry| spread(hash_of(entry))) {
        Entry::Occupied(entry) => Some(entry.into_mut()),
        Entry::Vacant(place) => {
            let entry = place.insert(make());
            *len += 1;
            Some(entry.into_mut())
        }
    }
}

/// It is read as its parts are.
impl<T> Deref for SplitTable<T> {
    type Target = Parts<T>;

    #[inline(always)]
    fn deref(&self) -> &Parts<T> {
        &self.parts
    }
}

impl<T> Drop for SplitTable<T> {
    fn drop(&mut self) {
        self.book(0);
    }
}

/// A directory of one bit more.
fn doubled(directory: &[u32]) -> Vec<u32> {
    directory.iter().flat_map(|part| [*part, *part]).collect()
}

/// Has a directory whose prefixes are `longer` bits longer than this one lead to a part.
fn lead(directory: &mut [u32], prefix: u64, longer: u32, part: u32) {
    let first = (prefix << longer) as usize;
    directory[first..first + (1 << longer)].fill(part);
}

/// The hash for the tables of parts, which look at its highest and lowest bits: not those that all
/// entries of a part share.
#[inline(always)]
pub(crate) fn spread(hash: u64) -> u64 {
    hash.rotate_left(32)
}

/// Adds an entry to a part. In one place: what a hash table does to grow is compiled once for each.
#[inline]
fn add<T>(part: &mut HashTable<T>, hash: u64, entry: T, hash_of: HashOf<T>) -> &mut T {
    part.insert_unique(spread(hash), entry, move |entry| spread(hash_of(entry))).into_mut()
}

/// Bytes of a hash table of so many buckets, or the next power of two, at most.
fn table_bytes<T>(buckets: usize) -> u64 {
    rounded(buckets.next_power_of_two().max(16) * (size_of::<T>() + 1) + 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use alluvium_pagestore::{KeyGroup, KeyHash, hash_word};
    use std::collections::BTreeMap;

    fn table(limit: u64, owned: Range<u16>) -> SplitTable<(u64, u64)> {
        SplitTable::new(Account::root(limit), HashRange::of(&owned, 256))
    }

    fn hash_of(entry: &(u64, u64)) -> u64 {
        entry.0.key_hash()
    }

    /// Keys of the given groups.
    fn keys(owned: Range<u16>) -> impl Iterator<Item = u64> {
        (0..).filter(move |key: &u64| owned.contains(&KeyGroup::of(key.key_hash(), 256).0))
    }

    #[test]
    fn a_walk_sees_all_entries_in_the_order_of_their_hashes() {
        for owned in [0..256, 128..256, 7..8, 85..171] {
            let mut table = table(1 << 30, owned.clone());
            let keys: Vec<u64> = keys(owned).take(5_000).collect();
            for key in &keys {
                table.insert(hash_of(&(*key, 0)), hash_of, || (*key, *key)).unwrap();
            }
            let (mut place, mut seen, mut last) = (Some(0), Vec::new(), 0);
            while let Some(at) = place {
                let (entries, next) = table.part_at(at);
                let part: Vec<_> = entries.copied().collect();
                assert!(part.len() <= PART_ENTRIES_MAX);
                for entry in &part {
                    let here = table.parts.range.place(hash_of(entry));
                    assert!(here >= last && here >= at && next.is_none_or(|next| here < next));
                }
                last = at;
                seen.extend(part.iter().map(|entry| entry.0));
                place = next;
            }
            seen.sort_unstable();
            assert_eq!(seen, keys);
        }
    }

    #[test]
    fn finds_and_removes_what_a_map_does_and_books_what_it_takes() {
        let mut table = table(1 << 30, 0..256);
        let mut model = BTreeMap::new();
        for step in 0..40_000u64 {
            let key = hash_word(step) % 3_000;
            let hash = key.key_hash();
            if step % 3 == 0 {
                assert_eq!(
                    table.remove(hash, |e| e.0 == key),
                    model.remove(&key).map(|v| (key, v))
                );
            } else if let Some(entry) = table.find_mut(hash, |e| e.0 == key) {
                entry.1 += 1;
                *model.get_mut(&key).unwrap() += 1;
            } else {
                assert_eq!(model.insert(key, step), None);
                table.insert(hash, hash_of, || (key, step)).unwrap();
            }
            assert_eq!(table.find(hash, |e| e.0 == key).map(|e| e.1), model.get(&key).copied());
        }
        assert_eq!(table.len(), model.len() as u64);
        let account = table.account.clone();
        let parts: u64 =
            table.parts.all.iter().map(|p| rounded(p.entries.allocation_size()) as u64).sum();
        assert_eq!(account.used(), parts + table.tables_bytes());
        let mut left = table.len();
        while let Some(part) = table.take_part() {
            left -= part.count() as u64;
        }
        assert_eq!((left, account.used()), (0, 0));
        assert_eq!(table.find(hash_word(1), |_| true), None);
    }

    #[test]
    fn entries_that_agree_in_all_bits_share_a_part() {
        let mut table = table(1 << 30, 0..256);
        for n in 0..500 {
            table.insert(42, |_| 42, || (n, n)).unwrap();
        }
        let (mut place, mut parts) = (Some(0), Vec::new());
        while let Some(at) = place {
            let (entries, next) = table.part_at(at);
            parts.push(entries.count());
            place = next;
        }
        assert_eq!(parts.iter().sum::<usize>(), 500);
        assert_eq!(parts.iter().max(), Some(&500));
        assert!(table.parts.directory.len() <= 2 * DIRECTORY_SHARE * parts.len());
    }

    #[test]
    fn what_does_not_fit_is_refused_and_changes_nothing() {
        let mut table = table(20_000, 0..256);
        let mut key = 0u64;
        let error = loop {
            match table.insert(key.key_hash(), hash_of, || (key, key)) {
                Ok(_) => key += 1,
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), alluvium_pagestore::ErrorKind::OverBudget);
        assert_eq!(table.len(), key);
        assert!((0..key).all(|key| table.find(key.key_hash(), |e| e.0 == key).is_some()));
        assert!(table.account.used() <= 20_000);
    }
}
