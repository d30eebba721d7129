//! A list in memory: chunks of elements in its bucket's [arena](super::arena_unsafe), each larger
//! than the one before.
//!
//! Chunks are linked forwards, so that reading follows arrival, and the last one leads to the first,
//! so that a list takes 24 bytes beside its key. The type of the elements is known by the pieces that
//! chunks lie in: appending names it, reading compares it once a list, and all else does not need it.
//!
//! What it keeps true: the chunks from `last.next` to `last` are known to this chain only, and lie in
//! pieces that live as long as it, for elements of one type; of each the first `len` elements are
//! initialised, where the last chunk's `len` is kept here.

use std::alloc::Layout;
use std::marker::PhantomData;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use super::arena_unsafe::{
    Arena, ArenaPieces, ElementChunk, LINE_BYTES, filled, layout, offset_of,
};
use super::element_type_unsafe::{ElementSlice, ElementType};
use crate::support::prefetch_unsafe::prefetch;

/// Elements of the first chunk, and more if its last line of the cache has room.
const CAPACITY_FIRST: u32 = 3;
/// Most elements of a chunk until the list has [`HEAVY`] elements, but for that.
const CAPACITY_LIGHT: u32 = 62;
/// The same of a heavy list.
const CAPACITY_HEAVY: u32 = 510;
/// Elements from which a list is heavy.
const HEAVY: u64 = 1024;
/// Most bytes of a chunk of more than one element.
const CHUNK_BYTES_MAX: usize = 32 << 10;

/// Bytes of a chunk that are fetched ahead; the processor sees by itself how it goes on.
const PREFETCH_BYTES_MAX: usize = 256;

/// Elements of a chain (44 bits), of its last chunk, and how many that has room for (10 bits each).
#[derive(Clone, Copy)]
struct ChainCounts(u64);

impl ChainCounts {
    /// One element more, in all and in the last chunk.
    const ONE: u64 = 1 | 1 << 44;

    #[inline(always)]
    fn new(len: u64, last_len: u32, last_capacity: u32) -> Self {
        debug_assert!(len < 1 << 44 && last_len < 1 << 10 && last_capacity < 1 << 10);
        Self(len | u64::from(last_len) << 44 | u64::from(last_capacity) << 54)
    }

    #[inline(always)]
    fn len(self) -> u64 {
        self.0 & ((1 << 44) - 1)
    }

    #[inline(always)]
    fn last_len(self) -> u32 {
        (self.0 >> 44) as u32 & 1023
    }

    #[inline(always)]
    fn last_capacity(self) -> u32 {
        (self.0 >> 54) as u32
    }
}

/// A list of elements in order of arrival.
pub struct ElementChain {
    last: *mut ElementChunk,
    counts: ChainCounts,
    /// Where its chunks lie; none for a chain without chunks.
    pieces: Option<Arc<ArenaPieces>>,
}

impl Default for ElementChain {
    fn default() -> Self {
        Self { last: null_mut(), counts: ChainCounts(0), pieces: None }
    }
}

// SAFETY: a chain owns its chunks alone, as a `Vec` owns its memory. Elements are `Send`, as `ElementType` says.
unsafe impl Send for ElementChain {}
// SAFETY: shared access only reads elements, which are `Sync`, as `ElementType` says.
unsafe impl Sync for ElementChain {}

/// Elements that a chunk has room for, in a chain of `len` elements behind a chunk of `last`: twice
/// as many, within limits, and as many as its lines of the cache have room for.
#[inline(always)]
pub fn next_capacity(element: Layout, len: u64, last: u32) -> u32 {
    let max = if len < HEAVY { CAPACITY_LIGHT } else { CAPACITY_HEAVY };
    let fits = (CHUNK_BYTES_MAX / element.size().max(1)).clamp(1, max as usize) as u32;
    filled(element, (2 * last).max(CAPACITY_FIRST).min(fits))
}

/// An element of a chunk, or where it will be.
///
/// # Safety
/// `chunk` is a chunk of such elements, which has room for more than `at` of them, or as many.
// SAFETY: the chunk is the caller's to promise.
#[inline(always)]
unsafe fn place_in(chunk: *mut ElementChunk, element: Layout, at: u32) -> *mut u8 {
    // SAFETY: the elements stand behind the header in the same chunk, see `layout`.
    unsafe { chunk.byte_add(offset_of(element) + at as usize * element.size()).cast() }
}

impl ElementChain {
    /// Elements.
    #[inline(always)]
    pub fn len(&self) -> u64 {
        self.counts.len()
    }

    /// Whether an element can be pushed without growing.
    #[inline(always)]
    pub fn has_room(&self) -> bool {
        self.counts.last_len() < self.counts.last_capacity()
    }

    /// How many of these elements the next chunk is to have room for.
    #[inline(always)]
    pub fn next_capacity(&self, element: Layout) -> u32 {
        next_capacity(element, self.len(), self.counts.last_capacity())
    }

    /// Adds an empty chunk. What the arena [misses](Arena::missing) for
    /// [`next_capacity`](ElementChain::next_capacity) elements is booked before.
    ///
    /// # Panics
    /// If the chain has chunks in another arena, or if that is of elements of another size.
    #[inline(always)]
    pub fn grow(&mut self, element: Layout, arena: &mut Arena) {
        assert!(
            self.pieces.as_ref().is_none_or(|own| arena.has(own)),
            "a chain grows in one arena"
        );
        let (chunk, pieces) = arena.take(element, self.next_capacity(element));
        if self.pieces.is_none() {
            self.pieces = Some(pieces.clone());
        }
        self.close_last();
        let first = match NonNull::new(self.last) {
            // SAFETY: `last` is a chunk of this chain, which is borrowed exclusively.
            Some(mut last) => unsafe { std::mem::replace(&mut last.as_mut().next, chunk.as_ptr()) },
            None => chunk.as_ptr(),
        };
        self.last = chunk.as_ptr();
        // SAFETY: an initialised chunk that only this chain knows.
        let capacity = unsafe {
            (*self.last).next = first;
            (*self.last).capacity
        };
        self.counts = ChainCounts::new(self.len(), 0, capacity);
    }

    /// Writes the last chunk's number of elements into it.
    fn close_last(&mut self) {
        if let Some(mut last) = NonNull::new(self.last) {
            // SAFETY: `last` is a chunk of this chain, which is borrowed exclusively.
            unsafe { last.as_mut().len = self.counts.last_len() };
        }
    }

    /// The chunk that the others follow; null if there is none.
    fn first(&self) -> *mut ElementChunk {
        // SAFETY: `last` is a chunk of this chain, and the last leads to the first.
        NonNull::new(self.last).map_or(null_mut(), |last| unsafe { last.as_ref() }.next)
    }

    /// Appends an element.
    ///
    /// # Safety
    /// The chain grows in arenas of such elements.
    ///
    /// # Panics
    /// If there is no [room](ElementChain::has_room).
    // SAFETY: the type is the caller's to promise.
    #[inline(always)]
    pub unsafe fn push<E: 'static>(&mut self, new: E) {
        assert!(self.has_room(), "a chain without room");
        debug_assert!(self.elements().is_some_and(ElementType::is::<E>), "another type");
        let at = self.counts.last_len();
        // SAFETY: the last chunk has room for more than `at` elements, and this is the next.
        unsafe { place_in(self.last, Layout::new::<E>(), at).cast::<E>().write(new) };
        self.counts.0 += ChainCounts::ONE;
    }

    /// The same after a look at the type.
    ///
    /// # Panics
    /// If it is another one, or if there is no room.
    pub fn push_checked<E: 'static>(&mut self, new: E) {
        assert!(self.elements().is_some_and(ElementType::is::<E>), "another type");
        // SAFETY: looked at above.
        unsafe { self.push(new) }
    }

    /// What it is of, once it has a chunk.
    fn elements(&self) -> Option<&'static ElementType> {
        self.pieces.as_ref().map(|pieces| pieces.elements())
    }

    /// Puts the elements of another chain of the same arena before those of this one. Cost: O(1).
    ///
    /// # Panics
    /// If the other is of another arena.
    pub fn prepend(&mut self, mut before: ElementChain) {
        if before.last.is_null() {
            return;
        }
        if self.last.is_null() {
            std::mem::swap(self, &mut before);
            return;
        }
        let same = self.pieces.as_ref().zip(before.pieces.as_ref());
        assert!(same.is_some_and(|(a, b)| Arc::ptr_eq(a, b)), "chains of two arenas");
        before.close_last();
        let (first, added) = (self.first(), before.len());
        // SAFETY: both are last chunks of chains that are borrowed exclusively, or owned.
        unsafe {
            (*self.last).next = (*before.last).next;
            (*before.last).next = first;
        }
        self.counts.0 += added;
        // Its chunks are ours now.
        (before.last, before.counts) = (null_mut(), ChainCounts(0));
    }

    /// The elements, in order.
    #[cfg(test)]
    pub fn iter<E: 'static>(&self) -> ElementIter<'_, E> {
        self.chunks().native()
    }

    /// The elements in order, chunk by chunk.
    #[inline]
    pub fn chunks(&self) -> ElementChunks<'_> {
        ElementChunks { chunk: self.last, at: 0, len: 0, chain: self, left: self.len() }
    }

    /// Hints that it will be read: with 0 what leads to its first chunk, a while later with 1 that
    /// chunk, with 2 the next one, and so on.
    #[inline]
    pub fn prefetch_read(&self, step: usize) {
        if step == 0 {
            prefetch(self.last);
        } else if !self.last.is_null() {
            let mut chunk = self.first();
            for _ in 1..step {
                if chunk == self.last {
                    return;
                }
                // SAFETY: a chunk of this chain, which is followed by another.
                chunk = unsafe { (*chunk).next };
            }
            // Chunks double.
            let element = self.elements().map_or(Layout::new::<()>(), ElementType::layout);
            prefetch_chunk(chunk, layout(element, CAPACITY_FIRST).size() << (step - 1));
        }
    }

    /// Hints that such an element will be appended.
    #[inline(always)]
    pub fn prefetch_append(&self, element: Layout) {
        let at = offset_of(element) + self.counts.last_len() as usize * element.size();
        prefetch(self.last.cast::<u8>().wrapping_add(at));
    }

    /// The elements, taken out, in order.
    pub fn drain(mut self) -> ChainDrain {
        self.close_last();
        let left = std::mem::replace(&mut self.counts, ChainCounts(0)).len();
        ChainDrain { chunk: self.first(), at: 0, left, chain: self }
    }
}

/// Hints that the first bytes of a chunk will be read, up to [`PREFETCH_BYTES_MAX`].
#[inline(always)]
fn prefetch_chunk(chunk: *const ElementChunk, bytes: usize) {
    for offset in (0..bytes.min(PREFETCH_BYTES_MAX)).step_by(LINE_BYTES) {
        prefetch(chunk.cast::<u8>().wrapping_add(offset));
    }
}

impl Arena {
    /// Drops what is left of a chain and keeps its chunks for others. Cost: O(chunks).
    pub fn recycle(&mut self, mut drain: ChainDrain) {
        drain.drop_rest();
        let chain = &mut drain.chain;
        if !chain.pieces.as_ref().is_some_and(|pieces| self.has(pieces)) {
            return;
        }
        let last = std::mem::replace(&mut chain.last, null_mut());
        let mut chunk = NonNull::new(last);
        while let Some(at) = chunk {
            // SAFETY: a chunk that only this chain knew; it is read before it is given back.
            let next = unsafe { at.as_ref() }.next;
            // SAFETY: the chunk is of this arena, as all of the chain's; its elements are gone.
            unsafe { self.give_back(at) };
            chunk = NonNull::new(next).filter(|next| next.as_ptr() != last);
        }
    }
}

impl ElementChain {
    /// Heap bytes of all elements. Cost: O(elements), unless they own none.
    pub fn heap_bytes(&self) -> u64 {
        match self.elements() {
            Some(elements) if !elements.is_plain() => {
                let mut chunks = self.chunks();
                std::iter::from_fn(|| chunks.next_slice()).map(ElementSlice::heap_bytes).sum()
            }
            _ => 0,
        }
    }
}

impl Drop for ElementChain {
    fn drop(&mut self) {
        if self.len() > 0 && self.elements().is_some_and(ElementType::needs_drop) {
            drop(std::mem::take(self).drain());
        }
    }
}

/// The elements of a chain that is taken apart. Those that nobody takes are dropped; one that panics
/// then leaves those after it to another attempt.
pub struct ChainDrain {
    chunk: *mut ElementChunk,
    /// Elements of the chunk that were taken.
    at: u32,
    left: u64,
    /// Owns the chunks, and counts no elements.
    chain: ElementChain,
}

impl ChainDrain {
    /// Elements that are left.
    pub fn len(&self) -> u64 {
        self.left
    }

    /// The next elements that stand in one chunk, at most so many; they are the caller's. Without any, none is left.
    fn take(&mut self, most: u32) -> (*mut u8, u32) {
        let Some(elements) = self.chain.elements().filter(|_| self.left > 0) else {
            return (null_mut(), 0);
        };
        loop {
            // SAFETY: elements are left, so that this is a chunk of the chain, closed.
            let ElementChunk { next, len, .. } = unsafe { &*self.chunk };
            if self.at < *len {
                // SAFETY: the first `len` elements are initialised, and each is taken once, as the chain counts
                // them no more.
                let first = unsafe { place_in(self.chunk, elements.layout(), self.at) };
                let count = most.min(*len - self.at);
                self.at += count;
                self.left -= u64::from(count);
                return (first, count);
            }
            (self.chunk, self.at) = (*next, 0);
        }
    }

    /// Moves elements to the end of another chain, at most so many, as far as its last chunk has room and as what stands
    /// in one chunk here.
    ///
    /// # Panics
    /// If the other chain is of elements of another type.
    pub fn move_some(&mut self, target: &mut ElementChain, most: u32) {
        let (own, others) = (self.chain.elements(), target.elements());
        let is_alike = own.zip(others).is_some_and(|(own, others)| own.is_like(others));
        assert!(is_alike || self.left == 0 || !target.has_room(), "chains of two types");
        let (len, capacity) = (target.counts.last_len(), target.counts.last_capacity());
        let (Some(elements), true) = (own, len < capacity) else { return };
        let (first, count) = self.take(most.min(capacity - len));
        if count > 0 {
            let layout = elements.layout();
            // SAFETY: the last chunk of the other chain has room for so many more, of the same type; those taken are
            // ours, and stand in a chunk of another chain.
            unsafe {
                let end = place_in(target.last, layout, len);
                end.copy_from_nonoverlapping(first, count as usize * layout.size());
            }
            target.counts.0 += u64::from(count) * ChainCounts::ONE;
        }
    }

    /// Drops the elements that are left.
    fn drop_rest(&mut self) {
        let Some(elements) = self.chain.elements().filter(|elements| elements.needs_drop()) else {
            return;
        };
        loop {
            let (first, count) = self.take(u32::MAX);
            if count == 0 {
                return;
            }
            // SAFETY: they were taken, and are dropped once.
            unsafe { elements.drop_elements(first, count as usize) };
        }
    }
}

impl Drop for ChainDrain {
    fn drop(&mut self) {
        /// Goes on when an element has panicked.
        struct DrainOnUnwind<'d>(&'d mut ChainDrain);
        impl Drop for DrainOnUnwind<'_> {
            fn drop(&mut self) {
                self.0.drop_rest();
            }
        }
        DrainOnUnwind(self).0.drop_rest();
    }
}

impl std::fmt::Debug for ElementChain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ElementChain({} elements)", self.len())
    }
}

/// The elements of an [`ElementChain`], chunk by chunk.
#[derive(Clone)]
pub struct ElementChunks<'a> {
    /// What is read now; the last one before the first is begun.
    chunk: *mut ElementChunk,
    at: u32,
    /// Elements of the chunk.
    len: u32,
    chain: &'a ElementChain,
    left: u64,
}

impl<'a> ElementChunks<'a> {
    /// The elements by their type.
    ///
    /// # Panics
    /// If they are of another type.
    #[inline]
    pub fn native<E: 'static>(&self) -> ElementIter<'a, E> {
        let is_of = self.chain.elements().is_none_or(ElementType::is::<E>);
        assert!(is_of, "elements of another type");
        ElementIter { chunks: self.clone(), of: PhantomData }
    }

    /// Elements that were not told.
    #[inline]
    pub fn len(&self) -> usize {
        self.left as usize
    }

    /// Passes so many elements. Cost: that of the chunks.
    pub fn pass(&mut self, mut count: usize) {
        while count > 0 && self.left > 0 {
            while self.at == self.len {
                self.turn();
            }
            let here = ((self.len - self.at) as usize).min(count);
            self.at += here as u32;
            self.left -= here as u64;
            count -= here;
        }
    }

    /// The next element.
    #[inline]
    pub fn next_one(&mut self) -> Option<ElementSlice<'a>> {
        let elements = self.chain.elements().filter(|_| self.left > 0)?;
        while self.at == self.len {
            self.turn();
        }
        self.left -= 1;
        self.at += 1;
        // SAFETY: the first `len` elements of a chunk are initialised and borrowed.
        Some(unsafe {
            ElementSlice::new(elements, place_in(self.chunk, elements.layout(), self.at - 1), 1)
        })
    }

    /// Goes to the next chunk, and has the one after it fetched.
    fn turn(&mut self) {
        // SAFETY: elements are left, so that this and the next are chunks of the borrowed chain.
        let next = unsafe { (*self.chunk).next };
        // SAFETY: as above.
        let ElementChunk { next: after, len, .. } = unsafe { &*next };
        (self.chunk, self.at) = (next, 0);
        self.len = if next == self.chain.last { self.chain.counts.last_len() } else { *len };
        prefetch_chunk(*after, PREFETCH_BYTES_MAX);
    }

    /// The next elements that stand in one chunk.
    #[inline]
    pub fn next_slice(&mut self) -> Option<ElementSlice<'a>> {
        let elements = self.chain.elements()?;
        let (first, count) = self.rest()?;
        // SAFETY: the first `len` elements of a chunk are initialised and borrowed.
        Some(unsafe {
            let first = place_in(self.chunk, elements.layout(), first);
            ElementSlice::new(elements, first, count as usize)
        })
    }

    /// Where the next elements begin in the chunk that is read then, and how many they are; they count as told.
    #[inline(always)]
    fn rest(&mut self) -> Option<(u32, u32)> {
        if self.left == 0 {
            return None;
        }
        while self.at == self.len {
            self.turn();
        }
        let (first, count) = (self.at, self.len - self.at);
        self.left -= u64::from(count);
        self.at = self.len;
        Some((first, count))
    }
}

/// The elements of an [`ElementChain`], by their type.
pub struct ElementIter<'a, E> {
    /// Of a chain of such elements.
    chunks: ElementChunks<'a>,
    of: PhantomData<&'a E>,
}

impl<E> Clone for ElementIter<'_, E> {
    fn clone(&self) -> Self {
        Self { chunks: self.chunks.clone(), of: PhantomData }
    }
}

impl<'a, E> ElementIter<'a, E> {
    /// The next elements that stand in one chunk; none at the end.
    #[inline]
    pub fn next_chunk(&mut self) -> &'a [E] {
        let Some((first, count)) = self.chunks.rest() else { return &[] };
        // SAFETY: the first `len` elements of a chunk are initialised and borrowed.
        unsafe {
            let first = place_in(self.chunks.chunk, Layout::new::<E>(), first).cast::<E>();
            std::slice::from_raw_parts(first, count as usize)
        }
    }
}

impl<'a, E> Iterator for ElementIter<'a, E> {
    type Item = &'a E;

    #[inline]
    fn next(&mut self) -> Option<&'a E> {
        let chunks = &mut self.chunks;
        if chunks.left == 0 {
            return None;
        }
        while chunks.at == chunks.len {
            chunks.turn();
        }
        chunks.left -= 1;
        chunks.at += 1;
        // SAFETY: the first `len` elements of a chunk are initialised and borrowed.
        Some(unsafe { &*place_in(chunks.chunk, Layout::new::<E>(), chunks.at - 1).cast::<E>() })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.chunks.left as usize, Some(self.chunks.left as usize))
    }
}

impl<E> ExactSizeIterator for ElementIter<'_, E> {}
