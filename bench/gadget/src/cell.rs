//! One cell of a report: one operator on one engine, once, in a process of its own.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::access::Trace;
use crate::engine::{Kind, Open, bytes_in};
use crate::event::Stream;
use crate::measure::{Bound, LatencyFigures, Stopwatch, System, Timing, WARM_UP_SHARE};
use crate::native::{self, NativeKind};
use crate::operator::{Name, Options, trace_of};
use crate::replay::{Expected, expect, replay, sweep};
use crate::value::Answers;
use crate::{Error, Result, model};

/// Events that a native row takes at once.
const EVENTS_AT_ONCE: usize = 256;

/// An operator's work, the same for all engines.
#[derive(Debug)]
pub struct Work {
    /// The operator.
    pub operator: Name,
    /// Its numbers.
    pub options: Options,
    /// The events.
    pub stream: Stream,
    /// The accesses.
    pub trace: Trace,
    /// What they return.
    pub expected: Expected,
    /// Accesses generated per second.
    pub generated_per_s: f64,
}

impl Work {
    /// Makes the accesses, checks their grammar, and compares the twin's answers with the model's.
    ///
    /// # Errors
    /// [`Error::Wrong`] if one of these does not hold.
    pub fn new(operator: Name, options: Options, stream: Stream) -> Result<Self> {
        options.check()?;
        let mut machine = operator.operator(&options);
        let began = Instant::now();
        let trace = trace_of(&mut *machine, &stream);
        let generated_per_s = trace.count() as f64 / began.elapsed().as_secs_f64();
        machine.grammar().check(&trace)?;
        let expected = expect(&trace, &stream, machine.shape())?;
        let wanted = model::answers(operator, &options, &stream);
        if expected.answers != wanted {
            let found = expected.answers;
            let message = format!("{operator}: answers {found:?}, the model's are {wanted:?}");
            return Err(Error::Wrong(message));
        }
        Ok(Work { operator, options, stream, trace, expected, generated_per_s })
    }
}

/// How a cell ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind", content = "why")]
pub enum Outcome {
    /// All was done, and every value was right.
    Whole,
    /// The time limit cut it; every value until then was right.
    Cut,
    /// The engine is not there, does not run the operator, or has too little memory for it.
    Refused(String),
    /// The engine failed or returned a wrong value.
    Failed(String),
}

/// What one run of a cell showed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// The operator.
    pub operator: String,
    /// The engine.
    pub engine: String,
    /// Its version.
    pub version: String,
    /// The round it was run in, and which of a pair of the same engine.
    pub round: String,
    /// Events a second that were due; `None` in a closed loop.
    pub rate: Option<f64>,
    /// How it ended.
    pub outcome: Outcome,
    /// Figures, unless it was refused or failed.
    pub figures: Option<Figures>,
    /// The command that repeats it.
    pub command: String,
}

/// Figures of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Events that were taken.
    pub events: u64,
    /// Number of accesses. A native row makes none: it counts the accesses of the other rows for the same events.
    pub accesses: u64,
    /// How long that took.
    pub seconds: f64,
    /// Events per second.
    pub events_per_s: f64,
    /// The same after the warm-up, which is the first quarter.
    pub steady_events_per_s: f64,
    /// Accesses per second.
    pub accesses_per_s: f64,
    /// Processor time of all threads per access, in nanoseconds.
    pub cpu_ns_per_access: f64,
    /// Resident memory at the end less that before the engine was opened.
    pub resident_bytes: u64,
    /// The most resident memory, less that before.
    pub resident_bytes_max: u64,
    /// Bytes that the device wrote.
    pub device_written: u64,
    /// Bytes that the device read.
    pub device_read: u64,
    /// Bytes of keys and values that were put and merged.
    pub logical_written: u64,
    /// Bytes of files at the end.
    pub file_bytes: u64,
    /// The most bytes of keys and values that were live.
    pub live_bytes_max: u64,
    /// Bytes of keys and values that are live at the end.
    pub live_bytes: u64,
    /// Time of a checkpoint at the end, where there are checkpoints.
    pub checkpoint_s: Option<f64>,
    /// Time to open it again after that, where it recovers; every value was compared then.
    pub recovery_s: Option<f64>,
    /// Answers that were told.
    pub answers: u64,
    /// Their digest.
    pub answers_digest: u64,
    /// The digest of all values returned, in order; 0 of native rows.
    pub values_digest: u64,
    /// Latencies by kind of access and by phase, in nanoseconds.
    pub latencies: BTreeMap<String, LatencyFigures>,
    /// One access of so many was timed.
    pub sample: u32,
    /// What reading the clock twice costs, in nanoseconds.
    pub clock_ns: u64,
    /// Accesses generated per second.
    pub generated_per_s: f64,
    /// What the engine says of the run.
    #[serde(default)]
    pub remark: Option<String>,
}

/// How a cell is run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The engine's memory.
    pub memory_bytes: u64,
    /// What a cgroup around the engine has beyond its memory; `None` without one.
    pub bound_bytes: Option<u64>,
    /// The time limit.
    pub most: Duration,
    /// Events per second; `None` for a closed loop.
    pub rate: Option<f64>,
    /// One access of so many is timed; 0 chooses by the engine.
    pub sample: u32,
}

impl Plan {
    fn timing(&self, sample: u32, steps: usize) -> Timing {
        let warm_up = (steps as f64 * WARM_UP_SHARE) as usize;
        let sample = if self.sample == 0 { sample } else { self.sample };
        Timing { most: self.most, sample, rate: self.rate, warm_up }
    }

    /// Enters a cgroup, if there is to be one.
    fn bound(&self) -> Result<Option<Bound>> {
        self.bound_bytes.map(|more| Bound::enter(self.memory_bytes + more)).transpose()
    }

    fn open(&self, work: &Work, directory: &Path) -> Open {
        Open {
            directory: directory.to_owned(),
            memory_bytes: self.memory_bytes,
            operator: work.operator,
            options: work.options,
            events: work.stream.events.len(),
        }
    }
}

/// Runs `work` on an engine.
///
/// # Errors
/// The engine's; [`Error::Wrong`], naming the access, if a value is wrong.
pub fn run(work: &Work, kind: &Kind, plan: &Plan, directory: &Path) -> Result<(Outcome, Figures)> {
    let before = System::from_here();
    let _bound = plan.bound()?;
    let mut engine = kind.open(&plan.open(work, directory))?;
    let (trace, opened) = (&work.trace, System::now());
    let sample = if kind.in_memory { 61 } else { 7 };
    let mut watch = Stopwatch::start(plan.timing(sample, trace.steps.len()));
    let shape = work.operator.shape();
    let done =
        replay(trace, &work.stream, shape, &work.expected, &mut *engine, kind.updates, &mut watch)?;
    let seconds = watch.elapsed().as_secs_f64();
    let after = System::now();
    let remark = engine.remark()?;
    if done.is_complete {
        if done.answers != work.expected.answers {
            return Err(wrong_answers(done.answers, work.expected.answers));
        }
        sweep(trace, &work.expected, &mut *engine)?;
    }
    let checkpoint_s = timed(|| engine.checkpoint())?;
    let mut recovery_s = None;
    if checkpoint_s.is_some() && kind.recovers {
        drop(engine);
        let began = Instant::now();
        engine = kind.open(&plan.open(work, directory))?;
        recovery_s = Some(began.elapsed().as_secs_f64());
        if done.is_complete {
            sweep(trace, &work.expected, &mut *engine)?;
        }
    }
    let steps = &trace.steps[..done.steps];
    let events = steps.iter().filter(|step| step.phase == crate::access::Phase::Event).count();
    let mut figures = Figures {
        events: events as u64,
        accesses: done.accesses,
        logical_written: done.bytes_written,
        checkpoint_s,
        recovery_s,
        answers: done.answers.count,
        answers_digest: done.answers.digest,
        values_digest: done.digest,
        remark,
        ..Figures::default()
    };
    figures.measured(work, &watch, seconds, (before, opened, after), directory);
    drop(engine);
    Ok((if done.is_complete { Outcome::Whole } else { Outcome::Cut }, figures))
}

fn wrong_answers(found: Answers, wanted: Answers) -> Error {
    Error::Wrong(format!("the answers are {found:?}, the model's {wanted:?}"))
}

/// The time of what was done, if it was.
fn timed(act: impl FnOnce() -> Result<bool>) -> Result<Option<f64>> {
    let began = Instant::now();
    Ok(act()?.then(|| began.elapsed().as_secs_f64()))
}

/// Runs `work` on ours natively.
///
/// # Errors
/// As [`run`].
pub fn run_native(
    work: &Work,
    kind: &NativeKind,
    plan: &Plan,
    directory: &Path,
) -> Result<(Outcome, Figures)> {
    native::check(&work.stream.events)?;
    let before = System::from_here();
    let _bound = plan.bound()?;
    let (mut native, store) = kind.open(&plan.open(work, directory))?;
    let opened = System::now();
    let stream = &work.stream;
    let mut watch = Stopwatch::start(plan.timing(1, stream.events.len()));
    let (mut sent, mut done) = (i64::MIN, 0);
    let is_complete = 'run: {
        for (from, events, watermark) in stream.batches() {
            let mut at = 0;
            while at < events.len() {
                if !watch.looks(from + at) {
                    break 'run false;
                }
                let most = EVENTS_AT_ONCE.min(events.len() - at);
                let count = watch.due((from + at) as u64, most);
                let began = watch.now();
                native.push((from + at) as u32, &events[at..at + count], sent)?;
                watch.ran((from + at) as u64, count, began);
                at += count;
                done = from + at;
            }
            done = from + events.len();
            sent = sent.max(watermark);
            let began = watch.now();
            native.advance(sent)?;
            watch.fired(began);
        }
        true
    };
    let seconds = watch.elapsed().as_secs_f64();
    let after = System::now();
    let answers = native.answers();
    if is_complete && answers != work.expected.answers {
        return Err(wrong_answers(answers, work.expected.answers));
    }
    let checkpoint_s = timed(|| Ok(store.checkpoint(1).map(|_| true)?))?;
    drop((native, store));
    let began = Instant::now();
    let _again = kind.open(&plan.open(work, directory))?;
    let recovery_s = Some(began.elapsed().as_secs_f64());
    let share = done as f64 / stream.events.len() as f64;
    let mut figures = Figures {
        events: done as u64,
        accesses: (work.trace.count() as f64 * share) as u64,
        checkpoint_s,
        recovery_s,
        answers: answers.count,
        answers_digest: answers.digest,
        ..Figures::default()
    };
    figures.measured(work, &watch, seconds, (before, opened, after), directory);
    Ok((if is_complete { Outcome::Whole } else { Outcome::Cut }, figures))
}

impl Figures {
    /// Events per second if the time that making the accesses took counts too: the operator's own work, which
    /// a native row does within its time. Making them stores them, so this is a little less than an operator
    /// beside the store would reach.
    pub fn events_per_s_with_operator(&self) -> f64 {
        let making = match self.generated_per_s > 0.0 {
            true => self.accesses as f64 / self.generated_per_s,
            false => 0.0,
        };
        self.events as f64 / (self.seconds + making)
    }

    fn measured(
        &mut self,
        work: &Work,
        watch: &Stopwatch,
        seconds: f64,
        (before, opened, after): (System, System, System),
        directory: &Path,
    ) {
        let events = self.events as f64;
        self.seconds = seconds;
        self.events_per_s = events / seconds;
        self.accesses_per_s = self.accesses as f64 / seconds;
        let warm = watch.warm_up().map_or(seconds, |warm| warm.as_secs_f64());
        let warm_events = work.stream.events.len() as f64 * WARM_UP_SHARE;
        self.steady_events_per_s = match seconds > warm && events > warm_events {
            true => (events - warm_events) / (seconds - warm),
            false => self.events_per_s,
        };
        let processor = (after.processor - opened.processor).as_nanos() as f64;
        self.cpu_ns_per_access = processor / self.accesses.max(1) as f64;
        self.resident_bytes = after.resident_bytes.saturating_sub(before.resident_bytes);
        self.resident_bytes_max = after
            .resident_bytes_max
            .max(after.resident_bytes)
            .saturating_sub(before.resident_bytes);
        let ended = System::now();
        self.device_written = ended.device_written - before.device_written;
        self.device_read = after.device_read - before.device_read;
        self.file_bytes = bytes_in(directory);
        self.live_bytes_max = work.expected.live_bytes_max;
        self.live_bytes = work.expected.left_bytes;
        self.latencies = watch.figures();
        self.sample = watch.sample();
        self.clock_ns = watch.clock_ns();
        self.generated_per_s = work.generated_per_s;
    }
}
