//! How a checkpoint of state in memory ends: it is taken, then confirmed or of an unknown outcome; or it is given up.
//!
//! What it keeps true: what a checkpoint has written counts from its confirmation on. Until then everything is there
//! that the next one needs if it has to write the same again.

use alluvium_pagestore::StateImage;

use super::super::dead::DeadPlaces;
use super::super::ledger::NamedSegments;
use super::super::live_sets::LiveSets;
use super::{ActiveCheckpoint, Remembered};
use crate::contract::table::CheckpointOutcome;
use crate::support::booked::Booked;

/// A checkpoint that was taken and is not decided yet.
#[derive(Debug)]
pub(super) struct UndecidedCheckpoint {
    named: NamedSegments,
    dead: DeadPlaces,
    is_first: bool,
    again: UndoCounts,
}

/// Sets of live records of a checkpoint that was given up. They go one at a time.
#[derive(Debug)]
pub(crate) struct LeftSets {
    sets: LiveSets,
    _booked: Booked,
}

impl LeftSets {
    /// Drops one; says whether there was one.
    pub fn drop_one(&mut self) -> bool {
        self.sets.drop_one()
    }
}

/// What counts again once a checkpoint is given up.
#[derive(Clone, Copy, Debug)]
struct UndoCounts {
    /// Entries that it has written, of a state that does not count changes.
    written: u64,
    /// Entries that had changed, of one that does.
    changed: u64,
}

impl ActiveCheckpoint {
    /// What counts again if it is given up.
    fn again(&self) -> UndoCounts {
        // A state that counts changes counts those that were written, too.
        let written = self.entries.map_or(0, |_| self.naming.encoded);
        UndoCounts { written, changed: self.changed }
    }
}

impl Remembered {
    /// The checkpoint is taken.
    pub(super) fn end(&mut self) -> StateImage {
        let mut taking = *self.taking.take().expect("it was taken");
        let (again, telling) = (taking.again(), taking.telling.take());
        let naming = &mut taking.naming;
        let named = telling.expect("it is told of").into_named();
        self.codec_calls += naming.encoded;
        let image = named.image();
        self.images.taken(&image);
        let is_first = naming.is_first;
        let dead = naming.take_dead(&self.context.account);
        self.undecided = Some(Box::new(UndecidedCheckpoint { named, dead, is_first, again }));
        image
    }

    /// Gives up the checkpoint that is being taken, if one is. Cost: in the number of segments.
    /// What it leaves may be dropped a part at a time.
    pub(crate) fn give_up(&mut self) -> Option<LeftSets> {
        let mut taking = self.taking.take()?;
        let again = taking.again();
        if !taking.is_planned {
            self.changed += again.changed;
            return None;
        }
        if let Some(telling) = taking.telling.take() {
            self.lent = telling.give_up(&self.context);
        }
        let mut naming = taking.naming;
        let dead = naming.take_dead(&self.context.account);
        self.go_back(naming.is_first, dead, again);
        Some(LeftSets { sets: naming.sets, _booked: naming.booked })
    }

    /// What a checkpoint has written is of no use.
    fn go_back(&mut self, is_first: bool, dead: DeadPlaces, again: UndoCounts) {
        if is_first || self.files.is_broken() {
            self.forget();
        } else {
            self.files.given_up(dead, again.written);
            self.changed += again.changed;
        }
    }

    /// Reports the outcome of the checkpoint.
    pub fn decide(&mut self, outcome: CheckpointOutcome) {
        drop(self.give_up());
        self.images.decide(outcome, self.context.segments.as_ref());
        let Some(undecided) = self.undecided.take() else { return };
        let UndecidedCheckpoint { named, dead, is_first, again } = *undecided;
        match outcome {
            CheckpointOutcome::Committed if !self.files.is_broken() => self.files.confirmed(named),
            CheckpointOutcome::Abandoned => self.go_back(is_first, dead, again),
            // Those that it names are not known to be there, or not remembered.
            CheckpointOutcome::Committed | CheckpointOutcome::Unknown => self.forget(),
        }
    }

    /// Frees the notes of dead records, if no checkpoint needs them, and returns whether there were
    /// any. The next checkpoint then writes everything.
    pub fn make_way(&mut self) -> bool {
        if self.taking.is_some() || self.undecided.is_some() {
            return false;
        }
        self.take_lent();
        let has_noted = !self.files.dead().is_empty();
        if has_noted {
            self.files.break_off();
        }
        has_noted
    }
}
