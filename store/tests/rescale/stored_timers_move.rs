//! Timers on storage move with the key groups of their keys, between open stores and from checkpoints, and
//! fire in order where they are.
//!
//! What this catches: timers in another group than their keys; ones of a group under way that fire; ones that have come
//! and are missed because others were known to be the next.

use std::collections::BTreeSet;
use std::sync::Arc;

use alluvium::io::{Faults, Simulated};
use alluvium::moving::{KeyGroup, Mover, Source};
use alluvium::states::{Due, StoredTimers};
use alluvium::{AnyLayout, ErrorKind, Heap, HybridLog, KIB, KeyHash, MIB, Store, Time};

use crate::dice::Dice;
use crate::job::{GROUPS, builder, owned};
use crate::moving_job::group_of;

const WORKERS: usize = 3;

type Stored = StoredTimers<u64, u8>;

struct Worker {
    store: Store,
    mover: Mover,
    timers: Stored,
}

fn layouts() -> [(&'static str, AnyLayout); 3] {
    let log = HybridLog::new().page_records(8).queue_depth(4).segment(16 * KIB);
    let runs = log.clone().cold_entries(16).memory(MIB);
    [
        ("heap", Heap::new().into()),
        ("hybrid log", log.memory(256 * KIB).into()),
        ("hybrid log, runs", runs.into()),
    ]
}

fn open(layout: &AnyLayout, at: usize, few: bool) -> Worker {
    let device = Arc::new(crate::moving_job::device(at as u64));
    let builder = builder(layout).memory(2 * MIB).owned_groups(owned(at, WORKERS));
    let store = builder.device(device).open().unwrap();
    let mover = store.mover("unit").unwrap();
    let mut timers: Stored = store.stored_timers("t").moved_by(&mover).open().unwrap();
    if few {
        timers.keep_next_in(0);
    }
    Worker { store, mover, timers }
}

/// All that are due, in order.
fn due(timers: &mut Stored, watermark: i64) -> Vec<(Time, u64, u8)> {
    let mut all = Vec::new();
    loop {
        match timers.pop_due_in(Time(watermark)).unwrap() {
            Due::Timer(timer) => all.push(timer),
            Due::Searching => {}
            Due::None => return all,
        }
    }
}

#[test]
fn timers_fire_in_order_wherever_their_groups_are() {
    for (name, layout) in layouts() {
        for few in [true, false] {
            let mut workers: Vec<_> = (0..WORKERS).map(|at| open(&layout, at, few)).collect();
            let mut owners: Vec<_> = (0..GROUPS)
                .map(|group| (0..WORKERS).find(|at| owned(*at, WORKERS).contains(&group)).unwrap())
                .collect();
            let (mut model, mut dice, mut moved) = (BTreeSet::new(), Dice(5), 0);
            for step in 0..9_000 {
                let timer = (Time(dice.below(3000) as i64), dice.below(300), dice.below(3) as u8);
                let worker = &mut workers[owners[usize::from(group_of(timer.1).0)]];
                match dice.below(300) {
                    0..220 => {
                        let is_new = worker.timers.set_in(timer.1, timer.0, timer.2).unwrap();
                        assert_eq!(is_new, model.insert(timer), "{name}, step {step}");
                    }
                    220..280 => {
                        let known = model.range((timer.0, 0, 0)..).next().copied();
                        let timer = known.unwrap_or(timer);
                        let owner = owners[usize::from(group_of(timer.1).0)];
                        let timers = &mut workers[owner].timers;
                        let was_there = timers.cancel_in(timer.1, timer.0, timer.2).unwrap();
                        assert_eq!(was_there, model.remove(&timer), "{name}, step {step}");
                    }
                    280..290 => {
                        let watermark = dice.below(200) as i64;
                        let mut fired = Vec::new();
                        for worker in &mut workers {
                            let of_worker = due(&mut worker.timers, watermark);
                            assert!(of_worker.is_sorted(), "{name}, step {step}");
                            fired.extend(of_worker);
                        }
                        fired.sort_unstable();
                        let rest = model.split_off(&(Time(watermark), 0, 0));
                        assert!(fired.into_iter().eq(model), "{name}, step {step}");
                        model = rest;
                    }
                    _ => {
                        let group = dice.below(u64::from(GROUPS)) as u16;
                        let (from, to) = (owners[usize::from(group)], dice.below(3) as usize);
                        if from != to {
                            bring(&mut workers, KeyGroup(group), from, to, dice.below(4) == 0);
                            owners[usize::from(group)] = to;
                            moved += 1;
                        }
                    }
                }
            }
            assert!(moved > 50 && model.len() > 500, "{moved} moves, {} timers", model.len());
            let passes = workers.iter().map(|worker| worker.timers.stats().unwrap().passes);
            assert!(passes.sum::<u64>() > 50, "{name}");
            let mut rest: Vec<_> =
                workers.iter_mut().flat_map(|worker| due(&mut worker.timers, 3000)).collect();
            rest.sort_unstable();
            assert!(rest.into_iter().eq(model), "{name}");
            for worker in &workers {
                let memory = worker.store.stats().unwrap().memory;
                assert!(memory.peak <= memory.limit, "{name}: {memory:?}");
            }
        }
    }
}

/// Moves a group, in chunks; before that, if asked, it sets out and stays.
fn bring(workers: &mut [Worker], group: KeyGroup, from: usize, to: usize, stays_first: bool) {
    let is_of_it = |timer: &(Time, u64, u8)| group_of(timer.1) == group;
    if stays_first {
        drop(workers[from].mover.begin(group).unwrap());
        workers[from].mover.keep(group).unwrap();
    }
    let key = (0..).find(|key| group_of(*key) == group).unwrap();
    let mut rest = workers[from].mover.begin(group).unwrap();
    let refused = workers[from].timers.set_in(key, Time(1), 9).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InUse, "{refused}");
    let refused = workers[from].timers.cancel_in(key, Time(1), 9).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InUse, "{refused}");
    while let Some(chunk) = workers[from].mover.next_chunk(&mut rest, 512).unwrap() {
        for at in [from, to] {
            // Nothing of it may fire; and nothing is before this time, of the others.
            assert!(!due(&mut workers[at].timers, -1).iter().any(is_of_it));
            let first = workers[at].timers.pop_due_in(Time(-1)).unwrap();
            assert_eq!(first, Due::None);
        }
        workers[to].mover.install(&chunk).unwrap();
    }
    while !workers[from].mover.forget(group, 64).unwrap() {}
    let elsewhere = workers[from].timers.set_in(key, Time(1), 9).unwrap_err();
    assert_eq!(elsewhere.kind(), ErrorKind::Mismatch, "{elsewhere}");
}

/// Timers of a group under way do not fire, on neither side.
#[test]
fn timers_of_a_group_under_way_wait() {
    for (name, layout) in layouts() {
        let mut workers: Vec<_> = (0..2).map(|at| open(&layout, at, false)).collect();
        let group = KeyGroup(0);
        let keys: Vec<u64> = (0..).filter(|key| group_of(*key) == group).take(200).collect();
        let other = (0..).find(|key| group_of(*key) == KeyGroup(1)).unwrap();
        for (at, key) in (0..).zip(&keys) {
            workers[0].timers.set_in(*key, Time(at), 0).unwrap();
        }
        workers[0].timers.set_in(other, Time(500), 0).unwrap();
        let mut rest = workers[0].mover.begin(group).unwrap();
        assert_eq!(due(&mut workers[0].timers, 501), [(Time(500), other, 0)], "{name}");
        let mut chunks = 0;
        while let Some(chunk) = workers[0].mover.next_chunk(&mut rest, 1024).unwrap() {
            assert_eq!(due(&mut workers[1].timers, 501), [], "{name}");
            workers[1].mover.install(&chunk).unwrap();
            chunks += 1;
        }
        assert!(chunks > 1, "{chunks} chunks");
        assert_eq!(due(&mut workers[0].timers, 501), [], "{name}");
        while !workers[0].mover.forget(group, 7).unwrap() {
            assert_eq!(due(&mut workers[0].timers, 501), [], "{name}");
        }
        assert!(workers[0].timers.is_empty().unwrap());
        let expected: Vec<_> = (0..).map(Time).zip(keys).map(|(at, key)| (at, key, 0)).collect();
        assert_eq!(due(&mut workers[1].timers, 501), expected, "{name}");
    }
}

#[test]
fn stores_of_another_number_take_the_timers_of_checkpoints_over() {
    let layouts = layouts();
    for ((from, layout), (to, other)) in layouts.iter().zip(layouts.iter().cycle().skip(1)) {
        let timers_of = |store: &Store, layout: &AnyLayout| -> Stored {
            let timers = store.stored_timers("t").layout(layout.clone());
            timers.own_keys_only().open().unwrap()
        };
        let device = |at: usize| Simulated::new(at as u64, Faults::none());
        let devices: Vec<_> = (0..WORKERS).map(device).collect();
        let mut model = BTreeSet::new();
        for (at, device) in devices.iter().enumerate() {
            let groups = owned(at, WORKERS);
            let builder = builder(layout).owned_groups(groups.clone());
            let store = builder.device(Arc::new(device.clone())).open().unwrap();
            let mut timers = timers_of(&store, layout);
            for key in 0..4_000u64 {
                let timer = (Time((key.key_hash() >> 20) as i64 % 500), key, key as u8 % 3);
                let set = timers.set_in(timer.1, timer.0, timer.2);
                if groups.contains(&group_of(key).0) {
                    assert!(set.unwrap());
                    model.insert(timer);
                } else {
                    assert_eq!(set.unwrap_err().kind(), ErrorKind::Mismatch);
                }
            }
            store.checkpoint(1).unwrap();
        }
        assert_eq!(model.len(), 4_000);
        let mut all = Vec::new();
        for at in 0..2 {
            let sources = devices.iter().map(|device| Source::device(Arc::new(device.clone())));
            let builder = builder(other).owned_groups(owned(at, 2)).restore_from(sources);
            let store = builder.device(Arc::new(device(10 + at))).open().unwrap();
            let mut timers = timers_of(&store, other);
            let fired = due(&mut timers, 500);
            assert!(fired.is_sorted() && fired.len() > 1_000, "{from} to {to}: {}", fired.len());
            all.extend(fired);
        }
        all.sort_unstable();
        assert!(all.into_iter().eq(model), "{from} to {to}");
    }
}
