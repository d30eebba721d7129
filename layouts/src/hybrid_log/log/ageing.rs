//! How frames leave memory, and how memory is made free.
//!
//! A frame is frozen, written by the flusher, clean, and then evicted: its index entries are turned
//! to where its records are on storage, a few with each call. Whoever needs memory sends the oldest
//! frames that way, and waits for one only if none is free.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use alluvium_pagestore::{Error, ErrorKind, MemoryKind, Result};

use super::{FROZEN_MAX, Log, QUANTUM, SPARES_MIN, Sealing};
use crate::hybrid_log::address::{Address, Place, StoredAt};
use crate::hybrid_log::config::FRAMES_MIN;
use crate::hybrid_log::flush::{Answer, Flusher, drop_entries};
use crate::hybrid_log::frame_unsafe::Frame;
use crate::hybrid_log::frames_unsafe::Stage;
use crate::hybrid_log::index::IndexHash;
use crate::hybrid_log::leaving::Leaving;
use crate::hybrid_log::stored::Stored;
use crate::trace_event;

/// So many slots are looked at in less time than an entry of the index.
const SWEEP_MAX: u64 = 32;
/// What taking back a record is worth, in slots that are looked at.
const TAKEN_BACK_WORTH: usize = 4;

/// So many bytes have to be free, and for what.
pub type Needed = (u64, &'static str);

impl Log {
    /// Takes an empty frame out of use.
    pub(super) fn retire(&mut self, number: u32) {
        let state = self.frames.state_mut(number);
        debug_assert!(state.heap_bytes == 0 && state.stage != Stage::Frozen);
        let frame = state.frame.take().expect("a frame in use");
        self.leave(number);
        self.keep_or_drop(frame);
    }

    /// Says whether a record of a segment that is given up is to be copied from there. One that may change in
    /// memory is marked to be written again from there instead; one on its way out is turned to storage now.
    pub fn leave_to_rewrite(&mut self, hash: IndexHash, at: StoredAt) -> bool {
        let is_it = |address: Address| match address.place() {
            Place::Stored(stored) => stored == at,
            Place::Memory(address) => {
                let (number, slot) = self.slot_of(address);
                self.frame(number).stored(slot) == Some((at.segment, at.grain))
            }
        };
        let Some((position, address)) = self.index.find(hash, is_it) else { return false };
        let Place::Memory(address) = address.place() else { return true };
        let (number, slot) = self.slot_of(address);
        let is_evicted = self.evicting.is_some_and(|(evicted, _)| evicted == number);
        if !is_evicted && self.stage(number) != Stage::Frozen {
            self.take_back(number, slot);
            return false;
        }
        // On its way out, or being written: this one goes before the others.
        self.index.set(position, Address::stored(at));
        let epoch = self.epoch;
        let state = self.frames.state_mut(number);
        state.dead += 1;
        state.frame.as_mut().expect("a frame in use").mark_dead(slot, epoch);
        true
    }

    /// Takes back that records of segments are on storage, as those are given up, in the next frames, which have
    /// about so many slots; says how many it looked at, and what more that was worth. While a checkpoint is taken only
    /// records that change where they are: a change is no more to it.
    pub fn take_back_some(&mut self, leaving: &mut Leaving, slots: usize) -> usize {
        let mut looked = 0;
        while looked < slots.max(1) && !leaving.is_over() {
            if self.due_before > 0 && !self.has_room_to_note() {
                // They would be written to storage.
                break;
            }
            let number = leaving.next_frame();
            looked += 1;
            let is_evicted = self.evicting.is_some_and(|(evicted, _)| evicted == number);
            if is_evicted || !leaving.may_be_in(number) {
                continue;
            }
            match self.stage(number) {
                Stage::Vacant | Stage::Frozen => continue,
                Stage::Cooling | Stage::Failed | Stage::Clean if self.due_before > 0 => {
                    leaving.skip();
                    continue;
                }
                Stage::Mutable | Stage::Cooling | Stage::Failed | Stage::Clean => {}
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
        if self.stage(number) == Stage::Clean {
            self.frames.state_mut(number).stage = Stage::Failed;
            self.failed += 1;
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
    pub fn leaving(&self, segments: impl Iterator<Item = u32>) -> Leaving {
        let (mut leaving, mut records) = (Leaving::none(self.frames.count()), 0);
        let Some(stored) = &self.stored else { return leaving };
        for segment in segments {
            leaving.add(segment, stored.frames_of(segment));
            records += stored.info(segment).records.max(64);
        }
        let slots = leaving.frames().min(self.order.len() as u64) * u64::from(self.sizes.slots);
        if slots <= SWEEP_MAX * records { leaving } else { Leaving::default() }
    }

    /// Drops the entries of a frame that are marked as dead, which it may be left empty by.
    pub(super) fn drop_dead(&mut self, number: u32) {
        self.frames.state_mut(number).dead = 0;
        self.stats.checkpoint_looks += u64::from(self.sizes.slots);
        for slot in 0..self.sizes.slots {
            // The last one may retire the frame.
            let Some(frame) = &self.frames.state(number).frame else { break };
            if frame.death(slot).is_some() {
                // One that panics while it is dropped panics for nobody: there is no call that it
                // belongs to. Those after it are dropped all the same.
                let _panic = self.drop_known(number, slot);
            }
        }
    }

    /// Removes a frame from the order and gives its number back.
    pub(super) fn leave(&mut self, number: u32) {
        let at = self.order.iter().position(|&n| n == number).expect("a frame in order");
        self.order.remove(at);
        if at < self.sealed {
            self.sealed -= 1;
        }
        let state = self.frames.state_mut(number);
        if state.stage == Stage::Failed {
            self.failed -= 1;
        }
        debug_assert!(!state.is_awaited, "copies of it are on their way");
        state.stage = Stage::Vacant;
        if self.fill == Some(number) {
            self.fill = None;
        }
        self.vacant_numbers.push(number);
    }

    pub(super) fn keep_or_drop(&mut self, frame: Frame) {
        let tight = self.account.available() < self.sizes.headroom_bytes;
        // What is in use: a checkpoint copies as many at most, and a state that has shrunk leaves its memory to others.
        let spares_max = match self.is_short() {
            true => SPARES_MIN,
            false => self.sizes.spares_max.min(SPARES_MIN.max(self.order.len())),
        };
        if self.spares.len() < spares_max && !tight {
            self.spares.push(frame);
        } else {
            drop(frame);
            self.account.release(MemoryKind::Pages, self.sizes.frame_bytes);
        }
    }

    /// Whether memory is short, here or in the store, so that frames are on their way out.
    pub fn is_short(&self) -> bool {
        let is_short = self.is_freeing || self.account.available() < self.want_free;
        self.flusher.is_some() && is_short
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
        if self.evicting.is_some() || self.first_clean().is_some() {
            self.evict(QUANTUM);
        }
        let on_the_way = (self.sealed - self.failed.min(self.sealed)) as u64;
        let target = (self.want_free / self.sizes.frame_bytes.max(1)).max(2) + 1;
        let backlog = self.flusher.as_ref().map_or(usize::MAX, Flusher::pending);
        let plenty = self.order.len() - self.sealed > 2;
        if plenty && on_the_way < target && self.frozen < FROZEN_MAX && backlog < 2 * FROZEN_MAX {
            self.freeze_oldest();
        }
    }

    /// Frees memory until a value can grow, or be read, without passing the budget.
    pub fn make_headroom(&mut self) -> Result<()> {
        self.make_free((self.sizes.headroom_bytes, "a value that grows or is read"))
    }

    /// Frees memory until so many bytes are.
    pub fn make_free(&mut self, needed: Needed) -> Result<()> {
        while self.account.available() < needed.0 {
            if !self.drop_spare() && !self.give_room_for_notes_up() {
                self.free_a_frame(needed)?;
            }
        }
        Ok(())
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
    pub(super) fn has_more_than_it_needs(&self) -> bool {
        self.has_more_than(self.floor_bytes())
    }

    /// Whether a frame can be given up, with the heap that its entries own, and so many bytes are left.
    fn has_more_than(&self, least: u64) -> bool {
        let next = self.evicting.map(|(number, _)| number).or_else(|| self.first_clean());
        let Some(next) = next.or_else(|| self.order.front().copied()) else { return false };
        let freed = self.sizes.frame_bytes + self.frames.state(next).heap_bytes;
        self.elastic_bytes() >= least + freed
    }

    #[cold]
    pub(super) fn make_room_for_index(&mut self, hash: IndexHash, mut error: Error) -> Result<()> {
        while error.kind() == ErrorKind::OverBudget {
            // Where no page is in the way, the index beside may be.
            let is_given = self.index.is_held_back() && self.force_one_beside()?;
            if !is_given && !self.drop_spare() {
                let has_more =
                    self.order.len() as u64 > FRAMES_MIN || self.has_more_than_it_needs();
                if !has_more && !self.free_one_beside()? && !self.force_one_beside()? {
                    break;
                }
                if !has_more {
                    // Something beside was given up.
                } else if let Err(cause) = self.free_a_frame(self.needed_for_others()) {
                    // Storage that takes nothing is the cause, and not how much memory there is.
                    return Err(if cause.kind() == ErrorKind::OverBudget { error } else { cause });
                }
            }
            match self.index.prepare(hash) {
                Ok(()) => return Ok(()),
                Err(again) => error = again,
            }
        }
        Err(error)
    }

    /// What is needed by others, who say themselves how much that is: a page's memory more.
    pub(super) fn needed_for_others(&self) -> Needed {
        (self.account.available() + self.sizes.frame_bytes, "the memory of a page")
    }

    /// What has to be free for another page: that of the table of segments, if it is not booked, or of the page.
    pub(super) fn needed_for_page(&self) -> Needed {
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
    pub fn free_a_frame(&mut self, needed: Needed) -> Result<()> {
        self.is_freeing = true;
        let freed = self.free_one(needed);
        self.is_freeing = false;
        freed
    }

    /// Gives the memory of an empty frame up; says whether there was one.
    pub(super) fn drop_spare(&mut self) -> bool {
        let Some(frame) = self.spares.pop() else { return false };
        drop(frame);
        self.account.release(MemoryKind::Pages, self.sizes.frame_bytes);
        true
    }

    /// Sends frames on their way out of memory, or takes one out, and waits for nothing; says whether there are
    /// some.
    ///
    /// # Errors
    /// Those of storage; [`ErrorKind::Poisoned`] if a key that leaves panics while it is hashed.
    pub fn free_some(&mut self) -> Result<bool> {
        if self.give_room_for_notes_up() || self.drop_spare() {
            return Ok(true);
        }
        self.is_freeing = true;
        // Who frees this is not who has the key: a panic is an error here.
        let freed = catch_unwind(AssertUnwindSafe(|| {
            if self.evicting.is_none() && self.first_clean().is_none() {
                return self.frozen > 0 || self.freeze_oldest() || self.pending() > 0;
            }
            self.evict(u32::MAX);
            // At once: the stream would begin a page in it before the next share.
            self.drop_spare();
            true
        }));
        self.is_freeing = false;
        let is_some = freed.map_err(|_| {
            let what = "a key panicked while a page left memory";
            Error::new(ErrorKind::Poisoned, what).with("state", &self.name)
        })?;
        if let Some(flusher) = &self.flusher {
            flusher.drive();
        }
        self.poll().map(|()| is_some)
    }

    fn free_one(&mut self, needed: Needed) -> Result<()> {
        if self.give_room_for_notes_up() || self.free_one_beside()? {
            return Ok(());
        }
        if self.flusher.is_none() {
            let what = "a page of the hybrid log, in a store without a directory,";
            return Err(self.account.over_budget(self.sizes.frame_bytes, what));
        }
        let start = Instant::now();
        let mut stalled = false;
        let (spares, booked) = (self.spares.len(), self.account.used());
        loop {
            if self.evicting.is_some() || self.first_clean().is_some() {
                self.evict(u32::MAX);
            }
            self.poll()?;
            if self.spares.len() > spares || self.account.used() < booked {
                return Ok(());
            }
            if self.frozen == 0 && !self.freeze_oldest() && self.pending() == 0 {
                // Of a checkpoint that was given up the helper may have had pages: it needs none.
                let is_sealing = self.due_before > 0;
                let notes = self.stored.as_mut().map_or(0, |stored| match is_sealing {
                    false => stored.give_notes_up(),
                    true => 0,
                });
                if notes > 0 || self.force_one_beside()? {
                    return Ok(());
                }
                // Nothing of its own is left to give up: other states may have some.
                return self.account.ensure(needed.0, needed.1);
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

    fn take_answer(&mut self, answer: Answer) {
        match answer {
            Answer::Flushed { number, frozen, booked, result, sealed } => {
                self.account.release(MemoryKind::Buffers, booked);
                self.take_sealed(&sealed);
                self.frozen -= 1;
                let due = self.frame_mut(number).thaw(frozen);
                let is_due = self.is_due(number);
                match self.page_written(number, result) {
                    Ok(parts) => {
                        self.frames.state_mut(number).stage = Stage::Clean;
                        self.settle_page(number, &parts, due);
                    }
                    Err(error) => {
                        if is_due && self.sealing == Sealing::Handed {
                            // It would be written among frames of the next checkpoint.
                            self.sealing = Sealing::Failed;
                        }
                        self.frames.state_mut(number).stage = Stage::Failed;
                        self.failed += 1;
                        self.page_failed(error);
                        if !is_due && self.frames.state(number).dead > 0 {
                            // Marks tell only this epoch's deaths from those of the one before.
                            self.drop_dead(number);
                        }
                    }
                }
                self.book_tables();
            }
            Answer::Copied { copies, result, sealed } => {
                self.take_sealed(&sealed);
                self.take_copies(copies, result);
                self.book_tables();
            }
            Answer::Reaped { frame, heap_bytes } => {
                self.account.release(MemoryKind::Values, heap_bytes);
                self.keep_or_drop(frame);
            }
            Answer::Abandoned => {}
            Answer::Sealed { epoch, result, sealed } => {
                self.take_sealed(&sealed);
                // Not for one that was given up since.
                if self.sealing == Sealing::Handed && epoch == self.epoch {
                    let sealed = result.is_ok();
                    self.sealing = if sealed { Sealing::Sealed } else { Sealing::Failed };
                    // Now, before the answers of pages that were written after those.
                    let stored = self.stored.as_ref().expect("a flusher has a store");
                    self.at_barrier = stored.segments_before();
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
        let failed = |log: &Self, n: u32| log.stage(n) == Stage::Failed;
        let again = if self.failed > 0 {
            self.order.iter().take(self.sealed).copied().find(|&n| failed(self, n))
        } else {
            None
        };
        if again.is_some_and(|number| self.drop_given_up(number)) {
            return true;
        }
        let number = match again {
            Some(number) => {
                self.failed -= 1;
                number
            }
            None => {
                let Some(&number) = self.order.get(self.sealed) else { return false };
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
                if self.fill == Some(number) {
                    self.fill = None;
                }
                if self.frame(number).used() == 0 {
                    self.retire(number);
                    return true;
                }
                self.sealed += 1;
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
            state.stage = Stage::Clean;
            let is_marked = state.dead > 0;
            if is_marked && !self.needs_reaper() {
                self.drop_dead(number);
            }
            return true;
        }
        let is_of_checkpoint = is_due || again.is_some();
        assert!(
            is_of_checkpoint || self.sealing != Sealing::Freezing,
            "it would stand in its segments"
        );
        let booked = match self.book_longest(number) {
            Ok(booked) => booked,
            Err(error) => {
                self.frames.state_mut(number).stage = Stage::Failed;
                self.failed += 1;
                self.page_failed(error);
                return true;
            }
        };
        let state = self.frames.state_mut(number);
        state.stage = Stage::Frozen;
        let frame = state.frame.as_mut().expect("a frame in use");
        let frozen = if is_due { frame.freeze_for(due) } else { frame.freeze() };
        self.frozen += 1;
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
        let unsealed = self.order.len() - self.sealed;
        let cooling = unsealed * self.sizes.cooling_percent as usize / 100;
        for at in self.sealed..self.sealed + cooling {
            let number = self.order[at];
            if self.fill != Some(number) {
                self.frames.state_mut(number).stage = Stage::Cooling;
            }
        }
    }

    pub(super) fn first_clean(&self) -> Option<u32> {
        let sealed = self.order.iter().take(self.sealed).copied();
        // Frames are written in order, so that a clean one is at the front unless one failed.
        sealed.take(FROZEN_MAX + self.failed + 1).find(|&n| self.stage(n) == Stage::Clean)
    }

    /// Redirects index entries of the oldest clean frame to storage, `slots` slots of it, and
    /// recycles the frame at its end.
    pub(super) fn evict(&mut self, slots: u32) {
        let Some((number, start)) =
            self.evicting.or_else(|| self.first_clean().map(|number| (number, 0)))
        else {
            return;
        };
        let end = self.sizes.slots.min(start.saturating_add(slots));
        for slot in start..end {
            let Some(hash) = self.hash_in(number, slot) else { continue };
            // Those that died while the frame was written are known as dead.
            if self.frame(number).death(slot).is_none() {
                let stored = self.frame(number).stored(slot);
                let (segment, grain) = stored.expect("a record of a clean frame is stored");
                let (old, at) = (self.address_of(number, slot), StoredAt { segment, grain });
                let replaced = self.index.replace(hash, old, Address::stored(at));
                assert!(replaced, "a live record of page {number} is not in the index");
            }
            // Hashing is user code, which may panic: then this goes on here.
            self.evicting = Some((number, slot + 1));
            if !self.needs_reaper() {
                self.frame_mut(number).drop_entry(slot);
            }
        }
        if end < self.sizes.slots {
            self.evicting = Some((number, end));
            return;
        }
        self.evicting = None;
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

    /// Forgets everything in memory and in the index; segments are left to die. No checkpoint needs more of it. Waits for
    /// the few pages that the helper has. A panic of a value that is dropped goes on once all are dropped.
    pub fn clear(&mut self) -> Result<()> {
        self.wait_for_all()?;
        while self.end_stale_copies() {}
        self.carrying = None;
        let segments: Vec<u32> = self.stored.iter().flat_map(Stored::numbers).collect();
        if let Some(stored) = &mut self.stored {
            for number in segments {
                stored.all_died(number);
            }
        }
        self.index.clear();
        self.evicting = None;
        let mut panicked = None;
        while let Some(dropped) = self.drop_oldest() {
            panicked = panicked.or(dropped.err());
        }
        self.sparse.clear();
        panicked.map_or(Ok(()), |panic| std::panic::resume_unwind(panic))
    }

    /// Drops the oldest frame with all that is in it, if there is one, and gives the panic of a value.
    pub(super) fn drop_oldest(&mut self) -> Option<std::thread::Result<()>> {
        let number = *self.order.front()?;
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
        let message = format!("storage has not taken what was given to it for {patience:?}");
        Err(Error::new(ErrorKind::Backpressure, message).with("state", &self.name))
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
        let segments = self.stored.as_ref().map_or(0, Stored::tables_bytes);
        (self.sizes.tables_bytes + segments).saturating_sub(self.tables_booked)
    }

    /// What the index and other states must leave.
    pub fn floor_bytes(&self) -> u64 {
        self.sizes.floor_bytes(self.tables_booked.saturating_sub(self.sizes.tables_bytes))
    }
}
