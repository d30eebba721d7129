//! Where slices are many and small they share runs: their number is bounded by storage, not by memory.
//!
//! What this catches: a stream of small slices that is refused in little memory; sums that are lost, doubled or merged in
//! another order when a slice has moved to the log, and comes again; checkpoints without the log, or with what came later;
//! memory that is not given back.

use alluvium_layouts::{Panes, SegmentPanes, Upkeep, WindowSegments};
use alluvium_pagestore::{KIB, MIB, StateImage, Time};

use super::common::{Items, Model, Place, Random, fold, purge, put};

const SLICES: i64 = 6000;

/// Slices of a few elements, in the order of time but for some that are late.
fn fill(panes: &mut SegmentPanes<u64, Items>, model: &mut Model, random: &mut Random) {
    for n in 0..3 * SLICES {
        let slice = (n / 3 - random.below(40) as i64).max(0);
        let slice = if random.below(50) == 0 { random.below(SLICES as u64) as i64 } else { slice };
        let key = random.below(3);
        put::<Items>(panes, slice, key, n as u32).unwrap();
        model.update(slice, key, n as u32);
    }
}

fn layouts_of(image: &StateImage) -> Vec<&str> {
    image.parts.iter().map(|part| &*part.layout).collect()
}

fn assert_holds(panes: &mut SegmentPanes<u64, Items>, model: &Model, when: &str) {
    for first in (0..SLICES).step_by(500) {
        for slices in [first..first + 1, first..first + 7, first + 50..first + 170] {
            let found = fold::<Items>(panes, slices.clone(), 100).unwrap();
            assert_eq!(found, model.fold::<Items>(slices.clone()), "{when}: {slices:?}");
        }
        let found = panes.get(Time(first + 3), &1).unwrap();
        assert_eq!(found, model.get::<Items>(first + 3, 1), "{when}: {first}");
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
