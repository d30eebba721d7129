//! A table of records whose types are erased, for what layouts keep beside the heap's own: it is compiled once. Who
//! knows the types looks at it as at an [`EntryTable`] of native records.
//!
//! Why it is sound: all records are of the record type that the table was made with. A native view compares types
//! first, or leaves that to a caller who has done so. A table that is frozen has no account, so it may go to other
//! threads: [`RecordTable::new`] takes no volatile records.

use std::ops::Deref;
use std::ptr::NonNull;
use std::rc::Rc;

use alluvium_pagestore::{Account, Key, Result, State};

use super::entry_table_unsafe::{EntryTable, GROUPS_MAX};
use super::group_unsafe::SLOTS;
use super::hash_range::HashRange;
use super::raw_table_unsafe::{EntryPosition, RawTable};
use crate::support::first_panic::FirstPanic;
use crate::support::record_type_unsafe::{NativeEntry, RecordRef, RecordType};

/// Records of keys `K` and values `V`, as native entries.
pub(crate) type NativeTable<K, V> = EntryTable<NativeEntry<K, V>>;

/// The table.
pub(crate) struct RecordTable {
    table: RawTable,
}

impl std::fmt::Debug for RecordTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.table.fmt(f)
    }
}

/// What is not of records.
impl Deref for RecordTable {
    type Target = RawTable;

    #[inline(always)]
    fn deref(&self) -> &RawTable {
        &self.table
    }
}

impl RecordTable {
    /// Makes an empty table, which takes no memory.
    ///
    /// # Panics
    /// If records of this type are volatile.
    pub fn new(record_type: &'static RecordType, account: Rc<Account>, range: HashRange) -> Self {
        assert!(record_type.is_sendable(), "records that never leave their thread");
        let table = RawTable::new(record_type, account, range);
        Self { table: table.with_groups_max(GROUPS_MAX) }
    }

    /// Returns the table of native records.
    ///
    /// # Panics
    /// If they are of other types. Cost: a comparison of ids.
    #[inline]
    pub fn native<K: Key, V: State>(&self) -> &NativeTable<K, V> {
        assert!(self.record_type().is::<K, V>(), "a table of records of other types");
        // SAFETY: the types were compared.
        unsafe { self.native_unchecked() }
    }

    /// Does so for a caller who has compared the types before.
    ///
    /// # Safety
    /// The records are of these types.
    #[inline(always)]
    // SAFETY: the types are the caller's promise.
    pub unsafe fn native_unchecked<K: Key, V: State>(&self) -> &NativeTable<K, V> {
        // SAFETY: as said above.
        unsafe { EntryTable::view(&self.table) }
    }

    /// Does so for a change.
    ///
    /// # Safety
    /// The records are of these types.
    #[inline(always)]
    // SAFETY: the types are the caller's promise.
    pub unsafe fn native_mut_unchecked<K: Key, V: State>(&mut self) -> &mut NativeTable<K, V> {
        // SAFETY: as said above.
        unsafe { EntryTable::view_mut(&mut self.table) }
    }

    /// As [`RawTable::expect_few_of`].
    pub fn expect_few_of(self, groups: u16) -> Self {
        Self { table: self.table.expect_few_of(groups) }
    }

    /// As [`RawTable::expect_parts`].
    pub fn expect(&mut self, entries: u64) -> bool {
        self.table.expect_parts(entries)
    }

    /// As [`RawTable::expect_parts_in_order`].
    pub fn expect_in_order(&mut self, entries: u64) {
        self.table.expect_parts_in_order(entries);
    }

    /// Makes room for a record with this hash.
    ///
    /// # Errors
    /// [`ErrorKind::OverBudget`](alluvium_pagestore::ErrorKind::OverBudget) if the table cannot grow.
    pub fn make_room(&mut self, hash: u64) -> Result<()> {
        self.table.make_room(hash)
    }

    /// Finds the record with this hash that `is` it.
    pub fn find(
        &self,
        hash: u64,
        is: &mut dyn FnMut(RecordRef<'_>) -> bool,
    ) -> Option<RecordRef<'_>> {
        let spot = self.table.find(hash, is)?;
        self.table.entry(spot)
    }

    /// Returns the part at `place`, and where the next one begins: `None` after the last. A walk begins at 0.
    pub fn part_at(&self, place: u64) -> (RecordPart<'_>, Option<u64>) {
        let (index, next) = self.table.part_at(place);
        (RecordPart { table: &self.table, index }, next)
    }

    /// Adds a record that is not there yet, which `write` puts where it is told.
    ///
    /// # Safety
    /// `write` writes a record of the table's type with this hash, and does not panic.
    ///
    /// # Errors
    /// [`ErrorKind::OverBudget`](alluvium_pagestore::ErrorKind::OverBudget) if the table cannot grow; `write` was not
    /// called then.
    // SAFETY: the record is the caller's promise.
    pub unsafe fn insert(
        &mut self,
        hash: u64,
        write: impl FnOnce(*mut u8),
    ) -> Result<RecordRef<'_>> {
        self.table.make_room(hash)?;
        // SAFETY: the caller's promise.
        let (entry, spot) = unsafe { self.table.claim(hash) };
        write(entry.as_ptr());
        Ok(self.table.entry(spot).expect("it was written"))
    }

    /// Finds the memory of the record with this hash that `is` it.
    pub fn find_memory(
        &mut self,
        hash: u64,
        is: &mut dyn FnMut(RecordRef<'_>) -> bool,
    ) -> Option<NonNull<u8>> {
        let spot = self.table.find(hash, is)?;
        self.table.entry_mut(spot)
    }

    /// Removes the record with this hash that `is` it, and drops it. `gone` gets the heap that it owned, 0 if it panics while
    /// it is measured.
    ///
    /// # Panics
    /// If the record does while it is measured or dropped, after it is removed and `gone` was called.
    pub fn remove(
        &mut self,
        hash: u64,
        is: &mut dyn FnMut(RecordRef<'_>) -> bool,
        gone: impl FnOnce(u64),
    ) -> bool {
        let Some(spot): Option<EntryPosition> = self.table.find(hash, is) else { return false };
        let record = self.table.entry(spot).expect("found just now");
        let (mut panic, mut heap) = (FirstPanic::default(), 0);
        panic.catch(|| heap = record.heap_bytes());
        panic.catch(|| _ = self.table.drop_entry(spot, hash));
        gone(heap);
        panic.resume();
        true
    }

    /// Takes a part out and drops it, in no order. `gone` gets how many records it had, and the heap that they owned, but
    /// for those that panic while they are measured. Returns false if the table is empty. Until all parts were taken, the
    /// table can only be taken apart further.
    ///
    /// # Panics
    /// If a record does while it is measured or dropped, with the first panic, after all are dropped and `gone` was called.
    pub fn drop_part(&mut self, gone: impl FnOnce(usize, u64)) -> bool {
        let mut panic = FirstPanic::default();
        let dropped = self.table.drop_measured(&mut panic);
        if let Some((count, heap)) = dropped {
            gone(count, heap);
        }
        panic.resume();
        dropped.is_some()
    }

    /// Takes all records out, as a table that is only read and may go to another thread. Its memory stays booked, and is
    /// the caller's to release: see [`memory_bytes`](RawTable::memory_bytes). Cost: O(1).
    pub fn freeze(&mut self) -> FrozenRecords {
        FrozenRecords(Self { table: self.table.detach() })
    }
}

/// A table that is only read, and may go to other threads. What was booked for it
/// [stays booked](RawTable::memory_bytes): its owner gives it back.
#[derive(Debug)]
pub(crate) struct FrozenRecords(RecordTable);

// SAFETY: the raw table was detached, so it has no account. Its records are no volatile ones, so they are `Send`.
unsafe impl Send for FrozenRecords {}
// SAFETY: they are `Sync` too, and shared access only reads them.
unsafe impl Sync for FrozenRecords {}

impl Deref for FrozenRecords {
    type Target = RecordTable;

    #[inline(always)]
    fn deref(&self) -> &RecordTable {
        &self.0
    }
}

/// A part, or none of an empty table.
#[derive(Clone, Copy)]
pub(crate) struct RecordPart<'a> {
    table: &'a RawTable,
    index: Option<usize>,
}

impl<'a> RecordPart<'a> {
    /// Returns the number of records.
    pub fn len(self) -> usize {
        self.index.map_or(0, |index| self.table.len_at(index))
    }

    /// Iterates over the records, in no order.
    pub fn iter(self) -> impl Iterator<Item = RecordRef<'a>> {
        self.index.into_iter().flat_map(move |index| self.table.entries_at(index))
    }

    /// Iterates over the records with their slots, which are numbered from 0.
    pub fn numbered(self) -> impl Iterator<Item = (usize, RecordRef<'a>)> {
        let groups = self.index.map_or(0, |index| self.table.groups_at(index));
        (0..groups * SLOTS).filter_map(move |slot| Some((slot, self.get(slot)?)))
    }

    /// Returns the record of a slot.
    pub fn get(self, slot: usize) -> Option<RecordRef<'a>> {
        self.table.entry(EntryPosition::new(self.index?, slot / SLOTS, slot % SLOTS))
    }
}

#[cfg(test)]
#[path = "record_table_tests_unsafe.rs"]
mod tests;
