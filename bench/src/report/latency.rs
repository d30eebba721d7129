//! Latencies: a histogram to three digits, and the machine's own noise to read it beside.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

/// The largest latency that is told apart: one hour. Longer ones count as that.
const MAX_NS: u64 = 3_600_000_000_000;

/// Latencies in nanoseconds, kept to three significant digits in about 200 KiB.
#[derive(Clone, Debug)]
pub struct Latencies {
    histogram: Histogram<u64>,
}

/// The figures reported of a set of latencies, in nanoseconds; zero if there were none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Percentiles {
    /// Half are at most this.
    pub p50: u64,
    /// 99 % are at most this.
    pub p99: u64,
    /// 99.9 % are at most this.
    pub p99_9: u64,
    /// 99.99 % are at most this.
    pub p99_99: u64,
    /// All are at most this.
    pub max: u64,
}

impl Latencies {
    /// No latencies.
    ///
    /// # Panics
    /// Never: the bounds are constants that the histogram accepts (tested).
    pub fn new() -> Self {
        let histogram = Histogram::new_with_bounds(1, MAX_NS, 3);
        Latencies { histogram: histogram.expect("constant bounds are valid") }
    }

    /// Adds one latency. About 5 ns, no allocation.
    pub fn record(&mut self, ns: u64) {
        self.histogram.saturating_record(ns);
    }

    /// Adds the same latency for each of `count` operations, such as those of a batch.
    pub fn record_n(&mut self, ns: u64, count: u64) {
        self.histogram.saturating_record_n(ns, count);
    }

    /// Adds all latencies of `other`.
    pub fn merge(&mut self, other: &Latencies) {
        self.histogram += &other.histogram;
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// The figures for a report.
    pub fn percentiles(&self) -> Percentiles {
        let at = |quantile| self.histogram.value_at_quantile(quantile);
        Percentiles {
            p50: at(0.5),
            p99: at(0.99),
            p99_9: at(0.999),
            p99_99: at(0.9999),
            max: self.histogram.max(),
        }
    }

    /// Pairs of a latency and the share of all that are at least as long, ascending: from 1 at
    /// the shortest to 1/count at the longest.
    pub fn ccdf(&self) -> Vec<(u64, f64)> {
        let total = self.histogram.len() as f64;
        let mut below = 0;
        let recorded = self.histogram.iter_recorded();
        recorded
            .map(|step| {
                let share = (self.histogram.len() - below) as f64 / total;
                below += step.count_since_last_iteration();
                (step.value_iterated_to().min(self.histogram.max()), share)
            })
            .collect()
    }

    /// [`ccdf`](Self::ccdf) with a point for each visible step of a plot with two logarithmic axes, and the
    /// last one.
    pub fn curve(&self) -> Vec<(u64, f64)> {
        let mut all = self.ccdf();
        let last = all.pop();
        let mut points: Vec<(u64, f64)> = Vec::new();
        for (ns, share) in all {
            let is_near = points.last().is_some_and(|&(before, more)| {
                (ns as f64) < before as f64 * 1.1 && more < share * 1.1
            });
            if !is_near {
                points.push((ns, share));
            }
        }
        points.extend(last);
        points
    }
}

impl Default for Latencies {
    fn default() -> Self {
        Self::new()
    }
}

/// Gaps that a thread with nothing to do sees between two looks at the clock, for `duration`.
///
/// Whatever exceeds a clock reading in them is the machine: interrupts, other processes, the
/// hypervisor. A tail of a measurement below this floor says nothing about what was measured.
pub fn noise_floor(duration: Duration) -> Percentiles {
    let clock = quanta::Clock::new();
    let start = clock.raw();
    let (mut gaps, mut before) = (Latencies::new(), start);
    while clock.delta(start, before) < duration {
        let now = clock.raw();
        gaps.record(clock.delta_as_nanos(before, now));
        before = now;
    }
    gaps.percentiles()
}

/// The least, the median and the most.
///
/// # Panics
/// If there are no values.
pub fn spread(values: impl Iterator<Item = f64>) -> (f64, f64, f64) {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    let median = (values[(values.len() - 1) / 2] + values[values.len() / 2]) / 2.0;
    (values[0], median, values[values.len() - 1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_right_to_three_digits() {
        let mut latencies = Latencies::new();
        (1..=100_000u64).for_each(|ns| latencies.record(ns));
        let Percentiles { p50, p99, p99_9, p99_99, max } = latencies.percentiles();
        for (found, expected) in
            [(p50, 50_000), (p99, 99_000), (p99_9, 99_900), (p99_99, 99_990), (max, 100_000)]
        {
            assert!(found.abs_diff(expected) <= expected / 1_000, "{found} for {expected}");
        }
    }

    #[test]
    fn latencies_beyond_the_bounds_are_kept_at_them() {
        let mut latencies = Latencies::new();
        latencies.record(0);
        latencies.record_n(u64::MAX, 2);
        let mut all = Latencies::new();
        all.merge(&latencies);
        assert_eq!(all.count(), 3);
        assert!(all.percentiles().max >= MAX_NS);
        assert_eq!(Latencies::new().percentiles(), Percentiles::default());
    }

    #[test]
    fn the_ccdf_falls_from_one_to_the_last_value() {
        let mut latencies = Latencies::new();
        [10, 10, 20, 40].into_iter().for_each(|ns| latencies.record(ns));
        assert_eq!(latencies.ccdf(), [(10, 1.0), (20, 0.5), (40, 0.25)]);
    }

    #[test]
    fn a_curve_has_few_points_and_both_ends() {
        let mut latencies = Latencies::new();
        (1..=100_000u64).for_each(|ns| latencies.record(ns));
        let curve = latencies.curve();
        assert!((50..500).contains(&curve.len()), "{}", curve.len());
        assert_eq!(curve[0], (1, 1.0));
        // To three digits.
        assert!(curve[curve.len() - 1].0.abs_diff(100_000) < 100, "{:?}", curve.last());
        assert!(curve.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 > pair[1].1));
        assert!(Latencies::new().curve().is_empty());
    }

    #[test]
    fn the_median_of_an_even_number_is_between_the_middle_two() {
        assert_eq!(spread([4.0, 1.0, 3.0].into_iter()), (1.0, 3.0, 4.0));
        assert_eq!(spread([4.0, 1.0, 3.0, 2.0].into_iter()), (1.0, 2.5, 4.0));
    }

    #[test]
    fn an_idle_machine_has_a_noise_floor() {
        let floor = noise_floor(Duration::from_millis(5));
        assert!(floor.max > 0 && floor.p50 <= floor.max);
    }
}
