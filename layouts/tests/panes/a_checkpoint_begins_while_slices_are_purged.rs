//! A checkpoint of panes in a plain table that is begun while slices are purged does not bury them first.
//!
//! What this catches: a barrier that takes as long as purged slices are large; a slice that is not purged and lacks
//! something, or is not as it was at the barrier; what was purged and cannot be purged again.

use alluvium_layouts::{Heap, HybridLog, Panes, PanesLayout, Upkeep};
use alluvium_pagestore::{MIB, Time};

use super::common::{Items, Model, Place, fold, purge, put};

const KEYS: u64 = 2000;
const KEPT: std::ops::Range<i64> = 2..9;

/// Begins one after so many entries of two of five slices were removed, and goes on removing while it is taken.
fn taken_while_purged<L: PanesLayout<u64, Items>>(layout: &L, removed: usize) {
    let (mut place, _) = Place::simulated(32 * MIB, 1);
    let (mut panes, mut model) = (place.open::<Items, _>(layout), Model::default());
    for key in 0..KEYS {
        for slice in 0..5 {
            put::<Items>(&mut panes, slice, key, key as u32).unwrap();
            model.update(slice, key, key as u32);
        }
    }
    assert!(!panes.purge(Time(KEPT.start), removed).unwrap());
    let (before, seen) = (panes.stats().live_keys, panes.len());
    assert!(place.begin::<Items>(&mut panes).unwrap().is_none());
    assert_eq!(panes.stats().live_keys, before, "the barrier removes nothing");
    assert!(before >= 5 * KEYS - removed as u64 && seen == 3 * KEYS);
    let mut item = 0;
    let image = loop {
        panes.purge(Time(KEPT.start), 50).unwrap();
        item += 1;
        put::<Items>(&mut panes, 3, u64::from(item) % KEYS, item).unwrap();
        if let Some(image) = place.advance::<Items>(&mut panes).unwrap() {
            break image;
        }
    };
    assert_eq!(image.entries, before);
    place.commit::<Items>(&mut panes, image);
    drop(panes);
    let mut panes = place.open::<Items, _>(layout);
    assert_eq!(fold::<Items>(&mut panes, KEPT, 100).unwrap(), model.fold::<Items>(KEPT));
    // As the windows do that are opened.
    purge::<Items>(&mut panes, KEPT.start, 100);
    assert_eq!(panes.next_slice(Time::MIN), Some(Time(KEPT.start)));
    assert_eq!((panes.len(), panes.stats().live_keys), (3 * KEYS, 3 * KEYS));
    // The next one has nothing of them.
    let image = place.checkpoint::<Items>(&mut panes).unwrap();
    assert_eq!(image.entries, 3 * KEYS);
    model.purge(KEPT.start);
    drop(panes);
    let mut panes = place.open::<Items, _>(layout);
    assert_eq!(fold::<Items>(&mut panes, 0..9, 100).unwrap(), model.fold::<Items>(0..9));
}

#[test]
fn slices_that_are_purged_are_not_buried_by_the_barrier() {
    for removed in [1, 10, 1000, 3000] {
        taken_while_purged(&Heap::new(), removed);
        taken_while_purged(&HybridLog::new(), removed);
    }
}
