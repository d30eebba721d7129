//! Giving a checkpoint up takes the same steps whatever the log holds and wherever the checkpoint stands; what it has left
//! goes later, in bounded shares, and the next one has all of it.
//!
//! What this catches: a call that gives up, or the barrier after it, that looks at each frame; marks of one that was given up
//! that are taken for those of another, also when their numbers come again; memory that is not given back.

use std::collections::BTreeMap;
use std::sync::Arc;

use alluvium_layouts::{CheckpointOutcome, HybridLog, HybridLogTable, Pace, Table, Upkeep};
use alluvium_pagestore::io::{Faults, Simulated};
use alluvium_pagestore::{BlobWriter, MIB, SegmentStore};

use crate::log::{Model, Value, open, restored};

struct Run<V: Value> {
    device: Simulated,
    segments: SegmentStore,
    layout: HybridLog,
    table: HybridLogTable<u64, V>,
    model: Model<V>,
    number: u64,
    blobs: Option<BlobWriter>,
    /// What it held at the last barrier.
    expected: Model<V>,
}

/// Looks of the call that gave up, of the barrier after it, and of the greatest of all shares.
type Looks = (u64, u64, u64);

impl<V: Value> Run<V> {
    fn new(keys: u64) -> Self {
        let device = Simulated::new(keys, Faults::none());
        let segments = SegmentStore::new(Arc::new(device.clone()), 1);
        let layout = HybridLog::new().page_records(32);
        let (table, _) = open(&layout, &segments, 64 * MIB, false, None).unwrap();
        let (model, expected, number, blobs) = (BTreeMap::new(), BTreeMap::new(), 0, None);
        let mut run = Self { device, segments, layout, table, model, number, blobs, expected };
        (0..keys).for_each(|key| run.put(key, key));
        run
    }

    fn put(&mut self, key: u64, n: u64) {
        let known = self.model.insert(key, V::of(n)).is_some();
        assert_eq!(self.table.put(key, V::of(n)).unwrap(), known);
    }

    fn take(&mut self, key: u64) {
        assert_eq!(self.table.take(&key).unwrap(), self.model.remove(&key));
    }

    fn looks(&mut self, call: impl FnOnce(&mut Self)) -> u64 {
        let before = self.table.stats().checkpoint_looks;
        call(self);
        self.table.stats().checkpoint_looks - before
    }

    fn begin(&mut self) {
        self.number += 1;
        let mut blobs = BlobWriter::new(self.segments.shared_device(), self.number, 4096);
        assert!(self.table.begin_checkpoint(&mut blobs).unwrap().is_none());
        self.blobs = Some(blobs);
        self.expected.clone_from(&self.model);
    }

    fn give_up(&mut self) {
        self.table.checkpointed(CheckpointOutcome::Abandoned);
        self.blobs.take().unwrap().abandon();
    }

    /// Takes one to its end, compares it, and says how much the greatest share looked at.
    fn complete(&mut self) -> u64 {
        let mut most = 0;
        loop {
            self.table.pace_checkpoint(Pace::AT_ONCE);
            let before = self.table.stats().checkpoint_looks;
            let image = self.table.continue_checkpoint(self.blobs.as_mut().unwrap()).unwrap();
            most = most.max(self.table.stats().checkpoint_looks - before);
            let Some(image) = image else { continue };
            self.device.drain();
            restored(&self.device, &self.layout, &image, &self.expected);
            self.table.checkpointed(CheckpointOutcome::Committed);
            return most;
        }
    }
}

/// Gives one up after so many shares, while a stream changes and removes a part of all keys.
fn given_up_after<V: Value>(keys: u64, shares: u64) -> Looks {
    let mut run = Run::<V>::new(keys);
    if shares % 2 == 1 {
        run.begin();
        run.complete();
        (0..keys).for_each(|key| run.put(key, key + 1));
    }
    run.begin();
    for share in 0..shares {
        run.table.pace_checkpoint(Pace { calls: 64, gone: 0 });
        let image = run.table.continue_checkpoint(run.blobs.as_mut().unwrap()).unwrap();
        assert!(image.is_none(), "it ended with share {share}");
        // All over the state: what is to be copied yet is cloned.
        (0..keys).skip(share as usize).step_by(61).for_each(|key| run.put(key, share));
    }
    (0..keys).step_by(7).for_each(|key| run.take(key));
    let ended = run.looks(Run::give_up);
    (0..keys).step_by(5).for_each(|key| run.put(key, 9));
    let begun = run.looks(Run::begin);
    let most = run.complete();
    (ended, begun, most)
}

fn whatever_there_is<V: Value>() {
    for shares in [0, 1, 2, 3, 8, 15] {
        let one = given_up_after::<V>(2_000, shares);
        let sixteen = given_up_after::<V>(32_000, shares);
        assert_eq!((one.0, one.1), (sixteen.0, sixteen.1), "after {shares} shares");
        assert_eq!((one.0, one.1), (0, 0), "after {shares} shares");
        assert!(sixteen.2 <= 4096 + 64, "a share looked at {}", sixteen.2);
    }
}

#[test]
fn giving_up_takes_the_same_steps_whatever_there_is_of_plain_values() {
    whatever_there_is::<u64>();
}

#[test]
fn giving_up_takes_the_same_steps_whatever_there_is_of_values_that_own_heap() {
    whatever_there_is::<String>();
}

/// Numbers of epochs come again after some more than a hundred.
#[test]
fn however_many_are_given_up_one_after_the_other_the_next_is_whole() {
    for many in [1, 2, 125, 126, 127, 128, 300] {
        let mut run = Run::<u64>::new(500);
        for round in 0..many {
            run.begin();
            if round % 3 == 0 {
                run.table.pace_checkpoint(Pace { calls: 64, gone: 0 });
                run.table.continue_checkpoint(run.blobs.as_mut().unwrap()).unwrap();
            }
            run.put(round % 500, round);
            run.take(7 * round % 500);
            run.give_up();
        }
        run.put(3, 4);
        run.begin();
        run.put(3, 5);
        run.complete();
    }
}

#[test]
fn what_one_that_was_given_up_has_left_goes_while_there_is_nothing_else_to_do() {
    let mut run = Run::<String>::new(1000);
    run.begin();
    (0..1000).for_each(|key| run.take(key));
    assert!(run.table.stats().live_bytes > 1000, "what is kept is there");
    run.give_up();
    let mut ticks = 0;
    while run.table.stats().live_bytes > 0 {
        let looks = run.looks(|run| assert!(run.table.tick(64).unwrap() > 0));
        assert!(looks <= 64 * 8, "{looks}");
        ticks += 1;
        assert!(ticks < 1000, "{:?}", run.table.stats());
    }
}
