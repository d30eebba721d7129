//! Ranges of hashes that are cut out of levels: those of key groups that have left.

use alluvium_pagestore::{Result, RunInfo};

use super::Levels;

impl Levels {
    /// Has no record count any more whose hash is in a range. Removes runs of which none does.
    ///
    /// # Errors
    /// [`ErrorKind::OverBudget`] without memory for one range more in each run: nothing has changed then.
    pub fn cut(&mut self, first: u64, last: u64) -> Result<()> {
        let runs: usize = self.levels.iter().map(|level| level.runs.len()).sum();
        let more = ((runs + 1) * size_of::<(u64, u64)>()) as u64;
        self.cut_memory.reserve_more(more, "key groups that have left sorted runs")?;
        for run in self.levels.iter_mut().flat_map(|level| &mut level.runs) {
            run.cut(first, last);
        }
        if let Some(merging) = &mut self.merging
            && !merging.cuts.contains(&(first, last))
        {
            merging.cuts.push((first, last));
        }
        self.remove_what_is_cut();
        self.cut_memory.adjust_to(self.cut_bytes());
        Ok(())
    }

    /// Removes runs whose hashes are all below this one, unless they are being merged. For an owner to whom no record of
    /// such a hash counts.
    pub fn remove_below(&mut self, hash: u64) {
        self.remove_runs(|info| info.last_hash < hash);
    }

    /// Removes runs of which no record counts, unless they are being merged.
    pub(super) fn remove_what_is_cut(&mut self) {
        self.remove_runs(RunInfo::is_cut_whole);
    }

    fn remove_runs(&mut self, mut is_over: impl FnMut(&RunInfo) -> bool) {
        let merging: &[u64] = self.merging.as_ref().map_or(&[], |merging| &merging.numbers);
        let mut removed = Vec::new();
        for level in self.levels.iter_mut().filter(|level| !merging.contains(&level.number)) {
            removed.extend(level.runs.extract_if(.., |run| is_over(run.info())));
        }
        self.levels.retain(|level| !level.runs.is_empty());
        self.forget_parted();
        // What cannot be removed is left over until the next open.
        let _ = self.remove(removed);
    }

    /// Bytes of all cuts.
    pub(super) fn cut_bytes(&self) -> u64 {
        let runs = self.levels.iter().flat_map(|level| &level.runs);
        let cuts: usize = runs.map(|run| run.info().cuts.len()).sum();
        let merging = self.merging.as_ref().map_or(0, |merging| merging.cuts.len());
        ((cuts + merging) * size_of::<(u64, u64)>()) as u64
    }
}
