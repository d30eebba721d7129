//! A state on the hybrid log that is cleared again and again while its checkpoint is taken has that checkpoint in the end,
//! with what it held at the barrier, and the space of what was cleared comes back.
//!
//! What this catches: a checkpoint that is lost each time; files that one names and that are gone, or that nobody names and
//! that stay.

use std::sync::Arc;

use alluvium::config::Helpers;
use alluvium::io::{Device, Faults, Simulated};
use alluvium::{HybridLog, MIB, Map, Store};

const KEYS: u64 = 5000;

fn open(device: &Simulated) -> (Store, Map<u64, u64>) {
    let store = Store::in_memory().retain(1).memory(8 * MIB).device(Arc::new(device.clone()));
    let store = store.helpers(Helpers::Inline).open().unwrap();
    let map = store.map("counts").layout(HybridLog::new().into()).open().unwrap();
    (store, map)
}

#[test]
fn though_it_is_cleared_before_each_is_whole() {
    let device = Simulated::new(1, Faults::none());
    let (mut store, mut map) = open(&device);
    for round in 0..6 {
        (0..KEYS).for_each(|key| assert!(!map.put(key, key + round).unwrap()));
        let mut seal = store.seal(round).unwrap();
        let mut shares = 0;
        while !seal.advance().unwrap() {
            shares += 1;
            if shares % 3 == 0 {
                map.clear().unwrap();
                (0..10).for_each(|key| assert!(!map.put(key, 7).unwrap()));
            }
        }
        assert!(shares > 3, "it was whole before it was cleared");
        assert_eq!(seal.confirm().unwrap().entries, KEYS);
        assert_eq!(map.len().unwrap(), 10);
        if round % 2 == 1 {
            drop((map, store));
            (store, map) = open(&device);
            assert_eq!(map.len().unwrap(), KEYS);
            for key in 0..KEYS {
                assert_eq!(map.get(&key).unwrap().as_deref(), Some(&(key + round)));
            }
        }
        map.clear().unwrap();
        // The next one names nothing of it.
        store.checkpoint(100 + round).unwrap();
        (0..100).for_each(|_| assert!(store.tick(100).is_ok()));
        let files = device.list().unwrap();
        let segments = files.iter().filter(|file| file.starts_with("seg-")).count();
        assert!(segments <= 2, "{files:?}");
    }
}
