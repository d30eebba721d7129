//! Timely timestamps that are points of event time.

use alluvium::Time;
use timely::order::TotalOrder;
use timely::progress::Timestamp;
use timely::progress::frontier::MutableAntichain;

/// A Timely timestamp that is a point of event time, in nanoseconds since 1970.
///
/// Prefer `i64`: [`Time`] holds one, and its minimum promises nothing. `u64` has no times before
/// 1970; they become 0.
pub trait EventTime: Timestamp + TotalOrder {
    /// Returns the timestamp of `time`, or the closest one.
    fn from_time(time: Time) -> Self;

    /// Returns the point of event time.
    fn time(&self) -> Time;
}

impl EventTime for i64 {
    fn from_time(time: Time) -> Self {
        time.0
    }

    fn time(&self) -> Time {
        Time(*self)
    }
}

impl EventTime for u64 {
    fn from_time(time: Time) -> Self {
        time.0.try_into().unwrap_or(0)
    }

    fn time(&self) -> Time {
        Time(i64::try_from(*self).unwrap_or(i64::MAX))
    }
}

/// The watermark of an input: no event before it is still to come.
pub(crate) fn watermark<T: EventTime>(frontier: &MutableAntichain<T>) -> Time {
    // In a total order the frontier has at most one element.
    frontier.frontier().first().map_or(Time::MAX, T::time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_survive_as_timestamps_or_are_clipped() {
        for time in [Time::MIN, Time(-1), Time(0), Time::MAX] {
            assert_eq!(i64::from_time(time).time(), time);
            assert_eq!(u64::from_time(time).time(), time.max(Time(0)));
        }
        assert_eq!(u64::MAX.time(), Time::MAX);
    }
}
