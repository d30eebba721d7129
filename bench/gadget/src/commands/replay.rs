//! Recording, replaying, and both at once.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;

use super::{ReadArgs, print};
use crate::args::{EngineArgs, InputArgs, OperatorArgs};
use crate::compat;
use crate::engine::{BTree, Engine, Kind, Open};
use crate::measure::{Bound, LatencyFigures, Stopwatch, System, Timing};
use crate::operator::{Name, Options};
use crate::trace::{
    Expected, Line, Op, Played, Player, Recorded, Recording, ReplayPace, Writer, expect, record,
    stand_in,
};
use crate::{Error, Result};

/// A file that is recorded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TraceFile<'a> {
    pub(crate) out: &'a Path,
    pub(crate) is_brief: bool,
    pub(crate) is_compat: bool,
}

/// Records an operator's accesses and prints their digest.
pub(crate) fn record_file(
    operator: Name,
    options: &Options,
    input: &InputArgs,
    file: &TraceFile<'_>,
) -> Result<()> {
    options.check()?;
    if file.is_compat {
        return record_compat(operator, options, input, file.out);
    }
    let stream = input.stream(operator)?;
    let mut writer = Writer::new(file.out, file.is_brief)?;
    let mut machine = operator.operator(options);
    let recorded =
        record(&mut *machine, &stream, &mut BTree::default(), &mut |line| writer.line(line))?;
    writer.finish()?;
    let Recorded { events, accesses, keys, digest, .. } = recorded;
    println!(
        "{operator}: {events} events, {accesses} accesses of {keys} keys, digest {digest:016x}, in {}",
        file.out.display()
    );
    Ok(())
}

/// The original's operations, which have no times and no values.
fn record_compat(operator: Name, options: &Options, input: &InputArgs, out: &Path) -> Result<()> {
    let (left, right, names) = input.rows(operator)?;
    let (mut writer, mut written) = (Writer::new(out, true)?, Ok(()));
    let operations = compat::run(operator, options, &left, &right, &names, &mut |kind, key| {
        let op = Op::ALL.into_iter().find(|op| op.text() == kind);
        if let (Some(op), Ok(())) = (op, &written) {
            written = writer.line(&Line { time: None, op, key: key.as_bytes(), bytes: None });
        }
    });
    written?;
    writer.finish()?;
    let (total, hash) = (operations.total(), operations.hash);
    println!("{operator} as Gadget: {total} operations, hash {hash:016x}, in {}", out.display());
    Ok(())
}

/// An operator on an engine.
#[derive(Args, Debug)]
pub struct OnlineArgs {
    /// The operator
    #[arg(long)]
    operator: Name,
    /// The engine
    #[arg(long)]
    engine: String,
    /// Record the accesses too
    #[arg(long, conflicts_with = "purge")]
    out: Option<PathBuf>,
    #[command(flatten)]
    input: InputArgs,
    #[command(flatten)]
    numbers: OperatorArgs,
    #[command(flatten)]
    run: EngineArgs,
}

/// A trace file on an engine.
#[derive(Args, Debug)]
pub struct ReplayArgs {
    /// The file: a trace of ours, lines of operation and key, or YCSB's log
    #[arg(long)]
    trace: PathBuf,
    /// The engine
    #[arg(long)]
    engine: String,
    /// Make each access when it is due, so many times as fast as the trace's own times
    #[arg(long)]
    speed: Option<f64>,
    /// Microseconds of a unit of the trace's times, for --speed; if neither this nor the trace says, a
    /// second
    #[arg(long)]
    unit_us: Option<u64>,
    #[command(flatten)]
    read: ReadArgs,
    #[command(flatten)]
    run: EngineArgs,
}

/// What a run on an engine showed.
#[derive(Debug, Default, Serialize)]
struct Shown {
    engine: String,
    version: String,
    accesses: u64,
    /// Bad lines that were left out.
    skipped: u64,
    /// Accesses that the trace says are missing.
    missing: u64,
    seconds: f64,
    accesses_per_s: f64,
    /// Of all that was returned, in order.
    digest: String,
    /// Whether the time limit did not cut it.
    is_complete: bool,
    cpu_ns_per_access: f64,
    resident_bytes_max: u64,
    live_bytes_max: u64,
    /// One access of so many was timed.
    sample: u32,
    clock_ns: u64,
    latencies: BTreeMap<String, LatencyFigures>,
    /// What the engine says of the run.
    remark: Option<String>,
}

/// The engine of this name; those with typed state replay no bytes.
pub(super) fn kind_of<'a>(name: &str, kinds: &'a [Kind]) -> Result<&'a Kind> {
    kinds.iter().find(|kind| kind.name == name).ok_or_else(|| {
        let known: Vec<_> = kinds.iter().map(|kind| kind.name).collect();
        let known = known.join(", ");
        Error::Usage(format!("there is no engine {name:?} of keys in bytes, but {known}"))
    })
}

pub(super) fn online(args: &OnlineArgs, kinds: &[Kind]) -> Result<()> {
    let (kind, options) = (kind_of(&args.engine, kinds)?, args.numbers.options());
    options.check()?;
    if options.purge {
        return Err(Error::Usage("--purge: a trace has no line for a purge".to_owned()));
    }
    let stream = args.input.stream(args.operator)?;
    let directory = directory(&args.run)?;
    let (memory_bytes, events) = (args.run.memory_bytes()?, stream.events.len());
    let open = Open {
        directory: directory.path().to_owned(),
        memory_bytes,
        operator: args.operator,
        options,
        events,
    };
    let machine = || args.operator.operator(&options);
    let mut writer = args.out.as_deref().map(|out| Writer::new(out, false)).transpose()?;
    let before = System::from_here();
    let mut engine = kind.open(&open)?;
    let recorded = record(&mut *machine(), &stream, &mut *engine, &mut |line| {
        writer.as_mut().map_or(Ok(()), |writer| writer.line(line))
    })?;
    let after = System::now();
    let twin = record(&mut *machine(), &stream, &mut BTree::default(), &mut |_| Ok(()))?;
    if recorded.digest != twin.digest {
        let (found, wanted) = (recorded.digest, twin.digest);
        return Err(Error::Wrong(format!("digest {found:016x}, the twin's is {wanted:016x}")));
    }
    writer.map_or(Ok(()), Writer::finish)?;
    let Recorded { accesses, digest, seconds, .. } = recorded;
    let played = Played { accesses, digest, seconds, is_complete: true, ..Played::default() };
    print(&shown(kind, &played, (before, after)))
}

fn directory(run: &EngineArgs) -> Result<tempfile::TempDir> {
    let at = run.dir.clone().unwrap_or_else(std::env::temp_dir);
    let made = tempfile::Builder::new().prefix("gadget-").tempdir_in(&at);
    made.map_err(|error| Error::io(&at, "make a directory in", error))
}

fn shown(kind: &Kind, played: &Played, (before, after): (System, System)) -> Shown {
    let processor = after.processor.saturating_sub(before.processor).as_nanos() as f64;
    Shown {
        engine: kind.name.to_owned(),
        version: kind.version.clone(),
        accesses: played.accesses,
        seconds: played.seconds,
        accesses_per_s: played.accesses as f64 / played.seconds.max(1e-9),
        digest: format!("{:016x}", played.digest),
        is_complete: played.is_complete,
        cpu_ns_per_access: processor / played.accesses.max(1) as f64,
        resident_bytes_max: after.resident_bytes_max.saturating_sub(before.resident_bytes),
        ..Shown::default()
    }
}

pub(super) fn replay(args: &ReplayArgs, kinds: &[Kind]) -> Result<()> {
    let kind = kind_of(&args.engine, kinds)?;
    let recording = args.read.read(&args.trace)?;
    let pace = args.pace(&recording)?;
    let expected = expect(&recording)?;
    let directory = directory(&args.run)?;
    let (played, watch, system, remark) =
        run_on(&recording, &expected, kind, &args.run, pace, directory.path())?;
    print(&Shown {
        skipped: recording.skipped(),
        missing: recording.missing(),
        live_bytes_max: expected.live_bytes_max,
        sample: watch.sample(),
        clock_ns: watch.clock_ns(),
        latencies: watch.figures(),
        remark,
        ..shown(kind, &played, system)
    })
}

impl ReplayArgs {
    fn pace(&self, recording: &Recording) -> Result<Option<ReplayPace>> {
        let Some(speed) = self.speed else { return Ok(None) };
        if !(speed.is_finite() && speed > 0.0) {
            return Err(Error::Usage(format!("--speed {speed}: must be above 0")));
        }
        if !recording.is_timed() {
            return Err(Error::Usage("--speed: the trace has no times".to_owned()));
        }
        let unit_us = self.unit_us.or(recording.unit_us()).unwrap_or(1_000_000);
        Ok(Some(ReplayPace { unit_s: unit_us as f64 / 1e6 / speed }))
    }
}

/// How a replay went: with its times, the system before and after, and what the engine says of it.
type Ran = (Played, Stopwatch, (System, System), Option<String>);

/// Opens an engine and replays a recording on it.
pub(super) fn run_on(
    recording: &Recording,
    expected: &Expected,
    kind: &Kind,
    run: &EngineArgs,
    pace: Option<ReplayPace>,
    directory: &Path,
) -> Result<Ran> {
    let (operator, options) = stand_in(recording);
    let memory_bytes = run.memory_bytes()?;
    let open = Open {
        directory: directory.to_owned(),
        memory_bytes,
        operator,
        options,
        events: recording.keys().len(),
    };
    let (bound_bytes, most) = (run.bound_bytes()?, run.most()?);
    let usual = if kind.in_memory { 61 } else { 7 };
    let sample = if run.sample == 0 { usual } else { run.sample };
    let before = System::from_here();
    let _bound = bound_bytes.map(|more| Bound::enter(memory_bytes + more)).transpose()?;
    let mut engine: Box<dyn Engine> = kind.open(&open)?;
    let warm_up = recording.entries().len() / 4;
    let mut watch = Stopwatch::start(Timing { most, sample, rate: None, warm_up });
    let played = Player::play(recording, expected, &mut *engine, pace, &mut watch)?;
    let after = System::now();
    let remark = engine.remark()?;
    Ok((played, watch, (before, after), remark))
}
