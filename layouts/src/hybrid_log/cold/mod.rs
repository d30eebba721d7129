//! The cold tier: records that stay cold, in levels of sorted runs, without an entry of the index.
//!
//! Records move down before the index has no room for another entry ([`paying`]); a record moves up when it is changed, or
//! read twice within a short time. What is in memory for it is a filter and a fence, as far as there is room.
//!
//! What it keeps true:
//! - A key that has an index entry is what that entry leads to. What levels have of it is an older, dead copy.
//! - A key without one is what the newest of its records among tombstones in memory and the levels says, from the newest
//!   to the oldest. Keys are compared by `Eq`.
//! - A key is deleted with its index entry. If levels have a copy of it, or one that is being written will, it is buried
//!   first: a tombstone, which is the copy itself with a mark, goes to the next level.
//! - Where entries expire, a record that was touched last before the [tide](touches) is not there.
//! - Without a helper one thing is done at a time: a move, or a merge. Each is done in steps that new entries pay for, and
//!   its memory is saved up before it begins. A helper that has a thread does the merges; with memory for both, records move meanwhile.

mod batch;
#[cfg(test)]
mod batches_tests;
#[cfg(test)]
mod beginning_tests;
mod counts;
#[cfg(test)]
mod expiring_tests;
#[cfg(test)]
mod fetching_tests;
#[cfg(test)]
mod giving_tests;
mod graves;
#[cfg(test)]
mod helping_tests;
mod image;
#[cfg(test)]
mod joining_tests;
mod judge;
mod later;
#[cfg(test)]
mod later_tests;
mod loading;
#[cfg(test)]
mod loading_tests;
#[cfg(test)]
mod merging_tests;
mod moving;
mod needs;
#[cfg(test)]
mod parted_tests;
mod paying;
mod saving;
mod scanning;
mod share;
#[cfg(test)]
mod share_tests;
#[cfg(test)]
mod sharing_tests;
mod sizes;
#[cfg(test)]
mod tests;
mod touches;
#[cfg(test)]
mod unreadable_tests;

use std::cell::Cell;
use std::ops::RangeInclusive;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use alluvium_pagestore::io::Waker;
use alluvium_pagestore::{
    Account, Error, ErrorKind, KIB, MemoryKind, Result, RunInfo, SegmentStore, Time, fingerprint,
};

use self::counts::KeyCounts;
use self::graves::{Grave, GraveMemory, of_hash};
use self::moving::ColdMove;
use self::paying::CallInNeed;
use self::share::IndexShare;
use self::sizes::{SizeInputs, WorkSizes, least_memory, own_memory};
use super::config::{COLD_RUNS_MEMORY_MIN, LogSizes};
use crate::contract::fetch::{Fetch, Ticket};
use crate::contract::table::{RunStats, RunTimes, StateContext};
use crate::runs::{Levels, RecordView, RunSizes};
use crate::support::booked::Booked;
use crate::support::patient_reads::PatientReads;
use crate::support::record_type_unsafe::{ErasedTouched, RecordType};

pub(super) use image::{RunsAtBarrier, RunsWritten, let_go};
pub(crate) use judge::has_same_key;
pub(super) use later::TierSetup;
pub(super) use needs::IndexPart;
pub(super) use paying::RECORDS_TICK;

/// The mark of a tombstone.
pub const TOMBSTONE: u32 = 1;
/// A longer record stays in the log.
pub const PAYLOAD_MAX: usize = 8 << 10;
/// Pages make room for guides until these have one part in so many of the memory.
const GUIDE_SHARE: u64 = 4;
/// A move and a merge leave so much free, for the directories of what they write.
const DIRECTORY_BYTES: u64 = 32 << 10;
/// Filters of levels above the oldest have two bytes a slot as long as the guides of all levels have one part in so many
/// of the memory.
const WIDE_SHARE: u64 = 8;
/// How long a state that is dropped waits for a helper that merges.
const DROP_MOST: Duration = Duration::from_secs(2);

/// A look-up reads one block, or two that are neighbours, as a rule.
const AHEAD_BYTES: usize = 8 << 10;

/// Looks at a payload and says whether it is of the key that is looked for.
pub(super) type IsIt<'a> = &'a mut dyn FnMut(&[u8]) -> Result<bool>;

/// What the tier knows of a key that has no entry in the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ColdPresence {
    /// Nothing.
    Absent,
    /// It was deleted.
    Buried,
    /// It is there.
    There,
}

/// The cold tier of a log.
#[derive(Debug)]
pub struct ColdTier {
    record_type: &'static RecordType,
    /// Whose reads on this thread are patient.
    store: SegmentStore,
    reads: PatientReads,
    account: Rc<Account>,
    /// The hash of the state's name.
    state: u64,
    shape: SizeInputs,
    /// What moves and merges take now, what they are to take in all the memory that there is for this state, and at least.
    work: WorkSizes,
    wanted: WorkSizes,
    least: WorkSizes,
    /// What values need to grow or to be read.
    headroom_bytes: u64,
    /// In tests: index entries that are enough for records to move.
    entries_max: Option<u64>,
    levels: Levels,
    /// Tombstones that are to go to the next level, in the order of their hashes.
    buried: Vec<Grave>,
    /// Those that the level has which is being written, in the same order.
    going: Vec<Grave>,
    buried_max: usize,
    grave_memory: GraveMemory,
    /// What a tombstone takes, as a rule.
    grave_bytes: u64,
    /// Keys that are there and have no entry in the index.
    live: KeyCounts,
    /// Records that moved down, and the bytes of the files that they moved to.
    moved: u64,
    moved_bytes: u64,
    moving: Option<Box<ColdMove>>,
    /// Whether records are to move. It stays until they have, or there are none.
    wants_move: bool,
    /// So many new entries come before a segment of the index is looked at.
    join_rest: u32,
    /// Records that had moved when they were to move.
    moved_before: u64,
    /// Whether the last move found too little that could move, and index entries with which it is worth to look again.
    found_nothing: bool,
    nothing_until: u64,
    /// Moves that found too little.
    moves_in_vain: u64,
    /// The same since one that moved some.
    vain_in_row: u32,
    /// Entries that led to storage when a move that was needed found nothing: what came to storage since may move.
    stored_in_vain: Option<u64>,
    /// Whether a few records are worth a level.
    takes_few: bool,
    /// Memory that is saved up for the next move or merge, and kept between them.
    purse: Booked,
    /// Of that, what reads of a batch have at the moment.
    lent: u64,
    /// Bytes of that which a batch has that is loaded.
    lent_to_load: Rc<Cell<u64>>,
    /// Records that were loaded to levels without a move.
    loaded: u64,
    /// Whether a batch is being loaded: no records move then.
    is_loading: bool,
    /// So many batches are put in the ordinary way.
    load_rest: u32,
    /// A hash that no level had, and the number of the last level that had come then.
    absent: Option<(u64, u64)>,
    /// So many new entries come before it is looked again whether there is something to do.
    rest: u32,
    /// Steps of moves and merges that failed, and those that did since the last that did not.
    failed: u64,
    failed_in_row: u32,
    /// Steps that saved no memory up, since the last that did.
    saved_nothing: u32,
    /// Calls without room for one entry more that asked other states in vain, since the last that did not; and how many
    /// of them come before others are asked again.
    asked_in_vain: u32,
    rest_asking: u32,
    /// Whether the last step of a merge has failed, since when none has moved.
    merge_has_failed: bool,
    /// So many steps come before a merge that has failed goes on, or begins again.
    merge_rest: u32,
    /// Shares that failed since the last that did not, and merges that were given up since the last that ended.
    shares_failed: u32,
    merges_given_up: u32,
    /// Merges that had ended when it was last looked.
    merges_ended: u64,
    /// What was saved up when the step began.
    saved_before: u64,
    /// The call that has no room without moves or merges, once it has found that.
    in_need: Option<CallInNeed>,
    /// The part of the memory that the index may have.
    share: IndexShare,
    /// What moves and merges took.
    times: RunTimes,
    /// How often filters were asked.
    #[cfg(test)]
    asked: Cell<u64>,
    /// Whether a call that has no room merges all that there is to merge.
    #[cfg(test)]
    merges_all_at_once: bool,
}

impl ColdTier {
    /// Checks that a state can have a tier. One without storage has none, and needs none.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if key groups move, [`ErrorKind::OverBudget`] if there is too little memory.
    pub fn check(context: &StateContext, sizes: &LogSizes) -> Result<()> {
        if context.segments.is_none() {
            return Ok(());
        }
        let error = |kind, what: String| Err(Error::new(kind, what).with("state", &context.name));
        let memory = context.account.limit();
        if memory < COLD_RUNS_MEMORY_MIN && sizes.cold_entries.is_none() {
            let what = format!(
                "a hybrid log with sorted runs (see cold-runs), or whose checkpoint has some, needs \
                 {COLD_RUNS_MEMORY_MIN} bytes of memory to open, {memory} are free"
            );
            return error(ErrorKind::OverBudget, what);
        }
        KeyCounts::check(context)
    }

    /// Whether records of this type can move: longer ones stay in the log.
    pub fn may_hold(record_type: &RecordType) -> bool {
        !record_type.is_plain() || record_type.layout().size() <= PAYLOAD_MAX
    }

    /// The tier of a log, without records. None: there is no storage. The log was [checked](ColdTier::check).
    pub fn new(
        context: &StateContext,
        record_type: &'static RecordType,
        sizes: &LogSizes,
    ) -> Option<Self> {
        let (account, state) = (context.account.clone(), fingerprint(&context.name));
        let store = context.segments.as_ref()?;
        let reads = PatientReads::new(store, sizes.patience, account.clone());
        let store = reads.store().clone();
        let memory = account.limit();
        let is_test = sizes.cold_entries.is_some();
        // As much as the log wants to be free, and what a look-up reads.
        let keep_free =
            sizes.headroom_bytes + (2 * sizes.frame_bytes).max(memory / 32) + DIRECTORY_BYTES;
        let payload = if record_type.is_plain() { record_type.layout().size() } else { 48 };
        let shape = SizeInputs::new(context, sizes, payload);
        let wanted = shape.within(own_memory(&account));
        let levels = Levels::new(store.clone(), account.clone(), state).helped_by(&context.helper);
        let fetches = sizes.queue_depth.saturating_sub(1);
        Some(Self {
            record_type,
            state,
            shape,
            work: wanted,
            wanted,
            least: shape.within(least_memory(&account)),
            headroom_bytes: sizes.headroom_bytes,
            entries_max: sizes.cold_entries,
            levels: levels.keeping_free(keep_free).synced_by_owner().fetching(fetches),
            store,
            reads,
            buried: Vec::new(),
            going: Vec::new(),
            buried_max: wanted.graves_max(),
            grave_memory: GraveMemory::new(account.clone()),
            grave_bytes: Grave::memory_bytes(payload),
            live: KeyCounts::new(context, account.clone()),
            moved: 0,
            moved_bytes: 0,
            moving: None,
            wants_move: false,
            join_rest: 0,
            moved_before: 0,
            found_nothing: false,
            nothing_until: 0,
            moves_in_vain: 0,
            vain_in_row: 0,
            stored_in_vain: None,
            takes_few: is_test,
            purse: Booked::none(account.clone(), MemoryKind::Tables),
            lent: 0,
            lent_to_load: Rc::default(),
            loaded: 0,
            is_loading: false,
            load_rest: 0,
            absent: None,
            rest: 0,
            failed: 0,
            failed_in_row: 0,
            saved_nothing: 0,
            asked_in_vain: 0,
            rest_asking: 0,
            merge_has_failed: false,
            merge_rest: 0,
            shares_failed: 0,
            merges_given_up: 0,
            merges_ended: 0,
            saved_before: 0,
            in_need: None,
            share: IndexShare::new(sizes.index_percent),
            times: RunTimes::default(),
            #[cfg(test)]
            asked: Cell::new(0),
            #[cfg(test)]
            merges_all_at_once: false,
            account,
        })
    }

    /// Bytes that a tier takes from its beginning on.
    pub fn opening_bytes(context: &StateContext) -> u64 {
        KeyCounts::memory_bytes(context)
    }

    /// Bytes that moving records, or merging levels, takes beside what is always there.
    pub fn work_bytes(&self) -> u64 {
        self.work.bytes(self.levels.longest_read())
    }

    /// The same where one of the two is done at a time.
    fn work_alone_bytes(&self) -> u64 {
        self.work.alone_bytes(self.levels.longest_read())
    }

    /// What these are to take, which memory may not have room for at the moment.
    fn wanted_bytes(&self) -> u64 {
        self.wanted.bytes(self.levels.longest_read())
    }

    /// What they take at least.
    fn least_bytes(&self) -> u64 {
        self.least.bytes(self.levels.longest_read())
    }

    /// Bytes of these that are booked now.
    fn held_bytes(&self) -> u64 {
        let moving = self.moving.as_ref().map_or(0, |moving| moving.memory_bytes());
        let loading = self.lent_to_load.get();
        self.purse.bytes()
            + moving
            + loading
            + self.levels.merging_bytes()
            + self.levels.leaving_bytes()
    }

    /// Of runs that are to be written, while there are some that are older.
    fn run_sizes(&self) -> RunSizes {
        let has_room = WIDE_SHARE * self.levels.all_guide_bytes() <= self.wanted.memory;
        RunSizes { is_wide: self.work.runs.is_wide && has_room, ..self.work.runs }
    }

    /// Bytes that moving records takes.
    fn move_bytes(&self) -> u64 {
        self.work.move_bytes()
    }

    /// Sets the records of the longest page.
    pub fn set_page_records(&mut self, records: usize) {
        self.shape.page_records = records;
        for sizes in [&mut self.work, &mut self.wanted, &mut self.least] {
            sizes.page_records = records;
        }
    }

    /// Keys that are there and have no entry in the index.
    #[inline]
    pub fn live(&self) -> u64 {
        self.live.all()
    }

    /// Whether there are levels, or is one about to be, and so copies of keys that may have to be buried.
    pub fn has_levels(&self) -> bool {
        !self.levels.is_empty() || self.moving.is_some()
    }

    /// Bytes that have to be free for a guide that a look-up had to read, unless guides have their part of the memory.
    pub fn lacks(&mut self) -> Option<u64> {
        let most = self.wanted.memory / GUIDE_SHARE;
        self.levels.take_lacked().filter(|_| self.levels.guide_bytes() < most)
    }

    /// Bytes of guides in memory.
    pub fn guide_bytes(&self) -> u64 {
        self.levels.guide_bytes()
    }

    /// What it has and has done. Cost: O(partitions).
    pub fn stats(&self) -> RunStats {
        let levels = self.levels.stats();
        RunStats {
            keys: self.live(),
            records: levels.records,
            runs: levels.runs,
            levels: levels.levels,
            bytes: levels.bytes,
            guide_bytes: levels.guide_bytes,
            fence_bytes: levels.fence_bytes,
            directory_bytes: levels.directory_bytes,
            moved: self.moved + self.loaded,
            moved_bytes: self.moved_bytes,
            merged_bytes: levels.merged_bytes,
            reads: levels.reads.chunks,
            false_reads: levels.reads.wrong,
            guide_reads: levels.reads.guides,
            failed: self.failed,
            times: RunTimes {
                helper_merging: levels.helper_nanos,
                building: self.times.building + levels.built_nanos,
                ..self.times
            },
        }
    }

    /// Merges that ended.
    #[cfg(test)]
    pub fn merges(&self) -> u64 {
        self.levels.stats().merges
    }

    /// Whether a key of this hash may be there, going by what is in memory.
    pub fn may_have(&self, hash: u64) -> bool {
        let written = self.moving.as_ref().is_some_and(|moving| moving.may_have(hash));
        written || self.levels.may_have(hash)
    }

    /// The same of levels that are there, for up to 64 hashes at once: a bit for each.
    pub fn levels_may_have_each(&self, hashes: &[u64]) -> u64 {
        #[cfg(test)]
        self.asked.set(self.asked.get() + hashes.len() as u64);
        self.levels.may_have_each(hashes)
    }

    /// The number of the last level that has come.
    pub fn last_level(&self) -> u64 {
        self.levels.last_opened()
    }

    /// No level had a hash when the last one that had come was `last_level`.
    pub fn has_not(&mut self, hash: u64, last_level: u64) {
        self.absent = Some((hash, last_level));
    }

    /// Whether it is known that no level has a hash, so that a key of it is absent or buried.
    pub fn is_known_absent(&self, hash: u64) -> bool {
        self.absent == Some((hash, self.levels.last_opened())) && !self.levels.has_fetches()
    }

    /// Bytes that a look-up may need to be free.
    pub fn read_bytes(&self) -> u64 {
        self.levels.longest_read()
    }

    /// What is known of a key that has no entry in the index. Waits for the device.
    ///
    /// # Errors
    /// Those of the device and of `is_it`; [`ErrorKind::OverBudget`] if [`read_bytes`](ColdTier::read_bytes) are not free;
    /// [`ErrorKind::Backpressure`] if the device does nothing.
    pub fn find(&mut self, hash: u64, is_it: IsIt<'_>) -> Result<ColdPresence> {
        let found = self.find_newest(hash, is_it);
        self.levels.was_looked_up(hash);
        found
    }

    fn find_newest(&mut self, hash: u64, is_it: IsIt<'_>) -> Result<ColdPresence> {
        for graves in [&self.buried, &self.going] {
            for grave in of_hash(graves, hash) {
                if is_it(&grave.payload)? {
                    return Ok(ColdPresence::Buried);
                }
            }
        }
        let mut known = ColdPresence::Absent;
        self.find_in_levels(hash, &mut |record, _| {
            let found = is_it(record.payload)?;
            if found {
                known = known_by(&record);
            }
            Ok(found)
        })?;
        Ok(known)
    }

    /// Look-ups whose reads are under way together, at most.
    pub fn at_once(&self) -> usize {
        (self.wanted.memory / 64 / (4 * KIB)) as usize
    }

    /// Bytes of the first reads of so many look-ups.
    pub fn ahead_bytes(&self, count: usize) -> u64 {
        (count * AHEAD_BYTES) as u64
    }

    /// Starts reading what a look-up of a hash needs, ahead of the call for it.
    pub fn fetch(&mut self, hash: u64) -> Fetch {
        match self.levels.may_have(hash) && self.reads.left_bytes() == 0 {
            true => self.levels.fetch(hash, self.headroom_bytes),
            false => Fetch::Ready,
        }
    }

    /// Tells the tickets of reads that have ended, each once.
    pub fn fetched(&mut self, tell: &mut dyn FnMut(Ticket)) {
        self.levels.fetched(tell);
    }

    /// Whether reads run ahead, or wait to be used.
    pub fn has_fetches(&self) -> bool {
        self.levels.has_fetches()
    }

    /// Nobody wants a read any more. Says whether the ticket is of a read of runs.
    pub fn release(&mut self, ticket: Ticket) -> bool {
        self.levels.release(ticket)
    }

    /// Wakes somebody at the end of each read that is started ahead from now on.
    pub fn wake_with(&mut self, waker: Arc<Waker>) {
        self.levels.wake_with(waker);
    }

    /// Reads that were started ahead of the call that needs them.
    pub fn fetches(&self) -> u64 {
        self.levels.fetches()
    }

    /// Reads what look-ups of these hashes read first, all at once. What is saved up for the next move is lent for that.
    pub fn read_ahead(&mut self, hashes: &[u64]) {
        let wanted = self.ahead_bytes(hashes.len()) + self.headroom_bytes;
        let lacking = wanted.saturating_sub(self.account.available());
        let lent = lacking.min(self.purse.bytes());
        self.purse.give_some_back(lent);
        self.lent += lent;
        self.levels.read_ahead(hashes, self.headroom_bytes);
    }

    /// Forgets what was read ahead.
    pub fn forget_ahead(&mut self) {
        self.levels.forget_ahead();
        let lent = std::mem::take(&mut self.lent);
        // What was begun meanwhile has saved some up for itself.
        let lacking = self.work_bytes().saturating_sub(self.held_bytes());
        self.purse.try_reserve_more(lent.min(lacking).min(self.account.available()));
    }

    /// Bytes that are booked for what is read ahead.
    #[cfg(test)]
    pub fn booked_ahead(&self) -> u64 {
        self.levels.booked_ahead()
    }

    /// Shows records of levels, and what tombstones have booked.
    fn find_in_levels(
        &mut self,
        hash: u64,
        visit: &mut dyn FnMut(RecordView<'_>, &mut GraveMemory) -> Result<bool>,
    ) -> Result<()> {
        if self.levels.is_empty() {
            return Ok(());
        }
        self.wait_for_left()?;
        let Self { levels, grave_memory, .. } = self;
        let found = levels.find(hash, &mut |record| visit(record, grave_memory));
        // A read that was left has just given its memory back; those before have ended.
        self.reads.book(self.reads.left_bytes());
        found.map(|_| ())
    }

    /// Waits for a read that was left, before anything else is read.
    fn wait_for_left(&self) -> Result<()> {
        let waited = self.reads.wait();
        if self.reads.is_booked() {
            self.reads.book(self.reads.left_bytes());
        }
        waited
    }

    /// Books what the device has of a read that was left, unless a move or merge that goes on has it booked: one on this
    /// thread, as a helper leaves none.
    fn book_left(&self) {
        let merges_here = self.levels.is_merging() && !self.levels.is_helped();
        if self.reads.is_booked() || self.moving.is_none() && !merges_here {
            self.reads.book(self.reads.left_bytes());
        }
    }

    /// A key of this hash that had no entry in the index has one now, or was buried. Its record was touched last at a
    /// time, of state whose entries expire.
    pub fn left(&mut self, hash: u64, touched: Time) {
        self.live.take(hash, touched);
    }

    /// Whether entries can expire.
    ///
    /// # Errors
    /// [`ErrorKind::OverBudget`] if memory has no room to count keys by their last touch; [`ErrorKind::Unsupported`] if a
    /// checkpoint does not say when they were touched.
    pub fn can_expire(&self) -> Result<()> {
        self.live.can_expire()
    }

    /// Entries expire from now on. What is there was not touched after `now`.
    pub fn begin_expiring(&mut self, of: ErasedTouched, now: Time) {
        self.live.begin_expiring(of);
        self.levels.untouched_after_all(now);
    }

    /// Entries live so long without a touch.
    pub fn live_for(&mut self, nanos: u64) {
        self.live.live_for(nanos);
    }

    /// What was touched last before this is not there.
    pub fn expired_to(&self) -> Time {
        self.live.gone().map_or(Time::MIN, |gone| gone.before)
    }

    /// Whether the record of a payload has expired, and so is not there.
    fn has_expired(&self, payload: &[u8]) -> bool {
        // What cannot be decoded is left to the call that needs it, which meets the error.
        self.live.gone().is_some_and(|gone| gone.has(self.record_type, payload).unwrap_or(false))
    }

    /// What was touched last before `to` expires, as far as that can be told without a record. Gives until when, and how
    /// many keys did. Cost: O(key groups) if the time has moved.
    pub fn expire_to(&mut self, to: Time) -> (Time, u64) {
        let (tide, expired) = self.live.expire_to(to);
        self.drop_expired_levels();
        self.book_left();
        (tide, expired)
    }

    /// Lets go of levels of which no record is there any more, where entries expire. Reads nothing.
    fn drop_expired_levels(&mut self) {
        let Some(gone) = self.live.gone().filter(|_| self.moving.is_none()) else { return };
        if self.live() == 0 && !self.levels.is_empty() {
            // What copies there are is dead. A file that cannot be removed is left over until the next open.
            let _ = self.levels.clear();
            self.forget_buried();
        }
        self.levels.remove_untouched_since(gone.before);
    }

    /// Forgets the keys of a range of hashes, which is whole key groups. Reads nothing. The index is to forget its own
    /// after that; then this is called again, as records may have moved in between.
    ///
    /// # Errors
    /// As for [`Levels::cut`].
    pub fn cut(&mut self, hashes: &RangeInclusive<u64>) -> Result<()> {
        self.levels.cut(*hashes.start(), *hashes.end())?;
        self.moving.iter_mut().for_each(|moving| moving.cut(hashes));
        let (buried, memory) = (&mut self.buried, &mut self.grave_memory);
        buried.retain(|grave| {
            let stays = !hashes.contains(&grave.hash);
            memory.give(if stays { 0 } else { grave.bytes() });
            stays
        });
        self.live.cut(hashes);
        Ok(())
    }

    /// Records of levels, dead ones among them. Cost: O(runs).
    pub fn records(&self) -> u64 {
        self.levels.records()
    }

    /// Removes all, and gives all memory back. A file that cannot be removed is left over until the next open.
    pub fn clear(&mut self) {
        self.moving.take().into_iter().for_each(|moving| moving.give_up(&self.store));
        let _ = self.levels.clear();
        self.give_guides_up(u64::MAX);
        self.purse.give_back();
        (self.buried, self.going) = (Vec::new(), Vec::new());
        self.grave_memory.give_back();
        self.live.clear();
        (self.rest, self.lent, self.wants_move, self.found_nothing) = (0, 0, false, false);
        (self.nothing_until, self.asked_in_vain, self.rest_asking) = (0, 0, 0);
        (self.vain_in_row, self.stored_in_vain) = (0, None);
        (self.merge_rest, self.merges_given_up, self.in_need) = (0, 0, None);
        // The device may have a write of what was given up.
        self.book_left();
    }

    /// Bytes of buffers that it keeps when it is [cleared](ColdTier::clear).
    pub fn kept_bytes(&self) -> u64 {
        let reads = self.reads.booked_bytes() + self.levels.fetch_bytes();
        self.live.bytes() + reads + self.levels.leaving_bytes()
    }

    /// Gives up what can be read again: guides, and the buffer. Returns how many bytes that was.
    pub fn give_guides_up(&mut self, bytes: u64) -> u64 {
        // What a merge that was given up has left comes first.
        let leaving = self.levels.leaving_bytes();
        self.levels.has_left(false);
        let left = leaving - self.levels.leaving_bytes();
        left + self.levels.reclaim(bytes.saturating_sub(left))
    }

    /// Whether it has the little memory of tests.
    pub fn is_of_test(&self) -> bool {
        self.entries_max.is_some()
    }

    /// Gives up what pages and the index may have: guides. In the little memory of tests that is all.
    pub fn give_up_for_others(&mut self, bytes: u64) -> u64 {
        let given = self.give_guides_up(bytes);
        match self.entries_max {
            Some(_) if given < bytes => given + self.lend_saved(bytes - given),
            _ => given,
        }
    }

    /// Gives up what other states may have: guides, and what is saved up for moves and merges. Returns how much.
    pub fn give_up_to_states(&mut self, bytes: u64) -> u64 {
        let given = self.give_guides_up(bytes);
        given + self.lend_saved(bytes.saturating_sub(given))
    }

    /// Bytes that it could do without: guides, and what moves and merges have or is saved up for them.
    pub fn bytes_to_give(&self) -> u64 {
        self.guide_bytes() + self.held_bytes()
    }

    /// Moves that looked at all that is on storage, and found too little.
    pub fn moves_in_vain(&self) -> u64 {
        self.moves_in_vain
    }

    /// Whether nothing ever moved to it, and nothing could.
    fn is_useless(&self) -> bool {
        self.found_nothing && self.is_unused()
    }

    /// Whether nothing ever moved to it.
    fn is_unused(&self) -> bool {
        let has_moved = self.moved > 0 || self.has_levels() || self.live() > 0;
        let is_read = self.levels.has_fetches() || self.reads.left_bytes() > 0;
        let has_graves = !self.buried.is_empty() || !self.going.is_empty();
        let is_left = self.levels.leaving_bytes() == 0 && !self.levels.is_merging();
        !has_moved && !is_read && !has_graves && is_left
    }

    /// Lends memory that is saved up for moves and merges, which take it back when there is some. Returns how much.
    pub fn lend_saved(&mut self, bytes: u64) -> u64 {
        let saved = self.purse.bytes().min(bytes);
        self.purse.give_some_back(saved);
        saved
    }

    /// [`lend_saved`](ColdTier::lend_saved) of what is more than a move of tombstones takes, at least.
    pub fn lend_beyond_burials(&mut self, bytes: u64) -> u64 {
        let spare = self.purse.bytes().saturating_sub(self.least.move_bytes() + DIRECTORY_BYTES);
        self.lend_saved(bytes.min(spare))
    }

    /// What it has saved up that is more than the least that moves and merges take.
    pub(super) fn spare_bytes(&self) -> u64 {
        let least = self.least_bytes().saturating_sub(self.held_bytes() - self.purse.bytes());
        if self.entries_max.is_some() { 0 } else { self.purse.bytes().saturating_sub(least) }
    }

    /// What is lacking of the least that moves and merges take.
    pub(super) fn lacking_bytes(&self) -> u64 {
        self.least_bytes().saturating_sub(self.held_bytes())
    }

    /// [`lend_saved`](ColdTier::lend_saved) of what moves and merges can do without, if they are smaller.
    pub fn lend_spare(&mut self, bytes: u64) -> u64 {
        self.lend_saved(bytes.min(self.spare_bytes()))
    }

    /// Gives up the move or merge that goes on, which is begun again later, and the memory that is saved up for the next.
    /// Says whether there was any.
    fn give_work_up(&mut self) -> bool {
        let held = self.held_bytes();
        if let Some(moving) = self.moving.take_if(|moving| !moving.is_leaving()) {
            moving.give_up(&self.store);
            self.take_graves_back();
        }
        self.levels.give_up();
        self.levels.wait_to_leave(self.store.patience().unwrap_or(DROP_MOST));
        self.purse.give_back();
        self.book_left();
        self.held_bytes() < held
    }
}

impl Drop for ColdTier {
    /// What was begun goes. Files stay that a checkpoint may name: the next open removes the others.
    fn drop(&mut self) {
        // What is given up may leave a request with the device: that is waited for then.
        self.moving.take().into_iter().for_each(|moving| moving.give_up(&self.store));
        self.levels.give_up();
        self.levels.wait_to_leave(DROP_MOST);
        self.reads.wait_to_close();
        self.reads.book(0);
        self.levels.close_fetches();
    }
}

fn known_by(record: &RecordView<'_>) -> ColdPresence {
    if record.mark == TOMBSTONE { ColdPresence::Buried } else { ColdPresence::There }
}

fn remove_runs(store: &SegmentStore, runs: &[RunInfo]) {
    for run in runs {
        // What cannot be removed is left over until the next open.
        let _ = store.remove_file(&run.id.file_name());
    }
}
