//! Lists of elements by bucket and key, in order of arrival: what lists and holistic windows need
//! of a layout.
//!
//! A bucket is the unit of purging. Its time is the start of a slice for aligned windows, the time
//! by which a session has ended for sessions, and [`Time::MAX`] for lists that stay. One thread
//! makes all calls.

use std::ops::{Bound, Range};

use alluvium_pagestore::{Error, ErrorKind, Key, Lookup, Rejected, Result, Time};

use crate::contract::by_hash::ByHash;
use crate::contract::table::{Cursor, StateContext};
use crate::contract::upkeep::Upkeep;

/// The elements of one list, read one after the other. Elements on storage are never in memory all
/// at once.
pub trait Elements<E> {
    /// Returns the next element, `None` after the last.
    ///
    /// # Errors
    /// Those of storage, and [`ErrorKind::Corrupt`](alluvium_pagestore::ErrorKind::Corrupt).
    fn next(&mut self) -> Result<Option<&E>>;

    /// Returns the next elements, as many as are contiguous; an empty slice after the last. Reads
    /// small elements several times as fast as [`next`](Elements::next). Both may be mixed.
    ///
    /// # Errors
    /// Those of [`next`](Elements::next).
    fn next_chunk(&mut self) -> Result<&[E]> {
        Ok(self.next()?.map_or(&[], std::slice::from_ref))
    }
}

/// A list of elements per bucket and key.
///
/// A call takes effect in full or changes nothing, unless its documentation says otherwise.
#[diagnostic::on_unimplemented(
    message = "`{Self}` keeps no lists of keys `{K}` and elements `{E}`",
    label = "`Lists<{K}, {E}>` is not implemented for `{Self}`"
)]
pub trait Lists<K: Key, E>: Upkeep {
    /// Announces folds over buckets whose times differ by less than `span`. The layout keeps memory
    /// for them. The default does nothing.
    fn fold_at_once(&mut self, span: i128) {
        let _ = span;
    }

    /// Appends an element to the list of `key` in `bucket`. Never reads from storage. An error
    /// returns the element.
    fn append<Q: Lookup<K> + ?Sized>(
        &mut self,
        bucket: Time,
        key: &Q,
        element: E,
    ) -> std::result::Result<(), Rejected<E>>;

    /// Does [`append`](Lists::append) for each item of `batch`, in order, and leaves it empty.
    /// After an error the items that were not appended remain in `batch`.
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

    /// Calls `visit` once with a reader of the elements of `key` in `bucket`. Does not call it if
    /// there are none.
    fn stream<Q: Lookup<K> + ?Sized>(
        &mut self,
        bucket: Time,
        key: &Q,
        visit: &mut dyn FnMut(&mut dyn Elements<E>) -> Result<()>,
    ) -> Result<()>;

    /// Visits the elements of `key` in `bucket` and returns their number.
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

    /// Removes all elements of `key` in `bucket`. Frees memory at once, and storage when the bucket
    /// is purged or rewritten.
    fn clear_key<Q: Lookup<K> + ?Sized>(&mut self, bucket: Time, key: &Q) -> Result<()>;

    /// Moves the elements of `key` from bucket `from` to the later bucket `to`, before the elements
    /// already there. Elements on storage stay there until `from` is prefetched, folded or purged.
    fn relocate<Q: Lookup<K> + ?Sized>(&mut self, from: Time, to: Time, key: &Q) -> Result<()>;

    /// Returns the first bucket at or after `from` that has elements. It may also be a bucket whose
    /// elements on storage were cleared or moved. Cost: O(log buckets).
    fn next_bucket(&self, from: Time) -> Option<Time>;

    /// Visits each key with elements in `buckets`, with these elements, earlier buckets first. A
    /// call examines about `fuel` elements, but visits a key whole; the next call continues from
    /// `cursor`. Change nothing in these buckets between calls. Elements that `visit` does not read
    /// are skipped. A range that ends with [`Time::MAX`] includes that bucket.
    fn fold(
        &mut self,
        buckets: Range<Time>,
        cursor: &mut Cursor,
        fuel: usize,
        visit: &mut dyn FnMut(&K, &mut dyn Elements<E>) -> Result<()>,
    ) -> Result<()>;

    /// Returns the lists by ranges of key hashes, bucket by bucket, if they are stored in the order
    /// of hashes.
    fn by_hash(&mut self) -> Option<&mut dyn ByHash<K, E, Time>> {
        None
    }

    /// Drops all buckets before `before`. A call frees the memory of about `fuel` elements and
    /// returns whether the purge is complete. The first call hides the buckets.
    fn purge(&mut self, before: Time, fuel: usize) -> Result<bool>;

    /// Announces reads of the buckets before `until`. The layout reads their parts on storage back
    /// in the background, while there is memory. The default does nothing.
    fn prefetch(&mut self, until: Time) -> Result<()> {
        let _ = until;
        Ok(())
    }

    /// Returns the number of elements in memory and on storage. Elements cleared on storage count
    /// until they are removed there, since counting them would need a read.
    fn len(&self) -> u64;

    /// Returns whether [`len`](Lists::len) is 0.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Describes a physical layout and opens [`Lists`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` keeps no lists of keys `{K}` and elements `{E}`",
    label = "`ListsLayout<{K}, {E}>` is not implemented for `{Self}`",
    note = "`AppendLog` and `Heap` take elements that are `State`"
)]
pub trait ListsLayout<K: Key, E>: Clone + 'static {
    /// The opened lists.
    type Lists: Lists<K, E>;

    /// Returns the layout's short name, used in configuration files and manifests.
    fn name(&self) -> &'static str;

    /// Returns the most memory that this state may take, if less than the store's.
    fn memory_limit(&self) -> Option<u64> {
        None
    }

    /// Opens the lists and restores the image in `context`.
    fn open_lists(&self, context: StateContext) -> Result<Self::Lists>;
}

/// Returns the bounds of the buckets that a fold visits.
pub(crate) fn span(buckets: &Range<Time>) -> (Bound<Time>, Bound<Time>) {
    let end = match buckets.end {
        Time::MAX => Bound::Included(Time::MAX),
        end => Bound::Excluded(end.max(buckets.start)),
    };
    (Bound::Included(buckets.start), end)
}

/// What to fold for one bucket alone; `None` if that cannot be said, since a range that ends with
/// the end of time has that bucket too.
pub(crate) fn span_of<K: Key, E>(lists: &impl Lists<K, E>, bucket: Time) -> Option<Range<Time>> {
    span_alone(bucket, |from| lists.next_bucket(from))
}

/// The same by a function that tells the first bucket at or after a time.
pub(crate) fn span_alone(
    bucket: Time,
    next: impl FnOnce(Time) -> Option<Time>,
) -> Option<Range<Time>> {
    let end = bucket.plus(1);
    let has_both = bucket < Time::MAX && end == Time::MAX && next(end).is_some();
    (!has_both).then_some(bucket..end)
}

/// Receives one list: its bucket, key and elements.
pub type VisitList<'v, K, E> = &'v mut dyn FnMut(Time, &K, &mut dyn Elements<E>) -> Result<()>;

/// Visits all lists, bucket by bucket.
///
/// # Errors
/// Those of `visit` and of [`Lists::fold`]. [`ErrorKind::Unsupported`] if lists are both in the
/// bucket before [`Time::MAX`] and in that of `Time::MAX`.
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
