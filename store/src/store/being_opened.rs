//! A state that is being opened, whatever it keeps: what is done before its layout opens it, and after.

use std::any::{Any, TypeId};
use std::rc::Rc;

use alluvium_compaction::SpacePolicy;
use alluvium_layouts::{OutOfLine, StateContext};
use alluvium_pagestore::{Error, ErrorKind, LenientCall, Result, StateManifest};

use super::StoreCore;
use crate::api::expiring::{Lifetime, Sweeping};
use crate::cells::cell_handle::{CellHandle, Claim};
use crate::cells::state_cell::{
    AnyCell, CellContents, CellCore, ContentsKind, Hooks, Lock, StateCell,
};
use crate::durability::moving::{Groups, Mover};
use crate::durability::sources::SourcePart;

/// A state that is asked for and kept in a [cell](crate::cells::state_cell::StateCell).
pub(super) struct RequestedState<'a> {
    pub(super) manifest: StateManifest,
    pub(super) kind: ContentsKind,
    /// The most memory that it may take, if less than what the store has.
    pub(super) limit: Option<u64>,
    pub(super) mover: Option<&'a Mover>,
    /// Opens the time of a state whose entries expire.
    pub(super) open_lifetime: OpenLifetime<'a>,
}

/// Opens the time of a state that is being opened, if its entries expire.
pub(super) type OpenLifetime<'a> = &'a mut dyn FnMut() -> Result<Option<CellHandle<Lifetime>>>;

/// What a cell is made of beside what its layout opens.
pub(super) struct CellParts {
    pub(super) context: StateContext,
    pub(super) core: OutOfLine<CellCore>,
    pub(super) lock: Option<Lock>,
}

/// A cell that was made, as the store has it.
pub(super) struct OpenedCell {
    cell: Rc<AnyCell>,
    hooks: Rc<dyn Hooks>,
    typed: Rc<dyn Any>,
}

impl OpenedCell {
    pub(super) fn new<C: CellContents>(cell: StateCell<C>) -> Self {
        let cell = Rc::new(cell);
        Self { hooks: cell.clone(), typed: cell.clone(), cell }
    }
}

/// Has a layout open a state, and makes its cell.
pub(super) type MakeCell<'m> = &'m mut dyn FnMut(CellParts) -> Result<OpenedCell>;

impl StoreCore {
    /// Opens a state that a cell of type `C` keeps, or has it as its last handle left it.
    ///
    /// # Errors
    /// [`ErrorKind::InUse`] if it has a handle, [`ErrorKind::Mismatch`] if it is stored or in memory as another,
    /// [`ErrorKind::Unsupported`] for a layout that finds no key groups, if they are to move.
    pub(super) fn open_cell<C: CellContents>(
        &self,
        asked: &mut RequestedState<'_>,
        make: MakeCell<'_>,
    ) -> Result<CellHandle<StateCell<C>>> {
        let id = TypeId::of::<StateCell<C>>();
        Ok(CellHandle::of(self.open_cell_of(id, asked, make)?))
    }

    fn open_cell_of(
        &self,
        id: TypeId,
        asked: &mut RequestedState<'_>,
        make: MakeCell<'_>,
    ) -> Result<(Rc<dyn Any>, Claim)> {
        let RequestedState { manifest, kind, limit, mover, open_lifetime } = asked;
        if let Some(left) = self.left_as(id, manifest, *mover)? {
            open_lifetime()?;
            return Ok(left);
        }
        let opening = self.begin_opening(manifest.clone(), *limit, *mover)?;
        let mut frame = opening.frame(*kind)?;
        if *kind != ContentsKind::Timers {
            frame.core.record_by(self.recorder_of(&manifest.name)?);
        }
        let OpenedCell { cell, hooks, typed } = opening.opened(make(frame))?;
        if let Some(lifetime) = open_lifetime()? {
            let now = lifetime.known().now;
            cell.expire_by(Sweeping::new(lifetime.cell().clone()), now)?;
        }
        opening.fill(&cell)?;
        let claim = opening.add(hooks, typed.clone(), false);
        Ok((typed, claim))
    }

    /// Opens a state that can be made again from others, which no checkpoint has.
    pub(super) fn derive_cell<C: CellContents>(
        &self,
        asked: &mut RequestedState<'_>,
        make: MakeCell<'_>,
    ) -> Result<CellHandle<StateCell<C>>> {
        let id = TypeId::of::<StateCell<C>>();
        Ok(CellHandle::of(self.derive_cell_of(id, asked, make)?))
    }

    fn derive_cell_of(
        &self,
        id: TypeId,
        asked: &mut RequestedState<'_>,
        make: MakeCell<'_>,
    ) -> Result<(Rc<dyn Any>, Claim)> {
        let RequestedState { manifest, kind, limit, mover, .. } = asked;
        // One without a handle is made again.
        self.left_as(id, manifest, None)?;
        let mut context = self.context(&manifest.name, *limit)?;
        context.movable = mover.is_some();
        let (manifest, mover, groups) = (manifest.clone(), None, None);
        let _lenient = context.account.lend_left_free();
        let opening = Opening { inner: self, mover, manifest, context, groups, _lenient };
        let mut frame = opening.frame(*kind)?;
        frame.core.derive();
        let OpenedCell { hooks, typed, .. } = opening.opened(make(frame))?;
        let claim = opening.add(hooks, typed.clone(), true);
        Ok((typed, claim))
    }
}

/// A state that is being opened.
pub(super) struct Opening<'a> {
    inner: &'a StoreCore,
    mover: Option<&'a Mover>,
    manifest: StateManifest,
    context: StateContext,
    groups: Option<Rc<Groups>>,
    /// It may have what growth leaves free.
    _lenient: LenientCall,
}

impl StoreCore {
    /// Begins to open a state that is not in memory, with `limit` as the most memory it may take.
    ///
    /// # Errors
    /// [`ErrorKind::InUse`] if it is in memory, [`ErrorKind::Mismatch`] if it is stored as another.
    pub(super) fn begin_opening<'a>(
        &'a self,
        manifest: StateManifest,
        limit: Option<u64>,
        mover: Option<&'a Mover>,
    ) -> Result<Opening<'a>> {
        let mut context = self.context(&manifest.name, limit)?;
        context.movable = mover.is_some();
        let context = self.with_restored(context, &manifest)?;
        let groups = self.groups_in(mover, &manifest.name)?;
        let _lenient = context.account.lend_left_free();
        Ok(Opening { inner: self, mover, manifest, context, groups, _lenient })
    }
}

impl<'a> Opening<'a> {
    /// Has it go with a key group of other states, whose groups are not its own.
    pub(super) fn go_along_with(&mut self, mover: Option<&'a Mover>) {
        self.mover = mover;
    }
}

impl Opening<'_> {
    /// What it is opened with.
    pub(super) fn context(&self) -> &StateContext {
        &self.context
    }

    /// What its cell is made of, which the store pairs with compaction if it is a map. If key groups come and go
    /// its tables are for all of them.
    fn frame(&self, kind: ContentsKind) -> Result<CellParts> {
        let mut context = self.context.clone();
        if context.movable {
            context.owned = 0..context.key_groups;
        }
        let mut core = CellCore::new(&self.manifest.name, kind, self.groups());
        if kind == ContentsKind::Map {
            core.compact_to(SpacePolicy::with_limit(self.inner.config.space_amplification)?);
        }
        Ok(CellParts { context, core, lock: self.inner.lock.clone() })
    }

    /// Where its key groups are, if they move.
    pub(super) fn groups(&self) -> Option<Rc<Groups>> {
        self.groups.clone()
    }

    /// What became of opening it.
    pub(super) fn opened<S>(&self, opened: Result<S>) -> Result<S> {
        self.inner.opened(opened, &self.manifest.name)
    }

    #[cold]
    fn cannot_move(&self) -> Error {
        let StateManifest { name, layout, .. } = &self.manifest;
        let message = format!("in the layout {layout} as it is, key groups cannot move");
        Error::new(ErrorKind::Unsupported, message).with("state", name)
    }

    /// Puts what other stores' checkpoints have of it into it. `extra` is memory that this takes beside reading.
    pub(super) fn take_parts(
        &self,
        extra: u64,
        take: &mut dyn FnMut(&SourcePart) -> Result<()>,
    ) -> Result<()> {
        self.inner.take_parts(&self.context, &self.manifest, extra, take)
    }

    /// Puts what other stores' checkpoints have of it into its cell.
    fn fill(&self, cell: &AnyCell) -> Result<()> {
        let mut contents = cell.enter()?;
        if self.groups.is_some() && !contents.finds_groups() {
            return Err(self.cannot_move());
        }
        self.take_parts(contents.batch_bytes(), &mut |part| part.read(|part| contents.take(part)))
    }

    /// Adds it to the states that are open, and to those that move with it.
    pub(super) fn register<C: Hooks + 'static>(&self, cell: Rc<C>) -> CellHandle<C> {
        let claim = self.add(cell.clone(), cell.clone(), false);
        CellHandle::new(cell, claim)
    }

    fn add(&self, hooks: Rc<dyn Hooks>, cell: Rc<dyn Any>, is_derived: bool) -> Claim {
        if let Some(mover) = self.mover {
            mover.add(&self.manifest, hooks.clone());
        }
        let of = (self.manifest.clone(), self.context.account.clone());
        self.inner.add(self.groups.clone(), of, (hooks, cell), is_derived)
    }
}
