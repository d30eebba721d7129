//! Runs made one: when a slice has too many of one level, and when a fold has no room for all.
//!
//! The helper merges them as bytes, so that it needs no function of the user's; the runs stay in use
//! until the new one takes their place. What cannot be merged stays as it is.

use std::ops::Range;
use std::sync::Arc;

use alluvium_pagestore::io::Patience;
use alluvium_pagestore::{MemoryKind, Result, Time};

use super::core::SegmentsCore;
use super::run::SliceRun;
use super::slice::CachedRun;
use super::space::{run_of, sum};
use super::writing::{HashedCut, WrittenRun};

/// What merging a run takes whose images are of so many bytes.
fn merging_bytes(image_bytes_max: u64) -> u64 {
    image_bytes_max + 128
}

/// What merging two runs takes that have one image each.
pub fn merging_bytes_min(image_bytes: u64, segment_bytes: u64) -> u64 {
    let records = 2 * image_bytes / 32;
    let table = SliceRun::booked_bytes_of(records, 2 * image_bytes, image_bytes, segment_bytes);
    2 * merging_bytes(image_bytes) + table
}

/// The merge that is under way.
#[derive(Debug)]
pub struct SliceMerge {
    job: u64,
    /// What it has of what is kept for folds, of which none begins before it is done.
    lent: u64,
    /// Booked for it: images, cuts, and the table of the new run.
    bytes: u64,
    table_bytes: u64,
    slot: usize,
    first: Arc<SliceRun>,
    last: Arc<SliceRun>,
}

impl SegmentsCore {
    /// Has runs of one level made one, if there are enough and memory allows.
    pub(super) fn merge_runs(&mut self, slot: usize) {
        if self.merging.is_some() {
            return;
        }
        let runs = &self.slice_at(slot).runs;
        let Some(level) = runs.last().map(|stored| stored.run.level) else { return };
        let from = runs.iter().rposition(|stored| stored.run.level != level).map_or(0, |i| i + 1);
        if runs.len() - from >= self.sizes.runs_max {
            self.begin_merge(slot, from, 0);
        }
    }

    /// Has the runs of a slice from one on made one, as many of them, the oldest first, as there is
    /// memory for, and says whether that was begun. `lent` is of what is kept for folds.
    fn begin_merge(&mut self, slot: usize, from: usize, lent: u64) -> bool {
        let found = self.slots[slot].as_ref().expect("a slice in use");
        let (mut cuts, mut bytes) = (Vec::new(), 0);
        let room = self.account.available() + lent;
        for cut in found.cuts.iter() {
            bytes += HashedCut::bytes_of(cut);
            if room < bytes {
                return false;
            }
            cuts.push(HashedCut::of(cut));
        }
        cuts.sort_unstable_by_key(|cut: &HashedCut| cut.hash);
        let gaps = found.gaps.clone();
        bytes += gaps.bytes();
        let (mut runs, mut table_bytes) = (Vec::new(), 0);
        let (mut records, mut stored_bytes, mut images) = (0, 0, 0);
        for stored in &found.runs[from..] {
            let run = &stored.run;
            (records, stored_bytes) = (records + run.records, stored_bytes + run.bytes());
            let image = merging_bytes(run.image_bytes_max());
            let (size, segment) = (self.sizes.image_bytes, self.sizes.segment_bytes);
            let table = SliceRun::booked_bytes_of(records, stored_bytes, size, segment);
            if room < bytes + images + image + table {
                break;
            }
            images += image;
            table_bytes = table;
            runs.push(run.clone());
        }
        if runs.len() < 2 {
            return false;
        }
        // What it does not need of what is lent stays booked.
        bytes = (bytes + images).max(lent.saturating_sub(table_bytes));
        self.account.release(MemoryKind::Buffers, lent);
        self.account.charge(MemoryKind::Buffers, bytes);
        self.account.charge(MemoryKind::Tables, table_bytes);
        self.jobs += 1;
        let (first, last) = (runs[0].clone(), runs[runs.len() - 1].clone());
        let job = self.jobs;
        self.merging = Some(SliceMerge { job, lent, bytes, table_bytes, slot, first, last });
        self.background.merge(self.jobs, (self.types, runs), (cuts, gaps), self.sizes);
        true
    }

    /// Takes in a merge: the new run takes the place of those that it was made of.
    pub(super) fn merged(&mut self, job: u64, result: Result<WrittenRun>) {
        let merging = self.merging.take().filter(|merging| merging.job == job);
        let Some(merging) = merging else { panic!("merge {job} is not the one under way") };
        self.account.release(MemoryKind::Buffers, merging.bytes);
        self.account.release(MemoryKind::Tables, merging.table_bytes);
        let slot = merging.slot;
        // What could not be made one stays as it is; who reads it meets the error.
        let is_there = result.is_ok_and(|written| self.replace_runs(&merging, written));
        // Two runs take more than the one that was made of them.
        self.account.charge(MemoryKind::Buffers, merging.lent);
        if is_there {
            self.merge_runs(slot);
        }
    }

    /// Puts a run in the place of those that it was made of; says whether their slice is still there.
    fn replace_runs(&mut self, merging: &SliceMerge, written: WrittenRun) -> bool {
        self.disk_bytes += sum(&written);
        self.stats.flushed_bytes += sum(&written);
        self.stats.rewritten += written.records;
        let runs = self.slots[merging.slot].as_ref().map_or(&[][..], |found| &found.runs);
        let place = |run| runs.iter().position(|stored| Arc::ptr_eq(&stored.run, run));
        let (Some(first), Some(last)) = (place(&merging.first), place(&merging.last)) else {
            // The slice was purged meanwhile.
            self.remove_files(&written);
            return false;
        };
        let level = runs[first..=last].iter().map(|stored| stored.run.level).max().unwrap_or(0);
        let number = merging.last.number;
        let new = (written.records > 0).then(|| run_of(number, level + 1, written));
        // Of what was booked for it, and was just given back.
        new.iter().for_each(|run| self.book_run(run));
        let new = new.map(|run| CachedRun::new(Arc::new(run)));
        let found = self.slots[merging.slot].as_mut().expect("found by it");
        let old: Vec<_> = found.runs.splice(first..=last, new).collect();
        let cuts = found.forget_cuts(&self.account);
        self.forgotten.extend(cuts);
        self.drop_runs(old);
        self.arrangement += 1;
        true
    }

    /// Merges the runs of the slice that has most, until there are fewer, so that a fold takes less
    /// memory. What is kept for folds serves for it. Says whether that did anything.
    pub(super) fn merge_for_fold(&mut self, slices: &Range<Time>) -> Result<bool> {
        self.wait_for_merge()?;
        let slots = self.by_time.range(slices.clone()).map(|(_, slot)| *slot as usize);
        let most = slots.max_by_key(|slot| self.slice_at(*slot).runs.len());
        let Some(slot) = most.filter(|slot| self.slice_at(*slot).runs.len() > 1) else {
            return Ok(false);
        };
        let before = self.slice_at(slot).runs.len();
        // Beside a checkpoint, old runs keep their memory.
        let lent = if self.checkpoint.is_some() { 0 } else { self.sizes.fold_bytes };
        if !self.begin_merge(slot, 0, lent) {
            return Ok(false);
        }
        self.wait_for_merge()?;
        Ok(self.slice_at(slot).runs.len() < before)
    }

    /// Whether a merge has what is kept for folds.
    pub(super) fn has_lent(&self) -> bool {
        self.merging.as_ref().is_some_and(|merging| merging.lent > 0)
    }

    /// Waits for a merge that has what is kept for folds.
    pub(super) fn wait_for_lent(&mut self) -> Result<()> {
        if self.has_lent() { self.wait_for_merge() } else { Ok(()) }
    }

    fn wait_for_merge(&mut self) -> Result<()> {
        let mut patience: Option<Patience> = None;
        while self.merging.is_some() {
            self.wait_once()?;
            let Some(storage) = &self.background.storage else { continue };
            let device = storage.store.device();
            let patience =
                patience.get_or_insert_with(|| Patience::new(self.sizes.patience, device));
            if patience.is_over(device) {
                let error = patience.error("runs are still being made one");
                return Err(error.with("state", &self.context.name));
            }
        }
        Ok(())
    }
}
