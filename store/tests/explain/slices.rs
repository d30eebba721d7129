//! What is said of the memory that slices want holds: stores are filled with slices until they refuse, and opened with what
//! is said.
//!
//! It may be too little by a third, as merges and what waits for them take more at times, and too much by a tenth.

use std::sync::Arc;
use std::time::Duration;

use alluvium::config::{ExpectedSlices, Helpers, MemoryNeeds};
use alluvium::io::{Faults, Simulated};
use alluvium::{AppendLog, ErrorKind, KIB, MIB, Store, Time, TimeMap};

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
    let is_near = memory <= said * 3 / 2 && said <= memory * 11 / 10;
    assert!(is_near, "{what}: {said} said, {memory} there");
}

#[test]
fn a_store_refuses_slices_about_where_it_is_said() {
    // Few elements a slice in sorted runs that slices share, and in runs of their own; and slices of 8 KiB in runs of their own.
    let asked =
        [(true, MIB + 128 * KIB, (1, 1)), (false, MIB, (1, 1)), (false, 512 * KIB, (4, 100))];
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
    let shapes = [(true, 1, 1), (true, 40, 3), (true, 5, 60), (true, 300, 1), (false, 1, 1)];
    for (packs, lists, elements) in shapes {
        let needs = said(packs, &ExpectedSlices::new(1_000, lists, elements));
        println!("{needs:?}");
        let less = (needs.wanted * 6 / 10, false);
        // Without packing a store refuses in less, and writes nothing.
        for (memory, is_enough) in
            [(needs.wanted, true), less].into_iter().take(1 + usize::from(packs))
        {
            let store = store(memory);
            let mut map = open(&store, packs);
            assert_eq!(fill(&mut map, (lists, elements), 1_000), 1_000, "{needs:?}");
            let written = store.stats().unwrap().total().flushed_bytes;
            println!("{lists} lists of {elements} in {memory} bytes: {written} written");
            assert_eq!(written == 0, is_enough, "{lists} of {elements}: {needs:?}");
        }
    }
}

#[test]
fn more_than_any_memory_has_room_for_is_told_as_none() {
    let most = u64::MAX;
    let each =
        [(most, 1, 1), (1, most, 1), (1, 1, most), (1 << 32, 1 << 32, 1), (most, most, most)];
    for (slices, lists, elements) in each {
        let slices = ExpectedSlices::new(slices, lists, elements);
        let store = store(MIB);
        assert_eq!(store.time_map::<u64, u64>("map").explain_memory(&slices), None, "{slices:?}");
        let slices = ExpectedSlices::new(1, 1, 1).owning(most);
        assert_eq!(store.time_map::<u64, u64>("map").explain_memory(&slices), None);
    }
    // One long list is in a run.
    let needs = said(true, &ExpectedSlices::new(1, 1, 1 << 20));
    assert!(needs.smallest < 2 * MIB && needs.wanted > 16 * MIB, "{needs:?}");
}
