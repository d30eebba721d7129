//! What a checkpoint writes for each counter that has changed is no more than one and a half of its key and count,
//! and 32 bytes; on the heap, two blocks more in all.
//!
//! What this catches: records, footers, lists of what has died and files of the checkpoint that take more.

use std::sync::Arc;

use alluvium::config::Helpers;
use alluvium::io::{Faults, Simulated};
use alluvium::{AnyLayout, Heap, HybridLog, KIB, MIB, Map, Store};

const COUNTERS: u64 = 200_000;
const BYTES_MAX: u64 = 16 * 3 / 2 + 32;

#[test]
fn of_a_few_or_many() {
    for (layout, more) in [(AnyLayout::from(HybridLog::new()), 0), (Heap::new().into(), 8 * KIB)] {
        let device = Arc::new(Simulated::new(3, Faults::none()));
        let store = Store::in_memory().memory(64 * MIB).device(device).helpers(Helpers::Inline);
        let store = store.open().unwrap();
        let mut counters: Map<u64, u64> =
            store.map("counters").layout(layout.clone()).open().unwrap();
        (0..COUNTERS).for_each(|id| assert!(!counters.put(id, 0).unwrap()));
        store.checkpoint(0).unwrap();
        for (changed, times) in [(1_000, 3), (4_000, 2), (20_000, 2)] {
            for number in 0..times {
                let before = store.stats().unwrap().io.bytes_written;
                for nth in 0..changed {
                    counters
                        .update(&(nth * (COUNTERS / changed)), || 0, |count| *count += 1)
                        .unwrap();
                }
                store.checkpoint(number).unwrap();
                let written = store.stats().unwrap().io.bytes_written - before;
                let (least, most) = (changed * 16, changed * BYTES_MAX + more);
                let fits = (least..=most).contains(&written);
                assert!(fits, "{layout:?}: {written} bytes of {changed} counters, {most} at most");
            }
        }
    }
}
