//! A list whose runs do not all have room is read from those that have something of it, whatever merges end meanwhile and
//! whatever memory others give up.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use alluvium_layouts::{AppendLog, Lists, Upkeep};
use alluvium_pagestore::io::{Faults, Simulated};
use alluvium_pagestore::{Account, ErrorKind, MemoryKind, Reclaim, Result, Time};

use crate::common::{Dice, Ground, read};

const MEMORY: u64 = 512 << 10;
const KEYS: u64 = 60;

/// Another state, which gives up so many bytes at a time.
#[derive(Clone)]
struct Other {
    account: Rc<Account>,
    held: Rc<Cell<u64>>,
    gives: u64,
}

impl Other {
    /// Holds all but so much of the memory.
    fn hold_all_but(&self, free: u64) {
        let more = self.account.available().saturating_sub(free);
        self.account.charge(MemoryKind::Buffers, more);
        self.held.set(self.held.get() + more);
    }

    fn give(&self, bytes: u64) {
        let given = bytes.min(self.held.get());
        self.held.set(self.held.get() - given);
        self.account.release(MemoryKind::Buffers, given);
    }
}

impl Reclaim for Other {
    fn reclaim(&self, bytes: u64) -> Result<()> {
        self.give(bytes.min(self.gives));
        Ok(())
    }
}

type Model = BTreeMap<(i64, u64), Vec<u64>>;

/// Runs of three buckets, each with some of the keys, some of which have moved or were cleared.
fn fill(lists: &mut impl Lists<u64, u64>, dice: &mut Dice) -> Model {
    let (mut model, mut n) = (Model::new(), 0);
    for _ in 0..7 {
        for bucket in 1..=3 {
            for key in (0..KEYS).filter(|_| dice.below(5) == 0).collect::<Vec<_>>() {
                for _ in 0..1 + dice.below(60) {
                    lists.append(Time(bucket), &key, n).unwrap();
                    model.entry((bucket, key)).or_default().push(n);
                    n += 1;
                }
            }
        }
        lists.reclaim(u64::MAX).unwrap();
        for _ in 0..4 {
            let (key, from) = (dice.below(KEYS), 1 + dice.below(3) as i64);
            let to = 1 + from % 3;
            if dice.below(4) == 0 {
                lists.clear_key(Time(from), &key).unwrap();
                model.remove(&(from, key));
            } else if let Some(moved) = model.remove(&(from, key)) {
                lists.relocate(Time(from), Time(to), &key).unwrap();
                let known = model.remove(&(to, key)).unwrap_or_default();
                model.insert((to, key), moved.into_iter().chain(known).collect());
            }
        }
    }
    model
}

#[test]
fn and_has_all_of_its_elements() {
    let (mut whole, mut refused) = (0, 0);
    for seed in 0..30 {
        let mut dice = Dice(seed);
        let device = Simulated::new(seed, Faults::none());
        let mut ground = Ground::new(Some(Arc::new(device)), MEMORY, false);
        let (mut lists, account) = ground.open::<u64, u64, _>(&AppendLog::new()).unwrap();
        let model = fill(&mut lists, &mut dice);
        let (held, gives) = (Rc::default(), dice.below(3) * (12 << 10));
        let other = Other { account: account.clone(), held, gives };
        account.set_reclaim(Box::new(other.clone()));
        for _ in 0..60 {
            let (bucket, key) = (1 + dice.below(3) as i64, dice.below(KEYS));
            other.hold_all_but((16 + dice.below(100)) << 10);
            let what = format!("seed {seed}, key {key} of bucket {bucket}: {account:?}");
            match read(&mut lists, Time(bucket), &key) {
                Ok(found) => {
                    let wanted = model.get(&(bucket, key)).cloned().unwrap_or_default();
                    assert_eq!(found, wanted, "{what}");
                    whole += 1;
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::OverBudget, "{what}: {error}");
                    refused += 1;
                }
            }
            other.give(u64::MAX);
            if dice.below(8) == 0 {
                lists.tick(3).unwrap();
            }
        }
    }
    println!("{whole} lists were read, {refused} refused");
    assert!(whole > 200 && refused > 0, "{whole} {refused}");
}
