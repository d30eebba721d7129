//! A log that is cleared is handed over as it is: frames, index, and segments. The stream goes on with another one, which
//! is empty, so that clearing costs the same whatever there was.
//!
//! If a checkpoint is yet to have more of what was cleared, its shares are those of the log that was handed over. What no
//! checkpoint needs is dropped, some with each call that looks after the state and with each page that the stream
//! begins: segments of the index, pages and files. Files go once the checkpoint is decided. Reads that run ahead stay with
//! the table, as those who wait for them know their tickets.
//!
//! What it keeps true:
//! - All that a log that was handed over takes is booked, on an account of its own below the state's.
//! - The last one that was handed over is dropped first, and the stream pays for eight parts with each page that it begins.
//!   So one that is handed over while another is left is smaller than that was, by a factor, and there are few of them,
//!   however often a state is cleared. What is less than a share is not handed over.
//! - Without memory for another log beside it, as much as that takes is dropped in the call. A checkpoint that needs more of
//!   what is dropped is lost, and so it is if the stream needs the memory of what was handed over.
//! - The state's segments are those of the log that goes on: no checkpoint that was confirmed names one of them.

use std::cell::RefCell;
use std::rc::Rc;

use alluvium_pagestore::{
    Account, BlobWriter, ErrorKind, MEMORY_KINDS, MemoryKind, Result, StateImage,
};

use super::{LogCore, Rewriter, fixed_bytes};
use crate::checkpoint::PinnedRuns;
use crate::contract::table::{CheckpointOutcome, Pace, StateContext, TableStats};
use crate::hybrid_log::config::{FRAMES_MIN, LogSizes};
use crate::hybrid_log::index::Index;
use crate::hybrid_log::log::{Bookings, Log, LogNeighbor, QUANTUM};
use crate::hybrid_log::stored::StoredSegments;

/// What was there when the state was cleared, each time, and is not all dropped: the last one behind the others. A
/// checkpoint that is not decided is of one of them at most.
pub(super) struct HandedOver {
    logs: Vec<LogCore>,
    /// Counters of those that are dropped.
    stats: TableStats,
}

impl LogCore {
    /// Hands all there is over, if there is memory for a log to go on with; says whether it did. Cost: that of opening
    /// an empty log, and of dropping as much as that takes, if memory is short. Nothing is waited for.
    pub(super) fn hand_over(&mut self) -> bool {
        self.release_step();
        let Some((log, booked)) = self.open_beside() else { return false };
        let account = &self.context.account;
        let below = Account::below(account, &self.context.name, u64::MAX);
        let is_let_go = !self.needs_more();
        let mut old = std::mem::replace(&mut self.log, log);
        old.book_on(&below, booked);
        self.take_over_from(&mut old);
        // They are decided with the checkpoint.
        let named_runs = match &self.checkpoint {
            Some(_) => std::mem::take(&mut self.named_runs),
            None => PinnedRuns::default(),
        };
        let cleared = Self {
            handed_over: None,
            left_pass: None,
            log: old,
            context: StateContext { account: below, ..self.context.clone() },
            rewriter: Rewriter::default(),
            checkpoint: self.checkpoint.take(),
            known_deaths: std::mem::take(&mut self.known_deaths),
            named_runs,
            late: std::mem::take(&mut self.late),
            lacking: 0,
            expiry: None,
            touched: Box::default(),
            group: Box::default(),
            group_reads: false,
            is_let_go,
        };
        let none = || HandedOver { logs: Vec::new(), stats: TableStats::default() };
        let handed_over =
            self.handed_over.get_or_insert_with(|| Rc::new(RefCell::new(none()))).clone();
        handed_over.borrow_mut().logs.push(cleared);
        self.log.beside = Some(handed_over);
        true
    }

    /// An empty log like this one but for read buffers, if there is memory for it; and what is booked for this one, by
    /// kind, without those.
    fn open_beside(&mut self) -> Option<(Log, Bookings)> {
        let (sizes, stored) = (self.log.sizes.clone(), self.log.stored.is_some());
        let lean = LogSizes { queue_depth: 0, ..sizes.clone() };
        // The first pages of the other one this one may give up.
        let pages = FRAMES_MIN * lean.frame_bytes;
        let given = if self.log.can_give(pages) { pages } else { 0 };
        let needed = lean.memory_bytes_min(stored);
        // What was dropped for it is not there to be given up.
        let has_room = self.make_room_beside(needed - given);
        let is_enough = has_room && (given == 0 || self.log.can_give(given));
        if !is_enough && !self.make_room_beside(needed) {
            return None;
        }
        let (account, helper) = (self.context.account.clone(), self.context.helper.clone());
        let before = MEMORY_KINDS.map(|kind| account.used_for(kind));
        let mut index = Index::new(account.clone(), sizes.buckets, Some(helper)).ok()?;
        if self.context.movable {
            index.expect_few_of(self.context.key_groups);
        }
        index.go_on_from(&self.log.index);
        let buffers = lean.buffer_bytes(stored);
        account.try_reserve(MemoryKind::Buffers, buffers).then_some(())?;
        let beside: Vec<u64> = (MEMORY_KINDS.iter().zip(before))
            .map(|(kind, before)| account.used_for(*kind) - before)
            .collect();
        // Nothing fails from here on.
        self.log.cold.iter_mut().for_each(|cold| cold.clear());
        let mut booked = self.booked_for_log();
        booked.iter_mut().zip(beside).for_each(|((_, all), of_other)| *all -= of_other);
        // It takes the cold tier over, which is empty.
        let lean = LogSizes { cold_runs: false, ..lean };
        let mut log = Log::open(&self.context, self.log.record_type, lean, index);
        log.pool.go_on_from(&self.log.pool);
        log.sizes = sizes;
        Some((log, booked))
    }

    /// Frees so many bytes, if that can be without waiting: what was cleared before goes first, and then what is being
    /// cleared, of which a checkpoint keeps what it needs. Says whether they are free.
    fn make_room_beside(&mut self, bytes: u64) -> bool {
        let account = self.context.account.clone();
        while account.available() < bytes {
            let before = self.handed_over.as_ref();
            if !before.is_some_and(|before| before.borrow_mut().drop_part()) {
                break;
            }
        }
        if self.needs_more() {
            return self.log.free_at_once(bytes);
        }
        while account.available() < bytes {
            if self.log.pending() > 0 || !self.log.drop_part() {
                return false;
            }
        }
        true
    }

    /// What is booked for the log, and not for reads, copies that were given up, what else is the table's, and what was
    /// handed over before.
    fn booked_for_log(&self) -> Bookings {
        let stored = self.log.stored.as_ref();
        let reads = stored.map_or(0, |it| self.log.sizes.read_buffer_bytes() + it.left_bytes());
        let left_pass = self.left_pass.as_ref().map_or(0, |(_, booked)| booked.bytes());
        let asked = self.expiry.map_or(0, |expiry| {
            expiry.booked_bytes(self.log.record_type, self.context.max_value_bytes)
        });
        let runs = self.checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.runs_bytes());
        let cold = self.log.cold.as_ref().map_or(0, |cold| cold.kept_bytes());
        let runs = runs + self.late.runs_bytes() + cold;
        let kept = fixed_bytes() + reads + left_pass + asked + runs + self.rewriter.left_bytes();
        MEMORY_KINDS.map(|kind| {
            let booked = self.log.account.used_for(kind) - self.handed_over_for(kind);
            (kind, if kind == MemoryKind::Buffers { booked - kept } else { booked })
        })
    }

    /// The new log goes on with what is not the old one's alone.
    fn take_over_from(&mut self, old: &mut Log) {
        // What was handed over before stands beside this one.
        old.beside = None;
        let log = &mut self.log;
        log.cold = old.cold.take();
        log.may_get_cold_as(old);
        log.stats = std::mem::take(&mut old.stats);
        log.stats.splits += old.index.splits();
        log.stats.joins += old.index.joins();
        if let (Some(new), Some(old)) = (&mut log.stored, &mut old.stored) {
            new.swap_reads(old);
        }
        if let (Some(expiry), Some(flusher)) = (&self.expiry, &mut log.flusher) {
            flusher.stamp_with(expiry.of());
        }
    }

    /// Whether a checkpoint of what was handed over is being taken, or not decided yet.
    pub(in crate::hybrid_log) fn has_handed_over(&self) -> bool {
        self.with_captured(|_| ()).is_some()
    }

    /// Whether the checkpoint of what was handed over is whole.
    pub(in crate::hybrid_log) fn is_handed_over_whole(&self) -> bool {
        self.with_captured(|old| !old.is_capturing()).unwrap_or(false)
    }

    /// What was handed over and a checkpoint is of that is being taken, or not decided yet, if there is one.
    fn with_captured<R>(&self, with: impl FnOnce(&mut Self) -> R) -> Option<R> {
        let mut handed_over = self.handed_over.as_ref()?.borrow_mut();
        handed_over.captured().map(with)
    }

    /// A share of the checkpoint of what was handed over.
    pub(in crate::hybrid_log) fn continue_handed_over(
        &mut self,
        blobs: &BlobWriter,
    ) -> Result<Option<StateImage>> {
        let shared = self.with_captured(|old| old.continue_capture(blobs));
        shared.expect("a checkpoint of it is being taken")
    }

    /// What became of the checkpoint of what was handed over, of which nobody needs more now.
    pub(in crate::hybrid_log) fn decide_handed_over(&mut self, outcome: CheckpointOutcome) {
        let decided = self.with_captured(|old| {
            old.decide_capture(outcome);
            std::mem::take(&mut old.named_runs)
        });
        // No checkpoint of the log that goes on was begun: the one before is decided first.
        assert!(self.named_runs.is_empty(), "runs are named twice");
        self.named_runs = decided.expect("a checkpoint of it is not decided");
        self.release_step();
    }

    /// The stream has come so far.
    pub(super) fn pace_log(&mut self, pace: Pace) {
        if self.with_captured(|old| old.log.pace(pace)).is_none() {
            self.log.pace(pace);
        }
    }

    /// Drops some of what was handed over and no checkpoint needs; says whether there is more that can be dropped now.
    pub(in crate::hybrid_log) fn release_step(&mut self) -> bool {
        let Some(handed_over) = self.handed_over.take() else { return false };
        let has_more = handed_over.borrow_mut().drop_step();
        let left = handed_over.borrow();
        if left.logs.is_empty() {
            self.log.stats.add(&left.stats);
            self.log.beside = None;
            return false;
        }
        drop(left);
        self.handed_over = Some(handed_over);
        has_more
    }

    /// Whether no checkpoint needs more of it, or can have more: one that could not be told is to be written again, of
    /// what is being dropped.
    fn is_over(&self) -> bool {
        self.is_let_go || !self.needs_more()
    }

    /// Whether the helper has no page of it.
    fn is_left_by_helper(&mut self) -> bool {
        self.context.helper.drive();
        // What is lost, or cannot be written, is of a checkpoint that is decided, or has what it needs.
        let _ = self.log.poll();
        // One that is being told takes it back itself.
        if self.checkpoint.is_none() || self.has_ended() {
            let _ = self.take_late(false);
        }
        self.log.pending() == 0
    }

    /// Drops the next part of it, as nobody needs more: what is in memory, and a file that no checkpoint may name which is
    /// not decided. Says whether there was one.
    fn drop_part(&mut self) -> bool {
        let stored = self.log.stored.as_mut().filter(|_| self.checkpoint.is_none());
        let is_removed = stored.is_some_and(StoredSegments::remove_one);
        self.log.drop_part() || is_removed
    }

    /// Has what was handed over give about so many bytes up; says how many it gave.
    pub(super) fn reclaim_handed_over(&mut self, bytes: u64) -> Result<u64> {
        let Some(handed_over) = &self.handed_over else { return Ok(0) };
        let account = &self.context.account;
        let before = account.used();
        loop {
            let given = before.saturating_sub(account.used());
            if given >= bytes || !handed_over.borrow_mut().give_one()? {
                return Ok(given);
            }
        }
    }

    /// Bytes that are booked for what was handed over.
    pub(super) fn handed_over_for(&self, kind: MemoryKind) -> u64 {
        self.handed_over.as_ref().map_or(0, |old| old.borrow().booked_for(kind))
    }

    /// Counters of what was handed over, and the files that are there for it.
    pub(super) fn stats_handed_over(&self) -> TableStats {
        let Some(handed_over) = &self.handed_over else { return TableStats::default() };
        let handed_over = handed_over.borrow();
        let mut stats = handed_over.stats;
        for LogCore { log, .. } in &handed_over.logs {
            let disk_bytes = log.stored.as_ref().map_or(0, StoredSegments::bytes);
            stats.add(&TableStats { disk_bytes, ..log.stats });
        }
        stats
    }
}

impl HandedOver {
    /// The one that a checkpoint is of which is being taken, or not decided yet.
    fn captured(&mut self) -> Option<&mut LogCore> {
        self.logs.iter_mut().find(|old| old.checkpoint.is_some())
    }

    /// Drops the next part of the last one of which nobody needs more; says whether there was one.
    fn drop_part(&mut self) -> bool {
        for at in (0..self.logs.len()).rev() {
            let old = &mut self.logs[at];
            if !old.is_over() || !old.is_left_by_helper() {
                continue;
            }
            old.is_let_go = true;
            // Its memory does not wait for the helper.
            if old.drop_part() || old.checkpoint.is_none() && old.log.abandon_strays() {
                return true;
            }
            if old.checkpoint.is_none() && old.late.is_empty() {
                self.stats.add(&old.log.stats);
                self.logs.remove(at);
                return true;
            }
        }
        false
    }

    /// Drops parts until some memory is given back; says whether it was.
    fn drop_until_less(&mut self) -> bool {
        let before = self.booked();
        while self.booked() == before {
            if !self.drop_part() {
                return false;
            }
        }
        true
    }

    fn booked(&self) -> u64 {
        self.logs.iter().map(|old| old.log.account.used()).sum()
    }

    fn booked_for(&self, kind: MemoryKind) -> u64 {
        self.logs.iter().map(|old| old.log.account.used_for(kind)).sum()
    }
}

impl LogNeighbor for HandedOver {
    fn give_one(&mut self) -> Result<bool> {
        if self.drop_until_less() {
            return Ok(true);
        }
        match self.captured().filter(|old| !old.is_over()) {
            Some(old) => old.log.give_one(),
            None => Ok(false),
        }
    }

    fn force_one(&mut self) -> Result<bool> {
        if self.drop_until_less() {
            return Ok(true);
        }
        let mut stands = Ok(false);
        for old in self.logs.iter_mut().rev().filter(|old| old.is_over()) {
            // Nobody needs a page of it that cannot be written.
            match old.log.wait_for_all() {
                Err(error) if error.kind() == ErrorKind::Backpressure => stands = Err(error),
                _ => {}
            }
        }
        if self.drop_until_less() {
            return Ok(true);
        }
        for old in self.logs.iter_mut().rev().filter(|old| !old.is_over()) {
            old.overtake_capture();
            old.log.wait_for_all()?;
        }
        if self.drop_until_less() { Ok(true) } else { stands }
    }

    fn relieve(&mut self) -> bool {
        let is_some = self.drop_step();
        let captured = self.captured().filter(|old| !old.is_over());
        is_some || captured.is_some_and(|old| old.log.leave_step())
    }

    fn drop_step(&mut self) -> bool {
        (0..QUANTUM).all(|_| self.drop_part())
    }

    fn elastic_bytes(&self) -> u64 {
        self.booked_for(MemoryKind::Pages) + self.booked_for(MemoryKind::Values)
    }

    fn bytes_for(&self, kind: MemoryKind) -> u64 {
        self.booked_for(kind)
    }
}
