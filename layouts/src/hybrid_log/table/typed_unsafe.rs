//! The part of a hybrid log that knows the types of its records: looking one up, changing it, putting and taking it.
//!
//! A [`LogCore`] is compiled once, for records of any type. [`TypedLog`] is one whose records are known to be of `K` and `V`;
//! only it reaches native keys and values. This is the record path: no call here goes by a table of functions.
//!
//! What makes it sound: a `TypedLog<K, V>` is made around a core whose record type is that of `K` and `V`, which is looked
//! at; its log is replaced by another one of its own record type only ([`LogCore::hand_over`]). Debug builds check the
//! types of each frame that is reached.

use std::marker::PhantomData;

use alluvium_pagestore::{Key, Lookup, MemoryKind, Result, State};

use crate::contract::table::StateContext;
use crate::hybrid_log::address::{Location, StoredAt};
use crate::hybrid_log::config::HybridLog;
use crate::hybrid_log::core::LogCore;
use crate::hybrid_log::index::IndexHash;
use crate::hybrid_log::log::{Log, RecordLocation};
use crate::hybrid_log::slots_unsafe::SlotLayout;
use crate::support::out_of_line_unsafe::DroppedHere;
use crate::support::record_type_unsafe::{RecordType, heap_of};
use crate::support::typed_core::typed_core;

typed_core! {
    /// A core whose records have keys `K` and values `V`.
    pub(in crate::hybrid_log) struct TypedLog(LogCore);
}

#[inline(never)]
fn open(
    layout: &HybridLog,
    record_type: &'static RecordType,
    context: StateContext,
) -> Result<DroppedHere<LogCore>> {
    LogCore::open(layout, record_type, context).map(DroppedHere::new)
}

// SAFETY: in all of these the log is one of records of these types, which `open` has looked at.
impl<K: Key, V: State> TypedLog<K, V> {
    /// Opens the log that a layout describes for these types, and restores what the context says.
    pub fn open(layout: &HybridLog, context: StateContext) -> Result<Self> {
        let core = open(layout, RecordType::of::<K, V>(), context)?;
        assert!(core.log.record_type.is::<K, V>(), "a log of records of other types");
        Ok(Self { core, types: PhantomData })
    }

    /// A core as one of records of these types.
    ///
    /// # Panics
    /// If it has records of others.
    pub fn of(core: &LogCore) -> &Self {
        assert!(core.log.record_type.is::<K, V>(), "a log of records of other types");
        // SAFETY: a `TypedLog` is a `DroppedHere<LogCore>`, and that a `LogCore`: both are transparent.
        unsafe { &*(&raw const *core).cast() }
    }

    /// The same, to be changed.
    ///
    /// # Panics
    /// If it has records of others.
    pub fn of_mut(core: &mut LogCore) -> &mut Self {
        assert!(core.log.record_type.is::<K, V>(), "a log of records of other types");
        // SAFETY: as above.
        unsafe { &mut *(&raw mut *core).cast() }
    }

    #[inline(always)]
    fn log(&self) -> &Log {
        &self.core.log
    }

    /// Key and value in a slot of a frame in use, if the slot is used.
    #[inline(always)]
    pub fn entry(&self, number: u32, slot: u32) -> Option<(&K, &V)> {
        // SAFETY: as said above.
        unsafe { self.log().frame(number).entry(slot) }
    }

    /// Key and value in a used slot of a frame that is not frozen, and the heap that the frame's
    /// entries own, to be changed; keeps the short cut. And the log's account and bound of values.
    #[inline(always)]
    pub fn changing(&mut self, number: u32, slot: u32) -> ChangingValue<'_, K, V> {
        let Log { frames, account, oversize, .. } = &mut self.core.log;
        // SAFETY: as said above.
        let (key, value, frame_heap) = unsafe { frames.entry_and_heap(number, slot) };
        ChangingValue { key, value, frame_heap, account, oversize }
    }

    /// The slot of a key's record, if there is a short cut to it. The fast path of a write: two
    /// memory accesses, one for the bucket and one for the slot.
    #[inline(always)]
    pub fn find_short<Q: Lookup<K> + ?Sized>(
        &self,
        hash: IndexHash,
        key: &Q,
    ) -> Option<(u32, u32)> {
        let log = self.log();
        let mut found = 0;
        let is_it = |address| {
            found = address;
            // SAFETY: as said above.
            unsafe { log.frames.is_at::<K, V>(address, |k| key.is(k)) }
        };
        log.index.any_in_memory(hash, is_it).then(|| log.slot_of(found))
    }

    /// The value of a key's record, if there is a short cut to it and the index has it at home.
    #[inline(always)]
    pub fn find_value<Q: Lookup<K> + ?Sized>(
        &mut self,
        hash: IndexHash,
        key: &Q,
    ) -> Option<&mut V> {
        let Log { frames, index, .. } = &mut self.core.log;
        // SAFETY: as said above.
        unsafe { frames.find::<K, V>(index, hash, |k| key.is(k)) }
    }

    /// The value at an address, if there is a short cut to it and it holds this key in a record
    /// that is fresh since this epoch.
    #[inline(always)]
    pub fn value_at<Q: Lookup<K> + ?Sized>(&mut self, address: u64, key: &Q) -> Option<&mut V> {
        // SAFETY: as said above.
        unsafe { self.core.log.frames.value_at::<K, V>(address, |k| key.is(k)) }
    }

    /// The value of a key, to be changed, if it is at this address, to which there is a short cut, in a
    /// record that is on storage too: that is fresh from now on.
    #[inline(always)]
    pub fn freshen_at<Q: Lookup<K> + ?Sized>(&mut self, address: u64, key: &Q) -> Option<&mut V> {
        let Log { frames, stored, .. } = &mut self.core.log;
        // SAFETY: as said above.
        let found = unsafe { frames.freshen_at::<K, V>(address, |k| key.is(k)) };
        let (value, (segment, grain)) = found?;
        let stored = stored.as_mut().expect("a record that was written has a store");
        stored.record_died(StoredAt { segment, grain });
        Some(value)
    }

    /// Finds a key's record without reading storage.
    #[inline(always)]
    pub fn locate<Q: Lookup<K> + ?Sized>(&self, hash: IndexHash, key: &Q) -> RecordLocation {
        let log = self.log();
        let mut cold = false;
        let found = log.index.find(hash, |address| match address.place() {
            Location::Memory(address) => {
                let (number, slot) = log.slot_of(address);
                self.entry(number, slot).is_some_and(|(k, _)| key.is(k))
            }
            Location::Stored(_) => {
                cold = true;
                false
            }
        });
        match found {
            Some((at, address)) => {
                let (number, slot) = log.slot_of(address.0);
                RecordLocation::Resident { at, number, slot }
            }
            None if cold => RecordLocation::Cold,
            None => RecordLocation::Absent,
        }
    }

    /// [`locate`](TypedLog::locate) where a call more is nothing beside what was done before, or is to be done: compiled
    /// once for each type of key.
    #[inline(never)]
    pub fn locate_again<Q: Lookup<K> + ?Sized>(&self, hash: IndexHash, key: &Q) -> RecordLocation {
        self.locate(hash, key)
    }

    /// The address of the first record in memory whose hash is like this one's, which the processor
    /// is hinted to load; [`NOWHERE`](crate::hybrid_log::log::NOWHERE) if there is none.
    #[inline(always)]
    pub fn prefetch_candidate(&self, hash: IndexHash) -> u64 {
        self.log().prefetch_candidate(SlotLayout::for_types::<K, V>().stride, hash)
    }

    /// Puts an entry that owns `heap` bytes into a free slot; the index is the caller's.
    #[inline]
    pub fn put(&mut self, to: (u32, u32), (key, value, heap): (K, V, u64)) {
        let Log { frames, account, .. } = &mut self.core.log;
        // SAFETY: as said above.
        unsafe { frames.put(to, (key, value), heap) };
        if heap > 0 {
            account.charge(MemoryKind::Values, heap);
        }
    }

    /// A copy of an entry that is kept, and the heap that it owns; what stays there is marked as dead.
    /// The index is the caller's.
    pub fn copy(&mut self, number: u32, slot: u32) -> (K, V, u64) {
        let (key, value) = self.entry(number, slot).expect("an indexed slot");
        // Cloning and measuring run user code, which may panic: before anything is changed.
        let (key, value) = (key.clone(), value.clone());
        let heap = heap_of(&key, &value);
        let copy = (key, value, heap);
        self.core.log.leave_for_dead(number, slot);
        self.core.log.stats.clones += 1;
        copy
    }

    /// Takes an entry that is not kept out of a frame, with the heap that it owns; the index is the
    /// caller's.
    pub fn take(&mut self, number: u32, slot: u32) -> (K, V, u64) {
        let (key, value) = self.entry(number, slot).expect("an indexed slot");
        // Measuring runs user code, which may panic: before anything is changed.
        let heap = heap_of(key, value);
        let log = &mut self.core.log;
        log.copy_died(log.frame(number).stored(slot));
        // SAFETY: as said above.
        let (key, value) = unsafe { log.frame_mut(number).take::<K, V>(slot) };
        log.vacated(number, heap);
        (key, value, heap)
    }
}

/// An entry in a slot, to be changed, and what is to be told of the change.
pub(in crate::hybrid_log) struct ChangingValue<'a, K, V> {
    pub key: &'a K,
    pub value: &'a mut V,
    pub frame_heap: &'a mut u64,
    pub account: &'a alluvium_pagestore::Account,
    pub oversize: &'a mut crate::support::oversize::Oversize,
}
