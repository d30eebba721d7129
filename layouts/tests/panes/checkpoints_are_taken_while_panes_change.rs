//! A checkpoint of window segments is of its barrier, whatever happens between its steps.
//!
//! What this catches: accumulators in it as they were later, twice, or not at all, because they
//! changed, were removed, written as a run or purged while it was taken; files of abandoned
//! attempts left over; memory not given back; a barrier that grows with the keys; a full disk or a
//! crash that costs more than the checkpoint.

use std::sync::Arc;
use std::time::Duration;

use alluvium_layouts::{CheckpointOutcome, Panes, SegmentPanes, Upkeep, WindowSegments};
use alluvium_pagestore::io::{CrashPolicy, Device, Faults, Simulated};
use alluvium_pagestore::{ErrorKind, KIB, MIB, Result, StateImage, Time};

use super::common::{Accumulator, Items, Model, Place, Random, fold, put};

fn layout() -> WindowSegments {
    WindowSegments::new().image(8 * KIB).runs_max(3)
}

/// The same, of which small slices share runs.
fn packing() -> WindowSegments {
    layout().pack_all()
}

type Panes_ = SegmentPanes<u64, Items>;

/// One seeded change of both.
fn change(panes: &mut Panes_, model: &mut Model, random: &mut Random, item: u32) -> Result<()> {
    let (slice, key) = (random.below(5) as i64, random.below(300));
    match random.below(100) {
        0..=11 => {
            panes.remove(Time(slice), &key)?;
            model.0.remove(&(slice, key));
        }
        12 => {
            panes.reclaim(8 * KIB)?;
        }
        13 => {
            panes.tick(2)?;
        }
        _ => {
            put::<Items>(panes, slice, key, item)?;
            model.update(slice, key, item);
        }
    }
    Ok(())
}

/// Slices with runs, cuts, something in memory, and something on its way to storage.
fn filled(
    (place, layout): (&mut Place, &WindowSegments),
    seed: u64,
    changes: u32,
) -> (Panes_, Model, Random) {
    let (mut panes, mut model) = (place.open::<Items, _>(layout), Model::default());
    let mut random = Random(seed << 32);
    for item in 0..changes {
        change(&mut panes, &mut model, &mut random, item).unwrap();
    }
    (panes, model, random)
}

fn assert_holds(panes: &mut Panes_, model: &Model, when: &str) {
    let found = fold::<Items>(panes, 0..9, 100).unwrap();
    assert_eq!(found, model.fold::<Items>(0..9), "{when}");
    for slice in 0..6 {
        for key in 0..300 {
            let found = panes.get(Time(slice), &key).unwrap();
            assert_eq!(found, model.get::<Items>(slice, key), "{when}: {slice} {key}");
        }
    }
}

/// Takes one with `between` called before each step; gives the image and the number of steps.
fn take(
    place: &mut Place,
    panes: &mut Panes_,
    mut between: impl FnMut(&mut Panes_, usize),
) -> (StateImage, usize) {
    assert!(place.begin::<Items>(panes).unwrap().is_none());
    for step in 0..100_000 {
        between(panes, step);
        if let Some(image) = place.advance::<Items>(panes).unwrap() {
            return (image, step);
        }
    }
    panic!("a checkpoint without an end");
}

#[test]
fn changes_between_its_steps_are_not_in_it() {
    let plain = [(1, 8 * MIB), (2, 8 * MIB), (3, 320 * KIB), (4, 256 * KIB)];
    let plain = plain.map(|(seed, memory)| (seed, memory, layout()));
    let packing = [(5, 4 * MIB), (6, 2 * MIB)].map(|(seed, memory)| (seed, memory, packing()));
    for (seed, memory, layout) in plain.into_iter().chain(packing) {
        let (mut place, _) = Place::simulated(memory, seed);
        let (mut panes, mut model, mut random) = filled((&mut place, &layout), seed, 5000);
        for round in 0..6 {
            let then = model.clone();
            let (image, steps) = take(&mut place, &mut panes, |panes, step| {
                for n in 0..20 {
                    let item = 10_000 + round * 1000 + 20 * step as u32 + n;
                    change(panes, &mut model, &mut random, item).unwrap();
                }
            });
            assert!(steps >= 4, "{steps} steps");
            assert!(place.account.used() <= memory, "{:?}", place.account);
            place.commit::<Items>(&mut panes, image);
            let when = format!("seed {seed}, round {round}");
            assert_holds(&mut panes, &model, &when);
            if round % 2 == 1 {
                drop(panes);
                assert_eq!(place.account.used(), 0, "{when}");
                panes = place.open::<Items, _>(&layout);
                assert_holds(&mut panes, &then, &when);
                model = then;
            }
        }
    }
}

#[test]
fn slices_that_are_purged_between_its_steps_are_in_it() {
    purged_between_its_steps(&layout());
    purged_between_its_steps(&packing());
}

fn purged_between_its_steps(layout: &WindowSegments) {
    let steps = {
        let (mut place, _) = Place::simulated(2 * MIB, 5);
        let (mut panes, ..) = filled((&mut place, layout), 5, 2000);
        take(&mut place, &mut panes, |_, _| ()).1
    };
    for purged_at in 0..=steps {
        let when = format!("purged at step {purged_at} of {steps}");
        let (mut place, _) = Place::simulated(2 * MIB, 5);
        let (mut panes, mut model, mut random) = filled((&mut place, layout), 5, 2000);
        let then = model.clone();
        let (image, _) = take(&mut place, &mut panes, |panes, step| {
            if step == purged_at {
                let before = 1 + (purged_at % 5) as i64;
                while !panes.purge(Time(before), 50).unwrap() {}
                model.purge(before);
            }
            change(panes, &mut model, &mut random, 70_000 + step as u32).unwrap();
        });
        place.commit::<Items>(&mut panes, image);
        assert_holds(&mut panes, &model, &when);
        drop(panes);
        let mut panes = place.open::<Items, _>(layout);
        assert_holds(&mut panes, &then, &when);
        drop(panes);
        assert_eq!(place.account.used(), 0, "{when}");
    }
}

#[test]
fn one_that_is_abandoned_at_any_step_leaves_nothing() {
    for abandoned_at in 0..16 {
        let when = format!("abandoned at step {abandoned_at}");
        let (mut place, _) = Place::simulated(2 * MIB, 6);
        let (mut panes, mut model, mut random) = filled((&mut place, &layout()), 6, 2000);
        assert!(place.begin::<Items>(&mut panes).unwrap().is_none());
        for step in 0..abandoned_at {
            change(&mut panes, &mut model, &mut random, 80_000 + step).unwrap();
            if place.advance::<Items>(&mut panes).unwrap().is_some() {
                break;
            }
        }
        panes.checkpointed(CheckpointOutcome::Abandoned);
        assert_holds(&mut panes, &model, &when);
        // Runs that are made one while a checkpoint names them stay until the next one.
        let is_all = (0..8).any(|_| {
            let image = place.checkpoint::<Items>(&mut panes).unwrap();
            (0..100).any(|_| {
                panes.tick(64).unwrap();
                std::thread::sleep(Duration::from_millis(1));
                place.segment_files().len() == image.segments().count()
            })
        });
        assert!(is_all, "{when}: files that no checkpoint names");
        drop(panes);
        assert_eq!(place.account.used(), 0, "{when}");
        let mut panes = place.open::<Items, _>(&layout());
        assert_holds(&mut panes, &model, &when);
    }
}

#[test]
fn a_crash_or_a_full_disk_at_any_step_leaves_the_one_before() {
    a_crash_or_a_full_disk(&layout());
    a_crash_or_a_full_disk(&packing());
}

fn a_crash_or_a_full_disk(layout: &WindowSegments) {
    for at in 0..16 {
        let (mut place, device) = Place::simulated(2 * MIB, 7);
        let (mut panes, mut model, mut random) = filled((&mut place, layout), 7, 2000);
        place.checkpoint::<Items>(&mut panes).unwrap();
        device.sync_directory().unwrap();
        let then = model.clone();
        for item in 0..100 {
            put::<Items>(&mut panes, 2, item % 50, 90_000).unwrap();
            model.update(2, item % 50, 90_000);
        }
        assert!(place.begin::<Items>(&mut panes).unwrap().is_none());
        let mut taken = None;
        for step in 0..at {
            change(&mut panes, &mut model, &mut random, 95_000 + step).unwrap();
            taken = place.advance::<Items>(&mut panes).unwrap();
            if taken.is_some() {
                break;
            }
        }
        let when = format!("at step {at}");
        let crashed = device.crash(CrashPolicy::Subset { seed: u64::from(at) });
        device.set_capacity_bytes(Some(device.used_bytes()));
        while taken.is_none() {
            match place.advance::<Items>(&mut panes) {
                Ok(image) => taken = image,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::DiskFull, "{when}: {error:?}");
                    break;
                }
            }
        }
        assert!(taken.is_none() || at > 4, "{when}: the disk was full");
        device.set_capacity_bytes(None);
        panes.checkpointed(CheckpointOutcome::Abandoned);
        assert_holds(&mut panes, &model, &when);
        let kept = place.checkpoint::<Items>(&mut panes).unwrap();
        assert!(kept.entries > 0);
        drop(panes);
        let mut panes = place.open::<Items, _>(layout);
        assert_holds(&mut panes, &model, &when);
        drop(panes);

        let (mut place, _) = Place::simulated(2 * MIB, 7);
        let (mut panes, ..) = filled((&mut place, layout), 7, 2000);
        place.checkpoint::<Items>(&mut panes).unwrap();
        drop(panes);
        place.device = Some(Arc::new(crashed) as Arc<dyn Device>);
        let mut panes = place.open::<Items, _>(layout);
        assert_holds(&mut panes, &then, &when);
    }
}

/// What the barrier does, in bytes booked and steps of the device; and the most that a step reads.
fn barrier<A: Accumulator>(keys: u64) -> (u64, u64) {
    let device = Simulated::new(1, Faults::none());
    let mut place = Place::in_memory(256 * MIB);
    place.device = Some(Arc::new(device.clone()));
    let mut panes = place.open::<A, _>(&layout());
    for key in 0..keys {
        put::<A>(&mut panes, (key % 3) as i64, key, 1).unwrap();
    }
    let (before, steps) = (place.account.used(), device.steps());
    assert!(place.begin::<A>(&mut panes).unwrap().is_none());
    assert_eq!(panes.stats().codec_calls, 0);
    let done = (place.account.used() - before, device.steps() - steps);
    let mut written = 0;
    while place.advance::<A>(&mut panes).unwrap().is_none() {
        let now = device.stats().bytes_written;
        assert!(now - written < 300 * KIB, "{} bytes in a step", now - written);
        written = now;
    }
    done
}

#[test]
fn the_barrier_does_nothing_per_key_and_a_step_is_bounded() {
    let (few, many) = (barrier::<(u64, u64)>(300), barrier::<(u64, u64)>(100_000));
    // The names of more files are all.
    assert!(many.0 - few.0 < KIB, "{} and {} bytes", few.0, many.0);
    assert_eq!((few.1, many.1), (0, 0), "no step of the device");
}
