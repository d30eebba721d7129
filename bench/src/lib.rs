//! Workloads, peers and reports for Alluvium.

pub mod args;
pub mod input;
pub mod nexmark;
pub mod peers;
pub mod queries;
pub mod report;
pub mod run;
pub mod window;
pub mod workload;

pub use alluvium_gadget::{Error, Result};
