//! Entries of a heap table on their way to a checkpoint: copies, in chunks that the helper encodes and writes.
//!
//! A short entry that owns no heap is copied as it is, long before it is written, so that few entries have to be kept for a
//! checkpoint because they change before it has them. The helper writes a chunk at a time and gives it back with the
//! place of each record, which the table learns then.
//!
//! What it keeps true: a chunk is booked before it is made, and until it is gone. There is one at least, and others as far
//! as memory is not short and an eighth of it has room for them. Each has pages of its own, which the helper gives back
//! when they are not needed any more.

use std::collections::VecDeque;
use std::rc::Rc;

use alluvium_pagestore::mailbox::{Mailbox, mailbox};
use alluvium_pagestore::{Account, Error, ErrorKind, Result};

use super::records_unsafe::RecordCopies;
use crate::checkpoint::{BatchWriter, FREE_BYTES, RecordSink};
use crate::support::booked::Booked;
use crate::support::record_type_unsafe::{RecordRef, RecordType};

/// A chunk has such a part of the memory, between so many entries. Each has to wake the helper. Where there are few
/// entries, it has room for these, or for a few.
const CHUNK_SHARE: u64 = 64;
const CHUNK_FEW: u64 = 64;
const CHUNK_MIN: usize = 256;
const CHUNK_MAX: usize = 4096;
/// Copies have such a part of the memory.
const MEMORY_SHARE: u64 = 8;
/// So much of it is left to others.
const FREE_SHARE: u64 = 16;

/// All of a checkpoint.
#[derive(Debug)]
pub(super) struct CheckpointCopies {
    record_type: &'static RecordType,
    /// Entries of a chunk.
    chunk: usize,
    filling: Option<RecordCopies>,
    /// To be written, in order.
    full: VecDeque<RecordCopies>,
    spare: Vec<RecordCopies>,
    /// The one that the helper has, if it has one to write.
    answer: Option<Mailbox<Option<RecordCopies>>>,
    /// What is booked for chunks that the helper drops.
    leaving: u64,
    /// Whether memory had no room for another one when it was last asked for.
    is_full: bool,
    /// What is left to the writer, which has not booked its own yet.
    pub leaves: u64,
    /// For all chunks.
    booked: Booked,
}

/// Entries of a chunk, of so many entries.
fn chunk_of(record_type: &'static RecordType, account: &Account, all: u64) -> usize {
    let each = RecordCopies::memory_bytes(record_type, 1) as u64;
    let entries = account.limit() / CHUNK_SHARE / each;
    entries.clamp(CHUNK_MIN as u64, CHUNK_MAX as u64).min(all.max(CHUNK_FEW)) as usize
}

fn chunk_bytes(record_type: &'static RecordType, entries: usize) -> u64 {
    (RecordCopies::memory_bytes(record_type, entries) + 64) as u64
}

impl CheckpointCopies {
    /// What they take at least.
    pub fn least_bytes(record_type: &'static RecordType, all: u64) -> u64 {
        chunk_bytes(record_type, (CHUNK_MIN as u64).min(all.max(CHUNK_FEW)) as usize)
    }

    /// None yet, of so many entries.
    pub fn new(record_type: &'static RecordType, account: Rc<Account>, all: u64) -> Self {
        let chunk = chunk_of(record_type, &account, all);
        Self {
            record_type,
            chunk,
            filling: None,
            full: VecDeque::new(),
            spare: Vec::new(),
            answer: None,
            leaving: 0,
            is_full: false,
            leaves: FREE_BYTES,
            booked: Booked::buffers(account, 0),
        }
    }

    fn bytes_of(&self, entries: usize) -> u64 {
        chunk_bytes(self.record_type, entries)
    }

    /// Whether there is room for so many more entries.
    ///
    /// # Errors
    /// [`ErrorKind::OverBudget`] if memory has no room for one chunk.
    pub fn has_room(&mut self, count: usize) -> Result<bool> {
        if !self.has_chunk_for(count) {
            self.filling = self.new_chunk()?;
            self.is_full = self.filling.is_none();
        }
        Ok(!self.is_full)
    }

    /// The same for one entry that the stream is about to change, which neither asks others for memory nor takes the last
    /// of it.
    pub fn has_room_left(&mut self) -> bool {
        let chunk = self.bytes_of(self.chunk);
        self.has_chunk_for(1) || {
            let may =
                !self.spare.is_empty() || self.booked.account().available() >= chunk + self.leaves;
            may && matches!(self.has_room(1), Ok(true))
        }
    }

    /// Whether the chunk that is being filled has room.
    fn has_chunk_for(&mut self, count: usize) -> bool {
        if let Some(filling) = &self.filling {
            if filling.len() + count <= self.chunk {
                return true;
            }
            self.full.extend(self.filling.take());
        }
        false
    }

    fn new_chunk(&mut self) -> Result<Option<RecordCopies>> {
        if let Some(spare) = self.spare.pop() {
            return Ok(Some(spare));
        }
        let bytes = self.bytes_of(self.chunk);
        if self.booked.bytes() == 0 {
            self.book_first()?;
        } else {
            let (account, limit) = (self.booked.account(), self.booked.account().limit());
            let may = self.booked.bytes() + bytes <= limit / MEMORY_SHARE
                && account.available() >= self.leaves.max(limit / FREE_SHARE) + bytes;
            if !may || !self.booked.try_reserve_more(bytes) {
                return Ok(None);
            }
        }
        Ok(Some(RecordCopies::with_capacity(self.record_type, self.chunk)))
    }

    /// Books the only chunk, which is small where memory has no room for a large one and for the writer.
    fn book_first(&mut self) -> Result<()> {
        let what = "copies for a checkpoint";
        let wanted = self.bytes_of(self.chunk) + self.leaves;
        if self.booked.account().ensure(wanted, what).is_err() {
            self.chunk = self.chunk.min(CHUNK_MIN);
        }
        self.booked.reserve_more(self.bytes_of(self.chunk), what)
    }

    /// Adds a copy of an entry. There is [room](CheckpointCopies::has_room). Its clone may panic, and then nothing has changed.
    pub fn push(&mut self, hash: u64, record: RecordRef<'_>) {
        let filling = self.filling.as_mut().expect("there is room");
        if filling.len() == filling.capacity() {
            // More entries of a group are to be had than chunks are long.
            let before = filling.capacity();
            let more = RecordCopies::memory_bytes(self.record_type, before + self.chunk)
                - RecordCopies::memory_bytes(self.record_type, before);
            self.booked.charge(more as u64);
            filling.grow(self.chunk);
        }
        filling.push(hash, record);
    }

    /// Nothing more is copied.
    pub fn end(&mut self) {
        let last = self.filling.take().filter(|chunk| !chunk.is_empty());
        self.full.extend(last);
    }

    /// Entries of a chunk.
    pub fn chunk(&self) -> u64 {
        self.chunk as u64
    }

    /// Whether memory has no room for more copies, so that those that there are should go.
    pub fn is_full(&self) -> bool {
        self.is_full
    }

    /// Records of the chunk that is to be written next.
    pub fn next_len(&self) -> Option<u64> {
        self.full.front().map(|chunk| chunk.len() as u64)
    }

    /// Whether nothing is to be written any more, and nothing is with the helper.
    pub fn is_empty(&self) -> bool {
        self.full.is_empty() && self.filling.is_none() && self.answer.is_none()
    }

    /// Whether there are chunks for nothing: the helper is to [have](CheckpointCopies::submit) them.
    pub fn has_spare(&self) -> bool {
        !self.spare.is_empty()
    }

    /// The chunk that the helper has written. It is [given back](CheckpointCopies::give_back).
    ///
    /// # Errors
    /// If it was lost.
    pub fn take_written(&mut self) -> Result<Option<RecordCopies>> {
        let Some(answer) = self.answer.take() else { return Ok(None) };
        let lost = |_| Error::new(ErrorKind::Io, "the helper lost a part of a checkpoint");
        let written = answer.try_recv().map_err(lost)?;
        self.booked.give_some_back(std::mem::take(&mut self.leaving));
        Ok(written)
    }

    /// Drops a chunk, or what the helper has; says whether there was something.
    pub fn drop_one(&mut self) -> bool {
        // What the helper has goes with its answer.
        let is_some = self.answer.take().is_some() || self.filling.take().is_some();
        is_some || self.full.pop_front().is_some() || self.spare.pop().is_some()
    }

    /// The places of a chunk's records are known.
    pub fn give_back(&mut self, mut chunk: RecordCopies) {
        chunk.clear();
        self.is_full = false;
        self.spare.push(chunk);
    }

    /// Has the helper encode and write the next chunk, and drop those that are spare but for one; all if there is none to
    /// be written. What it had before was [taken](CheckpointCopies::take_written).
    pub fn submit(&mut self, own: &mut BatchWriter) {
        let kept = self.spare.len().min(usize::from(!self.full.is_empty()));
        let (mut chunk, gone) = (self.full.pop_front(), self.spare.split_off(kept));
        if chunk.is_none() && gone.is_empty() {
            return;
        }
        self.leaving = gone.iter().map(|chunk| self.bytes_of(chunk.capacity())).sum();
        let (reply, answer) = mailbox();
        self.answer = Some(answer);
        own.submit_job(move |sink: &mut RecordSink<'_>| {
            drop(gone);
            chunk.iter_mut().try_for_each(|chunk| write_all(chunk, sink))?;
            // If the checkpoint was given up nobody minds the answer.
            reply.send(chunk);
            Ok(())
        });
    }
}

/// Writes a chunk, and notes where its records are.
fn write_all(chunk: &mut RecordCopies, sink: &mut RecordSink<'_>) -> Result<()> {
    for nth in 0..chunk.len() {
        let (note, record) = chunk.get(nth);
        let at = sink.push(note.hash, record).map_err(|error| name_large(error, record))?;
        chunk.set_place(nth, at);
    }
    Ok(())
}

/// An error of a record that is too large, with its key.
pub(crate) fn name_large(error: Error, record: RecordRef<'_>) -> Error {
    match error.kind() {
        ErrorKind::ValueTooLarge | ErrorKind::OverBudget => error.with("key", record.key_text()),
        _ => error,
    }
}
