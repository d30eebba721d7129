//! The memory budget, as an account that every byte is booked on before it is used.
//!
//! A store has one root [`Account`]; each of its states has an account below it. A reservation
//! must fit both. Accounts belong to one thread: the record path books on plain cells. Memory
//! handed to helper threads stays booked by its owner until it comes back.

use std::cell::Cell;
use std::fmt;
use std::rc::Rc;

use crate::{Error, ErrorKind, Result};

/// What memory is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum MemoryKind {
    /// Indexes and directories.
    Index,
    /// Pages of native records, resident, frozen or waiting for the reaper.
    Pages,
    /// Heap memory owned by keys and values.
    Values,
    /// Buffers for reads, writes and serialization.
    Buffers,
    /// Tables of pages and segments.
    Tables,
}

/// All kinds, in the order of [`AccountStats`].
pub const MEMORY_KINDS: [MemoryKind; 5] = [
    MemoryKind::Index,
    MemoryKind::Pages,
    MemoryKind::Values,
    MemoryKind::Buffers,
    MemoryKind::Tables,
];

/// A node of the budget: a limit, and what is booked under it.
pub struct Account {
    name: String,
    limit: u64,
    used: Cell<u64>,
    peak: Cell<u64>,
    by_kind: [Cell<u64>; MEMORY_KINDS.len()],
    parent: Option<Rc<Account>>,
}

/// A reading of an [`Account`], in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AccountStats {
    /// The limit.
    pub limit: u64,
    /// Booked now.
    pub used: u64,
    /// The most that was ever booked.
    pub peak: u64,
    /// Booked now, by kind, in the order of [`MEMORY_KINDS`].
    pub by_kind: [u64; MEMORY_KINDS.len()],
}

impl Account {
    /// The root account of a store.
    pub fn root(limit: u64) -> Rc<Account> {
        Rc::new(Self::new("store", limit, None))
    }

    /// An account below `parent` with a limit of its own.
    pub fn below(parent: &Rc<Account>, name: &str, limit: u64) -> Rc<Account> {
        Rc::new(Self::new(name, limit, Some(parent.clone())))
    }

    fn new(name: &str, limit: u64, parent: Option<Rc<Account>>) -> Self {
        let by_kind = Default::default();
        Self { name: name.into(), limit, used: Cell::new(0), peak: Cell::new(0), by_kind, parent }
    }

    /// The most that may be booked here and above.
    pub fn limit(&self) -> u64 {
        self.parent.as_ref().map_or(self.limit, |p| p.limit().min(self.limit))
    }

    /// Booked now.
    #[inline]
    pub fn used(&self) -> u64 {
        self.used.get()
    }

    /// Bytes that can still be booked; 0 when the account is overdrawn.
    #[inline]
    pub fn available(&self) -> u64 {
        let own = self.limit.saturating_sub(self.used.get());
        self.parent.as_ref().map_or(own, |p| p.available().min(own))
    }

    /// Books `bytes` if they fit, and says whether they did.
    #[inline]
    pub fn try_reserve(&self, kind: MemoryKind, bytes: u64) -> bool {
        let fits = self.available() >= bytes;
        if fits {
            self.charge(kind, bytes);
        }
        fits
    }

    /// Books `bytes`, or fails with [`ErrorKind::OverBudget`] naming `what` and the numbers.
    pub fn reserve(&self, kind: MemoryKind, bytes: u64, what: &str) -> Result<()> {
        if self.try_reserve(kind, bytes) {
            return Ok(());
        }
        Err(self.over_budget(bytes, what))
    }

    /// The error for `bytes` that do not fit.
    pub fn over_budget(&self, bytes: u64, what: &str) -> Error {
        let (limit, free) = (self.limit(), self.available());
        let message = format!("{what} needs {bytes} of {limit} bytes, {free} are free");
        Error::new(ErrorKind::OverBudget, message).with("state", &self.name)
    }

    /// Books `bytes` whether they fit or not: for heap memory that a user's closure has taken
    /// already. The account may be overdrawn until it is freed.
    #[inline]
    pub fn charge(&self, kind: MemoryKind, bytes: u64) {
        let used = self.used.get() + bytes;
        self.used.set(used);
        self.peak.set(self.peak.get().max(used));
        let of_kind = &self.by_kind[kind as usize];
        of_kind.set(of_kind.get() + bytes);
        if let Some(parent) = &self.parent {
            parent.charge(kind, bytes);
        }
    }

    /// Gives `bytes` back.
    ///
    /// # Panics
    /// If more is given back than was booked: an accounting bug of ours.
    #[inline]
    pub fn release(&self, kind: MemoryKind, bytes: u64) {
        let of_kind = &self.by_kind[kind as usize];
        let (before, used) = (of_kind.get(), self.used.get());
        assert!(before >= bytes, "{}: {bytes} of {before} {kind:?} bytes given back", self.name);
        of_kind.set(before - bytes);
        self.used.set(used - bytes);
        if let Some(parent) = &self.parent {
            parent.release(kind, bytes);
        }
    }

    /// Books the change of a quantity from `before` to `after`.
    #[inline]
    pub fn adjust(&self, kind: MemoryKind, before: u64, after: u64) {
        if after > before {
            self.charge(kind, after - before);
        } else if before > after {
            self.release(kind, before - after);
        }
    }

    /// Bytes booked for one kind.
    pub fn used_for(&self, kind: MemoryKind) -> u64 {
        self.by_kind[kind as usize].get()
    }

    /// All numbers.
    pub fn stats(&self) -> AccountStats {
        AccountStats {
            limit: self.limit(),
            used: self.used.get(),
            peak: self.peak.get(),
            by_kind: MEMORY_KINDS.map(|kind| self.used_for(kind)),
        }
    }
}

impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Account({}: {:?})", self.name, self.stats())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reservation_must_fit_the_state_and_the_store() {
        let store = Account::root(100);
        let (a, b) = (Account::below(&store, "a", 80), Account::below(&store, "b", 80));
        assert!(a.try_reserve(MemoryKind::Pages, 70));
        assert!(!a.try_reserve(MemoryKind::Pages, 11));
        let refused = b.reserve(MemoryKind::Index, 31, "index").unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::OverBudget);
        assert!(refused.to_string().contains("index needs 31 of 80 bytes"), "{refused}");
        b.charge(MemoryKind::Values, 60);
        assert_eq!((store.used(), store.available(), a.available()), (130, 0, 0));
        b.adjust(MemoryKind::Values, 60, 10);
        assert_eq!((store.available(), store.stats().peak), (20, 130));
        a.release(MemoryKind::Pages, 70);
        assert_eq!(store.used_for(MemoryKind::Pages), 0);
    }

    #[test]
    #[should_panic(expected = "11 of 10 Pages bytes given back")]
    fn giving_back_too_much_is_a_bug() {
        let account = Account::root(100);
        account.charge(MemoryKind::Pages, 10);
        account.release(MemoryKind::Pages, 11);
    }
}
