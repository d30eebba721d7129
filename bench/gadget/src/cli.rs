//! The command line, for a program with the built-in engines and for one with more.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use alluvium::ErrorKind;
use clap::{Args, Parser, Subcommand};

use crate::args::{EngineArgs, InputArgs, OperatorArgs};
use crate::cell::{self, Cell, Outcome, Plan, Work};
use crate::commands::{self, TraceFile};
use crate::compat;
use crate::engine::Kind;
use crate::native;
use crate::operator::{Name, Options};
use crate::run::{Report, no_such_engine, place};
use crate::{Error, Result};

/// Eleven streaming operators on state stores, side by side, with every answer checked.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Every engine on every operator, in turns, with a report; goes on with a run that was
    /// interrupted
    Run(Box<RunArgs>),
    /// One operator on one engine, once; prints JSON
    Cell(Box<CellArgs>),
    /// What an operator asks of a store: counts, and with --dump all accesses
    Trace(Box<TraceArgs>),
    /// Operators and engines
    List,
    #[command(flatten)]
    Traces(commands::Command),
}

#[derive(Args)]
struct RunArgs {
    /// Operators, separated by commas; default: all
    #[arg(long, value_delimiter = ',')]
    operators: Vec<Name>,
    /// Engines, separated by commas; default: all
    #[arg(long, value_delimiter = ',')]
    engines: Vec<String>,
    /// How often each is run
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// About how many accesses each cell makes
    #[arg(long, default_value_t = 2_000_000)]
    accesses: u64,
    /// The comparison in memory with windows of some thousand events: ours, hashbrown, RocksDB and
    /// FASTER, three rounds of 2 million accesses
    #[arg(long, conflicts_with = "smoke")]
    quick: bool,
    /// A size that only shows that everything runs and agrees
    #[arg(long)]
    smoke: bool,
    /// Open loops with so many events per second, separated by commas, after the closed ones
    #[arg(long, value_delimiter = ',')]
    rates: Vec<f64>,
    /// A command before each cell's, such as ".ci/cgroup 320M", to bound its memory and page cache
    #[arg(long)]
    wrap: Option<String>,
    /// Directory of cells.jsonl, report.md and report.html
    #[arg(long)]
    out: PathBuf,
    #[command(flatten)]
    input: InputArgs,
    #[command(flatten)]
    numbers: OperatorArgs,
    #[command(flatten)]
    engine: EngineArgs,
}

#[derive(Args)]
struct CellArgs {
    /// The operator
    #[arg(long)]
    operator: Name,
    /// The engine
    #[arg(long)]
    engine: String,
    /// A name for the run
    #[arg(long, default_value = "1")]
    round: String,
    /// Events per second, each with a time at which it is due
    #[arg(long)]
    rate: Option<f64>,
    #[command(flatten)]
    input: InputArgs,
    #[command(flatten)]
    numbers: OperatorArgs,
    #[command(flatten)]
    run: EngineArgs,
}

#[derive(Args)]
struct TraceArgs {
    /// The operator
    #[arg(long)]
    operator: Name,
    /// Write all accesses, one a line: kind and key
    #[arg(long)]
    dump: bool,
    /// The original's operations and keys, its mistakes included
    #[arg(long)]
    gadget_compat: bool,
    /// Write all accesses to a file, one a line; compressed if its name ends in .zst
    #[arg(long, conflicts_with_all = ["dump", "purge"])]
    out: Option<PathBuf>,
    /// With --out only operation and key
    #[arg(long, requires = "out")]
    brief: bool,
    #[command(flatten)]
    input: InputArgs,
    #[command(flatten)]
    numbers: OperatorArgs,
}

/// Does what the command line says, with these engines.
pub fn main(kinds: &[Kind]) -> ExitCode {
    match execute(Cli::parse().command, kinds) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "{error}");
            ExitCode::FAILURE
        }
    }
}

fn execute(command: Command, kinds: &[Kind]) -> Result<()> {
    match command {
        Command::Run(args) => report(*args, kinds)?.run(kinds),
        Command::Cell(args) => print(&one(&args, kinds)?),
        Command::Trace(args) => trace(&args),
        Command::Traces(command) => commands::execute(command, kinds),
        Command::List => {
            list(kinds);
            Ok(())
        }
    }
}

fn print(cell: &Cell) -> Result<()> {
    println!("{}", serde_json::to_string(cell).map_err(Error::engine)?);
    Ok(())
}

/// The engines of `--quick`, as far as the program has them.
const QUICK: [&str; 6] =
    ["ours-native", "ours-hybrid-log", "ours-heap", "hashbrown", "rocksdb-merge", "faster"];

fn report(args: RunArgs, kinds: &[Kind]) -> Result<Report> {
    let RunArgs { mut input, mut numbers, mut engine, .. } = args;
    let (mut rounds, mut accesses) = (args.rounds, args.accesses);
    let all = native::KINDS.iter().map(|kind| kind.name).chain(kinds.iter().map(|kind| kind.name));
    let mut engines: Vec<String> = all.map(str::to_owned).collect();
    if args.quick || args.smoke {
        // A thousand events a unit: windows, sessions and ranges of a few units.
        input.gap = "exponential:0.001".to_owned();
        (input.keys, numbers.session_gap) = (100_000, 2);
        (numbers.lower, numbers.upper) = (-2, 3);
    }
    if args.quick {
        (rounds, accesses, engine.seconds) = (3, 2_000_000, 15.0);
        engines.retain(|engine| QUICK.contains(&engine.as_str()));
    }
    if args.smoke {
        (rounds, accesses, engine.seconds) = (1, 20_000, 5.0);
        input.keys = 500;
    }
    if !args.engines.is_empty() {
        engines = args.engines;
    }
    let operators = if args.operators.is_empty() { Name::ALL.to_vec() } else { args.operators };
    let wrap = args.wrap.unwrap_or_default().split_whitespace().map(str::to_owned).collect();
    let (out, rates) = (args.out, args.rates);
    Ok(Report { out, operators, engines, rounds, accesses, rates, wrap, input, numbers, engine })
}

/// Runs a cell. An engine that is missing, or does not run the operator, is a cell that says so.
fn one(args: &CellArgs, kinds: &[Kind]) -> Result<Cell> {
    let ours = native::KINDS.iter().find(|kind| kind.name == args.engine);
    let other = kinds.iter().find(|kind| kind.name == args.engine);
    if ours.is_none() && other.is_none() {
        return Err(no_such_engine(&args.engine, kinds));
    }
    let plan = Plan {
        memory_bytes: args.run.memory_bytes()?,
        bound_bytes: args.run.bound_bytes()?,
        most: args.run.most()?,
        rate: args.rate,
        sample: args.run.sample,
    };
    let options = args.numbers.options();
    let version = other.map_or(env!("CARGO_PKG_VERSION"), |kind| kind.version.as_str()).to_owned();
    let ended = |outcome, figures| Cell {
        operator: args.operator.to_string(),
        engine: args.engine.clone(),
        version,
        round: args.round.clone(),
        rate: args.rate,
        outcome,
        figures,
        command: String::new(),
    };
    if let Some(kind) = other
        && let Err(error) = kind.check(args.operator, &options, plan.memory_bytes)
    {
        return Ok(ended(Outcome::Refused(error.to_string()), None));
    }
    let stream = args.input.stream(args.operator)?;
    if ours.is_some()
        && let Err(error) = native::check(&stream.events)
    {
        return Ok(ended(Outcome::Refused(error.to_string()), None));
    }
    let work = Work::new(args.operator, options, stream)?;
    let (directory, _removed) = place(args.run.dir.as_deref())?;
    let done = match (ours, other) {
        (Some(kind), _) => cell::run_native(&work, kind, &plan, &directory),
        (None, Some(kind)) => cell::run(&work, kind, &plan, &directory),
        (None, None) => unreachable!("looked up before"),
    };
    Ok(match done {
        Ok((outcome, figures)) => ended(outcome, Some(figures)),
        // The memory is what was asked for, and it was short: nothing was wrong.
        Err(Error::Store(error)) if error.kind() == ErrorKind::OverBudget => {
            ended(Outcome::Refused(format!("out of memory: {error}")), None)
        }
        Err(error) => ended(Outcome::Failed(error.to_string()), None),
    })
}

fn trace(args: &TraceArgs) -> Result<()> {
    let options = args.numbers.options();
    if let Some(out) = &args.out {
        let file = TraceFile { out, is_brief: args.brief, is_compat: args.gadget_compat };
        return commands::record_file(args.operator, &options, &args.input, &file);
    }
    if args.gadget_compat {
        return compat_trace(args, &options);
    }
    let began = std::time::Instant::now();
    let stream = args.input.stream(args.operator)?;
    let made = began.elapsed();
    let work = Work::new(args.operator, options, stream)?;
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let written = |error| Error::io("standard output".as_ref(), "write to", error);
    if args.dump {
        for access in &work.trace.accesses {
            let key = String::from_utf8_lossy(work.trace.keys.get(access.key));
            writeln!(out, "{} {key}", access.kind).map_err(written)?;
        }
        return Ok(());
    }
    let counts = work.trace.counts();
    let kinds: Vec<_> = crate::access::Kind::ALL
        .iter()
        .zip(counts)
        .filter(|(_, count)| *count > 0)
        .map(|(kind, count)| format!("{count} {kind}"))
        .collect();
    writeln!(
        out,
        "{}: {} events, {} accesses ({}), {} keys, {} answers with digest {:016x}, at most {} live bytes; \
         events generated in {:.3} s, accesses at {:.1} M/s",
        args.operator,
        work.stream.events.len(),
        work.trace.count(),
        kinds.join(", "),
        work.trace.keys.len(),
        work.expected.answers.count,
        work.expected.answers.digest,
        work.expected.live_bytes_max,
        made.as_secs_f64(),
        work.generated_per_s / 1e6
    )
    .map_err(written)
}

fn compat_trace(args: &TraceArgs, options: &Options) -> Result<()> {
    options.check()?;
    let (left, right, names) = args.input.rows(args.operator)?;
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let mut written = Ok(());
    let operations =
        compat::run(args.operator, options, &left, &right, &names, &mut |kind, key| {
            if args.dump && written.is_ok() {
                written = writeln!(out, "{kind} {key}");
            }
        });
    let failed = |error| Error::io("standard output".as_ref(), "write to", error);
    written.map_err(failed)?;
    if args.dump {
        return Ok(());
    }
    let counts = operations.counts.iter().map(|(kind, count)| format!("{count} {kind}"));
    let counts: Vec<_> = counts.collect();
    writeln!(
        out,
        "{} as Gadget: {} events, {} of them without operations, {} operations ({}), hash {:016x}, {} stale sessions",
        args.operator,
        left.len() + right.len(),
        operations.silent_events,
        operations.total(),
        counts.join(", "),
        operations.hash,
        operations.stale_sessions
    )
    .map_err(failed)
}

fn list(kinds: &[Kind]) {
    println!("operators:");
    Name::ALL.iter().for_each(|name| println!("  {name}"));
    println!("engines:");
    for kind in &native::KINDS {
        println!("  {:18} {}", kind.name, kind.note);
    }
    for kind in kinds {
        let there = if kind.open.is_err() { "MISSING: " } else { "" };
        println!("  {:18} {there}{}", kind.name, kind.note);
    }
}
