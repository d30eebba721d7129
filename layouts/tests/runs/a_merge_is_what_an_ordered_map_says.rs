//! Merges of random levels, in steps of any fuel, are what the newest record of each key says.

use alluvium_layouts::runs_internals::{RunSizes, SortedRunCursor, verify};

use crate::common::*;
use crate::dice::Dice;

fn check(seed: u64, bits: u32, order_bytes: usize, fuel: u64) {
    let mut dice = Dice(seed);
    let device = device(seed);
    let store = store(&device);
    let sizes = RunSizes { order_bytes, groups_each: 1 + dice.below(16) as u16, ..small() };
    let levels: Vec<Vec<Owned>> = (0..1 + dice.below(5))
        .map(|nth| level(&mut dice, 100 << nth.min(4), 900, bits, order_bytes))
        .collect();
    let written: Vec<_> = levels.iter().map(|one| write(&store, sizes, one).unwrap()).collect();
    for is_last in [false, true] {
        let merged = merge(&store, sizes, &written, is_last, fuel).unwrap();
        let wanted = expected(&levels, is_last);
        let mut found = Vec::new();
        for info in &merged {
            verify(&store, info).unwrap();
            let mut cursor = SortedRunCursor::open(store.clone(), info, 8 << 10).unwrap();
            while let Some(record) = cursor.peek() {
                found.push(Owned::of(&record));
                cursor.advance().unwrap();
            }
        }
        assert!(found == wanted, "seed {seed}: {} of {}", found.len(), wanted.len());
        let account = account();
        let mut runs = open(&store, &merged, &account);
        for record in wanted.iter().step_by(3) {
            let of_hash = find(&mut runs, record.hash).unwrap();
            assert!(of_hash.contains(record), "seed {seed}: {record:?}");
        }
        assert_eq!(merged.iter().map(|info| info.records).sum::<u64>(), wanted.len() as u64);
        let marked = wanted.iter().filter(|record| record.mark != 0).count();
        assert_eq!(merged.iter().map(|info| info.marked).sum::<u64>(), marked as u64);
    }
}

#[test]
fn of_keys_with_hashes_of_their_own() {
    (0..12).for_each(|seed| check(seed, 64, 0, 1 + seed * 10_000));
}

#[test]
fn of_keys_that_share_hashes() {
    (20..26).for_each(|seed| check(seed, 6, 0, 5000));
}

#[test]
fn of_keys_with_an_order() {
    (30..38).for_each(|seed| check(seed, if seed % 2 == 0 { 64 } else { 5 }, 8, 20_000));
}

#[test]
fn of_records_that_have_no_room_to_be_judged() {
    // All keys have one hash: the newest comes first all the same.
    let device = device(40);
    let store = store(&device);
    let mut dice = Dice(40);
    let levels: Vec<_> = (0..3).map(|_| level(&mut dice, 800, 300, 0, 0)).collect();
    let written: Vec<_> = levels.iter().map(|one| write(&store, small(), one).unwrap()).collect();
    let merged = merge(&store, small(), &written, true, 1000).unwrap();
    let account = account();
    let found = find(&mut open(&store, &merged, &account), 1 << 50).unwrap();
    assert!(found.len() >= expected(&levels, true).len());
    for key in 0..300 {
        let newest = levels.iter().flatten().find(|record| record.key == key);
        let shown = found.iter().find(|record| record.key == key);
        let is_right =
            shown == newest || (shown.is_none() && newest.is_some_and(|one| one.mark == 1));
        assert!(is_right, "{key}: {shown:?} {newest:?}");
    }
}
