//! The checkpoint engine: what layouts share of taking a checkpoint in steps while the stream goes on.
//!
//! A layout reads its next stretch, and reports which records are about to change and which have died.
//! The engine hands work to the helper, writes batches of records, keeps the ledger of segments with the records
//! that have died, plans what is written anew, and tells which records are live. State in memory, heap tables too, is
//! driven by [`Remembered`]; any state takes a checkpoint in one call by [`at_once`].

mod at_once;
mod counts;
mod dead;
mod deaths_writer;
mod files;
mod job;
mod ledger;
mod live_sets;
mod naming;
mod recording;
mod remembered;
mod steps;
mod writer;

pub use at_once::{InSteps, at_once};
pub(crate) use counts::SegmentCounts;
pub(crate) use dead::{DeadList, DeadListPosition};
pub(crate) use files::{FileBytes, FilesByName, NamedBy, PinnedRuns, files_of, files_of_image};
pub(crate) use job::{HelperJob, Jobs};
pub(crate) use live_sets::{LiveSets, write_sets};
pub(crate) use naming::FREE_BYTES;
pub use recording::Recording;
pub use remembered::Remembered;
pub(crate) use remembered::{LeftSets, MarkedEntries};
pub(crate) use steps::{CheckpointSteps, GivenBatches, overtaken};
pub(crate) use writer::{
    BATCH_BYTES_MAX, BatchWriter, LEAST_CHUNK_BYTES, LEAST_PAGE_RECORDS, RecordSink, WriterSizes,
};
