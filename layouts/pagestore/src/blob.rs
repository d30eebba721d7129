//! Checkpoint files: checksummed byte strings, appended while a checkpoint is taken.
//!
//! One file per checkpoint holds the sets of live records of all segments. The writer keeps one
//! chunk in memory; a reader reads one blob at a time.

use serde::{Deserialize, Serialize};
use std::sync::Arc;

use crate::io::{BLOCK_BYTES, Device, FileHandle, IoBuffer, Operation, run_blocking};
use crate::{Error, ErrorKind, Result};

/// Where a blob is in its checkpoint file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlobRef {
    /// First byte; a multiple of the block size.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// CRC-32C of the bytes, seeded with the offset.
    pub crc: u32,
}

/// Writes the blobs of one checkpoint.
#[derive(Debug)]
pub struct BlobWriter {
    device: Arc<dyn Device>,
    file: FileHandle,
    end: u64,
    chunk: IoBuffer,
}

impl BlobWriter {
    /// Creates the file `name`, with `chunk_bytes` of memory.
    pub fn create(device: Arc<dyn Device>, name: &str, chunk_bytes: usize) -> Result<Self> {
        let file = device.create(name)?;
        Ok(Self { device, file, end: 0, chunk: IoBuffer::zeroed(chunk_bytes.max(BLOCK_BYTES)) })
    }

    /// Appends one blob.
    pub fn append(&mut self, bytes: &[u8]) -> Result<BlobRef> {
        let blob = BlobRef { offset: self.end, len: bytes.len() as u64, crc: crc(self.end, bytes) };
        for part in bytes.chunks(self.chunk.capacity()) {
            self.chunk.set_len(part.len().next_multiple_of(BLOCK_BYTES));
            let memory = self.chunk.as_mut_slice();
            memory[..part.len()].copy_from_slice(part);
            memory[part.len()..].fill(0);
            let length = memory.len() as u64;
            let chunk = std::mem::replace(&mut self.chunk, IoBuffer::empty());
            let operation = Operation::Write { offset: self.end };
            let (chunk, done) = run_blocking(&*self.device, &self.file, operation, chunk);
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

    /// Makes all blobs durable.
    pub fn finish(self) -> Result<()> {
        run_blocking(&*self.device, &self.file, Operation::Sync, IoBuffer::empty()).1
    }
}

/// Reads the blobs of one checkpoint.
#[derive(Clone, Debug)]
pub struct BlobReader {
    device: Arc<dyn Device>,
    file: FileHandle,
}

impl BlobReader {
    /// Opens the file `name`.
    pub fn open(device: Arc<dyn Device>, name: &str) -> Result<Self> {
        let file = device.open(name)?;
        Ok(Self { device, file })
    }

    /// Reads and verifies one blob. Takes memory for it.
    pub fn read(&self, blob: &BlobRef) -> Result<Vec<u8>> {
        let corrupt = |what: &str| {
            Error::new(ErrorKind::Corrupt, what)
                .with("file", self.file.name())
                .with("offset", blob.offset)
        };
        let block = BLOCK_BYTES as u64;
        let end = blob
            .offset
            .checked_add(blob.len)
            .and_then(|end| end.checked_next_multiple_of(block))
            .filter(|_| blob.offset.is_multiple_of(block));
        if end.is_none_or(|end| end > self.device.len(&self.file).unwrap_or(0)) {
            return Err(corrupt("a checkpoint file is cut short"));
        }
        let buffer = IoBuffer::zeroed(blob.len as usize);
        let operation = Operation::Read { offset: blob.offset };
        let (buffer, done) = run_blocking(&*self.device, &self.file, operation, buffer);
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
