//! A time-ordered map beside one of the standard library, over a backend of a user's own.

use std::collections::BTreeMap;

use alluvium::time::nanos;
use alluvium::types::hash_word;
use alluvium::{ErrorKind, KIB, MIB, Store, Time, TimeMap};

use crate::btree_layout::BTree;

type Map = TimeMap<u64, String, BTree>;

const WIDTH: i64 = 100;

fn open(store: &Store) -> Map {
    store.time_map::<u64, String>("prices").layout(BTree).open(nanos(WIDTH)).unwrap()
}

fn in_memory() -> Store {
    Store::in_memory().memory(16 * MIB).open().unwrap()
}

fn range(map: &mut Map, key: u64, times: std::ops::Range<i64>) -> Vec<(i64, String)> {
    let mut found = Vec::new();
    let visit = |at: Time, value: &String| {
        found.push((at.0, value.clone()));
        Ok(())
    };
    let count = map.range(&key, Time(times.start)..Time(times.end), visit).unwrap();
    assert_eq!(count, found.len() as u64);
    found
}

/// By key and time, values in order of insertion.
#[derive(Default)]
struct Model(BTreeMap<(u64, i64), Vec<String>>);

impl Model {
    fn range(&self, key: u64, times: std::ops::Range<i64>) -> Vec<(i64, String)> {
        let found = self.0.range((key, times.start)..(key, times.end));
        found.flat_map(|((_, at), values)| values.iter().map(|v| (*at, v.clone()))).collect()
    }
}

#[test]
fn it_answers_like_an_ordered_map() {
    let directory = tempfile::tempdir().unwrap();
    let reopen = || Store::builder(directory.path()).memory(16 * MIB).open().unwrap();
    let mut store = reopen();
    let (mut map, mut model) = (open(&store), Model::default());
    for step in 0..6000u64 {
        let random = |n: u64, below: u64| (hash_word(step * 8 + n) % below) as i64;
        let (key, at) = (random(0, 5) as u64, random(1, 3000) - 1500);
        match random(2, 100) {
            0..70 => {
                map.insert(&key, Time(at), format!("{step}")).unwrap();
                model.0.entry((key, at)).or_default().push(format!("{step}"));
            }
            70..92 => {
                let end = at + random(3, 700);
                assert_eq!(range(&mut map, key, at..end), model.range(key, at..end));
            }
            92..95 => {
                let start = at.div_euclid(WIDTH) * WIDTH;
                let end = start + WIDTH * random(3, 4);
                map.remove_range(&key, Time(start)..Time(end)).unwrap();
                model.0.retain(|(k, t), _| *k != key || !(start..end).contains(t));
            }
            95 => {
                let before = random(3, 900) - 1500;
                while !map.purge(Time(before), 3).unwrap() {}
                let slice = before.div_euclid(WIDTH) * WIDTH;
                model.0.retain(|(_, t), _| *t >= slice);
            }
            96 => {
                store.checkpoint(step).unwrap();
                drop((map, store));
                store = reopen();
                map = open(&store);
            }
            _ => {
                let len: usize = model.0.values().map(Vec::len).sum();
                assert_eq!(map.len().unwrap(), len as u64);
            }
        }
    }
    for key in 0..5 {
        let all = range(&mut map, key, i64::MIN..i64::MAX);
        assert_eq!(all, model.range(key, i64::MIN..i64::MAX));
        assert!(all.len() > 100);
    }
}

#[test]
fn the_ends_of_time_have_slices_too() {
    let mut map = open(&in_memory());
    let times = [i64::MIN, i64::MIN + 1, -1, 0, i64::MAX - 1];
    for at in times.iter().rev() {
        map.insert(&1, Time(*at), at.to_string()).unwrap();
    }
    let found: Vec<i64> =
        range(&mut map, 1, i64::MIN..i64::MAX).into_iter().map(|(at, _)| at).collect();
    assert_eq!(found, times);
    map.remove_range(&1, Time::MIN..Time(0)).unwrap();
    assert_eq!(range(&mut map, 1, i64::MIN..i64::MAX).len(), 2);
    assert!(map.purge(Time::MAX, 100).unwrap());
    assert!(map.is_empty().unwrap());
}

/// Slices of one point of time, of more than half of it, and between.
#[test]
fn what_is_inserted_at_the_ends_of_time_is_found_and_goes() {
    let (min, max) = (i64::MIN, i64::MAX);
    let times = [min, min + 1, min + 5, -7, -1, 0, 3, max - 8, max - 1, max];
    for width in [1, 2, 7, 100, max - 1, max] {
        let store = in_memory();
        let map = store.time_map::<u64, String>("ends").layout(BTree);
        let mut map: Map = map.open(nanos(width)).unwrap();
        for at in times {
            map.insert(&1, Time(at), at.to_string()).unwrap();
        }
        for start in times {
            for end in times {
                let found = range(&mut map, 1, start..end);
                let found: Vec<_> = found.into_iter().map(|(at, _)| at).collect();
                let has = |at: &i64| start <= *at && (*at < end || end == max);
                let expected: Vec<_> = times.iter().copied().filter(has).collect();
                assert_eq!(found, expected, "{start}..{end} in slices of {width}");
            }
        }
        map.remove_range(&1, Time(0)..Time::MAX).unwrap();
        let left = range(&mut map, 1, min..max).len();
        assert_eq!(left, 5, "slices of {width} from 0 on are removed");
        map.insert(&1, Time::MAX, "last".into()).unwrap();
        while !map.purge(Time(0), 100).unwrap() {}
        assert_eq!(range(&mut map, 1, min..max), [(max, "last".to_string())]);
        while !map.purge(Time::MAX, 100).unwrap() {}
        assert!(map.is_empty().unwrap(), "slices of {width}");
    }
}

#[test]
fn what_cannot_be_done_is_refused_and_changes_nothing() {
    let store = in_memory();
    let zero = store.time_map::<u64, String>("zero").layout(BTree).open(nanos(0)).unwrap_err();
    assert_eq!(zero.kind(), ErrorKind::Config);
    let mut map = open(&store);
    map.insert(&1, Time(150), "kept".into()).unwrap();
    let inside = map.remove_range(&1, Time(100)..Time(160)).unwrap_err();
    assert_eq!(inside.kind(), ErrorKind::Input);
    assert_eq!(inside.context("state"), Some("prices"));
    assert_eq!(range(&mut map, 1, 0..200), [(150, "kept".to_string())]);
}

#[test]
fn another_width_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let reopen = || Store::builder(directory.path()).memory(16 * MIB).open().unwrap();
    {
        let store = reopen();
        open(&store).insert(&1, Time(1), "a".into()).unwrap();
        store.checkpoint(1).unwrap();
    }
    let store = reopen();
    let other = store.time_map::<u64, String>("prices").layout(BTree).open(nanos(WIDTH + 1));
    let error = other.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Mismatch);
    assert!(error.to_string().contains("slices of 100 ns"), "{error}");
}

#[test]
fn a_value_without_room_comes_back_and_what_is_read_is_booked() {
    let store = Store::in_memory().memory(256 * KIB).open().unwrap();
    let mut map = open(&store);
    for _ in 0..100 {
        map.insert(&1, Time(5), "x".repeat(1000)).unwrap();
    }
    let mut keys = 2..10_000;
    let refused = keys.find_map(|key| map.insert(&key, Time(5), "x".repeat(1000)).err()).unwrap();
    assert_eq!((refused.error.kind(), refused.value.len()), (ErrorKind::OverBudget, 1000));
    // What a key has in a slice is read as a whole, for which there is no room.
    let error = map.range(&1, Time(0)..Time(9), |_, _| Ok(())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OverBudget);
    assert!(map.purge(Time(100), 1000).unwrap());
    map.insert(&1, Time(105), "again".into()).unwrap();
    assert_eq!(range(&mut map, 1, 0..200).len(), 1);
}
