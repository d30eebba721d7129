//! Loads keys into a hybrid log with sorted runs, reads and changes them, and counts what that took.
//!
//! `cargo run --release -p alluvium-layouts --example cold_keys -- KEYS MIB BATCH`: so many counters of 64 bytes, in so much
//! memory, in a directory for temporary files. They are put one by one if BATCH is 1, else so many at once, and as `Map::load`
//! does if it is 0. Every answer is checked.

mod common;

use std::time::Instant;

use alluvium_layouts::{HybridLog, HybridLogTable, Layout, LoadRoom, RunStats, Table, Upkeep};
use alluvium_pagestore::hash_word;

use common::rate;

type Value = [u64; 7];
type Log = HybridLogTable<u64, Value>;

/// Look-ups of each kind, and those that bring filters to memory before.
const LOOK_UPS: u64 = 50_000;
const BEFORE: u64 = 20_000;
/// Absent keys that are looked for in batches, and keys of a batch.
const ABSENT: u64 = 6_400_000;
const AT_ONCE: usize = 64;

fn value(key: u64) -> Value {
    [key; 7]
}

/// Runs a part for all of its calls and tells the rate, and the reads of runs.
fn part(log: &mut Log, what: &str, calls: u64, mut call: impl FnMut(&mut Log, u64)) {
    let (before, start) = (log.stats().runs, Instant::now());
    let tenth = (calls / 10).max(1);
    for nth in 0..calls {
        call(log, nth);
        if calls > 1_000_000 && (nth + 1) % tenth == 0 {
            println!("{what}: {} of {calls}, {:.0}/s", nth + 1, rate(nth + 1, start));
        }
    }
    let after = log.stats().runs;
    let reads = (after.reads - before.reads) as f64 / calls as f64;
    println!("{what}: {:.0}/s, {reads:.4} reads of runs a call", rate(calls, start));
}

/// Puts keys, so many at once; as many as there is room for, if that is 0.
fn load(log: &mut Log, keys: u64, at_once: usize) {
    let mut key = 0;
    while key < keys {
        let room = if at_once == 0 { log.room_to_load(keys - key) } else { None };
        let few = if at_once == 0 { 1024 } else { at_once };
        let count = room.as_ref().map_or(few, LoadRoom::entries);
        let mut batch: Vec<(u64, Value)> =
            (key..keys).take(count).map(|key| (key, value(key))).collect();
        key += batch.len() as u64;
        let put = match room {
            Some(room) => log.load_batch(&mut batch, room),
            None => log.put_batch(&mut batch),
        };
        put.unwrap_or_else(|error| panic!("{key}: {error}"));
    }
}

/// Looks for keys that are not there, in batches.
fn look_for_absent(log: &mut Log, keys: u64) {
    let mut batch = Vec::with_capacity(AT_ONCE);
    for first in (0..ABSENT).step_by(AT_ONCE) {
        batch.clear();
        batch.extend((first..).take(AT_ONCE).map(|nth| keys + (hash_word(nth) >> 1)));
        log.read_batch(&batch, |key| key, |key, found| assert!(found.is_none(), "{key}"))
            .unwrap_or_else(|error| panic!("{first}: {error}"));
    }
}

fn show(log: &Log) {
    let stats = log.stats();
    let RunStats { keys, runs, levels, guide_bytes, directory_bytes, .. } = stats.runs;
    let each = |bytes: u64| bytes as f64 / keys.max(1) as f64;
    println!("{keys} keys in {runs} runs of {levels} levels; {} calls waited", stats.stalls);
    let (guides, directories) = (each(guide_bytes), each(directory_bytes));
    println!(
        "memory for each: {guides:.3} bytes of filters and fences, {directories:.3} of directories"
    );
    if let Some(written) = stats.runs.write_amplification() {
        println!("{written:.2} bytes written for each that moved");
    }
}

fn main() -> alluvium_pagestore::Result<()> {
    let [keys, mib, at_once] = common::numbers([100_000, 2, 1]);
    let place = tempfile::tempdir().expect("a directory for temporary files");
    let (context, _) = common::context("counters", place.path(), mib)?;
    let mut log: Log = Layout::<u64, Value>::open(&HybridLog::new().cold_runs(true), context)?;
    let start = Instant::now();
    match at_once {
        1 => part(&mut log, "load", keys, |log, key| {
            let put = log.put(key, value(key));
            let known = put.unwrap_or_else(|refused| panic!("{key}: {}", refused.error));
            assert!(!known, "{key} is new");
        }),
        _ => {
            load(&mut log, keys, at_once as usize);
            println!("load: {:.0}/s", rate(keys, start));
        }
    }
    show(&log);
    let some = |nth: u64| hash_word(nth) % keys;
    let read = |log: &mut Log, nth: u64| {
        assert_eq!(log.get(&some(nth)).expect("it is read").map(|found| found[0]), Some(some(nth)));
    };
    part(&mut log, "reads before", BEFORE, read);
    part(&mut log, "reads", LOOK_UPS, |log, nth| read(log, nth + BEFORE));
    part(&mut log, "absent keys", LOOK_UPS, |log, nth| {
        assert!(log.get(&(keys + some(nth))).expect("it is read").is_none());
    });
    let start = Instant::now();
    look_for_absent(&mut log, keys);
    println!("absent keys in batches: {:.0}/s", rate(ABSENT, start));
    part(&mut log, "updates", LOOK_UPS, |log, nth| {
        let changed = log.modify(&some(nth), |found| found[6] += 1).expect("it is changed");
        assert!(changed.is_some(), "{}", some(nth));
    });
    show(&log);
    assert_eq!(log.len(), keys);
    Ok(())
}
