//! Checkpoint files: checksummed byte strings (blobs), appended while a checkpoint runs.
//!
//! A checkpoint stores facts about single records in one file of its own, and later checkpoints
//! refer to its blobs. The writer keeps one chunk in memory; a reader reads one blob at a time.

use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::io::{Appended, BLOCK_BYTES, Device, IoBuffer, Operation, move_chunk, run_blocking};
use crate::{Error, ErrorKind, FileKind, FileName, Result};

/// Position of a blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlobRef {
    /// Number of the checkpoint that wrote it.
    pub file: u64,
    /// First byte; a multiple of the block size.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// CRC-32C of the bytes, seeded with the offset.
    pub crc: u32,
}

/// Returns the name of the file with the blobs of a checkpoint.
pub fn blobs_name(checkpoint: u64) -> String {
    FileName::numbered(FileKind::LiveRecords, checkpoint).to_string()
}

/// Writes the blobs of one checkpoint. Clones write to the same file, from helper threads too.
///
/// After [`close`](BlobWriter::close) it writes nothing more. Later jobs of the checkpoint fail,
/// and a removed file does not reappear.
#[derive(Clone, Debug)]
pub struct BlobWriter(Arc<SharedBlobWriter>);

#[derive(Debug)]
struct SharedBlobWriter {
    is_closed: AtomicBool,
    writer: Mutex<Writer>,
}

#[derive(Debug)]
struct Writer {
    device: Arc<dyn Device>,
    checkpoint: u64,
    /// Created for the first blob.
    file: Option<Appended>,
    /// Its memory is taken by whoever appends first, which is a helper: a checkpoint's barrier
    /// makes the writer.
    chunk: IoBuffer,
    chunk_bytes: usize,
}

impl BlobWriter {
    /// Creates a writer for the file of a checkpoint. It allocates `chunk_bytes` with the first
    /// blob. Cost: O(1), no I/O.
    pub fn new(device: Arc<dyn Device>, checkpoint: u64, chunk_bytes: usize) -> Self {
        let (chunk, chunk_bytes) = (IoBuffer::empty(), chunk_bytes.max(BLOCK_BYTES));
        let writer = Writer { device, checkpoint, file: None, chunk, chunk_bytes };
        let is_closed = AtomicBool::new(false);
        Self(Arc::new(SharedBlobWriter { is_closed, writer: Mutex::new(writer) }))
    }

    fn writer(&self) -> MutexGuard<'_, Writer> {
        // What a write that panicked has left is a blob that nothing refers to.
        self.0.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stops all appends, because the checkpoint is given up or complete. An append in progress
    /// stops at its next chunk. Does not wait.
    pub fn close(&self) {
        self.0.is_closed.store(true, Ordering::Release);
    }

    fn check(&self) -> Result<()> {
        match self.0.is_closed.load(Ordering::Acquire) {
            true => Err(Error::new(ErrorKind::Io, "the checkpoint was aborted; begin it again")),
            false => Ok(()),
        }
    }

    /// Appends one blob.
    pub fn append(&self, bytes: &[u8]) -> Result<BlobRef> {
        let writer = &mut *self.writer();
        // Before a file is created: who removes it has closed this first, and waits for the lock.
        self.check()?;
        let Writer { device, checkpoint, file, chunk, chunk_bytes } = writer;
        let file = match file {
            Some(file) => file,
            None => file.insert(Appended::new(device.create(&blobs_name(*checkpoint))?)),
        };
        if chunk.capacity() == 0 {
            *chunk = IoBuffer::zeroed(*chunk_bytes);
        }
        let (offset, len) = (file.end(), bytes.len() as u64);
        let blob = BlobRef { file: *checkpoint, offset, len, crc: crc(offset, bytes) };
        for part in bytes.chunks(*chunk_bytes) {
            self.check()?;
            let length = part.len().next_multiple_of(BLOCK_BYTES);
            chunk.set_len(length);
            let memory = chunk.as_mut_slice();
            memory[..part.len()].copy_from_slice(part);
            memory[part.len()..].fill(0);
            let crc = crc32c::crc32c_append(file.crc(), memory);
            let operation = Operation::Write { offset: file.end() };
            move_chunk(&**device, file.file(), operation, chunk, length)?;
            file.extend_to(file.end() + length as u64, crc);
        }
        Ok(blob)
    }

    /// Returns the bytes written so far.
    pub fn bytes(&self) -> u64 {
        self.writer().file.as_ref().map_or(0, Appended::end)
    }

    /// Makes all blobs durable, but not the file's name.
    ///
    /// # Errors
    /// Those of the device. After a failed sync the next call writes the file again.
    pub fn finish(&self) -> Result<()> {
        let Writer { device, file, chunk, .. } = &mut *self.writer();
        file.as_mut().map_or(Ok(()), |file| file.sync(&**device, chunk))
    }

    /// Removes the file of an aborted checkpoint. If that fails now, the next open removes it.
    pub fn abandon(self) {
        self.close();
        let writer = self.writer();
        if writer.file.is_some() {
            let _ = writer.device.remove(&blobs_name(writer.checkpoint));
        }
    }
}

/// Reads blobs of checkpoints.
#[derive(Clone, Debug)]
pub struct BlobReader {
    device: Arc<dyn Device>,
}

impl BlobReader {
    /// Makes a reader of the blobs on `device`.
    pub fn new(device: Arc<dyn Device>) -> Self {
        Self { device }
    }

    /// Reads and verifies one blob. Allocates memory for it.
    pub fn read(&self, blob: &BlobRef) -> Result<Vec<u8>> {
        let name = blobs_name(blob.file);
        let corrupt = |what: &str| {
            Error::new(ErrorKind::Corrupt, what).with("file", &name).with("offset", blob.offset)
        };
        let file = self.device.open(&name)?;
        let block = BLOCK_BYTES as u64;
        let end = blob
            .offset
            .checked_add(blob.len)
            .and_then(|end| end.checked_next_multiple_of(block))
            .filter(|_| blob.offset.is_multiple_of(block));
        if end.is_none_or(|end| end > self.device.len(&file).unwrap_or(0)) {
            return Err(corrupt("a checkpoint file is cut short"));
        }
        let buffer = IoBuffer::zeroed(blob.len as usize);
        let operation = Operation::Read { offset: blob.offset };
        let (buffer, done) = run_blocking(&*self.device, &file, operation, buffer);
        done?;
        let bytes = &buffer.as_slice()[..blob.len as usize];
        if crc(blob.offset, bytes) != blob.crc {
            return Err(corrupt("a checkpoint file is damaged"));
        }
        Ok(bytes.to_vec())
    }
}

fn crc(offset: u64, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&offset.to_le_bytes()), bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::{Faults, Simulated};

    #[test]
    fn who_comes_late_with_a_part_of_a_checkpoint_that_is_over_brings_no_file_back() {
        let device = Simulated::new(1, Faults::none());
        for (number, is_begun) in [(1, false), (2, true)] {
            let blobs = BlobWriter::new(Arc::new(device.clone()), number, 4096);
            let late = blobs.clone();
            if is_begun {
                late.append(&[7; 100]).unwrap();
                assert_eq!(device.list().unwrap(), [blobs_name(number)]);
            }
            blobs.abandon();
            let error = late.append(&[7; 100]).unwrap_err();
            assert!(error.to_string().contains("begin it again"), "{error}");
            assert!(device.list().unwrap().is_empty());
        }
    }
}
