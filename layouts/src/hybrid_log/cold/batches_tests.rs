//! The reads of a batch, some of whose records are in segments and some in runs.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use alluvium_pagestore::io::{Fault, Faults, Simulated};
use alluvium_pagestore::{Account, ErrorKind, KeyHash, MIB, MemoryKind};

use super::tests::open;
use crate::contract::table::Table;
use crate::hybrid_log::log::RecordLocation;
use crate::hybrid_log::{HybridLog, HybridLogTable};

type Log = HybridLogTable<u64, u64>;

/// Keys of each kind in a batch, and of all.
const EACH: usize = 8;
const KEYS: u64 = 300_000;

/// A log of many keys, most of whose guides are in memory.
fn filled(device: &Simulated, store: &std::rc::Rc<Account>) -> Log {
    let layout = HybridLog::new().cold_runs(true).patience(Duration::from_secs(120));
    let mut log: Log = open(&layout, device, store);
    for key in 0..KEYS {
        while let Err(rejected) = log.put(key, key) {
            assert_eq!(rejected.error.kind(), ErrorKind::Backpressure, "{}", rejected.error);
        }
    }
    read(&mut log, &(100_000..130_000).collect::<Vec<_>>());
    log
}

fn read(log: &mut Log, keys: &[u64]) {
    let mut seen = 0;
    let read = log.read_batch(
        keys,
        |key| key,
        |key, found| {
            assert_eq!(found, Some(key));
            seen += 1;
        },
    );
    read.unwrap_or_else(|error| panic!("{error:?}"));
    assert_eq!(seen, keys.len());
}

/// Keys whose records are in segments, and as many whose records are in runs.
fn keys_of_both(log: &Log, from: u64) -> Vec<u64> {
    let (mut stored, mut in_runs) = (Vec::new(), Vec::new());
    for key in (from..KEYS).step_by(7) {
        let to = match log.core.locate_again(log.core.log.index_hash(key.key_hash()), &key) {
            RecordLocation::Cold => &mut stored,
            RecordLocation::Absent => &mut in_runs,
            RecordLocation::Resident { .. } => continue,
        };
        if to.len() < EACH {
            to.push(key);
        }
    }
    assert_eq!((stored.len(), in_runs.len()), (EACH, EACH));
    stored.append(&mut in_runs);
    stored
}

#[test]
fn a_batch_has_its_reads_of_segments_and_of_runs_under_way_together() {
    let (device, store) = (Simulated::new(8, Faults::none()), Account::root(8 * MIB));
    let mut log = filled(&device, &store);
    let keys = keys_of_both(&log, 3);
    // All of them are held until so many have come: reads that come one after the other are let go late.
    (1..=4 * keys.len() as u64).for_each(|nth| device.on_nth_read(nth, Fault::Stuck));
    let (is_over, wanted) = (AtomicBool::new(false), keys.len());
    let most = std::thread::scope(|scope| {
        let holding = scope.spawn(|| {
            let (mut most, since) = (0, Instant::now());
            while !is_over.load(Ordering::Relaxed) {
                most = most.max(device.in_flight());
                if most >= wanted || since.elapsed() > Duration::from_secs(20) {
                    device.forget_scripts();
                    device.release_stuck();
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            most
        });
        read(&mut log, &keys);
        is_over.store(true, Ordering::Relaxed);
        holding.join().unwrap()
    });
    assert!(most >= wanted, "{most} of {wanted} reads were under way together");
}

#[test]
fn a_batch_without_memory_for_its_reads_answers_the_same() {
    let (device, store) = (Simulated::new(9, Faults::none()), Account::root(8 * MIB));
    let mut log = filled(&device, &store);
    let buffers = |log: &Log| log.core.log.stored.as_ref().unwrap().free_buffers();
    let before = buffers(&log);
    let other = Account::below(&store, "other", u64::MAX);
    for from in [5, 30_001, 60_002, 90_003] {
        let keys = keys_of_both(&log, from);
        let free = store.limit() - store.used();
        other.charge(MemoryKind::Values, free);
        read(&mut log, &keys);
        assert!(store.used() <= store.limit(), "{store:?}");
        assert_eq!(buffers(&log), before, "no buffer is lost");
        other.release(MemoryKind::Values, free);
    }
}

/// How often filters were asked for a key of a batch, and a level for what it has of one.
fn asked(log: &Log) -> (u64, u64) {
    let cold = log.core.log.cold.as_ref().unwrap();
    (cold.asked.get(), cold.levels.reads().asked)
}

/// Keys with no entry in the index that are there, or are not.
fn keys_without_entry(log: &Log, from: u64, count: usize) -> Vec<u64> {
    let located = |key: &u64| log.core.locate_again(log.core.log.index_hash(key.key_hash()), key);
    (from..).filter(|key| matches!(located(key), RecordLocation::Absent)).take(count).collect()
}

#[test]
fn a_batch_asks_the_filters_of_each_level_once_for_a_key() {
    let (device, store) = (Simulated::new(10, Faults::none()), Account::root(8 * MIB));
    let mut log = filled(&device, &store);
    let levels = |log: &Log| log.core.log.cold.as_ref().unwrap().levels.len() as u64;
    assert!(levels(&log) > 1, "{}", levels(&log));
    for (keys, may_be_there) in [
        (keys_without_entry(&log, 100_000, 24), 24..=30),
        // A filter is wrong about one in 256 of these.
        (keys_without_entry(&log, 1 << 40, 24), 0..=3 * levels(&log)),
    ] {
        let before = asked(&log);
        let read = log.read_batch(
            &keys,
            |key| key,
            |key, found| assert_eq!(found.is_some(), *key < KEYS, "{key}"),
        );
        read.unwrap();
        let after = asked(&log);
        assert_eq!(after.0 - before.0, keys.len() as u64);
        // A look-up begins with the first level that may have the key.
        assert!(may_be_there.contains(&(after.1 - before.1)), "{before:?} {after:?}");
    }
}

#[test]
fn a_batch_finds_what_has_moved_since_filters_were_asked() {
    let (device, store) = (Simulated::new(11, Faults::none()), Account::root(8 * MIB));
    let mut log = filled(&device, &store);
    let keys = keys_without_entry(&log, 100_000, 24);
    let ahead = |log: &mut Log| log.core.log.cold.as_mut().unwrap().read_ahead(&hashes_of(&keys));
    ahead(&mut log);
    // These keys change, and move down again: the level that may have one first is a newer one.
    let last_level = |log: &Log| log.core.log.cold.as_ref().unwrap().last_level();
    for key in &keys {
        assert_eq!(log.modify(key, |value| *value += 1).unwrap(), Some(()));
    }
    let before = last_level(&log);
    let is_cold = |log: &Log| keys_without_entry(log, keys[0], 1) == [keys[0]];
    for key in 1 << 40.. {
        log.put(key, 1).unwrap();
        if last_level(&log) > before + 1 && is_cold(&log) {
            break;
        }
    }
    for key in &keys {
        assert_eq!(log.get(key).unwrap(), Some(&(key + 1)));
    }
}

fn hashes_of(keys: &[u64]) -> Vec<u64> {
    keys.iter().map(KeyHash::key_hash).collect()
}
