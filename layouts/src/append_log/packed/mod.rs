//! Packed slices: small buckets whose lists are on storage, in runs that many of them share. In memory there is a line of
//! a [directory](slices) for each, and nothing else.
//!
//! Memory that gets short freezes buckets. One that is small, of which nothing is noted and that has no run of its own, is
//! packed: its lists become records of a level of [sorted runs](crate::runs), in the order of slice, place of the key, and
//! rank, and the bucket goes. Levels are merged in steps. What is read is [loaded](loading): a run of the bucket, for as
//! long as a fold goes on. What is to be cleared or moved is [unpacked](unpacking) before.
//!
//! What it keeps true:
//! - A record counts if the directory has its slice and it is not of an older run than the slice. So purging reads nothing.
//! - What a bucket has packed is older than its own runs and than what it has in memory. Of its keys nothing is noted.
//! - What is packed of slices that are read together has room in an eighth of the memory.

mod ahead;
mod beginning;
mod clearing;
mod image;
#[cfg(test)]
mod large_tests;
mod leaving;
mod loading;
mod merging;
mod moving;
mod packing;
mod paged;
mod room;
mod slice_codes;
mod slices;
#[cfg(test)]
mod tests;
mod unpacking;

use std::collections::{BTreeSet, VecDeque};
use std::ops::{Bound, Range};
use std::rc::Rc;
use std::time::Duration;

use alluvium_pagestore::{Account, KIB, MIB, MemoryKind, RunInfo, SegmentStore, Time, fingerprint};

use super::block::ListType;
use super::bucket::{AppendBucket, BUCKET_BYTES};
use super::config::ListSizes;
use super::frozen::LIVE;
use super::jobs::RunName;
use super::run::{ListRun, RUN_BYTES};
use crate::checkpoint::PinnedRuns;
use crate::contract::table::{StateContext, TableStats};
use crate::runs::{Levels, MERGED_MAX, MergeSizes, RunSizes};
use crate::support::booked::Booked;

use ahead::SlicesAhead;
use loading::LoadingFolds;
use room::{LoadingMemory, PageSums};

pub use image::{PackedAtBarrier, page_of, slice_and_run_of, slices_of_page, sync_all};
pub use packing::{PackOrder, PackedRuns};
pub use paged::{PagedPart, PagedSlice, PartEnd, PartStart, is_paged};
pub(super) use room::{PackedRoom, SlidingMax};
pub use slices::{PackedSlice, SliceDirectory};

/// The number of the run that a bucket has while what it has packed is loaded.
pub const PACKED: u64 = LIVE - 1;
/// Less memory has no room for packing.
pub const PACKED_MEMORY_MIN: u64 = MIB;
/// Bytes of a bucket in memory beside what it has packed, while that is loaded.
const LOADED_BYTES: u64 = BUCKET_BYTES + RUN_BYTES + 256;
/// What slices that are read together have packed takes one part in so many of the memory at most.
const LOADED_SHARE: u64 = 8;
/// Small buckets are packed once buckets with runs of their own would take more than one part in so many of the memory.
const BUCKETS_SHARE: u64 = 64;
/// A slice of which more than one part in so many of the memory is packed is read part by part.
const SLICE_SHARE: u64 = 64;
/// It is read one part in so many of the memory at a time, at least.
const PAGED_SHARE: u64 = 128;
const PAGED_BYTES_MIN: u64 = 8 * KIB;
/// A slice of which more than one part in so many of the memory is packed already gets runs of its own from then on.
const SLICE_MOST_SHARE: u64 = 8;
/// Hashes, which are slices here, of a partition: what is read before a slice is a part of it.
const PARTITION_SLICES: usize = 256;
/// Most buckets that are packed together: the fewer batches there are, the less merges write again.
const PACKED_RUNS_MAX: usize = 1024;
/// Bytes of records that a step of a merge looks at.
const STEP_BYTES: u64 = 64 << 10;
/// Most bytes that merges read at once from a level, and that are written at once.
const MERGED_BYTES_MAX: u64 = 64 << 10;
/// Bytes of records that one part of a merge looks at: newer levels are merged after it, if they are many.
const PART_BYTES: u64 = 8 << 20;
/// With more levels than these the appends after a batch do so many steps of merges, one each.
const LEVELS_MAX: usize = 12;
const STEPS_MAX: usize = 16;
/// Steps that appends may owe before a batch does some.
const OWED_MAX: usize = 4 * STEPS_MAX;
/// Batches that are not packed after one that could not be.
const REST: u32 = 16;

/// A batch that is being packed.
#[derive(Debug)]
struct PackingBatch {
    coming: LoadingMemory,
    /// What lists of its runs take, here and on the helper.
    _memory: Booked,
}

/// Bytes of a run in the lists of a batch that is being packed.
const GOING_BYTES: u64 = 160;

/// What is packed of a state, if it can be.
#[derive(Debug)]
pub struct PackedState {
    account: Rc<Account>,
    store: SegmentStore,
    state: u64,
    pub(super) directory: SliceDirectory,
    directory_memory: Booked,
    sums: PageSums,
    are_sums_old: bool,
    levels: Levels,
    pub(super) named: PinnedRuns,
    runs: RunSizes,
    /// Read at once from each level: by whoever reads slices, and by merges.
    read_bytes: usize,
    merged_bytes: usize,
    /// A bucket is small up to so many bytes in memory.
    small_bytes: u64,
    /// A slice that is read part by part is read so many bytes at a time, at least and at most.
    part_bytes: (u64, u64),
    /// Larger buckets are packed as well, as there are many.
    packs_large: bool,
    /// What a batch takes that is written, once one was.
    writer_memory: Booked,
    /// Saved up for merges, and lent to who reads.
    purse: Booked,
    /// What the copy of the directory takes that a merge on the helper's thread has.
    judging: Booked,
    patience: Duration,
    /// A merge that has begun does not go on.
    #[cfg(test)]
    are_merges_held: bool,
    is_lent: bool,
    /// Steps of merges that the next appends are to do.
    owed_steps: usize,
    /// Whether small buckets are packed and levels merged: there is [memory for it](beginning).
    writes: bool,
    /// Whether there was no memory to begin the last time.
    lacks_memory: bool,
    /// Whether that memory may be of no use any more.
    may_end: bool,
    /// What was free when it was looked at last whether it is.
    tried_to_end: u64,
    /// Batches that are yet not to be packed, and steps of merges not to be done.
    rest: u32,
    /// Slices that are loaded.
    loaded: BTreeSet<Time>,
    /// What the fold that was begun last has yet to load.
    loading: LoadingFolds,
    ahead: SlicesAhead,
    /// Runs that are in levels, where they do not count: they are in memory still, and are not packed again.
    refused: BTreeSet<RunName>,
    /// What is being packed, in the order of its batches.
    going: VecDeque<PackingBatch>,
    /// Bytes of the longest chunk of any level.
    longest_chunk: u64,
    list_type: &'static ListType,
    /// A record has no more bytes in memory, if its key or elements own heap.
    cut_bytes: usize,
    /// What slices that are read together take once they are loaded, at most.
    loaded_most: u64,
}

/// Larger slices are read part by part: they take no more than this while they are, with records that take so much at most
/// as they are and decoded.
fn whole_bytes(memory: u64, part_bytes: u64, (record, decoded): (u64, u64)) -> u64 {
    (memory / SLICE_SHARE).max(part_bytes + record + decoded + paged::KNOWN_BYTES)
}

/// The hash that a slice has in runs.
fn hash_of(time: Time) -> u64 {
    time.0 as u64 ^ 1 << 63
}

/// The slice of a hash.
fn time_of(hash: u64) -> Time {
    Time((hash ^ 1 << 63) as i64)
}

/// Bytes of an [`order_of`].
const ORDER_BYTES: usize = 28;

/// What stands after the slice in the order of a record: the place of its key, its rank, the number of the run that it was
/// frozen as, and its number among that run's records.
fn order_of(place: u64, rank: i64, number: u64, nth: u32) -> [u8; ORDER_BYTES] {
    let mut order = [0; ORDER_BYTES];
    order[..8].copy_from_slice(&place.to_be_bytes());
    order[8..16].copy_from_slice(&(rank as u64 ^ 1 << 63).to_be_bytes());
    order[16..24].copy_from_slice(&number.to_be_bytes());
    order[24..].copy_from_slice(&nth.to_be_bytes());
    order
}

/// The place of a record's key.
fn place_in(order: &[u8]) -> u64 {
    u64::from_be_bytes(order[..8].try_into().expect("eight bytes"))
}

/// The number of the run that a record was frozen as.
fn number_in(order: &[u8]) -> u64 {
    u64::from_be_bytes(order[16..24].try_into().expect("eight bytes"))
}

impl PackedState {
    /// What is packed of a state: nothing yet. None: the state has too little memory, and was not restored from a
    /// checkpoint that has something packed.
    pub fn new(
        (context, store): (&StateContext, &SegmentStore),
        list_type: &'static ListType,
        sizes: &ListSizes,
        is_restored: bool,
    ) -> Option<Self> {
        let (account, memory) = (context.account.clone(), context.account.limit());
        if memory < PACKED_MEMORY_MIN && !is_restored && !sizes.packs_from_the_start {
            return None;
        }
        let state = fingerprint(&context.name);
        let none = |kind| Booked::none(account.clone(), kind);
        let merged_part_bytes = if sizes.packs_all { PART_BYTES / 512 } else { PART_BYTES };
        let part_bytes = (memory / PAGED_SHARE).max(PAGED_BYTES_MIN);
        let payload_bytes_max = 2 * sizes.block_bytes + 1024;
        let chunk_bytes = (payload_bytes_max as u64 + KIB).next_multiple_of(4 * KIB);
        let (whole_bytes, part_bytes, part_most) = match sizes.reads_in_parts {
            true => (192, 192, 192),
            false => {
                let decoded = list_type.record_decoded_bytes_max(chunk_bytes, sizes.block_bytes);
                let whole = whole_bytes(memory, part_bytes, (chunk_bytes, decoded));
                (whole, part_bytes, u64::MAX)
            }
        };
        let levels = Levels::new(store.clone(), account.clone(), state);
        let levels = levels.merged_in_parts_of(merged_part_bytes);
        Some(Self {
            state,
            directory: SliceDirectory::loaded_up_to(whole_bytes),
            part_bytes: (part_bytes, part_most),
            directory_memory: none(MemoryKind::Tables),
            sums: PageSums::default(),
            are_sums_old: false,
            levels: levels.keeping_free(u64::MAX).synced_by_owner().helped_by(&context.helper),
            named: PinnedRuns::default(),
            runs: RunSizes {
                partition_hashes: PARTITION_SLICES,
                write_bytes: (memory / 256).clamp(16 * KIB, MERGED_BYTES_MAX) as usize,
                file_bytes: 8 * MIB,
                payload_bytes_max,
                order_bytes: ORDER_BYTES,
                key_groups: 1,
                groups_each: 1,
                syncs: false,
                is_wide: false,
            },
            read_bytes: (memory / 256).clamp(4 * KIB, 16 * KIB) as usize,
            merged_bytes: (memory / 256).clamp(4 * KIB, MERGED_BYTES_MAX) as usize,
            small_bytes: (memory / 64).clamp(8 * KIB, 64 * KIB),
            packs_large: false,
            writer_memory: none(MemoryKind::Buffers),
            purse: none(MemoryKind::Buffers),
            judging: none(MemoryKind::Tables),
            patience: sizes.patience,
            #[cfg(test)]
            are_merges_held: false,
            is_lent: false,
            owed_steps: 0,
            writes: false,
            lacks_memory: false,
            may_end: false,
            tried_to_end: 0,
            rest: 0,
            loaded: BTreeSet::new(),
            loading: LoadingFolds::default(),
            ahead: SlicesAhead::default(),
            refused: BTreeSet::new(),
            going: VecDeque::new(),
            longest_chunk: 4 * KIB,
            list_type,
            cut_bytes: sizes.block_bytes,
            loaded_most: memory / LOADED_SHARE,
            store: store.clone(),
            account,
        })
    }

    /// What a bucket of so many bytes in memory takes once it is packed and loaded, at most.
    fn loaded_most(&self, bytes: u64) -> u64 {
        LOADED_BYTES + self.directory.loaded(2 * bytes)
    }

    /// Whether a slice has something packed.
    pub fn has(&self, time: Time) -> bool {
        self.directory.get(time).is_some()
    }

    /// The first packed slice at or after a time.
    pub fn next(&self, from: Time) -> Option<Time> {
        self.directory.next(from)
    }

    /// The packed slices of some times.
    pub fn within(&self, times: (Bound<Time>, Bound<Time>)) -> impl Iterator<Item = Time> + '_ {
        let from = match times.0 {
            Bound::Included(from) => Some(from),
            Bound::Excluded(before) => before.0.checked_add(1).map(Time),
            Bound::Unbounded => Some(Time::MIN),
        };
        let to = match times.1 {
            Bound::Included(to) => Some(to),
            Bound::Excluded(end) => end.0.checked_sub(1).map(Time),
            Bound::Unbounded => Some(Time::MAX),
        };
        let times = from.zip(to).into_iter();
        times.flat_map(|(from, to)| self.directory.within(from..=to)).map(|(time, _)| time)
    }

    /// Adds what is packed to a table's statistics. Each record is a list or a part of one. How many of them count
    /// nobody knows without reading them: as many as there are elements, at most.
    pub fn describe(&self, stats: &mut TableStats) {
        let levels = self.levels.stats();
        let live = levels.records.min(self.directory.elements());
        let bytes = u128::from(levels.bytes) * u128::from(live) / u128::from(levels.records.max(1));
        stats.live_keys += live;
        stats.live_bytes += bytes as u64;
        stats.live_disk_bytes += bytes as u64;
        stats.disk_bytes += levels.bytes;
        stats.flushed_bytes += levels.merged_bytes;
    }

    /// Bytes that what is loaded of slices that are read together takes at most, and loading them. Nothing, if nothing is
    /// packed.
    pub fn reading_bytes(&self) -> (u64, u64) {
        match self.directory.is_empty() && !self.writes {
            true => (0, 0),
            false => (self.loaded_most, self.scan_bytes_most()),
        }
    }

    /// A fold of these buckets is done.
    pub fn has_folded(&mut self, buckets: &Range<Time>) {
        self.loading.forget(buckets);
    }

    /// Forgets the slices that were read ahead.
    pub fn forget_ahead(&mut self) {
        self.ahead.give_up();
    }

    /// Bytes that a checkpoint keeps of it.
    pub fn naming_bytes(&self) -> u64 {
        let unsynced = self.levels.unsynced_count() * 64;
        self.directory.memory_bytes() + self.levels.info_bytes() + unsynced as u64
    }

    /// The directory has changed.
    fn book_directory(&mut self) {
        self.directory_memory.adjust_to(self.directory.memory_bytes());
        self.are_sums_old = true;
        self.may_end |= self.directory.is_empty();
    }

    /// What is kept was counted again, or a call has time: it may be that nothing has to be kept for packing.
    pub fn has_counted(&mut self) {
        let changed = self.account.available().abs_diff(self.tried_to_end);
        let is_worth_it = changed > self.account.limit() / 64;
        self.may_end |= self.writes && self.directory.is_empty() && is_worth_it;
    }

    /// Whether there is nothing of it, on storage neither, and nothing goes on.
    pub fn is_gone(&self) -> bool {
        let has_levels = !self.levels.is_empty() || self.levels.is_merging();
        self.directory.is_empty()
            && self.going.is_empty()
            && self.loaded.is_empty()
            && !has_levels
            && self.levels.leaving_bytes() == 0
            && self.named.is_empty()
    }

    /// Whether small buckets are packed.
    pub fn is_on(&self) -> bool {
        self.writes
    }

    /// Sums what slices take, if that has changed.
    pub fn sum(&mut self) {
        if std::mem::take(&mut self.are_sums_old) {
            self.sums.count(&self.directory);
        }
    }

    /// Packed slices, and pages of them, that were looked at to find out whether more has room beside them.
    pub fn looked_at(&self) -> u64 {
        self.sums.looked_at()
    }

    /// What a merge takes.
    fn merge_bytes(&self) -> u64 {
        let copy = if self.levels.is_helped() { self.directory.memory_bytes() } else { 0 };
        self.runs.memory_bytes()
            + self.levels_bytes(self.merged_bytes)
            + 2 * self.longest_chunk
            + copy
    }

    /// What reading all levels side by side takes, as a rule.
    fn scan_bytes_most(&self) -> u64 {
        self.levels_bytes(self.read_bytes)
    }

    /// What reading all levels side by side takes, so many bytes at once.
    fn levels_bytes(&self, read_bytes: usize) -> u64 {
        let group = MergeSizes::group_bytes_each() + RunSizes::directory_bytes_max();
        let read = (read_bytes as u64).max(self.longest_chunk) + (2 << 10);
        self.levels.len().max(MERGED_MAX) as u64 * (read + self.longest_chunk + group)
    }

    /// What a record takes at most once it is decoded.
    fn decoded_bytes(&self) -> u64 {
        self.decoded_bytes_of(self.longest_chunk)
    }

    fn decoded_bytes_of(&self, record_bytes: u64) -> u64 {
        self.list_type.record_decoded_bytes_max(record_bytes, self.cut_bytes)
    }

    /// Levels have these runs.
    fn has_chunks_of(&mut self, runs: &[RunInfo]) {
        let longest = runs.iter().map(|run| u64::from(run.longest_chunk)).max();
        self.longest_chunk = self.longest_chunk.max(longest.unwrap_or(0));
    }

    /// Drops the slices before a time; says how many elements they had.
    pub fn purge(&mut self, before: Time) -> u64 {
        let count = self.directory.len();
        let gone = self.directory.remove_before(before);
        self.ahead.purge(before);
        if self.directory.len() < count {
            self.book_directory();
        }
        self.refused = self.refused.split_off(&(before, 0));
        if self.directory.is_empty() && !self.levels.is_empty() {
            // Files that cannot be removed are left over until the next open.
            let _ = self.levels.clear();
        }
        self.levels.remove_below(hash_of(before));
        gone
    }

    /// Removes the files of runs that are of no use.
    fn remove_runs(&self, runs: &[RunInfo]) {
        for run in runs {
            let _ = self.store.remove_file(&run.id.file_name());
        }
    }
}

/// Whether nothing is noted of a bucket's keys.
pub(super) fn is_plain(bucket: &AppendBucket) -> bool {
    bucket.notes() == 0
        && bucket.gaps.is_empty()
        && bucket.sources.is_empty()
        && !bucket.has_snapshot()
}

/// Whether a run is what is loaded of a bucket.
fn is_loaded(run: &ListRun) -> bool {
    run.number == PACKED
}
