//! Values on the heap that a user's closure changes in place.
//!
//! What a closure does to the heap of a value is known when it returns: it may take the account over
//! its limit, which the next write is told.

use std::marker::PhantomData;

use alluvium_pagestore::{Account, MemoryKind, Result};

use crate::heap::Kind;

/// A value lent to a user's closure; books the change of its heap when dropped, also by a panic.
pub(crate) struct Lent<'a, K, V, M: Kind<K, V>> {
    pub entry: &'a mut (K, V),
    before: u64,
    account: &'a Account,
    kind: PhantomData<M>,
}

impl<'a, K, V, M: Kind<K, V>> Lent<'a, K, V, M> {
    pub fn new(entry: &'a mut (K, V), account: &'a Account) -> Self {
        let before = M::heap_bytes(&entry.0, &entry.1);
        Self { entry, before, account, kind: PhantomData }
    }
}

impl<K, V, M: Kind<K, V>> Drop for Lent<'_, K, V, M> {
    fn drop(&mut self) {
        let after = M::heap_bytes(&self.entry.0, &self.entry.1);
        self.account.adjust(MemoryKind::Values, self.before, after);
    }
}

/// A state whose values have outgrown the budget takes no writes until some are removed.
pub(crate) fn check_not_overdrawn(account: &Account) -> Result<()> {
    if account.available() > 0 || !account.is_overdrawn() {
        return Ok(());
    }
    account.ensure(1, "a write")
}
