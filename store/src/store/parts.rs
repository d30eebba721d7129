//! Opening the parts that windowed state and lists are made of.

use std::rc::Rc;

use alluvium_layouts::{Lists, ListsLayout, Merge, Panes, PanesLayout, StateContext};
use alluvium_pagestore::{Account, Error, ErrorKind, Key, Result, State, description_of};

use super::Store;
use super::opening::manifest;
use super::taking::{Pane, put_panes};
use crate::batch::Batch;
use crate::cells::{ListsCell, PanesCell};
use crate::definition;
use crate::held::Held;
use crate::moving::Mover;
use crate::windows::{ProgressCell, Record, Windows};

/// What a state is opened with whose key groups come and go: its tables are for all of them.
fn of_all_groups(context: &StateContext) -> StateContext {
    let owned = if context.movable { 0..context.key_groups } else { context.owned.clone() };
    StateContext { owned, ..context.clone() }
}

pub(super) fn cannot_move(layout: &str, name: &str) -> Error {
    let message = format!("in the layout {layout} as it is, key groups cannot move");
    Error::new(ErrorKind::Unsupported, message).with("state", name)
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

    /// Panes, as a part of windowed state.
    pub(crate) fn open_panes<K: Key, A: State, L: PanesLayout<K, A>>(
        &self,
        name: &str,
        layout: &L,
        merge: Merge<A>,
        mover: Option<&Mover>,
    ) -> Result<Held<PanesCell<K, A, L::Panes>>> {
        let types = (description_of::<K>(), description_of::<A>());
        let manifest = manifest(name, "panes", layout.name(), types);
        if let Some(left) = self.0.left(&manifest, mover)? {
            return Ok(left);
        }
        let mut context = self.0.context(name, layout.memory_limit())?;
        context.movable = mover.is_some();
        let context = self.0.with_restored(context, &manifest)?;
        let account = context.account.clone();
        let groups = self.0.groups_in(mover, name)?;
        let opened = layout.open_panes(of_all_groups(&context), merge.clone());
        let mut panes = self.0.opened(opened, name)?;
        if groups.is_some() && panes.by_hash().is_none() {
            return Err(cannot_move(layout.name(), name));
        }
        let batch = Batch::<Pane<K, A>>::memory_bytes();
        panes.begin_filling();
        self.0.take_parts(&context, &manifest, batch, &mut |part| {
            part.read(|part| {
                panes.expect(panes.len() + part.entries_likely());
                put_panes(part, &merge, &mut panes)
            })
        })?;
        self.0.opened(panes.end_filling(), name)?;
        let cell = PanesCell::new(name, panes, merge, self.0.lock.clone());
        let cell = Rc::new(cell.in_groups(groups.clone()));
        if let Some(mover) = mover {
            mover.add(&manifest, cell.clone());
        }
        Ok(self.0.register(groups, manifest, account, cell))
    }

    /// Panes that can be made again from others: no checkpoint has them.
    pub(crate) fn open_derived_panes<K: Key, A: State, L: PanesLayout<K, A>>(
        &self,
        name: &str,
        layout: &L,
        merge: Merge<A>,
        mover: Option<&Mover>,
    ) -> Result<Held<PanesCell<K, A, L::Panes>>> {
        let types = (description_of::<K>(), description_of::<A>());
        let manifest = manifest(name, "derived panes", layout.name(), types);
        // One without a handle is made again.
        let _: Option<Held<PanesCell<K, A, L::Panes>>> = self.0.left(&manifest, None)?;
        let mut context = self.0.context(name, layout.memory_limit())?;
        context.movable = mover.is_some();
        let account = context.account.clone();
        let opened = layout.open_panes(of_all_groups(&context), merge.clone());
        let panes = self.0.opened(opened, name)?;
        let cell = Rc::new(PanesCell::derived(name, panes, merge, self.0.lock.clone()));
        Ok(self.0.register_derived(manifest, account, cell))
    }

    /// Lists, as a part of windowed state.
    pub(crate) fn open_lists<K: Key, E: State, L: ListsLayout<K, E>>(
        &self,
        name: &str,
        layout: &L,
        mover: Option<&Mover>,
    ) -> Result<Held<ListsCell<K, E, L::Lists>>> {
        self.open_lists_as(("lists", None), name, layout, mover)
    }

    /// Lists, as what a primitive of a definition is kept in.
    pub(crate) fn open_lists_as<K: Key, E: State, L: ListsLayout<K, E>>(
        &self,
        (primitive, definition): (&str, Option<&str>),
        name: &str,
        layout: &L,
        mover: Option<&Mover>,
    ) -> Result<Held<ListsCell<K, E, L::Lists>>> {
        let types = (description_of::<K>(), description_of::<E>());
        let mut manifest = manifest(name, primitive, layout.name(), types);
        manifest.definition = definition.map(Into::into);
        if let Some(left) = self.0.left(&manifest, mover)? {
            return Ok(left);
        }
        let mut context = self.0.context(name, layout.memory_limit())?;
        context.movable = mover.is_some();
        let context = self.0.with_restored(context, &manifest)?;
        let account = context.account.clone();
        let groups = self.0.groups_in(mover, name)?;
        let opened = layout.open_lists(of_all_groups(&context));
        let mut lists = self.0.opened(opened, name)?;
        if groups.is_some() && lists.by_hash().is_none() {
            return Err(cannot_move(layout.name(), name));
        }
        self.0.take_parts(&context, &manifest, 0, &mut |part| {
            part.read(|part| {
                part.for_each_element(|bucket, key: &K, element: &E| {
                    Ok(lists.append(bucket, key, element.clone())?)
                })
            })
        })?;
        let cell = ListsCell::new(name, lists, self.0.lock.clone());
        let cell = Rc::new(cell.in_groups(groups.clone()));
        if let Some(mover) = mover {
            mover.add(&manifest, cell.clone());
        }
        Ok(self.0.register(groups, manifest, account, cell))
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
    ) -> Result<Held<ProgressCell>> {
        let types = (description_of::<()>(), description_of::<Record>());
        let mut manifest = manifest(name, "progress", "heap", types);
        manifest.definition = definition::of_windows(windows);
        // Its key groups are those of the other states, which are looked at.
        if let Some(left) = self.0.left::<ProgressCell>(&manifest, None)? {
            left.go_on(*windows)?;
            return Ok(left);
        }
        let context = self.0.context(name, None)?;
        let context = self.0.with_restored(context, &manifest)?;
        let account = context.account.clone();
        let groups = mover.map(|mover| mover.groups().clone());
        let opened = ProgressCell::open(name, *windows, context.clone(), groups);
        let cell = self.0.opened(opened, name)?;
        self.0.take_parts(&context, &manifest, 0, &mut |part| part.read(|part| cell.take(part)))?;
        if let Some(mover) = mover {
            mover.add(&manifest, cell.clone());
        }
        Ok(self.0.register(None, manifest, account, cell))
    }
}
