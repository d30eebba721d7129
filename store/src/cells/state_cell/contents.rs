//! A state's contents as the store sees them between calls: their types are erased.

use std::any::Any;
use std::ops::RangeInclusive;
use std::rc::Rc;

use alluvium_layouts::{Cursor, ForeignState, Upkeep};
use alluvium_pagestore::{Encoded, KeyGroup, Result, Time};

use super::{CellCore, Portable, StateCell};
use crate::api::expiring::SweepPass;
use crate::durability::export::{CanonicalEntry, ImportEntries, VisitCanonical, each};
use crate::durability::moving::{EntryArrival, in_order};

/// What a [cell](StateCell) leaves to the types of its entries.
///
/// Of panes the parts are slices, of lists buckets; a map has one, whatever time is given.
pub(crate) trait CellContents: 'static {
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
    fn take(&mut self, part: &ForeignState) -> Result<()>;

    /// Entries there are.
    fn len(&self) -> u64;

    /// About so many entries are going to be imported.
    fn expect(&mut self, _entries: u64) {}

    /// Removes some entries that are over.
    fn expire(&mut self, pass: &mut SweepPass, _fuel: usize) -> Result<()> {
        pass.cursor.done = true;
        Ok(())
    }

    /// Empties it, of which the memory comes with what is asked for next. Only what may be
    /// [dropped](CellCore::may_drop) is asked.
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

    /// What has its entries by key groups, and in no order of their hashes: the two calls after this one are not for it.
    fn in_groups(&mut self) -> Option<&mut dyn InGroups> {
        None
    }

    /// Gives about `fuel` entries of a part with these hashes from a cursor on; says how many.
    fn visit_hashes(
        &mut self,
        _part: Time,
        _hashes: &RangeInclusive<u64>,
        _cursor: &mut Cursor,
        _fuel: usize,
        _to: &mut Outgoing<'_>,
    ) -> Result<usize> {
        in_order::<()>(None).map(|()| 0)
    }

    /// Removes about `fuel` entries of a part with these hashes from a cursor on; says how much of the fuel it
    /// took.
    fn remove_hashes(
        &mut self,
        _part: Time,
        _hashes: &RangeInclusive<u64>,
        _cursor: &mut Cursor,
        _fuel: usize,
    ) -> Result<usize> {
        in_order::<()>(None).map(|()| 0)
    }

    /// Puts one entry, which was exported, and counts the call.
    fn import(&mut self, core: &CellCore, entry: CanonicalEntry<'_>) -> Result<()>;

    /// Puts one entry of a key group that arrives.
    fn install(
        &mut self,
        core: &CellCore,
        entry: CanonicalEntry<'_>,
        _arriving: &mut EntryArrival,
    ) -> Result<()> {
        self.import(core, entry)
    }

    /// Puts entries, which were exported: all, or those before one that cannot be put.
    fn import_all(cell: &StateCell<Self>, entries: &mut dyn ImportEntries) -> Result<()>
    where
        Self: Sized,
    {
        each(entries, &mut |entry| cell.import(entry))
    }
}

/// Entries that are kept by key groups.
pub(crate) trait InGroups {
    /// Gives `fuel` entries of a group after one that was given, which it notes; says whether there are no more.
    fn visit_group(
        &mut self,
        group: KeyGroup,
        after: &mut Option<Rc<dyn Any>>,
        fuel: usize,
        to: &mut Outgoing<'_>,
    ) -> Result<bool>;

    /// Removes `fuel` entries of a group; says whether there are no more.
    fn remove_group(&mut self, group: KeyGroup, fuel: usize) -> Result<bool>;

    /// What is due of a group may fire, or may not.
    fn wake(&mut self, group: KeyGroup, awake: bool);
}

/// Takes the entries of a state, encoded.
pub(crate) struct Outgoing<'v> {
    /// The entry at hand.
    pub(crate) encoded: &'v mut Encoded,
    /// Values that were touched last before this are over, and not given: they may or may not be there still.
    pub(crate) over: Time,
    visit: VisitCanonical<'v>,
}

impl<'v> Outgoing<'v> {
    pub(super) fn new(encoded: &'v mut Encoded, over: Time, visit: VisitCanonical<'v>) -> Self {
        Self { encoded, over, visit }
    }

    /// Gives the entry at hand.
    pub(crate) fn give(&mut self, hash: u64, order: Time) -> Result<()> {
        (self.visit)(CanonicalEntry::of(hash, order.0, self.encoded))
    }
}
