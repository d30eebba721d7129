//! The Linux engine: one io_uring, owned by one thread.
//!
//! [`Uring::submit`] puts the request into a channel. If the ring's thread sleeps, it wakes it
//! through an event. The thread launches all requests it finds, up to the queue depth, enters the
//! kernel once for all of them, and sleeps there until a transfer ends or an event arrives; it
//! never spins. Transfers that end early are launched again for the rest. Requests beyond the queue
//! depth wait in the channel. Reads that the store's thread waits for go to the kernel without this
//! thread, through [a ring of its own](super::own_ring).
//!
//! The flag `asleep` and the channel form a pair as in Dekker's algorithm. The submitter sends and
//! then reads the flag; the thread sets the flag and then reads the channel, with a fence between.
//! One of them always sees the other.

use crate::channel::{Receiver, Sender};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::thread::JoinHandle;
use std::time::Duration;

use super::accepted::{Accepted, past_end};
use super::directory::{DirectIo, Directory, end_of};
use super::own_ring::OwnRing;
use super::patience::{CLOSING_MAX, join_within};
use super::ring_unsafe::{Ring, Transfer, new_event, wake, whole_blocks};
use super::threads::join_reasons;
use super::{DEFAULT_QUEUE_DEPTH, Device, FileHandle, IoStats, Operation, Request};
use crate::{Error, ErrorKind, Result};

/// Largest accepted queue depth.
pub const QUEUE_DEPTH_MAX: usize = 4096;

/// Times a transfer may fail to move a block before that is an error.
const RETRIES_MAX: u32 = 100;

/// Options of a [`Uring`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UringOptions {
    /// Number of requests in the kernel at once, at most [`QUEUE_DEPTH_MAX`]. More let the device
    /// reorder more; each costs about 200 bytes. Default: [`DEFAULT_QUEUE_DEPTH`].
    pub queue_depth: usize,
    /// Whether to bypass the page cache. Default: [`DirectIo::Auto`].
    pub direct: DirectIo,
}

impl Default for UringOptions {
    fn default() -> Self {
        Self { queue_depth: DEFAULT_QUEUE_DEPTH, direct: DirectIo::Auto }
    }
}

/// A [`Device`] over a directory, served by io_uring.
#[derive(Debug)]
pub struct Uring {
    directory: Directory,
    requests: Sender<Accepted>,
    bell: Arc<RingBell>,
    own: OwnRing,
    /// `None` only while dropping.
    thread: Option<JoinHandle<()>>,
    /// Why the ring has the plain set-up.
    plain: Option<String>,
}

/// What submitters and the ring's thread share.
#[derive(Debug)]
struct RingBell {
    event: Arc<OwnedFd>,
    asleep: AtomicBool,
    closing: AtomicBool,
}

impl RingBell {
    /// Wakes the ring's thread if it sleeps; called after sending. Cost: a fence, and for the
    /// first of several calls a write to the event.
    fn ring(&self) {
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::Relaxed) {
            wake(&self.event);
        }
    }
}

impl Uring {
    /// Opens `directory` and starts the ring's thread. Creates the directory if it is missing.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if the kernel refuses io_uring (by filter, setting, age or locked
    /// memory), or direct I/O is required and refused. [`ErrorKind::Config`] for a queue depth of 0
    /// or above [`QUEUE_DEPTH_MAX`]. Otherwise those of the operating system.
    pub fn new(directory: &Path, options: UringOptions) -> Result<Self> {
        let depth = options.queue_depth;
        if depth == 0 || depth > QUEUE_DEPTH_MAX {
            let message = format!("queue_depth is {depth}, but 1 to {QUEUE_DEPTH_MAX} is needed");
            return Err(Error::new(ErrorKind::Config, message));
        }
        let path = directory;
        let directory = Directory::open(path, options.direct)?;
        let (thread, bell, requests, deferred) = start(depth).map_err(|e| {
            if matches!(e.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) {
                return Error::io("start io_uring for", path.display(), e);
            }
            Error::new(ErrorKind::Unsupported, "the kernel refuses io_uring").caused_by(e)
        })?;
        let plain = (!deferred).then(|| "plain ring: the kernel is older than 6.1".to_owned());
        let own = OwnRing::default();
        Ok(Self { directory, requests, bell, own, thread: Some(thread), plain })
    }

    /// Takes a request in; one that ends at once is not given on.
    fn accept(&self, request: Request) -> Option<Accepted> {
        let accepted = Accepted::accept(request, &self.directory.counters)?;
        match self.directory.process().check() {
            Ok(()) => Some(accepted),
            Err(forked) => {
                accepted.finish(Err(forked));
                None
            }
        }
    }

    fn send(&self, accepted: Accepted) {
        // A channel without receiver drops the request, which ends it.
        drop(self.requests.send(accepted));
    }
}

impl Device for Uring {
    fn engine(&self) -> &'static str {
        "uring"
    }

    fn is_direct(&self) -> bool {
        self.directory.is_direct()
    }

    fn fallback_reason(&self) -> Option<String> {
        join_reasons(self.plain.as_ref(), self.directory.direct_refused().as_ref())
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
        self.accept(request).into_iter().for_each(|accepted| self.send(accepted));
        self.bell.ring();
    }

    fn submit_all(&self, requests: &mut Vec<Request>) {
        let accepted = requests.drain(..).filter_map(|request| self.accept(request));
        accepted.for_each(|accepted| self.send(accepted));
        self.bell.ring();
    }

    fn submit_own(&self, request: Request) {
        let accepted = self.accept(request);
        if let Some(accepted) = accepted.and_then(|accepted| self.own.launch(accepted)) {
            self.send(accepted);
            self.bell.ring();
        }
    }

    fn wait_own(&self, most: Duration) -> bool {
        self.own.wait(most)
    }

    fn drive(&self) {
        self.own.wait(Duration::ZERO);
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

impl Drop for Uring {
    /// Fails what waits, and waits for what the kernel holds; after [`CLOSING_MAX`] the ring's
    /// thread goes on alone, with its buffers and files.
    fn drop(&mut self) {
        if !self.directory.process().is_this() {
            // The rings and their thread are the parent's.
            self.own.forget();
            return std::mem::forget(self.thread.take());
        }
        self.bell.closing.store(true, Ordering::SeqCst);
        wake(&self.bell.event);
        let _all = join_within(self.thread.take().into_iter(), CLOSING_MAX);
    }
}

/// Starts the thread, which makes its ring itself, and waits for how that went.
#[expect(clippy::type_complexity, reason = "the parts of a `Uring`, taken apart at once")]
fn start(depth: usize) -> io::Result<(JoinHandle<()>, Arc<RingBell>, Sender<Accepted>, bool)> {
    let event = Arc::new(new_event()?);
    let (asleep, closing) = (AtomicBool::new(false), AtomicBool::new(false));
    let bell = Arc::new(RingBell { event, asleep, closing });
    let (sender, requests) = crate::channel::unbounded();
    let (report, made) = crate::channel::unbounded();
    let own_bell = Arc::clone(&bell);
    let thread =
        std::thread::Builder::new().name("alluvium-uring".into()).spawn(
            move || match Ring::new(depth, Arc::clone(&own_bell.event)) {
                Ok(ring) => {
                    let _ = report.send(Ok(ring.is_deferred()));
                    serve(ring, &requests, &own_bell);
                }
                Err(e) => drop(report.send(Err(e))),
            },
        )?;
    let gone = || io::Error::other("the ring's thread ended at once");
    match made.recv().unwrap_or_else(|_| Err(gone())) {
        Ok(deferred) => Ok((thread, bell, sender, deferred)),
        Err(e) => {
            let _ = thread.join();
            Err(e)
        }
    }
}

/// The life of the ring's thread. If the kernel refuses the ring, the thread ends; what it held
/// and what comes later ends with errors.
fn serve(mut ring: Ring, requests: &Receiver<Accepted>, bell: &RingBell) {
    let mut ended = Vec::new();
    loop {
        let closing = bell.closing.load(Ordering::SeqCst);
        while ring.has_room() {
            match requests.try_recv() {
                Ok(accepted) if closing => drop(accepted),
                Ok(accepted) => ring.launch(Transfer::new(accepted)),
                Err(_) => break,
            }
        }
        if closing && ring.is_idle() {
            return;
        }
        // With a full ring only an end makes progress, so no one needs to wake us.
        bell.asleep.store(ring.has_room(), Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let wait = !ring.has_room() || requests.is_empty();
        let entered = ring.enter(wait);
        bell.asleep.store(false, Ordering::Relaxed);
        if entered.is_err() {
            return;
        }
        ring.reap(&mut ended);
        for (transfer, result) in ended.drain(..) {
            if let Some(transfer) = advance(transfer, result) {
                ring.launch(transfer);
            }
        }
    }
}

/// Takes the kernel's result in: ends the request, or says what is still to be launched.
pub(super) fn advance(mut transfer: Transfer, result: i32) -> Option<Transfer> {
    if transfer.dropping_cache {
        transfer.accepted.finish(Ok(()));
        return None;
    }
    let outcome = match usize::try_from(result) {
        Ok(bytes) => moved(&mut transfer, bytes),
        Err(_) => refused(&mut transfer, io::Error::from_raw_os_error(-result)),
    };
    match outcome {
        Ok(true) if drops_cache(&transfer.accepted) => {
            transfer.dropping_cache = true;
            Some(transfer)
        }
        Ok(true) => {
            transfer.accepted.finish(Ok(()));
            None
        }
        Ok(false) => Some(transfer),
        Err(error) => {
            transfer.accepted.finish(Err(error));
            None
        }
    }
}

/// Whether the pages of this request must leave the page cache when it is done.
fn drops_cache(accepted: &Accepted) -> bool {
    !accepted.file().is_direct() && !matches!(accepted.operation(), Operation::Write { .. })
}

/// Counts moved bytes; `Ok(true)` if that was all.
fn moved(transfer: &mut Transfer, bytes: usize) -> Result<bool> {
    let accepted = &transfer.accepted;
    let len = accepted.buffer().len();
    let (offset, what) = match accepted.operation() {
        Operation::Sync => return Ok(true),
        Operation::Read { offset } => (offset, "read"),
        Operation::Write { offset } => (offset, "write"),
    };
    if transfer.moved + bytes >= len {
        return Ok(true);
    }
    if what == "read" {
        let needed = offset + len as u64;
        match end_of(accepted.file()) {
            Ok(end) if end < needed => return Err(past_end(end, needed)),
            Ok(_) => {}
            Err(e) => return Err(Error::io("read", accepted.file().name(), e)),
        }
    }
    transfer.moved += whole_blocks(bytes);
    transfer.retries += u32::from(whole_blocks(bytes) == 0);
    if transfer.retries > RETRIES_MAX {
        let stopped = io::Error::from(io::ErrorKind::WriteZero);
        return Err(Error::io(what, accepted.file().name(), stopped));
    }
    Ok(false)
}

/// Tells errors from requests to try again (`Ok(false)`).
fn refused(transfer: &mut Transfer, error: io::Error) -> Result<bool> {
    use io::ErrorKind::{Interrupted, WouldBlock};
    transfer.retries += 1;
    let again = matches!(error.kind(), Interrupted | WouldBlock);
    if again && transfer.retries <= RETRIES_MAX {
        return Ok(false);
    }
    let what = match transfer.accepted.operation() {
        Operation::Read { .. } => "read",
        Operation::Write { .. } => "write",
        Operation::Sync => "sync",
    };
    Err(Error::io(what, transfer.accepted.file().name(), error))
}

#[cfg(test)]
mod tests {
    use super::super::{BLOCK_BYTES, Completion, IoBuffer};
    use super::*;

    /// A transfer of three blocks of a file of four, and where its end is told.
    fn transfer(write: bool) -> (Transfer, Receiver<Completion>, tempfile::TempDir) {
        let place = tempfile::tempdir().unwrap();
        let directory = Directory::open(place.path(), DirectIo::Auto).unwrap();
        std::fs::write(place.path().join("f"), vec![0; 4 * BLOCK_BYTES]).unwrap();
        let file = directory.open_file("f").unwrap();
        let offset = BLOCK_BYTES as u64;
        let operation =
            if write { Operation::Write { offset } } else { Operation::Read { offset } };
        let (reply, completions) = crate::channel::unbounded();
        let buffer = IoBuffer::zeroed(3 * BLOCK_BYTES);
        let request = Request { file, operation, buffer, token: 0, reply: reply.into() };
        let accepted = Accepted::accept(request, &directory.counters).unwrap();
        (Transfer::new(accepted), completions, place)
    }

    #[test]
    fn a_partial_transfer_goes_on_at_the_last_whole_block() {
        for write in [false, true] {
            let (first, completions, _place) = transfer(write);
            let second = advance(first, BLOCK_BYTES as i32 + 100).expect("there is a rest");
            assert_eq!(second.moved, BLOCK_BYTES);
            let third = advance(second, BLOCK_BYTES as i32).expect("there is a rest");
            assert_eq!(third.moved, 2 * BLOCK_BYTES);
            assert!(completions.is_empty());
            let last = advance(third, BLOCK_BYTES as i32);
            if let Some(last) = last {
                assert!(last.dropping_cache, "only a buffered read has more to do");
                assert!(advance(last, 0).is_none());
            }
            assert!(completions.try_recv().unwrap().result.is_ok());
        }
    }

    #[test]
    fn interrupted_transfers_are_tried_again_but_not_for_ever() {
        for result in [-libc::EINTR, -libc::EAGAIN, 0] {
            let (mut transfer, completions, _place) = transfer(true);
            let mut tries = 0;
            while let Some(again) = advance(transfer, result) {
                transfer = again;
                tries += 1;
            }
            assert_eq!(tries, RETRIES_MAX, "result {result}");
            assert!(completions.try_recv().unwrap().result.is_err());
        }
    }

    #[test]
    fn a_refused_transfer_ends_with_the_kernels_words() {
        let (transfer, completions, _place) = transfer(true);
        assert!(advance(transfer, -libc::ENOSPC).is_none());
        let error = completions.try_recv().unwrap().result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::DiskFull);
        assert_eq!(error.context("file"), Some("f"));
    }
}
