//! A log that is cleared again and again, also while its checkpoints are taken, with little memory and with plenty.
//!
//! What this catches: what was cleared and shows through; a checkpoint of it that has something that came after it, or
//! lacks something; one that is lost although there is memory; memory, files and reads of what was handed over that are not
//! given back.

use std::sync::Arc;

use alluvium_layouts::{CheckpointOutcome, HybridLog, Pace, Table, Upkeep};
use alluvium_pagestore::io::{Device, Faults, Simulated};
use alluvium_pagestore::{BlobWriter, ErrorKind, MIB, SegmentStore};

use crate::log::{Log, Model, Value, entries, open, restored};

/// Shares after which a checkpoint must be whole.
const SHARES_MAX: u64 = 100_000;

/// Clears the log between checkpoints and in the middle of them, and does everything else in between.
fn history<V: Value>(seed: u64, threads: bool) -> u64 {
    let mut log = Log::<V>::new(seed, threads);
    for _ in 0..25 {
        for _ in 0..log.dice.below(30) {
            log.change_some();
            if log.dice.below(12) == 0 {
                log.clear();
                log.check_memory();
            }
        }
        log.begin();
        for _ in 0..log.dice.below(3) {
            for _ in 0..log.dice.below(12) {
                log.advance();
                log.change_some();
            }
            log.clear();
            log.change_some();
            log.tick(8);
        }
        let steps = log.dice.below(20);
        log.play(steps);
    }
    log.end()
}

#[test]
fn histories_of_plain_values() {
    crate::of_seeds(40, |seed| history::<u64>(seed, false));
}

#[test]
fn histories_of_values_that_own_heap() {
    crate::of_seeds(40, |seed| history::<String>(seed, false));
}

#[test]
fn histories_with_a_thread() {
    crate::of_seeds(10, |seed| history::<u64>(seed, true));
    crate::of_seeds(10, |seed| history::<String>(seed, true));
}

/// However often it is cleared, each checkpoint is whole in the end, and is what the log held at its barrier.
fn is_never_lost<V: Value>(seed: u64, threads: bool) {
    let mut log = Log::<V>::with_memory(seed, threads);
    for round in 0..8 {
        for _ in 0..1 + log.dice.below(40) {
            log.change_some();
        }
        log.begin();
        let mut shares = 0;
        while log.is_whole() == Some(false) {
            log.advance();
            for _ in 0..log.dice.below(3) {
                log.change_some();
            }
            if log.dice.below(4) == 0 {
                log.clear();
            }
            log.check_memory();
            shares += 1;
            assert!(shares < SHARES_MAX, "seed {seed}, round {round}: it never ends");
        }
        assert_eq!(log.lost(), 0, "seed {seed}, round {round}");
        log.confirm();
        log.tick(50);
    }
    log.end();
}

#[test]
fn a_state_that_is_always_cleared_has_checkpoints() {
    for seed in 1..=30 {
        is_never_lost::<u64>(seed, false);
        is_never_lost::<String>(seed, false);
    }
    for seed in 1..=4 {
        is_never_lost::<u64>(seed, true);
        is_never_lost::<String>(seed, true);
    }
}

/// What is cleared fills memory, or is three times as large, and so is what comes after that, with a share of the checkpoint
/// for each so many keys: it leaves memory for it. Tells how many of three checkpoints were whole.
fn fills_memory_again<V: Value>(memory: u64, keys: u64, share: u64, threads: bool) -> usize {
    let device = Simulated::new(1, Faults::none());
    let segments = SegmentStore::new(Arc::new(device.clone()), 1);
    let layout = HybridLog::new();
    let (mut table, account) = open::<V>(&layout, &segments, memory, threads, None).unwrap();
    let (mut model, mut whole) = (Model::new(), 0);
    for round in 0..3 {
        for key in 0..keys {
            assert!(!table.put(key, V::of(key + round)).unwrap());
            model.insert(key, V::of(key + round));
        }
        let mut blobs = BlobWriter::new(segments.shared_device(), round, 4096);
        assert!(table.begin_checkpoint(&mut blobs).unwrap().is_none());
        let mut ended = None;
        for _ in 0..5 {
            assert!(ended.is_none(), "round {round}");
            ended = table.continue_checkpoint(&mut blobs).transpose();
        }
        table.clear().unwrap();
        assert_eq!(table.len(), 0);
        for key in 0..keys {
            assert!(!table.put(key, V::of(key * 7)).unwrap());
            assert!(account.used() <= memory, "{account:?}");
            if key % share == 0 && ended.is_none() {
                table.pace_checkpoint(Pace { calls: 100, gone: 0 });
                ended = table.continue_checkpoint(&mut blobs).transpose();
            }
        }
        while ended.is_none() {
            table.pace_checkpoint(Pace::AT_ONCE);
            ended = table.continue_checkpoint(&mut blobs).transpose();
        }
        let outcome = match ended.expect("it has ended") {
            Ok(image) => {
                device.drain();
                restored(&device, &layout, &image, &model);
                whole += 1;
                CheckpointOutcome::Committed
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Overtaken, "{error:?}");
                CheckpointOutcome::Abandoned
            }
        };
        table.checkpointed(outcome);
        let found = entries(&mut table).unwrap();
        let expected: Model<V> = (0..keys).map(|key| (key, V::of(key * 7))).collect();
        assert_eq!(found, expected, "round {round}");
        table.clear().unwrap();
        model.clear();
    }
    whole
}

#[test]
fn what_was_cleared_leaves_memory_for_what_comes() {
    assert_eq!(fills_memory_again::<[u64; 8]>(4 * MIB, 30_000, 100, false), 3);
    assert_eq!(fills_memory_again::<[u64; 8]>(8 * MIB, 160_000, 100, false), 3);
    assert_eq!(fills_memory_again::<String>(8 * MIB, 20_000, 100, false), 3);
    // How much is free when it is cleared is the thread's doing.
    fills_memory_again::<[u64; 8]>(4 * MIB, 30_000, 100, true);
    fills_memory_again::<String>(8 * MIB, 100_000, 100, true);
}

/// Both indexes would take more than there is: it is the checkpoint that is given up.
#[test]
fn the_stream_is_not_refused_for_the_memory_of_what_was_cleared() {
    assert!(fills_memory_again::<[u64; 8]>(4 * MIB, 180_000, 20_000, false) < 3);
    // A thread that is quick has written it before the memory is wanted.
    fills_memory_again::<[u64; 8]>(4 * MIB, 180_000, 20_000, true);
}

/// What is cleared fills memory, and so is what comes after that, with the checkpoint left so many shares after the
/// barrier, or after those that it takes; says how many that were.
fn fills_memory_beside(shares: u64) -> u64 {
    let device = Simulated::new(1, Faults::none());
    let segments = SegmentStore::new(Arc::new(device.clone()), 1);
    let layout = HybridLog::new().cold_runs(false);
    let (memory, keys) = (MIB, 36_000);
    let (mut table, account) = open::<[u64; 2]>(&layout, &segments, memory, false, None).unwrap();
    let mut model = Model::new();
    let mut blobs = BlobWriter::new(segments.shared_device(), 1, 4096);
    for key in 0..keys {
        assert!(!table.put(key, [key; 2]).unwrap());
        model.insert(key, [key; 2]);
    }
    // Sets are made for what has died since.
    let image = table.checkpoint(&mut blobs).unwrap();
    table.checkpointed(CheckpointOutcome::Committed);
    restored(&device, &layout, &image, &model);
    for key in (0..keys).step_by(7) {
        assert!(table.put(key, [key + 1; 2]).unwrap());
        model.insert(key, [key + 1; 2]);
    }
    let mut blobs = BlobWriter::new(segments.shared_device(), 2, 4096);
    assert!(table.begin_checkpoint(&mut blobs).unwrap().is_none());
    let mut ended = table.continue_checkpoint(&mut blobs).unwrap();
    assert!(ended.is_none());
    table.clear().unwrap();
    let mut taken = 0;
    while taken < shares && ended.is_none() {
        table.pace_checkpoint(Pace::AT_ONCE);
        ended = table.continue_checkpoint(&mut blobs).unwrap();
        taken += 1;
    }
    for key in 0..keys {
        assert!(!table.put(key, [key * 7; 2]).unwrap(), "after {shares} shares");
        assert!(account.used() <= memory, "{account:?}");
    }
    while ended.is_none() {
        table.pace_checkpoint(Pace::AT_ONCE);
        match table.continue_checkpoint(&mut blobs) {
            Ok(image) => ended = image,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Overtaken, "{error:?}");
                break;
            }
        }
    }
    if let Some(image) = &ended {
        device.drain();
        restored(&device, &layout, image, &model);
    }
    table.checkpointed(match ended {
        Some(_) => CheckpointOutcome::Committed,
        None => CheckpointOutcome::Abandoned,
    });
    let found = entries(&mut table).unwrap();
    let expected: Model<_> = (0..keys).map(|key| (key, [key * 7; 2])).collect();
    assert_eq!(found, expected, "after {shares} shares");
    taken
}

#[test]
fn the_stream_has_the_memory_of_what_was_cleared_wherever_the_checkpoint_is() {
    let all = fills_memory_beside(SHARES_MAX);
    assert!((40..SHARES_MAX).contains(&all), "{all} shares");
    for shares in (0..all - 10).step_by(10).chain(all - 10..all) {
        assert_eq!(fills_memory_beside(shares), shares);
    }
}

#[test]
fn a_segment_whose_first_page_could_not_be_written_goes_with_what_is_cleared() {
    let device = Simulated::new(1, Faults::none());
    let segments = SegmentStore::new(Arc::new(device.clone()), 1);
    let layout = HybridLog::new().page_records(32);
    let (mut table, _) = open::<u64>(&layout, &segments, 4 * MIB, false, None).unwrap();
    for key in 0..2_000 {
        assert!(!table.put(key, key).unwrap());
    }
    let files = || device.list().unwrap().iter().filter(|name| name.starts_with("seg-")).count();
    // The header of a segment has room, and no page.
    device.set_capacity_bytes(Some(device.used_bytes() + 4096));
    let mut blobs = BlobWriter::new(segments.shared_device(), 1, 4096);
    assert!(table.begin_checkpoint(&mut blobs).unwrap().is_none());
    let failed = (0..SHARES_MAX).find_map(|_| {
        table.pace_checkpoint(Pace::AT_ONCE);
        table.continue_checkpoint(&mut blobs).err()
    });
    assert_eq!(failed.map(|error| error.kind()), Some(ErrorKind::DiskFull));
    table.checkpointed(CheckpointOutcome::Abandoned);
    blobs.abandon();
    device.set_capacity_bytes(None);
    assert_eq!(files(), 1);
    table.clear().unwrap();
    while table.tick(1).unwrap() > 0 {}
    assert_eq!(files(), 0);

    for key in 0..100 {
        assert!(!table.put(key, key).unwrap());
    }
    let mut blobs = BlobWriter::new(segments.shared_device(), 2, 4096);
    let image = table.checkpoint(&mut blobs).unwrap();
    restored(&device, &layout, &image, &(0..100).map(|key| (key, key)).collect());
}
