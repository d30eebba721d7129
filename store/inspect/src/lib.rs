//! Looks into a directory that no store has open: what is there, whether it is sound, its records as
//! JSON. The command `alluvium` is this library with arguments.
//!
//! Files are mapped into memory, under the directory's lock. Nothing is changed.

mod archive;
mod checkpoints;
mod directory;
mod export;
mod map_unsafe;
mod summary;
mod table;
mod verify;

pub use directory::ClosedDirectory;
pub use export::{ExportOptions, Exported, export};
pub use summary::{CheckpointSummary, OtherFile, StateSummary, Summary, inspect};
pub use verify::{Damage, Verified, verify};
