//! What code that is compiled once knows of the records of a table: a static table of functions.
//!
//! A record is a native key and a native value, side by side ([`NativeEntry`]). The record path knows both types.
//! All else (flush, copies for a checkpoint, eviction, dropping, scans, rewriting) runs on erased records: places
//! in memory, and the [`RecordType`] that says what is there. A [`RecordType`] is made in this file only, from `K` and
//! `V`; a layout takes it when a table is opened.
//!
//! What makes it sound:
//! - [`RecordType::of`] takes [`Key`] and [`State`], which are `Send` and `Sync`: every function may run on a helper's
//!   thread. Records of a [volatile](RecordType::volatile) type never leave their table's.
//! - A [`RecordRef`] is made by who owns the memory, and only of an initialised entry of its record type. Whoever
//!   asks for native types gets them after a look at their ids.

use std::alloc::Layout;
use std::any::TypeId;
use std::marker::PhantomData;
use std::mem::{ManuallyDrop, MaybeUninit};

use alluvium_pagestore::block::AlignedVec;
use alluvium_pagestore::{
    HeapSize, Key, Result, SegmentWriter, State, Time, Trials, codec, key_text,
};

pub(crate) use super::record_run_unsafe::RecordRun;
use crate::contract::expiry::Touched;
use crate::heap::entry_table_unsafe::KeyedEntry;

/// A native record.
#[repr(C)]
pub(crate) struct NativeEntry<K, V> {
    pub(crate) key: K,
    pub(crate) value: V,
}

/// Heap bytes of an entry.
#[inline(always)]
pub(crate) fn heap_of<K: HeapSize, V: HeapSize>(key: &K, value: &V) -> u64 {
    if K::NO_HEAP && V::NO_HEAP { 0 } else { (key.heap_bytes() + value.heap_bytes()) as u64 }
}

/// The types of a table's records, erased.
pub(crate) struct RecordType {
    /// Of a [`NativeEntry`].
    layout: Layout,
    /// Whether neither keys nor values ever own heap.
    is_plain: bool,
    needs_drop: bool,
    /// Whether both are `Send` and `Sync`.
    is_sendable: bool,
    id: fn() -> TypeId,
    // SAFETY: who calls gives the place of an initialised entry of these types, whose key is read.
    hash: unsafe fn(*const u8) -> u64,
    // SAFETY: both places have initialised entries of these types, whose keys are read.
    has_same_key: unsafe fn(*const u8, *const u8) -> bool,
    // SAFETY: an initialised entry of these types is there, whose key and value are read.
    heap_bytes: unsafe fn(*const u8) -> u64,
    // SAFETY: an initialised entry of these types is there, whose key is read.
    key_text: unsafe fn(*const u8) -> String,
    // SAFETY: the source is an initialised entry of these types; the target is memory for one that has none.
    clone_into: unsafe fn(*const u8, *mut u8),
    // SAFETY: the caller owns the initialised entry of these types there, and does not touch it again.
    drop: unsafe fn(*mut u8),
    // SAFETY: an initialised entry of these types is there, which is read.
    encode: unsafe fn(*const u8, &mut SegmentWriter) -> Result<usize>,
    // SAFETY: an initialised entry of these types is there, which is read.
    encode_to: unsafe fn(*const u8, &mut Trials, &mut AlignedVec) -> Result<()>,
    decode: fn(&'static RecordType, &[u8], TakeRecord<'_>) -> Result<()>,
    // SAFETY: the function was a `Touched` of the values' type; an initialised entry of these types is there.
    touched: unsafe fn(fn(), *const u8) -> Time,
}

impl std::fmt::Debug for RecordType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RecordType({:?})", self.layout)
    }
}

/// Looks at a record that was decoded, which is dropped afterwards.
pub(crate) type VisitDecoded<'a> = &'a mut dyn FnMut(RecordRef<'_>) -> Result<()>;

/// Takes a record that was decoded.
pub(crate) type TakeRecord<'a> = &'a mut dyn FnMut(DecodedRecord<'_>) -> Result<()>;

/// Makes the [`RecordType`] of two types.
struct RecordTypeOf<K, V>(PhantomData<(K, V)>);

// SAFETY: here and below, who calls a function that takes a place promises that an initialised entry of these types
// is there, as the fields of `RecordType` say.
impl<K: 'static, V: 'static> RecordTypeOf<K, V> {
    /// Of records that are dropped and nothing else.
    const BARE: RecordType = RecordType {
        layout: Layout::new::<NativeEntry<K, V>>(),
        is_plain: false,
        needs_drop: std::mem::needs_drop::<NativeEntry<K, V>>(),
        is_sendable: false,
        id: TypeId::of::<(K, V)>,
        hash: |_| unreachable!("records of this type are not hashed"),
        has_same_key: |_, _| unreachable!("their keys are not compared"),
        heap_bytes: |_| unreachable!("they are not measured"),
        key_text: |_| unreachable!("they are not named"),
        clone_into: |_, _| unreachable!("they are not cloned"),
        drop: Self::drop,
        encode: |_, _| unreachable!("they are not stored"),
        encode_to: |_, _, _| unreachable!("they are not stored"),
        decode: |_, _, _| unreachable!("they are not stored"),
        touched: |_, _| unreachable!("only their owner asks them"),
    };

    // SAFETY: an initialised entry of these types is there, and stays as it is during `'a`.
    unsafe fn entry<'a>(entry: *const u8) -> &'a NativeEntry<K, V> {
        // SAFETY: as said above.
        unsafe { &*entry.cast() }
    }

    // SAFETY: the caller owns the entry.
    unsafe fn drop(entry: *mut u8) {
        // SAFETY: as said above; its owner does not touch it again.
        unsafe { entry.cast::<NativeEntry<K, V>>().drop_in_place() }
    }

    // SAFETY: an entry is at the source; the target is memory for one.
    unsafe fn clone_into(source: *const u8, target: *mut u8)
    where
        K: Clone,
        V: Clone,
    {
        // SAFETY: as said above; the target is memory for an entry that nobody else reaches.
        unsafe {
            let NativeEntry { key, value } = Self::entry(source);
            let entry = NativeEntry { key: key.clone(), value: value.clone() };
            target.cast::<NativeEntry<K, V>>().write(entry);
        }
    }
}

impl<K: Key, V: State> RecordTypeOf<K, V> {
    const TYPE: RecordType = RecordType {
        is_plain: K::NO_HEAP && V::NO_HEAP,
        is_sendable: true,
        hash: Self::hash,
        has_same_key: Self::has_same_key,
        heap_bytes: Self::heap_bytes,
        key_text: Self::key_text,
        clone_into: Self::clone_into,
        encode: Self::encode,
        encode_to: Self::encode_to,
        decode: Self::decode,
        touched: Self::touched,
        ..Self::BARE
    };

    // SAFETY: an entry is there, to be read.
    unsafe fn encode_to(entry: *const u8, trials: &mut Trials, to: &mut AlignedVec) -> Result<()> {
        // SAFETY: as said above.
        let NativeEntry { key, value } = unsafe { Self::entry(entry) };
        trials.encode(to, key, value)
    }
}

/// Of any keys.
impl<K: Key, V: 'static> RecordTypeOf<K, V> {
    /// Of records that never leave the thread of their table, nor memory: they are neither cloned nor encoded.
    const VOLATILE: RecordType = RecordType {
        is_plain: K::NO_HEAP,
        hash: Self::hash,
        has_same_key: Self::has_same_key,
        heap_bytes: Self::key_bytes,
        key_text: Self::key_text,
        ..Self::BARE
    };

    // SAFETY: an entry is there, whose key is read.
    unsafe fn key_bytes(entry: *const u8) -> u64 {
        // SAFETY: as said above.
        unsafe { Self::entry(entry) }.key.heap_bytes() as u64
    }

    // SAFETY: entries are at both places.
    unsafe fn has_same_key(entry: *const u8, other: *const u8) -> bool {
        // SAFETY: as said above, of both.
        unsafe { Self::entry(entry).key == Self::entry(other).key }
    }

    // SAFETY: an entry is there, whose key is read.
    unsafe fn key_text(entry: *const u8) -> String {
        // SAFETY: as said above.
        key_text(&unsafe { Self::entry(entry) }.key)
    }

    // SAFETY: an entry is there, whose key is read.
    unsafe fn hash(entry: *const u8) -> u64 {
        // SAFETY: as said above.
        unsafe { Self::entry(entry) }.key.key_hash()
    }
}

impl<K: Key, V: State> RecordTypeOf<K, V> {
    // SAFETY: an entry is there, to be measured.
    unsafe fn heap_bytes(entry: *const u8) -> u64 {
        // SAFETY: as said above.
        let entry = unsafe { Self::entry(entry) };
        heap_of(&entry.key, &entry.value)
    }

    // SAFETY: an entry is there, to be read.
    unsafe fn encode(entry: *const u8, writer: &mut SegmentWriter) -> Result<usize> {
        // SAFETY: as said above.
        let NativeEntry { key, value } = unsafe { Self::entry(entry) };
        writer.encode(key, value)
    }

    fn decode(
        record_type: &'static RecordType,
        payload: &[u8],
        take: TakeRecord<'_>,
    ) -> Result<()> {
        let (key, value) = codec::decode::<K, V>(payload)?;
        let mut entry = ManuallyDrop::new(NativeEntry { key, value });
        let at = (&raw mut entry).cast::<u8>();
        // SAFETY: the entry is of these types, and there until the call is over. Nobody else drops or touches it.
        take(DecodedRecord(unsafe { RecordRef::new(record_type, at) }))
    }

    // SAFETY: an entry is there; the function was one of its value's type.
    unsafe fn touched(of: fn(), entry: *const u8) -> Time {
        // SAFETY: the caller promises a function that was a `Touched<V>` before it was erased.
        let of: Touched<V> = unsafe { std::mem::transmute(of) };
        // SAFETY: as said above.
        of(&unsafe { Self::entry(entry) }.value)
    }
}

/// Of entries with a key inside.
impl<T: KeyedEntry> RecordTypeOf<T, ()> {
    /// Of entries that never leave their table, which is asked for their hashes only.
    const ENTRY: RecordType = RecordType { hash: Self::hash_of_key, ..Self::BARE };

    // SAFETY: an entry is there, whose key is read.
    unsafe fn hash_of_key(entry: *const u8) -> u64 {
        // SAFETY: as said above.
        unsafe { Self::entry(entry) }.key.hash_of_key()
    }
}

/// Of keys alone.
impl<K: Key> RecordTypeOf<K, ()> {
    /// Of keys that are cloned, and encoded by others.
    const KEY: RecordType = RecordType { clone_into: Self::clone_into, ..Self::VOLATILE };
}

impl RecordType {
    /// That of keys `K` and values `V`.
    pub(crate) const fn of<K: Key, V: State>() -> &'static Self {
        const { &RecordTypeOf::<K, V>::TYPE }
    }

    /// That of keys `K` without values, which are never encoded.
    pub(crate) const fn key<K: Key>() -> &'static Self {
        const { &RecordTypeOf::<K, ()>::KEY }
    }

    /// That of keys `K` and values `V` of a table whose records never leave it.
    pub(crate) const fn volatile<K: Key, V: 'static>() -> &'static Self {
        const { &RecordTypeOf::<K, V>::VOLATILE }
    }

    /// That of entries of a table whose entries never leave it. It is as if they were keys without values.
    pub(crate) const fn entry<T: KeyedEntry>() -> &'static Self {
        const { &RecordTypeOf::<T, ()>::ENTRY }
    }

    /// Whether its keys are `K` and its values `V`.
    pub(crate) fn is<K: 'static, V: 'static>(&self) -> bool {
        (self.id)() == TypeId::of::<(K, V)>()
    }

    /// Whether both are of the same types.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        std::ptr::eq(self, other) || (self.id)() == (other.id)()
    }

    /// Size and alignment of an entry.
    #[inline]
    pub(crate) fn layout(&self) -> Layout {
        self.layout
    }

    /// Whether neither keys nor values ever own heap.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        self.is_plain
    }

    /// Whether to drop an entry does anything.
    #[inline]
    pub(crate) fn needs_drop(&self) -> bool {
        self.needs_drop
    }

    /// Whether its records may go to other threads.
    pub(crate) fn is_sendable(&self) -> bool {
        self.is_sendable
    }

    /// Clones an entry.
    ///
    /// # Safety
    /// The target is memory for an entry, which nobody else reaches, and that holds none.
    // SAFETY: the target is the caller's to promise.
    pub(crate) unsafe fn clone_into(&self, source: RecordRef<'_>, target: *mut u8) {
        assert!(self.is_like(source.record_type), "an entry of other types");
        // SAFETY: the source is an entry of these types, the target the caller's promise.
        unsafe { (self.clone_into)(source.entry, target) }
    }

    /// Drops an entry.
    ///
    /// # Safety
    /// There is one of these types, which the caller owns and does not touch again.
    // SAFETY: the entry is the caller's to promise.
    pub(crate) unsafe fn drop_entry(&self, entry: *mut u8) {
        // SAFETY: as said above.
        unsafe { (self.drop)(entry) }
    }

    /// Decodes a record and shows it.
    ///
    /// # Errors
    /// Of a payload that is none; those of `with`.
    pub(crate) fn decode(&'static self, payload: &[u8], with: VisitDecoded<'_>) -> Result<()> {
        self.decode_to_take(payload, &mut |decoded| with(decoded.record()))
    }

    /// Decodes a record that `take` may keep.
    ///
    /// # Errors
    /// Of a payload that is none; those of `take`.
    pub(crate) fn decode_to_take(
        &'static self,
        payload: &[u8],
        take: TakeRecord<'_>,
    ) -> Result<()> {
        (self.decode)(self, payload, take)
    }
}

/// A record that was decoded: whoever takes it moves it away, or drops it.
pub(crate) struct DecodedRecord<'a>(RecordRef<'a>);

impl DecodedRecord<'_> {
    /// The record.
    pub(crate) fn record(&self) -> RecordRef<'_> {
        self.0
    }

    /// Moves the record to a place.
    ///
    /// # Safety
    /// There is memory for an entry of these types, which nobody else reaches, and that holds none.
    // SAFETY: the target is the caller's to promise.
    pub(crate) unsafe fn move_to(self, target: *mut u8) {
        let record = ManuallyDrop::new(self).0;
        // SAFETY: the entry is this one's, which is not dropped any more; the target is memory for one.
        unsafe { target.copy_from_nonoverlapping(record.entry, record.record_type.layout.size()) }
    }

    /// Moves the record to the place of another, which is dropped afterwards.
    ///
    /// # Safety
    /// There is an entry of these types, which nobody else reaches.
    // SAFETY: the target is the caller's to promise.
    pub(crate) unsafe fn move_over(self, target: *mut u8) {
        let (entry, size) = (self.0.entry.cast_mut(), self.0.record_type.layout.size());
        // SAFETY: both are entries of these types in memory of their own, which is exchanged byte by byte, initialised or
        // not. What was there is dropped with `self`.
        unsafe {
            let (entry, target) = (entry.cast::<MaybeUninit<u8>>(), target.cast());
            std::ptr::swap_nonoverlapping(entry, target, size);
        }
    }
}

impl Drop for DecodedRecord<'_> {
    fn drop(&mut self) {
        // SAFETY: the entry is this one's, as `decode` has given it.
        unsafe { self.0.record_type.drop_entry(self.0.entry.cast_mut()) }
    }
}

/// A record in memory, whose types are erased.
#[derive(Clone, Copy)]
pub(crate) struct RecordRef<'a> {
    record_type: &'static RecordType,
    entry: *const u8,
    lives: PhantomData<&'a ()>,
}

impl<'a> RecordRef<'a> {
    /// The record at a place.
    ///
    /// # Safety
    /// An initialised entry of these types is there, which is not changed or dropped during `'a`.
    // SAFETY: the entry is the caller's to promise.
    #[inline(always)]
    pub(crate) unsafe fn new(record_type: &'static RecordType, entry: *const u8) -> Self {
        debug_assert!(entry.addr() % record_type.layout.align() == 0);
        Self { record_type, entry, lives: PhantomData }
    }

    /// Key and value.
    ///
    /// # Panics
    /// If they are of other types.
    #[inline]
    pub(crate) fn get<K: Key, V: State>(self) -> (&'a K, &'a V) {
        // The same in all but other parts of the program, for which it may be made anew.
        if !std::ptr::eq(self.record_type, RecordType::of::<K, V>()) {
            return self.native();
        }
        // SAFETY: an entry of these types is there during `'a`.
        let entry = unsafe { RecordTypeOf::<K, V>::entry(self.entry) };
        (&entry.key, &entry.value)
    }

    /// Where it is.
    #[inline(always)]
    pub(crate) fn as_ptr(self) -> *const u8 {
        self.entry
    }

    /// The key, of [a key alone](RecordType::key).
    ///
    /// # Panics
    /// If it is of another type, or has a value.
    #[inline]
    pub(crate) fn key<K: Key>(self) -> &'a K {
        // The same in all but other parts of the program, for which it may be made anew.
        if !std::ptr::eq(self.record_type, RecordType::key::<K>()) {
            return self.native::<K, ()>().0;
        }
        // SAFETY: an entry of these types is there during `'a`.
        &unsafe { RecordTypeOf::<K, ()>::entry(self.entry) }.key
    }

    /// [`get`](RecordRef::get) of any types, by their ids.
    ///
    /// # Panics
    /// If they are of other types.
    pub(crate) fn native<K: 'static, V: 'static>(self) -> (&'a K, &'a V) {
        assert!(self.record_type.is::<K, V>(), "a record of other types");
        // SAFETY: an entry of these types is there during `'a`.
        let entry = unsafe { RecordTypeOf::<K, V>::entry(self.entry) };
        (&entry.key, &entry.value)
    }

    /// Of which types it is.
    pub(crate) fn record_type(self) -> &'static RecordType {
        self.record_type
    }

    /// The key's hash.
    #[inline]
    pub(crate) fn hash(self) -> u64 {
        // SAFETY: an entry of these types is there.
        unsafe { (self.record_type.hash)(self.entry) }
    }

    /// Whether both have one key.
    ///
    /// # Panics
    /// If they are of other types.
    #[inline]
    pub(crate) fn has_key_of(self, other: RecordRef<'_>) -> bool {
        assert!(self.record_type.is_like(other.record_type), "a record of other types");
        // SAFETY: entries of these types are there.
        unsafe { (self.record_type.has_same_key)(self.entry, other.entry) }
    }

    /// Heap that key and value own.
    #[inline]
    pub(crate) fn heap_bytes(self) -> u64 {
        if self.record_type.is_plain {
            return 0;
        }
        // SAFETY: an entry of these types is there.
        unsafe { (self.record_type.heap_bytes)(self.entry) }
    }

    /// The key as a message names it.
    #[cold]
    pub(crate) fn key_text(self) -> String {
        // SAFETY: an entry of these types is there.
        unsafe { (self.record_type.key_text)(self.entry) }
    }

    /// Encodes the record.
    pub(crate) fn encode_to(self, trials: &mut Trials, to: &mut AlignedVec) -> Result<()> {
        // SAFETY: an entry of these types is there.
        unsafe { (self.record_type.encode_to)(self.entry, trials, to) }
    }

    /// Encodes the record, which is to be appended next; says how many bytes that takes.
    pub(crate) fn encode(self, writer: &mut SegmentWriter) -> Result<usize> {
        // SAFETY: an entry of these types is there.
        unsafe { (self.record_type.encode)(self.entry, writer) }
    }
}

/// Tells when a value was touched last, whose type is erased.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ErasedTouched {
    id: fn() -> TypeId,
    of: fn(),
}

impl ErasedTouched {
    /// Of the values of records of these types.
    pub(crate) fn new<K: Key, V: State>(of: Touched<V>) -> Self {
        // SAFETY: function pointers are alike; it is called only after it is what it was again.
        let of = unsafe { std::mem::transmute::<Touched<V>, fn()>(of) };
        Self { id: TypeId::of::<(K, V)>, of }
    }

    /// When the value of a record was touched last.
    ///
    /// # Panics
    /// If the record is of other types.
    pub(crate) fn of(self, record: RecordRef<'_>) -> Time {
        assert!((self.id)() == (record.record_type.id)(), "a record of other types");
        // SAFETY: the function is of this type of value, and an entry is there.
        unsafe { (record.record_type.touched)(self.of, record.entry) }
    }
}

#[cfg(test)]
#[path = "record_type_unsafe/in_memory_unsafe.rs"]
pub(crate) mod in_memory;
#[cfg(test)]
#[path = "record_type_unsafe/tests.rs"]
mod tests;
