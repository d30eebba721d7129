//! A list in memory: chunks of elements, each one allocation, each larger than the one before.
//!
//! Safe code would take two allocations per chunk (a node and its vector) and 24 bytes more per
//! list. Chunks are linked forwards, so that reading follows arrival and two chains are joined in O(1).
//!
//! What it keeps true: `first` to `last` are chunks of this chain only; of each the first `len`
//! elements are initialised, where the last chunk's `len` is kept here.
//!
//! It books nothing: callers ask for [`Chain::next_chunk_bytes`] and book them before
//! [`Chain::grow`].

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::marker::PhantomData;
use std::ptr::{NonNull, null_mut};

use alluvium_pagestore::{HeapSize, rounded};

/// Elements of the first chunk.
const CAPACITY_FIRST: u32 = 3;
/// Most elements of a chunk, until the list has [`HEAVY`] elements.
const CAPACITY_LIGHT: u32 = 63;
/// Most elements of a chunk of a heavy list.
const CAPACITY_HEAVY: u32 = 511;
/// Elements from which a list is heavy.
const HEAVY: u64 = 1024;
/// Most bytes of a chunk of more than one element.
const CHUNK_BYTES_MAX: usize = 32 << 10;

#[repr(C)]
struct Chunk {
    next: *mut Chunk,
    /// Elements in it; of a chain's last chunk this is not kept up.
    len: u32,
    capacity: u32,
}

/// A list of elements in order of arrival.
pub struct Chain<E> {
    first: *mut Chunk,
    last: *mut Chunk,
    /// Elements of the last chunk, and how many it has room for.
    last_len: u32,
    last_capacity: u32,
    len: u64,
    owns: PhantomData<E>,
}

// SAFETY: a chain owns its chunks alone, as a `Vec` owns its memory.
unsafe impl<E: Send> Send for Chain<E> {}
// SAFETY: shared access only reads elements.
unsafe impl<E: Sync> Sync for Chain<E> {}

impl<E> Default for Chain<E> {
    fn default() -> Self {
        Self {
            first: null_mut(),
            last: null_mut(),
            last_len: 0,
            last_capacity: 0,
            len: 0,
            owns: PhantomData,
        }
    }
}

/// Memory of a chunk: the header, then the elements.
fn layout<E>(capacity: u32) -> Layout {
    let elements = Layout::array::<E>(capacity as usize).expect("a chunk's capacity is small");
    Layout::new::<Chunk>().extend(elements).expect("a chunk is small").0
}

/// The elements of a chunk.
///
/// # Safety
/// `chunk` is a chunk of a `Chain<E>`.
#[inline(always)]
unsafe fn elements<E>(chunk: *mut Chunk) -> *mut E {
    let offset = size_of::<Chunk>().next_multiple_of(align_of::<E>());
    // SAFETY: the elements stand behind the header in the same allocation, see `layout`.
    unsafe { chunk.byte_add(offset).cast() }
}

impl<E> Chain<E> {
    /// Elements.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether an element can be pushed without growing.
    #[inline(always)]
    pub fn has_room(&self) -> bool {
        self.last_len < self.last_capacity
    }

    fn next_capacity(&self) -> u32 {
        let max = if self.len < HEAVY { CAPACITY_LIGHT } else { CAPACITY_HEAVY };
        let fits = (CHUNK_BYTES_MAX / size_of::<E>().max(1)).clamp(1, max as usize) as u32;
        (2 * self.last_capacity).max(CAPACITY_FIRST).min(fits)
    }

    /// Bytes that [`grow`](Chain::grow) will take, as the allocator rounds them.
    pub fn next_chunk_bytes(&self) -> u64 {
        rounded(layout::<E>(self.next_capacity()).size()) as u64
    }

    /// Adds an empty chunk.
    #[inline]
    pub fn grow(&mut self) {
        let capacity = self.next_capacity();
        let layout = layout::<E>(capacity);
        // SAFETY: the layout has at least the header's size.
        let chunk: *mut Chunk = unsafe { alloc(layout) }.cast();
        if chunk.is_null() {
            handle_alloc_error(layout);
        }
        // SAFETY: freshly allocated, large enough, and aligned for the header.
        unsafe { chunk.write(Chunk { next: null_mut(), len: 0, capacity }) };
        self.close_last();
        match NonNull::new(self.last) {
            // SAFETY: `last` is a chunk of this chain, which is borrowed exclusively.
            Some(mut last) => unsafe { last.as_mut().next = chunk },
            None => self.first = chunk,
        }
        self.last = chunk;
        (self.last_len, self.last_capacity) = (0, capacity);
    }

    /// Writes the last chunk's number of elements into it.
    fn close_last(&mut self) {
        if let Some(mut last) = NonNull::new(self.last) {
            // SAFETY: `last` is a chunk of this chain, which is borrowed exclusively.
            unsafe { last.as_mut().len = self.last_len };
        }
    }

    /// Appends an element.
    ///
    /// # Panics
    /// If there is no [room](Chain::has_room).
    #[inline(always)]
    pub fn push(&mut self, element: E) {
        assert!(self.has_room(), "a chain without room");
        // SAFETY: the last chunk has room for more than `last_len` elements, and this is the next.
        unsafe { elements::<E>(self.last).add(self.last_len as usize).write(element) };
        self.last_len += 1;
        self.len += 1;
    }

    /// Puts the elements of another chain before those of this one. Cost: O(1).
    pub fn prepend(&mut self, mut before: Chain<E>) {
        if before.last.is_null() {
            return;
        }
        if self.last.is_null() {
            std::mem::swap(self, &mut before);
            return;
        }
        before.close_last();
        // SAFETY: `before.last` is a chunk that `before` owns, and it is not null.
        unsafe { (*before.last).next = self.first };
        self.first = before.first;
        self.len += before.len;
        // Its chunks are ours now.
        std::mem::forget(before);
    }

    /// The elements, in order.
    pub fn iter(&self) -> Iter<'_, E> {
        Iter { chunk: self.first, at: 0, chain: self, left: self.len }
    }

    /// Bytes of all chunks, as the allocator rounds them. Cost: O(chunks).
    pub fn chunk_bytes(&self) -> u64 {
        let (mut bytes, mut chunk) = (0, self.first);
        while let Some(at) = NonNull::new(chunk) {
            // SAFETY: a chunk of this chain, which is borrowed.
            let at = unsafe { at.as_ref() };
            bytes += rounded(layout::<E>(at.capacity).size()) as u64;
            chunk = at.next;
        }
        bytes
    }
}

impl<E: HeapSize> Chain<E> {
    /// Heap bytes of all elements. Cost: O(elements), unless they own none.
    pub fn heap_bytes(&self) -> u64 {
        if E::NONE { 0 } else { self.iter().map(|e| e.heap_bytes() as u64).sum() }
    }
}

impl<E> Drop for Chain<E> {
    fn drop(&mut self) {
        self.close_last();
        let mut chunks = Chunks::<E> { chunk: self.first, dropped: 0, owns: PhantomData };
        chunks.free();
    }
}

/// The chunks of a chain that is dropped. An element that panics leaves those after it to the
/// drop of this.
struct Chunks<E> {
    chunk: *mut Chunk,
    /// Elements of the chunk that were dropped.
    dropped: u32,
    owns: PhantomData<E>,
}

impl<E> Chunks<E> {
    fn free(&mut self) {
        while let Some(chunk) = NonNull::new(self.chunk) {
            // SAFETY: a chunk that nobody else knows, linked as a chain's are.
            let Chunk { next, len, capacity } = *unsafe { chunk.as_ref() };
            while std::mem::needs_drop::<E>() && self.dropped < len {
                self.dropped += 1;
                // SAFETY: the first `len` elements are initialised, and each is dropped once.
                unsafe {
                    elements::<E>(chunk.as_ptr()).add(self.dropped as usize - 1).drop_in_place();
                }
            }
            (self.chunk, self.dropped) = (next, 0);
            // SAFETY: allocated with this layout in `grow`, and not known to anyone any more.
            unsafe { dealloc(chunk.as_ptr().cast(), layout::<E>(capacity)) };
        }
    }
}

impl<E> Drop for Chunks<E> {
    fn drop(&mut self) {
        self.free();
    }
}

impl<E> std::fmt::Debug for Chain<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Chain({} elements)", self.len)
    }
}

/// The elements of a [`Chain`].
pub struct Iter<'a, E> {
    chunk: *mut Chunk,
    at: u32,
    chain: &'a Chain<E>,
    left: u64,
}

impl<E> Clone for Iter<'_, E> {
    fn clone(&self) -> Self {
        Self { chunk: self.chunk, at: self.at, chain: self.chain, left: self.left }
    }
}

impl<'a, E> Iterator for Iter<'a, E> {
    type Item = &'a E;

    #[inline]
    fn next(&mut self) -> Option<&'a E> {
        if self.left == 0 {
            return None;
        }
        loop {
            let is_last = self.chunk == self.chain.last;
            // SAFETY: elements are left, so that this is a chunk of the borrowed chain.
            let len = if is_last { self.chain.last_len } else { unsafe { (*self.chunk).len } };
            if self.at < len {
                self.left -= 1;
                self.at += 1;
                // SAFETY: the first `len` elements of a chunk are initialised and borrowed.
                return Some(unsafe { &*elements::<E>(self.chunk).add(self.at as usize - 1) });
            }
            // SAFETY: as above; elements are left, so that there is a next chunk.
            self.chunk = unsafe { (*self.chunk).next };
            self.at = 0;
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left as usize, Some(self.left as usize))
    }
}

impl<E> ExactSizeIterator for Iter<'_, E> {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::rc::Rc;

    fn chain<E>(elements: impl IntoIterator<Item = E>) -> Chain<E> {
        let mut chain = Chain::default();
        for element in elements {
            if !chain.has_room() {
                chain.grow();
            }
            chain.push(element);
        }
        chain
    }

    #[test]
    fn chunks_double_up_to_63_and_to_511_in_a_heavy_list() {
        let mut chain = Chain::default();
        let mut capacities = Vec::new();
        for n in 0..5_000u64 {
            if !chain.has_room() {
                let before = chain.chunk_bytes();
                let bytes = chain.next_chunk_bytes();
                chain.grow();
                assert_eq!(chain.chunk_bytes(), before + bytes);
                capacities.push(chain.last_capacity);
            }
            chain.push(n);
        }
        assert_eq!(capacities[..7], [3, 6, 12, 24, 48, 63, 63]);
        assert_eq!(capacities.last(), Some(&511));
        assert!(chain.iter().copied().eq(0..5_000));
        assert_eq!((chain.len(), chain.iter().len()), (5_000, 5_000));
    }

    #[test]
    fn chains_joined_keep_the_order_of_both() {
        for (a, b) in [(0, 0), (0, 5), (5, 0), (1, 1), (3, 3), (40, 100), (200, 7)] {
            let mut later = chain((a..a + b).map(|n: u64| n.to_string()));
            later.prepend(chain((0..a).map(|n: u64| n.to_string())));
            assert!(later.iter().cloned().eq((0..a + b).map(|n| n.to_string())));
            if !later.has_room() {
                later.grow();
            }
            later.push("more".into());
            assert_eq!(later.iter().last().map(String::as_str), Some("more"));
            assert_eq!(later.len(), a + b + 1);
        }
    }

    #[test]
    fn elements_of_any_size_and_alignment_are_kept() {
        #[derive(Clone, Debug, PartialEq)]
        #[repr(align(32))]
        struct Aligned(u8);
        assert!(chain((0..200).map(Aligned)).iter().cloned().eq((0..200).map(Aligned)));
        assert_eq!(chain([(); 100]).iter().count(), 100);
        let large = chain((0..5).map(|n| [n; 20_000]));
        assert!(large.iter().map(|e| e[19_999]).eq(0..5));
    }

    #[test]
    fn each_element_is_dropped_once_whatever_panics() {
        struct Counted(Rc<std::cell::Cell<u32>>, bool);
        impl Drop for Counted {
            fn drop(&mut self) {
                self.0.set(self.0.get() + 1);
                assert!(!self.1, "planned");
            }
        }
        let count = Rc::new(std::cell::Cell::new(0));
        drop(chain((0..100).map(|_| Counted(count.clone(), false))));
        assert_eq!(count.replace(0), 100);
        let one_panics = chain((0..100).map(|n| Counted(count.clone(), n == 4)));
        assert!(catch_unwind(AssertUnwindSafe(|| drop(one_panics))).is_err());
        assert_eq!(count.get(), 100);
    }
}
