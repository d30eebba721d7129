//! A key that is sought, and its record once that is found, with erased types.
//!
//! Where a key is neither absent nor where it can be changed, a call has to read, copy or move its record.
//! That is compiled once, for [`LogCore`]; what it needs to know of the types goes through a
//! [`SoughtRecord`], with an indirect call for each step.

use alluvium_pagestore::{Key, Lookup, Result, State, Time, codec, key_text};

use super::HybridLogTable;
use super::core::LogCore;
use super::typed_unsafe::TypedLog;
use crate::contract::expiry::Touched;
use crate::hybrid_log::index::IndexHash;
use crate::hybrid_log::log::RecordLocation;
use crate::support::record_type_unsafe::heap_of;

/// A key that is sought.
pub(super) struct Sought<'a> {
    pub(super) hash: IndexHash,
    pub(super) whole_hash: u64,
    /// The key in messages.
    pub(super) name: &'a dyn Fn() -> String,
    pub(super) record: &'a mut dyn SoughtRecord,
}

impl Sought<'_> {
    /// Finds the record without reading storage.
    pub(super) fn locate(&self, core: &LogCore) -> RecordLocation {
        self.record.locate(core, self.hash)
    }
}

/// What is to be known of a record that was decoded.
#[derive(Clone, Copy)]
pub(super) struct DecodedSought {
    /// Bytes of heap that it owns.
    pub(super) heap: u64,
    /// When it was touched last; [`Time::MAX`] if entries do not expire.
    pub(super) touched: Time,
}

/// The record of a sought key. The cores are of records of its types.
pub(super) trait SoughtRecord {
    /// Finds it without reading storage.
    fn locate(&self, core: &LogCore, hash: IndexHash) -> RecordLocation;

    /// Takes it out of a slot: a copy, if it is kept for a checkpoint. The index is the caller's.
    fn take(&mut self, core: &mut LogCore, slot: (u32, u32));

    /// Takes it from a payload, if that has it. Does not keep it unless that `is_wanted`.
    fn decode(&mut self, payload: &[u8], is_wanted: bool) -> Result<Option<DecodedSought>>;

    /// Puts what was taken into a free slot. The index is the caller's.
    fn put(&mut self, core: &mut LogCore, to: (u32, u32));
}

/// The key, as who calls has it, and what was taken: the record, and its heap.
struct TypedSought<'a, K, V, Q: ?Sized> {
    key: &'a Q,
    last_touch: Option<Touched<V>>,
    taken: Option<(K, V, u64)>,
}

impl<K: Key, V: State, Q: Lookup<K> + ?Sized> SoughtRecord for TypedSought<'_, K, V, Q> {
    fn locate(&self, core: &LogCore, hash: IndexHash) -> RecordLocation {
        TypedLog::<K, V>::of(core).locate_again(hash, self.key)
    }

    fn take(&mut self, core: &mut LogCore, (number, slot): (u32, u32)) {
        let core = TypedLog::<K, V>::of_mut(core);
        let is_kept = core.log.is_kept(number, slot);
        let taken = if is_kept { core.copy(number, slot) } else { core.take(number, slot) };
        self.taken = Some(taken);
    }

    fn decode(&mut self, payload: &[u8], is_wanted: bool) -> Result<Option<DecodedSought>> {
        let (key, value) = codec::decode::<K, V>(payload)?;
        if !self.key.is(&key) {
            return Ok(None);
        }
        let heap = heap_of(&key, &value);
        let touched = self.last_touch.map_or(Time::MAX, |touched| touched(&value));
        if is_wanted {
            self.taken = Some((key, value, heap));
        }
        Ok(Some(DecodedSought { heap, touched }))
    }

    fn put(&mut self, core: &mut LogCore, to: (u32, u32)) {
        let taken = self.taken.take().expect("it was taken before");
        TypedLog::<K, V>::of_mut(core).put(to, taken);
    }
}

impl<K: Key, V: State> HybridLogTable<K, V> {
    /// Calls a function that is compiled once for a key. Returns what is left of the record that it took.
    #[inline(always)]
    pub(super) fn seek<Q: Lookup<K> + ?Sized, R>(
        &mut self,
        hash: IndexHash,
        key: &Q,
        call: impl FnOnce(&mut LogCore, &mut Sought<'_>) -> R,
    ) -> (R, Option<(K, V, u64)>) {
        let mut record = TypedSought { key, last_touch: self.last_touch, taken: None };
        let name = || key_text(&key.to_owned());
        let whole_hash = key.key_hash();
        let mut sought = Sought { hash, whole_hash, name: &name, record: &mut record };
        let called = call(&mut self.core, &mut sought);
        (called, record.taken)
    }
}
