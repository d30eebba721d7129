//! Workloads, peers and reports for Alluvium.

mod error;
mod size;
mod time;

pub mod args;
pub mod input;
pub mod nexmark;
pub mod report;
pub mod run;

pub use error::{Error, Result};
pub use size::Size;
pub use time::Time;
