//! The second half of a checkpoint: the job's record says that it counts, or it is given up.

use std::collections::BTreeSet;
use std::sync::Arc;

use alluvium::checkpoints::Seal;
use alluvium::io::Device;
use alluvium::{Error, ErrorKind, Result};

use super::record::{JobCheckpoint, JobRecord, WorkerCheckpoint};
use super::restore::superseded;
use super::{JobCheckpoints, JobPhase, Turn, WorkerPart, note_of, of_note, passing};
use crate::event_time::EventTime;
use crate::job::place::owned_groups;

/// What the first worker says of its attempt to commit.
const COMMITTED: i64 = 0;
const NOT_COMMITTED: i64 = 1;
const UNKNOWN: i64 = 2;

/// One of these, and why; of the first, which of the job's checkpoints the record names now.
pub(super) type CommitVerdict = (i64, String);

impl<T: EventTime> JobCheckpoints<T> {
    /// All have written, or could not: the first worker has its helper commit.
    pub(super) fn decide(&mut self, part: WorkerPart, said: &[(i64, String)]) -> Result<JobPhase> {
        let mut workers = Vec::new();
        let mut failed = None;
        for (index, (_, note)) in said.iter().enumerate() {
            match of_note::<std::result::Result<WorkerCheckpoint, String>>(note)? {
                Ok(worker) => workers.push(worker),
                Err(error) => failed = failed.or(Some(format!("worker {index}: {error}"))),
            }
        }
        if let Some(error) = failed {
            self.abandon(part, error)?;
            return Ok(JobPhase::Idle);
        }
        let (key_groups, division) = (self.state.key_groups(), self.state.place().home.division);
        if let Some(error) = misplaced(&workers, key_groups) {
            // All workers have been told the same.
            self.abandon(part, error)?;
            return Ok(JobPhase::Idle);
        }
        let number = self.next_number();
        let new = JobCheckpoint { number, until: part.until, key_groups, division, workers };
        if self.state.index() > 0 {
            let meeting = self.state.arrive_saying(COMMITTED, String::new())?;
            return Ok(JobPhase::Deciding(meeting, part, new));
        }
        let open = self.state.place().record_device();
        let (record, retain) = (new.clone(), self.state.place().retain());
        let job = move || Ok(commit(open, record, retain));
        let replacing = self.state.store().aside("the job's record", job);
        Ok(JobPhase::Committing(replacing, part, new))
    }

    /// What became of the record is known: the first worker tells the others.
    pub(super) fn replaced(
        &self,
        verdict: Result<CommitVerdict>,
        part: WorkerPart,
        new: JobCheckpoint,
    ) -> Result<JobPhase> {
        let (verdict, why) = verdict.unwrap_or_else(|error| (UNKNOWN, error.to_string()));
        let meeting = self.state.arrive_saying(verdict, why)?;
        Ok(JobPhase::Deciding(meeting, part, new))
    }

    /// The first worker has said what became of the record.
    pub(super) fn decided(
        &mut self,
        part: WorkerPart,
        new: JobCheckpoint,
        (verdict, why): &CommitVerdict,
    ) -> Result<JobPhase> {
        match *verdict {
            COMMITTED => {
                let seal = part.seal?;
                // Before the store may drop what the record names.
                self.state.hold(new.number, seal.number());
                self.state.hold_only(&of_note::<Vec<u64>>(why)?);
                let before = self.committed.as_ref().filter(|all| all.division != new.division);
                if let Some(before) = before {
                    // All stores are made, and nothing names those that they were made of.
                    self.removal = Some(superseded(self.state.place(), before, &new));
                }
                for sink in self.state.sinks() {
                    let work = sink.commit(new.number)?;
                    self.showing.push(self.state.store().aside("a sink's commit", work));
                }
                self.is_shown |= part.is_last;
                self.committed = Some(new);
                self.abandoned = None;
                Ok(JobPhase::Confirming(seal))
            }
            NOT_COMMITTED => {
                self.abandon(part, why.clone())?;
                Ok(JobPhase::Idle)
            }
            // Either may count: both are left in place, and the next run reads which it is.
            _ => {
                let message = "it is unknown whether the job's record was replaced; start again";
                Err(Error::new(ErrorKind::Io, message).caused_by(why.clone()))
            }
        }
    }

    /// A step of confirming the store's part. It counts whether its store lists it or not: an open
    /// finds it by its number. What passes by itself is no reason to end the run.
    pub(super) fn confirm(mut seal: Seal) -> Result<(JobPhase, Option<Turn>)> {
        Ok(match passing(seal.confirm_step())? {
            Ok(None) => (JobPhase::Confirming(seal), Some(Turn::Go)),
            Ok(Some(_)) | Err(_) => (JobPhase::Idle, None),
        })
    }

    /// Gives the checkpoint up.
    ///
    /// # Errors
    /// Why, if nothing comes after it that could make the rows of sinks visible.
    fn abandon(&mut self, part: WorkerPart, why: String) -> Result<()> {
        let is_needed = part.is_last && !self.is_shown;
        if let Ok(seal) = part.seal {
            seal.abort();
        }
        if is_needed {
            let message =
                "the last checkpoint failed before the sinks showed all rows; start again";
            return Err(Error::new(ErrorKind::Io, message).caused_by(why));
        }
        self.abandoned = Some(why);
        Ok(())
    }
}

/// Why the stores' checkpoints do not have each key group exactly once, if that is so, of some operator
/// whose groups have moved.
fn misplaced(workers: &[WorkerCheckpoint], key_groups: u16) -> Option<String> {
    let operators: BTreeSet<&String> = workers.iter().flat_map(|part| part.moved.keys()).collect();
    for operator in operators {
        let mut at = vec![Vec::new(); usize::from(key_groups)];
        for (worker, part) in workers.iter().enumerate() {
            let owned = || owned_groups(worker, key_groups, workers.len()).into();
            let groups = part.moved.get(operator).cloned().unwrap_or_else(owned);
            groups.iter().for_each(|group| at[usize::from(group.0)].push(worker));
        }
        if let Some((group, at)) = at.iter().enumerate().find(|(_, at)| at.len() != 1) {
            return Some(format!(
                "key group {group} of operator {operator} is in the checkpoints of workers {at:?}, not of \
                 one"
            ));
        }
    }
    None
}

/// Replaces the record by one with `new`, on the device that `open` opens, and says what became of it,
/// and why.
fn commit(
    open: impl FnOnce() -> Result<Option<Arc<dyn Device>>>,
    new: JobCheckpoint,
    retain: usize,
) -> CommitVerdict {
    let device = match open() {
        Ok(Some(device)) => device,
        Ok(None) => unreachable!("looked at when the job's checkpoints were made"),
        Err(error) => return (NOT_COMMITTED, error.to_string()),
    };
    let committed = JobRecord::load(&*device).and_then(|mut record| {
        record.add(new.clone(), retain);
        record.commit(&*device)?;
        // If it stays, the next run removes it.
        let _ = JobRecord::end_of_begin(&*device);
        Ok(record.checkpoints.iter().map(|named| named.number).collect::<Vec<_>>())
    });
    match committed {
        Ok(named) => (COMMITTED, note_of(&named)),
        Err(error) if says_otherwise(&*device, &new) => (NOT_COMMITTED, error.to_string()),
        Err(error) => (UNKNOWN, error.to_string()),
    }
}

/// Whether the record is certainly one that has not `new`.
fn says_otherwise(device: &dyn Device, new: &JobCheckpoint) -> bool {
    JobRecord::load(device).is_ok_and(|record| record.last() != Some(new))
}

#[cfg(test)]
mod tests {
    use alluvium::moving::{KeyGroup, KeyGroups};

    use super::*;

    /// What four workers have of an operator, of twelve key groups; `None` has what it owns.
    fn told(groups: [Option<&[u16]>; 4]) -> Option<String> {
        let part = |groups: Option<&[u16]>| {
            let groups = groups.map(|all| all.iter().copied().map(KeyGroup).collect());
            let moved = groups.map(|groups: KeyGroups| ("counts".to_owned(), groups));
            let (process, directory) = Default::default();
            let (number, position) = (1, Vec::new());
            let moved = moved.into_iter().collect();
            WorkerCheckpoint { process, directory, number, position, moved }
        };
        misplaced(&groups.map(part), 12)
    }

    #[test]
    fn each_key_group_is_in_the_checkpoint_of_one_worker() {
        assert_eq!(told([None; 4]), None);
        assert_eq!(told([Some(&[0, 1]), Some(&[2, 3, 4, 5]), None, None]), None);
        // Sealed before it left, and after it had come.
        let two = told([None, Some(&[2, 3, 4, 5]), None, None]).unwrap();
        assert!(two.contains("key group 2 of operator counts"), "{two}");
        assert!(two.contains("workers [0, 1]"), "{two}");
        let none = told([Some(&[0, 1]), None, None, None]).unwrap();
        assert!(none.contains("key group 2 of operator counts") && none.contains("[]"), "{none}");
        // A worker that has none of its own, and is not named for that.
        let all: Vec<u16> = (0..12).collect();
        assert_eq!(told([Some(&all), Some(&[]), Some(&[]), Some(&[])]), None);
    }
}
