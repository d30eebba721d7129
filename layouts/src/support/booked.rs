//! Memory that is booked while its owner lives.

use std::rc::Rc;

use alluvium_pagestore::{Account, MemoryKind, Result};

/// Bytes of one kind that are booked on an account until this is dropped.
#[derive(Debug)]
pub(crate) struct Booked {
    account: Rc<Account>,
    kind: MemoryKind,
    bytes: u64,
}

impl Booked {
    /// Nothing yet.
    pub fn none(account: Rc<Account>, kind: MemoryKind) -> Self {
        Self { account, kind, bytes: 0 }
    }

    /// Memory for buffers, which is free.
    pub fn buffers(account: Rc<Account>, bytes: u64) -> Self {
        let mut booked = Self::none(account, MemoryKind::Buffers);
        booked.charge(bytes);
        booked
    }

    /// Books memory.
    ///
    /// # Errors
    /// [`ErrorKind::OverBudget`](alluvium_pagestore::ErrorKind::OverBudget) if there is no room.
    pub fn reserve(
        account: Rc<Account>,
        kind: MemoryKind,
        bytes: u64,
        what: &'static str,
    ) -> Result<Self> {
        let mut booked = Self::none(account, kind);
        booked.reserve_more(bytes, what)?;
        Ok(booked)
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn account(&self) -> &Rc<Account> {
        &self.account
    }

    /// Books more, which is free.
    pub fn charge(&mut self, bytes: u64) {
        self.account.charge(self.kind, bytes);
        self.bytes += bytes;
    }

    /// Books more.
    ///
    /// # Errors
    /// As for [`reserve`](Booked::reserve).
    pub fn reserve_more(&mut self, bytes: u64, what: &'static str) -> Result<()> {
        self.account.reserve(self.kind, bytes, what)?;
        self.bytes += bytes;
        Ok(())
    }

    /// Books more if there is room; says whether there was.
    pub fn try_reserve_more(&mut self, bytes: u64) -> bool {
        let is_booked = self.account.try_reserve(self.kind, bytes);
        self.bytes += if is_booked { bytes } else { 0 };
        is_booked
    }

    /// Gives so many bytes of it back.
    pub fn give_some_back(&mut self, bytes: u64) {
        self.account.release(self.kind, bytes);
        self.bytes -= bytes;
    }

    /// Books what is taken now, for which there is room.
    pub fn adjust_to(&mut self, bytes: u64) {
        self.charge(bytes.saturating_sub(self.bytes));
        self.give_some_back(self.bytes.saturating_sub(bytes));
    }

    /// Gives all of it back.
    pub fn give_back(&mut self) {
        self.account.release(self.kind, std::mem::take(&mut self.bytes));
    }

    /// Takes over what another one has booked, of the same kind and account.
    pub fn append(&mut self, mut other: Self) {
        self.bytes += std::mem::take(&mut other.bytes);
    }
}

impl Drop for Booked {
    fn drop(&mut self) {
        self.give_back();
    }
}
