//! How a checkpoint gets what is in memory at its barrier, while the stream goes on.
//!
//! Frames begun before the barrier are *due*: no record in them that was fresh at the barrier changes
//! before the helper has it. There are two ways to do that. Records that are a few bytes and no more are
//! copied: all fresh ones of a frame into a frame of copies, which the helper writes, and they change
//! where they are again at once. What owns heap, and what there is no memory to copy for, is frozen with its
//! frame until it is written. Either way the frame stays in memory, mutable, and its records know where they
//! are on storage, until they change; a frame in which nothing is fresh is not written.
//!
//! How fast that goes follows the stream: see [`Log::pace`].
//!
//! A checkpoint that is given up leaves all that as it is. What is fresh since an epoch before stays so, and is of the
//! next checkpoint as well; the marks of what has died and the copies go a frame at a time, when
//! somebody comes to it: see [`Log::end_sealing`].
//!
//! What it keeps true:
//! - Due frames that nobody has looked at stand in a row, behind those that are sealed.
//! - Nothing that was begun after the barrier is given to the helper before the order to seal is.

use std::ops::Range;
use std::time::Instant;

use alluvium_pagestore::{Error, Result};

use super::{FROZEN_MAX, Log};
use crate::contract::table::Pace;
use crate::contract::table::pace::pay;
use crate::hybrid_log::flush::WrittenSlots;
use crate::hybrid_log::frame_unsafe::{FreshFilter, MarkEpoch};
use crate::hybrid_log::frames_unsafe::FrameStage;
use crate::hybrid_log::stored::SegmentBefore;
use crate::trace_event;

/// What a call does, in frames that are passed over.
const SHARE: usize = 64;
/// What looking at each slot of a frame is worth, and what copying all of them is beside.
const LOOK: usize = 16;
const COPY: usize = 16;
/// Slots that are looked at for each call of the stream where little is to be copied: a seventh of its
/// time or less.
const SLOTS_PER_CALL: u64 = 4;
/// Each record that is to be copied saves as many slots: where it is one of so many, the stream would soon
/// come to it.
const DUE_PER_SLOT: u32 = 8;
/// What is not looked at now may be later, up to so many frames at once, or one step over the index.
const CREDIT_FRAMES_MAX: u64 = 4;
/// What looking at a segment of the index is worth, in slots.
pub const INDEX_SEGMENT_SLOTS: u64 = 1024;

/// What became of the next due frame.
enum FreezeOutcome {
    /// It is passed, which was worth so much.
    Worth(usize),
    /// The stream goes first.
    Later,
    /// It is to be written where it is, or there is none.
    Not,
}

/// How far the due frames of a checkpoint are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SealProgress {
    /// No checkpoint is being taken, or all of its frames are there to be read.
    #[default]
    Idle,
    /// Frames are to be frozen yet.
    Freezing,
    /// All are with the helper, and so is their segment.
    Handed,
    /// Their segments are durable.
    Sealed,
    /// Not all could be written.
    Failed,
}

/// What is known of the last barrier, and of the checkpoint that is being taken from there.
#[derive(Debug, Default)]
pub(super) struct LogBarrier {
    /// How many there were: frames begun before the last one are of the checkpoint that began there.
    epoch: u32,
    /// Frames of earlier epochs are due: what was fresh in them at the barrier does not change until it is
    /// copied or written. 0 while no checkpoint is being taken.
    due_before: u32,
    /// The epoch of the last checkpoint that was given up: frames of epochs before may have records marked as dead that nobody is
    /// to have.
    given_up: u32,
    /// Records are fresh since this epoch or a later one.
    fresh_from: u32,
    /// Frames from this number on are still to be rid of what the last checkpoint that was given up has left.
    carrying: Option<u32>,
    /// Whether the segment with the last of the due frames was given to be sealed.
    sealing: SealProgress,
    /// The segments as they were at the barrier, from when they are durable.
    segments: Vec<SegmentBefore>,
    /// Slots of records that have not changed that a checkpoint may look at before the stream has made
    /// more calls; any number if there is none.
    credit: Option<u64>,
    /// The same in calls, for copies that the helper is given.
    page_credit: Option<u64>,
    /// How much was over of the time of the checkpoint before the last share.
    gone: u64,
    /// Records that were on storage nowhere at its barrier.
    all_due: u64,
}

impl LogBarrier {
    #[inline]
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Whether a checkpoint is being taken.
    #[inline(always)]
    pub fn is_open(&self) -> bool {
        self.due_before > 0
    }

    /// Whether a frame of this epoch is yet to be written for a checkpoint.
    pub fn is_due(&self, epoch: u32) -> bool {
        epoch < self.due_before
    }

    pub fn sealing(&self) -> SealProgress {
        self.sealing
    }

    /// The last of the due frames was given to be sealed.
    pub fn hand_over(&mut self) {
        self.sealing = SealProgress::Handed;
    }

    /// Not all could be written.
    pub fn fail(&mut self) {
        self.sealing = SealProgress::Failed;
    }

    /// A page could not be written. If the order to seal is given, it would be written among frames of the next checkpoint.
    pub fn page_failed(&mut self) {
        if self.sealing == SealProgress::Handed {
            self.fail();
        }
    }

    /// The segments of the checkpoint of this epoch are durable, or could not be made so.
    pub fn sealed(&mut self, is_sealed: bool, segments: Vec<SegmentBefore>) {
        self.sealing = if is_sealed { SealProgress::Sealed } else { SealProgress::Failed };
        self.segments = segments;
    }

    /// Whether the helper has the order to seal the segments of the checkpoint of this epoch.
    pub fn awaits_seal(&self, epoch: u32) -> bool {
        self.sealing == SealProgress::Handed && epoch == self.epoch
    }

    /// Whether numbers of epochs come again after the next barrier.
    fn is_last(&self) -> bool {
        self.epoch - self.fresh_from + 2 > MarkEpoch::COUNT
    }

    /// Another barrier, at which so many records were on storage nowhere.
    fn begin(&mut self, all_due: u64) {
        self.epoch += 1;
        self.due_before = self.epoch;
        self.sealing = SealProgress::Freezing;
        (self.credit, self.page_credit, self.gone) = (None, None, 0);
        self.all_due = all_due;
    }

    /// The checkpoint has its image, or is given up; the helper has frames of it still.
    fn end(&mut self, given_up: bool, has_frozen: bool) {
        self.due_before = 0;
        if given_up {
            self.given_up = self.epoch;
            self.carrying = Some(0);
        } else {
            // Nothing is fresh since before.
            self.fresh_from = self.epoch;
        }
        // Frames that are with the helper are waited for by the next barrier.
        self.sealing =
            if given_up && has_frozen { SealProgress::Failed } else { SealProgress::Idle };
    }

    /// The epoch of the last checkpoint that was given up.
    pub fn given_up(&self) -> u32 {
        self.given_up
    }

    /// The frame that is next to be rid of what the last checkpoint that was given up has left.
    pub fn carrying(&self) -> Option<u32> {
        self.carrying
    }

    /// The next one is.
    pub fn carry_on(&mut self) {
        self.carrying = self.carrying.map(|number| number + 1);
    }

    /// None is any more.
    pub fn stop_carrying(&mut self) {
        self.carrying = None;
    }

    /// Nothing is fresh since before this epoch.
    pub fn is_carried(&mut self) {
        self.fresh_from = self.epoch;
    }
}

impl Log {
    /// A checkpoint begins: what is in memory now is of it. Cost: O(1), but for frames that a
    /// checkpoint that was given up has left with the helper. Once in [`MarkEpoch::COUNT`] of those that were given up
    /// one after the other: a look at each slot.
    pub fn barrier(&mut self) -> Result<()> {
        let start = Instant::now();
        let is_last = self.barrier.is_last();
        let is_idle = self.barrier.sealing == SealProgress::Idle;
        while (!is_idle || is_last) && self.eviction.frozen() > 0 {
            self.wait()?;
            self.check_patience(start)?;
        }
        if is_last {
            self.carry_all_over();
        }
        self.barrier.stop_carrying();
        let stored = self.stored.as_mut().expect("a stored log");
        stored.barrier();
        self.barrier.begin(self.index.len().saturating_sub(stored.live_records()));
        // A key that panicked while a frame was freed has left it.
        self.eviction.set_freeing(false);
        self.ring.leave_all();
        self.frames.next_epoch();
        Ok(())
    }

    /// The segments as they were at the barrier, from when they are durable.
    pub fn segments_at_barrier(&self) -> &[SegmentBefore] {
        &self.barrier.segments
    }

    /// The checkpoint being taken cannot be ended.
    pub fn fail_sealing(&mut self) {
        self.barrier.fail();
    }

    /// Whether the oldest frame that is not sealed is due.
    pub(super) fn is_next_due(&self) -> bool {
        self.ring.next_unsealed().is_some_and(|number| self.is_due(number))
    }

    /// Whether the frame is yet to be written for a checkpoint.
    pub(super) fn is_due(&self, number: u32) -> bool {
        self.barrier.is_due(self.frames.state(number).epoch)
    }

    /// How many records of a frame the checkpoint is to have from there.
    pub(super) fn due_of(&self, number: u32) -> u32 {
        self.frame(number).due(self.frames.epoch())
    }

    /// Whether nothing is left to be given to the helper for the checkpoint but the order to seal.
    pub(super) fn is_all_given(&self) -> bool {
        let is_freezing = self.barrier.sealing == SealProgress::Freezing;
        let is_written = self.eviction.failed() == 0 && self.copies.is_none();
        is_freezing && is_written && !self.is_next_due()
    }

    /// The stream has come so far since the last share of the checkpoint, which follows it: by its calls, or by
    /// the time that is over, whichever says more.
    pub fn pace(&mut self, pace: Pace) {
        let barrier = &mut self.barrier;
        let Some(earned) = pace.earned(&mut barrier.gone) else {
            (barrier.credit, barrier.page_credit) = (None, None);
            return;
        };
        let (slots, per_record) = (u64::from(self.sizes.slots), self.sizes.calls_per_record);
        let all_slots = self.ring.len() as u64 * slots;
        let most = INDEX_SEGMENT_SLOTS.max(CREDIT_FRAMES_MAX * slots);
        barrier.credit = earned.add(barrier.credit, SLOTS_PER_CALL, all_slots, most);
        let all_due = barrier.all_due.saturating_mul(per_record);
        let pages = FROZEN_MAX as u64 * slots * per_record;
        barrier.page_credit = earned.add(barrier.page_credit, 1, all_due, pages);
    }

    /// Whether the helper may have the next copies now: not before the stream has made some calls for each,
    /// unless copies fill the memory that there is for them. Pays for them.
    fn may_give(&mut self) -> bool {
        let Some(next) = self.copies.next() else { return false };
        let Some(credit) = self.barrier.page_credit else { return true };
        let is_full = self.copies.len() + self.eviction.frozen() >= self.sizes.copies_max;
        let left = credit.checked_sub(u64::from(next.frame.used()) * self.sizes.calls_per_record);
        self.barrier.page_credit = Some(left.unwrap_or(if is_full { 0 } else { credit }));
        left.is_some() || is_full || self.is_short()
    }

    /// Takes what looking at so many slots is worth from what there is; says whether there was as much.
    pub fn pay(&mut self, slots: u64) -> bool {
        pay(&mut self.barrier.credit, slots)
    }

    /// Does a bounded share of writing what was in memory at the barrier, and says how far it is.
    pub fn seal_step(&mut self) -> Result<SealProgress> {
        self.poll()?;
        let mut left = SHARE;
        while self.barrier.sealing == SealProgress::Freezing && left > 0 {
            let has_room = self.eviction.may_freeze();
            let spent = if self.end_stale_copies() {
                LOOK
            } else if self.is_all_given() {
                self.hand_over();
                left
            } else if has_room && (self.eviction.failed() > 0 || self.may_give()) {
                self.freeze_oldest();
                1
            } else {
                match self.pass_next() {
                    FreezeOutcome::Worth(spent) => spent,
                    FreezeOutcome::Later => left,
                    FreezeOutcome::Not if has_room && self.copies.len() == 0 => {
                        usize::from(self.freeze_oldest()).max(1)
                    }
                    FreezeOutcome::Not => left,
                }
            };
            left = left.saturating_sub(spent);
        }
        self.flusher.as_mut().expect("a stored log").drive();
        self.poll()?;
        Ok(self.barrier.sealing)
    }

    /// Passes over the next due frame, if it has nothing to be written, or copies what it has, if
    /// that can be done.
    fn pass_next(&mut self) -> FreezeOutcome {
        let next = self.ring.next_unsealed();
        let Some(number) = next.filter(|&number| self.is_due(number)) else {
            return if self.copies.close() { FreezeOutcome::Worth(1) } else { FreezeOutcome::Not };
        };
        if self.drop_given_up(number) {
            return FreezeOutcome::Worth(LOOK);
        }
        if self.frame(number).used() == 0 {
            self.retire(number);
            return FreezeOutcome::Worth(1);
        }
        let due = self.due_of(number);
        if due == 0 {
            self.renew(number);
            return FreezeOutcome::Worth(1);
        }
        if self.needs_reaper() {
            return FreezeOutcome::Not;
        }
        let slots = self.sizes.slots;
        // The stream waits for nothing while few records are due; many are copied before it comes to them.
        let idle = u64::from(slots.saturating_sub(due.saturating_mul(DUE_PER_SLOT)));
        if !self.pay(idle) {
            return FreezeOutcome::Later;
        }
        let Some(is_new) = self.copy_due(number) else { return FreezeOutcome::Not };
        self.renew(number);
        // A frame's memory is touched for the first time as it is made: no two with a share.
        let made = if is_new { SHARE } else { 0 };
        FreezeOutcome::Worth(LOOK + COPY * due as usize / slots as usize + made)
    }

    /// A frame has nothing more to be written for the checkpoint: its records change where they are.
    pub(super) fn renew(&mut self, number: u32) {
        self.ring.renew(number);
        let epoch = self.barrier.epoch;
        let state = self.frames.state_mut(number);
        (state.stage, state.epoch) = (FrameStage::Mutable, epoch);
        if state.dead > 0 {
            self.drop_dead(number);
        }
        // The last of the dead may have retired it.
        if self.stage(number) != FrameStage::Vacant {
            self.offer(number);
            self.frames.shorten(number);
        }
    }

    /// Whether the free slots of a frame are worth it to be filled.
    fn offer(&mut self, number: u32) {
        let state = self.frames.state(number);
        let (used, slots) = (self.frame(number).used(), self.sizes.slots);
        let heap_max = self.sizes.frame_heap_bytes;
        let has_room =
            used <= slots - slots.div_ceil(8) && state.heap_bytes <= heap_max - heap_max / 8;
        if has_room {
            self.ring.offer(number);
        }
    }

    /// A page's number of a segment, and the numbers that it adds to.
    pub(super) fn page_written(
        &mut self,
        number: u32,
        result: Result<Vec<WrittenSlots>>,
    ) -> Result<Vec<(u32, Range<u32>)>> {
        let parts = result?;
        parts.into_iter().map(|part| self.part_written(number, part)).collect()
    }

    /// Some slots of a frame were written; says to which segment.
    fn part_written(&mut self, number: u32, part: WrittenSlots) -> Result<(u32, Range<u32>)> {
        let WrittenSlots { page, records, slots } = part;
        self.stats.codec_calls += records;
        self.stats.flushed_bytes += page.bytes;
        let (name, bytes) = (&*self.name, page.bytes);
        trace_event!(
            DEBUG,
            "page written",
            state = name,
            page = number,
            records = records,
            bytes = bytes,
        );
        let stored = self.stored.as_mut().expect("a flusher has a store");
        Ok((stored.update(&page.segment, records)?, slots))
    }

    /// Tells whoever calls next.
    pub(super) fn page_failed(&mut self, error: Error) {
        trace_event!(
            WARN,
            "page not written",
            state = &*self.name,
            error = error.to_string().as_str(),
        );
        self.flush_error = Some(error.with("state", &self.name));
    }

    /// A frame was written, where it was: its records have their places, and what died in it
    /// meanwhile is known there, and goes.
    pub(super) fn settle_page(
        &mut self,
        number: u32,
        parts: &[(u32, Range<u32>)],
        due: FreshFilter,
    ) {
        let state = self.frames.state(number);
        let (marked, is_due) = (state.dead, self.is_due(number));
        if marked > 0 {
            // Once a checkpoint is given up, what died before its barrier is of the next one as well.
            let odd_before = self.barrier.is_open().then_some(self.barrier.epoch % 2 == 0);
            let frame = state.frame.as_ref().expect("a frame in use");
            let stored = self.stored.as_mut().expect("a clean frame is stored");
            for (segment, slots) in parts {
                // Of those that were on storage before it is known already.
                let written = slots.clone().filter(|&slot| frame.is_due(slot, due));
                let died = |slot: u32| Some((frame.grain(slot), frame.death(slot)?));
                let deaths = written.filter_map(died);
                let deaths = deaths.map(|(at, odd)| (at, Some(odd) == odd_before));
                stored.records_died_in(*segment, deaths);
            }
        }
        for (segment, slots) in parts {
            let frame = self.frame_mut(number);
            slots.clone().for_each(|slot| {
                if frame.is_due(slot, due) {
                    frame.settle(slot, *segment);
                }
            });
            let stored = self.stored.as_mut().expect("a clean frame is stored");
            stored.has_frame(*segment, number);
        }
        let frame = self.frame(number);
        let (used, is_fresh) = (frame.used(), frame.fresh() > 0);
        if used == marked && self.needs_reaper() {
            // Nothing else is in it: the helper drops it.
            let state = self.frames.state_mut(number);
            let frame = state.frame.take().expect("a frame in use");
            let heap_bytes = std::mem::take(&mut state.heap_bytes);
            self.leave(number);
            self.flusher.as_mut().expect("it was flushed").reap(frame, heap_bytes);
        } else if used == marked {
            self.empty(number);
        } else if is_fresh || is_due && !self.is_short() {
            // Some records have changed since the barrier, before the frame was frozen.
            self.renew(number);
        } else if marked > 0 && !self.needs_reaper() {
            self.drop_dead(number);
        }
    }

    /// All due frames are with the helper: what it writes from now on is of the next checkpoint.
    pub(super) fn hand_over(&mut self) {
        self.flusher.as_mut().expect("a stored log").seal(self.barrier.epoch);
        self.barrier.hand_over();
    }

    /// The checkpoint has its image, or is given up: frames change again. Cost: O(1). What a checkpoint that was given
    /// up has left goes frame by frame: [when it is passed](Log::drop_given_up) or is to be written, when a record in it
    /// is marked again, or [meanwhile](Log::carry_some_over).
    pub fn end_sealing(&mut self, given_up: bool) {
        if given_up {
            self.copies.give_up();
        }
        self.barrier.end(given_up, self.eviction.frozen() > 0);
    }
}
