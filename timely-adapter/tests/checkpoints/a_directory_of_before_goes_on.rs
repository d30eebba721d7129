//! The directory of a job that a build of format version 2 has left is read: with as many workers and with more. A
//! record that is damaged is refused in words that say what can be restored without it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use alluvium::{ErrorKind, KIB};

use crate::files::{pack, read_directory, unpack};
use crate::job::{Accident, Job, expected, run_in, run_unchecked_in, together};

/// What the job of the fixture had sent when it ended.
const BEFORE: Job = Job { numbers: 400, every: 50, batch: 1, ties: 1 };
const WORKERS: usize = 2;

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../store/tests/golden/format-2/job.files")
}

/// The files below a directory, by their ways.
fn all_files(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut all = BTreeMap::new();
    for worker in (0..WORKERS).map(|worker| format!("worker-{worker}")) {
        let files = read_directory(&directory.join(&worker)).into_iter();
        all.extend(files.map(|(name, bytes)| (format!("{worker}/{name}"), bytes)));
    }
    let record = std::fs::read(directory.join("COMMITTED")).unwrap();
    all.insert("COMMITTED".into(), record);
    all
}

fn place(directory: &Path) {
    for (name, bytes) in unpack(&std::fs::read(fixture()).unwrap()) {
        let path = directory.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }
}

/// Writes the fixture, which is never made again: see `docs/design/testing.md`.
#[test]
#[ignore = "writes the fixture of a format"]
fn makes_the_fixture_of_a_job() {
    assert!(!fixture().exists(), "it is there already");
    let directory = tempfile::tempdir().unwrap();
    run_in(directory.path(), WORKERS, BEFORE, Accident::default()).unwrap();
    let packed = pack(&all_files(directory.path()));
    assert!(packed.len() < 600 * KIB as usize, "{} bytes", packed.len());
    std::fs::write(fixture(), packed).unwrap();
}

#[test]
fn a_directory_of_a_job_of_before_goes_on() {
    for workers in [WORKERS, WORKERS + 1] {
        let directory = tempfile::tempdir().unwrap();
        place(directory.path());
        let job = Job { numbers: 600, ..BEFORE };
        let ends = run_in(directory.path(), workers, job, Accident::default()).unwrap();
        assert_eq!(together(&ends), expected(job), "{workers} workers");
        assert!(ends.iter().all(|end| end.restored > 0), "{workers} workers began anew");
    }
}

#[test]
fn a_record_that_is_damaged_is_refused_with_what_can_be_restored() {
    let directory = tempfile::tempdir().unwrap();
    place(directory.path());
    let record = directory.path().join("COMMITTED");
    let sound = std::fs::read(&record).unwrap();
    let before = all_files(directory.path());
    let run = || run_unchecked_in(directory.path(), WORKERS, BEFORE, Accident::default());
    let mut cut = sound.clone();
    cut.truncate(20);
    let mut flipped = sound.clone();
    flipped[40] ^= 4;
    for damaged in [flipped, cut, vec![0; sound.len()]] {
        std::fs::write(&record, &damaged).unwrap();
        let error = run().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error:?}");
        let words = error.to_string();
        for part in ["COMMITTED", "worker-0 has ", "; worker-1 has ", "StoreBuilder::restore"] {
            assert!(words.contains(part), "{part}: {words}");
        }
        std::fs::write(&record, &sound).unwrap();
        assert!(all_files(directory.path()) == before, "something was changed");
    }
    // Each store that it names can be opened at the number that it tells.
    std::fs::write(&record, [1; 64]).unwrap();
    let words = run().unwrap_err().to_string();
    let told = words.split("worker-1 has ").nth(1).unwrap();
    let numbers = told.split(|c: char| !c.is_ascii_digit() && c != ',' && c != ' ').next().unwrap();
    let numbers: Vec<u64> = numbers.split(", ").map(|n| n.trim().parse().unwrap()).collect();
    assert!(!numbers.is_empty());
    for number in numbers {
        let copy = tempfile::tempdir().unwrap();
        for (name, bytes) in read_directory(&directory.path().join("worker-1")) {
            std::fs::write(copy.path().join(name), bytes).unwrap();
        }
        // Of the groups that it had, in the order of workers.
        let store = alluvium::Store::builder(copy.path()).restore(number);
        let store = store.owned_groups(128..256).open().unwrap();
        assert!(store.restored_position().is_some());
    }
    std::fs::write(&record, &sound).unwrap();
    run().unwrap();
}
