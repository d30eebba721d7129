//! How long entries live, and by what time.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use alluvium_pagestore::{Error, ErrorKind, Result, Time, count_nanos};

/// How long entries live, in which time, and what renews them.
///
/// An entry touched at `t` expires when the state's time reaches `t + ttl`. That time never goes
/// back. Every write touches an entry. Reads do too with
/// [`refreshed_by_reads`](Ttl::refreshed_by_reads).
///
/// The duration may change each time the state is opened. The state stores when an entry was
/// touched, so the new duration applies to all entries that have not expired; expired ones stay
/// expired. A state cannot change between event time and processing time.
///
/// ```
/// use std::time::Duration;
/// use alluvium::{Store, Ttl};
///
/// let store = Store::in_memory().open()?;
/// let ttl = Ttl::processing_time(Duration::from_secs(3600)).refreshed_by_reads();
/// let mut sessions = store.expiring_map::<u64, String>("sessions").open(ttl)?;
/// sessions.put(7, "ann".into())?;
/// assert_eq!(sessions.get(&7)?.as_deref().map(String::as_str), Some("ann"));
/// # Ok::<(), alluvium::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ttl {
    duration: Duration,
    pub(super) by_clock: bool,
    pub(super) by_reads: bool,
}

impl Ttl {
    /// Expires in event time: the time that [`advance`](crate::ExpiringMap::advance) gets, such as
    /// the watermark. So results depend on the input alone.
    pub fn event_time(duration: Duration) -> Self {
        Self { duration, by_clock: false, by_reads: false }
    }

    /// Expires in processing time: by the store's [clock](crate::StoreBuilder::clock).
    pub fn processing_time(duration: Duration) -> Self {
        Self { duration, by_clock: true, by_reads: false }
    }

    /// Lets reads touch entries too. A read is then a write: it moves the entry to where it can
    /// change, and needs room for that.
    #[must_use]
    pub fn refreshed_by_reads(mut self) -> Self {
        self.by_reads = true;
        self
    }

    /// Returns the duration.
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

/// Source of processing time. It may go backwards: a state keeps the greatest time that it has
/// seen. A state refuses a [jump ahead](crate::StoreConfig::time_jump_max_ms) of years.
///
/// ```
/// use std::sync::Arc;
/// use alluvium::{Store, Time};
/// use alluvium::time::Clock;
///
/// /// A clock for tests.
/// #[derive(Debug)]
/// struct Noon;
///
/// impl Clock for Noon {
///     fn now(&self) -> Time {
///         Time::from_ms(43_200_000)
///     }
/// }
/// let store = Store::in_memory().clock(Arc::new(Noon)).open()?;
/// # drop(store);
/// # Ok::<(), alluvium::Error>(())
/// ```
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// Returns the time now.
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
