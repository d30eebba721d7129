//! Reads the footers of a segment one after another, without its records, some of them ahead.
//!
//! Each footer is one request for the blocks that contain it. With a few in flight, the reader
//! seldom waits for the device. A footer longer than a buffer is read through the reader's window,
//! and so are all footers without memory for buffers. An image without a footer is read by its
//! records' headers.
//!
//! Invariants: everything handed out is verified; once a pass ends, for any reason, no device has
//! memory of it.

use std::collections::VecDeque;
use std::ops::Range;

use super::format::{
    BARE_RECORD_BYTES, FOOTER_ENTRY_BYTES, FooterEntry, ImageInfo, RECORD_HEADER_BYTES, checksum,
    damaged,
};
use super::reader::{SegmentDirectory, SegmentReader};
use super::{SegmentId, SegmentInfo};
use crate::Result;
use crate::io::{BLOCK_BYTES, IoBuffer, Operation, UnderWay};

/// Buffers that footers are read into ahead.
const BUFFERS: usize = 4;

/// The verified footer of an image, or the records that replace it.
#[derive(Clone, Copy, Debug)]
pub struct Footer<'b>(FooterForm<'b>);

#[derive(Clone, Copy, Debug)]
enum FooterForm<'b> {
    Entries(&'b [u8]),
    /// Records without a footer, the first of which begins at an offset, and the bytes of each
    /// payload.
    Records(&'b [u8], u64, u32),
    Listed(&'b [FooterEntry]),
}

impl<'b> Footer<'b> {
    /// The footer of an image that was verified, of which `bytes` begin with what
    /// [tells](ImageInfo::told) its records.
    #[inline]
    pub(super) fn of(image: &ImageInfo, bytes: &'b [u8]) -> Self {
        let told = image.told();
        let bytes = &bytes[..(told.end - told.start) as usize];
        match image.bare_len {
            0 => Self(FooterForm::Entries(bytes)),
            len => Self(FooterForm::Records(bytes, told.start, len)),
        }
    }

    /// The same, verified.
    pub(super) fn verify(info: &SegmentInfo, image: &ImageInfo, bytes: &'b [u8]) -> Result<Self> {
        let footer = Self::of(image, bytes);
        match footer.0 {
            FooterForm::Entries(bytes) => {
                if checksum(info.id, image.footer_offset, bytes) != image.footer_crc {
                    let what = "an image's footer is damaged";
                    return Err(damaged(&info.file, image.footer_offset, what));
                }
            }
            FooterForm::Records(bytes, ..) => check_headers(info, image, headers_digest(0, bytes))?,
            FooterForm::Listed(_) => {}
        }
        Ok(footer)
    }

    /// What was read of an image, and verified.
    pub(super) fn listed(entries: &'b [FooterEntry]) -> Self {
        Self(FooterForm::Listed(entries))
    }

    /// Returns the number of records.
    pub fn len(&self) -> usize {
        match self.0 {
            FooterForm::Entries(bytes) => bytes.len() / FOOTER_ENTRY_BYTES,
            FooterForm::Records(bytes, ..) => bytes.len() / BARE_RECORD_BYTES,
            FooterForm::Listed(entries) => entries.len(),
        }
    }

    /// Returns whether there are no records.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the entry of a record.
    #[inline]
    pub(super) fn entry(&self, record: usize) -> FooterEntry {
        match self.0 {
            FooterForm::Entries(bytes) => {
                FooterEntry::read_from(&bytes[record * FOOTER_ENTRY_BYTES..])
            }
            FooterForm::Records(bytes, first, len) => {
                let at = record * BARE_RECORD_BYTES;
                FooterEntry::of_header(&bytes[at..], first + at as u64, len)
            }
            FooterForm::Listed(entries) => entries[record],
        }
    }

    /// Returns the entries of all records.
    #[inline]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = FooterEntry> + use<'b> {
        let footer = *self;
        (0..footer.len()).map(move |record| footer.entry(record))
    }
}

/// The digest of the headers of records without a footer, after those before them.
pub(super) fn headers_digest(before: u32, records: &[u8]) -> u32 {
    let headers = records.chunks_exact(BARE_RECORD_BYTES).map(|r| &r[..RECORD_HEADER_BYTES]);
    headers.fold(before, crc32c::crc32c_append)
}

/// The checksum of an image without a footer whose records' headers have this digest.
pub(super) fn headers_checksum(id: SegmentId, offset: u64, digest: u32) -> u32 {
    checksum(id, offset, &digest.to_le_bytes())
}

/// Whether the headers of an image without a footer are those that were written.
pub(super) fn check_headers(info: &SegmentInfo, image: &ImageInfo, digest: u32) -> Result<()> {
    match headers_checksum(info.id, image.offset, digest) == image.footer_crc {
        true => Ok(()),
        false => Err(damaged(&info.file, image.offset, "an image's records are damaged")),
    }
}

/// Reads footers ahead.
#[derive(Debug)]
pub struct FooterPass {
    buffer_bytes: usize,
    free: Vec<IoBuffer>,
    /// Of an image without a footer that was read through the window.
    entries: Vec<FooterEntry>,
}

impl FooterPass {
    /// Creates a pass with buffers of `buffer_bytes`, or without buffers at 0.
    pub fn new(buffer_bytes: usize) -> Self {
        let buffers = if buffer_bytes == 0 { 0 } else { BUFFERS };
        let free = (0..buffers).map(|_| IoBuffer::zeroed(buffer_bytes)).collect();
        Self { buffer_bytes, free, entries: Vec::new() }
    }

    /// Returns the bytes of a buffer for footers of `records` records, or for images without a
    /// footer.
    pub fn buffer_bytes(records: u32) -> usize {
        // Wherever one begins in its block.
        (records as usize * BARE_RECORD_BYTES).next_multiple_of(BLOCK_BYTES) + BLOCK_BYTES
    }

    /// Returns the bytes of all buffers.
    pub fn memory_bytes(buffer_bytes: usize) -> u64 {
        (BUFFERS * buffer_bytes) as u64
    }

    /// Calls `visit` with the footer of each image of a segment, in file order.
    ///
    /// # Errors
    /// Those of `visit` and of the device; [`ErrorKind::Corrupt`](crate::ErrorKind::Corrupt) for a
    /// damaged footer.
    pub fn run(
        &mut self,
        reader: &mut SegmentReader,
        segment: &SegmentDirectory,
        mut visit: impl FnMut(Footer<'_>) -> Result<()>,
    ) -> Result<()> {
        let images = segment.images();
        let mut ahead: VecDeque<(UnderWay, u64)> = VecDeque::with_capacity(BUFFERS);
        let mut next = 0;
        for image in images {
            while next < images.len() {
                let Some(read) = self.start(reader, segment, &images[next]) else { break };
                ahead.push_back(read);
                next += 1;
            }
            let Some((read, start)) = ahead.pop_front() else {
                next += 1;
                if image.bare_len == 0 {
                    visit(reader.footer_of(segment, image)?)?;
                } else {
                    reader.footer(segment, image, &mut self.entries)?;
                    visit(Footer::listed(&self.entries))?;
                }
                continue;
            };
            let (buffer, done) = read.wait();
            let bytes = buffer.as_slice();
            let visited = done.and_then(|()| {
                let from = (image.told().start - start) as usize;
                visit(Footer::verify(&segment.info, image, &bytes[from..])?)
            });
            self.free.push(buffer);
            visited?;
        }
        Ok(())
    }

    /// Begins to read a footer, if it fits into a buffer and one is free; also tells where what is
    /// read begins.
    fn start(
        &mut self,
        reader: &SegmentReader,
        segment: &SegmentDirectory,
        image: &ImageInfo,
    ) -> Option<(UnderWay, u64)> {
        let Range { start, end } = blocks_of(image);
        let fits = end - start <= self.buffer_bytes as u64 && end <= segment.info.bytes;
        let mut buffer = fits.then(|| self.free.pop()).flatten()?;
        buffer.set_len((end - start) as usize);
        let operation = Operation::Read { offset: start };
        let device = reader.store().shared_device();
        Some((UnderWay::start(device, &segment.info.file, operation, buffer), start))
    }
}

/// The blocks that tell of an image's records.
fn blocks_of(image: &ImageInfo) -> Range<u64> {
    let block = BLOCK_BYTES as u64;
    let Range { start, end } = image.told();
    start / block * block..end.checked_next_multiple_of(block).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;
    use crate::io::{Device, Faults, Simulated, run_blocking};
    use crate::segment::{SegmentStore, SegmentWriter};
    use std::sync::Arc;

    const STATE: u64 = 9;
    const IMAGES: u32 = 20;

    /// A segment whose images have 10 to 466 records, the last of them one; every third has no
    /// footer.
    fn written(store: &SegmentStore) -> SegmentInfo {
        let mut writer = SegmentWriter::new(store.clone(), STATE, 16 << 10, 1 << 20);
        for image in 0..IMAGES {
            writer.begin_page().unwrap();
            let records = if image + 1 == IMAGES { 1 } else { 10 + 24 * image };
            for record in 0..records {
                let hash = u64::from(image << 16 | record).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                let len = if image % 3 == 1 { 1 + image as usize % 16 } else { 33 };
                writer.push_encoded(hash, &vec![record as u8; len]).unwrap();
            }
            writer.finish_page().unwrap();
        }
        writer.seal().unwrap();
        writer.take_sealed().pop().unwrap()
    }

    fn told(
        store: &SegmentStore,
        segment: &SegmentInfo,
        buffer: usize,
    ) -> Result<Vec<FooterEntry>> {
        let mut reader = SegmentReader::new(store.clone(), STATE, 8 << 10);
        let (directory, mut all) = (reader.open(segment)?, Vec::new());
        FooterPass::new(buffer).run(&mut reader, &directory, |footer| {
            all.extend(footer.iter());
            Ok(())
        })?;
        Ok(all)
    }

    #[test]
    fn buffers_of_any_size_and_none_tell_of_the_same_records() {
        let device = Arc::new(Simulated::new(8, Faults::late(8)));
        let store = SegmentStore::new(device.clone(), 1);
        let segment = written(&store);
        let mut reader = SegmentReader::new(store.clone(), STATE, 8 << 10);
        let (mut expected, mut entries) = (Vec::new(), Vec::new());
        let directory = reader.open(&segment).unwrap();
        for image in directory.images() {
            reader.footer(&directory, image, &mut entries).unwrap();
            expected.append(&mut entries);
        }
        assert_eq!(expected.len() as u64, segment.records);
        let bare = directory.images().iter().filter(|image| image.bare_len > 0).count();
        assert_eq!(bare, 7, "some have no footer");
        let longest = FooterPass::buffer_bytes(466);
        for buffer in [0, 4 << 10, 8 << 10, longest, 64 << 10] {
            let before = device.stats().bytes_read;
            assert_eq!(told(&store, &segment, buffer).unwrap(), expected, "{buffer}");
            let read = device.stats().bytes_read - before;
            // Header, tail, directory, and no records but those in the blocks of footers.
            let most = 4 * (8 << 10) + u64::from(IMAGES) * longest as u64;
            assert!(buffer < longest || read <= most, "{read} bytes, {most} at the most");
        }
    }

    #[test]
    fn damage_and_errors_of_who_looks_end_it_whatever_the_buffer() {
        let device = Arc::new(Simulated::new(9, Faults::none()));
        let store = SegmentStore::new(device.clone(), 1);
        let segment = written(&store);
        let mut reader = SegmentReader::new(store.clone(), STATE, 8 << 10);
        let directory = reader.open(&segment).unwrap();
        for buffer in [0, 8 << 10, 64 << 10] {
            for image in directory.images() {
                // Of a record's header, if there is no footer.
                let at = image.told().start;
                flip(&*device, &segment, at + 5);
                let error = told(&store, &segment, buffer).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Corrupt);
                assert_eq!(error.context("file"), Some(&*segment.id.file_name()));
                assert_eq!(error.context("offset"), Some(&*at.to_string()), "{error}");
                flip(&*device, &segment, at + 5);
            }
            let mut left = 7;
            let stopped = FooterPass::new(buffer).run(&mut reader, &directory, |_| {
                left -= 1;
                if left > 0 { Ok(()) } else { Err(crate::Error::new(ErrorKind::InUse, "so far")) }
            });
            assert_eq!((stopped.unwrap_err().kind(), left), (ErrorKind::InUse, 0));
        }
        assert_eq!(told(&store, &segment, 8 << 10).unwrap().len() as u64, segment.records);
    }

    /// Changes a bit of a byte.
    fn flip(device: &dyn Device, segment: &SegmentInfo, at: u64) {
        let offset = at / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
        let (file, block) = (&segment.file, IoBuffer::zeroed(BLOCK_BYTES));
        let (mut block, done) = run_blocking(device, file, Operation::Read { offset }, block);
        done.unwrap();
        block.as_mut_slice()[(at - offset) as usize] ^= 4;
        run_blocking(device, file, Operation::Write { offset }, block).1.unwrap();
    }
}
