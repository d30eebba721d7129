//! What a state is opened with: its part of the memory, and what the last checkpoint says of it.
//!
//! What it keeps true: a state has one handle at a time, and its next handle finds it as the last one left
//! it; a state is opened with the types it was stored with, or refused.

use std::any::{Any, TypeId};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use alluvium_layouts::StateContext;
use alluvium_pagestore::{
    Account, BlobReader, CheckpointImage, Error, ErrorKind, KeyGroups, MemoryKind, Result,
    StateImage, StateManifest, refused_attributes,
};

use super::{OpenState, StoreCore, kept};
use crate::cells::cell_handle::{CellHandle, Claim, Claimed};
use crate::cells::state_cell::Hooks;
use crate::durability::moving::{GroupStock, Groups, Mover};
use crate::durability::sources::Sources;
use crate::store::definition;

/// The layout of panes that keeps no table.
const WINDOW_SEGMENTS: &str = "window-segments";

/// Refuses types by serde that contain others whose attributes make them write something else than
/// they read. The derive macro refuses such types by serde themselves, and does not see what
/// they contain.
fn check_attributes(asked: &StateManifest) -> Result<()> {
    let refused =
        [&asked.key, &asked.value].into_iter().find_map(|types| refused_attributes(types));
    let Some(refused) = refused else { return Ok(()) };
    let message = format!(
        "{refused} is stored by serde and would not come back as it was written; leave the attribute \
         out, or promise with `#[state(trusted)]` that it does"
    );
    Err(Error::new(ErrorKind::Config, message).with("state", &asked.name))
}

impl StoreCore {
    pub(super) fn context(&self, name: &str, limit: Option<u64>) -> Result<StateContext> {
        if name.is_empty() || name.len() > 200 {
            let message = format!("\"{name}\" cannot name a state; 1 to 200 bytes can");
            return Err(Error::new(ErrorKind::Config, message));
        }
        if self.states.borrow().iter().any(|state| state.manifest.name == name) {
            return Err(is_open(name));
        }
        self.book_left();
        self.lend_to_open();
        Ok(StateContext {
            name: name.into(),
            account: Account::below(&self.root, name, limit.unwrap_or(u64::MAX)),
            segments: self.segments.clone(),
            helper: self.helper.clone(),
            max_value_bytes: self.config.max_value_bytes(),
            key_groups: self.config.key_groups,
            owned: self.owned.clone(),
            movable: false,
            restored: None,
        })
    }

    /// What the last checkpoint says of a state, or, in a store that is made of others, what theirs
    /// say; and whether it is this store's own.
    pub(super) fn stored(&self, name: &str) -> (bool, Option<StateManifest>) {
        let find = |base: &Arc<CheckpointImage>| {
            kept(base, &self.dropped.borrow()).find(|state| state.name == name).cloned()
        };
        match self.checkpoints.borrow().base().map(find) {
            Some(own) => (true, own),
            None if self.dropped.borrow().contains(name) => (false, None),
            None => (false, self.sources.as_ref().and_then(|sources| sources.state(name))),
        }
    }

    /// Adds what the last checkpoint says of the state, which must be of the same types.
    pub(super) fn with_restored(
        &self,
        mut context: StateContext,
        asked: &StateManifest,
    ) -> Result<StateContext> {
        check_attributes(asked)?;
        let (is_own, stored) = self.stored(&asked.name);
        let Some(stored) = stored else { return Ok(context) };
        check_types(&stored, asked)?;
        if !is_own {
            return Ok(context);
        }
        if !reads(asked, &stored.layout) {
            let (stored, asked) = (&stored.layout, &asked.layout);
            let message = format!(
                "the stored layout is {stored}; requested is {asked}, which cannot read it: make a \
                 new store of the checkpoint, or export it and import it"
            );
            return Err(Error::new(ErrorKind::Mismatch, message).with("state", &context.name));
        }
        let device = context.segment_store()?.for_opening().shared_device();
        context.restored = Some((stored.image.clone(), BlobReader::new(device)));
        let stock = self.stock_of(&stored);
        if !context.movable && stock != GroupStock::of(self.owned.clone().into()) {
            let (has, Range { start, end }) = (stock.here, &self.owned);
            let message = format!(
                "the checkpoint has key groups {has} of the state, not {start}..{end}, as they have \
                 moved: open it to move again, or make a new store of the checkpoints of those that \
                 have the groups"
            );
            return Err(Error::new(ErrorKind::Mismatch, message).with("state", &context.name));
        }
        Ok(context)
    }

    /// What became of opening a state. Reads that were given up keep their memory until they end.
    pub(super) fn opened<S>(&self, opened: Result<S>, name: &str) -> Result<S> {
        opened.map_err(|error| self.not_opened(error, name))
    }

    #[cold]
    fn not_opened(&self, error: Error, name: &str) -> Error {
        self.book_left();
        error.with("state", name)
    }

    /// Books what the device has of requests that were given up while a state was opened or exported.
    pub(crate) fn book_left(&self) {
        let own = self.segments.as_ref().map_or(0, |segments| segments.for_opening().left_bytes());
        let others = self.sources.as_ref().map_or(0, Sources::left_bytes);
        let booked = self.left_bytes.replace(own + others);
        self.root.adjust(MemoryKind::Buffers, booked, own + others);
    }

    /// The key groups that a checkpoint of this store has of a state.
    fn stock_of(&self, stored: &StateManifest) -> GroupStock {
        match &stored.groups {
            Some(here) => GroupStock { here: here.clone(), going: stored.going.clone() },
            None => GroupStock::of(self.owned.clone().into()),
        }
    }

    /// Has a state that is being opened move with the others of `mover`, if there is one.
    pub(super) fn groups_in(
        &self,
        mover: Option<&Mover>,
        name: &str,
    ) -> Result<Option<Rc<Groups>>> {
        let Some(mover) = mover else { return Ok(None) };
        let checkpoints = self.checkpoints.borrow();
        let dropped = self.dropped.borrow();
        let mut states = checkpoints.base().into_iter().flat_map(|base| kept(base, &dropped));
        let restored = states.find(|state| state.name == name).map(|state| self.stock_of(state));
        let written = || self.written_in(mover.groups());
        let groups = mover.groups_for(&self.root, restored, written);
        groups.map(Some).map_err(|error| error.with("state", name))
    }

    /// An open state of the unit that has entries.
    fn written_in(&self, unit: &Rc<Groups>) -> Option<String> {
        let states = self.states.borrow();
        let written = states.iter().find(|state| {
            let is_of_it = state.groups.as_ref().is_some_and(|groups| Rc::ptr_eq(groups, unit));
            is_of_it && state.hooks.stats().is_ok_and(|stats| stats.live_keys > 0)
        });
        written.map(|state| state.manifest.name.clone())
    }

    /// What the last checkpoint has of a unit; none if it has no such, if it is of a build that did not
    /// name units, or if states of the unit have moved apart.
    pub(crate) fn stock_of_unit(&self, unit: &str) -> Option<GroupStock> {
        let checkpoints = self.checkpoints.borrow();
        let states = checkpoints.base().into_iter().flat_map(|base| &base.states);
        let is_of_it = |state: &&StateManifest| state.unit.as_deref() == Some(unit);
        let mut all = states.filter(is_of_it).map(|state| self.stock_of(state));
        let first = all.next()?;
        all.all(|stock| stock == first).then_some(first)
    }

    /// The state that `asked` names, if it is in memory and has no handle: as its last one left it.
    ///
    /// # Errors
    /// [`ErrorKind::InUse`] if it has a handle, [`ErrorKind::Mismatch`] if it is of other types, another
    /// definition or layout, or moves with others.
    pub(super) fn left<C: 'static>(
        &self,
        asked: &StateManifest,
        mover: Option<&Mover>,
    ) -> Result<Option<CellHandle<C>>> {
        let left = self.left_as(TypeId::of::<C>(), asked, mover)?;
        Ok(left.map(CellHandle::of))
    }

    /// [`left`](StoreCore::left) of the type of Rust with this id.
    pub(super) fn left_as(
        &self,
        id: TypeId,
        asked: &StateManifest,
        mover: Option<&Mover>,
    ) -> Result<Option<(Rc<dyn Any>, Claim)>> {
        let Some((cell, claim)) = self.claim(asked, mover)? else { return Ok(None) };
        if (*cell).type_id() != id {
            return Err(is_of_other_types(&asked.name));
        }
        self.redefine(asked);
        Ok(Some((cell, claim)))
    }

    /// Has the next checkpoint say of the state that `asked` names that it is of this definition.
    fn redefine(&self, asked: &StateManifest) {
        self.states
            .borrow_mut()
            .iter_mut()
            .filter(|state| state.manifest.name == asked.name)
            .for_each(|state| state.manifest.definition.clone_from(&asked.definition));
    }

    /// [`left`](StoreCore::left), whatever its types of Rust are.
    fn claim(
        &self,
        asked: &StateManifest,
        mover: Option<&Mover>,
    ) -> Result<Option<(Rc<dyn Any>, Claim)>> {
        self.forget(|state| state.is_derived);
        let check = |open: &OpenState| {
            check_types(&open.manifest, asked)?;
            let (has, asks) = (&open.manifest.layout, &asked.layout);
            let moves_as_asked = match (&open.groups, mover) {
                (None, None) => true,
                (Some(groups), Some(mover)) => Rc::ptr_eq(groups, mover.groups()),
                _ => false,
            };
            let message = match (has == asks, moves_as_asked) {
                (false, _) => format!(
                    "the state is in memory in the layout {has}, requested is {asks}: open the store \
                     anew to change it"
                ),
                (true, false) => {
                    "the key groups of the state are to move with others than before: \
                                  open the store anew to change that"
                        .into()
                }
                (true, true) => return Ok(()),
            };
            Err(Error::new(ErrorKind::Mismatch, message).with("state", &asked.name))
        };
        let mut unfit = Ok(());
        if let Some(state) =
            self.states.borrow_mut().iter_mut().find(|state| state.manifest.name == asked.name)
        {
            if state.claimed.is_held() {
                return Err(is_open(&asked.name));
            }
            unfit = check(state);
            if unfit.is_ok() {
                return Ok(Some((state.cell.clone(), state.claimed.claim())));
            }
        }
        // One that failed to be built may have opened states that it has not come to use.
        if unfit.is_err() && self.is_unused(&asked.name)? {
            self.forget(|state| state.manifest.name == asked.name);
            return Ok(None);
        }
        unfit.map(|()| None)
    }

    /// Whether nothing was ever written to a state, of which no checkpoint knows either.
    fn is_unused(&self, name: &str) -> Result<bool> {
        if self.stored(name).1.is_some() || self.checkpoints.borrow().is_sealing() {
            return Ok(false);
        }
        let states = self.states.borrow();
        let Some(state) = states.iter().find(|state| state.manifest.name == name) else {
            return Ok(true);
        };
        // The store has it twice; who else has it needs it.
        Ok(Rc::strong_count(&state.hooks) == 2 && state.hooks.is_unused()?)
    }

    /// Drops states without handles.
    fn forget(&self, which: impl Fn(&OpenState) -> bool) {
        let is_forgotten = |state: &OpenState| !state.claimed.is_held() && which(state);
        let mut states = self.states.borrow_mut();
        let forgotten: Vec<_> = states.extract_if(.., |state| is_forgotten(state)).collect();
        drop(states);
        if !forgotten.is_empty() {
            drop(forgotten);
            self.elastic.states.borrow_mut().retain(|hooks| hooks.strong_count() > 0);
        }
    }

    /// Adds a state to those that are open, with its first handle.
    pub(super) fn add(
        &self,
        groups: Option<Rc<Groups>>,
        (manifest, account): (StateManifest, Rc<Account>),
        (hooks, cell): (Rc<dyn Hooks>, Rc<dyn Any>),
        is_derived: bool,
    ) -> Claim {
        self.elastic.states.borrow_mut().push(Rc::downgrade(&hooks));
        let mut claimed = Claimed::default();
        let claim = claimed.claim();
        let state = OpenState { manifest, account, hooks, cell, claimed, is_derived, groups };
        self.states.borrow_mut().push(state);
        // It may have been lent.
        self.kept_back.fill();
        claim
    }
}

#[cold]
fn is_of_other_types(name: &str) -> Error {
    let message = "the state is in memory in other types of Rust, which are stored alike: \
                   open it with those that it had, or open the store anew";
    Error::new(ErrorKind::Mismatch, message).with("state", name)
}

#[cold]
fn is_open(name: &str) -> Error {
    let message = "the state is open already: it has a handle";
    Error::new(ErrorKind::InUse, message).with("state", name)
}

/// Refuses to open a state as other types than it is of, or as one of another definition.
fn check_types(stored: &StateManifest, asked: &StateManifest) -> Result<()> {
    for (what, stored, asks) in [
        ("primitive", &stored.primitive, &asked.primitive),
        ("key type", &stored.key, &asked.key),
        ("value type", &stored.value, &asked.value),
    ] {
        if stored != asks {
            let message = format!("the stored {what} is {stored}, requested is {asks}");
            return Err(Error::new(ErrorKind::Mismatch, message).with("state", &asked.name));
        }
    }
    definition::check_change(stored, asked)
}

/// Whether a state in the layout that is asked for reads what this other layout has stored. Tables
/// read each other's records, also the tables that panes are kept in.
fn reads(asked: &StateManifest, stored: &str) -> bool {
    let tables_only = |layout: &str| layout != WINDOW_SEGMENTS;
    match &*asked.primitive {
        _ if asked.layout == stored => true,
        "list" | "lists" => false,
        "panes" => tables_only(&asked.layout) && tables_only(stored),
        primitive => !primitive.starts_with("time-map"),
    }
}

/// What a checkpoint will say of a state.
pub(super) fn manifest(
    name: &str,
    primitive: &str,
    layout: &str,
    (key, value): (String, String),
) -> StateManifest {
    let (name, primitive, layout) = (name.into(), primitive.into(), layout.into());
    StateManifest {
        name,
        primitive,
        layout,
        key,
        value,
        definition: None,
        over: None,
        unit: None,
        groups: None,
        going: KeyGroups::default(),
        image: StateImage::default(),
    }
}

/// The error of a layout that does not say how its entries become bytes.
pub(crate) fn not_encoded(what: &str) -> Error {
    let message = format!("state of a layout without a codec cannot be {what}");
    Error::new(ErrorKind::Unsupported, message)
}
