//! Reads that are started ahead of calls: nobody waits for them, whatever the device does, and the
//! calls that come after read nothing again.
//!
//! What this catches: a call that waits for the read of another key, a read that is lost or told
//! twice, a buffer that is lost with a ticket, a record that moved and is served from where it was,
//! an error that is told to the wrong call or never.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::common::{Dice, assert_equal, open_on, times, tiny};
use alluvium::io::{Device, Fault, Faults, Simulated, Waker};
use alluvium::states::{Fetch, Ticket};
use alluvium::{ErrorKind, KIB, Map, Store};

const KEYS: u64 = 4000;

fn value_of(key: u64) -> String {
    format!("value {key}").repeat(key as usize % 4)
}

/// A store whose state is mostly on storage.
fn filled(device: &Simulated) -> (Store, Map<u64, String>) {
    filled_in(device, 256 * KIB)
}

fn filled_in(device: &Simulated, memory: u64) -> (Store, Map<u64, String>) {
    let store = open_on(Arc::new(device.clone()), tiny(), memory).unwrap();
    let mut map = store.map("m").open().unwrap();
    for key in 0..KEYS {
        map.put(key, value_of(key)).unwrap();
    }
    (store, map)
}

/// Keys that only storage knows, in no special order.
fn cold(map: &Map<u64, String>, count: usize) -> Vec<u64> {
    let keys = (0..KEYS).filter(|key| map.peek(key).unwrap().is_none());
    let keys: Vec<u64> = keys.step_by(7).take(count).collect();
    assert_eq!(keys.len(), count, "too few keys are on storage");
    keys
}

fn start(map: &mut Map<u64, String>, key: u64) -> Ticket {
    match map.fetch(&key).unwrap() {
        Fetch::Pending(ticket) => ticket,
        other => panic!("{key}: {other:?}"),
    }
}

fn told(map: &mut Map<u64, String>) -> Vec<Ticket> {
    let mut tickets = Vec::new();
    map.fetched(|ticket| tickets.push(ticket)).unwrap();
    tickets
}

#[test]
fn a_stuck_read_holds_up_nobody_but_its_key() {
    let device = Simulated::new(1, Faults::none());
    let (_store, mut map) = filled(&device);
    let woken = Arc::new(AtomicU64::new(0));
    let (count, fetcher) = (woken.clone(), map.fetcher());
    let waker = Arc::new(Waker::new(move || {
        count.fetch_add(1, Ordering::Relaxed);
    }));
    fetcher.wake_with(waker.clone()).unwrap();
    let keys = cold(&map, 3);
    device.on_nth_read(1, Fault::Stuck);
    let ticket = start(&mut map, keys[0]);
    assert_eq!(start(&mut map, keys[0]), ticket, "one read per record");
    assert_eq!(told(&mut map), []);
    assert_eq!(*map.get(&keys[1]).unwrap().unwrap(), value_of(keys[1]), "read while it waits");
    let other = start(&mut map, keys[2]);
    assert_eq!((told(&mut map), told(&mut map)), (vec![other], vec![]), "each is told once");
    assert_eq!((device.stuck(), woken.load(Ordering::Relaxed)), (1, 1));
    waker.rearm();
    device.release_stuck();
    device.drive();
    assert_eq!(woken.load(Ordering::Relaxed), 2);
    assert_eq!(told(&mut map), [ticket]);
    let reads = device.stats().reads;
    for key in [keys[0], keys[2]] {
        assert_eq!(map.fetch(&key).unwrap(), Fetch::Ready);
        map.update(&key, String::new, |value| value.push('!')).unwrap();
        assert_eq!(*map.get(&key).unwrap().unwrap(), value_of(key) + "!");
    }
    assert_eq!(device.stats().reads, reads, "what was fetched is not read again");
}

#[test]
fn reads_are_as_many_as_there_are_buffers_and_none_is_lost() {
    let device = Simulated::new(2, Faults::none());
    let (_store, mut map) = filled(&device);
    let keys = cold(&map, 40);
    for round in 0..10 {
        let keys = &keys[4 * round..][..4];
        // A queue depth of four leaves one buffer for calls that wait.
        let tickets: Vec<Ticket> = keys[..3].iter().map(|&key| start(&mut map, key)).collect();
        assert_eq!(map.fetch(&keys[3]).unwrap(), Fetch::Busy);
        assert_eq!(*map.get(&keys[3]).unwrap().unwrap(), value_of(keys[3]));
        match round % 3 {
            // Given up before, and after they are told.
            0 => tickets.iter().for_each(|&ticket| map.release(ticket).unwrap()),
            1 => {
                assert_eq!(told(&mut map), tickets);
                tickets.iter().for_each(|&ticket| map.release(ticket).unwrap());
            }
            _ => keys[..3].iter().for_each(|key| {
                assert_eq!(*map.get(key).unwrap().unwrap(), value_of(*key));
            }),
        }
        assert_eq!(told(&mut map), []);
        tickets.iter().for_each(|&ticket| map.release(ticket).unwrap());
    }
}

#[test]
fn a_read_that_fails_fails_the_call_that_needs_it() {
    let device = Simulated::new(3, Faults::none());
    let (_store, mut map) = filled(&device);
    let keys = cold(&map, 2);
    let faults = [
        (keys[0], Fault::Error, ErrorKind::Io),
        (keys[1], Fault::FlippedBit { bit: 2049 }, ErrorKind::Corrupt),
    ];
    for (key, fault, kind) in faults {
        device.on_nth_read(1, fault);
        let ticket = start(&mut map, key);
        assert_eq!(told(&mut map), [ticket]);
        let reads = device.stats().reads;
        match map.update(&key, String::new, |_| ()) {
            Err(error) => {
                assert_eq!(error.kind(), kind, "{error}");
                assert!(error.context("offset").is_some(), "{error}");
                assert_eq!(device.stats().reads, reads);
            }
            // The flipped bit may lie outside the record.
            Ok(()) => assert_eq!(kind, ErrorKind::Corrupt),
        }
        assert_eq!(*map.get(&key).unwrap().unwrap(), value_of(key), "tried again");
    }
}

#[test]
fn a_record_that_moved_meanwhile_is_not_served_from_where_it_was() {
    for seed in 0..times("FETCH_SEEDS", 20) {
        let device = Simulated::new(seed, Faults::late(6));
        let (store, mut map) = filled_in(&device, 512 * KIB);
        let mut model: BTreeMap<u64, String> = (0..KEYS).map(|k| (k, value_of(k))).collect();
        let mut dice = Dice(seed);
        let mut tickets = Vec::new();
        for step in 0..600 {
            for _ in 0..3 {
                let key = dice.below(KEYS);
                if let Fetch::Pending(ticket) = map.fetch(&key).unwrap() {
                    tickets.push(ticket);
                }
            }
            // Changes, deletions and rewriting move and kill what is being read.
            for _ in 0..20 {
                let key = dice.below(KEYS);
                if dice.below(3) == 0 {
                    assert_eq!(map.remove(&key).unwrap(), model.remove(&key).is_some());
                } else {
                    let change = |value: &mut String| *value = format!("{value:.30}, {step}");
                    map.update(&key, String::new, change).unwrap();
                    change(model.entry(key).or_default());
                }
            }
            if step % 50 == 49 {
                store.tick(1000).unwrap();
                told(&mut map);
                assert_eq!(told(&mut map), []);
            }
            while tickets.len() > 2 {
                map.release(tickets.remove(dice.below(tickets.len() as u64) as usize)).unwrap();
            }
        }
        assert_equal(&mut map, &model, &format!("seed {seed}"));
    }
}

#[test]
fn a_store_closes_only_when_its_reads_have_ended() {
    let device = Simulated::new(5, Faults::none());
    let (store, mut map) = filled(&device);
    let key = cold(&map, 1)[0];
    device.on_nth_read(1, Fault::Stuck);
    start(&mut map, key);
    let (later, freed) = (device.clone(), Arc::new(AtomicU64::new(0)));
    let noted = freed.clone();
    let releaser = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(30));
        noted.store(1, Ordering::SeqCst);
        later.release_stuck();
    });
    drop((map, store));
    assert_eq!((freed.load(Ordering::SeqCst), device.in_flight()), (1, 0));
    releaser.join().unwrap();
}

#[test]
fn state_in_memory_is_always_ready() {
    let store = Store::in_memory().open().unwrap();
    let mut map = store.map::<u64, u64>("m").open().unwrap();
    map.put(1, 2).unwrap();
    for key in [1, 2] {
        assert_eq!(map.fetch(&key).unwrap(), Fetch::Ready);
    }
    assert!(map.fetcher().is_resident().unwrap());
}
