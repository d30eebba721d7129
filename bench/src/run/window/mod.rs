//! `window`: a question of each window of a stream, answered by our windows, by what others would
//! use, or by both in turns.
//!
//! Every round is the whole stream on windows that are empty. Events are read ahead of what is
//! timed, a stretch at a time, and pushed in batches; after each batch the windows are told the
//! watermark. The rate is of all events, the time of answering included. Answers are added up by
//! their digests, outside of what is timed; all rounds of both must come to the same sum.

mod held;
mod side;
mod spilled;

use std::time::Duration;

use alluvium_reports::{Table, digits};
use held::Held;
use side::{LONG, Side};
use spilled::Spilled;

use super::state::State;
use crate::args::WindowArgs;
use crate::peers::Peer;
use crate::report::{Percentiles, Progress, Report, noise_floor, peak_rss_bytes};
use crate::window::{ByCounting, ByHand, Engine, EventStream, StoredWindows, Synthetic, Trace};
use crate::{Error, Result};

/// How long the machine's own noise is listened to: a call in ten thousand is not a short time.
const FLOOR: Duration = Duration::from_millis(500);

/// Answers the question of all windows; prints a table of medians and spread.
///
/// The report has the first round's memory and traffic, so that its resident memory is not the
/// peer's. The checksum is that of all answers, whatever their order.
///
/// # Errors
/// The stream's, the windows' or of writing the answers; [`Error::Wrong`] if two of the rounds
/// differ in their answers, [`Error::Usage`] for a layout or peer that cannot answer.
pub fn window(args: &WindowArgs) -> Result<Report> {
    let measured = measure(args)?;
    print_table(args, &measured);
    measured.checked(args)
}

/// The same without a table.
pub(super) fn answered(args: &WindowArgs) -> Result<Report> {
    measure(args)?.checked(args)
}

/// All rounds, whose answers are not yet compared.
struct Measured {
    report: Report,
    ours: Option<Side>,
    theirs: Option<Side>,
    floor: Percentiles,
    spilled: Option<Spilled>,
}

fn measure(args: &WindowArgs) -> Result<Measured> {
    let windows = args.windows()?;
    let layout = args.layout.as_ref();
    if let Some(layout) = layout {
        StoredWindows::check_layout(&layout.layout, args.query)?;
    }
    let mut ours = layout.map(|layout| Side::new(&layout.name));
    let mut theirs = args.vs.map(|peer| Side::new(&peer.to_string()));
    let name = ours.as_ref().or(theirs.as_ref()).map_or("", |side| &side.name);
    let mut report = Report::new(format!("window-{}", args.query), name);
    let mut results = args.results.as_deref();
    let mut spilled = None;
    let progress = Progress::new("window", args.rounds);
    for round in 0..args.rounds {
        if let (Some(side), Some(layout)) = (&mut ours, layout) {
            let state = State::open(&args.state(layout))?;
            let mut engine = StoredWindows::open(&state.store, windows, args.query)?;
            let held = args.held.as_deref().filter(|_| round == 0);
            let held = held.map(|path| Held::create(path, &state.store, windows)).transpose()?;
            side.round(args, &mut *stream(args)?, &mut engine, results.take(), held)?;
            if round == 0 {
                state.describe(&mut report)?;
                let (in_calls, in_all) = side.first();
                drop(engine);
                let written = report.io.bytes_written;
                spilled = Spilled::of(written, in_calls, in_all, state.directory())?;
            }
        }
        if let (Some(side), Some(peer)) = (&mut theirs, args.vs) {
            let mut answer = |engine: &mut dyn Engine| {
                side.round(args, &mut *stream(args)?, engine, results.take(), None)
            };
            match peer {
                Peer::Hashbrown => answer(&mut ByHand::new(windows, args.query))?,
                Peer::RocksDb => on_rocksdb(args, answer)?,
                Peer::Uncompacted => {
                    return Err(Error::Usage("uncompacted is a peer of rmw only".to_owned()));
                }
            }
        }
        progress.set(round + 1);
    }
    drop(progress);
    let floor = noise_floor(FLOOR);
    Ok(Measured { report, ours, theirs, floor, spilled })
}

impl Measured {
    /// Compares the answers and completes the report.
    fn checked(self, args: &WindowArgs) -> Result<Report> {
        let Measured { mut report, ours, theirs, floor, spilled } = self;
        if let Some(spilled) = spilled {
            report.io.spilled_per_s = spilled.in_calls;
            report.io.sequential_per_s = spilled.sequential;
        }
        if args.check {
            let mut counted = Side::new("counting");
            let mut engine = ByCounting::new(args.windows()?, args.query)?;
            counted.round(args, &mut *stream(args)?, &mut engine, None, None)?;
            for side in [&ours, &theirs].into_iter().flatten() {
                side.agrees_with(&counted)?;
            }
            println!("{} answers are those of counting", counted.answers);
        }
        report.noise_floor_ns = Some(floor);
        if ours.is_none() {
            report.memory.peak_rss = peak_rss_bytes();
        }
        if let (Some(ours), Some(theirs)) = (&ours, &theirs) {
            ours.agrees_with(theirs)?;
        }
        let (first, second) = if ours.is_some() { (ours, theirs) } else { (theirs, None) };
        let first = first.ok_or_else(|| Error::Usage("--layout or --vs".to_owned()))?;
        first.report(&mut report);
        if let Some(second) = second {
            second.report_versus(&mut report);
        }
        Ok(report)
    }
}

#[cfg(feature = "rocksdb")]
fn on_rocksdb(
    args: &WindowArgs,
    mut answer: impl FnMut(&mut dyn Engine) -> Result<()>,
) -> Result<()> {
    let directory = super::state::temporary_dir()?;
    let (path, memory) = (directory.path().join("rocksdb"), args.memory.0);
    let opened = crate::window::RocksDbWindows::open(&path, memory, args.windows()?, args.query);
    answer(&mut opened?)
}

#[cfg(not(feature = "rocksdb"))]
fn on_rocksdb(_: &WindowArgs, _: impl FnMut(&mut dyn Engine) -> Result<()>) -> Result<()> {
    Err(Error::Usage("this program was built without the feature rocksdb".to_owned()))
}

fn stream(args: &WindowArgs) -> Result<Box<dyn EventStream>> {
    Ok(match (&args.azure, &args.borg) {
        (Some(path), _) => Box::new(Trace::azure(path)?),
        (None, Some(path)) => Box::new(Trace::borg(path)?),
        (None, None) => {
            let events = args.events.unwrap_or(0);
            Box::new(Synthetic::new(events, args.rate, args.keys, args.dist, args.seed)?)
        }
    })
}

fn print_table(args: &WindowArgs, measured: &Measured) {
    let Measured { report, ours, theirs, floor, spilled } = measured;
    let sides = || [ours, theirs].into_iter().flatten();
    let (events, answers) = sides().next().map_or((0, 0), |side| (side.events, side.answers));
    println!("{events} events, {answers} answers, {} rounds", args.rounds);
    print!("{}", side_table(sides(), *floor).text());
    for side in sides() {
        let (long, worked, longest) = side.long();
        if long > 0 {
            println!(
                "{}: {long} calls took more than {LONG:?}, {worked} of them on the processor, \
                 {longest:?} at most",
                side.name
            );
        }
    }
    if let Some(ours) = ours {
        print_costs(ours, report);
    }
    if let (Some(ours), Some(theirs)) = (ours, theirs) {
        let (least, median, most) = ours.ratio_to(theirs);
        let longest = |side: &Side| side.answering().max.max(1) as f64;
        println!(
            "ratio round by round: {median:.3} ({least:.3} to {most:.3}); longest call that \
             answers 1/{:.1}",
            longest(theirs) / longest(ours)
        );
    }
    if let Some(spilled) = spilled {
        println!("{}", spilled.line());
    }
}

/// Rates and latencies: of calls that take events, and of those that answer.
fn side_table<'a>(sides: impl Iterator<Item = &'a Side>, floor: Percentiles) -> Table {
    let mut table = Table::new(&[
        ("", ""),
        ("median", "K/s"),
        ("least", "K/s"),
        ("most", "K/s"),
        ("p50", "us"),
        ("p99", "us"),
        ("p99.9", "us"),
        ("p99.99", "us"),
        ("longest", "us"),
    ]);
    let none = || [(); 3].map(|()| String::new());
    let mut row = |name: &str, rates: [String; 3], latency: Percentiles| {
        let Percentiles { p50, p99, p99_9, p99_99, max } = latency;
        let times = [p50, p99, p99_9, p99_99, max].map(|ns| digits(ns as f64 / 1e3));
        table.row([name.to_owned()].into_iter().chain(rates).chain(times).collect());
    };
    for side in sides {
        let (least, median, most) = side.rate();
        row(&side.name, [median, least, most].map(|rate| digits(rate / 1e3)), side.pushing());
        row("  answering", none(), side.answering());
    }
    row("noise floor", none(), floor);
    table
}

fn print_costs(ours: &Side, report: &Report) {
    let (memory, io) = (&report.memory, &report.io);
    let mib = |bytes: u64| digits(bytes as f64 / (1 << 20) as f64);
    println!(
        "{}: {} calls answered; {} of {} MiB of memory at most",
        ours.name,
        ours.calls(),
        mib(memory.peak_tracked),
        mib(memory.budget),
    );
    println!(
        "  {} MiB written, {} read; {} prefetched, {} of them in vain",
        mib(io.bytes_written),
        mib(io.bytes_read),
        mib(io.bytes_prefetched),
        mib(io.bytes_prefetched_in_vain),
    );
}
