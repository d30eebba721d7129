//! Taking a checkpoint of a heap table while it changes.
//!
//! At the barrier nothing is done but to note it. Whoever comes first then, the stream or a share, has the
//! [marks](crate::heap_marks) swap roles, and decides which segments are written anew. The table is
//! [read](crate::heap_reading) in steps, and the helper
//! writes what was read; who changes an entry that was not read yet keeps the old one, who adds a key
//! notes that it is new. If the table remembers its last checkpoint, only entries
//! that have changed since are read and written, and those in segments that are written anew; else all.
//!
//! What is copied follows the stream, as the hybrid log's checkpoints do: see [`HeapTable::pace_capture`].
//!
//! What it keeps true:
//! - What was read and what was kept are together the entries of the barrier that are to be written,
//!   each once; every other entry has its live record in a segment of before.
//! - A table that grows meanwhile knows which of its entries are still to be read: a bit for each
//!   bucket. One that is cleared is read to its end before it is dropped.
//! - What a checkpoint that was given up has written, or was to write, counts as changed.

use alluvium_pagestore::{
    BlobWriter, Error, ErrorKind, Key, Lookup, MemoryKind, Result, SegmentInfo, StateImage,
};
use hashbrown::HashTable;

use crate::checkpoint::InSteps;
use crate::checkpoint::Pace;
use crate::checkpoint::{ADDED, Dead, HeapFiles, Named};
use crate::checkpoint::{Begun, FREE_BYTES, Naming};
use crate::checkpoint::{Given, Stepped};
use crate::checkpoint::{Lent, Telling};
use crate::heap::{HeapTable, Kind};
use crate::heap_entries::{Entries, hash_of};
use crate::heap_marks::{EntryMarks, Marks, Place, bits_bytes};
use crate::heap_reading::{Left, Memory, Reading, Source};
use crate::hybrid_log::CHECKPOINT_PACE;
use crate::out_of_line_unsafe::OutOfLine;
use crate::split_table::HashRange;
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
pub struct HeapCapture<K, V, S: Entries<K, V>> {
    stepped: Stepped,
    pace: Pace,
    /// At the barrier.
    entries: u64,
    /// Whether it is decided what is to be read: nothing has changed since the barrier before that.
    is_planned: bool,
    follow: Follow,
    reading: OutOfLine<Reading<K, V, S>>,
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
pub(crate) struct Undecided {
    named: Named,
    dead: Dead,
    is_first: bool,
    /// Entries that it has written.
    written: u64,
}

/// What checkpoints that were given up have left: goes a part at a time.
#[derive(Debug)]
pub(crate) struct LeftOver<K, V, S: Entries<K, V>> {
    readings: Vec<OutOfLine<Reading<K, V, S>>>,
    /// The helper has the list of what has died.
    lent: Option<Lent>,
}

impl<K, V, S: Entries<K, V>> LeftOver<K, V, S> {
    /// Bytes of values that cleared tables have still.
    pub fn values_left(&self) -> u64 {
        self.readings.iter().flat_map(|reading| &reading.left).map(|left| left.values).sum()
    }
}

impl<K, V, S: Entries<K, V>> Default for LeftOver<K, V, S> {
    fn default() -> Self {
        Self { readings: Vec::new(), lent: None }
    }
}

impl<K, V, S: Entries<K, V>> HeapCapture<K, V, S> {
    /// Whether changes of the table in use concern it.
    pub(super) fn is_reading(&self) -> bool {
        !self.reading.is_read && self.reading.left.is_none() && !self.stepped.is_lost()
    }

    /// Bytes of values that a cleared table has still.
    pub fn values_left(&self) -> u64 {
        self.reading.left.as_ref().map_or(0, |left| left.values)
    }
}

impl<K: Key, V: 'static, M: Kind<K, V>, S: Entries<K, V>> InSteps for HeapTable<K, V, M, S> {
    fn pause(&mut self) -> Result<()> {
        self.capture.iter_mut().for_each(|capture| capture.stepped.pause());
        Ok(())
    }
}

impl<K: Key, V: 'static, M: Kind<K, V>, S: Entries<K, V>> HeapTable<K, V, M, S> {
    /// Cost: O(1).
    pub(super) fn begin_capture(&mut self) -> Result<()> {
        let pace = M::pace(&self.context, self.entries.count())?;
        let pace = Pace { segment_bytes: self.segment_bytes(), ..pace };
        let stepped = Stepped::new(&self.context)?;
        self.give_up_capture();
        if self.undecided.take().is_some() {
            // Nobody knows which segments are those of the last checkpoint.
            self.files.break_off();
        }
        let range = HashRange::of(&self.context.owned, self.context.key_groups);
        let entries = self.entries.count();
        self.capture = Some(OutOfLine::new(Box::new(HeapCapture {
            stepped,
            pace,
            entries,
            is_planned: false,
            follow: Follow::default(),
            reading: OutOfLine::new(Reading::of_all(self.context.account.clone(), range, entries)),
            telling: None,
        })));
        self.reads = true;
        Ok(())
    }

    /// Bytes after which a segment ends.
    fn segment_bytes(&self) -> u64 {
        let values = self.context.account.used_for(MemoryKind::Values);
        let entry = size_of::<(K, V)>() as u64 + RECORD_BYTES;
        segment_bytes(self.entries.count() * entry + values)
    }

    /// Decides what the checkpoint that was begun reads, if that is not decided. Cost: in the number of segments.
    fn plan_capture(&mut self) {
        let Some(capture) = self.capture.as_mut().filter(|capture| !capture.is_planned) else {
            return;
        };
        capture.is_planned = true;
        self.take_lent();
        let Some(capture) = self.capture.as_mut() else { return };
        if !self.marks.is_on() || self.files.is_broken() {
            self.forget();
            self.marks.begin(self.entries.buckets());
            return;
        }
        let HeapCapture { entries, pace, reading, .. } = &mut ***capture;
        let reading = &mut **reading;
        let changed = self.marks.capture();
        let (account, counts) = (&self.context.account, (*entries, changed));
        let begun = Begun::of(&mut self.files, account, counts, pace.segment_bytes);
        reading.book(begun.bytes);
        (reading.naming, reading.records) = (begun.naming, begun.records);
        reading.reads_all = false;
    }

    /// Nothing of the last checkpoint is used by the next one.
    fn forget(&mut self) {
        self.marks.give_up();
        self.files.clear();
        self.left_over.lent = None;
    }

    /// Gives the memory of the marks back, if no checkpoint needs them; says whether there were any.
    #[cold]
    pub(super) fn give_up_marks(&mut self) -> bool {
        if !self.marks.is_on() || self.needs_marks() {
            return false;
        }
        self.marks.give_up();
        self.files.break_off();
        true
    }

    /// Whether what is to be read is known by the marks.
    fn needs_marks(&self) -> bool {
        let needs = |capture: &HeapCapture<K, V, S>| {
            capture.is_planned && !capture.reading.naming.is_first && capture.is_reading()
        };
        self.capture.as_ref().is_some_and(|capture| needs(capture))
    }

    /// The marks were lost for want of memory.
    #[cold]
    pub(super) fn marks_are_lost(&mut self) {
        self.files.break_off();
        if self.needs_marks() {
            self.capture.iter_mut().for_each(|capture| capture.stepped.lose());
        }
    }

    /// The stream has come so far since the last share: what is copied follows it. It has the buckets looked at by its
    /// calls, ahead of what is written, for which it makes more calls for each record.
    pub(super) fn pace_capture(&mut self, pace: crate::table::Pace) {
        let buckets = self.entries.buckets() as u64;
        let Some(capture) = self.capture.as_mut().filter(|_| M::IS_COPIED) else { return };
        let capture = &mut ***capture;
        let Follow { gone, looks, calls } = &mut capture.follow;
        let Some(earned) = pace.earned(gone) else {
            (*looks, *calls) = (None, None);
            return;
        };
        *looks = earned.add(*looks, BUCKETS_PER_CALL, buckets, CREDIT_BUCKETS_MAX);
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
        let sealed = if M::IS_COPIED { self.share_by_copies() } else { self.share_by_batches() };
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
        let HeapCapture { stepped, pace, reading, .. } = &mut ***capture;
        let reading = &mut **reading;
        stepped.step(&self.context, *pace, |own| {
            let source = Source { entries: &self.entries, moved: self.moved };
            let memory = Memory { marks: &mut self.marks, files: &mut self.files };
            reading.read_part::<M>(source, memory, Some(own))
        })
    }

    /// Copies entries, and has the helper write some.
    fn share_by_copies(&mut self) -> Result<Option<Vec<SegmentInfo>>> {
        self.copy_some()?;
        let is_short = self.context.account.available() < self.context.account.limit() / 16;
        let capture = self.capture.as_mut().expect("it is taken");
        let HeapCapture { stepped, pace, follow, reading, .. } = &mut ***capture;
        let reading = &mut **reading;
        stepped.step_by_batches(&self.context, *pace, |own| {
            let source = Source { entries: &self.entries, moved: self.moved };
            let memory = Memory { marks: &mut self.marks, files: &mut self.files };
            reading.settle(&source, memory)?;
            let copies = &mut reading.copies;
            if reading.is_done {
                copies.end();
                if copies.is_empty() {
                    if !copies.has_spare() {
                        return Ok(Given::All);
                    }
                    M::submit(copies, own);
                    return Ok(Given::Some);
                }
            }
            let Some(records) = copies.next_len() else { return Ok(Given::Some) };
            let has_earned = pay(&mut follow.calls, records * CALLS_PER_RECORD);
            if has_earned || copies.is_full() || is_short {
                M::submit(copies, own);
            }
            Ok(Given::Some)
        })
    }

    /// Copies as many entries as a share does, as the stream has earned, and as there is room for.
    fn copy_some(&mut self) -> Result<()> {
        let capture = self.capture.as_mut().expect("it is taken");
        let HeapCapture { stepped, follow, reading, .. } = &mut ***capture;
        let reading = &mut **reading;
        let (encoded, mut clear, mut looked) = (reading.encoded, 0, 0);
        while looked < BUCKETS_MAX {
            let is_over = reading.is_done || reading.encoded - encoded >= COPIED_MAX;
            if is_over || stepped.is_lost() {
                break;
            }
            let most = follow.looks.unwrap_or(u64::MAX).min(CLEAR_MAX - clear);
            let passed = reading.pass_clear(&self.entries, &mut self.marks, most);
            pay(&mut follow.looks, passed);
            clear += passed;
            let cost = reading.cost(&self.entries, &self.marks);
            if clear == CLEAR_MAX
                || !reading.copies.has_room(reading.room(&self.entries), self.moved)?
                || !pay(&mut follow.looks, cost)
            {
                break;
            }
            looked += cost;
            let source = Source { entries: &self.entries, moved: self.moved };
            let memory = Memory { marks: &mut self.marks, files: &mut self.files };
            reading.read_part::<M>(source, memory, None)?;
        }
        Ok(())
    }

    /// All is written.
    fn begin_telling(&mut self, sealed: Vec<SegmentInfo>) {
        let capture = self.capture.as_mut().expect("it is written");
        let HeapCapture { entries, reading, .. } = &mut ***capture;
        let naming = &mut reading.naming;
        let named = self.files.name(*entries, &naming.dead, &sealed, &naming.slots);
        capture.telling = Some(Telling::new(&self.files, named, sealed));
    }

    /// Goes on telling which records of segments of before are live; the image, if all is told.
    fn tell_some(&mut self, blobs: &BlobWriter) -> Result<Option<StateImage>> {
        let capture = self.capture.as_mut().expect("it is told of");
        let HeapCapture { stepped, reading, telling, .. } = &mut ***capture;
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
        self.undecided.as_ref().map(|undecided| undecided.named.image.clone())
    }

    /// The checkpoint is taken.
    fn end_capture(&mut self) {
        let capture = self.capture.take().expect("it was taken");
        let HeapCapture { mut reading, telling, .. } = *capture.into_inner();
        let named = telling.expect("it is told of").into_named();
        self.codec_calls += reading.encoded;
        self.images.taken(&named.image);
        let Naming { is_first, .. } = reading.naming;
        let dead = reading.naming.take_dead(&self.context.account);
        let written = reading.encoded;
        self.marks.end_capture();
        self.reads = false;
        self.undecided = Some(Box::new(Undecided { named, dead, is_first, written }));
    }

    /// Gives up the checkpoint that is being taken, if one is. Cost: in the number of segments; what it has kept goes
    /// [later](HeapTable::drop_some_left).
    fn give_up_capture(&mut self) {
        let Some(mut capture) = self.capture.take() else { return };
        self.reads = false;
        if !capture.is_planned {
            return;
        }
        self.marks.end_capture();
        if let Some(telling) = capture.telling.take() {
            self.left_over.lent = telling.give_up(&self.context);
        }
        let HeapCapture { mut reading, .. } = *capture.into_inner();
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
        if is_first || !self.marks.is_on() || self.files.is_broken() {
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
            CheckpointOutcome::Committed if self.marks.is_on() && !self.files.is_broken() => {
                self.files.confirmed(named);
            }
            CheckpointOutcome::Abandoned => self.go_back(is_first, dead, written),
            // Those that it names are not known to be there, or not remembered.
            CheckpointOutcome::Committed | CheckpointOutcome::Unknown => self.forget(),
        }
    }

    /// Keeps what a key has, which is about to change; or that it has nothing, if it is added.
    #[cold]
    #[inline(never)]
    pub(super) fn keep<Q: Lookup<K> + ?Sized>(&mut self, hash: u64, key: &Q, adds: bool) {
        self.plan_capture();
        let Some(capture) = self.capture.as_mut().filter(|capture| capture.is_reading()) else {
            self.reads = false;
            return;
        };
        let bucket = self.entries.bucket(hash, |(known, _)| key.is(known));
        let HeapCapture { reading, stepped, .. } = &mut ***capture;
        let capture = &mut **reading;
        let wanted = match bucket {
            Some(bucket) => {
                self.marks.merge(bucket);
                capture.is_due(&self.entries, (bucket, hash), &self.marks)
            }
            None => adds && capture.wants_new(),
        };
        if !wanted || capture.kept.find(hash, |kept| key.is(&kept.0)).is_some() {
            return;
        }
        let entry = bucket.and_then(|bucket| self.entries.entry(bucket));
        if let (true, Some(bucket), Some(entry)) =
            (M::IS_COPIED && capture.has_bits(), bucket, entry)
            && capture.copies.has_room_left(self.moved)
        {
            let mut memory = Memory { marks: &mut self.marks, files: &mut self.files };
            if capture.take_early::<M>(bucket, entry, &mut memory).is_err() {
                stepped.lose();
            }
            return;
        }
        let before = entry.and_then(|(_, value)| M::copy(value));
        let key = key.to_owned();
        let bytes = match &before {
            Some(value) => M::heap_bytes(&key, value),
            None => key.heap_bytes() as u64,
        };
        let room = self.context.account.available() >= bytes + FREE_BYTES;
        if room {
            capture.book(bytes);
        }
        let made = room && capture.kept.insert(hash, hash_of, || (key, before)).is_ok();
        if !made {
            return self.read_rest();
        }
        let Some(bucket) = bucket else { return };
        capture.pass(bucket, &mut self.marks);
        // What is kept is written, and the entry has no record until then.
        self.marks.change(bucket);
        let mut memory = Memory { marks: &mut self.marks, files: &mut self.files };
        if capture.outdate(bucket, Place::NONE, &mut memory).is_err() {
            stepped.lose();
        }
    }

    /// Reads all that is not read yet and has it written, at once. If that fails, the checkpoint
    /// does.
    #[cold]
    pub(super) fn read_rest(&mut self) {
        self.plan_capture();
        let Some(capture) = &mut self.capture else { return };
        let HeapCapture { stepped, pace, reading, .. } = &mut ***capture;
        let reading = &mut **reading;
        stepped.read_rest(&self.context, *pace, |own| {
            if reading.is_read {
                return Ok(false);
            }
            let source = Source { entries: &self.entries, moved: self.moved };
            let memory = Memory { marks: &mut self.marks, files: &mut self.files };
            if !M::IS_COPIED {
                return reading.read_part::<M>(source, memory, Some(own));
            }
            if reading.copies.has_room(reading.room(&self.entries), self.moved)? {
                return reading.read_part::<M>(source, memory, None);
            }
            own.wait()?;
            reading.settle(&source, memory)?;
            M::submit(&mut reading.copies, own);
            Ok(true)
        });
        if stepped.is_lost() {
            reading.drop_left();
        }
        self.reads = self.capture.as_ref().is_some_and(|capture| capture.is_reading());
    }

    /// The table is cleared: says whether a checkpoint takes it, with what is booked for it. Nothing is
    /// remembered of it.
    pub(super) fn leave(&mut self) -> bool {
        self.plan_capture();
        let marks = S::Marks::off(self.context.account.clone());
        let marks = std::mem::replace(&mut self.marks, marks);
        let values = self.context.account.used_for(MemoryKind::Values) - self.values_left();
        let Some(capture) = self.capture.as_mut().filter(|capture| capture.is_reading()) else {
            self.files.break_off();
            return false;
        };
        let table = std::mem::replace(&mut self.entries, S::empty(&self.context));
        let index = std::mem::take(&mut self.table_bytes);
        capture.reading.left = Some(Left { table, marks, index, values });
        self.reads = false;
        true
    }
}

impl<K: Key, V: 'static, M: Kind<K, V>> HeapTable<K, V, M> {
    /// Moves the entries to a table twice as large, if it is known of each whether it is to be read or
    /// has changed, and says whether it did. What that takes is booked, and as much left as is needed
    /// `beside` it.
    #[cold]
    #[inline(never)]
    pub(super) fn grow_remembered(&mut self, beside: u64) -> bool {
        // From here on, what is added is not kept.
        self.plan_capture();
        let is_reading = self.capture.as_ref().is_some_and(|capture| capture.is_reading());
        if !is_reading && !self.marks.is_on() {
            return false;
        }
        let buckets = (self.entries.num_buckets() * 2).max(16);
        let bits = if is_reading { bits_bytes(buckets) + 64 } else { 0 };
        let marks = if self.marks.is_on() { Marks::memory_bytes(buckets) } else { 0 };
        if self.context.account.available() < beside + bits + marks + FREE_BYTES {
            if is_reading {
                self.read_rest();
            }
            let is_off = !self.marks.is_on() || self.give_up_marks();
            debug_assert!(is_off, "nothing is read any more");
            return false;
        }
        let mut grown = HashTable::with_capacity((2 * self.entries.len()).max(8));
        let mut capture = self.capture.as_mut().filter(|capture| capture.is_reading());
        let mut due = Vec::new();
        if let Some(capture) = &mut capture {
            capture.reading.book(bits);
            due = vec![0u64; grown.num_buckets().div_ceil(64)];
        }
        let mut marks = Marks::off(self.context.account.clone());
        if self.marks.is_on() {
            match Marks::new(&self.context.account, grown.num_buckets()) {
                Some(new) => marks = new,
                None => {
                    // Another state was faster.
                    self.files.break_off();
                    capture.iter_mut().for_each(|capture| capture.stepped.lose());
                }
            }
        }
        let mut old = std::mem::take(&mut self.entries);
        for bucket in 0..old.num_buckets() {
            let Ok(entry) = old.get_bucket_entry(bucket) else { continue };
            let entry = entry.remove().0;
            let hash = entry.0.key_hash();
            self.marks.merge(bucket);
            let is_due = capture.as_ref().is_some_and(|capture| {
                capture.reading.is_due(&old, (bucket, hash), &self.marks)
                    && capture.reading.kept.find(hash, |kept| kept.0 == entry.0).is_none()
            });
            let place = grown.insert_unique(hash, entry, hash_of).bucket_index();
            marks.put(place, self.marks.lift(bucket));
            if is_due {
                due[place / 64] |= 1 << (place % 64);
            }
        }
        self.entries = grown;
        self.marks = marks;
        if let Some(capture) = capture {
            capture.reading.next = 0;
            capture.reading.due = Some(due);
        }
        true
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
