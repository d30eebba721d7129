//! The second half of a checkpoint: the job's record says that it counts, or it is given up.

use std::sync::Arc;

use alluvium::io::Device;
use alluvium::{Error, ErrorKind, Result, Seal};

use super::record::{JobCheckpoint, Record, WorkerCheckpoint};
use super::restore::superseded;
use super::{JobCheckpoints, Part, Phase, Turn, of_note, passing};
use crate::event_time::EventTime;

/// What the first worker says of its attempt to commit.
const COMMITTED: i64 = 0;
const NOT_COMMITTED: i64 = 1;
const UNKNOWN: i64 = 2;

/// One of these, and why.
pub(super) type Verdict = (i64, String);

impl<T: EventTime> JobCheckpoints<T> {
    /// All have written, or could not: the first worker has its helper commit.
    pub(super) fn decide(&mut self, part: Part, said: &[(i64, String)]) -> Result<Phase> {
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
            return Ok(Phase::Idle);
        }
        let number = self.next_number();
        let (key_groups, division) = (self.state.key_groups(), self.state.place().home.division);
        let new = JobCheckpoint { number, until: part.until, key_groups, division, workers };
        if self.state.index() > 0 {
            let meeting = self.state.arrive_saying(COMMITTED, String::new())?;
            return Ok(Phase::Deciding(meeting, part, new));
        }
        let open = self.state.place().record_device();
        let (record, retain) = (new.clone(), self.state.place().retain());
        let job = move || Ok(commit(open, record, retain));
        let replacing = self.state.store().aside("the job's record", job);
        Ok(Phase::Committing(replacing, part, new))
    }

    /// What became of the record is known: the first worker tells the others.
    pub(super) fn replaced(
        &self,
        verdict: Result<Verdict>,
        part: Part,
        new: JobCheckpoint,
    ) -> Result<Phase> {
        let (verdict, why) = verdict.unwrap_or_else(|error| (UNKNOWN, error.to_string()));
        let meeting = self.state.arrive_saying(verdict, why)?;
        Ok(Phase::Deciding(meeting, part, new))
    }

    /// The first worker has said what became of the record.
    pub(super) fn decided(
        &mut self,
        part: Part,
        new: JobCheckpoint,
        (verdict, why): &Verdict,
    ) -> Result<Phase> {
        match *verdict {
            COMMITTED => {
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
                Ok(Phase::Confirming(part.seal?))
            }
            NOT_COMMITTED => {
                self.abandon(part, why.clone())?;
                Ok(Phase::Idle)
            }
            // Either may count: both are left in place, and the next run reads which it is.
            _ => {
                let message = "the job's record may have been replaced or not; start again";
                Err(Error::new(ErrorKind::Io, message).caused_by(why.clone()))
            }
        }
    }

    /// A step of confirming the store's part. It counts whether its store lists it or not: an open
    /// finds it by its number. What passes by itself is no reason to end the run.
    pub(super) fn confirm(mut seal: Seal) -> Result<(Phase, Option<Turn>)> {
        Ok(match passing(seal.confirm_some())? {
            Ok(None) => (Phase::Confirming(seal), Some(Turn::Go)),
            Ok(Some(_)) | Err(_) => (Phase::Idle, None),
        })
    }

    /// Gives the checkpoint up.
    ///
    /// # Errors
    /// Why, if nothing comes after it that could make the rows of sinks visible.
    fn abandon(&mut self, part: Part, why: String) -> Result<()> {
        let is_needed = part.is_last && !self.is_shown;
        if let Ok(seal) = part.seal {
            seal.abort();
        }
        if is_needed {
            let message = "the last checkpoint failed, and sinks do not show all; start again";
            return Err(Error::new(ErrorKind::Io, message).caused_by(why));
        }
        self.abandoned = Some(why);
        Ok(())
    }
}

/// Replaces the record by one with `new`, on the device that `open` opens, and says what became of it,
/// and why.
fn commit(
    open: impl FnOnce() -> Result<Option<Arc<dyn Device>>>,
    new: JobCheckpoint,
    retain: usize,
) -> Verdict {
    let device = match open() {
        Ok(Some(device)) => device,
        Ok(None) => unreachable!("looked at when the job's checkpoints were made"),
        Err(error) => return (NOT_COMMITTED, error.to_string()),
    };
    let committed = Record::load(&*device).and_then(|mut record| {
        record.add(new.clone(), retain);
        record.commit(&*device)
    });
    match committed {
        Ok(()) => (COMMITTED, String::new()),
        Err(error) if says_otherwise(&*device, &new) => (NOT_COMMITTED, error.to_string()),
        Err(error) => (UNKNOWN, error.to_string()),
    }
}

/// Whether the record is certainly one that has not `new`.
fn says_otherwise(device: &dyn Device, new: &JobCheckpoint) -> bool {
    Record::load(device).is_ok_and(|record| record.last() != Some(new))
}
