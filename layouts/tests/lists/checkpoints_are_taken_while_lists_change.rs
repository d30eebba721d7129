//! A checkpoint of lists is of its barrier, whatever happens between its steps.
//!
//! What this catches: elements in it that came after the barrier, or elements missing that were
//! cleared, moved or purged after it; files of abandoned attempts left over; memory not given back;
//! a barrier that grows with the keys; a full disk or a crash that costs more than the checkpoint.

use std::collections::BTreeMap;
use std::sync::Arc;

use alluvium_layouts::{AppendLog, CheckpointOutcome, Heap, Lists, ListsLayout, Upkeep};
use alluvium_pagestore::io::{CrashPolicy, Device, Faults, Simulated};
use alluvium_pagestore::{ErrorKind, Result, Time};

use crate::common::{Dice, Ground, Model, folded, folded_model, read};

/// Layouts, and changes that give their checkpoints some steps.
trait Layout: ListsLayout<u64, u64> {
    const CHANGES: usize;
    fn new() -> Self;
    /// One that packs nothing where there are few buckets.
    fn plain() -> Self {
        Self::new()
    }
}

impl Layout for AppendLog {
    const CHANGES: usize = 600;
    fn new() -> Self {
        AppendLog::new().pack_all()
    }
    fn plain() -> Self {
        AppendLog::new().packs_slices(false)
    }
}

impl Layout for Heap {
    const CHANGES: usize = 20_000;
    fn new() -> Self {
        Heap::new()
    }
}

fn ground(seed: u64) -> (Ground, Simulated) {
    let device = Simulated::new(seed, Faults::late(3));
    (Ground::new(Some(Arc::new(device.clone())), 2 << 20, false), device)
}

/// One seeded change of both.
fn change(
    lists: &mut impl Lists<u64, u64>,
    model: &mut Model<u64, u64>,
    dice: &mut Dice,
) -> Result<()> {
    let (time, key, n) = (Time(1 + dice.below(4) as i64), dice.below(80), dice.next());
    match dice.below(20) {
        0..=14 => {
            lists.append(time, &key, n)?;
            model.entry((time, key)).or_default().push(n);
        }
        15..=16 => {
            lists.clear_key(time, &key)?;
            model.remove(&(time, key));
        }
        17..=18 => {
            let to = Time(5);
            lists.relocate(time, to, &key)?;
            if let Some(mut moved) = model.remove(&(time, key)) {
                let later = model.entry((to, key)).or_default();
                moved.append(later);
                *later = moved;
            }
        }
        _ => {
            lists.reclaim(1 << 20)?;
        }
    }
    Ok(())
}

fn assert_holds(lists: &mut impl Lists<u64, u64>, model: &Model<u64, u64>, when: &str) {
    let all = Time::MIN..Time::MAX;
    let found = folded(lists, all.clone(), 100).unwrap();
    assert_eq!(found, folded_model(model, &all), "{when}");
    for ((time, key), wanted) in model {
        assert_eq!(read(lists, *time, key).unwrap(), *wanted, "{when}: {time:?} {key}");
    }
}

/// Lists with runs, notes, imports and something in memory.
fn filled<L: Layout>(ground: &mut Ground, seed: u64) -> (L::Lists, Model<u64, u64>, Dice) {
    let (mut lists, _) = ground.open(&L::new()).unwrap();
    let (mut model, mut dice) = (BTreeMap::new(), Dice(seed));
    for _ in 0..L::CHANGES {
        change(&mut lists, &mut model, &mut dice).unwrap();
    }
    (lists, model, dice)
}

/// Steps with changes between them until it is taken.
fn steps_of<L: Layout>(ground: &mut Ground, seed: u64) -> usize {
    let (mut lists, mut model, mut dice) = filled::<L>(ground, seed);
    let mut taken = ground.begin(&mut lists).unwrap();
    let mut steps = 0;
    while !ground.advance(&mut lists, &mut taken).unwrap() {
        change(&mut lists, &mut model, &mut dice).unwrap();
        steps += 1;
    }
    steps
}

#[test]
fn buckets_that_are_purged_between_the_steps_are_in_the_image() {
    purged_between_the_steps::<AppendLog>();
    purged_between_the_steps::<Heap>();
}

fn purged_between_the_steps<L: Layout>() {
    for seed in 0..3 {
        let steps = steps_of::<L>(&mut ground(seed).0, seed);
        assert!(steps >= 4, "{steps}");
        for purged_at in 0..=steps {
            let (mut ground, _) = ground(seed);
            let (mut lists, mut model, mut dice) = filled::<L>(&mut ground, seed);
            let mut taken = ground.begin(&mut lists).unwrap();
            let then = model.clone();
            for step in 0.. {
                if step == purged_at {
                    lists.purge(Time(4), 1000).unwrap();
                    model.retain(|(time, _), _| *time >= Time(4));
                }
                if ground.advance(&mut lists, &mut taken).unwrap() {
                    break;
                }
                change(&mut lists, &mut model, &mut dice).unwrap();
            }
            ground.decide(&mut lists, taken, CheckpointOutcome::Committed).unwrap();
            let when = format!("seed {seed}, purged at step {purged_at}");
            assert_holds(&mut lists, &model, &when);
            drop(lists);
            let (mut lists, account) = ground.open(&L::new()).unwrap();
            assert_holds(&mut lists, &then, &when);
            drop(lists);
            assert_eq!(account.used(), 0, "{when}");
        }
    }
}

#[test]
fn one_that_is_abandoned_at_any_step_leaves_nothing() {
    abandoned_at_any_step::<AppendLog>();
    abandoned_at_any_step::<Heap>();
}

fn abandoned_at_any_step<L: Layout>() {
    let steps = steps_of::<L>(&mut ground(7).0, 7);
    for abandoned_at in 0..=steps {
        let when = format!("abandoned at step {abandoned_at}");
        let (mut ground, _) = ground(7);
        let (mut lists, mut model, mut dice) = filled::<L>(&mut ground, 7);
        let mut taken = ground.begin(&mut lists).unwrap();
        for _ in 0..abandoned_at {
            let done = ground.advance(&mut lists, &mut taken).unwrap();
            assert!(!done, "{when}");
            change(&mut lists, &mut model, &mut dice).unwrap();
        }
        ground.decide(&mut lists, taken, CheckpointOutcome::Abandoned).unwrap();
        assert_holds(&mut lists, &model, &when);
        // The next one names all files that are there.
        ground.checkpoint(&mut lists, CheckpointOutcome::Committed).unwrap();
        for _ in 0..200 {
            lists.tick(10).unwrap();
        }
        assert!(ground.names_just(&ground.segment_files()), "{when}");
        drop(lists);
        let (mut lists, _) = ground.open(&L::new()).unwrap();
        assert_holds(&mut lists, &model, &when);
    }
}

#[test]
fn a_crash_at_any_step_leaves_the_one_before() {
    crashed_at_any_step::<AppendLog>();
    crashed_at_any_step::<Heap>();
}

fn crashed_at_any_step<L: Layout>() {
    let steps = steps_of::<L>(&mut ground(9).0, 9);
    for crashed_at in 0..=steps {
        for policy in [CrashPolicy::Nothing, CrashPolicy::Subset { seed: crashed_at as u64 }] {
            let (mut ground, device) = ground(9);
            let (mut lists, mut model, mut dice) = filled::<L>(&mut ground, 9);
            ground.checkpoint(&mut lists, CheckpointOutcome::Committed).unwrap();
            device.sync_directory().unwrap();
            let then = model.clone();
            for _ in 0..50 {
                change(&mut lists, &mut model, &mut dice).unwrap();
            }
            let mut taken = ground.begin(&mut lists).unwrap();
            for _ in 0..crashed_at {
                if ground.advance(&mut lists, &mut taken).unwrap() {
                    break;
                }
                change(&mut lists, &mut model, &mut dice).unwrap();
            }
            drop((lists, taken));
            let crashed: Arc<dyn Device> = Arc::new(device.crash(policy));
            let mut ground = ground.on(crashed);
            let (mut lists, _) = ground.open(&L::new()).unwrap();
            assert_holds(&mut lists, &then, &format!("{policy:?} at step {crashed_at}"));
        }
    }
}

#[test]
fn a_full_disk_costs_the_checkpoint_only() {
    full_disk::<AppendLog>();
    full_disk::<Heap>();
}

fn full_disk<L: Layout>() {
    for full_at in 0..4 {
        let (mut ground, device) = ground(11);
        let (mut lists, mut model, mut dice) = filled::<L>(&mut ground, 11);
        let mut taken = ground.begin(&mut lists).unwrap();
        for _ in 0..full_at {
            assert!(!ground.advance(&mut lists, &mut taken).unwrap());
        }
        device.set_capacity_bytes(Some(device.used_bytes()));
        let error = loop {
            match ground.advance(&mut lists, &mut taken) {
                Ok(done) => assert!(!done, "full at step {full_at}"),
                Err(error) => break error,
            }
        };
        device.set_capacity_bytes(None);
        assert_eq!(error.kind(), ErrorKind::DiskFull, "full at step {full_at}: {error:?}");
        ground.decide(&mut lists, taken, CheckpointOutcome::Abandoned).unwrap();
        change(&mut lists, &mut model, &mut dice).unwrap();
        ground.checkpoint(&mut lists, CheckpointOutcome::Committed).unwrap();
        drop(lists);
        let (mut lists, _) = ground.open(&L::new()).unwrap();
        assert_holds(&mut lists, &model, &format!("full at step {full_at}"));
    }
}

#[test]
fn the_barrier_does_nothing_per_key() {
    let (few, many) = barrier::<AppendLog>();
    assert_eq!(few, many, "the helper writes what was frozen in one job");
    let (few, many) = barrier::<Heap>();
    assert!(few >= 1 && many > 50, "{few} calls, {many} calls");
}

/// Calls that take a checkpoint of few keys, and of many.
fn barrier<L: Layout>() -> (u64, u64) {
    let begin = |keys: u64| {
        let device = Simulated::new(1, Faults::none());
        let mut ground = Ground::new(Some(Arc::new(device.clone())), 256 << 20, false);
        let (mut lists, account) = ground.open::<u64, u64, _>(&L::plain()).unwrap();
        for key in 0..keys {
            lists.append(Time((key % 3) as i64), &key, key).unwrap();
        }
        let (before, stats, steps) = (account.used(), lists.stats(), device.steps());
        let mut taken = ground.begin(&mut lists).unwrap();
        let after = lists.stats();
        assert_eq!((after.codec_calls, after.flushed_bytes), (stats.codec_calls, 0));
        let done = (account.used() - before, device.steps() - steps);
        let mut calls = 0;
        while !ground.advance(&mut lists, &mut taken).unwrap() {
            calls += 1;
        }
        (done, calls)
    };
    let (few, many) = (begin(300), begin(100_000));
    assert_eq!(few.0, many.0, "bytes booked and steps of the device by the barrier");
    assert_eq!(few.0.1, 0, "no step of the device");
    (few.1, many.1)
}

/// Runs of several buckets are written together, to one file: it stays as long as one of them is there,
/// also if the first is purged before it is written and no checkpoint wants it any more.
#[test]
fn a_file_of_two_buckets_outlives_the_first_that_is_purged_while_it_is_written() {
    let (mut ground, _) = ground(7);
    let (mut lists, _) = ground.open::<u64, u64, _>(&AppendLog::new().pack_all()).unwrap();
    for n in 0..100 {
        lists.append(Time(1), &n, n).unwrap();
        lists.append(Time(2), &n, n + 1000).unwrap();
    }
    let mut sealing = ground.begin(&mut lists).unwrap();
    assert!(!ground.advance(&mut lists, &mut sealing).unwrap(), "both are being written");
    ground.decide(&mut lists, sealing, CheckpointOutcome::Abandoned).unwrap();
    lists.purge(Time(2), usize::MAX).unwrap();
    ground.checkpoint(&mut lists, CheckpointOutcome::Committed).unwrap();
    drop(lists);
    let (mut lists, _) = ground.open::<u64, u64, _>(&AppendLog::new().pack_all()).unwrap();
    let model: Model<u64, u64> = (0..100).map(|n| ((Time(2), n), vec![n + 1000])).collect();
    let all = Time::MIN..Time::MAX;
    assert_eq!(folded(&mut lists, all.clone(), 10).unwrap(), folded_model(&model, &all));
}
