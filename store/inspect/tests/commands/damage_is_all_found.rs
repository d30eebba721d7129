//! Bytes of every file are changed, files are cut, exchanged and lost. `verify` tells each damage with
//! its file, or there is none: then what is exported is what was stored. Nothing panics.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use alluvium::config::Helpers;
use alluvium::{ErrorKind, HybridLog, MIB, Map, Store, Time};
use alluvium_inspect::{ClosedDirectory, Damage, ExportOptions, ExportSummary, export, verify};
use tempfile::TempDir;

use crate::common::tiny;

type Model = BTreeMap<u64, (u32, String)>;

fn open(place: &Path) -> Result<Store, alluvium::Error> {
    retaining(place, 1)
}

fn retaining(place: &Path, checkpoints: usize) -> Result<Store, alluvium::Error> {
    let store = Store::builder(place).memory(4 * MIB).max_value(4096).retain(checkpoints);
    store.helpers(Helpers::Inline).open()
}

/// A directory with segments that are live in full and others that are not, runs, a catalog.
fn sample() -> (TempDir, Model) {
    sample_of(1)
}

/// The same with the last checkpoints.
fn sample_of(checkpoints: usize) -> (TempDir, Model) {
    let place = tempfile::tempdir().unwrap();
    let store = retaining(place.path(), checkpoints).unwrap();
    let mut map: Map<u64, (u32, String)> = store.map("map").layout(tiny()).open().unwrap();
    let mut list = store.list::<u8, u64>("list").open().unwrap();
    let mut timers = store.timers::<u64>("timers").unwrap();
    let mut model = Model::new();
    for round in 1..=2u32 {
        for key in 0..60 {
            let value = (round, "text ".repeat(key as usize % 9));
            map.put(key * u64::from(round), value.clone()).map_err(|r| r.error).unwrap();
            model.insert(key * u64::from(round), value);
            list.append(&(key as u8 % 7), key).map_err(|r| r.error).unwrap();
        }
        store.checkpoint(round.into()).unwrap();
    }
    for key in [5, 7, 11] {
        assert!(map.remove(&key).unwrap());
        model.remove(&key);
    }
    list.clear(&3).unwrap();
    timers.set(4, Time(9)).unwrap();
    store.checkpoint(3).unwrap();
    drop((map, list, timers, store));
    // Removes what no checkpoint names.
    drop(retaining(place.path(), checkpoints).unwrap());
    (place, model)
}

fn files(place: &Path) -> Vec<String> {
    let names = fs::read_dir(place).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.filter(|name| name != "LOCK").collect();
    names.sort();
    names
}

fn exported(directory: &ClosedDirectory) -> Result<String, alluvium::Error> {
    let mut out = Vec::new();
    export(directory, &ExportOptions::default(), &mut out)?;
    Ok(String::from_utf8(out).unwrap())
}

/// Whether the damage was found; if it was not, that there is none. If `sound` is given, that what is
/// exported is that, or an error.
fn found(directory: &ClosedDirectory, file: &str, sound: Option<&String>, when: &str) -> bool {
    let verified = verify(directory).unwrap_or_else(|error| panic!("{when}: {error}"));
    let told = verified.damage.iter().any(|damage| {
        assert!(damage.what.len() > 5, "{when}: {damage}");
        damage.file.as_deref() == Some(file)
    });
    assert!(told || verified.is_sound(), "{when}: {verified}");
    let Some(sound) = sound else { return told };
    match exported(directory) {
        Ok(lines) => assert!(lines == *sound, "{when}: wrong lines"),
        Err(error) => {
            assert!(!verified.is_sound(), "{when}: {error}");
            assert!(error.to_string().len() > 10);
        }
    }
    told
}

#[test]
fn a_changed_byte_is_told_or_harmless() {
    let (place, _) = sample();
    let directory = ClosedDirectory::open(place.path()).unwrap();
    let sound = exported(&directory).unwrap();
    assert!(verify(&directory).unwrap().is_sound());
    assert!(files(place.path()).iter().any(|name| name.starts_with("live-")));
    let (mut told, mut padding, mut unnamed) = (0, 0, 0);
    for name in files(place.path()) {
        let path = place.path().join(&name);
        let bytes = fs::read(&path).unwrap();
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        let mut told_here = 0;
        // Each 7th byte, fewer of the zeros, which are padding for the most part.
        let places = (0..bytes.len()).filter(|at| match bytes[*at] {
            0 => at % 607 == 0,
            _ => at % 7 == 0 || *at < 64 || *at >= bytes.len() - 64,
        });
        for at in places {
            let bit = 1 << (at % 8);
            file.write_all_at(&[bytes[at] ^ bit], at as u64).unwrap();
            let when = format!("bit {bit} at {at} of {name}");
            // Damage is exported now and then, what may be padding always.
            let exports = told_here % 8 == 0 || bytes[at] == 0;
            match found(&directory, &name, exports.then_some(&sound), &when) {
                true => told_here += 1,
                // Padding has no checksum, and is told apart.
                false if is_padding(&directory, &name, at) => padding += 1,
                // What is between sets of live records, no checkpoint names.
                false if bytes[at] == 0 && name.starts_with("live-") => unnamed += 1,
                false => panic!("{when}: not found"),
            }
            file.write_all_at(&bytes[at..=at], at as u64).unwrap();
        }
        assert!(told_here > 0, "{name}");
        told += told_here;
    }
    assert!(verify(&directory).unwrap().is_sound());
    println!("{told} told, {padding} of padding, {unnamed} that no checkpoint names");
    assert!(told > 1000 && padding > 10, "{told} {padding}");
}

/// Whether the changed byte is told to be padding, and not called as it was written.
fn is_padding(directory: &ClosedDirectory, file: &str, at: usize) -> bool {
    let verified = verify(directory).unwrap();
    let is_told = verified
        .padding
        .iter()
        .any(|padding| (padding.file.as_deref(), padding.offset) == (Some(file), Some(at as u64)));
    assert_eq!(is_told, !verified.to_string().contains("all is as it was written"), "{verified}");
    is_told
}

/// Salvaged lines: what is sound, and what was passed over.
fn salvaged(
    directory: &ClosedDirectory,
    checkpoint: Option<u64>,
) -> (BTreeSet<String>, ExportSummary) {
    let mut out = Vec::new();
    let options = ExportOptions { checkpoint, salvage: true, ..ExportOptions::default() };
    let done = export(directory, &options, &mut out).unwrap();
    let lines: Vec<String> = String::from_utf8(out).unwrap().lines().map(String::from).collect();
    let set: BTreeSet<String> = lines.iter().cloned().collect();
    assert_eq!((set.len(), lines.len() as u64), (lines.len(), done.lines), "each line once");
    (set, done)
}

/// Whatever one byte is: what is salvaged is what was stored, all else is told, and the lines that are
/// lost are few unless it is a catalog, or what tells which records are live.
#[test]
fn what_is_sound_is_salvaged_and_the_rest_is_told() {
    let (place, _) = sample_of(2);
    let directory = ClosedDirectory::open(place.path()).unwrap();
    let sound: BTreeSet<String> = exported(&directory).unwrap().lines().map(String::from).collect();
    let (all, done) = salvaged(&directory, None);
    assert_eq!((&all, done.damage.len(), done.checkpoint), (&sound, 0, 3));
    let (mut whole, mut in_part) = (0, 0);
    for name in files(place.path()) {
        let path = place.path().join(&name);
        let bytes = fs::read(&path).unwrap();
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        let places = (0..bytes.len()).filter(|at| bytes[*at] != 0 || at % 607 == 0);
        for at in places.step_by(11) {
            file.write_all_at(&[bytes[at] ^ 4], at as u64).unwrap();
            let when = format!("byte {at} of {name}");
            let (lines, done) = salvaged(&directory, None);
            match done.checkpoint {
                3 => assert!(lines.is_subset(&sound), "{when}"),
                // The newest cannot be read, and is told.
                before => assert_eq!((before, &*name), (2, "checkpoint-0000000000000003")),
            }
            let is_told = !done.damage.is_empty() || !done.skipped.is_empty();
            assert!(is_told || lines == sound, "{when}: {} lines", lines.len());
            if is_told {
                let of_it = |damage: &Damage| damage.file.as_deref() == Some(&*name);
                assert!(done.damage.iter().any(of_it), "{when}: {done:?}");
            }
            *if lines == sound { &mut whole } else { &mut in_part } += 1;
            file.write_all_at(&bytes[at..=at], at as u64).unwrap();
        }
    }
    assert!(whole > 100 && in_part > 50, "{whole} {in_part}");
}

#[test]
fn one_damaged_record_costs_one_line_and_a_lost_manifest_none() {
    let (place, _) = sample_of(2);
    let directory = ClosedDirectory::open(place.path()).unwrap();
    let (sound, _) = salvaged(&directory, None);
    let (older, done) = salvaged(&directory, Some(2));
    assert_eq!(done.checkpoint, 2);
    let manifest = fs::read(place.path().join("MANIFEST")).unwrap();
    let path = place.path().join("MANIFEST");
    fs::write(&path, &manifest[..100]).unwrap();
    // Without being asked to salvage it says what there is.
    let error = exported(&directory).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert_eq!(error.context("checkpoints there"), Some("3, 2"), "{error:?}");
    let (lines, done) = salvaged(&directory, None);
    assert_eq!((&lines, done.checkpoint, done.damage.len()), (&sound, 3, 1));
    assert_eq!(salvaged(&directory, Some(2)).0, older);
    fs::remove_file(&path).unwrap();
    assert_eq!(salvaged(&directory, None).0, sound);
    fs::write(&path, &manifest).unwrap();
    // The first record of each segment in turn.
    let mut lost_one = 0;
    for name in files(place.path()).into_iter().filter(|name| name.starts_with("seg-")) {
        let path = place.path().join(&name);
        let bytes = fs::read(&path).unwrap();
        let mut damaged = bytes.clone();
        damaged[4096 + 17] ^= 1;
        fs::write(&path, &damaged).unwrap();
        let (lines, done) = salvaged(&directory, None);
        assert!(lines.is_subset(&sound));
        let lost = sound.len() - lines.len();
        assert_eq!(lost > 0, !done.damage.is_empty(), "{name}: {lost} lost, {done:?}");
        lost_one += usize::from(lost == 1);
        fs::write(&path, &bytes).unwrap();
    }
    assert!(lost_one > 0);
}

#[test]
fn all_damage_is_told_and_not_only_the_first() {
    let (place, _) = sample();
    let directory = ClosedDirectory::open(place.path()).unwrap();
    let before = verify(&directory).unwrap();
    let mut expected = Vec::new();
    for name in files(place.path()).into_iter().filter(|name| name.starts_with("seg-")) {
        let path = place.path().join(&name);
        let file = fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
        // The first record, the header, the tail.
        for at in [4096 + 17, 20, file.metadata().unwrap().len() - 40] {
            let mut byte = [0];
            file.read_exact_at(&mut byte, at).unwrap();
            file.write_all_at(&[byte[0] ^ 0x40], at).unwrap();
        }
        expected.extend([(name.clone(), 0), (name, 4096)]);
    }
    let verified = verify(&directory).unwrap();
    for (name, offset) in &expected {
        let of = |d: &&Damage| d.file.as_ref() == Some(name) && d.offset == Some(*offset);
        assert_eq!(verified.damage.iter().filter(of).count(), 1, "{name} {offset}: {verified}");
    }
    let segments = expected.len() as u64 / 2;
    assert_eq!(verified.damage.len() as u64, 3 * segments, "{verified}");
    // All other records were read all the same.
    assert_eq!((before.records - verified.records, verified.images), (segments, before.images));
    assert_eq!(verified.segments, segments);
}

#[test]
fn files_that_are_cut_exchanged_or_lost_are_told() {
    let (place, _) = sample();
    let directory = ClosedDirectory::open(place.path()).unwrap();
    let sound = exported(&directory).unwrap();
    let names = files(place.path());
    for (i, name) in names.iter().enumerate() {
        let path = place.path().join(name);
        let bytes = fs::read(&path).unwrap();
        for length in [0, 1, 63, 64, 4095, 4096, bytes.len() / 2, bytes.len() - 1] {
            fs::write(&path, &bytes[..length.min(bytes.len() - 1)]).unwrap();
            let when = format!("{name} cut to {length}");
            assert!(found(&directory, name, Some(&sound), &when), "{when}");
        }
        let other = fs::read(place.path().join(&names[(i + 1) % names.len()])).unwrap();
        fs::write(&path, &other).unwrap();
        assert!(found(&directory, name, Some(&sound), &format!("{name} exchanged")));
        if name != "MANIFEST" {
            fs::remove_file(&path).unwrap();
            let verified = verify(&directory).unwrap();
            let is_told = |told: &Damage| told.to_string().contains(name.as_str());
            assert!(verified.damage.iter().any(is_told), "{name} lost: {verified}");
        }
        fs::write(&path, &bytes).unwrap();
    }
    fs::remove_file(place.path().join("MANIFEST")).unwrap();
    assert_eq!(verify(&directory).unwrap_err().kind(), ErrorKind::Missing);
}

/// What `verify` calls sound, opens with the right values; what it does not, opens so or with words.
#[test]
fn what_is_sound_opens_with_the_right_values() {
    let (place, model) = sample();
    for name in files(place.path()) {
        let bytes = fs::read(place.path().join(&name)).unwrap();
        let step = bytes.len() / 5 + 1;
        for at in (5..bytes.len()).step_by(step) {
            let copy = tempfile::tempdir().unwrap();
            for file in files(place.path()) {
                fs::copy(place.path().join(&file), copy.path().join(&file)).unwrap();
            }
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x10;
            fs::write(copy.path().join(&name), damaged).unwrap();
            let is_sound = {
                let directory = ClosedDirectory::open(copy.path()).unwrap();
                verify(&directory).unwrap().is_sound()
            };
            match values(copy.path()) {
                Ok(found) => assert_eq!(found, model, "{name} {at}"),
                Err(error) => assert!(!is_sound && error.to_string().len() > 10, "{name} {at}"),
            }
        }
    }
}

fn values(place: &Path) -> Result<Model, alluvium::Error> {
    let store = open(place)?;
    let mut map: Map<u64, (u32, String)> = store.map("map").layout(tiny()).open()?;
    let mut found = Model::new();
    map.for_each(|key, value| {
        found.insert(*key, value.clone());
        Ok(())
    })?;
    Ok(found)
}

#[test]
fn a_changed_byte_of_a_sorted_run_is_told() {
    let place = tempfile::tempdir().unwrap();
    let store = open(place.path()).unwrap();
    let layout = HybridLog::new().memory(MIB).cold_runs(true);
    let mut map: Map<u64, u64> = store.map("map").layout(layout.into()).open().unwrap();
    for key in 0..40_000 {
        map.put(key, key).map_err(|rejected| rejected.error).unwrap();
    }
    for key in (0..4000).step_by(50) {
        assert!(map.remove(&key).unwrap());
    }
    store.checkpoint(3).unwrap();
    drop((map, store));
    // Removes what no checkpoint names.
    drop(open(place.path()).unwrap());
    let directory = ClosedDirectory::open(place.path()).unwrap();
    let verified = verify(&directory).unwrap();
    assert!(verified.is_sound() && verified.runs > 0, "{verified}");
    let runs: Vec<_> = files(place.path()).into_iter().filter(|n| n.starts_with("run-")).collect();
    assert_eq!(runs.len() as u64, verified.runs);
    let name = &runs[0];
    let path = place.path().join(name);
    let bytes = fs::read(&path).unwrap();
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    let places = (0..bytes.len()).filter(|at| bytes[*at] != 0);
    for at in places.step_by(bytes.len() / 80 + 1) {
        file.write_all_at(&[bytes[at] ^ 4], at as u64).unwrap();
        assert!(found(&directory, name, None, &format!("{name} at {at}")), "{name} at {at}");
        file.write_all_at(&bytes[at..=at], at as u64).unwrap();
    }
    assert!(verify(&directory).unwrap().is_sound());
}
