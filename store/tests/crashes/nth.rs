//! The nth call of the device fails, once or three times in a row, for each n of a short history, and the history goes on: the call
//! that failed is made again. Then the store is opened again, also from what a crash leaves.
//!
//! What this catches: one place of many whose error is not told, or whose second try does not do what the
//! first one should have: by chance, as in other histories, single places are missed.

use std::collections::BTreeMap;
use std::sync::Arc;

use alluvium::StoreBuilder;
use alluvium::config::Helpers;
use alluvium::io::{CrashPolicy, Device, Fault, Faults, Simulated};

use crate::dice::{Dice, times};
use crate::everything::{Everything, builder};
use crate::job::{Fixtures, Found, Job, Replay, Subject};
use crate::joined::Joined;
use crate::long;
use crate::trouble::Trouble;

/// Changes of a history.
const CHANGES: u64 = 260;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Read,
    Write,
    FullDisk,
    Sync,
    Directory,
}

impl Kind {
    const ALL: [Kind; 5] = [Kind::Read, Kind::Write, Kind::FullDisk, Kind::Sync, Kind::Directory];

    /// The nth fails, and as many after it as make `times`.
    fn plan_times(self, device: &Simulated, n: u64, times: u64) {
        // Those of one kind are counted from now on.
        (n..n + times).for_each(|n| self.plan(device, n));
    }

    fn plan(self, device: &Simulated, n: u64) {
        match self {
            Kind::Read => device.on_nth_read(n, Fault::Error),
            Kind::Write => device.on_nth_write(n, Fault::Error),
            Kind::FullDisk => device.on_nth_write(n, Fault::DiskFull),
            Kind::Sync => device.on_nth_sync(n, Fault::Error),
            Kind::Directory => device.on_nth_directory_operation(n, Fault::Error),
        }
    }

    /// How many such calls there are.
    fn count(self, device: &Simulated) -> u64 {
        let stats = device.stats();
        match self {
            Kind::Read => stats.reads,
            Kind::Write | Kind::FullDisk => stats.writes,
            Kind::Sync => stats.syncs,
            Kind::Directory => stats.directory_operations,
        }
    }
}

fn on(device: &Simulated) -> StoreBuilder {
    builder(device).helpers(Helpers::Inline).device(Arc::new(device.clone()))
}

/// Plays the history of a seed, opening the store twice; gives what may be found, and the errors met.
fn play<S: Subject>(seed: u64, device: &Simulated, replay: &mut Replay<S>) -> (Found, u64) {
    let (mut found, mut met) = (Found::default(), 0);
    for part in 1..=2 {
        let trouble = Trouble::standing(device);
        let mut job = Job::open(seed, || on(device), trouble, replay).unwrap();
        // What comes after the last checkpoint is made again.
        let until = part * CHANGES / 2;
        let told = &mut |told| found.told(told);
        job.run(&mut Dice(seed + part), until, told).unwrap();
        met += job.met() + job.overtaken();
    }
    (found, met)
}

#[test]
fn each_call_fails_once_and_is_made_again() {
    each_call_fails::<Everything>();
}

#[test]
fn each_call_of_all_kinds_of_windows_fails_once_and_is_made_again() {
    each_call_fails::<Fixtures>();
}

#[test]
fn each_call_of_windows_that_join_and_are_told_early_fails_and_is_made_again() {
    each_call_fails::<Joined>();
}

fn each_call_fails<S: Subject>() {
    let seeds = times("ALLUVIUM_HISTORIES", if long() { 60 } else { 1 });
    let first = times("ALLUVIUM_SEED", 1);
    let mut counts: BTreeMap<Kind, [u64; 3]> = BTreeMap::new();
    let mut compared = 0;
    for seed in first..first + seeds {
        let (mut replay, clean) = (Replay::<S>::of(seed), Simulated::new(seed, Faults::late(2)));
        let (_, met) = play(seed, &clean, &mut replay);
        assert_eq!(met, 0, "seed {seed}, where nothing fails");
        for kind in Kind::ALL {
            let calls = kind.count(&clean);
            let share = if long() { 1 } else { (calls / 3).max(1) };
            let all = (1 + seed % share..=calls).step_by(share as usize);
            println!("seed {seed}: each of {calls} calls of kind {kind:?}, one in {share}");
            // Once, and three times in a row.
            for (n, times) in all.flat_map(|n| [(n, 1), (n, 3)]) {
                let when = format!("seed {seed}, {kind:?} {n} of {calls}, {times} times");
                let device = Simulated::new(seed, Faults::late(2));
                kind.plan_times(&device, n, times);
                let (mut found, met) = play(seed, &device, &mut replay);
                let [histories, errors, failed] = counts.entry(kind).or_default();
                (*histories, *errors) = (*histories + 1, *errors + met);
                *failed += device.stats().errors;
                device.forget_scripts();
                let mut dice = Dice(n);
                let seed_of_crash = dice.next();
                let policies = [
                    CrashPolicy::Nothing,
                    CrashPolicy::Subset { seed: seed_of_crash },
                    CrashPolicy::Everything,
                ];
                for policy in policies.into_iter().take(if long() { 3 } else { 1 }) {
                    let left = device.crash(policy);
                    let when = format!("{when}, {policy:?}");
                    let mut found = found.clone();
                    compared += found.check(|| on(&left), &mut replay, &mut dice, &when);
                }
                compared += found.check(|| on(&device), &mut replay, &mut dice, &when);
            }
        }
    }
    println!(
        "{seeds} histories; by kind of call: times played, errors told, requests failed: {counts:?}; \
         {compared} checkpoints compared"
    );
    assert!(counts.values().all(|[_, told, _]| *told > 0), "{counts:?}");
}

/// Many histories where nothing fails.
#[test]
fn a_history_that_is_cut_off_anywhere_goes_on_from_a_checkpoint() {
    cut_off::<Everything>();
    cut_off::<Fixtures>();
    cut_off::<Joined>();
}

fn cut_off<S: Subject>() {
    let first = times("ALLUVIUM_SEED", 1);
    let mut compared = 0;
    for seed in first..first + if long() { 400 } else { 1 } {
        let device = Simulated::new(seed, Faults::late(2));
        let (mut replay, mut dice) = (Replay::<S>::of(seed), Dice(seed));
        let mut found = Found::default();
        for part in 1..=4 {
            let trouble = Trouble::none();
            let mut job = Job::open(seed, || on(&device), trouble, &mut replay).unwrap();
            let told = &mut |told| found.told(told);
            job.run(&mut dice, 400 * part, told).unwrap();
            drop(job);
            let when = format!("seed {seed}, part {part}");
            compared += found.check(|| on(&device), &mut replay, &mut dice, &when);
        }
    }
    println!("{compared} checkpoints compared");
}
