//! States whose cold records are in sorted runs: what is exported of the closed directory is what the open store had, each
//! key once, and a damaged run never gives a value that is not the key's.
//!
//! What this catches: dead copies, deleted and expired keys that come back, keys that are lost or there twice, packed
//! slices that are passed over in silence, older values shown where damage hides newer ones.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use alluvium::config::Helpers;
use alluvium::time::nanos;
use alluvium::types::hash_word;
use alluvium::{
    AnyLayout, AppendLog, HybridLog, KIB, Key, KeyHash, MIB, Map, State, Store, Time, Ttl,
};
use alluvium_inspect::{ClosedDirectory, ExportOptions, ExportSummary, export, verify};
use serde_json::Value;
use tempfile::TempDir;

use crate::common::lines;

/// A log most of whose records move.
fn with_runs() -> AnyLayout {
    HybridLog::new().memory(MIB).cold_runs(true).into()
}

fn open(place: &Path) -> Store {
    // Merges are in steps: the files are the same each time.
    let store = Store::builder(place).memory(4 * MIB).max_value(4 * KIB).retain(1);
    store.helpers(Helpers::Inline).open().unwrap()
}

fn put<K: Key, V: State>(map: &mut Map<K, V>, key: K, value: V) {
    map.put(key, value).map_err(|rejected| rejected.error).unwrap();
}

/// The keys and values of all lines, each key once.
fn entries(lines: &[String]) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for line in lines {
        let line: Value = serde_json::from_str(line).unwrap();
        let (key, value) = (line["key"].to_string(), line["value"].to_string());
        assert!(found.insert(key.clone(), value).is_none(), "{key} twice");
    }
    found
}

fn text_of(model: &BTreeMap<u64, u64>) -> BTreeMap<String, String> {
    model.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
}

/// A history of puts, deletes, and keys that move up again, most of it in runs of several levels.
fn filled(place: &Path, keys: u64) -> BTreeMap<u64, u64> {
    let store = open(place);
    let mut map: Map<u64, u64> = store.map("map").layout(with_runs()).open().unwrap();
    let mut model = BTreeMap::new();
    for key in 0..keys {
        put(&mut map, key, key * 3);
        model.insert(key, key * 3);
    }
    for round in 0..3u64 {
        for nth in 0..keys / 8 {
            let key = hash_word(nth * 3 + round) % keys;
            match hash_word(key + round) % 3 {
                0 => {
                    assert_eq!(map.remove(&key).unwrap(), model.remove(&key).is_some());
                }
                _ => {
                    put(&mut map, key, key + round * keys);
                    model.insert(key, key + round * keys);
                }
            }
        }
        store.checkpoint(round).unwrap();
    }
    let runs = store.stats().unwrap().state("map").unwrap().table.runs;
    assert!(runs.keys > keys / 4 && runs.levels > 1, "{runs:?}");
    let mut living = BTreeMap::new();
    map.for_each(|key, value| {
        living.insert(*key, *value);
        Ok(())
    })
    .unwrap();
    assert_eq!(living, model);
    model
}

#[test]
fn each_key_is_exported_once_with_its_newest_value() {
    let place = tempfile::tempdir().unwrap();
    let model = filled(place.path(), 60_000);
    for salvage in [false, true] {
        let options = ExportOptions { salvage, ..ExportOptions::default() };
        let (lines, done) = lines(place.path(), &options);
        assert!(done.skipped.is_empty() && done.damage.is_empty(), "{done:?}");
        assert_eq!(entries(&lines), text_of(&model));
    }
    let options = ExportOptions { limit: Some(50_000), ..ExportOptions::default() };
    let (lines, done) = lines(place.path(), &options);
    assert!(done.cut && lines.len() == 50_000);
}

#[test]
fn entries_that_have_expired_stay_away() {
    let place = tempfile::tempdir().unwrap();
    let store = open(place.path());
    let ttl = || Ttl::event_time(nanos(20_000));
    let mut map = store.expiring_map::<u64, u64>("map").layout(with_runs()).open(ttl()).unwrap();
    map.advance(Time(0)).unwrap();
    let keys = 60_000;
    for key in 0..keys {
        map.advance(Time(key as i64)).unwrap();
        map.put(key, key * 3).map_err(|rejected| rejected.error).unwrap();
    }
    assert!(map.stats().unwrap().runs.keys > 5000);
    store.checkpoint(1).unwrap();
    let count = map.len().unwrap();
    drop((map, store));
    let options = ExportOptions { state: Some("map".into()), ..ExportOptions::default() };
    let (lines, done) = lines(place.path(), &options);
    assert!(done.skipped.is_empty(), "{done:?}");
    // What is over and not removed yet is counted by an open store, too.
    let found = entries(&lines);
    assert_eq!(found.len() as u64, count);
    for key in keys - 20_000..keys {
        let value = format!("{{\"touched\":{key},\"value\":{}}}", key * 3);
        assert_eq!(found.get(&key.to_string()), Some(&value));
    }
}

/// A key whose hash is one that its type makes: other keys share it.
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
struct Crowded(u64);

impl KeyHash for Crowded {
    fn key_hash(&self) -> u64 {
        (self.0 / 2).key_hash()
    }
}

#[test]
fn keys_that_only_their_type_can_tell_apart_are_told() {
    let place = tempfile::tempdir().unwrap();
    let store = open(place.path());
    let mut map: Map<Crowded, u64> = store.map("map").layout(with_runs()).open().unwrap();
    let keys = 40_000;
    // Every fourth has a hash of its own; of the others two share one.
    let is_there = |key: &u64| key % 4 != 1;
    for key in (0..keys).filter(is_there) {
        put(&mut map, Crowded(key), key);
    }
    for key in (0..keys).filter(is_there).step_by(3) {
        put(&mut map, Crowded(key), key + 1);
    }
    store.checkpoint(1).unwrap();
    drop((map, store));
    let (lines, done) = lines(place.path(), &ExportOptions::default());
    let why = done.skipped.get("map").expect("it is told");
    assert!(why.contains("the same hash"), "{why}");
    let found = entries(&lines);
    let newest: BTreeMap<u64, u64> = (0..keys)
        .filter(is_there)
        .enumerate()
        .map(|(nth, key)| (key, key + u64::from(nth % 3 == 0)))
        .collect();
    let newest = text_of(&newest);
    assert!(found.iter().all(|(key, value)| newest.get(key) == Some(value)));
    // Those that share no hash are there, and of others the newest.
    for key in (0..keys).step_by(4) {
        assert!(found.contains_key(&key.to_string()), "{key}");
    }
    assert!(found.len() < newest.len());
}

#[test]
fn packed_slices_are_exported() {
    let place = tempfile::tempdir().unwrap();
    let store = open(place.path());
    let layout = AnyLayout::from(AppendLog::new().memory(MIB).packs_slices(true));
    let mut map = store.time_map::<u64, u64>("map").layout(layout).open(nanos(10)).unwrap();
    let mut model: BTreeMap<(i64, u64), Vec<(i64, u64)>> = BTreeMap::new();
    let first = 300;
    for n in 0..60_000u64 {
        let (at, key) = ((n / 20 * 10 + n % 10) as i64, n % 7);
        map.insert(&key, Time(at), n).map_err(|r| r.error).unwrap();
        if at >= first {
            model.entry((at / 10 * 10, key)).or_default().push((at, n));
        }
    }
    while !map.purge(Time(first), 100).unwrap() {}
    store.checkpoint(1).unwrap();
    drop((map, store));
    {
        let directory = ClosedDirectory::open(place.path()).unwrap();
        let verified = verify(&directory).unwrap();
        assert!(verified.is_sound() && verified.runs > 0, "{verified}");
    }
    for salvage in [false, true] {
        let options = ExportOptions { salvage, ..ExportOptions::default() };
        let (lines, done) = lines(place.path(), &options);
        assert!(done.damage.is_empty() && done.skipped.is_empty(), "{done:?}");
        let mut pieces: Vec<Value> =
            lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
        pieces.sort_by_key(|line| line["rank"].as_i64());
        let mut found: BTreeMap<(i64, u64), Vec<(i64, u64)>> = BTreeMap::new();
        for line in pieces {
            let place = (line["slice"].as_i64().unwrap(), line["key"].as_u64().unwrap());
            let elements: Vec<(i64, u64)> = serde_json::from_value(line["value"].clone()).unwrap();
            found.entry(place).or_default().extend(elements);
        }
        assert_eq!(found, model);
    }
}

/// Exports what is sound.
fn salvaged(directory: &ClosedDirectory) -> (BTreeMap<String, String>, ExportSummary) {
    let options = ExportOptions { salvage: true, ..ExportOptions::default() };
    let mut out = Vec::new();
    let done = export(directory, &options, &mut out).unwrap();
    let lines: Vec<_> = String::from_utf8(out).unwrap().lines().map(String::from).collect();
    (entries(&lines), done)
}

fn files_of(place: &TempDir, prefix: &str) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(place.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.starts_with(prefix))
        .collect();
    names.sort();
    names
}

#[test]
fn a_flipped_bit_of_a_run_gives_no_wrong_value_and_hides_little() {
    let place = tempfile::tempdir().unwrap();
    let model = text_of(&filled(place.path(), 30_000));
    // Removes what no checkpoint names.
    drop(open(place.path()));
    let directory = ClosedDirectory::open(place.path()).unwrap();
    let (mut flipped, mut lost_most) = (0, 0);
    for name in files_of(&place, "run-") {
        let path = place.path().join(&name);
        let bytes = fs::read(&path).unwrap();
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        for at in (0..bytes.len()).step_by(bytes.len() / 5 + 1).chain([9, bytes.len() - 9]) {
            file.write_all_at(&[bytes[at] ^ 16], at as u64).unwrap();
            let (found, done) = salvaged(&directory);
            let wrong = found.iter().find(|(key, value)| model.get(*key) != Some(value));
            assert_eq!(wrong, None, "{name} at {at}");
            let lost = model.len() - found.len();
            assert!(lost == 0 || !done.damage.is_empty(), "{name} at {at}: {lost} lost in silence");
            lost_most = lost_most.max(lost);
            flipped += 1;
            file.write_all_at(&bytes[at..=at], at as u64).unwrap();
        }
    }
    // A block, and what of the same hashes is older.
    assert!(flipped > 20 && (1..500).contains(&lost_most), "{flipped} {lost_most}");
    assert_eq!(salvaged(&directory).0, model);
}

#[test]
fn without_a_run_nothing_older_of_its_hashes_is_exported() {
    let place = tempfile::tempdir().unwrap();
    let model = text_of(&filled(place.path(), 30_000));
    drop(open(place.path()));
    let directory = ClosedDirectory::open(place.path()).unwrap();
    let mut sizes = BTreeSet::new();
    for name in files_of(&place, "run-").into_iter().chain(files_of(&place, "seg-")) {
        let path = place.path().join(&name);
        let bytes = fs::read(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let (found, done) = salvaged(&directory);
        let wrong = found.iter().find(|(key, value)| model.get(*key) != Some(value));
        assert_eq!(wrong, None, "{name}");
        assert!(done.damage.iter().any(|d| d.file.as_deref() == Some(&name)), "{name}: {done:?}");
        sizes.insert(found.len());
        // Another run, or another version of it, is none.
        fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
        let (found, done) = salvaged(&directory);
        assert!(found.iter().all(|(key, value)| model.get(key) == Some(value)), "{name}");
        assert!(!done.damage.is_empty(), "{name}");
        let mut out = Vec::new();
        export(&directory, &ExportOptions::default(), &mut out).unwrap_err();
        fs::write(&path, &bytes).unwrap();
    }
    assert!(sizes.iter().any(|size| *size > 1000), "{sizes:?}");
}
