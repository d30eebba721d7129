//! A clock that goes backwards, by a little or by years, while the store is open or while it is not:
//! what was over stays over, and nothing is over before its time.

use alluvium::io::{Faults, Simulated};
use alluvium::time::nanos;
use alluvium::{ErrorKind, ExpiringMap, KIB, Store, Time, Ttl};

use crate::common::{HandClock, builder, layouts, tiny};

const YEAR: i64 = 365 * 24 * 3600 * 1_000_000_000;

fn open(device: &Simulated, clock: &HandClock, ttl: Ttl) -> (Store, ExpiringMap<u64, u64>) {
    let store = builder(device, 256 * KIB, clock).layout(tiny()).open().unwrap();
    let map = store.expiring_map("m").open(ttl).unwrap();
    (store, map)
}

#[test]
fn a_clock_that_goes_back_brings_nothing_back_and_ends_nothing_early() {
    for back in [1, 10, 1000, YEAR] {
        let (device, clock) = (Simulated::new(1, Faults::none()), HandClock::default());
        clock.set(YEAR);
        let (_store, mut map) = open(&device, &clock, Ttl::processing_time(nanos(100)));
        map.put(1, 1).unwrap();
        clock.set(YEAR + 100);
        assert!(!map.contains(&1).unwrap());
        map.put(2, 2).unwrap();
        clock.set(YEAR + 100 - back);
        assert!(!map.contains(&1).unwrap(), "back by {back}");
        assert!(map.contains(&2).unwrap(), "back by {back}");
        // Touched while the clock is behind: it lives from the greatest time there was.
        map.put(3, 3).unwrap();
        clock.set(YEAR + 199);
        assert!(map.contains(&2).unwrap() && map.contains(&3).unwrap(), "back by {back}");
        clock.set(YEAR + 200);
        assert!(!map.contains(&2).unwrap() && !map.contains(&3).unwrap(), "back by {back}");
    }
}

#[test]
fn nor_does_a_restart() {
    let (device, clock) = (Simulated::new(1, Faults::none()), HandClock::default());
    clock.set(5000);
    let ttl = Ttl::processing_time(nanos(100));
    let (store, mut map) = open(&device, &clock, ttl);
    map.put(1, 1).unwrap();
    clock.set(5100);
    map.put(2, 2).unwrap();
    store.checkpoint(1).unwrap();
    drop((map, store));
    clock.set(300);
    let (_store, mut map) = open(&device, &clock, ttl);
    assert_eq!(map.time(), Time(5100));
    assert!(!map.contains(&1).unwrap() && map.contains(&2).unwrap());
    clock.set(5200);
    assert!(!map.contains(&2).unwrap());
}

#[test]
fn an_earlier_watermark_changes_nothing() {
    let (device, clock) = (Simulated::new(1, Faults::none()), HandClock::default());
    let (_store, mut map) = open(&device, &clock, Ttl::event_time(nanos(100)));
    map.advance(Time(1000)).unwrap();
    map.put(1, 1).unwrap();
    map.advance(Time(1100)).unwrap();
    map.advance(Time(1001)).unwrap();
    map.advance(Time::MIN).unwrap();
    assert_eq!((map.time(), map.contains(&1).unwrap()), (Time(1100), false));
    let (_store, mut by_clock) =
        open(&Simulated::new(2, Faults::none()), &clock, Ttl::processing_time(nanos(100)));
    assert_eq!(by_clock.advance(Time(7)).unwrap_err().kind(), ErrorKind::Unsupported);
}

/// A first watermark of today is no jump for what was written before there was any.
#[test]
fn what_was_written_before_the_time_was_known_lives_from_then_on() {
    for (layout, memory) in layouts() {
        let (device, clock) = (Simulated::new(1, Faults::none()), HandClock::default());
        let ttl = Ttl::event_time(nanos(100));
        let open = || {
            let store = builder(&device, memory, &clock).layout(layout.clone()).open().unwrap();
            let map = store.expiring_map::<u64, u64>("m").open(ttl).unwrap();
            (store, map)
        };
        let (store, mut map) = open();
        map.put(1, 1).unwrap();
        store.checkpoint(1).unwrap();
        drop((map, store));
        let (store, mut map) = open();
        map.advance(Time(YEAR)).unwrap();
        map.advance(Time(YEAR + 99)).unwrap();
        assert!(map.contains(&1).unwrap());
        store.checkpoint(2).unwrap();
        drop((map, store));
        let (_store, mut map) = open();
        assert!(map.contains(&1).unwrap());
        map.advance(Time(YEAR + 100)).unwrap();
        assert!(!map.contains(&1).unwrap());
    }
}

#[test]
fn at_the_end_of_time_all_is_over_that_lives_for_less() {
    let (device, clock) = (Simulated::new(1, Faults::none()), HandClock::default());
    let (_store, mut map) = open(&device, &clock, Ttl::event_time(nanos(100)));
    map.advance(Time(0)).unwrap();
    map.put(1, 1).unwrap();
    map.advance(Time(50)).unwrap();
    map.put(2, 2).unwrap();
    map.advance(Time::MAX).unwrap();
    map.put(3, 3).unwrap();
    let there = [1, 2, 3].map(|key| map.contains(&key).unwrap());
    assert_eq!(there, [false, false, true]);
}
