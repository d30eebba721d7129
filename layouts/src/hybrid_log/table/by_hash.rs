//! The records of a range of hashes: of a key group that moves to another store.
//!
//! What it keeps true: a step takes whole prefixes, in their order, so that the place reached is a
//! prefix, which stays valid however segments of the index are split. To remove records none is read.

use std::ops::RangeInclusive;
use std::panic::resume_unwind;
use std::slice::from_ref;

use alluvium_pagestore::{Key, Result, State};

use crate::contract::by_hash::{ByHash, VisitRun};
use crate::contract::table::Cursor;
use crate::hybrid_log::address::{Address, Location};
use crate::hybrid_log::core::{LogCore, VisitRecords};
use crate::hybrid_log::index::{Index, IndexHash, PREFIX_BITS};
use crate::hybrid_log::storage::sort_addresses;
use crate::hybrid_log::table::HybridLogTable;
use crate::support::booked::Booked;
use crate::support::record_type_unsafe::RecordRun;

/// Entries of the index that a step has to do with, and where the next one begins.
struct IndexEntries {
    entries: Vec<(IndexHash, Address)>,
    next: Option<u32>,
}

impl<K: Key, V: State> ByHash<K, V> for HybridLogTable<K, V> {
    fn is_fast_in_order(&self) -> bool {
        self.core.log.index.stored() == 0 && !self.has_cold()
    }

    fn visit_hashes(
        &mut self,
        (): (),
        hashes: &RangeInclusive<u64>,
        cursor: &mut Cursor,
        fuel: usize,
        visit: VisitRun<'_, K, V>,
    ) -> Result<()> {
        let before = *cursor;
        let mut visit = |key: &K, value: &V| visit(key, 0, from_ref(value));
        let scanned = self
            .guarded(&mut visit, &mut |core, visit| core.scan_range(hashes, cursor, fuel, visit));
        if scanned.is_err() {
            *cursor = before;
        }
        scanned
    }

    /// Removes records whose prefixes are in the range, which must begin and end with one.
    fn remove_hashes(
        &mut self,
        (): (),
        hashes: &RangeInclusive<u64>,
        cursor: &mut Cursor,
        fuel: usize,
    ) -> Result<usize> {
        self.forget_scratch();
        self.core.remove_range(hashes, cursor, fuel)
    }
}

impl LogCore {
    /// Whether the index keeps what tells key groups apart; not so in tests of colliding hashes.
    pub(in crate::hybrid_log) fn knows_hashes(&self) -> bool {
        self.log.sizes.hash_mask == u64::MAX
    }

    fn remove_range(
        &mut self,
        hashes: &RangeInclusive<u64>,
        cursor: &mut Cursor,
        fuel: usize,
    ) -> Result<usize> {
        let mut removed = 0;
        while !cursor.done && removed < fuel.max(1) {
            // Before the entries, whose dead copies it may have, and after the last, as records may have moved meanwhile.
            self.cut_cold(hashes)?;
            let memory = self.book_step()?;
            let (first, last) = self.prefixes_of(hashes);
            let prefixes = ((cursor.position as u32).max(first), last);
            let IndexEntries { entries, next } =
                self.find_entries(prefixes, fuel.max(1) - removed, u32::MAX);
            removed += entries.len().max(1);
            for (hash, address) in entries {
                self.remove_entry(hash, address);
            }
            drop(memory);
            go_on(cursor, next);
        }
        if cursor.done {
            self.cut_cold(hashes)?;
        }
        Ok(removed)
    }

    fn cut_cold(&mut self, hashes: &RangeInclusive<u64>) -> Result<()> {
        match &mut self.log.cold {
            Some(cold) if cold.has_levels() => cold.cut(hashes),
            _ => Ok(()),
        }
    }

    fn scan_range(
        &mut self,
        hashes: &RangeInclusive<u64>,
        cursor: &mut Cursor,
        fuel: usize,
        visit: VisitRecords<'_>,
    ) -> Result<()> {
        let record_type = self.log.record_type;
        let mut wanted = |run: &RecordRun<'_>| {
            let wanted = run.records().filter(|record| hashes.contains(&record.hash()));
            RecordRun::show(record_type, wanted, visit)
        };
        self.scan_prefixes(self.prefixes_of(hashes), cursor, fuel, &mut wanted)
    }

    /// Visits the records of a range of prefixes, about so many.
    pub(in crate::hybrid_log) fn scan_prefixes(
        &mut self,
        prefixes: (u32, u32),
        cursor: &mut Cursor,
        fuel: usize,
        visit: VisitRecords<'_>,
    ) -> Result<()> {
        let mut visited = 0;
        while !cursor.done && visited < fuel.max(1) {
            let memory = self.book_step()?;
            // Before addresses are taken: making room moves records.
            let step = self.make_room_to_read().and_then(|()| {
                let from = (cursor.position as u32).max(prefixes.0);
                let (fuel, at_once) = (fuel.max(1) - visited, self.prefixes_at_once(fuel));
                let mut found = self.find_entries((from, prefixes.1), fuel, at_once);
                if self.log.cold.is_some() {
                    // Before addresses are taken too. What it has no fuel for is left to the next step, with its entries.
                    let end = found.next.unwrap_or(prefixes.1 + 1);
                    let hashes = self.hashes_between(from, Some(end));
                    let (looked_at, next) = self.scan_cold(&hashes, fuel, visit)?;
                    visited += looked_at;
                    let end = next.map_or(end, |hash| self.prefix_of(hash));
                    let next = next.map_or(found.next, |_| Some(end));
                    found = self.find_entries((from, end - 1), usize::MAX, at_once);
                    found.next = next;
                }
                visited += found.entries.len().max(1);
                let mut addresses: Vec<_> = found.entries.iter().map(|entry| entry.1).collect();
                sort_addresses(&mut addresses);
                self.visit_addresses(&addresses, visit)?;
                Ok(found.next)
            });
            drop(memory);
            go_on(cursor, step?);
        }
        Ok(())
    }

    fn remove_entry(&mut self, hash: IndexHash, address: Address) {
        let Some((at, _)) = self.log.index.find(hash, |known| known == address) else { return };
        match address.place() {
            Location::Stored(place) => {
                self.log.stored.as_mut().expect("a log with segments").record_died(place);
                self.log.index.remove(at);
            }
            Location::Memory(slot) => {
                let (number, slot) = self.log.slot_of(slot);
                if self.log.is_kept(number, slot) {
                    self.log.leave_for_dead(number, slot);
                    self.log.index.remove(at);
                } else {
                    let dropped = self.log.drop_record(number, slot);
                    self.log.index.remove(at);
                    // Dropping runs user code, which may have panicked.
                    dropped.unwrap_or_else(|panic| resume_unwind(panic));
                }
            }
        }
    }

    /// The next entries of a range of prefixes, about so many, and at least all of one prefix. So many prefixes are looked
    /// at, at most.
    fn find_entries(
        &mut self,
        (from, last): (u32, u32),
        fuel: usize,
        at_once: u32,
    ) -> IndexEntries {
        let end = last.min(from.saturating_add(at_once - 1));
        let mut entries = Vec::with_capacity(self.log.sizes.buckets * 7);
        let give = |hash, address| entries.push((hash, address));
        let (looked_at, after) = self.log.index.visit_prefixes(from, end, give);
        self.log.stats.sought += looked_at;
        let after = match after {
            Some(after) if after <= end => Some(after),
            _ if end < last => Some(end + 1),
            after => after,
        };
        if entries.len() <= fuel {
            // All of the segment, whose order is nobody's concern.
            return IndexEntries { entries, next: after.filter(|next| *next <= last) };
        }
        entries.sort_unstable_by_key(|entry| (entry.0.prefix(), entry.1.0));
        let mut count = fuel;
        while count > 0
            && count < entries.len()
            && entries[count].0.prefix() == entries[count - 1].0.prefix()
        {
            count += 1;
        }
        let next = entries.get(count).map(|entry| entry.0.prefix()).or(after);
        entries.truncate(count);
        IndexEntries { entries, next: next.filter(|next| *next <= last) }
    }

    /// So many prefixes are visited at once that the cold tier has about so many records of them.
    fn prefixes_at_once(&self, fuel: usize) -> u32 {
        let records = self.log.cold.as_ref().map_or(0, |cold| cold.records());
        let fuel = fuel.clamp(1, 1 << 32) as u64;
        let share = (fuel << PREFIX_BITS).checked_div(records);
        share.map_or(u32::MAX, |share| share.clamp(1, u32::MAX.into()) as u32)
    }

    /// The prefixes of a range of hashes.
    fn prefixes_of(&self, hashes: &RangeInclusive<u64>) -> (u32, u32) {
        (self.prefix_of(*hashes.start()), self.prefix_of(*hashes.end()))
    }

    fn prefix_of(&self, hash: u64) -> u32 {
        Index::prefix_of(self.log.place(hash))
    }

    /// Books memory for a step, given back also if a key panics: the entries of a segment of the index, and
    /// the addresses of those taken.
    fn book_step(&mut self) -> Result<Booked> {
        let each = size_of::<(IndexHash, Address)>() + size_of::<Address>();
        let bytes = (self.log.sizes.buckets * 7 * each) as u64;
        self.log.make_free((bytes, "a step over a range of hashes"))?;
        let account = self.log.account.clone();
        Ok(Booked::buffers(account, bytes))
    }
}

fn go_on(cursor: &mut Cursor, next: Option<u32>) {
    match next {
        Some(prefix) => cursor.position = u64::from(prefix),
        None => cursor.done = true,
    }
}
