//! Block-aligned memory for I/O.
//!
//! The one `unsafe` here views a boxed slice of aligned blocks as bytes. It pays: direct I/O
//! refuses unaligned memory, and copying every page costs a memory pass.

use std::fmt;

/// Alignment and granularity of I/O: offsets, lengths and addresses are multiples of this.
pub const BLOCK_BYTES: usize = 4096;

#[derive(Clone, Copy)]
#[repr(C, align(4096))]
struct AlignedBlock([u8; BLOCK_BYTES]);

/// Owned memory, aligned to [`BLOCK_BYTES`]. Its length is in whole blocks, up to its capacity.
/// Zeroed once, when it is created.
pub struct IoBuffer {
    blocks: Box<[AlignedBlock]>,
    len: usize,
}

impl IoBuffer {
    /// Creates a buffer without memory.
    pub fn empty() -> Self {
        Self { blocks: Box::new([]), len: 0 }
    }

    /// Creates a zeroed buffer of `bytes`, rounded up to whole blocks. Cost: one allocation.
    pub fn zeroed(bytes: usize) -> Self {
        let blocks =
            vec![AlignedBlock([0; BLOCK_BYTES]); bytes.div_ceil(BLOCK_BYTES)].into_boxed_slice();
        Self { len: blocks.len() * BLOCK_BYTES, blocks }
    }

    /// Returns the capacity in bytes.
    pub fn capacity(&self) -> usize {
        self.blocks.len() * BLOCK_BYTES
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Sets the length in bytes.
    ///
    /// # Panics
    /// If `len` is above the capacity.
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= self.capacity(), "length {len} above capacity {}", self.capacity());
        self.len = len;
    }

    /// Returns the bytes up to the length.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the blocks are `capacity()` initialised, contiguous bytes and `len` is within.
        unsafe { std::slice::from_raw_parts(self.blocks.as_ptr().cast(), self.len) }
    }

    /// Returns the bytes up to the length, writable.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_slice`; `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.blocks.as_mut_ptr().cast(), self.len) }
    }
}

impl fmt::Debug for IoBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IoBuffer({} of {} bytes)", self.len, self.capacity())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_and_writable() {
        let mut buffer = IoBuffer::zeroed(5000);
        assert_eq!(buffer.len(), 2 * BLOCK_BYTES);
        assert_eq!(buffer.as_slice().as_ptr() as usize % BLOCK_BYTES, 0);
        buffer.set_len(BLOCK_BYTES);
        buffer.as_mut_slice()[4095] = 7;
        assert_eq!(buffer.as_slice()[4095], 7);
        assert!(IoBuffer::empty().as_slice().is_empty());
    }
}
