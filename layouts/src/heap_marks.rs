//! What a heap table remembers of its last checkpoint: for each bucket whether its entry has changed
//! since, and the place of the record that it had then.
//!
//! A change sets one bit, in a word that 64 buckets share, so that it costs the record path a store that
//! nobody waits for. Places are read when an entry is removed and when a checkpoint takes it.
//!
//! There are two arrays of bits. At a barrier they [swap](EntryMarks::capture) roles, whatever their length: one has what
//! the checkpoint is to take, the other what changes from then on. The checkpoint clears the bits of what it has
//! written, so that they are all clear when it ends. One that is given up leaves some. Then both arrays have bits
//! at the next barrier, and each word of the two is [merged](EntryMarks::merge) when it is first looked at; by whom a
//! word was merged stands beside it.
//!
//! What it keeps true: an entry of which no bit is set is on storage as it is, at its place. All of it is
//! booked; who needs the memory more may [take](EntryMarks::give_up) it, and the next checkpoint is full.

use std::fmt::Debug;
use std::rc::Rc;

use alluvium_pagestore::{Account, MemoryKind, PlacedAt};

use crate::prefetch_unsafe::prefetch;

/// Bits of a place for the grain: those of the longest segment.
const GRAIN_BITS: u32 = 21;

/// Marks are begun if they take no more than such a part of what is free.
const BEGIN_SHARE: u64 = 4;

/// Where the record of an entry is: the number of a segment that the last checkpoints have, and where in
/// it. No record starts at the first grain of a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place(u32);

impl Place {
    /// Of an entry that no checkpoint has.
    pub const NONE: Self = Self(0);
    /// Slots that there can be.
    pub(crate) const SLOTS_MAX: usize = 1 << (u32::BITS - GRAIN_BITS);

    pub(crate) fn of(slot: u32, grain: u32) -> Self {
        debug_assert!(grain > 0 && grain >> GRAIN_BITS == 0 && (slot as usize) < Self::SLOTS_MAX);
        Self(slot << GRAIN_BITS | grain)
    }

    pub(crate) fn slot(self) -> usize {
        (self.0 >> GRAIN_BITS) as usize
    }

    pub(crate) fn grain(self) -> u32 {
        self.0 & ((1 << GRAIN_BITS) - 1)
    }
}

/// A bit for each bucket, and how many are set.
#[derive(Debug, Default)]
struct Bits {
    words: Vec<u64>,
    count: u64,
}

impl Bits {
    fn new(buckets: usize) -> Self {
        Self { words: vec![0; words(buckets)], count: 0 }
    }

    #[inline(always)]
    fn set(&mut self, bucket: usize) {
        if let Some(word) = self.words.get_mut(bucket / 64) {
            let bit = 1 << (bucket % 64);
            // Most often it is set already, or most often not: a branch that is foreseen, where two stores are not free.
            if *word & bit == 0 {
                *word |= bit;
                self.count += 1;
            }
        }
    }

    #[inline]
    fn clear(&mut self, bucket: usize) {
        if let Some(word) = self.words.get_mut(bucket / 64) {
            let bit = 1 << (bucket % 64);
            self.count -= u64::from(*word & bit != 0);
            *word &= !bit;
        }
    }

    #[inline]
    fn has(&self, bucket: usize) -> bool {
        self.words.get(bucket / 64).is_some_and(|word| word >> (bucket % 64) & 1 == 1)
    }
}

/// What is remembered of entries by the numbers of their buckets; off if nothing is.
pub trait EntryMarks: Debug + Sized {
    /// Nothing is remembered.
    fn off(account: Rc<Account>) -> Self;

    /// Whether something is.
    fn is_on(&self) -> bool;

    /// Begins them anew for about so many buckets, if they take no more than a part of what is free.
    fn begin(&mut self, buckets: usize);

    /// A bucket's entry was restored from there, in the slot that its segment has the number of.
    fn restored(&mut self, bucket: usize, at: PlacedAt);

    /// An entry was added in a bucket.
    fn add(&mut self, bucket: usize);

    /// The entry in a bucket is about to change. If the checkpoint that is taken is reading, its word is
    /// [merged](EntryMarks::merge).
    fn change(&mut self, bucket: usize);

    /// The entry in a bucket is removed; where its record was.
    fn remove(&mut self, bucket: usize) -> Place;

    /// The record of a bucket's entry is going to be found or written: brings near what is known of it.
    fn look_ahead_at_record(&self, bucket: usize);

    /// The place of a bucket's entry, which has none from now on.
    fn take(&mut self, bucket: usize) -> Place;

    /// The place of a bucket's entry.
    fn place(&self, bucket: usize) -> Place;

    /// The record of a bucket's entry is there now.
    fn set_place(&mut self, bucket: usize, place: Place);

    /// A checkpoint begins, which is to write what has changed, or was left: nothing has changed from now on. Says how
    /// many entries that are, at most. Cost: O(1).
    fn capture(&mut self) -> u64;

    /// Sees to it that the word of bits that has a bucket's has what the checkpoint is to write in one array, and what
    /// has changed since its barrier in the other.
    fn merge(&mut self, bucket: usize);

    /// The checkpoint has its end. What it has not written is to be written by the next one.
    fn end_capture(&mut self);

    /// Whether the checkpoint is to write the entry in a bucket, of a word that was [merged](EntryMarks::merge).
    fn is_captured(&self, bucket: usize) -> bool;

    /// The bits of what the checkpoint is to write, of the word of a bucket, which was merged.
    fn captured_word(&self, bucket: usize) -> u64;

    /// The checkpoint is to write the entry in a bucket, until that is [settled](EntryMarks::settle).
    fn owe(&mut self, bucket: usize);

    /// The entry in a bucket is written, or kept.
    fn settle(&mut self, bucket: usize);

    /// Gives the memory back; nothing is remembered.
    fn give_up(&mut self);
}

/// What is known of an entry that moves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    place: Place,
    has_changed: bool,
    is_captured: bool,
}

/// The marks of a hash table; off if there are none.
#[derive(Debug)]
pub struct Marks {
    account: Rc<Account>,
    is_on: bool,
    /// What has changed since the last barrier. Empty if off.
    changed: Bits,
    /// What the checkpoint is to write that is being taken, or was left by one that was given up.
    captured: Bits,
    /// The how manieth checkpoint is, or was, taken.
    capture: u32,
    /// By word: the checkpoint that has merged it.
    merged: Vec<u32>,
    /// Whether words that this checkpoint has not merged have bits of what it is to write in both arrays.
    is_mixed: bool,
    /// As plain words: these can be had zeroed without being touched.
    places: Vec<u32>,
    booked: u64,
}

impl Marks {
    /// Memory that the marks of so many buckets take.
    pub fn memory_bytes(buckets: usize) -> u64 {
        let per_word = words(buckets) * (2 * size_of::<u64>() + size_of::<u32>());
        (per_word + buckets * size_of::<Place>() + 64) as u64
    }

    /// Marks of so many buckets, of which none has changed and none is on storage; `None` without the
    /// memory for it.
    pub fn new(account: &Rc<Account>, buckets: usize) -> Option<Self> {
        let booked = Self::memory_bytes(buckets);
        let has_room = account.available() >= booked;
        if !has_room || !account.try_reserve(MemoryKind::Index, booked) {
            return None;
        }
        let mut marks = Self::booked_elsewhere(account, buckets, 0);
        marks.booked = booked;
        Some(marks)
    }

    /// The same, booked by the caller, when so many checkpoints were begun.
    pub fn booked_elsewhere(account: &Rc<Account>, buckets: usize, capture: u32) -> Self {
        let mut marks = Self::off(account.clone());
        (marks.is_on, marks.capture) = (true, capture);
        (marks.changed, marks.captured) = (Bits::new(buckets), Bits::new(buckets));
        (marks.merged, marks.places) = (vec![0; words(buckets)], vec![Place::NONE.0; buckets]);
        marks
    }

    /// The entry in a bucket is probably going to change: brings its bit near.
    #[inline(always)]
    pub fn look_ahead(&self, bucket: usize) {
        if let Some(word) = self.changed.words.get(bucket / 64) {
            prefetch(std::ptr::from_ref(word));
        }
    }

    /// The same of the bit that says whether the checkpoint is to write the entry.
    #[inline]
    pub fn look_ahead_at_captured(&self, bucket: usize) {
        if let Some(word) = self.captured.words.get(bucket / 64) {
            prefetch(std::ptr::from_ref(word));
        }
    }

    /// Bits that are set, of both kinds.
    pub fn count(&self) -> u64 {
        self.changed.count + self.captured.count
    }

    /// The checkpoint of this number was begun: [captures](EntryMarks::capture), if that was not done for it.
    #[inline]
    pub fn follow(&mut self, capture: u32) {
        if self.capture != capture {
            self.swap();
            self.capture = capture;
        }
    }

    fn swap(&mut self) {
        std::mem::swap(&mut self.changed, &mut self.captured);
        self.is_mixed = self.changed.count > 0;
    }

    #[cold]
    fn merge_mixed(&mut self, word: usize) {
        let Self { changed, captured, merged, capture, .. } = self;
        if std::mem::replace(&mut merged[word], *capture) == *capture {
            return;
        }
        let left = std::mem::take(&mut changed.words[word]);
        changed.count -= u64::from(left.count_ones());
        captured.count += u64::from((left & !captured.words[word]).count_ones());
        captured.words[word] |= left;
    }

    /// How many entries the checkpoint is to write still.
    #[cfg(test)]
    pub fn count_captured(&self) -> u64 {
        self.captured.count
    }

    /// An entry moves away from a bucket, of which nothing is known any more.
    pub fn lift(&mut self, bucket: usize) -> Mark {
        self.merge(bucket);
        let (has_changed, is_captured) = (self.changed.has(bucket), self.captured.has(bucket));
        Mark { place: self.remove(bucket), has_changed, is_captured }
    }

    /// An entry has moved to a bucket.
    pub fn put(&mut self, bucket: usize, mark: Mark) {
        self.merge(bucket);
        self.set_place(bucket, mark.place);
        if mark.has_changed {
            self.changed.set(bucket);
        }
        if mark.is_captured {
            self.captured.set(bucket);
        }
    }
}

impl EntryMarks for Marks {
    fn off(account: Rc<Account>) -> Self {
        Self {
            account,
            is_on: false,
            changed: Bits::default(),
            captured: Bits::default(),
            capture: 0,
            merged: Vec::new(),
            is_mixed: false,
            places: Vec::new(),
            booked: 0,
        }
    }

    #[inline]
    fn is_on(&self) -> bool {
        self.is_on
    }

    fn begin(&mut self, buckets: usize) {
        self.give_up();
        if may_begin(&self.account, Self::memory_bytes(buckets))
            && let Some(marks) = Self::new(&self.account, buckets)
        {
            *self = marks;
        }
    }

    fn restored(&mut self, bucket: usize, at: PlacedAt) {
        if self.is_on {
            self.remove(bucket);
            self.set_place(bucket, Place::of(at.segment, at.grain));
        }
    }

    #[inline]
    fn add(&mut self, bucket: usize) {
        if self.is_on {
            self.merge(bucket);
            self.changed.set(bucket);
        }
    }

    #[inline(always)]
    fn change(&mut self, bucket: usize) {
        // Where nothing is remembered, the bucket need not be known.
        if self.is_on {
            self.changed.set(bucket);
        }
    }

    #[inline]
    fn remove(&mut self, bucket: usize) -> Place {
        self.changed.clear(bucket);
        self.captured.clear(bucket);
        self.take(bucket)
    }

    #[inline]
    fn look_ahead_at_record(&self, bucket: usize) {
        self.look_ahead_at_captured(bucket);
        if let Some(place) = self.places.get(bucket) {
            prefetch(std::ptr::from_ref(place));
        }
    }

    #[inline]
    fn take(&mut self, bucket: usize) -> Place {
        Place(self.places.get_mut(bucket).map_or(Place::NONE.0, std::mem::take))
    }

    #[inline]
    fn place(&self, bucket: usize) -> Place {
        Place(self.places.get(bucket).copied().unwrap_or_default())
    }

    #[inline]
    fn set_place(&mut self, bucket: usize, place: Place) {
        if let Some(at) = self.places.get_mut(bucket) {
            *at = place.0;
        }
    }

    fn capture(&mut self) -> u64 {
        let count = self.count();
        self.swap();
        self.capture += 1;
        count
    }

    #[inline]
    fn merge(&mut self, bucket: usize) {
        if self.is_mixed {
            self.merge_mixed(bucket / 64);
        }
    }

    fn end_capture(&mut self) {
        self.is_mixed = false;
    }

    #[inline]
    fn is_captured(&self, bucket: usize) -> bool {
        self.captured.has(bucket)
    }

    #[inline]
    fn captured_word(&self, bucket: usize) -> u64 {
        self.captured.words.get(bucket / 64).copied().unwrap_or(u64::MAX)
    }

    #[inline]
    fn owe(&mut self, bucket: usize) {
        self.captured.set(bucket);
    }

    #[inline]
    fn settle(&mut self, bucket: usize) {
        self.captured.clear(bucket);
    }

    fn give_up(&mut self) {
        *self = Self::off(self.account.clone());
    }
}

impl Drop for Marks {
    fn drop(&mut self) {
        self.account.release(MemoryKind::Index, self.booked);
    }
}

/// Whether marks that take so many bytes are begun.
pub(crate) fn may_begin(account: &Account, bytes: u64) -> bool {
    bytes <= account.available() / BEGIN_SHARE
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
    use std::collections::BTreeSet;

    use alluvium_pagestore::hash_word;

    use super::*;

    const BUCKETS: usize = 300;

    /// Seeded histories of changes and of checkpoints, of which most are given up somewhere, against sets.
    #[test]
    fn a_checkpoint_writes_what_has_changed_since_the_last_that_was_not_given_up() {
        for seed in 0..200u64 {
            let account = Account::root(1 << 20);
            let mut marks = Marks::new(&account, BUCKETS).unwrap();
            let (mut changed, mut chance) = (BTreeSet::new(), seed << 32);
            let mut below = move |limit: usize| {
                chance += 1;
                (hash_word(chance) % limit as u64) as usize
            };
            for round in 0..12 {
                for _ in 0..below(200) {
                    let bucket = below(BUCKETS);
                    marks.change(bucket);
                    changed.insert(bucket);
                }
                let mut due = std::mem::take(&mut changed);
                let most = marks.capture();
                assert!(most >= due.len() as u64, "seed {seed}, round {round}");
                let end = if below(3) == 0 { BUCKETS } else { below(BUCKETS) };
                for at in 0..end {
                    // The stream changes some meanwhile, each after it was looked at.
                    let bucket = below(BUCKETS);
                    marks.merge(bucket);
                    assert_eq!(marks.is_captured(bucket), due.contains(&bucket), "seed {seed}");
                    marks.change(bucket);
                    changed.insert(bucket);
                    marks.merge(at);
                    assert_eq!(marks.is_captured(at), due.contains(&at), "seed {seed}, {round}");
                    if below(10) == 0 {
                        marks.remove(at);
                        changed.remove(&at);
                    }
                    marks.settle(at);
                    due.remove(&at);
                }
                marks.end_capture();
                assert!(end < BUCKETS || marks.count_captured() == 0, "seed {seed}, round {round}");
                // What was not written is to be written by the next.
                changed.append(&mut due);
            }
            marks.give_up();
            assert_eq!((account.used(), marks.is_on(), marks.is_captured(1)), (0, false, false));
        }
    }

    #[test]
    fn entries_that_move_take_their_marks_with_them() {
        let account = Account::root(1 << 20);
        let mut old = Marks::new(&account, BUCKETS).unwrap();
        old.change(1);
        old.capture();
        // Given up, so that both arrays have bits.
        old.end_capture();
        (2..4).for_each(|bucket| old.change(bucket));
        old.set_place(4, Place::of(3, 7));
        assert_eq!(old.capture(), 3);
        let mut new = Marks::new(&account, 2 * BUCKETS).unwrap();
        (0..BUCKETS).for_each(|bucket| new.put(2 * bucket, old.lift(bucket)));
        let captured: Vec<_> = (0..2 * BUCKETS).filter(|b| new.is_captured(*b)).collect();
        assert_eq!((captured, new.changed.count), (vec![2, 4, 6], 0));
        assert_eq!(new.place(8), Place::of(3, 7));
    }
}
