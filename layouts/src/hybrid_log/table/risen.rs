//! Keys that have no entry in the index, and may be in the cold tier.
//!
//! A key that is to be changed *rises*: its record moves to memory and gets an entry again. Its copy in the runs is dead
//! from then on. One that is read is lent, as others that are on storage; read again soon, it rises.

use alluvium_pagestore::{ErrorKind, Key, Lookup, MemoryKind, Result, State, Time, codec};

use super::putting::PutKind;
use super::reaching::ValueLocation;
use super::{HybridLogTable, Scratch};
use crate::hybrid_log::cold::{ColdPresence, ColdTier};
use crate::hybrid_log::index::IndexHash;
use crate::hybrid_log::log::Log;
use crate::support::record_type_unsafe::heap_of;

impl<K: Key, V: State> HybridLogTable<K, V> {
    /// Whether keys without an entry may be there.
    #[inline(always)]
    pub(in crate::hybrid_log) fn has_cold(&self) -> bool {
        self.core.log.cold.as_ref().is_some_and(|cold| cold.live() > 0 || cold.has_fetches())
    }

    /// Whether deleted keys may have to be buried.
    fn has_runs(&self) -> bool {
        self.core.log.cold.as_ref().is_some_and(|cold| cold.has_levels())
    }

    /// Runs a look-up in the tier, and once more if memory had no room for what it reads. Making room moves records in
    /// memory, and takes none out of the index.
    fn in_cold<R>(
        &mut self,
        needs: u64,
        call: &mut dyn FnMut(&mut ColdTier) -> Result<R>,
    ) -> Result<R> {
        let log = &mut self.core.log;
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

    /// Reads a key that has no entry in the index.
    fn read_run<Q: Lookup<K> + ?Sized>(&mut self, key: &Q) -> Result<Option<(K, V)>> {
        let (hash, mut found) = (key.key_hash(), None);
        self.core.log.make_headroom()?;
        self.core.log.stats.cold_reads += 1;
        let needs = self.core.log.cold.as_ref().map_or(0, |cold| cold.read_bytes());
        let known = self.in_cold(needs, &mut |cold| {
            cold.find(hash, &mut |payload| {
                let (k, v) = codec::decode::<K, V>(payload)?;
                let is_it = key.is(&k);
                if is_it {
                    found = Some((k, v));
                }
                Ok(is_it)
            })
        });
        let state = &self.core.context.name;
        let known = known.map_err(|error| error.with("state", state))?;
        Ok(found.filter(|(_, value)| known == ColdPresence::There && !self.has_expired(value)))
    }

    /// Whether a value of the runs has expired: then its key is not there.
    fn has_expired(&self, value: &V) -> bool {
        let expired_to = self.core.log.cold.as_ref().map_or(Time::MIN, |cold| cold.expired_to());
        self.touched_last(value) < expired_to
    }

    fn touched_last(&self, value: &V) -> Time {
        self.last_touch.map_or(Time::MAX, |touched| touched(value))
    }

    /// Brings a key that has no entry in the index to memory, if it is there. Says whether it is.
    #[cold]
    #[inline(never)]
    pub(super) fn rise<Q: Lookup<K> + ?Sized>(&mut self, hash: IndexHash, key: &Q) -> Result<bool> {
        let cold = self.core.log.cold.as_ref().filter(|_| self.has_cold());
        if cold.is_none_or(|cold| cold.is_known_absent(key.key_hash())) {
            return Ok(false);
        }
        let Some((k, v)) = self.read_run(key)? else { return Ok(false) };
        let to = self.core.log.make_room(hash)?;
        let (heap, touched) = (heap_of(&k, &v), self.touched_last(&v));
        self.insert(hash, (k, v, heap), to);
        self.core.log.cold.as_mut().expect("asked before").left(key.key_hash(), touched);
        Ok(true)
    }

    /// Finds a key that has no entry in the index, for reading.
    #[cold]
    #[inline(never)]
    pub(super) fn find_in_runs<Q: Lookup<K> + ?Sized>(
        &mut self,
        hash: IndexHash,
        key: &Q,
        again: bool,
    ) -> Result<ValueLocation> {
        let cold = self.core.log.cold.as_ref();
        if cold.is_none_or(|cold| cold.is_known_absent(key.key_hash())) {
            return Ok(ValueLocation::Absent);
        }
        if again && self.core.log.slot_at_hand().is_some() {
            match self.own_slowly(hash, key, &mut None) {
                Ok(Some((number, slot))) => return Ok(ValueLocation::Slot(number, slot)),
                Ok(None) => return Ok(ValueLocation::Absent),
                // The index has no room for it, or has some only once more is merged: it is lent.
                Err(error) if error.kind() == ErrorKind::OverBudget => {}
                Err(_) if self.core.log.has_merged_its_part() => {}
                Err(error) => return Err(error),
            }
        }
        let Some((key, value)) = self.read_run(key)? else { return Ok(ValueLocation::Absent) };
        let heap = heap_of(&key, &value);
        self.core.log.account.charge(MemoryKind::Values, heap);
        self.scratch = Some(Scratch { key, value, heap });
        Ok(ValueLocation::Scratch)
    }

    /// A put of a key that has no entry in the index.
    pub(super) fn put_new(&mut self, hash: IndexHash, key: &K, value: &V) -> Result<PutKind<K, V>> {
        if self.has_cold() && self.rise(hash, key)? {
            return self.put_into_room(hash, key, value);
        }
        Ok(PutKind::New(self.core.log.make_room(hash)?))
    }

    /// Pays for a tombstone, and makes room for it: tombstones move down, and records with them, the key's own perhaps.
    #[cold]
    #[inline(never)]
    pub(super) fn prepare_to_bury(&mut self, hash: u64) -> Result<()> {
        let (log, mut has_failed) = (&mut self.core.log, false);
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

    /// Buries a key whose entry is about to go, if runs may have a copy of it.
    pub(super) fn bury<Q: Lookup<K> + ?Sized>(&mut self, key: &Q) -> Result<()> {
        if self.has_runs()
            && self.core.log.cold.as_ref().is_some_and(|c| c.may_have(key.key_hash()))
        {
            self.bury_and_take(key, true, &mut |_, _| ())?;
        }
        Ok(())
    }

    /// Buries a key, and gives what its copy was.
    fn bury_and_take<Q: Lookup<K> + ?Sized>(
        &mut self,
        key: &Q,
        has_entry: bool,
        give: &mut dyn FnMut(K, V),
    ) -> Result<ColdPresence> {
        let hash = key.key_hash();
        let needs = self.core.log.cold.as_ref().map_or(0, |cold| cold.burial_bytes());
        let expired_to = self.core.log.cold.as_ref().map_or(Time::MIN, |cold| cold.expired_to());
        let last_touch = self.last_touch;
        self.in_cold(needs, &mut |cold| {
            cold.bury(hash, has_entry, &mut |payload| {
                let (k, v) = codec::decode::<K, V>(payload)?;
                // What has expired need not be buried.
                let is_it = key.is(&k) && last_touch.is_none_or(|of| of(&v) >= expired_to);
                if is_it {
                    give(k, v);
                }
                Ok(is_it)
            })
        })
    }

    /// Takes a key that has no entry in the index.
    #[cold]
    #[inline(never)]
    pub(super) fn take_from_runs<Q: Lookup<K> + ?Sized>(&mut self, key: &Q) -> Result<Option<V>> {
        if !self.has_cold() {
            return Ok(None);
        }
        self.core.log.make_headroom()?;
        let mut taken = None;
        let known = self.bury_and_take(key, false, &mut |_, value| taken = Some(value))?;
        if known != ColdPresence::There {
            return Ok(None);
        }
        let touched = taken.as_ref().map_or(Time::MAX, |value| self.touched_last(value));
        self.core.log.cold.as_mut().expect("asked before").left(key.key_hash(), touched);
        Ok(taken)
    }
}
