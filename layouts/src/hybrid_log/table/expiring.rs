//! Entries of a hybrid log that expire.
//!
//! In memory a pass goes through the frames, slot by slot, in the order they lie in memory: a look is
//! a few nanoseconds and no look-up. On storage nothing is read to find out: each segment has the
//! latest of its records' times, and one whose records have all expired is rewritten first, which
//! means that its index entries go and nothing is copied. Other rewrites leave out what has expired.
//!
//! A record that moves from storage to memory behind the pass is found by the next.
//!
//! A log with a [cold tier](crate::hybrid_log::cold) lets entries expire as far as the tier can tell how many of its keys do.

use std::panic::{AssertUnwindSafe, catch_unwind};

use alluvium_pagestore::{Error, ErrorKind, FooterEntry, MemoryKind, Result, SegmentInfo, Time};

use crate::contract::table::Cursor;
use crate::hybrid_log::core::{LogCore, stored_address};
use crate::support::record_type_unsafe::{ErasedTouched, RecordRef, RecordType};

/// How the entries of a log expire.
#[derive(Clone, Copy, Debug)]
pub struct LogExpiry {
    of: ErasedTouched,
    /// There is memory for a value that is decoded to be asked.
    is_asked: bool,
    /// What was touched last before this has expired.
    pub to: Time,
}

impl LogExpiry {
    /// Tells when a value was touched last.
    pub fn of(&self) -> ErasedTouched {
        self.of
    }

    /// Bytes that are booked for a value that is asked.
    pub fn booked_bytes(&self, record_type: &RecordType, max_value_bytes: u64) -> u64 {
        if self.is_asked && !record_type.is_plain() { max_value_bytes } else { 0 }
    }

    /// When the value of a record of a segment was touched last, or not after, if there is no memory
    /// to find out. Runs on helper threads, where a value that panics is an error.
    pub fn touched(
        &self,
        record_type: &'static RecordType,
        segment: &SegmentInfo,
        payload: &[u8],
    ) -> Result<Time> {
        if !self.is_asked {
            return Ok(segment.latest);
        }
        let mut touched = segment.latest;
        let decode = AssertUnwindSafe(|| {
            record_type.decode(payload, &mut |record| {
                touched = self.of.of(record);
                Ok(())
            })
        });
        let decoded = catch_unwind(decode).unwrap_or_else(|_| {
            let message = "a key or value panicked while its record was rewritten";
            Err(Error::new(ErrorKind::Poisoned, message))
        });
        decoded.map(|()| touched)
    }
}

impl LogCore {
    /// Whether entries can expire: a cold tier counts its keys by their last touch.
    pub(in crate::hybrid_log) fn can_expire(&self) -> Result<()> {
        let can = self.log.cold.as_ref().map_or(Ok(()), |cold| cold.can_expire());
        can.map_err(|error| error.with("state", &self.context.name))
    }

    pub(in crate::hybrid_log) fn begin_expiring(&mut self, touched: ErasedTouched, now: Time) {
        self.log.cold.iter_mut().for_each(|cold| cold.begin_expiring(touched, now));
        // With a tier entries are counted longer: only who asked for it has that.
        self.log.gets_no_cold();
        // One value at a time is decoded while a segment is rewritten.
        let is_plain = self.log.record_type.is_plain();
        let (account, bytes) = (&self.log.account, self.context.max_value_bytes);
        let is_asked = is_plain || account.try_reserve(MemoryKind::Buffers, bytes);
        self.expiry = Some(LogExpiry { of: touched, is_asked, to: Time::MIN });
        if let (Some(flusher), Some(stored)) = (&mut self.log.flusher, &mut self.log.stored) {
            flusher.stamp_with(touched);
            stored.touched_by(now);
        }
    }

    /// What was touched last before this has expired.
    pub(in crate::hybrid_log) fn expired_to(&self) -> Time {
        self.expiry.map_or(Time::MIN, |expiry| expiry.to)
    }

    /// Entries live so long without a touch.
    pub(in crate::hybrid_log) fn live_for(&mut self, nanos: u64) {
        self.log.cold.iter_mut().for_each(|cold| cold.live_for(nanos));
    }

    /// What was touched last before `to` has expired from now on. With a cold tier that is so up to its tide only: of what
    /// leaves the log, the tier may have an older copy.
    pub(in crate::hybrid_log) fn expire_to(&mut self, to: Time) {
        let Some(expiry) = &mut self.expiry else { return };
        let to = match &mut self.log.cold {
            Some(cold) => {
                let (tide, expired) = cold.expire_to(to);
                self.log.stats.expired += expired;
                tide
            }
            None => to,
        };
        expiry.to = expiry.to.max(to);
    }

    /// Goes on with a pass for `fuel` slots of frames: counts what it removes, and says if it may have missed some.
    pub(in crate::hybrid_log) fn expire_in_memory(
        &mut self,
        cursor: &mut Cursor,
        fuel: usize,
        (removed, is_whole): (&mut u64, &mut bool),
        has_expired: &mut dyn FnMut(RecordRef<'_>) -> bool,
    ) {
        if cursor.position == 0 {
            cursor.version = self.log.stats.cold_reads;
        }
        let slots = u64::from(self.log.sizes.slots);
        let end = self.log.frames.count() as u64 * slots;
        for _ in 0..fuel {
            if cursor.position >= end {
                break;
            }
            let at = cursor.position;
            let (number, slot) = ((at / slots) as u32, (at % slots) as u32);
            let Some(frame) = &self.log.frames.state(number).frame else {
                cursor.position = (u64::from(number) + 1) * slots;
                continue;
            };
            cursor.position += 1;
            if let Some(record) = frame.get(slot).filter(|_| frame.death(slot).is_none()) {
                if has_expired(record) && self.remove_resident(number, slot) {
                    *removed += 1;
                }
            }
        }
        cursor.done = cursor.position >= end;
        // A record that was read may have moved to where the pass had been.
        *is_whole &= cursor.version == self.log.stats.cold_reads;
    }

    /// Removes the record in a slot, unless it is not in memory any more: its frame is being evicted.
    fn remove_resident(&mut self, number: u32, slot: u32) -> bool {
        let address = self.log.address_of(number, slot);
        let hash = self.log.hash_in(number, slot).expect("a used slot");
        let Some((at, _)) = self.log.index.find(hash, |found| found == address) else {
            return false;
        };
        if self.log.is_kept(number, slot) {
            self.log.leave_for_dead(number, slot);
        } else {
            // One that panics while it is dropped panics for nobody: there is no call that it belongs to.
            let _panic = self.log.drop_record(number, slot);
        }
        self.log.index.remove(at);
        true
    }

    /// Removes those of a segment's records that are still in the index.
    pub(in crate::hybrid_log) fn remove_expired(&mut self, segment: u32, entries: &[FooterEntry]) {
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
