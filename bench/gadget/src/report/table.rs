//! Cells of all rounds as rows: medians and spread by operator and engine.

use std::collections::BTreeMap;

use super::short;
use crate::cell::{Cell, Figures, Outcome};
use crate::measure::LatencyFigures;
use crate::operator::Name;

/// One engine on one operator.
#[derive(Debug)]
pub(super) struct Row<'a> {
    pub(super) operator: &'a str,
    pub(super) engine: &'a str,
    /// Closed loops, by round.
    pub(super) runs: Vec<&'a Figures>,
    /// The second of a pair of the same engine, by round.
    pub(super) again: Vec<&'a Figures>,
    /// Open loops, by rate.
    pub(super) open: Vec<(f64, &'a Figures)>,
    pub(super) is_cut: bool,
    /// Why it was not run, or how it failed.
    pub(super) refused: Option<&'a str>,
    pub(super) failed: Option<&'a str>,
    pub(super) command: &'a str,
}

/// The least, the median and the most.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spread {
    pub(super) least: f64,
    pub(super) median: f64,
    pub(super) most: f64,
}

impl Spread {
    pub(super) fn of(values: impl Iterator<Item = f64>) -> Option<Spread> {
        let mut values: Vec<f64> = values.collect();
        values.sort_by(f64::total_cmp);
        let (least, most) = (*values.first()?, *values.last()?);
        let middle = values[(values.len() - 1) / 2] + values[values.len() / 2];
        Some(Spread { least, median: middle / 2.0, most })
    }
}

impl<'a> Row<'a> {
    /// A figure of the closed loops.
    pub(super) fn spread(&self, figure: impl Fn(&Figures) -> f64) -> Option<Spread> {
        Spread::of(self.runs.iter().map(|figures| figure(figures)))
    }

    /// The median of a figure.
    pub(super) fn median(&self, figure: impl Fn(&Figures) -> f64) -> Option<f64> {
        self.spread(figure).map(|spread| spread.median)
    }

    /// Latencies of the median run by the event path's p99.
    pub(super) fn latencies(&self, name: &str) -> Option<&'a LatencyFigures> {
        let mut all: Vec<_> =
            self.runs.iter().filter_map(|figures| figures.latencies.get(name)).collect();
        all.sort_by_key(|latencies| latencies.p99);
        all.get(all.len().saturating_sub(1) / 2).copied()
    }

    pub(super) fn is_ours(&self) -> bool {
        self.engine.starts_with("ours")
    }
}

/// All rows, operator by operator.
#[derive(Debug)]
pub(super) struct Rows<'a>(pub(super) Vec<Row<'a>>);

impl<'a> Rows<'a> {
    pub(super) fn of(cells: &'a [Cell]) -> Self {
        let mut rows: BTreeMap<(usize, usize), Row<'a>> = BTreeMap::new();
        let mut engines: Vec<&str> = Vec::new();
        for cell in cells {
            let number = engines.iter().position(|engine| *engine == cell.engine);
            let number = number.unwrap_or_else(|| {
                engines.push(&cell.engine);
                engines.len() - 1
            });
            let operator = Name::ALL.iter().position(|name| name.text() == cell.operator);
            let row = rows.entry((operator.unwrap_or(99), number)).or_insert_with(|| Row {
                operator: &cell.operator,
                engine: &cell.engine,
                runs: Vec::new(),
                again: Vec::new(),
                open: Vec::new(),
                is_cut: false,
                refused: None,
                failed: None,
                command: &cell.command,
            });
            row.take(cell);
        }
        Rows(rows.into_values().collect())
    }

    /// The operators that have rows.
    pub(super) fn operators(&self) -> Vec<&'a str> {
        let mut operators: Vec<&str> = Vec::new();
        for row in &self.0 {
            if operators.last() != Some(&row.operator) {
                operators.push(row.operator);
            }
        }
        operators
    }

    pub(super) fn of_operator(&self, operator: &str) -> Vec<&Row<'a>> {
        self.0.iter().filter(|row| row.operator == operator).collect()
    }

    /// Ours natively and the best of the others, by events per second.
    pub(super) fn ours_and_best(&self, operator: &str) -> Option<(&Row<'a>, &Row<'a>)> {
        let rows = self.of_operator(operator);
        let rate = |row: &Row<'_>| row.median(|figures| figures.events_per_s);
        let ours =
            rows.iter().copied().find(|row| row.engine == "ours-native" && rate(row).is_some())?;
        let others = rows.into_iter().filter(|row| !row.is_ours() && rate(row).is_some());
        let best = others.max_by(|one, two| rate(one).partial_cmp(&rate(two)).expect("finite"))?;
        Some((ours, best))
    }
}

/// What the summary says of an operator.
#[derive(Debug)]
pub(super) struct Compared {
    /// Ours natively: its rate, and a star if it was cut.
    pub(super) ours: String,
    /// The best other, likewise.
    pub(super) best: String,
    /// The best other with the operator's own work in its time.
    pub(super) with_operator: String,
    /// Ours by both.
    pub(super) ratios: [f64; 2],
}

impl Compared {
    pub(super) fn of(ours: &Row<'_>, best: &Row<'_>) -> Self {
        let rate = |row: &Row<'_>| row.median(|figures| figures.events_per_s).unwrap_or(0.0);
        let slowed = best.median(Figures::events_per_s_with_operator).unwrap_or(0.0);
        let star = |row: &Row<'_>| if row.is_cut { "*" } else { "" };
        Compared {
            ours: short(rate(ours)) + star(ours),
            best: short(rate(best)) + star(best),
            with_operator: short(slowed) + star(best),
            ratios: [rate(ours) / rate(best), rate(ours) / slowed],
        }
    }
}

impl<'a> Row<'a> {
    fn take(&mut self, cell: &'a Cell) {
        match &cell.outcome {
            Outcome::Refused(why) => self.refused = Some(why),
            Outcome::Failed(why) => self.failed = Some(why),
            Outcome::Cut => self.is_cut |= cell.rate.is_none(),
            Outcome::Whole => {}
        }
        let Some(figures) = &cell.figures else { return };
        match cell.rate {
            Some(rate) => self.open.push((rate, figures)),
            None if cell.round.ends_with("again") => self.again.push(figures),
            None => self.runs.push(figures),
        }
    }
}
