//! Merges in parts: of large levels a merge takes one range of hashes at a time, the lowest first.
//!
//! A *part* ends after about so many bytes of records, or so many partitions that it wrote. What it wrote becomes a level,
//! or the end of the level that the parts before have become, and the levels that it merged have that range cut; their
//! files go one by one. So a part takes a bounded time, and storage and directories of what it writes beside what it
//! merges. Its memory is given back when it ends, and it changes nothing for a look-up: each hash is in the merged level or
//! in the others. Between two parts of a merge levels that are newer may be merged, in parts as well.
//!
//! What it keeps true:
//! - The levels of a merge in parts are neighbours, and what is merged of them stands right above them.
//! - The newest of these merges goes on first. It has only levels that are newer than those of the others.

use std::ops::Range;

use alluvium_pagestore::KeyGroup;

use super::merging::{
    ABOVE_MAX, EARLY_SHARE, LevelMerge, MERGED_MAX, PILED_MAX, SHARE, due, due_above, due_of_pile,
};
use super::{Level, Levels};
use crate::runs::merge::MergePart;
use crate::runs::writer::{PARTITIONS_MAX, RunSizes};

/// So many merges in parts may be under way, each of levels that are newer than those of the one before.
const PARTED_MAX: usize = 3;

/// A part ends with so many partitions, and another one ends with it: so it has four files at most. And it ends when it
/// has looked at so many bytes of records for each hash that a partition may have: at 32 bytes a record, full partitions
/// are half as many then.
const PART_PARTITIONS: u64 = 4 * PARTITIONS_MAX as u64 - 1;
const PARTITION_BYTES: u64 = 4 << 10;

/// A merge of which at least one part is over.
#[derive(Debug)]
pub(super) struct PartedMerge {
    /// The levels that it merges.
    numbers: Vec<u64>,
    /// The level that the parts before have become, unless nothing stayed of them.
    merged: Option<u64>,
    /// The first hash that is not merged.
    next: u64,
}

/// Which levels are to be merged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DueLevels {
    /// Where they are.
    pub range: Range<usize>,
    /// The first hash to be merged. Not the lowest: it is the next part of a merge.
    pub from: u64,
}

impl Levels {
    /// A part has about so many bytes of records, however many partitions these are; its memory stays with the next one.
    #[must_use]
    pub fn merged_in_parts_of(self, bytes: u64) -> Self {
        Self { part_bytes: Some(bytes), ..self }
    }

    /// The part of a merge that begins with a hash.
    pub(super) fn part_from(&self, from: u64, runs: &RunSizes) -> MergePart {
        let of_partitions = PARTITION_BYTES * runs.partition_hashes as u64;
        match self.part_bytes {
            Some(bytes) => MergePart { from, bytes, partitions: u64::MAX },
            None => MergePart { from, bytes: of_partitions, partitions: PART_PARTITIONS },
        }
    }

    /// Bytes of records of a part.
    pub fn part_bytes(&self, runs: &RunSizes) -> u64 {
        self.part_from(0, runs).bytes
    }

    /// How many merges are under way of which a part is over. Cost: O(1).
    pub fn parted(&self) -> usize {
        self.parted.len()
    }

    /// How many levels there would be if each merge in parts were over: those that it merges, and what it wrote so far, count
    /// as one. Cost: O(levels).
    pub fn standing(&self) -> usize {
        let spare = |parted: &PartedMerge| {
            let merged = parted.merged.and_then(|number| self.position(number));
            (self.range_of(parted).len() + usize::from(merged.is_some())).saturating_sub(1)
        };
        self.levels.len() - self.parted.iter().map(spare).sum::<usize>()
    }

    /// Merges in parts that were under way when a checkpoint was taken go on, for levels that were restored from it, of which
    /// nothing else was cut: neighbours of which nothing below the same hash counts, one of them cut up to there. What was
    /// merged of them stands above, and ends below that hash.
    pub fn go_on_in_parts(&mut self) {
        self.go_on_in_parts_if(|_| true);
    }

    /// [`go_on_in_parts`](Levels::go_on_in_parts) where key groups may have been cut as well. A part ends within one, but
    /// for one in 2^56; what ends with a group is merged from the beginning again.
    pub fn go_on_within_groups(&mut self, key_groups: u16) {
        let group_of = |hash| KeyGroup::of(hash, key_groups);
        self.go_on_in_parts_if(|next| group_of(next) == group_of(next - 1));
    }

    fn go_on_in_parts_if(&mut self, is_part: impl Fn(u64) -> bool) {
        self.parted.clear();
        let mut below = self.levels.len();
        while let Some((last, next)) = self.last_cut(below).filter(|(_, next)| is_part(*next)) {
            let begins_there =
                |level: &&Level| level.first_hash().is_none_or(|first| first >= next);
            let after = self.levels[last + 1..below].iter().take(MERGED_MAX - 1);
            let after = after.take_while(begins_there).count();
            let end = last + 1 + after;
            let up = self.levels[..end].iter().rev().take(MERGED_MAX);
            let start = end - up.take_while(begins_there).count();
            let ends_there =
                |level: &&Level| level.runs.iter().all(|run| run.info().last_hash < next);
            let above = start.checked_sub(1).map(|above| &self.levels[above]);
            let merged = above.filter(ends_there).map(|level| level.number);
            let numbers = self.levels[start..end].iter().map(|level| level.number).collect();
            self.parted.push(PartedMerge { numbers, merged, next });
            below = start;
        }
        // More than may be under way are none that went on.
        self.parted.truncate(PARTED_MAX);
    }

    /// The last level before this one whose first hashes are cut, and the first hash of it that counts.
    fn last_cut(&self, before: usize) -> Option<(usize, u64)> {
        let is_cut = |level: &Level| {
            let first = level.runs.first()?.info();
            first.cut_of(first.first_hash)?.checked_add(1)
        };
        let mut levels = self.levels[..before].iter().enumerate().rev();
        levels.find_map(|(at, level)| Some((at, is_cut(level)?)))
    }

    pub(super) fn due(&self) -> Option<DueLevels> {
        let records = |levels: &[Level]| levels.iter().map(Level::records).collect::<Vec<u64>>();
        let newest = |count: usize| DueLevels { range: 0..count, from: 0 };
        let Some(parted) = self.parted.last() else {
            if self.piles_up {
                return due_of_pile(&records(&self.levels)).map(newest);
            }
            let share = if self.is_early { EARLY_SHARE } else { SHARE };
            return due(&records(&self.levels), share).map(newest);
        };
        let range = self.range_of(parted);
        let merged = parted.merged.and_then(|number| self.position(number));
        let above = merged.unwrap_or(range.start).min(range.start);
        if self.piles_up && above < PILED_MAX {
            return Some(DueLevels { range, from: parted.next });
        }
        // What comes meanwhile has no more than its share of the records either. Lists merge what has few bytes.
        let records_of = |levels: &[Level]| levels.iter().map(Level::records).sum::<u64>() as f64;
        let of_it = records_of(&self.levels[above..range.end]);
        // Unless its next part fails again and again: then levels would pile up above.
        let goes_first = self.part_bytes.is_none() && above <= 2 * ABOVE_MAX;
        if goes_first && records_of(&self.levels[..above]) > SHARE * of_it {
            return Some(DueLevels { range, from: parted.next });
        }
        // Beside as many as may be under way some levels are merged that take one part: it is over before they go on.
        let may_begin = |count: &usize| {
            let bytes = || self.levels[..*count].iter().map(Level::bytes).sum::<u64>();
            self.parted.len() < PARTED_MAX || bytes() <= self.part_bytes.unwrap_or(0)
        };
        let begun = due_above(&records(&self.levels[..above]), may_begin);
        Some(begun.map_or(DueLevels { range, from: parted.next }, newest))
    }

    pub(super) fn position(&self, number: u64) -> Option<usize> {
        self.levels.iter().position(|level| level.number == number)
    }

    /// Where the levels are that are left of a merge in parts.
    fn range_of(&self, parted: &PartedMerge) -> Range<usize> {
        let is_its = |level: &&Level| parted.numbers.contains(&level.number);
        let start = self.levels.iter().take_while(|level| !is_its(level)).count();
        start..start + self.levels[start..].iter().take_while(is_its).count()
    }

    /// A part is over, of levels that begin at a place: all hashes below this one are merged.
    pub(super) fn install_part(
        &mut self,
        level: Level,
        (merging, at): (LevelMerge, usize),
        next: u64,
    ) {
        let of_it = &mut self.levels[at..at + merging.numbers.len()];
        for run in of_it.iter_mut().flat_map(|level| &mut level.runs) {
            run.cut(0, next - 1);
        }
        let before = if merging.from > 0 { self.parted.pop() } else { None };
        let merged = self.put_merged(level, (before, at));
        self.parted.push(PartedMerge { numbers: merging.numbers, merged, next });
    }

    /// The last part of a merge is over, or all of it at once. The levels are gone that it merged, from a place on.
    pub(super) fn install_last(&mut self, level: Level, (merging, at): (LevelMerge, usize)) {
        let before = if merging.from > 0 { self.parted.pop() } else { None };
        self.put_merged(level, (before, at));
    }

    /// Puts what was merged behind what the parts before have become, or at a place. Returns its level.
    fn put_merged(
        &mut self,
        level: Level,
        (before, at): (Option<PartedMerge>, usize),
    ) -> Option<u64> {
        let at_before = before.and_then(|parted| self.position(parted.merged?));
        if let Some(merged) = at_before.map(|at| &mut self.levels[at]) {
            merged.latest = merged.latest.max(level.latest);
            merged.runs.extend(level.runs);
            return Some(merged.number);
        }
        let number = (!level.runs.is_empty()).then_some(level.number);
        if number.is_some() {
            self.levels.insert(at, level);
        }
        number
    }

    /// Levels have gone: a merge in parts of which none is left is over.
    pub(super) fn forget_parted(&mut self) {
        let levels = &self.levels;
        let is_there = |number: &u64| levels.iter().any(|level| level.number == *number);
        self.parted.retain(|parted| parted.numbers.iter().any(is_there));
        if self.due().is_none() {
            self.kept_for_next = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use alluvium_pagestore::io::{Faults, Simulated};
    use alluvium_pagestore::{Account, MIB, Result, SegmentStore, hash_word};

    use super::*;
    use crate::runs::{Judge, RecordView, RunWriter};

    /// Keeps the newest record of a hash.
    struct Newest;

    impl Judge for Newest {
        fn judge(&mut self, _: &[RecordView<'_>], stays: &mut [bool]) -> Result<()> {
            stays[1..].fill(false);
            Ok(())
        }
    }

    /// Parts of a merge have about a thousand records of these.
    fn sizes() -> RunSizes {
        RunSizes { partition_hashes: 8, ..RunSizes::within(32 << 10, 64, 16) }
    }

    fn levels(device: &Simulated) -> Levels {
        let store = SegmentStore::new(Arc::new(device.clone()), 1);
        Levels::new(store, Account::below(&Account::root(64 * MIB), "cold", 64 * MIB), 7)
    }

    /// Adds a level of records of these hashes.
    fn add(levels: &mut Levels, mut hashes: Vec<u64>) {
        hashes.sort_unstable();
        hashes.dedup();
        let mut writer = RunWriter::new(levels.store.clone(), 7, sizes()).unwrap();
        for hash in hashes {
            writer.push(RecordView { hash, mark: 0, order: &[], payload: &[1; 16] }).unwrap();
        }
        writer.finish().unwrap();
        levels.add(&writer.take_sealed()).unwrap();
    }

    /// Records above the oldest merge in parts, and those of it.
    fn beside_the_oldest(levels: &Levels) -> Option<(u64, u64)> {
        let parted = levels.parted.first()?;
        let range = levels.range_of(parted);
        let merged = parted.merged.and_then(|number| levels.position(number));
        let above = merged.unwrap_or(range.start).min(range.start);
        let records = |levels: &[Level]| levels.iter().map(Level::records).sum();
        Some((records(&levels.levels[..above]), records(&levels.levels[above..range.end])))
    }

    /// A merge that has little fuel does not fall behind what comes: no more comes beside it than has its share.
    #[test]
    fn what_comes_while_a_large_merge_goes_on_is_bounded() {
        const LEVELS: usize = 14;
        const EACH: u64 = 400;
        const KEYS: u64 = 20_000;
        let (sizes, mut levels) = (sizes(), levels(&Simulated::new(1, Faults::none())));
        let (mut seen, mut most) = (0, 0);
        for batch in 0..400 {
            let keys = if batch == 0 { KEYS } else { EACH };
            let key = |nth| if batch == 0 { nth } else { hash_word(batch << 32 | nth) % KEYS };
            add(&mut levels, (0..keys).map(|nth| hash_word(key(nth))).collect());
            let bytes = 32 * EACH;
            levels.step(5 * bytes / 2, sizes, 8 << 10, |_| Newest).unwrap();
            // Nothing comes while there are many, as in a log.
            while levels.len() - levels.parted() >= LEVELS {
                levels.step(bytes, sizes, 8 << 10, |_| Newest).unwrap();
            }
            most = levels.records().max(most);
            if let Some((above, of_it)) = beside_the_oldest(&levels) {
                let most = SHARE * of_it as f64 + (2 * LEVELS as u64 * EACH) as f64;
                assert!(above as f64 <= most, "{above} above {of_it} in batch {batch}");
                seen += 1;
            }
        }
        assert!(seen > 20 && most < 4 * KEYS, "{seen} batches, {most} records");
    }

    /// Memory lacks: levels are merged once a sixteenth of their records is dead, and not again for what is left.
    #[test]
    fn levels_are_merged_early_where_records_are_dead() {
        let mut levels = levels(&Simulated::new(1, Faults::none()));
        add(&mut levels, (0..1_600).map(hash_word).collect());
        add(&mut levels, (0..150).map(hash_word).collect());
        assert!(!levels.is_behind());
        assert!(!levels.merge_early(1_750 - 109) && !levels.is_behind());
        assert!(levels.merge_early(1_750 - 110) && levels.is_behind());
        while levels.is_behind() {
            assert!(levels.step(MIB, sizes(), 8 << 10, |_| Newest).unwrap());
        }
        assert_eq!((levels.len(), levels.records()), (1, 1_600));
        assert!(!levels.merge_early(0), "there is nothing to merge");
        add(&mut levels, (0..90).map(hash_word).collect());
        assert!(!levels.merge_early(0), "few are above the oldest");
        add(&mut levels, (0..90).map(hash_word).collect());
        assert!(!levels.is_behind(), "one merge was early");
    }

    /// What a merge has yet to read is damaged: its next part fails again and again. Newer levels are merged all the same, and
    /// nothing of what is whole is lost.
    #[test]
    fn levels_do_not_pile_up_above_a_part_that_fails() {
        let device = Simulated::new(1, Faults::none());
        let mut levels = levels(&device);
        let mut last = 0;
        let mut batch = |count: u64| {
            last += count;
            (last - count..last).map(hash_word).collect::<Vec<u64>>()
        };
        let step = |levels: &mut Levels| levels.step(MIB, sizes(), 8 << 10, |_| Newest);
        add(&mut levels, batch(4_000));
        add(&mut levels, batch(3_000));
        while levels.parted.is_empty() {
            assert!(step(&mut levels).unwrap());
        }
        let next = levels.parted[0].next;
        let mut oldest = levels.levels.last().unwrap().runs.iter().map(|run| run.info().clone());
        let damaged = oldest.find(|run| run.first_hash > next).expect("it has several files");
        drop(oldest);
        for block in 0..damaged.bytes / 4096 {
            device.corrupt(&damaged.id.file_name(), block * 4096 + 64, 1).unwrap();
        }
        let (mut failed, mut most) = (0, 0);
        for _ in 0..60 {
            add(&mut levels, batch(400));
            for _ in 0..4 {
                failed += u32::from(step(&mut levels).is_err());
            }
            most = levels.len().max(most);
        }
        let merges = levels.stats().merges;
        println!("{most} levels at most, {failed} steps failed, {merges} merges");
        assert!(failed > 20, "the next part fails: {failed}");
        assert!(most < 30 && levels.parted() > 0, "{most} levels");
        assert!(levels.records() >= 60 * 400, "{} records", levels.records());
    }
}
