//! The append log: lists that are appended to and seldom read.
//!
//! Elements are native, in [chains](chain_unsafe) of chunks, by bucket and key. When memory is
//! short, the log freezes whole [buckets](bucket), those due last, and [writes](jobs) them as
//! sorted [runs](run). A read or a [fold] merges memory with the runs, in order of arrival.
//! `docs/design/append-log.md` has the design and its reasons.

mod append;
mod arena_unsafe;
mod block;
#[cfg(test)]
mod block_tests;
mod bucket;
#[cfg(test)]
mod chain_tests;
mod chain_unsafe;
mod checkpoint;
mod config;
mod core;
mod element_type_unsafe;
mod fold;
mod frozen;
mod gather;
mod groups;
mod heads_unsafe;
mod jobs;
mod list_checkpoint;
mod merge;
mod needs;
mod notes;
mod packed;
mod purging;
mod reading_ahead;
mod relocate;
mod run;
mod run_cursor;
mod runs_memory;
mod spill;
mod table;
mod taking;
mod typed_unsafe;

use crate::support::key_unsafe;

/// The name of the layout, and that of the files of its checkpoints.
pub(crate) const LAYOUT: &str = "append-log";

pub(crate) use block::{ListType, NativeList};
pub use config::{AppendLog, BLOCK_BYTES_MAX, LIST_PATIENCE, PACKS_SLICES, RUNS_MAX};
pub(crate) use core::ListsCore;
pub use packed::{slice_and_run_of, slices_of_page};
pub use table::AppendLogLists;
pub(crate) use taking::for_each_list;
pub(crate) use typed_unsafe::TypedLists;
