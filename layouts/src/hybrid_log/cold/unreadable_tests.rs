//! What of the log cannot be read does not stop the rest from moving, and what is in memory needs no filter.

use alluvium_pagestore::io::{Device, Faults, Simulated};
use alluvium_pagestore::{Account, KIB, MIB};

use super::tests::open;
use crate::contract::table::Table;
use crate::contract::upkeep::Upkeep;
use crate::hybrid_log::{HybridLog, HybridLogTable};

type Log = HybridLogTable<u64, [u64; 6]>;

/// The names and lengths of sealed segments, the oldest first.
fn sealed(log: &Log) -> Vec<(String, u64)> {
    let Some(stored) = &log.core.log.stored else { return Vec::new() };
    let infos = stored.numbers().map(|number| stored.info(number));
    let mut sealed: Vec<_> = infos.filter(|info| info.sealed).collect();
    sealed.sort_by_key(|info| info.id);
    sealed.into_iter().map(|info| (info.id.file_name(), info.bytes)).collect()
}

#[test]
fn pages_that_cannot_be_read_stay_and_other_keys_move() {
    others_move(1, 20 * KIB);
}

#[test]
fn segments_of_which_no_page_can_be_read_stay_and_other_keys_move() {
    // More pages in a row than steps may fail.
    others_move(3, 4 * KIB);
}

/// Damages the first segments, at each of so many bytes.
fn others_move(segments: usize, step: u64) {
    let (device, store) = (Simulated::new(1, Faults::none()), Account::root(MIB));
    let mut log: Log = open(&HybridLog::new().cold_runs(true), &device, &store);
    let mut keys = 0;
    while sealed(&log).len() < segments {
        assert!(!log.put(keys, [keys; 6]).unwrap());
        keys += 1;
    }
    assert_eq!(log.stats().runs.moved, 0, "nothing has moved yet");
    // Records and footers of their pages.
    for (name, bytes) in sealed(&log) {
        for at in (4 * KIB + 40..bytes - 4 * KIB).step_by(step as usize) {
            device.corrupt(&name, at, 3).unwrap();
        }
    }
    let damaged = keys;
    for key in keys..150_000 {
        let put = log.put(key, [key; 6]).map_err(|rejected| rejected.error);
        assert!(!put.unwrap_or_else(|error| panic!("{key}: {error}")), "{key}");
    }
    let stats = log.stats().runs;
    assert!(stats.keys > 150_000 - damaged - 40_000, "{stats:?}");
    let mut unread = 0;
    for key in 0..150_000 {
        match log.get(&key) {
            Ok(found) => assert_eq!(found, Some(&[key; 6]), "{key}"),
            Err(error) => {
                assert!(key < damaged, "{key}: {error}");
                unread += 1;
            }
        }
    }
    assert!(unread > 0 && unread < damaged, "{unread} of {damaged} cannot be read");
    assert!(device.stats().reads > 0 && store.used() <= store.limit());
}

#[test]
fn a_batch_of_puts_of_keys_in_memory_asks_no_filter() {
    let (device, store) = (Simulated::new(1, Faults::none()), Account::root(4 * MIB));
    let mut log: Log = open(&HybridLog::new().cold_runs(true), &device, &store);
    let keys = 200_000;
    (0..keys).for_each(|key| assert!(!log.put(key, [key; 6]).unwrap()));
    assert!(log.stats().runs.keys > keys / 2);
    let asked = |log: &Log| log.core.log.cold.as_ref().unwrap().asked.get();
    let before = asked(&log);
    let mut batch: Vec<(u64, [u64; 6])> = (keys - 500..keys).map(|key| (key, [1; 6])).collect();
    log.put_batch(&mut batch).unwrap();
    assert_eq!(asked(&log), before);
    // New ones have to ask.
    let mut batch: Vec<(u64, [u64; 6])> = (keys..keys + 500).map(|key| (key, [1; 6])).collect();
    log.put_batch(&mut batch).unwrap();
    assert!(asked(&log) >= before + 500);
    assert_eq!(log.get(&(keys - 1)).unwrap(), Some(&[1; 6]));
}
