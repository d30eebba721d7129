//! Writing a run: records in the order of their hashes, into page images that are read whole.

use alluvium_pagestore::io::{BLOCK_BYTES, IoBuffer};
use alluvium_pagestore::{
    ErrorKind, Image, Result, SegmentId, SegmentInfo, SegmentStore, SegmentWriter,
};

use super::config::SliceSizes;
use super::pane_type_unsafe::PaneType;
use super::run::{ImageAt, SliceRun};
use crate::heap::record_table_unsafe::FrozenRecords;
use crate::support::gaps::Gaps;
use crate::support::key_unsafe::{KeyRef, OwnedKey};
use crate::support::record_type_unsafe::RecordRef;

/// Bytes of a footer entry, and of a trailer.
const FOOTER_ENTRY_BYTES: u64 = 16;
const TRAILER_BYTES: u64 = 64;

/// What was written of a run.
#[derive(Clone, Debug, Default)]
pub struct WrittenRun {
    pub segments: Vec<SegmentInfo>,
    pub images: Vec<ImageAt>,
    pub records: u64,
    /// Bytes of the images.
    pub bytes: u64,
}

/// A copy of a cut, with its hash.
pub struct HashedCut {
    pub hash: u64,
    cut: OwnedKey,
}

impl HashedCut {
    /// Copies a cut.
    pub fn of(cut: RecordRef<'_>) -> Self {
        Self { hash: cut.hash(), cut: KeyRef::whole(cut).to_owned() }
    }

    /// Returns the bytes of a copy.
    pub fn bytes_of(cut: RecordRef<'_>) -> u64 {
        2 * size_of::<Self>() as u64 + KeyRef::whole(cut).owned_bytes()
    }

    fn get(&self) -> RecordRef<'_> {
        self.cut.get().record()
    }
}

/// Removed keys, in the order of their hashes, and ranges of hashes.
pub type RemovedKeys = (Vec<HashedCut>, Gaps);

/// A run being written.
struct SliceRunWriter<'a> {
    writer: &'a mut SegmentWriter,
    sizes: &'a SliceSizes,
    ids: Vec<SegmentId>,
    written: WrittenRun,
    first: u64,
    longest: u64,
}

impl SliceRunWriter<'_> {
    /// Begins an image if none is open that has room for a payload of so many bytes.
    fn make_ready(&mut self, hash: u64, bytes: usize) -> Result<()> {
        if self.writer.page_records() > 0 && !self.writer.has_room(bytes) {
            self.end_image()?;
        }
        if self.writer.page_records() == 0 {
            let id = self.writer.begin_page_for(bytes)?;
            if self.ids.last() != Some(&id) {
                self.ids.push(id);
            }
            self.first = hash;
        }
        Ok(())
    }

    /// A record was added: ends the image if another as long might make it too long.
    fn added(&mut self) -> Result<()> {
        self.written.records += 1;
        let records = u64::from(self.writer.page_records());
        let bytes = self.writer.page_bytes();
        self.longest = self.longest.max(bytes / records);
        let closing = (records + 1) * FOOTER_ENTRY_BYTES + TRAILER_BYTES + 2 * self.longest + 16;
        if bytes + closing > self.sizes.image_bytes || records >= self.sizes.image_records.into() {
            self.end_image()?;
        }
        Ok(())
    }

    fn end_image(&mut self) -> Result<()> {
        let page = self.writer.finish_page()?;
        let block = BLOCK_BYTES as u64;
        self.written.images.push(ImageAt {
            first: self.first,
            segment: self.ids.len() as u32 - 1,
            block: ((page.segment.bytes - page.bytes) / block) as u32,
            blocks: (page.bytes / block) as u32,
        });
        self.written.bytes += page.bytes;
        Ok(())
    }

    fn end(mut self) -> Result<WrittenRun> {
        if self.writer.page_records() > 0 {
            self.end_image()?;
        }
        self.writer.seal()?;
        self.written.segments = self.writer.take_sealed();
        let same = self.written.segments.iter().map(|segment| segment.id).eq(self.ids);
        assert!(same, "a run's segments are those that its images went to");
        // Many runs are short, and have one of each.
        self.written.segments.shrink_to_fit();
        self.written.images.shrink_to_fit();
        Ok(self.written)
    }
}

/// Writes with `fill`.
fn write_run(
    writer: &mut SegmentWriter,
    sizes: &SliceSizes,
    fill: &mut dyn FnMut(&mut SliceRunWriter<'_>) -> Result<()>,
) -> Result<WrittenRun> {
    let (ids, written) = (Vec::new(), WrittenRun::default());
    let mut run = SliceRunWriter { writer, sizes, ids, written, first: 0, longest: 0 };
    fill(&mut run)?;
    run.end()
}

/// Writes a table as a run.
pub fn write_table(
    writer: &mut SegmentWriter,
    sizes: &SliceSizes,
    table: &FrozenRecords,
) -> Result<WrittenRun> {
    write_run(writer, sizes, &mut |run| {
        let mut part = Vec::new();
        for place in table.places() {
            part.extend(table.part_at(place).0.iter().map(|record| (record.hash(), record)));
            part.sort_unstable_by_key(|(hash, _)| *hash);
            for (hash, record) in part.drain(..) {
                let bytes = record.encode(run.writer)?;
                run.make_ready(hash, bytes)?;
                run.writer.append(hash).map_err(|error| match error.kind() {
                    ErrorKind::ValueTooLarge => error.with("key", record.key_text()),
                    _ => error,
                })?;
                run.added()?;
            }
        }
        Ok(())
    })
}

/// Makes one run of several, the oldest first, as bytes: records of a key stay apart, in order. What
/// was cut is left out.
pub fn write_merged(
    writer: &mut SegmentWriter,
    store: &SegmentStore,
    sizes: &SliceSizes,
    (types, runs): (&PaneType, &[std::sync::Arc<SliceRun>]),
    (cuts, gaps): &RemovedKeys,
) -> Result<WrittenRun> {
    let mut readers: Vec<SliceRunReader<'_>> =
        runs.iter().map(|run| SliceRunReader { run, next: 0, image: None, record: 0 }).collect();
    for reader in &mut readers {
        reader.load(store)?;
    }
    write_run(writer, sizes, &mut |run| {
        loop {
            let least = readers.iter().enumerate().filter_map(|(i, r)| Some((r.hash()?, i))).min();
            let Some((hash, i)) = least else { return Ok(()) };
            let reader = &mut readers[i];
            let image = reader.image.as_ref().expect("a reader with a record");
            let payload = image.record(reader.record)?.payload;
            let same = &cuts[cuts.partition_point(|cut| cut.hash < hash)..];
            let mut cut = false;
            for found in same.iter().take_while(|cut| cut.hash == hash).map(HashedCut::get) {
                let is_older = reader.run.number < types.before(found);
                cut = cut || is_older && types.is_cut_of(payload, found)?;
            }
            if !cut && reader.run.number >= gaps.first_part(hash) {
                run.make_ready(hash, payload.len())?;
                run.writer.push_encoded(hash, payload)?;
                run.added()?;
            }
            reader.record += 1;
            reader.load(store)?;
        }
    })
}

/// A run being read from front to back.
struct SliceRunReader<'a> {
    run: &'a SliceRun,
    next: usize,
    image: Option<Image>,
    record: usize,
}

impl SliceRunReader<'_> {
    /// Hash of the record at hand.
    fn hash(&self) -> Option<u64> {
        self.image.as_ref().map(|image| image.entry(self.record).hash)
    }

    /// Reads the next image if the one at hand is used up.
    fn load(&mut self, store: &SegmentStore) -> Result<()> {
        if self.image.as_ref().is_some_and(|image| self.record < image.len()) {
            return Ok(());
        }
        let buffer = self.image.take().map_or(IoBuffer::empty(), Image::into_buffer);
        if self.next < self.run.images.len() {
            self.image = Some(self.run.read(store, self.next, buffer)?);
            (self.next, self.record) = (self.next + 1, 0);
        }
        Ok(())
    }
}
