//! How long calls wait for a device that does nothing.
//!
//! A device that works, however slowly, is waited for. One that moves nothing and ends nothing for as
//! long as the configuration says is given up: the call fails and says so.

use std::time::{Duration, Instant};

use alluvium_pagestore::io::{Device, IoStats};
use alluvium_pagestore::{Error, ErrorKind};

/// A wait for a device.
#[derive(Debug)]
pub(crate) struct Patience {
    most: Duration,
    since: Instant,
    seen: IoStats,
}

impl Patience {
    /// A wait that begins now.
    pub(crate) fn new(most: Duration, device: &dyn Device) -> Self {
        Self { most, since: Instant::now(), seen: device.stats() }
    }

    /// Whether the device has done nothing for too long.
    pub(crate) fn is_over(&mut self, device: &dyn Device) -> bool {
        let now = device.stats();
        if now != self.seen {
            (self.seen, self.since) = (now, Instant::now());
        }
        self.since.elapsed() >= self.most
    }

    /// The error of what was waited for.
    pub(crate) fn error(&self, what: &str) -> Error {
        let message = format!("storage has done nothing for {:?}: {what}", self.most);
        Error::new(ErrorKind::Backpressure, message)
    }
}
