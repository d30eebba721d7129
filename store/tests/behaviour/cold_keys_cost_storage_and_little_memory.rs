//! State whose index of all keys would not fit its memory: refused without sorted runs, and whole with them, through
//! checkpoints, opens, deletes and `clear`.

use std::collections::BTreeMap;

use alluvium::{ErrorKind, HybridLog, KIB, MIB, Map, Store};

const KEYS: u64 = 100_000;

fn open(place: &std::path::Path) -> Store {
    Store::builder(place).memory(4 * MIB).max_value(4 * KIB).retain(2).open().unwrap()
}

fn counts(store: &Store, on: bool) -> Map<u64, u64> {
    let layout = HybridLog::new().memory(MIB).cold_runs(on);
    store.map("counts").layout(layout.into()).open().unwrap()
}

fn add(all: &mut Map<u64, u64>, key: u64, amount: u64) -> alluvium::Result<()> {
    all.update(&key, || 0, |count| *count += amount)
}

#[test]
fn keys_of_four_times_the_index_are_counted_and_there_again() {
    let place = tempfile::tempdir().unwrap();
    {
        let store = open(place.path());
        let mut refused = counts(&store, false);
        let error =
            (0..KEYS).find_map(|key| add(&mut refused, key, 1).err()).expect("the index is full");
        assert_eq!(error.kind(), ErrorKind::OverBudget);
    }
    let store = open(place.path());
    let mut all = counts(&store, true);
    for key in 0..KEYS {
        add(&mut all, key, key + 1).unwrap();
    }
    store.checkpoint(1).unwrap();
    for key in (0..KEYS).step_by(45) {
        add(&mut all, key, 1).unwrap();
    }
    for key in (0..KEYS).step_by(105) {
        assert!(all.remove(&key).unwrap(), "{key}");
    }
    store.checkpoint(2).unwrap();
    let stats = store.stats().unwrap();
    let runs = stats.state("counts").unwrap().table.runs;
    assert!(runs.keys > KEYS / 2 && runs.keys < KEYS && runs.records >= runs.keys, "{runs:?}");
    assert!(runs.directory_bytes > 0 && runs.write_amplification().unwrap() > 1.0, "{runs:?}");
    assert!(stats.to_string().contains(&format!("runs of counts: {} keys", runs.keys)), "{stats}");
    // What is not in the checkpoint is gone after an open.
    add(&mut all, 5, 1000).unwrap();
    drop((all, store));
    let wanted = |key| match key {
        _ if key % 105 == 0 => None,
        _ if key % 45 == 0 => Some(key + 2),
        _ => Some(key + 1),
    };
    let live: BTreeMap<u64, u64> = (0..KEYS).filter_map(|k| Some((k, wanted(k)?))).collect();
    for _ in 0..2 {
        let store = open(place.path());
        let mut all = counts(&store, true);
        assert_eq!(all.len().unwrap(), live.len() as u64);
        // A read for each of them takes long on a busy machine.
        for key in (0..KEYS).step_by(47) {
            assert_eq!(all.read(&key, |found| found.copied()).unwrap(), wanted(key), "{key}");
        }
    }
    {
        let store = open(place.path());
        let mut found = BTreeMap::new();
        let mut twice = 0;
        let mut all = counts(&store, true);
        all.for_each(|key, count| {
            twice += u64::from(found.insert(*key, *count).is_some());
            Ok(())
        })
        .unwrap();
        assert!(twice == 0 && found == live, "{twice} twice, {} of {}", found.len(), live.len());
    }
    let store = open(place.path());
    let mut all = counts(&store, true);
    all.clear().unwrap();
    assert_eq!((all.len().unwrap(), all.read(&1, |found| found.copied()).unwrap()), (0, None));
    add(&mut all, 1, 1).unwrap();
    store.checkpoint(3).unwrap();
    store.checkpoint(4).unwrap();
    drop((all, store));
    drop(open(place.path()));
    let names = std::fs::read_dir(place.path()).unwrap();
    let runs =
        names.filter(|n| n.as_ref().unwrap().file_name().to_string_lossy().starts_with("run-"));
    assert_eq!(runs.count(), 0, "no checkpoint names a run any more");
}

/// Entries of the second load: of some keys two come, of which the last counts, and some keys are there.
fn more_entries() -> impl Iterator<Item = (u64, u64)> {
    (KEYS..2 * KEYS).flat_map(|key| {
        let twice = (key % 31 == 0).then_some((key, 0));
        let known = (key % 50 == 0).then_some((key - KEYS, 7));
        twice.into_iter().chain([(key, key + 1)]).chain(known)
    })
}

/// Nearly all keys of a load go to sorted runs at once. They are there as others are: known keys are put over, the last of
/// several counts, and a checkpoint has what was loaded before it.
#[test]
fn many_entries_are_loaded_and_there_again() {
    let place = tempfile::tempdir().unwrap();
    let check = |all: &mut Map<u64, u64>, keys: u64, wanted: &dyn Fn(u64) -> u64| {
        assert_eq!(all.len().unwrap(), keys);
        let mut found = BTreeMap::new();
        all.for_each(|key, count| {
            assert!(found.insert(*key, *count).is_none(), "{key} is shown twice");
            Ok(())
        })
        .unwrap();
        assert!(found == (0..keys).map(|key| (key, wanted(key))).collect(), "{}", found.len());
        for key in (0..keys).step_by(97) {
            assert_eq!(all.read(&key, |found| found.copied()).unwrap(), Some(wanted(key)));
        }
        assert_eq!(all.read(&keys, |found| found.copied()).unwrap(), None);
    };
    let first = |key| key + 1;
    let second = |key| if key < KEYS && key % 50 == 0 { 7 } else { key + 1 };
    let store = open(place.path());
    let mut all = counts(&store, true);
    assert_eq!(all.load((0..KEYS).map(|key| (key, first(key)))).unwrap(), KEYS);
    let runs = store.stats().unwrap().state("counts").unwrap().table.runs;
    assert!(runs.keys > KEYS / 10 * 9, "{runs:?}");
    store.checkpoint(1).unwrap();
    assert!(all.load(more_entries()).unwrap() > KEYS);
    check(&mut all, 2 * KEYS, &second);
    // What is not in the checkpoint is gone after an open.
    drop((all, store));
    let store = open(place.path());
    let mut all = counts(&store, true);
    check(&mut all, KEYS, &first);
    assert!(all.load(more_entries()).unwrap() > KEYS);
    store.checkpoint(2).unwrap();
    drop((all, store));
    let store = open(place.path());
    check(&mut counts(&store, true), 2 * KEYS, &second);
}
