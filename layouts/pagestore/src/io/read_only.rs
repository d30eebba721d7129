//! Reads the files of a store that no process has open.
//!
//! Invariant: the directory never changes. No file is created, written, renamed or removed, not
//! even for a moment.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::threads::{ThreadPool, ThreadPoolOptions};
use super::{Completion, Device, FileHandle, IoOptions, IoStats, Operation, Request};
use crate::{Error, ErrorKind, Result};

/// Helper threads of a directory that is read: one reads, one is asked meanwhile.
const THREADS: usize = 2;

/// A device that only reads files.
#[derive(Debug)]
pub struct ReadOnly(Arc<dyn Device>);

impl ReadOnly {
    /// Wraps `device` and refuses every change.
    pub fn new(device: Arc<dyn Device>) -> Self {
        Self(device)
    }

    fn refuse<T>(&self, what: &str, file: &str) -> Result<T> {
        let message = format!("cannot {what} a file: the directory is open for reading only");
        Err(Error::new(ErrorKind::Unsupported, message).with("file", file))
    }
}

/// Opens `directory`, which must exist, to read its files.
///
/// # Errors
/// [`ErrorKind::Missing`] if it does not exist; otherwise those of the operating system.
pub fn open_device_to_read(directory: &Path, options: &IoOptions) -> Result<Arc<dyn Device>> {
    let options = ThreadPoolOptions { threads: THREADS, direct: options.direct };
    Ok(Arc::new(ReadOnly::new(Arc::new(ThreadPool::to_read(directory, options)?))))
}

impl Device for ReadOnly {
    fn engine(&self) -> &'static str {
        self.0.engine()
    }

    fn is_direct(&self) -> bool {
        self.0.is_direct()
    }

    fn fallback_reason(&self) -> Option<String> {
        self.0.fallback_reason()
    }

    fn stats(&self) -> IoStats {
        self.0.stats()
    }

    fn create(&self, name: &str) -> Result<FileHandle> {
        self.refuse("create", name)
    }

    fn open(&self, name: &str) -> Result<FileHandle> {
        self.0.open(name)
    }

    fn len(&self, file: &FileHandle) -> Result<u64> {
        self.0.len(file)
    }

    fn submit(&self, request: Request) {
        match request.operation {
            Operation::Read { .. } => self.0.submit(request),
            Operation::Write { .. } | Operation::Sync => {
                let Request { file, buffer, token, reply, .. } = request;
                let result = self.refuse("write", &file.name());
                reply.send(Completion { token, buffer, result });
            }
        }
    }

    fn submit_own(&self, request: Request) {
        match request.operation {
            Operation::Read { .. } => self.0.submit_own(request),
            Operation::Write { .. } | Operation::Sync => self.submit(request),
        }
    }

    fn wait_own(&self, most: Duration) -> bool {
        self.0.wait_own(most)
    }

    fn drive(&self) {
        self.0.drive();
    }

    fn rename(&self, source: &str, _: &str) -> Result<()> {
        self.refuse("rename", source)
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.refuse("remove", name)
    }

    fn sync_directory(&self) -> Result<()> {
        Ok(())
    }

    fn list(&self) -> Result<Vec<String>> {
        self.0.list()
    }

    /// Takes the shared lock, as [`lock_to_read`](Device::lock_to_read): a read-only device needs
    /// no exclusive one.
    fn lock(&self) -> Result<Box<dyn Send + Sync>> {
        self.0.lock_to_read()
    }

    fn lock_to_read(&self) -> Result<Box<dyn Send + Sync>> {
        self.0.lock_to_read()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{BLOCK_BYTES, IoBuffer, open_device, run_blocking};
    use super::*;

    #[test]
    fn files_are_read_and_nothing_is_changed() {
        let place = tempfile::tempdir().unwrap();
        let device = open_device(place.path(), &IoOptions::default()).unwrap();
        let file = device.create("a").unwrap();
        let mut block = IoBuffer::zeroed(BLOCK_BYTES);
        block.as_mut_slice().fill(7);
        run_blocking(&*device, &file, Operation::Write { offset: 0 }, block).1.unwrap();
        drop((file, device));
        let device = open_device_to_read(place.path(), &IoOptions::default()).unwrap();
        let file = device.open("a").unwrap();
        let read = Operation::Read { offset: 0 };
        let (block, done) = run_blocking(&*device, &file, read, IoBuffer::zeroed(BLOCK_BYTES));
        done.unwrap();
        assert!(block.as_slice().iter().all(|&byte| byte == 7));
        let refused = [
            run_blocking(&*device, &file, Operation::Write { offset: 0 }, block).1,
            run_blocking(&*device, &file, Operation::Sync, IoBuffer::empty()).1,
            device.create("b").map(drop),
            device.rename("a", "b"),
            device.remove("a"),
        ];
        for refused in refused {
            assert_eq!(refused.unwrap_err().kind(), ErrorKind::Unsupported);
        }
        assert_eq!(device.list().unwrap(), ["a"]);
    }
}
