//! What operations of a hybrid log cost whose records are in several levels of runs, by count: reads of the device, bytes
//! that moves and merges write, bytes of files, and memory a key.
//!
//! What this catches: a look-up that reads a level twice or asks no filter; merges that write more than the design says;
//! statistics that tell something else than the device.

use std::rc::Rc;
use std::sync::Arc;

use alluvium_layouts::{
    HybridLog, HybridLogTable, Layout, Peek, RunStats, StateContext, Table, Upkeep,
};
use alluvium_pagestore::io::{Device, Faults, Simulated};
use alluvium_pagestore::{Account, Helper, KIB, MIB, SegmentStore};

use crate::dice::Dice;

/// A record of it takes 80 bytes of a run.
type Counter = [u64; 7];
const RECORD_BYTES: u64 = 80;

fn open(device: &Simulated, store: &Rc<Account>) -> HybridLogTable<u64, Counter> {
    let context = StateContext {
        name: "log".into(),
        account: Account::below(store, "log", u64::MAX),
        segments: Some(SegmentStore::new(Arc::new(device.clone()), 1)),
        helper: Helper::inline(),
        max_value_bytes: 4 * KIB,
        key_groups: 256,
        owned: 0..256,
        movable: false,
        restored: None,
    };
    Layout::<u64, Counter>::open(&HybridLog::new().cold_runs(true), context).unwrap()
}

/// A log of so many counters.
fn loaded(memory: u64, keys: u64) -> (Simulated, HybridLogTable<u64, Counter>) {
    let (device, store) = (Simulated::new(1, Faults::none()), Account::root(memory));
    let mut table = open(&device, &store);
    for key in 0..keys {
        assert!(!table.put(key, [key; 7]).unwrap());
    }
    (device, table)
}

/// Reads of runs that look-ups took: of records, and of guides.
fn reads(table: &HybridLogTable<u64, Counter>) -> u64 {
    let runs = table.stats().runs;
    runs.reads + runs.guide_reads
}

/// Keys that are on storage, each another one.
fn on_storage(
    table: &mut HybridLogTable<u64, Counter>,
    next: &mut impl FnMut() -> u64,
    count: usize,
) -> Vec<u64> {
    let mut found = std::collections::BTreeSet::new();
    while found.len() < count {
        let key = next();
        if matches!(table.peek(&key), Peek::Unknown) {
            found.insert(key);
        }
    }
    found.into_iter().collect()
}

#[test]
fn by_operation() {
    let keys = 400_000;
    let (device, mut table) = loaded(8 * MIB, keys);
    let mut more = keys;
    while table.stats().runs.levels < 3 {
        table.put(more, [more; 7]).unwrap();
        more += 1;
        assert!(more < 2 * keys, "{:?}", table.stats().runs);
    }
    // Each key once, so that guides are in memory.
    (0..keys).for_each(|key| assert!(table.get(&key).unwrap().is_some()));
    let mut each = {
        let mut next = 0;
        move || {
            next += 104_729;
            next % keys
        }
    };
    let absent = |nth: u64| (1 << 40) + nth * 7_919;
    let mut rows = Vec::new();
    // Of these the device says what was read, as nothing else reads meanwhile.
    let hits = on_storage(&mut table, &mut each, 2_000);
    let (before, at_first, false_before) =
        (reads(&table), device.stats().reads, table.stats().runs.false_reads);
    let false_cold = table.stats().false_cold_reads;
    hits.iter().for_each(|key| assert_eq!(table.get(key).unwrap().unwrap()[3], *key));
    let wrong =
        table.stats().runs.false_reads - false_before + table.stats().false_cold_reads - false_cold;
    let taken = device.stats().reads - at_first;
    let of_runs = reads(&table) - before;
    assert!(of_runs > 1_000 && of_runs <= taken, "{of_runs} of {taken} reads are of runs");
    assert!(taken <= 2_000 + wrong, "{taken} reads, {wrong} of them false");
    rows.push(("get, there", 2_000, taken, 1.03));
    let (before, at_first) = (reads(&table), device.stats().reads);
    let false_before = table.stats().runs.false_reads;
    (0..20_000).for_each(|nth| assert_eq!(table.get(&absent(nth)).unwrap(), None));
    let taken = device.stats().reads - at_first;
    let wrong = table.stats().runs.false_reads - false_before;
    assert!(wrong <= taken && reads(&table) - before == wrong, "each of runs is a false one");
    rows.push(("get, absent", 20_000, taken, 0.02));
    let before = reads(&table);
    (0..20_000).for_each(|nth| assert_eq!(table.take(&absent(nth)).unwrap(), None));
    rows.push(("take, absent", 20_000, reads(&table) - before, 0.02));
    let before = reads(&table);
    (0..5_000).for_each(|nth| assert!(!table.put(absent(nth), [nth; 7]).unwrap()));
    rows.push(("put, new", 5_000, reads(&table) - before, 0.02));
    let there = on_storage(&mut table, &mut each, 500);
    let before = reads(&table);
    there.iter().for_each(|key| assert!(table.put(*key, [*key; 7]).unwrap()));
    rows.push(("put, there", 500, reads(&table) - before, 1.05));
    let there = on_storage(&mut table, &mut each, 500);
    let before = reads(&table);
    for key in &there {
        assert_eq!(table.modify(key, |value| value[0] += 1).unwrap(), Some(()));
    }
    rows.push(("modify, there", 500, reads(&table) - before, 1.05));
    let there = on_storage(&mut table, &mut each, 500);
    let before = reads(&table);
    there.iter().for_each(|key| assert!(table.take(key).unwrap().is_some()));
    rows.push(("take, there", 500, reads(&table) - before, 1.05));
    let stats = table.stats().runs;
    println!("{} keys, {} levels: {rows:?}", table.len(), stats.levels);
    for (operation, calls, reads, most) in rows {
        assert!(reads as f64 <= most * calls as f64, "{operation}: {reads} of {calls}");
    }
    assert!(stats.keys > keys / 2 && stats.guide_bytes > stats.keys);
    assert!(stats.guide_bytes as f64 <= 2.0 * stats.keys as f64, "{stats:?}");
}

/// What was written and what there is after so many updates: the most of bytes of runs beside those of their live records.
fn update(
    table: &mut HybridLogTable<u64, Counter>,
    device: &Simulated,
    updates: u64,
    mut next: impl FnMut() -> u64,
) -> (RunStats, f64) {
    let mut most = 0f64;
    for nth in 0..updates {
        table.update(&next(), || [0; 7], |value| value[1] += 1).unwrap();
        if nth % 10_000 == 0 {
            let files = device.list().unwrap().into_iter().filter(|name| name.starts_with("run-"));
            let bytes: u64 = files.map(|name| device.bytes(&name).unwrap().len() as u64).sum();
            assert!(bytes >= table.stats().runs.bytes);
            most = most.max(bytes as f64 / (table.len() * RECORD_BYTES) as f64);
        }
    }
    (table.stats().runs, most)
}

#[test]
fn bytes_written_under_uniform_updates() {
    let keys = 250_000;
    let (device, mut table) = loaded(4 * MIB, keys);
    let mut dice = Dice(3);
    let before = table.stats().runs;
    let (after, files) = update(&mut table, &device, 2 * keys, || dice.below(keys));
    let moved = after.moved_bytes - before.moved_bytes;
    let written = (moved + after.merged_bytes - before.merged_bytes) as f64 / moved as f64;
    println!("{written:.2} bytes written a byte moved, files {files:.2} of the live, {after:?}");
    assert!(after.moved - before.moved > keys, "{after:?}");
    assert!(written <= 4.0, "{written:.2} bytes written for each that moved");
    assert!(files <= 2.0, "{files:.2} bytes of files for each of a live record");
    assert_eq!(table.len(), keys);
}

#[test]
fn bytes_written_under_updates_of_few_keys() {
    let keys = 250_000u64;
    let (device, mut table) = loaded(4 * MIB, keys);
    let mut dice = Dice(4);
    // Zipf of 0.99, by the inverse of its distribution, over keys in no order.
    let zipf = || {
        let chance = dice.below(1 << 40) as f64 / (1u64 << 40) as f64;
        let rank = (1.0 + chance * ((keys as f64).powf(0.01) - 1.0)).powf(100.0) as u64;
        rank.wrapping_mul(104_729) % keys
    };
    let before = table.stats().runs;
    let updates = 2 * keys;
    let (after, files) = update(&mut table, &device, updates, zipf);
    let moved = after.moved_bytes - before.moved_bytes;
    let written = moved + after.merged_bytes - before.merged_bytes;
    let written = written as f64 / (updates * RECORD_BYTES) as f64;
    println!("{written:.2} bytes written a byte updated, files {files:.2} of the live, {after:?}");
    assert!(after.moved > before.moved, "{after:?}");
    assert!(written <= 2.0, "{written:.2} bytes written for each that was updated");
    assert!(files <= 2.0, "{files:.2} bytes of files for each of a live record");
}
