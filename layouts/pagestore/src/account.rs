//! The memory budget: an account reserves every byte before it is allocated.
//!
//! A store has one root [`Account`], and each state has an account below it. A reservation must fit
//! both. Before the root refuses one, its [`Reclaim`] asks other states to free memory. Accounts
//! belong to one thread, because the record path counts in plain cells. Memory handed to a helper
//! thread stays reserved by its owner until it comes back.

mod left_free;

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::{Rc, Weak};

use serde::{Deserialize, Serialize};

use self::left_free::LeftFree;
pub use self::left_free::LenientCall;

use crate::{ByteSize, Error, ErrorKind, Result};

/// Kinds of memory.
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

impl MemoryKind {
    /// Returns the kind's name in statistics.
    pub fn name(self) -> &'static str {
        match self {
            MemoryKind::Index => "index",
            MemoryKind::Pages => "pages",
            MemoryKind::Values => "values",
            MemoryKind::Buffers => "buffers",
            MemoryKind::Tables => "tables",
        }
    }
}

/// All kinds, in the order of [`AccountStats`].
pub const MEMORY_KINDS: [MemoryKind; 5] = [
    MemoryKind::Index,
    MemoryKind::Pages,
    MemoryKind::Values,
    MemoryKind::Buffers,
    MemoryKind::Tables,
];

/// Frees memory when a store's budget is full.
pub trait Reclaim {
    /// Frees about `bytes` of the memory reserved below the root, if possible. May wait for
    /// storage.
    ///
    /// # Errors
    /// The reason if something failed and less was freed.
    fn reclaim(&self, bytes: u64) -> Result<()>;
}

/// What of other states is asked for when memory is short.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReclaimScope {
    /// All that they can give up.
    #[default]
    All,
    /// Pages, and nothing that whoever has it would have to make again: filters, and what is saved up for work.
    Pages,
    /// What is not [attainable](Account::attainable) as far as anybody knows: states that keep memory for pages give
    /// nothing.
    Unknown,
}

/// What was asked for before, which is asked for again when this is dropped.
struct AskedBefore<'a> {
    root: &'a Account,
    asked: ReclaimScope,
}

impl Drop for AskedBefore<'_> {
    fn drop(&mut self) {
        self.root.asked_for.set(self.asked);
    }
}

/// Who frees memory, while it is asked: nobody asks it meanwhile.
struct ReclaimGuard<'a> {
    root: &'a Account,
    reclaim: Option<Box<dyn Reclaim>>,
}

impl Drop for ReclaimGuard<'_> {
    fn drop(&mut self) {
        self.root.reclaim.replace(self.reclaim.take());
    }
}

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

/// A reading of an [`Account`], in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccountStats {
    /// The limit.
    pub limit: u64,
    /// Reserved now.
    pub used: u64,
    /// Most that was ever reserved.
    pub peak: u64,
    /// Reserved now by kind, in the order of [`MEMORY_KINDS`]; serialized by name.
    #[serde(with = "KindsByName")]
    pub by_kind: [u64; MEMORY_KINDS.len()],
}

impl AccountStats {
    /// Returns what is reserved now for one kind.
    pub fn used_for(&self, kind: MemoryKind) -> u64 {
        self.by_kind[kind as usize]
    }
}

/// The serialized form of [`AccountStats::by_kind`].
#[derive(Serialize, Deserialize)]
struct KindsByName {
    index: u64,
    pages: u64,
    values: u64,
    buffers: u64,
    tables: u64,
}

impl KindsByName {
    fn serialize<S: serde::Serializer>(
        by_kind: &[u64; MEMORY_KINDS.len()],
        serializer: S,
    ) -> std::result::Result<S::Ok, S::Error> {
        let [index, pages, values, buffers, tables] = *by_kind;
        Serialize::serialize(&Self { index, pages, values, buffers, tables }, serializer)
    }

    fn deserialize<'de, D: serde::Deserializer<'de>>(
        deserializer: D,
    ) -> std::result::Result<[u64; MEMORY_KINDS.len()], D::Error> {
        let Self { index, pages, values, buffers, tables } =
            <Self as Deserialize>::deserialize(deserializer)?;
        Ok([index, pages, values, buffers, tables])
    }
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

    /// Sets who frees memory before a reservation is refused.
    pub fn set_reclaim(&self, reclaim: Box<dyn Reclaim>) {
        match &self.parent {
            Some(parent) => parent.set_reclaim(reclaim),
            None => drop(self.reclaim.replace(Some(reclaim))),
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

    /// Makes sure that `bytes` can be reserved. If they do not fit, other states of the store free
    /// memory, which may wait for storage; otherwise it costs nothing.
    ///
    /// # Errors
    /// [`ErrorKind::OverBudget`] naming `what` and the numbers. Its cause is the error that kept
    /// another state from freeing memory, if there was one.
    #[inline]
    pub fn ensure(&self, bytes: u64, what: &str) -> Result<()> {
        if self.available() >= bytes { Ok(()) } else { self.ensure_by_asking(bytes, what) }
    }

    #[cold]
    fn ensure_by_asking(&self, bytes: u64, what: &str) -> Result<()> {
        let asked = if self.fits_without_parent(bytes) { self.ask(bytes) } else { Ok(()) };
        match asked {
            _ if self.available() >= bytes => Ok(()),
            Ok(()) => Err(self.over_budget(bytes, what)),
            Err(cause) => Err(self.over_budget(bytes, what).caused_by(cause)),
        }
    }

    /// [`ensure`](Account::ensure) that asks other states for no more than that. Says whether `bytes` can be reserved.
    pub fn ensure_of(&self, asked: ReclaimScope, bytes: u64) -> bool {
        // Whoever is asked may ask as well, and may panic.
        let _before = AskedBefore { root: self.root_of(), asked: self.asked_for() };
        self.root_of().asked_for.set(asked);
        self.ensure(bytes, "memory of other states").is_ok()
    }

    /// Returns what other states are asked for, while they are.
    pub fn asked_for(&self) -> ReclaimScope {
        self.root_of().asked_for.get()
    }

    fn root_of(&self) -> &Account {
        self.parent.as_ref().map_or(self, |parent| parent.root_of())
    }

    /// Whether `bytes` fit all limits but the root's.
    fn fits_without_parent(&self, bytes: u64) -> bool {
        let Some(parent) = &self.parent else { return true };
        self.used.get().saturating_add(bytes) <= self.limit && parent.fits_without_parent(bytes)
    }

    /// Has the root ask for what `bytes` lack.
    fn ask(&self, bytes: u64) -> Result<()> {
        if let Some(parent) = &self.parent {
            return parent.ask(bytes);
        }
        let Some(reclaim) = self.reclaim.take() else { return Ok(()) };
        let lacking = self.used.get().saturating_add(bytes).saturating_sub(self.limit);
        // Whoever is asked may panic, and is asked again.
        let asking = ReclaimGuard { root: self, reclaim: Some(reclaim) };
        asking.reclaim.as_ref().map_or(Ok(()), |reclaim| reclaim.reclaim(lacking))
    }

    /// Makes the error for `bytes` that do not fit. It names the states that hold the memory and
    /// the memory that would suffice.
    pub fn over_budget(&self, bytes: u64, what: &str) -> Error {
        let (limit, free) = (self.limit(), self.available());
        let message = format!(
            "{what} needs {bytes} of {limit} bytes, {free} are free; {}",
            self.held_and_enough(bytes)
        );
        Error::new(ErrorKind::OverBudget, message).with("state", &self.name)
    }

    /// Who holds the memory, and how much of it would do for `bytes` more.
    fn held_and_enough(&self, bytes: u64) -> String {
        let short = |bytes: u64| ByteSize(bytes).short();
        let (holder, others) = (self.with_limit(), self.root_used() - self.used.get());
        let kinds = MEMORY_KINDS.into_iter().filter(|kind| self.used_for(*kind) > 0);
        let held = |kind: MemoryKind| format!("{} {}", kind.name(), short(self.used_for(kind)));
        let mut held: Vec<String> = kinds.map(held).collect();
        if held.is_empty() {
            held.push("nothing".into());
        }
        if others > 0 {
            held.push(format!("other states {}", short(others)));
        }
        // An eighth more, as the next call needs some as well.
        let enough = holder.used.get().saturating_add(bytes);
        let enough = enough.saturating_add(enough / 8).div_ceil(1024).saturating_mul(1024);
        let whose = match holder.parent {
            Some(_) => "a memory of the state",
            None => "a memory",
        };
        format!("held are {}: {whose} of {} would do", held.join(", "), short(enough))
    }

    /// Whose limit is the nearest: this account's, or one above.
    fn with_limit(&self) -> &Account {
        let own = self.limit.saturating_sub(self.used.get());
        match &self.parent {
            Some(parent) if parent.available() < own => parent.with_limit(),
            _ => self,
        }
    }

    fn root_used(&self) -> u64 {
        self.parent.as_ref().map_or(self.used.get(), |parent| parent.root_used())
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

    /// Gives back what its account has, and asks for more while it is at it. It does not own the
    /// account, which is below the one that owns it.
    struct Spare(Weak<Account>, Cell<u64>);

    impl Reclaim for Rc<Spare> {
        fn reclaim(&self, bytes: u64) -> Result<()> {
            self.1.set(self.1.get() + 1);
            let spare = self.0.upgrade().expect("the test has it");
            assert!(spare.ensure(1000, "more").is_err(), "nobody is asked twice");
            let given = bytes.min(spare.used());
            spare.release(MemoryKind::Pages, given);
            if given < bytes { Err(Error::new(ErrorKind::DiskFull, "no room")) } else { Ok(()) }
        }
    }

    #[test]
    fn others_are_asked_before_a_reservation_is_refused() {
        let store = Account::root(100);
        let (a, b) = (Account::below(&store, "a", 80), Account::below(&store, "b", 80));
        let spare = Rc::new(Spare(Rc::downgrade(&b), Cell::new(0)));
        a.set_reclaim(Box::new(spare.clone()));
        b.charge(MemoryKind::Pages, 50);
        a.reserve(MemoryKind::Index, 50, "an index").unwrap();
        assert_eq!(spare.1.get(), 0, "all of it was free");
        a.ensure(10, "ten").unwrap();
        assert_eq!((spare.1.get(), b.used(), a.available()), (1, 40, 10));
        assert!(!a.try_reserve(MemoryKind::Index, 11));
        assert!(a.ensure(31, "more than its limit").is_err());
        assert_eq!(spare.1.get(), 1, "nobody is asked for what cannot be had");
        a.release(MemoryKind::Index, 20);
        store.charge(MemoryKind::Buffers, 25);
        let refused = a.ensure(50, "fifty").unwrap_err();
        assert_eq!((spare.1.get(), b.used(), refused.kind()), (2, 0, ErrorKind::OverBudget));
        assert!(refused.to_string().ends_with("no room"), "{refused}");
    }

    /// Asks for pages itself when it is asked, and notes what it was asked for before and after.
    struct Nested(Weak<Account>, RefCell<Vec<ReclaimScope>>);

    impl Reclaim for Rc<Nested> {
        fn reclaim(&self, _: u64) -> Result<()> {
            let account = self.0.upgrade().expect("the test has it");
            self.1.borrow_mut().push(account.asked_for());
            assert!(!account.ensure_of(ReclaimScope::Pages, 1000), "nobody is asked twice");
            self.1.borrow_mut().push(account.asked_for());
            assert!(self.1.borrow().len() < 6, "the third panics");
            Ok(())
        }
    }

    #[test]
    fn who_asks_for_pages_while_it_is_asked_changes_nothing_for_the_others() {
        let store = Account::root(100);
        let a = Account::below(&store, "a", 1 << 20);
        let nested = Rc::new(Nested(Rc::downgrade(&a), RefCell::default()));
        a.set_reclaim(Box::new(nested.clone()));
        assert!(!a.ensure_of(ReclaimScope::Pages, 101));
        assert!(a.ensure(101, "all").is_err());
        let [pages, all] = [ReclaimScope::Pages, ReclaimScope::All];
        assert_eq!(*nested.1.borrow(), [pages, pages, all, all]);
        let asked = std::panic::AssertUnwindSafe(|| a.ensure_of(ReclaimScope::Unknown, 101));
        assert!(std::panic::catch_unwind(asked).is_err());
        assert_eq!(nested.1.borrow()[4..], [ReclaimScope::Unknown; 2]);
        // One that has panicked is asked again.
        nested.1.borrow_mut().truncate(2);
        assert!(a.ensure(101, "all").is_err());
        assert_eq!(nested.1.borrow()[2..], [all, all]);
        assert_eq!(a.asked_for(), ReclaimScope::All);
    }

    #[test]
    fn kinds_are_serialized_by_name() {
        let account = Account::root(100);
        for (i, kind) in MEMORY_KINDS.into_iter().enumerate() {
            account.charge(kind, i as u64 + 1);
        }
        let stats = account.stats();
        let json = serde_json::to_value(stats).unwrap();
        for kind in MEMORY_KINDS {
            assert_eq!(json["by_kind"][kind.name()], stats.used_for(kind));
        }
        assert_eq!(serde_json::from_value::<AccountStats>(json).unwrap(), stats);
    }

    #[test]
    #[should_panic(expected = "11 of 10 Pages bytes given back")]
    fn giving_back_too_much_is_a_bug() {
        let account = Account::root(100);
        account.charge(MemoryKind::Pages, 10);
        account.release(MemoryKind::Pages, 11);
    }
}
