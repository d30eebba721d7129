//! An open run: its directory in memory, its guides as far as memory has room, its records on storage.
//!
//! A look-up does no I/O by itself: it says what has to be read ([`GuideUse`]), so that whoever looks many hashes up
//! can have many reads under way. [`SortedRun::find`] reads and waits.
//!
//! Memory that a guide takes is booked. A guide that memory has no room for is read for each look-up that needs it: a
//! read more, and never a refusal.

use std::rc::Rc;

use alluvium_pagestore::io::{BLOCK_BYTES, Device, FileHandle, IoBuffer, Operation, run_blocking};
use alluvium_pagestore::{Account, MemoryKind, Result, SegmentStore};

use super::ahead::{ReadAhead, WantedBlocks};
use super::chunk::{self, RecordView, VerifiedChunk};
use super::directory::{
    ENTRY_BYTES, FRAME_BYTES, Partition, PartitionPlace, RunInfo, RunTail, directory_bytes,
};
use super::fetches::RunFetches;
use super::guide::Guide;
use super::unsynced::UnsyncedRun;
use super::{checksum, damaged};
use crate::support::booked::Booked;
use crate::support::prefetch_unsafe::prefetch;

/// What a look-up of a hash has to read next in a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuideUse {
    /// Nothing: the hash is not there.
    Absent,
    /// The guide, which is not in memory: so many bytes at an offset.
    Guide {
        /// Where it begins.
        offset: u64,
        /// Whole blocks.
        bytes: usize,
    },
    /// Whole chunks that have the hash, unless the filter is wrong.
    Chunks {
        /// Where they begin.
        offset: u64,
        /// Whole blocks.
        bytes: usize,
    },
}

/// What was read of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunReads {
    /// Look-ups of hashes within the run's first and last.
    pub asked: u64,
    /// Reads of chunks.
    pub chunks: u64,
    /// Of these, reads that showed no record of the hash.
    pub wrong: u64,
    /// Reads of guides.
    pub guides: u64,
}

impl RunReads {
    /// Adds what was read of another run.
    pub fn add(&mut self, other: &Self) {
        self.asked += other.asked;
        self.chunks += other.chunks;
        self.wrong += other.wrong;
        self.guides += other.guides;
    }
}

/// A sealed run that is open. Belongs to its owner's thread.
#[derive(Debug)]
pub struct SortedRun {
    store: SegmentStore,
    file: FileHandle,
    info: RunInfo,
    partitions: Vec<PartitionPlace>,
    /// Apart, so that a partition without one in memory takes little.
    guides: Vec<Option<Box<Guide>>>,
    /// What partitions and guides take.
    tables: Booked,
    guide_memory: Booked,
    /// Memory that guides leave to others.
    keep_free: u64,
    /// Bytes of the last guide that memory had no room for.
    lacked: u64,
    /// The file, if the device may not keep it yet.
    pub(super) unsynced: Option<UnsyncedRun>,
    reads: RunReads,
}

/// What [`SortedRun::find`] reads into: one for all runs of a state, kept between calls, as long as the longest read.
#[derive(Debug)]
pub struct ReadBuffer {
    buffer: IoBuffer,
    memory: Booked,
    /// What was read before it is asked for.
    pub(super) ahead: ReadAhead,
    /// The same, of look-ups that nobody waits in.
    pub(super) fetches: RunFetches,
}

/// What a look-up reads next.
#[derive(Debug)]
pub(super) enum NextRead {
    Read(WantedBlocks),
    /// Nothing: it has what it needs, or meets an error.
    Enough,
    /// Nothing of this run, which does not have the hash.
    Elsewhere,
}

impl ReadBuffer {
    /// One without memory.
    pub fn new(account: Rc<Account>) -> Self {
        let memory = Booked::none(account.clone(), MemoryKind::Tables);
        let fetches = RunFetches::new(account.clone());
        Self { buffer: IoBuffer::empty(), memory, ahead: ReadAhead::new(account), fetches }
    }

    /// Gives its memory up until it is needed, and says how many bytes that was.
    pub fn give_up(&mut self) -> u64 {
        let given = self.memory.bytes();
        self.buffer = IoBuffer::empty();
        self.memory.give_back();
        given + self.ahead.forget()
    }

    /// Makes room for a read of so many bytes, and says whether there was memory.
    fn grow(&mut self, bytes: usize) -> bool {
        let has = self.buffer.capacity();
        let grown = has >= bytes || self.memory.try_reserve_more((bytes - has) as u64);
        if grown && has < bytes {
            self.buffer = IoBuffer::zeroed(bytes);
        }
        grown
    }
}

/// Reads and verifies the directory of a run into `buffer`, which has room for it.
pub(super) fn read_directory(
    device: &dyn Device,
    file: &FileHandle,
    info: &RunInfo,
    buffer: &mut IoBuffer,
) -> Result<Vec<Partition>> {
    let bytes = directory_bytes(info.partitions as usize);
    let offset = info.bytes.checked_sub(bytes as u64);
    let short = || damaged(info.id.0, info.bytes, "a run is shorter than its directory");
    read_into(device, file, offset.ok_or_else(short)?, bytes, buffer)?;
    partitions_of(info, buffer.as_slice())
}

/// Verifies the directory of a run, with the tail: its last bytes.
pub(super) fn partitions_of(info: &RunInfo, read: &[u8]) -> Result<Vec<Partition>> {
    let (run, offset) = (info.id.0, info.bytes - read.len() as u64);
    let corrupt = |what| damaged(run, info.bytes, what);
    let tail = RunTail::read(run, info.bytes, &read[read.len() - FRAME_BYTES..])?;
    if !tail.is_of(info) {
        return Err(corrupt("the run is another one than the checkpoint names"));
    }
    let entries = &read[..info.partitions as usize * ENTRY_BYTES];
    if checksum(run, offset, entries) != tail.digest {
        return Err(corrupt("the directory of a run is damaged"));
    }
    let partitions: Vec<Partition> =
        entries.chunks_exact(ENTRY_BYTES).map(Partition::read).collect();
    let fits = |p: &Partition| p.guide_offset() + u64::from(p.guide_bytes) <= offset;
    match partitions.iter().all(fits) {
        true => Ok(partitions),
        false => Err(corrupt("the directory of a run is damaged")),
    }
}

/// What a guide of so many bytes takes in memory.
fn guide_bytes(bytes: u64) -> u64 {
    bytes + size_of::<Guide>() as u64
}

/// Reads whole blocks into a buffer that has room for them. Without the buffer, if the device keeps it.
pub(super) fn read_into(
    device: &dyn Device,
    file: &FileHandle,
    offset: u64,
    bytes: usize,
    buffer: &mut IoBuffer,
) -> Result<()> {
    let mut taken = std::mem::replace(buffer, IoBuffer::empty());
    taken.set_len(bytes);
    let (taken, done) = run_blocking(device, file, Operation::Read { offset }, taken);
    *buffer = taken;
    done
}

impl SortedRun {
    /// Opens a run: reads its directory, and no guide.
    ///
    /// # Errors
    /// [`ErrorKind::OverBudget`](alluvium_pagestore::ErrorKind::OverBudget) if the directory, 32 bytes a partition,
    /// does not fit; [`ErrorKind::Corrupt`](alluvium_pagestore::ErrorKind::Corrupt) if the file is not the run that
    /// `info` tells; those of the device.
    pub fn open(store: SegmentStore, info: RunInfo, account: &Rc<Account>) -> Result<Self> {
        let bytes = Self::directory_bytes(u64::from(info.partitions), 1);
        let tables = MemoryKind::Tables;
        let tables = Booked::reserve(account.clone(), tables, bytes, "the directory of a run")?;
        let directory = directory_bytes(info.partitions as usize);
        let entries = info.partitions as usize * size_of::<Partition>();
        let reading = Booked::reserve(
            account.clone(),
            MemoryKind::Buffers,
            (directory + entries) as u64,
            "reading the directory of a run",
        )?;
        let file = store.device().open(&info.id.file_name())?;
        let mut buffer = IoBuffer::zeroed(directory);
        let partitions = read_directory(store.device(), &file, &info, &mut buffer)?;
        let places = PartitionPlace::all(&partitions);
        drop((buffer, partitions, reading));
        let guides = places.iter().map(|_| None).collect();
        Ok(Self {
            store,
            file,
            info,
            partitions: places,
            guides,
            tables,
            guide_memory: Booked::none(account.clone(), MemoryKind::Index),
            keep_free: 0,
            lacked: 0,
            unsynced: None,
            reads: RunReads::default(),
        })
    }

    /// Bytes of the directories of so many partitions in so many runs.
    pub(super) fn directory_bytes(partitions: u64, runs: u64) -> u64 {
        let each = size_of::<PartitionPlace>() + size_of::<Option<Box<Guide>>>();
        partitions * each as u64 + runs * size_of::<Self>() as u64
    }

    /// A guide is kept in memory only if so many bytes stay free. At first none have to.
    pub fn keep_free(&mut self, bytes: u64) {
        self.keep_free = bytes;
    }

    /// A buffer for it and others of its state.
    pub fn buffer(&self) -> ReadBuffer {
        ReadBuffer::new(self.guide_memory.account().clone())
    }

    /// What a checkpoint says of it.
    pub fn info(&self) -> &RunInfo {
        &self.info
    }

    /// Has no record of a range of hashes count.
    pub(super) fn cut(&mut self, first: u64, last: u64) {
        self.info.cut(first, last);
    }

    /// What was read of it.
    pub fn reads(&self) -> RunReads {
        self.reads
    }

    /// Bytes of guides in memory, and of directories.
    pub fn memory_bytes(&self) -> (u64, u64) {
        (self.guide_memory.bytes(), self.tables.bytes())
    }

    /// Bytes of the fences among the guides in memory.
    pub fn fence_bytes(&self) -> u64 {
        self.guides.iter().flatten().map(|guide| guide.fence_bytes()).sum()
    }

    /// The partitions that a hash may be in: one, but for a hash with more records than fit one.
    pub fn partitions_of(&self, hash: u64) -> std::ops::Range<usize> {
        let end = self.partitions.len();
        match hash <= self.info.last_hash {
            true => PartitionPlace::of_hash(&self.partitions, hash),
            false => end..end,
        }
    }

    /// Bytes of the last guide that memory had no room for, since the last call.
    pub(super) fn take_lacked(&mut self) -> u64 {
        std::mem::take(&mut self.lacked)
    }

    /// Whether it may have a hash, going by the guides in memory. Reads nothing.
    pub fn may_have(&self, hash: u64) -> bool {
        self.partitions_of(hash).any(|partition| self.look(partition, hash) != GuideUse::Absent)
    }

    /// Which of the first of some hashes in order it may have, but for those that are `known` to be somewhere: a bit for
    /// each; and how many these are, at least one: those of the first one's partition. Reads its guide, if memory does not
    /// have it, and keeps it if there is room.
    pub(super) fn may_have_in_order(
        &mut self,
        hashes: &[u64],
        known: u64,
        into: &mut ReadBuffer,
    ) -> (u64, usize) {
        let partitions = self.partitions_of(hashes[0]);
        if partitions.len() != 1 {
            return (u64::from(!partitions.is_empty()), 1);
        }
        let partition = partitions.start;
        self.bring_guide(partition, into);
        let next = self.partitions.get(partition + 1).map(|place| place.first_hash);
        let is_of_it = |hash: u64| {
            let is_before = next.is_none_or(|next| hash < next);
            is_before && hash <= self.info.last_hash && !self.info.is_cut(hash)
        };
        let count = hashes.iter().take_while(|hash| is_of_it(**hash)).count().max(1);
        (self.may_have_each(partition, &hashes[..count], known), count)
    }

    /// Which of up to 64 hashes a partition may have: a bit for each.
    fn may_have_each(&self, partition: usize, hashes: &[u64], known: u64) -> u64 {
        let Some(guide) = &self.guides[partition] else {
            return u64::MAX >> (u64::BITS as usize - hashes.len());
        };
        let mut there = 0;
        for (nth, hash) in hashes.iter().enumerate().filter(|(nth, _)| known >> nth & 1 == 0) {
            there |= u64::from(guide.may_have(*hash)) << nth;
        }
        there
    }

    /// Reads the guide of a partition, if memory does not have it, and keeps it if there is room. What fails is left to the
    /// look-up that needs it.
    fn bring_guide(&mut self, partition: usize, into: &mut ReadBuffer) {
        if self.guides[partition].is_some() {
            return;
        }
        let place = &self.partitions[partition];
        let (offset, bytes) = (place.guide_offset(), place.guide_bytes as usize);
        if self.read(offset, bytes.next_multiple_of(BLOCK_BYTES), into).is_ok() {
            let _ = self.take_guide(partition, into.buffer.as_slice(), 0);
        }
    }

    /// Hints the processor to load what [`prefetch`](SortedRun::prefetch) reads.
    pub(super) fn prefetch_guide(&self, partition: usize) {
        self.guides[partition].iter().for_each(|guide| prefetch(&raw const **guide));
    }

    /// Hints the processor to load what [`look`](SortedRun::look) reads of a partition.
    pub(super) fn prefetch(&self, partition: usize, hash: u64) {
        self.guides[partition].iter().for_each(|guide| guide.prefetch(hash));
    }

    /// What a look-up of a hash has to read in a partition. Cost: about 100 ns.
    pub fn look(&self, partition: usize, hash: u64) -> GuideUse {
        match &self.guides[partition] {
            Some(guide) => self.led_by(guide, partition, hash),
            None => {
                let bytes = self.partitions[partition].guide_bytes as usize;
                let offset = self.partitions[partition].guide_offset();
                GuideUse::Guide { offset, bytes: bytes.next_multiple_of(BLOCK_BYTES) }
            }
        }
    }

    fn led_by<B: AsRef<[u8]>>(&self, guide: &Guide<B>, partition: usize, hash: u64) -> GuideUse {
        let blocks = guide.blocks_of(hash);
        if blocks.is_empty() {
            return GuideUse::Absent;
        }
        let offset =
            self.partitions[partition].offset() + u64::from(blocks.start) * BLOCK_BYTES as u64;
        GuideUse::Chunks { offset, bytes: blocks.len() * BLOCK_BYTES }
    }

    /// Verifies a guide that was read, says what it leads a hash to, and keeps it if memory has room.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`](alluvium_pagestore::ErrorKind::Corrupt) if these are not the bytes that were written.
    pub fn take_guide(&mut self, partition: usize, bytes: &[u8], hash: u64) -> Result<GuideUse> {
        let entry = &self.partitions[partition];
        let place = (self.info.id.0, entry.guide_offset());
        let guide = Guide::verified(place, &bytes[..entry.guide_bytes as usize])?;
        self.reads.guides += 1;
        let leads_to = self.led_by(&guide, partition, hash);
        let takes = guide_bytes(guide.bytes());
        let has_room = self.guide_memory.account().available() >= self.keep_free + takes;
        if has_room && self.guides[partition].is_none() && self.guide_memory.try_reserve_more(takes)
        {
            self.guides[partition] = Some(Box::new(guide.owned()));
        } else {
            self.lacked = takes;
        }
        Ok(leads_to)
    }

    /// Shows the records of a hash among chunks that were read, in order, until `visit` says that it has seen enough.
    /// Says whether it did.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`](alluvium_pagestore::ErrorKind::Corrupt) if these are not the bytes that were written;
    /// those of `visit`.
    pub fn show(
        &mut self,
        offset: u64,
        bytes: &[u8],
        hash: u64,
        visit: &mut dyn FnMut(RecordView<'_>) -> Result<bool>,
    ) -> Result<bool> {
        self.reads.chunks += 1;
        let mut found = false;
        let is_enough = self.show_all(offset, bytes, hash, &mut |record| {
            found = true;
            visit(record)
        })?;
        self.reads.wrong += u64::from(!found);
        Ok(is_enough)
    }

    fn show_all(
        &self,
        offset: u64,
        bytes: &[u8],
        hash: u64,
        visit: &mut dyn FnMut(RecordView<'_>) -> Result<bool>,
    ) -> Result<bool> {
        let (run, order_bytes) = (self.info.id.0, self.info.order_bytes as usize);
        let mut at = 0;
        while at < bytes.len() {
            let place = (run, offset + at as u64);
            let end = at + chunk::told_bytes(place, &bytes[at..])?;
            let chunk = bytes.get(at..end);
            let chunk =
                chunk.ok_or_else(|| damaged(run, place.1, "a chunk of a run is damaged"))?;
            let verified = VerifiedChunk::verified(place, chunk)?;
            for record in verified.records(chunk, order_bytes).filter(|one| one.hash == hash) {
                if visit(record)? {
                    return Ok(true);
                }
            }
            at = end;
        }
        Ok(false)
    }

    /// Reads the records of a hash, in order, until `visit` says that it has seen enough, and says whether it did.
    /// Waits for the device: one aligned read for a hash that is there, and one more for a guide that is not in
    /// memory.
    ///
    /// # Errors
    /// [`ErrorKind::OverBudget`](alluvium_pagestore::ErrorKind::OverBudget) if what is to be read at once does not
    /// fit; those of [`show`](SortedRun::show) and of the device.
    pub fn find(
        &mut self,
        hash: u64,
        into: &mut ReadBuffer,
        visit: &mut dyn FnMut(RecordView<'_>) -> Result<bool>,
    ) -> Result<bool> {
        for partition in self.partitions_of(hash) {
            self.reads.asked += 1;
            let mut leads_to = self.look(partition, hash);
            if let GuideUse::Guide { offset, bytes } = leads_to {
                self.read(offset, bytes, into)?;
                leads_to = self.take_guide(partition, into.buffer.as_slice(), hash)?;
            }
            if let GuideUse::Chunks { offset, bytes } = leads_to {
                self.read(offset, bytes, into)?;
                if self.show(offset, into.buffer.as_slice(), hash, visit)? {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// What a look-up of a hash reads first, if anything.
    pub(super) fn wanted(&self, hash: u64) -> Option<WantedBlocks> {
        match self.next_wanted(hash, &|_, _| None) {
            NextRead::Read(wanted) => Some(wanted),
            NextRead::Enough | NextRead::Elsewhere => None,
        }
    }

    /// What a look-up of a hash reads next, which has `read` some places before.
    pub(super) fn next_wanted<'a>(
        &self,
        hash: u64,
        read: &dyn Fn(u64, usize) -> Option<&'a [u8]>,
    ) -> NextRead {
        let wanted = |offset, bytes| {
            NextRead::Read(WantedBlocks {
                run: self.info.id,
                file: self.file.clone(),
                offset,
                bytes,
            })
        };
        for partition in self.partitions_of(hash) {
            let mut leads_to = self.look(partition, hash);
            if let GuideUse::Guide { offset, bytes } = leads_to {
                let Some(guide) = read(offset, bytes) else { return wanted(offset, bytes) };
                let entry = &self.partitions[partition];
                let place = (self.info.id.0, entry.guide_offset());
                let guide = Guide::verified(place, &guide[..entry.guide_bytes as usize]);
                let Ok(guide) = guide else { return NextRead::Enough };
                leads_to = self.led_by(&guide, partition, hash);
            }
            if let GuideUse::Chunks { offset, bytes } = leads_to {
                let Some(chunks) = read(offset, bytes) else { return wanted(offset, bytes) };
                // Of a damaged one the look-up is told.
                if self.show_all(offset, chunks, hash, &mut |_| Ok(true)).unwrap_or(true) {
                    return NextRead::Enough;
                }
            }
        }
        NextRead::Elsewhere
    }

    /// Reads whole blocks, unless they were read ahead. Guides make room for them, if need be.
    fn read(&mut self, offset: u64, bytes: usize, into: &mut ReadBuffer) -> Result<()> {
        if !into.grow(bytes) {
            self.give_up(bytes as u64);
            if !into.grow(bytes) {
                let account = self.guide_memory.account();
                return Err(account.over_budget(bytes as u64, "reading a run"));
            }
        }
        let read = into.ahead.find(self.info.id, offset, bytes);
        let read = read.or_else(|| into.fetches.find(self.info.id, offset, bytes));
        if let Some(read) = read {
            into.buffer.set_len(bytes);
            into.buffer.as_mut_slice().copy_from_slice(read);
            return Ok(());
        }
        let done = read_into(self.store.device(), &self.file, offset, bytes, &mut into.buffer);
        if into.buffer.capacity() == 0 {
            // The device keeps it, and books it there.
            into.memory.give_back();
        }
        done
    }

    /// Gives up guides in memory until so many bytes are free. They are read again when they are needed. Says how many
    /// bytes were given up.
    pub fn give_up(&mut self, bytes: u64) -> u64 {
        let mut given = 0;
        for guide in &mut self.guides {
            if given >= bytes {
                break;
            }
            given += guide.take().map_or(0, |guide| guide_bytes(guide.bytes()));
        }
        self.guide_memory.give_some_back(given);
        given
    }

    /// Removes the file: now, or when the last checkpoint that names it is dropped.
    ///
    /// # Errors
    /// Those of removing. The file is then left over until the next open.
    pub fn remove(self) -> Result<()> {
        self.store.remove_file(&self.info.id.file_name())
    }
}
