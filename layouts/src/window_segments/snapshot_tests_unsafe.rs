//! What was taken and what was kept are the records of the barrier.

use super::*;
use crate::heap::record_table_unsafe::NativeTable;
use crate::support::record_type_unsafe::NativeEntry;

fn native(table: &mut RecordTable) -> &mut NativeTable<String, u64> {
    // SAFETY: the tables of this file are of these types.
    unsafe { table.native_mut_unchecked() }
}

#[test]
fn taken_and_kept_records_are_those_of_the_barrier() {
    let (account, range) = (Account::root(1 << 20), HashRange::of(&(0..256), 256));
    let types = PaneType::of::<String, u64>();
    let mut table = RecordTable::new(types.record(), account.clone(), range);
    let key = |n: u64| format!("a key that owns heap {n}");
    for n in 0..500 {
        let make = || NativeEntry { key: key(n), value: n };
        native(&mut table).insert(key(n).key_hash(), make).unwrap();
    }
    let before = account.used();
    let mut snapshot = RecordSnapshot::new(types, &account, range);
    let mut seen = Vec::new();
    let mut take = |record: RecordRef<'_>| {
        let (key, value) = record.get::<String, u64>();
        seen.push((key.clone(), *value));
        Ok(())
    };
    assert!(snapshot.take_some(Some(&table), &mut take).unwrap());
    let mut kept = 0;
    for n in 0..600 {
        let key = key(n);
        let (hash, of) = (key.key_hash(), KeyRef::of(&key));
        if snapshot.wants(hash, &mut |kept| kept == of) {
            assert!(snapshot.keep(Some(&table), hash, of));
            kept += 1;
        }
        assert!(!snapshot.wants(hash, &mut |kept| kept == of));
        match native(&mut table).find_mut(hash, |entry| entry.key == key) {
            Some(entry) => entry.value += 1000,
            None => {
                native(&mut table).insert(hash, || NativeEntry { key, value: n }).unwrap();
            }
        }
    }
    assert!(kept > 300 && account.used() > before);
    while snapshot.take_some(Some(&table), &mut take).unwrap() {}
    seen.sort_unstable_by_key(|(_, value)| *value);
    assert!(seen.into_iter().eq((0..500).map(|n| (key(n), n))));
    drop((snapshot, table));
    assert_eq!(account.used(), 0);
}

#[test]
fn without_memory_nothing_is_kept() {
    let (account, range) = (Account::root(6 << 10), HashRange::of(&(0..256), 256));
    let types = PaneType::of::<u64, u64>();
    let mut snapshot = RecordSnapshot::new(types, &account, range);
    let keep = |snapshot: &mut RecordSnapshot, n: u64| {
        snapshot.wants(n.key_hash(), &mut |kept| kept == KeyRef::of(&n))
            && snapshot.keep(None, n.key_hash(), KeyRef::of(&n))
    };
    let kept = (0..1000).take_while(|n| keep(&mut snapshot, *n)).count();
    assert!(kept > 1 && kept < 1000 && account.used() <= account.limit(), "{kept}");
    drop(snapshot);
    assert_eq!(account.used(), 0);
}
