//! Power is lost at any step of any worker's device, on all of them at once: a run from what that leaves
//! adds up to one that nothing happened to, and goes back behind no checkpoint that was committed.
//!
//! The devices of all workers share one order of their operations. At steps chosen by chance, of all that
//! any of them takes, what a crash leaves of each is kept; when the run is over another one goes on from
//! there. Of some of those the same is done again: what is lost then is lost in restoring, too. Now and then
//! the storage of one worker has lied about one write; then the run is right, or says which file is
//! damaged, or that checkpoints are missing. From a part of what crashes leave, fewer or more workers go on:
//! for that it is brought into a directory, as those on devices of their own cannot see the devices of others.
//!
//! What this catches: a record that names a checkpoint which is not durable on each worker, one that a
//! worker has removed, stores of two moments, an open that makes something of it that a crash takes back.
//! Workers are threads, so that a seed chooses the classes of crashes, and not the order of steps.
//!
//! ```text
//! ALLUVIUM_LONG=1 cargo test --release -p alluvium-timely --test checkpoints at_any_step -- --nocapture
//! ```

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use alluvium::io::{CrashPolicy, Faults, Lie, Simulated};
use alluvium::{Error, ErrorKind, Result};

use crate::checker::check_committed;
use crate::job::{
    Accident, End, Job, WINDOW, bring, dice, expected, run_unchecked_in, run_unchecked_on, together,
};

/// What a crash leaves of all workers.
struct Shot {
    devices: Vec<Simulated>,
    /// The last checkpoint that some worker knew to be committed.
    committed: u64,
    lies: bool,
    when: String,
}

/// What is kept of a run.
struct Shots {
    /// Of all workers; empty when the run is over.
    devices: Vec<Simulated>,
    dice: Box<dyn FnMut(u64) -> u64 + Send>,
    /// One step of so many is kept.
    share: u64,
    /// Steps of all devices.
    steps: u64,
    kept: Vec<Shot>,
}

fn policy(dice: &mut impl FnMut(u64) -> u64) -> CrashPolicy {
    match dice(6) {
        0 => CrashPolicy::Nothing,
        1 => CrashPolicy::Everything,
        2 => CrashPolicy::Prefix { seed: dice(1 << 32) },
        3 | 4 => CrashPolicy::Subset { seed: dice(1 << 32) },
        _ => CrashPolicy::Torn { seed: dice(1 << 32) },
    }
}

/// Runs the job to its end, and keeps what crashes would leave.
fn run_and_keep(
    devices: &[Simulated],
    job: Job,
    seed: u64,
    share: u64,
) -> (Result<Vec<End>>, u64, Vec<Shot>) {
    let (order, committed) = (Arc::default(), Arc::new(AtomicU64::new(0)));
    let dice = Box::new(dice(seed));
    let shots = Shots { devices: devices.to_vec(), dice, share, steps: 0, kept: Vec::new() };
    let shots = Arc::new(Mutex::new(shots));
    for (at, device) in devices.iter().enumerate() {
        device.take_order(&order);
        let (shots, committed) = (shots.clone(), committed.clone());
        device.watch(move |moment| {
            let shots = &mut *shots.lock().unwrap_or_else(PoisonError::into_inner);
            shots.steps += 1;
            if shots.devices.is_empty() || (shots.dice)(shots.share) > 0 {
                return;
            }
            let (steps, words) = (shots.steps, moment.words());
            let lies = (shots.dice)(8) == 0;
            let mut when = format!("seed {seed}, step {steps} ({words} of worker {at})");
            let mut left = Vec::new();
            for (other, device) in shots.devices.iter().enumerate() {
                let policy = policy(&mut shots.dice);
                when += &format!(", {policy:?}");
                left.push(if other == at { moment.crash(policy) } else { device.crash(policy) });
            }
            if lies {
                let lie = [Lie::Lost, Lie::Torn, Lie::Misdirected, Lie::FlippedBit];
                let lie = lie[(shots.dice)(4) as usize];
                let seed = (shots.dice)(1 << 32);
                let Some(lying) = moment.crash_lying(CrashPolicy::Everything, lie, seed) else {
                    return;
                };
                when += &format!(", {lie:?} {seed}");
                left[at] = lying;
            }
            let committed = committed.load(Ordering::SeqCst);
            shots.kept.push(Shot { devices: left, committed, lies, when });
        });
    }
    let ends = run_unchecked_on(devices, job, Accident::telling(committed));
    let shots = &mut *shots.lock().unwrap_or_else(PoisonError::into_inner);
    shots.devices.clear();
    (ends, shots.steps, std::mem::take(&mut shots.kept))
}

/// What has come up.
#[derive(Debug, Default)]
struct Met {
    steps: u64,
    crashes: u64,
    again: u64,
    from_a_checkpoint: u64,
    /// The checkpoint was one that no worker knew to be committed.
    in_commit: u64,
    lies_refused: u64,
    lies_harmless: u64,
    /// Runs of fewer workers, and of more.
    divided: [u64; 2],
    kinds: BTreeSet<String>,
}

fn is_damage(error: &Error) -> bool {
    let kinds =
        [ErrorKind::Corrupt, ErrorKind::FormatVersion, ErrorKind::Missing, ErrorKind::Mismatch];
    kinds.contains(&error.kind())
}

/// Goes on from what a crash left with another number of workers, and says how that ended.
fn divide(shot: &Shot, job: Job, seed: u64, met: &mut Met) -> Result<Vec<End>> {
    let (before, place) = (shot.devices.len(), tempfile::tempdir().unwrap());
    bring(&shot.devices, place.path());
    let workers = 1 + (before + (seed / 10 % 3) as usize) % 4;
    let ends = run_unchecked_in(place.path(), workers, job, Accident::default());
    if !shot.lies {
        check_committed(place.path(), "");
    }
    if ends.is_ok() && workers != before {
        met.divided[usize::from(workers > before)] += 1;
    }
    ends
}

/// Goes on from what a crash left.
fn check(shot: &Shot, job: Job, seed: u64, again: bool, met: &mut Met) {
    let Shot { devices, committed, lies, when } = shot;
    // With some numbers more, so that it says every count.
    let job = Job { numbers: job.numbers + 2 * WINDOW, ..job };
    let share = if again && !lies && seed.is_multiple_of(4) { 150 } else { u64::MAX };
    if !lies {
        let place = tempfile::tempdir().unwrap();
        bring(devices, place.path());
        check_committed(place.path(), "");
    }
    let (ends, steps, kept) = match seed / 10 % 3 {
        0 => (divide(shot, job, seed / 3, met), 0, Vec::new()),
        _ => run_and_keep(devices, job, seed, share),
    };
    met.crashes += 1;
    met.again += u64::from(!again);
    met.steps += steps;
    let word = when.split(['(', ' ']).nth(5).unwrap_or_default();
    met.kinds.insert(word.into());
    let ends = match ends {
        Ok(ends) => ends,
        Err(error) if *lies => {
            assert!(is_damage(&error), "{when}: {error:?}");
            met.lies_refused += 1;
            return;
        }
        Err(error) => panic!("{when}: {error:?}"),
    };
    met.lies_harmless += u64::from(*lies);
    assert_eq!(together(&ends), expected(job), "{when}");
    let restored = ends[0].restored;
    assert!(ends.iter().all(|end| end.restored == restored), "{when}");
    assert!(restored >= *committed, "{when}: {committed} was committed, {restored} is there");
    met.from_a_checkpoint += u64::from(restored > 0);
    met.in_commit += u64::from(restored > *committed);
    for (shot, seed) in kept.iter().zip(seed + 1..) {
        check(shot, job, seed, false, met);
    }
}

#[test]
fn a_crash_at_any_step_of_any_worker_goes_on_from_a_whole_checkpoint() {
    let long = std::env::var_os("ALLUVIUM_LONG").is_some();
    let (histories, most, share) = if long { (300, 1200, 4) } else { (3, 16, 16) };
    let mut met = Met::default();
    // How many steps a run takes is its threads' doing: a few histories more, if they were few.
    let is_enough = |met: &Met| {
        let divided = met.divided.iter().all(|runs| *runs > 2);
        met.crashes > 40 && met.from_a_checkpoint > 20 && met.kinds.len() >= 4 && divided
    };
    for seed in 1..=most {
        if seed > histories && is_enough(&met) {
            break;
        }
        let mut dice = dice(seed);
        let workers = 1 + (seed as usize % 3);
        let job =
            Job { numbers: 400, every: 20 + dice(60) as i64, batch: 1 + dice(3) as i64, ties: 1 };
        let devices: Vec<_> =
            (0..workers).map(|n| Simulated::new(seed + n as u64, Faults::late(2))).collect();
        let (ends, steps, kept) = run_and_keep(&devices, job, seed, share);
        assert!(ends.is_ok(), "{ends:?}");
        met.steps += steps;
        for (shot, at) in kept.iter().zip(1..) {
            check(shot, job, seed * 10_000 + 10 * at, true, &mut met);
        }
        if long {
            println!("{seed}: {met:?}");
        }
    }
    println!("{met:?}");
    assert!(is_enough(&met), "{met:?}");
}
