//! Computes the places of records in segments before they are written.
//!
//! It uses the same functions as the [writer](super::SegmentWriter). A caller that passes records
//! one by one, and ends pages by bytes and records, knows each place at once, although another
//! thread writes them.

use super::format::{
    CLOSING_BYTES, FOOTER_ENTRY_BYTES, GRAIN_BYTES, RECORD_HEADER_BYTES, SEGMENT_BYTES_MAX,
    TRAILER_BYTES, UNSPLIT_BYTES, is_bare,
};
use crate::io::BLOCK_BYTES;

/// Where a record of `bytes` goes if what came before it ends at `position`.
pub(super) fn record_offset(position: u64, bytes: u64) -> u64 {
    let (at, block) = (position.next_multiple_of(GRAIN_BYTES), BLOCK_BYTES as u64);
    let is_split = bytes <= UNSPLIT_BYTES && at / block != (at + bytes - 1) / block;
    if is_split { at.next_multiple_of(block) } else { at }
}

/// Where the footer of an image goes whose records end at `position`, and where the image ends.
pub(super) fn footer_and_end(position: u64, footer_bytes: usize) -> (u64, u64) {
    let footer = position.next_multiple_of(GRAIN_BYTES);
    let end = footer + (footer_bytes + TRAILER_BYTES) as u64;
    (footer, end.next_multiple_of(BLOCK_BYTES as u64))
}

/// The lengths of a page's payloads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Lengths {
    /// There is none.
    #[default]
    None,
    /// All have so many bytes.
    One(u32),
    Many,
}

impl Lengths {
    /// There is one more.
    #[inline]
    pub fn add(&mut self, bytes: usize) {
        let bytes = bytes as u32;
        *self = match *self {
            Self::None => Self::One(bytes),
            Self::One(other) if other == bytes => return,
            _ => Self::Many,
        };
    }

    /// The length of all, if they are short and need no footer; else 0.
    pub fn bare(self) -> u32 {
        match self {
            Self::One(bytes) if is_bare(bytes) => bytes,
            _ => 0,
        }
    }
}

/// Whether a segment ends before the next page.
pub(super) fn is_full(end: u64, segment_bytes: u64) -> bool {
    end >= segment_bytes.min(SEGMENT_BYTES_MAX / 2)
}

/// Whether a page has room for a payload behind its `records`, which end at `position`. One that
/// has none goes to another page, and to a segment that is new if need be.
pub(super) fn has_room(position: u64, records: u32, payload_bytes: usize) -> bool {
    let bytes = (RECORD_HEADER_BYTES + payload_bytes) as u64;
    let footer = (u64::from(records) + 1) * FOOTER_ENTRY_BYTES as u64;
    record_offset(position, bytes) + bytes + footer + CLOSING_BYTES <= SEGMENT_BYTES_MAX
}

/// The place of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacedAt {
    /// Index of its segment, in the order of writing.
    pub segment: u32,
    /// Offset of its start, in [grains](GRAIN_BYTES).
    pub grain: u32,
}

/// Computes the places of records.
#[derive(Clone, Debug)]
pub struct RecordPlacing {
    segment_bytes: u64,
    page_bytes: u64,
    page_records: u32,
    segment: u32,
    /// Where the page begins; 0 before there is any.
    begin: u64,
    /// Where its last record ends.
    position: u64,
    records: u32,
    lengths: Lengths,
}

impl RecordPlacing {
    /// Starts without records. A page ends with the record that brings it to `page_bytes` or
    /// `page_records`.
    pub fn new(segment_bytes: u64, page_bytes: u64, page_records: u32) -> Self {
        Self {
            segment_bytes,
            page_bytes,
            page_records,
            segment: 0,
            begin: 0,
            position: 0,
            records: 0,
            lengths: Lengths::None,
        }
    }

    /// Ends the segment: the next record goes to another one.
    pub fn end_segment(&mut self) {
        self.segment += u32::from(self.begin > 0);
        (self.begin, self.records) = (0, 0);
    }

    /// Returns the place of the next record.
    pub fn place(&mut self, payload_bytes: usize) -> PlacedAt {
        if self.records > 0 && !has_room(self.position, self.records, payload_bytes) {
            self.end_page();
        }
        if self.records == 0 {
            if self.begin == 0 {
                self.begin = BLOCK_BYTES as u64;
            } else if is_full(self.begin, self.segment_bytes)
                || !has_room(self.begin, 0, payload_bytes)
            {
                (self.segment, self.begin) = (self.segment + 1, BLOCK_BYTES as u64);
            }
            (self.position, self.lengths) = (self.begin, Lengths::None);
        }
        let bytes = (RECORD_HEADER_BYTES + payload_bytes) as u64;
        let at = record_offset(self.position, bytes);
        self.position = at + bytes;
        self.records += 1;
        self.lengths.add(payload_bytes);
        let is_full = self.position - self.begin >= self.page_bytes;
        if is_full || self.records >= self.page_records {
            self.end_page();
        }
        PlacedAt { segment: self.segment, grain: (at / GRAIN_BYTES) as u32 }
    }

    fn end_page(&mut self) {
        let footer_bytes = match self.lengths.bare() {
            0 => self.records as usize * FOOTER_ENTRY_BYTES,
            _ => 0,
        };
        self.begin = footer_and_end(self.position, footer_bytes).1;
        self.records = 0;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::io::{Faults, Simulated};
    use crate::segment::format::RECORD_BYTES_MAX;
    use crate::segment::{SegmentStore, SegmentWriter};
    use crate::{ErrorKind, hash_word};

    /// Records of all lengths, in pages that end by bytes and by records, in segments of a few
    /// pages.
    #[test]
    fn places_are_those_of_the_writer() {
        let pages =
            [(1, 64 << 10, 512), (2, 1 << 20, 7), (3, 1, 100), (4, 16 << 10, 512), (5, 1 << 20, 3)];
        for (seed, page_bytes, page_records) in pages {
            let store = SegmentStore::new(Arc::new(Simulated::new(seed, Faults::none())), 1);
            let segment_bytes = 200 << 10;
            let mut writer = SegmentWriter::new(store, 0, 16 << 10, segment_bytes);
            let mut placing = RecordPlacing::new(segment_bytes, page_bytes, page_records);
            let mut ids = Vec::new();
            for nth in 0..3_000u64 {
                let chance = hash_word(seed << 32 | nth);
                let bytes = match chance % 100 {
                    // Pages of one length, all or some.
                    _ if seed == 4 => 1 + nth / 700 % 20,
                    _ if seed == 5 => 8 + chance % 2,
                    0 => chance >> 8 & 0xffff,
                    1..20 => 900 + (chance >> 8) % 300,
                    _ => (chance >> 8) % 100,
                };
                if writer.page_records() > 0 && !writer.has_room(bytes as usize) {
                    writer.finish_page().unwrap();
                }
                if writer.page_records() == 0 {
                    let id = writer.begin_page_for(bytes as usize).unwrap();
                    if ids.last() != Some(&id) {
                        ids.push(id);
                    }
                }
                let grain = writer.push_encoded(chance, &vec![1; bytes as usize]).unwrap();
                let segment = ids.len() as u32 - 1;
                assert_eq!(placing.place(bytes as usize), PlacedAt { segment, grain }, "{nth}");
                if writer.page_bytes() >= page_bytes || writer.page_records() >= page_records {
                    writer.finish_page().unwrap();
                }
                if nth % 1_000 == 999 {
                    if writer.page_records() > 0 {
                        writer.finish_page().unwrap();
                    }
                    writer.seal().unwrap();
                    placing.end_segment();
                }
            }
            assert!(ids.len() >= 3, "{ids:?}");
        }
    }

    /// Long records behind each other and behind short ones, each of which any segment takes.
    #[test]
    fn a_record_that_its_segment_has_no_room_for_begins_another() {
        let store = SegmentStore::new(Arc::new(Simulated::new(9, Faults::none())), 1);
        let (segment_bytes, page_bytes) = (8 << 20, 1 << 20);
        let mut writer = SegmentWriter::new(store, 0, 64 << 10, segment_bytes);
        let mut placing = RecordPlacing::new(segment_bytes, page_bytes, 512);
        let (mut ids, longest) = (Vec::new(), RECORD_BYTES_MAX as usize);
        for bytes in [100, longest, longest, 7 << 20, longest - (8 << 20), 50, 20 << 20, longest] {
            if writer.page_records() > 0 && !writer.has_room(bytes) {
                writer.finish_page().unwrap();
            }
            if writer.page_records() == 0 {
                let id = writer.begin_page_for(bytes).unwrap();
                if ids.last() != Some(&id) {
                    ids.push(id);
                }
            }
            let grain = writer.push_encoded(1, &vec![1; bytes]).unwrap();
            let segment = ids.len() as u32 - 1;
            assert_eq!(placing.place(bytes), PlacedAt { segment, grain }, "{bytes}");
            if writer.page_bytes() >= page_bytes {
                writer.finish_page().unwrap();
            }
        }
        assert!(ids.len() >= 5, "{ids:?}");
        writer.begin_page_for(33 << 20).unwrap();
        let refused = writer.push_encoded(1, &vec![1; 33 << 20]).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ValueTooLarge);
    }
}
