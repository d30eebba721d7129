//! Layouts of a user's own, made with the public traits only, pass the conformance histories: one that keeps
//! keys in their order, and that of the book's chapter, which keeps hashes in their order and can move.

use crate::common;
use std::sync::Arc;

use crate::common::btree_layout::BTree;
use crate::common::history::{Op, Value, op, run_on};
use crate::common::{open_on, quiet_about_planned_panics};
use crate::{key_groups, own_layout};
use alluvium::backend::{Account, Layout};
use alluvium::io::{Faults, Simulated};
use alluvium::moving::Source;
use alluvium::{ErrorKind, Heap, KIB, MIB, Store};
use proptest::prelude::*;

fn run<V: Value>(seed: u64, ops: &[Op]) {
    run_in::<V, _>(BTree, seed, ops);
    run_in::<V, _>(own_layout::BTree, seed, ops);
}

fn run_in<V: Value, L: Layout<u16, V> + Copy>(layout: L, seed: u64, ops: &[Op]) {
    let device = Simulated::new(seed, Faults::late(3));
    let open = || open_on(Arc::new(device.clone()), Heap::new(), 8 * MIB).unwrap();
    let map = |store: &Store| store.map("m").layout(layout).open().unwrap();
    run_on::<V, L>(open, map, 8 * MIB, ops);
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
    moves_from(BTree);
    moves_from(own_layout::BTree);
}

fn moves_from<L: Layout<String, Vec<u64>> + Copy>(layout: L) {
    let device = || Simulated::new(5, Faults::none());
    let old = device();
    let store = open_on(Arc::new(old.clone()), Heap::new(), MIB).unwrap();
    let mut tree = store.map::<String, Vec<u64>>("tree").layout(layout).open().unwrap();
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
    let tree = kept.map::<String, Vec<u64>>("tree").layout(layout).open().unwrap();
    let log = ours.map::<String, Vec<u64>>("tree").layout(common::tiny()).open().unwrap();
    assert_eq!((tree.len().unwrap(), log.len().unwrap()), (100, 100));
    for store in [kept, ours] {
        let mut bytes = Vec::new();
        store.export(&mut bytes).unwrap();
        assert!(bytes == exported);
    }
}

#[test]
fn key_groups_of_the_books_layout_are_scanned_and_removed() {
    for seed in 0..6 {
        let account = Account::root(8 * MIB);
        let table = own_layout::BTree.open(key_groups::context(&account, seed)).unwrap();
        key_groups::history(table, seed, 3000, 400);
        assert_eq!(account.used(), 0);
    }
}

/// What a closure made of a value before it panicked is booked, and a value that is too large is refused.
#[test]
fn the_books_layout_books_what_its_values_own() {
    quiet_about_planned_panics();
    let device = Arc::new(Simulated::new(5, Faults::none()));
    let store = open_on(device, Heap::new(), MIB).unwrap();
    let mut map = store.map::<u64, Vec<u64>>("m").layout(own_layout::BTree).open().unwrap();
    let booked = || store.stats().unwrap().memory.used;
    map.put(7, vec![1]).unwrap();
    let before = booked();
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        map.modify(&7, |value| {
            value.extend(0..100);
            panic!("planned");
        })
    }));
    assert!(panicked.is_err());
    map.clear_poison();
    // Of the hundred numbers a few had room in the block that was there.
    assert!(booked() >= before + 750, "{} after {before}", booked());
    let refused = map.put(8, vec![0; KIB as usize]).unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::ValueTooLarge);
    assert_eq!(map.take(&7).unwrap().map(|value| value.len()), Some(101));
    assert_eq!(map.len().unwrap(), 0);
    // Values grow until the memory is taken; then nothing is written until some are removed.
    let mut refused = None;
    for n in 0..100_000u64 {
        match map.update(&n, Vec::new, |value| value.extend(0..50)) {
            Ok(()) => assert!(booked() <= MIB + 500),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::OverBudget);
                refused = Some(n);
                break;
            }
        }
    }
    let refused = refused.expect("the budget ends");
    assert!(map.modify(&0, |value| value.len()).is_err() || booked() <= MIB);
    for n in 0..refused / 2 {
        assert!(map.remove(&n).unwrap());
    }
    map.update(&0, Vec::new, |value| value.push(1)).unwrap();
    drop((map, store));
}
