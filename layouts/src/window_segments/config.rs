//! Options of window segments, and the sizes computed from the memory.

use std::time::Duration;

use alluvium_pagestore::io::BLOCK_BYTES;
use alluvium_pagestore::{ByteSize, Error, ErrorKind, FooterEntry, Result, SegmentWriter};
use serde::{Deserialize, Serialize};

use super::merging::merging_bytes_min;
use super::pane_type_unsafe::PaneType;
use super::run::{NAME_BYTES, SliceRun};
use crate::append_log::PACKS_SLICES;
use crate::checkpoint::{BATCH_BYTES_MAX, WriterSizes};
use crate::hybrid_log::PATIENCE;

/// Keeps accumulators by slice of event time, in a native table per slice. Slices that do not fit
/// in memory go to files of their own, those read last first. A slice is dropped whole.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct WindowSegments {
    memory: Option<ByteSize>,
    image: Option<ByteSize>,
    segment: Option<ByteSize>,
    runs_max: Option<usize>,
    patience_ms: Option<u64>,
    packs_slices: Option<bool>,
    #[serde(skip)]
    packs_all: bool,
    #[serde(skip)]
    made_again: bool,
}

/// Smallest size of an image, the unit of reading, chosen by default, in bytes.
pub const IMAGE_BYTES_MIN: u64 = 8 << 10;
/// Largest size of an image chosen by default, in bytes.
pub const IMAGE_BYTES_MAX: u64 = 64 << 10;
/// Runs of one size of a slice that are made one.
const RUNS_MAX: usize = 8;
/// Bytes after which a file ends.
const SEGMENT_BYTES: u64 = 16 << 20;
/// The most memory that is kept for folds.
const FOLD_BYTES_MAX: u64 = 4 << 20;
/// Memory that a state is left for slices and the tables of runs, at the least.
const WORKING_BYTES_MIN: u64 = 64 << 10;
/// Bytes booked for a checkpoint's lists of groups, and for the group that is written.
const CHECKPOINT_LISTS_BYTES: u64 = 5 << 10;
/// Memory for a record of the catalog and its archive.
const CATALOG_BYTES: u64 = 16 << 10;
/// What a table that is read takes, at the least, until it is written to make room.
const RESTORE_WORKING_BYTES: u64 = 12 << 10;
/// Least slack.
const SLACK_BYTES_MIN: u64 = 1 << 10;
/// Names of files of tables and catalogs.
pub const TABLE_FILES: usize = 32;
/// Least bytes of a batch of a checkpoint.
const BATCH_BYTES_MIN: usize = 4 << 10;
/// Least bytes of a record of a checkpoint: one of the catalog tells of so many images.
const CHECKPOINT_RECORD_BYTES: u64 = 8 << 10;

impl WindowSegments {
    /// Creates window segments with default options.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the most memory that this state may take, in bytes. Default: the store's memory.
    #[must_use]
    pub fn memory(mut self, bytes: u64) -> Self {
        self.memory = Some(ByteSize(bytes));
        self
    }

    /// Sets the bytes of an image: the amount that a look-up reads at once, and a fold per run.
    /// Larger images make fewer and longer reads and a smaller index; smaller images leave a fold
    /// over many runs more memory. Default: 1/512 of the memory, between [`IMAGE_BYTES_MIN`] and
    /// [`IMAGE_BYTES_MAX`].
    #[must_use]
    pub fn image(mut self, bytes: u64) -> Self {
        self.image = Some(ByteSize(bytes));
        self
    }

    /// Sets the bytes after which a run continues in another file. Default and largest: 16 MiB.
    #[must_use]
    pub fn segment(mut self, bytes: u64) -> Self {
        self.segment = Some(ByteSize(bytes));
        self
    }

    /// Sets the number of runs of similar size that a slice may have on storage before they are
    /// merged. More runs make fewer writes; fewer runs make look-ups and folds cheaper. Default: 8.
    /// Smallest: 2.
    #[must_use]
    pub fn runs_max(mut self, runs: usize) -> Self {
        self.runs_max = Some(runs);
        self
    }

    /// Sets how long a call waits for storage before it fails with [`ErrorKind::Backpressure`]. A
    /// call that needs memory waits for storage to complete writes; a call that reads waits while
    /// storage makes no progress at all. In whole milliseconds; `patience-ms` in a configuration
    /// file. Default: [`PATIENCE`].
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience_ms = Some(u64::try_from(patience.as_millis()).unwrap_or(u64::MAX));
        self
    }

    /// Sets whether small slices share runs on storage where memory is short and there are many of them. They are kept in
    /// an [append log](crate::AppendLog) then, which gets half of the memory until it is empty: a slice costs 2 to 8 bytes of
    /// memory there, instead of 1.8 KB. It takes 2 MiB of memory at least; with less, and as long as small slices take
    /// less than 1/32 of the memory or the memory is not needed, nothing is packed. A state whose checkpoint has packed slices is
    /// read without it too. `packs-slices` in a configuration file. Default: [`PACKS_SLICES`](crate::PACKS_SLICES).
    #[must_use]
    pub fn packs_slices(mut self, packs: bool) -> Self {
        self.packs_slices = Some(packs);
        self
    }

    /// [`packs_slices`](WindowSegments::packs_slices), also where there are few slices and memory is plentiful: for tests.
    #[doc(hidden)]
    #[must_use]
    pub fn pack_all(mut self) -> Self {
        (self.packs_slices, self.packs_all) = (Some(true), true);
        self
    }

    /// Opens with as little memory for slices as others may have left to it: for what was there before.
    #[doc(hidden)]
    #[must_use]
    pub fn made_again(mut self) -> Self {
        self.made_again = true;
        self
    }

    pub(super) fn limit(&self) -> Option<u64> {
        self.memory.map(|size| size.0)
    }

    /// The sizes for accumulators of these types in `memory_bytes`.
    pub(super) fn sizes(
        &self,
        types: &PaneType,
        memory_bytes: u64,
        max_value_bytes: u64,
        stored: bool,
    ) -> Result<SliceSizes> {
        let block = BLOCK_BYTES as u64;
        let plain = types.is_plain();
        let auto_image = (memory_bytes / 512).clamp(IMAGE_BYTES_MIN, IMAGE_BYTES_MAX);
        let image_bytes = self.image.map_or(auto_image, |size| size.0).clamp(2 * block, 4 << 20);
        let image_bytes = image_bytes / block * block;
        let chunk_bytes = (memory_bytes / 32).clamp(2 * block, 256 << 10) / block * block;
        let segment_bytes =
            self.segment.map_or(SEGMENT_BYTES, |size| size.0).clamp(2 * block, SEGMENT_BYTES);
        let archive_bytes =
            if plain { 2 * types.record_bytes() as u64 + 64 } else { max_value_bytes };
        let image_records = (image_bytes / 32) as usize;
        let chunk = chunk_bytes as usize;
        let writer_bytes = match stored {
            true => SegmentWriter::memory_bytes(chunk, image_records, archive_bytes),
            false => 0,
        };
        let writer = WriterSizes {
            chunk_bytes: chunk.min(32 << 10),
            segment_bytes,
            page_records: image_records as u32,
            page_bytes: image_bytes,
            batch_bytes: (memory_bytes as usize / 16).clamp(BATCH_BYTES_MIN, BATCH_BYTES_MAX),
            value_bytes: archive_bytes.max(CHECKPOINT_RECORD_BYTES),
        };
        let sizes = SliceSizes {
            writer,
            image_bytes,
            image_records: image_records as u32,
            chunk_bytes: chunk,
            segment_bytes,
            writer_bytes,
            headroom_bytes: if plain { 0 } else { max_value_bytes },
            read_value_bytes: if plain { 0 } else { 2 * max_value_bytes },
            value_bytes: if plain { u64::MAX } else { max_value_bytes },
            reserve_bytes: match stored {
                true => {
                    let records = memory_bytes / types.record_bytes().max(1) as u64;
                    SliceRun::booked_bytes_of(records, 2 * memory_bytes, image_bytes, segment_bytes)
                }
                false => 0,
            },
            fold_bytes: (memory_bytes / 16).min(FOLD_BYTES_MAX).max(match stored {
                // Of two runs at least one can be made, so that a fold has room.
                true => merging_bytes_min(image_bytes, segment_bytes),
                false => 0,
            }),
            low_water_bytes: memory_bytes / 8,
            spill_bytes_min: memory_bytes / 16,
            runs_max: self.runs_max.unwrap_or(RUNS_MAX).max(2),
            patience: self.patience_ms.map_or(PATIENCE, Duration::from_millis),
            packs: self.packs_slices.unwrap_or(PACKS_SLICES),
            packs_all: self.packs_all,
        };
        let image = if stored { image_bytes } else { 0 };
        let needed = sizes.buffer_bytes(image)
            + sizes.reserve_bytes
            + sizes.headroom_bytes
            + if stored { sizes.checkpoint_bytes() + sizes.slack_bytes() } else { 0 }
            + if self.made_again { RESTORE_WORKING_BYTES } else { WORKING_BYTES_MIN };
        if memory_bytes < needed {
            let message =
                format!("window segments need {needed} bytes to open, {memory_bytes} are free");
            return Err(Error::new(ErrorKind::OverBudget, message));
        }
        Ok(sizes)
    }
}

/// The sizes of open window segments.
#[derive(Clone, Copy, Debug)]
pub struct SliceSizes {
    /// How a checkpoint writes.
    pub writer: WriterSizes,
    /// An image ends before this, unless a single record is longer.
    pub image_bytes: u64,
    pub image_records: u32,
    pub chunk_bytes: usize,
    pub segment_bytes: u64,
    pub writer_bytes: u64,
    /// Free before a value is lent that may grow.
    pub headroom_bytes: u64,
    /// Kept for reading: a sum, and what is added to it.
    pub read_value_bytes: u64,
    /// What the largest value owns that is written and read within these.
    pub value_bytes: u64,
    /// Kept for the table of the next run.
    pub reserve_bytes: u64,
    /// Kept for folds, so that slices can be read and purged when memory is used up.
    pub fold_bytes: u64,
    /// With less than this free, a slice is written in the background.
    pub low_water_bytes: u64,
    /// Slices that take less are written only if none takes more.
    pub spill_bytes_min: u64,
    pub runs_max: usize,
    pub patience: Duration,
    /// Whether small slices are packed, and whether also where there are few.
    pub packs: bool,
    pub packs_all: bool,
}

impl SliceSizes {
    /// What is booked for checkpoints while there are no slices.
    pub fn checkpoint_bytes(&self) -> u64 {
        let taken =
            self.writer.memory_bytes() + CHECKPOINT_LISTS_BYTES + TABLE_FILES as u64 * NAME_BYTES;
        // Restoring comes before, in the same memory.
        taken.max(self.restore_bytes() + RESTORE_WORKING_BYTES)
    }

    /// What else is kept free, so that all is there again after it was restored.
    pub fn slack_bytes(&self) -> u64 {
        self.low_water_bytes / 4 + SLACK_BYTES_MIN
    }

    /// What the buffers of restoring take.
    pub fn restore_bytes(&self) -> u64 {
        let footers = 2 * self.image_records as usize * size_of::<FooterEntry>();
        (self.chunk_bytes + footers) as u64 + CATALOG_BYTES + self.headroom_bytes
    }

    /// What is booked for buffers, with one to read images of `image` bytes.
    pub fn buffer_bytes(&self, image: u64) -> u64 {
        self.writer_bytes + self.fold_bytes + self.read_value_bytes + image
    }
}
