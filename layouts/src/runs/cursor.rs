//! Reading a run from its first record to its last, a buffer at a time.
//!
//! Each chunk is verified before one of its records is shown; at the end of each partition, that its chunks were all
//! there and in order, unless the cursor has jumped into it. A cursor that has failed shows nothing until what failed is
//! done: it goes on where it was.

use alluvium_pagestore::io::{BLOCK_BYTES, FileHandle, IoBuffer, Operation, run_blocking};
use alluvium_pagestore::{Result, SegmentStore};

use super::chunk::{self, RecordView, VerifiedChunk};
use super::damaged;
use super::directory::{Partition, RunInfo, directory_bytes};
use super::guide::Guide;
use super::run::read_directory;
use super::second::SecondBuffer;

/// A place in a run, and the bytes around it.
#[derive(Debug)]
pub struct SortedRunCursor {
    store: SegmentStore,
    file: FileHandle,
    run: u64,
    order_bytes: usize,
    partitions: Vec<Partition>,
    /// The partition that is read, and the block after those that the buffer has.
    partition: usize,
    next_block: u32,
    buffer: IoBuffer,
    buffer_bytes: usize,
    second: SecondBuffer,
    /// Where the buffer begins in the file.
    buffer_offset: u64,
    /// The chunk in the buffer that is shown, and the record in it.
    chunk_at: usize,
    chunk: Option<VerifiedChunk>,
    chunk_bytes: usize,
    record_at: usize,
    /// Of the partition so far.
    digest: u32,
    records: u64,
    read_bytes: u64,
    /// Whether the next chunk could not be entered.
    is_stopped: bool,
    /// The offset that is yet to be read from, where a read failed.
    unread: Option<u64>,
    /// Chunks before those of the partition that are read were passed over.
    has_jumped: bool,
}

/// Where a cursor is: a record of a chunk.
#[derive(Clone, Copy, Debug)]
struct CursorPosition {
    partition: usize,
    /// Where the chunk begins in the file, and the record in the chunk.
    chunk: u64,
    record: usize,
}

/// Where a [`RunChain`] is: the number of the run, and the place there; none at the end.
#[derive(Clone, Copy, Debug)]
pub struct ChainPlace(Option<(usize, CursorPosition)>);

impl ChainPlace {
    /// Nothing is read from there.
    pub const END: Self = Self(None);
}

/// Where a cursor reads ahead, it does not read fewer bytes at once.
const HALF_BYTES_MIN: usize = BLOCK_BYTES;

/// A cursor jumps to a hash if its partition is so many times as long as what that reads.
const JUMP_SHARE: usize = 2;

impl SortedRunCursor {
    /// Bytes that a cursor on this run takes which reads so many at once.
    pub fn memory_bytes(info: &RunInfo, read_bytes: usize) -> u64 {
        let directory = info.partitions as usize * size_of::<Partition>();
        Self::buffer_bytes(info, read_bytes) as u64 + directory as u64
    }

    fn buffer_bytes(info: &RunInfo, read_bytes: usize) -> usize {
        let at_once = read_bytes.max(info.longest_chunk as usize);
        // The directory is read into it first.
        at_once.max(directory_bytes(info.partitions as usize)).next_multiple_of(BLOCK_BYTES)
    }

    /// Bytes of each of two buffers, if both are long enough, and chunks do not pass from one to the other.
    fn half_bytes(info: &RunInfo, read_bytes: usize) -> Option<usize> {
        let half = Self::buffer_bytes(info, read_bytes) / 2 / BLOCK_BYTES * BLOCK_BYTES;
        let least = directory_bytes(info.partitions as usize).max(HALF_BYTES_MIN);
        (half >= least && info.longest_chunk as usize <= BLOCK_BYTES).then_some(half)
    }

    /// A cursor on the first record of a run. Reads the directory and the first chunks.
    ///
    /// # Errors
    /// Those of the device; [`ErrorKind::Corrupt`](alluvium_pagestore::ErrorKind::Corrupt) for what is not what was
    /// written.
    pub fn open(store: SegmentStore, info: &RunInfo, read_bytes: usize) -> Result<Self> {
        Self::open_at(store, info, (read_bytes, false), 0)
    }

    /// [`open`](SortedRunCursor::open) on the first record whose hash is not below this one. Reads what its partition has before, or
    /// the guide, if that is less. Reads half as many bytes at once and the next half ahead, if it `reads_ahead`.
    pub(super) fn open_at(
        store: SegmentStore,
        info: &RunInfo,
        (read_bytes, reads_ahead): (usize, bool),
        hash: u64,
    ) -> Result<Self> {
        let mut cursor = Self::closed(store, info, (read_bytes, reads_ahead))?;
        cursor.partition =
            cursor.partitions.partition_point(|partition| partition.last_hash < hash);
        let first = cursor.partitions.get(cursor.partition);
        cursor.next_block = first.map_or(0, |first| first.block);
        cursor.jump_to(hash)?;
        cursor.next_chunk()?;
        while cursor.peek().is_some_and(|record| record.hash < hash) {
            cursor.advance()?;
        }
        Ok(cursor)
    }

    /// A cursor on a record where another one was. What is before it is not read.
    fn open_at_place(
        store: SegmentStore,
        info: &RunInfo,
        at_once: (usize, bool),
        place: CursorPosition,
    ) -> Result<Self> {
        let mut cursor = Self::closed(store, info, at_once)?;
        cursor.partition = place.partition;
        (cursor.unread, cursor.has_jumped) = (Some(place.chunk), true);
        cursor.next_chunk()?;
        cursor.record_at = place.record;
        Ok(cursor)
    }

    /// Where it is, if it is on a record.
    fn place(&self) -> Option<CursorPosition> {
        let chunk = self.buffer_offset + self.chunk_at as u64;
        let place = CursorPosition { partition: self.partition, chunk, record: self.record_at };
        self.chunk.is_some().then_some(place)
    }

    /// A cursor that has read the directory, and is nowhere yet.
    fn closed(
        store: SegmentStore,
        info: &RunInfo,
        (read_bytes, reads_ahead): (usize, bool),
    ) -> Result<Self> {
        let file = store.device().open(&info.id.file_name())?;
        let half = Self::half_bytes(info, read_bytes).filter(|_| reads_ahead);
        let buffer_bytes = half.unwrap_or_else(|| Self::buffer_bytes(info, read_bytes));
        let mut buffer = IoBuffer::zeroed(buffer_bytes);
        let partitions = read_directory(store.device(), &file, info, &mut buffer)?;
        let mut cursor = Self {
            store,
            file,
            run: info.id.0,
            order_bytes: info.order_bytes as usize,
            partitions,
            partition: 0,
            next_block: 0,
            buffer,
            buffer_bytes,
            second: SecondBuffer::new(half),
            buffer_offset: 0,
            chunk_at: 0,
            chunk: None,
            chunk_bytes: 0,
            record_at: 0,
            digest: 0,
            records: 0,
            read_bytes: 0,
            is_stopped: false,
            unread: None,
            has_jumped: false,
        };
        cursor.buffer.set_len(0);
        Ok(cursor)
    }

    /// Has the partition be read from the first chunk on that may have a hash, if that is worth reading its guide.
    fn jump_to(&mut self, hash: u64) -> Result<()> {
        let Some(entry) = self.partitions.get(self.partition).copied() else { return Ok(()) };
        let guide_bytes = (entry.guide_bytes as usize).next_multiple_of(BLOCK_BYTES);
        let partition_bytes = entry.blocks as usize * BLOCK_BYTES;
        if hash == 0
            || guide_bytes > self.buffer_bytes
            || partition_bytes < JUMP_SHARE * (guide_bytes + self.buffer_bytes)
        {
            return Ok(());
        }
        self.read(entry.guide_offset(), guide_bytes)?;
        let bytes = &self.buffer.as_slice()[..entry.guide_bytes as usize];
        let block = Guide::verified((self.run, entry.guide_offset()), bytes)?.block_before(hash);
        self.buffer.set_len(0);
        if block > 0 {
            self.unread = Some(entry.offset() + u64::from(block) * BLOCK_BYTES as u64);
            self.has_jumped = true;
        }
        Ok(())
    }

    /// The record it is on; none at the end.
    pub fn peek(&self) -> Option<RecordView<'_>> {
        let chunk = self.chunk.as_ref()?;
        let bytes = &self.buffer.as_slice()[self.chunk_at..self.chunk_at + self.chunk_bytes];
        chunk.record_at(bytes, self.record_at, self.order_bytes).map(|(record, _)| record)
    }

    /// The record it is on, where the next one of its chunk stands, and the hash of that; none if it is the last of its
    /// chunk.
    fn peek_both(&self) -> Option<(RecordView<'_>, usize, u64)> {
        let chunk = self.chunk.as_ref()?;
        let bytes = &self.buffer.as_slice()[self.chunk_at..self.chunk_at + self.chunk_bytes];
        let (record, next) = chunk.record_at(bytes, self.record_at, self.order_bytes)?;
        let (later, _) = chunk.record_at(bytes, next, self.order_bytes)?;
        Some((record, next, later.hash))
    }

    /// Goes to the next record.
    ///
    /// # Errors
    /// As for [`open`](SortedRunCursor::open). A cursor that has failed shows nothing, so it looks like one at its end:
    /// [`go_on`](SortedRunCursor::go_on) says which it is.
    pub fn advance(&mut self) -> Result<()> {
        self.go_on()?;
        let Some(chunk) = &self.chunk else { return Ok(()) };
        let bytes = &self.buffer.as_slice()[self.chunk_at..self.chunk_at + self.chunk_bytes];
        let Some((_, next)) = chunk.record_at(bytes, self.record_at, self.order_bytes) else {
            return Ok(());
        };
        if chunk.record_at(bytes, next, self.order_bytes).is_some() {
            self.record_at = next;
            return Ok(());
        }
        self.chunk = None;
        self.is_stopped = true;
        self.go_on()
    }

    /// Goes to the record that [`advance`](SortedRunCursor::advance) failed to go to, if it did.
    ///
    /// # Errors
    /// As for `advance`: what failed is tried again.
    pub fn go_on(&mut self) -> Result<()> {
        if self.is_stopped {
            self.next_chunk()?;
            self.is_stopped = false;
        }
        Ok(())
    }

    /// Bytes read so far.
    pub fn read_bytes(&self) -> u64 {
        self.read_bytes
    }

    /// Goes to the first record whose hash is not below this one. Reads its partition from the beginning, if that is
    /// another one.
    ///
    /// # Errors
    /// As for [`advance`](SortedRunCursor::advance).
    fn skip_to(&mut self, hash: u64) -> Result<()> {
        let partition = self.partitions.partition_point(|partition| partition.last_hash < hash);
        if partition > self.partition {
            self.stand_before(partition);
            self.go_on()?;
        }
        while self.peek().is_some_and(|record| record.hash < hash) {
            self.advance()?;
        }
        Ok(())
    }

    /// The first chunk of a partition comes next; the rest of this one is left.
    fn stand_before(&mut self, partition: usize) {
        self.partition = partition;
        self.next_block = self.partitions.get(partition).map_or(0, |next| next.block);
        self.buffer.set_len(0);
        (self.chunk, self.chunk_at, self.chunk_bytes, self.buffer_offset) = (None, 0, 0, 0);
        (self.digest, self.records, self.unread) = (0, 0, None);
        (self.is_stopped, self.has_jumped) = (true, false);
    }

    /// The partition whose records are shown, of how many.
    pub fn partition(&self) -> (usize, usize) {
        (self.partition, self.partitions.len())
    }

    /// Goes to the first record of the next chunk.
    fn next_chunk(&mut self) -> Result<()> {
        let end = self.chunk_at + self.chunk_bytes;
        let Some(entry) = self.partitions.get(self.partition).copied() else { return Ok(()) };
        if let Some(offset) = self.unread {
            self.fill(offset, entry)?;
            return self.enter(0);
        }
        let offset = self.buffer_offset + end as u64;
        if self.next_block == entry.block + entry.blocks && end == self.buffer.len() {
            return self.next_partition(entry);
        }
        let at = match self.has_chunk(end)? {
            true => end,
            false => {
                let offset = if self.buffer.is_empty() { entry.offset() } else { offset };
                self.fill(offset, entry)?;
                0
            }
        };
        self.enter(at)
    }

    /// Whether the buffer has the whole chunk that begins at a place of it.
    fn has_chunk(&self, at: usize) -> Result<bool> {
        let bytes = &self.buffer.as_slice()[at..];
        if bytes.len() < BLOCK_BYTES {
            return Ok(false);
        }
        let place = (self.run, self.buffer_offset + at as u64);
        Ok(chunk::told_bytes(place, bytes)? <= bytes.len())
    }

    /// Reads what follows from an offset on, as far as the partition and the buffer go.
    fn fill(&mut self, offset: u64, entry: Partition) -> Result<()> {
        self.unread = Some(offset);
        let most = (entry.guide_offset() - offset).min(self.buffer_bytes as u64) as usize;
        self.read(offset, most)?;
        self.buffer_offset = offset;
        (self.chunk, self.chunk_at, self.chunk_bytes) = (None, 0, 0);
        self.next_block = (offset / BLOCK_BYTES as u64) as u32 + (most / BLOCK_BYTES) as u32;
        if !self.has_chunk(0)? {
            return Err(damaged(self.run, offset, "a chunk of a run is longer than told"));
        }
        self.unread = None;
        self.read_on(entry);
        Ok(())
    }

    /// Starts reading what comes after the buffer, in this partition or the next.
    fn read_on(&mut self, entry: Partition) {
        let next = self.buffer_offset + self.buffer.len() as u64;
        let (start, end) = match (next < entry.guide_offset(), self.partition + 1) {
            (true, _) => (next, entry.guide_offset()),
            (false, later) => match self.partitions.get(later) {
                Some(later) => (later.offset(), later.guide_offset()),
                None => return,
            },
        };
        let bytes = (end - start).min(self.buffer_bytes as u64) as usize;
        self.second.start((&self.store, &self.file), (start, bytes));
    }

    /// Reads so many bytes into the buffer, which has room for them, unless they are being read.
    fn read(&mut self, offset: u64, bytes: usize) -> Result<()> {
        if let Some((mut buffer, done)) = self.second.take(offset, bytes) {
            buffer.set_len(if done.is_ok() { bytes } else { 0 });
            self.second.give(std::mem::replace(&mut self.buffer, buffer));
            self.read_bytes += if done.is_ok() { bytes as u64 } else { 0 };
            return done;
        }
        let mut buffer = std::mem::replace(&mut self.buffer, IoBuffer::empty());
        if buffer.capacity() == 0 {
            // The device keeps the one of a read that has timed out.
            buffer = IoBuffer::zeroed(self.buffer_bytes);
        }
        buffer.set_len(bytes);
        let operation = Operation::Read { offset };
        let (mut buffer, done) = run_blocking(self.store.device(), &self.file, operation, buffer);
        buffer.set_len(if done.is_ok() { bytes } else { 0 });
        self.buffer = buffer;
        done?;
        self.read_bytes += bytes as u64;
        Ok(())
    }

    /// Verifies the chunk at a place of the buffer and goes to its first record.
    fn enter(&mut self, at: usize) -> Result<()> {
        let place = (self.run, self.buffer_offset + at as u64);
        let bytes = chunk::told_bytes(place, &self.buffer.as_slice()[at..])?;
        let chunk = VerifiedChunk::verified(place, &self.buffer.as_slice()[at..at + bytes])?;
        (self.chunk_at, self.chunk_bytes, self.record_at) = (at, bytes, chunk::HEADER_BYTES);
        self.digest = crc32c::crc32c_append(self.digest, &chunk.crc.to_le_bytes());
        self.records += u64::from(chunk.records);
        self.chunk = Some(chunk);
        Ok(())
    }

    /// The partition is over: it was whole if digest and count say so.
    fn next_partition(&mut self, entry: Partition) -> Result<()> {
        let is_whole = (self.digest, self.records) == (entry.digest, u64::from(entry.records));
        let has_jumped = std::mem::take(&mut self.has_jumped);
        if !is_whole && !has_jumped {
            let what = "chunks of a partition are missing, or others";
            return Err(damaged(self.run, entry.offset(), what));
        }
        (self.digest, self.records) = (0, 0);
        self.partition += 1;
        let Some(next) = self.partitions.get(self.partition).copied() else {
            self.chunk = None;
            return Ok(());
        };
        self.fill(next.offset(), next)?;
        self.enter(0)
    }
}

/// The next record of a chunk: where it stands, and its hash.
#[derive(Clone, Copy, Debug)]
pub(super) struct NextInChunk {
    at: usize,
    hash: u64,
}

/// A cursor on runs whose hashes do not overlap, one after the other: one of them is open at a time. It passes their cuts
/// over.
#[derive(Debug)]
pub(super) struct RunChain {
    store: SegmentStore,
    /// Bytes that are read at once, and whether the next are read ahead.
    at_once: (usize, bool),
    /// The runs behind the one that is read.
    rest: std::vec::IntoIter<RunInfo>,
    /// None at the end, and before a run that could not be opened. With what the run is.
    cursor: Option<(SortedRunCursor, RunInfo)>,
    /// The hash of the record it is on, if it is on one.
    hash: Option<u64>,
    /// Of runs that are over.
    read_bytes: u64,
}

impl RunChain {
    /// Bytes that it takes on these runs if it reads so many at once.
    pub fn memory_bytes(runs: &[RunInfo], read_bytes: usize) -> u64 {
        let longest = runs.iter().map(|run| SortedRunCursor::memory_bytes(run, read_bytes)).max();
        let cuts: usize = runs.iter().map(|run| size_of_val(&run.cuts[..])).sum();
        longest.unwrap_or(0) + (size_of_val(runs) + cuts + size_of::<Self>()) as u64
    }

    /// A cursor on the first record of runs in order whose hash is not below this one. Reads so many bytes at once, and
    /// ahead if that is wanted.
    ///
    /// # Errors
    /// Those of [`SortedRunCursor::open`].
    pub fn open_at(
        store: &SegmentStore,
        runs: &[RunInfo],
        at_once: (usize, bool),
        hash: u64,
    ) -> Result<Self> {
        let start = runs.partition_point(|run| run.last_hash < hash);
        let rest = Vec::from(&runs[start..]).into_iter();
        let store = store.clone();
        let mut chain = Self { store, at_once, rest, cursor: None, hash: None, read_bytes: 0 };
        if let Some(first) = chain.rest.next() {
            let cursor = SortedRunCursor::open_at(chain.store.clone(), &first, at_once, hash)?;
            chain.cursor = Some((cursor, first));
        }
        chain.skip_what_is_over()?;
        Ok(chain)
    }

    /// A cursor on these runs where another one was.
    ///
    /// # Errors
    /// Those of [`SortedRunCursor::open`].
    pub fn open_at_place(
        store: &SegmentStore,
        runs: &[RunInfo],
        at_once: (usize, bool),
        ChainPlace(place): ChainPlace,
    ) -> Result<Self> {
        let from = place.map_or(runs.len(), |(run, _)| run);
        let rest = Vec::from(&runs[from..]).into_iter();
        let store = store.clone();
        let mut chain = Self { store, at_once, rest, cursor: None, hash: None, read_bytes: 0 };
        if let Some((_, place)) = place
            && let Some(run) = chain.rest.next()
        {
            let cursor = SortedRunCursor::open_at_place(chain.store.clone(), &run, at_once, place)?;
            chain.cursor = Some((cursor, run));
        }
        chain.skip_what_is_over()?;
        Ok(chain)
    }

    /// Where it is, of so many runs.
    pub fn place(&self, runs: usize) -> ChainPlace {
        let place = self.cursor.as_ref().and_then(|(cursor, _)| cursor.place());
        ChainPlace(place.map(|place| (runs - self.rest.len() - 1, place)))
    }

    /// The record it is on; none at the end.
    pub fn peek(&self) -> Option<RecordView<'_>> {
        self.cursor.as_ref()?.0.peek()
    }

    /// The hash of the record it is on; none at the end.
    #[inline]
    pub fn hash(&self) -> Option<u64> {
        self.hash
    }

    /// The record it is on, and the next, if that is in the same chunk, counts, and has another hash. Reads nothing.
    #[inline]
    pub fn peek_alone(&self) -> Option<(RecordView<'_>, NextInChunk)> {
        let (cursor, run) = self.cursor.as_ref()?;
        let (record, at, hash) = cursor.peek_both()?;
        let is_other = hash != record.hash && !run.is_cut(hash);
        is_other.then_some((record, NextInChunk { at, hash }))
    }

    /// Goes to the next record, which was [seen](RunChain::peek_alone).
    #[inline]
    pub fn go_to(&mut self, next: NextInChunk) {
        let (cursor, _) = self.cursor.as_mut().expect("it is on a record");
        cursor.record_at = next.at;
        self.hash = Some(next.hash);
    }

    /// Goes to the next record.
    ///
    /// # Errors
    /// As for [`SortedRunCursor::advance`].
    pub fn advance(&mut self) -> Result<()> {
        self.hash = None;
        if let Some((cursor, _)) = &mut self.cursor {
            cursor.advance()?;
        }
        self.skip_what_is_over()
    }

    /// Goes to the record that [`advance`](RunChain::advance) failed to go to, if it did.
    ///
    /// # Errors
    /// As for `advance`: what failed is tried again.
    pub fn go_on(&mut self) -> Result<()> {
        self.hash = None;
        if let Some((cursor, _)) = &mut self.cursor {
            cursor.go_on()?;
        }
        self.skip_what_is_over()
    }

    fn skip_what_is_over(&mut self) -> Result<()> {
        self.hash = None;
        loop {
            if let Some((cursor, run)) = &mut self.cursor
                && let Some(hash) = cursor.peek().map(|record| record.hash)
            {
                match run.cut_of(hash) {
                    None => {
                        self.hash = Some(hash);
                        return Ok(());
                    }
                    Some(last) if last < run.last_hash => cursor.skip_to(last + 1)?,
                    // Nothing that counts is left of it.
                    Some(_) => self.leave_run(),
                }
                continue;
            }
            self.leave_run();
            let Some(next) = self.rest.as_slice().first() else { return Ok(()) };
            let cursor = SortedRunCursor::open_at(self.store.clone(), next, self.at_once, 0)?;
            self.cursor = self.rest.next().map(|run| (cursor, run));
        }
    }

    fn leave_run(&mut self) {
        self.read_bytes += self.cursor.take().map_or(0, |(cursor, _)| cursor.read_bytes());
    }

    /// Bytes read so far.
    pub fn read_bytes(&self) -> u64 {
        self.read_bytes + self.cursor.as_ref().map_or(0, |(cursor, _)| cursor.read_bytes())
    }
}
