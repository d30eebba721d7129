//! A hash table as it was at a barrier, read part by part while it goes on changing.
//!
//! At the barrier nothing is copied. Parts are taken in the order of their places; who changes an
//! entry that was not taken yet keeps what it was before, once.
//!
//! What it keeps true: taken and kept entries together are those of the barrier, each once.

use std::rc::Rc;

use alluvium_pagestore::{Account, HeapSize, KeyHash, Lookup, MemoryKind, Result};

use crate::heap::entry_table_unsafe::{EntryTable, FrozenTable, Keyed};
use crate::heap::hash_range::HashRange;

/// Bytes that are left free beside what is kept.
const KEPT_BYTES_MAX: u64 = 4 << 10;

/// An entry of a table, by a key.
pub trait Entry<K>: Clone {
    /// What it is found by.
    fn key(&self) -> &K;
    /// Heap bytes that a copy of it owns.
    fn owned_bytes(&self) -> u64;
}

/// The entries of a table at a barrier.
#[derive(Debug)]
pub struct Snapshot<K, T> {
    account: Rc<Account>,
    range: HashRange,
    /// The first place that was not taken; `None` if all were.
    next: Option<u64>,
    kept: EntryTable<Kept<K, T>>,
    kept_bytes: u64,
    /// Whether something changed that could not be kept.
    is_lost: bool,
}

/// A key whose entry has changed since the barrier, and what it had then.
#[derive(Debug)]
pub struct Kept<K, T> {
    key: K,
    before: Option<T>,
}

impl<K: KeyHash + 'static, T: 'static> Keyed for Kept<K, T> {
    fn hash_of_key(&self) -> u64 {
        self.key.key_hash()
    }
}

impl<K: KeyHash + HeapSize + Eq + 'static, T: Entry<K> + 'static> Snapshot<K, T> {
    /// Everything is to be taken. Cost: O(1).
    pub fn new(account: &Rc<Account>, range: HashRange) -> Self {
        let kept = EntryTable::new(account.clone(), range);
        Self { account: account.clone(), range, next: Some(0), kept, kept_bytes: 0, is_lost: false }
    }

    /// Whether a key's entry has to be [kept](Snapshot::keep) before it changes.
    pub fn wants<Q: Lookup<K> + ?Sized>(&self, hash: u64, key: &Q) -> bool {
        self.next.is_some_and(|next| self.range.place(hash) >= next)
            && self.kept.find(hash, |kept| key.is(&kept.key)).is_none()
    }

    /// Keeps what a key has, which is about to change; `None` if it has nothing. Says whether there
    /// was room for it: if not, and it changes, the snapshot is [lost](Snapshot::lose).
    pub fn keep<Q: Lookup<K> + ?Sized>(&mut self, hash: u64, key: &Q, before: Option<&T>) -> bool {
        let key = key.to_owned();
        let bytes = key.heap_bytes() as u64 + before.map_or(0, T::owned_bytes);
        if self.account.available() < bytes + KEPT_BYTES_MAX {
            return false;
        }
        // Booked before the table grows into it.
        self.account.charge(MemoryKind::Buffers, bytes);
        self.kept_bytes += bytes;
        let make = || Kept { key, before: before.cloned() };
        self.kept.insert(hash, make).is_ok()
    }

    /// Gives all of it up: what is read from now on is not what was there.
    pub fn lose(&mut self) {
        self.is_lost = true;
        self.next = None;
        while self.kept.take_part().is_some() {}
    }

    /// Takes out what was kept, as a table for another thread to drop. What is booked is the caller's to release: for the
    /// table [as it says](crate::heap::raw_table_unsafe::RawTable::memory_bytes), and as buffers so many bytes for what the
    /// entries own. Cost: O(1).
    pub fn take_all_kept(&mut self) -> (FrozenTable<Kept<K, T>>, u64) {
        (self.kept.freeze(), std::mem::take(&mut self.kept_bytes))
    }

    /// Whether it was given up.
    pub fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// Where the part begins that is to be taken next; `None` if all were.
    pub fn next(&self) -> Option<u64> {
        self.next
    }

    /// Takes a part, which begins at [`next`](Snapshot::next) and ends before `end`: gives those of
    /// its entries that have not changed to `take`.
    pub fn take<'a>(
        &mut self,
        part: impl IntoIterator<Item = &'a T>,
        end: Option<u64>,
        mut take: impl FnMut(&T) -> Result<()>,
    ) -> Result<()>
    where
        T: 'a,
    {
        let Some(next) = self.next else { return Ok(()) };
        for entry in part {
            let hash = entry.key().key_hash();
            let is_new = self.range.place(hash) >= next;
            if is_new && self.kept.find(hash, |kept| kept.key == *entry.key()).is_none() {
                take(entry)?;
            }
        }
        self.next = end;
        Ok(())
    }

    /// Takes some of what was kept, once all parts were taken; says whether there is more.
    pub fn take_kept(&mut self, mut take: impl FnMut(&T) -> Result<()>) -> Result<bool> {
        assert!(self.next.is_none(), "parts are taken first");
        let Some(part) = self.kept.take_part() else {
            self.account.release(MemoryKind::Buffers, std::mem::take(&mut self.kept_bytes));
            return Ok(false);
        };
        for kept in part {
            kept.before.iter().try_for_each(&mut take)?;
        }
        Ok(true)
    }
}

impl<K, T> Drop for Snapshot<K, T> {
    fn drop(&mut self) {
        self.account.release(MemoryKind::Buffers, self.kept_bytes);
    }
}
