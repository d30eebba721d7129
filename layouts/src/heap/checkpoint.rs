//! Taking a checkpoint of a heap table while it changes.
//!
//! At the barrier nothing is done but to note it. Whoever comes first then, the stream or a share, has the
//! [marks](super::marks_unsafe) swap roles, and decides which segments are written anew. The table is
//! [read](super::reading) in steps, and the helper
//! writes what was read; who changes an entry that was not read yet keeps the old one, who adds a key
//! notes that it is new. If the table remembers its last checkpoint, only entries
//! that have changed since are read and written, and those in segments that are written anew; else all.
//!
//! What is copied follows the stream, as the hybrid log's checkpoints do: see [`HeapCore::pace_capture`].
//!
//! What it keeps true:
//! - What was read and what was kept are together the entries of the barrier that are to be written,
//!   each once; every other entry has its live record in a segment of before.
//! - What an entry is marked with moves with it. A table that is cleared is read to its end before it is dropped.
//! - What a checkpoint that was given up has written, or was to write, counts as changed.

use alluvium_pagestore::{BlobWriter, MemoryKind, Result, StateImage};

use super::core::HeapCore;
use super::raw_table_unsafe::EntryPosition;
use super::reading::{ClearedTable, FollowedStream, TableReading, outdate};
use crate::checkpoint::{FREE_BYTES, GivenBatches, InSteps, MarkedEntries, WriterSizes};
use crate::contract::table::CheckpointOutcome;
use crate::contract::table::pace::pay;
use crate::heap::record_position::RecordPosition;
use crate::hybrid_log::CHECKPOINT_PACE;
use crate::restore::full_image::writing_bytes;

/// Stretches of buckets without a bit that a share passes over at most, buckets of others that it looks at, and
/// entries that it copies.
const CLEAR_MAX: u64 = 4096;
const BUCKETS_MAX: u64 = 16384;
const COPIED_MAX: u64 = 1024;
/// Buckets that are looked at for each call of the stream, see [`TableReading::cost`]. An entry that changes before that has to be found again, or
/// even kept, which takes many times as long as copying it in its turn.
const BUCKETS_PER_CALL: u64 = 16;
/// Calls of the stream for each record that is written.
const CALLS_PER_RECORD: u64 = CHECKPOINT_PACE as u64;
/// What was not looked at may be later, so many buckets at once; what was not written, so many chunks.
const CREDIT_BUCKETS_MAX: u64 = 4096;
const CREDIT_CHUNKS_MAX: u64 = 2;
/// A segment has such a part of the state, between these.
const SEGMENTS: u64 = 32;
const SEGMENT_BYTES_MIN: u64 = 512 << 10;
const SEGMENT_BYTES_MAX: u64 = 8 << 20;
/// What a record takes beside its key and value, about.
const RECORD_BYTES: u64 = 32;

impl InSteps for HeapCore {
    fn pause(&mut self) -> Result<()> {
        self.remembered.pause();
        Ok(())
    }
}

impl HeapCore {
    /// Cost: O(1).
    pub(super) fn begin_capture(&mut self) -> Result<()> {
        let sizes = self.sizes()?;
        let sizes = WriterSizes { segment_bytes: self.segment_bytes(), ..sizes };
        self.give_up_capture();
        self.remembered.begin_at(Some(self.table.len()), sizes)?;
        let mut reading = TableReading::of_all(&self.table, self.context.account.clone());
        reading.copies.leaves = writing_bytes(&sizes);
        self.reading = Some(Box::new(reading));
        self.table.barrier();
        self.reads = true;
        Ok(())
    }

    /// Bytes after which a segment ends.
    fn segment_bytes(&self) -> u64 {
        let values = self.context.account.used_for(MemoryKind::Values);
        let entry = self.table.record_type().layout().size() as u64 + RECORD_BYTES;
        segment_bytes(self.table.len() * entry + values)
    }

    /// Whether changes of the table in use concern the checkpoint being taken.
    pub(super) fn is_reading(&self) -> bool {
        let is_it = |reading: &TableReading| !reading.is_read && reading.left.is_none();
        self.reading.as_deref().is_some_and(is_it) && !self.remembered.is_lost()
    }

    /// Decides what the checkpoint that was begun reads, if that is not decided. Cost: in the number of segments.
    #[cold]
    #[inline(never)]
    pub(super) fn plan_capture(&mut self) {
        if !self.remembered.is_unplanned() {
            return;
        }
        self.tell_lost_places();
        let Some(reading) = &mut self.reading else { return };
        let marked =
            MarkedEntries { changed: self.table.marked(), left_bytes: reading.copies.leaves };
        match self.remembered.plan_marked(marked) {
            Some(records) => {
                reading.records = records;
                reading.looks_at_each =
                    !self.remembered.anew().is_empty() || self.remembered.makes_sets();
            }
            None => {
                self.table.forget_places();
                self.table.note_places();
                self.table.take_all();
            }
        }
    }

    /// A table that notes no places, such as that after a clear, goes on from no checkpoint: the next one writes all.
    fn tell_lost_places(&mut self) {
        if !self.table.notes_places() {
            self.remembered.break_off();
        }
    }

    /// If nothing is remembered of the last checkpoint, the table forgets the places that it gave.
    fn forget_with(&mut self) {
        if !self.remembered.is_on() && self.table.notes_places() {
            self.table.forget_places();
        }
    }

    /// Gives the memory of the marks back, if no checkpoint needs them; says whether there were any.
    #[cold]
    pub(super) fn give_up_marks(&mut self) -> bool {
        if !self.table.notes_places() || self.needs_marks() {
            return false;
        }
        self.table.forget_places();
        self.remembered.break_off();
        true
    }

    /// Whether what is to be read is known by the marks.
    fn needs_marks(&self) -> bool {
        self.remembered.is_in_part() && self.is_reading()
    }

    /// Places may have been lost for want of memory.
    pub(super) fn look_for_lost_places(&mut self) {
        if !self.table.take_lost() {
            return;
        }
        self.remembered.break_off();
        if self.needs_marks() {
            self.remembered.lose();
        }
    }

    /// The stream has come so far since the last share: what is copied follows it. It has the buckets looked at by its
    /// calls, ahead of what is written, for which it makes more calls for each record.
    pub(super) fn pace_capture(&mut self, pace: crate::contract::table::Pace) {
        let (slots, is_copied) = (self.table.slots(), self.is_copied());
        let Some(reading) = self.reading.as_deref_mut().filter(|_| is_copied) else { return };
        let FollowedStream { gone, looks, calls } = &mut reading.follow;
        let Some(earned) = pace.earned(gone) else {
            (*looks, *calls) = (None, None);
            return;
        };
        *looks = earned.add(*looks, BUCKETS_PER_CALL, slots, CREDIT_BUCKETS_MAX);
        let most = CREDIT_CHUNKS_MAX * reading.copies.chunk() * CALLS_PER_RECORD;
        let all = reading.records.saturating_mul(CALLS_PER_RECORD);
        *calls = earned.add(*calls, 1, all, most);
    }

    /// Does a bounded share; the image at the end.
    pub(super) fn continue_capture(&mut self, blobs: &BlobWriter) -> Result<Option<StateImage>> {
        self.plan_capture();
        let account = &self.context.account;
        let is_short = account.available() < account.limit() / 8;
        while self.drop_some_left() && is_short {}
        let shared = match self.is_copied() {
            true => self.share_by_copies(blobs),
            false => self.share_by_batches(blobs),
        };
        self.look_for_lost_places();
        self.reads = self.is_reading();
        if let Ok(Some(_)) = &shared {
            self.reading = None;
            self.reads = false;
        }
        shared
    }

    /// Reads entries and encodes them.
    fn share_by_batches(&mut self, blobs: &BlobWriter) -> Result<Option<StateImage>> {
        let Self { table, remembered, reading, .. } = self;
        remembered.step(blobs, |to| {
            let reading = reading.as_mut().expect("it is taken");
            reading.copies.leaves = FREE_BYTES;
            reading.read_part(table, to)
        })
    }

    /// Copies entries, and has the helper write some.
    fn share_by_copies(&mut self, blobs: &BlobWriter) -> Result<Option<StateImage>> {
        self.copy_step()?;
        let is_short = self.context.account.available() < self.context.account.limit() / 16;
        let Self { table, remembered, reading, .. } = self;
        remembered.step_by_batches(blobs, |to| {
            let reading = reading.as_deref_mut().expect("it is taken");
            reading.settle(table, to)?;
            let TableReading { copies, follow, .. } = reading;
            copies.leaves = FREE_BYTES;
            if reading.is_done {
                copies.end();
                if copies.is_empty() {
                    if !copies.has_spare() {
                        return Ok(GivenBatches::All);
                    }
                    copies.submit(to.batch());
                    return Ok(GivenBatches::Some);
                }
            }
            let Some(records) = copies.next_len() else { return Ok(GivenBatches::Some) };
            let has_earned = pay(&mut follow.calls, records * CALLS_PER_RECORD);
            if has_earned || copies.is_full() || is_short {
                copies.submit(to.batch());
            }
            Ok(GivenBatches::Some)
        })
    }

    /// Copies as many entries as a share does, as the stream has earned, and as there is room for.
    fn copy_step(&mut self) -> Result<()> {
        let Self { table, remembered, reading, .. } = self;
        let Some(reading) = reading else { return Ok(()) };
        let (encoded, mut clear, mut looked) = (remembered.encoded(), 0, 0);
        while looked < BUCKETS_MAX {
            let is_over = reading.is_done || remembered.encoded() - encoded >= COPIED_MAX;
            if is_over || remembered.is_lost() {
                break;
            }
            let most = reading.follow.looks.unwrap_or(u64::MAX).min(CLEAR_MAX - clear);
            let passed = reading.pass_clear(table, most);
            pay(&mut reading.follow.looks, passed);
            clear += passed;
            let cost = reading.cost(table);
            if clear == CLEAR_MAX
                || !reading.copies.has_room(reading.room(table))?
                || !pay(&mut reading.follow.looks, cost)
            {
                break;
            }
            looked += cost;
            remembered.read_beside(|to| reading.read_part(table, to))?;
        }
        Ok(())
    }

    /// Gives up the checkpoint that is being taken, if one is. Cost: in the number of segments; what it has kept goes
    /// [later](HeapCore::drop_some_left).
    fn give_up_capture(&mut self) {
        self.tell_lost_places();
        let sets = self.remembered.give_up();
        self.forget_with();
        let Some(mut reading) = self.reading.take() else { return };
        self.reads = false;
        // Nothing is left of one that was not planned.
        if sets.is_some() {
            reading.sets = sets;
            self.left_over.push(*reading);
        }
    }

    /// Drops a part of what checkpoints that were given up have left; says whether there was something.
    #[cold]
    #[inline(never)]
    pub(super) fn drop_some_left(&mut self) -> bool {
        if let Some(reading) = self.left_over.last_mut() {
            if !reading.drop_step() {
                self.left_over.pop();
            }
            return true;
        }
        false
    }

    /// What became of the checkpoint.
    pub(super) fn decide_capture(&mut self, outcome: CheckpointOutcome) {
        self.give_up_capture();
        self.remembered.decide(outcome);
        self.forget_with();
    }

    /// Keeps an entry that is about to change, if the checkpoint that is taken is to have it as it is.
    fn keep(&mut self, spot: EntryPosition) {
        self.plan_capture();
        let is_copied = self.is_copied();
        if !self.is_reading() {
            self.reads = false;
            return;
        }
        let Self { table, remembered, reading, .. } = self;
        let reading = reading.as_mut().expect("it is read");
        if !reading.is_due(table, spot, remembered) {
            return;
        }
        let kept = if is_copied && reading.copies.has_room_left() {
            let to = &mut remembered.beside().expect("it is taken");
            reading.take_early(spot, table, to)
        } else if reading.keep(table, spot) {
            // What is kept is written, and the entry has no record until then.
            table.mark_changed(spot);
            let to = &mut remembered.beside().expect("it is taken");
            outdate(spot, RecordPosition::NONE, table, to)
        } else {
            return self.read_rest();
        };
        if kept.is_err() {
            remembered.lose();
        }
    }

    /// An entry is about to change, or to go.
    #[cold]
    #[inline(never)]
    pub(super) fn note_change(&mut self, spot: EntryPosition) {
        if self.reads {
            self.keep(spot);
        }
        self.table.mark_changed(spot);
    }

    /// Reads all that is not read yet and has it written, at once. If that fails, the checkpoint
    /// does.
    #[cold]
    pub(super) fn read_rest(&mut self) {
        self.plan_capture();
        let is_copied = self.is_copied();
        let Self { table, remembered, reading, .. } = self;
        let Some(reading) = reading else { return };
        remembered.read_rest(|to| {
            if reading.is_read {
                return Ok(false);
            }
            if !is_copied {
                return reading.read_part(table, to);
            }
            if reading.copies.has_room(reading.room(table))? {
                return reading.read_part(table, &mut to.without_batch());
            }
            to.batch().wait()?;
            reading.settle(table, to)?;
            reading.copies.submit(to.batch());
            Ok(true)
        });
        if remembered.is_lost() {
            reading.drop_left();
        }
        self.look_for_lost_places();
        self.reads = self.is_reading();
    }

    /// The table is cleared: if a checkpoint reads it, that takes it, with what is booked for it. Nothing is remembered of
    /// it.
    pub(super) fn leave(&mut self) {
        self.plan_capture();
        let values = self.context.account.used_for(MemoryKind::Values) - self.values_left();
        let empty = self.empty_table();
        let table = std::mem::replace(&mut self.table, empty);
        self.reads = false;
        let is_reading = self.is_reading();
        match self.reading.as_mut().filter(|_| is_reading) {
            Some(reading) => reading.left = Some(ClearedTable { table, values }),
            None => {
                self.remembered.break_off();
                self.context.account.release(MemoryKind::Values, values);
                drop(table);
            }
        }
    }
}

/// Bytes after which a segment ends, of a state of so many.
pub(crate) fn segment_bytes(bytes: u64) -> u64 {
    (bytes / SEGMENTS).clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX)
}
