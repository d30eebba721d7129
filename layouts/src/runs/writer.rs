//! Writing runs: records come in order, and leave in chunks, partitions and files.
//!
//! A *partition* ends with the key groups it is for, when it has as many hashes as its filter may have, or as many
//! chunks as its fence. A file ends with a partition. So what a writer holds is one partition's hashes and the memory
//! in which its guide is built, which is all taken when the writer is made.
//!
//! The file's name is durable with the next sync of the directory. A call that failed because the device did can be made
//! again, and goes on where it was. A writer that [`has_failed`](RunWriter::has_failed) can only be abandoned: what it
//! wrote is no run.

use std::time::Instant;

use alluvium_pagestore::io::{Appended, BLOCK_BYTES, IoBuffer, Operation, run_blocking};
use alluvium_pagestore::{
    Error, ErrorKind, KIB, KeyGroup, MIB, RECORD_BYTES_MAX, Result, SegmentStore,
};

use super::behind::WriteBehind;
use super::checksum;
use super::chunk::{self, RecordView};
use super::directory::{self, ENTRY_BYTES, FRAME_BYTES, Partition, RunId, RunInfo, RunTail};
use super::fence::LongChunk;
use super::filter::FilterBuilder;
use super::guide::{self, GuideInput};
use super::unsynced::UnsyncedRun;
use crate::support::nanos_since;

/// The sizes of runs that are written.
#[derive(Clone, Copy, Debug)]
pub struct RunSizes {
    /// The most distinct hashes of a partition. More make fences and filters a little smaller, and take 42 bytes each
    /// while a run is written.
    pub partition_hashes: usize,
    /// Bytes that are written at once. Where half as many are long enough, one half is written while the other is filled.
    pub write_bytes: usize,
    /// A file with so many bytes ends with its partition.
    pub file_bytes: u64,
    /// The longest payload that may come.
    pub payload_bytes_max: usize,
    /// Bytes of what stands after the hash in the order of each record; at most [`RunSizes::ORDER_BYTES_MAX`].
    pub order_bytes: usize,
    /// Key groups of the state.
    pub key_groups: u16,
    /// Key groups that a partition is for: it ends with the last of so many.
    pub groups_each: u16,
    /// Whether a file is synced when it ends. Else its owner does that before a checkpoint names it.
    pub syncs: bool,
    /// Whether filters have two bytes a slot: then one absent hash in 65,536 is read for, and not one in 256.
    pub is_wide: bool,
}

/// A file ends with so many partitions: its directory is in memory while it is written.
pub(super) const PARTITIONS_MAX: usize = 64;
/// A half of what is written at once is not shorter.
const HALF_BYTES_MIN: usize = 8 << 10;
/// Hashes of a partition for each chunk that it may have.
const HASHES_A_CHUNK: usize = 4;

impl RunSizes {
    /// The most bytes that may stand after the hash in the order of records.
    pub const ORDER_BYTES_MAX: usize = 64;

    /// Sizes of runs of a state with so many key groups, whose writer takes about `memory_bytes` and what its longest
    /// payload needs.
    pub fn within(memory_bytes: u64, payload_bytes_max: usize, key_groups: u16) -> Self {
        let hashes = (memory_bytes / 2 / 42).clamp(512, 16384);
        let write_bytes = (memory_bytes / 4).clamp(4 * KIB, 256 * KIB);
        Self {
            partition_hashes: hashes as usize,
            write_bytes: write_bytes as usize,
            file_bytes: 32 * MIB,
            payload_bytes_max,
            order_bytes: 0,
            key_groups,
            groups_each: 1,
            syncs: true,
            is_wide: false,
        }
    }

    /// The same for runs of about so many hashes: small groups share a partition.
    #[must_use]
    pub fn expecting(self, hashes: u64) -> Self {
        let each_group = (hashes / u64::from(self.key_groups)).max(1);
        // Half of what fits, as groups differ.
        let groups = self.partition_hashes as u64 / 2 / each_group;
        let groups_each = groups.clamp(1, u64::from(self.key_groups)) as u16;
        Self { groups_each, ..self }
    }

    /// The last hash of the key groups that a partition with this hash is for.
    fn last_hash_with(&self, hash: u64) -> u64 {
        let (groups, each) = (self.key_groups, self.groups_each);
        let last =
            (KeyGroup::of(hash, groups).0 / each).saturating_mul(each).saturating_add(each - 1);
        *KeyGroup(last.min(groups - 1)).hashes(groups).end()
    }

    pub(super) fn chunks_max(&self) -> usize {
        self.partition_hashes.div_ceil(HASHES_A_CHUNK)
    }

    /// Bytes of the longest chunk.
    pub(super) fn longest_chunk(&self) -> usize {
        let record = chunk::record_bytes(self.order_bytes, self.payload_bytes_max);
        (chunk::HEADER_BYTES + record).next_multiple_of(BLOCK_BYTES)
    }

    fn buffer_bytes(&self) -> usize {
        self.write_bytes.next_multiple_of(BLOCK_BYTES).max(self.longest_chunk())
    }

    /// Bytes of each of two buffers, if both are long enough.
    fn half_bytes(&self) -> Option<usize> {
        let half = self.buffer_bytes() / 2 / BLOCK_BYTES * BLOCK_BYTES;
        (half >= self.longest_chunk().max(HALF_BYTES_MIN)).then_some(half)
    }

    /// Bytes that a cursor takes at most for the directory of a run.
    pub fn directory_bytes_max() -> u64 {
        (PARTITIONS_MAX * size_of::<Partition>()) as u64
    }

    /// Bytes that a writer takes, all of them when it is made. What it has sealed is told beside.
    pub fn memory_bytes(&self) -> u64 {
        let (hashes, chunks) = (self.partition_hashes, self.chunks_max());
        let lists = hashes * 8 + chunks * (8 + size_of::<LongChunk>());
        let directory = PARTITIONS_MAX * size_of::<Partition>() + Self::ORDER_BYTES_MAX;
        FilterBuilder::memory_bytes(hashes)
            + (lists + directory + self.scratch_bytes() + self.buffer_bytes()) as u64
    }

    /// Bytes of the longest guide, or of the longest directory.
    fn scratch_bytes(&self) -> usize {
        let guide = guide::bytes_most(self.partition_hashes, self.chunks_max(), self.is_wide);
        guide.max(directory::directory_bytes(PARTITIONS_MAX))
    }

    /// # Errors
    /// [`ErrorKind::Config`] if no run can have these sizes.
    fn check(&self) -> Result<()> {
        let is_possible = self.partition_hashes > 0
            && self.order_bytes <= Self::ORDER_BYTES_MAX
            && self.payload_bytes_max as u64 <= RECORD_BYTES_MAX
            && self.key_groups > 0
            && self.groups_each > 0;
        let refused = || Error::new(ErrorKind::Config, format!("no run has the sizes {self:?}"));
        is_possible.then_some(()).ok_or_else(refused)
    }
}

/// Writes runs of one state. Belongs to whoever calls it, a helper's thread for instance.
#[derive(Debug)]
pub struct RunWriter {
    store: SegmentStore,
    /// The hash of the state's name.
    state: u64,
    sizes: RunSizes,
    /// Whole chunks that wait to be written, then the open one.
    buffer: IoBuffer,
    behind: WriteBehind,
    chunk: OpenChunk,
    partition: OpenPartition,
    run: Option<OpenRun>,
    directory: Vec<Partition>,
    builder: FilterBuilder,
    /// Where a guide is built, and a directory.
    scratch: Vec<u8>,
    ending: Ending,
    last_order: Vec<u8>,
    sealed: Vec<RunInfo>,
    unsynced: Vec<UnsyncedRun>,
    /// Partitions that are over.
    partitions: u64,
    has_failed: bool,
    built_nanos: u64,
}

/// The chunk that records go to: where it begins in the buffer, and what it has. Without records, there is none.
#[derive(Clone, Copy, Debug, Default)]
struct OpenChunk {
    at: usize,
    used: usize,
    records: u32,
}

/// What stands in the scratch and is to stand in the file. So many of its bytes were put into blocks.
#[derive(Clone, Copy, Debug)]
enum Ending {
    Nothing,
    /// The guide of the open partition.
    Guide {
        put: usize,
    },
    /// The directory of the open file.
    Directory {
        put: usize,
        digest: u32,
    },
}

/// The partition that chunks go to.
#[derive(Debug)]
struct OpenPartition {
    hashes: Vec<u64>,
    firsts: Vec<u64>,
    long: Vec<LongChunk>,
    entry: Partition,
    /// The last hash of the key groups that it is for.
    groups_end: u64,
}

/// The file that partitions go to.
#[derive(Debug)]
struct OpenRun {
    id: RunId,
    /// Bytes that are on the device, or on their way to it. What the buffer has comes behind them.
    file: Appended,
    info: RunInfo,
}

impl RunWriter {
    /// A writer of runs of the state whose name has this hash. Takes [`RunSizes::memory_bytes`], and makes no file
    /// before the first record.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] for impossible sizes.
    pub fn new(store: SegmentStore, state: u64, sizes: RunSizes) -> Result<Self> {
        sizes.check()?;
        let (hashes, chunks) = (sizes.partition_hashes, sizes.chunks_max());
        let partition = OpenPartition {
            hashes: Vec::with_capacity(hashes),
            firsts: Vec::with_capacity(chunks),
            long: Vec::with_capacity(chunks),
            entry: Partition::default(),
            groups_end: 0,
        };
        let half = sizes.half_bytes();
        Ok(Self {
            store,
            state,
            buffer: IoBuffer::zeroed(half.unwrap_or_else(|| sizes.buffer_bytes())),
            behind: WriteBehind::new(half),
            chunk: OpenChunk::default(),
            partition,
            run: None,
            directory: Vec::with_capacity(PARTITIONS_MAX),
            builder: FilterBuilder::new(hashes),
            scratch: Vec::with_capacity(sizes.scratch_bytes()),
            ending: Ending::Nothing,
            last_order: Vec::with_capacity(RunSizes::ORDER_BYTES_MAX),
            sealed: Vec::new(),
            unsynced: Vec::new(),
            partitions: 0,
            has_failed: false,
            built_nanos: 0,
            sizes,
        })
    }

    /// Adds a record, which stands behind all before in the order of hash and order, or beside the last. Cost: a copy,
    /// and for the last of a partition about 60 ns for each of its hashes.
    ///
    /// # Errors
    /// [`ErrorKind::ValueTooLarge`] for a payload that is longer than the sizes say, and nothing has changed. Those of
    /// the device: the record was not added, and the same call can be made again unless the writer
    /// [`has_failed`](RunWriter::has_failed).
    ///
    /// # Panics
    /// If the record stands before the last one.
    pub fn push(&mut self, record: RecordView<'_>) -> Result<()> {
        self.refuse(&record)?;
        self.end()?;
        self.push_checked(&record)
    }

    /// How many partitions are over.
    pub fn partitions(&self) -> u64 {
        self.partitions
    }

    /// Whether nothing more can be written.
    pub fn has_failed(&self) -> bool {
        self.has_failed
    }

    fn refuse(&self, record: &RecordView<'_>) -> Result<()> {
        if self.has_failed {
            return Err(Error::new(ErrorKind::Io, "a run could not be written before"));
        }
        let (bytes, most) = (record.payload.len(), self.sizes.payload_bytes_max);
        if bytes > most {
            let message = format!("a record of {bytes} bytes goes to a run of at most {most} each");
            return Err(Error::new(ErrorKind::ValueTooLarge, message));
        }
        assert_eq!(record.order.len(), self.sizes.order_bytes, "the order of a record");
        Ok(())
    }

    fn push_checked(&mut self, record: &RecordView<'_>) -> Result<()> {
        self.end_what_is_full(record)?;
        if self.run.is_none() {
            self.run = Some(self.begin_run(record.hash)?);
        }
        let bytes = chunk::record_bytes(record.order.len(), record.payload.len());
        if self.chunk.records == 0 {
            self.begin_chunk(bytes, record.hash)?;
        }
        let at = self.chunk.at + self.chunk.used;
        chunk::write_record(record, &mut self.buffer.as_mut_slice()[at..at + bytes]);
        self.chunk.used += bytes;
        self.chunk.records += 1;
        self.note(record);
        Ok(())
    }

    /// Ends chunk, partition and file if the record does not belong to them.
    fn end_what_is_full(&mut self, record: &RecordView<'_>) -> Result<()> {
        let entry = &self.partition.entry;
        if entry.records == 0 {
            return Ok(());
        }
        let is_late = entry.last_hash > record.hash
            || entry.last_hash == record.hash && self.last_order.as_slice() > record.order;
        assert!(!is_late, "a record of {:#x} comes late", record.hash);
        let is_other_group = record.hash > self.partition.groups_end;
        let hashes = self.partition.hashes.len();
        let is_full = hashes == self.sizes.partition_hashes && entry.last_hash != record.hash;
        if is_other_group || is_full {
            return self.end_partition();
        }
        let bytes = chunk::record_bytes(record.order.len(), record.payload.len());
        if self.chunk.records > 0 && self.chunk.used + bytes > BLOCK_BYTES {
            self.end_chunk();
            if self.partition.firsts.len() == self.sizes.chunks_max() {
                return self.end_partition();
            }
        }
        Ok(())
    }

    fn begin_run(&mut self, first_hash: u64) -> Result<OpenRun> {
        let id = RunId(self.store.next_id().0);
        let file = self.store.device().create(&id.file_name())?;
        let header = &mut self.buffer.as_mut_slice()[..BLOCK_BYTES];
        header.fill(0);
        directory::write_header(id.0, self.state, header);
        self.chunk = OpenChunk { at: BLOCK_BYTES, ..OpenChunk::default() };
        let info = RunInfo {
            id,
            bytes: 0,
            records: 0,
            marked: 0,
            first_hash,
            last_hash: first_hash,
            partitions: 0,
            guide_bytes: 0,
            longest_guide: 0,
            longest_chunk: BLOCK_BYTES as u32,
            cuts: Vec::new(),
            order_bytes: self.sizes.order_bytes as u32,
            digest: 0,
        };
        Ok(OpenRun { id, file: Appended::new(file), info })
    }

    /// Makes room in the buffer for a chunk that begins with a record of so many bytes.
    fn begin_chunk(&mut self, record_bytes: usize, hash: u64) -> Result<()> {
        let bytes = (chunk::HEADER_BYTES + record_bytes).next_multiple_of(BLOCK_BYTES);
        if self.chunk.at + bytes > self.buffer.capacity() {
            self.flush()?;
        }
        self.chunk.used = chunk::HEADER_BYTES;
        let block = (self.offset() / BLOCK_BYTES as u64) as u32;
        let OpenPartition { firsts, long, entry, groups_end, .. } = &mut self.partition;
        if firsts.is_empty() {
            *groups_end = self.sizes.last_hash_with(hash);
            *entry = Partition { first_hash: hash, block, ..Partition::default() };
        }
        if bytes > BLOCK_BYTES {
            long.push((firsts.len() as u32, (bytes / BLOCK_BYTES) as u32));
        }
        firsts.push(hash);
        Ok(())
    }

    /// Where the open chunk begins in the file.
    fn offset(&self) -> u64 {
        self.open_bytes() + self.chunk.at as u64
    }

    fn note(&mut self, record: &RecordView<'_>) {
        let OpenPartition { hashes, entry, .. } = &mut self.partition;
        if hashes.last() != Some(&record.hash) {
            hashes.push(record.hash);
        }
        entry.last_hash = record.hash;
        entry.records += 1;
        entry.marked += u32::from(record.mark != 0);
        self.last_order.clear();
        self.last_order.extend_from_slice(record.order);
    }

    fn end_chunk(&mut self) {
        let OpenChunk { at, used, records } = self.chunk;
        if records == 0 {
            return;
        }
        let (bytes, offset) = (used.next_multiple_of(BLOCK_BYTES), self.offset());
        let run = self.run.as_mut().expect("a chunk stands in a file");
        let chunk = &mut self.buffer.as_mut_slice()[at..at + bytes];
        let crc = chunk::finish((run.id.0, offset), records, used, chunk);
        run.info.longest_chunk = run.info.longest_chunk.max(bytes as u32);
        let entry = &mut self.partition.entry;
        entry.digest = crc32c::crc32c_append(entry.digest, &crc.to_le_bytes());
        entry.blocks += (bytes / BLOCK_BYTES) as u32;
        self.chunk = OpenChunk { at: at + bytes, ..OpenChunk::default() };
    }

    /// Writes what the buffer has, but for the open chunk. With two buffers it is on its way then, and what was before is
    /// written.
    fn flush(&mut self) -> Result<()> {
        let bytes = self.chunk.at;
        if bytes == 0 {
            return Ok(());
        }
        self.end_behind()?;
        let run = self.run.as_mut().expect("what is written goes to a file");
        let mut buffer = std::mem::replace(&mut self.buffer, IoBuffer::empty());
        buffer.set_len(bytes);
        let (offset, place) = (run.file.end(), (&self.store, run.file.file()));
        let crc = crc32c::crc32c_append(run.file.crc(), buffer.as_slice());
        let (buffer, done) = self.behind.write(place, offset, buffer);
        // The device keeps the one of a write that has timed out.
        self.has_failed |= buffer.capacity() == 0;
        self.buffer = buffer;
        done?;
        run.file.extend_to(offset + bytes as u64, crc);
        self.chunk.at = 0;
        Ok(())
    }

    /// Waits until what is on its way is written.
    fn end_behind(&mut self) -> Result<()> {
        let run = self.run.as_ref().expect("what is written goes to a file");
        let ended = self.behind.end((&self.store, run.file.file()));
        self.has_failed |= self.behind.is_lost();
        ended
    }

    /// Ends the partition: its guide stands behind its records.
    fn end_partition(&mut self) -> Result<()> {
        self.end_chunk();
        let place = (self.run.as_ref().expect("a partition stands in a file").id.0, self.offset());
        let OpenPartition { hashes, firsts, long, entry, .. } = &mut self.partition;
        let contents = GuideInput { hashes, firsts, long, is_wide: self.sizes.is_wide };
        let start = Instant::now();
        let built = guide::build(place, &contents, &mut self.builder, &mut self.scratch);
        self.built_nanos += nanos_since(start);
        self.has_failed |= built.is_err();
        built?;
        entry.guide_bytes = self.scratch.len() as u32;
        self.ending = Ending::Guide { put: 0 };
        self.end()
    }

    /// Writes what is to end, and all that ends with it.
    fn end(&mut self) -> Result<()> {
        loop {
            match self.ending {
                Ending::Nothing => return Ok(()),
                Ending::Guide { put } => {
                    self.put_scratch(put)?;
                    self.ending = Ending::Nothing;
                    self.leave_partition();
                }
                Ending::Directory { put, digest } => {
                    self.put_scratch(put)?;
                    self.flush()?;
                    self.end_behind()?;
                    self.sync()?;
                    self.ending = Ending::Nothing;
                    self.leave_file(digest);
                }
            }
        }
    }

    /// The partition is written. The file ends with it if it is full.
    fn leave_partition(&mut self) {
        let OpenPartition { hashes, firsts, long, entry, .. } = &mut self.partition;
        let entry = std::mem::take(entry);
        hashes.clear();
        firsts.clear();
        long.clear();
        self.add_to_directory(entry);
        if self.directory.len() == PARTITIONS_MAX || self.offset() >= self.sizes.file_bytes {
            self.begin_to_seal();
        }
    }

    fn add_to_directory(&mut self, entry: Partition) {
        self.directory.push(entry);
        self.partitions += 1;
        let info = &mut self.run.as_mut().expect("a partition stands in a file").info;
        info.records += u64::from(entry.records);
        info.marked += u64::from(entry.marked);
        info.last_hash = entry.last_hash;
        info.partitions += 1;
        info.guide_bytes += u64::from(entry.guide_bytes);
        info.longest_guide = info.longest_guide.max(entry.guide_bytes);
    }

    /// Puts the scratch into whole blocks, from a place of it on.
    fn put_scratch(&mut self, from: usize) -> Result<()> {
        for at in (from..self.scratch.len()).step_by(BLOCK_BYTES) {
            if self.chunk.at + BLOCK_BYTES > self.buffer.capacity() {
                self.flush()?;
            }
            let part = &self.scratch[at..self.scratch.len().min(at + BLOCK_BYTES)];
            let block = &mut self.buffer.as_mut_slice()[self.chunk.at..][..BLOCK_BYTES];
            block[..part.len()].copy_from_slice(part);
            block[part.len()..].fill(0);
            self.chunk.at += BLOCK_BYTES;
            if let Ending::Guide { put } | Ending::Directory { put, .. } = &mut self.ending {
                *put = at + BLOCK_BYTES;
            }
        }
        Ok(())
    }

    /// Makes directory and tail, which end the file.
    fn begin_to_seal(&mut self) {
        let (id, offset) = (self.run.as_ref().expect("a file is sealed").id, self.offset());
        let partitions = self.directory.len();
        let bytes = &mut self.scratch;
        bytes.clear();
        bytes.resize(partitions * ENTRY_BYTES, 0);
        for (entry, to) in self.directory.iter().zip(bytes.chunks_exact_mut(ENTRY_BYTES)) {
            entry.write(to);
        }
        let digest = checksum(id.0, offset, bytes);
        bytes.resize(directory::directory_bytes(partitions), 0);
        let at = bytes.len() - FRAME_BYTES;
        let tail = self.tail(offset, digest);
        tail.write(id.0, &mut self.scratch[at..]);
        self.ending = Ending::Directory { put: 0, digest };
    }

    /// Has the device keep the file, if that is not left to its owner. What failed cannot be tried again: the device
    /// may have forgotten what it did not write.
    fn sync(&mut self) -> Result<()> {
        if !self.sizes.syncs {
            return Ok(());
        }
        let run = self.run.as_ref().expect("a file is sealed");
        let (device, nothing) = (self.store.device(), IoBuffer::empty());
        let done = run_blocking(device, run.file.file(), Operation::Sync, nothing).1;
        self.has_failed |= done.is_err();
        done
    }

    fn leave_file(&mut self, digest: u32) {
        self.directory.clear();
        let run = self.run.take().expect("a file is sealed");
        self.sealed.push(RunInfo { bytes: run.file.end(), digest, ..run.info });
        if !self.sizes.syncs {
            self.unsynced.push(UnsyncedRun::new(run.id, run.file));
        }
    }

    fn tail(&self, directory_offset: u64, digest: u32) -> RunTail {
        RunTail {
            directory_offset,
            state: self.state,
            records: self.run.as_ref().map_or(0, |run| run.info.records),
            partitions: self.directory.len() as u32,
            order_bytes: self.sizes.order_bytes as u32,
            digest,
        }
    }

    /// Ends the last partition and the last file.
    ///
    /// # Errors
    /// Those of the device: the call can be made again unless the writer [`has_failed`](RunWriter::has_failed).
    pub fn finish(&mut self) -> Result<()> {
        if self.has_failed {
            return Err(Error::new(ErrorKind::Io, "a run could not be written before"));
        }
        self.end()?;
        if self.partition.entry.records > 0 {
            self.end_partition()?;
        }
        if self.run.is_some() {
            self.begin_to_seal();
        }
        self.end()
    }

    /// Runs that were sealed since the last call, in order. Their hashes do not overlap, but for one that two share.
    pub fn take_sealed(&mut self) -> Vec<RunInfo> {
        std::mem::take(&mut self.sealed)
    }

    /// The files of runs that were sealed since the last call, if they are not synced by the writer.
    pub fn take_unsynced(&mut self) -> Vec<UnsyncedRun> {
        std::mem::take(&mut self.unsynced)
    }

    /// Bytes written so far to the open file, or on their way.
    pub fn open_bytes(&self) -> u64 {
        self.run.as_ref().map_or(0, |run| run.file.end())
    }

    /// What building filters and fences took, in nanoseconds.
    pub fn built_nanos(&self) -> u64 {
        self.built_nanos
    }

    /// Removes what was written and not taken.
    ///
    /// # Errors
    /// Those of removing, after which the file is left over until the next open.
    pub fn abandon(mut self) -> Result<()> {
        // Nothing is written to a file that was removed.
        self.behind = WriteBehind::Nothing;
        let open = self.run.take().map(|run| run.id);
        let sealed = self.sealed.drain(..).map(|info| info.id);
        let ids: Vec<RunId> = sealed.chain(open).collect();
        ids.into_iter().map(|id| self.store.remove_file(&id.file_name())).fold(Ok(()), Result::and)
    }
}
