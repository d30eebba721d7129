//! How far a checkpoint of a job is, and what its workers say to each other.

use std::collections::BTreeMap;

use alluvium::checkpoints::Seal;
use alluvium::moving::KeyGroups;
use alluvium::states::Aside;
use alluvium::{Error, ErrorKind, Result, Time};

use super::{JobCheckpoint, commit};
use crate::intake::fault::is_passing;
use crate::job::group::Meeting;

/// How far a checkpoint of the job is, on one worker.
pub(super) enum JobPhase {
    Idle,
    Agreeing(Meeting),
    /// Since so many turns there is nothing more to come out.
    Aligning(Time, u32),
    Sealing(Meeting, WorkerPart),
    Writing(WorkerPart),
    Written(Meeting, WorkerPart),
    /// The first worker's helper replaces the record.
    Committing(Aside<commit::CommitVerdict>, WorkerPart, JobCheckpoint),
    Deciding(Meeting, WorkerPart, JobCheckpoint),
    Confirming(Seal),
    /// All have ended, and sinks are being committed.
    Finishing(Time),
    Ended(Time),
}

/// This worker's part of the checkpoint under way.
pub(super) struct WorkerPart {
    pub(super) until: Time,
    pub(super) position: Vec<u64>,
    /// Key groups that are not where they began, by operator.
    pub(super) moved: BTreeMap<String, KeyGroups>,
    /// Its store's checkpoint, or why there is none.
    pub(super) seal: std::result::Result<Seal, Error>,
    /// The rows of sinks becoming durable.
    pub(super) rows: Vec<Aside<()>>,
    /// All workers have ended: the sinks show all there is when this one counts.
    pub(super) is_last: bool,
}

/// Whether an error is that of one checkpoint, which is given up: what it has no room for, or was overtaken, is
/// written by a later one, and no run ends with that.
pub(super) fn is_of_one(kind: ErrorKind) -> bool {
    use ErrorKind::{Descriptors, DiskFull, OverBudget, Overtaken};
    matches!(kind, DiskFull | Descriptors | OverBudget | Overtaken)
}

/// Takes an error for a result that passes by itself, or is of one checkpoint: that is given up, the run is not.
pub(super) fn passing<R>(result: Result<R>) -> Result<std::result::Result<R, Error>> {
    match result {
        Err(error) if !is_passing(error.kind()) && !is_of_one(error.kind()) => Err(error),
        other => Ok(other),
    }
}

/// Forgets what is done.
///
/// # Errors
/// Those of what is done.
pub(super) fn drop_finished(asides: &mut Vec<Aside<()>>) -> Result<()> {
    let mut failed = Ok(());
    asides.retain(|aside| match aside.poll() {
        None => true,
        Some(Ok(())) => false,
        Some(Err(error)) => {
            failed = Err(error);
            false
        }
    });
    failed
}

pub(super) fn note_of(said: &impl serde::Serialize) -> String {
    serde_json::to_string(said).expect("plain data can be written")
}

pub(super) fn of_note<R: serde::de::DeserializeOwned>(note: &str) -> Result<R> {
    serde_json::from_str(note).map_err(|error| {
        Error::new(ErrorKind::Input, "cannot parse what a worker sent").caused_by(error)
    })
}
