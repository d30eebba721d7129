//! How memory for moves and merges is saved up: a page with each step, of this log or of another state.
//!
//! What it keeps true: no step evicts more than a page, unless memory has no room for one entry more. A step waits for a
//! page if the index has its part. No page of this log leaves for work that cannot have all that it needs.

use alluvium_pagestore::{ErrorKind, Result};

use super::paying::{Need, Stepped};
use super::{Cold, DIRECTORY_BYTES};
use crate::hybrid_log::log::{Log, Needed};

impl Log {
    /// Whether a merge has memory without a page that goes.
    pub(super) fn has_saved_for_merge(&self, cold: &Cold) -> bool {
        let needed = cold.levels.due_bytes(cold.run_sizes(), cold.read_bytes) + DIRECTORY_BYTES;
        let keep = self.sizes.headroom_bytes + 2 * self.sizes.frame_bytes;
        cold.purse.bytes() + self.account.available() >= needed + keep
    }

    /// Has memory for the merge that is due, or says that it is being saved up.
    pub(super) fn save_up_for_merge(
        &mut self,
        cold: &mut Cold,
        need: Need,
    ) -> Result<Option<Stepped>> {
        let needed = cold.levels.due_bytes(cold.run_sizes(), cold.read_bytes);
        // What must be done is not put off for the sake of the directories.
        let wanted = if need == Need::Now { needed } else { needed + DIRECTORY_BYTES };
        let saved = cold.saved_before;
        if !self.save_up(cold, (wanted, "a merge of runs"), need)? {
            return Ok(Some(saving(cold, saved)));
        }
        cold.purse.give_some_back(needed);
        Ok(None)
    }

    /// Saves memory up, a page with each step, or all of it if it is needed now. Says whether it is there.
    ///
    /// # Errors
    /// [`ErrorKind::OverBudget`] if so much cannot be had. No page has left memory for it then, as a rule.
    pub(super) fn save_up(&mut self, cold: &mut Cold, needed: Needed, need: Need) -> Result<bool> {
        let lacking = needed.0.saturating_sub(cold.purse.bytes());
        if lacking == 0 {
            return Ok(true);
        }
        // Other states may have some that is not known here.
        if need < Need::Now && !self.can_save_up(cold, needed.0) && !self.ask_others() {
            return Err(self.account.over_budget(lacking, needed.1));
        }
        if need == Need::Now {
            self.make_free_for(cold, (lacking, needed.1))?;
            cold.purse.charge(lacking);
            return Ok(true);
        }
        // Where there is too little for that too, the work comes first.
        let keep = self.keep_bytes();
        let keep = if self.can_save_up(cold, needed.0 + keep) { keep } else { 0 };
        if self.account.available() < lacking + keep && !self.free_one_step(cold, lacking, need)? {
            return Err(self.account.over_budget(lacking, needed.1));
        }
        let saved = self.account.available().saturating_sub(keep).min(lacking);
        Ok(cold.purse.try_reserve_more(saved) && saved == lacking)
    }

    /// Has other states give a page's memory up, whatever they have. Says whether they did.
    fn ask_others(&mut self) -> bool {
        let (bytes, what) = self.needed_for_others();
        self.account.ensure(bytes, what).is_ok()
    }

    /// What is kept free for values, and for a page that the stream begins.
    pub(super) fn keep_bytes(&self) -> u64 {
        self.sizes.headroom_bytes + 2 * self.sizes.frame_bytes
    }

    /// Whether so much could be saved up if pages, guides and other states gave all that they can.
    pub(super) fn can_save_up(&self, cold: &Cold, needed: u64) -> bool {
        let wanted = needed.saturating_sub(cold.purse.bytes());
        let pages = self.elastic_bytes().saturating_sub(self.floor_bytes());
        let given = pages + self.bytes_beside() + cold.guide_bytes();
        // The little memory of tests is no measure.
        cold.is_of_test() || self.account.attainable() + given >= self.account.used() + wanted
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
    fn free_one_step(&mut self, cold: &mut Cold, lacking: u64, need: Need) -> Result<bool> {
        let is_test = cold.is_of_test();
        let freed = match need {
            // The index grows meanwhile: the step waits for a page, as one does that needs a page for itself.
            _ if self.has_more_than_it_needs() && need > Need::Later && !is_test => {
                self.drop_spare() || self.free_one_page()?
            }
            _ if self.has_more_than_it_needs() || is_test => self.free_step()?,
            _ => self.take_page_of_others(),
        };
        // Guides can be read again.
        Ok(freed || cold.give_guides_up(lacking) > 0)
    }

    /// Makes memory free, that of guides too.
    fn make_free_for(&mut self, cold: &mut Cold, needed: Needed) -> Result<()> {
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
pub(super) fn saving(cold: &Cold, before: u64) -> Stepped {
    Stepped::Saving { is_more: cold.purse.bytes() > before }
}
