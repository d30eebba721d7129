//! Changing a value by a user's closure, in its slot, and booking what its heap has become.

use alluvium_pagestore::{Account, HeapSize, Key, Lookup, MemoryKind, Result, State};

use super::HybridLogTable;
use crate::heap::lent::{ChangedValue, book_change};
use crate::hybrid_log::index::IndexHash;
use crate::hybrid_log::stored::RecordRead;
use crate::hybrid_log::typed_unsafe::ChangingValue;
use crate::support::oversize::Oversize;
use crate::support::record_type_unsafe::heap_of;

impl<K: Key, V: State> HybridLogTable<K, V> {
    /// Applies a user's closure to the value in a slot and books what its heap has become, also
    /// if it panics.
    ///
    /// # Errors
    /// [`ErrorKind::ValueTooLarge`](alluvium_pagestore::ErrorKind) for a value that is too large already; the closure did not run.
    #[inline(always)]
    pub(super) fn change<R>(
        &mut self,
        (number, slot): (u32, u32),
        change: impl FnOnce(&mut V) -> R,
    ) -> Result<R> {
        if !V::NO_HEAP && self.core.log.oversize.is_seen() {
            let (key, value) = self.core.entry(number, slot).expect("a used slot");
            self.core.log.oversize.check(key, heap_of(key, value))?;
        }
        Ok(self.change_unchecked((number, slot), change))
    }

    /// [`change`](HybridLogTable::change) of a value that a closure has just made.
    #[inline(always)]
    pub(super) fn change_unchecked<R>(
        &mut self,
        (number, slot): (u32, u32),
        change: impl FnOnce(&mut V) -> R,
    ) -> R {
        let ChangingValue { key, value, frame_heap, account, oversize } =
            self.core.changing(number, slot);
        if V::NO_HEAP {
            return change(value);
        }
        let before = value.heap_bytes() as u64;
        let lent = LentValue { key, value, before, frame_heap, account, oversize };
        change(lent.value)
    }

    /// A new key, with a value that a closure is about to make.
    fn new_key<Q: Lookup<K> + ?Sized>(&self, key: &Q) -> Result<K> {
        let key = key.to_owned();
        self.core.log.oversize.check(&key, key.heap_bytes() as u64)?;
        Ok(key)
    }

    #[inline(never)]
    pub(super) fn update_hashed<Q: Lookup<K> + ?Sized, R>(
        &mut self,
        hash: IndexHash,
        key: &Q,
        init: impl FnOnce() -> V,
        change: impl FnOnce(&mut V) -> R,
        ahead: &mut Option<RecordRead>,
    ) -> Result<R> {
        if !V::NO_HEAP && self.core.log.account.available() < self.core.log.sizes.headroom_bytes {
            self.core.log.make_headroom()?;
        }
        // Of values without heap whoever calls this has looked for a short cut.
        let owned = match V::NO_HEAP {
            true => self.own_slowly(hash, key, ahead)?,
            false => self.own(hash, key, ahead)?,
        };
        if let Some(slot) = owned {
            return self.change(slot, change);
        }
        let key = self.new_key(key)?;
        let to = self.core.log.make_room(hash)?;
        let value = init();
        let heap = heap_of(&key, &value);
        if !V::NO_HEAP {
            self.core.log.oversize.grown(&key, heap);
        }
        self.insert(hash, (key, value, heap), to);
        Ok(self.change_unchecked(to, change))
    }
}

/// A value lent to a user's closure; books the change of its heap when dropped, also by a panic, and
/// tells if it is too large then.
struct LentValue<'a, K: Key, V: HeapSize> {
    key: &'a K,
    value: &'a mut V,
    before: u64,
    frame_heap: &'a mut u64,
    account: &'a Account,
    oversize: &'a mut Oversize,
}

impl<K: Key, V: HeapSize> ChangedValue for LentValue<'_, K, V> {
    fn measure(&self) -> u64 {
        self.value.heap_bytes() as u64
    }

    fn book(&mut self, after: u64) {
        if after != self.before {
            *self.frame_heap = *self.frame_heap + after - self.before;
            self.account.adjust(MemoryKind::Values, self.before, after);
            if after > self.before {
                self.oversize.grown(self.key, self.key.heap_bytes() as u64 + after);
            }
        }
    }
}

impl<K: Key, V: HeapSize> Drop for LentValue<'_, K, V> {
    fn drop(&mut self) {
        book_change(self);
    }
}
