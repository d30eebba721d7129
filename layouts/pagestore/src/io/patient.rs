//! A device whose reads time out.
//!
//! Wrap a device to open files on it while it may hang. On the thread that created the wrapper, a
//! read ends with [`Backpressure`](crate::ErrorKind::Backpressure) once the device has made no
//! progress for the time limit. Such a read is *left*: the device keeps its buffer until it ends,
//! and its data is not used. The owner of the buffer's reservation asks how many bytes are
//! [left](Patient::left_bytes). Writes and syncs can [time out too](Patient::in_all), on files that
//! an error makes useless.
//!
//! Invariants: no request starts while earlier ones are left, which bounds what calls leave. A
//! device that makes progress, however slowly, is waited for. Other threads, such as a helper's,
//! wait as long as it takes.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;
use std::time::Duration;

use crate::channel::{Receiver, TryRecvError};

use super::{
    Completion, Device, FileHandle, IoBuffer, IoStats, Operation, Patience, Request, wait_a_moment,
};
use crate::Result;

/// A device whose reads time out on one thread.
#[derive(Debug)]
pub struct Patient {
    device: Arc<dyn Device>,
    most: Duration,
    owner: ThreadId,
    /// Not only for reads.
    in_all: bool,
    left: Mutex<Vec<AbandonedRead>>,
}

/// A read that nobody waits for.
#[derive(Debug)]
struct AbandonedRead {
    completions: Receiver<Completion>,
    bytes: u64,
}

impl Patient {
    /// Wraps `device`: this thread waits for a read while the device makes progress, and `most`
    /// longer. Wrapping a patient device again makes a second one, with reads of its own to leave.
    pub fn new(device: Arc<dyn Device>, most: Duration) -> Self {
        let device = device.patient().map_or_else(|| device.clone(), |known| known.device.clone());
        let owner = std::thread::current().id();
        Self { device, most, owner, in_all: false, left: Mutex::default() }
    }

    /// Lets writes and syncs time out too. The outcome of one that was left is unknown.
    #[must_use]
    pub fn in_all(self) -> Self {
        Self { in_all: true, ..self }
    }

    /// Returns the time limit.
    pub fn patience(&self) -> Duration {
        self.most
    }

    /// Returns the bytes of buffers that the device still holds for requests that were left.
    pub fn left_bytes(&self) -> u64 {
        self.still_left().iter().map(|left| left.bytes).sum()
    }

    /// What was left and has not ended.
    fn still_left(&self) -> MutexGuard<'_, Vec<AbandonedRead>> {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        if !left.is_empty() {
            self.device.drive();
            left.retain(|left| matches!(left.completions.try_recv(), Err(TryRecvError::Empty)));
        }
        left
    }

    /// Waits for the requests that were left, up to the time limit.
    ///
    /// # Errors
    /// [`Backpressure`](crate::ErrorKind::Backpressure) if some have not ended.
    pub fn wait_for_left(&self) -> Result<()> {
        let mut patience = Patience::new(self.most, &*self.device);
        while !self.still_left().is_empty() {
            if patience.is_over(&*self.device) {
                return Err(patience.error("what was given up before has not ended"));
            }
            std::thread::sleep(MOMENT);
        }
        Ok(())
    }

    /// Whether this thread is the one that does not wait for ever for such an operation.
    pub(super) fn is_for(&self, operation: Operation) -> bool {
        let is_read = matches!(operation, Operation::Read { .. });
        (is_read || self.in_all) && self.is_owned_here()
    }

    /// Whether this thread is the one that does not wait for ever.
    pub(super) fn is_owned_here(&self) -> bool {
        self.owner == std::thread::current().id()
    }

    /// Waits for a request, and leaves it if the device does nothing.
    pub(super) fn wait_for(
        &self,
        file: &FileHandle,
        operation: Operation,
        completions: Receiver<Completion>,
        bytes: u64,
    ) -> (IoBuffer, Result<()>) {
        let mut patience = Patience::new(self.most, &*self.device);
        loop {
            if let Some(ended) = wait_a_moment(&*self.device, file, &completions) {
                return ended;
            }
            // Of several that are given up only the first is waited for.
            if !self.still_left().is_empty() || patience.is_over(&*self.device) {
                break;
            }
        }
        self.still_left().push(AbandonedRead { completions, bytes });
        let what = match operation {
            Operation::Read { .. } => "a read has not ended",
            Operation::Write { .. } => "a write has not ended",
            Operation::Sync => "a sync has not ended",
        };
        (IoBuffer::empty(), Err(patience.error(what).with("file", file.name())))
    }
}

/// Between two looks whether what was left has ended.
const MOMENT: Duration = Duration::from_micros(50);

impl Device for Patient {
    fn engine(&self) -> &'static str {
        self.device.engine()
    }

    fn is_direct(&self) -> bool {
        self.device.is_direct()
    }

    fn fallback_reason(&self) -> Option<String> {
        self.device.fallback_reason()
    }

    fn stats(&self) -> IoStats {
        self.device.stats()
    }

    fn create(&self, name: &str) -> Result<FileHandle> {
        self.device.create(name)
    }

    fn open(&self, name: &str) -> Result<FileHandle> {
        self.device.open(name)
    }

    fn len(&self, file: &FileHandle) -> Result<u64> {
        self.device.len(file)
    }

    fn submit(&self, request: Request) {
        self.device.submit(request);
    }

    fn submit_all(&self, requests: &mut Vec<Request>) {
        self.device.submit_all(requests);
    }

    fn submit_own(&self, request: Request) {
        self.device.submit_own(request);
    }

    fn wait_own(&self, most: Duration) -> bool {
        self.device.wait_own(most)
    }

    fn drive(&self) {
        self.device.drive();
    }

    fn rename(&self, source: &str, target: &str) -> Result<()> {
        self.device.rename(source, target)
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.device.remove(name)
    }

    fn sync_directory(&self) -> Result<()> {
        self.device.sync_directory()
    }

    fn list(&self) -> Result<Vec<String>> {
        self.device.list()
    }

    fn lock(&self) -> Result<Box<dyn Send + Sync>> {
        self.device.lock()
    }

    fn lock_to_read(&self) -> Result<Box<dyn Send + Sync>> {
        self.device.lock_to_read()
    }

    fn patient(&self) -> Option<&Patient> {
        Some(self)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{BLOCK_BYTES, Fault, Faults, Simulated, UnderWay, run_blocking};
    use super::*;
    use crate::ErrorKind;

    const SOON: Duration = Duration::from_millis(10);

    fn device() -> (Simulated, Arc<Patient>, FileHandle) {
        let device = Simulated::new(1, Faults::none());
        device.place("f", &[7; 4 * BLOCK_BYTES]);
        let patient = Arc::new(Patient::new(Arc::new(device.clone()), SOON));
        let file = patient.open("f").unwrap();
        (device, patient, file)
    }

    fn read(device: &dyn Device, file: &FileHandle) -> (IoBuffer, Result<()>) {
        let operation = Operation::Read { offset: 0 };
        run_blocking(device, file, operation, IoBuffer::zeroed(BLOCK_BYTES))
    }

    #[test]
    fn a_read_that_does_not_end_is_left_and_the_next_one_waits_for_it() {
        let (device, patient, file) = device();
        device.on_nth_read(1, Fault::Stuck);
        let (buffer, done) = read(&*patient, &file);
        let error = done.unwrap_err();
        assert_eq!((error.kind(), error.context("file")), (ErrorKind::Backpressure, Some("f")));
        assert_eq!((buffer.capacity(), patient.left_bytes()), (0, BLOCK_BYTES as u64));
        // The next one is not begun.
        let (buffer, done) = read(&*patient, &file);
        assert_eq!(done.unwrap_err().kind(), ErrorKind::Backpressure);
        assert_eq!((buffer.capacity(), device.in_flight()), (BLOCK_BYTES, 1));
        device.release_stuck();
        let (buffer, done) = read(&*patient, &file);
        done.unwrap();
        assert!(buffer.as_slice() == [7; BLOCK_BYTES] && patient.left_bytes() == 0);
    }

    #[test]
    fn reads_that_are_given_up_together_are_left_together() {
        let (device, patient, file) = device();
        let start = || {
            let operation = Operation::Read { offset: 0 };
            UnderWay::start(patient.clone(), &file, operation, IoBuffer::zeroed(BLOCK_BYTES))
        };
        (1..=3).for_each(|nth| device.on_nth_read(nth, Fault::Stuck));
        let [first, second, third] = [start(), start(), start()];
        assert_eq!(first.wait().1.unwrap_err().kind(), ErrorKind::Backpressure);
        drop((second, third));
        assert_eq!(patient.left_bytes(), 3 * BLOCK_BYTES as u64);
        device.release_stuck();
        assert_eq!(patient.left_bytes(), 0);
    }

    #[test]
    fn writes_and_syncs_are_left_if_that_is_asked_for() {
        let (device, patient, file) = device();
        let both = [(Operation::Write { offset: 0 }, BLOCK_BYTES), (Operation::Sync, 0)];
        for (operation, bytes) in both {
            let all = Patient::new(patient.clone(), SOON).in_all();
            let run = || run_blocking(&all, &file, operation, IoBuffer::zeroed(bytes)).1;
            device.on_nth_write(1, Fault::Stuck);
            device.on_nth_sync(1, Fault::Stuck);
            let told = run().unwrap_err();
            assert_eq!((told.kind(), told.context("file")), (ErrorKind::Backpressure, Some("f")));
            assert_eq!(all.left_bytes(), bytes as u64);
            assert_eq!(run().unwrap_err().kind(), ErrorKind::Backpressure);
            assert_eq!(device.in_flight(), 1, "{operation:?}");
            device.release_stuck();
            device.forget_scripts();
            run().unwrap();
        }
    }

    #[test]
    fn other_threads_wait() {
        let (device, patient, file) = device();
        device.on_nth_read(1, Fault::Stuck);
        let waiting = std::thread::spawn(move || read(&*patient, &file).1);
        while device.stuck() == 0 {
            std::thread::yield_now();
        }
        std::thread::sleep(4 * SOON);
        assert!(!waiting.is_finished());
        device.release_stuck();
        device.drive();
        waiting.join().unwrap().unwrap();
    }
}
