//! Values on the heap that a user's closure changes in place.
//!
//! What a closure does to the heap of a value is known when it returns: it may take the account over
//! its limit, which the next write is told.

use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};

use alluvium_pagestore::{Account, Key, MemoryKind, Result};

use crate::heap::HeapKind;
use crate::support::oversize::Oversize;
use crate::support::record_type_unsafe::NativeEntry;

/// A value lent to a user's closure; books the change of its heap when dropped, also by a panic, and
/// tells if it is too large then.
pub(crate) struct LentEntry<'a, K: Key, V, M: HeapKind<K, V>> {
    pub entry: &'a mut NativeEntry<K, V>,
    before: u64,
    account: &'a Account,
    oversize: &'a mut Oversize,
    kind: PhantomData<M>,
}

impl<'a, K: Key, V, M: HeapKind<K, V>> LentEntry<'a, K, V, M> {
    pub fn new(
        entry: &'a mut NativeEntry<K, V>,
        account: &'a Account,
        oversize: &'a mut Oversize,
    ) -> Result<Self> {
        let lent = Self::new_of_any_size(entry, account, oversize);
        if lent.oversize.is_seen() {
            lent.oversize.check(&lent.entry.key, lent.before)?;
        }
        Ok(lent)
    }

    /// A value that may be too large already, for a change that takes no heap.
    pub fn new_of_any_size(
        entry: &'a mut NativeEntry<K, V>,
        account: &'a Account,
        oversize: &'a mut Oversize,
    ) -> Self {
        let before = M::heap_bytes(&entry.key, &entry.value);
        Self { entry, before, account, oversize, kind: PhantomData }
    }

    /// The value of a new entry, which was made by a closure too.
    pub fn new_made(
        entry: &'a mut NativeEntry<K, V>,
        account: &'a Account,
        oversize: &'a mut Oversize,
    ) -> Self {
        Self { entry, before: 0, account, oversize, kind: PhantomData }
    }
}

impl<K: Key, V, M: HeapKind<K, V>> ChangedValue for LentEntry<'_, K, V, M> {
    fn measure(&self) -> u64 {
        M::heap_bytes(&self.entry.key, &self.entry.value)
    }

    fn book(&mut self, after: u64) {
        if after != self.before {
            self.account.adjust(MemoryKind::Values, self.before, after);
            if after > self.before {
                self.oversize.grown(&self.entry.key, after);
            }
        }
    }
}

impl<K: Key, V, M: HeapKind<K, V>> Drop for LentEntry<'_, K, V, M> {
    fn drop(&mut self) {
        book_change(self);
    }
}

/// A value that a closure has changed.
pub(crate) trait ChangedValue {
    /// Its heap now. Measuring runs user code, which may panic.
    fn measure(&self) -> u64;
    fn book(&mut self, after: u64);
}

/// Books what is there now. After a measurement that panics there is another one: a value that is there and not
/// booked would be given back some time.
#[inline]
pub(crate) fn book_change(changed: &mut impl ChangedValue) {
    let measuring = MeasureOnUnwind(changed);
    let after = measuring.0.measure();
    std::mem::forget(measuring);
    changed.book(after);
}

/// Measures again when it is dropped, which only a panic does.
struct MeasureOnUnwind<'a, C: ChangedValue>(&'a mut C);

impl<C: ChangedValue> Drop for MeasureOnUnwind<'_, C> {
    fn drop(&mut self) {
        let again = || {
            let after = self.0.measure();
            self.0.book(after);
        };
        let _panic = catch_unwind(AssertUnwindSafe(again));
    }
}

/// A state whose values have outgrown the budget, or what is `kept` free of it, takes no writes until
/// some are removed.
#[inline]
pub(crate) fn check_not_overdrawn(account: &Account, kept: u64) -> Result<()> {
    let available = account.available();
    if available > kept || available == kept && !account.is_overdrawn() {
        return Ok(());
    }
    account.ensure(kept.max(1), "a write, and the checkpoint after it,")
}
