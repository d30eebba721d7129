//! What moves and merges take, by the memory that there is for them.
//!
//! A state that has its store for itself has all of the memory. One of several has what it holds and what is free: so
//! four that fill a store evenly work as each would in a fourth of it. Both change, and so do the sizes, each time that
//! a move or merge begins.

use std::rc::Rc;

use alluvium_pagestore::{Account, FooterEntry, KIB, MIB};

use super::batch::ColdBatch;
use super::moving::ColdMove;
use super::{DIRECTORY_BYTES, PAYLOAD_MAX};
use crate::contract::table::StateContext;
use crate::hybrid_log::config::{COLD_RUNS_MEMORY_MIN, LogSizes};
use crate::runs::{MERGED_MAX, MergeSizes, RunSizes};

/// With so much memory records move while a helper merges: there is room for both.
const OVERLAP_MEMORY_MIN: u64 = 16 * MIB;
/// With so much memory filters of all levels but the oldest may have two bytes a slot.
const WIDE_MEMORY_MIN: u64 = 4 * MIB;
/// Bytes at most of a write of runs, of a read of segments by a move, and of a read of runs by a merge.
const WRITE_BYTES_MAX: u64 = 512 * KIB;
const WINDOW_BYTES_MAX: u64 = 512 * KIB;
const READ_BYTES_MAX: u64 = 256 * KIB;

/// What the sizes depend on beside memory.
#[derive(Clone, Copy, Debug)]
pub struct SizeInputs {
    /// Bytes of a payload, as a rule.
    payload_bytes: usize,
    /// An image of a page.
    image_bytes: u64,
    /// The log's own window.
    window_bytes: usize,
    pub page_records: usize,
    key_groups: u16,
    /// Whether a helper has a thread.
    has_thread: bool,
    /// Whether it has the little memory of tests.
    is_test: bool,
    /// Hashes of a partition, in tests.
    partition_hashes: Option<usize>,
}

impl SizeInputs {
    pub fn new(context: &StateContext, sizes: &LogSizes, payload_bytes: usize) -> Self {
        Self {
            payload_bytes,
            image_bytes: 2 * sizes.frame_bytes,
            window_bytes: sizes.window_bytes,
            page_records: sizes.page_records as usize,
            key_groups: context.key_groups,
            has_thread: !context.helper.is_inline(),
            is_test: sizes.cold_entries.is_some(),
            partition_hashes: sizes.partition_hashes,
        }
    }

    /// The sizes in so much memory.
    pub fn within(&self, memory: u64) -> WorkSizes {
        let is_test = self.is_test;
        let batch_memory = if is_test { 8 * KIB } else { (memory / 8).clamp(64 * KIB, 64 * MIB) };
        let (batch_bytes, batch_records) = ColdBatch::within(batch_memory, self.payload_bytes);
        let run_memory = if is_test { 8 * KIB } else { (memory / 32).clamp(32 * KIB, 512 * KIB) };
        let mut runs = RunSizes::within(run_memory, PAYLOAD_MAX, self.key_groups);
        runs.partition_hashes = self.partition_hashes.unwrap_or(runs.partition_hashes);
        // Requests cost time each: in much memory they are long.
        runs.is_wide = !is_test && memory >= WIDE_MEMORY_MIN;
        runs.write_bytes = runs.write_bytes.max((memory / 256).min(WRITE_BYTES_MAX) as usize);
        // An image of a page is read in one go.
        let window_bytes = (memory / 256).max(self.image_bytes).min(WINDOW_BYTES_MAX) as usize;
        let read_bytes = (memory / 128).clamp(8 * KIB, 64 * KIB).max(memory / 1024);
        WorkSizes {
            memory,
            runs,
            batch_bytes: batch_bytes.max(PAYLOAD_MAX),
            batch_records,
            window_bytes: self.window_bytes.max(window_bytes),
            page_records: self.page_records,
            read_bytes: read_bytes.min(READ_BYTES_MAX) as usize,
            overlaps: self.has_thread && memory >= OVERLAP_MEMORY_MIN && !is_test,
        }
    }
}

/// What moves and merges take.
#[derive(Clone, Copy, Debug)]
pub struct WorkSizes {
    /// The memory that these are the sizes for.
    pub memory: u64,
    pub runs: RunSizes,
    /// Bytes of records that move at once, and how many at most.
    pub batch_bytes: usize,
    pub batch_records: usize,
    /// For segments that are read.
    pub window_bytes: usize,
    pub page_records: usize,
    /// Read at once from each level by merges and scans.
    pub read_bytes: usize,
    /// Whether records move while a helper merges.
    pub overlaps: bool,
}

impl WorkSizes {
    /// Bytes that moving records, or merging levels whose longest read is so long, takes.
    pub fn bytes(&self, longest_read: u64) -> u64 {
        match self.overlaps {
            true => self.move_bytes() + self.merge_bytes(longest_read) + DIRECTORY_BYTES,
            false => self.alone_bytes(longest_read),
        }
    }

    /// The same where one of the two is done at a time.
    pub fn alone_bytes(&self, longest_read: u64) -> u64 {
        self.move_bytes().max(self.merge_bytes(longest_read)) + DIRECTORY_BYTES
    }

    /// Bytes that moving records takes.
    pub fn move_bytes(&self) -> u64 {
        let entries = self.page_records * size_of::<FooterEntry>();
        let batch = ColdBatch::memory_bytes(self.batch_bytes, self.batch_records);
        batch
            + self.runs.memory_bytes()
            + (size_of::<ColdMove>() + self.window_bytes + entries) as u64
    }

    /// Bytes that merging levels takes.
    fn merge_bytes(&self, longest_read: u64) -> u64 {
        self.runs.memory_bytes() + MERGED_MAX as u64 * self.level_bytes() + longest_read
    }

    /// Bytes that a merge takes for each level: what it reads, and a group of equal records.
    fn level_bytes(&self) -> u64 {
        let group = MergeSizes::group_bytes_each() + RunSizes::directory_bytes_max();
        (2 * self.read_bytes).max(PAYLOAD_MAX + 4096) as u64 + group
    }

    /// The tombstones that there is room for.
    pub fn graves_max(&self) -> usize {
        (self.memory / 4096).clamp(64, 1 << 14) as usize
    }
}

/// The memory of a state: what it holds, and what is free for it.
pub fn own_memory(account: &Rc<Account>) -> u64 {
    (account.used() + account.available()).clamp(least_memory(account), account.limit())
}

/// The memory of which work is to do with the sizes, at least.
pub fn least_memory(account: &Rc<Account>) -> u64 {
    COLD_RUNS_MEMORY_MIN.min(account.limit())
}
