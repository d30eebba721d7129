//! Large slices: what reading them takes, one or all of a window, and what moving them out does to what is packed
//! meanwhile.

use std::collections::BTreeMap;
use std::sync::mpsc;
use std::time::Duration;

use alluvium_pagestore::{Helper, MemoryKind, Time};

use super::tests::{Element, Ground, Large};
use crate::append_log::AppendLog;
use crate::contract::lists::Lists;
use crate::contract::table::Cursor;
use crate::contract::upkeep::Upkeep;

const MEMORY: u64 = 1 << 20;

fn packing() -> AppendLog {
    AppendLog::new().packs_slices(true)
}

fn fold(large: &mut Large, slices: std::ops::Range<i64>) -> BTreeMap<u64, Vec<Element>> {
    let (mut cursor, mut found) = (Cursor::default(), BTreeMap::<u64, Vec<Element>>::new());
    while !cursor.done {
        let window = Time(slices.start)..Time(slices.end);
        let step = large.ground.lists.fold(window, &mut cursor, 100, &mut |key, list| {
            let all = found.entry(*key).or_default();
            while let Some(element) = list.next()? {
                all.push(*element);
            }
            Ok(())
        });
        step.unwrap_or_else(|error| panic!("{slices:?}: {error}"));
    }
    found
}

fn wanted(large: &Large, slices: std::ops::Range<i64>) -> BTreeMap<u64, Vec<Element>> {
    let mut wanted = BTreeMap::<u64, Vec<Element>>::new();
    for lists in large.model.range(slices).map(|(_, lists)| lists) {
        for (key, list) in lists {
            wanted.entry(*key).or_default().extend(list);
        }
    }
    wanted
}

/// A window that was accepted fires, whether its slices are packed or have runs of their own.
#[test]
fn windows_of_large_slices_are_folded_in_the_memory_that_appends_left() {
    for slices in [2i64, 4, 6] {
        let mut large = Large::new(MEMORY, 1);
        large.ground.lists.fold_at_once(slices.into());
        large.stream(90, 12, 900);
        let packed = large.ground.lists.core.packed.as_ref().unwrap().directory.len();
        assert!(slices > 2 || packed > 0, "more of them get runs of their own");
        for first in (0..90).step_by(7) {
            let window = first..first + slices;
            assert!(fold(&mut large, window.clone()) == wanted(&large, window), "{first}");
        }
        let image = large.ground.checkpoint();
        large.ground.reopen(&packing(), image);
        large.ground.lists.fold_at_once(slices.into());
        large.stream(0, 1, 1);
        for first in (3..90).step_by(9) {
            let window = first..first + slices;
            assert!(fold(&mut large, window.clone()) == wanted(&large, window), "{first}");
        }
        assert!(large.ground.lists.core.account.stats().peak <= MEMORY);
    }
}

/// Where nothing is free but what reading one slice part by part takes, its parts are the least ones.
#[test]
fn a_large_slice_is_read_in_the_least_memory_that_it_takes() {
    let mut large = Large::new(MEMORY, 1);
    large.stream(120, 1, 1_500);
    large.ground.lists.reclaim(u64::MAX).unwrap();
    let core = &large.ground.lists.core;
    let packed = core.packed.as_ref().unwrap();
    let most = packed.directory.within(Time::MIN..=Time::MAX).max_by_key(|(_, slice)| slice.bytes);
    let (time, slice) = most.unwrap();
    assert!(!core.is_loaded_whole(slice), "{} bytes", slice.bytes);
    let needed = packed.paged_bytes() + packed.paging_bytes();
    let account = core.account.clone();
    let taken = account.available() - needed;
    account.charge(MemoryKind::Buffers, taken);
    large.check(time.0);
    account.release(MemoryKind::Buffers, taken);
    assert!(account.stats().peak <= MEMORY);
}

/// Whoever goes through a large slice part by part reads it once, and once more to come back to a list:
/// three times on most runs, but merges go on as the device is quick or slow.
#[test]
fn a_call_reads_a_large_slice_a_few_times_at_most() {
    for keys in [1, 40] {
        let mut large = Large::new(MEMORY, keys);
        large.stream(120, 1, 1_500);
        large.ground.lists.reclaim(u64::MAX).unwrap();
        let core = &large.ground.lists.core;
        let packed = core.packed.as_ref().unwrap();
        let all = packed.directory.within(Time::MIN..=Time::MAX);
        let (time, slice) = all.max_by_key(|(_, slice)| slice.bytes).unwrap();
        let levels = packed.levels.len() as u64;
        assert!(slice.bytes > 5 * packed.part_bytes.0, "{} bytes", slice.bytes);
        // A part begins with a directory, and blocks of which a part is read.
        let most = 5 * slice.bytes + (slice.bytes / packed.part_bytes.0 + levels) * (32 << 10);
        let read = |large: &Large| large.ground.device.stats().bytes_read;
        let start = read(&large);
        large.check(time.0);
        let folded = read(&large) - start;
        assert!(folded < most, "{folded} of {} bytes in {levels} levels", slice.bytes);
        large.clear(time.0, 0);
        let cleared = read(&large) - start - folded;
        assert!(cleared < most, "{cleared} of {} bytes in {levels} levels", slice.bytes);
        large.check(time.0);
        println!("{} bytes, {levels} levels: {folded} folded, {cleared} cleared", slice.bytes);
    }
}

/// Large slices do not wait for merges of levels: they get runs of their own while there are too many.
#[test]
fn large_slices_are_written_while_merges_of_levels_do_not_go_on() {
    let memory = 2 * MEMORY;
    let mut large = Large::new(memory, 1);
    large.stream(250, 1, 2_000);
    assert!(large.ground.lists.core.packed.as_ref().unwrap().packs_large);
    large.ground.hold_merges(true);
    // Small ones, until they wait.
    let mut small = 1_000;
    large.ground.lists.reclaim(u64::MAX).unwrap();
    while !large.ground.lists.core.waits_for_merges() {
        (small..small + 4).for_each(|slice| large.ground.append(slice, 0..2));
        small += 4;
        assert!(small < 3_000, "levels become many");
        large.ground.lists.reclaim(u64::MAX).unwrap();
    }
    let own = large.ground.with_runs().len();
    for slice in 5_000..5_050 {
        large.ground.append(slice, 0..1_200);
    }
    assert!(large.ground.with_runs().len() > own);
    for slice in 5_000..5_050 {
        assert!(large.ground.fold(slice).into_iter().eq((0..1_200).map(|n| [n; 4])), "{slice}");
    }
    assert!(large.ground.lists.core.account.stats().peak <= memory);
}

/// What is packed of a slice is older than all of its runs. A slice that becomes a run while more of it is being packed
/// keeps that as a run too.
#[test]
fn what_is_being_packed_of_a_slice_that_is_moved_out_stays_a_run() {
    let helper = Helper::thread().unwrap();
    let layout = AppendLog::new().pack_all().patience(Duration::from_secs(600));
    let mut ground = Ground::with_helper(&layout, 4 << 20, helper.clone());
    let finish = |ground: &mut Ground| {
        ground.lists.reclaim(u64::MAX).unwrap();
        let core = &mut ground.lists.core;
        while core.jobs.pending() > 0 {
            if let Some(answer) = core.jobs.wait() {
                core.take(answer);
            }
        }
    };
    ground.append(5, 0..3);
    finish(&mut ground);
    assert!(ground.lists.core.is_packed(Time(5)));
    ground.append(5, 3..6);
    // The helper does nothing until it may go on.
    let (go_on, waits) = mpsc::channel::<()>();
    helper.submit(move || assert!(waits.recv().is_err(), "nothing is sent"));
    let core = &mut ground.lists.core;
    core.freeze_all();
    let frozen = core.unwritten();
    assert_eq!(frozen.len(), 1);
    assert!(core.write(frozen) && core.packed.as_ref().unwrap().going.len() == 1);
    let slice = core.packed.as_ref().unwrap().directory.get(Time(5)).unwrap();
    core.move_out(Time(5), slice).unwrap();
    assert!(!core.is_packed(Time(5)) && core.packed.as_ref().unwrap().going.len() == 1);
    drop(go_on);
    finish(&mut ground);
    assert!(!ground.lists.core.is_packed(Time(5)), "it would be older than the run before it");
    for last in 7..16 {
        ground.append(5, last - 1..last);
        finish(&mut ground);
        assert!(ground.fold(5).into_iter().eq((0..last).map(|n| [n; 4])), "{last}");
    }
    // Merged, and cleared of another key.
    ground.lists.clear_key(Time(5), &8).unwrap();
    finish(&mut ground);
    assert!(ground.fold(5).into_iter().eq((0..15).map(|n| [n; 4])));
    assert_eq!(ground.lists.len(), 15);
}
