//! Plain heap state: a hash table of native keys and values.
//!
//! Only checkpoints are on storage. A checkpoint runs in steps while the table changes
//! (`heap/checkpoint.rs`), and writes what has changed since the last one. For this the table keeps
//! bits and places beside the entries (`heap/marks_unsafe.rs`) and a list of reused segments
//! (`checkpoint/ledger.rs`). The table (`heap/raw_table_unsafe.rs`) grows in small steps and is in
//! the order of hashes, which lets key groups move. It reserves memory before it grows, and the
//! heap of its values when a call returns.
//!
//! This file is the record path, compiled for each type of keys and values. The rest is
//! `heap/core.rs`, compiled once.

mod batches;
mod checkpoint;
mod copies;
mod core;
mod dropping_unsafe;
pub(crate) mod entry_part_unsafe;
pub(crate) mod entry_table_unsafe;
mod group_unsafe;
mod groups;
mod growing_unsafe;
pub(crate) mod hash_range;
pub(crate) mod lent;
pub(crate) mod lists;
#[cfg(test)]
mod made;
mod marks_unsafe;
mod needs;
pub(crate) mod panes;
mod part_hashes;
pub(crate) mod probing_unsafe;
pub(crate) mod raw_table_unsafe;
mod reading;
pub(crate) mod record_position;
pub(crate) mod record_table_unsafe;
mod records_unsafe;
mod restoring_unsafe;
pub(crate) mod snapshot;
#[cfg(test)]
#[path = "tests_unsafe.rs"]
mod tests;
mod typed_unsafe;
mod walk;

use std::marker::PhantomData;

use alluvium_pagestore::{
    ByteSize, EntryCodec, Error, ErrorKind, Key, Lookup, MemoryKind, Rejected, Result, State,
    description_of, rounded,
};

pub(crate) use self::batches::{GROUP, NEAR_BYTES};
pub(crate) use self::checkpoint::segment_bytes;
pub(crate) use self::copies::name_large;
use self::core::{Durability, HeapCore};
use self::probing_unsafe::SlotHint;
use self::typed_unsafe::TypedHeap;
use crate::contract::by_hash::ByHash;
use crate::contract::expiry::ExpiryPass;
use crate::contract::table::{BatchError, Cursor, Layout, Peek, StateContext, Table};
use crate::contract::upkeep::{HasUpkeep, Upkeep};
use crate::heap::lent::LentEntry;
use crate::support::record_type_unsafe::{NativeEntry, RecordType, heap_of};

/// Keeps a state in a hash table on the heap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Heap {
    memory: Option<ByteSize>,
}

impl Heap {
    /// Creates a heap layout without a memory limit of its own.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the most memory that this state may take, in bytes. Default: the store's memory.
    #[must_use]
    pub fn memory(mut self, bytes: u64) -> Self {
        self.memory = Some(ByteSize(bytes));
        self
    }

    /// Returns a layout for values that cannot be stored. Checkpoints fail.
    pub fn volatile() -> VolatileHeap {
        VolatileHeap
    }
}

/// [`Heap`] for values that need not be [`State`]. It is never written, and checkpoints fail. The
/// budget counts the table and the heap of keys, but not the heap of values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VolatileHeap;

/// How a heap table measures its entries, and whether it can move them.
pub trait HeapKind<K, V>: Sized + 'static {
    /// Heap that a new value from a closure is expected to own, in bytes; kept free before the
    /// call.
    const MADE_BYTES: u64;

    /// Whether a closure can change the heap of an entry that the budget counts. If not, a change in
    /// place needs no memory, and is not refused for lack of it.
    const CAN_GROW: bool;

    /// Returns the heap bytes of an entry that the budget counts.
    fn heap_bytes(key: &K, value: &V) -> u64;

    /// Returns the table by ranges of hashes, if its entries can be moved.
    fn by_hash(table: &mut HeapTable<K, V, Self>) -> Option<&mut dyn ByHash<K, V>> {
        let _ = table;
        None
    }
}

/// The kind of [`Heap`]: keys and values are measured and stored.
#[derive(Debug)]
pub struct StoredValues;

/// The kind of [`VolatileHeap`]: only keys are measured.
#[derive(Debug)]
pub struct VolatileValues;

impl<K: Key, V: State> HeapKind<K, V> for StoredValues {
    const MADE_BYTES: u64 = if V::NO_HEAP { 0 } else { rounded(1) as u64 };
    const CAN_GROW: bool = !V::NO_HEAP;

    #[inline]
    fn heap_bytes(key: &K, value: &V) -> u64 {
        heap_of(key, value)
    }

    fn by_hash(table: &mut HeapTable<K, V, Self>) -> Option<&mut dyn ByHash<K, V>> {
        Some(table)
    }
}

impl<K: Key, V: 'static> HeapKind<K, V> for VolatileValues {
    const MADE_BYTES: u64 = 0;
    const CAN_GROW: bool = false;

    #[inline]
    fn heap_bytes(key: &K, _: &V) -> u64 {
        key.heap_bytes() as u64
    }
}

/// An open [`Heap`] or [`VolatileHeap`].
#[derive(Debug)]
pub struct HeapTable<K, V, M = StoredValues> {
    core: TypedHeap<K, V>,
    kind: PhantomData<M>,
}

impl<K: Key, V: State> Layout<K, V> for Heap {
    type Table = HeapTable<K, V, StoredValues>;

    fn name(&self) -> &'static str {
        "heap"
    }

    fn value_description(&self) -> String {
        description_of::<V>()
    }

    fn codec(&self) -> Option<EntryCodec<K, V>> {
        Some(EntryCodec::new())
    }

    fn memory_limit(&self) -> Option<u64> {
        self.memory.map(|size| size.0)
    }

    fn open(&self, context: StateContext) -> Result<Self::Table> {
        // One plain entry is next to nothing: it stands beside a state that keeps more.
        let keeps_free = size_of::<K>() > 0 || !V::NO_HEAP;
        let core = HeapCore::open(context, RecordType::of::<K, V>(), keeps_free)?;
        Ok(HeapTable { core: TypedHeap::new(core), kind: PhantomData })
    }
}

impl<K: Key, V: 'static> Layout<K, V> for VolatileHeap {
    type Table = HeapTable<K, V, VolatileValues>;

    fn name(&self) -> &'static str {
        "volatile-heap"
    }

    fn open(&self, context: StateContext) -> Result<Self::Table> {
        if context.restored.is_some() {
            let message = "volatile heap state cannot be restored from a checkpoint";
            return Err(Error::new(ErrorKind::Mismatch, message).with("state", &context.name));
        }
        let core = HeapCore::new(context, RecordType::volatile::<K, V>(), Durability::Volatile);
        Ok(HeapTable { core: TypedHeap::new(core), kind: PhantomData })
    }
}

impl<K: Key, V: 'static, M: HeapKind<K, V>> HeapTable<K, V, M> {
    /// Writes of values with heap are refused while values have outgrown the memory.
    #[inline]
    fn check_writable(&mut self) -> Result<()> {
        if M::CAN_GROW { self.core.check_not_overdrawn() } else { Ok(()) }
    }

    #[inline]
    fn update_hashed<Q: Lookup<K> + ?Sized, R>(
        &mut self,
        hash: u64,
        key: &Q,
        init: impl FnOnce() -> V,
        change: impl FnOnce(&mut V) -> R,
    ) -> Result<R> {
        self.check_writable()?;
        if let Some((entry, account, oversize)) = self.core.change(hash, |known| key.is(known)) {
            let lent = LentEntry::<K, V, M>::new(entry, account, oversize)?;
            return Ok(change(&mut lent.entry.value));
        }
        self.insert_hashed(hash, key.to_owned(), init, change)
    }

    #[inline(never)]
    fn insert_hashed<R>(
        &mut self,
        hash: u64,
        key: K,
        init: impl FnOnce() -> V,
        change: impl FnOnce(&mut V) -> R,
    ) -> Result<R> {
        let key_bytes = key.heap_bytes() as u64;
        self.core.oversize.check(&key, key_bytes)?;
        let heap_bytes = key_bytes + M::MADE_BYTES;
        if !self.core.has_room(hash, heap_bytes) {
            self.core.make_room(hash, heap_bytes)?;
        }
        let (entry, account, oversize) = self.core.add(hash, NativeEntry { key, value: init() });
        let lent = LentEntry::<K, V, M>::new_made(entry, account, oversize);
        Ok(change(&mut lent.entry.value))
    }

    #[inline]
    fn put_hashed(
        &mut self,
        hash: u64,
        near: Option<SlotHint>,
        key: K,
        value: V,
    ) -> std::result::Result<bool, Rejected<(K, V)>> {
        if let Err(error) = self.core.oversize.check(&key, M::heap_bytes(&key, &value)) {
            return Err(Rejected::new(error, (key, value)));
        }
        let found = match near {
            Some(near) => self.core.change_near(hash, near, |known| *known == key),
            None => self.core.change(hash, |known| *known == key),
        };
        let Some((entry, account, _)) = found else {
            return self.put_new(hash, key, value).map(|()| false);
        };
        let before = M::heap_bytes(&entry.key, &entry.value);
        let after = M::heap_bytes(&entry.key, &value);
        if after > before {
            return self.put_larger(hash, (before, after), (key, value)).map(|()| true);
        }
        account.adjust(MemoryKind::Values, before, after);
        drop(std::mem::replace(&mut entry.value, value));
        Ok(true)
    }

    /// Replaces a value by one that owns more than before.
    #[inline(never)]
    fn put_larger(
        &mut self,
        hash: u64,
        (before, after): (u64, u64),
        (key, value): (K, V),
    ) -> std::result::Result<(), Rejected<(K, V)>> {
        let more = after - before;
        if let Err(error) = self.core.make_room_for_value(more) {
            return Err(Rejected::new(error, (key, value)));
        }
        self.core.oversize.note(after);
        let found = self.core.change(hash, |known| *known == key);
        let (entry, account, _) = found.expect("it was found before");
        account.charge(MemoryKind::Values, more);
        drop(std::mem::replace(&mut entry.value, value));
        Ok(())
    }

    #[inline(never)]
    fn put_new(
        &mut self,
        hash: u64,
        key: K,
        value: V,
    ) -> std::result::Result<(), Rejected<(K, V)>> {
        let bytes = M::heap_bytes(&key, &value);
        if !self.core.has_room(hash, bytes)
            && let Err(error) = self.core.make_room(hash, bytes)
        {
            return Err(Rejected::new(error, (key, value)));
        }
        self.core.context.account.charge(MemoryKind::Values, bytes);
        self.core.add(hash, NativeEntry { key, value });
        Ok(())
    }
}

impl<K: Key, V: 'static, M: HeapKind<K, V>> Table<K, V> for HeapTable<K, V, M> {
    fn len(&self) -> u64 {
        self.core.table.len()
    }

    #[inline]
    fn get<Q: Lookup<K> + ?Sized>(&mut self, key: &Q) -> Result<Option<&V>> {
        Ok(self.core.find(key.key_hash(), |known| key.is(known)).map(|entry| &entry.value))
    }

    #[inline]
    fn peek<Q: Lookup<K> + ?Sized>(&self, key: &Q) -> Peek<'_, V> {
        match self.core.find(key.key_hash(), |known| key.is(known)) {
            Some(entry) => Peek::Resident(&entry.value),
            None => Peek::Absent,
        }
    }

    #[inline]
    fn update<Q: Lookup<K> + ?Sized, R>(
        &mut self,
        key: &Q,
        init: impl FnOnce() -> V,
        change: impl FnOnce(&mut V) -> R,
    ) -> Result<R> {
        self.update_hashed(key.key_hash(), key, init, change)
    }

    #[inline]
    fn modify<Q: Lookup<K> + ?Sized, R>(
        &mut self,
        key: &Q,
        change: impl FnOnce(&mut V) -> R,
    ) -> Result<Option<R>> {
        self.check_writable()?;
        let found = self.core.change(key.key_hash(), |known| key.is(known));
        let Some((entry, account, oversize)) = found else { return Ok(None) };
        let lent = LentEntry::<K, V, M>::new(entry, account, oversize)?;
        Ok(Some(change(&mut lent.entry.value)))
    }

    #[inline]
    fn touch<Q: Lookup<K> + ?Sized, R>(
        &mut self,
        key: &Q,
        change: impl FnOnce(&mut V) -> R,
    ) -> Result<Option<R>> {
        let found = self.core.change(key.key_hash(), |known| key.is(known));
        let Some((entry, account, oversize)) = found else { return Ok(None) };
        let lent = LentEntry::<K, V, M>::new_of_any_size(entry, account, oversize);
        Ok(Some(change(&mut lent.entry.value)))
    }

    fn put(&mut self, key: K, value: V) -> std::result::Result<bool, Rejected<(K, V)>> {
        self.put_hashed(key.key_hash(), None, key, value)
    }

    fn put_batch(&mut self, batch: &mut Vec<(K, V)>) -> Result<()> {
        self.put_all(batch)
    }

    fn update_batch<T, Q: Lookup<K> + ?Sized>(
        &mut self,
        batch: &[T],
        key: impl Fn(&T) -> &Q,
        init: impl FnMut(&T) -> V,
        change: impl FnMut(&T, &mut V),
    ) -> std::result::Result<(), BatchError> {
        self.update_all(batch, key, init, change)
    }

    fn read_batch<T, Q: Lookup<K> + ?Sized>(
        &mut self,
        batch: &[T],
        key: impl Fn(&T) -> &Q,
        read: impl FnMut(&T, Option<&V>),
    ) -> std::result::Result<(), BatchError> {
        self.read_all(batch, key, read);
        Ok(())
    }

    fn expect(&mut self, keys: u64) {
        self.core.expected = keys;
    }

    fn take<Q: Lookup<K> + ?Sized>(&mut self, key: &Q) -> Result<Option<V>> {
        let taken = self.core.take(key.key_hash(), |known| key.is(known), M::heap_bytes);
        Ok(taken.map(|entry| entry.value))
    }

    fn clear(&mut self) -> Result<()> {
        self.core.clear();
        Ok(())
    }

    fn scan(
        &mut self,
        cursor: &mut Cursor,
        fuel: usize,
        visit: &mut dyn FnMut(&K, &V) -> Result<()>,
    ) -> Result<()> {
        self.core.scan(cursor, fuel, &mut |record| {
            let (key, value) = record.native::<K, V>();
            visit(key, value)
        })
    }

    fn by_hash(&mut self) -> Option<&mut dyn ByHash<K, V>> {
        M::by_hash(self)
    }

    fn expire(&mut self, pass: &mut ExpiryPass<V>, fuel: usize) -> Result<()> {
        self.core
            .expire(pass, fuel, &mut |pass, record| pass.has_expired(record.native::<K, V>().1));
        Ok(())
    }
}

impl<K: Key, V: 'static, M: 'static> HasUpkeep for HeapTable<K, V, M> {
    fn upkeep(&self) -> &dyn Upkeep {
        self.core.as_upkeep()
    }

    fn upkeep_mut(&mut self) -> &mut dyn Upkeep {
        self.core.as_upkeep_mut()
    }
}
