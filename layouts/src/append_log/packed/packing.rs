//! Packing, on the helper: lists that were frozen become records of one level.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use alluvium_pagestore::block::AlignedVec;
use alluvium_pagestore::{Error, ErrorKind, Result, RunInfo, SegmentStore, Trials, rounded};

use super::{PackedSlice, hash_of, order_of};
use crate::append_log::block::{ElementStretch, ListType, NewEntry};
use crate::append_log::frozen::{FrozenBucket, FrozenElements};
use crate::append_log::jobs::RunName;
use crate::append_log::run::BlockAt;
use crate::runs::{RecordView, RunSizes, RunWriter, UnsyncedRun};

/// What is to be packed, in the order of slices.
pub struct PackOrder {
    pub list_type: &'static ListType,
    pub runs: Vec<Arc<FrozenBucket>>,
    pub sizes: RunSizes,
    /// A record has no more bytes in memory, if its keys or elements own heap, but for one that has one element.
    pub cut_bytes: u64,
    pub store: SegmentStore,
    pub state: u64,
}

/// A level that was written.
pub struct PackedRuns {
    pub sealed: Vec<RunInfo>,
    pub unsynced: Vec<UnsyncedRun>,
    /// What each run became. Its elements are its owner's to tell.
    pub slices: Vec<(RunName, PackedSlice)>,
}

/// Bytes that a record takes once it is loaded.
pub fn loaded_bytes(payload: usize) -> u64 {
    (rounded(payload + 16) + size_of::<AlignedVec>() + size_of::<BlockAt>() + 8) as u64
}

impl PackOrder {
    /// Writes the level. What could not be finished is removed.
    ///
    /// # Errors
    /// Those of storage and of user code; [`ErrorKind::ValueTooLarge`] for an element that is too long to be packed.
    pub fn write(&self) -> Result<PackedRuns> {
        let mut writer = RunWriter::new(self.store.clone(), self.state, self.sizes)?;
        let written = catch_unwind(AssertUnwindSafe(|| self.write_all(&mut writer)));
        let written = written.unwrap_or_else(|_| {
            let message = "a key or an element panicked while it was packed";
            Err(Error::new(ErrorKind::Poisoned, message))
        });
        match written {
            Ok(slices) => Ok(PackedRuns {
                sealed: writer.take_sealed(),
                unsynced: writer.take_unsynced(),
                slices,
            }),
            Err(error) => {
                let sealed = writer.take_sealed();
                // What cannot be removed is left over until the next open.
                let _ = writer.abandon();
                for run in sealed {
                    let _ = self.store.remove_file(&run.id.file_name());
                }
                Err(error)
            }
        }
    }

    fn write_all(&self, writer: &mut RunWriter) -> Result<Vec<(RunName, PackedSlice)>> {
        let mut slices = Vec::with_capacity(self.runs.len());
        let (mut trials, mut scratch) = (Trials::default(), AlignedVec::new());
        for run in &self.runs {
            let mut records =
                RunRecords { order: self, run, writer: &mut *writer, nth: 0, bytes: 0 };
            run.for_each(|piece| records.push_piece(&mut trials, &mut scratch, &piece))?;
            let slice = PackedSlice { elements: 0, bytes: records.bytes, since: run.number };
            slices.push(((run.bucket, run.number), slice));
        }
        writer.finish()?;
        Ok(slices)
    }
}

/// The records of one run.
struct RunRecords<'w> {
    order: &'w PackOrder,
    run: &'w FrozenBucket,
    writer: &'w mut RunWriter,
    /// Records so far, and bytes that they take once they are loaded.
    nth: u32,
    bytes: u64,
}

impl RunRecords<'_> {
    fn push_piece(
        &mut self,
        trials: &mut Trials,
        scratch: &mut AlignedVec,
        piece: &FrozenElements<'_>,
    ) -> Result<()> {
        let chunks = piece.chain.expect("a frozen piece has elements").chunks();
        let elements = ElementStretch::Chain(chunks.clone(), chunks.len());
        let entry = NewEntry { key: piece.key, rank: piece.rank, elements };
        self.push(trials, scratch, (piece.place, &entry))
    }

    /// Writes an entry as one record, or half by half if that is too long.
    fn push(
        &mut self,
        trials: &mut Trials,
        scratch: &mut AlignedVec,
        (place, entry): (u64, &NewEntry<'_>),
    ) -> Result<()> {
        let (most, list_type) = (self.order.sizes.payload_bytes_max, self.order.list_type);
        let values = entry.elements.len() * list_type.elements.layout().size();
        // A key that is long is as long on storage, and in each part.
        let own = || entry.native_bytes(list_type) - list_type.key_bytes(entry.key) as u64;
        let expands = !list_type.is_plain && own() > self.order.cut_bytes;
        // A long list is not encoded as a whole only to find that out.
        let is_long = (values > 8 * most || expands) && entry.elements.len() > 1;
        if !is_long {
            self.order.list_type.encode(trials, scratch, 0..1, &|_| entry.clone())?;
        }
        if is_long || scratch.len() > most && entry.elements.len() > 1 {
            for half in entry.halves() {
                self.push(trials, scratch, (place, &half))?;
            }
            return Ok(());
        }
        let order = order_of(place, entry.rank, self.run.number, self.nth);
        let hash = hash_of(self.run.bucket);
        let mark = u32::try_from(entry.elements.len()).expect("few elements fit a record");
        self.writer.push(RecordView { hash, mark, order: &order, payload: scratch })?;
        self.nth += 1;
        self.bytes += loaded_bytes(scratch.len());
        Ok(())
    }
}
