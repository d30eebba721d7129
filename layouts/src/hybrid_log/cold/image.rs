//! Checkpoints of the cold tier.
//!
//! At the barrier a checkpoint notes the levels, whose files never change, and the tombstones. It ends by having files
//! synced that are not, and by writing the tombstones as one more level, which is the checkpoint's alone. So what stays
//! cold is not written again, and neither moves nor merges wait for it or have it wait.
//!
//! What it keeps true: the files that it notes are pinned from the barrier on, by [`PinnedRuns`](crate::checkpoint::PinnedRuns). What
//! moves after the barrier dies in its segment after the barrier: the part of the segments has it.

use alluvium_pagestore::io::IoBuffer;
use alluvium_pagestore::{ImagePart, KIB, Result, RunId, RunInfo, SegmentStore};

use super::counts::ToldCounts;
use super::graves::Grave;
use super::{ColdTier, PAYLOAD_MAX, TOMBSTONE, remove_runs};
use crate::runs::{RecordView, RunSizes, RunWriter, UnsyncedRun};

/// Bytes that are written at once of a file whose sync failed before.
const AGAIN_BYTES: usize = 16 << 10;

/// The tier at a barrier.
#[derive(Debug)]
pub struct RunsAtBarrier {
    /// The newest first.
    levels: Vec<Vec<RunInfo>>,
    graves: Vec<Grave>,
    /// Files that the device may not keep yet.
    unsynced: Vec<UnsyncedRun>,
    keys: ToldCounts,
    store: SegmentStore,
    state: u64,
    sizes: RunSizes,
}

/// What a helper did for a checkpoint.
#[derive(Debug)]
pub struct RunsWritten {
    /// Files that were synced.
    pub synced: Vec<RunId>,
    /// The level of tombstones.
    pub graves: Vec<RunInfo>,
}

impl RunsAtBarrier {
    /// Keys that the levels alone have.
    pub fn keys(&self) -> u64 {
        self.keys.all
    }

    /// All runs.
    pub fn runs(&self) -> impl Iterator<Item = RunId> + '_ {
        self.levels.iter().flatten().map(|run| run.id)
    }

    /// Has the device keep all, and writes the tombstones. For a helper: waits for the device.
    ///
    /// # Errors
    /// Those of the device. What was written is removed, and it can be tried again.
    pub fn write(&self) -> Result<RunsWritten> {
        let mut chunk = IoBuffer::empty();
        if !self.unsynced.is_empty() {
            chunk = IoBuffer::zeroed(AGAIN_BYTES);
        }
        for file in &self.unsynced {
            file.sync(self.store.device(), &mut chunk)?;
        }
        drop(chunk);
        let synced = self.unsynced.iter().map(UnsyncedRun::id).collect();
        Ok(RunsWritten { synced, graves: self.write_graves()? })
    }

    fn write_graves(&self) -> Result<Vec<RunInfo>> {
        if self.graves.is_empty() {
            return Ok(Vec::new());
        }
        let mut writer = RunWriter::new(self.store.clone(), self.state, self.sizes)?;
        let mut views = self.graves.iter().map(|grave| RecordView {
            hash: grave.hash,
            mark: TOMBSTONE,
            order: &[],
            payload: &grave.payload,
        });
        match views.try_for_each(|view| writer.push(view)).and_then(|()| writer.finish()) {
            Ok(()) => Ok(writer.take_sealed()),
            Err(error) => {
                // What cannot be removed is left over until the next open.
                let _ = writer.abandon();
                Err(error)
            }
        }
    }

    /// The part of the image.
    pub fn part(&self, written: &RunsWritten) -> ImagePart {
        let graves = Some(written.graves.clone()).filter(|graves| !graves.is_empty());
        let levels = graves.into_iter().chain(self.levels.iter().cloned()).collect();
        let (group_keys, touched) = (self.keys.of_groups.to_vec(), self.keys.touched.clone());
        ImagePart { group_keys, touched, ..ImagePart::of_runs(levels, self.keys.all) }
    }
}

impl ColdTier {
    /// Bytes that [`at_barrier`](ColdTier::at_barrier) holds, and that [`write`](RunsAtBarrier::write) takes.
    pub fn barrier_bytes(&self) -> u64 {
        let graves = || self.buried.iter().chain(&self.going);
        let payloads: u64 = graves().map(Grave::bytes).sum();
        let unsynced = self.levels.unsynced_count() * size_of::<UnsyncedRun>();
        let lists = graves().count() * size_of::<Grave>() + unsynced;
        let writer = match graves().next() {
            Some(_) => self.grave_sizes(graves().count()).memory_bytes(),
            None => 0,
        };
        let of_runs = self.levels.info_bytes() + self.live.told_bytes();
        payloads + lists as u64 + of_runs + writer.max(AGAIN_BYTES as u64)
    }

    /// Of the level of tombstones that a checkpoint writes.
    fn grave_sizes(&self, count: usize) -> RunSizes {
        RunSizes::within(16 * KIB, PAYLOAD_MAX, self.work.runs.key_groups).expecting(count as u64)
    }

    /// What a checkpoint has of it. Cost: O(runs and tombstones), of which there are few.
    pub fn at_barrier(&self) -> RunsAtBarrier {
        let mut graves: Vec<Grave> = self.buried.iter().chain(&self.going).cloned().collect();
        super::graves::sort(&mut graves);
        RunsAtBarrier {
            levels: self.levels.infos(),
            sizes: self.grave_sizes(graves.len()),
            graves,
            unsynced: self.levels.unsynced(),
            keys: self.live.told(),
            store: self.store.clone(),
            state: self.state,
        }
    }

    /// A helper has had files synced. The level of tombstones is the checkpoint's: it goes with it.
    pub fn was_written(&mut self, written: &RunsWritten) {
        self.levels.are_synced(&written.synced);
    }

    /// Takes the levels of a checkpoint over.
    ///
    /// # Errors
    /// Those of opening runs.
    pub fn restore(&mut self, part: &ImagePart) -> Result<()> {
        for level in part.levels.iter().rev() {
            self.levels.add(level)?;
        }
        self.levels.go_on_within_groups(self.work.runs.key_groups);
        self.live.restore(part)
    }
}

/// Has a checkpoint's own level of tombstones go with the last checkpoint that names it.
pub fn let_go(store: &SegmentStore, written: &RunsWritten) {
    remove_runs(store, &written.graves);
}
