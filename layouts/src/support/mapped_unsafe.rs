//! A list of fixed capacity, whose memory goes [back to the system](super::pages_unsafe) when it is dropped.
//!
//! What it keeps true: the first `len` elements are written; the memory is for `capacity` of them.

use std::alloc::Layout;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use super::pages_unsafe::PageMemory;

/// What an archived record needs, as its first byte stands.
const ALIGN: usize = 16;

/// A list that never grows beyond its capacity.
pub struct MappedList<T: Copy> {
    pages: PageMemory,
    len: usize,
    capacity: usize,
    elements: PhantomData<T>,
}

impl<T: Copy> MappedList<T> {
    /// An empty list with room for so many. What is mapped takes memory as it is written.
    pub fn with_capacity(capacity: usize) -> Self {
        let pages = PageMemory::new(Self::layout(capacity));
        Self { pages, len: 0, capacity, elements: PhantomData }
    }

    fn layout(capacity: usize) -> Layout {
        let layout = Layout::array::<T>(capacity).and_then(|layout| layout.align_to(ALIGN));
        layout.expect("a capacity that memory has room for")
    }

    /// Bytes of a list with room for so many.
    pub fn memory_bytes(capacity: usize) -> usize {
        PageMemory::memory_bytes(Self::layout(capacity))
    }

    fn start(&self) -> *mut T {
        self.pages.start().as_ptr().cast()
    }

    /// Elements that it has room for.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Appends an element.
    ///
    /// # Panics
    /// If there is no room.
    pub fn push(&mut self, element: T) {
        self.extend_from_slice(&[element]);
    }

    /// Appends elements.
    ///
    /// # Panics
    /// If there is no room.
    pub fn extend_from_slice(&mut self, elements: &[T]) {
        let room = self.capacity - self.len;
        assert!(elements.len() <= room, "{} elements, room for {room}", elements.len());
        // SAFETY: asked above; what is borrowed from elsewhere does not overlap with the list's own memory.
        unsafe {
            let end = self.start().add(self.len);
            end.copy_from_nonoverlapping(elements.as_ptr(), elements.len());
        }
        self.len += elements.len();
    }
}

impl<T: Copy> Deref for MappedList<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the first `len` elements are written.
        unsafe { std::slice::from_raw_parts(self.start(), self.len) }
    }
}

impl<T: Copy> DerefMut for MappedList<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above; it is borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.start(), self.len) }
    }
}

impl<T: Copy> fmt::Debug for MappedList<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MappedList({} of {})", self.len, self.capacity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_what_was_appended_mapped_or_not() {
        for capacity in [0, 5, if cfg!(miri) { 1_000 } else { 100_000 }] {
            let mut list = MappedList::<u64>::with_capacity(capacity);
            let mut known = Vec::new();
            while known.len() < capacity {
                let more: Vec<u64> = (known.len()..capacity.min(known.len() + 7))
                    .map(|nth| (nth * nth) as u64)
                    .collect();
                list.extend_from_slice(&more);
                known.extend(more);
            }
            list.reverse();
            known.reverse();
            assert_eq!((&list[..], list.capacity()), (&known[..], capacity));
            assert_eq!(list.as_ptr() as usize % if capacity > 0 { ALIGN } else { 1 }, 0);
            let is_large = capacity > 5;
            assert_eq!(list.pages.is_mapped(), is_large && cfg!(all(unix, not(miri))));
        }
    }

    #[test]
    #[should_panic(expected = "2 elements, room for 1")]
    fn more_than_its_capacity_is_refused() {
        let mut list = MappedList::<u8>::with_capacity(4);
        list.extend_from_slice(&[1, 2, 3]);
        list.extend_from_slice(&[4, 5]);
    }
}
