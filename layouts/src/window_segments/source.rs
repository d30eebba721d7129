//! One part of a slice, walked in the order of places.
//!
//! A table in memory is walked part by part; of the part at hand the places of its entries are
//! sorted once. A run is walked image by image; the next image is read when its first record is
//! needed. Either is looked at once from front to back, whatever the size of the others.

use std::borrow::Cow;
use std::rc::Rc;

use alluvium_pagestore::io::IoBuffer;
use alluvium_pagestore::{Image, Key, Result, SegmentStore, State, codec, rounded};

use super::slice::Slice;
use crate::heap::entry_table_unsafe::PART_ENTRIES_MAX;
use crate::heap::hash_range::HashRange;
use crate::heap::record_table_unsafe::RecordTable;
use crate::support::record_type_unsafe::RecordRef;

/// A part being walked.
#[derive(Debug)]
pub struct PartCursor {
    pub slot: usize,
    /// The part's number in its slice; the highest for the table in use.
    pub number: u64,
    walk: PartSource,
}

#[derive(Debug)]
enum PartSource {
    Table {
        frozen: bool,
        /// Place and slot of the entries of the part at hand, in order.
        order: Vec<(u64, u32)>,
        at: usize,
        /// Where the part at hand begins, and the next one.
        part: u64,
        next: Option<u64>,
    },
    Run {
        run: usize,
        /// The image at hand; not loaded if its first record was not needed yet.
        number: usize,
        image: Option<Rc<Image>>,
        record: usize,
        buffer: IoBuffer,
    },
}

/// What sources count.
#[derive(Debug, Default)]
pub struct ReadCounts {
    pub images: u64,
    pub records: u64,
}

impl PartCursor {
    /// Memory for walking a table.
    pub fn table_bytes() -> u64 {
        (rounded(PART_ENTRIES_MAX * size_of::<(u64, u32)>()) + 2 * size_of::<Self>() + 64) as u64
    }

    /// Memory for walking a run with images of up to so many bytes.
    pub fn run_bytes(image_bytes_max: u64) -> u64 {
        image_bytes_max + 2 * size_of::<Self>() as u64 + 192
    }

    /// Walks a table from `place` on.
    pub fn of_table(
        slices: &[Option<Slice>],
        slot: usize,
        frozen: Option<u64>,
        place: u64,
        range: HashRange,
    ) -> Self {
        let number = frozen.unwrap_or(u64::MAX);
        let walk = PartSource::Table {
            frozen: frozen.is_some(),
            order: Vec::new(),
            at: 0,
            part: place,
            next: Some(place),
        };
        let mut source = Self { slot, number, walk };
        source.load_part(slices, range);
        if let PartSource::Table { order, at, .. } = &mut source.walk {
            *at = order.partition_point(|(here, _)| *here < place);
        }
        source.load_part(slices, range);
        source
    }

    /// Walks a run from `place` on. Reads an image if `place` is inside it.
    pub fn of_run(
        slices: &[Option<Slice>],
        slot: usize,
        run: usize,
        place: u64,
        range: HashRange,
        store: &SegmentStore,
        reads: &mut ReadCounts,
    ) -> Result<Self> {
        let stored = &slice(slices, slot).runs[run].run;
        let first = range.hash(place);
        let number = stored.image_of(first);
        let buffer = IoBuffer::empty();
        let walk = PartSource::Run { run, number, image: None, record: 0, buffer };
        let mut source = Self { slot, number: stored.number, walk };
        if stored.images[number].first < first {
            source.load_image(slices, store, reads)?;
            let count = stored.images.len();
            if let PartSource::Run { number, image: Some(image), record, .. } = &mut source.walk {
                *record = image.first_from(first);
                if *record == image.len() && *number < count {
                    source.step_image();
                }
            }
        }
        Ok(source)
    }

    /// The place of the record at hand; `None` at the end.
    pub fn place(&self, slices: &[Option<Slice>], range: HashRange) -> Option<u64> {
        match &self.walk {
            PartSource::Table { order, at, .. } => order.get(*at).map(|(place, _)| *place),
            PartSource::Run { image: Some(image), record, .. } => {
                Some(range.place(image.entry(*record).hash))
            }
            PartSource::Run { run, number, .. } => {
                let images = &slice(slices, self.slot).runs[*run].run.images;
                images.get(*number).map(|image| range.place(image.first))
            }
        }
    }

    /// The record at hand; the next one is at hand then.
    pub fn take<'a, K: Key, A: State>(
        &mut self,
        slices: &'a [Option<Slice>],
        range: HashRange,
        store: Option<&SegmentStore>,
        reads: &mut ReadCounts,
    ) -> Result<Option<(Cow<'a, K>, Cow<'a, A>)>> {
        if let PartSource::Run { image: None, .. } = &self.walk {
            self.load_image(slices, store.expect("a run on storage"), reads)?;
        }
        match &mut self.walk {
            PartSource::Table { frozen, order, at, part, .. } => {
                let found = slice(slices, self.slot);
                let slot = order[*at].1;
                // It is there unless the caller changes what it folds.
                let table = table_of(found, *frozen);
                let record = table.and_then(|table| table.part_at(*part).0.get(slot as usize));
                *at += 1;
                self.load_part(slices, range);
                Ok(record.map(|record| {
                    let (key, value) = record.get::<K, A>();
                    (Cow::Borrowed(key), Cow::Borrowed(value))
                }))
            }
            PartSource::Run { image, record, .. } => {
                let loaded = image.as_ref().expect("loaded above");
                let (key, value) = codec::decode::<K, A>(loaded.record(*record)?.payload)?;
                reads.records += 1;
                *record += 1;
                if *record == loaded.len() {
                    self.step_image();
                }
                Ok(Some((Cow::Owned(key), Cow::Owned(value))))
            }
        }
    }

    /// Sorts the next part that has entries, if the one at hand is used up.
    fn load_part(&mut self, slices: &[Option<Slice>], range: HashRange) {
        let PartSource::Table { frozen, order, at, part, next } = &mut self.walk else { return };
        while *at == order.len() {
            let Some(place) = *next else { return };
            let table = table_of(slice(slices, self.slot), *frozen);
            (*part, *next, *at) = (place, table.and_then(|table| table.part_at(place).1), 0);
            order.clear();
            let Some(table) = table else { continue };
            let part = table.part_at(place).0;
            order.reserve_exact(part.len().max(PART_ENTRIES_MAX));
            let place_of =
                |(slot, record): (usize, RecordRef<'_>)| (range.place(record.hash()), slot as u32);
            order.extend(part.numbered().map(place_of));
            order.sort_unstable();
        }
    }

    /// Goes on to the next image, which is not read yet.
    fn step_image(&mut self) {
        let PartSource::Run { number, image, record, buffer, .. } = &mut self.walk else { return };
        (*number, *record) = (*number + 1, 0);
        // Of an image that was read ahead the memory is another's.
        if let Some(Ok(image)) = image.take().map(Rc::try_unwrap) {
            *buffer = image.into_buffer();
        }
    }

    fn load_image(
        &mut self,
        slices: &[Option<Slice>],
        store: &SegmentStore,
        reads: &mut ReadCounts,
    ) -> Result<()> {
        let PartSource::Run { run, number, image, buffer, .. } = &mut self.walk else {
            return Ok(());
        };
        let stored = &slice(slices, self.slot).runs[*run];
        *image = Some(match stored.resident(*number) {
            Some(image) => image.clone(),
            None => {
                reads.images += 1;
                let buffer = std::mem::replace(buffer, IoBuffer::empty());
                Rc::new(stored.run.read(store, *number, buffer)?)
            }
        });
        Ok(())
    }
}

fn slice(slices: &[Option<Slice>], slot: usize) -> &Slice {
    slices[slot].as_ref().expect("a slice in use")
}

/// The table of a slice that is being written, if there is one, or that in use.
fn table_of(slice: &Slice, frozen: bool) -> Option<&RecordTable> {
    match frozen {
        true => slice.frozen.as_ref().map(|part| &**part.table),
        false => Some(&slice.active),
    }
}
