//! Merging runs of a bucket that has many, so that a read of one list stays cheap and what was
//! cleared goes away.
//!
//! The helper merges a bounded part at a time, so that writing does not wait long for it. Entries
//! keep their ranks. Runs whose elements other buckets import are left alone: an import tells runs
//! apart by their numbers. What is imported while a merge goes on concerns all runs up to now, and
//! so the merged one too, whose number is that of the newest in it.

use std::ops::Range;
use std::sync::Arc;

use alluvium_pagestore::block::AlignedVec;
use alluvium_pagestore::{
    Error, ErrorKind, KeyHash, MemoryKind, Result, SegmentId, SegmentWriter, Time,
};

use super::block::{ElementStretch, ElementTarget, ListBlock, ListType, NewEntry};
use super::bucket::AppendBucket;
use super::config::MERGE_CHUNK_BYTES;
use super::core::ListsCore;
use super::frozen::{rank_of, sooner};
use super::jobs::{
    BlockOutput, ENTRY_BYTES, MergeJob, MergeName, MergedRun, PageWriter, SteppedMerge, resolve,
};
use super::key_unsafe::{OwnedKey, has};
use super::notes::KeyNote;
use super::run::{ListRun, RUN_BYTES, StoredRun, is_long};
use super::run_cursor::{CursorSource, Prepaid, RunCursor};
use crate::checkpoint::files_of;
use crate::heap::hash_range::HashRange;
use crate::support::gaps::Gaps;
use crate::support::run_storage::given_up;
use crate::trace_event;

/// Bytes that are merged between two other jobs of the helper.
const STEP_BYTES: usize = 1 << 20;
/// Notes of cleared lists after which all runs of a bucket are merged; those that the merge before had to
/// leave do not count, as the next one would.
const NOTES_MAX: u64 = 4096;
/// Runs of more bytes than these notes times this have a note for each so many bytes before that.
const NOTE_PER: u64 = 256;
/// Such a part of the memory is enough for notes of a bucket: then its runs are merged too.
const NOTES_SHARE: u64 = 16;
/// The same of a bucket whose runs take so many times the memory.
const NOTES_SHARE_OF_LARGE: u64 = 4;
const LARGE: u64 = 16;
/// A merge for which others have to give memory is tried again after so many notes.
const NOTES_STEP: u64 = 64;
/// How many times more runs a bucket may have whose lists are not read one by one.
const UNREAD: usize = 8;

/// Whether it is time to look whether a bucket has too many notes.
pub(super) fn is_step(bucket: &AppendBucket) -> bool {
    bucket.notes().is_multiple_of(NOTES_STEP)
}

impl ListsCore {
    /// Buckets of which much was cleared wait no more for a checkpoint, which takes their notes.
    pub(super) fn look_at_cut(&mut self) {
        let cut = self.buckets.values().filter(|bucket| bucket.is_mostly_cut());
        self.crowded.extend(cut.map(|bucket| bucket.time).collect::<Vec<_>>());
    }

    /// Begins to merge runs of a bucket, if one has too many, or too much in one was cleared, and
    /// there is memory for it.
    pub(super) fn merge_crowded(&mut self) {
        while !self.merging {
            let Some(time) = self.crowded.first().copied() else { return };
            let Some(all) = self.is_crowded(time) else {
                self.crowded.remove(&time);
                continue;
            };
            let Some((group, bytes)) = self.choose(time, all) else {
                self.crowded.remove(&time);
                continue;
            };
            if !self.begin_merge(time, group, bytes) {
                return;
            }
        }
    }

    /// Whether all runs of a bucket are to be merged, or some; `None` if nothing is.
    pub(super) fn is_crowded(&self, time: Time) -> Option<bool> {
        let bucket = self.buckets.get(&time)?;
        let imported = self.buckets.values().any(|other| other.sources.contains_key(&time));
        let many = self.has_many_runs(bucket);
        let noted = bucket.new_notes() >= self.notes_max(bucket) || bucket.is_mostly_cut();
        // Notes that a checkpoint still takes are not dropped.
        let noted = noted && !bucket.has_snapshot();
        (!imported && (many || noted)).then_some(noted)
    }

    /// New notes of a bucket after which all its runs are merged: the more, the larger these are, as a bucket whose lists
    /// are cleared one by one would be written again and again otherwise.
    fn notes_max(&self, bucket: &AppendBucket) -> u64 {
        // Tables double, and do not shrink before they are empty.
        let each = 2 * size_of::<KeyNote>() as u64 + bucket.notes_bytes() / bucket.notes().max(1);
        // Large lists are written again seldom.
        let is_large = bucket.stored_bytes() > LARGE * self.account.limit();
        let share = if is_large { NOTES_SHARE_OF_LARGE } else { NOTES_SHARE };
        let share = (self.account.limit() / share / each).max(NOTES_STEP);
        share.min(NOTES_MAX.max(bucket.stored_bytes() / NOTE_PER))
    }

    /// Waits for a step of a merge if a bucket has twice as many new notes as it should have: clearing goes no faster than
    /// merges drop notes.
    pub(super) fn wait_for_notes(&mut self, time: Time) {
        let Some(bucket) = self.buckets.get(&time) else { return };
        if self.merging && bucket.new_notes() >= 2 * self.notes_max(bucket) {
            self.stats.stalls += 1;
            if let Some(answer) = self.jobs.wait() {
                self.take(answer);
            }
        }
    }

    /// Whether a bucket has so many new notes that other states are asked for the memory of a merge. Once every few notes:
    /// they may have nothing to give.
    fn asks_for_merge(&mut self, time: Time) -> bool {
        let bucket = &self.buckets[&time];
        let (notes, wants) = (bucket.notes(), bucket.new_notes() >= self.notes_max(bucket));
        let asks = wants && is_step(bucket) && bucket.asked_at != notes;
        if asks && let Some(bucket) = self.buckets.get_mut(&time) {
            bucket.asked_at = notes;
        }
        asks
    }

    /// Whether a bucket has more runs than reading it should meet. Those whose lists nobody asks
    /// for one by one are folded, which reads every run once, merged or not: merging would only
    /// write them again.
    fn has_many_runs(&self, bucket: &AppendBucket) -> bool {
        let (count, max) = (bucket.runs.len(), self.sizes.runs_max);
        if self.is_tight && count > 1 {
            return true;
        }
        if count <= max {
            return self.has_long_runs(bucket);
        }
        // About what reading all runs together takes, as sessions may that have moved.
        let all: usize = self.buckets.values().map(|bucket| bucket.runs.len()).sum();
        let each = self.sizes.window_bytes + 2 * self.sizes.block_bytes;
        let asked_for = bucket.is_read_singly || bucket.notes() > 0;
        asked_for || count > UNREAD * max || (all * each) as u64 > self.account.limit() / 8
    }

    /// Whether the runs of a bucket have blocks so long that reading all of them takes more than a
    /// quarter of the memory.
    fn has_long_runs(&self, bucket: &AppendBucket) -> bool {
        let stored = bucket.runs.iter().filter_map(|run| run.stored.as_ref());
        let bytes =
            stored.filter(|stored| is_long(stored)).map(|stored| self.least_to_read(stored));
        bucket.runs.len() > 1 && bytes.sum::<u64>() > self.account.limit() / 4
    }

    /// The neighbours to merge, and the memory that takes: half of the runs, those that are least
    /// in sum, or all; fewer if memory is small.
    pub(super) fn choose(&self, time: Time, all: bool) -> Option<(Range<usize>, u64)> {
        let runs = &self.buckets.get(&time)?.runs;
        let mut count = if all { runs.len() } else { (runs.len() / 2).max(2) };
        let mut most = self.account.limit() / 2;
        if self.is_tight {
            most = most.min(self.account.available().saturating_sub(self.sizes.slack) * 7 / 8);
        }
        while count >= 2 || all && count == 1 {
            let candidates = (0..=runs.len() - count).map(|start| start..start + count);
            let ready = candidates.filter(|group| {
                runs[group.clone()].iter().all(|run| run.stored.is_some() && !run.busy)
            });
            let size = |group: &Range<usize>| -> u64 {
                let stored = runs[group.clone()].iter().filter_map(|run| run.stored.as_ref());
                stored.map(|stored| stored.bytes()).sum()
            };
            let group = ready.min_by_key(size);
            let bytes = group.as_ref().map(|group| self.merge_memory(&runs[group.clone()]));
            match (group, bytes) {
                (Some(group), Some(bytes)) if bytes <= most => {
                    return Some((group, bytes));
                }
                _ => count -= 1,
            }
        }
        None
    }

    fn merge_memory(&self, runs: &[ListRun]) -> u64 {
        // Many short elements take more as values; one that is long does not.
        let expansion = if self.list_type.is_plain { 2 } else { 8 };
        let short = 2 * self.sizes.block_bytes as u64;
        let stored = || runs.iter().filter_map(|run| run.stored.as_ref());
        let each = |stored: &Arc<StoredRun>| {
            let longest = stored.longest();
            let expanded = (expansion * longest).min(expansion * short + longest / 4);
            self.least_to_read(stored) + expanded
        };
        let once = stored().map(|stored| stored.reading_bytes_once()).max();
        self.sizes.merge_bytes + once.unwrap_or(0) + stored().map(each).sum::<u64>()
    }

    /// Begins to merge, if there is the memory.
    pub(super) fn begin_merge(&mut self, time: Time, group: Range<usize>, bytes: u64) -> bool {
        let source = self.source.clone().expect("stored runs have a source");
        let bucket = &self.buckets[&time];
        let notes = bucket.notes() * size_of::<(OwnedKey, u64)>() as u64 + bucket.notes_bytes();
        let bytes = bytes + notes + bucket.gaps.bytes();
        let room = bytes + self.sizes.slack;
        let what = "a merge of cleared lists";
        if self.account.available() < room
            && !(self.asks_for_merge(time) && self.account.ensure(room, what).is_ok())
        {
            return false;
        }
        let bucket = self.buckets.get_mut(&time).expect("chosen from a bucket");
        self.account.charge(MemoryKind::Buffers, bytes);
        let mut cuts = Vec::with_capacity(bucket.notes() as usize);
        let gathered = bucket.for_each_note(|note| {
            if note.cut > 0 {
                cuts.push((note.key.clone(), note.cut));
            }
            Ok(())
        });
        debug_assert!(gathered.is_ok(), "gathering does not fail");
        // A cut hides runs before the next one. Those that are made from now on hide this merge's run, and are
        // told from those it goes by.
        self.epoch += 1;
        let (range, next) = (self.range, self.epoch);
        cuts.sort_unstable_by_key(|(key, _)| range.place(key.key_hash()));
        let runs = &mut bucket.runs[group];
        let window = self.sizes.window_bytes as u64;
        let cursors = runs.iter_mut().map(|run| {
            run.busy = true;
            let stored = run.stored.clone().expect("chosen among stored runs");
            RunCursor::new(source.clone(), Prepaid, (time, run.number), stored, None, window)
        });
        let cursors: Vec<_> = cursors.collect();
        let name = MergeName {
            bucket: time,
            runs: cursors.iter().map(|cursor| cursor.number).collect(),
            next,
            bytes,
        };
        let gaps = bucket.gaps.clone();
        let merger = self.merger_of((source, cursors), cuts, gaps);
        self.merging = true;
        self.jobs.merge(Box::new(merger), name);
        true
    }

    fn merger_of(
        &self,
        (source, cursors): (CursorSource, Vec<RunCursor<Prepaid>>),
        cuts: Vec<(OwnedKey, u64)>,
        gaps: Gaps,
    ) -> RunMerger {
        let (chunk, segment) = (MERGE_CHUNK_BYTES, self.sizes.segment_bytes);
        RunMerger {
            writer: SegmentWriter::new(source.store, source.state, chunk, segment),
            scratch: AlignedVec::new(),
            pages: Some(PageWriter::new()),
            cursors,
            cuts,
            gaps,
            range: self.range,
            block_bytes: self.sizes.block_bytes,
            list_type: self.list_type,
            entries: self.list_type.empty(),
            bytes: 0,
            last_plain: false,
            elements: 0,
            keys: 0,
        }
    }

    /// Writes what a cursor reads as a run, at once: so many elements. Takes what a merge does beside the cursor.
    ///
    /// # Errors
    /// Those of reading and writing: nothing is left then.
    pub(super) fn copy_to_run(
        &mut self,
        cursor: RunCursor<Prepaid>,
        elements: u64,
    ) -> Result<MergedRun> {
        let source = self.source.clone().expect("runs have a source");
        let mut merger = self.merger_of((source, vec![cursor]), Vec::new(), Gaps::default());
        loop {
            match merger.step() {
                Ok(None) => {}
                Ok(Some(copied)) if copied.elements == elements => return Ok(copied),
                Ok(Some(copied)) => {
                    let found = copied.elements;
                    let what = format!("{found} elements are in records that tell {elements}");
                    self.jobs.remove(copied.stored.files.iter().map(|info| info.id).collect());
                    return Err(Error::new(ErrorKind::Corrupt, what));
                }
                Err(error) => {
                    let useless = merger.abandon();
                    self.jobs.remove(useless);
                    return Err(error);
                }
            }
        }
    }

    /// A step of a merge was done.
    pub(super) fn take_merging(&mut self, merging: SteppedMerge) {
        let SteppedMerge { mut name, step, mut merge } = merging;
        let gone = !self.buckets.get(&name.bucket).is_some_and(|bucket| {
            bucket.runs.iter().filter(|run| name.runs.contains(&run.number)).count()
                == name.runs.len()
        });
        match step {
            Ok(None) if !gone => return self.jobs.merge(merge, name),
            Ok(None) => {
                let useless = merge.abandon();
                self.jobs.remove(useless);
                drop(merge);
            }
            Ok(Some(merged)) => {
                // What it took is free before the table of its run is booked, beside those of the runs that it replaces.
                drop(merge);
                self.account.release(MemoryKind::Buffers, std::mem::take(&mut name.bytes));
                self.files.add(files_of(&merged.stored.files));
                if gone {
                    self.remove_files(&merged.stored);
                } else {
                    self.replace(&name, merged);
                    self.crowded.insert(name.bucket);
                }
            }
            // Tried again when the bucket gets another run.
            Err(error) => {
                self.crowded.remove(&name.bucket);
                let (state, why) = (self.context.name.as_str(), error.message());
                trace_event!(WARN, "runs could not be merged", state = state, error = why);
                drop(merge);
            }
        }
        if let Some(bucket) = self.buckets.get_mut(&name.bucket) {
            let merged = bucket.runs.iter_mut().filter(|run| name.runs.contains(&run.number));
            merged.for_each(|run| run.busy = false);
        }
        self.account.release(MemoryKind::Buffers, name.bytes);
        self.merging = false;
    }

    /// Puts a merged run in the place of those that it was made of.
    fn replace(&mut self, name: &MergeName, merged: MergedRun) {
        let MergedRun { stored, elements, keys } = merged;
        // A fold under way may have seen some of these in memory.
        self.resume = None;
        self.stats.rewritten += elements;
        self.stats.flushed_bytes += stored.bytes();
        let bucket = self.buckets.get_mut(&name.bucket).expect("looked up before");
        let first = bucket.runs.iter().position(|run| name.runs.contains(&run.number));
        let first = first.expect("merged runs are there");
        let count = name.runs.len();
        let number = bucket.runs[first + count - 1].number;
        self.account.charge(MemoryKind::Tables, stored.memory_bytes() + RUN_BYTES);
        self.elements += elements;
        let run = ListRun::on_storage(number, (elements, keys), stored);
        let old: Vec<_> = bucket.runs.splice(first..first + count, [run]).collect();
        if first == 0 {
            // What was cut off up to here is not there any more.
            let next = bucket.runs.get(1).map_or(name.next, |run| run.number.min(name.next));
            bucket.drop_notes(next);
            bucket.gaps.close_before(next, &self.account);
        }
        // Of fewer runs, or of one, no more is to be had either.
        if (bucket.runs.len() == 1 || count == 1) && !bucket.has_snapshot() {
            bucket.leave_notes();
        }
        for run in old {
            self.drop_run(run);
        }
        self.drop_if_vacant(name.bucket);
    }
}

/// Merges runs, on the helper.
struct RunMerger {
    writer: SegmentWriter,
    scratch: AlignedVec,
    pages: Option<PageWriter>,
    cursors: Vec<RunCursor<Prepaid>>,
    /// Keys, in the order of their places, of which older runs have nothing any more.
    cuts: Vec<(OwnedKey, u64)>,
    /// The same of ranges of hashes.
    gaps: Gaps,
    range: HashRange,
    block_bytes: usize,
    list_type: &'static ListType,
    /// The block that is gathered.
    entries: Box<dyn ListBlock>,
    bytes: usize,
    last_plain: bool,
    elements: u64,
    keys: u64,
}

impl MergeJob for RunMerger {
    fn step(&mut self) -> Result<Option<MergedRun>> {
        let mut done = 0;
        while done < STEP_BYTES {
            let mut place = None;
            for cursor in &mut self.cursors {
                place = sooner(place, cursor.peek()?);
            }
            match place {
                Some(place) => done += self.merge_place(place)?,
                None => return self.finish().map(Some),
            }
        }
        Ok(None)
    }

    fn abandon(&mut self) -> Vec<SegmentId> {
        given_up(&mut self.writer).collect()
    }
}

impl RunMerger {
    /// Merges what stands at `place`, key by key, of which there is hardly ever more than one.
    fn merge_place(&mut self, place: u64) -> Result<usize> {
        let (mut keys, mut marks) = (Vec::<OwnedKey>::new(), Vec::new());
        for (number, cursor) in self.cursors.iter_mut().enumerate() {
            if cursor.peek()? == Some(place) {
                marks.push((number, cursor.mark()));
                if keys.is_empty() {
                    keys.push(cursor.key().to_owned());
                }
            }
        }
        let (mut done, mut turn) = (0, 0);
        while turn < keys.len() {
            if turn > 0 {
                for (number, mark) in &marks {
                    self.cursors[*number].rewind(*mark)?;
                }
            }
            let key = keys[turn].clone();
            let cut = self.cut_of(place, &key).max(self.gaps.first_part(key.key_hash()));
            loop {
                let mut first: Option<(i64, usize)> = None;
                for (number, _) in &marks {
                    let cursor = &mut self.cursors[*number];
                    while cursor.peek()? == Some(place) {
                        let found = cursor.key();
                        if found == key.get() && cursor.number >= cut {
                            let here = (cursor.rank(), *number);
                            first = Some(first.map_or(here, |first| first.min(here)));
                            break;
                        }
                        if found != key.get() && !has(&keys, found) {
                            keys.push(found.to_owned());
                        }
                        cursor.advance();
                    }
                }
                let Some((rank, number)) = first else { break };
                let plain = rank == rank_of(self.cursors[number].number);
                done += self.push(&key, (rank, plain), number)?;
                self.cursors[number].advance();
            }
            turn += 1;
        }
        // Also what is cut off costs a little.
        Ok(done + ENTRY_BYTES)
    }

    fn cut_of(&self, place: u64, key: &OwnedKey) -> u64 {
        let place_of = |known: &OwnedKey| self.range.place(known.key_hash());
        let start = self.cuts.partition_point(|(known, _)| place_of(known) < place);
        let at_place = self.cuts[start..].iter().take_while(|(known, _)| place_of(known) == place);
        at_place.filter(|(known, _)| known == key).map(|(_, cut)| *cut).next().unwrap_or(0)
    }

    /// Appends the elements that a cursor has of a key. They are `plain` if they were appended to this bucket: then
    /// nothing stands between them and others of that kind, as runs are neighbours.
    fn push(&mut self, key: &OwnedKey, (rank, plain): (i64, bool), cursor: usize) -> Result<usize> {
        let elements = self.cursors[cursor].elements();
        let count = elements.len();
        let size = elements.elements().layout().size();
        let bytes = count * size + elements.heap_bytes() as usize;
        let entry = self.list_type.key_bytes(key.get()) + ENTRY_BYTES;
        if self.bytes + bytes + entry > self.block_bytes && self.bytes > 0 {
            self.flush()?;
        }
        self.elements += count as u64;
        let last = self.entries.len().checked_sub(1);
        let goes_on = plain
            && self.last_plain
            && last.is_some_and(|last| self.entries.key(last) == key.get());
        let (from, at) = self.cursors[cursor].entry_mut();
        if goes_on {
            self.entries.take(from, at, ElementTarget::Last(rank));
        } else {
            self.bytes += entry;
            self.keys += 1;
            self.entries.take(from, at, ElementTarget::New(key.get(), rank));
        }
        self.last_plain = plain;
        self.bytes += bytes;
        Ok(bytes + entry)
    }

    fn flush(&mut self) -> Result<()> {
        let gathered = &*self.entries;
        let entries = &|at: usize| NewEntry {
            key: gathered.key(at),
            rank: gathered.rank(at),
            elements: ElementStretch::Slice(gathered.elements(at)),
        };
        let pages = self.pages.as_mut().expect("a merge that is not finished");
        let to = BlockOutput { writer: &mut self.writer, scratch: &mut self.scratch };
        pages.put(self.list_type, to, 0..gathered.len(), entries)?;
        self.entries.clear();
        self.bytes = 0;
        Ok(())
    }

    fn finish(&mut self) -> Result<MergedRun> {
        self.flush()?;
        let pages = self.pages.take().expect("finished once");
        let blocks = pages.finish(&mut self.writer)?;
        self.writer.seal()?;
        let stored = resolve(blocks, &self.writer.take_sealed());
        Ok(MergedRun { stored, elements: self.elements, keys: self.keys })
    }
}
