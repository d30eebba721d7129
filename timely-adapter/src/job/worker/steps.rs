//! A worker among all others: its steps, its meetings with them, and the fault that ends the run of all.

use std::time::Duration;

use alluvium::{Error, Result};
use timely::worker::Worker;

use super::WorkerState;
use crate::job::group::{Meeting, Met};

/// How long a worker that has nothing to do sleeps at most; it is woken when data or a fault comes.
const NAP: Duration = Duration::from_millis(10);

impl WorkerState {
    /// Returns the first error that this process heard of: of a state call in an operator of any
    /// worker, or anything else that ends the run. Results so far are right but incomplete: end the
    /// run.
    pub fn fault(&self) -> Option<&Error> {
        self.0.node.group.fault()
    }

    /// Returns whether there is a [`fault`](WorkerState::fault). Cost: one load.
    pub fn has_failed(&self) -> bool {
        self.fault().is_some()
    }

    /// Lets `worker` work for a while, or sleep for a few milliseconds if there is nothing to do.
    ///
    /// # Errors
    /// The fault that ends the run.
    pub fn step(&self, worker: &mut Worker) -> Result<()> {
        self.step_or_nap(worker, NAP)
    }

    /// Does a [`step`](WorkerState::step) that sleeps no longer than `nap`.
    ///
    /// # Errors
    /// The fault that ends the run.
    pub fn step_or_nap(&self, worker: &mut Worker, nap: Duration) -> Result<()> {
        worker.step_or_park(Some(nap));
        self.0.node.group.check()
    }

    /// Steps until `done` returns true; asks it before each step.
    ///
    /// # Errors
    /// The fault that ends the run.
    pub fn run_until(&self, worker: &mut Worker, mut done: impl FnMut() -> bool) -> Result<()> {
        while !done() {
            self.step(worker)?;
        }
        Ok(())
    }

    /// Joins this worker's next meeting with all other workers of all processes and says a number.
    /// All workers must join equally many meetings. If the job of a worker returns earlier, the run
    /// fails and names it. Ask [`met`](WorkerState::met) between steps whether all are there.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](alluvium::ErrorKind::Unsupported) in a cluster that
    /// [`execute`](crate::execute()) has not started.
    pub fn arrive(&self, said: i64) -> Result<Meeting> {
        self.arrive_saying(said, String::new())
    }

    /// [`arrive`](WorkerState::arrive), saying more than a number.
    pub(crate) fn arrive_saying(&self, said: i64, note: String) -> Result<Meeting> {
        let number = self.0.meetings.get();
        self.0.meetings.set(number + 1);
        self.0.node.group.arrive(number, self.0.index, said, note)
    }

    /// The worker's job has returned: it comes to no more meetings.
    pub(crate) fn job_returned(&self) {
        self.0.node.group.job_returned(self.0.index, self.0.meetings.get());
    }

    /// What each worker has said at a meeting, ordered by worker, once all are there.
    pub(crate) fn notes(&self, meeting: &Meeting) -> Option<Vec<(i64, String)>> {
        self.0.node.group.notes(meeting)
    }

    /// Returns what all workers said at a meeting. `None` until all are there, and after this
    /// worker has joined a later one.
    pub fn met(&self, meeting: &Meeting) -> Option<Met> {
        self.0.node.group.met(meeting)
    }

    /// Meets all other workers of all processes, and steps until they are there.
    ///
    /// # Errors
    /// As [`arrive`](WorkerState::arrive). The fault that ends the run.
    pub fn meet(&self, worker: &mut Worker, said: i64) -> Result<Met> {
        let meeting = self.arrive(said)?;
        loop {
            match self.met(&meeting) {
                Some(met) => return Ok(met),
                None => self.step(worker)?,
            }
        }
    }

    /// If there is a fault, drops all dataflows of `worker` and returns the fault. Each worker must
    /// call it: the dataflows cannot continue without one. [`execute`](crate::execute()) calls it.
    ///
    /// # Errors
    /// The fault.
    pub fn abandon_if_failed(&self, worker: &mut Worker) -> Result<()> {
        if self.has_failed() {
            for dataflow in worker.installed_dataflows() {
                worker.drop_dataflow(dataflow);
            }
        }
        self.0.node.group.check()
    }

    /// Reports the error of a state call in an operator; the first one counts. For operators on
    /// plain Timely. They should apply nothing more and keep a capability.
    pub fn fail(&self, error: Error) {
        self.0.node.group.fail_in_operator(error.with("worker", self.0.index));
    }

    /// Ends the run of all workers with an error that is not of state, such as of writing results.
    /// The first one counts.
    pub fn end_run(&self, error: Error) {
        self.0.node.group.fail(error);
    }
}
