//! Work that the helper does for a state: a single job with its answer, and a queue of jobs.
//!
//! The owner hands over what a job needs, and looks for the answer with its steps. Memory that a job uses stays booked
//! until the owner has the answer, also if nobody waits for it any more.

use std::fmt;
use std::time::Duration;

use alluvium_pagestore::mailbox::{Mailbox, Post, RecvTimeoutError, TryRecvError, mailbox};
use alluvium_pagestore::{Error, ErrorKind, Helper, Result};

/// The longest wait for an answer in one call.
const MOMENT: Duration = Duration::from_millis(1);

/// One job with the helper.
pub(crate) struct HelperJob<A> {
    answer: Mailbox<A>,
    /// What the job does, for the error of one that is lost.
    what: &'static str,
}

impl<A: Send + 'static> HelperJob<A> {
    /// Hands `work` to the helper. `what` completes "the helper lost".
    pub fn submit(
        helper: &Helper,
        what: &'static str,
        work: impl FnOnce() -> A + Send + 'static,
    ) -> Self {
        let (reply, answer) = mailbox();
        // If the owner has given up nobody minds the answer.
        helper.submit(move || reply.send(work()));
        Self { answer, what }
    }

    /// Takes the answer; `None` if there is none yet.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if the job panicked: what it was lent is lost.
    pub fn poll(&self) -> Result<Option<A>> {
        match self.answer.try_recv() {
            Ok(answer) => Ok(Some(answer)),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(self.lost()),
        }
    }

    /// [`poll`](HelperJob::poll) that does the work of an inline helper, and waits a moment if the caller is `patient`.
    ///
    /// # Errors
    /// As for `poll`.
    pub fn poll_driving(&self, helper: &Helper, patient: bool) -> Result<Option<A>> {
        let mut has_run = helper.drive();
        // An inline helper may have other jobs before this one.
        while patient && has_run && self.answer.is_empty() {
            has_run = helper.drive();
        }
        match self.answer.recv_timeout(if patient { MOMENT } else { Duration::ZERO }) {
            Ok(answer) => Ok(Some(answer)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(self.lost()),
        }
    }

    fn lost(&self) -> Error {
        Error::new(ErrorKind::Io, format!("the helper lost {}", self.what))
    }
}

impl<A> HelperJob<A> {
    /// Whether there is no answer yet. There never is one to a job that panicked.
    pub fn is_empty(&self) -> bool {
        self.answer.is_empty()
    }
}

impl<A> fmt::Debug for HelperJob<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HelperJob({})", self.what)
    }
}

/// A queue of jobs, whose answers come in one mailbox.
#[derive(Debug)]
pub(crate) struct Jobs<A> {
    helper: Helper,
    reply: Post<A>,
    answers: Mailbox<A>,
    pending: usize,
}

impl<A: Send + 'static> Jobs<A> {
    /// No jobs yet.
    pub fn new(helper: Helper) -> Self {
        let (reply, answers) = mailbox();
        Self { helper, reply, answers, pending: 0 }
    }

    /// Hands `work` to the helper.
    pub fn submit(&mut self, work: impl FnOnce() -> A + Send + 'static) {
        let reply = self.reply.clone();
        self.pending += 1;
        // If the owner is gone nobody minds the answer.
        self.helper.submit(move || reply.send(work()));
    }

    /// Takes an answer, if there is one.
    #[inline]
    pub fn poll(&mut self) -> Option<A> {
        // To look costs more than many calls of the stream have to spare.
        if self.pending == 0 {
            return None;
        }
        let answer = self.answers.try_recv().ok()?;
        self.pending -= 1;
        Some(answer)
    }

    /// Waits a moment for an answer. Does the work of an inline helper, and calls `drive` for its device.
    pub fn wait(&mut self, drive: impl FnOnce()) -> Option<A> {
        self.helper.drive();
        if let Some(answer) = self.poll() {
            return Some(answer);
        }
        drive();
        let answer = self.answers.recv_timeout(MOMENT).ok()?;
        self.pending -= 1;
        Some(answer)
    }
}

impl<A> Jobs<A> {
    /// Answers still to come.
    pub fn pending(&self) -> usize {
        self.pending
    }

    /// The helper that does them.
    pub fn helper(&self) -> &Helper {
        &self.helper
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_answered_once_and_a_lost_one_says_what_it_was() {
        let helper = Helper::inline();
        let job = HelperJob::submit(&helper, "a list", || 7);
        assert!(job.is_empty() && job.poll().unwrap().is_none());
        assert_eq!(job.poll_driving(&helper, false).unwrap(), Some(7));
        let helper = Helper::thread().unwrap();
        let job = HelperJob::submit(&helper, "a list", || -> u32 { panic!("lost on purpose") });
        let error = loop {
            match job.poll() {
                Ok(answer) => assert_eq!(answer, None),
                Err(error) => break error,
            }
        };
        assert!(error.to_string().contains("the helper lost a list"), "{error}");
    }

    #[test]
    fn a_patient_owner_does_the_jobs_before_its_own() {
        let helper = Helper::inline();
        (0..5).for_each(|_| helper.submit(|| {}));
        let job = HelperJob::submit(&helper, "a page", || "read");
        assert_eq!(job.poll_driving(&helper, true).unwrap(), Some("read"));
    }

    #[test]
    fn answers_are_counted_down_as_they_are_taken() {
        let mut jobs = Jobs::new(Helper::inline());
        for nth in 0..3 {
            jobs.submit(move || nth);
        }
        assert_eq!((jobs.pending(), jobs.poll()), (3, None));
        let mut driven = 0;
        let all: Vec<u32> = std::iter::from_fn(|| jobs.wait(|| driven += 1)).take(3).collect();
        assert_eq!((all, jobs.pending(), driven), (vec![0, 1, 2], 0, 0));
    }
}
