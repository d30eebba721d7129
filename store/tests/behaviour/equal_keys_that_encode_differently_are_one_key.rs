//! Keys are compared by `Eq`, never by their bytes: keys that are equal and encode differently are one key, in memory, on
//! storage, and after a restart.
//!
//! What this catches: a look-up or a merge that compares encoded keys, so that a value is there twice, or an old one comes
//! back.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::common::{Dice, assert_equal, durable_layouts, open_on, times, tiny};
use alluvium::config::WINDOW_SEGMENTS_BYTES_MIN;
use alluvium::io::{Faults, Simulated};
use alluvium::time::nanos;
use alluvium::{
    AnyLayout, AppendLog, Counting, Heap, KIB, KeyHash, List, MIB, Map, Store, Time,
    WindowSegments, Windows,
};

/// A word that may be spelled in several ways.
#[derive(Clone, Debug, alluvium::State, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
struct Word {
    id: u64,
    spelling: u32,
}

impl PartialEq for Word {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for Word {}

impl PartialOrd for Word {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Word {
    fn cmp(&self, other: &Self) -> Ordering {
        self.id.cmp(&other.id)
    }
}

impl KeyHash for Word {
    fn key_hash(&self) -> u64 {
        self.id.key_hash()
    }
}

/// A word below `count`, spelled as nobody did before.
fn word(dice: &mut Dice, count: u64, spelling: u64) -> Word {
    Word { id: dice.below(count), spelling: spelling as u32 }
}

fn open(device: &Simulated, layout: &AnyLayout) -> (Store, Map<Word, u64>) {
    let store = open_on(Arc::new(device.clone()), layout.clone(), 512 * KIB).unwrap();
    let map = store.map("words").open().unwrap();
    (store, map)
}

#[test]
fn in_maps() {
    for (name, layout) in durable_layouts() {
        // With one hash for all each read finds all others.
        let keys = if name.contains("constant") { 60 } else { 4000 };
        let device = Simulated::new(3, Faults::none());
        let (mut store, mut map) = open(&device, &layout);
        let (mut model, mut dice) = (BTreeMap::<Word, u64>::new(), Dice(7));
        for step in 0..times("ALLUVIUM_OPS", 6000) {
            let key = word(&mut dice, keys, step);
            match dice.below(10) {
                0..5 => {
                    let known = map.put(key.clone(), step).unwrap();
                    assert_eq!(known, model.insert(key, step).is_some(), "{name}, {step}");
                }
                5..7 => {
                    map.update(&key, || 0, |value| *value += 1).unwrap();
                    *model.entry(key).or_default() += 1;
                }
                7 => assert_eq!(map.take(&key).unwrap(), model.remove(&key), "{name}, {step}"),
                _ => assert_eq!(map.get(&key).unwrap().as_deref(), model.get(&key), "{name}"),
            }
            if step % 1500 == 1499 {
                store.checkpoint(step).unwrap();
                store.tick(1000).unwrap();
            }
            if step % 3000 == 2999 {
                drop((map, store));
                (store, map) = open(&device, &layout);
                assert_equal(&mut map, &model, name);
            }
        }
        assert_equal(&mut map, &model, name);
    }
}

/// A value so long that most leave the memory.
type Wide = [u64; 40];

fn open_wide(device: &Simulated, layout: &AnyLayout) -> (Store, Map<Word, Wide>) {
    let store = open_on(Arc::new(device.clone()), layout.clone(), 640 * KIB).unwrap();
    let map = store.map("words").open().unwrap();
    (store, map)
}

/// Each word is asked for in a spelling that nobody wrote.
fn assert_all(map: &mut Map<Word, Wide>, model: &BTreeMap<Word, Wide>, words: u64) {
    assert_eq!(map.len().unwrap(), model.len() as u64);
    for id in 0..words {
        let other = Word { id, spelling: u32::MAX };
        assert_eq!(map.get(&other).unwrap().as_deref(), model.get(&other), "{id}");
    }
    let mut seen = BTreeMap::new();
    let shown = map.for_each(|key, value| {
        assert!(seen.insert(key.clone(), *value).is_none(), "{key:?} twice");
        Ok(())
    });
    shown.unwrap();
    assert!(seen == *model, "{} of {}", seen.len(), model.len());
}

/// Copies of a word in levels of runs are older than those in memory, whatever they look like: they are found dead when a
/// word is put, deleted and moved again, and merges keep one.
#[test]
fn in_sorted_runs() {
    let (words, layout) = (3000, AnyLayout::from(tiny().cold_entries(16)));
    let device = Simulated::new(5, Faults::none());
    let (mut store, mut map) = open_wide(&device, &layout);
    let (mut model, mut dice) = (BTreeMap::<Word, Wide>::new(), Dice(9));
    let (mut moved, mut merged) = (0, 0);
    for step in 0..9_000 {
        let key = word(&mut dice, words, step);
        match dice.below(10) {
            0..6 => {
                let known = map.put(key.clone(), [step; 40]).unwrap();
                assert_eq!(known, model.insert(key, [step; 40]).is_some(), "{step}");
            }
            6 => {
                map.update(&key, || [0; 40], |value| value[7] += 1).unwrap();
                model.entry(key).or_insert([0; 40])[7] += 1;
            }
            7 | 8 => assert_eq!(map.take(&key).unwrap(), model.remove(&key), "{step}"),
            _ => assert_eq!(map.get(&key).unwrap().as_deref(), model.get(&key), "{step}"),
        }
        if step % 3_000 == 2_999 {
            store.checkpoint(step).unwrap();
            let runs = map.stats().unwrap().runs;
            (moved, merged) = (moved + runs.moved, merged + runs.merged_bytes);
            drop((map, store));
            (store, map) = open_wide(&device, &layout);
            assert_all(&mut map, &model, words);
        }
    }
    // What is deleted does not come back when its tombstones move and are merged with the copies.
    for id in (0..words).step_by(5) {
        let key = Word { id, spelling: u32::MAX - 1 };
        assert_eq!(map.take(&key).unwrap(), model.remove(&key), "{id}");
    }
    for id in words..2 * words {
        let key = Word { id, spelling: 1 };
        assert!(!map.put(key.clone(), [id; 40]).unwrap(), "{id}");
        model.insert(key, [id; 40]);
    }
    assert_all(&mut map, &model, 2 * words);
    let runs = map.stats().unwrap().runs;
    (moved, merged) = (moved + runs.moved, merged + runs.merged_bytes);
    println!("{moved} moved, {merged} bytes merged, {runs:?}");
    assert!(moved > 3_000 && merged > 1_000_000, "{moved} {merged}");
}

#[test]
fn in_lists() {
    for layout in [AnyLayout::from(AppendLog::new()), Heap::new().into()] {
        let device = Simulated::new(4, Faults::none());
        let open = || {
            let store = open_on(Arc::new(device.clone()), Heap::new(), 2048 * KIB).unwrap();
            let lists = store.list::<Word, u64>("lists").layout(layout.clone()).open().unwrap();
            (store, lists)
        };
        let (mut store, mut lists): (Store, List<Word, u64>) = open();
        let (mut model, mut dice) = (BTreeMap::<Word, Vec<u64>>::new(), Dice(8));
        for step in 0..times("ALLUVIUM_OPS", 6000) {
            let key = word(&mut dice, 200, step);
            match dice.below(20) {
                0 => {
                    lists.clear(&key).unwrap();
                    model.remove(&key);
                }
                1 => {
                    let expected = model.get(&key).cloned().unwrap_or_default();
                    assert_eq!(lists.to_vec(&key).unwrap(), expected, "{layout:?}, {step}");
                }
                _ => {
                    lists.append(&key, step).unwrap();
                    model.entry(key).or_default().push(step);
                }
            }
            if step % 2000 == 1999 {
                store.checkpoint(step).unwrap();
                drop((lists, store));
                (store, lists) = open();
            }
        }
        for (key, elements) in &model {
            let other = Word { spelling: u32::MAX, ..*key };
            assert_eq!(&lists.to_vec(&other).unwrap(), elements, "{layout:?}");
        }
    }
}

/// Most elements of each key are in runs of the append log, each with its own spelling, and merged.
#[test]
fn in_lists_on_storage() {
    let device = Simulated::new(6, Faults::none());
    let open = || {
        let store = open_on(Arc::new(device.clone()), Heap::new(), 2 * MIB).unwrap();
        let layout = AnyLayout::from(AppendLog::new().memory(256 * KIB));
        let lists = store.list::<Word, [u64; 32]>("lists").layout(layout).open().unwrap();
        (store, lists)
    };
    let (mut store, mut lists) = open();
    let (mut model, mut dice) = (BTreeMap::<Word, Vec<[u64; 32]>>::new(), Dice(10));
    for step in 0..6000 {
        let key = word(&mut dice, 100, step);
        if dice.below(100) == 0 {
            lists.clear(&key).unwrap();
            model.remove(&key);
        } else {
            lists.append(&key, [step; 32]).unwrap();
            model.entry(key).or_default().push([step; 32]);
        }
        if step % 2000 == 1999 {
            let stats = lists.stats().unwrap();
            assert!(stats.disk_bytes > 256 * KIB, "{stats:?}");
            store.checkpoint(step).unwrap();
            drop((lists, store));
            (store, lists) = open();
        }
    }
    for id in 0..100 {
        let key = Word { id, spelling: u32::MAX };
        let expected = model.get(&key).cloned().unwrap_or_default();
        assert!(lists.to_vec(&key).unwrap() == expected, "{id}");
    }
}

#[test]
fn in_windows_on_storage() {
    let device = Simulated::new(7, Faults::none());
    let open = || {
        let store = open_on(Arc::new(device.clone()), Heap::new(), 4 * MIB).unwrap();
        let layout = WindowSegments::new().memory(WINDOW_SEGMENTS_BYTES_MIN + 64 * KIB);
        let windows = store.aggregated::<Word, (), Counting>("words").layout(layout);
        let windows = windows.open(Windows::tumbling(nanos(10)), Counting).unwrap();
        (store, windows)
    };
    let (mut store, mut windows) = open();
    let (mut model, mut dice) = (BTreeMap::<(i64, Word), i64>::new(), Dice(11));
    for step in 0..400 {
        let event = |n| {
            let key = word(&mut dice, 4000, step * 50 + n);
            (key, Time(dice.below(40) as i64), ())
        };
        let mut batch: Vec<_> = (0..50).map(event).collect();
        for (key, at, ()) in &batch {
            *model.entry((at.0 / 10 * 10 + 10, key.clone())).or_default() += 1;
        }
        let never = &mut |late| panic!("{late:?}");
        windows.add_batch(Time(0), &mut batch, never, &mut |_, _, _, _| ()).unwrap();
        if step % 150 == 149 {
            let stats = store.stats().unwrap();
            let table = &stats.state("words").unwrap().table;
            assert!(table.disk_bytes > 64 * KIB, "{table:?}");
            store.checkpoint(step).unwrap();
            drop((windows, store));
            (store, windows) = open();
        }
    }
    let mut rows = BTreeMap::new();
    let fire = &mut |key: &Word, window: alluvium::Window, count: i64, _| {
        let known = rows.insert((window.end.0, key.clone()), count);
        assert!(known.is_none(), "{key:?} fired twice");
    };
    windows.advance_all(Time(100), fire).unwrap();
    assert!(rows == model, "{} of {} rows", rows.len(), model.len());
}

/// Of many small slices, which share runs.
#[test]
fn in_a_map_by_time_on_storage() {
    let device = Simulated::new(8, Faults::none());
    let open = || {
        let store = open_on(Arc::new(device.clone()), Heap::new(), 4 * MIB).unwrap();
        let layout = AnyLayout::from(AppendLog::new().memory(MIB).packs_slices(true));
        let map = store.time_map::<Word, u64>("words").layout(layout).open(nanos(1)).unwrap();
        (store, map)
    };
    let (mut store, mut map) = open();
    let (mut model, mut dice) = (BTreeMap::<(Word, i64), Vec<u64>>::new(), Dice(12));
    for step in 0..12_000 {
        let (key, at) = (word(&mut dice, 20, step), dice.below(3000) as i64);
        map.insert(&key, Time(at), step).unwrap();
        model.entry((key, at)).or_default().push(step);
        if step % 4000 == 3999 {
            store.checkpoint(step).unwrap();
            drop((map, store));
            (store, map) = open();
        }
    }
    let stats = store.stats().unwrap();
    assert!(stats.state("words").unwrap().table.disk_bytes > 64 * KIB, "{stats:?}");
    for id in 0..20 {
        let (key, mut seen) = (Word { id, spelling: u32::MAX }, Vec::new());
        map.range(&key, Time(0)..Time(3000), |at, n| {
            seen.push((at.0, *n));
            Ok(())
        })
        .unwrap();
        let own = model.iter().filter(|((word, _), _)| *word == key);
        let expected: Vec<_> =
            own.flat_map(|((_, at), all)| all.iter().map(|n| (*at, *n))).collect();
        assert!(seen == expected, "{id}: {} of {}", seen.len(), expected.len());
    }
}
