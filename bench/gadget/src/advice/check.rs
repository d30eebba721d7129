//! Whether advice is good: each candidate is measured on each operator and on YCSB, and the advised
//! one is compared with the best, by the processor time of the thread that makes the accesses.

use super::{CANDIDATES, Calibration, advise, runs};
use crate::Result;
use crate::engine::Kind;
use crate::event::Watermarks;
use crate::generator::Generator;
use crate::operator::{Name, Options};
use crate::paper::{Paper, recording};
use crate::random::Amount;
use crate::trace::Recording;
use crate::ycsb::Workload;
use alluvium_reports::short;

/// The advised layout may take so many times as long as the best.
const BOUND: f64 = 1.15;
/// How often each is measured; the median counts.
const ROUNDS: usize = 3;

/// Measures all candidates on traces of about `accesses` accesses; shows a line for each to `tell`.
/// Returns how many traces had an advised layout beyond the bound.
///
/// # Errors
/// The engines'.
pub fn check(
    calibration: &Calibration,
    kinds: &[Kind],
    accesses: usize,
    memory_bytes: u64,
    tell: &mut dyn FnMut(&str),
) -> Result<usize> {
    let paper = Paper {
        tasks: None,
        jobs: None,
        events: accesses,
        accesses,
        engines: Vec::new(),
        memory_bytes,
        seconds: 60.0,
        flink: None,
        rows: std::cell::OnceCell::new(),
    };
    let mut beyond = 0;
    for (name, trace) in traces(accesses)? {
        let trace = trace.first(accesses);
        let advice = advise(&trace, memory_bytes, calibration)?;
        let times = measured(&paper, &trace, kinds)?;
        let of = |engine: &str| times.iter().find(|(name, _)| *name == engine).map(|(_, ns)| *ns);
        let best = times.iter().map(|(_, ns)| *ns).fold(f64::MAX, f64::min);
        let advised = of(advice.best().engine);
        let ratio = advised.map_or(f64::MAX, |ns| ns / best);
        let note = if ratio > BOUND { "  BEYOND 1.15" } else { "" };
        beyond += usize::from(ratio > BOUND);
        let all: Vec<_> =
            times.iter().map(|(name, ns)| format!("{} {}", &name[5..], short(*ns))).collect();
        let expected = advice.best().cost.unwrap_or(0.0);
        let engine = &advice.best().engine[5..];
        tell(&format!(
            "{name:22} advised {engine:11} {ratio:.2} of the best, {expected:.0} ns expected; ns measured: {}{note}",
            all.join(", ")
        ));
    }
    Ok(beyond)
}

/// Eleven operators and three workloads of YCSB.
fn traces(accesses: usize) -> Result<Vec<(String, Recording)>> {
    let mut traces = Vec::new();
    for name in Name::ALL {
        let generator = Generator {
            events: accesses / 2,
            keys: 10_000,
            gap: Amount::Exponential(0.001),
            watermarks: Watermarks::Events(100),
            right_percent: if name.joins() { 50.0 } else { 0.0 },
            ..Generator::default()
        };
        let options = Options { gap: 2, lower: -2, upper: 3, ..Options::default() };
        traces.push((name.to_string(), recording(name, &options, &generator.stream()?)?));
    }
    for letter in ["A", "D", "F"] {
        let operations = accesses as u64;
        let workload = Workload { operations, ..Workload::core(letter)? };
        traces.push((format!("YCSB {letter}"), workload.recording(true)?));
    }
    Ok(traces)
}

/// Nanoseconds of processor time per access of each candidate that runs a trace, in turns.
fn measured(paper: &Paper, trace: &Recording, kinds: &[Kind]) -> Result<Vec<(&'static str, f64)>> {
    let kinds = kinds.iter().filter(|kind| CANDIDATES.contains(&kind.name));
    let kinds: Vec<_> = kinds.filter(|kind| runs(kind, trace, paper.memory_bytes)).collect();
    let mut all = vec![Vec::new(); kinds.len()];
    for _ in 0..ROUNDS {
        for (kind, times) in kinds.iter().zip(&mut all) {
            if let Some((played, _)) = paper.play(trace, kind)? {
                times.push(played.processor_s * 1e9 / played.accesses.max(1) as f64);
            }
        }
    }
    let median = |mut times: Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times.get(times.len() / 2).copied()
    };
    let medians =
        kinds.iter().zip(all).filter_map(|(kind, times)| Some((kind.name, median(times)?)));
    Ok(medians.collect())
}
