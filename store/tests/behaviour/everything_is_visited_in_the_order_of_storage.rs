//! A visit of everything goes over the segments as they stand, and over the frames: each entry comes
//! once, whatever is in memory, on storage, in both, being written or on its way between, and little
//! more is read than there is.

use std::collections::BTreeMap;
use std::sync::Arc;

use alluvium::io::{Device, Faults, Simulated};
use alluvium::{HybridLog, KIB, Map, Store};

use crate::common::{self, Dice, times};

const KEYS: u64 = 30_000;

struct Visited {
    entries: u64,
    bytes_read: u64,
}

/// Visits everything and compares.
fn visit(store: &Store, map: &mut Map<u64, Vec<u8>>, model: &BTreeMap<u64, Vec<u8>>) -> Visited {
    let before = store.stats().unwrap().io.bytes_read;
    let mut seen = BTreeMap::new();
    map.for_each(|key, value| {
        assert!(seen.insert(*key, value.clone()).is_none(), "{key} comes twice");
        Ok(())
    })
    .unwrap();
    assert!(seen == *model, "{} of {} entries", seen.len(), model.len());
    let stats = store.stats().unwrap();
    assert!(stats.memory.peak <= stats.memory.limit, "{:?}", stats.memory);
    Visited { entries: model.len() as u64, bytes_read: stats.io.bytes_read - before }
}

#[test]
fn while_records_come_go_and_move() {
    let device = Arc::new(Simulated::new(11, Faults::late(11)));
    let layout = HybridLog::new().page_records(32).segment(64 * KIB);
    let store = common::open_on(device.clone(), layout, 1536 * KIB).unwrap();
    let mut map: Map<u64, Vec<u8>> = store.map("m").open().unwrap();
    let mut model = BTreeMap::new();
    let mut dice = Dice(times("ALLUVIUM_SEED", 5));
    let (mut checked, mut cheap) = (0, 0);
    for round in 0..16u64 {
        // Sealed in steps or at once, given up, or not at all.
        let mut seal = (round % 4 == 2).then(|| store.seal(round).unwrap());
        for step in 0..2500 {
            let key = dice.below(KEYS);
            if dice.below(5) == 0 {
                assert_eq!(map.remove(&key).unwrap(), model.remove(&key).is_some());
            } else {
                let value = vec![key as u8; dice.below(120) as usize];
                map.put(key, value.clone()).unwrap();
                model.insert(key, value);
            }
            if let Some(seal) = seal.as_mut().filter(|_| step % 700 == 0) {
                seal.advance().unwrap();
            }
            if step % 1250 == 600 {
                let visited = visit(&store, &mut map, &model);
                let state = &store.stats().unwrap().states[0].table;
                checked += 1;
                // A read for each record would be some 30 times as much.
                let of_all = state.disk_bytes + 64 * 4096;
                cheap += u64::from(visited.bytes_read <= of_all && visited.entries > 4000);
            }
        }
        drop(seal);
        if round % 4 == 1 {
            store.checkpoint(round).unwrap();
        }
    }
    let state = &store.stats().unwrap().states[0].table;
    assert!(state.live_disk_bytes > 512 << 10, "{state:?}");
    assert!(checked > 25 && cheap > checked / 2, "{cheap} of {checked}");
    // After all of it has come back from storage.
    store.checkpoint(99).unwrap();
    drop((map, store));
    let layout = HybridLog::new().page_records(32).segment(64 * KIB);
    let store = common::open_on(device, layout, 1536 * KIB).unwrap();
    let mut map: Map<u64, Vec<u8>> = store.map("m").open().unwrap();
    let visited = visit(&store, &mut map, &model);
    let state = &store.stats().unwrap().states[0].table;
    assert!(visited.bytes_read <= 2 * state.disk_bytes, "{} {state:?}", visited.bytes_read);
}

#[test]
fn a_damaged_record_is_told_and_the_rest_stays() {
    let device = Arc::new(Simulated::new(3, Faults::none()));
    let layout = || HybridLog::new().page_records(32).segment(64 * KIB);
    let store = common::open_on(device.clone(), layout(), 1536 * KIB).unwrap();
    let mut map: Map<u64, u64> = store.map("m").open().unwrap();
    map.load((0..5000).map(|key| (key, key + 1))).unwrap();
    store.checkpoint(1).unwrap();
    drop((map, store));
    let names = device.list().unwrap();
    let name = names.iter().filter(|name| name.starts_with("seg-")).max().unwrap();
    let file = device.open(name).unwrap();
    let read = |offset| {
        let buffer = alluvium::io::IoBuffer::zeroed(4096);
        let operation = alluvium::io::Operation::Read { offset };
        alluvium::io::run_blocking(&*device, &file, operation, buffer).0
    };
    let mut block = read(4096);
    // The first record's value.
    block.as_mut_slice()[16 + 8] ^= 1;
    let operation = alluvium::io::Operation::Write { offset: 4096 };
    alluvium::io::run_blocking(&*device, &file, operation, block).1.unwrap();
    let store = common::open_on(device.clone(), layout(), 1536 * KIB).unwrap();
    let mut map: Map<u64, u64> = store.map("m").open().unwrap();
    let error = map.for_each(|_, _| Ok(())).unwrap_err();
    assert_eq!(error.kind(), alluvium::ErrorKind::Corrupt, "{error}");
    assert_eq!(error.context("file"), Some(&**name), "{error}");
    assert_eq!(error.context("offset"), Some("4096"), "{error}");
    let found = (0..5000).filter(|key| map.read(key, |value| value.is_some()).unwrap_or(false));
    assert_eq!(found.count(), 4999);
}
