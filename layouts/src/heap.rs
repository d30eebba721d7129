//! Plain heap state: a hash table of native keys and values, the honest baseline.
//!
//! Nothing is ever on storage but checkpoints, which are taken in steps while the table goes on changing
//! (see `heap_capture.rs`). They write what has changed since the last one, as far as the table
//! remembers it: a bit and a place for each bucket (`heap_marks.rs`), and the segments that are named
//! again (`checkpoint/ledger.rs`). The table's memory is booked before it grows, the heap of its values as soon as a call returns; growing
//! rehashes everything at once, which is the stall that the hybrid log avoids.

use std::marker::PhantomData;

use alluvium_pagestore::{
    BlobReader, BlobWriter, ByteSize, EntryCodec, Error, ErrorKind, Key, Lookup, MemoryKind,
    PlacedAt, Rejected, Result, State, StateImage, description_of,
};
use hashbrown::HashTable;

use crate::checkpoint::HeapFiles;
use crate::checkpoint::at_once;
use crate::checkpoint::{Pace, Paced};
use crate::expiry::ExpiryPass;
use crate::full_image::{Images, kept_free, name_large, pace, read_placed};
use crate::heap_capture::{HeapCapture, LeftOver, Undecided};
use crate::heap_copies::Copies;
use crate::heap_entries::{Entries, hash_of};
use crate::heap_marks::{EntryMarks, Place};
use crate::lent::{Lent, check_not_overdrawn};
use crate::out_of_line_unsafe::OutOfLine;
use crate::oversize::Oversize;
use crate::split_heap::SplitHeapTable;
use crate::table::{
    BatchError, CheckpointOutcome, Cursor, Layout, Peek, StateContext, Table, TableStats,
};
use crate::upkeep::Upkeep;

/// Keeps a state in a hash table on the heap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Heap {
    memory: Option<ByteSize>,
}

impl Heap {
    /// A heap layout without a limit of its own.
    pub fn new() -> Self {
        Self::default()
    }

    /// The most memory this state may take, in bytes. Default: what the store has.
    #[must_use]
    pub fn memory(mut self, bytes: u64) -> Self {
        self.memory = Some(ByteSize(bytes));
        self
    }

    /// The same layout in the order of hashes, for state whose key groups come and go; what any layout
    /// that is told at run time takes by itself.
    pub fn in_order(self) -> SplitHeap {
        SplitHeap(self)
    }

    /// The same layout for values that cannot be stored. A checkpoint refuses it.
    pub fn volatile() -> VolatileHeap {
        VolatileHeap
    }
}

/// [`Heap`] in the order of hashes, for state whose key groups [come and go](StateContext::movable). A
/// checkpoint of one can be opened as the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SplitHeap(Heap);

/// [`Heap`] for values that need not be [`State`]: never written, refused by checkpoints. Only
/// the table itself is booked, not what values own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VolatileHeap;

/// Entries that are copied for a checkpoint are no longer: some hundreds of them are copied at a time.
const COPIED_BYTES_MAX: usize = 64;

/// How a heap table measures and stores its entries.
pub trait Kind<K, V>: Sized + 'static {
    /// Heap bytes of an entry, as booked.
    fn heap_bytes(key: &K, value: &V) -> u64;
    /// Whether a checkpoint copies entries ahead: short ones that own no heap.
    const IS_COPIED: bool;
    /// Bytes that writes leave free, so that what they have put there can be checkpointed and read
    /// again in the same memory.
    fn kept_free(context: &StateContext) -> u64;
    /// How a checkpoint of so many entries is written, if there can be one.
    fn pace(context: &StateContext, entries: u64) -> Result<Pace>;
    /// Adds an entry to a checkpoint, and says where.
    fn push(writer: &mut Paced, key: &K, value: &V) -> Result<PlacedAt>;
    /// Has the helper write the next copies.
    fn submit(copies: &mut Copies<K, V>, writer: &mut Paced);
    /// A value for a checkpoint, which is about to change.
    fn copy(value: &V) -> Option<V>;
}

/// The kind of [`Heap`]: measured and stored.
#[derive(Debug)]
pub struct Stored;

/// The kind of [`VolatileHeap`]: neither.
#[derive(Debug)]
pub struct Volatile;

impl<K: Key, V: State> Kind<K, V> for Stored {
    const IS_COPIED: bool = K::NONE && V::NONE && size_of::<(K, V)>() <= COPIED_BYTES_MAX;

    #[inline]
    fn heap_bytes(key: &K, value: &V) -> u64 {
        (key.heap_bytes() + value.heap_bytes()) as u64
    }

    fn kept_free(context: &StateContext) -> u64 {
        // Plain entries come and go with their table, which grows in large steps.
        match K::NONE && V::NONE || context.segments.is_none() {
            true => 0,
            false => kept_free(context, &pace::<K, V>(context, u64::MAX)) + context.max_value_bytes,
        }
    }

    fn pace(context: &StateContext, entries: u64) -> Result<Pace> {
        Ok(pace::<K, V>(context, entries))
    }

    fn push(writer: &mut Paced, key: &K, value: &V) -> Result<PlacedAt> {
        writer.place(key.key_hash(), key, value).map_err(|error| name_large(error, key))
    }

    fn submit(copies: &mut Copies<K, V>, writer: &mut Paced) {
        copies.submit(writer);
    }

    fn copy(value: &V) -> Option<V> {
        Some(value.clone())
    }
}

impl<K: Key, V: 'static> Kind<K, V> for Volatile {
    const IS_COPIED: bool = false;

    #[inline]
    fn heap_bytes(key: &K, _: &V) -> u64 {
        key.heap_bytes() as u64
    }

    fn kept_free(_: &StateContext) -> u64 {
        0
    }

    fn pace(context: &StateContext, _: u64) -> Result<Pace> {
        let message = "volatile heap state cannot be part of a checkpoint";
        Err(Error::new(ErrorKind::Unsupported, message).with("state", &context.name))
    }

    fn push(_: &mut Paced, _: &K, _: &V) -> Result<PlacedAt> {
        unreachable!("no checkpoint of volatile state is begun")
    }

    fn submit(_: &mut Copies<K, V>, _: &mut Paced) {
        unreachable!("no checkpoint of volatile state is begun")
    }

    fn copy(_: &V) -> Option<V> {
        None
    }
}

/// An open [`Heap`] or [`VolatileHeap`], or [`SplitHeap`].
#[derive(Debug)]
pub struct HeapTable<K, V, M = Stored, S: Entries<K, V> = HashTable<(K, V)>> {
    pub(crate) context: StateContext,
    pub(crate) entries: S,
    /// Bytes booked for the table itself, if it does not book them.
    pub(crate) table_bytes: u64,
    /// So many keys are to come into the empty table.
    expected: u64,
    /// The checkpoint being taken.
    pub(crate) capture: Option<OutOfLine<Box<HeapCapture<K, V, S>>>>,
    /// Whether changes concern it, at most.
    pub(crate) reads: bool,
    /// The one that was taken and is not decided.
    pub(crate) undecided: Option<Box<Undecided>>,
    pub(crate) left_over: OutOfLine<LeftOver<K, V, S>>,
    /// Notes of deaths that checkpoints looked at.
    pub(crate) looks: u64,
    /// What it remembers of its last checkpoint.
    pub(crate) marks: S::Marks,
    pub(crate) files: HeapFiles,
    /// How often entries have moved: the table grew, was rehashed in place or replaced.
    pub(crate) moved: u64,
    pub(crate) images: Images,
    pub(crate) codec_calls: u64,
    /// Entries looked at for those of some hashes.
    pub(crate) sought: u64,
    pub(crate) oversize: Oversize,
    /// What writes leave free for the next checkpoint, and for opening it.
    kept: u64,
    kind: PhantomData<M>,
}

impl<K: Key, V: State> Layout<K, V> for Heap {
    type Table = HeapTable<K, V, Stored>;

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

    fn open(&self, mut context: StateContext) -> Result<Self::Table> {
        let restored = context.restored.take();
        let mut table = HeapTable::new(context);
        if let Some((image, blobs)) = restored {
            table.expected = image.entries;
            table.restore(&image, &blobs, |table, key: K, value| {
                table.put_at(key.key_hash(), key, value)
            })?;
        }
        table.keep_free();
        Ok(table)
    }
}

impl<K: Key, V: State, S: Entries<K, V>> HeapTable<K, V, Stored, S> {
    /// Puts all entries of an image into the empty table, which remembers where they are if there is
    /// room for that.
    pub(crate) fn restore(
        &mut self,
        image: &StateImage,
        blobs: &BlobReader,
        put: impl Fn(&mut Self, K, V) -> std::result::Result<(bool, usize), Rejected<(K, V)>>,
    ) -> Result<()> {
        if self.files.restored(image) {
            self.marks.begin(self.entries.buckets());
        }
        let context = self.context.clone();
        read_placed(&context, image, blobs, |at, key: K, value: V| {
            self.codec_calls += 1;
            self.oversize.found(Stored::heap_bytes(&key, &value));
            let (_, bucket) = put(self, key, value).map_err(Error::from)?;
            self.marks.restored(bucket, at);
            Ok(())
        })?;
        self.images.restored(image);
        if self.entries.count() != image.entries {
            // Another build's: what is dead in it is not known.
            self.give_up_marks();
        }
        Ok(())
    }
}

impl<K: Key, V: State> Layout<K, V> for SplitHeap {
    type Table = SplitHeapTable<K, V>;

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
        Layout::<K, V>::memory_limit(&self.0)
    }

    fn open(&self, context: StateContext) -> Result<Self::Table> {
        SplitHeapTable::open(context)
    }
}

impl<K: Key, V: 'static> Layout<K, V> for VolatileHeap {
    type Table = HeapTable<K, V, Volatile>;

    fn name(&self) -> &'static str {
        "volatile-heap"
    }

    fn open(&self, context: StateContext) -> Result<Self::Table> {
        if context.restored.is_some() {
            let message = "volatile heap state cannot be restored from a checkpoint";
            return Err(Error::new(ErrorKind::Mismatch, message).with("state", &context.name));
        }
        Ok(HeapTable::new(context))
    }
}

impl<K: Key, V: 'static, M: Kind<K, V>, S: Entries<K, V>> HeapTable<K, V, M, S> {
    /// An empty one.
    pub(crate) fn new(context: StateContext) -> Self {
        let account = &context.account;
        Self {
            marks: S::Marks::off(account.clone()),
            files: HeapFiles::new(account.clone()),
            oversize: Oversize::new(&context.name, context.max_value_bytes),
            entries: S::empty(&context),
            context,
            table_bytes: 0,
            expected: 0,
            capture: None,
            reads: false,
            undecided: None,
            left_over: OutOfLine::new(LeftOver::default()),
            looks: 0,
            moved: 0,
            images: Images::default(),
            codec_calls: 0,
            sought: 0,
            kept: 0,
            kind: PhantomData,
        }
    }

    /// All that was there before is there: writes from now on leave room for a checkpoint.
    pub(crate) fn keep_free(&mut self) {
        self.kept = M::kept_free(&self.context);
    }

    /// What a write leaves free now: a checkpoint that is being taken has its part of it.
    #[inline]
    pub(crate) fn kept(&self) -> u64 {
        if self.capture.is_some() { 0 } else { self.kept }
    }

    /// Writes are refused while values have outgrown the memory.
    #[inline]
    pub(crate) fn check_not_overdrawn(&mut self) -> Result<()> {
        loop {
            match check_not_overdrawn(&self.context.account, self.kept()) {
                Err(_) if self.give_something_up() => {}
                checked => return checked,
            }
        }
    }

    /// Gives up memory that nothing visible needs; says whether there was some.
    #[cold]
    fn give_something_up(&mut self) -> bool {
        self.drop_all_left() || self.give_up_marks()
    }

    /// Drops what checkpoints that were given up have left; says whether there was something.
    #[cold]
    #[inline(never)]
    pub(crate) fn drop_all_left(&mut self) -> bool {
        let is_some = self.drop_some_left();
        while self.drop_some_left() {}
        is_some
    }

    /// Bytes of values of a table that was cleared, which a checkpoint reads still.
    pub(crate) fn values_left(&self) -> u64 {
        let captured = self.capture.as_ref().map_or(0, |capture| capture.values_left());
        captured + self.left_over.values_left()
    }
}

impl<K: Key, V: 'static, M: Kind<K, V>> HeapTable<K, V, M> {
    /// While memory is short, gives up what checkpoints remember; if one reads the table, which needs that,
    /// it is read to its end before.
    #[cold]
    #[inline(never)]
    fn make_free(&mut self, bytes: u64) {
        let is_short = |table: &Self| table.context.account.available() < bytes;
        while is_short(self) && self.drop_some_left() {}
        if is_short(self) && !self.give_up_marks() && self.reads {
            self.read_rest();
            if is_short(self) {
                self.give_up_marks();
            }
        }
    }

    /// Books and makes room for one more entry that owns `heap_bytes`; changes nothing visible.
    #[inline]
    fn make_room(&mut self, heap_bytes: u64) -> Result<()> {
        let heap_bytes = heap_bytes + self.kept();
        let has_bucket = self.entries.len() < self.entries.capacity();
        if has_bucket && self.context.account.available() >= heap_bytes {
            return Ok(());
        }
        self.make_room_slowly(heap_bytes)
    }

    #[cold]
    #[inline(never)]
    fn make_room_slowly(&mut self, heap_bytes: u64) -> Result<()> {
        if self.context.account.available() < heap_bytes {
            self.drop_all_left();
        }
        if self.values_left() > 0 && self.context.account.available() < heap_bytes {
            // What a checkpoint still reads of a table that was cleared is in the way.
            self.read_rest();
        }
        self.make_free(heap_bytes);
        let account = &self.context.account;
        account.ensure(heap_bytes, "a new entry")?;
        if self.entries.len() < self.entries.capacity() {
            return Ok(());
        }
        if self.make_expected_room(heap_bytes) {
            return Ok(());
        }
        let account = &self.context.account;
        let buckets = (self.entries.num_buckets() * 2).max(16);
        let grown = (buckets * (size_of::<(K, V)>() + 1) + 64) as u64;
        if account.available() < grown + heap_bytes {
            self.drop_all_left();
        }
        let account = &self.context.account;
        if self.values_left() > 0 && account.available() < grown + heap_bytes {
            self.read_rest();
        }
        self.make_free(grown + heap_bytes);
        let account = &self.context.account;
        account.ensure(grown + heap_bytes, "the hash table")?;
        account.charge(MemoryKind::Index, grown);
        self.moved += 1;
        if !self.grow_remembered(heap_bytes) {
            self.entries.reserve(1, hash_of);
        }
        let account = &self.context.account;
        let actual = self.entries.allocation_size() as u64;
        account.adjust(MemoryKind::Index, self.table_bytes + grown, actual);
        self.table_bytes = actual;
        Ok(())
    }

    /// Makes a new table for all keys that are expected, so that none has to move while they come; not
    /// if that takes more than half of what is free, as they may not come.
    #[cold]
    #[inline(never)]
    fn make_expected_room(&mut self, heap_bytes: u64) -> bool {
        let keys = std::mem::take(&mut self.expected);
        let account = &self.context.account;
        let buckets = (keys.min(1 << 48) * 8 / 7 + 1).next_power_of_two().max(16);
        let bytes = buckets.saturating_mul(size_of::<(K, V)>() as u64 + 1).saturating_add(64);
        let is_new = self.entries.capacity() == 0 && self.capture.is_none();
        let fits = bytes.saturating_add(heap_bytes) <= account.available() / 2;
        if keys == 0 || !is_new || !fits || !account.try_reserve(MemoryKind::Index, bytes) {
            return false;
        }
        self.moved += 1;
        self.entries.reserve(keys as usize, hash_of);
        let account = &self.context.account;
        let actual = self.entries.allocation_size() as u64;
        account.adjust(MemoryKind::Index, self.table_bytes + bytes, actual);
        self.table_bytes = actual;
        if self.marks.is_on() {
            self.marks.begin(self.entries.num_buckets());
        }
        true
    }

    #[inline]
    pub(crate) fn update_hashed<Q: Lookup<K> + ?Sized, R>(
        &mut self,
        hash: u64,
        key: &Q,
        init: impl FnOnce() -> V,
        change: impl FnOnce(&mut V) -> R,
    ) -> Result<R> {
        self.check_not_overdrawn()?;
        if self.reads {
            self.keep(hash, key, true);
        }
        if let Ok(found) = self.entries.find_entry(hash, |(k, _)| key.is(k)) {
            let bucket = found.bucket_index();
            let lent =
                Lent::<K, V, M>::new(found.into_mut(), &self.context.account, &mut self.oversize)?;
            self.marks.change(bucket);
            return Ok(change(&mut lent.entry.1));
        }
        let key = key.to_owned();
        let key_bytes = key.heap_bytes() as u64;
        self.oversize.check(&key, key_bytes)?;
        self.make_room(key_bytes)?;
        let entry = (key, init());
        let added = self.entries.insert_unique(hash, entry, hash_of);
        self.marks.add(added.bucket_index());
        let account = &self.context.account;
        let lent = Lent::<K, V, M>::new_made(added.into_mut(), account, &mut self.oversize);
        Ok(change(&mut lent.entry.1))
    }

    #[inline]
    pub(crate) fn put_hashed(
        &mut self,
        hash: u64,
        key: K,
        value: V,
    ) -> std::result::Result<bool, Rejected<(K, V)>> {
        if let Err(error) = self.oversize.check(&key, M::heap_bytes(&key, &value)) {
            return Err(Rejected::new(error, (key, value)));
        }
        self.put_at(hash, key, value).map(|(was_there, _)| was_there)
    }

    /// Puts an entry; says whether the key was there before, and its bucket.
    #[inline]
    fn put_at(
        &mut self,
        hash: u64,
        key: K,
        value: V,
    ) -> std::result::Result<(bool, usize), Rejected<(K, V)>> {
        if self.reads {
            self.keep(hash, &key, true);
        }
        let kept = self.kept();
        let found = self.entries.find_entry(hash, |(k, _)| *k == key);
        let account = &self.context.account;
        if let Ok(found) = found {
            let bucket = found.bucket_index();
            self.marks.change(bucket);
            let entry = found.into_mut();
            let before = M::heap_bytes(&entry.0, &entry.1);
            let after = M::heap_bytes(&entry.0, &value);
            let more = match after > before {
                true => after - before + kept,
                false => 0,
            };
            if let Err(error) = account.ensure(more, "a larger value") {
                return match self.give_something_up() {
                    true => self.put_at(hash, key, value),
                    false => Err(Rejected::new(error, (key, value))),
                };
            }
            account.adjust(MemoryKind::Values, before, after);
            drop(std::mem::replace(&mut entry.1, value));
            return Ok((true, bucket));
        }
        let bytes = M::heap_bytes(&key, &value);
        if let Err(error) = self.make_room(bytes) {
            return Err(Rejected::new(error, (key, value)));
        }
        self.context.account.charge(MemoryKind::Values, bytes);
        let added = self.entries.insert_unique(hash, (key, value), hash_of);
        let bucket = added.bucket_index();
        self.marks.add(bucket);
        Ok((false, bucket))
    }
}

impl<K: Key, V: 'static, M: Kind<K, V>> Table<K, V> for HeapTable<K, V, M> {
    fn len(&self) -> u64 {
        self.entries.len() as u64
    }

    fn get<Q: Lookup<K> + ?Sized>(&mut self, key: &Q) -> Result<Option<&V>> {
        Ok(self.entries.find(key.key_hash(), |(k, _)| key.is(k)).map(|(_, value)| value))
    }

    fn peek<Q: Lookup<K> + ?Sized>(&self, key: &Q) -> Peek<'_, V> {
        match self.entries.find(key.key_hash(), |(k, _)| key.is(k)) {
            Some((_, value)) => Peek::Resident(value),
            None => Peek::Absent,
        }
    }

    fn update<Q: Lookup<K> + ?Sized, R>(
        &mut self,
        key: &Q,
        init: impl FnOnce() -> V,
        change: impl FnOnce(&mut V) -> R,
    ) -> Result<R> {
        self.update_hashed(key.key_hash(), key, init, change)
    }

    fn modify<Q: Lookup<K> + ?Sized, R>(
        &mut self,
        key: &Q,
        change: impl FnOnce(&mut V) -> R,
    ) -> Result<Option<R>> {
        self.check_not_overdrawn()?;
        let hash = key.key_hash();
        if self.reads {
            self.keep(hash, key, false);
        }
        let Ok(found) = self.entries.find_entry(hash, |(k, _)| key.is(k)) else {
            return Ok(None);
        };
        let bucket = found.bucket_index();
        let lent =
            Lent::<K, V, M>::new(found.into_mut(), &self.context.account, &mut self.oversize)?;
        self.marks.change(bucket);
        Ok(Some(change(&mut lent.entry.1)))
    }

    fn touch<Q: Lookup<K> + ?Sized, R>(
        &mut self,
        key: &Q,
        change: impl FnOnce(&mut V) -> R,
    ) -> Result<Option<R>> {
        let hash = key.key_hash();
        if self.reads {
            self.keep(hash, key, false);
        }
        let Ok(found) = self.entries.find_entry(hash, |(k, _)| key.is(k)) else {
            return Ok(None);
        };
        self.marks.change(found.bucket_index());
        let (account, oversize) = (&self.context.account, &mut self.oversize);
        let lent = Lent::<K, V, M>::new_of_any_size(found.into_mut(), account, oversize);
        Ok(Some(change(&mut lent.entry.1)))
    }

    fn put(&mut self, key: K, value: V) -> std::result::Result<bool, Rejected<(K, V)>> {
        self.put_hashed(key.key_hash(), key, value)
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
        self.expected = keys;
    }

    fn take<Q: Lookup<K> + ?Sized>(&mut self, key: &Q) -> Result<Option<V>> {
        let hash = key.key_hash();
        if self.reads {
            self.keep(hash, key, false);
        }
        let Ok(found) = self.entries.find_entry(hash, |(k, _)| key.is(k)) else {
            return Ok(None);
        };
        let place = self.marks.remove(found.bucket_index());
        let ((key, value), _) = found.remove();
        if place != Place::NONE {
            self.files.note_dead(place);
        }
        self.context.account.release(MemoryKind::Values, M::heap_bytes(&key, &value));
        Ok(Some(value))
    }

    fn clear(&mut self) -> Result<()> {
        if !self.leave() {
            self.entries = HashTable::new();
            let account = &self.context.account;
            account.release(MemoryKind::Index, self.table_bytes);
            let values = account.used_for(MemoryKind::Values) - self.values_left();
            account.release(MemoryKind::Values, values);
        }
        self.table_bytes = 0;
        self.moved += 1;
        self.oversize.forget();
        Ok(())
    }

    fn scan(
        &mut self,
        cursor: &mut Cursor,
        fuel: usize,
        visit: &mut dyn FnMut(&K, &V) -> Result<()>,
    ) -> Result<()> {
        let buckets = self.entries.num_buckets() as u64;
        if cursor.position > 0 && cursor.version != self.moved {
            let message = "the hash table was rehashed during a scan; start it again";
            return Err(Error::new(ErrorKind::InUse, message).with("state", &self.context.name));
        }
        cursor.version = self.moved;
        let end = buckets.min(cursor.position + 2 * fuel.max(1) as u64);
        while cursor.position < end {
            if let Some((key, value)) = self.entries.get_bucket(cursor.position as usize) {
                visit(key, value)?;
            }
            cursor.position += 1;
        }
        cursor.done = end == buckets;
        Ok(())
    }

    fn expire(&mut self, pass: &mut ExpiryPass<V>, fuel: usize) -> Result<()> {
        if self.capture.as_ref().is_some_and(|capture| capture.is_reading()) {
            // What is removed while a checkpoint is taken would be copied for it.
            return Ok(());
        }
        let buckets = self.entries.num_buckets() as u64;
        if pass.cursor.position > 0 && pass.cursor.version != self.moved {
            // Entries that have moved may have been passed over: the next pass finds them.
            pass.is_whole = false;
        }
        pass.cursor.version = self.moved;
        let end = buckets.min(pass.cursor.position.saturating_add(2 * fuel as u64));
        while pass.cursor.position < end {
            let entry = self.entries.get_bucket(pass.cursor.position as usize);
            let expired =
                entry.and_then(|(key, value)| pass.has_expired(value).then(|| key.clone()));
            pass.cursor.position += 1;
            if let Some(key) = expired {
                self.take::<K>(&key)?;
                pass.removed += 1;
            }
        }
        pass.cursor.done = pass.cursor.position >= buckets;
        Ok(())
    }
}

impl<K: Key, V: 'static, M: Kind<K, V>, S: Entries<K, V>> Upkeep for HeapTable<K, V, M, S> {
    fn tick(&mut self, work: usize) -> Result<usize> {
        self.context.helper.drive();
        Ok((0..work).take_while(|_| self.drop_some_left()).count())
    }

    fn reclaim(&mut self, bytes: u64) -> Result<u64> {
        let before = self.context.account.used();
        self.drop_all_left();
        if before - self.context.account.used() < bytes {
            self.give_up_marks();
        }
        Ok(before - self.context.account.used())
    }

    fn fixed_bytes(&self) -> (u64, u64) {
        let account = &self.context.account;
        (account.used(), account.limit())
    }

    fn checkpoint(&mut self, blobs: &mut BlobWriter) -> Result<StateImage> {
        at_once(self, blobs)
    }

    fn begin_checkpoint(&mut self, _: &mut BlobWriter) -> Result<Option<StateImage>> {
        self.begin_capture().map(|()| None)
    }

    fn pace_checkpoint(&mut self, pace: crate::table::Pace) {
        self.pace_capture(pace);
    }

    fn continue_checkpoint(&mut self, blobs: &mut BlobWriter) -> Result<Option<StateImage>> {
        self.continue_capture(blobs)
    }

    fn checkpointed(&mut self, outcome: CheckpointOutcome) {
        self.decide_capture(outcome);
        self.images.decide(outcome, self.context.segments.as_ref());
    }

    fn stats(&self) -> TableStats {
        let live_keys = self.entries.count();
        let values = self.context.account.used_for(MemoryKind::Values) - self.values_left();
        let mut stats = TableStats {
            live_keys,
            live_bytes: live_keys * size_of::<(K, V)>() as u64 + values,
            codec_calls: self.codec_calls,
            sought: self.sought,
            oversized: self.oversize.told(),
            checkpoint_looks: self.looks,
            ..TableStats::default()
        };
        self.images.describe(&mut stats);
        let dead_bytes = self.files.dead_bytes().min(stats.live_disk_bytes);
        stats.live_disk_bytes -= dead_bytes;
        stats
    }
}

impl<K, V, M, S: Entries<K, V>> Drop for HeapTable<K, V, M, S> {
    fn drop(&mut self) {
        self.capture = None;
        *self.left_over = LeftOver::default();
        let account = &self.context.account;
        account.release(MemoryKind::Index, self.table_bytes);
        account.release(MemoryKind::Values, account.used_for(MemoryKind::Values));
    }
}
