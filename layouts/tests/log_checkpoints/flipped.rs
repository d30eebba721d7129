//! A bit of a sorted run is wrong under a log that is open, or that opens: each answer is right, or an error that names the
//! file. No key is missing, and none that was deleted is back.

use std::collections::BTreeMap;
use std::sync::Arc;

use alluvium_layouts::{CheckpointOutcome, HybridLogTable, Table, Upkeep};
use alluvium_pagestore::io::{CrashPolicy, Simulated};
use alluvium_pagestore::{Error, ErrorKind, KeyHash, RunInfo, SegmentStore, StateImage};

use crate::dice::Dice;
use crate::log::{Model, entries, open};
use crate::runs::{KEYS, MEMORY, Run};

const BLOCK: u64 = 4096;

/// A log with records and tombstones in runs, and its checkpoint.
fn sample() -> (Run, StateImage) {
    let mut run = Run::new();
    (0..KEYS).step_by(9).for_each(|key| run.take(key));
    (0..KEYS).step_by(5).for_each(|key| run.put(key, key + 1));
    let (image, model) = run.checkpoint(CheckpointOutcome::Committed, |_| ());
    assert!(image.runs().count() > 0 && image.runs().any(|info| info.marked > 0));
    run.go_on(&image, model);
    (run, image)
}

/// What a run's file consists of: block numbers of chunks, and guides by offset and bytes.
struct Places {
    chunks: Vec<u64>,
    guides: Vec<(u64, u64)>,
    directory: u64,
}

fn places(info: &RunInfo, bytes: &[u8]) -> Places {
    let word = |at: u64| {
        let at = at as usize;
        u64::from(u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()))
    };
    let directory = u64::from(info.partitions) * 48 + 64;
    let directory = info.bytes - directory.next_multiple_of(BLOCK);
    let (mut chunks, mut guides) = (Vec::new(), Vec::new());
    for nth in 0..u64::from(info.partitions) {
        let entry = directory + nth * 48;
        let (first, blocks) = (word(entry + 16), word(entry + 20));
        chunks.extend(first..first + blocks);
        guides.push(((first + blocks) * BLOCK, word(entry + 24)));
    }
    Places { chunks, guides, directory }
}

/// The hashes of the records of a chunk.
fn hashes(bytes: &[u8], block: u64) -> Vec<u64> {
    let chunk = &bytes[(block * BLOCK) as usize..];
    let word = |at: usize| u32::from_le_bytes(chunk[at..at + 4].try_into().unwrap()) as usize;
    let mut at = 16;
    let mut next = || {
        let hash = u64::from_le_bytes(chunk[at..at + 8].try_into().unwrap());
        at += 16 + word(at + 8).next_multiple_of(16);
        hash
    };
    (0..word(8)).map(|_| next()).collect()
}

/// That an error says which file is wrong.
fn names(error: &Error, name: &str) {
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error:?}");
    assert_eq!(error.context("file"), Some(name), "{error:?}");
}

/// Looks keys up in each way that reads them. Says how often the file was named.
fn look_up(
    table: &mut HybridLogTable<u64, u64>,
    model: &Model<u64>,
    keys: &[u64],
    name: &str,
) -> u64 {
    let mut told = 0;
    let mut tell = |error: &Error| {
        names(error, name);
        told += 1;
    };
    for key in keys {
        match table.get(key) {
            Ok(found) => assert_eq!(found, model.get(key), "{key}, {name}"),
            Err(error) => tell(&error),
        }
    }
    let show = |key: &u64, found: Option<&u64>| assert_eq!(found, model.get(key), "{key}");
    if let Err(stopped) = table.read_batch(keys, |key| key, show) {
        tell(&stopped.error);
    }
    assert_eq!(table.len(), model.len() as u64);
    told
}

/// Changes keys in each way that reads them first. A call that fails has changed nothing.
fn change(
    table: &mut HybridLogTable<u64, u64>,
    model: &mut Model<u64>,
    keys: &[u64],
    name: &str,
) -> u64 {
    let mut told = 0;
    for (nth, key) in keys.iter().enumerate() {
        let new = *key + 7;
        let changed = match nth % 3 {
            0 => table.take(key).map(|taken| assert_eq!(taken, model.remove(key), "{key}")),
            1 => table.modify(key, |value| *value = new).map(|found| {
                assert_eq!(found.is_some(), model.contains_key(key), "{key}");
                model.entry(*key).and_modify(|value| *value = new);
            }),
            _ => table.put(*key, new).map_err(|rejected| rejected.error).map(|known| {
                assert_eq!(known, model.insert(*key, new).is_some(), "{key}");
            }),
        };
        if let Err(error) = changed {
            names(&error, name);
            told += 1;
        }
        assert_eq!(table.len(), model.len() as u64);
    }
    told
}

fn by_hash() -> BTreeMap<u64, u64> {
    (0..KEYS).map(|key| (key.key_hash(), key)).collect()
}

#[test]
fn of_a_chunk_under_an_open_log() {
    let (mut run, image) = sample();
    let (keys_by_hash, mut dice) = (by_hash(), Dice(1));
    let infos: Vec<RunInfo> = image.runs().cloned().collect();
    let (mut told, mut refused, mut flips) = (0, 0, 0);
    for nth in 0..120 {
        let info = &infos[dice.below(infos.len() as u64) as usize];
        let name = info.id.file_name();
        let Some(bytes) = run.device.bytes(&name) else { continue };
        let chunks = places(info, &bytes).chunks;
        let block = chunks[dice.below(chunks.len() as u64) as usize];
        let mut keys: Vec<u64> = hashes(&bytes, block)
            .iter()
            .filter_map(|hash| keys_by_hash.get(hash))
            .copied()
            .collect();
        keys.extend((0..10).map(|_| dice.below(KEYS + 1000)));
        let (offset, bit) = (block * BLOCK + dice.below(BLOCK), dice.below(8) as u32);
        run.device.corrupt(&name, offset, bit).unwrap();
        flips += 1;
        told += u64::from(look_up(&mut run.table, &run.model, &keys, &name) > 0);
        if nth % 4 == 0 {
            refused += change(&mut run.table, &mut run.model, &keys, &name);
        }
        run.device.corrupt(&name, offset, bit).unwrap();
        assert_eq!(look_up(&mut run.table, &run.model, &keys, &name), 0, "it is right again");
    }
    println!("{told} of {flips} told, {refused} changes refused");
    assert!(flips > 60 && told * 2 > flips && refused > 20, "{told} of {flips}, {refused}");
    assert_eq!(entries(&mut run.table).unwrap(), run.model);
}

#[test]
fn of_a_guide_a_directory_or_a_header_under_a_log_that_opens() {
    let (run, image) = sample();
    let device = run.device.crash(CrashPolicy::Everything);
    let infos: Vec<RunInfo> = image.runs().cloned().collect();
    let (mut dice, mut told) = (Dice(2), BTreeMap::<&str, (u64, u64)>::new());
    for nth in 0..90 {
        let info = &infos[dice.below(infos.len() as u64) as usize];
        let name = info.id.file_name();
        let bytes = device.bytes(&name).unwrap();
        let places = places(info, &bytes);
        let (at, len) = places.guides[dice.below(places.guides.len() as u64) as usize];
        let used = u64::from(info.partitions) * 48;
        let (what, offset) = match nth % 5 {
            // The header of a guide and the begin of its fence; its filter stands at the end.
            0 => ("fence", at + dice.below(60)),
            1 | 2 => ("filter", at + len / 2 + dice.below(len / 2)),
            3 => ("directory", places.directory + dice.below(used)),
            _ => ("header or tail", [dice.below(64), info.bytes - 1 - dice.below(64)][nth / 5 % 2]),
        };
        let copy = device.crash(CrashPolicy::Everything);
        copy.corrupt(&name, offset, dice.below(8) as u32).unwrap();
        let keys: Vec<u64> = (0..60).map(|_| dice.below(KEYS + 2000)).collect();
        // Guides stay in memory, or are read for each look-up.
        let memory = [MEMORY, 4 * MEMORY][nth % 2];
        let count = told.entry(what).or_default();
        count.0 += 1;
        count.1 += u64::from(opened(&run, &copy, &image, (memory, &keys, &name)) > 0);
    }
    println!("flipped, told: {told:?}");
    let all = told.values().all(|(_, told)| *told > 5);
    assert!(told.len() == 4 && all, "{told:?}");
}

/// Opens a log whose run is damaged, if it opens, and reads it. Says how often the file was named.
fn opened(
    run: &Run,
    device: &Simulated,
    image: &StateImage,
    (memory, keys, name): (u64, &[u64], &str),
) -> u64 {
    let segments = SegmentStore::new(Arc::new(device.clone()), 1 << 30);
    let mut table = match open::<u64>(&run.layout, &segments, memory, false, Some(image)) {
        Ok((table, _)) => table,
        Err(error) => {
            names(&error, name);
            return 1;
        }
    };
    let mut model = run.model.clone();
    look_up(&mut table, &model, keys, name) + change(&mut table, &mut model, keys, name)
}

/// Merges that read damage write nothing of it; when the bits are right again they go on.
#[test]
fn of_chunks_that_merges_read() {
    let (mut run, image) = sample();
    let (mut dice, mut flips) = (Dice(3), Vec::new());
    for info in image.runs() {
        let name = info.id.file_name();
        let chunks = places(info, &run.device.bytes(&name).unwrap()).chunks;
        let of_file = chunks.into_iter().step_by(5);
        flips.extend(of_file.map(|block| (name.clone(), block * BLOCK + 40 + dice.below(900))));
    }
    let flip = |run: &Run| {
        // Of files that are not named any more some may be gone.
        flips.iter().for_each(|(name, offset)| drop(run.device.corrupt(name, *offset, 2)));
    };
    flip(&run);
    for new in 0..6_000 {
        // A filter may be wrong about a new key, so that damage is read.
        match run.table.put((1 << 40) + new, new) {
            Ok(known) => assert_eq!(known, run.model.insert((1 << 40) + new, new).is_some()),
            Err(rejected) => {
                let name = rejected.error.context("file").unwrap().to_owned();
                names(&rejected.error, &name);
                assert!(flips.iter().any(|(flipped, _)| *flipped == name), "{name}");
            }
        }
    }
    flip(&run);
    let before = run.table.stats().runs;
    assert_eq!(entries(&mut run.table).unwrap(), run.model);
    (6_000..30_000).for_each(|new| run.put((1 << 40) + new, new));
    let after = run.table.stats().runs;
    println!("{before:?}\n{after:?}");
    assert!(after.moved > before.moved && after.merged_bytes > before.merged_bytes);
    assert_eq!(entries(&mut run.table).unwrap(), run.model);
}
