//! What cannot be seen from outside the log: what its frames own, how much memory is free at the
//! moment a value is lent, and tables that grow while nobody rewrites segments.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use alluvium_pagestore::io::{Faults, Simulated};
use alluvium_pagestore::{
    Account, BlobWriter, ErrorKind, HeapSize, Helper, KIB, MIB, MemoryKind, SegmentStore,
};
use proptest::prelude::*;

use super::{HybridLog, HybridLogTable};
use crate::table::{CheckpointOutcome, Cursor, Layout, StateContext, Table};
use crate::upkeep::Upkeep;

const MAX_VALUE: u64 = 4 * KIB;

fn open(layout: &HybridLog, store: &Rc<Account>, stored: bool) -> HybridLogTable<u64, String> {
    let device = Arc::new(Simulated::new(1, Faults::none()));
    let context = StateContext {
        name: "log".into(),
        account: Account::below(store, "log", u64::MAX),
        segments: stored.then(|| SegmentStore::new(device, 1)),
        helper: Helper::inline(),
        max_value_bytes: MAX_VALUE,
        key_groups: 256,
        owned: 0..256,
        movable: false,
        restored: None,
    };
    Layout::<u64, String>::open(layout, context).unwrap()
}

fn text(key: u64, bytes: u64) -> String {
    format!("{key:0width$}", width = bytes as usize)
}

/// Four times a frame's bytes of heap, and the value that passed them, for every frame but the
/// one that is filled.
fn assert_frames_are_light(table: &HybridLogTable<u64, String>) {
    let log = &table.log;
    let most = 4 * log.sizes.frame_bytes + text(0, 512).heap_bytes() as u64;
    for (number, state) in log.frames.iter().enumerate() {
        let of_fill = log.is_fill(number as u32);
        assert!(
            of_fill || state.heap_bytes <= most,
            "frame {number} owns {} bytes of heap, {most} are the most",
            state.heap_bytes
        );
    }
}

#[test]
fn a_page_of_long_values_is_left_before_it_is_full() {
    for stored in [false, true] {
        let store = Account::root(if stored { 4 * MIB } else { 16 * MIB });
        let mut table = open(&HybridLog::new().page(64 * KIB), &store, stored);
        for key in 0..10_000 {
            assert!(!table.put(key, text(key, 450)).unwrap());
        }
        assert_frames_are_light(&table);
        let pages = table.stats().pages_begun;
        assert!((15..40).contains(&pages), "{pages} pages for 4.5 MB of heap");
        for key in (0..10_000).step_by(97) {
            assert_eq!(table.get(&key).unwrap(), Some(&text(key, 450)));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn no_page_but_the_fill_one_owns_much_heap(
        steps in prop::collection::vec((0u64..600, 0..5u8), 200..2000),
        stored in any::<bool>(),
    ) {
        let store = Account::root(2 * MIB);
        let mut table = open(&HybridLog::new().page(4 * KIB), &store, stored);
        let mut model = BTreeMap::new();
        for (key, what) in steps {
            let value = text(key, 400 + key % 100);
            if what < 3 {
                let known = table.put(key, value.clone()).unwrap();
                prop_assert_eq!(known, model.insert(key, value).is_some());
            } else {
                prop_assert_eq!(table.take(&key).unwrap(), model.remove(&key));
            }
            assert_frames_are_light(&table);
        }
        for key in 0..600 {
            prop_assert_eq!(table.get(&key).unwrap(), model.get(&key));
        }
    }
}

#[test]
fn a_scan_has_room_for_each_value_that_it_reads() {
    let memory = 512 * KIB;
    let store = Account::root(memory);
    let beside = Account::below(&store, "beside", u64::MAX);
    let mut table = open(&HybridLog::new().segment(64 * KIB), &store, true);
    for key in 0..1000 {
        assert!(!table.put(key, text(key, 1500)).unwrap());
    }
    // Another state takes what is free, and again as the log gives some up.
    let (mut seen, mut cursor, mut taken) = (0, Cursor::default(), 0);
    while !cursor.done {
        if taken < memory / 4 {
            let free = store.available();
            beside.charge(MemoryKind::Values, free);
            taken += free;
        }
        let visit = &mut |key: &u64, value: &String| {
            assert_eq!(*value, text(*key, 1500));
            seen += 1;
            let (resident, free) = (store.used(), store.available());
            assert!(free >= 2 * MAX_VALUE - KIB, "{free} bytes are free, {resident} are used");
            Ok(())
        };
        table.scan(&mut cursor, 16, visit).unwrap();
    }
    assert_eq!(seen, 1000);
}

#[test]
fn a_table_of_segments_without_room_is_told_and_everything_stays_readable() {
    let memory = 160 * KIB;
    let store = Account::root(memory);
    let mut table = open(&HybridLog::new().page_records(8).segment(8 * KIB), &store, true);
    let (mut model, mut over) = (BTreeMap::new(), BTreeMap::new());
    // First new keys until there is no room, then old ones: nobody rewrites segments here.
    for n in 0..10_000 {
        let key = if over.is_empty() { n } else { n % model.len() as u64 };
        match table.put(key, text(n, 1500)) {
            Ok(known) => assert_eq!(known, model.insert(key, text(n, 1500)).is_some()),
            Err(rejected) => {
                assert_eq!(rejected.error.kind(), ErrorKind::OverBudget);
                let text = rejected.error.to_string();
                let what = text.split(" needs ").next().unwrap().to_string();
                *over.entry(what).or_insert(0) += 1;
                if over.contains_key("the table of segments") {
                    break;
                }
            }
        }
        assert!(store.used() <= memory, "{n}: {store:?}");
    }
    println!("{} keys, {over:?}, {store:?}", model.len());
    assert!(over.contains_key("the table of segments"), "{over:?}");
    assert!(model.len() > 50, "{} keys", model.len());
    for (key, value) in &model {
        assert_eq!(table.get(key).unwrap(), Some(value));
    }
    let mut cursor = Cursor::default();
    let mut seen = 0;
    while !cursor.done {
        let visit = &mut |key: &u64, value: &String| {
            assert_eq!(Some(value), model.get(key));
            seen += 1;
            Ok(())
        };
        table.scan(&mut cursor, 100, visit).unwrap();
    }
    assert_eq!(seen, model.len());
    for key in model.keys() {
        assert!(table.take(key).unwrap().is_some(), "{key}");
    }
}

#[test]
fn a_checkpoint_of_one_change_does_not_make_the_sets_of_many_before_it() {
    let store = Account::root(8 * MIB);
    let mut table = open(&HybridLog::new(), &store, true);
    for key in 0..4000 {
        assert!(!table.put(key, text(key, 8)).unwrap());
    }
    let mut sets_made = Vec::new();
    for (number, changed) in [(1, 0), (2, 2000), (3, 1)] {
        for key in 0..changed {
            table.update(&(2 * key), || unreachable!(), |value| value.push('x')).unwrap();
        }
        let segments = table.context.segments.as_ref().unwrap();
        let mut blobs = BlobWriter::new(segments.shared_device(), number, 4096);
        let image = table.checkpoint(&mut blobs).unwrap();
        table.checkpointed(CheckpointOutcome::Committed);
        assert_eq!(image.entries, 4000);
        let sets = image.segments.iter().filter_map(|segment| segment.live);
        sets_made.push(sets.filter(|set| set.file == number).count());
    }
    // The list of 2000 would be longer than a set.
    assert_eq!((sets_made[0], sets_made[2]), (0, 0));
    assert!(sets_made[1] > 0, "{sets_made:?}");
}
