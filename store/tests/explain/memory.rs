//! What is said of the memory that keys want holds: stores are filled until they refuse, and opened with what is said.
//!
//! The margin is [`MARGIN`] percent of the memory, as indexes and hash tables grow in steps; with sorted runs
//! [`MARGIN_OF_RUNS`], as runs are counted with the dead copies that updates leave, of which a store that was only filled
//! has none.

use std::sync::Arc;

use alluvium::config::{ExpectedKeys, Helpers, MemoryNeeds};
use alluvium::io::{Device, Faults, Simulated};
use alluvium::{AnyLayout, ErrorKind, Heap, HybridLog, KIB, MIB, Map, Store};

/// In percent of the memory.
const MARGIN: u64 = 15;
const MARGIN_OF_RUNS: u64 = 40;

fn store(memory: u64) -> Store {
    let device = Arc::new(Simulated::new(1, Faults::none()));
    let builder = Store::builder("unused").device(device).memory(memory).max_value(4 * KIB);
    builder.helpers(Helpers::Inline).open().unwrap()
}

/// The memory that is said to be wanted with a layout and its options.
fn said(layout: &str, options: &str, keys: ExpectedKeys) -> MemoryNeeds {
    said_of(HybridLog::new(), (layout, options), keys)
}

/// The same for a state whose hybrid log has options already.
fn said_of(log: HybridLog, (layout, options): (&str, &str), keys: ExpectedKeys) -> MemoryNeeds {
    let store = store(MIB);
    let explained = store.map::<u64, u64>("map").layout(log.into()).explain_memory(keys);
    let is_it = |row: &&alluvium::config::MemoryRow| (row.layout, row.options) == (layout, options);
    let row = explained.rows.iter().find(is_it).unwrap_or_else(|| panic!("{explained}"));
    let needs = row.needs.unwrap_or_else(|| panic!("{explained}"));
    assert!(needs.smallest <= needs.wanted && needs.parts.total() <= needs.wanted, "{needs:?}");
    needs
}

/// Puts new keys until memory has no room for another.
fn fill(map: &mut Map<u64, u64>) -> u64 {
    for key in 0.. {
        if let Err(rejected) = map.put(key, key) {
            assert_eq!(rejected.error.kind(), ErrorKind::OverBudget, "{}", rejected.error);
            return key;
        }
    }
    unreachable!()
}

#[track_caller]
fn assert_near(said: u64, memory: u64, margin: u64, what: &str) {
    let percent = said as f64 * 100.0 / memory as f64 - 100.0;
    println!("{what} in {memory} bytes: {said} said, {percent:+.1} %");
    assert!(said.abs_diff(memory) * 100 <= margin * memory, "{what}: {said} said, {memory} there");
}

#[test]
fn a_store_refuses_about_where_it_is_said() {
    let heap = || AnyLayout::from(Heap::new());
    let log = || AnyLayout::from(HybridLog::new().cold_runs(false));
    for memory in [512 * KIB, 768 * KIB, 3 * MIB, 6 * MIB] {
        for (name, options, layout) in
            [("heap", "", heap()), ("hybrid-log", "cold-runs = false", log())]
        {
            let store = store(memory);
            let keys = fill(&mut store.map("map").layout(layout).open().unwrap());
            let needs = said(name, options, ExpectedKeys::new(0, keys));
            assert_near(needs.smallest, memory, MARGIN, &format!("{name}, {keys} keys"));
            if name == "hybrid-log" {
                // Nothing moves by itself in so little.
                let by_itself = said(name, "", ExpectedKeys::new(0, keys));
                assert_eq!(by_itself.smallest, needs.smallest, "{keys} keys");
            }
        }
    }
}

#[test]
fn a_store_with_runs_takes_as_many_keys_as_is_said() {
    let log = HybridLog::new().cold_runs_automatic();
    let keys = 200_000;
    let needs = said_of(log.clone(), ("hybrid-log", ""), ExpectedKeys::new(0, keys));
    let alone = said("hybrid-log", "cold-runs = false", ExpectedKeys::new(0, keys));
    assert!(2 * needs.smallest < alone.smallest, "{needs:?}, {alone:?} without runs");
    let store = store(needs.smallest);
    let mut map = store.map::<u64, u64>("map").layout(AnyLayout::from(log)).open().unwrap();
    (0..keys).for_each(|key| _ = map.put(key, key).map_err(|rejected| rejected.error).unwrap());
    assert!(map.stats().unwrap().runs.keys > keys / 2);
}

/// It refuses where the directories of runs leave no room, which is millions of keys later.
#[test]
#[ignore = "takes a minute"]
fn a_store_with_runs_refuses_about_where_it_is_said() {
    let device = Arc::new(Simulated::new(1, Faults::none()));
    let builder = Store::builder("unused").device(device.clone()).memory(MIB).max_value(4 * KIB);
    let store = builder.helpers(Helpers::Inline).open().unwrap();
    let log = HybridLog::new().cold_runs_automatic();
    let mut map = store.map("map").layout(AnyLayout::from(log.clone())).open().unwrap();
    let refused = (0u64..).find(|key| {
        if key % 5_000 == 0 {
            // The device keeps what was removed until then.
            device.sync_directory().unwrap();
        }
        let refused = map.put(*key, *key).map_err(|rejected| rejected.error.kind()).err();
        assert!(matches!(refused, None | Some(ErrorKind::OverBudget)), "{refused:?}");
        refused.is_some()
    });
    let keys = refused.unwrap();
    let needs = said_of(log, ("hybrid-log", ""), ExpectedKeys::new(0, keys));
    println!("{:?}", map.stats().unwrap());
    assert_near(needs.smallest, MIB, MARGIN_OF_RUNS, &format!("with runs, {keys} keys"));
}

#[test]
fn hot_keys_stay_in_memory_in_what_is_wanted() {
    let (off, on) = ("cold-runs = false", "cold-runs = true");
    let asked = [
        (off, 10_000, 60_000),
        (off, 40_000, 40_000),
        (on, 5_000, 200_000),
        ("", 40_000, 40_000),
        ("", 5_000, 200_000),
    ];
    for (options, hot, cold) in asked {
        let needs = said("hybrid-log", options, ExpectedKeys::new(hot, cold));
        let store = store(needs.wanted);
        let log = match options {
            "" => HybridLog::new(),
            options => HybridLog::new().cold_runs(options == on),
        };
        let mut map = store.map("map").layout(AnyLayout::from(log)).open().unwrap();
        for key in 0..hot + cold {
            map.put(key, key).map_err(|rejected| rejected.error).unwrap();
        }
        let mut reads = Vec::new();
        for round in 0..4 {
            let before = map.stats().unwrap().cold_reads;
            for key in 0..hot {
                map.update(&key, || 0, |count| *count += 1).unwrap();
            }
            reads.push(map.stats().unwrap().cold_reads - before);
            assert_eq!(map.read(&7, |found| found.copied()).unwrap(), Some(8 + round));
        }
        println!("{options}, {hot} hot keys of {}: {reads:?} reads in {needs:?}", hot + cold);
        assert!(reads[3] * 50 <= hot, "{options}: {reads:?} reads of {hot} keys in {needs:?}");
    }
}

#[test]
fn it_is_a_table_of_all_layouts_and_options() {
    let keys = ExpectedKeys::new(100_000, 10_000_000);
    let said = store(MIB).map::<u64, u64>("counts").explain_memory(keys).to_string();
    println!("{said}");
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines[0], "counts: 100000 hot keys, 10000000 cold keys");
    let heads: Vec<_> = lines[2..].iter().map(|line| line[..30].trim_end()).collect();
    // The page has such a table.
    let page = include_str!("../../../docs/src/sizing.md");
    for head in heads.iter().chain([&lines[1]]) {
        assert!(page.lines().any(|line| line.starts_with(head)), "{head}");
    }
    assert_eq!(heads.len(), 5, "{said}");
    // Entries that expire are longer, and counted.
    let expiring = store(MIB).expiring_map::<u64, u64>("counts").explain_memory(keys);
    let plain = store(MIB).map::<u64, u64>("counts").explain_memory(keys);
    for (expiring, plain) in expiring.rows.iter().zip(&plain.rows) {
        assert!(expiring.needs.unwrap().wanted > plain.needs.unwrap().wanted, "{expiring:?}");
    }
    // Values that own heap take it, and what reading one takes.
    let owning = store(MIB).map::<u64, String>("counts").explain_memory(keys.owning(64));
    for (owning, plain) in owning.rows.iter().zip(&plain.rows) {
        let more = owning.needs.unwrap().parts.records - plain.needs.unwrap().parts.records;
        assert!(more >= 64 * 100_000, "{owning:?}");
    }
}

#[test]
fn values_that_are_too_long_to_move_want_an_index_of_all_keys() {
    let keys = ExpectedKeys::new(1_000, 1_000_000);
    let explained = store(MIB).map::<u64, [u64; 1200]>("map").explain_memory(keys);
    let of = |options: &str| {
        let mut rows = explained.rows.iter().filter(|row| row.layout == "hybrid-log");
        rows.find(|row| row.options == options).and_then(|row| row.needs)
    };
    assert!(of("").is_some_and(|needs| needs.smallest > 10 * MIB), "{explained}");
    assert_eq!(of(""), of("cold-runs = false"), "{explained}");
}
