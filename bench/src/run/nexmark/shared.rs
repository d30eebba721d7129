//! What the workers of a run tell each other beside the dataflow: that one failed, that all are
//! there.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::sync::{Barrier, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use crate::{Error, Result};

/// Shared by the workers of a run.
#[derive(Debug)]
pub(super) struct Shared {
    workers: usize,
    barrier: Barrier,
    arrived: AtomicUsize,
    restored: AtomicUsize,
    latest: AtomicI64,
    failed: AtomicBool,
    error: Mutex<Option<Error>>,
    start: OnceLock<Instant>,
}

impl Shared {
    pub(super) fn new(workers: usize) -> Self {
        Self {
            workers,
            barrier: Barrier::new(workers),
            arrived: AtomicUsize::new(0),
            restored: AtomicUsize::new(0),
            latest: AtomicI64::new(i64::MIN),
            failed: AtomicBool::new(false),
            error: Mutex::new(None),
            start: OnceLock::new(),
        }
    }

    /// Notes why the run ends; the first reason counts.
    pub(super) fn fail(&self, error: Error) {
        self.error.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        self.failed.store(true, Ordering::Release);
    }

    /// Whether the run has to end.
    pub(super) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// Why the run ended before its end.
    pub(super) fn take_error(&self) -> Option<Error> {
        self.error.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Waits, without stepping, until all workers are here; gives what this one has if none of
    /// them has an error.
    pub(super) fn together<T>(&self, outcome: Result<T>) -> Option<T> {
        let value = outcome.map_err(|error| self.fail(error)).ok();
        self.barrier.wait();
        value.filter(|_| !self.has_failed())
    }

    /// Says that this worker is at a meeting; the meetings of a run are counted.
    pub(super) fn arrive(&self) {
        self.arrived.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether all workers are at their `meeting`th meeting, counting from 1.
    pub(super) fn all_arrived(&self, meeting: usize) -> bool {
        self.arrived.load(Ordering::Acquire) >= meeting * self.workers
    }

    /// Says whether this worker found a checkpoint.
    pub(super) fn restored(&self, restored: bool) {
        self.restored.fetch_add(usize::from(restored), Ordering::AcqRel);
    }

    /// Fails the run if some workers found a checkpoint and others did not. To be called when all
    /// have said so.
    pub(super) fn check_restored(&self) {
        let restored = self.restored.load(Ordering::Acquire);
        if restored != 0 && restored != self.workers {
            let message = format!("{restored} of {} workers found a checkpoint", self.workers);
            self.fail(Error::Usage(message + "; empty the directory and begin again"));
        }
    }

    /// Says that this worker has sent at `time`, and not later.
    pub(super) fn sent_at(&self, time: i64) {
        self.latest.fetch_max(time, Ordering::AcqRel);
    }

    /// The latest time that was said, which is final once all workers have met after saying it.
    pub(super) fn latest(&self) -> i64 {
        self.latest.load(Ordering::Acquire)
    }

    /// When the first worker began to feed.
    pub(super) fn start(&self) -> Instant {
        *self.start.get_or_init(Instant::now)
    }
}
