//! What a checkpoint holds, and restoring it.
//!
//! A checkpoint names the runs that are on storage already and has what is in memory, which
//! stays there: the tables of all slices one after the other, then a catalog of slices and runs, in
//! segments of their own. The segments of an image are those of the runs, then of the tables, then of
//! the catalog, whose last record says how many there are of each. Restoring opens the runs without
//! reading them, and reads the tables back into memory.

use std::sync::Arc;

use alluvium_pagestore::{
    Error, ErrorKind, FooterEntry, Key, MemoryKind, PassVisitor, PassedRecord, Result, SegmentId,
    SegmentImage, SegmentReader, SegmentStore, State, StateImage, Time, codec, fingerprint,
};

use super::run::{ImageAt, Run};
use super::slice::{GAP_BYTES, Gap, Slice, Stored};
use super::table::SegmentPanes;
use super::writing::Cut;
use crate::panes::Panes;
use crate::passing::pass_over;
use crate::table::CheckpointOutcome;

/// What a record of the catalog tells, with the slice that it is of.
pub(super) const OF_SLICE: u8 = 0;
pub(super) const OF_RUN: u8 = 1;
pub(super) const OF_IMAGES: u8 = 2;
pub(super) const END: u8 = 3;
/// Images told of by one record.
pub(super) const IMAGES_PER_RECORD: usize = 256;
/// Memory for a record of the catalog and its archive.
const CATALOG_BYTES: u64 = 16 << 10;

impl<K: Key, A: State> SegmentPanes<K, A> {
    pub(super) fn restore(&mut self, image: &StateImage) -> Result<()> {
        if image.segments.is_empty() && image.entries == 0 {
            // Of a state that can be made again, checkpoints have nothing.
            return Ok(());
        }
        let store = self.context.segment_store()?.clone();
        let window = self.sizes.chunk_bytes;
        let footers = 2 * self.sizes.image_records as usize * size_of::<FooterEntry>();
        let memory = (window + footers) as u64 + CATALOG_BYTES + self.sizes.headroom_bytes;
        self.account.reserve(MemoryKind::Buffers, memory, "restoring")?;
        let state = fingerprint(&self.context.name);
        let restored = self.restore_with((&store, state, window), image);
        self.account.release(MemoryKind::Buffers, memory);
        restored.map_err(|error| error.with("state", &self.context.name))
    }

    fn restore_with(
        &mut self,
        (store, state, window): (&SegmentStore, u64, usize),
        image: &StateImage,
    ) -> Result<()> {
        let mut reader = SegmentReader::new(store.clone(), state, window);
        let (runs, tables) = ends(&mut reader, store, &image.segments)?;
        let mut slices = Vec::new();
        for segment in &image.segments[tables..] {
            reader.for_each(&segment.open(store)?, None, |_, record| {
                let ((kind, slice), told) = codec::decode::<(u8, Time), Vec<u64>>(record.payload)?;
                self.restore_from(kind, slice, &told, store, &image.segments[..runs], &mut slices)
            })?;
        }
        // One window at a time.
        drop(reader);
        let (account, files) = (self.account.clone(), &image.segments[runs..tables]);
        let mut tables = Tables { panes: self, slices: slices.into_iter(), of: None };
        tables.go_on();
        let mut open = |nth: usize| files[nth].open(store);
        pass_over((store, state), &account, window, files.len(), &mut open, &mut tables)?;
        if tables.of.is_some() {
            return Err(catalog_is_wrong("fewer accumulators than it tells of"));
        }
        let only = image.segments[runs..].iter().map(|segment| (segment.id, segment.bytes));
        let all = image.segments.iter().map(|segment| segment.id);
        self.files.bytes += image.segments.iter().map(|segment| segment.bytes).sum::<u64>();
        self.files.take(all, only.collect::<Vec<(SegmentId, u64)>>());
        let free = self.files.decide(CheckpointOutcome::Committed);
        assert!(free.is_empty(), "nothing was of no use before");
        Ok(())
    }

    /// Takes in one record of the catalog.
    fn restore_from(
        &mut self,
        kind: u8,
        slice: Time,
        told: &[u64],
        store: &SegmentStore,
        segments: &[SegmentImage],
        slices: &mut Vec<(Time, u64, u64)>,
    ) -> Result<()> {
        match (kind, told) {
            (OF_SLICE, &[entries, cuts, next_number, ref gaps @ ..]) => {
                let slot = self.begin_slice(slice)?;
                let account = self.account.clone();
                let found = self.slice_at_mut(slot);
                found.next_number = next_number;
                for gap in gaps_of(gaps)? {
                    account.reserve(MemoryKind::Tables, GAP_BYTES, "a range of removed keys")?;
                    found.gaps.push(gap);
                }
                slices.push((slice, entries, cuts));
            }
            (OF_RUN, &[number, level, records, first, files]) => {
                let range = first as usize..first.saturating_add(files) as usize;
                let files = segments.get(range).ok_or_else(|| catalog_is_wrong("lost segments"))?;
                let segments = files.iter().map(|file| file.open(store)).collect::<Result<_>>()?;
                let run =
                    Run { number, level: level as u32, segments, images: Vec::new(), records };
                self.make_room(run.memory_bytes(), "the table of a run")?;
                self.account.charge(MemoryKind::Tables, run.memory_bytes());
                let slot = self.begin_slice(slice)?;
                self.slice_at_mut(slot).runs.push(Stored::new(Arc::new(run)));
            }
            (OF_IMAGES, told) => {
                // Twice, for the vector that grows.
                self.make_room(2 * size_of_val(told) as u64 + 64, "the table of a run")?;
                let slot = self.begin_slice(slice)?;
                let account = self.account.clone();
                let found: &mut Slice<K, A> = self.slice_at_mut(slot);
                let run = found.runs.last_mut().and_then(|stored| Arc::get_mut(&mut stored.run));
                let run = run.ok_or_else(|| catalog_is_wrong("images of no run"))?;
                let before = run.memory_bytes();
                for image in told.chunks_exact(3) {
                    let (block, blocks) = ((image[2] >> 32) as u32, image[2] as u32);
                    let segment = image[1] as u32;
                    if segment as usize >= run.segments.len() {
                        return Err(catalog_is_wrong("an image of no segment"));
                    }
                    run.images.push(ImageAt { first: image[0], segment, block, blocks });
                }
                account.adjust(MemoryKind::Tables, before, run.memory_bytes());
            }
            (END, _) => {}
            _ => return Err(catalog_is_wrong("a record of an unknown kind")),
        }
        Ok(())
    }

    fn restore_cut(&mut self, slice: Time, cut: Cut<K>) -> Result<()> {
        self.make_room((16 << 10) + self.sizes.headroom_bytes, "a removed key")?;
        let slot = self.begin_slice(slice)?;
        let (hash, before) = (cut.key.key_hash(), cut.before);
        let found = self.slots[slot].as_mut().expect("begun above");
        let key = cut.key.clone();
        found.cut(hash, |known| *known == key, || cut.key, &self.account)?;
        let made = found.cuts.find_mut(hash, |cut| cut.key == key);
        made.expect("made above").before = before;
        Ok(())
    }
}

/// Takes in what was in the tables of slices, as the catalog tells of it.
struct Tables<'p, K: Key, A: State> {
    panes: &'p mut SegmentPanes<K, A>,
    /// Of each slice in turn: how many accumulators come, and then how many cuts.
    slices: std::vec::IntoIter<(Time, u64, u64)>,
    /// What is left of the slice at hand, which is something.
    of: Option<(Time, u64, u64)>,
}

impl<K: Key, A: State> Tables<'_, K, A> {
    fn go_on(&mut self) {
        self.of = self.slices.find(|(_, entries, cuts)| entries + cuts > 0);
    }
}

impl<K: Key, A: State> PassVisitor for Tables<'_, K, A> {
    fn begin(&mut self, _: usize) -> Result<()> {
        Ok(())
    }

    fn record(&mut self, entry: &FooterEntry, record: &mut PassedRecord<'_>) -> Result<()> {
        let Some((slice, entries, cuts)) = &mut self.of else {
            return Err(catalog_is_wrong("more accumulators than it tells of"));
        };
        self.panes.stats.codec_calls += 1;
        if *entries > 0 {
            let (key, value) = codec::decode::<K, A>(record.payload(entry)?)?;
            self.panes.update(*slice, &key, || value, |_| ())?;
            *entries -= 1;
        } else {
            let (key, before) = codec::decode::<K, u64>(record.payload(entry)?)?;
            self.panes.restore_cut(*slice, Cut { key, before })?;
            *cuts -= 1;
        }
        if *entries + *cuts == 0 {
            self.go_on();
        }
        Ok(())
    }

    fn end(&mut self, _: usize) -> Result<()> {
        Ok(())
    }
}

/// The gaps that the catalog tells of a slice.
pub(super) fn gaps_of(told: &[u64]) -> Result<impl Iterator<Item = Gap> + '_> {
    if !told.len().is_multiple_of(3) {
        return Err(catalog_is_wrong("half of a range of removed keys"));
    }
    let gap = |told: &[u64]| Gap { first: told[0], last: told[1], before: told[2] };
    Ok(told.chunks_exact(3).map(gap))
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
        let ((kind, _), told) = codec::decode::<(u8, Time), Vec<u64>>(record.payload)?;
        if let (END, &[runs, tables]) = (kind, &told[..]) {
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
    Error::new(ErrorKind::Corrupt, format!("the catalog of slices does not hold: {what}"))
}
