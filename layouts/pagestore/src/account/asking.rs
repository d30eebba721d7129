//! What happens when memory is short: other states are asked for some, and whoever lacks it still is told who holds it.

use super::{Account, MEMORY_KINDS, MemoryKind};
use crate::{ByteSize, Error, ErrorKind, Result};

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

impl Account {
    /// Sets who frees memory before a reservation is refused.
    pub fn set_reclaim(&self, reclaim: Box<dyn Reclaim>) {
        match &self.parent {
            Some(parent) => parent.set_reclaim(reclaim),
            None => drop(self.reclaim.replace(Some(reclaim))),
        }
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
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::rc::{Rc, Weak};

    use super::*;

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
}
