//! Histories of git repositories as keyed streams: key = path, value = blob id, batch = commit.
//!
//! One history comes in either of two ways, as a file made earlier ([`CsvHistory`]) or from a
//! repository on this machine ([`Repository`]), and as the same batches. What must be left after
//! them is known from git itself, not from a replay.

mod csv_history;
mod repository;
mod snapshot;

use std::fmt;

pub use csv_history::CsvHistory;
pub use repository::{History, Repository};
pub use snapshot::{Snapshot, read_snapshot};

/// The changes of one commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Its place in the history, from 0.
    pub commit: u64,
    /// Committer time in seconds since the epoch, as recorded: it may step back.
    pub committed_s: i64,
    /// In the history's order; a path occurs at most once.
    pub changes: Vec<Change>,
}

/// What a commit did to one path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The path is new or has other contents.
    Put {
        /// The key.
        path: String,
        /// The first 16 hex digits of the blob's id.
        value: String,
    },
    /// The path is gone.
    Delete {
        /// The key.
        path: String,
    },
}

impl Change {
    /// The key.
    pub fn path(&self) -> &str {
        match self {
            Change::Put { path, .. } | Change::Delete { path } => path,
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Change::Put { path, value } => write!(f, "put {path} {value}"),
            Change::Delete { path } => write!(f, "delete {path}"),
        }
    }
}
