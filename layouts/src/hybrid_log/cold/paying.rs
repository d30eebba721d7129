//! When records move down and levels merge, and who pays for it: each new entry of the index, and each tombstone, does a
//! step.
//!
//! A step is as long as it has to be for the work to be over before the index has its part of the memory, and no longer
//! than [`FUEL_MAX`]. Where memory has no room for one entry more, the call goes on until it has, which is counted as a
//! stall. It ends with the part that is merged: if there is no room then and more is to be merged, the call fails with
//! [`ErrorKind::Backpressure`], and the next one goes on. So no call waits for a whole merge.
//!
//! Memory for the work is saved up before it begins, a page with each step, and kept from then on: only a call that reads
//! or grows a value has it for the moment. So the index cannot grow into it. Where directories of runs take what is left
//! for them, no more records move, and the index refuses new keys; tombstones move in what was kept, and levels merge.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Instant;

use alluvium_pagestore::{Error, ErrorKind, MemoryKind, Result};

use super::judge::{NewestRecords, is_never_hot};
use super::moving::{ColdMove, ColdMoveStep, booked_for};
use super::saving::saving;
use super::share::INDEX_PERCENT_MAX;
use super::{ColdTier, DIRECTORY_BYTES, own_memory};
use crate::hybrid_log::index::IndexHash;
use crate::hybrid_log::log::Log;
use crate::hybrid_log::stored::StoredSegments;
use crate::runs::{ABOVE_MAX, BoxedJudge, HelpedStep, RecordView};
use crate::support::nanos_since;

/// One part in so many is left for directories of runs and the table of segments, which grow, and for what the index
/// grows while the work that it waits for goes on.
const GROWING_SHARE: u64 = 8;
/// They begin to when all but one part in so many of that is used.
const BEGIN_SHARE: u64 = 8;
/// While an index with few entries has more than records begin to move with, one new entry in so many looks at a segment.
const JOIN_REST: u32 = 16;
/// Bytes of records that a step looks at, at least and at most. At 32 bytes a record, and some 150 ns each, the longest
/// takes less than a millisecond.
const FUEL_MIN: u64 = 1 << 10;
pub(super) const FUEL_MAX: u64 = 128 << 10;
/// Those of a step of a tick, and how many records that is, at 32 bytes each.
const FUEL_TICK: u64 = 8 << 10;
pub(in crate::hybrid_log) const RECORDS_TICK: usize = 256;
/// What an entry of the index takes, about.
pub(super) const ENTRY_BYTES: u64 = 24;
/// With nothing to do, or after failures, so many new entries come before it is looked again.
const REST: u32 = 256;
/// After so many steps that saved no memory up, steps are fewer: others take what pages give up.
const SAVING_MAX: u32 = 256;
/// After the first failure it is so many.
const REST_FAILED: u32 = 8;
/// While nothing is to be done but what a helper does, it is so many.
const REST_HELPED: u32 = 8;
/// Records move beside a merge until there are so many levels.
const LEVELS_MAX: usize = 2 * ABOVE_MAX;

/// After work that has no memory, again and again, it is so many times as many at most; this is the power of two.
const REST_POWER_MAX: u32 = 4;
/// After a move that found too little, new entries come that are one part in so many of all.
const NOTHING_SHARE: u64 = 16;
/// The same after more than one such move in a row.
const VAIN_SHARE: u64 = 4;
/// After a needed move that found nothing so many more records come to storage, at least.
const VAIN_RECORDS: u64 = 64;

/// A call that has no room merges so many parts at most, or so many bytes of records if that is more than one: small levels
/// are merged as a whole.
const CALL_PARTS: u64 = 4;
const CALL_BYTES: u64 = 8 << 20;

/// What a call has seen that has no room without moves or merges.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallInNeed {
    /// When it found that.
    since: Instant,
    /// Parts of merges that had ended by then, and bytes that merges had read.
    merges: u64,
    read_bytes: u64,
}

/// How soon a step has to have an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum StepUrgency {
    /// There is time.
    Later,
    /// The index has its part: a step waits for a helper that merges, a moment.
    Soon,
    /// Memory has no room for one entry more, or one tombstone: memory for the work is made free at once.
    Now,
}

/// What a step came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StepOutcome {
    /// Something was done.
    Something,
    /// Memory for what is to be done is being saved up; it has become more, or not.
    Saving { is_more: bool },
    /// A helper merges, and there is nothing else to do.
    Waiting,
    /// There is nothing to do, or no memory to do it with.
    Nothing,
}

impl ColdTier {
    /// Whether a move goes on, or levels are to be merged.
    pub fn is_behind(&self) -> bool {
        self.moving.is_some() || self.levels.is_behind()
    }

    /// Whether a move or merge goes on.
    pub(super) fn is_working(&self) -> bool {
        self.moving.is_some() || self.levels.is_merging()
    }

    /// Whether a move copies records, and so passes over what it cannot read.
    fn is_gathering(&self) -> bool {
        self.moving.as_ref().is_some_and(|moving| moving.is_gathering())
    }

    /// Whether there are so many levels that none comes before a merge has ended. What parts of a merge have become does not
    /// count.
    pub(super) fn has_many_levels(&self) -> bool {
        self.levels.is_helped() && self.levels.len() - self.levels.parted() >= LEVELS_MAX
    }

    /// Whether three quarters of the room for tombstones are used: then calls wait for a helper that merges.
    fn is_short_of_graves(&self) -> bool {
        4 * (self.buried.len() + self.going.len()) >= 3 * self.buried_max
    }

    /// Whether a call waits for a helper that merges.
    fn is_waited_for(&self, need: StepUrgency) -> bool {
        need >= StepUrgency::Soon || self.is_short_of_graves()
    }

    /// Whether levels are merged next, and no records move. After a merge that has failed they may, and beside one on a
    /// helper's thread, where memory has room for both.
    fn is_merge_next(&self) -> bool {
        let may_move = self.merge_has_failed && (self.wants_move || self.wants_to_bury())
            || self.merge_rest > 0 && !self.levels.is_merging();
        match self.work.overlaps {
            true => self.has_many_levels() && self.levels.is_behind() && !may_move,
            false => self.levels.is_merging() || self.levels.is_behind() && !may_move,
        }
    }

    /// Whether a move begins: records or tombstones are to move, and levels are not merged next.
    fn may_begin_move(&self) -> bool {
        let wants = self.wants_move || self.wants_to_bury();
        wants && !self.is_loading && !self.is_merge_next()
    }

    /// Whether a merge that is due may begin on the helper's thread.
    fn may_begin_merge(&self) -> bool {
        match &self.moving {
            // Of a level that is being left the latest touch is not known.
            Some(moving) => self.work.overlaps && !moving.is_leaving() && self.levels.is_behind(),
            None if self.work.overlaps => self.levels.is_behind(),
            None => self.is_merge_next(),
        }
    }

    /// Has levels be merged early for a move that found no memory, if that gives some back. Says whether they are to be.
    fn may_merge_early(&mut self, error: &Error) -> bool {
        let is_short = error.kind() == ErrorKind::OverBudget && self.moving.is_none();
        is_short && !self.levels.is_behind() && self.levels.merge_early(self.live())
    }

    /// What came of a merge's step on a helper says when the next one is worth it: a merge that was given up does not
    /// begin again at once.
    fn rest_after(&mut self, merged: &Result<StepOutcome>) {
        let ended = self.levels.stats_merges();
        if std::mem::replace(&mut self.merges_ended, ended) < ended {
            self.merges_given_up = 0;
        }
        match merged {
            Ok(StepOutcome::Something) => self.shares_failed = 0,
            Ok(_) => {}
            // Nothing was begun.
            Err(error) if error.kind() == ErrorKind::OverBudget => {}
            Err(_) if self.levels.is_merging() => {
                self.merge_rest = REST_FAILED << self.shares_failed.min(3);
                self.shares_failed += 1;
            }
            Err(_) => {
                self.merge_rest = REST_FAILED << self.merges_given_up.min(7);
                self.merges_given_up += 1;
            }
        }
    }

    /// What came of a step says when the next one is worth it.
    fn note(&mut self, stepped: &Result<StepOutcome>) {
        match stepped {
            Ok(StepOutcome::Something | StepOutcome::Saving { is_more: true }) => {
                (self.failed_in_row, self.saved_nothing) = (0, 0);
            }
            // A page that leaves memory for it takes several steps.
            Ok(StepOutcome::Saving { is_more: false }) => {
                self.saved_nothing += 1;
                self.rest = if self.saved_nothing < SAVING_MAX { 0 } else { REST_FAILED };
            }
            Ok(StepOutcome::Waiting) => self.rest = REST_HELPED,
            Ok(StepOutcome::Nothing) if self.entries_max.is_some() => {}
            // A merge that failed is tried again after some steps.
            Ok(StepOutcome::Nothing) if self.merge_rest > 0 => self.rest = REST_HELPED,
            Ok(StepOutcome::Nothing) => self.rest = REST,
            // It has to wait until others give memory back. Nothing was begun.
            Err(error) if error.kind() == ErrorKind::OverBudget => {
                self.rest = REST << self.failed_in_row.min(REST_POWER_MAX);
                self.failed_in_row += 1;
                self.failed += 1;
            }
            // A move goes on behind what it could not read.
            Err(error) if error.kind() != ErrorKind::Backpressure && self.is_gathering() => {
                self.failed += 1;
            }
            Err(error) => {
                self.rest = match error.kind() {
                    ErrorKind::Io => (REST_FAILED << self.failed_in_row.min(5)).min(REST),
                    // For a device that does nothing a step waits long.
                    _ => REST,
                };
                self.failed_in_row += 1;
                self.failed += 1;
            }
        }
    }

    /// The call that has no room, which is noted when it finds that.
    fn call_in_need(&mut self) -> CallInNeed {
        let (merges, read_bytes) =
            (self.levels.stats_merges(), self.levels.stats_merge_read_bytes());
        let begun = || CallInNeed { since: Instant::now(), merges, read_bytes };
        *self.in_need.get_or_insert_with(begun)
    }

    /// Whether the call that has no room has merged its part here, and so leaves what is yet to be merged to the next.
    fn has_merged_its_part(&self) -> bool {
        #[cfg(test)]
        if self.merges_all_at_once {
            return false;
        }
        let merged = |call: CallInNeed| {
            let read = self.levels.stats_merge_read_bytes() - call.read_bytes;
            let part = self.levels.part_bytes(&self.work.runs);
            let most = (CALL_PARTS * part).min(part.max(CALL_BYTES));
            self.levels.stats_merges() > call.merges && read >= most
        };
        !self.levels.is_helped() && self.levels.is_behind() && self.in_need.is_some_and(merged)
    }

    /// What a step has given back is kept for the next: the index would take it.
    pub(super) fn keep_purse(&mut self) {
        if self.entries_max.is_some() {
            // The little memory of tests has no room for it beside pages.
            self.purse.give_back();
        } else if self.moved + self.loaded > 0 || self.is_working() {
            let lacking = self.work_bytes().saturating_sub(self.held_bytes());
            self.purse.try_reserve_more(lacking.min(self.account.available()));
        }
    }

    /// Whether there may be records to move, where so many entries lead to storage.
    fn may_move_of(&mut self, stored: u64) -> bool {
        let Some(before) = &mut self.stored_in_vain else { return true };
        *before = stored.min(*before);
        let least = (self.work.batch_records as u64 / VAIN_SHARE).max(VAIN_RECORDS);
        stored > *before + least
    }

    /// Bytes of records that are to be looked at for what goes on, and for a move after that, about.
    fn left_bytes(&self) -> u64 {
        match &self.moving {
            Some(moving) => moving.left_bytes(self),
            None if self.levels.is_helped() => 2 * self.work.batch_bytes as u64,
            None => self.levels.left_bytes() + 2 * self.work.batch_bytes as u64,
        }
    }
}

impl Log {
    /// So many keys are going to be there. With a tier some have no entry: those that have one may be alike in as many bits.
    pub fn expect(&mut self, keys: u64) {
        self.index.expect(keys);
    }

    /// Pays for an entry of this hash, which the index is to take.
    #[inline]
    pub fn pay_for_entry(&mut self, hash: IndexHash) {
        let Some(cold) = &mut self.cold else { return };
        if self.sizes.joins_always {
            self.index.shrink(1);
        }
        if cold.rest > 0 {
            cold.rest -= 1;
            return;
        }
        let is_enough = cold.entries_max.is_some_and(|most| self.index.len() > most);
        let is_due = cold.wants_move || is_enough || cold.is_behind();
        if is_due || !self.index.has_room_for(hash) {
            self.pay_some();
        }
    }

    #[cold]
    #[inline(never)]
    fn pay_some(&mut self) {
        let (has, most) = (self.index_bytes(), self.index_bytes_max());
        let Some(cold) = &mut self.cold else { return };
        let is_large = has > begins_at(most);
        if is_large && self.index.len() >= cold.nothing_until && !cold.wants_move {
            (cold.wants_move, cold.moved_before) = (true, cold.moved);
        }
        if is_large && cold.entries_max.is_none() && (has > most || self.index.is_sparse()) {
            cold.join_rest = cold.join_rest.checked_sub(1).unwrap_or(JOIN_REST - 1);
            if cold.join_rest == 0 || has > most {
                // Records that have moved, or were deleted, may have left few entries in some.
                self.index.shrink(1);
            }
        }
        let steps = most.saturating_sub(has) / ENTRY_BYTES;
        match cold.entries_max {
            Some(entries) => {
                cold.wants_move |= self.index.len() > entries;
                self.pay_within(1 << 20, StepUrgency::Later);
            }
            // The index has its part: it takes that of pages while the work is not over.
            None => self.pay_within(
                steps,
                if has >= most { StepUrgency::Soon } else { StepUrgency::Later },
            ),
        }
    }

    /// Pays for a tombstone.
    pub fn pay_for_grave(&mut self) {
        let Some(cold) = &mut self.cold else { return };
        if cold.is_behind() || cold.wants_to_bury() {
            let steps = cold.buried_max.saturating_sub(cold.buried.len() + cold.going.len());
            self.pay_within(steps as u64, StepUrgency::Later);
        }
    }

    /// A step that has what is to be done over within so many steps. What fails is tried again later: that is told to
    /// nobody but by reads, space and the index.
    fn pay_within(&mut self, steps: u64, need: StepUrgency) {
        let left = self.cold.as_ref().map_or(0, |cold| cold.left_bytes());
        let fuel = (2 * left / steps.max(1)).clamp(FUEL_MIN, FUEL_MAX);
        let stepped = self.step_cold(fuel, need);
        let Some(cold) = &mut self.cold else { return };
        match stepped {
            // Each entry waits.
            Ok(StepOutcome::Waiting) if need >= StepUrgency::Soon => cold.rest = 0,
            stepped => cold.note(&stepped),
        }
    }

    /// Does what may be done while nobody waits. Says whether something was. What fails is tried again later.
    pub fn tick_cold(&mut self) -> bool {
        self.cold.iter_mut().for_each(|cold| _ = cold.levels.has_left(false));
        let Some(cold) = self.cold.as_mut().filter(|cold| cold.is_behind()) else {
            return false;
        };
        // Nobody calls so often that it is too often.
        cold.rest = cold.rest.saturating_sub(REST / 4);
        if cold.rest > 0 {
            return false;
        }
        let stepped = self.step_cold(FUEL_TICK, StepUrgency::Later);
        self.cold.iter_mut().for_each(|cold| cold.note(&stepped));
        stepped.is_ok_and(|stepped| stepped == StepOutcome::Something)
    }

    /// A call begins that wants an entry of the index or a tombstone.
    #[inline]
    pub(in crate::hybrid_log) fn begin_call(&mut self) {
        if let Some(cold) = &mut self.cold {
            cold.in_need = None;
        }
    }

    /// Moves records down although there are few, because memory has no room for an entry, or the list of tombstones none.
    /// Says whether something was done; the caller looks whether that is enough.
    ///
    /// # Errors
    /// Those of storage. [`ErrorKind::Backpressure`] if the [call](Log::begin_call) has merged a part, and more is to be
    /// merged before records can move.
    pub fn must_move_down(&mut self) -> Result<bool> {
        let stored = self.index.stored();
        let Some(cold) = &mut self.cold else { return Ok(false) };
        cold.call_in_need();
        // All of storage is looked at for a move: not again for what was found to stay there.
        let is_useful = cold.moving.is_some() || cold.may_move_of(stored);
        cold.wants_move |= is_useful;
        cold.takes_few = true;
        let stalls = self.stats.stalls;
        let stepped = self.step_cold(FUEL_MAX, StepUrgency::Now);
        self.cold.iter_mut().for_each(|cold| cold.takes_few = cold.entries_max.is_some());
        // One that waits for a helper is counted there.
        let is_counted = self.stats.stalls > stalls || matches!(stepped, Ok(StepOutcome::Nothing));
        self.stats.stalls += u64::from(!is_counted);
        match stepped {
            Ok(StepOutcome::Waiting) => self.is_merge_on_its_way().map(|()| true),
            Ok(stepped) => Ok(stepped != StepOutcome::Nothing),
            Err(error) if error.kind() == ErrorKind::OverBudget => Ok(false),
            // A move goes on behind what could not be read, until too much could not.
            Err(error) => match &mut self.cold {
                Some(cold) if error.kind() != ErrorKind::Backpressure && cold.is_gathering() => {
                    cold.failed += 1;
                    Ok(true)
                }
                Some(cold) if error.kind() == ErrorKind::Corrupt => {
                    // It was given up.
                    cold.stored_in_vain = Some(stored);
                    Err(error)
                }
                _ => Err(error),
            },
        }
    }

    /// Whether a call without room has merged a part, and the next one goes on with that.
    pub(in crate::hybrid_log) fn has_merged_its_part(&self) -> bool {
        self.cold.as_ref().is_some_and(|cold| cold.has_merged_its_part())
    }

    /// Does a step of the merge that goes on or is due, or is due early, because memory has no room. Says whether one was.
    ///
    /// # Errors
    /// Those of storage.
    pub(in crate::hybrid_log) fn must_merge(&mut self) -> Result<bool> {
        let Some(cold) = &mut self.cold else { return Ok(false) };
        let live = cold.live();
        let is_behind = cold.levels.is_behind() || cold.levels.merge_early(live);
        if is_behind { self.must_move_down() } else { Ok(false) }
    }

    /// Refuses to wait for a helper that merges any longer, in one call.
    fn is_merge_on_its_way(&mut self) -> Result<()> {
        let patience = self.sizes.patience;
        let Some(cold) = &mut self.cold else { return Ok(()) };
        // The next call looks when it begins.
        cold.rest = 0;
        if cold.call_in_need().since.elapsed() < patience {
            return Ok(());
        }
        let message = format!("a merge of sorted runs has not ended within {patience:?}");
        Err(Error::new(ErrorKind::Backpressure, message).with("state", &self.name))
    }

    /// A step of the move or merge that goes on, or the beginning of one.
    pub(super) fn step_cold(&mut self, fuel: u64, need: StepUrgency) -> Result<StepOutcome> {
        let Some(mut cold) = self.cold.take() else { return Ok(StepOutcome::Nothing) };
        cold.saved_before = cold.purse.bytes();
        if cold.is_working() {
            // For the directories of what is written.
            cold.purse.give_back();
        }
        // Keys are the user's: to compare them may panic.
        let stepped = catch_unwind(AssertUnwindSafe(|| {
            cold.wait_for_left()?;
            if !cold.going.is_empty() && cold.moving.is_none() {
                // A panic has lost the move.
                cold.take_graves_back();
            }
            match cold.levels.is_helped() {
                true => self.step_beside_helper(&mut cold, fuel, need),
                false => self.step_here(&mut cold, fuel, need),
            }
        }));
        cold.drop_expired_levels();
        cold.keep_purse();
        cold.book_left();
        self.cold = Some(cold);
        self.keep_for_work();
        self.leave_useless_cold();
        let stepped = stepped.unwrap_or_else(|panic| resume_unwind(panic));
        if stepped.as_ref().is_err_and(|error| error.kind() == ErrorKind::OverBudget) {
            self.leave_cold_without_memory();
        }
        stepped.map_err(|error| error.with("state", &self.name))
    }

    fn step_here(
        &mut self,
        cold: &mut ColdTier,
        fuel: u64,
        need: StepUrgency,
    ) -> Result<StepOutcome> {
        match self.move_or_merge(cold, fuel, need) {
            Err(error) if cold.may_merge_early(&error) => self.step_merge(cold, fuel, need),
            stepped => stepped,
        }
    }

    /// A step of the move that goes on, or of the merge that is next if it is done here, or the beginning of a move.
    fn move_or_merge(
        &mut self,
        cold: &mut ColdTier,
        fuel: u64,
        need: StepUrgency,
    ) -> Result<StepOutcome> {
        if let Some(moving) = cold.moving.take() {
            return self.step_this_move(cold, moving, fuel);
        }
        if cold.begin_burial()? {
            return Ok(StepOutcome::Something);
        }
        if cold.is_merge_next() {
            if cold.levels.is_helped() {
                return Ok(StepOutcome::Nothing);
            }
            match self.step_merge(cold, fuel, need) {
                // A merge may take more than a move.
                Err(error) if error.kind() == ErrorKind::OverBudget && cold.may_begin_move() => {}
                merged => return merged,
            }
        } else if !cold.may_begin_move() {
            return Ok(StepOutcome::Nothing);
        }
        cold.merge_has_failed = false;
        self.begin_move(cold, need)
    }

    /// A helper merges; what moves does so here.
    fn step_beside_helper(
        &mut self,
        cold: &mut ColdTier,
        fuel: u64,
        need: StepUrgency,
    ) -> Result<StepOutcome> {
        cold.levels.has_left(false);
        let merged = match cold.merge_rest {
            0 => self.step_merge_away(cold, need, false),
            _ => {
                cold.merge_rest -= 1;
                Ok(StepOutcome::Nothing)
            }
        };
        let rests = cold.merge_rest > 0 && matches!(merged, Ok(StepOutcome::Nothing));
        cold.rest_after(&merged);
        let moved = match self.move_or_merge(cold, fuel, need) {
            // A merge that goes on gives memory back when it is over.
            Err(error)
                if error.kind() == ErrorKind::OverBudget
                    && matches!(merged, Ok(StepOutcome::Something | StepOutcome::Waiting))
                    && cold.moving.is_none() =>
            {
                StepOutcome::Nothing
            }
            Err(error) if cold.may_merge_early(&error) => {
                let merged = self.step_merge_away(cold, need, true);
                cold.rest_after(&merged);
                return merged;
            }
            moved => moved?,
        };
        match (moved, merged) {
            // What moves is not held up by a merge that fails, which is tried again later.
            (StepOutcome::Something, Err(error)) => {
                cold.failed += u64::from(error.kind() != ErrorKind::OverBudget);
                Ok(moved)
            }
            // Where room must be made and nothing can move, a merge does not rest.
            (StepOutcome::Nothing, _) if need >= StepUrgency::Soon && rests => {
                cold.merge_rest = 0;
                self.step_merge_away(cold, need, true)
            }
            // Where no records can move either, the merge is waited for.
            (StepOutcome::Nothing, Ok(StepOutcome::Waiting)) if cold.is_waited_for(need) => {
                let merged = self.step_merge_away(cold, need, true);
                cold.rest_after(&merged);
                merged
            }
            (StepOutcome::Nothing, merged) => merged,
            (moved, merged) => merged.map(|_| moved),
        }
    }

    /// Has the helper's merge go on, or one that is due begin. Waits for it a moment, if it may and somebody waits for the
    /// merge.
    pub(super) fn step_merge_away(
        &mut self,
        cold: &mut ColdTier,
        need: StepUrgency,
        may_wait: bool,
    ) -> Result<StepOutcome> {
        if !cold.levels.is_merging() {
            if !cold.may_begin_merge() {
                return Ok(StepOutcome::Nothing);
            }
            // Beside a move no page goes for a merge, which can wait: its memory was saved up before the move began.
            if cold.moving.is_some() && !self.has_saved_for_merge(cold) {
                return Ok(StepOutcome::Nothing);
            }
            let is_next = cold.moving.is_none() && cold.is_merge_next();
            let need = if is_next { need } else { StepUrgency::Later };
            if let Some(saving) = self.save_up_for_merge(cold, need)? {
                return Ok(saving);
            }
        }
        let (record_type, runs, gone) = (cold.record_type, cold.run_sizes(), cold.live.gone());
        let is_patient = may_wait && cold.is_waited_for(need) && cold.moving.is_none();
        let start = is_patient.then(Instant::now);
        let helped = cold.levels.step_away(
            (runs, cold.work.read_bytes),
            is_patient,
            &mut |is_last| -> BoxedJudge {
                Box::new(NewestRecords { record_type, is_last, is_hot: is_never_hot, gone })
            },
        );
        cold.merge_has_failed = helped.is_err();
        self.stats.stalls += u64::from(is_patient);
        cold.times.waiting += start.map_or(0, nanos_since);
        helped.map(|helped| match helped {
            HelpedStep::Something => StepOutcome::Something,
            HelpedStep::Waiting => StepOutcome::Waiting,
            HelpedStep::Nothing => StepOutcome::Nothing,
        })
    }

    fn step_this_move(
        &mut self,
        cold: &mut ColdTier,
        moving: Box<ColdMove>,
        fuel: u64,
    ) -> Result<StepOutcome> {
        match self.step_move(cold, moving, fuel)? {
            ColdMoveStep::On(moving) => {
                cold.moving = Some(moving);
                Ok(StepOutcome::Something)
            }
            ColdMoveStep::Done => {
                // Small moves go on until as much has moved as one of the wanted size moves.
                let (records, wanted) = (cold.work.batch_records, cold.wanted.batch_records);
                let has_moved = cold.moved - cold.moved_before >= wanted as u64;
                cold.wants_move &= records < wanted && !has_moved;
                (cold.vain_in_row, cold.stored_in_vain) = (0, None);
                cold.judge_share();
                // Keys that come in the order of their hashes split segments as deep as all of them want.
                self.index.expect_as_well(cold.live());
                Ok(StepOutcome::Something)
            }
            ColdMoveStep::Nothing => {
                (cold.wants_move, cold.found_nothing) = (false, true);
                cold.moves_in_vain += 1;
                cold.vain_in_row += 1;
                if cold.takes_few && cold.entries_max.is_none() {
                    cold.stored_in_vain = Some(self.index.stored());
                }
                if cold.entries_max.is_none() {
                    // Each move looks at all that is on storage.
                    let share = if cold.vain_in_row > 1 { VAIN_SHARE } else { NOTHING_SHARE };
                    cold.nothing_until = self.index.len() + self.index.len() / share;
                }
                Ok(StepOutcome::Nothing)
            }
        }
    }

    fn begin_move(&mut self, cold: &mut ColdTier, need: StepUrgency) -> Result<StepOutcome> {
        // Records move only while what moves and merges after them take is there too, so that tombstones always can.
        let takes_less = cold.wants_to_bury() || cold.entries_max.is_some();
        // Where there is no room for both, one is done at a time.
        let alone = |cold: &ColdTier| cold.work_alone_bytes() - DIRECTORY_BYTES / 2;
        self.fit_work(cold, |cold| {
            cold.graves_lacking() + if takes_less { cold.move_bytes() } else { alone(cold) }
        });
        let (graves, needed) = (cold.graves_lacking(), cold.move_bytes());
        let saved = cold.saved_before;
        let merging = if cold.work.overlaps { cold.levels.merging_bytes() } else { 0 };
        let all = cold.work_bytes().saturating_sub(merging);
        let alone = alone(cold).min(all);
        let wanted = match (takes_less, need) {
            (true, StepUrgency::Now) => needed,
            (true, _) => needed + DIRECTORY_BYTES,
            (false, StepUrgency::Now) => alone,
            (false, _) if self.can_save_up(cold, all + graves + self.keep_bytes()) => all,
            (false, _) => alone,
        };
        let wanted = wanted.max(needed);
        if !self.save_up(cold, (wanted + graves, "records that move to runs"), need)? {
            return Ok(saving(cold, saved));
        }
        cold.found_nothing = false;
        cold.purse.give_some_back(needed + graves);
        cold.grave_memory.keep(graves);
        let memory = booked_for(cold);
        cold.moving = Some(Box::new(ColdMove::begin(cold, memory)));
        Ok(StepOutcome::Something)
    }

    fn step_merge(
        &mut self,
        cold: &mut ColdTier,
        fuel: u64,
        need: StepUrgency,
    ) -> Result<StepOutcome> {
        if need == StepUrgency::Now && cold.has_merged_its_part() {
            let message = "memory has no room before more levels of sorted runs are merged";
            return Err(Error::new(ErrorKind::Backpressure, message));
        }
        if !cold.levels.is_merging()
            && let Some(saving) = self.save_up_for_merge(cold, need)?
        {
            return Ok(saving);
        }
        let (record_type, runs) = (cold.record_type, cold.run_sizes());
        let read_bytes = cold.work.read_bytes;
        let log = &*self;
        let is_hot = |record: &RecordView<'_>| log.has_in_memory(record_type, record);
        let gone = cold.live.gone();
        let judge_of = |is_last| NewestRecords { record_type, is_last, is_hot: &is_hot, gone };
        let start = Instant::now();
        let stepped = cold.levels.step(fuel, runs, read_bytes, judge_of);
        cold.times.merging += nanos_since(start);
        cold.merge_has_failed = stepped.is_err();
        match stepped? {
            true => Ok(StepOutcome::Something),
            false => Ok(StepOutcome::Nothing),
        }
    }

    /// Bytes of the index without guides.
    pub(super) fn index_bytes(&self) -> u64 {
        let guides = self.cold.as_ref().map_or(0, |cold| cold.guide_bytes());
        self.own_bytes_for(MemoryKind::Index) - guides
    }

    /// Bytes of buffers and tables, and of what moves and merges take in all the memory that there is for this state, or
    /// at least.
    fn beside_index(&self, is_least: bool) -> u64 {
        let cold = self.cold.as_deref();
        let work_of = |cold: &ColdTier| {
            let work = if is_least { cold.least_bytes() } else { cold.wanted_bytes() };
            work + cold.graves_lacking()
        };
        let (work, held) = cold.map_or((0, 0), |cold| (work_of(cold), cold.held_bytes()));
        let beside = [MemoryKind::Buffers, MemoryKind::Tables];
        let beside: u64 = beside.map(|kind| self.own_bytes_for(kind)).iter().sum();
        beside.saturating_sub(held) + work
    }

    /// Whether the work of moves and merges has room beside the index with so many bytes more, with some for directories;
    /// or the least work, if that is meant.
    pub(super) fn has_room_for_work(&self, more: u64, is_least: bool) -> bool {
        let limit = match is_least {
            true => self.account.attainable_for_work(),
            false => self.account.attainable(),
        };
        let growing = limit / GROWING_SHARE / 2;
        let index = self.index_bytes() + more;
        index + self.beside_index(is_least) + self.floor_bytes() + growing <= limit
    }

    /// The index leaves room for a move, which makes more for it, and for pages.
    pub(super) fn index_bytes_max(&self) -> u64 {
        // Other states hold the rest, and cannot give it up.
        let limit = self.account.attainable();
        let percent = self.cold.as_ref().map_or(INDEX_PERCENT_MAX, |cold| cold.share.percent());
        let beside = self.beside_index(false);
        let (most, growing) = index_share(limit, beside, self.floor_bytes(), percent);
        // Where several states grow, each counts what the others could give: filters are to have room beside them.
        let own = own_memory(&self.account).min(limit);
        let most = most.min((limit + own) / 2 * percent / 100);
        let tables = self.stored.as_ref().map_or(0, |stored| {
            stored.tables_bytes_for(most / ENTRY_BYTES, self.sizes.segment_bytes)
        });
        let has = self.stored.as_ref().map_or(0, StoredSegments::tables_bytes) + growing / 2;
        most.saturating_sub(tables.saturating_sub(has))
    }
}

/// Bytes that the index may have of so many, beside so many for buffers, tables and work, and what pages have at least:
/// so many hundredths at most. And those that are left for tables, which grow while the index does not shrink.
pub(super) fn index_share(limit: u64, beside: u64, floor: u64, percent: u64) -> (u64, u64) {
    let growing = limit / GROWING_SHARE;
    let most = limit.saturating_sub(beside + growing + floor);
    (most.min(limit * percent / 100), growing)
}

/// Bytes of the index with which records begin to move, of the most that it may have.
pub(super) fn begins_at(most: u64) -> u64 {
    most - most / BEGIN_SHARE
}
