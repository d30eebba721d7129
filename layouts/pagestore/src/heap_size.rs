//! Heap memory that values own, in the bytes that an allocator takes for it.
//!
//! A general-purpose allocator rounds: on the common 64-bit allocators a request of `n` bytes takes
//! `max(24, n + 8)` rounded up to 16. Capacities alone are about a quarter too low for short
//! strings. The budget therefore counts [`rounded`] bytes.
//!
//! Strings, vectors, deques, heaps, lists and boxes are exact. Maps hide their allocations and are
//! estimated:
//! - B-trees count the most nodes that their length allows, which is never too low. The estimate is
//!   about a fifth high when keys arrived in order (also when read from a page), a half in any
//!   other order, and more when collected at once. A sorted vector is exact.
//! - Hash tables count the smallest table that their capacity allows. This is exact until entries
//!   are removed from a nearly full table: their slots are not counted until it is rehashed.

//!
//! Shared values ([`Rc`](std::rc::Rc), [`Arc`](std::sync::Arc)) have no heap size on purpose: no
//! owner is the one to count them for.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap, HashSet, LinkedList, VecDeque};
use std::ffi::{CString, OsString};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::num::{NonZero, Saturating, Wrapping};
use std::ops::{Bound, Range, RangeFrom, RangeInclusive, RangeTo, RangeToInclusive};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Returns the bytes that an allocator takes for a request of `bytes`; 0 for an empty request.
pub const fn rounded(bytes: usize) -> usize {
    if bytes == 0 {
        return 0;
    }
    let with_header = bytes + 8;
    let least = if with_header < 32 { 32 } else { with_header };
    least.div_ceil(16) * 16
}

/// The heap that a value owns, in bytes as the allocator rounds them.
///
/// The store calls [`heap_bytes`](HeapSize::heap_bytes) before and after each closure that may
/// change a value. If [`NO_HEAP`](HeapSize::NO_HEAP) is true, the accounting compiles to nothing.
///
/// ```
/// use alluvium_pagestore::HeapSize;
///
/// assert!(<(u64, [u32; 4])>::NO_HEAP);
/// assert!(!String::NO_HEAP && "tea".to_owned().heap_bytes() > 0);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be state: the heap that it owns is not known",
    label = "`HeapSize` is not implemented for `{Self}`",
    note = "on a type of yours, `#[derive(alluvium::State)]` implements it",
    note = "a type of another crate goes into a struct of yours that implements `HeapSize` and `Schema` by hand",
    note = "what is shared, borrowed or changed from behind (`Rc`, `Arc`, `&`, `Cell`, `RefCell`, `Mutex`) cannot be state: keep the value itself"
)]
pub trait HeapSize {
    /// Whether no value of this type ever owns heap memory.
    const NO_HEAP: bool;

    /// Returns the heap bytes that this value owns, without its own size. Cost: O(1) for strings
    /// and vectors of plain data, O(n) for vectors of values that own heap.
    fn heap_bytes(&self) -> usize;
}

macro_rules! none {
    ($($t:ty),* $(,)?) => {$(
        impl HeapSize for $t {
            const NO_HEAP: bool = true;
            #[inline(always)]
            fn heap_bytes(&self) -> usize { 0 }
        }
    )*};
}
none! {
    (), bool, char, u8, u16, u32, u64, u128, i8, i16, i32, i64, i128, usize, isize, f32, f64,
    crate::Time, Duration, SystemTime, std::cmp::Ordering,
    Ipv4Addr, Ipv6Addr, IpAddr, SocketAddrV4, SocketAddrV6, SocketAddr,
    NonZero<u8>, NonZero<u16>, NonZero<u32>, NonZero<u64>, NonZero<u128>, NonZero<usize>,
    NonZero<i8>, NonZero<i16>, NonZero<i32>, NonZero<i64>, NonZero<i128>, NonZero<isize>,
}

impl<T: ?Sized> HeapSize for PhantomData<T> {
    const NO_HEAP: bool = true;
    #[inline(always)]
    fn heap_bytes(&self) -> usize {
        0
    }
}

/// Strings of all kinds: one allocation of so many bytes.
macro_rules! strings {
    ($($t:ty: $value:ident => $bytes:expr),* $(,)?) => {$(
        impl HeapSize for $t {
            const NO_HEAP: bool = false;
            #[inline]
            fn heap_bytes(&self) -> usize { let $value = self; rounded($bytes) }
        }
    )*};
}
strings!(
    String: s => s.capacity(),
    OsString: s => s.capacity(),
    PathBuf: path => path.capacity(),
    CString: s => s.as_bytes_with_nul().len(),
    Box<str>: s => s.len(),
    Box<Path>: path => path.as_os_str().len(),
);

impl<B: ToOwned<Owned: HeapSize> + ?Sized + 'static> HeapSize for Cow<'static, B> {
    const NO_HEAP: bool = <B::Owned as HeapSize>::NO_HEAP;
    #[inline]
    fn heap_bytes(&self) -> usize {
        match self {
            Cow::Borrowed(_) => 0,
            Cow::Owned(value) => value.heap_bytes(),
        }
    }
}

/// Bytes owned by the elements of a collection; nothing is visited if they own none.
#[inline]
fn elements<'a, T: HeapSize + 'a>(elements: impl IntoIterator<Item = &'a T>) -> usize {
    if T::NO_HEAP { 0 } else { elements.into_iter().map(T::heap_bytes).sum() }
}

impl<T: HeapSize> HeapSize for Vec<T> {
    const NO_HEAP: bool = false;
    #[inline]
    fn heap_bytes(&self) -> usize {
        rounded(self.capacity() * size_of::<T>()) + elements(self)
    }
}

impl<T: HeapSize> HeapSize for VecDeque<T> {
    const NO_HEAP: bool = false;
    #[inline]
    fn heap_bytes(&self) -> usize {
        rounded(self.capacity() * size_of::<T>()) + elements(self)
    }
}

impl<T: HeapSize> HeapSize for BinaryHeap<T> {
    const NO_HEAP: bool = false;
    #[inline]
    fn heap_bytes(&self) -> usize {
        rounded(self.capacity() * size_of::<T>()) + elements(self)
    }
}

/// A node per element, with two links.
impl<T: HeapSize> HeapSize for LinkedList<T> {
    const NO_HEAP: bool = false;
    #[inline]
    fn heap_bytes(&self) -> usize {
        struct LinkedNode<T> {
            _links: [*const (); 2],
            _element: MaybeUninit<T>,
        }
        self.len() * rounded(size_of::<LinkedNode<T>>()) + elements(self)
    }
}

impl<T: HeapSize> HeapSize for Box<[T]> {
    const NO_HEAP: bool = false;
    #[inline]
    fn heap_bytes(&self) -> usize {
        rounded(size_of_val(&**self)) + elements(&**self)
    }
}

impl<T: HeapSize> HeapSize for Box<T> {
    const NO_HEAP: bool = false;
    #[inline]
    fn heap_bytes(&self) -> usize {
        rounded(size_of::<T>()) + (**self).heap_bytes()
    }
}

/// Most bytes a standard B-tree of `len` entries can hold.
///
/// A node has room for 11 entries, and every node but the root has at least 5; a tree of `n > 1`
/// leaves has `n - 1` entries above them, and an inner node other than the root at least 6
/// children. An empty tree counts one leaf, which it keeps after its last entry was removed.
fn btree_bytes<K, V>(len: usize) -> usize {
    struct LeafNode<K, V> {
        _parent: *const (),
        _keys: [MaybeUninit<K>; 11],
        _values: [MaybeUninit<V>; 11],
        _position_and_len: (u16, u16),
    }
    struct InnerNode<K, V> {
        _data: LeafNode<K, V>,
        _edges: [*const (); 12],
    }
    let leaves = if len <= 11 { 1 } else { (len + 1) / 6 };
    let (mut nodes, mut inner) = (leaves, 0);
    while nodes > 1 {
        nodes = (nodes / 6).max(1);
        inner += nodes;
    }
    leaves * rounded(size_of::<LeafNode<K, V>>()) + inner * rounded(size_of::<InnerNode<K, V>>())
}

impl<K: HeapSize, V: HeapSize> HeapSize for BTreeMap<K, V> {
    const NO_HEAP: bool = false;
    #[inline]
    fn heap_bytes(&self) -> usize {
        btree_bytes::<K, V>(self.len()) + elements(self.keys()) + elements(self.values())
    }
}

impl<T: HeapSize> HeapSize for BTreeSet<T> {
    const NO_HEAP: bool = false;
    #[inline]
    fn heap_bytes(&self) -> usize {
        btree_bytes::<T, ()>(self.len()) + elements(self)
    }
}

/// Least bytes a standard hash table with room for `capacity` entries of this size holds: a power
/// of two of slots, at most 7/8 (below 8 slots: all but one) of them in use, a control byte for
/// each and 16 more.
fn table_bytes(capacity: usize, entry_bytes: usize) -> usize {
    let slots = match capacity {
        0 => return 0,
        1..8 => (capacity + 1).next_power_of_two().max(4),
        _ => (capacity * 8).div_ceil(7).next_power_of_two(),
    };
    rounded((slots * entry_bytes).next_multiple_of(16) + slots + 16)
}

impl<K: HeapSize, V: HeapSize, S> HeapSize for HashMap<K, V, S> {
    const NO_HEAP: bool = false;
    #[inline]
    fn heap_bytes(&self) -> usize {
        table_bytes(self.capacity(), size_of::<(K, V)>())
            + elements(self.keys())
            + elements(self.values())
    }
}

impl<T: HeapSize, S> HeapSize for HashSet<T, S> {
    const NO_HEAP: bool = false;
    #[inline]
    fn heap_bytes(&self) -> usize {
        table_bytes(self.capacity(), size_of::<T>()) + elements(self)
    }
}

impl<T: HeapSize> HeapSize for Option<T> {
    const NO_HEAP: bool = T::NO_HEAP;
    #[inline]
    fn heap_bytes(&self) -> usize {
        self.as_ref().map_or(0, T::heap_bytes)
    }
}

impl<T: HeapSize, E: HeapSize> HeapSize for Result<T, E> {
    const NO_HEAP: bool = T::NO_HEAP && E::NO_HEAP;
    #[inline]
    fn heap_bytes(&self) -> usize {
        match self {
            Ok(value) => value.heap_bytes(),
            Err(error) => error.heap_bytes(),
        }
    }
}

/// Structs of values of one type that stand in them.
macro_rules! plain_structs {
    ($($t:ident: $value:ident => $($part:expr),+);* $(;)?) => {$(
        impl<T: HeapSize> HeapSize for $t<T> {
            const NO_HEAP: bool = T::NO_HEAP;
            #[inline]
            fn heap_bytes(&self) -> usize {
                let $value = self;
                0 $(+ $part.heap_bytes())+
            }
        }
    )*};
}
plain_structs!(
    Wrapping: n => n.0;
    Saturating: n => n.0;
    Reverse: value => value.0;
    Range: range => range.start, range.end;
    RangeInclusive: range => range.start(), range.end();
    RangeFrom: range => range.start;
    RangeTo: range => range.end;
    RangeToInclusive: range => range.end;
);

impl<T: HeapSize> HeapSize for Bound<T> {
    const NO_HEAP: bool = T::NO_HEAP;
    #[inline]
    fn heap_bytes(&self) -> usize {
        match self {
            Bound::Included(value) | Bound::Excluded(value) => value.heap_bytes(),
            Bound::Unbounded => 0,
        }
    }
}

impl<T: HeapSize, const N: usize> HeapSize for [T; N] {
    const NO_HEAP: bool = T::NO_HEAP;
    #[inline]
    fn heap_bytes(&self) -> usize {
        elements(self)
    }
}

macro_rules! tuples {
    ($(($($t:ident $i:tt),+)),* $(,)?) => {$(
        impl<$($t: HeapSize),+> HeapSize for ($($t,)+) {
            const NO_HEAP: bool = $($t::NO_HEAP)&&+;
            #[inline]
            fn heap_bytes(&self) -> usize { 0 $(+ self.$i.heap_bytes())+ }
        }
    )*};
}
tuples!(
    (A 0),
    (A 0, B 1),
    (A 0, B 1, C 2),
    (A 0, B 1, C 2, D 3),
    (A 0, B 1, C 2, D 3, E 4),
    (A 0, B 1, C 2, D 3, E 4, F 5),
    (A 0, B 1, C 2, D 3, E 4, F 5, G 6),
    (A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7),
    (A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8),
    (A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9),
    (A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9, K 10),
    (A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9, K 10, L 11),
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_rounded_as_the_allocator_rounds() {
        assert_eq!(rounded(0), 0);
        assert_eq!(rounded(1), 32);
        assert_eq!(rounded(24), 32);
        assert_eq!(rounded(25), 48);
        assert_eq!(rounded(40), 48);
        assert_eq!(String::with_capacity(100).heap_bytes(), 112);
        let v = vec![String::with_capacity(10), String::with_capacity(100)];
        assert_eq!(v.heap_bytes(), rounded(48) + 32 + 112);
        assert_eq!((1u64, String::new()).heap_bytes(), 0);
    }

    #[test]
    fn plain_data_folds_to_nothing() {
        const { assert!(<(u64, [u32; 4], Option<i8>)>::NO_HEAP) };
        const { assert!(!<(u64, String)>::NO_HEAP) };
        const { assert!(<(NonZero<u8>, Duration, Result<u8, ()>, PhantomData<String>)>::NO_HEAP) };
        const { assert!(!Result::<u8, Box<str>>::NO_HEAP) };
    }
}
