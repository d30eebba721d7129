//! Reading a run whose bytes are all in memory, for instance a mapped file, structure by structure.
//!
//! A [`SortedRunCursor`](super::SortedRunCursor) stops at the first damage, as a store must. This tells damage, passes it over, and goes on
//! with the next chunk that is sound. Without a sound directory it finds chunks by their checksums, which no other place
//! has.
//!
//! What it keeps true: no record is shown of a chunk that is not as it was written, or of another run than the checkpoint
//! names. What is passed over is told where it stands among the records. No bytes make it panic.

use std::collections::VecDeque;
use std::ops::Range;

use alluvium_pagestore::io::BLOCK_BYTES;
use alluvium_pagestore::{Error, ErrorKind, Result};

use super::chunk::{self, RecordView, VerifiedChunk};
use super::damaged;
use super::directory::{
    FRAME_BYTES, Partition, RunInfo, RunTail, check_header, directory_bytes, state_of_header,
};
use super::guide::Guide;
use super::run::partitions_of;
use super::u32_at;

/// A run in memory: an iterator over its records, in order, and over what is damaged between them. It does not know of
/// cuts.
#[derive(Debug)]
pub struct WholeRun<'b> {
    run: u64,
    order_bytes: usize,
    bytes: &'b [u8],
    /// Where chunks stand: partitions, or all of it, if the directory is damaged.
    regions: VecDeque<BlockRegion>,
    /// The next block of the region that is read.
    at: usize,
    is_stretch: bool,
    chunk: Option<(VerifiedChunk, &'b [u8])>,
    record_at: usize,
    last_hash: u64,
    damage: VecDeque<Error>,
}

/// A stretch of blocks.
#[derive(Debug)]
struct BlockRegion {
    blocks: Range<usize>,
    /// None of a stretch that has guides as well.
    partition: Option<Partition>,
}

impl<'b> WholeRun<'b> {
    /// The run that `info` tells, of the state whose name has this hash. `bytes` are its file's.
    pub fn open(info: &RunInfo, state: u64, bytes: &'b [u8]) -> Self {
        let mut whole = Self {
            run: info.id.0,
            order_bytes: info.order_bytes as usize,
            bytes,
            regions: VecDeque::new(),
            at: 0,
            is_stretch: false,
            chunk: None,
            record_at: 0,
            last_hash: 0,
            damage: VecDeque::new(),
        };
        if let Err(error) = whole.look(info, state) {
            whole.damage.push_back(error);
            whole.regions.clear();
        }
        whole.at = whole.regions.front().map_or(0, |region| region.blocks.start);
        whole
    }

    /// Looks at header, tail and directory.
    ///
    /// # Errors
    /// If none of its records is to be shown.
    fn look(&mut self, info: &RunInfo, state: u64) -> Result<()> {
        let there = self.bytes.len() as u64;
        if there != info.bytes {
            let what = format!("the file has {there} bytes, {} were written", info.bytes);
            self.damage.push_back(damaged(self.run, there.min(info.bytes), &what));
        }
        let header = self.bytes.get(..FRAME_BYTES);
        let header = header.ok_or_else(|| damaged(self.run, 0, "a run has no header"))?;
        let found = check_header(self.run, header).map(|()| state_of_header(header));
        match found {
            Ok(found) if found != state => return Err(self.is_other(0)),
            Err(error) if error.kind() == ErrorKind::FormatVersion => return Err(error),
            Err(error) => self.damage.push_back(error),
            Ok(_) => {}
        }
        let length = directory_bytes(info.partitions as usize) as u64;
        let start = info.bytes.checked_sub(length).map(|start| start as usize);
        let start = start.ok_or_else(|| self.is_other(info.bytes))?;
        let directory = self.bytes.get(start..info.bytes as usize);
        if let Some(directory) = directory {
            let tail = &directory[directory.len() - FRAME_BYTES..];
            match RunTail::read(self.run, info.bytes, tail) {
                Ok(tail) if tail.state != state || !tail.is_of(info) => {
                    return Err(self.is_other(info.bytes - FRAME_BYTES as u64));
                }
                Err(error) if error.kind() == ErrorKind::FormatVersion => return Err(error),
                _ => {}
            }
        }
        let missing = || damaged(self.run, start as u64, "a run is shorter than its directory");
        match directory.ok_or_else(missing).and_then(|bytes| partitions_of(info, bytes)) {
            Ok(partitions) => self.regions = partitions.into_iter().map(BlockRegion::of).collect(),
            Err(error) => {
                self.damage.push_back(error);
                let blocks = BLOCK_BYTES..start.max(BLOCK_BYTES);
                self.regions.push_back(BlockRegion { blocks, partition: None });
            }
        }
        Ok(())
    }

    fn is_other(&self, offset: u64) -> Error {
        damaged(self.run, offset, "the run is another one than the checkpoint names")
    }

    /// Passes partitions over that have only hashes below this one, as far as the directory tells. Before the first
    /// record.
    pub fn skip_to(&mut self, hash: u64) {
        let is_below = |region: &BlockRegion| region.partition.is_some_and(|p| p.last_hash < hash);
        while self.regions.front().is_some_and(is_below) {
            self.regions.pop_front();
        }
        self.at = self.regions.front().map_or(0, |region| region.blocks.start);
    }

    /// The next record of the chunk at hand.
    fn next_record(&mut self) -> Option<RecordView<'b>> {
        let (chunk, bytes) = self.chunk?;
        match chunk.record_at(bytes, self.record_at, self.order_bytes) {
            Some((record, next)) => {
                self.record_at = next;
                self.last_hash = record.hash;
                Some(record)
            }
            None => {
                self.chunk = None;
                None
            }
        }
    }

    /// Goes to the next chunk that is sound, up to the next damage. Says whether there was either.
    fn next_chunk(&mut self) -> bool {
        loop {
            let Some(region) = self.regions.front() else { return false };
            let (end, partition) = (region.blocks.end, region.partition);
            if self.at >= end {
                self.is_stretch = false;
                self.regions.pop_front();
                self.at = self.regions.front().map_or(0, |region| region.blocks.start);
                continue;
            }
            if partition.is_some_and(|one| one.offset() as usize == self.at && self.is_foreign(one))
            {
                let offset = self.at as u64;
                self.damage.push_back(damaged(
                    self.run,
                    offset,
                    "chunks of a partition are missing, or others",
                ));
                self.at = end;
                return true;
            }
            if let Some((chunk, bytes)) = self.chunk_at(self.at, end) {
                let first = chunk.record_at(bytes, chunk::HEADER_BYTES, self.order_bytes);
                if first.is_none_or(|(first, _)| first.hash >= self.last_hash) {
                    (self.chunk, self.record_at) = (Some((chunk, bytes)), chunk::HEADER_BYTES);
                    self.at += bytes.len();
                    self.is_stretch = false;
                    return true;
                }
            } else if let Some(bytes) = self.guide_at(self.at, end).filter(|_| partition.is_none())
            {
                self.at += bytes;
                self.is_stretch = false;
                continue;
            }
            let (offset, is_new) = (self.at as u64, !self.is_stretch);
            self.is_stretch = true;
            self.at += BLOCK_BYTES;
            if is_new {
                self.damage.push_back(damaged(self.run, offset, "a chunk of a run is damaged"));
                return true;
            }
        }
    }

    /// The verified chunk that begins at a place.
    fn chunk_at(&self, at: usize, end: usize) -> Option<(VerifiedChunk, &'b [u8])> {
        let place = (self.run, at as u64);
        let block = self.bytes.get(at..at + BLOCK_BYTES)?;
        let bytes = chunk::told_bytes(place, block).ok()?;
        let bytes = self.bytes.get(at..at.checked_add(bytes).filter(|to| *to <= end)?)?;
        Some((VerifiedChunk::verified(place, bytes).ok()?, bytes))
    }

    /// Bytes in whole blocks of the guide that begins at a place.
    fn guide_at(&self, at: usize, end: usize) -> Option<usize> {
        let length = u32_at(self.bytes.get(at..at + BLOCK_BYTES)?, 4) as usize;
        let bytes = self.bytes.get(at..at.checked_add(length).filter(|to| *to <= end)?)?;
        let guide = Guide::verified((self.run, at as u64), bytes).ok()?;
        Some((guide.bytes() as usize).next_multiple_of(BLOCK_BYTES))
    }

    /// Whether all chunks of a partition are sound, and not those that the directory tells.
    fn is_foreign(&self, partition: Partition) -> bool {
        let (mut at, end) = (partition.offset() as usize, partition.guide_offset() as usize);
        let mut digest = 0;
        while at < end {
            let Some((chunk, bytes)) = self.chunk_at(at, end) else { return false };
            digest = crc32c::crc32c_append(digest, &chunk.crc.to_le_bytes());
            at += bytes.len();
        }
        digest != partition.digest
    }
}

impl BlockRegion {
    /// The chunks of a partition.
    fn of(partition: Partition) -> Self {
        let blocks = partition.offset() as usize..partition.guide_offset() as usize;
        Self { blocks, partition: Some(partition) }
    }
}

impl<'b> Iterator for WholeRun<'b> {
    type Item = Result<RecordView<'b>>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(record) = self.next_record() {
                return Some(Ok(record));
            }
            if let Some(error) = self.damage.pop_front() {
                return Some(Err(error));
            }
            if !self.next_chunk() {
                return None;
            }
        }
    }
}

/// The guides of a run in memory: they tell which hashes it does not have, also where chunks are damaged.
#[derive(Debug)]
pub struct WholeGuides<'b> {
    run: u64,
    bytes: &'b [u8],
    partitions: Vec<Partition>,
    /// The guide that was asked last, and its partition; none if it is damaged.
    asked: Option<(usize, Option<Guide<&'b [u8]>>)>,
}

impl<'b> WholeGuides<'b> {
    /// Those of the run that `info` tells; `bytes` are its file's. `None` if its directory is damaged.
    pub fn open(info: &RunInfo, bytes: &'b [u8]) -> Option<Self> {
        let start = info.bytes.checked_sub(directory_bytes(info.partitions as usize) as u64)?;
        let directory = bytes.get(start as usize..info.bytes as usize)?;
        let partitions = partitions_of(info, directory).ok()?;
        Some(Self { run: info.id.0, bytes, partitions, asked: None })
    }

    /// Whether the run may have a record of a hash. Cost: that of verifying a guide, for the first hash of a partition.
    pub fn may_have(&mut self, hash: u64) -> bool {
        let first = self.partitions.partition_point(|one| one.last_hash < hash);
        let is_in = |one: &Partition| one.first_hash <= hash;
        let count = self.partitions[first..].iter().take_while(|one| is_in(one)).count();
        (first..first + count).any(|partition| self.may_have_in(partition, hash))
    }

    fn may_have_in(&mut self, partition: usize, hash: u64) -> bool {
        if self.asked.as_ref().is_none_or(|(asked, _)| *asked != partition) {
            let entry = &self.partitions[partition];
            let start = entry.guide_offset() as usize;
            let bytes = self.bytes.get(start..start + entry.guide_bytes as usize);
            let guide = bytes.and_then(|b| Guide::verified((self.run, start as u64), b).ok());
            self.asked = Some((partition, guide));
        }
        match &self.asked {
            Some((_, Some(guide))) => !guide.blocks_of(hash).is_empty(),
            _ => true,
        }
    }
}
