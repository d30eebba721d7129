//! What is done off the record path: runs written and merged, tables dropped, files removed.
//!
//! The owner hands over and polls; until the answer is there, memory stays booked by the owner. All
//! of it runs user code, which may panic: what panics while it is encoded becomes the error of its
//! run; what panics while it is dropped may leak what is left of itself.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use alluvium_pagestore::{Helper, Result, SegmentId};

use super::config::SliceSizes;
use super::pane_type_unsafe::PaneType;
use super::run::SliceRun;
use super::writing::{RemovedKeys, WrittenRun, write_merged, write_table};
use crate::checkpoint::Jobs;
use crate::heap::record_table_unsafe::FrozenRecords;
use crate::support::record_type_unsafe::RecordRef;
use crate::support::run_storage::{RunStorage, remove_files};
use crate::trace_span;

/// The error of a run whose encoding panicked.
const PANICKED: &str = "a key or an accumulator panicked while its slice was encoded";

/// A table of a slice that is only read.
pub type FrozenSlice = Arc<FrozenRecords>;

/// What the helper answers.
pub enum SliceJobOutcome {
    /// A table was written, or could not be.
    Written { job: u64, table: FrozenSlice, result: Result<WrittenRun> },
    /// Runs were made one, or could not be.
    Merged { job: u64, result: Result<WrittenRun> },
    /// A table was dropped.
    Dropped { table_bytes: u64, heap_bytes: u64 },
    /// Files of so many bytes were removed.
    Removed { bytes: u64 },
}

/// Hands work to the helper and collects answers.
pub struct SliceJobs {
    pub jobs: Jobs<SliceJobOutcome>,
    pub storage: Option<RunStorage>,
}

impl SliceJobs {
    /// Nothing to do yet.
    pub fn new(helper: Helper, storage: Option<RunStorage>) -> Self {
        Self { jobs: Jobs::new(helper), storage }
    }

    /// Has a table written as a run.
    pub fn write(&mut self, job: u64, table: FrozenSlice, sizes: SliceSizes) {
        let storage = self.storage.clone().expect("a state with storage");
        self.jobs.submit(move || {
            trace_span!(DEBUG, "spill", entries = table.len());
            let result = storage.with(PANICKED, |writer, _| write_table(writer, &sizes, &table));
            SliceJobOutcome::Written { job, table, result }
        });
    }

    /// Has runs made one.
    pub fn merge(
        &mut self,
        job: u64,
        (types, runs): (&'static PaneType, Vec<Arc<SliceRun>>),
        removed: RemovedKeys,
        sizes: SliceSizes,
    ) {
        let storage = self.storage.clone().expect("a state with storage");
        self.jobs.submit(move || {
            trace_span!(DEBUG, "merge runs", runs = runs.len());
            let result = storage.with(PANICKED, |writer, store| {
                write_merged(writer, store, &sizes, (types, &runs), &removed)
            });
            SliceJobOutcome::Merged { job, result }
        });
    }

    /// Has a table dropped; this is the last use of it.
    pub fn drop_table(&mut self, table: FrozenSlice) {
        self.jobs.submit(move || {
            let table_bytes = table.memory_bytes();
            // What panics here panics for nobody: there is no call that it belongs to.
            let heap_bytes = catch_unwind(AssertUnwindSafe(|| heap_of(&table))).unwrap_or(0);
            let _ = catch_unwind(AssertUnwindSafe(|| drop(table)));
            SliceJobOutcome::Dropped { table_bytes, heap_bytes }
        });
    }

    /// Has files removed.
    pub fn remove(&mut self, files: Vec<(SegmentId, u64)>) {
        let store = self.storage.as_ref().expect("a state with storage").store.clone();
        self.jobs.submit(move || {
            remove_files(&store, files.iter().map(|(id, _)| *id));
            SliceJobOutcome::Removed { bytes: files.iter().map(|(_, bytes)| bytes).sum() }
        });
    }

    /// Waits a moment for an answer, doing the work of an inline helper.
    pub fn wait(&mut self) -> Option<SliceJobOutcome> {
        let storage = &self.storage;
        self.jobs.wait(|| storage.iter().for_each(|storage| storage.store.device().drive()))
    }
}

/// Heap that the entries of a table own.
fn heap_of(table: &FrozenRecords) -> u64 {
    if table.record_type().is_plain() {
        return 0;
    }
    table.places().flat_map(|place| table.part_at(place).0.iter()).map(RecordRef::heap_bytes).sum()
}
