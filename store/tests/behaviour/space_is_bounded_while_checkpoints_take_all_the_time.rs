//! All changes are made while checkpoints are taken, which hold on to what they name: segments that are
//! mostly dead are given up all the same, space stays bounded, and each checkpoint is of its barrier.
//!
//! What this catches: compaction that waits for a time between two checkpoints which does not come, and a
//! record taken back for a segment that is given up as part of a checkpoint begun before.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::common::{self, Dice, assert_equal};
use alluvium::io::{CrashPolicy, Faults, Simulated};
use alluvium::{AnyLayout, HybridLog, KIB, MIB, Map, Store};

type Record = [u64; 4];
type Model = BTreeMap<u64, Record>;

const KEYS: u64 = 3000;

fn open(device: &Simulated, layout: &AnyLayout, memory: u64) -> (Store, Map<u64, Record>) {
    let store = common::open_on(Arc::new(device.clone()), layout.clone(), memory).unwrap();
    let map = store.map("m").open().unwrap();
    (store, map)
}

fn run(layout: &AnyLayout, memory: u64, rounds: u64) -> f64 {
    let device = Simulated::new(1, Faults::none());
    let (store, mut map) = open(&device, layout, memory);
    let (mut model, mut dice) = (Model::new(), Dice(7));
    for key in 0..KEYS {
        map.put(key, [0; 4]).unwrap();
        model.insert(key, [0; 4]);
    }
    store.checkpoint(0).unwrap();
    let mut most: f64 = 0.0;
    for round in 1..=rounds {
        let saved = model.clone();
        let mut seal = store.seal(round).unwrap();
        for step in 0..KEYS {
            let key = dice.below(KEYS);
            let value = [round, step, key, 0];
            map.put(key, value).unwrap();
            model.insert(key, value);
            // Shares of the checkpoint at first, none, and the rest.
            if step < KEYS / 8 && step % 64 == 0 {
                seal.advance().unwrap();
            }
        }
        while !seal.advance().unwrap() {}
        seal.confirm().unwrap();
        most = most.max(store.stats().unwrap().total().space_amplification().unwrap_or(1.0));
        if round % 8 == 0 {
            let copy = device.crash(CrashPolicy::Everything);
            let (_store, mut restored) = open(&copy, layout, memory);
            assert_equal(&mut restored, &saved, &format!("round {round}"));
        }
    }
    most
}

#[test]
fn in_memory_and_with_little_of_it() {
    // The last checkpoint holds on to what was given up since its barrier. What is on storage only moves
    // between two of them, of which this leaves no time.
    for generations in [1, 2] {
        let layout = HybridLog::new().page_records(64).segment(64 * KIB).generations(generations);
        for (memory, limit) in [(8 * MIB, 4.0), (200 * KIB, 10.0)] {
            let most = run(&layout.clone().into(), memory, 24);
            println!(
                "{generations} generations, {memory} bytes of memory: at most {most:.2} bytes per byte of live state"
            );
            assert!(most < limit, "{generations}, {memory}: {most}");
        }
    }
}
