//! Taking a checkpoint of lists on the heap while they change.
//!
//! At the barrier nothing is copied, and no key is looked at. Buckets are read one after the other, part
//! by part in the order of hashes. A list that grows before it was read keeps, as a note, how many
//! elements it had: they are the first of it. One that is cleared is handed over as it is; one that
//! moves is copied. What is noted of a part is written after it, a record at a time, and so are lists
//! that the batch had no room for.
//!
//! What it keeps true:
//! - The image has of each list of the barrier its elements, once and in order.
//! - A bucket that is purged stays until it was read; the memory it holds is booked as before.
//! - If there is no room for a note or a copy, or memory is needed that a purged bucket holds, all that
//!   is left is read and written at once; if that fails, the checkpoint does.

use std::collections::BTreeMap;
use std::rc::Rc;

use alluvium_pagestore::{
    Account, HeapSize, Key, KeyHash, Lookup, MemoryKind, Result, SegmentInfo, State, StateImage,
    Time, rounded,
};

use crate::full_image::pace;
use crate::heap_lists::{Bucket, HeapLists, hash_of};
use crate::paced::{Pace, Paced};
use crate::split_table::{HashRange, SplitTable};
use crate::stepped::{InSteps, Stepped};
use crate::table::StateContext;

/// Most elements of a list in one record.
const RECORD_ELEMENTS: usize = 1024;
/// Bytes booked for a bucket at the barrier.
const BUCKET_BYTES: u64 = 320;
/// Bytes that are left free beside what is kept.
const FREE_BYTES: u64 = 4 << 10;

/// A checkpoint being taken.
#[derive(Debug)]
pub struct ListsCapture<K, E> {
    stepped: Stepped,
    reading: Reading<K, E>,
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
    /// Bytes after which a record ends.
    record_bytes: usize,
    /// What is left is read in one call: nothing is noted for later.
    at_once: bool,
    records: u64,
    booked: u64,
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
    left: Option<Vec<E>>,
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

    /// Notes that the list has `len` elements which are to be written; says whether there was room.
    fn note(&mut self, hash: u64, key: K, len: usize) -> bool {
        let bytes = key.heap_bytes() as u64;
        if self.account.available() < bytes + FREE_BYTES {
            return false;
        }
        // Booked before the table grows into it.
        self.book(bytes);
        let make = || Note { key, from: 0, until: len, left: None };
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
        let left = note.left.as_ref().map_or(0, HeapSize::heap_bytes);
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
    /// Writes a record of a part or all of a list; says how many elements it has.
    fn write(&mut self, own: &mut Paced, key: (Time, &K), list: &[E]) -> Result<usize> {
        let part = &list[..record_elements(list, self.record_bytes)];
        let key = (key.0, key.1.clone());
        own.push(key.key_hash(), &key, &part.to_vec())?;
        self.records += 1;
        Ok(part.len())
    }

    /// Reads some lists, or what was noted of one; says whether there was anything.
    fn read_part(
        &mut self,
        buckets: &mut BTreeMap<Time, Bucket<K, E>>,
        own: &mut Paced,
    ) -> Result<bool> {
        let Some(&time) = self.times.get(self.next) else { return Ok(false) };
        let is_gone = self.gone.contains_key(&time);
        let mut gone = if is_gone { self.gone.remove(&time) } else { None };
        let bucket = gone.as_mut().or_else(|| buckets.get_mut(&time));
        let read = bucket.map_or(Ok(false), |bucket| self.read_bucket(time, bucket, own));
        let has_more = matches!(read, Ok(true));
        match gone {
            Some(gone) if has_more => drop(self.gone.insert(time, gone)),
            Some(gone) => gone.release(&self.account),
            None => {}
        }
        self.next += usize::from(!has_more);
        read.map(|_| true)
    }

    /// Reads a part of a bucket, or what was noted of a list; says whether there was anything.
    fn read_bucket(
        &mut self,
        time: Time,
        bucket: &mut Bucket<K, E>,
        own: &mut Paced,
    ) -> Result<bool> {
        let Bucket { lists, captured: slot, .. } = bucket;
        let Some(captured) = slot else { return Ok(false) };
        if let Some(key) = captured.noted() {
            let hash = key.key_hash();
            let note = captured.notes.find_mut(hash, |note| note.key == key).expect("found above");
            let there = || lists.find(hash, |(known, _)| *known == key).map(|(_, list)| list);
            if note.from < note.until {
                let list = note.left.as_ref().or_else(there).expect("it is there or was kept");
                let written = self.write(own, (time, &key), &list[note.from..note.until])?;
                note.from += written;
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
        let (part, end) = lists.part_at(next);
        for entry in part {
            let ((key, list), hash) = (entry, hash_of(entry));
            let is_new = self.range.place(hash) >= next;
            if !is_new || captured.notes.find(hash, |note| note.key == *key).is_some() {
                continue;
            }
            let is_short = record_elements(list, self.record_bytes) == list.len();
            let goes_now = self.at_once || (is_short && own.has_room());
            if goes_now || !captured.note(hash, key.clone(), list.len()) {
                let mut rest = &list[..];
                while !rest.is_empty() {
                    rest = &rest[self.write(own, (time, key), rest)?..];
                }
            }
        }
        captured.next = end;
        Ok(true)
    }
}

impl<K, E> Reading<K, E> {
    /// Drops buckets that were purged.
    fn drop_gone(&mut self) {
        for bucket in std::mem::take(&mut self.gone).into_values() {
            bucket.release(&self.account);
        }
    }
}

impl<K, E> Drop for Reading<K, E> {
    fn drop(&mut self) {
        self.drop_gone();
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

impl<K: Key, E: State> InSteps for HeapLists<K, E> {
    fn context(&self) -> &StateContext {
        &self.context
    }

    /// Cost: that of the buckets.
    fn begin_capture(&mut self) -> Result<()> {
        self.end_capture();
        let stepped = Stepped::new(&self.context)?;
        let (pace, account) = (self.pace(), self.context.account.clone());
        // A record is copied before it is encoded.
        let booked = self.buckets.len() as u64 * BUCKET_BYTES + pace.value_bytes;
        account.reserve(MemoryKind::Buffers, booked, "a checkpoint's buckets")?;
        for bucket in self.buckets.values_mut() {
            bucket.captured = Some(Box::new(Captured::new(&account, self.range)));
        }
        let reading = Reading {
            account,
            range: self.range,
            times: self.buckets.keys().copied().collect(),
            next: 0,
            gone: BTreeMap::new(),
            record_bytes: record_bytes(&pace),
            at_once: false,
            records: 0,
            booked,
        };
        self.capture = Some(Box::new(ListsCapture { stepped, reading }));
        Ok(())
    }

    fn stepped(&mut self) -> Option<&mut Stepped> {
        self.capture.as_mut().map(|capture| &mut capture.stepped)
    }

    fn share(&mut self) -> Result<Option<(Vec<SegmentInfo>, u64)>> {
        let pace = self.pace();
        let Some(capture) = &mut self.capture else { return Ok(None) };
        let ListsCapture { stepped, reading } = &mut **capture;
        let read = |own: &mut Paced| reading.read_part(&mut self.buckets, own);
        let sealed = stepped.step(&self.context, pace, read)?;
        Ok(sealed.map(|sealed| (sealed, reading.records)))
    }

    fn end_capture(&mut self) {
        if self.capture.take().is_some() {
            self.buckets.values_mut().for_each(|bucket| bucket.captured = None);
        }
    }

    fn taken(&mut self, image: &StateImage) {
        self.codec_calls += image.entries;
        self.images.taken(image);
    }
}

impl<K: Key, E: State> HeapLists<K, E> {
    fn pace(&self) -> Pace {
        let pace = pace::<(Time, K), Vec<E>>(&self.context);
        let element = if E::NONE { 0 } else { self.context.max_value_bytes };
        Pace { value_bytes: record_bytes(&pace) as u64 + element + 256, ..pace }
    }

    /// A list is about to change: notes what it has, if it was not read.
    #[cold]
    #[inline(never)]
    pub(super) fn note<Q: Lookup<K> + ?Sized>(&mut self, bucket: Time, hash: u64, key: &Q) {
        let Some(Bucket { lists, captured: Some(captured), .. }) = self.buckets.get_mut(&bucket)
        else {
            return;
        };
        if captured.wants(hash, key) {
            let len = lists.find(hash, |(known, _)| key.is(known)).map_or(0, |(_, l)| l.len());
            if !captured.note(hash, key.to_owned(), len) {
                self.read_rest();
            }
        }
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
            note.left = Some(list);
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
        let list = lists.find(hash, |(known, _)| key.is(known));
        let (Some(note), Some((_, list))) = (note, list) else { return };
        let due = &list[note.from..note.until];
        let owned: usize = if E::NONE { 0 } else { due.iter().map(E::heap_bytes).sum() };
        let most = (rounded(size_of_val(due)) + owned) as u64;
        if captured.account.available() < most + FREE_BYTES {
            return self.read_rest();
        }
        let copy = due.to_vec();
        (note.from, note.until) = (0, copy.len());
        let bytes = copy.heap_bytes() as u64;
        note.left = Some(copy);
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

    /// Has what a checkpoint holds of purged buckets read, and given back; says whether there was any.
    pub(super) fn make_way(&mut self) -> bool {
        let holds = |capture: &ListsCapture<K, E>| !capture.reading.gone.is_empty();
        let is_held = self.capture.as_ref().is_some_and(|capture| holds(capture));
        if is_held {
            self.read_rest();
        }
        is_held
    }

    /// Reads all that is not read yet and has it written, at once. If that fails, the checkpoint
    /// does.
    #[cold]
    fn read_rest(&mut self) {
        let pace = self.pace();
        let Some(capture) = &mut self.capture else { return };
        let (ListsCapture { stepped, reading }, buckets) = (&mut **capture, &mut self.buckets);
        reading.at_once = true;
        stepped.read_rest(&self.context, pace, |own| reading.read_part(buckets, own));
        if stepped.is_lost() {
            reading.drop_gone();
            self.buckets.values_mut().for_each(|bucket| bucket.captured = None);
        }
    }
}

/// Bytes after which a record ends: some of them fit into a batch.
fn record_bytes(pace: &Pace) -> usize {
    pace.batch_bytes / 4
}
