//! Purging: slices are out of sight at once, and what they have is given back in bounded steps.
//!
//! The tree of slices is cut in two; those before the cut are taken out of their slots by fuel.
//! A table goes to the helper whole, which drops it; without helper threads it is dropped part by
//! part here. Files are removed by the helper. What is being written when its slice is purged is
//! dropped, and its files removed, when the answer comes.

use std::sync::Arc;

use alluvium_pagestore::{MemoryKind, Result, Time};

use super::core::SegmentsCore;
use super::slice::CachedRun;
use super::slice_checkpoint::SLICE_SHARE_BYTES;

impl SegmentsCore {
    pub(super) fn purge_slices(&mut self, before: Time, fuel: usize) -> Result<bool> {
        self.settle();
        if self.by_time.first_key_value().is_some_and(|(slice, _)| *slice < before) {
            // However many there are: they are taken out of their slots by fuel.
            let kept = self.by_time.split_off(&before);
            let purged = std::mem::replace(&mut self.by_time, kept);
            self.purged.push_back(purged);
            self.forget_places();
            self.arrangement += 1;
        }
        self.bury(fuel.max(1));
        let is_log_purged =
            self.packed.as_mut().map_or(Ok(true), |packed| packed.lists.purge(before))?;
        self.close_idle_log();
        Ok(is_log_purged
            && self.dying.is_empty()
            && self.purged.is_empty()
            && self.forgotten.is_empty())
    }

    /// Takes the next purged slice out of its slot and says whether there was one.
    fn next_to_bury(&mut self) -> bool {
        let Some(purged) = self.purged.front_mut() else { return false };
        let (_, slot) = purged.pop_first().expect("some slice was purged");
        if purged.is_empty() {
            self.purged.pop_front();
        }
        if let Some(ended) = self.vacate(slot) {
            self.entries_likely = ended.active.len();
            self.retire(ended);
        }
        true
    }

    /// Gives back what purged slices have, about `fuel` entries' worth, and says how much fuel is
    /// left.
    pub(super) fn bury(&mut self, mut fuel: usize) -> usize {
        while fuel > 0 {
            if let Some(cuts) = self.forgotten.front_mut() {
                match cuts.drop_part(&self.account) {
                    Some(count) => fuel = fuel.saturating_sub(count + 1),
                    None => drop(self.forgotten.pop_front()),
                }
                continue;
            }
            let Some(slice) = self.dying.front_mut() else {
                if self.next_to_bury() {
                    continue;
                }
                return fuel;
            };
            if let Some(run) = slice.runs.pop() {
                // Images that were read ahead go with it, if there are any.
                fuel = fuel.saturating_sub(1 + run.resident.len());
                self.drop_runs(vec![run]);
            } else if let Some(part) = slice.frozen.take() {
                // One that is being written comes back with the answer.
                if part.job == 0 {
                    self.was_dropped(&part.table);
                    self.background.drop_table(part.table);
                }
                fuel -= 1;
            } else if let Some(count) = slice.cuts.drop_part(&self.account) {
                fuel = fuel.saturating_sub(count + 1);
            } else if slice.active.memory_bytes() == 0 {
                slice.gaps.close(&self.account);
                self.dying.pop_front();
                self.account.release(MemoryKind::Tables, Self::SLICE_BYTES);
                self.fund.remove(SLICE_SHARE_BYTES);
                fuel -= 1;
            } else if !self.background.jobs.helper().is_inline() {
                self.background.drop_table(Arc::new(slice.active.freeze()));
                fuel -= 1;
            } else {
                let (account, mut count) = (&self.account, 0);
                slice.active.drop_part(|entries, heap| {
                    count = entries;
                    account.release(MemoryKind::Values, heap);
                });
                fuel = fuel.saturating_sub(count + 1);
            }
        }
        0
    }

    /// Gives up runs: what of them is in memory, and their files unless a checkpoint names them.
    pub(super) fn drop_runs(&mut self, runs: Vec<CachedRun>) {
        let mut free = Vec::new();
        for mut stored in runs {
            self.forget_read(&mut stored);
            free.append(&mut self.run_went(&stored.run));
        }
        if !free.is_empty() {
            self.background.remove(free);
        }
    }
}
