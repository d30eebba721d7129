//! Taking a checkpoint of panes while they are updated.
//!
//! It begins with a barrier, whose cost does not depend on how many accumulators there are: what
//! slices and runs there are is remembered. Tables that an earlier checkpoint has written as they are
//! are named. The others stay where they are and are read part by part in steps; who changes an
//! accumulator that was not read yet keeps the old one. The helper writes what was read, then the
//! [catalog](super::catalog_position).
//!
//! What it keeps true:
//! - The image is of the barrier: nothing that came later is in it, nothing that went later is missing.
//! - A table is not handed over to be written as a run before it was read: the rest of it is read
//!   and written at once then, as memory is short.
//! - A slice that is purged stays until it was read.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use alluvium_pagestore::{
    Error, ErrorKind, ImagePart, Result, SegmentImage, SegmentInfo, StateImage, Time,
};

use super::LAYOUT;
use super::background::FrozenSlice;
use super::catalog_position::CatalogPosition;
use super::core::SegmentsCore;
use super::run::{NAME_BYTES, SliceRun};
use super::slice::Slice;
use super::snapshot::RecordSnapshot;
use super::space::run_of;
use super::tables::{CatalogTables, TableGroup, WrittenTable};
use super::writing::WrittenRun;
use crate::checkpoint::{
    BatchWriter, CheckpointSteps, GivenBatches, InSteps, files_of, files_of_image,
};
use crate::contract::table::CheckpointOutcome;
use crate::heap::name_large;
use crate::support::booked::Booked;
use crate::support::gaps::Gaps;
use crate::support::key_unsafe::KeyRef;
use crate::support::record_type_unsafe::RecordRef;

/// What a checkpoint takes for a slice, and restoring it.
pub const SLICE_SHARE_BYTES: u64 =
    576 + size_of::<WrittenTable>() as u64 + CatalogTables::TABLE_BYTES;

/// What a checkpoint has not read of a slice yet.
pub struct UnreadSlice {
    /// Which of the slices at the barrier it is.
    number: usize,
    entries: RecordSnapshot,
    cuts: RecordSnapshot,
}

/// A checkpoint being taken, or not decided yet.
pub struct SliceCheckpoint {
    pub(super) slices: Vec<SliceBefore>,
    /// Slices that are gone, by their numbers, and not read yet.
    gone: BTreeMap<usize, Slice>,
    step: SliceCheckpointPhase,
    /// Steps of its tables, then of its catalog, until the image is given.
    steps: Option<CheckpointSteps>,
    /// Groups of tables that are named again; last the one that is written, once it is.
    pub(super) groups: Vec<Rc<TableGroup>>,
    /// The number of the group that is written.
    number: u64,
    /// Its segments.
    tables: Vec<SegmentInfo>,
    /// Beside its shares.
    _booked: Booked,
    /// Why a table that it waits for could not be written; it is tried again.
    failed: Option<Error>,
}

/// A slice at the barrier.
pub(super) struct SliceBefore {
    pub(super) table: WrittenTable,
    /// The group that has the table, or will have it.
    pub(super) group: u64,
    slot: usize,
    pub(super) gaps: Gaps,
    pub(super) next_number: u64,
    pub(super) runs: Vec<Arc<SliceRun>>,
    /// What was on its way to storage then, and its number, until it is a run.
    frozen: Option<(u64, FrozenSlice)>,
}

#[derive(Clone, Copy)]
enum SliceCheckpointPhase {
    /// Slices before this one are read.
    Reading(usize),
    /// What was on its way to storage is waited for.
    Waiting,
    /// What comes next in the catalog.
    Telling(CatalogPosition),
}

/// What a checkpoint reads.
struct UnreadSlices<'a> {
    slices: &'a [SliceBefore],
    /// Those before this one are read.
    number: &'a mut usize,
    /// The group that has those to be read.
    group: u64,
    slots: &'a mut [Option<Slice>],
    gone: &'a mut BTreeMap<usize, Slice>,
    /// Slices that are gone and read.
    dying: &'a mut VecDeque<Slice>,
}

impl SliceCheckpoint {
    /// What it reads, if it does, and its steps.
    fn unread<'a>(
        &'a mut self,
        slots: &'a mut [Option<Slice>],
        dying: &'a mut VecDeque<Slice>,
    ) -> Option<(UnreadSlices<'a>, &'a mut CheckpointSteps)> {
        let Self { slices, gone, step, steps, number: group, .. } = self;
        let SliceCheckpointPhase::Reading(number) = step else { return None };
        let unread = UnreadSlices { slices, number, group: *group, slots, gone, dying };
        Some((unread, steps.as_mut()?))
    }

    /// The group of the tables that were written, unless there is none.
    fn written_group(&self) -> Option<TableGroup> {
        let written = self.slices.iter().filter(|before| before.group == self.number);
        let tables: Vec<_> =
            written.map(|before| before.table).filter(|table| !table.is_empty()).collect();
        let segments: Vec<_> = self.tables.iter().map(SegmentInfo::all_live).collect();
        (!tables.is_empty()).then_some(TableGroup { number: self.number, tables, segments })
    }
}

impl UnreadSlices<'_> {
    /// Reads parts of slices as long as they go into the batch, and has it written.
    fn read_batch(&mut self, own: &mut BatchWriter) -> Result<GivenBatches> {
        while own.has_room() {
            if !self.read_part(own)? {
                return Ok(GivenBatches::All);
            }
        }
        own.submit();
        Ok(GivenBatches::Some)
    }

    /// Reads a part; says whether there was one.
    fn read_part(&mut self, own: &mut BatchWriter) -> Result<bool> {
        let Self { slices, number, slots, gone, .. } = self;
        let to_read = |before: &SliceBefore| before.group == self.group;
        let Some(ahead) = slices[**number..].iter().position(to_read) else { return Ok(false) };
        **number += ahead;
        let number = **number;
        let is_it = |slice: &&mut Slice| {
            slice.captured.as_ref().is_some_and(|captured| captured.number == number)
        };
        let in_use = slots.get_mut(slices[number].slot).and_then(Option::as_mut).filter(is_it);
        let found = match in_use {
            Some(found) => found,
            None => gone.get_mut(&number).expect("a slice that is not read is kept"),
        };
        let captured = found.captured.as_mut().expect("it is not read yet");
        let push = &mut |record: RecordRef<'_>| {
            own.place_record(record).map(drop).map_err(|error| name_large(error, record))
        };
        let more = captured.entries.take_some(Some(&found.active), push)?
            || captured.cuts.take_some(found.cuts.table(), push)?;
        if !more {
            found.captured = None;
            self.dying.extend(gone.remove(&number));
            *self.number += 1;
        }
        Ok(true)
    }
}

impl InSteps for SegmentsCore {
    fn pause(&mut self) -> Result<()> {
        if self.pause_for_log()? {
            return Ok(());
        }
        if self.writing == 0 {
            std::thread::yield_now();
        } else {
            // What fails here is tried again, or told by the next step.
            let _ = self.wait_once();
        }
        Ok(())
    }

    fn patience(&self) -> Duration {
        self.sizes.patience.saturating_mul(8)
    }
}

impl SegmentsCore {
    /// Everything in the panes now is of the checkpoint.
    pub(super) fn begin_capture(&mut self) -> Result<()> {
        // The fund has what they take.
        let steps = CheckpointSteps::new(&self.context, self.sizes.writer, u64::MAX)?;
        if self.checkpoint.is_some() {
            // The store has not said what became of the last one, so that it may be either.
            self.decide_checkpoint(CheckpointOutcome::Unknown);
        }
        self.settle();
        // Beside its shares: gaps, and a group in more segments than usual.
        let gaps = self.slices().map(|slice| slice.gaps.bytes()).sum::<u64>();
        let tables: u64 = self.slices().map(Slice::active_bytes).sum();
        let more = 4 * tables / self.sizes.segment_bytes;
        let booked = gaps + more * (size_of::<SegmentImage>() as u64 + NAME_BYTES);
        // Where memory is short, this waits for storage.
        if self.account.available() < booked {
            self.make_room(booked, "a checkpoint")?;
        }
        self.fund.begin();
        let _booked = Booked::buffers(self.account.clone(), booked);
        let groups = self.groups.to_name(|group, slice| self.is_table_in(slice, group));
        let number = self.groups.next_number();
        let mut slices = Vec::with_capacity(self.by_time.len());
        for (slice, slot) in &self.by_time {
            let slot = *slot as usize;
            let found = self.slots[slot].as_mut().expect("a slice in use");
            let (entries, cuts) = (found.active.len(), found.cuts.len());
            let is_named = |number: &u64| groups.iter().any(|group| group.number == *number);
            let group = found.in_group.filter(is_named).unwrap_or(number);
            if group == number {
                found.in_group = Some(number);
                found.captured = Some(Box::new(UnreadSlice {
                    number: slices.len(),
                    entries: RecordSnapshot::new(self.types, &self.account, self.range),
                    cuts: RecordSnapshot::new(self.types, &self.account, self.range),
                }));
            }
            slices.push(SliceBefore {
                table: WrittenTable { slice: *slice, entries, cuts },
                group,
                slot,
                gaps: found.gaps.clone(),
                next_number: found.next_number,
                runs: found.runs.iter().map(|stored| stored.run.clone()).collect(),
                frozen: found.frozen.as_ref().map(|part| (part.number, part.table.clone())),
            });
        }
        let runs = slices.iter().flat_map(|before| &before.runs);
        let files = runs.flat_map(|run| files_of(&run.segments));
        let named = groups.iter().flat_map(|group| &group.segments);
        self.files.take(files.chain(named.map(|segment| (segment.id, segment.bytes))));
        self.checkpoint = Some(Box::new(SliceCheckpoint {
            slices,
            gone: BTreeMap::new(),
            step: SliceCheckpointPhase::Reading(0),
            steps: Some(steps),
            groups,
            number,
            tables: Vec::new(),
            _booked,
            failed: None,
        }));
        Ok(())
    }

    /// Does a bounded share; the image at the end.
    pub(super) fn continue_capture(&mut self) -> Result<Option<StateImage>> {
        self.settle();
        let stepped = self.step();
        stepped.map_err(|error| error.with("state", &self.context.name))
    }

    fn step(&mut self) -> Result<Option<StateImage>> {
        let Self { checkpoint, slots, dying, .. } = self;
        let Some(checkpoint) = checkpoint.as_deref_mut() else {
            return Err(Error::new(ErrorKind::Config, "no checkpoint was begun"));
        };
        if let Some((mut unread, steps)) = checkpoint.unread(slots, dying) {
            if let Some(tables) = steps.step(|own| unread.read_batch(own))? {
                checkpoint.tables = tables;
                checkpoint.groups.extend(checkpoint.written_group().map(Rc::new));
                checkpoint.step = SliceCheckpointPhase::Waiting;
            }
            return Ok(None);
        }
        let SliceCheckpoint { slices, groups, step, steps: Some(steps), failed, .. } = checkpoint
        else {
            return Ok(None);
        };
        if let SliceCheckpointPhase::Telling(telling) = step {
            let told = steps.step(|own| telling.write_batch((slices, groups), own))?;
            return Ok(told.map(|catalog| self.image_of(catalog)));
        }
        steps.check()?;
        if let Some(error) = failed.take() {
            return Err(error);
        }
        if slices.iter().all(|before| before.frozen.is_none()) {
            *step = SliceCheckpointPhase::Telling(CatalogPosition::default());
        } else if self.slices().filter_map(|slice| slice.frozen.as_ref()).any(|part| part.job == 0)
        {
            self.spill()?;
        }
        Ok(None)
    }

    /// Reads all that is not read yet and has it written, at once: memory is needed that it holds
    /// on to. If that fails, the checkpoint does.
    #[cold]
    pub(super) fn read_rest(&mut self) {
        let Self { checkpoint, slots, dying, .. } = self;
        let Some(checkpoint) = checkpoint.as_deref_mut() else { return };
        let Some((mut unread, steps)) = checkpoint.unread(slots, dying) else { return };
        steps.read_rest(|own| unread.read_part(own));
        if steps.is_lost() {
            self.lose();
        }
    }

    /// Gives the checkpoint up.
    fn lose(&mut self) {
        let Some(checkpoint) = &mut self.checkpoint else { return };
        checkpoint.steps.iter_mut().for_each(CheckpointSteps::lose);
        self.dying.extend(std::mem::take(&mut checkpoint.gone).into_values());
        for slice in self.slots.iter_mut().flatten().chain(&mut self.dying) {
            slice.captured = None;
        }
    }

    /// Whether a checkpoint has to [keep](SegmentsCore::keep) what a slice has of the key that `is`,
    /// before that changes. The groups have another table from now on.
    #[inline(never)]
    pub(super) fn wants(
        &mut self,
        slot: usize,
        hash: u64,
        is: &mut dyn FnMut(KeyRef<'_>) -> bool,
    ) -> bool {
        let Some(found) = &mut self.slots[slot] else { return false };
        found.in_group = None;
        let wants = |captured: &UnreadSlice| {
            captured.entries.wants(hash, is) || captured.cuts.wants(hash, is)
        };
        found.captured.as_deref().is_some_and(wants)
    }

    /// The table of a slice is about to change at a key: keeps what that has for the checkpoint being
    /// taken, and notes that checkpoints have written another table.
    #[cold]
    #[inline(never)]
    pub(super) fn keep(&mut self, slot: usize, hash: u64, key: KeyRef<'_>) {
        let Some(found) = &mut self.slots[slot] else { return };
        found.in_group = None;
        let Some(captured) = &mut found.captured else { return };
        let is_kept = captured.entries.keep(Some(&found.active), hash, key)
            && captured.cuts.keep(found.cuts.table(), hash, key);
        if !is_kept {
            self.read_rest();
        }
    }

    /// A slice is gone: it is given back, unless a checkpoint has not read it.
    pub(super) fn retire(&mut self, slice: Slice) {
        match (&mut self.checkpoint, &slice.captured) {
            (Some(checkpoint), Some(captured)) => {
                checkpoint.gone.insert(captured.number, slice);
            }
            _ => self.dying.push_back(slice),
        }
    }

    /// Whether a checkpoint waits for this table to be written.
    fn waits_for(&mut self, table: &FrozenSlice) -> Option<&mut SliceBefore> {
        let slices = &mut self.checkpoint.as_mut()?.slices;
        slices.iter_mut().find(|before| {
            before.frozen.as_ref().is_some_and(|(_, frozen)| Arc::ptr_eq(frozen, table))
        })
    }

    /// A table was written: says whether a checkpoint waits for it, which holds the run from now on.
    pub(super) fn was_written(&mut self, table: &FrozenSlice, written: &WrittenRun) -> bool {
        let Some(before) = self.waits_for(table) else { return false };
        let (number, _) = before.frozen.take().expect("it waits for it");
        before.runs.push(Arc::new(run_of(number, 0, written.clone())));
        self.files.name(files_of(&written.segments));
        true
    }

    /// A table was not written, and stays.
    pub(super) fn was_not_written(&mut self, table: &FrozenSlice, error: &Error) {
        if self.waits_for(table).is_some() {
            let checkpoint = self.checkpoint.as_mut().expect("it waits");
            checkpoint.failed = Some(Error::new(error.kind(), error.message()));
        }
    }

    /// Whether a group has the table of a slice as it is now.
    fn is_table_in(&self, slice: Time, group: u64) -> bool {
        let slot = self.by_time.get(&slice);
        slot.is_some_and(|slot| self.slice_at(*slot as usize).in_group == Some(group))
    }

    /// Whether a checkpoint reads the tables.
    pub(super) fn is_captured(&self) -> bool {
        let is_it = |checkpoint: &SliceCheckpoint| {
            let is_lost = checkpoint.steps.as_ref().is_some_and(CheckpointSteps::is_lost);
            matches!(checkpoint.step, SliceCheckpointPhase::Reading(_)) && !is_lost
        };
        self.checkpoint.as_deref().is_some_and(is_it)
    }

    /// A table that was not written is dropped.
    pub(super) fn was_dropped(&mut self, table: &FrozenSlice) {
        if let Some(before) = self.waits_for(table) {
            before.frozen = None;
            self.lose();
        }
    }

    fn image_of(&mut self, catalog: Vec<SegmentInfo>) -> StateImage {
        let checkpoint = self.checkpoint.as_mut().expect("a checkpoint is taken");
        checkpoint.steps = None;
        let mut own = std::mem::take(&mut checkpoint.tables);
        own.extend(catalog);
        let slices = std::mem::take(&mut checkpoint.slices);
        let entries: u64 = slices.iter().map(|before| before.table.entries).sum();
        let written = slices.iter().filter(|before| before.group == checkpoint.number);
        let encoded: u64 = written.map(|before| before.table.entries).sum();
        let runs = || slices.iter().flat_map(|before| &before.runs);
        let stored: u64 = runs().map(|run| run.records).sum();
        let named = runs().flat_map(|run| &run.segments);
        let mut named: Vec<_> = named.map(SegmentInfo::all_live).collect();
        let written =
            checkpoint.groups.last().is_some_and(|group| group.number == checkpoint.number);
        let again = checkpoint.groups.len() - usize::from(written);
        named.extend(checkpoint.groups[..again].iter().flat_map(|g| g.segments.clone()));
        named.extend(own.iter().map(SegmentInfo::all_live));
        let part = ImagePart::new(LAYOUT, named, Vec::new());
        let image = StateImage::of(entries + stored, part);
        let bytes: u64 = own.iter().map(|segment| segment.bytes).sum();
        self.disk_bytes += bytes;
        self.stats.flushed_bytes += bytes;
        self.stats.codec_calls += encoded;
        self.files.take(files_of_image(&image));
        image
    }

    /// What became of the checkpoint.
    pub(super) fn decide_checkpoint(&mut self, outcome: CheckpointOutcome) {
        self.lose();
        if let Some(mut checkpoint) = self.checkpoint.take() {
            // Its segments, if they are not the image's, go with the writer.
            if let (Some(storage), false) = (&self.background.storage, checkpoint.tables.is_empty())
            {
                for segment in &checkpoint.tables {
                    let _ = storage.store.remove(segment.id);
                }
            }
            checkpoint.steps = None;
            self.fund.end();
            if outcome == CheckpointOutcome::Committed {
                // Of what was booked at the barrier.
                self.groups.confirmed(std::mem::take(&mut checkpoint.groups));
            }
        }
        let free = self.files.decide(outcome);
        if !free.is_empty() {
            self.background.remove(free);
        }
    }
}
