//! Event time.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A point of event time: nanoseconds since 1970-01-01T00:00:00Z.
///
/// Arithmetic saturates at [`Time::MIN`] and [`Time::MAX`]: windows near the ends of time are
/// clipped, never wrapped.
///
/// ```
/// use alluvium_pagestore::{SECOND, Time};
///
/// let at = Time::from_ms(1_500);
/// assert_eq!(at.plus(2 * SECOND), Time(3_500_000_000));
/// assert_eq!(Time::MAX.plus(1), Time::MAX);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[derive(rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
pub struct Time(pub i64);

impl Time {
    /// First representable point.
    pub const MIN: Time = Time(i64::MIN);
    /// Last representable point. As a watermark it means that nothing is still to come.
    pub const MAX: Time = Time(i64::MAX);

    /// Makes the time `ms` milliseconds after the epoch.
    pub const fn from_ms(ms: i64) -> Time {
        Time(ms.saturating_mul(1_000_000))
    }

    /// Returns whole milliseconds since the epoch, rounded towards the past.
    pub const fn as_ms(self) -> i64 {
        self.0.div_euclid(1_000_000)
    }

    /// Adds `nanos`, saturating.
    pub const fn plus(self, nanos: i64) -> Time {
        Time(self.0.saturating_add(nanos))
    }
}

/// Converts nanoseconds, the unit of [`Time`], to a [`Duration`].
///
/// # Panics
/// If `nanos` is negative.
pub const fn nanos(nanos: i64) -> Duration {
    assert!(nanos >= 0, "a stretch of time is not negative");
    Duration::from_nanos(nanos as u64)
}

/// Converts a duration to nanoseconds. Returns `None` for 292 years or more, which [`Time`] cannot
/// count.
pub const fn count_nanos(stretch: Duration) -> Option<i64> {
    let nanos = stretch.as_nanos();
    if nanos > i64::MAX as u128 { None } else { Some(nanos as i64) }
}

/// One millisecond, in the unit of [`Time`].
pub const MILLISECOND: i64 = 1_000_000;
/// One second, in the unit of [`Time`].
pub const SECOND: i64 = 1_000_000_000;
