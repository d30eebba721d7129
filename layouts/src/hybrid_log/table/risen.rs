//! Keys that have no entry in the index, and may be in the cold tier.
//!
//! A key that is to be changed *rises*: its record moves to memory and gets an entry again. Its copy in the runs is dead
//! from then on. One that is read is lent, as others that are on storage; read again soon, it rises.

use alluvium_pagestore::{ErrorKind, Key, MemoryKind, Result, State, Time};

use super::HybridLogTable;
use super::core::LogCore;
use super::reaching::ValueLocation;
use super::sought::{DecodedSought, Sought};
use crate::hybrid_log::cold::{ColdPresence, ColdTier};
use crate::hybrid_log::log::Log;

impl<K: Key, V: State> HybridLogTable<K, V> {
    /// Whether keys without an entry may be there.
    #[inline(always)]
    pub(in crate::hybrid_log) fn has_cold(&self) -> bool {
        self.core.has_cold()
    }
}

/// Compiled once.
impl LogCore {
    /// Whether keys without an entry may be there.
    #[inline(always)]
    pub(super) fn has_cold(&self) -> bool {
        self.log.cold.as_ref().is_some_and(|cold| cold.live() > 0 || cold.has_fetches())
    }

    /// Whether deleted keys may have to be buried.
    fn has_runs(&self) -> bool {
        self.log.cold.as_ref().is_some_and(|cold| cold.has_levels())
    }

    /// Runs a look-up in the tier, and once more if memory had no room for what it reads. Making room moves records in
    /// memory, and takes none out of the index.
    fn in_cold(
        &mut self,
        needs: u64,
        call: &mut dyn FnMut(&mut ColdTier) -> Result<ColdPresence>,
    ) -> Result<ColdPresence> {
        let log = &mut self.log;
        let cold = log.cold.as_mut().expect("asked before");
        let answer = match call(cold) {
            Err(error) if error.kind() == ErrorKind::OverBudget => {
                log.make_free((needs + log.sizes.headroom_bytes, "reading a run"))?;
                call(log.cold.as_mut().expect("asked before"))
            }
            answer => answer,
        };
        log.make_room_for_guides();
        answer
    }

    /// What was touched last before this is not there.
    fn gone_before(&self) -> Time {
        self.log.cold.as_ref().map_or(Time::MIN, |cold| cold.expired_to())
    }

    /// Takes the record of a key that has no entry in the index.
    fn read_run(&mut self, sought: &mut Sought<'_>) -> Result<Option<DecodedSought>> {
        self.log.make_headroom()?;
        self.log.stats.cold_reads += 1;
        let needs = self.log.cold.as_ref().map_or(0, |cold| cold.read_bytes());
        let Sought { whole_hash, record, .. } = sought;
        let mut found = None;
        let known = self.in_cold(needs, &mut |cold| {
            cold.find(*whole_hash, &mut |payload| {
                let decoded = record.decode(payload, true)?;
                found = decoded.or(found);
                Ok(decoded.is_some())
            })
        });
        let known = known.map_err(|error| error.with("state", &self.context.name))?;
        let gone_before = self.gone_before();
        Ok(found.filter(|found| known == ColdPresence::There && found.touched >= gone_before))
    }

    /// Brings a key that has no entry in the index to memory, if it is there. Says whether it is.
    pub(super) fn rise(&mut self, sought: &mut Sought<'_>) -> Result<bool> {
        let cold = self.log.cold.as_ref().filter(|_| self.has_cold());
        if cold.is_none_or(|cold| cold.is_known_absent(sought.whole_hash)) {
            return Ok(false);
        }
        let Some(DecodedSought { touched, .. }) = self.read_run(sought)? else { return Ok(false) };
        let to = self.log.make_room(sought.hash)?;
        sought.record.put(self, to);
        let address = self.log.address_of(to.0, to.1);
        self.log.index.insert(sought.hash, address);
        self.log.cold.as_mut().expect("asked before").left(sought.whole_hash, touched);
        Ok(true)
    }

    /// Finds a key that has no entry in the index, for reading. What is to be lent is taken, and its heap
    /// charged.
    pub(super) fn find_in_runs(
        &mut self,
        sought: &mut Sought<'_>,
        again: bool,
    ) -> Result<ValueLocation> {
        let cold = self.log.cold.as_ref();
        if cold.is_none_or(|cold| cold.is_known_absent(sought.whole_hash)) {
            return Ok(ValueLocation::Absent);
        }
        if again && self.log.slot_at_hand().is_some() {
            match self.own_elsewhere(sought, sought.locate(self), &mut None) {
                Ok(Some((number, slot))) => return Ok(ValueLocation::Slot(number, slot)),
                Ok(None) => return Ok(ValueLocation::Absent),
                // The index has no room for it, or has some only once more is merged: it is lent.
                Err(error) if error.kind() == ErrorKind::OverBudget => {}
                Err(_) if self.log.has_merged_its_part() => {}
                Err(error) => return Err(error),
            }
        }
        let Some(found) = self.read_run(sought)? else { return Ok(ValueLocation::Absent) };
        self.log.account.charge(MemoryKind::Values, found.heap);
        Ok(ValueLocation::Scratch)
    }

    /// Pays for a tombstone, and makes room for it: tombstones move down, and records with them, the key's own perhaps.
    pub(super) fn prepare_to_bury(&mut self, hash: u64) -> Result<()> {
        let (log, mut has_failed) = (&mut self.log, false);
        let needs_one = |log: &Log| {
            log.cold.as_ref().is_some_and(|cold| cold.has_levels() && cold.may_have(hash))
        };
        if !needs_one(log) {
            return Ok(());
        }
        log.begin_call();
        log.pay_for_grave();
        while log.cold.as_ref().is_some_and(|cold| cold.is_full_of_burials()) && needs_one(log) {
            match log.must_move_down() {
                Ok(true) => {}
                Ok(false) => break,
                // After a merge that has failed tombstones move.
                Err(error) if has_failed => return Err(error),
                Err(_) => has_failed = true,
            }
        }
        Ok(())
    }

    /// Buries a key whose entry is about to go, if runs may have a copy of it. Does not take the copy.
    pub(super) fn bury(&mut self, sought: &mut Sought<'_>) -> Result<()> {
        let may_have = |cold: &ColdTier| cold.may_have(sought.whole_hash);
        if self.has_runs() && self.log.cold.as_deref().is_some_and(may_have) {
            self.bury_copy(sought, true)?;
        }
        Ok(())
    }

    /// Buries a key, and takes its copy if it has no entry. Says what that was.
    fn bury_copy(
        &mut self,
        sought: &mut Sought<'_>,
        has_entry: bool,
    ) -> Result<(ColdPresence, Option<DecodedSought>)> {
        let needs = self.log.cold.as_ref().map_or(0, |cold| cold.burial_bytes());
        let gone_before = self.gone_before();
        let Sought { whole_hash, record, .. } = sought;
        let mut found = None;
        let known = self.in_cold(needs, &mut |cold| {
            cold.bury(*whole_hash, has_entry, &mut |payload| {
                let decoded = record.decode(payload, !has_entry)?;
                // What has expired need not be buried.
                let is_it = decoded.filter(|decoded| decoded.touched >= gone_before);
                found = is_it.or(found);
                Ok(is_it.is_some())
            })
        })?;
        Ok((known, found))
    }

    /// Takes a key that has no entry in the index. Says whether it was there.
    pub(super) fn take_from_runs(&mut self, sought: &mut Sought<'_>) -> Result<bool> {
        if !self.has_cold() {
            return Ok(false);
        }
        self.log.make_headroom()?;
        let (ColdPresence::There, found) = self.bury_copy(sought, false)? else {
            return Ok(false);
        };
        let touched = found.map_or(Time::MAX, |found| found.touched);
        self.log.cold.as_mut().expect("asked before").left(sought.whole_hash, touched);
        Ok(found.is_some())
    }
}
