//! Sources that do not make a whole are refused by name; two stores made of one checkpoint are
//! independent of each other, and what they were made of stays as it is, byte for byte.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use alluvium::io::{Device, Faults, Simulated};
use alluvium::moving::Source;
use alluvium::time::nanos;
use alluvium::{
    AnyLayout, Counting, Error, ErrorKind, Heap, HybridLog, Map, Store, StoreBuilder, Time, Windows,
};

use crate::job::{GROUPS, builder, layouts};

fn filled(owned: std::ops::Range<u16>, position: u64) -> Simulated {
    let device = Simulated::new(1, Faults::none());
    let store = open(&device, owned.clone()).open().unwrap();
    let mut map: Map<u64, u64> = store.map("map").open().unwrap();
    for key in keys(owned) {
        map.put(key, key * 3).unwrap();
    }
    store.checkpoint(position).unwrap();
    drop((map, store));
    device
}

/// Keys of some key groups.
fn keys(owned: std::ops::Range<u16>) -> impl Iterator<Item = u64> {
    let group =
        |key: &u64| alluvium::moving::KeyGroup::of(alluvium::KeyHash::key_hash(key), GROUPS).0;
    (0..300u64).filter(move |key| owned.contains(&group(key)))
}

fn open(device: &Simulated, owned: std::ops::Range<u16>) -> StoreBuilder {
    builder(&HybridLog::new().into()).owned_groups(owned).device(Arc::new(device.clone()))
}

fn restored(sources: &[&Simulated]) -> Result<Store, Error> {
    restored_to(0..GROUPS, sources)
}

fn restored_to(owned: std::ops::Range<u16>, sources: &[&Simulated]) -> Result<Store, Error> {
    let source = |device: &&Simulated| Source::device(Arc::new((*device).clone()));
    let target = Simulated::new(2, Faults::none());
    open(&target, owned).restore_from(sources.iter().map(source)).open()
}

fn files(device: &Simulated) -> BTreeMap<String, Vec<u8>> {
    let names = device.list().unwrap();
    names.into_iter().map(|name| (name.clone(), device.bytes(&name).unwrap())).collect()
}

#[test]
fn gaps_and_overlaps_are_named() {
    let (low, high, middle) = (filled(0..5, 1), filled(7..12, 1), filled(4..8, 1));
    let error = restored(&[&low, &high]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Mismatch);
    assert_eq!(error.message(), "key groups 5..7 are in none of the checkpoints");
    let error = restored(&[&low]).unwrap_err();
    assert_eq!(error.message(), "key groups 5..12 are in none of the checkpoints");
    let error = restored(&[&high]).unwrap_err();
    assert_eq!(error.message(), "key groups 0..7 are in none of the checkpoints");
    let error = restored(&[&high, &middle, &low]).unwrap_err();
    assert_eq!(error.message(), "key groups 4..5 are in two of the checkpoints");
    assert_eq!(error.context("source"), Some("device 2"));
    assert_eq!(error.context("and source"), Some("device 1"));
    // What is not wanted may overlap or be missing.
    let store = restored_to(7..9, &[&low, &high]).unwrap();
    assert_eq!(store.restored_from().len(), 1);
    assert_eq!(store.restored_from()[0].owned, 7..12);
}

#[test]
fn positions_are_those_of_the_sources() {
    let (low, high, later) = (filled(0..6, 4), filled(6..12, 4), filled(6..12, 5));
    assert_eq!(restored(&[&low, &high]).unwrap().restored_position(), Some(4));
    let store = restored(&[&low, &later]).unwrap();
    assert_eq!(store.restored_position(), None);
    let positions = store.restored_from().iter().map(|from| from.checkpoint.position);
    assert!(positions.eq([4, 5]));
}

#[test]
fn sources_that_cannot_be_used_are_refused_by_name() {
    let (low, high) = (filled(0..6, 1), filled(6..12, 1));
    let none = Simulated::new(1, Faults::none());
    let error = restored(&[&low, &none]).unwrap_err();
    assert_eq!((error.kind(), error.context("source")), (ErrorKind::Missing, Some("device 1")));
    // Open elsewhere.
    let busy = open(&high, 6..12).open().unwrap();
    let error = restored(&[&low, &high]).unwrap_err();
    assert_eq!((error.kind(), error.context("source")), (ErrorKind::Locked, Some("device 1")));
    drop(busy);
    // Other key groups.
    let other = Simulated::new(2, Faults::none());
    let source = Source::device(Arc::new(low.clone()));
    let builder = Store::in_memory().key_groups(24).device(Arc::new(other));
    let error = builder.restore_from([source.clone()]).open().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Mismatch);
    assert!(error.message().contains("12") && error.message().contains("24"), "{error}");
    // A checkpoint that is not there, and a directory that is none.
    let error = open(&Simulated::new(2, Faults::none()), 0..6)
        .restore_from([source.clone().checkpoint(9)])
        .open()
        .unwrap_err();
    assert_eq!((error.kind(), error.context("listed")), (ErrorKind::Missing, Some("1")));
    let missing = Path::new("/no/such/directory");
    let error = open(&Simulated::new(2, Faults::none()), 0..6)
        .restore_from([(missing, None)])
        .open()
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Missing);
    assert_eq!(error.context("source"), Some("/no/such/directory"));
    // A store that is not new.
    let error = open(&high, 6..12).restore_from([source]).open().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Mismatch);
    assert!(error.message().contains("checkpoint 1"), "{error}");
}

#[test]
fn lost_and_damaged_files_are_named() {
    let (low, high) = (filled(0..6, 1), filled(6..12, 1));
    let segment = files(&high).into_keys().find(|name| name.starts_with("seg-")).unwrap();
    let bytes = high.bytes(&segment).unwrap();
    high.remove(&segment).unwrap();
    let error = restored(&[&low, &high]).unwrap_err();
    assert_eq!((error.kind(), error.context("file")), (ErrorKind::Missing, Some(&*segment)));
    // Who does not want it does not look.
    restored_to(0..6, &[&low, &high]).unwrap();
    let mut refused = 0;
    for at in (0..bytes.len()).step_by(37) {
        let mut damaged = bytes.clone();
        damaged[at] ^= 16;
        high.place(&segment, &damaged);
        let store = restored(&[&low, &high]).unwrap();
        match store.map::<u64, u64>("map").open() {
            Ok(mut map) => {
                for key in keys(0..GROUPS) {
                    assert_eq!(map.get(&key).unwrap().as_deref(), Some(&(key * 3)), "byte {at}");
                }
            }
            Err(error) => {
                refused += 1;
                assert_eq!(error.kind(), ErrorKind::Corrupt, "byte {at}: {error}");
                assert_eq!(error.context("source"), Some("device 1"), "byte {at}: {error}");
                assert_eq!(error.context("state"), Some("map"), "byte {at}: {error}");
            }
        }
    }
    assert!(refused > 20, "{refused}");
}

#[test]
fn states_that_are_not_opened_keep_a_checkpoint_from_being_taken() {
    let store = restored(&[&filled(0..12, 1)]).unwrap();
    let error = store.checkpoint(2).unwrap_err();
    assert_eq!((error.kind(), error.context("states")), (ErrorKind::Mismatch, Some("map")));
    assert_eq!(store.export(Vec::new()).unwrap_err().context("states"), Some("map"));
    assert_eq!(store.leave_out("other").unwrap_err().kind(), ErrorKind::UnknownState);
    store.leave_out("map").unwrap();
    assert_eq!(store.checkpoint(2).unwrap().entries, 0);
}

#[test]
fn other_types_are_refused() {
    let (low, high) = (filled(0..6, 1), Simulated::new(3, Faults::none()));
    let store = open(&high, 6..12).open().unwrap();
    let map: Map<u64, String> = store.map("map").open().unwrap();
    store.checkpoint(1).unwrap();
    drop((map, store));
    let error = restored(&[&low, &high]).unwrap_err();
    assert_eq!((error.kind(), error.context("state")), (ErrorKind::Mismatch, Some("map")));
    assert!(error.message().contains("u64") && error.message().contains("String"), "{error}");
    let store = restored(&[&low, &filled(6..12, 1)]).unwrap();
    let error = store.map::<u64, String>("map").open().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Mismatch);
}

#[test]
fn keys_that_their_store_does_not_own_are_not_lost_unnoticed() {
    let stray = Simulated::new(3, Faults::none());
    let store = open(&stray, 6..12).open().unwrap();
    let mut map: Map<u64, u64> = store.map("map").open().unwrap();
    map.put(keys(0..6).next().unwrap(), 1).unwrap();
    store.checkpoint(1).unwrap();
    drop((map, store));
    let store = restored(&[&filled(0..6, 1), &stray]).unwrap();
    let error = store.map::<u64, u64>("map").open().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Mismatch);
    assert!(error.message().contains("by key group"), "{error}");
}

#[test]
fn a_value_is_that_of_the_store_that_owns_its_group() {
    let group = alluvium::moving::KeyGroup::of(alluvium::KeyHash::key_hash(&()), GROUPS).0;
    let sources = [0..6, 6..12].map(|owned| {
        let device = Simulated::new(3, Faults::none());
        let store = open(&device, owned.clone()).open().unwrap();
        let mut value = store.value::<u16>("value").open().unwrap();
        value.set(owned.start).unwrap();
        store.checkpoint(1).unwrap();
        device
    });
    for owned in [0..12, 0..6, 6..12, group..group + 1] {
        let store = restored_to(owned.clone(), &[&sources[0], &sources[1]]).unwrap();
        let mut value = store.value::<u16>("value").open().unwrap();
        let expected = owned.contains(&group).then_some(if group < 6 { 0 } else { 6 });
        assert_eq!(value.get().unwrap().as_deref().copied(), expected, "{owned:?}");
    }
}

#[test]
fn windows_at_different_watermarks_are_not_joined() {
    let windows = Windows::tumbling(nanos(10));
    let at = |owned: std::ops::Range<u16>, watermark: i64| {
        let device = Simulated::new(3, Faults::none());
        let store = open(&device, owned).open().unwrap();
        let mut counts = store.aggregated::<u64, (), _>("counts").open(windows, Counting).unwrap();
        counts.advance(Time(watermark), 1000, &mut |_, _, _, _| {}).unwrap();
        store.checkpoint(1).unwrap();
        device
    };
    let (low, high, later) = (at(0..6, 20), at(6..12, 20), at(6..12, 31));
    let store = restored(&[&low, &high]).unwrap();
    let counts = store.aggregated::<u64, (), _>("counts").open(windows, Counting).unwrap();
    assert_eq!(counts.watermark(), Time(20));
    let store = restored(&[&low, &later]).unwrap();
    let opened = store.aggregated::<u64, (), _>("counts").open(windows, Counting);
    let error = opened.map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Mismatch);
    assert!(error.message().contains("20 and 31"), "{error}");
    assert_eq!(error.context("source"), Some("device 1"));
}

#[test]
fn two_stores_made_of_one_checkpoint_are_independent() {
    for (name, layout) in layouts() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        let open = |name: &str, layout: &AnyLayout| {
            let builder = Store::builder(at(name)).memory(1 << 20).max_value(4096);
            builder.layout(layout.clone()).key_groups(GROUPS)
        };
        let store = open("old", &layout).open().unwrap();
        let mut map: Map<u64, Vec<u8>> = store.map("map").open().unwrap();
        for key in 0..500 {
            map.put(key, vec![1; 600]).unwrap();
        }
        store.checkpoint(1).unwrap();
        drop((map, store));
        let read = || {
            let entries = std::fs::read_dir(at("old")).unwrap();
            let paths = entries.map(|entry| entry.unwrap().path());
            paths.map(|path| (path.clone(), std::fs::read(path).unwrap())).collect()
        };
        let before: BTreeMap<_, _> = read();
        let from = || [(at("old"), None::<u64>)];
        let layouts = [&layout, &Heap::new().into()];
        let stores: Vec<_> = ["a", "b"]
            .into_iter()
            .zip(layouts)
            .map(|(name, layout)| open(name, layout).restore_from(from()).open().unwrap())
            .collect();
        // Both read the old directory at the same time.
        let mut maps: Vec<Map<u64, Vec<u8>>> =
            stores.iter().map(|store| store.map("map").open().unwrap()).collect();
        for (n, map) in maps.iter_mut().enumerate() {
            for key in (n as u64..500).step_by(3) {
                map.put(key, vec![n as u8 + 2; 300]).unwrap();
            }
            stores[n].checkpoint(n as u64).unwrap();
        }
        for (n, map) in maps.iter_mut().enumerate() {
            for key in 0..500u64 {
                let changed = key % 3 == n as u64;
                let expected = if changed { vec![n as u8 + 2; 300] } else { vec![1; 600] };
                assert_eq!(map.get(&key).unwrap().as_deref(), Some(&expected), "{name}, {key}");
            }
        }
        drop((maps, stores));
        assert!(read() == before, "{name}: the old directory has changed");
        // All is in the new one: it needs the old one no more.
        std::fs::remove_dir_all(at("old")).unwrap();
        let store = open("a", &layout).open().unwrap();
        let mut map: Map<u64, Vec<u8>> = store.map("map").open().unwrap();
        assert_eq!(map.get(&1).unwrap().as_deref(), Some(&vec![1; 600]), "{name}");
        assert_eq!(map.len().unwrap(), 500);
    }
}
