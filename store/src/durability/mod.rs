//! Checkpoints, restoring, exports, and key groups that move.

pub(crate) mod checkpoints;
pub(crate) mod export;
pub(crate) mod moving;
pub(crate) mod sources;
