//! All histories of up to seven steps over {put, delete, checkpoint, evict, reopen} and two keys:
//! after each step get, scan and length agree with a `BTreeMap` and with each other.
//!
//! What this catches: deletes that come back because a durable ancestor still stands (on storage,
//! in a clean page, in a checkpoint), slots and numbers reused too early, keys counted twice.
//!
//! A seeded share runs by default; `ALLUVIUM_LONG=1` runs all 7^7 per layout. Histories that differ
//! only in which key is called first are the same.

use crate::common;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::common::{Dice, assert_equal, entries};
use alluvium::io::{Faults, Simulated};
use alluvium::{AnyLayout, Heap, HybridLog, KIB, Map, Store};

const LENGTH: u32 = 7;
/// Large, so that few of them fill the memory.
type Wide = [u64; 96];

#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    Put(u64),
    Delete(u64),
    Checkpoint,
    Evict,
    Reopen,
}

const STEPS: [Step; 7] = [
    Step::Put(0),
    Step::Put(1),
    Step::Delete(0),
    Step::Delete(1),
    Step::Checkpoint,
    Step::Evict,
    Step::Reopen,
];

fn layouts() -> Vec<(&'static str, AnyLayout, u64)> {
    let log = HybridLog::new().page_records(1).queue_depth(1).segment(8 * KIB);
    vec![
        ("heap", Heap::new().into(), 200 * KIB),
        ("log", log.clone().into(), 72 * KIB),
        ("log, constant hash", log.hash_bits(0).into(), 72 * KIB),
    ]
}

struct Run<'a> {
    layout: &'a AnyLayout,
    memory: u64,
    device: Simulated,
    open: Option<(Store, Map<u64, Wide>)>,
    model: BTreeMap<u64, Wide>,
    saved: BTreeMap<u64, Wide>,
    writes: u64,
    /// Times that a key was only on storage after an eviction.
    cold: u64,
}

impl<'a> Run<'a> {
    fn new(layout: &'a AnyLayout, memory: u64) -> Self {
        let device = Simulated::new(1, Faults::none());
        let (model, saved) = Default::default();
        let mut run = Self { layout, memory, device, open: None, model, saved, writes: 0, cold: 0 };
        run.reopen();
        run
    }

    fn reopen(&mut self) {
        self.open = None;
        let device = Arc::new(self.device.clone());
        let store = common::open_on(device, self.layout.clone(), self.memory).unwrap();
        let map = store.map("m").open().unwrap();
        self.open = Some((store, map));
    }

    fn map(&mut self) -> &mut Map<u64, Wide> {
        &mut self.open.as_mut().unwrap().1
    }

    fn put(&mut self, key: u64) {
        self.writes += 1;
        let value = [self.writes; 96];
        let known = self.map().put(key, value).unwrap();
        assert_eq!(known, self.model.insert(key, value).is_some());
    }

    fn delete(&mut self, key: u64) {
        let value = self.map().take(&key).unwrap();
        assert_eq!(value, self.model.remove(&key));
    }

    /// Writes other keys until neither key is in memory, and removes them again.
    fn evict(&mut self) {
        let AnyLayout::HybridLog(_) = self.layout else { return };
        let mut fillers = 0;
        while (0..2).any(|key| self.map().peek(&key).unwrap().is_some()) {
            self.put(100 + fillers);
            fillers += 1;
            assert!(fillers < 200, "the keys stay in memory");
        }
        self.cold +=
            u64::from(self.model.contains_key(&0)) + u64::from(self.model.contains_key(&1));
        (0..fillers).for_each(|i| self.delete(100 + i));
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Put(key) => self.put(key),
            Step::Delete(key) => self.delete(key),
            Step::Checkpoint => {
                self.open.as_ref().unwrap().0.checkpoint(1).unwrap();
                self.saved = self.model.clone();
            }
            Step::Evict => self.evict(),
            Step::Reopen => {
                self.reopen();
                self.model = self.saved.clone();
            }
        }
    }

    fn check(&mut self, history: &[Step]) {
        let model = self.model.clone();
        let map = self.map();
        assert_eq!(map.len().unwrap(), model.len() as u64, "{history:?}");
        assert_eq!(entries(map).unwrap(), model, "{history:?}");
    }

    /// Reads move records, so that they only come at the end.
    fn check_with_reads(&mut self, history: &[Step]) {
        let model = self.model.clone();
        for key in 0..2 {
            for _ in 0..2 {
                assert_eq!(
                    self.map().get(&key).unwrap().as_deref(),
                    model.get(&key),
                    "{history:?}"
                );
            }
        }
        assert_equal(self.map(), &model, &format!("{history:?}"));
    }
}

fn history(mut number: u64) -> [Step; LENGTH as usize] {
    std::array::from_fn(|_| {
        let step = STEPS[(number % 7) as usize];
        number /= 7;
        step
    })
}

/// Whether the history is not one with the keys' names exchanged.
fn is_first_of_pair(history: &[Step]) -> bool {
    history.iter().find_map(|step| match step {
        Step::Put(key) | Step::Delete(key) => Some(*key),
        _ => None,
    }) == Some(0)
}

#[test]
fn every_short_history_equals_the_model() {
    let all = 7u64.pow(LENGTH);
    let share = if common::long() { 1 } else { 200 };
    let seed = common::times("ALLUVIUM_SEED", 11);
    println!("seed {seed}, one history of {share}");
    for (name, layout, memory) in layouts() {
        let mut dice = Dice(seed);
        let (mut run_count, mut cold) = (0, 0);
        for number in (0..all).filter(|_| share == 1 || dice.below(share) == 0) {
            let history = history(number);
            if !is_first_of_pair(&history) {
                continue;
            }
            let mut run = Run::new(&layout, memory);
            for end in 1..=history.len() {
                run.step(history[end - 1]);
                run.check(&history[..end]);
            }
            run.check_with_reads(&history);
            run_count += 1;
            cold += run.cold;
        }
        println!("{name}: {run_count} histories, {cold} keys went cold");
        assert!(cold > run_count / 4 || name == "heap", "{name}: {cold} of {run_count}");
    }
}

/// Histories that failed, or that are known to break stores like this one.
#[test]
fn known_traps() {
    use Step::*;
    let traps: &[&[Step]] = &[
        // A delete whose record is durable, then recovery.
        &[Put(0), Checkpoint, Delete(0), Checkpoint, Reopen],
        &[Put(0), Checkpoint, Evict, Delete(0), Checkpoint, Reopen],
        &[Put(0), Checkpoint, Delete(0), Reopen],
        // A delete and a new insert while the old one is cold.
        &[Put(0), Evict, Delete(0), Put(0), Evict, Checkpoint, Reopen],
        &[Put(0), Checkpoint, Put(0), Evict, Reopen, Delete(0), Checkpoint, Reopen],
        // The only record leaves; its segment goes; another key takes its number.
        &[Put(0), Evict, Delete(0), Put(1), Evict, Evict, Checkpoint, Reopen],
        &[Put(0), Checkpoint, Delete(0), Checkpoint, Put(1), Checkpoint, Reopen, Evict],
    ];
    for (_, layout, memory) in layouts() {
        for history in traps {
            let mut run = Run::new(&layout, memory);
            for (i, &step) in history.iter().enumerate() {
                run.step(step);
                run.check(&history[..=i]);
            }
            run.check_with_reads(history);
        }
    }
}
