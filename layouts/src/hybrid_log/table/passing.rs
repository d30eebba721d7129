//! Visiting all records where they are: those on storage segment by segment, those in memory frame by
//! frame.
//!
//! A scan by a cursor goes by the index, whose order is no order of storage: a read for each record.
//! This goes over the segments as they stand, and asks the index which of their records are live.
//!
//! Records of a cold tier come last, in the order of their runs. Those whose keys the index has are passed over.
//!
//! What it keeps true: each entry of the index is visited once, as nothing moves meanwhile. Memory is
//! booked before, and room for a value that is read with it.

use alluvium_pagestore::io::BLOCK_BYTES;
use alluvium_pagestore::{
    Error, ErrorKind, FooterEntry, PassVisitor, PassedRecord, Result, SegmentInfo, SegmentPass,
    SegmentStore, fingerprint,
};

use crate::contract::table::Cursor;
use crate::hybrid_log::core::{LogCore, VisitRecords, stored_address};
use crate::hybrid_log::frames_unsafe::FrameStage;
use crate::restore::full_image::PAGE_RECORDS_MAX;
use crate::support::booked::Booked;
use crate::support::record_type_unsafe::RecordRun;

/// Bytes of each buffer: a part of the memory, and what a device reads at its full speed.
const BUFFER_SHARE: u64 = 64;
const BUFFER_BYTES_MIN: u64 = 8 << 10;
const BUFFER_BYTES_MAX: u64 = 1 << 20;
/// Window for directories, and for images that are longer than a buffer.
const WINDOW_BYTES: usize = 2 * BLOCK_BYTES;

impl LogCore {
    pub(in crate::hybrid_log) fn visit_where_they_are(
        &mut self,
        visit: VisitRecords<'_>,
    ) -> Result<()> {
        self.log.end_leaving();
        let cold = self.log.index.stored();
        if cold == 0 {
            self.visit_frames(visit)?;
            return self.visit_runs(visit);
        }
        self.wait_for_pass()?;
        if let Some((booked, buffer_bytes)) = self.book_pass(cold) {
            // Making room has moved some.
            let cold = self.log.index.stored();
            let store = self.context.segment_store()?.clone().patient(self.log.sizes.patience);
            let visited = self.visit_segments(&store, buffer_bytes, visit);
            if store.left_bytes() > 0 {
                self.left_pass = Some((store, booked));
            } else {
                // A scan of runs wants memory too.
                drop(booked);
            }
            let visited = visited?;
            if visited != cold {
                let message = format!("{visited} records are in the segments, {cold} expected");
                return Err(Error::new(ErrorKind::Corrupt, message));
            }
            self.visit_frames(visit)?;
            return self.visit_runs(visit);
        }
        self.scan_all(visit)
    }

    fn scan_all(&mut self, visit: VisitRecords<'_>) -> Result<()> {
        let mut cursor = Cursor::default();
        while !cursor.done {
            self.scan_entries(&mut cursor, usize::MAX, visit)?;
        }
        Ok(())
    }

    /// Waits for reads of a pass that were left: they have the memory for one.
    fn wait_for_pass(&mut self) -> Result<()> {
        if let Some((store, _)) = &self.left_pass {
            store.wait_for_left().map_err(|error| error.with("state", &self.context.name))?;
            self.left_pass = None;
        }
        Ok(())
    }

    /// Gives the memory of a pass back whose reads were left and have ended.
    pub(in crate::hybrid_log) fn settle_pass(&mut self) {
        if self.left_pass.as_ref().is_some_and(|(store, _)| store.left_bytes() == 0) {
            self.left_pass = None;
        }
    }

    /// Memory for a pass over the segments and the bytes of its buffers, if a pass reads less than
    /// a block for each cold record, and if there is room.
    fn book_pass(&mut self, cold: u64) -> Option<(Booked, usize)> {
        let stored = self.log.stored.as_ref()?;
        let block = BLOCK_BYTES as u64;
        let account = self.log.account.clone();
        let buffer = (account.limit() / BUFFER_SHARE).min(BUFFER_BYTES_MAX) / block * block;
        if stored.bytes() > cold * block || buffer < BUFFER_BYTES_MIN {
            return None;
        }
        let entries =
            (self.log.sizes.slots.max(PAGE_RECORDS_MAX) as usize) * size_of::<FooterEntry>();
        let segments = stored.numbers().count() * size_of::<(u32, SegmentInfo)>();
        let bytes = SegmentPass::ahead_bytes(buffer as usize)
            + (WINDOW_BYTES + entries + segments) as u64
            + self.log.sizes.headroom_bytes;
        let mut longest = self.longest_stored();
        loop {
            // Before anything is visited: making room moves records. It may write longer ones.
            let bytes = bytes + self.log.beyond_usual(longest);
            self.log.make_free((bytes, "a pass over all segments")).ok()?;
            let now = self.longest_stored();
            if now <= longest {
                return Some((Booked::buffers(account, bytes), buffer as usize));
            }
            longest = now;
        }
    }

    /// Bytes of the longest record that segments have, or no less.
    fn longest_stored(&self) -> u64 {
        let stored = self.log.stored.iter();
        let all = stored.flat_map(|stored| stored.numbers().map(|number| stored.info(number)));
        all.map(|info| info.max_record_bytes).max().unwrap_or(0)
    }

    fn visit_segments(
        &mut self,
        store: &SegmentStore,
        buffer_bytes: usize,
        visit: VisitRecords<'_>,
    ) -> Result<u64> {
        let stored = self.log.stored.as_ref().expect("a log with segments");
        let live = stored.numbers().filter(|&number| stored.live_of(number) > 0);
        let mut segments = Vec::with_capacity(stored.numbers().count());
        segments.extend(live.map(|number| (number, stored.info(number).clone())));
        let state = fingerprint(&self.context.name);
        let mut pass = SegmentPass::new(store.clone(), state, WINDOW_BYTES, buffer_bytes);
        let mut open = |nth: usize| Ok(segments[nth].1.clone());
        let mut records =
            IndexedRecords { table: self, segments: &segments, number: 0, visited: 0, visit };
        pass.run(segments.len(), &mut open, &mut records)?;
        Ok(records.visited)
    }

    /// Visits the keys that have no entry in the index: one pass over all runs.
    fn visit_runs(&mut self, visit: VisitRecords<'_>) -> Result<()> {
        if self.log.cold.is_none() {
            return Ok(());
        }
        self.scan_cold(&(0..=u64::MAX), usize::MAX, visit).map(|_| ())
    }

    fn visit_frames(&mut self, visit: VisitRecords<'_>) -> Result<()> {
        for number in 0..self.log.frames.count() as u32 {
            if self.log.stage(number) == FrameStage::Vacant {
                continue;
            }
            // Of a frame that is being left, the index has the first records on storage already.
            let from = self.log.left_before(number);
            let records = self.log.frame(number).live_from(from);
            RecordRun::show(self.log.record_type, records, visit)?;
        }
        Ok(())
    }
}

/// Visits what the index has of the segments' records.
struct IndexedRecords<'t> {
    table: &'t mut LogCore,
    segments: &'t [(u32, SegmentInfo)],
    /// Of the segment at hand.
    number: u32,
    visited: u64,
    visit: VisitRecords<'t>,
}

impl PassVisitor for IndexedRecords<'_> {
    fn begin(&mut self, nth: usize) -> Result<()> {
        self.number = self.segments[nth].0;
        Ok(())
    }

    fn soon(&mut self, entry: &FooterEntry) {
        let log = &self.table.log;
        log.index.prefetch(log.index_hash(entry.hash));
    }

    fn record(&mut self, entry: &FooterEntry, record: &mut PassedRecord<'_>) -> Result<()> {
        let log = &mut self.table.log;
        let (hash, here) = (log.index_hash(entry.hash), stored_address(self.number, entry.grain));
        if log.index.find(hash, |known| known == here).is_none() {
            return Ok(());
        }
        self.visited += 1;
        log.stats.codec_calls += 1;
        let visit = &mut self.visit;
        log.record_type.decode(record.payload(entry)?, &mut |record| visit(&RecordRun::of(record)))
    }

    fn end(&mut self, _: usize) -> Result<()> {
        Ok(())
    }
}
