//! Rows that leave a job once each: they become visible with the checkpoint that has them.
//!
//! What it keeps true: the rows that a sink shows are those that came out before the last committed
//! checkpoint, each as often as it came out. A run that goes on gives the rows after it again, so what a
//! run before has written of them is removed before the first row comes. It leaves to a [`Sink`] where
//! rows are and how they become visible.

mod files;

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use alluvium::{Error, ErrorKind, Result};
use timely::dataflow::StreamVec;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::CapabilitySet;
use timely::dataflow::operators::generic::operator::Operator;
use timely::progress::Timestamp;
use timely::worker::Worker;

use crate::job::node::Node;
use crate::job::worker::WorkerState;
use crate::operators::key_by::Builder;

pub use files::{CommittedFile, FileSink, committed_files};

/// Work of a sink that waits for a device. A helper of the worker's store does it.
pub type SinkWork = Box<dyn FnOnce() -> Result<()> + Send>;

/// Destination of one worker's rows that become visible with the job's checkpoints.
///
/// The rows between two calls of [`seal`](Sink::seal) are a part, numbered by the checkpoint that
/// will make it visible. An aborted checkpoint leaves its number to the next. So a number may be
/// sealed more than once, and one commit makes all its parts visible.
pub trait Sink<D>: 'static {
    /// Makes the parts of checkpoints up to `committed` visible, since a run may have ended right
    /// after a commit, and removes all others. Called once on each worker before any of them writes
    /// a row. Earlier runs may have had other numbers of workers. `committed` is 0 for a new job.
    ///
    /// # Errors
    /// [`ErrorKind::Mismatch`] if rows of a checkpoint after `committed` are visible. Other
    /// failures. The run does not begin.
    fn restore(&mut self, committed: u64) -> Result<()>;

    /// Writes a row without making it visible.
    ///
    /// # Errors
    /// End the run. The next run writes the row again.
    fn write(&mut self, row: &D) -> Result<()>;

    /// Ends the part of the rows written so far. The returned work makes it durable, but not
    /// visible: [`commit`](Sink::commit) and [`restore`](Sink::restore) find the part after the
    /// work has succeeded.
    ///
    /// # Errors
    /// Of this and of the work: end the run, and the checkpoint does not count.
    fn seal(&mut self, number: u64) -> Result<SinkWork>;

    /// Commits checkpoint `number`: the returned work makes its parts visible.
    ///
    /// # Errors
    /// Of this and of the work: end the run. The next run makes the parts visible.
    fn commit(&mut self, number: u64) -> Result<SinkWork>;
}

/// A sink as the checkpoints of a job see it.
pub(crate) trait Sealed {
    fn seal(&self, number: u64) -> Result<SinkWork>;
    fn commit(&self, number: u64) -> Result<SinkWork>;
}

/// One worker's handle of a sink. [`write_to`](WriteTo::write_to) fills it; the worker's
/// [`JobCheckpoints`](crate::JobCheckpoints) seal and commit it. Cheap to clone.
///
/// A job takes one more checkpoint after all workers have sent everything, so the rows up to there
/// become visible. Rows that come out only when the inputs close belong to no checkpoint and never
/// become visible: before a worker reports its end, advance the inputs past the last windows.
pub struct JobSink<D>(Rc<OpenedSink<D>>);

struct OpenedSink<D> {
    sink: RefCell<Box<dyn Sink<D>>>,
    /// A row is missing: no checkpoint of it must count.
    has_failed: Cell<bool>,
    node: Arc<Node>,
}

impl<D> Clone for JobSink<D> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<D> fmt::Debug for JobSink<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobSink").field("has_failed", &self.0.has_failed).finish_non_exhaustive()
    }
}

impl<D: 'static> JobSink<D> {
    /// Restores a sink to the checkpoint that the run resumes, and waits until all workers have.
    /// All workers call it at the same place of the program, before they make their
    /// [`JobCheckpoints`](crate::JobCheckpoints).
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] for a job that [`execute`](crate::execute()) did not start. Those
    /// of [`Sink::restore`]. The fault that ends the run.
    pub fn open(worker: &mut Worker, state: &WorkerState, sink: impl Sink<D>) -> Result<Self> {
        if !state.is_in_group() {
            let message = "a job sink needs a job started with `execute`";
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let mut sink: Box<dyn Sink<D>> = Box::new(sink);
        sink.restore(state.restored().map_or(0, |all| all.number))?;
        state.meet(worker, 0)?;
        let (sink, has_failed) = (RefCell::new(sink), Cell::new(false));
        let opened = Rc::new(OpenedSink { sink, has_failed, node: state.place().node.clone() });
        state.add_sink(opened.clone());
        Ok(Self(opened))
    }

    /// Writes rows, and says whether all are written, these and those before.
    fn write(&self, rows: &[D]) -> bool {
        if self.0.has_failed.get() {
            return false;
        }
        let mut sink = self.0.sink.borrow_mut();
        match rows.iter().try_for_each(|row| sink.write(row)) {
            Ok(()) => true,
            Err(error) => {
                self.0.has_failed.set(true);
                self.0.node.group.fail(error);
                false
            }
        }
    }
}

impl<D: 'static> Sealed for OpenedSink<D> {
    fn seal(&self, number: u64) -> Result<SinkWork> {
        if self.has_failed.get() {
            return Err(Error::new(ErrorKind::Io, "a sink has failed to write a row"));
        }
        self.sink.borrow_mut().seal(number)
    }

    fn commit(&self, number: u64) -> Result<SinkWork> {
        self.sink.borrow_mut().commit(number)
    }
}

/// Extension trait: rows that become visible with the job's checkpoints.
pub trait WriteTo<'scope, T: Timestamp, D> {
    /// Writes the rows to the worker's sink and passes them on. The probe of the job's checkpoints
    /// must be behind it.
    fn write_to(self, sink: &JobSink<D>) -> StreamVec<'scope, T, D>;
}

impl<'scope, T: Timestamp, D: Clone + 'static> WriteTo<'scope, T, D> for StreamVec<'scope, T, D> {
    fn write_to(self, sink: &JobSink<D>) -> StreamVec<'scope, T, D> {
        let sink = sink.clone();
        self.unary::<Builder<_>, _, _, _>(Pipeline, "write_to", |_, _| {
            let mut failed = CapabilitySet::new();
            move |input, output| {
                input.for_each(|capability, batch| {
                    if sink.write(batch) {
                        output.session(&capability).give_container(batch);
                    } else {
                        // No probe passes what is not written.
                        failed.insert(capability.retain(0));
                    }
                });
            }
        })
    }
}
