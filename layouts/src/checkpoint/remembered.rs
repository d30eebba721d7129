//! The driver of checkpoints of state in memory: begin, step, decide, give up. Each checkpoint writes what has come
//! since the last one, and tells which records have died.
//!
//! The state keeps a [place](Place) for each record: where it is, or none. What has a place is on
//! storage as it is. So nothing is noted of an entry that comes and goes between two checkpoints, and of one that
//! goes later that its record is dead. Segments of before are named again (see [`HeapFiles`]).
//! The state says how to read its next stretch; in which order, and what is kept of entries that go before they were
//! read, is left to it.
//!
//! What it keeps true:
//! - An image has of each entry of the barrier one live record.
//! - Nothing of a checkpoint counts before it is confirmed. If one is given up, the next one writes what it would have
//!   written. If its outcome is not known, or a death could not be noted for want of memory, the next one writes all.
//! - Places are of an [epoch](Remembered::epoch); those of another one are none. So all are forgotten at once.

use std::rc::Rc;

use alluvium_pagestore::{
    Account, BlobReader, BlobWriter, Error, ErrorKind, Key, MemoryKind, Result, SegmentInfo, State,
    StateImage,
};

use super::ledger::{Dead, HeapFiles, Named};
use super::naming::{Begun, Naming};
use super::steps::Stepped;
use super::telling::{Lent, Telling};
use super::writer::{Pace, Paced};
use crate::booked::Booked;
use crate::full_image::{Images, pace, read_placed, reading_bytes, room_bytes};
use crate::heap::segment_bytes;
use crate::heap_marks::Place;
use crate::table::{CheckpointOutcome, StateContext, TableStats};

/// Bytes of a record beside what its entry owns, about.
const RECORD_BYTES: u64 = 64;

/// What a state remembers of its checkpoints.
#[derive(Debug)]
pub struct Remembered {
    context: StateContext,
    files: HeapFiles,
    images: Images,
    /// Whether places of the epoch are those of the last checkpoint.
    is_on: bool,
    epoch: u32,
    /// The checkpoint being taken.
    taking: Option<Box<Taking>>,
    /// The one that was taken and is not decided.
    undecided: Option<Box<Undecided>>,
    /// Of one that was given up: the helper has the list of what has died.
    lent: Option<Lent>,
    /// Booked for the buffers of checkpoints, and of whoever opens the state again.
    room: Booked,
    /// Entries that have changed since the last barrier, at most, of a state that counts them.
    changed: u64,
    codec_calls: u64,
}

/// A checkpoint being taken.
#[derive(Debug)]
struct Taking {
    /// At the barrier; not known of a state whose entries have several records.
    entries: Option<u64>,
    /// Entries that have changed between the last barrier and this one, of a state that counts them.
    changed: u64,
    stepped: Stepped,
    pace: Pace,
    /// Whether it is decided what is written: no record has died since the barrier before that.
    is_planned: bool,
    part: Part,
    /// All is written.
    telling: Option<Telling>,
}

/// What a checkpoint writes.
#[derive(Debug)]
struct Part {
    booked: Booked,
    naming: Naming,
    encoded: u64,
}

/// A checkpoint that was taken and is not decided yet.
#[derive(Debug)]
struct Undecided {
    named: Named,
    dead: Dead,
    is_first: bool,
    again: Again,
}

/// What counts again once a checkpoint is given up.
#[derive(Clone, Copy, Debug)]
struct Again {
    /// Entries that it has written, of a state that does not count changes.
    written: u64,
    /// Entries that had changed, of one that does.
    changed: u64,
}

impl Part {
    fn new(account: Rc<Account>) -> Self {
        let booked = Booked::none(account.clone(), MemoryKind::Buffers);
        Self { naming: Naming::first(account), booked, encoded: 0 }
    }

    fn is_due(&self, place: Place) -> bool {
        place == Place::NONE || self.naming.is_anew(place)
    }
}

impl Taking {
    fn again(&self) -> Again {
        // A state that counts changes counts those that were written, too.
        let written = self.entries.map_or(0, |_| self.part.encoded);
        Again { written, changed: self.changed }
    }
}

/// Where a checkpoint's records go.
#[derive(Debug)]
pub struct Recording<'a> {
    own: &'a mut Paced,
    part: &'a mut Part,
    files: &'a mut HeapFiles,
    epoch: u32,
    changed: &'a mut u64,
}

impl Recording<'_> {
    /// Whether there is room for another record, without waiting for the helper.
    pub fn has_room(&mut self) -> bool {
        self.own.has_room()
    }

    /// Whether an entry at a place is to be [written](Recording::write); else it [stays](Recording::keep) there.
    pub fn is_due(&self, place: Place) -> bool {
        self.part.is_due(place)
    }

    /// Writes an entry, whose record was at `before`: where it is from now on, or no place if there is no memory to
    /// remember it.
    ///
    /// # Errors
    /// Those of encoding and of writing.
    pub fn write<K: Key, V: State>(&mut self, key: &K, value: &V, before: Place) -> Result<Place> {
        let Self { own, part, files, .. } = self;
        let at = own.place(key.key_hash(), key, value)?;
        part.encoded += 1;
        part.naming.outdate(before, files)?;
        Ok(part.naming.place_of(at, files))
    }

    /// An entry of the barrier is at this place, and stays there.
    pub fn keep(&mut self, place: Place) {
        self.part.naming.sets.insert_at(place);
    }

    /// The entry that was [written](Recording::write) there is gone since the barrier.
    pub fn note_dead(&mut self, place: Place) {
        self.files.note_dead(place);
    }

    /// A record is not live in this checkpoint: it has a newer one, or its entry was gone before the barrier.
    ///
    /// # Errors
    /// [`ErrorKind::Overtaken`] if there is no room to note it.
    pub(crate) fn outdate(&mut self, place: Place) -> Result<()> {
        self.part.naming.outdate(place, self.files)
    }

    /// By slot, whether what is live in a segment is written anew. Empty if no segment is.
    pub(crate) fn anew(&self) -> &[bool] {
        &self.part.naming.anew
    }

    /// Whether places of this epoch count.
    pub(crate) fn epoch(&self) -> u32 {
        self.epoch
    }

    /// The state cannot remember a place: the next checkpoint writes all.
    pub(crate) fn break_off(&mut self) {
        self.files.break_off();
    }

    /// An entry has changed since the barrier.
    pub(crate) fn count_change(&mut self) {
        *self.changed += 1;
    }
}

impl Remembered {
    /// Nothing yet.
    pub fn new(context: &StateContext) -> Self {
        Self {
            context: context.clone(),
            files: HeapFiles::new(context.account.clone()),
            room: Booked::none(context.account.clone(), MemoryKind::Buffers),
            images: Images::default(),
            is_on: false,
            epoch: 1,
            taking: None,
            undecided: None,
            lent: None,
            changed: 0,
            codec_calls: 0,
        }
    }

    /// Books what a checkpoint writes with, and an open reads with, for as long as the state lives: whatever it accepts can
    /// be checkpointed and opened again, also while other states take all other memory. Forgets the last checkpoint if
    /// there is no room otherwise: the next one writes all.
    ///
    /// # Errors
    /// [`ErrorKind::OverBudget`] if there is no room.
    pub fn keep_room<K: Key, V: State>(&mut self) -> Result<()> {
        if self.context.segments.is_none() {
            return Ok(());
        }
        let room = room_bytes(&self.context, &pace::<K, V>(&self.context, u64::MAX));
        let what = "the buffers of checkpoints";
        self.room.reserve_more(room, what).or_else(|_| {
            self.forget();
            self.room.reserve_more(room, what)
        })
    }

    /// Gives all entries of an image to `entry`, with their places.
    ///
    /// # Errors
    /// Those of `entry`, of reading and of decoding.
    pub fn restore<K: Key, V: State>(
        &mut self,
        image: &StateImage,
        blobs: &BlobReader,
        mut entry: impl FnMut(K, V, Place) -> Result<()>,
    ) -> Result<()> {
        self.begin_restoring(image);
        let (is_on, mut read) = (self.is_on, 0);
        read_placed(&self.context, image, blobs, |at, key, value| {
            read += 1;
            let place = if is_on { Place::of(at.segment, at.grain) } else { Place::NONE };
            entry(key, value, place)
        })?;
        self.end_restoring(image, read);
        Ok(())
    }

    /// The state is about to read an image. Says whether it is to remember where records are.
    pub(crate) fn begin_restoring(&mut self, image: &StateImage) -> bool {
        self.is_on = self.files.restored(image);
        self.is_on
    }

    /// So many records of the image were read.
    pub(crate) fn end_restoring(&mut self, image: &StateImage, records: u64) {
        self.codec_calls += records;
        self.changed = 0;
        self.images.restored(image);
        if self.files.live_records() != image.entries {
            // Another build's: what is dead in it is not known.
            self.forget();
        }
    }

    /// Places that were given in another epoch are none. No epoch is 0, and a later one is greater.
    #[inline]
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// An entry is gone whose record was there. Of one that a checkpoint has not read and that is
    /// [due](Remembered::is_due) this is told by [`outdate`](Remembered::outdate). Cost: O(1).
    #[inline]
    pub fn note_dead(&mut self, place: Place) {
        if place != Place::NONE {
            self.files.note_dead(place);
        }
    }

    /// Whether the checkpoint that is being taken is to write an entry at this place, which it has not read. Not before
    /// it is [planned](Remembered::plan).
    pub fn is_due(&self, place: Place) -> bool {
        self.taking.as_ref().is_some_and(|taking| taking.part.is_due(place))
    }

    /// An entry is gone that the checkpoint being taken is to write, and has not yet: the state keeps it until then.
    pub fn outdate(&mut self, place: Place) {
        let Some(taking) = &mut self.taking else { return };
        if taking.part.naming.outdate(place, &mut self.files).is_err() {
            taking.stepped.lose();
        }
    }

    /// An entry of a state that counts changes has changed, once for each barrier at least.
    #[inline]
    pub(crate) fn count_change(&mut self) {
        self.changed += 1;
    }

    /// The state cannot remember a place: the next checkpoint writes all.
    pub(crate) fn break_off(&mut self) {
        self.files.break_off();
    }

    /// By slot, whether the checkpoint being taken writes anew what is live in a segment. Empty if none is taken.
    pub(crate) fn anew(&self) -> &[bool] {
        self.taking.as_ref().map_or(&[], |taking| &taking.part.naming.anew)
    }

    /// Whether the checkpoint being taken cannot be ended.
    pub(crate) fn is_lost(&self) -> bool {
        self.taking.as_ref().is_some_and(|taking| taking.stepped.is_lost())
    }

    /// Begins a checkpoint of so many entries, which own so many bytes. Cost: O(1).
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] in a store without a directory.
    pub fn begin<K: Key, V: State>(&mut self, entries: u64, bytes: u64) -> Result<()> {
        let segment_bytes = segment_bytes(bytes + entries * RECORD_BYTES);
        let pace = Pace { segment_bytes, ..pace::<K, V>(&self.context, entries) };
        self.begin_at(Some(entries), pace)
    }

    /// [`begin`](Remembered::begin) at a pace. Without the number of entries, what the state counts as changed is
    /// written, and the records are counted.
    ///
    /// # Errors
    /// As for `begin`.
    pub(crate) fn begin_at(&mut self, entries: Option<u64>, pace: Pace) -> Result<()> {
        let stepped = Stepped::with_room(&self.context, self.room.bytes())?;
        self.give_up();
        if self.undecided.take().is_some() {
            // Nobody knows which segments are those of the last checkpoint.
            self.files.break_off();
        }
        self.taking = Some(Box::new(Taking {
            entries,
            changed: std::mem::take(&mut self.changed),
            stepped,
            pace,
            is_planned: false,
            part: Part::new(self.context.account.clone()),
            telling: None,
        }));
        Ok(())
    }

    /// Decides what the checkpoint that was begun writes, if that is not decided: to be called before an entry goes
    /// that it has not read. Cost: in the number of segments.
    #[inline]
    pub fn plan(&mut self) {
        if self.taking.as_ref().is_some_and(|taking| !taking.is_planned) {
            self.plan_begun();
        }
    }

    #[cold]
    fn plan_begun(&mut self) {
        self.take_lent();
        let is_first = !self.is_on || self.files.is_broken();
        if is_first {
            self.forget();
            self.is_on = true;
        }
        let Some(taking) = &mut self.taking else { return };
        let Taking { entries, changed, pace, part, .. } = &mut **taking;
        if !is_first {
            let (account, live, segment_bytes) =
                (&self.context.account, self.files.live_records(), pace.segment_bytes);
            let begun = match *entries {
                Some(entries) => {
                    // What was written by one that was given up counts as well.
                    let counts = (entries, entries.saturating_sub(live));
                    let reading = reading_bytes(&self.context, segment_bytes);
                    Begun::of_new(&mut self.files, account, counts, segment_bytes, reading)
                }
                None => {
                    let counts = (live + *changed, *changed);
                    Begun::of(&mut self.files, account, counts, segment_bytes, 0)
                }
            };
            part.booked.charge(begun.bytes);
            part.naming = begun.naming;
        }
        taking.is_planned = true;
    }

    /// Takes back what the helper was lent for a checkpoint that was given up. If it has it still, the next one writes all.
    fn take_lent(&mut self) {
        if let Some(lent) = self.lent.take() {
            lent.take_back(&self.context.helper, &mut self.files);
        }
    }

    /// Nothing is remembered of any checkpoint: the next one writes all.
    fn forget(&mut self) {
        self.lent = None;
        self.files.clear();
        self.is_on = false;
        self.epoch += 1;
    }

    /// Does a bounded share; the image at the end. `read` reads a few entries, and says whether there were any.
    ///
    /// # Errors
    /// Those of `read` and of writing; the checkpoint has to be begun again.
    pub fn step(
        &mut self,
        blobs: &BlobWriter,
        mut read: impl FnMut(&mut Recording<'_>) -> Result<bool>,
    ) -> Result<Option<StateImage>> {
        self.plan();
        let Some(taking) = &mut self.taking else {
            return Err(Error::new(ErrorKind::Config, "no checkpoint was begun"));
        };
        taking.stepped.check()?;
        if taking.telling.is_some() {
            return self.tell_some(blobs);
        }
        let Taking { stepped, pace, part, .. } = &mut **taking;
        let Self { files, epoch, changed, .. } = self;
        let sealed = stepped.step(&self.context, *pace, |own| {
            let (part, files, changed) = (&mut *part, &mut *files, &mut *changed);
            read(&mut Recording { own, part, files, epoch: *epoch, changed })
        })?;
        match sealed {
            Some(sealed) => {
                self.begin_telling(sealed);
                self.tell_some(blobs)
            }
            None => Ok(None),
        }
    }

    /// Has all that `read` reads written at once. If that fails, the checkpoint does.
    #[cold]
    pub fn read_rest(&mut self, mut read: impl FnMut(&mut Recording<'_>) -> Result<bool>) {
        self.plan();
        let Some(taking) = &mut self.taking else { return };
        let Taking { stepped, pace, part, .. } = &mut **taking;
        let Self { files, epoch, changed, .. } = self;
        stepped.read_rest(&self.context, *pace, |own| {
            let (part, files, changed) = (&mut *part, &mut *files, &mut *changed);
            read(&mut Recording { own, part, files, epoch: *epoch, changed })
        });
    }

    /// Waits a moment for the helper.
    pub fn pause(&mut self) {
        self.taking.iter_mut().for_each(|taking| taking.stepped.pause());
    }

    /// All is written.
    fn begin_telling(&mut self, sealed: Vec<SegmentInfo>) {
        let taking = self.taking.as_mut().expect("it is written");
        let Taking { entries, part: Part { naming, .. }, .. } = &mut **taking;
        let count = || self.files.count_live(&naming.dead, &sealed);
        let entries = entries.unwrap_or_else(count);
        let named = self.files.name(entries, &naming.dead, &sealed, &naming.slots);
        taking.telling = Some(Telling::new(&self.files, named, sealed));
    }

    /// Goes on telling which records of segments of before are live; the image, if all is told.
    fn tell_some(&mut self, blobs: &BlobWriter) -> Result<Option<StateImage>> {
        let taking = self.taking.as_mut().expect("it is told of");
        let Taking { stepped, part: Part { naming, .. }, telling, .. } = &mut **taking;
        let telling = telling.as_mut().expect("it is told of");
        let told = telling.share((&self.context, &self.files), naming, blobs);
        let is_told = told.inspect_err(|_| stepped.lose())?;
        Ok(is_told.then(|| self.end()))
    }

    /// The checkpoint is taken.
    fn end(&mut self) -> StateImage {
        let mut taking = *self.taking.take().expect("it was taken");
        let (again, telling) = (taking.again(), taking.telling.take());
        let part = &mut taking.part;
        let named = telling.expect("it is told of").into_named();
        self.codec_calls += part.encoded;
        let image = named.image();
        self.images.taken(&image);
        let is_first = part.naming.is_first;
        let dead = part.naming.take_dead(&self.context.account);
        self.undecided = Some(Box::new(Undecided { named, dead, is_first, again }));
        image
    }

    /// Gives up the checkpoint that is being taken, if one is. Cost: in the number of segments.
    pub(crate) fn give_up(&mut self) {
        let Some(mut taking) = self.taking.take() else { return };
        let again = taking.again();
        if !taking.is_planned {
            self.changed += again.changed;
            return;
        }
        if let Some(telling) = taking.telling.take() {
            self.lent = telling.give_up(&self.context);
        }
        let naming = &mut taking.part.naming;
        let dead = naming.take_dead(&self.context.account);
        self.go_back(naming.is_first, dead, again);
    }

    /// What a checkpoint has written is of no use.
    fn go_back(&mut self, is_first: bool, dead: Dead, again: Again) {
        if is_first || self.files.is_broken() {
            self.forget();
        } else {
            self.files.given_up(dead, again.written);
            self.changed += again.changed;
        }
    }

    /// What became of the checkpoint.
    pub fn decide(&mut self, outcome: CheckpointOutcome) {
        self.give_up();
        self.images.decide(outcome, self.context.segments.as_ref());
        let Some(undecided) = self.undecided.take() else { return };
        let Undecided { named, dead, is_first, again } = *undecided;
        match outcome {
            CheckpointOutcome::Committed if !self.files.is_broken() => self.files.confirmed(named),
            CheckpointOutcome::Abandoned => self.go_back(is_first, dead, again),
            // Those that it names are not known to be there, or not remembered.
            CheckpointOutcome::Committed | CheckpointOutcome::Unknown => self.forget(),
        }
    }

    /// Gives up what is noted of dead records, if no checkpoint needs it, so that the next one writes all; says whether
    /// there was any.
    pub fn make_way(&mut self) -> bool {
        if self.taking.is_some() || self.undecided.is_some() {
            return false;
        }
        self.take_lent();
        let has_noted = self.files.dead().len() > 0;
        if has_noted {
            self.files.break_off();
        }
        has_noted
    }

    /// Adds what checkpoints take and took to a state's statistics.
    pub fn describe(&self, stats: &mut TableStats) {
        self.images.describe(stats);
        stats.live_disk_bytes -= self.files.dead_bytes().min(stats.live_disk_bytes);
        stats.codec_calls += self.codec_calls;
    }
}
