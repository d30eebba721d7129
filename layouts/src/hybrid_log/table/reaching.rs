//! Reaching a record: where it is to be read, or where it can be changed.
//!
//! A record that is looked for to be changed is brought to a mutable frame, wherever it is. One that is only read is lent
//! from where it is, or as it was read from storage; if it is read again soon it moves to memory, if there is room.
//!
//! What it keeps true: making room moves records, so that each is looked for again after that; and a record that moves
//! has its index entry set, and is noted as dead where it was on storage, only when nothing can fail any more.

use alluvium_pagestore::{Error, ErrorKind, Key, Lookup, MemoryKind, Result, State};

use super::core::LogCore;
use super::sought::Sought;
use super::{HybridLogTable, Scratch};
use crate::hybrid_log::address::StoredAt;
use crate::hybrid_log::frames_unsafe::FrameStage;
use crate::hybrid_log::index::{IndexHash, Position};
use crate::hybrid_log::log::RecordLocation;
use crate::hybrid_log::stored::RecordRead;

/// Where a value is that was found.
pub(super) enum ValueLocation {
    Absent,
    Slot(u32, u32),
    Scratch,
}

/// For keys that are not where a call looks first. Compiled once.
impl LogCore {
    /// Takes a record from storage, if it is there: its index entry, place and heap. `ahead` is a read of
    /// one candidate that was started before.
    pub(super) fn read_cold(
        &mut self,
        sought: &mut Sought<'_>,
        ahead: Option<RecordRead>,
    ) -> Result<Option<(Position, StoredAt, u64)>> {
        let Sought { hash, whole_hash, name, record } = sought;
        let mut heap = 0;
        let mut is_it = |payload: &[u8]| {
            let decoded = record.decode(payload, true)?;
            heap = decoded.map_or(0, |decoded| decoded.heap);
            Ok(decoded.map(|decoded| decoded.heap))
        };
        let read = self.read_stored((*hash, *whole_hash), ahead, *name, &mut is_it)?;
        Ok(read.map(|(at, place)| (at, place, heap)))
    }

    /// [`read_cold`](LogCore::read_cold) for who has found no place for the record yet.
    pub(super) fn read_cold_in_room(
        &mut self,
        sought: &mut Sought<'_>,
        ahead: Option<RecordRead>,
    ) -> Result<Option<(Position, StoredAt, u64)>> {
        match self.read_cold(sought, ahead) {
            Err(error) if !self.make_lacking().map_err(|e| in_call(e, &error))? => Err(error),
            Err(_) => self.read_cold(sought, None),
            read => read,
        }
    }

    /// Brings a key that is `located` to where it can be changed: a slot of a mutable frame. `None` if it
    /// is absent.
    pub(super) fn own_elsewhere(
        &mut self,
        sought: &mut Sought<'_>,
        located: RecordLocation,
        ahead: &mut Option<RecordRead>,
    ) -> Result<Option<(u32, u32)>> {
        let owned = match self.try_to_own(sought, located, ahead) {
            Err(error) if !self.make_lacking().map_err(|e| in_call(e, &error))? => {
                return Err(error);
            }
            Err(_) => self.try_to_own(sought, sought.locate(self), ahead)?,
            Ok(owned) => owned,
        };
        match owned {
            None if self.has_cold() && self.rise(sought)? => {
                self.try_to_own(sought, sought.locate(self), &mut None)
            }
            owned => Ok(owned),
        }
    }

    fn try_to_own(
        &mut self,
        sought: &mut Sought<'_>,
        located: RecordLocation,
        ahead: &mut Option<RecordRead>,
    ) -> Result<Option<(u32, u32)>> {
        if let Some(owned) = self.owned_in_place(located) {
            return Ok(owned);
        }
        let (to, located) = match self.log.slot_at_hand() {
            Some(slot) => (slot, located),
            // Making room moves records.
            None => (self.log.make_room_to_move()?, sought.locate(self)),
        };
        if let Some(owned) = self.owned_in_place(located) {
            return Ok(owned);
        }
        let at = match located {
            RecordLocation::Absent => unreachable!("looked at above"),
            RecordLocation::Resident { at, number, slot } => {
                let is_kept = self.log.is_kept(number, slot);
                match self.log.stage(number) {
                    _ if is_kept => {}
                    FrameStage::Mutable => unreachable!("it is kept, or changed where it is"),
                    FrameStage::Frozen => unreachable!("a frozen frame is kept"),
                    FrameStage::Cooling | FrameStage::Failed | FrameStage::Clean => {}
                    FrameStage::Vacant => unreachable!("an index entry into a vacant frame"),
                }
                sought.record.take(self, (number, slot));
                self.log.stats.moves += u64::from(!is_kept);
                at
            }
            RecordLocation::Cold => {
                let Some((at, place, _)) = self.read_cold(sought, ahead.take())? else {
                    return Ok(None);
                };
                self.log.stored.as_mut().expect("a store").record_died(place);
                at
            }
        };
        sought.record.put(self, to);
        self.lead_to(at, to);
        Ok(Some(to))
    }

    /// Whether a key is absent, or where it can be changed: then it is about to be.
    #[inline]
    pub(super) fn owned_in_place(&mut self, located: RecordLocation) -> Option<Option<(u32, u32)>> {
        match located {
            RecordLocation::Absent => Some(None),
            RecordLocation::Resident { number, slot, .. } if self.log.is_in_place(number, slot) => {
                self.change_in_place(number, slot);
                Some(Some((number, slot)))
            }
            RecordLocation::Resident { .. } | RecordLocation::Cold => None,
        }
    }

    /// Finds a key that is not in memory. What is to be lent is taken, and its heap charged.
    fn find_elsewhere(
        &mut self,
        sought: &mut Sought<'_>,
        ahead: &mut Option<RecordRead>,
    ) -> Result<ValueLocation> {
        let hash = sought.hash;
        let filter = &mut self.touched[hash.0 as usize >> 22];
        let again = *filter == hash.0 | 1;
        *filter = hash.0 | 1;
        let located = sought.locate(self);
        if matches!(located, RecordLocation::Absent) {
            return self.find_in_runs(sought, again);
        }
        if again && self.log.slot_at_hand().is_some() {
            let owned = self.own_elsewhere(sought, located, ahead)?;
            return Ok(owned.map_or(ValueLocation::Absent, |(number, slot)| {
                ValueLocation::Slot(number, slot)
            }));
        }
        self.log.make_headroom()?;
        let Some((_, place, heap)) = self.read_cold_in_room(sought, ahead.take())? else {
            return if self.has_cold() {
                self.find_in_runs(sought, false)
            } else {
                Ok(ValueLocation::Absent)
            };
        };
        self.log.account.charge(MemoryKind::Values, heap);
        // Only now: who waits for a read in vain has not waited for room before.
        if again { self.keep_lent((sought, heap), place) } else { Ok(ValueLocation::Scratch) }
    }

    /// Moves the record that was read from a place to memory, if there is room.
    fn keep_lent(
        &mut self,
        (sought, heap): (&mut Sought<'_>, u64),
        place: StoredAt,
    ) -> Result<ValueLocation> {
        let (number, slot) = match self.log.make_room_to_move() {
            Ok(to) => to,
            // A page that cannot be written keeps records from moving to memory, not from being read.
            Err(error) if is_lack_of_room(&error) => return Ok(ValueLocation::Scratch),
            Err(error) => {
                self.log.account.release(MemoryKind::Values, heap);
                return Err(error);
            }
        };
        // Making room moves records, but none that is on storage alone.
        let mut candidates = (0..).map_while(|nth| self.log.candidate(sought.hash, nth));
        let at = candidates.find(|(_, at)| *at == place).map(|(position, _)| position);
        self.log.account.release(MemoryKind::Values, heap);
        sought.record.put(self, (number, slot));
        self.lead_to(at.expect("the record's entry"), (number, slot));
        self.log.stored.as_mut().expect("a store").record_died(place);
        Ok(ValueLocation::Slot(number, slot))
    }
}

impl<K: Key, V: State> HybridLogTable<K, V> {
    /// Brings `key` to where it can be changed: a slot of a mutable frame. `None` if it is absent.
    #[inline]
    pub(super) fn own<Q: Lookup<K> + ?Sized>(
        &mut self,
        hash: IndexHash,
        key: &Q,
        ahead: &mut Option<RecordRead>,
    ) -> Result<Option<(u32, u32)>> {
        match self.core.find_short(hash, key) {
            Some(slot) => Ok(Some(slot)),
            None => self.own_slowly(hash, key, ahead),
        }
    }

    #[inline(never)]
    pub(super) fn own_slowly<Q: Lookup<K> + ?Sized>(
        &mut self,
        hash: IndexHash,
        key: &Q,
        ahead: &mut Option<RecordRead>,
    ) -> Result<Option<(u32, u32)>> {
        let located = self.core.locate(hash, key);
        match self.core.owned_in_place(located) {
            Some(owned) if owned.is_some() || !self.has_cold() => Ok(owned),
            _ => self.seek(hash, key, |core, sought| core.own_elsewhere(sought, located, ahead)).0,
        }
    }

    /// Finds `key` for reading: moves it to memory if it was read from storage before, not long
    /// ago, else lends the value that was read.
    pub(super) fn find<Q: Lookup<K> + ?Sized>(
        &mut self,
        hash: IndexHash,
        key: &Q,
        ahead: &mut Option<RecordRead>,
    ) -> Result<ValueLocation> {
        match self.core.locate(hash, key) {
            RecordLocation::Absent if !self.has_cold() => Ok(ValueLocation::Absent),
            RecordLocation::Resident { number, slot, .. } => Ok(ValueLocation::Slot(number, slot)),
            RecordLocation::Absent | RecordLocation::Cold => self.find_cold(hash, key, ahead),
        }
    }

    /// [`find`](HybridLogTable::find) of a key that is not in memory.
    #[cold]
    #[inline(never)]
    fn find_cold<Q: Lookup<K> + ?Sized>(
        &mut self,
        hash: IndexHash,
        key: &Q,
        ahead: &mut Option<RecordRead>,
    ) -> Result<ValueLocation> {
        if self.scratch.as_ref().is_some_and(|scratch| key.is(&scratch.key)) {
            if let Some(read) = ahead.take() {
                self.core.log.stored.as_mut().expect("a read has a store").recycle(read);
            }
            return Ok(ValueLocation::Scratch);
        }
        self.drop_scratch();
        let seek = |core: &mut LogCore, sought: &mut Sought<'_>| core.find_elsewhere(sought, ahead);
        let (found, taken) = self.seek(hash, key, seek);
        if matches!(found, Ok(ValueLocation::Scratch)) {
            self.scratch = taken.map(|(key, value, heap)| Scratch { key, value, heap });
        }
        found
    }

    #[inline]
    pub(super) fn found(&self, found: ValueLocation) -> Option<&V> {
        match found {
            ValueLocation::Absent => None,
            ValueLocation::Slot(number, slot) => {
                self.core.entry(number, slot).map(|(_, value)| value)
            }
            ValueLocation::Scratch => self.scratch.as_ref().map(|scratch| &scratch.value),
        }
    }
}

/// The error of making room for a record, with what the call says of it.
fn in_call(error: Error, call: &Error) -> Error {
    ["state", "key"].into_iter().fold(error, |error, name| match call.context(name) {
        Some(value) => error.with(name, value),
        None => error,
    })
}

fn is_lack_of_room(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::DiskFull
            | ErrorKind::Backpressure
            | ErrorKind::OverBudget
            | ErrorKind::Descriptors
            | ErrorKind::Io
            | ErrorKind::Poisoned
    )
}
