//! The original's interval join, continuous join and continuous aggregation.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::{Machine, Sink};
use crate::operator::Options;
use crate::rows::Row;

/// Get and put of one state a key.
#[derive(Default)]
pub(super) struct Aggregation {
    states: HashMap<u64, String>,
}

impl Machine for Aggregation {
    fn assign(&mut self, _: usize, pane: &[Row], _: i64, to: &mut Sink<'_>) {
        for row in pane {
            self.states.entry(row.key).or_insert_with(|| to.make_key());
        }
    }

    fn run(&mut self, _: usize, pane: &[Row], _: i64, to: &mut Sink<'_>) {
        for row in pane {
            let state = &self.states[&row.key];
            to.push("get", state);
            to.push("put", state);
        }
    }

    fn fire(&mut self, _: i64, _: bool, _: &mut Sink<'_>) {}
}

/// One key for both streams.
#[derive(Default)]
pub(super) struct ContinuousJoin {
    states: HashMap<u64, String>,
    has_left: HashSet<u64>,
}

impl Machine for ContinuousJoin {
    fn assign(&mut self, _: usize, pane: &[Row], _: i64, to: &mut Sink<'_>) {
        for row in pane {
            self.states.entry(row.key).or_insert_with(|| to.make_key());
        }
    }

    fn run(&mut self, side: usize, pane: &[Row], _: i64, to: &mut Sink<'_>) {
        for row in pane {
            let state = &self.states[&row.key];
            match (side, row.finishes) {
                (0, true) => {
                    to.push("delete", state);
                    to.push("delete", state);
                    self.has_left.remove(&row.key);
                }
                (0, false) => {
                    to.push("get", state);
                    to.push("delete", state);
                    to.push("put", state);
                    self.has_left.insert(row.key);
                }
                _ => {
                    to.push("get", state);
                    if !self.has_left.contains(&row.key) {
                        to.push("merge", state);
                    }
                }
            }
        }
    }

    fn fire(&mut self, _: i64, _: bool, _: &mut Sink<'_>) {}
}

/// Both streams share one space of keys: a key and a time, one behind the other.
pub(super) struct IntervalJoin {
    lower: i64,
    upper: i64,
    /// Units of each stream that are there, by event key.
    units: HashMap<u64, [BTreeSet<i64>; 2]>,
    /// Watermarks at which something should be deleted, by event key; they are never taken out.
    scheduled: BTreeMap<u64, HashSet<i64>>,
}

impl IntervalJoin {
    pub(super) fn new(options: &Options) -> Self {
        let Options { lower, upper, .. } = *options;
        IntervalJoin { lower, upper, units: HashMap::new(), scheduled: BTreeMap::new() }
    }
}

impl Machine for IntervalJoin {
    fn assign(&mut self, _: usize, _: &[Row], _: i64, _: &mut Sink<'_>) {}

    fn run(&mut self, side: usize, pane: &[Row], now: i64, to: &mut Sink<'_>) {
        for row in pane {
            let name = to.name(row.key);
            let own = format!("{name}{}", row.time);
            let scheduled = self.scheduled.entry(row.key).or_default();
            // The sixth mistake: only an event of the key in that very unit deletes.
            let deletes = scheduled.contains(&now);
            scheduled.insert(row.time + if side == 0 { self.upper } else { -self.lower });
            let units = self.units.entry(row.key).or_default();
            if deletes {
                let gone = row.time - self.upper;
                to.push("delete", &format!("{name}{gone}"));
                units[side].remove(&gone);
            }
            if side == 1 || !deletes {
                to.push("get", &own);
            }
            to.push("put", &own);
            units[side].insert(row.time);
            to.push("seek", &name);
            let others = units[1 - side].len() as u64;
            // The right stream's cursor goes two steps at a time.
            let steps = if side == 0 { others.div_ceil(2) } else { others };
            (0..steps).for_each(|_| to.push("next", &name));
        }
    }

    fn fire(&mut self, _: i64, _: bool, _: &mut Sink<'_>) {}
}
