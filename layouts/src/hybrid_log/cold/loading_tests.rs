//! Batches of many keys that are loaded: the log answers like a map, whatever it has of their keys before.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use alluvium_pagestore::io::{Device, Faults, Simulated};
use alluvium_pagestore::{
    Account, ErrorKind, Helper, KIB, KeyGroup, KeyHash, MIB, SegmentStore, Turns,
};

use super::tests::Dice;
use crate::contract::by_hash::ByHash;
use crate::contract::loading::LoadRoom;
use crate::contract::table::{Cursor, Layout, Peek, StateContext, Table};
use crate::contract::upkeep::Upkeep;
use crate::hybrid_log::{HybridLog, HybridLogTable};

type Value = [u64; 7];
type Log = HybridLogTable<u64, Value>;

const MEMORY: u64 = 2 * MIB;

struct Play {
    device: Simulated,
    store: Rc<Account>,
    table: Log,
    model: BTreeMap<u64, u64>,
    /// Keys from this one on were never put.
    next: u64,
    /// Each value is another one.
    values: u64,
    dice: Dice,
}

impl Play {
    /// A log whose helper takes turns with it or merges where it is called.
    fn empty(seed: u64, layout: &HybridLog, in_turns: bool) -> Self {
        let device = Simulated::new(seed, Faults::none());
        let helper = match in_turns {
            true => {
                let turns = Turns::new(seed);
                device.take_turns(&turns);
                Helper::in_turns(&turns).unwrap()
            }
            false => Helper::inline(),
        };
        let store = Account::root(MEMORY);
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
        let table = Layout::<u64, Value>::open(layout, context).unwrap();
        let (model, dice) = (BTreeMap::new(), Dice(seed));
        Self { device, store, table, model, next: 0, values: 0, dice }
    }

    /// One whose records move down.
    fn new(seed: u64, layout: &HybridLog, in_turns: bool) -> Self {
        let mut play = Self::empty(seed, layout, in_turns);
        while play.table.stats().runs.levels < 2 {
            let new = play.new_key();
            play.put(new);
            assert!(play.next < 200_000, "{:?}", play.table.stats().runs);
        }
        play
    }

    fn new_key(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    fn new_value(&mut self) -> u64 {
        self.values += 1;
        self.values
    }

    fn put(&mut self, key: u64) {
        let value = self.new_value();
        let known = loop {
            match self.table.put(key, [value; 7]) {
                Ok(known) => break known,
                Err(rejected) => may_fail(rejected.error.kind()),
            }
        };
        assert_eq!(known, self.model.insert(key, value).is_some(), "{key}");
    }

    fn loaded(&self) -> u64 {
        self.table.core.log.cold.as_ref().unwrap().loaded
    }

    /// Room for a batch, once there is some.
    fn room(&mut self) -> LoadRoom {
        for _ in 0..10_000 {
            if let Some(room) = self.table.room_to_load(0) {
                return room;
            }
            let new = self.new_key();
            self.put(new);
        }
        panic!("there is never room: {:?}", self.table.stats().runs);
    }

    /// Of so many keys in a hundred the log, or the batch, may have one before.
    fn batch(&mut self, entries: usize, known: u64) -> Vec<(u64, Value)> {
        let mut batch: Vec<(u64, Value)> = Vec::new();
        for _ in 0..entries {
            let of_batch = self.dice.below(4) == 0 && !batch.is_empty();
            let key = match self.dice.below(100) < known {
                true if of_batch => batch[self.dice.below(batch.len() as u64) as usize].0,
                // It was put before, and may be deleted.
                true => self.dice.below(self.next),
                false => self.new_key(),
            };
            batch.push((key, [self.new_value(); 7]));
        }
        batch
    }

    /// Loads a batch. After an error those are left that were not put, in order, and are put again.
    fn load(&mut self, known: u64) {
        let room = self.room();
        let entries = match self.dice.below(3) {
            0 => room.entries() / 2,
            _ => room.entries(),
        };
        let given = self.batch(entries, known);
        let (mut batch, mut room) = (given.clone(), Some(room));
        loop {
            let put = match room.take() {
                Some(room) => self.table.load_batch(&mut batch, room),
                None => self.table.put_batch(&mut batch),
            };
            let left: BTreeSet<u64> = batch.iter().map(|(_, value)| value[0]).collect();
            let rest = given.iter().filter(|(_, value)| left.contains(&value[0]));
            assert!(rest.eq(batch.iter()), "what is left is in order");
            assert_eq!(put.is_ok(), batch.is_empty());
            let all = given.iter().filter(|(_, value)| !left.contains(&value[0]));
            all.for_each(|(key, value)| _ = self.model.insert(*key, value[0]));
            match put {
                Ok(()) => break,
                Err(error) => may_fail(error.kind()),
            }
            self.check_some(20);
        }
        assert_eq!(self.table.len(), self.model.len() as u64);
        assert!(self.store.used() <= MEMORY, "{:?}", self.store);
    }

    fn check_some(&mut self, keys: u64) {
        for _ in 0..keys {
            let key = self.dice.below(self.next + 10);
            match self.table.get(&key).map(|found| found.copied()) {
                Ok(found) => assert_eq!(found, self.model.get(&key).map(|of| [*of; 7]), "{key}"),
                Err(error) => may_fail(error.kind()),
            }
        }
    }

    /// Single calls of all kinds.
    fn calls(&mut self, count: u64) {
        for _ in 0..count {
            let key = self.dice.below(self.next + 10);
            match self.dice.below(4) {
                0 => self.check_some(1),
                1 => self.put(key.min(self.next - 1)),
                2 => match self.table.take(&key) {
                    Ok(taken) => {
                        assert_eq!(taken, self.model.remove(&key).map(|of| [of; 7]), "{key}");
                    }
                    Err(error) => may_fail(error.kind()),
                },
                _ => {
                    let new = self.new_value();
                    match self.table.modify(&key, |value| *value = [new; 7]) {
                        Ok(changed) => {
                            let known = self.model.get_mut(&key);
                            assert_eq!(changed.is_some(), known.is_some(), "{key}");
                            known.into_iter().for_each(|of| *of = new);
                        }
                        Err(error) => may_fail(error.kind()),
                    }
                }
            }
        }
        let _ = self.table.tick(64);
        assert_eq!(self.table.len(), self.model.len() as u64);
    }

    /// Has a key group leave. Its keys may be put again.
    fn cut(&mut self, group: u16) {
        let (hashes, mut cursor, mut refused) = (KeyGroup(group).hashes(256), Cursor::default(), 0);
        while !cursor.done {
            match self.table.remove_hashes((), &hashes, &mut cursor, 500) {
                Ok(_) => {}
                // It is made again, as a move of groups does.
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::OverBudget, "{error}");
                    refused += 1;
                    assert!(refused < 100, "{error}");
                    let _ = self.table.tick(64);
                }
            }
        }
        self.model.retain(|key, _| !hashes.contains(&key.key_hash()));
        assert_eq!(self.table.len(), self.model.len() as u64);
    }

    /// All is there, each once; then nothing is left, neither memory nor files.
    fn end(mut self) {
        self.device.set_faults(Faults::none());
        let has_failed = self.table.stats().runs.failed > 0;
        let (mut seen, mut cursor) = (BTreeMap::new(), Cursor::default());
        while !cursor.done {
            let scanned = self.table.scan(&mut cursor, 700, &mut |key, value| {
                assert!(seen.insert(*key, value[0]).is_none(), "{key} is shown twice");
                Ok(())
            });
            scanned.unwrap();
        }
        assert!(seen == self.model, "{} of {}", seen.len(), self.model.len());
        let keys: Vec<u64> = self.model.keys().copied().collect();
        let model = &self.model;
        let read = self.table.read_batch(
            &keys,
            |key| key,
            |key, found| assert_eq!(found, Some(&[model[key]; 7]), "{key}"),
        );
        read.unwrap();
        self.table.clear().unwrap();
        while self.table.tick(64).unwrap() > 0 {}
        drop(self.table);
        assert_eq!(self.store.used(), 0);
        let files = self.device.list().unwrap();
        assert!(has_failed || !files.iter().any(|name| name.starts_with("run-")), "{files:?}");
    }
}

fn may_fail(kind: ErrorKind) {
    assert!(matches!(kind, ErrorKind::Io | ErrorKind::Backpressure), "{kind:?}");
}

/// Batches of new keys, of some that are there, were deleted, or come twice; of keys whose hashes are alike in the index.
#[test]
fn batches_and_single_calls_answer_like_a_map() {
    let layout = HybridLog::new().cold_runs(true);
    let layouts = [layout.clone(), layout.hash_bits(12)];
    for (seed, layout) in layouts.iter().cycle().take(4).enumerate() {
        let mut play = Play::new(seed as u64, layout, seed < 2);
        for round in 0..120 {
            play.load([0, 2, 20][round % 3]);
            play.calls(100);
        }
        let stats = play.table.stats().runs;
        println!("{} keys, {} loaded, {stats:?}", play.model.len(), play.loaded());
        assert!(play.loaded() > 10_000, "{}", play.loaded());
        assert!(stats.moved > play.loaded() && stats.merged_bytes > 0, "{stats:?}");
        play.end();
    }
}

/// New keys take no page and no entry of the index.
#[test]
fn new_keys_go_to_a_level_at_once() {
    let mut play = Play::new(7, &HybridLog::new().cold_runs(true), false);
    let room = play.room();
    let (entries, loaded) = (play.table.core.log.index.len(), play.loaded());
    let count = room.entries() as u64;
    let mut batch = play.batch(count as usize, 0);
    let given = batch.clone();
    let levels = play.table.core.log.cold.as_ref().unwrap().last_level();
    play.table.load_batch(&mut batch, room).unwrap();
    // The filter of each level is wrong about one in 256.
    let few = count / 10;
    assert!(play.loaded() - loaded >= count - few, "{} of {count}", play.loaded() - loaded);
    assert!(play.table.core.log.index.len() <= entries + few);
    assert!(play.table.core.log.cold.as_ref().unwrap().last_level() > levels);
    for (key, value) in given {
        assert_eq!(play.table.get(&key).unwrap(), Some(&value), "{key}");
        play.model.insert(key, value[0]);
    }
    play.end();
}

/// Key groups leave, and their keys are loaded again.
#[test]
fn keys_of_groups_that_have_left_are_new() {
    let mut play = Play::new(8, &HybridLog::new().cold_runs(true), true);
    for round in 0..20 {
        play.load(5);
        (0..20).for_each(|nth| play.cut(round * 7 + nth));
        play.calls(50);
        play.load(90);
    }
    assert!(play.loaded() > 2_000, "{}", play.loaded());
    play.end();
}

/// Where all keys are there, batches are put as others are, and it is not tried again each time.
#[test]
fn keys_that_are_there_are_put_in_the_ordinary_way() {
    let mut play = Play::new(9, &HybridLog::new().cold_runs(true), false);
    play.load(0);
    let loaded = play.loaded();
    let room = play.room();
    let keys: Vec<u64> = play.model.keys().copied().take(room.entries()).collect();
    let mut batch: Vec<(u64, Value)> = keys.iter().map(|key| (*key, [1 << 40; 7])).collect();
    play.table.load_batch(&mut batch, room).unwrap();
    assert_eq!(play.loaded(), loaded);
    assert!(play.table.room_to_load(0).is_none(), "most of the last batch was there");
    for key in keys {
        play.model.insert(key, 1 << 40);
    }
    assert_eq!(play.table.len(), play.model.len() as u64);
    play.end();
}

#[test]
fn where_storage_fails_by_chance_nothing_is_lost() {
    let faults = Faults {
        read_errors: 0.01,
        write_errors: 0.03,
        sync_errors: 0.02,
        directory_errors: 0.02,
        ..Faults::none()
    };
    for seed in 0..4 {
        let mut play = Play::new(seed, &HybridLog::new().cold_runs(true), seed % 2 == 0);
        play.device.set_faults(faults);
        for _ in 0..60 {
            play.load(10);
            play.calls(40);
        }
        assert!(play.loaded() > 3_000, "{}", play.loaded());
        play.end();
    }
}

/// A full device: no level comes of a batch, and what the log has no room for is given back. Then all goes in.
#[test]
fn on_a_full_device_what_was_not_put_is_given_back() {
    let mut play = Play::new(11, &HybridLog::new().cold_runs(true), false);
    play.load(0);
    let (loaded, room) = (play.loaded(), play.room());
    play.device.set_capacity_bytes(Some(0));
    let given = play.batch(room.entries(), 0);
    let mut batch = given.clone();
    let put = play.table.load_batch(&mut batch, room);
    assert_eq!(play.loaded(), loaded, "there is no level");
    let put_now = given.len() - batch.len();
    assert!(put.is_ok() || !batch.is_empty());
    for (nth, (key, value)) in given.iter().enumerate() {
        let is_there = nth < put_now;
        let found = play.table.peek(key);
        assert_eq!(matches!(found, Peek::Resident(_)), is_there, "{nth}");
        if is_there {
            play.model.insert(*key, value[0]);
        }
    }
    play.device.set_capacity_bytes(None);
    while !batch.is_empty() {
        let before = batch.clone();
        let put = play.table.put_batch(&mut batch);
        assert!(put.is_ok() || batch.len() <= before.len());
    }
    given.iter().for_each(|(key, value)| _ = play.model.insert(*key, value[0]));
    play.end();
}

/// A batch whose room is never used, or given back late, books nothing.
#[test]
fn room_that_is_not_used_comes_back() {
    let mut play = Play::new(12, &HybridLog::new().cold_runs(true), false);
    let room = play.room();
    let used = play.store.used();
    drop(room);
    assert!(play.store.used() < used);
    let room = play.room();
    // The log goes on meanwhile.
    play.calls(2_000);
    let mut batch = play.batch(room.entries(), 0);
    let given = batch.clone();
    play.table.load_batch(&mut batch, room).unwrap();
    given.iter().for_each(|(key, value)| _ = play.model.insert(*key, value[0]));
    assert!(play.store.used() <= MEMORY);
    play.end();
}

/// Many keys are to come that the index has no room for: they are loaded from the first on, and deletes have their memory.
#[test]
fn a_log_without_a_tier_gets_one_for_many_keys() {
    let many = 200_000;
    let layout = HybridLog::new().cold_runs_automatic();
    let mut play = Play::empty(13, &layout, true);
    assert!(play.table.room_to_load(100).is_none(), "so few stay in the log");
    assert!(play.table.core.log.cold.is_none());
    let mut left = many;
    while left > 0 {
        let Some(room) = play.table.room_to_load(left) else {
            let new = play.new_key();
            play.put(new);
            left -= 1;
            continue;
        };
        let mut batch = play.batch(room.entries().min(left as usize), 0);
        left -= batch.len() as u64;
        batch.iter().for_each(|(key, value)| _ = play.model.insert(*key, value[0]));
        play.table.load_batch(&mut batch, room).unwrap();
        assert!(play.store.used() <= MEMORY, "{:?}", play.store);
    }
    assert!(play.loaded() > many * 9 / 10, "{}", play.loaded());
    assert_eq!(play.table.len(), many);
    play.calls(2_000);
    play.end();
}
