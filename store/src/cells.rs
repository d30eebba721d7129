//! Panes and lists, shared between windowed state and the store's maintenance hooks.

use std::cell::{Cell, RefCell, RefMut};
use std::fmt;
use std::marker::PhantomData;
use std::rc::Rc;

use alluvium_layouts::{CheckpointOutcome, Cursor, Lists, Merge, Panes, TableStats, for_each_list};
use alluvium_pagestore::{
    BlobWriter, Encoded, Error, ErrorKind, Key, KeyGroup, Result, State, StateImage, Time, codec,
};

use crate::batch::Batch;
use crate::export::{Entries, Entry, Parts, Visit, check_hash, each};
use crate::moving::{Arriving, Groups, Place, in_order};
use crate::state_cell::{Hooks, Lock, Mark};
use crate::store::{Pane, not_encoded, put, put_all};

/// Slices of which a range of hashes of a few thousand accumulators has more than a hundred each.
const SLICES_IN_PARTS: usize = 32;

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
    /// Where the key groups are, if they move.
    groups: Option<Rc<Groups>>,
    /// Declared last, so that the helpers are done with the directory before it is free.
    _lock: Option<Lock>,
}

impl<T> Shared<T> {
    pub(crate) fn new(name: &str, inner: T, lock: Option<Lock>) -> Self {
        let (poisoned, calls) = (Cell::new(false), Cell::new(0));
        let inner = RefCell::new(inner);
        let (droppable, dropped) = (Cell::new(false), Cell::new(false));
        let name = name.into();
        let (is_derived, groups) = (false, None);
        Self { name, inner, poisoned, calls, is_derived, droppable, dropped, groups, _lock: lock }
    }

    /// A number that is another when a key group has come or gone.
    pub(crate) fn changes(&self) -> u64 {
        self.groups.as_ref().map_or(0, |groups| groups.changes())
    }

    /// Whether what a key has here counts: its group is here, or being given away.
    pub(crate) fn counts(&self, key: &impl Key) -> bool {
        self.groups.as_ref().is_none_or(|groups| groups.has_hash(key.key_hash()))
    }

    /// Whether the key with this hash may be changed. The hash is taken only if key groups move.
    #[inline]
    pub(crate) fn check(&self, hash: impl FnOnce() -> u64) -> Result<()> {
        match &self.groups {
            None => Ok(()),
            Some(groups) => groups.check(hash()).map_err(|e| e.with("state", &self.name)),
        }
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

            fn has_parts(&self) -> Result<bool> {
                self.is_fast_in_parts()
            }

            fn export_in_parts(&self, parts: &mut dyn Parts) -> Result<()> {
                self.export_parts(parts)
            }

            fn expect(&self, entries: u64) -> Result<()> {
                self.expect_more(entries)
            }

            fn import(&self, entry: Entry<'_>) -> Result<()> {
                self.import_one(entry)
            }

            fn import_all(&self, entries: &mut dyn Entries) -> Result<()> {
                self.import_some(entries)
            }

            fn extract(
                &self,
                group: KeyGroup,
                at: &mut Place,
                fuel: usize,
                visit: Visit<'_>,
            ) -> Result<()> {
                self.extract_some(group, at, fuel, visit)
            }

            fn forget(&self, group: KeyGroup, at: &mut Place, fuel: usize) -> Result<()> {
                self.forget_some(group, at, fuel)
            }

            fn install(&self, entry: Entry<'_>, arriving: &mut Arriving) -> Result<()> {
                self.install_one(entry, arriving)
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

    /// The same for panes whose key groups move.
    pub(crate) fn in_groups(self, groups: Option<Rc<Groups>>) -> Self {
        Self(Shared { groups, ..self.0 }, self.1)
    }

    /// Gives accumulators of a key group, each once, merged: slice by slice.
    fn extract_some(
        &self,
        group: KeyGroup,
        at: &mut Place,
        fuel: usize,
        visit: Visit<'_>,
    ) -> Result<()> {
        let hashes = Groups::hashes_of(self.0.groups(), group);
        let mut encoded = Encoded::default();
        self.0.run(0, |panes| {
            each_of_group(at, fuel, panes, T::next_slice, |panes, slice, cursor, fuel| {
                let (panes, mut count) = (in_order(panes.by_hash())?, 0);
                panes.visit_hashes(slice, &hashes, cursor, fuel, &mut |key, _, accs| {
                    count += accs.len();
                    accs.iter().try_for_each(|acc| {
                        encoded.set(key, acc)?;
                        visit(Entry::of(key.key_hash(), slice.0, &encoded))
                    })
                })?;
                Ok(count)
            })
        })?
    }

    fn forget_some(&self, group: KeyGroup, at: &mut Place, fuel: usize) -> Result<()> {
        let hashes = Groups::hashes_of(self.0.groups(), group);
        let panes = &mut *self.0.enter()?;
        each_of_group(at, fuel, panes, T::next_slice, |panes, slice, cursor, fuel| {
            in_order(panes.by_hash())?.remove_hashes(slice, &hashes, cursor, fuel)
        })
    }

    /// Puts an accumulator in the place of what may be there.
    fn install_one(&self, entry: Entry<'_>, arriving: &Arriving) -> Result<()> {
        let (key, acc) = Encoded::get::<K, V>(entry.key, entry.value)?;
        check_hash(entry.hash, key.key_hash())?;
        let (slice, mut panes) = (Time(entry.order), self.0.enter_for(1)?);
        if arriving.is_anew {
            panes.remove(slice, &key)?;
        }
        panes.update(slice, &key, || acc, |_| ())
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
                        visit(Entry::of(key.key_hash(), slice.0, &encoded))
                    })?;
                }
                next = after(slice, |from| panes.next_slice(from));
            }
            Ok(())
        })?
    }

    /// Slices in memory have their keys in the order of hashes, so that all of a range of hashes come
    /// together; of many slices a range has too little of each.
    fn is_fast_in_parts(&self) -> Result<bool> {
        let mut panes = self.0.enter()?;
        let slices = slices_of(&*panes).take(SLICES_IN_PARTS + 1);
        let (count, last) = slices.fold((0, Time::MIN), |(count, _), slice| (count + 1, slice));
        let are_few = count <= SLICES_IN_PARTS && last < Time::MAX;
        Ok(are_few && panes.by_hash().is_some_and(|panes| panes.is_fast_in_order()))
    }

    /// [`export_all`](PanesCell::export_all), range by range of the hashes. Merges, which is the user's
    /// code.
    fn export_parts(&self, parts: &mut dyn Parts) -> Result<()> {
        let mut encoded = Encoded::default();
        self.0.run(0, |panes| {
            let (entries, mut given) = (panes.len(), 0);
            parts.begin(entries)?;
            let mut next = Some(0u64);
            while let Some(first) = next {
                let ranges = (entries / parts.fuel().max(1) as u64).max(1);
                let last = first.saturating_add(u64::MAX / ranges);
                let mut slice = panes.next_slice(Time::MIN);
                while let Some(at) = slice {
                    let mut cursor = Cursor::default();
                    while !cursor.done {
                        let (panes, range) = (in_order(panes.by_hash())?, first..=last);
                        panes.visit_hashes(
                            at,
                            &range,
                            &mut cursor,
                            4096,
                            &mut |key, _, accs| {
                                given += accs.len() as u64;
                                accs.iter().try_for_each(|acc| {
                                    encoded.set(key, acc)?;
                                    parts.entry(Entry::of(key.key_hash(), at.0, &encoded))
                                })
                            },
                        )?;
                    }
                    slice = after(at, |from| panes.next_slice(from));
                }
                parts.end()?;
                next = last.checked_add(1);
            }
            match given == entries {
                true => Ok(()),
                false => {
                    let message =
                        format!("{given} accumulators are in the slices, {entries} expected");
                    Err(Error::new(ErrorKind::Corrupt, message))
                }
            }
        })?
    }

    fn expect_more(&self, entries: u64) -> Result<()> {
        let mut panes = self.0.enter()?;
        let there = panes.len();
        panes.expect(there.saturating_add(entries));
        Ok(())
    }

    fn import_some(&self, entries: &mut dyn Entries) -> Result<()> {
        let Ok(mut batch) = Batch::<Pane<K, V>>::begin(entries.account()) else {
            return each(entries, |entry| self.import_one(entry));
        };
        let put = |batch: &mut Batch<Pane<K, V>>| -> Result<()> {
            self.0.run(batch.items.len(), |panes| put_all(panes, &self.1.0, batch))?
        };
        let mut decoded = Ok(());
        while let Some(entry) = entries.next() {
            let (time, bytes) = (Time(entry.order), entry.key.len() + entry.value.len());
            let pair = Encoded::get::<K, V>(entry.key, entry.value);
            match pair.and_then(|pair| check_hash(entry.hash, pair.0.key_hash()).map(|()| pair)) {
                Ok((key, acc)) => {
                    if batch.push((time, key, Cell::new(Some(acc))), bytes) {
                        put(&mut batch)?;
                    }
                }
                Err(error) => {
                    decoded = Err(error);
                    break;
                }
            }
        }
        put(&mut batch).and(decoded)
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

    /// The same for lists whose key groups move.
    pub(crate) fn in_groups(self, groups: Option<Rc<Groups>>) -> Self {
        Self(Shared { groups, ..self.0 }, self.1)
    }

    /// Gives elements of a key group in runs, bucket by bucket: each run with how many elements of its
    /// list come before it.
    fn extract_some(
        &self,
        group: KeyGroup,
        at: &mut Place,
        fuel: usize,
        visit: Visit<'_>,
    ) -> Result<()> {
        let hashes = Groups::hashes_of(self.0.groups(), group);
        let (mut encoded, lists) = (Encoded::default(), &mut *self.0.enter()?);
        at.is_exact = true;
        each_of_group(at, fuel, lists, T::next_bucket, |lists, bucket, cursor, fuel| {
            let (lists, mut count) = (in_order(lists.by_hash())?, 0);
            lists.visit_hashes(bucket, &hashes, cursor, fuel, &mut |key, from, run| {
                count += run.len();
                encoded.set(key, &(from, run.to_vec()))?;
                visit(Entry::of(key.key_hash(), bucket.0, &encoded))
            })?;
            Ok(count)
        })
    }

    fn forget_some(&self, group: KeyGroup, at: &mut Place, fuel: usize) -> Result<()> {
        let hashes = Groups::hashes_of(self.0.groups(), group);
        let lists = &mut *self.0.enter()?;
        each_of_group(at, fuel, lists, T::next_bucket, |lists, bucket, cursor, fuel| {
            in_order(lists.by_hash())?.remove_hashes(bucket, &hashes, cursor, fuel)
        })
    }

    /// Appends a run, the first of a list in the place of what may be there of it.
    fn install_one(&self, entry: Entry<'_>, arriving: &mut Arriving) -> Result<()> {
        let (key, (from, run)) = Encoded::get::<K, (u64, Vec<V>)>(entry.key, entry.value)?;
        check_hash(entry.hash, key.key_hash())?;
        let (bucket, mut lists) = (Time(entry.order), self.0.enter_for(1)?);
        if arriving.is_anew && from == 0 && arriving.done == 0 {
            lists.clear_key(bucket, &key)?;
        }
        for element in run.into_iter().skip(arriving.done) {
            lists.append(bucket, &key, element)?;
            arriving.done += 1;
        }
        Ok(())
    }

    fn export_all(&self, visit: Visit<'_>) -> Result<()> {
        let mut encoded = Encoded::default();
        for_each_list(&mut *self.0.enter()?, &mut |bucket, key: &K, elements| {
            codec::encode_one(&mut encoded.key, key)?;
            while let Some(element) = elements.next()? {
                codec::encode_one(&mut encoded.value, element)?;
                visit(Entry::of(key.key_hash(), bucket.0, &encoded))?;
            }
            Ok(())
        })
    }

    fn is_fast_in_parts(&self) -> Result<bool> {
        Ok(false)
    }

    fn export_parts(&self, _: &mut dyn Parts) -> Result<()> {
        Err(not_encoded("exported in parts"))
    }

    fn expect_more(&self, _: u64) -> Result<()> {
        Ok(())
    }

    fn import_some(&self, entries: &mut dyn Entries) -> Result<()> {
        each(entries, |entry| self.import_one(entry))
    }

    fn import_one(&self, entry: Entry<'_>) -> Result<()> {
        let (key, element) = Encoded::get::<K, V>(entry.key, entry.value)?;
        check_hash(entry.hash, key.key_hash())?;
        Ok(self.0.enter()?.append(Time(entry.order), &key, element)?)
    }
}

/// All slices, in order.
fn slices_of<K: Key, A>(panes: &impl Panes<K, A>) -> impl Iterator<Item = Time> {
    let first = panes.next_slice(Time::MIN);
    std::iter::successors(first, |slice| after(*slice, |from| panes.next_slice(from)))
}

fn after(slice: Time, next: impl Fn(Time) -> Option<Time>) -> Option<Time> {
    slice.0.checked_add(1).and_then(|after| next(Time(after)))
}

cell!(PanesCell: Panes);
cell!(ListsCell: Lists);

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
