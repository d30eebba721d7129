//! Taking a checkpoint of lists on the heap while they change.
//!
//! At the barrier nothing is copied, and no key is looked at. Buckets are read one after the other, part
//! by part in the order of hashes. Of each list what has come is written, and what has to be written with it
//! (see `heap_lists_records.rs`); segments of before are named again, as those of tables are (`heap_files.rs`). A list
//! that grows before it was read keeps, as a note, how many
//! elements it had: they are the first of it. One that is cleared is handed over as it is; of one that
//! moves what is to be written is copied. What is noted of a part is written after it, a record at a time, and so are lists
//! that the batch had no room for.
//!
//! What it keeps true:
//! - The image has of each list of the barrier its elements, once, in order of segments and then of records.
//! - A bucket that is purged stays until it was read; the memory it holds is booked as before.
//! - What was purged before the barrier, and stands there still, is not in the image: it is dropped by the first shares.
//! - Records that are written anew are dead for this checkpoint; those whose list goes meanwhile, for the next one.
//! - If there is no room for a note or a copy, or memory is needed that a purged bucket holds, all that
//!   is left is read and written at once; if that fails, the checkpoint does.

use std::collections::BTreeMap;
use std::rc::Rc;

use alluvium_pagestore::{
    Account, BlobWriter, Error, ErrorKind, HeapSize, Key, KeyHash, Lookup, MemoryKind, Result,
    SegmentInfo, State, StateImage, Time, rounded,
};

use crate::full_image::pace;
use crate::heap_capture::segment_bytes;
use crate::heap_files::{Dead, HeapFiles, Named};
use crate::heap_lists::{Bucket, HeapLists, List, add_record, hash_of};
use crate::heap_lists_records::{Due, Record, Records};
use crate::heap_marks::Place;
use crate::heap_naming::{Begun, FREE_BYTES, Naming};
use crate::heap_telling::Telling;
use crate::paced::{Pace, Paced};
use crate::split_table::{HashRange, SplitTable};
use crate::stepped::Stepped;
use crate::table::CheckpointOutcome;

/// Most elements of a list in one record.
const RECORD_ELEMENTS: usize = 1024;
/// Bytes booked for a bucket at the barrier.
const BUCKET_BYTES: u64 = 320;

/// A checkpoint being taken.
#[derive(Debug)]
pub struct ListsCapture<K, E> {
    stepped: Stepped,
    pace: Pace,
    /// Whether it is decided what is to be read: nothing has changed since the barrier before that.
    is_planned: bool,
    /// Lists that have changed, at most.
    changed: u64,
    reading: Reading<K, E>,
    /// All is written.
    telling: Option<Telling>,
}

/// A checkpoint that was taken and is not decided yet.
#[derive(Debug)]
pub struct Undecided {
    named: Named,
    dead: Dead,
    is_first: bool,
    changed: u64,
}

/// What is to be read still.
#[derive(Debug)]
struct Reading<K, E> {
    account: Rc<Account>,
    range: HashRange,
    /// The buckets of the barrier.
    times: Vec<Time>,
    /// Of these, the one that is read next.
    next: usize,
    /// Buckets that were purged and are not read.
    gone: BTreeMap<Time, Bucket<K, E>>,
    /// Buckets that were purged before the barrier, to be dropped.
    purged: Vec<Bucket<K, E>>,
    /// Bytes after which a record ends.
    record_bytes: usize,
    /// What is left is read in one call: nothing is noted for later.
    at_once: bool,
    encoded: u64,
    booked: u64,
    /// Of the records of lists.
    epoch: u32,
    naming: Naming,
}

/// What is read, and what is remembered of it.
struct Source<'a, K, E> {
    buckets: &'a mut BTreeMap<Time, Bucket<K, E>>,
    files: &'a mut HeapFiles,
    changed: &'a mut u64,
}

/// What is to be read of a bucket still.
#[derive(Debug)]
pub struct Captured<K, E> {
    account: Rc<Account>,
    range: HashRange,
    /// The first place whose part was not read.
    next: Option<u64>,
    /// Notes of the parts before this place are written.
    written: u64,
    notes: SplitTable<Note<K, E>>,
    /// Booked for what notes own.
    booked: u64,
}

/// Elements of a list that are to be written: of the list itself, if it is where it was.
#[derive(Debug)]
struct Note<K, E> {
    key: K,
    from: usize,
    until: usize,
    /// Records before these that are kept.
    keeps: usize,
    /// Elements that were kept, and the number of the first.
    left: Option<(usize, Vec<E>)>,
    /// Records that are written anew are noted as dead.
    has_begun: bool,
    /// The list is not there any more.
    is_gone: bool,
}

fn hash_of_note<K: Key, E>(note: &Note<K, E>) -> u64 {
    note.key.key_hash()
}

impl<K, E> Captured<K, E> {
    fn new(account: &Rc<Account>, range: HashRange) -> Self {
        let notes = SplitTable::new(account.clone(), range);
        Self { account: account.clone(), range, next: Some(0), written: 0, notes, booked: 0 }
    }

    fn book(&mut self, bytes: u64) {
        self.account.charge(MemoryKind::Buffers, bytes);
        self.booked += bytes;
    }

    fn give_back(&mut self, bytes: u64) {
        self.account.release(MemoryKind::Buffers, bytes);
        self.booked -= bytes;
    }
}

impl<K: Key, E: State> Captured<K, E> {
    /// Whether a list has to be noted before it changes.
    fn wants<Q: Lookup<K> + ?Sized>(&self, hash: u64, key: &Q) -> bool {
        self.next.is_some_and(|next| self.range.place(hash) >= next)
            && self.notes.find(hash, |note| key.is(&note.key)).is_none()
    }

    /// Notes what is to be written of a list of `len` elements; says whether there was room.
    fn note(&mut self, hash: u64, key: K, len: usize, due: Due) -> bool {
        let bytes = key.heap_bytes() as u64;
        if self.account.available() < bytes + FREE_BYTES {
            return false;
        }
        // Booked before the table grows into it.
        self.book(bytes);
        let Due { from, keeps } = due;
        let (has_begun, is_gone) = (false, false);
        let make = || Note { key, from, until: len, keeps, left: None, has_begun, is_gone };
        let is_made = self.notes.insert(hash, hash_of_note, make).is_ok();
        if !is_made {
            self.give_back(bytes);
        }
        is_made
    }

    /// The key of a note that is to be written now, if there is one.
    fn noted(&mut self) -> Option<K> {
        let is_due = |place: u64| self.next.is_none_or(|next| place < next);
        let mut place = Some(self.written).filter(|place| is_due(*place));
        while let Some(at) = place {
            let (mut part, after) = self.notes.part_at(at);
            if let Some(note) = part.find(|note| is_due(self.range.place(hash_of_note(note)))) {
                return Some(note.key.clone());
            }
            place = after.filter(|after| is_due(*after));
            self.written = place.or(self.next).unwrap_or(u64::MAX);
        }
        None
    }

    fn forget(&mut self, hash: u64, key: &K) {
        let Some(note) = self.notes.remove(hash, |note| note.key == *key) else { return };
        let left = note.left.as_ref().map_or(0, |(_, left)| left.heap_bytes());
        let bytes = (note.key.heap_bytes() + left) as u64;
        drop(note);
        self.give_back(bytes);
    }
}

impl<K, E> Drop for Captured<K, E> {
    fn drop(&mut self) {
        self.account.release(MemoryKind::Buffers, self.booked);
    }
}

impl<K: Key, E: State> Reading<K, E> {
    /// Due elements of a list, and the records that are kept.
    fn due(&self, list: &List<K, E>) -> Due {
        Due::of(&list.elements, list.records.of(self.epoch), &self.naming.anew, self.record_bytes)
    }

    /// Begins to write what is due of a list behind the records that it keeps: the others are dead.
    fn begin_list(
        &mut self,
        (records, values): (&mut Records, &mut u64),
        keeps: usize,
        files: &mut HeapFiles,
    ) -> Result<()> {
        let before = records.memory_bytes();
        let outdated = records.split_off(self.epoch, keeps);
        let after = records.memory_bytes();
        self.account.adjust(MemoryKind::Values, before, after);
        *values = *values + after - before;
        outdated.iter().try_for_each(|record| self.naming.outdate(record.place, files))
    }

    /// Writes a record of a part or all of what is due of a list; with no place if that cannot be remembered.
    fn write(
        &mut self,
        own: &mut Paced,
        key: (Time, &K),
        due: &[E],
        files: &mut HeapFiles,
    ) -> Result<Record> {
        let part = &due[..record_elements(due, self.record_bytes)];
        let key = (key.0, key.1.clone());
        let at = own.place(key.key_hash(), &key, &part.to_vec())?;
        self.encoded += 1;
        let place = self.naming.place_of(at, files);
        Ok(Record { place, elements: part.len() as u32 })
    }

    /// A list remembers a record. Without room for that, the next checkpoint is full.
    fn remember(
        &self,
        (records, values): (&mut Records, &mut u64),
        record: Record,
        files: &mut HeapFiles,
    ) {
        let is_known = record.place != Place::NONE
            && add_record(&self.account, values, records, (self.epoch, record));
        if !is_known {
            files.break_off();
        }
    }

    /// Reads some lists, or what was noted of one; says whether there was anything.
    fn read_part(&mut self, source: Source<'_, K, E>, own: &mut Paced) -> Result<bool> {
        let Source { buckets, files, changed } = source;
        if let Some(bucket) = self.purged.pop() {
            return self.drop_purged(bucket, files).map(|()| true);
        }
        let Some(&time) = self.times.get(self.next) else { return Ok(false) };
        let is_gone = self.gone.contains_key(&time);
        let mut gone = if is_gone { self.gone.remove(&time) } else { None };
        let bucket = gone.as_mut().or_else(|| buckets.get_mut(&time));
        let of = (files, changed);
        let (files, read) = match bucket {
            Some(bucket) => {
                let (files, changed) = of;
                let read = self.read_bucket(time, bucket, (&mut *files, changed), own);
                (files, read)
            }
            None => (of.0, Ok(false)),
        };
        let has_more = matches!(read, Ok(true));
        match gone {
            Some(gone) if has_more => drop(self.gone.insert(time, gone)),
            Some(gone) => {
                gone.for_each_record(self.epoch, &mut |place| files.note_dead(place));
                gone.release(&self.account);
            }
            None => {}
        }
        self.next += usize::from(!has_more);
        read.map(|_| true)
    }

    /// Drops a bucket that was purged before the barrier: its records are not live in this checkpoint.
    fn drop_purged(&mut self, bucket: Bucket<K, E>, files: &mut HeapFiles) -> Result<()> {
        let mut noted = Ok(());
        bucket.for_each_record(self.epoch, &mut |place| {
            let this = self.naming.outdate(place, files);
            if noted.is_ok() {
                noted = this;
            }
        });
        bucket.release(&self.account);
        noted
    }

    /// Reads a part of a bucket, or what was noted of a list; says whether there was anything.
    fn read_bucket(
        &mut self,
        time: Time,
        bucket: &mut Bucket<K, E>,
        (files, changed): (&mut HeapFiles, &mut u64),
        own: &mut Paced,
    ) -> Result<bool> {
        let Bucket { lists, captured: slot, values, .. } = bucket;
        let Some(captured) = slot else { return Ok(false) };
        if let Some(key) = captured.noted() {
            let hash = key.key_hash();
            let note = captured.notes.find_mut(hash, |note| note.key == key).expect("found above");
            let mut there = match note.is_gone {
                true => None,
                false => lists.find_mut(hash, |list| list.key == key),
            };
            if !std::mem::replace(&mut note.has_begun, true)
                && let Some(list) = &mut there
            {
                let kept = list.records.of(self.epoch).iter().take(note.keeps);
                kept.for_each(|record| self.naming.sets.insert(record.place));
                if note.from < note.until {
                    self.begin_list((&mut list.records, values), note.keeps, files)?;
                }
            }
            if note.from < note.until {
                let due = match (&note.left, &there) {
                    (Some((first, left)), _) => &left[note.from - first..note.until - first],
                    (None, Some(list)) => &list.elements[note.from..note.until],
                    (None, None) => unreachable!("it is there or was kept"),
                };
                let record = self.write(own, (time, &key), due, files)?;
                note.from += record.elements as usize;
                match &mut there {
                    Some(list) => self.remember((&mut list.records, values), record, files),
                    None => files.note_dead(record.place),
                }
                let has_more = there.is_some_and(|list| list.elements.len() > note.until);
                *changed += u64::from(note.from == note.until && has_more);
            }
            if note.from == note.until {
                captured.forget(hash, &key);
            }
            return Ok(true);
        }
        let Some(next) = captured.next else {
            *slot = None;
            return Ok(false);
        };
        let (part, end) = lists.buckets_at(next);
        for at in part {
            let Some(list) = lists.get_bucket_mut(at) else { continue };
            let hash = hash_of(list);
            let is_new = self.range.place(hash) >= next;
            if !is_new || captured.notes.find(hash, |note| note.key == list.key).is_some() {
                continue;
            }
            let (due, len) = (self.due(list), list.elements.len());
            let rest = &list.elements[due.from..];
            if !rest.is_empty() {
                let is_short = record_elements(rest, self.record_bytes) == rest.len();
                let goes_now = self.at_once || (is_short && own.has_room());
                if !goes_now && captured.note(hash, list.key.clone(), len, due) {
                    continue;
                }
                self.begin_list((&mut list.records, values), due.keeps, files)?;
            }
            if !self.naming.sets.is_empty() {
                let kept = list.records.of(self.epoch).iter();
                kept.for_each(|record| self.naming.sets.insert(record.place));
            }
            let mut from = due.from;
            while from < len {
                let record = self.write(own, (time, &list.key), &list.elements[from..], files)?;
                self.remember((&mut list.records, values), record, files);
                from += record.elements as usize;
            }
        }
        captured.next = end;
        Ok(true)
    }
}

impl<K, E> Reading<K, E> {
    /// Takes the buckets out that were purged.
    fn take_gone(&mut self) -> impl Iterator<Item = Bucket<K, E>> + use<K, E> {
        let (gone, purged) = (std::mem::take(&mut self.gone), std::mem::take(&mut self.purged));
        gone.into_values().chain(purged)
    }

    fn book(&mut self, bytes: u64) {
        self.account.charge(MemoryKind::Buffers, bytes);
        self.booked += bytes;
    }
}

impl<K, E> Drop for Reading<K, E> {
    fn drop(&mut self) {
        self.take_gone().for_each(|bucket| bucket.release(&self.account));
        self.account.release(MemoryKind::Buffers, self.booked);
    }
}

/// How many of these elements make a record: one at least, if there is one.
pub(super) fn record_elements<E: State>(list: &[E], bytes_max: usize) -> usize {
    let most = list.len().min(RECORD_ELEMENTS);
    if E::NONE {
        return most.min((bytes_max / size_of::<E>().max(1)).max(1));
    }
    let mut bytes = 0;
    let fits = |element: &&E| {
        let has_room = bytes < bytes_max;
        bytes += size_of::<E>() + element.heap_bytes();
        has_room
    };
    list[..most].iter().take_while(fits).count()
}

impl<K: Key, E: State> HeapLists<K, E> {
    /// Cost: that of the buckets.
    pub(super) fn begin_capture(&mut self) -> Result<()> {
        let stepped = Stepped::new(&self.context)?;
        self.give_up_capture();
        if self.undecided.take().is_some() {
            // Nobody knows which segments are those of the last checkpoint.
            self.files.break_off();
        }
        let account = self.context.account.clone();
        let values = self.buckets.values().map(|bucket| bucket.values).sum();
        let pace = Pace { segment_bytes: segment_bytes(values), ..self.pace() };
        // A record is copied before it is encoded.
        let booked = self.buckets.len() as u64 * BUCKET_BYTES + pace.value_bytes;
        account.reserve(MemoryKind::Buffers, booked, "a checkpoint's buckets")?;
        for bucket in self.buckets.values_mut() {
            bucket.captured = Some(Box::new(Captured::new(&account, self.range)));
        }
        let reading = Reading {
            naming: Naming::first(account.clone()),
            account,
            range: self.range,
            times: self.buckets.keys().copied().collect(),
            next: 0,
            gone: BTreeMap::new(),
            purged: std::mem::take(&mut self.purged),
            record_bytes: record_bytes(&pace),
            at_once: false,
            encoded: 0,
            booked,
            epoch: self.epoch,
        };
        self.capture = Some(Box::new(ListsCapture {
            stepped,
            pace,
            is_planned: false,
            changed: 0,
            reading,
            telling: None,
        }));
        Ok(())
    }

    /// Decides what the checkpoint that was begun writes, if that is not decided: before anything changes. Cost: in the
    /// number of segments.
    pub(super) fn plan_capture(&mut self) {
        let is_planned = self.capture.as_ref().is_none_or(|capture| capture.is_planned);
        if is_planned {
            return;
        }
        if let Some(lent) = self.lent.take() {
            lent.take_back(&self.context.helper, &mut self.files);
        }
        let is_first = !self.remembers || self.files.is_broken();
        if is_first {
            self.forget();
            self.remembers = true;
        }
        let Some(capture) = &mut self.capture else { return };
        let ListsCapture { pace, reading, .. } = &mut **capture;
        let changed = std::mem::take(&mut self.changed);
        reading.epoch = self.epoch;
        if !is_first {
            let counts = (self.files.live_records() + changed, changed);
            let account = &self.context.account;
            let begun = Begun::of(&mut self.files, account, counts, pace.segment_bytes);
            reading.book(begun.bytes);
            reading.naming = begun.naming;
        }
        (capture.is_planned, capture.changed) = (true, changed);
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
        self.plan_capture();
        let Some(capture) = &mut self.capture else {
            return Err(Error::new(ErrorKind::Config, "no checkpoint was begun"));
        };
        capture.stepped.check()?;
        if capture.telling.is_some() {
            return self.tell_some(blobs);
        }
        let ListsCapture { stepped, pace, reading, .. } = &mut **capture;
        let Self { buckets, files, changed, .. } = self;
        let sealed = stepped.step(&self.context, *pace, |own| {
            let (files, changed) = (&mut *files, &mut *changed);
            reading.read_part(Source { buckets, files, changed }, own)
        })?;
        match sealed {
            Some(sealed) => {
                self.begin_telling(sealed);
                self.tell_some(blobs)
            }
            None => Ok(None),
        }
    }

    /// All is written.
    fn begin_telling(&mut self, sealed: Vec<SegmentInfo>) {
        let capture = self.capture.as_mut().expect("it is written");
        let naming = &capture.reading.naming;
        let live = self.files.count_live(&naming.dead, &sealed);
        let named = self.files.name(live, &naming.dead, &sealed, &naming.slots);
        capture.telling = Some(Telling::new(&self.files, named, sealed));
    }

    /// Goes on telling which records of segments of before are live; the image, if all is told.
    fn tell_some(&mut self, blobs: &BlobWriter) -> Result<Option<StateImage>> {
        let capture = self.capture.as_mut().expect("it is told of");
        let ListsCapture { stepped, reading, telling, .. } = &mut **capture;
        let telling = telling.as_mut().expect("it is told of");
        let told = telling.share((&self.context, &self.files), &mut reading.naming, blobs);
        let is_told = told.inspect_err(|_| stepped.lose())?;
        Ok(is_told.then(|| self.end_capture()))
    }

    /// The checkpoint is taken.
    fn end_capture(&mut self) -> StateImage {
        let ListsCapture { mut reading, changed, telling, .. } =
            *self.capture.take().expect("it was taken");
        let named = telling.expect("it is told of").into_named();
        self.buckets.values_mut().for_each(|bucket| bucket.captured = None);
        self.codec_calls += reading.encoded;
        self.images.taken(&named.image);
        let Naming { is_first, .. } = reading.naming;
        let dead = reading.naming.take_dead(&self.context.account);
        let image = named.image.clone();
        self.undecided = Some(Box::new(Undecided { named, dead, is_first, changed }));
        image
    }

    /// Gives up the checkpoint that is being taken, if one is. Cost: also that of the buckets that it holds.
    fn give_up_capture(&mut self) {
        let Some(mut capture) = self.capture.take() else { return };
        self.buckets.values_mut().for_each(|bucket| bucket.captured = None);
        capture.reading.take_gone().for_each(|bucket| self.release(bucket));
        if !capture.is_planned {
            return;
        }
        let Naming { is_first, .. } = capture.reading.naming;
        let dead = capture.reading.naming.take_dead(&self.context.account);
        if let Some(telling) = capture.telling.take() {
            self.lent = telling.give_up(&self.context);
        }
        self.go_back(is_first, capture.changed, dead);
    }

    /// What a checkpoint has written is of no use.
    fn go_back(&mut self, is_first: bool, changed: u64, dead: Dead) {
        if is_first || !self.remembers || self.files.is_broken() {
            self.forget();
        } else {
            // They count as changed again.
            self.files.given_up(dead, 0);
            self.changed += changed;
        }
    }

    /// What became of the checkpoint.
    pub(super) fn decide_capture(&mut self, outcome: CheckpointOutcome) {
        self.give_up_capture();
        let Some(undecided) = self.undecided.take() else { return };
        let Undecided { named, dead, is_first, changed } = *undecided;
        match outcome {
            CheckpointOutcome::Committed if self.remembers && !self.files.is_broken() => {
                self.files.confirmed(named);
            }
            CheckpointOutcome::Abandoned => self.go_back(is_first, changed, dead),
            // Those that it names are not known to be there, or not remembered.
            CheckpointOutcome::Committed | CheckpointOutcome::Unknown => self.forget(),
        }
    }

    fn pace(&self) -> Pace {
        let pace = pace::<(Time, K), Vec<E>>(&self.context);
        let element = if E::NONE { 0 } else { self.context.max_value_bytes };
        Pace { value_bytes: record_bytes(&pace) as u64 + element + 256, ..pace }
    }

    /// A list is about to change: notes what it has, if it was not read.
    #[cold]
    #[inline(never)]
    pub(super) fn note<Q: Lookup<K> + ?Sized>(&mut self, bucket: Time, hash: u64, key: &Q) {
        self.plan_capture();
        let Some(capture) = &self.capture else { return };
        let Some(Bucket { lists, captured: Some(captured), .. }) = self.buckets.get_mut(&bucket)
        else {
            return;
        };
        if captured.wants(hash, key) {
            let list = lists.find(hash, |list| key.is(&list.key));
            let due = list.map_or(Due { from: 0, keeps: 0 }, |list| capture.reading.due(list));
            let len = list.map_or(0, |list| list.elements.len());
            if !captured.note(hash, key.to_owned(), len, due) {
                self.read_rest();
            }
        }
    }

    /// A list is gone, or all of it moves, after it was [noted](HeapLists::note): its records are not live any more.
    /// Those that the checkpoint writes anew are dead in it.
    pub(super) fn let_go(&mut self, bucket: Time, hash: u64, key: &K, records: &Records) {
        let mut live = records.of(self.epoch);
        let captured = self.buckets.get_mut(&bucket).and_then(|b| b.captured.as_mut());
        let note = captured.and_then(|it| it.notes.find_mut(hash, |note| note.key == *key));
        if let (Some(note), Some(capture)) = (note.filter(|note| !note.is_gone), &mut self.capture)
        {
            note.is_gone = true;
            let is_due = note.from < note.until;
            if !std::mem::replace(&mut note.has_begun, true) && is_due {
                let (kept, outdated) = live.split_at(note.keeps.min(live.len()));
                live = kept;
                for record in outdated {
                    let noted = capture.reading.naming.outdate(record.place, &mut self.files);
                    if noted.is_err() {
                        capture.stepped.lose();
                    }
                }
            }
        }
        live.iter().for_each(|record| self.files.note_dead(record.place));
    }

    /// A list was taken out of its bucket, and [noted](HeapLists::note) before: it is kept, if it is to
    /// be written.
    pub(super) fn keep(&mut self, bucket: Time, hash: u64, key: &K, list: Vec<E>) {
        let captured = self.buckets.get_mut(&bucket).and_then(|b| b.captured.as_mut());
        let Some(captured) = captured else { return };
        let note = captured.notes.find_mut(hash, |note| note.key == *key);
        if let Some(note) = note.filter(|note| note.left.is_none() && note.from < note.until) {
            // What was booked for it in the bucket was given back when it was taken out.
            let bytes = list.heap_bytes() as u64;
            note.left = Some((0, list));
            captured.book(bytes);
        }
    }

    /// A list is about to move, or to get elements before those it has: copies what is to be written.
    pub(super) fn keep_copy<Q: Lookup<K> + ?Sized>(&mut self, bucket: Time, hash: u64, key: &Q) {
        self.note(bucket, hash, key);
        let Some(Bucket { lists, captured: Some(captured), .. }) = self.buckets.get_mut(&bucket)
        else {
            return;
        };
        let note = captured.notes.find_mut(hash, |note| key.is(&note.key));
        let note = note.filter(|note| note.left.is_none() && note.from < note.until);
        let list = lists.find(hash, |list| key.is(&list.key));
        let (Some(note), Some(list)) = (note, list) else { return };
        let due = &list.elements[note.from..note.until];
        let owned: usize = if E::NONE { 0 } else { due.iter().map(E::heap_bytes).sum() };
        let most = (rounded(size_of_val(due)) + owned) as u64;
        if captured.account.available() < most + FREE_BYTES {
            return self.read_rest();
        }
        let copy = due.to_vec();
        let bytes = copy.heap_bytes() as u64;
        note.left = Some((note.from, copy));
        captured.book(bytes);
    }

    /// A bucket is gone: gives it to the checkpoint that has not read it, or back.
    pub(super) fn leave(&mut self, time: Time, bucket: Bucket<K, E>) -> Option<Bucket<K, E>> {
        match &mut self.capture {
            Some(capture) if bucket.captured.is_some() => {
                capture.reading.gone.insert(time, bucket);
                None
            }
            _ => Some(bucket),
        }
    }

    /// Has what a checkpoint holds of purged buckets read, and given back, or gives up what is noted of dead records; says
    /// whether there was any.
    pub(super) fn make_way(&mut self) -> bool {
        let holds = |capture: &ListsCapture<K, E>| {
            let Reading { gone, purged, .. } = &capture.reading;
            !gone.is_empty() || !purged.is_empty()
        };
        let is_held = self.capture.as_ref().is_some_and(|capture| holds(capture));
        if is_held {
            self.read_rest();
            return true;
        }
        let is_needed = self.capture.is_some() || self.undecided.is_some();
        let has_noted = !is_needed && self.files.dead().len() > 0;
        if has_noted {
            self.files.break_off();
        }
        has_noted
    }

    /// Reads all that is not read yet and has it written, at once. If that fails, the checkpoint
    /// does.
    #[cold]
    fn read_rest(&mut self) {
        self.plan_capture();
        let Some(capture) = &mut self.capture else { return };
        let ListsCapture { stepped, pace, reading, .. } = &mut **capture;
        let Self { buckets, files, changed, .. } = self;
        reading.at_once = true;
        stepped.read_rest(&self.context, *pace, |own| {
            let (files, changed) = (&mut *files, &mut *changed);
            reading.read_part(Source { buckets, files, changed }, own)
        });
        if stepped.is_lost() {
            self.buckets.values_mut().for_each(|bucket| bucket.captured = None);
            capture.reading.take_gone().for_each(|bucket| self.release(bucket));
        }
    }
}

/// Bytes after which a record ends: some of them fit into a batch.
fn record_bytes(pace: &Pace) -> usize {
    pace.batch_bytes / 4
}
