//! Budgets: what does not fit is refused by an error that names the number and changes nothing;
//! what fits, however barely, gives right answers.

use crate::common;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::common::{Dice, times};
use alluvium::config::Helpers;
use alluvium::io::{Device, Faults, Simulated};
use alluvium::stats::MemoryKind;
use alluvium::{AnyLayout, ErrorKind, Heap, HybridLog, KIB, MIB, Map, Store, Time};

fn simulated(seed: u64) -> Arc<Simulated> {
    Arc::new(Simulated::new(seed, Faults::late(3)))
}

/// The least memory that opens a map, found by bisection.
fn smallest(layout: &AnyLayout) -> u64 {
    let opens = |memory: u64| {
        let store = match common::open_on(simulated(1), layout.clone(), memory) {
            Ok(store) => store,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Config, "{error}");
                return false;
            }
        };
        match store.map::<u16, Vec<String>>("m").open() {
            Ok(_) => true,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::OverBudget, "{error}");
                let text = error.to_string();
                let mut numbers = text.split(|c: char| !c.is_ascii_digit());
                let needed = numbers.find_map(|n| n.parse::<u64>().ok()).expect("a number");
                assert!(text.contains("needs") && needed > 1000, "{text}");
                false
            }
        }
    };
    let (mut low, mut high) = (16 * KIB, 64 * MIB);
    assert!(opens(high));
    while low + 1 < high {
        let middle = (low + high) / 2;
        if opens(middle) { high = middle } else { low = middle }
    }
    high
}

#[test]
fn the_smallest_budget_and_twice_and_eight_times_it_give_right_answers() {
    // Each segment takes some 250 bytes of the budget: in the smallest there is room for some 50.
    let tiny = common::tiny().segment(256 * KIB);
    let layouts: [(&str, AnyLayout, u64); 6] = [
        ("hybrid log", HybridLog::new().into(), 150),
        ("tiny pages", tiny.clone().into(), 150),
        ("tiny pages, one bit", tiny.hash_bits(1).into(), 150),
        ("tiny segments", common::tiny().into(), 60),
        ("tiny segments, two generations", common::tiny().generations(2).into(), 60),
        ("tiny segments, one bit", common::tiny().hash_bits(1).into(), 60),
    ];
    for (name, layout, keys_least) in layouts {
        let least = smallest(&layout);
        println!("{name}: {least} bytes");
        assert!(least < 2 * MIB, "{name}: {least}");
        for (memory, keys) in [(least, keys_least), (2 * least, 600), (8 * least, 2000)] {
            history(&layout, memory, keys, times("ALLUVIUM_SEED", 3));
        }
    }
}

fn history(layout: &AnyLayout, memory: u64, keys: u64, seed: u64) {
    let device = simulated(seed);
    let mut random = Dice(seed);
    let mut store = common::open_on(device.clone(), layout.clone(), memory).unwrap();
    let mut map: Map<u16, Vec<String>> = store.map("m").open().unwrap();
    let mut model: BTreeMap<u16, Vec<String>> = BTreeMap::new();
    for op in 0..times("ALLUVIUM_OPS", 800) {
        let key = random.below(keys) as u16;
        let text = "x".repeat(random.below(90) as usize);
        match random.below(10) {
            0..4 => {
                let change = |v: &mut Vec<String>| {
                    if v.len() > 8 { v.clear() } else { v.push(text.clone()) }
                };
                map.update(&key, Vec::new, change)
                    .unwrap_or_else(|e| panic!("op {op}: {e} {:?}", store.stats().unwrap()));
                change(model.entry(key).or_default());
            }
            4..7 => {
                let value = vec![text; random.below(4) as usize];
                let known = map.put(key, value.clone()).unwrap();
                assert_eq!(known, model.insert(key, value).is_some());
            }
            7 => assert_eq!(map.take(&key).unwrap(), model.remove(&key)),
            8 if op % 2 == 0 => {
                let some: Vec<u16> = (0..90).map(|_| random.below(keys) as u16).collect();
                map.update_batch(&some, |k| k, |_| Vec::new(), |_, v| v.truncate(1))
                    .unwrap_or_else(|e| panic!("op {op}: {e:?} {:?}", store.stats().unwrap()));
                some.iter().for_each(|k| model.entry(*k).or_default().truncate(1));
                map.read_batch(&some, |k| k, |k, v| assert_eq!(v, model.get(k))).unwrap();
            }
            8 => assert_eq!(map.get(&key).unwrap().as_deref(), model.get(&key)),
            _ if op % 150 == 9 => {
                store.checkpoint(op).unwrap();
                drop((map, store));
                store = common::open_on(device.clone(), layout.clone(), memory).unwrap();
                map = store.map("m").open().unwrap();
            }
            _ => drop(store.tick(50).unwrap()),
        }
        let booked = store.stats().unwrap().memory;
        assert!(booked.used <= memory, "op {op}: {booked:?}");
    }
    common::assert_equal(&mut map, &model, "at the end");
}

#[test]
fn a_heap_over_its_budget_changes_nothing() {
    for (layout, memory) in [(Heap::new(), 300 * KIB), (Heap::new().memory(300_000), MIB)] {
        let store = Store::in_memory().memory(memory).max_value(8 * KIB).open().unwrap();
        let mut map: Map<u64, String> = store.map("m").layout(layout.into()).open().unwrap();
        let mut model = BTreeMap::new();
        let mut key = 0;
        let refused = loop {
            let before = store.stats().unwrap().memory;
            match map.put(key, "y".repeat(100)) {
                Ok(known) => assert!(!known),
                Err(rejected) => {
                    assert_eq!(store.stats().unwrap().memory.used, before.used);
                    break rejected;
                }
            }
            model.insert(key, "y".repeat(100));
            key += 1;
        };
        assert_eq!(refused.error.kind(), ErrorKind::OverBudget);
        assert!(refused.error.to_string().contains(" needs "), "{}", refused.error);
        assert_eq!(refused.value, (key, "y".repeat(100)), "the value comes back");
        common::assert_equal(&mut map, &model, "after the refusal");
        // A larger value in place of a smaller one is refused as well, and the old one stays.
        let large = map.put(3, "z".repeat(7000));
        if let Err(large) = large {
            assert_eq!(large.value.1.len(), 7000);
            assert_eq!(map.get(&3).unwrap().as_deref(), model.get(&3));
        } else {
            model.insert(3, "z".repeat(7000));
        }
        for key in 10..200 {
            assert_eq!(map.take(&key).unwrap(), model.remove(&key));
        }
        for key in 10..100 {
            assert!(!map.put(key, "again".into()).unwrap());
            model.insert(key, "again".into());
        }
        common::assert_equal(&mut map, &model, "after room was made");
    }
}

#[test]
fn an_index_past_the_budget_is_refused_and_the_state_stays_usable() {
    let store = common::open_on(simulated(9), common::tiny(), 400 * KIB).unwrap();
    let mut map: Map<u64, u64> = store.map("m").open().unwrap();
    let mut keys = 0;
    let refused = loop {
        match map.put(keys, keys) {
            Ok(known) => assert!(!known),
            Err(rejected) => break rejected,
        }
        keys += 1;
        assert!(keys < 200_000, "an index of {keys} keys in 400 KiB");
    };
    let (text, kind) = (refused.error.to_string(), refused.error.kind());
    println!("{keys} keys: {text}");
    assert_eq!((kind, refused.value), (ErrorKind::OverBudget, (keys, keys)));
    assert!(text.contains("index needs ") && text.contains(" of 409600 bytes"), "{text}");
    assert_eq!(map.len().unwrap(), keys);
    let error = map.update(&keys, || 0, |v| *v).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OverBudget);
    for key in (0..keys).step_by(17) {
        assert_eq!(map.get(&key).unwrap().as_deref(), Some(&key));
        assert_eq!(map.update(&key, || 0, |v| std::mem::replace(v, 5)).unwrap(), key);
    }
    for key in 0..keys / 2 {
        assert!(map.remove(&key).unwrap(), "{key}");
    }
    for key in keys..keys + keys / 5 {
        assert!(!map.put(key, key).unwrap());
    }
    assert_eq!(map.len().unwrap(), keys - keys / 2 + keys / 5);
    assert_eq!(map.get(&keys).unwrap().as_deref(), Some(&keys));
}

#[test]
fn a_hybrid_log_gives_pages_up_as_other_states_grow() {
    let memory = 4 * MIB;
    let store = common::open_on(simulated(11), HybridLog::new(), memory).unwrap();
    let mut log: Map<u64, [u64; 12]> = store.map("log").open().unwrap();
    let mut heap: Map<u64, String> = store.map("heap").layout(Heap::new().into()).open().unwrap();
    let mut timers = store.timers::<u64>("timers").unwrap();
    let grown = 8000;
    for key in 0..60_000 {
        log.put(key, [key; 12]).unwrap();
    }
    let pages = |store: &Store| store.stats().unwrap().memory.by_kind[1];
    let before = pages(&store);
    assert!(before > memory / 2, "the log has {before} of {memory} bytes");
    // The log is left alone while the others take more than half of its memory.
    for n in 0..grown {
        assert!(!heap.put(n, format!("{n:0100}")).unwrap(), "{n}");
        assert!(timers.set(n, Time(n as i64 % 100)).unwrap());
        let booked = store.stats().unwrap().memory;
        assert!(booked.used <= memory, "{booked:?}");
    }
    let after = pages(&store);
    println!("pages: {before} before, {after} after");
    assert!(after < before / 2, "{before} before, {after} after");
    assert_eq!((heap.len().unwrap(), timers.len()), (grown, grown));
    for key in (0..59_000).step_by(501) {
        assert_eq!(log.get(&key).unwrap().map(|v| v[3]), Some(key));
    }
    for n in (0..grown).step_by(77) {
        assert_eq!(heap.get(&n).unwrap().as_deref(), Some(&format!("{n:0100}")));
    }
}

#[test]
fn a_hybrid_log_of_few_pages_gives_up_what_its_values_own() {
    const PAGE: u64 = 64;
    // A value of fifty keys comes to own 64 KiB.
    const VALUE_MAX: u64 = 72 * KIB;
    for keys in [50, 200, 800] {
        let builder = Store::in_memory().memory(6 * MIB).max_value(VALUE_MAX);
        let builder = builder.layout(HybridLog::new().page_records(PAGE as u32));
        let builder = builder.helpers(Helpers::Inline).device(simulated(3));
        let store = builder.open().unwrap();
        let mut log: Map<u64, Vec<u64>> = store.map("log").open().unwrap();
        let heap = store.map::<u64, String>("heap");
        let mut heap = heap.layout(Heap::new()).open().unwrap();
        let mut model = BTreeMap::new();
        let grow = |log: &mut Map<u64, Vec<u64>>, n: u64, model: &mut BTreeMap<_, Vec<u64>>| {
            let key = n * 7 % keys;
            log.update(&key, Vec::new, |value| value.extend([n; 16])).unwrap();
            model.entry(key).or_default().extend([n; 16]);
        };
        let owned = |store: &Store| {
            let stats = store.stats().unwrap();
            stats.states.iter().find(|state| state.name == "log").unwrap().memory.by_kind[2]
        };
        // Values grow where they are, to half of the memory.
        (0..19_000).for_each(|n| grow(&mut log, n, &mut model));
        let before = owned(&store);
        assert!(before > 3 * MIB, "{before}");
        let mut words = 0;
        while heap.put(words, format!("{words:0500}")).is_ok() {
            words += 1;
        }
        let (after, page) = (owned(&store), PAGE * before / keys);
        println!("{keys} keys own {before} bytes; with {words} words beside, {after}");
        assert!(
            after < page + 2 * VALUE_MAX,
            "{keys} keys own {after} bytes, those of a page {page}"
        );
        (0..2500).for_each(|n| grow(&mut log, n, &mut model));
        common::assert_equal(&mut log, &model, "after it gave memory up");
    }
}

/// As large as for large state, its buffers took 142 KB of as much memory as this.
#[test]
fn a_checkpoint_of_small_state_takes_little_beside_it() {
    let device = Arc::new(Simulated::new(1, Faults::none()));
    let store = Store::in_memory().memory(2_796_202).device(device).layout(Heap::new());
    let store = store.helpers(Helpers::Inline).open().unwrap();
    let mut map = store.map::<u64, u64>("m").open().unwrap();
    map.put(1, 1).unwrap();
    let used = || store.stats().unwrap().memory.used_for(MemoryKind::Buffers);
    let before = used();
    let (mut seal, mut most) = (store.seal(0).unwrap(), 0);
    while !seal.advance().unwrap() {
        most = used().max(most);
    }
    seal.confirm().unwrap();
    assert!(most > before, "it was seen while it was taken");
    assert!(most - before < 64 << 10, "{} bytes", most - before);
}

/// Beside its entries an open has buffers to read ahead with, marks, and lists of which records are dead.
#[test]
fn a_checkpoint_of_a_heap_state_that_fills_its_memory_opens_in_it() {
    let mut incremental = 0;
    for (memory, keys) in [(2 * MIB, 12_000), (8 * MIB, 48_000), (24 * MIB, 150_000)] {
        for free in [0, memory / 512, memory / 64] {
            incremental += u64::from(fills_its_memory(memory, keys, free));
        }
    }
    assert!((1..9).contains(&incremental), "{incremental}");
}

/// Takes a checkpoint with so many bytes free or, of none, as soon as one is to be had after the memory was full.
/// Says whether it wrote a part.
fn fills_its_memory(memory: u64, keys: u64, free: u64) -> bool {
    let device = Arc::new(Simulated::new(1, Faults::none()));
    let open = || {
        let store = Store::in_memory().memory(memory).device(device.clone()).max_value(KIB);
        let store = store.helpers(Helpers::Inline).layout(Heap::new()).open().unwrap();
        let map = store.map::<u64, String>("m").open().unwrap();
        (store, map)
    };
    let mut random = Dice(memory);
    let (store, mut map) = open();
    let mut model: BTreeMap<u64, String> = (0..keys).map(|key| (key, String::new())).collect();
    model.keys().for_each(|key| assert!(!map.put(*key, String::new()).unwrap()));
    for round in 0..7 {
        store.checkpoint(round).unwrap();
        for _ in 0..keys / 16 {
            let (key, text) = (random.below(keys), "x".repeat(10 * random.below(2) as usize));
            map.put(key, text.clone()).unwrap();
            model.insert(key, text);
        }
    }
    store.checkpoint(7).unwrap();
    let available = || {
        let booked = store.stats().unwrap().memory;
        booked.limit - booked.used
    };
    while available() > free {
        let (key, text) = (random.below(keys), "y".repeat(1000));
        if map.put(key, text.clone()).is_err() {
            break;
        }
        model.insert(key, text);
    }
    let mut emptied = 0;
    let mut written = 0;
    // The last of them has a few changes.
    for round in 8..10 {
        for key in (0..keys).step_by(500) {
            let text = "z".repeat(model[&key].len());
            map.put(key, text.clone()).unwrap();
            model.insert(key, text);
        }
        written = loop {
            let before = device.stats().bytes_written;
            match store.checkpoint(round) {
                Ok(_) => break device.stats().bytes_written - before,
                Err(error) => assert_eq!(error.kind(), ErrorKind::OverBudget, "{error}"),
            }
            map.put(emptied, String::new()).unwrap();
            model.insert(emptied, String::new());
            emptied += 1;
        };
    }
    drop((map, store));
    let (_store, mut map) = open();
    common::assert_equal(&mut map, &model, &format!("{memory} bytes, {free} free"));
    println!("{memory} bytes, {free} free, {emptied} emptied: {written} written");
    written < memory / 4
}

/// The pages of a heap state's checkpoint are longer than those of this log, which is to read and rewrite them.
#[test]
fn longer_pages_of_another_layout_are_booked() {
    let device = simulated(5);
    let buffers = |store: &Store| store.stats().unwrap().memory.used_for(MemoryKind::Buffers);
    let store = common::open_on(simulated(6), common::tiny(), 2 * MIB).unwrap();
    let log: Map<u64, String> = store.map("m").open().unwrap();
    let own = buffers(&store);
    drop(log);
    let store = common::open_on(device.clone(), Heap::new(), 2 * MIB).unwrap();
    let mut map: Map<u64, String> = store.map("m").open().unwrap();
    let model: BTreeMap<u64, String> = (0..3000).map(|key| (key, format!("{key}"))).collect();
    for (key, text) in &model {
        map.put(*key, text.clone()).unwrap();
    }
    store.checkpoint(1).unwrap();
    drop((map, store));
    let store = common::open_on(device, common::tiny(), 2 * MIB).unwrap();
    let mut map: Map<u64, String> = store.map("m").open().unwrap();
    let more = buffers(&store) - own;
    assert!((1000 * 36..100 * KIB).contains(&more), "{more}");
    let mut model = model;
    // Most of what the heap has written dies.
    for round in 0..8 {
        for key in (0..3000).filter(|key| key % 7 != 0) {
            map.put(key, format!("{round}")).unwrap();
            model.insert(key, format!("{round}"));
        }
        store.checkpoint(2 + round).unwrap();
        while store.tick(1000).unwrap() > 0 {}
    }
    common::assert_equal(&mut map, &model, "after that");
}
