//! The record path of a bucket: an element comes to the end of its key's list. This is the only part of the append log
//! that writes elements by their type.
//!
//! What makes it sound: a [`TypedBucket`] is made of a bucket whose arena is of its type of elements, which is looked at.
//! The chains of a bucket have their chunks in its arena and no other.

use std::alloc::Layout;
use std::marker::PhantomData;

use alluvium_pagestore::{Key, Lookup, MemoryKind, State};

use super::bucket::{Bucket, hash_of_head};
use super::chain_unsafe::Chain;
use super::element_type_unsafe::ElementType;
use super::frozen::Head;
use crate::heap::split_table::Spot;

/// More than a new key and the growth of a table take, unless they are large.
const NEW_BYTES: u64 = 64 << 10;

/// While memory is plentiful: how much is to stay free, and the most heap of an element and its key.
#[derive(Clone, Copy)]
pub struct Plenty {
    pub want_free: u64,
    pub max_bytes: u64,
}

/// What was found of an element before it is appended: the hash of its key, and where its list
/// probably is.
pub type Found = (u64, Option<Spot>);

/// A bucket whose lists are of elements `E`.
pub struct TypedBucket<'b, K, E> {
    bucket: &'b mut Bucket<K>,
    elements: PhantomData<E>,
}

impl<K: Key> Bucket<K> {
    /// The bucket, whose lists are of elements `E`.
    ///
    /// # Panics
    /// If they are of others.
    #[inline(always)]
    pub fn typed<E: State>(&mut self) -> TypedBucket<'_, K, E> {
        let elements = self.arena.elements();
        let is_known = std::ptr::eq(elements, ElementType::of::<E>()) || elements.is::<E>();
        assert!(is_known, "a bucket of elements of another type");
        TypedBucket { bucket: self, elements: PhantomData }
    }
}

impl<K: Key, E: State> TypedBucket<'_, K, E> {
    const ELEMENT: Layout = Layout::new::<E>();

    /// The slice of event time that it is of.
    #[inline(always)]
    pub fn time(&self) -> alluvium_pagestore::Time {
        self.bucket.time
    }

    /// Appends an element while memory is plentiful, so that nothing else needs to be looked at.
    /// Otherwise it comes back.
    #[inline(always)]
    pub fn append<Q: Lookup<K> + ?Sized>(
        &mut self,
        (hash, spot): Found,
        key: &Q,
        element: E,
        plenty: Plenty,
    ) -> std::result::Result<(), E> {
        let heap = heap_of(&element);
        let Bucket { live, arena, account, values, elements, .. } = &mut *self.bucket;
        let head = match spot.and_then(|spot| live.at_mut(spot)) {
            Some(head) if key.is(&head.key) => Some(head),
            _ => live.find_mut(hash, |head| key.is(&head.key)),
        };
        let Some(head) = head else {
            return self.append_first((hash, key), element, plenty);
        };
        if !(K::NO_HEAP && E::NO_HEAP) && head.key.heap_bytes() as u64 + heap > plenty.max_bytes {
            return Err(element);
        }
        if !head.chain.has_room() {
            let missing = arena.missing(Self::ELEMENT, head.chain.next_capacity(Self::ELEMENT));
            if account.available() < missing + heap + plenty.want_free {
                return Err(element);
            }
            Bucket::<K>::grow(Self::ELEMENT, arena, account, &mut head.chain);
        }
        if heap > 0 {
            if account.available() < heap {
                return Err(element);
            }
            *values += heap;
            account.charge(MemoryKind::Values, heap);
        }
        // SAFETY: the chain grows in the bucket's arena, which is of `E`.
        unsafe { head.chain.push(element) };
        *elements += 1;
        Ok(())
    }

    /// The same with the first element of a key.
    fn append_first<Q: Lookup<K> + ?Sized>(
        &mut self,
        (hash, key): (u64, &Q),
        element: E,
        plenty: Plenty,
    ) -> std::result::Result<(), E> {
        let heap = heap_of(&element);
        let Bucket { live, arena, account, values, elements, .. } = &mut *self.bucket;
        let missing = arena.missing(Self::ELEMENT, Chain::default().next_capacity(Self::ELEMENT));
        if account.available() < plenty.want_free + heap + NEW_BYTES + missing {
            return Err(element);
        }
        let key = key.to_owned();
        if !(K::NO_HEAP && E::NO_HEAP) && key.heap_bytes() as u64 + heap > plenty.max_bytes {
            return Err(element);
        }
        let make = || Head { key, chain: Chain::default() };
        let Ok(head) = live.insert(hash, hash_of_head, make) else { return Err(element) };
        Bucket::<K>::grow(Self::ELEMENT, arena, account, &mut head.chain);
        // SAFETY: the chain grows in the bucket's arena, which is of `E`.
        unsafe { head.chain.push(element) };
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
