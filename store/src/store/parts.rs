//! Opening the parts that windowed state and lists are made of.

use std::rc::Rc;

use alluvium_layouts::{ListsLayout, Merge, PanesLayout, StateContext};
use alluvium_pagestore::{
    Account, Error, ErrorKind, Key, MemoryKind, Result, State, description_of,
};

use super::being_opened::{CellParts, OpenedCell, RequestedState};
use super::opening::manifest;
use super::{BLOB_CHUNK_BYTES, Store, StoreCore};
use crate::api::windows::{ProgressCell, ProgressRecord, Windows};
use crate::cells::cell_handle::CellHandle;
use crate::cells::state_cell::{ContentsKind, StateCell};
use crate::cells::{ListsCell, PanesCell, WaysOfLists, WaysOfPanes};
use crate::durability::moving::Mover;
use crate::store::definition;

/// Has a layout open panes, and makes their cell.
fn panes_in<K: Key, A: State, L: PanesLayout<K, A>>(
    layout: &L,
    merge: &Merge<A>,
    CellParts { context, core, lock }: CellParts,
) -> Result<OpenedCell> {
    let panes = layout.open_panes(context, merge.clone())?;
    let ways = WaysOfPanes::<K, A>::new(merge.clone());
    Ok(OpenedCell::new(StateCell::new(core, panes, ways, lock)))
}

impl Store {
    /// What a part could be opened with that is opened to see whether it can be, and dropped.
    pub(crate) fn context_to_try(
        &self,
        name: &str,
        limit: Option<u64>,
        primitive: &str,
        layout: &str,
        types: (String, String),
    ) -> Result<StateContext> {
        let context = self.0.context(name, limit)?;
        let context = self.0.with_restored(context, &manifest(name, primitive, layout, types))?;
        // Reading what is stored would take as long as opening does.
        Ok(StateContext { restored: None, ..context })
    }

    /// The context of a state that has a store of so much memory for itself, with the options of this one.
    pub(crate) fn context_alone(&self, name: &str, memory: u64, movable: bool) -> StateContext {
        let StoreCore { config, segments, helper, owned, .. } = &*self.0;
        let account = Account::root(memory);
        if segments.is_some() {
            account.charge(MemoryKind::Buffers, BLOB_CHUNK_BYTES as u64);
        }
        StateContext {
            name: name.into(),
            account,
            segments: segments.clone(),
            helper: helper.clone(),
            max_value_bytes: config.max_value_bytes_in(memory),
            key_groups: config.key_groups,
            owned: owned.clone(),
            movable,
            restored: None,
        }
    }

    /// Panes, as a part of windowed state.
    pub(crate) fn open_panes<K: Key, A: State, L: PanesLayout<K, A>>(
        &self,
        name: &str,
        layout: &L,
        merge: Merge<A>,
        mover: Option<&Mover>,
    ) -> Result<CellHandle<PanesCell<K, A, L::Panes>>> {
        let types = (description_of::<K>(), description_of::<A>());
        let manifest = manifest(name, "panes", layout.name(), types);
        let (kind, limit) = (ContentsKind::Panes, layout.memory_limit());
        let open_lifetime = &mut || Ok(None);
        let mut asked = RequestedState { manifest, kind, limit, mover, open_lifetime };
        self.0.open_cell(&mut asked, &mut |frame| panes_in(layout, &merge, frame))
    }

    /// Panes that can be made again from others: no checkpoint has them.
    pub(crate) fn open_derived_panes<K: Key, A: State, L: PanesLayout<K, A>>(
        &self,
        name: &str,
        layout: &L,
        merge: Merge<A>,
        mover: Option<&Mover>,
    ) -> Result<CellHandle<PanesCell<K, A, L::Panes>>> {
        let types = (description_of::<K>(), description_of::<A>());
        let manifest = manifest(name, "derived panes", layout.name(), types);
        let (kind, limit) = (ContentsKind::Panes, layout.memory_limit());
        let open_lifetime = &mut || Ok(None);
        let mut asked = RequestedState { manifest, kind, limit, mover, open_lifetime };
        self.0.derive_cell(&mut asked, &mut |frame| panes_in(layout, &merge, frame))
    }

    /// Lists, as a part of windowed state.
    pub(crate) fn open_lists<K: Key, E: State, L: ListsLayout<K, E>>(
        &self,
        name: &str,
        layout: &L,
        mover: Option<&Mover>,
    ) -> Result<CellHandle<ListsCell<K, E, L::Lists>>> {
        self.open_lists_as(("lists", None), name, layout, mover)
    }

    /// Lists, as what a primitive of a definition is kept in.
    pub(crate) fn open_lists_as<K: Key, E: State, L: ListsLayout<K, E>>(
        &self,
        (primitive, definition): (&str, Option<&str>),
        name: &str,
        layout: &L,
        mover: Option<&Mover>,
    ) -> Result<CellHandle<ListsCell<K, E, L::Lists>>> {
        let types = (description_of::<K>(), description_of::<E>());
        let mut manifest = manifest(name, primitive, layout.name(), types);
        manifest.definition = definition.map(Into::into);
        let (kind, limit) = (ContentsKind::Lists, layout.memory_limit());
        let open_lifetime = &mut || Ok(None);
        let mut asked = RequestedState { manifest, kind, limit, mover, open_lifetime };
        self.0.open_cell(&mut asked, &mut |CellParts { context, core, lock }| {
            let lists = layout.open_lists(context)?;
            Ok(OpenedCell::new(StateCell::new(core, lists, WaysOfLists::default(), lock)))
        })
    }

    /// The account of an open state.
    pub(crate) fn account_of(&self, name: &str) -> Result<Rc<Account>> {
        let states = self.0.states.borrow();
        let state = states.iter().find(|state| state.manifest.name == name);
        state.map(|state| state.account.clone()).ok_or_else(|| {
            Error::new(ErrorKind::UnknownState, "the state is not open").with("state", name)
        })
    }

    /// How far windowed state has come.
    pub(crate) fn open_progress(
        &self,
        name: &str,
        windows: &Windows,
        mover: Option<&Mover>,
    ) -> Result<CellHandle<ProgressCell>> {
        let types = (description_of::<()>(), description_of::<ProgressRecord>());
        let mut manifest = manifest(name, "progress", "heap", types);
        manifest.definition = definition::of_windows(windows);
        // Its key groups are those of the other states, which are looked at.
        if let Some(left) = self.0.left::<ProgressCell>(&manifest, None)? {
            left.go_on(*windows)?;
            return Ok(left);
        }
        let mut opening = self.0.begin_opening(manifest, None, None)?;
        opening.go_along_with(mover);
        let groups = mover.map(|mover| mover.groups().clone());
        let opened = ProgressCell::open(name, *windows, opening.context().clone(), groups);
        let cell = opening.opened(opened)?;
        opening.take_parts(0, &mut |part| part.read(|part| cell.take(part)))?;
        Ok(opening.register(cell))
    }
}
