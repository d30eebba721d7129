//! Memory for the next checkpoint, booked as what it will hold comes.
//!
//! A checkpoint remembers the slices of its barrier and holds the tables of their runs until it is decided, also of
//! those that go meanwhile. It writes through buffers of its own.
//!
//! What it keeps true: the buffers are booked from when the state is open, the share of a slice or a run from when it
//! is there until it is gone and no checkpoint holds it. Slack is booked before anything else is accepted: what is read
//! again from a checkpoint may take a little more than it took, as tables grow in another order.

use std::rc::Rc;

use alluvium_pagestore::{Account, MemoryKind};

/// What is booked for checkpoints.
#[derive(Debug)]
pub struct CheckpointFund {
    account: Rc<Account>,
    /// Shares of what remove while a checkpoint was taken, which may hold it.
    held: u64,
    is_taken: bool,
    /// What is missing of the slack.
    missing: u64,
}

impl CheckpointFund {
    /// Nothing booked.
    pub fn new(account: Rc<Account>) -> Self {
        Self { account, held: 0, is_taken: false, missing: 0 }
    }

    /// Books a share; the caller has made room for it.
    pub fn add(&mut self, bytes: u64) {
        self.account.charge(MemoryKind::Tables, bytes);
    }

    /// Wants slack, which is booked as memory allows.
    pub fn want_slack(&mut self, bytes: u64) {
        self.missing += bytes;
        self.fill_slack();
    }

    /// Whether nothing is missing of the slack.
    #[inline]
    pub fn has_slack(&self) -> bool {
        self.missing == 0
    }

    /// Books what is missing, as far as memory allows.
    pub fn fill_slack(&mut self) {
        let free = self.account.available().saturating_sub(self.account.left_to_others());
        let more = self.missing.min(free);
        self.account.charge(MemoryKind::Tables, more);
        self.missing -= more;
    }

    /// Gives a share back, or keeps it while a checkpoint may hold what it was booked for.
    pub fn remove(&mut self, bytes: u64) {
        if self.is_taken {
            self.held += bytes;
        } else {
            self.account.release(MemoryKind::Tables, bytes);
        }
    }

    /// A checkpoint begins.
    pub fn begin(&mut self) {
        self.is_taken = true;
    }

    /// It is decided.
    pub fn end(&mut self) {
        self.is_taken = false;
        self.account.release(MemoryKind::Tables, std::mem::take(&mut self.held));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_while_a_checkpoint_is_taken_is_booked_until_it_is_decided() {
        let account = Account::root(100);
        let mut fund = CheckpointFund::new(account.clone());
        fund.add(10);
        fund.add(5);
        fund.remove(5);
        assert_eq!(account.used(), 10);
        fund.begin();
        fund.add(7);
        fund.remove(10);
        assert_eq!(account.used(), 17);
        fund.end();
        assert_eq!(account.used(), 7);
        fund.remove(7);
        assert_eq!(account.used(), 0);
    }
}
