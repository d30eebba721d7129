//! Taking a checkpoint of lists while they are appended to.
//!
//! It begins with a barrier, whose cost does not depend on how many lists there are: what is in
//! memory is frozen per bucket, as a spill does, and the runs that there are then are remembered.
//! Later appends go to new chunks. The helper writes what is frozen, then a catalog of the runs and
//! of the notes as they were at the barrier: who changes a note before it was taken keeps the old
//! one.
//!
//! What it keeps true:
//! - The image has every element that was appended before the barrier, and none after.
//! - What it names stays, and what it waits for is written, also if its bucket is purged meanwhile.

mod packed;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use alluvium_pagestore::{
    Error, ErrorKind, ImagePart, MemoryKind, Result, SegmentId, SegmentInfo, StateImage, Time,
};

use super::LAYOUT;
use super::bucket::AppendBucket;
use super::checkpoint::{CatalogHead, NoteValue, RunKey, RunValue, parts_of, record_of_gap};
use super::config::{MERGE_CHUNK_BYTES, PAGE_BLOCKS};
use super::core::ListsCore;
use super::frozen::{BookedByKind, FrozenBucket};
use super::jobs::RunName;
use super::notes::{KeptNote, KeyNote};
use super::packed::{PackedAtBarrier, is_plain};
use super::run::{RUN_BYTES, StoredRun};
use crate::checkpoint::{
    BATCH_BYTES_MAX, BatchWriter, CheckpointSteps, GivenBatches, InSteps, WriterSizes, files_of,
    files_of_image,
};
use crate::contract::table::CheckpointOutcome;
use crate::heap::entry_table_unsafe::FrozenTable;
use crate::heap::snapshot::Snapshot;
use crate::support::booked::Booked;
use crate::support::gaps::{GAP_BYTES, HashGap};

/// Bytes booked for a run that a checkpoint names.
pub(super) const NAMED_BYTES: u64 = 128;
/// Bytes after which an image of the catalog ends.
const CATALOG_PAGE_BYTES: u64 = 64 << 10;

/// A checkpoint being taken, or not decided yet.
pub struct ListCheckpoint {
    /// At the barrier: elements, the newest run, and notes.
    elements: u64,
    epoch: u64,
    notes: u64,
    gaps: Vec<(Time, HashGap)>,
    /// What was packed.
    pub(super) packed: Option<PackedAtBarrier>,
    /// Runs at the barrier.
    runs: Vec<NamedRun>,
    /// Those that are not written yet, and where in `runs` they are.
    waiting: BTreeMap<RunName, usize>,
    /// Whether all of these are left until levels are merged.
    are_left: bool,
    /// Unwritten runs whose buckets are purged: only this checkpoint has them.
    orphans: Vec<OrphanRun>,
    /// Notes of buckets that are purged.
    notes_left: Vec<NotesLeft>,
    /// The first bucket whose notes were not taken.
    notes_at: Time,
    step: ListCheckpointPhase,
    /// Whether the helper syncs what is packed, and why it could not.
    is_syncing: bool,
    sync_failed: Option<Error>,
    /// Whether the catalog has its first record.
    is_headed: bool,
    /// Its steps, until the image is given.
    catalog: Option<CheckpointSteps>,
    /// For the runs.
    booked: Booked,
}

enum ListCheckpointPhase {
    /// Frozen lists are being written.
    Writing,
    /// What is packed is being synced.
    Syncing,
    /// Runs before this one are in the catalog; behind the last of them come the gaps, and the directory of what is
    /// packed.
    Naming(usize),
    /// Notes are being put there.
    Noting,
}

/// A run that the checkpoint names.
struct NamedRun {
    name: RunName,
    elements: u64,
    purged: bool,
    /// Unless it is packed.
    stored: Option<Arc<StoredRun>>,
    is_packed: bool,
    /// Whether it may be: nothing is noted of its bucket's keys.
    may_be_packed: bool,
}

struct OrphanRun {
    frozen: Arc<FrozenBucket>,
    busy: bool,
}

struct NotesLeft {
    time: Time,
    notes: FrozenTable<KeyNote>,
    booked: BookedByKind,
    snapshot: Box<Snapshot<KeptNote>>,
}

impl ListCheckpoint {
    /// The newest run at the barrier.
    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Puts runs from one on into the catalog; behind the last of them gaps, and the directory of what is packed.
    fn name_runs(&mut self, mut at: usize, catalog: &mut BatchWriter) -> Result<()> {
        if !std::mem::replace(&mut self.is_headed, true) {
            let pages = self.packed.as_ref().map_or(0, PackedAtBarrier::pages);
            let named = self.runs.iter().filter(|run| !run.is_packed).count();
            let told = (named + self.gaps.len() + pages) as u64;
            let head: CatalogHead = (self.epoch, told, self.notes);
            catalog.push(0, &(), &head)?;
        }
        while at < self.runs.len() && catalog.has_room() {
            let run = &self.runs[at];
            at += 1;
            if run.is_packed {
                continue;
            }
            let stored = run.stored.as_ref().expect("all were written");
            let value: RunValue = (run.elements, run.purged, parts_of(stored));
            let key: RunKey = (run.name.0.0, run.name.1);
            catalog.push(0, &key, &value)?;
        }
        self.step = ListCheckpointPhase::Naming(at);
        if at < self.runs.len() {
            return Ok(());
        }
        while catalog.has_room() {
            let (key, value) = if let Some((time, gap)) = self.gaps.pop() {
                record_of_gap(time, gap)
            } else if let Some(page) = self.packed.as_mut().and_then(PackedAtBarrier::next_page) {
                page
            } else {
                self.step = ListCheckpointPhase::Noting;
                break;
            };
            catalog.push(0, &key, &value)?;
        }
        Ok(())
    }
}

impl InSteps for ListsCore {
    fn pause(&mut self) -> Result<()> {
        let is_syncing = self.checkpoint.as_ref().is_some_and(|checkpoint| checkpoint.is_syncing);
        let is_busy = self.writing > 0 || is_syncing;
        if !is_busy && self.waits_for_merges() {
            self.wait_for_merges(None);
        } else if !is_busy {
            std::thread::yield_now();
        } else if let Some(answer) = self.jobs.wait() {
            self.take(answer);
        }
        Ok(())
    }

    fn patience(&self) -> Duration {
        self.sizes.patience.saturating_mul(8)
    }
}

impl ListsCore {
    /// Everything in the lists now is of the checkpoint.
    pub(super) fn begin_capture(&mut self) -> Result<()> {
        let catalog = CheckpointSteps::new(&self.context, self.catalog_sizes(), 0)?;
        if self.checkpoint.is_some() {
            // The store has not said what became of the last one, so that it may be either.
            self.decide_checkpoint(CheckpointOutcome::Unknown);
        }
        self.leave_fold();
        self.poll()?;
        let runs = |lists: &Self| -> usize {
            let own = lists.buckets.values().map(|b| b.runs.len() + usize::from(b.elements > 0));
            own.sum::<usize>() + lists.graves.values().map(Vec::len).sum::<usize>()
        };
        // Where memory is short, this waits for storage.
        let fresh = self.buckets.values().filter(|bucket| bucket.elements > 0).count() as u64;
        // The descriptions of runs may outlive the runs.
        let described = |lists: &Self| -> u64 {
            let own = lists.buckets.values().flat_map(|bucket| &bucket.runs);
            let all = own.chain(lists.graves.values().flatten());
            all.filter_map(|run| run.stored.as_ref()).map(|stored| stored.memory_bytes()).sum()
        };
        let gaps: Vec<(Time, HashGap)> =
            self.buckets.iter().flat_map(|(t, b)| b.gaps.iter().map(|gap| (*t, *gap))).collect();
        let gap_bytes = gaps.len() as u64 * GAP_BYTES;
        let packed_bytes = self.packed.as_ref().map_or(0, |packed| packed.naming_bytes());
        let bytes = runs(self) as u64 * NAMED_BYTES
            + fresh * RUN_BYTES
            + described(self)
            + gap_bytes
            + packed_bytes;
        self.make_room(bytes, "what a checkpoint names")?;
        self.freeze_all();
        let count = runs(self);
        let packed_bytes = self.packed.as_ref().map_or(0, |packed| packed.naming_bytes());
        let booked = count as u64 * NAMED_BYTES + described(self) + gap_bytes + packed_bytes;
        let booked = Booked::buffers(self.account.clone(), booked);
        let mut all = Vec::with_capacity(count);
        let imported = self.imported();
        let is_free = |time: &Time, b: &AppendBucket| is_plain(b) && !imported.contains(time);
        let own = self.buckets.iter().map(|(time, b)| (*time, false, is_free(time, b), &b.runs));
        let graves = self.graves.iter().map(|(time, runs)| (*time, true, false, runs));
        for (time, purged, may_be_packed, runs) in own.chain(graves) {
            all.extend(runs.iter().map(|run| NamedRun {
                name: (time, run.number),
                elements: run.elements,
                purged,
                stored: run.stored.clone(),
                is_packed: false,
                may_be_packed,
            }));
        }
        let waiting = all.iter().enumerate().filter(|(_, run)| run.stored.is_none());
        let waiting = waiting.map(|(at, run)| (run.name, at)).collect();
        self.files.take_used();
        self.buckets.values_mut().for_each(|bucket| bucket.begin_snapshot());
        self.failed = None;
        self.checkpoint = Some(Box::new(ListCheckpoint {
            elements: self.elements,
            epoch: self.epoch,
            notes: self.buckets.values().map(|bucket| bucket.notes()).sum(),
            gaps,
            packed: self.packed.as_mut().map(|packed| packed.at_barrier()),
            runs: all,
            waiting,
            are_left: false,
            orphans: Vec::new(),
            notes_left: Vec::new(),
            notes_at: Time::MIN,
            step: ListCheckpointPhase::Writing,
            is_syncing: false,
            sync_failed: None,
            is_headed: false,
            catalog: Some(catalog),
            booked,
        }));
        Ok(())
    }

    /// Does a bounded share; the image at the end.
    pub(super) fn continue_capture(&mut self) -> Result<Option<StateImage>> {
        self.jobs.drive();
        self.poll()?;
        let Some(mut checkpoint) = self.checkpoint.take() else {
            return Err(Error::new(ErrorKind::Config, "no checkpoint was begun"));
        };
        let stepped = match checkpoint.step {
            ListCheckpointPhase::Writing => {
                // What is written needs this to be known.
                self.checkpoint = Some(checkpoint);
                let done = self.write_captured();
                checkpoint = self.checkpoint.take().expect("put there above");
                done.map(|done| {
                    if done {
                        checkpoint.step = ListCheckpointPhase::Syncing;
                    }
                    None
                })
            }
            ListCheckpointPhase::Syncing => self.sync_captured(&mut checkpoint).map(|()| None),
            ListCheckpointPhase::Naming(_) | ListCheckpointPhase::Noting => {
                self.write_catalog(&mut checkpoint)
            }
        };
        self.checkpoint = Some(checkpoint);
        stepped.map_err(|error| error.with("state", &self.context.name))
    }

    /// Has more written of what is frozen; says whether all is.
    fn write_captured(&mut self) -> Result<bool> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        let checkpoint = self.checkpoint.as_mut().expect("there is one");
        if checkpoint.waiting.is_empty() {
            return Ok(true);
        }
        let are_left = checkpoint.are_left;
        if self.writing == 0 && !(are_left && self.waits_for_merges()) {
            let batch = self.unwritten();
            let are_left = batch.is_empty();
            self.write(batch);
            self.checkpoint.as_mut().expect("there is one").are_left = are_left;
        }
        Ok(false)
    }

    /// What the checkpoint has of purged buckets that is to be written, which is begun now.
    pub(super) fn orphans(&mut self) -> Vec<Arc<FrozenBucket>> {
        let all = self.checkpoint.iter_mut().flat_map(|checkpoint| &mut checkpoint.orphans);
        let waiting = all.filter(|orphan| !orphan.busy);
        let begun = waiting.map(|orphan| {
            orphan.busy = true;
            orphan.frozen.clone()
        });
        begun.collect()
    }

    /// A run was written, which the checkpoint may wait for.
    pub(super) fn captured(&mut self, name: RunName, stored: &Arc<StoredRun>) {
        let Some(checkpoint) = &mut self.checkpoint else { return };
        let Some(at) = checkpoint.waiting.remove(&name) else { return };
        checkpoint.runs[at].stored = Some(stored.clone());
        checkpoint.booked.charge(stored.memory_bytes());
        self.files.name(files_of(&stored.files));
        self.forget_orphan(name);
    }

    /// Lists that only the checkpoint had are on storage.
    fn forget_orphan(&mut self, name: RunName) {
        let Some(checkpoint) = &mut self.checkpoint else { return };
        let orphan =
            checkpoint.orphans.iter().position(|o| (o.frozen.bucket, o.frozen.number) == name);
        if let Some(at) = orphan {
            let frozen = checkpoint.orphans.swap_remove(at).frozen;
            let booked = frozen.booked;
            self.reap(frozen, booked);
        }
    }

    /// A run that the checkpoint may wait for could not be written.
    pub(super) fn not_captured(&mut self, name: RunName) {
        let Some(checkpoint) = &mut self.checkpoint else { return };
        checkpoint.are_left = false;
        let mut orphans = checkpoint.orphans.iter_mut();
        let orphan = orphans.find(|o| (o.frozen.bucket, o.frozen.number) == name);
        orphan.into_iter().for_each(|orphan| orphan.busy = false);
    }

    /// Lists of a bucket that is purged: says whether the checkpoint keeps them until they are
    /// written.
    pub(super) fn adopt(&mut self, frozen: &Arc<FrozenBucket>, busy: bool) -> bool {
        let Some(checkpoint) = &mut self.checkpoint else { return false };
        let waited_for = checkpoint.waiting.contains_key(&(frozen.bucket, frozen.number));
        if waited_for {
            checkpoint.are_left = false;
            checkpoint.orphans.push(OrphanRun { frozen: frozen.clone(), busy });
        }
        waited_for
    }

    /// Notes of a bucket that is purged, which were not all taken: gives them back if no checkpoint
    /// wants them.
    pub(super) fn adopt_notes(
        &mut self,
        time: Time,
        snapshot: Option<Box<Snapshot<KeptNote>>>,
        (notes, booked): (FrozenTable<KeyNote>, BookedByKind),
    ) -> Option<(FrozenTable<KeyNote>, BookedByKind)> {
        match (&mut self.checkpoint, snapshot) {
            (Some(checkpoint), Some(snapshot)) => {
                checkpoint.notes_left.push(NotesLeft { time, notes, booked, snapshot });
                None
            }
            _ => Some((notes, booked)),
        }
    }

    fn catalog_sizes(&self) -> WriterSizes {
        let batch = (self.account.limit() / 64).clamp(4 << 10, BATCH_BYTES_MAX as u64);
        WriterSizes {
            chunk_bytes: MERGE_CHUNK_BYTES,
            segment_bytes: self.sizes.segment_bytes,
            page_records: PAGE_BLOCKS as u32,
            page_bytes: CATALOG_PAGE_BYTES,
            batch_bytes: batch as usize,
            value_bytes: 4096,
        }
    }

    /// What writing a catalog takes at least.
    pub(super) fn catalog_bytes(&self) -> u64 {
        self.catalog_sizes().least().memory_bytes()
    }

    /// Puts more into the catalog; the image, once it is durable.
    fn write_catalog(&mut self, checkpoint: &mut ListCheckpoint) -> Result<Option<StateImage>> {
        let Some(mut catalog) = checkpoint.catalog.take() else { return Ok(None) };
        let written = self.catalog_step(checkpoint, &mut catalog);
        if let Ok(Some(sealed)) = &written {
            drop(catalog);
            return Ok(Some(self.image_of(checkpoint, sealed)));
        }
        checkpoint.catalog = Some(catalog);
        written.map(|_| None)
    }

    fn catalog_step(
        &mut self,
        checkpoint: &mut ListCheckpoint,
        catalog: &mut CheckpointSteps,
    ) -> Result<Option<Vec<SegmentInfo>>> {
        // What is left free for reads stays so, if it can be.
        let mut slack = self.sizes.read_slack;
        catalog.make_writer(&mut |bytes| {
            let wanted = bytes + std::mem::take(&mut slack);
            self.make_room(wanted, "the catalog of a checkpoint")
        })?;
        catalog.step(|own| {
            let mut more = true;
            if let ListCheckpointPhase::Naming(at) = checkpoint.step {
                checkpoint.name_runs(at, own)?;
            } else {
                while more && own.has_room() {
                    more = self.take_some_notes(checkpoint, own)?;
                }
            }
            if !more {
                return Ok(GivenBatches::All);
            }
            own.submit();
            Ok(GivenBatches::Some)
        })
    }

    /// Puts some notes into the catalog; says whether there may be more.
    fn take_some_notes(
        &mut self,
        checkpoint: &mut ListCheckpoint,
        catalog: &mut BatchWriter,
    ) -> Result<bool> {
        let list_type = self.list_type;
        let mut push = |time: Time, note: &KeyNote| {
            let imports = note.imports.iter();
            let imports = imports.map(|i| (i.source.0, i.runs.0, i.runs.1, i.delta)).collect();
            let value: NoteValue = ((time.0, note.cut, note.low), imports);
            list_type.push_note(catalog, note.key.get(), &value)
        };
        if let Some(left) = checkpoint.notes_left.last_mut() {
            let (snapshot, time) = (&mut left.snapshot, left.time);
            let take = &mut |note: &KeyNote| push(time, note);
            let more = snapshot.take_some(&left.notes, &self.account, take)?;
            if !more {
                let left = checkpoint.notes_left.pop().expect("looked at above");
                self.reap(left.notes, left.booked);
            }
            return Ok(true);
        }
        let mut rest = self.buckets.range_mut(checkpoint.notes_at..);
        let Some((time, bucket)) = rest.find(|(_, bucket)| bucket.has_snapshot()) else {
            return Ok(false);
        };
        checkpoint.notes_at = *time;
        bucket.take_notes(|note| push(*time, note))?;
        Ok(true)
    }

    fn image_of(&mut self, checkpoint: &mut ListCheckpoint, sealed: &[SegmentInfo]) -> StateImage {
        let mut files: BTreeMap<SegmentId, &SegmentInfo> = BTreeMap::new();
        for run in &checkpoint.runs {
            let Some(stored) = &run.stored else { continue };
            files.extend(stored.files.iter().map(|info| (info.id, info)));
        }
        let named = sealed.iter().chain(files.into_values()).map(SegmentInfo::all_live);
        let part = ImagePart::new(LAYOUT, named.collect(), Vec::new());
        let mut image = StateImage::of(checkpoint.elements, part);
        if let Some(packed) = checkpoint.packed.as_mut().and_then(PackedAtBarrier::part) {
            image = image.with(packed);
        }
        self.files.take(files_of_image(&image));
        self.forget_captured(checkpoint);
        image
    }

    /// Gives back what a checkpoint remembers. Cost: in the number of buckets and of runs; lists and notes are dropped by the
    /// helper.
    fn forget_captured(&mut self, checkpoint: &mut ListCheckpoint) {
        checkpoint.catalog = None;
        checkpoint.packed = None;
        checkpoint.runs = Vec::new();
        checkpoint.booked.give_back();
        checkpoint.waiting.clear();
        for orphan in std::mem::take(&mut checkpoint.orphans) {
            let booked = orphan.frozen.booked;
            self.reap(orphan.frozen, booked);
        }
        for left in std::mem::take(&mut checkpoint.notes_left) {
            self.reap(left.notes, left.booked);
            self.reap_kept(*left.snapshot);
        }
        let snapshots = self.buckets.values_mut().filter_map(|bucket| bucket.take_snapshot());
        for snapshot in snapshots.collect::<Vec<_>>() {
            self.reap_kept(*snapshot);
        }
    }

    /// Has dropped what was kept of notes.
    fn reap_kept(&mut self, mut snapshot: Snapshot<KeptNote>) {
        let (kept, bytes) = snapshot.take_all_kept();
        if kept.is_empty() && kept.memory_bytes() == 0 {
            return;
        }
        // Until it is dropped it is booked as other notes are.
        self.account.charge(MemoryKind::Values, bytes);
        let booked =
            BookedByKind { index: kept.memory_bytes(), values: bytes, ..BookedByKind::default() };
        self.reap(kept, booked);
    }

    /// What became of the checkpoint.
    pub(super) fn decide_checkpoint(&mut self, outcome: CheckpointOutcome) {
        if let Some(mut checkpoint) = self.checkpoint.take() {
            self.forget_captured(&mut checkpoint);
        }
        if let Some(packed) = &mut self.packed {
            packed.decide(outcome);
        }
        let useless = self.files.decide(outcome);
        if !useless.is_empty() {
            self.jobs.remove(useless.into_iter().map(|(id, _)| id).collect());
        }
        self.look_at_cut();
    }
}
