//! What the helper does: writes runs, reads them ahead, drops what owns heap, removes files.
//!
//! The owner hands over what it needs and gets an answer for each job, in order. User code that
//! panics while a run is written becomes the error of that run, which stays in memory.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use alluvium_pagestore::block::AlignedVec;
use alluvium_pagestore::{
    Error, ErrorKind, FooterEntry, Helper, RECORD_BYTES_MAX, Result, RunId, SegmentId, SegmentInfo,
    SegmentReader, SegmentStore, SegmentWriter, Time,
};

use super::block::{ElementStretch, EntryAt, ListType, NewEntry};
use super::chain_unsafe::ElementChunks;
use super::config::{PAGE_BLOCKS, PAGE_BYTES};
use super::frozen::{BookedByKind, FrozenBucket};
use super::key_unsafe::KeyRef;
use super::packed::{PackOrder, PackedRuns, sync_all};
use super::run::{BlockAt, StoredRun};
use crate::checkpoint::Jobs;
use crate::runs::UnsyncedRun;
use crate::support::run_storage::{RunStorage, remove_files};
use crate::trace_span;

/// What names a run: its bucket and number.
pub type RunName = (Time, u64);

/// What the helper answers.
pub enum ListJobOutcome {
    /// Runs were written, or none of them could be.
    Written { runs: Vec<RunName>, result: Result<Vec<StoredRun>> },
    /// Lists were dropped.
    Reaped(BookedByKind),
    /// A run was read ahead.
    ReadAhead { run: RunName, booked: (u64, u64), result: Result<Vec<AlignedVec>> },
    /// A merge went on.
    Merged(Box<SteppedMerge>),
    /// Buckets were packed together, or none of them could be.
    Packed { runs: Vec<RunName>, result: Result<PackedRuns> },
    /// The device keeps these files, or may not keep some of them.
    Synced(Result<Vec<RunId>>),
    /// Files were removed; those that could not be are removed at the next open.
    Removed,
}

/// A merge of runs that the helper does step by step.
pub trait MergeJob: Send {
    /// Merges a bounded part; the run that came of it once all is done.
    fn step(&mut self) -> Result<Option<MergedRun>>;
    /// Gives up, and tells the files that are of no use.
    fn abandon(&mut self) -> Vec<SegmentId>;
}

/// What came of a merge.
pub struct MergedRun {
    pub stored: StoredRun,
    pub elements: u64,
    /// Lists of which it has elements.
    pub keys: u64,
}

/// Which runs are merged.
#[derive(Clone, Debug)]
pub struct MergeName {
    pub bucket: Time,
    /// Their numbers.
    pub runs: Vec<u64>,
    /// No run that is made after the merge began has a lower number, no cut that was made before it a
    /// higher one.
    pub next: u64,
    /// What is booked for it.
    pub bytes: u64,
}

/// A merge after a step.
pub struct SteppedMerge {
    pub name: MergeName,
    pub step: Result<Option<MergedRun>>,
    pub merge: Box<dyn MergeJob>,
}

/// Hands jobs to the helper and collects answers.
pub struct ListJobs {
    jobs: Jobs<ListJobOutcome>,
    storage: Option<RunStorage>,
}

impl ListJobs {
    /// Jobs for `helper`; runs are written to `storage`.
    pub fn new(helper: Helper, storage: Option<RunStorage>) -> Self {
        Self { jobs: Jobs::new(helper), storage }
    }

    /// Answers still to come.
    pub fn pending(&self) -> usize {
        self.jobs.pending()
    }

    /// Has runs written, together.
    pub fn write(
        &mut self,
        list_type: &'static ListType,
        runs: Vec<Arc<FrozenBucket>>,
        block_bytes: usize,
    ) {
        let storage = self.storage.clone().expect("runs are written where there is storage");
        self.jobs.submit(move || {
            trace_span!(DEBUG, "spill", runs = runs.len());
            let panicked = "a key or an element panicked while a run was encoded";
            let result =
                storage.with(panicked, |writer, _| write(list_type, writer, &runs, block_bytes));
            let runs = runs.iter().map(|run| (run.bucket, run.number)).collect();
            ListJobOutcome::Written { runs, result }
        });
    }

    /// Has buckets packed.
    pub fn pack(&mut self, order: PackOrder) {
        self.submit(move |_| {
            trace_span!(DEBUG, "pack", runs = order.runs.len());
            let names = order.runs.iter().map(|run| (run.bucket, run.number)).collect();
            ListJobOutcome::Packed { runs: names, result: order.write() }
        });
    }

    /// Has the device keep files of runs.
    pub fn sync(&mut self, files: Vec<UnsyncedRun>) {
        self.submit(move |store| {
            let store = store.expect("runs are where there is storage");
            ListJobOutcome::Synced(sync_all(store, &files))
        });
    }

    /// Has lists dropped, which are booked as told.
    pub fn reap<T: Send + 'static>(&mut self, lists: T, booked: BookedByKind) {
        self.submit(move |_| {
            // What panics here panics for nobody: there is no call that it belongs to.
            let _panic = catch_unwind(AssertUnwindSafe(|| drop(lists)));
            ListJobOutcome::Reaped(booked)
        });
    }

    /// Has a run read ahead; for its blocks, and for the window that it is read through, so much is booked.
    pub fn read_ahead(&mut self, run: RunName, stored: StoredRun, booked: (u64, u64), state: u64) {
        let window = booked.1 as usize;
        self.submit(move |store| {
            let read = || {
                let store = store.expect("a stored run has a store").clone();
                let mut reader = SegmentReader::new(store, state, window);
                let mut blocks = Vec::with_capacity(stored.blocks.len());
                for BlockAt { file, record } in &stored.blocks {
                    let payload = reader.record(&stored.files[*file as usize], record)?.payload;
                    let mut bytes = AlignedVec::with_capacity(payload.len());
                    bytes.extend_from_slice(payload);
                    blocks.push(bytes);
                }
                Ok(blocks)
            };
            ListJobOutcome::ReadAhead { run, booked, result: read() }
        });
    }

    /// Has a merge go on.
    pub fn merge(&mut self, mut merge: Box<dyn MergeJob>, name: MergeName) {
        self.submit(move |store| {
            let step = catch_unwind(AssertUnwindSafe(|| merge.step())).unwrap_or_else(|_| {
                let message = "a key or an element panicked while runs were merged";
                Err(Error::new(ErrorKind::Poisoned, message))
            });
            if let (Err(_), Some(store)) = (&step, store) {
                remove_files(store, merge.abandon());
            }
            ListJobOutcome::Merged(Box::new(SteppedMerge { name, step, merge }))
        });
    }

    /// Has files removed.
    pub fn remove(&mut self, ids: Vec<SegmentId>) {
        self.submit(move |store| {
            if let Some(store) = store {
                remove_files(store, ids);
            }
            ListJobOutcome::Removed
        });
    }

    fn submit(
        &mut self,
        job: impl FnOnce(Option<&SegmentStore>) -> ListJobOutcome + Send + 'static,
    ) {
        let store = self.storage.as_ref().map(|storage| storage.store.clone());
        self.jobs.submit(move || job(store.as_ref()));
    }

    /// An answer, if there is one.
    pub fn poll(&mut self) -> Option<ListJobOutcome> {
        self.jobs.poll()
    }

    /// Does a job of an inline helper.
    pub fn drive(&self) -> bool {
        self.jobs.helper().drive()
    }

    /// Waits a moment for an answer, doing the work of an inline helper.
    pub fn wait(&mut self) -> Option<ListJobOutcome> {
        let storage = &self.storage;
        self.jobs.wait(|| storage.iter().for_each(|storage| storage.store.device().drive()))
    }
}

/// Writes runs one after the other and makes them durable.
fn write(
    list_type: &'static ListType,
    writer: &mut SegmentWriter,
    runs: &[Arc<FrozenBucket>],
    block_bytes: usize,
) -> Result<Vec<StoredRun>> {
    let mut pending = Vec::new();
    let mut scratch = AlignedVec::new();
    for run in runs {
        let mut blocks = BlockWriter {
            list_type,
            writer,
            scratch: &mut scratch,
            block_bytes,
            entries: Vec::new(),
            bytes: 0,
            pages: PageWriter::new(),
        };
        run.for_each(|piece| {
            let chain = piece.chain.expect("a frozen piece has elements");
            blocks.push(piece.key, piece.rank, chain.chunks())
        })?;
        pending.push(blocks.finish()?);
    }
    writer.seal()?;
    let sealed = writer.take_sealed();
    Ok(pending.into_iter().map(|blocks| resolve(blocks, &sealed)).collect())
}

/// Names the files of blocks by their segments.
pub fn resolve(blocks: Vec<(SegmentId, FooterEntry)>, sealed: &[SegmentInfo]) -> StoredRun {
    let mut files: Vec<SegmentInfo> = Vec::new();
    let mut at = Vec::with_capacity(blocks.len());
    for (id, record) in blocks {
        if files.last().is_none_or(|file| file.id != id) {
            let info = sealed.iter().find(|info| info.id == id);
            files.push(info.expect("a written segment is sealed").clone());
        }
        at.push(BlockAt { file: files.len() as u32 - 1, record });
    }
    files.shrink_to_fit();
    StoredRun { files, blocks: at }
}

/// Where blocks are written, and where they are encoded.
pub struct BlockOutput<'w> {
    pub writer: &'w mut SegmentWriter,
    pub scratch: &'w mut AlignedVec,
}

/// Writes the blocks of one run, in pages.
pub struct PageWriter {
    segment: Option<SegmentId>,
    blocks: Vec<(SegmentId, FooterEntry)>,
}

impl PageWriter {
    /// None yet.
    pub fn new() -> Self {
        Self { segment: None, blocks: Vec::new() }
    }

    /// Writes the entries with these numbers as a block.
    pub fn put(
        &mut self,
        list_type: &ListType,
        to: BlockOutput<'_>,
        numbers: Range<usize>,
        entries: EntryAt<'_, '_>,
    ) -> Result<()> {
        let BlockOutput { writer, scratch } = to;
        if numbers.is_empty() {
            return Ok(());
        }
        let hash = entries(numbers.start).key.key_hash();
        list_type.encode(writer.trials(), scratch, numbers.clone(), entries)?;
        if scratch.len() as u64 > RECORD_BYTES_MAX {
            return self.put_in_parts(list_type, BlockOutput { writer, scratch }, numbers, entries);
        }
        if self.segment.is_some() && !writer.has_room(scratch.len()) {
            writer.finish_page()?;
            self.segment = None;
        }
        let segment = match self.segment {
            Some(segment) => segment,
            None => writer.begin_page_for(scratch.len())?,
        };
        self.segment = Some(segment);
        let grain = writer.push_encoded(hash, scratch)?;
        self.blocks.push((segment, FooterEntry { hash, grain, len: scratch.len() as u32 }));
        let full = writer.page_records() as usize >= PAGE_BLOCKS;
        if full || writer.page_bytes() >= PAGE_BYTES {
            writer.finish_page()?;
            self.segment = None;
        }
        Ok(())
    }

    /// Writes entries that are longer as an archive than as values, so that a record has no room for them: half by half.
    ///
    /// # Errors
    /// [`ErrorKind::ValueTooLarge`] naming the key of an element that no record has room for.
    #[cold]
    fn put_in_parts(
        &mut self,
        list_type: &ListType,
        BlockOutput { writer, scratch }: BlockOutput<'_>,
        numbers: Range<usize>,
        entries: EntryAt<'_, '_>,
    ) -> Result<()> {
        let bytes = std::mem::take(scratch).len();
        let Range { start, end } = numbers;
        if end - start > 1 {
            let middle = start.midpoint(end);
            self.put(list_type, BlockOutput { writer, scratch }, start..middle, entries)?;
            return self.put(list_type, BlockOutput { writer, scratch }, middle..end, entries);
        }
        let entry = entries(start);
        if entry.elements.len() < 2 {
            let message = format!(
                "a key and an element take {bytes} bytes on storage; {RECORD_BYTES_MAX} is the most; \
                 remove them"
            );
            let error = Error::new(ErrorKind::ValueTooLarge, message);
            return Err(error.with("key", entry.key.text()));
        }
        for half in entry.halves() {
            self.put(list_type, BlockOutput { writer, scratch }, 0..1, &|_| half.clone())?;
        }
        Ok(())
    }

    /// Ends the run; its blocks are where they are once the writer is sealed.
    pub fn finish(self, writer: &mut SegmentWriter) -> Result<Vec<(SegmentId, FooterEntry)>> {
        if self.segment.is_some() {
            writer.finish_page()?;
        }
        Ok(self.blocks)
    }
}

/// Gathers the pieces of a run into blocks and writes them.
struct BlockWriter<'w, 'a> {
    list_type: &'static ListType,
    writer: &'w mut SegmentWriter,
    scratch: &'w mut AlignedVec,
    block_bytes: usize,
    entries: Vec<NewEntry<'a>>,
    bytes: usize,
    pages: PageWriter,
}

impl<'a> BlockWriter<'_, 'a> {
    /// Appends elements of one key, as one entry or, if they are many, as several.
    fn push(&mut self, key: KeyRef<'a>, rank: i64, mut elements: ElementChunks<'a>) -> Result<()> {
        while elements.len() > 0 {
            self.bytes += self.list_type.key_bytes(key) + ENTRY_BYTES;
            let room = self.block_bytes.saturating_sub(self.bytes);
            let count = self.take(&elements, room);
            let some = ElementStretch::Chain(elements.clone(), count);
            self.entries.push(NewEntry { key, rank, elements: some });
            elements.pass(count);
            if self.bytes >= self.block_bytes {
                self.flush()?;
            }
        }
        Ok(())
    }

    /// How many elements go into the block: at least one, and then as many as fit `room`.
    fn take(&mut self, elements: &ElementChunks<'a>, room: usize) -> usize {
        let element = self.list_type.elements;
        let each = element.layout().size().max(1);
        if element.is_plain() {
            let count = (room / each).clamp(1, elements.len());
            self.bytes += count * each;
            if count < elements.len() {
                self.bytes = self.bytes.max(self.block_bytes);
            }
            return count;
        }
        let (mut count, mut bytes, mut is_full) = (0, 0, false);
        let mut rest = elements.clone();
        while !is_full && let Some(slice) = rest.next_slice() {
            slice.take_while(&mut |heap| {
                is_full = count > 0 && bytes + each + heap > room;
                if !is_full {
                    bytes += each + heap;
                    count += 1;
                }
                !is_full
            });
        }
        if is_full {
            self.bytes = self.block_bytes;
        }
        self.bytes += bytes;
        count
    }

    fn flush(&mut self) -> Result<()> {
        let to = BlockOutput { writer: self.writer, scratch: self.scratch };
        let entries = &|at: usize| self.entries[at].clone();
        self.pages.put(self.list_type, to, 0..self.entries.len(), entries)?;
        self.entries.clear();
        self.bytes = 0;
        Ok(())
    }

    fn finish(mut self) -> Result<Vec<(SegmentId, FooterEntry)>> {
        self.flush()?;
        self.pages.finish(self.writer)
    }
}

/// Bytes of a block's entry beside key and elements.
pub const ENTRY_BYTES: usize = 16;
