//! Visiting the records of the cold tier, each key once, in the order of their hashes.
//!
//! A scan goes by prefixes of the index, and by the hashes of these prefixes here: a record that moves up or down between
//! two steps stays on its side of the place that was reached.

use std::ops::RangeInclusive;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use alluvium_pagestore::{ErrorKind, Result};

use super::graves::of_hash;
use super::judge::{has_key_among, has_same_key};
use super::{ColdTier, TOMBSTONE};
use crate::hybrid_log::address::{Address, Location};
use crate::hybrid_log::core::{LogCore, TOO_LARGE, VisitRecords};
use crate::hybrid_log::index::Index;
use crate::hybrid_log::log::Log;
use crate::runs::RecordView;
use crate::support::booked::Booked;
use crate::support::record_type_unsafe::{RecordRun, RecordType};

impl LogCore {
    /// Visits the keys of a range of hashes that have no entry in the index, about so many, and at least all of one prefix of
    /// the index. Says how many groups of records it looked at, and the hash that comes next, if the range is not over.
    pub(in crate::hybrid_log) fn scan_cold(
        &mut self,
        hashes: &RangeInclusive<u64>,
        fuel: usize,
        visit: VisitRecords<'_>,
    ) -> Result<(usize, Option<u64>)> {
        let needs = self.log.cold.as_ref().map_or(0, |cold| match cold.live() {
            0 => 0,
            _ => cold.levels.scan_bytes(cold.work.read_bytes),
        });
        if needs == 0 || hashes.is_empty() {
            return Ok((0, None));
        }
        let needed = (needs + self.log.sizes.headroom_bytes, "a scan of runs");
        if let Err(error) = self.log.make_free(needed) {
            // What a move or merge has is more than a scan takes.
            let cold = self.log.cold.as_mut().expect("looked at above");
            if error.kind() != ErrorKind::OverBudget || !cold.give_work_up() {
                return Err(error);
            }
            self.log.make_free(needed)?;
        }
        let cold = self.log.cold.as_ref().expect("looked at above");
        cold.wait_for_left()?;
        let booked = Booked::buffers(self.log.account.clone(), needs);
        let cold = self.log.cold.take().expect("looked at above");
        let (mut looked_at, mut last, mut next) = (0, 0, None);
        // Keys are the user's: to compare them may panic.
        let scanned = catch_unwind(AssertUnwindSafe(|| {
            cold.levels.scan(hashes, cold.work.read_bytes, &mut |group| {
                let prefix = Index::prefix_of(self.log.place(group[0].hash));
                if looked_at >= fuel && prefix != last {
                    next = Some(group[0].hash);
                    return Ok(false);
                }
                (looked_at, last) = (looked_at + 1, prefix);
                self.log.visit_group(&cold, group, visit).map(|()| true)
            })
        }));
        drop(booked);
        cold.book_left();
        self.log.cold = Some(cold);
        scanned.unwrap_or_else(|panic| resume_unwind(panic)).map(|()| (looked_at, next))
    }
}

impl Log {
    fn visit_group(
        &mut self,
        cold: &ColdTier,
        group: &[RecordView<'_>],
        visit: VisitRecords<'_>,
    ) -> Result<()> {
        for (nth, record) in group.iter().enumerate() {
            let is_dead = record.mark == TOMBSTONE
                || cold.has_expired(record.payload)
                || has_key_among(cold.record_type, record.payload, &group[..nth])?
                || is_buried(cold, record)?
                || self.has_entry_of(cold, record)?;
            if !is_dead {
                self.stats.codec_calls += 1;
                cold.record_type
                    .decode(record.payload, &mut |record| visit(&RecordRun::of(record)))?;
            }
        }
        Ok(())
    }

    /// Whether the index has an entry of a record's key.
    fn has_entry_of(&mut self, cold: &ColdTier, record: &RecordView<'_>) -> Result<bool> {
        Ok(self.has_in_memory(cold.record_type, record)?
            || self.has_stored_entry_of(cold, record)?)
    }

    /// Whether the key of a record has an index entry that leads to memory. Reads nothing.
    pub(super) fn has_in_memory(
        &self,
        record_type: &'static RecordType,
        record: &RecordView<'_>,
    ) -> Result<bool> {
        let hash = self.index_hash(record.hash);
        // Nearly all have none: nothing is decoded for these.
        let in_memory = |address: Address| matches!(address.place(), Location::Memory(_));
        if self.index.find(hash, in_memory).is_none() {
            return Ok(false);
        }
        let mut is_in_memory = false;
        record_type.decode(record.payload, &mut |known| {
            let found = self.index.find(hash, |address| match address.place() {
                Location::Memory(address) => {
                    let (number, slot) = self.slot_of(address);
                    self.frame(number).get(slot).is_some_and(|other| other.has_key_of(known))
                }
                Location::Stored(_) => false,
            });
            is_in_memory = found.is_some();
            Ok(())
        })?;
        Ok(is_in_memory)
    }

    fn has_stored_entry_of(&mut self, cold: &ColdTier, record: &RecordView<'_>) -> Result<bool> {
        let hash = self.index_hash(record.hash);
        let mut nth = 0;
        while let Some((_, place)) = self.candidate(hash, nth) {
            nth += 1;
            let stored = self.stored.as_mut().expect("a stored record has a store");
            let mut read = stored.read(place)?;
            // A header that is damaged may say anything.
            let longest = stored.info(place.segment).max_record_bytes;
            let longer = self.beyond_usual(read.record_bytes().min(longest));
            let stored = self.stored.as_mut().expect("a stored record has a store");
            if self.account.available() < longer {
                stored.recycle(read);
                self.make_free((longer, TOO_LARGE))?;
                nth = 0;
                continue;
            }
            // Keys are the user's: to compare them may panic.
            let is_it = catch_unwind(AssertUnwindSafe(|| {
                stored.verify(&mut read).and_then(|other| match other.hash == record.hash {
                    true => has_same_key(cold.record_type, record.payload, other.payload),
                    false => Ok(false),
                })
            }));
            stored.recycle(read);
            if is_it.unwrap_or_else(|panic| resume_unwind(panic))? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

fn is_buried(cold: &ColdTier, record: &RecordView<'_>) -> Result<bool> {
    for graves in [&cold.buried, &cold.going] {
        for grave in of_hash(graves, record.hash) {
            if has_same_key(cold.record_type, record.payload, &grave.payload)? {
                return Ok(true);
            }
        }
    }
    Ok(false)
}
