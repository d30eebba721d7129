//! Where slices are many and small they share runs: their number is bounded by storage, not by memory.
//!
//! What this catches: a stream of small slices that is refused in little memory; sums that are lost, doubled or merged in
//! another order when a slice has moved to the log, and comes again; checkpoints without the log, or with what came later;
//! memory that is not given back.

use std::ops::Range;

use alluvium_layouts::{CheckpointOutcome, Panes, SegmentPanes, Upkeep, WindowSegments};
use alluvium_pagestore::{KIB, MIB, StateImage, Time};

use super::common::{Accumulator, Items, Model, Place, Random, fold, purge, put, settle};

const SLICES: i64 = 6000;

/// Slices of a few elements, in the order of time but for some that are late.
fn fill<A: Accumulator>(panes: &mut SegmentPanes<u64, A>, model: &mut Model, random: &mut Random) {
    for n in 0..3 * SLICES {
        let slice = (n / 3 - random.below(40) as i64).max(0);
        let slice = if random.below(50) == 0 { random.below(SLICES as u64) as i64 } else { slice };
        let key = random.below(3);
        put::<A>(panes, slice, key, n as u32).unwrap();
        model.update(slice, key, n as u32);
    }
}

fn layouts_of(image: &StateImage) -> Vec<&str> {
    image.parts.iter().map(|part| &*part.layout).collect()
}

fn assert_holds<A: Accumulator>(panes: &mut SegmentPanes<u64, A>, model: &Model, when: &str) {
    for first in (0..SLICES).step_by(500) {
        for slices in [first..first + 1, first..first + 7, first + 50..first + 170] {
            let found = fold::<A>(panes, slices.clone(), 100).unwrap();
            assert_eq!(found, model.fold::<A>(slices.clone()), "{when}: {slices:?}");
        }
        let found = panes.get(Time(first + 3), &1).unwrap();
        assert_eq!(found, model.get::<A>(first + 3, 1), "{when}: {first}");
    }
}

#[test]
fn a_stream_of_small_slices_is_accepted_in_little_memory_and_is_there_again() {
    let directory = tempfile::tempdir().unwrap();
    let mut place = Place::real(3 * MIB, directory.path());
    place.max_value_bytes = KIB;
    let layout = WindowSegments::new();
    let (mut model, mut random) = (Model::default(), Random(9));
    let mut panes = place.open::<Items, _>(&layout);
    fill(&mut panes, &mut model, &mut random);
    assert_holds(&mut panes, &model, "filled");
    for slice in (0..SLICES).step_by(400) {
        panes.remove(Time(slice + 3), &1).unwrap();
        model.0.remove(&(slice + 3, 1));
        assert_eq!(panes.get(Time(slice + 3), &1).unwrap(), None);
    }
    let image = place.checkpoint::<Items>(&mut panes).unwrap();
    let expected = ["window-segments", "append-log", "runs"];
    assert!(expected.iter().all(|layout| layouts_of(&image).contains(layout)), "{image:?}");
    // What comes later is not in it, also if it is of packed slices.
    let then = model.clone();
    fill(&mut panes, &mut model, &mut random);
    assert_holds(&mut panes, &model, "filled again");
    assert!(place.account.used() <= 3 * MIB);
    drop(panes);
    assert_eq!(place.account.used(), 0);
    let mut panes = place.open::<Items, _>(&layout);
    assert_holds(&mut panes, &then, "opened");
    let mut model = then;
    purge::<Items>(&mut panes, SLICES / 2, 1000);
    model.purge(SLICES / 2);
    assert_holds(&mut panes, &model, "purged");
    assert_eq!(panes.next_slice(Time::MIN), Some(Time(SLICES / 2)));
    // Without packing what is packed is read too.
    place.checkpoint::<Items>(&mut panes).unwrap();
    drop(panes);
    let mut panes = place.open::<Items, _>(&layout.packs_slices(false));
    assert_holds(&mut panes, &model, "opened without packing");
    let found = fold::<Items>(&mut panes, SLICES / 2..SLICES, 1000).unwrap();
    assert_eq!(found, model.fold::<Items>(SLICES / 2..SLICES));
    purge::<Items>(&mut panes, SLICES, 1000);
    assert_eq!((panes.len(), panes.next_slice(Time::MIN)), (0, None));
    drop(panes);
    assert_eq!(place.account.used(), 0);
}

#[test]
fn without_packing_the_same_stream_is_refused() {
    let (mut place, _) = Place::simulated(3 * MIB, 1);
    let mut panes = place.open::<Items, _>(&WindowSegments::new().packs_slices(false));
    let refused = (0..SLICES).find_map(|slice| put::<Items>(&mut panes, slice, 1, 1).err());
    assert_eq!(refused.unwrap().kind(), alluvium_pagestore::ErrorKind::OverBudget);
    assert!(panes.stats().live_keys < 2000);
}

/// In the least memory in which slices are packed, with a thread and without.
#[test]
fn a_mebibyte_takes_many_small_slices_and_has_them_again() {
    type Sum = (u64, u64);
    let directory = tempfile::tempdir().unwrap();
    for is_real in [true, false] {
        let mut place = match is_real {
            true => Place::real(MIB, directory.path()),
            false => Place::simulated(MIB, 3).0,
        };
        let (mut model, mut random) = (Model::default(), Random(11));
        let mut panes = place.open::<Sum, _>(&WindowSegments::new());
        fill(&mut panes, &mut model, &mut random);
        assert_holds(&mut panes, &model, "filled");
        place.checkpoint::<Sum>(&mut panes).unwrap();
        let then = model.clone();
        fill(&mut panes, &mut model, &mut random);
        assert_holds(&mut panes, &model, "filled again");
        assert!(place.account.stats().peak <= MIB, "{}", place.account.stats().peak);
        drop(panes);
        let mut panes = place.open::<Sum, _>(&WindowSegments::new());
        assert_holds(&mut panes, &then, "opened");
    }
}

/// Where all slices are purged the log gives its half of the memory back, once no checkpoint has any of them; and packs again
/// what comes then. A crash at any step finds the last checkpoint.
#[test]
fn an_empty_log_gives_its_memory_back() {
    let memory = 3 * MIB;
    let (mut place, _) = Place::simulated(memory, 4);
    place.max_value_bytes = KIB;
    let layout = WindowSegments::new();
    let mut panes = place.open::<Items, _>(&layout);
    let opened = place.account.used();
    let has_log = |place: &Place| place.account.used() > opened + memory / 4;
    let mut random = Random(10);
    for round in 0..3 {
        let mut model = Model::default();
        fill(&mut panes, &mut model, &mut random);
        assert_holds(&mut panes, &model, "filled");
        assert!(has_log(&place));
        if round == 0 {
            // Nothing on storage is of a checkpoint.
            purge::<Items>(&mut panes, SLICES, 1000);
            settle(&mut panes, |_| !has_log(&place));
            continue;
        }
        place.checkpoint::<Items>(&mut panes).unwrap();
        purge::<Items>(&mut panes, SLICES, 1000);
        while panes.tick(64).unwrap() > 0 {}
        assert!(has_log(&place), "the checkpoint has its files");
        if round == 1 {
            drop(panes);
            panes = place.open::<Items, _>(&layout);
            assert_holds(&mut panes, &model, "opened with what was purged");
            purge::<Items>(&mut panes, SLICES, 1000);
        }
        let of_before = place.segment_files();
        // One that is not committed leaves all as it was.
        let steps = place.begin::<Items>(&mut panes).unwrap();
        assert_eq!(steps, None);
        while place.advance::<Items>(&mut panes).unwrap().is_none() {}
        panes.checkpointed(CheckpointOutcome::Abandoned);
        while panes.tick(64).unwrap() > 0 {}
        let is_there = |name: &String| place.segment_files().contains(name);
        assert!(has_log(&place) && of_before.iter().all(is_there));
        let image = place.checkpoint::<Items>(&mut panes).unwrap();
        assert_eq!(layouts_of(&image), ["window-segments"]);
        settle(&mut panes, |_| !has_log(&place));
        let names = image.segments().map(|segment| segment.id.file_name());
        let names: Vec<String> = names.collect();
        assert!(place.segment_files().iter().all(|name| names.contains(name)));
        assert_eq!((panes.len(), panes.next_slice(Time::MIN)), (0, None));
    }
    drop(panes);
    assert_eq!(place.account.used(), 0);
}

/// Slices that come to the log after a checkpoint began that left it out, as it was empty, are not of that, and stay.
#[test]
fn what_comes_while_a_checkpoint_leaves_the_log_out_stays() {
    const FEW: i64 = 300;
    let (mut place, _) = Place::simulated(3 * MIB, 6);
    place.max_value_bytes = KIB;
    let layout = WindowSegments::new().pack_all();
    let mut panes = place.open::<Items, _>(&layout);
    let come = |panes: &mut SegmentPanes<u64, Items>, slices: Range<i64>| {
        slices.for_each(|slice| put::<Items>(panes, slice, 2, slice as u32).unwrap());
    };
    come(&mut panes, 0..FEW);
    let image = place.checkpoint::<Items>(&mut panes).unwrap();
    assert!(layouts_of(&image).contains(&"runs"));
    purge::<Items>(&mut panes, FEW, 1000);
    assert_eq!(place.begin::<Items>(&mut panes).unwrap(), None);
    // They come after the barrier.
    come(&mut panes, FEW..2 * FEW);
    let image = loop {
        if let Some(image) = place.advance::<Items>(&mut panes).unwrap() {
            break image;
        }
    };
    assert_eq!(layouts_of(&image), ["window-segments"]);
    place.commit::<Items>(&mut panes, image);
    while panes.tick(64).unwrap() > 0 {}
    let mut model = Model::default();
    (FEW..2 * FEW).for_each(|slice| model.update(slice, 2, slice as u32));
    let all = FEW..2 * FEW;
    let found = fold::<Items>(&mut panes, all.clone(), 100).unwrap();
    assert_eq!(found, model.fold::<Items>(all.clone()));
    let image = place.checkpoint::<Items>(&mut panes).unwrap();
    assert!(layouts_of(&image).contains(&"runs"));
    drop(panes);
    let mut panes = place.open::<Items, _>(&layout);
    assert_eq!(fold::<Items>(&mut panes, all.clone(), 100).unwrap(), model.fold::<Items>(all));
}
