//! A clock that keeps apart from what is timed.

use quanta::Clock;

/// The clock, read when every load before is done and before anything after begins. Reading the
/// time-stamp counter waits for nothing: without fences the time of an access would lack the cache
/// misses that it waits for.
#[inline(always)]
pub fn fenced(clock: &Clock) -> u64 {
    fence();
    let now = clock.raw();
    fence();
    now
}

#[inline(always)]
fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE2, which this needs, is part of every x86-64 processor.
    unsafe {
        std::arch::x86_64::_mm_lfence();
    }
    #[cfg(not(target_arch = "x86_64"))]
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
}
