//! What of the log cannot be read does not stop the rest from moving, and what is in memory needs no filter.

use alluvium_pagestore::io::{Device, Faults, Simulated};
use alluvium_pagestore::{Account, ErrorKind, KIB, MIB};

use super::tests::open;
use crate::contract::table::Table;
use crate::contract::upkeep::Upkeep;
use crate::hybrid_log::{HybridLog, HybridLogTable};
use crate::runs::FAILED_MAX;

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

#[test]
fn where_too_many_segments_cannot_be_read_nothing_moves_and_a_put_that_needs_it_is_refused() {
    let (device, store) = (Simulated::new(1, Faults::none()), Account::root(4 * MIB));
    // Nothing moves until there are enough, of more pages than may fail in a row.
    let layout = HybridLog::new().page(8 * KIB).segment(64 * KIB).cold_runs_automatic();
    let mut log: Log = open(&layout, &device, &store);
    let mut keys = 0;
    while sealed(&log).len() <= FAILED_MAX as usize {
        assert!(!log.put(keys, [keys; 6]).unwrap());
        keys += 1;
    }
    assert!(log.core.log.cold.is_none(), "no tier yet");
    damage(&log, &device, 256);
    // One put in many is refused for a record on storage whose hash is like its own.
    let (mut refused, mut in_a_row) = (Vec::new(), 0);
    while in_a_row < 50 {
        let reads = device.stats().reads;
        in_a_row = match log.put(keys, [keys; 6]) {
            Ok(_) => 0,
            Err(rejected) => {
                let kind = rejected.error.kind();
                let is_told = [ErrorKind::Corrupt, ErrorKind::OverBudget].contains(&kind);
                assert!(is_told, "{}", rejected.error);
                refused.push(kind);
                in_a_row + 1
            }
        };
        let reads = device.stats().reads - reads;
        assert!(reads < 1000, "{reads} reads for {keys}");
        keys += 1;
        assert!(keys < 400_000, "the index has room: {:?}", log.stats());
    }
    let stats = log.stats().runs;
    println!("{keys} keys, {} refused, {stats:?}", refused.len());
    assert_eq!(stats.moved, 0, "nothing behind them moves");
    // A move is not tried with each of them.
    let of_memory = refused.iter().rev().take(50).filter(|it| **it == ErrorKind::OverBudget);
    assert!(of_memory.count() > 40, "{refused:?}");
    assert!(store.used() <= store.limit());
    // What is in memory is there, and can go.
    let last = keys - 51;
    assert_eq!(log.get(&last).unwrap(), Some(&[last; 6]));
    assert_eq!(log.take(&last).unwrap(), Some([last; 6]));
}

/// Damages records of all segments, and footers of their pages, at each of so many bytes.
fn damage(log: &Log, device: &Simulated, step: u64) {
    for (name, bytes) in sealed(log) {
        for at in (4 * KIB + 40..bytes - 4 * KIB).step_by(step as usize) {
            device.corrupt(&name, at, 3).unwrap();
        }
    }
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
    damage(&log, &device, step);
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
