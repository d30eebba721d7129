//! What a checkpoint writes, when, and what goes on meanwhile: changes, other states that want memory, and rewriting.

use std::collections::BTreeMap;

use alluvium_pagestore::{Account, BlobWriter, MIB, MemoryKind, Rewrite, RewriteProgress, State};

use super::{blobs_of, open, text};
use crate::contract::table::{CheckpointOutcome, Pace, Table};
use crate::contract::upkeep::Upkeep;
use crate::hybrid_log::log::Log;
use crate::hybrid_log::{HybridLog, HybridLogTable};

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
