//! Physical layouts of a state: the plain [heap](Heap), the hash-indexed [hybrid log](HybridLog),
//! the [append log](AppendLog) for lists, and [window segments](WindowSegments) for accumulators by
//! slice of event time.
//!
//! A layout opens a [`Table`], [`Lists`] or [`Panes`]: one state of one worker. These traits are
//! public; users can implement them. [`write_entries`] and [`read_entries`] give a layout of your
//! own checkpoints.

mod append_log;
mod booked;
mod by_hash;
mod checkpoint;
mod expiry;
mod fetch;
mod first_panic;
mod full_image;
mod gaps;
mod heap;
mod heap_lists;
mod heap_lists_capture;
mod heap_lists_groups;
mod heap_lists_reading;
mod heap_lists_records;
mod heap_marks;
mod hybrid_log;
mod lent;
mod lists;
mod out_of_line_unsafe;
mod oversize;
mod panes;
mod parts;
mod passing;
mod patient_reads;
mod prefetch_unsafe;
mod record_type_unsafe;
mod snapshot;
mod split_table;
mod system_page;
mod table;
mod table_panes;
mod trace;
mod upkeep;
mod window_segments;

#[cfg(feature = "tracing")]
#[doc(hidden)]
pub use tracing;

pub use append_log::{AppendLog, AppendLogLists, BLOCK_BYTES_MAX, LIST_PATIENCE, RUNS_MAX};
pub use by_hash::{ByHash, VisitRun};
pub use checkpoint::{Recording, Remembered};
pub use expiry::{ExpiryPass, Touched};
pub use fetch::{Fetch, Ticket};
pub use full_image::{EntryWriter, Images, read_entries, write_entries};
pub use heap::{Heap, HeapTable, SplitHeap, SplitHeapTable, Stored, Volatile, VolatileHeap};
pub use heap_lists::HeapLists;
pub use heap_marks::Place;
pub use hybrid_log::{
    CHECKPOINT_PACE, COOLING_PERCENT, FRAMES_MIN, GENERATIONS, HybridLog, HybridLogTable,
    PAGE_BYTES_MAX, PAGE_BYTES_MIN, PATIENCE, QUEUE_DEPTH,
};
pub use lists::{Elements, Lists, ListsLayout, VisitList, for_each_list};
#[doc(hidden)]
pub use out_of_line_unsafe::OutOfLine;
pub use oversize::Oversize;
pub use panes::{Merge, Panes, PanesLayout};
pub use parts::Part;
pub use table::{
    BatchError, CheckpointOutcome, Cursor, Layout, Pace, Peek, StateContext, Table, TableStats,
};
pub use table_panes::TablePanes;
pub use upkeep::{HasUpkeep, Upkeep};
pub use window_segments::{IMAGE_BYTES_MAX, IMAGE_BYTES_MIN, SegmentPanes, WindowSegments};
