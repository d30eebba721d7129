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
use crate::hybrid_log::frames_unsafe::Stage;
use crate::hybrid_log::index::{IndexHash, Position};
use crate::hybrid_log::log::{Located, heap_of};
use crate::hybrid_log::stored::Read;

/// What a record that is larger than `max_value` is read into.
pub(in crate::hybrid_log) const TOO_LARGE: &str =
    "a value that is larger than max_value, and its archive,";

/// Where a value is that was found.
pub(super) enum Found {
    Absent,
    Slot(u32, u32),
    Scratch,
}

impl<K: Key, V: State> HybridLogTable<K, V> {
    /// What decoding a record of so many bytes takes that no room is kept for: nothing, unless it is longer than those of
    /// values that are not too large.
    pub(in crate::hybrid_log) fn beyond_usual(&self, record_bytes: u64) -> u64 {
        let most = self.log.oversize.max_bytes();
        // An archive may be a little longer than the heap.
        let usual = most + most / 4 + 2 * size_of::<(K, V)>() as u64 + 1024;
        let is_long = !(K::NONE && V::NONE) && record_bytes > usual;
        if is_long { 2 * record_bytes } else { 0 }
    }

    /// Reads `key` from storage, if it is there: its index entry, place, key and value. `ahead`
    /// is a read of one candidate that was started before.
    pub(super) fn read_cold<Q: Lookup<K> + ?Sized>(
        &mut self,
        hash: IndexHash,
        key: &Q,
        mut ahead: Option<Read>,
    ) -> Result<Option<(Position, StoredAt, K, V)>> {
        let whole_hash = key.key_hash();
        let mut found = Ok(None);
        let mut nth = 0;
        while let Some((at, place)) = self.log.candidate(hash, nth) {
            nth += 1;
            let stored = self.log.stored.as_mut().expect("a stored record has a store");
            let read = match ahead.take() {
                Some(read) if read.at == place => Ok(read),
                other => {
                    ahead = other;
                    match stored.take_fetched(place) {
                        Some(read) => Ok(read),
                        None => stored.read(place),
                    }
                }
            };
            self.log.stats.cold_reads += 1;
            // A header that is damaged may say anything.
            let longest = stored.info(place.segment).max_record_bytes;
            let bytes = read.as_ref().map_or(0, |read| read.record_bytes().min(longest));
            let longer = self.beyond_usual(bytes);
            if self.log.account.available() < longer {
                // Nothing else is kept free for a record that is longer than values are to be.
                self.lacking = longer;
                let stored = self.log.stored.as_mut().expect("a stored record has a store");
                read.into_iter().for_each(|read| stored.recycle(read));
                let error = self.log.account.over_budget(longer, TOO_LARGE);
                found = Err(error.with("key", key_text(&key.to_owned())));
                break;
            }
            let stored = self.log.stored.as_mut().expect("a stored record has a store");
            let decoded = read.and_then(|mut read| {
                let decoded = stored.verify(&mut read).and_then(|record| {
                    if record.hash != whole_hash {
                        return Ok(None);
                    }
                    self.log.stats.codec_calls += 1;
                    let (k, v) = codec::decode::<K, V>(record.payload)?;
                    Ok(key.is(&k).then_some((k, v)))
                });
                stored.recycle(read);
                decoded
            });
            match decoded {
                Ok(Some((k, v))) => {
                    self.log.oversize.found(heap_of(&k, &v));
                    found = Ok(Some((at, place, k, v)));
                    break;
                }
                Ok(None) => self.log.stats.false_cold_reads += 1,
                Err(error) => {
                    found = Err(error.with("state", &self.context.name));
                    break;
                }
            }
        }
        if let Some(read) = ahead {
            self.log.stored.as_mut().expect("a read has a store").recycle(read);
        }
        found
    }

    /// Makes room for a record that could not be read for want of it, and says whether it was that;
    /// the read can be tried again. Records have moved.
    ///
    /// # Errors
    /// Those of making room.
    pub(super) fn make_lacking(&mut self) -> Result<bool> {
        match std::mem::take(&mut self.lacking) {
            0 => Ok(false),
            bytes => self.log.make_free((bytes, TOO_LARGE)).map(|()| true),
        }
    }

    /// [`read_cold`](HybridLogTable::read_cold) for who has found no place for the record yet.
    pub(super) fn read_cold_in_room<Q: Lookup<K> + ?Sized>(
        &mut self,
        hash: IndexHash,
        key: &Q,
        ahead: Option<Read>,
    ) -> Result<Option<(Position, StoredAt, K, V)>> {
        match self.read_cold(hash, key, ahead) {
            Err(error) if !self.make_lacking().map_err(|e| in_call(e, &error))? => Err(error),
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
        ahead: &mut Option<Read>,
    ) -> Result<Option<(u32, u32)>> {
        match self.log.find_short(hash, key) {
            Some(slot) => Ok(Some(slot)),
            None => self.own_slowly(hash, key, ahead),
        }
    }

    #[inline(never)]
    pub(super) fn own_slowly<Q: Lookup<K> + ?Sized>(
        &mut self,
        hash: IndexHash,
        key: &Q,
        ahead: &mut Option<Read>,
    ) -> Result<Option<(u32, u32)>> {
        match self.try_to_own(hash, key, ahead) {
            Err(error) if !self.make_lacking().map_err(|e| in_call(e, &error))? => Err(error),
            Err(_) => self.try_to_own(hash, key, ahead),
            owned => owned,
        }
    }

    fn try_to_own<Q: Lookup<K> + ?Sized>(
        &mut self,
        hash: IndexHash,
        key: &Q,
        ahead: &mut Option<Read>,
    ) -> Result<Option<(u32, u32)>> {
        let found = self.log.locate(hash, key);
        match found {
            Located::Absent => return Ok(None),
            Located::Resident { number, slot, .. } if self.log.is_in_place(number, slot) => {
                self.change_in_place(number, slot);
                return Ok(Some((number, slot)));
            }
            Located::Resident { .. } | Located::Cold => {}
        }
        let (to, found) = match self.log.slot_at_hand() {
            Some(slot) => (slot, found),
            // Making room moves records.
            None => (self.log.make_room_to_move()?, self.log.locate(hash, key)),
        };
        let (at, k, v) = match found {
            Located::Absent => return Ok(None),
            Located::Resident { at, number, slot } => match self.log.stage(number) {
                _ if self.log.is_in_place(number, slot) => {
                    self.change_in_place(number, slot);
                    return Ok(Some((number, slot)));
                }
                _ if self.log.is_kept(number, slot) => {
                    let (k, v) = self.log.copy(number, slot);
                    (at, k, v)
                }
                Stage::Mutable => unreachable!("it is kept, or changed where it is"),
                Stage::Frozen => unreachable!("a frozen frame is kept"),
                Stage::Cooling | Stage::Failed | Stage::Clean => {
                    let (k, v) = self.log.take(number, slot);
                    self.log.stats.moves += 1;
                    (at, k, v)
                }
                Stage::Vacant => unreachable!("an index entry into a vacant frame"),
            },
            Located::Cold => {
                let Some((at, place, k, v)) = self.read_cold(hash, key, ahead.take())? else {
                    return Ok(None);
                };
                self.log.stored.as_mut().expect("a store").record_died(place);
                (at, k, v)
            }
        };
        self.log.put(to, k, v);
        self.log.index.set(at, self.log.address_of(to.0, to.1));
        Ok(Some(to))
    }

    /// Finds `key` for reading: moves it to memory if it was read from storage before, not long
    /// ago, else lends the value that was read.
    pub(super) fn find<Q: Lookup<K> + ?Sized>(
        &mut self,
        hash: IndexHash,
        key: &Q,
        ahead: &mut Option<Read>,
    ) -> Result<Found> {
        match self.log.locate(hash, key) {
            Located::Absent => return Ok(Found::Absent),
            Located::Resident { number, slot, .. } => return Ok(Found::Slot(number, slot)),
            Located::Cold => {}
        }
        if self.scratch.as_ref().is_some_and(|scratch| key.is(&scratch.key)) {
            if let Some(read) = ahead.take() {
                self.log.stored.as_mut().expect("a read has a store").recycle(read);
            }
            return Ok(Found::Scratch);
        }
        self.drop_scratch();
        let filter = &mut self.touched[hash.0 as usize >> 22];
        let again = *filter == hash.0 | 1;
        *filter = hash.0 | 1;
        if again && self.log.slot_at_hand().is_some() {
            let owned = self.own_slowly(hash, key, ahead)?;
            return Ok(owned.map_or(Found::Absent, |(number, slot)| Found::Slot(number, slot)));
        }
        self.log.make_headroom()?;
        let Some((_, place, key, value)) = self.read_cold_in_room(hash, key, ahead.take())? else {
            return Ok(Found::Absent);
        };
        let heap = heap_of(&key, &value);
        self.log.account.charge(MemoryKind::Values, heap);
        self.scratch = Some(Scratch { key, value, heap });
        // Only now: who waits for a read in vain has not waited for room before.
        if again { self.keep_scratch(hash, place) } else { Ok(Found::Scratch) }
    }

    /// Moves the record that was read from a place to memory, if there is room.
    fn keep_scratch(&mut self, hash: IndexHash, place: StoredAt) -> Result<Found> {
        let (number, slot) = match self.log.make_room_to_move() {
            Ok(to) => to,
            // A page that cannot be written keeps records from moving to memory, not from being read.
            Err(error) if is_lack_of_room(&error) => return Ok(Found::Scratch),
            Err(error) => return Err(error),
        };
        // Making room moves records, but none that is on storage alone.
        let mut candidates = (0..).map_while(|nth| self.log.candidate(hash, nth));
        let at = candidates.find(|(_, at)| *at == place).map(|(position, _)| position);
        let Scratch { key, value, heap } = self.scratch.take().expect("it was just read");
        self.log.account.release(MemoryKind::Values, heap);
        self.log.put((number, slot), key, value);
        self.log.index.set(at.expect("the record's entry"), self.log.address_of(number, slot));
        self.log.stored.as_mut().expect("a store").record_died(place);
        Ok(Found::Slot(number, slot))
    }

    #[inline]
    pub(super) fn found(&self, found: Found) -> Option<&V> {
        match found {
            Found::Absent => None,
            Found::Slot(number, slot) => self.log.frame(number).get(slot).map(|(_, value)| value),
            Found::Scratch => self.scratch.as_ref().map(|scratch| &scratch.value),
        }
    }

    /// A record is about to be changed where it is; the next change finds it by a short cut.
    pub(super) fn change_in_place(&mut self, number: u32, slot: u32) {
        self.log.frames.shorten(number);
        self.log.freshen(number, slot);
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
