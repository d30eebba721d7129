//! When events happen: event time and watermark as functions of the ordinal.
//!
//! Ordinals count arrivals. With a group size g above 1, the events of each run of g arrive in a
//! shuffled order that visits every one of them once, which needs g to share no factor with the
//! shuffle's step ([`Config::schedule`] checks it). The watermark after ordinal n is the time of
//! the first event of n's group: no later ordinal has an earlier time.
//!
//! Rows carry whole milliseconds, as in Beam. So a stream written as CSV and read back is the
//! same stream, and `bid.time <= auction.expires` has one answer. The due time of an ordinal,
//! which an open-loop driver needs, keeps its nanoseconds.

use super::config::Config;
use alluvium::Time;

/// Beam's step through a group.
pub(super) const GROUP_STEP: u64 = 953;

/// Times of a stream's events. Made by [`Config::schedule`].
#[derive(Clone, Debug)]
pub struct Schedule {
    start: Time,
    rate: u64,
    group: u64,
}

impl Schedule {
    pub(super) fn new(config: &Config) -> Self {
        Schedule { start: config.start, rate: config.rate, group: config.group }
    }

    /// The number of the event that arrives as `ordinal`.
    pub fn event_number(&self, ordinal: u64) -> u64 {
        if self.group == 1 {
            return ordinal;
        }
        let within = ordinal % self.group;
        ordinal - within + within * GROUP_STEP % self.group
    }

    /// Event time of event `number`, in whole milliseconds.
    pub fn time_of(&self, number: u64) -> Time {
        let ms = number / self.rate * 1_000 + number % self.rate * 1_000 / self.rate;
        Time(self.start.0.saturating_add_unsigned(ms.saturating_mul(1_000_000)))
    }

    /// Nanoseconds after the start at which `ordinal` is due when the stream runs in real time.
    pub fn due_ns(&self, ordinal: u64) -> u64 {
        ordinal / self.rate * 1_000_000_000 + ordinal % self.rate * 1_000_000_000 / self.rate
    }

    /// The watermark that holds for `ordinal` and all later ones: none has an earlier time.
    pub fn watermark(&self, ordinal: u64) -> Time {
        self.time_of(ordinal - ordinal % self.group)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_arrives_completely_and_never_behind_the_watermark() {
        let group = 700;
        let schedule = Config { group, rate: 1_000, ..Config::default() }.schedule().unwrap();
        let mut numbers: Vec<_> = (0..7 * group).map(|n| schedule.event_number(n)).collect();
        assert_ne!(numbers[1], 1);
        for n in 0..6 * group {
            let watermark = schedule.watermark(n);
            let later = &numbers[n as usize..];
            assert!(later.iter().all(|&k| schedule.time_of(k) >= watermark));
        }
        numbers.sort_unstable();
        assert!(numbers.into_iter().eq(0..7 * group));
    }

    #[test]
    fn times_do_not_drift() {
        let schedule = Config { rate: 3, ..Config::default() }.schedule().unwrap();
        let start = Config::default().start.as_ms();
        let ms = |n| schedule.time_of(n).as_ms() - start;
        assert_eq!([ms(0), ms(1), ms(2), ms(3)], [0, 333, 666, 1_000]);
        assert_eq!(ms(3_000_000_001), 1_000_000_000_333);
        assert_eq!(schedule.due_ns(4), 1_333_333_333);
    }
}
