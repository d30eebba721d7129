//! Lists of a store.

use std::fmt;
use std::marker::PhantomData;
use std::ops::RangeInclusive;

use alluvium_layouts::{Cursor, ForeignState, Lists, Upkeep, for_each_list};
use alluvium_pagestore::{Encoded, Key, Result, State, Time, codec};

use crate::cells::state_cell::{CellContents, CellCore, KeptState, Outgoing, StateCell};
use crate::durability::export::{CanonicalEntry, check_hash};
use crate::durability::moving::{EntryArrival, in_order};

/// [`Lists`] of a store.
pub(crate) type ListsCell<K, E, L> = StateCell<KeptState<L, WaysOfLists<K, E>>>;

/// Says what lists are of.
pub(crate) struct WaysOfLists<K, E>(PhantomData<(K, E)>);

impl<K, E> Default for WaysOfLists<K, E> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<K, E> fmt::Debug for WaysOfLists<K, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WaysOfLists")
    }
}

impl<K: Key, E: State, L: Lists<K, E>> CellContents for KeptState<L, WaysOfLists<K, E>> {
    fn upkeep(&self) -> &dyn Upkeep {
        self.inner.layout.innermost()
    }

    fn upkeep_mut(&mut self) -> &mut dyn Upkeep {
        self.inner.layout.innermost_mut()
    }

    fn finds_groups(&mut self) -> bool {
        self.inner.layout.by_hash().is_some()
    }

    fn take(&mut self, part: &ForeignState) -> Result<()> {
        let lists = &mut self.inner.layout;
        part.for_each_element(|bucket, key: &K, element: &E| {
            Ok(lists.append(bucket, key, element.clone())?)
        })
    }

    fn len(&self) -> u64 {
        self.inner.layout.len()
    }

    fn purge(&mut self) -> Result<()> {
        self.inner.layout.purge(Time::MAX, 1).map(drop)
    }

    fn export(&mut self, to: &mut Outgoing<'_>) -> Result<()> {
        for_each_list(&mut self.inner.layout, &mut |bucket, key: &K, elements| {
            codec::encode_one(&mut to.encoded.key, key)?;
            while let Some(element) = elements.next()? {
                codec::encode_one(&mut to.encoded.value, element)?;
                to.give(key.key_hash(), bucket)?;
            }
            Ok(())
        })
    }

    fn next_part(&self, from: Time) -> Option<Time> {
        self.inner.layout.next_bucket(from)
    }

    /// In runs: each with how many elements of its list come before it.
    fn visit_hashes(
        &mut self,
        part: Time,
        hashes: &RangeInclusive<u64>,
        cursor: &mut Cursor,
        fuel: usize,
        to: &mut Outgoing<'_>,
    ) -> Result<usize> {
        let (lists, mut count) = (in_order(self.inner.layout.by_hash())?, 0);
        lists.visit_hashes(part, hashes, cursor, fuel, &mut |key, from, run| {
            count += run.len();
            to.encoded.set(key, &(from, run.to_vec()))?;
            to.give(key.key_hash(), part)
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

    fn import(&mut self, _: &CellCore, entry: CanonicalEntry<'_>) -> Result<()> {
        let (key, element) = Encoded::get::<K, E>(entry.key, entry.value)?;
        check_hash(entry.hash, key.key_hash())?;
        Ok(self.inner.layout.append(Time(entry.order), &key, element)?)
    }

    /// Appends a run, the first of a list in the place of what may be there of it.
    fn install(
        &mut self,
        core: &CellCore,
        entry: CanonicalEntry<'_>,
        arriving: &mut EntryArrival,
    ) -> Result<()> {
        let (key, (from, run)) = Encoded::get::<K, (u64, Vec<E>)>(entry.key, entry.value)?;
        check_hash(entry.hash, key.key_hash())?;
        core.count(1);
        let (bucket, lists) = (Time(entry.order), &mut self.inner.layout);
        if arriving.is_anew && from == 0 && arriving.done == 0 {
            lists.clear_key(bucket, &key)?;
        }
        for element in run.into_iter().skip(arriving.done) {
            lists.append(bucket, &key, element)?;
            arriving.done += 1;
        }
        Ok(())
    }
}
