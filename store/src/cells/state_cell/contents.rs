//! A state's contents as the store sees them between calls: their types are erased.

use std::ops::RangeInclusive;

use alluvium_layouts::{Cursor, Part, Upkeep};
use alluvium_pagestore::{Encoded, Result, Time};

use super::{Core, Portable, StateCell};
use crate::api::expiring::Pass;
use crate::durability::export::{Entries, Entry, Visit, each};
use crate::durability::moving::Arriving;

/// What a [cell](StateCell) leaves to the types of its entries.
///
/// Of panes the parts are slices, of lists buckets; a map has one, whatever time is given.
pub(crate) trait Contents: 'static {
    fn upkeep(&self) -> &dyn Upkeep;

    fn upkeep_mut(&mut self) -> &mut dyn Upkeep;

    /// Whether it finds what it has of a key group.
    fn finds_groups(&mut self) -> bool;

    /// Stamps what expires after so many nanoseconds: nothing that is there was touched after `now`.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](alluvium_pagestore::ErrorKind::Unsupported) for a layout that cannot let entries
    /// expire as it is configured.
    fn stamp(&mut self, _now: Time, _life_nanos: u64) -> Result<()> {
        Ok(())
    }

    /// Memory that taking parts of other stores takes beside reading them.
    fn batch_bytes(&self) -> u64 {
        0
    }

    /// Puts what another store's checkpoint has.
    fn take(&mut self, part: &Part) -> Result<()>;

    /// Entries there are.
    fn len(&self) -> u64;

    /// About so many entries are going to be imported.
    fn expect(&mut self, _entries: u64) {}

    /// Removes some entries that are over.
    fn expire(&mut self, pass: &mut Pass, _fuel: usize) -> Result<()> {
        pass.cursor.done = true;
        Ok(())
    }

    /// Empties it, of which the memory comes with what is asked for next. Only what may be
    /// [dropped](Core::may_drop) is asked.
    fn purge(&mut self) -> Result<()> {
        Ok(())
    }

    /// Gives all entries, in any order.
    fn export(&mut self, to: &mut Outgoing<'_>) -> Result<()>;

    /// Whether all entries are given range of hashes by range about as fast as in any other order.
    fn is_fast_in_order(&mut self) -> bool {
        false
    }

    /// The part at this time, or the next one.
    fn next_part(&self, _from: Time) -> Option<Time> {
        None
    }

    /// Gives about `fuel` entries of a part with these hashes from a cursor on; says how many.
    fn visit_hashes(
        &mut self,
        part: Time,
        hashes: &RangeInclusive<u64>,
        cursor: &mut Cursor,
        fuel: usize,
        to: &mut Outgoing<'_>,
    ) -> Result<usize>;

    /// Removes about `fuel` entries of a part with these hashes from a cursor on; says how much of the fuel it
    /// took.
    fn remove_hashes(
        &mut self,
        part: Time,
        hashes: &RangeInclusive<u64>,
        cursor: &mut Cursor,
        fuel: usize,
    ) -> Result<usize>;

    /// Puts one entry, which was exported, and counts the call.
    fn import(&mut self, core: &Core, entry: Entry<'_>) -> Result<()>;

    /// Puts one entry of a key group that arrives.
    fn install(&mut self, core: &Core, entry: Entry<'_>, _arriving: &mut Arriving) -> Result<()> {
        self.import(core, entry)
    }

    /// Puts entries, which were exported: all, or those before one that cannot be put.
    fn import_all(cell: &StateCell<Self>, entries: &mut dyn Entries) -> Result<()>
    where
        Self: Sized,
    {
        each(entries, &mut |entry| cell.import(entry))
    }
}

/// Takes the entries of a state, encoded.
pub(crate) struct Outgoing<'v> {
    /// The entry at hand.
    pub(crate) encoded: &'v mut Encoded,
    /// Values that were touched last before this are over, and not given: they may or may not be there still.
    pub(crate) over: Time,
    visit: Visit<'v>,
}

impl<'v> Outgoing<'v> {
    pub(super) fn new(encoded: &'v mut Encoded, over: Time, visit: Visit<'v>) -> Self {
        Self { encoded, over, visit }
    }

    /// Gives the entry at hand.
    pub(crate) fn give(&mut self, hash: u64, order: Time) -> Result<()> {
        (self.visit)(Entry::of(hash, order.0, self.encoded))
    }
}
