//! Taking a checkpoint of a heap table while it changes.
//!
//! At the barrier nothing is done but to note it. Whoever comes first then, the stream or a share, has the
//! [marks](super::marks_unsafe) swap roles, and decides which segments are written anew. The table is
//! [read](super::reading) in steps, and the helper
//! writes what was read; who changes an entry that was not read yet keeps the old one, who adds a key
//! notes that it is new. If the table remembers its last checkpoint, only entries
//! that have changed since are read and written, and those in segments that are written anew; else all.
//!
//! What is copied follows the stream, as the hybrid log's checkpoints do: see [`HeapCore::pace_capture`].
//!
//! What it keeps true:
//! - What was read and what was kept are together the entries of the barrier that are to be written,
//!   each once; every other entry has its live record in a segment of before.
//! - What an entry is marked with moves with it. A table that is cleared is read to its end before it is dropped.
//! - What a checkpoint that was given up has written, or was to write, counts as changed.

use alluvium_pagestore::{
    BlobWriter, Error, ErrorKind, MemoryKind, Result, SegmentInfo, StateImage,
};

use super::core::HeapCore;
use super::raw_table_unsafe::Spot;
use super::reading::{Left, Reading, Source};
use crate::checkpoint::{
    ADDED, Begun, Dead, FREE_BYTES, Given, HeapFiles, InSteps, Lent, Named, Naming, Pace, Stepped,
    Telling,
};
use crate::full_image::writing_bytes;
use crate::heap_marks::Place;
use crate::hybrid_log::CHECKPOINT_PACE;
use crate::table::pace::pay;
use crate::table::{CheckpointOutcome, StateContext};

/// Stretches of buckets without a bit that a share passes over at most, buckets of others that it looks at, and
/// entries that it copies.
const CLEAR_MAX: u64 = 4096;
const BUCKETS_MAX: u64 = 16384;
const COPIED_MAX: u64 = 1024;
/// Buckets that are looked at for each call of the stream, see [`Reading::cost`]. An entry that changes before that has to be found again, or
/// even kept, which takes many times as long as copying it in its turn.
const BUCKETS_PER_CALL: u64 = 16;
/// Calls of the stream for each record that is written.
const CALLS_PER_RECORD: u64 = CHECKPOINT_PACE as u64;
/// What was not looked at may be later, so many buckets at once; what was not written, so many chunks.
const CREDIT_BUCKETS_MAX: u64 = 4096;
const CREDIT_CHUNKS_MAX: u64 = 2;
/// A segment has such a part of the state, between these.
const SEGMENTS: u64 = 32;
const SEGMENT_BYTES_MIN: u64 = 512 << 10;
const SEGMENT_BYTES_MAX: u64 = 8 << 20;
/// What a record takes beside its key and value, about.
const RECORD_BYTES: u64 = 32;

/// A checkpoint being taken.
#[derive(Debug)]
pub(super) struct HeapCapture {
    stepped: Stepped,
    pace: Pace,
    /// At the barrier.
    entries: u64,
    /// Whether it is decided what is to be read: nothing has changed since the barrier before that.
    is_planned: bool,
    follow: Follow,
    reading: Reading,
    /// All is written.
    telling: Option<Telling>,
}

/// What the stream has earned the checkpoint: what it does not follow has no bound.
#[derive(Debug, Default)]
struct Follow {
    gone: u64,
    /// Buckets to be looked at.
    looks: Option<u64>,
    /// Calls, of which writing a record takes some.
    calls: Option<u64>,
}

/// A checkpoint that was taken and is not decided yet.
#[derive(Debug)]
pub(super) struct Undecided {
    named: Named,
    dead: Dead,
    is_first: bool,
    /// Entries that it has written.
    written: u64,
}

/// What checkpoints that were given up have left: goes a part at a time.
#[derive(Debug, Default)]
pub(super) struct LeftOver {
    readings: Vec<Reading>,
    /// The helper has the list of what has died.
    lent: Option<Lent>,
}

impl LeftOver {
    /// Bytes of values that cleared tables have still.
    pub fn values_left(&self) -> u64 {
        self.readings.iter().flat_map(|reading| &reading.left).map(|left| left.values).sum()
    }
}

impl HeapCapture {
    /// Whether changes of the table in use concern it.
    pub(super) fn is_reading(&self) -> bool {
        !self.reading.is_read && self.reading.left.is_none() && !self.stepped.is_lost()
    }

    /// Bytes of values that a cleared table has still.
    pub fn values_left(&self) -> u64 {
        self.reading.left.as_ref().map_or(0, |left| left.values)
    }
}

impl InSteps for HeapCore {
    fn pause(&mut self) -> Result<()> {
        self.capture.iter_mut().for_each(|capture| capture.stepped.pause());
        Ok(())
    }
}

impl HeapCore {
    /// Cost: O(1).
    pub(super) fn begin_capture(&mut self) -> Result<()> {
        let pace = self.pace()?;
        let pace = Pace { segment_bytes: self.segment_bytes(), ..pace };
        let stepped = Stepped::new(&self.context)?;
        self.give_up_capture();
        if self.undecided.take().is_some() {
            // Nobody knows which segments are those of the last checkpoint.
            self.files.break_off();
        }
        let mut reading = Reading::of_all(&self.table, self.context.account.clone());
        reading.copies.leaves = writing_bytes(&pace);
        self.capture = Some(Box::new(HeapCapture {
            stepped,
            pace,
            entries: self.table.len(),
            is_planned: false,
            follow: Follow::default(),
            reading,
            telling: None,
        }));
        self.table.barrier();
        self.reads = true;
        Ok(())
    }

    /// Bytes after which a segment ends.
    fn segment_bytes(&self) -> u64 {
        let values = self.context.account.used_for(MemoryKind::Values);
        let entry = self.table.record_type().layout().size() as u64 + RECORD_BYTES;
        segment_bytes(self.table.len() * entry + values)
    }

    /// Decides what the checkpoint that was begun reads, if that is not decided. Cost: in the number of segments.
    #[cold]
    #[inline(never)]
    pub(super) fn plan_capture(&mut self) {
        let Some(capture) = self.capture.as_mut().filter(|capture| !capture.is_planned) else {
            return;
        };
        capture.is_planned = true;
        self.take_lent();
        let Some(capture) = self.capture.as_mut() else { return };
        if !self.table.notes_places() || self.files.is_broken() {
            self.forget();
            self.table.note_places();
            self.table.take_all();
            return;
        }
        let HeapCapture { entries, pace, reading, .. } = &mut **capture;
        let (account, counts) = (&self.context.account, (*entries, self.table.marked()));
        let leaves = reading.copies.leaves;
        let begun = Begun::of(&mut self.files, account, counts, pace.segment_bytes, leaves);
        reading.book(begun.bytes);
        (reading.naming, reading.records) = (begun.naming, begun.records);
    }

    /// Nothing of the last checkpoint is used by the next one.
    fn forget(&mut self) {
        self.table.forget_places();
        self.files.clear();
        self.left_over.lent = None;
    }

    /// Gives the memory of the marks back, if no checkpoint needs them; says whether there were any.
    #[cold]
    pub(super) fn give_up_marks(&mut self) -> bool {
        if !self.table.notes_places() || self.needs_marks() {
            return false;
        }
        self.table.forget_places();
        self.files.break_off();
        true
    }

    /// Whether what is to be read is known by the marks.
    fn needs_marks(&self) -> bool {
        let needs = |capture: &HeapCapture| {
            capture.is_planned && !capture.reading.naming.is_first && capture.is_reading()
        };
        self.capture.as_ref().is_some_and(|capture| needs(capture))
    }

    /// Places may have been lost for want of memory.
    pub(super) fn look_for_lost_places(&mut self) {
        if !self.table.take_lost() {
            return;
        }
        self.files.break_off();
        if self.needs_marks() {
            self.capture.iter_mut().for_each(|capture| capture.stepped.lose());
        }
    }

    /// The stream has come so far since the last share: what is copied follows it. It has the buckets looked at by its
    /// calls, ahead of what is written, for which it makes more calls for each record.
    pub(super) fn pace_capture(&mut self, pace: crate::table::Pace) {
        let (slots, is_copied) = (self.table.slots(), self.is_copied());
        let Some(capture) = self.capture.as_mut().filter(|_| is_copied) else { return };
        let Follow { gone, looks, calls } = &mut capture.follow;
        let Some(earned) = pace.earned(gone) else {
            (*looks, *calls) = (None, None);
            return;
        };
        *looks = earned.add(*looks, BUCKETS_PER_CALL, slots, CREDIT_BUCKETS_MAX);
        let most = CREDIT_CHUNKS_MAX * capture.reading.copies.chunk() * CALLS_PER_RECORD;
        let all = capture.reading.records.saturating_mul(CALLS_PER_RECORD);
        *calls = earned.add(*calls, 1, all, most);
    }

    /// Does a bounded share; the image at the end.
    pub(super) fn continue_capture(&mut self, blobs: &BlobWriter) -> Result<Option<StateImage>> {
        self.share(blobs).map_err(|error| error.with("state", &self.context.name))
    }

    fn share(&mut self, blobs: &BlobWriter) -> Result<Option<StateImage>> {
        self.plan_capture();
        let account = &self.context.account;
        let is_short = account.available() < account.limit() / 8;
        while self.drop_some_left() && is_short {}
        let Some(capture) = &mut self.capture else {
            return Err(Error::new(ErrorKind::Config, "no checkpoint was begun"));
        };
        capture.stepped.check()?;
        if capture.telling.is_some() {
            return self.tell_some(blobs);
        }
        let sealed =
            if self.is_copied() { self.share_by_copies() } else { self.share_by_batches() };
        self.look_for_lost_places();
        self.reads = self.capture.as_ref().is_some_and(|capture| capture.is_reading());
        match sealed? {
            Some(sealed) => {
                self.begin_telling(sealed);
                self.tell_some(blobs)
            }
            None => Ok(None),
        }
    }

    /// Reads entries and encodes them.
    fn share_by_batches(&mut self) -> Result<Option<Vec<SegmentInfo>>> {
        let capture = self.capture.as_mut().expect("it is taken");
        let HeapCapture { stepped, pace, reading, .. } = &mut **capture;
        stepped.step(&self.context, *pace, |own| {
            reading.copies.leaves = FREE_BYTES;
            let source = Source { table: &mut self.table, files: &mut self.files };
            reading.read_part(source, Some(own))
        })
    }

    /// Copies entries, and has the helper write some.
    fn share_by_copies(&mut self) -> Result<Option<Vec<SegmentInfo>>> {
        self.copy_some()?;
        let is_short = self.context.account.available() < self.context.account.limit() / 16;
        let capture = self.capture.as_mut().expect("it is taken");
        let HeapCapture { stepped, pace, follow, reading, .. } = &mut **capture;
        stepped.step_by_batches(&self.context, *pace, |own| {
            reading.settle(Source { table: &mut self.table, files: &mut self.files })?;
            let copies = &mut reading.copies;
            copies.leaves = FREE_BYTES;
            if reading.is_done {
                copies.end();
                if copies.is_empty() {
                    if !copies.has_spare() {
                        return Ok(Given::All);
                    }
                    copies.submit(own);
                    return Ok(Given::Some);
                }
            }
            let Some(records) = copies.next_len() else { return Ok(Given::Some) };
            let has_earned = pay(&mut follow.calls, records * CALLS_PER_RECORD);
            if has_earned || copies.is_full() || is_short {
                copies.submit(own);
            }
            Ok(Given::Some)
        })
    }

    /// Copies as many entries as a share does, as the stream has earned, and as there is room for.
    fn copy_some(&mut self) -> Result<()> {
        let capture = self.capture.as_mut().expect("it is taken");
        let HeapCapture { stepped, follow, reading, .. } = &mut **capture;
        let (encoded, mut clear, mut looked) = (reading.encoded, 0, 0);
        while looked < BUCKETS_MAX {
            let is_over = reading.is_done || reading.encoded - encoded >= COPIED_MAX;
            if is_over || stepped.is_lost() {
                break;
            }
            let most = follow.looks.unwrap_or(u64::MAX).min(CLEAR_MAX - clear);
            let passed = reading.pass_clear(&self.table, most);
            pay(&mut follow.looks, passed);
            clear += passed;
            let cost = reading.cost(&mut self.table);
            if clear == CLEAR_MAX
                || !reading.copies.has_room(reading.room(&self.table))?
                || !pay(&mut follow.looks, cost)
            {
                break;
            }
            looked += cost;
            let source = Source { table: &mut self.table, files: &mut self.files };
            stepped.read_beside(|| reading.read_part(source, None))?;
        }
        Ok(())
    }

    /// All is written.
    fn begin_telling(&mut self, sealed: Vec<SegmentInfo>) {
        let capture = self.capture.as_mut().expect("it is written");
        let HeapCapture { entries, reading, .. } = &mut **capture;
        let naming = &mut reading.naming;
        let named = self.files.name(*entries, &naming.dead, &sealed, &naming.slots);
        capture.telling = Some(Telling::new(&self.files, named, sealed));
    }

    /// Goes on telling which records of segments of before are live; the image, if all is told.
    fn tell_some(&mut self, blobs: &BlobWriter) -> Result<Option<StateImage>> {
        let capture = self.capture.as_mut().expect("it is told of");
        let HeapCapture { stepped, reading, telling, .. } = &mut **capture;
        let naming = &mut reading.naming;
        let telling = telling.as_mut().expect("it is told of");
        let share = ((&self.context, &self.files), naming, blobs);
        if !tell(telling, stepped, &mut self.looks, share)? {
            return Ok(None);
        }
        self.end_capture();
        Ok(self.undecided_image())
    }

    fn undecided_image(&self) -> Option<StateImage> {
        self.undecided.as_ref().map(|undecided| undecided.named.image())
    }

    /// The checkpoint is taken.
    fn end_capture(&mut self) {
        let capture = self.capture.take().expect("it was taken");
        let HeapCapture { mut reading, telling, .. } = *capture;
        let named = telling.expect("it is told of").into_named();
        self.codec_calls += reading.encoded;
        self.images.taken(&named.image());
        let Naming { is_first, .. } = reading.naming;
        let dead = reading.naming.take_dead(&self.context.account);
        let written = reading.encoded;
        self.reads = false;
        self.undecided = Some(Box::new(Undecided { named, dead, is_first, written }));
    }

    /// Gives up the checkpoint that is being taken, if one is. Cost: in the number of segments; what it has kept goes
    /// [later](HeapCore::drop_some_left).
    fn give_up_capture(&mut self) {
        let Some(mut capture) = self.capture.take() else { return };
        self.reads = false;
        if !capture.is_planned {
            return;
        }
        if let Some(telling) = capture.telling.take() {
            self.left_over.lent = telling.give_up(&self.context);
        }
        let HeapCapture { mut reading, .. } = *capture;
        let Naming { is_first, .. } = reading.naming;
        let dead = reading.naming.take_dead(&self.context.account);
        let written = reading.encoded;
        self.left_over.readings.push(reading);
        self.go_back(is_first, dead, written);
    }

    /// Drops a part of what checkpoints that were given up have left; says whether there was something.
    #[cold]
    #[inline(never)]
    pub(super) fn drop_some_left(&mut self) -> bool {
        if let Some(reading) = self.left_over.readings.last_mut() {
            if !reading.drop_some() {
                self.left_over.readings.pop();
            }
            return true;
        }
        false
    }

    /// Takes back what the helper was lent for a checkpoint that was given up. If it has it still, the next one is full.
    fn take_lent(&mut self) {
        if let Some(lent) = self.left_over.lent.take() {
            lent.take_back(&self.context.helper, &mut self.files);
        }
    }

    /// What a checkpoint has written, so many entries, is of no use.
    fn go_back(&mut self, is_first: bool, dead: Dead, written: u64) {
        if is_first || !self.table.notes_places() || self.files.is_broken() {
            self.forget();
        } else {
            self.files.given_up(dead, written);
        }
    }

    /// What became of the checkpoint.
    pub(super) fn decide_capture(&mut self, outcome: CheckpointOutcome) {
        self.give_up_capture();
        let Some(undecided) = self.undecided.take() else { return };
        let Undecided { named, dead, is_first, written } = *undecided;
        match outcome {
            CheckpointOutcome::Committed
                if self.table.notes_places() && !self.files.is_broken() =>
            {
                self.files.confirmed(named);
            }
            CheckpointOutcome::Abandoned => self.go_back(is_first, dead, written),
            // Those that it names are not known to be there, or not remembered.
            CheckpointOutcome::Committed | CheckpointOutcome::Unknown => self.forget(),
        }
    }

    /// Keeps an entry that is about to change, if the checkpoint that is taken is to have it as it is.
    fn keep(&mut self, spot: Spot) {
        self.plan_capture();
        let is_copied = self.is_copied();
        let Some(capture) = self.capture.as_mut().filter(|capture| capture.is_reading()) else {
            self.reads = false;
            return;
        };
        let HeapCapture { reading, stepped, .. } = &mut **capture;
        if !reading.is_due(&mut self.table, spot) {
            return;
        }
        let mut source = Source { table: &mut self.table, files: &mut self.files };
        let kept = if is_copied && reading.copies.has_room_left() {
            reading.take_early(spot, &mut source)
        } else if reading.keep(source.table, spot) {
            // What is kept is written, and the entry has no record until then.
            source.table.mark_changed(spot);
            reading.outdate(spot, Place::NONE, &mut source)
        } else {
            return self.read_rest();
        };
        if kept.is_err() {
            stepped.lose();
        }
    }

    /// An entry is about to change, or to go.
    #[cold]
    #[inline(never)]
    pub(super) fn note_change(&mut self, spot: Spot) {
        if self.reads {
            self.keep(spot);
        }
        self.table.mark_changed(spot);
    }

    /// Reads all that is not read yet and has it written, at once. If that fails, the checkpoint
    /// does.
    #[cold]
    pub(super) fn read_rest(&mut self) {
        self.plan_capture();
        let is_copied = self.is_copied();
        let Some(capture) = &mut self.capture else { return };
        let HeapCapture { stepped, pace, reading, .. } = &mut **capture;
        stepped.read_rest(&self.context, *pace, |own| {
            if reading.is_read {
                return Ok(false);
            }
            let source = Source { table: &mut self.table, files: &mut self.files };
            if !is_copied {
                return reading.read_part(source, Some(own));
            }
            if reading.copies.has_room(reading.room(source.table))? {
                return reading.read_part(source, None);
            }
            own.wait()?;
            reading.settle(source)?;
            reading.copies.submit(own);
            Ok(true)
        });
        if stepped.is_lost() {
            reading.drop_left();
        }
        self.look_for_lost_places();
        self.reads = self.capture.as_ref().is_some_and(|capture| capture.is_reading());
    }

    /// The table is cleared: if a checkpoint reads it, that takes it, with what is booked for it. Nothing is remembered of
    /// it.
    pub(super) fn leave(&mut self) {
        self.plan_capture();
        let values = self.context.account.used_for(MemoryKind::Values) - self.values_left();
        let empty = self.empty_table();
        let table = std::mem::replace(&mut self.table, empty);
        self.reads = false;
        match self.capture.as_mut().filter(|capture| capture.is_reading()) {
            Some(capture) => capture.reading.left = Some(Left { table, values }),
            None => {
                self.files.break_off();
                self.context.account.release(MemoryKind::Values, values);
                drop(table);
            }
        }
    }
}

/// A share of telling; says whether all is told. Not generic: compiled once.
fn tell(
    telling: &mut Telling,
    stepped: &mut Stepped,
    looks: &mut u64,
    (of, naming, blobs): ((&StateContext, &HeapFiles), &mut Naming, &BlobWriter),
) -> Result<bool> {
    *looks += if telling.is_adding(naming) { ADDED as u64 } else { 0 };
    telling.share(of, naming, blobs).inspect_err(|_| stepped.lose())
}

/// Bytes after which a segment ends, of a state of so many.
pub(crate) fn segment_bytes(bytes: u64) -> u64 {
    (bytes / SEGMENTS).clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX)
}
