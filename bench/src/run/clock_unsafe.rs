//! Clocks of processor time, of a thread and of all.

use std::time::Duration;

/// Processor time that this thread has taken. Costs about 0.4 us. On a busy machine it says what
/// wall time cannot.
pub(crate) fn thread_time() -> Duration {
    time_of(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// Processor time that all threads of this process have taken, helpers among them.
pub(crate) fn process_time() -> Duration {
    time_of(libc::CLOCK_PROCESS_CPUTIME_ID)
}

fn time_of(clock: libc::clockid_t) -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: both clocks are there on every Linux, and the pointer is to a timespec of ours.
    let done = unsafe { libc::clock_gettime(clock, &mut time) };
    assert_eq!(done, 0, "no clock of processor time: {}", std::io::Error::last_os_error());
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
