//! Packed slices: small slices whose accumulators are elements of an [append log](crate::AppendLog), where many slices
//! share runs and a slice takes a few bytes of memory.
//!
//! A slice takes 1.8 KB of memory here, however few accumulators it has. Where slices take a share of the memory, the state
//! gives a part of its memory to an append log. Memory that gets short then has small slices moved there: each accumulator
//! becomes the last element of the list of its key and slice, and the slice goes. It begins anew with its next event. Who
//! reads a key merges what its list has with what is here. Once all slices of the log are purged, and a checkpoint is
//! committed that has none of them, the log gives its memory back.
//!
//! What it keeps true:
//! - What the log has of a slice is older than all that is here: a slice with runs or an unwritten table is not moved.
//! - A checkpoint has one barrier for both. What moves after it was read before.
//! - Nothing is moved while a checkpoint is restored, nor from the slice that a call has found.

use std::ops::Range;

use alluvium_pagestore::out_of_line_unsafe::DroppedHere;
use alluvium_pagestore::{
    Account, BlobReader, BlobWriter, ErrorKind, MIB, MemoryKind, Result, StateImage, Time,
};

use super::LAYOUT;
use super::core::SegmentsCore;
use super::slice_checkpoint::SLICE_SHARE_BYTES;
use crate::append_log::{self, AppendLog, ListsCore};
use crate::checkpoint::InSteps;
use crate::contract::table::{CheckpointOutcome, Cursor, StateContext};
use crate::contract::upkeep::Upkeep;
use crate::support::booked::Booked;
use crate::support::key_unsafe::KeyRef;
use crate::support::record_type_unsafe::RecordRef;

/// The log has one part in so many of the memory, at least so much; with less memory than that takes so many eighths.
const LOG_SHARE: u64 = 2;
const LOG_BYTES_MIN: u64 = MIB;
const LOG_EIGHTHS_OF_LITTLE: u64 = 3;
/// With less memory there is none.
const PACKED_MEMORY_MIN: u64 = MIB;
/// Small slices are many if they would take more than one part in so many of the memory with an accumulator each.
const MANY_SHARE: u64 = 32;
/// An accumulator has one part in so many of the memory at most, for it to be packed.
const VALUE_SHARE: u64 = 16;
/// A table of one accumulator takes about so much.
const TABLE_BYTES: u64 = 256;
/// A slice is small whose table takes one part in so many of the memory at most; where slices with runs take one part in so
/// many, slices are small up to the size from which on one of them is written alone.
const SMALL_SHARE: u64 = 64;
const RUNS_SHARE: u64 = 16;
/// A call moves what it needs, and until one part in so many of the memory, at most so many bytes, is free beside it.
const MOVED_SHARE: u64 = 32;
const MORE_BYTES: u64 = 64 << 10;
/// A call that need not wait moves so many accumulators at most, and looks at so many slices.
const AHEAD_MOVED: usize = 256;
const AHEAD_LOOKED: usize = 256;
/// Of slices that can be moved the newest part stays, as events come there.
const NEWEST_SHARE: usize = 4;
/// Whether there are many is looked at once in so many slices that begin.
const LOOK_EACH: usize = 16;
/// Slices in memory of a state that packs all.
const PACKS_ALL_FROM: usize = 4;

/// Accumulators that may be moved, and slices that may be looked at.
struct MoveFuel {
    moved: usize,
    looked: usize,
}

impl MoveFuel {
    fn is_spent(&self) -> bool {
        self.moved == 0 || self.looked == 0
    }
}

/// The log, and what a checkpoint has of both so far.
pub struct PackedSlices {
    pub(super) lists: DroppedHere<ListsCore>,
    /// Memory of the state that the log has.
    _memory: Booked,
    /// Whether a checkpoint that is taken, or not decided yet, has the log.
    is_captured: bool,
    /// Whether one that is taken, or not decided yet, has nothing of the log, as that was empty.
    is_left_out: bool,
    /// Slices before this time are looked at next, and how large a table is small. None: the walk begins anew.
    walk: Option<(Time, u64)>,
    slices_image: Option<StateImage>,
    log_image: Option<StateImage>,
}

impl PackedSlices {
    /// Whether a slice has anything here.
    pub fn has(&self, slice: Time) -> bool {
        self.lists.next_bucket(slice) == Some(slice)
    }

    /// Whether a checkpoint waits for the log only.
    fn is_waited_for(&self) -> bool {
        self.slices_image.is_some() && self.log_image.is_none()
    }

    fn forget_checkpoint(&mut self) {
        (self.is_captured, self.is_left_out) = (false, false);
        (self.slices_image, self.log_image) = (None, None);
    }

    /// Does a step of the log's checkpoint. Returns the image of both if both are done.
    fn continue_checkpoint(&mut self, blobs: &mut BlobWriter) -> Result<Option<StateImage>> {
        if self.log_image.is_none() {
            self.log_image = self.lists.continue_checkpoint(blobs)?;
        }
        if self.log_image.is_none() || self.slices_image.is_none() {
            return Ok(None);
        }
        Ok(self.slices_image.take().zip(self.log_image.take()).map(|(of, log)| join(of, log)))
    }
}

/// The image of slices with that of their log. The log's part tells how many elements the log has.
fn join(mut slices: StateImage, log: StateImage) -> StateImage {
    slices.entries += log.entries;
    for mut part in log.parts {
        if part.layout == append_log::LAYOUT {
            part.level_keys = log.entries;
        }
        slices.parts.push(part);
    }
    slices
}

/// The image of slices, and that of their log if they have one.
pub(super) fn split(image: &StateImage) -> (StateImage, Option<StateImage>) {
    let (parts, mut of_log): (Vec<_>, Vec<_>) =
        image.parts.iter().cloned().partition(|part| part.layout == LAYOUT);
    let Some(log) = of_log.iter_mut().find(|part| part.layout == append_log::LAYOUT) else {
        // What else is there is refused by whoever reads it.
        return (image.clone(), None);
    };
    let entries = std::mem::take(&mut log.level_keys);
    let slices = StateImage { entries: image.entries.saturating_sub(entries), parts };
    (slices, Some(StateImage { entries, parts: of_log }))
}

impl SegmentsCore {
    /// Whether any of these slices is packed.
    pub(super) fn has_packed(&self, slices: &Range<Time>) -> bool {
        let first = self.packed.as_ref().and_then(|packed| packed.lists.next_bucket(slices.start));
        first.is_some_and(|first| first < slices.end)
    }

    /// The log, if a slice has anything there.
    pub(super) fn log_of(&mut self, slice: Time) -> Option<&mut DroppedHere<ListsCore>> {
        let packed = self.packed.as_mut().filter(|packed| packed.has(slice))?;
        Some(&mut packed.lists)
    }

    /// Removes what the log has of a key.
    pub(super) fn remove_packed(&mut self, slice: Time, key: KeyRef<'_>) -> Result<()> {
        self.log_of(slice).map_or(Ok(()), |lists| lists.clear_list(slice, key))
    }

    /// Removes what the log has of keys with these hashes. A slice that is packed is small: this takes one call.
    pub(super) fn remove_packed_hashes(
        &mut self,
        slice: Time,
        hashes: &std::ops::RangeInclusive<u64>,
    ) -> Result<()> {
        let Some(lists) = self.log_of(slice) else { return Ok(()) };
        let mut cursor = Cursor::default();
        while !cursor.done {
            lists.remove_hashes(slice, hashes, &mut cursor, 4096)?;
        }
        Ok(())
    }

    /// What the log gets of the memory.
    fn log_bytes(&self) -> u64 {
        match self.account.limit() {
            little if little < LOG_SHARE * LOG_BYTES_MIN => little / 8 * LOG_EIGHTHS_OF_LITTLE,
            memory => memory / LOG_SHARE,
        }
    }

    fn may_pack(&self) -> bool {
        let memory = self.account.limit();
        // In little memory the log leaves no room for values that grow.
        let is_large = memory >= LOG_SHARE * LOG_BYTES_MIN || self.sizes.headroom_bytes == 0;
        let has_room = memory >= PACKED_MEMORY_MIN
            && is_large
            && self.sizes.headroom_bytes <= memory / VALUE_SHARE
            && self.gathering.has_room();
        self.sizes.packs && self.context.segments.is_some() && has_room
    }

    /// A slice is about to begin: opens the log as long as there is memory for it, if there are many small slices. What
    /// fails here is tried again.
    pub(super) fn open_log_in_time(&mut self) {
        if self.packed.is_some() || self.is_restoring || !self.may_pack() {
            return;
        }
        let (count, free) = (self.by_time.len(), self.account.available());
        let wanted = self.log_bytes() + self.account.left_to_others();
        let low = self.sizes.low_water_bytes;
        let is_due = match self.sizes.packs_all {
            true => count >= PACKS_ALL_FROM,
            false => {
                count.is_multiple_of(LOOK_EACH) && free < wanted + low && self.has_many_small()
            }
        };
        if is_due && free > wanted + low / 4 {
            let _ = self.open_log(None);
        } else if is_due && !self.is_captured() && self.has_large() {
            let _ = self.spill();
        }
    }

    /// Whether small slices are many, and most of all.
    fn has_many_small(&self) -> bool {
        let small_bytes = self.small_bytes();
        let all = self.by_time.iter();
        let small = all.filter(|(slice, slot)| self.is_small(**slice, **slot, small_bytes)).count();
        let bytes = small as u64 * (Self::SLICE_BYTES + SLICE_SHARE_BYTES + TABLE_BYTES);
        2 * small > self.by_time.len() && bytes > self.account.limit() / MANY_SHARE
    }

    /// Opens the log, with what a checkpoint has of it.
    pub(super) fn open_log(&mut self, restored: Option<(StateImage, BlobReader)>) -> Result<()> {
        let (account, bytes) = (self.account.clone(), self.log_bytes());
        let what = "the log of small slices";
        let _memory = Booked::reserve(account, MemoryKind::Tables, bytes, what)?;
        // Nobody else takes of what it has, and it takes no more.
        let account = Account::below(&Account::root(bytes), &self.context.name, u64::MAX);
        let context = StateContext { account, restored, ..self.context.clone() };
        let layout = AppendLog::new().patience(self.sizes.patience);
        let layout = if self.sizes.packs_all { layout.pack_all() } else { layout };
        let layout = if bytes < LOG_BYTES_MIN { layout.pack_from_the_start() } else { layout };
        let lists = ListsCore::open(&layout, self.types.lists(), context)?;
        let (slices_image, log_image) = (None, None);
        let packed = PackedSlices {
            lists,
            _memory,
            is_captured: false,
            is_left_out: false,
            walk: None,
            slices_image,
            log_image,
        };
        self.packed = Some(Box::new(packed));
        Ok(())
    }

    /// Whether a table is large enough to be written alone, or waits for it.
    fn has_large(&self) -> bool {
        self.slices().any(|slice| match &slice.frozen {
            Some(part) => part.job == 0,
            None => slice.active_bytes() >= self.sizes.spill_bytes_min,
        })
    }

    /// Bytes up to which a table is small.
    fn small_bytes(&self) -> u64 {
        let runs = self.slices().flat_map(|slice| &slice.runs);
        let bytes: u64 = runs.map(|stored| stored.run.booked_bytes()).sum();
        match bytes > self.account.limit() / RUNS_SHARE {
            true => self.sizes.spill_bytes_min,
            false => self.account.limit() / SMALL_SHARE,
        }
    }

    /// Whether what a slice has can be moved to the log.
    fn is_small(&self, slice: Time, slot: u32, small_bytes: u64) -> bool {
        let found = self.slice_at(slot as usize);
        let is_alone = !found.has_older_parts() && found.cuts.is_empty() && found.gaps.is_empty();
        // The log has a list for ever at the end of time.
        let is_in_time = slice < Time(i64::MAX - 1);
        is_alone
            && is_in_time
            && slot != self.held
            && !found.active.is_empty()
            && found.active_bytes() <= small_bytes
    }

    /// Moves small slices to the log until `bytes` are free, and a little more. Says whether it moved any: those that are
    /// due last first, but for the newest ones. Large tables are to be written first, which this leaves to others.
    ///
    /// # Errors
    /// Those of the log, unless it has no room.
    pub(super) fn move_small(&mut self, bytes: u64) -> Result<bool> {
        self.move_with(bytes, &mut MoveFuel { moved: usize::MAX, looked: usize::MAX })
    }

    /// Does so with a bounded amount of work, for a call that need not wait. Says whether there may be more to move.
    pub(super) fn move_ahead(&mut self) -> Result<bool> {
        self.move_with(0, &mut MoveFuel { moved: AHEAD_MOVED, looked: AHEAD_LOOKED })
    }

    fn move_with(&mut self, bytes: u64, fuel: &mut MoveFuel) -> Result<bool> {
        if self.packed.is_none() || !self.sizes.packs || self.is_restoring || self.writing != 0 {
            return Ok(false);
        }
        let more = self.account.limit() / MOVED_SHARE;
        let wanted = bytes.max(self.account.available() + more.min(MORE_BYTES));
        match self.move_until(wanted, fuel) {
            (false, Err(error)) if error.kind() != ErrorKind::OverBudget => Err(error),
            (any, _) => Ok(any || fuel.is_spent()),
        }
    }

    /// Moves small slices until so many bytes are free. Says whether any was, and why it went no further.
    fn move_until(&mut self, wanted: u64, fuel: &mut MoveFuel) -> (bool, Result<()>) {
        let (mut any, mut begun) = (false, 0);
        while self.account.available() < wanted && !fuel.is_spent() {
            let walk = self.packed.as_ref().and_then(|packed| packed.walk);
            let Some((before, small_bytes)) = walk else {
                if begun == 2 || self.has_large() {
                    break;
                }
                begun += 1;
                self.begin_walk(begun == 2);
                continue;
            };
            let next =
                self.by_time.range(..before).next_back().map(|(slice, slot)| (*slice, *slot));
            let Some((slice, slot)) = next else {
                self.walk_to(None);
                continue;
            };
            fuel.looked -= 1;
            let mut on = Some((slice, small_bytes));
            if self.is_small(slice, slot, small_bytes) {
                match self.move_slice(slice, slot as usize, fuel) {
                    Ok(true) => {}
                    Ok(false) => on = Some((slice.plus(1), small_bytes)),
                    Err(error) => return (any, Err(error.with("state", &self.context.name))),
                }
                any = true;
            }
            self.walk_to(on);
        }
        (any, Ok(()))
    }

    fn walk_to(&mut self, walk: Option<(Time, u64)>) {
        self.packed.as_mut().expect("it was opened").walk = walk;
    }

    /// Begins to look at slices anew: at all, or all but the newest. Cost: a look at each slice.
    fn begin_walk(&mut self, at_all: bool) {
        let newest = self.by_time.iter().rev().nth(self.by_time.len() / NEWEST_SHARE);
        let newest = newest.map(|(slice, _)| slice.plus(1)).filter(|_| !at_all);
        let small_bytes = self.small_bytes();
        self.walk_to(Some((newest.unwrap_or(Time::MAX), small_bytes)));
    }

    /// Moves a slice to the log, as far as there is fuel. Says whether that was all. After an error some of its keys are
    /// here.
    fn move_slice(&mut self, slice: Time, slot: usize, fuel: &mut MoveFuel) -> Result<bool> {
        if self.slice_at(slot).captured.is_some() {
            self.read_rest();
        }
        self.slice_at_mut(slot).in_group = None;
        self.arrangement += 1;
        let mut place = Some(0);
        while let Some(at) = place {
            let memory = self.slice_at(slot).active.hashes_bytes(at);
            self.account.charge(MemoryKind::Buffers, memory);
            let (hashes, next) = self.slice_at(slot).active.hashes_at(at, u64::MAX);
            let here = &hashes[..hashes.len().min(fuel.moved)];
            let moved = here.iter().try_for_each(|hash| self.move_record(slice, slot, *hash));
            fuel.moved -= here.len();
            let is_all = here.len() == hashes.len();
            drop(hashes);
            self.account.release(MemoryKind::Buffers, memory);
            moved?;
            if !is_all {
                return Ok(false);
            }
            place = next;
        }
        let mut ended = self.end_slice(slice).expect("it was found");
        while ended.active.memory_bytes() > 0 && ended.active.drop_part(|_, _| ()) {}
        self.retire(ended);
        self.bury(1);
        Ok(true)
    }

    /// Moves the first of the records of a slice that have this hash.
    fn move_record(&mut self, slice: Time, slot: usize, hash: u64) -> Result<()> {
        let has_hash = &mut |record: RecordRef<'_>| record.hash() == hash;
        let Self { slots, packed, types, .. } = self;
        let found = slots[slot].as_ref().expect("a slice in use");
        let record = found.active.find(hash, has_hash).expect("a record of the table");
        let lists = &mut packed.as_mut().expect("it was opened").lists;
        types.append(lists, slice, record)?;
        self.take_from_table(slot, hash, has_hash);
        Ok(())
    }

    /// Moves all that can be moved, and has the log write it: of a state that packs all.
    pub(super) fn pack_all(&mut self) {
        if self.packed.is_some() && self.by_time.len() >= PACKS_ALL_FROM && !self.is_restoring {
            let all = &mut MoveFuel { moved: usize::MAX, looked: usize::MAX };
            let _ = self.move_until(u64::MAX, all);
            // What the log cannot write stays in its memory.
            let _ = self.packed.as_mut().map(|packed| packed.lists.reclaim(u64::MAX));
        }
    }

    /// Begins a checkpoint of slices and log.
    pub(super) fn begin_both(&mut self, blobs: &mut BlobWriter) -> Result<()> {
        self.begin_capture()?;
        let Some(packed) = &mut self.packed else { return Ok(()) };
        packed.forget_checkpoint();
        if packed.lists.is_vacant() {
            // So it can go once this is committed.
            packed.lists.leave_out();
            packed.is_left_out = true;
            return Ok(());
        }
        let begun = packed.lists.begin_checkpoint(blobs);
        packed.is_captured = begun.is_ok();
        if begun.is_err() {
            self.decide_checkpoint(CheckpointOutcome::Abandoned);
        }
        begun.map(drop)
    }

    /// Does a step of a checkpoint of slices and log; the image of both at the end.
    pub(super) fn continue_both(&mut self, blobs: &mut BlobWriter) -> Result<Option<StateImage>> {
        let is_captured = |packed: &&mut Box<PackedSlices>| packed.is_captured;
        match self.packed.as_mut().filter(is_captured) {
            Some(packed) if packed.slices_image.is_some() => {}
            Some(_) => {
                let image = self.continue_capture()?;
                self.packed.as_mut().expect("looked at above").slices_image = image;
            }
            None => return self.continue_capture(),
        }
        self.packed.as_mut().expect("looked at above").continue_checkpoint(blobs)
    }

    /// What became of it.
    pub(super) fn decide_both(&mut self, outcome: CheckpointOutcome) {
        self.decide_checkpoint(outcome);
        let Some(packed) = &mut self.packed else { return };
        if packed.is_captured || packed.is_left_out {
            packed.forget_checkpoint();
            packed.lists.checkpointed(outcome);
        }
        self.close_idle_log();
    }

    /// Gives the memory of the log back once it is empty, and no file of it is of a checkpoint.
    pub(super) fn close_idle_log(&mut self) {
        let is_idle = |packed: &mut Box<PackedSlices>| {
            let is_of_checkpoint = packed.is_captured || packed.is_left_out;
            !is_of_checkpoint && packed.lists.is_idle()
        };
        if !self.is_restoring && self.packed.take_if(is_idle).is_some() {
            self.arrangement += 1;
        }
    }

    /// Waits a moment for the log's part of a checkpoint, if only that is not done. Says whether it did.
    pub(super) fn pause_for_log(&mut self) -> Result<bool> {
        match self.packed.as_mut().filter(|packed| packed.is_waited_for()) {
            Some(packed) => packed.lists.pause().map(|()| true),
            None => Ok(false),
        }
    }
}
