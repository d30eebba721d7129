//! What checkpoints name: the files of runs, those that are written already too, and a catalog, in
//! segments of its own, that says what runs there are and what is noted of keys; and restoring one.
//! `docs/format.md` has its bytes.

use std::collections::HashMap;

use alluvium_pagestore::{
    Error, ErrorKind, FooterEntry, KeyHash, MemoryKind, Result, SegmentId, SegmentImage,
    SegmentInfo, SegmentReader, StateImage, Time, codec,
};

use super::bucket::AppendBucket;
use super::core::ListsCore;
use super::notes::{ImportedRuns, KeyNote};
use super::packed::page_of;
use super::run::{BlockAt, ListRun, RUN_BYTES, StoredRun};
use crate::checkpoint::{files_of, files_of_image};
use crate::support::booked::Booked;
use crate::support::gaps::HashGap;
use crate::trace_event;

/// Bytes booked for a file of runs, or of a catalog.
pub const FILE_BYTES: u64 = 320;

/// Newest run, and how many records of runs and gaps and of notes follow.
pub type CatalogHead = (u64, u64, u64);
/// Bucket and number of a run.
pub type RunKey = (i64, u64);
/// Elements; whether its bucket was purged; per file its id, the run's first block, and how many.
pub type RunValue = (u64, bool, Vec<(u64, u32, u32)>);
/// Of a gap: its bucket and the first run that counts, the first hash, and as its only file, of no blocks, the
/// last hash.
pub fn record_of_gap(time: Time, gap: HashGap) -> (RunKey, RunValue) {
    ((time.0, gap.before), (gap.first, false, vec![(gap.last, 0, 0)]))
}

/// The gap that a record is of, if it is not of a run.
pub fn gap_of((time, before): RunKey, (first, _, parts): &RunValue) -> Option<(Time, HashGap)> {
    let &[(last, 0, 0)] = &parts[..] else { return None };
    Some((Time(time), HashGap { first: *first, last, before }))
}

/// Bucket, cut and lowest rank; per import source, first and last run, shift of ranks.
pub type NoteValue = ((i64, u64, i64), Vec<(i64, u64, u64, i64)>);

impl ListsCore {
    pub(super) fn restore(&mut self, image: &StateImage) -> Result<()> {
        let store = self.context.segment_store()?.for_opening();
        let state = self.source.as_ref().map_or(0, |source| source.state);
        let window = self.sizes.window_bytes;
        let (account, kind) = (self.account.clone(), MemoryKind::Buffers);
        let booked = Booked::reserve(account, kind, window as u64, "restoring")?;
        self.restore_from(image, &mut SegmentReader::new(store, state, window))?;
        drop(booked);
        if self.elements != image.entries {
            let what = format!("{} elements in runs, {} expected", self.elements, image.entries);
            return Err(Error::new(ErrorKind::Corrupt, what));
        }
        let span = self.span;
        self.packed.iter_mut().for_each(|packed| packed.count_loaded(span));
        self.files.restored(files_of_image(image));
        let (state, runs) = (self.context.name.as_str(), image.segments().count());
        trace_event!(DEBUG, "lists restored", state = state, files = runs);
        Ok(())
    }

    fn restore_from(&mut self, image: &StateImage, reader: &mut SegmentReader) -> Result<()> {
        let store = self.context.segment_store()?.for_opening();
        let list_type = self.list_type;
        let mut head: Option<CatalogHead> = None;
        let (mut runs, mut notes) = (Vec::<(RunKey, RunValue)>::new(), Vec::new());
        let part = self.restore_levels(image)?;
        let mut segments = part.into_iter().flat_map(|part| &part.segments);
        // The catalog's segments come first.
        while head.is_none_or(|head| (runs.len() + notes.len()) as u64 != head.1 + head.2) {
            let Some(segment) = segments.next() else {
                return Err(Error::new(ErrorKind::Corrupt, "the catalog of runs is not complete"));
            };
            let info = segment.open(&store)?;
            reader.for_each(&info, None, |_, record| {
                match head {
                    None => head = Some(codec::decode::<(), CatalogHead>(record.payload)?.1),
                    Some((_, count, _)) if (runs.len() as u64) < count => {
                        runs.push(codec::decode(record.payload)?);
                    }
                    Some(_) => notes.push(list_type.decode_note(record.payload)?),
                }
                Ok(())
            })?;
        }
        self.epoch = head.map_or(0, |head| head.0);
        let mut files = HashMap::new();
        let mut footers = 0;
        for segment in segments {
            footers += segment.records * size_of::<FooterEntry>() as u64;
            files.insert(segment.id, segment);
        }
        let (account, kind) = (self.account.clone(), MemoryKind::Buffers);
        let booked = Booked::reserve(account, kind, footers, "restoring")?;
        let blocks = self.read_blocks(&files, reader)?;
        drop(booked);
        for (key, value) in runs {
            if let Some((first, coded)) = page_of(key, &value) {
                self.restore_page(first, &coded)?;
            } else if let Some((time, gap)) = gap_of(key, &value) {
                let account = self.account.clone();
                self.restored_bucket(time)?.gaps.put(gap, &account)?;
            } else {
                self.restore_run(key, value, &blocks)?;
            }
        }
        for (key, ((time, cut, low), imports)) in notes {
            let imports = imports.into_iter();
            let imports = imports.map(|(source, first, last, delta)| ImportedRuns {
                source: Time(source),
                runs: (first, last),
                delta,
            });
            let note = KeyNote { key, cut, low, imports: imports.collect() };
            let hash = note.key.key_hash();
            let bucket = self.restored_bucket(Time(time))?;
            bucket.put_note(note)?;
            bucket.count_cut(hash, 0, cut);
        }
        Ok(())
    }

    /// The blocks of all segments of runs.
    fn read_blocks(
        &self,
        files: &HashMap<SegmentId, &SegmentImage>,
        reader: &mut SegmentReader,
    ) -> Result<BlocksOf> {
        let store = &self.context.segment_store()?.for_opening();
        let mut all = HashMap::new();
        let mut entries = Vec::new();
        for segment in files.values() {
            let info = segment.open(store)?;
            let directory = reader.open(&info)?;
            let mut blocks = Vec::with_capacity(segment.records as usize);
            for image in directory.images() {
                reader.footer(&directory, image, &mut entries)?;
                blocks.append(&mut entries);
            }
            all.insert(segment.id, (info, blocks));
        }
        Ok(all)
    }

    fn restore_run(
        &mut self,
        (time, number): RunKey,
        (elements, purged, parts): RunValue,
        segments: &BlocksOf,
    ) -> Result<()> {
        let (mut files, mut blocks) = (Vec::new(), Vec::new());
        for (id, first, count) in parts {
            let found = segments.get(&SegmentId(id)).and_then(|(info, all)| {
                let start = all.iter().position(|block| block.grain == first)?;
                Some((info, all.get(start..start + count as usize)?))
            });
            let Some((info, found)) = found else {
                let what = "the catalog names blocks of a run that are not there";
                return Err(Error::new(ErrorKind::Corrupt, what).with("file", id));
            };
            let file = files.len() as u32;
            blocks.extend(found.iter().map(|record| BlockAt { file, record: *record }));
            files.push(info.clone());
        }
        // As little as when it was written: what was accepted is opened in the same memory.
        files.shrink_to_fit();
        blocks.shrink_to_fit();
        let stored = StoredRun { files, blocks };
        let what = "the index of runs";
        self.account.reserve(MemoryKind::Tables, stored.memory_bytes() + RUN_BYTES, what)?;
        self.files.add(files_of(&stored.files));
        let keys = elements.min(stored.blocks.len() as u64);
        let run = ListRun::on_storage(number, (elements, keys), stored);
        self.elements += elements;
        let time = Time(time);
        if purged {
            self.graves.entry(time).or_default().push(run);
        } else {
            self.restored_bucket(time)?.runs.push(run);
        }
        Ok(())
    }

    fn restored_bucket(&mut self, time: Time) -> Result<&mut AppendBucket> {
        if !self.buckets.contains_key(&time) {
            let bucket = self.new_bucket((time, 0))?;
            self.add_bucket(bucket);
        }
        Ok(self.buckets.get_mut(&time).expect("inserted above"))
    }
}

/// The segments of runs with all their blocks.
type BlocksOf = HashMap<SegmentId, (SegmentInfo, Vec<FooterEntry>)>;

/// Per file of a run its id, the run's first block there, and how many blocks.
pub fn parts_of(run: &StoredRun) -> Vec<(u64, u32, u32)> {
    let mut parts: Vec<(u64, u32, u32)> = Vec::with_capacity(run.files.len());
    for block in &run.blocks {
        if parts.len() as u32 == block.file {
            parts.push((run.files[block.file as usize].id.0, block.record.grain, 0));
        }
        parts[block.file as usize].2 += 1;
    }
    parts
}
