//! `suite hotstorage20`: the experiments of *In support of workload-aware streaming state management*
//! (HotStorage'20).
//!
//! 1. COUNT over sliding and RANK over tumbling windows on each store, in an open loop (Fig. 3), and both
//!    over other windows.
//! 2. Nexmark q3 to q8 in the testbed's form, monolithic against workload-aware (Table 1, Fig. 4), on our
//!    layouts and on the stores of the paper.
//! 3. Median latency at rates up to one that cannot be kept (Fig. 5a), and with 1 to N workers (5b).
//!
//! *Monolithic* is one store for all states of a worker, whose values are bytes: a hybrid log of ours, or a
//! store of the paper.
//!
//! Answers of all runs of an experiment must be equal, but for runs that were cut.

mod report;

use std::path::Path;

use alluvium_reports::digits;

use crate::cell::{Cell, DIRECTORY, Outcome};
use crate::medians::Outcomes;
use crate::programs::{NOT_BUILT, Programs, failure};
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

/// COUNT and RANK: records a second, and milliseconds of a window and between two.
const QUESTIONS: [(&str, u64, (u64, u64)); 2] =
    [("count", 10_000, (30_000, 1_000)), ("rank", 1_000, (30_000, 30_000))];

const MONOLITHIC: &str = "monolithic";
const TYPED: &str = "one log, typed";
/// Our store of bytes for the monolithic runs.
const OUR_BYTES: &str = "ours-hybrid-log";
const AWARE: &str = "workload-aware";
const AGAIN: &str = "workload-aware again";
const HEAP: &str = "heap";
/// The stores of the paper, and the columns of their monolithic and workload-aware runs.
const STORES: [(&str, [&str; 2]); 2] = [
    ("faster", ["faster, monolithic", "faster, workload-aware"]),
    ("rocksdb", ["rocksdb, monolithic", "rocksdb, workload-aware"]),
];
/// Small state with a bounded size that the workload-aware runs keep on the heap, as Table 2 does.
const PLACEMENTS: [(&str, &str); 2] =
    [("q5-hotstorage", "hottest/windows=heap"), ("q7-hotstorage", "highest/windows=heap")];

/// How large a run is.
#[derive(Clone, Debug)]
pub struct Options {
    /// Seconds of each stream of COUNT and RANK.
    pub seconds: f64,
    /// Seconds of each stream of Nexmark.
    pub query_seconds: f64,
    /// Rates are the published ones, divided by this.
    pub slower: u64,
    /// Milliseconds of a window and between two starts, each a row of COUNT and of RANK beside the published
    /// one.
    pub windows: Vec<(u64, u64)>,
    /// Memory of each store.
    pub memory: String,
    /// Rounds.
    pub rounds: usize,
    /// Rates of Fig. 5a for q4 and q7, in shares of the published one, from the lowest on.
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

/// Where a query's states are.
#[derive(Clone, Copy)]
enum Kept<'a> {
    /// In a layout of ours for each.
    Layout(&'a str),
    /// In one store of bytes for all, or in one for each.
    Bytes { engine: &'a str, is_monolithic: bool },
}

/// A run of a query.
#[derive(Clone, Copy)]
struct Run<'a> {
    row: &'a str,
    query: &'a str,
    column: &'a str,
    rate: u64,
    workers: usize,
}

/// What the columns of queries stand for.
fn kept(column: &str) -> Kept<'_> {
    for (engine, [monolithic, aware]) in STORES {
        if column == monolithic || column == aware {
            return Kept::Bytes { engine, is_monolithic: column == monolithic };
        }
    }
    match column {
        MONOLITHIC => Kept::Bytes { engine: OUR_BYTES, is_monolithic: true },
        TYPED => Kept::Layout("hybrid-log"),
        HEAP => Kept::Layout("heap"),
        _ => Kept::Layout("auto"),
    }
}

/// Columns that are swept over rates and workers: all of the paper's comparison.
fn swept() -> impl Iterator<Item = &'static str> {
    [MONOLITHIC, AWARE].into_iter().chain(STORES.into_iter().flat_map(|(_, columns)| columns))
}

impl Options {
    /// COUNT, RANK, and each query at its rate.
    fn cells(&self, places: &Places<'_>) -> Vec<Cell> {
        let mut cells = self.window_cells(places);
        for Published { query, rate, .. } in QUERIES {
            let columns = [MONOLITHIC, AWARE, AGAIN, TYPED, HEAP].into_iter();
            let stores = STORES.into_iter().flat_map(|(_, columns)| columns);
            cells.extend(columns.chain(stores).map(|column| {
                let rate = self.rate(rate, 1.0);
                self.query_cell(places, Run { row: query, query, column, rate, workers: 1 })
            }));
        }
        cells
    }

    /// The queries of Fig. 5a at one of the rates, for columns that have kept the one before.
    fn rate_cells(
        &self,
        places: &Places<'_>,
        share: f64,
        keeps: impl Fn(&str, &str) -> bool,
    ) -> Vec<Cell> {
        let mut cells = Vec::new();
        for Published { query, rate, .. } in QUERIES.iter().filter(|p| is_swept(p.query)) {
            let rate = self.rate(*rate, share);
            let row = &format!("{query} at {rate}/s");
            let columns = swept().filter(|column| keeps(query, column));
            cells.extend(columns.map(|column| {
                self.query_cell(places, Run { row, query, column, rate, workers: 1 })
            }));
        }
        cells
    }

    /// The query of Fig. 5b on each number of workers.
    fn worker_cells(&self, places: &Places<'_>) -> Vec<Cell> {
        let mut cells = Vec::new();
        for Published { query, rate, .. } in QUERIES.iter().filter(|p| p.query == SCALED) {
            let rate = self.rate(*rate, 1.0);
            for workers in &self.workers {
                let row = &format!("{query} on {workers} workers");
                cells.extend(swept().map(|column| {
                    self.query_cell(places, Run { row, query, column, rate, workers: *workers })
                }));
            }
        }
        cells
    }

    fn rate(&self, published: u64, share: f64) -> u64 {
        ((published / self.slower.max(1)) as f64 * share).round().max(1.0) as u64
    }

    fn window_cells(&self, places: &Places<'_>) -> Vec<Cell> {
        let mut cells = Vec::new();
        for (question, rate, published) in QUESTIONS {
            let others = self.windows.iter().filter(|window| **window != published);
            for window in [published].iter().chain(others) {
                let rate = self.rate(rate, 1.0);
                let engines = ENGINES.iter().filter(|(engine, _)| takes(engine, question));
                cells.extend(engines.map(|(engine, _)| {
                    self.window_cell(places, (question, *window), engine, rate)
                }));
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

    fn query_cell(&self, places: &Places<'_>, run: Run<'_>) -> Cell {
        let Run { row, query, column, rate, workers } = run;
        let mut words = vec![("nexmark --query", query.to_owned())];
        let mut program = Ok(places.bench.to_owned());
        match kept(column) {
            Kept::Layout(layout) => words.push(("--layout", layout.to_owned())),
            Kept::Bytes { engine, is_monolithic } => {
                words.push(("--engine", engine.to_owned()));
                words.extend(is_monolithic.then(|| ("--monolithic", String::new())));
                if engine != OUR_BYTES {
                    let peers = places.peers.map(Path::to_owned);
                    program = peers.ok_or_else(|| NOT_BUILT.to_owned());
                }
            }
        }
        let events = (self.query_seconds * rate as f64).ceil() as u64;
        words.extend([
            ("--memory", self.memory.clone()),
            ("--events", events.to_string()),
            ("--rate", rate.to_string()),
            ("--workers", workers.to_string()),
            ("--dir", format!("{DIRECTORY}/state")),
            ("--json", format!("{DIRECTORY}/figures.json")),
        ]);
        if [AWARE, AGAIN].contains(&column) {
            let own = PLACEMENTS.iter().filter(|(of, _)| *of == query);
            words.extend(own.map(|(_, place)| ("--place", (*place).to_owned())));
        }
        if column == AGAIN {
            // The default, so that its command is another one.
            words.push(("--seed", "0".to_owned()));
        }
        Cell {
            row: row.to_owned(),
            column: column.to_owned(),
            program,
            arguments: split(&words),
            beside: Vec::new(),
            figures: Some("figures.json".to_owned()),
        }
    }
}

fn split(words: &[(&str, String)]) -> Vec<String> {
    let words = words.iter().flat_map(|(option, value)| option.split(' ').chain([&value[..]]));
    words.filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

fn window_row(question: &str, length: u64, slide: u64) -> String {
    let seconds = |ms: u64| digits(ms as f64 / 1e3);
    format!("{}, {} s every {} s", question.to_uppercase(), seconds(length), seconds(slide))
}

/// An append log keeps lists only.
fn takes(engine: &str, question: &str) -> bool {
    engine != "ours-append-log" || question == "rank"
}

/// The query of Fig. 5b.
const SCALED: &str = "q7-hotstorage";

fn is_swept(query: &str) -> bool {
    ["q4-hotstorage", SCALED].contains(&query)
}

/// The rate that a command asks for.
fn wanted_rate(command: &str) -> Option<f64> {
    command.split("--rate ").nth(1)?.split(' ').next()?.parse().ok()
}

/// A rate that so large a share is reached of is kept.
const KEPT_SHARE: f64 = 0.95;

/// Whether a cell's rate was kept; `None` without figures.
fn is_kept(all: Outcomes<'_>, row: &str, column: &str) -> Option<bool> {
    let wanted = all.of(row, column).next().and_then(|o| wanted_rate(&o.command))?;
    Some(all.median(row, column, "ops_per_s")? >= wanted * KEPT_SHARE)
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
    let mut outcomes: Vec<Outcome> = Vec::new();
    let mut more = |cells: Vec<Cell>, outcomes: &mut Vec<Outcome>| -> Result<()> {
        let before = outcomes.clone();
        outcomes.extend(runner.run(&cells, options.rounds, &mut |done| {
            report::report(options, &[&before, done].concat()).write(out, &machine)
        })?);
        Ok(())
    };
    more(options.cells(&places), &mut outcomes)?;
    let mut shares = options.rates.clone();
    shares.sort_by(f64::total_cmp);
    let mut lower: Option<f64> = None;
    for share in shares {
        let all = Outcomes(&outcomes);
        // A rate that was not kept is the last one.
        let keeps = |query: &str, column: &str| {
            let Some(lower) = lower else { return true };
            let published = QUERIES.iter().find(|p| p.query == query).map_or(0, |p| p.rate);
            let row = format!("{query} at {}/s", options.rate(published, lower));
            is_kept(all, &row, column) == Some(true)
        };
        let cells = options.rate_cells(&places, share, keeps);
        more(cells, &mut outcomes)?;
        lower = Some(share);
    }
    more(options.worker_cells(&places), &mut outcomes)?;
    let mut wrong = Outcomes(&outcomes).differences("checksum");
    wrong.extend(outcomes.iter().filter_map(failure));
    match wrong.is_empty() {
        true => Ok(()),
        false => Err(Error::Wrong(wrong.join("\n"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn options() -> Options {
        Options {
            seconds: 0.5,
            query_seconds: 0.5,
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
        let (options, places) = (options(), Places { bench, gadget, peers });
        let mut cells = options.cells(&places);
        for share in &options.rates {
            cells.extend(options.rate_cells(&places, *share, |_, _| true));
        }
        cells.extend(options.worker_cells(&places));
        cells
    }

    #[test]
    fn every_experiment_has_its_cells_each_with_a_command_of_its_own() {
        let cells = cells(Some(Path::new("/bin/alluvium-peers")));
        let mut names: Vec<_> = cells.iter().map(|cell| (&cell.row, &cell.column)).collect();
        // COUNT on 6 engines and RANK on 7, two windows each; 6 queries in 5 ways of ours and 4 of
        // others; 2 queries at 2 rates, and one on 2 numbers of workers, in 6 ways.
        let expected = 2 * 13 + 6 * 9 + (2 * 2 + 2) * 6;
        assert_eq!(names.len(), expected);
        names.sort();
        names.dedup();
        assert_eq!(names.len(), expected);
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
        let q4 = command("q4-hotstorage", "faster, monolithic");
        let expected =
            "--query q4-hotstorage --engine faster --monolithic --memory 1GiB --events 500";
        assert!(q4.starts_with("alluvium-peers nexmark") && q4.contains(expected), "{q4}");
        let ours = command("q5-hotstorage", MONOLITHIC);
        let expected =
            "alluvium-bench nexmark --query q5-hotstorage --engine ours-hybrid-log --monolithic";
        assert!(ours.starts_with(expected) && !ours.contains("--place"), "{ours}");
    }

    #[test]
    fn count_slides_and_rank_tumbles_unless_more_is_asked_for() {
        let (bench, gadget) = (Path::new("/bin/alluvium-bench"), Path::new("/bin/alluvium-gadget"));
        let published = Options { windows: Vec::new(), ..options() };
        let cells = published.window_cells(&Places { bench, gadget, peers: None });
        let mut rows: Vec<_> = cells.iter().map(|cell| &cell.row[..]).collect();
        rows.dedup();
        assert_eq!(rows, ["COUNT, 30.0 s every 1.00 s", "RANK, 30.0 s every 30.0 s"]);
    }

    #[test]
    fn stores_that_are_not_built_are_rows_that_say_so() {
        let cells = cells(None);
        let missing: Vec<_> = cells.iter().filter(|cell| cell.program.is_err()).collect();
        assert_eq!(missing.len(), 2 * 2 * 3 + 6 * 4 + (2 * 2 + 2) * 4);
        assert!(missing.iter().all(|cell| cell.column != "ours-native"));
    }

    #[test]
    fn a_rate_is_kept_if_nearly_all_of_it_is_reached() {
        assert_eq!(wanted_rate("alluvium-bench nexmark --rate 200 --dir x"), Some(200.0));
        assert_eq!(wanted_rate("alluvium-bench nexmark --rate 7"), Some(7.0));
        assert_eq!(wanted_rate("alluvium-bench nexmark"), None);
        let outcome = |figures| Outcome {
            row: "q7".to_owned(),
            column: AWARE.to_owned(),
            round: 1,
            command: "alluvium-bench nexmark --rate 200".to_owned(),
            seconds: 1.0,
            figures,
            why: None,
        };
        let kept = |figures| is_kept(Outcomes(&[outcome(figures)]), "q7", AWARE);
        assert_eq!(kept(Some(json!({"ops_per_s": 191.0}))), Some(true));
        assert_eq!(kept(Some(json!({"ops_per_s": 189.0}))), Some(false));
        assert_eq!(kept(None), None);
    }
}
