//! A history of a table whose key groups are scanned and removed, beside a model: for layouts of ours and of users.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::rc::Rc;
use std::sync::Arc;

use alluvium_layouts::{ByHash, Cursor, StateContext, Table, TableStats, VisitRun};
use alluvium_pagestore::io::{Device, Faults, Simulated};
use alluvium_pagestore::{Account, Helper, KeyGroup, KeyHash, SegmentStore, hash_word};

pub const GROUPS: u16 = 64;

pub fn context(account: &Rc<Account>, seed: u64) -> StateContext {
    let device: Arc<dyn Device> = Arc::new(Simulated::new(seed, Faults::late(2)));
    StateContext {
        name: "table".into(),
        account: Account::below(account, "table", u64::MAX),
        segments: Some(SegmentStore::new(device, 1)),
        helper: Helper::inline(),
        max_value_bytes: 1024,
        key_groups: GROUPS,
        owned: 0..GROUPS,
        movable: true,
        restored: None,
    }
}

fn group_of(key: u64) -> u16 {
    KeyGroup::of(key.key_hash(), GROUPS).0
}

pub fn hashes(group: u16) -> RangeInclusive<u64> {
    KeyGroup(group).hashes(GROUPS)
}

struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 += 1;
        hash_word(hash_word(self.0)) % limit
    }
}

pub fn in_order<V>(table: &mut impl Table<u64, V>) -> &mut dyn ByHash<u64, V> {
    table.by_hash().expect("a table in the order of hashes")
}

fn value(n: u64) -> String {
    format!("{n} ").repeat(1 + n as usize % 40)
}

/// Groups come, change, are scanned and removed; the table is what the model says. Gives what it has done.
pub fn history<T: Table<u64, String>>(
    mut table: T,
    seed: u64,
    keys: u64,
    steps: u64,
) -> TableStats {
    let (mut dice, mut model) = (Dice(seed << 32), BTreeMap::<u64, String>::new());
    for step in 0..steps {
        let group = dice.below(u64::from(GROUPS)) as u16;
        let (mut cursor, mut seen) = (Cursor::default(), BTreeMap::new());
        while !cursor.done {
            let fuel = 1 + dice.below(40) as usize;
            let visit: VisitRun<'_, _, String> = &mut |key: &u64, before, values| {
                assert_eq!((group_of(*key), before, values.len()), (group, 0, 1));
                assert!(seen.insert(*key, values[0].clone()).is_none(), "{key} twice");
                Ok(())
            };
            let of_group = hashes(group);
            in_order(&mut table).visit_hashes((), &of_group, &mut cursor, fuel, visit).unwrap();
            for _ in 0..dice.below(30) {
                let (key, n) = (dice.below(keys), dice.below(1000));
                if group_of(key) == group {
                    continue;
                }
                if n % 5 == 0 {
                    assert_eq!(table.take(&key).unwrap(), model.remove(&key), "step {step}");
                } else {
                    table.put(key, value(n)).unwrap();
                    model.insert(key, value(n));
                }
            }
        }
        let of_group = |model: &BTreeMap<u64, String>| -> BTreeMap<u64, String> {
            let all = model.iter().filter(|(key, _)| group_of(**key) == group);
            all.map(|(key, value)| (*key, value.clone())).collect()
        };
        assert_eq!(seen, of_group(&model), "step {step}, group {group}");
        if step % 3 == 0 {
            let mut cursor = Cursor::default();
            let reads = table.stats().cold_reads;
            while !cursor.done {
                let fuel = 1 + dice.below(9) as usize;
                in_order(&mut table).remove_hashes((), &hashes(group), &mut cursor, fuel).unwrap();
            }
            assert_eq!(table.stats().cold_reads, reads, "removing reads");
            model.retain(|key, _| group_of(*key) != group);
        }
        assert_eq!(table.len(), model.len() as u64);
    }
    let (mut cursor, mut seen) = (Cursor::default(), BTreeMap::new());
    while !cursor.done {
        table
            .scan(&mut cursor, 50, &mut |key, value| {
                assert!(seen.insert(*key, value.clone()).is_none());
                Ok(())
            })
            .unwrap();
    }
    assert_eq!(seen, model);
    table.stats()
}
