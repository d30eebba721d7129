//! One store with a state of every kind takes checkpoints in steps, gives some up, retains three
//! and is opened again, on a device that is stopped at any of its steps, or that lies.
//!
//! What this catches: a checkpoint of two moments, one that is listed before all of it is durable,
//! a file removed that a retained checkpoint or the one in commit names, a sealed checkpoint that
//! is not there after a crash; damage that is served.
//!
//! By default a share of the steps; `ALLUVIUM_LONG=1` takes all of more histories.

mod damage;
#[path = "../behaviour/common/dice.rs"]
#[expect(dead_code, reason = "shared with other programs")]
mod dice;
mod everything;

use std::collections::BTreeMap;

use alluvium::io::{CrashPolicy, Device, Faults, Simulated};
use alluvium::{Error, ErrorKind, Result, Seal};

use crate::dice::Dice;
use crate::everything::{Everything, Model, builder};

fn long() -> bool {
    std::env::var_os("ALLUVIUM_LONG").is_some()
}

/// Opens the store, or a checkpoint of it by its number.
fn open(device: &Simulated, restore: Option<u64>) -> Result<Everything> {
    Everything::open(match restore {
        Some(number) => builder(device).restore(number),
        None => builder(device),
    })
}

/// A history that its device may not survive.
#[derive(Default)]
struct History {
    /// What was sealed in full, by the number of the checkpoint.
    sealed: BTreeMap<u64, Model>,
    /// The numbers of those that were confirmed, in order.
    confirmed: Vec<u64>,
    /// The one whose confirmation was begun and did not end.
    in_commit: Option<u64>,
    /// One that is sealed in full and neither confirmed nor given up.
    undecided: Option<u64>,
}

impl History {
    /// Plays it until its end or an error.
    fn play(&mut self, device: &Simulated, seed: u64) -> Result<()> {
        let (mut dice, mut model) = (Dice(seed), Model::default());
        for _ in 0..3 {
            let mut all = Everything::open(builder(device))?;
            for _ in 0..3 {
                // More than the logs can note of one by one, at times.
                let many = if dice.below(4) == 0 { 1200 } else { 100 };
                all.changes(&mut model, &mut dice, many)?;
                self.checkpoint(device, &mut all, &mut model, &mut dice)?;
            }
            // What comes after the last checkpoint is lost with the next open.
            let mut lost = model.clone();
            all.changes(&mut lost, &mut dice, 30)?;
            match self.confirmed.last() {
                Some(last) => model = self.sealed[last].clone(),
                None => model = Model::default(),
            }
        }
        Ok(())
    }

    /// Seals while the stream goes on; confirms it, or gives it up at some step.
    fn checkpoint(
        &mut self,
        device: &Simulated,
        all: &mut Everything,
        model: &mut Model,
        dice: &mut Dice,
    ) -> Result<()> {
        let mut seal = all.store.seal(0)?;
        let barrier = model.clone();
        let give_up = (dice.below(3) == 0).then(|| dice.below(30));
        let mut steps = 0;
        while !seal.advance()? {
            let few = dice.below(12);
            all.changes(model, dice, few)?;
            steps += 1;
            if give_up == Some(steps) {
                return give_up_in_full(seal, device);
            }
        }
        self.sealed.insert(seal.number(), barrier);
        self.undecided = Some(seal.number());
        all.changes(model, dice, 40)?;
        if give_up.is_some() {
            self.undecided = None;
            return give_up_in_full(seal, device);
        }
        self.confirm(seal)
    }

    fn confirm(&mut self, seal: Seal) -> Result<()> {
        self.in_commit = self.undecided.take();
        let done = seal.confirm()?;
        self.in_commit = None;
        self.confirmed.push(done.number);
        Ok(())
    }
}

/// Gives a checkpoint up: no file is left that is only its own.
fn give_up_in_full(seal: Seal, device: &Simulated) -> Result<()> {
    let number = seal.number();
    drop(seal);
    let own = [format!("live-{number:016x}"), format!("checkpoint-{number:016x}")];
    let left = device.list()?.into_iter().find(|name| own.contains(name));
    assert!(left.is_none() || device.has_crashed(), "{left:?} is left");
    Ok(())
}

/// Opens what the crash has left: a whole checkpoint, and those before it.
fn check(image: &Simulated, history: &History, when: &str) -> u64 {
    let copy = || image.crash(CrashPolicy::Everything);
    let opened = |device: &Simulated, restore: Option<u64>, when: &str| {
        open(device, restore).unwrap_or_else(|e| panic!("{when}: {e}"))
    };
    let device = copy();
    let mut all = opened(&device, None, when);
    let there: Vec<u64> = all.store.checkpoints().iter().map(|r| r.checkpoint.number).collect();
    let newest = there.last().copied();
    let last = history.confirmed.last().copied();
    assert!(newest == last || newest == history.in_commit, "{when}: {newest:?} of {last:?}");
    let nothing = Model::default();
    let errors = all.compare(newest.map_or(&nothing, |number| &history.sealed[&number]), when);
    assert!(errors.is_empty(), "{when}: {errors:?}");
    drop(all);
    // Nothing is left over that nobody names.
    let again = opened(&device, None, when);
    assert_eq!(again.store.leftovers(), 0, "{when}");
    drop(again);
    // Those before it are each what they were.
    let mut all_confirmed = history.confirmed.clone();
    all_confirmed.extend(newest.filter(|number| Some(*number) == history.in_commit));
    let retained: Vec<u64> = all_confirmed.iter().rev().take(3).rev().copied().collect();
    assert_eq!(there, retained, "{when}");
    let undecided =
        history.undecided.or(history.in_commit).filter(|number| !there.contains(number));
    for number in there.iter().copied().chain(undecided) {
        let when = format!("{when}, checkpoint {number}");
        let mut all = opened(&copy(), Some(number), &when);
        let errors = all.compare(&history.sealed[&number], &when);
        assert!(errors.is_empty(), "{when}: {errors:?}");
    }
    newest.unwrap_or(0)
}

#[test]
fn a_crash_at_any_step_leaves_whole_checkpoints() {
    let seeds = if long() { 6 } else { 2 };
    for seed in 1..=seeds {
        let device = Simulated::new(seed, Faults::late(2));
        let mut whole = History::default();
        whole.play(&device, seed).unwrap();
        let steps = device.steps();
        let share = if long() { 1 } else { (steps / 22).max(1) };
        let (mut points, mut seen) = (0, BTreeMap::<u64, u64>::new());
        for at in (0..steps).filter(|at| at % share == seed % share) {
            let device = Simulated::new(seed, Faults::late(2));
            device.fail_after(at);
            let mut crashed = History::default();
            assert!(crashed.play(&device, seed).is_err() || device.has_crashed(), "step {at}");
            let chance = seed * 10_000 + at;
            let policies = [
                CrashPolicy::Nothing,
                CrashPolicy::Everything,
                CrashPolicy::Prefix { seed: chance },
                CrashPolicy::Subset { seed: chance },
                CrashPolicy::Torn { seed: chance },
            ];
            for (i, policy) in policies.into_iter().enumerate() {
                if !long() && !(i as u64 + at / share).is_multiple_of(2) {
                    continue;
                }
                let when = format!("seed {seed}, crash at step {at} of {steps}, {policy:?}");
                let image = device.crash(policy);
                *seen.entry(check(&image, &crashed, &when)).or_default() += 1;
                points += 1;
            }
        }
        println!("seed {seed}: {steps} steps, {points} crashes, checkpoints found: {seen:?}");
        assert!(seen.len() >= 4, "{seen:?}");
    }
}

/// What is sealed and not whole any more is not made the checkpoint that an open finds.
#[test]
fn a_sealed_checkpoint_that_lacks_a_file_is_refused_and_not_listed() {
    let (device, mut dice) = (Simulated::new(1, Faults::none()), Dice(1));
    let mut all = Everything::open(builder(&device)).unwrap();
    let mut model = Model::default();
    all.changes(&mut model, &mut dice, 300).unwrap();
    all.store.checkpoint(1).unwrap();
    let first = model.clone();
    all.changes(&mut model, &mut dice, 300).unwrap();
    let before = device.list().unwrap();
    let mut seal = all.store.seal(2).unwrap();
    while !seal.advance().unwrap() {}
    let number = seal.number();
    let crashed = device.crash(CrashPolicy::Everything);
    let news = crashed.list().unwrap().into_iter().filter(|name| !before.contains(name));
    let segment = news.into_iter().find(|name| name.starts_with("seg-")).expect("it wrote some");
    crashed.remove(&segment).unwrap();
    let error = open(&crashed, Some(number)).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Missing, "{error:?}");
    assert_eq!(error.context("file"), Some(&*segment), "{error:?}");
    // Nor is one that is of other key groups than were asked for.
    let copy = device.crash(CrashPolicy::Everything);
    let other = builder(&copy).key_groups(8).restore(number);
    assert_eq!(Everything::open(other).map(drop).unwrap_err().kind(), ErrorKind::Mismatch);
    for device in [crashed, copy] {
        let mut all = Everything::open(builder(&device)).unwrap();
        assert_eq!(all.store.restored_position(), Some(1));
        assert!(all.compare(&first, "the one before").is_empty());
    }
}

/// Whether a damaged file may be the reason.
fn is_damage(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Corrupt | ErrorKind::FormatVersion | ErrorKind::Io | ErrorKind::Missing
    )
}

/// Storage that tears, loses and misdirects writes without a word.
#[test]
fn what_lying_storage_keeps_is_right_or_refused() {
    let seeds = if long() { 400 } else { 25 };
    let (mut right, mut refused) = (0, 0);
    for seed in 1..=seeds {
        let device = Simulated::new(seed, Faults::none());
        let liar = Faults {
            torn_writes: 0.001,
            lost_writes: 0.001,
            misdirected_writes: 0.001,
            flipped_bits: 0.001,
            ..Faults::none()
        };
        device.set_faults(liar);
        let mut history = History::default();
        let when = format!("seed {seed}");
        if let Err(error) = history.play(&device, seed) {
            assert!(is_damage(&error), "{when}: {error:?}");
            refused += 1;
        }
        device.set_faults(Faults::none());
        for restore in std::iter::once(None).chain(history.confirmed.iter().copied().map(Some)) {
            let copy = device.crash(CrashPolicy::Everything);
            let mut all = match open(&copy, restore) {
                Ok(all) => all,
                Err(error) => {
                    assert!(is_damage(&error), "{when}: {error:?}");
                    refused += 1;
                    continue;
                }
            };
            let found = all.store.checkpoints();
            let newest = restore.or(found.last().map(|found| found.checkpoint.number));
            let nothing = Model::default();
            let model = newest.map_or(&nothing, |number| &history.sealed[&number]);
            let errors = all.compare(model, &format!("{when}, restored {restore:?}"));
            assert!(errors.iter().all(is_damage), "{when}: {errors:?}");
            if errors.is_empty() { right += 1 } else { refused += 1 }
        }
        assert!(!device.list().unwrap().is_empty());
    }
    println!("{seeds} histories: {right} times right, {refused} refused");
    assert!(right > seeds / 2 && refused > 3, "{right} {refused}");
}
