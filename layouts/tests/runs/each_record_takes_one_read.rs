//! A record that is there takes one aligned read, one that is not next to none; without guides in memory, one more.

use std::slice::from_ref;

use alluvium_layouts::runs_internals::{RunReads, RunSizes, verify};
use alluvium_pagestore::io::Device;
use alluvium_pagestore::{Account, KIB, KeyGroup, MIB, hash_word};

use crate::common::*;

fn counters(count: u64) -> Vec<Owned> {
    let of = |key: u64| Owned {
        hash: hash_word(key),
        order: Vec::new(),
        key,
        mark: 0,
        value: vec![key as u8; 56],
    };
    let mut records: Vec<Owned> = (0..count).map(of).collect();
    records.sort();
    records
}

#[test]
fn one_read_a_hit_and_a_fiftieth_of_one_an_absent_key() {
    read_by_count(false, (500, 1.5));
}

/// Filters of two bytes a slot.
#[test]
fn one_read_a_hit_and_next_to_none_an_absent_key() {
    read_by_count(true, (6, 2.8));
}

/// Counts reads: fewer are of 50,000 absent keys than told, and guides take fewer bytes a key.
fn read_by_count(is_wide: bool, (wrong_max, bytes_max): (u64, f64)) {
    let (device, account) = (device(1), account());
    let store = store(&device);
    let records = counters(60_000);
    let sizes = RunSizes::within(2 * MIB, 1024, 128).expecting(60_000);
    let infos = write(&store, RunSizes { is_wide, ..sizes }, &records).unwrap();
    let mut runs = open(&store, &infos, &account);
    // Each guide is read once.
    records.iter().step_by(50).for_each(|record| drop(find(&mut runs, record.hash).unwrap()));
    let reads = |device: &dyn Device| device.stats().reads;
    let before = reads(&device);
    for record in records.iter().step_by(7) {
        assert_eq!(find(&mut runs, record.hash).unwrap(), from_ref(record));
    }
    assert_eq!(reads(&device) - before, records.len().div_ceil(7) as u64);
    let before = reads(&device);
    let absent = 50_000;
    for key in 0..absent {
        assert!(find(&mut runs, hash_word(1 << 40 | key)).unwrap().is_empty());
    }
    let wrong = reads(&device) - before;
    assert!(wrong < wrong_max, "{wrong} reads of {absent} absent keys");
    let guides: u64 = runs.iter().map(|run| run.memory_bytes().0).sum();
    let bytes_a_key = guides as f64 / records.len() as f64;
    println!("{bytes_a_key:.2} bytes a key, {wrong} reads of {absent} absent keys");
    assert!(bytes_a_key < bytes_max, "{bytes_a_key}");
    assert_eq!(account.used_for(alluvium_pagestore::MemoryKind::Index), guides);
    let told: u64 = infos.iter().map(|info| verify(&store, info).unwrap().records).sum();
    assert_eq!(told, 60_000);
}

#[test]
fn without_memory_for_guides_a_look_up_reads_them() {
    let device = device(2);
    let store = store(&device);
    let mut records = counters(20_000);
    let infos = write(&store, RunSizes::within(2 * MIB, 1024, 16), &records).unwrap();
    // In the order of hashes each guide would be read once.
    records.sort_by_key(|record| record.key);
    let account = Account::below(&Account::root(64 * KIB), "cold", 20 * KIB);
    let mut runs = open(&store, &infos, &account);
    for record in records.iter().step_by(3) {
        assert_eq!(find(&mut runs, record.hash).unwrap(), from_ref(record));
        assert!(account.used() <= account.limit());
    }
    let sum = |of: fn(&RunReads) -> u64| runs.iter().map(|run| of(&run.reads())).sum::<u64>();
    let (chunks, guides, asked) = (sum(|r| r.chunks), sum(|r| r.guides), sum(|r| r.asked));
    assert_eq!(chunks, asked);
    assert!(guides > asked / 2 && guides < asked, "{guides} of {asked}");
    // What is given up is read again.
    for run in &mut runs {
        run.give_up(u64::MAX);
        assert_eq!(run.memory_bytes().0, 0);
    }
    assert_eq!(find(&mut runs, records[0].hash).unwrap(), [records[0].clone()]);
    drop(runs);
    assert_eq!(account.used(), 0);
}

#[test]
fn partitions_end_with_key_groups() {
    let device = device(3);
    let store = store(&device);
    let (records, account) = (counters(30_000), account());
    let sizes = RunSizes { key_groups: 128, ..RunSizes::within(2 * MIB, 1024, 128) };
    for groups_each in [1, 5, 128] {
        let sizes = RunSizes { groups_each, ..sizes };
        let infos = write(&store, sizes, &records).unwrap();
        let partitions: u32 = infos.iter().map(|info| info.partitions).sum();
        assert!(partitions >= (128 / u32::from(groups_each)), "{partitions}");
        for run in open(&store, &infos, &account) {
            for group in 0..128 {
                let hashes = KeyGroup(group).hashes(128);
                let (first, last) =
                    (run.partitions_of(*hashes.start()), run.partitions_of(*hashes.end()));
                // A partition that a group ends in begins in no group of another share.
                if groups_each == 1 {
                    assert!(first.end <= last.end && last.len() <= 1 && first.len() <= 1);
                }
            }
        }
    }
    let few = sizes.expecting(1000);
    assert!(few.groups_each == 128 || few.groups_each > 100, "{}", few.groups_each);
    assert_eq!(sizes.expecting(1 << 40).groups_each, 1);
}

#[test]
fn a_hash_with_many_records_is_found_whole() {
    let device = device(4);
    let store = store(&device);
    let sizes = RunSizes { order_bytes: 8, ..small() };
    let mut records: Vec<Owned> = Vec::new();
    for (hash, count) in [(5, 1), (1 << 40, 9000), (1 << 50, 3), (u64::MAX, 700)] {
        records.extend((0..count).map(|nth: u64| Owned {
            hash,
            order: nth.to_be_bytes().to_vec(),
            key: nth,
            mark: 0,
            value: vec![7; if nth % 1000 == 5 { 9000 } else { 20 }],
        }));
    }
    let infos = write(&store, sizes, &records).unwrap();
    assert!(infos.len() > 1, "the hash is in several files");
    let account = account();
    let mut runs = open(&store, &infos, &account);
    for hash in [5, 1 << 40, 1 << 50, u64::MAX, 6] {
        let wanted: Vec<Owned> = records.iter().filter(|one| one.hash == hash).cloned().collect();
        assert_eq!(find(&mut runs, hash).unwrap(), wanted);
    }
}
