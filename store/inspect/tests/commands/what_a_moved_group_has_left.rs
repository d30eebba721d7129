//! Directories of two stores between which a key group has moved: sound, and what is exported of both is
//! what there is, each once.
//!
//! What this catches: accumulators and lists told that a group has left behind in runs; lists told of which
//! nobody knows whether they are live, as their keys' hash is the user's own; damage seen where a catalog tells
//! of gaps.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use alluvium::config::Helpers;
use alluvium::moving::{KeyGroup, Mover};
use alluvium::time::nanos;
use alluvium::{
    Aggregated, AnyLayout, AppendLog, Counting, KIB, KeyHash, List, MIB, Store, Time,
    WindowSegments, Windows,
};
use alluvium_inspect::{ClosedDirectory, ExportOptions, inspect, verify};
use serde_json::Value;

use crate::common::lines;

const GROUPS: u16 = 8;
const KEYS: u64 = 4000;

fn group_of(key: u64) -> KeyGroup {
    KeyGroup::of(key.key_hash(), GROUPS)
}

struct Side {
    store: Store,
    mover: Mover,
    windows: Aggregated<u64, (), Counting>,
    lists: List<u64, u64>,
}

fn open(place: &Path, owned: std::ops::Range<u16>) -> Side {
    let store = Store::builder(place)
        .memory(4 * MIB)
        .max_value(4 * KIB)
        .key_groups(GROUPS)
        .owned_groups(owned)
        .helpers(Helpers::Inline)
        .open()
        .unwrap();
    let mover = store.mover("unit").unwrap();
    let layout = AnyLayout::from(WindowSegments::new().memory(256 * KIB));
    let windows = store.aggregated("windows").layout(layout).moved_by(&mover);
    let windows = windows.open(Windows::tumbling(nanos(1000)), Counting).unwrap();
    let layout = AnyLayout::from(AppendLog::new());
    let lists = store.list("lists").layout(layout).moved_by(&mover).open().unwrap();
    Side { store, mover, windows, lists }
}

/// The lines of a state, as JSON, and whether it was left out.
fn of_state(place: &Path, state: &str) -> (Vec<Value>, bool) {
    let options = ExportOptions { state: Some(state.into()), ..ExportOptions::default() };
    let (lines, done) = lines(place, &options);
    (
        lines.iter().map(|l| serde_json::from_str(l).unwrap()).collect(),
        done.skipped.contains_key(state),
    )
}

#[test]
fn what_has_left_is_not_told_twice() {
    let places = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let mut sides = [open(places[0].path(), 0..4), open(places[1].path(), 4..8)];
    let group = KeyGroup(2);
    let mut model = BTreeMap::new();
    for key in 0..KEYS {
        let side = &mut sides[usize::from(group_of(key).0 >= 4)];
        let mut batch: Vec<_> = (0..3).map(|n| (key, Time(n * 700), ())).collect();
        let nothing = &mut |_: &u64, _, _, _| panic!("no window is over");
        side.windows.add_batch(Time::MIN, &mut batch, &mut |_| (), nothing).unwrap();
        side.lists.append(&key, key).map_err(|r| r.error).unwrap();
        *model.entry((0, key)).or_insert(0) += 2;
        *model.entry((1000, key)).or_insert(0) += 1;
    }
    sides.iter().for_each(|side| assert!(side.store.checkpoint(1).is_ok()));
    let [left, right] = &sides;
    let mut rest = left.mover.begin(group).unwrap();
    while let Some(chunk) = left.mover.next_chunk(&mut rest, 16 << 10).unwrap() {
        right.mover.install(&chunk).unwrap();
    }
    while !left.mover.forget(group, 1000).unwrap() {}
    let runs = |side: &Side| -> u64 {
        side.store.stats().unwrap().states.iter().map(|state| state.table.flushed_bytes).sum()
    };
    assert!(runs(left) > 0, "nothing was on storage");
    sides.iter().for_each(|side| assert!(side.store.checkpoint(2).is_ok()));
    drop(sides);
    let (mut sums, mut listed) = (BTreeMap::new(), BTreeSet::new());
    for (at, place) in places.iter().enumerate() {
        let directory = ClosedDirectory::open(place.path()).unwrap();
        assert!(verify(&directory).unwrap().is_sound());
        assert!(inspect(&directory).unwrap().trouble.is_empty());
        drop(directory);
        let (windows, is_left_out) = of_state(place.path(), "windows");
        assert!(!is_left_out);
        for line in windows {
            let key = line["key"].as_u64().unwrap();
            let is_here = (group_of(key).0 >= 4 || group_of(key) == group) == (at == 1);
            assert!(is_here, "{key} is told of store {at}");
            let place = (line["slice"].as_i64().unwrap(), key);
            *sums.entry(place).or_insert(0) += line["value"].as_i64().unwrap();
        }
        let (lists, is_left_out) = of_state(place.path(), "lists");
        assert!(!is_left_out);
        for line in lists {
            let key = line["key"].as_u64().unwrap();
            let is_here = (group_of(key).0 >= 4 || group_of(key) == group) == (at == 1);
            assert!(is_here, "{key} is told of store {at}");
            assert_eq!(line["value"], serde_json::json!([key]));
            assert!(listed.insert(key), "{key} is told twice");
        }
    }
    assert_eq!(listed.len() as u64, KEYS);
    assert!(sums == model, "other sums");
    // Opened again it has what it had.
    let mut left = open(places[0].path(), 0..4);
    for key in (0..KEYS).filter(|key| group_of(*key).0 < 4) {
        let there = left.lists.to_vec(&key).unwrap();
        assert_eq!(there, if group_of(key) == group { vec![] } else { vec![key] });
    }
}

/// A key whose hash does not follow from its type.
#[derive(
    Clone,
    Debug,
    PartialEq,
    Eq,
    alluvium::State,
    rkyv::Archive,
    rkyv::Serialize,
    rkyv::Deserialize
)]
struct Own(u64);

impl KeyHash for Own {
    fn key_hash(&self) -> u64 {
        (self.0 + 1).key_hash()
    }
}

#[test]
fn lists_whose_keys_have_a_hash_of_their_own_are_left_out_when_a_group_has_left() {
    let place = tempfile::tempdir().unwrap();
    let store = Store::builder(place.path()).memory(4 * MIB).key_groups(GROUPS).open().unwrap();
    let mover = store.mover("unit").unwrap();
    let layout = AnyLayout::from(AppendLog::new());
    let mut lists = store.list::<Own, u64>("lists").layout(layout).moved_by(&mover).open().unwrap();
    (0..KEYS).for_each(|key| lists.append(&Own(key), key).map_err(|r| r.error).unwrap());
    store.checkpoint(1).unwrap();
    let told = |place: &Path| of_state(place, "lists");
    let mut rest = mover.begin(KeyGroup(2)).unwrap();
    while mover.next_chunk(&mut rest, 16 << 10).unwrap().is_some() {}
    while !mover.forget(KeyGroup(2), 1000).unwrap() {}
    store.checkpoint(2).unwrap();
    drop((lists, mover, store));
    let (lines, is_left_out) = told(place.path());
    assert!(is_left_out && lines.is_empty());
}
