//! Panes and lists, shared between windowed state and the store's maintenance hooks.

mod lists;
mod panes;

use std::cell::{Cell, RefCell, RefMut};
use std::ops::RangeInclusive;
use std::rc::Rc;

use alluvium_layouts::{CheckpointOutcome, Cursor, TableStats, Upkeep};
use alluvium_pagestore::{BlobWriter, Error, ErrorKind, Key, KeyGroup, Result, StateImage, Time};

use crate::moving::{Groups, Place};
use crate::pacing::{Pacing, Stream};
use crate::state_cell::{Lock, Mark};

pub(crate) use lists::ListsCell;
pub(crate) use panes::PanesCell;

/// A part of a layout, its name, and whether a user's closure panicked in it.
#[derive(Debug)]
pub(crate) struct Shared<T> {
    name: String,
    inner: RefCell<T>,
    poisoned: Cell<bool>,
    calls: Cell<u64>,
    pacing: Pacing,
    /// Can be made again: no checkpoint has it.
    is_derived: bool,
    /// May be emptied to make room, and was.
    droppable: Cell<bool>,
    dropped: Cell<bool>,
    /// Where the key groups are, if they move.
    groups: Option<Rc<Groups>>,
    /// Declared last, so that the helpers are done with the directory before it is free.
    _lock: Option<Lock>,
}

impl<T> Shared<T> {
    pub(crate) fn new(name: &str, inner: T, lock: Option<Lock>) -> Self {
        let (poisoned, calls, pacing) = (Cell::new(false), Cell::new(0), Pacing::default());
        let inner = RefCell::new(inner);
        let (droppable, dropped) = (Cell::new(false), Cell::new(false));
        let name = name.into();
        let (is_derived, groups) = (false, None);
        Self {
            name,
            inner,
            poisoned,
            calls,
            pacing,
            is_derived,
            droppable,
            dropped,
            groups,
            _lock: lock,
        }
    }

    /// A number that is another when a key group has come or gone.
    pub(crate) fn changes(&self) -> u64 {
        self.groups.as_ref().map_or(0, |groups| groups.changes())
    }

    /// Whether what a key has here counts: its group is here, or being given away.
    pub(crate) fn counts(&self, key: &impl Key) -> bool {
        self.groups.as_ref().is_none_or(|groups| groups.has_hash(key.key_hash()))
    }

    /// Where the key groups are, if they move.
    pub(crate) fn groups(&self) -> Option<&Groups> {
        self.groups.as_deref()
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn enter(&self) -> Result<RefMut<'_, T>> {
        self.inner.try_borrow_mut().map_err(|_| {
            let message = "the state is in use: its own closure calls it";
            Error::new(ErrorKind::InUse, message).with("state", &self.name)
        })
    }

    /// [`enter`](Shared::enter) for a call on so many keys.
    #[inline]
    pub(crate) fn enter_for(&self, keys: usize) -> Result<RefMut<'_, T>> {
        let inner = self.enter()?;
        self.calls.set(self.calls.get() + keys as u64);
        Ok(inner)
    }

    /// Runs a call on so many keys that runs user code; a panic in it poisons the state.
    #[inline]
    pub(crate) fn run<R>(&self, keys: usize, call: impl FnOnce(&mut T) -> R) -> Result<R> {
        let mut inner = self.enter_for(keys)?;
        let mark = Mark::new(&self.poisoned);
        let result = call(&mut inner);
        std::mem::forget(mark);
        Ok(result)
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

    /// The hashes of a key group.
    fn hashes_of(&self, group: KeyGroup) -> RangeInclusive<u64> {
        Groups::hashes_of(self.groups(), group)
    }
}

/// What the store does with a part whatever it keeps.
impl<T: Upkeep> Shared<T> {
    fn checkpoint(&self, blobs: &mut BlobWriter) -> Result<StateImage> {
        match self.is_derived {
            true => Ok(StateImage::default()),
            false => self.enter()?.checkpoint(blobs),
        }
    }

    fn begin_checkpoint(&self, blobs: &mut BlobWriter) -> Result<Option<StateImage>> {
        match self.is_derived {
            true => Ok(Some(StateImage::default())),
            false => {
                let mut inner = self.enter()?;
                self.pacing.begin(self.calls.get());
                inner.begin_checkpoint(blobs)
            }
        }
    }

    fn pace_checkpoint(&self, stream: Stream) -> Result<()> {
        let mut inner = self.enter()?;
        inner.pace_checkpoint(self.pacing.pace(self.calls.get(), stream));
        Ok(())
    }

    fn continue_checkpoint(&self, blobs: &mut BlobWriter) -> Result<Option<StateImage>> {
        match self.is_derived {
            true => Ok(Some(StateImage::default())),
            false => self.enter()?.continue_checkpoint(blobs),
        }
    }

    fn checkpointed(&self, outcome: CheckpointOutcome) {
        // Its own closures, which alone could be inside, do not reach the store.
        if let (false, Ok(mut inner)) = (self.is_derived, self.enter()) {
            inner.checkpointed(outcome);
        }
    }

    fn tick(&self, work: usize) -> Result<usize> {
        self.enter()?.tick(work)
    }

    /// Has it give up memory; if that is not enough, all of it that may be dropped, which `purge` does.
    fn reclaim(&self, bytes: u64, purge: impl FnOnce(&mut T) -> Result<bool>) -> Result<u64> {
        let Ok(mut inner) = self.inner.try_borrow_mut() else { return Ok(0) };
        let give_up = || {
            let mut given = inner.reclaim(bytes)?;
            if given < bytes && self.droppable.take() {
                self.dropped.set(true);
                // Out of sight at once; the memory comes with what is asked for next.
                purge(&mut inner)?;
                given += inner.reclaim(bytes - given)?;
            }
            Ok(given)
        };
        give_up().map_err(|e: Error| e.with("state", &self.name))
    }

    fn fixed_bytes(&self) -> (u64, u64) {
        self.inner.try_borrow().map_or((0, u64::MAX), |inner| inner.fixed_bytes())
    }

    fn stats(&self) -> Result<TableStats> {
        Ok(TableStats { calls: self.calls.get(), ..self.enter()?.stats() })
    }
}

/// Does a step of what a key group has in one slice or bucket after the other, from a place on: `step` says
/// how much of the fuel it took.
fn each_of_group<T>(
    at: &mut Place,
    fuel: usize,
    part: &mut T,
    next: impl Fn(&T, Time) -> Option<Time>,
    mut step: impl FnMut(&mut T, Time, &mut Cursor, usize) -> Result<usize>,
) -> Result<()> {
    let mut left = fuel.max(1);
    while left > 0 && !at.cursor.done {
        let Some(time) = at.within.or_else(|| next(part, Time::MIN)) else {
            at.cursor.done = true;
            return Ok(());
        };
        let mut cursor = at.cursor;
        let taken = step(part, time, &mut cursor, left);
        (at.within, at.cursor) = (Some(time), cursor);
        left = left.saturating_sub(taken?.max(1));
        if cursor.done {
            at.within = after(time, |from| next(part, from));
            at.cursor = Cursor { done: at.within.is_none(), ..Cursor::default() };
        }
    }
    Ok(())
}

/// The slice or bucket after one.
fn after(time: Time, next: impl Fn(Time) -> Option<Time>) -> Option<Time> {
    time.0.checked_add(1).and_then(|after| next(Time(after)))
}
