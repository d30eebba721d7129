//! What operations work on: keys drawn from a distribution, and the histories of repositories.

mod keys;

pub mod git;

pub use keys::{Distribution, Keys, RecordShape, Scatter};
