//! How long entries live, and by what time.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use alluvium_pagestore::{Error, ErrorKind, Result, Time, count_nanos};

/// How long the entries of a state live, by what time, and what makes their life begin anew.
///
/// An entry that was touched at `t` is there while the time of the state is before `t + ttl`, and is
/// not there any more from then on. The time of the state never goes back. Every write touches an
/// entry; so does every read, if [`refreshed_by_reads`](Ttl::refreshed_by_reads) says so.
///
/// It may be another one each time the state is opened: what is stored is when an entry was touched,
/// so that the new one holds for all entries that are not over already; those stay over. Only event
/// time does not become processing time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ttl {
    duration: Duration,
    pub(super) by_clock: bool,
    pub(super) by_reads: bool,
}

impl Ttl {
    /// So long in event time: of what [`advance`](crate::ExpiringMap::advance) is told, such as the
    /// watermark. Results are then a function of the input.
    pub fn event_time(duration: Duration) -> Self {
        Self { duration, by_clock: false, by_reads: false }
    }

    /// So long in processing time: of the store's [clock](crate::StoreBuilder::clock).
    pub fn processing_time(duration: Duration) -> Self {
        Self { duration, by_clock: true, by_reads: false }
    }

    /// Reads touch an entry too. A read is then a write: it moves what it reads to where it can be
    /// changed, and needs the room for that.
    #[must_use]
    pub fn refreshed_by_reads(mut self) -> Self {
        self.by_reads = true;
        self
    }

    /// How long.
    pub fn duration(&self) -> Duration {
        self.duration
    }

    /// How long in nanoseconds.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] for 0, and for 292 years or more.
    pub(crate) fn nanos(&self) -> Result<i64> {
        let what = match count_nanos(self.duration) {
            Some(0) => "0 ns; 1 is the least".to_string(),
            Some(nanos) => return Ok(nanos),
            None => format!("{:?}; 292 years or more are too long", self.duration),
        };
        Err(Error::new(ErrorKind::Config, format!("a time to live of {what}")))
    }

    /// Whether the clock tells the time.
    pub(crate) fn by_clock(&self) -> bool {
        self.by_clock
    }

    /// By what time, as checkpoints and errors call it.
    pub(crate) fn kind(&self) -> &'static str {
        if self.by_clock { "processing time" } else { "event time" }
    }
}

/// Tells processing time. May go backwards: a state keeps the greatest time that it has seen. One that
/// [jumps ahead](crate::StoreConfig::time_jump_max_ms) by years is not believed.
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// The time now.
    fn now(&self) -> Time;
}

/// The clock of the machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct WallClock;

impl Clock for WallClock {
    fn now(&self) -> Time {
        match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(since) => Time(i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)),
            // Before 1970: a clock that was never set.
            Err(_) => Time(0),
        }
    }
}
