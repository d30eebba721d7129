//! Whether advice is good: each candidate is measured on each operator and on YCSB, and the advised
//! one is compared with the best: in memory by the processor time of the thread that makes the
//! accesses, and with a quarter of the state as memory by the clock, as reads of storage wait.

use serde::Serialize;

use super::{Advice, CANDIDATES, Calibration, Candidate, Needs, advise, runs};
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
pub const BOUND: f64 = 1.15;
/// How often each is measured; the median counts.
const ROUNDS: usize = 3;
/// The least memory of a state that does not fit.
const BEYOND_MEMORY_MIN: u64 = 2 << 20;
/// Seconds after which a replay beyond memory is cut.
const BEYOND_SECONDS: f64 = 10.0;
/// Such a state is so many times the memory, and so many times at least where that would be too little.
const BEYOND: u64 = 4;
const BEYOND_MIN: u64 = 2;

/// What is checked, and with how much memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// State that fits into so many bytes.
    Bytes(u64),
    /// A quarter of each trace's state, or 2 MiB if that is more and at most half of it.
    Quarter,
}

impl Memory {
    fn is_beyond(self) -> bool {
        self == Memory::Quarter
    }

    /// The memory for a state, if it is large enough.
    fn of(self, state_bytes: u64) -> Option<u64> {
        match self {
            Memory::Bytes(bytes) => Some(bytes),
            Memory::Quarter => {
                let memory = (state_bytes / BEYOND).max(BEYOND_MEMORY_MIN);
                (memory <= state_bytes / BEYOND_MIN).then_some(memory)
            }
        }
    }
}

/// A candidate on a trace.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Run {
    /// The engine.
    pub engine: &'static str,
    /// Nanoseconds per access that were expected; none if it was refused.
    pub expected: Option<f64>,
    /// The share of accesses that was expected to miss.
    pub misses: f64,
    /// Why it was refused.
    pub refused: Option<String>,
    /// Nanoseconds per access that were measured.
    pub measured: Option<f64>,
    /// Whether a replay was cut.
    pub is_cut: bool,
    /// Why it could not be measured.
    pub failed: Option<String>,
}

/// A trace that was checked.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Row {
    /// The operator or workload.
    pub trace: String,
    /// What its state takes in memory.
    pub state_bytes: u64,
    /// The memory; none if the state is too small to be larger than it.
    pub memory_bytes: Option<u64>,
    /// The advised engine; none if all were refused.
    pub advised: Option<&'static str>,
    /// How many times as long it took as the best; none if it failed or there is no best.
    pub ratio: Option<f64>,
    /// The candidates that were measured, or expected to run.
    pub runs: Vec<Run>,
}

impl Row {
    /// Whether the advised layout took more than 1.15 times as long as the best, failed, or was not named
    /// though one runs.
    pub fn is_beyond(&self) -> bool {
        let some_run = self.runs.iter().any(|run| run.measured.is_some());
        self.ratio.map_or(some_run, |ratio| ratio > BOUND)
    }

    /// In words.
    pub fn text(&self) -> String {
        let Self { trace, state_bytes, advised, ratio, runs, .. } = self;
        let Some(memory) = self.memory_bytes else {
            let state = state_bytes >> 10;
            return format!("{trace:22} its state of {state} KiB is less than two least memories");
        };
        let advised = advised.map_or("none", |engine| &engine[5..]);
        let ratio = ratio.map_or("none".to_owned(), |ratio| format!("{ratio:.2}"));
        let runs: Vec<_> = runs.iter().map(Run::text).collect();
        let note = if self.is_beyond() { "  BEYOND 1.15" } else { "" };
        format!(
            "{trace:22} advised {advised:11} {ratio} of the best; {} KiB of memory; ns expected and \
             measured: {}{note}",
            memory >> 10,
            runs.join("; ")
        )
    }
}

impl Run {
    fn text(&self) -> String {
        let expected = match (&self.expected, &self.refused) {
            (Some(ns), _) if self.misses > 0.0 => {
                format!("{} ({:.1} % miss)", short(*ns), self.misses * 100.0)
            }
            (Some(ns), _) => short(*ns),
            (None, Some(why)) => why.clone(),
            (None, None) => "nothing".to_owned(),
        };
        let cut = if self.is_cut { "*" } else { "" };
        let measured = match (&self.measured, &self.failed) {
            (Some(ns), _) => format!("{}{cut}", short(*ns)),
            (None, Some(why)) => format!("failed: {why}"),
            (None, None) => "not run".to_owned(),
        };
        format!("{} {expected}, {measured}", &self.engine[5..])
    }
}

/// How often the advised layout was how good.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Checked {
    /// The traces.
    pub rows: Vec<Row>,
}

impl Checked {
    /// Traces whose advised layout took more than 1.15 times as long as the best.
    pub fn beyond(&self) -> usize {
        self.rows.iter().filter(|row| row.is_beyond()).count()
    }

    /// Those whose state is too small to be larger than the least memory.
    pub fn too_small(&self) -> usize {
        self.rows.iter().filter(|row| row.memory_bytes.is_none()).count()
    }

    /// The result in a line, which names the traces where the advice was not good enough.
    pub fn text(&self) -> String {
        let measured = self.rows.len() - self.too_small();
        let beyond = self.rows.iter().filter(|row| row.is_beyond());
        let names: Vec<_> = beyond.map(|row| row.trace.as_str()).collect();
        let which =
            if names.is_empty() { String::new() } else { format!(": {}", names.join(", ")) };
        let small = match self.too_small() {
            0 => String::new(),
            small => format!("; {small} have too little state"),
        };
        format!("{} of {measured} beyond {BOUND}{which}{small}", self.beyond())
    }
}

/// Measures all candidates on traces of about `accesses` accesses; gives each trace's row to `tell`.
///
/// # Errors
/// Those of engines whose memory holds the state, and those of `tell`.
pub fn check(
    calibration: &Calibration,
    kinds: &[Kind],
    accesses: usize,
    memory: Memory,
    tell: &mut dyn FnMut(Row) -> Result<()>,
) -> Result<()> {
    for (name, trace) in traces(accesses, memory)? {
        let one = Checking { name: &name, trace: &trace.first(accesses), memory, rounds: ROUNDS };
        tell(one.check(calibration, kinds)?)?;
    }
    Ok(())
}

/// A trace that is checked.
struct Checking<'a> {
    name: &'a str,
    trace: &'a Recording,
    memory: Memory,
    rounds: usize,
}

/// Nanoseconds per access of an engine in each round, and whether one was cut; why it failed.
type Times = std::result::Result<(Vec<f64>, bool), String>;

impl Checking<'_> {
    /// Checks it, unless its state is too small.
    fn check(&self, calibration: &Calibration, kinds: &[Kind]) -> Result<Row> {
        let state_bytes = Needs::of(self.trace).state.bytes();
        let memory_bytes = self.memory.of(state_bytes);
        let row = Row { trace: self.name.to_owned(), state_bytes, memory_bytes, ..Row::default() };
        match memory_bytes {
            None => Ok(row),
            Some(bytes) => {
                let advice = advise(self.trace, bytes, calibration)?;
                Ok(compared(row, &advice, self.measured(kinds, bytes)?))
            }
        }
    }

    /// The times of each candidate that runs the trace, in turns: of processor time in memory, of the
    /// clock beyond it.
    fn measured(&self, kinds: &[Kind], memory_bytes: u64) -> Result<Vec<(&'static str, Times)>> {
        let is_beyond = self.memory.is_beyond();
        let mut paper = Paper { memory_bytes, ..Paper::generated_only(0) };
        if is_beyond {
            paper.seconds = BEYOND_SECONDS;
        }
        let kinds = kinds.iter().filter(|kind| CANDIDATES.contains(&kind.name));
        let kinds = kinds.filter(|kind| !is_beyond || super::spills(kind.name));
        let kinds: Vec<_> = kinds.filter(|kind| runs(kind, self.trace, memory_bytes)).collect();
        let mut all: Vec<Times> = vec![Ok((Vec::new(), false)); kinds.len()];
        // There is nothing to compare the only one with.
        let rounds = if kinds.len() > 1 { self.rounds } else { 1 };
        for _ in 0..rounds {
            for (kind, times) in kinds.iter().zip(&mut all) {
                let Ok((times_of, is_cut)) = times else { continue };
                match paper.play(self.trace, kind) {
                    Ok(Some((played, _))) => {
                        let s = if is_beyond { played.seconds } else { played.processor_s };
                        times_of.push(s * 1e9 / played.accesses.max(1) as f64);
                        *is_cut |= !played.is_complete;
                    }
                    Ok(None) => {}
                    Err(error) if is_beyond => *times = Err(error.to_string()),
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(kinds.iter().map(|kind| kind.name).zip(all).collect())
    }
}

/// The row of a trace, with what was advised and measured.
fn compared(mut row: Row, advice: &Advice, measured: Vec<(&'static str, Times)>) -> Row {
    let run = |Candidate { engine, cost, misses }: &Candidate| {
        let (expected, refused) = match cost {
            Ok(ns) => (Some(*ns), None),
            Err(why) => (None, Some(why.clone())),
        };
        let mut run = Run { engine, expected, misses: *misses, refused, ..Run::default() };
        match measured.iter().find(|(name, _)| name == engine) {
            Some((_, Ok((times, is_cut)))) => {
                (run.measured, run.is_cut) = (median(times.clone()), *is_cut);
            }
            Some((_, Err(why))) => run.failed = Some(why.clone()),
            None => {}
        }
        run
    };
    row.runs = advice.candidates.iter().map(run).collect();
    row.runs.retain(|run| run.expected.is_some() || run.measured.is_some() || run.failed.is_some());
    row.advised = advice.best().map(|best| best.engine);
    let best = row.runs.iter().filter_map(|run| run.measured).fold(f64::MAX, f64::min);
    let advised = row.runs.iter().find(|run| Some(run.engine) == row.advised);
    row.ratio = advised.and_then(|run| run.measured).map(|ns| ns / best);
    row
}

fn median(mut times: Vec<f64>) -> Option<f64> {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied()
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
        let mut checked = Checked::default();
        for records in [1000, 30_000] {
            let core = Workload::core("A").unwrap();
            let workload = Workload { operations: 5000, records, ..core };
            let (trace, memory) = (workload.recording(true).unwrap(), Memory::Quarter);
            let one = Checking { name: "A", trace: &trace, memory, rounds: 1 };
            checked.rows.push(one.check(&calibration, &kinds).unwrap());
        }
        assert_eq!((checked.rows.len(), checked.too_small(), checked.beyond()), (2, 1, 0));
        assert_eq!(checked.text(), "0 of 1 beyond 1.15; 1 have too little state");
        let [small, large] = &checked.rows[..] else { panic!("two rows") };
        assert!(small.text().contains("less than two least memories"), "{small:#?}");
        assert!(large.text().contains("advised hybrid-log  1.00 of the best"), "{large:#?}");
        assert!(large.runs[0].misses > 0.0, "{large:#?}");
    }

    #[test]
    fn a_bad_advice_is_named() {
        let advice = |engines: [(&'static str, std::result::Result<f64, String>); 2]| Advice {
            candidates: engines
                .map(|(engine, cost)| Candidate { engine, cost, misses: 0.0 })
                .to_vec(),
            needs: Needs::default(),
            memory_bytes: 0,
        };
        let times = |heap: Times, log: Times| vec![("ours-heap", heap), ("ours-hybrid-log", log)];
        let took = |ns| Ok((vec![ns], false));
        let named = |advice: &Advice, times| {
            let row = Row { trace: "T".to_owned(), memory_bytes: Some(0), ..Row::default() };
            Checked { rows: vec![compared(row, advice, times)] }.text()
        };
        let costs = advice([("ours-heap", Ok(1.0)), ("ours-hybrid-log", Ok(2.0))]);
        assert_eq!(named(&costs, times(took(114.0), took(100.0))), "0 of 1 beyond 1.15");
        assert_eq!(named(&costs, times(took(116.0), took(100.0))), "1 of 1 beyond 1.15: T");
        let failed = || Err("no memory".to_owned());
        assert_eq!(named(&costs, times(failed(), took(100.0))), "1 of 1 beyond 1.15: T");
        // None that runs was named, and rightly none.
        let none =
            advice([("ours-heap", Err(String::new())), ("ours-hybrid-log", Err(String::new()))]);
        assert_eq!(named(&none, times(failed(), took(100.0))), "1 of 1 beyond 1.15: T");
        assert_eq!(named(&none, times(failed(), failed())), "0 of 1 beyond 1.15");
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
