//! `suite birte19`: the experiments of *FASTER state management for Timely Dataflow* (BIRTE'19) on q3.
//!
//! 1. Managed state against plain maps in memory: latency by percentile (Fig. 2a).
//! 2. State larger than memory on one worker, against several workers with all state in memory, as threads
//!    and as processes that talk over the loopback (Fig. 2b).
//!
//! Answers of all runs must be equal.

use std::path::Path;

use alluvium_reports::{Line, digits, logarithmic, short};

use crate::cell::{Cell, DIRECTORY, HOSTS, Outcome};
use crate::medians::Outcomes;
use crate::programs::Programs;
use crate::report::{Part, Report, Table};
use crate::runner::Runner;
use crate::{Error, Result};

const PLAIN: &str = "plain maps";
const PLAIN_AGAIN: &str = "plain maps again";
const HEAP: &str = "managed, heap";
const LOG: &str = "managed, log";
const SMALL: &str = "1 worker, little memory";

const OVERHEAD: &str = "overhead";
const LARGE: &str = "large state";

/// How large a run is.
#[derive(Clone, Debug)]
pub struct Options {
    /// Seconds of each stream.
    pub seconds: f64,
    /// Events a second.
    pub rate: u64,
    /// Memory that has room for all state.
    pub memory: String,
    /// Memory of the run whose state is larger.
    pub small: String,
    /// Numbers of workers of the runs in memory.
    pub workers: Vec<usize>,
    /// Rounds.
    pub rounds: usize,
}

impl Options {
    fn cells(&self, bench: &Path) -> Vec<Cell> {
        let overhead = [
            (PLAIN, "q3-plain", "heap"),
            (HEAP, "q3", "heap"),
            (LOG, "q3", "hybrid-log"),
            (PLAIN_AGAIN, "q3-plain", "heap"),
        ];
        let mut cells: Vec<_> = overhead
            .into_iter()
            .map(|(column, query, layout)| {
                let mut words = self.words(query, layout, &self.memory, 1);
                if column == PLAIN_AGAIN {
                    // The default, so that its command is another one.
                    words.extend(["--seed".to_owned(), "0".to_owned()]);
                }
                cell(bench, (OVERHEAD, column), words)
            })
            .collect();
        let small = self.words("q3", "hybrid-log", &self.small, 1);
        cells.push(cell(bench, (LARGE, SMALL), small));
        for workers in &self.workers {
            let words = self.words("q3", "heap", &self.memory, *workers);
            cells.push(cell(bench, (LARGE, &format!("{workers} workers in memory")), words));
            cells.push(self.processes(bench, *workers));
        }
        cells
    }

    /// As many processes of a worker each.
    fn processes(&self, bench: &Path, count: usize) -> Cell {
        let of = |number: usize| {
            let mut words = self.words("q3", "heap", &self.memory, 1);
            let hosts = format!("{DIRECTORY}/{HOSTS}");
            let (count, number) = (count.to_string(), number.to_string());
            let more = ["--processes", &count, "--process", &number, "--hostfile", &hosts];
            words.extend(more.map(str::to_owned));
            // The answer is that of all; the figures are the first process's.
            words.iter_mut().for_each(|word| {
                *word = word.replace("/state", &format!("/state-{number}"));
                if number != "0" {
                    *word = word.replace("figures.json", &format!("figures-{number}.json"));
                }
            });
            words
        };
        let mut cell = cell(bench, (LARGE, &format!("{count} processes in memory")), of(0));
        cell.beside = (1..count).map(of).collect();
        cell
    }

    fn words(&self, query: &str, layout: &str, memory: &str, workers: usize) -> Vec<String> {
        let events = (self.seconds * self.rate as f64).ceil() as u64;
        let (events, rate, workers) =
            (events.to_string(), self.rate.to_string(), workers.to_string());
        let (state, json) = (format!("{DIRECTORY}/state"), format!("{DIRECTORY}/figures.json"));
        let mut words = vec!["nexmark", "--query", query, "--layout", layout, "--memory", memory];
        words.extend(["--events", &events, "--rate", &rate, "--workers", &workers]);
        words.extend(["--dir", &state, "--json", &json]);
        words.into_iter().map(str::to_owned).collect()
    }
}

fn cell(bench: &Path, (row, column): (&str, &str), arguments: Vec<String>) -> Cell {
    Cell {
        row: row.to_owned(),
        column: column.to_owned(),
        program: Ok(bench.to_owned()),
        arguments,
        beside: Vec::new(),
        figures: Some("figures.json".to_owned()),
    }
}

/// Runs the suite and writes its report after each cell.
///
/// # Errors
/// A program is missing or a file cannot be written; [`Error::Wrong`] if answers differ or a run failed.
pub fn run(options: &Options, programs: &Programs, runner: &mut Runner, out: &Path) -> Result<()> {
    let bench = Programs::needed(&programs.bench, "alluvium-bench")?;
    let machine = runner.environment().clone();
    let cells = options.cells(bench);
    let total = cells.len() * options.rounds;
    let outcomes = runner.run(&cells, options.rounds, &mut |outcomes| {
        report(options, outcomes, total).write(out, &machine)
    })?;
    let mut wrong = Outcomes(&outcomes).differences("checksum");
    wrong.extend(outcomes.iter().filter_map(|outcome| {
        let why = outcome.why.as_ref()?;
        Some(format!("{} on {}: {why}", outcome.row, outcome.column))
    }));
    match wrong.is_empty() {
        true => Ok(()),
        false => Err(Error::Wrong(wrong.join("\n"))),
    }
}

fn report(options: &Options, outcomes: &[Outcome], total: usize) -> Report {
    let all = Outcomes(outcomes);
    let mut report = Report::new("BIRTE'19: q3 with managed state");
    let Options { seconds, rate, memory, small, rounds, .. } = options;
    report.text(format!(
        "Nexmark q3 at {} events/s for {seconds} s, {memory} for state, {rounds} rounds in turns, \
         medians. {} of {total} cells are done. Open loop: latency counts from when an event is due.",
        short(*rate as f64),
        outcomes.len()
    ));
    report.add(Part::Heading("Managed state against plain maps (Fig. 2a)".to_owned()));
    report.text("Published: FASTER costs 1.1x to p98, and 16x beyond.");
    report.add(Part::Table(overhead(all)));
    report.add(Part::Plot(curves(all, OVERHEAD, &[PLAIN, HEAP, LOG])));
    report.add(Part::Heading("Larger than memory, against more workers (Fig. 2b)".to_owned()));
    report.text(format!(
        "One worker has {small} for all state; the table says how many times that its state is. The others \
         have all state in memory. Processes talk over the loopback; figures are those of the first. In the \
         paper one worker with 22 GB of state stands against 24 workers on four machines."
    ));
    let mut columns = vec![SMALL.to_owned()];
    for workers in &options.workers {
        columns.push(format!("{workers} workers in memory"));
        columns.push(format!("{workers} processes in memory"));
    }
    let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
    report.add(Part::Table(scaled(all, &columns)));
    report.add(Part::Plot(curves(all, LARGE, &columns)));
    let differences = all.differences("checksum");
    report.text(match differences.is_empty() {
        true => "All answers are equal.".to_owned(),
        false => format!("Answers differ: {}.", differences.join("; ")),
    });
    report.add(Part::Heading("Commands".to_owned()));
    let first = outcomes.iter().filter(|outcome| outcome.round == 1);
    report.add(Part::Lines(first.map(|outcome| outcome.command.clone()).collect()));
    report
}

const PERCENTILES: [(&str, &str); 5] =
    [("p50", "p50"), ("p99", "p99"), ("p99.9", "p99_9"), ("p99.99", "p99_99"), ("most", "max")];

fn overhead(all: Outcomes<'_>) -> Table {
    let columns = [
        ("percentile", ""),
        ("plain maps", "ms"),
        ("heap", "ms"),
        ("log", "ms"),
        ("heap of plain", ""),
        ("log of plain", ""),
        ("plain again of plain", ""),
    ];
    let mut table = Table::new(columns);
    for (name, path) in PERCENTILES {
        let at = |column| all.median(OVERHEAD, column, &format!("latency_ns.{path}"));
        let ms = |column| at(column).map_or(String::new(), |ns| digits(ns / 1e6));
        let of_plain = |column| match (at(column), at(PLAIN)) {
            (Some(one), Some(plain)) if plain > 0.0 => format!("{:.2}x", one / plain),
            _ => String::new(),
        };
        let mut cells = vec![name.to_owned(), ms(PLAIN), ms(HEAP), ms(LOG)];
        cells.extend([HEAP, LOG, PLAIN_AGAIN].map(of_plain));
        table.row(cells);
    }
    table
}

fn scaled(all: Outcomes<'_>, columns: &[&str]) -> Table {
    let mut names = vec![("run", ""), ("rate", "/s")];
    names.extend(PERCENTILES.map(|(name, _)| (name, "ms")));
    names.extend([("state of its memory", ""), ("read", "MiB"), ("result", "")]);
    let mut table = Table::new(names);
    let mib = |bytes: Option<f64>| bytes.map_or(String::new(), |b| digits(b / f64::from(1 << 20)));
    for column in columns.iter().filter(|column| all.of(LARGE, column).next().is_some()) {
        let at = |path: &str| all.median(LARGE, column, path);
        let mut cells = vec![(*column).to_owned(), at("ops_per_s").map_or(String::new(), short)];
        for (_, path) in PERCENTILES {
            let ns = at(&format!("latency_ns.{path}"));
            cells.push(ns.map_or(String::new(), |ns| digits(ns / 1e6)));
        }
        let times = at("memory.live_bytes").zip(at("memory.budget").filter(|budget| *budget > 0.0));
        cells.push(times.map_or(String::new(), |(live, budget)| format!("{:.2}x", live / budget)));
        cells.push(mib(at("io.bytes_read")));
        cells.push(all.why(LARGE, column).unwrap_or("done").to_owned());
        table.row(cells);
    }
    table
}

fn curves(all: Outcomes<'_>, row: &str, columns: &[&str]) -> String {
    let lines = columns.iter().map(|column| {
        let points = all.of(row, column).next().map(|outcome| outcome.curve("ccdf_ns"));
        Line { name: column, points: points.unwrap_or_default() }
    });
    let axes = ["latency, ms", "share of events that took at least as long"];
    logarithmic(&format!("q3, {row}: latency"), axes, &lines.collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_have_numbers_directories_and_one_list_of_addresses() {
        let options = Options {
            seconds: 2.0,
            rate: 1_000,
            memory: "64MiB".to_owned(),
            small: "1MiB".to_owned(),
            workers: vec![2],
            rounds: 1,
        };
        let cells = options.cells(Path::new("/bin/alluvium-bench"));
        assert_eq!(cells.len(), 4 + 1 + 2);
        let processes = &cells[6];
        assert_eq!(processes.column, "2 processes in memory");
        let first = processes.command();
        assert!(first.contains("--processes 2 --process 0 --hostfile {dir}/hosts"), "{first}");
        assert!(first.contains("{dir}/state-0 --json {dir}/figures.json"), "{first}");
        let second = processes.beside[0].join(" ");
        assert!(second.contains("{dir}/state-1 --json {dir}/figures-1.json"), "{second}");
        assert!(second.contains("--events 2000 --rate 1000"), "{second}");
        let mut commands: Vec<_> = cells.iter().map(Cell::command).collect();
        commands.sort();
        commands.dedup();
        assert_eq!(commands.len(), 7);
    }
}
