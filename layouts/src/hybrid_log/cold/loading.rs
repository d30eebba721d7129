//! Loading many entries at once: those of new keys go to a level of runs, in the order of their hashes. They take neither
//! pages nor segments nor entries of the index, and are not moved later.
//!
//! What it keeps true:
//! - A key goes there if it has no entry in the index, no tombstone in memory, and no record in any level, going by
//!   filters. All others, and those that memory lacks a filter for, are put as single puts are.
//! - No records move meanwhile, so that no older copy of a key comes to a level above.
//! - The level is there as a whole, or not at all. Its keys count from then on.
//! - The memory of a batch is what is saved up for the next move. It is booked as long as the batch is there.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Instant;

use alluvium_pagestore::{MemoryKind, Result, Time};

use super::graves::of_hash;
use super::paying::{ENTRY_BYTES, FUEL_MAX, StepOutcome, StepUrgency};
use super::share::INDEX_PERCENT_MAX;
use super::{ColdTier, DIRECTORY_BYTES, remove_runs};
use crate::contract::loading::LoadRoom;
use crate::hybrid_log::log::Log;
use crate::runs::{RecordView, RunSizes, RunWriter, is_of_device};
use crate::support::booked::Booked;

/// Fewer entries are no level, and in the little memory of tests.
const ENTRIES_MIN: usize = 256;
const ENTRIES_OF_TEST: usize = 64;
/// A batch is put in the ordinary way if it has less than one part in so many of what there was room for: small levels are
/// merged often.
const FILLED_SHARE: usize = 4;
/// What an entry takes beside itself: its hash and number, and its number among those that are left.
const BESIDE_BYTES: usize = size_of::<(u64, u32)>() + size_of::<u32>();
/// No batch is loaded so while there are so many levels.
const LEVELS_MAX: usize = 20;
/// After a batch of which most was put in the ordinary way, so many batches are as a whole.
const REST_IN_VAIN: u32 = 256;
/// A write that fails is made again so often.
const FAILED_MAX: u32 = 3;
/// A move that goes on is ended in so many steps, or no batch is loaded.
const STEPS_MAX: usize = 1 << 14;

/// A level that is being written. What was written is removed with it.
#[derive(Debug)]
pub(in crate::hybrid_log) struct LoadedLevel {
    /// None once the level is there.
    writer: Option<Box<RunWriter>>,
}

impl LoadedLevel {
    /// Adds a record, of a higher hash than those before.
    ///
    /// # Errors
    /// Those of [`RunWriter::push`].
    pub fn push(&mut self, hash: u64, payload: &[u8]) -> Result<()> {
        let record = RecordView { hash, mark: 0, order: &[], payload };
        again_if_it_fails(self.writer(), |writer| writer.push(record))
    }

    fn writer(&mut self) -> &mut RunWriter {
        self.writer.as_mut().expect("the level is not there yet")
    }
}

impl Drop for LoadedLevel {
    fn drop(&mut self) {
        // What cannot be removed is left over until the next open.
        self.writer.take().into_iter().for_each(|writer| _ = writer.abandon());
    }
}

/// Makes a call again that fails since the device does.
fn again_if_it_fails(
    writer: &mut RunWriter,
    mut call: impl FnMut(&mut RunWriter) -> Result<()>,
) -> Result<()> {
    let mut failed = 0;
    loop {
        match call(writer) {
            Err(error) if is_of_device(&error) && !writer.has_failed() && failed < FAILED_MAX => {
                failed += 1;
            }
            done => return done,
        }
    }
}

impl ColdTier {
    /// Whether a batch may be loaded. Entries that expire are not: they are counted by their last touch.
    fn may_load(&self) -> bool {
        self.live.gone().is_none() && self.levels.standing() < LEVELS_MAX
    }

    /// Whether there are levels: the index has been as large as it may be.
    fn has_begun(&self) -> bool {
        self.moved + self.loaded > 0 && !self.levels.is_empty()
    }

    /// How many entries of so many bytes have room beside what a level of them is written with.
    fn entries_within(&self, bytes: u64, entry_bytes: usize) -> usize {
        let each = (entry_bytes + BESIDE_BYTES) as u64;
        (bytes.saturating_sub(self.work.runs.memory_bytes()) / each) as usize
    }

    /// Which of up to 64 hashes, in order, may be of keys that are there or were deleted, going by filters and tombstones: a
    /// bit for each. Reads filters that memory does not have, and keeps them if there is room.
    pub fn may_have_in_order(&mut self, hashes: &[u64]) -> u64 {
        if self.wait_for_left().is_err() {
            return u64::MAX;
        }
        let there = self.levels.may_have_in_order(hashes);
        self.reads.book(self.reads.left_bytes());
        let is_buried = |hash: &u64| {
            [&self.buried, &self.going].iter().any(|graves| !of_hash(graves, *hash).is_empty())
        };
        if self.buried.is_empty() && self.going.is_empty() {
            return there;
        }
        let buried = hashes.iter().enumerate().filter(|(_, hash)| is_buried(hash));
        buried.fold(there, |there, (nth, _)| there | 1 << nth)
    }

    /// Sizes of a level of so many records.
    fn loaded_sizes(&self, records: usize) -> RunSizes {
        let runs = self.run_sizes().expecting(records as u64);
        RunSizes { syncs: false, ..runs }
    }
}

impl Log {
    /// Room for entries of so many bytes that are loaded at once, of which so many more are to come, if that is worth it:
    /// records have moved before, or the index has no room for all of them.
    pub fn room_to_load(&mut self, entry_bytes: usize, more: u64) -> Option<LoadRoom> {
        let has_tier = self.cold.is_some();
        if !self.record_type.is_plain() || !has_tier && !self.begin_cold_to_load(more) {
            return None;
        }
        let room = self.room_of_tier(entry_bytes, more);
        match (has_tier, &room) {
            (false, Some(_)) => self.cold_has_begun(),
            (false, None) => self.drop_cold(),
            (true, _) => {}
        }
        room
    }

    /// Makes a tier for entries that the index could not have, unless there can be none.
    fn begin_cold_to_load(&mut self, more: u64) -> bool {
        let most = self.account.limit() * INDEX_PERCENT_MAX / 100;
        let wanted = (self.index.len() + more).saturating_mul(ENTRY_BYTES);
        self.later.is_some() && wanted > most && self.make_cold()
    }

    /// Whether so many entries are many, and go to a tier that there is.
    fn is_worth_loading(&self, entry_bytes: usize, more: u64) -> bool {
        let Some(cold) = &self.cold else { return false };
        let is_too_small =
            || self.index_bytes() + more.saturating_mul(ENTRY_BYTES) > self.index_bytes_max();
        let most = cold.entries_within(cold.move_bytes(), entry_bytes) as u64;
        // It may not be known how many they are.
        let is_batch = more == 0 || FILLED_SHARE as u64 * more >= most || cold.is_of_test();
        is_batch && cold.may_load() && (cold.has_begun() || is_too_small())
    }

    fn room_of_tier(&mut self, entry_bytes: usize, more: u64) -> Option<LoadRoom> {
        let cold = self.cold.as_mut()?;
        if cold.load_rest > 0 {
            cold.load_rest -= 1;
            return None;
        }
        if !self.is_worth_loading(entry_bytes, more) {
            return None;
        }
        self.end_move();
        let (free, keep) = (self.account.available(), self.keep_bytes());
        let cold = self.cold.as_mut().filter(|cold| cold.moving.is_none())?;
        // As for a move, a full list of tombstones has its memory before the first record comes. Then what is saved up for
        // moves is enough.
        let graves = cold.graves_lacking();
        let free = if graves > 0 { free.saturating_sub(graves + keep) } else { 0 };
        let has =
            (cold.purse.bytes() + free).saturating_sub(DIRECTORY_BYTES).min(cold.move_bytes());
        let (entries, least) = match cold.is_of_test() {
            true => (ENTRIES_OF_TEST, ENTRIES_OF_TEST),
            false => (cold.entries_within(has, entry_bytes), ENTRIES_MIN),
        };
        if entries < least {
            return None;
        }
        let each = entry_bytes + BESIDE_BYTES;
        let bytes = cold.work.runs.memory_bytes() + (entries * each) as u64;
        cold.purse.give_some_back(bytes.min(cold.purse.bytes()));
        if cold.is_of_test() {
            self.make_free((bytes + graves, "entries that are loaded")).ok()?;
        }
        let mut memory = Booked::none(self.account.clone(), MemoryKind::Buffers);
        let has_room = self.account.available() >= bytes + graves;
        let cold = self.cold.as_mut()?;
        if !has_room || !memory.try_reserve_more(bytes) {
            cold.keep_purse();
            return None;
        }
        cold.grave_memory.keep(graves);
        Some(LoadRoom::new(entries, memory, cold.lent_to_load.clone()))
    }

    /// Ends the move that goes on, whose level would be newer than that of a batch.
    fn end_move(&mut self) {
        for _ in 0..STEPS_MAX {
            let is_moving = self.cold.as_ref().is_some_and(|cold| cold.moving.is_some());
            if !is_moving || self.step_merges(StepUrgency::Later).is_err() {
                return;
            }
        }
    }

    /// Begins the level of so many entries, for which there was room. None: they are put in the ordinary way.
    pub(in crate::hybrid_log) fn begin_level(
        &mut self,
        entries: usize,
        room: &LoadRoom,
    ) -> Option<LoadedLevel> {
        let cold = self.cold.as_ref().filter(|cold| cold.moving.is_none() && cold.may_load())?;
        if FILLED_SHARE * entries < room.entries() {
            return None;
        }
        let sizes = cold.loaded_sizes(entries);
        let writer = RunWriter::new(cold.store.clone(), cold.state, sizes).ok()?;
        Some(LoadedLevel { writer: Some(Box::new(writer)) })
    }

    /// Has the level be there, with keys of these hashes.
    ///
    /// # Errors
    /// Those of storage, and of memory for the directory: nothing has changed then.
    pub(in crate::hybrid_log) fn install_level(
        &mut self,
        mut level: LoadedLevel,
        hashes: impl ExactSizeIterator<Item = u64>,
    ) -> Result<()> {
        again_if_it_fails(level.writer(), RunWriter::finish)?;
        let (sealed, unsynced) = (level.writer().take_sealed(), level.writer().take_unsynced());
        let built = level.writer().built_nanos();
        let Some(cold) = self.cold.as_mut().filter(|_| !sealed.is_empty()) else { return Ok(()) };
        // For the directory.
        cold.purse.give_back();
        let added = cold.levels.add_unsynced(&sealed, &unsynced);
        cold.keep_purse();
        if added.is_err() {
            remove_runs(&cold.store, &sealed);
            return added;
        }
        level.writer = None;
        cold.loaded += hashes.len() as u64;
        cold.moved_bytes += sealed.iter().map(|run| run.bytes).sum::<u64>();
        cold.times.building += built;
        for hash in hashes {
            cold.live.add(hash, Time::MAX);
        }
        Ok(())
    }

    /// Which of up to 64 hashes, in order, may be of keys without an entry: see [`ColdTier::may_have_in_order`].
    pub(in crate::hybrid_log) fn may_have_in_order(&mut self, hashes: &[u64]) -> u64 {
        let may_have = self.cold.as_mut().map_or(u64::MAX, |cold| cold.may_have_in_order(hashes));
        self.make_room_for_guides();
        may_have
    }

    /// Has merges go on, while nothing else does.
    pub(in crate::hybrid_log) fn merge_meanwhile(&mut self) {
        // What fails is tried again later.
        let _ = self.step_merges(StepUrgency::Later);
    }

    /// A step of the merge that goes on or is due while a batch is loaded, or of a move that goes on. None begins.
    fn step_merges(&mut self, need: StepUrgency) -> Result<StepOutcome> {
        self.is_loading(true);
        // Keys are the user's: to compare them may panic.
        let stepped = catch_unwind(AssertUnwindSafe(|| self.step_cold(FUEL_MAX, need)));
        self.is_loading(false);
        stepped.unwrap_or_else(|panic| resume_unwind(panic))
    }

    fn is_loading(&mut self, is_loading: bool) {
        let Some(cold) = &mut self.cold else { return };
        cold.is_loading = is_loading;
        let live = cold.live();
        cold.levels.may_pile_up(is_loading.then_some(live));
    }

    /// What a batch does not need any more is saved up for moves again.
    pub(in crate::hybrid_log) fn save_up_again(&mut self) {
        if let Some(cold) = &mut self.cold {
            cold.keep_purse();
            cold.book_left();
        }
        self.keep_for_work();
    }

    /// A batch is loaded, most of it in the ordinary way or not. What was booked for it is saved up again. Waits for merges
    /// if there are many levels.
    pub(in crate::hybrid_log) fn end_load(&mut self, is_in_vain: bool) {
        let Some(cold) = &mut self.cold else { return };
        cold.load_rest = if is_in_vain { REST_IN_VAIN } else { 0 };
        self.save_up_again();
        let (start, patience) = (Instant::now(), self.sizes.patience);
        let has_many = |cold: &ColdTier| cold.levels.standing() >= LEVELS_MAX;
        while self.cold.as_deref().is_some_and(has_many) && start.elapsed() < patience {
            match self.step_merges(StepUrgency::Soon) {
                Ok(StepOutcome::Nothing) | Err(_) => return,
                Ok(_) => {}
            }
        }
    }
}
