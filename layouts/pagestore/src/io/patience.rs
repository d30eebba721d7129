//! How long calls wait for a device that does nothing.
//!
//! A device that works, however slowly, is waited for. One that moves nothing and ends nothing for as
//! long as the configuration says is given up: the call fails and says so. What counts is the time in which
//! somebody looks: a process, or machine, that is stopped for a while and goes on has not waited for the device.

use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::{Device, IoStats};
use crate::{Error, ErrorKind};

/// How long who closes something waits for what a device has begun, at most.
pub const CLOSING_MAX: Duration = Duration::from_secs(20);

/// Between two looks whether a thread has ended.
const MOMENT: Duration = Duration::from_micros(20);

/// Joins threads that are about to end, unless that takes longer than `most`: they go on alone then. Says
/// whether all have ended.
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

/// A wait for a device.
#[derive(Debug)]
pub struct Patience {
    most: Duration,
    /// Since the device has done something.
    waited: Duration,
    looked: Instant,
    seen: IoStats,
}

/// Looks that it takes at least to find that a device does nothing.
const LOOKS_MIN: u32 = 4;

impl Patience {
    /// A wait that begins now.
    pub fn new(most: Duration, device: &dyn Device) -> Self {
        Self { most, waited: Duration::ZERO, looked: Instant::now(), seen: device.stats() }
    }

    /// Whether the device has done nothing for too long.
    pub fn is_over(&mut self, device: &dyn Device) -> bool {
        let (now, stats) = (Instant::now(), device.stats());
        let passed = now.duration_since(self.looked).min(self.most / LOOKS_MIN);
        self.waited = if stats == self.seen { self.waited + passed } else { Duration::ZERO };
        (self.looked, self.seen) = (now, stats);
        self.waited >= self.most / LOOKS_MIN * LOOKS_MIN
    }

    /// The error of what was waited for.
    pub fn error(&self, what: &str) -> Error {
        let message = format!("storage has done nothing for {:?}: {what}", self.most);
        Error::new(ErrorKind::Backpressure, message)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Faults, Simulated};
    use super::*;

    /// Checkpoints failed on a machine whose processes were stopped for a minute, now and then.
    #[test]
    fn who_was_stopped_has_not_waited() {
        let device = Simulated::new(1, Faults::none());
        let most = Duration::from_millis(4);
        let mut patience = Patience::new(most, &device);
        for _ in 1..LOOKS_MIN {
            std::thread::sleep(2 * most);
            assert!(!patience.is_over(&device));
        }
        std::thread::sleep(2 * most);
        assert!(patience.is_over(&device));
        // It has done something.
        device.create("a").unwrap();
        assert!(!patience.is_over(&device));
    }

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
