//! Options of a hybrid log, and the sizes computed from its memory.

use alluvium_pagestore::{
    ByteSize, Death, Error, ErrorKind, FooterEntry, LiveSet, MIB, Result, SegmentWriter,
    UNSPLIT_BYTES, io::BLOCK_BYTES,
};
use serde::{Deserialize, Serialize};
use std::time::Duration;

use super::fetches::RecordFetches;
use super::frame_unsafe::Frame;
use super::frames_unsafe::Frames;
use super::index::Index;
use super::log::{COPIES_MIN, CopyFrame, SPARES_MIN, WANT_FREE_MIN};
use super::spill::DeathSpill;
use crate::support::record_type_unsafe::RecordType;

/// Keeps a state in a hash-indexed hybrid log: native records in pages, updated in place, and the
/// oldest pages on storage.
///
/// Use it for state that grows or exceeds its memory, and where a growing hash table must not stall
/// calls. Small state belongs on the [heap](crate::Heap).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct HybridLog {
    memory: Option<ByteSize>,
    page: Option<ByteSize>,
    page_records: Option<u32>,
    segment: Option<ByteSize>,
    queue_depth: Option<usize>,
    cooling_percent: Option<u8>,
    hash_bits: Option<u32>,
    patience_ms: Option<u64>,
    checkpoint_pace: Option<u32>,
    generations: Option<u32>,
    cold_runs: Option<ColdRuns>,
    #[serde(skip)]
    cold_entries: Option<u64>,
    #[serde(skip)]
    joins_always: bool,
    #[serde(skip)]
    partition_hashes: Option<usize>,
    #[serde(skip)]
    index_percent: Option<u64>,
}

/// When records that stay cold move to sorted runs: `true`, `false` or `"automatic"` in a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
enum ColdRuns {
    Always(bool),
    When(When),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum When {
    Automatic,
}

/// Smallest page size chosen by default, in bytes.
pub const PAGE_BYTES_MIN: u64 = 4096;
/// Largest page size chosen by default, in bytes.
pub const PAGE_BYTES_MAX: u64 = 64 << 10;
/// Default number of cold reads in flight at once; fewer in little memory.
pub const QUEUE_DEPTH: usize = 64;
/// Default percentage of the unsealed pages whose records move to the tail when they change.
pub const COOLING_PERCENT: u8 = 15;
/// Default number of keys that the stream reads or writes per record that a checkpoint writes.
pub const CHECKPOINT_PACE: u32 = 96;
/// Default number of segment generations.
pub const GENERATIONS: u32 = 1;
/// Smallest memory of a state in which records move to sorted runs.
pub const COLD_RUNS_MEMORY_MIN: u64 = 1 << 20;
/// The least memory of a state whose records move to sorted runs though nothing was said of that: in less, what moves take
/// is a quarter of it.
pub(in crate::hybrid_log) const BY_THEMSELVES_MIN: u64 = 16 << 20;
/// Largest number of segment generations.
const GENERATIONS_MAX: u32 = 2;
/// A segment of the old generation ends after as many images as such a part of memory has room for
/// what is known of, between these.
const OLD_IMAGES_SHARE: u64 = 128;
const OLD_IMAGES_MIN: u64 = 16;
const OLD_IMAGES_MAX: u64 = 1024;
/// A page is left, full or not, when the heap of its entries passes so many times its own bytes.
const FRAME_HEAP_MAX: u64 = 4;
/// Default time that a call waits for storage.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// Memory kept for the table of segments, at least: that of some 50 segments.
const SEGMENT_TABLE_BYTES_MIN: u64 = 13 << 10;
/// Least number of frames that a table works with: filling, cooling, being written, being recycled.
pub const FRAMES_MIN: u64 = 5;
/// Bytes of a death in a checkpoint, with its part of its segment's head.
const DEATH_WRITTEN_BYTES: usize = 8;

impl HybridLog {
    /// Creates a hybrid log with default options.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the most memory that this state may take, in bytes. Default: the store's memory.
    /// Without a limit the log leaves 1/32 of the store's memory to other states, and gives up
    /// pages as they take more.
    #[must_use]
    pub fn memory(mut self, bytes: u64) -> Self {
        self.memory = Some(ByteSize(bytes));
        self
    }

    /// Sets the bytes of a page in memory. Larger pages make fewer and longer writes; smaller pages
    /// make better use of little memory. Default: 1/64 of the memory, rounded down to a power of
    /// two, between [`PAGE_BYTES_MIN`] and [`PAGE_BYTES_MAX`].
    #[must_use]
    pub fn page(mut self, bytes: u64) -> Self {
        self.page = Some(ByteSize(bytes));
        self
    }

    /// Sets the records per page, instead of its bytes: for tests with tiny pages.
    #[must_use]
    pub fn page_records(mut self, records: u32) -> Self {
        self.page_records = Some(records);
        self
    }

    /// Sets the bytes of a segment file. Larger segments make fewer files; smaller ones free space
    /// sooner. Each file takes about 250 bytes of memory. Default: 1/8 of the memory, between 256
    /// KiB and 16 MiB. Largest: 16 MiB.
    #[must_use]
    pub fn segment(mut self, bytes: u64) -> Self {
        self.segment = Some(ByteSize(bytes));
        self
    }

    /// Sets the number of cold reads of a batch in flight at once. Default: [`QUEUE_DEPTH`], fewer
    /// in little memory.
    #[must_use]
    pub fn queue_depth(mut self, reads: usize) -> Self {
        self.queue_depth = Some(reads);
        self
    }

    /// Sets the percentage of the unsealed pages, the oldest ones, whose records move to the tail
    /// when they change. Hot records thus avoid being written. Takes effect only while memory is
    /// short. Default: [`COOLING_PERCENT`].
    #[must_use]
    pub fn cooling_percent(mut self, percent: u8) -> Self {
        self.cooling_percent = Some(percent);
        self
    }

    /// Sets how long a call waits for storage before it fails with [`ErrorKind::Backpressure`]. A
    /// call that needs memory waits for storage to complete writes; a call that reads a record
    /// waits while storage makes no progress at all. A longer time rides out slower storage; a
    /// shorter one tells the caller sooner. The call can be retried either way. In whole
    /// milliseconds; `patience-ms` in a configuration file. Default: [`PATIENCE`].
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience_ms = Some(u64::try_from(patience.as_millis()).unwrap_or(u64::MAX));
        self
    }

    /// Sets the number of keys that the stream reads or writes per record that a stepwise
    /// checkpoint writes meanwhile. More keys slow the stream less and make the checkpoint longer.
    /// 0 writes at the speed of storage, as every checkpoint does once half of the last interval
    /// between checkpoints has elapsed. A checkpoint does not wait for an idle stream. Records
    /// whose values own heap do not wait either. Default: [`CHECKPOINT_PACE`].
    #[must_use]
    pub fn checkpoint_pace(mut self, keys: u32) -> Self {
        self.checkpoint_pace = Some(keys);
        self
    }

    /// Sets the number of segment generations, 1 or 2. With 2, compaction copies records to
    /// segments of an old generation, apart from the segment that takes new records. Records that
    /// outlived one segment tend to outlive the next, and are copied less often.
    ///
    /// This writes less where few keys take nearly all updates and memory cannot hold even these.
    /// If memory holds them, updates on storage are uniform and nothing is gained. Costs: a second
    /// writer of 1/64 of the memory, between 10 and 208 KiB, plus the footer of a page; a second
    /// open segment; a second file to sync in each checkpoint after a copy. Opening fails with
    /// [`ErrorKind::Config`] for any other number. Default: [`GENERATIONS`].
    #[must_use]
    pub fn generations(mut self, generations: u32) -> Self {
        self.generations = Some(generations);
        self
    }

    /// Uses only this many bits of the key hashes: for tests with collisions.
    #[doc(hidden)]
    #[must_use]
    pub fn hash_bits(mut self, bits: u32) -> Self {
        self.hash_bits = Some(bits);
        self
    }

    /// Sets whether records that stay cold move from the log to sorted runs from the beginning on,
    /// or never. A key there takes 2 to 3 bytes of memory, where a key of the log takes an index
    /// entry of 11 to 21 bytes: so memory limits the number of hot keys only. A cold key takes one
    /// read more to be changed, and each byte that moves is written some 4 times.
    ///
    /// Default: [automatically](HybridLog::cold_runs_automatic) in a state of 16 MiB and more,
    /// otherwise never. With `true` the state needs [`COLD_RUNS_MEMORY_MIN`] of memory. Has no
    /// effect in a store without a directory.
    ///
    /// Key groups move. Exports of an open store have every key.
    #[must_use]
    pub fn cold_runs(mut self, on: bool) -> Self {
        self.cold_runs = Some(ColdRuns::Always(on));
        self
    }

    /// Lets records move to [sorted runs](HybridLog::cold_runs) once the index would take about
    /// half of the memory, or less in little memory or beside other states. Until then the log is
    /// as it is without runs. It stays so in less than [`COLD_RUNS_MEMORY_MIN`] of memory, for
    /// entries that expire, for values that are longer than a record that moves, and for panes of
    /// windows. `cold-runs = "automatic"` in a configuration. From 16 MiB of memory on this is the
    /// default; in less, what moves take is a quarter of it, so that it has to be said.
    ///
    /// A state that has runs is refused by memory of less than
    /// [`COLD_RUNS_MEMORY_MIN`].
    #[must_use]
    pub fn cold_runs_automatic(mut self) -> Self {
        self.cold_runs = Some(ColdRuns::When(When::Automatic));
        self
    }

    /// The same log, whose records move to runs from the beginning on or never: for state of which a part is not known to
    /// it.
    pub(crate) fn cold_runs_if_asked(mut self) -> Self {
        if !matches!(self.cold_runs, Some(ColdRuns::Always(_))) {
            self.cold_runs = Some(ColdRuns::Always(false));
        }
        self
    }

    /// [`cold_runs`](HybridLog::cold_runs) where records move although memory has room for more index entries than these:
    /// for tests.
    #[doc(hidden)]
    #[must_use]
    pub fn cold_entries(mut self, most: u64) -> Self {
        (self.cold_runs, self.cold_entries) = (Some(ColdRuns::Always(true)), Some(most));
        self
    }

    /// Has the index join segments whatever memory there is: for tests.
    #[doc(hidden)]
    #[must_use]
    pub fn joins_always(mut self) -> Self {
        self.joins_always = true;
        self
    }

    /// Has partitions of runs have so many hashes at most, so that a merge has parts of few records: for tests.
    #[doc(hidden)]
    #[must_use]
    pub fn partition_hashes(mut self, most: usize) -> Self {
        self.partition_hashes = Some(most);
        self
    }

    /// Has records move down before the index has more than this part of the memory, whatever look-ups read: for tests.
    #[doc(hidden)]
    #[must_use]
    pub fn index_percent(mut self, percent: u64) -> Self {
        self.index_percent = Some(percent);
        self
    }

    #[cfg(test)]
    pub(super) fn has_hash_bits(&self) -> bool {
        self.hash_bits.is_some()
    }

    pub(super) fn limit(&self) -> Option<u64> {
        self.memory.map(|size| size.0)
    }

    /// The sizes for a table of such records in `memory_bytes`.
    pub(super) fn sizes(
        &self,
        record_type: &RecordType,
        memory_bytes: u64,
        max_value_bytes: u64,
        stored: bool,
    ) -> Result<LogSizes> {
        self.sizes_or_less((record_type, max_value_bytes), memory_bytes, stored, 0)
    }

    /// [`sizes`](HybridLog::sizes) for a table that was there before, from which other states may have taken what a new one
    /// has to begin with.
    pub(super) fn sizes_again(
        &self,
        record_type: &RecordType,
        memory_bytes: u64,
        max_value_bytes: u64,
    ) -> Result<LogSizes> {
        self.sizes_or_less((record_type, max_value_bytes), memory_bytes, true, WORKING_BYTES)
    }

    /// [`sizes`](HybridLog::sizes), also in so much less memory.
    fn sizes_or_less(
        &self,
        (record_type, max_value_bytes): (&RecordType, u64),
        memory_bytes: u64,
        stored: bool,
        less: u64,
    ) -> Result<LogSizes> {
        let generations = self.generations.unwrap_or(GENERATIONS);
        if !(1..=GENERATIONS_MAX).contains(&generations) {
            let message = format!("generations is {generations}; 1 and 2 are possible");
            return Err(Error::new(ErrorKind::Config, message));
        }
        let slot = Frame::slot_bytes(record_type) as u64;
        let is_plain = record_type.is_plain();
        let auto = (memory_bytes / 64).clamp(PAGE_BYTES_MIN, PAGE_BYTES_MAX);
        let auto = 1 << auto.ilog2();
        let page = self.page.map_or(auto, |size| size.0);
        let slots = self.page_records.map_or(page / slot, u64::from).clamp(1, 1 << 16) as u32;
        let frame_bytes = Frame::memory_bytes(record_type, slots) as u64;
        let buckets = if memory_bytes >= 8 * MIB {
            256
        } else if memory_bytes >= MIB {
            64
        } else {
            8
        };
        let auto_segment = (memory_bytes / 8).clamp(256 << 10, 16 << 20);
        let segment_bytes = self.segment.map_or(auto_segment, |size| size.0).clamp(8192, 16 << 20);
        let read_bytes = if !is_plain {
            2 * BLOCK_BYTES
        } else if 2 * slot <= UNSPLIT_BYTES {
            BLOCK_BYTES
        } else {
            (2 * slot as usize + BLOCK_BYTES).next_multiple_of(BLOCK_BYTES).min(16 * BLOCK_BYTES)
        };
        let auto_depth = (memory_bytes / 32 / read_bytes as u64).clamp(1, QUEUE_DEPTH as u64);
        let queue_depth = self.queue_depth.unwrap_or(auto_depth as usize).clamp(1, 1024);
        let chunk_bytes =
            (memory_bytes / 32).clamp(8192, 256 << 10) as usize / BLOCK_BYTES * BLOCK_BYTES;
        // A value's archive may be a little larger than its heap.
        let archive_bytes = if is_plain { slot } else { max_value_bytes };
        // One value that grows, and the bytes of one that is read.
        let headroom_bytes = if is_plain { 0 } else { 2 * max_value_bytes };
        let frames_max = memory_bytes / frame_bytes + 1;
        // Where memory has no room for a table of a few, frames are written where they are.
        let table_max = memory_bytes as usize / 1024 / size_of::<CopyFrame>();
        let copies_max = match (frames_max as usize / 8).min(table_max) {
            copies if stored && copies >= COPIES_MIN => copies,
            _ => 0,
        };
        // In little memory every byte is wanted for keys. In more, the frames of a checkpoint's copies are those of the
        // next one's: to make them costs a page fault for each 4 KiB.
        let spares_max = match memory_bytes < 16 << 20 {
            true => SPARES_MIN,
            false => (frames_max as usize / 16).clamp(SPARES_MIN, 4096).max(copies_max),
        };
        let window_bytes = chunk_bytes.min(64 << 10);
        // Few survive of each page, and they are bytes already.
        let part = chunk_bytes / 4 / BLOCK_BYTES * BLOCK_BYTES;
        let old_chunk_bytes = (generations == 2).then_some(part.max(2 * BLOCK_BYTES));
        // Each copy of some of a page is an image of its own.
        let images_max = memory_bytes / OLD_IMAGES_SHARE / SegmentWriter::IMAGE_BYTES;
        let old_images_max = images_max.clamp(OLD_IMAGES_MIN, OLD_IMAGES_MAX);
        let writer_bytes =
            |chunk, value_bytes| SegmentWriter::memory_bytes(chunk, slots as usize, value_bytes);
        let old_writer_bytes =
            |chunk| writer_bytes(chunk, 0) + old_images_max * SegmentWriter::IMAGE_BYTES;
        let deaths = (memory_bytes / 2048).clamp(8, 1 << 23);
        // In little memory what is spilled has its room from the notes.
        let (deaths_max, spilled) = match memory_bytes < MIB {
            true => (deaths - deaths.div_ceil(3), deaths / 4),
            false => (deaths, memory_bytes / 16384),
        };
        let sizes = LogSizes {
            slots,
            frame_bytes,
            frame_heap_bytes: FRAME_HEAP_MAX * frame_bytes,
            headroom_bytes,
            restore_bytes: match stored {
                // Of longer segments, and in more memory, pages and what values need leave it, as a rule.
                true if segment_bytes > RESTORED_SEGMENT_MAX
                    || memory_bytes >= RESTORED_MEMORY_MAX =>
                {
                    0
                }
                // A segment may be as long as two, by its last page; the lists are there while they are read.
                true => {
                    let set = 2 * LiveSet::memory_bytes(2 * segment_bytes) + BLOCK_BYTES as u64;
                    // With those of the last list, of which the bytes are known when it is there.
                    set + LISTS_READ_AS * (lists_max(memory_bytes) + 8 * deaths_max)
                }
                false => 0,
            },
            lists_max: lists_max(memory_bytes),
            frames_max,
            spares_max,
            copies_max,
            tables_bytes: frames_max * (Frames::BYTES_EACH + 10) as u64
                + (copies_max * size_of::<CopyFrame>()) as u64
                + ((spares_max - SPARES_MIN) * size_of::<Frame>()) as u64
                + 512,
            deaths_max: deaths_max as usize,
            spilled_max: (spilled as usize).min(DeathSpill::part_max(window_bytes)),
            buckets,
            segment_bytes,
            queue_depth,
            read_bytes,
            chunk_bytes,
            old_chunk_bytes,
            old_images_max: old_images_max as usize,
            writer_bytes: writer_bytes(chunk_bytes, archive_bytes)
                + old_chunk_bytes.map_or(0, old_writer_bytes),
            window_bytes,
            page_records: slots,
            cooling_percent: u64::from(self.cooling_percent.unwrap_or(COOLING_PERCENT).min(90)),
            patience: self.patience_ms.map_or(PATIENCE, Duration::from_millis),
            cold_runs: self.cold_runs == Some(ColdRuns::Always(true)),
            cold_runs_later: !matches!(self.cold_runs, Some(ColdRuns::Always(_))),
            cold_runs_from: self.cold_runs.map_or(BY_THEMSELVES_MIN, |_| 0),
            cold_entries: self.cold_entries,
            joins_always: self.joins_always,
            partition_hashes: self.partition_hashes,
            index_percent: self.index_percent,
            calls_per_record: self.checkpoint_pace.unwrap_or(CHECKPOINT_PACE).into(),
            hash_mask: self
                .hash_bits
                .map_or(u64::MAX, |bits| low_bits(bits).reverse_bits() | low_bits(bits.min(8))),
        };
        let needed = sizes.memory_bytes_min(stored) - less;
        if memory_bytes < needed {
            let message =
                format!("the hybrid log needs {needed} bytes to open, {memory_bytes} are free");
            return Err(Error::new(ErrorKind::OverBudget, message));
        }
        Ok(sizes)
    }
}

/// What a new log has to begin with, beside all that it needs.
const WORKING_BYTES: u64 = 16 << 10;
/// Segments up to so many bytes are many, and in less memory than that pages are few: then memory
/// is left for reading them back.
const RESTORED_SEGMENT_MAX: u64 = 32 << 10;
const RESTORED_MEMORY_MAX: u64 = 192 << 10;
/// Reading lists of the dead takes so many times their bytes at most: all of them twice, and the
/// longest twice more.
const LISTS_READ_AS: u64 = 4;

/// Bytes of lists in so much memory: few where it has no room to read them.
fn lists_max(memory_bytes: u64) -> u64 {
    (memory_bytes / 128).max(512)
}

fn low_bits(bits: u32) -> u64 {
    if bits >= 64 { u64::MAX } else { (1 << bits) - 1 }
}

/// The sizes of an open hybrid log.
#[derive(Clone, Debug)]
pub struct LogSizes {
    pub slots: u32,
    pub frame_bytes: u64,
    /// A frame whose entries own more heap takes no more entries.
    pub frame_heap_bytes: u64,
    pub headroom_bytes: u64,
    /// What reading a checkpoint takes that is not there when the log works: the set of a segment's
    /// live records, and lists of the dead.
    pub restore_bytes: u64,
    /// Bytes of lists of the dead that a checkpoint has at most; sets take their place then.
    pub lists_max: u64,
    /// Frames that the memory has room for, and the tables for so many.
    pub frames_max: u64,
    /// Empty frames kept for reuse, while memory suffices: a checkpoint copies many, whose memory
    /// would be mapped anew for each.
    pub spares_max: usize,
    /// Frames of which copies for a checkpoint are there at once.
    pub copies_max: usize,
    pub tables_bytes: u64,
    /// Deaths between two checkpoints that there is room to note; more of them make the next one
    /// look at every record of the segments concerned.
    pub deaths_max: usize,
    /// Deaths in each part of those that a checkpoint keeps on storage while it is taken.
    pub spilled_max: usize,
    pub buckets: usize,
    pub segment_bytes: u64,
    pub queue_depth: usize,
    /// Buffer of one cold read: as much of a record as is read at first.
    pub read_bytes: usize,
    pub chunk_bytes: usize,
    /// The chunk of the old generation's writer, if there is that generation.
    pub old_chunk_bytes: Option<usize>,
    /// Images after which it ends a segment.
    pub old_images_max: usize,
    /// Of both writers.
    pub writer_bytes: u64,
    /// Window that segments are read through when they are rewritten or restored.
    pub window_bytes: usize,
    /// Records of the longest page there: another layout, or build, may have written longer ones.
    pub page_records: u32,
    pub cooling_percent: u64,
    pub hash_mask: u64,
    /// Calls of the stream for each record that a checkpoint writes.
    pub calls_per_record: u64,
    /// How long a call waits for storage.
    pub patience: Duration,
    /// Whether records that stay cold move to runs, and whether they do once the index takes too much.
    pub cold_runs: bool,
    pub cold_runs_later: bool,
    /// The least memory in which that is so.
    pub cold_runs_from: u64,
    /// Index entries that are enough for records to move, in tests.
    pub cold_entries: Option<u64>,
    /// Whether each new entry has segments of the index joined, in tests.
    pub joins_always: bool,
    /// Hashes of a partition of runs, in tests.
    pub partition_hashes: Option<usize>,
    /// The part of the memory that the index may have, in tests.
    pub index_percent: Option<u64>,
}

impl LogSizes {
    /// Buffers for cold reads, for writing and for rewriting, if there is storage.
    pub fn buffer_bytes(&self, stored: bool) -> u64 {
        if !stored {
            return 0;
        }
        let deaths = 2 * size_of::<Death>() + DEATH_WRITTEN_BYTES;
        let deaths = (self.deaths_max * deaths) as u64;
        let spill = DeathSpill::memory_bytes(self.spilled_max);
        self.read_buffer_bytes() + self.writer_bytes + self.rewrite_bytes() + deaths + spill
    }

    /// Of these, the buffers for cold reads.
    pub fn read_buffer_bytes(&self) -> u64 {
        let reads = (self.queue_depth * self.read_bytes) as u64;
        reads + RecordFetches::memory_bytes(self.queue_depth.saturating_sub(1))
    }

    /// Memory for rewriting: a window, the footer entries of a page twice, and what the footer that
    /// is written takes beyond that of a page of this log.
    pub fn rewrite_bytes(&self) -> u64 {
        let written = |records: u32| SegmentWriter::memory_bytes(0, records as usize, 0);
        let longer = written(self.page_records) - written(self.slots);
        let entries = self.page_records as usize * (2 * size_of::<FooterEntry>() + 4);
        (self.window_bytes + entries) as u64 + longer
    }

    /// What the index and other states must leave for the log to work: to pages, to values, and to
    /// the table of segments, which takes `segment_table_bytes` now, an eighth more; nothing while
    /// it takes none.
    pub fn floor_bytes(&self, segment_table_bytes: u64) -> u64 {
        let growth = match segment_table_bytes {
            0 => 0,
            now => SEGMENT_TABLE_BYTES_MIN.saturating_sub(now).max(now / 8),
        };
        self.kept_bytes() + WANT_FREE_MIN + growth
    }

    /// What the index and tables leave at least: to a value that is read and to the least frames,
    /// and to reading a checkpoint, when there are none of these yet.
    pub fn kept_bytes(&self) -> u64 {
        (FRAMES_MIN * self.frame_bytes + self.headroom_bytes).max(self.restore_bytes)
    }

    /// Pages and values without which the log does not work.
    pub fn pages_bytes_min(&self) -> u64 {
        FRAMES_MIN * self.frame_bytes + WANT_FREE_MIN
    }

    /// Least memory to open with.
    pub fn memory_bytes_min(&self, stored: bool) -> u64 {
        let index = 2 * Index::memory_bytes_min(self.buckets);
        let tables = self.tables_bytes + if stored { SEGMENT_TABLE_BYTES_MIN } else { 4096 };
        let frames = FRAMES_MIN * self.frame_bytes;
        index + tables + frames + self.buffer_bytes(stored) + self.headroom_bytes + WORKING_BYTES
    }
}
