//! A log gets a tier when its index takes too much. Before, it is as it is without.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use alluvium_pagestore::io::{Device, Faults, Simulated, Waker};
use alluvium_pagestore::{Account, KIB, MIB};

use super::tests::{Dice, open};
use crate::contract::fetch::Fetch;
use crate::contract::table::Table;
use crate::contract::upkeep::Upkeep;
use crate::hybrid_log::{HybridLog, HybridLogTable};

type Log = HybridLogTable<u64, [u64; 6]>;

#[test]
fn a_log_whose_index_fits_takes_the_same_memory_and_does_the_same_reads_and_writes() {
    for memory in [256 * KIB, MIB, 4 * MIB] {
        let [device, other_device] = [0; 2].map(|_| Simulated::new(1, Faults::none()));
        let [store, other_store] = [0; 2].map(|_| Account::root(memory));
        let mut log: Log = open(&HybridLog::new().cold_runs_automatic(), &device, &store);
        let mut other: Log = open(&HybridLog::new().cold_runs(false), &other_device, &other_store);
        let (keys, mut dice) = (memory / 64, Dice(memory));
        for step in 0..3 * keys {
            let key = if step < keys { step } else { dice.below(keys) };
            for log in [&mut log, &mut other] {
                log.update(&key, || [key; 6], |value| value[0] += 1).unwrap();
            }
            assert_eq!(store.used(), other_store.used(), "{memory}: step {step}");
        }
        assert!(log.stats().pages_flushed > 0, "most records are on storage");
        assert_eq!(format!("{:?}", log.stats()), format!("{:?}", other.stats()));
        let [reads, other_reads] = [device, other_device].map(|device| device.stats().reads);
        assert_eq!(reads, other_reads);
        assert!(log.core.log.cold.is_none());
    }
}

#[test]
fn without_enough_memory_or_if_it_is_off_there_is_no_tier() {
    for (layout, memory) in [
        (HybridLog::new().cold_runs_automatic(), 512 * KIB),
        (HybridLog::new().cold_runs(false), MIB),
    ] {
        let (device, store) = (Simulated::new(1, Faults::none()), Account::root(memory));
        let mut log: Log = open(&layout, &device, &store);
        let refused = (0..100_000).find(|key| log.put(*key, [0; 6]).is_err());
        assert!(refused.is_some(), "the index fills the memory");
        assert_eq!(log.stats().runs.moved, 0);
    }
}

#[test]
fn who_waits_for_reads_is_woken_by_those_of_a_tier_that_began_later() {
    let (device, store) = (Simulated::new(1, Faults::none()), Account::root(4 * MIB));
    let mut log: Log = open(&HybridLog::new().cold_runs_automatic(), &device, &store);
    let woken = Arc::new(AtomicU64::new(0));
    let counts = woken.clone();
    log.wake_with(Arc::new(Waker::new(move || {
        counts.fetch_add(1, Ordering::Relaxed);
    })));
    for key in 0..300_000 {
        log.put(key, [key; 6]).unwrap();
    }
    let (before, mut pending) = (woken.load(Ordering::Relaxed), 0);
    for key in (0..300_000).step_by(501) {
        while let Fetch::Pending(_) = log.fetch(&key) {
            pending += 1;
            log.fetched(&mut |_| ());
        }
        assert_eq!(log.get(&key).unwrap(), Some(&[key; 6]));
    }
    assert!(log.stats().runs.keys > 100_000, "{:?}", log.stats());
    assert!(pending > 0 && woken.load(Ordering::Relaxed) > before);
}

#[test]
fn a_log_that_is_cleared_gets_its_tier_again() {
    let (device, store) = (Simulated::new(1, Faults::none()), Account::root(MIB));
    let mut log: Log = open(&HybridLog::new().cold_runs_automatic(), &device, &store);
    for keys in [3_000, 120_000, 3_000, 120_000] {
        for key in 0..keys {
            log.put(key, [key; 6]).unwrap();
        }
        assert_eq!(log.len(), keys);
        for key in (0..keys + 10).step_by(7) {
            assert_eq!(log.get(&key).unwrap().copied(), (key < keys).then_some([key; 6]));
        }
        assert_eq!(log.stats().runs.keys > 0, keys > 100_000);
        log.clear().unwrap();
    }
    drop(log);
    assert_eq!(store.used(), 0);
}

#[test]
fn unless_it_is_off_a_log_gets_a_tier() {
    let (device, store) = (Simulated::new(1, Faults::none()), Account::root(16 * MIB));
    let mut log: Log = open(&HybridLog::new(), &device, &store);
    let mut keys = 0;
    while log.stats().runs.keys == 0 {
        for key in keys..keys + 10_000 {
            log.put(key, [key; 6]).unwrap();
        }
        keys += 10_000;
        assert!(keys < 1_200_000, "{:?}", log.stats());
    }
    assert_eq!(log.len(), keys);
}

#[test]
fn in_little_memory_a_log_gets_a_tier_if_that_was_said() {
    let fill = |layout: &HybridLog| {
        let (device, store) = (Simulated::new(1, Faults::none()), Account::root(MIB));
        let mut log: Log = open(layout, &device, &store);
        let refused = (0..120_000).find(|key| log.put(*key, [*key; 6]).is_err());
        (refused, log.stats().runs.keys)
    };
    let by_itself = fill(&HybridLog::new());
    assert!(by_itself.0.is_some() && by_itself.1 == 0, "{by_itself:?}");
    assert_eq!(by_itself, fill(&HybridLog::new().cold_runs(false)));
    let said = fill(&HybridLog::new().cold_runs_automatic());
    assert!(said.0.is_none() && said.1 > 60_000, "{said:?}");
}

#[test]
fn a_configuration_says_when_records_move() {
    let words = [
        ("true", HybridLog::new().cold_runs(true)),
        ("false", HybridLog::new().cold_runs(false)),
        ("\"automatic\"", HybridLog::new().cold_runs_automatic()),
    ];
    for (word, layout) in words {
        let text = format!("{{\"cold-runs\":{word}}}");
        assert_eq!(serde_json::from_str::<HybridLog>(&text).unwrap(), layout);
        assert!(serde_json::to_string(&layout).unwrap().contains(&text[1..text.len() - 1]));
    }
    assert!(serde_json::from_str::<HybridLog>("{\"cold-runs\":\"never\"}").is_err());
}
