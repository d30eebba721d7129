//! Merging levels: on the helper's thread if it has one, or in steps with the calls that poll.
//!
//! A merge keeps the records that count. One on the helper's thread has a copy of the directory for that, which is booked as
//! a whole, though it shares pages. What comes to count later is in no level that is merged; what has gone meanwhile is
//! dropped by a later merge.
//!
//! What it keeps true: the memory of a merge is booked until it is over, also if it was given up meanwhile.

use std::borrow::Borrow;
use std::time::Duration;

use alluvium_pagestore::Result;

use super::{
    LEVELS_MAX, OWED_MAX, PackedState, REST, STEP_BYTES, STEPS_MAX, SliceDirectory, number_in,
    time_of,
};
use crate::runs::{Judge, RecordView};

/// Whoever drops a state waits so long for a merge that a helper has.
const DROP_MOST: Duration = Duration::from_secs(2);

/// Keeps the records that count.
struct CountedRecords<D> {
    directory: D,
    /// The slice that was asked for last, and since when it counts.
    last: Option<(u64, Option<u64>)>,
}

impl<D: Borrow<SliceDirectory>> Judge for CountedRecords<D> {
    fn judge(&mut self, group: &[RecordView<'_>], stays: &mut [bool]) -> Result<()> {
        let hash = group[0].hash;
        let since = match self.last {
            Some((known, since)) if known == hash => since,
            _ => self.directory.borrow().get(time_of(hash)).map(|slice| slice.since),
        };
        self.last = Some((hash, since));
        for (record, stays) in group.iter().zip(stays) {
            *stays = since.is_some_and(|since| number_in(record.order) >= since);
        }
        Ok(())
    }
}

impl PackedState {
    /// Bytes that are saved up or used for merges, which are given up where memory is short.
    pub fn merging_bytes(&self) -> u64 {
        self.purse.bytes() + self.judging.bytes() + self.levels.merging_bytes()
    }

    /// Gives up what merges and slices that were read ahead have of the memory, until it is [back](PackedState::end_lending).
    /// Says whether more is free now. Waits for a merge that a helper has.
    pub fn lend(&mut self) -> bool {
        let free = self.account.available();
        self.ahead.give_up();
        self.levels.give_up();
        self.levels.wait_to_leave(self.patience);
        self.end_judging();
        self.purse.give_back();
        self.is_lent = true;
        self.account.available() > free
    }

    /// Gives up what is saved up for merges and what was read ahead; a merge that goes on has its memory.
    pub(super) fn lend_saved(&mut self) {
        self.ahead.give_up();
        self.purse.give_back();
    }

    /// Memory for merges may be saved up again.
    pub fn end_lending(&mut self) {
        self.is_lent = false;
    }

    /// Does a step of a merge, if one is due. One on the helper's thread is waited for up to a millisecond by those who
    /// are patient.
    ///
    /// # Errors
    /// Those of the merge, which goes on or begins anew.
    pub(super) fn step(&mut self, is_patient: bool) -> Result<()> {
        #[cfg(test)]
        if self.are_merges_held && self.levels.is_merging() {
            return Ok(());
        }
        self.end_judging();
        if !self.writes || self.is_lent || !self.levels.is_behind() {
            self.save_up();
            return Ok(());
        }
        if self.rest > 0 {
            self.rest -= 1;
            return Ok(());
        }
        self.purse.give_back();
        let before = (self.levels.is_merging(), self.levels.stats_merges());
        let stepped = match self.levels.is_helped() {
            true => self.step_away(is_patient),
            false => self.step_here(),
        };
        let could_not_begin =
            before == (false, self.levels.stats_merges()) && !self.levels.is_merging();
        if could_not_begin && self.levels.merging_bytes() > 0 {
            // Whoever waits for it goes on without it, and has what was kept for it.
            self.levels.give_up();
            self.rest = REST;
        }
        self.end_judging();
        self.save_up();
        if stepped.is_err() {
            self.rest = REST;
        }
        stepped
    }

    fn step_here(&mut self) -> Result<()> {
        let fuel = STEP_BYTES;
        // A merge that is held begins, and does nothing.
        #[cfg(test)]
        let fuel = if self.are_merges_held { 0 } else { fuel };
        let Self { levels, directory, runs, merged_bytes, .. } = self;
        let directory = &*directory;
        let judge = |_| CountedRecords { directory, last: None };
        levels.step(fuel, *runs, *merged_bytes, judge).map(drop)
    }

    fn step_away(&mut self, is_patient: bool) -> Result<()> {
        // The memory of one that was given up is not free yet.
        if !self.levels.has_left(is_patient) {
            return Ok(());
        }
        let begins = !self.levels.is_merging();
        let more = self.directory.memory_bytes().saturating_sub(self.judging.bytes());
        if begins && !self.judging.try_reserve_more(more) {
            return Ok(());
        }
        let Self { levels, directory, runs, merged_bytes, .. } = self;
        let judge = &mut |_| {
            let counting = CountedRecords { directory: directory.clone(), last: None };
            Box::new(counting) as Box<dyn Judge + Send>
        };
        levels.step_away((*runs, *merged_bytes), is_patient, judge).map(drop)
    }

    /// Gives back what the copy of a merge took, if no merge has one any more.
    fn end_judging(&mut self) {
        if self.levels.leaving_bytes() > 0 {
            self.levels.has_left(false);
        }
        // The next part of a merge takes it over.
        let is_used = self.levels.merging_bytes() > 0 || self.levels.leaving_bytes() > 0;
        if !is_used && self.judging.bytes() > 0 {
            self.judging.give_back();
        }
    }

    /// Another batch comes. Where levels have become many, appends are to pay for it with steps of merges, one each; if they
    /// have not paid for some batches, this does.
    pub(in crate::append_log) fn comes_another(&mut self) {
        if self.levels.standing() <= LEVELS_MAX {
            return;
        }
        if self.owed_steps >= OWED_MAX {
            return self.catch_up();
        }
        self.owed_steps += STEPS_MAX;
        self.begin_next();
    }

    /// Does a step of a merge that appends owe. Waits for a millisecond at most. Says whether one was owed.
    pub(in crate::append_log) fn pay(&mut self) -> bool {
        if self.owed_steps == 0 {
            return false;
        }
        self.owed_steps -= 1;
        if self.levels.standing() <= LEVELS_MAX || self.step(true).is_err() {
            self.owed_steps = 0;
        }
        true
    }

    /// Does some steps of merges, where levels have become many.
    pub(in crate::append_log) fn catch_up(&mut self) {
        self.owed_steps = self.owed_steps.saturating_sub(STEPS_MAX);
        for _ in 0..STEPS_MAX {
            if self.levels.standing() <= LEVELS_MAX || self.step(true).is_err() {
                return;
            }
        }
        self.begin_next();
    }

    /// If the last step has ended a merge, or this one does, the next one begins.
    fn begin_next(&mut self) {
        let _ = self.step(false);
        if !self.levels.is_merging() {
            let _ = self.step(false);
        }
    }

    /// Whether levels are so many that small buckets are not to be packed until some are merged.
    pub(super) fn has_too_many_levels(&self) -> bool {
        self.levels.standing() > 2 * LEVELS_MAX || self.levels.len() > 3 * LEVELS_MAX
    }

    /// Takes the memory back that merges and reading need and do not have.
    fn save_up(&mut self) {
        if !self.writes || self.is_lent || !self.loaded.is_empty() {
            return;
        }
        let held = self.merging_bytes();
        let wanted = self.merge_bytes().saturating_sub(held);
        // Bit by bit, if there is not enough: nothing else leaves so much free at once as much of it may be.
        let spare = self.account.available().saturating_sub(self.account.limit() / 16);
        let more = wanted.min(spare);
        if more > 0 {
            self.purse.try_reserve_more(more);
        }
    }
}

impl Drop for PackedState {
    fn drop(&mut self) {
        self.levels.give_up();
        self.levels.wait_to_leave(DROP_MOST);
    }
}
