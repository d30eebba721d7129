//! Window segments without types: all but what reaches native keys and accumulators, which is the
//! [typed](super::typed_unsafe) shell's. It is compiled once.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use alluvium_pagestore::io::IoBuffer;
use alluvium_pagestore::{
    Account, BlobWriter, ErrorKind, MEMORY_KINDS, MemoryKind, Result, SegmentWriter, StateImage,
    Time, fingerprint,
};

use super::background::SliceJobs;
use super::checkpoint::PutStored;
use super::config::{SliceSizes, TABLE_FILES, WindowSegments};
use super::cuts::SliceCuts;
use super::fold::Fold;
use super::fold_by_source::BySource;
use super::fund::CheckpointFund;
use super::gathering::ErasedGathering;
use super::merging::SliceMerge;
use super::packed::{PackedSlices, split};
use super::pane_type_unsafe::PaneType;
use super::prefetch::Prefetch;
use super::run::NAME_BYTES;
use super::slice::Slice;
use super::slice_checkpoint::SliceCheckpoint;
use super::slots::RECENT;
use super::tables::{CatalogTables, TableGroups};
use crate::checkpoint::{FilesByName, at_once};
use crate::contract::table::{CheckpointOutcome, StateContext, TableStats};
use crate::contract::upkeep::Upkeep;
use crate::heap::hash_range::HashRange;
use crate::support::key_unsafe::KeyRef;
use crate::support::out_of_line_unsafe::DroppedHere;
use crate::support::oversize::Oversize;
use crate::support::patient_reads::PatientReads;
use crate::support::record_type_unsafe::RecordRef;
use crate::support::run_storage::RunStorage;

/// Open window segments of erased types.
pub struct SegmentsCore {
    pub(super) context: StateContext,
    pub(super) account: Rc<Account>,
    pub(super) sizes: SliceSizes,
    pub(super) range: HashRange,
    pub(super) types: &'static PaneType,
    pub(super) slots: Vec<Option<Slice>>,
    pub(super) vacant: Vec<u32>,
    pub(super) by_time: BTreeMap<Time, u32>,
    /// The slice that was updated or read last, and where it is; `u32::MAX` if nowhere.
    pub(super) last: (Time, u32),
    pub(super) recent: Box<[(Time, u32); RECENT]>,
    pub(super) background: SliceJobs,
    pub(super) files: FilesByName,
    /// Bytes of all files that were not removed yet.
    pub(super) disk_bytes: u64,
    /// Slices that are purged and in their slots still.
    pub(super) purged: VecDeque<BTreeMap<Time, u32>>,
    /// Entries of the slice that was purged last, as far as they were in its table in use.
    pub(super) entries_likely: u64,
    /// Those that were taken out, with what is left of them.
    pub(super) dying: VecDeque<Slice>,
    /// Cuts without a part that they apply to, to be dropped.
    pub(super) forgotten: VecDeque<SliceCuts>,
    pub(super) ahead: Prefetch,
    /// Where a fold that ran out of fuel goes on.
    pub(super) folding: Option<Fold>,
    /// Of the last fold, if there was no room for all its sources.
    pub(super) by_source: Option<BySource>,
    /// What a fold in memory gathers.
    pub(super) gathering: Box<dyn ErasedGathering>,
    /// Changes whenever parts of slices move between memory and storage.
    pub(super) arrangement: u64,
    /// Job numbers given so far.
    pub(super) jobs: u64,
    /// The job that writes a table; 0 if there is none.
    pub(super) writing: u64,
    /// The merge that is under way.
    pub(super) merging: Option<SliceMerge>,
    /// Booked for the tables of runs that are about to be written.
    pub(super) reserve_bytes: u64,
    /// Whether the last run could not be written.
    pub(super) failing: bool,
    /// Whether a checkpoint is being read.
    pub(super) is_restoring: bool,
    /// Memory for the next checkpoint.
    pub(super) fund: CheckpointFund,
    /// Empty while a read that was left has it.
    pub(super) read_buffer: IoBuffer,
    /// How the owner reads runs; `None` without storage.
    pub(super) reads: Option<PatientReads>,
    /// The checkpoint being taken, or not decided yet.
    pub(super) checkpoint: Option<Box<SliceCheckpoint>>,
    /// Tables that the last checkpoint has.
    pub(super) groups: TableGroups,
    pub(super) stats: TableStats,
    pub(super) oversize: Oversize,
    /// Small slices, once there are many.
    pub(super) packed: Option<Box<PackedSlices>>,
    /// The slot of the slice that a call has found and makes room for; `u32::MAX` if there is none.
    pub(super) held: u32,
}

impl SegmentsCore {
    /// Opens panes of these types. `gathering` makes room for sums within so many bytes; `put` puts what is restored.
    pub(super) fn open(
        layout: &WindowSegments,
        mut context: StateContext,
        types: &'static PaneType,
        gathering: fn(u64) -> Box<dyn ErasedGathering>,
        put: PutStored<'_>,
    ) -> Result<DroppedHere<Self>> {
        let account = context.account.clone();
        let stored = context.segments.is_some();
        let (restored, of_log) = context.restored.take().map_or((None, None), |(image, blobs)| {
            let (image, of_log) = split(&image);
            (Some((image, blobs.clone())), of_log.map(|of_log| (of_log, blobs)))
        });
        context.restored = restored;
        // What is there already may be larger than what may come.
        let most = Oversize::most_of(context.max_value_bytes, context.longest_record());
        let layout = match context.restored.is_some() {
            true => layout.clone().made_again(),
            false => layout.clone(),
        };
        let sizes = layout.sizes(types, account.available_to_open(), most, stored)?;
        let image = if stored { sizes.image_bytes } else { 0 };
        account.reserve(
            MemoryKind::Buffers,
            sizes.buffer_bytes(image),
            "the buffers of window segments",
        )?;
        let tables = sizes.reserve_bytes + size_of::<[(Time, u32); RECENT]>() as u64;
        account.reserve(MemoryKind::Tables, tables, "the table of a run")?;
        let storage = context.segments.clone().map(|store| {
            let state = fingerprint(&context.name);
            let writer =
                SegmentWriter::new(store.clone(), state, sizes.chunk_bytes, sizes.segment_bytes);
            RunStorage::new(store, writer)
        });
        let store = context.segments.as_ref();
        let reads = store.map(|store| PatientReads::new(store, sizes.patience, account.clone()));
        let restored = context.restored.take();
        let mut panes = Self {
            range: HashRange::of(&context.owned, context.key_groups),
            background: SliceJobs::new(context.helper.clone(), storage),
            files: FilesByName::booked(account.clone(), NAME_BYTES),
            disk_bytes: 0,
            fund: CheckpointFund::new(account.clone()),
            groups: TableGroups::new(account.clone()),
            oversize: Oversize::new(&context.name, context.max_value_bytes),
            context,
            account,
            sizes,
            types,
            slots: Vec::new(),
            vacant: Vec::new(),
            by_time: BTreeMap::new(),
            last: (Time::MIN, u32::MAX),
            recent: Box::new([(Time::MIN, u32::MAX); RECENT]),
            purged: VecDeque::new(),
            entries_likely: 0,
            dying: VecDeque::new(),
            forgotten: VecDeque::new(),
            ahead: Prefetch::default(),
            folding: None,
            by_source: None,
            gathering: gathering(sizes.fold_bytes),
            arrangement: 0,
            jobs: 0,
            writing: 0,
            merging: None,
            reserve_bytes: sizes.reserve_bytes,
            failing: false,
            is_restoring: true,
            read_buffer: IoBuffer::zeroed(image as usize),
            reads,
            checkpoint: None,
            stats: TableStats::default(),
            packed: None,
            held: u32::MAX,
        };
        if of_log.is_some() {
            panes.open_log(of_log)?;
        }
        if let Some((image, _)) = restored {
            panes.restore(&image, put)?;
        }
        panes.is_restoring = false;
        panes.fund.add(panes.by_time.len() as u64 * CatalogTables::TABLE_BYTES);
        if panes.background.storage.is_some() {
            // Restoring has used this memory for its own buffers.
            let bytes = panes.sizes.checkpoint_bytes();
            panes.make_room(bytes, "the buffers of checkpoints")?;
            panes.files.expect(TABLE_FILES, 0);
            panes.fund.add(bytes - TABLE_FILES as u64 * NAME_BYTES);
            panes.fund.want_slack(panes.sizes.slack_bytes());
        }
        Ok(DroppedHere::new(panes))
    }

    #[cold]
    #[inline(never)]
    pub(super) fn make_headroom(&mut self) -> Result<()> {
        self.make_room(self.sizes.headroom_bytes, "a value")
    }

    /// Makes room for a new key in a slice, which was begun: in its table first, then for the value, so that the table
    /// does not grow into what is kept free for that.
    pub(super) fn make_room_for_key(&mut self, slice: Time, slot: usize, hash: u64) -> Result<()> {
        self.held = slot as u32;
        let made = self.make_room_in_table(slice, slot, hash);
        self.held = u32::MAX;
        made
    }

    fn make_room_in_table(&mut self, slice: Time, slot: usize, hash: u64) -> Result<()> {
        let mut wanted = 4 << 10;
        if !self.slice_at(slot).active.has_room(hash) && self.account.left_to_others() > 0 {
            let growth = self.slice_at(slot).active.growth_bytes(hash);
            if let Err(error) = self.make_room_to_stay(growth, "a hash table") {
                self.end_if_empty(slice);
                return Err(error);
            }
        }
        loop {
            let made = self.slice_at_mut(slot).active.make_room(hash);
            let made = match made {
                Err(error) if error.kind() == ErrorKind::OverBudget => {
                    wanted *= 2;
                    let room = self.account.available() + wanted / 2;
                    self.make_room(room, "a hash table").map(|()| false)
                }
                Err(error) => return Err(error),
                Ok(()) if self.types.is_plain() => return Ok(()),
                Ok(()) => {
                    self.make_room_to_stay(self.sizes.headroom_bytes, "a value").map(|()| true)
                }
            };
            match made {
                // To make room, the table may have been taken to be written.
                Ok(true) if self.slice_at(slot).active.has_room(hash) => return Ok(()),
                Ok(_) => {}
                Err(error) => {
                    self.end_if_empty(slice);
                    return Err(error);
                }
            }
        }
    }

    /// Removes what a key has in the older parts of a slice.
    pub(super) fn cut(&mut self, slot: usize, hash: u64, key: KeyRef<'_>) -> Result<()> {
        // Before the cut is made, so that nothing is half removed.
        self.make_room(self.cut_bytes(), "a removed key")?;
        let found = self.slots[slot].as_mut().expect("a slice in use");
        found.cuts.put(self.types, (hash, key), found.next_number, (&self.account, self.range))
    }

    /// Makes room for a cut in a slice, if removing a key takes one there.
    pub(super) fn make_room_to_cut(&mut self, slice: Time) -> Result<()> {
        let slot = self.slot_of(slice).filter(|slot| self.slice_at(*slot).has_older_parts());
        slot.map_or(Ok(()), |_| self.make_room(self.cut_bytes(), "a removed key"))
    }

    /// Free before a cut is made.
    fn cut_bytes(&self) -> u64 {
        (16 << 10) + self.sizes.headroom_bytes
    }

    /// Removes the entry with this hash that `is` it from a slice's table in use.
    pub(super) fn take_from_table(
        &mut self,
        slot: usize,
        hash: u64,
        is: &mut dyn FnMut(RecordRef<'_>) -> bool,
    ) {
        let Self { slots, account, .. } = self;
        let Slice { active, heap_bytes, .. } = slots[slot].as_mut().expect("a slice in use");
        active.remove(hash, is, |heap| {
            *heap_bytes -= heap;
            account.release(MemoryKind::Values, heap);
        });
    }

    /// The slice of an event whose key is new there, with room for it.
    pub(super) fn slot_with_room(&mut self, slice: Time, hash: u64) -> Result<usize> {
        // What is restored had room before, and each run takes more.
        if self.account.available() < self.sizes.low_water_bytes && !self.is_restoring {
            self.spill_ahead();
        }
        let slot = self.begin_slice(slice)?;
        self.make_room_for_key(slice, slot, hash)?;
        Ok(slot)
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

impl Upkeep for SegmentsCore {
    fn tick(&mut self, work: usize) -> Result<usize> {
        self.work_in_background(work)
    }

    fn reclaim(&mut self, bytes: u64) -> Result<u64> {
        self.give_up_memory(bytes)
    }

    fn fixed_bytes(&self) -> (u64, u64) {
        let fixed = match self.reads.is_some() {
            true => self.account.fixed_bytes(),
            false => self.account.used(),
        };
        (fixed, self.account.limit())
    }

    fn checkpoint(&mut self, blobs: &mut BlobWriter) -> Result<StateImage> {
        at_once(self, blobs)
    }

    fn begin_checkpoint(&mut self, blobs: &mut BlobWriter) -> Result<Option<StateImage>> {
        self.begin_both(blobs).map(|()| None)
    }

    fn continue_checkpoint(&mut self, blobs: &mut BlobWriter) -> Result<Option<StateImage>> {
        self.continue_both(blobs)
    }

    fn checkpointed(&mut self, outcome: CheckpointOutcome) {
        self.decide_both(outcome);
    }

    fn stats(&self) -> TableStats {
        self.describe()
    }
}

impl Drop for SegmentsCore {
    fn drop(&mut self) {
        if let Some(reads) =
            self.reads.as_ref().filter(|_| !self.background.jobs.helper().is_left_alone())
        {
            reads.wait_to_close();
        }
        self.packed = None;
        // Tables give back what they take; all that is left on the account is the rest.
        self.checkpoint = None;
        self.slots.clear();
        self.dying.clear();
        self.forgotten.clear();
        for kind in MEMORY_KINDS {
            self.account.release(kind, self.account.used_for(kind));
        }
    }
}
