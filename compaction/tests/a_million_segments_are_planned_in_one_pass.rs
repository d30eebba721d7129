//! The policy on synthetic metadata, without I/O: what it chooses, and what choosing costs.

mod common;

use alluvium_compaction::{CHOSEN_MAX, SpacePolicy};
use alluvium_pagestore::SegmentMeta;
use common::Rng;

const COUNT: u64 = 1_000_000;

fn population(live_part: impl Fn(&mut Rng) -> u64) -> Vec<SegmentMeta> {
    let mut rng = Rng(42);
    (0..COUNT)
        .map(|i| SegmentMeta {
            id: i,
            sequence: (i * 7919) % COUNT,
            bytes: 1 << 20,
            records: 1000,
            live_records: live_part(&mut rng),
            sealed: true,
            pinned: rng.below(10) == 0,
            expired: false,
        })
        .collect()
}

#[test]
fn the_oldest_is_found_among_a_million() {
    let policy = SpacePolicy::with_limit(2.0).unwrap();
    let segments = population(|rng| rng.below(900) as u64);
    // One that compared each with each would not end.
    let plan = policy.plan(&segments, 0);

    let chosen = segments[plan.rewrite[0] as usize];
    let better = segments.iter().filter(|s| {
        !s.is_dead() && !s.pinned && s.live_records <= 800 && s.sequence < chosen.sequence
    });
    assert_eq!(better.count(), 0);
    let order = |id: &u64| segments[*id as usize].sequence;
    assert!(plan.rewrite.len() == CHOSEN_MAX && plan.rewrite.is_sorted_by_key(order));
    assert!(plan.unlink.iter().all(|&id| {
        let s = segments[id as usize];
        s.live_records == 0 && !s.pinned
    }));
    let dead = segments.iter().filter(|s| s.is_dead() && !s.pinned).count();
    assert_eq!(plan.unlink.len(), dead);
}

#[test]
fn a_million_live_segments_are_left_alone() {
    let plan = SpacePolicy::with_limit(2.0).unwrap().plan(&population(|_| 1000), 0);
    assert_eq!((plan.rewrite, plan.unlink.len()), (vec![], 0));
    // A limit that they pass, but no single one: nearly all live is left alone too.
    let plan = SpacePolicy::new(1.5, 0.3).unwrap().plan(&population(|_| 701), 0);
    assert!(plan.rewrite.is_empty());
}

#[test]
fn carrying_out_plans_converges_and_copies_less_than_four_per_byte_freed() {
    // Each plan is a full pass; 2,000 segments keep a debug build below a second.
    let policy = SpacePolicy::new(2.0, 0.2).unwrap();
    let mut segments = population(|rng| rng.below(998) as u64 + 1);
    segments.iter_mut().for_each(|s| s.pinned = false);
    segments.truncate(2000);
    let (mut copied, mut freed) = (0, 0);
    while let Some(&id) = policy.plan(&segments, 0).rewrite.first() {
        let at = segments.iter().position(|s| s.id == id).unwrap();
        let old = segments.swap_remove(at);
        assert!(old.live_records <= 800, "parked segment chosen: {old:?}");
        copied += old.live_bytes();
        freed += old.bytes - old.live_bytes();
        segments.push(SegmentMeta {
            id: COUNT + id,
            sequence: COUNT + id,
            bytes: old.live_bytes(),
            records: old.live_records,
            ..old
        });
    }
    assert!(policy.plan(&segments, 0).space.amplification() <= 2.0);
    assert!(copied <= 4 * freed, "{copied} copied, {freed} freed");
}

#[test]
fn of_a_million_those_that_have_expired_go_oldest_first_and_nothing_else_is_copied_for_it() {
    let policy = SpacePolicy::with_limit(2.0).unwrap();
    let mut segments = population(|rng| 900 + rng.below(100) as u64);
    segments.iter_mut().for_each(|s| s.expired = s.id % 3 == 0);
    let plan = policy.plan(&segments, 0);
    let chosen = segments[plan.rewrite[0] as usize];
    let first = segments.iter().filter(|s| s.expired && !s.pinned).map(|s| s.sequence).min();
    assert!(chosen.expired && Some(chosen.sequence) == first);
    let expired = segments.iter().filter(|s| s.expired).map(|s| s.bytes).sum::<u64>();
    assert_eq!(plan.space.expired_bytes, expired);
    // Carried out, they are dead, and the rest is as it was: at its limit, hence left alone.
    segments.iter_mut().filter(|s| s.expired).for_each(|s| s.live_records = 0);
    let plan = policy.plan(&segments, 0);
    assert_eq!((plan.rewrite, plan.space.expired_bytes), (vec![], 0));
    let dead = segments.iter().filter(|s| s.expired && !s.pinned).count();
    assert_eq!(plan.unlink.len(), dead);
}
