//! State in the order of key hashes, which moving key groups requires.
//!
//! A key group is a range of hashes. State in their order finds the entries of one group without
//! examining the others: to move the group, to drop it, or to write everything range by range.

use std::ops::RangeInclusive;

use alluvium_pagestore::Result;

use crate::contract::table::Cursor;

/// Receives the values of a key in runs: the key, the number of its values before this run, and the
/// values of the run in order.
pub type VisitRun<'v, K, V> = &'v mut dyn FnMut(&K, u64, &[V]) -> Result<()>;

/// State stored in the order of its keys' hashes.
///
/// Calls name a part `P`. A [table](crate::Table) is one part, `()`; the parts of
/// [panes](crate::Panes) are slices, those of [lists](crate::Lists) buckets. In a table or a slice,
/// each key has one value, which is one run.
pub trait ByHash<K, V, P = ()> {
    /// Returns whether visiting by ranges is about as fast as in any other order, because it needs
    /// no reads. Default: `false`.
    fn is_fast_in_order(&self) -> bool {
        false
    }

    /// Visits the values in `part` of keys with these hashes. A call examines about `fuel` values;
    /// the next call continues from `cursor`. Hashes never decrease from one call to the next. The
    /// runs of a key follow each other. A list may continue in the next call; all keys of a table
    /// with the same hash come in one call. Do not change these keys between calls; a table allows
    /// it, as a [scan](crate::Table::scan) does.
    ///
    /// Cost: proportional to the values visited, plus the table parts that contain the ends of the
    /// range.
    ///
    /// # Errors
    /// Those of `visit` and of reading. The next call starts with the run that failed; in a table
    /// it starts where this call did.
    fn visit_hashes(
        &mut self,
        part: P,
        hashes: &RangeInclusive<u64>,
        cursor: &mut Cursor,
        fuel: usize,
        visit: VisitRun<'_, K, V>,
    ) -> Result<()>;

    /// Removes about `fuel` values in `part` of keys with these hashes, from `cursor` on, lists
    /// whole. Returns the fuel used. Reads nothing from storage, unless the layout documents it.
    /// Add none of these keys between calls.
    ///
    /// # Errors
    /// [`ErrorKind::OverBudget`](alluvium_pagestore::ErrorKind::OverBudget) if there is no memory
    /// for a step.
    fn remove_hashes(
        &mut self,
        part: P,
        hashes: &RangeInclusive<u64>,
        cursor: &mut Cursor,
        fuel: usize,
    ) -> Result<usize>;
}
