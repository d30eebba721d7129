//! The records of a table of window segments at a barrier: a [`Snapshot`] of records whose types are erased.

use std::rc::Rc;

use alluvium_pagestore::{Account, KeyHash, Result};

use super::pane_type_unsafe::PaneType;
use crate::heap::entry_table_unsafe::KeyedEntry;
use crate::heap::hash_range::HashRange;
use crate::heap::record_table_unsafe::RecordTable;
use crate::heap::snapshot::Snapshot;
use crate::support::key_unsafe::{KeyRef, OwnedKey};
use crate::support::record_type_unsafe::RecordRef;

/// The records of a table at a barrier.
pub struct RecordSnapshot {
    types: &'static PaneType,
    of: Snapshot<BarrierRecord>,
}

/// What a key had at the barrier whose record has changed since: the record, or only the key if it had none.
struct BarrierRecord {
    owned: OwnedKey,
    is_record: bool,
}

impl BarrierRecord {
    fn key(&self, types: &PaneType) -> KeyRef<'_> {
        match self.is_record {
            true => types.key_of(self.owned.get().record()),
            false => self.owned.get(),
        }
    }
}

impl KeyedEntry for BarrierRecord {
    fn hash_of_key(&self) -> u64 {
        self.owned.key_hash()
    }
}

impl RecordSnapshot {
    /// As [`Snapshot::new`].
    pub fn new(types: &'static PaneType, account: &Rc<Account>, range: HashRange) -> Self {
        Self { types, of: Snapshot::new(account, range) }
    }

    /// Returns whether the record of the key that `is` has to be [kept](RecordSnapshot::keep) before it changes.
    pub fn wants(&self, hash: u64, is: &mut dyn FnMut(KeyRef<'_>) -> bool) -> bool {
        self.of.wants(hash, |kept| is(kept.key(self.types)))
    }

    /// Keeps what the table has of a key, which is about to change, if it has to be kept. Returns whether there was room
    /// for it.
    pub fn keep(&mut self, table: Option<&RecordTable>, hash: u64, key: KeyRef<'_>) -> bool {
        if !self.wants(hash, &mut |kept| kept == key) {
            return true;
        }
        let types = self.types;
        let before = table.and_then(|table| table.find(hash, &mut |it| types.key_of(it) == key));
        let (owned, is_record) = (before.map_or(key, KeyRef::whole), before.is_some());
        self.of.keep(hash, owned.owned_bytes(), || BarrierRecord {
            owned: owned.to_owned(),
            is_record,
        })
    }

    /// Gives records of the barrier that were not taken yet to `take`: those of the next part of the table that have not
    /// changed, then some of what was kept. Returns whether there were any.
    pub fn take_some(
        &mut self,
        table: Option<&RecordTable>,
        take: &mut dyn FnMut(RecordRef<'_>) -> Result<()>,
    ) -> Result<bool> {
        let Some(place) = self.of.next else {
            return self.of.take_kept(|kept| match kept.is_record {
                true => take(kept.owned.get().record()),
                false => Ok(()),
            });
        };
        let types = self.types;
        let is =
            |kept: &BarrierRecord, record: &RecordRef<'_>| kept.key(types) == types.key_of(*record);
        let (part, end) = table.map(|table| table.part_at(place)).unzip();
        let records = part.into_iter().flat_map(|part| part.iter());
        self.of.take(records.map(|record| (record.hash(), record)), end.flatten(), is, take)?;
        Ok(true)
    }
}

#[cfg(test)]
#[path = "snapshot_tests_unsafe.rs"]
mod tests;
