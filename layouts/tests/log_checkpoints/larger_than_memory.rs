//! Checkpoints of a state that is many times as large as its memory, which is the least that it opens with,
//! while more records die than there is room to note.
//!
//! What this catches: a checkpoint that is given up for want of memory, one that is not what the log held at
//! its barrier, a call whose work grows with the state, memory beyond the budget.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use alluvium_layouts::{CheckpointOutcome, HybridLog, HybridLogTable, Pace, Table, Upkeep};
use alluvium_pagestore::io::{Faults, Simulated};
use alluvium_pagestore::{BlobWriter, KIB, RewriteProgress, SegmentStore, State, StateImage};

use crate::dice::Dice;
use crate::log::{Model, Value, idle, open, restored};

impl<const N: usize> Value for [u64; N]
where
    Self: State,
{
    fn of(n: u64) -> Self {
        [n; N]
    }
}

/// A share looks at so many slots, entries or notes, and at the rest of what it has begun.
const LOOKS_MAX: u64 = 4096 + 64;
/// A share has so many pages written by a helper that is driven with it.
const PAGES_MAX: u64 = 16;
/// What an entry of the index takes, and its part of what doubles; so many there is room for always.
const ENTRY_BYTES: u64 = 40;
const LEAST_KEYS: u64 = 300;
/// Changes between two looks at how much space there is.
const SOME: u64 = 100;

struct Case {
    seed: u64,
    /// So many times the memory is the state, and a record of it takes so many bytes.
    times: u64,
    bytes: u64,
    threads: bool,
}

struct Run<V: Value> {
    device: Simulated,
    segments: SegmentStore,
    layout: HybridLog,
    table: HybridLogTable<u64, V>,
    model: Model<V>,
    keys: u64,
    threads: bool,
    dice: Dice,
}

impl<V: Value> Run<V> {
    /// Most are overwritten, some go, and come back later.
    fn change(&mut self, count: u64) {
        for _ in 0..count {
            let (key, n) = (self.dice.below(self.keys), self.dice.next() % 1000);
            match self.dice.below(4) {
                0 => assert_eq!(self.table.take(&key).unwrap(), self.model.remove(&key)),
                _ => {
                    let known = self.model.insert(key, V::of(n)).is_some();
                    assert_eq!(self.table.put(key, V::of(n)).unwrap(), known);
                }
            }
        }
    }

    /// Takes a checkpoint beside a stream that changes up to `most` keys between two shares.
    fn checkpoint(&mut self, number: u64, most: u64) -> StateImage {
        let mut blobs = BlobWriter::new(self.segments.shared_device(), number, 4096);
        let expected = self.model.clone();
        let mut image = self.share(|table| table.begin_checkpoint(&mut blobs));
        // Meanwhile nothing is removed: space is there for so many.
        let mut left = self.keys;
        for shares in 0.. {
            if let Some(image) = image {
                self.device.drain();
                restored(&self.device, &self.layout, &image, &expected);
                return image;
            }
            assert!(shares < 1_000_000, "it never ends");
            let changes = self.dice.below(most + 1).min(left);
            left -= changes;
            if changes == 0 && self.threads {
                // Nothing but the helper has something to do.
                std::thread::sleep(Duration::from_micros(50));
            }
            self.change(changes);
            let gone = self.dice.below(Pace::WHOLE + Pace::WHOLE / 4);
            self.table.pace_checkpoint(Pace { calls: changes, gone });
            image = self.share(|table| table.continue_checkpoint(&mut blobs));
        }
        unreachable!("shares have no end");
    }

    /// One call, whose work does not grow with the state.
    fn share<R>(
        &mut self,
        call: impl FnOnce(&mut HybridLogTable<u64, V>) -> Result<R, alluvium_pagestore::Error>,
    ) -> R {
        let before = self.table.stats();
        let done = call(&mut self.table).expect("no checkpoint is given up");
        let after = self.table.stats();
        let looks = after.checkpoint_looks - before.checkpoint_looks;
        let pages = after.pages_flushed - before.pages_flushed;
        assert!(looks <= LOOKS_MAX, "a share looked at {looks}");
        assert!(pages <= PAGES_MAX, "a share gave {pages} pages to the helper");
        done
    }

    /// Removes segments that nobody needs, and rewrites those with the fewest live records, until twice what
    /// is live is there at the most.
    fn make_space(&mut self) {
        let rewriter = self.table.rewriter().expect("a log with segments");
        loop {
            let mut all = Vec::new();
            rewriter.segments(&mut all);
            for dead in all.iter().filter(|s| s.sealed && s.live_records == 0 && !s.pinned) {
                rewriter.unlink(dead.id).unwrap();
            }
            let all = all.iter().filter(|s| s.live_records > 0);
            let (live, records) =
                all.clone().fold((0, 0), |sum, s| (sum.0 + s.live_records, sum.1 + s.records));
            let emptiest =
                all.filter(|s| s.sealed).min_by_key(|s| 1000 * s.live_records / s.records);
            let Some(segment) = emptiest.filter(|_| records > 2 * live) else { return };
            rewriter.begin(segment.id).unwrap();
            while !matches!(rewriter.step(64).unwrap(), RewriteProgress::Done { .. }) {}
        }
    }
}

fn beside_a_stream<V: Value>(case: &Case) {
    let device = Simulated::new(case.seed, Faults::late(3));
    let segments = SegmentStore::new(Arc::new(device.clone()), 1);
    let layout = HybridLog::new().queue_depth(1).patience(Duration::from_secs(600));
    let mut memory = 16 * KIB;
    while open::<V>(&layout, &segments, memory, false, None).is_err() {
        memory += KIB;
    }
    // In the least there is room for the index of so many. For others that is added.
    let keys = match case.times * memory / case.bytes {
        few if few <= LEAST_KEYS => few,
        _ => case.times * memory / (case.bytes - ENTRY_BYTES * case.times),
    };
    memory += if keys > LEAST_KEYS { ENTRY_BYTES * keys } else { 0 };
    let (table, account) = open(&layout, &segments, memory, case.threads, None).unwrap();
    let (dice, threads) = (Dice(case.seed), case.threads);
    let model = BTreeMap::new();
    let mut run = Run::<V> { device, segments, layout, table, model, keys, threads, dice };
    for key in 0..keys {
        let put = run.table.put(key, V::of(key));
        put.unwrap_or_else(|e| panic!("{key} of {keys}: {}", e.error));
        run.model.insert(key, V::of(key));
    }
    let booked = idle(&account);
    let mut sets = 0;
    for number in 1..=6 {
        // Few or many, before the barrier and after it.
        let before = [keys, keys / 2, 3, keys, 0, keys][number as usize - 1];
        for _ in 0..before.div_ceil(SOME) {
            run.change(SOME);
            run.make_space();
        }
        let image = run.checkpoint(number, [3, 40, 40, 400, 40, 1][number as usize - 1]);
        sets += image.segments().filter(|s| s.live.is_some_and(|s| s.file == number)).count();
        run.table.checkpointed(CheckpointOutcome::Committed);
        run.make_space();
        assert_eq!(idle(&account), booked, "memory of checkpoint {number}");
    }
    println!("{keys} keys of {} bytes in {memory}: {sets} sets", case.bytes);
    assert!(sets > 0, "more have died than there is room to note");
    assert!(account.stats().peak <= memory, "{:?}", account.stats());
}

fn all_of<V: Value>(times: u64, bytes: u64) {
    for (seed, threads) in [(1, false), (2, false), (3, true)] {
        beside_a_stream::<V>(&Case { seed, times, bytes, threads });
    }
}

#[test]
fn of_four_times_its_memory() {
    all_of::<[u64; 30]>(4, 240);
}

#[test]
fn of_sixteen_times_its_memory() {
    all_of::<[u64; 250]>(16, 2000);
}

#[test]
fn of_sixty_four_times_its_memory() {
    all_of::<[u64; 1000]>(64, 8000);
}

#[test]
fn in_the_least_memory_of_all() {
    all_of::<[u64; 500]>(12, 4000);
}

#[test]
fn of_values_that_own_heap() {
    all_of::<String>(4, 200);
}
