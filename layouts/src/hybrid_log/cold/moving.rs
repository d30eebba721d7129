//! How records move down, in steps: live records of the oldest segments are copied to a batch, the batch is written as a
//! level of runs in the order of hashes, and then their index entries go.
//!
//! What it keeps true:
//! - Entries go only when the level is there; each goes only if it still leads to the record that was copied.
//! - A record is written only if its entry leads to it then. A key that is deleted after that is buried if the batch has
//!   it, so that the level does not bring it back.
//! - A move whose step fails goes on with the next. One that is given up changes nothing: what it wrote is removed, and
//!   tombstones that it took come back.

use std::ops::RangeInclusive;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Instant;

use alluvium_pagestore::{
    Error, ErrorKind, FooterEntry, KIB, MemoryKind, Result, SegmentDirectory, SegmentId,
    SegmentInfo, SegmentReader, SegmentStore, Time,
};

use super::batch::{ColdBatch, MovedRecord};
use super::judge::has_same_key;
use super::{ColdTier, PAYLOAD_MAX, TOMBSTONE, remove_runs};
use crate::contract::table::RunTimes;
use crate::hybrid_log::address::{Address, StoredAt};
use crate::hybrid_log::log::Log;
use crate::runs::{
    FAILED_MAX, RecordView, RunInfo, RunSizes, RunWriter, UnsyncedRun, is_of_device,
};
use crate::support::booked::Booked;
use crate::support::nanos_since;

/// What looking at a record costs, in bytes of records.
const LOOK_BYTES: u64 = 32;
/// A segment has so many bytes beside its pages, at most as a rule.
const SEGMENT_BYTES: u64 = 16 << 10;
/// What reading a page and looking at its records costs at least, and one part in so many of what is read.
const PAGE_BYTES: u64 = 4 << 10;
const READ_SHARE: u64 = 4;
/// Buckets of the index are loaded so many records ahead.
const PREFETCHED: usize = 8;
/// After so many pages in a row that cannot be read the rest of a segment stays in the log. A move is given up after as
/// many such segments in a row as steps may fail.
const PAGES_FAILED_MAX: u32 = 4;
/// A move waits for so many records that a batch is filled to one part in so many.
const BATCH_SHARE: usize = 4;

/// Whether the records of a segment are longer on average than what moves: they are not read for a move.
pub(super) fn has_long_records(info: &SegmentInfo) -> bool {
    are_long(info.bytes.saturating_sub(SEGMENT_BYTES), info.records)
}

fn are_long(bytes: u64, records: u64) -> bool {
    bytes > records * PAYLOAD_MAX as u64 + PAGE_BYTES / 2
}

/// A move under way.
#[derive(Debug)]
pub struct ColdMove {
    batch: ColdBatch,
    phase: ColdMovePhase,
    /// Steps that failed since the last that did not, but for what was passed over.
    failed: u32,
    memory: Booked,
}

#[derive(Debug)]
enum ColdMovePhase {
    Gathering(Box<GatherSource>),
    /// The batch and the tombstones in `going` are written; so many of these were.
    Writing {
        writer: Box<RunWriter>,
        graves: usize,
        sealed: Vec<RunInfo>,
        unsynced: Vec<UnsyncedRun>,
        /// Hashes whose records are not to count, if they were written before.
        cuts: Vec<(u64, u64)>,
    },
    /// The level is there, if something was left to write. The entries of the records from this one on are to go.
    Leaving {
        next: usize,
        level: Option<u64>,
        /// The latest touch of those that have gone.
        latest: Time,
    },
}

impl ColdMovePhase {
    /// Where the time of its steps is counted.
    fn time(&self) -> fn(&mut RunTimes) -> &mut u64 {
        match self {
            Self::Gathering(_) => |times| &mut times.gathering,
            Self::Writing { .. } => |times| &mut times.writing,
            Self::Leaving { .. } => |times| &mut times.leaving,
        }
    }
}

/// Where the records come from.
#[derive(Debug)]
struct GatherSource {
    reader: SegmentReader,
    entries: Vec<FooterEntry>,
    segment: Option<SourceSegment>,
    /// The last segment that was looked at.
    after: Option<SegmentId>,
    /// Pages of it in a row that could not be read, and segments in a row that were left for that.
    failed: u32,
    left: u32,
}

impl GatherSource {
    /// Reads the next page of the segment; there is no segment any more if that was the last. What cannot be read stays in
    /// the log: the next call goes on behind it.
    fn read_next(&mut self) -> Result<()> {
        let Self { reader, entries, segment, failed, left, .. } = self;
        let Some(SourceSegment { directory, image, .. }) = segment else { return Ok(()) };
        let images = directory.images();
        while images.get(*image).is_some_and(|it| are_long(it.bytes, it.records.into())) {
            *image += 1;
        }
        if *image == images.len() {
            *segment = None;
            return Ok(());
        }
        let read = read_image(reader, directory, *image, entries);
        match &read {
            Ok(()) => (*image, *failed, *left) = (*image + 1, 0, 0),
            Err(error) if error.kind() == ErrorKind::Backpressure => {}
            Err(_) if *failed + 1 < PAGES_FAILED_MAX => {
                (*image, *failed) = (*image + 1, *failed + 1)
            }
            Err(_) => (*segment, *failed, *left) = (None, 0, *left + 1),
        }
        read
    }
}

/// The segment that is looked at.
#[derive(Debug)]
struct SourceSegment {
    number: u32,
    /// Its number among the sources of the batch, if it has records there.
    nth: Option<u16>,
    directory: SegmentDirectory,
    /// The next image.
    image: usize,
}

/// How far a step came.
#[derive(Debug)]
pub enum ColdMoveStep {
    /// The move goes on.
    On(Box<ColdMove>),
    /// Records, or tombstones, have moved.
    Done,
    /// There is too little that could move.
    Nothing,
}

impl ColdMove {
    /// A move that takes what it needs of memory, which is booked.
    pub fn begin(cold: &ColdTier, memory: Booked) -> Self {
        let reader = SegmentReader::new(cold.store.clone(), cold.state, cold.work.window_bytes);
        let entries = Vec::with_capacity(cold.work.page_records);
        let (segment, after) = Default::default();
        let gathering = GatherSource { reader, entries, segment, after, failed: 0, left: 0 };
        let phase = ColdMovePhase::Gathering(Box::new(gathering));
        Self {
            batch: ColdBatch::new(cold.work.batch_bytes, cold.work.batch_records),
            phase,
            failed: 0,
            memory,
        }
    }

    /// A move of no records, whose memory is booked.
    fn of_nothing(memory: Booked) -> Self {
        let phase = ColdMovePhase::Leaving { next: 0, level: None, latest: Time::MIN };
        Self { batch: ColdBatch::new(0, 0), phase, failed: 0, memory }
    }

    /// Bytes that are booked for it.
    pub fn memory_bytes(&self) -> u64 {
        self.memory.bytes()
    }

    /// Whether its level is there, so that it cannot be given up.
    pub fn is_leaving(&self) -> bool {
        matches!(self.phase, ColdMovePhase::Leaving { .. })
    }

    /// Records that it has copied, if it copies some still.
    #[cfg(test)]
    pub fn gathered(&self) -> Option<usize> {
        matches!(self.phase, ColdMovePhase::Gathering(_)).then(|| self.batch.len())
    }

    /// Bytes of records that are to be looked at until it is over, about.
    pub fn left_bytes(&self, cold: &ColdTier) -> u64 {
        let (looks, bytes) =
            (LOOK_BYTES * cold.work.batch_records as u64, cold.work.batch_bytes as u64);
        match &self.phase {
            ColdMovePhase::Gathering(_) => 3 * looks + 2 * bytes,
            ColdMovePhase::Writing { .. } => 2 * looks + bytes,
            ColdMovePhase::Leaving { .. } => looks,
        }
    }

    /// Whether a level that is being written may have a record of this hash.
    pub fn may_have(&self, hash: u64) -> bool {
        self.written(hash).next().is_some()
    }

    /// The payloads of a hash that a level which is being written may have.
    pub fn written(&self, hash: u64) -> impl Iterator<Item = &[u8]> {
        let batch = matches!(self.phase, ColdMovePhase::Writing { .. }).then_some(&self.batch);
        batch.into_iter().flat_map(move |batch| {
            batch.of_hash(hash).map(|moving| batch.payload(&moving)).collect::<Vec<_>>()
        })
    }

    /// Has no record count whose hash is of a range. What is yet to be written has lost its entry in the index.
    pub fn cut(&mut self, hashes: &RangeInclusive<u64>) {
        let cut = (*hashes.start(), *hashes.end());
        if let ColdMovePhase::Writing { cuts, .. } = &mut self.phase
            && !cuts.contains(&cut)
        {
            cuts.push(cut);
        }
    }

    /// Gives up what was begun, and removes what was written.
    pub fn give_up(self, store: &SegmentStore) {
        if let ColdMovePhase::Writing { writer, sealed, .. } = self.phase {
            // What cannot be removed is left over until the next open.
            let _ = writer.abandon();
            remove_runs(store, &sealed);
        }
    }

    /// Whether the step that has just failed can be tried again.
    fn can_go_on(&self, error: &Error) -> bool {
        let can = match &self.phase {
            ColdMovePhase::Gathering(gathering) => gathering.left < FAILED_MAX,
            ColdMovePhase::Writing { writer, .. } => !writer.has_failed() && is_of_device(error),
            ColdMovePhase::Leaving { .. } => is_of_device(error),
        };
        can && self.failed < FAILED_MAX
    }

    /// Whether it goes on behind what the step that has just failed could not read.
    fn has_passed_over(&self, error: &Error) -> bool {
        self.is_gathering() && error.kind() != ErrorKind::Backpressure
    }

    /// Whether it copies records, and so passes over what it cannot read.
    pub fn is_gathering(&self) -> bool {
        matches!(self.phase, ColdMovePhase::Gathering(_))
    }
}

impl Log {
    /// Moves for about `fuel` bytes of records.
    ///
    /// # Errors
    /// Those of storage. The move goes on with the next step then, unless it failed again and again: else it was given up.
    pub(super) fn step_move(
        &mut self,
        cold: &mut ColdTier,
        mut one: Box<ColdMove>,
        fuel: u64,
    ) -> Result<ColdMoveStep> {
        let (time, start) = (one.phase.time(), Instant::now());
        let stepped = match &mut one.phase {
            // What was copied is not looked at again; the rest of a page that could not be read is left.
            ColdMovePhase::Gathering(gathering) => self.gather(gathering, &mut one.batch, fuel),
            ColdMovePhase::Writing { .. } => self.write(cold, &mut one, fuel).and_then(|is_over| {
                // The level is there when it is over.
                if is_over { install(cold, &mut one).map(|()| false) } else { Ok(false) }
            }),
            ColdMovePhase::Leaving { .. } => Ok(self.leave_to_runs(cold, &mut one, fuel)),
        };
        *time(&mut cold.times) += nanos_since(start);
        match stepped {
            Ok(true) if matches!(one.phase, ColdMovePhase::Gathering(_)) => {
                begin_writing(cold, one)
            }
            Ok(true) => Ok(ColdMoveStep::Done),
            Ok(false) => {
                one.failed = 0;
                Ok(ColdMoveStep::On(one))
            }
            Err(error) => {
                one.failed += u32::from(!one.has_passed_over(&error));
                if one.can_go_on(&error) {
                    cold.moving = Some(one);
                } else {
                    one.give_up(&cold.store);
                    cold.take_graves_back();
                }
                Err(error)
            }
        }
    }

    /// Copies live records of the oldest segments. Says whether there is no room for more, or no more are there.
    fn gather(&self, from: &mut GatherSource, batch: &mut ColdBatch, fuel: u64) -> Result<bool> {
        let mut spent = 0;
        while spent < fuel {
            self.find_source(from)?;
            if from.segment.is_none() {
                return Ok(true);
            }
            from.read_next()?;
            let GatherSource { reader, entries, segment, .. } = &mut *from;
            let Some(SourceSegment { number, nth, directory, image }) = segment else { continue };
            let info = &directory.info;
            // A read of a page of which nothing moves costs too.
            let read = image.checked_sub(1).map_or(0, |last| directory.images()[last].bytes);
            spent += PAGE_BYTES.max(entries.len() as u64 * LOOK_BYTES).max(read / READ_SHARE);
            for (looked_at, entry) in entries.iter().enumerate() {
                if let Some(later) = entries.get(looked_at + PREFETCHED) {
                    self.index.prefetch(self.index_hash(later.hash));
                }
                let at = StoredAt { segment: *number, grain: entry.grain };
                let length = entry.len as usize;
                if length > PAYLOAD_MAX || !self.leads_to(entry.hash, at) {
                    continue;
                }
                if !batch.has_room(length) {
                    return Ok(true);
                }
                let Some(source) = nth.or_else(|| batch.add_source(*number, info.id)) else {
                    return Ok(true);
                };
                *nth = Some(source);
                alone_if_it_fails(reader, |reader| {
                    let record = reader.record(info, entry)?;
                    batch.take(entry.hash, (source, entry.grain), record.payload);
                    Ok(())
                })?;
                spent += u64::from(entry.len);
            }
        }
        Ok(false)
    }

    /// Finds the segment that is looked at: the same, unless it is over or was removed, or the next that is sealed and
    /// has live records, if there is one.
    fn find_source(&self, from: &mut GatherSource) -> Result<()> {
        let stored = self.stored.as_ref().expect("a cold tier has storage");
        from.segment.take_if(|it| stored.number_of(it.directory.info.id) != Some(it.number));
        if from.segment.is_none() {
            let is_next = |number: &u32| {
                let info = stored.info(*number);
                info.sealed
                    && Some(info.id) > from.after
                    && stored.live_of(*number) > 0
                    && !has_long_records(info)
            };
            let next = stored.numbers().filter(is_next).min_by_key(|next| stored.info(*next).id);
            let Some(number) = next else { return Ok(()) };
            let info = stored.info(number);
            (from.after, from.failed) = (Some(info.id), 0);
            let opened = from.reader.open(info);
            // One of which the directory cannot be read stays as it is.
            let directory = opened.inspect_err(|_| from.left += 1)?;
            from.segment = Some(SourceSegment { number, nth: None, directory, image: 0 });
        }
        Ok(())
    }

    /// Whether the index leads to a record of a segment.
    fn leads_to(&self, hash: u64, at: StoredAt) -> bool {
        let here = Address::stored(at);
        self.index.find(self.index_hash(hash), |known| known == here).is_some()
    }

    /// Where a copied record is, if its segment is there still: another one may have its number.
    fn place_of(&self, batch: &ColdBatch, moving: &MovedRecord) -> Option<StoredAt> {
        let (number, id) = batch.source(moving);
        let stored = self.stored.as_ref().expect("a cold tier has storage");
        (stored.number_of(id) == Some(number))
            .then_some(StoredAt { segment: number, grain: moving.grain })
    }

    fn is_live(&self, batch: &ColdBatch, moving: &MovedRecord) -> bool {
        let place = self.place_of(batch, moving);
        place.is_some_and(|at| self.leads_to(moving.hash, at))
    }

    /// Writes records and tombstones in the order of their hashes. Says whether all were written.
    fn write(&self, cold: &ColdTier, one: &mut ColdMove, fuel: u64) -> Result<bool> {
        let ColdMove { batch, phase, .. } = one;
        let ColdMovePhase::Writing { writer, graves, .. } = phase else { return Ok(true) };
        let mut spent = 0;
        while spent < fuel {
            let next = batch.next();
            if let Some(later) = batch.later() {
                self.index.prefetch(self.index_hash(later.hash));
            }
            if let Some(grave) = cold.going.get(*graves)
                && next.is_none_or(|next| grave.hash <= next.hash)
            {
                if !self.is_back(cold, batch, (grave.hash, &grave.payload))? {
                    let (hash, payload) = (grave.hash, &grave.payload[..]);
                    writer.push(RecordView { hash, mark: TOMBSTONE, order: &[], payload })?;
                }
                *graves += 1;
                spent += LOOK_BYTES + grave.payload.len() as u64;
                continue;
            }
            let Some(moving) = next else {
                writer.finish()?;
                return Ok(true);
            };
            if self.is_live(batch, &moving) && !cold.has_expired(batch.payload(&moving)) {
                writer.push(batch.view(&moving))?;
            }
            batch.leave();
            spent += LOOK_BYTES + batch.payload(&moving).len() as u64;
        }
        Ok(false)
    }

    /// Whether a key that was buried was put again, and its record is in the batch.
    fn is_back(
        &self,
        cold: &ColdTier,
        batch: &ColdBatch,
        (hash, payload): (u64, &[u8]),
    ) -> Result<bool> {
        for moving in batch.of_hash(hash) {
            if self.is_live(batch, &moving)
                && has_same_key(cold.record_type, batch.payload(&moving), payload)?
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Ends a move whose level is there, so that no key of it has an index entry and a copy in a run. Reads nothing.
    pub(in crate::hybrid_log) fn end_leaving(&mut self) {
        let Some(mut cold) = self.cold.take() else { return };
        if let Some(mut one) = cold.moving.take_if(|moving| moving.is_leaving()) {
            // Records are the user's: to decode one may panic.
            let left = catch_unwind(AssertUnwindSafe(|| {
                while !self.leave_to_runs(&mut cold, &mut one, u64::MAX) {}
            }));
            cold.wants_move = false;
            drop(one);
            // What the move had is kept for the next.
            cold.keep_purse();
            self.cold = Some(cold);
            self.keep_for_work();
            left.unwrap_or_else(|panic| resume_unwind(panic));
        } else {
            self.cold = Some(cold);
        }
    }

    /// The records of the batch are in a level: the index forgets those that it still leads to. Says whether it has.
    fn leave_to_runs(&mut self, cold: &mut ColdTier, one: &mut ColdMove, fuel: u64) -> bool {
        let ColdMove { batch, phase: ColdMovePhase::Leaving { next, level, latest }, .. } = one
        else {
            return true;
        };
        let end = next.saturating_add((fuel / LOOK_BYTES).max(1) as usize);
        while let Some(moving) = batch.record(*next).filter(|_| *next < end) {
            *next += 1;
            if let Some(later) = batch.record(*next + PREFETCHED) {
                self.index.prefetch(self.index_hash(later.hash));
            }
            let Some(at) = self.place_of(batch, &moving) else { continue };
            let here = Address::stored(at);
            let found = self.index.find(self.index_hash(moving.hash), |known| known == here);
            let Some((entry, _)) = found else { continue };
            let touched = cold.touched(batch.payload(&moving));
            self.index.remove(entry);
            self.stored.as_mut().expect("a cold tier has storage").record_died(at);
            match cold.live.add(moving.hash, touched) {
                true => (cold.moved, *latest) = (cold.moved + 1, touched.max(*latest)),
                false => self.stats.expired += 1,
            }
        }
        let is_over = *next == batch.len();
        if let Some(level) = level.filter(|_| is_over) {
            cold.levels.untouched_after(level, *latest);
        }
        is_over
    }
}

impl ColdTier {
    /// When a record was touched last, of state whose entries expire.
    fn touched(&self, payload: &[u8]) -> Time {
        let Some(gone) = self.live.gone() else { return Time::MAX };
        // One that cannot be decoded is met by who reads it, and never counted as less.
        gone.touched(self.record_type, payload).unwrap_or(gone.before)
    }

    /// Tombstones move alone while levels are merged, which may take long. Says whether they begin to.
    pub(super) fn begin_burial(&mut self) -> Result<bool> {
        let may = self.levels.is_merging() && !self.has_many_levels() && !self.is_loading;
        if !may || !self.wants_to_bury() || !self.going.is_empty() {
            return Ok(false);
        }
        let sizes = self.burial_sizes();
        let mut memory = Booked::none(self.account.clone(), MemoryKind::Buffers);
        if !memory.try_reserve_more(sizes.memory_bytes() + size_of::<ColdMove>() as u64) {
            return Ok(false);
        }
        let one = ColdMove::of_nothing(memory);
        self.moving = Some(begin_leaving(self, Box::new(one), sizes)?);
        Ok(true)
    }

    /// Of a level of tombstones alone.
    fn burial_sizes(&self) -> RunSizes {
        let sizes = RunSizes::within(16 * KIB, PAYLOAD_MAX, self.work.runs.key_groups);
        RunSizes { syncs: false, ..sizes.expecting(self.buried.len() as u64) }
    }
}

/// Reads an image, and the entries of its footer.
fn read_image(
    reader: &mut SegmentReader,
    directory: &SegmentDirectory,
    image: usize,
    entries: &mut Vec<FooterEntry>,
) -> Result<()> {
    alone_if_it_fails(reader, |reader| {
        reader.read_on(directory, image)?;
        reader.footer(directory, &directory.images()[image], entries)
    })
}

/// Reads, and again by itself if the device failed: it may be what stands behind that cannot be read.
fn alone_if_it_fails(
    reader: &mut SegmentReader,
    mut read: impl FnMut(&mut SegmentReader) -> Result<()>,
) -> Result<()> {
    match read(reader) {
        Err(error) if error.kind() == ErrorKind::Io => {
            reader.read_narrowly(true);
            let again = read(reader);
            reader.read_narrowly(false);
            again
        }
        done => done,
    }
}

/// All records are copied that there is room for. Tombstones go with them.
fn begin_writing(cold: &mut ColdTier, one: Box<ColdMove>) -> Result<ColdMoveStep> {
    let (records, graves) = (one.batch.len(), cold.buried.len());
    let is_little =
        !one.batch.is_filled(BATCH_SHARE) && graves < cold.work.batch_records / BATCH_SHARE;
    if records + graves == 0 || is_little && !cold.takes_few && !cold.wants_to_bury() {
        return Ok(ColdMoveStep::Nothing);
    }
    let runs = cold.run_sizes();
    let is_wide = runs.is_wide && !cold.levels.is_empty();
    let sizes = RunSizes { syncs: false, is_wide, ..runs.expecting((records + graves) as u64) };
    begin_leaving(cold, one, sizes).map(ColdMoveStep::On)
}

/// What is copied begins to be written, with the tombstones.
fn begin_leaving(
    cold: &mut ColdTier,
    mut one: Box<ColdMove>,
    sizes: RunSizes,
) -> Result<Box<ColdMove>> {
    let writer = Box::new(RunWriter::new(cold.store.clone(), cold.state, sizes)?);
    debug_assert!(cold.going.is_empty(), "tombstones come back from a move that has failed");
    std::mem::swap(&mut cold.buried, &mut cold.going);
    one.batch.begin_leaving();
    let (sealed, unsynced) = (Vec::new(), Vec::new());
    one.phase = ColdMovePhase::Writing { writer, graves: 0, sealed, unsynced, cuts: Vec::new() };
    Ok(one)
}

/// All is written: the level is there, and tombstones are in it.
fn install(cold: &mut ColdTier, one: &mut ColdMove) -> Result<()> {
    let ColdMovePhase::Writing { writer, sealed, unsynced, cuts, .. } = &mut one.phase else {
        return Ok(());
    };
    sealed.append(&mut writer.take_sealed());
    unsynced.append(&mut writer.take_unsynced());
    // There are none if all that was to be written has died meanwhile.
    let has_level = !sealed.is_empty();
    if has_level {
        for run in &mut *sealed {
            cuts.iter().for_each(|(first, last)| run.cut(*first, *last));
        }
        cold.levels.add_unsynced(sealed, unsynced)?;
    }
    cold.moved_bytes += sealed.iter().map(|run| run.bytes).sum::<u64>();
    cold.times.building += writer.built_nanos();
    cold.forget_graves();
    let level = cold.levels.newest().filter(|_| has_level);
    one.phase = ColdMovePhase::Leaving { next: 0, level, latest: Time::MIN };
    Ok(())
}

/// Books memory for a move that is free.
pub(super) fn booked_for(cold: &ColdTier) -> Booked {
    let mut booked = Booked::none(cold.account.clone(), MemoryKind::Buffers);
    booked.charge(cold.move_bytes());
    booked
}
