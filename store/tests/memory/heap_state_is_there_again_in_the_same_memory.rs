//! State on the heap in the least memory that it opens with, and a little more: what is accepted can be checkpointed,
//! opened again with the same configuration, and read.
//!
//! What this catches: a table that grows into the memory which its checkpoint, or reading it, takes.

use std::collections::BTreeMap;

use alluvium::{AnyLayout, Heap, List, Map, Result, State, Store};

use crate::counting::alone;
use crate::dice::Dice;
use crate::what_is_accepted_is_there_again_in_the_same_memory::{Kind, play};

/// A value by a number.
pub(crate) trait Numbered: State + Clone + PartialEq {
    const NAME: &'static str;

    fn of(n: u64) -> Self;
}

impl Numbered for u64 {
    const NAME: &'static str = "numbers on the heap";

    fn of(n: u64) -> Self {
        n
    }
}

impl Numbered for [u64; 31] {
    const NAME: &'static str = "arrays on the heap";

    fn of(n: u64) -> Self {
        [n; 31]
    }
}

impl Numbered for Vec<u64> {
    const NAME: &'static str = "vectors on the heap";

    fn of(n: u64) -> Self {
        vec![n; (n >> 40) as usize % 60]
    }
}

pub(crate) struct OnHeap<V: State>(Map<u64, V, Heap>);

impl<V: Numbered> Kind for OnHeap<V> {
    const NAME: &'static str = V::NAME;
    const OF_STORE: bool = true;
    type Model = BTreeMap<u64, V>;

    fn open(store: &Store, name: &str, _: u64) -> Result<Self> {
        Ok(Self(store.map(name).layout(Heap::new()).open()?))
    }

    fn change(&mut self, model: &mut Self::Model, dice: &mut Dice) -> Result<()> {
        for _ in 0..16 {
            let (key, n) = (dice.below(20_000), dice.next());
            match dice.below(8) {
                0 => {
                    self.0.remove(&key)?;
                    model.remove(&key);
                }
                1 => {
                    self.0.modify(&key, |value| value.clone_from(&V::of(n)))?;
                    model.entry(key).and_modify(|value| *value = V::of(n));
                }
                _ => {
                    self.0.put(key, V::of(n))?;
                    model.insert(key, V::of(n));
                }
            }
        }
        Ok(())
    }

    fn compare(&mut self, model: &Self::Model, what: &str) -> Result<()> {
        assert_eq!(self.0.len()?, model.len() as u64, "{what}");
        for (key, value) in model {
            assert!(self.0.get(key)?.as_deref() == Some(value), "{what}, key {key}");
        }
        Ok(())
    }
}

pub(crate) struct ListsOnHeap(List<u64, u64>);

impl Kind for ListsOnHeap {
    const NAME: &'static str = "lists on the heap";
    const OF_STORE: bool = true;
    type Model = BTreeMap<u64, Vec<u64>>;

    fn open(store: &Store, name: &str, _: u64) -> Result<Self> {
        Ok(Self(store.list(name).layout(AnyLayout::from(Heap::new())).open()?))
    }

    fn change(&mut self, model: &mut Self::Model, dice: &mut Dice) -> Result<()> {
        let (key, n) = (dice.below(400), dice.next());
        if dice.below(60) == 0 {
            self.0.clear(&key)?;
            model.remove(&key);
            return Ok(());
        }
        for at in 0..dice.below(20) {
            self.0.append(&key, n + at)?;
            model.entry(key).or_default().push(n + at);
        }
        Ok(())
    }

    fn compare(&mut self, model: &Self::Model, what: &str) -> Result<()> {
        for key in 0..400 {
            let known = model.get(&key).cloned().unwrap_or_default();
            assert_eq!(self.0.to_vec(&key)?, known, "{what}, key {key}");
        }
        Ok(())
    }
}

#[test]
fn maps_on_the_heap_open_again_in_the_least_memory() {
    let _alone = alone();
    play::<OnHeap<u64>>();
    play::<OnHeap<[u64; 31]>>();
    play::<OnHeap<Vec<u64>>>();
}

#[test]
fn lists_on_the_heap_open_again_in_the_least_memory() {
    let _alone = alone();
    play::<ListsOnHeap>();
}
