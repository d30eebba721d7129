//! The record table against a map: records of all sizes and alignments, equal hashes, drop glue, panics.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use alluvium_pagestore::{ErrorKind, HeapSize, KeyHash, hash_word};

use super::*;
use crate::heap::made::{NumberedValue, Wide};
use crate::support::record_type_unsafe::in_memory::{self, HashBy};

thread_local! {
    /// How many keys have one hash.
    static ALIKE: Cell<u64> = const { Cell::new(1) };
    /// Hashes before one that panics.
    static PANICS_AFTER: Cell<u64> = const { Cell::new(u64::MAX) };
}

fn hash_of(n: u64) -> u64 {
    hash_word(hash_word(n / ALIKE.get()))
}

struct ByNumber;

impl HashBy<u64> for ByNumber {
    fn hash(key: &u64) -> u64 {
        let after = PANICS_AFTER.get();
        assert!(after > 0, "planned");
        PANICS_AFTER.set(after - 1);
        hash_of(*key)
    }
}

fn table_in<V: Clone + Send + Sync + 'static>(account: &Rc<Account>) -> RecordTable {
    let record_type = in_memory::hashed::<u64, V, ByNumber>();
    RecordTable::new(record_type, account.clone(), HashRange::of(&(0..256), 256))
}

fn add<V: Clone + Send + Sync + 'static>(table: &mut RecordTable, n: u64, value: V) -> Result<()> {
    let entry = NativeEntry { key: n, value };
    // SAFETY: the record is of the table's types, and has this hash.
    unsafe {
        table.insert(hash_of(n), |at| at.cast::<NativeEntry<u64, V>>().write(entry)).map(drop)
    }
}

fn is_number<V: 'static>(n: u64) -> impl FnMut(RecordRef<'_>) -> bool {
    move |record| *record.native::<u64, V>().0 == n
}

/// The numbers of all records, part by part, each looked at in all ways.
fn walked<V: NumberedValue>(table: &RecordTable) -> Vec<u64> {
    let (mut from, mut all) = (Some(0), Vec::new());
    while let Some(place) = from {
        let (part, next) = table.part_at(place);
        let number = |record: RecordRef<'_>| {
            let (n, value) = record.native::<u64, V>();
            assert!(value.is(*n), "{n} has another value");
            *n
        };
        let numbers: Vec<u64> = part.iter().map(number).collect();
        assert_eq!(numbers.len(), part.len());
        let numbered = part.numbered().map(|(slot, record)| {
            assert_eq!(part.get(slot).map(RecordRef::as_ptr), Some(record.as_ptr()));
            number(record)
        });
        assert!(numbered.eq(numbers.iter().copied()));
        all.extend(numbers);
        from = next;
    }
    all.sort_unstable();
    all
}

fn history<V: NumberedValue>(keys: u64, alike: u64) {
    ALIKE.set(alike);
    let account = Account::root(1 << 30);
    let (mut table, mut model) = (table_in::<V>(&account), BTreeMap::new());
    for step in 0..4 * keys {
        let n = hash_word(hash_word(step) + 1) % keys;
        let found = table.find(hash_of(n), &mut is_number::<V>(n)).is_some();
        assert_eq!(found, model.contains_key(&n), "step {step}, key {n}");
        if found && step % 3 > 0 {
            assert!(table.remove(hash_of(n), &mut is_number::<V>(n), |heap| assert_eq!(heap, 0)));
            model.remove(&n);
        } else if !found {
            assert!(!table.remove(hash_of(n), &mut is_number::<V>(n), |_| unreachable!()));
            add(&mut table, n, V::of(n)).unwrap();
            model.insert(n, ());
        }
        assert_eq!((table.len(), table.is_empty()), (model.len() as u64, model.is_empty()));
    }
    assert!(walked::<V>(&table).into_iter().eq(model.keys().copied()));
    let frozen = table.freeze();
    assert_eq!((table.len(), frozen.len()), (0, model.len() as u64));
    let booked = frozen.memory_bytes();
    assert_eq!(booked, account.used());
    let count = std::thread::spawn(move || frozen.len()).join().unwrap();
    assert_eq!(count, model.len() as u64);
    account.release(alluvium_pagestore::MemoryKind::Index, booked);
}

#[test]
fn histories_are_those_of_a_map_whatever_records_look_like() {
    for (keys, alike) in [(40, 1), (1000, 1), (600, 7), (300, 200)] {
        history::<()>(keys, alike);
        history::<u8>(keys, alike);
        history::<[u8; 3]>(keys, alike);
        history::<[u64; 2]>(keys, alike);
        history::<[u64; 8]>(keys, alike);
        history::<Wide>(keys, alike);
        history::<String>(keys, alike);
    }
}

#[test]
fn a_native_table_is_the_same_table() {
    ALIKE.set(1);
    let account = Account::root(1 << 30);
    let types = RecordType::of::<u64, String>();
    let mut table = RecordTable::new(types, account.clone(), HashRange::of(&(0..256), 256));
    for n in 0..500u64 {
        // SAFETY: the table is of these types.
        let native = unsafe { table.native_mut_unchecked::<u64, String>() };
        let make = || NativeEntry { key: n, value: n.to_string() };
        native.insert(n.key_hash(), make).unwrap();
    }
    assert_eq!(table.len(), 500);
    for n in 0..500u64 {
        let hash = n.key_hash();
        let entry = table.native::<u64, String>().find(hash, |entry| entry.key == n).unwrap();
        assert_eq!(entry.value, n.to_string());
        let record = table.find(hash, &mut |record| *record.get::<u64, String>().0 == n).unwrap();
        assert_eq!(record.as_ptr(), std::ptr::from_ref(entry).cast());
    }
    let mut owned = 0;
    let mut count = 0;
    while table.drop_part(|entries, heap| (count, owned) = (count + entries, owned + heap)) {}
    let heap = (0..500u64).map(|n| n.to_string().heap_bytes() as u64).sum::<u64>();
    assert_eq!((count, owned, account.used()), (500, heap, 0));
}

#[test]
#[should_panic(expected = "a table of records of other types")]
fn a_table_of_other_types_is_not_looked_at() {
    let range = HashRange::of(&(0..256), 256);
    let table = RecordTable::new(RecordType::of::<u64, u64>(), Account::root(1 << 20), range);
    table.native::<u64, i64>();
}

#[test]
#[should_panic(expected = "records that never leave their thread")]
fn volatile_records_are_refused() {
    let (types, range) = (RecordType::volatile::<u64, Rc<u64>>(), HashRange::of(&(0..256), 256));
    RecordTable::new(types, Account::root(1 << 20), range);
}

#[test]
fn a_table_that_cannot_grow_keeps_what_it_has() {
    ALIKE.set(1);
    let account = Account::root(6000);
    let mut table = table_in::<String>(&account);
    let mut n = 0;
    let error = loop {
        match add(&mut table, n, n.to_string()) {
            Ok(()) => n += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::OverBudget);
    assert!(n > 10 && walked::<String>(&table).into_iter().eq(0..n));
    drop(table);
    assert_eq!(account.used(), 0);
}

#[test]
fn hashes_that_panic_leave_all_records() {
    ALIKE.set(1);
    let (account, shared) = (Account::root(1 << 30), Arc::new(()));
    let mut table = table_in::<Arc<()>>(&account);
    let mut n = 0;
    for after in 0..200 {
        PANICS_AFTER.set(after);
        let mut failed = false;
        while n < 40 * (after + 1) && !failed {
            let added = || add(&mut table, n, shared.clone());
            failed = catch_unwind(AssertUnwindSafe(added)).is_err();
            n += u64::from(!failed);
        }
        PANICS_AFTER.set(u64::MAX);
        assert_eq!((table.len(), Arc::strong_count(&shared) as u64), (n, n + 1));
    }
    assert!((0..n).all(|n| table.find(hash_of(n), &mut is_number::<Arc<()>>(n)).is_some()));
    drop(table);
    assert_eq!((Arc::strong_count(&shared), account.used()), (1, 0));
}

/// Panics when it is dropped, at times; counts drops.
#[derive(Clone)]
struct Bomb(u64, Arc<AtomicU64>);

impl Drop for Bomb {
    fn drop(&mut self) {
        self.1.fetch_add(1, Ordering::Relaxed);
        assert!(self.0 % 10 != 3, "planned");
    }
}

#[test]
fn each_record_is_dropped_once_whatever_panics() {
    ALIKE.set(1);
    let (account, drops) = (Account::root(1 << 30), Arc::new(AtomicU64::new(0)));
    let fill = |table: &mut RecordTable| {
        drops.store(0, Ordering::Relaxed);
        (0..600).for_each(|n| add(table, n, Bomb(n, drops.clone())).unwrap());
    };
    let mut table = table_in::<Bomb>(&account);
    fill(&mut table);
    let removed = catch_unwind(AssertUnwindSafe(|| {
        table.remove(hash_of(3), &mut is_number::<Bomb>(3), |_| ())
    }));
    assert!(removed.is_err() && table.len() == 599);
    let (mut panics, mut gone) = (0, 0);
    loop {
        let dropped = || table.drop_part(|entries, _| gone += entries);
        match catch_unwind(AssertUnwindSafe(dropped)) {
            Ok(false) => break,
            Ok(true) => {}
            Err(_) => panics += 1,
        }
    }
    assert_eq!((drops.load(Ordering::Relaxed), gone, account.used()), (600, 599, 0));
    assert!(panics > 1);
    fill(&mut table);
    assert!(catch_unwind(AssertUnwindSafe(|| drop(table))).is_err());
    assert_eq!((drops.load(Ordering::Relaxed), account.used()), (600, 0));
}

struct Fragile;

impl HashBy<u64> for Fragile {
    fn hash(key: &u64) -> u64 {
        hash_of(*key)
    }

    fn heap_bytes(key: &u64) -> u64 {
        assert!(*key % 10 != 3, "planned");
        8
    }
}

#[test]
fn a_record_that_panics_while_it_is_measured_is_dropped_all_the_same() {
    ALIKE.set(1);
    let (account, shared) = (Account::root(1 << 30), Arc::new(()));
    let record_type = in_memory::hashed::<u64, Arc<()>, Fragile>();
    let mut table = RecordTable::new(record_type, account.clone(), HashRange::of(&(0..256), 256));
    (0..600).for_each(|n| add(&mut table, n, shared.clone()).unwrap());
    let mut told = None;
    let removed = catch_unwind(AssertUnwindSafe(|| {
        table.remove(hash_of(3), &mut is_number::<Arc<()>>(3), |heap| told = Some(heap))
    }));
    assert!(removed.is_err() && told == Some(0) && table.len() == 599);
    let (mut panics, mut gone, mut heap) = (0, 0, 0);
    for _ in 0.. {
        let dropped =
            || table.drop_part(|entries, owned| (gone, heap) = (gone + entries, heap + owned));
        match catch_unwind(AssertUnwindSafe(dropped)) {
            Ok(false) => break,
            Ok(true) => {}
            Err(_) => panics += 1,
        }
        assert!(panics < 600, "a part is dropped once");
    }
    assert!(panics > 1 && (gone, heap) == (599, 8 * 540));
    assert_eq!((Arc::strong_count(&shared), account.used()), (1, 0));
}

/// Hashes a whole record that is a key alone.
struct Itself;

impl HashBy<()> for Itself {
    fn hash(_: &()) -> u64 {
        hash_word(1)
    }
}

impl HashBy<u8> for Itself {
    fn hash(key: &u8) -> u64 {
        hash_word(u64::from(*key))
    }
}

impl HashBy<[u8; 3]> for Itself {
    fn hash(key: &[u8; 3]) -> u64 {
        hash_word(u64::from(key[0]) << 8 | u64::from(key[1]))
    }
}

impl HashBy<Wide> for Itself {
    fn hash(key: &Wide) -> u64 {
        hash_word((0..).find(|n| key.is(*n)).unwrap())
    }
}

#[test]
fn records_of_few_bytes_and_records_that_are_aligned_come_and_go() {
    fn come_and_go<K: NumberedValue>(distinct: u64)
    where
        Itself: HashBy<K>,
    {
        let account = Account::root(1 << 30);
        let record_type = in_memory::hashed::<K, (), Itself>();
        let range = HashRange::of(&(0..256), 256);
        let mut table = RecordTable::new(record_type, account.clone(), range);
        for n in 0..400 {
            let (hash, entry) = (
                Itself::hash(&K::of(n % distinct)),
                NativeEntry { key: K::of(n % distinct), value: () },
            );
            // SAFETY: the record is of the table's types, and has this hash.
            unsafe {
                table.insert(hash, |at| at.cast::<NativeEntry<K, ()>>().write(entry)).unwrap()
            };
        }
        let is = |n: u64| move |record: RecordRef<'_>| record.native::<K, ()>().0.is(n % distinct);
        for n in 0..100 {
            let hash = Itself::hash(&K::of(n % distinct));
            assert!(table.find(hash, &mut is(n)).is_some());
            assert!(table.remove(hash, &mut is(n), |_| ()));
        }
        let mut count = 0;
        while table.drop_part(|entries, _| count += entries) {}
        assert_eq!((count, account.used()), (300, 0));
    }
    come_and_go::<()>(1);
    come_and_go::<u8>(200);
    come_and_go::<[u8; 3]>(400);
    come_and_go::<Wide>(400);
}
