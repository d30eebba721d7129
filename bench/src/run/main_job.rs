//! The main job: Nexmark q3 and q4 on heap and on the hybrid log, with state that fits and with
//! four times the memory; the latter also killed in the middle and opened again. Results must be
//! equal. Then two questions of windows, COUNT of 30 s every second and RANK of 30 s, answered by
//! ours and by hashbrown maps in turns, with equal answers. Leaves tables, the reports, latency plots
//! and their points in `target/alluvium-report/`.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use alluvium::ByteSize;
use clap::Parser;

use super::nexmark::nexmark;
use super::questions::{draw, questions, window_table};
use super::state::temporary_dir;
use crate::args::NexmarkArgs;
use crate::report::{Curve, Report, write_ccdf_csv, write_ccdf_svg};
use crate::{Error, Result};

/// How much work the job does.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// Events of q3.
    pub q3_events: u64,
    /// Events of q4.
    pub q4_events: u64,
    /// Auctions open at a time in q4.
    pub in_flight: u64,
    /// Events of each question of windows.
    pub window_events: u64,
}

impl Scale {
    /// About a minute and a half on two cores.
    pub const FULL: Scale = Scale {
        q3_events: 4_000_000,
        q4_events: 3_000_000,
        in_flight: 120_000,
        window_events: 1_000_000,
    };
    /// A few seconds.
    pub const SMOKE: Scale =
        Scale { q3_events: 400_000, q4_events: 450_000, in_flight: 24_000, window_events: 400_000 };
}

/// Memory of the runs that have plenty.
const ROOMY: ByteSize = ByteSize(1 << 30);
/// How many times the memory the state of the small runs is.
const TIMES: u64 = 4;
/// The killed run is given up on after this.
const PATIENCE: Duration = Duration::from_secs(300);

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: NexmarkArgs,
}

/// One finished run.
struct Run {
    name: String,
    memory: ByteSize,
    report: Report,
}

/// Runs the job.
///
/// # Errors
/// Any run's, and results that differ or state that is not as large as it should be.
pub fn main_job(scale: Scale) -> Result<()> {
    let out = PathBuf::from("target/alluvium-report");
    std::fs::create_dir_all(&out).map_err(|source| Error::io(&out, "make", source))?;
    let q3 = query(&out, "q3", scale.q3_events, None)?;
    let q4 = query(&out, "q4", scale.q4_events, Some(scale.in_flight))?;
    let runs: Vec<Run> = q3.into_iter().chain(q4).collect();
    let table = table(&runs);
    print!("{table}");
    let windows = questions(&out, scale.window_events)?;
    let of_windows = window_table(&windows);
    print!("{of_windows}");
    let path = out.join("report.txt");
    let text = format!("{table}\n{of_windows}");
    std::fs::write(&path, text).map_err(|source| Error::io(&path, "write", source))?;
    let curves: Vec<_> = runs
        .iter()
        .filter_map(|run| {
            Some(Curve { name: &run.name, latencies: run.report.latencies.as_ref()? })
        })
        .collect();
    write_ccdf_csv(&out.join("latency.csv"), &curves)?;
    write_ccdf_svg(&out.join("latency.svg"), "Latency of Nexmark events", &curves)?;
    draw(&out, &windows)?;
    println!("results equal; tables, plots and reports in {}", out.display());
    Ok(())
}

/// All runs of one query.
fn query(out: &Path, name: &str, events: u64, in_flight: Option<u64>) -> Result<Vec<Run>> {
    let job = Job { out, query: name, events, in_flight };
    let heap = job.run("heap", "heap", ROOMY)?;
    let roomy = job.run("log, roomy", "hybrid-log", ROOMY)?;
    let live = heap.report.memory.live_bytes.min(roomy.report.memory.live_bytes);
    let quarter = ByteSize(live / TIMES);
    let small = job.run("log, a quarter", "hybrid-log", quarter)?;
    // Both numbers as the reports have them; live bytes where all of them are in memory, native.
    let (live, budget) = (roomy.report.memory.live_bytes, small.report.memory.budget);
    if live < TIMES * budget {
        let message =
            format!("{name}: live state is {live} bytes, not {TIMES} times the {budget} of memory");
        return Err(Error::Wrong(message));
    }
    let killed = job.killed("log, a quarter, killed and opened again", quarter)?;
    for run in [&roomy, &small] {
        job.same_rows(&heap, run)?;
    }
    for run in [&roomy, &small, &killed] {
        if run.report.checksum != heap.report.checksum {
            let (ours, theirs) = (&run.report.checksum, &heap.report.checksum);
            let message = format!("{}: checksum {ours}, on heap {theirs}", run.name);
            return Err(Error::Wrong(message));
        }
    }
    Ok(vec![heap, roomy, small, killed])
}

struct Job<'a> {
    out: &'a Path,
    query: &'a str,
    events: u64,
    in_flight: Option<u64>,
}

impl Job<'_> {
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

    fn file(&self, name: &str, extension: &str) -> PathBuf {
        let name = name.replace(", ", "-").replace(' ', "-");
        self.out.join(format!("{}-{name}.{extension}", self.query))
    }

    fn execute(&self, name: &str, memory: ByteSize, words: Vec<String>) -> Result<Run> {
        let line = std::iter::once("nexmark".to_owned()).chain(words);
        let Line { args } =
            Line::try_parse_from(line).map_err(|error| Error::Usage(error.to_string()))?;
        let report = nexmark(&args)?;
        report.write_json(&self.file(name, "json"))?;
        Ok(Run { name: format!("{} {name}", self.query), memory, report })
    }

    fn run(&self, name: &str, layout: &str, memory: ByteSize) -> Result<Run> {
        let mut words = self.words(layout, memory);
        let results = self.file(name, "csv");
        words.extend(["--results".into(), results.display().to_string()]);
        self.execute(name, memory, words)
    }

    /// A run that checkpoints, is killed some time after, and goes on from there in this process.
    fn killed(&self, name: &str, memory: ByteSize) -> Result<Run> {
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
            let message = format!("{name}: the process ended ({status}) before it could be killed");
            return Err(Error::Command(message));
        }
        self.execute(name, memory, words)
    }

    /// Whether two runs wrote the same rows, in any order.
    fn same_rows(&self, one: &Run, other: &Run) -> Result<()> {
        let rows = |run: &Run| -> Result<Vec<String>> {
            let name = run.name.split_once(' ').map_or("", |(_, name)| name);
            let path = self.file(name, "csv");
            let text = std::fs::read_to_string(&path)
                .map_err(|source| Error::io(&path, "read", source))?;
            let mut rows: Vec<_> = text.lines().map(String::from).collect();
            rows.sort_unstable();
            Ok(rows)
        };
        if rows(one)? == rows(other)? {
            return Ok(());
        }
        Err(Error::Wrong(format!("the rows of {} and {} differ", one.name, other.name)))
    }
}

fn table(runs: &[Run]) -> String {
    let mib = |bytes: u64| format!("{:.1}", bytes as f64 / (1 << 20) as f64);
    let us = |ns: u64| format!("{:.0}", ns as f64 / 1e3);
    let mut lines = vec![
        ["run", "memory MiB", "live MiB", "events/s", "p50 us", "p99 us", "p99.99 us", "max us"]
            .map(String::from)
            .to_vec(),
    ];
    lines[0].extend(["noise p99.99 us", "written MiB", "reads", "checksum"].map(String::from));
    for Run { name, memory, report } in runs {
        let latency = report.latency_ns.unwrap_or_default();
        let noise = report.noise_floor_ns.unwrap_or_default();
        lines.push(vec![
            name.clone(),
            mib(memory.0),
            mib(report.memory.live_bytes),
            format!("{:.0}", report.ops_per_s),
            us(latency.p50),
            us(latency.p99),
            us(latency.p99_99),
            us(latency.max),
            us(noise.p99_99),
            mib(report.io.bytes_written),
            report.io.reads.to_string(),
            report.checksum.clone(),
        ]);
    }
    aligned(&lines)
}

/// Lines with their columns side by side.
pub(super) fn aligned(lines: &[Vec<String>]) -> String {
    let width = |column: usize| lines.iter().map(|line| line[column].len()).max().unwrap_or(0);
    let widths: Vec<_> = (0..lines[0].len()).map(width).collect();
    let mut text = String::new();
    for line in lines {
        for (cell, width) in line.iter().zip(&widths) {
            text.push_str(&format!("{cell:>width$}  "));
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    text
}
