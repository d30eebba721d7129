//! Reading single records of segments: for the call at hand, or ahead of the one that needs them.
//!
//! A call that reads waits as long as the device does something. If it does nothing the call ends, and its
//! reads are *left*: each keeps its buffer, which stays booked, until it ends, and nobody looks at what it has read. A
//! later call reads with the buffers that there are, and waits for one if there is none.
//!
//! What it keeps true: each buffer is free, with one read under way, or with whoever looks at what was read. Records are
//! verified before anything is done with them.

use std::sync::Arc;
use std::time::Duration;

use alluvium_pagestore::channel::Receiver;
use alluvium_pagestore::io::{
    BLOCK_BYTES, CLOSING_MAX, Completion, IoBuffer, Operation, Patience, Reply, Request, UnderWay,
    Waker, next_completion,
};
use alluvium_pagestore::{
    MemoryKind, RECORD_HEADER_BYTES, RecordBytes, Result, UNSPLIT_BYTES, VerifiedRecord, damaged,
    verify_record,
};

use super::StoredSegments;
use crate::contract::fetch::{Fetch, Ticket};
use crate::hybrid_log::address::StoredAt;
use crate::hybrid_log::fetches::{RecordFetches, RecordReadProgress};

/// Bit of the tokens of reads that run ahead.
const FETCH: u64 = 1 << 63;
/// Bits of the tokens of other reads: which of the call's it is; the round is before them.
const NTH: u64 = u32::MAX as u64;

/// Buffers, and the reads that have them.
#[derive(Debug)]
pub(super) struct RecordReads {
    buffers: Vec<IoBuffer>,
    /// Bytes of each of them: the longest first read of a record.
    read_bytes: usize,
    reply: Reply,
    /// Where reads end that run ahead, with whom they wake.
    fetch_reply: Reply,
    fetches: RecordFetches,
    completions: Receiver<Completion>,
    /// How long a call waits for a device that does nothing.
    patience: Duration,
    /// Tells the reads of a call from those that were left before.
    round: u64,
    /// Reads of the call at hand, and those that were left, that have not ended.
    under_way: usize,
    left: usize,
    /// The rest of a long record, if it was left, and the bytes of its buffer.
    long_left: Option<(UnderWay, usize)>,
}

/// A record being read, or read.
#[derive(Debug)]
pub struct RecordRead {
    /// Which record.
    pub at: StoredAt,
    buffer: IoBuffer,
    /// Offset of the record in the buffer.
    start: usize,
    result: Result<()>,
}

impl RecordReads {
    /// None; `queue_depth` buffers of `read_bytes`.
    pub fn new((queue_depth, read_bytes): (usize, usize), patience: Duration) -> Self {
        let (reply, completions) = alluvium_pagestore::channel::unbounded();
        Self {
            buffers: (0..queue_depth).map(|_| IoBuffer::zeroed(read_bytes)).collect(),
            read_bytes,
            fetch_reply: reply.clone().into(),
            reply: reply.into(),
            fetches: RecordFetches::new(queue_depth.saturating_sub(1)),
            completions,
            patience,
            round: 0,
            under_way: 0,
            left: 0,
            long_left: None,
        }
    }
}

impl StoredSegments {
    /// Changes reads with another log, with all that is under way and whom it wakes.
    pub fn swap_reads(&mut self, other: &mut StoredSegments) {
        std::mem::swap(&mut self.reads, &mut other.reads);
    }

    /// Bytes that are booked for the rest of a long record that was left, beyond those of a read.
    pub fn left_bytes(&self) -> u64 {
        let left = self.reads.long_left.as_ref();
        left.map_or(0, |(_, length)| length.saturating_sub(self.reads.read_bytes) as u64)
    }

    /// Starts the `nth` read of a call, if a buffer is free.
    pub fn start(&mut self, at: StoredAt, nth: u64) -> Option<Result<()>> {
        debug_assert!(nth <= NTH, "the bits of rounds");
        let token = self.reads.round << 32 | nth;
        let started = self.submit_read(at, token, self.reads.reply.clone());
        self.reads.under_way += usize::from(matches!(started, Some(Ok(()))));
        started
    }

    fn submit_read(&mut self, at: StoredAt, token: u64, reply: Reply) -> Option<Result<()>> {
        let buffer = self.reads.buffers.pop()?;
        let Some(Some(segment)) = self.segments.get(at.segment as usize) else {
            self.reads.buffers.push(buffer);
            panic!("an index entry names segment {}, which is not there", at.segment);
        };
        let info = &segment.info;
        let offset = at.offset();
        let block = BLOCK_BYTES as u64;
        let start = offset / block * block;
        // Records of up to `UNSPLIT_BYTES` lie in one block; of longer ones what two of mean length
        // take is read first, and the rest when it turns out to be needed.
        let guess = if info.max_record_bytes <= UNSPLIT_BYTES {
            1
        } else {
            (2 * info.bytes / info.records.max(1)).clamp(1, info.max_record_bytes)
        };
        let end = (offset + guess)
            .next_multiple_of(block)
            .min(start + self.reads.read_bytes as u64)
            .min(info.bytes);
        if start >= end {
            self.reads.buffers.push(buffer);
            return Some(Err(damaged(&info.file, offset, "a record lies past its segment's end")));
        }
        let mut buffer = buffer;
        buffer.set_len((end - start) as usize);
        let request = Request {
            file: info.file.clone(),
            operation: Operation::Read { offset: start },
            buffer,
            token,
            reply,
        };
        let device = self.store.device();
        match token & FETCH {
            0 => device.submit_own(request),
            _ => device.submit(request),
        }
        Some(Ok(()))
    }

    /// Starts reading a record ahead of the call that needs it, unless that was done.
    pub fn fetch(&mut self, at: StoredAt) -> Fetch {
        let Some(Some(segment)) = self.segments.get(at.segment as usize) else {
            panic!("an index entry names segment {}, which is not there", at.segment);
        };
        let id = segment.info.id;
        match self.reads.fetches.known(at, id) {
            RecordReadProgress::Read => return Fetch::Ready,
            RecordReadProgress::Reading(ticket) => return Fetch::Pending(ticket),
            // With a single buffer there is none to read ahead with.
            RecordReadProgress::Full if self.reads.fetches.is_empty() => return Fetch::Ready,
            RecordReadProgress::Full => return Fetch::Busy,
            RecordReadProgress::Nothing => {}
        }
        let ticket = self.reads.fetches.begin(at, id);
        let reply = self.reads.fetch_reply.clone();
        match self.submit_read(at, ticket.0 | FETCH, reply) {
            Some(Ok(())) => Fetch::Pending(ticket),
            // The call that needs the record meets the error.
            Some(Err(_)) | None => {
                self.reads.fetches.cancel(ticket);
                Fetch::Ready
            }
        }
    }

    /// Tells the tickets whose reads have ended.
    pub fn fetched(&mut self, tell: &mut dyn FnMut(Ticket)) {
        if self.reads.fetches.is_empty() {
            return;
        }
        self.store.device().drive();
        while let Ok(done) = self.reads.completions.try_recv() {
            let own = self.sort(done);
            assert!(own.is_none(), "the end of a read that nobody waits for");
        }
        self.reads.fetches.tell(tell);
    }

    /// Keeps the end of a read that runs ahead, and takes the buffer of one that was left; others are of the
    /// call at hand.
    fn sort(&mut self, done: Completion) -> Option<Completion> {
        if done.token & FETCH != 0 {
            self.fetch_ended(done);
        } else if done.token >> 32 == self.reads.round {
            self.reads.under_way -= 1;
            return Some(done);
        } else {
            self.reads.left -= 1;
            self.take_back(done.buffer);
        }
        None
    }

    fn fetch_ended(&mut self, done: Completion) {
        let ticket = Ticket(done.token & !FETCH);
        let at = self.reads.fetches.place(ticket);
        if let Some(read) = self.reads.fetches.end(ticket, RecordRead::of(at, done)) {
            self.recycle(read);
        }
    }

    /// Whether the read of a record that was fetched has ended.
    pub fn has_fetched(&self, at: StoredAt) -> bool {
        !self.reads.fetches.is_empty()
            && self.reads.fetches.known(at, self.info(at.segment).id) == RecordReadProgress::Read
    }

    /// The read of a record that was fetched, if it has ended.
    pub fn take_fetched(&mut self, at: StoredAt) -> Option<RecordRead> {
        if self.reads.fetches.is_empty() {
            return None;
        }
        let id = self.info(at.segment).id;
        self.reads.fetches.take(at, id)
    }

    /// Nobody needs this read any more.
    pub fn release_fetch(&mut self, ticket: Ticket) {
        if let Some(read) = self.reads.fetches.release(ticket) {
            self.recycle(read);
        }
    }

    /// Reads that were started ahead so far.
    pub fn fetches(&self) -> u64 {
        self.reads.fetches.started()
    }

    /// Whom fetches wake from now on.
    pub fn wake_with(&mut self, waker: Arc<Waker>) {
        self.reads.fetch_reply = self.reads.reply.clone().waking(waker);
    }

    /// Buffers that no read has.
    pub fn free_buffers(&self) -> usize {
        self.reads.buffers.len()
    }

    /// Waits for one read of the call to end; `at_of` tells what was started as which.
    ///
    /// # Errors
    /// [`ErrorKind::Backpressure`] if the device does nothing: then all reads of the call are left.
    pub fn wait(&mut self, at_of: impl Fn(u64) -> StoredAt) -> Result<(u64, RecordRead)> {
        let mut patience = None;
        loop {
            let Some(done) = self.wait_a_moment() else {
                self.check(&mut patience).inspect_err(|_| self.leave_all())?;
                continue;
            };
            if let Some(done) = self.sort(done) {
                let nth = done.token & NTH;
                return Ok((nth, RecordRead::of(at_of(nth), done)));
            }
        }
    }

    /// Sees to it that a buffer is free: reads that were left may have all of them.
    ///
    /// # Errors
    /// [`ErrorKind::Backpressure`] if the device does nothing.
    pub fn ensure_buffer(&mut self) -> Result<()> {
        let mut patience = None;
        while self.reads.buffers.is_empty() {
            self.take_long(&mut patience)?;
            if !self.reads.buffers.is_empty() {
                break;
            }
            assert!(self.reads.left > 0, "a read buffer is lost");
            match self.wait_a_moment() {
                Some(done) => {
                    let own = self.sort(done);
                    assert!(own.is_none(), "a call that reads has no other reads under way");
                }
                None => self.check(&mut patience)?,
            }
        }
        Ok(())
    }

    /// Whether to wait on.
    fn check(&self, patience: &mut Option<Patience>) -> Result<()> {
        let device = self.store.device();
        let patience = patience.get_or_insert_with(|| Patience::new(self.reads.patience, device));
        match patience.is_over(device) {
            true => Err(patience.error("a record is still being read")),
            false => Ok(()),
        }
    }

    /// Nobody waits any more for the reads of the call.
    pub fn leave_all(&mut self) {
        self.reads.left += std::mem::take(&mut self.reads.under_way);
        self.reads.round = (self.reads.round + 1) & ((FETCH - 1) >> 32);
    }

    /// Waits for the rest of a long record that was left: there is memory for one.
    fn take_long(&mut self, patience: &mut Option<Patience>) -> Result<()> {
        let Some((left, length)) = self.reads.long_left.take() else { return Ok(()) };
        let device = self.store.device();
        let patience = patience.get_or_insert_with(|| Patience::new(self.reads.patience, device));
        match left.wait_within(patience) {
            Ok((buffer, _)) => {
                let buffer = self.given_back(buffer, length);
                self.take_back(buffer);
            }
            Err(left) => {
                self.reads.long_left = Some((left, length));
                return Err(patience.error("a long record is still being read"));
            }
        }
        Ok(())
    }

    /// A read that has ended, or ends in a moment.
    fn wait_a_moment(&self) -> Option<Completion> {
        if self.reads.completions.is_empty() {
            self.helper.drive();
        }
        next_completion(self.store.device(), &self.reads.completions)
    }

    /// Reads one record and waits for it.
    pub fn read(&mut self, at: StoredAt) -> Result<RecordRead> {
        self.ensure_buffer()?;
        self.start(at, 0).expect("a buffer is free")?;
        Ok(self.wait(|_| at)?.1)
    }

    /// Verifies a read record; reads again, longer, if it is longer than was read.
    pub fn verify<'a>(&mut self, read: &'a mut RecordRead) -> Result<RecordBytes<'a>> {
        std::mem::replace(&mut read.result, Ok(()))?;
        let offset = read.at.offset();
        // The first time its header says how long it is, the second time all of it does.
        for _ in 0..2 {
            let info = self.info(read.at.segment);
            let bytes = &read.buffer.as_slice()[read.start..];
            match verify_record(&info.file, info.id, offset, bytes)? {
                VerifiedRecord::Longer(needed) => self.read_longer(read, needed)?,
                VerifiedRecord::Record(_) => break,
            }
        }
        let info = self.info(read.at.segment);
        let (file, id) = (&info.file, info.id);
        let bytes = &read.buffer.as_slice()[read.start..];
        match verify_record(file, id, offset, bytes)? {
            VerifiedRecord::Record(record) => Ok(record),
            VerifiedRecord::Longer(_) => {
                Err(damaged(file, offset, "a record is longer than it was"))
            }
        }
    }

    fn read_longer(&mut self, read: &mut RecordRead, needed: usize) -> Result<()> {
        let info = self.info(read.at.segment);
        let block = BLOCK_BYTES as u64;
        let offset = read.at.offset() / block * block;
        let length = (read.start + needed).next_multiple_of(BLOCK_BYTES);
        if offset + length as u64 > info.bytes {
            let what = "a record runs past its segment's end";
            return Err(damaged(&info.file, read.at.offset(), what));
        }
        let (file, mut patience) = (info.file.clone(), None);
        self.take_long(&mut patience)?;
        self.release(std::mem::replace(&mut read.buffer, IoBuffer::empty()));
        let buffer = self.longer(length);
        let (device, operation) = (self.store.shared_device(), Operation::Read { offset });
        let reading = UnderWay::start(device, &file, operation, buffer);
        let device = self.store.device();
        let mut patience = Patience::new(self.reads.patience, device);
        match reading.wait_within(&mut patience) {
            Ok((buffer, done)) => {
                read.buffer = self.given_back(buffer, length);
                done
            }
            Err(reading) => {
                // It is what there is memory for: none is given back to the others until it ends.
                self.reads.long_left = Some((reading, length));
                Err(patience.error("a long record is still being read"))
            }
        }
    }

    /// Takes a read's buffer back, if it has one: that of a long record may still be being read.
    pub fn recycle(&mut self, read: RecordRead) {
        if read.buffer.capacity() > 0 {
            self.take_back(read.buffer);
        }
    }

    fn take_back(&mut self, buffer: IoBuffer) {
        let buffer = self.usual(buffer);
        self.reads.buffers.push(buffer);
    }

    /// The buffer of a read of so many bytes that has ended, or another one: an engine that has stopped does
    /// not give it back.
    fn given_back(&self, buffer: IoBuffer, length: usize) -> IoBuffer {
        if buffer.capacity() > 0 {
            return buffer;
        }
        let extra = length.max(self.reads.read_bytes) - self.reads.read_bytes;
        self.account.release(MemoryKind::Buffers, extra as u64);
        IoBuffer::zeroed(self.reads.read_bytes)
    }

    /// A buffer for the rest of a long record, in place of one of the usual length. One at a time,
    /// within what is kept free for one value to be read.
    fn longer(&self, length: usize) -> IoBuffer {
        let capacity = length.max(self.reads.read_bytes);
        self.account.charge(MemoryKind::Buffers, (capacity - self.reads.read_bytes) as u64);
        let mut buffer = IoBuffer::zeroed(capacity);
        buffer.set_len(length);
        buffer
    }

    /// A buffer of the usual length in place of this one.
    fn usual(&self, buffer: IoBuffer) -> IoBuffer {
        if buffer.capacity() == self.reads.read_bytes {
            return buffer;
        }
        self.release(buffer);
        IoBuffer::zeroed(self.reads.read_bytes)
    }

    /// Gives back what a longer buffer took beyond the usual length.
    fn release(&self, buffer: IoBuffer) {
        let extra = buffer.capacity().saturating_sub(self.reads.read_bytes);
        drop(buffer);
        self.account.release(MemoryKind::Buffers, extra as u64);
    }
}

impl RecordRead {
    /// Bytes of the record with its header, by the header, which is not verified; 0 if the read failed.
    pub fn record_bytes(&self) -> u64 {
        let header = self.buffer.as_slice().get(self.start..).unwrap_or_default();
        match header.get(4..8) {
            Some(bytes) if self.result.is_ok() => {
                let length = u32::from_le_bytes(bytes.try_into().expect("four bytes"));
                RECORD_HEADER_BYTES as u64 + u64::from(length)
            }
            _ => 0,
        }
    }

    fn of(at: StoredAt, done: Completion) -> Self {
        let start = (at.offset() % BLOCK_BYTES as u64) as usize;
        Self { at, buffer: done.buffer, start, result: done.result }
    }
}

impl Drop for StoredSegments {
    /// Waits for reads that run ahead or were left: their buffers are the kernel's until they end, and the
    /// memory is given back to the budget after this. Not for a device that does nothing.
    fn drop(&mut self) {
        let mut patience = Patience::new(CLOSING_MAX, self.store.device());
        while self.reads.fetches.reading() + self.reads.left > 0 && !self.helper.is_left_alone() {
            match self.wait_a_moment() {
                Some(done) => drop(self.sort(done)),
                None if patience.is_over(self.store.device()) => break,
                None => {}
            }
        }
        match self.reads.long_left.take() {
            Some((left, _)) if self.helper.is_left_alone() => left.leave(),
            Some((left, _)) => drop(left.wait_within(&mut patience).map_err(UnderWay::leave)),
            None => {}
        }
    }
}
