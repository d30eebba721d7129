//! Panes of a store.

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;

use alluvium_layouts::{CheckpointOutcome, Cursor, Merge, Panes, TableStats};
use alluvium_pagestore::{
    BlobWriter, Encoded, Error, ErrorKind, Key, KeyGroup, Result, State, StateImage, Time,
};

use super::{Shared, after, each_of_group};
use crate::batch::Batch;
use crate::export::{Entries, Entry, Parts, Visit, check_hash, in_batches};
use crate::moving::{Arriving, Groups, Place, in_order};
use crate::pacing::Stream;
use crate::state_cell::{Hooks, Lock};
use crate::store::{Pane, put, put_all};

/// Slices of which a range of hashes of a few thousand accumulators has more than a hundred each.
const SLICES_IN_PARTS: usize = 32;

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
}

impl<K: Key, V: State, T: Panes<K, V>> Hooks for PanesCell<K, V, T> {
    fn poisoned(&self) -> bool {
        self.0.poisoned.get()
    }

    fn checkpoint(&self, blobs: &mut BlobWriter) -> Result<StateImage> {
        self.0.checkpoint(blobs)
    }

    fn begin_checkpoint(&self, blobs: &mut BlobWriter) -> Result<Option<StateImage>> {
        self.0.begin_checkpoint(blobs)
    }

    fn calls(&self) -> u64 {
        self.0.calls.get()
    }

    fn pace_checkpoint(&self, stream: Stream) -> Result<()> {
        self.0.pace_checkpoint(stream)
    }

    fn continue_checkpoint(&self, blobs: &mut BlobWriter) -> Result<Option<StateImage>> {
        self.0.continue_checkpoint(blobs)
    }

    fn checkpointed(&self, outcome: CheckpointOutcome) {
        self.0.checkpointed(outcome);
    }

    fn tick(&self, work: usize) -> Result<usize> {
        self.0.tick(work)
    }

    fn reclaim(&self, bytes: u64) -> Result<u64> {
        self.0.reclaim(bytes, |inner| inner.purge(Time::MAX, 1))
    }

    fn fixed_bytes(&self) -> (u64, u64) {
        self.0.fixed_bytes()
    }

    fn stats(&self) -> Result<TableStats> {
        self.0.stats()
    }

    /// Gives accumulators of a key group, each once, merged: slice by slice.
    fn extract(
        &self,
        group: KeyGroup,
        at: &mut Place,
        fuel: usize,
        visit: Visit<'_>,
    ) -> Result<()> {
        let hashes = self.0.hashes_of(group);
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

    fn forget(&self, group: KeyGroup, at: &mut Place, fuel: usize) -> Result<()> {
        let hashes = self.0.hashes_of(group);
        let panes = &mut *self.0.enter()?;
        each_of_group(at, fuel, panes, T::next_slice, |panes, slice, cursor, fuel| {
            in_order(panes.by_hash())?.remove_hashes(slice, &hashes, cursor, fuel)
        })
    }

    /// Puts an accumulator in the place of what may be there.
    fn install(&self, entry: Entry<'_>, arriving: &mut Arriving) -> Result<()> {
        let (key, acc) = Encoded::get::<K, V>(entry.key, entry.value)?;
        check_hash(entry.hash, key.key_hash())?;
        let (slice, mut panes) = (Time(entry.order), self.0.enter_for(1)?);
        if arriving.is_anew {
            panes.remove(slice, &key)?;
        }
        panes.update(slice, &key, || acc, |_| ())
    }

    /// Merges, which is the user's code.
    fn export(&self, visit: Visit<'_>) -> Result<()> {
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
    fn has_parts(&self) -> Result<bool> {
        let mut panes = self.0.enter()?;
        let slices = slices_of(&*panes).take(SLICES_IN_PARTS + 1);
        let (count, last) = slices.fold((0, Time::MIN), |(count, _), slice| (count + 1, slice));
        let are_few = count <= SLICES_IN_PARTS && last < Time::MAX;
        Ok(are_few && panes.by_hash().is_some_and(|panes| panes.is_fast_in_order()))
    }

    /// [`export`](Hooks::export), range by range of the hashes. Merges, which is the user's
    /// code.
    fn export_in_parts(&self, parts: &mut dyn Parts) -> Result<()> {
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

    fn expect(&self, entries: u64) -> Result<()> {
        let mut panes = self.0.enter()?;
        let there = panes.len();
        panes.expect(there.saturating_add(entries));
        Ok(())
    }

    fn import_all(&self, entries: &mut dyn Entries) -> Result<()> {
        let decode = |entry: Entry<'_>| {
            let (key, acc) = Encoded::get::<K, V>(entry.key, entry.value)?;
            check_hash(entry.hash, key.key_hash())?;
            Ok((Time(entry.order), key, Cell::new(Some(acc))))
        };
        let put = |batch: &mut Batch<Pane<K, V>>| {
            self.0.run(batch.items.len(), |panes| put_all(panes, &self.1.0, batch))?
        };
        self.0.enter()?.begin_filling();
        let import = || in_batches(entries, decode, put, |entry| self.import(entry));
        let imported = catch_unwind(AssertUnwindSafe(import));
        // Also after a panic of the user's merge: what has come so far is there.
        let filled = self.0.run(0, |panes| panes.end_filling())?;
        match imported {
            Ok(imported) => filled.and(imported),
            Err(panic) => resume_unwind(panic),
        }
    }

    fn import(&self, entry: Entry<'_>) -> Result<()> {
        let (key, acc) = Encoded::get::<K, V>(entry.key, entry.value)?;
        check_hash(entry.hash, key.key_hash())?;
        self.0.run(1, |panes| put(panes, &self.1.0, Time(entry.order), &key, acc))?
    }
}

/// All slices, in order.
fn slices_of<K: Key, A>(panes: &impl Panes<K, A>) -> impl Iterator<Item = Time> {
    let first = panes.next_slice(Time::MIN);
    std::iter::successors(first, |slice| after(*slice, |from| panes.next_slice(from)))
}
