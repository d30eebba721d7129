//! A log that has no cold tier yet, and gets one once its index takes too much of the memory.
//!
//! Until then nothing is booked for the tier and no call asks for it. The index is *held* at some bytes: the split that
//! would pass them is refused, which is met where memory is short. There it is looked how much the index may have beside a
//! tier. If it has less, it is held there from then on; if it has come so far, the tier begins, while there is memory for
//! its work and records that could move. A tier to which none could move goes again.

use std::sync::Arc;

use alluvium_pagestore::io::Waker;
use alluvium_pagestore::{MemoryKind, Result};

use super::ColdTier;
use super::moving::has_long_records;
use super::paying::begins_at;
use crate::contract::table::StateContext;
use crate::hybrid_log::log::Log;
use crate::hybrid_log::stored::StoredSegments;
use crate::trace_event;

/// The index is looked at for the first time when it has one part in so many of the memory. Below one part in so few no
/// page leaves memory for that.
const FIRST_SHARE: u64 = 32;
const LITTLE_SHARE: u64 = 8;
/// Where there is no memory for a tier it is looked again when the index has grown by one part in so many.
const AGAIN_SHARE: u64 = 16;
/// The same after a tier to which nothing could move.
const USELESS_SHARE: u64 = 4;

/// What a tier is made of. It stays when the tier begins.
#[derive(Debug)]
pub struct TierSetup {
    context: StateContext,
    waker: Option<Arc<Waker>>,
    /// Bytes of the index for which a tier began since memory had no room for one entry more.
    began_in_need_at: u64,
}

impl TierSetup {
    /// The index is smaller than it was: a tier may begin in need again.
    pub fn was_cleared(&mut self) {
        self.began_in_need_at = 0;
    }

    /// Wakes somebody at the end of each read of the tier that is started ahead.
    pub fn wake_with(&mut self, waker: Arc<Waker>) {
        self.waker = Some(waker);
    }
}

impl Log {
    /// Has the log get a tier once its index takes too much, if it is to and can have one.
    pub fn may_get_cold(&mut self, context: &StateContext) {
        let has_memory = self.account.limit() >= self.sizes.cold_runs_from;
        let may = self.sizes.cold_runs_later && self.cold.is_none() && context.segments.is_some();
        if may
            && has_memory
            && ColdTier::may_hold(self.record_type)
            && ColdTier::check(context, &self.sizes).is_ok()
        {
            let context = StateContext { restored: None, ..context.clone() };
            self.later = Some(Box::new(TierSetup { context, waker: None, began_in_need_at: 0 }));
            self.hold_index();
        }
        // What was restored has the memory that it had, whatever others have to make again.
        self.index.ask_for_pages(self.later.is_some() || self.cold.is_some());
    }

    /// Goes on for a log that was cleared.
    pub fn may_get_cold_as(&mut self, old: &mut Log) {
        self.later = old.later.take();
        self.later.iter_mut().for_each(|later| later.was_cleared());
        if self.later.is_some() && self.cold.is_none() {
            self.hold_index();
        }
        self.index.ask_for_pages(self.later.is_some() || self.cold.is_some());
        self.account.keep_for_work(0, 0);
        self.keep_for_work();
    }

    fn hold_index(&mut self) {
        self.index.hold_at(self.account.limit() / FIRST_SHARE);
    }

    /// The log never gets a tier.
    pub fn gets_no_cold(&mut self) {
        self.later = None;
        self.index.hold_at(u64::MAX);
        self.index.ask_for_pages(self.cold.is_some());
        self.account.keep_for_work(0, 0);
    }

    /// Looks at an index that was refused a split since it is held. Says whether it may have more now.
    pub(in crate::hybrid_log) fn look_at_index(&mut self) -> bool {
        let is_held = self.later.is_some() && self.cold.is_none();
        let Some(wanted) = self.index.wanted_beyond().filter(|_| is_held) else { return false };
        let again = wanted + wanted / AGAIN_SHARE;
        // Of a log that was cleared the index is dropped soon.
        let of_cleared =
            self.account.used_for(MemoryKind::Index) - self.own_bytes_for(MemoryKind::Index);
        let hold = match self.make_cold() {
            false => Some(again),
            true => {
                // What the index may have beside the tier's work depends on that.
                let begins_at = begins_at(self.index_bytes_max());
                match wanted - of_cleared <= begins_at {
                    // Others may take memory meanwhile.
                    true => Some(again.min(begins_at + of_cleared)),
                    // What is cold is in memory still, and may be for a while.
                    false
                        if !self.has_a_batch(false)
                            && self.has_room_for_work(again - wanted, false) =>
                    {
                        Some(again)
                    }
                    false => None,
                }
            }
        };
        self.keep_for_work();
        match hold {
            Some(bytes) => {
                self.cold = None;
                self.index.hold_at(bytes.max(wanted));
            }
            None => {
                self.cold_has_begun();
                let memory = self.account.limit();
                trace_event!(
                    INFO,
                    "cold records move to sorted runs from now on",
                    state = &*self.name,
                    index = wanted,
                    memory = memory
                );
            }
        }
        true
    }

    pub(super) fn cold_has_begun(&mut self) {
        self.index.hold_at(u64::MAX);
        let waker = self.later.as_ref().and_then(|later| later.waker.clone());
        if let (Some(cold), Some(waker)) = (&mut self.cold, waker) {
            cold.wake_with(waker);
        }
    }

    /// Begins a tier since memory has no room for one entry more, once for each size of the index, and to move records.
    /// Says whether there is one then. What its work takes comes from other states, if it has to.
    pub(in crate::hybrid_log) fn move_in_need(&mut self) -> Result<bool> {
        let index = self.index_bytes();
        let is_new = |later: &mut Box<TierSetup>| {
            std::mem::replace(&mut later.began_in_need_at, index) < index
        };
        let may = self.cold.is_none() && self.later.as_mut().is_some_and(is_new);
        if !may || !self.make_cold() {
            return Ok(false);
        }
        let moved = self.must_move_down();
        match &moved {
            Ok(true) if self.cold.is_some() => self.cold_has_begun(),
            _ => self.drop_cold(),
        }
        moved
    }

    /// Drops a tier that may begin again. Other states leave the log what its work lacks.
    pub(super) fn drop_cold(&mut self) {
        self.cold.iter_mut().for_each(|cold| cold.purse.give_back());
        self.keep_for_work();
        self.cold = None;
    }

    /// Makes a tier without records, if there is memory for one. Says whether there was.
    pub(super) fn make_cold(&mut self) -> bool {
        let Some(later) = &self.later else { return false };
        let needed = (ColdTier::opening_bytes(&later.context), "counts of keys in runs");
        let is_little = LITTLE_SHARE * self.index_bytes() < self.account.limit();
        let has_room = self.account.available() >= needed.0;
        if !has_room && (is_little || self.make_free(needed).is_err()) {
            return false;
        }
        let made = self
            .later
            .as_ref()
            .and_then(|later| ColdTier::new(&later.context, self.record_type, &self.sizes));
        self.cold = made.map(Box::new);
        self.cold.is_some()
    }

    /// Whether there are records on storage to fill a batch, of which some may be too long to move.
    fn has_a_batch(&self, also_long: bool) -> bool {
        let Some(cold) = &self.cold else { return false };
        let live_of = |stored: &StoredSegments| -> u64 {
            let may_move = |number: &u32| {
                let info = stored.info(*number);
                info.sealed && (also_long || !has_long_records(info))
            };
            let sealed = stored.numbers().filter(may_move);
            sealed.map(|number| u64::from(stored.live_of(number))).sum()
        };
        let sealed = self.stored.as_ref().map_or(0, live_of);
        self.index.stored().min(sealed) >= cold.work.batch_records as u64
    }

    /// A tier to which nothing could move goes, if it began by itself. The index is looked at again when it has grown.
    pub(super) fn leave_useless_cold(&mut self) {
        let is_useless = self.cold.as_ref().is_some_and(|cold| cold.is_useless());
        if is_useless && self.later.is_some() && self.has_a_batch(true) {
            self.cold = None;
            self.account.keep_for_work(0, 0);
            let index = self.account.used_for(MemoryKind::Index);
            self.index.hold_at(index + index / USELESS_SHARE);
        }
    }

    /// The same for one whose work never had memory: it begins again when the index has grown, or where memory has no
    /// room for one entry more.
    pub(super) fn leave_cold_without_memory(&mut self) {
        if self.later.is_some() && self.cold.as_ref().is_some_and(|cold| cold.is_unused()) {
            self.drop_cold();
            let index = self.account.used_for(MemoryKind::Index);
            self.index.hold_at(index + index / AGAIN_SHARE);
        }
    }
}
