//! Putting a value: over the old one where it is, instead of a record elsewhere, or as a new key.
//!
//! All that can fail comes first; only then is the old record gone.

use alluvium_pagestore::{Key, MemoryKind, Rejected, Result, State};

use super::HybridLogTable;
use super::core::LogCore;
use super::sought::Sought;
use crate::hybrid_log::index::{IndexHash, Position};
use crate::hybrid_log::log::RecordLocation;
use crate::support::record_type_unsafe::heap_of;

impl<K: Key, V: State> HybridLogTable<K, V> {
    /// Puts a key whose hash is known.
    #[inline]
    pub(super) fn put_hashed(
        &mut self,
        hash: IndexHash,
        key: K,
        value: V,
    ) -> std::result::Result<bool, Rejected<(K, V)>> {
        // Measuring runs user code, which may panic: before the old record is gone.
        let heap = heap_of(&key, &value);
        match self.put_checked(hash, (&key, &value, heap)) {
            Ok(PutKind::Over(number, slot)) => {
                let entry = self.core.changing(number, slot);
                let (before, after) = (entry.value.heap_bytes() as u64, value.heap_bytes() as u64);
                let old = std::mem::replace(entry.value, value);
                *entry.frame_heap = *entry.frame_heap + after - before;
                entry.account.adjust(MemoryKind::Values, before, after);
                drop(old);
                Ok(true)
            }
            Ok(PutKind::Instead(at, to, old)) => {
                self.core.put(to, (key, value, heap));
                self.core.lead_to(at, to);
                // Dropping runs user code, which may panic: only now.
                drop(old);
                Ok(true)
            }
            Ok(PutKind::New(to)) => {
                self.insert(hash, (key, value, heap), to);
                Ok(false)
            }
            Err(error) => Err(Rejected::new(error, (key, value))),
        }
    }

    /// Puts a new key with the heap that the entry owns.
    pub(super) fn insert(&mut self, hash: IndexHash, entry: (K, V, u64), to: (u32, u32)) {
        self.core.put(to, entry);
        let address = self.core.log.address_of(to.0, to.1);
        self.core.log.index.insert(hash, address);
    }

    /// Where a value may be too large, one that replaces it and is smaller needs no room: it may be
    /// what the memory is lacking.
    fn put_over_larger(&mut self, hash: IndexHash, key: &K, value: &V) -> Option<PutKind<K, V>> {
        if !self.core.log.oversize.is_seen() {
            return None;
        }
        let RecordLocation::Resident { number, slot, .. } = self.core.locate_again(hash, key)
        else {
            return None;
        };
        let (_, known) = self.core.entry(number, slot)?;
        if known.heap_bytes() < value.heap_bytes() || !self.core.log.is_in_place(number, slot) {
            return None;
        }
        self.core.log.freshen(number, slot);
        Some(PutKind::Over(number, slot))
    }

    /// Everything about a put that can fail: afterwards the old record, if it is not where the new
    /// one goes, is gone.
    fn put_checked(
        &mut self,
        hash: IndexHash,
        (key, value, heap): (&K, &V, u64),
    ) -> Result<PutKind<K, V>> {
        self.core.log.oversize.check(key, heap)?;
        match self.put_into_room(hash, key, value) {
            Err(error) if !self.core.make_lacking()? => Err(error),
            Err(_) => self.put_into_room(hash, key, value),
            put => put,
        }
    }

    fn put_into_room(&mut self, hash: IndexHash, key: &K, value: &V) -> Result<PutKind<K, V>> {
        if let Some(over) = self.put_over_larger(hash, key, value) {
            return Ok(over);
        }
        if !(K::NO_HEAP && V::NO_HEAP) {
            self.core.log.make_headroom()?;
        }
        let located = self.core.locate(hash, key);
        match located {
            RecordLocation::Absent if !self.has_cold() => {
                return Ok(PutKind::New(self.core.log.make_room(hash)?));
            }
            RecordLocation::Resident { number, slot, .. }
                if self.core.log.is_in_place(number, slot) =>
            {
                self.core.log.freshen(number, slot);
                return Ok(PutKind::Over(number, slot));
            }
            _ => {}
        }
        let put = |core: &mut LogCore, sought: &mut Sought<'_>| core.put_elsewhere(sought, located);
        let (put, taken) = self.seek::<K, _>(hash, key, put);
        Ok(match put? {
            Put::Over(number, slot) => PutKind::Over(number, slot),
            Put::Instead(at, to) => PutKind::Instead(at, to, taken.map(|(k, v, _)| (k, v))),
            Put::New(to) => PutKind::New(to),
            Put::Risen => return self.put_into_room(hash, key, value),
        })
    }
}

/// Compiled once.
impl LogCore {
    /// Makes place for a value whose key is `located`, and not where the value can be changed. Takes the old
    /// record, if it is elsewhere.
    fn put_elsewhere(&mut self, sought: &mut Sought<'_>, located: RecordLocation) -> Result<Put> {
        if let RecordLocation::Absent = located {
            return self.put_new(sought);
        }
        let to = self.log.make_room_to_move()?;
        match sought.locate(self) {
            RecordLocation::Absent => self.put_new(sought),
            RecordLocation::Resident { number, slot, .. } if self.log.is_in_place(number, slot) => {
                self.log.freshen(number, slot);
                Ok(Put::Over(number, slot))
            }
            RecordLocation::Resident { at, number, slot } if self.log.is_kept(number, slot) => {
                self.log.leave_for_dead(number, slot);
                Ok(Put::Instead(at, to))
            }
            RecordLocation::Resident { at, number, slot } => {
                sought.record.take(self, (number, slot));
                Ok(Put::Instead(at, to))
            }
            RecordLocation::Cold => match self.read_cold(sought, None)? {
                Some((at, place, _)) => {
                    self.log.stored.as_mut().expect("a store").record_died(place);
                    Ok(Put::Instead(at, to))
                }
                None => self.put_new(sought),
            },
        }
    }

    /// A put of a key that has no entry in the index.
    fn put_new(&mut self, sought: &mut Sought<'_>) -> Result<Put> {
        if self.has_cold() && self.rise(sought)? {
            return Ok(Put::Risen);
        }
        Ok(Put::New(self.log.make_room(sought.hash)?))
    }
}

/// How a value is put whose key is not where it can be changed.
enum Put {
    /// Over the old value in this slot.
    Over(u32, u32),
    /// Into this slot, instead of a record elsewhere.
    Instead(Position, (u32, u32)),
    /// Into this slot; the key is new.
    New((u32, u32)),
    /// As any value whose key is in memory: its record has risen.
    Risen,
}

/// How a value is put.
pub(super) enum PutKind<K, V> {
    /// Over the old value in this slot.
    Over(u32, u32),
    /// Into this slot, instead of a record elsewhere, which was taken out of there.
    Instead(Position, (u32, u32), Option<(K, V)>),
    /// Into this slot; the key is new.
    New((u32, u32)),
}
