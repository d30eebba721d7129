//! The checkpoint engine: what layouts share of taking a checkpoint in steps while the stream goes on.
//!
//! A layout reads its next stretch, and reports which records are about to change and which have died.
//! The engine hands work to the helper, and takes a checkpoint in one call where nothing goes on meanwhile.

mod at_once;
mod job;

pub(crate) use at_once::{InSteps, at_once};
pub(crate) use job::{Job, Jobs};
