//! How memory is made free.
//!
//! Whoever needs memory has room for notes and empty frames given up first, then sends the oldest frames out of
//! memory, and waits for one only if none is free.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use alluvium_pagestore::{Error, ErrorKind, MemoryKind, ReclaimScope, Result};

use super::{FROZEN_MAX, Log, QUANTUM};
use crate::hybrid_log::config::FRAMES_MIN;
use crate::hybrid_log::flush::Flusher;
use crate::hybrid_log::index::IndexHash;
use crate::hybrid_log::stored::StoredSegments;
use crate::trace_event;

/// A call for an entry of the index asks other states so often at most for what is not attainable as far as anybody knows.
const ASKED_MAX: u32 = 8;

/// A call for an entry of the index joins so many segments at most, and looks at so many for each, before it frees memory in
/// another way.
const JOINS_MAX: u32 = 16;
const JOIN_LOOKS: usize = 256;

/// What a call for an entry of the index has tried.
#[derive(Default)]
struct FreeingAttempt {
    /// Whether no record could move.
    moves_nothing: bool,
    /// Why they could not.
    failed: Option<Error>,
    /// How often it asked others for what nobody knows of, and whether for all.
    asked: u32,
    asked_for_all: bool,
    /// Segments that were joined.
    joins: u32,
}

/// So many bytes have to be free, and for what.
pub type NeededBytes = (u64, &'static str);

impl Log {
    /// Whether memory is short, here or in the store, so that frames are on their way out.
    pub fn is_short(&self) -> bool {
        let is_short =
            self.eviction.is_freeing() || self.account.available() < self.eviction.want_free();
        self.flusher.is_some() && is_short
    }

    /// What changes with each share of the work that frees memory.
    pub fn on_its_way_out(&self) -> impl PartialEq + use<> {
        let pages = (self.ring.len(), self.ring.sealed(), self.ring.spares());
        (self.account.used(), pages, self.eviction.under_way(), self.eviction.frozen())
    }

    /// While memory is short: a bounded share of the work that frees some, and, if values could
    /// not grow any more, as much as it takes.
    #[cold]
    pub fn relieve(&mut self) -> Result<()> {
        self.poll()?;
        if self.give_room_for_notes_up() || self.relieve_beside() {
            return self.make_headroom();
        }
        self.send_some_out();
        self.make_headroom()
    }

    /// Turns some records of a page that was written to storage, and has the next page written.
    pub(super) fn send_some_out(&mut self) {
        if self.eviction.under_way().is_some() || self.first_clean().is_some() {
            self.evict(QUANTUM);
        }
        let on_the_way = self.ring.sealed().saturating_sub(self.eviction.failed()) as u64;
        let target = (self.eviction.want_free() / self.sizes.frame_bytes.max(1)).max(2) + 1;
        let backlog = self.flusher.as_ref().map_or(usize::MAX, Flusher::pending);
        let plenty = self.ring.len() - self.ring.sealed() > 2;
        let may_freeze = self.eviction.may_freeze();
        if plenty && on_the_way < target && may_freeze && backlog < 2 * FROZEN_MAX {
            self.freeze_oldest();
        }
    }

    /// Frees memory until a value can grow, or be read, without passing the budget.
    pub fn make_headroom(&mut self) -> Result<()> {
        self.make_free((self.sizes.headroom_bytes, "a value that grows or is read"))
    }

    /// Frees memory until so many bytes are.
    pub fn make_free(&mut self, needed: NeededBytes) -> Result<()> {
        while self.account.available() < needed.0 {
            if !self.drop_spare() && !self.give_room_for_notes_up() {
                let freed = self.free_a_frame(needed);
                freed.or_else(|error| self.lend_saved_for(needed.0, error))?;
            }
        }
        Ok(())
    }

    /// Frees memory that is saved up for runs, if there is some.
    fn lend_saved_for(&mut self, bytes: u64, error: Error) -> Result<()> {
        let lacking = bytes.saturating_sub(self.account.available());
        let is_short = error.kind() == ErrorKind::OverBudget;
        let mut cold = self.cold.as_mut().filter(|_| is_short);
        let lent = cold.as_mut().map_or(0, |cold| cold.lend_saved(lacking));
        self.keep_for_work();
        if lent > 0 { Ok(()) } else { self.take_work_of_others(bytes, error) }
    }

    /// Has other states give up what they would have to make again, where this log has nothing left and has asked for
    /// pages only.
    fn take_work_of_others(&mut self, bytes: u64, error: Error) -> Result<()> {
        let may = self.index.asks_for_pages() && error.kind() == ErrorKind::OverBudget;
        if may && self.account.ensure(bytes, "").is_ok() { Ok(()) } else { Err(error) }
    }

    /// [`lend_saved_for`](Log::lend_saved_for) of what tombstones do not need to move.
    pub(super) fn lend_saved_for_page(&mut self, bytes: u64, error: Error) -> Result<()> {
        let lacking = bytes.saturating_sub(self.account.available());
        let is_short = error.kind() == ErrorKind::OverBudget;
        let mut cold = self.cold.as_mut().filter(|_| is_short);
        let lent = cold.as_mut().map_or(0, |cold| cold.lend_beyond_burials(lacking));
        self.keep_for_work();
        if lent > 0 { Ok(()) } else { self.take_work_of_others(bytes, error) }
    }

    /// Gives up a page, step by step, for guides of runs that look-ups had to read, of this log or of another state. What
    /// fails is tried again with the next look-up: that has its answer.
    pub fn make_room_for_guides(&mut self) {
        let Some(needed) = self.cold.as_mut().and_then(|cold| cold.lacks()) else { return };
        if self.account.available() >= needed {
            return;
        }
        if self.has_more_than_it_needs() {
            let _ = self.free_step();
        } else {
            self.take_page_of_others();
        }
    }

    /// Has another state give a page up that it can do without. Says whether one did.
    pub fn take_page_of_others(&mut self) -> bool {
        let (bytes, _) = self.needed_for_others();
        let attainable = self.account.attainable_for_work();
        let is_there = attainable >= self.account.used() + self.sizes.frame_bytes;
        is_there && self.account.ensure_of(ReclaimScope::Pages, bytes)
    }

    /// Gives up a page or two for reads of a batch, which are under way together. Fewer are where this fails.
    pub fn make_room_ahead(&mut self, reads: usize) {
        let Some(cold) = &self.cold else { return };
        let needed = cold.ahead_bytes(reads) + self.sizes.headroom_bytes;
        for _ in 0..2 {
            let is_enough = self.account.available() >= needed;
            if is_enough || !self.has_more_than_it_needs() || !self.free_step().unwrap_or(false) {
                return;
            }
        }
    }

    /// Gives up about `bytes` of frames to other states, and says how many; keeps the least frames. What a value
    /// needs to grow they give back when it is asked for.
    #[cold]
    pub fn give_memory_up(&mut self, bytes: u64) -> Result<u64> {
        let before = self.account.used();
        loop {
            let given = before.saturating_sub(self.account.used());
            if given >= bytes || self.flusher.is_none() {
                return Ok(given);
            }
            if self.drop_spare() || self.give_room_for_notes_up() {
                continue;
            } else if self.has_more_than(self.sizes.pages_bytes_min()) {
                self.free_a_frame(self.needed_for_others())?;
            } else {
                return Ok(given);
            }
        }
    }

    /// Gives up some of the room for notes that no note needs now; says whether there was any.
    pub(super) fn give_room_for_notes_up(&mut self) -> bool {
        self.stored.as_mut().is_some_and(|stored| stored.give_spare_notes_up() > 0)
    }

    /// Whether a frame can be given up, with the heap that its entries own, and what the log needs to
    /// work is left.
    pub fn has_more_than_it_needs(&self) -> bool {
        self.has_more_than(self.floor_bytes())
    }

    /// Whether a frame can be given up, with the heap that its entries own, and so many bytes are left.
    fn has_more_than(&self, least: u64) -> bool {
        let next =
            self.eviction.under_way().map(|(number, _)| number).or_else(|| self.first_clean());
        let Some(next) = next.or_else(|| self.ring.oldest()) else { return false };
        let freed = self.sizes.frame_bytes + self.frames.state(next).heap_bytes;
        self.elastic_bytes() >= least + freed
    }

    #[cold]
    pub(super) fn make_room_for_index(&mut self, hash: IndexHash, mut error: Error) -> Result<()> {
        let mut tried = FreeingAttempt::default();
        while error.kind() == ErrorKind::OverBudget {
            // Two segments with few entries make room for another one.
            let is_joined = tried.joins < JOINS_MAX && self.index.shrink_to_split(JOIN_LOOKS);
            tried.joins += u32::from(is_joined);
            // The index may be held for a tier that is yet to be.
            if !is_joined
                && !self.look_at_index()
                && !self.free_some_for_index(&mut tried)?
                && !self.join_or_refuse()
            {
                break;
            }
            match self.index.prepare(hash) {
                Ok(()) => return Ok(()),
                Err(again) => error = again,
            }
        }
        Err(error)
    }

    /// Where a page has no memory for a new key, has an index of few entries give some back, or directories of dead records.
    /// Says whether it is worth to try again.
    ///
    /// # Errors
    /// Those of storage.
    #[cold]
    pub(super) fn free_tables(&mut self, error: &Error, joins: &mut u32) -> Result<bool> {
        if error.kind() != ErrorKind::OverBudget || self.cold.is_none() {
            return Ok(false);
        }
        let may_join = *joins < JOINS_MAX && self.index.is_sparse();
        if may_join && self.index.shrink(JOIN_LOOKS) > 0 {
            *joins += 1;
            self.stats.stalls += 1;
            return Ok(true);
        }
        self.must_merge()
    }

    /// Looks at all segments for two that have few entries, where the call would be refused otherwise.
    fn join_or_refuse(&mut self) -> bool {
        let is_joined = self.index.shrink_to_split(usize::MAX);
        self.stats.stalls += u64::from(is_joined);
        is_joined
    }

    /// Frees memory for the index, which was refused some; says whether there was some to be freed.
    fn free_some_for_index(&mut self, tried: &mut FreeingAttempt) -> Result<bool> {
        // Where no page is in the way, the index beside may be, or records that can move.
        let is_held_back = self.index.is_held_back();
        let is_freed = is_held_back && (self.force_one_beside()? || self.try_to_move(tried));
        if is_freed || self.drop_spare() {
            return Ok(true);
        }
        if let Some(error) = tried.failed.take_if(|_| self.has_merged_its_part()) {
            // The next call goes on merging: no page goes in the place of what that gives back.
            return Err(error);
        }
        // Nor is it of use then that pages leave; what moves takes those that it needs.
        let are_of_use = !is_held_back || !self.index.asks_for_pages();
        let has_pages = self.ring.len() as u64 > FRAMES_MIN || self.has_more_than_it_needs();
        if are_of_use && has_pages {
            match self.free_a_frame(self.needed_for_others()) {
                Err(cause) if cause.kind() == ErrorKind::OverBudget => {
                    // Others were asked for all that they have, unless it was for pages only.
                    if !self.index.asks_for_pages() {
                        return Ok(false);
                    }
                }
                // Storage that takes nothing is the cause, and not how much memory there is.
                freed => return freed.map(|()| true),
            }
        }
        let is_freed = !are_of_use && self.give_room_for_notes_up()
            || self.try_to_move(tried)
            || self.give_runs_up()
            || self.free_one_beside()?
            || self.force_one_beside()?;
        if is_freed {
            return Ok(true);
        }
        // What is only tried comes last: it fails where another way is left.
        let moved = self.move_in_need();
        let is_asked = !matches!(moved, Ok(true)) && self.index.asks_for_pages();
        if is_asked && self.ask_others(is_held_back, tried) {
            return Ok(true);
        }
        match (moved, tried.failed.take()) {
            (Ok(false), Some(error)) => Err(error),
            (moved, _) => moved,
        }
    }

    /// [`must_move_down`](Log::must_move_down), until that found nothing, since each time it looks at all that is on
    /// storage, or failed.
    fn try_to_move(&mut self, tried: &mut FreeingAttempt) -> bool {
        if tried.moves_nothing {
            return false;
        }
        let in_vain = |log: &Self| log.cold.as_ref().map_or(0, |cold| cold.moves_in_vain());
        let before = in_vain(self);
        let moved = self.must_move_down();
        // Not so where there is no tier yet, or no memory for what moves: both may come.
        tried.moves_nothing = in_vain(self) > before || moved.is_err();
        moved.unwrap_or_else(|error| {
            tried.failed = Some(error);
            false
        })
    }

    /// Gives up what the cold tier has in memory, in the little memory of tests: elsewhere the index would grow into it.
    /// Says whether there was some.
    fn give_runs_up(&mut self) -> bool {
        let cold = self.cold.as_mut().filter(|cold| cold.is_of_test());
        cold.is_some_and(|cold| cold.give_up_for_others(u64::MAX) > 0)
    }

    /// Has other states give up the memory of a page, whatever they have. Where the index has all that is attainable, as
    /// far as anybody knows, only what nobody knows of can be of use, and a call asks for a few pages of it; then once for
    /// all, since what can be made again may be in the way.
    fn ask_others(&mut self, is_held_back: bool, tried: &mut FreeingAttempt) -> bool {
        let (bytes, what) = self.needed_for_others();
        match is_held_back {
            true => {
                let may = self.index.is_held_by_others() && tried.asked < ASKED_MAX;
                tried.asked += 1;
                may && (self.account.ensure_of(ReclaimScope::Unknown, bytes)
                    || !std::mem::replace(&mut tried.asked_for_all, true)
                        && self.ask_for_all((bytes, what)))
            }
            false => self.account.ensure(bytes, what).is_ok(),
        }
    }

    /// What is needed by others, who say themselves how much that is: a page's memory more.
    pub fn needed_for_others(&self) -> NeededBytes {
        (self.account.available() + self.sizes.frame_bytes, "the memory of a page")
    }

    /// What has to be free for another page: that of the table of segments, if it is not booked, or of the page.
    pub(super) fn needed_for_page(&self) -> NeededBytes {
        match self.tables_lacking() {
            0 => (self.sizes.frame_bytes, "a page"),
            lacking => {
                let elastic = self.elastic_bytes();
                let wanted = (lacking + self.sizes.kept_bytes()).saturating_sub(elastic);
                (lacking.max(wanted), "the table of segments")
            }
        }
    }

    /// Frees one frame, waiting for storage if it must.
    ///
    /// # Errors
    /// [`ErrorKind::OverBudget`] if nothing can be freed, of what the caller needs, which is not free then.
    #[cold]
    pub fn free_a_frame(&mut self, needed: NeededBytes) -> Result<()> {
        self.eviction.set_freeing(true);
        let freed = self.free_one(needed);
        self.eviction.set_freeing(false);
        freed
    }

    /// Gives the memory of an empty frame up; says whether there was one.
    pub fn drop_spare(&mut self) -> bool {
        let Some(frame) = self.ring.take_spare() else { return false };
        drop(frame);
        self.account.release(MemoryKind::Pages, self.sizes.frame_bytes);
        true
    }

    /// Sends frames on their way out of memory, or takes one out, and waits for nothing; says whether there are
    /// some.
    ///
    /// # Errors
    /// Those of storage; [`ErrorKind::Poisoned`] if a key that leaves panics while it is hashed.
    pub fn free_step(&mut self) -> Result<bool> {
        if self.give_room_for_notes_up() || self.drop_spare() {
            return Ok(true);
        }
        self.eviction.set_freeing(true);
        // Who frees this is not who has the key: a panic is an error here.
        let freed = catch_unwind(AssertUnwindSafe(|| {
            if self.eviction.under_way().is_none() && self.first_clean().is_none() {
                return self.eviction.frozen() > 0 || self.freeze_oldest() || self.pending() > 0;
            }
            self.evict(u32::MAX);
            // At once: the stream would begin a page in it before the next share.
            self.drop_spare();
            true
        }));
        self.eviction.set_freeing(false);
        let is_some = freed.map_err(|_| {
            let what = "a key panicked while a page left memory";
            Error::new(ErrorKind::Poisoned, what).with("state", &self.name)
        })?;
        if let Some(flusher) = &self.flusher {
            flusher.drive();
        }
        self.poll().map(|()| is_some)
    }

    fn free_one(&mut self, needed: NeededBytes) -> Result<()> {
        if self.give_room_for_notes_up() || self.free_one_beside()? {
            return Ok(());
        }
        if self.flusher.is_none() {
            let what = "a page of the hybrid log, in a store without a directory,";
            return Err(self.account.over_budget(self.sizes.frame_bytes, what));
        }
        let start = Instant::now();
        let mut stalled = false;
        let (spares, booked) = (self.ring.spares(), self.account.used());
        loop {
            if self.eviction.under_way().is_some() || self.first_clean().is_some() {
                self.evict(u32::MAX);
            }
            self.poll()?;
            if self.ring.spares() > spares || self.account.used() < booked {
                return Ok(());
            }
            if self.eviction.frozen() == 0 && !self.freeze_oldest() && self.pending() == 0 {
                // Of a checkpoint that was given up the helper may have had pages: it needs none.
                let is_sealing = self.barrier.is_open();
                let notes = self.stored.as_mut().map_or(0, |stored| match is_sealing {
                    false => stored.give_notes_up(),
                    true => 0,
                });
                if notes > 0 || self.force_one_beside()? {
                    return Ok(());
                }
                if self.cold.as_mut().is_some_and(|cold| cold.give_up_for_others(needed.0) > 0) {
                    return Ok(());
                }
                // Nothing of its own is left to give up: other states may have some.
                return match self.index.asks_for_pages()
                    && !self.account.ensure_of(ReclaimScope::Pages, needed.0)
                {
                    true => Err(self.account.over_budget(needed.0, needed.1)),
                    false => self.account.ensure(needed.0, needed.1),
                };
            }
            if self.pending() > 0 {
                if !stalled {
                    self.stats.stalls += 1;
                    trace_event!(DEBUG, "waiting for storage", state = &*self.name);
                    stalled = true;
                }
                self.wait()?;
            }
            self.check_patience(start)?;
        }
    }

    /// Books what the tables take now, and the next growth of the table of segments, and says
    /// whether it could: not while memory is short, and not if frames, all given up, would leave too
    /// little for a value to be read and for the least frames. No frame is begun then: what is in
    /// memory can be written still.
    pub fn book_tables(&mut self) -> bool {
        self.book_tables_leaving(self.sizes.kept_bytes())
    }

    /// [`book_tables`](Log::book_tables) of a log that is opened: what reading its checkpoint takes is not there yet, and
    /// need not be where it stands beside one that was cleared.
    pub(super) fn book_first_tables(&mut self) -> bool {
        self.book_tables_leaving(self.sizes.headroom_bytes + FRAMES_MIN * self.sizes.frame_bytes)
    }

    fn book_tables_leaving(&mut self, kept: u64) -> bool {
        let lacking = self.tables_lacking();
        if lacking == 0 {
            return true;
        }
        let available = self.account.available();
        if available < lacking || available + self.elastic_bytes() < lacking + kept {
            return false;
        }
        self.account.charge(MemoryKind::Tables, lacking);
        self.tables_are_booked(lacking);
        true
    }

    /// [`book_tables`](Log::book_tables) while the log is restored, when no value is read yet.
    pub fn reserve_tables(&mut self) -> Result<()> {
        let lacking = self.tables_lacking();
        self.account.reserve(MemoryKind::Tables, lacking, "the table of segments")?;
        self.tables_are_booked(lacking);
        Ok(())
    }

    fn tables_are_booked(&mut self, bytes: u64) {
        self.tables_booked += bytes;
        self.index.set_floor(self.floor_bytes());
    }

    fn tables_lacking(&self) -> u64 {
        let segments = self.stored.as_ref().map_or(0, StoredSegments::tables_bytes);
        (self.sizes.tables_bytes + segments).saturating_sub(self.tables_booked)
    }

    /// What the index and other states must leave.
    pub fn floor_bytes(&self) -> u64 {
        self.sizes.floor_bytes(self.tables_booked.saturating_sub(self.sizes.tables_bytes))
    }
}
