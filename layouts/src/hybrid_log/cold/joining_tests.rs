//! The index of a log gives memory back where entries have gone.

use alluvium_pagestore::io::{Faults, Simulated};
use alluvium_pagestore::{Account, MIB};

use super::tests::open;
use crate::contract::table::{Cursor, Table};
use crate::contract::upkeep::Upkeep;
use crate::hybrid_log::{HybridLog, HybridLogTable};

type Log = HybridLogTable<u64, u64>;

/// Keys in the order of their hashes.
fn in_order(keys: u64) -> Vec<u64> {
    let (device, store) = (Simulated::new(1, Faults::none()), Account::root(256 * MIB));
    let mut log: Log = open(&HybridLog::new().cold_runs(false), &device, &store);
    (0..keys).for_each(|key| assert!(!log.put(key, key).unwrap()));
    let (mut keys, mut cursor) = (Vec::new(), Cursor::default());
    while !cursor.done {
        let shown = log.scan(&mut cursor, 1000, &mut |key, _| {
            keys.push(*key);
            Ok(())
        });
        shown.unwrap();
    }
    keys
}

#[test]
fn keys_in_the_order_of_their_hashes_take_the_place_of_those_that_have_moved() {
    // The index of all keys would be three times the memory.
    let (memory, keys) = (2 * MIB, in_order(600_000));
    for layout in [HybridLog::new().cold_runs_automatic(), HybridLog::new().cold_runs(true)] {
        let (device, store) = (Simulated::new(1, Faults::none()), Account::root(memory));
        let mut log: Log = open(&layout, &device, &store);
        let half = keys.len() / 2;
        for (nth, key) in keys.iter().enumerate() {
            // Each of two sources says how many there are then.
            if nth % half == 0 {
                log.expect((nth + half) as u64);
            }
            log.put(*key, *key).unwrap_or_else(|error| panic!("{nth}: {}", error.error));
            assert!(store.used() <= memory);
        }
        let (stats, index) = (log.stats(), log.core.log.index_bytes());
        println!("an index of {index}, {} joins; {:?}", stats.joins, stats.runs);
        assert!(stats.joins > 50 && index < memory / 2 + memory / 8, "{index}");
        assert!(log.core.log.index.strays() < 100, "{}", log.core.log.index.strays());
        assert_eq!(log.len(), keys.len() as u64);
        for key in (0..keys.len() as u64 + 100).step_by(61) {
            let is_there = key < keys.len() as u64;
            assert_eq!(log.get(&key).unwrap().copied(), is_there.then_some(key), "{key}");
        }
        // Others after them, in any order.
        for key in 10_000_000..10_100_000 {
            log.put(key, key).unwrap_or_else(|error| panic!("{key}: {}", error.error));
        }
        assert_eq!(log.len(), keys.len() as u64 + 100_000);
    }
}

#[test]
fn an_index_whose_keys_were_deleted_gives_memory_back() {
    let memory = 8 * MIB;
    for layout in [HybridLog::new().cold_runs(false), HybridLog::new()] {
        let (device, store) = (Simulated::new(1, Faults::none()), Account::root(memory));
        let mut log: Log = open(&layout, &device, &store);
        let keys = 250_000;
        (0..keys).for_each(|key| assert!(!log.put(key, key).unwrap()));
        let full = log.core.log.index_bytes();
        for key in (0..keys).filter(|key| key % 8 != 0) {
            log.remove(&key).unwrap();
        }
        // Deletes write, and may need memory for that, but join little.
        assert!(log.core.log.index_bytes() > full - full / 8, "no delete does so");
        // Nobody calls.
        let mut ticks = 0;
        while 2 * log.core.log.index_bytes() > full {
            log.tick(1024).unwrap();
            ticks += 1;
            assert!(ticks < 1000, "{:?}", log.stats());
        }
        for key in 0..keys {
            let is_there = key % 8 == 0;
            assert_eq!(log.get(&key).unwrap().copied(), is_there.then_some(key), "{key}");
        }
        // The index has room for as many as before.
        for key in keys..keys + keys / 4 * 3 {
            assert!(!log.put(key, key).unwrap(), "{key}");
        }
        assert_eq!(log.len(), keys / 8 + keys / 4 * 3);
        println!("{full}, {ticks} ticks, {} then", log.core.log.index_bytes());
        assert!(log.core.log.index_bytes() <= full + full / 8);
    }
}
