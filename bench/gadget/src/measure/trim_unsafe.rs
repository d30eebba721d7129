//! Gives freed memory back to the system, so that what an engine takes is seen as resident.

/// Without it an engine would use what the generator freed, and seem to take nothing.
pub(super) fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes no pointer, and may be called at any time from any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}
