//! Memory in one piece that the system has back as soon as it goes.
//!
//! What is large and comes and goes must not be an allocator's: it keeps the pages of many pieces and gives all of them
//! back with whatever goes last, or keeps as much from then on, which nobody has booked.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ptr::NonNull;

use super::system_page::page_bytes;

/// With less memory the allocator is asked.
const MAPPED_MIN: usize = 64 << 10;
/// No system has smaller pages.
const PAGE_MIN: usize = 4096;

/// The memory, of this layout: pages of its own, or the allocator's if it is small or no pages were to be had.
pub(crate) struct PageMemory {
    start: NonNull<u8>,
    layout: Layout,
    is_mapped: bool,
}

// SAFETY: it owns its memory, which nobody reaches but by its owner.
unsafe impl Send for PageMemory {}
// SAFETY: shared access only tells where it is.
unsafe impl Sync for PageMemory {}

impl PageMemory {
    /// Makes it. What is mapped takes memory as it is written.
    pub fn new(layout: Layout) -> Self {
        if layout.size() == 0 {
            let start = NonNull::new(std::ptr::without_provenance_mut(layout.align()));
            return Self { start: start.expect("not at 0"), layout, is_mapped: false };
        }
        let is_large = layout.size() >= MAPPED_MIN && layout.align() <= PAGE_MIN;
        if let Some(start) = is_large.then(|| mapped::map(layout.size())).flatten() {
            return Self { start, layout, is_mapped: true };
        }
        // SAFETY: the size is not zero.
        let start = NonNull::new(unsafe { alloc(layout) });
        let start = start.unwrap_or_else(|| handle_alloc_error(layout));
        Self { start, layout, is_mapped: false }
    }

    /// Returns the bytes that it takes.
    pub fn memory_bytes(layout: Layout) -> usize {
        Self::memory_bytes_on(layout, page_bytes())
    }

    /// Returns the bytes that it takes on a system with such pages.
    pub fn memory_bytes_on(layout: Layout, page_bytes: usize) -> usize {
        match layout.size() {
            bytes if bytes >= MAPPED_MIN => bytes.next_multiple_of(page_bytes),
            bytes => bytes,
        }
    }

    /// Returns where it begins.
    #[inline]
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Returns whether it has pages of its own.
    #[cfg(test)]
    pub fn is_mapped(&self) -> bool {
        self.is_mapped
    }
}

impl Drop for PageMemory {
    fn drop(&mut self) {
        match self.is_mapped {
            true => mapped::unmap(self.start, self.layout.size()),
            false if self.layout.size() == 0 => {}
            // SAFETY: it came from the allocator with this layout, and nobody has it any more.
            false => unsafe { dealloc(self.start.as_ptr(), self.layout) },
        }
    }
}

#[cfg(all(unix, not(miri)))]
mod mapped {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
    use std::ptr::NonNull;

    #[cfg(target_os = "linux")]
    const FLAGS: MapFlags = MapFlags::PRIVATE.union(MapFlags::NORESERVE);
    #[cfg(not(target_os = "linux"))]
    const FLAGS: MapFlags = MapFlags::PRIVATE;

    /// Memory of so many bytes, which is zero. None: the system refuses.
    pub fn map(bytes: usize) -> Option<NonNull<u8>> {
        let both = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at a place that the system chooses.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, both, FLAGS) }.ok()?;
        NonNull::new(start.cast())
    }

    /// Gives back what was mapped.
    pub fn unmap(start: NonNull<u8>, bytes: usize) {
        // SAFETY: its owner mapped it with this length and is being dropped.
        let _ = unsafe { munmap(start.as_ptr().cast(), bytes) };
    }
}

#[cfg(not(all(unix, not(miri))))]
mod mapped {
    use std::ptr::NonNull;

    pub fn map(_: usize) -> Option<NonNull<u8>> {
        None
    }
    pub fn unmap(_: NonNull<u8>, _: usize) {}
}
