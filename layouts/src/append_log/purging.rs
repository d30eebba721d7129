//! Buckets and runs that go: at once for those who look, their memory by the helper, their files with whoever refers to
//! them last.

use std::collections::{BTreeMap, BTreeSet};

use alluvium_pagestore::{MemoryKind, Time};

use super::bucket::AppendBucket;
use super::core::ListsCore;
use super::packed::PACKED;
use super::run::{ListRun, RUN_BYTES};

impl ListsCore {
    /// Drops all buckets before `before`: at once for those who look, the memory by the helper.
    pub(super) fn purge_buckets(&mut self, before: Time) {
        let rest = self.buckets.split_off(&before);
        let gone = std::mem::replace(&mut self.buckets, rest);
        if self.buckets.is_empty() {
            // It keeps a node otherwise.
            self.buckets = BTreeMap::new();
        }
        if let Some(packed) = &mut self.packed {
            self.elements -= packed.purge(before);
        }
        if gone.is_empty() {
            return;
        }
        let pinned: BTreeSet<Time> =
            self.buckets.values().flat_map(|bucket| bucket.sources.keys().copied()).collect();
        for bucket in gone.into_values() {
            self.drop_bucket(*bucket, &pinned);
        }
        let free: Vec<Time> =
            self.graves.keys().filter(|time| !pinned.contains(time)).copied().collect();
        for time in free {
            for run in self.graves.remove(&time).into_iter().flatten() {
                self.drop_run(run);
            }
        }
    }

    /// Drops a bucket, but for runs that are `pinned`.
    pub(super) fn drop_bucket(&mut self, mut bucket: AppendBucket, pinned: &BTreeSet<Time>) {
        self.elements -= bucket.elements;
        let frozen = bucket.freeze(0);
        let (snapshot, notes) = (bucket.take_snapshot(), bucket.freeze_notes());
        match self.adopt_notes(bucket.time, snapshot, notes) {
            Some((notes, mut booked)) => {
                booked.index += frozen.booked.index;
                booked.pages += frozen.booked.pages;
                booked.values += frozen.booked.values;
                self.reap((frozen, notes), booked);
            }
            None => {
                let booked = frozen.booked;
                self.reap(frozen, booked);
            }
        }
        for run in std::mem::take(&mut bucket.runs) {
            if pinned.contains(&bucket.time) {
                self.graves.entry(bucket.time).or_default().push(run);
            } else {
                self.drop_run(run);
            }
        }
    }

    pub(super) fn drop_run(&mut self, run: ListRun) {
        if run.number != PACKED {
            self.kept = None;
        }
        self.elements -= run.elements;
        self.account.release(MemoryKind::Tables, RUN_BYTES);
        if let Some(cached) = run.cached {
            self.drop_cached(cached);
        }
        let unwritten = run.stored.is_none();
        if let Some(frozen) = run.memory.filter(|f| !unwritten || !self.adopt(f, run.busy)) {
            let booked = frozen.booked;
            self.reap(frozen, booked);
        }
        if let Some(stored) = run.stored {
            self.account.release(MemoryKind::Tables, stored.memory_bytes());
            self.remove_files(&stored);
        }
    }
}
