//! State by ranges of hashes: what it takes for key groups to come and go.
//!
//! A key group is a range of hashes. State that stands in their order finds what it has of a group without
//! a look at the others: to give it to another store, to forget it, or to write all range by range.

use std::ops::RangeInclusive;

use alluvium_pagestore::Result;

use crate::table::Cursor;

/// Takes what a key has, in runs: each with its key, how many of the key's values come before it, and its
/// values, in order.
pub type VisitRun<'v, K, V> = &'v mut dyn FnMut(&K, u64, &[V]) -> Result<()>;

/// State that stands in the order of its keys' hashes.
///
/// It is asked part by part: a [table](crate::Table) is one, `()`; of [panes](crate::Panes) the parts are
/// slices, of [lists](crate::Lists) buckets. In a table or a slice a key has one value, which is a run.
pub trait ByHash<K, V, P = ()> {
    /// Whether to visit everything range by range is about as fast as in any other order: nothing has to
    /// be read for it. Not unless the state says so.
    fn is_fast_in_order(&self) -> bool {
        false
    }

    /// Visits what keys with these hashes have in `part`. About `fuel` values are looked at; then the next
    /// call goes on from `cursor`. No hash that a call visits is above one that a later call visits. The
    /// values of a key come one run after the other; a list may go on in the next call, while all keys of a
    /// table that have one hash come in one call. Between calls nothing of these keys may change; in a
    /// table it may, as in a [scan](crate::Table::scan).
    ///
    /// Cost: that of the values there, and of the places in which `part` is kept at both ends of the range.
    ///
    /// # Errors
    /// Those of `visit` and of reading. The next call begins with the run at which this one failed, or,
    /// in a table, where this call began.
    fn visit_hashes(
        &mut self,
        part: P,
        hashes: &RangeInclusive<u64>,
        cursor: &mut Cursor,
        fuel: usize,
        visit: VisitRun<'_, K, V>,
    ) -> Result<()>;

    /// Removes about `fuel` values that keys with these hashes have in `part`, whole lists, from `cursor`
    /// on, and says how much of the fuel it took. Reads nothing from storage, unless the state says
    /// so. Between calls nothing of these keys may come.
    ///
    /// # Errors
    /// [`ErrorKind::OverBudget`](alluvium_pagestore::ErrorKind::OverBudget) without memory for a step.
    fn remove_hashes(
        &mut self,
        part: P,
        hashes: &RangeInclusive<u64>,
        cursor: &mut Cursor,
        fuel: usize,
    ) -> Result<usize>;
}
