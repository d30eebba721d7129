//! Measured costs of each operation on each layout: at two sizes and two numbers of keys, and what it
//! costs more when its key is not in memory, with the machine and the date. Costs in memory are
//! processor time of the thread, so that other work on the machine counts little; those beyond it are
//! time on the clock.

use std::path::Path;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::access::digits;
use crate::engine::{Engine, Kind, Open};
use crate::measure::thread_time;
use crate::operator::{Name, Options};
use crate::random::Random;
use crate::trace::{Op, digest_of, fill};
use crate::{Error, Result};
use alluvium_reports::environment;

/// Engines whose layouts can be advised.
pub const CANDIDATES: [&str; 3] = ["ours-heap", "ours-hybrid-log", "ours-append-log"];
/// Value sizes.
const SIZES: [u32; 2] = [16, 1024];
/// Numbers of keys: some that the processor's cache has, and some that it has not.
const KEYS: [u64; 2] = [1000, 50_000];
/// How often each phase is measured; the median counts.
const ROUNDS: usize = 3;
const MEMORY_BYTES: u64 = 256 << 20;
/// Memory and keys of the phases that miss: the state is four times the memory.
const SMALL_MEMORY_BYTES: u64 = 4 << 20;
const SMALL_MEMORY_KEYS: u64 = 16_000;
/// Operations of each of these phases.
const COLD_STEPS: u64 = 3000;
/// Values of these phases, and what a merge appends.
const COLD_BYTES: [u32; 2] = [1024, 16];

/// What one operation costs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Constant {
    /// The engine.
    pub engine: String,
    /// The operation.
    pub op: String,
    /// Bytes that are read or written.
    pub bytes: u32,
    /// Keys that live.
    pub keys: u64,
    /// Nanoseconds.
    pub ns: f64,
}

/// All costs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// The processor and the system.
    pub machine: String,
    /// When.
    pub date: String,
    /// The commit of the source.
    pub commit: String,
    /// Costs in memory.
    pub constants: Vec<Constant>,
    /// What operations on keys beyond memory cost more, on the device of the temporary files.
    pub cold: Vec<Constant>,
}

impl Calibration {
    /// Measures all candidates: some seconds.
    ///
    /// # Errors
    /// The engines'.
    pub fn measure(kinds: &[Kind], directory: &Path) -> Result<Self> {
        let machine = environment(directory);
        let mut calibration = Calibration {
            machine: format!("{}, Linux {}", machine.processor, machine.kernel),
            date: machine.date,
            commit: machine.commit,
            ..Calibration::default()
        };
        for name in CANDIDATES {
            let kind = kinds.iter().find(|kind| kind.name == name);
            let kind = kind.ok_or_else(|| Error::Usage(format!("there is no engine {name}")))?;
            for (bytes, keys) in SIZES.into_iter().flat_map(|size| KEYS.map(|keys| (size, keys))) {
                let costs = (0..ROUNDS).map(|_| in_memory(kind, bytes, keys, directory));
                calibration.take(name, bytes, keys, &costs.collect::<Result<Vec<_>>>()?);
            }
            if super::spills(name) {
                calibration.cold.extend(beyond_memory(kind, COLD_STEPS, directory)?);
            }
        }
        Ok(calibration)
    }

    fn take(&mut self, engine: &str, bytes: u32, keys: u64, rounds: &[Vec<(Op, f64)>]) {
        for (place, (op, _)) in rounds[0].iter().enumerate() {
            let mut all: Vec<f64> = rounds.iter().map(|round| round[place].1).collect();
            all.sort_by(f64::total_cmp);
            let (engine, op) = (engine.to_owned(), op.text().to_owned());
            self.constants.push(Constant { engine, op, bytes, keys, ns: all[all.len() / 2] });
        }
    }

    /// Reads a file.
    ///
    /// # Errors
    /// The file's, and what is no calibration.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).map_err(|error| Error::io(path, "read", error))?;
        let refuse = |error: serde_json::Error| {
            Error::input(path, error.line() as u64, format!("no calibration: {error}"))
        };
        serde_json::from_str(&text).map_err(refuse)
    }

    /// What an operation costs at a size and a number of keys: between measured sizes in
    /// proportion, between numbers of keys in proportion to their logarithms. Beyond the measured
    /// ones sizes go on in proportion, and keys stay.
    pub fn cost(&self, engine: &str, op: Op, bytes: f64, keys: f64) -> Option<f64> {
        let of = self.constants.iter().filter(|one| one.engine == engine && one.op == op.text());
        let mut of: Vec<&Constant> = of.collect();
        of.sort_by_key(|one| (one.keys, one.bytes));
        let at = |keys: u64| {
            let of: Vec<_> = of.iter().filter(|one| one.keys == keys).collect();
            let (first, last) = (of.first()?, of.last()?);
            let wide = f64::from(last.bytes) - f64::from(first.bytes);
            let slope = if wide > 0.0 { (last.ns - first.ns) / wide } else { 0.0 };
            Some((first.ns + slope * (bytes - f64::from(first.bytes))).max(1.0))
        };
        let (few, many) = (of.first()?.keys, of.last()?.keys);
        let share = match many > few {
            true => ((keys / few as f64).ln() / (many as f64 / few as f64).ln()).clamp(0.0, 1.0),
            false => 0.0,
        };
        Some(at(few)? * (1.0 - share) + at(many)? * share)
    }

    /// What an operation costs more if its key is not in memory.
    pub fn cold(&self, engine: &str, op: Op) -> Option<f64> {
        let mut of = self.cold.iter();
        of.find(|one| one.engine == engine && one.op == op.text()).map(|one| one.ns)
    }
}

fn open(
    kind: &Kind,
    memory_bytes: u64,
    directory: &Path,
) -> Result<(Box<dyn Engine>, tempfile::TempDir)> {
    let made = tempfile::Builder::new().prefix("calibration-").tempdir_in(directory);
    let made = made.map_err(|error| Error::io(directory, "make a directory in", error))?;
    let operator =
        if kind.name == "ours-append-log" { Name::SessionHolistic } else { Name::Aggregation };
    let (options, directory) = (Options::default(), made.path().to_owned());
    let open = Open { directory, memory_bytes, operator, options, events: 1 << 16 };
    Ok((kind.open(&open)?, made))
}

/// Costs of each operation on an engine that keeps all in memory.
fn in_memory(kind: &Kind, bytes: u32, keys: u64, directory: &Path) -> Result<Vec<(Op, f64)>> {
    let (mut engine, _made) = open(kind, MEMORY_BYTES, directory)?;
    let lists = kind.name == "ours-append-log";
    let write = if lists { Op::Merge } else { Op::Put };
    let (value, engine) = (Vec::new(), &mut *engine);
    let mut phases = Phases { engine, bytes, keys, value, number: 0, by_clock: false };
    let steps = keys.max(20_000);
    phases.run(write, keys, &mut |number| number)?;
    let mut random = Random::new(1);
    let mut any = move |_: u64| random.below(keys);
    let mut costs = vec![(Op::Get, phases.run(Op::Get, steps, &mut any)?)];
    if !lists {
        costs.push((Op::Put, phases.run(Op::Put, steps, &mut any)?));
    }
    // Each key is removed once. Then lists grow from nothing.
    costs.push((Op::Delete, phases.run(Op::Delete, keys, &mut |number| number * 7 % keys)?));
    costs.push((Op::Merge, phases.run(Op::Merge, steps, &mut any)?));
    Ok(costs)
}

/// What each operation on state that is larger than memory costs more than on state that is not, for
/// each key that is not in memory.
fn beyond_memory(kind: &Kind, steps: u64, directory: &Path) -> Result<Vec<Constant>> {
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let small = cold_phases(kind, SMALL_MEMORY_BYTES, steps, directory)?;
        rounds.push((small, cold_phases(kind, MEMORY_BYTES, steps, directory)?));
    }
    let value = u64::from(COLD_BYTES[0]);
    let bytes = SMALL_MEMORY_KEYS * (value + super::KEY_OVERHEAD_BYTES + 10);
    let missed = 1.0 - SMALL_MEMORY_BYTES as f64 / bytes as f64;
    let more = |place: usize| {
        let mut all: Vec<f64> = rounds
            .iter()
            .map(|(small, large)| (small[place].1 - large[place].1) / missed)
            .collect();
        all.sort_by(f64::total_cmp);
        all[all.len() / 2].max(0.0)
    };
    let constant = |(place, (op, _)): (usize, &(Op, f64))| Constant {
        engine: kind.name.to_owned(),
        op: op.text().to_owned(),
        bytes: COLD_BYTES[0],
        keys: SMALL_MEMORY_KEYS,
        ns: more(place),
    };
    Ok(rounds[0].0.iter().enumerate().map(constant).collect())
}

/// Nanoseconds on the clock of each operation on keys of equal chance.
fn cold_phases(
    kind: &Kind,
    memory_bytes: u64,
    steps: u64,
    directory: &Path,
) -> Result<Vec<(Op, f64)>> {
    let (mut engine, _made) = open(kind, memory_bytes, directory)?;
    let (keys, engine) = (SMALL_MEMORY_KEYS, &mut *engine);
    let lists = kind.name == "ours-append-log";
    let write = if lists { Op::Merge } else { Op::Put };
    let [bytes, more] = COLD_BYTES;
    let mut phases = Phases { engine, bytes, keys, value: Vec::new(), number: 0, by_clock: true };
    phases.run(write, keys, &mut |number| number)?;
    let mut random = Random::new(2);
    let mut any = move |_: u64| random.below(keys);
    let mut costs = vec![(Op::Get, phases.run(Op::Get, steps, &mut any)?)];
    if !lists {
        costs.push((Op::Put, phases.run(Op::Put, steps, &mut any)?));
    }
    phases.bytes = more;
    costs.push((Op::Merge, phases.run(Op::Merge, steps, &mut any)?));
    costs.push((Op::Delete, phases.run(Op::Delete, steps, &mut |number| number * 7 % keys)?));
    Ok(costs)
}

struct Phases<'a> {
    engine: &'a mut dyn Engine,
    bytes: u32,
    keys: u64,
    value: Vec<u8>,
    number: u64,
    /// Time on the clock, instead of processor time.
    by_clock: bool,
}

impl Phases<'_> {
    /// Makes `steps` operations on the keys that `key` says; returns nanoseconds for each.
    fn run(&mut self, op: Op, steps: u64, key: &mut dyn FnMut(u64) -> u64) -> Result<f64> {
        let by_clock = self.by_clock;
        let names: Vec<[u8; 10]> =
            (0..steps).map(|number| digits(key(number) % self.keys)).collect();
        let (began, processor, mut read) = (Instant::now(), thread_time(), 0);
        for name in &names {
            self.number += 1;
            match op {
                Op::Get => self.engine.get(name, &mut |value| read ^= digest_of(value))?,
                Op::Delete => self.engine.delete(name)?,
                _ => {
                    fill(&mut self.value, self.number, self.bytes);
                    match op {
                        Op::Put => self.engine.put(name, &self.value)?,
                        _ => self.engine.merge(name, &self.value)?,
                    }
                }
            }
        }
        std::hint::black_box(read);
        let took = match by_clock {
            true => began.elapsed(),
            false => thread_time() - processor,
        };
        Ok(took.as_nanos() as f64 / steps as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::built_in;

    #[test]
    fn costs_lie_between_those_that_were_measured() {
        let constant = |bytes, keys, ns| Constant {
            engine: "e".to_owned(),
            op: "get".to_owned(),
            bytes,
            keys,
            ns,
        };
        let constants = vec![
            constant(0, 100, 10.0),
            constant(100, 100, 20.0),
            constant(0, 10_000, 30.0),
            constant(100, 10_000, 40.0),
        ];
        let calibration = Calibration { constants, ..Calibration::default() };
        let cost = |bytes, keys| calibration.cost("e", Op::Get, bytes, keys).unwrap();
        assert_eq!((cost(0.0, 100.0), cost(50.0, 100.0)), (10.0, 15.0));
        assert!((cost(50.0, 1000.0) - 25.0).abs() < 1e-9);
        assert_eq!((cost(50.0, 1e9), cost(200.0, 1.0)), (35.0, 30.0));
        assert_eq!(calibration.cost("e", Op::Put, 1.0, 1.0), None);
    }

    #[test]
    fn each_operation_beyond_memory_has_a_cost() {
        let dir = tempfile::tempdir().unwrap();
        for kind in built_in().iter().filter(|kind| crate::advice::spills(kind.name)) {
            let lists = kind.name == "ours-append-log";
            let constants = beyond_memory(kind, 50, dir.path()).unwrap();
            let ops: Vec<_> = constants.iter().map(|one| one.op.as_str()).collect();
            let all = ["get", "put", "merge", "delete"];
            let wanted: Vec<_> = all.into_iter().filter(|op| !lists || *op != "put").collect();
            assert_eq!(ops, wanted, "{}", kind.name);
            // How much more is time on the clock, which other work makes longer.
            let calibration = Calibration { cold: constants, ..Calibration::default() };
            assert!(calibration.cold(kind.name, Op::Get).unwrap() >= 0.0);
            assert_eq!(calibration.cold("e", Op::Get), None);
        }
    }

    #[test]
    fn a_calibration_is_read_as_it_was_written_and_others_refused() {
        let dir = tempfile::tempdir().unwrap();
        let kinds = built_in();
        let kind = kinds.iter().find(|kind| kind.name == "ours-append-log").unwrap();
        let costs = in_memory(kind, 16, 500, dir.path()).unwrap();
        assert!(costs.iter().all(|(_, ns)| *ns > 0.0), "{costs:?}");
        let mut calibration = Calibration::default();
        calibration.take("ours-append-log", 16, 500, &[costs]);
        let path = dir.path().join("c.json");
        std::fs::write(&path, serde_json::to_string(&calibration).unwrap()).unwrap();
        assert_eq!(Calibration::read(&path).unwrap(), calibration);
        std::fs::write(&path, "{}\n").unwrap();
        let error = Calibration::read(&path).unwrap_err().to_string();
        assert!(error.contains("c.json: line") && error.contains("no calibration"), "{error}");
    }
}
