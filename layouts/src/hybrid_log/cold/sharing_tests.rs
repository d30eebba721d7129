//! Tiers of several logs that share the memory of a store: what each takes for moves and merges is by what it has.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

use alluvium_pagestore::io::{Faults, Simulated};
use alluvium_pagestore::{Account, ErrorKind, KIB, MIB, MemoryKind, Reclaim, Result, State};

use super::ColdTier;
use super::tests::open;
use crate::contract::table::Table;
use crate::contract::upkeep::Upkeep;
use crate::hybrid_log::{HybridLog, HybridLogTable};

type Log = HybridLogTable<u64, [u64; 6]>;

/// Logs that share the memory of a store.
struct Shared {
    store: Rc<Account>,
    /// Puts that found work that is smaller than wanted.
    shrunk: Cell<u64>,
    logs: Vec<Rc<RefCell<Log>>>,
}

/// Logs that give memory up to each other, in this order, but for the one that asks.
pub(super) struct Elastic<V: State>(Vec<Weak<RefCell<HybridLogTable<u64, V>>>>);

impl<V: State> Elastic<V> {
    /// Has the logs of a store give memory up to each other.
    pub(super) fn set(store: &Account, logs: &[Rc<RefCell<HybridLogTable<u64, V>>>]) {
        store.set_reclaim(Box::new(Self(logs.iter().map(Rc::downgrade).collect())));
    }
}

impl<V: State> Reclaim for Elastic<V> {
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

impl Shared {
    fn new(memory: u64, layouts: &[HybridLog]) -> Self {
        let store = Account::root(memory);
        let open = |(seed, layout)| {
            let device = Simulated::new(seed, Faults::none());
            Rc::new(RefCell::new(open(layout, &device, &store)))
        };
        let logs: Vec<Rc<RefCell<Log>>> = (0..).zip(layouts).map(open).collect();
        Elastic::set(&store, &logs);
        Self { store, shrunk: Cell::new(0), logs }
    }

    fn put(&self, log: usize, key: u64) -> Result<bool> {
        let mut calls = 0;
        let put = loop {
            let put = self.logs[log].borrow_mut().put(key, value(log, key));
            calls += 1;
            match &put {
                // More is to be merged.
                Err(refused) if refused.error.kind() == ErrorKind::Backpressure && calls < 100 => {}
                _ => break put,
            }
        };
        assert!(self.store.used() <= self.store.limit(), "{:?}", self.store);
        if let Err(error) = &put {
            println!("{key} of log {log}: {}", error.error);
        }
        let is_small = |cold: &ColdTier| cold.work.memory < cold.wanted.memory;
        let is_small = self.logs[log].borrow().core.log.cold.as_deref().is_some_and(is_small);
        self.shrunk.set(self.shrunk.get() + u64::from(is_small));
        put.map_err(|error| error.error)
    }

    /// Puts a key after the other in each log in turn, until one refuses or all have so many. Gives the keys of each.
    fn fill_evenly(&self, keys: std::ops::Range<u64>) -> u64 {
        let (end, mut keys) = (keys.end, keys);
        let refused = keys.find(|key| (0..self.logs.len()).any(|log| self.put(log, *key).is_err()));
        refused.unwrap_or(end)
    }

    /// Checks one key of so many that are there, and some that are not.
    fn check(&self, log: usize, keys: u64, step: usize) {
        let mut table = self.logs[log].borrow_mut();
        assert_eq!(table.len(), keys);
        for key in (0..keys + 100).step_by(step) {
            let wanted = (key < keys).then(|| value(log, key));
            assert_eq!(table.get(&key).unwrap(), wanted.as_ref(), "{key} of log {log}");
        }
        assert!(self.store.used() <= self.store.limit());
    }

    /// Deletes one key of so many, of which none is refused.
    fn delete(&self, log: usize, keys: u64, step: usize) {
        let mut table = self.logs[log].borrow_mut();
        let mut left = table.len();
        for key in (0..keys).step_by(step) {
            let taken = table.take(&key).unwrap_or_else(|error| panic!("{key}: {error}"));
            assert_eq!(taken, Some(value(log, key)), "{key} of log {log}");
            left -= 1;
        }
        assert_eq!(table.len(), left);
    }

    fn print(&self) {
        for log in &self.logs {
            let table = log.borrow();
            let (stats, cold) = (table.stats(), table.core.log.cold.as_ref());
            println!(
                "index {} KiB, pages {} KiB, {:?} MiB of work, moved {}, merged {}, bytes moved {}, levels {}, \
                 failed {}",
                table.core.log.account.used_for(MemoryKind::Index) / KIB,
                table.core.log.account.used_for(MemoryKind::Pages) / KIB,
                cold.map(|cold| (cold.work.memory as f64 / MIB as f64, cold.wanted.memory / MIB)),
                stats.runs.moved,
                stats.runs.merged_bytes,
                stats.runs.moved_bytes,
                stats.runs.levels,
                stats.runs.failed,
            );
        }
    }
}

fn value(log: usize, key: u64) -> [u64; 6] {
    [key * 8 + log as u64; 6]
}

fn automatic() -> HybridLog {
    HybridLog::new().cold_runs_automatic()
}

fn never() -> HybridLog {
    HybridLog::new().cold_runs(false)
}

/// Says in how many puts work was smaller than wanted.
fn grow_evenly(logs: usize, memory: u64, (checked, deleted): (usize, usize)) -> u64 {
    let without = Shared::new(memory, &vec![never(); logs]).fill_evenly(0..1 << 30);
    let shared = Shared::new(memory, &vec![automatic(); logs]);
    let keys = 4 * without;
    let taken = shared.fill_evenly(0..keys);
    println!("{logs} logs: {without} keys without runs, {taken} with");
    shared.print();
    assert_eq!(taken, keys, "{logs} logs");
    (0..logs).for_each(|log| shared.check(log, keys, checked));
    (0..logs).for_each(|log| shared.delete(log, keys, deleted));
    // What they had is there for the keys that come.
    assert_eq!(
        shared.fill_evenly(keys..keys + without / 4),
        keys + without / 4,
        "{logs} logs again"
    );
    shared.shrunk.get()
}

#[test]
fn two_logs_that_grow_evenly_take_four_times_the_keys_of_logs_without_runs() {
    grow_evenly(2, 3 * MIB, (29, 11));
}

#[test]
fn eight_logs_that_grow_evenly_take_four_times_the_keys_of_logs_without_runs() {
    assert!(grow_evenly(8, 12 * MIB, (41, 37)) > 0, "work is smaller than wanted");
}

#[test]
fn a_log_grows_beside_three_that_stand_still() {
    let memory = 6 * MIB;
    let grow = |layout: HybridLog, most: u64| {
        let shared = Shared::new(memory, &vec![layout; 4]);
        let each = memory / 8 / 24;
        assert_eq!(shared.fill_evenly(0..each), each);
        let taken = (each..most).find(|key| shared.put(3, *key).is_err()).unwrap_or(most);
        (shared, each, taken)
    };
    let (_, _, without) = grow(never(), 1 << 30);
    let keys = 4 * without;
    let (shared, each, taken) = grow(automatic(), keys);
    println!("{without} keys without runs, {taken} with");
    shared.print();
    assert_eq!(taken, keys);
    (0..3).for_each(|log| shared.check(log, each, 7));
    shared.check(3, keys, 29);
    // One of the three grows after it.
    let most = each + keys / 4;
    let refused = (each..most).find(|key| shared.put(0, *key).is_err());
    shared.print();
    assert_eq!(refused, None);
    shared.check(0, most, 7);
    shared.check(3, keys, 37);
    shared.delete(3, keys, 19);
    shared.delete(0, most, 11);
}
