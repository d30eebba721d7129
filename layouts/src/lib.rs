//! Physical layouts of a state: the plain [heap](Heap), the hash-indexed [hybrid log](HybridLog),
//! the [append log](AppendLog) for lists, and [window segments](WindowSegments) for accumulators by
//! slice of event time.
//!
//! A layout opens a [`Table`], [`Lists`] or [`Panes`]: one state of one worker. These traits are
//! public; users can implement them. [`write_entries`] and [`read_entries`] give a layout of your
//! own checkpoints.

mod append_log;
mod checkpoint;
mod contract;
mod heap;
mod hybrid_log;
mod restore;
mod runs;
mod support;
mod window_segments;

#[cfg(feature = "tracing")]
#[doc(hidden)]
pub use tracing;

pub use append_log::{
    AppendLog, AppendLogLists, BLOCK_BYTES_MAX, LIST_PATIENCE, PACKS_SLICES, RUNS_MAX,
};
pub use checkpoint::{InSteps, Recording, Remembered, at_once};
pub use contract::by_hash::{ByHash, VisitRun};
pub use contract::expiry::{ExpiryPass, Touched};
pub use contract::fetch::{Fetch, Ticket};
pub use contract::lists::{Elements, Lists, ListsLayout, VisitList, for_each_list};
pub use contract::loading::LoadRoom;
pub use contract::needs::{ContextOf, ExpectedKeys, ExpectedSlices, MemoryNeeds, MemoryParts};
pub use contract::panes::{Merge, PaneRun, Panes, PanesLayout};
pub use contract::table::{
    BatchError, CheckpointOutcome, Cursor, Layout, Pace, Peek, RunStats, RunTimes, StateContext,
    Table, TableStats,
};
pub use contract::upkeep::{HasUpkeep, Upkeep};
pub use heap::lists::HeapLists;
pub use heap::panes::TablePanes;
pub use heap::record_position::RecordPosition;
pub use heap::{Heap, HeapTable, StoredValues, VolatileHeap, VolatileValues};
pub use hybrid_log::{
    CHECKPOINT_PACE, COLD_RUNS_MEMORY_MIN, COOLING_PERCENT, FRAMES_MIN, GENERATIONS, HybridLog,
    HybridLogTable, PAGE_BYTES_MAX, PAGE_BYTES_MIN, PATIENCE, QUEUE_DEPTH,
};
pub use restore::full_image::{EntryWriter, Images, read_entries, write_entries};
pub use restore::of_runs::HasSameKey;
pub use restore::parts::ForeignState;
#[doc(hidden)]
pub use support::by_time_unsafe::ByTime;
#[doc(hidden)]
pub use support::out_of_line_unsafe::{DroppedHere, OutOfLine};
pub use support::oversize::Oversize;
#[doc(hidden)]
pub use support::tree_bytes::tree_bytes;
pub use window_segments::{IMAGE_BYTES_MAX, IMAGE_BYTES_MIN, SegmentPanes, WindowSegments};

/// Verifies a sorted run from its first byte to its last: checksums, the order of its records, and
/// that its filters and fences lead to each. Returns the number of records. Cost: one read of the
/// file, and about 100 ns a record.
///
/// # Errors
/// [`ErrorKind::Corrupt`](alluvium_pagestore::ErrorKind::Corrupt), with the file and the offset;
/// those of the device.
#[doc(hidden)]
pub fn verify_run(
    store: &alluvium_pagestore::SegmentStore,
    run: &alluvium_pagestore::RunInfo,
) -> alluvium_pagestore::Result<u64> {
    runs::verify(store, run).map(|found| found.records)
}

/// What programs that look into a closed directory read of layouts. No part of the API.
#[doc(hidden)]
pub mod stored_internals {
    pub use crate::append_log::{slice_and_run_of, slices_of_page};
    pub use crate::runs::{RecordView, WholeGuides, WholeRun};

    /// The mark of a record of a hybrid log that says that its key was deleted.
    pub const TOMBSTONE: u32 = crate::hybrid_log::TOMBSTONE;
}

/// Sorted runs, for their tests. No part of the API.
#[doc(hidden)]
pub mod runs_internals {
    pub use crate::runs::*;
}
