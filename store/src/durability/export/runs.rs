//! Sorted runs of entries in segments of the store, and merging them.
//!
//! A record of a run is a block of entries, so that what segments keep and check for each record is
//! paid for by many. A run is read image by image, the next one while that at hand is used.

use std::cmp::Ordering;
use std::rc::Rc;

use alluvium_pagestore::io::{BLOCK_BYTES, IoBuffer, Operation, UnderWay};
use alluvium_pagestore::{
    Account, Error, ErrorKind, Image, MemoryKind, Result, SegmentDirectory, SegmentInfo,
    SegmentReader, SegmentStore, SegmentWriter, fingerprint,
};

use super::sort::{HEADER_BYTES, by_key, header, unpack};
use super::{CanonicalEntry, VisitCanonical};

/// Most records of an image.
const IMAGE_RECORDS: usize = 256;
/// Bytes after which a segment ends.
const SEGMENT_BYTES: u64 = 16 << 20;
/// The longest images that are read ahead.
const AHEAD_BYTES_MAX: u64 = 512 << 10;
/// In front of each entry of a block: its hash.
const HASH_BYTES: usize = 8;
/// The window that directories are read through.
const WINDOW_BYTES: usize = 2 * BLOCK_BYTES;

/// How runs are written: larger in more memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct SpillSizes {
    /// Entries are gathered until there are so many bytes of them.
    block: usize,
    /// Bytes after which an image ends, and buffer that it is written with.
    image: usize,
}

impl SpillSizes {
    /// Those in so much memory for sorting.
    pub(super) fn of(memory: u64) -> Self {
        let image = (memory / 64).clamp(8 << 10, 256 << 10) as usize / BLOCK_BYTES * BLOCK_BYTES;
        Self { block: image / 8, image }
    }

    /// Memory for writing a run.
    pub(super) fn writing_bytes(self) -> u64 {
        SegmentWriter::memory_bytes(self.image, IMAGE_RECORDS, 0) + self.block as u64
    }
}

/// A sorted run.
#[derive(Debug)]
pub(super) struct SpillRun {
    segments: Vec<SegmentInfo>,
    /// Its longest image, and its longest block.
    image_bytes: u64,
    block_bytes: u64,
}

impl SpillRun {
    /// Writes what `entries` gives, in that order.
    pub(super) fn write(
        store: &SegmentStore,
        sizes: SpillSizes,
        entries: impl FnOnce(VisitCanonical<'_>) -> Result<()>,
    ) -> Result<Self> {
        let writer = SegmentWriter::new(store.clone(), state(), sizes.image, SEGMENT_BYTES);
        let run = Self { segments: Vec::new(), image_bytes: 0, block_bytes: 0 };
        let block = Vec::with_capacity(sizes.block);
        let mut to = SpillRunWriter { writer, sizes, run, block, hash: 0 };
        let written = entries(&mut |entry| to.push(entry)).and_then(|()| to.finish());
        to.run.segments = to.writer.take_sealed();
        if let Err(error) = written {
            to.writer.abandon();
            remove(store, &[to.run]);
            return Err(error);
        }
        Ok(to.run)
    }

    /// Whether an image is read while the one before is used: not if they are long, as of large
    /// entries, of which there may be no memory for many.
    fn reads_ahead(&self) -> bool {
        self.image_bytes <= AHEAD_BYTES_MAX
    }

    /// Memory for reading it: one image or two, a block, the directory and its window.
    pub(super) fn reading_bytes(&self) -> u64 {
        let images = self.segments.iter().map(|segment| segment.bytes / 4096).max().unwrap_or(0);
        let buffers = if self.reads_ahead() { 2 } else { 1 };
        buffers * self.image_bytes + self.block_bytes + WINDOW_BYTES as u64 + images.min(2048) * 40
    }
}

struct SpillRunWriter {
    writer: SegmentWriter,
    sizes: SpillSizes,
    run: SpillRun,
    block: Vec<u8>,
    /// Of the first entry of the block.
    hash: u64,
}

impl SpillRunWriter {
    fn push(&mut self, entry: CanonicalEntry<'_>) -> Result<()> {
        let header = header(&entry)?;
        let needed = HASH_BYTES + HEADER_BYTES + entry.key.len() + entry.value.len();
        if !self.block.is_empty() && self.block.len() + needed > self.sizes.block {
            self.finish_block(&[&[], &[]])?;
        }
        if self.block.is_empty() {
            self.hash = entry.hash;
        }
        self.block.extend_from_slice(&entry.hash.to_le_bytes());
        self.block.extend_from_slice(&header);
        if self.block.len() + entry.key.len() + entry.value.len() > self.sizes.block {
            // Longer than a block: one of its own, which is not copied.
            return self.finish_block(&[entry.key, entry.value]);
        }
        self.block.extend_from_slice(entry.key);
        self.block.extend_from_slice(entry.value);
        Ok(())
    }

    /// Writes the block, and behind it what is left of a long entry.
    fn finish_block(&mut self, [key, value]: &[&[u8]; 2]) -> Result<()> {
        let length = self.block.len() + key.len() + value.len();
        if self.writer.page_records() > 0 && !self.writer.has_room(length) {
            self.finish_image()?;
        }
        if self.writer.page_records() == 0 {
            self.writer.begin_page_for(length)?;
        }
        self.writer.push_parts(self.hash, &[&self.block, key, value])?;
        let bytes = (self.block.len() + key.len() + value.len()) as u64;
        self.run.block_bytes = self.run.block_bytes.max(bytes);
        self.block.clear();
        let is_full = self.writer.page_bytes() + self.sizes.block as u64 > self.sizes.image as u64;
        if is_full || self.writer.page_records() as usize == IMAGE_RECORDS {
            self.finish_image()?;
        }
        Ok(())
    }

    fn finish_image(&mut self) -> Result<()> {
        let bytes = self.writer.finish_page()?.bytes;
        self.run.image_bytes = self.run.image_bytes.max(bytes);
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        if !self.block.is_empty() {
            self.finish_block(&[&[], &[]])?;
        }
        if self.writer.page_records() > 0 {
            self.finish_image()?;
        }
        self.writer.seal()
    }
}

/// Removes the files of runs.
pub(super) fn remove(store: &SegmentStore, runs: &[SpillRun]) {
    for segment in runs.iter().flat_map(|run| &run.segments) {
        // One that cannot be removed now is removed at the next open.
        let _ = store.remove(segment.id);
    }
}

/// The state whose segments runs are.
fn state() -> u64 {
    fingerprint("a run of an export")
}

/// Gives the entries of several runs in order.
pub(super) fn merge(
    store: &SegmentStore,
    runs: &[SpillRun],
    account: &Account,
    visit: VisitCanonical<'_>,
) -> Result<()> {
    // Two runs are merged whatever they take: what two of the largest entries need beyond the memory
    // for sorting is booked here.
    let needed: u64 = runs.iter().map(SpillRun::reading_bytes).sum();
    let more = needed.saturating_sub(account.used_for(MemoryKind::Buffers));
    account.reserve(MemoryKind::Buffers, more, "merging an export")?;
    let merged = give_merged(store, runs, visit);
    account.release(MemoryKind::Buffers, more);
    merged
}

fn give_merged(store: &SegmentStore, runs: &[SpillRun], visit: VisitCanonical<'_>) -> Result<()> {
    let open = |run| RunReader::open(store, run);
    let mut readers = runs.iter().map(open).collect::<Result<Vec<_>>>()?;
    // Those that are not at their end, the one whose entry comes first at the end. Of equal entries
    // that of the earlier run: runs stand in the order in which they were made.
    let mut order: Vec<usize> = (0..readers.len()).filter(|&n| !readers[n].is_at_end()).collect();
    let later = |readers: &[RunReader<'_>], a: usize, b: usize| {
        by_key(&readers[b].head(), &readers[a].head()).then(b.cmp(&a))
    };
    order.sort_by(|&a, &b| later(&readers, a, b));
    while let Some(least) = order.pop() {
        // It often stays the first: runs have stretches of one key.
        loop {
            visit(readers[least].head())?;
            readers[least].step()?;
            if readers[least].is_at_end() {
                break;
            }
            if let Some(&next) = order.last() {
                if later(&readers, least, next) == Ordering::Less {
                    let is_before = |&other: &usize| later(&readers, other, least).is_lt();
                    let at = order.partition_point(is_before);
                    order.insert(at, least);
                    break;
                }
            }
        }
    }
    Ok(())
}

/// A run that is read from front to back.
struct RunReader<'r> {
    store: &'r SegmentStore,
    segments: std::slice::Iter<'r, SegmentInfo>,
    directory: Option<Rc<SegmentDirectory>>,
    /// The next image of the directory to be read.
    next: usize,
    reads_ahead: bool,
    ahead: Option<ImageReading>,
    image: Option<Image>,
    /// The next record of the image.
    record: usize,
    block: Vec<u8>,
    /// Where the entry at hand begins in the block, after its hash.
    at: usize,
    hash: u64,
    is_at_end: bool,
}

/// An image that is being read.
struct ImageReading {
    directory: Rc<SegmentDirectory>,
    offset: u64,
    read: UnderWay,
}

impl<'r> RunReader<'r> {
    fn open(store: &'r SegmentStore, run: &'r SpillRun) -> Result<Self> {
        let mut reader = Self {
            store,
            segments: run.segments.iter(),
            directory: None,
            next: 0,
            reads_ahead: run.reads_ahead(),
            ahead: None,
            image: None,
            record: 0,
            block: Vec::with_capacity(run.block_bytes as usize),
            at: 0,
            hash: 0,
            is_at_end: false,
        };
        if reader.reads_ahead {
            reader.begin_read(IoBuffer::zeroed(run.image_bytes as usize))?;
        }
        reader.next_image(IoBuffer::zeroed(run.image_bytes as usize))?;
        reader.step()?;
        Ok(reader)
    }

    fn is_at_end(&self) -> bool {
        self.is_at_end
    }

    /// The entry at hand.
    fn head(&self) -> CanonicalEntry<'_> {
        unpack(self.hash, &self.block, self.at)
    }

    fn step(&mut self) -> Result<()> {
        let mut next = 0;
        if !self.block.is_empty() {
            let CanonicalEntry { key, value, .. } = self.head();
            next = self.at + HEADER_BYTES + key.len() + value.len();
        }
        if next == self.block.len() {
            next = 0;
            if !self.next_block()? {
                self.is_at_end = true;
                return Ok(());
            }
        }
        let hash = &self.block[next..next + HASH_BYTES];
        self.hash = u64::from_le_bytes(hash.try_into().expect("eight"));
        self.at = next + HASH_BYTES;
        Ok(())
    }

    /// Takes the next block and says whether there is one.
    fn next_block(&mut self) -> Result<bool> {
        while self.image.as_ref().is_none_or(|image| self.record == image.len()) {
            let Some(image) = self.image.take() else { return Ok(false) };
            self.next_image(image.into_buffer())?;
        }
        let image = self.image.as_ref().expect("one that is not used up");
        let payload = image.record(self.record)?.payload;
        if payload.len() < HASH_BYTES + HEADER_BYTES {
            return Err(Error::new(ErrorKind::Corrupt, "a block of a sorted run is cut short"));
        }
        self.block.clear();
        self.block.extend_from_slice(payload);
        self.record += 1;
        Ok(true)
    }

    /// Takes the next image, if there is one, and gives `buffer` to the one after it; or reads the next
    /// one into that.
    fn next_image(&mut self, buffer: IoBuffer) -> Result<()> {
        let mut spare = Some(buffer);
        if !self.reads_ahead {
            self.begin_read(spare.take().expect("given above"))?;
        }
        let Some(ImageReading { directory, offset, read }) = self.ahead.take() else {
            return Ok(());
        };
        let (bytes, done) = read.wait();
        done?;
        self.image = Some(Image::verify(&directory.info, offset, bytes)?);
        self.record = 0;
        spare.map_or(Ok(()), |buffer| self.begin_read(buffer))
    }

    /// Begins to read the image that comes next.
    fn begin_read(&mut self, mut buffer: IoBuffer) -> Result<()> {
        while self.directory.as_ref().is_none_or(|known| self.next == known.images().len()) {
            let Some(segment) = self.segments.next() else { return Ok(()) };
            let mut reader = SegmentReader::new(self.store.clone(), state(), WINDOW_BYTES);
            self.directory = Some(Rc::new(reader.open(segment)?));
            self.next = 0;
        }
        let directory = self.directory.clone().expect("opened above");
        let image = directory.images()[self.next];
        let (offset, file) = (image.offset, &directory.info.file);
        buffer.set_len(image.bytes as usize);
        let device = self.store.shared_device();
        let read = UnderWay::start(device, file, Operation::Read { offset }, buffer);
        self.ahead = Some(ImageReading { directory, offset, read });
        self.next += 1;
        Ok(())
    }
}
