//! Panes that many updates fill, and that are then opened from a checkpoint, are those of the model.

use alluvium_layouts::{Heap, HybridLog, Panes, PanesLayout, WindowSegments};
use alluvium_pagestore::{MIB, Time};

use super::common::{Accumulator, Items, Model, Place, Random, fold, purge, put};

/// Slices: one with many keys, one with some, one with few.
const SLICES: [(i64, u64); 3] = [(-10, 60_000), (0, 5_000), (70, 30)];

/// The slice and the key of an item.
fn placed(random: &mut Random) -> (Time, u64) {
    let (slice, keys) = SLICES[match random.below(20) {
        0..15 => 0,
        15..19 => 1,
        _ => 2,
    }];
    (Time(slice), random.below(keys))
}

fn compare<A: Accumulator>(panes: &mut impl Panes<u64, A>, model: &Model, random: &mut Random) {
    let slices: Vec<i64> = SLICES.map(|(slice, _)| slice).into();
    let mut found = panes.next_slice(Time::MIN);
    let mut expected = slices.iter().filter(|s| model.0.keys().any(|(slice, _)| slice == *s));
    while let Some(slice) = found {
        assert_eq!(Some(&slice.0), expected.next());
        let range = slice.0..slice.0 + 1;
        assert!(
            fold::<A>(panes, range.clone(), 500).unwrap() == model.fold::<A>(range),
            "{slice:?}"
        );
        found = panes.next_slice(Time(slice.0 + 1));
    }
    assert_eq!(expected.next(), None);
    assert!(fold::<A>(panes, -100..100, 500).unwrap() == model.fold::<A>(-100..100));
    for _ in 0..100 {
        let (slice, key) = placed(random);
        assert_eq!(panes.get(slice, &key).unwrap(), model.get::<A>(slice.0, key));
    }
}

fn run<A: Accumulator, L: PanesLayout<u64, A>>(layout: &L, limit: u64) {
    println!("{} in {limit}", PanesLayout::<u64, A>::name(layout));
    let (mut place, _device) = Place::simulated(limit, 5);
    let mut panes = place.open::<A, L>(layout);
    let (mut model, mut random) = (Model::default(), Random(9 << 32));
    for item in 0..500 {
        let batch: Vec<_> = (0..random.below(200)).map(|_| placed(&mut random)).collect();
        let push = |_: &(Time, u64), sum: &mut A| sum.push(item);
        panes.update_batch(&batch, |(s, k)| (*s, k), |_| A::begin(), push).unwrap();
        batch.iter().for_each(|(slice, key)| model.update(slice.0, *key, item));
        let (slice, key) = placed(&mut random);
        put::<A>(&mut panes, slice.0, key, item).unwrap();
        model.update(slice.0, key, item);
    }
    compare::<A>(&mut panes, &model, &mut random);
    place.checkpoint::<A>(&mut panes).unwrap();
    drop(panes);
    assert_eq!(place.account.used(), 0);
    let mut panes = place.open::<A, L>(layout);
    compare::<A>(&mut panes, &model, &mut random);
    // They go on like others.
    for item in 0..3_000 {
        let (slice, key) = placed(&mut random);
        let key = key + 100_000 * random.below(2);
        put::<A>(&mut panes, slice.0, key, item).unwrap();
        model.update(slice.0, key, item);
    }
    compare::<A>(&mut panes, &model, &mut random);
    purge::<A>(&mut panes, 0, 1_000);
    model.purge(0);
    compare::<A>(&mut panes, &model, &mut random);
    drop(panes);
    assert_eq!(place.account.used(), 0);
}

#[test]
fn of_plain_accumulators() {
    run::<(u64, u64), _>(&Heap::new(), 64 * MIB);
    run::<(u64, u64), _>(&Heap::new(), 5 * MIB);
    run::<(u64, u64), _>(&HybridLog::new(), 64 * MIB);
    run::<(u64, u64), _>(&WindowSegments::new(), 64 * MIB);
}

#[test]
fn of_accumulators_that_own_heap() {
    run::<Items, _>(&Heap::new(), 64 * MIB);
    run::<Items, _>(&WindowSegments::new(), 64 * MIB);
}
