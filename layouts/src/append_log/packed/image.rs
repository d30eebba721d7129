//! What a checkpoint has of packed slices: levels, which are named and not written again, and the directory.

use alluvium_pagestore::io::IoBuffer;
use alluvium_pagestore::{
    Error, ErrorKind, ImagePart, KIB, RUNS, Result, RunId, RunInfo, SegmentStore, StateImage, Time,
};

use super::{
    ORDER_BYTES, PackedSlice, PackedState, SliceDirectory, number_in, time_of, whole_bytes,
};
use crate::append_log::LAYOUT;
use crate::append_log::checkpoint::{RunKey, RunValue};
use crate::append_log::core::ListsCore;
use crate::runs::{RecordView, UnsyncedRun};

/// Bytes that are written at once of a file whose sync failed before.
const AGAIN_BYTES: usize = 16 << 10;
/// The mark of a page of the directory among the records of runs.
const PAGE: u32 = u32::MAX;

/// What was packed at a barrier.
#[derive(Debug)]
pub struct PackedAtBarrier {
    levels: Vec<Vec<RunInfo>>,
    unsynced: Vec<UnsyncedRun>,
    directory: SliceDirectory,
    /// The slices from this one on are not told yet. None: all are.
    untold: Option<Time>,
}

impl PackedAtBarrier {
    /// A level that has something of the checkpoint was written after the barrier.
    pub(super) fn add_level(
        &mut self,
        packed: &mut PackedState,
        level: Vec<RunInfo>,
        unsynced: Vec<UnsyncedRun>,
    ) {
        if !level.is_empty() {
            packed.named.name(&packed.store, runs_of(std::slice::from_ref(&level)));
            self.unsynced.extend(unsynced);
            self.levels.insert(0, level);
        }
    }

    /// What a bucket had in memory at the barrier is packed. Says how many bytes that takes.
    pub fn add(&mut self, time: Time, slice: PackedSlice) -> u64 {
        let before = self.directory.memory_bytes();
        self.directory.add(time, slice);
        self.directory.memory_bytes().saturating_sub(before)
    }

    /// Files that the device may not keep yet.
    pub fn unsynced(&self) -> &[UnsyncedRun] {
        &self.unsynced
    }

    /// The device keeps these files now.
    pub fn are_synced(&mut self, files: &[RunId]) {
        self.unsynced.retain(|file| !files.contains(&file.id()));
    }

    /// Records of the catalog that tell the directory.
    pub fn pages(&self) -> usize {
        self.directory.told_count()
    }

    /// The next slices of the directory, as a record of the catalog.
    pub fn next_page(&mut self) -> Option<(RunKey, RunValue)> {
        let (times, coded) = self.directory.tell(self.untold?)?;
        let (first, last) = times.into_inner();
        self.untold = last.0.checked_add(1).map(Time);
        let word = |bytes: &[u8]| {
            let mut word = [0; 16];
            word[..bytes.len()].copy_from_slice(bytes);
            let part = |at| u32::from_le_bytes(word[at..at + 4].try_into().expect("four bytes"));
            let start = u64::from_le_bytes(word[..8].try_into().expect("eight bytes"));
            (start, part(8), part(12))
        };
        let head = (coded.len() as u64, PAGE, PAGE);
        let parts = std::iter::once(head).chain(coded.chunks(16).map(word)).collect();
        Some(((first.0, 0), (0, false, parts)))
    }

    /// The part of the image. None, if nothing is packed.
    pub fn part(&mut self) -> Option<ImagePart> {
        let levels = std::mem::take(&mut self.levels);
        let elements = self.directory.elements();
        (!self.directory.is_empty()).then(|| ImagePart::of_runs(levels, elements))
    }
}

/// The page of a directory that a record of a catalog is, if it is one.
pub fn page_of((first, _): RunKey, (_, _, parts): &RunValue) -> Option<(Time, Vec<u8>)> {
    let ((length, PAGE, PAGE), words) = parts.split_first()? else { return None };
    let mut coded = Vec::with_capacity(words.len() * 16);
    for (start, middle, end) in words {
        coded.extend_from_slice(&start.to_le_bytes());
        coded.extend_from_slice(&middle.to_le_bytes());
        coded.extend_from_slice(&end.to_le_bytes());
    }
    coded.truncate(usize::try_from(*length).unwrap_or(usize::MAX));
    Some((Time(first), coded))
}

/// The slices of such a page, for readers that have no store: of each its elements, and the first run that counts.
///
/// # Errors
/// [`ErrorKind::Corrupt`] if the page is none of a directory.
pub fn slices_of_page(key: RunKey, value: &RunValue) -> Result<Option<Vec<(Time, u64, u64)>>> {
    let Some((first, coded)) = page_of(key, value) else { return Ok(None) };
    let mut directory = SliceDirectory::default();
    directory.put_told(first, &coded)?;
    let slices = directory.within(Time::MIN..=Time::MAX);
    Ok(Some(slices.map(|(time, slice)| (time, slice.elements, slice.since)).collect()))
}

/// The slice and the number of the run that a packed record is of; none if its order is another one.
pub fn slice_and_run_of(record: &RecordView<'_>) -> Option<(Time, u64)> {
    (record.order.len() == ORDER_BYTES).then(|| (time_of(record.hash), number_in(record.order)))
}

/// Has the device keep files of runs. For a helper: waits for the device.
///
/// # Errors
/// Those of the device. It can be tried again.
pub fn sync_all(store: &SegmentStore, files: &[UnsyncedRun]) -> Result<Vec<RunId>> {
    let mut chunk = IoBuffer::zeroed(AGAIN_BYTES);
    for file in files {
        file.sync(store.device(), &mut chunk)?;
    }
    Ok(files.iter().map(UnsyncedRun::id).collect())
}

fn runs_of(levels: &[Vec<RunInfo>]) -> impl Iterator<Item = RunId> + '_ {
    levels.iter().flatten().map(|run| run.id)
}

impl PackedState {
    /// What a checkpoint has of it. Its files stay from now on.
    pub fn at_barrier(&mut self) -> PackedAtBarrier {
        let levels = self.levels.infos();
        self.named.name(&self.store, runs_of(&levels));
        PackedAtBarrier {
            levels,
            unsynced: self.levels.unsynced(),
            directory: self.directory.clone(),
            untold: Some(Time::MIN),
        }
    }

    /// The device keeps these files now.
    pub fn are_synced(&mut self, files: &[RunId]) {
        self.levels.are_synced(files);
    }

    /// What became of a checkpoint.
    pub fn decide(&mut self, outcome: crate::contract::table::CheckpointOutcome) {
        self.named.decide(&self.store, outcome);
    }

    fn restore(&mut self, part: &ImagePart) -> Result<()> {
        for level in part.levels.iter().rev() {
            if let Some(other) = level.iter().find(|run| run.order_bytes as usize != ORDER_BYTES) {
                let what = "a run of packed slices has another order of records";
                let error = Error::new(ErrorKind::Corrupt, what);
                return Err(error.with("file", other.id.file_name()));
            }
            self.has_chunks_of(level);
            self.levels.add(level)?;
        }
        self.levels.go_on_in_parts();
        let (least, most) = self.part_bytes;
        if most > least {
            // They may have longer records than are written now.
            let chunk = self.longest_chunk.max(self.runs.payload_bytes_max as u64 + KIB);
            let chunk = chunk.next_multiple_of(4 * KIB);
            let record = (chunk, self.decoded_bytes_of(chunk));
            let whole = whole_bytes(self.account.limit(), least, record);
            self.directory = SliceDirectory::loaded_up_to(whole);
        }
        // Merges have to write what is there, whatever the sizes were.
        let longest = self.longest_chunk as usize;
        self.runs.payload_bytes_max = self.runs.payload_bytes_max.max(longest);
        self.named.restored(&self.store, part);
        Ok(())
    }
}

impl ListsCore {
    /// The part of an image that has segments of runs and the catalog. Takes the levels over that another part has.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] for parts of another layout; those of opening runs.
    pub(in crate::append_log) fn restore_levels<'i>(
        &mut self,
        image: &'i StateImage,
    ) -> Result<Option<&'i ImagePart>> {
        let mut own = None;
        for part in &image.parts {
            match (&*part.layout, &mut self.packed) {
                (LAYOUT, _) if own.is_none() => own = Some(part),
                (RUNS, Some(packed)) => packed.restore(part)?,
                _ => return image.only_part(LAYOUT),
            }
        }
        Ok(own)
    }

    /// Takes a page of the directory over.
    pub(in crate::append_log) fn restore_page(&mut self, first: Time, coded: &[u8]) -> Result<()> {
        let Some(packed) = &mut self.packed else {
            let what = "the catalog names packed slices without their runs";
            return Err(Error::new(ErrorKind::Corrupt, what));
        };
        let before = packed.directory.elements();
        packed.directory.put_told(first, coded)?;
        // A page that has become longer may take less.
        let bytes = packed.directory.memory_bytes().saturating_sub(packed.directory_memory.bytes());
        packed.directory_memory.reserve_more(bytes, "the directory of packed slices")?;
        self.elements += packed.directory.elements() - before;
        Ok(())
    }
}
