//! Merging levels, in steps.
//!
//! What it keeps true: levels that are merged stay until all of the merge, or of its part, is there; one that fails, or is
//! given up, changes nothing.

use std::ops::Range;

use alluvium_pagestore::{Error, MemoryKind, Result};

use super::parts::DueLevels;
use super::work::{MergeWork, MergeWorker};
use super::{Level, Levels};
use crate::runs::directory::RunInfo;
use crate::runs::merge::{Judge, MergeSizes, is_of_device};
use crate::runs::writer::RunSizes;
use crate::support::booked::Booked;

/// All levels are merged into one when those above the oldest have this share of its records. More writes less, and
/// takes more memory and space.
pub const SHARE: f64 = 0.65;
/// The same where memory lacks for what is to come, and as large a share of all records is dead.
pub const EARLY_SHARE: f64 = 1.0 / 16.0;
/// With so many levels above the oldest some of them are merged: those for which a level less costs least.
pub const ABOVE_MAX: usize = 7;
/// While levels pile up some are merged when there are so many, whatever share of the records they have, as long as dead records
/// are no more than this share of those that count.
pub(super) const PILED_MAX: usize = ABOVE_MAX + 1;
pub(super) const PILED_SHARE: f64 = 0.25;
/// So many levels are merged at once, at most.
pub const MERGED_MAX: usize = ABOVE_MAX + 1;

/// How many of the newest levels are to be merged, whose records these are, the newest first, where those above the oldest
/// may have a share of its records. None: there are few.
pub fn due(records: &[u64], share: f64) -> Option<usize> {
    let (oldest, above) = records.split_last()?;
    if above.is_empty() {
        return None;
    }
    if above.iter().sum::<u64>() as f64 > share * *oldest as f64 {
        return Some(records.len().min(MERGED_MAX));
    }
    due_above(above, |_| true)
}

/// [`due`] while levels pile up.
pub(super) fn due_of_pile(records: &[u64]) -> Option<usize> {
    (records.len() >= PILED_MAX).then(|| cheapest(records, |_| true)).flatten()
}

/// How many of the newest of some levels are to be merged, whatever is below them, of as many as may be. None: there are few.
pub(super) fn due_above(above: &[u64], may_be: impl Fn(&usize) -> bool) -> Option<usize> {
    if above.len() < ABOVE_MAX { None } else { cheapest(above, may_be) }
}

/// How many of the newest of some levels are to be merged, of as many as may be: those for which a level less costs least.
fn cheapest(above: &[u64], may_be: impl Fn(&usize) -> bool) -> Option<usize> {
    // The square favours merges of many: what is merged now need not be merged with each later one.
    let cost = |count: &usize| {
        let sum: u64 = above[..*count].iter().sum();
        sum as f64 / ((count - 1) * (count - 1)) as f64
    };
    let counts = 2..=above.len().min(MERGED_MAX);
    counts.filter(may_be).min_by(|one, other| cost(one).total_cmp(&cost(other)))
}

/// Of a merge whose last parts are left it is not known well how many records it has in all.
const LAST_SHARE: f64 = 1.0 / 16.0;
/// What is noted of the cuts of a part takes no more than this.
const NOTED_BYTES: u64 = 1024;

/// A merge under way.
#[derive(Debug)]
pub(super) struct LevelMerge {
    pub(super) worker: MergeWorker,
    /// The levels that it merges.
    pub(super) numbers: Vec<u64>,
    /// Whether the oldest level is one of them.
    pub(super) is_last: bool,
    /// The first hash of the part. Not the lowest: others are over.
    pub(super) from: u64,
    /// Bytes of the files that are merged, and those that are read.
    bytes: u64,
    pub(super) read_bytes: u64,
    /// What was cut since it began, which it may have written before.
    pub(super) cuts: Vec<(u64, u64)>,
    /// Steps that failed since the last that did not.
    pub(super) failed: u32,
    memory: Booked,
    /// Of that, for the directories of what it writes.
    directory_bytes: u64,
}

/// A merge, or a move to a new level, is given up when so many of its steps have failed one after the other: what it
/// wrote does not take space where the device is out of order.
pub const FAILED_MAX: u32 = 32;

impl Levels {
    /// Bytes that have to be free for the merge which is due to begin: those that it takes, and those of a look-up
    /// meanwhile. None if there is none, or one goes on.
    pub fn due_bytes(&self, runs: RunSizes, read_bytes: usize) -> u64 {
        match self.due().filter(|_| self.merging.is_none()) {
            Some(due) => {
                let (_, bytes, directories) = self.sizes_of(&due, runs, read_bytes);
                bytes + directories + self.longest_read()
            }
            None => 0,
        }
    }

    /// Has levels be merged before their share says so, as memory lacks. `live` of their records count. Says whether some are
    /// due then: directories come back only where many records are dead.
    pub fn merge_early(&mut self, live: u64) -> bool {
        let records = self.records();
        let has_dead = records.saturating_sub(live) as f64 > EARLY_SHARE * records as f64;
        self.is_early = has_dead;
        self.is_early &= self.due().is_some();
        self.is_early
    }

    /// Whether levels are being merged.
    pub fn is_merging(&self) -> bool {
        self.merging.is_some()
    }

    /// Bytes of levels that the merge which goes on, or is due, is yet to read.
    pub fn left_bytes(&self) -> u64 {
        if let Some(merging) = &self.merging {
            return merging.bytes.saturating_sub(merging.read_bytes);
        }
        self.due().map_or(0, |due| self.levels[due.range].iter().map(Level::bytes).sum())
    }

    /// Bytes that are booked for the merge which goes on, without the directories of what it writes.
    pub fn merging_bytes(&self) -> u64 {
        let kept = self.kept_for_next.as_ref().map_or(0, Booked::bytes);
        let work_of = |merging: &LevelMerge| merging.memory.bytes() - merging.directory_bytes;
        kept + self.merging.as_ref().map_or(0, work_of)
    }

    /// Whether levels are to be merged, or are being merged.
    pub fn is_behind(&self) -> bool {
        self.merging.is_some() || self.due().is_some()
    }

    /// Merges for about `fuel` bytes of records; begins the merge that is due if there is none, and memory has room for
    /// it. `judge_of` makes the judge of a merge, of which it is told whether the oldest level is part of it. Says
    /// whether anything was done.
    ///
    /// # Errors
    /// Those of the merge: the levels are as they were. It goes on with the next step if the device failed, and not again
    /// and again; else it was given up, and is due again.
    ///
    /// # Panics
    /// If a helper has the merge.
    pub fn step<J: Judge>(
        &mut self,
        fuel: u64,
        runs: RunSizes,
        read_bytes: usize,
        judge_of: impl FnOnce(bool) -> J,
    ) -> Result<bool> {
        if self.merging.is_none() && !self.begin(runs, read_bytes)? {
            return Ok(false);
        }
        let is_last = self.merging.as_ref().is_some_and(|merging| merging.is_last);
        let stepped = self.go_on(fuel, &mut judge_of(is_last));
        self.stepped(stepped)
    }

    /// A step has ended in this way: the merge may be over.
    pub(super) fn stepped(&mut self, stepped: Result<bool>) -> Result<bool> {
        match stepped {
            Ok(true) => self.install(),
            Ok(false) => Ok(true),
            Err(error) => {
                self.failed(&error);
                Err(error)
            }
        }
    }

    /// A step of the merge has failed: it goes on with the next, or is given up.
    fn failed(&mut self, error: &Error) {
        let Some(merging) = &mut self.merging else { return };
        merging.failed += 1;
        let goes_on = is_of_device(error) && merging.worker.can_go_on();
        if !goes_on || merging.failed == FAILED_MAX {
            self.give_up();
        }
    }

    /// Begins the merge that is due. Says whether there is one and memory for it.
    fn begin(&mut self, runs: RunSizes, read_bytes: usize) -> Result<bool> {
        let Some((due, mut work, memory)) = self.prepare(runs, read_bytes) else {
            return Ok(false);
        };
        work.open()?;
        self.merging = Some(self.merging_of(due, MergeWorker::Here(work, None), memory));
        self.is_early = false;
        Ok(true)
    }

    /// What the merge that is due works with, which levels it merges, and its memory, if there is room for it, with the
    /// bytes of that for directories.
    pub(super) fn prepare(
        &mut self,
        runs: RunSizes,
        read_bytes: usize,
    ) -> Option<(DueLevels, Box<MergeWork>, (Booked, u64))> {
        let due = self.due()?;
        let (sizes, bytes, directories) = self.sizes_of(&due, runs, read_bytes);
        let memory = self.book(bytes + directories)?;
        let merged = self.infos_of(due.range.clone());
        let part = self.part_from(due.from, &runs);
        let work = MergeWork::new(self.store.clone(), self.state, merged, sizes, part);
        Some((due, Box::new(work), (memory, directories)))
    }

    pub(super) fn merging_of(
        &self,
        due: DueLevels,
        worker: MergeWorker,
        (memory, directory_bytes): (Booked, u64),
    ) -> LevelMerge {
        let merged = &self.levels[due.range.clone()];
        LevelMerge {
            worker,
            numbers: merged.iter().map(|level| level.number).collect(),
            is_last: due.range.end == self.levels.len(),
            from: due.from,
            bytes: merged.iter().map(Level::bytes).sum(),
            read_bytes: 0,
            cuts: Vec::new(),
            failed: 0,
            memory,
            directory_bytes,
        }
    }

    /// Bytes to book for the directories of what a part of a merge writes, which stand beside those of what it merges until
    /// it is over: so no part is made in vain. Where parts have so many bytes their owner has memory for them.
    fn directory_bytes_of(&self, merged: &[Vec<RunInfo>], runs: &RunSizes) -> u64 {
        if self.part_bytes.is_some() {
            return 0;
        }
        let infos = || merged.iter().flatten();
        let (records, bytes) = infos()
            .fold((0, 0), |(records, bytes), info| (records + info.records, bytes + info.bytes));
        let part = self.part_from(0, runs);
        // A record that is longer than half a block takes a block.
        runs.directories_most(records, bytes.min(2 * part.bytes), part.partitions)
    }

    fn infos_of(&self, range: Range<usize>) -> Vec<Vec<RunInfo>> {
        self.infos().drain(range).collect()
    }

    /// The sizes of a merge of levels, what it takes, and what is booked with it for directories.
    fn sizes_of(
        &self,
        due: &DueLevels,
        runs: RunSizes,
        read_bytes: usize,
    ) -> (MergeSizes, u64, u64) {
        let is_last = due.range.end == self.levels.len();
        let merged = self.infos_of(due.range.clone());
        let infos: Vec<&[RunInfo]> = merged.iter().map(Vec::as_slice).collect();
        let left: u64 = merged.iter().flatten().map(|info| info.records).sum();
        // Those that the parts before had are counted as well.
        let share = (u64::MAX - due.from) as f64 / u64::MAX as f64;
        let records = (left as f64 / share.max(LAST_SHARE)) as u64;
        // What stays longest has the short filters: they are most of what filters take.
        let is_wide = runs.is_wide && !is_last;
        let runs = RunSizes { syncs: self.syncs, is_wide, ..runs.expecting(records) };
        let directories = self.directory_bytes_of(&merged, &runs);
        let sizes = MergeSizes::of(runs, read_bytes, &infos);
        // A helper waits for its reads; the owner does not for ever.
        let sizes = MergeSizes { reads_ahead: self.helper.is_some(), ..sizes };
        (sizes, sizes.memory_bytes(&infos), directories)
    }

    /// Books memory for a merge, if there is room when guides make some. A look-up has room beside it.
    fn book(&mut self, bytes: u64) -> Option<Booked> {
        let kept = self.kept_for_next.take();
        let mut memory =
            kept.unwrap_or_else(|| Booked::none(self.account.clone(), MemoryKind::Buffers));
        let missing = bytes.saturating_sub(memory.bytes());
        if missing == 0 {
            return Some(memory);
        }
        // A part that follows takes what is noted of its cuts more.
        let missing = missing + if self.keeps_memory() { NOTED_BYTES } else { 0 };
        let follows = memory.bytes() > 0;
        let needed = missing + if follows { 0 } else { self.longest_read() };
        self.reclaim(needed.saturating_sub(self.account.available()));
        let has_room = self.account.available() >= needed;
        if has_room && memory.try_reserve_more(missing) {
            return Some(memory);
        }
        // What a part had stays with the next one, which is tried again.
        self.kept_for_next = Some(memory).filter(|memory| memory.bytes() > 0);
        None
    }

    /// Whether a part leaves its memory to the next one. Else its owner saves memory up.
    fn keeps_memory(&self) -> bool {
        self.part_bytes.is_some_and(|bytes| bytes < u64::MAX)
    }

    fn go_on(&mut self, fuel: u64, judge: &mut dyn Judge) -> Result<bool> {
        let merging = self.merging.as_mut().expect("a merge was begun");
        let MergeWorker::Here(work, _) = &mut merging.worker else {
            panic!("a helper has the merge")
        };
        let done = work.step(fuel, judge);
        self.done.merge_read_bytes += work.read_bytes().saturating_sub(merging.read_bytes);
        merging.read_bytes = work.read_bytes();
        if matches!(done, Ok(false)) {
            merging.failed = 0;
        }
        done
    }

    /// The merge, or a part of it, is over: what it wrote stands where the levels stood that it merged, or above them.
    fn install(&mut self) -> Result<bool> {
        let merging = self.merging.as_mut().expect("a merge was begun");
        let MergeWorker::Here(work, _) = &merging.worker else { panic!("a helper has the merge") };
        let (next, sealed) = (work.next_hash(), work.sealed.clone());
        let directories = std::mem::take(&mut merging.directory_bytes);
        merging.memory.give_some_back(directories);
        let mut level = match self.open(&sealed) {
            Ok(level) => level,
            Err(error) => {
                // What was opened of it has given back what it took.
                if let Some(merging) = &mut self.merging
                    && merging.memory.try_reserve_more(directories)
                {
                    merging.directory_bytes = directories;
                }
                self.failed(&error);
                return Err(error);
            }
        };
        let mut merging = self.merging.take().expect("looked at above");
        if let MergeWorker::Here(work, _) = &mut merging.worker {
            level.are_unsynced(&work.unsynced);
            self.done.helper_nanos += work.helper_nanos;
            self.done.built_nanos += work.built_nanos();
            work.leave();
        }
        for run in &mut level.runs {
            merging.cuts.iter().for_each(|(first, last)| run.cut(*first, *last));
        }
        self.done.merges += 1;
        self.done.merged_bytes += level.runs.iter().map(|run| run.info().bytes).sum::<u64>();
        let at = self.levels.iter().position(|level| level.number == merging.numbers[0]);
        let at = at.expect("levels stay while they are merged");
        let merged = at..at + merging.numbers.len();
        let latest = self.levels[merged.clone()].iter().map(|level| level.latest).max();
        level.latest = latest.unwrap_or(level.latest);
        if next.is_some() && self.keeps_memory() {
            // The next part is to begin whatever takes memory meanwhile.
            let none = Booked::none(self.account.clone(), MemoryKind::Buffers);
            self.kept_for_next = Some(std::mem::replace(&mut merging.memory, none));
        }
        let removed = match next {
            Some(next) => {
                self.install_part(level, (merging, at), next);
                Ok(())
            }
            None => {
                let merged: Vec<Level> = self.levels.drain(merged).collect();
                self.install_last(level, (merging, at));
                self.remove(merged.into_iter().flat_map(|level| level.runs))
            }
        };
        self.remove_what_is_cut();
        self.forget_parted();
        self.cut_memory.adjust_to(self.cut_bytes());
        removed.map(|()| true)
    }

    /// Gives up the merge that goes on, and removes what it wrote. Where a helper has it, its memory comes back when that
    /// has seen so.
    pub fn give_up(&mut self) {
        self.kept_for_next = None;
        let Some(LevelMerge { worker, mut memory, directory_bytes, .. }) = self.merging.take()
        else {
            return;
        };
        memory.give_some_back(directory_bytes);
        match worker {
            // It removes what it wrote.
            MergeWorker::Here(work, _) => drop(work),
            MergeWorker::Away(away) => self.leave_alone(away, memory),
            MergeWorker::Gone => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_due_keeps_levels_few() {
        assert_eq!(due(&[], SHARE), None);
        assert_eq!(due(&[5], SHARE), None);
        assert_eq!(due(&[5, 100], SHARE), None);
        assert_eq!(due(&[64, 100], SHARE), None);
        assert_eq!(due(&[6, 100], EARLY_SHARE), None);
        assert_eq!(due(&[7, 100], EARLY_SHARE), Some(2));
        assert_eq!(due(&[66, 100], SHARE), Some(2));
        assert_eq!(due(&[5, 5, 5, 5, 100], SHARE), None);
        assert_eq!(due(&[5, 5, 5, 5, 5, 5, 5, 1000], SHARE), Some(7));
        assert_eq!(due(&[5, 5, 5, 20, 20, 80, 80, 1000], SHARE), Some(5));
        let mut dice = 7u64;
        let mut levels = vec![100_000u64];
        let (mut written, mut moved) = (0, 0);
        for _ in 0..5000 {
            dice = alluvium_pagestore::hash_word(dice);
            let batch = 1 + dice % 3000;
            moved += batch;
            levels.insert(0, batch);
            while let Some(count) = due(&levels, SHARE) {
                // Nothing but the last merge finds older records of a key.
                let sum: u64 = levels.drain(..count).sum();
                let merged = if levels.is_empty() { 100_000 } else { sum };
                written += merged;
                levels.insert(0, merged);
            }
            assert!(levels.len() <= ABOVE_MAX, "{levels:?}");
        }
        assert!(written + moved < 5 * moved, "{written} for {moved}");
    }
}
