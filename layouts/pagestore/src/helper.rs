//! Helper threads for work that must not run on the record path.
//!
//! A store hands pages to be written or dropped to its [`Helper`]; results come back on the
//! channel that the job was given. An inline helper runs jobs only when it is driven, in order,
//! on the calling thread: where no helper threads are wanted, and in deterministic tests.
//!
//! What it keeps true: all that was given to a helper is done, also after its last handle is gone. Who
//! drops that waits for it while the device does something, and then no more; the thread goes on alone, and
//! keeps what it was made with, such as a directory's lock, until it ends.

use crossbeam_channel::{Sender, unbounded};
use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread::{JoinHandle, ThreadId};
use std::time::Duration;

use crate::io::{Device, Patience};
use crate::process::Process;
use crate::turns::Turns;
use crate::{Error, Result};

/// What a helper does.
pub type Job = Box<dyn FnOnce() + Send>;

/// Between two looks whether a thread has ended.
const MOMENT: Duration = Duration::from_micros(50);

/// Runs jobs off the record path. Clones share the same threads; the last clone joins them.
#[derive(Clone)]
pub struct Helper(Arc<Mode>);

/// A helper that is there as long as others have it. For who may be on its thread.
#[derive(Clone, Debug)]
pub struct WeakHelper {
    mode: Weak<Mode>,
    /// Of the helper's thread.
    thread: Option<ThreadId>,
}

/// What a helper works for.
pub struct Served {
    /// The device it uses.
    pub device: Arc<dyn Device>,
    /// How long the device may do nothing while the helper's end is waited for.
    pub patience: Duration,
    /// Is kept as long as the helper's thread runs.
    pub lock: Arc<dyn Send + Sync>,
    /// Called if the end is not waited for any more.
    pub left_alone: fn(),
}

enum Mode {
    Thread {
        jobs: Option<Sender<Job>>,
        thread: Option<JoinHandle<()>>,
        served: Option<Served>,
        is_left: AtomicBool,
        process: Process,
    },
    Inline(Mutex<VecDeque<Job>>),
    InTurns(Turns),
}

impl Helper {
    /// A helper with one thread. A job that panics loses its own result only.
    ///
    /// # Errors
    /// If the operating system refuses a thread.
    pub fn thread() -> Result<Self> {
        Self::with_thread(None)
    }

    /// The same, for who uses a device that may do nothing: the last clone does not wait for ever.
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
        let (jobs, thread, process) = (Some(jobs), Some(thread), Process::this());
        Ok(Self(Arc::new(Mode::Thread { jobs, thread, served, is_left, process })))
    }

    /// A helper without threads: jobs run in [`drive`](Helper::drive).
    pub fn inline() -> Self {
        Self(Arc::new(Mode::Inline(Mutex::default())))
    }

    /// A helper whose thread takes turns with its owner, for tests in which a seed is a history.
    ///
    /// # Errors
    /// If the operating system refuses a thread.
    ///
    /// # Panics
    /// If there is another helper that takes these.
    pub fn in_turns(turns: &Turns) -> Result<Self> {
        turns.begin()?;
        Ok(Self(Arc::new(Mode::InTurns(turns.clone()))))
    }

    /// Whether jobs run only when driven, on the thread that does.
    pub fn is_inline(&self) -> bool {
        matches!(*self.0, Mode::Inline(_))
    }

    /// The same helper, for who must not keep it.
    pub fn weak(&self) -> WeakHelper {
        let thread = match &*self.0 {
            Mode::Thread { thread, .. } => thread.as_ref().map(|thread| thread.thread().id()),
            Mode::Inline(_) => None,
            Mode::InTurns(turns) => turns.thread(),
        };
        WeakHelper { mode: Arc::downgrade(&self.0), thread }
    }

    /// Nobody is to wait any more for its answers, nor for its end: the device does nothing.
    pub fn leave_alone(&self) {
        if let Mode::Thread { is_left, .. } = &*self.0 {
            is_left.store(true, Ordering::Relaxed);
        }
    }

    /// Whether it is [left alone](Helper::leave_alone), or has no thread in this process, a forked
    /// child of its own.
    pub fn is_left_alone(&self) -> bool {
        match &*self.0 {
            Mode::Thread { is_left, process, .. } => {
                is_left.load(Ordering::Relaxed) || !process.is_this()
            }
            _ => false,
        }
    }

    /// Hands over one job. Jobs start in order.
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

    /// Runs at most one waiting job of an inline helper and says whether there was one. One that takes
    /// turns gets its turn, most often. A helper with threads needs no driving.
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
    /// Whether this is the helper's thread.
    pub fn is_here(&self) -> bool {
        self.thread == Some(std::thread::current().id())
    }

    /// Hands over a job; it comes back if the helper is gone, or this is its thread.
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
