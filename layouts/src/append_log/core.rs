//! Lists kept in an append log, but for the types of keys and elements: all that is compiled once.
//!
//! What it keeps true: every byte of ours is booked before it is used; a call that fails has
//! changed nothing that can be seen; the order of a list is that of arrival, wherever its parts are.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;
use std::time::{Duration, Instant};

use alluvium_pagestore::{
    Account, BlobWriter, MemoryKind, Result, SegmentWriter, StateImage, Time, fingerprint,
};

use super::arena_unsafe::{ArenaKind, LINE_BYTES, PIECE_BYTES_MAX, SharedPool};
use super::block::{ListElements, ListType};
use super::bucket::{AppendBucket, FIRST_BYTES};
use super::checkpoint::FILE_BYTES;
use super::config::{AppendLog, ListSizes};
use super::fold::{PausedFold, VisitElements};
use super::jobs::ListJobs;
use super::key_unsafe::KeyRef;
use super::list_checkpoint::ListCheckpoint;
use super::packed::PackedState;
use super::run::ListRun;
use super::run_cursor::{CursorSource, RunCursor};
use super::runs_memory::ListRunsMemory;
use crate::checkpoint::{FilesByName, at_once};
use crate::contract::table::{CheckpointOutcome, Cursor, StateContext, TableStats};
use crate::contract::upkeep::Upkeep;
use crate::heap::hash_range::HashRange;
use crate::hybrid_log::PiecePool;
use crate::support::out_of_line_unsafe::DroppedHere;
use crate::support::oversize::Oversize;
use crate::support::patient_reads::PatientReads;
use crate::support::run_storage::RunStorage;

/// An open [`AppendLog`], whose keys and elements are erased.
pub struct ListsCore {
    /// The types of its lists.
    pub(super) list_type: &'static ListType,
    pub(super) context: StateContext,
    pub(super) sizes: ListSizes,
    pub(super) account: Rc<Account>,
    pub(super) range: HashRange,
    /// What the tables of buckets are for: the range, and of how many key groups their lists may be few, if
    /// key groups come and go.
    pub(super) tables: (HashRange, Option<u16>),
    /// What the arenas of buckets are for, and where their memory comes from.
    pub(super) pieces: ArenaKind,
    /// Each in a box of its own: a node of the tree has room for eleven, whatever it has.
    pub(super) buckets: BTreeMap<Time, Box<AppendBucket>>,
    /// Runs of buckets that were purged, which others import from.
    pub(super) graves: BTreeMap<Time, Vec<ListRun>>,
    /// Number of the newest run.
    pub(super) epoch: u64,
    /// Elements, those of runs that were cleared or not.
    pub(super) elements: u64,
    pub(super) jobs: ListJobs,
    /// Where runs are read; `None` without storage.
    pub(super) source: Option<CursorSource>,
    /// How the owner reads them.
    pub(super) reads: Option<PatientReads>,
    pub(super) files: FilesByName,
    pub(super) resume: Option<PausedFold>,
    pub(super) stats: TableStats,
    /// Whether runs are being merged.
    pub(super) merging: bool,
    /// Buckets that may have too many runs.
    pub(super) crowded: BTreeSet<Time>,
    /// Writes that the helper has not answered.
    pub(super) writing: usize,
    /// Bytes that the helper is dropping.
    pub(super) reaping: u64,
    /// Why runs could not be written, the last time it was tried.
    pub(super) failed: Option<alluvium_pagestore::Error>,
    /// The checkpoint being taken, or not decided yet.
    pub(super) checkpoint: Option<Box<ListCheckpoint>>,
    pub(super) oversize: Oversize,
    /// Buckets less than this apart are read together.
    pub(super) span: i128,
    /// What appends leave, as long as the runs are what they were.
    pub(super) kept: Option<ListRunsMemory>,
    /// Runs are merged that else would not be.
    pub(super) is_tight: bool,
    /// Whether runs may be in memory that are on storage too.
    pub(super) may_be_clean: bool,
    /// What lists in memory took when all that could be written had to wait for merges of levels.
    pub(super) left_bytes: u64,
    #[cfg(test)]
    pub(super) looked_for_unwritten: u64,
    /// Small buckets that share runs.
    pub(super) packed: Option<Box<PackedState>>,
}

impl std::fmt::Debug for ListsCore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AppendLogLists({}: {} elements)", self.context.name, self.elements)
    }
}

impl ListsCore {
    /// Opens lists of these types.
    ///
    /// # Errors
    /// If there is too little memory; those of restoring.
    pub fn open(
        layout: &AppendLog,
        list_type: &'static ListType,
        mut context: StateContext,
    ) -> Result<DroppedHere<Self>> {
        let longest = context.longest_record();
        let restored = context.restored.take();
        let account = context.account.clone();
        let plain = list_type.is_plain;
        let (memory, stored) = (account.available_to_open(), context.segments.is_some());
        let is_there = restored.is_some();
        let sizes_for = |max_value| layout.sizes(memory, (plain, stored, is_there), max_value);
        let mut sizes = sizes_for(context.max_value_bytes)?;
        // What is there already may be larger than what may come.
        let element = longest.saturating_sub(sizes.block_bytes as u64);
        let most = Oversize::most_of(context.max_value_bytes, element);
        if most > context.max_value_bytes {
            sizes = sizes_for(most)?;
        }
        let state = fingerprint(&context.name);
        let range = HashRange::of(&context.owned, context.key_groups);
        let mut storage = None;
        if context.segments.is_none() {
            // With storage it is a part of what the writer has beside its buffers.
            account.reserve(MemoryKind::Tables, FIRST_BYTES, "the tree of buckets")?;
        }
        if let Some(store) = &context.segments {
            account.reserve(MemoryKind::Buffers, sizes.writer_bytes, "the writer of runs")?;
            let (chunk, segment) = (sizes.chunk_bytes, sizes.segment_bytes);
            let writer = SegmentWriter::new(store.clone(), state, chunk, segment);
            storage = Some(RunStorage::new(store.clone(), writer));
        }
        let (store, cut_bytes) = (context.segments.clone(), sizes.block_bytes);
        let pieces = ArenaKind {
            elements: list_type.elements,
            piece_bytes_max: sizes.piece_bytes,
            pool: pool_of(&context, sizes.piece_bytes),
        };
        let reads =
            store.as_ref().map(|store| PatientReads::new(store, sizes.patience, account.clone()));
        let has_packed = restored.as_ref().is_some_and(|(image, _)| image.runs().next().is_some());
        let packed = reads.as_ref().and_then(|reads| {
            PackedState::new((&context, reads.store()), list_type, &sizes, has_packed).map(Box::new)
        });
        let mut lists = ListsCore {
            list_type,
            range,
            tables: (range, context.movable.then_some(context.key_groups)),
            account,
            sizes,
            pieces,
            buckets: BTreeMap::new(),
            graves: BTreeMap::new(),
            epoch: 0,
            elements: 0,
            jobs: ListJobs::new(context.helper.clone(), storage),
            source: store.map(|store| CursorSource { store, state, range, list_type, cut_bytes }),
            reads,
            files: FilesByName::booked(context.account.clone(), FILE_BYTES),
            resume: None,
            stats: TableStats::default(),
            merging: false,
            crowded: BTreeSet::new(),
            writing: 0,
            reaping: 0,
            failed: None,
            checkpoint: None,
            oversize: Oversize::new(&context.name, context.max_value_bytes),
            span: 1,
            kept: None,
            is_tight: false,
            may_be_clean: false,
            left_bytes: 0,
            #[cfg(test)]
            looked_for_unwritten: 0,
            packed,
            context,
        };
        if let Some((image, _)) = restored {
            lists.restore(&image)?;
        }
        if lists.sizes.packs_from_the_start {
            lists.pack_from_the_start();
        }
        if lists.source.is_some() {
            lists.kept_now();
        }
        Ok(DroppedHere::new(lists))
    }

    /// A bucket without lists. Books it.
    ///
    /// # Errors
    /// If there is no memory.
    pub(super) fn new_bucket(&self, name: (Time, u64)) -> Result<AppendBucket> {
        AppendBucket::new(self.list_type, name, self.tables, self.pieces.clone(), &self.account)
    }

    /// Adds a bucket that was not there.
    pub(super) fn add_bucket(&mut self, mut bucket: AppendBucket) {
        let before = self.buckets.range(..bucket.time).next_back();
        bucket.loaded_before = before.map_or(0, |(_, before)| before.loaded_before + before.loaded);
        self.buckets.insert(bucket.time, Box::new(bucket));
    }

    /// The runs of a bucket, and those of one of the same time that was purged.
    pub(super) fn runs_of(&self, time: Time) -> impl Iterator<Item = &ListRun> {
        let own = self.buckets.get(&time).into_iter().flat_map(|bucket| &bucket.runs);
        own.chain(self.graves.get(&time).into_iter().flatten())
    }

    /// A run.
    pub(super) fn run(&self, time: Time, number: u64) -> Option<&ListRun> {
        self.runs_of(time).find(|run| run.number == number)
    }

    /// A run, to be changed.
    pub(super) fn run_mut(&mut self, time: Time, number: u64) -> Option<&mut ListRun> {
        let own = self.buckets.get_mut(&time).into_iter().flat_map(|bucket| &mut bucket.runs);
        let mut all = own.chain(self.graves.get_mut(&time).into_iter().flatten());
        all.find(|run| run.number == number)
    }

    /// Adds what cursors have read to the statistics.
    pub(super) fn count_reads(&mut self, cursors: &mut [RunCursor]) {
        for cursor in cursors {
            let (blocks, bytes) = cursor.take_counts();
            self.stats.codec_calls += blocks;
            self.stats.cold_reads += u64::from(bytes > 0) * blocks;
        }
    }

    /// Books what reads that were left keep, now that the cursors are gone that had booked it.
    pub(super) fn book_left(&self) {
        if let Some(reads) = &self.reads {
            reads.book(reads.left_bytes());
        }
    }

    /// Drops a bucket in which there is nothing.
    pub(super) fn drop_if_vacant(&mut self, time: Time) {
        if self.buckets.get(&time).is_some_and(|bucket| bucket.is_vacant()) {
            let bucket = self.buckets.remove(&time).expect("looked up above");
            self.drop_bucket(*bucket, &BTreeSet::new());
            if self.buckets.is_empty() {
                // It keeps a node otherwise.
                self.buckets = BTreeMap::new();
            }
        }
    }

    /// [`fold`](crate::Lists::fold)s lists whose elements are erased.
    ///
    /// # Errors
    /// Those of `visit` and of reading.
    pub fn fold(
        &mut self,
        buckets: Range<Time>,
        cursor: &mut Cursor,
        fuel: usize,
        visit: VisitElements<'_>,
    ) -> Result<()> {
        let folded = self.fold_buckets(buckets, cursor, fuel, visit);
        self.book_left();
        if self.resume.is_none() && !(folded.is_ok() && self.is_loading()) {
            self.unload_all();
        }
        folded
    }

    /// [`stream`](crate::Lists::stream)s a list whose elements are erased.
    ///
    /// # Errors
    /// Those of `visit` and of reading.
    pub fn stream(
        &mut self,
        bucket: Time,
        key: KeyRef<'_>,
        visit: &mut dyn FnMut(ListElements<'_, '_>) -> Result<()>,
    ) -> Result<()> {
        self.leave_fold();
        let read = self.read_key(bucket, key, visit);
        self.book_left();
        self.unload_all();
        read
    }

    /// Elements, those of runs that were cleared or not.
    pub fn len(&self) -> u64 {
        self.elements
    }

    /// Whether there are no lists.
    pub fn is_vacant(&self) -> bool {
        self.elements == 0 && self.graves.is_empty() && self.next_bucket(Time::MIN).is_none()
    }

    /// Whether there are no lists, no files either, and nothing goes on.
    pub fn is_idle(&self) -> bool {
        let has_work = self.jobs.pending() > 0 || self.reaping > 0 || self.checkpoint.is_some();
        self.is_vacant()
            && !has_work
            && self.files.is_empty()
            && self.packed.as_ref().is_none_or(|packed| packed.is_gone())
    }

    /// A checkpoint is begun that has nothing of the lists, as there are none.
    pub fn leave_out(&mut self) {
        if self.checkpoint.is_some() {
            // Nobody has said what became of the last one, so that it may be either.
            self.decide_checkpoint(CheckpointOutcome::Unknown);
        }
    }

    /// The first bucket at or after a time.
    pub fn next_bucket(&self, from: Time) -> Option<Time> {
        let own = self.buckets.range(from..).next().map(|(time, _)| *time);
        let packed = self.packed.as_ref().and_then(|packed| packed.next(from));
        match (own, packed) {
            (Some(own), Some(packed)) => Some(own.min(packed)),
            (own, packed) => own.or(packed),
        }
    }

    /// Drops the buckets before a time; says whether that is done.
    ///
    /// # Errors
    /// Those of storage.
    pub fn purge(&mut self, before: Time) -> Result<bool> {
        self.leave_fold();
        self.purge_buckets(before);
        self.jobs.drive();
        self.poll()?;
        // With a thread for it, what is left to do is not the caller's.
        Ok(self.reaping == 0 || !self.context.helper.is_inline())
    }

    /// Has the buckets before a time read ahead.
    ///
    /// # Errors
    /// Those of storage.
    pub fn prefetch(&mut self, until: Time) -> Result<()> {
        self.poll()?;
        self.read_ahead(until);
        Ok(())
    }

    /// Returns its [`Upkeep`]. Never inlined: where a `dyn` is made, the code that drops the value is compiled.
    #[inline(never)]
    pub fn as_upkeep(&self) -> &dyn Upkeep {
        self
    }

    /// Does the same, mutable.
    #[inline(never)]
    pub fn as_upkeep_mut(&mut self) -> &mut dyn Upkeep {
        self
    }
}

/// Where large pieces come from, if they are large enough.
fn pool_of(context: &StateContext, piece_bytes: usize) -> Option<SharedPool> {
    let layout = std::alloc::Layout::from_size_align(PIECE_BYTES_MAX, LINE_BYTES).ok()?;
    let pool = || {
        let helper = Some(context.helper.clone());
        PiecePool::new(layout, context.account.clone(), MemoryKind::Pages, helper)
    };
    (piece_bytes == PIECE_BYTES_MAX).then(|| Rc::new(RefCell::new(pool())))
}

impl Upkeep for ListsCore {
    fn tick(&mut self, work: usize) -> Result<usize> {
        self.background_work(work)
    }

    fn reclaim(&mut self, bytes: u64) -> Result<u64> {
        self.leave_fold();
        self.give_up(bytes)
    }

    fn fixed_bytes(&self) -> (u64, u64) {
        let fixed = match self.source.is_some() {
            true => self.account.fixed_bytes(),
            false => self.account.used(),
        };
        (fixed, self.account.limit())
    }

    fn checkpoint(&mut self, blobs: &mut BlobWriter) -> Result<StateImage> {
        at_once(self, blobs)
    }

    fn begin_checkpoint(&mut self, _: &mut BlobWriter) -> Result<Option<StateImage>> {
        self.begin_capture().map(|()| None)
    }

    fn continue_checkpoint(&mut self, _: &mut BlobWriter) -> Result<Option<StateImage>> {
        self.continue_capture()
    }

    fn checkpointed(&mut self, outcome: CheckpointOutcome) {
        self.decide_checkpoint(outcome);
    }

    fn stats(&self) -> TableStats {
        self.statistics()
    }
}

impl Drop for ListsCore {
    fn drop(&mut self) {
        // The helper may be dropping lists; if it takes long it goes on alone.
        let start = Instant::now();
        let helper = self.context.helper.clone();
        let waits = || !helper.is_left_alone() && start.elapsed() < Duration::from_secs(2);
        while self.jobs.pending() > 0 && waits() {
            let _ = self.jobs.wait();
        }
        self.resume = None;
        if let Some(reads) = self.reads.as_ref().filter(|_| !helper.is_left_alone()) {
            reads.wait_to_close();
        }
        self.checkpoint = None;
        self.packed = None;
        self.buckets.clear();
        self.graves.clear();
        if let Some(pool) = &self.pieces.pool {
            pool.borrow_mut().close();
        }
        for kind in alluvium_pagestore::MEMORY_KINDS {
            self.account.release(kind, self.account.used_for(kind));
        }
    }
}
