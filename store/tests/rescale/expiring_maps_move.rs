//! Entries that expire move with their key groups, and end when they would have ended anyway.
//!
//! What this catches: entries that live longer or shorter where they have come to; ones that were over
//! and are seen again; a time that does not come along.

use std::collections::BTreeMap;

use alluvium::moving::{KeyGroup, Mover, Standing};
use alluvium::time::nanos;
use alluvium::{AnyLayout, ExpiringMap, Heap, HybridLog, KIB, KeyHash, MIB, Store, Time, Ttl};

use crate::dice::Dice;
use crate::job::{GROUPS, builder, owned};

const WORKERS: usize = 3;
const LIFE: i64 = 50;

struct Worker {
    store: Store,
    mover: Mover,
    map: ExpiringMap<u64, u64>,
}

fn open(layout: &AnyLayout, at: usize, ttl: Ttl) -> Worker {
    let device = std::sync::Arc::new(crate::moving_job::device(at as u64));
    let store = builder(layout)
        .memory(2 * MIB)
        .owned_groups(owned(at, WORKERS))
        .device(device)
        .open()
        .unwrap();
    let mover = store.mover("unit").unwrap();
    let map = store.expiring_map("seen").moved_by(&mover).open(ttl).unwrap();
    Worker { store, mover, map }
}

fn bring(workers: &[Worker], group: KeyGroup, from: usize, to: usize) {
    let mut rest = workers[from].mover.begin(group).unwrap();
    while let Some(chunk) = workers[from].mover.next_chunk(&mut rest, 4 << 10).unwrap() {
        workers[to].mover.install(&chunk).unwrap();
    }
    while !workers[from].mover.forget(group, 64).unwrap() {}
}

fn group_of(key: u64) -> KeyGroup {
    KeyGroup::of(key.key_hash(), GROUPS)
}

#[test]
fn entries_end_at_the_same_time_wherever_they_are() {
    let log = HybridLog::new().page_records(8).queue_depth(4).segment(16 * KIB);
    let runs = log.clone().cold_entries(16).memory(MIB);
    let layouts = [
        ("heap", Heap::new().into()),
        ("hybrid log", log.memory(256 * KIB).into()),
        ("hybrid log, runs", runs.into()),
    ];
    for (name, layout) in &layouts {
        for (ttl, by_reads) in [
            (Ttl::event_time(nanos(LIFE)), false),
            (Ttl::event_time(nanos(LIFE)).refreshed_by_reads(), true),
        ] {
            let mut workers: Vec<_> = (0..WORKERS).map(|at| open(layout, at, ttl)).collect();
            let mut owners: Vec<_> = (0..GROUPS)
                .map(|group| (0..WORKERS).find(|at| owned(*at, WORKERS).contains(&group)).unwrap())
                .collect();
            // When each was touched last, and what it is.
            let mut model: BTreeMap<u64, (i64, u64)> = BTreeMap::new();
            let (mut dice, mut now, mut seen, mut ended) = (Dice(7), 1000, 0, 0);
            workers.iter_mut().for_each(|worker| worker.map.advance(Time(now)).unwrap());
            for step in 0..6_000 {
                if dice.below(20) == 0 {
                    now += dice.below(8) as i64;
                    workers.iter_mut().for_each(|worker| worker.map.advance(Time(now)).unwrap());
                }
                if dice.below(60) == 0 {
                    let group = dice.below(u64::from(GROUPS)) as usize;
                    let to = dice.below(WORKERS as u64) as usize;
                    if owners[group] != to {
                        bring(&workers, KeyGroup(group as u16), owners[group], to);
                        owners[group] = to;
                    }
                }
                let key = dice.below(400);
                let map = &mut workers[owners[usize::from(group_of(key).0)]].map;
                // The time of a state is known from 1000 on: nothing is over before 1050.
                let is_over = |touched: i64| now - touched >= LIFE && now - 1000 >= LIFE;
                let known = model.get(&key).copied().filter(|(touched, _)| !is_over(*touched));
                ended += u64::from(known.is_none() && model.contains_key(&key));
                seen += u64::from(known.is_some());
                let when = format!("{name}, by reads {by_reads}, step {step}, key {key} at {now}");
                match dice.below(3) {
                    0 => {
                        let found = map.get(&key).unwrap().map(|value| *value);
                        assert_eq!(found, known.map(|(_, value)| value), "{when}");
                        match known {
                            Some((_, value)) if by_reads => drop(model.insert(key, (now, value))),
                            Some(_) => {}
                            None => drop(model.remove(&key)),
                        }
                    }
                    1 => {
                        let found = map.update(
                            &key,
                            || 0,
                            |value| {
                                *value += 1;
                                *value
                            },
                        );
                        let value = known.map_or(0, |(_, value)| value) + 1;
                        assert_eq!(found.unwrap(), value, "{when}");
                        model.insert(key, (now, value));
                    }
                    _ if dice.below(4) == 0 => {
                        let found = map.take(&key).unwrap();
                        assert_eq!(found, known.map(|(_, value)| value), "{when}");
                        model.remove(&key);
                    }
                    _ => {}
                }
            }
            assert!(seen > 1000 && ended > 300, "{name}: {seen} seen, {ended} ended");
            // What is not over is in checkpoints, where it is.
            for worker in &workers {
                assert!(worker.store.checkpoint(1).is_ok());
            }
        }
    }
}

/// A store that was told no time learns it from the group that comes.
#[test]
fn the_time_comes_along() {
    let layout = Heap::new().into();
    let mut workers: Vec<_> =
        (0..WORKERS).map(|at| open(&layout, at, Ttl::event_time(nanos(LIFE)))).collect();
    let of_first = |key: &u64| group_of(*key) == KeyGroup(0);
    let (old, new) = {
        let mut keys = (0..).filter(of_first);
        (keys.next().unwrap(), keys.next().unwrap())
    };
    let first = &mut workers[0].map;
    first.advance(Time(100)).unwrap();
    first.put(old, 1).unwrap();
    first.advance(Time(140)).unwrap();
    first.put(new, 2).unwrap();
    first.advance(Time(160)).unwrap();
    bring(&workers, KeyGroup(0), 0, 1);
    assert_eq!(workers[1].mover.standing(KeyGroup(0)).unwrap(), Standing::Here);
    let second = &mut workers[1].map;
    assert_eq!(second.time(), Time(160));
    assert_eq!(second.get(&old).unwrap().map(|value| *value), None);
    assert_eq!(second.get(&new).unwrap().map(|value| *value), Some(2));
    second.advance(Time(190)).unwrap();
    assert_eq!(second.get(&new).unwrap().map(|value| *value), None);
}
