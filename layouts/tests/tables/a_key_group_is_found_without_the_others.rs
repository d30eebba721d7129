//! A key group is scanned and removed by its hashes, while the other groups change.
//!
//! What this catches: keys of the group that are missed or seen twice because the table was split, or
//! records were written to storage, between two steps; keys of other groups that are seen or removed;
//! steps that look at the whole table; removing that reads; memory not given back.

use alluvium_layouts::{Cursor, Heap, HybridLog, Layout, StateContext, Table, VisitRun};
use alluvium_pagestore::{Account, KIB, KeyGroup, KeyHash, MIB};

use crate::key_groups::{GROUPS, context, hashes, history, in_order};

fn tiny() -> HybridLog {
    HybridLog::new().page_records(8).queue_depth(4).segment(16 * KIB)
}

#[test]
fn groups_are_scanned_and_removed_while_others_change() {
    for seed in 0..6 {
        let account = Account::root(8 * MIB);
        let heap = Heap::new().open(context(&account, seed)).unwrap();
        history(heap, seed, 3000, 400);
        assert_eq!(account.used(), 0);
        let account = Account::root(320 * KIB);
        let log = Layout::<u64, String>::open(&tiny(), context(&account, seed)).unwrap();
        let stats = history(log, seed, 3000, 400);
        assert!(stats.codec_calls > 1000, "hardly anything is on storage");
        assert_eq!(account.used(), 0);
        // Most records are in runs.
        let account = Account::root(512 * KIB);
        let layout = tiny().cold_entries(64);
        let log = Layout::<u64, String>::open(&layout, context(&account, seed)).unwrap();
        let stats = history(log, seed, 3000, 400);
        assert!(stats.runs.moved > 300, "{stats:?}");
        assert_eq!(account.used(), 0);
        // All in memory.
        let account = Account::root(8 * MIB);
        let log = Layout::<u64, String>::open(&HybridLog::new(), context(&account, seed)).unwrap();
        history(log, seed, 60_000, 60);
        assert_eq!(account.used(), 0);
    }
}

/// A scan of a group looks at about its part of the entries.
fn looked_at<T: Table<u64, u64>>(mut table: T) -> f64 {
    let keys = 300_000;
    for key in 0..keys {
        table.put(key, key).unwrap();
    }
    let (mut found, mut most) = (0, 0);
    for group in 0..GROUPS {
        let before = table.stats().sought;
        let mut cursor = Cursor::default();
        while !cursor.done {
            let count = &mut found;
            let visit: VisitRun<'_, _, _> = &mut |_, _, _| {
                *count += 1;
                Ok(())
            };
            let of_group = hashes(group);
            let table = in_order(&mut table);
            table.visit_hashes((), &of_group, &mut cursor, usize::MAX, visit).unwrap();
        }
        most = most.max(table.stats().sought - before);
    }
    assert_eq!(found, keys);
    most as f64 / keys as f64
}

#[test]
fn a_group_of_64_costs_a_64th() {
    let account = Account::root(64 * MIB);
    let heap = Heap::new().open(context(&account, 1)).unwrap();
    let log = Layout::<u64, u64>::open(&HybridLog::new(), context(&account, 1)).unwrap();
    for share in [looked_at(heap), looked_at(log)] {
        // The share of a group, and a part of the table at both ends.
        assert!(share < 1.6 / 64.0, "{share:.4} of the entries were looked at");
    }
}

/// All keys of one of many groups: the table is split as far as if there were all.
fn one_group<T: Table<u64, u64>>(mut table: T, group: u16, groups: u16, keys: usize) {
    let all = (0u64..).filter(|key| KeyGroup::of(key.key_hash(), groups).0 == group);
    for key in all.take(keys) {
        table.put(key, key).unwrap();
    }
    let (mut cursor, mut steps) = (Cursor::default(), 0);
    let hashes = KeyGroup(group).hashes(groups);
    let mut found = 0;
    while !cursor.done {
        let mut visit = |_: &u64, _, _: &[u64]| {
            found += 1;
            Ok(())
        };
        in_order(&mut table).visit_hashes((), &hashes, &mut cursor, 1, &mut visit).unwrap();
        steps += 1;
    }
    assert_eq!(found, keys);
    // A step looks at no more than a part.
    let most = table.stats().sought / steps;
    assert!(most <= 2000, "{most} looked at in a step");
}

#[test]
fn a_table_of_one_group_only_is_split_all_the_same() {
    let account = Account::root(64 * MIB);
    let open = || StateContext { key_groups: 256, owned: 0..256, ..context(&account, 1) };
    one_group(Heap::new().open(open()).unwrap(), 77, 256, 20_000);
    one_group(Layout::<u64, u64>::open(&HybridLog::new(), open()).unwrap(), 77, 256, 20_000);
}

#[test]
fn a_table_whose_entries_cannot_be_moved_says_so() {
    let account = Account::root(8 * MIB);
    let mut heap = Layout::<u64, u64>::open(&Heap::volatile(), context(&account, 1)).unwrap();
    assert!(heap.by_hash().is_none());
    let mut heap = Layout::<u64, u64>::open(&Heap::new(), context(&account, 1)).unwrap();
    assert!(heap.by_hash().is_some());
}

#[test]
fn the_hashes_of_groups_are_all_hashes_in_order() {
    for groups in [1u16, 3, 64, 256, 1000, 1 << 15] {
        let mut next = Some(0);
        for group in 0..groups {
            let range = KeyGroup(group).hashes(groups);
            assert_eq!(Some(*range.start()), next);
            for hash in [*range.start(), *range.end()] {
                assert_eq!(KeyGroup::of(hash, groups).0, group);
            }
            next = range.end().checked_add(1);
        }
        assert_eq!(next, None);
    }
}
