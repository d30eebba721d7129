//! Trap 1: a tag that matches is taken for a key that matches, although the record is on storage.
//! With hashes of few bits and nearly all records cold, every answer is still the model's, and
//! the reads that found another key are counted.

use crate::common;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::common::{Dice, times};
use alluvium::io::{Faults, Simulated};
use alluvium::{HybridLog, KIB, Map};

fn run(bits: u32, page_records: u32, keys: u64, ops: u64, seed: u64) -> (u64, u64) {
    let mut random = Dice(seed);
    let device = Simulated::new(seed, Faults::late(3));
    let layout = HybridLog::new().page_records(page_records).queue_depth(3).segment(16 * KIB);
    let layout = layout.hash_bits(bits);
    // A few dozen records fit.
    let memory = 164 * KIB + 40 * keys;
    let store = common::open_on(Arc::new(device), layout, memory).unwrap();
    let mut map: Map<u64, [u64; 40]> = store.map("m").open().unwrap();
    let mut model: BTreeMap<u64, [u64; 40]> = BTreeMap::new();
    for op in 0..ops {
        let key = random.below(keys);
        let value = [op + 1; 40];
        match random.below(12) {
            0..4 => assert_eq!(map.put(key, value).unwrap(), model.insert(key, value).is_some()),
            4..6 => {
                let seen = map.update(&key, || value, |v| (v[39], v[0] += 1).0).unwrap();
                let known = model.entry(key).or_insert(value);
                assert_eq!(seen, known[39], "op {op}: {key}");
                known[0] += 1;
            }
            6 => {
                let seen = map.modify(&key, |v| (v[0], v[39] = op).0).unwrap();
                assert_eq!(seen, model.get_mut(&key).map(|v| (v[0], v[39] = op).0), "op {op}");
            }
            7 => assert_eq!(map.take(&key).unwrap(), model.remove(&key), "op {op}: {key}"),
            8 => assert_eq!(map.remove(&key).unwrap(), model.remove(&key).is_some()),
            9 => assert_eq!(map.get(&key).unwrap().as_deref(), model.get(&key), "op {op}: {key}"),
            10 => {
                let some: Vec<u64> = (0..9).map(|_| random.below(2 * keys)).collect();
                map.read_batch(&some, |k| k, |k, v| assert_eq!(v, model.get(k), "{k}")).unwrap();
            }
            _ => {
                let some: Vec<u64> = (0..9).map(|_| random.below(keys)).collect();
                map.update_batch(&some, |k| k, |_| value, |_, v| v[1] += 1).unwrap();
                some.iter().for_each(|k| model.entry(*k).or_insert(value)[1] += 1);
            }
        }
        assert_eq!(map.len().unwrap(), model.len() as u64);
        if op % 1000 == 999 {
            common::assert_equal(&mut map, &model, "in between");
        }
    }
    common::assert_equal(&mut map, &model, "at the end");
    let stats = map.stats().unwrap();
    println!("{bits} bits: {stats:?}");
    assert!(stats.cold_reads > ops / 4, "the records are cold: {stats:?}");
    (stats.cold_reads, stats.false_cold_reads)
}

#[test]
fn hashes_of_no_and_of_one_bit() {
    let ops = times("ALLUVIUM_OPS", 3000);
    for (bits, page_records) in [(0, 2), (0, 8), (1, 2), (1, 8)] {
        let (reads, falsely) = run(bits, page_records, 400, ops, u64::from(bits) + 10);
        // Nearly every record stands in the way of every other.
        assert!(falsely > reads / 2 && falsely < reads, "{falsely} of {reads}");
    }
}

#[test]
fn hashes_of_eight_bits() {
    let (reads, falsely) = run(8, 4, 2000, times("ALLUVIUM_OPS", 3000), 20);
    assert!(falsely > reads / 20 && falsely < reads, "{falsely} of {reads}");
}

#[test]
fn whole_hashes_hardly_ever_read_in_vain() {
    let (reads, falsely) = run(64, 4, 2000, times("ALLUVIUM_OPS", 10_000), 30);
    assert!(falsely * 100 <= reads, "{falsely} of {reads}");
}
