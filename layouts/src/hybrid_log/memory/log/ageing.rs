//! How frames leave memory.
//!
//! A frame is frozen, written by the flusher, clean, and then evicted: its index entries are turned
//! to where its records are on storage, a few with each call.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use alluvium_pagestore::{Error, ErrorKind, MemoryKind, Result};

use super::{FROZEN_MAX, Log, SPARES_MIN, SealProgress};
use crate::hybrid_log::address::{Address, Location, StoredAt};
use crate::hybrid_log::flush::{FlushOutcome, Flusher, drop_entries};
use crate::hybrid_log::frame_unsafe::Frame;
use crate::hybrid_log::frames_unsafe::FrameStage;
use crate::hybrid_log::index::IndexHash;
use crate::hybrid_log::leaving::LeavingSegments;
use crate::hybrid_log::stored::StoredSegments;
use crate::trace_event;

/// So many slots are looked at in less time than an entry of the index.
const SWEEP_MAX: u64 = 32;
/// What taking back a record is worth, in slots that are looked at.
const TAKEN_BACK_WORTH: usize = 4;
/// Buckets of the index are loaded for so many records at once that leave memory.
const EVICTED_TOGETHER: usize = 16;

impl Log {
    /// Takes an empty frame out of use.
    pub(super) fn retire(&mut self, number: u32) {
        let state = self.frames.state_mut(number);
        debug_assert!(state.heap_bytes == 0 && state.stage != FrameStage::Frozen);
        let frame = state.frame.take().expect("a frame in use");
        self.leave(number);
        self.keep_or_drop(frame);
    }

    /// Says whether a record of a segment that is given up is to be copied from there. One that may change in
    /// memory is marked to be written again from there instead; one on its way out is turned to storage now.
    pub fn leave_to_rewrite(&mut self, hash: IndexHash, at: StoredAt) -> bool {
        let is_it = |address: Address| match address.place() {
            Location::Stored(stored) => stored == at,
            Location::Memory(address) => {
                let (number, slot) = self.slot_of(address);
                self.frame(number).stored(slot) == Some((at.segment, at.grain))
            }
        };
        let Some((position, address)) = self.index.find(hash, is_it) else { return false };
        let Location::Memory(address) = address.place() else { return true };
        let (number, slot) = self.slot_of(address);
        let is_evicted = self.eviction.is_of(number);
        if !is_evicted && self.stage(number) != FrameStage::Frozen {
            self.take_back(number, slot);
            return false;
        }
        // On its way out, or being written: this one goes before the others.
        self.index.set(position, Address::stored(at));
        let epoch = self.barrier.epoch();
        let state = self.frames.state_mut(number);
        state.dead += 1;
        state.frame.as_mut().expect("a frame in use").mark_dead(slot, epoch);
        true
    }

    /// Takes back that records of segments are on storage, as those are given up, in the next frames, which have
    /// about so many slots; says how many it looked at, and what more that was worth. While a checkpoint is taken only
    /// records that change where they are: a change is no more to it.
    pub fn take_back_step(&mut self, leaving: &mut LeavingSegments, slots: usize) -> usize {
        let mut looked = 0;
        while looked < slots.max(1) && !leaving.is_over() {
            if self.barrier.is_open() && !self.has_room_to_note() {
                // They would be written to storage.
                break;
            }
            let number = leaving.next_frame();
            looked += 1;
            let is_evicted = self.eviction.is_of(number);
            if is_evicted || !leaving.may_be_in(number) {
                continue;
            }
            match self.stage(number) {
                FrameStage::Vacant | FrameStage::Frozen => continue,
                FrameStage::Cooling | FrameStage::Failed | FrameStage::Clean
                    if self.barrier.is_open() =>
                {
                    leaving.skip();
                    continue;
                }
                FrameStage::Mutable
                | FrameStage::Cooling
                | FrameStage::Failed
                | FrameStage::Clean => {}
            }
            let mut from = 0;
            while let Some(slot) = self.frame(number).next_stored(from, |at| leaving.has(at)) {
                self.take_back(number, slot);
                looked += TAKEN_BACK_WORTH;
                from = slot + 1;
            }
            looked += self.frame(number).slots() as usize;
        }
        looked
    }

    /// A record that is in memory too is to be written again from there.
    fn take_back(&mut self, number: u32, slot: u32) {
        if self.stage(number) == FrameStage::Clean {
            self.frames.state_mut(number).stage = FrameStage::Failed;
            self.eviction.fail();
        }
        self.freshen(number, slot);
    }

    /// Adds to the sets that are being made what the index has in a frame and is on storage.
    pub fn add_live_of(&mut self, number: u32) {
        let start = self.left_before(number);
        let Some(frame) = &self.frames.state(number).frame else { return };
        let sets = self.stored.as_mut().and_then(|stored| stored.sets.as_mut());
        let sets = sets.expect("sets are being made");
        for slot in start..frame.slots() {
            let stored = frame.stored(slot).filter(|_| frame.death(slot).is_none());
            if let Some((segment, grain)) = stored {
                sets.insert(segment, grain);
            }
        }
    }

    /// Segments that are given up, to be looked for in memory: none if that costs more than reading which
    /// records they have and looking for each.
    pub fn leaving(&self, segments: impl Iterator<Item = u32>) -> LeavingSegments {
        let (mut leaving, mut records) = (LeavingSegments::none(self.frames.count()), 0);
        let Some(stored) = &self.stored else { return leaving };
        for segment in segments {
            leaving.add(segment, stored.frames_of(segment));
            records += stored.info(segment).records.max(64);
        }
        let slots = leaving.frames().min(self.ring.len() as u64) * u64::from(self.sizes.slots);
        if slots <= SWEEP_MAX * records { leaving } else { LeavingSegments::default() }
    }

    /// Drops the entries of a frame that are marked as dead, which it may be left empty by.
    pub(super) fn drop_dead(&mut self, number: u32) {
        self.frames.state_mut(number).dead = 0;
        self.stats.checkpoint_looks += u64::from(self.sizes.slots);
        for slot in 0..self.sizes.slots {
            // The last one may retire the frame.
            let Some(frame) = &self.frames.state(number).frame else { break };
            if frame.death(slot).is_some() {
                // One that panics while it is measured or dropped panics for nobody: there is no call that it
                // belongs to. Those after it are dropped all the same.
                let drop_it = || self.drop_known(number, slot);
                if catch_unwind(AssertUnwindSafe(drop_it)).is_err() {
                    // It was not measured, and stays where it is: once more.
                    let _panic = catch_unwind(AssertUnwindSafe(|| self.drop_known(number, slot)));
                }
            }
        }
    }

    /// Removes a frame from the order and gives its number back.
    pub(super) fn leave(&mut self, number: u32) {
        self.ring.remove(number);
        let state = self.frames.state_mut(number);
        if state.stage == FrameStage::Failed {
            self.eviction.retry();
        }
        debug_assert!(!state.is_awaited, "copies of it are on their way");
        state.stage = FrameStage::Vacant;
    }

    pub(super) fn keep_or_drop(&mut self, frame: Frame) {
        let tight = self.account.available() < self.sizes.headroom_bytes;
        // What is in use: a checkpoint copies as many at most, and a state that has shrunk leaves its memory to others.
        let spares_max = match self.is_short() {
            true => SPARES_MIN,
            false => self.sizes.spares_max.min(SPARES_MIN.max(self.ring.len())),
        };
        if self.ring.spares() < spares_max && !tight {
            self.ring.keep_spare(frame);
        } else {
            drop(frame);
            self.account.release(MemoryKind::Pages, self.sizes.frame_bytes);
        }
    }

    /// Answers of the helper still to come.
    pub fn pending(&self) -> usize {
        self.flusher.as_ref().map_or(0, Flusher::pending)
    }

    /// Takes the answers that are there. An error is that of a page that could not be written;
    /// its records are still in memory, and it is tried again.
    pub fn poll(&mut self) -> Result<()> {
        while let Some(answer) = self.flusher.as_mut().and_then(Flusher::poll) {
            self.take_answer(answer);
        }
        self.flush_error.take().map_or(Ok(()), Err)
    }

    /// Waits a moment for an answer.
    pub fn wait(&mut self) -> Result<()> {
        if let Some(answer) = self.flusher.as_mut().and_then(Flusher::wait) {
            self.take_answer(answer);
        }
        self.poll()
    }

    /// Takes a frame out of use whose entries are all dead and need not be dropped.
    pub(super) fn empty(&mut self, number: u32) {
        let state = self.frames.state_mut(number);
        let heap = std::mem::take(&mut state.heap_bytes);
        state.dead = 0;
        state.frame.as_mut().expect("a frame in use").clear();
        self.account.release(MemoryKind::Values, heap);
        self.retire(number);
    }

    fn take_answer(&mut self, answer: FlushOutcome) {
        match answer {
            FlushOutcome::Flushed { number, frozen, booked, result, sealed } => {
                self.account.release(MemoryKind::Buffers, booked);
                self.take_sealed(&sealed);
                self.eviction.thaw();
                let due = self.frame_mut(number).thaw(frozen);
                let is_due = self.is_due(number);
                match self.page_written(number, result) {
                    Ok(parts) => {
                        self.frames.state_mut(number).stage = FrameStage::Clean;
                        self.settle_page(number, &parts, due);
                    }
                    Err(error) => {
                        if is_due {
                            self.barrier.page_failed();
                        }
                        self.frames.state_mut(number).stage = FrameStage::Failed;
                        self.eviction.fail();
                        self.page_failed(error);
                        if !is_due && self.frames.state(number).dead > 0 {
                            // Marks tell only this epoch's deaths from those of the one before.
                            self.drop_dead(number);
                        }
                    }
                }
                self.book_tables();
            }
            FlushOutcome::Copied { copies, result, sealed } => {
                self.take_sealed(&sealed);
                self.take_copies(copies, result);
                self.book_tables();
            }
            FlushOutcome::Reaped { frame, heap_bytes } => {
                self.account.release(MemoryKind::Values, heap_bytes);
                self.keep_or_drop(frame);
            }
            FlushOutcome::Abandoned => {}
            FlushOutcome::Sealed { epoch, result, sealed } => {
                self.take_sealed(&sealed);
                // Not for one that was given up since.
                if self.barrier.awaits_seal(epoch) {
                    // Now, before the answers of pages that were written after those.
                    let stored = self.stored.as_ref().expect("a flusher has a store");
                    self.barrier.sealed(result.is_ok(), stored.segments_before());
                }
                if let Err(error) = result {
                    self.flush_error = Some(error.with("state", &self.name));
                }
                self.book_tables();
            }
        }
    }

    fn take_sealed(&mut self, sealed: &[alluvium_pagestore::SegmentInfo]) {
        let stored = self.stored.as_mut().expect("a flusher has a store");
        for info in sealed {
            // Known since its first page, so that this takes no new number; unless all of it are copies whose
            // answers were dropped with a rewrite, or a page that failed, so that it is found to be dead.
            let _ = stored.update(info, 0);
        }
    }

    /// Freezes the oldest frame that is not on its way, or gives on what was copied for a checkpoint;
    /// says whether there was one.
    pub fn freeze_oldest(&mut self) -> bool {
        if self.flusher.is_none() {
            return false;
        }
        if self.end_stale_copies() || self.give_copies() {
            return true;
        }
        if self.is_all_given() {
            self.hand_over();
        }
        let failed = |log: &Self, n: u32| log.stage(n) == FrameStage::Failed;
        let again = match self.eviction.failed() {
            0 => None,
            _ => self.ring.sealed_frames().find(|&n| failed(self, n)),
        };
        if again.is_some_and(|number| self.drop_given_up(number)) {
            return true;
        }
        let number = match again {
            Some(number) => {
                self.eviction.retry();
                number
            }
            None => {
                let Some(number) = self.ring.next_unsealed() else { return false };
                if self.frames.state(number).is_awaited {
                    return false;
                }
                if self.drop_given_up(number) {
                    return true;
                }
                if self.is_due(number) && self.due_of(number) == 0 && self.frame(number).fresh() > 0
                {
                    // All that is to be written of it is of the next checkpoint.
                    self.renew(number);
                    return true;
                }
                self.ring.leave_fill(number);
                if self.frame(number).used() == 0 {
                    self.retire(number);
                    return true;
                }
                self.ring.seal_next();
                number
            }
        };
        // What a checkpoint writes is not on its way out.
        let (is_due, due) = (self.is_due(number), self.frames.epoch().due());
        if !is_due || self.is_short() {
            self.cool();
        }
        let state = self.frames.state_mut(number);
        if state.frame.as_ref().expect("a frame in use").fresh() == 0 {
            // All of it is on storage.
            state.stage = FrameStage::Clean;
            let is_marked = state.dead > 0;
            if is_marked && !self.needs_reaper() {
                self.drop_dead(number);
            }
            return true;
        }
        let is_of_checkpoint = is_due || again.is_some();
        assert!(
            is_of_checkpoint || self.barrier.sealing() != SealProgress::Freezing,
            "it would stand in its segments"
        );
        let booked = match self.book_longest(number) {
            Ok(booked) => booked,
            Err(error) => {
                self.frames.state_mut(number).stage = FrameStage::Failed;
                self.eviction.fail();
                self.page_failed(error);
                return true;
            }
        };
        let state = self.frames.state_mut(number);
        state.stage = FrameStage::Frozen;
        let frame = state.frame.as_mut().expect("a frame in use");
        let frozen = if is_due { frame.freeze_for(due) } else { frame.freeze() };
        self.eviction.freeze();
        self.stats.pages_flushed += 1;
        self.flusher.as_mut().expect("looked at above").flush(number, frozen, booked);
        true
    }

    /// Books what the archive of a frame's longest record takes beyond those of values that are not
    /// too large, and says how much that is.
    fn book_longest(&self, number: u32) -> Result<u64> {
        if !self.oversize.is_seen() {
            return Ok(0);
        }
        let frame = self.frame(number);
        let entries = (0..frame.slots()).filter_map(|slot| frame.get(slot));
        let longest = entries.map(|record| (record.heap_bytes(), record)).max_by_key(|e| e.0);
        let Some((bytes, record)) = longest else { return Ok(0) };
        let more = bytes.saturating_sub(self.oversize.max_bytes());
        let what = "the archive of a value that is larger than max_value";
        let reserved = self.account.reserve(MemoryKind::Buffers, more, what);
        reserved.map_err(|error| error.with("key", record.key_text()))?;
        Ok(more)
    }

    /// Marks the oldest unsealed frames as cooling.
    fn cool(&mut self) {
        let Self { ring, frames, sizes, .. } = self;
        let unsealed = ring.len() - ring.sealed();
        let cooling = unsealed * sizes.cooling_percent as usize / 100;
        for number in ring.unsealed_frames().take(cooling).filter(|&n| !ring.is_fill(n)) {
            frames.state_mut(number).stage = FrameStage::Cooling;
        }
    }

    pub(super) fn first_clean(&self) -> Option<u32> {
        let sealed = self.ring.sealed_frames();
        // Frames are written in order, so that a clean one is at the front unless one failed.
        sealed
            .take(FROZEN_MAX + self.eviction.failed() + 1)
            .find(|&n| self.stage(n) == FrameStage::Clean)
    }

    /// Redirects index entries of the oldest clean frame to storage, `slots` slots of it, and
    /// recycles the frame at its end.
    pub(super) fn evict(&mut self, slots: u32) {
        let Some((number, start)) =
            self.eviction.under_way().or_else(|| self.first_clean().map(|number| (number, 0)))
        else {
            return;
        };
        let end = self.sizes.slots.min(start.saturating_add(slots));
        let mut from = start;
        while from < end {
            let few = (end - from).min(EVICTED_TOGETHER as u32);
            // Hashing is user code, which may panic: then this goes on here.
            let mut hashes = [None; EVICTED_TOGETHER];
            for (hash, slot) in hashes.iter_mut().zip(from..from + few) {
                *hash = self.hash_in(number, slot);
                hash.iter().for_each(|hash| self.index.prefetch(*hash));
            }
            for (hash, slot) in hashes.into_iter().zip(from..from + few) {
                let Some(hash) = hash else { continue };
                self.leave_slot(hash, (number, slot));
            }
            from += few;
        }
        if end < self.sizes.slots {
            self.eviction.leave_before(number, end);
            return;
        }
        self.eviction.end();
        trace_event!(DEBUG, "page evicted", state = &*self.name, page = number);
        let state = self.frames.state_mut(number);
        let frame = state.frame.take().expect("a frame in use");
        let heap_bytes = std::mem::take(&mut state.heap_bytes);
        self.leave(number);
        if self.needs_reaper() {
            self.flusher.as_mut().expect("a clean frame was flushed").reap(frame, heap_bytes);
        } else {
            self.account.release(MemoryKind::Values, heap_bytes);
            self.keep_or_drop(frame);
        }
    }

    /// The index leads to where the record of a slot is stored; the slot is empty then.
    fn leave_slot(&mut self, hash: IndexHash, (number, slot): (u32, u32)) {
        // Those that died while the frame was written are known as dead.
        if self.frame(number).death(slot).is_none() {
            let stored = self.frame(number).stored(slot);
            let (segment, grain) = stored.expect("a record of a clean frame is stored");
            let (old, at) = (self.address_of(number, slot), StoredAt { segment, grain });
            let replaced = self.index.replace(hash, old, Address::stored(at));
            assert!(replaced, "a live record of page {number} is not in the index");
        }
        // Dropping is user code too: a panic goes on behind this slot.
        self.eviction.leave_before(number, slot + 1);
        if !self.needs_reaper() {
            self.frame_mut(number).drop_entry(slot);
        }
    }

    /// Forgets everything in memory and in the index; segments are left to die. No checkpoint needs more of it. Waits for
    /// the few pages that the helper has. A panic of a value that is dropped goes on once all are dropped.
    pub fn clear(&mut self) -> Result<()> {
        self.wait_for_all()?;
        while self.end_stale_copies() {}
        self.barrier.stop_carrying();
        let segments: Vec<u32> = self.stored.iter().flat_map(StoredSegments::numbers).collect();
        if let Some(stored) = &mut self.stored {
            for number in segments {
                stored.all_died(number);
            }
        }
        self.index.clear();
        self.eviction.end();
        let mut panicked = None;
        while let Some(dropped) = self.drop_oldest() {
            panicked = panicked.or(dropped.err());
        }
        self.ring.leave_all();
        panicked.map_or(Ok(()), |panic| std::panic::resume_unwind(panic))
    }

    /// Drops the oldest frame with all that is in it, if there is one, and gives the panic of a value.
    pub(super) fn drop_oldest(&mut self) -> Option<std::thread::Result<()>> {
        let number = self.ring.oldest()?;
        let state = self.frames.state_mut(number);
        let mut frame = state.frame.take().expect("a frame in use");
        let heap = std::mem::take(&mut state.heap_bytes);
        let panicked = drop_entries(&mut frame);
        self.account.release(MemoryKind::Values, heap);
        self.leave(number);
        self.keep_or_drop(frame);
        Some(panicked.map_or(Ok(()), Err))
    }

    /// Gives up when storage has not answered for long.
    pub fn check_patience(&self, start: Instant) -> Result<()> {
        let patience = self.sizes.patience;
        if start.elapsed() < patience {
            return Ok(());
        }
        let message = format!("storage has accepted no write for {patience:?}");
        Err(Error::new(ErrorKind::Backpressure, message).with("state", &self.name))
    }
}
