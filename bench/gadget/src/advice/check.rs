//! Whether advice is good: each candidate is measured on each operator and on YCSB, and the advised
//! one is compared with the best: in memory by the processor time of the thread that makes the
//! accesses, and with a quarter of the state as memory by the clock, as reads of storage wait.

use super::{CANDIDATES, Calibration, Needs, advise, runs};
use crate::Result;
use crate::engine::Kind;
use crate::event::Watermarks;
use crate::generator::Generator;
use crate::operator::{Name, Options};
use crate::paper::{Paper, recording};
use crate::random::{Amount, KeyShape};
use crate::trace::Recording;
use crate::ycsb::Workload;
use alluvium_reports::short;

/// The advised layout may take so many times as long as the best.
const BOUND: f64 = 1.15;
/// How often each is measured in memory; the median counts.
const ROUNDS: usize = 3;
/// The least memory of a state that does not fit.
const BEYOND_MEMORY_MIN: u64 = 2 << 20;
/// Seconds after which a replay beyond memory is cut.
const BEYOND_SECONDS: f64 = 10.0;
/// Such a state is so many times the memory.
const BEYOND: u64 = 4;

/// What is checked, and with how much memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// State that fits into so many bytes.
    Bytes(u64),
    /// A quarter of each trace's state.
    Quarter,
}

/// How often the advised layout was how good.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// Traces.
    pub traces: usize,
    /// Those whose advised layout took more than 1.15 times as long as the best.
    pub beyond: usize,
    /// Those whose state is too small to have four times the least memory.
    pub too_small: usize,
}

/// Measures all candidates on traces of about `accesses` accesses; shows a line for each to `tell`.
///
/// # Errors
/// The engines', where a state fits.
pub fn check(
    calibration: &Calibration,
    kinds: &[Kind],
    accesses: usize,
    memory: Memory,
    tell: &mut dyn FnMut(&str),
) -> Result<Checked> {
    let mut checked = Checked::default();
    for (name, trace) in traces(accesses, memory)? {
        let rounds = if memory == Memory::Quarter { 1 } else { ROUNDS };
        let one = Checking { name: &name, trace: &trace.first(accesses), memory, rounds };
        one.check(calibration, kinds, &mut checked, tell)?;
    }
    Ok(checked)
}

/// A trace that is checked.
struct Checking<'a> {
    name: &'a str,
    trace: &'a Recording,
    memory: Memory,
    rounds: usize,
}

impl Checking<'_> {
    /// Checks it, unless its state is too small.
    fn check(
        &self,
        calibration: &Calibration,
        kinds: &[Kind],
        checked: &mut Checked,
        tell: &mut dyn FnMut(&str),
    ) -> Result<()> {
        checked.traces += 1;
        let state_bytes = Needs::of(self.trace, u64::MAX).bytes_max;
        let memory_bytes = match self.memory {
            Memory::Bytes(bytes) => bytes,
            Memory::Quarter if state_bytes / BEYOND < BEYOND_MEMORY_MIN => {
                checked.too_small += 1;
                let (name, state) = (self.name, state_bytes >> 10);
                tell(&format!(
                    "{name:22} its state of {state} KiB is less than four least memories"
                ));
                return Ok(());
            }
            Memory::Quarter => state_bytes / BEYOND,
        };
        let is_beyond = self.compare(calibration, kinds, memory_bytes, tell)?;
        checked.beyond += usize::from(is_beyond);
        Ok(())
    }

    /// Whether the advised layout took too long.
    fn compare(
        &self,
        calibration: &Calibration,
        kinds: &[Kind],
        memory_bytes: u64,
        tell: &mut dyn FnMut(&str),
    ) -> Result<bool> {
        let Checking { name, trace, .. } = *self;
        let advice = advise(trace, memory_bytes, calibration)?;
        let times = self.measured(kinds, memory_bytes)?;
        let of = |engine: &str| times.iter().find(|(name, _)| *name == engine).map(|(_, ns)| ns);
        let good = times.iter().filter_map(|(_, ns)| ns.as_ref().ok());
        let best = good.copied().fold(f64::MAX, f64::min);
        let advised = of(advice.best().engine).and_then(|ns| ns.as_ref().ok());
        let ratio = advised.map_or(f64::MAX, |ns| ns / best);
        let note = if ratio > BOUND { "  BEYOND 1.15" } else { "" };
        let found = |(name, ns): &(&str, std::result::Result<f64, String>)| match ns {
            Ok(ns) => format!("{} {}", &name[5..], short(*ns)),
            Err(why) => format!("{} failed: {why}", &name[5..]),
        };
        let all: Vec<_> = times.iter().map(found).collect();
        let expected = |candidate: &super::Candidate| {
            let cost = candidate.cost.as_ref().ok()?;
            Some(format!("{} {}", &candidate.engine[5..], short(*cost)))
        };
        let expected: Vec<_> = advice.candidates.iter().filter_map(expected).collect();
        let engine = &advice.best().engine[5..];
        let ratio_text = if ratio < f64::MAX { format!("{ratio:.2}") } else { "none".to_owned() };
        tell(&format!(
            "{name:22} advised {engine:11} {ratio_text} of the best; {} KiB of memory, {:.1} % miss; ns \
             expected: {}; measured: {}{note}",
            memory_bytes >> 10,
            advice.needs.misses * 100.0,
            expected.join(", "),
            all.join(", ")
        ));
        Ok(ratio > BOUND)
    }

    /// Nanoseconds per access of each candidate that runs the trace, in turns: of processor time in
    /// memory, of the clock beyond it.
    fn measured(
        &self,
        kinds: &[Kind],
        memory_bytes: u64,
    ) -> Result<Vec<(&'static str, std::result::Result<f64, String>)>> {
        let is_beyond = self.memory == Memory::Quarter;
        let mut paper = Paper { memory_bytes, ..Paper::generated_only(0) };
        if is_beyond {
            paper.seconds = BEYOND_SECONDS;
        }
        let kinds = kinds.iter().filter(|kind| CANDIDATES.contains(&kind.name));
        let kinds = kinds.filter(|kind| !is_beyond || super::spills(kind.name));
        let kinds: Vec<_> = kinds.filter(|kind| runs(kind, self.trace, memory_bytes)).collect();
        let mut all: Vec<std::result::Result<Vec<f64>, String>> = vec![Ok(Vec::new()); kinds.len()];
        for _ in 0..self.rounds {
            for (kind, of_kind) in kinds.iter().zip(&mut all) {
                let Ok(times) = of_kind else { continue };
                match paper.play(self.trace, kind) {
                    Ok(Some((played, _))) => {
                        let s = if is_beyond { played.seconds } else { played.processor_s };
                        times.push(s * 1e9 / played.accesses.max(1) as f64);
                    }
                    Ok(None) => {}
                    Err(error) if is_beyond => *of_kind = Err(error.to_string()),
                    Err(error) => return Err(error),
                }
            }
        }
        let median = |mut times: Vec<f64>| {
            times.sort_by(f64::total_cmp);
            times.get(times.len() / 2).copied()
        };
        let medians = kinds.iter().zip(all).filter_map(|(kind, times)| match times {
            Ok(times) => median(times).map(|ns| (kind.name, Ok(ns))),
            Err(why) => Some((kind.name, Err(why))),
        });
        Ok(medians.collect())
    }
}

/// Eleven operators and three workloads of YCSB. Where the state is to be larger than memory, more keys
/// live at a time.
fn traces(accesses: usize, memory: Memory) -> Result<Vec<(String, Recording)>> {
    let is_beyond = memory == Memory::Quarter;
    let mut traces = Vec::new();
    for name in Name::ALL {
        // A window of 5 units has half of all events.
        let gap = if is_beyond { 10.0 / (accesses / 2).max(1) as f64 } else { 0.001 };
        let generator = Generator {
            events: accesses / 2,
            keys: if is_beyond { accesses as u64 } else { 10_000 },
            shape: if is_beyond { KeyShape::Uniform } else { Generator::default().shape },
            gap: Amount::Exponential(gap),
            watermarks: Watermarks::Events(100),
            right_percent: if name.joins() { 50.0 } else { 0.0 },
            size: if is_beyond { Amount::Constant(200.0) } else { Generator::default().size },
            ..Generator::default()
        };
        let options = Options { gap: 2, lower: -2, upper: 3, ..Options::default() };
        traces.push((name.to_string(), recording(name, &options, &generator.stream()?)?));
    }
    for letter in ["A", "D", "F"] {
        let operations = accesses as u64;
        let core = Workload::core(letter)?;
        let records = if is_beyond { operations / 4 } else { core.records };
        let workload = Workload { operations, records, ..core };
        traces.push((format!("YCSB {letter}"), workload.recording(true)?));
    }
    Ok(traces)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::built_in;

    #[test]
    fn small_states_are_left_out_and_others_measured_with_a_quarter_of_their_size() {
        let kinds = built_in();
        let layouts = [("ours-heap", 50.0), ("ours-hybrid-log", 80.0), ("ours-append-log", 60.0)];
        let calibration = crate::advice::tests::constants(&layouts);
        let (mut lines, mut checked) = (Vec::new(), Checked::default());
        for records in [1000, 30_000] {
            let core = Workload::core("A").unwrap();
            let workload = Workload { operations: 5000, records, ..core };
            let (trace, memory) = (workload.recording(true).unwrap(), Memory::Quarter);
            let one = Checking { name: "A", trace: &trace, memory, rounds: 1 };
            let mut tell = |line: &str| lines.push(line.to_owned());
            one.check(&calibration, &kinds, &mut checked, &mut tell).unwrap();
        }
        assert_eq!((checked.traces, checked.too_small, checked.beyond), (2, 1, 0));
        assert!(lines[0].contains("less than four least memories"), "{lines:#?}");
        assert!(lines[1].contains("advised hybrid-log  1.00 of the best"), "{lines:#?}");
        assert!(!lines[1].contains("0.0 % miss"), "{lines:#?}");
    }

    #[test]
    fn each_operator_and_workload_is_checked() {
        for memory in [Memory::Bytes(1 << 30), Memory::Quarter] {
            let traces = traces(4000, memory).unwrap();
            assert_eq!(traces.len(), 14);
            assert!(traces.iter().all(|(_, trace)| trace.entries().len() >= 2000));
        }
    }
}
