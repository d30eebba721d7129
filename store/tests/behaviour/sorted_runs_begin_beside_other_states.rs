//! A log gets its sorted runs by itself once its index takes too much, also beside other states of its store, and where it
//! is opened with an index of more than it is to have. Each call does a bounded part of it.

use alluvium::config::Helpers;
use alluvium::{AnyLayout, Heap, HybridLog, List, MIB, Map, Store};

const MEMORY: u64 = 16 * MIB;

fn open(place: &std::path::Path) -> Store {
    let store = Store::builder(place).memory(MEMORY).helpers(Helpers::Inline);
    store.open().unwrap()
}

fn map<const N: usize>(store: &Store, name: &str, layout: HybridLog) -> Map<u64, [u64; N]> {
    store.map(name).layout(layout.into()).open().unwrap()
}

fn fill<const N: usize>(map: &mut Map<u64, [u64; N]>, keys: std::ops::Range<u64>) {
    for key in keys {
        map.put(key, [key; N]).unwrap_or_else(|error| panic!("{key}: {error}"));
    }
}

fn check<const N: usize>(map: &mut Map<u64, [u64; N]>, keys: u64) {
    assert_eq!(map.len().unwrap(), keys);
    for key in (0..keys).step_by(997) {
        assert_eq!(map.read(&key, |found| found.copied()).unwrap(), Some([key; N]), "{key}");
    }
}

fn keys_in_runs(store: &Store, name: &str) -> u64 {
    store.stats().unwrap().state(name).unwrap().table.runs.keys
}

/// Pages of another state are no reason to begin: it gives them up.
#[test]
fn a_small_index_beside_pages_of_another_state_stays() {
    let place = tempfile::tempdir().unwrap();
    let store = open(place.path());
    // Its pages fill the memory, and its index is small.
    let mut counts: Map<u64, [u64; 1]> =
        map(&store, "counts", HybridLog::new().cold_runs_automatic());
    let mut pages: Map<u64, [u64; 100]> = map(&store, "pages", HybridLog::new().cold_runs(false));
    fill(&mut pages, 0..30_000);
    // An index of a fifth of the memory.
    let keys = MEMORY / 5 / 24;
    fill(&mut counts, 0..keys);
    assert_eq!(keys_in_runs(&store, "counts"), 0);
    check(&mut counts, keys);
    check(&mut pages, 30_000);
}

/// A log that grows second gets the memory for moves from the first.
#[test]
fn an_index_that_does_not_fit_moves_to_runs_beside_pages_of_another_state() {
    let place = tempfile::tempdir().unwrap();
    let store = open(place.path());
    let mut counts: Map<u64, [u64; 1]> =
        map(&store, "counts", HybridLog::new().cold_runs_automatic());
    let mut pages: Map<u64, [u64; 100]> = map(&store, "pages", HybridLog::new().cold_runs(false));
    fill(&mut pages, 0..30_000);
    // An index of all would take nine tenths of the memory at least, and pages, buffers and tables have more than the rest.
    let keys = MEMORY * 9 / 10 / 16;
    fill(&mut counts, 0..keys);
    assert!(keys_in_runs(&store, "counts") > keys / 3);
    check(&mut counts, keys);
    check(&mut pages, 30_000);
}

/// The same for a log that is opened second: states give memory up in the order in which they were opened.
#[test]
fn an_index_of_a_state_that_is_opened_second_moves_to_runs_beside_pages_of_the_first() {
    let place = tempfile::tempdir().unwrap();
    let store = open(place.path());
    let mut pages: Map<u64, [u64; 100]> = map(&store, "pages", HybridLog::new().cold_runs(false));
    let mut counts: Map<u64, [u64; 1]> =
        map(&store, "counts", HybridLog::new().cold_runs_automatic());
    fill(&mut pages, 0..30_000);
    let keys = MEMORY * 9 / 10 / 16;
    fill(&mut counts, 0..keys);
    assert!(keys_in_runs(&store, "counts") > keys / 3);
    check(&mut counts, keys);
    check(&mut pages, 30_000);
}

/// The same beside a list, whose layout gives memory up that is not known of before it is asked.
#[test]
fn an_index_that_does_not_fit_moves_to_runs_beside_a_list_that_fills_the_memory() {
    let place = tempfile::tempdir().unwrap();
    let store = open(place.path());
    let mut counts: Map<u64, [u64; 1]> =
        map(&store, "counts", HybridLog::new().cold_runs_automatic());
    let mut list: List<u64, u64> = store.list("list").open().unwrap();
    let elements = MEMORY / 8;
    for nth in 0..elements {
        list.append(&(nth % 1000), nth).unwrap();
    }
    let keys = MEMORY * 9 / 10 / 16;
    fill(&mut counts, 0..keys);
    assert!(keys_in_runs(&store, "counts") > keys / 3);
    check(&mut counts, keys);
    assert_eq!(list.len().unwrap(), elements);
}

/// Two logs whose indexes do not fit beside each other both have runs, each in memory of its own: what moves take is a
/// share of the memory that a log may have.
#[test]
fn two_indexes_that_do_not_fit_both_move_to_runs() {
    let place = tempfile::tempdir().unwrap();
    let store = open(place.path());
    let mut maps: Vec<Map<u64, [u64; 1]>> = ["one", "other"]
        .map(|name| map(&store, name, HybridLog::new().cold_runs_automatic().memory(MEMORY / 2)))
        .into_iter()
        .collect();
    let (keys, share) = (MEMORY / 2 / 16, 1000);
    for first in (0..keys).step_by(share) {
        let end = keys.min(first + share as u64);
        maps.iter_mut().for_each(|map| fill(map, first..end));
    }
    for (name, map) in ["one", "other"].into_iter().zip(&mut maps) {
        assert!(keys_in_runs(&store, name) > keys / 10, "{name}");
        check(map, keys);
    }
}

#[test]
fn two_maps_that_share_the_memory_move_to_runs_and_open_again() {
    maps_that_share_the_memory_all_move_to_runs_and_open_again(2);
}

#[test]
fn four_maps_that_share_the_memory_move_to_runs_and_open_again() {
    maps_that_share_the_memory_all_move_to_runs_and_open_again(4);
}

/// Several maps of one store, of which none has `memory` of its own: each takes for moves what its part of the memory
/// allows, and all of them are opened again in the same memory.
fn maps_that_share_the_memory_all_move_to_runs_and_open_again(count: usize) {
    let place = tempfile::tempdir().unwrap();
    let names = &["one", "two", "three", "four"][..count];
    let open_all = |store: &Store| -> Vec<Map<u64, [u64; 1]>> {
        let open = |name: &&str| map(store, name, HybridLog::new().cold_runs_automatic());
        names.iter().map(open).collect()
    };
    // Indexes of all would take all of the memory.
    let (keys, share) = (MEMORY / 16 / count as u64, 1000);
    {
        let store = open(place.path());
        let mut maps = open_all(&store);
        for first in (0..keys).step_by(share) {
            let end = keys.min(first + share as u64);
            maps.iter_mut().for_each(|map| fill(map, first..end));
        }
        for (name, map) in names.iter().zip(&mut maps) {
            assert!(keys_in_runs(&store, name) > keys / 3, "{name}");
            check(map, keys);
        }
        store.checkpoint(1).unwrap();
    }
    let store = open(place.path());
    let mut maps = open_all(&store);
    maps.iter_mut().for_each(|map| check(map, keys));
    for key in (0..keys).step_by(31) {
        assert_eq!(maps[0].take(&key).unwrap(), Some([key; 1]), "{key}");
    }
    fill(&mut maps[1], keys..keys + keys / 10);
    assert_eq!(maps[0].len().unwrap(), keys - keys.div_ceil(31));
    check(&mut maps[1], keys + keys / 10);
}

/// What others take while the index grows makes it begin sooner.
#[test]
fn an_index_moves_to_runs_in_time_when_another_state_takes_memory_meanwhile() {
    let place = tempfile::tempdir().unwrap();
    let store = open(place.path());
    let mut counts: Map<u64, [u64; 1]> =
        map(&store, "counts", HybridLog::new().cold_runs_automatic());
    let heap = AnyLayout::from(Heap::new());
    let mut entries: Map<u64, [u64; 16]> = store.map("entries").layout(heap).open().unwrap();
    let first = MEMORY / 5 / 24;
    fill(&mut counts, 0..first);
    assert_eq!(keys_in_runs(&store, "counts"), 0);
    // Two fifths of the memory.
    let mut taken = 0;
    while store.stats().unwrap().state("entries").unwrap().memory.used < MEMORY * 2 / 5 {
        fill(&mut entries, taken..taken + 100);
        taken += 100;
    }
    let keys = MEMORY * 6 / 10 / 16;
    fill(&mut counts, first..keys);
    assert!(keys_in_runs(&store, "counts") > keys / 3);
    check(&mut counts, keys);
    check(&mut entries, taken);
}

/// The same beside entries on the heap, which gives nothing up.
#[test]
fn an_index_beside_a_heap_moves_to_runs_in_what_the_heap_leaves() {
    let place = tempfile::tempdir().unwrap();
    let store = open(place.path());
    let heap = AnyLayout::from(Heap::new());
    let mut entries: Map<u64, [u64; 16]> = store.map("entries").layout(heap).open().unwrap();
    fill(&mut entries, 0..25_000);
    let mut counts: Map<u64, [u64; 1]> =
        map(&store, "counts", HybridLog::new().cold_runs_automatic());
    let keys = MEMORY / 16;
    fill(&mut counts, 0..keys);
    assert!(keys_in_runs(&store, "counts") > keys / 3);
    check(&mut counts, keys);
    check(&mut entries, 25_000);
}

/// An index of six tenths of the memory, of a checkpoint of a log that had no runs.
#[test]
fn a_log_that_is_opened_with_a_large_index_frees_few_pages_in_each_call() {
    let place = tempfile::tempdir().unwrap();
    let keys = MEMORY * 6 / 10 / 18;
    {
        let store = open(place.path());
        let mut counts: Map<u64, [u64; 1]> =
            map(&store, "counts", HybridLog::new().cold_runs(false));
        fill(&mut counts, 0..keys);
        store.checkpoint(1).unwrap();
    }
    let store = open(place.path());
    let mut counts: Map<u64, [u64; 1]> =
        map(&store, "counts", HybridLog::new().cold_runs_automatic());
    // Records that are read twice come to memory, until it is full of pages.
    for key in (0..keys).step_by(2) {
        counts.update(&key, || unreachable!(), |count| *count = [key]).unwrap();
    }
    let index = store.stats().unwrap().memory.by_kind[0];
    assert!(index > MEMORY / 2, "an index of {index}");
    let flushed = || store.stats().unwrap().total().pages_flushed;
    let (mut before, mut most, mut all) = (flushed(), 0, keys);
    while keys_in_runs(&store, "counts") < keys / 10 {
        fill(&mut counts, all..all + 1);
        all += 1;
        let now = flushed();
        (before, most) = (now, most.max(now - before));
        assert!(all < 2 * keys, "no record moves");
    }
    assert!(most <= 4, "{most} pages left memory in one call");
    check(&mut counts, all);
}
