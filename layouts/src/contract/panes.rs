//! Accumulators by slice and key: what windows that fold their events need of a layout.
//!
//! A slice is a stretch of event time, named by its start. Windows consist of slices, and an event
//! is written once, however many windows contain it. One thread makes all calls.

use std::ops::Range;
use std::rc::Rc;

use alluvium_pagestore::{Error, Key, Lookup, Result, Time};

use crate::contract::by_hash::ByHash;
use crate::contract::table::{BatchError, Cursor, StateContext};
use crate::contract::upkeep::Upkeep;
use crate::heap::entry_part_unsafe::EntryIter;
use crate::support::record_type_unsafe::NativeEntry;

/// Merges the second accumulator into the first, which holds the earlier events. Must be
/// associative.
pub type Merge<A> = Rc<dyn Fn(&mut A, &A)>;

/// Keys and what is kept of them, next to each other in a layout's memory.
#[derive(Debug)]
pub struct PaneRun<'a, K, A>(PaneEntries<'a, K, A>);

#[derive(Debug)]
enum PaneEntries<'a, K, A> {
    One(Option<(&'a K, &'a A)>),
    Table(EntryIter<'a, NativeEntry<K, A>>),
}

impl<'a, K, A> PaneRun<'a, K, A> {
    /// A run of one key.
    pub fn of_one(key: &'a K, acc: &'a A) -> Self {
        Self(PaneEntries::One(Some((key, acc))))
    }

    #[inline]
    pub(crate) fn of_table(entries: EntryIter<'a, NativeEntry<K, A>>) -> Self {
        Self(PaneEntries::Table(entries))
    }

    /// What is left of a run of a table.
    #[inline]
    pub(crate) fn table_mut(&mut self) -> Option<&mut EntryIter<'a, NativeEntry<K, A>>> {
        match &mut self.0 {
            PaneEntries::Table(entries) => Some(entries),
            PaneEntries::One(_) => None,
        }
    }
}

impl<'a, K, A> Iterator for PaneRun<'a, K, A> {
    type Item = (&'a K, &'a A);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        match &mut self.0 {
            PaneEntries::Table(entries) => entries.next().map(|entry| (&entry.key, &entry.value)),
            PaneEntries::One(one) => one.take(),
        }
    }

    /// All of the rest: in a table it is walked without a look at what the run is of.
    #[inline]
    fn fold<B, F: FnMut(B, Self::Item) -> B>(self, init: B, mut f: F) -> B {
        match self.0 {
            PaneEntries::Table(entries) => {
                entries.fold(init, |all, entry| f(all, (&entry.key, &entry.value)))
            }
            PaneEntries::One(one) => one.into_iter().fold(init, f),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let len = match &self.0 {
            PaneEntries::Table(entries) => entries.len(),
            PaneEntries::One(one) => usize::from(one.is_some()),
        };
        (len, Some(len))
    }
}

impl<K, A> ExactSizeIterator for PaneRun<'_, K, A> {}

/// One accumulator per slice and key.
///
/// A call takes effect in full or changes nothing, unless its documentation says otherwise.
#[diagnostic::on_unimplemented(
    message = "`{Self}` keeps no panes of keys `{K}` and accumulators `{A}`",
    label = "`Panes<{K}, {A}>` is not implemented for `{Self}`"
)]
pub trait Panes<K: Key, A>: Upkeep {
    /// Applies `change` to the accumulator of `key` in `slice`. Inserts `init()` first if memory
    /// has none. Never reads from storage: reads merge what is there.
    fn update<Q: Lookup<K> + ?Sized, R>(
        &mut self,
        slice: Time,
        key: &Q,
        init: impl FnOnce() -> A,
        change: impl FnOnce(&mut A) -> R,
    ) -> Result<R>;

    /// Does [`update`](Panes::update) for each item of `batch`, in order.
    fn update_batch<T, Q: Lookup<K> + ?Sized>(
        &mut self,
        batch: &[T],
        place: impl Fn(&T) -> (Time, &Q),
        mut init: impl FnMut(&T) -> A,
        mut change: impl FnMut(&T, &mut A),
    ) -> std::result::Result<(), BatchError> {
        for (applied, item) in batch.iter().enumerate() {
            let (slice, key) = place(item);
            self.update(slice, key, || init(item), |value| change(item, value))
                .map_err(|error| BatchError { applied, error })?;
        }
        Ok(())
    }

    /// Does [`update`](Panes::update) in `slice` for each key of a [run](PaneRun), with what the run has of
    /// the key.
    ///
    /// # Errors
    /// Those of `update`, with the key that failed. The rest stays in the run.
    fn update_run<'a, B>(
        &mut self,
        slice: Time,
        run: &mut PaneRun<'a, K, B>,
        init: impl Fn() -> A,
        change: impl Fn(&mut A, &B),
    ) -> std::result::Result<(), (Error, &'a K, &'a B)> {
        for (key, with) in run {
            self.update(slice, key, &init, |acc| change(acc, with))
                .map_err(|error| (error, key, with))?;
        }
        Ok(())
    }

    /// Announces about `panes` accumulators, as [`Table::expect`](crate::Table::expect) does for
    /// keys.
    fn expect(&mut self, panes: u64) {
        let _ = panes;
    }

    /// Returns the accumulator of `key` in `slice`, merged with its parts on storage.
    fn get<Q: Lookup<K> + ?Sized>(&mut self, slice: Time, key: &Q) -> Result<Option<A>>;

    /// Removes the accumulator of `key` in `slice`, in memory and on storage.
    fn remove<Q: Lookup<K> + ?Sized>(&mut self, slice: Time, key: &Q) -> Result<()>;

    /// Returns the first slice at or after `from` that has an accumulator. Cost: O(log slices).
    fn next_slice(&self, from: Time) -> Option<Time>;

    /// Visits each key with an accumulator in `slices`, with its accumulators merged in the order
    /// of slices. The order of keys is unspecified. A call examines about `fuel` accumulators,
    /// though it may examine up to 112 of each slice; the next call continues from `cursor`. Change
    /// nothing in these slices between calls.
    ///
    /// # Errors
    /// Those of `visit` and of reading. The next call continues with the key that failed, and
    /// visits no key again. If the slices went to storage between the two calls, that key may be
    /// unknown; then the next call visits nothing and fails with
    /// [`ErrorKind::Unsupported`](alluvium_pagestore::ErrorKind::Unsupported). Start the fold again
    /// with a new cursor.
    fn fold(
        &mut self,
        slices: Range<Time>,
        cursor: &mut Cursor,
        fuel: usize,
        visit: &mut dyn FnMut(&K, A) -> Result<()>,
    ) -> Result<()>;

    /// Does what [`fold`](Panes::fold) does with a visit that cannot fail, and lends the accumulators,
    /// in [runs](PaneRun). What `visit` leaves of a run is lost. Calls of both can follow each other with one
    /// cursor. The default calls `fold`; a layout with all of the slices in one table need not clone.
    ///
    /// # Errors
    /// Those of reading.
    fn visit(
        &mut self,
        slices: Range<Time>,
        cursor: &mut Cursor,
        fuel: usize,
        mut visit: impl FnMut(PaneRun<'_, K, A>),
    ) -> Result<()> {
        self.fold(slices, cursor, fuel, &mut |key, acc| {
            visit(PaneRun::of_one(key, &acc));
            Ok(())
        })
    }

    /// Drops all slices before `before`. A call frees the memory of about `fuel` accumulators and
    /// returns whether the purge is complete. The first call hides the slices. A checkpoint started
    /// before the purge is complete may contain their rest. After restoring it, read no slice
    /// before the bound, and purge to the bound again.
    fn purge(&mut self, before: Time, fuel: usize) -> Result<bool>;

    /// Returns the panes by ranges of key hashes, slice by slice, if they are stored in the order
    /// of hashes.
    fn by_hash(&mut self) -> Option<&mut dyn ByHash<K, A, Time>> {
        None
    }

    /// Announces reads of the slices before `until`. The layout reads their parts on storage back
    /// in the background, while there is memory. The default does nothing.
    fn prefetch(&mut self, until: Time) -> Result<()> {
        let _ = until;
        Ok(())
    }

    /// Returns the number of accumulators in memory and of their parts on storage.
    fn len(&self) -> u64;

    /// Returns whether [`len`](Panes::len) is 0.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Describes a physical layout and opens [`Panes`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` keeps no panes of keys `{K}` and accumulators `{A}`",
    label = "`PanesLayout<{K}, {A}>` is not implemented for `{Self}`",
    note = "`WindowSegments`, `Heap` and `HybridLog` take accumulators that are `State`"
)]
pub trait PanesLayout<K: Key, A>: Clone + 'static {
    /// The opened panes.
    type Panes: Panes<K, A>;

    /// Returns the layout's short name, used in configuration files and manifests.
    fn name(&self) -> &'static str;

    /// Returns the most memory that this state may take, if less than the store's.
    fn memory_limit(&self) -> Option<u64> {
        None
    }

    /// Opens the panes and restores the image in `context`.
    fn open_panes(&self, context: StateContext, merge: Merge<A>) -> Result<Self::Panes>;
}
