//! Copies of records that move down together.
//!
//! They come in the order of their segments and leave in the order of their hashes: each some are sorted as they come,
//! so that no step sorts all of them, and the sorted ones are merged as they leave. All memory is taken when a batch is
//! made.

use std::cmp::Reverse;
use std::collections::binary_heap::PeekMut;
use std::collections::{BinaryHeap, VecDeque};
use std::ops::Range;

use alluvium_pagestore::SegmentId;

use crate::runs::RecordView;
use crate::support::mapped_unsafe::MappedList;
use crate::support::prefetch_unsafe::prefetch;

/// Records that are sorted at once.
const SORTED: usize = 2048;
/// Segments that a batch may have records of.
const SOURCES_MAX: usize = 256;
/// Cache lines of a payload that are loaded ahead: the processor loads the rest of a long one by itself.
const LINES: usize = 4;
const LINE_BYTES: usize = 64;
/// Payloads are loaded so many records ahead.
const DRAWN: usize = 16;

/// A record of a batch, and where it was copied from.
#[derive(Clone, Copy, Debug)]
pub struct MovedRecord {
    pub hash: u64,
    pub grain: u32,
    start: u32,
    /// The number of the source.
    pub source: u16,
    length: u16,
}

/// The copies.
#[derive(Debug)]
pub struct ColdBatch {
    /// Each begins at a multiple of 16.
    payloads: MappedList<u8>,
    records: MappedList<MovedRecord>,
    /// The segments of the records: number and id.
    sources: Vec<(u32, SegmentId)>,
    /// Records that are sorted, part by part; the rest is not yet.
    parts: Vec<Range<usize>>,
    /// The first record of each part that was not drawn.
    heads: BinaryHeap<Reverse<(u64, usize)>>,
    /// The records that leave next. Their payloads are being loaded.
    drawn: VecDeque<MovedRecord>,
}

impl ColdBatch {
    /// An empty one that takes so many payload bytes, and so many records.
    pub fn new(bytes: usize, records: usize) -> Self {
        let parts = records.div_ceil(SORTED);
        let sources = if records == 0 { 0 } else { SOURCES_MAX };
        Self {
            payloads: MappedList::with_capacity(bytes),
            records: MappedList::with_capacity(records),
            sources: Vec::with_capacity(sources),
            parts: Vec::with_capacity(parts),
            heads: BinaryHeap::with_capacity(parts),
            drawn: VecDeque::with_capacity(if records == 0 { 0 } else { DRAWN }),
        }
    }

    /// Bytes of one.
    pub fn memory_bytes(bytes: usize, records: usize) -> u64 {
        let each_part = size_of::<Range<usize>>() + size_of::<Reverse<(u64, usize)>>();
        let lists = SOURCES_MAX * size_of::<(u32, SegmentId)>()
            + records.div_ceil(SORTED) * each_part
            + DRAWN * size_of::<MovedRecord>();
        let mapped = MappedList::<u8>::memory_bytes(bytes);
        (mapped + MappedList::<MovedRecord>::memory_bytes(records) + lists) as u64
    }

    /// Payload bytes and records of batches in about so much memory, of records of so many bytes.
    pub fn within(memory: u64, payload_bytes: usize) -> (usize, usize) {
        let each = payload_bytes.next_multiple_of(16).max(16);
        let records = (memory as usize / (each + size_of::<MovedRecord>() + 1)).max(64);
        (records * each, records)
    }

    /// Records that have been copied.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether one part in so many of it is used.
    pub fn is_filled(&self, share: usize) -> bool {
        share * self.records.len() >= self.records.capacity()
            || share * self.payloads.len() >= self.payloads.capacity()
    }

    /// Adds a segment whose records may come; says its number among the sources, if there is room for one more.
    pub fn add_source(&mut self, number: u32, id: SegmentId) -> Option<u16> {
        if self.sources.len() == SOURCES_MAX {
            return None;
        }
        self.sources.push((number, id));
        Some(self.sources.len() as u16 - 1)
    }

    /// The segment of a source: its number and its id.
    pub fn source(&self, moving: &MovedRecord) -> (u32, SegmentId) {
        self.sources[moving.source as usize]
    }

    /// Whether there is room for a payload of this length.
    pub fn has_room(&self, length: usize) -> bool {
        let start = self.payloads.len().next_multiple_of(16);
        start + length <= self.payloads.capacity() && self.records.len() < self.records.capacity()
    }

    /// Copies a record, for which there is room.
    pub fn take(&mut self, hash: u64, (source, grain): (u16, u32), payload: &[u8]) {
        let start = self.payloads.len().next_multiple_of(16);
        self.payloads.extend_from_slice(&[0; 16][..start - self.payloads.len()]);
        self.payloads.extend_from_slice(payload);
        let (start, length) = (start as u32, payload.len() as u16);
        self.records.push(MovedRecord { hash, grain, start, source, length });
        if self.records.len() - self.sorted() == SORTED {
            self.sort_rest();
        }
    }

    /// Records that are sorted, part by part.
    fn sorted(&self) -> usize {
        self.parts.last().map_or(0, |part| part.end)
    }

    fn sort_rest(&mut self) {
        let rest = self.sorted()..self.records.len();
        if !rest.is_empty() {
            self.records[rest.clone()].sort_unstable_by_key(|moving| moving.hash);
            self.parts.push(rest);
        }
    }

    /// No more come: they leave from now on, the lowest hash first.
    pub fn begin_leaving(&mut self) {
        self.sort_rest();
        self.heads.clear();
        let heads = self.parts.iter().enumerate();
        self.heads.extend(heads.map(|(nth, part)| Reverse((self.records[part.start].hash, nth))));
        self.drawn.clear();
        (0..DRAWN).for_each(|_| self.draw());
    }

    /// The record that leaves next.
    pub fn next(&self) -> Option<MovedRecord> {
        self.drawn.front().copied()
    }

    /// One that leaves later: the last whose payload is being loaded.
    pub fn later(&self) -> Option<MovedRecord> {
        self.drawn.back().copied()
    }

    /// The record that was next has left. Its copy stays.
    pub fn leave(&mut self) {
        self.drawn.pop_front();
        self.draw();
    }

    /// Has one record more among those that leave next.
    fn draw(&mut self) {
        let Some(mut head) = self.heads.peek_mut() else { return };
        let Reverse((hash, nth)) = &mut *head;
        let part = &mut self.parts[*nth];
        let moving = self.records[part.start];
        part.start += 1;
        if part.start < part.end {
            *hash = self.records[part.start].hash;
        } else {
            PeekMut::pop(head);
        }
        let (start, length) = (moving.start as usize, usize::from(moving.length));
        for at in (start..start + length).step_by(LINE_BYTES).take(LINES) {
            prefetch(&self.payloads[at]);
        }
        self.drawn.push_back(moving);
    }

    /// The nth copied record.
    pub fn record(&self, nth: usize) -> Option<MovedRecord> {
        self.records.get(nth).copied()
    }

    /// The payload of a record.
    pub fn payload(&self, moving: &MovedRecord) -> &[u8] {
        let start = moving.start as usize;
        &self.payloads[start..start + moving.length as usize]
    }

    /// The record as a run takes it.
    pub fn view(&self, moving: &MovedRecord) -> RecordView<'_> {
        RecordView { hash: moving.hash, mark: 0, order: &[], payload: self.payload(moving) }
    }

    /// The records of a hash, those that have left too. All are sorted, part by part.
    pub fn of_hash(&self, hash: u64) -> impl Iterator<Item = MovedRecord> + '_ {
        let ends = self.parts.iter().map(|part| part.end);
        let starts = std::iter::once(0).chain(ends.clone());
        starts.zip(ends).flat_map(move |(start, end)| {
            let part = &self.records[start..end];
            let first = part.partition_point(|moving| moving.hash < hash);
            part[first..].iter().take_while(move |moving| moving.hash == hash).copied()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alluvium_pagestore::hash_word;

    #[test]
    fn records_leave_in_the_order_of_their_hashes() {
        let count = 3 * SORTED + 77;
        let (bytes, records) = ColdBatch::within((count * 64) as u64, 8);
        let mut batch = ColdBatch::new(bytes, records);
        let source = batch.add_source(3, SegmentId(9)).unwrap();
        let hash_of = |nth: usize| hash_word(nth as u64) % 5000;
        for nth in 0..count {
            assert!(batch.has_room(8));
            batch.take(hash_of(nth), (source, nth as u32), &(nth as u64).to_le_bytes());
        }
        assert!(batch.is_filled(2));
        batch.begin_leaving();
        let mut wanted: Vec<u64> = (0..count).map(hash_of).collect();
        wanted.sort_unstable();
        for hash in wanted {
            let moving = batch.next().unwrap();
            batch.leave();
            assert_eq!((moving.hash, hash_of(moving.grain as usize)), (hash, hash));
            assert_eq!(batch.payload(&moving), u64::from(moving.grain).to_le_bytes());
            assert_eq!(batch.source(&moving), (3, SegmentId(9)));
        }
        assert!(batch.next().is_none());
        for hash in [0, 17, 4999, 5000] {
            let there = (0..count).filter(|nth| hash_of(*nth) == hash).count();
            assert_eq!(batch.of_hash(hash).count(), there);
        }
    }

    #[test]
    fn a_batch_takes_what_it_has_room_for_and_no_more_memory() {
        let (bytes, records) = ColdBatch::within(64 << 10, 40);
        assert!(ColdBatch::memory_bytes(bytes, records) <= (64 << 10) + 8192);
        let mut batch = ColdBatch::new(bytes, records);
        let source = batch.add_source(0, SegmentId(1)).unwrap();
        let mut taken = 0;
        while batch.has_room(40) {
            batch.take(taken, (source, taken as u32), &[7; 40]);
            taken += 1;
        }
        assert!(taken as usize == records);
        let mut long = ColdBatch::new(bytes, records);
        long.take(1, (0, 0), &vec![1; bytes / 3]);
        assert!(long.is_filled(4) && !long.is_filled(2), "by bytes");
        assert_eq!((batch.payloads.capacity(), batch.records.capacity()), (bytes, records));
    }
}
