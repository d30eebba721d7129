//! The hash-indexed hybrid log.
//!
//! One address space over memory and storage: native records in page-sized [frames](frame_unsafe),
//! updated in place. A helper writes the oldest frames to [segments](stored), and the log recycles
//! them. One [index] entry per key leads to the record wherever it is. `docs/design/hybrid-log.md`
//! has the design, its reasons, and its checkpoints.

mod address;
mod batches;
mod by_hash;
mod capture;
mod checkpoint;
mod cold;
mod config;
mod core;
mod deaths;
mod expiring;
mod fetches;
mod flush;
mod frame_set;
mod frame_unsafe;
mod frames_unsafe;
mod index;
mod leaving;
mod log;
mod marks;
mod needs;
mod passing;
mod pool_unsafe;
mod rewriter;
mod spill;
#[cfg(test)]
mod stalls_tests;
mod stored;
mod table;
#[cfg(test)]
mod tests;
mod typed_unsafe;
mod writers;

use address::Address;
pub(crate) use cold::{NamedRuns, TOMBSTONE};
pub use config::{
    CHECKPOINT_PACE, COLD_RUNS_MEMORY_MIN, COOLING_PERCENT, FRAMES_MIN, GENERATIONS, HybridLog,
    PAGE_BYTES_MAX, PAGE_BYTES_MIN, PATIENCE, QUEUE_DEPTH,
};
pub(crate) use pool_unsafe::{Piece, Pool};
pub use table::HybridLogTable;
