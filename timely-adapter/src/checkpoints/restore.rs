//! What the workers of a run begin with: agreed on before any of them opens its store.
//!
//! The first worker reads the job's record and tells the others; each looks whether it sees what it
//! is to restore, and says so. Only if all do are stores opened, so that a run which cannot begin
//! changes nothing.

use std::path::Path;
use std::sync::Arc;

use alluvium::io::{Device, DirectIo, ThreadPool, ThreadPoolOptions};
use alluvium::{Error, ErrorKind, Result, checkpoint_name};

use super::record::{COMMITTED, JobCheckpoint, Record};
use crate::place::Place;

/// Where a worker's state comes from: a checkpoint of one store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    /// The directory of the store, inside the process's.
    pub(crate) directory: String,
    /// The number of the checkpoint.
    pub(crate) number: u64,
}

/// What worker `index` of `workers` restores from, given the checkpoint it goes on from.
///
/// This is the one place that knows how the workers of a run follow those of the run before it.
pub(crate) fn origins(
    checkpoint: &JobCheckpoint,
    index: usize,
    workers: usize,
    key_groups: u16,
) -> Result<Vec<Origin>> {
    let refused = |message| Err(Error::new(ErrorKind::Mismatch, message));
    let (then, groups) = (checkpoint.workers.len(), checkpoint.key_groups);
    if groups != key_groups {
        let message = format!("the checkpoint has {groups} key groups, this run has {key_groups}");
        return refused(message);
    }
    if then != workers {
        let message = format!(
            "the checkpoint was made by {then} workers, this run has {workers}; start as many, in \
             any number of processes that see their directories"
        );
        return refused(message);
    }
    let origin = &checkpoint.workers[index];
    Ok(vec![Origin { directory: origin.directory.clone(), number: origin.number }])
}

/// The device of a process's directory itself, where the record is: opened when it is needed, which
/// is rare, and closed after.
pub(crate) fn record_device(directory: &Path) -> Result<Arc<dyn Device>> {
    let options = ThreadPoolOptions { threads: 1, direct: DirectIo::Off };
    Ok(Arc::new(ThreadPool::new(directory, options)?))
}

/// Agrees with all other workers on the checkpoint that the run goes on from; `None` if there is
/// none. Takes two meetings, the first being `meeting`.
pub(crate) fn agree(place: &Place, meeting: u64) -> Result<Option<JobCheckpoint>> {
    let (group, index, workers) = (&place.node.group, place.index, place.peers);
    let key_groups = place.node.config.store.key_groups;
    let told = match index {
        0 => serde_json::to_string(&place.record()?.last()).map_err(unreadable)?,
        _ => String::new(),
    };
    let first = group.arrive(meeting, index, 0, told)?;
    let told = group.await_notes(&first)?.swap_remove(0).1;
    let checkpoint: Option<JobCheckpoint> = serde_json::from_str(&told).map_err(unreadable)?;
    let mut missing = String::new();
    if let Some(checkpoint) = &checkpoint {
        for origin in origins(checkpoint, index, workers, key_groups)? {
            let name = checkpoint_name(origin.number);
            if !place.files(&origin)?.contains(&name) {
                missing = format!("worker {index} does not see {}/{name}", origin.directory);
            }
        }
    }
    let second = group.arrive(meeting + 1, index, 0, missing)?;
    let told = group.await_notes(&second)?;
    let missing: Vec<_> = told.into_iter().map(|note| note.1).filter(|m| !m.is_empty()).collect();
    match (checkpoint, missing.is_empty()) {
        (checkpoint, true) => Ok(checkpoint),
        (_, false) => {
            let message = format!(
                "the job's last checkpoint cannot be restored: {}; each process needs the \
                 directories of its workers in its own",
                missing.join(", ")
            );
            Err(Error::new(ErrorKind::Missing, message))
        }
    }
}

/// Refuses to open single stores where a job has committed checkpoints of all.
pub(crate) fn refuse_job(record: &Record) -> Result<()> {
    if record.last().is_none() {
        return Ok(());
    }
    let message = "the directory has checkpoints of a whole job; start it with `execute`";
    Err(Error::new(ErrorKind::Unsupported, message).with("file", COMMITTED))
}

fn unreadable(error: serde_json::Error) -> Error {
    Error::new(ErrorKind::Input, "the first worker's record is not understood").caused_by(error)
}

#[cfg(test)]
mod tests {
    use alluvium::Time;

    use super::super::record::WorkerCheckpoint;
    use super::*;

    #[test]
    fn each_worker_restores_its_own_and_other_numbers_are_refused_with_both() {
        let worker = |number: u64| WorkerCheckpoint {
            directory: format!("worker-{number}"),
            number: 7 + number,
            position: vec![],
        };
        let workers = (0..3).map(worker).collect();
        let checkpoint = JobCheckpoint { number: 4, until: Time(9), key_groups: 256, workers };
        for index in 0..3 {
            let expected =
                Origin { directory: format!("worker-{index}"), number: 7 + index as u64 };
            assert_eq!(origins(&checkpoint, index, 3, 256).unwrap(), [expected]);
        }
        for (workers, groups, expected) in
            [(2, 256, "by 3 workers, this run has 2"), (3, 128, "has 256 key groups")]
        {
            let error = origins(&checkpoint, 0, workers, groups).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Mismatch);
            assert!(error.to_string().contains(expected), "{error}");
        }
    }
}
