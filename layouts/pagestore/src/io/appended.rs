//! A file that is written from front to back and made durable as a whole.
//!
//! After a sync that failed, a file is *doubtful*: the operating system may take what it has not
//! stored for stored, and a later sync that succeeds does not cover it. Before the next sync, a
//! doubtful file is written once more. The bytes come from the device, which still has to read them
//! as they were written: a checksum of all that was written says so.
//!
//! What it keeps true: a sync that succeeds covers all that counts of the file.

use super::{BLOCK_BYTES, Device, FileHandle, IoBuffer, Operation, run_blocking};
use crate::{Error, ErrorKind, Result};

/// A file that is written from front to back, in whole blocks.
#[derive(Debug)]
pub struct Appended {
    file: FileHandle,
    end: u64,
    /// CRC-32C of all bytes before the end.
    crc: u32,
    doubtful: bool,
}

impl Appended {
    /// A file of which nothing is written yet.
    pub fn new(file: FileHandle) -> Self {
        Self { file, end: 0, crc: 0, doubtful: false }
    }

    /// Returns the file.
    pub fn file(&self) -> &FileHandle {
        &self.file
    }

    /// Where what counts of the file ends.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// CRC-32C of what counts of the file.
    pub fn crc(&self) -> u32 {
        self.crc
    }

    /// Counts what was written from the old end to this one; `crc` is of all bytes before it.
    pub fn extend_to(&mut self, end: u64, crc: u32) {
        debug_assert!(end >= self.end && end.is_multiple_of(BLOCK_BYTES as u64));
        (self.end, self.crc) = (end, crc);
    }

    /// Makes the file durable, but for its name. `chunk` is memory to write with, if the file is
    /// doubtful.
    ///
    /// # Errors
    /// Those of the device: then the file is doubtful, and the next call writes it again.
    pub fn sync(&mut self, device: &dyn Device, chunk: &mut IoBuffer) -> Result<()> {
        self.write_doubtful(device, chunk)?;
        let synced = run_blocking(device, &self.file, Operation::Sync, IoBuffer::empty()).1;
        self.doubtful = synced.is_err();
        synced
    }

    /// Writes the file once more if it is doubtful. [`sync`](Appended::sync) does so by itself:
    /// this is for whoever writes something behind the end first.
    ///
    /// # Errors
    /// Those of the device; [`ErrorKind::Io`] if it has lost what was written, each time.
    pub(crate) fn write_doubtful(
        &mut self,
        device: &dyn Device,
        chunk: &mut IoBuffer,
    ) -> Result<()> {
        if !self.doubtful {
            return Ok(());
        }
        let (mut offset, mut crc) = (0, 0);
        while offset < self.end {
            let length = (self.end - offset).min(chunk.capacity() as u64) as usize;
            move_chunk(device, &self.file, Operation::Read { offset }, chunk, length)?;
            crc = crc32c::crc32c_append(crc, chunk.as_slice());
            // At once: a buffered file may forget what was read of it, as it counts as stored.
            move_chunk(device, &self.file, Operation::Write { offset }, chunk, length)?;
            offset += length as u64;
        }
        if crc != self.crc {
            let message = "a sync failed: the device lost earlier writes";
            return Err(Error::new(ErrorKind::Io, message).with("file", self.file.name()));
        }
        self.doubtful = false;
        Ok(())
    }
}

/// Reads or writes the first `length` bytes of `chunk`, and waits for it. A chunk that is lost with
/// its request is replaced by another.
pub(crate) fn move_chunk(
    device: &dyn Device,
    file: &FileHandle,
    operation: Operation,
    chunk: &mut IoBuffer,
    length: usize,
) -> Result<()> {
    let capacity = chunk.capacity();
    let mut moved = std::mem::replace(chunk, IoBuffer::empty());
    moved.set_len(length);
    let (moved, done) = run_blocking(device, file, operation, moved);
    *chunk = if moved.capacity() == 0 { IoBuffer::zeroed(capacity) } else { moved };
    done
}

#[cfg(test)]
mod tests {
    use super::super::{CrashPolicy, Fault, Faults, Simulated};
    use super::*;

    /// A file of three chunks whose first sync fails, and its bytes.
    fn doubtful(device: &Simulated) -> (Appended, Vec<u8>) {
        let mut file = Appended::new(device.create("f").unwrap());
        device.sync_directory().unwrap();
        let mut bytes = Vec::new();
        for part in 1..=3 {
            let mut chunk = IoBuffer::zeroed(2 * BLOCK_BYTES);
            chunk.as_mut_slice().fill(part);
            bytes.extend_from_slice(chunk.as_slice());
            let crc = crc32c::crc32c_append(file.crc(), chunk.as_slice());
            let operation = Operation::Write { offset: file.end() };
            run_blocking(device, file.file(), operation, chunk).1.unwrap();
            file.extend_to(file.end() + 2 * BLOCK_BYTES as u64, crc);
        }
        device.on_nth_sync(1, Fault::Error);
        let mut chunk = IoBuffer::zeroed(BLOCK_BYTES);
        file.sync(device, &mut chunk).unwrap_err();
        (file, bytes)
    }

    #[test]
    fn a_sync_after_one_that_failed_writes_everything_again() {
        let device = Simulated::new(1, Faults::none());
        let (mut file, bytes) = doubtful(&device);
        let mut chunk = IoBuffer::zeroed(BLOCK_BYTES);
        // What is written again may fail in turn.
        for fault in ["write", "sync"] {
            match fault {
                "write" => device.on_nth_write(4, Fault::Error),
                _ => device.on_nth_sync(1, Fault::Error),
            }
            file.sync(&device, &mut chunk).unwrap_err();
        }
        file.sync(&device, &mut chunk).unwrap();
        assert_eq!(device.crash(CrashPolicy::Nothing).bytes("f"), Some(bytes));
        let writes = device.stats().writes;
        file.sync(&device, &mut chunk).unwrap();
        assert_eq!(device.stats().writes, writes, "it is not doubtful any more");
    }

    #[test]
    fn what_cannot_be_read_back_is_never_called_durable() {
        let device = Simulated::new(1, Faults::none());
        let (mut file, _) = doubtful(&device);
        device.corrupt("f", 5000, 3).unwrap();
        let mut chunk = IoBuffer::zeroed(BLOCK_BYTES);
        for _ in 0..2 {
            let error = file.sync(&device, &mut chunk).unwrap_err();
            assert_eq!((error.kind(), error.context("file")), (ErrorKind::Io, Some("f")));
        }
    }
}
