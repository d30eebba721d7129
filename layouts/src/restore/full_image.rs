//! Full checkpoints: write every entry of a table, and read them back.
//!
//! For layouts that keep all state in memory. A layout of your own uses [`write_entries`] in
//! `Upkeep::checkpoint` or [`EntryWriter`] in `Upkeep::continue_checkpoint`, [`read_entries`] in
//! `Layout::open`, and [`Images`] to remove old segments.

use alluvium_pagestore::io::BLOCK_BYTES;
use alluvium_pagestore::{
    BlobReader, Error, ErrorKind, FooterEntry, ImagePart, Key, LiveSet, Liveness, MemoryKind,
    PlacedAt, RECORDS, Result, SegmentImage, SegmentInfo, SegmentStore, State, StateImage, codec,
    fingerprint, key_text,
};

use crate::checkpoint::{
    BATCH_BYTES_MAX, BatchWriter, FilesByName, LEAST_CHUNK_BYTES, LEAST_PAGE_RECORDS, WriterSizes,
    files_of_image,
};
use crate::contract::table::{CheckpointOutcome, StateContext, TableStats};
use crate::heap::segment_bytes;
use crate::restore::passing::pass_over_live;
use crate::support::booked::Booked;

/// Bytes of a checkpoint's write buffer, and of the window a restore reads through: a 64th of the
/// memory between these; the least where memory is short.
const CHUNK_BYTES_MIN: u64 = LEAST_CHUNK_BYTES as u64;
const CHUNK_BYTES_MAX: u64 = 64 << 10;
/// Bytes of records after which a page ends.
const PAGE_BYTES: u64 = 256 << 10;
/// Records after which a page ends, between these: as many of the shortest as fill a write buffer,
/// whose last block is padded otherwise. Pages without a footer are two thirds as long.
const PAGE_RECORDS_MIN: u32 = LEAST_PAGE_RECORDS;
pub(crate) const PAGE_RECORDS_MAX: u32 = 1364;
/// Bytes of the shortest record with its header and its entry in the footer, and of what is behind
/// a footer.
const RECORD_BYTES_MIN: usize = 48;
const TRAILER_BYTES: usize = 64;
/// What a checkpoint takes beside its buffers: the names of its segments.
const BESIDE_BYTES: u64 = 8 << 10;
/// Least bytes of a batch.
const BATCH_BYTES_MIN: usize = 1 << 10;
/// Bytes after which a segment ends.
const SEGMENT_BYTES: u64 = 8 << 20;

/// Writes all `entries` to new segments and returns the image that describes them. While it runs,
/// it reserves the memory of an [`EntryWriter`] and of the largest value's archive from the state's
/// budget.
///
/// # Errors
/// Those of [`EntryWriter`].
pub fn write_entries<'a, K: Key, V: State>(
    context: &StateContext,
    mut entries: impl Iterator<Item = (&'a K, &'a V)>,
) -> Result<StateImage> {
    let mut writer = EntryWriter::new::<K, V>(context)?;
    writer.wait()?;
    entries.try_for_each(|(key, value)| writer.push(key, value))?;
    writer.submit_end();
    writer.wait()?;
    Ok(writer.take_image())
}

/// How the records of a checkpoint are written in steps, of which there are so many at most: small
/// state takes no more memory for that than it needs.
pub(crate) fn sizes<K: Key, V: State>(context: &StateContext, records: u64) -> WriterSizes {
    sizes_of(context, records, (K::NO_HEAP && V::NO_HEAP).then_some(size_of::<(K, V)>()))
}

/// [`sizes`] of records whose entries have so many bytes, and own no heap, or may own some.
pub(crate) fn sizes_of(
    context: &StateContext,
    records: u64,
    plain_bytes: Option<usize>,
) -> WriterSizes {
    let value_bytes = plain_bytes.map_or(context.max_value_bytes, |bytes| 2 * bytes as u64);
    sizes_of_values(context, records, value_bytes)
}

/// [`sizes_of`] records whose archives take so many bytes.
pub(crate) fn sizes_of_values(
    context: &StateContext,
    records: u64,
    value_bytes: u64,
) -> WriterSizes {
    let whole = chunk_bytes(context);
    let all = records.saturating_mul(value_bytes + RECORD_BYTES_MIN as u64);
    let all = usize::try_from(all).unwrap_or(usize::MAX);
    let chunk_bytes = all.clamp(CHUNK_BYTES_MIN as usize, whole) / 4096 * 4096;
    let page_records = u64::from(page_records(whole)).min(records.max(1)) as u32;
    WriterSizes {
        chunk_bytes,
        segment_bytes: SEGMENT_BYTES,
        page_records,
        page_bytes: PAGE_BYTES,
        batch_bytes: all.clamp(BATCH_BYTES_MIN, chunk_bytes.min(BATCH_BYTES_MAX)),
        value_bytes,
    }
}

/// Records after which a page ends that is written through so many bytes.
fn page_records(chunk_bytes: usize) -> u32 {
    let records = chunk_bytes.saturating_sub(TRAILER_BYTES) / RECORD_BYTES_MIN;
    u32::try_from(records).unwrap_or(u32::MAX).clamp(PAGE_RECORDS_MIN, PAGE_RECORDS_MAX)
}

/// Bytes of the longest footer of a page of these segments.
fn footer_bytes(part: &ImagePart) -> u64 {
    let records = part.segments.iter().map(|segment| segment.records).max().unwrap_or(0);
    records.min(PAGE_RECORDS_MAX.into()) * size_of::<FooterEntry>() as u64
}

pub(crate) fn chunk_bytes(context: &StateContext) -> usize {
    (context.account.limit() / 64).clamp(CHUNK_BYTES_MIN, CHUNK_BYTES_MAX) as usize / 4096 * 4096
}

/// Writes a full checkpoint in batches: the owner adds entries, a helper writes them, and the owner
/// works on meanwhile. Its memory is reserved while it lives. Dropping it removes what was written,
/// unless the caller took the [image](EntryWriter::take_image).
#[derive(Debug)]
pub struct EntryWriter {
    writer: BatchWriter,
    _booked: Booked,
    entries: u64,
}

impl EntryWriter {
    /// Creates a writer for entries of these types. Writes nothing yet.
    ///
    /// # Errors
    /// [`ErrorKind::OverBudget`] without memory for its buffers; [`ErrorKind::Unsupported`] in a
    /// store without a directory.
    pub fn new<K: Key, V: State>(context: &StateContext) -> Result<Self> {
        let (sizes, store) = (sizes::<K, V>(context, u64::MAX), context.segment_store()?.clone());
        let (account, bytes) = (context.account.clone(), sizes.memory_bytes());
        let who = (context.helper.clone(), account.clone());
        let booked = Booked::reserve(account, MemoryKind::Buffers, bytes, "a checkpoint's buffer")?;
        let writer = BatchWriter::new(who, store, fingerprint(&context.name), sizes);
        Ok(Self { writer, _booked: booked, entries: 0 })
    }

    /// Returns whether you can add entries. You cannot while the helper writes.
    ///
    /// # Errors
    /// The error of an earlier write. Start the checkpoint again.
    pub fn is_ready(&mut self) -> Result<bool> {
        self.writer.is_ready()
    }

    /// Returns whether the batch has room for another entry.
    pub fn has_room(&mut self) -> bool {
        self.writer.has_room()
    }

    /// Adds an entry. If the batch has no room, this call first has it written and waits for that.
    ///
    /// # Errors
    /// Those of encoding and of writing.
    ///
    /// # Panics
    /// If the writer is not [ready](EntryWriter::is_ready).
    pub fn push<K: Key, V: State>(&mut self, key: &K, value: &V) -> Result<()> {
        let pushed = self.writer.push(key.key_hash(), key, value);
        pushed.map_err(|error| name_large(error, key))?;
        self.entries += 1;
        Ok(())
    }

    /// Hands the batch to the helper for writing.
    ///
    /// # Panics
    /// If the writer is not [ready](EntryWriter::is_ready).
    pub fn submit(&mut self) {
        self.writer.submit();
    }

    /// Hands the last batch to the helper, which writes it and makes the whole checkpoint durable.
    ///
    /// # Panics
    /// If the writer is not [ready](EntryWriter::is_ready).
    pub fn submit_end(&mut self) {
        self.writer.submit_end();
    }

    /// Waits briefly for the helper.
    pub fn pause(&mut self) {
        self.writer.pause();
    }

    /// Waits until you can add entries.
    ///
    /// # Errors
    /// Those of [`is_ready`](EntryWriter::is_ready).
    pub fn wait(&mut self) -> Result<()> {
        self.writer.wait()
    }

    /// Returns the image of the checkpoint, once it is durable.
    ///
    /// # Panics
    /// If the writer is not [ready](EntryWriter::is_ready).
    pub fn take_image(&mut self) -> StateImage {
        let segments = self.writer.take_sealed().iter().map(SegmentInfo::all_live).collect();
        StateImage::of(self.entries, ImagePart::new(RECORDS, segments, Vec::new()))
    }
}

/// An error of a record that is too large, with its key.
pub(crate) fn name_large<K: Key>(error: Error, key: &K) -> Error {
    match error.kind() {
        ErrorKind::ValueTooLarge | ErrorKind::OverBudget => error.with("key", key_text(key)),
        _ => error,
    }
}

/// Reads and verifies every entry of `image`, in the order written, and passes each to `entry`.
pub fn read_entries<K: Key, V: State>(
    context: &StateContext,
    image: &StateImage,
    blobs: &BlobReader,
    mut entry: impl FnMut(K, V) -> Result<()>,
) -> Result<()> {
    read_placed(context, image, blobs, |_, key, value| entry(key, value))
}

/// Reads like [`read_entries`], and passes the place of each entry too: the number of its segment in the image, and its
/// grain there.
pub(crate) fn read_placed<K: Key, V: State>(
    context: &StateContext,
    image: &StateImage,
    blobs: &BlobReader,
    mut entry: impl FnMut(PlacedAt, K, V) -> Result<()>,
) -> Result<()> {
    read_payloads(context, image, blobs, &mut |at, payload| {
        let (key, value) = codec::decode::<K, V>(payload)?;
        entry(at, key, value)
    })
}

/// Takes the payload of a record, and its place.
type VisitPlacedPayload<'a> = &'a mut dyn FnMut(PlacedAt, &[u8]) -> Result<()>;

/// Reads like [`read_placed`], without the types of the records.
pub(crate) fn read_payloads(
    context: &StateContext,
    image: &StateImage,
    blobs: &BlobReader,
    visit: VisitPlacedPayload<'_>,
) -> Result<()> {
    let mut before = 0;
    for part in image.parts_of(RECORDS)? {
        read_part(context, part, blobs, before, visit)?;
        before += part.segments.len() as u32;
    }
    Ok(())
}

/// Reads a part of an image. The parts before it have `before` segments.
fn read_part(
    context: &StateContext,
    part: &ImagePart,
    blobs: &BlobReader,
    before: u32,
    visit: VisitPlacedPayload<'_>,
) -> Result<()> {
    if part.segments.is_empty() {
        return Ok(());
    }
    let store = &context.segment_store()?.for_opening();
    let beside = footer_bytes(part)
        + Liveness::memory_bytes(part)
        + part.segments.iter().map(|segment| set_bytes(part, segment)).max().unwrap_or(0);
    let mut booked = Booked::none(context.account.clone(), MemoryKind::Buffers);
    let stored = part.segments.iter().map(|segment| segment.bytes).sum();
    let window = book_window(context, (beside, stored), &mut booked)?;
    let liveness = Liveness::load(part, Some(blobs))?;
    let mut longer = Booked::none(context.account.clone(), MemoryKind::Buffers);
    let source = (store, window);
    pass_over_live(context, source, &part.segments, &liveness, &mut |nth, entry, record| {
        // The window stays as long as its longest record.
        let needed = u64::from(entry.len) + 2 * BLOCK_BYTES as u64;
        let more = needed.saturating_sub(window as u64 + longer.bytes());
        longer.reserve_more(more, "the archive of a long value")?;
        let at = PlacedAt { segment: before + nth as u32, grain: entry.grain };
        visit(at, record.payload(entry)?)
    })
}

/// Bytes of memory per byte on storage that is read, roughly and at most.
const READ_SHARE: u64 = 4;

/// Books the window of a restore, and `beside` bytes with it. Returns the length of the window: the least, if memory may
/// lack room for a longer one and for the entries, which take `stored` bytes on storage.
fn book_window(
    context: &StateContext,
    (beside, stored): (u64, u64),
    booked: &mut Booked,
) -> Result<usize> {
    let whole = chunk_bytes(context);
    let wanted = whole as u64 + beside + READ_SHARE * stored;
    let has_room = context.account.available() >= wanted;
    let window = if has_room { whole } else { CHUNK_BYTES_MIN as usize };
    booked.reserve_more(window as u64 + beside, "restoring").map(|()| window)
}

/// Least memory that [`read_placed`] takes for segments of `segment_bytes`, without their lists of dead records.
pub(crate) fn reading_bytes(context: &StateContext, segment_bytes: u64) -> u64 {
    let footer = page_records(chunk_bytes(context)) as usize * size_of::<FooterEntry>();
    // A segment ends with the page that reaches its end.
    let set = LiveSet::memory_bytes(segment_bytes + 2 * PAGE_BYTES);
    CHUNK_BYTES_MIN + footer as u64 + 2 * set + BLOCK_BYTES as u64
}

/// Least memory that a checkpoint with these sizes writes with. It is enough to read one without dead records.
pub(crate) fn room_bytes(sizes: &WriterSizes) -> u64 {
    let footer = PAGE_RECORDS_MAX as usize * size_of::<FooterEntry>();
    let reading = CHUNK_BYTES_MIN + footer as u64 + sizes.value_bytes;
    sizes.least().memory_bytes().max(reading)
}

/// Memory that a checkpoint with these sizes writes with.
pub(crate) fn writing_bytes(sizes: &WriterSizes) -> u64 {
    sizes.memory_bytes() + BESIDE_BYTES
}

/// What has to stay free of a state in memory, so that it can be checkpointed with the [least](WriterSizes::least) of
/// these sizes, and be read again.
pub(crate) fn kept_free(context: &StateContext, sizes: &WriterSizes) -> u64 {
    writing_bytes(&sizes.least()).max(kept_to_read(context, sizes.value_bytes))
}

/// [`kept_free`] of a state of one plain entry.
pub(crate) fn kept_for_one(sizes: &WriterSizes) -> u64 {
    let segment = LiveSet::memory_bytes(2 * CHUNK_BYTES_MIN);
    let footer = size_of::<FooterEntry>() as u64;
    let reading = CHUNK_BYTES_MIN + footer + 2 * segment + BLOCK_BYTES as u64 + BESIDE_BYTES;
    writing_bytes(sizes).max(reading)
}

/// What has to stay free of it, so that it can be read again, with records of so many bytes.
pub(crate) fn kept_to_read(context: &StateContext, value_bytes: u64) -> u64 {
    let segment_bytes = segment_bytes(context.account.limit());
    reading_bytes(context, segment_bytes) + value_bytes + BESIDE_BYTES
}

/// Memory of the set of a segment's live records: the set, and another while it is read.
pub(crate) fn set_bytes(part: &ImagePart, segment: &SegmentImage) -> u64 {
    let has_dead = segment.live.is_some() || !part.deaths.is_empty();
    if has_dead { 2 * LiveSet::memory_bytes(segment.bytes) + BLOCK_BYTES as u64 } else { 0 }
}

/// The segments of the committed checkpoint and of the running one, with their sizes. A segment may
/// be in both.
#[derive(Debug, Default)]
pub struct Images {
    files: FilesByName,
    written_bytes: u64,
}

impl Images {
    /// Notes that the table was restored from `image`.
    pub fn restored(&mut self, image: &StateImage) {
        self.files.restored(files_of_image(image));
    }

    /// Notes that a checkpoint produced `image`. Segments that the committed checkpoint names too
    /// were not written again.
    pub fn taken(&mut self, image: &StateImage) {
        // If nobody said what became of the last one, it may be the one that is restored.
        self.files.decide(CheckpointOutcome::Unknown);
        let (before, _) = self.files.bytes();
        self.files.take(files_of_image(image));
        self.written_bytes += self.files.bytes().0 - before;
    }

    /// Removes the segments that nothing needs after this outcome. A file that cannot be removed now is removed, and
    /// counted, at the next open.
    pub fn decide(&mut self, outcome: CheckpointOutcome, store: Option<&SegmentStore>) {
        for (id, _) in self.files.decide(outcome) {
            let _ = store.map(|store| store.remove(id));
        }
    }

    /// Adds the checkpoints' bytes on storage and bytes written to `stats`.
    pub fn describe(&self, stats: &mut TableStats) {
        let (bytes, _) = self.files.bytes();
        stats.disk_bytes += bytes;
        stats.live_disk_bytes += bytes;
        stats.flushed_bytes += self.written_bytes;
    }
}

impl StateContext {
    /// Returns the segment store.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] in a store without a directory.
    pub fn segment_store(&self) -> Result<&SegmentStore> {
        self.segments.as_ref().ok_or_else(|| {
            let message = "the store has no directory for segments";
            Error::new(ErrorKind::Unsupported, message).with("state", &self.name)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use alluvium_pagestore::SegmentId;
    use alluvium_pagestore::io::{Device, Faults, Simulated};

    use super::*;

    /// An image of segments of ten bytes each.
    fn image(ids: &[u64]) -> StateImage {
        let segment = |id: &u64| SegmentImage {
            id: SegmentId(*id),
            bytes: 10,
            records: 1,
            max_record_bytes: 10,
            live_records: 1,
            digest: None,
            latest: None,
            live: None,
        };
        let segments = ids.iter().map(segment).collect();
        StateImage::of(ids.len() as u64, ImagePart::new(RECORDS, segments, Vec::new()))
    }

    #[test]
    fn segments_of_an_image_that_nobody_decided_stay_until_another_is_confirmed() {
        let device = Simulated::new(1, Faults::none());
        let store = SegmentStore::new(Arc::new(device.clone()), 100);
        (1..=4).for_each(|id| device.place(&SegmentId(id).file_name(), b"x"));
        let there = || device.list().unwrap();
        let names = |ids: &[u64]| -> Vec<String> {
            ids.iter().map(|id| SegmentId(*id).file_name()).collect()
        };
        let mut images = Images::default();
        images.restored(&image(&[1]));
        images.taken(&image(&[1, 2]));
        // A checkpoint is begun, and aborted before it has an image.
        images.decide(CheckpointOutcome::Unknown, None);
        images.decide(CheckpointOutcome::Abandoned, Some(&store));
        images.taken(&image(&[1, 3]));
        let mut stats = TableStats::default();
        images.describe(&mut stats);
        assert_eq!((stats.disk_bytes, stats.flushed_bytes), (30, 20));
        images.decide(CheckpointOutcome::Abandoned, Some(&store));
        assert_eq!(there(), names(&[1, 2, 4]));
        // One that has an image follows another.
        images.taken(&image(&[2]));
        images.taken(&image(&[4]));
        images.decide(CheckpointOutcome::Committed, Some(&store));
        assert_eq!(there(), names(&[4]));
    }
}
