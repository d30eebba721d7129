//! The parts of a [`SplitTable`](super::SplitTable) and the directory that leads to them: all that
//! reads a table, also one that does not change any more.

use std::ops::{Deref, Range, RangeInclusive};

use hashbrown::HashTable;

use super::{HashRange, bucket_of, spread};
use crate::support::prefetch_unsafe::prefetch;

/// Bytes of a cache line.
const LINE: usize = 64;
/// Cache lines of a part that are fetched at most.
const FETCHED_LINES: usize = 61;

/// The entries of one prefix of the hash.
#[derive(Debug)]
pub(super) struct Part<T> {
    /// Bits of the prefix.
    pub depth: u32,
    pub entries: HashTable<T>,
}

/// All parts, and what leads to them: what a table is read as.
#[derive(Debug)]
pub struct Parts<T> {
    pub(super) range: HashRange,
    /// The part of each prefix of `depth` bits.
    pub(super) directory: Vec<u32>,
    pub(super) depth: u32,
    pub(super) all: Vec<Part<T>>,
}

/// A part, and the first and the last of its places.
#[derive(Debug)]
pub struct Span<'a, T> {
    pub entries: &'a HashTable<T>,
    pub first: u64,
    pub last: u64,
}

impl<T> Parts<T> {
    pub(super) fn new(range: HashRange) -> Self {
        Self { range, directory: Vec::new(), depth: 0, all: Vec::new() }
    }

    /// The number of the part with this hash.
    #[inline(always)]
    pub(super) fn part_of(&self, hash: u64) -> Option<usize> {
        self.number_at(self.range.place(hash))
    }

    #[inline(always)]
    fn number_at(&self, place: u64) -> Option<usize> {
        self.directory.get(prefix(place, self.depth)).map(|part| *part as usize)
    }

    /// The entry with this hash that `is` it.
    #[inline]
    pub fn find(&self, hash: u64, is: impl FnMut(&T) -> bool) -> Option<&T> {
        self.all[self.part_of(hash)?].entries.find(spread(hash), is)
    }

    /// The numbers of the buckets of the part at `place`, and the place after it, as
    /// [`part_at`](Parts::part_at).
    pub fn buckets_at(&self, place: u64) -> (Range<usize>, Option<u64>) {
        let Some(number) = self.number_at(place) else { return (0..0, None) };
        let (part, first) = (&self.all[number], bucket_of(number, 0));
        (first..first + part.entries.num_buckets(), end_of(place, part.depth))
    }

    /// The part at `place` and the place after it, as [`part_at`](Parts::part_at).
    pub fn table_at(&self, place: u64) -> (Option<&HashTable<T>>, Option<u64>) {
        match self.number_at(place) {
            Some(part) => {
                let part = &self.all[part];
                (Some(&part.entries), end_of(place, part.depth))
            }
            None => (None, None),
        }
    }

    /// Fetches the part at `place` into the cache. Cost: a prefetch for each cache line of it, 64 at most.
    #[inline]
    pub fn fetch_part(&self, place: u64) {
        let Some(part) = self.number_at(place) else { return };
        let entries = &self.all[part].entries;
        // Entries stand below each other in memory, what is known of each above the first.
        let Some(first) = entries.iter().next() else { return };
        let first = std::ptr::from_ref(first).cast::<u8>();
        let lines = (entries.num_buckets() * size_of::<T>()).div_ceil(LINE).min(FETCHED_LINES);
        (1..3).for_each(|line| prefetch(first.wrapping_add(line * LINE)));
        (0..=lines).for_each(|line| prefetch(first.wrapping_sub(line * LINE)));
    }

    /// The entries of the part at `place`, in no order, and the place after it; `None` after that
    /// is the end. A walk starts at 0.
    pub fn part_at(&self, place: u64) -> (impl Iterator<Item = &T>, Option<u64>) {
        let (entries, end) = self.table_at(place);
        (entries.into_iter().flatten(), end)
    }

    /// The parts that have any of `places`, in order.
    pub fn spans(&self, places: RangeInclusive<u64>) -> impl Iterator<Item = Span<'_, T>> {
        let (first, end) = places.into_inner();
        let mut next = Some(first);
        std::iter::from_fn(move || {
            let place = next.filter(|place| *place <= end)?;
            let part = &self.all[self.number_at(place)?];
            let mask = u64::MAX.unbounded_shr(part.depth);
            let (first, last) = (place & !mask, place | mask);
            next = last.checked_add(1);
            Some(Span { entries: &part.entries, first, last })
        })
    }
}

/// A [`SplitTable`](super::SplitTable) that is only read, and may go to other threads.
#[derive(Debug)]
pub struct FrozenTable<T> {
    parts: Parts<T>,
    len: u64,
    booked: u64,
}

impl<T> FrozenTable<T> {
    pub(super) fn new(parts: Parts<T>, len: u64, booked: u64) -> Self {
        Self { parts, len, booked }
    }

    /// Entries.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Bytes that are still booked for the table: whoever drops it gives them back.
    pub fn memory_bytes(&self) -> u64 {
        self.booked
    }
}

impl<T> Deref for FrozenTable<T> {
    type Target = Parts<T>;

    #[inline(always)]
    fn deref(&self) -> &Parts<T> {
        &self.parts
    }
}

/// The first `depth` bits of a place.
#[inline(always)]
fn prefix(place: u64, depth: u32) -> usize {
    place.unbounded_shr(64 - depth) as usize
}

/// Where the part of `depth` bits that has `place` ends.
fn end_of(place: u64, depth: u32) -> Option<u64> {
    if depth == 0 {
        return None;
    }
    let size = 1u64 << (64 - depth);
    (place & !(size - 1)).checked_add(size)
}
