//! The shared conformance suite: the same history gives the same answers on every layout, budget
//! and helper, and they are those of a `BTreeMap`.

use crate::common;
use std::sync::Arc;

use crate::common::history::{Op, Value, op};
use alluvium::io::{Faults, Simulated};
use alluvium::{AnyLayout, Heap, HybridLog, KIB, MIB, Store};
use proptest::prelude::*;

fn run<V: Value>(layout: AnyLayout, memory: u64, seed: u64, ops: &[common::history::Op]) {
    let device = Arc::new(Simulated::new(seed, Faults::late(3)));
    let open = || common::open_on(device.clone(), layout.clone(), memory).unwrap();
    common::history::run::<V>(open, memory, ops);
}

fn layouts() -> Vec<(AnyLayout, u64)> {
    let tiny = HybridLog::new().page_records(8).queue_depth(4).segment(16 * KIB);
    vec![
        (Heap::new().into(), MIB),
        (HybridLog::new().into(), 8 * MIB),
        (tiny.clone().into(), 400 * KIB),
        (tiny.clone().hash_bits(1).into(), 400 * KIB),
        (tiny.clone().generations(2).into(), 400 * KIB),
        (tiny.clone().cold_entries(16).into(), MIB),
        (tiny.clone().cold_entries(8).generations(2).into(), 500 * KIB),
        (tiny.clone().hash_bits(0).cooling_percent(60).into(), 400 * KIB),
    ]
}

/// Histories of more keys than a log has memory for, most of which are in sorted runs before they begin.
fn run_in_runs(seed: u64, ops: &[Op]) {
    let all: Vec<(u16, u8)> = (0..6000).map(|key| (key, (key % 251) as u8)).collect();
    let mut whole = vec![Op::Batch(all.clone()), Op::Batch(all)];
    whole.extend(ops.iter().cloned());
    let tiny = common::tiny().memory(640 * KIB);
    for layout in [tiny.clone().cold_entries(16), tiny.cold_entries(8).generations(2)] {
        let device = Arc::new(Simulated::new(seed, Faults::late(3)));
        let open = || common::open_on(device.clone(), layout.clone(), 800 * KIB).unwrap();
        let open_map = |store: &Store| store.map::<u16, [u64; 40]>("m").open().unwrap();
        let moved = common::history::run_on(open, open_map, 800 * KIB, &whole);
        assert!(moved > 3000, "{moved} records moved");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if common::long() { 40 } else { 2 }))]

    #[test]
    fn values_most_of_which_are_in_runs(seed: u64, ops in prop::collection::vec(op(), 20..80)) {
        run_in_runs(seed, &ops);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if common::long() { 64 } else { 3 }))]

    #[test]
    fn plain_values(seed: u64, ops in prop::collection::vec(op(), 1..120)) {
        for (layout, memory) in layouts() {
            run::<u64>(layout, memory, seed, &ops);
        }
    }

    #[test]
    fn values_that_own_heap(seed: u64, ops in prop::collection::vec(op(), 1..60)) {
        for (layout, memory) in layouts() {
            run::<Vec<String>>(layout, memory, seed, &ops);
        }
    }
}
