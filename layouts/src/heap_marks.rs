//! What a heap table remembers of its last checkpoint: for each bucket whether its entry has changed
//! since, and the place of the record that it had then.
//!
//! A change sets one bit, in a word that 64 buckets share, so that it costs the record path a store that
//! nobody waits for. Places are read when an entry is removed and when a checkpoint writes it anew.
//!
//! What it keeps true: an entry whose bit is not set is on storage as it is, at its place. All of it is
//! booked; who needs the memory more may [take](Marks::give_up) it, and the next checkpoint is full.

use std::rc::Rc;

use alluvium_pagestore::{Account, MemoryKind, PlacedAt};

/// Bits of a place for the grain: those of the longest segment.
const GRAIN_BITS: u32 = 21;

/// Marks are begun if they take no more than such a part of what is free.
const BEGIN_SHARE: u64 = 4;

/// Where the record of an entry is: a slot of [`HeapFiles`](super::heap_files::HeapFiles), and a grain of
/// its segment. No record starts at the first grain of a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place(u32);

impl Place {
    /// Of an entry that no checkpoint has.
    pub const NONE: Self = Self(0);
    /// Slots that there can be.
    pub const SLOTS_MAX: usize = 1 << (u32::BITS - GRAIN_BITS);

    pub fn of(slot: u32, grain: u32) -> Self {
        debug_assert!(grain > 0 && grain >> GRAIN_BITS == 0 && (slot as usize) < Self::SLOTS_MAX);
        Self(slot << GRAIN_BITS | grain)
    }

    pub fn slot(self) -> usize {
        (self.0 >> GRAIN_BITS) as usize
    }

    pub fn grain(self) -> u32 {
        self.0 & ((1 << GRAIN_BITS) - 1)
    }
}

/// The marks of a table; off if there are none.
#[derive(Debug)]
pub(crate) struct Marks {
    account: Rc<Account>,
    is_on: bool,
    /// A bit for each bucket: its entry has changed. Empty if off.
    changed: Vec<u64>,
    /// As plain words: these can be had zeroed without being touched.
    places: Vec<u32>,
    booked: u64,
}

impl Marks {
    pub fn off(account: Rc<Account>) -> Self {
        Self { account, is_on: false, changed: Vec::new(), places: Vec::new(), booked: 0 }
    }

    pub fn is_on(&self) -> bool {
        self.is_on
    }

    /// Memory that the marks of so many buckets take.
    pub fn memory_bytes(buckets: usize) -> u64 {
        (bits_bytes(buckets) + (buckets * size_of::<Place>()) as u64) + 64
    }

    /// Marks of so many buckets, of which none has changed and none is on storage; `None` without the
    /// memory for it.
    pub fn new(account: &Rc<Account>, buckets: usize) -> Option<Self> {
        let booked = Self::memory_bytes(buckets);
        let has_room = account.available() >= booked;
        if !has_room || !account.try_reserve(MemoryKind::Index, booked) {
            return None;
        }
        let (changed, places) = (vec![0; words(buckets)], vec![Place::NONE.0; buckets]);
        Some(Self { account: account.clone(), is_on: true, changed, places, booked })
    }

    /// Begins them anew, if they take no more than a part of what is free.
    pub fn begin(&mut self, buckets: usize) {
        self.give_up();
        let is_small = Self::memory_bytes(buckets) <= self.account.available() / BEGIN_SHARE;
        if is_small && let Some(marks) = Self::new(&self.account, buckets) {
            *self = marks;
        }
    }

    /// A bucket's entry was restored from there, in the slot that its segment has the number of.
    pub fn restored(&mut self, bucket: usize, at: PlacedAt) {
        if self.is_on {
            self.remove(bucket);
            self.set_place(bucket, Place::of(at.segment, at.grain));
        }
    }

    /// The entry in a bucket is about to change.
    #[inline(always)]
    pub fn change(&mut self, bucket: usize) {
        // Where nothing is remembered, the bucket need not be known.
        if self.is_on
            && let Some(word) = self.changed.get_mut(bucket / 64)
        {
            *word |= 1 << (bucket % 64);
        }
    }

    /// The entry in a bucket is removed; where its record was.
    #[inline]
    pub fn remove(&mut self, bucket: usize) -> Place {
        if let Some(word) = self.changed.get_mut(bucket / 64) {
            *word &= !(1 << (bucket % 64));
        }
        self.take(bucket)
    }

    /// The place of a bucket's entry, which has none from now on.
    pub fn take(&mut self, bucket: usize) -> Place {
        Place(self.places.get_mut(bucket).map_or(Place::NONE.0, std::mem::take))
    }

    pub fn place(&self, bucket: usize) -> Place {
        Place(self.places.get(bucket).copied().unwrap_or_default())
    }

    /// The record of a bucket's entry is there now.
    pub fn set_place(&mut self, bucket: usize, place: Place) {
        if let Some(at) = self.places.get_mut(bucket) {
            *at = place.0;
        }
    }

    pub fn has_changed(&self, bucket: usize) -> bool {
        self.changed.get(bucket / 64).is_some_and(|word| word >> (bucket % 64) & 1 == 1)
    }

    /// An entry has moved here from another bucket of other marks.
    pub fn move_from(&mut self, bucket: usize, other: &Self, from: usize) {
        self.set_place(bucket, other.place(from));
        if other.has_changed(from) {
            self.change(bucket);
        }
    }

    /// Entries that have changed. Cost: a 64th of the buckets.
    pub fn count_changed(&self) -> u64 {
        self.changed.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// The bits of what has changed; nothing has from now on. Who takes them has booked
    /// [`bits_bytes`].
    pub fn take_changed(&mut self) -> Vec<u64> {
        let empty = vec![0; self.changed.len()];
        std::mem::replace(&mut self.changed, empty)
    }

    /// Bits from `bucket` on that were taken: what they say has changed still.
    pub fn give_back(&mut self, bits: &[u64], bucket: usize) {
        for (nth, (word, bits)) in self.changed.iter_mut().zip(bits).enumerate() {
            let first = bucket.saturating_sub(nth * 64).min(64) as u32;
            *word |= bits & u64::MAX.unbounded_shl(first);
        }
    }

    /// Gives the memory back; nothing is remembered.
    pub fn give_up(&mut self) {
        *self = Self::off(self.account.clone());
    }
}

impl Drop for Marks {
    fn drop(&mut self) {
        self.account.release(MemoryKind::Index, self.booked);
    }
}

fn words(buckets: usize) -> usize {
    buckets.div_ceil(64)
}

/// Memory of a bit for each bucket.
pub(crate) fn bits_bytes(buckets: usize) -> u64 {
    (words(buckets) * size_of::<u64>()) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_that_are_given_back_are_those_from_the_bucket_on() {
        let account = Account::root(1 << 20);
        let mut marks = Marks::new(&account, 200).unwrap();
        (0..200).filter(|bucket| bucket % 3 == 0).for_each(|bucket| marks.change(bucket));
        let taken = marks.take_changed();
        assert_eq!(marks.count_changed(), 0);
        marks.change(1);
        marks.give_back(&taken, 70);
        for bucket in 0..200 {
            let expected = bucket == 1 || bucket >= 70 && bucket % 3 == 0;
            assert_eq!(marks.has_changed(bucket), expected, "{bucket}");
        }
        marks.give_up();
        assert_eq!((account.used(), marks.is_on(), marks.has_changed(1)), (0, false, false));
    }
}
