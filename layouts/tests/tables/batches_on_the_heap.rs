//! A table on the heap answers batches as it does single calls, in tables that fit into a cache and in
//! such that do not; a batch for which there is not enough memory is done as far as it says.

use std::collections::BTreeMap;
use std::rc::Rc;

use alluvium_layouts::{Heap, HeapTable, Layout, StateContext, Table, Upkeep};
use alluvium_pagestore::{Account, ErrorKind, Helper, KIB, MIB, hash_word};

fn open(memory: u64) -> (HeapTable<u64, String>, Rc<Account>) {
    let account = Account::root(memory);
    let context = StateContext {
        name: "heap".into(),
        account: account.clone(),
        segments: None,
        helper: Helper::inline(),
        max_value_bytes: 100,
        key_groups: 256,
        owned: 0..256,
        movable: false,
        restored: None,
    };
    (Heap::new().open(context).unwrap(), account)
}

fn check(table: &mut HeapTable<u64, String>, model: &BTreeMap<u64, String>, keys: u64) {
    assert_eq!(table.len(), model.len() as u64);
    let all: Vec<u64> = (0..keys).collect();
    let mut read = 0;
    table
        .read_batch(
            &all,
            |key| key,
            |key, value| {
                assert_eq!(value, model.get(key), "{key}");
                assert_eq!(*key, read, "in order");
                read += 1;
            },
        )
        .unwrap();
    assert_eq!(read, keys);
}

#[test]
fn batches_of_all_lengths_agree_with_a_map() {
    const KEYS: u64 = 60_000;
    let (mut table, account) = open(64 * MIB);
    let (mut model, mut dice) = (BTreeMap::new(), 1u64);
    for round in 0..1500 {
        dice = hash_word(dice + round);
        let count = dice % 200;
        let keys: Vec<u64> = (0..count).map(|n| hash_word(dice ^ n) % KEYS).collect();
        if round % 2 == 0 {
            let value = |key: u64| "v".repeat((key % 30) as usize + round as usize % 3);
            let mut batch: Vec<_> = keys.iter().map(|&key| (key, value(key))).collect();
            table.put_batch(&mut batch).unwrap();
            assert!(batch.is_empty());
            model.extend(keys.iter().map(|&key| (key, value(key))));
        } else {
            let change = |key: &u64, value: &mut String| {
                value.truncate(5);
                value.push((b'a' + (key % 26) as u8) as char);
            };
            table.update_batch(&keys, |key| key, |_| "new".into(), change).unwrap();
            for key in &keys {
                change(key, model.entry(*key).or_insert_with(|| "new".into()));
            }
        }
        if round % 300 == 299 {
            check(&mut table, &model, KEYS);
        }
    }
    assert!(table.stats().live_bytes > MIB, "as large as tables that are looked ahead in");
    drop(table);
    assert_eq!(account.used(), 0);
}

#[test]
fn what_was_not_put_is_left() {
    let (mut table, account) = open(300 * KIB);
    let (mut model, mut next, mut left) = (BTreeMap::new(), 0u64, 0);
    for _ in 0..1000 {
        let all: Vec<_> = (next..next + 150).map(|key| (key, key.to_string())).collect();
        next += 150;
        let mut batch = all.clone();
        let put = table.put_batch(&mut batch);
        assert_eq!(put.is_ok(), batch.is_empty());
        if let Err(error) = put {
            assert_eq!(error.kind(), ErrorKind::OverBudget, "{error}");
            left += 1;
        }
        let done = all.len() - batch.len();
        assert_eq!(batch, all[done..], "the rest, in order");
        model.extend(all[..done].iter().cloned());
        assert!(account.used() <= 300 * KIB);
        if left == 2 {
            break;
        }
    }
    assert_eq!(left, 2, "memory did not end");
    check(&mut table, &model, next);
    let keys: Vec<u64> = (next..next + 70).collect();
    let error = table.update_batch(&keys, |key| key, |_| String::new(), |_, _| ()).unwrap_err();
    assert_eq!(error.error.kind(), ErrorKind::OverBudget);
    model.extend(keys[..error.applied].iter().map(|&key| (key, String::new())));
    check(&mut table, &model, next + 70);
}
