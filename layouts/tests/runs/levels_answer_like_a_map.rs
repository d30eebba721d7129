//! Levels that come and are merged in steps answer like a map, also where calls fail and memory is short.

use std::collections::BTreeMap;

use alluvium_layouts::runs_internals::{
    BoxedJudge, FAILED_MAX, HelpedStep, Judge, Levels, RecordView, RunSizes, verify,
};
use alluvium_pagestore::io::{Device, Faults, Simulated};
use alluvium_pagestore::{Account, ErrorKind, Helper, KIB, MIB, MemoryKind, Turns, hash_word};

use crate::common::*;
use crate::dice::Dice;

/// The newest record of a key, if it is there.
fn get(levels: &mut Levels, bits: u32, key: u64) -> alluvium_pagestore::Result<Option<Owned>> {
    let mut found = None;
    levels.find(hash_of(key, bits), &mut |record| {
        let is_it = key_of(&record) == key;
        if is_it {
            found = Some(Owned::of(&record)).filter(|one| one.mark != TOMBSTONE);
        }
        Ok(is_it)
    })?;
    Ok(found)
}

fn hash_of(key: u64, bits: u32) -> u64 {
    hash_word(key) >> (64 - bits) << (64 - bits)
}

/// Tries again while storage fails by chance.
fn again<T>(mut call: impl FnMut() -> alluvium_pagestore::Result<T>) -> T {
    for _ in 0..1000 {
        match call() {
            Ok(value) => return value,
            Err(error) => assert_eq!(error.kind(), ErrorKind::Io, "{error}"),
        }
    }
    panic!("storage never works");
}

fn play(seed: u64, bits: u32, memory: u64, faults: Faults) {
    // All at once, in parts of so many bytes, and in parts of so many partitions.
    for part_bytes in [Some(u64::MAX), Some(2_000 + seed % 7 * 3_000), None] {
        let shape = (bits, memory, part_bytes);
        play_with(seed, shape, faults, &Helper::inline());
        let turns = Turns::new(seed);
        play_with(seed, shape, faults, &Helper::in_turns(&turns).unwrap());
    }
}

/// The directories of what a merge writes stand beside those of what it merges, and so do its files: those of a part. Where
/// memory had no room for all of them no merge of all was begun.
#[test]
fn a_merge_takes_memory_and_storage_for_a_part_of_what_it_writes() {
    let (device, mut dice) = (device(1), Dice(5));
    let (store, limit) = (store(&device), 2 * MIB);
    let account = Account::below(&Account::root(limit), "cold", limit);
    let mut levels = Levels::new(store.clone(), account.clone(), STATE);
    let sizes = RunSizes { partition_hashes: 8, file_bytes: u64::MAX, ..small() };
    for _ in 0..2 {
        let batch = level(&mut dice, 10_000, 1 << 40, 64, 0);
        levels.add(&write(&store, sizes, &batch).unwrap()).unwrap();
    }
    let step = |levels: &mut Levels| {
        levels.step(64 * KIB, sizes, 8 << 10, |is_last| Newest { is_last }).unwrap()
    };
    let (before, needed) = (levels.stats(), levels.due_bytes(sizes, 8 << 10));
    let others = account.available() - needed + 1;
    account.reserve(MemoryKind::Pages, others, "others").unwrap();
    let written = device.stats().bytes_written;
    assert!(!step(&mut levels) && !levels.is_merging());
    assert_eq!(device.stats().bytes_written, written);
    // The last files of parts are short.
    account.release(MemoryKind::Pages, 1 + 24 * KIB);
    let most = before.directory_bytes + 48 * KIB;
    let mut most_bytes = 0;
    while levels.is_behind() {
        assert!(step(&mut levels) && account.used() <= limit);
        let stats = levels.stats();
        assert!(stats.directory_bytes <= most, "{stats:?} of {before:?}");
        most_bytes = most_bytes.max(stats.bytes);
    }
    let stats = levels.stats();
    println!("{before:?}, {most_bytes} bytes at most, {stats:?}");
    assert!(stats.levels == 1 && stats.merges > 10, "{stats:?}");
    assert!(stats.directory_bytes > 80 * KIB, "{stats:?}");
    assert!(most_bytes < before.bytes + before.bytes / 4, "{most_bytes} of {before:?}");
    account.release(MemoryKind::Pages, others - 1 - 24 * KIB);
}

/// Plays a history of levels, which are merged in parts of so many bytes, by a helper if it has a thread.
fn play_with(
    seed: u64,
    (bits, memory, part_bytes): (u32, u64, Option<u64>),
    faults: Faults,
    helper: &Helper,
) {
    let mut dice = Dice(seed);
    let device = Simulated::new(seed, faults);
    let store = store(&device);
    let account = Account::below(&Account::root(memory), "cold", memory);
    let levels = Levels::new(store.clone(), account.clone(), STATE).helped_by(helper);
    let mut levels = match part_bytes {
        Some(bytes) => levels.merged_in_parts_of(bytes),
        None => levels,
    };
    let mut parted = 0;
    let mut map: BTreeMap<u64, Owned> = BTreeMap::new();
    let keys = 700;
    let small = || {
        let is_short = part_bytes.is_none() && memory >= MIB;
        let partition_hashes = if is_short { 4 } else { small().partition_hashes };
        RunSizes { is_wide: seed % 2 == 1, partition_hashes, ..small() }
    };
    for _ in 0..40 {
        let batch = level(&mut dice, 20 + (seed * 31) % 120, keys, bits, 0);
        let runs = again(|| write(&store, small(), &batch));
        again(|| levels.add(&runs));
        for record in batch {
            map.insert(record.key, record);
        }
        for _ in 0..dice.below(8) {
            let fuel = 1 + dice.below(40_000);
            if levels.is_helped() {
                step_away(&mut levels, small(), dice.below(3) == 0);
            } else {
                again(|| levels.step(fuel, small(), 8 << 10, |is_last| Newest { is_last }));
            }
        }
        if levels.is_helped() && dice.below(10) == 0 {
            levels.give_up();
        }
        if dice.below(5) == 0 {
            let (first, length) = (hash_word(dice.below(1 << 40)), u64::MAX >> (2 + dice.below(6)));
            let last = first.saturating_add(length);
            match levels.cut(first, last) {
                Ok(()) => map.retain(|key, _| !(first..=last).contains(&hash_of(*key, bits))),
                Err(error) => assert_eq!(error.kind(), ErrorKind::OverBudget, "{error}"),
            }
        }
        parted = parted.max(levels.parted());
        for _ in 0..30 {
            let key = dice.below(keys + 50);
            let wanted = map.get(&key).filter(|one| one.mark != TOMBSTONE);
            let found = again(|| get(&mut levels, bits, key));
            assert!(found.as_ref() == wanted, "seed {seed}, key {key}");
            assert!(account.used() <= memory);
        }
        let hashes: Vec<u64> = (0..64).map(|nth| hash_of(nth * 13 % (keys + 50), bits)).collect();
        let each = levels.may_have_each(&hashes);
        for (nth, hash) in hashes.iter().enumerate() {
            let (alone, among) = (levels.may_have(*hash), each >> nth & 1 == 1);
            // One that stands in two partitions is not looked for.
            assert!(among == alone || among && bits < 64, "seed {seed}, hash {hash:#x}");
        }
    }
    let stats = levels.stats();
    let of_infos: u64 = levels.infos().iter().flatten().map(|info| info.records).sum();
    assert_eq!(stats.records, of_infos);
    let is_in_parts = part_bytes != Some(u64::MAX);
    assert!(stats.levels > 20 || memory >= MIB, "merges need memory: {stats:?}");
    assert!(stats.levels <= 20 || memory < MIB || is_in_parts, "levels are merged: {stats:?}");
    assert!(is_in_parts || parted == 0);
    assert!(!is_in_parts || parted > 0 || memory < MIB, "{stats:?}");
    if faults == Faults::none() {
        levels.infos().iter().flatten().for_each(|info| {
            verify(&store, info).unwrap();
        });
        levels.give_up();
        while !levels.has_left(true) {}
        let files = device.list().unwrap().len() as u64;
        assert_eq!(files, levels.stats().runs, "nothing is left over");
        // A restore adds the levels again, the oldest first.
        let mut restored = Levels::new(store, account.clone(), STATE);
        levels.infos().iter().rev().for_each(|runs| restored.add(runs).unwrap());
        for key in (0..keys).step_by(5) {
            let wanted = map.get(&key).filter(|one| one.mark != TOMBSTONE);
            assert!(get(&mut restored, bits, key).unwrap().as_ref() == wanted, "seed {seed}");
        }
    }
    again(|| levels.clear());
    assert_eq!(levels.stats().levels, 0);
    while !levels.has_left(true) {}
    drop(levels);
    assert_eq!(account.used(), 0);
}

/// Keeps all records.
struct All;

impl Judge for All {
    fn judge(&mut self, _: &[RecordView<'_>], _: &mut [bool]) -> alluvium_pagestore::Result<()> {
        Ok(())
    }
}

/// Batches come while levels are merged with as much fuel for each of them as is enough, one after the other: one merge of
/// all takes as long as hundreds of them.
#[test]
fn levels_stay_few_while_a_merge_of_all_goes_on() {
    let (mut most, mut written, mut parted) = ([0; 2], [0; 2], 0);
    for (nth, part_bytes) in [u64::MAX, 100 << 10].into_iter().enumerate() {
        let device = device(70);
        let store = store(&device);
        let levels = Levels::new(store.clone(), account(), STATE);
        let mut levels = levels.merged_in_parts_of(part_bytes);
        let (mut dice, mut moved) = (Dice(70), 0);
        for _ in 0..1_000 {
            let batch = level(&mut dice, 60, u64::MAX >> 8, 64, 0);
            let bytes: u64 = batch.iter().map(|one| one.value.len() as u64 + 32).sum();
            levels.add(&write(&store, small(), &batch).unwrap()).unwrap();
            levels.step(10 * bytes, small(), 8 << 10, |_| All).unwrap();
            most[nth] = levels.len().max(most[nth]);
            moved += bytes;
            parted = parted.max(levels.parted());
        }
        let records: u64 = levels.infos().iter().flatten().map(|info| info.records).sum();
        written[nth] = levels.stats().merged_bytes / moved;
        println!("{} levels, {most:?} at most, {records} records", levels.len());
    }
    println!("{most:?} levels, {written:?} bytes written a byte, {parted} merges in parts");
    assert!(most[0] > 60 && most[1] <= 32, "{most:?} levels");
    assert!(written[1] <= written[0] && parted == 3);
}

fn step_away(levels: &mut Levels, runs: RunSizes, is_patient: bool) -> HelpedStep {
    let sizes = (runs, 8 << 10);
    again(|| levels.step_away(sizes, is_patient, &mut |is_last| Box::new(Newest { is_last })))
}

#[test]
fn in_memory_for_all_guides() {
    (0..5).for_each(|seed| play(seed, 64, MIB, Faults::none()));
}

#[test]
fn of_keys_that_share_hashes() {
    (10..13).for_each(|seed| play(seed, 7, MIB, Faults::none()));
}

#[test]
fn where_memory_has_no_room_for_guides_nor_for_merges() {
    (20..23).for_each(|seed| play(seed, 64, 160 * KIB, Faults::none()));
}

#[test]
fn where_calls_fail_by_chance() {
    let faults = Faults {
        read_errors: 0.02,
        write_errors: 0.02,
        sync_errors: 0.02,
        directory_errors: 0.02,
        ..Faults::none()
    };
    (30..34).for_each(|seed| play(seed, 64, MIB, faults));
}

/// A merge on a helper ends although each share of it has a request that fails.
#[test]
fn a_merge_ends_whose_shares_all_fail() {
    let turns = Turns::new(60);
    let helper = Helper::in_turns(&turns).unwrap();
    let device = device(60);
    let (store, account) = (store(&device), account());
    let mut levels = Levels::new(store.clone(), account, STATE).helped_by(&helper);
    let mut dice = Dice(60);
    let sizes = RunSizes { file_bytes: u64::MAX, ..small() };
    for _ in 0..3 {
        let batch = level(&mut dice, 6000, 20_000, 64, 0);
        levels.add(&write(&store, sizes, &batch).unwrap()).unwrap();
    }
    let mut failed = 0;
    device.set_faults(Faults { read_errors: 0.2, write_errors: 0.2, ..Faults::none() });
    while levels.is_behind() {
        let judge_of = &mut |is_last| -> BoxedJudge { Box::new(Newest { is_last }) };
        let stepped = levels.step_away((sizes, 8 << 10), true, judge_of);
        failed += u32::from(stepped.is_err());
        let parts = levels.stats().merges;
        assert!(failed == 0 || levels.is_merging() || parts > 0, "it goes on");
        assert!(failed < 10_000);
    }
    assert!(failed > FAILED_MAX, "{failed}");
}

#[test]
fn merges_write_little_and_keep_little() {
    let device = device(50);
    let store = store(&device);
    let account = account();
    let mut levels = Levels::new(store.clone(), account.clone(), STATE);
    let keys = 10_000;
    let sizes = RunSizes::within(MIB, 64, 16);
    let batch_of = |keys: &mut Vec<u64>| {
        keys.sort_by_key(|key| hash_word(*key));
        keys.dedup();
        let of = |key: &u64| Owned {
            hash: hash_word(*key),
            order: Vec::new(),
            key: *key,
            mark: 0,
            value: vec![1; 56],
        };
        keys.iter().map(of).collect::<Vec<_>>()
    };
    let mut dice = Dice(50);
    let mut most_records = 0;
    let mut moved = 0;
    for nth in 0..80 {
        let mut batch: Vec<u64> = match nth {
            0 => (0..keys).collect(),
            _ => (0..keys / 20).map(|_| dice.below(keys)).collect(),
        };
        let batch = batch_of(&mut batch);
        let runs = write(&store, sizes.expecting(batch.len() as u64), &batch).unwrap();
        moved += runs.iter().map(|run| run.bytes).sum::<u64>();
        levels.add(&runs).unwrap();
        while levels.is_behind() {
            levels.step(64 << 10, sizes, 32 << 10, |is_last| Newest { is_last }).unwrap();
        }
        most_records = most_records.max(levels.stats().records);
    }
    let stats = levels.stats();
    let written = (stats.merged_bytes + moved) as f64 / moved as f64;
    println!("{written:.2} bytes written a byte moved, {most_records} records of {keys} keys");
    assert!(written <= 4.0, "{written}");
    assert!(most_records <= keys * 17 / 10, "{most_records}");
    assert!(stats.levels <= 7);
}
