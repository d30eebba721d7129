//! Timers: a set of (time, key, namespace), fired in order, purged by time, key or namespace.

use std::collections::BTreeSet;

use std::sync::Arc;

use alluvium::config::Helpers;
use alluvium::io::{CrashPolicy, Faults, Simulated};
use alluvium::states::Sweep;
use alluvium::types::hash_word;
use alluvium::{ErrorKind, KIB, MIB, Store, Time, Timers};

use crate::common::{Dice, Standing};

fn store() -> Store {
    Store::in_memory().memory(16 * MIB).open().unwrap()
}

fn due(timers: &mut Timers<u64>, watermark: i64) -> Vec<(i64, u64)> {
    std::iter::from_fn(|| timers.pop_due(Time(watermark))).map(|(at, key)| (at.0, key)).collect()
}

#[test]
fn the_same_timer_twice_fires_once() {
    let mut timers = store().timers::<u64>("t").unwrap();
    assert!(timers.set(1, Time(5)).unwrap() && !timers.set(1, Time(5)).unwrap());
    assert!(timers.set(2, Time(5)).unwrap() && timers.set(1, Time(6)).unwrap());
    assert_eq!(due(&mut timers, 6), [(5, 1), (5, 2)]);
    assert_eq!(due(&mut timers, 7), [(6, 1)]);
    assert!(timers.set(1, Time(5)).unwrap(), "it fired, so that it is new");
}

/// Also at both ends of time: what is set is there, and comes once the watermark has passed it; nothing
/// passes the end.
#[test]
fn a_timer_at_the_watermark_waits_until_that_has_passed_it() {
    let mut timers = store().timers::<u64>("t").unwrap();
    for at in [i64::MIN, i64::MIN + 1, -1, 0, i64::MAX - 1] {
        assert!(timers.set(1, Time(at)).unwrap());
        assert_eq!(timers.next_time(), Some(Time(at)));
        assert_eq!(due(&mut timers, at), [], "at {at}");
        assert_eq!(due(&mut timers, at + 1), [(at, 1)]);
        assert!(timers.set(1, Time(at)).unwrap() && timers.cancel(1, Time(at)));
    }
    assert!(timers.set(1, Time::MAX).unwrap());
    assert_eq!(due(&mut timers, i64::MAX), []);
    assert!(timers.purge(Time::MAX, 10));
    assert_eq!(timers.pop_first(), Some((Time::MAX, 1, ())));
}

#[test]
fn a_timer_before_the_watermark_fires_on_the_next_pop() {
    let mut timers = store().timers::<u64>("t").unwrap();
    timers.set(1, Time(100)).unwrap();
    assert_eq!(due(&mut timers, 101), [(100, 1)]);
    for at in [100, 7, i64::MIN] {
        timers.set(2, Time(at)).unwrap();
        assert_eq!(timers.pop_due(Time(101)), Some((Time(at), 2)));
    }
    assert!(timers.is_empty());
}

#[test]
fn a_timer_that_was_withdrawn_can_be_set_again() {
    let mut timers = store().timers::<u64>("t").unwrap();
    timers.set(1, Time(5)).unwrap();
    assert!(timers.cancel(1, Time(5)) && !timers.cancel(1, Time(5)));
    assert!(due(&mut timers, 10).is_empty());
    assert!(timers.set(1, Time(5)).unwrap());
    assert_eq!(due(&mut timers, 10), [(5, 1)]);
    assert!(!timers.cancel(1, Time(5)), "it has fired");
}

#[test]
fn the_last_watermark_fires_all_but_those_at_the_end_of_time_and_a_drain_takes_these_too() {
    let mut timers = store().timers::<u64>("t").unwrap();
    for (at, key) in [(i64::MAX, 1), (i64::MAX - 1, 2), (0, 3), (i64::MIN, 4)] {
        timers.set(key, Time(at)).unwrap();
    }
    assert_eq!(due(&mut timers, i64::MAX), [(i64::MIN, 4), (0, 3), (i64::MAX - 1, 2)]);
    assert_eq!(timers.next_time(), Some(Time::MAX));
    assert_eq!(timers.pop_first(), Some((Time::MAX, 1, ())));
    assert_eq!(timers.pop_first(), None);
}

#[test]
fn equal_times_fire_in_the_order_of_keys_and_namespaces() {
    let mut timers = store().timers_in::<String, u32>("t").unwrap();
    for (at, key, namespace) in [(2, "a", 1), (1, "b", 9), (1, "a", 2), (1, "a", 1), (1, "b", 3)] {
        timers.set_in(key.into(), Time(at), namespace).unwrap();
    }
    let fired = std::iter::from_fn(|| timers.pop_due_in(Time(2)));
    let fired: Vec<_> = fired.map(|(at, key, n)| (at.0, key, n)).collect();
    let expected = [(1, "a", 1), (1, "a", 2), (1, "b", 3), (1, "b", 9)];
    assert!(fired.iter().map(|(at, key, n)| (*at, &key[..], *n)).eq(expected), "{fired:?}");
}

/// A long history beside an ordered set.
#[test]
fn timers_with_namespaces_are_an_ordered_set() {
    let store = store();
    let timers = store.timers_in::<u64, String>("t").unwrap();
    // The table of blocks is kept.
    a_long_history(&store, timers, true, 6 << 10);
}

/// Of timers that can move, equal times come by key group.
#[test]
fn timers_that_move_by_key_groups_are_a_set_in_order_of_time() {
    let store = store();
    let mover = store.mover("unit").unwrap();
    let timers = store.timers_moved_by::<u64, String>(&mover, "t").unwrap();
    // For each group a table of blocks.
    a_long_history(&store, timers, false, 96 << 10);
}

fn a_long_history(store: &Store, mut timers: Timers<u64, String>, by_key: bool, kept: u64) {
    let mut model = BTreeSet::new();
    for step in 0..30_000u64 {
        let random = |n: u64, below: u64| hash_word(step * 8 + n) % below;
        let timer = (Time(random(0, 300) as i64), random(1, 40), format!("{}", random(2, 5)));
        match random(3, 40) {
            0..24 => {
                let new = timers.set_in(timer.1, timer.0, timer.2.clone()).unwrap();
                assert_eq!(new, model.insert(timer));
            }
            24..32 => {
                let known = timers.cancel_in(timer.1, timer.0, timer.2.clone());
                assert_eq!(known, model.remove(&timer));
            }
            32..38 => {
                let first = model.first().filter(|first| first.0 < timer.0).cloned();
                let fired = timers.pop_due_in(timer.0);
                if by_key {
                    assert_eq!(fired, first);
                }
                assert_eq!(fired.as_ref().map(|fired| fired.0), first.map(|first| first.0));
                fired.iter().for_each(|fired| assert!(model.remove(fired)));
            }
            38 => {
                let before = Time(random(4, 30) as i64);
                while !timers.purge(before, 3) {}
                model.retain(|timer| timer.0 >= before);
            }
            _ => {
                // All of a key, or of a namespace, a few timers per call.
                let mut sweep = Sweep::default();
                let of_key = random(5, 2) == 0;
                while !sweep.done {
                    timers.purge_where(&mut sweep, 50, |_, key, namespace| match of_key {
                        true => *key == timer.1,
                        false => *namespace == timer.2,
                    });
                }
                model.retain(|known| match of_key {
                    true => known.1 != timer.1,
                    false => known.2 != timer.2,
                });
            }
        }
        assert_eq!(timers.len(), model.len() as u64);
        assert_eq!(timers.next_time(), model.first().map(|first| first.0));
    }
    assert!(model.len() > 100);
    let all: Vec<_> = std::iter::from_fn(|| timers.pop_first()).collect();
    assert!(all.is_sorted_by_key(|timer| timer.0));
    assert!(!by_key || all.iter().eq(&model));
    assert_eq!(all.into_iter().collect::<BTreeSet<_>>(), model);
    assert!(used(store) < kept, "{} bytes are not given back", used(store));
}

fn used(store: &Store) -> u64 {
    store.stats().unwrap().states[0].memory.used
}

#[test]
fn what_a_withdrawn_timer_owned_is_given_back_whatever_the_key_owns_that_names_it() {
    let store = store();
    let mut timers = store.timers::<String>("t").unwrap();
    timers.set("a".into(), Time(1)).unwrap();
    let before = used(&store);
    let mut long = String::with_capacity(1000);
    long.push('b');
    timers.set(long, Time(2)).unwrap();
    assert!(used(&store) > before + 1000);
    assert!(timers.cancel("b".into(), Time(2)));
    assert_eq!(used(&store), before);
}

#[test]
fn a_purge_of_a_key_looks_at_as_many_timers_as_it_has_fuel_for() {
    let mut timers = store().timers::<u64>("t").unwrap();
    for n in 0..1000 {
        timers.set(n as u64 % 10, Time(n)).unwrap();
    }
    let (mut sweep, mut calls) = (Sweep::default(), 0);
    while !sweep.done {
        let mut looked_at = 0;
        timers.purge_where(&mut sweep, 64, |_, key, ()| {
            looked_at += 1;
            *key == 3
        });
        assert!(looked_at <= 64);
        calls += 1;
    }
    assert_eq!((calls, timers.len()), (16, 900));
}

#[test]
fn timers_with_namespaces_are_restored() {
    let directory = tempfile::tempdir().unwrap();
    let open = || Store::builder(directory.path()).memory(16 * MIB).open().unwrap();
    let all: BTreeSet<_> =
        (0..500u64).map(|n| (Time((n * 7 % 90) as i64), n % 13, format!("{}", n % 3))).collect();
    {
        let store = open();
        let mut timers = store.timers_in::<u64, String>("t").unwrap();
        for (at, key, namespace) in &all {
            timers.set_in(*key, *at, namespace.clone()).unwrap();
        }
        store.checkpoint(1).unwrap();
    }
    let store = open();
    // A state of other namespaces is another state.
    assert!(store.timers::<u64>("t").is_err());
    let mut timers = store.timers_in::<u64, String>("t").unwrap();
    assert!(std::iter::from_fn(|| timers.pop_first()).eq(all));
}

type Pending = BTreeSet<(i64, String, u8)>;

fn open_on(
    device: &Simulated,
    helpers: Helpers,
    memory: u64,
    moves: bool,
) -> (Store, Timers<String, u8>) {
    let store = Store::in_memory()
        .clock(Arc::new(Standing))
        .memory(memory)
        .max_value(KIB)
        .helpers(helpers)
        .key_groups(8)
        .device(Arc::new(device.clone()))
        .open()
        .unwrap();
    let timers = match moves {
        false => store.timers_in("t"),
        true => store.timers_moved_by(&store.mover("unit").unwrap(), "t"),
    };
    (store, timers.unwrap())
}

/// Sets, withdraws or fires one.
fn change(timers: &mut Timers<String, u8>, model: &mut Pending, dice: &mut Dice) {
    let (at, key) = (dice.below(300) as i64, "k".repeat(dice.below(30) as usize));
    let namespace = dice.below(3) as u8;
    let timer = (at, key.clone(), namespace);
    match dice.below(10) {
        0..6 => match timers.set_in(key, Time(at), namespace) {
            Ok(is_new) => assert_eq!(is_new, model.insert(timer)),
            Err(error) => assert_eq!(error.kind(), ErrorKind::OverBudget),
        },
        6..9 => {
            assert_eq!(timers.cancel_in(key, Time(at), namespace), model.remove(&timer));
        }
        _ => {
            let fired = timers.pop_first().map(|(at, key, namespace)| (at.0, key, namespace));
            // Of one time, those that move come by key group.
            assert_eq!(fired.as_ref().map(|fired| fired.0), model.first().map(|first| first.0));
            fired.iter().for_each(|fired| assert!(model.remove(fired)));
        }
    }
}

#[test]
fn a_checkpoint_has_the_timers_of_its_barrier_whatever_happens_while_it_is_taken() {
    let (mut in_steps, mut gave_up) = (0, 0);
    for seed in 0..16 {
        let moves = seed >= 8;
        let mut dice = Dice(seed);
        let helpers = if seed % 2 == 0 { Helpers::Inline } else { Helpers::Thread };
        // In the least there is hardly room to keep any: the rest is written at once.
        let memory = [4 * MIB, 256 * KIB][seed as usize / 2 % 2];
        let device = Simulated::new(seed, Faults::late(3));
        let (store, mut timers) = open_on(&device, helpers, memory, moves);
        let mut model = Pending::new();
        for round in 0..6 {
            for _ in 0..dice.below(900) {
                change(&mut timers, &mut model, &mut dice);
            }
            let barrier = model.clone();
            let mut seal = store.seal(round).unwrap();
            let mut steps = 0;
            let gives_up = dice.below(4) == 0;
            let is_durable = loop {
                match seal.advance() {
                    Ok(true) => break true,
                    Ok(false) if gives_up && steps == 3 => break false,
                    Ok(false) => steps += 1,
                    Err(error) => {
                        let kinds = [ErrorKind::OverBudget, ErrorKind::Overtaken];
                        assert!(kinds.contains(&error.kind()), "{error}");
                        assert!(memory < MIB, "{error}");
                        break false;
                    }
                }
                for _ in 0..dice.below(40) {
                    change(&mut timers, &mut model, &mut dice);
                }
            };
            in_steps = in_steps.max(steps);
            if !is_durable {
                gave_up += 1;
                seal.abort();
                continue;
            }
            seal.confirm().unwrap();
            let image = device.crash(CrashPolicy::Nothing);
            let (_store, mut restored) = open_on(&image, Helpers::Inline, 4 * MIB, !moves);
            let found: Pending = std::iter::from_fn(|| restored.pop_first())
                .map(|(at, key, namespace)| (at.0, key, namespace))
                .collect();
            assert_eq!(found, barrier, "seed {seed}, round {round}");
        }
    }
    assert!(in_steps > 3 && gave_up > 5, "{in_steps} {gave_up}");
}
