//! One store with a state of every kind takes checkpoints in steps, gives some up, retains three
//! and is opened again, on a device that crashes at any of its steps, or that lies.
//!
//! What this catches: a checkpoint of two moments, one that is listed before all of it is durable,
//! a file removed that a retained checkpoint or the one in commit names, a sealed checkpoint that
//! is not there after a crash, a number or a file given twice after one; damage that is served.
//!
//! Every other history lives through errors of its device: reads, writes, syncs and changes of names
//! fail by chance for a while, or the device is full. Each call that fails is made again.
//!
//! Of every third one the helper works on a thread of its own, which takes turns with the owner's: its
//! jobs begin late and stop at any step of the device, while the owner goes on. Of the others jobs are
//! done where the owner drives them.
//!
//! A *crash point* is a history (by its seed), one of its steps, a class of crash and the seed of what
//! that class leaves to chance. A step is a write, sync, create, rename, remove or directory sync.
//! The classes, of the changes that no completed sync covers: none of them is left; all that ended;
//! all up to some moment (two seeds); any of them (three seeds); any sector of any (three seeds). And
//! of one write among all, also of those that a sync does cover: it is lost, torn, misdirected, or
//! has a wrong bit; then what is opened is right or refused, where else it is right.
//!
//! The same image is opened once for the same expectation: *images* are those that differ.
//! Each that is opened is compared whole. A share, by chance, is also opened a second time (an
//! eighth), at each of the other checkpoints that are there (a quarter each), used further until the
//! next checkpoint (a 16th), and crashed again at the steps of its recovery (a 32nd, if that confirms
//! a checkpoint), where a quarter of the classes is taken.
//!
//! By default few points. The long run, of a million:
//!
//! ```text
//! ALLUVIUM_LONG=1 cargo test --release -p alluvium --test crashes at_any_step -- --nocapture
//! ```
//!
//! `ALLUVIUM_CRASH_POINTS` sets another number, `ALLUVIUM_SEED` the first history.

mod budgets;
mod children;
#[path = "../behaviour/common/clock.rs"]
mod clock;
mod damage;
#[path = "../behaviour/common/dice.rs"]
mod dice;
mod everything;
mod explore;
mod failed_syncs;
mod failing;
mod forked_child_unsafe;
mod history;
mod job;
mod joined;
mod kills;
mod nth;
mod shim;
mod stalls;
// What makes the fixtures is not used here.
#[allow(dead_code)]
#[path = "../golden/states.rs"]
mod states;
mod trouble;
#[path = "../behaviour/common/watchdog.rs"]
mod watchdog;

use std::sync::{Arc, Mutex};
use std::time::Instant;

use alluvium::io::{CrashPolicy, Device, Faults, Simulated};
use alluvium::{Error, ErrorKind, Result, StoreBuilder};

use crate::dice::{Dice, times};
use crate::everything::{Everything, Model, builder};
use crate::explore::Explorer;
use crate::history::{History, last_listed, lock};

fn long() -> bool {
    std::env::var_os("ALLUVIUM_LONG").is_some()
}

/// Opens the store, or a checkpoint of it by its number.
fn open(device: &Simulated, restore: Option<u64>) -> Result<Everything> {
    Everything::open(restoring(builder(device), restore))
}

fn restoring(builder: StoreBuilder, restore: Option<u64>) -> StoreBuilder {
    match restore {
        Some(number) => builder.restore(number),
        None => builder,
    }
}

/// Explores until there are so many points; says so now and then if there are many.
#[test]
fn a_crash_at_any_step_leaves_whole_checkpoints() {
    let most = times("ALLUVIUM_CRASH_POINTS", if long() { 1_000_000 } else { 500 });
    let first = times("ALLUVIUM_SEED", 1);
    let mut explorer = Explorer::of_share(if long() { 1 } else { 240 });
    let (start, mut told) = (Instant::now(), 0);
    // This history copies records to an old generation: it comes first, so that few have all.
    let copying = first + 45;
    for (nth, seed) in std::iter::once(copying).chain(first..).enumerate() {
        explorer.explore(seed);
        let points = explorer.points();
        if points / 20_000 > told || points >= most {
            told = points / 20_000;
            println!("{:.0} s, up to seed {seed}: {explorer}", start.elapsed().as_secs_f64());
        }
        // Every other one lives through errors, every third has helpers that are stopped midway.
        let is_enough = nth > 2 && explorer.has_all();
        if points >= most && (is_enough || nth > 10) {
            break;
        }
    }
    assert!(explorer.has_all(), "{explorer}");
}

/// That exploring shows what a crash leaves: stopped at a step, the device leaves the same.
#[test]
fn a_device_that_stops_at_a_step_leaves_what_it_has_shown() {
    for seed in if long() { 1..20 } else { 1..3 } {
        let policies = |at: u64| {
            [
                CrashPolicy::Nothing,
                CrashPolicy::Everything,
                CrashPolicy::Prefix { seed: at },
                CrashPolicy::Subset { seed: at },
                CrashPolicy::Torn { seed: at },
            ]
        };
        let (device, shown) = (Simulated::new(seed, Faults::late(2)), Arc::default());
        let into: Arc<Mutex<Vec<Vec<u64>>>> = Arc::clone(&shown);
        let share = if long() { 1 } else { 149 };
        device.watch(move |moment| {
            let at = moment.step();
            let digest = |policy| moment.crash(policy).digest();
            let is_looked_at = at % share == seed % share;
            lock(&into).push(if is_looked_at { policies(at).map(digest).to_vec() } else { vec![] });
        });
        History::of(seed).play(&device, seed).unwrap();
        let shown = std::mem::take(&mut *lock(&shown));
        assert_eq!(shown.len() as u64, device.steps());
        for at in (seed % share..device.steps()).step_by(share as usize) {
            let device = Simulated::new(seed, Faults::late(2));
            device.fail_after(at);
            let ended = History::of(seed).play(&device, seed);
            assert!(ended.is_err() || device.has_crashed(), "step {at}");
            let left = policies(at).map(|policy| device.crash(policy).digest());
            assert_eq!(left.as_slice(), shown[at as usize], "seed {seed}, step {at}");
        }
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
        let mut history = History::on_lies();
        let when = format!("seed {seed}");
        if let Err(error) = history.play(&device, seed) {
            assert!(is_damage(&error), "{when}: {error:?}");
            refused += 1;
        }
        device.set_faults(Faults::none());
        let known = lock(&history.known()).clone();
        let listed = known.promise.listed.iter().map(|kept| kept.number);
        for restore in std::iter::once(None).chain(listed.map(Some)) {
            let copy = device.crash(CrashPolicy::Everything);
            let mut all = match open(&copy, restore) {
                Ok(all) => all,
                Err(error) => {
                    assert!(is_damage(&error), "{when}: {error:?}");
                    refused += 1;
                    continue;
                }
            };
            let newest = restore.or(last_listed(&copy));
            let model =
                known.model_of(newest.map(|number| known.promise.find(number).expect(&when)));
            let errors = all.compare(&model, &format!("{when}, restored {restore:?}"));
            assert!(errors.iter().all(is_damage), "{when}: {errors:?}");
            if errors.is_empty() { right += 1 } else { refused += 1 }
        }
        assert!(!device.list().unwrap().is_empty());
    }
    println!("{seeds} histories: {right} times right, {refused} refused");
    assert!(right > seeds / 2 && refused > 3, "{right} {refused}");
}
