//! Which hashes the segments of a state have: a record of a run is dead if its key has one there.
//!
//! Memory has a part of the hashes at a time, the lowest first: [`HASHES_MAX`], 16 bytes each, and
//! twice as much while they are collected. State with more is passed over several times.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::RangeInclusive;

use alluvium_pagestore::{
    Error, ErrorKind, FooterEntry, Result, SegmentInfo, VerifiedRecord, verify_record,
};

use super::reader::DirectoryReader;
use crate::checkpoints::{SegmentAt, StateAt};
use crate::map_unsafe::Mapped;

/// Most hashes that memory has at once.
pub const HASHES_MAX: usize = 4 << 20;
/// Most segments that are mapped at once.
const MAPPED_MAX: usize = 1024;

/// A live record of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HotRecord {
    hash: u64,
    /// The how manieth of the state.
    segment: u32,
    grain: u32,
}

/// The records of segments whose hashes are in a range.
#[derive(Debug)]
pub struct HotRecords<'d> {
    reader: &'d DirectoryReader<'d>,
    state: StateAt<'d>,
    segments: Vec<SegmentAt<'d>>,
    pub hashes: RangeInclusive<u64>,
    sorted: Vec<HotRecord>,
    /// Whether damage may hide some of them.
    pub is_all: bool,
    mapped: RefCell<HashMap<u32, (SegmentInfo, Mapped)>>,
}

impl<'d> HotRecords<'d> {
    /// Those with the lowest hashes, from the first one on: about so many at most.
    pub fn from(
        reader: &'d DirectoryReader<'d>,
        state: StateAt<'d>,
        first: u64,
        most: usize,
    ) -> Result<Self> {
        let segments: Vec<_> = state.segments().collect();
        let (mut found, mut last, mut is_all) = (Vec::new(), u64::MAX, true);
        for (segment, at) in (0..).zip(&segments) {
            is_all &= reader.for_each_entry(state, *at, &mut |entry: &FooterEntry| {
                if (first..=last).contains(&entry.hash) {
                    found.push(HotRecord { hash: entry.hash, segment, grain: entry.grain });
                }
                if found.len() >= 2 * most {
                    last = keep_lowest(&mut found, most);
                }
            })?;
        }
        if found.len() > most {
            last = keep_lowest(&mut found, most);
        }
        found.sort_unstable();
        let (sorted, mapped) = (found, RefCell::default());
        Ok(Self { reader, state, segments, hashes: first..=last, sorted, is_all, mapped })
    }

    /// The records with this hash.
    pub fn of(&self, hash: u64) -> &[HotRecord] {
        let first = self.sorted.partition_point(|hot| hot.hash < hash);
        let count = self.sorted[first..].partition_point(|hot| hot.hash == hash);
        &self.sorted[first..first + count]
    }

    /// Shows the payload of a record to `visit`.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if it is damaged.
    pub fn read<R>(&self, hot: &HotRecord, visit: &mut dyn FnMut(&[u8]) -> R) -> Result<R> {
        let mut mapped = self.mapped.borrow_mut();
        if !mapped.contains_key(&hot.segment) {
            if mapped.len() >= MAPPED_MAX {
                mapped.clear();
            }
            let segment = &self.segments[hot.segment as usize];
            let info = self.reader.open_unchecked(*segment)?;
            let file = self.reader.map(&segment.file_name())?;
            mapped.insert(hot.segment, (info, file));
        }
        let (info, bytes) = &mapped[&hot.segment];
        let entry = FooterEntry { hash: hot.hash, grain: hot.grain, len: 0 };
        let offset = entry.offset();
        let other = || {
            let what = "a record is not the one its footer tells of";
            let error = Error::new(ErrorKind::Corrupt, what).with("file", info.file.name());
            error.with("offset", offset).with("state", self.state.name())
        };
        let rest = bytes.get(offset as usize..).ok_or_else(other)?;
        match verify_record(&info.file, info.id, offset, rest)? {
            VerifiedRecord::Record(record) if record.hash == hot.hash => Ok(visit(record.payload)),
            _ => Err(other()),
        }
    }
}

/// Keeps those with the lowest hashes, about so many, and says up to which hash: all of one hash
/// stay together.
fn keep_lowest(found: &mut Vec<HotRecord>, most: usize) -> u64 {
    let (_, at, _) = found.select_nth_unstable(most);
    let beyond = at.hash;
    let lowest = found.iter().map(|hot| hot.hash).min().unwrap_or(beyond);
    // At least one hash stays, however many records it has.
    let last = if lowest == beyond { beyond } else { beyond - 1 };
    found.retain(|hot| hot.hash <= last);
    last
}
