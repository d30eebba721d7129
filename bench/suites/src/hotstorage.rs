//! `suite hotstorage20`: the experiments of *In support of workload-aware streaming state management*
//! (HotStorage'20).
//!
//! 1. COUNT and RANK over sliding and tumbling windows on each store, in an open loop (Fig. 3).
//! 2. Nexmark q3 to q8 in the testbed's form, monolithic against workload-aware (Table 1, Fig. 4).
//! 3. Median latency at rates up to one that cannot be kept (Fig. 5a), and with 1 to N workers (5b).
//!
//! Answers of all runs of an experiment must be equal, but for runs that were cut.

use std::path::Path;

use alluvium_reports::{Line, digits, lines, logarithmic, short};

use crate::cell::{Cell, DIRECTORY, Outcome};
use crate::medians::Outcomes;
use crate::programs::Programs;
use crate::report::{Part, Report, Table};
use crate::runner::Runner;
use crate::{Error, Result};

/// Engines of COUNT and RANK, and whether each needs a native build.
const ENGINES: [(&str, bool); 7] = [
    ("ours-native", false),
    ("ours-hybrid-log", false),
    ("ours-append-log", false),
    ("hashbrown", false),
    ("rocksdb", true),
    ("rocksdb-merge", true),
    ("faster", true),
];

/// A query with what the paper says: the speed-up of p99 by workload-aware state.
struct Published {
    query: &'static str,
    /// Records a second.
    rate: u64,
    speed_up: &'static str,
}

/// Table 1. The paper has no factor for q7 and q8 in its text.
const QUERIES: [Published; 6] = [
    Published { query: "q3", rate: 1_000_000, speed_up: "10x beyond p99" },
    Published { query: "q4-hotstorage", rate: 10_000, speed_up: "6x" },
    Published { query: "q5-hotstorage", rate: 10_000, speed_up: "14x" },
    Published { query: "q6-hotstorage", rate: 10_000, speed_up: "6x" },
    Published { query: "q7-hotstorage", rate: 1_000_000, speed_up: "shown in Fig. 4d" },
    Published { query: "q8-hotstorage", rate: 1_000_000, speed_up: "negligible state" },
];

const MONOLITHIC: &str = "monolithic";
const AWARE: &str = "workload-aware";
const AGAIN: &str = "workload-aware again";
const HEAP: &str = "heap";
/// Small state with a bounded size that the workload-aware runs keep on the heap, as Table 2 does.
const PLACEMENTS: [(&str, &str); 2] =
    [("q5-hotstorage", "hottest/windows=heap"), ("q7-hotstorage", "highest/windows=heap")];

/// How large a run is.
#[derive(Clone, Debug)]
pub struct Options {
    /// Seconds of each stream.
    pub seconds: f64,
    /// Rates are the published ones, divided by this.
    pub slower: u64,
    /// Milliseconds of a window and between two starts, each a row of COUNT and of RANK.
    pub windows: Vec<(u64, u64)>,
    /// Memory of each store.
    pub memory: String,
    /// Rounds.
    pub rounds: usize,
    /// Rates of Fig. 5a for q4 and q7, in shares of the published one.
    pub rates: Vec<f64>,
    /// Workers of Fig. 5b.
    pub workers: Vec<usize>,
}

/// Where the programs are.
struct Places<'a> {
    bench: &'a Path,
    gadget: &'a Path,
    peers: Option<&'a Path>,
}

impl Options {
    fn cells(&self, places: &Places<'_>) -> Vec<Cell> {
        let mut cells = self.window_cells(places);
        for published in &QUERIES {
            let rate = self.rate(published.rate, 1.0);
            for column in [MONOLITHIC, AWARE, AGAIN, HEAP] {
                cells.push(self.query_cell(places, published.query, column, rate, 1));
            }
        }
        for published in QUERIES.iter().filter(|p| is_swept(p.query)) {
            for share in &self.rates {
                let rate = self.rate(published.rate, *share);
                for column in [MONOLITHIC, AWARE] {
                    let mut cell = self.query_cell(places, published.query, column, rate, 1);
                    cell.row = format!("{} at {rate}/s", published.query);
                    cells.push(cell);
                }
            }
        }
        for published in QUERIES.iter().filter(|p| p.query == "q7-hotstorage") {
            let rate = self.rate(published.rate, 1.0);
            for workers in &self.workers {
                for column in [MONOLITHIC, AWARE] {
                    let mut cell = self.query_cell(places, published.query, column, rate, *workers);
                    cell.row = format!("{} on {workers} workers", published.query);
                    cells.push(cell);
                }
            }
        }
        cells
    }

    fn rate(&self, published: u64, share: f64) -> u64 {
        ((published / self.slower.max(1)) as f64 * share).round().max(1.0) as u64
    }

    fn window_cells(&self, places: &Places<'_>) -> Vec<Cell> {
        let mut cells = Vec::new();
        for (question, published) in [("count", 10_000), ("rank", 1_000)] {
            for window in &self.windows {
                for (engine, _) in ENGINES.iter().filter(|(engine, _)| takes(engine, question)) {
                    let rate = self.rate(published, 1.0);
                    cells.push(self.window_cell(places, (question, *window), engine, rate));
                }
            }
        }
        cells
    }

    fn window_cell(
        &self,
        places: &Places<'_>,
        (question, (length, slide)): (&str, (u64, u64)),
        engine: &str,
        rate: u64,
    ) -> Cell {
        let is_native = ENGINES.iter().any(|(name, is_native)| *name == engine && *is_native);
        let words = [
            ("hotstorage --question", question.to_owned()),
            ("--engine", engine.to_owned()),
            ("--length", length.to_string()),
            ("--slide", slide.to_string()),
            ("--rate", rate.to_string()),
            ("--seconds", self.seconds.to_string()),
            ("--memory", self.memory.clone()),
            ("--dir", DIRECTORY.to_owned()),
        ];
        let program = match (places.peers, is_native) {
            (Some(peers), _) => Ok(peers.to_owned()),
            (None, false) => Ok(places.gadget.to_owned()),
            (None, true) => Err(NOT_BUILT.to_owned()),
        };
        Cell {
            row: window_row(question, length, slide),
            column: engine.to_owned(),
            program,
            arguments: split(&words),
            beside: Vec::new(),
            figures: None,
        }
    }

    fn query_cell(
        &self,
        places: &Places<'_>,
        query: &str,
        column: &str,
        rate: u64,
        workers: usize,
    ) -> Cell {
        let events = (self.seconds * rate as f64).ceil() as u64;
        let (layout, placements): (_, &[(&str, &str)]) = match column {
            MONOLITHIC => ("hybrid-log", &[]),
            HEAP => ("heap", &[]),
            _ => ("auto", &PLACEMENTS),
        };
        let mut words = vec![
            ("nexmark --query", query.to_owned()),
            ("--layout", layout.to_owned()),
            ("--memory", self.memory.clone()),
            ("--events", events.to_string()),
            ("--rate", rate.to_string()),
            ("--workers", workers.to_string()),
            ("--dir", format!("{DIRECTORY}/state")),
            ("--json", format!("{DIRECTORY}/figures.json")),
        ];
        let own = placements.iter().filter(|(of, _)| *of == query);
        words.extend(own.map(|(_, place)| ("--place", (*place).to_owned())));
        if column == AGAIN {
            // The default, so that its command is another one.
            words.push(("--seed", "0".to_owned()));
        }
        Cell {
            row: query.to_owned(),
            column: column.to_owned(),
            program: Ok(places.bench.to_owned()),
            arguments: split(&words),
            beside: Vec::new(),
            figures: Some("figures.json".to_owned()),
        }
    }
}

const NOT_BUILT: &str = "alluvium-peers is not built: cargo build --release --manifest-path \
                         bench/peers/Cargo.toml";

fn split(words: &[(&str, String)]) -> Vec<String> {
    let words = words.iter().flat_map(|(option, value)| option.split(' ').chain([&value[..]]));
    words.map(str::to_owned).collect()
}

fn window_row(question: &str, length: u64, slide: u64) -> String {
    let seconds = |ms: u64| digits(ms as f64 / 1e3);
    format!("{}, {} s every {} s", question.to_uppercase(), seconds(length), seconds(slide))
}

/// An append log keeps lists only.
fn takes(engine: &str, question: &str) -> bool {
    engine != "ours-append-log" || question == "rank"
}

fn is_swept(query: &str) -> bool {
    ["q4-hotstorage", "q7-hotstorage"].contains(&query)
}

/// Runs the suite and writes its report after each cell.
///
/// # Errors
/// A program is missing or a file cannot be written; [`Error::Wrong`] if answers differ or a run of a
/// program that is there failed.
pub fn run(options: &Options, programs: &Programs, runner: &mut Runner, out: &Path) -> Result<()> {
    let places = Places {
        bench: Programs::needed(&programs.bench, "alluvium-bench")?,
        gadget: Programs::needed(&programs.gadget, "alluvium-gadget")?,
        peers: programs.peers.as_deref(),
    };
    let machine = runner.environment().clone();
    let cells = options.cells(&places);
    let total = cells.len() * options.rounds;
    let outcomes = runner.run(&cells, options.rounds, &mut |outcomes| {
        report(options, outcomes, total).write(out, &machine)
    })?;
    let mut wrong = Outcomes(&outcomes).differences("checksum");
    wrong.extend(outcomes.iter().filter_map(failure));
    match wrong.is_empty() {
        true => Ok(()),
        false => Err(Error::Wrong(wrong.join("\n"))),
    }
}

/// What a cell failed of, if it is not that its store is missing or its time was over.
fn failure(outcome: &Outcome) -> Option<String> {
    let why = outcome.why.as_deref()?;
    let is_expected = why == NOT_BUILT
        || why.starts_with("cut after")
        || why.contains("not installed when this was built")
        || why.contains("were not there when this was built");
    (!is_expected).then(|| format!("{} on {}: {why}", outcome.row, outcome.column))
}

fn report(options: &Options, outcomes: &[Outcome], total: usize) -> Report {
    let all = Outcomes(outcomes);
    let mut report = Report::new("HotStorage'20: COUNT, RANK, and Nexmark q3 to q8");
    let Options { seconds, slower, memory, rounds, .. } = options;
    report.text(format!(
        "{seconds} s a run, rates are the published ones{}, {memory} for each store, {rounds} rounds in \
         turns, medians. {} of {total} cells are done.",
        if *slower > 1 { format!(" divided by {slower}") } else { String::new() },
        outcomes.len()
    ));
    report.text(
        "Open loop: a record is due at its time, and its latency counts from then, however late it is \
         taken. A rate is not kept if the last record is done more than a second late; a run that takes \
         half as long again is cut, and its figures are those of the records until then.",
    );
    window_part(&mut report, all);
    query_part(&mut report, all);
    rate_part(&mut report, all);
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

/// Milliseconds at a path of nanoseconds.
fn ms(all: Outcomes<'_>, row: &str, column: &str, path: &str) -> Option<f64> {
    all.median(row, column, path).map(|ns| ns / 1e6)
}

fn shown(value: Option<f64>) -> String {
    value.map_or(String::new(), digits)
}

fn window_part(report: &mut Report, all: Outcomes<'_>) {
    report.add(Part::Heading("COUNT and RANK (Fig. 3)".to_owned()));
    report.text(
        "Published: COUNT has 100 times less p99 on FASTER than on RocksDB with merge; RANK has orders of \
         magnitude less on RocksDB with merge than on FASTER.",
    );
    let rows = all.rows();
    for row in rows.into_iter().filter(|row| row.starts_with("COUNT") || row.starts_with("RANK")) {
        let mut table = Table::new([
            (row, ""),
            ("rate", "/s"),
            ("p50", "ms"),
            ("p99", "ms"),
            ("p99.9", "ms"),
            ("most", "ms"),
            ("a firing, p99", "ms"),
            ("memory", "MiB"),
            ("kept", ""),
        ]);
        let mut curves = Vec::new();
        for (engine, _) in ENGINES {
            let Some(outcome) = all.of(row, engine).next() else { continue };
            let at = |path: &str| shown(ms(all, row, engine, path));
            let kept = match (&outcome.why, outcome.says("is_cut"), outcome.says("is_kept")) {
                (Some(why), ..) if why == NOT_BUILT => "not built".to_owned(),
                (Some(why), ..) => why.clone(),
                (None, true, _) => "no, cut *".to_owned(),
                (None, false, false) => "no".to_owned(),
                (None, false, true) => "yes".to_owned(),
            };
            let memory = all.median(row, engine, "memory_max").map(|b| b / f64::from(1 << 20));
            table.row(vec![
                engine.to_owned(),
                all.median(row, engine, "ops_per_s").map_or(String::new(), short),
                at("latencies.event.p50"),
                at("latencies.event.p99"),
                at("latencies.event.p99_9"),
                at("latencies.event.max"),
                at("latencies.firing.p99"),
                shown(memory),
                kept,
            ]);
            let points = outcome.curve("latencies.event.ccdf");
            curves.push(Line { name: engine, points });
        }
        report.add(Part::Table(table));
        report.add(Part::Plot(ccdf(&format!("{row}: latency"), &curves)));
    }
    if all.0.iter().any(|outcome| outcome.why.as_deref() == Some(NOT_BUILT)) {
        report.text(format!("Not built: {NOT_BUILT}."));
    }
}

fn ccdf(title: &str, curves: &[Line<'_>]) -> String {
    logarithmic(title, ["latency, ms", "share of records that took at least as long"], curves)
}

fn query_part(report: &mut Report, all: Outcomes<'_>) {
    report.add(Part::Heading("Nexmark q3 to q8 (Table 1, Fig. 4)".to_owned()));
    report.text(
        "Monolithic: one store with one layout, a hybrid log, and one memory pool for all states. \
         Workload-aware: the layout that fits each state, in the same memory. Speed-up is p99 of \
         monolithic over p99 of workload-aware; equal runs differ by the column before it.",
    );
    let mut table = Table::new([
        ("query", ""),
        ("rate", "/s"),
        ("p99, heap", "ms"),
        ("p99, monolithic", "ms"),
        ("p99, aware", "ms"),
        ("aware again of aware", ""),
        ("speed-up", ""),
        ("published", ""),
    ]);
    let mut plots = Vec::new();
    for Published { query, speed_up, .. } in QUERIES {
        let p99 = |column| all.median(query, column, "latency_ns.p99");
        if all.of(query, MONOLITHIC).next().is_none() {
            continue;
        }
        let ratio = |one: Option<f64>, other: Option<f64>| match (one, other) {
            (Some(one), Some(other)) if other > 0.0 => format!("{:.2}x", one / other),
            _ => String::new(),
        };
        let in_ms = |column| shown(p99(column).map(|ns| ns / 1e6));
        table.row(vec![
            query.to_owned(),
            all.median(query, AWARE, "ops_per_s").map_or(String::new(), short),
            in_ms(HEAP),
            in_ms(MONOLITHIC),
            in_ms(AWARE),
            ratio(p99(AGAIN), p99(AWARE)),
            ratio(p99(MONOLITHIC), p99(AWARE)),
            speed_up.to_owned(),
        ]);
        let curves = [HEAP, MONOLITHIC, AWARE].map(|column| {
            let points = all.of(query, column).next().map(|outcome| outcome.curve("ccdf_ns"));
            Line { name: column, points: points.unwrap_or_default() }
        });
        plots.push(Part::Plot(ccdf(&format!("{query}: latency"), &curves)));
    }
    report.add(Part::Table(table));
    plots.into_iter().for_each(|plot| report.add(plot));
}

fn rate_part(report: &mut Report, all: Outcomes<'_>) {
    report.add(Part::Heading("Rates and workers (Fig. 5)".to_owned()));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let names = ["run", "rate", "median, monolithic", "median, aware", "kept"];
    let units = ["", "/s", "ms", "ms", ""];
    let mut table = Table::new(names.into_iter().zip(units));
    let mut curves: Vec<(String, Vec<(f64, f64)>)> = Vec::new();
    for row in all.rows() {
        let of_workers = row.split_once(" on ").and_then(|(_, rest)| rest.strip_suffix(" workers"));
        let is_rate = row.contains(" at ");
        if !is_rate && of_workers.is_none() {
            continue;
        }
        let rate = |column| all.median(row, column, "ops_per_s");
        let kept = |column| {
            let wanted = all.of(row, column).next().and_then(|o| wanted_rate(&o.command));
            Some(rate(column)? >= wanted? * 0.95)
        };
        let kept = match (kept(MONOLITHIC), kept(AWARE)) {
            (Some(true), Some(true)) => "both",
            (Some(true), _) => "monolithic",
            (_, Some(true)) => "aware",
            _ => "neither",
        };
        let median = |column| ms(all, row, column, "latency_ns.p50");
        let is_more = of_workers.and_then(|n| n.parse::<usize>().ok()).is_some_and(|n| n > cores);
        let name = format!("{row}{}", if is_more { ", more than cores" } else { "" });
        let cells = [rate(AWARE).map_or(String::new(), short), shown(median(MONOLITHIC))];
        let mut cells: Vec<String> = [name].into_iter().chain(cells).collect();
        cells.extend([shown(median(AWARE)), kept.to_owned()]);
        table.row(cells);
        if !is_rate {
            continue;
        }
        for column in [MONOLITHIC, AWARE] {
            let query = row.split(' ').next().unwrap_or(row);
            let name = format!("{query}, {column}");
            let wanted = all.of(row, column).next().and_then(|o| wanted_rate(&o.command));
            let (Some(rate), Some(median)) = (wanted, median(column)) else { continue };
            match curves.iter_mut().find(|(known, _)| *known == name) {
                Some((_, points)) => points.push((rate / 1e3, median)),
                None => curves.push((name, vec![(rate / 1e3, median)])),
            }
        }
    }
    report.add(Part::Table(table));
    let curves = curves.iter().map(|(name, points)| Line { name, points: points.clone() });
    let curves: Vec<_> = curves.collect();
    let axes = [
        alluvium_reports::Axis::Logarithmic("rate, K/s"),
        alluvium_reports::Axis::Logarithmic("median latency, ms"),
    ];
    report.add(Part::Plot(lines("Median latency by rate (Fig. 5a)", axes, &curves)));
}

/// The rate that a command asks for.
fn wanted_rate(command: &str) -> Option<f64> {
    command.split("--rate ").nth(1)?.split(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> Options {
        Options {
            seconds: 0.5,
            slower: 10,
            windows: vec![(30_000, 1_000), (30_000, 30_000)],
            memory: "1GiB".to_owned(),
            rounds: 1,
            rates: vec![0.5, 2.0],
            workers: vec![1, 2],
        }
    }

    fn cells(peers: Option<&Path>) -> Vec<Cell> {
        let (bench, gadget) = (Path::new("/bin/alluvium-bench"), Path::new("/bin/alluvium-gadget"));
        options().cells(&Places { bench, gadget, peers })
    }

    #[test]
    fn every_experiment_has_its_cells_each_with_a_command_of_its_own() {
        let cells = cells(Some(Path::new("/bin/alluvium-peers")));
        let mut names: Vec<_> = cells.iter().map(|cell| (&cell.row, &cell.column)).collect();
        // COUNT on 6 engines and RANK on 7, two windows each; 6 queries in 4 ways; 2 queries at
        // 2 rates and 2 numbers of workers in 2 ways.
        assert_eq!(names.len(), 2 * 13 + 6 * 4 + 2 * 2 * 2 + 2 * 2);
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 62);
        let command = |row: &str, column: &str| {
            let cell = cells.iter().find(|cell| cell.row == row && cell.column == column);
            cell.unwrap().command()
        };
        let count = command("COUNT, 30.0 s every 1.00 s", "faster");
        let expected =
            "hotstorage --question count --engine faster --length 30000 --slide 1000 --rate 1000";
        assert!(count.contains(expected) && count.contains("--seconds 0.5"), "{count}");
        let q7 = command("q7-hotstorage at 200000/s", AWARE);
        let expected = "--layout auto --memory 1GiB --events 100000 --rate 200000 --workers 1";
        assert!(q7.contains(expected) && q7.contains("highest/windows=heap"), "{q7}");
        assert_eq!(wanted_rate(&q7), Some(200_000.0));
    }

    #[test]
    fn stores_that_are_not_built_are_rows_that_say_so() {
        let cells = cells(None);
        let missing: Vec<_> = cells.iter().filter(|cell| cell.program.is_err()).collect();
        assert_eq!(missing.len(), 2 * 2 * 3);
        assert!(missing.iter().all(|cell| cell.column != "ours-native"));
        let outcome = Outcome {
            row: "COUNT, 30.0 s every 1.00 s".to_owned(),
            column: "rocksdb".to_owned(),
            round: 1,
            command: String::new(),
            seconds: 0.0,
            figures: None,
            why: Some(NOT_BUILT.to_owned()),
        };
        assert_eq!(failure(&outcome), None);
        let dead = Outcome { why: Some("signal: 11".to_owned()), ..outcome };
        assert_eq!(failure(&dead).unwrap(), "COUNT, 30.0 s every 1.00 s on rocksdb: signal: 11");
    }
}
