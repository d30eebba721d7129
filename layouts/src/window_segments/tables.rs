//! Tables of slices as checkpoints have written them, and which of them the next can name again.
//!
//! A checkpoint writes the tables that have changed one after the other, into segments of their own: a
//! *group*. Tables that have not changed since are named again, with the group they are in. What
//! else is in it is dead then, and passed over by who reads it.
//!
//! What it keeps true: of a group that is named again half is of use; there are never more than
//! [`GROUPS_MAX`] and the one being written. Groups are those of checkpoints that were confirmed.

use std::collections::VecDeque;
use std::rc::Rc;

use alluvium_pagestore::{Account, MemoryKind, Result, SegmentImage, Time, rounded};

use super::checkpoint::catalog_is_wrong;

/// Groups that a checkpoint names again at most.
const GROUPS_MAX: usize = 63;
/// What a table without entries would count as, in records.
const TABLE_RECORDS: u64 = 16;

/// The table of a slice, with its cuts, as a checkpoint has written it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrittenTable {
    pub slice: Time,
    pub entries: u64,
    pub cuts: u64,
}

impl WrittenTable {
    /// Whether it has no records.
    pub fn is_empty(&self) -> bool {
        self.entries == 0 && self.cuts == 0
    }
}

/// Tables that were written by one checkpoint, in this order, and where.
#[derive(Debug)]
pub struct TableGroup {
    pub number: u64,
    pub tables: Vec<WrittenTable>,
    pub segments: Vec<SegmentImage>,
}

impl TableGroup {
    /// Memory that so many tables in so many segments take.
    pub fn memory_bytes_of(tables: u64, segments: u64) -> u64 {
        rounded(size_of::<Self>() + 16) as u64
            + tables * size_of::<WrittenTable>() as u64
            + segments * size_of::<SegmentImage>() as u64
            + 32
    }

    fn memory_bytes(&self) -> u64 {
        Self::memory_bytes_of(self.tables.capacity() as u64, self.segments.capacity() as u64)
    }

    /// What its tables count for, and those of use.
    fn use_of(&self, is_live: &impl Fn(u64, Time) -> bool) -> (u64, u64) {
        let (mut all, mut live) = (0, 0);
        for table in &self.tables {
            let counts = table.entries + table.cuts + TABLE_RECORDS;
            all += counts;
            live += if is_live(self.number, table.slice) { counts } else { 0 };
        }
        (all, live)
    }
}

/// The groups of the checkpoint that was confirmed last.
#[derive(Debug)]
pub struct TableGroups {
    account: Rc<Account>,
    groups: Vec<Rc<TableGroup>>,
    last_number: u64,
    booked: u64,
}

impl TableGroups {
    /// None.
    pub fn new(account: Rc<Account>) -> Self {
        Self { account, groups: Vec::new(), last_number: 0, booked: 0 }
    }

    /// A number that no group has had.
    pub fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    /// Those that a checkpoint begun now names again. `is_live` says of a group's number and a slice
    /// whether the slice's table is in it as it is now. Cost: that of all tables in them.
    pub fn to_name(&self, is_live: impl Fn(u64, Time) -> bool) -> Vec<Rc<TableGroup>> {
        let of_use = |group: &Rc<TableGroup>| {
            let (all, live) = group.use_of(&is_live);
            (2 * live >= all).then(|| (live, group.clone()))
        };
        let mut named: Vec<_> = self.groups.iter().filter_map(of_use).collect();
        if named.len() > GROUPS_MAX {
            // The smallest are written anew.
            named.sort_unstable_by_key(|(live, group)| (std::cmp::Reverse(*live), group.number));
            named.truncate(GROUPS_MAX);
        }
        named.into_iter().map(|(_, group)| group).collect()
    }

    /// These are those of the checkpoint that was confirmed.
    pub fn confirmed(&mut self, groups: Vec<Rc<TableGroup>>) {
        let highest = groups.iter().map(|group| group.number).max().unwrap_or(0);
        self.last_number = self.last_number.max(highest);
        self.groups = groups;
        let lists = rounded(self.groups.capacity() * size_of::<Rc<TableGroup>>()) as u64;
        let booked = lists + self.groups.iter().map(|group| group.memory_bytes()).sum::<u64>();
        self.account.adjust(MemoryKind::Tables, self.booked, booked);
        self.booked = booked;
    }
}

/// The tables that a catalog lists, in the order in which they are written.
#[derive(Debug, Default)]
pub struct CatalogTables {
    /// Each table, and whether it is the one of its slice.
    tables: Vec<(WrittenTable, bool)>,
    /// Of each group, its first table and its segments.
    groups: Vec<(usize, u64)>,
}

impl CatalogTables {
    /// Memory of one table in all of these lists, twice for those that grow.
    pub const TABLE_BYTES: u64 = 4 * size_of::<(WrittenTable, bool)>() as u64
        + 4 * size_of::<(Time, bool, bool, u64)>() as u64;

    /// The next group has so many segments.
    pub fn begin_group(&mut self, segments: u64) {
        self.groups.push((self.tables.len(), segments));
    }

    /// The next table of the group.
    ///
    /// # Errors
    /// If there is no group.
    pub fn add(&mut self, table: WrittenTable, is_live: bool) -> Result<()> {
        if self.groups.is_empty() {
            return Err(catalog_is_wrong("a table of no group"));
        }
        self.tables.push((table, is_live));
        Ok(())
    }

    /// Looks whether each slice, in order of time, has the table it should have, and whether the
    /// segments are as many as there are. Of a catalog that knows no groups its slices' tables are one.
    pub fn check(&mut self, slices: &[WrittenTable], segments: usize) -> Result<()> {
        let slices = slices.iter().filter(|slice| !slice.is_empty());
        if self.groups.is_empty() {
            self.begin_group(segments as u64);
            self.tables.extend(slices.map(|slice| (*slice, true)));
            return Ok(());
        }
        let files = self.groups.iter().fold(0, |sum: u64, (_, files)| sum.saturating_add(*files));
        if files != segments as u64 {
            return Err(catalog_is_wrong("groups of other segments than there are"));
        }
        let mut live = Vec::with_capacity(self.tables.len());
        live.extend(self.tables.iter().filter(|(_, is_live)| *is_live).map(|(table, _)| *table));
        live.sort_unstable_by_key(|table| table.slice);
        match live.iter().eq(slices) {
            true => Ok(()),
            false => Err(catalog_is_wrong("tables that are not those of its slices")),
        }
    }

    /// Where records are read from, one after the other.
    pub fn records(&self) -> TableRecords {
        let stretches = self.tables.iter().flat_map(|(table, is_live)| {
            let entries = (table.slice, false, *is_live, table.entries);
            [entries, (table.slice, true, *is_live, table.cuts)]
        });
        TableRecords(stretches.filter(|(.., count)| *count > 0).collect())
    }

    /// The groups, which are in these segments one after the other.
    pub fn groups(&self, mut segments: &[SegmentImage]) -> Vec<Rc<TableGroup>> {
        let mut groups = Vec::with_capacity(self.groups.len());
        for (nth, (first, files)) in self.groups.iter().enumerate() {
            let end = self.groups.get(nth + 1).map_or(self.tables.len(), |(next, _)| *next);
            let (own, rest) = segments.split_at((*files as usize).min(segments.len()));
            segments = rest;
            let tables = self.tables[*first..end].iter().map(|(table, _)| *table).collect();
            let number = nth as u64 + 1;
            groups.push(Rc::new(TableGroup { number, tables, segments: own.to_vec() }));
        }
        groups
    }

    /// The tables of slices, each with the number of its group.
    pub fn live(&self) -> impl Iterator<Item = (WrittenTable, u64)> + '_ {
        let group = |nth: usize| self.groups.partition_point(|(first, _)| *first <= nth) as u64;
        let live = self.tables.iter().enumerate().filter(|(_, (_, is_live))| *is_live);
        live.map(move |(nth, (table, _))| (*table, group(nth)))
    }
}

/// Of which table the records are, in the order in which they are read.
#[derive(Debug)]
pub struct TableRecords(VecDeque<(Time, bool, bool, u64)>);

/// A record of a table.
#[derive(Clone, Copy, Debug)]
pub struct TableRecord {
    pub slice: Time,
    /// Whether it is a cut, and no accumulator.
    pub is_cut: bool,
    /// Whether the table is the one of its slice.
    pub is_live: bool,
}

impl TableRecords {
    /// Of the record that comes next.
    ///
    /// # Errors
    /// If there is none.
    pub fn next(&mut self) -> Result<TableRecord> {
        let Some((slice, is_cut, is_live, left)) = self.0.front_mut() else {
            return Err(catalog_is_wrong("more accumulators than it tells of"));
        };
        let record = TableRecord { slice: *slice, is_cut: *is_cut, is_live: *is_live };
        *left -= 1;
        if *left == 0 {
            self.0.pop_front();
        }
        Ok(record)
    }

    /// There are no more.
    ///
    /// # Errors
    /// If there should be.
    pub fn end(&self) -> Result<()> {
        match self.0.is_empty() {
            true => Ok(()),
            false => Err(catalog_is_wrong("fewer accumulators than it tells of")),
        }
    }
}
