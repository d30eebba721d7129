//! Reaching a record: where it is to be read, or where it can be changed.
//!
//! A record that is looked for to be changed is brought to a mutable frame, wherever it is. One that is only read is lent
//! from where it is, or as it was read from storage; if it is read again soon it moves to memory, if there is room.
//!
//! What it keeps true: making room moves records, so that each is looked for again after that; and a record that moves
//! has its index entry set, and is noted as dead where it was on storage, only when nothing can fail any more.

use alluvium_pagestore::{
    Error, ErrorKind, Key, Lookup, MemoryKind, Result, State, codec, key_text,
};

use super::{HybridLogTable, Scratch};
use crate::hybrid_log::address::StoredAt;
use crate::hybrid_log::frames_unsafe::FrameStage;
use crate::hybrid_log::index::{IndexHash, Position};
use crate::hybrid_log::log::RecordLocation;
use crate::hybrid_log::stored::RecordRead;
use crate::support::record_type_unsafe::heap_of;

/// Where a value is that was found.
pub(super) enum ValueLocation {
    Absent,
    Slot(u32, u32),
    Scratch,
}

impl<K: Key, V: State> HybridLogTable<K, V> {
    /// Reads `key` from storage, if it is there: its index entry, place, key and value. `ahead`
    /// is a read of one candidate that was started before.
    pub(super) fn read_cold<Q: Lookup<K> + ?Sized>(
        &mut self,
        hash: IndexHash,
        key: &Q,
        ahead: Option<RecordRead>,
    ) -> Result<Option<(Position, StoredAt, K, V)>> {
        let (whole_hash, mut found) = (key.key_hash(), None);
        let mut is_it = |payload: &[u8]| {
            let (k, v) = codec::decode::<K, V>(payload)?;
            if !key.is(&k) {
                return Ok(None);
            }
            let heap = heap_of(&k, &v);
            found = Some((k, v));
            Ok(Some(heap))
        };
        let named = || key_text(&key.to_owned());
        let read = self.core.read_stored((hash, whole_hash), ahead, &named, &mut is_it)?;
        Ok(read.zip(found).map(|((at, place), (k, v))| (at, place, k, v)))
    }

    /// [`read_cold`](HybridLogTable::read_cold) for who has found no place for the record yet.
    pub(super) fn read_cold_in_room<Q: Lookup<K> + ?Sized>(
        &mut self,
        hash: IndexHash,
        key: &Q,
        ahead: Option<RecordRead>,
    ) -> Result<Option<(Position, StoredAt, K, V)>> {
        match self.read_cold(hash, key, ahead) {
            Err(error) if !self.core.make_lacking().map_err(|e| in_call(e, &error))? => Err(error),
            Err(_) => self.read_cold(hash, key, None),
            read => read,
        }
    }

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
        let owned = match self.try_to_own(hash, key, ahead) {
            Err(error) if !self.core.make_lacking().map_err(|e| in_call(e, &error))? => {
                return Err(error);
            }
            Err(_) => self.try_to_own(hash, key, ahead)?,
            Ok(owned) => owned,
        };
        match owned {
            None if self.has_cold() && self.rise(hash, key)? => {
                self.try_to_own(hash, key, &mut None)
            }
            owned => Ok(owned),
        }
    }

    fn try_to_own<Q: Lookup<K> + ?Sized>(
        &mut self,
        hash: IndexHash,
        key: &Q,
        ahead: &mut Option<RecordRead>,
    ) -> Result<Option<(u32, u32)>> {
        let found = self.core.locate(hash, key);
        match found {
            RecordLocation::Absent => return Ok(None),
            RecordLocation::Resident { number, slot, .. }
                if self.core.log.is_in_place(number, slot) =>
            {
                self.core.change_in_place(number, slot);
                return Ok(Some((number, slot)));
            }
            RecordLocation::Resident { .. } | RecordLocation::Cold => {}
        }
        let (to, found) = match self.core.log.slot_at_hand() {
            Some(slot) => (slot, found),
            // Making room moves records.
            None => (self.core.log.make_room_to_move()?, self.core.locate_again(hash, key)),
        };
        let (at, entry) = match found {
            RecordLocation::Absent => return Ok(None),
            RecordLocation::Resident { at, number, slot } => match self.core.log.stage(number) {
                _ if self.core.log.is_in_place(number, slot) => {
                    self.core.change_in_place(number, slot);
                    return Ok(Some((number, slot)));
                }
                _ if self.core.log.is_kept(number, slot) => (at, self.core.copy(number, slot)),
                FrameStage::Mutable => unreachable!("it is kept, or changed where it is"),
                FrameStage::Frozen => unreachable!("a frozen frame is kept"),
                FrameStage::Cooling | FrameStage::Failed | FrameStage::Clean => {
                    let entry = self.core.take(number, slot);
                    self.core.log.stats.moves += 1;
                    (at, entry)
                }
                FrameStage::Vacant => unreachable!("an index entry into a vacant frame"),
            },
            RecordLocation::Cold => {
                let Some((at, place, k, v)) = self.read_cold(hash, key, ahead.take())? else {
                    return Ok(None);
                };
                let heap = heap_of(&k, &v);
                self.core.log.stored.as_mut().expect("a store").record_died(place);
                (at, (k, v, heap))
            }
        };
        self.core.put(to, entry);
        self.core.lead_to(at, to);
        Ok(Some(to))
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
        let filter = &mut self.core.touched[hash.0 as usize >> 22];
        let again = *filter == hash.0 | 1;
        *filter = hash.0 | 1;
        if matches!(self.core.locate_again(hash, key), RecordLocation::Absent) {
            return self.find_in_runs(hash, key, again);
        }
        if again && self.core.log.slot_at_hand().is_some() {
            let owned = self.own_slowly(hash, key, ahead)?;
            return Ok(owned.map_or(ValueLocation::Absent, |(number, slot)| {
                ValueLocation::Slot(number, slot)
            }));
        }
        self.core.log.make_headroom()?;
        let Some((_, place, key, value)) = self.read_cold_in_room(hash, key, ahead.take())? else {
            return if self.has_cold() {
                self.find_in_runs(hash, key, false)
            } else {
                Ok(ValueLocation::Absent)
            };
        };
        let heap = heap_of(&key, &value);
        self.core.log.account.charge(MemoryKind::Values, heap);
        self.scratch = Some(Scratch { key, value, heap });
        // Only now: who waits for a read in vain has not waited for room before.
        if again { self.keep_scratch(hash, place) } else { Ok(ValueLocation::Scratch) }
    }

    /// Moves the record that was read from a place to memory, if there is room.
    fn keep_scratch(&mut self, hash: IndexHash, place: StoredAt) -> Result<ValueLocation> {
        let (number, slot) = match self.core.log.make_room_to_move() {
            Ok(to) => to,
            // A page that cannot be written keeps records from moving to memory, not from being read.
            Err(error) if is_lack_of_room(&error) => return Ok(ValueLocation::Scratch),
            Err(error) => return Err(error),
        };
        // Making room moves records, but none that is on storage alone.
        let mut candidates = (0..).map_while(|nth| self.core.log.candidate(hash, nth));
        let at = candidates.find(|(_, at)| *at == place).map(|(position, _)| position);
        let Scratch { key, value, heap } = self.scratch.take().expect("it was just read");
        self.core.log.account.release(MemoryKind::Values, heap);
        self.core.put((number, slot), (key, value, heap));
        self.core.lead_to(at.expect("the record's entry"), (number, slot));
        self.core.log.stored.as_mut().expect("a store").record_died(place);
        Ok(ValueLocation::Slot(number, slot))
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
