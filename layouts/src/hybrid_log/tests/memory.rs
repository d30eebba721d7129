//! What frames own, how much memory is free at the moment a value is lent, and what is told when there is too little.

use std::collections::BTreeMap;
use std::sync::Arc;

use alluvium_pagestore::io::{BLOCK_BYTES, Faults, Simulated};
use alluvium_pagestore::{
    Account, BlobWriter, ErrorKind, HeapSize, KIB, MIB, MemoryKind, SegmentWriter,
};
use proptest::prelude::*;

use super::{MAX_VALUE, open, text};
use crate::contract::table::{CheckpointOutcome, Cursor, Pace, Table};
use crate::contract::upkeep::Upkeep;
use crate::hybrid_log::config::LogSizes;
use crate::hybrid_log::{HybridLog, HybridLogTable};

/// Four times a frame's bytes of heap, and the value that passed them, for every frame but the
/// one that is filled.
fn assert_frames_are_light(table: &HybridLogTable<u64, String>) {
    let log = &table.core.log;
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
        let mut table = open::<String>(&HybridLog::new().page(64 * KIB), &store, stored);
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
        let mut table = open::<String>(&HybridLog::new().page(4 * KIB), &store, stored);
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
    let mut table = open::<String>(&HybridLog::new().segment(64 * KIB), &store, true);
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
    let mut table =
        open::<String>(&HybridLog::new().page_records(8).segment(8 * KIB), &store, true);
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
fn the_writer_of_the_old_generation_is_booked_while_there_is_one() {
    let memories = [256, 1500, 8192, 65_536].map(|memory| (memory * KIB, true));
    for (memory, stored) in memories.into_iter().chain([(MIB, false)]) {
        let store = Account::root(memory);
        let opened = |generations| {
            let layout = HybridLog::new().generations(generations);
            let table = open::<u64>(&layout, &store, stored);
            let LogSizes { old_chunk_bytes, old_images_max, slots, .. } = table.core.log.sizes;
            let images = old_images_max as u64 * SegmentWriter::IMAGE_BYTES;
            assert!(old_images_max <= 1024 && images <= (memory / 128).max(4 * KIB), "{memory}");
            let needed = table.core.log.sizes.memory_bytes_min(stored);
            assert!(old_chunk_bytes.is_none_or(|chunk| chunk.is_multiple_of(BLOCK_BYTES)));
            let writer = |chunk| SegmentWriter::memory_bytes(chunk, slots as usize, 0) + images;
            let writer = old_chunk_bytes.map(writer);
            (store.used_for(MemoryKind::Buffers), needed, writer.filter(|_| stored))
        };
        let ((one, needed_by_one, none), (two, needed_by_two, writer)) = (opened(1), opened(2));
        assert_eq!((none, writer.is_some()), (None, stored), "{memory}");
        let writer = writer.unwrap_or(0);
        assert_eq!((two - one, needed_by_two - needed_by_one), (writer, writer), "{memory}");
        assert_eq!(store.used(), 0);
    }
}

/// Pages that the helper had of a checkpoint that was given up keep no notes from being given up for memory.
#[test]
fn notes_of_deaths_make_room_also_after_a_checkpoint_was_given_up() {
    const KEYS: u64 = 100_000;
    for is_given_up in [false, true] {
        let store = Account::root(32 * MIB);
        let device = Arc::new(Simulated::new(1, Faults::none()));
        let mut table = open::<u64>(&HybridLog::new(), &store, true);
        (0..KEYS).for_each(|key| assert!(!table.put(key, key).unwrap()));
        table.checkpoint(&mut BlobWriter::new(device.clone(), 1, 4096)).unwrap();
        table.checkpointed(CheckpointOutcome::Committed);
        (0..KEYS / 2).for_each(|key| assert_eq!(table.take(&key).unwrap(), Some(key)));
        if is_given_up {
            (KEYS / 2..KEYS).for_each(|key| assert!(table.put(key, 7).unwrap()));
            let mut blobs = BlobWriter::new(device, 2, 4096);
            table.begin_checkpoint(&mut blobs).unwrap();
            while table.core.log.pending() == 0 {
                table.pace_checkpoint(Pace::AT_ONCE);
                let image = table.continue_checkpoint(&mut blobs).unwrap();
                assert!(image.is_none(), "it has ended before");
            }
            table.checkpointed(CheckpointOutcome::Abandoned);
        }
        let noted = |table: &HybridLogTable<u64, u64>| {
            table.core.log.stored.as_ref().unwrap().count_since()
        };
        assert!(noted(&table) >= KEYS / 2, "{}", noted(&table));
        let used = store.used_for(MemoryKind::Tables);
        // Other states want all that it can do without.
        let error = loop {
            if let Err(error) = table.core.log.free_a_frame((store.limit(), "all of it")) {
                break error;
            }
        };
        assert_eq!(error.kind(), ErrorKind::OverBudget, "{error}");
        assert_eq!(noted(&table), 0, "given up: {is_given_up}");
        assert!(store.used_for(MemoryKind::Tables) < used);
        (KEYS / 2..KEYS).step_by(97).for_each(|key| {
            let value = if is_given_up { 7 } else { key };
            assert_eq!(table.get(&key).unwrap(), Some(&value));
        });
    }
}

/// What is refused is told with what it needs, and not with more.
#[test]
fn a_page_that_is_refused_says_what_a_page_needs() {
    let store = Account::root(4 * MIB);
    let mut table = open::<u64>(&HybridLog::new(), &store, true);
    let (page, limit) = (table.core.log.sizes.frame_bytes, store.limit());
    store.charge(MemoryKind::Values, store.available() - 100);
    let text = table.put(7, 7).unwrap_err().error.to_string();
    let told = format!("a page needs {page} of {limit} bytes, 100 are free");
    assert!(text.contains(&told), "{text}");
}

/// The index leaves room for pages, so that more may be free than it is refused.
#[test]
fn an_index_that_is_refused_says_how_much_was_free_for_it() {
    let store = Account::root(MIB);
    let mut table = open::<u64>(&HybridLog::new().cold_runs(false), &store, true);
    let refused = (0..).find_map(|key| table.put(key, key).err()).unwrap().error;
    let text = refused.message();
    let numbers: Vec<u64> = text.split([' ', ',']).filter_map(|word| word.parse().ok()).collect();
    let [needs, limit, free, floor, keys] = numbers[..] else { panic!("{text}") };
    assert!(text.starts_with("index needs ") && limit == MIB, "{text}");
    assert!(needs > free && free + floor <= limit && keys == table.len(), "{text}");
    let elastic = [MemoryKind::Pages, MemoryKind::Values].map(|kind| store.used_for(kind));
    let fixed = store.used() - elastic.iter().sum::<u64>();
    assert_eq!(free, limit.saturating_sub(fixed + floor), "{text}");
}
