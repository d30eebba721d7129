//! What a checkpoint holds, and restoring it.
//!
//! A checkpoint names the runs that are on storage already and has what is in memory, which
//! stays there: [groups of tables](super::tables), written now or before, then a catalog of slices, runs
//! and tables, in segments of their own. The segments of an image are those of the runs, then of the
//! tables, then of the catalog, whose last record says how many there are of each. Restoring opens the
//! runs without reading them, and reads the tables back into memory.

use std::sync::Arc;

use alluvium_pagestore::{
    Account, Error, ErrorKind, FooterEntry, MemoryKind, PassVisitor, PassedRecord, Result,
    SegmentImage, SegmentReader, SegmentStore, StateImage, Time, codec, fingerprint,
};

use super::LAYOUT;
use super::core::SegmentsCore;
use super::run::{ImageAt, SliceRun};
use super::slice::{CachedRun, Slice};
use super::tables::{CatalogTables, TableRecords, WrittenTable};
use crate::restore::passing::pass_over;
use crate::support::gaps::HashGap;
use crate::support::record_type_unsafe::RecordRef;

/// What a record of the catalog tells, with the slice that it is of.
pub(super) const OF_SLICE: u8 = 0;
pub(super) const OF_RUN: u8 = 1;
pub(super) const OF_IMAGES: u8 = 2;
pub(super) const END: u8 = 3;
pub(super) const OF_GROUP: u8 = 4;
pub(super) const OF_TABLE: u8 = 5;
/// Images that one record of the catalog has.
pub(super) const IMAGES_PER_RECORD: usize = 256;

/// Puts an accumulator, as it was stored, into a slice.
pub(super) type PutStored<'p> = &'p mut dyn FnMut(&mut SegmentsCore, Time, &[u8]) -> Result<()>;

impl SegmentsCore {
    pub(super) fn restore(&mut self, image: &StateImage, put: PutStored<'_>) -> Result<()> {
        let segments = match image.only_part(LAYOUT)? {
            Some(part) => &part.segments[..],
            // Of a state that can be made again, checkpoints have nothing.
            None if image.entries == 0 => return Ok(()),
            None => &[],
        };
        let store = self.context.segment_store()?.for_opening();
        let window = self.sizes.chunk_bytes;
        let memory = self.sizes.restore_bytes();
        self.account.reserve(MemoryKind::Buffers, memory, "restoring")?;
        let state = fingerprint(&self.context.name);
        let mut catalog = TableCatalog::default();
        let restored = self.restore_with((&store, state, window), segments, &mut catalog, put);
        self.account.release(MemoryKind::Buffers, memory);
        self.account.release(MemoryKind::Tables, catalog.booked);
        restored.map_err(|error| error.with("state", &self.context.name))
    }

    fn restore_with(
        &mut self,
        (store, state, window): (&SegmentStore, u64, usize),
        segments: &[SegmentImage],
        catalog: &mut TableCatalog,
        put: PutStored<'_>,
    ) -> Result<()> {
        let mut reader = SegmentReader::new(store.clone(), state, window);
        let (runs, tables) = ends(&mut reader, store, segments)?;
        for segment in &segments[tables..] {
            reader.for_each(&segment.open(store)?, None, |_, record| {
                let ((kind, slice), numbers) =
                    codec::decode::<(u8, Time), Vec<u64>>(record.payload)?;
                if !catalog.take_in(&self.account, kind, slice, &numbers)? {
                    self.restore_from(kind, slice, &numbers, store, &segments[..runs])?;
                }
                Ok(())
            })?;
        }
        // One window at a time.
        drop(reader);
        let (known, written) = (&mut catalog.tables, &segments[runs..tables]);
        known.check(&catalog.slices, written.len())?;
        self.expect_tables(known);
        let account = self.account.clone();
        let mut tables = TableRestore { core: self, put, records: known.records() };
        let mut open = |nth: usize| written[nth].open(store);
        pass_over((store, state), &account, window, written.len(), &mut open, &mut tables)?;
        tables.records.end()?;
        self.groups.confirmed(known.groups(written));
        for (table, group) in known.live() {
            if let Some(slot) = self.slot_of(table.slice) {
                let found = self.slice_at_mut(slot);
                // Of one that was written as a run meanwhile, for want of memory, there is less.
                let is_it = (found.active.len(), found.cuts.len()) == (table.entries, table.cuts);
                found.in_group = is_it.then_some(group);
            }
        }
        self.disk_bytes += segments.iter().map(|segment| segment.bytes).sum::<u64>();
        self.files.restored(segments.iter().map(|segment| (segment.id, segment.bytes)));
        Ok(())
    }

    /// Makes parts of the tables that are read next: their entries come in the order of hashes.
    fn expect_tables(&mut self, known: &CatalogTables) {
        if self.context.movable {
            // They may be of few key groups.
            return;
        }
        for (table, _) in known.live() {
            if let Some(slot) = self.slot_of(table.slice) {
                self.slice_at_mut(slot).active.expect_in_order(table.entries);
            }
        }
    }

    /// Takes in one record of the catalog.
    fn restore_from(
        &mut self,
        kind: u8,
        slice: Time,
        numbers: &[u64],
        store: &SegmentStore,
        segments: &[SegmentImage],
    ) -> Result<()> {
        match (kind, numbers) {
            (OF_SLICE, &[_, _, next_number, ref gaps @ ..]) => {
                let slot = self.begin_slice(slice)?;
                let account = self.account.clone();
                let found = self.slice_at_mut(slot);
                found.next_number = next_number;
                for gap in gaps_of(gaps)? {
                    found.gaps.put(gap, &account)?;
                }
            }
            (OF_RUN, &[number, level, records, first, files]) => {
                let range = first as usize..first.saturating_add(files) as usize;
                let files = segments.get(range).ok_or_else(|| catalog_is_wrong("lost segments"))?;
                let mut segments = Vec::with_capacity(files.len());
                for file in files {
                    segments.push(file.open(store)?);
                }
                let run =
                    SliceRun { number, level: level as u32, segments, images: Vec::new(), records };
                self.make_room(run.booked_bytes(), "the table of a run")?;
                self.book_run(&run);
                let slot = self.begin_slice(slice)?;
                self.slice_at_mut(slot).runs.push(CachedRun::new(Arc::new(run)));
            }
            (OF_IMAGES, numbers) => {
                // Twice, for the vector that grows, and a checkpoint's share.
                self.make_room(3 * size_of_val(numbers) as u64 + 64, "the table of a run")?;
                let slot = self.begin_slice(slice)?;
                let account = self.account.clone();
                let found: &mut Slice = self.slice_at_mut(slot);
                let run = found.runs.last_mut().and_then(|stored| Arc::get_mut(&mut stored.run));
                let run = run.ok_or_else(|| catalog_is_wrong("images of no run"))?;
                let (before, share) = (run.memory_bytes(), run.share_bytes());
                run.images.reserve_exact(numbers.len() / 3);
                for image in numbers.chunks_exact(3) {
                    let (block, blocks) = ((image[2] >> 32) as u32, image[2] as u32);
                    let segment = image[1] as u32;
                    if segment as usize >= run.segments.len() {
                        return Err(catalog_is_wrong("an image of no segment"));
                    }
                    run.images.push(ImageAt { first: image[0], segment, block, blocks });
                }
                let (grown, share) = (run.memory_bytes() - before, run.share_bytes() - share);
                account.charge(MemoryKind::Tables, grown);
                self.fund.add(share);
            }
            (END, _) => {}
            _ => return Err(catalog_is_wrong("a record of an unknown kind")),
        }
        Ok(())
    }

    fn restore_cut(&mut self, slice: Time, cut: RecordRef<'_>) -> Result<()> {
        self.make_room((16 << 10) + self.sizes.headroom_bytes, "a removed key")?;
        let slot = self.begin_slice(slice)?;
        let (types, at) = (self.types, (&self.account, self.range));
        let found = self.slots[slot].as_mut().expect("begun above");
        found.cuts.put(types, (cut.hash(), types.key_of(cut)), types.before(cut), at)
    }
}

/// What a catalog has of tables.
#[derive(Default)]
pub(super) struct TableCatalog {
    /// The table of each slice.
    pub slices: Vec<WrittenTable>,
    pub tables: CatalogTables,
    /// Booked for these, as tables.
    pub booked: u64,
}

impl TableCatalog {
    /// Takes in what a record has of tables. Returns whether it has nothing else.
    pub fn take_in(
        &mut self,
        account: &Account,
        kind: u8,
        slice: Time,
        numbers: &[u64],
    ) -> Result<bool> {
        if matches!(kind, OF_SLICE | OF_TABLE) {
            let bytes = CatalogTables::TABLE_BYTES;
            account.reserve(MemoryKind::Tables, bytes, "the catalog of slices")?;
            self.booked += bytes;
        }
        match (kind, numbers) {
            (OF_SLICE, &[entries, cuts, ..]) => {
                self.slices.push(WrittenTable { slice, entries, cuts });
            }
            (OF_GROUP, &[segments]) => self.tables.begin_group(segments),
            (OF_TABLE, &[entries, cuts, is_live]) => {
                self.tables.add(WrittenTable { slice, entries, cuts }, is_live != 0)?;
            }
            _ => return Ok(false),
        }
        Ok(kind != OF_SLICE)
    }
}

/// Restores the tables of slices, which the catalog lists.
struct TableRestore<'p, 'f> {
    core: &'p mut SegmentsCore,
    put: PutStored<'f>,
    records: TableRecords,
}

impl PassVisitor for TableRestore<'_, '_> {
    fn begin(&mut self, _: usize) -> Result<()> {
        Ok(())
    }

    fn record(&mut self, entry: &FooterEntry, record: &mut PassedRecord<'_>) -> Result<()> {
        let of = self.records.next()?;
        if !of.is_live {
            return Ok(());
        }
        self.core.stats.codec_calls += 1;
        let payload = record.payload(entry)?;
        if of.is_cut {
            let cut = self.core.types.cut();
            return cut.decode(payload, &mut |cut| self.core.restore_cut(of.slice, cut));
        }
        (self.put)(self.core, of.slice, payload)
    }

    fn end(&mut self, _: usize) -> Result<()> {
        Ok(())
    }
}

/// The gaps of a slice, from the numbers of its record in the catalog.
pub(super) fn gaps_of(numbers: &[u64]) -> Result<impl Iterator<Item = HashGap> + '_> {
    if !numbers.len().is_multiple_of(3) {
        return Err(catalog_is_wrong("half of a range of removed keys"));
    }
    let gap = |numbers: &[u64]| HashGap { first: numbers[0], last: numbers[1], before: numbers[2] };
    Ok(numbers.chunks_exact(3).map(gap))
}

/// Where the segments of runs end, and those of tables.
pub(super) fn ends(
    reader: &mut SegmentReader,
    store: &SegmentStore,
    segments: &[SegmentImage],
) -> Result<(usize, usize)> {
    let Some(last) = segments.last() else {
        return Err(catalog_is_wrong("a checkpoint without one"));
    };
    let mut end = None;
    reader.for_each(&last.open(store)?, None, |_, record| {
        let ((kind, _), numbers) = codec::decode::<(u8, Time), Vec<u64>>(record.payload)?;
        if let (END, &[runs, tables]) = (kind, &numbers[..]) {
            end = Some((runs, runs.saturating_add(tables)));
        }
        Ok(())
    })?;
    let (runs, tables) = end.ok_or_else(|| catalog_is_wrong("it has no end"))?;
    if tables >= segments.len() as u64 {
        return Err(catalog_is_wrong("lost segments"));
    }
    Ok((runs as usize, tables as usize))
}

pub(super) fn catalog_is_wrong(what: &str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("the catalog of slices is inconsistent: {what}"))
}
