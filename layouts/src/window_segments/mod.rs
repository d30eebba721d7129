//! Window segments: accumulators by slice of event time, in memory and in files of their slice.
//!
//! Each [slice](slice) has a hash table in memory, changed in place. When memory is short, a
//! [helper](background) writes the table of the slice that is read last as a [run](run) in the
//! order of hashes, and the slice starts a new table. Reads merge a key's parts. A [fold](fold)
//! walks the parts of many slices side by side, each once. Purging a slice drops its tables and
//! removes its files.

mod background;
mod catalog_position;
mod checkpoint;
mod config;
mod core;
mod cuts;
mod fold;
mod fold_by_source;
mod fold_memory;
mod fund;
mod gathering;
mod groups;
mod merging;
mod packed;
mod pane_type_unsafe;
mod plain;
mod prefetch;
mod purge;
mod run;
mod slice;
mod slice_checkpoint;
mod slots;
mod snapshot;
mod source;
mod space;
mod table;
mod tables;
mod taking;
mod typed_unsafe;
mod writing;

/// The name of the layout, and that of the files of its checkpoints.
const LAYOUT: &str = "window-segments";

pub use config::{IMAGE_BYTES_MAX, IMAGE_BYTES_MIN, WindowSegments};
pub use table::SegmentPanes;
pub(crate) use taking::for_each_part_of_a_pane;
