//! What a generated stream is made of, checked before the first event.
//!
//! Defaults are Beam's where Beam has the parameter. A configuration that cannot give a stream
//! (no rate, or a group size that would repeat events) is refused with the reason.

use super::ids;
use super::schedule::{GROUP_STEP, Schedule};
use alluvium::Time;

use crate::{Error, Result};

/// Parameters of a generated stream; equal parameters give equal streams on every machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Chooses one of the possible streams.
    pub seed: u64,
    /// How many auctions are open at a time, about. Auctions stay open in proportion and bids
    /// choose among that many recent ones, so the state of a join over open auctions grows with
    /// it. Default: [`Config::IN_FLIGHT`], Beam's.
    pub in_flight: u64,
    /// Events per second of event time. Default: [`Config::RATE`].
    pub rate: u64,
    /// Event time of the first event. Default: 2015-07-15T00:00:00Z, Beam's.
    pub start: Time,
    /// Events are shuffled within groups of this size; 1 keeps them in order of time.
    pub group: u64,
}

impl Config {
    /// Auctions in flight unless said otherwise.
    pub const IN_FLIGHT: u64 = 100;
    /// Events per second of event time unless said otherwise.
    pub const RATE: u64 = 10_000;
    /// The largest accepted number of auctions in flight and of events in a group.
    pub const LIMIT: u64 = 1 << 32;

    /// The schedule of these parameters, or which of them is wrong and why.
    pub fn schedule(&self) -> Result<Schedule> {
        let refuse = |message: String| Err(Error::Usage(message));
        if self.in_flight == 0 || self.in_flight > Self::LIMIT {
            return refuse(format!("in-flight {} is not in 1..={}", self.in_flight, Self::LIMIT));
        }
        if self.rate == 0 || self.rate > 1_000_000_000 {
            return refuse(format!("rate {} is not in 1..=1000000000 events/s", self.rate));
        }
        if self.group == 0 || self.group > Self::LIMIT {
            return refuse(format!("group size {} is not in 1..={}", self.group, Self::LIMIT));
        }
        if self.group.is_multiple_of(GROUP_STEP) {
            return refuse(format!(
                "group size {} is a multiple of {GROUP_STEP}: such groups repeat events",
                self.group
            ));
        }
        Ok(Schedule::new(self))
    }

    /// Events after which an auction that begins now has closed, on average.
    pub(super) fn events_in_flight(&self) -> u64 {
        self.in_flight * ids::CYCLE / ids::AUCTIONS_PER_CYCLE
    }
}

impl Default for Config {
    fn default() -> Self {
        Config {
            seed: 0,
            in_flight: Self::IN_FLIGHT,
            rate: Self::RATE,
            start: Time::from_ms(1_436_918_400_000),
            group: 1,
        }
    }
}

/// Every `step`th ordinal from `offset` on: one worker's share of a stream.
///
/// The strides (0, n) to (n-1, n) together are exactly the whole stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stride {
    offset: u64,
    step: u64,
}

impl Stride {
    /// The whole stream.
    pub const ALL: Stride = Stride { offset: 0, step: 1 };

    /// The share of worker `index` of `peers`.
    ///
    /// # Panics
    /// If `index` is not below `peers`.
    pub fn of_worker(index: usize, peers: usize) -> Self {
        assert!(index < peers, "worker {index} of {peers}");
        Stride { offset: index as u64, step: peers as u64 }
    }

    /// The share from `offset` on, if there is one with this step.
    pub fn of_parts(offset: u64, step: u64) -> Option<Self> {
        (offset < step).then_some(Stride { offset, step })
    }

    /// The offset and the step.
    pub fn parts(self) -> (u64, u64) {
        (self.offset, self.step)
    }

    /// The first ordinal of this share that is at least `ordinal`.
    pub fn first_from(self, ordinal: u64) -> u64 {
        let behind = (ordinal.max(self.offset) - self.offset).div_ceil(self.step);
        self.offset + behind * self.step
    }

    /// The ordinal after `ordinal` in this share.
    pub fn after(self, ordinal: u64) -> u64 {
        ordinal + self.step
    }

    /// Whether `ordinal` belongs to this share.
    pub fn contains(self, ordinal: u64) -> bool {
        ordinal % self.step == self.offset
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn group_sizes_that_repeat_events_are_refused() {
        for group in [953, 95_300, 0] {
            let error = Config { group, ..Config::default() }.schedule().unwrap_err();
            assert!(error.to_string().contains(&group.to_string()), "{error}");
        }
        assert!(Config { group: 1_000, ..Config::default() }.schedule().is_ok());
    }

    #[test]
    fn impossible_rates_and_counts_are_refused() {
        assert!(Config { rate: 0, ..Config::default() }.schedule().is_err());
        assert!(Config { in_flight: 0, ..Config::default() }.schedule().is_err());
        assert!(Config { in_flight: u64::MAX, ..Config::default() }.schedule().is_err());
    }

    #[test]
    fn strides_partition_the_ordinals() {
        let strides: Vec<_> = (0..3).map(|k| Stride::of_worker(k, 3)).collect();
        for ordinal in 0..100 {
            assert_eq!(strides.iter().filter(|s| s.contains(ordinal)).count(), 1);
            for stride in &strides {
                let first = stride.first_from(ordinal);
                assert!(stride.contains(first) && (ordinal..ordinal + 3).contains(&first));
            }
        }
    }
}
