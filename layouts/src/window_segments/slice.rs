//! One slice: its table in memory, one that is being written, and its runs on storage.
//!
//! Parts are numbered in the order in which they were begun, and hold what came in that order: runs
//! first, then the table being written, then the table in use. A cut says that a key's accumulators
//! in parts before a number were removed; a gap says that of all keys whose hashes are in a range, as
//! when a key group has left.

use std::rc::Rc;
use std::sync::Arc;

use alluvium_pagestore::{Account, Image};

use super::background::FrozenSlice;
use super::cuts::SliceCuts;
use super::pane_type_unsafe::PaneType;
use super::run::SliceRun;
use super::slice_checkpoint::UnreadSlice;
use crate::heap::hash_range::HashRange;
use crate::heap::record_table_unsafe::RecordTable;
use crate::support::gaps::Gaps;
use crate::support::record_type_unsafe::RecordRef;

/// A slice.
pub struct Slice {
    /// What is changed in place. Never another table than of the core's types: the record path does not look.
    pub active: RecordTable,
    /// Heap that the entries of `active` own.
    pub heap_bytes: u64,
    /// What is on its way to storage.
    pub frozen: Option<UnwrittenTable>,
    /// What is on storage, the oldest first.
    pub runs: Vec<CachedRun>,
    /// Removed keys that older parts may have.
    pub cuts: SliceCuts,
    /// Ranges of hashes whose keys older parts may have, and do not count.
    pub gaps: Gaps,
    /// The number that the next part gets.
    pub next_number: u64,
    /// What a checkpoint has not read yet.
    pub captured: Option<Box<UnreadSlice>>,
    /// The group of tables that has `active` and `cuts` as they are, if the checkpoint that writes or
    /// has written it is confirmed.
    pub in_group: Option<u64>,
}

/// A table that waits to be written, or for the helper that writes it.
pub struct UnwrittenTable {
    pub number: u64,
    /// The job that writes it; 0 while there is none.
    pub job: u64,
    pub table: FrozenSlice,
}

/// A run, and what of it was read back ahead.
pub struct CachedRun {
    pub run: Arc<SliceRun>,
    /// Images in memory, by number; empty before any is.
    pub resident: Vec<Option<ResidentImage>>,
    /// The next image to be read ahead.
    pub next_ahead: usize,
}

/// An image that was read ahead.
pub struct ResidentImage {
    pub image: Rc<Image>,
    /// Whether anything read it.
    pub used: std::cell::Cell<bool>,
}

impl Slice {
    /// A slice without anything.
    pub fn new(types: &'static PaneType, account: &Rc<Account>, range: HashRange) -> Self {
        Self {
            active: RecordTable::new(types.record(), account.clone(), range),
            heap_bytes: 0,
            frozen: None,
            runs: Vec::new(),
            cuts: SliceCuts::default(),
            gaps: Gaps::default(),
            next_number: 1,
            captured: None,
            in_group: None,
        }
    }

    /// Whether somebody has to know before the table in use or the cuts change.
    #[inline]
    pub fn is_watched(&self) -> bool {
        self.captured.is_some() || self.in_group.is_some()
    }

    /// Accumulators in memory, and pieces of such on storage.
    pub fn len(&self) -> u64 {
        let stored: u64 = self.runs.iter().map(|stored| stored.run.records).sum();
        self.active.len() + self.frozen.as_ref().map_or(0, |part| part.table.len()) + stored
    }

    /// Memory that writing the table in use gives back.
    pub fn active_bytes(&self) -> u64 {
        self.active.memory_bytes() + self.heap_bytes
    }

    /// Whether there are parts beside the table in use.
    pub fn has_older_parts(&self) -> bool {
        self.frozen.is_some() || !self.runs.is_empty()
    }

    /// The first part of `key` that was not removed. `is` gets keys that were.
    pub fn first_part_of(
        &self,
        types: &PaneType,
        hash: u64,
        is: &mut dyn FnMut(RecordRef<'_>) -> bool,
    ) -> u64 {
        let first = self.gaps.first_part(hash);
        if self.cuts.is_empty() {
            return first;
        }
        self.cuts.find(hash, is).map_or(first, |cut| types.before(cut).max(first))
    }

    /// Takes the cuts out if no part is left that they apply to.
    pub fn forget_cuts(&mut self, account: &Account) -> Option<SliceCuts> {
        let oldest = self.runs.first().map(|stored| stored.run.number);
        let oldest = oldest.or(self.frozen.as_ref().map(|part| part.number));
        if oldest.is_some() || self.captured.is_some() {
            return None;
        }
        self.gaps.close(account);
        if !self.cuts.is_empty() {
            self.in_group = None;
        }
        self.cuts.take()
    }
}

impl CachedRun {
    /// A run of which nothing is in memory.
    pub fn new(run: Arc<SliceRun>) -> Self {
        Self { run, resident: Vec::new(), next_ahead: 0 }
    }

    /// An image that was read ahead.
    pub fn resident(&self, image: usize) -> Option<&Rc<Image>> {
        let resident = self.resident.get(image)?.as_ref()?;
        resident.used.set(true);
        Some(&resident.image)
    }
}
