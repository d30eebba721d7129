//! A run with another number of workers or processes goes on from what the one before has committed:
//! the sums at the end are those of a run that nothing happened to. Until it has committed a
//! checkpoint of its own, the directories of the run before it are as they were.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use alluvium::io::lock_directory;
use alluvium::{ErrorKind, Result};

use crate::job::{Accident, End, Job, WINDOW, dice, expected, run_cluster, run_in, together};

/// The directories of stores in a process's, with their files and these files' lengths.
fn stores(process: &Path) -> BTreeMap<String, BTreeMap<String, u64>> {
    let names = |path: &Path| {
        let entries = fs::read_dir(path).expect("a directory").map(|entry| entry.unwrap());
        entries.map(|entry| entry.file_name().into_string().unwrap()).collect::<Vec<_>>()
    };
    let workers = names(process).into_iter().filter(|name| name.starts_with("worker-"));
    let files = |worker: &str| {
        let place = process.join(worker);
        let names = names(&place).into_iter().filter(|name| name != "LOCK");
        names.map(|name| (name.clone(), fs::metadata(place.join(name)).unwrap().len())).collect()
    };
    workers.map(|worker| (worker.clone(), files(&worker))).collect()
}

fn names(process: &Path) -> Vec<String> {
    stores(process).into_keys().collect()
}

fn sent(ends: &[End]) -> i64 {
    ends.iter().map(|end| end.sent).sum()
}

#[test]
fn one_worker_becomes_three_becomes_two_becomes_one() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let mut job = Job { numbers: 0, every: 60, batch: 2, ties: 1 };
    let (mut before, mut division, mut workers_before) = (0, 0, 1);
    for (stage, workers) in [1usize, 3, 2, 1, 1, 5, 2].into_iter().enumerate() {
        division += u64::from(workers != workers_before);
        workers_before = workers;
        job.numbers += 600;
        let ends = run_in(place, workers, job, Accident::default()).unwrap();
        assert_eq!(together(&ends), expected(job), "stage {stage}, {workers} workers");
        // What was in the last checkpoint was not sent again, nor was much that came after it.
        let (committed, sent) = (ends[0].committed, sent(&ends));
        assert!(committed > before && (600..1200).contains(&sent), "{committed}, {sent} sent");
        before = committed;
        let expected: Vec<_> = (0..workers)
            .map(|n| {
                if division == 0 { format!("worker-{n}") } else { format!("worker-{n}.{division}") }
            })
            .collect();
        assert_eq!(names(place), expected, "stage {stage}: the directories before are gone");
    }
}

#[test]
fn runs_that_end_anywhere_add_up_to_one_whatever_their_numbers_of_workers() {
    let rounds = if std::env::var_os("ALLUVIUM_LONG").is_some() { 200 } else { 3 };
    let (mut accidents, mut divided, mut from_a_checkpoint) = (0, 0, 0);
    for seed in 1..=rounds {
        let mut dice = dice(seed);
        let directory = tempfile::tempdir().unwrap();
        let mut job =
            Job { numbers: 600, every: 60 + dice(60) as i64, batch: 1 + dice(3) as i64, ties: 1 };
        let mut history = Vec::new();
        for run in 0.. {
            let workers = 1 + dice(4) as usize;
            let accident = match run < 6 {
                true => Accident::after(dice(500) as i64),
                false => Accident::default(),
            };
            // The last one has some numbers more, so that it says every count.
            job.numbers += if run == 6 { 2 * WINDOW } else { 0 };
            let outcome = run_in(directory.path(), workers, job, accident);
            history.push((workers, outcome.is_ok()));
            match outcome {
                Ok(ends) if run == 6 => {
                    let found = together(&ends);
                    assert_eq!(found, expected(job), "seed {seed}, {history:?}");
                    from_a_checkpoint += u64::from(sent(&ends) < job.numbers);
                    break;
                }
                // The next one is to have something to do.
                Ok(_) => job.numbers += 200,
                Err(error) => {
                    assert!(error.to_string().contains("an accident"), "seed {seed}: {error}");
                    accidents += 1;
                }
            }
        }
        divided += u64::from(names(directory.path()).iter().any(|name| name.contains('.')));
    }
    println!(
        "{accidents} accidents, {from_a_checkpoint} of {rounds} from a checkpoint, {divided} divided"
    );
    assert!(accidents >= rounds && from_a_checkpoint > 0 && divided > 0, "it has lost its point");
}

#[test]
fn what_was_committed_is_untouched_until_the_new_number_of_workers_commits() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let job = Job { numbers: 600, every: 60, batch: 1, ties: 1 };
    run_in(place, 2, job, Accident::default()).unwrap();
    let before = stores(place);
    let record = fs::read(place.join("COMMITTED")).unwrap();
    assert_eq!(before.keys().collect::<Vec<_>>(), ["worker-0", "worker-1"]);
    // The first worker ends when stores begin the first checkpoint of three, of four, of three.
    let job = Job { numbers: 1_200, ..job };
    for (workers, worker) in [(3usize, 0), (4, 0), (3, 0)] {
        let accident = Accident::after_seal_of(worker);
        let error = run_in(place, workers, job, accident).unwrap_err();
        assert!(error.to_string().contains("after sealing"), "{error}");
        assert_eq!(fs::read(place.join("COMMITTED")).unwrap(), record);
        let now = stores(place);
        for (name, files) in &before {
            assert_eq!(&now[name], files, "{name} was changed by {workers} workers");
        }
        // What the run before has left is gone, what this one has is there.
        let new: Vec<_> = now.keys().filter(|name| !before.contains_key(*name)).cloned().collect();
        let expected: Vec<_> = (0..workers).map(|n| format!("worker-{n}.1")).collect();
        assert_eq!(new, expected);
    }
    // As many as before go on where they were, and what the others have left is gone.
    let ends = run_in(place, 2, job, Accident::after(40)).unwrap_err();
    assert!(ends.to_string().contains("an accident"), "{ends}");
    assert_eq!(names(place), ["worker-0", "worker-1"]);
    let ends = run_in(place, 3, job, Accident::default()).unwrap();
    assert_eq!(together(&ends), expected(job));
    assert_eq!(names(place), ["worker-0.1", "worker-1.1", "worker-2.1"]);
}

/// A store that was closed while storage did nothing leaves what it had to do to its helper, in the same
/// process, which holds the directory's lock until it is done. Here the lock is all that there is of it.
#[test]
fn a_directory_in_which_a_run_before_still_works_is_not_made_anew() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let job = Job { numbers: 600, every: 60, batch: 1, ties: 1 };
    run_in(place, 2, job, Accident::default()).unwrap();
    let job = Job { numbers: 1_200, ..job };
    // The one that a new store is to be made in, one that is left over, one that is gone on in.
    for (name, workers) in [
        ("worker-0.1", 3),
        ("worker-0.1", 2),
        ("worker-1.1", 1),
        ("worker-2.1", 2),
        ("worker-1", 2),
    ] {
        run_in(place, 3, job, Accident::after_seal_of(0)).unwrap_err();
        let (before, lock) = (stores(place), lock_directory(&place.join(name)).unwrap());
        let error = run_in(place, workers, job, Accident::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Locked, "{name}, {workers} workers: {error}");
        assert!(error.to_string().contains(name), "{error}");
        assert_eq!(stores(place)[name], before[name], "{name}");
        drop(lock);
    }
    let ends = run_in(place, 3, job, Accident::default()).unwrap();
    assert_eq!(together(&ends), expected(job));
}

fn texts(outcomes: Vec<Result<Vec<End>>>) -> Vec<String> {
    outcomes.into_iter().map(|outcome| outcome.unwrap_err().to_string()).collect()
}

fn ends(outcomes: Vec<Result<Vec<End>>>) -> Vec<End> {
    outcomes.into_iter().flat_map(Result::unwrap).collect()
}

#[test]
fn processes_find_each_others_directories_or_say_which_they_miss() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().join("job");
    let mut job = Job { numbers: 600, every: 60, batch: 2, ties: 1 };
    let run = |processes, threads, job| run_cluster(&place, processes, threads, job, None);
    assert_eq!(together(&ends(run(2, 2, job))), expected(job));
    // One process of three workers, of two with two: those of the second are found beside it.
    job.numbers += 600;
    let all = ends(run(1, 3, job));
    assert_eq!(together(&all), expected(job));
    assert!(sent(&all) < 1_200, "it went on");
    assert_eq!(names(&place.join("0")), ["worker-0.1", "worker-1.1", "worker-2.1"]);
    assert!(names(&place.join("1")).is_empty(), "what a process had that is no more");
    // Three processes of one, of the one of three; and then two of one.
    for (processes, division) in [(3, 2), (2, 3)] {
        job.numbers += 600;
        let all = ends(run(processes, 1, job));
        assert_eq!(together(&all), expected(job));
        assert!(sent(&all) < 1_200, "it went on");
        for process in 0..3 {
            let expected = (process < processes).then(|| format!("worker-{process}.{division}"));
            let found = names(&place.join(process.to_string()));
            assert_eq!(found, Vec::from_iter(expected), "of process {process}");
        }
    }
    // Everything is moved as a whole: it is found again.
    let moved = directory.path().join("moved");
    fs::rename(&place, &moved).unwrap();
    job.numbers += 600;
    let all = ends(run_cluster(&moved, 1, 1, job, None));
    assert_eq!(together(&all), expected(job));
    assert!(sent(&all) < 1_200, "it went on");
    job.numbers += 600;
    assert_eq!(together(&ends(run_cluster(&moved, 2, 1, job, None))), expected(job));
    // One of them is missing: all say which, and nothing is changed.
    let (there, away) = (moved.join("1"), directory.path().join("away"));
    fs::rename(&there, &away).unwrap();
    let before = stores(&moved.join("0"));
    for (processes, threads) in [(1, 3), (3, 1), (1, 2), (2, 1)] {
        let texts = texts(run_cluster(&moved, processes, threads, job, None));
        for text in &texts {
            assert!(text.contains("does not see worker-1.5/checkpoint-"), "{text}");
            assert!(text.contains("moved/1/worker-1.5"), "{text}");
            assert!(!text.contains("worker-0.5/checkpoint"), "{text}");
        }
        assert_eq!(texts.len(), processes);
        assert_eq!(stores(&moved.join("0")), before);
        for process in 1..3 {
            let other = moved.join(process.to_string());
            assert!(!other.exists() || names(&other).is_empty());
        }
    }
    // Processes that have changed places are told, and nothing is taken for left over.
    fs::remove_dir_all(&there).unwrap();
    fs::rename(&away, &there).unwrap();
    let swapped = directory.path().join("swapped");
    fs::create_dir(&swapped).unwrap();
    fs::rename(moved.join("0"), swapped.join("1")).unwrap();
    fs::rename(&there, swapped.join("0")).unwrap();
    for text in texts(run_cluster(&swapped, 2, 1, job, None)) {
        assert!(text.contains("worker 1 has one in "), "{text}");
    }
    assert_eq!(stores(&swapped.join("1")), before);
    fs::rename(swapped.join("1"), moved.join("0")).unwrap();
    fs::rename(swapped.join("0"), &away).unwrap();
    // It is enough to have it in the directory of the process that looks for it.
    fs::rename(away.join("worker-1.5"), moved.join("0/worker-1.5")).unwrap();
    job.numbers += 600;
    let all = ends(run_cluster(&moved, 1, 3, job, None));
    assert_eq!(together(&all), expected(job));
    assert!(sent(&all) < 1_200, "it went on");
}
