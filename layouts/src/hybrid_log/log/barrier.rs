//! How a checkpoint gets what is in memory at its barrier, while the stream goes on.
//!
//! Frames begun before the barrier are *due*: nothing in them changes before it is told to a helper.
//! There are two ways to do that. A record that is a few bytes and no more is copied: all fresh ones
//! of a frame into an empty frame, which the helper writes, and the frame is mutable again at once.
//! What owns heap, and what there is no memory to copy for, is frozen until it is written. Either way
//! the frame stays in memory, mutable, and its records know where they are on storage, until they
//! change; a frame in which nothing has changed since the last checkpoint is not written.
//!
//! What it keeps true:
//! - Due frames that nobody has looked at stand in a row, behind those that are sealed.
//! - A frame of which a copy is on its way is not frozen, and its number is not given again.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use alluvium_pagestore::{Error, Key, MemoryKind, Result, State, WrittenPage};

use super::{FROZEN_MAX, Log, Sealing, needs_reaper};
use crate::hybrid_log::frame_unsafe::Frame;
use crate::hybrid_log::frames_unsafe::Stage;
use crate::trace_event;

/// What a call does: so many frames are passed over, or a [`COPY`]th of them copied.
const SHARE: usize = 64;
/// What copying a frame is worth of passing one over.
const COPY: usize = 16;

impl<K: Key, V: State> Log<K, V> {
    /// A checkpoint begins: what is in memory now is of it. Cost: O(1), but for frames that a
    /// checkpoint that was given up has left with the helper.
    pub fn barrier(&mut self) -> Result<()> {
        let start = Instant::now();
        while self.sealing != Sealing::Idle && self.frozen > 0 {
            self.wait()?;
            self.check_patience(start)?;
        }
        self.stored.as_mut().expect("a stored log").barrier();
        self.epoch += 1;
        self.due_before = self.epoch;
        self.sealing = Sealing::Freezing;
        self.fill = None;
        self.sparse.clear();
        self.frames.forget_all();
        Ok(())
    }

    /// Whether the frame at a place of the order is due.
    fn is_due_at(&self, at: usize) -> bool {
        self.order.get(at).is_some_and(|&n| self.is_due(n))
    }

    /// Whether the frame is yet to be written for a checkpoint.
    pub(super) fn is_due(&self, number: u32) -> bool {
        self.frames.state(number).epoch < self.due_before
    }

    /// Whether nothing is left to be given to the helper for the checkpoint but the order to seal.
    pub(super) fn is_all_given(&self) -> bool {
        let is_freezing = self.sealing == Sealing::Freezing;
        is_freezing && self.failed == 0 && self.copies.is_empty() && !self.is_due_at(self.sealed)
    }

    /// Does a bounded share of writing what was in memory at the barrier, and says how far it is.
    pub fn seal_some(&mut self) -> Result<Sealing> {
        self.poll()?;
        let mut left = SHARE;
        while self.sealing == Sealing::Freezing && left > 0 {
            if self.is_all_given() {
                self.hand_over();
            } else if self.frozen < FROZEN_MAX {
                if self.copies.is_empty() && self.failed == 0 {
                    let spent = self.pass_next();
                    left = left.saturating_sub(spent.max(1));
                    if spent > 0 {
                        continue;
                    }
                }
                self.freeze_oldest();
            } else {
                // The helper has enough for now: copies are made ahead of it, before the stream
                // comes to their frames.
                match self.pass_next() {
                    0 => break,
                    spent => left = left.saturating_sub(SHARE / 2 + spent),
                }
            }
        }
        self.flusher.as_mut().expect("a stored log").drive();
        self.poll()?;
        Ok(self.sealing)
    }

    /// Passes over the next due frame, if it has nothing to be written, or copies what it has, if
    /// that can be done; says what that was worth.
    fn pass_next(&mut self) -> usize {
        let Some(&number) = self.order.get(self.sealed).filter(|&&n| self.is_due(n)) else {
            return 0;
        };
        if self.frame(number).used() == 0 {
            self.retire(number);
            return 1;
        }
        if self.frame(number).fresh() == 0 {
            self.renew(number);
            return 1;
        }
        if needs_reaper::<K, V>() {
            return 0;
        }
        let Some(mut copy) = self.frame_to_copy_to() else { return 0 };
        debug_assert!(!self.frames.state(number).is_awaited, "marks are those of one copy");
        let frame = self.frames.state_mut(number).frame.as_mut().expect("a frame in use");
        // Cloning runs user code. What cannot be cloned is written where it is.
        if catch_unwind(AssertUnwindSafe(|| frame.copy_fresh(&mut copy))).is_err() {
            self.drop_copy(copy);
            return 0;
        }
        self.frames.state_mut(number).is_awaited = true;
        self.copies.push_back((number, copy));
        self.renew(number);
        COPY
    }

    /// An empty frame for copies, if memory is not short.
    fn frame_to_copy_to(&mut self) -> Option<Frame<K, V>> {
        let bytes = self.sizes.frame_bytes;
        let is_full = self.copies.len() + self.frozen >= self.sizes.copies_max;
        if is_full || self.account.available() < self.want_free + bytes {
            return None;
        }
        if let Some(frame) = self.spares.pop() {
            return Some(frame);
        }
        let is_booked = self.account.try_reserve(MemoryKind::Pages, bytes);
        is_booked.then(|| Frame::new(self.sizes.slots, self.pool.take()))
    }

    /// A frame has nothing more to be written for the checkpoint: its records change where they are.
    fn renew(&mut self, number: u32) {
        let at = self.order.iter().position(|&n| n == number).expect("a frame in order");
        self.order.remove(at);
        self.sealed -= usize::from(at < self.sealed);
        self.order.push_back(number);
        let epoch = self.epoch;
        let state = self.frames.state_mut(number);
        (state.stage, state.epoch) = (Stage::Mutable, epoch);
        if state.dead > 0 {
            self.drop_dead(number);
        }
        // The last of the dead may have retired it.
        if self.stage(number) != Stage::Vacant {
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
        if has_room && self.sparse.len() < self.sparse.capacity() {
            self.sparse.push(number);
        }
    }

    /// Gives the next copy to the helper, if there is one.
    pub(super) fn give_copy(&mut self) -> bool {
        let Some((number, copy)) = self.copies.pop_front() else { return false };
        self.frozen += 1;
        self.stats.pages_flushed += 1;
        self.flusher.as_mut().expect("a stored log").flush_copy(number, copy);
        true
    }

    /// A copy was written, or could not be.
    pub(super) fn take_copy(
        &mut self,
        number: u32,
        copy: Frame<K, V>,
        result: Result<(WrittenPage, u64)>,
    ) {
        self.frozen -= 1;
        match self.page_written(number, result) {
            Ok(segment) => {
                let stored = self.stored.as_mut().expect("a flusher has a store");
                // Those that have died since are of the next checkpoint's list.
                let since = |grain| (grain, false);
                match self.frames.copied(number) {
                    Some(frame) => {
                        let died = frame.settle_copies(&copy, segment).map(since);
                        stored.records_died_in(segment, died);
                    }
                    None => stored.records_died_in(segment, copy.grains().map(since)),
                }
                self.end_copy(number, copy);
            }
            Err(error) => {
                self.page_failed(error);
                if self.sealing == Sealing::Freezing {
                    self.copies.push_front((number, copy));
                    return;
                }
                if self.sealing == Sealing::Handed {
                    // It would be written among frames of the next checkpoint.
                    self.sealing = Sealing::Failed;
                }
                self.end_copy(number, copy);
            }
        }
    }

    /// A copy has been written, or is not going to be.
    fn end_copy(&mut self, number: u32, copy: Frame<K, V>) {
        let state = self.frames.state_mut(number);
        state.is_awaited = false;
        match state.stage {
            Stage::Vacant => self.vacant_numbers.push(number),
            _ => self.frames.shorten(number),
        }
        self.drop_copy(copy);
    }

    fn drop_copy(&mut self, mut copy: Frame<K, V>) {
        copy.clear();
        self.keep_or_drop(copy);
    }

    /// A page's number of a segment, and the numbers that it adds to.
    pub(super) fn page_written(
        &mut self,
        number: u32,
        result: Result<(WrittenPage, u64)>,
    ) -> Result<u32> {
        let (page, records) = result?;
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
        self.stored.as_mut().expect("a flusher has a store").update(&page.segment, records)
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
    pub(super) fn settle_page(&mut self, number: u32, segment: u32) {
        let state = self.frames.state(number);
        let (marked, is_due) = (state.dead, self.is_due(number));
        if marked > 0 {
            // Once a checkpoint is given up, what died before its barrier is of the next one as well.
            let odd_before = (self.due_before > 0).then_some(self.epoch % 2 == 0);
            let frame = state.frame.as_ref().expect("a frame in use");
            // Of those that were on storage before it is known already.
            let fresh = (0..self.sizes.slots).filter(|&slot| frame.is_fresh(slot));
            let died = |slot: u32| Some((frame.grain(slot), frame.death(slot)?));
            let deaths = fresh.filter_map(died).map(|(at, odd)| (at, Some(odd) == odd_before));
            let stored = self.stored.as_mut().expect("a clean frame is stored");
            stored.records_died_in(segment, deaths);
        }
        let frame = self.frame_mut(number);
        (0..frame.slots()).for_each(|slot| {
            if frame.is_fresh(slot) {
                frame.settle(slot, segment);
            }
        });
        let used = frame.used();
        if used == marked && needs_reaper::<K, V>() {
            // Nothing else is in it: the helper drops it.
            let state = self.frames.state_mut(number);
            let frame = state.frame.take().expect("a frame in use");
            let heap_bytes = std::mem::take(&mut state.heap_bytes);
            self.leave(number);
            self.flusher.as_mut().expect("it was flushed").reap(frame, heap_bytes);
        } else if used == marked {
            self.empty(number);
        } else if is_due && !self.is_short() {
            self.renew(number);
        } else if marked > 0 && !needs_reaper::<K, V>() {
            self.drop_dead(number);
        }
    }

    /// All due frames are with the helper: what it writes from now on is of the next checkpoint.
    pub(super) fn hand_over(&mut self) {
        self.flusher.as_mut().expect("a stored log").seal(self.epoch);
        self.sealing = Sealing::Handed;
    }

    /// The checkpoint has its image, or is given up: frames change again.
    pub fn end_sealing(&mut self, given_up: bool) {
        self.due_before = 0;
        if given_up {
            while let Some((number, copy)) = self.copies.pop_front() {
                self.end_copy(number, copy);
            }
            self.sweep_dead();
        }
        // Frames that are with the helper are waited for by the next barrier.
        self.sealing = if given_up && self.frozen > 0 { Sealing::Failed } else { Sealing::Idle };
    }
}
