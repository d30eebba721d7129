//! The footers of a segment one behind the other, without its records, some of them read ahead.
//!
//! Each is a request of its own, of the blocks it is in: with few under way the device is never waited
//! for long. A footer that is longer than a buffer is read through the reader's window, as all are if
//! there is no memory for buffers.
//!
//! What it keeps true: what is handed out is verified; when a pass ends, however it does, no device has
//! memory of it any more.

use std::collections::VecDeque;
use std::ops::Range;

use super::SegmentInfo;
use super::format::{FOOTER_ENTRY_BYTES, FooterEntry, ImageInfo, checksum, damaged};
use super::reader::{SegmentDirectory, SegmentReader};
use crate::Result;
use crate::io::{BLOCK_BYTES, IoBuffer, Operation, UnderWay};

/// Buffers that footers are read into ahead.
const BUFFERS: usize = 4;

/// The footer of an image, verified.
#[derive(Clone, Copy, Debug)]
pub struct Footer<'b>(&'b [u8]);

impl<'b> Footer<'b> {
    /// The footer that `bytes` begin with.
    pub(super) fn verify(info: &SegmentInfo, image: &ImageInfo, bytes: &'b [u8]) -> Result<Self> {
        let footer = &bytes[..bytes_of(image) as usize];
        match checksum(info.id, image.footer_offset, footer) == image.footer_crc {
            true => Ok(Self(footer)),
            false => Err(damaged(&info.file, image.footer_offset, "an image's footer is damaged")),
        }
    }

    /// What it tells of all records.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = FooterEntry> + 'b {
        self.0.chunks_exact(FOOTER_ENTRY_BYTES).map(FooterEntry::read_from)
    }
}

/// Reads footers ahead.
#[derive(Debug)]
pub struct FooterPass {
    buffer_bytes: usize,
    free: Vec<IoBuffer>,
}

impl FooterPass {
    /// A pass with buffers of `buffer_bytes`, or without if that is 0.
    pub fn new(buffer_bytes: usize) -> Self {
        let buffers = if buffer_bytes == 0 { 0 } else { BUFFERS };
        Self { buffer_bytes, free: (0..buffers).map(|_| IoBuffer::zeroed(buffer_bytes)).collect() }
    }

    /// Bytes of a buffer for the footers of images of so many records.
    pub fn buffer_bytes(records: u32) -> usize {
        // Wherever one begins in its block.
        (records as usize * FOOTER_ENTRY_BYTES).next_multiple_of(BLOCK_BYTES) + BLOCK_BYTES
    }

    /// Memory of the buffers.
    pub fn memory_bytes(buffer_bytes: usize) -> u64 {
        (BUFFERS * buffer_bytes) as u64
    }

    /// Calls `visit` with the footer of each image of a segment, in file order.
    ///
    /// # Errors
    /// Those of `visit` and of the device; [`ErrorKind::Corrupt`](crate::ErrorKind::Corrupt) for a
    /// footer that is damaged.
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
                visit(reader.footer_of(segment, image)?)?;
                continue;
            };
            let (buffer, done) = read.wait();
            let bytes = buffer.as_slice();
            let visited = done.and_then(|()| {
                let from = (image.footer_offset - start) as usize;
                visit(Footer::verify(&segment.info, image, &bytes[from..])?)
            });
            self.free.push(buffer);
            visited?;
        }
        Ok(())
    }

    /// Begins to read a footer, if it fits into a buffer and one is free; also tells where what is read
    /// begins.
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

fn bytes_of(image: &ImageInfo) -> u64 {
    u64::from(image.records) * FOOTER_ENTRY_BYTES as u64
}

/// The blocks that an image's footer is in.
fn blocks_of(image: &ImageInfo) -> Range<u64> {
    let block = BLOCK_BYTES as u64;
    let end = image.footer_offset.saturating_add(bytes_of(image));
    image.footer_offset / block * block..end.checked_next_multiple_of(block).unwrap_or(u64::MAX)
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

    /// A segment whose images have 10 to 466 records, the last of them one.
    fn written(store: &SegmentStore) -> SegmentInfo {
        let mut writer = SegmentWriter::new(store.clone(), STATE, 16 << 10, 1 << 20);
        for image in 0..IMAGES {
            writer.begin_page().unwrap();
            let records = if image + 1 == IMAGES { 1 } else { 10 + 24 * image };
            for record in 0..records {
                let hash = u64::from(image << 16 | record).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                writer.push_encoded(hash, &[record as u8; 33]).unwrap();
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
                flip(&*device, &segment, image.footer_offset + 5);
                let error = told(&store, &segment, buffer).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Corrupt);
                assert_eq!(error.context("file"), Some(&*segment.id.file_name()));
                let offset = image.footer_offset.to_string();
                assert_eq!(error.context("offset"), Some(&*offset), "{error}");
                flip(&*device, &segment, image.footer_offset + 5);
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
