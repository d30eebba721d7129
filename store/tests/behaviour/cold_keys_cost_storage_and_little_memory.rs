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
