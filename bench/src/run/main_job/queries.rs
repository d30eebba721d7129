//! The runs of one Nexmark query: on heap, on the hybrid log in memory and with a quarter of the
//! state in memory, and killed and restored. All must end with the same rows.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use alluvium::config::ByteSize;
use clap::Parser;

use super::runs::Runs;
use super::steps::Steps;
use crate::args::NexmarkArgs;
use crate::report::Report;
use crate::run::nexmark::nexmark;
use crate::run::state::temporary_dir;
use crate::{Error, Result};

/// Memory of the runs whose state fits.
const ROOMY: ByteSize = ByteSize(1 << 30);
/// State of the small runs, in multiples of their memory.
const TIMES: u64 = 4;
/// A child process has so long for its checkpoint.
const PATIENCE: Duration = Duration::from_secs(300);

const HEAP: &str = "heap";
const IN_MEMORY: &str = "log, in memory";
const QUARTER: &str = "log, 1/4 in memory";
const KILLED: &str = "killed, restored";

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: NexmarkArgs,
}

/// A query and what its runs gave so far.
pub(super) struct QueryRuns {
    /// Its name, such as `q4`.
    pub(super) query: &'static str,
    /// What it computes.
    pub(super) title: &'static str,
    /// Events of a run.
    pub(super) events: u64,
    in_flight: Option<u64>,
    out: PathBuf,
    /// Heap, hybrid log in memory, a quarter in memory, killed and restored.
    pub(super) runs: [Runs; 4],
    /// Rows of the result.
    pub(super) rows: usize,
}

impl QueryRuns {
    pub(super) fn new(
        out: &Path,
        (query, title): (&'static str, &'static str),
        events: u64,
        in_flight: Option<u64>,
    ) -> Self {
        let runs = [HEAP, IN_MEMORY, QUARTER, KILLED].map(Runs::new);
        QueryRuns { query, title, events, in_flight, out: out.to_owned(), runs, rows: 0 }
    }

    /// The checksum that all runs have.
    pub(super) fn checksum(&self) -> &str {
        self.runs[0].reports.first().map_or("", |report| &report.checksum)
    }

    /// Runs the query once in each way and compares the results. Kills a run in the first round
    /// only.
    pub(super) fn round(&mut self, steps: &mut Steps) -> Result<()> {
        self.run(steps, 0, ROOMY)?;
        self.run(steps, 1, ROOMY)?;
        let live = |runs: &Runs| runs.reports.first().map_or(0, |first| first.memory.live_bytes);
        let quarter = ByteSize(live(&self.runs[0]).min(live(&self.runs[1])) / TIMES);
        self.run(steps, 2, quarter)?;
        self.check_state()?;
        if self.runs[3].reports.is_empty() {
            let what = self.announced(KILLED);
            let report = steps.step(&what, || self.killed(quarter))?;
            self.keep(3, report)?;
        }
        self.rows = self.rows(0)?.len() - 1;
        self.check_answers()
    }

    fn announced(&self, name: &str) -> String {
        format!("{}: {name}", self.query)
    }

    fn words(&self, layout: &str, memory: ByteSize) -> Vec<String> {
        let (events, memory) = (self.events.to_string(), memory.0.to_string());
        let mut words = vec!["--query", self.query, "--layout", layout, "--events", &events];
        words.extend(["--memory", &memory]);
        let in_flight = self.in_flight.map(|n| n.to_string());
        if let Some(n) = &in_flight {
            words.extend(["--in-flight", n]);
        }
        words.into_iter().map(String::from).collect()
    }

    fn file(&self, number: usize, extension: &str) -> PathBuf {
        let name = ["heap", "log-in-memory", "log-quarter-in-memory", "killed-restored"][number];
        self.out.join(format!("{}-{name}.{extension}", self.query))
    }

    fn run(&mut self, steps: &mut Steps, number: usize, memory: ByteSize) -> Result<()> {
        let what = self.announced(self.runs[number].name);
        let mut words = self.words(if number == 0 { "heap" } else { "hybrid-log" }, memory);
        let results = self.file(number, "csv");
        words.extend(["--results".into(), results.display().to_string()]);
        let report = steps.step(&what, || execute(words))?;
        self.keep(number, report)
    }

    fn keep(&mut self, number: usize, report: Report) -> Result<()> {
        report.write_json(&self.file(number, "json"))?;
        self.runs[number].reports.push(report);
        Ok(())
    }

    /// Starts a process that checkpoints, kills it some time after, and goes on from the checkpoint
    /// in this process.
    fn killed(&self, memory: ByteSize) -> Result<Report> {
        let directory = temporary_dir()?;
        let dir = directory.path().display().to_string();
        let mut words = self.words("hybrid-log", memory);
        words.extend(["--dir".into(), dir]);
        let failed = |source| Error::io(directory.path(), "run a process in", source);
        let exe = std::env::current_exe().map_err(failed)?;
        let mut child = Command::new(exe)
            .arg("nexmark")
            .args(&words)
            .args(["--checkpoint-at", &(self.events * 2 / 5).to_string()])
            .stdout(Stdio::null())
            .spawn()
            .map_err(failed)?;
        let manifest = directory.path().join("worker-0").join("MANIFEST");
        let start = Instant::now();
        while !manifest.exists() && start.elapsed() < PATIENCE {
            if child.try_wait().map_err(failed)?.is_some() {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        std::thread::sleep(Duration::from_millis(50));
        child.kill().map_err(failed)?;
        let status = child.wait().map_err(failed)?;
        if status.code().is_some() || !manifest.exists() {
            let message = format!("the process ended ({status}) before it could be killed");
            return Err(Error::Command(message));
        }
        execute(words)
    }

    /// Refuses state that is not so many times the memory. Live bytes are those of the run whose
    /// state is all in memory.
    fn check_state(&self) -> Result<()> {
        let (roomy, small) = (self.runs[1].median(), self.runs[2].median());
        let (live, budget) = (roomy.memory.live_bytes, small.memory.budget);
        if live >= TIMES * budget {
            return Ok(());
        }
        let query = self.query;
        let message = format!(
            "{query}: {live} bytes of state are not {TIMES} times the memory, {budget} bytes"
        );
        Err(Error::Wrong(message))
    }

    /// Refuses results that differ between the runs or the rounds.
    fn check_answers(&self) -> Result<()> {
        let (query, expected) = (self.query, self.checksum());
        for runs in &self.runs {
            let found = runs.reports.last().map_or("", |report| &report.checksum);
            if found != expected {
                let name = runs.name;
                let message = format!("{query}, {name}: checksum {found}, on heap {expected}");
                return Err(Error::Wrong(message));
            }
        }
        let rows = self.rows(0)?;
        for number in [1, 2] {
            if self.rows(number)? != rows {
                let name = self.runs[number].name;
                return Err(Error::Wrong(format!("{query}: rows of heap and of {name} differ")));
            }
        }
        Ok(())
    }

    /// The lines of the last result of a run, sorted.
    fn rows(&self, number: usize) -> Result<Vec<String>> {
        let path = self.file(number, "csv");
        let text =
            std::fs::read_to_string(&path).map_err(|source| Error::io(&path, "read", source))?;
        let mut rows: Vec<_> = text.lines().map(String::from).collect();
        rows.sort_unstable();
        Ok(rows)
    }
}

fn execute(words: Vec<String>) -> Result<Report> {
    let line = std::iter::once("nexmark".to_owned()).chain(words);
    let Line { args } =
        Line::try_parse_from(line).map_err(|error| Error::Usage(error.to_string()))?;
    nexmark(&args)
}
