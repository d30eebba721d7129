//! How a heap table is opened: what a checkpoint has is put into an empty one, without its types.
//!
//! Each record is decoded, and moved into its slot as bytes. Cost of a record beside that: four indirect calls.

use alluvium_pagestore::{BlobReader, ImagePart, MemoryKind, Result, StateImage};

use super::core::{Durability, HeapCore};
use super::raw_table_unsafe::EntryPosition;
use crate::contract::table::StateContext;
use crate::hybrid_log::has_same_key;
use crate::restore::full_image::read_payloads;
use crate::restore::of_runs::read_own_runs;
use crate::support::out_of_line_unsafe::DroppedHere;
use crate::support::record_type_unsafe::{DecodedRecord, RecordType};

impl HeapCore {
    /// Opens a table that is stored. With `keeps_free`, writes leave room for a checkpoint.
    ///
    /// # Errors
    /// Those of reading and decoding, and without memory.
    pub fn open(
        mut context: StateContext,
        record_type: &'static RecordType,
        keeps_free: bool,
    ) -> Result<DroppedHere<Self>> {
        let restored = context.restored.take();
        let mut core = Self::new(context, record_type, Durability::Stored);
        core.note_longest();
        if let Some((image, blobs)) = restored {
            core.expected = image.entries;
            core.restore(&image, &blobs)?;
        }
        if keeps_free {
            core.keep_free()?;
        } else {
            core.leave_free_for_one();
        }
        Ok(core)
    }

    /// Puts all entries of an image into the empty table, which remembers where they are if there
    /// is room for that.
    fn restore(&mut self, image: &StateImage, blobs: &BlobReader) -> Result<()> {
        let (hot, runs) = image.split_runs();
        self.begin_restore(&hot);
        let (context, record_type) = (self.context.clone(), self.table.record_type());
        read_payloads(&context, &hot, blobs, &mut |at, payload| {
            record_type.decode_to_take(payload, &mut |decoded| {
                self.found(decoded.record().heap_bytes());
                let spot = self.put_decoded(decoded)?;
                self.restored(spot, at);
                Ok(())
            })
        })?;
        self.end_restore(&hot);
        for part in &runs {
            self.restore_runs(part).map_err(|error| self.too_large(error, image))?;
            self.has_restored(part, image)?;
        }
        Ok(())
    }

    /// Puts the entries of sorted runs that the table does not have, as if they were new: a table
    /// has no runs, so the next checkpoint writes them.
    fn restore_runs(&mut self, part: &ImagePart) -> Result<()> {
        let (context, record_type) = (self.context.clone(), self.table.record_type());
        let is_same = |one: &[u8], other: &[u8]| has_same_key(record_type, one, other);
        read_own_runs(&context, part, &is_same, &mut |payload| {
            record_type.decode_to_take(payload, &mut |decoded| {
                self.found(decoded.record().heap_bytes());
                match self.spot_of(&decoded) {
                    Some(_) => Ok(()),
                    None => self.put_decoded(decoded).map(drop),
                }
            })
        })
    }

    /// Finds the entry with the key of a record.
    fn spot_of(&self, decoded: &DecodedRecord<'_>) -> Option<EntryPosition> {
        let record = decoded.record();
        self.table.find(record.hash(), &mut |known| known.has_key_of(record))
    }

    /// Puts a record; says where it is if its key is new. No checkpoint is taken meanwhile.
    ///
    /// # Errors
    /// Without memory.
    fn put_decoded(&mut self, decoded: DecodedRecord<'_>) -> Result<Option<EntryPosition>> {
        let (hash, bytes) = (decoded.record().hash(), decoded.record().heap_bytes());
        if let Some(spot) = self.spot_of(&decoded) {
            return self.replace(spot, decoded, bytes).map(|()| None);
        }
        if !self.has_room(hash, bytes) {
            self.make_room(hash, bytes)?;
        }
        self.context.account.charge(MemoryKind::Values, bytes);
        // SAFETY: the record is of the table's types, and has this hash. It is moved into its slot at once.
        unsafe {
            let (slot, spot) = self.table.claim(hash);
            decoded.move_to(slot.as_ptr());
            Ok(Some(spot))
        }
    }

    /// Puts a record, which owns so much heap, over the one of its key.
    #[cold]
    fn replace(
        &mut self,
        spot: EntryPosition,
        decoded: DecodedRecord<'_>,
        bytes: u64,
    ) -> Result<()> {
        let before = self.table.entry(spot).map_or(0, |entry| entry.heap_bytes());
        if bytes > before {
            self.make_room_for_value(bytes - before)?;
        }
        // Making room may have moved it.
        let spot = self.spot_of(&decoded).expect("it was found before");
        self.note_change(spot);
        self.context.account.adjust(MemoryKind::Values, before, bytes);
        let slot = self.table.entry_mut(spot).expect("it was found before");
        // SAFETY: the slot has an entry of the table's types, and so is the record.
        unsafe { decoded.move_over(slot.as_ptr()) };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alluvium_pagestore::{Account, HeapSize, Helper, MIB, codec};
    use std::collections::BTreeMap;

    /// Memory of the tests' tables, and how many records are restored.
    const ROOM: u64 = if cfg!(miri) { MIB / 4 } else { MIB };
    const RECORDS: u64 = if cfg!(miri) { 60 } else { 600 };

    fn context() -> StateContext {
        StateContext {
            name: "restored".into(),
            account: Account::root(ROOM),
            segments: None,
            helper: Helper::inline(),
            max_value_bytes: ROOM,
            key_groups: 16,
            owned: 0..16,
            movable: false,
            restored: None,
        }
    }

    #[test]
    fn of_the_records_of_a_key_the_last_stays_and_is_booked() {
        let record_type = RecordType::of::<u64, String>();
        let mut core = HeapCore::new(context(), record_type, Durability::Stored);
        let mut model = BTreeMap::new();
        for nth in 0..RECORDS {
            // Longer than before, as long, and shorter.
            let (key, value) = (nth % (RECORDS / 3), "v".repeat((nth * 7 % 50) as usize));
            let mut payload = rkyv::util::AlignedVec::new();
            codec::encode(&mut payload, &key, &value).unwrap();
            let mut spot = None;
            let put = &mut |decoded: DecodedRecord<'_>| -> Result<()> {
                spot = core.put_decoded(decoded)?;
                Ok(())
            };
            record_type.decode_to_take(&payload, put).unwrap();
            let is_new = model.insert(key, value).is_none();
            assert_eq!(spot.is_some(), is_new, "record {nth}");
            let owned: usize = model.values().map(HeapSize::heap_bytes).sum();
            assert_eq!(core.context.account.used_for(MemoryKind::Values), owned as u64);
        }
        let mut found = BTreeMap::new();
        let place = (0..).scan(Some(0), |next, _| {
            let (index, after) = core.table.part_at((*next)?);
            *next = after;
            Some(index)
        });
        for index in place.flatten() {
            found.extend(core.table.entries_at(index).map(|entry| {
                let (key, value) = entry.get::<u64, String>();
                (*key, value.clone())
            }));
        }
        assert_eq!(found, model);
    }

    #[test]
    fn a_record_without_room_is_refused_and_dropped() {
        let record_type = RecordType::of::<u64, String>();
        let mut core = HeapCore::new(context(), record_type, Durability::Stored);
        let value = "v".repeat(2 * ROOM as usize);
        let mut payload = rkyv::util::AlignedVec::new();
        codec::encode(&mut payload, &7u64, &value).unwrap();
        let put = &mut |decoded: DecodedRecord<'_>| core.put_decoded(decoded).map(drop);
        let refused = record_type.decode_to_take(&payload, put).unwrap_err();
        assert_eq!(refused.kind(), alluvium_pagestore::ErrorKind::OverBudget);
        assert_eq!((core.table.len(), core.context.account.used_for(MemoryKind::Values)), (0, 0));
    }
}
