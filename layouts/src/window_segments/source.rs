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
use crate::heap::entry_part_unsafe::Part;
use crate::heap::entry_table_unsafe::PART_ENTRIES_MAX;
use crate::heap::hash_range::HashRange;

/// A part being walked.
#[derive(Debug)]
pub struct Source {
    pub slot: usize,
    /// The part's number in its slice; the highest for the table in use.
    pub number: u64,
    walk: Walk,
}

#[derive(Debug)]
enum Walk {
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
pub struct Reads {
    pub images: u64,
    pub records: u64,
}

impl Source {
    /// Memory for walking a table.
    pub fn table_bytes() -> u64 {
        (rounded(PART_ENTRIES_MAX * size_of::<(u64, u32)>()) + 2 * size_of::<Self>() + 64) as u64
    }

    /// Memory for walking a run with images of up to so many bytes.
    pub fn run_bytes(image_bytes_max: u64) -> u64 {
        image_bytes_max + 2 * size_of::<Self>() as u64 + 192
    }

    /// Walks a table from `place` on.
    pub fn of_table<K: Key, A: State>(
        slices: &[Option<Slice<K, A>>],
        slot: usize,
        frozen: Option<u64>,
        place: u64,
        range: HashRange,
    ) -> Self {
        let number = frozen.unwrap_or(u64::MAX);
        let walk = Walk::Table {
            frozen: frozen.is_some(),
            order: Vec::new(),
            at: 0,
            part: place,
            next: Some(place),
        };
        let mut source = Self { slot, number, walk };
        source.load_part(slices, range);
        if let Walk::Table { order, at, .. } = &mut source.walk {
            *at = order.partition_point(|(here, _)| *here < place);
        }
        source.load_part(slices, range);
        source
    }

    /// Walks a run from `place` on. Reads an image if `place` is inside it.
    pub fn of_run<K: Key, A: State>(
        slices: &[Option<Slice<K, A>>],
        slot: usize,
        run: usize,
        place: u64,
        range: HashRange,
        store: &SegmentStore,
        reads: &mut Reads,
    ) -> Result<Self> {
        let stored = &slice(slices, slot).runs[run].run;
        let first = range.hash(place);
        let number = stored.image_of(first);
        let buffer = IoBuffer::empty();
        let walk = Walk::Run { run, number, image: None, record: 0, buffer };
        let mut source = Self { slot, number: stored.number, walk };
        if stored.images[number].first < first {
            source.load_image(slices, store, reads)?;
            let count = stored.images.len();
            if let Walk::Run { number, image: Some(image), record, .. } = &mut source.walk {
                *record = image.first_from(first);
                if *record == image.len() && *number < count {
                    source.step_image();
                }
            }
        }
        Ok(source)
    }

    /// The place of the record at hand; `None` at the end.
    pub fn place<K: Key, A: State>(
        &self,
        slices: &[Option<Slice<K, A>>],
        range: HashRange,
    ) -> Option<u64> {
        match &self.walk {
            Walk::Table { order, at, .. } => order.get(*at).map(|(place, _)| *place),
            Walk::Run { image: Some(image), record, .. } => {
                Some(range.place(image.entry(*record).hash))
            }
            Walk::Run { run, number, .. } => {
                let images = &slice(slices, self.slot).runs[*run].run.images;
                images.get(*number).map(|image| range.place(image.first))
            }
        }
    }

    /// The record at hand; the next one is at hand then.
    pub fn take<'a, K: Key, A: State>(
        &mut self,
        slices: &'a [Option<Slice<K, A>>],
        range: HashRange,
        store: Option<&SegmentStore>,
        reads: &mut Reads,
    ) -> Result<Option<(Cow<'a, K>, Cow<'a, A>)>> {
        if let Walk::Run { image: None, .. } = &self.walk {
            self.load_image(slices, store.expect("a run on storage"), reads)?;
        }
        match &mut self.walk {
            Walk::Table { frozen, order, at, part, .. } => {
                let found = slice(slices, self.slot);
                let table = table_at(found, *frozen, *part).0;
                let slot = order[*at].1;
                *at += 1;
                // It is there unless the caller changes what it folds.
                let entry = table.and_then(|part| part.get(slot as usize));
                self.load_part(slices, range);
                Ok(entry.map(|(key, value)| (Cow::Borrowed(key), Cow::Borrowed(value))))
            }
            Walk::Run { image, record, .. } => {
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
    fn load_part<K: Key, A: State>(&mut self, slices: &[Option<Slice<K, A>>], range: HashRange) {
        let Walk::Table { frozen, order, at, part, next } = &mut self.walk else { return };
        while *at == order.len() {
            let Some(place) = *next else { return };
            let (table, after) = table_at(slice(slices, self.slot), *frozen, place);
            (*part, *next, *at) = (place, after, 0);
            order.clear();
            let Some(table) = table else { continue };
            order.reserve_exact(table.len().max(PART_ENTRIES_MAX));
            let place_of =
                |(slot, (key, _)): (usize, &(K, A))| (range.place(key.key_hash()), slot as u32);
            order.extend(table.numbered().map(place_of));
            order.sort_unstable();
        }
    }

    /// Goes on to the next image, which is not read yet.
    fn step_image(&mut self) {
        let Walk::Run { number, image, record, buffer, .. } = &mut self.walk else { return };
        (*number, *record) = (*number + 1, 0);
        // Of an image that was read ahead the memory is another's.
        if let Some(Ok(image)) = image.take().map(Rc::try_unwrap) {
            *buffer = image.into_buffer();
        }
    }

    fn load_image<K: Key, A: State>(
        &mut self,
        slices: &[Option<Slice<K, A>>],
        store: &SegmentStore,
        reads: &mut Reads,
    ) -> Result<()> {
        let Walk::Run { run, number, image, buffer, .. } = &mut self.walk else { return Ok(()) };
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

fn slice<K, A>(slices: &[Option<Slice<K, A>>], slot: usize) -> &Slice<K, A> {
    slices[slot].as_ref().expect("a slice in use")
}

type PartAt<'a, K, A> = (Option<Part<'a, (K, A)>>, Option<u64>);

fn table_at<K, A>(slice: &Slice<K, A>, frozen: bool, place: u64) -> PartAt<'_, K, A> {
    let (part, next) = match (&slice.frozen, frozen) {
        (Some(part), true) => part.table.part_at(place),
        (None, true) => return (None, None),
        (_, false) => slice.active.part_at(place),
    };
    (Some(part), next)
}
