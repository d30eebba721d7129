//! A log whose runs a helper merges answers like a map, whatever becomes of the merges.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use alluvium_pagestore::io::{Device, Fault, Faults, Simulated};
use alluvium_pagestore::{
    Account, ErrorKind, Helper, KIB, KeyGroup, KeyHash, MIB, MemoryKind, Result, SegmentStore,
    Turns,
};

use super::DIRECTORY_BYTES;
use super::paying::{StepOutcome, StepUrgency};
use super::tests::Dice;
use crate::contract::by_hash::ByHash;
use crate::contract::table::{Cursor, Layout, StateContext, Table};
use crate::contract::upkeep::Upkeep;
use crate::hybrid_log::{HybridLog, HybridLogTable};
use crate::runs::ABOVE_MAX;

type Log = HybridLogTable<u64, u64>;

/// A log, what it stands on, and what it has to say.
struct Play {
    device: Simulated,
    store: Rc<Account>,
    memory: u64,
    table: Log,
    model: BTreeMap<u64, u64>,
    /// Keys that were loaded are below this.
    keys: u64,
    dice: Dice,
}

impl Play {
    fn new(seed: u64, memory: u64, patience: Duration, helper: Helper) -> Self {
        Self::on(Simulated::new(seed, Faults::none()), seed, memory, patience, helper)
    }

    /// One whose helper takes turns with it.
    fn in_turns(seed: u64, memory: u64) -> Self {
        let (turns, device) = (Turns::new(seed), Simulated::new(seed, Faults::none()));
        device.take_turns(&turns);
        let helper = Helper::in_turns(&turns).unwrap();
        Self::on(device, seed, memory, Duration::from_secs(20), helper)
    }

    fn on(device: Simulated, seed: u64, memory: u64, patience: Duration, helper: Helper) -> Self {
        let store = Account::root(memory);
        let context = StateContext {
            name: "log".into(),
            account: Account::below(&store, "log", u64::MAX),
            segments: Some(SegmentStore::new(Arc::new(device.clone()), 1)),
            helper,
            max_value_bytes: 4 * KIB,
            key_groups: 256,
            owned: 0..256,
            movable: true,
            restored: None,
        };
        let layout = HybridLog::new().cold_runs(true).patience(patience);
        let table = Layout::<u64, u64>::open(&layout, context).unwrap();
        let (model, dice) = (BTreeMap::new(), Dice(seed));
        Self { device, store, memory, table, model, keys: 0, dice }
    }

    /// Puts keys until so many merges have ended, and one more goes on.
    fn load(&mut self, merges: u64) {
        while self.merges() < merges || !self.is_merging() {
            let key = self.keys;
            let known = again(|| self.table.put(key, key).map_err(|rejected| rejected.error));
            assert_eq!(known, self.model.insert(key, key).is_some(), "{key}");
            assert!(self.store.used() <= self.memory, "{:?}", self.store);
            self.keys += 1;
            assert!(self.keys < 1_000_000, "{:?}", self.table.stats().runs);
        }
    }

    fn merges(&self) -> u64 {
        self.table.core.log.cold.as_ref().unwrap().merges()
    }

    fn is_merging(&self) -> bool {
        self.table.core.log.cold.as_ref().unwrap().levels.is_merging()
    }

    /// A call, of whatever kind.
    fn step(&mut self, step: u64) {
        let key = self.dice.below(self.keys + self.keys / 10);
        let Self { table, model, .. } = self;
        match self.dice.below(5) {
            0 => {
                let found = again(|| table.get(&key).map(|found| found.copied()));
                assert_eq!(found, model.get(&key).copied(), "{key}");
            }
            1 => assert_eq!(again(|| table.take(&key)), model.remove(&key), "{key}"),
            2 => {
                again(|| table.update(&key, || step, |value| *value = step));
                model.insert(key, step);
            }
            _ => {
                let known = again(|| table.put(key, step).map_err(|rejected| rejected.error));
                assert_eq!(known, model.insert(key, step).is_some(), "{key}");
            }
        }
        assert_eq!(self.table.len(), self.model.len() as u64, "step {step}");
        assert!(self.store.used() <= self.memory, "{:?}", self.store);
    }

    /// Moves key groups away, whose records are of a range of hashes.
    fn cut(&mut self, group: u16) {
        let (hashes, mut cursor) = (KeyGroup(group).hashes(256), Cursor::default());
        while !cursor.done {
            again(|| self.table.remove_hashes((), &hashes, &mut cursor, 500));
        }
        self.model.retain(|key, _| !hashes.contains(&key.key_hash()));
        assert_eq!(self.table.len(), self.model.len() as u64);
    }

    /// All is there, each once; then nothing is left, neither memory nor files.
    fn end(mut self) {
        self.device.set_faults(Faults::none());
        // What could not be removed is left over until the next open.
        let has_failed = self.table.stats().runs.failed > 0;
        let (mut seen, mut cursor) = (BTreeMap::new(), Cursor::default());
        while !cursor.done {
            self.table
                .scan(&mut cursor, 700, &mut |key, value| {
                    assert!(seen.insert(*key, *value).is_none(), "{key} is shown twice");
                    Ok(())
                })
                .unwrap();
        }
        assert!(seen == self.model, "{} of {}", seen.len(), self.model.len());
        self.table.clear().unwrap();
        assert_eq!(self.table.len(), 0);
        while self.table.tick(64).unwrap() > 0 {}
        let (device, store) = (self.device, self.store);
        drop(self.table);
        assert_eq!(store.used(), 0);
        let files = device.list().unwrap();
        assert!(has_failed || !files.iter().any(|name| name.starts_with("run-")), "{files:?}");
    }
}

/// Calls that fail change nothing: each is made again until it does not.
fn again<T>(mut call: impl FnMut() -> Result<T>) -> T {
    for _ in 0..1000 {
        match call() {
            Ok(value) => return value,
            Err(error) => assert_eq!(error.kind(), ErrorKind::Io, "{error}"),
        }
    }
    panic!("storage never works");
}

#[test]
fn histories_are_those_of_a_map() {
    for seed in 0..3 {
        let mut play = Play::in_turns(seed, MIB);
        play.load(3);
        (0..20_000).for_each(|step| play.step(step));
        assert!(play.merges() > 3, "merges go on");
        play.end();
    }
}

#[test]
fn histories_of_calls_that_fail_are_those_of_a_map() {
    let faults =
        Faults { read_errors: 0.01, write_errors: 0.01, directory_errors: 0.02, ..Faults::none() };
    for seed in 10..12 {
        let mut play = Play::in_turns(seed, MIB);
        play.device.set_faults(faults);
        play.load(3);
        for step in 0..20_000 {
            play.step(step);
            if step % 5000 == 700 {
                let group = play.dice.below(256) as u16;
                play.cut(group);
            }
        }
        play.end();
    }
}

/// Where memory has room for both, records move while a helper merges.
#[test]
fn records_move_while_a_helper_merges() {
    let mut play = Play::in_turns(20, 16 * MIB);
    let cold = |play: &Play| {
        let cold = play.table.core.log.cold.as_ref().unwrap();
        cold.moving.is_some() && cold.levels.is_merging()
    };
    let mut both = 0;
    for key in 0..1_300_000 {
        assert!(!play.table.put(key, key).unwrap());
        play.model.insert(key, key);
        assert!(play.store.used() <= play.memory, "{:?}", play.store);
        both += u64::from(cold(&play));
    }
    play.keys = 1_300_000;
    assert!(both > 500 && play.merges() > 1, "{both}, {:?}", play.table.stats().runs);
    (0..5_000).for_each(|step| play.step(step));
    for group in [3, 77, 255] {
        play.cut(group);
    }
    play.end();
}

/// Beside a move no page leaves memory for a merge: it begins once there is memory for both, and not a little before.
#[test]
fn no_page_leaves_for_a_merge_beside_a_move() {
    let mut play = Play::in_turns(21, 16 * MIB);
    let is_set = |play: &mut Play| {
        let cold = play.table.core.log.cold.as_mut().unwrap();
        let moves = cold.moving.as_ref().is_some_and(|moving| moving.is_gathering());
        // All records are as good as dead for it.
        moves && !cold.levels.is_behind() && cold.levels.merge_early(0)
    };
    let mut key = 0;
    while !is_set(&mut play) {
        assert!(!play.table.put(key, key).unwrap());
        key += 1;
    }
    let other = Account::below(&play.store, "other", u64::MAX);
    let Play { table, store, .. } = &mut play;
    let log = &mut table.core.log;
    let mut cold = log.cold.take().unwrap();
    cold.purse.give_back();
    let most = cold.due_bytes() + log.keep_bytes() + DIRECTORY_BYTES;
    let taken = store.available() - (most - KIB);
    other.charge(MemoryKind::Buffers, taken);
    let pages = log.own_bytes_for(MemoryKind::Pages);
    for _ in 0..100 {
        assert_eq!(
            log.step_merge_away(&mut cold, StepUrgency::Later, false).unwrap(),
            StepOutcome::Nothing
        );
    }
    assert_eq!(log.own_bytes_for(MemoryKind::Pages), pages);
    other.release(MemoryKind::Buffers, KIB);
    assert_eq!(
        log.step_merge_away(&mut cold, StepUrgency::Later, false).unwrap(),
        StepOutcome::Something
    );
    assert!(cold.levels.is_merging());
    other.release(MemoryKind::Buffers, taken - KIB);
    log.cold = Some(cold);
}

/// A merge that is given up leaves neither files nor memory.
#[test]
fn a_log_is_cleared_and_dropped_while_a_helper_merges() {
    for seed in 30..36 {
        let mut play = Play::in_turns(seed, MIB);
        play.load(1);
        assert!(play.is_merging());
        if seed % 2 == 0 {
            play.table.clear().unwrap();
            play.model.clear();
            assert!(!play.is_merging());
            play.load(play.merges() + 1);
        }
        let levels = play.table.core.log.cold.as_ref().unwrap().levels.infos();
        let mut wanted: Vec<_> = levels.iter().flatten().map(|run| run.id.file_name()).collect();
        wanted.sort();
        let (device, store) = (play.device.clone(), play.store.clone());
        drop(play);
        let mut files = device.list().unwrap();
        files.retain(|name| name.starts_with("run-"));
        files.sort();
        assert_eq!((store.used(), files), (0, wanted), "what was begun has gone");
    }
}

/// Deletes go on while a helper merges, and levels of tombstones do not become many.
#[test]
fn deletes_beside_a_merge_keep_levels_few() {
    let mut play = Play::in_turns(60, MIB);
    play.load(3);
    let mut most = 0;
    for key in (0..play.keys).step_by(3) {
        assert_eq!(again(|| play.table.take(&key)), play.model.remove(&key), "{key}");
        most = most.max(play.table.core.log.cold.as_ref().unwrap().levels.len());
    }
    assert!(most <= 2 * ABOVE_MAX, "{most} levels");
    play.end();
}

/// A full device stops merging, and nothing else; it goes on when there is room.
#[test]
fn a_full_device_stops_a_merge() {
    let mut play = Play::in_turns(40, MIB);
    play.load(1);
    play.device.set_capacity_bytes(Some(0));
    let merges = play.merges();
    let keys = play.keys;
    for key in (0..keys).step_by(keys as usize / 200) {
        assert_eq!(again(|| play.table.take(&key)), play.model.remove(&key), "{key}");
        if let Err(error) = play.table.tick(64) {
            // Of a page of the log that was on its way.
            assert_eq!(error.kind(), ErrorKind::DiskFull, "{error}");
        }
        let found = again(|| play.table.get(&(key + 1)).map(|found| found.copied()));
        assert_eq!(found, play.model.get(&(key + 1)).copied());
    }
    assert_eq!(play.merges(), merges);
    play.device.set_capacity_bytes(None);
    play.load(merges + 1);
    play.end();
}

/// Where the device does nothing, a call that needs the merge waits no longer than told, and what needs no storage goes
/// on.
#[test]
fn a_helper_that_hangs_is_not_waited_for_for_ever() {
    let patience = Duration::from_secs(20);
    let mut play = Play::new(50, MIB, patience, Helper::thread().unwrap());
    play.load(1);
    play.table.core.log.sizes.patience = Duration::from_millis(200);
    (1..2000).for_each(|nth| play.device.on_nth_write(nth, Fault::Stuck));
    let refused =
        (play.keys..play.keys + 1_000_000).find_map(|key| match play.table.put(key, key) {
            Ok(known) => {
                assert!(!known);
                play.model.insert(key, key);
                None
            }
            Err(rejected) => Some((key, rejected.error)),
        });
    let (key, error) = refused.expect("memory has no room for ever");
    let told = [ErrorKind::Backpressure, ErrorKind::OverBudget];
    assert!(told.contains(&error.kind()), "{error}");
    assert!(play.store.used() <= play.memory, "{:?}", play.store);
    assert_eq!(play.table.get(&(key - 1)).unwrap().copied(), Some(key - 1));
    play.table.core.log.sizes.patience = patience;
    play.device.forget_scripts();
    play.device.release_stuck();
    let put = |play: &mut Play| play.table.put(key, key).map_err(|rejected| rejected.error);
    let since = Instant::now();
    while let Err(error) = put(&mut play) {
        let is_soon = since.elapsed() < Duration::from_secs(60);
        assert!(told.contains(&error.kind()) && is_soon, "{error}");
        // For the helper, which ends what was stuck.
        std::thread::sleep(Duration::from_millis(1));
    }
    play.model.insert(key, key);
    play.keys = key + 1;
    play.load(play.merges() + 1);
    play.end();
}
