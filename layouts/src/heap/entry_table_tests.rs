//! The entry table against a map: entries of all sizes and alignments, equal hashes, drop glue, panics.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use alluvium_pagestore::{ErrorKind, KeyGroup, KeyHash, hash_word};

use super::*;
use crate::heap::made::{NumberedValue, Wide};

/// An entry that has its hash with some others. To compute it may be set to panic.
struct Item<V> {
    n: u64,
    value: V,
}

thread_local! {
    /// How many keys have one hash.
    static ALIKE: Cell<u64> = const { Cell::new(1) };
    /// Hashes before one that panics.
    static PANICS_AFTER: Cell<u64> = const { Cell::new(u64::MAX) };
}

fn hash_of(n: u64) -> u64 {
    hash_word(hash_word(n / ALIKE.get()))
}

impl<V: 'static> KeyedEntry for Item<V> {
    fn hash_of_key(&self) -> u64 {
        let after = PANICS_AFTER.get();
        assert!(after > 0, "planned");
        PANICS_AFTER.set(after - 1);
        hash_of(self.n)
    }
}

fn item<V: NumberedValue>(n: u64) -> Item<V> {
    Item { n, value: V::of(n) }
}

fn table<T: KeyedEntry>(account: &Rc<Account>) -> EntryTable<T> {
    EntryTable::new(account.clone(), HashRange::of(&(0..256), 256))
}

/// The numbers of all entries, part by part, each entry looked at in all ways.
fn walked<V: NumberedValue>(table: &EntryTable<Item<V>>) -> Vec<u64> {
    let (mut from, mut all) = (Some(0), Vec::new());
    while let Some(place) = from {
        let (part, next) = table.part_at(place);
        let numbers: Vec<u64> = part.iter().map(|item| item.n).collect();
        assert_eq!((numbers.len(), part.iter().len()), (part.len(), part.len()));
        let numbered = (0..part.slots()).filter_map(|slot| {
            let item = part.get(slot)?;
            assert!(item.value.is(item.n));
            Some(item.n)
        });
        assert!(numbered.eq(numbers.iter().copied()));
        let is_here = |n: &u64| {
            let at = table.table.range().place(hash_of(*n));
            at >= place && next.is_none_or(|next| at < next)
        };
        assert!(numbers.iter().all(is_here));
        all.extend(numbers);
        from = next;
    }
    all.sort_unstable();
    all
}

/// A fold over the lists of one hash goes on where it was after the table has grown.
#[test]
fn entries_of_one_hash_keep_their_order_while_the_table_grows() {
    let account = Account::root(1 << 30);
    for alike in [2, 5, 30, 70] {
        ALIKE.set(alike);
        let mut table = table::<Item<u64>>(&account);
        let order_of = |table: &EntryTable<Item<u64>>, hash| -> Vec<u64> {
            table.of_hash(hash).map(|item| item.n).collect()
        };
        let (mut hashes, mut moved) = (BTreeSet::new(), 0);
        for step in 0..3_000u64 {
            // The same hashes come again and again, between others.
            let n = (step * 7919) % 3_000;
            let grows = !table.table.has_room(hash_of(n));
            let seen = hashes.iter().filter(|_| grows);
            let before: Vec<_> = seen.map(|hash| (*hash, order_of(&table, *hash))).collect();
            table.insert(hash_of(n), || item(n)).map(drop).unwrap();
            hashes.insert(hash_of(n));
            moved += u64::from(grows);
            for (hash, before) in before {
                let mut after = order_of(&table, hash);
                after.retain(|found| *found != n);
                assert_eq!(after, before, "{alike} alike, step {step}");
            }
        }
        assert!(moved > 5, "{moved}");
    }
    ALIKE.set(1);
}

/// Seeded calls against a map.
fn history<V: NumberedValue>(keys: u64, alike: u64, steps: u64) {
    ALIKE.set(alike);
    let account = Account::root(1 << 30);
    let mut table = table::<Item<V>>(&account);
    let mut model: HashMap<u64, ()> = HashMap::new();
    for step in 0..steps {
        let n = hash_word(hash_word(step) + 1) % keys;
        let (hash, is_there) = (hash_of(n), model.contains_key(&n));
        match hash_word(step) % 4 {
            0 => {
                let removed = table.remove(hash, |item| item.n == n);
                assert_eq!(
                    removed.map(|item| (item.n, item.value.is(n))),
                    model.remove(&n).map(|()| (n, true))
                );
            }
            1 => {
                let growth = table.growth_bytes(hash);
                let found = table.find_or_add(hash, |item| item.n == n, || item(n));
                assert!(found.is_some() || (!is_there && growth > 0));
                if found.is_some_and(|item| item.n == n && item.value.is(n)) {
                    model.insert(n, ());
                }
            }
            2 if is_there => {
                let found = table.find_mut(hash, |item| item.n == n).unwrap();
                *found = item(n);
            }
            _ if is_there => {
                let mut part = table.part_mut(hash).unwrap();
                assert!(part.has(hash) && part.find_mut(hash, |item| item.n == n).is_some());
            }
            _ => {
                let growth = table.growth_bytes(hash);
                let (before, is_split) =
                    (account.used(), table.len() > PART_ENTRIES_MAX as u64 / 2);
                assert!(table.insert(hash, || item(n)).unwrap().n == n);
                assert!(is_split || account.used() <= before + growth);
                model.insert(n, ());
            }
        }
        table.look_ahead(hash);
        let found = table.find(hash, |item| item.n == n);
        assert_eq!(found.is_some_and(|item| item.value.is(n)), model.contains_key(&n));
        assert_eq!((table.len(), account.used()), (model.len() as u64, table.memory_bytes()));
        if step % (steps / 4) == 0 {
            let alike = model.keys().filter(|known| hash_of(**known) == hash).count();
            assert_eq!(table.of_hash(hash).count(), alike);
        }
    }
    let mut numbers: Vec<u64> = model.keys().copied().collect();
    numbers.sort_unstable();
    assert_eq!(walked(&table), numbers);
    taken_apart(table, &account, numbers);
}

/// Freezes a table, reads it in another thread, and takes another one of the same numbers apart.
fn taken_apart<V: NumberedValue>(
    mut table: EntryTable<Item<V>>,
    account: &Rc<Account>,
    numbers: Vec<u64>,
) {
    let (alike, booked) = (ALIKE.get(), table.memory_bytes());
    let frozen = table.freeze();
    assert_eq!((table.len(), table.memory_bytes(), account.used()), (0, 0, booked));
    let there = numbers.clone();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            ALIKE.set(alike);
            assert_eq!(walked(&frozen), there);
        });
    });
    std::thread::spawn(move || drop(frozen)).join().unwrap();
    account.release(alluvium_pagestore::MemoryKind::Index, booked);
    // The old one goes on.
    for n in &numbers {
        table.insert(hash_of(*n), || item(*n)).unwrap();
    }
    let mut taken = Vec::new();
    while let Some(part) = table.take_part() {
        let (first, all) = (taken.len(), part.len());
        // Half of each part is left to its drop.
        taken.extend(part.take(all.div_ceil(2)).map(|item| item.n));
        assert!(taken.len() - first == all.div_ceil(2));
    }
    assert_eq!((table.len(), table.memory_bytes(), account.used()), (0, 0, 0));
    assert!(taken.iter().all(|n| numbers.binary_search(n).is_ok()));
    table.insert(hash_of(1), || item(1)).unwrap();
    assert_eq!(walked(&table), [1]);
}

fn histories(keys: u64, steps: u64) {
    for alike in [1, 3, 200] {
        history::<()>(keys, alike, steps);
        history::<u8>(keys, alike, steps);
        history::<u64>(keys, alike, steps);
        history::<[u64; 31]>(keys, alike, steps);
        history::<Wide>(keys, alike, steps);
        history::<String>(keys, alike, steps);
    }
}

#[test]
fn entries_of_any_type_answer_like_a_map() {
    let (keys, steps) = if cfg!(miri) { (160, 300) } else { (2_000, 12_000) };
    histories(keys, steps);
    histories(20, steps / 4);
}

/// An entry without size.
struct Nothing;

impl KeyedEntry for Nothing {
    fn hash_of_key(&self) -> u64 {
        7
    }
}

#[test]
fn entries_without_size_are_counted_and_taken() {
    let account = Account::root(1 << 20);
    let mut table = table::<Nothing>(&account);
    let entries = if cfg!(miri) { 100 } else { 300 };
    for n in 0..entries {
        table.insert(7, || Nothing).unwrap();
        assert_eq!(table.part_at(0).0.len(), n + 1);
    }
    assert!(table.find(7, |_| true).is_some() && table.find(1 << 24, |_| true).is_none());
    assert!(table.remove(7, |_| true).is_some());
    assert_eq!((table.len(), table.of_hash(7).count()), (entries as u64 - 1, entries - 1));
    let taken: usize = std::iter::from_fn(|| table.take_part().map(Iterator::count)).sum();
    assert_eq!((taken, account.used()), (entries - 1, 0));
}

#[test]
fn a_walk_sees_all_entries_in_the_order_of_their_hashes() {
    ALIKE.set(1);
    for owned in [0..256, 128..256, 7..8, 85..171] {
        let (account, range) = (Account::root(1 << 30), HashRange::of(&owned, 256));
        let mut table = EntryTable::<Item<u64>>::new(account, range);
        let is_owned = |n: &u64| owned.contains(&KeyGroup::of(hash_of(*n), 256).0);
        let count = if cfg!(miri) { 300 } else { 5_000 };
        let mut numbers: Vec<u64> = (0..).filter(is_owned).take(count).collect();
        for n in &numbers {
            table.insert(hash_of(*n), || item(*n)).unwrap();
        }
        assert_eq!(walked(&table), numbers);
        let (mut place, mut before) = (Some(0), 0);
        while let Some(at) = place {
            let (part, next) = table.part_at(at);
            assert!(part.len() <= PART_ENTRIES_MAX);
            let (hashes, after) = table.hashes_at(at, u64::MAX);
            assert_eq!((hashes.len(), after), (part.len(), next));
            assert!(hashes.is_sorted() && hashes.first().is_none_or(|first| *first >= before));
            before = hashes.last().copied().unwrap_or(before);
            place = next;
        }
        let (first, last) = (1 << 61, 5 << 61);
        let spans: Vec<_> = table.spans(first..=last).map(|it| (it.first, it.last)).collect();
        assert!(spans[0].0 <= first && spans.last().unwrap().1 >= last);
        assert!(spans.windows(2).all(|two| two[0].1 + 1 == two[1].0));
        let within: usize = table.spans(first..=last).map(|span| span.part.len()).sum();
        let has =
            |n: &u64| (spans[0].0..=spans.last().unwrap().1).contains(&range.place(hash_of(*n)));
        numbers.retain(has);
        assert_eq!(within, numbers.len());
    }
}

#[test]
fn entries_may_be_changed_part_by_part() {
    ALIKE.set(1);
    let account = Account::root(1 << 20);
    let mut table = table::<(u64, u64)>(&account);
    for n in 0..500u64 {
        table.insert(n.key_hash(), || (n, n)).unwrap();
    }
    let mut place = Some(0);
    while let Some(at) = place {
        let (part, next) = table.part_at_mut(at);
        part.for_each(|entry| entry.1 += 1);
        place = next;
    }
    let is_changed =
        |n: &u64| table.find(n.key_hash(), |e| e.0 == *n).is_some_and(|e| e.1 == n + 1);
    assert!((0..500).all(|n| is_changed(&n)));
}

#[test]
fn entries_that_agree_in_all_bits_share_a_part() {
    ALIKE.set(u64::MAX);
    let account = Account::root(1 << 30);
    let mut table = table::<Item<u64>>(&account);
    for n in 0..500 {
        table.insert(hash_of(n), || item(n)).unwrap();
    }
    let parts: BTreeMap<u64, usize> =
        table.spans(0..=u64::MAX).map(|it| (it.first, it.part.len())).collect();
    assert_eq!((parts.values().sum::<usize>(), parts.values().max()), (500, Some(&500)));
    assert_eq!(table.of_hash(hash_of(0)).count(), 500);
    ALIKE.set(1);
}

#[test]
fn entries_in_the_order_of_their_hashes_stand_in_short_parts() {
    let account = Account::root(1 << 30);
    let mut keys: Vec<u64> = (0..if cfg!(miri) { 500 } else { 300_000 }).collect();
    keys.sort_unstable_by_key(|key| key.key_hash());
    for expects in [false, true] {
        let mut table = table::<(u64, u64)>(&account);
        if expects {
            table.table.expect_parts_in_order(keys.len() as u64);
        }
        for key in &keys {
            table.insert(key.key_hash(), || (*key, *key)).unwrap();
        }
        let longest = table.spans(0..=u64::MAX).map(|span| span.part.len()).max().unwrap();
        assert!(longest <= 2 * PART_ENTRIES_MAX, "{longest}");
        assert!(keys.iter().all(|key| table.find(key.key_hash(), |e| e.0 == *key).is_some()));
    }
}

#[test]
fn a_table_that_is_taken_apart_is_empty_to_who_reads_it() {
    ALIKE.set(1);
    let account = Account::root(1 << 30);
    let mut table = table::<Item<u64>>(&account);
    for n in 0..1000 {
        table.insert(hash_of(n), || item(n)).unwrap();
    }
    let mut left = 1000 - table.take_part().unwrap().count() as u64;
    assert!(left > 0 && table.len() == left);
    assert!((0..1000).all(|n| table.find(hash_of(n), |item| item.n == n).is_none()));
    assert!(walked(&table).is_empty() && table.of_hash(hash_of(1)).next().is_none());
    while let Some(part) = table.take_part() {
        left -= part.count() as u64;
    }
    assert_eq!((left, account.used()), (0, 0));
    table.insert(hash_of(7), || item(7)).unwrap();
    assert_eq!(walked(&table), [7]);
}

#[test]
fn what_does_not_fit_is_refused_and_changes_nothing() {
    ALIKE.set(1);
    let account = Account::root(20_000);
    let mut table = table::<Item<u64>>(&account);
    let mut n = 0;
    let error = loop {
        match table.insert(hash_of(n), || item(n)) {
            Ok(_) => n += 1,
            Err(error) => break error,
        }
    };
    assert_eq!((error.kind(), table.len()), (ErrorKind::OverBudget, n));
    assert!(account.used() <= 20_000);
    assert_eq!(walked(&table), (0..n).collect::<Vec<u64>>());
}

#[test]
fn expected_entries_do_not_make_the_table_grow() {
    ALIKE.set(1);
    let account = Account::root(1 << 30);
    let mut table = table::<Item<u64>>(&account);
    assert!(!table.table.expect_parts(96));
    assert!(table.table.expect_parts(2_000) && !table.table.expect_parts(4_000));
    let booked = account.used();
    assert!(booked > 2_000 * 16 && booked == table.memory_bytes());
    for n in 0..2_000 {
        assert!(table.find_or_add(hash_of(n), |_| false, || item(n)).is_some());
    }
    assert_eq!((table.len(), account.used()), (2_000, booked));
    let small = Account::root(booked);
    let mut table = EntryTable::<Item<u64>>::new(small.clone(), table.table.range());
    assert!(!table.table.expect_parts(2_000));
    assert_eq!(small.used(), 0);
}

#[test]
fn a_hash_that_panics_leaves_the_table_as_it_was() {
    ALIKE.set(1);
    let account = Account::root(1 << 30);
    let mut table = table::<Item<Arc<u64>>>(&account);
    let (shared, mut n, mut panics) = (Arc::new(7), 0, 0);
    while panics < 5 {
        PANICS_AFTER.set((n / 2).min(20));
        let make = || Item { n, value: shared.clone() };
        let added = catch_unwind(AssertUnwindSafe(|| table.insert(hash_of(n), make).map(drop)));
        PANICS_AFTER.set(u64::MAX);
        match added {
            Ok(added) => {
                added.unwrap();
                n += 1;
            }
            Err(_) => {
                panics += 1;
                assert_eq!((table.len(), Arc::strong_count(&shared) as u64), (n, n + 1));
                assert!((0..n).all(|n| table.find(hash_of(n), |item| item.n == n).is_some()));
                table.insert(hash_of(n), make).unwrap();
                n += 1;
            }
        }
    }
    let made = catch_unwind(AssertUnwindSafe(|| {
        let _ = table.insert(hash_of(n), || panic!("planned"));
    }));
    assert!(made.is_err() && table.len() == n);
    drop(table);
    assert_eq!((Arc::strong_count(&shared), account.used()), (1, 0));
}

/// Panics when it is dropped, at times; counts drops.
struct Bomb(u64, Rc<Cell<u64>>);

impl KeyedEntry for Bomb {
    fn hash_of_key(&self) -> u64 {
        hash_word(self.0)
    }
}

impl Drop for Bomb {
    fn drop(&mut self) {
        self.1.set(self.1.get() + 1);
        assert!(self.0 % 10 != 3, "planned");
    }
}

#[test]
fn each_entry_is_dropped_once_whatever_panics() {
    let (account, drops) = (Account::root(1 << 30), Rc::new(Cell::new(0)));
    // More than a block has room for.
    let entries = if cfg!(miri) { 460 } else { 600 };
    let fill = |table: &mut EntryTable<Bomb>| {
        drops.set(0);
        for n in 0..entries {
            table.insert(hash_word(n), || Bomb(n, drops.clone())).unwrap();
        }
    };
    let mut table = table::<Bomb>(&account);
    fill(&mut table);
    let mut panics = 0;
    loop {
        match catch_unwind(AssertUnwindSafe(|| table.take_part().map(drop))) {
            Ok(None) => break,
            Ok(Some(())) => {}
            Err(_) => panics += 1,
        }
    }
    assert_eq!((drops.get(), account.used()), (entries, 0));
    assert!(panics > 1);
    fill(&mut table);
    assert!(catch_unwind(AssertUnwindSafe(|| drop(table))).is_err());
    assert_eq!((drops.get(), account.used()), (entries, 0));
}
