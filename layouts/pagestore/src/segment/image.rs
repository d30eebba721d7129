//! One page image in memory. Its footer is verified on arrival, each record when it is requested.

use super::SegmentInfo;
use super::footers::Footer;
use super::format::{
    FooterEntry, ImageInfo, RecordBytes, SegmentId, TRAILER_BYTES, VerifiedRecord, damaged,
    verify_record,
};
use crate::Result;
use crate::io::{FileHandle, IoBuffer};

/// A page image whose trailer and footer are verified.
#[derive(Debug)]
pub struct Image {
    id: SegmentId,
    file: FileHandle,
    buffer: IoBuffer,
    info: ImageInfo,
}

impl Image {
    /// Verifies the image in `buffer`, which was read whole from `offset` of a segment.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`](crate::ErrorKind::Corrupt) if trailer or footer differ from what was
    /// written.
    pub fn verify(segment: &SegmentInfo, offset: u64, buffer: IoBuffer) -> Result<Self> {
        let (id, file, bytes) = (segment.id, segment.file.clone(), buffer.as_slice());
        let Some(trailer) = bytes.len().checked_sub(TRAILER_BYTES) else {
            return Err(damaged(&file, offset, "an image is cut short"));
        };
        let info = ImageInfo::from_bytes(&file, id, &bytes[trailer..])?;
        let footer = info.footer_offset.wrapping_sub(offset);
        let fits = footer.checked_add(info.footer_bytes()).is_some_and(|end| end <= trailer as u64);
        if info.offset != offset || info.bytes != bytes.len() as u64 || !fits {
            return Err(damaged(&file, offset, "an image is not the one that was written here"));
        }
        let image = Self { id, file, buffer, info };
        Footer::verify(segment, &info, image.told())?;
        Ok(image)
    }

    /// What tells its records, and what follows.
    #[inline]
    fn told(&self) -> &[u8] {
        &self.buffer.as_slice()[(self.info.told().start - self.info.offset) as usize..]
    }

    /// Returns the number of records.
    pub fn len(&self) -> usize {
        self.info.records as usize
    }

    /// Returns whether there are no records.
    pub fn is_empty(&self) -> bool {
        self.info.records == 0
    }

    /// Returns the footer's entry of a record.
    pub fn entry(&self, record: usize) -> FooterEntry {
        Footer::of(&self.info, self.told()).entry(record)
    }

    /// Returns the first record with a hash of at least `hash`. The image must be in the order of
    /// hashes.
    pub fn first_from(&self, hash: u64) -> usize {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = (low + high) / 2;
            if self.entry(middle).hash < hash {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    /// Returns a record, verified.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`](crate::ErrorKind::Corrupt) if it differs from what was written.
    pub fn record(&self, record: usize) -> Result<RecordBytes<'_>> {
        let entry = self.entry(record);
        let what = "a record is not the one its footer tells of";
        let at = entry.offset().wrapping_sub(self.info.offset) as usize;
        let records = (self.info.footer_offset - self.info.offset) as usize;
        let Some(bytes) = self.buffer.as_slice()[..records].get(at..) else {
            return Err(damaged(&self.file, entry.offset(), what));
        };
        match verify_record(&self.file, self.id, entry.offset(), bytes)? {
            VerifiedRecord::Record(record) if record.hash == entry.hash => Ok(record),
            _ => Err(damaged(&self.file, entry.offset(), what)),
        }
    }

    /// Returns the bytes of memory that the image takes.
    pub fn memory_bytes(&self) -> u64 {
        self.buffer.capacity() as u64
    }

    /// Returns the buffer, for the next read.
    pub fn into_buffer(self) -> IoBuffer {
        self.buffer
    }
}
