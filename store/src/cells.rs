//! Panes and lists, shared between windowed state and the store's maintenance hooks.

use std::cell::{Cell, RefCell, RefMut};
use std::fmt;
use std::marker::PhantomData;

use alluvium_layouts::{CheckpointOutcome, Cursor, Lists, Merge, Panes, TableStats, for_each_list};
use alluvium_pagestore::{
    BlobWriter, Encoded, Error, ErrorKind, Key, Result, State, StateImage, Time, codec,
};

use crate::export::{Entry, Visit, check_hash};
use crate::state_cell::{Hooks, Lock, Mark};
use crate::store::put;

/// A part of a layout, its name, and whether a user's closure panicked in it.
#[derive(Debug)]
pub(crate) struct Shared<T> {
    name: String,
    inner: RefCell<T>,
    poisoned: Cell<bool>,
    calls: Cell<u64>,
    /// Can be made again: no checkpoint has it.
    is_derived: bool,
    /// May be emptied to make room, and was.
    droppable: Cell<bool>,
    dropped: Cell<bool>,
    /// Declared last, so that the helpers are done with the directory before it is free.
    _lock: Option<Lock>,
}

impl<T> Shared<T> {
    pub(crate) fn new(name: &str, inner: T, lock: Option<Lock>) -> Self {
        let (poisoned, calls) = (Cell::new(false), Cell::new(0));
        let inner = RefCell::new(inner);
        let (droppable, dropped) = (Cell::new(false), Cell::new(false));
        let name = name.into();
        Self { name, inner, poisoned, calls, is_derived: false, droppable, dropped, _lock: lock }
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

    /// Has `inner` give up memory; if that is not enough, `purge` all of it that may be dropped.
    fn give_up(
        &self,
        bytes: u64,
        mut part: impl FnMut(&mut T, Wanted) -> Result<u64>,
    ) -> Result<u64> {
        let Ok(mut inner) = self.inner.try_borrow_mut() else { return Ok(0) };
        let mut given = part(&mut inner, Wanted::Bytes(bytes))?;
        if given < bytes && self.droppable.take() {
            self.dropped.set(true);
            part(&mut inner, Wanted::Everything)?;
            given += part(&mut inner, Wanted::Bytes(bytes - given))?;
        }
        Ok(given)
    }
}

/// What a part is asked to give up.
enum Wanted {
    Bytes(u64),
    Everything,
}

/// [`Panes`] of a store.
#[derive(Debug)]
pub(crate) struct PanesCell<K, A, P>(pub(crate) Shared<P>, PanesTypes<K, A>);

/// How accumulators are merged.
struct PanesTypes<K, A>(Merge<A>, PhantomData<K>);

impl<K, A> fmt::Debug for PanesTypes<K, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PanesTypes")
    }
}

/// [`Lists`] of a store.
#[derive(Debug)]
pub(crate) struct ListsCell<K, E, L>(pub(crate) Shared<L>, PhantomData<(K, E)>);

macro_rules! cell {
    ($cell:ident: $part:ident) => {
        impl<K: Key, V: State, T: $part<K, V>> Hooks for $cell<K, V, T> {
            fn poisoned(&self) -> bool {
                self.0.poisoned.get()
            }

            fn checkpoint(&self, blobs: &mut BlobWriter) -> Result<StateImage> {
                match self.0.is_derived {
                    true => Ok(StateImage::default()),
                    false => self.0.enter()?.checkpoint(blobs),
                }
            }

            fn begin_checkpoint(&self, blobs: &mut BlobWriter) -> Result<Option<StateImage>> {
                match self.0.is_derived {
                    true => Ok(Some(StateImage::default())),
                    false => self.0.enter()?.begin_checkpoint(blobs),
                }
            }

            fn continue_checkpoint(&self, blobs: &mut BlobWriter) -> Result<Option<StateImage>> {
                match self.0.is_derived {
                    true => Ok(Some(StateImage::default())),
                    false => self.0.enter()?.continue_checkpoint(blobs),
                }
            }

            fn checkpointed(&self, outcome: CheckpointOutcome) {
                // Its own closures, which alone could be inside, do not reach the store.
                if let (false, Ok(mut inner)) = (self.0.is_derived, self.0.enter()) {
                    inner.checkpointed(outcome);
                }
            }

            fn export(&self, visit: Visit<'_>) -> Result<()> {
                self.export_all(visit)
            }

            fn import(&self, entry: Entry<'_>) -> Result<()> {
                self.import_one(entry)
            }

            fn tick(&self, work: usize) -> Result<usize> {
                self.0.enter()?.tick(work)
            }

            fn reclaim(&self, bytes: u64) -> Result<u64> {
                let part = |inner: &mut T, wanted| match wanted {
                    Wanted::Bytes(bytes) => inner.reclaim(bytes),
                    // Out of sight at once; the memory comes with what is asked for next.
                    Wanted::Everything => inner.purge(Time::MAX, 1).map(u64::from),
                };
                self.0.give_up(bytes, part).map_err(|e| e.with("state", &self.0.name))
            }

            fn stats(&self) -> Result<TableStats> {
                Ok(TableStats { calls: self.0.calls.get(), ..self.0.enter()?.stats() })
            }
        }
    };
}

impl<K: Key, V: State, T: Panes<K, V>> PanesCell<K, V, T> {
    pub(crate) fn new(name: &str, inner: T, merge: Merge<V>, lock: Option<Lock>) -> Self {
        Self(Shared::new(name, inner, lock), PanesTypes(merge, PhantomData))
    }

    /// Panes that can be made again from others.
    pub(crate) fn derived(name: &str, inner: T, merge: Merge<V>, lock: Option<Lock>) -> Self {
        let shared = Shared { is_derived: true, ..Shared::new(name, inner, lock) };
        Self(shared, PanesTypes(merge, PhantomData))
    }

    /// Merges, which is the user's code.
    fn export_all(&self, visit: Visit<'_>) -> Result<()> {
        let mut encoded = Encoded::default();
        self.0.run(0, |panes| {
            let mut next = panes.next_slice(Time::MIN);
            while let Some(slice) = next {
                let mut cursor = Cursor::default();
                while !cursor.done {
                    panes.fold(slice..slice.plus(1), &mut cursor, 4096, &mut |key, acc| {
                        encoded.set(key, &acc)?;
                        let Encoded { key: bytes, value } = &encoded;
                        visit(Entry { hash: key.key_hash(), order: slice.0, key: bytes, value })
                    })?;
                }
                next = slice.0.checked_add(1).and_then(|after| panes.next_slice(Time(after)));
            }
            Ok(())
        })?
    }

    fn import_one(&self, entry: Entry<'_>) -> Result<()> {
        let (key, acc) = Encoded::get::<K, V>(entry.key, entry.value)?;
        check_hash(entry.hash, key.key_hash())?;
        self.0.run(1, |panes| put(panes, &self.1.0, Time(entry.order), &key, acc))?
    }
}

impl<K: Key, V: State, T: Lists<K, V>> ListsCell<K, V, T> {
    pub(crate) fn new(name: &str, inner: T, lock: Option<Lock>) -> Self {
        Self(Shared::new(name, inner, lock), PhantomData)
    }

    fn export_all(&self, visit: Visit<'_>) -> Result<()> {
        let mut encoded = Encoded::default();
        for_each_list(&mut *self.0.enter()?, &mut |bucket, key: &K, elements| {
            codec::encode_one(&mut encoded.key, key)?;
            while let Some(element) = elements.next()? {
                codec::encode_one(&mut encoded.value, element)?;
                let Encoded { key: bytes, value } = &encoded;
                visit(Entry { hash: key.key_hash(), order: bucket.0, key: bytes, value })?;
            }
            Ok(())
        })
    }

    fn import_one(&self, entry: Entry<'_>) -> Result<()> {
        let (key, element) = Encoded::get::<K, V>(entry.key, entry.value)?;
        check_hash(entry.hash, key.key_hash())?;
        Ok(self.0.enter()?.append(Time(entry.order), &key, element)?)
    }
}

cell!(PanesCell: Panes);
cell!(ListsCell: Lists);
