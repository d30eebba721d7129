//! What is kept from one window to the next goes to storage when memory gets short, or is dropped,
//! and takes no room that events need.

use std::collections::BTreeMap;
use std::sync::Arc;

use alluvium::config::Helpers;
use alluvium::io::{Faults, Simulated};
use alluvium::time::nanos;
use alluvium::types::hash_word;
use alluvium::{
    Aggregate, Aggregated, ErrorKind, KIB, MIB, Store, Time, Window, WindowSegments, Windows,
};

/// The highest number, and the last one that came: in the order of slices.
struct HighestAndLast;

impl Aggregate<u64> for HighestAndLast {
    type Acc = (u64, u64);
    type Out = (u64, u64);

    fn init(&self) -> (u64, u64) {
        (0, 0)
    }

    fn add(&self, acc: &mut (u64, u64), element: &u64) {
        self.merge(acc, &(*element, *element));
    }

    fn merge(&self, acc: &mut (u64, u64), later: &(u64, u64)) {
        *acc = (acc.0.max(later.0), later.1);
    }

    fn out(&self, acc: &(u64, u64)) -> Option<(u64, u64)> {
        Some(*acc)
    }
}

type InSegments = Aggregated<u64, u64, HighestAndLast, WindowSegments>;
type Told = BTreeMap<(Window, u64), (u64, u64)>;

const LENGTH: i64 = 30;

fn open(store: &Store) -> InSegments {
    let windows = Windows::sliding(nanos(LENGTH), nanos(1));
    store.aggregated("w").layout(WindowSegments::new()).open(windows, HighestAndLast).unwrap()
}

/// Some of the keys have an event in a slice.
fn events(slice: i64, keys: u64) -> Vec<(u64, Time, u64)> {
    let of = |key: u64| hash_word(key * 1000 + slice as u64);
    (0..keys).filter(|key| of(*key) % 3 > 0).map(|key| (key, Time(slice), of(key))).collect()
}

/// Runs slices in which ever more keys come; says how many of the events found no room.
fn run(store: &Store, slices: i64, keys_of: impl Fn(i64) -> u64) -> u64 {
    let mut windows = open(store);
    let (mut told, mut expected, mut refused) = (Told::new(), Told::new(), 0);
    let note = |told: &mut Told, key: &u64, window, row| {
        assert!(told.insert((window, *key), row).is_none(), "{key} {window:?} came twice");
    };
    for slice in 0..slices {
        let mut batch = events(slice, keys_of(slice));
        let wanted = batch.clone();
        if let Err(error) =
            windows.add_batch(Time(slice), &mut batch, &mut |_| (), &mut |_, _, _, _| ())
        {
            assert_eq!(error.kind(), ErrorKind::OverBudget);
            refused += batch.len() as u64;
        }
        for (key, at, element) in &wanted[..wanted.len() - batch.len()] {
            for end in at.0 + 1..=at.0 + LENGTH {
                let window = Window { start: Time(end - LENGTH), end: Time(end) };
                HighestAndLast.add(expected.entry((window, *key)).or_default(), element);
            }
        }
        let out = &mut |key: &u64, window, row, _| note(&mut told, key, window, row);
        while !windows.advance(Time(slice + 1), 500, out).unwrap().done {
            store.tick(10).unwrap();
        }
    }
    let out = &mut |key: &u64, window, row, _| note(&mut told, key, window, row);
    while !windows.advance(Time::MAX, 500, out).unwrap().done {
        store.tick(10).unwrap();
    }
    assert!(told == expected);
    let stats = store.stats().unwrap();
    assert!(stats.memory.peak <= store.memory_bytes(), "{stats}");
    refused
}

#[test]
fn windows_and_what_is_kept_of_them_may_be_larger_than_memory() {
    let device = Simulated::new(3, Faults::none());
    let store = Store::in_memory()
        .memory(2 * MIB)
        .max_value(4 * KIB)
        .helpers(Helpers::Inline)
        .device(Arc::new(device))
        .open()
        .unwrap();
    // Thirty slices of two thirds of 3,000 keys, 24 bytes each and more.
    assert_eq!(run(&store, 60, |_| 3_000), 0);
    let stats = store.stats().unwrap();
    let stacks = stats.states.iter().find(|state| state.name == "w/stacks").unwrap();
    assert!(stacks.table.flushed_bytes > 0, "{stats}");
}

#[test]
fn events_find_the_room_that_stacks_have_taken() {
    let store = Store::in_memory().memory(4 * MIB).helpers(Helpers::Inline).open().unwrap();
    let keys = |slice: i64| (slice as u64).min(50) * 90;
    assert_eq!(run(&store, 80, keys), 0);
}
