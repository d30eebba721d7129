//! A store on a tiny budget answers like a map, whatever the history.

#![no_main]

use std::collections::BTreeMap;
use std::sync::Arc;

use alluvium::config::Helpers;
use alluvium::io::{Faults, Simulated};
use alluvium::{HybridLog, KIB, Map, Store};
use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
enum Op {
    Update(u16, u8),
    Put(u16, u8),
    Take(u16),
    Get(u16),
    Fill(u16, u8),
    Checkpoint,
    Reopen,
    Tick,
}

fn open(device: &Simulated, generations: u32) -> (Store, Map<u16, Vec<u8>>) {
    let layout = HybridLog::new().page_records(8).queue_depth(4).segment(16 * KIB).hash_bits(9);
    let layout = layout.generations(generations);
    let store = Store::in_memory()
        .memory(256 * KIB)
        .max_value(4 * KIB)
        .layout(layout)
        .helpers(Helpers::Inline)
        .device(Arc::new(device.clone()))
        .open()
        .unwrap();
    let map = store.map("m").open().unwrap();
    (store, map)
}

fuzz_target!(|input: (u64, Vec<Op>)| {
    let (seed, ops) = input;
    let device = Simulated::new(seed, Faults::late(3));
    let generations = 1 + (seed % 2) as u32;
    let (mut store, mut map) = open(&device, generations);
    let mut model = BTreeMap::new();
    let mut saved = BTreeMap::new();
    for op in ops {
        match op {
            Op::Update(k, n) => {
                map.update(&k, Vec::new, |v| v.resize(n as usize, n)).unwrap();
                model.entry(k).or_insert_with(Vec::new).resize(n as usize, n);
            }
            Op::Put(k, n) => {
                map.put(k, vec![n; n as usize]).unwrap();
                model.insert(k, vec![n; n as usize]);
            }
            Op::Take(k) => assert_eq!(map.take(&k).unwrap(), model.remove(&k)),
            Op::Get(k) => assert_eq!(map.get(&k).unwrap().as_deref(), model.get(&k)),
            Op::Fill(from, n) => {
                let keys: Vec<u16> = (0..u16::from(n)).map(|i| from.wrapping_add(i * 7)).collect();
                map.update_batch(&keys, |k| k, |_| Vec::new(), |_, v| v.push(n)).unwrap();
                for k in keys {
                    model.entry(k).or_insert_with(Vec::new).push(n);
                }
            }
            Op::Checkpoint => {
                store.checkpoint(0).unwrap();
                saved = model.clone();
            }
            Op::Reopen => {
                drop((map, store));
                (store, map) = open(&device, generations);
                model = saved.clone();
            }
            Op::Tick => drop(store.tick(64).unwrap()),
        }
        assert_eq!(map.len().unwrap(), model.len() as u64);
    }
    let mut seen = BTreeMap::new();
    map.for_each(|k, v| {
        assert!(seen.insert(*k, v.clone()).is_none());
        Ok(())
    })
    .unwrap();
    assert_eq!(seen, model);
});
