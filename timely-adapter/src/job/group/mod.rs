//! The group: all workers of all processes of a run, which go on together and end together.
//!
//! It keeps three things beside the dataflows, which cannot keep them: the *fault* that ends the run,
//! as a worker that failed steps no dataflow any more; *meetings*, which say that every worker
//! has come to some point; and, once a worker has sent all that it has, where the inputs of the
//! others *stand*, for its own to follow. Workers of one process share them through memory, processes through
//! [`Links`], a connection between each two of them that is not Timely's. A fault is told to all
//! other processes by every process that hears of it, so that none takes the end of a process for
//! the cause.

pub(crate) mod connect;
mod link;
mod meeting;
mod stand;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

use alluvium::{Error, ErrorKind, Result};

pub(crate) use link::{Connected, Links, SILENCE};
pub use meeting::{Meeting, Met};

use link::{GroupMessage, ProcessFailure};
use meeting::{Meetings, WorkerSaid};
use stand::Stands;

/// How long a wait for a change sleeps at most.
const NAP: Duration = Duration::from_millis(20);

/// What the workers of one process know of the run.
pub(crate) struct WorkerGroup {
    threads: usize,
    processes: usize,
    fault: OnceLock<GroupError>,
    meetings: Mutex<Meetings>,
    /// The greatest number of a checkpoint that a worker has asked for.
    asked: AtomicU64,
    stands: Stands,
    /// Workers whose job has returned, and how many meetings each has been at.
    returned: Mutex<BTreeMap<usize, u64>>,
    /// Of the other processes; absent in a process that is alone.
    links: OnceLock<Links>,
    /// Threads that may be parked.
    workers: Mutex<Vec<Thread>>,
    changed: Condvar,
    watched: Mutex<()>,
}

/// The first error of the run, as this process heard of it.
#[derive(Debug)]
struct GroupError {
    error: Error,
    /// A state call in an operator, whose error needs to be told from the caller's own.
    in_operator: bool,
}

impl WorkerGroup {
    /// The group of a process with so many workers, one of so many processes.
    pub(crate) fn new(threads: usize, processes: usize) -> Self {
        Self {
            threads,
            processes,
            fault: OnceLock::new(),
            meetings: Mutex::default(),
            asked: AtomicU64::new(0),
            stands: Stands::default(),
            returned: Mutex::default(),
            links: OnceLock::new(),
            workers: Mutex::default(),
            changed: Condvar::new(),
            watched: Mutex::new(()),
        }
    }

    /// Connects the group with the other processes.
    pub(crate) fn attach(&self, links: Links) {
        let set = self.links.set(links);
        assert!(set.is_ok(), "a group is connected once");
    }

    /// Has the calling thread woken from its naps when something changes; once is enough.
    pub(crate) fn enlist(&self) {
        let (mut workers, this) = (locked(&self.workers), std::thread::current());
        if workers.iter().all(|worker| worker.id() != this.id()) {
            workers.push(this);
        }
    }

    /// The error that ends the run, if there is one. Cost: one load.
    pub(crate) fn fault(&self) -> Option<&Error> {
        self.fault.get().map(|fault| &fault.error)
    }

    /// The fault as an error of the caller.
    ///
    /// # Errors
    /// The fault.
    pub(crate) fn check(&self) -> Result<()> {
        match self.fault.get() {
            None => Ok(()),
            Some(fault) => Err(fault.told()),
        }
    }

    /// Ends the run with the error of a state call in an operator; the first error counts.
    pub(crate) fn fail_in_operator(&self, error: Error) {
        self.note(GroupError { error, in_operator: true }, None);
    }

    /// Ends the run with an error; the first one counts.
    pub(crate) fn fail(&self, error: Error) {
        self.note(GroupError { error, in_operator: false }, None);
    }

    /// Ends the run with what another process said.
    fn fail_elsewhere(&self, failed: ProcessFailure) {
        let place = format!("{} at {}", failed.process, failed.address);
        let error = Error::new(failed.kind, failed.text.clone()).with("process", place);
        self.note(GroupError { error, in_operator: false }, Some(failed));
    }

    fn note(&self, fault: GroupError, heard: Option<ProcessFailure>) {
        let told = fault.told();
        // Later ones may be consequences of the first.
        if self.fault.set(fault).is_err() {
            return;
        }
        if let Some(links) = self.links.get() {
            let failed = heard.unwrap_or_else(|| links.failed_here(&told));
            links.tell(&GroupMessage::Failed(failed));
        }
        self.wake();
    }

    /// Waits for a fault that explains what the caller sees, and says whether there is one.
    pub(crate) fn await_fault(&self, patience: Duration) -> bool {
        self.wait_until(Some(Instant::now() + patience), || self.fault().is_some())
    }

    /// Whether workers can meet: all processes are connected.
    pub(crate) fn can_meet(&self) -> bool {
        self.processes == 1 || self.links.get().is_some()
    }

    /// Notes that `worker`, one of this process, has arrived at its meeting `number`, and what it
    /// said.
    pub(crate) fn arrive(
        &self,
        number: u64,
        worker: usize,
        said: i64,
        note: String,
    ) -> Result<Meeting> {
        if !self.can_meet() {
            let message = "meetings of processes need a job started with `execute`";
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let said = WorkerSaid { worker, number: said, note };
        let complete_here = locked(&self.meetings).arrive(number, said, self.threads);
        if let Some(said) = complete_here {
            if let Some(links) = self.links.get() {
                links.tell(&GroupMessage::Met { number, said });
            }
            self.wake();
        }
        self.check_returned();
        Ok(Meeting { number })
    }

    /// Notes that the job of `worker`, one of this process, has returned after so many meetings.
    pub(crate) fn job_returned(&self, worker: usize, meetings: u64) {
        if let Some(links) = self.links.get() {
            links.tell(&GroupMessage::Returned { worker, meetings });
        }
        self.note_returned(worker, meetings);
    }

    fn note_returned(&self, worker: usize, meetings: u64) {
        locked(&self.returned).insert(worker, meetings);
        self.check_returned();
    }

    /// A worker whose job has returned, and one that waits for it at a meeting.
    fn absent(&self) -> Option<(usize, usize)> {
        let (meetings, returned) = (locked(&self.meetings), locked(&self.returned));
        returned.iter().find_map(|(worker, been)| Some((*worker, meetings.waits_from(*been)?)))
    }

    /// Ends the run if somebody waits at a meeting that a worker will not come to.
    fn check_returned(&self) {
        if let Some((absent, waits)) = self.absent() {
            let message = format!(
                "worker {waits} waits at a meeting that worker {absent} will not come to: its job has \
                 returned"
            );
            self.fail(Error::new(ErrorKind::Input, message));
        }
    }

    /// What was said at a meeting, once all workers of all processes have arrived.
    pub(crate) fn met(&self, meeting: &Meeting) -> Option<Met> {
        locked(&self.meetings).said(meeting.number, self.processes).map(Met::of)
    }

    /// The numbers and notes of all workers at a meeting, ordered by worker, once all have arrived.
    pub(crate) fn notes(&self, meeting: &Meeting) -> Option<Vec<(i64, String)>> {
        let meetings = locked(&self.meetings);
        let said = meetings.said(meeting.number, self.processes)?;
        Some(said.iter().map(|said| (said.number, said.note.clone())).collect())
    }

    /// [`notes`](WorkerGroup::notes), waiting for them; for before there is anything to step.
    ///
    /// # Errors
    /// The fault that ends the run.
    pub(crate) fn await_notes(&self, meeting: &Meeting) -> Result<Vec<(i64, String)>> {
        let mut notes = None;
        self.wait_until(None, || {
            notes = self.notes(meeting);
            notes.is_some() || self.fault().is_some()
        });
        self.check()?;
        Ok(notes.expect("it was waited for"))
    }

    /// Asks all workers for the checkpoint of this number, from 1.
    pub(crate) fn ask(&self, checkpoint: u64) {
        if self.asked.fetch_max(checkpoint, Ordering::AcqRel) < checkpoint {
            if let Some(links) = self.links.get() {
                links.tell(&GroupMessage::Asked { checkpoint });
            }
            self.wake();
        }
    }

    /// The greatest number of a checkpoint that was asked for. Cost: one load.
    pub(crate) fn asked(&self) -> u64 {
        self.asked.load(Ordering::Acquire)
    }

    /// Notes that `worker` of this process sends nothing more: from now on the others say where they
    /// stand.
    pub(crate) fn end(&self, worker: usize) {
        self.stand(worker, stand::ENDED);
    }

    /// Whether a worker has ended, so that the others are to say where they stand. Cost: one load.
    pub(crate) fn has_ended_workers(&self) -> bool {
        self.stands.has_ended()
    }

    /// Notes that `worker` of this process sends nothing before `at`.
    pub(crate) fn stand(&self, worker: usize, at: i64) {
        self.stands.note(worker, at);
        if let Some(links) = self.links.get() {
            links.tell(&GroupMessage::Stands { worker, at });
        }
    }

    /// The least time that any of `peers` workers which has not ended stands at; `None` if all have
    /// ended, or one has not said yet.
    pub(crate) fn least_stand(&self, peers: usize) -> Option<i64> {
        self.stands.least(peers)
    }

    fn asked_elsewhere(&self, checkpoint: u64) {
        self.asked.fetch_max(checkpoint, Ordering::AcqRel);
        self.wake();
    }

    fn met_elsewhere(&self, number: u64, said: Vec<WorkerSaid>) {
        locked(&self.meetings).met_elsewhere(number, said);
        self.wake();
    }

    fn wake(&self) {
        for worker in locked(&self.workers).iter() {
            worker.unpark();
        }
        self.changed.notify_all();
    }

    /// Waits until `done`, which is asked again after each change, or `deadline`; gives `done`.
    fn wait_until(&self, deadline: Option<Instant>, mut done: impl FnMut() -> bool) -> bool {
        loop {
            if done() {
                return true;
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return false;
            }
            // Short naps make up for a change between the question and the wait.
            let guard = locked(&self.watched);
            drop(self.changed.wait_timeout(guard, NAP));
        }
    }
}

impl GroupError {
    /// The fault as an error of its own.
    fn told(&self) -> Error {
        let (kind, text) = (self.error.kind(), self.error.to_string());
        if self.in_operator {
            Error::new(kind, "state failed in an operator").caused_by(text)
        } else {
            Error::new(kind, text)
        }
    }
}

impl fmt::Debug for WorkerGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { threads, processes, fault, .. } = self;
        f.debug_struct("WorkerGroup")
            .field("threads", threads)
            .field("processes", processes)
            .field("fault", fault)
            .finish_non_exhaustive()
    }
}

/// What is behind `mutex`; nobody leaves it half changed.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
