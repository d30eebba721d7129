//! Any history leaves space amplification at the limit (plus the unsealed segment) once fuel was
//! given, with copies paid for by garbage; fuel in proportion to writes keeps it there throughout.

mod common;

use std::cell::Cell;

use alluvium_compaction::{Compactor, LIVE_PER_REST, SpacePolicy};
use alluvium_pagestore::{Result, Rewrite, RewriteProgress, SegmentMeta};
use common::{Population, RECORD_BYTES, Rng};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Op {
    Put(usize),
    Remove(usize),
    PutRange(usize, usize),
    Checkpoint,
    DropCheckpoint,
    Tick(usize),
    Fail(u32),
}

const KEYS: usize = 200;

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        40 => (0..KEYS).prop_map(Op::Put),
        5 => (0..KEYS).prop_map(Op::Remove),
        10 => (0..KEYS, 0..KEYS).prop_map(|(a, b)| Op::PutRange(a.min(b), a.max(b))),
        2 => Just(Op::Checkpoint),
        1 => Just(Op::DropCheckpoint),
        20 => (0usize..200).prop_map(Op::Tick),
        2 => (1u32..20).prop_map(Op::Fail),
    ];
    proptest::collection::vec(op, 1..300)
}

fn limits() -> impl Strategy<Value = SpacePolicy> {
    (1.1f64..4.0, 0.05f64..=1.0)
        .prop_map(|(a, part)| SpacePolicy::new(a, (1.0 - 1.0 / a) * part).unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_history_is_brought_to_the_limit(
        ops in ops(), policy in limits(), records_per_segment in 1usize..40,
    ) {
        let mut log = Population::new(KEYS, records_per_segment);
        let mut compactor = Compactor::new(policy);
        let (mut given, mut errors, mut failures) = (0, 0, 0);
        for op in ops {
            match op {
                Op::Put(key) => log.put(key),
                Op::Remove(key) => log.remove(key),
                Op::PutRange(from, to) => (from..to).for_each(|key| log.put(key)),
                Op::Checkpoint => log.checkpoint(),
                Op::DropCheckpoint => log.drop_checkpoint(),
                Op::Fail(calls) => { log.fail_in = Some(calls); failures += 1; }
                Op::Tick(fuel) => {
                    given += fuel as u64;
                    let before = log.looked_at;
                    match compactor.tick(&mut log, fuel) {
                        Ok(spent) => prop_assert!(spent.fuel <= fuel),
                        Err(_) => errors += 1,
                    }
                    prop_assert!(log.looked_at - before <= fuel as u64);
                }
            }
        }
        prop_assert!(log.looked_at <= given);
        prop_assert!(errors <= failures);

        // Twice over all records pays for every rewrite there can be; idle must come before.
        log.fail_in = None;
        let mut ticks = 0;
        while !compactor.tick(&mut log, 50).unwrap().idle {
            ticks += 1;
            prop_assert!(ticks < 100_000, "never idle");
        }
        let live_bytes = log.live_records() * RECORD_BYTES;
        let limit_bytes =
            (policy.max_amplification() * live_bytes as f64) as u64 + log.segment_bytes();
        prop_assert!(log.occupied_bytes() <= limit_bytes, "{} {limit_bytes}", log.occupied_bytes());
        let y = policy.min_yield();
        let paid = (1.0 - y) / y * log.garbage as f64;
        prop_assert!(log.moved as f64 <= paid + 1e-6, "{} {paid}", log.moved);
    }

    #[test]
    fn pinned_segments_stay_until_they_are_let_go(rounds in 1usize..8) {
        // `Population::unlink` asserts that no pinned segment is ever removed.
        let mut log = Population::new(KEYS, 10);
        let mut compactor = Compactor::default();
        (0..KEYS).for_each(|key| log.put(key));
        log.checkpoint();
        for _ in 0..rounds {
            (0..KEYS).for_each(|key| log.put(key));
            while !compactor.tick(&mut log, 64).unwrap().idle {}
            // The checkpoint's 20 segments, the 20 that are live, the one that is open.
            prop_assert_eq!(log.segment_count(), 41);
        }
        log.drop_checkpoint();
        while !compactor.tick(&mut log, 64).unwrap().idle {}
        prop_assert_eq!(log.segment_count(), 21);
        prop_assert_eq!(log.moved, 0, "segments that died by themselves were copied");
    }
}

#[test]
fn fuel_in_proportion_to_writes_keeps_the_limit_throughout() {
    // A write makes one record of garbage; freeing it looks at up to 1/0.2 = 5 records. One more
    // unit pays for plans and unlinks.
    const FUEL_PER_WRITE: usize = 6;
    const BATCH: usize = 64;
    let keys = 20_000;
    for (limit, skew) in [2.0, 1.5].into_iter().flat_map(|a| [1, 2, 4].map(|skew| (a, skew))) {
        let mut rng = Rng(7);
        let mut log = Population::new(keys, 200);
        let mut compactor = Compactor::new(SpacePolicy::with_limit(limit).unwrap());
        (0..keys).for_each(|key| log.put(key));
        let live_bytes = log.occupied_bytes() as f64;
        let limit_bytes = (limit * live_bytes) as u64 + 2 * log.segment_bytes();
        let batches = 8_000;
        for batch in 0..batches {
            for _ in 0..BATCH {
                // The smallest of `skew` draws: more and more a few keys.
                log.put((0..skew).map(|_| rng.below(keys)).min().unwrap());
            }
            compactor.tick(&mut log, BATCH * FUEL_PER_WRITE).unwrap();
            assert!(log.moved <= 4 * log.garbage);
            if batch % 10 == 0 {
                assert!(log.occupied_bytes() <= limit_bytes, "{limit}, skew {skew}, batch {batch}");
            }
        }
        let copies = log.moved as f64 / (batches * BATCH) as f64;
        println!("{limit}, skew {skew}: {copies:.2} records copied per record written");
        assert!(copies < if limit < 2.0 { 1.0 } else { 0.5 }, "skew {skew}: {copies}");
    }
}

/// Counts how often its segments are listed.
struct Listed(Population, Cell<usize>);

impl Rewrite for Listed {
    fn begin(&mut self, segment: u64) -> Result<()> {
        self.0.begin(segment)
    }
    fn step(&mut self, fuel: usize) -> Result<RewriteProgress> {
        self.0.step(fuel)
    }
    fn unlink(&mut self, segment: u64) -> Result<()> {
        self.0.unlink(segment)
    }
    fn segments(&self, out: &mut Vec<SegmentMeta>) {
        self.1.set(self.1.get() + 1);
        self.0.segments(out);
    }
}

#[test]
fn who_rests_looks_seldom_and_keeps_the_limit() {
    const FUEL_PER_WRITE: usize = 8;
    const BATCH: usize = 64;
    for keys in [250, 400_000] {
        let (mut rng, batches) = (Rng(11), 15_000);
        let mut log = Listed(Population::new(keys, 1000), Cell::new(0));
        let mut compactor = Compactor::new(SpacePolicy::with_limit(1.5).unwrap());
        (0..keys).for_each(|key| log.0.put(key));
        let live = log.0.occupied_bytes();
        let rested = keys as u64 / LIVE_PER_REST * RECORD_BYTES;
        let limit = live + live / 2 + 2 * log.0.segment_bytes() + rested;
        for batch in 0..batches {
            (0..BATCH).for_each(|_| log.0.put(rng.below(keys)));
            if !compactor.rests(BATCH) {
                compactor.tick(&mut log, BATCH * FUEL_PER_WRITE).unwrap();
            }
            if batch % 50 == 0 {
                assert!(log.0.occupied_bytes() <= limit, "{keys} keys, batch {batch}");
            }
        }
        let (listed, moved) = (log.1.get(), log.0.moved);
        println!("{keys} keys: listed {listed} times in {batches} shares, {moved} records moved");
        assert!(moved > 0);
        // Of few records one in 256 dies with each share. Of many, the first half of what dies
        // is garbage that may stay.
        let quiet = live / 2 / RECORD_BYTES / BATCH as u64;
        let most = if rested == 0 { batches } else { batches - quiet + quiet / 4 };
        assert!(listed as u64 <= most, "{keys} keys: listed {listed} times");
    }
}

#[test]
fn who_is_told_to_look_again_does_not_rest() {
    let mut log = Population::new(400_000, 1000);
    let mut compactor = Compactor::default();
    (0..400_000).for_each(|key| log.put(key));
    while !compactor.tick(&mut log, 100_000).unwrap().idle {}
    assert!(compactor.rests(64));
    compactor.look_again();
    assert!(!compactor.rests(1));
}

#[test]
fn a_live_population_causes_no_work() {
    let mut log = Population::new(10_000, 100);
    let mut compactor = Compactor::default();
    (0..10_000).for_each(|key| log.put(key));
    for _ in 0..100 {
        assert!(compactor.tick(&mut log, 1000).unwrap().idle);
    }
    assert_eq!((log.looked_at, log.moved, log.segment_count()), (0, 0, 101));
}
