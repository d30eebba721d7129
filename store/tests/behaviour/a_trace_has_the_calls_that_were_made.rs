//! A store that is traced answers as others do, and its files have each call that took effect, in order.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::Duration;

use alluvium::backend::Cursor;
use alluvium::config::TraceOptions;
use alluvium::types::hash_word;
use alluvium::{
    AnyLayout, Counting, Heap, HybridLog, KIB, KeyHash, MIB, SECOND, Store, Time, Windows,
};

use crate::common::Dice;

type Made = Vec<(&'static str, String, u64)>;

/// The accesses of a file; their times do not run backwards.
fn read(path: &Path) -> Vec<(String, String, u64)> {
    let (mut last, mut accesses) = (0, Vec::new());
    for line in fs::read_to_string(path).unwrap().lines().filter(|line| !line.starts_with('#')) {
        let words: Vec<&str> = line.split(' ').collect();
        let [time, access, key, bytes] = words[..] else { panic!("{line}") };
        let time: u64 = time.parse().unwrap();
        assert!(time >= last, "{line} after {last}");
        last = time;
        accesses.push((access.to_owned(), key.to_owned(), bytes.parse().unwrap()));
    }
    accesses
}

fn owned(made: &Made) -> Vec<(String, String, u64)> {
    made.iter().map(|(access, key, bytes)| (access.to_string(), key.clone(), *bytes)).collect()
}

fn size(value: &[u8], capacity: usize) -> u64 {
    let _ = value;
    (size_of::<Vec<u8>>() + if capacity == 0 { 0 } else { heap(capacity) }) as u64
}

/// What an allocation of so many bytes is measured as.
fn heap(capacity: usize) -> usize {
    use alluvium::types::HeapSize;
    Vec::<u8>::with_capacity(capacity).heap_bytes()
}

/// A history of a map, its model, and what the trace has to have.
fn play(seed: u64, layout: AnyLayout, options: TraceOptions) -> Made {
    let (mut dice, mut made) = (Dice(seed), Made::new());
    let mut model: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
    let store = Store::in_memory().memory(16 * MIB).trace(options).open().unwrap();
    let mut map = store.map::<u64, Vec<u8>>("bytes").layout(layout).open().unwrap();
    let of = |bytes: usize| vec![bytes as u8; bytes];
    for _ in 0..2000 {
        let key = dice.below(50);
        let (bytes, name) = (dice.below(40) as usize, key.to_string());
        let written = size(&of(bytes), bytes);
        match dice.below(12) {
            0 | 1 => {
                map.update(&key, Vec::new, |value| *value = of(bytes)).unwrap();
                model.insert(key, of(bytes));
                made.extend([("get", name.clone(), 0), ("put", name, written)]);
            }
            2 => {
                let done = map.modify(&key, |value| *value = of(bytes)).unwrap();
                made.push(("get", name.clone(), 0));
                assert_eq!(done.is_some(), model.contains_key(&key));
                if let Some(value) = model.get_mut(&key) {
                    *value = of(bytes);
                    made.push(("put", name, written));
                }
            }
            3 => {
                assert_eq!(
                    map.put(key, of(bytes)).unwrap(),
                    model.insert(key, of(bytes)).is_some()
                );
                made.push(("put", name, written));
            }
            4 => {
                assert_eq!(map.take(&key).unwrap(), model.remove(&key));
                made.extend([("get", name.clone(), 0), ("delete", name, 0)]);
            }
            5 => {
                assert_eq!(map.remove(&key).unwrap(), model.remove(&key).is_some());
                made.push(("delete", name, 0));
            }
            6 => {
                assert_eq!(map.get(&key).unwrap().as_deref(), model.get(&key));
                assert_eq!(map.peek(&key).unwrap().as_deref(), model.get(&key));
                made.extend([("get", name.clone(), 0), ("get", name, 0)]);
            }
            7 => {
                map.read(&key, |value| assert_eq!(value, model.get(&key))).unwrap();
                made.push(("get", name, 0));
            }
            8 => {
                assert_eq!(map.contains(&key).unwrap(), model.contains_key(&key));
                made.push(("get", name, 0));
            }
            9 => {
                let keys: Vec<u64> = (0..dice.below(9)).map(|_| dice.below(50)).collect();
                let change = |_: &u64, value: &mut Vec<u8>| *value = of(bytes);
                map.update_batch(&keys, |key| key, |_| Vec::new(), change).unwrap();
                map.read_batch(&keys, |key| key, |_, value| assert!(value.is_some())).unwrap();
                for key in &keys {
                    model.insert(*key, of(bytes));
                    let name = key.to_string();
                    made.extend([("get", name.clone(), 0), ("put", name, written)]);
                }
                made.extend(keys.iter().map(|key| ("get", key.to_string(), 0)));
            }
            10 => {
                let entries: Vec<_> = (0..dice.below(9)).map(|n| (50 + n, of(bytes))).collect();
                model.extend(entries.iter().cloned());
                made.extend(entries.iter().map(|(key, _)| ("put", key.to_string(), written)));
                map.load(entries).unwrap();
            }
            _ => {
                let (mut cursor, mut seen) = (Cursor::default(), BTreeSet::new());
                while !cursor.done {
                    let visit = |key: &u64, value: &Vec<u8>| {
                        assert!(model.get(key) == Some(value) && seen.insert(*key));
                        made.push(("get", key.to_string(), 0));
                        Ok(())
                    };
                    map.scan(&mut cursor, 16, visit).unwrap();
                }
                assert_eq!(seen.len(), model.len());
            }
        }
    }
    drop(map);
    store.close().unwrap();
    made
}

#[test]
fn a_map() {
    for (seed, layout) in
        [(1, AnyLayout::from(Heap::new())), (2, AnyLayout::from(HybridLog::new()))]
    {
        let place = tempfile::tempdir().unwrap();
        let made = play(seed, layout, TraceOptions::to(place.path()));
        let found = read(&place.path().join("bytes.trace"));
        assert_eq!(found.len(), made.len());
        let different = found.iter().zip(owned(&made)).find(|(found, made)| **found != *made);
        assert_eq!(different, None);
    }
}

#[test]
fn calls_are_counted_as_without_a_trace() {
    let place = tempfile::tempdir().unwrap();
    let calls = |is_recorded: bool| {
        let builder = Store::in_memory().memory(16 * MIB);
        let builder = match is_recorded {
            true => builder.trace(TraceOptions::to(place.path())),
            false => builder,
        };
        let store = builder.open().unwrap();
        let mut map = store.map::<u64, u64>("counted").open().unwrap();
        let keys: Vec<u64> = (0..100).collect();
        for key in &keys {
            map.update(key, || 0, |value| *value += 1).unwrap();
            map.read(key, |value| assert_eq!(value, Some(&1))).unwrap();
            assert!(map.get(key).unwrap().is_some() && map.contains(key).unwrap());
        }
        map.read_batch(&keys, |key| key, |_, value| assert_eq!(value, Some(&1))).unwrap();
        map.update_batch(&keys, |key| key, |_| 0, |_, value| *value += 1).unwrap();
        map.read_batch(&[] as &[u64], |key| key, |_, _| ()).unwrap();
        map.stats().unwrap().calls
    };
    assert_eq!((calls(false), calls(true)), (600, 600));
}

#[test]
fn a_sample_has_all_calls_on_the_keys_that_it_has() {
    let layout = || AnyLayout::from(Heap::new());
    for (sample, hash_keys) in [(0.5, false), (0.1, false), (0.3, true)] {
        let place = tempfile::tempdir().unwrap();
        let options = TraceOptions { sample, hash_keys, ..TraceOptions::to(place.path()) };
        let made = play(7, layout(), options);
        let limit = (sample * 2f64.powi(64)) as u64;
        let sampled = made.into_iter().filter_map(|(access, key, bytes)| {
            let hash = key.parse::<u64>().unwrap().key_hash();
            let name = if hash_keys { format!("#{hash:016x}") } else { key };
            (hash_word(hash) <= limit).then_some((access, name, bytes))
        });
        let sampled: Made = sampled.collect();
        assert!(sampled.len() > 100, "{sample}: {}", sampled.len());
        assert_eq!(read(&place.path().join("bytes.trace")), owned(&sampled), "{sample}");
    }
}

#[test]
fn states_are_chosen_by_name_and_each_run_has_files_of_its_own() {
    let place = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        let states = vec!["a count".to_owned()];
        let options = TraceOptions { states, ..TraceOptions::to(place.path()) };
        let store = Store::in_memory().memory(16 * MIB).trace(options).open().unwrap();
        let mut counts = store.count::<String>("a count").open().unwrap();
        let mut other = store.count::<String>("another").open().unwrap();
        counts.add("to be", 1).unwrap();
        other.add("to be", 1).unwrap();
        let stats = store.stats().unwrap();
        assert_eq!(stats.traces.len(), 1);
        assert_eq!((stats.traces[0].state.as_str(), stats.traces[0].missing), ("a count", 0));
        assert!(stats.to_string().contains("trace of a count: "));
    }
    let mut files: Vec<_> =
        fs::read_dir(place.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    files.sort();
    assert_eq!(files, ["a_count-1.trace", "a_count.trace"]);
    let lines = [("get", "to%20be".to_owned(), 0), ("put", "to%20be".to_owned(), 8)].to_vec();
    for file in files {
        assert_eq!(read(&place.path().join(file)), owned(&lines));
    }
}

/// Of a load the trace has each put, in order, also where new keys would go to sorted runs all at once.
#[test]
fn a_load_of_many_entries() {
    let (place, traced) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let options = TraceOptions { wait_ms: 60_000, ..TraceOptions::to(traced.path()) };
    let store = Store::builder(place.path()).memory(4 * MIB).max_value(4 * KIB).trace(options);
    let store = store.open().unwrap();
    let layout = AnyLayout::from(HybridLog::new().memory(MIB).cold_runs(true));
    let mut counts = store.map::<u64, u64>("counts").layout(layout).open().unwrap();
    let keys = 40_000;
    assert_eq!(counts.load((0..keys).map(|key| (key, key))).unwrap(), keys);
    assert!(counts.stats().unwrap().runs.keys > 0 && counts.len().unwrap() == keys);
    drop((counts, store));
    let found = read(&traced.path().join("counts.trace"));
    let made = (0..keys).map(|key| ("put".to_owned(), key.to_string()));
    assert!(found.into_iter().map(|(access, key, _)| (access, key)).eq(made));
}

#[test]
fn lists_and_values() {
    let place = tempfile::tempdir().unwrap();
    let options = TraceOptions::to(place.path());
    let store = Store::in_memory().memory(16 * MIB).trace(options).open().unwrap();
    let mut list = store.list::<u32, u64>("list").open().unwrap();
    list.append(&1, 5).unwrap();
    list.append_batch(&mut vec![(1, 6), (2, 7)]).unwrap();
    assert_eq!(list.drain(&1).unwrap(), [5, 6]);
    assert_eq!(list.drain(&3).unwrap(), [0u64; 0]);
    list.clear(&2).unwrap();
    let mut value = store.value::<u64>("value").open().unwrap();
    value.set(3).unwrap();
    assert_eq!(value.take().unwrap(), Some(3));
    drop((list, value, store));
    let key = |key: &str| key.to_owned();
    let made = vec![
        ("merge", key("1"), 8),
        ("merge", key("1"), 8),
        ("merge", key("2"), 8),
        ("get", key("1"), 0),
        ("delete", key("1"), 0),
        ("get", key("3"), 0),
        ("delete", key("2"), 0),
    ];
    assert_eq!(read(&place.path().join("list.trace")), owned(&made));
    let made = vec![("put", key("()"), 8), ("get", key("()"), 0), ("delete", key("()"), 0)];
    assert_eq!(read(&place.path().join("value.trace")), owned(&made));
}

#[test]
fn windows_by_slice_and_what_they_purge() {
    let place = tempfile::tempdir().unwrap();
    let options = TraceOptions::to(place.path());
    let store = Store::in_memory().memory(16 * MIB).trace(options).open().unwrap();
    let windows = Windows::tumbling(Duration::from_secs(1));
    let mut counts = store.aggregated("counts").open(windows, Counting).unwrap();
    let at = |seconds: i64| Time(seconds * SECOND);
    let mut batch = vec![(1u64, at(0), ()), (2, at(0), ()), (1, at(0), ()), (1, at(1), ())];
    counts.add_batch(Time::MIN, &mut batch, &mut |_| {}, &mut |_, _, _, _| {}).unwrap();
    let mut told = Vec::new();
    let mut tell = |key: &u64, _, count: i64, _| told.push((*key, count));
    while !counts.advance(at(1), 1000, &mut tell).unwrap().done {}
    told.sort_unstable();
    assert_eq!(told, [(1, 2), (2, 1)]);
    drop((counts, store));
    let found = read(&place.path().join("counts.trace"));
    let key = |key: u64, seconds: i64| format!("{key}@{}", seconds * SECOND);
    let mut made: Made = Vec::new();
    for (of, seconds) in [(1, 0), (2, 0), (1, 0), (1, 1)] {
        made.extend([("get", key(of, seconds), 0), ("put", key(of, seconds), 8)]);
    }
    assert_eq!(found[..8], owned(&made)[..]);
    let mut fired: Vec<_> = found[8..10].to_vec();
    fired.sort();
    assert_eq!(fired, owned(&vec![("get", key(1, 0), 0), ("get", key(2, 0), 0)]));
    assert_eq!(found[10..], owned(&vec![("purge", format!("@{SECOND}"), 0)])[..]);
}

#[test]
fn calls_that_fail_are_not_there_and_the_buffer_is_of_the_stores_memory() {
    let place = tempfile::tempdir().unwrap();
    let options = TraceOptions::to(place.path());
    let open = |memory| Store::in_memory().memory(memory).trace(options.clone()).open().unwrap();
    let store = open(MIB);
    let mut map = store.map::<u64, Vec<u8>>("map").layout(Heap::new()).open().unwrap();
    assert!(store.stats().unwrap().memory.used >= 256 * KIB);
    let mut made = Made::new();
    for key in 0..1000 {
        if map.put(key, vec![0; 4000]).is_err() {
            break;
        }
        made.push(("put", key.to_string(), size(&[], 4000)));
    }
    assert!((10..400).contains(&made.len()), "{}", made.len());
    drop((map, store));
    assert_eq!(read(&place.path().join("map.trace")), owned(&made));
    let store = open(128 * KIB);
    let error = store.map::<u64, u64>("map").layout(Heap::new()).open().unwrap_err().to_string();
    assert!(error.contains("the buffer of a trace"), "{error}");
}
