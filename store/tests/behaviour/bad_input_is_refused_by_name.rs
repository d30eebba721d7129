//! What a caller can get wrong: each is an error that names what and where, changes nothing, and
//! leaves a store that works.

use crate::common;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use alluvium::config::MEMORY_BYTES_MIN;
use alluvium::io::{Faults, Simulated};
use alluvium::time::nanos;
use alluvium::{
    AnyLayout, Counting, Error, ErrorKind, Heap, HybridLog, KIB, MIB, Map, Store, StoreConfig,
    Time, Ttl, Windows,
};

const LAYOUTS: [&str; 2] = AnyLayout::NAMES;

fn device() -> Simulated {
    Simulated::new(1, Faults::none())
}

fn open(device: &Simulated, layout: &str) -> Store {
    let layout = AnyLayout::named(layout).unwrap();
    common::open_on(Arc::new(device.clone()), layout, MIB).unwrap()
}

/// The error is of this kind and its text has all of these words.
#[track_caller]
fn assert_error(error: &Error, kind: ErrorKind, words: &[&str]) {
    assert_eq!(error.kind(), kind, "{error}");
    for word in words {
        assert!(error.to_string().contains(word), "no {word:?} in: {error}");
    }
}

#[test]
fn another_type_or_primitive_than_the_stored_one_is_refused() {
    for layout in LAYOUTS {
        let device = device();
        let store = open(&device, layout);
        let mut map: Map<u64, u64> = store.map("m").open().unwrap();
        map.put(1, 2).unwrap();
        store.timers::<u64>("t").unwrap().set(1, Time(1)).unwrap();
        store.checkpoint(0).unwrap();
        drop((map, store));

        let store = open(&device, layout);
        let refused = [
            (store.map::<u64, i64>("m").open().unwrap_err(), ["value type", "u64", "i64"]),
            (store.map::<u32, u64>("m").open().unwrap_err(), ["key type", "u64", "u32"]),
            (store.map::<u64, Vec<u64>>("m").open().unwrap_err(), ["value type", "u64", "Vec"]),
            (store.count::<u64>("m").open().unwrap_err(), ["primitive", "map", "count"]),
            (store.value::<u64>("m").open().unwrap_err(), ["primitive", "map", "value"]),
            (store.timers::<u64>("m").unwrap_err(), ["primitive", "map", "timers"]),
            (store.timers::<u32>("t").unwrap_err(), ["key type", "u64", "u32"]),
            (store.map::<u64, u64>("t").open().unwrap_err(), ["primitive", "timers", "map"]),
        ];
        for (error, words) in &refused {
            assert_error(error, ErrorKind::Mismatch, words);
            assert_error(error, ErrorKind::Mismatch, &["state"]);
        }
        // The refusals took nothing: what is not open is carried over, and opens.
        store.checkpoint(1).unwrap();
        let mut map: Map<u64, u64> = store.map("m").open().unwrap();
        assert_eq!(map.get(&1).unwrap().as_deref(), Some(&2));
        assert_eq!(store.timers::<u64>("t").unwrap().len(), 1);
    }
}

#[test]
fn other_key_groups_than_the_directorys_are_refused() {
    let device = device();
    let with = |groups: u16, owned| {
        let device = Arc::new(device.clone());
        Store::in_memory().device(device).key_groups(groups).owned_groups(owned).open()
    };
    with(256, 0..256).unwrap().checkpoint(0).unwrap();
    let error = with(128, 0..128).unwrap_err();
    assert_error(&error, ErrorKind::Mismatch, &["0..256 of 256", "0..128 of 128"]);
    let error = with(256, 0..128).unwrap_err();
    assert_error(&error, ErrorKind::Mismatch, &["0..256 of 256", "0..128 of 256"]);
    with(256, 0..256).unwrap();
    assert_error(&with(256, 5..5).unwrap_err(), ErrorKind::Config, &["5..5"]);
    assert_error(&with(256, 0..257).unwrap_err(), ErrorKind::Config, &["0..257"]);
    assert_error(&with(0, 0..0).unwrap_err(), ErrorKind::Config, &["key_groups", "0"]);
}

#[test]
fn a_configuration_file_is_refused_by_file_line_and_option() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("store.toml");
    let refused = |text: &str| {
        std::fs::write(&file, text).unwrap();
        StoreConfig::from_file(&file).unwrap_err()
    };
    let named = file.display().to_string();
    for (text, words) in [
        ("[layout]\nkind = \"btree\"\n", ["btree", "hybrid-log", "line"]),
        ("memory = \"1MiB\"\nmemry = \"1MiB\"\n", ["memry", "memory", "line 2"]),
        ("[layout]\nkind = \"heap\"\nmemry = \"1MiB\"\n", ["memry", "memory", "line"]),
        ("[layout]\nkind = \"hybrid-log\"\npge = \"1MiB\"\n", ["pge", "page", "line"]),
        ("[states.a]\nkind = \"heep\"\n", ["heep", "heap", "line"]),
        ("memory = \"1 MB of it\"\n", ["1 MB of it", "memory", "line 1"]),
        ("helpers = \"many\"\n", ["many", "thread", "line 1"]),
        ("[io]\nengine = \"mmap\"\n", ["mmap", "uring", "line 2"]),
        ("memory = \n", ["memory", "line 1", "file"]),
    ] {
        let error = refused(text);
        assert_error(&error, ErrorKind::Config, &words);
        assert_error(&error, ErrorKind::Config, &[&named]);
    }
    let missing = StoreConfig::from_file(&place.path().join("none.toml")).unwrap_err();
    assert_error(&missing, ErrorKind::Missing, &["none.toml"]);

    std::fs::write(&file, "memory = \"2MiB\"\n[states.m]\nkind = \"heap\"\n").unwrap();
    let store = Store::from_config(StoreConfig::from_file(&file).unwrap()).open().unwrap();
    store.map::<u64, u64>("m").open().unwrap().put(1, 1).unwrap();
}

#[test]
fn a_budget_that_is_too_small_is_refused_by_number() {
    let store = Store::in_memory().memory("3MiB").max_value("8KiB".to_owned()).open().unwrap();
    assert_eq!(store.memory_bytes(), 3 << 20, "as a configuration has it");
    let builder = || Store::in_memory().max_value("much").memory("3 MB").retain(0);
    let error = builder().open().unwrap_err();
    assert_eq!((error.kind(), error.context("option")), (ErrorKind::Config, Some("max_value")));
    assert_eq!(error.message(), "\"much\" is not a size; write bytes, or like 64KiB, 256MiB, 2GiB");
    let error = Store::in_memory().memory(100).open().unwrap_err();
    assert_error(&error, ErrorKind::Config, &["100", &MEMORY_BYTES_MIN.to_string()]);
    let error = Store::in_memory().memory(32 * KIB).max_value(64 * KIB).open().unwrap_err();
    assert_error(&error, ErrorKind::Config, &["65536", "max_value"]);

    // The number that a layout names is enough, and one byte less is not.
    (1..=2).for_each(the_number_that_is_named_is_enough);
}

fn the_number_that_is_named_is_enough(generations: u32) {
    let device = device();
    let at = |memory: u64| -> Result<(), Error> {
        let layout = HybridLog::new().memory(memory).generations(generations);
        let store = common::open_on(Arc::new(device.clone()), layout, MIB)?;
        let mut map: Map<u64, Vec<u8>> = store.map("m").open()?;
        for key in 0..300 {
            map.put(key, vec![1; key as usize % 100])?;
        }
        Ok(())
    };
    let needed = |error: Error| -> u64 {
        assert_error(&error, ErrorKind::OverBudget, &["bytes to open"]);
        let words: Vec<&str> = error.message().split(' ').collect();
        let number = words.iter().position(|&word| word == "needs").unwrap() + 1;
        words[number].parse().unwrap()
    };
    // What is needed depends a little on what there is.
    let mut memory = 20_000;
    for _ in 0..5 {
        match at(memory) {
            Ok(()) => break,
            Err(error) => memory = needed(error),
        }
    }
    at(memory).unwrap();
    assert_eq!(needed(at(memory - 1).unwrap_err()), memory);
}

#[test]
fn generations_that_cannot_be_are_refused_by_state_and_number() {
    let (place, device) = (tempfile::tempdir().unwrap(), device());
    let file = place.path().join("store.toml");
    for generations in [0, 3, u32::MAX] {
        let words = [&*format!("generations is {generations}"), "1 and 2", "state m"];
        let store = open(&device, "heap");
        let layout = HybridLog::new().generations(generations);
        let map = store.map::<u64, u64>("m").layout(layout.clone()).open();
        assert_error(&map.unwrap_err(), ErrorKind::Config, &words);
        let windows = store.aggregated::<u64, u64, _>("m").layout(layout);
        let windows = windows.open(Windows::tumbling(nanos(1)), Counting);
        assert_error(&windows.unwrap_err(), ErrorKind::Config, &words);
        store.map::<u64, u64>("m").open().unwrap().put(1, 1).unwrap();
        let text = format!("[states.m]\nkind = \"hybrid-log\"\ngenerations = {generations}\n");
        std::fs::write(&file, text).unwrap();
        let store = Store::from_config(StoreConfig::from_file(&file).unwrap()).open().unwrap();
        assert_error(&store.map::<u64, u64>("m").open().unwrap_err(), ErrorKind::Config, &words);
    }
    std::fs::write(&file, "[states.m]\nkind = \"hybrid-log\"\ngenerations = 2\n").unwrap();
    let config = StoreConfig::from_file(&file).unwrap();
    assert_eq!(config.states["m"], HybridLog::new().generations(2).into());
    let store = Store::from_config(config).open().unwrap();
    store.map::<u64, u64>("m").open().unwrap().put(1, 1).unwrap();
}

#[test]
fn a_directory_is_opened_once() {
    let place = tempfile::tempdir().unwrap();
    let builder = || Store::builder(place.path()).memory(MIB).layout(Heap::new());
    let store = builder().open().unwrap();
    let named = place.path().display().to_string();
    assert_error(&builder().open().unwrap_err(), ErrorKind::Locked, &[&named]);
    // A handle that outlives its store still writes to the directory.
    let mut map: Map<u64, u64> = store.map("m").open().unwrap();
    drop(store);
    assert_error(&builder().open().unwrap_err(), ErrorKind::Locked, &[&named]);
    map.put(1, 1).unwrap();
    drop(map);
    builder().open().unwrap();
}

#[test]
fn a_name_is_opened_once_and_must_be_one() {
    for layout in LAYOUTS {
        let store = open(&device(), layout);
        let mut map: Map<u64, u64> = store.map("m").open().unwrap();
        let again = store.map::<u64, u64>("m").open().unwrap_err();
        assert_error(&again, ErrorKind::InUse, &["state m"]);
        let again = store.timers::<u64>("m").unwrap_err();
        assert_error(&again, ErrorKind::InUse, &["state m"]);
        let long = "x".repeat(201);
        for name in ["", long.as_str()] {
            let error = store.count::<u64>(name).open().unwrap_err();
            assert_error(&error, ErrorKind::Config, &["cannot name a state"]);
        }
        map.put(1, 1).unwrap();
    }
}

#[test]
fn a_closure_cannot_enter_its_own_state() {
    for layout in LAYOUTS {
        let store = open(&device(), layout);
        let mut map: Map<u64, u64> = store.map("m").open().unwrap();
        let mut other: Map<u64, u64> = store.map("other").open().unwrap();
        map.put(1, 1).unwrap();
        let seen = map
            .update(
                &1,
                || 0,
                |value| {
                    *value += 1;
                    // Other states are free; the store's calls that need this one are not.
                    other.put(1, *value).unwrap();
                    [
                        store.checkpoint(0).unwrap_err(),
                        store.tick(1).unwrap_err(),
                        store.stats().unwrap_err(),
                    ]
                },
            )
            .unwrap();
        for error in &seen {
            assert_error(error, ErrorKind::InUse, &["state m"]);
        }
        assert_eq!(map.get(&1).unwrap().as_deref(), Some(&2));
        assert_eq!(store.checkpoint(1).unwrap().entries, 2);
    }
}

#[test]
fn a_borrowed_value_keeps_checkpoints_out() {
    for layout in LAYOUTS {
        let device = device();
        let store = open(&device, layout);
        let mut before: Map<u64, u64> = store.map("a").open().unwrap();
        let mut map: Map<u64, u64> = store.map("m").open().unwrap();
        let mut after: Map<u64, u64> = store.map("z").open().unwrap();
        for map in [&mut before, &mut map, &mut after] {
            map.load((0..100).map(|key| (key, 1))).unwrap();
        }
        store.checkpoint(1).unwrap();
        before.put(1, 2).unwrap();
        map.put(1, 2).unwrap();
        let value = map.get(&1).unwrap().unwrap();
        let files = device.used_bytes();
        for _ in 0..3 {
            assert_error(&store.checkpoint(2).unwrap_err(), ErrorKind::InUse, &["state m"]);
        }
        assert_eq!(*value, 2);
        drop(value);
        if layout == "heap" {
            assert_eq!(device.used_bytes(), files, "refused checkpoints leave no files");
        }
        // The states that were asked before the borrowed one are as they were.
        before.put(1, 3).unwrap();
        store.checkpoint(2).unwrap();
        drop((before, map, after, store));
        let store = open(&device, layout);
        assert_eq!(store.restored_position(), Some(2));
        // A log may have left a segment whose records all died.
        assert!(store.leftovers() == 0 || layout != "heap", "{} files", store.leftovers());
        let mut before: Map<u64, u64> = store.map("a").open().unwrap();
        assert_eq!(before.get(&1).unwrap().as_deref(), Some(&3));
    }
}

#[test]
fn a_value_above_the_cap_comes_back() {
    let store = open(&device(), "hybrid-log");
    let mut map: Map<u64, Vec<u8>> = store.map("m").open().unwrap();
    map.put(1, vec![1; 100]).unwrap();
    let rejected = map.put(1, vec![7; 5000]).unwrap_err();
    assert_error(&rejected.error, ErrorKind::ValueTooLarge, &["state m", "4096"]);
    assert_eq!(rejected.value, (1, vec![7; 5000]));
    assert_eq!(map.get(&1).unwrap().as_deref(), Some(&vec![1; 100]));
    map.put(1, vec![7; 4000]).unwrap();
}

#[test]
fn a_heap_over_its_budget_changes_nothing() {
    let store = common::open_on(Arc::new(device()), Heap::new(), 64 * KIB).unwrap();
    let mut map: Map<u64, Vec<u8>> = store.map("m").open().unwrap();
    let mut key = 0;
    let rejected = loop {
        match map.put(key, vec![1; 500]) {
            Ok(_) => key += 1,
            Err(rejected) => break rejected,
        }
    };
    assert_error(&rejected.error, ErrorKind::OverBudget, &["65536", "state m"]);
    assert_eq!(rejected.value, (key, vec![1; 500]));
    assert_eq!(map.len().unwrap(), key);
    assert_eq!(common::entries(&mut map).unwrap().len() as u64, key);
    assert!(store.stats().unwrap().memory.peak <= 64 * KIB);
    map.remove(&0).unwrap();
    map.put(key, vec![1; 500]).unwrap();
}

#[test]
fn a_panic_in_a_closure_marks_the_state_until_it_is_cleared() {
    for layout in LAYOUTS {
        let device = device();
        let store = open(&device, layout);
        let mut map: Map<u64, u64> = store.map("m").open().unwrap();
        map.put(1, 1).unwrap();
        store.checkpoint(1).unwrap();
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            map.update(
                &1,
                || 0,
                |value| {
                    *value = 2;
                    panic!("planned");
                },
            )
        }));
        assert!(panicked.is_err() && map.is_poisoned());
        // Reads and writes go on, checkpoints do not.
        assert_eq!(map.get(&1).unwrap().as_deref(), Some(&2));
        map.put(2, 2).unwrap();
        for _ in 0..2 {
            assert_error(&store.checkpoint(2).unwrap_err(), ErrorKind::Poisoned, &["state m"]);
        }
        map.clear_poison();
        store.checkpoint(2).unwrap();
        // A closure that makes or reads the value poisons too.
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            map.update(&9, || panic!("planned"), |value: &mut u64| *value += 1)
        }));
        assert!(panicked.is_err() && map.is_poisoned());
        assert_eq!(map.get(&9).unwrap().as_deref(), None);
        map.clear_poison();
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            map.modify_or_restore(&1, |value| {
                *value = 77;
                panic!("planned");
            })
        }));
        assert!(panicked.is_err());
        assert_eq!(map.get(&1).unwrap().as_deref(), Some(&2), "put back");
        drop((map, store));
        // A reopen restores what was sound.
        let store = open(&device, layout);
        let mut map: Map<u64, u64> = store.map("m").open().unwrap();
        assert!(!map.is_poisoned());
        assert_eq!(common::entries(&mut map).unwrap(), [(1, 2), (2, 2)].into());
    }
}

#[test]
fn every_state_whose_closure_panicked_can_be_cleared() {
    let device = device();
    let store = open(&device, LAYOUTS[0]);
    let mut value = store.value::<u64>("value").open().unwrap();
    let ttl = Ttl::event_time(nanos(1));
    let mut expiring = store.expiring_value::<u64>("expiring").open(ttl).unwrap();
    let mut list = store.list::<u64, u64>("list").open().unwrap();
    list.append(&1, 1).unwrap();
    let planned = || -> u64 { panic!("planned") };
    macro_rules! poisons_and_is_cleared {
        ($state:ident, $name:literal, $call:expr) => {
            assert!(catch_unwind(AssertUnwindSafe(|| $call)).is_err() && $state.is_poisoned());
            let error = store.checkpoint(1).unwrap_err();
            assert_error(&error, ErrorKind::Poisoned, &[concat!("state ", $name)]);
            $state.clear_poison();
            assert!(!$state.is_poisoned());
            store.checkpoint(1).unwrap();
        };
    }
    poisons_and_is_cleared!(value, "value", value.update(planned, |_| ()));
    poisons_and_is_cleared!(expiring, "expiring", expiring.update(planned, |_| ()));
    poisons_and_is_cleared!(list, "list", list.read(&1, |_| panic!("planned")));
    assert_eq!(list.to_vec(&1).unwrap(), [1]);
}

#[test]
fn what_cannot_be_stored_refuses_checkpoints() {
    #[derive(Debug)]
    struct NotStored(#[allow(dead_code)] std::cell::Cell<u8>);
    let device = device();
    let store = open(&device, "heap");
    let mut kept: Map<u64, u64> = store.map("kept").open().unwrap();
    kept.put(1, 1).unwrap();
    store.checkpoint(1).unwrap();
    let mut map: Map<u64, NotStored, _> =
        store.map("volatile").layout(Heap::volatile()).open().unwrap();
    map.put(1, NotStored(3.into())).unwrap();
    let error = store.checkpoint(2).unwrap_err();
    assert_error(&error, ErrorKind::Unsupported, &["state volatile", "volatile heap"]);
    assert_eq!(map.len().unwrap(), 1);
    drop((map, kept, store));
    let store = open(&device, "heap");
    assert_eq!((store.restored_position(), store.leftovers()), (Some(1), 0));
    let error = store.map::<u64, u64>("kept").layout(Heap::volatile()).open().unwrap_err();
    assert_error(&error, ErrorKind::Mismatch, &["state kept"]);

    let error = Store::in_memory().open().unwrap().checkpoint(1).unwrap_err();
    assert_error(&error, ErrorKind::Unsupported, &["directory"]);
}

#[test]
fn what_one_layout_stored_another_restores() {
    let device = device();
    let mut model = std::collections::BTreeMap::new();
    for (round, layout) in ["heap", "hybrid-log", "heap", "hybrid-log"].into_iter().enumerate() {
        let store = open(&device, layout);
        let mut map: Map<u64, Vec<u8>> = store.map("m").open().unwrap();
        common::assert_equal(&mut map, &model, layout);
        for key in 0..600 {
            let key = key + 200 * round as u64;
            map.put(key, vec![round as u8; key as usize % 50]).unwrap();
            model.insert(key, vec![round as u8; key as usize % 50]);
            map.remove(&(key / 3)).unwrap();
            model.remove(&(key / 3));
        }
        store.checkpoint(round as u64).unwrap();
    }
}

/// Files that a user keeps beside ours are not ours to remove.
#[test]
fn foreign_files_in_the_directory_are_left_alone() {
    let device = device();
    open(&device, "heap").checkpoint(1).unwrap();
    let foreign =
        ["notes.txt", "live-notes", "seg-", "seg-1", "seg-backup", "MANIFEST.old", "checkpoint-1"];
    for name in foreign {
        device.place(name, b"mine");
    }
    device.place("live-00000000000000ff", b"ours");
    device.place("seg-00000000000000ff", b"ours");
    device.place("checkpoint-00000000000000ff", b"ours");
    let store = open(&device, "heap");
    assert_eq!(store.leftovers(), 3);
    for name in foreign {
        assert_eq!(device.bytes(name).as_deref(), Some(&b"mine"[..]), "{name}");
    }
}
