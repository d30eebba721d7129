//! `suite nexmark`: every query on the heap, on one monolithic hybrid log, and with the layouts that fit
//! each state. All three must give the same answers.
//!
//! The monolithic store is one layout with one memory pool for all states of the query. The
//! workload-aware one has the same memory; each state has what [its kind](PLACEMENTS) wants. In all
//! runs q4, q15, q105 and q106 keep a state of a few keys on the heap, as their own code says.

use std::path::Path;

use alluvium_reports::{digits, short};

use crate::cell::{Cell, DIRECTORY, Outcome};
use crate::medians::Outcomes;
use crate::programs::Programs;
use crate::report::{Part, Report, Table};
use crate::runner::Runner;
use crate::{Error, Result};

/// The queries of the issue, in order.
pub const QUERIES: [&str; 29] = [
    "q0", "q1", "q2", "q3", "q4", "q5", "q6", "q7", "q8", "q9", "q10", "q11", "q12", "q13", "q14",
    "q15", "q16", "q17", "q18", "q19", "q20", "q21", "q22", "q101", "q102", "q103", "q104", "q105",
    "q106",
];

const HEAP: &str = "heap";
const LOG: &str = "monolithic log";
const AWARE: &str = "workload-aware";
const AGAIN: &str = "heap again";

/// States of the workload-aware runs that the default of their kind does not fit: few keys that
/// every event changes.
pub const PLACEMENTS: [(&str, &str); 2] =
    [("q5", "hottest/windows=heap"), ("q7", "highest/windows=heap")];

/// How large a run is.
#[derive(Clone, Debug)]
pub struct Options {
    /// The queries.
    pub queries: Vec<String>,
    /// Events of a run.
    pub events: u64,
    /// Auctions open at a time.
    pub in_flight: u64,
    /// Memory for state, as on the command line.
    pub memory: String,
    /// Workers of a run.
    pub workers: usize,
    /// Rounds.
    pub rounds: usize,
    /// The heap is measured twice, to tell noise from differences.
    pub repeats: bool,
}

impl Options {
    fn cells(&self, bench: &Path) -> Vec<Cell> {
        let mut cells = Vec::new();
        for query in &self.queries {
            for (column, layout) in [(HEAP, "heap"), (LOG, "hybrid-log"), (AWARE, "auto")] {
                cells.push(self.cell(bench, query, column, layout));
            }
            if self.repeats {
                cells.push(self.cell(bench, query, AGAIN, "heap"));
            }
        }
        cells
    }

    fn cell(&self, bench: &Path, query: &str, column: &str, layout: &str) -> Cell {
        let (events, in_flight) = (self.events.to_string(), self.in_flight.to_string());
        let workers = self.workers.to_string();
        let directory = format!("{DIRECTORY}/state");
        let json = format!("{DIRECTORY}/figures.json");
        let mut words = vec!["nexmark", "--query", query, "--layout", layout, "--events", &events];
        words.extend(["--in-flight", &in_flight, "--memory", &self.memory, "--workers", &workers]);
        words.extend(["--dir", &directory, "--json", &json]);
        let own = PLACEMENTS.iter().filter(|(of, _)| *of == query && column == AWARE);
        own.for_each(|(_, place)| words.extend(["--place", place]));
        let mut arguments: Vec<String> = words.into_iter().map(str::to_owned).collect();
        if column == AGAIN {
            // Its command differs from that of the first, so that both are kept: seed 0 is the default.
            arguments.extend(["--seed".to_owned(), "0".to_owned()]);
        }
        Cell {
            row: query.to_owned(),
            column: column.to_owned(),
            program: Ok(bench.to_owned()),
            arguments,
            beside: Vec::new(),
            figures: Some("figures.json".to_owned()),
        }
    }
}

/// Runs the suite and writes its report after each cell.
///
/// # Errors
/// A program is missing, a query is unknown, or a file cannot be written; [`Error::Wrong`] if answers
/// differ or a run failed.
pub fn run(options: &Options, programs: &Programs, runner: &mut Runner, out: &Path) -> Result<()> {
    if let Some(query) = options.queries.iter().find(|query| !QUERIES.contains(&&query[..])) {
        let known = QUERIES.join(", ");
        return Err(Error::new(format!("there is no query {query:?} in the suite, but {known}")));
    }
    let bench = Programs::needed(&programs.bench, "alluvium-bench")?;
    let machine = runner.environment().clone();
    let cells = options.cells(bench);
    let total = cells.len() * options.rounds;
    let outcomes = runner.run(&cells, options.rounds, &mut |outcomes| {
        report(options, outcomes, total).write(out, &machine)
    })?;
    check(&outcomes)
}

/// Refuses answers that differ, and runs that failed.
fn check(outcomes: &[Outcome]) -> Result<()> {
    let mut wrong = Outcomes(outcomes).differences("checksum");
    let failed = outcomes.iter().filter_map(|outcome| {
        let (row, column) = (&outcome.row, &outcome.column);
        outcome.why.as_ref().map(|why| format!("{row} on {column}: {why}"))
    });
    wrong.extend(failed);
    match wrong.is_empty() {
        true => Ok(()),
        false => Err(Error::Wrong(wrong.join("\n"))),
    }
}

fn report(options: &Options, outcomes: &[Outcome], total: usize) -> Report {
    let mut report = Report::new("Nexmark: heap, one monolithic log, workload-aware layouts");
    let Options { events, in_flight, memory, workers, rounds, .. } = options;
    report.text(format!(
        "{} events a run, {in_flight} auctions in flight, {memory} for state, {workers} workers, \
         {rounds} rounds in turns; medians. {} of {total} cells are done.",
        short(*events as f64),
        outcomes.len()
    ));
    report.text(
        "Closed loop: rates are the most that a run takes in; p99 is of an event's batch, from sending to \
         its result. Peak memory is the process's resident set. Written bytes are those of state, \
         and of the partitions of q10. In all runs q4, q15, q105 and q106 keep a state of a few keys on the \
         heap.",
    );
    let all = Outcomes(outcomes);
    report.add(Part::Table(table(all)));
    let differences = all.differences("checksum");
    report.text(match differences.is_empty() {
        true => "All answers are equal.".to_owned(),
        false => format!("Answers differ: {}.", differences.join("; ")),
    });
    report.text(losses(all));
    report.add(Part::Heading("Layouts of the workload-aware runs".to_owned()));
    report.add(Part::Table(layouts(all)));
    report.add(Part::Heading("Commands".to_owned()));
    let first = outcomes.iter().filter(|outcome| outcome.round == 1);
    report.add(Part::Lines(first.map(|outcome| outcome.command.clone()).collect()));
    report
}

const RATE: &str = "ops_per_s";

fn table(all: Outcomes<'_>) -> Table {
    let figures = [
        ("events", "K/s", RATE, 1e3),
        ("p99", "ms", "latency_ns.p99", 1e6),
        ("peak memory", "MiB", "memory.peak_rss", f64::from(1 << 20)),
        ("written", "MiB", "io.bytes_written", f64::from(1 << 20)),
    ];
    let layouts = [("heap", HEAP), ("log", LOG), ("aware", AWARE)];
    let mut columns = vec![("query".to_owned(), "")];
    for (name, unit, ..) in figures {
        columns.extend(layouts.map(|(layout, _)| (format!("{name}, {layout}"), unit)));
    }
    columns.extend([("aware of heap".to_owned(), ""), ("heap again of heap".to_owned(), "")]);
    columns.push(("answers".to_owned(), ""));
    let mut table = Table::new(columns);
    for row in all.rows() {
        let mut cells = vec![row.to_owned()];
        for (_, _, path, unit) in figures {
            for (_, column) in layouts {
                cells.push(match all.median(row, column, path) {
                    Some(value) => digits(value / unit),
                    None => all.why(row, column).map_or("", |_| "failed").to_owned(),
                });
            }
        }
        let ratio = |column| ratio(all, row, column).map_or(String::new(), |r| format!("{r:.2}x"));
        cells.extend([ratio(AWARE), ratio(AGAIN), answers(all, row)]);
        table.row(cells);
    }
    table
}

/// The rate of a column over that of the heap.
fn ratio(all: Outcomes<'_>, row: &str, column: &str) -> Option<f64> {
    Some(all.median(row, column, RATE)? / all.median(row, HEAP, RATE)?)
}

fn answers(all: Outcomes<'_>, row: &str) -> String {
    let begin = format!("{row}: ");
    if all.differences("checksum").iter().any(|line| line.starts_with(&begin)) {
        return "DIFFERENT".to_owned();
    }
    let has = |column| all.of(row, column).any(|outcome| outcome.text("checksum").is_some());
    let text = if [HEAP, LOG, AWARE].into_iter().all(has) { "equal" } else { "" };
    text.to_owned()
}

/// Where the workload-aware layouts are slower than one of the others by more than two runs of the
/// same differ.
fn losses(all: Outcomes<'_>) -> String {
    let rows = all.rows();
    let noise = rows.iter().filter_map(|row| ratio(all, row, AGAIN)).map(|r| (r - 1.0).abs());
    let noise = noise.fold(0.05, f64::max);
    let mut lost = Vec::new();
    for row in rows {
        for other in [HEAP, LOG] {
            let rates = (all.median(row, AWARE, RATE), all.median(row, other, RATE));
            let (Some(aware), Some(rate)) = rates else { continue };
            if aware < rate * (1.0 - noise) {
                lost.push(format!("{row} at {:.2}x of {other}", aware / rate));
            }
        }
    }
    let noise = noise * 100.0;
    match lost.is_empty() {
        true => format!("Workload-aware is nowhere slower by more than {noise:.0} % (noise)."),
        false => {
            format!(
                "Workload-aware is slower, by more than {noise:.0} % (noise): {}.",
                lost.join(", ")
            )
        }
    }
}

fn layouts(all: Outcomes<'_>) -> Table {
    let mut table = Table::new([("query", ""), ("states", ""), ("live keys", ""), ("live", "MiB")]);
    for row in all.rows() {
        let Some(outcome) = all.of(row, AWARE).find(|outcome| outcome.figures.is_some()) else {
            continue;
        };
        let states = outcome.figures.as_ref().and_then(|figures| figures["states"].as_array());
        let named = states.into_iter().flatten().filter_map(|state| {
            Some(format!("{} in {}", state["name"].as_str()?, state["layout"].as_str()?))
        });
        let named: Vec<_> = named.collect();
        let named = if named.is_empty() { "none".to_owned() } else { named.join(", ") };
        let bytes = outcome.number("memory.live_bytes").unwrap_or(0.0) / f64::from(1 << 20);
        let keys = short(outcome.number("memory.live_keys").unwrap_or(0.0));
        table.row(vec![row.to_owned(), named, keys, digits(bytes)]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn outcome(column: &str, rate: f64, checksum: &str) -> Outcome {
        Outcome {
            row: "q4".to_owned(),
            column: column.to_owned(),
            round: 1,
            command: "alluvium-bench".to_owned(),
            seconds: 1.0,
            figures: Some(json!({
                "ops_per_s": rate, "checksum": checksum, "latency_ns": {"p99": 2e6},
                "memory": {"peak_rss": 1 << 20, "live_bytes": 0, "live_keys": 7},
                "io": {"bytes_written": 0},
                "states": [{"name": "items", "layout": "hybrid-log"}],
            })),
            why: None,
        }
    }

    fn options() -> Options {
        Options {
            queries: vec!["q4".to_owned()],
            events: 10,
            in_flight: 5,
            memory: "1MiB".to_owned(),
            workers: 1,
            rounds: 1,
            repeats: true,
        }
    }

    #[test]
    fn losses_beyond_the_noise_and_wrong_answers_are_said() {
        let mut all = vec![
            outcome(HEAP, 1000.0, "a"),
            outcome(LOG, 500.0, "a"),
            outcome(AWARE, 850.0, "a"),
            outcome(AGAIN, 1100.0, "a"),
        ];
        check(&all).unwrap();
        let text = losses(Outcomes(&all));
        assert!(text.contains("more than 10 % (noise): q4 at 0.85x of heap."), "{text}");
        all[3] = outcome(AGAIN, 1200.0, "a");
        assert!(losses(Outcomes(&all)).contains("nowhere"));
        assert_eq!(answers(Outcomes(&all), "q4"), "equal");
        all[1] = outcome(LOG, 500.0, "b");
        assert_eq!(answers(Outcomes(&all), "q4"), "DIFFERENT");
        let error = check(&all).unwrap_err().to_string();
        assert_eq!(error, "q4: checksum a on heap, b on monolithic log");
    }

    #[test]
    fn the_four_cells_of_a_query_are_different_commands() {
        let cells = options().cells(Path::new("/bin/alluvium-bench"));
        let mut commands: Vec<_> = cells.iter().map(Cell::command).collect();
        assert!(commands[2].contains("--layout auto") && !commands[2].contains("--place"));
        commands.sort();
        commands.dedup();
        assert_eq!(commands.len(), 4);
    }

    #[test]
    fn every_placement_is_of_a_query_of_the_suite() {
        assert!(PLACEMENTS.iter().all(|(query, _)| QUERIES.contains(query)));
    }
}
