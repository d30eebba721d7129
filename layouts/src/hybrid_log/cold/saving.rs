//! How memory for moves and merges is saved up: a page with each step, of this log or of another state.
//!
//! What it keeps true: no step evicts more than a page, unless memory has no room for one entry more. A step waits for a
//! page if the index has its part. Work that cannot have all that it needs is made smaller, down to that of a state of
//! the least memory. No page of this log leaves for work that cannot have so much either, and of other states only what
//! a layout has which does not say before how much that is.

use alluvium_pagestore::{ErrorKind, ReclaimScope, Result};

use super::paying::{StepOutcome, StepUrgency};
use super::{ColdTier, DIRECTORY_BYTES, own_memory};
use crate::hybrid_log::log::{Log, NeededBytes};

/// After a call that asked other states in vain so many come that do not ask; after each further one twice as many, so
/// many times at most.
const ASKED_REST: u32 = 8;
const ASKED_POWER_MAX: u32 = 5;
/// Other states leave a log what its work takes at least, up to one part in so many of its index.
const WORK_SHARE: u64 = 2;

impl ColdTier {
    /// Bytes that the merge takes which is due, with the directories of what it writes.
    pub(super) fn due_bytes(&self) -> u64 {
        self.levels.due_bytes(self.run_sizes(), self.work.read_bytes)
    }
}

impl Log {
    /// Whether a merge has memory without a page that goes.
    pub(super) fn has_saved_for_merge(&self, cold: &ColdTier) -> bool {
        let wanted = cold.due_bytes() + DIRECTORY_BYTES;
        cold.purse.bytes() + self.account.available() >= wanted + self.keep_bytes()
    }

    /// Sizes work by the memory of this state, or by less where so much cannot be had, unless a move goes on: that has
    /// its sizes. `needed` says what is to be saved up for the work.
    pub(super) fn fit_work(&mut self, cold: &mut ColdTier, needed: impl Fn(&ColdTier) -> u64) {
        // The little memory of tests is no measure.
        if cold.is_of_test() || cold.moving.is_some() {
            return;
        }
        cold.wanted = cold.shape.within(own_memory(&self.account));
        cold.fit_graves();
        cold.work = cold.wanted;
        while cold.work.memory > cold.least.memory && !self.can_save_up(cold, needed(cold)) {
            cold.work = cold.shape.within((cold.work.memory / 2).max(cold.least.memory));
        }
        // What was saved up for more is for others.
        let most = cold.work_bytes().max(needed(cold) + DIRECTORY_BYTES) + cold.graves_lacking();
        let merging = if cold.work.overlaps { cold.levels.merging_bytes() } else { 0 };
        let spare = cold.purse.bytes().saturating_sub(most.saturating_sub(merging));
        cold.purse.give_some_back(spare);
    }

    /// Has memory for the merge that is due, or says that it is being saved up.
    pub(super) fn save_up_for_merge(
        &mut self,
        cold: &mut ColdTier,
        need: StepUrgency,
    ) -> Result<Option<StepOutcome>> {
        self.fit_work(cold, ColdTier::due_bytes);
        let needed = cold.due_bytes();
        // What must be done is not put off for the sake of the directories.
        let wanted = if need == StepUrgency::Now { needed } else { needed + DIRECTORY_BYTES };
        let saved = cold.saved_before;
        let saved_up = self.save_up(cold, (wanted, "a merge of runs"), need);
        if saved_up.is_err() {
            // Records move meanwhile.
            cold.merge_has_failed = true;
        }
        if !saved_up? {
            return Ok(Some(saving(cold, saved)));
        }
        cold.purse.give_some_back(needed);
        Ok(None)
    }

    /// Saves memory up, a page with each step, or all of it if it is needed now. Says whether it is there.
    ///
    /// # Errors
    /// [`ErrorKind::OverBudget`] if so much cannot be had.
    pub(super) fn save_up(
        &mut self,
        cold: &mut ColdTier,
        needed: NeededBytes,
        need: StepUrgency,
    ) -> Result<bool> {
        let lacking = needed.0.saturating_sub(cold.purse.bytes());
        if lacking == 0 {
            return Ok(true);
        }
        let is_there = self.can_save_up(cold, needed.0);
        if need == StepUrgency::Now {
            self.make_free_now(cold, (lacking, needed.1), is_there)?;
            cold.purse.charge(lacking);
            return Ok(true);
        }
        if !is_there && !self.ask_for_page() {
            return Err(self.account.over_budget(lacking, needed.1));
        }
        // Where there is too little for that too, the work comes first.
        let keep = self.keep_bytes();
        let keep = if self.can_save_up(cold, needed.0 + keep) { keep } else { 0 };
        let has_all = self.account.available() >= lacking + keep;
        if !has_all && is_there && !self.free_one_step(cold, lacking, need)? {
            return Err(self.account.over_budget(lacking, needed.1));
        }
        let saved = self.account.available().saturating_sub(keep).min(lacking);
        Ok(cold.purse.try_reserve_more(saved) && saved == lacking)
    }

    /// Has other states give a page's memory up that is not known here. Filters and memory that is saved up for work stay
    /// with those that have them.
    fn ask_for_page(&mut self) -> bool {
        let (bytes, _) = self.needed_for_others();
        self.account.ensure_of(ReclaimScope::Pages, bytes)
    }

    /// Makes memory free at once. Pages of others come first, then filters and what is saved up for work elsewhere, and
    /// what this log needs itself only where the sum `is_there`.
    fn make_free_now(
        &mut self,
        cold: &mut ColdTier,
        needed: NeededBytes,
        is_there: bool,
    ) -> Result<()> {
        let own = self.elastic_bytes().saturating_sub(self.floor_bytes()) + cold.guide_bytes();
        if own < needed.0.saturating_sub(self.account.available()) {
            self.account.ensure_of(ReclaimScope::Pages, needed.0.saturating_sub(own));
        }
        if !is_there && self.account.available() < needed.0 {
            // A call that is made again and again takes nothing from others each time.
            if cold.rest_asking > 0 {
                cold.rest_asking -= 1;
                return Err(self.account.over_budget(needed.0, needed.1));
            }
            if let Err(error) = self.account.ensure(needed.0, needed.1) {
                cold.rest_asking = ASKED_REST << cold.asked_in_vain.min(ASKED_POWER_MAX);
                cold.asked_in_vain += 1;
                return Err(error);
            }
        }
        (cold.asked_in_vain, cold.rest_asking) = (0, 0);
        self.make_free_for(cold, needed)
    }

    /// Has other states give up all that they have for an entry of the index. A call that is made again and again does not
    /// ask each time. Says whether so much is free.
    pub(in crate::hybrid_log) fn ask_for_all(&mut self, needed: NeededBytes) -> bool {
        if let Some(cold) = self.cold.as_mut().filter(|cold| cold.rest_asking > 0) {
            cold.rest_asking -= 1;
            return false;
        }
        let is_there = self.account.ensure(needed.0, needed.1).is_ok();
        if let Some(cold) = &mut self.cold {
            cold.rest_asking = ASKED_REST << cold.asked_in_vain.min(ASKED_POWER_MAX);
            cold.asked_in_vain += u32::from(!is_there);
        }
        is_there
    }

    /// What is kept free for values, and for a page that the stream begins.
    pub(super) fn keep_bytes(&self) -> u64 {
        self.sizes.headroom_bytes + 2 * self.sizes.frame_bytes
    }

    /// Whether so much could be saved up if pages, guides and other states gave all that they can.
    pub(super) fn can_save_up(&self, cold: &ColdTier, needed: u64) -> bool {
        let wanted = needed.saturating_sub(cold.purse.bytes());
        let pages = self.elastic_bytes().saturating_sub(self.floor_bytes());
        let given = pages + self.bytes_beside() + cold.guide_bytes();
        let is_least = cold.work.memory <= cold.least.memory;
        let attainable = match is_least {
            true => self.account.attainable_for_work(),
            false => self.account.attainable(),
        };
        // For the least work what is free is there for who comes first, also where others lack it.
        let is_there = is_least && self.account.available() >= wanted + self.keep_bytes()
            || attainable + given >= self.account.used() + wanted;
        // The little memory of tests is no measure.
        cold.is_of_test() || is_there
    }

    /// Tells other states what this one lacks for its work, or can spare. Where the index is small the work is far off.
    pub(in crate::hybrid_log) fn keep_for_work(&self) {
        let Some(cold) = &self.cold else { return };
        let most = self.index_bytes() / WORK_SHARE;
        self.account.keep_for_work(cold.lacking_bytes().min(most), cold.spare_bytes());
    }

    /// Has a page leave memory, here or in another state, and waits for it. Says whether one could.
    fn free_one_page(&mut self) -> Result<bool> {
        match self.free_a_frame(self.needed_for_others()) {
            Ok(()) => {
                self.drop_spare();
                Ok(true)
            }
            Err(error) if error.kind() == ErrorKind::OverBudget => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Has a page leave memory for work, here or in another state, or guides, of which so much is lacking. Says whether
    /// something could.
    fn free_one_step(
        &mut self,
        cold: &mut ColdTier,
        lacking: u64,
        need: StepUrgency,
    ) -> Result<bool> {
        let is_test = cold.is_of_test();
        let freed = match need {
            // The index grows meanwhile: the step waits for a page, as one does that needs a page for itself.
            _ if self.has_more_than_it_needs() && need > StepUrgency::Later && !is_test => {
                self.drop_spare() || self.free_one_page()?
            }
            _ if self.has_more_than_it_needs() || is_test => self.free_step()?,
            _ => self.take_page_of_others(),
        };
        // Guides can be read again.
        Ok(freed || cold.give_guides_up(lacking) > 0)
    }

    /// Makes memory free, that of guides too.
    fn make_free_for(&mut self, cold: &mut ColdTier, needed: NeededBytes) -> Result<()> {
        match self.make_free(needed) {
            Err(error)
                if error.kind() == ErrorKind::OverBudget && cold.give_guides_up(u64::MAX) > 0 =>
            {
                self.make_free(needed)
            }
            made => made,
        }
    }
}

/// What a step came to that saved memory up, of which so much was there before.
pub(super) fn saving(cold: &ColdTier, before: u64) -> StepOutcome {
    StepOutcome::Saving { is_more: cold.purse.bytes() > before }
}
