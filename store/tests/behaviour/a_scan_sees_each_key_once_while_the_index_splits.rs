//! Trap 9: a cursor that misses or repeats entries as the index splits around it. What is there
//! from the first step to the last is seen exactly once, on every layout that lets a scan go on
//! while the state changes; what is seen at all was there.

use crate::common;
use std::collections::HashMap;
use std::sync::Arc;

use crate::common::{Dice, times};
use alluvium::backend::Cursor;
use alluvium::io::{Faults, Simulated};
use alluvium::{Heap, HybridLog, KIB, KeyHash, MIB, Map, State, Store};
use rkyv::{Archive, Deserialize, Serialize};

/// Scans again and again while keys come and go, until the index has grown to `keys` keys.
fn scan_while_growing(store: &Store, keys: u64, share: u64) -> u64 {
    let mut random = Dice(times("ALLUVIUM_SEED", 7));
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

/// A key that says where a hash table puts it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Archive, Serialize, Deserialize, State)]
#[rkyv(crate = rkyv)]
struct Placed {
    number: u64,
    hash: u64,
}

impl KeyHash for Placed {
    fn key_hash(&self) -> u64 {
        self.hash
    }
}

/// The blocks of a heap table are split, and entries that agree in too many bits of their hashes hang behind others.
#[test]
fn on_the_heap_while_its_table_grows() {
    let store = Store::in_memory().memory(16 * MIB).layout(Heap::new()).open().unwrap();
    let mut map: Map<Placed, u64> = store.map("m").open().unwrap();
    let placed = |range: std::ops::Range<u64>, each: u64| {
        range.map(move |number| Placed { number, hash: number.wrapping_mul(each) })
    };
    placed(0..500, 0).for_each(|key| assert!(!map.put(key, 1).unwrap()));
    placed(500..1000, u64::MAX / 1000).for_each(|key| assert!(!map.put(key, 1).unwrap()));
    placed(0..400, 0).for_each(|key| assert!(map.remove(&key).unwrap()));
    let mut filler = placed(1000..9000, 0x9e37_79b9_7f4a_7c15);
    let mut seen: HashMap<u64, u64> = HashMap::new();
    let (mut cursor, mut steps) = (Cursor::default(), 0);
    while !cursor.done {
        map.scan(&mut cursor, 16, |key, _| {
            *seen.entry(key.number).or_default() += 1;
            Ok(())
        })
        .unwrap();
        filler.by_ref().take(400).for_each(|key| assert!(!map.put(key, 3).unwrap()));
        steps += 1;
    }
    assert!(steps > 4, "{steps} steps");
    assert!((400..1000).all(|number| seen.get(&number) == Some(&1)), "each of them once");
    assert!(seen.values().all(|times| *times == 1));
}
