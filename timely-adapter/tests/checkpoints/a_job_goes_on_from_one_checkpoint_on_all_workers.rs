//! However a run ends, the next one goes on from a checkpoint that is whole on all workers: the sums
//! at the end are those of a run that nothing happened to. Runs end by errors on any worker at any
//! turn, by a device that fails, and by a loss of power, which takes any of what was not synced. Numbers are
//! counted by key; they are also counted in windows, whose results other workers count, so that
//! firings and what they send are under way at any time.

use std::sync::atomic::{AtomicU64, Ordering};

use alluvium::io::{CrashPolicy, Fault, Faults, Simulated};
use alluvium::{ErrorKind, Result, Time};
use alluvium_timely::{JobCheckpoint, JobCheckpoints, Turn, WorkerOverrides, WorkerState, execute};
use timely::dataflow::ProbeHandle;
use timely::dataflow::operators::Probe;
use timely::dataflow::operators::vec::Input;

use crate::job::{
    Accident, Job, WINDOW, dice, expected, node, run_cluster, run_in, run_on, together,
};

#[test]
fn runs_that_end_anywhere_add_up_to_one() {
    let rounds = if std::env::var_os("ALLUVIUM_LONG").is_some() { 300 } else { 12 };
    let (mut begun_again, mut from_a_checkpoint) = (0, 0);
    // How many turns a run takes is its threads' doing: a few rounds more, if few met with an accident.
    for seed in 1..=4 * rounds {
        if seed > rounds && begun_again > rounds && from_a_checkpoint > rounds / 3 {
            break;
        }
        let mut dice = dice(seed);
        let workers = 1 + dice(3) as usize;
        let job =
            Job { numbers: 600, every: 20 + dice(60) as i64, batch: 1 + dice(3) as i64, ties: 1 };
        let mut devices: Vec<_> =
            (0..workers).map(|n| Simulated::new(seed + n as u64, Faults::late(2))).collect();
        let mut runs = 0;
        loop {
            runs += 1;
            let accident = match runs < 8 {
                true => Accident::after(dice(700 * workers as u64) as i64),
                false => Accident::default(),
            };
            if runs < 8 {
                let victim = &devices[dice(workers as u64) as usize];
                match dice(4) {
                    0 => victim.on_nth_directory_operation(dice(40), Fault::Error),
                    1 => victim.on_nth_sync(dice(20), Fault::Error),
                    2 => victim.on_nth_write(dice(60), Fault::DiskFull),
                    _ => {}
                }
            }
            match run_on(&devices, job, accident) {
                Ok(_) => break,
                Err(_) => begun_again += 1,
            }
            // Power is lost, and with it any of what was not synced.
            let mut lose = |device: &Simulated| {
                device.crash(match dice(4) {
                    0 => CrashPolicy::Nothing,
                    1 => CrashPolicy::Prefix { seed: dice(1 << 32) },
                    2 => CrashPolicy::Subset { seed: dice(1 << 32) },
                    _ => CrashPolicy::Torn { seed: dice(1 << 32) },
                })
            };
            devices = devices.iter().map(&mut lose).collect();
        }
        // What was planned to fail and did not have to, does not any more.
        let devices: Vec<_> =
            devices.iter().map(|device| device.crash(CrashPolicy::Everything)).collect();
        // The last one has some numbers more, so that it says every count.
        let job = Job { numbers: job.numbers + 2 * WINDOW, ..job };
        let ends = run_on(&devices, job, Accident::default()).unwrap();
        assert_eq!(together(&ends), expected(job), "seed {seed}, {workers} workers");
        let sent: i64 = ends.iter().map(|end| end.sent).sum();
        from_a_checkpoint += u64::from(sent < job.numbers);
    }
    assert!(begun_again > rounds && from_a_checkpoint > rounds / 3, "the test has lost its point");
}

#[test]
fn processes_go_on_together_and_in_the_directories_they_have() {
    let directory = tempfile::tempdir().unwrap();
    let job = Job { numbers: 2_000, every: 100, batch: 2, ties: 1 };
    let mut ended = 0;
    let ends = loop {
        // Later each time, until there was time for a checkpoint: then it goes on from that.
        let went_on = directory.path().join("0/COMMITTED").exists();
        let accident = (ended < 3 || !went_on).then_some(900 + 500 * ended);
        let outcomes = run_cluster(directory.path(), 2, 2, job, accident);
        if outcomes.iter().all(Result::is_ok) {
            break outcomes.into_iter().flat_map(Result::unwrap).collect::<Vec<_>>();
        }
        ended += 1;
        for outcome in outcomes {
            assert!(outcome.unwrap_err().to_string().contains("an accident"));
        }
    };
    // Unless it came to its end before there was one, and before the accident.
    let began_again = ends.iter().map(|end| end.sent).sum::<i64>() >= job.numbers;
    assert!(!began_again || ended < 3, "it began again");
    // With some numbers more, so that every count is said: the last checkpoint may be at the end, if
    // the worker that asked for it was far behind the others.
    let job = Job { numbers: job.numbers + 2 * WINDOW, ..job };
    let ends: Vec<_> = run_cluster(directory.path(), 2, 2, job, None)
        .into_iter()
        .flat_map(Result::unwrap)
        .collect();
    assert_eq!(together(&ends), expected(job));
    let committed: Vec<_> = ends.iter().map(|end| end.committed).collect();
    assert!(committed[0] >= 1 && committed.iter().all(|n| *n == committed[0]), "{committed:?}");
    assert!(ends.iter().all(|end| end.abandoned == 0));
    assert!(directory.path().join("0/COMMITTED").exists());
    assert!(!directory.path().join("1/COMMITTED").exists());
    // One process goes on in what two have made if it is where it has its own.
    for worker in [2, 3] {
        let name = format!("worker-{worker}");
        let (from, to) = (directory.path().join("1").join(&name), directory.path().join("0"));
        std::fs::rename(from, to.join(&name)).unwrap();
    }
    let mut outcomes = run_cluster(directory.path(), 1, 4, job, None);
    let ends = outcomes.pop().unwrap().unwrap();
    assert_eq!(ends.iter().map(|end| end.committed).max(), Some(committed[0]));
    assert!(!directory.path().join("0/worker-0.1").exists(), "nothing was made anew");
}

#[test]
fn a_full_disk_gives_a_checkpoint_up_and_the_one_before_counts() {
    let devices = [1, 2].map(|seed| Simulated::new(seed, Faults::none()));
    let begin = Job { numbers: 400, every: 50, batch: 1, ties: 1 };
    let ends = run_on(&devices, begin, Accident::default()).unwrap();
    assert!(ends[0].committed >= 2);
    // From here on there is no room, on one of the devices.
    devices[1].set_capacity_bytes(Some(devices[1].used_bytes()));
    let job = Job { numbers: 800, ..begin };
    let more = run_on(&devices, job, Accident::default()).unwrap();
    assert_eq!(more[0].committed, ends[0].committed);
    assert!(more.iter().all(|end| end.abandoned > 0), "{more:?}");
    assert_eq!(together(&more), expected(job));
    // And then there is.
    devices[1].set_capacity_bytes(None);
    let more = run_on(&devices, job, Accident::default()).unwrap();
    assert!(more[0].committed > ends[0].committed);
    assert_eq!(together(&more), expected(job));
}

#[test]
fn a_source_learns_what_is_committed() {
    static SEEN: AtomicU64 = AtomicU64::new(0);
    let directory = tempfile::tempdir().unwrap();
    let mut node = node();
    node.store.directory = Some(directory.path().to_owned());
    execute(timely::Config::process(2), node.clone(), |worker, state| {
        assert_eq!(state.restored(), None);
        let probe = ProbeHandle::new();
        let input = worker.dataflow::<i64, _, _>(|scope| {
            let (input, rows) = scope.new_input::<i64>();
            rows.probe_with(&probe);
            input
        });
        let mut job = JobCheckpoints::new(state, probe)?;
        // Rows of one time, of which the last is late: the checkpoint is after all of them.
        let mut input = job.input(input);
        input.advance_to(Time(1))?;
        for (at, row) in [(2, 1), (2, 2), (0, 3)] {
            input.send(Time(at), row)?;
        }
        job.request();
        loop {
            match job.turn(true)? {
                Turn::Until(until) => {
                    input.advance_to(until)?;
                    state.step(worker)?;
                }
                Turn::Seal { .. } => job.seal(&[40 + state.index() as u64])?,
                Turn::End(_) => break,
                _ => state.step(worker)?,
            }
        }
        let mine = |all: &JobCheckpoint| all.workers[state.index()].position[0];
        assert_eq!(job.committed().map(mine), Some(40 + state.index() as u64));
        SEEN.fetch_add(1, Ordering::Relaxed);
        Ok(())
    })
    .unwrap();
    assert_eq!(SEEN.load(Ordering::Relaxed), 2);
    let again = execute(timely::Config::process(2), node, |_, state| {
        assert_eq!(state.store().restored_position(), Some(40 + state.index() as u64));
        Ok(state.restored().cloned())
    });
    let again = again.unwrap();
    let checkpoint = again[0].as_ref().expect("it was committed");
    assert_eq!((checkpoint.number, checkpoint.until), (1, Time(3)));
    assert_eq!(checkpoint.workers[1].directory, "worker-1");
    // Single stores are not opened where a job has its checkpoints.
    let mut config = timely::Config::process(1);
    let mut node = self::node();
    node.store.directory = Some(directory.path().to_owned());
    alluvium_timely::install(&mut config, node).unwrap();
    let guards = timely::execute(config, |worker| {
        WorkerState::new(worker, WorkerOverrides::default()).unwrap_err().to_string()
    });
    let text = guards.unwrap().join().pop().unwrap().unwrap();
    assert!(text.contains("start it with `execute`"), "{text}");
}

/// Another job may have the directory: its record is not replaced.
#[test]
fn a_job_whose_lock_file_was_removed_commits_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let mut node = node();
    node.store.directory = Some(directory.path().to_owned());
    let lock = directory.path().join("LOCK");
    execute(timely::Config::process(1), node, move |worker, state| {
        let probe: ProbeHandle<i64> = ProbeHandle::new();
        let mut job = JobCheckpoints::new(state, probe)?;
        job.request();
        loop {
            match job.turn(true)? {
                Turn::Seal { .. } => {
                    let _ = std::fs::remove_file(&lock);
                    job.seal(&[40])?;
                }
                Turn::End(_) => break,
                _ => state.step(worker)?,
            }
        }
        assert_eq!(job.committed(), None);
        let why = job.abandoned().expect("it was given up");
        assert!(why.contains("LOCK") && why.contains("removed"), "{why}");
        Ok(())
    })
    .unwrap();
    assert!(!directory.path().join("COMMITTED").exists());
}

/// Its stores have what they had, and the input would begin anew.
#[test]
fn a_job_whose_record_is_lost_does_not_begin_over_old_state() {
    let directory = tempfile::tempdir().unwrap();
    let job = Job { numbers: 400, every: 50, batch: 1, ties: 1 };
    let run = || run_in(directory.path(), 2, job, Accident::default());
    run().unwrap();
    let record = directory.path().join("COMMITTED");
    let kept = std::fs::read(&record).unwrap();
    std::fs::remove_file(&record).unwrap();
    let error = run().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Missing, "{error:?}");
    assert!(error.to_string().contains("the job's record is not there"), "{error}");
    assert!(error.to_string().contains("worker-0 has "), "{error}");
    // Nothing was removed.
    std::fs::write(&record, kept).unwrap();
    let job = Job { numbers: 600, ..job };
    let ends = run_in(directory.path(), 2, job, Accident::default()).unwrap();
    assert_eq!(together(&ends), expected(job));
}

#[test]
fn a_job_without_a_directory_takes_no_checkpoints() {
    let mut node = node();
    node.store.directory = None;
    let outcome = execute(timely::Config::thread(), node, |_, state| {
        JobCheckpoints::new(state, ProbeHandle::<i64>::new()).map(drop)
    });
    assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Unsupported);
}
