//! A part of an [entry table](super::entry_table_unsafe), to be read, changed or taken out.
//!
//! Why it is sound: a part is made of a raw table of entries `T` and of a prefix that has blocks there. It borrows the
//! table: no block moves or goes meanwhile. A slot with a tag has an entry.

use std::alloc::Layout;
use std::fmt;
use std::iter::FusedIterator;
use std::marker::PhantomData;
use std::ptr::NonNull;

use super::entry_table_unsafe::RawEntry;
use super::group_unsafe::{BlockPointer, BlockShape, SLOTS};
use super::raw_table_unsafe::{EntryPosition, RawTable};
use crate::support::first_panic::FirstPanic;
use crate::support::prefetch_unsafe::prefetch;

/// Bytes of a cache line.
const LINE: usize = 64;
/// Cache lines of entries that are fetched at most.
const FETCHED_LINES: usize = 61;

/// A part, or none of an empty table.
pub(crate) struct EntryPart<'a, T> {
    table: &'a RawTable,
    index: Option<usize>,
    entries: PhantomData<&'a T>,
}

impl<T> Clone for EntryPart<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for EntryPart<'_, T> {}

impl<T> fmt::Debug for EntryPart<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EntryPart({} entries)", self.len())
    }
}

impl<'a, T> EntryPart<'a, T> {
    /// Of a table of entries `T`.
    pub(super) fn new(table: &'a RawTable, index: Option<usize>) -> Self {
        Self { table, index, entries: PhantomData }
    }

    /// Returns the number of entries.
    #[inline]
    pub fn len(self) -> usize {
        self.index.map_or(0, |index| self.table.len_at(index))
    }

    /// Returns the number of slots, which are numbered from 0.
    pub fn slots(self) -> usize {
        self.index.map_or(0, |index| self.table.groups_at(index) * SLOTS)
    }

    /// Returns the entry of a slot.
    pub fn get(self, slot: usize) -> Option<&'a T> {
        let spot = EntryPosition::new(self.index?, slot / SLOTS, slot % SLOTS);
        // SAFETY: as said above; the entry stays while the table is borrowed.
        self.table.entry(spot).map(|record| unsafe { &*record.as_ptr().cast() })
    }

    /// Iterates over the entries, in the order of slots.
    #[inline]
    pub fn iter(self) -> EntryIter<'a, T> {
        EntryIter { slots: FullSlots::of(self.table, self.index), entries: PhantomData }
    }

    /// Returns the index of the part in the directory, and its first block.
    #[inline]
    pub(super) fn first_block(self) -> Option<(usize, BlockPointer)> {
        self.index.map(|index| (index, self.table.block_at(index)))
    }

    /// Returns the first and the last place of the part at `place`.
    #[inline]
    pub(super) fn places(self, place: u64) -> Option<(u64, u64)> {
        let depth = self.table.depth_at(self.index?);
        let mask = u64::MAX.unbounded_shr(depth);
        Some((place & !mask, place | mask))
    }

    /// Prefetches the first block.
    #[inline]
    pub(super) fn fetch(self) {
        let Some(index) = self.index else { return };
        let head = self.table.block_at(index).as_ptr();
        let bytes = self.table.groups() * SLOTS * FullSlots::<T>::SHAPE.size();
        let lines = bytes.div_ceil(LINE).min(FETCHED_LINES);
        // Entries are before the head, tags behind it.
        (0..3).for_each(|line| prefetch(head.wrapping_add(line * LINE)));
        (1..=lines).for_each(|line| prefetch(head.wrapping_sub(line * LINE)));
    }
}

impl<'a, T> IntoIterator for EntryPart<'a, T> {
    type Item = &'a T;
    type IntoIter = EntryIter<'a, T>;

    fn into_iter(self) -> EntryIter<'a, T> {
        self.iter()
    }
}

/// The slots of a chain of blocks that have entries.
struct FullSlots<T> {
    /// The block of which slots are left, or the last.
    block: Option<BlockPointer>,
    groups: usize,
    /// The next group of the block.
    group: usize,
    /// Slots of the group before that are left.
    left: u16,
    entries: PhantomData<fn() -> T>,
}

impl<T> Clone for FullSlots<T> {
    #[inline]
    fn clone(&self) -> Self {
        Self { ..*self }
    }
}

impl<T> FullSlots<T> {
    const SHAPE: BlockShape = BlockShape::of(Layout::new::<RawEntry<T>>());

    #[inline]
    fn of(table: &RawTable, index: Option<usize>) -> Self {
        let block = index.map(|index| table.block_at(index));
        Self { block, groups: table.groups(), group: 0, left: 0, entries: PhantomData }
    }

    /// Returns the next entry.
    ///
    /// # Safety
    /// The blocks are there, with entries `T`.
    #[inline(always)]
    // SAFETY: the blocks are the caller's promise.
    unsafe fn next(&mut self) -> Option<NonNull<T>> {
        let mut block = self.block?;
        while self.left == 0 {
            if self.group == self.groups {
                // SAFETY: as said above.
                self.block = unsafe { block.head() }.next;
                (block, self.group) = (self.block?, 0);
            }
            // SAFETY: as said above; the group is one of the block.
            self.left = unsafe { block.occupied(self.group) };
            self.group += 1;
        }
        let slot = (self.group - 1) * SLOTS + self.left.trailing_zeros() as usize;
        self.left &= self.left - 1;
        // SAFETY: as said above.
        Some(unsafe { block.entry(const { Self::SHAPE }, slot) }.cast())
    }

    /// Counts the entries that are left.
    ///
    /// # Safety
    /// The blocks are there.
    // SAFETY: the blocks are the caller's promise.
    unsafe fn count(&self) -> usize {
        let (mut next, mut from, mut count) = (self.block, self.group, self.left.count_ones());
        while let Some(block) = next {
            // SAFETY: as said above.
            unsafe {
                count += (from..self.groups)
                    .map(|group| block.occupied(group).count_ones())
                    .sum::<u32>();
                (next, from) = (block.head().next, 0);
            }
        }
        count as usize
    }
}

/// Iterates over the entries of a part.
pub(crate) struct EntryIter<'a, T> {
    slots: FullSlots<T>,
    entries: PhantomData<&'a T>,
}

impl<T> Clone for EntryIter<'_, T> {
    #[inline]
    fn clone(&self) -> Self {
        Self { slots: self.slots.clone(), entries: PhantomData }
    }
}

impl<T> fmt::Debug for EntryIter<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EntryIter({} entries)", self.len())
    }
}

impl<'a, T> Iterator for EntryIter<'a, T> {
    type Item = &'a T;

    #[inline(always)]
    fn next(&mut self) -> Option<&'a T> {
        // SAFETY: as said above; the entry stays while the table is borrowed.
        unsafe { self.slots.next().map(|entry| entry.as_ref()) }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        // SAFETY: as said above.
        let len = unsafe { self.slots.count() };
        (len, Some(len))
    }
}

impl<T> ExactSizeIterator for EntryIter<'_, T> {}
impl<T> FusedIterator for EntryIter<'_, T> {}

/// Iterates over the entries of a part, to be changed.
pub(crate) struct IterMut<'a, T> {
    slots: FullSlots<T>,
    entries: PhantomData<&'a mut T>,
}

impl<'a, T> IterMut<'a, T> {
    /// Of a table of entries `T`.
    pub(super) fn new(table: &'a mut RawTable, index: Option<usize>) -> Self {
        Self { slots: FullSlots::of(table, index), entries: PhantomData }
    }
}

impl<'a, T> Iterator for IterMut<'a, T> {
    type Item = &'a mut T;

    fn next(&mut self) -> Option<&'a mut T> {
        // SAFETY: as said above; each entry comes once, and nobody else reaches the table.
        unsafe { self.slots.next().map(|mut entry| entry.as_mut()) }
    }
}

/// A part that was taken out of a table. What nobody takes is dropped with it, and then its memory is given back.
pub(crate) struct TakenPart<'a, T> {
    table: &'a mut RawTable,
    first: BlockPointer,
    slots: FullSlots<T>,
    entries: PhantomData<T>,
}

impl<'a, T> TakenPart<'a, T> {
    /// Of a table of entries `T`.
    pub(super) fn of(table: &'a mut RawTable) -> Option<Self> {
        let first = table.pop_chain()?;
        let (groups, block) = (table.groups(), Some(first));
        let slots = FullSlots { block, groups, group: 0, left: 0, entries: PhantomData };
        Some(Self { table, first, slots, entries: PhantomData })
    }
}

impl<T> Iterator for TakenPart<'_, T> {
    type Item = T;

    #[inline]
    fn next(&mut self) -> Option<T> {
        // SAFETY: the blocks are this part's, each entry comes once, and nobody looks at it again.
        unsafe { self.slots.next().map(|entry| entry.read()) }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        // SAFETY: the blocks are this part's.
        let len = unsafe { self.slots.count() };
        (len, Some(len))
    }
}

impl<T> ExactSizeIterator for TakenPart<'_, T> {}
impl<T> FusedIterator for TakenPart<'_, T> {}

impl<T> Drop for TakenPart<'_, T> {
    fn drop(&mut self) {
        let mut panic = FirstPanic::default();
        if std::mem::needs_drop::<T>() {
            for entry in self.by_ref() {
                panic.catch(|| drop(entry));
            }
        }
        self.table.free_chain(self.first);
        panic.resume();
    }
}
