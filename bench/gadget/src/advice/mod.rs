//! Advice: which layout the state of a trace wants, from its figures and measured costs.
//!
//! The expected cost of an access is the sum over operations of their share and what they cost in
//! the [`Calibration`], at the sizes and the number of keys of the trace. A layout that cannot hold
//! the [`State`] in the memory is refused. One that spills pays what each operation costs more for
//! each miss of an LRU cache of the keys that it has in memory.

mod calibration;
mod check;
mod measuring;
mod room;
mod text;

use crate::characterize::{Stack, Working};
use crate::trace::{Entry, Op, Recording, stand_in};
use crate::{Error, Result};

pub use calibration::{CANDIDATES, Calibration, Constant};
pub use check::{BOUND, Checked, Memory, Row, Run, check};
pub use room::State;

use measuring::KEYS;

/// Whether a layout holds more than memory.
pub(crate) fn spills(engine: &str) -> bool {
    matches!(engine, "ours-hybrid-log" | "ours-append-log")
}

/// What a trace asks of one kind.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Asked {
    /// The operation.
    pub op: Op,
    /// How often.
    pub count: u64,
    /// Its share of all accesses.
    pub share: f64,
    /// The mean bytes that it reads, writes or removes.
    pub bytes: f64,
    /// How many equally likely keys would be as far apart in time as the keys of these accesses. The mean is of
    /// logarithms, because costs grow with those.
    pub spread: f64,
}

/// What decides of a trace.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Needs {
    /// What it asks.
    pub operations: Vec<Asked>,
    /// Its state at its largest.
    pub state: State,
    /// Whether all writes append, so that lists hold the state.
    pub only_lists: bool,
    /// Whether ranges are asked for.
    pub ranges: bool,
    /// Whether keys are accumulators of windows: written after a read, read once more and deleted.
    pub is_windows: bool,
}

impl Needs {
    /// Measures a trace.
    pub fn of(recording: &Recording) -> Self {
        let (entries, keys) = (recording.entries(), recording.keys());
        let working = Working::of(entries, keys.len());
        let of_keys: u64 = (0..keys.len() as u32).map(|key| keys.get(key).len() as u64).sum();
        let (operations, value_max) = operations(recording, working.keys_max);
        let of = |op| operations.iter().find(|asked: &&Asked| asked.op == op);
        let has = |op| of(op).is_some();
        let ranges = has(Op::Seek);
        let only_lists = !has(Op::Put) && !ranges;
        let appended = of(Op::Merge).map(|asked| asked.bytes.ceil() as u64);
        let state = State {
            keys: working.keys_max,
            key_bytes: of_keys / keys.len().max(1) as u64,
            value_bytes: working.bytes_max,
            value_max,
            element_bytes: appended.filter(|_| only_lists),
            deleted: of(Op::Delete).map_or(0, |asked| asked.count.min(keys.len() as u64)),
        };
        let is_windows = !has(Op::Merge) && !ranges && has(Op::Delete) && has(Op::Put);
        Needs { operations, state, only_lists, ranges, is_windows }
    }

    /// Why a layout does not keep the state in so much memory, if it does not.
    fn refused(&self, engine: &str, memory_bytes: u64) -> Option<String> {
        match engine {
            "ours-append-log" if !self.only_lists => {
                Some("it keeps lists, and values are put".to_owned())
            }
            _ => self.state.refused(engine, memory_bytes),
        }
    }

    /// Of each operation the share whose key is not among so many that were used last.
    fn misses(&self, recording: &Recording, cached: u64) -> Misses {
        if cached >= self.state.keys {
            return [0.0; Op::ALL.len()];
        }
        let mut shares = misses(recording, cached).map(|missed| missed as f64);
        for asked in &self.operations {
            shares[asked.op as usize] /= asked.count.max(1) as f64;
        }
        shares
    }
}

/// A share of misses for each operation.
type Misses = [f64; Op::ALL.len()];

/// How many accesses of each operation an LRU cache of so many keys does not have. A key that is new, or
/// was deleted, has nothing to read.
fn misses(recording: &Recording, cached: u64) -> [u64; Op::ALL.len()] {
    let (mut stack, mut misses) = (Stack::default(), [0; Op::ALL.len()]);
    for entry in recording.entries() {
        let distance = distance(&mut stack, entry);
        let is_miss = distance.is_some_and(|distance| u64::from(distance) >= cached);
        misses[entry.op() as usize] += u64::from(is_miss);
    }
    misses
}

/// Returns the operations of a trace and the bytes of its largest value. At most `keys_max` keys live at a
/// time.
fn operations(recording: &Recording, keys_max: u64) -> (Vec<Asked>, u64) {
    let (mut sizes, mut value_max) = (vec![0u64; recording.keys().len()], 0);
    let (mut sums, mut stack) = ([(0u64, 0u64, 0.0); Op::ALL.len()], Stack::default());
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
        value_max = value_max.max(*size);
        let distance = distance(&mut stack, entry).map_or(keys_max, u64::from);
        let (count, sum, logs) = &mut sums[entry.op() as usize];
        (*count, *sum, *logs) = (*count + 1, *sum + bytes, *logs + log_spread(distance, keys_max));
    }
    let total = recording.entries().len().max(1) as f64;
    let figures = Op::ALL.into_iter().zip(sums).filter(|(_, (count, ..))| *count > 0);
    let asked = |(op, (count, sum, logs)): (Op, (u64, u64, f64))| Asked {
        op,
        count,
        share: count as f64 / total,
        bytes: sum as f64 / count as f64,
        spread: (logs / count as f64).exp(),
    };
    (figures.map(asked).collect(), value_max)
}

/// Other keys since the last access to the key of this one; none if it is new, or was deleted.
fn distance(stack: &mut Stack, entry: &Entry) -> Option<u32> {
    match entry.op() {
        Op::Delete => stack.remove(entry.key),
        _ => stack.access(entry.key),
    }
}

/// Of keys of equal chance half are between two accesses to one. Costs differ only between the numbers
/// of keys that they were measured with.
fn log_spread(distance: u64, keys_max: u64) -> f64 {
    let [few, many] = KEYS.map(|keys| keys as f64);
    (2.0 * distance as f64 + 2.0).min(keys_max as f64).clamp(few, many).ln()
}

/// A layout, and what an access to it is expected to cost.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// The engine of this program that has it.
    pub engine: &'static str,
    /// Nanoseconds per access; why not, if it cannot hold the state.
    pub cost: std::result::Result<f64, String>,
    /// The share of accesses whose key it has not in memory.
    pub misses: f64,
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
    let needs = Needs::of(recording);
    let candidate = |engine: &'static str| -> Result<Candidate> {
        if let Some(why) = needs.refused(engine, memory_bytes) {
            return Ok(Candidate { engine, cost: Err(why), misses: 0.0 });
        }
        let state = &needs.state;
        let cached = if spills(engine) { state.cached(engine, memory_bytes) } else { u64::MAX };
        let missed = needs.misses(recording, cached);
        let cost = Ok(expected(&needs, &missed, engine, calibration)?);
        let shares = needs.operations.iter().map(|of| of.share * missed[of.op as usize]);
        Ok(Candidate { engine, cost, misses: shares.sum() })
    };
    let mut candidates = CANDIDATES.map(candidate).into_iter().collect::<Result<Vec<_>>>()?;
    candidates.sort_by(|one, two| {
        let cost = |candidate: &Candidate| *candidate.cost.as_ref().unwrap_or(&f64::MAX);
        cost(one).total_cmp(&cost(two))
    });
    Ok(Advice { candidates, needs, memory_bytes })
}

fn expected(
    needs: &Needs,
    missed: &Misses,
    engine: &str,
    calibration: &Calibration,
) -> Result<f64> {
    let mut cost = 0.0;
    for Asked { op, share, bytes, spread, .. } in &needs.operations {
        let missing = |what| {
            let lacking = format!("the calibration has no {what}{op} of {engine}");
            Error::Usage(format!("{lacking}: --calibrate measures it"))
        };
        let ns = calibration.cost(engine, *op, needs.ranges, *bytes, *spread);
        cost += share * ns.ok_or_else(|| missing(""))?;
        let misses = missed[*op as usize];
        if misses > 0.0 {
            // A range reads each of its keys.
            let read = if matches!(op, Op::Seek | Op::Next) { Op::Get } else { *op };
            let more = calibration.cold(engine, read).ok_or_else(|| missing("cold "))?;
            cost += share * misses * more;
        }
    }
    Ok(cost)
}

impl Advice {
    /// The candidate that is advised, if one holds the state.
    pub fn best(&self) -> Option<&Candidate> {
        self.candidates.first().filter(|candidate| candidate.cost.is_ok())
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
            for op in ["get", "put", "merge", "delete", "seek", "next"] {
                for (bytes, more) in [(16, 0.0), (1024, 100.0)] {
                    let (ns, ordered) = (ns + more, matches!(op, "seek" | "next"));
                    let (engine, op) = ((*engine).to_owned(), op.to_owned());
                    constants.push(Constant { engine, op, bytes, keys: 1000, ordered, ns });
                }
            }
        }
        let cold = |engine: &str, op: &str, ns| Constant {
            engine: engine.to_owned(),
            op: op.to_owned(),
            bytes: 1024,
            keys: 1000,
            ordered: false,
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
        let best = advice.best().unwrap();
        assert_eq!((best.engine, &best.cost), ("ours-heap", &Ok(50.0)));
        assert!(advice.candidates[2].cost.is_err(), "{advice:?}");
        assert!(advice.text(&calibration).starts_with("Layout: heap with 1 MiB."));
        let merges = advise(&recording(Op::Merge, 1000), 1 << 20, &calibration).unwrap();
        assert_eq!(merges.best().unwrap().engine, "ours-append-log");
    }

    #[test]
    fn state_that_does_not_fit_pays_for_its_misses() {
        let calibration =
            constants(&[("ours-heap", 50.0), ("ours-hybrid-log", 80.0), ("ours-append-log", 40.0)]);
        // Keys in turn, and room for half of them: an LRU cache has none.
        let puts = recording(Op::Put, 10_000);
        let memory = Needs::of(&puts).state.all_in("ours-hybrid-log") / 2;
        let advice = advise(&puts, memory, &calibration).unwrap();
        let best = advice.best().unwrap();
        assert_eq!(best.engine, "ours-hybrid-log");
        let cost = *best.cost.as_ref().unwrap();
        assert!((cost - (80.0 + 5000.0 * 2.0 / 3.0)).abs() < 1e-6, "{cost}");
        assert!((best.misses - 2.0 / 3.0).abs() < 1e-6);
        // What is appended is not read first.
        let advice = advise(&recording(Op::Merge, 10_000), memory, &calibration).unwrap();
        assert_eq!(advice.best().unwrap().engine, "ours-append-log");
        let costs: Vec<f64> =
            advice.candidates.iter().filter_map(|one| one.cost.clone().ok()).collect();
        assert!(costs[0] < 200.0 && costs[1] > 3000.0, "{costs:?}");
    }

    #[test]
    fn a_layout_whose_index_does_not_fit_is_refused() {
        let calibration = constants(&[
            ("ours-heap", 50.0),
            ("ours-hybrid-log", 80.0),
            ("ours-append-log", 900.0),
        ]);
        let advice = advise(&recording(Op::Put, 30_000), 600_000, &calibration).unwrap();
        assert_eq!(advice.best(), None);
        let text = advice.text(&calibration);
        assert!(text.starts_with("No layout holds this state"), "{text}");
        assert!(text.contains("hybrid-log   refused: the index has to fit"), "{text}");
        // An append log has no index of keys in memory, but one of blocks.
        let advice = advise(&recording(Op::Merge, 30_000), 600_000, &calibration).unwrap();
        assert_eq!(advice.best().unwrap().engine, "ours-append-log");
    }

    #[test]
    fn ranges_cost_what_ranges_were_measured_to_cost() {
        let calibration = constants(&[("ours-heap", 50.0), ("ours-hybrid-log", 80.0)]);
        let mut recording = Recording::default();
        for op in [Op::Seek, Op::Next, Op::Next] {
            let line = Line { time: Some(0), op, key: b"1", bytes: Some(0) };
            recording.push(line, 0);
        }
        let advice = advise(&recording, 1 << 20, &calibration).unwrap();
        // No bytes: as far below the cost of 16 as they are fewer.
        let slope = 100.0 / 1008.0;
        let cost = *advice.best().unwrap().cost.as_ref().unwrap();
        assert!((cost - (50.0 - 16.0 * slope)).abs() < 1e-6, "{cost}");
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
    fn near_accesses_cost_as_those_of_few_keys() {
        // Each key is read and then put, in turns of so many keys.
        let spreads = |keys: u32| {
            let mut recording = Recording::default();
            for (op, number) in (0..keys * 3).flat_map(|at| [(Op::Get, at), (Op::Put, at)]) {
                let key = format!("{:010}", number % keys);
                let line = Line { time: Some(0), op, key: key.as_bytes(), bytes: Some(16) };
                recording.push(line, 0);
            }
            let (operations, _) = operations(&recording, u64::from(keys));
            operations.iter().map(|asked| asked.spread.round() as u64).collect::<Vec<_>>()
        };
        assert_eq!(spreads(500), [1000, 1000]);
        assert_eq!(spreads(4000), [4000, 1000]);
        assert_eq!(spreads(60_000), [50_000, 1000]);
    }

    #[test]
    fn a_calibration_without_an_operation_is_refused_by_name() {
        let error = advise(&recording(Op::Put, 10), 1 << 20, &Calibration::default()).unwrap_err();
        assert!(error.to_string().contains("no put of ours-heap"), "{error}");
    }
}
