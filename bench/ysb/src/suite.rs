//! All placements, each as a process of its own, and their report.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use alluvium_timely::RedisConfig;
use clap::{Parser, Subcommand};

use crate::cell::{Cell, LOADED, Outcome, Place};
use crate::event::Events;
use crate::job::{Job, Placement, Remote};
use crate::{Result, job, report, server};

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
    /// Runs of each placement; the report has their medians.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Events of the placements in the process; the others have fewer, the slower the fewer.
    #[arg(long, default_value_t = 1_500_000)]
    events: u64,
}

#[derive(clap::Args, Debug)]
struct JobOptions {
    /// Redis that has the table of ads, loaded.
    #[arg(long)]
    table: String,
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
}

impl JobOptions {
    fn job(self) -> Job {
        let Self { seed, events: count, rate, workers, .. } = self;
        let events = Events { seed, ads: 1_000, zipf: 0.0, rate, count };
        let remote = Remote {
            tables: vec![RedisConfig::new(self.table).requires(LOADED)],
            cache: None,
            asked_max: 256,
            patience: Some(Duration::from_secs(30)),
        };
        Job {
            events,
            placement: Placement::Redis(remote),
            is_by_slot: false,
            workers,
            directory: self.directory,
            results: self.results,
            checkpoint_every: self.checkpoint_every,
            batch: 1_000,
            under_way: 8,
            nap: Duration::from_micros(self.nap_us),
        }
    }
}

/// Does what the arguments say; `false` if an answer was wrong or a run failed.
///
/// # Errors
/// It could not be done.
pub fn command() -> Result<bool> {
    match Options::parse().what {
        What::Cell(cell) => {
            let outcome = outcome_of(&cell);
            println!("{}", serde_json::to_string(&outcome)?);
            Ok(outcome.why.is_none())
        }
        What::Job(options) => {
            println!("{}", serde_json::to_string(&job::run(&options.job())?)?);
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

fn run(suite: &Suite) -> Result<bool> {
    std::fs::create_dir_all(&suite.out)?;
    let Some(version) = server::installed() else {
        let text = "Nothing was run: redis-server is not installed (Debian: redis-server).\n";
        std::fs::write(suite.out.join("report.md"), text)?;
        eprint!("{text}");
        return Ok(true);
    };
    let mut outcomes = Vec::new();
    let rounds = if suite.smoke { 1 } else { suite.rounds.max(1) };
    for round in 0..rounds {
        for cell in cells(suite.smoke, suite.events) {
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
    let (markdown, html) = report::texts(&outcomes, &version, suite.smoke);
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
    let output = Command::new(std::env::current_exe()?)
        .args(words)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(serde_json::from_str(&text).unwrap_or_else(|_| Outcome {
        cell: cell.clone(),
        figures: None,
        served: 0,
        why: Some(format!("the run ended with {}", output.status)),
    }))
}

/// What a suite runs: the poster's three setups, and the curve over delays.
fn cells(is_smoke: bool, events: u64) -> Vec<Cell> {
    let scale = |share: u64| if is_smoke { 6_000 } else { (events / share).max(6_000) };
    let basis = Cell {
        place: Place::Shared,
        workers: 1,
        delay_us: 0,
        pipeline: 1,
        cache_bytes: 0,
        ttl_ms: 10_000,
        events: scale(1),
        ads: 1_000,
        zipf: 0.0,
        rate: 10_000,
        seed: 7,
    };
    let at = |place, workers| Cell { place, workers, ..basis.clone() };
    let mut cells = Vec::new();
    for workers in [1, 3] {
        cells.push(at(Place::Shared, workers));
        cells.push(at(Place::Partitioned, workers));
        for place in [Place::Socket, Place::Loopback] {
            cells.push(Cell { events: scale(10), ..at(place, workers) });
        }
        cells.push(Cell { pipeline: 64, events: scale(3), ..at(Place::Loopback, workers) });
        cells.push(Cell { cache_bytes: 1 << 20, events: scale(3), ..at(Place::Loopback, workers) });
        for delay_us in [0, 100, 250, 500, 1_000] {
            let delayed = at(Place::Delayed, workers);
            cells.push(Cell { delay_us, events: scale(100), ..delayed.clone() });
            if workers == 1 && delay_us > 0 {
                cells.push(Cell { delay_us, pipeline: 64, events: scale(10), ..delayed });
            }
        }
    }
    for (place, share) in [(Place::Replicas, 10), (Place::SlotShards, 10), (Place::Shards, 50)] {
        let delay_us = if place == Place::Shards { 100 } else { 0 };
        cells.push(Cell { delay_us, events: scale(share), ..at(place, 3) });
    }
    // An extension: a table that does not fit into a cache, and skewed ads.
    for zipf in [0.0, 1.0] {
        let large = Cell { ads: 100_000, zipf, events: scale(10), ..at(Place::Loopback, 1) };
        cells.push(Cell { cache_bytes: 1 << 20, pipeline: 64, ..large.clone() });
        cells.push(Cell { place: Place::Partitioned, ..large });
    }
    cells
}
