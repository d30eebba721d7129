//! `replay`: the history of a git repository put into state, the files of its last commit read
//! back.
//!
//! Key is the path, value the blob's id, both strings; a batch is a commit. Puts and deletes are
//! blind: nothing is read before it is written. What must be left is known from git, not from the
//! replay: with `--git` it is compared here, with `--input` the dump is there to be compared.

use alluvium::Map;
use alluvium::types::{combine, hash_bytes};
use quanta::Clock;

use super::state::State;
use crate::args::ReplayArgs;
use crate::report::{Latencies, Progress, Report};
use crate::workload::git::{Batch, Change, CsvHistory, Repository, Snapshot};
use crate::{Error, Result};

/// Replays the history and, for a local repository, compares what is left with `git ls-tree`.
///
/// Rate and latencies are of the puts and deletes alone; reading the history and the final state
/// is outside. The checksum is the wrapping sum of the digests of all paths and values left.
///
/// # Errors
/// Also if what is left is not what git says; the message names the first path that differs.
pub fn replay(args: &ReplayArgs) -> Result<Report> {
    let state = State::open(&args.state)?;
    let mut files = state.store.map::<String, String>("files").open()?;
    let mut run = Run::default();
    let expected = match (&args.input, &args.git) {
        (_, Some(dir)) => {
            let repository = Repository::open(dir)?;
            run.feed(repository.history()?, &mut files, None)?;
            Some(repository.snapshot()?)
        }
        (Some(path), None) => {
            run.feed(CsvHistory::open(path, args.upto)?, &mut files, args.upto)?;
            None
        }
        (None, None) => return Err(Error::Usage("replay needs --input or --git".to_owned())),
    };
    let mut report = Report::new("replay", &args.state.layout.name);
    report.set_rate(run.changes, run.seconds);
    report.latency_ns = Some(run.latencies.percentiles());
    state.describe(&mut report)?;
    let left = read_back(&mut files)?;
    report.set_checksum(checksum(&left));
    if let Some(path) = &args.dump {
        left.write_tsv(path)?;
    }
    match expected.and_then(|expected| left.difference(&expected)) {
        Some(words) => Err(Error::Wrong(format!("the replay does not end as git says: {words}"))),
        None => Ok(report),
    }
}

/// What was done so far.
#[derive(Default)]
struct Run {
    changes: u64,
    seconds: f64,
    latencies: Latencies,
}

impl Run {
    fn feed(
        &mut self,
        history: impl Iterator<Item = Result<Batch>>,
        files: &mut Map<String, String>,
        total: Option<u64>,
    ) -> Result<()> {
        let clock = Clock::new();
        let progress = Progress::new("replay", total.unwrap_or(0));
        for batch in history {
            let begin = clock.raw();
            let mut before = begin;
            for change in batch?.changes {
                self.changes += 1;
                apply(files, change)?;
                let now = clock.raw();
                self.latencies.record(clock.delta_as_nanos(before, now));
                before = now;
            }
            self.seconds += clock.delta(begin, before).as_secs_f64();
            progress.set(self.changes);
        }
        Ok(())
    }
}

fn apply(files: &mut Map<String, String>, change: Change) -> Result<()> {
    match change {
        Change::Put { path, value } => {
            files.put(path, value).map_err(|rejected| Error::Store(rejected.error))?;
        }
        Change::Delete { path } => {
            files.remove(path.as_str())?;
        }
    }
    Ok(())
}

fn read_back(files: &mut Map<String, String>) -> Result<Snapshot> {
    let mut left = Snapshot::default();
    let mut visited = 0;
    files.for_each(|path, value| {
        visited += 1;
        left.0.insert(path.clone(), value.clone());
        Ok(())
    })?;
    let (said, distinct) = (files.len()?, left.0.len() as u64);
    if (said, visited) != (distinct, distinct) {
        return Err(Error::Wrong(format!(
            "the state says it has {said} keys, a scan visited {visited}, {distinct} of them differ"
        )));
    }
    Ok(left)
}

fn checksum(left: &Snapshot) -> u64 {
    let digests = left
        .0
        .iter()
        .map(|(path, value)| combine(hash_bytes(path.as_bytes()), hash_bytes(value.as_bytes())));
    digests.fold(0, u64::wrapping_add)
}
