//! The part of the log that is on storage: its segments, and what is live in them.
//!
//! Each segment has a number that index entries carry; a number is given again only when its
//! segment is dropped, which needs that no live record, committed checkpoint or read names it.
//! Which records die is noted for checkpoints in `dying`; single records are read in `reading`.

mod dying;
mod reading;

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use alluvium_pagestore::{
    Account, BlobRef, Error, ErrorKind, Helper, Result, SegmentId, SegmentImage, SegmentInfo,
    SegmentMeta, SegmentStore, Time,
};

use self::reading::RecordReads;
use crate::checkpoint::{LiveSets, NamedBy, SegmentCounts};
use crate::contract::table::CheckpointOutcome;
use crate::hybrid_log::address::SEGMENTS_MAX;
use crate::hybrid_log::deaths::Deaths;
use crate::hybrid_log::frame_set::FrameSet;
use crate::hybrid_log::leaving::SegmentSet;
use crate::hybrid_log::spill::DeathSpill;

pub use self::reading::RecordRead;

/// The segments of one table, and what reads them.
#[derive(Debug)]
pub struct StoredSegments {
    store: SegmentStore,
    helper: Helper,
    account: Rc<Account>,
    segments: Vec<Option<LiveSegment>>,
    by_id: BTreeMap<SegmentId, u32>,
    vacant: Vec<u32>,
    reads: RecordReads,
    /// Bytes of all segment files.
    bytes: u64,
    /// Live records, and the estimated bytes of them.
    live_records: u64,
    /// How many barriers there were.
    epoch: u32,
    deaths: Deaths,
    /// Whether the helper has those before the barrier, or some of them.
    has_lent: bool,
    /// Sets that a checkpoint makes of live records.
    pub sets: Option<LiveSets>,
    /// What dies before its set is begun, and is not noted.
    pub spill: DeathSpill,
    /// Whether the checkpoint being taken knows of which segments it makes sets: others need none.
    is_looked_over: bool,
}

/// The table of segments grows by so many.
const GROWTH: usize = 8;

#[derive(Debug)]
struct LiveSegment {
    info: SegmentInfo,
    named: NamedBy,
    counts: SegmentCounts,
    /// The set of live records that a checkpoint has made; those noted since are dead.
    base: Option<Box<BlobRef>>,
    /// The last barrier whose checkpoint needs no more to know which records die: it has the set of those
    /// that were live, or needs none.
    settled_in: u32,
    /// Frames in memory whose records may be in it too.
    frames: FrameSet,
}

/// A segment as it was at the last barrier.
#[derive(Clone, Debug)]
pub struct SegmentBefore {
    /// Its number.
    pub number: u32,
    /// What a checkpoint says of it, if it need not be looked at in full.
    pub image: SegmentImage,
    /// Whether it was sealed when this was asked.
    pub was_sealed: bool,
    /// Whether it need not: all of its dead records are known.
    pub is_known: bool,
    /// Whether a checkpoint's lists have dead records of it.
    pub has_dead: bool,
}

impl StoredSegments {
    /// No segments; so many buffers of so many bytes for reads, and room for deaths, which the caller has
    /// booked.
    pub fn new(
        store: SegmentStore,
        helper: Helper,
        account: Rc<Account>,
        reads: (usize, usize),
        patience: Duration,
        (deaths, spill): (Deaths, DeathSpill),
    ) -> Self {
        Self {
            store,
            helper,
            account,
            segments: Vec::new(),
            by_id: BTreeMap::new(),
            vacant: Vec::new(),
            reads: RecordReads::new(reads, patience),
            bytes: 0,
            live_records: 0,
            epoch: 0,
            deaths,
            has_lent: false,
            sets: None,
            spill,
            is_looked_over: false,
        }
    }

    /// Books on another account from now on, to which the caller has moved what is booked.
    pub fn book_on(&mut self, account: &Rc<Account>) {
        self.account = account.clone();
        self.deaths.account = account.clone();
    }

    /// Removes a file, now or when no checkpoint names it any more, of segments of which nobody writes or reads one; says
    /// whether there was one. One that cannot be removed is, at the next open.
    pub fn remove_one(&mut self) -> bool {
        let Some((id, number)) = self.by_id.pop_first() else { return false };
        let segment = self.segments[number as usize].take().expect("a numbered segment");
        self.bytes -= segment.info.bytes;
        let _ = self.store.remove(id);
        true
    }

    /// Where the files are.
    pub fn store(&self) -> SegmentStore {
        self.store.clone()
    }

    /// Bytes of all segment files.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Records in segments that count as live.
    pub fn live_records(&self) -> u64 {
        self.live_records
    }

    /// Estimated bytes of the live records on storage.
    pub fn live_bytes(&self) -> u64 {
        self.segments.iter().flatten().map(|s| s.meta(false, Time::MIN).live_bytes()).sum()
    }

    /// Estimated bytes that so many records would take in segments, going by those that are there.
    pub fn bytes_of(&self, records: u64) -> u64 {
        let stored: u64 = self.segments.iter().flatten().map(|s| s.info.records).sum();
        if stored == 0 { 0 } else { (self.bytes as f64 * (records as f64 / stored as f64)) as u64 }
    }

    /// Memory for the tables and their next growth, by upper bound, and for the sets of numbers of a rewrite.
    pub fn tables_bytes(&self) -> u64 {
        ((self.segments.capacity() + GROWTH) as u64) * Self::table_bytes_each()
    }

    fn table_bytes_each() -> u64 {
        size_of::<Option<LiveSegment>>() as u64 + 160
    }

    /// Bytes that the tables are to take if so many records are live, as long as they are now, and half of the segments'
    /// bytes is dead.
    pub fn tables_bytes_for(&self, records: u64, segment_bytes: u64) -> u64 {
        let each = self.live_bytes() / self.live_records.max(1);
        Self::tables_bytes_of(records * each, segment_bytes)
    }

    /// Bytes that the tables take for so many bytes of live records, if as many are dead.
    pub fn tables_bytes_of(live_bytes: u64, segment_bytes: u64) -> u64 {
        (2 * live_bytes / segment_bytes.max(1)).saturating_mul(Self::table_bytes_each())
    }

    /// Bytes of the tables without a segment.
    pub fn tables_bytes_min() -> u64 {
        GROWTH as u64 * Self::table_bytes_each()
    }

    /// A segment has grown or was sealed; `live` of its new records are live. Returns its number.
    pub fn update(&mut self, info: &SegmentInfo, live: u64) -> Result<u32> {
        self.live_records += live;
        if let Some(&number) = self.by_id.get(&info.id) {
            let segment = self.segments[number as usize].as_mut().expect("numbered");
            // The writers' answers to flushes and to rewrites come on channels of their own and may
            // overtake each other: an older state of the segment does not replace the newer.
            if info.bytes > segment.info.bytes {
                self.bytes += info.bytes - segment.info.bytes;
                segment.info = info.clone();
            }
            // What is written between a barrier and the end of its checkpoint is of before.
            segment.counts.add_written(live as u32, self.epoch);
            return Ok(number);
        }
        let mut counts = SegmentCounts::default();
        counts.add_written(live as u32, self.epoch);
        let segment = LiveSegment {
            info: info.clone(),
            named: NamedBy::default(),
            counts,
            base: None,
            // One that comes later has nothing of the checkpoint.
            settled_in: if self.is_looked_over { self.epoch } else { 0 },
            frames: FrameSet::default(),
        };
        let number = match self.vacant.pop() {
            Some(number) => number,
            None if self.segments.len() < SEGMENTS_MAX => {
                if self.segments.len() == self.segments.capacity() {
                    self.segments.reserve_exact(GROWTH);
                }
                self.segments.push(None);
                self.segments.len() as u32 - 1
            }
            None => {
                let message = format!("{SEGMENTS_MAX} segments are in use");
                return Err(Error::new(ErrorKind::OverBudget, message));
            }
        };
        self.bytes += info.bytes;
        self.by_id.insert(info.id, number);
        self.segments[number as usize] = Some(segment);
        Ok(number)
    }

    /// Records of a frame in memory are in a segment too.
    pub fn has_frame(&mut self, number: u32, frame: u32) {
        self.segments[number as usize].as_mut().expect("a numbered segment").frames.insert(frame);
    }

    /// Frames in memory whose records may be in a segment too.
    pub fn frames_of(&self, number: u32) -> FrameSet {
        self.segments[number as usize].as_ref().map_or_else(FrameSet::default, |s| s.frames)
    }

    /// Removes the file of a segment without live records that no checkpoint names.
    pub fn unlink(&mut self, number: u32) -> Result<()> {
        let segment = self.segments[number as usize].as_ref().expect("a numbered segment");
        let (id, bytes) = (segment.info.id, segment.info.bytes);
        let free = segment.counts.now().live == 0 && segment.info.sealed;
        assert!(free && !segment.named.committed, "{id:?} is needed: {segment:?}");
        self.store.remove(id)?;
        self.bytes -= bytes;
        self.segments[number as usize] = None;
        self.by_id.remove(&id);
        self.vacant.push(number);
        Ok(())
    }

    /// What became of a checkpoint that names these segments.
    pub fn decide(&mut self, ids: impl Iterator<Item = SegmentId>, outcome: CheckpointOutcome) {
        for id in ids {
            // One that is not there any more is kept by the store.
            let number = self.by_id.get(&id);
            let segment = number.and_then(|number| self.segments[*number as usize].as_mut());
            segment.into_iter().for_each(|segment| segment.named.taken = true);
        }
        let segments = self.segments.iter_mut().flatten();
        segments.for_each(|segment| segment.named.decide(outcome));
    }

    /// Whether the committed checkpoint names the segment.
    pub fn is_committed(&self, number: u32) -> bool {
        self.segments[number as usize].as_ref().is_some_and(|segment| segment.named.committed)
    }

    /// The segment with this number.
    pub fn info(&self, number: u32) -> &SegmentInfo {
        &self.segments[number as usize].as_ref().expect("a numbered segment").info
    }

    /// Live records of a segment.
    pub fn live_of(&self, number: u32) -> u32 {
        self.segments[number as usize].as_ref().expect("a numbered segment").counts.now().live
    }

    /// The segment with this id, if it is in use.
    pub fn number_of(&self, id: SegmentId) -> Option<u32> {
        self.by_id.get(&id).copied()
    }

    /// Numbers of all segments in use.
    pub fn numbers(&self) -> impl ExactSizeIterator<Item = u32> + '_ {
        self.by_id.values().copied()
    }

    /// What a policy may know of the segments; what was touched last before `expired_to` has
    /// expired. While a checkpoint is taken those that it may name are pinned, nothing of what has expired is
    /// removed, and those that are `put_off` are shown without garbage.
    pub fn metas(
        &self,
        expired_to: Time,
        capturing: Option<&SegmentSet>,
        out: &mut Vec<SegmentMeta>,
    ) {
        for (number, segment) in self.segments.iter().enumerate() {
            let Some(segment) = segment else { continue };
            let mut meta = segment.meta(segment.named.committed, expired_to);
            if let Some(put_off) = capturing {
                if meta.expired {
                    continue;
                }
                meta.pinned |= segment.counts.before(self.epoch).live > 0;
                if meta.live_records > 0 && put_off.has(number as u32) {
                    // As if it was done, or others would be given up for what it cannot give now.
                    meta.sealed = false;
                    (meta.bytes, meta.records) = (meta.live_bytes(), meta.live_records);
                }
            }
            out.push(meta);
        }
    }

    /// Whether all records of a segment were touched last before `expired_to`.
    pub fn is_over(&self, number: u32, expired_to: Time) -> bool {
        self.segments[number as usize].as_ref().is_some_and(|s| s.is_over(expired_to))
    }

    /// Segments of which nobody knows when they were touched last were not after `now`.
    pub fn touched_by(&mut self, now: Time) {
        let unknown = |segment: &&mut LiveSegment| segment.info.latest == Time::MAX;
        for segment in self.segments.iter_mut().flatten().filter(unknown) {
            segment.info.latest = now;
        }
    }
}

impl LiveSegment {
    /// Whether all of its records were touched last before `expired_to`.
    fn is_over(&self, expired_to: Time) -> bool {
        self.info.sealed && self.info.latest < expired_to
    }

    fn meta(&self, pinned: bool, expired_to: Time) -> SegmentMeta {
        SegmentMeta {
            id: self.info.id.0,
            sequence: self.info.id.0,
            bytes: self.info.bytes,
            records: self.info.records,
            live_records: self.counts.now().live.into(),
            sealed: self.info.sealed,
            pinned,
            expired: self.is_over(expired_to),
        }
    }
}
