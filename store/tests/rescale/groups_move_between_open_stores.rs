//! Key groups move between three stores that are in use, in chunks that are repeated, lost and begun
//! anew, and all they have moves with them.
//!
//! What this catches: entries lost, doubled or left behind; chunks that bring back what was changed
//! since; writes to a group that moves; checkpoints that would not have what they say; chunks that are
//! too large; memory not given back; a mover that looks at other groups.

use std::sync::Arc;

use alluvium::moving::{KeyGroup, Standing};
use alluvium::time::nanos;
use alluvium::{ErrorKind, Heap, MIB, Result, Time};

use crate::job::{GROUPS, builder};
use crate::moving_job::{CHUNK, Job, WORKERS, Worker, device, group_of, layouts, of_lists, open};

#[test]
fn groups_move_whatever_happens_on_the_way() {
    for (name, layout) in layouts() {
        for seed in 0..2 {
            let when = format!("{name}, seed {seed}");
            let mut job = Job::new(&layout, seed << 32);
            let home = job.owners.clone();
            for round in 0..3 {
                job.run(400);
                job.check(&format!("{when}, round {round}"));
            }
            assert!(job.moved > 10, "{when}: {} moves", job.moved);
            let stats = job.workers[0].store.stats().unwrap();
            let cold = stats.states.iter().any(|state| state.table.cold_reads > 0);
            assert_eq!(cold, name != "heap", "{when}");
            let moved: u64 = stats.states.iter().map(|state| state.table.runs.moved).sum();
            assert_eq!(moved > 0, name == "hybrid log, runs", "{when}: {moved}");
            for (group, to) in (0..).zip(home) {
                job.bring(KeyGroup(group), to);
            }
            job.check(&when);
            job.workers.iter().for_each(|worker| worker.store.checkpoint(1).map(drop).unwrap());
        }
    }
}

/// Groups that were away and back are the same in a canonical file, and in a checkpoint.
#[test]
fn a_group_moved_away_and_back_is_intact() {
    for (name, layout) in layouts() {
        let mut job = Job::new(&layout, 5);
        (0..20_000).for_each(|_| job.write());
        let export = |job: &Job| -> Vec<Vec<u8>> {
            let file = |worker: &Worker| {
                let mut file = Vec::new();
                worker.store.export(&mut file).unwrap();
                file
            };
            job.workers.iter().map(file).collect()
        };
        let (before, home) = (export(&job), job.owners.clone());
        for group in 0..GROUPS {
            for by in 1..=WORKERS as usize {
                job.bring(KeyGroup(group), (home[usize::from(group)] + by) % WORKERS as usize);
            }
        }
        assert!(export(&job) == before, "{name}: the files differ");
        // A store that owns all takes them over from the others' checkpoints.
        let devices: Vec<_> = (0..WORKERS).map(device).collect();
        let mut all = Vec::new();
        for (at, device) in (0..WORKERS).zip(&devices) {
            let worker = open(&layout, at, WORKERS, device).unwrap();
            worker.store.import(&before[at as usize][..]).unwrap();
            worker.store.checkpoint(3).unwrap();
            let mut file = Vec::new();
            worker.store.export(&mut file).unwrap();
            assert!(file == before[at as usize]);
            drop(worker);
            let again = open(&layout, at, WORKERS, device).unwrap();
            let mut file = Vec::new();
            again.store.export(&mut file).unwrap();
            assert!(file == before[at as usize], "{name}: a restart");
            all.push(file);
        }
        let sources = devices.iter().map(|d| alluvium::moving::Source::device(Arc::new(d.clone())));
        let store = builder(&layout)
            .memory(16 * MIB)
            .device(Arc::new(device(77)))
            .restore_from(sources)
            .open()
            .unwrap();
        let mover = store.mover("unit").unwrap();
        let map = store.map::<u64, Vec<u8>>("map").moved_by(&mover).open().unwrap();
        let _counts = store.count::<u64>("counts").moved_by(&mover).open().unwrap();
        let timers = store.timers_moved_by::<u64, u8>(&mover, "timers").unwrap();
        let lists = store.list::<u64, Vec<u8>>("lists").layout(of_lists(&layout)).moved_by(&mover);
        let mut lists = lists.open().unwrap();
        let times = store.time_map::<u64, Vec<u8>>("times").layout(of_lists(&layout));
        let _times = times.moved_by(&mover).open(nanos(10)).unwrap();
        for (key, list) in &job.model.lists {
            assert_eq!(lists.to_vec(key).unwrap(), *list, "{name}");
        }
        assert_eq!(map.len().unwrap(), job.model.map.len() as u64, "{name}");
        assert_eq!(timers.len(), job.model.timers.len() as u64, "{name}");
    }
}

/// A store that is lost with half of a group takes nothing along: the group is sent again, to another.
#[test]
fn a_store_that_is_lost_half_way_takes_nothing_along() {
    for (name, layout) in layouts() {
        let mut job = Job::new(&layout, 9);
        (0..20_000).for_each(|_| job.write());
        let group = KeyGroup(0);
        let mut rest = job.workers[0].mover.begin(group).unwrap();
        for _ in 0..3 {
            let chunk = job.workers[0].mover.next_chunk(&mut rest, CHUNK).unwrap().unwrap();
            assert!(!job.workers[1].mover.install(&chunk).unwrap().1, "{name}: too few chunks");
        }
        let refused = job.workers[1].store.checkpoint(1).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InUse, "{refused}");
        let mut kept = Vec::new();
        job.workers[1].store.export(&mut kept).unwrap();
        job.workers[1] = open(&layout, 1, WORKERS, &device(100)).unwrap();
        // What it had of its own comes from elsewhere; what it had of the group was not in it.
        assert_eq!(job.workers[1].store.import(&kept[..]).unwrap().passed_over, 0);
        assert_eq!(job.workers[0].mover.standing(group).unwrap(), Standing::Leaving);
        job.bring(group, 1);
        job.check(name);
    }
}

/// What is over while a group is on its way is not seen any more, at once and on both sides, and goes when the
/// group has arrived, also what has come of it.
#[test]
fn what_is_over_while_a_group_moves_is_dropped_when_it_has_arrived() {
    for (name, layout) in layouts() {
        let mut job = Job::new(&layout, 3);
        let group = KeyGroup(0);
        let at_home = |key: &u64| (group_of(*key) == group, group_of(*key).0);
        let keys = |is_moved: bool| (0..4000).filter(move |key| at_home(key).0 == is_moved);
        let Job { workers, owners, .. } = &mut job;
        let owner = |key: u64| owners[usize::from(group_of(key).0)];
        for (key, at) in (0..4000u64).flat_map(|key| [5, 15, 25].map(|at| (key, Time(at)))) {
            workers[owner(key)].times.insert(&key, at, vec![key as u8; 30]).unwrap();
        }
        let counts = [0, 1].map(|at| workers[at].times.len().unwrap());
        let moved = keys(true).count() as u64;
        let seen = |worker: &mut Worker, key: u64| {
            let mut seen = Vec::new();
            let visit = |at: Time, _: &Vec<u8>| {
                seen.push(at.0);
                Ok(())
            };
            worker.times.range(&key, Time::MIN..Time::MAX, visit).unwrap();
            seen
        };
        let mut rest = workers[0].mover.begin(group).unwrap();
        let chunk = workers[0].mover.next_chunk(&mut rest, CHUNK).unwrap().unwrap();
        workers[1].mover.install(&chunk).unwrap();
        for worker in &mut workers[..2] {
            assert!(worker.times.purge(Time(12), 1).unwrap(), "{name}");
            // Nothing goes back.
            assert!(worker.times.purge(Time(3), 1).unwrap(), "{name}");
        }
        for key in (0..4000).filter(|key| owner(*key) < 2) {
            assert_eq!(seen(&mut workers[owner(key)], key), [15, 25], "{name}: {key}");
        }
        while let Some(chunk) = workers[0].mover.next_chunk(&mut rest, CHUNK).unwrap() {
            workers[1].mover.install(&chunk).unwrap();
        }
        while !workers[0].mover.forget(group, 64).unwrap() {}
        for key in keys(true) {
            assert_eq!(seen(&mut workers[1], key), [15, 25], "{name}: {key}");
        }
        let lens = |workers: &[Worker]| [0, 1].map(|at: usize| workers[at].times.len().unwrap());
        assert_eq!(lens(workers)[1], counts[1] + 3 * moved, "{name}: all is there");
        for worker in &mut workers[..2] {
            while !worker.times.purge(Time(2), 1000).unwrap() {}
        }
        assert_eq!(lens(workers)[1], counts[1] / 3 * 2 + 2 * moved, "{name}: it is gone");
        for key in (0..4000).filter(|key| owner(*key) < 2) {
            let at = if group_of(key) == group { 1 } else { owner(key) };
            assert_eq!(seen(&mut workers[at], key), [15, 25], "{name}: {key}");
        }
        // Then it is as it was: what is late is there until the next time.
        let key = keys(true).next().unwrap();
        workers[1].times.insert(&key, Time(5), vec![1]).unwrap();
        assert_eq!(seen(&mut workers[1], key), [5, 15, 25], "{name}");
    }
}

/// Timers of a group under way do not fire, on neither side.
#[test]
fn timers_of_a_group_under_way_wait() {
    let mut job = Job::new(&Heap::new().into(), 1);
    let group = KeyGroup(0);
    let keys: Vec<u64> = (0..).filter(|key| group_of(*key) == group).take(200).collect();
    for key in &keys {
        job.workers[0].timers.set_in(*key, Time(*key as i64), 0).unwrap();
    }
    let mut rest = job.workers[0].mover.begin(group).unwrap();
    assert_eq!(job.workers[0].timers.next_time(), None);
    let mut chunks = 0;
    while let Some(chunk) = job.workers[0].mover.next_chunk(&mut rest, CHUNK).unwrap() {
        assert_eq!(job.workers[1].timers.pop_due_in(Time::MAX), None);
        job.workers[1].mover.install(&chunk).unwrap();
        chunks += 1;
    }
    assert!(chunks > 1, "{chunks} chunks");
    assert_eq!(job.workers[0].timers.pop_due_in(Time::MAX), None);
    while !job.workers[0].mover.forget(group, 7).unwrap() {
        assert_eq!(job.workers[0].timers.pop_due_in(Time::MAX), None);
    }
    assert!(job.workers[0].timers.is_empty());
    for key in &keys {
        assert_eq!(job.workers[1].timers.pop_due_in(Time::MAX), Some((Time(*key as i64), *key, 0)));
    }
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    let job = Job::new(&Heap::new().into(), 1);
    let (here, there) = (&job.workers[0], &job.workers[1]);
    let kind = |result: Result<()>, words: &str| {
        let error = result.unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
        error.kind()
    };
    let group = KeyGroup(0);
    let refused = [
        (there.mover.begin(group).map(drop), "is not here"),
        (here.mover.keep(group), "is not being given away"),
        (here.mover.forget(group, 1).map(drop), "not being given away"),
    ];
    for (result, words) in refused {
        assert_eq!(kind(result, words), ErrorKind::Mismatch);
    }
    let unknown = here.mover.begin(KeyGroup(GROUPS)).map(drop);
    assert_eq!(kind(unknown, "no key group 12 of 12"), ErrorKind::Config);
    assert_eq!(kind(here.store.mover("unit").map(drop), "already"), ErrorKind::InUse);
    let other = there.store.map::<u64, u64>("late").moved_by(&here.mover).open().map(drop);
    assert_eq!(kind(other, "of another store"), ErrorKind::Config);

    let mut rest = here.mover.begin(group).unwrap();
    let late = here.store.map::<u64, u64>("late").moved_by(&here.mover).open().map(drop);
    assert_eq!(kind(late, "key group 0"), ErrorKind::Unsupported);
    let chunk = here.mover.next_chunk(&mut rest, CHUNK).unwrap().unwrap();
    let mut damaged = chunk.clone();
    damaged[20] ^= 1;
    assert_eq!(kind(there.mover.install(&damaged).map(drop), "damaged"), ErrorKind::Corrupt);
    let twice = here.mover.install(&chunk).map(drop);
    assert_eq!(kind(twice, "entries of it are left here"), ErrorKind::InUse);
    here.mover.keep(group).unwrap();
    let twice = here.mover.install(&chunk).map(drop);
    assert_eq!(kind(twice, "is here already"), ErrorKind::Mismatch);
    let late = here.mover.next_chunk(&mut rest, CHUNK).map(drop);
    assert_eq!(kind(late, "no longer being given away"), ErrorKind::Mismatch);
    // A unit of other states.
    let store = builder(&Heap::new().into()).owned_groups(4..8).open().unwrap();
    let mover = store.mover("unit").unwrap();
    let _map = store.map::<u64, u64>("map").moved_by(&mover).open().unwrap();
    assert_eq!(kind(mover.install(&chunk).map(drop), "other states"), ErrorKind::Mismatch);
    // A layout in no order.
    let heap = store.map::<u64, u64>("heap").layout(Heap::volatile()).moved_by(&mover).open();
    assert_eq!(kind(heap.map(drop), "key groups cannot move"), ErrorKind::Unsupported);
    store.map::<u64, u64>("plain").layout(Heap::new()).moved_by(&mover).open().unwrap();
}
