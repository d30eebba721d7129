//! A global allocator that counts what the process holds, and the most that it held.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicIsize, Ordering};

static HELD: AtomicIsize = AtomicIsize::new(0);
static MOST: AtomicIsize = AtomicIsize::new(0);

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

fn count(layout: Layout, sign: isize) {
    let bytes = sign * layout.size() as isize;
    let held = HELD.fetch_add(bytes, Ordering::Relaxed) + bytes;
    MOST.fetch_max(held, Ordering::Relaxed);
}

// SAFETY: every call goes to `System` unchanged; `realloc` keeps its default, which comes here.
unsafe impl GlobalAlloc for Counting {
    // SAFETY: asks of its caller what `System` does: a layout that is not empty.
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout, 1);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    // SAFETY: asks of its caller what `System` does: a pointer that came from here for this layout.
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(layout, -1);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// What `work` gives, and the most bytes that were held in it beyond what was held before: the least of three times, as
/// a thread of the device may free what it has done with a little late.
pub fn most_held<T>(mut work: impl FnMut() -> T) -> (T, u64) {
    let mut once = || {
        let before = HELD.load(Ordering::Relaxed);
        MOST.store(before, Ordering::Relaxed);
        let given = work();
        (given, (MOST.load(Ordering::Relaxed) - before).max(0) as u64)
    };
    let (_, first) = once();
    let (_, second) = once();
    let (given, third) = once();
    (given, first.min(second).min(third))
}
