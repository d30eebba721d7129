//! Random histories of a map, run against a store and a `BTreeMap`.

use std::collections::BTreeMap;

use alluvium::states::{Fetch, Ticket};
use alluvium::{Layout, Map, Store};
use proptest::prelude::*;

#[derive(Clone, Debug)]
pub enum Op {
    Update(u16, u8),
    Modify(u16, u8),
    Put(u16, u8),
    Take(u16),
    Remove(u16),
    Get(u16),
    Batch(Vec<(u16, u8)>),
    ReadBatch(Vec<u16>),
    /// Starts reads ahead, and gives this many of those under way up, the latest first.
    Fetch(Vec<u16>, u8),
    Scan,
    Clear,
    Checkpoint,
    Reopen,
    Tick,
}

/// One operation; histories are vectors of them.
pub fn op() -> impl Strategy<Value = Op> {
    let key = prop_oneof![0u16..60, 0u16..6000];
    prop_oneof![
        8 => (key.clone(), any::<u8>()).prop_map(|(k, n)| Op::Update(k, n)),
        2 => (key.clone(), any::<u8>()).prop_map(|(k, n)| Op::Modify(k, n)),
        6 => (key.clone(), any::<u8>()).prop_map(|(k, n)| Op::Put(k, n)),
        3 => key.clone().prop_map(Op::Take),
        3 => key.clone().prop_map(Op::Remove),
        4 => key.clone().prop_map(Op::Get),
        3 => prop::collection::vec((key.clone(), any::<u8>()), 0..700).prop_map(Op::Batch),
        2 => prop::collection::vec(key.clone(), 0..700).prop_map(Op::ReadBatch),
        3 => (prop::collection::vec(key, 0..8), 0u8..4).prop_map(|(keys, n)| Op::Fetch(keys, n)),
        1 => Just(Op::Scan),
        1 => prop_oneof![9 => Just(Op::Scan), 1 => Just(Op::Clear)],
        1 => Just(Op::Checkpoint),
        1 => Just(Op::Reopen),
        1 => Just(Op::Tick),
    ]
}

/// A value that histories make and change.
pub trait Value: alluvium::State + PartialEq + std::fmt::Debug {
    fn new(n: u8) -> Self;
    fn change(&mut self, n: u8);
}

impl Value for u64 {
    fn new(n: u8) -> Self {
        u64::from(n)
    }
    fn change(&mut self, n: u8) {
        *self = self.wrapping_mul(31).wrapping_add(u64::from(n));
    }
}

/// So long that few of them are in memory.
impl Value for [u64; 40] {
    fn new(n: u8) -> Self {
        [u64::from(n); 40]
    }
    fn change(&mut self, n: u8) {
        self.iter_mut().for_each(|word| word.change(n));
    }
}

impl Value for Vec<String> {
    fn new(n: u8) -> Self {
        vec!["new".repeat(n as usize % 5)]
    }
    fn change(&mut self, n: u8) {
        if n % 7 == 0 {
            self.pop();
        } else if self.len() < 20 {
            self.push(format!("{n}").repeat(n as usize % 11));
        }
    }
}

/// Runs a history on the store that `open` opens, again after each `Reopen`, and on a model; they
/// give the same answers, and the store never books more than `memory`.
pub fn run<V: Value>(open: impl Fn() -> Store, memory: u64, ops: &[Op]) {
    run_on(open, |store| store.map::<u16, V>("m").open().unwrap(), memory, ops);
}

/// [`run`] with the map that `open_map` opens, in a layout of its own. Says how many records moved to sorted runs.
pub fn run_on<V: Value, L: Layout<u16, V>>(
    open: impl Fn() -> Store,
    open_map: impl Fn(&Store) -> Map<u16, V, L>,
    memory: u64,
    ops: &[Op],
) -> u64 {
    let mut store = open();
    let mut map = open_map(&store);
    let mut moved = 0;
    let mut model: BTreeMap<u16, V> = BTreeMap::new();
    let mut saved: BTreeMap<u16, V> = BTreeMap::new();
    let mut tickets: Vec<Ticket> = Vec::new();
    // A read that is given up keeps its buffer until it ends.
    let mut gave_up = false;
    for op in ops {
        match op {
            Op::Update(k, n) => {
                map.update(k, || V::new(*n), |v| v.change(*n)).unwrap();
                model.entry(*k).or_insert_with(|| V::new(*n)).change(*n);
            }
            Op::Modify(k, n) => {
                let known = map.modify(k, |v| v.change(*n)).unwrap().is_some();
                assert_eq!(known, model.get_mut(k).map(|v| v.change(*n)).is_some());
            }
            Op::Put(k, n) => {
                let known = map.put(*k, V::new(*n)).unwrap();
                assert_eq!(known, model.insert(*k, V::new(*n)).is_some());
            }
            Op::Take(k) => assert_eq!(map.take(k).unwrap(), model.remove(k)),
            Op::Remove(k) => assert_eq!(map.remove(k).unwrap(), model.remove(k).is_some()),
            Op::Get(k) => assert_eq!(map.get(k).unwrap().as_deref(), model.get(k)),
            Op::Batch(items) => {
                map.update_batch(items, |i| &i.0, |i| V::new(i.1), |i, v| v.change(i.1)).unwrap();
                for (k, n) in items {
                    model.entry(*k).or_insert_with(|| V::new(*n)).change(*n);
                }
            }
            Op::ReadBatch(keys) => {
                map.read_batch(keys, |k| k, |k, v| assert_eq!(v, model.get(k))).unwrap();
            }
            Op::Fetch(keys, give_up) => {
                for key in keys {
                    match map.fetch(key).unwrap() {
                        Fetch::Ready => {}
                        Fetch::Pending(ticket) if tickets.contains(&ticket) => {}
                        Fetch::Pending(ticket) => tickets.push(ticket),
                        Fetch::Busy => {
                            assert!(!tickets.is_empty() || gave_up, "{key}: no read is under way");
                        }
                    }
                }
                gave_up |= *give_up > 0 && !tickets.is_empty();
                for _ in 0..*give_up {
                    tickets.pop().into_iter().for_each(|ticket| map.release(ticket).unwrap());
                }
                // Told ones keep their buffers until they are used, so some are given up.
                map.fetched(|ticket| assert!(tickets.contains(&ticket) || *give_up > 0)).unwrap();
            }
            Op::Scan => {}
            Op::Clear => {
                map.clear().unwrap();
                model.clear();
            }
            Op::Checkpoint => {
                store.checkpoint(7).unwrap();
                saved = model.clone();
            }
            Op::Reopen => {
                tickets.clear();
                gave_up = false;
                moved += map.stats().unwrap().runs.moved;
                drop((map, store));
                store = open();
                map = open_map(&store);
                model = saved.clone();
            }
            Op::Tick => {
                store.tick(100).unwrap();
            }
        }
        if std::env::var_os("SHOW").is_some() {
            eprintln!("{:?}", map.stats().unwrap());
        }
        let used = store.stats().unwrap().memory;
        assert!(used.peak <= memory, "{used:?}");
        if !matches!(op, Op::Get(_) | Op::Update(..) | Op::Put(..)) {
            assert_eq!(map.len().unwrap(), model.len() as u64);
        }
        if matches!(op, Op::Scan | Op::Reopen | Op::Checkpoint) {
            let mut seen = BTreeMap::new();
            map.for_each(|k, v| {
                assert!(seen.insert(*k, v.clone()).is_none(), "{k} twice");
                Ok(())
            })
            .unwrap();
            assert_eq!(seen, model);
        }
    }
    moved + map.stats().unwrap().runs.moved
}
