//! A global allocator that counts: what the process holds, in rounded bytes, and what one thread
//! asks for.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicIsize, Ordering};
use std::sync::{Mutex, MutexGuard};

use alluvium::types::rounded;

static HELD: AtomicIsize = AtomicIsize::new(0);
static MOST: AtomicIsize = AtomicIsize::new(0);

thread_local! {
    static ASKED: Cell<u64> = const { Cell::new(0) };
    static HELD_HERE: Cell<isize> = const { Cell::new(0) };
}

/// What is held is counted for the whole process: one test at a time.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(|broken| broken.into_inner())
}

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

fn count(layout: Layout, sign: isize) {
    let bytes = sign * rounded(layout.size()) as isize;
    MOST.fetch_max(HELD.fetch_add(bytes, Ordering::SeqCst) + bytes, Ordering::Relaxed);
    // A thread that is ending has no counters any more.
    let _ = HELD_HERE.try_with(|held| held.set(held.get() + bytes));
    if sign > 0 {
        let _ = ASKED.try_with(|asked| asked.set(asked.get() + 1));
    }
}

// SAFETY: every call goes to `System` unchanged; `realloc` keeps its default, which comes here.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout, 1);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    // SAFETY: asks of its caller what `System` does: a layout that is not empty.
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout, 1);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    // SAFETY: asks of its caller what `System` does: a pointer that came from here for this layout.
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(layout, -1);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// Bytes that this thread has asked for and not given back. The test harness asks for some of its own meanwhile, on
/// another thread: it tells of tests that take long.
pub fn held_here() -> isize {
    HELD_HERE.with(Cell::get)
}

/// Rounded bytes that the process holds now.
pub fn held() -> isize {
    HELD.load(Ordering::SeqCst)
}

/// The most that the process has held while `call` ran.
pub fn most_held<R>(call: impl FnOnce() -> R) -> (isize, R) {
    MOST.store(held(), Ordering::SeqCst);
    let result = call();
    (MOST.load(Ordering::SeqCst), result)
}

/// Allocations that this thread has asked for so far.
pub fn asked() -> u64 {
    ASKED.get()
}
