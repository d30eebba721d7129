//! When records move down and levels merge, and who pays for it: each new entry of the index, and each tombstone, does a
//! step.
//!
//! A step is as long as it has to be for the work to be over before the index has its part of the memory, and no longer
//! than [`FUEL_MAX`]. So no call waits for a whole move or merge, unless memory has no room for one entry more: then the
//! call goes on until it has, which is counted as a stall.
//!
//! Memory for the work is saved up before it begins, a page with each step, and kept from then on: only a call that reads
//! or grows a value has it for the moment. So the index cannot grow into it. Where directories of runs take what is left
//! for them, no more records move, and the index refuses new keys; tombstones move and levels merge in what was kept.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Instant;

use alluvium_pagestore::{Error, ErrorKind, MemoryKind, Result};

use super::judge::{Newest, is_never_hot};
use super::moving::{Move, Moved, booked_for};
use super::{Cold, DIRECTORY_BYTES};
use crate::hybrid_log::index::IndexHash;
use crate::hybrid_log::log::{Log, Needed};
use crate::hybrid_log::stored::Stored;
use crate::runs::{ABOVE_MAX, BoxedJudge, Helped, RecordView};

/// Records move down before the index has more than one part in so many of the memory.
const INDEX_SHARE: u64 = 2;
/// One part in so many is left for directories of runs and the table of segments, which grow, and for what the index
/// grows while the work that it waits for goes on.
const GROWING_SHARE: u64 = 8;
/// They begin to when all but one part in so many of that is used.
const BEGIN_SHARE: u64 = 8;
/// Bytes of records that a step looks at, at least and at most. At 32 bytes a record, and some 150 ns each, the longest
/// takes less than a millisecond.
const FUEL_MIN: u64 = 1 << 10;
const FUEL_MAX: u64 = 128 << 10;
/// Those of a step of a tick, and how many records that is, at 32 bytes each.
const FUEL_TICK: u64 = 8 << 10;
pub(in crate::hybrid_log) const RECORDS_TICK: usize = 256;
/// What an entry of the index takes, about.
const ENTRY_BYTES: u64 = 24;
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

/// What a step came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stepped {
    /// Something was done.
    Something,
    /// Memory for what is to be done is being saved up; it has become more, or not.
    Saving { is_more: bool },
    /// A helper merges, and there is nothing else to do.
    Waiting,
    /// There is nothing to do, or no memory to do it with.
    Nothing,
}

impl Cold {
    /// Whether a move goes on, or levels are to be merged.
    pub fn is_behind(&self) -> bool {
        self.moving.is_some() || self.levels.is_behind()
    }

    /// Whether a move or merge goes on.
    pub(super) fn is_working(&self) -> bool {
        self.moving.is_some() || self.levels.is_merging()
    }

    /// Whether there are so many levels that none comes before a merge has ended.
    pub(super) fn has_many_levels(&self) -> bool {
        self.levels.is_helped() && self.levels.len() >= LEVELS_MAX
    }

    /// Whether three quarters of the room for tombstones are used: then calls wait for a helper that merges.
    fn is_short_of_graves(&self) -> bool {
        4 * (self.buried.len() + self.going.len()) >= 3 * self.buried_max
    }

    /// Whether levels are merged next, and no records move. After a merge that has failed they may, and beside one on a
    /// helper's thread, where memory has room for both.
    fn is_merge_next(&self) -> bool {
        let may_move = self.merge_has_failed && (self.wants_move || self.wants_to_bury())
            || self.merge_rest > 0 && !self.levels.is_merging();
        match self.overlaps {
            true => self.has_many_levels() && self.levels.is_behind() && !may_move,
            false => self.levels.is_merging() || self.levels.is_behind() && !may_move,
        }
    }

    /// Whether a merge that is due may begin on the helper's thread.
    fn may_begin_merge(&self) -> bool {
        match &self.moving {
            // Of a level that is being left the latest touch is not known.
            Some(moving) => self.overlaps && !moving.is_leaving() && self.levels.is_behind(),
            None if self.overlaps => self.levels.is_behind(),
            None => self.is_merge_next(),
        }
    }

    /// What came of a merge's step on a helper says when the next one is worth it: a merge that was given up does not
    /// begin again at once.
    fn rest_after(&mut self, merged: &Result<Stepped>) {
        let ended = self.levels.stats_merges();
        if std::mem::replace(&mut self.merges_ended, ended) < ended {
            self.merges_given_up = 0;
        }
        match merged {
            Ok(Stepped::Something) => self.shares_failed = 0,
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
    fn note(&mut self, stepped: &Result<Stepped>) {
        match stepped {
            Ok(Stepped::Something | Stepped::Saving { is_more: true }) => {
                (self.failed_in_row, self.saved_nothing) = (0, 0);
            }
            // A page that leaves memory for it takes several steps.
            Ok(Stepped::Saving { is_more: false }) => {
                self.saved_nothing += 1;
                self.rest = if self.saved_nothing < SAVING_MAX { 0 } else { REST_FAILED };
            }
            Ok(Stepped::Waiting) => self.rest = REST_HELPED,
            Ok(Stepped::Nothing) if self.entries_max.is_some() => {}
            // A merge that failed is tried again after some steps.
            Ok(Stepped::Nothing) if self.merge_rest > 0 => self.rest = REST_HELPED,
            Ok(Stepped::Nothing) => self.rest = REST,
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

    /// What a step has given back is kept for the next: the index would take it.
    fn keep_purse(&mut self) {
        if self.entries_max.is_some() {
            // The little memory of tests has no room for it beside pages.
            self.purse.give_back();
        } else if self.moved > 0 || self.is_working() {
            let lacking = self.work_bytes().saturating_sub(self.held_bytes());
            self.purse.try_reserve_more(lacking.min(self.account.available()));
        }
    }

    /// Bytes of records that are to be looked at for what goes on, and for a move after that, about.
    fn left_bytes(&self) -> u64 {
        match &self.moving {
            Some(moving) => moving.left_bytes(self),
            None if self.levels.is_helped() => 2 * self.batch_bytes as u64,
            None => self.levels.left_bytes() + 2 * self.batch_bytes as u64,
        }
    }
}

impl Log {
    /// So many keys are going to be there. With a tier the index has those that it has room for.
    pub fn expect(&mut self, keys: u64) {
        let most = match &self.cold {
            Some(_) => self.index_bytes_max() / ENTRY_BYTES / 2,
            None => keys,
        };
        self.index.expect(keys.min(most));
    }

    /// Pays for an entry of this hash, which the index is to take.
    #[inline]
    pub fn pay_for_entry(&mut self, hash: IndexHash) {
        let Some(cold) = &mut self.cold else { return };
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
        cold.waits_since = None;
        cold.wants_move |= has > begins_at(most);
        let steps = most.saturating_sub(has) / ENTRY_BYTES;
        match cold.entries_max {
            Some(entries) => {
                cold.wants_move |= self.index.len() > entries;
                self.pay_within(1 << 20, false);
            }
            // The index has its part: it takes that of pages while the work is not over.
            None => self.pay_within(steps, has >= most),
        }
    }

    /// Pays for a tombstone.
    pub fn pay_for_grave(&mut self) {
        let Some(cold) = &mut self.cold else { return };
        cold.waits_since = None;
        if cold.is_behind() || cold.wants_to_bury() {
            let steps = cold.buried_max.saturating_sub(cold.buried.len() + cold.going.len());
            self.pay_within(steps as u64, false);
        }
    }

    /// A step that has what is to be done over within so many steps. What fails is tried again later: that is told to
    /// nobody but by reads, space and the index.
    fn pay_within(&mut self, steps: u64, must: bool) {
        let left = self.cold.as_ref().map_or(0, |cold| cold.left_bytes());
        let fuel = (2 * left / steps.max(1)).clamp(FUEL_MIN, FUEL_MAX);
        let stepped = self.step_cold(fuel, must);
        let Some(cold) = &mut self.cold else { return };
        match stepped {
            Err(error) if must && error.kind() == ErrorKind::OverBudget => cold.rest = REST_FAILED,
            // Each entry waits.
            Ok(Stepped::Waiting) if must => cold.rest = 0,
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
        let stepped = self.step_cold(FUEL_TICK, false);
        self.cold.iter_mut().for_each(|cold| cold.note(&stepped));
        stepped.is_ok_and(|stepped| stepped == Stepped::Something)
    }

    /// Moves records down although there are few, because memory has no room for an entry, or the list of tombstones none.
    /// Says whether something was done; the caller looks whether that is enough.
    ///
    /// # Errors
    /// Those of storage.
    pub fn must_move_down(&mut self) -> Result<bool> {
        let Some(cold) = &mut self.cold else { return Ok(false) };
        (cold.wants_move, cold.takes_few) = (true, true);
        self.stats.stalls += 1;
        let stepped = self.step_cold(FUEL_MAX, true);
        self.cold.iter_mut().for_each(|cold| cold.takes_few = cold.entries_max.is_some());
        match stepped {
            Ok(Stepped::Waiting) => self.is_merge_on_its_way().map(|()| true),
            Ok(stepped) => Ok(stepped != Stepped::Nothing),
            Err(error) if error.kind() == ErrorKind::OverBudget => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Refuses to wait for a helper that merges any longer, in one call.
    fn is_merge_on_its_way(&mut self) -> Result<()> {
        let patience = self.sizes.patience;
        let Some(cold) = &mut self.cold else { return Ok(()) };
        // The next call looks when it begins.
        cold.rest = 0;
        if cold.waits_since.get_or_insert_with(Instant::now).elapsed() < patience {
            return Ok(());
        }
        let message = format!("a merge of sorted runs has not ended within {patience:?}");
        Err(Error::new(ErrorKind::Backpressure, message).with("state", &self.name))
    }

    /// A step of the move or merge that goes on, or the beginning of one.
    fn step_cold(&mut self, fuel: u64, must: bool) -> Result<Stepped> {
        let Some(mut cold) = self.cold.take() else { return Ok(Stepped::Nothing) };
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
                true => self.step_beside_helper(&mut cold, fuel, must),
                false => self.step_here(&mut cold, fuel, must),
            }
        }));
        cold.drop_expired_levels();
        cold.keep_purse();
        cold.book_left();
        self.cold = Some(cold);
        let stepped = stepped.unwrap_or_else(|panic| resume_unwind(panic));
        stepped.map_err(|error| error.with("state", &self.name))
    }

    fn step_here(&mut self, cold: &mut Cold, fuel: u64, must: bool) -> Result<Stepped> {
        match cold.moving.take() {
            Some(moving) => self.step_this_move(cold, moving, fuel),
            None if cold.begin_burial()? => Ok(Stepped::Something),
            None if cold.is_merge_next() => self.step_merge(cold, fuel, must),
            None if cold.wants_move || cold.wants_to_bury() => {
                cold.merge_has_failed = false;
                self.begin_move(cold, must)
            }
            None => Ok(Stepped::Nothing),
        }
    }

    /// A helper merges; what moves does so here.
    fn step_beside_helper(&mut self, cold: &mut Cold, fuel: u64, must: bool) -> Result<Stepped> {
        cold.levels.has_left(false);
        let merged = match cold.merge_rest {
            0 => self.step_merge_away(cold, must),
            _ => {
                cold.merge_rest -= 1;
                Ok(Stepped::Nothing)
            }
        };
        let rests = cold.merge_rest > 0 && matches!(merged, Ok(Stepped::Nothing));
        cold.rest_after(&merged);
        let moved = match cold.moving.take() {
            Some(moving) => self.step_this_move(cold, moving, fuel)?,
            None if cold.begin_burial()? => Stepped::Something,
            None if cold.is_merge_next() => Stepped::Nothing,
            None if cold.wants_move || cold.wants_to_bury() => {
                cold.merge_has_failed = false;
                match (self.begin_move(cold, must), &merged) {
                    // A merge that goes on gives memory back when it is over.
                    (Err(error), Ok(Stepped::Something | Stepped::Waiting))
                        if error.kind() == ErrorKind::OverBudget =>
                    {
                        Stepped::Nothing
                    }
                    (moved, _) => moved?,
                }
            }
            None => Stepped::Nothing,
        };
        match (moved, merged) {
            // What moves is not held up by a merge that fails, which is tried again later.
            (Stepped::Something, Err(error)) => {
                cold.failed += u64::from(error.kind() != ErrorKind::OverBudget);
                Ok(moved)
            }
            // Where room must be made and nothing can move, a merge does not rest.
            (Stepped::Nothing, _) if must && rests => {
                cold.merge_rest = 0;
                self.step_merge_away(cold, must)
            }
            (Stepped::Nothing, merged) => merged,
            (moved, merged) => merged.map(|_| moved),
        }
    }

    /// Has the helper's merge go on, or one that is due begin.
    fn step_merge_away(&mut self, cold: &mut Cold, must: bool) -> Result<Stepped> {
        if !cold.levels.is_merging() {
            if !cold.may_begin_merge() {
                return Ok(Stepped::Nothing);
            }
            // Beside a move no page goes for a merge, which can wait: its memory was saved up before the move began.
            if cold.moving.is_some() && !self.has_saved_for_merge(cold) {
                return Ok(Stepped::Nothing);
            }
            let must = must && cold.moving.is_none() && cold.is_merge_next();
            if let Some(saving) = self.save_up_for_merge(cold, must)? {
                return Ok(saving);
            }
        }
        let (record_type, runs, gone) = (cold.record_type, cold.run_sizes(), cold.live.gone());
        let is_patient = (must || cold.is_short_of_graves()) && cold.moving.is_none();
        let helped = cold.levels.step_away(
            (runs, cold.read_bytes),
            is_patient,
            &mut |is_last| -> BoxedJudge {
                Box::new(Newest { record_type, is_last, is_hot: is_never_hot, gone })
            },
        );
        cold.merge_has_failed = helped.is_err();
        self.stats.stalls += u64::from(is_patient);
        helped.map(|helped| match helped {
            Helped::Something => Stepped::Something,
            Helped::Waiting => Stepped::Waiting,
            Helped::Nothing => Stepped::Nothing,
        })
    }

    /// Whether a merge has memory without a page that goes.
    fn has_saved_for_merge(&self, cold: &Cold) -> bool {
        let needed = cold.levels.due_bytes(cold.run_sizes(), cold.read_bytes) + DIRECTORY_BYTES;
        let keep = self.sizes.headroom_bytes + 2 * self.sizes.frame_bytes;
        cold.purse.bytes() + self.account.available() >= needed + keep
    }

    /// Has memory for the merge that is due, or says that it is being saved up.
    fn save_up_for_merge(&mut self, cold: &mut Cold, must: bool) -> Result<Option<Stepped>> {
        let needed = cold.levels.due_bytes(cold.run_sizes(), cold.read_bytes);
        // What must be done is not put off for the sake of the directories.
        let wanted = if must { needed } else { needed + DIRECTORY_BYTES };
        let saved = cold.saved_before;
        if !self.save_up(cold, (wanted, "a merge of runs"), must)? {
            return Ok(Some(saving(cold, saved)));
        }
        cold.purse.give_some_back(needed);
        Ok(None)
    }

    fn step_this_move(&mut self, cold: &mut Cold, moving: Box<Move>, fuel: u64) -> Result<Stepped> {
        match self.step_move(cold, moving, fuel)? {
            Moved::On(moving) => {
                cold.moving = Some(moving);
                Ok(Stepped::Something)
            }
            Moved::Done => {
                cold.wants_move = false;
                Ok(Stepped::Something)
            }
            Moved::Nothing => {
                cold.wants_move = false;
                Ok(Stepped::Nothing)
            }
        }
    }

    fn begin_move(&mut self, cold: &mut Cold, must: bool) -> Result<Stepped> {
        let (graves, needed) = (cold.graves_lacking(), cold.move_bytes());
        // Records move only while what moves and merges after them take is there too, so that tombstones always can.
        let takes_less = cold.wants_to_bury() || cold.entries_max.is_some();
        let saved = cold.saved_before;
        let merging = if cold.overlaps { cold.levels.merging_bytes() } else { 0 };
        let all = cold.work_bytes().saturating_sub(merging);
        let wanted = match (takes_less, must) {
            (true, true) => needed,
            (true, false) => needed + DIRECTORY_BYTES,
            // Where there is no room for both, one is done at a time.
            (false, true) => cold.work_alone_bytes().min(all).saturating_sub(DIRECTORY_BYTES / 2),
            (false, false) => all,
        };
        let wanted = wanted.max(needed);
        if !self.save_up(cold, (wanted + graves, "records that move to runs"), must)? {
            return Ok(saving(cold, saved));
        }
        cold.purse.give_some_back(needed + graves);
        cold.grave_memory.keep(graves);
        let memory = booked_for(cold);
        cold.moving = Some(Box::new(Move::begin(cold, memory)));
        Ok(Stepped::Something)
    }

    fn step_merge(&mut self, cold: &mut Cold, fuel: u64, must: bool) -> Result<Stepped> {
        let (record_type, runs, read_bytes) = (cold.record_type, cold.run_sizes(), cold.read_bytes);
        if !cold.levels.is_merging()
            && let Some(saving) = self.save_up_for_merge(cold, must)?
        {
            return Ok(saving);
        }
        let log = &*self;
        let is_hot = |record: &RecordView<'_>| log.has_in_memory(record_type, record);
        let gone = cold.live.gone();
        let judge_of = |is_last| Newest { record_type, is_last, is_hot: &is_hot, gone };
        let stepped = cold.levels.step(fuel, runs, read_bytes, judge_of);
        cold.merge_has_failed = stepped.is_err();
        match stepped? {
            true => Ok(Stepped::Something),
            false => Ok(Stepped::Nothing),
        }
    }

    /// Saves memory up, a page with each step, or all of it if it `must` be there. Says whether it is there.
    fn save_up(&mut self, cold: &mut Cold, needed: Needed, must: bool) -> Result<bool> {
        let lacking = needed.0.saturating_sub(cold.purse.bytes());
        if lacking == 0 {
            return Ok(true);
        }
        if must {
            self.make_free_for(cold, (lacking, needed.1))?;
            cold.purse.charge(lacking);
            return Ok(true);
        }
        // What is kept free for values, and for a page that the stream begins.
        let keep = self.sizes.headroom_bytes + 2 * self.sizes.frame_bytes;
        if self.account.available() < lacking + keep && !self.free_step()? {
            // No page can go. Guides can be read again.
            cold.give_guides_up(lacking);
        }
        let saved = self.account.available().saturating_sub(keep).min(lacking);
        Ok(cold.purse.try_reserve_more(saved) && saved == lacking)
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

    /// Bytes of the index without guides.
    pub(super) fn index_bytes(&self) -> u64 {
        let guides = self.cold.as_ref().map_or(0, |cold| cold.guide_bytes());
        self.account.used_for(MemoryKind::Index) - guides
    }

    /// Bytes of buffers and tables, and of what moves and merges take.
    fn beside_index(&self) -> u64 {
        let cold = self.cold.as_deref();
        let work_of = |cold: &Cold| cold.work_bytes() + cold.graves_lacking();
        let (work, held) = cold.map_or((0, 0), |cold| (work_of(cold), cold.held_bytes()));
        let beside = [MemoryKind::Buffers, MemoryKind::Tables];
        let beside: u64 = beside.map(|kind| self.account.used_for(kind)).iter().sum();
        beside.saturating_sub(held) + work
    }

    /// Whether the work of moves and merges has room beside the index as it is.
    pub(super) fn has_room_for_work(&self) -> bool {
        let limit = self.account.used() + self.account.available();
        self.index_bytes() + self.beside_index() + self.floor_bytes() <= limit
    }

    /// The index leaves room for a move, which makes more for it, and for pages.
    pub(super) fn index_bytes_max(&self) -> u64 {
        // Other states may have taken the rest.
        let limit = self.account.used() + self.account.available();
        let (most, growing) = index_share(limit, self.beside_index(), self.floor_bytes());
        let tables = self.stored.as_ref().map_or(0, |stored| {
            stored.tables_bytes_for(most / ENTRY_BYTES, self.sizes.segment_bytes)
        });
        let has = self.stored.as_ref().map_or(0, Stored::tables_bytes) + growing / 2;
        most.saturating_sub(tables.saturating_sub(has))
    }
}

/// Bytes that the index may have of so many, beside so many for buffers, tables and work, and what pages have at least.
/// And those that are left for tables, which grow while the index does not shrink.
pub(super) fn index_share(limit: u64, beside: u64, floor: u64) -> (u64, u64) {
    let growing = limit / GROWING_SHARE;
    let most = limit.saturating_sub(beside + growing + floor);
    (most.min(limit / INDEX_SHARE), growing)
}

/// Bytes of the index with which records begin to move, of the most that it may have.
pub(super) fn begins_at(most: u64) -> u64 {
    most - most / BEGIN_SHARE
}

/// What a step came to that saved memory up, of which so much was there before.
fn saving(cold: &Cold, before: u64) -> Stepped {
    Stepped::Saving { is_more: cold.purse.bytes() > before }
}
