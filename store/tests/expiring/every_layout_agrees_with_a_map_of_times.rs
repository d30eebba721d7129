//! Histories with checkpoints, crashes and jumps of time: every layout and budget, event time and
//! processing time, refreshed by writes or by reads too, gives the answers of the model.

use std::collections::BTreeMap;

use alluvium::io::{CrashPolicy, Faults, Simulated};
use alluvium::states::Timed;
use alluvium::time::nanos;
use alluvium::{ExpiringMap, Layout, MIB, Store, Time, Ttl};

use crate::btree_layout::BTree;
use crate::common::{HandClock, builder, layouts};
use crate::dice::{Dice, times};
use crate::model::Model;

type Value = Vec<u32>;

const NANOS: i64 = 1000;
const YEAR: i64 = 365 * 24 * 3600 * 1_000_000_000;

fn changed(value: &mut Value, n: u32) {
    if n % 9 == 0 {
        value.clear();
    } else if value.len() < 30 {
        value.push(n);
    }
}

fn assert_equal<L: Layout<u64, Timed<Value>>>(
    map: &mut ExpiringMap<u64, Value, L>,
    model: &Model<Value>,
    when: &str,
) {
    let mut seen = BTreeMap::new();
    map.for_each(|key, value| {
        assert!(seen.insert(*key, value.clone()).is_none(), "{when}: {key} twice");
        Ok(())
    })
    .unwrap();
    assert_eq!(seen, model.all(), "{when}");
    assert!(map.len().unwrap() >= seen.len() as u64, "{when}");
}

/// One history; says how many entries were removed for being over.
fn history<L: Layout<u64, Timed<Value>>>(seed: u64, layout: &L, memory: u64, ttl: Ttl) -> u64 {
    let by_clock = ttl == Ttl::processing_time(nanos(NANOS)) || ttl == processing_by_reads();
    let by_reads = ttl == event_by_reads() || ttl == processing_by_reads();
    let mut dice = Dice(seed);
    let clock = HandClock::default();
    let open = |device: &Simulated| -> (Store, ExpiringMap<u64, Value, L>) {
        let store = builder(device, memory, &clock).open().unwrap();
        let map = store.expiring_map("m").layout(layout.clone()).open(ttl).unwrap();
        (store, map)
    };
    let mut device = Simulated::new(seed, Faults::late(3));
    let mut told = dice.below(5000) as i64;
    let mut furthest = told;
    clock.set(told);
    let (mut store, mut map) = open(&device);
    let mut model = Model::new(ttl, by_reads);
    if by_clock {
        model.advance(told);
    }
    store.checkpoint(0).unwrap();
    let (mut saved, mut expired) = (model.clone(), 0);
    for step in 0..700u32 {
        let (key, n) = (dice.below(500), dice.next() as u32);
        let when = format!("seed {seed}, step {step}");
        match dice.below(1000) {
            0..200 => {
                map.update(&key, || vec![n], |value| changed(value, n)).unwrap();
                model.update(key, || vec![n], |value| changed(value, n));
            }
            200..350 => {
                let value = vec![n; dice.below(20) as usize];
                let was_there = map.put(key, value.clone()).unwrap();
                assert_eq!(was_there, model.put(key, value), "{when}");
            }
            350..420 => {
                let known = map.modify(&key, |value| changed(value, n)).unwrap().is_some();
                assert_eq!(known, model.modify(key, |value| changed(value, n)), "{when}");
            }
            420..440 => {
                let change = |value: &mut Value| changed(value, n);
                let known = map.modify_or_restore(&key, change).unwrap().is_some();
                assert_eq!(known, model.modify(key, change), "{when}");
            }
            440..490 => assert_eq!(map.take(&key).unwrap(), model.take(key), "{when}"),
            490..510 => {
                assert_eq!(map.remove(&key).unwrap(), model.take(key).is_some(), "{when}");
            }
            510..580 => {
                assert_eq!(map.get(&key).unwrap().as_deref(), model.read(key), "{when}");
            }
            580..620 => {
                map.read(&key, |value| assert_eq!(value, model.read(key), "{when}")).unwrap();
            }
            620..640 => {
                assert_eq!(map.contains(&key).unwrap(), model.read(key).is_some(), "{when}");
            }
            640..660 => {
                let peeked = map.peek(&key).unwrap();
                assert!(peeked.is_none() || peeked.as_deref() == model.get(key), "{when}");
            }
            660..700 => {
                let batch: Vec<_> = (0..dice.below(200)).map(|_| dice.below(500)).collect();
                map.update_batch(&batch, |k| k, |k| vec![*k as u32], |_, v| changed(v, n)).unwrap();
                for key in batch {
                    model.update(key, || vec![key as u32], |value| changed(value, n));
                }
            }
            700..730 => {
                let batch: Vec<_> = (0..dice.below(200)).map(|_| dice.below(500)).collect();
                map.read_batch(
                    &batch,
                    |k| k,
                    |key, value| {
                        assert_eq!(value, model.read(*key), "{when}");
                    },
                )
                .unwrap();
            }
            730..740 => {
                let entries: Vec<_> = (0..dice.below(100)).map(|k| (k, vec![n])).collect();
                map.load(entries.clone()).map_err(|rejected| rejected.error).unwrap();
                for (key, value) in entries {
                    model.put(key, value);
                }
            }
            740..900 => {
                furthest += match dice.below(60) {
                    0 => YEAR,
                    1 => NANOS,
                    2 => NANOS - 1,
                    _ => dice.below(120) as i64,
                };
                told = match dice.below(20) {
                    0 => furthest - YEAR,
                    1..4 => furthest - dice.below(300) as i64,
                    _ => furthest,
                };
                clock.set(told);
                if !by_clock {
                    map.advance(Time(told)).unwrap();
                }
                model.advance(told);
                assert_eq!(map.time(), Time(model.time()), "{when}");
            }
            900..940 => drop(store.tick(dice.below(300) as usize).unwrap()),
            940..960 => assert_equal(&mut map, &model, &when),
            960..963 => {
                map.clear().unwrap();
                model.clear();
            }
            963..980 => {
                store.checkpoint(u64::from(step)).unwrap();
                saved = model.clone();
            }
            980..990 => {
                let mut seal = store.seal(u64::from(step)).unwrap();
                saved = model.clone();
                for _ in 0..dice.below(20) {
                    let key = dice.below(500);
                    map.update(&key, || vec![n], |value| changed(value, n)).unwrap();
                    model.update(key, || vec![n], |value| changed(value, n));
                    seal.advance().unwrap();
                }
                seal.confirm().unwrap();
            }
            _ => {
                expired += map.stats().unwrap().expired;
                drop((map, store));
                device = device.crash(CrashPolicy::Subset { seed: dice.next() });
                device.set_faults(Faults::late(3));
                (store, map) = open(&device);
                model = saved.clone();
                if by_clock {
                    model.advance(told);
                }
                assert_equal(&mut map, &model, &when);
            }
        }
        let used = store.stats().unwrap().memory;
        assert!(used.peak <= memory, "{when}: {used:?}");
    }
    assert_equal(&mut map, &model, "at the end");
    assert_eq!(store.stats().unwrap().compaction_errors, []);
    expired + map.stats().unwrap().expired
}

fn event_by_reads() -> Ttl {
    Ttl::event_time(nanos(NANOS)).refreshed_by_reads()
}

fn processing_by_reads() -> Ttl {
    Ttl::processing_time(nanos(NANOS)).refreshed_by_reads()
}

fn ttls() -> [Ttl; 4] {
    [
        Ttl::event_time(nanos(NANOS)),
        Ttl::processing_time(nanos(NANOS)),
        event_by_reads(),
        processing_by_reads(),
    ]
}

#[test]
fn histories_on_every_layout() {
    for seed in 1..=times("ALLUVIUM_HISTORIES", 1) {
        for ttl in ttls() {
            for (layout, memory) in layouts() {
                println!("seed {seed}, {ttl:?}, {layout:?}");
                let expired = history(seed, &layout, memory, ttl);
                println!("{expired} expired");
                assert!(expired > 0);
            }
        }
    }
}

#[test]
fn histories_on_a_layout_of_the_users_own() {
    for (seed, ttl) in (10..).zip(ttls()) {
        assert!(history(seed, &BTree, MIB, ttl) > 0);
    }
}

/// Each call sees an entry until the time to live has passed, and not from that moment on.
#[test]
fn an_entry_is_there_until_its_time_to_live_has_passed_exactly() {
    for (layout, memory) in layouts() {
        for calls in 0..9 {
            let device = Simulated::new(1, Faults::none());
            let store = builder(&device, memory, &HandClock::default()).open().unwrap();
            let map = store.expiring_map::<u64, Value>("m").layout(layout.clone());
            let mut map = map.open(Ttl::event_time(nanos(NANOS))).unwrap();
            let written = 7_000;
            map.advance(Time(0)).unwrap();
            for (key, at) in [(1, written - 1), (2, written), (3, written + 1)] {
                map.advance(Time(at)).unwrap();
                map.put(key, vec![key as u32]).unwrap();
            }
            // Key 1 has lived one longer than the time to live, key 2 just that, key 3 one less.
            map.advance(Time(written + NANOS)).unwrap();
            let mut is_there = |key: u64| match calls {
                0 => map.get(&key).unwrap().is_some(),
                1 => map.read(&key, |value| value.is_some()).unwrap(),
                2 => map.contains(&key).unwrap(),
                3 => map.peek(&key).unwrap().is_some(),
                4 => map.modify(&key, |_| ()).unwrap().is_some(),
                5 => map.put(key, vec![]).unwrap(),
                6 => map.take(&key).unwrap().is_some(),
                7 => map.update(&key, Vec::new, |value| !value.is_empty()).unwrap(),
                _ => {
                    let mut seen = false;
                    map.for_each(|k, _| {
                        seen |= *k == key;
                        Ok(())
                    })
                    .unwrap();
                    seen
                }
            };
            let there = [1, 2, 3].map(&mut is_there);
            assert_eq!(there, [false, false, true], "call {calls}, {layout:?}");
        }
    }
}

#[test]
fn a_panic_in_a_closure_leaves_what_a_map_would() {
    let store = Store::in_memory().open().unwrap();
    let mut map =
        store.expiring_map::<u64, Value>("m").open(Ttl::event_time(nanos(NANOS))).unwrap();
    map.advance(Time(0)).unwrap();
    map.put(1, vec![1]).unwrap();
    let caught = |run: &mut dyn FnMut()| {
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err()
    };
    assert!(caught(&mut || {
        map.modify_or_restore(&1, |value| {
            value.push(2);
            std::panic::resume_unwind(Box::new("planned"));
        })
        .unwrap();
    }));
    assert!(map.is_poisoned());
    map.clear_poison();
    assert_eq!(map.get(&1).unwrap().as_deref(), Some(&vec![1]));
    // An entry that is over and cannot be begun anew stays over.
    map.advance(Time(NANOS)).unwrap();
    assert!(caught(&mut || {
        map.update(&1, || std::panic::resume_unwind(Box::new("planned")), |_| ()).unwrap();
    }));
    map.clear_poison();
    assert_eq!(map.get(&1).unwrap().as_deref(), None);
}
