//! How much a fold of packed slices reads, and in how many calls.

use std::collections::BTreeMap;
use std::sync::Arc;

use alluvium_layouts::{AppendLog, AppendLogLists, CheckpointOutcome, Cursor, Lists, Upkeep};
use alluvium_pagestore::Time;
use alluvium_pagestore::io::{Device, Faults, Simulated};

use crate::common::{Ground, folded};
use crate::groups::in_order;

type Element = [u64; 4];

fn open(memory: u64) -> (Ground, Simulated, AppendLogLists<u64, Element>) {
    let device = Simulated::new(5, Faults::none());
    let mut ground = Ground::new(Some(Arc::new(device.clone())), memory, false);
    let (lists, _) = ground.open(&AppendLog::new().pack_all()).unwrap();
    (ground, device, lists)
}

/// A window that fires in parts, with appends in between, loads its slices again for each part: that takes no more calls.
#[test]
fn a_window_fires_in_as_many_calls_beside_appends() {
    let (slices, keys, each_call) = (1_500, 1_500, 50);
    let (_ground, _, mut lists) = open(64 << 20);
    lists.fold_at_once(slices as i128);
    let mut wanted: BTreeMap<u64, Vec<Element>> = BTreeMap::new();
    for slice in 0..slices {
        for n in 0..3 {
            let key = (slice * 3 + n) % keys;
            lists.append(Time(slice as i64), &key, [n; 4]).unwrap();
            wanted.entry(key).or_default().push([n; 4]);
        }
    }
    lists.reclaim(u64::MAX).unwrap();
    let (mut cursor, mut calls) = (Cursor::default(), 0);
    let mut found: BTreeMap<u64, Vec<Element>> = BTreeMap::new();
    while !cursor.done {
        let fold =
            lists.fold(Time(0)..Time(slices as i64), &mut cursor, each_call, &mut |key, list| {
                while let Some(element) = list.next()? {
                    found.entry(*key).or_default().push(*element);
                }
                Ok(())
            });
        fold.unwrap();
        calls += 1;
        // A list that is new, so that it looks for room.
        lists.append(Time(slices as i64), &(keys + calls), [0; 4]).unwrap();
    }
    assert_eq!(found, wanted);
    let least = slices * 3 / each_call as u64;
    assert!(calls <= least + 10, "{calls} calls, where {least} are enough for what is told");
}

/// What was cleared between two slices is passed over once, and then no further.
#[test]
fn slices_that_are_far_apart_are_read_without_what_is_between() {
    let (slices, elements) = (2_000, 30);
    let (_ground, device, mut lists) = open(4 << 20);
    for slice in 0..slices {
        for n in 0..elements {
            lists.append(Time(slice), &7, [n; 4]).unwrap();
        }
    }
    lists.reclaim(u64::MAX).unwrap();
    let stays = |slice: i64| matches!(slice, 0 | 1 | 1_000) || slice == slices - 1;
    for slice in (0..slices).filter(|slice| !stays(*slice)) {
        lists.clear_key(Time(slice), &7).unwrap();
    }
    let all = device.used_bytes();
    let before = device.stats().bytes_read;
    let found = folded(&mut lists, Time(0)..Time(slices), 1_000).unwrap();
    let list: Vec<Element> = (0..4).flat_map(|_| (0..elements).map(|n| [n; 4])).collect();
    assert_eq!(found, BTreeMap::from([(7, list)]));
    let read = device.stats().bytes_read - before;
    assert!(read > 0 && read <= all / 3, "{read} bytes of {all} were read for four slices");
}

/// Visits of other buckets, as those of key groups that move, do not have a fold begin anew for ever.
#[test]
fn a_fold_comes_to_its_end_beside_visits_of_many_buckets() {
    let slices = 1_500;
    for visits in [4, 8] {
        let device = Simulated::new(5, Faults::none());
        let mut ground = Ground::new(Some(Arc::new(device)), 64 << 20, false);
        ground.movable = true;
        let (mut lists, _) = ground.open::<u64, Element, _>(&AppendLog::new().pack_all()).unwrap();
        lists.fold_at_once(slices as i128);
        (0..slices).for_each(|slice| lists.append(Time(slice), &7, [slice as u64; 4]).unwrap());
        lists.reclaim(u64::MAX).unwrap();
        let (mut cursor, mut calls, mut told) = (Cursor::default(), 0, 0);
        while !cursor.done {
            let fold =
                lists.fold(Time(0)..Time(slices), &mut cursor, usize::MAX, &mut |_, list| {
                    while list.next()?.is_some() {
                        told += 1;
                    }
                    Ok(())
                });
            fold.unwrap();
            calls += 1;
            assert!(calls < 20, "the fold does not come to its end beside {visits} visits");
            for visit in 0..visits {
                let (mut cursor, mut seen) = (Cursor::default(), 0);
                while !cursor.done {
                    let slice = Time(visit * 100);
                    let hashes = 0..=u64::MAX;
                    let visited = in_order(&mut lists).visit_hashes(
                        slice,
                        &hashes,
                        &mut cursor,
                        100,
                        &mut |_, _, run| {
                            seen += run.len();
                            Ok(())
                        },
                    );
                    visited.unwrap();
                }
                assert_eq!(seen, 1, "slice {}", visit * 100);
            }
        }
        assert_eq!(told, slices);
    }
}

/// A checkpoint gives the few small slices of the moment runs of their own, unless there have been many.
#[test]
fn slices_are_packed_beside_regular_checkpoints() {
    let (memory, slices) = (1 << 20, 6_000);
    let device = Simulated::new(5, Faults::none());
    let mut ground = Ground::new(Some(Arc::new(device)), memory, false);
    let (mut lists, account) =
        ground.open::<u64, Element, _>(&AppendLog::new().packs_slices(true)).unwrap();
    for slice in 0..slices {
        lists.append(Time(slice), &7, [slice as u64; 4]).unwrap_or_else(|refused| {
            panic!("{slice}: {}", refused.error);
        });
        if slice % 10 == 9 {
            ground.checkpoint(&mut lists, CheckpointOutcome::Committed).unwrap();
        }
    }
    assert!(account.used() < memory * 3 / 4 && account.stats().peak <= memory, "{account:?}");
    for slice in (0..slices).step_by(97) {
        let found = folded(&mut lists, Time(slice)..Time(slice + 1), 100).unwrap();
        assert_eq!(found, BTreeMap::from([(7, vec![[slice as u64; 4]])]));
    }
}
