//! A log that is cleared while a checkpoint is yet to have more of it is handed over to the checkpoint, as it is: frames,
//! index, and segments. The stream goes on with another one, which is empty.
//!
//! The shares of the checkpoint are those of the log that was handed over. When it is whole, memory is given back, some
//! pages with each call, and the index with the last; when it is decided, files are removed. Reads that run ahead stay with the table, as those who
//! wait for them know their tickets.
//!
//! What it keeps true:
//! - One log at a time is handed over. If there is one already, or no memory for another beside it, the checkpoint that
//!   needs more is lost; and so it is if the stream needs the memory of what was handed over before it is whole: then
//!   that goes in one call, as when a state is cleared.
//! - All that the log that was handed over takes is booked, on an account of its own below the state's.
//! - The state's segments are those of the log that goes on: no checkpoint that was confirmed names one of them.

use std::cell::RefCell;
use std::rc::Rc;

use alluvium_pagestore::{
    Account, BlobWriter, Key, MEMORY_KINDS, MemoryKind, Result, State, StateImage,
};

use super::{HybridLogTable, Rewriter, fixed_bytes};
use crate::hybrid_log::config::{FRAMES_MIN, Sizes};
use crate::hybrid_log::index::Index;
use crate::hybrid_log::log::{Beside, Bookings, Log};
use crate::hybrid_log::stored::Stored;
use crate::table::{CheckpointOutcome, Pace, StateContext, TableStats};

/// What was there before the state was cleared, of which a checkpoint is yet to have more.
pub(in crate::hybrid_log) type HandedOver<K, V> = Rc<RefCell<HybridLogTable<K, V>>>;

impl<K: Key, V: State> HybridLogTable<K, V> {
    /// Hands all there is over to the checkpoint that is being taken, if that needs more of it and there is memory
    /// to go on with; says whether it did. Cost: that of opening an empty log, and of dropping what is left of the one before.
    /// Nothing is waited for.
    pub(super) fn hand_over(&mut self) -> bool {
        if !self.needs_more() {
            return false;
        }
        // The one before, if it is over.
        while self.let_go_of_some() {}
        if self.handed_over.is_some() {
            return false;
        }
        let Some((log, booked)) = self.open_beside() else { return false };
        let account = &self.context.account;
        let below = Account::below(account, &self.context.name, u64::MAX);
        let mut old = std::mem::replace(&mut self.log, log);
        old.book_on(&below, booked);
        self.take_over_from(&mut old);
        let handed_over = Rc::new(RefCell::new(Self {
            handed_over: None,
            left_pass: None,
            log: old,
            context: StateContext { account: below, ..self.context.clone() },
            rewriter: Rewriter::default(),
            capture: self.capture.take(),
            known_deaths: std::mem::take(&mut self.known_deaths),
            late: std::mem::take(&mut self.late),
            expiry: None,
            scratch: None,
            touched: Box::default(),
            group: Box::default(),
            group_reads: false,
        }));
        self.log.beside = Some(handed_over.clone());
        self.handed_over = Some(handed_over);
        true
    }

    /// An empty log like this one but for read buffers, if there is memory for it; and what is booked for this one, by
    /// kind, without those.
    fn open_beside(&mut self) -> Option<(Log<K, V>, Bookings)> {
        let sizes = self.log.sizes.clone();
        let lean = Sizes { queue_depth: 0, ..sizes.clone() };
        // The first pages of the other one this one may give up.
        let pages = FRAMES_MIN * lean.frame_bytes;
        let given = if self.log.can_give(pages) { pages } else { 0 };
        if !self.log.free_at_once(lean.memory_bytes_min(true) - given) {
            return None;
        }
        let booked = self.booked_for_log();
        let (account, helper) = (&self.context.account, self.context.helper.clone());
        let mut index = Index::new(account.clone(), sizes.buckets, Some(helper)).ok()?;
        if self.context.movable {
            index.expect_few_of(self.context.key_groups);
        }
        index.expect(self.log.index.expected());
        let buffers = lean.buffer_bytes(true);
        account.try_reserve(MemoryKind::Buffers, buffers).then_some(())?;
        let mut log = Log::open(&self.context, lean, index);
        log.sizes = sizes;
        Some((log, booked))
    }

    /// What is booked for the log, and not for reads and what else is the table's.
    fn booked_for_log(&self) -> Bookings {
        let left = self.log.stored.as_ref().map_or(0, Stored::left_bytes);
        let left_pass = self.left_pass.as_ref().map_or(0, |(_, booked)| booked.bytes);
        let asked =
            self.expiry.map_or(0, |expiry| expiry.booked_bytes::<K>(self.context.max_value_bytes));
        let kept = fixed_bytes() + self.log.sizes.read_buffer_bytes() + left + left_pass + asked;
        MEMORY_KINDS.map(|kind| {
            let booked = self.log.account.used_for(kind);
            (kind, if kind == MemoryKind::Buffers { booked - kept } else { booked })
        })
    }

    /// The new log goes on with what is not the old one's alone.
    fn take_over_from(&mut self, old: &mut Log<K, V>) {
        let log = &mut self.log;
        log.stats = std::mem::take(&mut old.stats);
        log.stats.splits += old.index.splits();
        if let (Some(new), Some(old)) = (&mut log.stored, &mut old.stored) {
            new.swap_reads(old);
        }
        if let (Some(expiry), Some(flusher)) = (&self.expiry, &mut log.flusher) {
            flusher.stamp_with(expiry.of());
        }
    }

    /// Whether a checkpoint of what was handed over is being taken, or not decided yet.
    pub(in crate::hybrid_log) fn has_handed_over(&self) -> bool {
        self.handed_over.as_ref().is_some_and(|handed_over| handed_over.borrow().capture.is_some())
    }

    /// Whether the checkpoint of what was handed over is whole.
    pub(in crate::hybrid_log) fn is_handed_over_whole(&self) -> bool {
        self.handed_over.as_ref().is_some_and(|handed_over| !handed_over.borrow().is_capturing())
    }

    /// A share of the checkpoint of what was handed over.
    pub(in crate::hybrid_log) fn continue_handed_over(
        &mut self,
        blobs: &BlobWriter,
    ) -> Result<Option<StateImage>> {
        let handed_over = self.handed_over.as_ref().expect("a checkpoint of it is being taken");
        handed_over.borrow_mut().continue_capture(blobs)
    }

    /// What became of the checkpoint of what was handed over, of which nobody needs more now.
    pub(in crate::hybrid_log) fn decide_handed_over(&mut self, outcome: CheckpointOutcome) {
        let handed_over = self.handed_over.as_ref().expect("a checkpoint of it is not decided");
        handed_over.borrow_mut().decide_capture(outcome);
        self.let_go_of_some();
    }

    /// The stream has come so far.
    pub(super) fn pace_log(&mut self, pace: Pace) {
        match &self.handed_over {
            Some(handed_over) if self.has_handed_over() => handed_over.borrow_mut().log.pace(pace),
            _ => self.log.pace(pace),
        }
    }

    /// Gives some of what was handed over back when its checkpoint is decided; says whether there is more that can be
    /// given back now.
    pub(in crate::hybrid_log) fn let_go_of_some(&mut self) -> bool {
        let Some(handed_over) = &self.handed_over else { return false };
        let mut old = handed_over.borrow_mut();
        if !old.is_over() || !old.is_left_by_helper() {
            return false;
        }
        if old.log.abandon_strays() || !old.log.drop_some() {
            return true;
        }
        if old.capture.is_some() {
            // What became of the checkpoint is not told yet.
            return false;
        }
        old.log.stored.iter_mut().for_each(Stored::remove_all);
        self.log.stats.add(&old.log.stats);
        drop(old);
        self.log.beside = None;
        self.handed_over = None;
        false
    }

    /// Whether no checkpoint needs more of it.
    fn is_over(&self) -> bool {
        self.capture.is_none() || self.has_ended()
    }

    /// Whether the helper has nothing more of it.
    fn is_left_by_helper(&mut self) -> bool {
        self.context.helper.drive();
        // What is lost, or cannot be written, is of a checkpoint that is decided.
        let _ = self.log.poll();
        let _ = self.take_late(false);
        self.log.pending() == 0 && self.late.is_empty()
    }

    /// Has what was handed over give about so many bytes up; says how many it gave.
    pub(super) fn reclaim_handed_over(&mut self, bytes: u64) -> Result<u64> {
        let Some(handed_over) = &self.handed_over else { return Ok(0) };
        let mut old = handed_over.borrow_mut();
        let before = old.log.account.used();
        loop {
            let given = before.saturating_sub(old.log.account.used());
            if given >= bytes || !old.give_one()? {
                return Ok(given);
            }
        }
    }

    /// Bytes that values own which were handed over.
    pub(super) fn values_handed_over(&self) -> u64 {
        let old = self.handed_over.as_ref();
        old.map_or(0, |old| old.borrow().log.account.used_for(MemoryKind::Values))
    }

    /// Counters of what was handed over, and the files that are there for it.
    pub(super) fn stats_handed_over(&self) -> TableStats {
        let Some(handed_over) = &self.handed_over else { return TableStats::default() };
        let old = handed_over.borrow();
        let disk_bytes = old.log.stored.as_ref().map_or(0, Stored::bytes);
        TableStats { disk_bytes, ..old.log.stats }
    }
}

impl<K: Key, V: State> Beside for HybridLogTable<K, V> {
    fn give_one(&mut self) -> Result<bool> {
        if !self.is_over() {
            return self.log.give_one();
        }
        if !self.is_left_by_helper() {
            return Ok(false);
        }
        let before = self.log.account.used();
        while self.log.account.used() == before && !self.log.drop_some() {}
        Ok(self.log.account.used() < before)
    }

    fn give_all(&mut self) -> Result<bool> {
        let before = self.log.account.used();
        self.overtake_capture();
        self.log.wait_for_all()?;
        while !self.log.drop_some() {}
        Ok(self.log.account.used() < before)
    }

    fn relieve(&mut self) -> bool {
        match self.is_over() {
            true => self.is_left_by_helper() && !self.log.drop_some(),
            false => self.log.leave_some(),
        }
    }

    fn elastic_bytes(&self) -> u64 {
        self.log.booked_for_pages()
    }
}
