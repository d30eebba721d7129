//! Taking a checkpoint of lists on the heap while they change.
//!
//! At the barrier nothing is copied, and no key is looked at. Buckets are [read](crate::heap_lists_reading) in steps, and
//! who changes a list that was not read yet notes what is to be written of it; segments of before are named again, as those
//! of tables are (`heap_files.rs`).
//!
//! What it keeps true:
//! - The image has of each list of the barrier its elements, once, in order of segments and then of records.
//! - If there is no room for a note or a copy, or memory is needed that a purged bucket holds, all that
//!   is left is read and written at once; if that fails, the checkpoint does.

use std::collections::BTreeMap;

use alluvium_pagestore::{
    BlobWriter, Error, ErrorKind, HeapSize, Key, Lookup, MemoryKind, Result, SegmentInfo, State,
    StateImage, Time, rounded,
};

use crate::full_image::{kept_free, pace};
use crate::heap::segment_bytes;
use crate::heap_files::{Dead, Named};
use crate::heap_lists::{Bucket, HeapLists};
use crate::heap_lists_reading::{Captured, Reading, Source};
use crate::heap_lists_records::{Due, Records};
use crate::heap_naming::{Begun, FREE_BYTES, Naming};
use crate::heap_telling::Telling;
use crate::paced::Pace;
use crate::stepped::Stepped;
use crate::table::CheckpointOutcome;

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

    /// Takes back what the helper was lent for a checkpoint that was given up. If it has it still, the next one is full.
    fn take_lent(&mut self) {
        if let Some(lent) = self.lent.take() {
            lent.take_back(&self.context.helper, &mut self.files);
        }
    }

    /// Decides what the checkpoint that was begun writes, if that is not decided: before anything changes. Cost: in the
    /// number of segments.
    pub(super) fn plan_capture(&mut self) {
        let is_planned = self.capture.as_ref().is_none_or(|capture| capture.is_planned);
        if is_planned {
            return;
        }
        self.take_lent();
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
        self.drop_some_left();
        let Some(capture) = &mut self.capture else {
            return Err(Error::new(ErrorKind::Config, "no checkpoint was begun"));
        };
        capture.stepped.check()?;
        if capture.telling.is_some() {
            return self.tell_some(blobs);
        }
        let ListsCapture { stepped, pace, reading, .. } = &mut **capture;
        let Self { buckets, files, changed, purged, .. } = self;
        let sealed = stepped.step(&self.context, *pace, |own| {
            let (files, changed, purged) = (&mut *files, &mut *changed, &mut *purged);
            reading.read_part(Source { buckets, files, changed, purged }, own)
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

    /// Gives up the checkpoint that is being taken, if one is. Cost: in the number of buckets and of segments; what it has
    /// noted, and holds of buckets that were purged, goes [later](HeapLists::drop_some_left).
    fn give_up_capture(&mut self) {
        let Some(mut capture) = self.capture.take() else { return };
        self.leave_all(&mut capture.reading);
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
        let pace = pace::<(Time, K), Vec<E>>(&self.context, u64::MAX);
        let element = if E::NONE { 0 } else { self.context.max_value_bytes };
        Pace { value_bytes: record_bytes(&pace) as u64 + element + 256, ..pace }
    }

    /// What has to stay free, so that the lists can be checkpointed and be read again; not for buckets.
    pub(super) fn kept_free(&self) -> u64 {
        if self.context.segments.is_none() {
            return 0;
        }
        let pace = self.pace();
        // A record is copied before it is encoded.
        kept_free(&self.context, &pace) + pace.value_bytes
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

    /// Drops a part of what checkpoints that were given up have left, has what another holds of purged buckets read, and
    /// given back, or gives up what is noted of dead records; says whether there was any.
    pub(super) fn make_way(&mut self) -> bool {
        if self.drop_some_left() {
            return true;
        }
        let holds = |capture: &ListsCapture<K, E>| {
            let Reading { gone, purged, .. } = &capture.reading;
            !gone.is_empty() || !purged.is_empty()
        };
        let is_held = self.capture.as_ref().is_some_and(|capture| holds(capture));
        if is_held {
            self.read_rest();
            return true;
        }
        if self.capture.is_some() || self.undecided.is_some() {
            return false;
        }
        self.take_lent();
        let has_noted = self.files.dead().len() > 0;
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
        let Self { buckets, files, changed, purged, .. } = self;
        reading.at_once = true;
        stepped.read_rest(&self.context, *pace, |own| {
            let (files, changed, purged) = (&mut *files, &mut *changed, &mut *purged);
            reading.read_part(Source { buckets, files, changed, purged }, own)
        });
        if stepped.is_lost()
            && let Some(mut capture) = self.capture.take()
        {
            self.leave_all(&mut capture.reading);
            self.capture = Some(capture);
        }
    }

    /// Nothing is read any more of what is noted, and of buckets that were purged.
    fn leave_all(&mut self, reading: &mut Reading<K, E>) {
        for mut bucket in reading.take_gone() {
            self.notes_left.extend(bucket.captured.take().map(|captured| *captured));
            self.purged.push(bucket);
        }
        let notes = self.buckets.values_mut().filter_map(|bucket| bucket.captured.take());
        self.notes_left.extend(notes.map(|captured| *captured));
        self.notes_left.retain(|captured| !captured.notes.is_empty());
    }

    /// Drops a part of what checkpoints that were given up have left; says whether there was something.
    pub(super) fn drop_some_left(&mut self) -> bool {
        if let Some(captured) = self.notes_left.last_mut() {
            if !captured.drop_some() {
                self.notes_left.pop();
            }
            return true;
        }
        self.drop_some_purged().is_some()
    }
}

/// Bytes after which a record ends: some of them fit into a batch.
fn record_bytes(pace: &Pace) -> usize {
    pace.batch_bytes / 4
}
