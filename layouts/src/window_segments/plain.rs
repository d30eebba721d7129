//! The short way of several updates: keys and accumulators without heap, in a slice that nobody
//! watches and whose table need not grow. Nothing is booked then, and the slice is looked for once.

use alluvium_pagestore::{Key, Lookup, State, Time};

use super::slice::Slice;
use super::table::SegmentPanes;
use crate::contract::panes::Run;
use crate::heap::entry_table_unsafe::PartMut;

impl<K: Key, A: State> SegmentPanes<K, A> {
    /// The slice, if its updates may take the short way.
    #[inline]
    fn plain_slice(&mut self, slice: Time) -> Option<&mut Slice<K, A>> {
        let slot = self.slot_of(slice)?;
        Some(self.slice_at_mut(slot)).filter(|found| !found.is_watched())
    }

    /// Updates items of the slice of the first one, until one is of another slice or has to take the
    /// long way. Returns how many. Cost: a look-up each, whether or not the key is new.
    #[inline]
    pub(super) fn update_plain<T, Q: Lookup<K> + ?Sized>(
        &mut self,
        batch: &[T],
        place: &impl Fn(&T) -> (Time, &Q),
        init: &mut impl FnMut(&T) -> A,
        change: &mut impl FnMut(&T, &mut A),
    ) -> usize {
        let slice = place(&batch[0]).0;
        let Some(found) = self.plain_slice(slice) else { return 0 };
        for (n, item) in batch.iter().enumerate() {
            let (of, key) = place(item);
            if of != slice {
                return n;
            }
            let make = || (key.to_owned(), init(item));
            let entry = found.active.find_or_add(key.key_hash(), |e| key.is(&e.0), make);
            match entry {
                Some(entry) => change(item, &mut entry.1),
                None => return n,
            }
        }
        batch.len()
    }

    /// Updates keys of a run from its `first` on, as long as they stand in one part, and returns the one
    /// that does not, or has to take the long way. A run comes from a part of another table, with the
    /// same keys, so one part has most of it.
    #[inline]
    pub(super) fn update_plain_run<'a, B>(
        &mut self,
        slice: Time,
        first: (&'a K, &'a B),
        run: &mut Run<'a, K, B>,
        init: &impl Fn() -> A,
        change: &impl Fn(&mut A, &B),
    ) -> Option<(&'a K, &'a B)> {
        let (Some(found), Some(entries)) = (self.plain_slice(slice), run.table_mut()) else {
            return Some(first);
        };
        let ((mut key, mut with), mut hash) = (first, first.0.key_hash());
        let Some(mut part) = found.active.part_mut(hash) else { return Some(first) };
        // Where a run stands is in registers meanwhile.
        let mut left = entries.clone();
        let next = loop {
            if !part.has(hash) {
                break Some((key, with));
            }
            match part.find_mut(hash, |entry| entry.0 == *key) {
                Some(entry) => change(&mut entry.1, with),
                None => match add(&mut part, hash, key, init) {
                    Some(entry) => change(&mut entry.1, with),
                    None => break Some((key, with)),
                },
            }
            let Some(next) = left.next() else { break None };
            (key, with) = (&next.0, &next.1);
            hash = key.key_hash();
        };
        *entries = left;
        next
    }
}

/// Adds a key that a part does not have. Few of a run are new.
#[cold]
#[inline(never)]
fn add<'a, K: Key, A>(
    part: &'a mut PartMut<'_, (K, A)>,
    hash: u64,
    key: &K,
    init: &impl Fn() -> A,
) -> Option<&'a mut (K, A)> {
    part.find_or_add(hash, |entry| entry.0 == *key, || (key.clone(), init()))
}
