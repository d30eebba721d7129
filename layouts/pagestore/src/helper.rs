//! Helper threads for work that must not run on the record path.
//!
//! A store hands pages to be written or dropped to its [`Helper`]; results come back on the
//! channel that the job was given. An inline helper runs jobs only when it is driven, in order,
//! on the calling thread: where no helper threads are wanted, and in deterministic tests.

use crossbeam_channel::{Sender, unbounded};
use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use crate::turns::Turns;
use crate::{Error, Result};

pub(crate) type Job = Box<dyn FnOnce() + Send>;

/// Runs jobs off the record path. Clones share the same threads; the last clone joins them.
#[derive(Clone)]
pub struct Helper(Arc<Mode>);

enum Mode {
    Thread { jobs: Option<Sender<Job>>, thread: Option<JoinHandle<()>> },
    Inline(Mutex<VecDeque<Job>>),
    InTurns(Turns),
}

impl Helper {
    /// A helper with one thread. A job that panics loses its own result only.
    ///
    /// # Errors
    /// If the operating system refuses a thread.
    pub fn thread() -> Result<Self> {
        let (jobs, queue) = unbounded::<Job>();
        let thread = std::thread::Builder::new()
            .name("alluvium-helper".into())
            .spawn(move || {
                while let Ok(job) = queue.recv() {
                    // The job's reply channel closes with it: its owner sees the loss.
                    let _ = catch_unwind(AssertUnwindSafe(job));
                }
            })
            .map_err(|e| Error::io("start a helper thread", "-", e))?;
        Ok(Self(Arc::new(Mode::Thread { jobs: Some(jobs), thread: Some(thread) })))
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

    /// Hands over one job. Jobs start in order.
    pub fn submit(&self, job: impl FnOnce() + Send + 'static) {
        match &*self.0 {
            Mode::Thread { jobs, .. } => {
                let sent = jobs.as_ref().map(|jobs| jobs.send(Box::new(job)));
                assert!(matches!(sent, Some(Ok(()))), "the helper thread outlives its handles");
            }
            Mode::Inline(queue) => queue.lock().unwrap().push_back(Box::new(job)),
            Mode::InTurns(turns) => turns.submit(Box::new(job)),
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
            Mode::Thread { jobs, thread } => {
                drop(jobs.take());
                if let Some(thread) = thread.take() {
                    let _ = thread.join();
                }
            }
            Mode::Inline(_) => {}
            Mode::InTurns(turns) => turns.end(),
        }
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
