//! What lists and windows that keep their elements need of a layout: elements by bucket and key,
//! in order of arrival.
//!
//! A bucket is what is dropped at once: a slice of event time, named by its start, for aligned
//! windows; the time by which a session will have ended; [`Time::MAX`] for lists that stay. Everything is
//! called by one thread.

use std::ops::{Bound, Range};

use alluvium_pagestore::{Error, ErrorKind, Key, Lookup, Rejected, Result, Time};

use crate::by_hash::ByHash;
use crate::table::{Cursor, StateContext};
use crate::upkeep::Upkeep;

/// The elements of one list, one after the other: never all of them in memory, unless they are
/// anyway.
pub trait Elements<E> {
    /// The next element, in order; `None` after the last.
    ///
    /// # Errors
    /// Those of storage, or [`ErrorKind::Corrupt`](alluvium_pagestore::ErrorKind::Corrupt).
    fn next(&mut self) -> Result<Option<&E>>;

    /// The next elements, in order, as many as stand together; none after the last. Reads small
    /// elements several times as fast as one by one. May be mixed with [`next`](Elements::next).
    ///
    /// # Errors
    /// As for [`next`](Elements::next).
    fn next_chunk(&mut self) -> Result<&[E]> {
        Ok(self.next()?.map_or(&[], std::slice::from_ref))
    }
}

/// A list of elements per bucket and key.
///
/// Calls either happen in full or change nothing, unless they say otherwise.
#[diagnostic::on_unimplemented(
    message = "`{Self}` keeps no lists of keys `{K}` and elements `{E}`",
    label = "`Lists<{K}, {E}>` is not implemented for `{Self}`"
)]
pub trait Lists<K: Key, E>: Upkeep {
    /// Tells that buckets whose times are less than this apart are going to be folded together, so that memory for that
    /// is left. The default does nothing.
    fn fold_at_once(&mut self, span: i128) {
        let _ = span;
    }

    /// Appends an element to the list of `key` in `bucket`. Never reads storage. On an error the
    /// element comes back.
    fn append<Q: Lookup<K> + ?Sized>(
        &mut self,
        bucket: Time,
        key: &Q,
        element: E,
    ) -> std::result::Result<(), Rejected<E>>;

    /// [`append`](Lists::append) for each of `batch`, in order. What was not appended, because of
    /// an error, is left in it.
    fn append_batch(&mut self, batch: &mut Vec<(K, Time, E)>) -> Result<()> {
        let mut rest = batch.drain(..);
        while let Some((key, bucket, element)) = rest.next() {
            if let Err(rejected) = self.append(bucket, &key, element) {
                let left = std::iter::once((key, bucket, rejected.value)).chain(rest).collect();
                *batch = left;
                return Err(rejected.error);
            }
        }
        Ok(())
    }

    /// Hands the elements of `key` in `bucket` to `visit`, once, to be read one after the other; not
    /// if there are none.
    fn stream<Q: Lookup<K> + ?Sized>(
        &mut self,
        bucket: Time,
        key: &Q,
        visit: &mut dyn FnMut(&mut dyn Elements<E>) -> Result<()>,
    ) -> Result<()>;

    /// Visits the elements of `key` in `bucket`, and says how many there are.
    fn read<Q: Lookup<K> + ?Sized>(
        &mut self,
        bucket: Time,
        key: &Q,
        visit: &mut dyn FnMut(&E) -> Result<()>,
    ) -> Result<u64> {
        let mut count = 0;
        self.stream(bucket, key, &mut |elements| {
            loop {
                let chunk = elements.next_chunk()?;
                if chunk.is_empty() {
                    return Ok(());
                }
                for element in chunk {
                    count += 1;
                    visit(element)?;
                }
            }
        })?;
        Ok(count)
    }

    /// Removes all elements of `key` in `bucket`: memory at once, storage when its bucket goes or
    /// is rewritten.
    fn clear_key<Q: Lookup<K> + ?Sized>(&mut self, bucket: Time, key: &Q) -> Result<()>;

    /// Moves the elements of `key` in `from` to `to`, a later bucket, before those that it has
    /// there. What is on storage stays there until `from` is prefetched, folded or purged.
    fn relocate<Q: Lookup<K> + ?Sized>(&mut self, from: Time, to: Time, key: &Q) -> Result<()>;

    /// The first bucket at or after `from` that has an element, or had one on storage that was
    /// cleared or moved since. Cost: O(log buckets).
    fn next_bucket(&self, from: Time) -> Option<Time>;

    /// Visits the keys that have elements in one of `buckets`, each with these elements, those of
    /// an earlier bucket first. About `fuel` elements are looked at (but a key is visited
    /// whole); then the next call goes on from `cursor`. Between calls nothing may be changed in these
    /// buckets. Elements that a visit leaves are skipped. A range that ends with [`Time::MAX`]
    /// includes that bucket.
    fn fold(
        &mut self,
        buckets: Range<Time>,
        cursor: &mut Cursor,
        fuel: usize,
        visit: &mut dyn FnMut(&K, &mut dyn Elements<E>) -> Result<()>,
    ) -> Result<()>;

    /// The lists by ranges of their keys' hashes, bucket by bucket, if they stand in their order.
    fn by_hash(&mut self) -> Option<&mut dyn ByHash<K, E, Time>> {
        None
    }

    /// Drops all buckets before `before`, whole, about `fuel` elements' worth of memory per
    /// call, and says whether that is done. They are no longer seen after the first call.
    fn purge(&mut self, before: Time, fuel: usize) -> Result<bool>;

    /// Tells that buckets before `until` will be read soon: their parts on storage are read back
    /// in the background as far as there is memory. The default does nothing.
    fn prefetch(&mut self, until: Time) -> Result<()> {
        let _ = until;
        Ok(())
    }

    /// Elements, in memory and on storage. Those that were cleared on storage count until they
    /// are gone there, as without a read nobody knows how many they are.
    fn len(&self) -> u64;

    /// Whether [`len`](Lists::len) is 0.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A description of a physical layout that opens [`Lists`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` keeps no lists of keys `{K}` and elements `{E}`",
    label = "`ListsLayout<{K}, {E}>` is not implemented for `{Self}`",
    note = "`AppendLog` and `Heap` take elements that are `State`"
)]
pub trait ListsLayout<K: Key, E>: Clone + 'static {
    /// The opened form.
    type Lists: Lists<K, E>;

    /// Short name, as in configuration files and manifests.
    fn name(&self) -> &'static str;

    /// The most memory this state may take, if less than what the store has.
    fn memory_limit(&self) -> Option<u64> {
        None
    }

    /// Opens the lists, restoring what the context says.
    fn open_lists(&self, context: StateContext) -> Result<Self::Lists>;
}

/// The buckets that a fold visits.
pub(crate) fn span(buckets: &Range<Time>) -> (Bound<Time>, Bound<Time>) {
    let end = match buckets.end {
        Time::MAX => Bound::Included(Time::MAX),
        end => Bound::Excluded(end.max(buckets.start)),
    };
    (Bound::Included(buckets.start), end)
}

/// What to fold for one bucket alone; `None` if that cannot be said, since a range that ends with the
/// end of time has that bucket too.
pub(crate) fn span_of<K: Key, E>(lists: &impl Lists<K, E>, bucket: Time) -> Option<Range<Time>> {
    let end = bucket.plus(1);
    let has_both = bucket < Time::MAX && end == Time::MAX && lists.next_bucket(end).is_some();
    (!has_both).then_some(bucket..end)
}

/// Takes the lists of all buckets: each with its bucket, key and elements.
pub type VisitList<'v, K, E> = &'v mut dyn FnMut(Time, &K, &mut dyn Elements<E>) -> Result<()>;

/// Visits all lists, bucket by bucket.
///
/// # Errors
/// Those of `visit` and of [`Lists::fold`].
pub fn for_each_list<K: Key, E>(
    lists: &mut impl Lists<K, E>,
    visit: VisitList<'_, K, E>,
) -> Result<()> {
    let mut next = lists.next_bucket(Time::MIN);
    while let Some(bucket) = next {
        let span = span_of(lists, bucket).ok_or_else(|| {
            let message = "lists in the last bucket of time and in the one for ever";
            Error::new(ErrorKind::Unsupported, message)
        })?;
        let mut cursor = Cursor::default();
        while !cursor.done {
            lists.fold(span.clone(), &mut cursor, 4096, &mut |key, elements| {
                visit(bucket, key, elements)
            })?;
        }
        next = bucket.0.checked_add(1).and_then(|after| lists.next_bucket(Time(after)));
    }
    Ok(())
}
