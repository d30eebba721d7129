//! A hybrid log without the types of its records: all that is not the record path, compiled once.
//!
//! A log, its checkpoints, its rewrites and what is kept of it between calls. Records are erased here: what is to be done
//! with one is done by its [`RecordType`]. The typed part around it, which looks records up and changes them, is
//! [`HybridLogTable`](crate::hybrid_log::HybridLogTable).

mod handed_over;

use std::cell::RefCell;
use std::rc::Rc;

use alluvium_pagestore::{
    Account, BlobRef, BlobWriter, ByteSize, Error, ErrorKind, MemoryKind, ReclaimScope, Result,
    Rewrite, SegmentStore, StateImage,
};

use self::handed_over::HandedOver;
use crate::checkpoint::PinnedRuns;
use crate::checkpoint::at_once;
use crate::contract::table::{CheckpointOutcome, Pace, RunStats, StateContext, TableStats};
use crate::contract::upkeep::Upkeep;
use crate::hybrid_log::address::{Address, StoredAt};
use crate::hybrid_log::batches::GROUP;
use crate::hybrid_log::cold::{ColdTier, RECORDS_TICK};
use crate::hybrid_log::config::{FRAMES_MIN, HybridLog};
use crate::hybrid_log::expiring::LogExpiry;
use crate::hybrid_log::frame_unsafe::Frame;
use crate::hybrid_log::index::{Index, IndexHash, Position};
use crate::hybrid_log::log::{Log, QUANTUM};
use crate::hybrid_log::log_checkpoint::{AbandonedCheckpoints, LogCheckpoint};
use crate::hybrid_log::rewriter::Rewriter;
use crate::hybrid_log::stored::{RecordRead, StoredSegments};
use crate::support::booked::Booked;
use crate::support::record_type_unsafe::{RecordRun, RecordType};

/// Takes records that are shown, a run at a time: a call by a table of functions for each record would double what a scan
/// of small records in memory costs.
pub(in crate::hybrid_log) type VisitRecords<'v> = &'v mut dyn FnMut(&RecordRun<'_>) -> Result<()>;

/// Segments of an index with few entries that a tick looks at, to join them.
const JOINED_AHEAD: usize = 16;

/// An open hybrid log of records of any type.
pub(in crate::hybrid_log) struct LogCore {
    /// A pass of which reads were left, and what is booked for it; before the log, whose account that is.
    pub(in crate::hybrid_log) left_pass: Option<(SegmentStore, Booked)>,
    /// What was there before the state was cleared, until it is dropped; before the log, below whose account its own is.
    handed_over: Option<Rc<RefCell<HandedOver>>>,
    /// Before the log, on whose account its copies are booked.
    pub(in crate::hybrid_log) rewriter: Rewriter,
    /// The checkpoint being taken, or not decided yet; before the log, on whose account its runs are booked.
    pub(in crate::hybrid_log) checkpoint: Option<Box<LogCheckpoint>>,
    /// What nobody waits for; before the log, in the same way.
    pub(in crate::hybrid_log) late: AbandonedCheckpoints,
    pub(in crate::hybrid_log) log: Log,
    pub(in crate::hybrid_log) context: StateContext,
    /// Where the last checkpoint has the records that have died.
    pub(in crate::hybrid_log) known_deaths: Vec<BlobRef>,
    /// Files of runs that checkpoints name.
    pub(in crate::hybrid_log) named_runs: PinnedRuns,
    /// What a read has found to be longer than memory has room for, twice over: to be made free.
    pub(in crate::hybrid_log) lacking: u64,
    /// How entries expire, if they do.
    pub(in crate::hybrid_log) expiry: Option<LogExpiry>,
    /// Hashes of keys that were read from storage lately: read again, they move to memory.
    pub(in crate::hybrid_log) touched: Box<[u32]>,
    /// The reads of one group of a batch.
    pub(in crate::hybrid_log) group: Box<[Option<RecordRead>]>,
    /// Whether there are any.
    pub(in crate::hybrid_log) group_reads: bool,
    /// Whether it was handed over and is being dropped: no checkpoint can have more of it.
    is_let_go: bool,
}

/// What a record that is larger than `max_value` is read into.
pub(in crate::hybrid_log) const TOO_LARGE: &str =
    "a value that is larger than max_value, and its archive,";
/// Entries of the filter of keys read lately.
const TOUCHED: usize = 1024;

/// The error for a log that does not fit beside the states that are open, with what would do: they take more in more
/// memory, too.
fn beside_others(error: Error, account: &Account, is_plain: bool) -> Error {
    let kept = account.kept_and_not_booked();
    if error.kind() != ErrorKind::OverBudget || kept == 0 {
        return error;
    }
    let limit = account.limit();
    // By default max_value grows with the memory.
    let (enough, or) = match is_plain {
        true => (limit.saturating_add(limit / 2), ""),
        false => (limit.saturating_mul(4), ", or a smaller max_value"),
    };
    let message = format!(
        "{}; {kept} more are kept for the pages of other states: a memory of {} would do{or}",
        error.message(),
        ByteSize(enough).short()
    );
    Error::new(ErrorKind::OverBudget, message).with("state", account.name())
}

/// What the table takes beside its log.
pub(in crate::hybrid_log) fn fixed_bytes() -> u64 {
    (TOUCHED * 4 + GROUP * size_of::<Option<RecordRead>>()) as u64
}

impl LogCore {
    /// Opens the log that a layout describes, and restores what the context says.
    pub(in crate::hybrid_log) fn open(
        layout: &HybridLog,
        record_type: &'static RecordType,
        mut context: StateContext,
    ) -> Result<Self> {
        let account = context.account.clone();
        // Pages of logs that are open are not there for this one, also while they have none.
        let (free, stored) = (account.available_to_open(), context.segments.is_some());
        let most = context.max_value_bytes;
        let sizes = match context.restored.is_some() {
            true => layout.sizes_again(record_type, free, most),
            false => layout.sizes(record_type, free, most, stored),
        };
        let is_plain = record_type.is_plain();
        let sizes = sizes.map_err(|error| beside_others(error, &account, is_plain))?;
        if sizes.cold_runs {
            ColdTier::check(&context, &sizes)?;
        }
        let buffers = fixed_bytes() + sizes.buffer_bytes(stored);
        let mut index = Index::new(account.clone(), sizes.buckets, Some(context.helper.clone()))?;
        if context.movable {
            index.expect_few_of(context.key_groups);
        }
        account.reserve(MemoryKind::Buffers, buffers, "the hybrid log's buffers")?;
        if stored {
            account.keep_for_pages(sizes.pages_bytes_min());
        }
        let log = Log::open(&context, record_type, sizes, index);
        let restored = context.restored.take();
        let mut table = Self {
            left_pass: None,
            handed_over: None,
            log,
            context,
            rewriter: Rewriter::default(),
            checkpoint: None,
            known_deaths: Vec::new(),
            named_runs: PinnedRuns::default(),
            late: AbandonedCheckpoints::default(),
            lacking: 0,
            expiry: None,
            touched: vec![0; TOUCHED].into_boxed_slice(),
            group: (0..GROUP).map(|_| None).collect(),
            group_reads: false,
            is_let_go: false,
        };
        if let Some((image, blobs)) = restored {
            table.restore(&image, &blobs)?;
        }
        table.log.may_get_cold(&table.context);
        Ok(table)
    }

    /// Removes all.
    pub(in crate::hybrid_log) fn clear(&mut self) -> Result<()> {
        self.give_up_rewrite();
        if self.needs_more() || !self.log.is_little() {
            if self.hand_over() {
                return Ok(());
            }
            self.log.wait_for_all()?;
            self.overtake_capture();
            // It has become less.
            if self.hand_over() {
                return Ok(());
            }
        }
        self.log.clear()?;
        self.log.later.iter_mut().for_each(|later| later.was_cleared());
        self.log.cold.iter_mut().for_each(|cold| cold.clear());
        self.log.keep_for_work();
        Ok(())
    }

    /// An index entry leads to a slot in memory from now on.
    #[inline]
    pub(in crate::hybrid_log) fn lead_to(&mut self, at: Position, (number, slot): (u32, u32)) {
        self.log.index.set(at, self.log.address_of(number, slot));
    }

    /// Reads the records on storage whose hashes are like this one's until `is_it` says of a payload that it is the one,
    /// and how much heap its values own: its index entry and place. `ahead` is a read of one candidate that was
    /// started before, `key` names the key.
    pub(in crate::hybrid_log) fn read_stored(
        &mut self,
        (hash, whole_hash): (IndexHash, u64),
        mut ahead: Option<RecordRead>,
        key: &dyn Fn() -> String,
        is_it: &mut dyn FnMut(&[u8]) -> Result<Option<u64>>,
    ) -> Result<Option<(Position, StoredAt)>> {
        let mut found = Ok(None);
        let mut nth = 0;
        while let Some((at, place)) = self.log.candidate(hash, nth) {
            nth += 1;
            let stored = self.log.stored.as_mut().expect("a stored record has a store");
            let read = match ahead.take() {
                Some(read) if read.at == place => Ok(read),
                other => {
                    ahead = other;
                    match stored.take_fetched(place) {
                        Some(read) => Ok(read),
                        None => stored.read(place),
                    }
                }
            };
            self.log.stats.cold_reads += 1;
            // A header that is damaged may say anything.
            let longest = stored.info(place.segment).max_record_bytes;
            let bytes = read.as_ref().map_or(0, |read| read.record_bytes().min(longest));
            let longer = self.log.beyond_usual(bytes);
            if self.log.account.available() < longer {
                // Nothing else is kept free for a record that is longer than values are to be.
                self.lacking = longer;
                let stored = self.log.stored.as_mut().expect("a stored record has a store");
                read.into_iter().for_each(|read| stored.recycle(read));
                let error = self.log.account.over_budget(longer, TOO_LARGE);
                found = Err(error.with("key", key()));
                break;
            }
            let stored = self.log.stored.as_mut().expect("a stored record has a store");
            let read_one = read.and_then(|mut read| {
                let shown = stored.verify(&mut read).and_then(|record| {
                    if record.hash != whole_hash {
                        return Ok(None);
                    }
                    self.log.stats.codec_calls += 1;
                    is_it(record.payload)
                });
                stored.recycle(read);
                shown
            });
            match read_one {
                Ok(Some(heap)) => {
                    self.log.oversize.found(heap);
                    found = Ok(Some((at, place)));
                    break;
                }
                Ok(None) => self.log.stats.false_cold_reads += 1,
                Err(error) => {
                    found = Err(error.with("state", &self.context.name));
                    break;
                }
            }
        }
        if let Some(read) = ahead {
            self.log.stored.as_mut().expect("a read has a store").recycle(read);
        }
        found
    }

    /// Makes room for a record that could not be read for want of it, and says whether it was that;
    /// the read can be tried again. Records have moved.
    ///
    /// # Errors
    /// Those of making room.
    pub(in crate::hybrid_log) fn make_lacking(&mut self) -> Result<bool> {
        match std::mem::take(&mut self.lacking) {
            0 => Ok(false),
            bytes => self.log.make_free((bytes, TOO_LARGE)).map(|()| true),
        }
    }

    /// A record is about to be changed where it is; the next change finds it by a short cut.
    pub(in crate::hybrid_log) fn change_in_place(&mut self, number: u32, slot: u32) {
        self.log.frames.shorten(number);
        self.log.freshen(number, slot);
    }

    /// Returns its [`Upkeep`]. Never inlined: where a `dyn` is made, the code that drops the value is compiled.
    #[inline(never)]
    pub(in crate::hybrid_log) fn as_upkeep(&self) -> &dyn Upkeep {
        self
    }

    /// Does the same, mutable.
    #[inline(never)]
    pub(in crate::hybrid_log) fn as_upkeep_mut(&mut self) -> &mut dyn Upkeep {
        self
    }
}

impl Upkeep for LogCore {
    fn tick(&mut self, work: usize) -> Result<usize> {
        self.context.helper.drive();
        let mut done = 0;
        while self.release_step() {
            done += QUANTUM as usize;
            if done >= work / 2 {
                break;
            }
        }
        self.settle_pass();
        if !self.is_capturing() {
            // What is lost is looked at by the next checkpoint.
            let _ = self.take_late(false);
        }
        self.log.poll()?;
        // Half of the work at most: the rest is for the segments.
        while done < work / 2 && !self.is_capturing() && self.log.carry_next_over() {
            done += QUANTUM as usize;
        }
        // Where all records are in memory there is enough of it; a tier's work looks at the index itself.
        let index = &self.log.index;
        let is_useful = self.log.cold.is_none() && index.stored() > 0 && index.gives_pages_back();
        if is_useful && self.log.index.is_sparse() && self.log.index.shrink(JOINED_AHEAD) > 0 {
            done += QUANTUM as usize;
        }
        while done < work / 2 && self.log.tick_cold() {
            done += RECORDS_TICK;
        }
        while done < work / 2 && self.log.is_short() {
            let before = self.log.on_its_way_out();
            self.log.relieve()?;
            self.context.helper.drive();
            let is_alone = self.log.pending() == 0 && self.log.bytes_beside() == 0;
            if is_alone && self.log.on_its_way_out() == before {
                // All that may leave memory has left.
                break;
            }
            done += QUANTUM as usize;
        }
        Ok(done.min(work))
    }

    fn reclaim(&mut self, bytes: u64) -> Result<u64> {
        let beside = self.reclaim_handed_over(bytes);
        let given = *beside.as_ref().unwrap_or(&0);
        if given >= bytes {
            return Ok(given);
        }
        let asked = self.log.account.asked_for();
        if asked == ReclaimScope::Unknown {
            return beside;
        }
        // What storage refuses there may be had here without it.
        let more = self.log.give_memory_up(bytes - given)?;
        let lacking = (bytes - given).saturating_sub(more);
        let lent = self.log.cold.as_mut().map_or(0, |cold| match asked {
            ReclaimScope::All => cold.give_up_to_states(lacking),
            _ => cold.lend_spare(lacking),
        });
        self.log.keep_for_work();
        match more + lent {
            0 => beside,
            more => Ok(given + more),
        }
    }

    // Never inlined: where a `dyn` is made, the code that drops the value is compiled.
    #[inline(never)]
    fn rewriter(&mut self) -> Option<&mut dyn Rewrite> {
        self.log.stored.is_some().then_some(self as &mut dyn Rewrite)
    }

    fn fixed_bytes(&self) -> (u64, u64) {
        let (sizes, account) = (&self.log.sizes, &self.log.account);
        let least = FRAMES_MIN * sizes.frame_bytes + sizes.headroom_bytes;
        let fixed = match self.log.stored.is_some() {
            true => account.fixed_bytes() + least,
            false => account.used(),
        };
        // In each phase of a move the same.
        let given = self.log.cold.as_ref().map_or(0, |cold| cold.bytes_to_give());
        (fixed.saturating_sub(given), account.limit())
    }

    fn checkpoint(&mut self, blobs: &mut BlobWriter) -> Result<StateImage> {
        at_once(self, blobs)
    }

    fn begin_checkpoint(&mut self, blobs: &mut BlobWriter) -> Result<Option<StateImage>> {
        self.begin_capture(blobs).map(|()| None)
    }

    fn pace_checkpoint(&mut self, pace: Pace) {
        self.pace_log(pace);
    }

    fn continue_checkpoint(&mut self, blobs: &mut BlobWriter) -> Result<Option<StateImage>> {
        self.continue_capture(blobs)
    }

    fn checkpointed(&mut self, outcome: CheckpointOutcome) {
        self.decide_capture(outcome);
    }

    fn stats(&self) -> TableStats {
        let log = &self.log;
        let live_keys = log.len();
        let (disk_bytes, stored_keys, stored_bytes) = log
            .stored
            .as_ref()
            .map_or((0, 0, 0), |s| (s.bytes(), s.live_records(), s.live_bytes()));
        let runs = log.cold.as_ref().map_or_else(RunStats::default, |cold| cold.stats());
        // As for segments: estimated from the number of records.
        let live_runs =
            runs.bytes as u128 * u128::from(runs.keys) / u128::from(runs.records.max(1));
        let live_runs = (live_runs as u64).min(runs.bytes);
        let resident = log.index.len().saturating_sub(stored_keys);
        let slot = Frame::slot_bytes(log.record_type) as u64;
        let values =
            log.account.used_for(MemoryKind::Values) - self.handed_over_for(MemoryKind::Values);
        let mut stats = TableStats {
            live_keys,
            live_bytes: resident * slot + values + stored_bytes + live_runs,
            disk_bytes: disk_bytes + runs.bytes,
            fetches: log.stored.as_ref().map_or(0, StoredSegments::fetches)
                + log.cold.as_ref().map_or(0, |cold| cold.fetches()),
            live_disk_bytes: stored_bytes + live_runs,
            runs,
            unstored_bytes: log.unstored_bytes(),
            splits: log.index.splits() + log.stats.splits,
            joins: log.index.joins() + log.stats.joins,
            oversized: self.log.oversize.told(),
            ..log.stats
        };
        stats.add(&self.stats_handed_over());
        stats
    }
}

/// The address of a record of a segment.
pub(in crate::hybrid_log) fn stored_address(segment: u32, grain: u32) -> Address {
    Address::stored(StoredAt { segment, grain })
}
