//! What the growth of states leaves free: memory that is not booked, for the next checkpoint of another state.

use std::cell::Cell;
use std::rc::{Rc, Weak};

use super::Account;
use crate::Result;

/// The part of the root's memory that is left free for small things, if anything is left free, and the most.
const LEFT_BESIDE_SHARE: u64 = 32;
const LEFT_BESIDE_MAX: u64 = 8 << 10;

/// What the growth of states leaves free of the root's memory.
#[derive(Default)]
pub(super) struct LeftFree {
    /// The most that one account below keeps free, and the most of the others.
    most: Cell<u64>,
    second: Cell<u64>,
    /// The sum of what their checkpoints hold.
    pub(super) held: Cell<u64>,
    /// What the checkpoint that is being taken has of all that.
    taken: Cell<u64>,
    /// Booked, and given back before any of that is needed.
    lent: Cell<u64>,
    /// So many calls go on that need leave nothing.
    lenient: Cell<u32>,
}

/// A call that need leave nothing free, until this is dropped.
pub struct LenientCall {
    root: Rc<Account>,
    /// What was used before a step of a checkpoint.
    before: Option<u64>,
}

impl Drop for LenientCall {
    fn drop(&mut self) {
        let LeftFree { lenient, taken, .. } = &self.root.left_free;
        lenient.set(lenient.get() - 1);
        if let Some(before) = self.before {
            taken.set((taken.get() + self.root.used()).saturating_sub(before));
        }
    }
}

impl Account {
    /// Has the growth of all accounts below the root leave `bytes` free, which are not booked, for the next checkpoint of
    /// this account's state, or for opening it; and what that checkpoint is to `hold` until it is decided. States are
    /// written one after the other where memory is short, so that the most of one is enough for all beside what they
    /// hold. Cost: O(states) if `bytes` has changed.
    pub fn keep_free(&self, bytes: u64, hold: u64) {
        let (root, before) = (self.root_of(), self.keeps_held.replace(hold));
        root.left_free.held.set(root.left_free.held.get() + hold - before);
        if self.keeps_free.replace(bytes) != bytes {
            root.count_left_free();
        }
    }

    /// Has it leave so much more free, which the longest values that its state has had take. Cost: O(states) if that has
    /// changed.
    pub fn keep_free_for_values(&self, bytes: u64) {
        if self.keeps_for_values.replace(bytes) != bytes {
            self.root_of().count_left_free();
        }
    }

    pub(super) fn keeps(&self) -> u64 {
        self.keeps_free.get() + self.keeps_for_values.get()
    }

    pub(super) fn count_left_free(&self) {
        let (mut most, mut second) = (0, 0);
        for account in self.below.borrow().iter().filter_map(Weak::upgrade) {
            let bytes = account.keeps();
            second = second.max(bytes.min(most));
            most = most.max(bytes);
        }
        self.left_free.most.set(most);
        self.left_free.second.set(second);
    }

    /// Returns what the growth of this account has to leave free for the others: the most that one of them
    /// [keeps free](Account::keep_free), and what all of them are to hold. Cost: O(1).
    pub fn left_to_others(&self) -> u64 {
        let left = self.left_of_root();
        if left == 0 {
            return 0;
        }
        // What only the root has free is there for others.
        let beyond = self.root_of().available() - self.available();
        left.saturating_sub(beyond)
    }

    /// Makes sure that the root has room for `bytes` and, beside them, for what is left to others.
    ///
    /// # Errors
    /// As for [`ensure`](Account::ensure).
    pub fn ensure_left(&self, bytes: u64, what: &str) -> Result<()> {
        let (root, needed) = (self.root_of(), bytes + self.left_of_root());
        if root.available() >= needed {
            return Ok(());
        }
        root.ensure(needed, what).map_err(|_| self.over_budget(needed, what))
    }

    fn left_of_root(&self) -> u64 {
        let root = self.root_of();
        let LeftFree { most, second, held, lenient, .. } = &root.left_free;
        if lenient.get() > 0 {
            return 0;
        }
        let others = if self.keeps() >= most.get() { second } else { most };
        root.left_of(others.get() + held.get() - self.keeps_held.get())
    }

    /// What growth leaves free where states keep so many bytes: without what a checkpoint has taken of them already, and
    /// without what is lent.
    fn left_of(&self, kept: u64) -> u64 {
        let LeftFree { taken, lent, .. } = &self.left_free;
        let all = if kept > 0 { kept + self.left_beside() } else { 0 };
        all.saturating_sub(lent.get() + taken.get())
    }

    /// What is left free for what states note of their checkpoints until they are decided.
    fn left_beside(&self) -> u64 {
        (self.limit / LEFT_BESIDE_SHARE / 1024 * 1024).min(LEFT_BESIDE_MAX)
    }

    /// Returns the bytes of the root that the growth of all states leaves free, though they are not booked. Cost: O(1).
    pub fn left_free(&self) -> u64 {
        let root = self.root_of();
        let LeftFree { most, held, .. } = &root.left_free;
        root.left_of(most.get() + held.get())
    }

    /// Tells the root that so many booked bytes are given back before any that are left free are needed.
    pub fn has_to_lend(&self, bytes: u64) {
        self.root_of().left_free.lent.set(bytes);
    }

    /// Lets calls take what growth leaves free, until what it returns is dropped: opening, firing, and moves.
    pub fn lend_left_free(self: &Rc<Self>) -> LenientCall {
        self.lend(false)
    }

    /// Lets a step of a checkpoint take it, until what it returns is dropped. What it takes then is not left free beside
    /// that, until the checkpoint [ends](Account::end_checkpoint).
    pub fn lend_to_checkpoint(self: &Rc<Self>) -> LenientCall {
        self.lend(true)
    }

    /// The checkpoint has ended whose steps took what is left free.
    pub fn end_checkpoint(&self) {
        self.root_of().left_free.taken.set(0);
    }

    fn lend(self: &Rc<Self>, is_step: bool) -> LenientCall {
        let mut root = self;
        while let Some(parent) = &root.parent {
            root = parent;
        }
        let calls = &root.left_free.lenient;
        calls.set(calls.get() + 1);
        LenientCall { root: root.clone(), before: is_step.then(|| root.used()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryKind;

    #[test]
    fn growth_leaves_what_the_state_keeps_that_keeps_most() {
        let root = Account::root(1000);
        let one = Account::below(&root, "one", u64::MAX);
        let other = Account::below(&root, "other", 300);
        one.keep_free(50, 30);
        one.keep_free_for_values(20);
        other.keep_free(40, 0);
        assert_eq!((one.left_to_others(), root.left_free()), (40, 100));
        // What only the root has free is there for the others.
        assert_eq!(other.left_to_others(), 0);
        other.charge(MemoryKind::Values, 250);
        one.charge(MemoryKind::Values, 620);
        assert!(other.ensure_left(30, "").is_ok() && other.ensure_left(31, "").is_err());
        root.has_to_lend(60);
        assert!(other.ensure_left(90, "").is_ok() && other.ensure_left(91, "").is_err());
        root.has_to_lend(0);
        let lenient = one.lend_left_free();
        assert_eq!(other.left_to_others(), 0);
        assert!(other.ensure_left(130, "").is_ok() && other.ensure_left(131, "").is_err());
        drop(lenient);
        let step = one.lend_to_checkpoint();
        one.charge(MemoryKind::Buffers, 80);
        drop(step);
        // What is left free beside that is what the checkpoint has not.
        assert!(other.ensure_left(30, "").is_ok() && other.ensure_left(31, "").is_err());
        drop(one.lend_to_checkpoint());
        assert_eq!(root.left_free(), 20);
        let step = one.lend_to_checkpoint();
        one.release(MemoryKind::Buffers, 80);
        drop(step);
        assert_eq!(root.left_free(), 100);
        root.end_checkpoint();
        assert!(other.ensure_left(31, "").is_err());
        one.release(MemoryKind::Values, 620);
        drop(one);
        assert_eq!(root.left_free(), 40);
    }

    #[test]
    fn some_more_is_left_if_anything_is() {
        for (limit, more) in [(31 << 10, 0), (150 << 10, 4 << 10), (1 << 30, LEFT_BESIDE_MAX)] {
            let root = Account::root(limit);
            let [one, other] = ["one", "other"].map(|name| Account::below(&root, name, u64::MAX));
            assert_eq!(one.left_to_others(), 0);
            other.keep_free(100, 0);
            assert_eq!((one.left_to_others(), other.left_to_others()), (100 + more, 0));
        }
    }
}
