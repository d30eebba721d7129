//! All placements, each as a process of its own, and their report.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use alluvium_timely::RedisConfig;
use clap::{Parser, Subcommand};

use crate::cell::{Cell, LOADED, Outcome, TablePlace};
use crate::event::Events;
use crate::job::{Job, Placement, Remote, slot_ends};
use crate::{Error, Result, job, report, server};

/// Set for runs of a suite, which end with it: it holds their standard input.
const OF_SUITE: &str = "ALLUVIUM_YSB_OF_SUITE";

#[derive(Parser, Debug)]
#[command(
    name = "alluvium-ysb",
    about = "The Yahoo streaming benchmark with its table in three places"
)]
struct Options {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand, Debug)]
enum What {
    /// Runs one placement, checks its answers and prints its figures as JSON.
    Cell(Cell),
    /// Goes on with a job on servers that are there, from its last checkpoint if it has one.
    Job(JobOptions),
    /// Runs all placements and writes report.md, report.html and outcomes.json.
    Suite(Suite),
}

#[derive(clap::Args, Debug)]
struct Suite {
    /// Where the report goes.
    #[arg(long)]
    out: PathBuf,
    /// Only shows that everything runs and that all answers agree: its figures say nothing.
    #[arg(long)]
    smoke: bool,
    /// One round with a fifth of the events: figures that say which is faster, and little more.
    #[arg(long, conflicts_with = "smoke")]
    quick: bool,
    /// Runs of each placement; the report has their medians.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Begins no further round that would end later than after so many seconds, by the rounds before it; 0 begins
    /// all.
    #[arg(long, default_value_t = 0)]
    seconds: u64,
    /// Events of the placements in the process; the others have fewer, the slower the fewer.
    #[arg(long, default_value_t = 1_500_000)]
    events: u64,
}

#[derive(clap::Args, Debug)]
struct JobOptions {
    /// Redis that has the table of ads, loaded; several are nodes of a Redis Cluster, by whose slots the stream is
    /// divided.
    #[arg(long, value_delimiter = ',', required = true)]
    table: Vec<String>,
    /// Redis for the results.
    #[arg(long)]
    results: String,
    /// Where checkpoints are.
    #[arg(long)]
    directory: PathBuf,
    /// Operator instances.
    #[arg(long, default_value_t = 1)]
    workers: usize,
    /// Events.
    #[arg(long, default_value_t = 300_000)]
    events: u64,
    /// Events a second of event time.
    #[arg(long, default_value_t = 10_000)]
    rate: u64,
    /// Events of a worker between two checkpoints.
    #[arg(long, default_value_t = 10_000)]
    checkpoint_every: u64,
    /// A worker sleeps so long after each batch of 1,000 events, in microseconds.
    #[arg(long, default_value_t = 0)]
    nap_us: u64,
    /// Of the generator.
    #[arg(long, default_value_t = 7)]
    seed: u64,
    /// Times are skewed and some events late.
    #[arg(long)]
    skew: bool,
    /// A key group moves with its slots each time so many events have come; 0 is never.
    #[arg(long, default_value_t = 0)]
    moves_every: u64,
}

impl JobOptions {
    /// How each worker asks for the table.
    fn tables(&self) -> Result<Vec<RedisConfig>> {
        let servers = self.table.len();
        if servers == 1 && self.moves_every == 0 {
            return Ok(vec![RedisConfig::new(&self.table[0]).requires(LOADED)]);
        }
        let shards = self.table.iter().cloned().zip(slot_ends(servers)).collect();
        let all = RedisConfig::sharded(shards)?.requires(LOADED);
        Ok(match self.moves_every {
            0 => vec![all],
            _ => (0..servers).map(|own| all.clone().brings_slots_to(own)).collect(),
        })
    }

    fn job(self) -> Result<Job> {
        let Self { seed, events: count, rate, workers, skew: is_skewed, .. } = self;
        let events = Events { seed, ads: 1_000, zipf: 0.0, rate, count, is_skewed };
        let remote = Remote {
            tables: self.tables()?,
            cache: None,
            asked_max: 256,
            patience: Some(Duration::from_secs(30)),
        };
        Ok(Job {
            events,
            placement: Placement::Redis(remote),
            is_by_slot: self.table.len() > 1,
            workers,
            directory: self.directory,
            results: self.results,
            checkpoint_every: self.checkpoint_every,
            batch: 1_000,
            under_way: 8,
            nap: Duration::from_micros(self.nap_us),
            moves_every: self.moves_every,
        })
    }
}

/// Does what the arguments say; `false` if an answer was wrong or a run failed.
///
/// # Errors
/// It could not be done.
pub fn command() -> Result<bool> {
    match Options::parse().what {
        What::Cell(cell) => {
            if std::env::var_os(OF_SUITE).is_some() {
                end_with_the_suite();
            }
            let outcome = outcome_of(&cell);
            println!("{}", serde_json::to_string(&outcome)?);
            Ok(outcome.why.is_none())
        }
        What::Job(options) => {
            println!("{}", serde_json::to_string(&job::run(&options.job()?)?)?);
            Ok(true)
        }
        What::Suite(suite) => run(&suite),
    }
}

/// Runs a cell in this process.
fn outcome_of(cell: &Cell) -> Outcome {
    match cell.run() {
        Ok((figures, served)) => {
            Outcome { cell: cell.clone(), figures: Some(figures), served, why: None }
        }
        Err(error) => {
            Outcome { cell: cell.clone(), figures: None, served: 0, why: Some(error.to_string()) }
        }
    }
}

/// Ends this process when its standard input ends, as it does with whoever holds it. Its servers do so too.
fn end_with_the_suite() {
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(1);
    });
}

fn run(suite: &Suite) -> Result<bool> {
    std::fs::create_dir_all(&suite.out)?;
    let Some(version) = server::installed() else {
        let text = "Nothing was run: redis-server is not installed (Debian: redis-server).\n";
        std::fs::write(suite.out.join("report.md"), text)?;
        eprint!("{text}");
        return Ok(true);
    };
    let mut outcomes = Vec::new();
    let is_once = suite.smoke || suite.quick;
    let rounds = if is_once { 1 } else { suite.rounds.max(1) };
    let events = if suite.quick { suite.events / 5 } else { suite.events };
    let begin = Instant::now();
    for round in 0..rounds {
        let next_ends = begin.elapsed() * (round as u32 + 1) / (round as u32).max(1);
        if round > 0 && suite.seconds > 0 && next_ends > Duration::from_secs(suite.seconds) {
            eprintln!("{round} of {rounds} rounds: there is no time for another one");
            break;
        }
        for cell in cells(suite.smoke, events) {
            let outcome = in_a_process(&cell)?;
            let said = match &outcome.figures {
                Some(figures) => format!("{:.0} rows/s", report::rows_a_second(figures)),
                None => outcome.why.clone().unwrap_or_default(),
            };
            eprintln!("round {} of {rounds}: {}: {said}", round + 1, cell.command());
            outcomes.push(outcome);
        }
    }
    write(&suite.out, "outcomes.json", &serde_json::to_string_pretty(&outcomes)?)?;
    let warning = match (suite.smoke, suite.quick) {
        (true, _) => " A smoke run: its figures say nothing.",
        (_, true) => " A quick run, of one round and few events.",
        _ => "",
    };
    let (markdown, html) = report::texts(&outcomes, &version, warning);
    write(&suite.out, "report.md", &markdown)?;
    write(&suite.out, "report.html", &html)?;
    Ok(outcomes.iter().all(|outcome| outcome.why.is_none()))
}

fn write(out: &Path, name: &str, text: &str) -> Result<()> {
    let part = out.join(format!("{name}.part"));
    std::fs::write(&part, text)?;
    Ok(std::fs::rename(part, out.join(name))?)
}

fn in_a_process(cell: &Cell) -> Result<Outcome> {
    let command = cell.command();
    let mut words = command.split_whitespace();
    words.next();
    let mut child = Command::new(std::env::current_exe()?)
        .args(words)
        .env(OF_SUITE, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()?;
    // Held until the child has ended, which ends earlier if this process does.
    let held = child.stdin.take();
    let mut text = String::new();
    let output = child.stdout.take().ok_or_else(|| Error::new("a run has no output"));
    output?.read_to_string(&mut text)?;
    let status = child.wait()?;
    drop(held);
    Ok(serde_json::from_str(&text).unwrap_or_else(|_| Outcome {
        cell: cell.clone(),
        figures: None,
        served: 0,
        why: Some(format!("the run ended with {status}")),
    }))
}

/// What a suite runs: the poster's three setups, and the curve over delays.
fn cells(is_smoke: bool, events: u64) -> Vec<Cell> {
    let scale = |share: u64| if is_smoke { 6_000 } else { (events / share).max(6_000) };
    let basis = Cell { events: scale(1), ..Cell::default() };
    let at = |place, workers| Cell { place, workers, ..basis.clone() };
    let mut cells = Vec::new();
    for workers in [1, 3] {
        cells.push(at(TablePlace::Shared, workers));
        cells.push(at(TablePlace::Partitioned, workers));
        for place in [TablePlace::Socket, TablePlace::Loopback] {
            cells.push(Cell { events: scale(10), ..at(place, workers) });
        }
        if workers == 1 {
            // The noise: the same again.
            cells.push(Cell { again: true, ..at(TablePlace::Partitioned, workers) });
            cells.push(Cell {
                again: true,
                events: scale(10),
                ..at(TablePlace::Loopback, workers)
            });
        }
        cells.push(Cell { pipeline: 64, events: scale(3), ..at(TablePlace::Loopback, workers) });
        cells.push(Cell {
            cache_bytes: 1 << 20,
            events: scale(3),
            ..at(TablePlace::Loopback, workers)
        });
        for delay_us in [0, 100, 250, 500, 1_000] {
            let delayed = at(TablePlace::Delayed, workers);
            cells.push(Cell { delay_us, events: scale(100), ..delayed.clone() });
            if workers == 1 && delay_us > 0 {
                cells.push(Cell { delay_us, pipeline: 64, events: scale(10), ..delayed });
            }
        }
    }
    for (place, share) in
        [(TablePlace::Replicas, 10), (TablePlace::SlotShards, 10), (TablePlace::Shards, 50)]
    {
        let delay_us = if place == TablePlace::Shards { 100 } else { 0 };
        cells.push(Cell { delay_us, events: scale(share), ..at(place, 3) });
    }
    // Key groups move all the time, with the table's part of them.
    let moving = |share: u64| Cell {
        events: scale(share),
        moves_every: scale(share) / 20,
        ..at(TablePlace::Shared, 3)
    };
    cells.push(Cell { place: TablePlace::Partitioned, ..moving(1) });
    cells.push(Cell { place: TablePlace::SlotShards, ..moving(10) });
    // The original's skewed times, and skewed ads of a small table.
    cells.push(Cell { skew: true, ..at(TablePlace::Partitioned, 1) });
    cells.push(Cell { skew: true, pipeline: 64, events: scale(3), ..at(TablePlace::Loopback, 1) });
    cells.push(Cell { zipf: 1.0, pipeline: 64, events: scale(3), ..at(TablePlace::Loopback, 1) });
    // An extension: a table that does not fit into a cache, and skewed ads.
    for zipf in [0.0, 1.0] {
        let large = Cell { ads: 100_000, zipf, events: scale(10), ..at(TablePlace::Loopback, 1) };
        cells.push(Cell { cache_bytes: 1 << 20, pipeline: 64, ..large.clone() });
        cells.push(Cell { place: TablePlace::Partitioned, ..large });
    }
    cells
}
