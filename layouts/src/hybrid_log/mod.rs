//! The hash-indexed hybrid log.
//!
//! One address space over memory and storage: native records in page-sized [frames](frame_unsafe),
//! updated in place. A helper writes the oldest frames to [segments](stored), and the log recycles
//! them. One [index] entry per key leads to the record wherever it is. `docs/design/hybrid-log.md`
//! has the design, its reasons, and its checkpoints.

mod cold;
mod config;
mod index;
mod memory;
mod needs;
#[cfg(test)]
mod restoring_tests;
#[cfg(test)]
mod stalls_tests;
mod storage;
mod table;
#[cfg(test)]
mod tests;

use address::Address;
pub(crate) use cold::{TOMBSTONE, has_same_key};
pub use config::{
    CHECKPOINT_PACE, COLD_RUNS_MEMORY_MIN, COOLING_PERCENT, FRAMES_MIN, GENERATIONS, HybridLog,
    PAGE_BYTES_MAX, PAGE_BYTES_MIN, PATIENCE, QUEUE_DEPTH,
};
pub(crate) use pool_unsafe::{PiecePool, PoolPiece};
pub use table::HybridLogTable;

// By their own names in all of this folder.
use memory::{
    address, frame_set, frame_unsafe, frames_unsafe, log, marks, pool_unsafe, slots_unsafe,
};
use storage::{deaths, flush, leaving, log_checkpoint, rewriter, spill, stored, writers};
use table::{batches, core, expiring, fetches, typed_unsafe};
