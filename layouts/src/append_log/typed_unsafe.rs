//! The record path of a bucket: an element comes to the end of its key's list. This is the only part of the append log
//! that writes elements by their type.
//!
//! What makes it sound: [`TypedLists`] look at the type of the lists when they are made, and all buckets of a core are of
//! that type. A bucket's arena is of that type's elements, its chains have their chunks in there and nowhere else, and its
//! heads are of that type's keys.

use std::alloc::Layout;
use std::collections::BTreeMap;
use std::marker::PhantomData;

use alluvium_pagestore::{Account, Key, Lookup, MemoryKind, State, Time};

use super::arena_unsafe::Arena;
use super::bucket::AppendBucket;
use super::chain_unsafe::ElementChain;
use super::core::ListsCore;
use super::heads_unsafe::{NativeHeads, ReadHeads};
use crate::heap::probing_unsafe::SlotHint;
use crate::support::out_of_line_unsafe::DroppedHere;
use crate::support::typed_core::typed_core;

/// More than a new key and the growth of a table take, unless they are large.
const NEW_BYTES: u64 = 64 << 10;

/// While memory is plentiful: how much is to stay free, and the most heap of an element and its key.
#[derive(Clone, Copy)]
pub struct PlentifulMemory {
    pub want_free: u64,
    pub max_bytes: u64,
}

/// What was found of an element before it is appended: the hash of its key, and where its list
/// probably is.
pub type ProbedKey = (u64, Option<SlotHint>);

typed_core! {
    /// Lists of keys `K` and elements `E`.
    pub struct TypedLists(ListsCore);
}

impl<K: Key, E: State> TypedLists<K, E> {
    /// Wraps a core that was opened for these types.
    ///
    /// # Panics
    /// If it was opened for others.
    pub fn new(core: DroppedHere<ListsCore>) -> Self {
        assert!(core.list_type.is::<K, E>(), "lists of other types");
        Self { core, types: PhantomData }
    }

    /// Looks at a core that was opened for these types.
    ///
    /// # Panics
    /// If it was opened for others. Cost: a comparison of ids.
    pub fn of(core: &mut DroppedHere<ListsCore>) -> &mut Self {
        assert!(core.list_type.is::<K, E>(), "lists of other types");
        // SAFETY: it is a core and nothing else, whose types were compared.
        unsafe { &mut *std::ptr::from_mut(core).cast() }
    }

    /// The heads of a bucket.
    #[inline]
    pub fn heads(&self, time: &Time) -> Option<ReadHeads<'_, K>> {
        // SAFETY: heads are of keys `K`.
        self.core.buckets.get(time).map(|bucket| unsafe { bucket.live.native() })
    }

    /// The buckets, and the count of elements.
    #[inline(always)]
    pub fn parts(&mut self) -> (TypedBuckets<'_, K, E>, &mut u64) {
        let ListsCore { buckets, elements, .. } = &mut *self.core;
        (TypedBuckets { buckets, types: PhantomData }, elements)
    }
}

/// Buckets whose lists are of keys `K` and elements `E`.
pub struct TypedBuckets<'b, K, E> {
    buckets: &'b mut BTreeMap<Time, Box<AppendBucket>>,
    types: PhantomData<fn() -> (K, E)>,
}

impl<K, E> TypedBuckets<'_, K, E> {
    #[inline(always)]
    pub fn get_mut(&mut self, time: Time) -> Option<TypedBucket<'_, K, E>> {
        let bucket = self.buckets.get_mut(&time)?;
        Some(TypedBucket { bucket, types: PhantomData })
    }
}

/// A bucket whose lists are of keys `K` and elements `E`.
pub struct TypedBucket<'b, K, E> {
    bucket: &'b mut AppendBucket,
    types: PhantomData<(K, E)>,
}

impl<K: Key, E: State> TypedBucket<'_, K, E> {
    const ELEMENT: Layout = Layout::new::<E>();

    /// The parts of a bucket that an append changes: heads, arena and account, heap bytes of keys and elements, and
    /// elements.
    #[inline(always)]
    fn parts(&mut self) -> (NativeHeads<'_, K>, &mut Arena, &Account, &mut u64, &mut u64) {
        let AppendBucket { live, arena, account, values, elements, .. } = &mut *self.bucket;
        // SAFETY: heads are of keys `K`.
        let heads = unsafe { live.native_mut() };
        (heads, arena, &**account, values, elements)
    }

    /// The slice of event time that it is of.
    #[inline(always)]
    pub fn time(&self) -> Time {
        self.bucket.time
    }

    /// Appends an element while memory is plentiful, so that nothing else needs to be looked at.
    /// Otherwise it comes back.
    #[inline(always)]
    pub fn append<Q: Lookup<K> + ?Sized>(
        &mut self,
        (hash, near): ProbedKey,
        key: &Q,
        element: E,
        plenty: PlentifulMemory,
    ) -> std::result::Result<(), E> {
        let heap = heap_of(&element);
        let (live, arena, account, values, elements) = self.parts();
        let Some(head) = live.find(hash, near, |known| key.is(known)) else {
            return self.append_first((hash, key), element, plenty);
        };
        if !(K::NO_HEAP && E::NO_HEAP) && head.key.heap_bytes() as u64 + heap > plenty.max_bytes {
            return Err(element);
        }
        if !head.value.has_room() {
            let missing = arena.missing(Self::ELEMENT, head.value.next_capacity(Self::ELEMENT));
            if account.available() < missing + heap + plenty.want_free {
                return Err(element);
            }
            AppendBucket::grow(Self::ELEMENT, arena, account, &mut head.value);
        }
        if heap > 0 {
            if account.available() < heap {
                return Err(element);
            }
            *values += heap;
            account.charge(MemoryKind::Values, heap);
        }
        // SAFETY: the chain grows in the bucket's arena, which is of `E`.
        unsafe { head.value.push(element) };
        *elements += 1;
        Ok(())
    }

    /// The same with the first element of a key.
    fn append_first<Q: Lookup<K> + ?Sized>(
        &mut self,
        (hash, key): (u64, &Q),
        element: E,
        plenty: PlentifulMemory,
    ) -> std::result::Result<(), E> {
        let heap = heap_of(&element);
        let (live, arena, account, values, elements) = self.parts();
        let missing =
            arena.missing(Self::ELEMENT, ElementChain::default().next_capacity(Self::ELEMENT));
        // The first element of a bucket is counted by what appends leave.
        if *elements == 0 || account.available() < plenty.want_free + heap + NEW_BYTES + missing {
            return Err(element);
        }
        let key = key.to_owned();
        if !(K::NO_HEAP && E::NO_HEAP) && key.heap_bytes() as u64 + heap > plenty.max_bytes {
            return Err(element);
        }
        let Ok(head) = live.insert(hash, key) else { return Err(element) };
        AppendBucket::grow(Self::ELEMENT, arena, account, &mut head.value);
        // SAFETY: the chain grows in the bucket's arena, which is of `E`.
        unsafe { head.value.push(element) };
        let key_heap = if K::NO_HEAP { 0 } else { head.key.heap_bytes() as u64 };
        *values += key_heap + heap;
        *elements += 1;
        account.charge(MemoryKind::Values, key_heap + heap);
        Ok(())
    }
}

/// Heap bytes of an element.
#[inline(always)]
pub fn heap_of<E: State>(element: &E) -> u64 {
    if E::NO_HEAP { 0 } else { element.heap_bytes() as u64 }
}
