//! Levels of runs, the newest first, and the merges that keep them few.
//!
//! A level is what one batch or one merge has written: runs whose hashes do not overlap. A look-up goes from the newest
//! level to the oldest. [`due`] says what is merged; the design has the simulation that it comes from.
//!
//! What it keeps true:
//! - Levels that are merged stay until all of the merge, or of a [part](parts) of it, is there: one that fails, or is given
//!   up, changes nothing.
//! - A merge, or a part of one, begins only if memory for all of it can be booked, and gives it back when it ends.
//! - Levels that come while a merge goes on are newer than what it writes.

mod cutting;
mod helping;
mod merging;
mod parts;
mod work;

use std::ops::{Range, RangeInclusive};
use std::rc::Rc;

use alluvium_pagestore::{
    Account, Error, ErrorKind, Helper, MemoryKind, Result, SegmentStore, Time,
};

use super::ahead::WantedBlocks;
use super::chunk::RecordView;
use super::directory::{RunId, RunInfo, first_not_below};
use super::run::{GuideUse, ReadBuffer, RunReads, SortedRun};
use super::unsynced::UnsyncedRun;
use crate::support::booked::Booked;

use helping::AbandonedMerge;
pub use helping::HelpedStep;
use merging::LevelMerge;
use merging::PILED_SHARE;
pub use merging::{ABOVE_MAX, FAILED_MAX, MERGED_MAX, SHARE, due};
use parts::PartedMerge;
pub use work::BoxedJudge;

/// Runs whose hashes do not overlap, in order.
#[derive(Debug)]
struct Level {
    number: u64,
    runs: Vec<SortedRun>,
    /// None of its records that count was touched after this.
    latest: Time,
}

impl Level {
    fn records(&self) -> u64 {
        self.runs.iter().map(|run| run.info().records).sum()
    }

    fn bytes(&self) -> u64 {
        self.runs.iter().map(|run| run.info().bytes).sum()
    }

    /// The first hash that counts, if the first run has one.
    fn first_hash(&self) -> Option<u64> {
        let first = self.runs.first()?.info();
        match first.cut_of(first.first_hash) {
            Some(last) => last.checked_add(1),
            None => Some(first.first_hash),
        }
    }

    /// These files of it are not synced.
    fn are_unsynced(&mut self, unsynced: &[UnsyncedRun]) {
        for run in &mut self.runs {
            let file = unsynced.iter().find(|file| file.id() == run.info().id);
            run.unsynced = file.cloned();
        }
    }

    /// The runs that may have a hash of a range.
    fn runs_within(&self, hashes: &RangeInclusive<u64>) -> &[SortedRun] {
        let start = self.runs.partition_point(|run| run.info().last_hash < *hashes.start());
        let end = self.runs.partition_point(|run| run.info().first_hash <= *hashes.end());
        &self.runs[start..end.max(start)]
    }

    /// The runs that may have a hash: one, or neighbours that share it.
    fn runs_of(&self, hash: u64) -> Range<usize> {
        let start = first_not_below(&self.runs, hash, |run| run.info().last_hash);
        let after = self.runs[start..].iter().take_while(|run| run.info().first_hash <= hash);
        let end = start + after.count();
        match self.runs[start..end].iter().any(|run| run.info().is_cut(hash)) {
            true => start..start,
            false => start..end,
        }
    }
}

/// Hashes that are looked for at once, at most: there is a bit for each.
pub const AT_ONCE: usize = u64::BITS as usize;

impl Level {
    /// What a look-up of a hash reads first of it, and its number. None: it has not the hash.
    fn wanted(&self, hash: u64) -> Option<(u64, WantedBlocks)> {
        let wanted = self.runs[self.runs_of(hash)].iter().find_map(|run| run.wanted(hash))?;
        Some((self.number, wanted))
    }

    /// Which of up to 64 hashes it may have, but for those that are `known` to be somewhere.
    fn may_have_each(&self, hashes: &[u64], known: u64) -> u64 {
        debug_assert!(hashes.len() <= AT_ONCE, "{} hashes at once", hashes.len());
        let (mut places, mut there) = ([None; AT_ONCE], 0);
        // Three passes, so that what each reads is on its way when the next comes.
        for (nth, hash) in hashes.iter().enumerate().filter(|(nth, _)| known >> nth & 1 == 0) {
            for run in self.runs_of(*hash) {
                for partition in self.runs[run].partitions_of(*hash) {
                    // Few hashes stand where two partitions meet.
                    match &mut places[nth] {
                        None => places[nth] = Some((run, partition)),
                        Some(_) => there |= 1 << nth,
                    }
                    self.runs[run].prefetch_guide(partition);
                }
            }
        }
        for (nth, hash) in hashes.iter().enumerate() {
            let Some((run, partition)) = places[nth] else { continue };
            self.runs[run].prefetch(partition, *hash);
        }
        for (nth, hash) in hashes.iter().enumerate() {
            let Some((run, partition)) = places[nth] else { continue };
            let is_absent = self.runs[run].look(partition, *hash) == GuideUse::Absent;
            there |= u64::from(!is_absent) << nth;
        }
        there
    }
}

impl Level {
    /// [`may_have_each`](Level::may_have_each) of hashes in order. Reads guides of them that memory does not have, and keeps
    /// them if there is room.
    fn may_have_in_order(&mut self, hashes: &[u64], known: u64, buffer: &mut ReadBuffer) -> u64 {
        let (mut at, mut there) = (0, 0);
        while let Some(hash) = hashes.get(at) {
            let (runs, mut count) = (self.runs_of(*hash), 1);
            let is_one = runs.len() == 1;
            for run in &mut self.runs[runs] {
                let (bits, of_run) = run.may_have_in_order(&hashes[at..], known >> at, buffer);
                there |= bits << at;
                count = if is_one { of_run } else { 1 };
            }
            at += count;
        }
        there
    }
}

/// Whether memory is what was missing.
fn is_short(error: &Error) -> bool {
    error.kind() == ErrorKind::OverBudget
}

/// What levels are and have done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LevelStats {
    /// Levels.
    pub levels: u64,
    /// Runs.
    pub runs: u64,
    /// Records, older ones of a key and tombstones among them.
    pub records: u64,
    /// Bytes of files.
    pub bytes: u64,
    /// Bytes of guides in memory.
    pub guide_bytes: u64,
    /// Of these, bytes of fences.
    pub fence_bytes: u64,
    /// Bytes of directories in memory.
    pub directory_bytes: u64,
    /// Bytes that merges wrote.
    pub merged_bytes: u64,
    /// Bytes of runs that merges read.
    pub merge_read_bytes: u64,
    /// Merges, or parts of them, that ended.
    pub merges: u64,
    /// Nanoseconds of a helper's shares of these.
    pub helper_nanos: u64,
    /// Nanoseconds in which these built filters and fences, on either thread.
    pub built_nanos: u64,
    /// Reads of runs that are there, and of runs that were merged.
    pub reads: RunReads,
}

/// Levels of runs of one state. Belongs to its owner's thread.
#[derive(Debug)]
pub struct Levels {
    store: SegmentStore,
    account: Rc<Account>,
    /// The hash of the state's name.
    state: u64,
    /// The newest first.
    levels: Vec<Level>,
    next: u64,
    merging: Option<LevelMerge>,
    /// Merges in parts that are under way, that of the oldest levels first.
    parted: Vec<PartedMerge>,
    /// Bytes of a part. None: what partitions that are written have.
    part_bytes: Option<u64>,
    /// Memory of a part that is over, for the next one. None where parts are as long as partitions say.
    kept_for_next: Option<Booked>,
    /// Whether the next merge is due [early](Levels::merge_early).
    is_early: bool,
    /// Whether levels [pile up](Levels::may_pile_up).
    piles_up: bool,
    /// Who merges. None: the owner, in its steps.
    helper: Option<Helper>,
    /// Merges that were given up while the helper has them.
    leaving: Vec<AbandonedMerge>,
    pub(super) buffer: ReadBuffer,
    /// Memory that guides leave to others.
    keep_free: u64,
    /// Bytes of a guide that memory had no room for.
    lacked: u64,
    /// Whether merges sync what they write.
    syncs: bool,
    /// What cuts take.
    cut_memory: Booked,
    done: LevelStats,
}

impl Levels {
    /// No levels. The name of their state has this hash.
    pub fn new(store: SegmentStore, account: Rc<Account>, state: u64) -> Self {
        let buffer = ReadBuffer::new(account.clone());
        let (levels, done) = (Vec::new(), LevelStats::default());
        let (next, keep_free, lacked) = (0, 0, 0);
        let (merging, syncs) = (None, true);
        let cut_memory = Booked::none(account.clone(), MemoryKind::Tables);
        Self {
            store,
            account,
            state,
            levels,
            next,
            merging,
            parted: Vec::new(),
            part_bytes: None,
            kept_for_next: None,
            is_early: false,
            piles_up: false,
            helper: None,
            leaving: Vec::new(),
            buffer,
            keep_free,
            lacked,
            syncs,
            cut_memory,
            done,
        }
    }

    /// Merges leave it to [`unsynced`](Levels::unsynced) to sync what they write.
    #[must_use]
    pub fn synced_by_owner(self) -> Self {
        Self { syncs: false, ..self }
    }

    /// Guides are kept in memory only as long as so many bytes stay free.
    #[must_use]
    pub fn keeping_free(self, bytes: u64) -> Self {
        Self { keep_free: bytes, ..self }
    }

    /// Adds a level, newer than all that are there, of runs in order. Reads their directories.
    ///
    /// # Errors
    /// Those of [`SortedRun::open`]; nothing was added then.
    pub fn add(&mut self, runs: &[RunInfo]) -> Result<()> {
        let level = self.open(runs)?;
        self.levels.insert(0, level);
        self.cut_memory.adjust_to(self.cut_bytes());
        Ok(())
    }

    /// [`add`](Levels::add) of runs that the device may not keep yet: see [`unsynced`](Levels::unsynced).
    ///
    /// # Errors
    /// As for `add`.
    pub fn add_unsynced(&mut self, runs: &[RunInfo], unsynced: &[UnsyncedRun]) -> Result<()> {
        self.add(runs)?;
        self.levels[0].are_unsynced(unsynced);
        Ok(())
    }

    /// How many files the device may not keep yet.
    pub fn unsynced_count(&self) -> usize {
        let runs = self.levels.iter().flat_map(|level| &level.runs);
        runs.filter(|run| run.unsynced.is_some()).count()
    }

    /// Bytes of [`infos`](Levels::infos).
    pub fn info_bytes(&self) -> u64 {
        let runs = self.levels.iter().flat_map(|level| &level.runs).map(SortedRun::info);
        let bytes = runs.map(|run| size_of_val(run) + size_of_val(&run.cuts[..])).sum::<usize>();
        (bytes + self.levels.len() * size_of::<Vec<RunInfo>>()) as u64
    }

    /// The files of runs that the device may not keep yet: whoever names them in a checkpoint has them synced before.
    pub fn unsynced(&self) -> Vec<UnsyncedRun> {
        let runs = self.levels.iter().flat_map(|level| &level.runs);
        runs.filter_map(|run| run.unsynced.clone()).collect()
    }

    /// The device keeps these runs now.
    pub fn are_synced(&mut self, ids: &[RunId]) {
        for run in self.levels.iter_mut().flat_map(|level| &mut level.runs) {
            if ids.contains(&run.info().id) {
                run.unsynced = None;
            }
        }
    }

    fn open(&mut self, runs: &[RunInfo]) -> Result<Level> {
        let open =
            |info: &RunInfo| SortedRun::open(self.store.clone(), info.clone(), &self.account);
        let mut opened: Result<Vec<SortedRun>> = runs.iter().map(open).collect();
        if opened.as_ref().is_err_and(is_short) && self.reclaim(u64::MAX) > 0 {
            let open =
                |info: &RunInfo| SortedRun::open(self.store.clone(), info.clone(), &self.account);
            opened = runs.iter().map(open).collect();
        }
        let mut runs = opened?;
        runs.iter_mut().for_each(|run| run.keep_free(self.keep_free));
        self.next += 1;
        Ok(Level { number: self.next, runs, latest: Time::MAX })
    }

    /// The number of the newest level, by which it is known as long as it is there.
    pub fn newest(&self) -> Option<u64> {
        self.levels.first().map(|level| level.number)
    }

    /// None of the records of a level that count was touched after a time. A merged level is as late as the latest of
    /// those that it was merged from.
    pub fn untouched_after(&mut self, number: u64, latest: Time) {
        let level = self.levels.iter_mut().find(|level| level.number == number);
        level.into_iter().for_each(|level| level.latest = latest);
    }

    /// No record of any level was touched after a time.
    pub fn untouched_after_all(&mut self, latest: Time) {
        self.levels.iter_mut().for_each(|level| level.latest = level.latest.min(latest));
    }

    /// Removes the oldest levels, of which no record was touched since a time, unless levels are being merged. Reads
    /// nothing. A file that cannot be removed is left over until the next open.
    pub fn remove_untouched_since(&mut self, time: Time) {
        while self.merging.is_none()
            && self.levels.last().is_some_and(|oldest| oldest.latest < time)
        {
            let oldest = self.levels.pop().expect("looked at above");
            let _ = self.remove(oldest.runs);
            self.forget_parted();
            self.cut_memory.adjust_to(self.cut_bytes());
        }
    }

    /// Shows the records of a hash, the newest first among those of one order, until `visit` has seen enough, and says
    /// whether it had. Waits for the device: see [`SortedRun::find`].
    ///
    /// # Errors
    /// Those of [`SortedRun::find`] and of `visit`.
    pub fn find(
        &mut self,
        hash: u64,
        visit: &mut dyn FnMut(RecordView<'_>) -> Result<bool>,
    ) -> Result<bool> {
        let found = self.find_in_all(hash, visit);
        self.buffer.fetches.was_looked_up(hash);
        found
    }

    fn find_in_all(
        &mut self,
        hash: u64,
        visit: &mut dyn FnMut(RecordView<'_>) -> Result<bool>,
    ) -> Result<bool> {
        let first = self.buffer.ahead.first_level(hash, self.next);
        let first = first.and_then(|number| self.position(number)).unwrap_or(0);
        for level in first..self.levels.len() {
            for run in self.levels[level].runs_of(hash) {
                if self.find_in(level, run, hash, visit)? {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// The runs of each level that may have a hash, the newest level first.
    pub(super) fn runs_of(&self, hash: u64) -> impl Iterator<Item = &[SortedRun]> {
        self.levels.iter().map(move |level| &level.runs[level.runs_of(hash)])
    }

    /// Looks in one run. If memory is short, guides of all runs make room.
    fn find_in(
        &mut self,
        level: usize,
        run: usize,
        hash: u64,
        visit: &mut dyn FnMut(RecordView<'_>) -> Result<bool>,
    ) -> Result<bool> {
        let mut is_shown = false;
        let found = self.levels[level].runs[run].find(hash, &mut self.buffer, &mut |record| {
            is_shown = true;
            visit(record)
        });
        let found = match found {
            Err(error) if is_short(&error) && !is_shown && self.reclaim(u64::MAX) > 0 => {
                self.levels[level].runs[run].find(hash, &mut self.buffer, visit)
            }
            found => found,
        };
        self.lacked = self.lacked.max(self.levels[level].runs[run].take_lacked());
        found
    }

    /// Bytes that have to be free for a guide to be kept which a look-up had to read, since the last call. None: memory
    /// had room for all.
    pub fn take_lacked(&mut self) -> Option<u64> {
        let bytes = std::mem::take(&mut self.lacked);
        (bytes > 0).then_some(bytes + self.keep_free)
    }

    /// Reads at once what look-ups of these hashes read first, until it is [forgotten](Levels::forget_ahead). Waits for
    /// the device; what cannot be read, or has no room while so many bytes stay free, is left to the look-ups.
    pub fn read_ahead(&mut self, hashes: &[u64], keep_free: u64) {
        if self.buffer.ahead.is_behind_on(&self.store) {
            return;
        }
        self.buffer.ahead.forget();
        let Self { levels, buffer, next, .. } = self;
        let mut wanted = Vec::with_capacity(hashes.len());
        for hash in hashes {
            let Some((level, first)) = levels.iter().find_map(|level| level.wanted(*hash)) else {
                continue;
            };
            buffer.ahead.first_level_is(*hash, level, *next);
            if buffer.fetches.find(first.run, first.offset, first.bytes).is_none() {
                wanted.push(first);
            }
        }
        buffer.ahead.read(&self.store, wanted, keep_free);
    }

    /// Gives the memory of what was read ahead back. Returns how many bytes that was.
    pub fn forget_ahead(&mut self) -> u64 {
        self.buffer.ahead.forget()
    }

    /// Bytes that are booked for what is read ahead.
    #[cfg(test)]
    pub(crate) fn booked_ahead(&self) -> u64 {
        self.buffer.ahead.booked()
    }

    pub(super) fn store(&self) -> &SegmentStore {
        &self.store
    }

    /// Their records. Cost: O(runs).
    pub fn records(&self) -> u64 {
        self.levels.iter().map(Level::records).sum()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.levels.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.levels.is_empty()
    }

    /// Whether a level may have the hash, going by the guides in memory. Reads nothing.
    pub fn may_have(&self, hash: u64) -> bool {
        self.levels
            .iter()
            .any(|level| level.runs[level.runs_of(hash)].iter().any(|run| run.may_have(hash)))
    }

    /// [`may_have`](Levels::may_have) of up to 64 hashes, whose memory accesses overlap: a bit for each.
    ///
    /// # Panics
    /// If there are more.
    pub fn may_have_each(&self, hashes: &[u64]) -> u64 {
        self.levels.iter().fold(0, |known, level| known | level.may_have_each(hashes, known))
    }

    /// [`may_have_each`](Levels::may_have_each) of hashes in order. Reads guides of them that memory does not have, waits for
    /// the device, and keeps them if there is room. A hash whose guide cannot be read, or kept, may be there.
    ///
    /// # Panics
    /// If there are more than 64.
    pub fn may_have_in_order(&mut self, hashes: &[u64]) -> u64 {
        let Self { levels, buffer, lacked, .. } = self;
        levels.iter_mut().fold(0, |known, level| {
            let there = known | level.may_have_in_order(hashes, known, buffer);
            let runs = level.runs.iter_mut();
            *lacked = runs.map(SortedRun::take_lacked).fold(*lacked, u64::max);
            there
        })
    }

    /// Levels pile up from now on while records are loaded, of which so many count: each is merged once then, and not several
    /// times. None: they do not any more. They do not either while many records are dead.
    pub fn may_pile_up(&mut self, live: Option<u64>) {
        let few_are_dead = |live: u64| self.records() as f64 <= (1.0 + PILED_SHARE) * live as f64;
        self.piles_up = live.is_some_and(few_are_dead);
    }

    /// The number of the last level that was opened. As long as it is the same, no level has a hash that none had.
    pub fn last_opened(&self) -> u64 {
        self.next
    }

    /// Bytes of the longest read of a look-up, at most.
    pub fn longest_read(&self) -> u64 {
        let runs = self.levels.iter().flat_map(|level| &level.runs);
        let longest =
            |run: &SortedRun| 2 * u64::from(run.info().longest_chunk.max(run.info().longest_guide));
        runs.map(longest).max().unwrap_or(0)
    }

    fn remove(&mut self, runs: impl IntoIterator<Item = SortedRun>) -> Result<()> {
        let mut removed = Ok(());
        for run in runs {
            self.done.reads.add(&run.reads());
            removed = removed.and(run.remove());
        }
        removed
    }

    /// Removes all levels.
    ///
    /// # Errors
    /// Those of removing files, which are then left over until the next open.
    pub fn clear(&mut self) -> Result<()> {
        self.give_up();
        self.is_early = false;
        let levels = std::mem::take(&mut self.levels);
        self.parted.clear();
        self.cut_memory.give_back();
        self.remove(levels.into_iter().flat_map(|level| level.runs))
    }

    /// Gives up the buffer and guides in memory, those of the newest levels first, until so many bytes are free. Says how many are.
    pub fn reclaim(&mut self, bytes: u64) -> u64 {
        let mut given = self.buffer.give_up();
        for run in self.levels.iter_mut().flat_map(|level| &mut level.runs) {
            if given >= bytes {
                break;
            }
            given += run.give_up(bytes - given);
        }
        given
    }

    /// The runs of each level, the newest first, for [`add`](Levels::add) in the other order.
    pub fn infos(&self) -> Vec<Vec<RunInfo>> {
        let infos = |level: &Level| level.runs.iter().map(|run| run.info().clone()).collect();
        self.levels.iter().map(infos).collect()
    }

    /// The runs of each level that may have a hash of a range which is not cut, the newest level first; levels without one
    /// are left out.
    pub fn infos_within(&self, hashes: &RangeInclusive<u64>) -> Vec<Vec<RunInfo>> {
        let infos = |level: &Level| -> Vec<RunInfo> {
            let runs = level.runs_within(hashes).iter().map(SortedRun::info);
            runs.filter(|info| !info.is_cut_within(hashes)).cloned().collect()
        };
        self.levels.iter().map(infos).filter(|runs| !runs.is_empty()).collect()
    }

    /// Bytes of all guides, also of those that are not in memory. Cost: O(runs).
    pub fn all_guide_bytes(&self) -> u64 {
        let runs = self.levels.iter().flat_map(|level| &level.runs);
        runs.map(|run| run.info().guide_bytes).sum()
    }

    /// Bytes of guides in memory. Cost: O(runs).
    pub fn guide_bytes(&self) -> u64 {
        let runs = self.levels.iter().flat_map(|level| &level.runs);
        runs.map(|run| run.memory_bytes().0).sum()
    }

    /// Bytes of runs that merges read. Cost: O(1).
    pub fn stats_merge_read_bytes(&self) -> u64 {
        self.done.merge_read_bytes
    }

    /// Merges that have ended.
    pub fn stats_merges(&self) -> u64 {
        self.done.merges
    }

    /// Reads of runs that are there, and of runs that were merged. Cost: O(runs).
    pub fn reads(&self) -> RunReads {
        let mut reads = self.done.reads;
        self.levels.iter().flat_map(|level| &level.runs).for_each(|run| reads.add(&run.reads()));
        reads
    }

    /// What they are and have done. Cost: O(partitions).
    pub fn stats(&self) -> LevelStats {
        let mut stats = LevelStats { levels: self.levels.len() as u64, ..self.done };
        for run in self.levels.iter().flat_map(|level| &level.runs) {
            let (guides, directories) = run.memory_bytes();
            stats.runs += 1;
            stats.records += run.info().records;
            stats.bytes += run.info().bytes;
            stats.guide_bytes += guides;
            stats.fence_bytes += run.fence_bytes();
            stats.directory_bytes += directories;
            stats.reads.add(&run.reads());
        }
        stats
    }
}
