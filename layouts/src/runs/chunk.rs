//! A chunk: the unit of reading and of checksums. One block of several records, or more blocks of one long record.
//!
//! ```text
//! 0   checksum u32   of all that follows, to the end of the last block
//! 4   blocks u32
//! 8   records u32
//! 12  used u32       bytes, with this header
//! 16  records: hash u64 | length u32 | mark u32 | order, padded to 16 | payload, padded to 16
//! ```

use alluvium_pagestore::io::BLOCK_BYTES;
use alluvium_pagestore::{RECORD_BYTES_MAX, Result};

use super::{checksum, damaged, put_u32, put_u64, u32_at, u64_at};

/// A record, as it is pushed and as it is shown. Payloads are aligned to 16 bytes where a run shows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordView<'a> {
    /// The hash of its key.
    pub hash: u64,
    /// What its user says of it, such as that it is a tombstone.
    pub mark: u32,
    /// What stands after the hash in the order of a run, compared as bytes.
    pub order: &'a [u8],
    /// Its bytes.
    pub payload: &'a [u8],
}

pub(super) const HEADER_BYTES: usize = 16;
pub(super) const ALIGNMENT: usize = 16;

/// Bytes that a record takes in a chunk.
pub(super) fn record_bytes(order: usize, payload: usize) -> usize {
    16 + order.next_multiple_of(ALIGNMENT) + payload.next_multiple_of(ALIGNMENT)
}

/// Writes a record at the beginning of `to`, zeros between its parts included.
pub(super) fn write_record(record: &RecordView<'_>, to: &mut [u8]) {
    put_u64(to, 0, record.hash);
    put_u32(to, 8, record.payload.len() as u32);
    put_u32(to, 12, record.mark);
    let payload_at = 16 + record.order.len().next_multiple_of(ALIGNMENT);
    put_padded(&mut to[16..payload_at], record.order);
    let end = payload_at + record.payload.len().next_multiple_of(ALIGNMENT);
    put_padded(&mut to[payload_at..end], record.payload);
}

fn put_padded(to: &mut [u8], bytes: &[u8]) {
    to[..bytes.len()].copy_from_slice(bytes);
    to[bytes.len()..].fill(0);
}

/// Ends a chunk of whole blocks at an offset of a run, of which `used` bytes are its header and records.
pub(super) fn finish(
    (run, offset): (u64, u64),
    records: u32,
    used: usize,
    chunk: &mut [u8],
) -> u32 {
    chunk[used..].fill(0);
    let blocks = (chunk.len() / BLOCK_BYTES) as u32;
    put_u32(chunk, 4, blocks);
    put_u32(chunk, 8, records);
    put_u32(chunk, 12, used as u32);
    let crc = checksum(run, offset, &chunk[4..]);
    put_u32(chunk, 0, crc);
    crc
}

/// Bytes that the chunk which begins with this block says that it has.
pub(super) fn told_bytes((run, offset): (u64, u64), block: &[u8]) -> Result<usize> {
    let blocks = u32_at(block, 4) as usize;
    match blocks > 0 && blocks <= (RECORD_BYTES_MAX as usize).div_ceil(BLOCK_BYTES) + 1 {
        true => Ok(blocks * BLOCK_BYTES),
        false => Err(damaged(run, offset, "a chunk of a run is damaged")),
    }
}

/// A chunk that was verified.
#[derive(Clone, Copy, Debug)]
pub(super) struct VerifiedChunk {
    pub crc: u32,
    pub records: u32,
    used: usize,
}

impl VerifiedChunk {
    /// Verifies the chunk at an offset of a run.
    pub fn verified((run, offset): (u64, u64), bytes: &[u8]) -> Result<Self> {
        let crc = u32_at(bytes, 0);
        let used = u32_at(bytes, 12) as usize;
        let is_whole = u32_at(bytes, 4) as usize * BLOCK_BYTES == bytes.len()
            && (HEADER_BYTES..=bytes.len()).contains(&used)
            && checksum(run, offset, &bytes[4..]) == crc;
        match is_whole {
            true => Ok(Self { crc, records: u32_at(bytes, 8), used }),
            false => Err(damaged(run, offset, "a chunk of a run is damaged")),
        }
    }

    /// The record at a place of the verified bytes, and the place after it. None at the end.
    pub fn record_at<'a>(
        &self,
        bytes: &'a [u8],
        at: usize,
        order_bytes: usize,
    ) -> Option<(RecordView<'a>, usize)> {
        let header = bytes[..self.used].get(at..at + 16)?;
        let payload_at = at + 16 + order_bytes.next_multiple_of(ALIGNMENT);
        let payload_end = payload_at.checked_add(u32_at(header, 8) as usize)?;
        let order = bytes[..self.used].get(at + 16..at + 16 + order_bytes)?;
        let payload = bytes[..self.used].get(payload_at..payload_end)?;
        let (hash, mark) = (u64_at(header, 0), u32_at(header, 12));
        let record = RecordView { hash, mark, order, payload };
        Some((record, payload_end.next_multiple_of(ALIGNMENT)))
    }

    /// The records of the verified bytes, in order.
    pub fn records<'a>(
        &self,
        bytes: &'a [u8],
        order_bytes: usize,
    ) -> impl Iterator<Item = RecordView<'a>> {
        let (chunk, mut at) = (*self, HEADER_BYTES);
        std::iter::from_fn(move || {
            let (record, next) = chunk.record_at(bytes, at, order_bytes)?;
            at = next;
            Some(record)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_shows_what_was_put_in_and_each_bit_is_verified() {
        let payloads: [&[u8]; 3] = [b"", b"sixteen bytes ..", b"more than sixteen bytes"];
        let orders: [&[u8]; 3] = [&[1; 8], &[2; 8], &[3; 8]];
        let records = || {
            (0..3).map(|nth| RecordView {
                hash: nth as u64,
                mark: 7 - nth as u32,
                order: orders[nth],
                payload: payloads[nth],
            })
        };
        let mut chunk = vec![0xee; BLOCK_BYTES];
        let mut at = HEADER_BYTES;
        for record in records() {
            write_record(&record, &mut chunk[at..]);
            at += record_bytes(8, record.payload.len());
        }
        finish((3, 4096), 3, at, &mut chunk);
        let read = VerifiedChunk::verified((3, 4096), &chunk).unwrap();
        assert!(read.records(&chunk, 8).eq(records()));
        assert_eq!(told_bytes((3, 4096), &chunk).unwrap(), BLOCK_BYTES);
        for bit in 0..chunk.len() * 8 {
            chunk[bit / 8] ^= 1 << (bit % 8);
            assert!(VerifiedChunk::verified((3, 4096), &chunk).is_err(), "{bit}");
            chunk[bit / 8] ^= 1 << (bit % 8);
        }
        assert!(VerifiedChunk::verified((4, 4096), &chunk).is_err());
        assert!(VerifiedChunk::verified((3, 8192), &chunk).is_err());
    }
}
