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

/// Puts together what was measured: rates `without` any checkpoint, and those `between` and `during`
/// each of them.
pub(super) fn beside(without: &[Rate], between: &[Rate], during: &[Rate]) -> BesideCheckpoints {
    let by = |clock: fn(&Rate) -> f64| {
        let of = |rates: &[Rate]| Spread::of(rates.iter().map(clock));
        let base = of(without).median;
        let share = |rates: &[Rate]| Spread::of(rates.iter().map(|rate| clock(rate) / base));
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
    fn ratios_are_of_the_median_without_and_of_the_stretch_before() {
        // By processor time all is three times as fast.
        let rates = |all: &[f64]| -> Vec<Rate> {
            all.iter().map(|&wall| Rate { wall, processor: 3.0 * wall }).collect()
        };
        let (without, between, during) =
            (rates(&[90.0, 100.0, 900.0]), rates(&[80.0, 40.0, 50.0]), rates(&[20.0, 30.0, 10.0]));
        let beside = beside(&without, &between, &during);
        let spread = |median, least, most| Spread { median, least, most };
        for (rates, times) in [(beside.wall, 1.0), (beside.processor, 3.0)] {
            assert_eq!(rates.without, spread(100.0 * times, 90.0 * times, 900.0 * times));
            assert_eq!(rates.between, spread(50.0 * times, 40.0 * times, 80.0 * times));
            assert_eq!(rates.during, spread(20.0 * times, 10.0 * times, 30.0 * times));
            assert_eq!(rates.between_of_without, spread(0.5, 0.4, 0.8));
            assert_eq!(rates.during_of_without, spread(0.2, 0.1, 0.3));
            // Of 80, 40 and 50, not of their median.
            assert_eq!(rates.during_of_between, spread(0.25, 0.2, 0.75));
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
