//! A table on the heap keeps little free for its next checkpoint, and that is enough: buffers, copies and the window of
//! a restore are small where memory is short.
//!
//! What this catches: a checkpoint, or an open, that wants the buffers of a state that has memory for them; a table that
//! keeps these free.

use std::collections::BTreeMap;

use alluvium_layouts::{CheckpointOutcome, Heap, Layout, Table, Upkeep};
use alluvium_pagestore::MemoryKind;

use crate::heap_checkpoints_write_what_has_changed::{Ground, Word};

const KEYS: u64 = 3000;

fn little<V: Word>(kept_most: u64) {
    let mut ground = Ground::<Heap, V>::new(3, 2 << 20);
    let account = ground.account.clone();
    let mut table = Heap::new().open(ground.context(&account, None)).unwrap();
    let mut model = BTreeMap::new();
    for key in 0..KEYS {
        table.put(key, V::of(key)).unwrap();
        model.insert(key, V::of(key));
    }
    let kept = Upkeep::kept_bytes(&table);
    assert!(kept > 0 && kept <= kept_most, "{kept} bytes are kept free");
    let mut image = None;
    for round in 0..3 {
        for (key, value) in model.iter_mut().filter(|(key, _)| *key % 3 == round) {
            table.modify(key, V::modify).unwrap().unwrap();
            value.modify();
        }
        let others = account.available() - kept;
        account.charge(MemoryKind::Index, others);
        image = Some(table.checkpoint(&mut ground.blobs()).unwrap());
        table.checkpointed(CheckpointOutcome::Committed);
        account.release(MemoryKind::Index, others);
    }
    let others = account.available() - kept;
    drop(table);
    account.charge(MemoryKind::Index, others);
    let mut table = Heap::new().open(ground.context(&account, image)).unwrap();
    assert_eq!(Table::len(&table), KEYS);
    assert!(model.iter().all(|(key, value)| table.get(key).unwrap() == Some(value)));
}

#[test]
fn plain_values_are_written_and_read_with_little() {
    little::<u64>(56 << 10);
}

#[test]
fn values_that_own_heap_are_written_and_read_with_little() {
    little::<String>(60 << 10);
}
