//! How bytes move: one trait, [`Device`], and its engines.
//!
//! A device is a flat directory of files. Reads, writes and syncs are submitted and complete on a
//! channel. The buffer travels with the request and returns with the completion: the kernel never
//! has memory that other code can touch. All other operations (create, open, rename, remove, list)
//! are rare and synchronous.
//!
//! The engines are `ThreadPool` (positioned reads and writes on helper threads) and `Uring` (one
//! io_uring owned by one thread, Linux); `open_device` picks the best one that the machine allows.
//! With the feature `sim` there is `Simulated` for tests (seeded, in memory, with faults and crash
//! images).

pub(crate) mod accepted;
mod appended;
mod buffer;
mod descriptors;
pub(crate) mod directory;
mod open;
#[cfg(target_os = "linux")]
mod own_ring;
mod patience;
mod patient;
mod read_only;
mod reply;
#[cfg(target_os = "linux")]
mod ring_unsafe;
pub(crate) mod stats;
mod sure_names;
mod threads;
#[cfg(target_os = "linux")]
mod uring;
mod wake;
#[cfg(test)]
mod wake_tests;

pub use appended::Appended;
pub(crate) use appended::move_chunk;
pub use buffer::{BLOCK_BYTES, IoBuffer};
pub use directory::{DirectIo, DirectoryLock, lock_directory};
pub use open::{EngineChoice, IoOptions, open_device};
pub use patience::{CLOSING_MAX, Patience};
pub use patient::Patient;
pub use read_only::{ReadOnly, open_device_to_read};
pub use reply::Reply;
pub use stats::IoStats;
pub use sure_names::{ASIDE, SureNames};
pub use threads::{DEFAULT_THREADS, ThreadPool, ThreadPoolOptions};
#[cfg(target_os = "linux")]
pub use uring::{QUEUE_DEPTH_MAX, Uring, UringOptions};
pub use wake::Waker;

#[cfg(feature = "sim")]
pub use crate::sim::{CrashPolicy, Fault, Faults, Lie, Moment, Simulated};

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::channel::Receiver;

use crate::{Error, FileName, Result};

/// Default number of requests in the kernel at a time.
pub const DEFAULT_QUEUE_DEPTH: usize = 128;

/// A file opened on a [`Device`]; cheap to clone. The file closes with its last clone, or earlier:
/// an unused file may give up its descriptor and is reopened on use
/// ([`IoOptions::open_files_max`]).
#[derive(Clone, Debug)]
pub struct FileHandle(pub(crate) Arc<OpenFile>);

/// What the engines keep for an open file.
#[derive(Debug)]
pub(crate) struct OpenFile {
    /// Name inside the device's directory.
    pub(crate) name: FileName,
    /// The operating system's file; `None` on the simulated device.
    pub(crate) descriptor: Option<Arc<descriptors::Descriptor>>,
    /// Number of the file on the simulated device, else 0.
    #[cfg_attr(not(feature = "sim"), expect(dead_code))]
    pub(crate) number: u64,
    /// Whether reads and writes bypass the page cache.
    pub(crate) direct: bool,
}

impl FileHandle {
    /// Bytes that an open file takes beside what its owner has of it.
    pub const FILE_BYTES: u64 = descriptors::OPEN_FILE_BYTES;

    /// Returns the file's name inside its directory.
    pub fn name(&self) -> String {
        self.0.name.to_string()
    }

    /// Returns whether reads and writes bypass the operating system's page cache.
    pub fn is_direct(&self) -> bool {
        self.0.direct
    }
}

/// Operation on a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Fill the buffer's length from `offset`. Reading past the end is an error.
    Read {
        /// First byte; a multiple of [`BLOCK_BYTES`].
        offset: u64,
    },
    /// Write the buffer's length at `offset`.
    Write {
        /// First byte; a multiple of [`BLOCK_BYTES`].
        offset: u64,
    },
    /// Make the writes whose completions arrived before this was submitted survive a crash
    /// (`fdatasync`). After a failure those bytes may be lost even if a later sync succeeds: write
    /// them again, elsewhere.
    Sync,
}

/// One unit of I/O. Buffer lengths are multiples of [`BLOCK_BYTES`].
#[derive(Debug)]
pub struct Request {
    /// The file.
    pub file: FileHandle,
    /// The operation.
    pub operation: Operation,
    /// Memory to read into or write from; empty for [`Operation::Sync`].
    pub buffer: IoBuffer,
    /// Returned in the completion.
    pub token: u64,
    /// Receiver of the completion.
    pub reply: Reply,
}

/// The end of a [`Request`]. Each request gets exactly one, also after a failure.
#[derive(Debug)]
pub struct Completion {
    /// The request's token.
    pub token: u64,
    /// The request's buffer; after a failed read its contents are unspecified.
    pub buffer: IoBuffer,
    /// `Ok` if all bytes were moved. The error names file and offset.
    pub result: Result<()>,
}

/// A flat directory of files with asynchronous I/O.
pub trait Device: Send + Sync + fmt::Debug {
    /// Returns a short name of the engine, for reports.
    fn engine(&self) -> &'static str;

    /// Returns whether files bypass the operating system's page cache. Single files may not; see
    /// [`FileHandle::is_direct`].
    fn is_direct(&self) -> bool {
        false
    }

    /// Returns the reason for a weaker engine or buffered files; `None` if there is none.
    fn fallback_reason(&self) -> Option<String> {
        None
    }

    /// Returns counters since the device was opened.
    fn stats(&self) -> IoStats;

    /// Creates a new, empty file. An existing file of that name is an error.
    fn create(&self, name: &str) -> Result<FileHandle>;

    /// Opens an existing file for reading and writing.
    fn open(&self, name: &str) -> Result<FileHandle>;

    /// Returns the length of a file in bytes. Writes in flight may or may not count.
    fn len(&self, file: &FileHandle) -> Result<u64>;

    /// Starts one request. Never blocks on the device for long. Requests in flight have no defined
    /// order.
    fn submit(&self, request: Request);

    /// Starts all of `requests`, leaving it empty. Engines that can, submit them as one.
    fn submit_all(&self, requests: &mut Vec<Request>) {
        for request in requests.drain(..) {
            self.submit(request);
        }
    }

    /// Starts one read whose end this thread waits for next, with [`wait_own`](Device::wait_own).
    /// An engine that can, takes it to the device without another thread, when it is waited for.
    /// The default submits it.
    fn submit_own(&self, request: Request) {
        self.submit(request);
    }

    /// Waits at most so long for the end of a request that this thread has started with
    /// [`submit_own`](Device::submit_own), whose completion is in its channel then. Returns false,
    /// at once, if the engine has none.
    fn wait_own(&self, most: Duration) -> bool {
        let _ = most;
        false
    }

    /// Called by a thread that waits for a completion and has nothing else to do. Real engines
    /// work on their own, but for what [`submit_own`](Device::submit_own) has left; the simulated
    /// one lets a held request finish.
    fn drive(&self) {}

    /// Renames a file, replacing `target`. Survives a crash after
    /// [`sync_directory`](Device::sync_directory). Handles keep the name they were opened by.
    fn rename(&self, source: &str, target: &str) -> Result<()>;

    /// Removes a file. Open handles keep working until they are dropped.
    fn remove(&self, name: &str) -> Result<()>;

    /// Makes creations, renames and removals survive a crash. After a failure those may be lost
    /// even if a later sync succeeds: [`SureNames`] makes names again.
    fn sync_directory(&self) -> Result<()>;

    /// Lists the names of all files in unspecified order, without the lock.
    fn list(&self) -> Result<Vec<String>>;

    /// Takes the directory's lock until the guard is dropped. Fails with
    /// [`ErrorKind::Locked`](crate::ErrorKind::Locked) if another holds it. Later creations,
    /// renames and removals fail alike if the lock file was removed or replaced: then another
    /// process may have the directory too.
    fn lock(&self) -> Result<Box<dyn Send + Sync>>;

    /// Takes a shared lock for reading a directory that no store has open. It excludes
    /// [`lock`](Device::lock) until the guard is dropped, but not other readers. The default takes
    /// the exclusive lock, which allows one reader at a time.
    fn lock_to_read(&self) -> Result<Box<dyn Send + Sync>> {
        self.lock()
    }

    /// Returns the device as a [`Patient`] one, whose reads time out, if it is one.
    fn patient(&self) -> Option<&Patient> {
        None
    }
}

/// Submits one request and waits for its end. For rare, small I/O such as manifests. A read of a
/// [`Patient`] device may end without its buffer, which the device then keeps.
pub fn run_blocking(
    device: &dyn Device,
    file: &FileHandle,
    operation: Operation,
    buffer: IoBuffer,
) -> (IoBuffer, Result<()>) {
    let bytes = buffer.capacity() as u64;
    match patient_with(device, operation) {
        Some(patient) => {
            if let Err(error) = patient.wait_for_left() {
                return (buffer, Err(error.with("file", file.name())));
            }
            let (request, completions) = request(file, operation, buffer);
            match operation {
                Operation::Read { .. } => device.submit_own(request),
                Operation::Write { .. } | Operation::Sync => device.submit(request),
            }
            patient.wait_for(file, operation, completions, bytes)
        }
        None => wait_for(device, file, &submit_one(device, file, operation, buffer)),
    }
}

/// Who has this thread wait no longer than it should for such an operation.
fn patient_with(device: &dyn Device, operation: Operation) -> Option<&Patient> {
    device.patient().filter(|patient| patient.is_for(operation))
}

/// Submits one request, whose end [`wait_for`] waits for.
pub(crate) fn submit_one(
    device: &dyn Device,
    file: &FileHandle,
    operation: Operation,
    buffer: IoBuffer,
) -> Receiver<Completion> {
    let (request, completions) = request(file, operation, buffer);
    device.submit(request);
    completions
}

/// A request, and where its end is told.
fn request(
    file: &FileHandle,
    operation: Operation,
    buffer: IoBuffer,
) -> (Request, Receiver<Completion>) {
    let (reply, completions) = crate::channel::unbounded();
    let (file, reply) = (file.clone(), reply.into());
    (Request { file, operation, buffer, token: 0, reply }, completions)
}

/// Waits for the end of a request.
pub(crate) fn wait_for(
    device: &dyn Device,
    file: &FileHandle,
    completions: &Receiver<Completion>,
) -> (IoBuffer, Result<()>) {
    loop {
        if let Some(ended) = wait_a_moment(device, file, completions) {
            return ended;
        }
    }
}

/// Between two looks at what else is to be done.
const MOMENT: Duration = Duration::from_millis(1);

/// The end of a request, if it has ended, or does so in a moment.
fn wait_a_moment(
    device: &dyn Device,
    file: &FileHandle,
    completions: &Receiver<Completion>,
) -> Option<(IoBuffer, Result<()>)> {
    match completions.try_recv() {
        Ok(done) => return Some((done.buffer, done.result)),
        Err(crate::channel::TryRecvError::Empty) => {}
        Err(crate::channel::TryRecvError::Disconnected) => {
            let lost = Error::new(crate::ErrorKind::Io, "the I/O engine has stopped");
            return Some((IoBuffer::empty(), Err(lost.with("file", file.name()))));
        }
    }
    let done = next_completion(device, completions)?;
    Some((done.buffer, done.result))
}

/// Returns the next completion of a channel, if there is one or comes in a moment. For requests that
/// this thread has started, in either way.
pub fn next_completion(
    device: &dyn Device,
    completions: &Receiver<Completion>,
) -> Option<Completion> {
    if let Ok(done) = completions.try_recv() {
        return Some(done);
    }
    if device.wait_own(MOMENT) {
        return completions.try_recv().ok();
    }
    device.drive();
    completions.recv_timeout(MOMENT).ok()
}

/// One submitted request. The owner can do other work before it waits. Dropping this waits for the
/// request to end. The owner of a [`Patient`] device leaves it, of whatever kind, if the device makes
/// no progress.
#[derive(Debug)]
pub struct UnderWay {
    device: Arc<dyn Device>,
    file: FileHandle,
    operation: Operation,
    /// Of its buffer.
    bytes: u64,
    completions: Option<Receiver<Completion>>,
}

impl UnderWay {
    /// Submits the request.
    pub fn start(
        device: Arc<dyn Device>,
        file: &FileHandle,
        operation: Operation,
        buffer: IoBuffer,
    ) -> Self {
        let bytes = buffer.capacity() as u64;
        let completions = Some(submit_one(&*device, file, operation, buffer));
        Self { device, file: file.clone(), operation, bytes, completions }
    }

    /// Waits for the end of the request. Returns the buffer, unless the engine has stopped or a
    /// [`Patient`] device makes no progress.
    pub fn wait(mut self) -> (IoBuffer, Result<()>) {
        let completions = self.completions.take().expect("waited for once");
        self.end(completions)
    }

    fn end(&self, completions: Receiver<Completion>) -> (IoBuffer, Result<()>) {
        match patient_with(&*self.device, self.operation) {
            Some(patient) => patient.wait_for(&self.file, self.operation, completions, self.bytes),
            None => wait_for(&*self.device, &self.file, &completions),
        }
    }

    /// Waits for the end of the request, unless the device makes no progress for too long.
    ///
    /// # Errors
    /// No error value: `Err` is the request, still in progress.
    pub fn wait_within(
        mut self,
        patience: &mut Patience,
    ) -> std::result::Result<(IoBuffer, Result<()>), Self> {
        let completions = self.completions.take().expect("waited for once");
        loop {
            if let Some(ended) = wait_a_moment(&*self.device, &self.file, &completions) {
                return Ok(ended);
            }
            if patience.is_over(&*self.device) {
                self.completions = Some(completions);
                return Err(self);
            }
        }
    }

    /// Stops waiting. The request ends by itself and keeps its buffer until then.
    pub fn leave(mut self) {
        self.completions = None;
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let Some(completions) = self.completions.take() else { return };
        let _ended = match self.device.patient().filter(|patient| patient.is_owned_here()) {
            Some(patient) => patient.wait_for(&self.file, self.operation, completions, self.bytes),
            None => wait_for(&*self.device, &self.file, &completions),
        };
    }
}
