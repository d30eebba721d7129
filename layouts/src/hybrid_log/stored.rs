//! The part of the log that is on storage: its segments, and reading single records of them.
//!
//! Each segment has a number that index entries carry; a number is given again only when its
//! segment is dropped, which needs that no live record, committed checkpoint or read names it.
//! Records are verified before anything is done with them.
//!
//! A call that reads waits as long as the device does something. If it does nothing the call ends, and its
//! reads are *left*: each keeps its buffer, which stays booked, until it ends, and nobody looks at what it has read. A
//! later call reads with the buffers that there are, and waits for one if there is none.

use std::collections::{BTreeMap, HashSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use alluvium_pagestore::io::{
    BLOCK_BYTES, CLOSING_MAX, Completion, IoBuffer, Operation, Patience, Reply, Request, UnderWay,
    Waker,
};
use alluvium_pagestore::{
    Account, BlobRef, Death, Error, ErrorKind, Helper, MemoryKind, RecordBytes, Result, SegmentId,
    SegmentImage, SegmentInfo, SegmentMeta, SegmentStore, Time, UNSPLIT_BYTES, Verified, damaged,
    verify_record,
};
use crossbeam_channel::Receiver;

use super::address::{SEGMENTS_MAX, StoredAt};
use super::deaths::{DeathList, Deaths};
use super::fetches::{Fetches, Known};
use super::frame_set::FrameSet;
use super::live_sets::LiveSets;
use super::spill::Spill;
use crate::fetch::{Fetch, Ticket};

/// The segments of one table, and the buffers to read them with.
#[derive(Debug)]
pub struct Stored {
    store: SegmentStore,
    helper: Helper,
    account: Rc<Account>,
    segments: Vec<Option<Segment>>,
    by_id: BTreeMap<SegmentId, u32>,
    vacant: Vec<u32>,
    /// Segments that the committed checkpoint names.
    committed: HashSet<SegmentId>,
    buffers: Vec<IoBuffer>,
    /// Bytes of each of them: the longest first read of a record.
    read_bytes: usize,
    reply: Reply,
    /// Where reads end that run ahead, with whom they wake.
    fetch_reply: Reply,
    fetches: Fetches,
    completions: Receiver<Completion>,
    /// How long a call waits for a device that does nothing.
    patience: Duration,
    /// Tells the reads of a call from those that were left before.
    round: u64,
    /// Reads of the call at hand, and those that were left, that have not ended.
    under_way: usize,
    left: usize,
    /// The rest of a long record, if it was left, and the bytes of its buffer.
    long_left: Option<(UnderWay, usize)>,
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
    pub spill: Spill,
    /// Whether the checkpoint being taken knows of which segments it makes sets: others need none.
    is_looked_over: bool,
}

/// Bit of the tokens of reads that run ahead.
const FETCH: u64 = 1 << 63;
/// Bits of the tokens of other reads: which of the call's it is; the round is before them.
const NTH: u64 = u32::MAX as u64;

/// The table of segments grows by so many.
const GROWTH: usize = 8;

#[derive(Debug)]
struct Segment {
    info: SegmentInfo,
    live_records: u32,
    /// Dead records that checkpoints know of, or that are noted.
    known_dead: u32,
    /// The barrier since which records have died, and both numbers at that time.
    epoch: u32,
    live_before: u32,
    known_before: u32,
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

/// A record being read, or read.
#[derive(Debug)]
pub struct Read {
    /// Which record.
    pub at: StoredAt,
    buffer: IoBuffer,
    /// Offset of the record in the buffer.
    start: usize,
    result: Result<()>,
}

impl Stored {
    /// No segments; `queue_depth` buffers of `read_bytes`, and room for deaths, which the caller has
    /// booked.
    pub fn new(
        store: SegmentStore,
        helper: Helper,
        account: Rc<Account>,
        (queue_depth, read_bytes): (usize, usize),
        patience: Duration,
        (deaths, spill): (Deaths, Spill),
    ) -> Self {
        let (reply, completions) = crossbeam_channel::unbounded();
        Self {
            store,
            helper,
            account,
            segments: Vec::new(),
            by_id: BTreeMap::new(),
            vacant: Vec::new(),
            committed: HashSet::new(),
            buffers: (0..queue_depth).map(|_| IoBuffer::zeroed(read_bytes)).collect(),
            read_bytes,
            fetch_reply: reply.clone().into(),
            reply: reply.into(),
            fetches: Fetches::new(queue_depth - 1),
            completions,
            patience,
            round: 0,
            under_way: 0,
            left: 0,
            long_left: None,
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

    /// Memory for the tables and their next growth, by upper bound.
    pub fn tables_bytes(&self) -> u64 {
        ((self.segments.capacity() + GROWTH) * (size_of::<Option<Segment>>() + 160)) as u64
    }

    /// A segment has grown or was sealed; `live` of its new records are live. Returns its number.
    pub fn update(&mut self, info: &SegmentInfo, live: u64) -> Result<u32> {
        self.live_records += live;
        if let Some(&number) = self.by_id.get(&info.id) {
            let segment = self.segments[number as usize].as_mut().expect("numbered");
            // The writer's answers to flushes and to rewrites come on channels of their own and may
            // overtake each other: an older state of the segment does not replace the newer.
            if info.bytes > segment.info.bytes {
                self.bytes += info.bytes - segment.info.bytes;
                segment.info = info.clone();
            }
            segment.live_records += live as u32;
            if segment.epoch == self.epoch {
                // What is written between a barrier and the end of its checkpoint is of before.
                segment.live_before += live as u32;
            }
            return Ok(number);
        }
        let segment = Segment {
            info: info.clone(),
            live_records: live as u32,
            known_dead: 0,
            base: None,
            // One that comes later has nothing of the checkpoint.
            settled_in: if self.is_looked_over { self.epoch } else { 0 },
            frames: FrameSet::default(),
            epoch: 0,
            live_before: 0,
            known_before: 0,
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

    /// A record is not live any more.
    #[inline]
    pub fn record_died(&mut self, at: StoredAt) {
        self.live_records -= 1;
        let epoch = self.epoch;
        let segment = self.segment_since(at.segment, epoch);
        segment.live_records -= 1;
        segment.known_dead += 1;
        let death = Death::of(segment.info.id, at.grain);
        if !self.deaths.note(false, death) {
            self.segment_since(at.segment, epoch).known_dead -= 1;
            self.was_live(at);
        }
    }

    /// A record that was live at the barrier has died, and is not noted.
    #[cold]
    fn was_live(&mut self, at: StoredAt) {
        if !self.sets.as_mut().is_some_and(|sets| sets.insert(at)) && self.is_asked_of(at.segment) {
            self.spill.push(Death::of(self.info(at.segment).id, at.grain));
        }
    }

    /// Whether the checkpoint being taken may have to know which records of a segment die.
    fn is_asked_of(&self, number: u32) -> bool {
        let segment = self.segments[number as usize].as_ref().expect("a numbered segment");
        self.spill.is_wanted() && segment.settled_in != self.epoch
    }

    /// Records of a segment have died, and nobody knows which.
    fn lose(&mut self, number: u32) {
        if self.is_asked_of(number) {
            let why = "nobody knows which records have died meanwhile; begin it again";
            self.spill.lose(ErrorKind::Overtaken, why);
        }
    }

    /// The checkpoint being taken has the set of a segment, or needs none.
    pub fn settle(&mut self, number: u32) {
        let epoch = self.epoch;
        self.segments[number as usize].as_mut().expect("a numbered segment").settled_in = epoch;
    }

    /// The checkpoint being taken makes sets of no segments but these, some of them already.
    pub fn settle_others(&mut self, makes_one: impl Fn(SegmentId) -> bool) {
        let epoch = self.epoch;
        self.is_looked_over = true;
        for (&id, &number) in &self.by_id {
            let segment = self.segments[number as usize].as_mut().expect("a numbered segment");
            segment.settled_in = if makes_one(id) { segment.settled_in } else { epoch };
        }
    }

    /// Records of one segment are not live any more: their grains, and whether they had died before
    /// the last barrier, for whose checkpoint they were written after it.
    pub fn records_died_in(&mut self, number: u32, deaths: impl Iterator<Item = (u32, bool)>) {
        let epoch = self.epoch;
        let id = self.segment_since(number, epoch).info.id;
        // Since the barrier, and before it: how many, and how many of them are noted.
        let (mut died, mut noted) = ([0; 2], [0; 2]);
        for (grain, before) in deaths {
            died[usize::from(before)] += 1;
            let is_noted = self.deaths.note(before, Death::of(id, grain));
            noted[usize::from(before)] += u32::from(is_noted);
            if !is_noted && !before {
                self.was_live(StoredAt { segment: number, grain });
            }
        }
        let all: u32 = died.iter().sum();
        self.live_records -= u64::from(all);
        let segment = self.segments[number as usize].as_mut().expect("a numbered segment");
        segment.live_records -= all;
        segment.known_dead += noted.iter().sum::<u32>();
        segment.live_before -= died[1];
        segment.known_before += noted[1];
    }

    /// A copy of a record that nothing refers to.
    pub fn copy_is_dead(&mut self, at: StoredAt) {
        self.record_lives(at.segment);
        self.record_died(at);
    }

    /// So many records of a segment are not live any more; which ones is not noted.
    pub fn records_died(&mut self, number: u32, records: u64) {
        self.live_records -= records;
        self.lose(number);
        let epoch = self.epoch;
        self.segment_since(number, epoch).live_records -= records as u32;
    }

    /// No record of a segment is live any more.
    pub fn all_died(&mut self, number: u32) {
        self.lose(number);
        let epoch = self.epoch;
        let segment = self.segment_since(number, epoch);
        let died = std::mem::take(&mut segment.live_records);
        self.live_records -= u64::from(died);
    }

    /// Records are live in another segment than before.
    pub fn record_lives(&mut self, number: u32) {
        self.live_records += 1;
        let epoch = self.epoch;
        self.segment_since(number, epoch).live_records += 1;
    }

    /// A segment about to change, with its numbers at the last barrier kept.
    #[inline]
    fn segment_since(&mut self, number: u32, epoch: u32) -> &mut Segment {
        let segment = self.segments[number as usize].as_mut().expect("a numbered segment");
        if segment.epoch != epoch {
            segment.epoch = epoch;
            segment.live_before = segment.live_records;
            segment.known_before = segment.known_dead;
        }
        segment
    }

    /// A checkpoint begins: what dies from now on is of the next one.
    pub fn barrier(&mut self) {
        self.is_looked_over = false;
        let decided = self.deaths.before.iter().all(Vec::is_empty);
        assert!(decided, "the last checkpoint is not decided");
        self.epoch += 1;
        std::mem::swap(&mut self.deaths.now, &mut self.deaths.before);
        self.deaths.is_asked = true;
    }

    /// All segments, as they were at the barrier.
    pub fn segments_before(&self) -> Vec<SegmentBefore> {
        let before = |(&id, &number): (&SegmentId, &u32)| {
            let segment = self.segments[number as usize].as_ref().expect("numbered");
            debug_assert_eq!(segment.info.id, id);
            let (live_records, known) = match segment.epoch == self.epoch {
                true => (segment.live_before, segment.known_before),
                false => (segment.live_records, segment.known_dead),
            };
            let is_known = u64::from(live_records + known) == segment.info.records;
            let live = segment.base.as_deref().copied();
            let live_records = live_records.into();
            let image = SegmentImage { live_records, live, ..segment.info.all_live() };
            SegmentBefore {
                number,
                image,
                was_sealed: segment.info.sealed,
                is_known,
                has_dead: known > 0,
            }
        };
        self.by_id.iter().map(before).filter(|before| before.image.live_records > 0).collect()
    }

    /// The deaths before the barrier, to be written; [`give_back`](Stored::give_back) them.
    pub fn lend_deaths(&mut self) -> DeathList {
        self.has_lent = true;
        std::mem::take(&mut self.deaths.before)
    }

    /// The list that was lent.
    pub fn give_back(&mut self, deaths: DeathList) {
        self.has_lent = false;
        self.deaths.give_back(deaths);
    }

    /// Before which place the last of the deaths since the barrier is that are noted.
    pub fn count_since(&self) -> usize {
        self.deaths.end()
    }

    /// How many deaths before the barrier are noted.
    pub fn count_before(&self) -> u64 {
        self.deaths.before.iter().map(|part| part.len() as u64).sum()
    }

    /// Adds to the sets some of the deaths since the barrier that are noted, from one place on and before
    /// another, and says at which to go on.
    pub fn add_again(&mut self, from: usize, to: usize) -> usize {
        let (deaths, next) = self.deaths.some(from, to);
        let sets = self.sets.as_mut().expect("sets are being made");
        deaths.iter().for_each(|&death| sets.insert_again(death));
        next
    }

    /// The checkpoint is one that can be restored: it knows of the deaths before its barrier, and
    /// has made these sets of live records.
    pub fn deaths_are_known(&mut self, sets: impl Iterator<Item = (SegmentId, Option<BlobRef>)>) {
        self.deaths.clear_before();
        for (id, base) in sets {
            let Some(&number) = self.by_id.get(&id) else { continue };
            let segment = self.segments[number as usize].as_mut().expect("numbered");
            // What the set leaves out is known; what has died since and was not noted is not.
            let unknown = match segment.epoch == self.epoch {
                true => {
                    let known = segment.live_before + segment.known_before;
                    let unknown = segment.info.records as u32 - known;
                    segment.known_before += unknown;
                    unknown
                }
                false => segment.info.records as u32 - segment.live_records - segment.known_dead,
            };
            segment.known_dead += unknown;
            segment.base = base.map(Box::new);
        }
    }

    /// Gives up room for notes that no list has, some of it, and says how many bytes.
    pub fn give_spare_notes_up(&mut self) -> u64 {
        self.deaths.give_spare_up()
    }

    /// Gives up what is noted beyond the room that is always there, for memory that is needed more,
    /// and says how many bytes are free for it now, of a part; 0 while a checkpoint needs it. The next checkpoint looks at
    /// every segment.
    pub fn give_notes_up(&mut self) -> u64 {
        let is_needed = !self.deaths.before.iter().all(Vec::is_empty);
        if is_needed || self.has_lent || self.deaths.now.len() < 2 {
            return 0;
        }
        self.deaths.clear_now();
        for segment in self.segments.iter_mut().flatten() {
            (segment.known_dead, segment.known_before) = (0, 0);
        }
        self.deaths.give_spare_up()
    }

    /// What was noted is lost: every segment is looked at by the next checkpoint.
    pub fn forget_deaths(&mut self) {
        for segment in self.segments.iter_mut().flatten() {
            (segment.known_dead, segment.known_before) = (0, 0);
        }
        self.deaths.clear_now();
        while self.deaths.give_spare_up() > 0 {}
        // What the helper has lost may not be gone: it stays booked.
        let (account, part) = (self.deaths.account.clone(), self.deaths.part);
        self.deaths = Deaths::new(account, part, self.deaths.floor_bytes);
        self.deaths.is_asked = true;
        self.has_lent = false;
    }

    /// The checkpoint is given up: its deaths are of the next one.
    pub fn deaths_are_unknown(&mut self) {
        let Self { deaths, by_id, segments, .. } = self;
        deaths.carry_over(|death| {
            if let Some(&number) = by_id.get(&death.segment()) {
                segments[number as usize].as_mut().expect("numbered").known_dead -= 1;
            }
        });
    }

    /// Tells of a segment that is restored which of its dead records the checkpoint knew: all.
    pub fn restored(&mut self, number: u32, base: Option<BlobRef>) {
        let segment = self.segments[number as usize].as_mut().expect("a numbered segment");
        segment.known_dead = segment.info.records as u32 - segment.live_records;
        segment.base = base.map(Box::new);
    }

    /// Removes the file of a segment without live records that no checkpoint names.
    pub fn unlink(&mut self, number: u32) -> Result<()> {
        let segment = self.segments[number as usize].as_ref().expect("a numbered segment");
        let (id, bytes) = (segment.info.id, segment.info.bytes);
        let free = segment.live_records == 0 && segment.info.sealed;
        assert!(free && !self.committed.contains(&id), "{id:?} is needed: {segment:?}");
        self.store.remove(id)?;
        self.bytes -= bytes;
        self.segments[number as usize] = None;
        self.by_id.remove(&id);
        self.vacant.push(number);
        Ok(())
    }

    /// The segments that the committed checkpoint names from now on.
    pub fn set_committed(&mut self, ids: impl Iterator<Item = SegmentId>, keep_old: bool) {
        let new: HashSet<_> = ids.collect();
        if keep_old {
            self.committed.extend(new);
        } else {
            self.committed = new;
        }
    }

    /// Whether the committed checkpoint names the segment.
    pub fn is_committed(&self, id: SegmentId) -> bool {
        self.committed.contains(&id)
    }

    /// The segment with this number.
    pub fn info(&self, number: u32) -> &SegmentInfo {
        &self.segments[number as usize].as_ref().expect("a numbered segment").info
    }

    /// Live records of a segment.
    pub fn live_of(&self, number: u32) -> u32 {
        self.segments[number as usize].as_ref().expect("a numbered segment").live_records
    }

    /// The segment with this id, if it is in use.
    pub fn number_of(&self, id: SegmentId) -> Option<u32> {
        self.by_id.get(&id).copied()
    }

    /// Numbers of all segments in use.
    pub fn numbers(&self) -> impl Iterator<Item = u32> + '_ {
        self.by_id.values().copied()
    }

    /// What a policy may know of the segments; what was touched last before `expired_to` has
    /// expired.
    pub fn metas(&self, expired_to: Time, out: &mut Vec<SegmentMeta>) {
        let pinned = |segment: &Segment| self.committed.contains(&segment.info.id);
        let meta = |segment: &Segment| segment.meta(pinned(segment), expired_to);
        out.extend(self.segments.iter().flatten().map(meta));
    }

    /// Whether all records of a segment were touched last before `expired_to`.
    pub fn is_over(&self, number: u32, expired_to: Time) -> bool {
        self.segments[number as usize].as_ref().is_some_and(|s| s.is_over(expired_to))
    }

    /// Segments of which nobody knows when they were touched last were not after `now`.
    pub fn touched_by(&mut self, now: Time) {
        let unknown = |segment: &&mut Segment| segment.info.latest == Time::MAX;
        for segment in self.segments.iter_mut().flatten().filter(unknown) {
            segment.info.latest = now;
        }
    }

    /// Starts the `nth` read of a call, if a buffer is free.
    pub fn start(&mut self, at: StoredAt, nth: u64) -> Option<Result<()>> {
        debug_assert!(nth <= NTH, "the bits of rounds");
        let started = self.submit_read(at, self.round << 32 | nth, self.reply.clone());
        self.under_way += usize::from(matches!(started, Some(Ok(()))));
        started
    }

    fn submit_read(&mut self, at: StoredAt, token: u64, reply: Reply) -> Option<Result<()>> {
        let buffer = self.buffers.pop()?;
        let Some(Some(segment)) = self.segments.get(at.segment as usize) else {
            self.buffers.push(buffer);
            panic!("an index entry names segment {}, which is not there", at.segment);
        };
        let info = &segment.info;
        let offset = at.offset();
        let block = BLOCK_BYTES as u64;
        let start = offset / block * block;
        // Records of up to `UNSPLIT_BYTES` lie in one block; of longer ones what two of mean length
        // take is read first, and the rest when it turns out to be needed.
        let guess = if info.max_record_bytes <= UNSPLIT_BYTES {
            1
        } else {
            (2 * info.bytes / info.records.max(1)).clamp(1, info.max_record_bytes)
        };
        let end = (offset + guess)
            .next_multiple_of(block)
            .min(start + self.read_bytes as u64)
            .min(info.bytes);
        if start >= end {
            self.buffers.push(buffer);
            return Some(Err(damaged(&info.file, offset, "a record lies past its segment's end")));
        }
        let mut buffer = buffer;
        buffer.set_len((end - start) as usize);
        let request = Request {
            file: info.file.clone(),
            operation: Operation::Read { offset: start },
            buffer,
            token,
            reply,
        };
        self.store.device().submit(request);
        Some(Ok(()))
    }

    /// Starts reading a record ahead of the call that needs it, unless that was done.
    pub fn fetch(&mut self, at: StoredAt) -> Fetch {
        let Some(Some(segment)) = self.segments.get(at.segment as usize) else {
            panic!("an index entry names segment {}, which is not there", at.segment);
        };
        let id = segment.info.id;
        match self.fetches.known(at, id) {
            Known::Read => return Fetch::Ready,
            Known::Reading(ticket) => return Fetch::Pending(ticket),
            // With a single buffer there is none to read ahead with.
            Known::Full if self.fetches.is_empty() => return Fetch::Ready,
            Known::Full => return Fetch::Busy,
            Known::Nothing => {}
        }
        let ticket = self.fetches.begin(at, id);
        match self.submit_read(at, ticket.0 | FETCH, self.fetch_reply.clone()) {
            Some(Ok(())) => Fetch::Pending(ticket),
            // The call that needs the record meets the error.
            Some(Err(_)) | None => {
                self.fetches.cancel(ticket);
                Fetch::Ready
            }
        }
    }

    /// Tells the tickets whose reads have ended.
    pub fn fetched(&mut self, tell: &mut dyn FnMut(Ticket)) {
        if self.fetches.is_empty() {
            return;
        }
        self.store.device().drive();
        while let Ok(done) = self.completions.try_recv() {
            let own = self.sort(done);
            assert!(own.is_none(), "the end of a read that nobody waits for");
        }
        self.fetches.tell(tell);
    }

    /// Keeps the end of a read that runs ahead, and takes the buffer of one that was left; others are of the
    /// call at hand.
    fn sort(&mut self, done: Completion) -> Option<Completion> {
        if done.token & FETCH != 0 {
            self.fetch_ended(done);
        } else if done.token >> 32 == self.round {
            self.under_way -= 1;
            return Some(done);
        } else {
            self.left -= 1;
            self.take_back(done.buffer);
        }
        None
    }

    fn fetch_ended(&mut self, done: Completion) {
        let ticket = Ticket(done.token & !FETCH);
        let at = self.fetches.place(ticket);
        if let Some(read) = self.fetches.end(ticket, Read::of(at, done)) {
            self.recycle(read);
        }
    }

    /// Whether the read of a record that was fetched has ended.
    pub fn has_fetched(&self, at: StoredAt) -> bool {
        !self.fetches.is_empty() && self.fetches.known(at, self.info(at.segment).id) == Known::Read
    }

    /// The read of a record that was fetched, if it has ended.
    pub fn take_fetched(&mut self, at: StoredAt) -> Option<Read> {
        if self.fetches.is_empty() {
            return None;
        }
        let id = self.info(at.segment).id;
        self.fetches.take(at, id)
    }

    /// Nobody needs this read any more.
    pub fn release_fetch(&mut self, ticket: Ticket) {
        if let Some(read) = self.fetches.release(ticket) {
            self.recycle(read);
        }
    }

    /// Reads that were started ahead so far.
    pub fn fetches(&self) -> u64 {
        self.fetches.started()
    }

    /// Whom fetches wake from now on.
    pub fn wake_with(&mut self, waker: Arc<Waker>) {
        self.fetch_reply = self.reply.clone().waking(waker);
    }

    /// Buffers that no read has.
    pub fn free_buffers(&self) -> usize {
        self.buffers.len()
    }

    /// Waits for one read of the call to end; `at_of` tells what was started as which.
    ///
    /// # Errors
    /// [`ErrorKind::Backpressure`] if the device does nothing: then all reads of the call are left.
    pub fn wait(&mut self, at_of: impl Fn(u64) -> StoredAt) -> Result<(u64, Read)> {
        let mut patience = None;
        loop {
            let Some(done) = self.wait_a_moment() else {
                self.check(&mut patience).inspect_err(|_| self.leave_all())?;
                continue;
            };
            if let Some(done) = self.sort(done) {
                let nth = done.token & NTH;
                return Ok((nth, Read::of(at_of(nth), done)));
            }
        }
    }

    /// Sees to it that a buffer is free: reads that were left may have all of them.
    ///
    /// # Errors
    /// [`ErrorKind::Backpressure`] if the device does nothing.
    pub fn ensure_buffer(&mut self) -> Result<()> {
        let mut patience = None;
        while self.buffers.is_empty() {
            self.take_long(&mut patience)?;
            if !self.buffers.is_empty() {
                break;
            }
            assert!(self.left > 0, "a read buffer is lost");
            match self.wait_a_moment() {
                Some(done) => {
                    let own = self.sort(done);
                    assert!(own.is_none(), "a call that reads has no other reads under way");
                }
                None => self.check(&mut patience)?,
            }
        }
        Ok(())
    }

    /// Whether to wait on.
    fn check(&self, patience: &mut Option<Patience>) -> Result<()> {
        let device = self.store.device();
        let patience = patience.get_or_insert_with(|| Patience::new(self.patience, device));
        match patience.is_over(device) {
            true => Err(patience.error("a record is still being read")),
            false => Ok(()),
        }
    }

    /// Nobody waits any more for the reads of the call.
    pub fn leave_all(&mut self) {
        self.left += std::mem::take(&mut self.under_way);
        self.round = (self.round + 1) & ((FETCH - 1) >> 32);
    }

    /// Waits for the rest of a long record that was left: there is memory for one.
    fn take_long(&mut self, patience: &mut Option<Patience>) -> Result<()> {
        let Some((left, length)) = self.long_left.take() else { return Ok(()) };
        let device = self.store.device();
        let patience = patience.get_or_insert_with(|| Patience::new(self.patience, device));
        match left.wait_within(patience) {
            Ok((buffer, _)) => {
                let buffer = self.given_back(buffer, length);
                self.take_back(buffer);
            }
            Err(left) => {
                self.long_left = Some((left, length));
                return Err(patience.error("a long record is still being read"));
            }
        }
        Ok(())
    }

    /// A read that has ended, or ends in a moment.
    fn wait_a_moment(&self) -> Option<Completion> {
        if let Ok(done) = self.completions.try_recv() {
            return Some(done);
        }
        self.store.device().drive();
        self.helper.drive();
        self.completions.recv_timeout(Duration::from_millis(1)).ok()
    }

    /// Reads one record and waits for it.
    pub fn read(&mut self, at: StoredAt) -> Result<Read> {
        self.ensure_buffer()?;
        self.start(at, 0).expect("a buffer is free")?;
        Ok(self.wait(|_| at)?.1)
    }

    /// Verifies a read record; reads again, longer, if it is longer than was read.
    pub fn verify<'a>(&mut self, read: &'a mut Read) -> Result<RecordBytes<'a>> {
        std::mem::replace(&mut read.result, Ok(()))?;
        let offset = read.at.offset();
        // The first time its header says how long it is, the second time all of it does.
        for _ in 0..2 {
            let info = self.info(read.at.segment);
            let bytes = &read.buffer.as_slice()[read.start..];
            match verify_record(&info.file, info.id, offset, bytes)? {
                Verified::Longer(needed) => self.read_longer(read, needed)?,
                Verified::Record(_) => break,
            }
        }
        let info = self.info(read.at.segment);
        let (file, id) = (&info.file, info.id);
        let bytes = &read.buffer.as_slice()[read.start..];
        match verify_record(file, id, offset, bytes)? {
            Verified::Record(record) => Ok(record),
            Verified::Longer(_) => Err(damaged(file, offset, "a record is longer than it was")),
        }
    }

    fn read_longer(&mut self, read: &mut Read, needed: usize) -> Result<()> {
        let info = self.info(read.at.segment);
        let block = BLOCK_BYTES as u64;
        let offset = read.at.offset() / block * block;
        let length = (read.start + needed).next_multiple_of(BLOCK_BYTES);
        if offset + length as u64 > info.bytes {
            let what = "a record runs past its segment's end";
            return Err(damaged(&info.file, read.at.offset(), what));
        }
        let (file, mut patience) = (info.file.clone(), None);
        self.take_long(&mut patience)?;
        self.release(std::mem::replace(&mut read.buffer, IoBuffer::empty()));
        let buffer = self.longer(length);
        let (device, operation) = (self.store.shared_device(), Operation::Read { offset });
        let reading = UnderWay::start(device, &file, operation, buffer);
        let device = self.store.device();
        let mut patience = Patience::new(self.patience, device);
        match reading.wait_within(&mut patience) {
            Ok((buffer, done)) => {
                read.buffer = self.given_back(buffer, length);
                done
            }
            Err(reading) => {
                // It is what there is memory for: none is given back to the others until it ends.
                self.long_left = Some((reading, length));
                Err(patience.error("a long record is still being read"))
            }
        }
    }

    /// Takes a read's buffer back, if it has one: that of a long record may still be being read.
    pub fn recycle(&mut self, read: Read) {
        if read.buffer.capacity() > 0 {
            self.take_back(read.buffer);
        }
    }

    fn take_back(&mut self, buffer: IoBuffer) {
        let buffer = self.usual(buffer);
        self.buffers.push(buffer);
    }

    /// The buffer of a read of so many bytes that has ended, or another one: an engine that has stopped does
    /// not give it back.
    fn given_back(&self, buffer: IoBuffer, length: usize) -> IoBuffer {
        if buffer.capacity() > 0 {
            return buffer;
        }
        let extra = length.max(self.read_bytes) - self.read_bytes;
        self.account.release(MemoryKind::Buffers, extra as u64);
        IoBuffer::zeroed(self.read_bytes)
    }

    /// A buffer for the rest of a long record, in place of one of the usual length. One at a time,
    /// within what is kept free for one value to be read.
    fn longer(&self, length: usize) -> IoBuffer {
        let capacity = length.max(self.read_bytes);
        self.account.charge(MemoryKind::Buffers, (capacity - self.read_bytes) as u64);
        let mut buffer = IoBuffer::zeroed(capacity);
        buffer.set_len(length);
        buffer
    }

    /// A buffer of the usual length in place of this one.
    fn usual(&self, buffer: IoBuffer) -> IoBuffer {
        if buffer.capacity() == self.read_bytes {
            return buffer;
        }
        self.release(buffer);
        IoBuffer::zeroed(self.read_bytes)
    }

    /// Gives back what a longer buffer took beyond the usual length.
    fn release(&self, buffer: IoBuffer) {
        let extra = buffer.capacity().saturating_sub(self.read_bytes);
        drop(buffer);
        self.account.release(MemoryKind::Buffers, extra as u64);
    }
}

impl Read {
    fn of(at: StoredAt, done: Completion) -> Self {
        let start = (at.offset() % BLOCK_BYTES as u64) as usize;
        Self { at, buffer: done.buffer, start, result: done.result }
    }
}

impl Drop for Stored {
    /// Waits for reads that run ahead or were left: their buffers are the kernel's until they end, and the
    /// memory is given back to the budget after this. Not for a device that does nothing.
    fn drop(&mut self) {
        let mut patience = Patience::new(CLOSING_MAX, self.store.device());
        while self.fetches.reading() + self.left > 0 && !self.helper.is_left_alone() {
            match self.wait_a_moment() {
                Some(done) => drop(self.sort(done)),
                None if patience.is_over(self.store.device()) => break,
                None => {}
            }
        }
        match self.long_left.take() {
            Some((left, _)) if self.helper.is_left_alone() => left.leave(),
            Some((left, _)) => drop(left.wait_within(&mut patience).map_err(UnderWay::leave)),
            None => {}
        }
    }
}

impl Segment {
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
            live_records: self.live_records.into(),
            sealed: self.info.sealed,
            pinned,
            expired: self.is_over(expired_to),
        }
    }
}
