//! A backend of a user's own, made with the public traits only, passes the conformance histories.

use crate::common;
use std::sync::Arc;

use crate::common::btree_layout::BTree;
use crate::common::history::{Op, Value, op, run_on};
use crate::common::open_on;
use alluvium::io::{Faults, Simulated};
use alluvium::{Heap, KIB, MIB, Source, Store};
use proptest::prelude::*;

fn run<V: Value>(seed: u64, ops: &[Op]) {
    let device = Simulated::new(seed, Faults::late(3));
    let open = || open_on(Arc::new(device.clone()), Heap::new(), 8 * MIB).unwrap();
    let map = |store: &Store| store.map("m").layout(BTree).open().unwrap();
    run_on::<V, BTree>(open, map, 8 * MIB, ops);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn plain_values(seed: u64, ops in prop::collection::vec(op(), 1..120)) {
        run::<u64>(seed, &ops);
    }

    #[test]
    fn values_that_own_heap(seed: u64, ops in prop::collection::vec(op(), 1..120)) {
        run::<Vec<String>>(seed, &ops);
    }
}

#[test]
fn it_stands_beside_our_layouts_and_shares_their_budget() {
    let device = Simulated::new(5, Faults::late(3));
    let open = || open_on(Arc::new(device.clone()), common::tiny(), 512 * KIB).unwrap();
    let store = open();
    let mut log = store.map::<u64, u64>("log").open().unwrap();
    let mut tree = store.map::<String, Vec<u64>>("tree").layout(BTree).open().unwrap();
    let mut refused = None;
    for n in 0..100_000u64 {
        log.put(n % 3000, n).unwrap();
        match tree.put(format!("{n}"), vec![n; 10]) {
            Ok(known) => assert!(!known),
            Err(rejected) => {
                assert_eq!(rejected.value, (format!("{n}"), vec![n; 10]));
                refused = Some(n);
                break;
            }
        }
    }
    let refused = refused.expect("the budget ends");
    assert_eq!(tree.len().unwrap(), refused);
    assert!(refused > 500, "the log gave its pages up for only {refused} entries");
    let kept = refused / 5;
    for n in kept..refused {
        assert!(tree.remove(&format!("{n}")).unwrap(), "{n}");
    }
    let checkpoint = store.checkpoint(1).unwrap();
    assert_eq!(checkpoint.entries, kept + log.len().unwrap());
    drop((log, tree, store));
    let store = open();
    let mut tree = store.map::<String, Vec<u64>>("tree").layout(BTree).open().unwrap();
    assert_eq!(tree.len().unwrap(), kept);
    assert_eq!(tree.get("77").unwrap().as_deref(), Some(&vec![77; 10]));
}

#[test]
fn its_state_moves_to_other_stores_and_layouts() {
    let device = || Simulated::new(5, Faults::none());
    let old = device();
    let store = open_on(Arc::new(old.clone()), Heap::new(), MIB).unwrap();
    let mut tree = store.map::<String, Vec<u64>>("tree").layout(BTree).open().unwrap();
    tree.load((0..100).map(|n| (format!("{n}"), vec![n; 10]))).unwrap();
    store.checkpoint(1).unwrap();
    let mut exported = Vec::new();
    store.export(&mut exported).unwrap();
    drop((tree, store));
    let new = || {
        let source = Source::device(Arc::new(old.clone()));
        let builder = Store::in_memory().memory(MIB).device(Arc::new(device()));
        builder.restore_from([source]).open().unwrap()
    };
    let (kept, ours) = (new(), new());
    let tree = kept.map::<String, Vec<u64>>("tree").layout(BTree).open().unwrap();
    let log = ours.map::<String, Vec<u64>>("tree").layout(common::tiny()).open().unwrap();
    assert_eq!((tree.len().unwrap(), log.len().unwrap()), (100, 100));
    for store in [kept, ours] {
        let mut bytes = Vec::new();
        store.export(&mut bytes).unwrap();
        assert!(bytes == exported);
    }
}
