//! A walk over a heap table in the order of its hashes, some groups with each step.
//!
//! What it keeps true: entries that are there from the first step to the last are come by once at least; more than once
//! only if a block was split or doubled meanwhile, while it was walked over.

use std::ops::Range;

use super::raw_table_unsafe::RawTable;

/// Where the walk is.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TableWalk {
    /// The place of the blocks that come next; `None` after the last.
    pub place: Option<u64>,
    /// The next group there.
    group: usize,
    /// How often entries had moved when the step before was made.
    moved: u64,
}

/// Groups at an index of the directory.
#[derive(Clone, Debug)]
pub(super) struct GroupSpan {
    pub index: usize,
    pub groups: Range<usize>,
}

impl TableWalk {
    pub fn new() -> Self {
        Self { place: Some(0), group: 0, moved: 0 }
    }

    /// One that goes on where another [was](TableWalk::position), with a table in which entries have moved so often.
    pub fn at(place: u64, group: u64, moved: u64) -> Self {
        let (group, then) = (group & u64::from(u32::MAX), group >> 32);
        let is_there = then == moved & u64::from(u32::MAX);
        Self { place: Some(place), group: if is_there { group as usize } else { 0 }, moved }
    }

    /// Where it is, in two words.
    pub fn position(&self) -> (u64, u64) {
        (self.place.unwrap_or(0), self.moved << 32 | self.group as u64)
    }

    /// Goes on by so many groups at most.
    pub fn next(&mut self, table: &RawTable, most: usize) -> Option<GroupSpan> {
        let (index, end) = table.part_at(self.place?);
        let Some(index) = index else {
            self.place = None;
            return None;
        };
        if self.moved != table.moved() {
            (self.group, self.moved) = (0, table.moved());
        }
        let all = table.groups_at(index);
        let groups = self.group.min(all)..all.min(self.group + most);
        match groups.end == all {
            true => (self.place, self.group) = (end, 0),
            false => self.group = groups.end,
        }
        Some(GroupSpan { index, groups })
    }

    /// Passes over all that is at one place, if nothing may be marked there and it is not the last; says whether it did.
    pub fn pass_clear(&mut self, table: &RawTable) -> bool {
        let Some(place) = self.place.filter(|_| self.group == 0) else { return false };
        match table.part_at(place) {
            (Some(index), Some(end)) if table.dirty(index) == 0 => {
                self.place = Some(end);
                true
            }
            _ => false,
        }
    }
}
