//! Outcomes of all rounds, by cell.

use alluvium_reports::time;

use crate::cell::Outcome;

/// Outcomes of a suite.
#[derive(Clone, Copy, Debug)]
pub struct Outcomes<'a>(pub &'a [Outcome]);

impl<'a> Outcomes<'a> {
    /// The outcomes of a cell.
    pub fn of(self, row: &str, column: &str) -> impl Iterator<Item = &'a Outcome> {
        let is_of = move |outcome: &&Outcome| outcome.row == row && outcome.column == column;
        let all: Vec<_> = self.0.iter().filter(is_of).collect();
        all.into_iter()
    }

    /// Rows in the order in which they came.
    pub fn rows(self) -> Vec<&'a str> {
        let mut rows: Vec<&str> = Vec::new();
        for outcome in self.0 {
            if !rows.contains(&&outcome.row[..]) {
                rows.push(&outcome.row);
            }
        }
        rows
    }

    /// The median of a number over a cell's rounds; of an even number of rounds, half way between
    /// the two in the middle.
    pub fn median(self, row: &str, column: &str, path: &str) -> Option<f64> {
        let mut values: Vec<f64> = self.of(row, column).filter_map(|o| o.number(path)).collect();
        values.sort_by(f64::total_cmp);
        let (low, high) = (values.get(values.len().checked_sub(1)? / 2)?, values[values.len() / 2]);
        Some((low + high) / 2.0)
    }

    /// The least and the most of a number over a cell's rounds.
    pub fn extremes(self, row: &str, column: &str, path: &str) -> Option<(f64, f64)> {
        let values = self.of(row, column).filter_map(|outcome| outcome.number(path));
        values.fold(None, |all, value| {
            let (least, most) = all.unwrap_or((value, value));
            Some((value.min(least), value.max(most)))
        })
    }

    /// The median of nanoseconds, with its unit; of several rounds also the least and the most. Nothing without
    /// figures.
    pub fn latency(self, row: &str, column: &str, path: &str) -> String {
        let Some(median) = self.median(row, column, path) else { return String::new() };
        match self.extremes(row, column, path) {
            Some((least, most)) if least < most => {
                format!("{} ({} to {})", time(median), time(least), time(most))
            }
            _ => time(median),
        }
    }

    /// Why a cell has no figures, if a run of it has none.
    pub fn why(self, row: &str, column: &str) -> Option<&'a str> {
        self.of(row, column).find_map(|outcome| outcome.why.as_deref())
    }

    /// Of each row, what two of its runs say that should say the same.
    pub fn differences(self, name: &str) -> Vec<String> {
        let mut found = Vec::new();
        for row in self.rows() {
            let texts = || self.0.iter().filter(|o| o.row == row);
            let texts = || texts().filter_map(|o| Some((o, o.text(name)?)));
            let Some((first, expected)) = texts().next() else { continue };
            if let Some((other, text)) = texts().find(|(_, text)| *text != expected) {
                let (one, two) = (&first.column, &other.column);
                found.push(format!("{row}: {name} {expected} on {one}, {text} on {two}"));
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn outcome(row: &str, column: &str, rate: f64, checksum: &str) -> Outcome {
        Outcome {
            row: row.to_owned(),
            column: column.to_owned(),
            round: 1,
            command: String::new(),
            seconds: 1.0,
            figures: Some(json!({"rate": rate, "memory": {"peak": 7}, "checksum": checksum})),
            why: None,
        }
    }

    #[test]
    fn medians_are_over_rounds_and_differences_are_named() {
        let mut all = vec![
            outcome("q1", "heap", 3.0, "a"),
            outcome("q1", "log", 5.0, "a"),
            outcome("q1", "heap", 1.0, "a"),
            outcome("q2", "heap", 9.0, "b"),
        ];
        let outcomes = Outcomes(&all);
        assert_eq!(outcomes.rows(), ["q1", "q2"]);
        assert_eq!(outcomes.median("q1", "heap", "rate"), Some(2.0));
        assert_eq!(outcomes.extremes("q1", "heap", "rate"), Some((1.0, 3.0)));
        assert_eq!(outcomes.latency("q1", "heap", "rate"), "2 ns (1 ns to 3 ns)");
        assert_eq!(outcomes.latency("q1", "log", "rate"), "5 ns");
        assert_eq!(outcomes.latency("q1", "log", "none"), "");
        assert_eq!(outcomes.median("q1", "log", "memory.peak"), Some(7.0));
        assert_eq!(outcomes.median("q2", "log", "rate"), None);
        assert!(outcomes.differences("checksum").is_empty());
        all.push(outcome("q2", "log", 9.0, "c"));
        let found = Outcomes(&all).differences("checksum");
        assert_eq!(found, ["q2: checksum b on heap, c on log"]);
    }
}
