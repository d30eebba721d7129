//! A list in memory: chunks of elements in its bucket's [arena](super::arena_unsafe), each larger
//! than the one before.
//!
//! Chunks are linked forwards, so that reading follows arrival, and the last one leads to the first,
//! so that a list takes 24 bytes beside its key.
//!
//! What it keeps true: the chunks from `last.next` to `last` are known to this chain only, and lie in
//! pieces that live as long as it; of each the first `len` elements are initialised, where the last
//! chunk's `len` is kept here.

use std::marker::PhantomData;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use alluvium_pagestore::HeapSize;

use super::arena_unsafe::{Arena, Chunk, LINE_BYTES, Pieces, filled, layout};
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
struct Counts(u64);

impl Counts {
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
pub struct Chain<E> {
    last: *mut Chunk,
    counts: Counts,
    /// Where its chunks lie.
    pieces: Option<Arc<Pieces>>,
    owns: PhantomData<E>,
}

// SAFETY: a chain owns its chunks alone, as a `Vec` owns its memory.
unsafe impl<E: Send> Send for Chain<E> {}
// SAFETY: shared access only reads elements.
unsafe impl<E: Sync> Sync for Chain<E> {}

impl<E> Default for Chain<E> {
    fn default() -> Self {
        Self { last: null_mut(), counts: Counts(0), pieces: None, owns: PhantomData }
    }
}

/// Elements that a chunk has room for, in a chain of `len` elements behind a chunk of `last`: twice
/// as many, within limits, and as many as its lines of the cache have room for.
#[inline]
pub fn next_capacity<E>(len: u64, last: u32) -> u32 {
    let max = if len < HEAVY { CAPACITY_LIGHT } else { CAPACITY_HEAVY };
    let fits = (CHUNK_BYTES_MAX / size_of::<E>().max(1)).clamp(1, max as usize) as u32;
    filled::<E>((2 * last).max(CAPACITY_FIRST).min(fits))
}

/// The elements of a chunk.
///
/// # Safety
/// `chunk` is a chunk of a `Chain<E>`.
#[inline(always)]
unsafe fn elements<E>(chunk: *mut Chunk) -> *mut E {
    let offset = size_of::<Chunk>().next_multiple_of(align_of::<E>());
    // SAFETY: the elements stand behind the header in the same chunk, see `layout`.
    unsafe { chunk.byte_add(offset).cast() }
}

impl<E> Chain<E> {
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

    /// Elements that the next chunk is to have room for.
    #[inline]
    pub fn next_capacity(&self) -> u32 {
        next_capacity::<E>(self.len(), self.counts.last_capacity())
    }

    /// Adds an empty chunk. What the arena [misses](Arena::missing) for
    /// [`next_capacity`](Chain::next_capacity) elements is booked before.
    ///
    /// # Panics
    /// If the chain has chunks in another arena.
    #[inline]
    pub fn grow(&mut self, arena: &mut Arena<E>) {
        assert!(
            self.pieces.as_ref().is_none_or(|own| arena.has(own)),
            "a chain grows in one arena"
        );
        let (chunk, pieces) = arena.take(self.next_capacity());
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
        self.counts = Counts::new(self.len(), 0, capacity);
    }

    /// Writes the last chunk's number of elements into it.
    fn close_last(&mut self) {
        if let Some(mut last) = NonNull::new(self.last) {
            // SAFETY: `last` is a chunk of this chain, which is borrowed exclusively.
            unsafe { last.as_mut().len = self.counts.last_len() };
        }
    }

    /// The chunk that the others follow; null if there is none.
    fn first(&self) -> *mut Chunk {
        // SAFETY: `last` is a chunk of this chain, and the last leads to the first.
        NonNull::new(self.last).map_or(null_mut(), |last| unsafe { last.as_ref() }.next)
    }

    /// Appends an element.
    ///
    /// # Panics
    /// If there is no [room](Chain::has_room).
    #[inline(always)]
    pub fn push(&mut self, element: E) {
        assert!(self.has_room(), "a chain without room");
        let at = self.counts.last_len() as usize;
        // SAFETY: the last chunk has room for more than `at` elements, and this is the next.
        unsafe { elements::<E>(self.last).add(at).write(element) };
        self.counts.0 += Counts::ONE;
    }

    /// Puts the elements of another chain of the same arena before those of this one. Cost: O(1).
    ///
    /// # Panics
    /// If the other is of another arena.
    pub fn prepend(&mut self, mut before: Chain<E>) {
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
        (before.last, before.counts) = (null_mut(), Counts(0));
    }

    /// The elements, in order.
    #[inline]
    pub fn iter(&self) -> Iter<'_, E> {
        Iter { chunk: self.last, at: 0, len: 0, chain: self, left: self.len() }
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
            prefetch_chunk(chunk, layout::<E>(filled::<E>(CAPACITY_FIRST)).size() << (step - 1));
        }
    }

    /// Hints that an element will be appended.
    #[inline]
    pub fn prefetch_append(&self) {
        let offset = size_of::<Chunk>().next_multiple_of(align_of::<E>());
        let at = offset + self.counts.last_len() as usize * size_of::<E>();
        prefetch(self.last.cast::<u8>().wrapping_add(at));
    }

    /// The elements, taken out, in order.
    pub fn drain(mut self) -> Drain<E> {
        self.close_last();
        let left = std::mem::replace(&mut self.counts, Counts(0)).len();
        Drain { chunk: self.first(), at: 0, left, chain: self }
    }
}

/// Hints that the first bytes of a chunk will be read, up to [`PREFETCH_BYTES_MAX`].
#[inline(always)]
fn prefetch_chunk(chunk: *const Chunk, bytes: usize) {
    for offset in (0..bytes.min(PREFETCH_BYTES_MAX)).step_by(LINE_BYTES) {
        prefetch(chunk.cast::<u8>().wrapping_add(offset));
    }
}

impl<E> Arena<E> {
    /// Drops what is left of a chain and keeps its chunks for others. Cost: O(chunks).
    pub fn recycle(&mut self, mut drain: Drain<E>) {
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

impl<E: HeapSize> Chain<E> {
    /// Heap bytes of all elements. Cost: O(elements), unless they own none.
    pub fn heap_bytes(&self) -> u64 {
        if E::NO_HEAP { 0 } else { self.iter().map(|e| e.heap_bytes() as u64).sum() }
    }
}

impl<E> Drop for Chain<E> {
    fn drop(&mut self) {
        if std::mem::needs_drop::<E>() && self.len() > 0 {
            drop(std::mem::take(self).drain());
        }
    }
}

/// The elements of a chain that is taken apart. Those that nobody takes are dropped; one that panics
/// then leaves those after it to another attempt.
pub struct Drain<E> {
    chunk: *mut Chunk,
    /// Elements of the chunk that were taken.
    at: u32,
    left: u64,
    /// Owns the chunks, and counts no elements.
    chain: Chain<E>,
}

impl<E> Iterator for Drain<E> {
    type Item = E;

    #[inline]
    fn next(&mut self) -> Option<E> {
        if self.left == 0 {
            return None;
        }
        loop {
            // SAFETY: elements are left, so that this is a chunk of the chain, closed.
            let Chunk { next, len, .. } = unsafe { &*self.chunk };
            if self.at < *len {
                self.left -= 1;
                self.at += 1;
                // SAFETY: the first `len` elements are initialised, and each is taken once, as the
                // chain counts them no more.
                return Some(unsafe { elements::<E>(self.chunk).add(self.at as usize - 1).read() });
            }
            (self.chunk, self.at) = (*next, 0);
        }
    }
}

impl<E> Drain<E> {
    /// Drops the elements that are left.
    fn drop_rest(&mut self) {
        if std::mem::needs_drop::<E>() {
            self.for_each(drop);
        }
    }
}

impl<E> Drop for Drain<E> {
    fn drop(&mut self) {
        /// Goes on when an element has panicked.
        struct Rest<'d, E>(&'d mut Drain<E>);
        impl<E> Drop for Rest<'_, E> {
            fn drop(&mut self) {
                self.0.drop_rest();
            }
        }
        Rest(self).0.drop_rest();
    }
}

impl<E> std::fmt::Debug for Chain<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Chain({} elements)", self.len())
    }
}

/// The elements of a [`Chain`].
pub struct Iter<'a, E> {
    /// What is read now; the last one before the first is begun.
    chunk: *mut Chunk,
    at: u32,
    /// Elements of the chunk.
    len: u32,
    chain: &'a Chain<E>,
    left: u64,
}

impl<E> Clone for Iter<'_, E> {
    fn clone(&self) -> Self {
        let Self { chunk, at, len, chain, left } = *self;
        Self { chunk, at, len, chain, left }
    }
}

impl<E> Iter<'_, E> {
    /// Goes to the next chunk, and has the one after it fetched.
    fn turn(&mut self) {
        // SAFETY: elements are left, so that this and the next are chunks of the borrowed chain.
        let next = unsafe { (*self.chunk).next };
        // SAFETY: as above.
        let Chunk { next: after, len, .. } = unsafe { &*next };
        (self.chunk, self.at) = (next, 0);
        self.len = if next == self.chain.last { self.chain.counts.last_len() } else { *len };
        prefetch_chunk(*after, PREFETCH_BYTES_MAX);
    }
}

impl<'a, E> Iter<'a, E> {
    /// The next elements that stand in one chunk; none at the end.
    #[inline]
    pub fn next_chunk(&mut self) -> &'a [E] {
        if self.left == 0 {
            return &[];
        }
        while self.at == self.len {
            self.turn();
        }
        self.rest_from(self.at)
    }

    /// Passes so many elements. Cost: that of the chunks, and of one chunk's elements.
    pub fn pass(&mut self, mut count: usize) {
        while count > 0 {
            let mut ahead = self.clone();
            match ahead.next_chunk().len() {
                0 => return,
                chunk if chunk <= count => {
                    *self = ahead;
                    count -= chunk;
                }
                _ => {
                    self.nth(count - 1);
                    return;
                }
            }
        }
    }

    /// The element that was told last, and those behind it in the same chunk.
    ///
    /// # Panics
    /// If none was told.
    pub fn rest_of_chunk(&mut self) -> &'a [E] {
        let last = self.at.checked_sub(1).expect("an element was told");
        self.rest_from(last)
    }

    /// The elements of this chunk from `first` on; they count as told.
    #[inline]
    fn rest_from(&mut self, first: u32) -> &'a [E] {
        assert!(first <= self.at && self.at <= self.len, "{first}, {} of {}", self.at, self.len);
        self.left -= u64::from(self.len - self.at);
        self.at = self.len;
        // SAFETY: the first `len` elements of a chunk are initialised and borrowed, and this is one,
        // as `len` is above 0 only after a turn to it.
        unsafe {
            let start = elements::<E>(self.chunk).add(first as usize);
            std::slice::from_raw_parts(start, (self.len - first) as usize)
        }
    }
}

impl<'a, E> Iterator for Iter<'a, E> {
    type Item = &'a E;

    #[inline]
    fn next(&mut self) -> Option<&'a E> {
        if self.left == 0 {
            return None;
        }
        while self.at == self.len {
            self.turn();
        }
        self.left -= 1;
        self.at += 1;
        // SAFETY: the first `len` elements of a chunk are initialised and borrowed.
        Some(unsafe { &*elements::<E>(self.chunk).add(self.at as usize - 1) })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left as usize, Some(self.left as usize))
    }
}

impl<E> ExactSizeIterator for Iter<'_, E> {}
