//! Advice: which layout and how much memory the state of a trace wants, from its figures and
//! measured costs.
//!
//! The expected cost of an access is the sum over operations of their share and what they cost in
//! the [`Calibration`], at the sizes and the number of keys of the trace. Where the state does not
//! fit into the memory, layouts that spill pay what each operation costs more for each miss of an LRU
//! cache, and others are out.

mod calibration;
mod check;

use std::fmt::Write;

use crate::characterize::{Stack, Working};
use crate::trace::{Op, Recording, stand_in};
use crate::{Error, Result};

pub use calibration::{CANDIDATES, Calibration, Constant};
pub use check::{Checked, Memory, check};

/// What a key and its place in an index take beside the value, about.
const KEY_OVERHEAD_BYTES: u64 = 64;

/// Whether a layout holds more than memory.
pub(crate) fn spills(engine: &str) -> bool {
    matches!(engine, "ours-hybrid-log" | "ours-append-log")
}

/// What a trace asks of one kind.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Asked {
    /// The operation.
    pub op: Op,
    /// Its share of all accesses.
    pub share: f64,
    /// The mean bytes that it reads, writes or removes.
    pub bytes: f64,
    /// The share of them whose key an LRU cache of the memory does not have.
    pub misses: f64,
}

/// What decides of a trace.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Needs {
    /// What it asks.
    pub operations: Vec<Asked>,
    /// The most keys that live.
    pub keys_max: u64,
    /// The most bytes that live, keys and places included.
    pub bytes_max: u64,
    /// Whether all writes append, so that lists hold the state.
    pub only_lists: bool,
    /// Whether keys are accumulators of windows: written after a read, read once more and deleted.
    pub is_windows: bool,
    /// The share of accesses that an LRU cache of the memory does not have.
    pub misses: f64,
}

impl Needs {
    /// Measures a trace, for a store with this much memory.
    pub fn of(recording: &Recording, memory_bytes: u64) -> Self {
        let (entries, keys) = (recording.entries(), recording.keys());
        let working = Working::of(entries, keys.len());
        let of_keys: u64 = (0..keys.len() as u32).map(|key| keys.get(key).len() as u64).sum();
        let of_key = of_keys / keys.len().max(1) as u64 + KEY_OVERHEAD_BYTES;
        let bytes_max = working.bytes_max + working.keys_max * of_key;
        let fits = bytes_max <= memory_bytes;
        let share = memory_bytes as f64 / bytes_max.max(1) as f64;
        let cached = (working.keys_max as f64 * share) as u64;
        let misses = if fits { [0; Op::ALL.len()] } else { misses(recording, cached) };
        let operations = operations(recording, &misses);
        let has = |op| operations.iter().any(|asked| asked.op == op);
        let only_lists = !has(Op::Put) && !has(Op::Seek);
        let is_windows = !has(Op::Merge) && !has(Op::Seek) && has(Op::Delete) && has(Op::Put);
        let misses = operations.iter().map(|asked| asked.share * asked.misses).sum();
        Needs { keys_max: working.keys_max, bytes_max, only_lists, is_windows, misses, operations }
    }
}

/// How many accesses of each operation an LRU cache of so many keys does not have. A key that is new, or
/// was deleted, has nothing to read.
fn misses(recording: &Recording, cached: u64) -> [u64; Op::ALL.len()] {
    let (mut stack, mut misses) = (Stack::default(), [0; Op::ALL.len()]);
    for entry in recording.entries() {
        let distance = match entry.op() {
            Op::Delete => stack.remove(entry.key),
            _ => stack.access(entry.key),
        };
        let is_miss = distance.is_some_and(|distance| u64::from(distance) >= cached);
        misses[entry.op() as usize] += u64::from(is_miss);
    }
    misses
}

/// The operations of a trace, and how many of each miss the cache.
fn operations(recording: &Recording, misses: &[u64; Op::ALL.len()]) -> Vec<Asked> {
    let mut sizes = vec![0u64; recording.keys().len()];
    let mut sums = [(0u64, 0u64); Op::ALL.len()];
    for entry in recording.entries() {
        let (size, written) = (&mut sizes[entry.key as usize], u64::from(entry.bytes()));
        let bytes = match entry.op() {
            Op::Put | Op::Merge => written,
            _ => *size,
        };
        match entry.op() {
            Op::Put => *size = written,
            Op::Merge => *size += written,
            Op::Delete => *size = 0,
            _ => {}
        }
        let (count, sum) = &mut sums[entry.op() as usize];
        (*count, *sum) = (*count + 1, *sum + bytes);
    }
    let total = recording.entries().len().max(1) as f64;
    let figures = Op::ALL.into_iter().zip(sums).filter(|(_, (count, _))| *count > 0);
    let asked = |(op, (count, sum)): (Op, (u64, u64))| {
        let misses = misses[op as usize] as f64 / count as f64;
        Asked { op, share: count as f64 / total, bytes: sum as f64 / count as f64, misses }
    };
    figures.map(asked).collect()
}

/// A layout, and what an access to it is expected to cost.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// The engine of this program that has it.
    pub engine: &'static str,
    /// Nanoseconds per access; why not, if it cannot hold the state.
    pub cost: std::result::Result<f64, &'static str>,
}

/// What is advised.
#[derive(Clone, Debug, PartialEq)]
pub struct Advice {
    /// The candidates, the cheapest first.
    pub candidates: Vec<Candidate>,
    /// What was found in the trace.
    pub needs: Needs,
    /// The memory that was given.
    pub memory_bytes: u64,
}

/// Advises for a trace.
///
/// # Errors
/// A calibration without the candidates.
pub fn advise(
    recording: &Recording,
    memory_bytes: u64,
    calibration: &Calibration,
) -> Result<Advice> {
    let needs = Needs::of(recording, memory_bytes);
    let cost = |engine: &'static str| -> Result<Candidate> {
        let fits = needs.bytes_max <= memory_bytes;
        let cost = match engine {
            "ours-append-log" if !needs.only_lists => Err("it keeps lists, and values are put"),
            "ours-heap" if !fits => Err("it keeps all in memory, and the state does not fit"),
            _ => Ok(expected(&needs, engine, calibration)?),
        };
        Ok(Candidate { engine, cost })
    };
    let mut candidates = CANDIDATES.map(cost).into_iter().collect::<Result<Vec<_>>>()?;
    candidates.sort_by(|one, two| {
        let cost = |candidate: &Candidate| candidate.cost.unwrap_or(f64::MAX);
        cost(one).total_cmp(&cost(two))
    });
    Ok(Advice { candidates, needs, memory_bytes })
}

fn expected(needs: &Needs, engine: &str, calibration: &Calibration) -> Result<f64> {
    let mut cost = 0.0;
    for Asked { op, share, bytes, misses } in &needs.operations {
        // A range is a read of its first key, and one for each step.
        let op = if matches!(op, Op::Seek | Op::Next) { Op::Get } else { *op };
        let missing = |what| Error::Usage(format!("the calibration has no {what}{op} of {engine}"));
        let ns = calibration.cost(engine, op, *bytes, needs.keys_max as f64);
        cost += share * ns.ok_or_else(|| missing(""))?;
        if *misses > 0.0 {
            let more = calibration.cold(engine, op).ok_or_else(|| missing("cold "))?;
            cost += share * misses * more;
        }
    }
    Ok(cost)
}

impl Advice {
    /// The engine that is advised.
    pub fn best(&self) -> &Candidate {
        &self.candidates[0]
    }

    /// The advice in words.
    pub fn text(&self, calibration: &Calibration) -> String {
        let mut text = String::new();
        let memory = self.memory_bytes >> 20;
        let Needs { keys_max, bytes_max, misses, .. } = &self.needs;
        let layout = |engine: &'static str| engine.trim_start_matches("ours-");
        let _ = writeln!(text, "Layout: {} with {memory} MiB.", layout(self.best().engine));
        for candidate in &self.candidates {
            let cost = match &candidate.cost {
                Ok(ns) => format!("{ns:.0} ns expected per access"),
                Err(why) => (*why).to_owned(),
            };
            let _ = writeln!(text, "  {:12} {cost}", layout(candidate.engine));
        }
        if self.needs.is_windows {
            text += "Values are put, read and deleted: if they are windows, keep them as windows \
                     (window-segments); a trace of bytes cannot show what that saves.\n";
        }
        let _ = writeln!(
            text,
            "State: at most {keys_max} keys and {} KiB; {:.1} % of the accesses miss the memory.",
            bytes_max >> 10,
            misses * 100.0
        );
        let _ = writeln!(
            text,
            "Assumed: {KEY_OVERHEAD_BYTES} bytes for a key's place, an LRU cache of whole keys, costs \
             that add up, as measured on {} on {}.",
            calibration.machine, calibration.date
        );
        text
    }
}

/// The operator that asks an engine for a trace, for tests of the advice.
pub(crate) fn runs(kind: &crate::engine::Kind, recording: &Recording, memory_bytes: u64) -> bool {
    let (operator, options) = stand_in(recording);
    kind.check(operator, &options, memory_bytes).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::Line;

    pub(super) fn constants(of: &[(&str, f64)]) -> Calibration {
        let mut constants = Vec::new();
        for (engine, ns) in of {
            for op in ["get", "put", "merge", "delete"] {
                for (bytes, more) in [(16, 0.0), (1024, 100.0)] {
                    let (engine, op) = ((*engine).to_owned(), op.to_owned());
                    constants.push(Constant { engine, op, bytes, keys: 1000, ns: ns + more });
                }
            }
        }
        let cold = |engine: &str, op: &str, ns| Constant {
            engine: engine.to_owned(),
            op: op.to_owned(),
            bytes: 1024,
            keys: 1000,
            ns,
        };
        let cold = ["get", "put", "merge", "delete"].into_iter().flat_map(|op| {
            let appended = if op == "merge" { 100.0 } else { 9000.0 };
            [cold("ours-hybrid-log", op, 5000.0), cold("ours-append-log", op, appended)]
        });
        let cold = cold.collect();
        Calibration { constants, cold, ..Calibration::default() }
    }

    fn recording(op: Op, keys: u32) -> Recording {
        let mut recording = Recording::default();
        for number in 0..keys * 3 {
            let key = format!("{:010}", number % keys);
            let line = Line { time: Some(0), op, key: key.as_bytes(), bytes: Some(16) };
            recording.push(line, 0);
        }
        recording
    }

    #[test]
    fn the_cheapest_layout_that_holds_the_state_is_advised() {
        let calibration =
            constants(&[("ours-heap", 50.0), ("ours-hybrid-log", 80.0), ("ours-append-log", 40.0)]);
        let puts = recording(Op::Put, 1000);
        let advice = advise(&puts, 1 << 20, &calibration).unwrap();
        assert_eq!(advice.best().engine, "ours-heap");
        assert_eq!(advice.best().cost, Ok(50.0));
        assert!(advice.candidates[2].cost.is_err(), "{advice:?}");
        assert!(advice.text(&calibration).starts_with("Layout: heap with 1 MiB."));
        let merges = recording(Op::Merge, 1000);
        assert_eq!(
            advise(&merges, 1 << 20, &calibration).unwrap().best().engine,
            "ours-append-log"
        );
    }

    #[test]
    fn state_that_does_not_fit_pays_for_its_misses() {
        let calibration =
            constants(&[("ours-heap", 50.0), ("ours-hybrid-log", 80.0), ("ours-append-log", 40.0)]);
        // 1000 keys of 90 bytes in turn, and room for half of them: an LRU cache has none.
        let advice = advise(&recording(Op::Put, 1000), 45_000, &calibration).unwrap();
        assert_eq!(advice.best().engine, "ours-hybrid-log");
        let cost = advice.best().cost.unwrap();
        assert!((cost - (80.0 + 5000.0 * 2.0 / 3.0)).abs() < 1e-6, "{cost}");
        assert!((advice.needs.misses - 2.0 / 3.0).abs() < 1e-6);
        // What is appended is not read first.
        let advice = advise(&recording(Op::Merge, 1000), 45_000, &calibration).unwrap();
        assert_eq!(advice.best().engine, "ours-append-log");
        let costs: Vec<f64> = advice.candidates.iter().flat_map(|one| one.cost).collect();
        assert!(costs[0] < 200.0 && costs[1] > 3000.0, "{costs:?}");
    }

    #[test]
    fn keys_that_were_deleted_have_nothing_to_read() {
        let mut recording = Recording::default();
        for number in 0..3000u32 {
            let key = format!("{:010}", number % 1000);
            for op in [Op::Get, Op::Put, Op::Delete] {
                let line = Line { time: Some(0), op, key: key.as_bytes(), bytes: Some(16) };
                recording.push(line, 0);
            }
        }
        assert_eq!(misses(&recording, 1), [0; Op::ALL.len()]);
        let puts = self::recording(Op::Put, 1000);
        assert_eq!(misses(&puts, 999)[Op::Put as usize], 2000);
        assert_eq!(misses(&puts, 1000)[Op::Put as usize], 0);
    }

    #[test]
    fn a_calibration_without_an_operation_is_refused_by_name() {
        let error = advise(&recording(Op::Put, 10), 1 << 20, &Calibration::default()).unwrap_err();
        assert!(error.to_string().contains("no put of ours-heap"), "{error}");
    }
}
