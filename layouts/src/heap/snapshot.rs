//! A hash table as it was at a barrier, read part by part while it goes on changing.
//!
//! At the barrier nothing is copied. Parts are taken in the order of their places; who changes an
//! entry that was not taken yet keeps what it was before, once.
//!
//! What it keeps true: taken and kept entries together are those of the barrier, each once.

use std::rc::Rc;

use alluvium_pagestore::{Account, Result};

use crate::heap::entry_table_unsafe::{EntryTable, FrozenTable, KeyedEntry};
use crate::heap::hash_range::HashRange;
use crate::support::booked::Booked;

/// Bytes that are left free beside what is kept.
const KEPT_BYTES_MAX: u64 = 4 << 10;

/// The entries of a table at a barrier. Of a key whose entry has changed since, a `T` says what it had.
#[derive(Debug)]
pub(crate) struct Snapshot<T> {
    pub range: HashRange,
    /// The first place that was not taken; `None` if all were.
    pub next: Option<u64>,
    pub kept: EntryTable<T>,
    /// For what kept entries own.
    pub booked: Booked,
    /// Whether something changed that could not be kept.
    is_lost: bool,
}

impl<T: KeyedEntry> Snapshot<T> {
    /// Everything is to be taken. Cost: O(1).
    pub fn new(account: &Rc<Account>, range: HashRange) -> Self {
        let kept = EntryTable::new(account.clone(), range);
        let booked = Booked::buffers(account.clone(), 0);
        Self { range, next: Some(0), kept, booked, is_lost: false }
    }

    /// Whether the entry of a key has to be [kept](Snapshot::keep) before it changes. `is` finds what was kept of it.
    pub fn wants(&self, hash: u64, is: impl FnMut(&T) -> bool) -> bool {
        self.next.is_some_and(|next| self.range.place(hash) >= next)
            && self.kept.find(hash, is).is_none()
    }

    /// Keeps what a key has, which is about to change, and which owns so much heap. Says whether there was room for it: if
    /// not, and it changes, the snapshot is [lost](Snapshot::lose).
    pub fn keep(&mut self, hash: u64, bytes: u64, make: impl FnOnce() -> T) -> bool {
        if self.booked.account().available() < bytes + KEPT_BYTES_MAX {
            return false;
        }
        // Booked before the table grows into it.
        self.booked.charge(bytes);
        let is_kept = self.kept.insert(hash, make).is_ok();
        if !is_kept {
            self.booked.give_some_back(bytes);
        }
        is_kept
    }

    /// Gives all of it up: what is read from now on is not what was there.
    pub fn lose(&mut self) {
        self.is_lost = true;
        self.next = None;
        while self.kept.take_part().is_some() {}
    }

    /// Takes out what was kept, as a table for another thread to drop, and says how much the entries own, which is not
    /// booked any more. What is booked for the table is the caller's to release,
    /// [as it says](crate::heap::raw_table_unsafe::RawTable::memory_bytes). Cost: O(1).
    pub fn take_all_kept(&mut self) -> (FrozenTable<T>, u64) {
        let bytes = self.booked.bytes();
        self.booked.give_back();
        (self.kept.freeze(), bytes)
    }

    /// Whether it was given up.
    pub fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// Takes a part, which begins at `next` and ends before `end`: gives those of its entries, which come
    /// with their hashes, that have not changed to `take`. `is` finds what was kept of one.
    pub fn take<R>(
        &mut self,
        part: impl Iterator<Item = (u64, R)>,
        end: Option<u64>,
        is: impl Fn(&T, &R) -> bool,
        mut take: impl FnMut(R) -> Result<()>,
    ) -> Result<()> {
        let Some(next) = self.next else { return Ok(()) };
        for (hash, entry) in part {
            let is_new = self.range.place(hash) >= next;
            if is_new && self.kept.find(hash, |kept| is(kept, &entry)).is_none() {
                take(entry)?;
            }
        }
        self.next = end;
        Ok(())
    }

    /// Takes some of what was kept, once all parts were taken; says whether there is more.
    pub fn take_kept(&mut self, mut take: impl FnMut(&T) -> Result<()>) -> Result<bool> {
        assert!(self.next.is_none(), "parts are taken first");
        let Some(mut part) = self.kept.take_part() else {
            self.booked.give_back();
            return Ok(false);
        };
        part.try_for_each(|kept| take(&kept))?;
        Ok(true)
    }
}
