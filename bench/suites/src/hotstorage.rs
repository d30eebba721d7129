//! `suite hotstorage20`: the experiments of *In support of workload-aware streaming state management*
//! (HotStorage'20).
//!
//! 1. COUNT and RANK over sliding and tumbling windows on each store, in an open loop (Fig. 3).
//! 2. Nexmark q3 to q8 in the testbed's form, monolithic against workload-aware (Table 1, Fig. 4).
//! 3. Median latency at rates up to one that cannot be kept (Fig. 5a), and with 1 to N workers (5b).
//!
//! Answers of all runs of an experiment must be equal, but for runs that were cut.

mod report;

use std::path::Path;

use alluvium_reports::digits;

use crate::cell::{Cell, DIRECTORY, Outcome};
use crate::medians::Outcomes;
use crate::programs::Programs;
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
        report::report(options, outcomes, total).write(out, &machine)
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
