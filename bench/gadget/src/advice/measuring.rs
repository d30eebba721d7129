//! Measures the costs that advice goes by. Costs in memory are processor time of the thread, so that
//! other work on the machine counts little; those beyond it are time on the clock.

use std::path::Path;
use std::time::Instant;

use super::{CANDIDATES, Calibration, Constant, State};
use crate::access::digits;
use crate::engine::{Engine, Kind, Open};
use crate::measure::thread_time;
use crate::operator::{Name, Options};
use crate::random::Random;
use crate::trace::{Op, digest_of, fill};
use crate::{Error, Result};
use alluvium_reports::environment;

/// Value sizes.
const SIZES: [u32; 2] = [16, 1024];
/// Numbers of keys: some that the processor's cache has, and some that it has not.
pub(super) const KEYS: [u64; 2] = [1000, 50_000];
const MEMORY_BYTES: u64 = 256 << 20;
/// Memory and keys of the phases that miss: the state is four times the memory.
const SMALL_MEMORY_BYTES: u64 = 4 << 20;
const SMALL_MEMORY_KEYS: u64 = 16_000;
/// Operations of each of these phases.
const COLD_STEPS: u64 = 3000;
/// So many times as many writes come before them.
const COLD_WARM_UP: u64 = 5;
/// Further keys of a measured range.
const RANGE_KEYS: u64 = 8;
/// Values of these phases, and what a merge appends.
const COLD_BYTES: [u32; 2] = [1024, 16];

impl Calibration {
    /// Measures all candidates: some seconds. Each phase is measured `rounds` times, and the median counts.
    ///
    /// # Errors
    /// The engines'.
    pub fn measure(kinds: &[Kind], rounds: usize, directory: &Path) -> Result<Self> {
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
                let costs = (0..rounds).map(|_| in_memory(kind, bytes, keys, directory));
                let costs = costs.collect::<Result<Vec<_>>>()?;
                calibration.take(name, bytes, keys, false, &costs);
                if name == "ours-append-log" {
                    continue;
                }
                let costs = (0..rounds).map(|_| with_ranges(kind, bytes, keys, directory));
                let costs = costs.collect::<Result<Vec<_>>>()?;
                calibration.take(name, bytes, keys, true, &costs);
            }
            if super::spills(name) {
                calibration.cold.extend(beyond_memory(kind, (COLD_STEPS, rounds), directory)?);
            }
        }
        Ok(calibration)
    }
}

fn open(
    kind: &Kind,
    memory_bytes: u64,
    ordered: bool,
    directory: &Path,
) -> Result<(Box<dyn Engine>, tempfile::TempDir)> {
    let made = tempfile::Builder::new().prefix("calibration-").tempdir_in(directory);
    let made = made.map_err(|error| Error::io(directory, "make a directory in", error))?;
    let operator = match kind.name {
        "ours-append-log" => Name::SessionHolistic,
        _ if ordered => Name::IntervalJoin,
        _ => Name::Aggregation,
    };
    let (options, directory) = (Options::default(), made.path().to_owned());
    let open = Open { directory, memory_bytes, operator, options, events: 1 << 16 };
    Ok((kind.open(&open)?, made))
}

/// Costs of each operation on an engine that keeps all in memory.
fn in_memory(kind: &Kind, bytes: u32, keys: u64, directory: &Path) -> Result<Vec<(Op, f64)>> {
    let (mut engine, _made) = open(kind, MEMORY_BYTES, false, directory)?;
    let lists = kind.name == "ours-append-log";
    let write = if lists { Op::Merge } else { Op::Put };
    let mut phases = Phases::new(&mut *engine, bytes, keys);
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

/// Costs on an engine that keeps its keys in order too: a seek is a range of one key, and each further
/// key of a range is a next.
fn with_ranges(kind: &Kind, bytes: u32, keys: u64, directory: &Path) -> Result<Vec<(Op, f64)>> {
    let (mut engine, _made) = open(kind, MEMORY_BYTES, true, directory)?;
    let mut phases = Phases::new(&mut *engine, bytes, keys);
    let (steps, mut random) = (keys.max(20_000), Random::new(1));
    let mut any = move |_: u64| random.below(keys);
    phases.run(Op::Put, keys, &mut |number| number)?;
    let mut costs: Vec<(Op, f64)> = Vec::new();
    for op in [Op::Get, Op::Put] {
        costs.push((op, phases.run(op, steps, &mut any)?));
    }
    let seek = phases.run(Op::Seek, steps / 4, &mut any)?;
    phases.range = RANGE_KEYS;
    let range = phases.run(Op::Seek, steps / 4, &mut any)?;
    costs.push((Op::Seek, seek));
    costs.push((Op::Next, ((range - seek) / RANGE_KEYS as f64).max(1.0)));
    costs.push((Op::Delete, phases.run(Op::Delete, keys, &mut |number| number * 7 % keys)?));
    costs.push((Op::Merge, phases.run(Op::Merge, steps, &mut any)?));
    Ok(costs)
}

/// What each operation on state that is larger than memory costs more than on state that is not, for
/// each key that is not in memory.
fn beyond_memory(
    kind: &Kind,
    (steps, rounds): (u64, usize),
    directory: &Path,
) -> Result<Vec<Constant>> {
    let mut measured = Vec::new();
    for _ in 0..rounds {
        let small = cold_phases(kind, SMALL_MEMORY_BYTES, steps, directory)?;
        measured.push((small, cold_phases(kind, MEMORY_BYTES, steps, directory)?));
    }
    let missed = 1.0
        - cold_state(kind).cached(kind.name, SMALL_MEMORY_BYTES) as f64 / SMALL_MEMORY_KEYS as f64;
    let more = |place: usize| {
        let mut all: Vec<f64> = measured
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
        ordered: false,
        ns: more(place),
    };
    Ok(measured[0].0.iter().enumerate().map(constant).collect())
}

/// The state of these phases.
fn cold_state(kind: &Kind) -> State {
    let value_max = u64::from(COLD_BYTES[0]);
    let (keys, value_bytes) = (SMALL_MEMORY_KEYS, SMALL_MEMORY_KEYS * value_max);
    let element_bytes = (kind.name == "ours-append-log").then_some(value_max);
    State { keys, key_bytes: 10, value_bytes, value_max, element_bytes, deleted: 0 }
}

/// Nanoseconds on the clock of each operation on keys of equal chance.
fn cold_phases(
    kind: &Kind,
    memory_bytes: u64,
    steps: u64,
    directory: &Path,
) -> Result<Vec<(Op, f64)>> {
    let (mut engine, _made) = open(kind, memory_bytes, false, directory)?;
    let keys = SMALL_MEMORY_KEYS;
    let lists = kind.name == "ours-append-log";
    let write = if lists { Op::Merge } else { Op::Put };
    let [bytes, more] = COLD_BYTES;
    let mut phases = Phases { by_clock: true, ..Phases::new(&mut *engine, bytes, keys) };
    phases.run(write, keys, &mut |number| number)?;
    let mut random = Random::new(2);
    let mut any = move |_: u64| random.below(keys);
    // From now on what was overwritten is rewritten, which belongs to the costs.
    phases.bytes = if lists { more } else { bytes };
    phases.run(write, steps * COLD_WARM_UP, &mut any)?;
    phases.bytes = bytes;
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
    /// Keys that a seek visits beside its own.
    range: u64,
}

impl<'a> Phases<'a> {
    fn new(engine: &'a mut dyn Engine, bytes: u32, keys: u64) -> Self {
        Phases { engine, bytes, keys, value: Vec::new(), number: 0, by_clock: false, range: 0 }
    }

    /// Makes `steps` operations on the keys that `key` says; returns nanoseconds for each.
    fn run(&mut self, op: Op, steps: u64, key: &mut dyn FnMut(u64) -> u64) -> Result<f64> {
        let by_clock = self.by_clock;
        let named = |number| {
            let key = key(number) % self.keys;
            (digits(key), digits(key + self.range))
        };
        let names: Vec<([u8; 10], [u8; 10])> = (0..steps).map(named).collect();
        let (began, processor, mut read) = (Instant::now(), thread_time(), 0);
        for (name, last) in &names {
            self.number += 1;
            match op {
                Op::Seek => {
                    self.engine
                        .range(name, last, &mut |_, value| read ^= digest_of(Some(value)))?;
                }
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
    fn each_operation_beyond_memory_has_a_cost() {
        let dir = tempfile::tempdir().unwrap();
        for kind in built_in().iter().filter(|kind| crate::advice::spills(kind.name)) {
            let lists = kind.name == "ours-append-log";
            let constants = beyond_memory(kind, (50, 3), dir.path()).unwrap();
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
    fn each_operation_in_memory_has_a_cost() {
        let dir = tempfile::tempdir().unwrap();
        let kinds = built_in();
        let kind = |name| kinds.iter().find(|kind| kind.name == name).unwrap();
        let ops = |costs: &[(Op, f64)]| {
            assert!(costs.iter().all(|(_, ns)| *ns > 0.0), "{costs:?}");
            costs.iter().map(|(op, _)| *op).collect::<Vec<_>>()
        };
        let lists = in_memory(kind("ours-append-log"), 16, 500, dir.path()).unwrap();
        assert_eq!(ops(&lists), [Op::Get, Op::Delete, Op::Merge]);
        let values = in_memory(kind("ours-heap"), 16, 500, dir.path()).unwrap();
        assert_eq!(ops(&values), [Op::Get, Op::Put, Op::Delete, Op::Merge]);
        let ranges = with_ranges(kind("ours-heap"), 16, 500, dir.path()).unwrap();
        let all = [Op::Get, Op::Put, Op::Seek, Op::Next, Op::Delete, Op::Merge];
        assert_eq!(ops(&ranges), all);
    }
}
