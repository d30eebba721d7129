//! Processing time: what the timestamps of a run are for a query that asks when a bid arrived, not
//! when it was made.
//!
//! A clock ticks ten times a second, so that a batch of events has one timestamp; windows are whole
//! numbers of ticks.

use std::fmt;
use std::time::SystemTime;

use alluvium::{MILLISECOND, Time};
use clap::ValueEnum;

/// How far apart two timestamps are.
const TICK: i64 = 100 * MILLISECOND;

/// Which clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ClockKind {
    /// The wall clock, when the event comes to hand
    Wall,
    /// An event's position in the stream, at the rate of the stream: the same in every run
    Position,
}

impl fmt::Display for ClockKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ClockKind::Wall => "wall",
            ClockKind::Position => "position",
        })
    }
}

/// A clock of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    kind: ClockKind,
    /// Events per second.
    rate: u64,
    last: Time,
}

impl Clock {
    pub(super) fn new(kind: ClockKind, rate: u64) -> Self {
        Clock { kind, rate: rate.max(1), last: Time::MIN }
    }

    /// When the event at this place of the stream arrives: never before an earlier one.
    pub(super) fn at(&mut self, ordinal: u64) -> Time {
        let nanos = match self.kind {
            ClockKind::Wall => {
                let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
                since.map_or(0, |since| since.as_nanos())
            }
            ClockKind::Position => u128::from(ordinal) * 1_000_000_000 / u128::from(self.rate),
        };
        let nanos = i64::try_from(nanos).unwrap_or(i64::MAX - TICK);
        self.last = self.last.max(Time(nanos / TICK * TICK));
        self.last
    }

    /// Whether it lets what is at hand arrive later, at this time or after it: the wall clock does,
    /// positions do not.
    pub(super) fn puts_off(&mut self, until: Time) -> bool {
        let does = self.kind == ClockKind::Wall;
        if does {
            self.last = self.last.max(until);
        }
        does
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_times_at_the_rate_of_the_stream() {
        let mut clock = Clock::new(ClockKind::Position, 1_000);
        let times = [0, 99, 100, 150, 1_234].map(|ordinal| clock.at(ordinal).as_ms());
        assert_eq!(times, [0, 0, 100, 100, 1_200]);
        assert_eq!(clock.at(7).as_ms(), 1_200, "it does not go back");
        assert!(!clock.puts_off(Time(9_000 * MILLISECOND)));
        assert_eq!(clock.at(1_300).as_ms(), 1_300);
    }

    #[test]
    fn the_wall_clock_is_of_this_century_and_does_not_go_back() {
        let mut clock = Clock::new(ClockKind::Wall, 1);
        let (first, second) = (clock.at(0), clock.at(1));
        assert!(first.as_ms() > 1_700_000_000_000 && first <= second);
        let later = Time(second.0 + 3_600_000 * MILLISECOND + 1);
        assert!(clock.puts_off(later));
        assert_eq!(clock.at(2), later);
    }
}
