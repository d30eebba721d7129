//! Taking a checkpoint of a heap table while it changes.
//!
//! At the barrier nothing is copied. The table is read in steps, bucket by bucket, and the helper
//! writes what was read; who changes an entry that was not read yet keeps the old one, who adds a key
//! notes that it is new. If the table [remembers](crate::heap_marks) its last checkpoint, only entries
//! that have changed since are read and written, and those in segments that are written anew; else all.
//!
//! What it keeps true:
//! - What was read and what was kept are together the entries of the barrier that are to be written,
//!   each once; every other entry has its live record in a segment of before.
//! - A table that grows meanwhile knows which of its entries are still to be read: a bit for each
//!   bucket. One that is cleared is read to its end before it is dropped.
//! - What a checkpoint that was given up has written, or was to write, counts as changed.

use std::rc::Rc;

use alluvium_pagestore::{
    Account, BlobRef, BlobWriter, Death, Error, ErrorKind, Key, LiveSet, Lookup, MemoryKind,
    PlacedAt, Result, SegmentInfo, StateImage,
};
use crossbeam_channel::{Receiver, TryRecvError, bounded};
use hashbrown::HashTable;

use crate::heap::{HeapTable, Kind};
use crate::heap_files::{Dead, HeapFiles, Named};
use crate::heap_marks::{Marks, Place, bits_bytes};
use crate::paced::{Pace, Paced};
use crate::split_table::{HashRange, SplitTable};
use crate::stepped::Stepped;
use crate::table::CheckpointOutcome;

/// Buckets read between two looks at the room in the batch: those of a word of bits.
const BUCKETS: usize = 64;
/// Bytes that are left free beside what is kept.
const FREE_BYTES: u64 = 4 << 10;
/// A segment has such a part of the state, between these.
const SEGMENTS: u64 = 32;
const SEGMENT_BYTES_MIN: u64 = 512 << 10;
const SEGMENT_BYTES_MAX: u64 = 8 << 20;
/// What a record takes beside its key and value, about.
const RECORD_BYTES: u64 = 32;
/// What writing a death takes.
const DEATH_BYTES: u64 = (size_of::<Death>() + 4) as u64;

/// A checkpoint being taken.
#[derive(Debug)]
pub struct HeapCapture<K, V> {
    stepped: Stepped,
    pace: Pace,
    /// At the barrier.
    entries: u64,
    reading: Reading<K, V>,
    telling: Option<Telling>,
}

/// A checkpoint that was taken and is not decided yet.
#[derive(Debug)]
pub(crate) struct Undecided {
    named: Named,
    dead: Dead,
    is_full: bool,
}

/// The helper writes which records are live.
#[derive(Debug)]
struct Telling {
    sealed: Vec<SegmentInfo>,
    named: Named,
    /// Whether sets take the place of lists.
    has_sets: bool,
    answer: Receiver<Told>,
    /// It has answered, that it could not.
    is_over: bool,
}

/// The helper's answer: the list of deaths; of each set its slot and its number of records; and the
/// places it was lent.
struct Told {
    list: Result<Option<BlobRef>>,
    sets: Result<Vec<(usize, u64, BlobRef)>>,
    lent: Vec<Vec<Place>>,
}

/// What is to be read still.
#[derive(Debug)]
struct Reading<K, V> {
    account: Rc<Account>,
    /// Buckets before this one are read.
    next: usize,
    /// The buckets that are to be read, if not all are, or entries have moved since the barrier.
    due: Option<Vec<u64>>,
    /// The table is read; what was kept is written.
    is_read: bool,
    /// Keys that have changed, and what they had; `None` if they were not there.
    kept: SplitTable<(K, Option<V>)>,
    /// The table, once it was cleared.
    left: Option<Left<K, V>>,
    /// Booked as buffers.
    booked: u64,
    /// All entries are written.
    is_full: bool,
    /// Whether it was looked whether there is room for marks.
    has_begun: bool,
    /// By slot: entries with records there are to be read too. Empty if there are none.
    anew: Vec<bool>,
    /// By slot: which records are live, if sets are made.
    sets: Vec<Option<LiveSet>>,
    dead: Dead,
    /// Slots of the segments being written.
    slots: Vec<u32>,
    /// Records that were encoded.
    encoded: u64,
}

/// A table that was cleared, what was remembered of it, and what is booked for it.
#[derive(Debug)]
struct Left<K, V> {
    table: HashTable<(K, V)>,
    marks: Marks,
    index: u64,
    values: u64,
}

/// What a table remembers of its checkpoints.
struct Memory<'a> {
    marks: &'a mut Marks,
    files: &'a mut HeapFiles,
}

impl<K, V> HeapCapture<K, V> {
    /// Whether changes of the table in use concern it.
    pub(super) fn is_reading(&self) -> bool {
        !self.reading.is_read && self.reading.left.is_none() && !self.stepped.is_lost()
    }

    /// Bytes of values that a cleared table has still.
    pub fn values_left(&self) -> u64 {
        self.reading.left.as_ref().map_or(0, |left| left.values)
    }
}

impl<K, V> Reading<K, V> {
    /// Of a full checkpoint.
    fn of_all(account: Rc<Account>, range: HashRange) -> Self {
        Self {
            next: 0,
            due: None,
            is_read: false,
            kept: SplitTable::new(account.clone(), range),
            left: None,
            booked: 0,
            is_full: true,
            has_begun: false,
            anew: Vec::new(),
            sets: Vec::new(),
            dead: Dead::none(account.clone()),
            slots: Vec::new(),
            encoded: 0,
            account,
        }
    }

    /// Whether the entry in a bucket, which has this place, is to be read.
    fn is_due(&self, bucket: usize, place: Place) -> bool {
        let is_anew = || place != Place::NONE && self.anew.get(place.slot()) == Some(&true);
        let due = |due: &Vec<u64>| due[bucket / 64] >> (bucket % 64) & 1 == 1 || is_anew();
        bucket >= self.next && self.due.as_ref().is_none_or(due)
    }

    /// Whether nothing is to be read of the buckets from `next` on, and nothing to be looked at.
    fn is_word_done(&self) -> bool {
        let is_clear = self.due.as_ref().is_some_and(|due| due.get(self.next / 64) == Some(&0));
        is_clear && self.sets.is_empty() && self.anew.is_empty()
    }

    fn book(&mut self, bytes: u64) {
        self.account.charge(MemoryKind::Buffers, bytes);
        self.booked += bytes;
    }

    /// Drops the table that was cleared.
    fn drop_left(&mut self) {
        if let Some(Left { table, index, values, .. }) = self.left.take() {
            drop(table);
            self.account.release(MemoryKind::Index, index);
            self.account.release(MemoryKind::Values, values);
        }
    }

    /// The place of a record that was written, for a table that remembers it.
    fn place_of(&mut self, at: PlacedAt, memory: &mut Memory<'_>) -> Place {
        if !memory.marks.is_on() {
            return Place::NONE;
        }
        while self.slots.len() <= at.segment as usize {
            let Some(slot) = memory.files.new_slot() else { return Place::NONE };
            self.slots.push(slot);
        }
        Place::of(self.slots[at.segment as usize], at.grain)
    }

    /// The entry in a bucket has a newer record, there.
    fn outdate(&mut self, bucket: usize, newer: Place, memory: &mut Memory<'_>) -> Result<()> {
        let older = memory.marks.take(bucket);
        memory.marks.set_place(bucket, newer);
        match memory.files.outdate(older, &mut self.dead) {
            true => Ok(()),
            false => Err(self.account.over_budget(0, "noting which records are dead")),
        }
    }
}

impl<K, V> Drop for Reading<K, V> {
    fn drop(&mut self) {
        self.drop_left();
        self.account.release(MemoryKind::Buffers, self.booked);
    }
}

impl<K: Key, V: 'static> Reading<K, V> {
    /// Reads some buckets of the `entries`, or some of what was kept; says whether there were any.
    fn read_part<M: Kind<K, V>>(
        &mut self,
        entries: &HashTable<(K, V)>,
        memory: Memory<'_>,
        own: &mut Paced,
    ) -> Result<bool> {
        if self.is_read {
            return self.read_kept::<M>(entries, memory, own);
        }
        let mut left = self.left.take();
        let Memory { marks, files } = memory;
        let read = match &mut left {
            Some(Left { table, marks, .. }) => {
                self.read_buckets::<M>(table, Memory { marks, files }, own)
            }
            None => self.read_buckets::<M>(entries, Memory { marks, files }, own),
        };
        self.left = left;
        if self.is_read {
            self.drop_left();
            self.due = None;
        }
        read.map(|()| true)
    }

    fn read_buckets<M: Kind<K, V>>(
        &mut self,
        table: &HashTable<(K, V)>,
        mut memory: Memory<'_>,
        own: &mut Paced,
    ) -> Result<()> {
        let buckets = table.num_buckets();
        let end = buckets.min(self.next + BUCKETS);
        let passed = if self.is_word_done() { end } else { self.next };
        for bucket in passed..end {
            let place = memory.marks.place(bucket);
            if !self.is_due(bucket, place) {
                self.note_live(place);
                continue;
            }
            let Some((key, value)) = table.get_bucket(bucket) else { continue };
            // Where there are bits, they are of what was not kept.
            let is_kept = |kept: &(K, Option<V>)| kept.0 == *key;
            if self.due.is_some() || self.kept.find(key.key_hash(), is_kept).is_none() {
                let at = M::push(own, key, value)?;
                self.encoded += 1;
                let newer = self.place_of(at, &mut memory);
                self.outdate(bucket, newer, &mut memory)?;
            }
        }
        self.next = end;
        self.is_read = end == buckets;
        Ok(())
    }

    /// A record of a segment of before is live.
    fn note_live(&mut self, place: Place) {
        if place != Place::NONE
            && let Some(Some(set)) = self.sets.get_mut(place.slot())
        {
            set.insert(place.grain());
        }
    }

    fn read_kept<M: Kind<K, V>>(
        &mut self,
        entries: &HashTable<(K, V)>,
        mut memory: Memory<'_>,
        own: &mut Paced,
    ) -> Result<bool> {
        let Some(part) = self.kept.take_part() else { return Ok(false) };
        for (key, before) in part {
            let mut place = Place::NONE;
            if let Some(before) = &before {
                let at = M::push(own, &key, before)?;
                self.encoded += 1;
                place = self.place_of(at, &mut memory);
            }
            match entries.find_bucket_index(key.key_hash(), |(known, _)| *known == key) {
                Some(bucket) if memory.marks.is_on() => {
                    memory.marks.change(bucket);
                    if place != Place::NONE {
                        self.outdate(bucket, place, &mut memory)?;
                    }
                }
                _ => memory.files.note_dead(place),
            }
        }
        Ok(true)
    }
}

impl<K: Key, V: 'static, M: Kind<K, V>> HeapTable<K, V, M> {
    /// Cost: O(1) for a full checkpoint, else a 64th of the buckets.
    pub(super) fn begin_capture(&mut self) -> Result<()> {
        let pace = Pace { segment_bytes: self.segment_bytes(), ..M::pace(&self.context)? };
        let stepped = Stepped::new(&self.context)?;
        self.give_up_capture();
        if self.undecided.take().is_some() {
            // Nobody knows which segments are those of the last checkpoint.
            self.forget();
        }
        let range = HashRange::of(&self.context.owned, self.context.key_groups);
        let mut reading = Reading::of_all(self.context.account.clone(), range);
        if !self.plan_changes(pace.segment_bytes, &mut reading) {
            self.forget();
        }
        let (entries, telling) = (self.entries.len() as u64, None);
        self.capture = Some(Box::new(HeapCapture { stepped, pace, entries, reading, telling }));
        Ok(())
    }

    /// Bytes after which a segment ends.
    fn segment_bytes(&self) -> u64 {
        let values = self.context.account.used_for(MemoryKind::Values);
        let entry = size_of::<(K, V)>() as u64 + RECORD_BYTES;
        let bytes = self.entries.len() as u64 * entry + values;
        (bytes / SEGMENTS).clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX)
    }

    /// Has only changes read, if that is possible and gains something, and says whether.
    fn plan_changes(&mut self, segment_bytes: u64, reading: &mut Reading<K, V>) -> bool {
        if !self.marks.is_on() || self.files.is_broken() {
            return false;
        }
        let (entries, changed) = (self.entries.len() as u64, self.marks.count_changed());
        let Some(plan) = self.files.plan(entries, changed, segment_bytes) else { return false };
        let sets = if plan.makes_sets { self.files.sets_bytes(&plan) } else { 0 };
        let deaths = DEATH_BYTES * (self.files.dead().len() + plan.records);
        let bytes = bits_bytes(self.entries.num_buckets()) + sets + deaths + FREE_BYTES;
        let account = &self.context.account;
        let has_room = account.available() >= bytes + FREE_BYTES;
        if !has_room || !account.try_reserve(MemoryKind::Buffers, bytes) {
            return false;
        }
        reading.booked = bytes;
        let Some(dead) = self.files.take_dead(plan.records) else { return false };
        reading.dead = dead;
        if plan.makes_sets {
            reading.sets = self.files.empty_sets(&plan);
        }
        if plan.anew.contains(&true) {
            reading.anew = plan.anew;
        }
        reading.due = Some(self.marks.take_changed());
        (reading.is_full, reading.has_begun) = (false, true);
        true
    }

    /// Nothing of the last checkpoint is used by the next one.
    fn forget(&mut self) {
        self.marks.give_up();
        self.files.clear();
    }

    /// Gives the memory of the marks back, if no checkpoint needs them; says whether there were any.
    #[cold]
    pub(super) fn give_up_marks(&mut self) -> bool {
        let needs = |capture: &HeapCapture<K, V>| !capture.reading.is_full && capture.is_reading();
        if !self.marks.is_on() || self.capture.as_deref().is_some_and(needs) {
            return false;
        }
        self.marks.give_up();
        self.files.break_off();
        true
    }

    /// From the first step of a full checkpoint on, the table remembers it: what has changed before is
    /// kept.
    fn begin_marks(&mut self) {
        let Some(capture) = &mut self.capture else { return };
        let reading = &mut capture.reading;
        if std::mem::replace(&mut reading.has_begun, true) || reading.left.is_some() {
            return;
        }
        self.marks.begin(self.entries.num_buckets());
    }

    /// Does a bounded share; the image at the end.
    pub(super) fn continue_capture(&mut self, blobs: &BlobWriter) -> Result<Option<StateImage>> {
        self.share(blobs).map_err(|error| error.with("state", &self.context.name))
    }

    /// Takes a checkpoint in one call.
    pub(super) fn take_at_once(&mut self, blobs: &BlobWriter) -> Result<StateImage> {
        self.begin_capture()?;
        loop {
            match self.continue_capture(blobs) {
                Ok(Some(image)) => return Ok(image),
                Ok(None) => self.capture.iter_mut().for_each(|capture| capture.stepped.pause()),
                Err(error) => {
                    self.give_up_capture();
                    return Err(error);
                }
            }
        }
    }

    fn share(&mut self, blobs: &BlobWriter) -> Result<Option<StateImage>> {
        self.begin_marks();
        let Some(capture) = &mut self.capture else {
            return Err(Error::new(ErrorKind::Config, "no checkpoint was begun"));
        };
        if capture.telling.is_some() {
            return self.continue_telling();
        }
        let HeapCapture { stepped, pace, reading, .. } = &mut **capture;
        let sealed = stepped.step(&self.context, *pace, |own| {
            let memory = Memory { marks: &mut self.marks, files: &mut self.files };
            reading.read_part::<M>(&self.entries, memory, own)
        })?;
        match sealed {
            Some(sealed) => self.begin_telling(sealed, blobs),
            None => Ok(None),
        }
    }

    /// All is written: has the helper write which records of segments of before are live; the image, if
    /// there is nothing to be told of them.
    fn begin_telling(
        &mut self,
        sealed: Vec<SegmentInfo>,
        blobs: &BlobWriter,
    ) -> Result<Option<StateImage>> {
        let capture = self.capture.as_mut().expect("it is written");
        let HeapCapture { entries, reading, .. } = &mut **capture;
        let named = self.files.name(*entries, &reading.dead, &sealed, &reading.slots);
        let sets = std::mem::take(&mut reading.sets);
        if !sets.is_empty() && self.files.is_broken() {
            remove(&self.context, &sealed);
            let message = "which records are live could not be noted; begin the checkpoint again";
            return Err(Error::new(ErrorKind::OverBudget, message));
        }
        if reading.is_full || sets.is_empty() && reading.dead.places.len() == 0 {
            self.end_capture(named);
            return Ok(self.undecided_image());
        }
        let has_sets = !sets.is_empty();
        // Sets tell all of it.
        let ids = if has_sets { Vec::new() } else { self.files.ids(&named) };
        let sets = self.files.whole_sets(&named, sets);
        let lent = reading.dead.places.lend();
        let (blobs, (reply, answer)) = (blobs.clone(), bounded(1));
        self.context.helper.submit(move || {
            let death = |at: &Place| Some(Death::of((*ids.get(at.slot())?)?, at.grain()));
            let mut deaths: Vec<Death> = Vec::with_capacity(lent.iter().map(Vec::len).sum());
            deaths.extend(lent.iter().flatten().filter_map(death));
            let list = Death::write(&mut deaths, |_| true, &blobs);
            let write = |(slot, set): (usize, LiveSet)| Ok((slot, set.len(), set.write(&blobs)?));
            let sets = sets.into_iter().map(write).collect();
            let _ = reply.send(Told { list, sets, lent });
        });
        capture.telling = Some(Telling { sealed, named, has_sets, answer, is_over: false });
        Ok(None)
    }

    fn continue_telling(&mut self) -> Result<Option<StateImage>> {
        self.context.helper.drive();
        let capture = self.capture.as_mut().expect("it is told of");
        let telling = capture.telling.as_mut().expect("it is told of");
        let told = match telling.answer.try_recv() {
            Ok(told) => told,
            Err(TryRecvError::Empty) => return Ok(None),
            Err(TryRecvError::Disconnected) => {
                let message = "the helper lost which records are live; begin the checkpoint again";
                return Err(Error::new(ErrorKind::Io, message));
            }
        };
        capture.reading.dead.places.give_back(told.lent);
        telling.is_over = true;
        let (list, sets) = (told.list?, told.sets?);
        let Telling { mut named, has_sets, .. } = capture.telling.take().expect("looked at above");
        if has_sets {
            named.image.deaths = Vec::new();
        }
        named.image.deaths.extend(list);
        for (slot, live, blob) in sets {
            let nth = named.slots.iter().position(|of| *of == Some(slot)).expect("it is named");
            let segment = &mut named.image.segments[nth];
            assert_eq!(live, segment.live_records, "every key has one live record: {segment:?}");
            segment.live = Some(blob);
        }
        self.end_capture(named);
        Ok(self.undecided_image())
    }

    fn undecided_image(&self) -> Option<StateImage> {
        self.undecided.as_ref().map(|undecided| undecided.named.image.clone())
    }

    /// The checkpoint is taken.
    fn end_capture(&mut self, named: Named) {
        let HeapCapture { mut reading, .. } = *self.capture.take().expect("it was taken");
        self.codec_calls += reading.encoded;
        self.images.taken(&named.image);
        let dead = std::mem::replace(&mut reading.dead, Dead::none(self.context.account.clone()));
        let is_full = reading.is_full;
        self.undecided = Some(Box::new(Undecided { named, dead, is_full }));
    }

    /// Gives up the checkpoint that is being taken, if one is.
    fn give_up_capture(&mut self) {
        let Some(mut capture) = self.capture.take() else { return };
        if let Some(Telling { sealed, answer, is_over, .. }) = capture.telling.take() {
            // Nothing is to be written once it is given up. What a thread does next comes after that.
            while self.context.helper.is_inline() && self.context.helper.drive() {}
            match answer.try_recv() {
                Ok(told) => capture.reading.dead.places.give_back(told.lent),
                Err(_) if is_over => {}
                Err(_) => self.files.break_off(),
            }
            remove(&self.context, &sealed);
        }
        let reading = &mut capture.reading;
        if let Some(due) = &reading.due {
            self.marks.give_back(due, reading.next);
        }
        let dead = std::mem::replace(&mut reading.dead, Dead::none(self.context.account.clone()));
        self.go_back(reading.is_full, dead);
    }

    /// What a checkpoint has written is of no use.
    fn go_back(&mut self, is_full: bool, dead: Dead) {
        if is_full || !self.marks.is_on() || self.files.is_broken() {
            self.forget();
        } else {
            self.files.given_up(dead);
        }
    }

    /// What became of the checkpoint.
    pub(super) fn decide_capture(&mut self, outcome: CheckpointOutcome) {
        self.give_up_capture();
        let Some(Undecided { named, dead, is_full }) = self.undecided.take().map(|u| *u) else {
            return;
        };
        match outcome {
            CheckpointOutcome::Committed if self.marks.is_on() && !self.files.is_broken() => {
                self.files.confirmed(named);
            }
            CheckpointOutcome::Abandoned => self.go_back(is_full, dead),
            // Those that it names are not known to be there, or not remembered.
            CheckpointOutcome::Committed | CheckpointOutcome::Unknown => self.forget(),
        }
    }

    /// Keeps what a key has, which is about to change; or that it has nothing, if it is added.
    #[cold]
    #[inline(never)]
    pub(super) fn keep<Q: Lookup<K> + ?Sized>(&mut self, hash: u64, key: &Q, adds: bool) {
        let Some(capture) = self.capture.as_mut().filter(|capture| capture.is_reading()) else {
            return;
        };
        let bucket = self.entries.find_bucket_index(hash, |(known, _)| key.is(known));
        let HeapCapture { reading: capture, stepped, .. } = &mut **capture;
        let wanted = match bucket {
            Some(bucket) => capture.is_due(bucket, self.marks.place(bucket)),
            // Once there are bits, those that are to be read are known.
            None => adds && capture.due.is_none(),
        };
        if !wanted || capture.kept.find(hash, |kept| key.is(&kept.0)).is_some() {
            return;
        }
        let entry = bucket.and_then(|bucket| self.entries.get_bucket(bucket));
        let before = entry.and_then(|(_, value)| M::copy(value));
        let key = key.to_owned();
        let bytes = match &before {
            Some(value) => M::heap_bytes(&key, value),
            None => key.heap_bytes() as u64,
        };
        let room = capture.account.available() >= bytes + FREE_BYTES;
        if room {
            capture.book(bytes);
        }
        let made =
            room && capture.kept.insert(hash, |kept| kept.0.key_hash(), || (key, before)).is_ok();
        if !made {
            return self.read_rest();
        }
        let Some(bucket) = bucket else { return };
        if let Some(due) = &mut capture.due {
            // What comes to its place is not to be read.
            due[bucket / 64] &= !(1 << (bucket % 64));
        }
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
        self.begin_marks();
        let Some(capture) = &mut self.capture else { return };
        let HeapCapture { stepped, pace, reading, .. } = &mut **capture;
        stepped.read_rest(&self.context, *pace, |own| {
            let memory = Memory { marks: &mut self.marks, files: &mut self.files };
            Ok(!reading.is_read && reading.read_part::<M>(&self.entries, memory, own)?)
        });
        if stepped.is_lost() {
            reading.drop_left();
        }
    }

    /// Moves the entries to a table twice as large, if it is known of each whether it is to be read or
    /// has changed, and says whether it did. What that takes is booked, and as much left as is needed
    /// `beside` it.
    pub(super) fn grow_remembered(&mut self, beside: u64) -> bool {
        let is_reading = self.capture.as_ref().is_some_and(|capture| capture.is_reading());
        if is_reading {
            // From here on, what is added is not kept.
            self.begin_marks();
        }
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
        if let Some(capture) = &mut self.capture
            && capture.stepped.is_lost()
            && let Some(due) = capture.reading.due.take()
        {
            // Of these buckets.
            self.marks.give_back(&due, capture.reading.next);
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
            let is_due = capture.as_ref().is_some_and(|capture| {
                capture.reading.is_due(bucket, self.marks.place(bucket))
                    && capture.reading.kept.find(hash, |kept| kept.0 == entry.0).is_none()
            });
            let place = grown.insert_unique(hash, entry, |(key, _)| key.key_hash()).bucket_index();
            marks.move_from(place, &self.marks, bucket);
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

    /// The table is cleared: says whether a checkpoint takes it, with what is booked for it. Nothing is
    /// remembered of it.
    pub(super) fn leave(&mut self) -> bool {
        let marks = Marks::off(self.context.account.clone());
        let marks = std::mem::replace(&mut self.marks, marks);
        let Some(capture) = self.capture.as_mut().filter(|capture| capture.is_reading()) else {
            self.files.break_off();
            return false;
        };
        let values = self.context.account.used_for(MemoryKind::Values);
        let table = std::mem::take(&mut self.entries);
        let index = std::mem::take(&mut self.table_bytes);
        capture.reading.has_begun = true;
        capture.reading.left = Some(Left { table, marks, index, values });
        true
    }
}

/// Removes segments that were written for nothing. One that cannot be removed now is removed at the next
/// open.
fn remove(context: &crate::table::StateContext, segments: &[SegmentInfo]) {
    for segment in segments {
        let _ = context.segments.as_ref().map(|store| store.remove(segment.id));
    }
}
