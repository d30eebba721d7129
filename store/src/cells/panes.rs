//! Panes of a store.

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::ops::RangeInclusive;

use alluvium_layouts::{Cursor, ForeignState, Merge, Panes, Upkeep};
use alluvium_pagestore::{Encoded, Key, Result, State, Time};

use crate::api::batch::BookedBatch;
use crate::cells::state_cell::{CellContents, CellCore, KeptState, Outgoing, Portable, StateCell};
use crate::durability::export::{
    CanonicalEntry, ImportBatch, ImportEntries, check_hash, each, in_batches,
};
use crate::durability::moving::{EntryArrival, in_order};
use crate::store::{Pane, put, put_all, put_panes};

/// [`Panes`] of a store.
pub(crate) type PanesCell<K, A, P> = StateCell<KeptState<P, WaysOfPanes<K, A>>>;

/// Updates an accumulator where that is rare. Compiled once for each type of panes, not for each
/// caller: it makes indirect calls.
#[inline(never)]
pub(crate) fn update_rarely<K: Key, A: State, P: Panes<K, A>>(
    panes: &mut P,
    (slice, key): (Time, &K),
    init: &mut dyn FnMut() -> A,
    change: &mut dyn FnMut(&mut A),
) -> Result<()> {
    panes.update(slice, key, init, change)
}

/// Puts an accumulator where there is none. `make` is called once there is room for it. Compiled
/// once, as [`update_rarely`].
pub(crate) fn put_anew<K: Key, A: State, P: Panes<K, A>>(
    panes: &mut P,
    place: (Time, &K),
    make: &mut dyn FnMut() -> A,
) -> Result<()> {
    update_rarely(panes, place, make, &mut |_| ())
}

/// How accumulators are merged.
pub(crate) struct WaysOfPanes<K, A>(Merge<A>, PhantomData<K>);

impl<K, A> WaysOfPanes<K, A> {
    pub(crate) fn new(merge: Merge<A>) -> Self {
        Self(merge, PhantomData)
    }
}

impl<K, A> fmt::Debug for WaysOfPanes<K, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WaysOfPanes")
    }
}

fn decode<K: Key, A: State>(entry: CanonicalEntry<'_>) -> Result<(Time, K, A)> {
    let (key, acc) = Encoded::get::<K, A>(entry.key, entry.value)?;
    check_hash(entry.hash, key.key_hash())?;
    Ok((Time(entry.order), key, acc))
}

impl<K: Key, A: State, P: Panes<K, A>> CellContents for KeptState<P, WaysOfPanes<K, A>> {
    fn upkeep(&self) -> &dyn Upkeep {
        self.inner.layout.innermost()
    }

    fn upkeep_mut(&mut self) -> &mut dyn Upkeep {
        self.inner.layout.innermost_mut()
    }

    fn finds_groups(&mut self) -> bool {
        self.inner.layout.by_hash().is_some()
    }

    fn batch_bytes(&self) -> u64 {
        BookedBatch::<Pane<K, A>>::memory_bytes()
    }

    fn take(&mut self, part: &ForeignState) -> Result<()> {
        let panes = &mut self.inner.layout;
        panes.expect(panes.len() + part.entries_likely());
        put_panes(part, &self.ways.0, panes)
    }

    fn len(&self) -> u64 {
        self.inner.layout.len()
    }

    fn expect(&mut self, entries: u64) {
        self.inner.layout.expect(entries);
    }

    fn purge(&mut self) -> Result<()> {
        self.inner.layout.purge(Time::MAX, 1).map(drop)
    }

    /// Merges, which is the user's code.
    fn export(&mut self, to: &mut Outgoing<'_>) -> Result<()> {
        let panes = &mut self.inner.layout;
        let mut next = panes.next_slice(Time::MIN);
        while let Some(slice) = next {
            let mut cursor = Cursor::default();
            while !cursor.done {
                panes.fold(slice..slice.plus(1), &mut cursor, 4096, &mut |key, acc| {
                    to.encoded.set(key, &acc)?;
                    to.give(key.key_hash(), slice)
                })?;
            }
            next = slice.0.checked_add(1).and_then(|after| panes.next_slice(Time(after)));
        }
        Ok(())
    }

    fn is_fast_in_order(&mut self) -> bool {
        self.inner.layout.by_hash().is_some_and(|panes| panes.is_fast_in_order())
    }

    fn next_part(&self, from: Time) -> Option<Time> {
        self.inner.layout.next_slice(from)
    }

    /// Each once, merged.
    fn visit_hashes(
        &mut self,
        part: Time,
        hashes: &RangeInclusive<u64>,
        cursor: &mut Cursor,
        fuel: usize,
        to: &mut Outgoing<'_>,
    ) -> Result<usize> {
        let (panes, mut count) = (in_order(self.inner.layout.by_hash())?, 0);
        panes.visit_hashes(part, hashes, cursor, fuel, &mut |key, _, accs| {
            count += accs.len();
            accs.iter().try_for_each(|acc| {
                to.encoded.set(key, acc)?;
                to.give(key.key_hash(), part)
            })
        })?;
        Ok(count)
    }

    fn remove_hashes(
        &mut self,
        part: Time,
        hashes: &RangeInclusive<u64>,
        cursor: &mut Cursor,
        fuel: usize,
    ) -> Result<usize> {
        in_order(self.inner.layout.by_hash())?.remove_hashes(part, hashes, cursor, fuel)
    }

    fn import(&mut self, core: &CellCore, entry: CanonicalEntry<'_>) -> Result<()> {
        let (slice, key, acc) = decode(entry)?;
        core.count(1);
        put(&mut self.inner.layout, &self.ways.0, slice, &key, acc)
    }

    /// Puts an accumulator in the place of what may be there.
    fn install(
        &mut self,
        core: &CellCore,
        entry: CanonicalEntry<'_>,
        arriving: &mut EntryArrival,
    ) -> Result<()> {
        let (slice, key, acc): (_, K, A) = decode(entry)?;
        core.count(1);
        if arriving.is_anew {
            self.inner.layout.remove(slice, &key)?;
        }
        let mut acc = Some(acc);
        put_anew(&mut self.inner.layout, (slice, &key), &mut || acc.take().expect("made once"))
    }

    fn import_all(cell: &StateCell<Self>, entries: &mut dyn ImportEntries) -> Result<()> {
        match BookedBatch::begin(entries.account()) {
            Ok(batch) => in_batches(entries, &mut PanesImport { cell, batch }),
            Err(_) => each(entries, &mut |entry| cell.import(entry)),
        }
    }
}

/// Accumulators on their way into panes.
struct PanesImport<'c, K, A, P> {
    cell: &'c PanesCell<K, A, P>,
    batch: BookedBatch<Pane<K, A>>,
}

impl<K: Key, A: State, P: Panes<K, A>> ImportBatch for PanesImport<'_, K, A, P> {
    fn take(&mut self, entry: CanonicalEntry<'_>) -> Result<bool> {
        let bytes = entry.key.len() + entry.value.len();
        let (slice, key, acc) = decode(entry)?;
        Ok(self.batch.push((slice, key, Cell::new(Some(acc))), bytes))
    }

    fn put(&mut self) -> Result<()> {
        let Self { cell, batch } = self;
        cell.run_kept(batch.items.len(), |kept| {
            put_all(&mut kept.inner.layout, &kept.ways.0, batch)
        })?
    }
}
