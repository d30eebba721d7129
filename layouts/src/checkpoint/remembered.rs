//! The driver of checkpoints of state in memory: begin, plan, step. How they end is in
//! `remembered/deciding.rs`. Each checkpoint writes what has come since the last one, and tells
//! which records have died.
//!
//! The state keeps a [place](RecordPosition) for each record: where it is, or none. What has a place is on
//! storage as it is. So nothing is noted of an entry that comes and goes between two checkpoints,
//! and of one that goes later that its record is dead. Segments of before are named again (see
//! [`HeapFiles`]). The state says how to read its next stretch; in which order, and what is kept of
//! entries that go before they were read, is left to it.
//!
//! What it keeps true:
//! - An image has of each entry of the barrier one live record.
//! - Nothing of a checkpoint counts before it is confirmed. If one is given up, the next one writes
//!   what it would have written. If its outcome is not known, or a death could not be noted for
//!   want of memory, the next one writes all.
//! - Places are of an [epoch](Remembered::epoch); those of another one are none. So all are
//!   forgotten at once.

mod deciding;

use alluvium_pagestore::{
    BlobReader, BlobWriter, Error, ErrorKind, Key, MemoryKind, Result, SegmentInfo, State,
    StateImage,
};

pub(crate) use self::deciding::LeftSets;
use self::deciding::UndecidedCheckpoint;
use super::deaths_writer::{DeathsWriter, LentPositions};
use super::ledger::{ADDED, CheckpointPlan, HeapFiles};
use super::naming::Naming;
use super::recording::Recording;
use super::steps::{CheckpointSteps, GivenBatches};
use super::writer::WriterSizes;
use crate::contract::table::{CheckpointOutcome, StateContext, TableStats};
use crate::heap::record_position::RecordPosition;
use crate::heap::segment_bytes;
use crate::restore::full_image::{Images, read_placed, reading_bytes, room_bytes, sizes};
use crate::support::booked::Booked;

/// Bytes of a record beside what its entry owns, about.
const RECORD_BYTES: u64 = 64;
/// Stretches that a step reads at most: there may be nothing in many.
const STRETCHES_MAX: usize = 256;

/// What a state remembers of its checkpoints.
#[derive(Debug)]
pub struct Remembered {
    context: StateContext,
    files: HeapFiles,
    images: Images,
    /// Whether places of the epoch are those of the last checkpoint.
    is_on: bool,
    epoch: u32,
    /// The checkpoint being taken.
    taking: Option<Box<ActiveCheckpoint>>,
    /// The one that was taken and is not decided.
    undecided: Option<Box<UndecidedCheckpoint>>,
    /// Of one that was given up: the helper has the list of what has died.
    lent: Option<LentPositions>,
    /// Booked for the buffers of checkpoints, and of whoever opens the state again.
    room: Booked,
    /// Entries that have changed since the last barrier, at most, of a state that counts them.
    changed: u64,
    codec_calls: u64,
    /// Notes of deaths that checkpoints looked at.
    looks: u64,
}

/// A checkpoint being taken.
#[derive(Debug)]
struct ActiveCheckpoint {
    /// At the barrier; not known of a state whose entries have several records.
    entries: Option<u64>,
    /// Entries that have changed between the last barrier and this one, of a state that counts
    /// them.
    changed: u64,
    stepped: CheckpointSteps,
    /// Whether it is decided what is written: no record has died since the barrier before that.
    is_planned: bool,
    naming: Naming,
    /// All is written.
    telling: Option<DeathsWriter>,
}

/// Entries of a state that marks which of them have changed since the last barrier.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MarkedEntries {
    /// How many have changed.
    pub changed: u64,
    /// Bytes to be left free beside what the checkpoint takes.
    pub left_bytes: u64,
}

impl Remembered {
    /// Creates a memory of no checkpoint.
    pub fn new(context: &StateContext) -> Self {
        Self {
            context: context.clone(),
            files: HeapFiles::new(context.account.clone()),
            room: Booked::none(context.account.clone(), MemoryKind::Buffers),
            images: Images::default(),
            is_on: false,
            epoch: 1,
            taking: None,
            undecided: None,
            lent: None,
            changed: 0,
            codec_calls: 0,
            looks: 0,
        }
    }

    /// Reserves the memory for writing a checkpoint and for opening one, as long as the state
    /// lives. The state can then checkpoint and reopen everything it accepts, even while other
    /// states use all other memory. If there is no room otherwise, it forgets the last checkpoint,
    /// and the next one writes everything.
    ///
    /// # Errors
    /// [`ErrorKind::OverBudget`] if there is no room even then.
    pub fn keep_room<K: Key, V: State>(&mut self) -> Result<()> {
        if self.context.segments.is_none() {
            return Ok(());
        }
        let room = room_bytes(&sizes::<K, V>(&self.context, u64::MAX));
        let what = "the buffers of checkpoints";
        self.room.reserve_more(room, what).or_else(|_| {
            self.forget();
            self.room.reserve_more(room, what)
        })
    }

    /// Passes each entry of an image to `entry`, with its place.
    ///
    /// # Errors
    /// Those of `entry`, of reading and of decoding.
    pub fn restore<K: Key, V: State>(
        &mut self,
        image: &StateImage,
        blobs: &BlobReader,
        mut entry: impl FnMut(K, V, RecordPosition) -> Result<()>,
    ) -> Result<()> {
        self.begin_restoring(image);
        let (is_on, mut read) = (self.is_on, 0);
        read_placed(&self.context, image, blobs, |at, key, value| {
            read += 1;
            let place =
                if is_on { RecordPosition::of(at.segment, at.grain) } else { RecordPosition::NONE };
            entry(key, value, place)
        })?;
        self.end_restoring(image, read);
        Ok(())
    }

    /// The state is about to read an image. Says whether it is to remember where records are.
    pub(crate) fn begin_restoring(&mut self, image: &StateImage) -> bool {
        self.is_on = self.files.restored(image);
        self.is_on
    }

    /// So many records of the image were read.
    pub(crate) fn end_restoring(&mut self, image: &StateImage, records: u64) {
        self.codec_calls += records;
        self.changed = 0;
        self.images.restored(image);
        if self.files.live_records() != image.entries {
            // Another build's: what is dead in it is not known.
            self.forget();
        }
    }

    /// Returns the current epoch. A place given in another epoch counts as none. Epochs are greater
    /// than 0 and increase.
    #[inline]
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Notes that the entry with its record at this place was removed. For an entry that the
    /// running checkpoint has not read and that is [due](Remembered::is_due), call
    /// [`outdate`](Remembered::outdate) instead. Cost: O(1).
    #[inline]
    pub fn note_dead(&mut self, place: RecordPosition) {
        if place != RecordPosition::NONE {
            self.files.note_dead(place);
        }
    }

    /// Returns whether the running checkpoint must write the entry at this place, which it has not
    /// read. Valid once the checkpoint is [planned](Remembered::plan).
    pub fn is_due(&self, place: RecordPosition) -> bool {
        self.taking.as_ref().is_some_and(|taking| taking.naming.is_due(place))
    }

    /// Notes the removal of an entry that the running checkpoint has yet to write. The state keeps
    /// the entry until then.
    pub fn outdate(&mut self, place: RecordPosition) {
        if self.beside().is_some_and(|mut to| to.outdate(place).is_err()) {
            self.lose();
        }
    }

    /// An entry of a state that counts changes has changed, once for each barrier at least.
    #[inline]
    pub(crate) fn count_change(&mut self) {
        self.changed += 1;
    }

    /// The state cannot remember a place: the next checkpoint writes all.
    pub(crate) fn break_off(&mut self) {
        self.files.break_off();
    }

    /// By slot, whether the checkpoint being taken writes anew what is live in a segment. Empty if
    /// none is taken.
    pub(crate) fn anew(&self) -> &[bool] {
        self.taking.as_ref().map_or(&[], |taking| &taking.naming.anew)
    }

    /// Whether the checkpoint being taken cannot be ended.
    pub(crate) fn is_lost(&self) -> bool {
        self.taking.as_ref().is_some_and(|taking| taking.stepped.is_lost())
    }

    /// Starts a checkpoint of `entries` entries that own `bytes` bytes. Cost: O(1).
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] in a store without a directory.
    pub fn begin<K: Key, V: State>(&mut self, entries: u64, bytes: u64) -> Result<()> {
        let segment_bytes = segment_bytes(bytes + entries * RECORD_BYTES);
        let sizes = WriterSizes { segment_bytes, ..sizes::<K, V>(&self.context, entries) };
        self.begin_at(Some(entries), sizes)
    }

    /// [`begin`](Remembered::begin) with these sizes. Without the number of entries, what the state counts
    /// as changed is written, and the records are counted.
    ///
    /// # Errors
    /// As for `begin`.
    pub(crate) fn begin_at(&mut self, entries: Option<u64>, sizes: WriterSizes) -> Result<()> {
        let stepped = CheckpointSteps::new(&self.context, sizes, self.room.bytes())?;
        drop(self.give_up());
        if self.undecided.take().is_some() {
            // Nobody knows which segments are those of the last checkpoint: those of both stay.
            self.images.decide(CheckpointOutcome::Unknown, None);
            self.files.break_off();
        }
        self.taking = Some(Box::new(ActiveCheckpoint {
            entries,
            changed: std::mem::take(&mut self.changed),
            stepped,
            is_planned: false,
            naming: Naming::first(self.context.account.clone()),
            telling: None,
        }));
        Ok(())
    }

    /// Nothing was there at the barrier of the checkpoint that was begun: its writer is not made.
    pub(crate) fn write_nothing(&mut self) {
        self.taking.iter_mut().for_each(|taking| taking.stepped.write_nothing());
    }

    /// Decides what the running checkpoint writes, if that is undecided. Call it before you remove
    /// an entry that the checkpoint has not read. Cost: O(segments).
    #[inline]
    pub fn plan(&mut self) {
        if self.is_unplanned() {
            self.plan_begun(None);
        }
    }

    /// Whether a checkpoint was begun and not planned.
    pub(crate) fn is_unplanned(&self) -> bool {
        self.taking.as_ref().is_some_and(|taking| !taking.is_planned)
    }

    /// [`plan`](Remembered::plan) of a state that marks what has changed. Says how many records are
    /// written at most; `None` if all are, as no place is remembered.
    pub(crate) fn plan_marked(&mut self, marked: MarkedEntries) -> Option<u64> {
        self.plan_begun(Some(marked))
    }

    #[cold]
    fn plan_begun(&mut self, marked: Option<MarkedEntries>) -> Option<u64> {
        self.take_lent();
        let is_first = !self.is_on || self.files.is_broken();
        if is_first {
            self.forget();
            self.is_on = true;
        }
        let taking = self.taking.as_mut()?;
        let ActiveCheckpoint { entries, changed, stepped, naming, .. } = &mut **taking;
        let mut records = None;
        if !is_first {
            let (files, account) = (&mut self.files, &self.context.account);
            let (live, segment_bytes) = (files.live_records(), stepped.segment_bytes());
            let is_new = entries.is_some() && marked.is_none();
            let (entries, changed) = match (*entries, &marked) {
                (Some(entries), Some(marked)) => (entries, marked.changed),
                // What was written by one that was given up counts as well.
                (Some(entries), None) => (entries, entries.saturating_sub(live)),
                (None, _) => (live + *changed, *changed),
            };
            let mut plan = files.plan(entries, changed, segment_bytes);
            let mut room = (0, marked.as_ref().map_or(0, |marked| marked.left_bytes));
            if is_new {
                // What has changed is new: no record dies as a newer one is written.
                plan = CheckpointPlan { outdated: 0, ..plan };
                let reading = reading_bytes(&self.context, segment_bytes);
                room.0 = reading + files.reading_bytes(&plan);
            }
            let planned = Naming::planned(files, account, entries, plan, room);
            (*naming, records) = (planned.0, Some(planned.1));
        }
        taking.is_planned = true;
        records
    }

    /// Takes back what the helper was lent for a checkpoint that was given up. If it has it still,
    /// the next one writes all.
    fn take_lent(&mut self) {
        if let Some(lent) = self.lent.take() {
            lent.take_back(&self.context.helper, &mut self.files);
        }
    }

    /// Nothing is remembered of any checkpoint: the next one writes all.
    fn forget(&mut self) {
        self.lent = None;
        self.files.clear();
        self.is_on = false;
        self.epoch += 1;
    }

    /// Does a bounded step and returns the image at the end. `read` reads a few entries and returns
    /// whether there were any.
    ///
    /// # Errors
    /// Those of `read` and of writing. Start the checkpoint again.
    pub fn step(
        &mut self,
        blobs: &BlobWriter,
        mut read: impl FnMut(&mut Recording<'_>) -> Result<bool>,
    ) -> Result<Option<StateImage>> {
        self.step_by_batches(blobs, |to| {
            for _ in 0..STRETCHES_MAX {
                if !to.has_room() {
                    to.batch().submit();
                    return Ok(GivenBatches::Some);
                }
                if !read(to)? {
                    return Ok(GivenBatches::All);
                }
            }
            Ok(GivenBatches::Some)
        })
    }

    /// [`step`](Remembered::step) of a state whose batches the helper encodes: `give` takes back
    /// the one before, and gives it the next.
    ///
    /// # Errors
    /// Those of `give` and of writing; the checkpoint has to be begun again.
    pub(crate) fn step_by_batches(
        &mut self,
        blobs: &BlobWriter,
        give: impl FnOnce(&mut Recording<'_>) -> Result<GivenBatches>,
    ) -> Result<Option<StateImage>> {
        if self.is_telling()? {
            return self.tell_step(blobs);
        }
        let Self { taking, files, epoch, changed, .. } = self;
        let ActiveCheckpoint { stepped, naming, .. } = &mut **taking.as_mut().expect("it is taken");
        let sealed = stepped.step(|own| {
            give(&mut Recording { own: Some(own), naming, files, epoch: *epoch, changed })
        })?;
        self.go_on(sealed, blobs)
    }

    /// Whether all of the checkpoint that is taken is written.
    fn is_telling(&mut self) -> Result<bool> {
        self.plan();
        let Some(taking) = &self.taking else {
            return Err(Error::new(ErrorKind::Config, "no checkpoint was begun"));
        };
        taking.stepped.check()?;
        Ok(taking.telling.is_some())
    }

    fn go_on(
        &mut self,
        sealed: Option<Vec<SegmentInfo>>,
        blobs: &BlobWriter,
    ) -> Result<Option<StateImage>> {
        let Some(sealed) = sealed else { return Ok(None) };
        self.begin_telling(sealed);
        self.tell_step(blobs)
    }

    /// Reads entries beside the writer; `None` if no checkpoint is taken. If `read` fails or
    /// panics, the checkpoint is lost.
    ///
    /// # Errors
    /// Those of `read`; the checkpoint has to be begun again.
    pub(crate) fn read_beside<R>(
        &mut self,
        read: impl FnOnce(&mut Recording<'_>) -> Result<R>,
    ) -> Result<Option<R>> {
        let Self { taking, files, epoch, changed, .. } = self;
        let Some(taking) = taking else { return Ok(None) };
        let ActiveCheckpoint { stepped, naming, .. } = &mut **taking;
        let to = &mut Recording { own: None, naming, files, epoch: *epoch, changed };
        stepped.read_beside(|| read(to)).map(Some)
    }

    /// Where an entry is noted that the stream is about to change, if a checkpoint is taken. A
    /// failure is for the caller to [tell](Remembered::lose).
    pub(crate) fn beside(&mut self) -> Option<Recording<'_>> {
        let Self { taking, files, epoch, changed, .. } = self;
        let naming = &mut taking.as_mut()?.naming;
        Some(Recording { own: None, naming, files, epoch: *epoch, changed })
    }

    /// The checkpoint being taken cannot be ended: something could not be noted.
    pub(crate) fn lose(&mut self) {
        self.taking.iter_mut().for_each(|taking| taking.stepped.lose());
    }

    /// Whether a checkpoint is being taken whose plan is to write a part of the entries.
    pub(crate) fn is_in_part(&self) -> bool {
        let is_it = |taking: &ActiveCheckpoint| taking.is_planned && !taking.naming.is_first;
        self.taking.as_ref().is_some_and(|taking| is_it(taking))
    }

    /// Whether the checkpoint being taken makes sets of what is live.
    pub(crate) fn makes_sets(&self) -> bool {
        self.taking.as_ref().is_some_and(|taking| !taking.naming.sets.is_empty())
    }

    /// Whether a record is in a segment that the checkpoint being taken writes anew.
    #[inline]
    pub(crate) fn is_anew(&self, place: RecordPosition) -> bool {
        self.taking.as_ref().is_some_and(|taking| taking.naming.is_anew(place))
    }

    /// Records that the checkpoint being taken has given to be written.
    pub(crate) fn encoded(&self) -> u64 {
        self.taking.as_ref().map_or(0, |taking| taking.naming.encoded)
    }

    /// Whether places of this epoch are those of the last checkpoint.
    pub(crate) fn is_on(&self) -> bool {
        self.is_on
    }

    /// Writes everything that `read` reads, in this call. If that fails, the checkpoint fails.
    #[cold]
    pub fn read_rest(&mut self, mut read: impl FnMut(&mut Recording<'_>) -> Result<bool>) {
        self.plan();
        let Some(taking) = &mut self.taking else { return };
        let ActiveCheckpoint { stepped, naming, .. } = &mut **taking;
        let Self { files, epoch, changed, .. } = self;
        stepped.read_rest(|own| {
            let (naming, files, changed) = (&mut *naming, &mut *files, &mut *changed);
            read(&mut Recording { own: Some(own), naming, files, epoch: *epoch, changed })
        });
    }

    /// Waits briefly for the helper.
    pub fn pause(&mut self) {
        self.taking.iter_mut().for_each(|taking| taking.stepped.pause());
    }

    /// All is written.
    fn begin_telling(&mut self, sealed: Vec<SegmentInfo>) {
        let taking = self.taking.as_mut().expect("it is written");
        let ActiveCheckpoint { entries, naming, .. } = &mut **taking;
        let count = || self.files.count_live(&sealed);
        let entries = entries.unwrap_or_else(count);
        let named = self.files.name(entries, &sealed, &naming.slots);
        taking.telling = Some(DeathsWriter::new(&self.files, named, sealed));
    }

    /// Goes on telling which records of segments of before are live; the image, if all is told.
    fn tell_step(&mut self, blobs: &BlobWriter) -> Result<Option<StateImage>> {
        let taking = self.taking.as_mut().expect("it is told of");
        let ActiveCheckpoint { stepped, naming, telling, .. } = &mut **taking;
        let telling = telling.as_mut().expect("it is told of");
        self.looks += if telling.is_adding(naming) { ADDED as u64 } else { 0 };
        let told = telling.share((&self.context, &self.files), naming, blobs);
        let is_told = told.inspect_err(|_| stepped.lose())?;
        Ok(is_told.then(|| self.end()))
    }

    /// Adds the checkpoints' bytes on storage and bytes written to `stats`.
    pub fn describe(&self, stats: &mut TableStats) {
        self.images.describe(stats);
        stats.checkpoint_looks += self.looks;
        stats.live_disk_bytes -= self.files.dead_bytes().min(stats.live_disk_bytes);
        stats.codec_calls += self.codec_calls;
    }
}
