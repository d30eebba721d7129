//! What a handle has of a state: the state, shared with the store, and that nobody else opens it.
//!
//! What it keeps true: a state has one handle at a time. When that is dropped the state stays in the store
//! as it is, in memory and in checkpoints, until it is opened again.

use std::any::Any;
use std::fmt;
use std::ops::Deref;
use std::rc::{Rc, Weak};

use alluvium_pagestore::Result;

use crate::api::own_keys::OwnKeys;
use crate::cells::recording::Recorder;
use crate::durability::moving::Groups;

/// A handle's part of a state.
pub(crate) struct CellHandle<C> {
    cell: Rc<C>,
    /// The keys that may be written through this handle, if these are not all.
    own: Option<OwnKeys>,
    /// Whether calls are looked at: some keys are refused, or the state is recorded. One test of the record
    /// path stands for both.
    is_watched: bool,
    _claim: Claim,
}

/// Says that a state has a handle, as long as it is there.
#[derive(Clone, Debug)]
pub(crate) struct Claim(Rc<()>);

/// What the store knows of a [`Claim`].
#[derive(Debug, Default)]
pub(crate) struct Claimed(Weak<()>);

impl Claimed {
    /// Whether there is a handle.
    pub(crate) fn is_held(&self) -> bool {
        self.0.strong_count() > 0
    }

    /// Takes the state for a new handle.
    pub(crate) fn claim(&mut self) -> Claim {
        let claim = Claim(Rc::new(()));
        self.0 = Rc::downgrade(&claim.0);
        claim
    }
}

/// State whose key groups may move.
pub(crate) trait HasGroups {
    /// The state's name.
    fn name(&self) -> &str;
    /// Where its key groups are, if they move.
    fn groups(&self) -> Option<&Groups>;
    /// The trace that its calls go to, if there is one.
    fn recorder(&self) -> Option<&Recorder>;
}

impl<C> CellHandle<C> {
    pub(crate) fn new(cell: Rc<C>, claim: Claim) -> Self {
        Self { cell, own: None, is_watched: true, _claim: claim }
    }

    /// That of a state whose type was looked at.
    pub(crate) fn of((cell, claim): (Rc<dyn Any>, Claim)) -> Self
    where
        C: 'static,
    {
        let Ok(cell) = cell.downcast() else { unreachable!("a state of another type") };
        Self::new(cell, claim)
    }

    /// Takes no other keys from now on.
    #[must_use]
    pub(crate) fn keeping_to(self, own: Option<OwnKeys>) -> Self {
        Self { own, ..self }
    }

    /// The state, as the store has it.
    pub(crate) fn cell(&self) -> &Rc<C> {
        &self.cell
    }

    /// The keys that it takes, if these are not all.
    pub(crate) fn own(&self) -> Option<&OwnKeys> {
        self.own.as_ref()
    }
}

impl<C: HasGroups> CellHandle<C> {
    /// Looks at calls only if there is something to look for. Until then all are looked at.
    #[must_use]
    pub(crate) fn watching(self) -> Self {
        let refuses = self.own.is_some() || self.cell.groups().is_some();
        let is_watched = refuses || self.cell.recorder().is_some();
        Self { is_watched, ..self }
    }

    /// Whether calls are looked at.
    #[inline]
    pub(crate) fn is_watched(&self) -> bool {
        self.is_watched
    }

    /// The trace that a read goes to, if there is one.
    #[inline]
    pub(crate) fn recorder(&self) -> Option<&Recorder> {
        if self.is_watched { self.cell.recorder() } else { None }
    }

    /// Whether the key with this hash may be changed. The hash is taken only of states whose calls are looked at.
    /// Returns the trace that the change goes to, if there is one.
    #[inline]
    pub(crate) fn check(&self, hash: impl FnOnce() -> u64) -> Result<Option<&Recorder>> {
        if self.is_watched { self.check_hash(hash()) } else { Ok(None) }
    }

    /// [`check`](CellHandle::check) of a state whose calls are looked at.
    pub(crate) fn check_hash(&self, hash: u64) -> Result<Option<&Recorder>> {
        match check_one(self.cell.groups(), self.own.as_ref(), hash) {
            Ok(()) => Ok(self.cell.recorder()),
            Err(error) => Err(error.with("state", self.cell.name())),
        }
    }

    /// [`check`](CellHandle::check) of several keys.
    #[inline]
    pub(crate) fn check_all(&self, hashes: impl Iterator<Item = u64> + Clone) -> Result<()> {
        let of_groups = |groups: &Groups| hashes.clone().try_for_each(|hash| groups.check(hash));
        let of_groups = self.cell.groups().map_or(Ok(()), of_groups);
        let own = |own: &OwnKeys| own.check_all(hashes);
        of_groups
            .and_then(|()| self.own.as_ref().map_or(Ok(()), own))
            .map_err(|error| error.with("state", self.cell.name()))
    }
}

#[inline(never)]
fn check_one(groups: Option<&Groups>, own: Option<&OwnKeys>, hash: u64) -> Result<()> {
    groups.map_or(Ok(()), |groups| groups.check(hash))?;
    own.map_or(Ok(()), |own| own.check(hash))
}

impl<C> Clone for CellHandle<C> {
    fn clone(&self) -> Self {
        Self {
            cell: self.cell.clone(),
            own: self.own.clone(),
            is_watched: self.is_watched,
            _claim: self._claim.clone(),
        }
    }
}

impl<C> Deref for CellHandle<C> {
    type Target = C;

    #[inline]
    fn deref(&self) -> &C {
        &self.cell
    }
}

impl<C: fmt::Debug> fmt::Debug for CellHandle<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cell.fmt(f)
    }
}
