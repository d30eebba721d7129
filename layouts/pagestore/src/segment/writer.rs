//! Writes segments: takes records, writes page images in chunks of bounded size.
//!
//! A state has one writer. It owns one chunk of I/O memory and one scratch archive, and its memory
//! is known when it is created. A large chunk has two halves: one is filled while the other is
//! written. A failed page is abandoned whole: the next page overwrites it, and nothing ever refers
//! to it. Runs on helper threads.

use crate::channel::Receiver;
use rkyv::util::AlignedVec;

use super::footers::headers_checksum;
use super::format::{
    FOOTER_ENTRY_BYTES, FooterEntry, GRAIN_BYTES, ImageInfo, RECORD_BYTES_MAX, RECORD_HEADER_BYTES,
    SEGMENT_BYTES_MAX, SegmentId, SegmentTail, TRAILER_BYTES, checksum, record_header,
    segment_header,
};
use super::placing::{Lengths, footer_and_end, has_room, is_full, record_offset};
use super::{SegmentInfo, SegmentStore};
use crate::io::{
    Appended, BLOCK_BYTES, Completion, FileHandle, IoBuffer, Operation, move_chunk, submit_one,
    wait_for,
};
use crate::{Error, ErrorKind, Result, State, Time, Trials};

/// A chunk of so many bytes is in two halves.
const HALVES_MIN_BYTES: usize = 128 << 10;

/// Writes one state's segments.
#[derive(Debug)]
pub struct SegmentWriter {
    store: SegmentStore,
    state: u64,
    segment_bytes: u64,
    images_max: usize,
    chunk: IoBuffer,
    other: OtherHalf,
    scratch: AlignedVec,
    open: Option<OpenSegment>,
    sealed: Vec<SegmentInfo>,
    page: OpenImage,
    trials: Trials,
}

/// The other half of the chunk.
#[derive(Debug)]
enum OtherHalf {
    /// There is one half.
    None,
    Free(IoBuffer),
    /// It is being written to the file.
    UnderWay(FileHandle, Receiver<Completion>),
}

#[derive(Debug)]
struct OpenSegment {
    id: SegmentId,
    /// Up to where the next image starts.
    written: Appended,
    images: Vec<ImageInfo>,
    records: u64,
    max_record_bytes: u64,
    /// Of all images.
    digest: u32,
    /// The latest of the times that its records were pushed with.
    latest: Option<Time>,
}

/// The image being written.
#[derive(Debug, Default)]
struct OpenImage {
    /// Segment offset of the chunk's first byte.
    chunk_offset: u64,
    /// Bytes used in the chunk.
    filled: usize,
    /// Of the segment's bytes before the chunk.
    crc: u32,
    footer: Vec<u8>,
    records: u32,
    lengths: Lengths,
    max_record_bytes: u64,
    /// Of its records' headers, which have their checksums.
    digest: u32,
    latest: Option<Time>,
}

/// The result of writing a page.
#[derive(Clone, Debug)]
pub struct WrittenPage {
    /// The segment after the page; not sealed.
    pub segment: SegmentInfo,
    /// Bytes of the image.
    pub bytes: u64,
}

impl SegmentWriter {
    /// Creates a writer with a chunk of `chunk_bytes` (at least two blocks), whose segments end
    /// near `segment_bytes`. Takes about [`memory_bytes`](SegmentWriter::memory_bytes).
    pub fn new(store: SegmentStore, state: u64, chunk_bytes: usize, segment_bytes: u64) -> Self {
        let (chunk, other) = if chunk_bytes >= HALVES_MIN_BYTES {
            let half = chunk_bytes / 2 / BLOCK_BYTES * BLOCK_BYTES;
            (IoBuffer::zeroed(half), OtherHalf::Free(IoBuffer::zeroed(half)))
        } else {
            (IoBuffer::zeroed(chunk_bytes.max(2 * BLOCK_BYTES)), OtherHalf::None)
        };
        Self {
            store,
            state,
            segment_bytes,
            images_max: usize::MAX,
            chunk,
            other,
            scratch: AlignedVec::new(),
            open: None,
            sealed: Vec::new(),
            page: OpenImage::default(),
            trials: Trials::default(),
        }
    }

    /// Bytes of memory per image of the open segment: its entry, and its part of the directory
    /// while the segment is sealed.
    pub const IMAGE_BYTES: u64 = (2 * size_of::<ImageInfo>() + TRAILER_BYTES) as u64;

    /// Ends segments after this many images too, for writers of small images. Their memory is then
    /// bounded and can be reserved.
    #[must_use]
    pub fn images_max(mut self, images: usize) -> Self {
        self.images_max = images;
        self
    }

    /// Returns the bytes of memory of a writer with this chunk, pages of `records` records, and
    /// values whose archives take up to `value_bytes`.
    pub fn memory_bytes(chunk_bytes: usize, records: usize, value_bytes: u64) -> u64 {
        let footer = (records * FOOTER_ENTRY_BYTES).next_power_of_two();
        (chunk_bytes.max(2 * BLOCK_BYTES) + footer) as u64 + value_bytes
    }

    /// Starts a page and returns its segment, which is final once
    /// [`finish_page`](SegmentWriter::finish_page) succeeds.
    pub fn begin_page(&mut self) -> Result<SegmentId> {
        self.begin_page_for(0)
    }

    /// Starts a page whose first payload has `payload_bytes`. Uses a new segment if the open one
    /// has no room for it.
    pub fn begin_page_for(&mut self, payload_bytes: usize) -> Result<SegmentId> {
        // Of a page that was given up: this one is written over it.
        let _ = self.settle();
        let is_full = |open: &OpenSegment| {
            is_full(open.written.end(), self.segment_bytes)
                || open.images.len() >= self.images_max
                || !has_room(open.written.end(), 0, payload_bytes)
                    && open.written.end() > BLOCK_BYTES as u64
        };
        if self.open.as_ref().is_some_and(is_full) {
            self.seal()?;
        }
        if self.open.is_none() {
            self.open = Some(self.create()?);
        }
        let open = self.open.as_ref().expect("opened above");
        let OpenImage { footer, .. } = std::mem::take(&mut self.page);
        let (chunk_offset, crc) = (open.written.end(), open.written.crc());
        self.page = OpenImage { chunk_offset, crc, footer, ..OpenImage::default() };
        self.page.footer.clear();
        self.chunk.set_len(self.chunk.capacity());
        Ok(open.id)
    }

    /// Returns whether the current page has room for another payload of `payload_bytes`.
    pub fn has_room(&self, payload_bytes: usize) -> bool {
        has_room(self.position(), self.page.records, payload_bytes)
    }

    /// Encodes a record for the next [`append`](SegmentWriter::append). Returns the bytes of its
    /// payload.
    pub fn encode<K: State, V: State>(&mut self, key: &K, value: &V) -> Result<usize> {
        self.trials.encode(&mut self.scratch, key, value)?;
        Ok(self.scratch.len())
    }

    /// Appends the record [encoded](SegmentWriter::encode) last. Returns its offset in units of
    /// [`GRAIN_BYTES`].
    pub fn append(&mut self, hash: u64) -> Result<u32> {
        let scratch = std::mem::take(&mut self.scratch);
        let pushed = self.push_encoded(hash, &scratch);
        self.scratch = scratch;
        pushed
    }

    /// Encodes and appends one record. Returns its offset in units of [`GRAIN_BYTES`].
    pub fn push<K: State, V: State>(&mut self, hash: u64, key: &K, value: &V) -> Result<u32> {
        self.encode(key, value)?;
        self.append(hash)
    }

    /// Frees the memory of the last record's archive if it exceeds `bytes`.
    pub fn shrink_scratch(&mut self, bytes: usize) {
        if self.scratch.capacity() > bytes {
            self.scratch = AlignedVec::new();
        }
    }

    /// Returns the trials, for callers that encode records themselves.
    pub fn trials(&mut self) -> &mut Trials {
        &mut self.trials
    }

    /// Appends one encoded record.
    pub fn push_encoded(&mut self, hash: u64, payload: &[u8]) -> Result<u32> {
        self.push_parts(hash, &[payload])
    }

    /// Appends one record whose payload is the concatenation of these parts.
    pub fn push_parts(&mut self, hash: u64, payload: &[&[u8]]) -> Result<u32> {
        let length: usize = payload.iter().map(|part| part.len()).sum();
        let bytes = (RECORD_HEADER_BYTES + length) as u64;
        let at = record_offset(self.position(), bytes);
        if at + bytes + self.closing_bytes() > SEGMENT_BYTES_MAX {
            let message = format!(
                "a key and its value take {length} bytes on storage; {RECORD_BYTES_MAX} is the most"
            );
            return Err(Error::new(ErrorKind::ValueTooLarge, message));
        }
        let id = self.open.as_ref().expect("a page is begun").id;
        self.pad_to(at)?;
        let header = record_header(id, at, hash, payload);
        self.page.digest = crc32c::crc32c_append(self.page.digest, &header);
        self.put(&header)?;
        payload.iter().try_for_each(|part| self.put(part))?;
        let grain = (at / GRAIN_BYTES) as u32;
        FooterEntry { hash, grain, len: length as u32 }.write_to(&mut self.page.footer);
        self.page.records += 1;
        self.page.lengths.add(length);
        self.page.max_record_bytes = self.page.max_record_bytes.max(bytes);
        Ok(grain)
    }

    /// Notes when a record of the page was last touched. Its segment keeps the latest of these
    /// times.
    pub fn stamp(&mut self, touched: Time) {
        self.page.latest = self.page.latest.max(Some(touched));
    }

    /// Returns the number of records in the page.
    pub fn page_records(&self) -> u32 {
        self.page.records
    }

    /// Returns the bytes of the page.
    pub fn page_bytes(&self) -> u64 {
        self.open.as_ref().map_or(0, |open| self.position() - open.written.end())
    }

    /// Writes the rest of the page, with footer and trailer.
    pub fn finish_page(&mut self) -> Result<WrittenPage> {
        let open = self.open.as_ref().expect("a page is begun");
        let (id, offset) = (open.id, open.written.end());
        let bare_len = self.page.lengths.bare();
        let mut footer = std::mem::take(&mut self.page.footer);
        if bare_len > 0 {
            footer.clear();
        }
        let (footer_offset, end) = footer_and_end(self.position(), footer.len());
        self.pad_to(footer_offset)?;
        let info = ImageInfo {
            offset,
            bytes: end - offset,
            records: self.page.records,
            footer_offset,
            footer_crc: match bare_len {
                0 => checksum(id, footer_offset, &footer),
                _ => headers_checksum(id, offset, self.page.digest),
            },
            bare_len,
        };
        let written = self
            .put(&footer)
            .and_then(|()| self.pad_to(end - TRAILER_BYTES as u64))
            .and_then(|()| self.put(&info.to_bytes(id)))
            .and_then(|()| self.write_chunk())
            .and_then(|()| self.settle());
        self.page.footer = footer;
        written?;
        let open = self.open.as_mut().expect("still open");
        open.written.extend_to(end, self.page.crc);
        open.images.push(info);
        open.records += u64::from(info.records);
        open.max_record_bytes = open.max_record_bytes.max(self.page.max_record_bytes);
        open.digest = crc32c::crc32c_append(open.digest, &self.page.digest.to_le_bytes());
        open.latest = open.latest.max(self.page.latest);
        self.page.records = 0;
        Ok(WrittenPage { segment: open.info(), bytes: info.bytes })
    }

    /// Seals the open segment, if there is one, and makes it durable.
    pub fn seal(&mut self) -> Result<()> {
        let _ = self.settle();
        let Some(open) = self.open.as_mut() else { return Ok(()) };
        self.chunk.set_len(self.chunk.capacity());
        open.written.write_doubtful(self.store.device(), &mut self.chunk)?;
        let (id, start) = (open.id, open.written.end());
        let directory: Vec<u8> = open.images.iter().flat_map(|i| i.to_bytes(id)).collect();
        let tail = SegmentTail {
            directory_offset: start,
            images: open.images.len() as u32,
            records: open.records,
            digest: open.digest,
        };
        let end =
            (start + (directory.len() + TRAILER_BYTES) as u64).next_multiple_of(BLOCK_BYTES as u64);
        let crc = open.written.crc();
        self.page = OpenImage { chunk_offset: start, crc, ..OpenImage::default() };
        self.chunk.set_len(self.chunk.capacity());
        self.put(&directory)?;
        self.pad_to(end - TRAILER_BYTES as u64)?;
        self.put(&tail.to_bytes(id))?;
        self.write_chunk()?;
        self.settle()?;
        let mut open = self.open.take().expect("still open");
        if let Err(error) = open.written.sync(self.store.device(), &mut self.chunk) {
            self.open = Some(open);
            return Err(error);
        }
        open.written.extend_to(end, self.page.crc);
        self.sealed.push(SegmentInfo { sealed: true, ..open.info() });
        Ok(())
    }

    /// Removes the open segment, if there is one, with its records. The next open removes a file
    /// that cannot be removed now.
    pub fn abandon(&mut self) {
        let _ = self.settle();
        // A page that was begun is no page any more.
        self.page.records = 0;
        if let Some(open) = self.open.take() {
            let _ = self.store.remove(open.id);
        }
    }

    /// Removes the segments sealed since they were last [taken](SegmentWriter::take_sealed).
    pub fn remove_sealed(&mut self) {
        for info in self.take_sealed() {
            let _ = self.store.remove(info.id);
        }
    }

    /// Returns the segments sealed since the last call.
    pub fn take_sealed(&mut self) -> Vec<SegmentInfo> {
        std::mem::take(&mut self.sealed)
    }

    fn create(&mut self) -> Result<OpenSegment> {
        let id = self.store.next_id();
        let file = self.store.device().create(&id.file_name())?;
        self.chunk.set_len(BLOCK_BYTES);
        self.chunk.as_mut_slice().fill(0);
        self.chunk.as_mut_slice()[..TRAILER_BYTES].copy_from_slice(&segment_header(id, self.state));
        let crc = crc32c::crc32c(self.chunk.as_slice());
        let (device, operation) = (self.store.device(), Operation::Write { offset: 0 });
        if let Err(error) = move_chunk(device, &file, operation, &mut self.chunk, BLOCK_BYTES) {
            // Nothing refers to the file; if it cannot be removed now, the next open does.
            let _ = self.store.remove(id);
            return Err(error);
        }
        let mut written = Appended::new(file);
        written.extend_to(BLOCK_BYTES as u64, crc);
        Ok(OpenSegment {
            id,
            written,
            images: Vec::new(),
            records: 0,
            max_record_bytes: 0,
            digest: 0,
            latest: None,
        })
    }

    fn position(&self) -> u64 {
        self.page.chunk_offset + self.page.filled as u64
    }

    /// Upper bound of what the page's footer and the segment's directory will take.
    fn closing_bytes(&self) -> u64 {
        let images = self.open.as_ref().map_or(0, |open| open.images.len() + 1);
        let footer = self.page.footer.len() + FOOTER_ENTRY_BYTES + TRAILER_BYTES;
        (footer + images * TRAILER_BYTES + 3 * BLOCK_BYTES) as u64
    }

    fn pad_to(&mut self, position: u64) -> Result<()> {
        const ZEROS: [u8; BLOCK_BYTES] = [0; BLOCK_BYTES];
        while self.position() < position {
            let n = (position - self.position()).min(BLOCK_BYTES as u64) as usize;
            self.put(&ZEROS[..n])?;
        }
        Ok(())
    }

    fn put(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let room = self.chunk.capacity() - self.page.filled;
            if room == 0 {
                self.write_chunk()?;
                continue;
            }
            let n = room.min(bytes.len());
            let (now, later) = bytes.split_at(n);
            let filled = self.page.filled;
            self.chunk.as_mut_slice()[filled..filled + n].copy_from_slice(now);
            self.page.filled += n;
            bytes = later;
        }
        Ok(())
    }

    /// Waits for the half of the chunk that is being written, if one is.
    fn settle(&mut self) -> Result<()> {
        let OtherHalf::UnderWay(file, completions) = &self.other else { return Ok(()) };
        let (mut half, done) = wait_for(self.store.device(), file, completions);
        if half.capacity() == 0 {
            half = IoBuffer::zeroed(self.chunk.capacity());
        }
        half.set_len(half.capacity());
        self.other = OtherHalf::Free(half);
        done
    }

    /// Writes the filled part of the chunk, which is whole blocks, and starts it anew; of one in
    /// two halves, begins to. What fails is told by the next call that writes.
    fn write_chunk(&mut self) -> Result<()> {
        if self.page.filled == 0 {
            return Ok(());
        }
        debug_assert_eq!(self.page.filled % BLOCK_BYTES, 0);
        let file = self.open.as_ref().expect("a page is begun").written.file().clone();
        let operation = Operation::Write { offset: self.page.chunk_offset };
        self.settle()?;
        let crc = crc32c::crc32c_append(self.page.crc, &self.chunk.as_slice()[..self.page.filled]);
        match std::mem::replace(&mut self.other, OtherHalf::None) {
            OtherHalf::Free(free) => {
                let mut full = std::mem::replace(&mut self.chunk, free);
                full.set_len(self.page.filled);
                let completions = submit_one(self.store.device(), &file, operation, full);
                self.other = OtherHalf::UnderWay(file, completions);
            }
            _ => {
                let (device, filled) = (self.store.device(), self.page.filled);
                let done = move_chunk(device, &file, operation, &mut self.chunk, filled);
                self.chunk.set_len(self.chunk.capacity());
                done?;
            }
        }
        self.page.chunk_offset += self.page.filled as u64;
        self.page.crc = crc;
        self.page.filled = 0;
        Ok(())
    }
}

impl OpenSegment {
    fn info(&self) -> SegmentInfo {
        SegmentInfo {
            id: self.id,
            file: self.written.file().clone(),
            bytes: self.written.end(),
            records: self.records,
            max_record_bytes: self.max_record_bytes,
            digest: self.digest,
            latest: self.latest.unwrap_or(Time::MAX),
            sealed: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::io::{Device, Faults, Simulated};

    #[test]
    fn a_segment_ends_after_so_many_images() {
        let store = SegmentStore::new(Arc::new(Simulated::new(1, Faults::none())), 1);
        let mut writer = SegmentWriter::new(store, 0, 8 << 10, 1 << 20).images_max(3);
        for page in 0..7 {
            writer.begin_page().unwrap();
            writer.push_encoded(page, &[1; 40]).unwrap();
            writer.finish_page().unwrap();
        }
        writer.seal().unwrap();
        let records: Vec<u64> = writer.take_sealed().iter().map(|info| info.records).collect();
        assert_eq!(records, [3, 3, 1]);
    }

    #[test]
    fn what_was_sealed_and_not_taken_is_removed() {
        let device = Arc::new(Simulated::new(1, Faults::none()));
        let store = SegmentStore::new(device.clone(), 1);
        let mut writer = SegmentWriter::new(store, 0, 8 << 10, 1 << 20).images_max(1);
        let page = |writer: &mut SegmentWriter| {
            writer.begin_page().unwrap();
            writer.push_encoded(0, &[1; 40]).unwrap();
            writer.finish_page().unwrap();
        };
        (0..2).for_each(|_| page(&mut writer));
        assert_eq!(writer.take_sealed().len(), 1);
        page(&mut writer);
        assert_eq!(device.list().unwrap().len(), 3);
        writer.remove_sealed();
        assert_eq!((writer.take_sealed().len(), device.list().unwrap().len()), (0, 2));
        writer.abandon();
        assert_eq!(device.list().unwrap().len(), 1, "the one that was taken");
    }
}
