//! The second half of a checkpoint: the job's record says that it counts, or it is given up.

use alluvium::io::Device;
use alluvium::{Error, ErrorKind, Result};

use super::record::{JobCheckpoint, Record, WorkerCheckpoint};
use super::restore::superseded;
use super::{JobCheckpoints, Part, Phase, of_note, passing};
use crate::event_time::EventTime;

/// What the first worker says of its attempt to commit.
const COMMITTED: i64 = 0;
const NOT_COMMITTED: i64 = 1;
const UNKNOWN: i64 = 2;

impl<T: EventTime> JobCheckpoints<T> {
    /// All have written, or could not: the first worker commits.
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
            self.abandon(part, error);
            return Ok(Phase::Idle);
        }
        let number = self.committed.as_ref().map_or(0, |last| last.number) + 1;
        let (key_groups, division) = (self.state.key_groups(), self.state.place().home.division);
        let new = JobCheckpoint { number, until: part.until, key_groups, division, workers };
        let (verdict, why) = match self.state.index() {
            0 => self.commit(&new),
            _ => (COMMITTED, String::new()),
        };
        let meeting = self.state.arrive_saying(verdict, why)?;
        Ok(Phase::Deciding(meeting, part, new))
    }

    /// Replaces the record, and says what became of it, and why.
    fn commit(&self, new: &JobCheckpoint) -> (i64, String) {
        let device = match self.state.place().record_device() {
            Ok(Some(device)) => device,
            Ok(None) => unreachable!("looked at when this was made"),
            Err(error) => return (NOT_COMMITTED, error.to_string()),
        };
        let retain = self.state.place().retain();
        let committed = Record::load(&*device).and_then(|mut record| {
            record.add(new.clone(), retain);
            record.commit(&*device)
        });
        match committed {
            Ok(()) => (COMMITTED, String::new()),
            Err(error) if says_otherwise(&*device, new) => (NOT_COMMITTED, error.to_string()),
            Err(error) => (UNKNOWN, error.to_string()),
        }
    }

    /// The first worker has said what became of the record.
    pub(super) fn decided(
        &mut self,
        part: Part,
        new: JobCheckpoint,
        (verdict, why): &(i64, String),
    ) -> Result<()> {
        match *verdict {
            COMMITTED => {
                // It counts whether its store lists it or not: an open finds it by its number. What
                // passes by itself is no reason to end the run.
                let _ = passing(part.seal?.confirm())?;
                let before = self.committed.as_ref().filter(|all| all.division != new.division);
                if let Some(before) = before {
                    // All stores are made, and nothing names those that they were made of.
                    self.removal = Some(superseded(self.state.place(), before, &new));
                }
                self.committed = Some(new);
                self.abandoned = None;
                Ok(())
            }
            NOT_COMMITTED => {
                self.abandon(part, why.clone());
                Ok(())
            }
            // Either may count: both are left in place, and the next run reads which it is.
            _ => {
                let message = "the job's record may have been replaced or not; start again";
                Err(Error::new(ErrorKind::Io, message).caused_by(why.clone()))
            }
        }
    }

    fn abandon(&mut self, part: Part, why: String) {
        if let Ok(seal) = part.seal {
            seal.abort();
        }
        self.abandoned = Some(why);
    }
}

/// Whether the record is certainly one that has not `new`.
fn says_otherwise(device: &dyn Device, new: &JobCheckpoint) -> bool {
    Record::load(device).is_ok_and(|record| record.last() != Some(new))
}
