//! Restores what the record of a job names: whatever the job was doing when its run ended, each checkpoint
//! that was committed can be gone on from, with as many workers, with one and with one more.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use alluvium::checkpoints::{FORMAT_VERSION, Framed};
use alluvium::io::{DirectIo, ThreadPool, ThreadPoolOptions};
use alluvium_timely::JobCheckpoint;
use serde::{Deserialize, Serialize};

use crate::job::{Accident, Job, WINDOW, expected, run_unchecked_in, together};

const RECORD: Framed =
    Framed { magic: b"ALVJOBC\0", what: "the job's record", newest: FORMAT_VERSION };

#[derive(Serialize, Deserialize)]
struct Record {
    checkpoints: Vec<JobCheckpoint>,
}

fn device(directory: &Path) -> ThreadPool {
    let options = ThreadPoolOptions { threads: 1, direct: DirectIo::Off };
    ThreadPool::new(directory, options).unwrap()
}

/// What the record in a process's directory names, the oldest first.
pub fn committed(process: &Path) -> Vec<JobCheckpoint> {
    if !process.join("COMMITTED").exists() {
        return Vec::new();
    }
    let record: Record = RECORD.load(&device(process), "COMMITTED").unwrap().unwrap();
    record.checkpoints
}

/// Makes a record that names one checkpoint only.
pub fn commit_only(process: &Path, checkpoint: &JobCheckpoint) {
    let record = Record { checkpoints: vec![checkpoint.clone()] };
    RECORD.replace(&device(process), "COMMITTED", "COMMITTED.new", &record).unwrap();
}

/// Copies a directory with all that is in it.
pub fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &to),
            false => drop(fs::copy(entry.path(), to).unwrap()),
        }
    }
}

/// Goes on from each checkpoint that the record of the process `first` names, in a copy of all that is in
/// `root`, until every count has been said once more. By default with one of the numbers of workers, by
/// turns; with `ALLUVIUM_LONG` with each.
pub fn check_committed(root: &Path, first: &str) {
    static TURN: AtomicUsize = AtomicUsize::new(0);
    for checkpoint in committed(&root.join(first)) {
        let before = checkpoint.workers.len();
        let turn = TURN.fetch_add(1, Ordering::Relaxed);
        for (nth, workers) in [before, 1, before + 1].into_iter().enumerate() {
            if std::env::var_os("ALLUVIUM_LONG").is_none() && nth != turn % 3 {
                continue;
            }
            let place = tempfile::tempdir().unwrap();
            copy(root, place.path());
            let process = place.path().join(first);
            commit_only(&process, &checkpoint);
            let numbers = checkpoint.until.0 + 2 * WINDOW;
            let job = Job { numbers, every: i64::MAX, batch: 3, ties: 1 };
            let when = format!("{workers} workers go on from {checkpoint:?}");
            let ends = run_unchecked_in(&process, workers, job, Accident::default());
            let ends = ends.unwrap_or_else(|error| panic!("{when}: {error:?}"));
            assert!(ends.iter().all(|end| end.restored == checkpoint.number), "{when}");
            assert_eq!(together(&ends), expected(job), "{when}");
        }
    }
}
