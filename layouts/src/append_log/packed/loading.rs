//! Reading what is packed: it becomes a run of its bucket, all of whose blocks are in memory, for as long as it is read.

use std::sync::Arc;

use alluvium_pagestore::block::AlignedVec;
use alluvium_pagestore::{Error, ErrorKind, FooterEntry, MemoryKind, Result, Time};

use super::packing::loaded_bytes;
use super::{LOADED_BYTES, PACKED, PackedSlice, hash_of, is_loaded, number_in, place_in};
use crate::append_log::core::ListsCore;
use crate::append_log::run::{BlockAt, Cached, RUN_BYTES, Run, StoredRun};
use crate::runs::{scan, scan_bytes};
use crate::support::booked::Booked;

/// The records of a slice, in the order of places and ranks.
#[derive(Default)]
pub(super) struct Records {
    pub blocks: Vec<BlockAt>,
    pub payloads: Vec<AlignedVec>,
    pub bytes: u64,
    pub elements: u64,
}

impl ListsCore {
    /// Loads what is packed of these slices and is not loaded. Says whether there was anything.
    ///
    /// # Errors
    /// Those of reading; [`ErrorKind::OverBudget`](alluvium_pagestore::ErrorKind::OverBudget) if there is no memory.
    pub(in crate::append_log) fn load_packed(&mut self, times: &[Time]) -> Result<bool> {
        let mut any = false;
        for time in times {
            while let Some(slice) = self.to_load(*time) {
                any |= self.load(*time, slice)?;
            }
        }
        Ok(any)
    }

    fn to_load(&self, time: Time) -> Option<PackedSlice> {
        let packed = self.packed.as_ref()?;
        packed.directory.get(time).filter(|_| !packed.loaded.contains(&time))
    }

    /// Loads a slice, unless more of it was packed while memory was made free.
    fn load(&mut self, time: Time, slice: PackedSlice) -> Result<bool> {
        let Some(records) = self.read_packed((time, slice), LOADED_BYTES)? else {
            return Ok(false);
        };
        if !self.buckets.contains_key(&time) {
            let bucket = self.new_bucket((time, slice.since))?;
            self.buckets.insert(time, bucket);
        }
        let Records { mut blocks, payloads, bytes, .. } = records;
        blocks.shrink_to_fit();
        let stored = StoredRun { files: Vec::new(), blocks };
        self.account.charge(MemoryKind::Tables, stored.memory_bytes() + RUN_BYTES);
        self.account.charge(MemoryKind::Buffers, bytes);
        let cached = Cached { blocks: Arc::new(payloads), bytes, used: true };
        let run = Run {
            number: PACKED,
            elements: 0,
            memory: None,
            stored: Some(Arc::new(stored)),
            // Nobody merges it or drops it from memory.
            busy: true,
            cached: Some(cached),
        };
        let bucket = self.buckets.get_mut(&time).expect("there or made");
        bucket.runs.insert(0, run);
        self.packed.as_mut().expect("it was read").loaded.push(time);
        Ok(true)
    }

    /// Reads the records of a slice, for which memory is made free, and for so much more. None: what is packed of the slice
    /// has changed meanwhile.
    pub(super) fn read_packed(
        &mut self,
        (time, slice): (Time, PackedSlice),
        more: u64,
    ) -> Result<Option<Records>> {
        let packed = self.packed.as_ref().expect("a slice is packed");
        let scan = scan_bytes(&packed.levels.infos_of(hash_of(time)), packed.read_bytes);
        let (bytes, what) = (scan + slice.bytes + more, "reading packed slices");
        self.make_room(bytes, what)?;
        match self.to_load(time) == Some(slice) {
            true => self.scan_packed((time, slice)).map(Some),
            false => Ok(None),
        }
    }

    fn scan_packed(&mut self, (time, slice): (Time, PackedSlice)) -> Result<Records> {
        if let Some(reads) = &self.reads {
            let waited = reads.wait();
            self.book_left();
            waited?;
        }
        let packed = self.packed.as_ref().expect("a slice is packed");
        let (range, hash) = (self.range, hash_of(time));
        let levels = packed.levels.infos_of(hash);
        let bytes = scan_bytes(&levels, packed.read_bytes) + slice.bytes;
        let booked = Booked::buffers(self.account.clone(), bytes);
        let mut records = Records::default();
        let levels = (&packed.store, &levels[..]);
        let scanned = scan(levels, &(hash..=hash), packed.read_bytes, &mut |group| {
            for record in group.iter().filter(|record| number_in(record.order) >= slice.since) {
                let mut payload = AlignedVec::with_capacity(record.payload.len());
                payload.extend_from_slice(record.payload);
                let hash = range.hash(place_in(record.order));
                let len = record.payload.len() as u32;
                records
                    .blocks
                    .push(BlockAt { file: 0, record: FooterEntry { hash, grain: 0, len } });
                records.bytes += loaded_bytes(payload.len());
                records.elements += u64::from(record.mark);
                records.payloads.push(payload);
            }
            Ok(true)
        });
        drop(booked);
        self.book_left();
        scanned.map_err(|error| error.with("state", &self.context.name))?;
        self.stats.cold_reads += 1;
        if records.elements != slice.elements {
            let (found, told) = (records.elements, slice.elements);
            let what = format!("a packed slice has {found} elements in runs, {told} are told");
            let error = Error::new(ErrorKind::Corrupt, what);
            return Err(error.with("state", &self.context.name).with("slice", time.0));
        }
        Ok(records)
    }

    /// Unloads a slice.
    pub(super) fn unload(&mut self, time: Time) {
        let Some(packed) = self.packed.as_mut() else { return };
        packed.loaded.retain(|known| *known != time);
        let Some(bucket) = self.buckets.get_mut(&time) else { return };
        let at = bucket.runs.iter().position(is_loaded);
        if let Some(run) = at.map(|at| bucket.runs.remove(at)) {
            self.drop_run(run);
        }
        self.drop_if_vacant(time);
    }

    /// Unloads all slices.
    pub(in crate::append_log) fn unload_all(&mut self) {
        let loaded = self.packed.as_mut().map_or(Vec::new(), |p| std::mem::take(&mut p.loaded));
        for time in loaded {
            self.unload(time);
        }
    }

    /// Forgets the fold that goes on, which anything else ends.
    #[inline]
    pub(in crate::append_log) fn leave_fold(&mut self) {
        self.resume = None;
        if self.packed.as_ref().is_some_and(|packed| !packed.loaded.is_empty()) {
            self.unload_all();
        }
    }
}
