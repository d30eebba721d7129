//! A log with a cold tier answers like a map, also where the index of all keys would be larger than the memory.

use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use alluvium_pagestore::io::{Device, Fault, Faults, Simulated};
use alluvium_pagestore::{
    Account, ErrorKind, Helper, KIB, Key, KeyGroup, KeyHash, MIB, Result, SegmentStore, State,
    hash_word,
};

use super::ColdTier;
use crate::contract::table::{Cursor, Layout, Peek, StateContext, Table};
use crate::contract::upkeep::Upkeep;
use crate::hybrid_log::batches::LookedUp;
use crate::hybrid_log::cold::merging_tests::FEW_HASHES;
use crate::hybrid_log::{COLD_RUNS_MEMORY_MIN, HybridLog, HybridLogTable};

pub(super) struct Dice(pub u64);

impl Dice {
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        hash_word(self.0) % end
    }
}

pub(super) fn open<K: Key, V: State>(
    layout: &HybridLog,
    device: &Simulated,
    store: &Rc<Account>,
) -> HybridLogTable<K, V> {
    open_owning(0..256, layout, device, store)
}

fn open_owning<K: Key, V: State>(
    owned: Range<u16>,
    layout: &HybridLog,
    device: &Simulated,
    store: &Rc<Account>,
) -> HybridLogTable<K, V> {
    open_in(StateContext { owned, ..context_of(device, store) }, layout)
}

/// A log with a helper of its own kind, and so much memory at most.
pub(super) fn open_within<K: Key, V: State>(
    limit: u64,
    helper: Helper,
    layout: &HybridLog,
    (device, store): (&Simulated, &Rc<Account>),
) -> HybridLogTable<K, V> {
    let account = Account::below(store, "log", limit);
    open_in(StateContext { account, helper, ..context_of(device, store) }, layout)
}

/// A log whose values own so many bytes at most.
pub(super) fn open_with<K: Key, V: State>(
    layout: &HybridLog,
    max_value_bytes: u64,
    device: &Simulated,
    store: &Rc<Account>,
) -> HybridLogTable<K, V> {
    open_in(StateContext { max_value_bytes, ..context_of(device, store) }, layout)
}

fn open_in<K: Key, V: State>(context: StateContext, layout: &HybridLog) -> HybridLogTable<K, V> {
    Layout::<K, V>::open(layout, context).unwrap()
}

fn context_of(device: &Simulated, store: &Rc<Account>) -> StateContext {
    StateContext {
        name: "log".into(),
        account: Account::below(store, "log", u64::MAX),
        segments: Some(SegmentStore::new(Arc::new(device.clone()), 1)),
        helper: Helper::inline(),
        max_value_bytes: 4 * KIB,
        key_groups: 256,
        owned: 0..256,
        movable: false,
        restored: None,
    }
}

/// Plays a history of keys, most of which are cold, against a map.
fn play<V: State + PartialEq + std::fmt::Debug>(
    seed: u64,
    (memory, keys, steps): (u64, u64, u64),
    layout: &HybridLog,
    value: impl Fn(u64) -> V,
) {
    let (device, store) = (Simulated::new(seed, Faults::none()), Account::root(memory));
    let mut table = open::<u64, V>(layout, &device, &store);
    let (mut dice, mut model) = (Dice(seed), BTreeMap::new());
    for key in 0..keys {
        assert!(!table.put(key, value(key)).unwrap(), "{key}");
        model.insert(key, key);
        assert!(store.used() <= memory);
    }
    assert!(table.core.log.cold.as_ref().unwrap().stats().moved > 0, "records move down");
    for step in 0..steps {
        let key = match dice.below(4) {
            0 => dice.below(keys + keys / 10),
            _ => dice.below(keys / 20),
        };
        let new = step + (1 << 32);
        match dice.below(7) {
            0 | 1 => {
                let found = table.get(&key).unwrap();
                assert_eq!(found, model.get(&key).map(|of| value(*of)).as_ref(), "{key}");
            }
            2 => {
                let known = table.put(key, value(new)).unwrap();
                assert_eq!(known, model.insert(key, new).is_some(), "{key}");
            }
            3 => {
                let taken = table.take(&key).unwrap();
                assert_eq!(taken, model.remove(&key).map(&value), "{key}");
            }
            4 => {
                table.update(&key, || value(new), |v| *v = value(new)).unwrap();
                model.insert(key, new);
            }
            5 => {
                let changed = table.modify(&key, |v| *v = value(new)).unwrap().is_some();
                let known = model.get_mut(&key);
                assert_eq!(changed, known.is_some(), "{key}");
                known.into_iter().for_each(|of| *of = new);
            }
            _ => {
                let known = model.get(&key).map(|of| value(*of));
                match table.peek(&key) {
                    Peek::Resident(found) => assert_eq!(Some(found), known.as_ref(), "{key}"),
                    Peek::Absent => assert_eq!(None, known, "{key}"),
                    Peek::Unknown => {}
                }
            }
        }
        assert_eq!(table.len(), model.len() as u64, "step {step}");
        assert!(store.used() <= memory, "{store:?}");
    }
    check_scan(&mut table, &model, &value, !layout.has_hash_bits());
    let batch: Vec<u64> = (0..keys + 100).step_by(7).collect();
    let read = table.read_batch(
        &batch,
        |key| key,
        |key, found| {
            assert_eq!(found, model.get(key).map(|of| value(*of)).as_ref(), "{key}");
        },
    );
    read.unwrap_or_else(|error| panic!("{error:?}"));
    let joins = *layout == layout.clone().joins_always();
    assert!(!joins || table.stats().joins > 10, "segments are joined");
    let stats = table.stats().runs;
    println!("{stats:?}, {} joins", table.stats().joins);
    assert_eq!(stats.keys + table.core.log.index.len(), model.len() as u64);
    assert!(stats.keys <= stats.records && stats.false_reads <= stats.reads);
    let written = stats.write_amplification().unwrap();
    assert!((1.0..8.0).contains(&written), "{written}");
    table.clear().unwrap();
    assert_eq!(table.len(), 0);
    assert_eq!(table.get(&0).unwrap(), None);
    assert!(!table.put(3, value(3)).unwrap());
    drop(table);
    assert_eq!(store.used(), 0);
    let runs = device.list().unwrap().into_iter().filter(|name| name.starts_with("run-")).count();
    assert_eq!(runs, 0, "no file is left over");
}

/// A scan in small steps, between which records move, shows each key once.
fn check_scan<V: State + PartialEq + std::fmt::Debug>(
    table: &mut HybridLogTable<u64, V>,
    model: &BTreeMap<u64, u64>,
    value: &impl Fn(u64) -> V,
    moves: bool,
) {
    let (mut seen, mut cursor, mut dice) = (BTreeMap::new(), Cursor::default(), Dice(5));
    let last = *model.last_key_value().unwrap().0;
    while !cursor.done {
        table
            .scan(&mut cursor, 500, &mut |key, found| {
                assert_eq!(Some(found), model.get(key).map(|of| value(*of)).as_ref(), "{key}");
                assert!(seen.insert(*key, ()).is_none(), "{key} is shown twice");
                Ok(())
            })
            .unwrap();
        // Where hashes are alike, which is for tests, the tier is shown at the end.
        for _ in 0..if moves { 20 } else { 0 } {
            // Some move up, and others down.
            table.modify(&dice.below(last), |_| ()).unwrap();
        }
    }
    assert!(seen.keys().eq(model.keys()), "{} of {}", seen.len(), model.len());
    let mut count = 0;
    table
        .visit_all(&mut |_, _| {
            count += 1;
            Ok(())
        })
        .unwrap();
    assert_eq!(count, model.len());
}

#[test]
fn counters_of_which_the_index_would_be_four_times_the_memory() {
    // The tier is there from the beginning on, or gets there.
    let layouts = [HybridLog::new().cold_runs(true), HybridLog::new().cold_runs_automatic()];
    for (seed, layout) in layouts.iter().enumerate() {
        play(seed as u64, (MIB, 250_000, 60_000), layout, |of| of);
    }
}

#[test]
fn counters_while_segments_of_the_index_are_joined_and_split() {
    let layout = HybridLog::new().joins_always();
    let layouts = [layout.clone().cold_runs(true), layout.cold_runs_automatic()];
    for (seed, layout) in (20..).zip(&layouts) {
        play(seed, (MIB, 150_000, 60_000), layout, |of| of);
    }
}

#[test]
fn values_that_own_heap() {
    let layout = HybridLog::new().cold_runs_automatic();
    play(13, (MIB, 60_000, 30_000), &layout, |of| format!("{of:0w$}", w = 20 + of as usize % 90));
    let layout = layout.cold_runs(true).joins_always();
    play(3, (MIB, 60_000, 30_000), &layout, |of| format!("{of:0w$}", w = 20 + of as usize % 90));
}

#[test]
fn keys_whose_hashes_are_alike_in_the_index() {
    let layout = HybridLog::new().hash_bits(12).cold_runs(true);
    play(4, (MIB, 30_000, 10_000), &layout, |of| [of; 8]);
}

#[test]
fn at_the_least_memory_no_call_is_refused() {
    for layout in [HybridLog::new().cold_runs(true), HybridLog::new().cold_runs_automatic()] {
        play(9, (COLD_RUNS_MEMORY_MIN, 100_000, 10_000), &layout, |of| of);
    }
}

#[test]
fn where_directories_have_no_room_keys_are_refused_and_none_is_lost() {
    let (device, store) = (Simulated::new(1, Faults::none()), Account::root(COLD_RUNS_MEMORY_MIN));
    let mut table = open::<u64, u64>(&HybridLog::new().cold_runs(true), &device, &store);
    (0..300_000).for_each(|key| _ = table.put(key, key).expect("room for that many"));
    drop(table);
    // Short partitions fill the memory with directories after fewer keys.
    let device = Simulated::new(1, Faults::none());
    let layout = HybridLog::new().cold_runs(true).partition_hashes(FEW_HASHES);
    let mut table = open::<u64, u64>(&layout, &device, &store);
    let refused = |key| table.put(key, key).err().map(|rejected| (key, rejected.error));
    let (keys, error) = (0..1_000_000).find_map(refused).expect("directories are not paged");
    assert_eq!(error.kind(), ErrorKind::OverBudget, "{error}");
    println!("{keys} keys, {error}, {:?}", table.stats().runs);
    assert!(table.stats().runs.keys > keys / 2, "{keys}");
    assert_eq!(table.len(), keys);
    for key in (0..keys + 100).step_by(997) {
        let known = (key < keys).then_some(key);
        assert_eq!(table.get(&key).unwrap().copied(), known, "{key}");
        assert_eq!(table.take(&key).unwrap(), known, "{key}");
    }
}

#[test]
fn without_a_tier_the_index_does_not_fit() {
    let (device, store) = (Simulated::new(1, Faults::none()), Account::root(MIB));
    let mut table = open::<u64, u64>(&HybridLog::new().cold_runs(false), &device, &store);
    let refused = (0..250_000).find_map(|key| table.put(key, key).err()).unwrap();
    assert_eq!(refused.error.kind(), ErrorKind::OverBudget);
}

#[test]
fn a_device_that_does_nothing_is_not_waited_for_for_ever() {
    let (device, store) = (Simulated::new(3, Faults::none()), Account::root(MIB));
    let patience = Duration::from_millis(100);
    let layout = HybridLog::new().cold_runs(true).patience(patience);
    let mut table = open::<u64, u64>(&layout, &device, &store);
    for key in 0..100_000 {
        // A machine with other work is as slow as that at times.
        while let Err(rejected) = table.put(key, key) {
            assert_eq!(rejected.error.kind(), ErrorKind::Backpressure, "{}", rejected.error);
        }
    }
    let mut asked = 0;
    for key in (0..100_000).step_by(997) {
        device.on_nth_read(1, Fault::Stuck);
        let start = Instant::now();
        let Err(error) = table.get(&key).map(|found| found.copied()) else {
            device.forget_scripts();
            continue;
        };
        asked += 1;
        assert_eq!(error.kind(), ErrorKind::Backpressure, "{error}");
        for other in [key + 1, key + 2, key + 500] {
            // What is in memory can be read meanwhile; nothing else is begun.
            match table.get(&other) {
                Ok(found) => assert_eq!(found.copied(), (other < 100_000).then_some(other)),
                Err(error) => assert_eq!(error.kind(), ErrorKind::Backpressure, "{error}"),
            }
            assert!(store.used() <= MIB, "{store:?}");
        }
        // A wait without an end; the machine may be slow.
        assert!(start.elapsed() < Duration::from_secs(60));
        device.release_stuck();
        let found = loop {
            match table.get(&key).map(|found| found.copied()) {
                Err(error) if error.kind() == ErrorKind::Backpressure => continue,
                found => break found.unwrap(),
            }
        };
        assert_eq!(found, Some(key));
        if asked == 12 {
            break;
        }
    }
    assert!(asked > 4, "{asked}");
    // One is left while the state closes.
    device.on_nth_read(1, Fault::Stuck);
    assert!((0..2000).any(|key| table.get(&(key * 31)).is_err()));
    drop(table);
    assert_eq!(store.used(), 0);
    device.release_stuck();
}

/// Reads a batch of keys that are their values; says how many reads came before the first answer, and in all.
fn read_all(table: &mut HybridLogTable<u64, u64>, device: &Simulated, keys: &[u64]) -> (u64, u64) {
    let before = device.stats().reads;
    let mut first = None;
    let read = table.read_batch(
        keys,
        |key| key,
        |key, found| {
            first.get_or_insert(device.stats().reads - before);
            assert_eq!(found, Some(key));
        },
    );
    read.unwrap_or_else(|error| panic!("{error:?}"));
    (first.unwrap(), device.stats().reads - before)
}

#[test]
fn a_batch_reads_runs_ahead() {
    let (device, store) = (Simulated::new(8, Faults::none()), Account::root(8 * MIB));
    let layout = HybridLog::new().cold_runs(true).patience(Duration::from_millis(200));
    let mut table = open::<u64, u64>(&layout, &device, &store);
    for key in 0..400_000 {
        // A machine with other work is as slow as that at times.
        while let Err(rejected) = table.put(key, key) {
            assert_eq!(rejected.error.kind(), ErrorKind::Backpressure, "{}", rejected.error);
        }
    }
    let keys: Vec<u64> = (0..32).map(|nth| nth * 601).collect();
    // Guides come to memory.
    read_all(&mut table, &device, &(100_000..130_000).collect::<Vec<_>>());
    let used = store.used();
    let (ahead, all) = read_all(&mut table, &device, &keys);
    assert!(ahead > 24 && all < 40, "{ahead} of {all} reads before the first answer");
    // What memory the batch took is free again, or that of one read buffer.
    assert!(store.used() <= used + 8192, "{} after {used}", store.used());
    // A read that does not end is left: whoever needs it reads again.
    let keys: Vec<u64> = keys.iter().map(|key| key + 7).collect();
    device.on_nth_read(5, Fault::Stuck);
    read_all(&mut table, &device, &keys);
    let booked =
        |table: &HybridLogTable<u64, u64>| table.core.log.cold.as_ref().unwrap().booked_ahead();
    assert!(booked(&table) > 8192, "its buffer is the device's");
    let keys: Vec<u64> = keys.iter().map(|key| key + 7).collect();
    let (ahead, _) = read_all(&mut table, &device, &keys);
    assert!(ahead < 10, "nothing is read ahead meanwhile: {ahead}");
    device.release_stuck();
    let keys: Vec<u64> = keys.iter().map(|key| key + 7).collect();
    let (ahead, _) = read_all(&mut table, &device, &keys);
    assert!(ahead > 24, "{ahead}");
    assert_eq!(booked(&table), 0);
    assert!(store.used() <= used + 8192, "{} after {used}", store.used());
    drop(table);
    assert_eq!(store.used(), 0);
}

#[test]
fn puts_of_a_batch_read_runs_together_and_are_those_of_single_puts() {
    let (device, store) = (Simulated::new(1, Faults::none()), Account::root(8 * MIB));
    let mut table = open::<u64, u64>(&HybridLog::new().cold_runs(true), &device, &store);
    let (mut model, mut dice) = (BTreeMap::new(), Dice(7));
    let mut put = |table: &mut HybridLogTable<u64, u64>, mut batch: Vec<(u64, u64)>| {
        model.extend(batch.iter().copied());
        table.put_batch(&mut batch).unwrap();
        assert!(batch.is_empty());
        assert_eq!(table.len(), model.len() as u64);
    };
    for first in (0..400_000).step_by(1000) {
        put(&mut table, (first..first + 1000).map(|key| (key, key)).collect());
    }
    for step in 0..20 {
        // Keys that are there, new ones, and some twice.
        let key = |dice: &mut Dice| dice.below(400_000 + 100 * step);
        put(&mut table, (0..300).map(|nth| (key(&mut dice), step + nth)).collect());
    }
    for (key, value) in &model {
        // Guides come to memory.
        assert_eq!(table.get(key).unwrap(), Some(value), "{key}");
    }
    // All that these read is read at once.
    let keys: Vec<u64> = (0..32).map(|nth| nth * 601).collect();
    let is_cold = |key: &u64| {
        let located = table.core.locate_again(table.hash(key), key);
        matches!(located, crate::hybrid_log::log::RecordLocation::Absent)
    };
    let cold: Vec<(u64, u64)> = keys.into_iter().filter(is_cold).map(|key| (key, 1)).collect();
    assert!(cold.len() > 20, "{}", cold.len());
    let before = device.stats().reads;
    let mut looked_up = LookedUp::default();
    assert!(table.read_ahead_of_puts(&cold, &mut looked_up) >= cold.len());
    assert!(
        (0..cold.len()).all(|nth| !looked_up.is_absent(nth)),
        "filters say that they are there"
    );
    let ahead = device.stats().reads - before;
    for (key, _) in &cold {
        assert_eq!(table.get(key).unwrap(), model.get(key), "{key}");
    }
    let all = device.stats().reads - before;
    assert!(ahead + 4 > cold.len() as u64 && all < ahead + 8, "{ahead} of {all} reads");
    assert!(store.used() <= store.limit());
}

#[test]
fn what_filters_have_said_of_a_put_holds_until_another_level_comes() {
    let (device, store) = (Simulated::new(1, Faults::none()), Account::root(8 * MIB));
    let mut table = open::<u64, u64>(&HybridLog::new().cold_runs(true), &device, &store);
    fn cold(table: &mut HybridLogTable<u64, u64>) -> &mut ColdTier {
        table.core.log.cold.as_mut().unwrap()
    }
    let mut next = 0u64;
    let mut put_some = |table: &mut HybridLogTable<u64, u64>| {
        let mut batch = (next..next + 500).map(|key| (key, key)).collect();
        table.put_batch(&mut batch).unwrap();
        next += 500;
    };
    while cold(&mut table).levels.len() < 2 || cold(&mut table).live() == 0 {
        put_some(&mut table);
    }
    // Filters come to memory.
    (0..5000).for_each(|key| _ = table.get(&key).unwrap());
    let new: Vec<(u64, u64)> = (1 << 40..(1 << 40) + 300).map(|key| (key, 1)).collect();
    let mut looked_up = LookedUp::default();
    table.read_ahead_of_puts(&new, &mut looked_up);
    let absent: Vec<usize> = (0..new.len()).filter(|nth| looked_up.is_absent(*nth)).collect();
    assert!(absent.len() > 200, "{}", absent.len());
    let hash = new[absent[7]].0.key_hash();
    let tier = cold(&mut table);
    assert!(!tier.is_known_absent(hash));
    tier.has_not(hash, looked_up.last_level);
    assert!(tier.is_known_absent(hash) && !tier.is_known_absent(hash + 1));
    // It is put, and may move down.
    assert!(!table.put(new[absent[7]].0, 7).unwrap());
    let levels = cold(&mut table).last_level();
    while cold(&mut table).last_level() == levels {
        put_some(&mut table);
    }
    cold(&mut table).has_not(hash, looked_up.last_level);
    assert!(!cold(&mut table).is_known_absent(hash));
    assert!(table.put(new[absent[7]].0, 8).unwrap(), "it is known");
}

/// Calls that fail change nothing: each is made again until it does not.
fn again<T>(mut call: impl FnMut() -> Result<T>) -> T {
    for _ in 0..100 {
        match call() {
            Ok(value) => return value,
            Err(error) => assert_eq!(error.kind(), ErrorKind::Io, "{error}"),
        }
    }
    panic!("storage never works");
}

#[test]
fn where_storage_fails_by_chance_nothing_is_lost() {
    let (device, store) = (Simulated::new(7, Faults::none()), Account::root(MIB));
    let mut table = open::<u64, u64>(&HybridLog::new().cold_runs(true), &device, &store);
    let (mut dice, mut model) = (Dice(7), BTreeMap::new());
    let faults = Faults {
        read_errors: 0.01,
        write_errors: 0.01,
        sync_errors: 0.02,
        directory_errors: 0.02,
        ..Faults::none()
    };
    device.set_faults(faults);
    for step in 0..120_000 {
        let key = dice.below(80_000);
        match dice.below(8) {
            0 => assert_eq!(again(|| table.take(&key)), model.remove(&key), "{key}"),
            1 => assert_eq!(
                again(|| table.get(&key).map(|found| found.copied())),
                model.get(&key).copied()
            ),
            _ => {
                let known = again(|| table.put(key, step).map_err(|rejected| rejected.error));
                assert_eq!(known, model.insert(key, step).is_some(), "{key}");
            }
        }
        assert_eq!(table.len(), model.len() as u64);
    }
    let cold = table.core.log.cold.as_ref().unwrap();
    println!("{:?}", cold.stats());
    assert!(cold.stats().moved > 20_000 && cold.merges() > 0);
    device.set_faults(Faults::none());
    check_scan(&mut table, &model, &|of| of, true);
}

/// Records longer than one in six of what a batch counts on fill it by their bytes.
#[test]
fn long_values_move_before_there_is_no_memory() {
    let value = |of: u64| format!("{of:0w$}", w = 300 + of as usize % 500);
    let layout = HybridLog::new();
    play(11, (2 * MIB, 70_000, 5_000), &layout.clone().cold_runs(true), value);
    let (device, store) = (Simulated::new(11, Faults::none()), Account::root(2 * MIB));
    let mut table = open::<u64, String>(&layout.cold_runs(true), &device, &store);
    let mut stalls = (0, 0);
    for key in 0..70_000 {
        table.put(key, value(key)).unwrap();
        if table.stats().runs.moved == 0 {
            stalls.0 = table.stats().stalls;
        }
        stalls.1 = table.stats().stalls;
    }
    println!("{stalls:?} stalls, {:?}", table.stats().runs);
    assert!(table.stats().runs.moved > 10_000);
}

/// The hashes of these key groups end where all hashes do, and are stretched beyond.
#[test]
fn a_scan_of_the_last_key_groups_shows_each_key_once() {
    for owned in [170..256, 85..170, 64..256] {
        let (device, store) = (Simulated::new(1, Faults::none()), Account::root(MIB));
        let layout = HybridLog::new().cold_runs(true);
        let mut table = open_owning::<u64, u64>(owned.clone(), &layout, &device, &store);
        let mut model = BTreeMap::new();
        let is_owned = |key: &u64| owned.contains(&KeyGroup::of(key.key_hash(), 256).0);
        for key in (0..400_000).filter(is_owned).take(100_000) {
            table.put(key, key).unwrap();
            model.insert(key, key);
        }
        assert!(table.stats().runs.keys > 10_000);
        let (mut cursor, mut seen) = (Cursor::default(), BTreeMap::new());
        while !cursor.done {
            table
                .scan(&mut cursor, 700, &mut |key, value| {
                    assert!(seen.insert(*key, *value).is_none(), "{key} is shown twice");
                    Ok(())
                })
                .unwrap();
        }
        assert!(seen == model, "{owned:?}");
    }
}

/// Deletes go on where nothing can be written: all of keys in memory, and as many others as tombstones have room.
#[test]
fn on_a_full_device_keys_are_deleted() {
    let (device, store) = (Simulated::new(2, Faults::none()), Account::root(MIB));
    let mut table = open::<u64, u64>(&HybridLog::new().cold_runs(true), &device, &store);
    for key in 0..100_000 {
        table.put(key, key).unwrap();
    }
    device.set_capacity_bytes(Some(0));
    let mut deleted = 0;
    let refused = (0..100_000).find_map(|key| match table.take(&key) {
        Ok(taken) => {
            deleted += u64::from(taken.is_some());
            None
        }
        Err(error) => Some((key, error)),
    });
    let (key, error) = refused.expect("tombstones have no room for ever");
    assert!(deleted >= 250, "{deleted}, {error}");
    assert_eq!(table.get(&key).unwrap().copied(), Some(key));
    assert_eq!(table.len(), 100_000 - deleted);
    // Keys that are in memory need no tombstone, nor do those that are not there.
    for key in 200_000..200_100 {
        assert_eq!(table.take(&key).unwrap(), None);
    }
    device.set_capacity_bytes(None);
    for key in deleted..100_000 {
        assert_eq!(table.take(&key).unwrap(), Some(key));
    }
    assert_eq!(table.len(), 0);
}

/// A tick ends when there is nothing left that it can do.
#[test]
fn ticks_end() {
    let (device, store) = (Simulated::new(2, Faults::none()), Account::root(MIB));
    let mut table = open::<u64, u64>(&HybridLog::new().cold_runs(true), &device, &store);
    for key in 0..100_000 {
        table.put(key, key).unwrap();
        let mut ticks = 0;
        while key % 1000 == 0 && table.tick(64).unwrap() > 0 {
            ticks += 1;
            assert!(ticks < 100_000, "{:?}", table.stats());
        }
    }
}
