//! A clock that is years ahead, a watermark that a sum which overflowed has made, an entry or another
//! store with such a time: refused by one rule, naming the state and both times, and nothing is over by
//! it.

use std::sync::Arc;
use std::time::Duration;

use alluvium::io::{Faults, Simulated};
use alluvium::moving::{KeyGroup, Source};
use alluvium::time::nanos;
use alluvium::{Error, ErrorKind, ExpiringMap, KeyHash, MIB, Store, StoreBuilder, Time, Ttl};

use crate::common::{HandClock, builder, tiny};

const DAY: i64 = 24 * 3600 * 1_000_000_000;
const YEAR: i64 = 365 * DAY;

fn refused(error: &Error, names: &[&str]) {
    assert_eq!(error.context("state"), Some("m"), "{error}");
    refused_by(error, names);
}

fn refused_by(error: &Error, names: &[&str]) {
    assert_eq!(error.kind(), ErrorKind::Input, "{error}");
    let text = error.to_string();
    assert!(names.iter().all(|name| text.contains(name)), "{text}");
}

fn on(device: &Simulated, clock: &HandClock) -> StoreBuilder {
    builder(device, MIB, clock)
}

fn open(store: &Store, ttl: Ttl) -> Result<ExpiringMap<u64, u64>, Error> {
    store.expiring_map("m").open(ttl)
}

#[test]
fn a_clock_that_is_years_ahead_stops_the_state_until_it_is_right_again() {
    let (device, clock) = (Simulated::new(1, Faults::none()), HandClock::default());
    let ttl = Ttl::processing_time(nanos(20 * YEAR));
    clock.set(50 * YEAR);
    let store = on(&device, &clock).open().unwrap();
    let mut map = open(&store, ttl).unwrap();
    map.put(1, 1).unwrap();
    for wrong in [60 * YEAR + 1, 136 * YEAR, i64::MAX - 5, i64::MAX] {
        clock.set(wrong);
        let names = [&*wrong.to_string()];
        refused(&map.get(&1).unwrap_err(), &names);
        refused(&map.put(2, 2).unwrap_err().error, &names);
        refused(&map.update(&1, || 0, |_| ()).unwrap_err(), &names);
        refused(&map.update_batch(&[1], |n| n, |_| 0, |_, _| ()).unwrap_err().error, &names);
        let load = map.load([(3, 3)]).unwrap_err();
        assert_eq!(load.value, [(3, 3)]);
        refused(&load.error, &names);
        assert_eq!(map.time(), Time(50 * YEAR));
        store.tick(100).unwrap();
        store.checkpoint(1).unwrap();
        clock.set(50 * YEAR);
        assert_eq!(map.get(&1).unwrap().as_deref(), Some(&1));
        assert_eq!(map.len().unwrap(), 1);
    }
    drop((map, store));
    // The same while the store is not open.
    clock.set(60 * YEAR + 1);
    let store = on(&device, &clock).open().unwrap();
    refused(&open(&store, ttl).unwrap_err(), &["time_jump_max_ms is 315360000000"]);
    drop(store);
    let longer = Duration::from_nanos(11 * YEAR as u64);
    let store = on(&device, &clock).time_jump(longer).open().unwrap();
    assert!(open(&store, ttl).unwrap().contains(&1).unwrap());
    drop(store);
    clock.set(60 * YEAR);
    let store = on(&device, &clock).open().unwrap();
    assert_eq!(open(&store, ttl).unwrap().time(), Time(60 * YEAR), "ten years are believed");
    let error = on(&device, &clock).time_jump(Duration::ZERO).open().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
}

#[test]
fn a_watermark_near_the_end_of_time_is_refused_and_the_end_is_taken() {
    let (device, clock) = (Simulated::new(1, Faults::none()), HandClock::default());
    let store = on(&device, &clock).open().unwrap();
    let mut map = open(&store, Ttl::event_time(nanos(10))).unwrap();
    for told in [None, Some(-7)] {
        if let Some(told) = told {
            map.advance(Time(told)).unwrap();
            map.put(1, 1).unwrap();
        }
        for near in [i64::MAX - 364 * DAY, i64::MAX - 5_000, i64::MAX - 1] {
            refused(&map.advance(Time(near)).unwrap_err(), &[&near.to_string(), "Time::MAX"]);
        }
        assert_eq!(map.time(), Time(told.unwrap_or(i64::MIN)));
    }
    refused(&map.advance(Time(10 * YEAR)).unwrap_err(), &["-7", &(10 * YEAR).to_string()]);
    assert!(map.contains(&1).unwrap());
    map.advance(Time::MAX).unwrap();
    assert!(!map.contains(&1).unwrap());
}

/// A store whose state is at this time, with one entry of then.
fn at(device: &Simulated, groups: std::ops::Range<u16>, time: i64, key: u64) -> Store {
    let store = on(device, &HandClock::default()).key_groups(4).owned_groups(groups);
    let store = store.open().unwrap();
    let mut map = open(&store, Ttl::event_time(nanos(YEAR))).unwrap();
    map.advance(Time(time)).unwrap();
    map.put(key, key).unwrap();
    store
}

#[test]
fn nor_is_one_that_comes_with_state_of_another_store() {
    let ttl = Ttl::event_time(nanos(YEAR));
    let [device, other] = [1, 2].map(|seed| Simulated::new(seed, Faults::none()));
    let key_of = |groups: std::ops::Range<u16>| {
        let group = |key: &u64| KeyGroup::of(key.key_hash(), 4).0;
        (0..).find(|key| groups.contains(&group(key))).unwrap()
    };
    let (low, high) = (key_of(0..2), key_of(2..4));
    at(&device, 0..2, 0, low).checkpoint(1).unwrap();
    let store = at(&other, 2..4, 20 * YEAR, high);
    store.checkpoint(1).unwrap();
    let mut file = Vec::new();
    store.export(&mut file).unwrap();
    drop(store);
    let clock = HandClock::default();
    let made_of = |jump: i64| {
        let sources = [&device, &other].map(|device| Source::device(Arc::new(device.clone())));
        let store = on(&Simulated::new(3, Faults::none()), &clock).key_groups(4);
        let store = store.time_jump(Duration::from_nanos(jump as u64)).restore_from(sources);
        open(&store.open().unwrap(), ttl).map(|map| map.time())
    };
    refused(&made_of(10 * YEAR).unwrap_err(), &[&(20 * YEAR).to_string()]);
    assert_eq!(made_of(20 * YEAR).unwrap(), Time(20 * YEAR));

    let store = on(&Simulated::new(4, Faults::none()), &clock).key_groups(4).open().unwrap();
    let mut map = open(&store, ttl).unwrap();
    map.advance(Time(5)).unwrap();
    map.put(low, low).unwrap();
    refused(&store.import(&file[..]).unwrap_err(), &[&(20 * YEAR).to_string()]);
    assert_eq!(map.time(), Time(5));
    assert!(map.contains(&low).unwrap());

    let unit = |groups: std::ops::Range<u16>, time: i64, key: u64| {
        let store = Store::in_memory().key_groups(4).owned_groups(groups).open().unwrap();
        let mover = store.mover("unit").unwrap();
        let map = store.expiring_map::<u64, u64>("m").layout(tiny()).moved_by(&mover);
        let mut map = map.open(ttl).unwrap();
        map.advance(Time(time)).unwrap();
        map.put(key, key).unwrap();
        (store, mover, map)
    };
    let (_giving, from, _map) = unit(2..4, 20 * YEAR, high);
    let (_taking, to, mut map) = unit(0..2, 5, low);
    let mut rest = from.begin(KeyGroup::of(high.key_hash(), 4)).unwrap();
    let chunk = from.next_chunk(&mut rest, 4096).unwrap().unwrap();
    refused_by(&to.install(&chunk).unwrap_err(), &[&(20 * YEAR).to_string()]);
    assert!(map.contains(&low).unwrap() && map.time() == Time(5));
}
