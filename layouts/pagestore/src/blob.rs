//! Checkpoint files: checksummed byte strings, appended while a checkpoint is taken.
//!
//! A checkpoint that has something to say of single records says it in one file of its own; later
//! checkpoints refer to what is in there. The writer keeps one chunk in memory; a reader reads one
//! blob at a time.

use serde::{Deserialize, Serialize};
use std::sync::Arc;

use crate::io::{BLOCK_BYTES, Device, FileHandle, IoBuffer, Operation, run_blocking};
use crate::{Error, ErrorKind, Result};

/// Where a blob is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlobRef {
    /// Number of the checkpoint that wrote it.
    pub file: u64,
    /// First byte; a multiple of the block size.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// CRC-32C of the bytes, seeded with the offset.
    pub crc: u32,
}

/// Name of the file with the blobs of a checkpoint.
pub fn blobs_name(checkpoint: u64) -> String {
    format!("live-{checkpoint:016x}")
}

/// Writes the blobs of one checkpoint.
#[derive(Debug)]
pub struct BlobWriter {
    device: Arc<dyn Device>,
    checkpoint: u64,
    /// Created for the first blob.
    file: Option<FileHandle>,
    end: u64,
    chunk: IoBuffer,
}

impl BlobWriter {
    /// A writer for the file of a checkpoint, with `chunk_bytes` of memory.
    pub fn new(device: Arc<dyn Device>, checkpoint: u64, chunk_bytes: usize) -> Self {
        let chunk = IoBuffer::zeroed(chunk_bytes.max(BLOCK_BYTES));
        Self { device, checkpoint, file: None, end: 0, chunk }
    }

    /// Appends one blob.
    pub fn append(&mut self, bytes: &[u8]) -> Result<BlobRef> {
        let file = match &self.file {
            Some(file) => file.clone(),
            None => self.file.insert(self.device.create(&blobs_name(self.checkpoint))?).clone(),
        };
        let crc = crc(self.end, bytes);
        let (file_number, len) = (self.checkpoint, bytes.len() as u64);
        let blob = BlobRef { file: file_number, offset: self.end, len, crc };
        for part in bytes.chunks(self.chunk.capacity()) {
            self.chunk.set_len(part.len().next_multiple_of(BLOCK_BYTES));
            let memory = self.chunk.as_mut_slice();
            memory[..part.len()].copy_from_slice(part);
            memory[part.len()..].fill(0);
            let length = memory.len() as u64;
            let chunk = std::mem::replace(&mut self.chunk, IoBuffer::empty());
            let operation = Operation::Write { offset: self.end };
            let (chunk, done) = run_blocking(&*self.device, &file, operation, chunk);
            self.chunk = chunk;
            done?;
            self.end += length;
        }
        Ok(blob)
    }

    /// Bytes written so far.
    pub fn bytes(&self) -> u64 {
        self.end
    }

    /// Makes all blobs durable, but for the file's name.
    pub fn finish(&mut self) -> Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        run_blocking(&*self.device, file, Operation::Sync, IoBuffer::empty()).1
    }

    /// Removes the file: the checkpoint is given up. One that cannot be removed now is removed at
    /// the next open.
    pub fn abandon(self) {
        if self.file.is_some() {
            let _ = self.device.remove(&blobs_name(self.checkpoint));
        }
    }
}

/// Reads blobs of checkpoints.
#[derive(Clone, Debug)]
pub struct BlobReader {
    device: Arc<dyn Device>,
}

impl BlobReader {
    /// A reader of the blobs on `device`.
    pub fn new(device: Arc<dyn Device>) -> Self {
        Self { device }
    }

    /// Reads and verifies one blob. Takes memory for it.
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
