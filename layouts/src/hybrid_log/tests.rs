//! What cannot be seen from outside the log: what its frames own, how much memory is free at the
//! moment a value is lent, and tables that grow while nobody rewrites segments.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::rc::Rc;
use std::sync::Arc;

use alluvium_pagestore::io::{BLOCK_BYTES, Faults, Simulated};
use alluvium_pagestore::{
    Account, BlobWriter, ErrorKind, HeapSize, Helper, KIB, MIB, MemoryKind, Rewrite,
    RewriteProgress, SegmentStore, SegmentWriter, State,
};
use proptest::prelude::*;

use super::config::LogSizes;
use super::log::{Log, QUANTUM};
use super::{HybridLog, HybridLogTable};
use crate::contract::table::{CheckpointOutcome, Cursor, Layout, Pace, StateContext, Table};
use crate::contract::upkeep::Upkeep;
use crate::support::booked::Booked;

const MAX_VALUE: u64 = 4 * KIB;

fn open<V: State>(layout: &HybridLog, store: &Rc<Account>, stored: bool) -> HybridLogTable<u64, V> {
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
    Layout::<u64, V>::open(layout, context).unwrap()
}

fn text(key: u64, bytes: u64) -> String {
    format!("{key:0width$}", width = bytes as usize)
}

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

fn blobs_of<V: State>(table: &HybridLogTable<u64, V>, number: u64) -> BlobWriter {
    let segments = table.core.context.segments.as_ref().unwrap();
    BlobWriter::new(segments.shared_device(), number, 4096)
}

/// Takes checkpoints of 1000 records, of which some change after each, and tells how many are written.
fn written_after_changes<V: State + PartialEq + std::fmt::Debug>(of: impl Fn(u64) -> V) {
    let store = Account::root(4 * MIB);
    let mut table = open::<V>(&HybridLog::new().page_records(32), &store, true);
    for key in 0..1000 {
        assert!(!table.put(key, of(key)).unwrap());
    }
    let mut live = BTreeMap::from_iter((0..1000).map(|key| (key, of(key))));
    for (number, changed) in [1000, 0, 3, 1000, 500, 0, 1].into_iter().enumerate() {
        let before = table.stats();
        if number > 0 {
            for key in 0..changed {
                table.update(&key, || unreachable!(), |value| *value = of(key + 7)).unwrap();
                live.insert(key, of(key + 7));
            }
        }
        let mut blobs = blobs_of(&table, number as u64);
        let image = table.checkpoint(&mut blobs).unwrap();
        table.checkpointed(CheckpointOutcome::Committed);
        let after = table.stats();
        assert_eq!(image.entries, 1000);
        assert_eq!(after.codec_calls - before.codec_calls, changed, "checkpoint {number}");
        assert_eq!((after.moves, after.clones), (0, 0), "records stay where they are");
        assert_eq!(after.pages_begun, 32);
    }
    for (key, value) in live {
        assert_eq!(table.get(&key).unwrap(), Some(&value));
    }
}

#[test]
fn a_checkpoint_writes_what_has_changed_and_records_stay_where_they_are() {
    written_after_changes(|n| n);
    written_after_changes(|n| text(n, 20));
}

/// Whether no record is to be copied or written before it changes.
fn is_all_copied(log: &Log) -> bool {
    let is_kept = |number| (0..log.sizes.slots).any(|slot| log.is_kept(number, slot));
    !(0..log.frames.count() as u32).any(is_kept)
}

#[test]
fn what_is_copied_for_a_checkpoint_changes_where_it_is_while_that_is_written() {
    let store = Account::root(4 * MIB);
    let mut table = open::<u64>(&HybridLog::new().page_records(32), &store, true);
    for key in 0..1000 {
        assert!(!table.put(key, key).unwrap());
    }
    let mut blobs = blobs_of(&table, 1);
    assert!(table.begin_checkpoint(&mut blobs).unwrap().is_none());
    // Copies run ahead of the helper, which does a job with each call.
    let (mut changed, mut image) = (false, None);
    while image.is_none() {
        image = table.continue_checkpoint(&mut blobs).unwrap();
        let log = &table.core.log;
        if !changed && is_all_copied(log) {
            assert!(log.stats.codec_calls < 1000, "{:?}", log.stats);
            for key in 0..1000 {
                table.update(&key, || unreachable!(), |value| *value += 1).unwrap();
            }
            changed = true;
        }
    }
    let stats = table.stats();
    assert_eq!((stats.moves, stats.clones, stats.codec_calls), (0, 0, 1000));
    // What was changed is not on storage.
    assert_eq!(table.core.log.stored.as_ref().unwrap().live_records(), 0);
    table.checkpointed(CheckpointOutcome::Committed);
    assert_eq!(image.unwrap().segments().map(|segment| segment.live_records).sum::<u64>(), 1000);
}

/// Takes a checkpoint of 4000 records, told `pace` before each share, and gives how many records were
/// written before each share.
fn written_before_shares(pace: impl Fn(u64) -> Pace) -> Vec<u64> {
    let store = Account::root(4 * MIB);
    let layout = HybridLog::new().page_records(32).checkpoint_pace(8);
    let mut table = open::<u64>(&layout, &store, true);
    for key in 0..4000 {
        assert!(!table.put(key, key).unwrap());
    }
    let mut blobs = blobs_of(&table, 1);
    assert!(table.begin_checkpoint(&mut blobs).unwrap().is_none());
    let mut written = Vec::new();
    loop {
        written.push(table.stats().codec_calls);
        table.pace_checkpoint(pace(written.len() as u64));
        if table.continue_checkpoint(&mut blobs).unwrap().is_some() {
            assert_eq!(table.stats().codec_calls, 4000);
            return written;
        }
        assert!(written.len() < 10_000, "it never ends");
    }
}

/// What may be written beyond what the stream has come to: four pages with each share, of the helper's.
const AHEAD: u64 = 4 * 32;

#[test]
fn a_checkpoint_is_written_at_the_pace_of_the_stream() {
    let written = written_before_shares(|_| Pace { calls: 160, gone: 0 });
    for (share, &written) in written.iter().enumerate() {
        let calls = 160 * share as u64;
        assert!(written <= calls / 8 + AHEAD, "{written} records were written after {calls} calls");
    }
    assert!((190..210).contains(&written.len()), "{} shares for 4000 records", written.len());
}

#[test]
fn a_checkpoint_ends_within_its_time_whatever_its_pace() {
    // By calls it would take 500 shares of the least that counts; it may take 100.
    let gone = |share: u64| Pace { calls: 1, gone: Pace::WHOLE * share / 100 };
    let written = written_before_shares(gone);
    for (share, &written) in written.iter().enumerate() {
        let due = 40 * share as u64;
        assert!(written <= due + AHEAD, "{written} records in {share} of 100 shares");
    }
    assert!((90..110).contains(&written.len()), "{} shares", written.len());
    // What is late is not held back any further.
    let late = |share: u64| Pace { calls: 1, gone: if share < 20 { 0 } else { Pace::WHOLE } };
    let (late, at_once) = (written_before_shares(late), written_before_shares(|_| Pace::AT_ONCE));
    assert!(at_once.len() < 80 && late.len() <= 20 + at_once.len(), "{} shares", late.len());
    let standing = written_before_shares(|_| Pace { calls: 0, gone: 0 });
    assert_eq!(standing, at_once, "a stream that stands still waits for nothing");
}

#[test]
fn frames_of_copies_are_made_one_with_a_share_and_stay_for_the_next_checkpoint() {
    let store = Account::root(32 * MIB);
    let mut table = open::<u64>(&HybridLog::new().page_records(32), &store, true);
    for key in 0..4000 {
        assert!(!table.put(key, key).unwrap());
    }
    let mut made = Vec::new();
    for number in 1..4 {
        for key in 0..4000 {
            table.update(&key, || unreachable!(), |value| *value += 1).unwrap();
        }
        let mut blobs = blobs_of(&table, number);
        let pages = || store.used_for(MemoryKind::Pages);
        let before = pages();
        assert!(table.begin_checkpoint(&mut blobs).unwrap().is_none());
        loop {
            let share = pages();
            // The helper is given few of them, so that others wait.
            table.pace_checkpoint(Pace { calls: 160, gone: 0 });
            let image = table.continue_checkpoint(&mut blobs).unwrap();
            assert!(pages() <= share + table.core.log.sizes.frame_bytes, "checkpoint {number}");
            if image.is_some() {
                break;
            }
        }
        table.checkpointed(CheckpointOutcome::Committed);
        made.push((pages() - before) / table.core.log.sizes.frame_bytes);
    }
    assert!(made[0] > 60 && made[1] + made[2] < 8, "{made:?} of 125 frames");
}

#[test]
fn a_checkpoint_that_makes_sets_ends_at_any_pace_with_pages_of_any_size() {
    for page_records in [8, 32, 1024] {
        let store = Account::root(4 * MIB);
        let layout = HybridLog::new().page_records(page_records);
        let mut table = open::<u64>(&layout, &store, true);
        for key in 0..4000 {
            assert!(!table.put(key, key).unwrap());
        }
        for number in [1, 2] {
            for key in 0..3000 {
                table.update(&key, || unreachable!(), |value| *value += 1).unwrap();
            }
            let mut blobs = blobs_of(&table, number);
            assert!(table.begin_checkpoint(&mut blobs).unwrap().is_none());
            let mut shares = 0;
            let image = loop {
                // Nothing but the calls of the stream lets it go on.
                table.pace_checkpoint(Pace { calls: 1, gone: 0 });
                if let Some(image) = table.continue_checkpoint(&mut blobs).unwrap() {
                    break image;
                }
                shares += 1;
                assert!(shares < 20_000, "pages of {page_records}: it never ends");
            };
            table.checkpointed(CheckpointOutcome::Committed);
            // There is room to note 2048 deaths.
            let has_set = image.segments().any(|s| s.live.is_some_and(|s| s.file == number));
            assert_eq!(has_set, number == 2, "pages of {page_records}");
        }
    }
}

/// Has another state ask for memory after each number of shares of a checkpoint, while there is enough.
fn freed_in_between<V: State + PartialEq + std::fmt::Debug>(of: impl Fn(u64) -> V) {
    for shares in 0.. {
        let store = Account::root(4 * MIB);
        let mut table = open::<V>(&HybridLog::new().page_records(32), &store, true);
        for key in 0..2000 {
            assert!(!table.put(key, of(key)).unwrap());
        }
        let mut blobs = blobs_of(&table, 1);
        assert!(table.begin_checkpoint(&mut blobs).unwrap().is_none());
        let (mut taken, mut image) = (0, None);
        while image.is_none() && taken < shares {
            table.pace_checkpoint(Pace { calls: 1, gone: 0 });
            image = table.continue_checkpoint(&mut blobs).unwrap();
            taken += 1;
        }
        if image.is_some() {
            assert!(shares > 10, "{shares}");
            return;
        }
        // Records that are not of the checkpoint.
        for key in 2000..2020 {
            assert!(!table.put(key, of(key)).unwrap());
        }
        let pages = table.stats().pages_flushed;
        table.core.log.free_a_frame((1, "a byte")).unwrap();
        let flushed = table.stats().pages_flushed - pages;
        assert!(flushed <= 8, "{flushed} pages are written for one that is freed");
        let image = loop {
            table.pace_checkpoint(Pace::AT_ONCE);
            if let Some(image) = table.continue_checkpoint(&mut blobs).unwrap() {
                break image;
            }
        };
        let live = image.segments().map(|segment| segment.live_records).sum::<u64>();
        assert_eq!((image.entries, live), (2000, 2000), "after {shares} shares");
        for key in 0..2020 {
            assert_eq!(table.get(&key).unwrap(), Some(&of(key)));
        }
    }
}

#[test]
fn a_state_that_gives_memory_up_while_its_checkpoint_is_taken_writes_no_more_than_that_takes() {
    freed_in_between(|n| n);
    freed_in_between(|n| text(n, 20));
}

#[test]
fn a_checkpoint_has_all_that_died_before_its_sets_were_begun() {
    let store = Account::root(4 * MIB);
    let mut table = open::<u64>(&HybridLog::new().page_records(32), &store, true);
    for key in 0..8000 {
        assert!(!table.put(key, key).unwrap());
    }
    let change = |table: &mut HybridLogTable<u64, u64>, keys: std::ops::Range<u64>| {
        for key in keys {
            table.update(&key, || unreachable!(), |value| *value += 1).unwrap();
        }
    };
    table.checkpoint(&mut blobs_of(&table, 1)).unwrap();
    table.checkpointed(CheckpointOutcome::Committed);
    // There is room to note 2048: segments have to be looked at, and more die before that is begun.
    change(&mut table, 0..3000);
    let mut blobs = blobs_of(&table, 2);
    assert!(table.begin_checkpoint(&mut blobs).unwrap().is_none());
    change(&mut table, 5000..8000);
    change(&mut table, 3000..4000);
    let spill = &table.core.log.stored.as_ref().unwrap().spill;
    assert!(spill.has_written(), "1952 are not noted");
    let image = loop {
        if let Some(image) = table.continue_checkpoint(&mut blobs).unwrap() {
            break image;
        }
    };
    assert!(!table.core.log.stored.as_ref().unwrap().spill.is_wanted(), "it is over");
    table.checkpointed(CheckpointOutcome::Committed);
    let live = image.segments().map(|segment| segment.live_records).sum::<u64>();
    assert_eq!((image.entries, live), (8000, 8000));
}

/// Begins a checkpoint of 8000 records after one that was confirmed and 3000 changes, and clears the table after some
/// shares, with so much memory left for others; gives how it ended.
fn cleared_after(shares: usize, free_bytes: u64) -> Option<ErrorKind> {
    let store = Account::root(4 * MIB);
    let mut table = open::<u64>(&HybridLog::new().page_records(32), &store, true);
    let empty = store.used();
    for key in 0..8000 {
        assert!(!table.put(key, key).unwrap());
    }
    table.checkpoint(&mut blobs_of(&table, 1)).unwrap();
    table.checkpointed(CheckpointOutcome::Committed);
    // There is room to note 2048.
    for key in 0..3000 {
        table.update(&key, || unreachable!(), |value| *value += 1).unwrap();
    }
    let mut blobs = blobs_of(&table, 2);
    let mut image = table.begin_checkpoint(&mut blobs).unwrap();
    for _ in 0..shares {
        if image.is_none() {
            image = table.continue_checkpoint(&mut blobs).unwrap();
        }
    }
    let others = store.available().saturating_sub(free_bytes);
    store.charge(MemoryKind::Values, others);
    let before = table.stats();
    Table::clear(&mut table).unwrap();
    let after = table.stats();
    assert_eq!(before.pages_flushed, after.pages_flushed, "nothing is written for it");
    store.release(MemoryKind::Values, others);
    assert!(!table.put(7, 7).unwrap());
    let ended = loop {
        match image.map_or_else(|| table.continue_checkpoint(&mut blobs), |i| Ok(Some(i))) {
            Ok(None) => image = None,
            ended => break ended,
        }
        // The same again: it is the new log's.
        Table::clear(&mut table).unwrap();
        assert!(!table.put(7, 70).unwrap());
        assert!(store.used() <= 4 * MIB, "{store:?}");
    };
    let outcome = match &ended {
        Ok(image) => {
            let image = image.as_ref().unwrap();
            let live = image.segments().map(|segment| segment.live_records).sum::<u64>();
            assert_eq!((image.entries, live), (8000, 8000), "after {shares} shares");
            CheckpointOutcome::Committed
        }
        Err(_) => CheckpointOutcome::Abandoned,
    };
    table.checkpointed(outcome);
    assert_eq!(table.len(), 1);
    let again = table.checkpoint(&mut blobs_of(&table, 3)).unwrap();
    assert_eq!((again.entries, again.segments().count()), (1, 1), "after {shares} shares");
    table.checkpointed(CheckpointOutcome::Committed);
    for _ in 0..200 {
        table.tick(64).unwrap();
    }
    let (now, spare) = (table.stats(), 5 * table.core.log.sizes.frame_bytes + 64 * KIB);
    assert!(now.pages_flushed >= after.pages_flushed && now.splits >= after.splits, "{now:?}");
    assert!(store.used() <= empty + spare, "{} and {empty} when it was empty", store.used());
    ended.err().map(|error| error.kind())
}

#[test]
fn a_state_that_is_cleared_is_handed_over_to_the_checkpoint_being_taken() {
    for shares in (0..200).step_by(9) {
        assert_eq!(cleared_after(shares, u64::MAX), None, "after {shares} shares");
    }
}

#[test]
fn without_memory_for_another_log_it_ends_the_checkpoint_unless_that_has_all_of_it() {
    let ended = (0..200).step_by(9).map(|shares| cleared_after(shares, 16 * KIB));
    let (overtaken, whole): (Vec<_>, Vec<_>) = ended.partition(Option::is_some);
    assert!(overtaken.iter().all(|kind| *kind == Some(ErrorKind::Overtaken)), "{overtaken:?}");
    let (whole, overtaken) = (whole.len(), overtaken.len());
    assert!(whole > 0 && overtaken > 3, "{whole} whole, {overtaken} overtaken");
}

/// Bytes of parts: pages, what values own, and segments of the index.
fn parts_bytes(store: &Account) -> u64 {
    let kinds = [MemoryKind::Pages, MemoryKind::Values, MemoryKind::Index];
    kinds.map(|kind| store.used_for(kind)).iter().sum()
}

/// Bytes that a share gives back at most: a part, and the memory of an empty page with it.
fn share_bytes<V: State>(table: &HybridLogTable<u64, V>) -> u64 {
    // Values of a page own at most four times as much as it takes, and the last one some more.
    let (page, value) = (table.core.log.sizes.frame_bytes, table.core.context.max_value_bytes);
    u64::from(QUANTUM) * (6 * page + value + 32 * KIB)
}

/// Clears so many keys, and gives the calls that it took until all of it was given back.
fn clear_and_tick<V: State + Debug>(keys: u64, stored: bool, value: impl Fn(u64) -> V) -> usize {
    let store = Account::root(64 * MIB);
    let mut table = open::<V>(&HybridLog::new().page(4 * KIB), &store, stored);
    let empty = store.used();
    for key in 0..keys {
        assert!(!table.put(key, value(key)).unwrap());
    }
    let before = parts_bytes(&store);
    Table::clear(&mut table).unwrap();
    assert_eq!((table.len(), table.get(&7).unwrap().is_some()), (0, false));
    assert!(parts_bytes(&store) >= before, "the call drops nothing, of {keys} keys");
    let (most, mut calls) = (share_bytes(&table), 0);
    while table.tick(1).unwrap() > 0 {
        calls += 1;
        assert!(calls < 100_000, "it does not end");
    }
    let spare = 5 * table.core.log.sizes.frame_bytes;
    assert!(store.used() <= empty + spare, "{} and {empty} when it was empty", store.used());
    assert!(!table.put(7, value(7)).unwrap());
    assert!(calls as u64 * most >= before, "{calls} calls gave {before} bytes back");
    calls
}

#[test]
fn clearing_drops_nothing_in_the_call_whatever_there_is() {
    for stored in [false, true] {
        let calls = [4_000, 64_000].map(|keys| clear_and_tick(keys, stored, |key| key));
        assert!(calls[1] > 10 * calls[0], "{calls:?}");
        let calls = [4_000, 40_000].map(|keys| clear_and_tick(keys, stored, |key| text(key, 200)));
        assert!(calls[1] > 6 * calls[0], "{calls:?}");
    }
}

/// Gives the most that was booked beside parts, for logs that are not dropped yet, in percent of what one takes.
fn clear_again_and_again<V: State + Debug>(keys: u64, value: impl Fn(u64) -> V) -> u64 {
    let store = Account::root(64 * MIB);
    let mut table = open::<V>(&HybridLog::new().page(4 * KIB), &store, true);
    let fixed = |store: &Account| store.used() - parts_bytes(store);
    let (one, share) = (fixed(&store), share_bytes(&table));
    let mut most = 0;
    for (round, keys) in std::iter::once(keys).chain((0..60).map(|n| 3_000 >> (n % 5))).enumerate()
    {
        for key in 0..keys {
            let before = parts_bytes(&store);
            assert!(!table.put(key, value(key)).unwrap());
            let after = parts_bytes(&store);
            assert!(before <= after + share, "{before} and {after} at {key} of round {round}");
        }
        let before = parts_bytes(&store);
        Table::clear(&mut table).unwrap();
        let after = parts_bytes(&store);
        assert!(before <= after + share, "{before} and {after} after round {round}");
        most = most.max(100 * fixed(&store) / one);
    }
    // By then the stream has paid for all of them.
    assert!(parts_bytes(&store) < 2 * MIB, "{store:?}");
    most
}

#[test]
fn a_state_that_is_cleared_again_soon_drops_a_share_with_each_call_and_keeps_few_logs() {
    for keys in [6_000, 60_000] {
        let logs = clear_again_and_again(keys, |key| key);
        assert!((120..=400).contains(&logs), "{logs} % of a log after {keys} keys");
        let logs = clear_again_and_again(keys / 2, |key| text(key, 200));
        assert!((120..=400).contains(&logs), "{logs} % of a log after {} keys", keys / 2);
    }
}

/// A state that fills its memory, or is several times as large.
#[test]
fn without_memory_for_another_log_as_much_as_that_takes_is_dropped() {
    for (stored, memory, keys) in [
        (false, 2 * MIB, u64::MAX),
        (false, 16 * MIB, u64::MAX),
        (true, 2 * MIB, 60_000),
        (true, 2 * MIB, 120_000),
    ] {
        let store = Account::root(memory);
        let mut table = open::<[u64; 4]>(&HybridLog::new().page(4 * KIB), &store, stored);
        let fill = |table: &mut HybridLogTable<u64, [u64; 4]>| {
            let full = (0..keys).find(|key| match table.put(*key, [*key; 4]) {
                Ok(was_there) => was_there,
                Err(rejected) => {
                    assert_eq!(rejected.error.kind(), ErrorKind::OverBudget);
                    true
                }
            });
            full.unwrap_or(keys)
        };
        let filled = fill(&mut table);
        assert!(filled > 5_000, "{filled} keys");
        let (before, least) = (parts_bytes(&store), table.core.log.sizes.memory_bytes_min(stored));
        Table::clear(&mut table).unwrap();
        let given = before.saturating_sub(parts_bytes(&store));
        assert!(given <= least + 64 * KIB, "{given} bytes, where another log takes {least}");
        assert!(table.is_empty() && store.used() <= memory);
        // What comes has its memory.
        assert_eq!(fill(&mut table), filled, "in {memory} bytes");
        assert_eq!(table.get(&(filled - 1)).unwrap(), Some(&[filled - 1; 4]));
    }
}

#[test]
fn a_segment_is_given_up_without_a_copy_of_what_is_in_memory_too() {
    let store = Account::root(4 * MIB);
    let mut table = open::<u64>(&HybridLog::new().page_records(32), &store, true);
    for key in 0..1000 {
        assert!(!table.put(key, key).unwrap());
    }
    for number in [1, 2] {
        let written = table.stats().codec_calls;
        let mut blobs = blobs_of(&table, number);
        table.checkpoint(&mut blobs).unwrap();
        table.checkpointed(CheckpointOutcome::Committed);
        assert_eq!(table.stats().codec_calls - written, 1000, "all are written from memory");
        let mut segments = Vec::new();
        table.core.segments(&mut segments);
        for segment in segments.iter().filter(|segment| segment.live_records > 0) {
            table.core.begin(segment.id).unwrap();
            while !matches!(table.core.step(100).unwrap(), RewriteProgress::Done { .. }) {}
        }
        let stats = table.stats();
        assert_eq!((stats.rewritten, stats.moves, stats.clones), (0, 0, 0));
        assert_eq!(table.core.log.stored.as_ref().unwrap().live_records(), 0);
    }
    for key in 0..1000 {
        assert_eq!(table.get(&key).unwrap(), Some(&key));
    }
}

#[test]
fn a_state_is_cleared_whatever_pages_it_has_beside_others_that_take_the_rest() {
    for (page, memory) in [(16 * KIB, 8 * MIB), (16 * KIB, 32 * MIB), (64 * KIB, 32 * MIB)] {
        for (pages, left) in (8..40).flat_map(|pages| [(pages, 0), (pages, 3)]) {
            let store = Account::root(memory);
            let others = Account::below(&store, "others", u64::MAX);
            let mut table = open::<u64>(&HybridLog::new().page(page), &store, true);
            let frame = table.core.log.sizes.frame_bytes;
            let mut keys = 0..;
            while table.core.log.account.used_for(MemoryKind::Pages) < pages * frame {
                let key = keys.next().unwrap();
                table.put(key, key).unwrap();
            }
            others.charge(MemoryKind::Values, store.available().saturating_sub(left * frame));
            let taken = others.used();
            Table::clear(&mut table).unwrap();
            while table.tick(1).unwrap() > 0 {}
            assert!(!table.put(7, 7).unwrap(), "{pages} pages of {page}, {left} left");
            assert_eq!(table.len(), 1);
            drop(table);
            assert_eq!(store.used(), taken, "{pages} pages of {page}, {left} left");
        }
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

#[test]
fn what_a_checkpoint_puts_off_is_shown_without_garbage_until_its_end() {
    let store = Account::root(7 * MIB / 4);
    let mut table = open::<u64>(&HybridLog::new().page_records(32), &store, true);
    for key in 0..40_000 {
        assert!(!table.put(key, key).unwrap());
    }
    for (number, step) in [(1, 40_000), (2, 3), (3, 6)] {
        for key in (0..40_000).step_by(step) {
            table.update(&key, || unreachable!(), |value| *value += 1).unwrap();
        }
        table.checkpoint(&mut blobs_of(&table, number)).unwrap();
        table.checkpointed(CheckpointOutcome::Committed);
    }
    let list = |table: &HybridLogTable<u64, u64>| {
        let mut segments = Vec::new();
        table.core.segments(&mut segments);
        segments.into_iter().map(|s| (s.id, s)).collect::<BTreeMap<_, _>>()
    };
    let mut blobs = blobs_of(&table, 4);
    assert!(table.begin_checkpoint(&mut blobs).unwrap().is_none());
    let before = list(&table);
    let half_dead =
        before.values().filter(|s| s.sealed && 0 < s.live_records && s.live_records < s.records);
    let wanted: Vec<_> = half_dead.map(|s| s.id).rev().step_by(2).collect();
    table.core.foresee(&wanted);
    table.core.begin(wanted[0]).unwrap();
    while !matches!(table.core.step(100).unwrap(), RewriteProgress::Done { .. }) {}
    let during = list(&table);
    let (mut taken_back, mut left) = (0, 0);
    for (id, now) in &during {
        if wanted.contains(id) {
            taken_back += before[id].live_records - now.live_records;
            left += now.live_records;
            let is_done = now.live_records == 0 || !now.sealed && now.live_bytes() == now.bytes;
            assert!(is_done, "{now:?}");
        } else {
            assert_eq!(*now, before[id], "nobody asked for it");
        }
    }
    assert!(taken_back > 0 && left > 0, "{taken_back} in memory, {left} on storage only");
    let image = loop {
        if let Some(image) = table.continue_checkpoint(&mut blobs).unwrap() {
            break image;
        }
    };
    assert_eq!(image.entries, 40_000);
    table.checkpointed(CheckpointOutcome::Committed);
    let after = list(&table);
    for id in wanted.into_iter().filter(|id| during[id].live_records > 0) {
        let (now, live) = (after[&id], during[&id].live_records);
        assert_eq!((now.sealed, now.records, now.live_records), (true, before[&id].records, live));
        table.core.begin(id).unwrap();
        while !matches!(table.core.step(100).unwrap(), RewriteProgress::Done { .. }) {}
        assert_eq!(list(&table)[&id].live_records, 0);
    }
}

#[test]
fn a_checkpoint_of_one_change_does_not_make_the_sets_of_many_before_it() {
    let store = Account::root(8 * MIB);
    let mut table = open(&HybridLog::new(), &store, true);
    for key in 0..40_000 {
        assert!(!table.put(key, text(key, 8)).unwrap());
    }
    let mut sets_made = Vec::new();
    for (number, changed) in [(1, 0), (2, 20_000), (3, 1)] {
        for key in 0..changed {
            table.update(&(2 * key), || unreachable!(), |value| value.push('x')).unwrap();
        }
        let segments = table.core.context.segments.as_ref().unwrap();
        let mut blobs = BlobWriter::new(segments.shared_device(), number, 4096);
        let image = table.checkpoint(&mut blobs).unwrap();
        table.checkpointed(CheckpointOutcome::Committed);
        assert_eq!(image.entries, 40_000);
        let sets = image.segments().filter_map(|segment| segment.live);
        sets_made.push(sets.filter(|set| set.file == number).count());
    }
    // The list of 20,000 would be longer than a set.
    assert_eq!((sets_made[0], sets_made[2]), (0, 0));
    assert!(sets_made[1] > 0, "{sets_made:?}");
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

/// What a checkpoint has no need of is dropped while the helper tells it; if that is lost, it is not to be written again
/// of what is left.
#[test]
fn what_was_cleared_goes_on_being_dropped_if_its_checkpoint_is_lost() {
    let mut lost = 0;
    for before in [0, 1, 300, 3_000, 9_000] {
        let (memory, keys) = (MIB, 36_000);
        let store = Account::root(memory);
        let mut table = open::<[u64; 2]>(&HybridLog::new(), &store, true);
        (0..keys).for_each(|key| assert!(!table.put(key, [key; 2]).unwrap()));
        table.checkpoint(&mut blobs_of(&table, 1)).unwrap();
        table.checkpointed(CheckpointOutcome::Committed);
        (0..keys).step_by(7).for_each(|key| assert!(table.put(key, [key + 1; 2]).unwrap()));
        let mut blobs = blobs_of(&table, 2);
        assert!(table.begin_checkpoint(&mut blobs).unwrap().is_none());
        while table.core.needs_more() {
            table.pace_checkpoint(Pace::AT_ONCE);
            assert!(table.continue_checkpoint(&mut blobs).unwrap().is_none());
        }
        // Helpers that go take what they were given with them.
        table.core.context.helper = Helper::inline();
        assert!(table.continue_checkpoint(&mut blobs).unwrap().is_none());
        table.core.context.helper = Helper::inline();
        table.clear().unwrap();
        (0..before).for_each(|key| assert!(!table.put(key, [7; 2]).unwrap()));
        lost += u64::from(table.continue_checkpoint(&mut blobs).is_err());
        for key in before..keys {
            assert!(!table.put(key, [7; 2]).unwrap());
            assert!(store.used() <= memory, "{store:?}");
        }
        table.checkpointed(CheckpointOutcome::Abandoned);
        (0..keys).step_by(97).for_each(|key| assert_eq!(table.get(&key).unwrap(), Some(&[7; 2])));
    }
    assert_eq!(lost, 5);
}

/// A rewrite was copying a long record when the state was cleared. What is booked for the copy is not the cleared log's.
#[test]
fn a_copy_that_was_given_up_is_booked_once_whatever_is_cleared() {
    let store = Account::root(8 * MIB);
    let layout = HybridLog::new().segment(64 * KIB);
    let mut table = open::<String>(&layout, &store, true);
    let account = table.core.context.account.clone();
    let empty = account.used_for(MemoryKind::Buffers);
    let fill = |table: &mut HybridLogTable<u64, String>| {
        for key in 0..4000 {
            table.put(key, text(key, 450)).unwrap();
        }
    };
    for clears in 1..4 {
        let helper = table.core.context.helper.clone();
        let booked = Booked::buffers(account.clone(), 64 * KIB);
        table.core.rewriter.leave_copy(&helper, booked);
        for _ in 0..clears {
            fill(&mut table);
            table.clear().unwrap();
        }
        while table.core.release_step() {}
        // The copies end.
        while helper.drive() {}
        table.core.give_up_rewrite();
        assert_eq!(account.used_for(MemoryKind::Buffers), empty, "{clears} times cleared");
    }
    let booked = Booked::buffers(account.clone(), 64 * KIB);
    let helper = table.core.context.helper.clone();
    table.core.rewriter.leave_copy(&helper, booked);
    drop(table);
    assert_eq!(store.used(), 0, "and when it is dropped");
}
