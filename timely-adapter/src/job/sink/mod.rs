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

/// Work of a sink that waits for a device; a helper of the worker's store does it.
pub type SinkWork = Box<dyn FnOnce() -> Result<()> + Send>;

/// Where one worker's rows go that become visible with the job's checkpoints.
///
/// The rows written between two calls of [`seal`](Sink::seal) are a part, with the number of the
/// checkpoint that is to make it visible. If that is given up, the next one has its number: a number may
/// be sealed more than once, and one commit makes all its parts visible.
pub trait Sink<D>: 'static {
    /// Makes the parts of checkpoints up to `committed` visible, as a run may have ended between a
    /// commit and that, and removes all others. Called once on each worker, before any of them writes
    /// a row. The runs before may have had other numbers of workers. `committed` is 0 if the job
    /// begins.
    ///
    /// # Errors
    /// [`ErrorKind::Mismatch`] if rows are visible that a checkpoint after `committed` has; else why
    /// it failed. The run does not begin.
    fn restore(&mut self, committed: u64) -> Result<()>;

    /// Takes a row in, invisibly.
    ///
    /// # Errors
    /// The run ends with them. The next one gives the row again.
    fn write(&mut self, row: &D) -> Result<()>;

    /// Ends the part of the rows written so far. The work makes it durable, invisibly: if it has
    /// succeeded, [`commit`](Sink::commit) and [`restore`](Sink::restore) find the part.
    ///
    /// # Errors
    /// Of this and of the work: the run ends with them, and the checkpoint does not count.
    fn seal(&mut self, number: u64) -> Result<SinkWork>;

    /// Checkpoint `number` counts: the work makes its parts visible.
    ///
    /// # Errors
    /// Of this and of the work: the run ends with them, and the next one makes the parts visible.
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
/// A job takes one more checkpoint when all workers have sent all they have, so that the rows up to
/// there become visible. Rows that come out only because the inputs are closed after that belong to no
/// checkpoint and are never visible: advance the inputs to where the last windows are over before the
/// worker says that it has ended.
pub struct JobSink<D>(Rc<Opened<D>>);

struct Opened<D> {
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
    /// Restores a sink to the checkpoint that the run goes on from, and waits until all workers have.
    /// All workers do so in the same place of the program, before they make their
    /// [`JobCheckpoints`](crate::JobCheckpoints).
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] for a job that was not started with
    /// [`execute`](crate::execute()); those of [`Sink::restore`]; the fault that ends the run.
    pub fn open(worker: &mut Worker, state: &WorkerState, sink: impl Sink<D>) -> Result<Self> {
        if !state.is_in_group() {
            let message = "a sink of a job needs one that was started with `execute`";
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let mut sink: Box<dyn Sink<D>> = Box::new(sink);
        sink.restore(state.restored().map_or(0, |all| all.number))?;
        state.meet(worker, 0)?;
        let (sink, has_failed) = (RefCell::new(sink), Cell::new(false));
        let opened = Rc::new(Opened { sink, has_failed, node: state.place().node.clone() });
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

impl<D: 'static> Sealed for Opened<D> {
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
    /// Writes the rows to the worker's sink, and passes them on: the probe of the job's checkpoints has
    /// to be behind it.
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
