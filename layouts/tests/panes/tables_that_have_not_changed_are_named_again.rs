//! Checkpoints of window segments write the slices in memory that have changed, and name the others
//! as an earlier one has written them.
//!
//! What this catches: a checkpoint that writes all that is in memory; a slice named again though it has
//! changed, was written as a run, or was only in a checkpoint that was given up; records of dead tables
//! that come back; groups of tables, or dead records in them, that pile up.

use alluvium_layouts::{CheckpointOutcome, Panes, SegmentPanes, Upkeep, WindowSegments};
use alluvium_pagestore::{KIB, MIB, StateImage, Time};

use super::common::{Items, Model, Place, Random, fold, purge, put, settle};

type Panes_ = SegmentPanes<u64, Items>;

const SLICES: i64 = 40;
const KEYS: u64 = 200;

fn layout() -> WindowSegments {
    WindowSegments::new().image(8 * KIB)
}

fn add(panes: &mut Panes_, model: &mut Model, slice: i64, key: u64, item: u32) {
    put::<Items>(panes, slice, key, item).unwrap();
    model.update(slice, key, item);
}

fn assert_holds(panes: &mut Panes_, model: &Model, slices: std::ops::Range<i64>, when: &str) {
    for slice in slices {
        let found = fold::<Items>(panes, slice..slice + 1, 100).unwrap();
        assert_eq!(found, model.fold::<Items>(slice..slice + 1), "{when}: slice {slice}");
    }
}

/// Bytes of the segments that the one before does not name.
fn new_bytes(before: &StateImage, image: &StateImage) -> u64 {
    let known = |id| before.segments().any(|segment| segment.id == id);
    image.segments().filter(|s| !known(s.id)).map(|segment| segment.bytes).sum()
}

#[test]
fn a_sliding_window_writes_the_slices_that_have_changed() {
    let (mut place, _) = Place::simulated(8 * MIB, 1);
    let (mut panes, mut model) = (place.open::<Items, _>(&layout()), Model::default());
    for slice in 0..SLICES {
        (0..KEYS).for_each(|key| add(&mut panes, &mut model, slice, key, 1));
    }
    let mut before = place.checkpoint::<Items>(&mut panes).unwrap();
    let all: u64 = before.segments().map(|segment| segment.bytes).sum();
    let (mut written, rounds) = (0, 130);
    for round in 0..rounds {
        let newest = SLICES + round;
        // What came late, and the slice that has begun.
        add(&mut panes, &mut model, newest - 1, round as u64, 2);
        (0..KEYS).for_each(|key| add(&mut panes, &mut model, newest, key, 3));
        purge::<Items>(&mut panes, newest - SLICES + 1, 1000);
        model.purge(newest - SLICES + 1);
        let image = place.checkpoint::<Items>(&mut panes).unwrap();
        assert_eq!(image.entries, SLICES as u64 * KEYS);
        written += new_bytes(&before, &image);
        let taken: u64 = image.segments().map(|segment| segment.bytes).sum();
        assert!(taken <= 3 * all, "round {round}: {taken} bytes where all is {all}");
        before = image;
        if round % 16 == 15 {
            drop(panes);
            assert_eq!(place.account.used(), 0, "round {round}");
            panes = place.open::<Items, _>(&layout());
            assert_holds(&mut panes, &model, newest - SLICES..newest + 1, "reopened");
        }
    }
    let each = written / rounds as u64;
    // Two of forty are changed each time; tables whose group is of little use are written again.
    assert!(each < all / 6, "{each} bytes each where all is {all}");
    settle::<Items, _>(&mut panes, |_| place.segment_files().len() == before.segments().count());
}

#[test]
fn nothing_but_the_catalog_is_written_of_what_has_not_changed() {
    let (mut place, _) = Place::simulated(8 * MIB, 2);
    let (mut panes, mut model) = (place.open::<Items, _>(&layout()), Model::default());
    for slice in 0..SLICES {
        (0..KEYS).for_each(|key| add(&mut panes, &mut model, slice, key, 1));
    }
    let first = place.checkpoint::<Items>(&mut panes).unwrap();
    let encoded = panes.stats().codec_calls;
    let second = place.checkpoint::<Items>(&mut panes).unwrap();
    assert_eq!(panes.stats().codec_calls, encoded);
    let shared = first.segments().filter(|s| second.segments().any(|of| of == *s)).count();
    assert_eq!(shared, second.segments().count() - 1, "all but the catalog");
    // Of a slice that has changed, and of one that is a run now, the tables are others.
    add(&mut panes, &mut model, 3, 7, 5);
    panes.remove(Time(4), &9).unwrap();
    model.0.remove(&(4, 9));
    place.checkpoint::<Items>(&mut panes).unwrap();
    panes.reclaim(2 * MIB).unwrap();
    place.checkpoint::<Items>(&mut panes).unwrap();
    drop(panes);
    let mut panes = place.open::<Items, _>(&layout());
    assert_holds(&mut panes, &model, 0..SLICES, "reopened");
}

/// Few changes between checkpoints, of which some are given up and of some nobody can tell.
#[test]
fn whatever_became_of_the_checkpoints_before() {
    let (mut given_up, mut either) = (0, 0);
    for seed in 0..24u64 {
        let memory = if seed % 3 == 0 { 384 * KIB } else { 4 * MIB };
        let (mut place, _) = Place::simulated(memory, seed);
        let (mut panes, mut model) = (place.open::<Items, _>(&layout()), Model::default());
        let mut random = Random(seed << 32);
        let (mut listed, mut oldest) = (Model::default(), 0);
        for round in 0..40 {
            for item in 0..random.below(60) {
                let slice = oldest + random.below(8) as i64;
                // Rounds change few slices.
                let slice = if round % 4 == 0 { slice } else { oldest + 7 };
                match random.below(12) {
                    0 => {
                        let key = random.below(40);
                        panes.remove(Time(slice), &key).unwrap();
                        model.0.remove(&(slice, key));
                    }
                    1 if item == 1 => drop(panes.reclaim(8 * KIB).unwrap()),
                    2 if item == 2 => {
                        oldest += 1;
                        purge::<Items>(&mut panes, oldest, 1000);
                        model.purge(oldest);
                    }
                    _ => add(&mut panes, &mut model, slice, random.below(40), item as u32),
                }
            }
            let when = format!("seed {seed}, round {round}");
            let then = model.clone();
            assert!(place.begin::<Items>(&mut panes).unwrap().is_none());
            let last = random.below(24);
            let mut image = None;
            for step in 0.. {
                let key = random.below(40);
                if step < 20 {
                    add(&mut panes, &mut model, oldest + random.below(8) as i64, key, 1000 + step);
                }
                image = place.advance::<Items>(&mut panes).unwrap();
                if image.is_some() || step as u64 == last {
                    break;
                }
            }
            match (image, random.below(4)) {
                (None, _) | (_, 0) => {
                    panes.checkpointed(CheckpointOutcome::Abandoned);
                    given_up += 1;
                }
                (Some(image), 1) => {
                    // It may be the one that is restored, or the one before.
                    if random.below(2) == 0 {
                        place.commit::<Items>(&mut panes, image);
                        listed = then;
                    } else {
                        panes.checkpointed(CheckpointOutcome::Unknown);
                    }
                    either += 1;
                }
                (Some(image), _) => {
                    place.commit::<Items>(&mut panes, image);
                    listed = then;
                }
            }
            assert_holds(&mut panes, &model, oldest..oldest + 9, &when);
            if random.below(3) == 0 {
                drop(panes);
                assert_eq!(place.account.used(), 0, "{when}");
                panes = place.open::<Items, _>(&layout());
                model = listed.clone();
                oldest = model.0.keys().next().map_or(oldest, |(slice, _)| *slice);
                assert_holds(&mut panes, &model, 0..oldest + 12, &format!("{when}, reopened"));
            }
        }
    }
    assert!(given_up > 50 && either > 50, "{given_up} given up, {either} of either kind");
}
