//! The records of a table as they were at a barrier, read part by part while the table goes on changing.
//!
//! At the barrier nothing is copied. Parts are taken in the order of their places; who changes a record that was not
//! taken yet keeps what it was before, once. It is what [`heap::snapshot`](crate::heap::snapshot) is for entries whose
//! types are known.
//!
//! What it keeps true: taken and kept records together are those of the barrier, each once.

use std::rc::Rc;

use alluvium_pagestore::{Account, KeyHash, MemoryKind, Result};

use super::pane_type_unsafe::PaneType;
use crate::heap::entry_table_unsafe::{EntryTable, Keyed};
use crate::heap::hash_range::HashRange;
use crate::support::key_unsafe::{KeyRef, OwnedKey};
use crate::support::record_type_unsafe::RecordRef;

/// Bytes that are left free beside what is kept.
const KEPT_BYTES_MAX: u64 = 4 << 10;

/// The records of a table at a barrier.
pub struct RecordSnapshot {
    types: &'static PaneType,
    account: Rc<Account>,
    range: HashRange,
    /// The first place that was not taken; `None` if all were.
    next: Option<u64>,
    kept: EntryTable<Kept>,
    kept_bytes: u64,
}

/// What a key had at the barrier whose record has changed since: the record, or only the key if it had none.
struct Kept {
    owned: OwnedKey,
    is_record: bool,
}

impl Kept {
    fn key(&self, types: &PaneType) -> KeyRef<'_> {
        match self.is_record {
            true => types.key_of(self.owned.get().record()),
            false => self.owned.get(),
        }
    }
}

impl Keyed for Kept {
    fn hash_of_key(&self) -> u64 {
        self.owned.key_hash()
    }
}

impl RecordSnapshot {
    /// Everything is to be taken. Cost: O(1).
    pub fn new(types: &'static PaneType, account: &Rc<Account>, range: HashRange) -> Self {
        let kept = EntryTable::new(account.clone(), range);
        Self { types, account: account.clone(), range, next: Some(0), kept, kept_bytes: 0 }
    }

    fn has_kept(&self, hash: u64, is: &mut dyn FnMut(KeyRef<'_>) -> bool) -> bool {
        self.kept.find(hash, |kept| is(kept.key(self.types))).is_some()
    }

    /// Returns whether the record of the key that `is` has to be [kept](RecordSnapshot::keep) before it changes.
    pub fn wants(&self, hash: u64, is: &mut dyn FnMut(KeyRef<'_>) -> bool) -> bool {
        self.next.is_some_and(|next| self.range.place(hash) >= next) && !self.has_kept(hash, is)
    }

    /// Keeps the record of a key, which is about to change; `None` if it has none. Returns whether
    /// there was room for it.
    pub fn keep(&mut self, hash: u64, key: KeyRef<'_>, before: Option<RecordRef<'_>>) -> bool {
        let (owned, is_record) = (before.map_or(key, KeyRef::whole), before.is_some());
        let bytes = owned.owned_bytes();
        if self.account.available() < bytes + KEPT_BYTES_MAX {
            return false;
        }
        // Booked before the table grows into it.
        self.account.charge(MemoryKind::Buffers, bytes);
        self.kept_bytes += bytes;
        let owned = owned.to_owned();
        self.kept.insert(hash, || Kept { owned, is_record }).is_ok()
    }

    /// Returns where the part begins that is to be taken next; `None` if all were.
    pub fn next(&self) -> Option<u64> {
        self.next
    }

    /// Takes a part, which begins at [`next`](RecordSnapshot::next) and ends before `end`: gives those
    /// of its records that have not changed to `take`.
    pub fn take<'a>(
        &mut self,
        part: impl Iterator<Item = RecordRef<'a>>,
        end: Option<u64>,
        take: &mut dyn FnMut(RecordRef<'_>) -> Result<()>,
    ) -> Result<()> {
        let Some(next) = self.next else { return Ok(()) };
        for record in part {
            let hash = record.hash();
            let is_new = self.range.place(hash) >= next;
            let key = self.types.key_of(record);
            if is_new && !self.has_kept(hash, &mut |kept| kept == key) {
                take(record)?;
            }
        }
        self.next = end;
        Ok(())
    }

    /// Takes some of what was kept, once all parts were taken; returns whether there is more.
    pub fn take_kept(&mut self, take: &mut dyn FnMut(RecordRef<'_>) -> Result<()>) -> Result<bool> {
        assert!(self.next.is_none(), "parts are taken first");
        let Some(part) = self.kept.take_part() else {
            self.account.release(MemoryKind::Buffers, std::mem::take(&mut self.kept_bytes));
            return Ok(false);
        };
        for kept in part {
            if kept.is_record {
                take(kept.owned.get().record())?;
            }
        }
        Ok(true)
    }
}

impl Drop for RecordSnapshot {
    fn drop(&mut self) {
        self.account.release(MemoryKind::Buffers, self.kept_bytes);
    }
}

#[cfg(test)]
#[path = "snapshot_tests_unsafe.rs"]
mod tests;
