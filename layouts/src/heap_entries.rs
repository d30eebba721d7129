//! Where the entries of a heap table stand, and what it takes for a checkpoint to read them: one hash table, or a table
//! in the order of hashes whose parts grow by themselves.
//!
//! A bucket is known by a number; those of a word of bits begin with a multiple of 64. A checkpoint reads stretch
//! after stretch.
//!
//! What it keeps true: in the order of hashes, what was read stays read, and what was not does not, wherever entries
//! move as parts grow. One hash table moves all at once, and tells the checkpoint of each.

use std::ops::Range;

use alluvium_pagestore::Key;
use hashbrown::HashTable;

use crate::heap_marks::{EntryMarks, Marks};
use crate::prefetch_unsafe::prefetch;
use crate::split_marks::{PART_BUCKETS, SplitMarks};
use crate::split_table::{HashRange, SplitTable};
use crate::table::StateContext;

/// Buckets of one hash table that are read together: those of a word of bits.
pub(super) const BUCKETS: usize = 64;

/// The hash of an entry. One function for all that move entries: a closure at each place, or in a generic call, would
/// have hashbrown's growing compiled for it alone.
pub(crate) fn hash_of<K: Key, V>(entry: &(K, V)) -> u64 {
    entry.0.key_hash()
}

/// What is read next.
#[derive(Debug)]
pub struct Stretch {
    /// Of one hash table, or of a part.
    pub buckets: Range<usize>,
    /// Where the next one begins; `None` after the last.
    pub after: Option<u64>,
}

/// A table of entries.
pub trait Entries<K, V>: Sized + 'static {
    /// What is remembered of the entries' records.
    type Marks: EntryMarks;

    /// An empty one, which takes no memory yet.
    fn empty(context: &StateContext) -> Self;
    /// Entries.
    fn count(&self) -> u64;
    /// Buckets, about.
    fn buckets(&self) -> usize;
    /// The bucket of the entry with this hash that `is` it.
    fn bucket(&self, hash: u64, is: impl FnMut(&(K, V)) -> bool) -> Option<usize>;
    /// The entry in a bucket.
    fn entry(&self, bucket: usize) -> Option<&(K, V)>;
    /// The entry in a bucket is going to be read: brings it near.
    #[inline]
    fn look_ahead(&self, bucket: usize) {
        if let Some(entry) = self.entry(bucket) {
            prefetch(std::ptr::from_ref(entry));
        }
    }
    /// What is to be read at `next`; the first is at 0.
    fn stretch(&self, next: u64) -> Stretch;
    /// Takes some entries out, of a table that is of no use any more; says whether there may be more. `dropped` is 0 first.
    fn drop_some(&mut self, dropped: &mut usize, drop_it: &mut dyn FnMut((K, V))) -> bool;
    /// Whether an entry was read by who is to read the stretch at `next` now.
    fn is_passed(&self, bucket: usize, hash: u64, next: u64) -> bool;
}

impl<K: 'static, V: 'static> Entries<K, V> for HashTable<(K, V)> {
    type Marks = Marks;

    fn empty(_: &StateContext) -> Self {
        Self::new()
    }

    fn count(&self) -> u64 {
        self.len() as u64
    }

    fn buckets(&self) -> usize {
        self.num_buckets()
    }

    #[inline]
    fn bucket(&self, hash: u64, is: impl FnMut(&(K, V)) -> bool) -> Option<usize> {
        self.find_bucket_index(hash, is)
    }

    #[inline]
    fn entry(&self, bucket: usize) -> Option<&(K, V)> {
        self.get_bucket(bucket)
    }

    fn stretch(&self, next: u64) -> Stretch {
        let (first, all) = (next as usize, self.num_buckets());
        let end = all.min(first + BUCKETS);
        Stretch { buckets: first..end, after: (end < all).then_some(end as u64) }
    }

    fn drop_some(&mut self, dropped: &mut usize, drop_it: &mut dyn FnMut((K, V))) -> bool {
        let end = self.num_buckets().min(*dropped + BUCKETS);
        for bucket in *dropped..end {
            if let Ok(entry) = self.get_bucket_entry(bucket) {
                drop_it(entry.remove().0);
            }
        }
        *dropped = end;
        end < self.num_buckets()
    }

    #[inline]
    fn is_passed(&self, bucket: usize, _: u64, next: u64) -> bool {
        (bucket as u64) < next
    }
}

impl<K: Key, V: 'static> Entries<K, V> for SplitTable<(K, V)> {
    type Marks = SplitMarks;

    fn empty(context: &StateContext) -> Self {
        let range = HashRange::of(&context.owned, context.key_groups);
        Self::new(context.account.clone(), range).expect_few_of(context.key_groups)
    }

    fn count(&self) -> u64 {
        self.len()
    }

    fn buckets(&self) -> usize {
        self.parts() * PART_BUCKETS
    }

    #[inline]
    fn bucket(&self, hash: u64, is: impl FnMut(&(K, V)) -> bool) -> Option<usize> {
        self.find_bucket(hash, is)
    }

    #[inline]
    fn entry(&self, bucket: usize) -> Option<&(K, V)> {
        self.get_bucket(bucket)
    }

    fn stretch(&self, next: u64) -> Stretch {
        let (buckets, after) = self.buckets_at(next);
        Stretch { buckets, after }
    }

    fn drop_some(&mut self, _: &mut usize, drop_it: &mut dyn FnMut((K, V))) -> bool {
        let Some(part) = self.take_part() else { return false };
        part.for_each(drop_it);
        true
    }

    #[inline]
    fn is_passed(&self, _: usize, hash: u64, next: u64) -> bool {
        self.range().place(hash) < next
    }
}
