//! The short way of several updates: keys and accumulators without heap, in a slice that nobody
//! watches and whose table need not grow. Nothing is booked then, and the slice is looked for once.

use alluvium_pagestore::{Key, Lookup, State, Time};

use super::typed_unsafe::TypedSegments;
use crate::contract::panes::PaneRun;
use crate::heap::entry_table_unsafe::PartMut;
use crate::heap::record_table_unsafe::NativeTable;
use crate::support::record_type_unsafe::NativeEntry;

impl<K: Key, A: State> TypedSegments<K, A> {
    /// The slice, if its updates may take the short way.
    #[inline]
    fn plain_slice(&mut self, slice: Time) -> Option<&mut NativeTable<K, A>> {
        let slot = self.slot_of(slice)?;
        (!self.slice_at(slot).is_watched()).then(|| self.changing(slot).table)
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
            let make = || NativeEntry { key: key.to_owned(), value: init(item) };
            let entry = found.find_or_add(key.key_hash(), |entry| key.is(&entry.key), make);
            match entry {
                Some(entry) => change(item, &mut entry.value),
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
        run: &mut PaneRun<'a, K, B>,
        init: &impl Fn() -> A,
        change: &impl Fn(&mut A, &B),
    ) -> Option<(&'a K, &'a B)> {
        let (Some(found), Some(entries)) = (self.plain_slice(slice), run.table_mut()) else {
            return Some(first);
        };
        let ((mut key, mut with), mut hash) = (first, first.0.key_hash());
        let Some(mut part) = found.part_mut(hash) else { return Some(first) };
        // Where a run stands is in registers meanwhile.
        let mut left = entries.clone();
        let next = loop {
            if !part.has(hash) {
                break Some((key, with));
            }
            match part.find_mut(hash, |entry| entry.key == *key) {
                Some(entry) => change(&mut entry.value, with),
                None => match add(&mut part, hash, key, init) {
                    Some(entry) => change(&mut entry.value, with),
                    None => break Some((key, with)),
                },
            }
            let Some(next) = left.next() else { break None };
            (key, with) = (&next.key, &next.value);
            hash = key.key_hash();
        };
        *entries = left;
        next
    }
}

/// Adds a key that a part does not have. Few of a run are new.
#[cold]
#[inline(never)]
fn add<'a, K: Key, A: State>(
    part: &'a mut PartMut<'_, NativeEntry<K, A>>,
    hash: u64,
    key: &K,
    init: &impl Fn() -> A,
) -> Option<&'a mut NativeEntry<K, A>> {
    part.find_or_add(
        hash,
        |entry| entry.key == *key,
        || NativeEntry { key: key.clone(), value: init() },
    )
}
