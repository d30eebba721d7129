//! What is said of the memory that slices want holds: stores are filled with slices until they refuse, and opened with what
//! is said.
//!
//! The margin is [`MARGIN`] percent of the memory: tables and the directory of slices grow in steps, and what merges have at
//! the moment is not the same from run to run.

use std::sync::Arc;
use std::time::Duration;

use alluvium::config::{ExpectedSlices, Helpers, MemoryNeeds};
use alluvium::io::{Faults, Simulated};
use alluvium::{AppendLog, ErrorKind, KIB, MIB, Store, Time, TimeMap};

/// In percent of the memory.
const MARGIN: u64 = 40;
/// A second.
const WIDTH: i64 = 1_000_000_000;

fn store(memory: u64) -> Store {
    let device = Arc::new(Simulated::new(1, Faults::none()));
    let builder = Store::builder("unused").device(device).memory(memory).max_value(4 * KIB);
    builder.helpers(Helpers::Inline).open().unwrap()
}

fn open(store: &Store, packs: bool) -> TimeMap<u64, u64> {
    let layout = AppendLog::new().packs_slices(packs);
    let builder = store.time_map("map").layout(layout.into());
    builder.open(Duration::from_nanos(WIDTH as u64)).unwrap()
}

fn said(packs: bool, slices: &ExpectedSlices) -> MemoryNeeds {
    let layout = AppendLog::new().packs_slices(packs);
    let store = store(MIB);
    let builder = store.time_map::<u64, u64>("map").layout(layout.into());
    let needs = builder.explain_memory(slices).unwrap();
    assert!(needs.smallest <= needs.wanted && needs.parts.total() <= needs.wanted, "{needs:?}");
    needs
}

/// Inserts into slice after slice until memory has no room for another, or up to so many.
fn fill(map: &mut TimeMap<u64, u64>, (lists, elements): (u64, u64), most: u64) -> u64 {
    for slice in 0..most {
        for n in 0..lists * elements {
            let at = Time(slice as i64 * WIDTH);
            if let Err(rejected) = map.insert(&(n % lists), at, n) {
                assert_eq!(rejected.error.kind(), ErrorKind::OverBudget, "{}", rejected.error);
                return slice;
            }
        }
    }
    most
}

fn assert_near(said: u64, memory: u64, what: &str) {
    let percent = said as f64 * 100.0 / memory as f64 - 100.0;
    println!("{what} in {memory} bytes: {said} said, {percent:+.1} %");
    assert!(said.abs_diff(memory) * 100 <= MARGIN * memory, "{what}: {said} said, {memory} there");
}

#[test]
fn a_store_refuses_slices_about_where_it_is_said() {
    // Few elements a slice in sorted runs that slices share, and in runs of their own; and slices of 8 KiB in runs of their own.
    let asked =
        [(true, MIB + 512 * KIB, (1, 1)), (false, MIB, (1, 1)), (false, 512 * KIB, (4, 100))];
    for (packs, memory, (lists, elements)) in asked {
        let store = store(memory);
        let mut map = open(&store, packs);
        let slices = fill(&mut map, (lists, elements), u64::MAX);
        let needs = said(packs, &ExpectedSlices::new(slices, lists, elements));
        println!("{needs:?}");
        assert_near(needs.smallest, memory, &format!("{packs}, {slices} slices of {lists} lists"));
    }
}

#[test]
fn slices_stay_in_memory_in_what_is_wanted() {
    for (lists, elements) in [(1, 1), (40, 3), (5, 60), (300, 1)] {
        let needs = said(true, &ExpectedSlices::new(1_000, lists, elements));
        println!("{needs:?}");
        for (memory, is_enough) in [(needs.wanted, true), (needs.wanted * 6 / 10, false)] {
            let store = store(memory);
            let mut map = open(&store, true);
            assert_eq!(fill(&mut map, (lists, elements), 1_000), 1_000, "{needs:?}");
            let written = store.stats().unwrap().total().flushed_bytes;
            println!("{lists} lists of {elements} in {memory} bytes: {written} written");
            assert_eq!(written == 0, is_enough, "{lists} of {elements}: {needs:?}");
        }
    }
}
