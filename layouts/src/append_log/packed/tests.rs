//! When packing begins.

use std::ops::Range;
use std::sync::Arc;

use alluvium_pagestore::io::{Device, Faults, Simulated};
use alluvium_pagestore::{Account, BlobWriter, Helper, SegmentStore, Time};

use super::BUCKETS_SHARE;
use crate::append_log::{AppendLog, AppendLogLists};
use crate::contract::lists::{Lists, ListsLayout};
use crate::contract::table::{CheckpointOutcome, StateContext};
use crate::contract::upkeep::Upkeep;

type Element = [u64; 4];

struct Ground {
    device: Arc<dyn Device>,
    lists: AppendLogLists<u64, Element>,
    blobs: u64,
}

impl Ground {
    fn new(layout: &AppendLog, memory: u64) -> Self {
        let device: Arc<dyn Device> = Arc::new(Simulated::new(5, Faults::none()));
        let context = StateContext {
            name: "lists".into(),
            account: Account::below(&Account::root(memory), "lists", u64::MAX),
            segments: Some(SegmentStore::new(device.clone(), 1)),
            helper: Helper::inline(),
            max_value_bytes: 4096,
            key_groups: 256,
            owned: 0..256,
            movable: false,
            restored: None,
        };
        let lists = layout.open_lists(context).unwrap();
        Self { device, lists, blobs: 0 }
    }

    fn blobs(&mut self) -> BlobWriter {
        self.blobs += 1;
        BlobWriter::new(self.device.clone(), self.blobs, 4096)
    }

    fn checkpoint(&mut self) {
        let mut blobs = self.blobs();
        self.lists.checkpoint(&mut blobs).unwrap();
        blobs.finish().unwrap();
        self.lists.checkpointed(CheckpointOutcome::Committed);
    }

    fn append(&mut self, slice: i64, range: Range<u64>) {
        range.for_each(|n| self.lists.append(Time(slice), &7, [n; 4]).unwrap());
    }
}

/// Each slice has a run of few elements first: then some more come to it, or none.
#[test]
fn a_slice_that_has_grown_is_not_counted_as_a_small_one() {
    for (rounds, each, are_many) in [(1, 10, true), (3, 10, true), (3, 200, false)] {
        let mut ground = Ground::new(&AppendLog::new().packs_slices(true), 2 << 20);
        for slice in 0..40 {
            for round in 0..rounds {
                ground.append(slice, round * each..(round + 1) * each);
                ground.checkpoint();
            }
        }
        ground.append(100, 0..1);
        assert_eq!(ground.lists.core.packed.as_ref().unwrap().small_bytes, 32 << 10);
        let found = ground.lists.core.has_many_small(BUCKETS_SHARE);
        assert_eq!(found, are_many, "{rounds} runs of {each} elements each");
    }
}
