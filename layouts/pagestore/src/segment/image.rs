//! One page image as a whole in memory: its footer verified when it comes, its records when they
//! are asked for.

use super::footers::Footer;
use super::format::{
    FOOTER_ENTRY_BYTES, FooterEntry, ImageInfo, RecordBytes, TRAILER_BYTES, Verified, damaged,
    verify_record,
};
use super::{SegmentId, SegmentInfo};
use crate::Result;
use crate::io::{FileHandle, IoBuffer};

/// A page image whose trailer and footer are verified.
#[derive(Debug)]
pub struct Image {
    id: SegmentId,
    file: FileHandle,
    buffer: IoBuffer,
    /// Where the image stands in its segment.
    offset: u64,
    /// Where its footer stands in the buffer.
    footer: usize,
    records: usize,
}

impl Image {
    /// The image in `buffer`, which was read from `offset` of a segment and is all of it.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`](crate::ErrorKind::Corrupt) if trailer or footer are not what was
    /// written there.
    pub fn verify(segment: &SegmentInfo, offset: u64, buffer: IoBuffer) -> Result<Self> {
        let (id, file, bytes) = (segment.id, segment.file.clone(), buffer.as_slice());
        let Some(trailer) = bytes.len().checked_sub(TRAILER_BYTES) else {
            return Err(damaged(&file, offset, "an image is cut short"));
        };
        let info = ImageInfo::from_bytes(&file, id, &bytes[trailer..])?;
        let footer = info.footer_offset.wrapping_sub(offset) as usize;
        let length = info.records as usize * FOOTER_ENTRY_BYTES;
        let fits = footer.checked_add(length).is_some_and(|end| end <= trailer);
        if info.offset != offset || info.bytes != bytes.len() as u64 || !fits {
            return Err(damaged(&file, offset, "an image is not the one that was written here"));
        }
        Footer::verify(segment, &info, &bytes[footer..])?;
        Ok(Self { id, file, buffer, offset, footer, records: info.records as usize })
    }

    /// Records in it.
    pub fn len(&self) -> usize {
        self.records
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.records == 0
    }

    /// What the footer tells of a record.
    pub fn entry(&self, record: usize) -> FooterEntry {
        let at = self.footer + record * FOOTER_ENTRY_BYTES;
        FooterEntry::read_from(&self.buffer.as_slice()[at..at + FOOTER_ENTRY_BYTES])
    }

    /// The first record whose hash is not less than `hash`, of an image in order of hashes.
    pub fn first_from(&self, hash: u64) -> usize {
        let (mut low, mut high) = (0, self.records);
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

    /// A record, verified.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`](crate::ErrorKind::Corrupt) if it is not what was written there.
    pub fn record(&self, record: usize) -> Result<RecordBytes<'_>> {
        let entry = self.entry(record);
        let what = "a record is not the one its footer tells of";
        let at = entry.offset().wrapping_sub(self.offset) as usize;
        let Some(bytes) = self.buffer.as_slice()[..self.footer].get(at..) else {
            return Err(damaged(&self.file, entry.offset(), what));
        };
        match verify_record(&self.file, self.id, entry.offset(), bytes)? {
            Verified::Record(record) if record.hash == entry.hash => Ok(record),
            _ => Err(damaged(&self.file, entry.offset(), what)),
        }
    }

    /// Bytes of memory it takes.
    pub fn memory_bytes(&self) -> u64 {
        self.buffer.capacity() as u64
    }

    /// The memory, to be read into again.
    pub fn into_buffer(self) -> IoBuffer {
        self.buffer
    }
}
