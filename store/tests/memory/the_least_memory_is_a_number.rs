//! The floors that the book tells are constants, and hold; memory that fills up with what no eviction
//! frees is told before it is full, and an error says who holds it and what would do.

use std::sync::Arc;

use alluvium::config::{
    APPEND_LOG_BYTES_MIN, CROWDED_PERCENT, HEAP_BYTES_MIN, HYBRID_LOG_BYTES_MIN, Helpers,
    WINDOW_SEGMENTS_BYTES_MIN,
};
use alluvium::io::{Faults, Simulated};
use alluvium::time::nanos;
use alluvium::{
    AppendLog, ErrorKind, Heap, HybridLog, KIB, MIB, Map, Store, WindowSegments, Windows,
};

fn store(memory: u64) -> Store {
    let device = Arc::new(Simulated::new(1, Faults::none()));
    let builder = Store::in_memory().memory(memory).device(device).helpers(Helpers::Inline);
    builder.max_value(4 * KIB).open().unwrap()
}

/// The least memory with which `opens` succeeds; what does not is refused by its number.
fn least(opens: impl Fn(&Store) -> alluvium::Result<()>) -> u64 {
    let (mut low, mut high) = (17 * KIB, 4 * MIB);
    while low + 1 < high {
        let middle = (low + high) / 2;
        match opens(&store(middle)) {
            Ok(()) => high = middle,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::OverBudget, "{error}");
                low = middle;
            }
        }
    }
    high
}

fn is_floor(what: &str, told: u64, least: u64) {
    assert!(least <= told && told < least + least / 16, "{what}: {least} bytes, {told} are told");
}

#[test]
fn the_least_memory_of_each_layout_is_what_the_book_says() {
    let _alone = crate::counting::alone();
    let log = least(|store| {
        let map = store.map::<u64, u64>("m").layout(HybridLog::new()).open()?;
        map.len().map(drop)
    });
    let heap = least(|store| {
        let map = store.map::<u64, u64>("m").layout(Heap::new()).open()?;
        map.len().map(drop)
    });
    let lists = least(|store| {
        let list = store.list::<u64, u64>("l").layout(AppendLog::new()).open()?;
        list.len().map(drop)
    });
    let panes = least(|store| {
        let open = store.aggregated::<u64, u64, alluvium::Counting>("w");
        let open = open.layout(WindowSegments::new());
        open.open(Windows::tumbling(nanos(10)), alluvium::Counting).map(drop)
    });
    println!("heap {heap}, hybrid log {log}, append log {lists}, window segments {panes}");
    is_floor("hybrid log", HYBRID_LOG_BYTES_MIN, log);
    is_floor("heap", HEAP_BYTES_MIN, heap);
    is_floor("append log", APPEND_LOG_BYTES_MIN, lists);
    is_floor("window segments", WINDOW_SEGMENTS_BYTES_MIN, panes);
    let book = include_str!("../../../docs/src/sizing.md");
    for told in
        [HEAP_BYTES_MIN, HYBRID_LOG_BYTES_MIN, APPEND_LOG_BYTES_MIN, WINDOW_SEGMENTS_BYTES_MIN]
    {
        assert!(book.contains(&format!("| {} KiB |", told / KIB)), "{told} is not in the book");
    }
}

#[test]
fn memory_that_cannot_be_evicted_is_told_before_it_is_full() {
    let _alone = crate::counting::alone();
    for is_log in [true, false] {
        let store = store(2 * MIB);
        let mut map: Map<u64, u64> = match is_log {
            // Where keys move to sorted runs the index leaves room for more.
            true => {
                let log = HybridLog::new().cold_runs(false);
                store.map("m").layout(log.into()).open().unwrap()
            }
            false => store.map("m").layout(Heap::new().into()).open().unwrap(),
        };
        let (mut keys, mut crowded) = (0, None);
        let refused = loop {
            let stats = store.stats().unwrap();
            let percent = stats.fixed_bytes * 100 / (2 * MIB);
            assert_eq!(stats.is_crowded(), percent >= CROWDED_PERCENT, "{stats}");
            if crowded.is_none() && stats.is_crowded() {
                assert!(stats.to_string().contains("cannot be evicted"), "{stats}");
                crowded = Some(keys);
            }
            if let Err(rejected) = map.put(keys, keys) {
                break rejected.error;
            }
            keys += 1;
        };
        assert_eq!(refused.kind(), ErrorKind::OverBudget, "{refused}");
        assert!(refused.to_string().contains("would do"), "{refused}");
        if is_log {
            assert!(
                refused.to_string().contains(&format!("the index of {keys} keys")),
                "{refused}"
            );
            let crowded = crowded.expect("told before");
            assert!(crowded < keys - keys / 20, "{crowded} of {keys} keys");
        }
    }
}
