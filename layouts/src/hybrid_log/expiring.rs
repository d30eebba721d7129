//! Entries of a hybrid log that expire.
//!
//! In memory a pass goes through the frames, slot by slot, in the order they lie in memory: a look is
//! a few nanoseconds and no look-up. On storage nothing is read to find out: each segment has the
//! latest of its records' times, and one whose records have all expired is rewritten first, which
//! means that its index entries go and nothing is copied. Other rewrites leave out what has expired.
//!
//! A record that moves from storage to memory behind the pass is found by the next.

use std::panic::{AssertUnwindSafe, catch_unwind};

use alluvium_pagestore::{
    Error, ErrorKind, FooterEntry, Key, MemoryKind, Result, SegmentInfo, State, Time, codec,
};

use super::table::{HybridLogTable, stored_address};
use crate::expiry::{ExpiryPass, Touched};

/// How the entries of a log expire.
#[derive(Debug)]
pub struct Expiry<V> {
    of: Touched<V>,
    /// There is memory for a value that is decoded to be asked.
    is_asked: bool,
    /// What was touched last before this has expired.
    pub to: Time,
}

impl<V> Clone for Expiry<V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<V> Copy for Expiry<V> {}

impl<V: State> Expiry<V> {
    /// Tells when a value was touched last.
    pub fn of(&self) -> Touched<V> {
        self.of
    }

    /// Bytes that are booked for a value that is asked.
    pub fn booked_bytes<K: Key>(&self, max_value_bytes: u64) -> u64 {
        if self.is_asked && !(K::NONE && V::NONE) { max_value_bytes } else { 0 }
    }

    /// When the value of a record of a segment was touched last, or not after, if there is no memory
    /// to find out. Runs on helper threads, where a value that panics is an error.
    pub fn touched<K: Key>(&self, segment: &SegmentInfo, record: &[u8]) -> Result<Time> {
        if !self.is_asked {
            return Ok(segment.latest);
        }
        let decode = AssertUnwindSafe(|| codec::decode::<K, V>(record).map(|(_, v)| (self.of)(&v)));
        catch_unwind(decode).unwrap_or_else(|_| {
            let message = "a key or value panicked while its record was rewritten";
            Err(Error::new(ErrorKind::Poisoned, message))
        })
    }
}

impl<K: Key, V: State> HybridLogTable<K, V> {
    pub(super) fn begin_expiring(&mut self, touched: Touched<V>, now: Time) {
        // One value at a time is decoded while a segment is rewritten.
        let is_plain = K::NONE && V::NONE;
        let (account, bytes) = (&self.log.account, self.context.max_value_bytes);
        let is_asked = is_plain || account.try_reserve(MemoryKind::Buffers, bytes);
        self.expiry = Some(Expiry { of: touched, is_asked, to: Time::MIN });
        if let (Some(flusher), Some(stored)) = (&mut self.log.flusher, &mut self.log.stored) {
            flusher.stamp_with(touched);
            stored.touched_by(now);
        }
    }

    /// What was touched last before this has expired.
    pub(super) fn expired_to(&self) -> Time {
        self.expiry.map_or(Time::MIN, |expiry| expiry.to)
    }

    /// What was touched last before `to` has expired from now on.
    pub(super) fn expire_to(&mut self, to: Time) {
        if let Some(expiry) = &mut self.expiry {
            expiry.to = expiry.to.max(to);
        }
    }

    /// Goes on with a pass for `fuel` slots of frames.
    pub(super) fn expire_in_memory(&mut self, pass: &mut ExpiryPass<V>, fuel: usize) {
        self.forget_scratch();
        if pass.cursor.position == 0 {
            pass.cursor.version = self.log.stats.cold_reads;
        }
        let slots = u64::from(self.log.sizes.slots);
        let end = self.log.frames.count() as u64 * slots;
        for _ in 0..fuel {
            if pass.cursor.position >= end {
                break;
            }
            let at = pass.cursor.position;
            let (number, slot) = ((at / slots) as u32, (at % slots) as u32);
            let Some(frame) = &self.log.frames.state(number).frame else {
                pass.cursor.position = (u64::from(number) + 1) * slots;
                continue;
            };
            pass.cursor.position += 1;
            if let Some((_, value)) = frame.get(slot).filter(|_| frame.death(slot).is_none()) {
                if pass.has_expired(value) && self.remove_resident(number, slot) {
                    pass.removed += 1;
                }
            }
        }
        pass.cursor.done = pass.cursor.position >= end;
        // A record that was read may have moved to where the pass had been.
        pass.is_whole &= pass.cursor.version == self.log.stats.cold_reads;
    }

    /// Removes the record in a slot, unless it is not in memory any more: its frame is being evicted.
    fn remove_resident(&mut self, number: u32, slot: u32) -> bool {
        let address = self.log.address_of(number, slot);
        let hash = self.log.hash_in(number, slot).expect("a used slot");
        let Some((at, _)) = self.log.index.find(hash, |found| found == address) else {
            return false;
        };
        let removed = match self.log.is_kept(number, slot) {
            true => {
                self.log.leave_for_dead(number, slot);
                None
            }
            false => Some(self.log.take(number, slot)),
        };
        self.log.index.remove(at);
        // One that panics while it is dropped panics for nobody: there is no call that it belongs to.
        let _panic = catch_unwind(AssertUnwindSafe(|| drop(removed)));
        true
    }

    /// Removes those of a segment's records that are still in the index.
    pub(super) fn remove_expired(&mut self, segment: u32, entries: &[FooterEntry]) {
        let mut removed = 0;
        for entry in entries {
            let (hash, address) =
                (self.log.index_hash(entry.hash), stored_address(segment, entry.grain));
            if let Some((at, _)) = self.log.index.find(hash, |found| found == address) {
                self.log.index.remove(at);
                removed += 1;
            }
        }
        if removed > 0 {
            // The segment goes as a whole, or soon: nobody needs to know which they were.
            self.log.stored.as_mut().expect("a log with segments").records_died(segment, removed);
            self.log.stats.expired += removed;
        }
    }
}
