//! What tiers leave to each other, and have others give: memory that is short, by what each call takes.

use std::cell::RefCell;
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

use alluvium_pagestore::io::{Faults, Simulated};
use alluvium_pagestore::{Account, Helper, KIB, MIB, MemoryKind, Reclaim, Result, Turns};

use super::sharing_tests::Elastic;
use super::tests::{open, open_with, open_within};
use crate::contract::table::Table;
use crate::contract::upkeep::Upkeep;
use crate::hybrid_log::{HybridLog, HybridLogTable};

type Log = HybridLogTable<u64, [u64; 6]>;

pub(super) fn device(seed: u64) -> Simulated {
    Simulated::new(seed, Faults::none())
}

fn fill(log: &mut Log, keys: std::ops::Range<u64>) {
    keys.for_each(|key| assert!(!log.put(key, [key; 6]).unwrap(), "{key}"));
}

/// Whether a tier could save so much up that its work takes at least, with what others would give.
fn can_save_the_least(log: &mut Log) -> bool {
    let mut cold = log.core.log.cold.take().expect("a tier");
    cold.work = cold.least;
    let can = log.core.log.can_save_up(&cold, cold.least_bytes());
    log.core.log.cold = Some(cold);
    can
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

#[test]
fn what_others_have_saved_up_is_not_there_beyond_a_limit_of_its_own() {
    let (store, layout) = (Account::root(16 * MIB), HybridLog::new().cold_runs(true));
    let mut large: Log = open(&layout, &device(1), &store);
    let mut small: Log = open_within(2 * MIB, Helper::inline(), &layout, (&device(2), &store));
    fill(&mut small, 0..60_000);
    fill(&mut large, 0..400_000);
    assert!(can_save_the_least(&mut small));
    // It holds what no page gives back, and others have saved much up.
    small.reclaim(u64::MAX).unwrap();
    large.reclaim(2 * MIB).unwrap();
    let account = small.core.log.account.clone();
    let held = (2 * MIB - account.used()).min(account.available());
    account.charge(MemoryKind::Buffers, held);
    let spare = large.core.log.cold.as_ref().unwrap().spare_bytes();
    assert!(spare > MIB, "{spare} bytes are to spare");
    assert!(!can_save_the_least(&mut small), "{account:?}");
    account.release(MemoryKind::Buffers, held);
    assert!(can_save_the_least(&mut small), "{account:?}");
    // What was booked for the test is not there any more.
    drop((small, large));
    assert_eq!(store.used(), 0);
}

#[test]
fn of_two_tiers_that_lack_the_least_one_takes_what_is_free() {
    let (store, layout) = (Account::root(4 * MIB), HybridLog::new().cold_runs(true));
    let mut logs: [Log; 2] = [1, 2].map(|seed| open(&layout, &device(seed), &store));
    for log in &mut logs {
        fill(log, 0..30_000);
        log.reclaim(u64::MAX).unwrap();
    }
    let least = logs.each_ref().map(|log| log.core.log.cold.as_ref().unwrap().least_bytes());
    // The rest is held by a state that gives nothing.
    let (other, keep) = (Account::below(&store, "heap", u64::MAX), logs[0].core.log.keep_bytes());
    let left = least[0] + keep + least[1] / 2;
    other.charge(MemoryKind::Values, store.available() - left);
    logs.iter().for_each(|log| log.core.log.keep_for_work());
    let lacking = |log: &Log| log.core.log.cold.as_ref().unwrap().lacking_bytes();
    assert!(logs.iter().all(|log| lacking(log) > 100 * KIB), "both lack memory");
    assert!(logs.iter_mut().all(can_save_the_least), "{store:?}");
}

/// A list that gives memory up, which nobody knows before.
struct List(Weak<Account>);

impl Reclaim for List {
    fn reclaim(&self, bytes: u64) -> Result<()> {
        if let Some(account) = self.0.upgrade() {
            account.release(MemoryKind::Pages, bytes.min(account.used()));
        }
        Ok(())
    }
}

#[test]
fn an_index_that_nothing_else_makes_room_for_has_a_list_give_some() {
    let (device, store) = (device(1), Account::root(MIB + 256 * KIB));
    let layout = HybridLog::new().cold_runs_automatic();
    let mut log = open_with::<u64, Vec<u8>>(&layout, 16 * KIB, &device, &store);
    let list = Account::below(&store, "list", u64::MAX);
    store.set_reclaim(Box::new(List(Rc::downgrade(&list))));
    list.charge(MemoryKind::Pages, 300 * KIB);
    // These move; what comes later is too long for that, and a tier that has some keys stays.
    let mut keys = 0;
    while log.stats().runs.keys < 1000 {
        log.put(keys, vec![1; 8]).unwrap();
        keys += 1;
    }
    let before = keys;
    while log.put(keys, vec![2; 9000]).is_ok() {
        keys += 1;
        assert!(keys < before + 60_000, "the index is never full");
    }
    println!("{before} keys that can move, {} that cannot", keys - before);
    assert!(log.core.log.cold.is_some() && store.used() <= store.limit());
    assert!(list.used() < 16 * KIB, "refused while a list has {} bytes", list.used());
}

/// Where a tier begins since memory has no room for one entry more, the put that has it begin is not refused.
#[test]
fn no_put_is_refused_where_a_tier_begins_in_need() {
    let (device, store) = (device(1), Account::root(2 * MIB));
    let mut log: Log = open(&HybridLog::new().cold_runs_automatic(), &device, &store);
    let mut keys = 0;
    while log.core.log.account.used_for(MemoryKind::Index) < 500 * KIB {
        fill(&mut log, keys..keys + 1);
        keys += 1;
    }
    assert!(log.core.log.cold.is_none(), "an index of a quarter");
    // A heap takes all but the index and a third of a MiB.
    let other = Account::below(&store, "heap", u64::MAX);
    log.reclaim(u64::MAX).unwrap();
    let left = 350 * KIB;
    other.charge(MemoryKind::Values, store.available().saturating_sub(left));
    let first = keys;
    while log.stats().runs.keys < 1000 {
        fill(&mut log, keys..keys + 1);
        keys += 1;
        assert!(keys < first + 100_000, "nothing moves");
    }
}

/// Two logs, in memory where records move while a helper merges.
struct Two {
    store: Rc<Account>,
    logs: [Rc<RefCell<HybridLogTable<u64, u64>>>; 2],
    /// Puts that found a move beside a merge.
    overlapped: u64,
}

const OF_TWO: u64 = 48 * MIB;

impl Two {
    fn new(helpers: [(Simulated, Helper); 2]) -> Self {
        let store = Account::root(OF_TWO);
        // A busy machine may give a thread no time for long.
        let layout = HybridLog::new().cold_runs(true).patience(Duration::from_secs(300));
        let logs = helpers.map(|(device, helper)| {
            Rc::new(RefCell::new(open_within(u64::MAX, helper, &layout, (&device, &store))))
        });
        Elastic::set(&store, &logs);
        Self { store, logs, overlapped: 0 }
    }

    fn load(&mut self, keys: std::ops::Range<u64>) {
        for key in keys {
            for log in &self.logs {
                let mut log = log.borrow_mut();
                log.put(key, key).unwrap_or_else(|error| panic!("{key}: {}", error.error));
                let cold = log.core.log.cold.as_ref().expect("a tier");
                self.overlapped += u64::from(cold.moving.is_some() && cold.levels.is_merging());
                assert!(self.store.used() <= OF_TWO, "{:?}", self.store);
            }
        }
    }

    /// Ends a merge of each, for which its helper may have had no time yet.
    fn merge(&self) {
        let merges = self.logs.each_ref().map(|log| {
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
        println!("{} puts beside both, {merges:?} merges", self.overlapped);
    }

    fn check(&self, keys: u64) {
        for log in &self.logs {
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
}

#[test]
fn two_tiers_move_while_helpers_with_threads_merge() {
    let keys = 1_300_000;
    let mut two = Two::new([1, 2].map(|seed| (device(seed), Helper::thread().unwrap())));
    two.load(0..keys);
    two.merge();
    two.check(keys);
}

#[test]
fn two_tiers_move_while_helpers_that_take_turns_merge() {
    let keys = 1_200_000;
    let mut two = Two::new([3, 4].map(|seed| {
        let (turns, device) = (Turns::new(seed), device(seed));
        device.take_turns(&turns);
        (device, Helper::in_turns(&turns).unwrap())
    }));
    two.load(0..keys);
    two.merge();
    assert!(two.overlapped > 0, "records move beside a merge");
    two.check(keys);
}
