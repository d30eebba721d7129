//! A table of native entries of one type: a thin shell around a [`RawTable`] whose records never leave it.
//!
//! It carries what layouts keep in memory beside their records: lists, keys of slices, accumulators of slices, notes of
//! checkpoints. A look-up is typed and inlined; growing, splitting and dropping are the raw table's, compiled once.
//!
//! A *part* is what the table has at one prefix of the hash: a block of at most [`PART_ENTRIES_MAX`] entries, and others
//! behind it if too many hashes agree. A walk goes from part to part in the order of hashes. Its place is a hash: it
//! stays valid whatever is inserted, removed or split meanwhile, and places of two tables can be compared.
//!
//! Why it is sound: `new` makes the raw table for entries `T`, and only this file adds entries to it. A raw table that
//! is detached has no account, so it may go to other threads if its entries may.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, RangeInclusive};
use std::ptr::NonNull;
use std::rc::Rc;

use alluvium_pagestore::{Account, Key, Result};

use super::entry_part_unsafe::{EntryPart, IterMut, TakenPart};
use super::group_unsafe::{BlockPointer, entries_max};
use super::hash_range::HashRange;
use super::raw_table_unsafe::RawTable;
use crate::support::record_type_unsafe::{NativeEntry, RecordType};

/// Groups of a block: a walk reads a block at a time.
pub(super) const GROUPS_MAX: usize = 8;
/// Most entries of a part, unless too many hashes agree.
pub(crate) const PART_ENTRIES_MAX: usize = entries_max(GROUPS_MAX);
/// An entry that is found by a key inside.
pub(crate) trait KeyedEntry: 'static {
    /// Returns the hash of the key.
    fn hash_of_key(&self) -> u64;
}

impl<K: Key, V: 'static> KeyedEntry for (K, V) {
    #[inline(always)]
    fn hash_of_key(&self) -> u64 {
        self.0.key_hash()
    }
}

/// The table. Callers give the hash with every call.
#[repr(transparent)]
pub(crate) struct EntryTable<T> {
    table: RawTable,
    entries: PhantomData<T>,
}

impl<T> fmt::Debug for EntryTable<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EntryTable({} entries)", self.len())
    }
}

/// What does not depend on the types.
impl<T> Deref for EntryTable<T> {
    type Target = RawTable;

    #[inline(always)]
    fn deref(&self) -> &RawTable {
        &self.table
    }
}

/// An entry as a raw table sees it.
pub(super) type RawEntry<T> = NativeEntry<T, ()>;

impl<T: KeyedEntry> EntryTable<T> {
    /// Makes an empty table, which takes no memory.
    pub fn new(account: Rc<Account>, range: HashRange) -> Self {
        let table = RawTable::new(RecordType::entry::<T>(), account, range);
        Self { table: table.with_groups_max(GROUPS_MAX), entries: PhantomData }
    }

    /// Makes an empty table, whose entries may all be of one of `groups` key groups, if that is given.
    pub fn maybe_few_of(account: Rc<Account>, range: HashRange, groups: Option<u16>) -> Self {
        let table = Self::new(account, range).table.expect_few_of(groups.unwrap_or(1));
        Self { table, entries: PhantomData }
    }
}

// SAFETY: in all of these the table is one of entries `T`, as said above.
impl<T> EntryTable<T> {
    /// Looks at a raw table as at one of entries `T`.
    ///
    /// # Safety
    /// Its records are `T`, in blocks of [`GROUPS_MAX`] groups at most, and nobody reads their bits.
    #[inline(always)]
    // SAFETY: the types are the caller's promise.
    pub(super) unsafe fn view(table: &RawTable) -> &Self {
        // SAFETY: it is a raw table and nothing else.
        unsafe { &*std::ptr::from_ref(table).cast() }
    }

    /// Does so for a change.
    ///
    /// # Safety
    /// As for [`view`](Self::view).
    #[inline(always)]
    // SAFETY: the types are the caller's promise.
    pub(super) unsafe fn view_mut(table: &mut RawTable) -> &mut Self {
        // SAFETY: as above.
        unsafe { &mut *std::ptr::from_mut(table).cast() }
    }

    /// Finds the entry with this hash that `is` it.
    #[inline(always)]
    pub fn find(&self, hash: u64, is: impl FnMut(&T) -> bool) -> Option<&T> {
        // SAFETY: as said above; the entry stays while `self` is borrowed.
        self.at(hash, is).map(|entry| unsafe { entry.as_ref() })
    }

    /// Finds the entry with this hash that `is` it, to be changed. Its hash stays the same.
    #[inline(always)]
    pub fn find_mut(&mut self, hash: u64, is: impl FnMut(&T) -> bool) -> Option<&mut T> {
        // SAFETY: as said above; the entry stays while `self` is borrowed, and nobody else has a reference to it.
        self.at(hash, is).map(|mut entry| unsafe { entry.as_mut() })
    }

    #[inline(always)]
    fn at(&self, hash: u64, mut is: impl FnMut(&T) -> bool) -> Option<NonNull<T>> {
        // SAFETY: as said above; a record has its entry at the front.
        let found = unsafe { self.table.probe(hash, |record: &RawEntry<T>| is(&record.key)) };
        found.map(|found| found.entry.cast())
    }

    /// Prefetches the entry that a look-up of a hash compares first.
    #[inline]
    pub fn look_ahead(&self, hash: u64) {
        // SAFETY: as said above.
        unsafe { self.table.look_ahead_native::<T, ()>(hash, false) };
    }

    /// Adds an entry that is not there yet and returns it.
    ///
    /// # Errors
    /// [`ErrorKind::OverBudget`](alluvium_pagestore::ErrorKind::OverBudget) if the table cannot grow; `make` was not
    /// called then.
    #[inline]
    pub fn insert(&mut self, hash: u64, make: impl FnOnce() -> T) -> Result<&mut T> {
        self.table.make_room(hash)?;
        let (_, block) = self.table.first_block(hash).expect("room was made");
        let slot = self.table.empty_slot(block, hash);
        Ok(self.add_at(block, slot, hash, make))
    }

    /// Finds the entry that `is` it, or else adds what `make` returns. Returns `None` if it is not there, and adding it
    /// takes memory.
    #[inline(always)]
    pub fn find_or_add(
        &mut self,
        hash: u64,
        is: impl FnMut(&T) -> bool,
        make: impl FnOnce() -> T,
    ) -> Option<&mut T> {
        let block = self.table.first_block_ahead::<T, ()>(hash)?;
        self.find_or_add_in(block, hash, is, make)
    }

    /// Does so from the first block at the index of the hash on.
    #[inline(always)]
    fn find_or_add_in(
        &mut self,
        block: (usize, BlockPointer),
        hash: u64,
        mut is: impl FnMut(&T) -> bool,
        make: impl FnOnce() -> T,
    ) -> Option<&mut T> {
        let is = |record: &RawEntry<T>| is(&record.key);
        // SAFETY: as said above; the block is the one of the hash, and nobody else has a reference to the entry.
        if let Some(found) = unsafe { self.table.probe_in(block, hash, is) } {
            // SAFETY: as above.
            return Some(unsafe { found.entry.cast::<T>().as_mut() });
        }
        let slot = self.table.empty_slot(block.1, hash);
        let has_room = slot.is_some() || self.table.has_room(hash);
        has_room.then(|| self.add_at(block.1, slot, hash, make))
    }

    /// Adds an entry to a slot, or if none is given, to any for which there is room.
    #[inline(always)]
    fn add_at(
        &mut self,
        block: BlockPointer,
        slot: Option<usize>,
        hash: u64,
        make: impl FnOnce() -> T,
    ) -> &mut T {
        // Before a slot is taken: it may panic.
        let entry = make();
        // SAFETY: as said above; the block is the one of the hash, and the entry is written at once. Nobody reads bits of
        // this table.
        unsafe {
            let mut at: NonNull<T> = match slot {
                Some(slot) => self.table.claim_empty::<T, ()>((block, slot), hash).cast(),
                None => self.table.claim(hash).0.cast(),
            };
            at.write(entry);
            at.as_mut()
        }
    }

    /// Removes the entry with this hash that `is` it.
    pub fn remove(&mut self, hash: u64, mut is: impl FnMut(&T) -> bool) -> Option<T> {
        // SAFETY: as said above; the entry is read at once, and is the table's no more.
        unsafe {
            let found = self.table.probe(hash, |record: &RawEntry<T>| is(&record.key))?;
            let (entry, _) = self.table.remove(found.spot(), hash)?;
            Some(entry.cast::<T>().read())
        }
    }

    /// Iterates over the entries with this hash. Cost: a look-up, and an indirect call per entry.
    pub fn of_hash(&self, hash: u64) -> impl Iterator<Item = &T> {
        self.of_hash_from(hash, 0).map(|(_, entry)| entry)
    }

    /// Does so from a window on, whose number was told with an entry. It has the same entries as long as none
    /// [moves](RawTable::moves) and those with this hash stay. Cost: also a hop per block before it.
    pub fn of_hash_from(&self, hash: u64, window: usize) -> impl Iterator<Item = (usize, &T)> {
        let alike = self.table.alike_from(hash, window);
        let alike = alike.filter(move |(_, record)| record.hash() == hash);
        // SAFETY: as said above; the entry stays while `self` is borrowed.
        alike.map(|(window, record)| (window, unsafe { &*record.as_ptr().cast() }))
    }

    /// Returns the part at `place`, and where the next one begins: `None` after the last. A walk begins at 0.
    #[inline]
    pub fn part_at(&self, place: u64) -> (EntryPart<'_, T>, Option<u64>) {
        let (index, next) = self.table.part_at(place);
        (EntryPart::new(&self.table, index), next)
    }

    /// Returns the entries of the part at `place`, to be changed, and where the next part begins. Their hashes stay the
    /// same.
    pub fn part_at_mut(&mut self, place: u64) -> (IterMut<'_, T>, Option<u64>) {
        let (index, next) = self.table.part_at(place);
        (IterMut::new(&mut self.table, index), next)
    }

    /// Prefetches the part at `place`. Cost: a prefetch for each cache line of its first block, 64 at most.
    #[inline]
    pub fn fetch_part(&self, place: u64) {
        self.part_at(place).0.fetch();
    }

    /// Iterates over the parts that have any of `places`, in order.
    pub fn spans(&self, places: RangeInclusive<u64>) -> impl Iterator<Item = PartSpan<'_, T>> {
        let (first, last) = places.into_inner();
        let mut next = Some(first);
        std::iter::from_fn(move || {
            let place = next.filter(|place| *place <= last)?;
            let (part, end) = self.part_at(place);
            next = end;
            let (first, last) = part.places(place)?;
            Some(PartSpan { part, first, last })
        })
    }

    /// Returns the part with this hash, for several calls, and prefetches it.
    #[inline]
    pub fn part_mut(&mut self, hash: u64) -> Option<PartMut<'_, T>> {
        let place = self.table.range().place(hash);
        let part = self.part_at(place).0;
        part.fetch();
        let ((first, last), block) = (part.places(place)?, part.first_block()?);
        Some(PartMut { table: self, block, first, last })
    }

    /// Takes some part out, in no order; `None` if the table is empty. Cost: O(1), and what the caller does with the
    /// entries. Until all parts were taken, the table can only be taken apart further.
    pub fn take_part(&mut self) -> Option<TakenPart<'_, T>> {
        TakenPart::of(&mut self.table)
    }

    /// Takes all entries out, as a table that is only read and may go to another thread. Its memory stays booked, and is
    /// the caller's to release: see [`memory_bytes`](RawTable::memory_bytes). Cost: O(1).
    pub fn freeze(&mut self) -> FrozenTable<T> {
        FrozenTable(Self { table: self.table.detach(), entries: PhantomData })
    }
}

/// A part, and the first and the last of its places.
#[derive(Debug)]
pub(crate) struct PartSpan<'a, T> {
    pub part: EntryPart<'a, T>,
    pub first: u64,
    pub last: u64,
}

/// One part of a table, to which keys may be added as long as it need not grow.
pub(crate) struct PartMut<'a, T> {
    table: &'a mut EntryTable<T>,
    /// Index in the directory, and the first block there.
    block: (usize, BlockPointer),
    first: u64,
    last: u64,
}

impl<T> PartMut<'_, T> {
    /// Returns whether keys with this hash stand here.
    #[inline(always)]
    pub fn has(&self, hash: u64) -> bool {
        let place = self.table.table.range().place(hash);
        self.first <= place && place <= self.last
    }

    /// Finds the entry with this hash, which stands here, that `is` it.
    #[inline(always)]
    pub fn find_mut(&mut self, hash: u64, mut is: impl FnMut(&T) -> bool) -> Option<&mut T> {
        debug_assert!(self.has(hash), "a hash of another part");
        let is = |record: &RawEntry<T>| is(&record.key);
        // SAFETY: the table is one of entries `T`, as said above, and the block is there, as no block is made meanwhile.
        // Nobody else has a reference to the entry.
        unsafe {
            let found = self.table.table.probe_in(self.block, hash, is)?;
            Some(found.entry.cast::<T>().as_mut())
        }
    }

    /// Does what [`EntryTable::find_or_add`] does, with a hash that stands here.
    #[inline]
    pub fn find_or_add(
        &mut self,
        hash: u64,
        is: impl FnMut(&T) -> bool,
        make: impl FnOnce() -> T,
    ) -> Option<&mut T> {
        debug_assert!(self.has(hash), "a hash of another part");
        self.table.find_or_add_in(self.block, hash, is, make)
    }
}

/// A table that is only read, and may go to other threads. What was booked for it
/// [stays booked](RawTable::memory_bytes): its owner gives it back.
#[derive(Debug)]
pub(crate) struct FrozenTable<T>(EntryTable<T>);

// SAFETY: the raw table was detached: it has no account. Entries go along.
unsafe impl<T: Send> Send for FrozenTable<T> {}
// SAFETY: shared access only reads entries.
unsafe impl<T: Sync> Sync for FrozenTable<T> {}

impl<T> Deref for FrozenTable<T> {
    type Target = EntryTable<T>;

    #[inline(always)]
    fn deref(&self) -> &EntryTable<T> {
        &self.0
    }
}

#[cfg(test)]
#[path = "entry_table_tests.rs"]
mod tests;
