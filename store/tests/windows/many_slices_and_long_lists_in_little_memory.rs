//! Many small slices, sessions and long lists are taken in memory far below their size: what is on storage costs the
//! device's room, and makes calls wait, but no call is refused.

use std::collections::BTreeMap;
use std::sync::Arc;

use alluvium::config::Helpers;
use alluvium::io::{Faults, Simulated};
use alluvium::time::nanos;
use alluvium::types::hash_word;
use alluvium::{
    AppendLog, Counting, Elements, KIB, List, MIB, State, Store, Time, TimeMap, Windows, process,
};

use crate::dice::times;

const SECOND: i64 = 1_000_000_000;

fn store(memory: u64, helpers: Helpers) -> Store {
    let device = Simulated::new(7, Faults::none());
    let builder = Store::in_memory().memory(memory).max_value(4 * KIB);
    builder.helpers(helpers).device(Arc::new(device)).open().unwrap()
}

fn packing() -> AppendLog {
    AppendLog::new().packs_slices(true)
}

/// The values of a key at times in a range.
fn range<V: State>(
    map: &mut TimeMap<u64, V, AppendLog>,
    key: u64,
    times: std::ops::Range<i64>,
) -> Vec<(i64, V)> {
    let mut found = Vec::new();
    let visit = |at: Time, value: &V| {
        found.push((at.0, value.clone()));
        Ok(())
    };
    map.range(&key, Time(times.start)..Time(times.end), visit).unwrap();
    found
}

fn assert_within(store: &Store, memory: u64) {
    let stats = store.stats().unwrap();
    assert!(stats.memory.peak <= memory, "{} of {memory}: {stats}", stats.memory.peak);
}

#[test]
fn a_value_a_second_is_taken_for_days_in_eight_mebibytes() {
    let (memory, seconds) = (8 * MIB, 200_000);
    let store = store(memory, Helpers::Inline);
    let mut map =
        store.time_map::<u64, [u64; 4]>("values").layout(packing()).open(nanos(SECOND)).unwrap();
    for second in 0..seconds {
        let at = Time(second * SECOND + 5);
        map.insert(&7, at, [second as u64; 4]).unwrap_or_else(|refused| {
            panic!("{second}: {}", refused.error);
        });
    }
    assert_eq!(map.len().unwrap(), seconds as u64);
    let stats = store.stats().unwrap();
    let table = &stats.state("values").unwrap().table;
    println!("{stats}");
    assert!(table.disk_bytes >= 32 * seconds as u64, "{stats}");
    assert!(table.live_keys >= seconds as u64 * 9 / 10, "{stats}");
    assert!(table.live_disk_bytes <= table.disk_bytes, "{stats}");
    for first in (0..seconds - 3).step_by(1_009) {
        let wanted: Vec<_> = (first..first + 3).map(|s| (s * SECOND + 5, [s as u64; 4])).collect();
        assert_eq!(range(&mut map, 7, first * SECOND..(first + 3) * SECOND), wanted, "{first}");
        assert_eq!(range(&mut map, 8, first * SECOND..(first + 3) * SECOND), []);
    }
    while !map.purge(Time((seconds - 10) * SECOND), 1_000).unwrap() {}
    assert_eq!(range(&mut map, 7, 0..i64::MAX).len(), 10);
    while store.tick(1_000).unwrap() > 0 {}
    // What is purged does not count, and its files go.
    let stats = store.stats().unwrap();
    let table = &stats.state("values").unwrap().table;
    assert!(table.live_keys <= 100, "{stats}");
    assert!(table.disk_bytes < MIB, "{stats}");
    assert_within(&store, memory);
}

#[test]
fn counts_of_small_slices_are_taken_for_hours_in_four_mebibytes() {
    count_in_small_slices(4 * MIB, 12_000);
}

/// The least memory in which they share runs.
#[test]
fn counts_of_small_slices_are_taken_in_a_mebibyte() {
    count_in_small_slices(MIB, 4_000);
}

/// Counts of sliding windows: a key or two in each of many slices, some of them again later.
fn count_in_small_slices(memory: u64, seconds: i64) {
    let store = store(memory, Helpers::Inline);
    let windows = Windows::sliding(nanos(3 * SECOND), nanos(SECOND));
    let mut counts = store.aggregated::<u64, u64, _>("counts").open(windows, Counting).unwrap();
    let mut expected = BTreeMap::<(i64, u64), i64>::new();
    for n in 0..2 * seconds {
        let second = if n % 7 == 0 { (hash_word(n as u64) % seconds as u64) as i64 } else { n / 2 };
        let key = n as u64 % 3;
        let mut batch = vec![(key, Time(second * SECOND + 5), 1)];
        counts
            .add_batch(Time(0), &mut batch, &mut |_| {}, &mut |_, _, _, _| {})
            .unwrap_or_else(|refused| panic!("{n}: {refused}"));
        for start in second - 2..=second {
            *expected.entry((start * SECOND, key)).or_default() += 1;
        }
    }
    let mut found = BTreeMap::new();
    counts
        .advance_all(Time((seconds + 9) * SECOND), &mut |key, window, count, _| {
            assert_eq!(found.insert((window.start.0, *key), count), None, "{window:?} {key}");
        })
        .unwrap();
    assert!(found == expected);
    assert_within(&store, memory);
}

#[test]
fn forty_slices_in_turns_take_any_number_of_strings_in_two_mebibytes() {
    take_strings(100_000);
}

#[test]
#[ignore = "takes a minute"]
fn forty_slices_in_turns_take_half_a_million_strings_in_two_mebibytes() {
    take_strings(500_000);
}

fn take_strings(strings: u64) {
    let memory = 2 * MIB;
    let store = store(memory, Helpers::Inline);
    let mut map =
        store.time_map::<u64, String>("strings").layout(packing()).open(nanos(SECOND)).unwrap();
    let place = |n: u64| (n % 97, (n % 40) as i64 * SECOND + (n / 40) as i64);
    for n in 0..strings {
        let (key, at) = place(n);
        map.insert(&key, Time(at), format!("{n:012}")).unwrap_or_else(|refused| {
            panic!("{n}: {}", refused.error);
        });
    }
    assert_eq!(map.len().unwrap(), strings);
    let mut model: BTreeMap<u64, Vec<(i64, String)>> = BTreeMap::new();
    for n in 0..strings {
        let (key, at) = place(n);
        model.entry(key).or_default().push((at, format!("{n:012}")));
    }
    for (key, mut values) in model {
        values.sort_by_key(|(at, _)| *at);
        assert!(range(&mut map, key, 0..i64::MAX) == values, "key {key}");
    }
    assert_within(&store, memory);
}

/// The order in which the entries of one key come.
#[derive(Clone, Copy, Debug)]
enum Order {
    Sorted,
    Mixed,
    /// All at one time.
    Equal,
}

#[test]
fn one_key_of_many_entries_is_read_in_two_mebibytes() {
    let (memory, entries) = (2 * MIB, 100_000u64);
    for order in [Order::Sorted, Order::Mixed, Order::Equal] {
        let store = store(memory, Helpers::Inline);
        let mut map =
            store.time_map::<u64, u64>("entries").layout(packing()).open(nanos(SECOND)).unwrap();
        let at = |n: u64| match order {
            Order::Sorted => n as i64,
            // Each time a few times.
            Order::Mixed => (hash_word(n) % 30_000) as i64,
            Order::Equal => 77,
        };
        for n in 0..entries {
            map.insert(&7, Time(at(n)), n).unwrap_or_else(|refused| {
                panic!("{order:?}, {n}: {}", refused.error);
            });
        }
        let mut wanted: Vec<_> = (0..entries).map(|n| (at(n), n)).collect();
        wanted.sort_by_key(|(at, _)| *at);
        assert!(range(&mut map, 7, 0..SECOND) == wanted, "{order:?}");
        wanted.retain(|(at, _)| (70..9_000).contains(at));
        assert!(range(&mut map, 7, 70..9_000) == wanted, "{order:?}");
        assert_within(&store, memory);
    }
}

#[test]
fn a_list_of_many_elements_is_read_in_two_mebibytes() {
    let (memory, elements) = (2 * MIB, 400_000u64);
    let store = store(memory, Helpers::Inline);
    let mut list = store.list::<u64, u64>("elements").layout(packing()).open().unwrap();
    for n in 0..elements {
        list.append(&7, n).unwrap();
    }
    let mut next = 0;
    let visit = |element: &u64| {
        assert_eq!(*element, next);
        next += 1;
        Ok(())
    };
    assert_eq!(list.read(&7, visit).unwrap(), elements);
    assert_within(&store, memory);
}

#[test]
fn holistic_sessions_of_two_thousand_keys_are_taken_in_one_mebibyte() {
    take_sessions(MIB, 2_000, 6);
}

/// Their sets and events are on storage, and notes of those that have closed are merged away.
#[test]
fn holistic_sessions_of_four_thousand_keys_are_taken_in_one_mebibyte() {
    take_sessions(MIB, 4_000, 2);
}

#[test]
#[ignore = "takes a minute"]
fn holistic_sessions_of_forty_thousand_keys_are_taken_in_four_mebibytes() {
    take_sessions(4 * MIB, 40_000, 1);
}

/// As many as `OPEN_SESSIONS` says in as many KiB as `SESSIONS_KIB` says.
#[test]
#[ignore = "takes minutes"]
fn holistic_sessions_of_any_number_of_keys_are_taken() {
    take_sessions(times("SESSIONS_KIB", 1024) * KIB, times("OPEN_SESSIONS", 20_000), 2);
}

/// Each key has sessions of five events; all sessions are open at once.
fn take_sessions(memory: u64, keys: u64, rounds: i64) {
    let gap = 10_000;
    let device = Simulated::new(7, Faults::none());
    let reopened = || {
        let builder = Store::in_memory().memory(memory).max_value(4 * KIB);
        builder.helpers(Helpers::Inline).device(Arc::new(device.clone())).open().unwrap()
    };
    let windows = Windows::session(nanos(gap));
    let all = |_: &u64,
               _: alluvium::Window,
               events: &mut dyn Elements<u64>,
               emit: &mut dyn FnMut(Vec<u64>)| {
        let mut all = Vec::new();
        while let Some(event) = events.next()? {
            all.push(*event);
        }
        emit(all);
        Ok(())
    };
    let open = |store: &Store| {
        let open = store.holistic::<u64, u64>("sessions").layout(packing());
        open.open(windows, process(all)).unwrap()
    };
    let mut store = reopened();
    let mut sessions = open(&store);
    let (mut told, mut wanted) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        let first = round * 4 * gap;
        let mut model: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for event in 0..5 * keys {
            let key = hash_word(event) % keys;
            let at = Time(first + event as i64 * 1_000 / keys as i64);
            let value = round as u64 * 1_000_000 + event;
            model.entry(key).or_default().push(value);
            let mut batch = vec![(key, at, value)];
            let added =
                sessions.add_batch(Time(first), &mut batch, &mut |_| (), &mut |_, _, _, _| ());
            added.unwrap_or_else(|error| {
                panic!("round {round}, event {event}: {error}\n{}", store.stats().unwrap())
            });
        }
        wanted.extend(model);
        // All of them are there again in the same memory.
        store.checkpoint(round as u64).unwrap();
        drop((sessions, store));
        store = reopened();
        sessions = open(&store);
        let mut out =
            |key: &u64, _: alluvium::Window, all: Vec<u64>, _: i64| told.push((*key, all));
        while !sessions.advance(Time(first + 3 * gap), 100, &mut out).unwrap().done {
            store.tick(10).unwrap();
        }
    }
    told.sort_unstable();
    wanted.sort_unstable();
    assert!(told == wanted, "{} sessions of {}", told.len(), wanted.len());
    assert_within(&store, memory);
}

#[test]
fn a_time_map_takes_in_one_mebibyte_what_it_takes_in_64() {
    let inserts = 60_000u64;
    let mut answers = Vec::new();
    for memory in [MIB, 64 * MIB] {
        let store = store(memory, Helpers::Inline);
        let mut map =
            store.time_map::<u64, u64>("prices").layout(packing()).open(nanos(1_000)).unwrap();
        // Each value is late by up to 300 slices.
        for n in 0..inserts {
            let at = (n * 100) as i64 + 300_000 - (hash_word(n) % 300_000) as i64;
            map.insert(&(hash_word(n ^ 5) % 50), Time(at), n).unwrap_or_else(|refused| {
                panic!("{memory} bytes, {n}: {}", refused.error);
            });
        }
        assert_eq!(map.len().unwrap(), inserts);
        let key = |key: u64| range(&mut map, key, 1_000_000..3_000_000);
        answers.push((0..50).map(key).collect::<Vec<_>>());
        map.remove_range(&3, Time(1_000_000)..Time(1_400_000)).unwrap();
        assert_eq!(range(&mut map, 3, 1_000_000..1_400_000), []);
        assert_within(&store, memory);
    }
    let found: usize = answers[0].iter().map(Vec::len).sum();
    assert!(found > 10_000, "{found}");
    assert!(answers[0] == answers[1]);
}

/// Lists of five megabytes in all are filled, read and cleared.
fn clear_again_and_again(memory: u64, helpers: Helpers, rounds: u64) {
    let (keys, bytes) = (500u64, 200);
    let store = store(memory, helpers);
    let mut lists: List<u64, String, _> = store.list("lists").layout(packing()).open().unwrap();
    let text = |n: u64| format!("{n:0bytes$}");
    let mut model: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    let mut n = 0;
    for round in 0..rounds {
        for step in 0..25_000 {
            let key = hash_word(step ^ round << 32) % keys;
            lists.append(&key, text(n)).unwrap_or_else(|refused| {
                panic!("{memory} bytes, round {round}, step {step}: {}", refused.error);
            });
            model.entry(key).or_default().push(n);
            n += 1;
        }
        for key in 0..keys {
            if key % 50 == 0 {
                let wanted: Vec<_> =
                    model.get(&key).into_iter().flatten().map(|n| text(*n)).collect();
                assert!(lists.to_vec(&key).unwrap() == wanted, "round {round}, key {key}");
            }
            lists.clear(&key).unwrap_or_else(|error| {
                panic!("{memory} bytes, round {round}, key {key}: {error}");
            });
        }
        model.clear();
    }
    for key in 0..keys {
        assert_eq!(lists.read(&key, |_| Ok(())).unwrap(), 0, "key {key}");
    }
    assert_within(&store, memory);
}

#[test]
fn lists_that_are_cleared_again_and_again_are_taken_in_little_memory() {
    for memory in [640 * KIB, 800 * KIB] {
        clear_again_and_again(memory, Helpers::Inline, 2);
        clear_again_and_again(memory, Helpers::Thread, 3);
    }
}
