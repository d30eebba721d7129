//! Published experiments as named suites: each runs programs of this repository in turns, one process
//! a cell, compares their answers and writes one report.
//!
//! A suite knows programs by their command lines and JSON only: it compiles none of what it measures.
//! [`runner`] runs cells and keeps their outcomes, so that a run that was interrupted goes on.

pub mod birte;
pub mod cell;
pub mod cli;
pub mod error;
pub mod hotstorage;
pub mod medians;
pub mod nexmark;
pub mod programs;
pub mod report;
pub mod runner;
mod stop_unsafe;

pub use error::{Error, Result};
