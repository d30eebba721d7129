//! In memory and in steady state a call asks for no memory and runs no codec; while the state
//! grows, with and without pressure, a call splits one index segment, begins one page and moves or
//! clones one record at the most.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use alluvium::config::Helpers;
use alluvium::io::{Faults, Simulated};
use alluvium::stats::TableStats;
use alluvium::time::nanos;
use alluvium::{
    AnyLayout, Counting, Heap, HybridLog, Key, KeyHash, MIB, Map, State, Store, Time, Ttl,
    WindowSegments, Windows,
};

use crate::counting::{alone, asked};
use crate::dice::{Dice, times};

/// Runs every kind of call on a loaded map; none asks for memory, nothing is encoded.
fn nothing_is_asked_for<K: Key + Debug, V: State + Debug>(
    (store, layout): (&Store, AnyLayout),
    keys: Vec<K>,
    value: impl Fn(u64) -> V,
    change: impl Fn(&mut V) + Copy,
) {
    let mut map: Map<K, V> = store.map("m").layout(layout).open().unwrap();
    for (n, key) in keys.iter().enumerate() {
        map.put(key.clone(), value(n as u64)).unwrap();
    }
    let absent = || -> V { unreachable!("every key is there") };
    let mut round = || {
        for key in &keys {
            map.update(key, absent, change).unwrap();
            map.modify(key, change).unwrap().unwrap();
            assert!(map.get(key).unwrap().is_some());
            assert!(map.peek(key).unwrap().is_some());
            assert!(map.read(key, |v| v.is_some()).unwrap());
        }
        for group in keys.chunks(200) {
            map.update_batch(group, |k| k, |_| absent(), |_, v| change(v)).unwrap();
            map.read_batch(group, |k| k, |_, v| assert!(v.is_some())).unwrap();
        }
        map.stats().unwrap()
    };
    let before = round();
    let asked_before = asked();
    let after = round();
    assert_eq!(asked() - asked_before, 0, "allocations on the record path");
    let calls = before.calls + 6 * keys.len() as u64;
    assert_eq!(after, TableStats { calls, ..before }, "a counter has moved");
    assert_eq!(after.codec_calls, 0);
}

/// On each layout, with storage and without.
fn on_each(test: impl Fn((&Store, AnyLayout))) {
    let _alone = alone();
    for layout in [AnyLayout::from(HybridLog::new()), Heap::new().into()] {
        stores().iter().for_each(|store| test((store, layout.clone())));
    }
}

fn stores() -> Vec<Store> {
    let memory = 64 * MIB;
    let device = Simulated::new(1, Faults::late(3));
    vec![
        Store::in_memory().memory(memory).open().unwrap(),
        Store::in_memory()
            .memory(memory)
            .device(Arc::new(device))
            .helpers(Helpers::Inline)
            .open()
            .unwrap(),
    ]
}

#[test]
fn plain_records() {
    on_each(|of| {
        let keys: Vec<u64> = (0..40_000).collect();
        nothing_is_asked_for(of, keys, |n| n, |v| *v = v.wrapping_mul(31) + 1);
    });
}

#[test]
fn records_that_own_heap() {
    on_each(|of| {
        let keys: Vec<String> = (0..20_000).map(|n| format!("key number {n}")).collect();
        let value = |n| vec![n, n + 1, n + 2];
        nothing_is_asked_for(of, keys, value, |v| v.iter_mut().for_each(|n| *n += 1));
    });
}

/// A key that counts how often it is hashed and cloned.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, alluvium::State)]
#[derive(rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
struct Counted(u64);

static HASHED: AtomicU64 = AtomicU64::new(0);
static CLONED: AtomicU64 = AtomicU64::new(0);

impl KeyHash for Counted {
    fn key_hash(&self) -> u64 {
        HASHED.fetch_add(1, Relaxed);
        self.0.key_hash()
    }
}

impl Clone for Counted {
    fn clone(&self) -> Self {
        CLONED.fetch_add(1, Relaxed);
        Self(self.0)
    }
}

/// Of keys that are there an event asks for nothing; in window segments it takes one hash and no clone.
#[test]
fn events_of_windows() {
    let _alone = alone();
    let layouts =
        [AnyLayout::from(WindowSegments::new()), Heap::new().into(), HybridLog::new().into()];
    let all = stores();
    for (n, (store, layout)) in
        all.iter().flat_map(|s| layouts.each_ref().map(|l| (s, l))).enumerate()
    {
        let name = format!("windows {n}");
        let windows = store.aggregated::<Counted, (), Counting>(&name).layout(layout.clone());
        let mut windows = windows.open(Windows::tumbling(nanos(1000)), Counting).unwrap();
        let mut batch = Vec::with_capacity(200);
        let mut add = |rounds: u64| {
            for first in (0..rounds * 20_000).step_by(200) {
                batch.extend((first..first + 200).map(|n| (Counted(n % 20_000), Time(7), ())));
                let late = &mut |_| panic!("late");
                windows.add_batch(Time(0), &mut batch, late, &mut |_, _, _, _| ()).unwrap();
            }
            let stats = store.stats().unwrap();
            stats.state(&name).unwrap().table.codec_calls
        };
        // What a sketch or a list of changes needs is there after some rounds.
        let encoded = add(3);
        let before = [HASHED.load(Relaxed), CLONED.load(Relaxed)];
        let asked_before = asked();
        let calls = add(2) - encoded;
        let asked = asked() - asked_before;
        let [hashed, cloned] = [HASHED.load(Relaxed) - before[0], CLONED.load(Relaxed) - before[1]];
        println!("{name}: {hashed} hashes and {cloned} clones of 40000 events");
        assert_eq!(calls, 0, "{name}");
        if let AnyLayout::WindowSegments(_) = layout {
            assert_eq!((hashed, cloned), (40_000, 0), "{name}");
        }
        // Statistics, once, and not for each of the 200 batches.
        assert!(asked < 200, "{name}: {asked} allocations on the record path");
    }
}

/// Also while passes look for what is over, and while entries are begun anew.
#[test]
fn records_that_expire() {
    let _alone = alone();
    for store in stores() {
        for (name, layout) in
            [("log", AnyLayout::named("hybrid-log")), ("heap", Some(Heap::new().into()))]
        {
            let builder = store.expiring_map::<u64, u64>(name).layout(layout.unwrap());
            let mut map = builder.open(Ttl::event_time(nanos(1000))).unwrap();
            map.advance(Time(1)).unwrap();
            let mut round = |to: i64| {
                map.advance(Time(to)).unwrap();
                for key in 0..20_000 {
                    map.update(&key, || key, |value| *value += 1).unwrap();
                    map.modify(&key, |value| *value += 1).unwrap().unwrap();
                    assert!(map.read(&key, |value| value.is_some()).unwrap());
                    assert!(map.get(&key).unwrap().is_some());
                    map.put(key, 7).unwrap();
                }
                let keys: [u64; 200] = std::array::from_fn(|key| key as u64);
                map.update_batch(&keys, |k| k, |k| *k, |_, value| *value += 1).unwrap();
                map.stats().unwrap()
            };
            round(1);
            let before = round(900);
            let asked_before = asked();
            let after = round(1800);
            assert_eq!(asked() - asked_before, 0, "allocations on the record path of {name}");
            // Entries that are over are begun anew, or removed first: then they take new pages.
            let begun_anew = round(5000);
            let pages = begun_anew.pages_begun - after.pages_begun;
            assert!(asked() - asked_before <= 2 * pages, "{begun_anew:?}");
            assert!(after.expiry_looks > before.expiry_looks, "no pass was due: {after:?}");
            assert!(begun_anew.expired >= 20_000, "{begun_anew:?}");
            assert_eq!(begun_anew.codec_calls, 0);
        }
    }
}

/// What one call did.
#[derive(Debug, Default)]
struct Most {
    splits: u64,
    pages: u64,
    copies: u64,
    flushed: u64,
}

fn watch(most: &mut Most, before: &TableStats, after: &TableStats) {
    most.splits = most.splits.max(after.splits - before.splits);
    most.pages = most.pages.max(after.pages_begun - before.pages_begun);
    let copies = |s: &TableStats| s.moves + s.clones;
    most.copies = most.copies.max(copies(after) - copies(before));
    most.flushed = most.flushed.max(after.pages_flushed - before.pages_flushed);
}

fn bounded(store: Store, layout: HybridLog, keys: u64, pressed: bool) {
    let mut random = Dice(times("ALLUVIUM_SEED", 4));
    let mut map: Map<u64, [u64; 2]> = store.map("m").layout(layout.into()).open().unwrap();
    let mut most = Most::default();
    let mut before = map.stats().unwrap();
    for n in 0..keys {
        map.update(&n, || [n, 0], |v| v[1] += 1).unwrap();
        let after = map.stats().unwrap();
        watch(&mut most, &before, &after);
        // One of the keys so far, mostly a late one.
        let reach = match n % 4 {
            0 => n + 1,
            1 => n / 2 + 1,
            _ => n / 8 + 1,
        };
        let other = n - random.below(reach);
        if !pressed || n % 4 > 0 {
            map.update(&other, || unreachable!(), |v| v[1] += 1).unwrap();
        } else {
            map.put(other, [other, 7]).unwrap();
        }
        before = map.stats().unwrap();
        watch(&mut most, &after, &before);
    }
    println!("{most:?} {before:?}");
    assert_eq!(map.len().unwrap(), keys);
    assert!(before.splits > 100 && before.pages_begun > 50, "{before:?}");
    assert!(most.splits == 1 && most.pages == 1 && most.copies <= 1, "{most:?}");
    if pressed {
        assert!(before.moves > 100 && before.cold_reads > 100, "{before:?}");
        assert!(most.copies == 1 && most.flushed <= 2, "{most:?}");
    } else {
        assert!(before.moves == 0 && before.pages_flushed == 0, "{before:?}");
    }
}

#[test]
fn growth_in_memory_is_in_bounded_steps() {
    let _alone = alone();
    let keys = times("ALLUVIUM_KEYS", 120_000);
    bounded(Store::in_memory().memory(64 * MIB).open().unwrap(), HybridLog::new(), keys, false);
}

#[test]
fn growth_beyond_memory_is_in_bounded_steps() {
    let _alone = alone();
    let keys = times("ALLUVIUM_KEYS", 220_000);
    let device = Simulated::new(2, Faults::default());
    let store = Store::in_memory()
        .memory(8 * MIB)
        .device(Arc::new(device))
        .helpers(Helpers::Inline)
        .open()
        .unwrap();
    bounded(store, HybridLog::new().page(8 << 10), keys, true);
}
