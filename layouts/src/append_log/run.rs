//! Runs: what was once the lists of a bucket in memory, sorted by the places of their keys, on storage.
//!
//! A run's blocks are in memory as their places only, unless they were read ahead.

use std::sync::Arc;

use alluvium_pagestore::block::AlignedVec;
use alluvium_pagestore::io::BLOCK_BYTES;
use alluvium_pagestore::{FooterEntry, RECORD_HEADER_BYTES, SegmentInfo, rounded};

use super::block::ListType;
use super::config::BLOCK_BYTES_MAX;
use super::frozen::FrozenBucket;
use crate::heap::hash_range::HashRange;

/// Where a block is.
#[derive(Clone, Copy, Debug)]
pub struct BlockAt {
    /// Which of the run's files.
    pub file: u32,
    /// The record, whose hash is that of the block's first key.
    pub record: FooterEntry,
}

/// A run on storage: its files and blocks, in the order of places.
#[derive(Clone, Debug)]
pub struct StoredRun {
    pub files: Vec<SegmentInfo>,
    pub blocks: Vec<BlockAt>,
}

impl StoredRun {
    /// Bytes of its blocks on storage.
    pub fn bytes(&self) -> u64 {
        self.blocks.iter().map(|block| u64::from(block.record.len)).sum()
    }

    /// Bytes of the blocks that have keys of this hash only, all but the last of them: about what a long list
    /// takes, and nothing of one that is shorter than a block. Cost: O(log n) and one look per block.
    pub fn bytes_of(&self, range: HashRange, hash: u64) -> u64 {
        let place = range.place(hash);
        let first = self.blocks.partition_point(|block| range.place(block.record.hash) < place);
        let of_hash = self.blocks[first..].iter().take_while(|block| block.record.hash == hash);
        let (bytes, last) = of_hash
            .fold((0, 0), |(bytes, last), block| (bytes + last, u64::from(block.record.len)));
        // Behind the last one of the run no other key stands.
        let is_last = self.blocks.last().is_some_and(|block| block.record.hash == hash);
        if is_last { bytes + last } else { bytes }
    }

    /// Bytes of a window that has the list of a key with this hash, about; 0 if that is shorter than a block.
    pub fn window_of(&self, range: HashRange, hash: u64) -> u64 {
        match self.bytes_of(range, hash) {
            0 => 0,
            // With headers, and a block before and behind that it may share with other keys.
            list => list + list / 16 + 2 * self.longest(),
        }
    }

    /// Bytes of its longest block.
    pub fn longest(&self) -> u64 {
        self.blocks.iter().map(|block| u64::from(block.record.len)).max().unwrap_or(0)
    }

    /// Memory to read this run with, whose lists are of this type, and whose blocks are cut at so many bytes, at least; of
    /// one with [long](is_long) blocks, beside what [one of several](StoredRun::reading_bytes_once) takes while it reads.
    pub fn reading_bytes_min(&self, list_type: &ListType, cut_bytes: usize) -> u64 {
        match is_long(self) {
            true => list_type.long_decoded_bytes(self.longest(), cut_bytes),
            false => {
                window_bytes_min(self) + list_type.decoded_bytes_max(self.longest(), cut_bytes)
            }
        }
    }

    /// What a cursor takes for a moment beside that, of several only one at a time.
    pub fn reading_bytes_once(&self) -> u64 {
        match is_long(self) {
            true => window_bytes_min(self) + self.longest(),
            false => 0,
        }
    }

    /// [`reading_bytes_min`](StoredRun::reading_bytes_min) and [`reading_bytes_once`](StoredRun::reading_bytes_once), where
    /// several cursors have their windows one after the other.
    pub fn reading_bytes_in_turns(&self, list_type: &ListType, cut_bytes: usize) -> (u64, u64) {
        let (all, once) = (self.reading_bytes_min(list_type, cut_bytes), self.reading_bytes_once());
        let window = if is_long(self) { 0 } else { window_bytes_min(self) };
        (all - window, once + window)
    }

    /// Bytes that this description takes.
    pub fn memory_bytes(&self) -> u64 {
        let blocks = self.blocks.capacity() * size_of::<BlockAt>();
        let files = self.files.capacity() * (size_of::<SegmentInfo>() + 64);
        (rounded(blocks) + rounded(files)) as u64
    }
}

/// Longer blocks than by default, with an element that is long itself.
const LONG_BYTES: u64 = BLOCK_BYTES_MAX;
/// Bytes booked for a run, but for its blocks.
pub const RUN_BYTES: u64 = 320;

/// A run's blocks, read ahead.
pub type RunBlocks = Arc<Vec<AlignedVec>>;

/// A run's blocks in memory, and what is booked for them.
#[derive(Debug)]
pub struct CachedBlocks {
    pub blocks: RunBlocks,
    pub bytes: u64,
    /// Whether anyone has read them.
    pub used: bool,
}

/// A run of one bucket: in memory, on storage, or both.
#[derive(Debug)]
pub struct ListRun {
    pub number: u64,
    /// Elements in it, cut off or not.
    pub elements: u64,
    /// Lists in it, or parts of lists; of a run that a checkpoint had as many as it has blocks.
    pub keys: u64,
    pub memory: Option<Arc<FrozenBucket>>,
    pub stored: Option<Arc<StoredRun>>,
    /// The helper writes it, or reads it ahead.
    pub busy: bool,
    /// It is small, and stays in memory until levels are merged, of which there are many.
    pub waits: bool,
    pub cached: Option<CachedBlocks>,
}

impl ListRun {
    /// A run on storage.
    pub fn on_storage(number: u64, (elements, keys): (u64, u64), stored: StoredRun) -> Self {
        let (memory, stored) = (None, Some(Arc::new(stored)));
        Self { number, elements, keys, memory, stored, busy: false, waits: false, cached: None }
    }

    /// A run in memory, of frozen lists.
    pub fn in_memory(number: u64, (elements, keys): (u64, u64), lists: Arc<FrozenBucket>) -> Self {
        let (memory, stored) = (Some(lists), None);
        Self { number, elements, keys, memory, stored, busy: false, waits: false, cached: None }
    }
}

/// Whether a run has blocks so long that several cursors do not keep a window each.
pub fn is_long(run: &StoredRun) -> bool {
    run.longest() > LONG_BYTES
}

/// A window that has room for every block of a run, wherever it begins.
pub fn window_bytes_min(run: &StoredRun) -> u64 {
    (run.longest() + RECORD_HEADER_BYTES as u64).next_multiple_of(BLOCK_BYTES as u64)
        + BLOCK_BYTES as u64
}
