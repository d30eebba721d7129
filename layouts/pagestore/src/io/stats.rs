//! Counters of a device, which every engine keeps and [`IoStats`] shows.
//!
//! Requests count when they end: the figures show work done, not work requested. Cost: one relaxed
//! atomic addition per request.

use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::Operation;

/// Counters of a [`Device`](super::Device) since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IoStats {
    /// Reads that succeeded.
    pub reads: u64,
    /// Writes that succeeded.
    pub writes: u64,
    /// Syncs that succeeded.
    pub syncs: u64,
    /// Bytes moved by successful reads.
    pub bytes_read: u64,
    /// Bytes moved by successful writes.
    pub bytes_written: u64,
    /// Requests that failed.
    pub errors: u64,
    /// Files created or opened, renames, removals and directory syncs, failed or not.
    pub directory_operations: u64,
}

impl IoStats {
    /// Returns the work between `earlier` and `self`, two readings of the same device.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            reads: self.reads - earlier.reads,
            writes: self.writes - earlier.writes,
            syncs: self.syncs - earlier.syncs,
            bytes_read: self.bytes_read - earlier.bytes_read,
            bytes_written: self.bytes_written - earlier.bytes_written,
            errors: self.errors - earlier.errors,
            directory_operations: self.directory_operations - earlier.directory_operations,
        }
    }
}

/// The living form of [`IoStats`]. Readings are not atomic across fields.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    reads: AtomicU64,
    writes: AtomicU64,
    syncs: AtomicU64,
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
    errors: AtomicU64,
    directory_operations: AtomicU64,
}

impl Counters {
    /// Counts one request that ended.
    pub(crate) fn count(&self, operation: Operation, bytes: usize, succeeded: bool) {
        let (operations, moved) = match operation {
            _ if !succeeded => (&self.errors, None),
            Operation::Read { .. } => (&self.reads, Some(&self.bytes_read)),
            Operation::Write { .. } => (&self.writes, Some(&self.bytes_written)),
            Operation::Sync => (&self.syncs, None),
        };
        operations.fetch_add(1, Relaxed);
        if let Some(moved) = moved {
            moved.fetch_add(bytes as u64, Relaxed);
        }
    }

    /// Counts one operation on the directory.
    pub(crate) fn count_directory_operation(&self) {
        self.directory_operations.fetch_add(1, Relaxed);
    }

    /// The figures as they stand.
    pub(crate) fn read(&self) -> IoStats {
        IoStats {
            reads: self.reads.load(Relaxed),
            writes: self.writes.load(Relaxed),
            syncs: self.syncs.load(Relaxed),
            bytes_read: self.bytes_read.load(Relaxed),
            bytes_written: self.bytes_written.load(Relaxed),
            errors: self.errors.load(Relaxed),
            directory_operations: self.directory_operations.load(Relaxed),
        }
    }
}
