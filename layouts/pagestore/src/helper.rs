//! Helper threads for work that must not run on the record path.
//!
//! A store hands pages to its [`Helper`] to be written or dropped, and results come back on the
//! channel given to the job. An inline helper runs jobs in order on the calling thread, when that
//! thread drives it: for stores without helper threads and for deterministic tests.
//!
//! Invariant: a helper runs every job it was given, even after its last handle is dropped. Dropping
//! that handle waits while the device makes progress. After that the thread continues alone and
//! keeps the objects it was created with, such as a directory's lock, until it ends.

use crate::channel::{Sender, unbounded};
use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread::{JoinHandle, ThreadId};
use std::time::Duration;

use crate::io::{Device, Patience};
use crate::process::ProcessId;
use crate::turns::Turns;
use crate::{Error, Result};

/// A job for a helper.
pub type Job = Box<dyn FnOnce() + Send>;

/// Between two looks whether a thread has ended.
const MOMENT: Duration = Duration::from_micros(50);

/// Runs jobs off the record path. Clones share the same threads. Dropping the last clone joins
/// them.
#[derive(Clone)]
pub struct Helper(Arc<Mode>);

/// A weak handle: it does not keep the helper alive. For code that may run on the helper's own
/// thread.
#[derive(Clone, Debug)]
pub struct WeakHelper {
    mode: Weak<Mode>,
    /// Of the helper's thread.
    thread: Option<ThreadId>,
}

/// The device that a helper serves, and how its end is awaited.
pub struct Served {
    /// The device that the helper's jobs use.
    pub device: Arc<dyn Device>,
    /// How long the last clone waits for a device without progress.
    pub patience: Duration,
    /// An object kept until the helper's thread ends, such as a lock.
    pub lock: Arc<dyn Send + Sync>,
    /// Called when the last clone stops waiting for the thread.
    pub left_alone: fn(),
}

enum Mode {
    Thread {
        jobs: Option<Sender<Job>>,
        thread: Option<JoinHandle<()>>,
        served: Option<Served>,
        is_left: AtomicBool,
        process: ProcessId,
    },
    Inline(Mutex<VecDeque<Job>>),
    InTurns(Turns),
}

impl Helper {
    /// Creates a helper with one thread. A job that panics loses only its own result.
    ///
    /// # Errors
    /// If the operating system refuses a thread.
    pub fn thread() -> Result<Self> {
        Self::with_thread(None)
    }

    /// Creates a helper with one thread, for a device that may stop making progress: dropping the
    /// last clone waits for a limited time.
    ///
    /// # Errors
    /// If the operating system refuses a thread.
    pub fn thread_for(served: Served) -> Result<Self> {
        Self::with_thread(Some(served))
    }

    fn with_thread(served: Option<Served>) -> Result<Self> {
        let (jobs, queue) = unbounded::<Job>();
        let kept = served.as_ref().map(|served| served.lock.clone());
        let thread = std::thread::Builder::new()
            .name("alluvium-helper".into())
            .spawn(move || {
                while let Ok(job) = queue.recv() {
                    // The job's reply channel closes with it: its owner sees the loss.
                    let _ = catch_unwind(AssertUnwindSafe(job));
                }
                drop(kept);
            })
            .map_err(|e| Error::io("start a helper thread", "-", e))?;
        let is_left = AtomicBool::new(false);
        let (jobs, thread, process) = (Some(jobs), Some(thread), ProcessId::this());
        Ok(Self(Arc::new(Mode::Thread { jobs, thread, served, is_left, process })))
    }

    /// Creates a helper without threads: [`drive`](Helper::drive) runs its jobs.
    pub fn inline() -> Self {
        Self(Arc::new(Mode::Inline(Mutex::default())))
    }

    /// Creates a helper whose thread takes turns with its owner, for tests where a seed determines
    /// the order.
    ///
    /// # Errors
    /// If the operating system refuses a thread.
    ///
    /// # Panics
    /// If another helper takes these turns.
    pub fn in_turns(turns: &Turns) -> Result<Self> {
        turns.begin()?;
        Ok(Self(Arc::new(Mode::InTurns(turns.clone()))))
    }

    /// Returns whether jobs run only in [`drive`](Helper::drive), on the calling thread.
    pub fn is_inline(&self) -> bool {
        matches!(*self.0, Mode::Inline(_))
    }

    /// Returns a weak handle to this helper.
    pub fn weak(&self) -> WeakHelper {
        let thread = match &*self.0 {
            Mode::Thread { thread, .. } => thread.as_ref().map(|thread| thread.thread().id()),
            Mode::Inline(_) => None,
            Mode::InTurns(turns) => turns.thread(),
        };
        WeakHelper { mode: Arc::downgrade(&self.0), thread }
    }

    /// Stops all waiting for the helper's answers and for its end, because the device makes no
    /// progress.
    pub fn leave_alone(&self) {
        if let Mode::Thread { is_left, .. } = &*self.0 {
            is_left.store(true, Ordering::Relaxed);
        }
    }

    /// Returns whether the helper is [left alone](Helper::leave_alone), or has no thread in this
    /// process, which is then a forked child.
    pub fn is_left_alone(&self) -> bool {
        match &*self.0 {
            Mode::Thread { is_left, process, .. } => {
                is_left.load(Ordering::Relaxed) || !process.is_this()
            }
            _ => false,
        }
    }

    /// Submits one job. Jobs start in order.
    pub fn submit(&self, job: impl FnOnce() + Send + 'static) {
        self.submit_boxed(Box::new(job));
    }

    /// Compiled once, whatever the job.
    fn submit_boxed(&self, job: Job) {
        match &*self.0 {
            Mode::Thread { jobs, .. } => {
                let sent = jobs.as_ref().map(|jobs| jobs.send(job));
                assert!(matches!(sent, Some(Ok(()))), "the helper thread outlives its handles");
            }
            Mode::Inline(queue) => queue.lock().unwrap().push_back(job),
            Mode::InTurns(turns) => turns.submit(job),
        }
    }

    /// Runs at most one waiting job of an inline helper and returns whether there was one. A helper
    /// that takes turns usually gets its turn. A helper with a thread needs no driving.
    pub fn drive(&self) -> bool {
        match &*self.0 {
            Mode::Thread { .. } => false,
            Mode::Inline(queue) => {
                let job = queue.lock().unwrap().pop_front();
                job.map(|job| job()).is_some()
            }
            Mode::InTurns(turns) => turns.drive(),
        }
    }
}

impl Drop for Mode {
    fn drop(&mut self) {
        match self {
            Mode::Thread { jobs, thread, served, is_left, process } => {
                drop(jobs.take());
                let thread = thread.take().expect("joined once");
                if !process.is_this() {
                    // The thread is the parent's.
                    std::mem::forget(thread);
                } else if thread.thread().id() != std::thread::current().id() {
                    end(thread, served.as_ref(), is_left.load(Ordering::Relaxed));
                }
            }
            Mode::Inline(_) => {}
            Mode::InTurns(turns) => turns.end(),
        }
    }
}

/// Waits until the thread ends, unless the device does nothing.
fn end(thread: JoinHandle<()>, served: Option<&Served>, mut is_left: bool) {
    if let Some(Served { device, patience, left_alone, .. }) = served {
        let mut patience = Patience::new(*patience, &**device);
        while !thread.is_finished() {
            is_left |= patience.is_over(&**device);
            if is_left {
                return left_alone();
            }
            std::thread::sleep(MOMENT);
        }
    }
    let _ = thread.join();
}

impl WeakHelper {
    /// Returns whether the caller runs on the helper's thread.
    pub fn is_here(&self) -> bool {
        self.thread == Some(std::thread::current().id())
    }

    /// Submits a job. Returns the job if the helper is gone or the caller runs on its thread.
    pub fn submit(&self, job: impl FnOnce() + Send + 'static) -> Option<Job> {
        // On its own thread it must not be kept, not for a moment: who has it last waits for its end.
        match if self.is_here() { None } else { self.mode.upgrade() } {
            Some(mode) => {
                Helper(mode).submit(job);
                None
            }
            None => Some(Box::new(job)),
        }
    }
}

impl fmt::Debug for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Thread { .. } => "Thread",
            Self::Inline(_) => "Inline",
            Self::InTurns(_) => "InTurns",
        })
    }
}

impl fmt::Debug for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Served({:?}, {:?})", self.device, self.patience)
    }
}

impl fmt::Debug for Helper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_inline() { "Helper(inline)" } else { "Helper(thread)" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn a_thread_runs_jobs_in_order_and_survives_a_panic() {
        let helper = Helper::thread().unwrap();
        let (tx, rx) = mpsc::channel();
        for i in 0..3 {
            let tx = tx.clone();
            helper.submit(move || {
                assert!(i != 1, "planned");
                tx.send(i).unwrap();
            });
        }
        drop((tx, helper));
        assert_eq!(rx.iter().collect::<Vec<_>>(), [0, 2]);
    }

    #[test]
    fn an_inline_helper_waits_to_be_driven() {
        let helper = Helper::inline();
        let (tx, rx) = mpsc::channel();
        helper.submit(move || tx.send(1).unwrap());
        assert!(rx.try_recv().is_err());
        assert!(helper.drive() && !helper.drive());
        assert_eq!(rx.recv(), Ok(1));
    }
}
