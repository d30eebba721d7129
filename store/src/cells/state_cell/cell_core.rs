//! What the store knows of a state whatever it keeps: its name, calls, poison, key groups, and what it owes to
//! compaction and checkpoints.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;

use alluvium_compaction::{Compactor, SpacePolicy};
use alluvium_layouts::{CheckpointOutcome, OutOfLine, TableStats};
use alluvium_pagestore::{Error, ErrorKind, Key, Result, Time};

use super::CellContents;
use crate::api::expiring::Sweeping;
use crate::cells::pacing::Pacing;
use crate::cells::recording::Recorder;
use crate::durability::moving::Groups;
use crate::store::crowded::CrowdedWarning;

/// What a state's contents are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ContentsKind {
    /// A value by key, which can be borrowed.
    Map,
    /// Lists in buckets of time.
    Lists,
    /// Accumulators in slices of time, which a user's function merges.
    Panes,
    /// Timers, in the order of their times.
    Timers,
}

/// A state apart from its contents.
#[derive(Debug)]
pub(crate) struct CellCore {
    pub(super) name: String,
    pub(super) kind: ContentsKind,
    pub(super) poisoned: Cell<bool>,
    /// Writes since compaction was last given fuel.
    writes: Cell<usize>,
    /// Writes before those, and what is counted elsewhere than in the cell.
    calls: Cell<u64>,
    pub(super) pacing: Pacing,
    /// Of a state that the store pairs with compaction.
    pub(super) compactor: Option<RefCell<Compactor>>,
    /// Fuel for writes that compaction could not use yet, because it waited for its helper.
    pub(super) owed: Cell<usize>,
    crowded: CrowdedWarning,
    /// The last error of compaction or of a pass over what expires; writes go on without them.
    pub(super) failed: RefCell<Option<Error>>,
    /// What became of a checkpoint while the contents were in use.
    pub(super) outcome: Cell<Option<CheckpointOutcome>>,
    /// How entries are removed that are over, if they expire.
    pub(super) sweeping: OnceCell<Sweeping>,
    /// Can be made again: no checkpoint has it.
    pub(super) is_derived: bool,
    /// May be emptied to make room, and was.
    pub(super) droppable: Cell<bool>,
    pub(super) dropped: Cell<bool>,
    /// How often entries were imported.
    imports: Cell<u64>,
    /// Where its key groups are, if they move.
    groups: Option<Rc<Groups>>,
    /// The trace that its calls go to, if there is one.
    recorder: Option<Recorder>,
}

/// Compaction gets fuel after so many writes.
const WRITES_PER_SHARE: usize = 64;

impl CellCore {
    pub(crate) fn new(
        name: &str,
        kind: ContentsKind,
        groups: Option<Rc<Groups>>,
    ) -> OutOfLine<Self> {
        OutOfLine::new(Self {
            name: name.into(),
            kind,
            poisoned: Cell::new(false),
            writes: Cell::new(0),
            calls: Cell::new(0),
            pacing: Pacing::default(),
            compactor: None,
            owed: Cell::new(0),
            crowded: CrowdedWarning::default(),
            failed: RefCell::default(),
            outcome: Cell::new(None),
            sweeping: OnceCell::new(),
            is_derived: false,
            droppable: Cell::new(false),
            dropped: Cell::new(false),
            imports: Cell::new(0),
            groups,
            recorder: None,
        })
    }

    /// Has the store pair it with compaction, to this bound of space on storage.
    pub(crate) fn compact_to(&mut self, policy: SpacePolicy) {
        self.compactor = Some(RefCell::new(Compactor::new(policy)));
    }

    /// Has its calls go to a trace.
    pub(crate) fn record_by(&mut self, recorder: Option<Recorder>) {
        self.recorder = recorder;
    }

    /// The trace that its calls go to, if there is one.
    #[inline]
    pub(crate) fn recorder(&self) -> Option<&Recorder> {
        self.recorder.as_ref()
    }

    /// It can be made again from others.
    pub(crate) fn derive(&mut self) {
        self.is_derived = true;
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Where the key groups are, if they move.
    #[inline]
    pub(crate) fn groups(&self) -> Option<&Groups> {
        self.groups.as_deref()
    }

    /// [`groups`](CellCore::groups), for contents that keep them.
    pub(crate) fn shared_groups(&self) -> Option<Rc<Groups>> {
        self.groups.clone()
    }

    /// A number that is another when a key group has come or gone.
    pub(crate) fn changes(&self) -> u64 {
        self.groups().map_or(0, Groups::changes)
    }

    /// A number that is another when entries were imported.
    pub(crate) fn imports(&self) -> u64 {
        self.imports.get()
    }

    /// Entries are imported.
    pub(super) fn note_import(&self) {
        self.imports.set(self.imports.get() + 1);
    }

    /// Whether what a key has here counts: its group is here, or being given away.
    pub(crate) fn counts(&self, key: &impl Key) -> bool {
        self.groups().is_none_or(|groups| groups.has_hash(key.key_hash()))
    }

    pub(crate) fn is_poisoned(&self) -> bool {
        self.poisoned.get()
    }

    pub(crate) fn clear_poison(&self) {
        self.poisoned.set(false);
    }

    /// Lets all of it be dropped when other states need room that storage cannot make.
    pub(crate) fn may_drop(&self) {
        self.droppable.set(true);
    }

    /// Takes that back.
    pub(crate) fn keep(&self) {
        self.droppable.set(false);
    }

    /// Whether it was dropped since this was asked last.
    pub(crate) fn was_dropped(&self) -> bool {
        self.dropped.take()
    }

    #[cold]
    pub(super) fn in_use(&self) -> Error {
        let message = match self.kind {
            ContentsKind::Map => {
                "the state is in use: a value of it is borrowed, or its own closure calls it"
            }
            ContentsKind::Lists | ContentsKind::Panes | ContentsKind::Timers => {
                "the state is in use: its own closure calls it"
            }
        };
        Error::new(ErrorKind::InUse, message).with("state", &self.name)
    }
}

/// Calls, and what they pay for.
impl CellCore {
    /// Counts a call on so many keys.
    #[inline]
    pub(crate) fn count(&self, keys: usize) {
        self.calls.set(self.calls.get() + keys as u64);
    }

    /// Before a call that writes so many records: now and then compaction gets its share.
    #[inline]
    pub(crate) fn write<C: CellContents>(&self, contents: &mut C, writes: usize) {
        let pending = self.writes.get() + writes;
        if pending >= WRITES_PER_SHARE {
            self.pay(contents, pending);
        } else {
            self.writes.set(pending);
        }
    }

    #[inline(never)]
    fn pay(&self, contents: &mut dyn CellContents, writes: usize) {
        self.writes.set(0);
        self.count(writes);
        self.crowded.watch(Some(&self.name), contents.upkeep().fixed_bytes());
        self.sweep(contents, Self::fuel_for(writes), false);
        self.pay_compaction(contents.upkeep_mut(), writes);
    }

    /// Keys that were counted here: all writes, and the reads of a recorded state.
    pub(super) fn calls(&self) -> u64 {
        self.calls.get() + self.writes.get() as u64
    }

    /// Adds what only the store has counted.
    pub(super) fn describe(&self, stats: &mut TableStats) {
        if let Some(sweeping) = self.sweeping.get() {
            let (expired, looks) = sweeping.counts();
            stats.expired += expired;
            stats.expiry_looks = looks;
        }
    }
}

/// Entries that expire.
impl CellCore {
    /// Whether entries expire.
    pub(super) fn expires(&self) -> bool {
        self.sweeping.get().is_some()
    }

    /// What was touched last before this is over at this moment.
    pub(super) fn over(&self) -> Time {
        self.sweeping.get().map_or(Time::MIN, Sweeping::over)
    }

    /// A value came from elsewhere: the time was at least when it was touched.
    ///
    /// # Errors
    /// Those of a time that jumps too far.
    pub(crate) fn saw(&self, touched: Time) -> Result<()> {
        self.sweeping.get().map_or(Ok(()), |sweeping| sweeping.saw(touched))
    }

    /// Looks for entries that are over. Errors are kept for statistics: they concern no write, and the next share tries
    /// again.
    pub(super) fn sweep(&self, contents: &mut dyn CellContents, fuel: usize, idle: bool) -> usize {
        let Some(sweeping) = self.sweeping.get() else { return 0 };
        let swept = sweeping.step(fuel, idle, &mut |pass, fuel| contents.expire(pass, fuel));
        swept.unwrap_or_else(|error| {
            self.failed.replace(Some(error));
            0
        })
    }
}
