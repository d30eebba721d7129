//! A list of fixed capacity, whose memory goes back to the system when it is dropped.
//!
//! What is large and comes and goes must not be an allocator's: one that was given 30 MiB back keeps as much from then on,
//! which nobody has booked.
//!
//! What it keeps true: the first `len` elements are written; the memory is for `capacity` of them.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use crate::support::system_page::page_bytes;

/// With less memory the allocator is asked.
const MAPPED_MIN: usize = 64 << 10;
/// What an archived record needs, as its first byte stands.
const ALIGN: usize = 16;

/// A list that never grows beyond its capacity.
pub struct MappedList<T: Copy> {
    start: NonNull<T>,
    len: usize,
    capacity: usize,
    is_mapped: bool,
}

// SAFETY: it owns its memory and its elements.
unsafe impl<T: Copy + Send> Send for MappedList<T> {}
// SAFETY: as above.
unsafe impl<T: Copy + Sync> Sync for MappedList<T> {}

impl<T: Copy> MappedList<T> {
    /// An empty list with room for so many. What is mapped takes memory as it is written.
    pub fn with_capacity(capacity: usize) -> Self {
        let layout = Self::layout(capacity);
        if layout.size() == 0 {
            return Self { start: NonNull::dangling(), len: 0, capacity, is_mapped: false };
        }
        if layout.size() >= MAPPED_MIN
            && let Some(start) = mapped::map(layout.size())
        {
            return Self { start: start.cast(), len: 0, capacity, is_mapped: true };
        }
        // SAFETY: the size is not zero.
        let start = NonNull::new(unsafe { alloc(layout) });
        let start = start.unwrap_or_else(|| handle_alloc_error(layout)).cast();
        Self { start, len: 0, capacity, is_mapped: false }
    }

    fn layout(capacity: usize) -> Layout {
        let layout = Layout::array::<T>(capacity).and_then(|layout| layout.align_to(ALIGN));
        layout.expect("a capacity that memory has room for")
    }

    /// Bytes of a list with room for so many.
    pub fn memory_bytes(capacity: usize) -> usize {
        match Self::layout(capacity).size() {
            bytes if bytes >= MAPPED_MIN => bytes.next_multiple_of(page_bytes()),
            bytes => bytes,
        }
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
            let end = self.start.as_ptr().add(self.len);
            end.copy_from_nonoverlapping(elements.as_ptr(), elements.len());
        }
        self.len += elements.len();
    }
}

impl<T: Copy> Deref for MappedList<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the first `len` elements are written.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T: Copy> DerefMut for MappedList<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above; it is borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl<T: Copy> Drop for MappedList<T> {
    fn drop(&mut self) {
        let layout = Self::layout(self.capacity);
        match self.is_mapped {
            true => mapped::unmap(self.start.cast(), layout.size()),
            false if layout.size() == 0 => {}
            // SAFETY: it came from the allocator with this layout.
            false => unsafe { dealloc(self.start.as_ptr().cast(), layout) },
        }
    }
}

impl<T: Copy> fmt::Debug for MappedList<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MappedList({} of {})", self.len, self.capacity)
    }
}

#[cfg(all(target_os = "linux", not(miri)))]
mod mapped {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
    use std::ptr::NonNull;

    /// Memory of so many bytes, which is zero. None: the system refuses.
    pub fn map(bytes: usize) -> Option<NonNull<u8>> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        let both = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at a place that the system chooses.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, both, flags) }.ok()?;
        NonNull::new(start.cast())
    }

    /// Gives back what was mapped.
    pub fn unmap(start: NonNull<u8>, bytes: usize) {
        // SAFETY: its owner mapped it with this length and is being dropped.
        let _ = unsafe { munmap(start.as_ptr().cast(), bytes) };
    }
}

#[cfg(not(all(target_os = "linux", not(miri))))]
mod mapped {
    use std::ptr::NonNull;

    pub fn map(_: usize) -> Option<NonNull<u8>> {
        None
    }
    pub fn unmap(_: NonNull<u8>, _: usize) {}
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
            let is_large = capacity * 8 >= MAPPED_MIN;
            assert_eq!(list.is_mapped, is_large && cfg!(all(target_os = "linux", not(miri))));
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
