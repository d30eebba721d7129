//! Entries that expire, and keys that own heap, in the least memory that they open with, and a little more: what is
//! accepted can be checkpointed, opened again with the same configuration, and read.

use std::collections::BTreeMap;

use alluvium::time::nanos;
use alluvium::{ExpiringMap, Heap, HybridLog, KIB, Map, Result, Store, Time, Ttl};

use crate::counting::alone;
use crate::dice::Dice;
use crate::what_is_accepted_is_there_again_in_the_same_memory::{Kind, log, play};

pub(crate) struct Expiring(ExpiringMap<u64, u64>);

impl Kind for Expiring {
    const NAME: &'static str = "entries that expire";
    const OF_STORE: bool = true;
    type Model = BTreeMap<u64, u64>;

    fn open(store: &Store, name: &str, memory: u64) -> Result<Self> {
        let layout = log(memory.saturating_sub(64 * KIB).max(64 * KIB));
        let builder = store.expiring_map(name).layout(layout.into());
        Ok(Self(builder.open(Ttl::event_time(nanos(1 << 30)))?))
    }

    fn change(&mut self, model: &mut Self::Model, dice: &mut Dice) -> Result<()> {
        let (key, n) = (dice.below(2000), dice.next());
        self.0.advance(Time(n as i64 >> 40))?;
        if dice.below(4) == 0 {
            self.0.remove(&key)?;
            model.remove(&key);
        } else {
            self.0.put(key, n)?;
            model.insert(key, n);
        }
        Ok(())
    }

    fn compare(&mut self, model: &Self::Model, what: &str) -> Result<()> {
        for key in 0..2000 {
            assert_eq!(self.0.get(&key)?.as_deref(), model.get(&key), "{what}, {key}");
        }
        Ok(())
    }
}

/// Keys that own heap.
pub(crate) struct Words<const ON_HEAP: bool>(Map<String, u64>);

impl<const ON_HEAP: bool> Kind for Words<ON_HEAP> {
    const NAME: &'static str = if ON_HEAP { "words on the heap" } else { "words in a log" };
    const OF_STORE: bool = ON_HEAP;
    type Model = BTreeMap<String, u64>;

    fn open(store: &Store, name: &str, memory: u64) -> Result<Self> {
        let layout = if ON_HEAP { Heap::new().into() } else { HybridLog::into(log(memory)) };
        Ok(Self(store.map(name).layout(layout).open()?))
    }

    fn change(&mut self, model: &mut Self::Model, dice: &mut Dice) -> Result<()> {
        for _ in 0..if ON_HEAP { 8 } else { 1 } {
            let (key, n) = (dice.below(5000), dice.next());
            let key = format!("{key:0width$}", width = key as usize % 90);
            if dice.below(4) == 0 {
                self.0.remove(&key)?;
                model.remove(&key);
            } else {
                self.0.put(key.clone(), n)?;
                model.insert(key, n);
            }
        }
        Ok(())
    }

    fn compare(&mut self, model: &Self::Model, what: &str) -> Result<()> {
        assert_eq!(self.0.len()?, model.len() as u64, "{what}");
        for (key, value) in model {
            assert_eq!(self.0.get(key)?.as_deref(), Some(value), "{what}, {key}");
        }
        Ok(())
    }
}

#[test]
fn entries_that_expire_open_again_in_the_least_memory() {
    let _alone = alone();
    play::<Expiring>();
}

#[test]
fn keys_that_own_heap_open_again_in_the_least_memory() {
    let _alone = alone();
    play::<Words<false>>();
    play::<Words<true>>();
}
