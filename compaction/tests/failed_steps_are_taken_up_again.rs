//! Whatever call fails, the next tick goes on; a segment that can never be read can be given up.

mod common;

use alluvium_compaction::{Compactor, UNLINK_FUEL};
use alluvium_pagestore::{Error, ErrorKind, Result, Rewrite, RewriteProgress, SegmentMeta};
use common::Population;

/// 100 segments: two dead, of the others about a third live.
fn half_dead() -> Population {
    let mut log = Population::new(1000, 10);
    (0..1000).for_each(|key| log.put(key));
    (0..20).for_each(|key| log.remove(key));
    (20..1000).filter(|key| key % 3 != 0).for_each(|key| log.remove(key));
    log
}

#[test]
fn a_failure_at_any_call_only_costs_its_tick() {
    let mut expected = half_dead();
    while !Compactor::default().tick(&mut expected, usize::MAX).unwrap().idle {}
    for call in 1.. {
        let mut log = half_dead();
        log.fail_in = Some(call);
        let mut compactor = Compactor::default();
        let mut errors = 0;
        loop {
            match compactor.tick(&mut log, 7) {
                Ok(spent) if spent.idle => break,
                Ok(_) => {}
                Err(_) => errors += 1,
            }
        }
        assert_eq!(log.live_records(), expected.live_records());
        assert_eq!((log.moved, log.segment_count()), (expected.moved, expected.segment_count()));
        if log.fail_in.is_some() {
            assert!(call > 100, "only {call} calls");
            return;
        }
        assert_eq!(errors, 1, "call {call}");
    }
}

/// A population of which one segment cannot be read.
struct Damaged(Population, u64);

impl Rewrite for Damaged {
    fn begin(&mut self, segment: u64) -> Result<()> {
        self.0.begin(segment)
    }
    fn step(&mut self, fuel: usize) -> Result<RewriteProgress> {
        if self.0.at().is_some_and(|(segment, _)| segment == self.1) {
            return Err(Error::new(ErrorKind::Corrupt, "simulated"));
        }
        self.0.step(fuel)
    }
    fn unlink(&mut self, segment: u64) -> Result<()> {
        self.0.unlink(segment)
    }
    fn segments(&self, out: &mut Vec<SegmentMeta>) {
        self.0.segments(out);
    }
}

#[test]
fn a_parked_segment_is_passed_over_and_goes_when_it_dies() {
    // Segment 2 is the oldest that is not dead.
    let mut log = Damaged(half_dead(), 2);
    let mut compactor = Compactor::default();
    let mut errors = 0;
    for _ in 0..5 {
        errors += usize::from(compactor.tick(&mut log, 10 * UNLINK_FUEL).is_err());
    }
    assert_eq!((errors, compactor.rewriting()), (5, Some(2)));
    compactor.park(2);
    while !compactor.tick(&mut log, 100).unwrap().idle {}
    assert!(log.0.moved > 0 && log.0.is_there(2));
    assert!(compactor.space().amplification() <= 2.1, "{:?}", compactor.space());

    (20..30).for_each(|key| log.0.remove(key));
    while !compactor.tick(&mut log, 100).unwrap().idle {}
    assert!(!log.0.is_there(2));
}

#[test]
fn a_target_that_waits_is_not_called_again_in_the_same_tick() {
    struct Waiting(Population, usize);
    impl Rewrite for Waiting {
        fn begin(&mut self, segment: u64) -> Result<()> {
            self.0.begin(segment)
        }
        fn step(&mut self, _: usize) -> Result<RewriteProgress> {
            self.1 += 1;
            Ok(RewriteProgress::Working { spent: 0 })
        }
        fn unlink(&mut self, segment: u64) -> Result<()> {
            self.0.unlink(segment)
        }
        fn segments(&self, out: &mut Vec<SegmentMeta>) {
            self.0.segments(out);
        }
    }
    let mut log = Waiting(half_dead(), 0);
    let spent = Compactor::default().tick(&mut log, 100_000).unwrap();
    assert!(spent.idle && log.1 == 1, "{spent:?}, {} steps", log.1);
}
