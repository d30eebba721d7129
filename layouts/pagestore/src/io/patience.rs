//! Limits how long calls wait for a device that makes no progress.
//!
//! Calls wait for a device that makes progress, however slowly. If a device moves no byte and ends
//! no request for the configured time, the call fails with an error that says so.

use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::{Device, IoStats};
use crate::{Error, ErrorKind};

/// Longest wait for requests in progress when something is closed.
pub const CLOSING_MAX: Duration = Duration::from_secs(20);

/// Between two looks whether a thread has ended.
const MOMENT: Duration = Duration::from_micros(20);

/// Joins threads that are about to end, unless that takes longer than `most`: they go on alone
/// then. Says whether all have ended.
pub(super) fn join_within(threads: impl Iterator<Item = JoinHandle<()>>, most: Duration) -> bool {
    let since = Instant::now();
    let mut all = true;
    for thread in threads {
        while !thread.is_finished() && since.elapsed() < most {
            std::thread::sleep(MOMENT);
        }
        match thread.is_finished() {
            true => drop(thread.join()),
            false => all = false,
        }
    }
    all
}

/// A wait for a device, with a time limit.
#[derive(Debug)]
pub struct Patience {
    most: Duration,
    since: Instant,
    seen: IoStats,
}

impl Patience {
    /// Starts a wait.
    pub fn new(most: Duration, device: &dyn Device) -> Self {
        Self { most, since: Instant::now(), seen: device.stats() }
    }

    /// Returns whether the device has made no progress for too long.
    pub fn is_over(&mut self, device: &dyn Device) -> bool {
        let now = device.stats();
        if now != self.seen {
            (self.seen, self.since) = (now, Instant::now());
        }
        self.since.elapsed() >= self.most
    }

    /// Makes the error of a wait for `what` that timed out.
    pub fn error(&self, what: &str) -> Error {
        let message = format!("storage did not respond for {:?}: {what}", self.most);
        Error::new(ErrorKind::Backpressure, message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_does_not_end_is_left_alone() {
        let (release, held) = std::sync::mpsc::channel::<()>();
        let stuck = std::thread::spawn(move || {
            let _ = held.recv();
        });
        let ends = || std::thread::spawn(|| ());
        let both = [stuck, ends()].into_iter();
        assert!(!join_within(both, Duration::from_millis(20)));
        drop(release);
        assert!(join_within([ends(), ends()].into_iter(), CLOSING_MAX));
    }
}
