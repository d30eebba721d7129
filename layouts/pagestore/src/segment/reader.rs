//! Reads segments: footers for recovery and liveness, records for restoring and rewriting.
//!
//! Everything is verified before it is handed out. Memory is one window, allocated once.

use std::ops::Range;

use super::footers::{Footer, check_headers, headers_digest};
use super::format::{
    BARE_RECORD_BYTES, FooterEntry, ImageInfo, RECORD_HEADER_BYTES, RecordBytes, SegmentTail,
    TRAILER_BYTES, VerifiedRecord, damaged, verify_header, verify_record,
};
use super::{LiveSet, SegmentId, SegmentInfo, SegmentStore};
use crate::Result;
use crate::io::{BLOCK_BYTES, FileHandle, IoBuffer, Operation, run_blocking};

/// Reads sealed segments of one state.
#[derive(Debug)]
pub struct SegmentReader {
    store: SegmentStore,
    state: u64,
    window: ReadWindow,
    /// Whether it reads no more than it is asked for.
    is_narrow: bool,
}

/// A sealed segment whose header, tail and directory are verified.
#[derive(Debug)]
pub struct SegmentDirectory {
    /// The segment.
    pub info: SegmentInfo,
    images: Vec<ImageInfo>,
}

impl SegmentDirectory {
    /// Returns the segment's images, in file order.
    pub fn images(&self) -> &[ImageInfo] {
        &self.images
    }
}

impl SegmentReader {
    /// Creates a reader for the segments of `state` with a window of `window_bytes`. A record or
    /// footer larger than the window makes it grow.
    pub fn new(store: SegmentStore, state: u64, window_bytes: usize) -> Self {
        let window =
            ReadWindow { of: None, buffer: IoBuffer::zeroed(window_bytes), offset: 0, filled: 0 };
        Self { store, state, window, is_narrow: false }
    }

    /// Reads no more than it is asked for, or goes on to fill its window: where a block cannot be read, what stands before
    /// it can.
    pub fn read_narrowly(&mut self, is_narrow: bool) {
        self.is_narrow = is_narrow;
    }

    /// Verifies a segment's header and reads its directory. An unsealed segment has none: its
    /// images are found from the end, each by the trailer of the one before, with one read each.
    pub fn open(&mut self, info: &SegmentInfo) -> Result<SegmentDirectory> {
        let (file, id) = (&info.file, info.id);
        self.window.forget();
        let len = self.store.device().len(file)?;
        if len < info.bytes || info.bytes < 2 * BLOCK_BYTES as u64 {
            let what = format!("the file has {len} bytes, {} were written", info.bytes);
            return Err(damaged(file, len, &what));
        }
        verify_header(file, id, self.state, self.bytes(info, 0, TRAILER_BYTES)?)?;
        if !info.sealed {
            return self.find_images(info);
        }
        let tail_offset = info.bytes - TRAILER_BYTES as u64;
        let tail = self.bytes(info, tail_offset, TRAILER_BYTES)?;
        let tail = SegmentTail::from_bytes(file, id, info.bytes, tail)?;
        let length = tail.images as usize * TRAILER_BYTES;
        let directory = self.bytes(info, tail.directory_offset, length)?;
        let images = directory
            .chunks_exact(TRAILER_BYTES)
            .map(|entry| ImageInfo::from_bytes(file, id, entry))
            .collect::<Result<Vec<_>>>()?;
        let records: u64 = images.iter().map(|i| u64::from(i.records)).sum();
        if records != tail.records || records != info.records {
            let what = format!("{records} records in the directory, {} expected", info.records);
            return Err(damaged(file, tail_offset, &what));
        }
        Ok(SegmentDirectory { info: info.clone(), images })
    }

    /// The images of a segment that is not sealed.
    fn find_images(&mut self, info: &SegmentInfo) -> Result<SegmentDirectory> {
        let (file, id) = (&info.file, info.id);
        let (mut images, mut end) = (Vec::new(), info.bytes);
        while end > BLOCK_BYTES as u64 {
            let at = end - TRAILER_BYTES as u64;
            let image = ImageInfo::from_bytes(file, id, self.bytes(info, at, TRAILER_BYTES)?)?;
            let is_here = image.offset < at && image.offset.checked_add(image.bytes) == Some(end);
            if !is_here {
                return Err(damaged(file, at, "an image's trailer is that of another"));
            }
            images.push(image);
            end = image.offset;
        }
        images.reverse();
        let records: u64 = images.iter().map(|i| u64::from(i.records)).sum();
        if records != info.records {
            let what = format!("{records} records in the images, {} expected", info.records);
            return Err(damaged(file, info.bytes, &what));
        }
        Ok(SegmentDirectory { info: info.clone(), images })
    }

    /// Reads an image of the directory in one go, with those after it that the window has room for as a whole, unless it
    /// was read. For who wants records of each image, in order: footers stand behind the records that they tell of. What
    /// is longer than the window is left to the calls that need it.
    pub fn read_on(&mut self, segment: &SegmentDirectory, nth: usize) -> Result<()> {
        let images = segment.images.get(nth..).unwrap_or_default();
        let start = images.first().map_or(0, |first| first.offset);
        let room = self.window.room_from(start);
        let ends = images.iter().map(|image| image.offset.saturating_add(image.bytes));
        let fits = |end: &u64| *end <= segment.info.bytes && end.saturating_sub(start) <= room;
        let mut whole = ends.take_while(fits).filter(|end| *end > start);
        let Some(first) = whole.next() else { return Ok(()) };
        if self.window.covers(&segment.info, start, (first - start) as usize) {
            return Ok(());
        }
        let end = whole.last().filter(|_| !self.is_narrow).unwrap_or(first);
        self.window.read(&self.store, &segment.info, start..end)
    }

    /// Fills `entries` with those of an image. Reads no records if the image has a footer.
    pub fn footer(
        &mut self,
        segment: &SegmentDirectory,
        image: &ImageInfo,
        entries: &mut Vec<FooterEntry>,
    ) -> Result<()> {
        entries.clear();
        if image.bare_len > 0 {
            return self.list_bare(&segment.info, image, entries);
        }
        entries.extend(self.footer_of(segment, image)?.iter());
        Ok(())
    }

    /// Lists the records of an image without a footer, by their headers, a block at a time.
    fn list_bare(
        &mut self,
        info: &SegmentInfo,
        image: &ImageInfo,
        entries: &mut Vec<FooterEntry>,
    ) -> Result<()> {
        let (Range { start, end }, mut digest) = (image.told(), 0);
        if end > info.bytes {
            return Err(damaged(&info.file, start, "an image is longer than its segment"));
        }
        entries.reserve_exact(image.records as usize);
        for block in (start..end).step_by(BLOCK_BYTES) {
            let length = (end - block).min(BLOCK_BYTES as u64) as usize;
            let records = self.bytes(info, block, length)?;
            digest = headers_digest(digest, records);
            let offsets = (block..).step_by(BARE_RECORD_BYTES);
            let headers = offsets.zip(records.chunks_exact(BARE_RECORD_BYTES));
            entries.extend(
                headers.map(|(at, header)| FooterEntry::of_header(header, at, image.bare_len)),
            );
        }
        check_headers(info, image, digest)
    }

    /// The footer of an image that has one.
    pub(super) fn footer_of(
        &mut self,
        segment: &SegmentDirectory,
        image: &ImageInfo,
    ) -> Result<Footer<'_>> {
        let length = image.footer_bytes() as usize;
        let bytes = self.bytes(&segment.info, image.footer_offset, length)?;
        Footer::verify(&segment.info, image, bytes)
    }

    /// Where the segments are.
    pub(super) fn store(&self) -> &SegmentStore {
        &self.store
    }

    /// Reads and verifies one record.
    pub fn record(&mut self, info: &SegmentInfo, entry: &FooterEntry) -> Result<RecordBytes<'_>> {
        let (file, id, offset) = (&info.file, info.id, entry.offset());
        let length = RECORD_HEADER_BYTES + entry.len as usize;
        match verify_record(file, id, offset, self.bytes(info, offset, length)?)? {
            VerifiedRecord::Record(record) if record.hash == entry.hash => Ok(record),
            _ => Err(damaged(file, offset, "a record is not the one its footer tells of")),
        }
    }

    /// Calls `visit` with each record of a segment in `live`, in file order.
    pub fn for_each(
        &mut self,
        info: &SegmentInfo,
        live: Option<&LiveSet>,
        visit: impl FnMut(&FooterEntry, RecordBytes<'_>) -> Result<()>,
    ) -> Result<()> {
        let directory = self.open(info)?;
        self.for_each_in(&directory, |entry| live.is_none_or(|l| l.contains(entry.grain)), visit)
    }

    /// Calls `visit` with each record of a segment that is `wanted`, in file order.
    pub(super) fn for_each_in(
        &mut self,
        directory: &SegmentDirectory,
        wanted: impl Fn(&FooterEntry) -> bool,
        mut visit: impl FnMut(&FooterEntry, RecordBytes<'_>) -> Result<()>,
    ) -> Result<()> {
        let mut entries = Vec::new();
        for image in directory.images() {
            self.footer(directory, image, &mut entries)?;
            for entry in entries.iter().filter(|entry| wanted(entry)) {
                visit(entry, self.record(&directory.info, entry)?)?;
            }
        }
        Ok(())
    }

    fn bytes(&mut self, info: &SegmentInfo, offset: u64, length: usize) -> Result<&[u8]> {
        let until = if self.is_narrow { 0 } else { u64::MAX };
        self.window.bytes(&self.store, info, (offset, length), until)
    }
}

/// A part of one segment in memory.
#[derive(Debug)]
struct ReadWindow {
    of: Option<SegmentId>,
    buffer: IoBuffer,
    offset: u64,
    filled: usize,
}

impl ReadWindow {
    fn forget(&mut self) {
        self.of = None;
    }

    /// Bytes from an offset on that it has room for.
    fn room_from(&self, offset: u64) -> u64 {
        (self.buffer.capacity() as u64).saturating_sub(offset % BLOCK_BYTES as u64)
    }

    fn covers(&self, info: &SegmentInfo, offset: u64, length: usize) -> bool {
        self.of == Some(info.id)
            && offset >= self.offset
            && offset + length as u64 <= self.offset + self.filled as u64
    }

    /// Reads a range that it has room for, and no more.
    fn read(&mut self, store: &SegmentStore, info: &SegmentInfo, range: Range<u64>) -> Result<()> {
        let length = (range.end - range.start) as usize;
        self.fill(store, &info.file, range.start, length, range.end)?;
        self.of = Some(info.id);
        Ok(())
    }

    fn bytes(
        &mut self,
        store: &SegmentStore,
        info: &SegmentInfo,
        (offset, length): (u64, usize),
        until: u64,
    ) -> Result<&[u8]> {
        if !self.covers(info, offset, length) {
            self.fill(store, &info.file, offset, length, until)?;
            self.of = Some(info.id);
        }
        let start = (offset - self.offset) as usize;
        Ok(&self.buffer.as_slice()[start..start + length])
    }

    fn fill(
        &mut self,
        store: &SegmentStore,
        file: &FileHandle,
        offset: u64,
        length: usize,
        until: u64,
    ) -> Result<()> {
        self.forget();
        let block = BLOCK_BYTES as u64;
        let start = offset / block * block;
        let end = (offset + length as u64).next_multiple_of(block);
        if self.buffer.capacity() < (end - start) as usize {
            // Not both at once.
            self.buffer = IoBuffer::empty();
            self.buffer = IoBuffer::zeroed((end - start) as usize);
        }
        let file_end = store.device().len(file)? / block * block;
        if end > file_end {
            let what = format!("the file ends at {file_end}, {end} bytes are needed");
            return Err(damaged(file, offset, &what));
        }
        // What is in the window ends with a block of the file.
        let until = until.max(end).min(file_end).next_multiple_of(block);
        let want = (self.buffer.capacity() as u64).min(until - start) as usize;
        self.buffer.set_len(want);
        let buffer = std::mem::replace(&mut self.buffer, IoBuffer::empty());
        let operation = Operation::Read { offset: start };
        let (buffer, done) = run_blocking(store.device(), file, operation, buffer);
        self.buffer = buffer;
        done?;
        (self.offset, self.filled) = (start, want);
        Ok(())
    }
}
