//! Lists, time-ordered maps, windows, timers, counts and values: what is exported adds up to what is in
//! them, whatever was cleared, moved, spilled or is in several pieces.

use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;

use alluvium::backend::{CheckpointOutcome, Merge, Panes, PanesLayout, StateContext, Upkeep};
use alluvium::io::{IoOptions, open_device};
use alluvium::time::nanos;
use alluvium::types::{HeapSize, Schema, hash_word};
use alluvium::{
    AnyLayout, AppendLog, Counting, Elements, Heap, KeyHash, MIB, Store, Time, WindowSegments,
    Windows, process,
};
use alluvium_inspect::ExportOptions;
use alluvium_pagestore::{
    Account, BlobWriter, CODEC, CheckpointImage, HASH_VERSION, Helper, KeyGroups, Manifest,
    SegmentStore, StateManifest,
};
use serde_json::{Value, json};

use crate::common::{all_lines, lines, store};

/// The lines of a state as JSON.
fn of_state(place: &Path, state: &str) -> Vec<Value> {
    let options = ExportOptions { state: Some(state.into()), ..ExportOptions::default() };
    let (lines, done) = lines(place, &options);
    assert!(done.undecoded.is_empty() && !done.cut, "{done:?}");
    lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Elements by slice (0 without one) and key, pieces in the order of their ranks.
fn lists(lines: &[Value]) -> BTreeMap<(i64, String), Vec<Value>> {
    let mut pieces: Vec<_> = lines.iter().enumerate().collect();
    pieces.sort_by_key(|(i, line)| (line["rank"].as_i64().unwrap_or(0), *i));
    let mut lists = BTreeMap::new();
    for (_, line) in pieces {
        let place = (line["slice"].as_i64().unwrap_or(0), line["key"].to_string());
        let elements = line["value"].as_array().unwrap().iter().cloned();
        lists.entry(place).or_insert_with(Vec::new).extend(elements);
    }
    lists
}

#[test]
fn lists_come_out_without_what_was_cleared() {
    for layout in [AnyLayout::from(AppendLog::default()), Heap::new().into()] {
        let place = tempfile::tempdir().unwrap();
        let store = store(place.path(), layout);
        let mut list = store.list::<String, (u32, String)>("list").open().unwrap();
        let mut model: BTreeMap<(i64, String), Vec<Value>> = BTreeMap::new();
        for round in 0..5u32 {
            for n in 0..400u32 {
                let key = format!("key {}", hash_word(u64::from(n + round)) % 60);
                let element = (round * 1000 + n, "x".repeat(n as usize % 30));
                list.append(&key, element.clone()).map_err(|r| r.error).unwrap();
                model.entry((0, json!(key).to_string())).or_default().push(json!(element));
            }
            // A cut in runs, where there are any.
            for n in 0..7 {
                let key = format!("key {}", n * 5 + round);
                list.clear(&key).unwrap();
                model.remove(&(0, json!(key).to_string()));
            }
            store.checkpoint(round.into()).unwrap();
        }
        drop((list, store));
        assert_eq!(lists(&of_state(place.path(), "list")), model);
    }
}

#[test]
fn time_maps_come_out_by_slice() {
    let place = tempfile::tempdir().unwrap();
    let store = store(place.path(), AnyLayout::Auto);
    let mut map = store.time_map::<u64, u8>("map").open(nanos(10)).unwrap();
    let mut model: BTreeMap<(i64, String), Vec<Value>> = BTreeMap::new();
    for n in 0..300i64 {
        let (at, key) = (n * 7 % 100, n as u64 % 5);
        map.insert(&key, Time(at), n as u8).map_err(|r| r.error).unwrap();
        if at >= 40 {
            model.entry((at / 10 * 10, key.to_string())).or_default().push(json!([at, n as u8]));
        }
        if n % 100 == 50 {
            store.checkpoint(1).unwrap();
        }
    }
    while !map.purge(Time(40), 10).unwrap() {}
    store.checkpoint(2).unwrap();
    drop((map, store));
    assert_eq!(lists(&of_state(place.path(), "map")), model);
}

/// Sessions that grow together move their events from bucket to bucket: in the append log these are
/// imports.
#[test]
fn events_of_sessions_are_where_they_were_moved() {
    let place = tempfile::tempdir().unwrap();
    let store = store(place.path(), AnyLayout::Auto);
    let nothing = process(|_: &u64, _, _: &mut dyn Elements<u64>, _: &mut dyn FnMut(())| Ok(()));
    let mut sessions =
        store.holistic::<u64, u64>("sessions").open(Windows::session(nanos(10)), nothing).unwrap();
    let mut model: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for round in 0..8u64 {
        for key in 0..20u64 {
            let at = Time((round * (5 + key % 4)) as i64);
            let event = round * 100 + key;
            let mut batch = vec![(key, at, event)];
            let late = &mut |_| panic!("nothing is late");
            sessions
                .add_batch(Time::MIN, &mut batch, late, &mut |_, _, _, _| panic!("nothing is over"))
                .unwrap();
            model.entry(key).or_default().push(event);
        }
        // So that what is moved next is in runs.
        store.checkpoint(round).unwrap();
    }
    drop((sessions, store));
    let mut found: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for ((_, key), elements) in lists(&of_state(place.path(), "sessions")) {
        let elements = elements.iter().map(|e| e.as_u64().unwrap());
        found.entry(key.parse().unwrap()).or_default().extend(elements);
    }
    assert_eq!(found, model);
}

/// What the parts of each slice add up to.
fn sums(lines: &[Value]) -> BTreeMap<(i64, String), i64> {
    let mut sums = BTreeMap::new();
    for line in lines {
        let place = (line["slice"].as_i64().unwrap(), line["key"].as_str().unwrap().to_owned());
        *sums.entry(place).or_insert(0) += line["value"].as_i64().unwrap();
    }
    sums
}

#[test]
fn windows_come_out_by_slice_and_part() {
    let mut runs = 0;
    for layout in [WindowSegments::new().into(), AnyLayout::from(Heap::new())] {
        let place = tempfile::tempdir().unwrap();
        let small = matches!(layout, AnyLayout::WindowSegments(_));
        let memory = if small { MIB } else { 16 * MIB };
        let store = Store::builder(place.path())
            .memory(memory)
            .max_value(4096)
            .layout(layout)
            .open()
            .unwrap();
        let windows = Windows::tumbling(nanos(1000));
        let mut counts =
            store.aggregated::<String, (), Counting>("counts").open(windows, Counting).unwrap();
        let mut model = BTreeMap::new();
        for part in 0..80u64 {
            let mut batch = Vec::new();
            for n in 0..400 {
                let key = format!("a key of some length {:08}", hash_word(part * 400 + n) % 9000);
                let at = (part as i64 * 50 + n as i64) % 3000;
                *model.entry((at / 1000 * 1000, key.clone())).or_insert(0) += 1;
                batch.push((key, Time(at), ()));
            }
            counts.add_batch(Time::MIN, &mut batch, &mut |_| (), &mut |_, _, _, _| ()).unwrap();
            assert!(batch.is_empty());
        }
        store.checkpoint(1).unwrap();
        drop((counts, store));
        let lines = of_state(place.path(), "counts");
        runs += lines.iter().filter(|line| line["part"].as_u64().is_some_and(|p| p > 1)).count();
        assert_eq!(sums(&lines), model);
    }
    assert!(runs > 0, "no slice was in several parts");
}

#[test]
fn counts_values_and_timers_are_records() {
    let place = tempfile::tempdir().unwrap();
    let store = store(place.path(), AnyLayout::Auto);
    let mut count = store.count::<char>("count").open().unwrap();
    let mut value = store.value::<Vec<u8>>("value").open().unwrap();
    let mut timers = store.timers::<u32>("timers").unwrap();
    count.add(&'x', -3).unwrap();
    value.set(vec![1, 2]).map_err(|r| r.error).unwrap();
    timers.set(7, Time(5)).unwrap();
    store.checkpoint(1).unwrap();
    drop((count, value, timers, store));
    assert_eq!(
        all_lines(place.path()),
        [
            r#"{"state":"count","key":"x","value":-3}"#,
            r#"{"state":"timers","key":[5,7],"value":null}"#,
            r#"{"state":"value","key":null,"value":[1,2]}"#,
        ]
    );
}

/// A key that is described by hand, so that it cannot be decoded.
#[derive(Clone, Debug, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
struct ByHand(u64);

impl Schema for ByHand {
    fn describe(out: &mut String) {
        out.push_str("ByHand@1");
    }
}

impl HeapSize for ByHand {
    const NO_HEAP: bool = true;
    fn heap_bytes(&self) -> usize {
        0
    }
}

impl KeyHash for ByHand {
    fn key_hash(&self) -> u64 {
        hash_word(self.0)
    }
}

#[test]
fn of_lists_whose_keys_are_unknown_nothing_that_was_cleared_comes_out() {
    let place = tempfile::tempdir().unwrap();
    let store = store(place.path(), AnyLayout::Auto);
    let mut list = store.list::<ByHand, u64>("list").open().unwrap();
    let mut other = store.map::<u8, u8>("other").open().unwrap();
    list.append(&ByHand(1), 7).map_err(|r| r.error).unwrap();
    other.put(1, 2).map_err(|r| r.error).unwrap();
    store.checkpoint(1).unwrap();
    drop((list, other, store));
    let (found, done) = lines(place.path(), &ExportOptions::default());
    assert_eq!((found.len(), done.undecoded.len(), done.skipped.len()), (2, 1, 0), "{found:?}");
    let store = crate::common::store(place.path(), AnyLayout::Auto);
    let mut list = store.list::<ByHand, u64>("list").open().unwrap();
    list.clear(&ByHand(1)).unwrap();
    list.append(&ByHand(1), 8).map_err(|r| r.error).unwrap();
    store.checkpoint(2).unwrap();
    drop((list, store));
    let (found, done) = lines(place.path(), &ExportOptions::default());
    assert_eq!(found, [r#"{"state":"other","key":1,"value":2}"#]);
    assert!(done.skipped["list"].contains("ByHand@1"), "{done:?}");
}

/// Window segments by themselves, as few windows remove single keys: what was removed is in runs still,
/// and cut off by the table.
#[test]
fn panes_come_out_without_what_was_removed() {
    let place = tempfile::tempdir().unwrap();
    let device = open_device(place.path(), &IoOptions::default()).unwrap();
    let segments = SegmentStore::new(device.clone(), 1);
    let root = Account::root(MIB);
    let context = StateContext {
        name: "panes".into(),
        account: Account::below(&root, "panes", u64::MAX),
        segments: Some(segments.clone()),
        helper: Helper::inline(),
        max_value_bytes: 4 << 10,
        key_groups: 256,
        owned: 0..256,
        movable: false,
        restored: None,
    };
    let merge: Merge<i64> = Rc::new(|sum: &mut i64, later: &i64| *sum += later);
    let mut panes =
        PanesLayout::<String, i64>::open_panes(&WindowSegments::new(), context, merge).unwrap();
    let mut model = BTreeMap::new();
    let mut removed_late = 0;
    for n in 0..40_000u64 {
        if n == 39_980 {
            // What changes after it leaves a dead table among those that are named again.
            let mut blobs = BlobWriter::new(device.clone(), 9, 8 << 10);
            panes.checkpoint(&mut blobs).unwrap();
            blobs.finish().unwrap();
            panes.checkpointed(CheckpointOutcome::Committed);
        }
        let slice = if n < 39_980 { hash_word(n) % 8 } else { 5 };
        let key = format!("a key of some length {:06}", hash_word(n + 9) % 6000);
        let place = (slice as i64, key.clone());
        if n % 7 == 3 {
            panes.remove(Time(slice as i64), &key).unwrap();
            removed_late += u64::from(model.remove(&place).is_some() && n > 30_000);
        } else {
            panes.update(Time(slice as i64), &key, || 0, |sum| *sum += n as i64).unwrap();
            *model.entry(place).or_insert(0) += n as i64;
        }
    }
    let mut blobs = BlobWriter::new(device.clone(), 1, 8 << 10);
    let image = panes.checkpoint(&mut blobs).unwrap();
    blobs.finish().unwrap();
    let names = ["panes", "panes", "window-segments", "String", "i64"].map(String::from);
    let [name, primitive, layout, key, value] = names;
    let image = CheckpointImage {
        number: 1,
        next_segment: segments.peek_id(),
        hash_version: HASH_VERSION,
        codec: CODEC.into(),
        key_groups: 256,
        owned: (0, 256),
        after: 0,
        position: 0,
        states: vec![StateManifest {
            definition: None,
            over: None,
            name,
            primitive,
            layout,
            key,
            value,
            unit: None,
            groups: None,
            going: KeyGroups::default(),
            image,
        }],
    };
    let file = image.write(&*device).unwrap();
    Manifest { checkpoints: vec![file] }.commit(&*device).unwrap();
    drop((panes, segments, device));
    let lines = of_state(place.path(), "panes");
    assert!(removed_late > 100 && lines.len() > model.len(), "{removed_late} {}", lines.len());
    assert_eq!(sums(&lines), model);
}
