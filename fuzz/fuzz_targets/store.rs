//! A store on a tiny budget answers like maps of the standard library, whatever the history.

#![no_main]

use std::collections::BTreeMap;
use std::sync::Arc;

use alluvium::config::Helpers;
use alluvium::io::{Faults, Simulated};
use alluvium::{AnyLayout, AppendLog, Heap, HybridLog, KIB, List, MIB, Map, Store};
use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
enum Op {
    Update(u16, u8),
    Put(u16, u8),
    Take(u16),
    Get(u16),
    Fill(u16, u8),
    Append(u8, u8),
    Read(u8),
    Clear(u8),
    ClearAll,
    Checkpoint,
    Reopen,
    Tick,
}

/// The layouts of a map and of its lists, and the memory for both.
fn layouts(which: u64) -> (AnyLayout, AnyLayout, u64) {
    let log = HybridLog::new().page_records(8).queue_depth(4).segment(16 * KIB).hash_bits(9);
    let lists = AppendLog::new().memory(192 * KIB);
    match which % 4 {
        0 => (log.memory(256 * KIB).into(), lists.into(), 448 * KIB),
        1 => (log.generations(2).memory(256 * KIB).into(), lists.into(), 448 * KIB),
        2 => (log.cold_runs(true).memory(MIB).into(), lists.into(), MIB + 192 * KIB),
        _ => (Heap::new().into(), Heap::new().into(), 64 * MIB),
    }
}

/// What the store has, as its owner would keep it without one.
#[derive(Clone, Default)]
struct Model {
    map: BTreeMap<u16, Vec<u8>>,
    lists: BTreeMap<u8, Vec<u8>>,
}

struct Opened {
    map: Map<u16, Vec<u8>>,
    list: List<u8, Vec<u8>>,
    store: Store,
}

fn open(device: &Simulated, which: u64) -> Opened {
    let (map, list, memory) = layouts(which);
    let store = Store::in_memory()
        .memory(memory)
        .max_value(4 * KIB)
        .helpers(Helpers::Inline)
        .device(Arc::new(device.clone()))
        .open()
        .unwrap();
    let map = store.map("m").layout(map).open().unwrap();
    let list = store.list("l").layout(list).open().unwrap();
    Opened { map, list, store }
}

/// The element of a list for a number: of a length that is not the same for all.
fn element(n: u8) -> Vec<u8> {
    vec![n; usize::from(n)]
}

fn has_the_list(list: &mut List<u8, Vec<u8>>, key: u8, model: &Model) {
    let expected: Vec<_> =
        model.lists.get(&key).into_iter().flatten().map(|n| element(*n)).collect();
    assert_eq!(list.to_vec(&key).unwrap(), expected, "list {key}");
}

fuzz_target!(|input: (u64, Vec<Op>)| {
    let (seed, ops) = input;
    let device = Simulated::new(seed, Faults::late(3));
    let mut at = open(&device, seed);
    let (mut model, mut saved) = (Model::default(), Model::default());
    for op in ops {
        match op {
            Op::Update(k, n) => {
                at.map.update(&k, Vec::new, |v| v.resize(n as usize, n)).unwrap();
                model.map.entry(k).or_default().resize(n as usize, n);
            }
            Op::Put(k, n) => {
                at.map.put(k, element(n)).unwrap();
                model.map.insert(k, element(n));
            }
            Op::Take(k) => assert_eq!(at.map.take(&k).unwrap(), model.map.remove(&k)),
            Op::Get(k) => assert_eq!(at.map.get(&k).unwrap().as_deref(), model.map.get(&k)),
            Op::Fill(from, n) => {
                let keys: Vec<u16> = (0..u16::from(n)).map(|i| from.wrapping_add(i * 7)).collect();
                at.map.update_batch(&keys, |k| k, |_| Vec::new(), |_, v| v.push(n)).unwrap();
                for k in keys {
                    model.map.entry(k).or_default().push(n);
                }
            }
            Op::Append(k, n) => {
                at.list.append(&k, element(n)).unwrap();
                model.lists.entry(k).or_default().push(n);
            }
            Op::Read(k) => has_the_list(&mut at.list, k, &model),
            Op::Clear(k) => {
                at.list.clear(&k).unwrap();
                model.lists.remove(&k);
            }
            Op::ClearAll => {
                at.map.clear().unwrap();
                model.map.clear();
            }
            Op::Checkpoint => {
                at.store.checkpoint(0).unwrap();
                saved = model.clone();
            }
            Op::Reopen => {
                drop(at);
                at = open(&device, seed);
                model = saved.clone();
            }
            Op::Tick => drop(at.store.tick(64).unwrap()),
        }
        assert_eq!(at.map.len().unwrap(), model.map.len() as u64);
    }
    let mut seen = BTreeMap::new();
    at.map
        .for_each(|k, v| {
            assert!(seen.insert(*k, v.clone()).is_none());
            Ok(())
        })
        .unwrap();
    assert_eq!(seen, model.map);
    for key in 0..=u8::MAX {
        has_the_list(&mut at.list, key, &model);
    }
});
