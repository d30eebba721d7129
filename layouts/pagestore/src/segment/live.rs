//! Which records of a segment belong to a checkpoint: a bit per grain.

use super::SegmentImage;
use super::format::GRAIN_BYTES;
use crate::blob::{BlobReader, BlobRef, BlobWriter};
use crate::{Error, ErrorKind, Result};

/// A set of record offsets, in grains, within one segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LiveSet(Vec<u8>);

impl LiveSet {
    /// An empty set for a segment of `segment_bytes`.
    pub fn new(segment_bytes: u64) -> Self {
        Self(vec![0; Self::memory_bytes(segment_bytes) as usize])
    }

    /// Memory that a set for a segment of `segment_bytes` takes.
    pub fn memory_bytes(segment_bytes: u64) -> u64 {
        (segment_bytes / GRAIN_BYTES).div_ceil(8)
    }

    /// Adds a record.
    pub fn insert(&mut self, grain: u32) {
        self.0[grain as usize / 8] |= 1 << (grain % 8);
    }

    /// Whether the record is in the set.
    pub fn contains(&self, grain: u32) -> bool {
        self.0.get(grain as usize / 8).is_some_and(|byte| byte >> (grain % 8) & 1 == 1)
    }

    /// Records in the set.
    pub fn len(&self) -> u64 {
        self.0.iter().map(|byte| u64::from(byte.count_ones())).sum()
    }

    /// Whether the set has no record.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|&byte| byte == 0)
    }

    /// Appends the set to a checkpoint file.
    pub fn write(&self, blobs: &mut BlobWriter) -> Result<BlobRef> {
        blobs.append(&self.0)
    }

    /// Reads the set of a segment; `None` means that all of its records are live.
    pub fn load(image: &SegmentImage, blobs: Option<&BlobReader>) -> Result<Option<LiveSet>> {
        let Some(blob) = &image.live else { return Ok(None) };
        let lost = || Error::new(ErrorKind::Missing, "the checkpoint has no file of live records");
        let set = LiveSet(blobs.ok_or_else(lost)?.read(blob)?);
        if set.len() != image.live_records {
            let what = format!("{} live records, {} expected", set.len(), image.live_records);
            return Err(Error::new(ErrorKind::Corrupt, what).with("file", image.id.file_name()));
        }
        Ok(Some(set))
    }
}
