//! The thread that writes a store's traces, and who gives it chunks.

use std::cell::RefCell;
use std::fmt;
use std::fs;
use std::rc::Rc;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use alluvium_pagestore::channel::{Receiver, Sender, unbounded};
use alluvium_pagestore::{Account, Error, ErrorKind, Result};

use super::options::{TraceOptions, TraceStats};
use super::recorder::Recorder;
use super::writing::{FullChunk, TraceFile, TraceProgress};

/// Records calls on the states of a store.
pub(crate) struct Tracer {
    options: TraceOptions,
    desk: Rc<ChunkDesk>,
    traces: RefCell<Vec<Arc<TraceProgress>>>,
}

impl Tracer {
    /// Makes the directory and starts the thread.
    ///
    /// # Errors
    /// Those of either.
    pub(crate) fn start(options: &TraceOptions, patience_ms: u64) -> Result<Self> {
        let directory = &options.directory;
        fs::create_dir_all(directory).map_err(|error| {
            Error::io("make the directory of traces", directory.display(), error)
        })?;
        let desk = Rc::new(ChunkDesk::start(Duration::from_millis(patience_ms))?);
        Ok(Self { options: options.clone(), desk, traces: RefCell::default() })
    }

    /// The trace of a state that is being opened, if it is to be recorded.
    ///
    /// # Errors
    /// Those of making its file. [`ErrorKind::OverBudget`] if its buffer does not fit.
    pub(crate) fn recorder_of(
        &self,
        state: &str,
        account: &Rc<Account>,
    ) -> Result<Option<Recorder>> {
        if !self.options.takes(state) {
            return Ok(None);
        }
        let (file, progress) = TraceFile::create(&self.options, state)?;
        let recorder = Recorder::new(&self.options, account, file, self.desk.clone())?;
        self.traces.borrow_mut().push(progress);
        Ok(Some(recorder))
    }

    /// What became of each trace.
    pub(crate) fn stats(&self) -> Vec<TraceStats> {
        self.traces.borrow().iter().map(|progress| progress.stats()).collect()
    }
}

impl fmt::Debug for Tracer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tracer({})", self.options.directory.display())
    }
}

/// Where chunks are given to the thread. The last to leave it waits for the thread.
pub(super) struct ChunkDesk {
    began: Instant,
    full: Option<Sender<FullChunk>>,
    ended: Receiver<()>,
    patience: Duration,
}

impl ChunkDesk {
    pub(super) fn start(patience: Duration) -> Result<Self> {
        // Bounded by the chunks that there are.
        let (full, chunks) = unbounded::<FullChunk>();
        let (end, ended) = unbounded();
        let spawned = thread::Builder::new().name("alluvium-trace".into()).spawn(move || {
            chunks.iter().for_each(FullChunk::write);
            let _ = end.send(());
        });
        let started =
            |error| Error::new(ErrorKind::Io, "cannot start the thread of traces").caused_by(error);
        spawned.map_err(started)?;
        Ok(Self { began: Instant::now(), full: Some(full), ended, patience })
    }

    pub(super) fn patience(&self) -> Duration {
        self.patience
    }

    pub(super) fn began(&self) -> Instant {
        self.began
    }

    pub(super) fn send(&self, full: FullChunk) {
        if let Some(to) = &self.full {
            let _ = to.send(full);
        }
    }
}

impl Drop for ChunkDesk {
    /// Storage that does nothing keeps the thread, but nobody else.
    fn drop(&mut self) {
        self.full = None;
        let _ = self.ended.recv_timeout(self.patience);
    }
}
