//! Maps of a store.

use std::fmt;
use std::ops::RangeInclusive;

use alluvium_layouts::{Cursor, ForeignState, Table, Touched, Upkeep};
use alluvium_pagestore::{EntryCodec, Key, Result, Time};

use crate::api::batch::BookedBatch;
use crate::api::expiring::SweepPass;
use crate::cells::state_cell::{CellContents, CellCore, KeptState, Outgoing, Portable, StateCell};
use crate::durability::export::{
    CanonicalEntry, ImportBatch, ImportEntries, check_hash, each, in_batches,
};
use crate::durability::moving::in_order;
use crate::store::{not_encoded, put_records};

/// A map of a store.
pub(crate) type MapCell<K, V, T> = StateCell<KeptState<T, WaysOfMap<K, V>>>;

/// How entries of a map become bytes, if the layout says, and when they were touched last, if they expire.
pub(crate) struct WaysOfMap<K, V> {
    pub(crate) codec: Option<EntryCodec<K, V>>,
    pub(crate) touched: Option<Touched<V>>,
}

impl<K, V> Clone for WaysOfMap<K, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K, V> Copy for WaysOfMap<K, V> {}

impl<K, V> fmt::Debug for WaysOfMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WaysOfMap")
    }
}

impl<K: Key, V: 'static> WaysOfMap<K, V> {
    /// What a value takes in memory; without its heap if the layout has no codec.
    pub(crate) fn bytes_of(&self, value: &V) -> u64 {
        self.codec.map_or(size_of::<V>() as u64, |codec| codec.value_bytes(value))
    }

    fn decode(&self, core: &CellCore, entry: CanonicalEntry<'_>) -> Result<(K, V)> {
        let codec = self.codec.ok_or_else(|| not_encoded("imported"))?;
        let (key, value) = codec.decode(entry.key, entry.value)?;
        check_hash(entry.hash, key.key_hash())?;
        if let Some(touched) = self.touched {
            core.saw(touched(&value))?;
        }
        Ok((key, value))
    }

    /// Gives an entry, unless it is over.
    #[inline(never)]
    fn give(&self, key: &K, value: &V, to: &mut Outgoing<'_>) -> Result<()> {
        if self.touched.is_some_and(|touched| touched(value) < to.over) {
            return Ok(());
        }
        let codec = self.codec.ok_or_else(|| not_encoded("exported"))?;
        codec.encode(to.encoded, key, value)?;
        to.give(key.key_hash(), Time(0))
    }
}

impl<K: Key, V: 'static, T: Table<K, V>> CellContents for KeptState<T, WaysOfMap<K, V>> {
    fn upkeep(&self) -> &dyn Upkeep {
        self.inner.layout.innermost()
    }

    fn upkeep_mut(&mut self) -> &mut dyn Upkeep {
        self.inner.layout.innermost_mut()
    }

    fn finds_groups(&mut self) -> bool {
        self.ways.codec.is_some() && self.inner.layout.by_hash().is_some()
    }

    fn stamp(&mut self, now: Time, life_nanos: u64) -> Result<()> {
        if let Some(touched) = self.ways.touched {
            self.inner.layout.can_expire()?;
            self.inner.layout.stamp_with(touched, now);
            self.inner.layout.live_for(life_nanos);
        }
        Ok(())
    }

    fn batch_bytes(&self) -> u64 {
        BookedBatch::<(K, V)>::memory_bytes()
    }

    fn take(&mut self, part: &ForeignState) -> Result<()> {
        let codec = self.ways.codec.ok_or_else(|| not_encoded("restored by key groups"))?;
        let table = &mut self.inner.layout;
        table.expect(table.len() + part.entries_likely());
        put_records(part, &codec, table)
    }

    fn len(&self) -> u64 {
        self.inner.layout.len()
    }

    fn expect(&mut self, entries: u64) {
        self.inner.layout.expect(entries);
    }

    fn expire(&mut self, pass: &mut SweepPass, fuel: usize) -> Result<()> {
        let touched = self.ways.touched.expect("entries expire");
        pass.go_on(touched, |pass| self.inner.layout.expire(pass, fuel))
    }

    fn export(&mut self, to: &mut Outgoing<'_>) -> Result<()> {
        let ways = self.ways;
        if ways.codec.is_none() {
            return Err(not_encoded("exported"));
        }
        self.inner.layout.visit_all(&mut |key, value| ways.give(key, value, to))
    }

    fn is_fast_in_order(&mut self) -> bool {
        let is_fast = self.inner.layout.by_hash().is_some_and(|table| table.is_fast_in_order());
        is_fast && self.ways.codec.is_some()
    }

    fn visit_hashes(
        &mut self,
        _: Time,
        hashes: &RangeInclusive<u64>,
        cursor: &mut Cursor,
        fuel: usize,
        to: &mut Outgoing<'_>,
    ) -> Result<usize> {
        let ways = self.ways;
        if ways.codec.is_none() {
            return Err(not_encoded("moved by key groups"));
        }
        let table = in_order(self.inner.layout.by_hash())?;
        let visited = table.visit_hashes((), hashes, cursor, fuel, &mut |key, _, values| {
            values.iter().try_for_each(|value| ways.give(key, value, to))
        });
        visited.map(|()| fuel)
    }

    fn remove_hashes(
        &mut self,
        _: Time,
        hashes: &RangeInclusive<u64>,
        cursor: &mut Cursor,
        fuel: usize,
    ) -> Result<usize> {
        in_order(self.inner.layout.by_hash())?.remove_hashes((), hashes, cursor, fuel)
    }

    fn import(&mut self, core: &CellCore, entry: CanonicalEntry<'_>) -> Result<()> {
        let (key, value) = self.ways.decode(core, entry)?;
        core.write(self, 1);
        self.inner.layout.put(key, value)?;
        Ok(())
    }

    fn import_all(cell: &StateCell<Self>, entries: &mut dyn ImportEntries) -> Result<()> {
        let Ok(batch) = BookedBatch::begin(entries.account()) else {
            return each(entries, &mut |entry| cell.import(entry));
        };
        let ways = cell.ways()?;
        if ways.codec.is_none() {
            return Err(not_encoded("imported"));
        }
        in_batches(entries, &mut MapImport { cell, ways, batch })
    }
}

/// Entries on their way into a map.
struct MapImport<'c, K, V, T> {
    cell: &'c MapCell<K, V, T>,
    ways: WaysOfMap<K, V>,
    batch: BookedBatch<(K, V)>,
}

impl<K: Key, V: 'static, T: Table<K, V>> ImportBatch for MapImport<'_, K, V, T> {
    fn take(&mut self, entry: CanonicalEntry<'_>) -> Result<bool> {
        let bytes = entry.key.len() + entry.value.len();
        let pair = self.ways.decode(self.cell, entry)?;
        Ok(self.batch.push(pair, bytes))
    }

    fn put(&mut self) -> Result<()> {
        let count = self.batch.items.len();
        self.cell.enter_to_write(count)?.put_batch(&mut self.batch.items)
    }
}
