//! Window segments: accumulators by slice of event time, in memory and in files of their slice.
//!
//! Each [slice](slice) has a hash table in memory that is changed in place. When memory gets short,
//! the table of the slice that is read last is [written](background) as a [run](run) in the order of
//! hashes, and the slice begins a new one: what a key has in the parts of a slice is merged when it
//! is read. A [fold](fold) walks the parts of many slices side by side, each once. A slice is
//! purged whole: its tables are dropped, its files removed.

mod background;
mod capture;
mod checkpoint;
mod config;
mod files;
mod fold;
mod fold_memory;
mod fund;
mod gathering;
mod groups;
mod merging;
mod prefetch;
mod purge;
mod run;
mod slice;
mod slots;
mod source;
mod space;
mod table;
mod tables;
mod taking;
mod telling;
mod writing;

/// The name of the layout, and that of the files of its checkpoints.
const LAYOUT: &str = "window-segments";

pub use config::{IMAGE_BYTES_MAX, IMAGE_BYTES_MIN, WindowSegments};
pub use table::SegmentPanes;
pub(crate) use taking::for_each_part_of_a_pane;
