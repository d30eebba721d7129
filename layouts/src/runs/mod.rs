//! Immutable sorted runs: records that are written once, found by one read, and merged.
//!
//! A run is one file. Its records are in the order of their hash, then of what its user adds (a slice, a time, a
//! sequence); among equals the earlier record is the newer one. A run is divided into *partitions*, which can be built,
//! merged and kept in memory one at a time. For each partition a *guide* stands behind its records: a fence, which
//! leads a hash to its chunk, and a filter, which knows most absent hashes.
//!
//! What it keeps true:
//! - Records are erased: a hash, a mark, an order and a payload. All of this is compiled once.
//! - Before a partition counts, each of its hashes is looked up through its new guide. [`verify`] does it again.
//! - A chunk is verified before one of its records is shown or copied, a guide before it is asked.
//! - What a writer, a cursor or a merge takes in memory is told by `memory_bytes` before it is made. Its owner books it.
//!
//! `docs/design/runs.md` has the reasons, `docs/format.md` the bytes.

mod ahead;
mod behind;
mod chunk;
mod cursor;
mod directory;
mod fence;
mod fetches;
mod fetching;
mod filter;
mod guide;
mod levels;
mod merge;
mod needs;
mod run;
mod scan;
mod second;
mod unsynced;
mod verify;
mod whole;
mod writer;

pub use alluvium_pagestore::{RunId, RunInfo};
pub use chunk::RecordView;
pub use cursor::SortedRunCursor;
pub use levels::{
    ABOVE_MAX, AT_ONCE, BoxedJudge, FAILED_MAX, HelpedStep, LevelStats, Levels, MERGED_MAX, SHARE,
    due,
};
pub(crate) use merge::is_of_device;
pub use merge::{Judge, MergeSizes, RunMerge};
pub use needs::RunsMemory;
pub use run::{GuideUse, ReadBuffer, RunReads, SortedRun};
pub use scan::{ScanPositions, scan, scan_bytes, scan_from};
pub use unsynced::UnsyncedRun;
pub use verify::{VerifiedRun, verify};
pub use whole::{WholeGuides, WholeRun};
pub use writer::{RunSizes, RunWriter};

use alluvium_pagestore::{Error, ErrorKind};

/// The version of the format of runs. Those of version 1 are read: their filters have one byte a slot.
pub const RUN_VERSION: u32 = 2;

/// The checksum of bytes of a run at an offset: bytes of another place or another run never have it.
fn checksum(run: u64, offset: u64, bytes: &[u8]) -> u32 {
    let place = crc32c::crc32c_append(crc32c::crc32c(&run.to_le_bytes()), &offset.to_le_bytes());
    crc32c::crc32c_append(place, bytes)
}

/// The error for bytes that are not what was written.
#[cold]
fn damaged(run: u64, offset: u64, what: &str) -> Error {
    let file = RunId(run).file_name();
    Error::new(ErrorKind::Corrupt, what).with("file", file).with("offset", offset)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

fn put_u32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

fn put_u64(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
}
