//! Records of a checkpoint that are written a batch at a time: the owner encodes a few, the helper
//! writes them, and the owner goes on with its stream meanwhile.
//!
//! What it keeps true:
//! - What is written is of segments of its own, which are removed unless they are taken.
//! - Batch and writer take no more than [`WriterSizes::memory_bytes`], which the owner has booked.
//! - After an error nothing more is written: the error is told again.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::time::{Duration, Instant};

use alluvium_pagestore::block::AlignedVec;
use alluvium_pagestore::{
    Account, Error, ErrorKind, Helper, MemoryKind, PlacedAt, RECORD_BYTES_MAX, RecordPlacing,
    Result, SegmentInfo, SegmentStore, SegmentWriter, State, Trials,
};

use super::job::HelperJob;
use crate::support::booked::Booked;
use crate::support::record_type_unsafe::RecordRef;

/// Most bytes of a batch.
pub const BATCH_BYTES_MAX: usize = 32 << 10;
/// Bytes of buffer and batch, and records of a page, where memory is short.
pub(crate) const LEAST_CHUNK_BYTES: usize = 8 << 10;
pub(crate) const LEAST_PAGE_RECORDS: u32 = 1 << 9;
/// The same where memory lacks even for these. Segments are short then: what is noted of their pages is in memory.
const SCANT_BATCH_BYTES: usize = 1 << 10;
const SCANT_PAGE_RECORDS: u32 = 1 << 5;
const SCANT_SEGMENT_BYTES: u64 = 256 << 10;
/// The longest wait for a batch that the helper writes.
const WAIT_MAX: Duration = Duration::from_secs(20);
/// Records after which a batch is full, between these: as many as a page has.
const BATCH_RECORDS_MIN: usize = 16;
const BATCH_RECORDS: usize = 512;

/// How a [`BatchWriter`] writes.
#[derive(Clone, Copy, Debug)]
pub struct WriterSizes {
    pub chunk_bytes: usize,
    pub segment_bytes: u64,
    /// A page ends with so many records, or bytes.
    pub page_records: u32,
    pub page_bytes: u64,
    /// Bytes of records after which a batch is full.
    pub batch_bytes: usize,
    /// Bytes of the longest record.
    pub value_bytes: u64,
}

impl WriterSizes {
    /// Returns the smallest buffers that write the same records: slower, for where memory is short.
    #[must_use]
    pub fn least(&self) -> Self {
        Self {
            chunk_bytes: self.chunk_bytes.min(LEAST_CHUNK_BYTES),
            batch_bytes: self.batch_bytes.min(LEAST_CHUNK_BYTES),
            page_records: self.page_records.min(LEAST_PAGE_RECORDS),
            ..*self
        }
    }

    /// Returns buffers that take 11 KiB beside the longest record, for where memory lacks what others were to leave free: pages
    /// and segments are short.
    #[must_use]
    pub fn scant(&self) -> Self {
        let least = self.least();
        Self {
            batch_bytes: least.batch_bytes.min(SCANT_BATCH_BYTES),
            page_records: least.page_records.min(SCANT_PAGE_RECORDS),
            segment_bytes: least.segment_bytes.min(SCANT_SEGMENT_BYTES),
            ..least
        }
    }

    /// The first of these that `has_room`: what is wanted, the [least](Self::least) and, as the last resort, what is
    /// [scant](Self::scant).
    ///
    /// # Errors
    /// That of the last.
    pub fn first_with_room(
        &self,
        may_be_scant: bool,
        mut has_room: impl FnMut(&Self) -> Result<()>,
    ) -> Result<Self> {
        let least = self.least();
        let last = if may_be_scant { self.scant() } else { least };
        let first = [*self, least].into_iter().find(|sizes| has_room(sizes).is_ok());
        first.map_or_else(|| has_room(&last).map(|()| last), Ok)
    }

    /// What writing takes.
    pub fn memory_bytes(&self) -> u64 {
        let records = self.page_records as usize;
        let writer = SegmentWriter::memory_bytes(self.chunk_bytes, records, self.value_bytes);
        let batch = self.batch_bytes + self.batch_records() * size_of::<InBatch>();
        writer + batch as u64 + 512
    }

    /// Records after which a batch is full.
    fn batch_records(&self) -> usize {
        (self.page_records as usize).clamp(BATCH_RECORDS_MIN, BATCH_RECORDS)
    }
}

/// Writes records in batches.
#[derive(Debug)]
pub struct BatchWriter {
    helper: Helper,
    /// Booked for a record that is longer than others, until it is written.
    booked: Booked,
    sizes: WriterSizes,
    /// `None` while the helper has it, or lost it.
    writing: Option<Box<WriterState>>,
    job: Option<HelperJob<(Box<WriterState>, Result<()>)>>,
    failed: Option<String>,
}

/// What goes to the helper and back.
struct WriterState {
    writer: SegmentWriter,
    store: SegmentStore,
    batch: EncodedBatch,
    placing: RecordPlacing,
    /// Segments that are whole and were not taken.
    sealed: Vec<SegmentInfo>,
}

/// Records, encoded.
#[derive(Default)]
struct EncodedBatch {
    records: Vec<InBatch>,
    bytes: Vec<u8>,
    scratch: AlignedVec,
    /// A record that fills the batch alone, and is left in `scratch`.
    large: Option<InBatch>,
}

/// A record of a batch: its hash, its bytes, and the grain where it is to stand.
#[derive(Clone, Copy)]
struct InBatch {
    hash: u64,
    bytes: u32,
    grain: u32,
}

impl std::fmt::Debug for WriterState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "WriterState({} records)", self.batch.records.len())
    }
}

/// Encodes a record.
type EncodeRecord<'a> = &'a mut dyn FnMut(&mut Trials, &mut AlignedVec) -> Result<()>;

/// What the helper does with what it is given to write.
type WriterJob = Box<dyn FnOnce(&mut WriterState, &WriterSizes) -> Result<()> + Send>;

impl BatchWriter {
    /// Nothing written yet. `state` is the fingerprint of the state's name.
    pub fn new(
        (helper, account): (Helper, Rc<Account>),
        store: SegmentStore,
        state: u64,
        sizes: WriterSizes,
    ) -> Self {
        let (chunk, segment) = (sizes.chunk_bytes, sizes.segment_bytes);
        let writer = SegmentWriter::new(store.clone(), state, chunk, segment);
        let batch = EncodedBatch {
            records: Vec::with_capacity(sizes.batch_records()),
            bytes: Vec::with_capacity(sizes.batch_bytes),
            ..EncodedBatch::default()
        };
        let placing = RecordPlacing::new(segment, sizes.page_bytes, sizes.page_records);
        let writing = Box::new(WriterState { writer, store, batch, placing, sealed: Vec::new() });
        let (writing, job, failed) = (Some(writing), None, None);
        let booked = Booked::none(account, MemoryKind::Buffers);
        Self { helper, booked, sizes, writing, job, failed }
    }

    /// Takes the helper's answer, and says whether records can be added.
    ///
    /// # Errors
    /// Why the last batch, or an earlier one, could not be written.
    pub fn is_ready(&mut self) -> Result<bool> {
        self.helper.drive();
        if let Some(job) = &self.job {
            match job.poll() {
                Ok(Some((writing, written))) => {
                    self.writing = Some(writing);
                    self.job = None;
                    self.booked.give_back();
                    if let Err(error) = written {
                        self.failed = Some(error.message().into());
                        self.writing = None;
                        return Err(error);
                    }
                }
                Ok(None) => return Ok(false),
                Err(error) => {
                    self.job = None;
                    self.failed = Some(error.message().into());
                }
            }
        }
        self.check().map(|()| true)
    }

    /// The error of an earlier batch.
    fn check(&self) -> Result<()> {
        match &self.failed {
            Some(why) => {
                let message = format!("the checkpoint could not be written: {why}; begin it again");
                Err(Error::new(ErrorKind::Io, message))
            }
            None => Ok(()),
        }
    }

    /// Books what the archive of a record takes that is longer than others.
    fn book(&mut self, heap: u64) -> Result<()> {
        let more = heap.saturating_sub(self.sizes.value_bytes);
        let what = "the archive of a value that is larger than max_value";
        self.booked.reserve_more(more, what)
    }

    fn writing(&mut self) -> &mut WriterState {
        self.writing.as_mut().expect("it was ready")
    }

    /// Whether the batch has room for another record.
    pub fn has_room(&mut self) -> bool {
        let (batch_bytes, most) = (self.sizes.batch_bytes, self.sizes.batch_records());
        let EncodedBatch { records, bytes, large, .. } = &self.writing().batch;
        records.len() < most / 2 && bytes.len() < batch_bytes / 4 && large.is_none()
    }

    /// Adds a record. If the batch is full then, this waits until the helper has written it: who does not
    /// want that asks for [room](BatchWriter::has_room).
    ///
    /// # Errors
    /// Those of encoding and of writing; those of [`wait`](BatchWriter::wait).
    ///
    /// # Panics
    /// If it is not [ready](BatchWriter::is_ready).
    pub fn push<K: State, V: State>(&mut self, hash: u64, key: &K, value: &V) -> Result<()> {
        self.place(hash, key, value).map(drop)
    }

    /// [`push`](BatchWriter::push) that says where the record is going to stand.
    ///
    /// # Errors
    /// As for `push`.
    ///
    /// # Panics
    /// As for `push`.
    pub fn place<K: State, V: State>(&mut self, hash: u64, key: &K, value: &V) -> Result<PlacedAt> {
        let heap = if K::NO_HEAP && V::NO_HEAP { 0 } else { key.heap_bytes() + value.heap_bytes() };
        self.place_by((hash, heap as u64), &mut |trials, to| trials.encode(to, key, value))
    }

    /// [`place`](BatchWriter::place) for a record whose types are erased.
    ///
    /// # Errors
    /// As for `push`.
    ///
    /// # Panics
    /// As for `push`.
    pub fn place_record(&mut self, record: RecordRef<'_>) -> Result<PlacedAt> {
        let of = (record.hash(), record.heap_bytes());
        self.place_by(of, &mut |trials, to| record.encode_to(trials, to))
    }

    /// Places a record with this hash, that owns so much heap.
    fn place_by(&mut self, of: (u64, u64), encode: EncodeRecord<'_>) -> Result<PlacedAt> {
        self.check()?;
        let added = self.add(of, encode);
        self.note(added)
    }

    fn add(&mut self, (hash, heap): (u64, u64), encode: EncodeRecord<'_>) -> Result<PlacedAt> {
        if self.writing().batch.large.is_some() {
            self.write_and_wait()?;
        }
        if heap > 0 {
            self.book(heap)?;
        }
        // The record is not in the batch while what came before it is written.
        let mut record = std::mem::take(&mut self.writing().batch.scratch);
        let trials = self.writing().writer.trials();
        guarded(|| encode(trials, &mut record))?;
        let (length, most) = (record.len(), self.sizes.batch_bytes);
        let records_most = self.sizes.batch_records();
        check_length(length)?;
        let EncodedBatch { records, bytes, .. } = &self.writing().batch;
        if records.len() == records_most || bytes.len() + length > most && !records.is_empty() {
            self.write_and_wait()?;
        }
        let WriterState { batch, placing, .. } = self.writing();
        let at = placing.place(length);
        let EncodedBatch { records, bytes, scratch, large } = batch;
        let in_batch = InBatch { hash, bytes: length as u32, grain: at.grain };
        if length > most {
            *large = Some(in_batch);
        } else {
            bytes.extend_from_slice(&record);
            records.push(in_batch);
        }
        *scratch = record;
        Ok(at)
    }

    fn write_and_wait(&mut self) -> Result<()> {
        self.submit();
        self.wait()
    }

    /// Remembers an error.
    fn note<T>(&mut self, done: Result<T>) -> Result<T> {
        if let Err(error) = &done {
            self.failed = Some(error.message().into());
        }
        done
    }

    /// Has the helper write what was added.
    ///
    /// # Panics
    /// If it is not [ready](BatchWriter::is_ready).
    pub fn submit(&mut self) {
        self.hand_over(Box::new(WriterState::write));
    }

    /// Has the helper write what was added, and make all of it durable.
    ///
    /// # Panics
    /// If it is not [ready](BatchWriter::is_ready).
    pub fn submit_end(&mut self) {
        self.hand_over(Box::new(|writing, sizes| {
            writing.placing.end_segment();
            writing.write(sizes)?;
            writing.end()
        }));
    }

    /// Has the helper do `job`, which encodes and writes records itself.
    ///
    /// # Panics
    /// If it is not [ready](BatchWriter::is_ready), or if records were added and not submitted.
    pub fn submit_job(
        &mut self,
        job: impl FnOnce(&mut RecordSink<'_>) -> Result<()> + Send + 'static,
    ) {
        assert!(self.writing().batch.records.is_empty(), "what was added comes first");
        self.hand_over(Box::new(|writing, sizes| job(&mut RecordSink { writing, sizes })));
    }

    fn hand_over(&mut self, work: WriterJob) {
        let mut writing = self.writing.take().expect("it was ready");
        let sizes = self.sizes;
        // If the owner has given up, what was written goes with the answer.
        self.job = Some(HelperJob::submit(&self.helper, "a part of a checkpoint", move || {
            let written = guarded(|| work(&mut writing, &sizes));
            (writing, written)
        }));
    }

    /// Waits a moment for the helper.
    pub fn pause(&mut self) {
        if !self.helper.drive() && self.job.as_ref().is_some_and(HelperJob::is_empty) {
            std::thread::yield_now();
        }
    }

    /// Waits until records can be added.
    ///
    /// # Errors
    /// As [`is_ready`](BatchWriter::is_ready); [`ErrorKind::Backpressure`] if the helper has nothing to say
    /// for [`WAIT_MAX`].
    pub fn wait(&mut self) -> Result<()> {
        let since = Instant::now();
        while !self.is_ready()? {
            if since.elapsed() > WAIT_MAX {
                let message =
                    format!("storage has accepted no part of a checkpoint for {WAIT_MAX:?}");
                return Err(Error::new(ErrorKind::Backpressure, message));
            }
            self.pause();
        }
        Ok(())
    }

    /// Takes the segments: they are the caller's now.
    ///
    /// # Panics
    /// If it is not [ready](BatchWriter::is_ready).
    pub fn take_sealed(&mut self) -> Vec<SegmentInfo> {
        std::mem::take(&mut self.writing().sealed)
    }
}

/// Where a job of the helper puts its records.
#[derive(Debug)]
pub struct RecordSink<'a> {
    writing: &'a mut WriterState,
    sizes: &'a WriterSizes,
}

impl RecordSink<'_> {
    /// Writes a record, and says where it stands.
    ///
    /// # Errors
    /// Those of encoding and of writing.
    pub fn push(&mut self, hash: u64, record: RecordRef<'_>) -> Result<PlacedAt> {
        let WriterState { writer, batch, placing, .. } = &mut *self.writing;
        record.encode_to(writer.trials(), &mut batch.scratch)?;
        check_length(batch.scratch.len())?;
        let at = placing.place(batch.scratch.len());
        let record = InBatch { hash, bytes: batch.scratch.len() as u32, grain: at.grain };
        write_record(writer, self.sizes, &record, &batch.scratch)?;
        Ok(at)
    }
}

impl WriterState {
    fn write(&mut self, sizes: &WriterSizes) -> Result<()> {
        let Self { writer, batch, .. } = self;
        let mut rest = &batch.bytes[..];
        for record in &batch.records {
            let (payload, after) = rest.split_at(record.bytes as usize);
            write_record(writer, sizes, record, payload)?;
            rest = after;
        }
        if let Some(record) = &batch.large {
            write_record(writer, sizes, record, &batch.scratch)?;
            batch.scratch = AlignedVec::new();
        }
        batch.records.clear();
        batch.bytes.clear();
        batch.large = None;
        Ok(())
    }

    fn end(&mut self) -> Result<()> {
        if self.writer.page_records() > 0 {
            self.writer.finish_page()?;
        }
        let sealed = self.writer.seal();
        self.sealed.append(&mut self.writer.take_sealed());
        sealed
    }
}

/// Refuses what no segment takes, before it is told a place.
fn check_length(bytes: usize) -> Result<()> {
    if bytes as u64 <= RECORD_BYTES_MAX {
        return Ok(());
    }
    let message = format!(
        "a key and its value take {bytes} bytes on storage; {RECORD_BYTES_MAX} is the most; take, \
         replace or remove them"
    );
    Err(Error::new(ErrorKind::ValueTooLarge, message))
}

fn write_record(
    writer: &mut SegmentWriter,
    sizes: &WriterSizes,
    record: &InBatch,
    payload: &[u8],
) -> Result<()> {
    if writer.page_records() > 0 && !writer.has_room(payload.len()) {
        writer.finish_page()?;
    }
    if writer.page_records() == 0 {
        writer.begin_page_for(payload.len())?;
    }
    let grain = writer.push_encoded(record.hash, payload)?;
    assert_eq!(grain, record.grain, "a record stands where it was told to");
    if writer.page_bytes() >= sizes.page_bytes || writer.page_records() >= sizes.page_records {
        writer.finish_page()?;
    }
    Ok(())
}

/// Runs `job`; a panic in it becomes an error.
fn guarded(job: impl FnOnce() -> Result<()>) -> Result<()> {
    catch_unwind(AssertUnwindSafe(job)).unwrap_or_else(|_| {
        let message = "a key or a value panicked while a checkpoint was written";
        Err(Error::new(ErrorKind::Poisoned, message))
    })
}

impl Drop for BatchWriter {
    /// What is of no use is removed, by the helper: a write may be under way.
    fn drop(&mut self) {
        if let Some(writing) = self.writing.take().filter(|_| !self.helper.is_inline()) {
            self.helper.submit(move || drop(writing));
        }
    }
}

impl Drop for WriterState {
    fn drop(&mut self) {
        self.writer.abandon();
        self.sealed.append(&mut self.writer.take_sealed());
        for segment in &self.sealed {
            // One that cannot be removed now is removed at the next open.
            let _ = self.store.remove(segment.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_resort_is_small_and_taken_only_by_those_that_may() {
        let wanted = WriterSizes {
            chunk_bytes: 64 << 10,
            segment_bytes: 8 << 20,
            page_records: 1364,
            page_bytes: 256 << 10,
            batch_bytes: BATCH_BYTES_MAX,
            value_bytes: 100,
        };
        let (least, scant) = (wanted.least().memory_bytes(), wanted.scant().memory_bytes());
        assert!(scant < least / 2 && scant <= (11 << 10) + wanted.value_bytes, "{scant}, {least}");
        assert!(least < wanted.memory_bytes());
        let found = |free: u64, may_be_scant: bool| {
            let lacks = || Error::new(ErrorKind::OverBudget, "memory is short");
            let has_room = |sizes: &WriterSizes| {
                if sizes.memory_bytes() <= free { Ok(()) } else { Err(lacks()) }
            };
            wanted.first_with_room(may_be_scant, has_room).map(|sizes| sizes.memory_bytes()).ok()
        };
        assert_eq!(found(u64::MAX, true), Some(wanted.memory_bytes()));
        assert_eq!((found(least, true), found(least, false)), (Some(least), Some(least)));
        assert_eq!((found(least - 1, true), found(least - 1, false)), (Some(scant), None));
        assert_eq!(found(scant - 1, true), None);
    }
}
