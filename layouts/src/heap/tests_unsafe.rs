//! The raw table against a map: entries of all sizes and alignments, equal hashes, drop glue, panics.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use alluvium_pagestore::{Account, hash_word};

use super::group_unsafe::BLOCK_ENTRIES_MAX;
use super::growing_unsafe::EXPECTED_BLOCKS_MAX;
use super::made::{NumberedValue, Wide};
use super::probing_unsafe::SlotHint;
use super::raw_table_unsafe::{EntryPosition, RawTable};
use super::walk::TableWalk;
use crate::heap::hash_range::HashRange;
use crate::heap::record_position::RecordPosition;
use crate::support::first_panic::FirstPanic;
use crate::support::record_type_unsafe::in_memory::{self, HashBy};
use crate::support::record_type_unsafe::{NativeEntry, RecordType};

fn table_of(record_type: &'static RecordType, limit: u64) -> RawTable {
    RawTable::new(record_type, Account::root(limit), HashRange::of(&(0..256), 256))
}

/// What stands in the tests' tables: the number is a part of the key, so that it can be compared.
type Of<V> = NativeEntry<u64, V>;

fn add<V: NumberedValue>(table: &mut RawTable, hash: u64, n: u64) -> EntryPosition {
    table.make_room(hash).unwrap();
    // SAFETY: the table is of these types, and the entry is written at once.
    unsafe {
        let (at, spot) = table.claim(hash);
        at.cast::<Of<V>>().write(NativeEntry { key: n, value: V::of(n) });
        spot
    }
}

fn find<V: NumberedValue>(table: &RawTable, hash: u64, n: u64) -> Option<EntryPosition> {
    // SAFETY: the table is of these types.
    let found = unsafe { table.probe(hash, |entry: &Of<V>| entry.key == n) }?;
    // SAFETY: it is there.
    assert!(unsafe { found.entry.as_ref() }.value.is(n), "{n} has another value");
    Some(found.spot())
}

fn find_near<V: NumberedValue>(
    table: &RawTable,
    hash: u64,
    n: u64,
    near: SlotHint,
) -> Option<EntryPosition> {
    // SAFETY: the table is of these types.
    let found = unsafe { table.probe_near(hash, near, |entry: &Of<V>| entry.key == n) };
    found.map(|found| found.spot())
}

/// Hashes of the keys of a test: of `alike` keys each is the same.
fn hash_of(n: u64, alike: u64) -> u64 {
    hash_word(hash_word(n / alike))
}

thread_local! {
    /// How many keys have one hash, for who hashes an entry.
    static ALIKE: Cell<u64> = const { Cell::new(1) };
    /// Hashes before one that panics.
    static PANICS_AFTER: Cell<u64> = const { Cell::new(u64::MAX) };
}

struct ByKey;

impl HashBy<u64> for ByKey {
    fn hash(key: &u64) -> u64 {
        let after = PANICS_AFTER.get();
        assert!(after > 0, "planned");
        PANICS_AFTER.set(after - 1);
        hash_of(*key, ALIKE.get())
    }
}

fn record_type<V: Clone + Send + Sync + 'static>() -> &'static RecordType {
    in_memory::hashed::<u64, V, ByKey>()
}

/// Seeded inserts, removals and look-ups against a map.
fn history<V: NumberedValue>(keys: u64, alike: u64, steps: u64) {
    ALIKE.set(alike);
    let account = Account::root(1 << 30);
    let range = HashRange::of(&(0..256), 256);
    let keys = share(keys, 20).max(30);
    let mut table = RawTable::new(record_type::<V>(), account.clone(), range);
    let mut model = BTreeMap::new();
    for step in 0..steps {
        let n = hash_word(hash_word(step) + 1) % keys;
        let hash = hash_of(n, alike);
        let found = find::<V>(&table, hash, n);
        assert_eq!(found.is_some(), model.contains_key(&n), "step {step}, key {n}");
        let is_same = |spot: EntryPosition| {
            table.find(hash, &mut |r| *r.native::<u64, V>().0 == n) == Some(spot)
        };
        assert!(found.is_none_or(is_same));
        match found {
            Some(spot) if step % 3 > 0 => {
                assert_eq!(table.place(spot).word(), model[&n]);
                let place = table.drop_entry(spot, hash).unwrap();
                assert_eq!(Some(place.word()), model.remove(&n));
            }
            Some(_) => {}
            None => {
                let spot = add::<V>(&mut table, hash, n);
                let place = if step % 2 == 0 {
                    RecordPosition::of(1, 1 + n as u32)
                } else {
                    RecordPosition::NONE
                };
                if step == steps / 2 {
                    assert!(table.note_places());
                }
                let place = if table.notes_places() { place } else { RecordPosition::NONE };
                table.set_place(spot, place);
                model.insert(n, place.word());
            }
        }
        assert_eq!(table.len(), model.len() as u64);
    }
    let mut seen = BTreeMap::new();
    let (mut walk, mut last) = (TableWalk::new(), 0);
    while let Some(run) = walk.next(&table, 3) {
        for spot in run.groups.flat_map(|group| table.spots(run.index, group)) {
            let entry = table.entry(spot).unwrap();
            let (n, value) = entry.native::<u64, V>();
            assert!(value.is(*n) && seen.insert(*n, table.place(spot).word()).is_none());
        }
        assert!(run.index >= last);
        last = run.index;
    }
    if table.notes_places() {
        assert_eq!(seen, model);
    }
    assert_eq!(table.memory_bytes(), account.used());
    drop(table);
    assert_eq!(account.used(), 0);
}

/// How long a history is: a short share under Miri.
fn steps(of: u64) -> u64 {
    share(of, 160)
}

/// Under Miri one in so many.
fn share(of: u64, one_in: u64) -> u64 {
    if cfg!(miri) { of / one_in } else { of }
}

#[test]
fn entries_of_all_sizes_and_alignments_are_found_as_in_a_map() {
    history::<()>(1_000, 1, steps(20_000));
    history::<u8>(1_000, 1, steps(20_000));
    history::<[u8; 3]>(3_000, 1, steps(20_000));
    history::<[u64; 8]>(3_000, 1, steps(20_000));
    history::<Wide>(1_000, 1, steps(20_000));
    history::<String>(3_000, 1, steps(20_000));
    history::<Box<[u64]>>(30, 1, steps(2_000));
}

#[test]
fn entries_whose_hashes_agree_are_found_as_in_a_map() {
    history::<u8>(2_000, 40, steps(20_000));
    history::<String>(2_000, 700, steps(10_000));
    history::<Wide>(1_500, u64::MAX, steps(10_000));
}

/// Removed entries leave no traces: a table that always has as many entries stays as large.
#[test]
fn a_table_whose_entries_come_and_go_does_not_grow() {
    ALIKE.set(1);
    let mut table = table_of(record_type::<u64>(), 1 << 20);
    let live = 440;
    (0..live).for_each(|n| {
        add::<u64>(&mut table, hash_of(n, 1), n);
    });
    let before = table.memory_bytes();
    for n in live..share(100_000, 50) {
        let gone = hash_of(n - live, 1);
        let spot = find::<u64>(&table, gone, n - live).unwrap();
        assert!(table.drop_entry(spot, gone).is_some());
        assert_eq!(find::<u64>(&table, gone, n - live), None);
        add::<u64>(&mut table, hash_of(n, 1), n);
        assert_eq!((table.len(), table.memory_bytes()), (live, before));
    }
}

/// A hint tells where to look first: entries that came, went or moved since are found as without it.
#[test]
fn an_outdated_hint_finds_what_a_look_up_finds() {
    for alike in [1, 300] {
        ALIKE.set(alike);
        let mut table = table_of(record_type::<u64>(), 1 << 24);
        let (few, all) = (share(600, 4), share(9_000, 20));
        assert_eq!(find_near::<u64>(&table, 1, 1, table.look_ahead(1)), None);
        (0..few).step_by(2).for_each(|n| {
            add::<u64>(&mut table, hash_of(n, alike), n);
        });
        let hints: Vec<_> = (0..few).map(|n| table.look_ahead(hash_of(n, alike))).collect();
        (1..few).step_by(4).chain(few..all).for_each(|n| {
            add::<u64>(&mut table, hash_of(n, alike), n);
        });
        for n in (0..few).step_by(6) {
            let hash = hash_of(n, alike);
            let spot = find::<u64>(&table, hash, n).unwrap();
            table.drop_entry(spot, hash);
        }
        for (n, hint) in hints.into_iter().enumerate() {
            let (n, hash) = (n as u64, hash_of(n as u64, alike));
            assert_eq!(find_near::<u64>(&table, hash, n, hint), find::<u64>(&table, hash, n));
        }
    }
}

/// What is known of entries is theirs wherever they move: against sets, through barriers that are given up or not.
#[test]
fn marks_move_with_their_entries() {
    for seed in 0..if cfg!(miri) { 1 } else { 30 } {
        ALIKE.set(1 + seed % 2 * 50);
        let mut table = table_of(record_type::<u8>(), 1 << 30);
        let (mut changed, mut there) = (BTreeMap::new(), 0u64);
        for round in 0..8u64 {
            for step in 0..steps(600) {
                let n = hash_word(seed << 32 | round << 16 | step) % (there + 40);
                let hash = hash_of(n, ALIKE.get());
                match find::<u8>(&table, hash, n) {
                    Some(spot) => table.mark_changed(spot),
                    None => {
                        add::<u8>(&mut table, hash, n);
                    }
                }
                changed.insert(n, ());
                there = there.max(n + 1);
            }
            assert!(table.marked() >= changed.len() as u64);
            table.barrier();
            // After one that takes all and is given up the next takes all, too.
            let takes_all = round == 3;
            if takes_all {
                table.take_all();
            }
            let mut due = std::mem::take(&mut changed);
            if takes_all {
                due = (0..there)
                    .filter(|n| find::<u8>(&table, hash_of(*n, ALIKE.get()), *n).is_some())
                    .map(|n| (n, ()))
                    .collect();
            }
            let is_given_up = round % 3 == 1;
            let (mut walk, mut read) = (TableWalk::new(), 0);
            loop {
                // The stream goes on meanwhile: some change, some come, before and behind.
                let n = hash_word(seed ^ round << 20 ^ read) % (there + 3);
                let hash = hash_of(n, ALIKE.get());
                match find::<u8>(&table, hash, n) {
                    Some(spot) => {
                        assert_eq!(table.is_captured(spot), due.contains_key(&n), "{seed}, {n}");
                        table.mark_changed(spot);
                        due.remove(&n);
                    }
                    None => {
                        add::<u8>(&mut table, hash, n);
                    }
                }
                there = there.max(n + 1);
                changed.insert(n, ());
                let Some(run) = walk.next(&table, 2) else { break };
                let dirty = table.dirty(run.index);
                for group in run.groups {
                    let captured = table.captured(run.index, group);
                    assert!(captured == 0 || takes_all || table.is_dirty_in(dirty, group));
                    for slot in super::raw_table_unsafe::slots_of(captured) {
                        let spot = EntryPosition::new(run.index, group, slot);
                        let n = *table.entry(spot).unwrap().native::<u64, u8>().0;
                        assert!(due.remove(&n).is_some(), "seed {seed}, round {round}, {n}");
                        table.owe(spot);
                        if n % 2 == 0 || !is_given_up {
                            table.settle(spot);
                        } else {
                            changed.insert(n, ());
                        }
                    }
                    table.clean(run.index, group);
                }
                read += 1;
                if is_given_up && read > 12 {
                    break;
                }
            }
            assert!(is_given_up || due.is_empty(), "seed {seed}, round {round}");
            changed.append(&mut due);
        }
    }
}

#[test]
fn what_does_not_fit_is_refused_and_changes_nothing() {
    ALIKE.set(1);
    let mut table = table_of(record_type::<[u64; 8]>(), 40_000);
    let mut n = 0;
    let error = loop {
        match table.make_room(hash_of(n, 1)) {
            Ok(()) => {
                add::<[u64; 8]>(&mut table, hash_of(n, 1), n);
            }
            Err(error) => break error,
        }
        n += 1;
    };
    assert_eq!(error.kind(), alluvium_pagestore::ErrorKind::OverBudget);
    assert!(n > 100 && table.len() == n && table.memory_bytes() <= 40_000);
    assert!((0..n).all(|n| find::<[u64; 8]>(&table, hash_of(n, 1), n).is_some()));
}

/// A table that owns few hashes may have entries with others.
#[test]
fn hashes_that_are_not_owned_are_found_too() {
    ALIKE.set(1);
    for owned in [0..1, 85..171, 255..256] {
        let range = HashRange::of(&owned, 256);
        let mut table = RawTable::new(record_type::<u8>(), Account::root(1 << 24), range);
        let all = share(2_000, 4);
        for n in 0..all {
            add::<u8>(&mut table, hash_of(n, 1), n);
        }
        assert!((0..all).all(|n| find::<u8>(&table, hash_of(n, 1), n).is_some()));
        let mut walk = TableWalk::new();
        let mut seen = 0;
        while let Some(run) = walk.next(&table, 100) {
            seen += run.groups.map(|group| table.spots(run.index, group).count()).sum::<usize>();
        }
        assert_eq!(seen as u64, all);
    }
}

#[test]
fn an_expected_table_takes_its_entries_in_the_order_of_their_hashes() {
    ALIKE.set(1);
    let mut table = table_of(record_type::<u8>(), 1 << 24);
    let all = share(20_000, 10);
    table.expect(all, u64::MAX);
    let before = table.memory_bytes();
    assert!(before > all * 16 / 2, "half of what they fill at least");
    let mut hashes: Vec<_> = (0..all).map(|n| (hash_of(n, 1), n)).collect();
    hashes.sort_unstable();
    for (hash, n) in hashes {
        add::<u8>(&mut table, hash, n);
    }
    let mut other = table_of(record_type::<u8>(), 1 << 24);
    (0..all).for_each(|n| {
        add::<u8>(&mut other, hash_of(n, 1), n);
    });
    assert!(table.memory_bytes() <= other.memory_bytes(), "no more than without that");
    assert!(table.memory_bytes() <= 4 * before);
}

/// However many entries are expected, no call makes more than some blocks for them.
#[test]
fn a_call_makes_a_bounded_number_of_blocks_for_what_is_expected() {
    ALIKE.set(1);
    let mut table = table_of(record_type::<u8>(), 1 << 30);
    table.expect(1 << 24, EXPECTED_BLOCKS_MAX);
    let made = table.capacity() / BLOCK_ENTRIES_MAX;
    assert_eq!(made, EXPECTED_BLOCKS_MAX);
    // The others come as entries do.
    let all = share(200_000, 100);
    let mut most = 0;
    for n in 0..all {
        let before = table.capacity();
        add::<u8>(&mut table, hash_of(n, 1), n);
        most = most.max((table.capacity() - before) / BLOCK_ENTRIES_MAX);
    }
    assert!(most <= 2, "{most} blocks in one call");
    assert!((0..all).all(|n| find::<u8>(&table, hash_of(n, 1), n).is_some()));
}

/// A hash that panics while entries are about to move leaves all of them where they were: the first one, or a later one,
/// also of blocks that hang together.
#[test]
fn a_hash_that_panics_loses_nothing() {
    for alike in [1, 500] {
        panics_while_entries_move(alike);
    }
}

fn panics_while_entries_move(alike: u64) {
    ALIKE.set(alike);
    let all = share(16_000, 20);
    let mut table = table_of(record_type::<String>(), 1 << 24);
    let (mut panics, mut later) = (0, 0);
    for n in 0..all {
        let hash = hash_of(n, alike);
        for after in [0, 1, 200, 400, 600, 800, 1100, 1300, 1600] {
            if table.has_room(hash) {
                break;
            }
            PANICS_AFTER.set(after);
            let before = table.memory_bytes();
            let made = catch_unwind(AssertUnwindSafe(|| table.make_room(hash).unwrap()));
            PANICS_AFTER.set(u64::MAX);
            panics += u64::from(made.is_err());
            later += u64::from(made.is_err() && after > 0);
            // Of keys that are alike one split may be made before another one panics.
            assert!(made.is_ok() || alike > 1 || table.memory_bytes() == before);
            let mut looked_for = (0..n).step_by(if cfg!(miri) { 97 } else { 1 });
            assert!(looked_for.all(|n| find::<String>(&table, hash_of(n, alike), n).is_some()));
        }
        add::<String>(&mut table, hash, n);
    }
    assert_eq!(table.len(), all);
    println!("{panics} panics, {later} of later hashes");
    assert!(panics > 6 && later > 6, "{panics} panics, {later} of later hashes");
}

/// Places of which the first of the blocks that hang together has none stay with their entries when those are split.
#[test]
#[cfg_attr(miri, ignore = "blocks hang together after many entries only")]
fn places_of_later_blocks_move_with_their_entries() {
    const ALL_ALIKE: u64 = 1_500;
    ALIKE.set(ALL_ALIKE);
    let mut table = table_of(record_type::<u64>(), 1 << 26);
    assert!(table.note_places());
    let mut model = BTreeMap::new();
    for nth in 0..60_000 {
        let n = nth % 40 * ALL_ALIKE + nth / 40;
        let spot = add::<u64>(&mut table, hash_of(n, ALL_ALIKE), n);
        if spot.group >= 32 {
            table.set_place(spot, RecordPosition::of(1, 1 + n as u32));
        }
        model.insert(n, table.place(spot));
    }
    assert!(model.values().filter(|place| **place != RecordPosition::NONE).count() > 1_000);
    for (n, place) in model {
        let spot = find::<u64>(&table, hash_of(n, ALL_ALIKE), n).unwrap();
        assert_eq!(table.place(spot), place, "key {n}");
    }
}

#[derive(Clone)]
struct Fragile(#[expect(dead_code, reason = "it is counted")] Arc<()>, u64);

impl Drop for Fragile {
    fn drop(&mut self) {
        assert!(self.1 % 7 > 0 || std::thread::panicking(), "planned");
    }
}

/// Entries that panic when they are dropped: each is dropped once, and memory comes back.
#[test]
fn a_drop_that_panics_drops_the_others() {
    ALIKE.set(1);
    let (shared, account) = (Arc::new(()), Account::root(1 << 24));
    let record_type = record_type::<Fragile>();
    for in_parts in [false, true] {
        let range = HashRange::of(&(0..256), 256);
        let mut table = RawTable::new(record_type, account.clone(), range);
        let all = share(2_000, 40);
        for n in 0..all {
            table.make_room(hash_of(n, 1)).unwrap();
            // SAFETY: the table is of these types, and the entry is written at once.
            unsafe {
                let value = Fragile(shared.clone(), n);
                table.claim(hash_of(n, 1)).0.cast().write(NativeEntry { key: n, value });
            }
        }
        assert_eq!(Arc::strong_count(&shared) as u64, all + 1);
        let dropped = catch_unwind(AssertUnwindSafe(|| {
            let mut panic = FirstPanic::default();
            while in_parts && table.drop_step(&mut panic) {}
            drop(table);
            panic.resume();
        }));
        assert!(dropped.is_err());
        assert_eq!((Arc::strong_count(&shared), account.used()), (1, 0));
    }
}

#[test]
fn a_comparison_that_panics_changes_nothing() {
    ALIKE.set(1);
    let mut table = table_of(record_type::<String>(), 1 << 24);
    for n in 0..100 {
        add::<String>(&mut table, hash_of(n, 1), n);
    }
    // SAFETY: the table is of these types.
    let look =
        || unsafe { table.probe(hash_of(5, 1), |_: &Of<String>| panic!("planned")).is_some() };
    assert!(catch_unwind(AssertUnwindSafe(look)).is_err());
    assert!((0..100).all(|n| find::<String>(&table, hash_of(n, 1), n).is_some()));
}
