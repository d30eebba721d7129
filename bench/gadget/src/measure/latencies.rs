//! Latencies in nanoseconds, to three digits.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Longer ones count as this: an hour.
const MAX_NS: u64 = 3_600_000_000_000;
/// Points of a curve in a report.
const CURVE_POINTS: usize = 120;

/// A histogram of latencies.
#[derive(Clone, Debug)]
pub(super) struct Latencies(Histogram<u64>);

impl Latencies {
    pub(super) fn new() -> Self {
        let histogram = Histogram::new_with_bounds(1, MAX_NS, 3);
        Latencies(histogram.expect("the bounds are constants that it takes"))
    }

    pub(super) fn record(&mut self, ns: u64, times: u64) {
        self.0.saturating_record_n(ns.max(1), times);
    }

    /// The figures, if there are any.
    pub(super) fn figures(&self) -> Option<LatencyFigures> {
        let at = |quantile| self.0.value_at_quantile(quantile);
        (!self.0.is_empty()).then(|| LatencyFigures {
            count: self.0.len(),
            p50: at(0.5),
            p99: at(0.99),
            p99_9: at(0.999),
            p99_99: at(0.9999),
            max: self.0.max(),
            ccdf: self.ccdf(),
        })
    }

    /// Latencies and the share of all that are at least as long, thinned to what a plot shows.
    fn ccdf(&self) -> Vec<(u64, f64)> {
        let (total, mut below) = (self.0.len() as f64, 0);
        let mut points: Vec<(u64, f64)> = Vec::new();
        for step in self.0.iter_recorded() {
            let share = (self.0.len() - below) as f64 / total;
            below += step.count_since_last_iteration();
            let point = (step.value_iterated_to().min(self.0.max()), share);
            // A point for each step on the two logarithmic axes.
            let is_near = points.last().is_some_and(|last: &(u64, f64)| {
                let (wide, high) = (point.0 as f64 / last.0 as f64, last.1 / point.1);
                wide < 1.12 && high < 1.12
            });
            if !is_near {
                points.push(point);
            }
        }
        points.truncate(CURVE_POINTS);
        points.extend(
            (self.0.max() > points.last().map_or(0, |p| p.0)).then(|| (self.0.max(), 1.0 / total)),
        );
        points
    }
}

/// Percentiles in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LatencyFigures {
    /// How many were recorded.
    pub count: u64,
    /// The median.
    pub p50: u64,
    /// 99 %.
    pub p99: u64,
    /// 99.9 %.
    pub p99_9: u64,
    /// 99.99 %.
    pub p99_99: u64,
    /// The longest.
    pub max: u64,
    /// The share of latencies that are at least so long, for plots.
    pub ccdf: Vec<(u64, f64)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_right_to_three_digits_and_the_curve_ends_at_the_longest() {
        let mut latencies = Latencies::new();
        (1..=100_000u64).for_each(|ns| latencies.record(ns, 1));
        let figures = latencies.figures().unwrap();
        for (found, wanted) in
            [(figures.p50, 50_000), (figures.p99_9, 99_900), (figures.max, 100_000)]
        {
            assert!(found.abs_diff(wanted) <= wanted / 500, "{found} for {wanted}");
        }
        assert!(figures.ccdf.len() <= CURVE_POINTS + 1);
        assert_eq!(figures.ccdf[0].1, 1.0);
        assert!(figures.ccdf.last().unwrap().0.abs_diff(100_000) < 100);
        assert!(figures.ccdf.windows(2).all(|pair| pair[0].1 >= pair[1].1));
        assert_eq!(Latencies::new().figures(), None);
    }
}
