//! What a hybrid log with sorted runs cannot do is refused in words that name the option, and leaves a store that works;
//! what it does in a slower way is right.

use std::collections::BTreeMap;
use std::sync::Arc;

use alluvium::config::Helpers;
use alluvium::io::{Device, Faults, Simulated};
use alluvium::moving::{KeyGroup, Source};
use alluvium::states::Fetch;
use alluvium::time::nanos;
use alluvium::{
    AnyLayout, Error, ErrorKind, ExpiringMap, Heap, HybridLog, KIB, KeyHash, MIB, Map, Store,
    StoreBuilder, Time, Ttl,
};

const KEYS: u64 = 60_000;

/// A log most of whose records move.
fn with_runs() -> AnyLayout {
    HybridLog::new().memory(MIB).cold_runs_automatic().into()
}

/// The same for entries that expire, which have runs only if they are asked for.
fn asked_for() -> AnyLayout {
    HybridLog::new().memory(MIB).cold_runs(true).into()
}

fn without() -> AnyLayout {
    HybridLog::new().memory(2 * MIB).cold_runs(false).into()
}

fn builder(device: &Simulated) -> StoreBuilder {
    // How much has moved and expired does not depend on how late a helper's thread is.
    let store = Store::builder("unused").device(Arc::new(device.clone()));
    store.memory(4 * MIB).max_value(4 * KIB).helpers(Helpers::Inline)
}

/// A store with a map most of whose records are in runs, and its contents.
fn filled(device: &Simulated) -> (Store, Map<u64, u64>, BTreeMap<u64, u64>) {
    let store = builder(device).open().unwrap();
    let mut map: Map<u64, u64> = store.map("map").layout(with_runs()).open().unwrap();
    let mut model = BTreeMap::new();
    for key in 0..KEYS {
        map.put(key, key * 3).map_err(|rejected| rejected.error).unwrap();
        model.insert(key, key * 3);
    }
    for key in (0..KEYS).step_by(7) {
        assert!(map.remove(&key).unwrap());
        model.remove(&key);
    }
    for key in (1..KEYS).step_by(11) {
        map.put(key, key).map_err(|rejected| rejected.error).unwrap();
        model.insert(key, key);
    }
    let runs = store.stats().unwrap().state("map").unwrap().table.runs;
    assert!(runs.keys > KEYS / 4, "{runs:?}");
    (store, map, model)
}

#[track_caller]
fn assert_refused<T>(result: Result<T, Error>, kind: ErrorKind) {
    let error = result.err().expect("it is refused");
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.to_string().contains("cold-runs"), "{error}");
}

#[track_caller]
fn check(map: &mut Map<u64, u64>, model: &BTreeMap<u64, u64>) {
    for key in 0..KEYS + 50 {
        let found = map.read(&key, |found| found.copied()).unwrap();
        assert_eq!(found, model.get(&key).copied(), "{key}");
    }
    assert_eq!(map.len().unwrap(), model.len() as u64);
}

#[test]
fn entries_in_runs_expire_and_come_back_with_a_checkpoint() {
    let device = Simulated::new(1, Faults::none());
    let ttl = || Ttl::event_time(nanos(20_000));
    let store = builder(&device).open().unwrap();
    let mut map = store.expiring_map::<u64, u64>("map").layout(asked_for()).open(ttl()).unwrap();
    map.advance(Time(0)).unwrap();
    for key in 0..KEYS {
        map.advance(Time(key as i64)).unwrap();
        map.put(key, key * 3).map_err(|rejected| rejected.error).unwrap();
    }
    let stats = map.stats().unwrap();
    assert!(stats.runs.moved > KEYS / 4 && stats.expired > KEYS / 4, "{stats:?}");
    // What is over is not seen; hardly more is kept than what is there.
    let there = KEYS - 20_000;
    let kept = map.len().unwrap();
    assert!((20_000..30_000).contains(&kept), "{kept}");
    let check = |map: &mut ExpiringMap<u64, u64>, step: usize| {
        for key in (0..KEYS).step_by(step) {
            let found = map.read(&key, |found| found.copied()).unwrap();
            assert_eq!(found, (key >= there).then_some(key * 3), "{key}");
        }
    };
    check(&mut map, 7);
    store.checkpoint(1).unwrap();
    let kept = map.len().unwrap();
    drop((map, store));
    let store = builder(&device).open().unwrap();
    let mut map = store.expiring_map::<u64, u64>("map").layout(asked_for()).open(ttl()).unwrap();
    assert_eq!(map.len().unwrap(), kept);
    check(&mut map, 11);
    map.advance(Time(2 * KEYS as i64)).unwrap();
    for ticks in 0.. {
        if store.tick(5000).unwrap() == 0 {
            break;
        }
        assert!(ticks < 100_000, "never idle");
    }
    let stats = map.stats().unwrap();
    assert_eq!((map.len().unwrap(), stats.runs.keys, stats.runs.bytes), (0, 0, 0), "{stats:?}");
}

/// A load of entries that expire counts them by their last touch, as single puts do.
#[test]
fn entries_that_are_loaded_expire() {
    let device = Simulated::new(17, Faults::none());
    let store = builder(&device).open().unwrap();
    let map = store.expiring_map::<u64, u64>("map").layout(asked_for());
    let mut map = map.open(Ttl::event_time(nanos(20_000))).unwrap();
    let half = KEYS / 2;
    for (now, keys) in [(0, 0..half), (15_000, half..KEYS)] {
        map.advance(Time(now)).unwrap();
        let loaded = map.load(keys.map(|key| (key, key * 3)));
        assert_eq!(loaded.map_err(|rejected| rejected.error).unwrap(), half);
    }
    assert!(map.stats().unwrap().runs.moved > KEYS / 4);
    assert_eq!(map.len().unwrap(), KEYS);
    map.advance(Time(25_000)).unwrap();
    for key in (0..KEYS).step_by(7) {
        let found = map.read(&key, |found| found.copied()).unwrap();
        assert_eq!(found, (key >= half).then_some(key * 3), "{key}");
    }
    map.advance(Time(100_000)).unwrap();
    for ticks in 0.. {
        if store.tick(5000).unwrap() == 0 {
            break;
        }
        assert!(ticks < 100_000, "never idle");
    }
    // What is over is not seen; some of it may be in memory still.
    assert_eq!(map.stats().unwrap().runs.keys, 0);
    assert!((0..KEYS).step_by(7).all(|key| map.read(&key, |found| found.is_none()).unwrap()));
}

#[test]
fn a_checkpoint_of_keys_that_did_not_move_is_opened_with_a_mover() {
    let device = Simulated::new(2, Faults::none());
    // In little memory keys are not counted by group, unless groups move.
    for (memory, keys, counts) in [(MIB, KEYS, false), (2 * MIB, 3 * KEYS, true)] {
        let log = || AnyLayout::from(HybridLog::new().memory(memory).cold_runs_automatic());
        let store = builder(&device).open().unwrap();
        let name = format!("map in {memory}");
        let mut map: Map<u64, u64> = store.map(&name).layout(log()).open().unwrap();
        for key in 0..keys {
            map.put(key, key * 3).map_err(|rejected| rejected.error).unwrap();
        }
        let runs = map.stats().unwrap().runs;
        assert!(runs.keys > keys / 4, "{runs:?}");
        store.checkpoint(memory).unwrap();
        drop((map, store));
        for is_moved in [true, false] {
            let store = builder(&device).open().unwrap();
            let mover = store.mover("unit").unwrap();
            let again = store.map::<u64, u64>(&name).layout(log());
            let opened = if is_moved { again.moved_by(&mover).open() } else { again.open() };
            if is_moved && !counts {
                assert_refused(opened.map(drop), ErrorKind::Unsupported);
                continue;
            }
            let mut map = opened.unwrap();
            for key in (0..keys + 50).step_by(17) {
                let found = map.read(&key, |found| found.copied()).unwrap();
                assert_eq!(found, (key < keys).then_some(key * 3), "{key}");
            }
            assert_eq!(map.len().unwrap(), keys);
        }
    }
}

#[test]
fn other_stores_restore_key_groups_of_a_checkpoint_with_runs() {
    let device = Simulated::new(3, Faults::none());
    let (store, map, model) = filled(&device);
    store.checkpoint(1).unwrap();
    drop((map, store));
    for owned in [0..256, 0..100, 100..256] {
        let group_of = |key: &u64| KeyGroup::of(key.key_hash(), 256).0;
        let wanted: BTreeMap<u64, u64> = model
            .iter()
            .filter(|(key, _)| owned.contains(&group_of(key)))
            .map(|(k, v)| (*k, *v))
            .collect();
        let by_itself = AnyLayout::from(HybridLog::new().memory(2 * MIB));
        for layout in [AnyLayout::from(Heap::new()), without(), by_itself, asked_for()] {
            let target = Simulated::new(4, Faults::none());
            let source = Source::device(Arc::new(device.clone()));
            let store = builder(&target).owned_groups(owned.clone());
            let store = store.restore_from([source]).open().unwrap();
            let mut map: Map<u64, u64> = store.map("map").layout(layout).open().unwrap();
            for (key, value) in &wanted {
                assert_eq!(map.read(key, |found| found.copied()).unwrap(), Some(*value), "{key}");
            }
            assert_eq!(map.len().unwrap(), wanted.len() as u64);
        }
    }
    let store = builder(&device).open().unwrap();
    let mut map: Map<u64, u64> = store.map("map").layout(with_runs()).open().unwrap();
    check(&mut map, &model);
}

/// How many files of runs there are.
fn runs_of(device: &Simulated) -> usize {
    device.list().unwrap().iter().filter(|name| name.starts_with("run-")).count()
}

#[test]
fn a_heap_opens_a_checkpoint_with_runs_where_it_has_room() {
    let device = Simulated::new(5, Faults::none());
    let (store, map, mut model) = filled(&device);
    store.checkpoint(1).unwrap();
    drop((map, store));
    let store = builder(&device).open().unwrap();
    let small = AnyLayout::from(Heap::new().memory(MIB));
    let error = store.map::<u64, u64>("map").layout(small).open().map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OverBudget, "{error}");
    let text = error.to_string();
    assert!(text.contains("cold-runs") && text.contains(&model.len().to_string()), "{text}");
    drop(store);
    assert!(runs_of(&device) > 0);
    // What was refused has changed nothing.
    let store = builder(&device).open().unwrap();
    let heap = || AnyLayout::from(Heap::new());
    let mut map: Map<u64, u64> = store.map("map").layout(heap()).open().unwrap();
    check(&mut map, &model);
    assert!(runs_of(&device) > 0, "the checkpoint needs them");
    for key in (0..KEYS).step_by(5) {
        map.put(key, key + 1).map_err(|rejected| rejected.error).unwrap();
        model.insert(key, key + 1);
    }
    for key in (0..KEYS).step_by(9) {
        assert_eq!(map.remove(&key).unwrap(), model.remove(&key).is_some());
    }
    for position in 2..5 {
        store.checkpoint(position).unwrap();
    }
    assert_eq!(runs_of(&device), 0, "no retained checkpoint needs them");
    drop((map, store));
    for layout in [heap(), asked_for(), heap()] {
        let store = builder(&device).open().unwrap();
        let mut map: Map<u64, u64> = store.map("map").layout(layout).open().unwrap();
        check(&mut map, &model);
        // Most of it is in runs again, or in none.
        map.put(KEYS + 100, 1).map_err(|rejected| rejected.error).unwrap();
        model.insert(KEYS + 100, 1);
        store.checkpoint(9).unwrap();
    }
}

#[test]
fn a_heap_that_opened_runs_loses_nothing_before_its_first_checkpoint() {
    let device = Simulated::new(15, Faults::none());
    let (store, map, model) = filled(&device);
    store.checkpoint(1).unwrap();
    drop((map, store));
    let store = builder(&device).open().unwrap();
    let mut map: Map<u64, u64> =
        store.map("map").layout(AnyLayout::from(Heap::new())).open().unwrap();
    map.remove(&1).unwrap();
    map.clear().unwrap();
    // A checkpoint that is given up.
    let mut seal = store.seal(2).unwrap();
    seal.advance().unwrap();
    drop((seal, map, store));
    let store = builder(&device).open().unwrap();
    let mut map: Map<u64, u64> = store.map("map").layout(without()).open().unwrap();
    check(&mut map, &model);
}

#[test]
fn a_hybrid_log_without_the_option_opens_runs_and_keeps_them() {
    let device = Simulated::new(5, Faults::none());
    let (store, map, model) = filled(&device);
    store.checkpoint(1).unwrap();
    drop((map, store));
    let store = builder(&device).open().unwrap();
    let mut map: Map<u64, u64> = store.map("map").layout(without()).open().unwrap();
    check(&mut map, &model);
}

#[test]
fn entries_that_have_expired_in_runs_do_not_come_back_on_a_heap() {
    let device = Simulated::new(16, Faults::none());
    let ttl = |live| Ttl::event_time(nanos(live));
    let store = builder(&device).open().unwrap();
    let map = store.expiring_map::<u64, u64>("map").layout(asked_for());
    let mut map = map.open(ttl(20_000)).unwrap();
    for key in 0..KEYS {
        map.advance(Time(key as i64)).unwrap();
        map.put(key, key * 3).map_err(|rejected| rejected.error).unwrap();
    }
    assert!(map.stats().unwrap().runs.moved > KEYS / 4);
    store.checkpoint(1).unwrap();
    drop((map, store));
    let store = builder(&device).open().unwrap();
    let heap = AnyLayout::from(Heap::new());
    let mut map = store.expiring_map::<u64, u64>("map").layout(heap).open(ttl(90_000)).unwrap();
    for key in 0..KEYS {
        let found = map.read(&key, |found| found.copied()).unwrap();
        assert_eq!(found, (key >= KEYS - 20_000).then_some(key * 3), "{key}");
    }
}

#[test]
fn too_little_memory_for_the_option_is_told() {
    let device = Simulated::new(6, Faults::none());
    let store = builder(&device).open().unwrap();
    let small = HybridLog::new().cold_runs(true).memory(256 * KIB);
    let map = store.map::<u64, u64>("map").layout(AnyLayout::from(small)).open();
    assert_refused(map.map(drop), ErrorKind::OverBudget);
    let enough = HybridLog::new().cold_runs(true).memory(alluvium::config::COLD_RUNS_MEMORY_MIN);
    let map = store.map::<u64, u64>("map").layout(AnyLayout::from(enough)).open();
    map.unwrap().put(1, 1).unwrap();
}

#[test]
fn what_is_in_runs_is_exported_once_and_imported() {
    let device = Simulated::new(7, Faults::none());
    let (store, mut map, model) = filled(&device);
    let mut file = Vec::new();
    assert_eq!(store.export(&mut file).unwrap().entries, model.len() as u64);
    check(&mut map, &model);
    // The file is that of a heap map of the same entries.
    let heap = Store::in_memory().memory(4 * MIB).max_value(4 * KIB).open().unwrap();
    let mut there: Map<u64, u64> = heap.map("map").open().unwrap();
    heap.import(&file[..]).unwrap();
    check(&mut there, &model);
    let mut again = Vec::new();
    heap.export(&mut again).unwrap();
    assert!(again == file, "canonical files of equal contents are equal");
    // And a log with runs takes it.
    let other = Simulated::new(8, Faults::none());
    let store = builder(&other).open().unwrap();
    let mut map: Map<u64, u64> = store.map("map").layout(asked_for()).open().unwrap();
    store.import(&file[..]).unwrap();
    check(&mut map, &model);
    let mut visited = BTreeMap::new();
    map.for_each(|key, value| {
        assert!(visited.insert(*key, *value).is_none(), "{key} twice");
        Ok(())
    })
    .unwrap();
    assert_eq!(visited, model);
}

#[test]
fn what_is_in_runs_is_read_ahead_of_the_call() {
    let device = Simulated::new(9, Faults::none());
    let (store, mut map, model) = filled(&device);
    let runs = || store.stats().unwrap().state("map").unwrap().table;
    let (before, mut pending) = (runs(), 0);
    for key in (0..KEYS).step_by(3) {
        while let Fetch::Pending(_) = map.fetch(&key).unwrap() {
            pending += 1;
            map.fetched(|_| ()).unwrap();
        }
        let found = map.read(&key, |found| found.copied()).unwrap();
        assert_eq!(found, model.get(&key).copied(), "{key}");
    }
    assert_eq!(runs().fetches - before.fetches, pending);
    assert!(pending > KEYS / 60, "{pending}");
}

#[test]
fn without_a_directory_the_option_changes_nothing() {
    let store = Store::in_memory().memory(4 * MIB).open().unwrap();
    let layout = || AnyLayout::from(HybridLog::new().cold_runs(true));
    let mover = store.mover("unit").unwrap();
    let moved = store.map::<u64, u64>("moved").layout(layout()).moved_by(&mover).open();
    moved.unwrap().put(1, 1).unwrap();
    let expiring = store.expiring_map::<u64, u64>("m").layout(layout());
    expiring.open(Ttl::event_time(nanos(100))).unwrap().put(1, 1).unwrap();
}
