//! Checkpoints of window segments: what they write, what they name, and what a crash leaves.

use std::sync::Arc;

use alluvium_layouts::{CheckpointOutcome, Panes, Upkeep, WindowSegments};
use alluvium_pagestore::io::{CrashPolicy, Device};
use alluvium_pagestore::{KIB, MIB, Time};

use super::common::{Items, Model, Place, Random, fold, purge, put, settle};

fn layout() -> WindowSegments {
    WindowSegments::new().image(8 * KIB).runs_max(3)
}

/// Slices with runs, and something in memory.
fn fill(panes: &mut impl Panes<u64, Items>, model: &mut Model, seed: u64) {
    let mut random = Random(seed << 32);
    for item in 0..6000 {
        let (slice, key) = (random.below(4) as i64, random.below(700));
        put::<Items>(panes, slice, key, item).unwrap();
        model.update(slice, key, item);
        if item % 1500 == 1200 {
            panes.reclaim(16 * MIB).unwrap();
        }
    }
}

#[test]
fn what_is_on_storage_is_named_and_not_written_again() {
    let (mut place, _) = Place::simulated(8 * MIB, 1);
    let (mut panes, mut model) = (place.open::<Items, _>(&layout()), Model::default());
    fill(&mut panes, &mut model, 1);
    let first = place.checkpoint::<Items>(&mut panes).unwrap();
    let before = panes.stats();
    put::<Items>(&mut panes, 0, 1, 9).unwrap();
    model.update(0, 1, 9);
    let second = place.checkpoint::<Items>(&mut panes).unwrap();
    let stats = panes.stats();
    let written = stats.flushed_bytes - before.flushed_bytes;
    assert!(written < stats.live_disk_bytes / 4, "{written} bytes: {stats:?}");
    let known = |id| first.segments().any(|segment| segment.id == id);
    let shared = second.segments().filter(|segment| known(segment.id)).count();
    assert_eq!(shared, second.segments().count() - 2, "all but tables and catalog");
    drop(panes);
    let mut panes = place.open::<Items, _>(&layout());
    assert_eq!(fold::<Items>(&mut panes, 0..4, 100).unwrap(), model.fold::<Items>(0..4));
    // And again, from what was restored.
    let third = place.checkpoint::<Items>(&mut panes).unwrap();
    let shared = third.segments().filter(|s| second.segments().any(|of| of == *s)).count();
    assert_eq!(shared, third.segments().count() - 1, "all but the catalog");
}

#[test]
fn opening_reads_tables_and_catalog_but_no_run() {
    let (mut place, device) = Place::simulated(8 * MIB, 1);
    let (mut panes, mut model) = (place.open::<Items, _>(&layout()), Model::default());
    fill(&mut panes, &mut model, 2);
    panes.reclaim(16 * MIB).unwrap();
    place.checkpoint::<Items>(&mut panes).unwrap();
    let stored = panes.stats().live_disk_bytes;
    drop(panes);
    let before = device.stats().bytes_read;
    let mut panes = place.open::<Items, _>(&layout());
    let read = device.stats().bytes_read - before;
    assert!(read < stored / 4, "{read} of {stored} bytes");
    assert_eq!(fold::<Items>(&mut panes, 0..4, 100).unwrap(), model.fold::<Items>(0..4));
}

#[test]
fn files_that_a_checkpoint_names_outlive_a_purge_until_the_next() {
    let (mut place, _) = Place::simulated(8 * MIB, 1);
    let (mut panes, mut model) = (place.open::<Items, _>(&layout()), Model::default());
    fill(&mut panes, &mut model, 3);
    let image = place.checkpoint::<Items>(&mut panes).unwrap();
    let kept = model.clone();
    let named: Vec<_> = image.segments().map(|segment| segment.id.file_name()).collect();
    purge::<Items>(&mut panes, 3, 1000);
    model.purge(3);
    settle::<Items, _>(&mut panes, |panes| panes.stats().disk_bytes > 0);
    for name in &named {
        assert!(place.segment_files().contains(name), "{name} is gone");
    }
    // A checkpoint that will never be restored changes nothing of that.
    let only = |place: &Place, named: &[String]| {
        let mut files = place.segment_files();
        files.retain(|file| !named.contains(file));
        files.len()
    };
    let abandoned = {
        let device = place.device.clone().unwrap();
        let mut blobs = alluvium_pagestore::BlobWriter::new(device, 99, 4096);
        panes.checkpoint(&mut blobs).unwrap()
    };
    assert_eq!(only(&place, &named), 2, "tables and catalog of the new one");
    assert!(abandoned.segments().count() < named.len());
    panes.checkpointed(CheckpointOutcome::Abandoned);
    settle::<Items, _>(&mut panes, |_| only(&place, &named) == 0);
    // A crash now finds what was committed.
    let mut reopened = place.open::<Items, _>(&layout());
    assert_eq!(fold::<Items>(&mut reopened, 0..4, 100).unwrap(), kept.fold::<Items>(0..4));
    drop(reopened);
    let image = place.checkpoint::<Items>(&mut panes).unwrap();
    settle::<Items, _>(&mut panes, |_| place.segment_files().len() == image.segments().count());
    drop(panes);
    let mut panes = place.open::<Items, _>(&layout());
    assert_eq!(panes.next_slice(Time::MIN), Some(Time(3)), "purged is purged");
    assert_eq!(fold::<Items>(&mut panes, 0..4, 100).unwrap(), model.fold::<Items>(0..4));
}

#[test]
fn of_a_checkpoint_that_nobody_can_tell_of_both_are_kept() {
    let (mut place, _) = Place::simulated(8 * MIB, 1);
    let (mut panes, mut model) = (place.open::<Items, _>(&layout()), Model::default());
    fill(&mut panes, &mut model, 4);
    let old = place.checkpoint::<Items>(&mut panes).unwrap();
    put::<Items>(&mut panes, 1, 1, 1).unwrap();
    let new = place.begin_checkpoint::<Items>(&mut panes).unwrap();
    panes.checkpointed(CheckpointOutcome::Unknown);
    purge::<Items>(&mut panes, 9, 1000);
    for _ in 0..100 {
        panes.tick(10).unwrap();
    }
    let files = place.segment_files();
    for segment in old.segments().chain(new.segments()) {
        assert!(files.contains(&segment.id.file_name()));
    }
    let image = place.checkpoint::<Items>(&mut panes).unwrap();
    settle::<Items, _>(&mut panes, |_| place.segment_files().len() == image.segments().count());
}

/// Crashes after each of some numbers of steps; the last committed checkpoint is there.
#[test]
fn a_crash_leaves_the_last_checkpoint() {
    for (seed, policy) in [
        (1, CrashPolicy::Nothing),
        (2, CrashPolicy::Subset { seed: 2 }),
        (3, CrashPolicy::Torn { seed: 3 }),
        (4, CrashPolicy::Everything),
    ] {
        let (mut place, device) = Place::simulated(320 * KIB, seed);
        let (mut panes, mut model) = (place.open::<Items, _>(&layout()), Model::default());
        fill(&mut panes, &mut model, seed);
        panes.remove(Time(1), &5).unwrap();
        model.0.remove(&(1, 5));
        place.checkpoint::<Items>(&mut panes).unwrap();
        device.sync_directory().unwrap();
        let mut random = Random(seed);
        for item in 0..3000 {
            let _ = put::<Items>(&mut panes, random.below(4) as i64, random.below(700), item);
        }
        panes.purge(Time(2), 1000).unwrap();
        panes.tick(100).unwrap();
        drop(panes);
        let after = device.crash(policy);
        let shared: Arc<dyn Device> = Arc::new(after);
        place.device = Some(shared);
        let mut panes = place.open::<Items, _>(&layout());
        let found = fold::<Items>(&mut panes, 0..4, 100).unwrap();
        assert_eq!(found, model.fold::<Items>(0..4), "{policy:?}");
    }
}
