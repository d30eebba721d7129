//! How far windowed state has come: part of every checkpoint.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

use alluvium_layouts::{
    CheckpointOutcome, ForeignState, Heap, HeapTable, Layout, StateContext, Table, TableStats,
    Upkeep,
};
use alluvium_pagestore::{
    BlobWriter, Encoded, Error, ErrorKind, Key, KeyGroup, KeyHash, Result, StateImage, Time,
};

use super::Windows;
use crate::api::own_keys::OwnKeys;
use crate::cells::state_cell::{Durable, Hooks, Movable, Portable};
use crate::durability::export::{CanonicalEntry, VisitCanonical};
use crate::durability::moving::{EntryArrival, GroupCursor, Groups};
use crate::store::definition;

/// What has been done: the watermark; the watermark for which all was done; the end of the last
/// window that fired, where there was one; of sessions, [which timers lack](ProgressCell::timers_bound).
pub(crate) type ProgressRecord = (Time, Time, Option<Time>);

/// A [`ProgressRecord`], and whether something is half done, which no checkpoint can hold.
#[derive(Debug)]
pub(crate) struct ProgressCell {
    name: String,
    windows: Cell<Windows>,
    pub(crate) watermark: Cell<Time>,
    pub(crate) settled: Cell<Time>,
    /// May be after the end of time. Of sessions it is [the bound of timers](ProgressCell::timers_bound).
    pub(crate) fired: Cell<Option<i128>>,
    pub(crate) busy: Cell<bool>,
    /// Whether windows may be due: a late event has come into one that was empty until then, or it is not
    /// known, as after a restart.
    pub(crate) due: Cell<bool>,
    /// Where the key groups are, if they move.
    pub(crate) groups: Option<Rc<Groups>>,
    /// Whether a record of another store was joined.
    joined: Cell<bool>,
    /// Records of other stores that have come, with key groups or all at once.
    came: Cell<u64>,
    /// What the last handle knew beside all this, for the next one.
    left: RefCell<Option<Box<dyn Any>>>,
    table: RefCell<HeapTable<(), ProgressRecord>>,
}

impl ProgressCell {
    pub(crate) fn open(
        name: &str,
        windows: Windows,
        context: StateContext,
        groups: Option<Rc<Groups>>,
    ) -> Result<Rc<Self>> {
        let mut table: HeapTable<(), ProgressRecord> = Heap::new().open(context)?;
        let restored = table.get(&())?.copied();
        let (watermark, settled, fired) = restored.unwrap_or((Time::MIN, Time::MIN, None));
        Ok(Rc::new(Self {
            name: name.into(),
            windows: Cell::new(windows),
            watermark: Cell::new(watermark),
            settled: Cell::new(settled),
            fired: Cell::new(fired.map(|end| i128::from(end.0))),
            busy: Cell::new(false),
            due: Cell::new(restored.is_some()),
            groups,
            joined: Cell::new(false),
            came: Cell::new(0),
            left: RefCell::default(),
            table: RefCell::new(table),
        }))
    }

    /// Goes on for a new handle.
    ///
    /// # Errors
    /// [`ErrorKind::InUse`] if the last one was dropped while windows were being fired: what it had begun
    /// it had not told in full.
    pub(crate) fn go_on(&self, windows: Windows) -> Result<()> {
        if self.busy.get() {
            let message = "the last handle was dropped while windows fired, which cannot be \
                           gone on with: open the store anew, as of its last checkpoint";
            return Err(Error::new(ErrorKind::InUse, message).with("state", &self.name));
        }
        self.windows.set(windows);
        self.due.set(true);
        Ok(())
    }

    /// Keeps what a handle knows that goes.
    pub(crate) fn leave(&self, left: Box<dyn Any>) {
        self.left.replace(Some(left));
    }

    /// What the last handle has left, if it is of this type.
    pub(crate) fn take_left<L: 'static>(&self) -> Option<L> {
        let left = self.left.take()?;
        left.downcast().ok().map(|left| *left)
    }

    /// How far all is done; an error in the middle of something.
    fn record(&self) -> Result<ProgressRecord> {
        if self.busy.get() {
            let message = "windows are being fired; advance until that is done, then checkpoint";
            return Err(Error::new(ErrorKind::InUse, message).with("state", &self.name));
        }
        Ok((self.watermark.get(), self.settled.get(), self.fired.get().map(super::clipped)))
    }

    /// Begins to go on to this watermark, or to the last one if that is later; says to which. Refuses
    /// another one while a key group is on its way: it moves at one.
    pub(crate) fn advance(&self, watermark: Time) -> Result<Time> {
        let watermark = watermark.max(self.watermark.get());
        if let Some(groups) = &self.groups
            && watermark > self.watermark.get()
        {
            groups
                .check_none_under_way("windows go on when the other store has it")
                .map_err(|error| error.with("state", &self.name))?;
        }
        self.watermark.set(watermark);
        self.busy.set(true);
        Ok(watermark)
    }

    /// Of sessions: the time from which on timers may lack, if some do. In a [`ProgressRecord`] it stands where other windows
    /// have the last that fired, negated: where records are joined the earliest counts.
    pub(crate) fn timers_bound(&self) -> Option<Time> {
        self.fired.get().map(|negated| super::clipped(-1 - negated))
    }

    pub(crate) fn set_timers_bound(&self, bound: Option<Time>) {
        self.fired.set(bound.map(|bound| -1 - i128::from(bound.0)));
    }

    /// Returns how many records of other stores have come: with each there may be keys that were not there before.
    pub(crate) fn records_that_came(&self) -> u64 {
        self.came.get()
    }

    /// Whether a key group is on its way.
    pub(crate) fn is_moving(&self) -> bool {
        self.groups.as_ref().is_some_and(|groups| groups.is_any_under_way())
    }

    /// Refuses what has to wait until no key group is on its way.
    pub(crate) fn check_none_moves(&self, what: &str) -> Result<()> {
        let checked = self.groups.as_ref().map_or(Ok(()), |it| it.check_none_under_way(what));
        checked.map_err(|error| error.with("state", &self.name))
    }

    /// Whether the key group of a key is here.
    pub(crate) fn has_key<K: Key>(&self, key: &K) -> bool {
        self.groups.as_ref().is_none_or(|groups| groups.check(key.key_hash()).is_ok())
    }

    /// Refuses events whose key groups are on their way, or elsewhere, and keys that are none of `own`.
    pub(crate) fn check_events<K: Key, E>(
        &self,
        state: &str,
        own: Option<&OwnKeys>,
        events: &[(K, Time, E)],
    ) -> Result<()> {
        if self.groups.is_none() && own.is_none() {
            return Ok(());
        }
        let mut hashes = events.iter().map(|(key, ..)| key.key_hash());
        let of_groups = self.groups.as_ref();
        let checked = of_groups
            .map_or(Ok(()), |groups| hashes.clone().try_for_each(|hash| groups.check(hash)))
            .and_then(|()| own.map_or(Ok(()), |own| own.check_all(&mut hashes)));
        checked.map_err(|error| error.with("state", state))
    }

    /// How far all is done, for a key group that moves: nothing is left to be fired.
    fn record_to_move(&self) -> Result<ProgressRecord> {
        if self.due.get() {
            let message = "windows are due; advance until that is done, then move key groups";
            return Err(Error::new(ErrorKind::InUse, message).with("state", &self.name));
        }
        self.record()
    }

    /// Takes in what the store says that a key group comes from: both are at one watermark, and done with
    /// it, so that of both what has not fired was empty.
    fn meet(&self, (watermark, settled, fired): ProgressRecord) -> Result<()> {
        let (here, also, _) = self.record_to_move()?;
        if (watermark, settled) != (here, also) {
            let message = format!(
                "windows at the watermark {} cannot take in a key group from the watermark {}: advance \
                 both to one, then move it",
                here.0, watermark.0
            );
            return Err(Error::new(ErrorKind::Mismatch, message).with("state", &self.name));
        }
        self.came.set(self.came.get() + 1);
        self.fired.set(self.fired.get().max(fired.map(|end| i128::from(end.0))));
        Ok(())
    }

    /// Joins what another store's checkpoint says, of which this store takes keys over.
    pub(crate) fn take(&self, part: &ForeignState) -> Result<()> {
        // It is not a key's: whoever takes any key of the windows goes on from it.
        part.for_each_of_all(|(), record: ProgressRecord| self.join(record))
    }

    /// Goes on from this record too: all windows that had fired there have fired.
    ///
    /// The watermark must be the same. With different ones no single record would do: from the
    /// earlier one, windows would come out again for keys of the store that was ahead; from the later
    /// one, windows of the other that had not fired would never come out. Checkpoints that were taken
    /// at one frontier have the same watermark. The last window that fired may differ, as windows
    /// without anything do not fire: of the same watermark the latest is right, since what did not
    /// fire before it was empty.
    pub(crate) fn join(&self, (watermark, settled, fired): ProgressRecord) -> Result<()> {
        self.due.set(true);
        let fired = fired.map(|end| i128::from(end.0));
        self.came.set(self.came.get() + 1);
        if !self.joined.replace(true) && self.watermark.get() == Time::MIN {
            self.watermark.set(watermark);
            self.settled.set(settled);
            self.fired.set(fired);
            return Ok(());
        }
        if (watermark, settled) != (self.watermark.get(), self.settled.get()) {
            let (here, there) = (self.watermark.get().0, watermark.0);
            let message = format!(
                "windows at the watermarks {here} and {there} cannot be joined: the checkpoints were \
                 not taken at one frontier"
            );
            return Err(Error::new(ErrorKind::Mismatch, message).with("state", &self.name));
        }
        self.fired.set(self.fired.get().max(fired));
        Ok(())
    }
}

impl Hooks for ProgressCell {
    fn poisoned(&self) -> bool {
        false
    }

    fn tick(&self, _: usize) -> Result<usize> {
        Ok(0)
    }

    fn stats(&self) -> Result<TableStats> {
        Ok(self.table.borrow().stats())
    }

    fn kept_bytes(&self) -> u64 {
        self.table.borrow().kept_bytes()
    }

    fn is_unused(&self) -> Result<bool> {
        Ok(!self.busy.get() && self.watermark.get() == Time::MIN)
    }
}

impl Durable for ProgressCell {
    fn checkpoint(&self, blobs: &mut BlobWriter) -> Result<StateImage> {
        let record = self.record()?;
        let mut table = self.table.borrow_mut();
        table.put((), record)?;
        table.checkpoint(blobs)
    }

    fn begin_checkpoint(&self, blobs: &mut BlobWriter) -> Result<Option<StateImage>> {
        let record = self.record()?;
        let mut table = self.table.borrow_mut();
        table.put((), record)?;
        table.begin_checkpoint(blobs)
    }

    fn continue_checkpoint(&self, blobs: &mut BlobWriter) -> Result<Option<StateImage>> {
        self.table.borrow_mut().continue_checkpoint(blobs)
    }

    fn checkpointed(&self, outcome: CheckpointOutcome) {
        self.table.borrow_mut().checkpointed(outcome);
    }

    fn need(&self) -> Option<&'static str> {
        let has_bound = self.windows.get().are_sessions() && self.timers_bound().is_some();
        has_bound.then_some(definition::FINDS_TIMERS)
    }
}

impl Portable for ProgressCell {
    fn export(&self, visit: VisitCanonical<'_>) -> Result<()> {
        let mut encoded = Encoded::default();
        encoded.set(&(), &self.record()?)?;
        visit(CanonicalEntry::of(().key_hash(), 0, &encoded))
    }

    fn import(&self, entry: CanonicalEntry<'_>) -> Result<()> {
        let ((), record) = Encoded::get::<(), ProgressRecord>(entry.key, entry.value)?;
        self.join(record)
    }
}

impl Movable for ProgressCell {
    fn extract(
        &self,
        group: KeyGroup,
        at: &mut GroupCursor,
        _: usize,
        visit: VisitCanonical<'_>,
    ) -> Result<()> {
        let mut encoded = Encoded::default();
        let windows =
            definition::of_windows(&self.windows.get()).map(|windows| windows.to_string());
        encoded.set(&(), &(self.record_to_move()?, windows.unwrap_or_default()))?;
        // It is not a key's: it goes with each group, under a hash of that.
        let hashes = Groups::hashes_of(self.groups.as_deref(), group);
        visit(CanonicalEntry::of(*hashes.start(), 0, &encoded))?;
        at.cursor.done = true;
        Ok(())
    }

    fn forget(&self, _: KeyGroup, at: &mut GroupCursor, _: usize) -> Result<()> {
        at.cursor.done = true;
        Ok(())
    }

    fn install(&self, entry: CanonicalEntry<'_>, _: &mut EntryArrival) -> Result<()> {
        let ((), (record, windows)) =
            Encoded::get::<(), (ProgressRecord, String)>(entry.key, entry.value)?;
        let (theirs, ours) =
            (serde_json::from_str(&windows).ok(), definition::of_windows(&self.windows.get()));
        let theirs = (theirs.as_ref(), "where the key group comes from");
        definition::check_same(&self.name, theirs, (ours.as_ref(), "here"))?;
        self.meet(record)
    }

    fn may_move(&self) -> Result<()> {
        self.record_to_move().map(drop)
    }
}
