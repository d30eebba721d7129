//! The engine for every machine: positioned reads and writes on helper threads.
//!
//! Requests wait in one unbounded channel. Each helper takes the next, performs it with blocking
//! calls and sends the completion: the device has as many requests as there are helpers. Dropping
//! the pool lets running requests end, fails the waiting ones and joins the helpers. A helper that
//! the operating system blocks longer than [`CLOSING_MAX`] continues alone, with its buffer and
//! file.

use crate::channel::{Receiver, Sender};
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use super::accepted::{Accepted, past_end};
use super::directory::{DirectIo, Directory, drop_from_cache, end_of, system_file};
use super::patience::{CLOSING_MAX, join_within};
use super::{Device, FileHandle, IoStats, Operation, Request};
use crate::{Error, ErrorKind, Result};

/// Default number of helper threads.
pub const DEFAULT_THREADS: usize = 16;

/// Bytes of stack per helper: calls are shallow and buffers are on the heap.
const STACK_BYTES: usize = 128 * 1024;

/// Options of a [`ThreadPool`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadPoolOptions {
    /// Number of helper threads: the requests at the device at once. More hide more latency; each
    /// costs a thread. Default: [`DEFAULT_THREADS`].
    pub threads: usize,
    /// Whether to bypass the page cache. Default: [`DirectIo::Auto`].
    pub direct: DirectIo,
}

impl Default for ThreadPoolOptions {
    fn default() -> Self {
        Self { threads: DEFAULT_THREADS, direct: DirectIo::Auto }
    }
}

/// A [`Device`] over a directory, served by helper threads.
#[derive(Debug)]
pub struct ThreadPool {
    directory: Directory,
    /// `None` only while dropping.
    requests: Option<Sender<Accepted>>,
    closing: Arc<AtomicBool>,
    helpers: Vec<JoinHandle<()>>,
    /// Why a better engine was not used.
    fallback: Option<String>,
}

impl ThreadPool {
    /// Opens `directory` and starts the helpers. Creates the directory if it is missing.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] for zero threads; [`ErrorKind::Unsupported`] if direct I/O is required
    /// and refused; otherwise those of the operating system.
    pub fn new(directory: &Path, options: ThreadPoolOptions) -> Result<Self> {
        if options.threads == 0 {
            return Err(Error::new(ErrorKind::Config, "threads is 0, but at least 1 is needed"));
        }
        Self::over(Directory::open(directory, options.direct)?, options)
    }

    /// Opens `directory`, which must exist, to read what is there; its files cannot be written.
    pub(super) fn to_read(directory: &Path, options: ThreadPoolOptions) -> Result<Self> {
        Self::over(Directory::open_to_read(directory, options.direct)?, options)
    }

    fn over(directory: Directory, options: ThreadPoolOptions) -> Result<Self> {
        let (sender, receiver) = crate::channel::unbounded();
        let mut pool = Self {
            directory,
            requests: Some(sender),
            closing: Arc::new(AtomicBool::new(false)),
            helpers: Vec::with_capacity(options.threads),
            fallback: None,
        };
        for i in 0..options.threads {
            let (receiver, closing) = (receiver.clone(), Arc::clone(&pool.closing));
            let helper = std::thread::Builder::new()
                .name(format!("alluvium-io-{i}"))
                .stack_size(STACK_BYTES)
                .spawn(move || serve(&receiver, &closing, perform))
                .map_err(|e| {
                    Error::new(ErrorKind::Io, "cannot start an I/O thread").caused_by(e)
                })?;
            pool.helpers.push(helper);
        }
        Ok(pool)
    }

    /// Records another engine that was wanted, and why it is not used.
    #[must_use]
    pub(super) fn instead_of(mut self, reason: String) -> Self {
        self.fallback = Some(reason);
        self
    }
}

impl Device for ThreadPool {
    fn engine(&self) -> &'static str {
        "threads"
    }

    fn is_direct(&self) -> bool {
        self.directory.is_direct()
    }

    fn fallback_reason(&self) -> Option<String> {
        join_reasons(self.fallback.as_ref(), self.directory.direct_refused().as_ref())
    }

    fn stats(&self) -> IoStats {
        self.directory.counters.read()
    }

    fn create(&self, name: &str) -> Result<FileHandle> {
        self.directory.create(name)
    }

    fn open(&self, name: &str) -> Result<FileHandle> {
        self.directory.open_file(name)
    }

    fn len(&self, file: &FileHandle) -> Result<u64> {
        self.directory.len(file)
    }

    fn submit(&self, request: Request) {
        if let (Some(accepted), Some(requests)) =
            (Accepted::accept(request, &self.directory.counters), &self.requests)
        {
            match self.directory.process().check() {
                // A channel without receivers drops the request, which ends it.
                Ok(()) => drop(requests.send(accepted)),
                Err(forked) => accepted.finish(Err(forked)),
            }
        }
    }

    fn rename(&self, source: &str, target: &str) -> Result<()> {
        self.directory.rename(source, target)
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.directory.remove(name)
    }

    fn sync_directory(&self) -> Result<()> {
        self.directory.sync()
    }

    fn list(&self) -> Result<Vec<String>> {
        self.directory.list()
    }

    fn lock(&self) -> Result<Box<dyn Send + Sync>> {
        self.directory.lock()
    }

    fn lock_to_read(&self) -> Result<Box<dyn Send + Sync>> {
        self.directory.lock_to_read()
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        if !self.directory.process().is_this() {
            // The helpers are the parent's.
            return self.helpers.drain(..).for_each(std::mem::forget);
        }
        self.closing.store(true, Ordering::Release);
        drop(self.requests.take());
        let _all = join_within(self.helpers.drain(..), CLOSING_MAX);
    }
}

/// The reasons for not using the best way, as one sentence.
pub(super) fn join_reasons(engine: Option<&String>, direct: Option<&String>) -> Option<String> {
    match (engine, direct) {
        (Some(engine), Some(direct)) => Some(format!("{engine}; {direct}")),
        (one, other) => one.or(other).cloned(),
    }
}

/// A helper's life: requests one by one until the pool is dropped. A panic in `perform` ends its
/// request with an error, not the helper.
fn serve(
    requests: &Receiver<Accepted>,
    closing: &AtomicBool,
    perform: impl Fn(&mut Accepted) -> Result<()>,
) {
    while let Ok(mut accepted) = requests.recv() {
        if closing.load(Ordering::Acquire) {
            drop(accepted);
            continue;
        }
        if let Ok(result) = catch_unwind(AssertUnwindSafe(|| perform(&mut accepted))) {
            accepted.finish(result);
        }
    }
}

/// Does one request with blocking calls.
fn perform(accepted: &mut Accepted) -> Result<()> {
    let operation = accepted.operation();
    let (handle, buffer) = accepted.file_and_buffer();
    let file = system_file(handle).map_err(|e| Error::io("use", handle.name(), e))?;
    match operation {
        Operation::Read { offset } => {
            let needed = offset + buffer.len() as u64;
            file.read_exact_at(buffer.as_mut_slice(), offset)
                .map_err(|e| explain_read(handle, needed, e))?;
            if !handle.is_direct() {
                drop_from_cache(&file, offset, buffer.len() as u64);
            }
        }
        Operation::Write { offset } => {
            file.write_all_at(buffer.as_slice(), offset)
                .map_err(|e| Error::io("write", handle.name(), e))?;
        }
        Operation::Sync => {
            file.sync_data().map_err(|e| Error::io("sync", handle.name(), e))?;
            if !handle.is_direct() {
                drop_from_cache(&file, 0, 0);
            }
        }
    }
    Ok(())
}

/// Tells a read past the end from other failures. A direct read that comes to a partial last
/// block goes on unaligned, which is invalid input.
fn explain_read(handle: &FileHandle, needed: u64, error: std::io::Error) -> Error {
    use std::io::ErrorKind::{InvalidInput, UnexpectedEof};
    match end_of(handle) {
        Ok(end) if end < needed && matches!(error.kind(), InvalidInput | UnexpectedEof) => {
            past_end(end, needed)
        }
        _ => Error::io("read", handle.name(), error),
    }
}

#[cfg(test)]
mod tests {
    use super::super::stats::Counters;
    use super::super::{Completion, IoBuffer, OpenFile};
    use super::*;

    fn accepted(token: u64, reply: &Sender<Completion>, counters: &Arc<Counters>) -> Accepted {
        let file = OpenFile { name: "f".into(), descriptor: None, number: 0, direct: false };
        let file = FileHandle(Arc::new(file));
        let (operation, buffer) = (Operation::Sync, IoBuffer::empty());
        let request = Request { file, operation, buffer, token, reply: reply.clone().into() };
        Accepted::accept(request, counters).expect("a sync is always accepted")
    }

    #[test]
    fn a_panic_ends_its_request_and_not_the_helper() {
        let counters = Arc::new(Counters::default());
        let (requests, waiting) = crate::channel::unbounded();
        let (reply, completions) = crate::channel::unbounded();
        for token in 0..3 {
            requests.send(accepted(token, &reply, &counters)).unwrap();
        }
        drop(requests);
        let calls = std::cell::Cell::new(0);
        serve(&waiting, &AtomicBool::new(false), |_| {
            calls.set(calls.get() + 1);
            assert_ne!(calls.get(), 2, "the second request panics, as planned");
            Ok(())
        });
        let ends: Vec<_> = completions.try_iter().map(|c| (c.token, c.result.is_ok())).collect();
        assert_eq!(ends, [(0, true), (1, false), (2, true)]);
    }

    #[test]
    fn a_closing_helper_fails_what_waits() {
        let counters = Arc::new(Counters::default());
        let (requests, waiting) = crate::channel::unbounded();
        let (reply, completions) = crate::channel::unbounded();
        requests.send(accepted(1, &reply, &counters)).unwrap();
        drop(requests);
        serve(&waiting, &AtomicBool::new(true), |_| panic!("nothing is begun"));
        assert!(completions.try_recv().unwrap().result.is_err());
    }
}
