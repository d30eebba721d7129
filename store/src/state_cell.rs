//! One state's table, shared between its handle and the store's maintenance hooks.
//!
//! The handle owns the record path; the store needs the table only between calls. A `RefCell`
//! keeps the two apart: whoever comes while the other is inside gets an error naming the state.

use std::cell::{Cell, Ref, RefCell, RefMut};
use std::marker::PhantomData;
use std::ops::Deref;

use alluvium_layouts::{CheckpointOutcome, Table, TableStats};
use alluvium_pagestore::{BlobWriter, Error, ErrorKind, Key, Result, StateImage};

/// A table, its name, and whether a user's closure panicked in it.
#[derive(Debug)]
pub(crate) struct StateCell<K, V, T> {
    pub(crate) name: String,
    table: RefCell<T>,
    poisoned: Cell<bool>,
    types: PhantomData<(K, V)>,
}

/// Marks the state when dropped, that is when a user's closure unwinds past it.
pub(crate) struct Mark<'a>(&'a Cell<bool>);

impl Drop for Mark<'_> {
    fn drop(&mut self) {
        self.0.set(true);
    }
}

impl<K: Key, V: 'static, T: Table<K, V>> StateCell<K, V, T> {
    pub(crate) fn new(name: &str, table: T) -> Self {
        let (name, table) = (name.into(), RefCell::new(table));
        Self { name, table, poisoned: Cell::new(false), types: PhantomData }
    }

    /// The table, for one call.
    #[inline]
    pub(crate) fn enter(&self) -> Result<RefMut<'_, T>> {
        self.table.try_borrow_mut().map_err(|_| self.in_use())
    }

    /// The table, shared.
    #[inline]
    pub(crate) fn look(&self) -> Result<Ref<'_, T>> {
        self.table.try_borrow().map_err(|_| self.in_use())
    }

    /// Runs a call that runs user code; a panic in it poisons the state.
    #[inline]
    pub(crate) fn run<R>(&self, call: impl FnOnce(&mut T) -> R) -> Result<R> {
        let mut table = self.enter()?;
        let mark = Mark(&self.poisoned);
        let result = call(&mut table);
        std::mem::forget(mark);
        Ok(result)
    }

    #[cold]
    fn in_use(&self) -> Error {
        let message = "the state is in use: a value of it is borrowed, or its own closure calls it";
        Error::new(ErrorKind::InUse, message).with("state", &self.name)
    }

    pub(crate) fn is_poisoned(&self) -> bool {
        self.poisoned.get()
    }

    pub(crate) fn clear_poison(&self) {
        self.poisoned.set(false);
    }
}

/// What the store does with a state whatever its types are.
pub(crate) trait Hooks {
    fn poisoned(&self) -> bool;
    fn checkpoint(&self, blobs: &mut BlobWriter) -> Result<StateImage>;
    fn checkpointed(&self, outcome: CheckpointOutcome) -> Result<()>;
    fn tick(&self, work: usize) -> Result<usize>;
    fn stats(&self) -> Result<TableStats>;
}

impl<K: Key, V: 'static, T: Table<K, V>> Hooks for StateCell<K, V, T> {
    fn poisoned(&self) -> bool {
        self.is_poisoned()
    }

    fn checkpoint(&self, blobs: &mut BlobWriter) -> Result<StateImage> {
        self.enter()?.checkpoint(blobs)
    }

    fn checkpointed(&self, outcome: CheckpointOutcome) -> Result<()> {
        self.enter()?.checkpointed(outcome);
        Ok(())
    }

    fn tick(&self, work: usize) -> Result<usize> {
        self.enter()?.tick(work)
    }

    fn stats(&self) -> Result<TableStats> {
        Ok(self.enter()?.stats())
    }
}

/// A value borrowed from a state. The state can be used again once it is dropped.
#[derive(Debug)]
pub struct ValueRef<'a, V>(pub(crate) Ref<'a, V>);

impl<V> Deref for ValueRef<'_, V> {
    type Target = V;

    #[inline]
    fn deref(&self) -> &V {
        &self.0
    }
}
