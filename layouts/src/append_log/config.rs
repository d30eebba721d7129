//! Options of an append log, and the sizes computed from its memory.

use std::time::Duration;

use alluvium_pagestore::io::BLOCK_BYTES;
use alluvium_pagestore::{ByteSize, Error, ErrorKind, Result, SegmentWriter};
use serde::{Deserialize, Serialize};

use super::arena_unsafe::PIECE_BYTES_MAX;

/// Keeps lists by bucket and key in memory while there is room. Beyond that it writes the buckets
/// that are due last to storage, as sorted runs.
///
/// Use it for lists that are appended to and seldom read: holistic windows, sessions, lists that
/// stay.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct AppendLog {
    memory: Option<ByteSize>,
    block: Option<ByteSize>,
    segment: Option<ByteSize>,
    runs_max: Option<usize>,
    patience_ms: Option<u64>,
    packs_slices: Option<bool>,
    #[serde(skip)]
    packs_all: bool,
    #[serde(skip)]
    reads_in_parts: bool,
    #[serde(skip)]
    packs_from_the_start: bool,
}

/// Largest block size chosen by default, in bytes, without the last element.
pub const BLOCK_BYTES_MAX: u64 = 16 << 10;
/// Default number of runs of a bucket before they are merged.
pub const RUNS_MAX: usize = 8;
/// Whether small buckets are packed, by default.
pub const PACKS_SLICES: bool = true;
/// Default time that a call waits for storage.
pub const LIST_PATIENCE: Duration = Duration::from_secs(20);

impl AppendLog {
    /// Creates an append log with default options.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the most memory that this state may take, in bytes. Default: the store's memory.
    #[must_use]
    pub fn memory(mut self, bytes: u64) -> Self {
        self.memory = Some(ByteSize(bytes));
        self
    }

    /// Sets the bytes of a block: the amount that a read of one list reads from a run. Larger
    /// blocks make the index and files smaller; smaller blocks make reads of single lists cheaper.
    /// Default: 1/256 of the memory, between 4 KiB and [`BLOCK_BYTES_MAX`].
    #[must_use]
    pub fn block(mut self, bytes: u64) -> Self {
        self.block = Some(ByteSize(bytes));
        self
    }

    /// Sets the bytes after which a run continues in another file. Default and largest: 16 MiB.
    #[must_use]
    pub fn segment(mut self, bytes: u64) -> Self {
        self.segment = Some(ByteSize(bytes));
        self
    }

    /// Sets the number of runs that a bucket may have before some are merged. More runs save
    /// writes; fewer save reads of single lists. A bucket may have eight times as many while no
    /// single list of it was read or cleared, if memory has room to read them together. Default:
    /// [`RUNS_MAX`].
    #[must_use]
    pub fn runs_max(mut self, runs: usize) -> Self {
        self.runs_max = Some(runs);
        self
    }

    /// Sets how long a call waits for storage before it fails with [`ErrorKind::Backpressure`]. A
    /// call that needs memory waits for storage to complete writes; a call that reads waits while
    /// storage makes no progress at all. In whole milliseconds; `patience-ms` in a configuration
    /// file. Default: [`LIST_PATIENCE`].
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience_ms = Some(u64::try_from(patience.as_millis()).unwrap_or(u64::MAX));
        self
    }

    /// Sets whether small buckets share sorted runs on storage where memory is short and there are many of them, or a
    /// checkpoint finds that with runs of their own they would take 1/16 of the memory. A slice costs 1 to 4 bytes of memory
    /// there, twice that with a helper's thread, instead of 1.3 KB. It takes 1 MiB of memory at least; with less, and
    /// where small buckets with runs of their own would take less than 1/64 of the memory, nothing is packed, and nothing
    /// is kept for it. Lists that are cleared or moved are read before, if their bucket is packed. A state whose
    /// checkpoint has packed slices is read without it too.
    /// `packs-slices` in a configuration file. Default: [`PACKS_SLICES`].
    #[must_use]
    pub fn packs_slices(mut self, packs: bool) -> Self {
        self.packs_slices = Some(packs);
        self
    }

    /// [`packs_slices`](AppendLog::packs_slices), also where there are few buckets, and merges in small parts: for tests.
    #[doc(hidden)]
    #[must_use]
    pub fn pack_all(mut self) -> Self {
        (self.packs_slices, self.packs_all) = (Some(true), true);
        self
    }

    /// [`pack_all`](AppendLog::pack_all), where all but the smallest packed slices are taken for large ones: for tests.
    #[doc(hidden)]
    #[must_use]
    pub fn pack_all_in_parts(mut self) -> Self {
        self.reads_in_parts = true;
        self.pack_all()
    }

    /// Takes the memory for packing when the state is opened, and keeps it, however little there is: for an owner that
    /// opens the log because there are many small slices.
    pub(crate) fn pack_from_the_start(mut self) -> Self {
        self.packs_from_the_start = true;
        self
    }

    pub(super) fn limit(&self) -> Option<u64> {
        self.memory.map(|size| size.0)
    }

    /// The sizes for `memory_bytes`, with elements that own heap or not, on storage
    /// or not, of a log that is there again or not: what that one needs was left free.
    pub(super) fn sizes(
        &self,
        memory_bytes: u64,
        (plain, stored, is_there): (bool, bool, bool),
        max_value_bytes: u64,
    ) -> Result<ListSizes> {
        let auto = (memory_bytes / 256).clamp(BLOCK_BYTES as u64, BLOCK_BYTES_MAX);
        // A block with its headers is to fit whole pages of storage.
        let block = self.block.map_or(auto, |size| size.0).clamp(512, 1 << 20);
        let block_bytes = (block - block / 8) as usize;
        let chunk_bytes = (memory_bytes / 64).clamp(8192, 1 << 20) as usize;
        let chunk_bytes = chunk_bytes / BLOCK_BYTES * BLOCK_BYTES;
        // The last element of a block may be as large as elements get.
        let block_most = block_bytes as u64 + if plain { 1024 } else { max_value_bytes };
        let sizes = ListSizes {
            block_bytes,
            merge_bytes: SegmentWriter::memory_bytes(MERGE_CHUNK_BYTES, PAGE_BLOCKS, 0)
                + 2 * block_most
                + 6 * block_bytes as u64,
            chunk_bytes,
            segment_bytes: self.segment.map_or(16 << 20, |size| size.0).clamp(8192, 16 << 20),
            writer_bytes: SegmentWriter::memory_bytes(chunk_bytes, PAGE_BLOCKS, 0)
                + 2 * block_most
                + 6 * block_bytes as u64
                + (16 << 10),
            window_bytes: block_bytes.next_multiple_of(BLOCK_BYTES) + BLOCK_BYTES,
            piece_bytes: (memory_bytes / 128).clamp(512, PIECE_BYTES_MAX as u64) as usize,
            want_free: memory_bytes / 4,
            read_slack: if stored { memory_bytes / 8 } else { 0 },
            slack: if stored { memory_bytes / 64 + 4096 } else { 0 },
            batch_bytes: memory_bytes / 16,
            runs_max: self.runs_max.unwrap_or(RUNS_MAX).max(2),
            patience: self.patience_ms.map_or(LIST_PATIENCE, Duration::from_millis),
            packs_slices: self.packs_slices.unwrap_or(PACKS_SLICES),
            packs_all: self.packs_all,
            reads_in_parts: self.reads_in_parts,
            packs_from_the_start: self.packs_from_the_start,
        };
        // A run's window and a block decoded, of a few runs; and lists.
        let needed = sizes.writer_bytes + 8 * sizes.window_bytes as u64 + (32 << 10);
        if memory_bytes < needed && !is_there {
            let message =
                format!("the append log needs {needed} bytes to open, {memory_bytes} are free");
            return Err(Error::new(ErrorKind::OverBudget, message));
        }
        Ok(sizes)
    }
}

/// Blocks after which an image ends: its footer stays small.
pub const PAGE_BLOCKS: usize = 256;
/// Buffer that merged runs are written with.
pub const MERGE_CHUNK_BYTES: usize = 16 << 10;
/// Bytes after which an image ends.
pub const PAGE_BYTES: u64 = 4 << 20;

/// The sizes of an open append log.
#[derive(Clone, Debug)]
pub struct ListSizes {
    /// A block ends when it has so many bytes.
    pub block_bytes: usize,
    /// Memory of the helper while it merges, but for what it reads.
    pub merge_bytes: u64,
    /// Buffer of a segment writer.
    pub chunk_bytes: usize,
    pub segment_bytes: u64,
    /// Memory of the helper while it writes.
    pub writer_bytes: u64,
    /// Least window that a run is read through.
    pub window_bytes: usize,
    /// Most bytes of a piece that the chunks of several lists share.
    pub piece_bytes: usize,
    /// Below so many free bytes something is written.
    pub want_free: u64,
    /// Bytes that are left free for the tables of what is written.
    pub slack: u64,
    /// Bytes that appends leave free for reads, which are to work also when storage takes nothing.
    pub read_slack: u64,
    /// Buckets that are small are written together, up to so many bytes.
    pub batch_bytes: u64,
    pub runs_max: usize,
    pub patience: Duration,
    /// Whether small buckets are packed.
    pub packs_slices: bool,
    /// Whether small buckets are packed also where there are few of them.
    pub packs_all: bool,
    /// Whether all but the smallest packed slices are read part by part, and moved to runs of their own to be cleared.
    pub reads_in_parts: bool,
    /// Whether memory for packing is taken when the state is opened, and kept.
    pub packs_from_the_start: bool,
}
