//! Packed slices that are too large to be loaded: they are read part by part.
//!
//! A part is some records of one slice, in order; where it begins is known by the number of its first record among those of
//! the slice that count, or by the place of its key. A part that comes after another one is read from where that ended; to
//! come back to one, a pass over the levels reads what is before it in the slice.
//!
//! What it keeps true: a part and the pass that reads it take no more than [`PagedSlice::reading_bytes`], which the reader
//! has booked.

use std::sync::Arc;

use alluvium_pagestore::block::AlignedVec;
use alluvium_pagestore::{Error, ErrorKind, KIB, Result, RunInfo, SegmentStore, Time};

use super::packing::loaded_bytes;
use super::{PACKED, PackedSlice, PackedState, hash_of, number_in, place_in};
use crate::append_log::core::ListsCore;
use crate::append_log::run::ListRun;
use crate::runs::{ScanPositions, scan_bytes, scan_from};

/// Parts of all slices that are read at once take one part in so many of what is free, if that is more.
const FREE_SHARE: u64 = 8;
/// What is known of the runs of a slice, while it is read.
pub(super) const KNOWN_BYTES: u64 = 3 * KIB;

/// Where a part begins.
#[derive(Clone, Copy, Debug)]
pub enum PartStart {
    /// With the record of this number.
    Nth(usize),
    /// With the first record at or after this place.
    Place(u64),
}

/// Where a part ended.
#[derive(Debug)]
pub struct PartEnd {
    /// The number of the record that follows, and the place of the one before.
    nth: usize,
    last_place: u64,
    /// Elements of all records before.
    elements: u64,
    places: ScanPositions,
}

impl PartEnd {
    /// Whether what begins there is not before the end.
    fn leads_to(&self, begin: PartStart) -> bool {
        match begin {
            PartStart::Nth(first) => self.nth <= first,
            PartStart::Place(first) => self.last_place < first,
        }
    }
}

/// A packed slice that is read part by part.
#[derive(Debug)]
pub struct PagedSlice {
    store: SegmentStore,
    levels: Vec<Vec<RunInfo>>,
    slice: (Time, PackedSlice),
    read_bytes: usize,
    part_bytes: u64,
    longest_chunk: u64,
    decoded_bytes: u64,
}

/// Some records of a slice.
#[derive(Debug, Default)]
pub struct PagedPart {
    /// The number of the first.
    first: usize,
    /// The place of each, and what it has.
    records: Vec<(u64, AlignedVec)>,
    bytes: u64,
    /// Whether no more follow.
    is_last: bool,
    /// Where it ended, if more may follow.
    end: Option<PartEnd>,
}

impl PagedPart {
    /// Where it ended.
    pub fn into_end(self) -> Option<PartEnd> {
        self.end
    }

    /// The number of the record after the last.
    pub fn end(&self) -> usize {
        self.first + self.records.len()
    }

    /// Whether it tells if there is a record of this number: it has it, or no more follow.
    pub fn tells(&self, nth: usize) -> bool {
        self.first <= nth && (nth < self.end() || self.is_last)
    }

    /// A record.
    pub fn get(&self, nth: usize) -> Option<&(u64, AlignedVec)> {
        self.records.get(nth.checked_sub(self.first)?)
    }

    /// The number of the first record.
    pub fn first(&self) -> usize {
        self.first
    }

    /// The number of the first record at or after a place, or of the one after the last of all. None: it is not told.
    pub fn at_or_after(&self, place: u64) -> Option<usize> {
        let count = self.records.partition_point(|(here, _)| *here < place);
        // The first record may not be the first of its place.
        let is_told = match self.records.get(count) {
            Some(_) => count > 0 || self.first == 0,
            None => self.is_last && (count > 0 || self.first == 0),
        };
        is_told.then_some(self.first + count)
    }

    /// Bytes that it takes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    fn push(&mut self, place: u64, payload: &[u8]) {
        let mut record = AlignedVec::with_capacity(payload.len());
        record.extend_from_slice(payload);
        self.bytes += loaded_bytes(payload.len());
        self.records.push((place, record));
    }
}

impl PagedSlice {
    /// What reading a part takes, with the part.
    pub fn reading_bytes(&self) -> u64 {
        let scan = scan_bytes(&self.levels, self.read_bytes);
        scan + self.part_bytes + self.longest_chunk + loaded_bytes(0)
    }

    /// What a record takes at most once it is decoded, but for an element that expands.
    pub fn decoded_bytes(&self) -> u64 {
        self.decoded_bytes
    }

    /// Reads a part, which has one record at least if there is one: from where another one ended, if it comes after that.
    ///
    /// # Errors
    /// Those of the device; [`ErrorKind::Corrupt`] if the slice has not as many elements as are told.
    pub fn read(&self, begin: PartStart, before: Option<&PartEnd>) -> Result<PagedPart> {
        let (time, slice) = self.slice;
        let hash = hash_of(time);
        let before = before.filter(|end| end.leads_to(begin));
        let (mut nth, mut elements) = before.map_or((0, 0), |end| (end.nth, end.elements));
        let mut part = PagedPart { is_last: true, first: nth, ..PagedPart::default() };
        let (from, levels) = (before.map(|end| &end.places), (&self.store, &self.levels[..]));
        scan_from(levels, from, &(hash..=hash), self.read_bytes, &mut |group, places| {
            let mut last_place = None;
            for record in group.iter().filter(|record| number_in(record.order) >= slice.since) {
                if part.end.is_some() {
                    part.is_last = false;
                    return Ok(false);
                }
                let place = place_in(record.order);
                let is_before = match begin {
                    PartStart::Nth(first) => nth < first,
                    PartStart::Place(first) => place < first,
                };
                elements += u64::from(record.mark);
                nth += 1;
                last_place = Some(place);
                match is_before {
                    true => part.first = nth,
                    false => part.push(place, record.payload),
                }
            }
            if let Some(last_place) = last_place.filter(|_| part.bytes >= self.part_bytes) {
                part.end = Some(PartEnd { nth, last_place, elements, places: places() });
            }
            Ok(true)
        })?;
        if part.is_last && elements != slice.elements {
            let told = slice.elements;
            let what = format!("a packed slice has {elements} elements in runs, {told} are told");
            return Err(Error::new(ErrorKind::Corrupt, what).with("slice", time.0));
        }
        Ok(part)
    }
}

/// Whether a run is what is packed of a slice that is read part by part.
pub fn is_paged(run: &ListRun) -> bool {
    run.number == PACKED && run.cached.is_none()
}

impl ListsCore {
    /// Merges of levels that have ended: whoever reads parts of slices does not find what was merged since.
    pub(in crate::append_log) fn merges_of_levels(&self) -> u64 {
        self.packed.as_ref().map_or(0, |packed| packed.levels.stats_merges())
    }
}

impl PackedState {
    /// What a slice takes while it is read part by part, beside what reading a part takes for a moment.
    pub fn paged_bytes(&self) -> u64 {
        self.part_bytes.0 + self.longest_chunk + self.decoded_bytes() + KNOWN_BYTES
    }

    /// What reading a part takes for a moment, of several slices only one at a time.
    pub fn paging_bytes(&self) -> u64 {
        self.scan_bytes_most()
    }

    /// A packed slice, one of so many that are read at once part by part, beside which so much is free.
    pub fn paged(&self, time: Time, count: usize, spare: u64) -> Option<Arc<PagedSlice>> {
        let share = spare / FREE_SHARE / count.max(1) as u64;
        self.paged_by(time, (self.part_bytes.0 + share).min(self.part_bytes.1))
    }

    /// A packed slice that is read in the least parts.
    pub fn paged_least(&self, time: Time) -> Option<Arc<PagedSlice>> {
        self.paged_by(time, self.part_bytes.0)
    }

    fn paged_by(&self, time: Time, part_bytes: u64) -> Option<Arc<PagedSlice>> {
        let slice = self.directory.get(time)?;
        let hash = hash_of(time);
        Some(Arc::new(PagedSlice {
            store: self.store.clone(),
            levels: self.levels.infos_within(&(hash..=hash)),
            slice: (time, slice),
            read_bytes: self.read_bytes,
            part_bytes,
            longest_chunk: self.longest_chunk,
            decoded_bytes: self.decoded_bytes(),
        }))
    }
}
