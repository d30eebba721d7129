//! The shares of a checkpoint go to the states of a store in turn: each follows its own stream, none does more than
//! when it is alone, and a state for which there is no memory waits for those that have it.
//!
//! What this catches: a state that is written at once because others come after it, one that is not come to before others
//! are whole, a checkpoint that fails where its states had room one after the other, or that does not end in its time.

use std::collections::BTreeMap;
use std::sync::Arc;

use alluvium::config::Helpers;
use alluvium::io::{Faults, Simulated};
use alluvium::{AnyLayout, Heap, HybridLog, KIB, MIB, Map, Store};

use crate::common::Standing;

const PACE: u64 = 8;
/// Calls of each state before each share: each that is asked for is given.
const CALLS: u64 = 256;

fn open(memory: u64) -> (Simulated, Store) {
    let device = Simulated::new(1, Faults::none());
    let store = Store::in_memory().memory(memory).device(Arc::new(device.clone()));
    let store = store.clock(Arc::new(Standing)).helpers(Helpers::Inline);
    (device, store.open().unwrap())
}

/// What was done in a share, and what was written of each state after it.
struct Share {
    pages: u64,
    looks: u64,
    written: Vec<u64>,
}

/// Shares of a checkpoint of states with so many keys, all of which have changed, with so many calls of each state before
/// each.
fn shares(keys: &[u64], calls: u64) -> Vec<Share> {
    let (_, store) = open(64 * MIB);
    let layout = HybridLog::new().page_records(32).checkpoint_pace(PACE as u32);
    let mut maps: Vec<Map<u64, u64>> = Vec::new();
    for nth in 0..keys.len() {
        let map = store.map(&format!("map-{nth}")).layout(layout.clone().into());
        maps.push(map.open().unwrap());
    }
    // The same part of each changes between two checkpoints, in a time that lets it follow.
    for round in 0..2 {
        for (map, keys) in maps.iter_mut().zip(keys) {
            let calls = if round == 0 { *keys } else { 40 * keys };
            for call in 0..calls {
                map.update(&(call % keys), || 0, |value| *value += 1).unwrap();
            }
        }
        if round == 0 {
            store.checkpoint(1).unwrap();
        }
    }
    let mut seal = store.seal(2).unwrap();
    let of = |maps: &[Map<u64, u64>]| -> Vec<_> {
        maps.iter().map(|map| map.stats().unwrap()).collect()
    };
    let began = of(&maps);
    let mut shares = Vec::new();
    loop {
        for (map, keys) in maps.iter_mut().zip(keys) {
            (0..calls).for_each(|call| map.update(&(call * 31 % keys), || 0, |v| *v += 1).unwrap());
        }
        let before = of(&maps);
        let is_whole = seal.advance().unwrap();
        let after = of(&maps);
        let pages =
            |all: &[alluvium::stats::TableStats]| all.iter().map(|s| s.pages_flushed).sum::<u64>();
        let looks = |all: &[alluvium::stats::TableStats]| {
            all.iter().map(|s| s.checkpoint_looks).sum::<u64>()
        };
        shares.push(Share {
            pages: pages(&after) - pages(&before),
            looks: looks(&after) - looks(&before),
            written: after.iter().zip(&began).map(|(a, b)| a.codec_calls - b.codec_calls).collect(),
        });
        if is_whole {
            seal.confirm().unwrap();
            return shares;
        }
        assert!(shares.len() < 100_000, "it never ends");
    }
}

#[test]
fn no_share_does_more_with_several_states_and_each_follows_its_stream() {
    let most = |shares: &[Share]| {
        let pages = shares.iter().map(|share| share.pages).max().unwrap();
        (pages, shares.iter().map(|share| share.looks).max().unwrap())
    };
    let all = [vec![8000, 8000], vec![8000, 2000], vec![2000, 8000, 500], vec![4000, 500, 8000]];
    for keys in all {
        let several = shares(&keys, CALLS);
        // As many calls of one.
        let one = shares(&[8000], CALLS * keys.len() as u64);
        let (pages, looks) = most(&several);
        // A state whose time is over follows nothing, but hands on four pages at the most; what a share has earned and
        // not used is for the next.
        let (pages_max, looks_max) = (most(&one).0.max(4), most(&one).1 + 2 * 32);
        assert!(
            pages <= pages_max && looks <= looks_max,
            "{keys:?}: {pages}, {looks} of {looks_max}"
        );
        for (nth, share) in several.iter().enumerate() {
            let calls = CALLS * (nth as u64 + 1);
            for (written, keys) in share.written.iter().zip(&keys) {
                // By calls, or by the time, of which half of 40 calls for each key is all.
                let by_time = keys * calls / (20 * keys) + 1;
                let earned = (calls / PACE).max(by_time) + 8 * 32;
                assert!(*written <= earned, "{written} of {keys} after {calls} calls each");
            }
        }
        // None waits until others are whole.
        let (first, last) = (&several[several.len() / 4].written, several.last().unwrap());
        assert!(first.iter().all(|written| *written > 0), "{keys:?}: {first:?}");
        for (written, keys) in last.written.iter().zip(&keys) {
            assert!(written >= keys, "{keys}: {written}");
        }
        // Half of the interval is all of the time, and then it goes on as fast as shares do.
        let time = 20 * keys.iter().max().unwrap() / CALLS;
        assert!((several.len() as u64) < time + 200, "{keys:?}: {} shares", several.len());
    }
}

#[test]
fn a_caller_who_waits_waits_for_no_stream() {
    let (_, store) = open(64 * MIB);
    let layout = HybridLog::new().page_records(32).checkpoint_pace(1000);
    let mut maps: Vec<Map<u64, u64>> = Vec::new();
    for nth in 0..3 {
        let map = store.map(&format!("map-{nth}")).layout(layout.clone().into());
        maps.push(map.open().unwrap());
        (0..3000).for_each(|key| assert!(!maps[nth].put(key, key).unwrap()));
    }
    store.checkpoint(1).unwrap();
    maps.iter_mut().for_each(|map| (0..3000).for_each(|key| _ = map.put(key, 7).unwrap()));
    let mut seal = store.seal(2).unwrap();
    let mut shares = 0;
    while !seal.advance().unwrap() {
        shares += 1;
    }
    assert!(shares < 600, "{shares}");
    seal.confirm().unwrap();
}

/// Each state needs buffers to be written with: so many at once there is no room for.
#[test]
fn states_without_memory_to_be_written_with_wait_for_others() {
    let (mut has_room_for_none, mut has_room_for_some) = (0, 0);
    for free in (1..40).map(|nth| nth * 8 * KIB) {
        let (device, store) = open(MIB);
        let mut maps: Vec<Map<u64, String>> = Vec::new();
        let mut model = BTreeMap::new();
        for nth in 0..6 {
            let map = store.map(&format!("map-{nth}")).layout(Heap::new().into());
            maps.push(map.open().unwrap());
        }
        for key in 0..1200u64 {
            let value = format!("{key:040}");
            maps[key as usize % 6].put(key, value.clone()).unwrap();
            model.insert(key, value);
        }
        // Others have all but so much.
        let mut others = Vec::new();
        while let Ok(some) = store.reserve(4 * KIB, "others") {
            others.push(some);
        }
        others.truncate(others.len() - (free / (4 * KIB)) as usize);
        let checkpoint = store.checkpoint(1);
        drop(others);
        println!("{free} free: {checkpoint:?}");
        let Ok(checkpoint) = checkpoint else {
            // A buffer for one of them is enough.
            assert!(free < 128 * KIB, "{:?}", checkpoint.unwrap_err());
            has_room_for_none += 1;
            continue;
        };
        has_room_for_some += 1;
        assert_eq!(checkpoint.entries, 1200);
        drop((maps, store));
        let store = Store::in_memory().memory(4 * MIB).device(Arc::new(device));
        let store = store.helpers(Helpers::Inline).open().unwrap();
        for nth in 0..6 {
            let map = store.map::<u64, String>(&format!("map-{nth}"));
            let mut map = map.layout(AnyLayout::from(Heap::new())).open().unwrap();
            for (key, value) in model.iter().filter(|(key, _)| *key % 6 == nth) {
                assert_eq!(map.get(key).unwrap().as_deref(), Some(value));
            }
        }
    }
    assert!(has_room_for_some > 20 && has_room_for_none > 0, "{has_room_for_some}");
}
