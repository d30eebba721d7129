//! The part of the log that is on storage: pages written, segments and what is live in them, checkpoints.

mod checkpoint;
pub(super) mod deaths;
pub(super) mod flush;
pub(super) mod leaving;
pub(super) mod log_checkpoint;
pub(super) mod rewriter;
pub(super) mod spill;
pub(super) mod stored;
pub(super) mod writers;

pub(super) use checkpoint::sort_addresses;
