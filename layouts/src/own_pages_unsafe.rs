//! A list in pages of its own, which the system has back as soon as the list goes. It pays: of many lists that come one
//! after the other an allocator keeps the pages, and gives all of them back with whatever goes last, which took 10 to 29
//! ms of a call while a checkpoint of 10 M entries on the heap was taken.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use crate::system_page::page_bytes;

/// Shorter lists are the allocator's.
const MAPPED_MIN: usize = 64 << 10;
/// No system has smaller pages.
const PAGE_MIN: usize = 4096;

/// A list of so many items at most.
///
/// What it keeps true: the first `len` items at `start` are there, and `capacity` have room.
pub struct OwnPages<T> {
    start: NonNull<T>,
    len: usize,
    capacity: usize,
    /// Whether they are of the allocator: few, or no pages were to be had.
    is_allocated: bool,
}

// SAFETY: it owns its items, and nobody else has a pointer to them.
unsafe impl<T: Send> Send for OwnPages<T> {}
// SAFETY: with a shared reference items are only read.
unsafe impl<T: Sync> Sync for OwnPages<T> {}

impl<T> OwnPages<T> {
    /// An empty one.
    ///
    /// # Panics
    /// If items have no size, or more than that of a page as their alignment.
    pub fn with_capacity(capacity: usize) -> Self {
        assert!(size_of::<T>() > 0 && align_of::<T>() <= PAGE_MIN, "items that pages cannot have");
        let layout = Self::layout(capacity);
        let pages = if layout.size() < MAPPED_MIN { None } else { map(layout.size()) };
        if let Some(start) = pages {
            return Self { start: start.cast(), len: 0, capacity, is_allocated: false };
        }
        // SAFETY: an item has a size, and a layout is of one at least.
        let start = NonNull::new(unsafe { alloc(layout) });
        let start = start.unwrap_or_else(|| handle_alloc_error(layout)).cast();
        Self { start, len: 0, capacity, is_allocated: true }
    }

    /// Memory that one takes.
    pub fn memory_bytes(capacity: usize) -> usize {
        Self::memory_bytes_on(capacity, page_bytes())
    }

    /// Memory that one takes on a system with such pages.
    fn memory_bytes_on(capacity: usize, page_bytes: usize) -> usize {
        let bytes = Self::layout(capacity).size();
        if bytes < MAPPED_MIN { bytes } else { bytes.next_multiple_of(page_bytes) }
    }

    fn layout(capacity: usize) -> Layout {
        Layout::array::<T>(capacity.max(1)).expect("no more than there is memory")
    }

    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Adds an item at the end.
    ///
    /// # Panics
    /// Without room for it.
    #[inline]
    pub fn push(&mut self, item: T) {
        assert!(self.len < self.capacity, "there is room");
        // SAFETY: within the capacity, and nothing is there yet.
        unsafe { self.start.add(self.len).write(item) };
        self.len += 1;
    }

    /// Makes room for so many more. Cost: in the number of items.
    pub fn grow(&mut self, more: usize) {
        let mut grown = Self::with_capacity(self.capacity + more);
        // SAFETY: both have room for as many, and are apart; from here on the items are those of the new one.
        unsafe { grown.start.copy_from_nonoverlapping(self.start, self.len) };
        grown.len = std::mem::take(&mut self.len);
        *self = grown;
    }

    /// Drops the items.
    pub fn clear(&mut self) {
        let items: *mut [T] = &raw mut **self;
        // An item whose drop panics, and those behind it, are not dropped again.
        self.len = 0;
        // SAFETY: they were there, and are not any more.
        unsafe { items.drop_in_place() };
    }
}

impl<T> Deref for OwnPages<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: the first `len` are there.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T> DerefMut for OwnPages<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and `&mut self` is the only way to them.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl<T: fmt::Debug> fmt::Debug for OwnPages<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&**self).finish()
    }
}

impl<T> Drop for OwnPages<T> {
    fn drop(&mut self) {
        // The memory goes also if an item panics.
        let _memory = Memory {
            start: self.start.cast(),
            layout: Self::layout(self.capacity),
            is_allocated: self.is_allocated,
        };
        self.clear();
    }
}

/// The memory of a list that goes.
struct Memory {
    start: NonNull<u8>,
    layout: Layout,
    is_allocated: bool,
}

impl Drop for Memory {
    fn drop(&mut self) {
        match self.is_allocated {
            // SAFETY: it was allocated with this layout, and nobody has it any more.
            true => unsafe { dealloc(self.start.as_ptr(), self.layout) },
            false => unmap(self.start, self.layout.size()),
        }
    }
}

#[cfg(all(unix, not(miri)))]
fn map(bytes: usize) -> Option<NonNull<u8>> {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
    let both = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: new pages, wherever the system has room.
    let raw = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, both, MapFlags::PRIVATE) };
    raw.ok().and_then(|raw| NonNull::new(raw.cast()))
}

#[cfg(all(unix, not(miri)))]
fn unmap(start: NonNull<u8>, bytes: usize) {
    // SAFETY: it was mapped with as many bytes, and nobody has it any more.
    let _ = unsafe { rustix::mm::munmap(start.as_ptr().cast(), bytes) };
}

#[cfg(not(all(unix, not(miri))))]
fn map(_: usize) -> Option<NonNull<u8>> {
    None
}

#[cfg(not(all(unix, not(miri))))]
fn unmap(_: NonNull<u8>, _: usize) {}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;

    #[test]
    fn items_come_in_order_and_are_dropped_once() {
        let item = Rc::new(());
        let mut list = OwnPages::with_capacity(3);
        type Items = OwnPages<(u64, Rc<()>)>;
        for (page, bytes) in [(4 << 10, 80 << 10), (16 << 10, 80 << 10), (64 << 10, 128 << 10)] {
            assert_eq!(Items::memory_bytes_on(3, page), 48);
            assert_eq!(Items::memory_bytes_on(5003, page), bytes);
        }
        for round in 0..3 {
            (0..3).for_each(|i| list.push((i + round, item.clone())));
            assert_eq!(
                list.iter().map(|it| it.0).collect::<Vec<_>>(),
                [round, 1 + round, 2 + round]
            );
            assert_eq!(Rc::strong_count(&item), 4);
            list.clear();
            assert_eq!((list.len(), Rc::strong_count(&item)), (0, 1));
        }
        list.push((7, item.clone()));
        list.grow(5000);
        (0..5002).for_each(|i| list.push((i, item.clone())));
        assert_eq!((list.len(), list.capacity(), list[0].0), (5003, 5003, 7));
        list.iter_mut().for_each(|it| it.0 += 1);
        assert_eq!((list[0].0, list[5002].0), (8, 5002));
        drop(list);
        assert_eq!(Rc::strong_count(&item), 1);
    }

    #[test]
    #[should_panic(expected = "there is room")]
    fn a_full_one_takes_no_more() {
        let mut list = OwnPages::with_capacity(1);
        (0..2u8).for_each(|i| list.push(i));
    }
}
