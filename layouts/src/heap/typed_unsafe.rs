//! The part of a heap table that knows the types of its records: it finds, changes, adds and takes entries.
//!
//! A [`HeapCore`] is compiled once, for records of any type. [`TypedHeap`] is a core whose records are of `K` and `V`; only
//! it reaches native keys and values. This is the record path: a look-up makes no virtual call, and a change of an entry
//! that is marked as changed already reads one more bit.
//!
//! Why it is sound: `TypedHeap::new` checks that the core's record type is that of `K` and `V`, and a core replaces its
//! table by one of the same record type only.

use std::marker::PhantomData;

use alluvium_pagestore::{Account, Key, MemoryKind};

use super::core::HeapCore;
use super::probing_unsafe::{FoundEntry, SlotHint};
use crate::checkpoint::Remembered;
use crate::support::out_of_line_unsafe::{DroppedHere, drop_here};
use crate::support::oversize::Oversize;
use crate::support::record_type_unsafe::NativeEntry;
use crate::support::typed_core::typed_core;

// Lists and timers, which are generic, have one of their own.
drop_here!(Remembered);

typed_core! {
    /// A core whose records have keys `K` and values `V`.
    #[derive(Debug)]
    pub(crate) struct TypedHeap(HeapCore);
}

/// An entry that is about to change, with its account and its limit.
pub(crate) type ChangingEntry<'a, K, V> =
    (&'a mut NativeEntry<K, V>, &'a Account, &'a mut Oversize);

// SAFETY: in all of these the table is one of records of these types, which `new` has looked at.
impl<K: Key, V: 'static> TypedHeap<K, V> {
    /// Wraps a core that was opened for these types.
    ///
    /// # Panics
    /// If the core was opened for other types.
    pub fn new(core: DroppedHere<HeapCore>) -> Self {
        assert!(core.table.record_type().is::<K, V>(), "a table of records of other types");
        Self { core, types: PhantomData }
    }

    /// Finds the entry with this hash and a key that `is` it.
    #[inline(always)]
    pub fn find(&self, hash: u64, is: impl Fn(&K) -> bool) -> Option<&NativeEntry<K, V>> {
        // SAFETY: as said above; the entry stays while `self` is borrowed.
        unsafe { Some(self.core.table.probe(hash, |entry| is(&entry.key))?.entry.as_ref()) }
    }

    /// Does the same with a hint of [`look_ahead`](Self::look_ahead).
    #[inline(always)]
    pub fn find_near(
        &self,
        hash: u64,
        near: SlotHint,
        is: impl Fn(&K) -> bool,
    ) -> Option<&NativeEntry<K, V>> {
        let is = |entry: &NativeEntry<K, V>| is(&entry.key);
        // SAFETY: as said above; the entry stays while `self` is borrowed.
        unsafe { Some(self.core.table.probe_near(hash, near, is)?.entry.as_ref()) }
    }

    /// Finds the entry with this hash and a key that `is` it, and marks it as changed.
    #[inline(always)]
    pub fn change(
        &mut self,
        hash: u64,
        is: impl Fn(&K) -> bool,
    ) -> Option<ChangingEntry<'_, K, V>> {
        // SAFETY: as said above.
        let found =
            unsafe { self.core.table.probe(hash, |entry: &NativeEntry<K, V>| is(&entry.key)) };
        // SAFETY: it was found just now.
        Some(unsafe { self.change_found(found?) })
    }

    /// Does the same with a hint of [`look_ahead`](Self::look_ahead).
    #[inline(always)]
    pub fn change_near(
        &mut self,
        hash: u64,
        near: SlotHint,
        is: impl Fn(&K) -> bool,
    ) -> Option<ChangingEntry<'_, K, V>> {
        let is = |entry: &NativeEntry<K, V>| is(&entry.key);
        // SAFETY: as said above.
        let found = unsafe { self.core.table.probe_near(hash, near, is) };
        // SAFETY: it was found just now.
        Some(unsafe { self.change_found(found?) })
    }

    /// Marks an entry as changed.
    ///
    /// # Safety
    /// It was found in this table, which has not changed since.
    #[inline(always)]
    // SAFETY: what was found is the caller's promise.
    unsafe fn change_found(&mut self, mut found: FoundEntry<K, V>) -> ChangingEntry<'_, K, V> {
        // SAFETY: as said above. Noting the change moves and drops no entries of the table, so that the entry is where it
        // was, and nobody else has a reference to it.
        unsafe {
            if !self.core.table.has_changed(&found) {
                self.core.note_change(found.spot());
            }
            let HeapCore { context, oversize, .. } = &mut *self.core;
            (found.entry.as_mut(), &context.account, oversize)
        }
    }

    /// Adds a new entry, for which [room was made](HeapCore::make_room).
    #[inline]
    pub fn add(&mut self, hash: u64, entry: NativeEntry<K, V>) -> ChangingEntry<'_, K, V> {
        if self.core.reads {
            // What is added after the barrier is marked as that.
            self.core.plan_capture();
        }
        // SAFETY: as said above; the entry is written at once.
        unsafe {
            let mut at = self.core.table.claim(hash).0.cast::<NativeEntry<K, V>>();
            at.write(entry);
            let HeapCore { context, oversize, .. } = &mut *self.core;
            (at.as_mut(), &context.account, oversize)
        }
    }

    /// Removes the entry with this hash and a key that `is` it. `bytes` measures its heap.
    #[inline]
    pub fn take(
        &mut self,
        hash: u64,
        is: impl Fn(&K) -> bool,
        bytes: impl Fn(&K, &V) -> u64,
    ) -> Option<NativeEntry<K, V>> {
        // SAFETY: as said above; the entry is read at once, and is the table's no more.
        unsafe {
            let found = self.core.table.probe(hash, |entry: &NativeEntry<K, V>| is(&entry.key))?;
            let spot = found.spot();
            // Measuring may panic, and then nothing has changed.
            let heap = found.entry.as_ref();
            let heap = bytes(&heap.key, &heap.value);
            if self.core.reads {
                self.core.note_change(spot);
            }
            let (entry, place) = self.core.table.remove(spot, hash)?;
            let entry = entry.cast::<NativeEntry<K, V>>().read();
            self.core.note_dead(place);
            self.core.context.account.release(MemoryKind::Values, heap);
            Some(entry)
        }
    }

    /// Prefetches what a look-up of a hash reads, or a change, and returns a hint for it.
    #[inline(always)]
    pub fn look_ahead(&self, hash: u64, changes: bool) -> SlotHint {
        // SAFETY: as said above.
        unsafe { self.core.table.look_ahead_native::<K, V>(hash, changes) }
    }
}
