//! Trap 9: a cursor that misses or repeats entries as the index splits around it. What is there
//! from the first step to the last is seen exactly once, on every layout that lets a scan go on
//! while the state changes; what is seen at all was there.

mod common;
#[path = "common/random.rs"]
mod random;

use std::collections::HashMap;
use std::sync::Arc;

use alluvium::io::{Faults, Simulated};
use alluvium::{Cursor, ErrorKind, Heap, HybridLog, KIB, MIB, Map, Store};
use random::{Random, times};

/// Scans again and again while keys come and go, until the index has grown to `keys` keys.
fn scan_while_growing(store: &Store, keys: u64, share: u64) -> u64 {
    let mut random = Random::new(times("ALLUVIUM_SEED", 7));
    let mut map: Map<u64, u64> = store.map("m").open().unwrap();
    // Keys 0, 3, 6 and so on stay; the others go again.
    let (mut next, mut gone, mut scans, mut overtaken) = (0u64, 1u64, 0, 0);
    while next < keys {
        let stable = next;
        let splits = map.stats().unwrap().splits;
        let mut seen: HashMap<u64, u64> = HashMap::new();
        let mut cursor = Cursor::default();
        while !cursor.done {
            map.scan(&mut cursor, 1 + random.below(200) as usize, |key, value| {
                assert_eq!(*value, key + 1);
                *seen.entry(*key).or_default() += 1;
                Ok(())
            })
            .unwrap();
            for _ in 0..random.below((next / share).max(16)).min(keys - next.min(keys)) {
                map.put(next, next + 1).unwrap_or_else(|refused| {
                    let booked = store.stats().unwrap();
                    panic!("key {next}: {} {booked:?}", refused.error)
                });
                next += 1;
                if gone + 1 < next && random.below(3) == 0 {
                    map.remove(&gone).unwrap();
                    gone += if gone % 3 == 1 { 1 } else { 2 };
                }
            }
        }
        for key in (0..stable).step_by(3) {
            assert_eq!(seen.get(&key), Some(&1), "{key} of {stable}, scan {scans}");
        }
        assert!(seen.values().all(|&times| times <= 1), "scan {scans} repeats a key");
        assert!(seen.keys().all(|&key| key < next));
        scans += 1;
        overtaken += u64::from(map.stats().unwrap().splits > splits);
    }
    let stats = map.stats().unwrap();
    println!("{scans} scans, {overtaken} of them with splits: {stats:?}");
    assert!(scans > 5 && overtaken > 3);
    stats.splits
}

#[test]
fn in_memory_up_to_65536_buckets() {
    let store = Store::in_memory().memory(64 * MIB).open().unwrap();
    let splits = scan_while_growing(&store, 500_000, 60);
    assert!(splits * 256 >= 1 << 16, "{splits} splits");
}

#[test]
fn in_small_segments() {
    let store = Store::in_memory().memory(8 * MIB - 1).open().unwrap();
    let splits = scan_while_growing(&store, 60_000, 100);
    assert!(splits > 100, "{splits} splits");
}

#[test]
fn beyond_memory() {
    let device = Simulated::new(3, Faults::late(3));
    let layout = HybridLog::new().page_records(64).segment(64 * KIB);
    let store = common::open_on(Arc::new(device), layout, 768 * KIB).unwrap();
    scan_while_growing(&store, times("ALLUVIUM_KEYS", 20_000), 40);
}

/// A hash table that is rehashed in place, without growing, moves its entries too.
#[test]
fn a_heap_tells_a_scan_that_its_table_was_rehashed() {
    let store = Store::in_memory().memory(16 * MIB).layout(Heap::new()).open().unwrap();
    let mut map: Map<u64, u64> = store.map("m").open().unwrap();
    let mut random = Random::new(times("ALLUVIUM_SEED", 8));
    for key in 0..700 {
        map.put(key, key).unwrap();
    }
    let (mut next, mut told, mut whole) = (700u64, 0, 0);
    for _ in 0..200 {
        let mut seen: HashMap<u64, u64> = HashMap::new();
        let mut cursor = Cursor::default();
        let done = loop {
            let step = map.scan(&mut cursor, 16, |key, _| {
                *seen.entry(*key).or_default() += 1;
                Ok(())
            });
            if step.is_err() || cursor.done {
                break step;
            }
            for _ in 0..random.below(40) {
                map.put(next, next).unwrap();
                map.remove(&next).unwrap();
                next += 1;
            }
        };
        match done {
            Ok(()) => {
                whole += 1;
                let times = |key: &u64| seen.get(key).copied();
                assert!((0..700).all(|key| times(&key) == Some(1)), "a scan missed or repeated");
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::InUse);
                told += 1;
            }
        }
    }
    println!("{told} scans were told to start again, {whole} were whole");
    assert!(told > 0 && whole > 0, "{told} {whole}");
}
