//! The reports that one row of a table has of all rounds.

use crate::report::Report;

/// A named run and its report of each round.
pub(super) struct Runs {
    pub(super) name: &'static str,
    pub(super) reports: Vec<Report>,
}

impl Runs {
    pub(super) fn new(name: &'static str) -> Self {
        Runs { name, reports: Vec::new() }
    }

    /// The round of median rate: all figures of a row are of one round.
    ///
    /// # Panics
    /// If there was no round.
    pub(super) fn median(&self) -> &Report {
        let mut sorted: Vec<_> = self.reports.iter().collect();
        sorted.sort_by(|one, other| one.ops_per_s.total_cmp(&other.ops_per_s));
        sorted[(sorted.len() - 1) / 2]
    }

    /// The least and the most operations per second.
    pub(super) fn extremes(&self) -> (f64, f64) {
        let rates = self.reports.iter().map(|report| report.ops_per_s);
        rates.fold((f64::MAX, 0.0), |(least, most), rate| (least.min(rate), most.max(rate)))
    }

    /// How far apart the extremes are, in percent of the median; nothing of a single round.
    pub(super) fn spread_percent(&self) -> Option<f64> {
        let (least, most) = self.extremes();
        (self.reports.len() > 1).then(|| 100.0 * (most - least) / self.median().ops_per_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_of_the_round_of_median_rate() {
        let mut runs = Runs::new("heap");
        for seconds in [2.0, 1.0, 4.0] {
            let mut report = Report::new("q4", "heap");
            report.set_rate(100, seconds);
            runs.reports.push(report);
            assert_eq!(runs.spread_percent().is_some(), runs.reports.len() > 1);
        }
        assert_eq!((runs.median().ops_per_s, runs.extremes()), (50.0, (25.0, 100.0)));
        assert_eq!(runs.spread_percent(), Some(150.0));
    }
}
