//! Opening a log reads its footers and nothing else: ahead where there is memory for that, through its
//! window where there is little. The log holds the same, in whatever memory it can be opened.

use std::collections::BTreeMap;
use std::sync::Arc;

use alluvium_layouts::{CheckpointOutcome, HybridLog, Table, Upkeep};
use alluvium_pagestore::io::{Device, Faults, Simulated};
use alluvium_pagestore::{BlobWriter, ErrorKind, KIB, MIB, SegmentStore, StateImage};

use crate::log::{entries, idle, open};

const KEYS: u64 = 40_000;
const PAGE_RECORDS: u64 = 1024;
/// What the window reads at once.
const WINDOW_BYTES: u64 = 64 * KIB;

fn layout() -> HybridLog {
    HybridLog::new().page_records(PAGE_RECORDS as u32).segment(MIB)
}

/// A checkpoint with records that have died, and what it holds.
fn written(segments: &SegmentStore) -> (StateImage, BTreeMap<u64, u64>) {
    let (mut table, _) = open::<u64>(&layout(), segments, 64 * MIB, false, None).unwrap();
    let mut model = BTreeMap::new();
    for number in 1..=2 {
        for key in (0..KEYS).filter(|key| number == 1 || key % 7 == 0) {
            table.put(key, key * number).unwrap();
            model.insert(key, key * number);
        }
        let mut blobs = BlobWriter::new(segments.shared_device(), number, 4096);
        let image = table.checkpoint(&mut blobs).unwrap();
        table.checkpointed(CheckpointOutcome::Committed);
        if number == 2 {
            return (image, model);
        }
    }
    unreachable!("the second is given");
}

#[test]
fn in_any_memory_a_log_holds_the_same() {
    let device = Arc::new(Simulated::new(21, Faults::late(21)));
    let segments = SegmentStore::new(device.clone(), 1);
    let (image, model) = written(&segments);
    let images = image.segments().map(|s| s.records.div_ceil(PAGE_RECORDS)).sum::<u64>();
    let mut read = BTreeMap::new();
    let mut opened = 0;
    for memory in (0..40).map(|n| 700 * KIB + n * 40 * KIB).chain([8 * MIB, 64 * MIB]) {
        let before = device.stats().bytes_read;
        let found = open::<u64>(&layout(), &segments, memory, false, Some(&image));
        read.insert(memory, device.stats().bytes_read - before);
        let (mut table, account) = match found {
            Ok(opened) => opened,
            Err(error) => {
                assert_eq!((error.kind(), opened), (ErrorKind::OverBudget, 0), "{memory}: {error}");
                continue;
            }
        };
        opened += 1;
        let (empty, of_empty) = open::<u64>(&layout(), &segments, memory, false, None).unwrap();
        assert_eq!(idle(&account), idle(&of_empty), "{memory}");
        drop(empty);
        assert!(account.stats().peak <= memory, "{:?}", account.stats());
        assert_eq!(entries(&mut table).unwrap(), model, "{memory}");
    }
    assert!(opened > 20, "{opened} were opened");
    // Header, tail and directory of each segment through the window, and the blocks of footers.
    let others = image.segments().count() as u64 * 4 * WINDOW_BYTES;
    let footers = images * (PAGE_RECORDS * 16 + 8 * KIB);
    let most = footers + others;
    assert!(images * WINDOW_BYTES > most, "a window for each is told from footers");
    assert!(read[&(64 * MIB)] <= most, "{} bytes, {most} at the most", read[&(64 * MIB)]);
}
