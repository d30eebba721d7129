//! The stream's rates without checkpoints, between them and while one is taken.
//!
//! Each is measured twice: by the clock, and by the processor time of the thread that updates. The
//! second says what the work of that thread costs, also on a machine that has other work; the first
//! also has what it waited for, and its share of a processor that helpers take.

use std::time::{Duration, Instant};

use crate::report::{BesideCheckpoints, Spread, StreamRates};
use crate::run::clock_unsafe::thread_time;

/// Updates per second of one stretch of the stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rate {
    pub(super) wall: f64,
    pub(super) processor: f64,
}

/// When a stretch began.
#[derive(Clone, Copy)]
pub(super) struct Begin {
    wall: Instant,
    processor: Duration,
}

impl Begin {
    pub(super) fn now() -> Self {
        Self { wall: Instant::now(), processor: thread_time() }
    }

    /// The rate of so many updates from then to now; and the time that they took, by the clock.
    pub(super) fn rate(self, updates: u64) -> (Rate, Duration) {
        let (wall, processor) = (self.wall.elapsed(), thread_time() - self.processor);
        let rate = |took: Duration| updates as f64 / took.as_secs_f64();
        (Rate { wall: rate(wall), processor: rate(processor) }, wall)
    }
}

/// Puts together what was measured: rates `between` checkpoints and `during` each of them, and `without` any, just
/// before and just after each.
pub(super) fn beside(without: &[Rate], between: &[Rate], during: &[Rate]) -> BesideCheckpoints {
    let by = |clock: fn(&Rate) -> f64| {
        let of = |rates: &[Rate]| Spread::of(rates.iter().map(clock));
        let bases = without.windows(2).map(|around| (clock(&around[0]) + clock(&around[1])) / 2.0);
        let bases: Vec<f64> = bases.collect();
        let share = |rates: &[Rate]| {
            Spread::of(rates.iter().zip(&bases).map(|(rate, base)| clock(rate) / base))
        };
        let pairs = during.iter().zip(between);
        StreamRates {
            without: of(without),
            between: of(between),
            during: of(during),
            between_of_without: share(between),
            during_of_without: share(during),
            during_of_between: Spread::of(pairs.map(|(during, rate)| clock(during) / clock(rate))),
        }
    };
    BesideCheckpoints { wall: by(|rate| rate.wall), processor: by(|rate| rate.processor) }
}

/// Prints them as rows of a table of medians and spread.
pub(super) fn print(beside: &BesideCheckpoints) {
    for (clock, rates) in [("by the clock", &beside.wall), ("of processor time", &beside.processor)]
    {
        let per_s = format!("K/s {clock}");
        row(&format!("updates without checkpoints, {per_s}"), 1e-3, rates.without);
        row(&format!("updates between checkpoints, {per_s}"), 1e-3, rates.between);
        row(&format!("updates while one is taken, {per_s}"), 1e-3, rates.during);
        row(&format!("between, % of without, {clock}"), 100.0, rates.between_of_without);
        row(&format!("while one is taken, % of without, {clock}"), 100.0, rates.during_of_without);
        row(&format!("while one is taken, % of between, {clock}"), 100.0, rates.during_of_between);
    }
}

/// Prints a row, times `unit`.
pub(super) fn row(what: &str, unit: f64, spread: Spread) {
    let Spread { median, least, most } = spread;
    println!("| {what} | {:.1} | {:.1} | {:.1} |", median * unit, least * unit, most * unit);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_of_the_stretches_around_a_checkpoint() {
        // By processor time all is three times as fast.
        let rates = |all: &[f64]| -> Vec<Rate> {
            all.iter().map(|&wall| Rate { wall, processor: 3.0 * wall }).collect()
        };
        let without = rates(&[90.0, 110.0, 50.0, 350.0]);
        let (between, during) = (rates(&[80.0, 40.0, 50.0]), rates(&[20.0, 40.0, 10.0]));
        let beside = beside(&without, &between, &during);
        let spread = |median, least, most| Spread { median, least, most };
        for (rates, times) in [(beside.wall, 1.0), (beside.processor, 3.0)] {
            assert_eq!(rates.without, spread(100.0 * times, 50.0 * times, 350.0 * times));
            assert_eq!(rates.between, spread(50.0 * times, 40.0 * times, 80.0 * times));
            assert_eq!(rates.during, spread(20.0 * times, 10.0 * times, 40.0 * times));
            // Of 100, 80 and 200.
            assert_eq!(rates.between_of_without, spread(0.5, 0.25, 0.8));
            assert_eq!(rates.during_of_without, spread(0.2, 0.05, 0.5));
            // Of 80, 40 and 50.
            assert_eq!(rates.during_of_between, spread(0.25, 0.2, 1.0));
        }
    }

    #[test]
    fn a_thread_that_sleeps_takes_no_processor_time() {
        let begin = Begin::now();
        std::thread::sleep(Duration::from_millis(20));
        let (rate, took) = begin.rate(1_000);
        assert!(took >= Duration::from_millis(20));
        assert!(rate.wall <= 50_000.0 && rate.processor > rate.wall, "{rate:?}");
    }
}
