//! What writers, cursors and merges allocate is not more than they say before they are made.

use alluvium_layouts::runs_internals::{
    MergeSizes, RecordView, RunInfo, RunMerge, RunSizes, RunWriter, SortedRunCursor,
};
use alluvium_pagestore::io::{IoOptions, open_device};
use alluvium_pagestore::{KIB, MIB, SegmentStore};

use crate::common::*;
use crate::counting_unsafe::most_held;
use crate::dice::Dice;

/// Names, handles of files, requests, and what is told of runs that were sealed.
const BESIDE: u64 = 9 << 10;

#[test]
fn of_writers_cursors_and_merges() {
    let directory = tempfile::tempdir().unwrap();
    let device = open_device(directory.path(), &IoOptions::default()).unwrap();
    let store = SegmentStore::new(device, 1);
    let mut dice = Dice(1);
    for memory in [64 * KIB, MIB, 3 * MIB] {
        let mut sizes = RunSizes::within(memory, 40_000, 16).expecting(5000);
        sizes.file_bytes = 300 << 10;
        sizes.is_wide = memory == MIB;
        let levels: Vec<_> = (0..3).map(|_| level(&mut dice, 5000, 20_000, 64, 0)).collect();
        let written: Vec<Vec<RunInfo>> =
            levels.iter().map(|records| write_counted(&store, sizes, records, memory)).collect();
        let runs: Vec<&[RunInfo]> = written.iter().map(Vec::as_slice).collect();
        let told = SortedRunCursor::memory_bytes(&runs[0][0], 8 << 10);
        let (_, held) =
            most_held(|| SortedRunCursor::open(store.clone(), &runs[0][0], 8 << 10).unwrap());
        assert!(held <= told + BESIDE, "{held} of {told}");
        let sizes = MergeSizes::of(sizes, 8 << 10, &runs);
        let told = sizes.memory_bytes(&runs);
        let (merged, held) = most_held(|| {
            let mut merge = RunMerge::new(&store, STATE, &runs, sizes).unwrap();
            let mut merged = 0;
            while !merge.step(64 << 10, &mut Newest { is_last: true }).unwrap() {
                merged += merge.take_sealed().iter().map(|info| info.records).sum::<u64>();
            }
            merged + merge.take_sealed().iter().map(|info| info.records).sum::<u64>()
        });
        println!("a merge of {} runs held {held} of {told} bytes", written.concat().len());
        assert!(held <= told + BESIDE, "{held} of {told}");
        assert_eq!(merged, expected(&levels, true).len() as u64);
    }
}

fn write_counted(
    store: &SegmentStore,
    sizes: RunSizes,
    records: &[Owned],
    memory: u64,
) -> Vec<RunInfo> {
    let payloads: Vec<Vec<u8>> = records.iter().map(Owned::payload).collect();
    let told = sizes.memory_bytes();
    let (infos, held) = most_held(|| {
        let mut writer = RunWriter::new(store.clone(), STATE, sizes).unwrap();
        for (record, payload) in records.iter().zip(&payloads) {
            let (hash, mark, order) = (record.hash, record.mark, &record.order[..]);
            writer.push(RecordView { hash, mark, order, payload }).unwrap();
        }
        writer.finish().unwrap();
        writer.take_sealed()
    });
    println!("a writer within {memory} bytes held {held} of {told}");
    assert!(held <= told + BESIDE, "{held} of {told}");
    assert!(told <= memory + memory / 4 + 100_000, "{told} of {memory}");
    infos
}
