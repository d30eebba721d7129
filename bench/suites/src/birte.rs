//! `suite birte19`: the experiments of *FASTER state management for Timely Dataflow* (BIRTE'19).
//!
//! 1. q3 with managed state, ours and in FASTER, against plain maps in memory: latency by percentile
//!    (Fig. 2a).
//! 2. The demo's other queries in both forms.
//! 3. q3 with state larger than memory on one worker, against several workers with all state in memory, as
//!    threads and as processes that talk over the loopback (Fig. 2b). Its memory is a share of the state
//!    that the first experiment had.
//!
//! Answers of all runs of a query must be equal.

mod report;

use std::path::Path;

use crate::cell::{Cell, DIRECTORY, HOSTS, Outcome};
use crate::medians::Outcomes;
use crate::programs::{NOT_BUILT, Programs, failure};
use crate::runner::Runner;
use crate::{Error, Result};

const PLAIN: &str = "plain maps";
const PLAIN_AGAIN: &str = "plain maps again";
const HEAP: &str = "managed, heap";
const LOG: &str = "managed, log";
const FASTER: &str = "managed, FASTER";
const SMALL: &str = "1 worker, little memory";

/// The query of the figures, and the row of its first experiment.
const Q3: &str = "q3";
const LARGE: &str = "large state";

/// The demo's other queries, each with what its rate is divided by: those whose windows or auctions cost more
/// a record.
const OTHERS: [(&str, u64); 5] = [
    ("q4-hotstorage", 40),
    ("q5-hotstorage", 40),
    ("q6-hotstorage", 40),
    ("q7-hotstorage", 1),
    ("q8-hotstorage", 1),
];

/// The state on the heap is so many times the memory of the run whose state is larger: encoded in a log it is
/// a third to a quarter of that.
const LARGER: u64 = 8;
/// What two hybrid logs need at least.
const LEAST_BYTES: u64 = 1 << 20;
/// Bytes of q3's state an event, where the run that tells has failed.
const BYTES_AN_EVENT: u64 = 6;

/// How large a run is.
#[derive(Clone, Debug)]
pub struct Options {
    /// Seconds of each stream.
    pub seconds: f64,
    /// Events a second.
    pub rate: u64,
    /// Memory that has room for all state.
    pub memory: String,
    /// Memory of the run whose state is larger; a share of the state unless given.
    pub small: Option<String>,
    /// Numbers of workers of the runs in memory.
    pub workers: Vec<usize>,
    /// Rounds.
    pub rounds: usize,
}

/// What a run is of.
#[derive(Clone, Copy)]
struct Run<'a> {
    query: &'a str,
    layout: &'a str,
    memory: &'a str,
    rate: u64,
    workers: usize,
}

impl Options {
    /// Every query in both forms.
    fn forms(&self, bench: &Path, peers: Option<&Path>) -> Vec<Cell> {
        let mut cells = self.query(bench, Q3, self.rate);
        cells.push(self.faster(peers));
        for (query, slower) in OTHERS {
            cells.extend(self.query(bench, query, (self.rate / slower).max(1)));
        }
        cells
    }

    /// A query on plain maps and with managed state.
    fn query(&self, bench: &Path, query: &str, rate: u64) -> Vec<Cell> {
        let plain = format!("{query}-plain");
        let forms = [
            (PLAIN, &plain[..], "heap"),
            (HEAP, query, "heap"),
            (LOG, query, "hybrid-log"),
            (PLAIN_AGAIN, &plain[..], "heap"),
        ];
        let cells = forms.into_iter().map(|(column, form, layout)| {
            let run = Run { query: form, layout, memory: &self.memory, rate, workers: 1 };
            let mut words = self.words(run);
            if column == PLAIN_AGAIN {
                // The default, so that its command is another one.
                words.extend(["--seed".to_owned(), "0".to_owned()]);
            }
            cell(bench, (query, column), words)
        });
        cells.collect()
    }

    /// q3 with its state in FASTER.
    fn faster(&self, peers: Option<&Path>) -> Cell {
        let run = Run { query: Q3, layout: "", memory: &self.memory, rate: self.rate, workers: 1 };
        let mut words = self.words(run);
        let place = words.iter().position(|word| word == "--layout").unwrap_or(0);
        words.splice(place..place + 2, ["--engine".to_owned(), "faster".to_owned()]);
        let program = peers.map(Path::to_owned).ok_or_else(|| NOT_BUILT.to_owned());
        Cell { program, ..cell(Path::new(""), (Q3, FASTER), words) }
    }

    /// Memory that q3's state, whose size the runs in memory tell, does not fit into.
    fn small(&self, forms: Outcomes<'_>) -> String {
        if let Some(small) = &self.small {
            return small.clone();
        }
        let live = forms.median(Q3, HEAP, "memory.live_bytes").map(|bytes| bytes as u64);
        let state = live.unwrap_or(self.events(self.rate) * BYTES_AN_EVENT);
        let kib = (state / LARGER).max(LEAST_BYTES).next_multiple_of(64 << 10) >> 10;
        format!("{kib}KiB")
    }

    /// q3 in little memory, and in memory on more workers.
    fn large(&self, bench: &Path, small: &str) -> Vec<Cell> {
        let run = |layout, memory, workers| {
            self.words(Run { query: Q3, layout, memory, rate: self.rate, workers })
        };
        let mut cells = vec![cell(bench, (LARGE, SMALL), run("hybrid-log", small, 1))];
        for workers in &self.workers {
            let words = run("heap", &self.memory, *workers);
            cells.push(cell(bench, (LARGE, &format!("{workers} workers in memory")), words));
            cells.push(self.processes(bench, *workers));
        }
        cells
    }

    /// As many processes of a worker each.
    fn processes(&self, bench: &Path, count: usize) -> Cell {
        let of = |number: usize| {
            let (rate, memory) = (self.rate, &self.memory[..]);
            let run = Run { query: Q3, layout: "heap", memory, rate, workers: 1 };
            let mut words = self.words(run);
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

    fn events(&self, rate: u64) -> u64 {
        (self.seconds * rate as f64).ceil() as u64
    }

    fn words(&self, Run { query, layout, memory, rate, workers }: Run<'_>) -> Vec<String> {
        let (events, rate, workers) =
            (self.events(rate).to_string(), rate.to_string(), workers.to_string());
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
    let write = |small: Option<&str>, outcomes: &[Outcome]| {
        report::report(options, small, outcomes).write(out, &machine)
    };
    let forms = options.forms(bench, programs.peers.as_deref());
    let mut outcomes = runner.run(&forms, options.rounds, &mut |done| write(None, done))?;
    let small = options.small(Outcomes(&outcomes));
    let large = options.large(bench, &small);
    let before = outcomes.clone();
    outcomes.extend(
        runner.run(&large, options.rounds, &mut |done| {
            write(Some(&small), &[&before, done].concat())
        })?,
    );
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
            seconds: 2.0,
            rate: 1_000,
            memory: "64MiB".to_owned(),
            small: None,
            workers: vec![2],
            rounds: 1,
        }
    }

    #[test]
    fn processes_have_numbers_directories_and_one_list_of_addresses() {
        let cells = options().large(Path::new("/bin/alluvium-bench"), "1MiB");
        assert_eq!(cells.len(), 1 + 2);
        let processes = &cells[2];
        assert_eq!(processes.column, "2 processes in memory");
        let first = processes.command();
        assert!(first.contains("--processes 2 --process 0 --hostfile {dir}/hosts"), "{first}");
        assert!(first.contains("{dir}/state-0 --json {dir}/figures.json"), "{first}");
        let second = processes.beside[0].join(" ");
        assert!(second.contains("{dir}/state-1 --json {dir}/figures-1.json"), "{second}");
        assert!(second.contains("--events 2000 --rate 1000"), "{second}");
    }

    #[test]
    fn every_query_has_both_forms_and_commands_of_its_own() {
        let cells = options()
            .forms(Path::new("/bin/alluvium-bench"), Some(Path::new("/bin/alluvium-peers")));
        assert_eq!(cells.len(), 6 * 4 + 1);
        let mut commands: Vec<_> = cells.iter().map(Cell::command).collect();
        let q5 = "--query q5-hotstorage-plain --layout heap --memory 64MiB --events 50 --rate 25";
        assert!(commands.iter().any(|command| command.contains(q5)), "{commands:?}");
        commands.sort();
        commands.dedup();
        assert_eq!(commands.len(), 6 * 4 + 1);
        let faster =
            "alluvium-peers nexmark --query q3 --engine faster --memory 64MiB --events 2000";
        assert!(commands.iter().any(|command| command.starts_with(faster)), "{commands:?}");
    }

    #[test]
    fn memory_is_a_share_of_the_state_that_was_measured() {
        let outcome = |live_bytes: u64| Outcome {
            row: Q3.to_owned(),
            column: HEAP.to_owned(),
            round: 1,
            command: String::new(),
            seconds: 1.0,
            figures: Some(json!({"memory": {"live_bytes": live_bytes}})),
            why: None,
        };
        let small = |outcomes: &[Outcome]| options().small(Outcomes(outcomes));
        assert_eq!(small(&[outcome(80 << 20)]), "10240KiB");
        assert_eq!(small(&[outcome((80 << 20) + 16)]), "10304KiB");
        assert_eq!(small(&[outcome(5_000)]), "1024KiB");
        assert_eq!(small(&[]), "1024KiB");
        let given = Options { small: Some("3MiB".to_owned()), ..options() };
        assert_eq!(given.small(Outcomes(&[outcome(80 << 20)])), "3MiB");
        let unknown = Options { rate: 10_000_000, ..options() };
        assert_eq!(unknown.small(Outcomes(&[])), "14656KiB");
    }
}
