//! Merges in parts: of large levels a merge takes one range of hashes at a time, the lowest first.
//!
//! A *part* ends after about so many bytes of records. What it wrote becomes a level, or the end of the level that the
//! parts before have become, and the levels that it merged have that range cut. So a part takes a bounded time, its
//! memory is given back when it ends, and it changes nothing for a look-up: each hash is in the merged level or in the
//! others. Between two parts of a merge levels that are newer may be merged, in parts as well.
//!
//! What it keeps true:
//! - The levels of a merge in parts are neighbours, and what is merged of them stands right above them.
//! - The newest of these merges goes on first. It has only levels that are newer than those of the others.

use std::ops::Range;

use super::merging::{MERGED_MAX, Merging, due, due_above};
use super::{Level, Levels};

/// So many merges in parts may be under way, each of levels that are newer than those of the one before.
const PARTED_MAX: usize = 3;

/// A merge of which at least one part is over.
#[derive(Debug)]
pub(super) struct Parted {
    /// The levels that it merges.
    numbers: Vec<u64>,
    /// The level that the parts before have become, unless nothing stayed of them.
    merged: Option<u64>,
    /// The first hash that is not merged.
    next: u64,
}

/// Which levels are to be merged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Due {
    /// Where they are.
    pub range: Range<usize>,
    /// The first hash to be merged. Not the lowest: it is the next part of a merge.
    pub from: u64,
}

impl Levels {
    /// Merges of more than about so many bytes of records are done in parts.
    #[must_use]
    pub fn merged_in_parts_of(self, bytes: u64) -> Self {
        Self { part_bytes: bytes, ..self }
    }

    /// How many merges are under way of which a part is over. Cost: O(1).
    pub fn parted(&self) -> usize {
        self.parted.len()
    }

    /// How many levels there would be if each merge in parts were over: those that it merges, and what it wrote so far, count
    /// as one. Cost: O(levels).
    pub fn standing(&self) -> usize {
        let spare = |parted: &Parted| {
            let merged = parted.merged.and_then(|number| self.position(number));
            (self.range_of(parted).len() + usize::from(merged.is_some())).saturating_sub(1)
        };
        self.levels.len() - self.parted.iter().map(spare).sum::<usize>()
    }

    /// Merges in parts that were under way when a checkpoint was taken go on, for levels that were restored from it, of which
    /// nothing else was cut: neighbours of which nothing below the same hash counts, one of them cut up to there. What was
    /// merged of them stands above, and ends below that hash.
    pub fn go_on_in_parts(&mut self) {
        self.parted.clear();
        let mut below = self.levels.len();
        while let Some((last, next)) = self.last_cut(below) {
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
            self.parted.push(Parted { numbers, merged, next });
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

    pub(super) fn due(&self) -> Option<Due> {
        let records = |levels: &[Level]| levels.iter().map(Level::records).collect::<Vec<u64>>();
        let newest = |count: usize| Due { range: 0..count, from: 0 };
        let Some(parted) = self.parted.last() else {
            return due(&records(&self.levels)).map(newest);
        };
        let range = self.range_of(parted);
        let merged = parted.merged.and_then(|number| self.position(number));
        let above = merged.unwrap_or(range.start).min(range.start);
        // Beside as many as may be under way some levels are merged that take one part: it is over before they go on.
        let may_begin = |count: &usize| {
            let bytes = || self.levels[..*count].iter().map(Level::bytes).sum::<u64>();
            self.parted.len() < PARTED_MAX || bytes() <= self.part_bytes
        };
        let begun = due_above(&records(&self.levels[..above]), may_begin);
        Some(begun.map_or(Due { range, from: parted.next }, newest))
    }

    fn position(&self, number: u64) -> Option<usize> {
        self.levels.iter().position(|level| level.number == number)
    }

    /// Where the levels are that are left of a merge in parts.
    fn range_of(&self, parted: &Parted) -> Range<usize> {
        let is_its = |level: &&Level| parted.numbers.contains(&level.number);
        let start = self.levels.iter().take_while(|level| !is_its(level)).count();
        start..start + self.levels[start..].iter().take_while(is_its).count()
    }

    /// A part is over, of levels that begin at a place: all hashes below this one are merged.
    pub(super) fn install_part(
        &mut self,
        level: Level,
        (merging, at): (Merging, usize),
        next: u64,
    ) {
        let of_it = &mut self.levels[at..at + merging.numbers.len()];
        for run in of_it.iter_mut().flat_map(|level| &mut level.runs) {
            run.cut(0, next - 1);
        }
        let before = if merging.from > 0 { self.parted.pop() } else { None };
        let merged = self.put_merged(level, (before, at));
        self.parted.push(Parted { numbers: merging.numbers, merged, next });
    }

    /// The last part of a merge is over, or all of it at once. The levels are gone that it merged, from a place on.
    pub(super) fn install_last(&mut self, level: Level, (merging, at): (Merging, usize)) {
        let before = if merging.from > 0 { self.parted.pop() } else { None };
        self.put_merged(level, (before, at));
    }

    /// Puts what was merged behind what the parts before have become, or at a place. Returns its level.
    fn put_merged(&mut self, level: Level, (before, at): (Option<Parted>, usize)) -> Option<u64> {
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
