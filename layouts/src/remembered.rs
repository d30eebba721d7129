//! Checkpoints of a state in memory whose entries come and go and never change, as those of a set do: each
//! writes the entries that have come since the last one, and tells which records have died.
//!
//! The state keeps a [place](Place) beside each entry: where its record is, or none. What has a place is on
//! storage as it is. So nothing is noted of an entry that comes and goes between two checkpoints, and of one that
//! goes later that its record is dead. Segments of before are named again, as those of heap tables are
//! (`heap_files.rs`). In which order entries are read, and what is kept of those that go before they were read, is left
//! to the state.
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

use crate::full_image::{Images, pace, read_placed, reading_bytes};
use crate::heap::segment_bytes;
use crate::heap_files::{Dead, HeapFiles, Named};
use crate::heap_marks::Place;
use crate::heap_naming::{Begun, Naming};
use crate::heap_telling::{Lent, Telling};
use crate::paced::{Pace, Paced};
use crate::stepped::Stepped;
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
    codec_calls: u64,
}

/// A checkpoint being taken.
#[derive(Debug)]
struct Taking {
    /// At the barrier.
    entries: u64,
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
    account: Rc<Account>,
    booked: u64,
    naming: Naming,
    encoded: u64,
}

/// A checkpoint that was taken and is not decided yet.
#[derive(Debug)]
struct Undecided {
    named: Named,
    dead: Dead,
    is_first: bool,
    /// Entries that it has written.
    written: u64,
}

impl Part {
    fn new(account: Rc<Account>) -> Self {
        Self { naming: Naming::first(account.clone()), account, booked: 0, encoded: 0 }
    }

    fn is_due(&self, place: Place) -> bool {
        place == Place::NONE || self.naming.is_anew(place)
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.account.release(MemoryKind::Buffers, self.booked);
    }
}

/// Where a checkpoint's records go.
#[derive(Debug)]
pub struct Recording<'a> {
    own: &'a mut Paced,
    part: &'a mut Part,
    files: &'a mut HeapFiles,
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
        let Self { own, part, files } = self;
        let at = own.place(key.key_hash(), key, value)?;
        part.encoded += 1;
        part.naming.outdate(before, files)?;
        Ok(part.naming.place_of(at, files))
    }

    /// An entry of the barrier is at this place, and stays there.
    pub fn keep(&mut self, place: Place) {
        self.part.naming.sets.insert(place);
    }

    /// The entry that was [written](Recording::write) there is gone since the barrier.
    pub fn note_dead(&mut self, place: Place) {
        self.files.note_dead(place);
    }
}

impl Remembered {
    /// Nothing yet.
    pub fn new(context: &StateContext) -> Self {
        Self {
            context: context.clone(),
            files: HeapFiles::new(context.account.clone()),
            images: Images::default(),
            is_on: false,
            epoch: 1,
            taking: None,
            undecided: None,
            lent: None,
            codec_calls: 0,
        }
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
        self.is_on = self.files.restored(image);
        let Self { context, is_on, codec_calls, .. } = self;
        read_placed(context, image, blobs, |at, key, value| {
            *codec_calls += 1;
            let place = if *is_on { Place::of(at.segment, at.grain) } else { Place::NONE };
            entry(key, value, place)
        })?;
        self.images.restored(image);
        if self.files.live_records() != image.entries {
            // Another build's: what is dead in it is not known.
            self.forget();
        }
        Ok(())
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

    /// Begins a checkpoint of so many entries, which own so many bytes. Cost: O(1).
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] in a store without a directory.
    pub fn begin<K: Key, V: State>(&mut self, entries: u64, bytes: u64) -> Result<()> {
        let stepped = Stepped::new(&self.context)?;
        self.give_up();
        if self.undecided.take().is_some() {
            // Nobody knows which segments are those of the last checkpoint.
            self.files.break_off();
        }
        let segment_bytes = segment_bytes(bytes + entries * RECORD_BYTES);
        self.taking = Some(Box::new(Taking {
            entries,
            stepped,
            pace: Pace { segment_bytes, ..pace::<K, V>(&self.context, entries) },
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
        let Taking { entries, pace, part, .. } = &mut **taking;
        if !is_first {
            // What was written by one that was given up counts as well.
            let changed = entries.saturating_sub(self.files.live_records());
            let (account, counts) = (&self.context.account, (*entries, changed));
            let reading = reading_bytes(&self.context, pace.segment_bytes);
            let begun =
                Begun::of_new(&mut self.files, account, counts, pace.segment_bytes, reading);
            account.charge(MemoryKind::Buffers, begun.bytes);
            part.booked += begun.bytes;
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
        let files = &mut self.files;
        let sealed = stepped.step(&self.context, *pace, |own| {
            read(&mut Recording { own, part: &mut *part, files: &mut *files })
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
        let files = &mut self.files;
        stepped.read_rest(&self.context, *pace, |own| {
            read(&mut Recording { own, part: &mut *part, files: &mut *files })
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
        let named = self.files.name(*entries, &naming.dead, &sealed, &naming.slots);
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
        let Taking { mut part, telling, .. } = *self.taking.take().expect("it was taken");
        let named = telling.expect("it is told of").into_named();
        self.codec_calls += part.encoded;
        self.images.taken(&named.image);
        let image = named.image.clone();
        let (is_first, written) = (part.naming.is_first, part.encoded);
        let dead = part.naming.take_dead(&self.context.account);
        self.undecided = Some(Box::new(Undecided { named, dead, is_first, written }));
        image
    }

    /// Gives up the checkpoint that is being taken, if one is. Cost: in the number of segments.
    fn give_up(&mut self) {
        let Some(mut taking) = self.taking.take().filter(|taking| taking.is_planned) else {
            return;
        };
        if let Some(telling) = taking.telling.take() {
            self.lent = telling.give_up(&self.context);
        }
        let Part { naming, encoded, .. } = &mut taking.part;
        let dead = naming.take_dead(&self.context.account);
        self.go_back(naming.is_first, dead, *encoded);
    }

    /// What a checkpoint has written, so many entries, is of no use.
    fn go_back(&mut self, is_first: bool, dead: Dead, written: u64) {
        if is_first || self.files.is_broken() {
            self.forget();
        } else {
            self.files.given_up(dead, written);
        }
    }

    /// What became of the checkpoint.
    pub fn decide(&mut self, outcome: CheckpointOutcome) {
        self.give_up();
        self.images.decide(outcome, self.context.segments.as_ref());
        let Some(undecided) = self.undecided.take() else { return };
        let Undecided { named, dead, is_first, written } = *undecided;
        match outcome {
            CheckpointOutcome::Committed if !self.files.is_broken() => self.files.confirmed(named),
            CheckpointOutcome::Abandoned => self.go_back(is_first, dead, written),
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
