//! The memory budget: an account reserves every byte before it is allocated.
//!
//! A store has one root [`Account`], and each state has an account below it. A reservation must fit
//! both. Before the root refuses one, its [`Reclaim`] asks other states to free memory. Accounts
//! belong to one thread, because the record path counts in plain cells. Memory handed to a helper
//! thread stays reserved by its owner until it comes back.

mod asking;
mod kinds;
mod left_free;

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::{Rc, Weak};

pub use self::asking::{Reclaim, ReclaimScope};
pub use self::kinds::{AccountStats, MEMORY_KINDS, MemoryKind};
use self::left_free::LeftFree;
pub use self::left_free::LenientCall;
use crate::Result;

/// A node of the budget: a limit, and the memory reserved under it.
pub struct Account {
    name: String,
    limit: u64,
    used: Cell<u64>,
    peak: Cell<u64>,
    by_kind: [Cell<u64>; MEMORY_KINDS.len()],
    parent: Option<Rc<Account>>,
    /// Pages and values that its owner must be able to have, whether they are booked or not.
    kept_for_pages: Cell<u64>,
    /// What its owner must be able to have for work on storage beside that, and what it has saved up for more.
    lacks_for_work: Cell<u64>,
    spare_of_work: Cell<u64>,
    /// What its owner's next checkpoint takes for a while, or reading it, and what it holds until it is decided. Not booked.
    keeps_free: Cell<u64>,
    keeps_for_values: Cell<u64>,
    keeps_held: Cell<u64>,
    /// Of the root only.
    left_free: LeftFree,
    /// Those directly below, as long as they are there.
    below: RefCell<Vec<Weak<Account>>>,
    /// Of the root only.
    asked_for: Cell<ReclaimScope>,
    /// Of the root only; absent while it is asked, so that it is not asked by itself.
    reclaim: RefCell<Option<Box<dyn Reclaim>>>,
}

/// Bytes of accounts: what they could give up, what they lack for work, and what they have saved up for more of it.
#[derive(Default)]
struct AccountSums {
    elastic: u64,
    lacking: u64,
    spare: u64,
}

impl Drop for Account {
    fn drop(&mut self) {
        if let Some(parent) = &self.parent
            && self.keeps() + self.keeps_held.get() > 0
        {
            let root = parent.root_of();
            root.left_free.held.set(root.left_free.held.get() - self.keeps_held.get());
            root.count_left_free();
        }
    }
}

impl Account {
    /// Makes the root account of a store.
    pub fn root(limit: u64) -> Rc<Account> {
        Rc::new(Self::new("store", limit, None))
    }

    /// Makes an account below `parent` with its own limit.
    pub fn below(parent: &Rc<Account>, name: &str, limit: u64) -> Rc<Account> {
        let account = Rc::new(Self::new(name, limit, Some(parent.clone())));
        let mut below = parent.below.borrow_mut();
        below.retain(|account| account.strong_count() > 0);
        below.push(Rc::downgrade(&account));
        account
    }

    fn new(name: &str, limit: u64, parent: Option<Rc<Account>>) -> Self {
        let by_kind = Default::default();
        let (used, peak) = (Cell::new(0), Cell::new(0));
        let (kept_for_pages, below, asked_for, reclaim) = Default::default();
        let (lacks_for_work, spare_of_work) = Default::default();
        let (keeps_free, keeps_for_values, keeps_held, left_free) = Default::default();
        let name = name.into();
        Self {
            name,
            limit,
            used,
            peak,
            by_kind,
            parent,
            kept_for_pages,
            lacks_for_work,
            spare_of_work,
            keeps_free,
            keeps_for_values,
            keeps_held,
            left_free,
            below,
            asked_for,
            reclaim,
        }
    }

    /// Returns the owner's name: a state's, or the store's.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the most that may be reserved, by the limits of this account and those above.
    pub fn limit(&self) -> u64 {
        self.parent.as_ref().map_or(self.limit, |p| p.limit().min(self.limit))
    }

    /// Returns what is reserved now.
    #[inline]
    pub fn used(&self) -> u64 {
        self.used.get()
    }

    /// Returns the bytes that can still be reserved; 0 if the account is overdrawn.
    #[inline]
    pub fn available(&self) -> u64 {
        let own = self.limit.saturating_sub(self.used.get());
        self.parent.as_ref().map_or(own, |p| p.available().min(own))
    }

    /// Keeps `bytes` of the root's memory for pages and values of this account. The unreserved part
    /// counts as taken for states that are [opened](Account::available_to_open) later. An account
    /// above its share gives the excess up when another one is below its share.
    pub fn keep_for_pages(&self, bytes: u64) {
        self.kept_for_pages.set(bytes);
    }

    /// Keeps memory of the root for work on storage of this account: it `lacks` so much of what that takes at least, or
    /// has so much to `spare`. Both change what is [attainable](Account::attainable) to others.
    pub fn keep_for_work(&self, lacks: u64, spare: u64) {
        self.lacks_for_work.set(lacks);
        self.spare_of_work.set(spare);
    }

    /// Returns the bytes kept for pages and values below the root that are not reserved yet.
    pub fn kept_and_not_booked(&self) -> u64 {
        if let Some(parent) = &self.parent {
            return parent.kept_and_not_booked();
        }
        let lacking = |account: Rc<Account>| {
            let booked = account.used_for(MemoryKind::Pages) + account.used_for(MemoryKind::Values);
            account.kept_for_pages.get().saturating_sub(booked)
        };
        self.below.borrow().iter().filter_map(Weak::upgrade).map(lacking).sum()
    }

    /// Returns the bytes available to a state that is opened now: without the memory kept for the
    /// pages of others. Cost: O(states).
    pub fn available_to_open(&self) -> u64 {
        let own = self.limit.saturating_sub(self.used.get());
        match &self.parent {
            Some(parent) => parent.available_to_open().min(own),
            None => own.saturating_sub(self.kept_and_not_booked()),
        }
    }

    /// Returns the most that this account could hold if the other accounts gave up all that they can. An account that
    /// [keeps memory for pages](Account::keep_for_pages) can give up pages and values beyond that; others give up nothing.
    /// What others [keep for work](Account::keep_for_work) is theirs, also while they lack it. Cost: O(states).
    pub fn attainable(&self) -> u64 {
        self.attainable_of(false)
    }

    /// [`attainable`](Account::attainable) of one that lacks what its work takes at least: others give it what they have to
    /// [spare](Account::keep_for_work) too.
    pub fn attainable_for_work(&self) -> u64 {
        self.attainable_of(true)
    }

    fn attainable_of(&self, has_spare: bool) -> u64 {
        let Some(parent) = &self.parent else { return self.limit };
        let of_others = parent.used.get() - self.used.get();
        let others = parent.others_than(self);
        let given = others.elastic + if has_spare { others.spare } else { 0 };
        let fixed = (of_others + others.lacking).saturating_sub(given);
        parent.attainable_of(has_spare).saturating_sub(fixed).min(self.limit)
    }

    /// What the accounts below this one have, but for one of them.
    fn others_than(&self, one: &Account) -> AccountSums {
        let mut others = AccountSums::default();
        for account in self.below.borrow().iter().filter_map(Weak::upgrade) {
            if std::ptr::eq(&*account, one) {
                continue;
            }
            others.spare += account.spare_of_work.get();
            let kept = account.kept_for_pages.get();
            if kept > 0 {
                let pages = account.used_for(MemoryKind::Pages);
                others.elastic +=
                    (pages + account.used_for(MemoryKind::Values)).saturating_sub(kept);
                others.lacking += account.lacks_for_work.get();
            }
        }
        others
    }

    /// Returns whether more is reserved than a limit allows, here or above.
    pub fn is_overdrawn(&self) -> bool {
        self.used.get() > self.limit || self.parent.as_ref().is_some_and(|p| p.is_overdrawn())
    }

    /// Reserves `bytes` if they fit, and returns whether they did. Frees no memory of others.
    #[inline]
    pub fn try_reserve(&self, kind: MemoryKind, bytes: u64) -> bool {
        let fits = self.available() >= bytes;
        if fits {
            self.charge(kind, bytes);
        }
        fits
    }

    /// Reserves `bytes`, or fails as [`ensure`](Account::ensure) does.
    pub fn reserve(&self, kind: MemoryKind, bytes: u64, what: &str) -> Result<()> {
        self.ensure(bytes, what)?;
        self.charge(kind, bytes);
        Ok(())
    }

    fn root_of(&self) -> &Account {
        self.parent.as_ref().map_or(self, |parent| parent.root_of())
    }

    /// Reserves `bytes` even if they do not fit: for heap memory that a user's closure has taken
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

    /// Returns `bytes`.
    ///
    /// # Panics
    /// If more is returned than was reserved, which is an accounting bug of the store.
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

    /// Reserves or returns the change of a quantity from `before` to `after`.
    #[inline]
    pub fn adjust(&self, kind: MemoryKind, before: u64, after: u64) {
        if after > before {
            self.charge(kind, after - before);
        } else if before > after {
            self.release(kind, before - after);
        }
    }

    /// Returns the bytes reserved for one kind.
    pub fn used_for(&self, kind: MemoryKind) -> u64 {
        self.by_kind[kind as usize].get()
    }

    /// Returns what is reserved for neither pages nor values: what no eviction frees.
    pub fn fixed_bytes(&self) -> u64 {
        let fixed = [MemoryKind::Index, MemoryKind::Buffers, MemoryKind::Tables];
        fixed.into_iter().map(|kind| self.used_for(kind)).sum()
    }

    /// Returns all numbers.
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
    use crate::ErrorKind;

    #[test]
    fn a_reservation_must_fit_the_state_and_the_store() {
        let store = Account::root(100);
        let (a, b) = (Account::below(&store, "a", 80), Account::below(&store, "b", 80));
        assert!(a.try_reserve(MemoryKind::Pages, 70));
        assert!(!a.try_reserve(MemoryKind::Pages, 11));
        let refused = b.reserve(MemoryKind::Index, 31, "index").unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::OverBudget);
        assert!(refused.to_string().contains("index needs 31 of 80 bytes"), "{refused}");
        let remedy = "held are nothing, other states 70B: a memory of 1.0KiB would do";
        assert!(refused.to_string().contains(remedy), "{refused}");
        let own = a.over_budget(90, "an entry").to_string();
        let remedy = "held are pages 70B: a memory of the state of 1.0KiB would do";
        assert!(own.contains(remedy), "{own}");
        b.charge(MemoryKind::Values, 60);
        assert_eq!((store.used(), store.available(), a.available()), (130, 0, 0));
        b.adjust(MemoryKind::Values, 60, 10);
        assert_eq!((store.available(), store.stats().peak), (20, 130));
        a.release(MemoryKind::Pages, 70);
        assert_eq!(store.used_for(MemoryKind::Pages), 0);
    }

    #[test]
    fn what_is_kept_for_pages_is_not_there_for_states_that_are_opened() {
        let store = Account::root(100);
        let (a, b) = (Account::below(&store, "a", 90), Account::below(&store, "b", 30));
        a.keep_for_pages(40);
        assert_eq!((store.available_to_open(), b.available_to_open(), b.available()), (60, 30, 30));
        a.charge(MemoryKind::Index, 10);
        assert_eq!((store.kept_and_not_booked(), a.available_to_open()), (40, 50));
        a.charge(MemoryKind::Pages, 25);
        a.charge(MemoryKind::Values, 10);
        assert_eq!((b.kept_and_not_booked(), store.available_to_open()), (5, 50));
        a.charge(MemoryKind::Values, 20);
        assert_eq!((store.kept_and_not_booked(), store.available_to_open()), (0, 35));
        a.release(MemoryKind::Pages, 25);
        assert_eq!(store.available_to_open(), 50);
        drop(a);
        assert_eq!((store.kept_and_not_booked(), store.available()), (0, 60));
    }

    #[test]
    fn what_other_states_can_give_up_is_attainable_and_what_they_hold_is_not() {
        let store = Account::root(100);
        let (a, b) = (Account::below(&store, "a", 90), Account::below(&store, "b", 70));
        assert_eq!((store.attainable(), a.attainable(), b.attainable()), (100, 90, 70));
        a.charge(MemoryKind::Pages, 30);
        a.charge(MemoryKind::Index, 15);
        // It keeps nothing for pages: what it holds is entries of a heap.
        assert_eq!((a.attainable(), b.attainable(), b.available()), (90, 55, 55));
        a.keep_for_pages(10);
        assert_eq!((a.attainable(), b.attainable(), b.available()), (90, 70, 55));
        a.charge(MemoryKind::Tables, 20);
        assert_eq!((b.attainable(), b.available()), (55, 35));
        a.keep_for_work(4, 0);
        assert_eq!((b.attainable(), b.attainable_for_work()), (51, 51));
        a.keep_for_work(0, 3);
        assert_eq!((b.attainable(), b.attainable_for_work()), (55, 58));
        // What others have to spare is not there beyond a limit of its own.
        let c = Account::below(&store, "c", 56);
        assert_eq!((c.attainable(), c.attainable_for_work()), (55, 56));
        drop(c);
        // What is booked above all states is nobody's to give up.
        store.charge(MemoryKind::Buffers, 5);
        b.charge(MemoryKind::Pages, 7);
        let below_b = Account::below(&b, "cleared", 100);
        assert_eq!((a.attainable(), b.attainable(), below_b.attainable()), (88, 50, 43));
    }

    #[test]
    #[should_panic(expected = "11 of 10 Pages bytes given back")]
    fn giving_back_too_much_is_a_bug() {
        let account = Account::root(100);
        account.charge(MemoryKind::Pages, 10);
        account.release(MemoryKind::Pages, 11);
    }
}
