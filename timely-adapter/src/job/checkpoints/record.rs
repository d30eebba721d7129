//! The job's record: which checkpoints of the workers' stores count together.
//!
//! It is one small file of the first process, `COMMITTED`, replaced as a whole: what it says is what
//! the job goes on from, and a store's own last checkpoint counts only if the record has it. Each
//! entry is whole: nothing outside of it is needed to find the checkpoints.

use alluvium::io::Device;
use std::collections::BTreeMap;

use alluvium::checkpoints::{FORMAT_VERSION, Framed};
use alluvium::moving::KeyGroups;
use alluvium::{Error, ErrorKind, Result, Time};
use serde::{Deserialize, Serialize};

/// Name of the record.
pub(crate) const COMMITTED: &str = "COMMITTED";
/// Name of a record being written.
const COMMITTED_NEW: &str = "COMMITTED.new";
/// Name of a file that says that a job takes checkpoints and has not committed any: what its stores have is not
/// of a run to go on from.
const BEGUN: &str = "BEGUN";
/// Name of that file while it is written.
const BEGUN_NEW: &str = "BEGUN.new";

const RECORD_FILE: Framed =
    Framed { magic: b"ALVJOBC\0", what: "the job's record", newest: FORMAT_VERSION };

/// A checkpoint of all workers of a job at one point of the input.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobCheckpoint {
    /// Number, from 1; greater than those of all earlier ones.
    pub number: u64,
    /// Time of the checkpoint, and watermark of every state: it contains exactly what was sent
    /// before.
    pub until: Time,
    /// Key groups of the job.
    pub key_groups: u16,
    /// How often the key groups were divided among other workers or processes before this run, each
    /// time into new directories.
    #[serde(default)]
    pub division: u64,
    /// Each worker's part, ordered by worker.
    pub workers: Vec<WorkerCheckpoint>,
}

/// One worker's part of a [`JobCheckpoint`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerCheckpoint {
    /// Path from the first process's directory, which has the record, to that of the worker's
    /// process; empty if they are the same.
    #[serde(default)]
    pub process: String,
    /// Directory of the worker's store inside that of its process; empty for a device of its own.
    pub directory: String,
    /// The number of its store's checkpoint.
    pub number: u64,
    /// Position that the worker passed to [`JobCheckpoints::seal`](crate::JobCheckpoints::seal):
    /// where its part of the input resumes.
    pub position: Vec<u64>,
    /// Key groups on the worker of operators whose key groups [move](crate::MoveGroup), by
    /// operator, if they are not the ones it owns.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub moved: BTreeMap<String, KeyGroups>,
}

/// The body of the record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct JobRecord {
    /// Those that can be restored, the oldest first.
    pub(crate) checkpoints: Vec<JobCheckpoint>,
}

impl JobRecord {
    /// Reads the record; an empty one if there is none.
    pub(crate) fn load(device: &dyn Device) -> Result<Self> {
        let record: Self = RECORD_FILE.load(device, COMMITTED)?.unwrap_or_default();
        if record.checkpoints.iter().any(|checkpoint| checkpoint.workers.is_empty()) {
            let message = "the job's record has a checkpoint of no workers";
            return Err(Error::new(ErrorKind::Corrupt, message).with("file", COMMITTED));
        }
        Ok(record)
    }

    /// Whether a job has begun here and committed nothing.
    pub(crate) fn is_begun(&self, device: &dyn Device) -> Result<bool> {
        Ok(self.last().is_none() && device.list()?.iter().any(|name| name == BEGUN))
    }

    /// Notes that a job begins that has committed nothing.
    pub(crate) fn begin(&self, device: &dyn Device) -> Result<()> {
        RECORD_FILE.replace(device, BEGUN, BEGUN_NEW, self)
    }

    /// Forgets that, as there is a record now: if that is lost, nobody takes the job for a new one.
    pub(crate) fn end_of_begin(device: &dyn Device) -> Result<()> {
        if device.list()?.iter().any(|name| name == BEGUN) {
            device.remove(BEGUN)?;
            device.sync_directory()?;
        }
        Ok(())
    }

    /// Whether a file is of the job and not of a store on the same device.
    pub(crate) fn has_file(name: &str) -> bool {
        [COMMITTED, COMMITTED_NEW, BEGUN, BEGUN_NEW].contains(&name)
    }

    /// The record of a job that goes back to the checkpoint of this number, which it has.
    pub(crate) fn up_to(mut self, number: u64) -> Result<Self> {
        let Some(at) = self.checkpoints.iter().position(|all| all.number == number) else {
            let there: Vec<_> = self.checkpoints.iter().map(|all| all.number.to_string()).collect();
            let message = format!(
                "the job cannot go back to its checkpoint {number}; it can to: {}",
                there.join(", ")
            );
            return Err(Error::new(ErrorKind::Missing, message).with("file", COMMITTED));
        };
        self.checkpoints.truncate(at + 1);
        Ok(self)
    }

    /// Replaces the record by this one.
    pub(crate) fn commit(&self, device: &dyn Device) -> Result<()> {
        RECORD_FILE.replace(device, COMMITTED, COMMITTED_NEW, self)
    }

    /// Adds a checkpoint and forgets the oldest, so that at most `retain` are left, and those of
    /// another division: their directories go.
    pub(crate) fn add(&mut self, checkpoint: JobCheckpoint, retain: usize) {
        self.checkpoints.retain(|other| other.division == checkpoint.division);
        self.checkpoints.push(checkpoint);
        self.checkpoints.drain(..self.checkpoints.len().saturating_sub(retain));
    }

    pub(crate) fn last(&self) -> Option<&JobCheckpoint> {
        self.checkpoints.last()
    }
}

#[cfg(test)]
mod tests {
    use alluvium::io::{CrashPolicy, Faults, Simulated};

    use super::*;

    #[test]
    fn a_flipped_bit_in_the_record_is_found_or_harmless() {
        let worker = WorkerCheckpoint {
            process: "../1".into(),
            directory: "worker-0.2".into(),
            number: 7,
            position: vec![3, 9],
            moved: [("counts".into(), KeyGroups::default())].into(),
        };
        let checkpoint = |number| JobCheckpoint {
            number,
            until: Time(100),
            key_groups: 256,
            division: 2,
            workers: vec![worker.clone(), worker.clone()],
        };
        let record = JobRecord { checkpoints: vec![checkpoint(4), checkpoint(5)] };
        let device = Simulated::new(1, Faults::none());
        record.commit(&device).unwrap();
        let (bytes, mut refused) = (device.bytes(COMMITTED).unwrap(), 0);
        for at in 0..bytes.len() as u64 {
            for bit in [0, 3, 7] {
                let device = device.crash(CrashPolicy::Everything);
                device.corrupt(COMMITTED, at, bit).unwrap();
                match JobRecord::load(&device) {
                    Ok(read) => assert_eq!(read.checkpoints, record.checkpoints, "byte {at}"),
                    Err(error) => {
                        let kinds = [ErrorKind::Corrupt, ErrorKind::FormatVersion];
                        assert!(kinds.contains(&error.kind()), "byte {at}: {error:?}");
                        assert_eq!(error.context("file"), Some(COMMITTED), "byte {at}");
                        refused += 1;
                    }
                }
            }
        }
        // Header and body; the rest is padding.
        assert!(refused >= 3 * 32 && refused % 3 == 0, "{refused}");
    }
}
