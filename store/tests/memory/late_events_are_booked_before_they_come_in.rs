//! Late events of one key wait in a list, and come in some at a time: what they take is booked, also their copies on
//! the way.

use std::collections::BTreeMap;
use std::sync::Arc;

use alluvium::config::Helpers;
use alluvium::io::{Faults, Simulated};
use alluvium::time::nanos;
use alluvium::{
    AnyLayout, AppendLog, Elements, Heap, KIB, MIB, State, Store, Time, Windows, process,
};

use crate::counting::{alone, held, most_held};

/// What is held beside what is booked: queues, the device's files, tables of Rust's own.
const BESIDE: isize = 64 << 10;
const KEY: u64 = 7;

fn store(memory: u64) -> Store {
    let device = Arc::new(Simulated::new(1, Faults::none()));
    let builder = Store::in_memory().memory(memory).max_value(64 * KIB);
    builder.device(device).helpers(Helpers::Inline).open().unwrap()
}

/// Does `call`, and compares the most that was held meanwhile with the most that was ever booked.
fn within<R>(store: &Store, before: isize, what: &str, call: impl FnOnce() -> R) -> R {
    let (most, result) = most_held(call);
    let booked = store.stats().unwrap().memory.peak as isize;
    let real = most - before;
    assert!(real <= booked + BESIDE, "{what}: {real} bytes were held, {booked} are booked");
    result
}

/// Events at 5 that are sent at 50: too late for the windows that end until then, and not for the others.
fn of_one_key<E: State>(layout: AnyLayout, events: u64, memory: u64, make: impl Fn(u64) -> E) {
    let _alone = alone();
    let before = held();
    let store = store(memory);
    let count = |_: &u64, _, all: &mut dyn Elements<E>, emit: &mut dyn FnMut(u64)| {
        let mut count = 0;
        while all.next()?.is_some() {
            count += 1;
        }
        emit(count);
        Ok(())
    };
    let open = store.holistic::<u64, E>("w").layout(layout);
    let mut windows = open.open(Windows::sliding(nanos(100), nanos(10)), process(count)).unwrap();
    let mut none = |_: &u64, _, _: u64, _: i64| panic!("nothing has fired");
    let mut batch = Vec::with_capacity(100);
    for first in (0..events).step_by(100) {
        within(&store, before, "events come", || {
            batch.extend((first..first + 100).map(|n| (KEY, Time(5), make(n))));
            windows
                .add_batch(Time(50), &mut batch, &mut |_| panic!("too late"), &mut none)
                .unwrap();
        });
    }
    let mut calls = 0;
    while !within(&store, before, "they come in", || {
        windows.advance(Time(50), 1000, &mut none).unwrap().done
    }) {
        calls += 1;
    }
    assert!(calls as u64 >= events / 1000, "{calls} calls for {events} events");
    let mut fired = BTreeMap::new();
    let mut told = |_: &u64, window: alluvium::Window, count, diff| {
        assert_eq!(diff, 1);
        fired.insert(window.end.0, count);
    };
    within(&store, before, "they fire", || windows.advance_all(Time(200), &mut told).unwrap());
    assert_eq!(fired, (60..=100).step_by(10).map(|end| (end, events)).collect());
    let stats = store.stats().unwrap().memory;
    assert!(stats.peak <= memory, "{stats:?}");
    drop((windows, store));
    let left = held() - before;
    assert!(left <= BESIDE, "{left} bytes are held when all is gone");
}

#[test]
fn a_hundred_thousand_late_events_of_one_key_are_booked() {
    for layout in [AnyLayout::from(Heap::new()), AppendLog::new().into()] {
        of_one_key(layout, 100_000, 32 * MIB, |n| n);
    }
}

#[test]
fn copies_of_large_late_events_are_booked() {
    for layout in [AnyLayout::from(Heap::new()), AppendLog::new().into()] {
        of_one_key(layout, 1000, 64 * MIB, |n| vec![n as u8; 16 << 10]);
    }
}
