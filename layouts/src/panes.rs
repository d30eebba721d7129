//! What windowed state that is updated needs of a layout: accumulators by slice and key.
//!
//! A slice is a stretch of event time, named by where it starts. Windows are made of slices, so
//! that an event is written once, however many windows it is in. Everything is called by one
//! thread.

use std::ops::Range;
use std::rc::Rc;

use alluvium_pagestore::{Key, Lookup, Result, Time};

use crate::by_hash::ByHash;
use crate::table::{BatchError, Cursor, StateContext};
use crate::upkeep::Upkeep;

/// Adds the second accumulator to the first, which has what came before. Associative.
pub type Merge<A> = Rc<dyn Fn(&mut A, &A)>;

/// One accumulator per slice and key.
///
/// Calls either happen in full or change nothing, unless they say otherwise.
#[diagnostic::on_unimplemented(
    message = "`{Self}` keeps no panes of keys `{K}` and accumulators `{A}`",
    label = "`Panes<{K}, {A}>` is not implemented for `{Self}`"
)]
pub trait Panes<K: Key, A>: Upkeep {
    /// Applies `change` to the accumulator of `key` in `slice`, after putting `init()` there if
    /// memory has none. Never reads storage: what an accumulator had when it was written to
    /// storage is merged when it is read.
    fn update<Q: Lookup<K> + ?Sized, R>(
        &mut self,
        slice: Time,
        key: &Q,
        init: impl FnOnce() -> A,
        change: impl FnOnce(&mut A) -> R,
    ) -> Result<R>;

    /// [`update`](Panes::update) for each item of `batch`, in order.
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

    /// As [`Table::expect`](crate::Table::expect), of accumulators.
    fn expect(&mut self, panes: u64) {
        let _ = panes;
    }

    /// Until [`end_filling`](Panes::end_filling), accumulators only come, by [`update`](Panes::update) and
    /// [`update_batch`](Panes::update_batch), and nothing is asked but how many there are. What leads to them
    /// may be made in the end, all at once. The default does nothing.
    fn begin_filling(&mut self) {}

    /// All that was to come since [`begin_filling`](Panes::begin_filling) is there.
    ///
    /// # Errors
    /// Those of updating, of all that has come: then none of it is there.
    fn end_filling(&mut self) -> Result<()> {
        Ok(())
    }

    /// The accumulator of `key` in `slice`, with what is on storage.
    fn get<Q: Lookup<K> + ?Sized>(&mut self, slice: Time, key: &Q) -> Result<Option<A>>;

    /// Removes the accumulator of `key` in `slice`, wherever it is.
    fn remove<Q: Lookup<K> + ?Sized>(&mut self, slice: Time, key: &Q) -> Result<()>;

    /// The first slice at or after `from` that has an accumulator. Cost: O(log slices).
    fn next_slice(&self, from: Time) -> Option<Time>;

    /// Visits the keys that have an accumulator in one of `slices`, each with what they have
    /// there, merged in the order of slices. The order of keys is unspecified. About `fuel`
    /// accumulators are looked at, and up to 112 of each slice at the least; then the next call goes
    /// on from `cursor`. Between calls nothing may be changed in these slices.
    ///
    /// # Errors
    /// Those of `visit`, and of reading. The next call goes on with the key at which this one
    /// failed; what was visited before is not visited again. If that cannot be told any more, since
    /// the slices went to storage between the two calls, the next one visits nothing and fails with
    /// [`ErrorKind::Unsupported`](alluvium_pagestore::ErrorKind::Unsupported): the fold is to be
    /// begun anew, with a new cursor.
    fn fold(
        &mut self,
        slices: Range<Time>,
        cursor: &mut Cursor,
        fuel: usize,
        visit: &mut dyn FnMut(&K, A) -> Result<()>,
    ) -> Result<()>;

    /// Drops all slices before `before`, whole, about `fuel` accumulators' worth of memory per
    /// call, and says whether that is done. They are no longer seen after the first call. A checkpoint that is
    /// begun before it is done may have what is left of them: who opens that looks at no slice before the bound that it
    /// has purged to, and purges to it again.
    fn purge(&mut self, before: Time, fuel: usize) -> Result<bool>;

    /// The panes by ranges of their keys' hashes, slice by slice, if they stand in their order.
    fn by_hash(&mut self) -> Option<&mut dyn ByHash<K, A, Time>> {
        None
    }

    /// Tells that slices before `until` will be read soon: their parts on storage are read back in
    /// the background as far as there is memory. The default does nothing.
    fn prefetch(&mut self, until: Time) -> Result<()> {
        let _ = until;
        Ok(())
    }

    /// Accumulators in memory, and pieces of such on storage.
    fn len(&self) -> u64;

    /// Whether there is none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A description of a physical layout that opens [`Panes`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` keeps no panes of keys `{K}` and accumulators `{A}`",
    label = "`PanesLayout<{K}, {A}>` is not implemented for `{Self}`",
    note = "`WindowSegments`, `Heap` and `HybridLog` take accumulators that are `State`"
)]
pub trait PanesLayout<K: Key, A>: Clone + 'static {
    /// The opened form.
    type Panes: Panes<K, A>;

    /// Short name, as in configuration files and manifests.
    fn name(&self) -> &'static str;

    /// The most memory this state may take, if less than what the store has.
    fn memory_limit(&self) -> Option<u64> {
        None
    }

    /// Opens the panes, restoring what the context says.
    fn open_panes(&self, context: StateContext, merge: Merge<A>) -> Result<Self::Panes>;
}
