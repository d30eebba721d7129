//! One state, shared between its handle and the store's hooks.
//!
//! The handle owns the record path; the store needs the state only between calls. A `RefCell` keeps the two
//! apart: whoever comes while the other is inside gets an error naming the state.
//!
//! Only the record path knows the types of keys and values. The rest is compiled once: the [core](CellCore) of a
//! cell, and what the [store does](Hooks) with its [contents](CellContents).

mod cell_core;
mod compacting;
mod contents;
mod erased;
mod hooks;

use std::cell::{Cell, Ref, RefCell, RefMut};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use alluvium_layouts::OutOfLine;
use alluvium_pagestore::Result;

use crate::cells::cell_handle::HasGroups;
use crate::cells::recording::Recorder;
use crate::durability::moving::Groups;

pub(crate) use cell_core::{CellCore, ContentsKind};
pub(crate) use contents::{CellContents, InGroups, Outgoing};
pub(crate) use erased::AnyCell;
pub(crate) use hooks::{Durable, Hooks, Movable, Portable};

/// A state's contents, and what the store knows of it whatever they are.
#[derive(Debug)]
pub(crate) struct StateCell<C: ?Sized> {
    core: OutOfLine<CellCore>,
    /// Keys read. In a recorded state it stays at its end: counting overflows, which finds the trace without a
    /// test of its own, and the core counts.
    reads: Cell<u64>,
    contents: RefCell<C>,
}

/// What a state keeps.
#[derive(Debug)]
pub(crate) struct KeptState<T, W> {
    pub(crate) inner: OutOfLine<LockedLayout<T>>,
    /// How its entries become bytes, merge and expire.
    pub(crate) ways: W,
}

/// A layout in its directory.
#[derive(Debug)]
pub(crate) struct LockedLayout<T> {
    /// The open layout.
    pub(crate) layout: T,
    /// Declared last: the layout's helpers are done with the directory before it is free.
    _lock: Option<Lock>,
}

/// The lock of a store's directory, shared by all that write to it; its helper is one of them.
#[derive(Clone)]
pub(crate) struct Lock(pub(crate) Arc<dyn Send + Sync>);

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Lock")
    }
}

/// Marks the state when dropped, that is when a user's closure unwinds past it.
struct PanicMark<'a>(&'a Cell<bool>);

impl Drop for PanicMark<'_> {
    fn drop(&mut self) {
        self.0.set(true);
    }
}

/// A state's layout, lent for a call that runs user code: if that panics, the state is poisoned. The
/// borrower ends it by [`end`](EnteredCell::end), also after an error.
#[must_use]
pub(crate) struct EnteredCell<'a, T> {
    layout: RefMut<'a, T>,
    mark: PanicMark<'a>,
}

impl<T> EnteredCell<'_, T> {
    /// Ends the call: no user code has panicked.
    #[inline]
    pub(crate) fn end(self) {
        std::mem::forget(self.mark);
    }
}

impl<T> Deref for EnteredCell<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.layout
    }
}

impl<T> DerefMut for EnteredCell<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.layout
    }
}

impl<T, W> StateCell<KeptState<T, W>> {
    pub(crate) fn new(core: OutOfLine<CellCore>, layout: T, ways: W, lock: Option<Lock>) -> Self {
        let inner = OutOfLine::new(LockedLayout { layout, _lock: lock });
        let reads = Cell::new(if core.recorder().is_some() { u64::MAX } else { 0 });
        Self { core, reads, contents: RefCell::new(KeptState { inner, ways }) }
    }

    /// The layout, for one call.
    #[inline]
    pub(crate) fn enter(&self) -> Result<RefMut<'_, T>> {
        match self.contents.try_borrow_mut() {
            Ok(kept) => Ok(RefMut::map(kept, |kept| &mut kept.inner.layout)),
            Err(_) => Err(self.core.in_use()),
        }
    }

    /// The layout, shared.
    #[inline]
    pub(crate) fn look(&self) -> Result<Ref<'_, T>> {
        match self.contents.try_borrow() {
            Ok(kept) => Ok(Ref::map(kept, |kept| &kept.inner.layout)),
            Err(_) => Err(self.core.in_use()),
        }
    }

    /// [`enter`](StateCell::enter) for a call on so many keys that gives compaction nothing.
    #[inline]
    pub(crate) fn enter_for(&self, keys: usize) -> Result<RefMut<'_, T>> {
        self.enter_to_read(keys, |_| ())
    }

    /// [`enter_for`](StateCell::enter_for) a read, which `record` tells to the state's trace if there is one.
    #[inline]
    pub(crate) fn enter_to_read(
        &self,
        keys: usize,
        record: impl FnOnce(&Recorder),
    ) -> Result<RefMut<'_, T>> {
        let inner = self.enter()?;
        self.count_reads(keys, record);
        Ok(inner)
    }

    /// Lends the layout for a call on so many keys that runs user code. Compaction gets nothing.
    #[inline]
    pub(crate) fn enter_to_run(&self, keys: usize) -> Result<EnteredCell<'_, T>> {
        Ok(EnteredCell { layout: self.enter_for(keys)?, mark: PanicMark(&self.core.poisoned) })
    }

    /// Runs a call on so many keys that runs user code; a panic in it poisons the state. Compaction gets
    /// nothing.
    #[inline]
    pub(crate) fn run<R>(&self, keys: usize, call: impl FnOnce(&mut T) -> R) -> Result<R> {
        self.run_kept(keys, |kept| call(&mut kept.inner.layout))
    }

    /// [`run`](StateCell::run) for a read, which `record` tells to the state's trace if there is one.
    #[inline]
    pub(crate) fn run_to_read<R>(
        &self,
        keys: usize,
        record: impl FnOnce(&Recorder),
        call: impl FnOnce(&mut T) -> R,
    ) -> Result<R> {
        let layout = self.enter_to_read(keys, record)?;
        let mut entered = EnteredCell { layout, mark: PanicMark(&self.core.poisoned) };
        let result = call(&mut entered);
        entered.end();
        Ok(result)
    }

    /// [`run`](StateCell::run) for a call that needs the ways too.
    #[inline]
    pub(crate) fn run_kept<R>(
        &self,
        keys: usize,
        call: impl FnOnce(&mut KeptState<T, W>) -> R,
    ) -> Result<R> {
        let Ok(mut kept) = self.contents.try_borrow_mut() else { return Err(self.core.in_use()) };
        self.count_reads(keys, |_| ());
        let mark = PanicMark(&self.core.poisoned);
        let result = call(&mut kept);
        std::mem::forget(mark);
        Ok(result)
    }

    /// The ways of the contents.
    pub(crate) fn ways(&self) -> Result<W>
    where
        W: Copy,
    {
        let kept = self.contents.try_borrow();
        kept.map(|kept| kept.ways).map_err(|_| self.core.in_use())
    }
}

impl<T, W> StateCell<KeptState<T, W>>
where
    KeptState<T, W>: CellContents,
{
    /// The layout, for a call that writes `writes` records: now and then compaction gets its share.
    #[inline]
    pub(crate) fn enter_to_write(&self, writes: usize) -> Result<RefMut<'_, T>> {
        match self.contents.try_borrow_mut() {
            Ok(mut kept) => {
                self.core.write(&mut *kept, writes);
                Ok(RefMut::map(kept, |kept| &mut kept.inner.layout))
            }
            Err(_) => Err(self.core.in_use()),
        }
    }

    /// [`run`](StateCell::run) for a call that writes `writes` records: now and then compaction gets its
    /// share.
    #[inline]
    pub(crate) fn run_to_write<R>(
        &self,
        writes: usize,
        call: impl FnOnce(&mut T) -> R,
    ) -> Result<R> {
        let layout = self.enter_to_write(writes)?;
        let mut entered = EnteredCell { layout, mark: PanicMark(&self.core.poisoned) };
        let result = call(&mut entered);
        entered.end();
        Ok(result)
    }
}

impl<C: ?Sized> StateCell<C> {
    /// Counts a call on so many keys, and has `record` tell the state's trace if there is one.
    #[inline]
    fn count_reads(&self, keys: usize, record: impl FnOnce(&Recorder)) {
        if self.overflows(keys)
            && let Some(recorder) = self.count_recorded(keys)
        {
            record(recorder);
        }
    }

    /// Counts a read of one key. Returns whether the state is recorded: then the caller has the trace
    /// [count](StateCell::count_recorded) it.
    #[inline]
    pub(crate) fn count_read(&self) -> bool {
        self.overflows(1)
    }

    #[inline]
    fn overflows(&self, keys: usize) -> bool {
        let (reads, is_recorded) = self.reads.get().overflowing_add(keys as u64);
        self.reads.set(reads);
        is_recorded
    }

    /// Counts a call of a recorded state on so many keys. Returns its trace.
    #[cold]
    pub(crate) fn count_recorded(&self, keys: usize) -> Option<&Recorder> {
        self.reads.set(u64::MAX);
        self.core.count(keys);
        self.core.recorder()
    }

    /// Lets the next read of one key of a recorded state find no trace.
    pub(crate) fn pass_next_read(&self) {
        self.reads.set(u64::MAX - 1);
    }

    /// Keys that were read or written.
    pub(crate) fn all_calls(&self) -> u64 {
        let is_recorded = self.core.recorder().is_some();
        self.core.calls() + if is_recorded { 0 } else { self.reads.get() }
    }
}

impl<C: ?Sized> Deref for StateCell<C> {
    type Target = CellCore;

    #[inline(always)]
    fn deref(&self) -> &CellCore {
        &self.core
    }
}

impl<C: ?Sized> HasGroups for StateCell<C> {
    fn name(&self) -> &str {
        self.core.name()
    }

    #[inline]
    fn groups(&self) -> Option<&Groups> {
        self.core.groups()
    }

    #[inline]
    fn recorder(&self) -> Option<&Recorder> {
        self.core.recorder()
    }
}

/// A value borrowed from a state. Drop it before you use the state again.
#[derive(Debug)]
pub struct ValueRef<'a, V>(pub(crate) Ref<'a, V>);

impl<V> Deref for ValueRef<'_, V> {
    type Target = V;

    #[inline]
    fn deref(&self) -> &V {
        &self.0
    }
}
