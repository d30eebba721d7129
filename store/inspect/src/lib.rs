//! Inspects a directory that no store has open: its contents, its damage, and its records as JSON.
//! The command `alluvium` is a command line for this library.
//!
//! Maps files into memory, under the directory's lock. Changes nothing.

mod archive;
mod checkpoints;
mod directory;
mod export;
mod map_unsafe;
mod summary;
mod table;
mod verify;

pub use directory::ClosedDirectory;
pub use export::{ExportOptions, ExportSummary, export};
pub use summary::{CheckpointSummary, OtherFile, StateSummary, Summary, inspect};
pub use verify::{Damage, Verified, verify};
