//! Signals that ask the suite to stop: they set a flag, so that directories are removed and the
//! report is written before it ends. The standard library has no safe way to handle one.

use std::sync::atomic::{AtomicBool, Ordering};

static STOPPED: AtomicBool = AtomicBool::new(false);

extern "C" fn stop(_: libc::c_int) {
    STOPPED.store(true, Ordering::Relaxed);
}

/// Handles interrupt, termination and hang-up from now on.
pub(crate) fn watch() {
    let handler: extern "C" fn(libc::c_int) = stop;
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the handler only stores to an atomic, which is allowed in a handler.
        unsafe {
            libc::signal(signal, handler as libc::sighandler_t);
        }
    }
}

/// Whether such a signal came.
pub(crate) fn has_stopped() -> bool {
    STOPPED.load(Ordering::Relaxed)
}
