//! What tiers leave to each other, and have others give: memory that is short, by what each call takes.

use std::cell::RefCell;
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

use alluvium_pagestore::io::{Faults, Simulated};
use alluvium_pagestore::{Account, Helper, KIB, MIB, Reclaim, Result};

use super::tests::{open, open_within};
use crate::contract::table::Table;
use crate::contract::upkeep::Upkeep;
use crate::hybrid_log::{HybridLog, HybridLogTable};

type Log = HybridLogTable<u64, [u64; 6]>;

fn device(seed: u64) -> Simulated {
    Simulated::new(seed, Faults::none())
}

fn fill(log: &mut Log, keys: std::ops::Range<u64>) {
    keys.for_each(|key| assert!(!log.put(key, [key; 6]).unwrap(), "{key}"));
}

#[test]
fn what_a_cleared_tier_had_saved_up_is_nobodys_to_count_on() {
    let (store, layout) = (Account::root(16 * MIB), HybridLog::new().cold_runs(true));
    let mut logs: [Log; 2] = [1, 2].map(|seed| open(&layout, &device(seed), &store));
    fill(&mut logs[0], 0..400_000);
    let other = logs[1].core.log.account.clone();
    let spare = other.attainable_for_work() - other.attainable();
    assert!(spare > 500 * KIB, "{spare} bytes are saved up for more than the least");
    logs[0].clear().unwrap();
    assert_eq!(other.attainable_for_work(), other.attainable());
}

/// Two logs whose helpers have threads, in memory where records move while a helper merges.
#[test]
fn two_tiers_move_while_helpers_with_threads_merge() {
    let (memory, layout) = (48 * MIB, HybridLog::new().cold_runs(true));
    let store = Account::root(memory);
    let devices = [device(1), device(2)];
    let logs = devices.each_ref().map(|device| {
        let helper = Helper::thread().unwrap();
        Rc::new(RefCell::new(open_within::<u64, u64>(u64::MAX, helper, &layout, (device, &store))))
    });
    store.set_reclaim(Box::new(Both(logs.each_ref().map(Rc::downgrade))));
    let (keys, mut overlapped, mut shrunk) = (1_300_000, 0u64, 0u64);
    for key in 0..keys {
        for log in &logs {
            let mut log = log.borrow_mut();
            log.put(key, key).unwrap_or_else(|error| panic!("{key}: {}", error.error));
            let cold = log.core.log.cold.as_ref().expect("a tier");
            overlapped += u64::from(cold.moving.is_some() && cold.levels.is_merging());
            shrunk += u64::from(cold.work.memory < cold.wanted.memory);
            assert!(store.used() <= memory, "{store:?}");
        }
    }
    // A helper that got no time has some now.
    let merges = logs.each_ref().map(|log| {
        let (mut log, start) = (log.borrow_mut(), Instant::now());
        loop {
            match log.core.log.cold.as_ref().unwrap().merges() {
                0 => assert!(start.elapsed() < Duration::from_secs(120), "no merge ends"),
                merges => break merges,
            }
            log.tick(1000).unwrap();
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    println!(
        "{overlapped} puts found a move beside a merge, {shrunk} smaller work, {merges:?} merges"
    );
    for log in &logs {
        let mut log = log.borrow_mut();
        assert!(log.stats().runs.keys > 100_000, "{:?}", log.stats());
        assert_eq!(log.len(), keys);
        for key in (0..keys + 1000).step_by(997) {
            assert_eq!(log.get(&key).unwrap().copied(), (key < keys).then_some(key));
        }
        for key in (0..keys).step_by(1999) {
            assert_eq!(log.take(&key).unwrap(), Some(key));
        }
        assert_eq!(log.len(), keys - keys.div_ceil(1999));
    }
}

struct Both([Weak<RefCell<HybridLogTable<u64, u64>>>; 2]);

impl Reclaim for Both {
    fn reclaim(&self, bytes: u64) -> Result<()> {
        let mut lacking = bytes;
        for log in self.0.iter().filter_map(Weak::upgrade) {
            if let Ok(mut log) = log.try_borrow_mut() {
                lacking -= log.reclaim(lacking)?.min(lacking);
            }
        }
        Ok(())
    }
}
