//! A run: accumulators of one slice on storage, in the order of their hashes.
//!
//! A run stands in one or more segments, as page images that are read whole; a table in memory has
//! the first hash of each. A key may have several records, of which an earlier one has what came
//! before. Never changed.

use alluvium_pagestore::io::{IoBuffer, Operation, run_blocking};
use alluvium_pagestore::{Image, Result, SegmentInfo, SegmentStore, damaged, rounded};

/// Bytes that an open file takes beside its entry in a run, by upper bound.
const FILE_BYTES: u64 = 160;
/// Bytes booked for what refers to a file.
pub const NAME_BYTES: u64 = 64;

/// Where an image of a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageAt {
    /// Hash of its first record.
    pub first: u64,
    /// Which of the run's segments.
    pub segment: u32,
    /// First block in it.
    pub block: u32,
    /// Blocks.
    pub blocks: u32,
}

/// A run.
#[derive(Debug)]
pub struct SliceRun {
    /// Later runs of a slice have higher numbers.
    pub number: u64,
    /// How often it was made of others.
    pub level: u32,
    /// Its files, in order of hashes.
    pub segments: Vec<SegmentInfo>,
    /// Its images, in order of hashes.
    pub images: Vec<ImageAt>,
    /// Records in it.
    pub records: u64,
}

/// Files of so many bytes, at the most, as vectors double. Half a segment at least is used.
fn files_of(bytes: u64, segment_bytes: u64) -> u64 {
    (2 * bytes / segment_bytes + 2).next_power_of_two()
}

impl SliceRun {
    /// Bytes of its files.
    pub fn bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.bytes).sum()
    }

    /// Bytes of its longest image.
    pub fn image_bytes_max(&self) -> u64 {
        self.images.iter().map(|image| image.bytes()).max().unwrap_or(0)
    }

    /// Memory it takes.
    pub fn memory_bytes(&self) -> u64 {
        let images = rounded(self.images.capacity() * size_of::<ImageAt>());
        let files = rounded(self.segments.capacity() * size_of::<SegmentInfo>());
        (images + files + rounded(size_of::<Self>() + 16)) as u64
            + self.segments.len() as u64 * FILE_BYTES
    }

    /// What a checkpoint that holds it takes, beside the names of its files.
    pub fn share_bytes(&self) -> u64 {
        self.memory_bytes()
    }

    /// Names of its files that checkpoints have: the last one, and the one that is taken.
    pub fn names(&self) -> usize {
        2 * self.segments.len()
    }

    /// All that is booked for it.
    pub fn booked_bytes(&self) -> u64 {
        self.memory_bytes() + self.share_bytes() + self.names() as u64 * NAME_BYTES
    }

    /// The least that is booked for a run.
    pub fn booked_bytes_min() -> u64 {
        let lists = rounded(size_of::<ImageAt>()) + rounded(size_of::<SegmentInfo>());
        let table = lists + rounded(size_of::<Self>() + 16);
        2 * (table as u64 + FILE_BYTES + NAME_BYTES)
    }

    /// The most that is booked for a run of so many records and bytes.
    pub fn booked_bytes_of(records: u64, bytes: u64, image_bytes: u64, segment_bytes: u64) -> u64 {
        let names = 2 * files_of(bytes, segment_bytes);
        2 * Self::memory_bytes_of(records, bytes, image_bytes, segment_bytes) + names * NAME_BYTES
    }

    /// The most that a run of so many records and bytes can take.
    fn memory_bytes_of(records: u64, bytes: u64, image_bytes: u64, segment_bytes: u64) -> u64 {
        // Vectors double. Half an image at least is used.
        let images = (2 * bytes / image_bytes + 2).min(records + 1).next_power_of_two();
        let files = files_of(bytes, segment_bytes);
        images * size_of::<ImageAt>() as u64
            + files * (size_of::<SegmentInfo>() as u64 + FILE_BYTES)
            + rounded(size_of::<Self>() + 16) as u64
            + 64
    }

    /// The first image that can have a record with this hash.
    pub fn image_of(&self, hash: u64) -> usize {
        self.images.partition_point(|image| image.first < hash).saturating_sub(1)
    }

    /// Verifies one image that was read into `buffer`.
    pub fn verify(&self, image: usize, buffer: IoBuffer) -> Result<Image> {
        let at = self.images[image];
        let segment = &self.segments[at.segment as usize];
        let image = Image::verify(segment, at.offset(), buffer)?;
        if image.is_empty() || image.entry(0).hash != at.first {
            return Err(damaged(&segment.file, at.offset(), "an image begins with another record"));
        }
        Ok(image)
    }

    /// Reads one image and verifies it.
    pub fn read(&self, store: &SegmentStore, image: usize, buffer: IoBuffer) -> Result<Image> {
        let at = self.images[image];
        let file = &self.segments[at.segment as usize].file;
        let mut buffer = match buffer.capacity() as u64 >= at.bytes() {
            true => buffer,
            false => IoBuffer::zeroed(at.bytes() as usize),
        };
        buffer.set_len(at.bytes() as usize);
        let operation = Operation::Read { offset: at.offset() };
        let (buffer, done) = run_blocking(store.device(), file, operation, buffer);
        done?;
        self.verify(image, buffer)
    }
}

impl ImageAt {
    /// First byte in its segment.
    pub fn offset(self) -> u64 {
        u64::from(self.block) * alluvium_pagestore::io::BLOCK_BYTES as u64
    }

    /// Bytes.
    pub fn bytes(self) -> u64 {
        u64::from(self.blocks) * alluvium_pagestore::io::BLOCK_BYTES as u64
    }
}
