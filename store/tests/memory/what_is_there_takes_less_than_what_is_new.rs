//! A state that is empty, or that is there again, takes less memory than the largest of its kind, or a new one.
//!
//! What this catches: a checkpoint of windows without late events that wants the buffers of many, and an append log that
//! cannot be opened again once other states have grown.

use std::sync::Arc;

use alluvium::config::Helpers;
use alluvium::io::{Faults, Simulated};
use alluvium::{AnyLayout, AppendLog, ErrorKind, Heap, KIB, List, MIB, Result, Store};

use crate::counting::alone;

fn store(device: &Simulated, memory: u64) -> Store {
    let builder = Store::in_memory().memory(memory).max_value(KIB);
    builder.device(Arc::new(device.clone())).helpers(Helpers::Inline).open().unwrap()
}

/// What is free, but for some bytes.
fn all_but(store: &Store, bytes: u64) -> u64 {
    let memory = store.stats().unwrap().memory;
    memory.limit - memory.used - bytes
}

#[test]
fn lists_without_elements_are_checkpointed_in_no_memory() {
    let _alone = alone();
    let device = Simulated::new(1, Faults::none());
    let kept = store(&device, 2 * MIB);
    let open = |store: &Store| -> Result<List<u64, u64>> {
        store.list("s").layout(AnyLayout::from(Heap::new())).open()
    };
    let mut list = open(&kept).unwrap();
    for round in 0..3 {
        list.append(&1, round).unwrap();
        kept.checkpoint(round).unwrap();
        list.clear(&1).unwrap();
        let held = kept.reserve(all_but(&kept, KIB), "all that is free").unwrap();
        kept.checkpoint(round).unwrap();
        assert!(list.append(&1, 0).is_err());
        drop(held);
    }
    assert!(list.to_vec(&1).unwrap().is_empty());
    list.append(&2, 7).unwrap();
    kept.checkpoint(9).unwrap();
    drop((list, kept));
    let kept = store(&device, 2 * MIB);
    let mut list = open(&kept).unwrap();
    assert_eq!((list.to_vec(&1).unwrap(), list.to_vec(&2).unwrap()), (vec![], vec![7]));
}

#[test]
fn an_append_log_that_is_there_again_opens_where_no_new_one_does() {
    let _alone = alone();
    let device = Simulated::new(1, Faults::none());
    let open = |store: &Store, name: &str| -> Result<List<u64, u64>> {
        store.list(name).layout(AnyLayout::from(AppendLog::new())).open()
    };
    let kept = store(&device, 400 * KIB);
    let mut list = open(&kept, "s").unwrap();
    for n in 0..1000 {
        list.append(&(n % 10), n).unwrap();
    }
    kept.checkpoint(1).unwrap();
    drop((list, kept));
    let kept = store(&device, 400 * KIB);
    let held = kept.reserve(all_but(&kept, 112 * KIB), "what other states have").unwrap();
    let refused = open(&kept, "new").map(drop).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::OverBudget, "{refused}");
    let mut list = open(&kept, "s").unwrap();
    for key in 0..10 {
        let all: Vec<_> = (0..100).map(|n| 10 * n + key).collect();
        assert_eq!(list.to_vec(&key).unwrap(), all);
    }
    kept.checkpoint(2).unwrap();
    drop(held);
}
