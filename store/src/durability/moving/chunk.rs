//! The bytes of a piece of a key group on its way from one store to another.
//!
//! ```text
//! group u16 | last u8 | states u8 | unit u64 | run u128 | freeze u64 | attempt u32 | number u32
//! entries: state u32 | key bytes u32 | value bytes u32 | hash u64 | order i64 | key | value
//! crc32c u32 of all before
//! ```
//!
//! Little endian. Keys and values are archives as a canonical file has them. A chunk is never kept:
//! the form is that of one build, and of both stores. `docs/format.md` tells what the fields say.

use alluvium_pagestore::{Error, ErrorKind, KeyGroup, Result};
use rkyv::util::AlignedVec;

use super::groups::ExtractionId;
use crate::durability::export::CanonicalEntry;

const HEAD_BYTES: usize = 44;
const ENTRY_BYTES: usize = 28;
const END_BYTES: usize = 4;

/// What a chunk says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChunkHead {
    pub group: KeyGroup,
    /// Whether the group ends with it.
    pub last: bool,
    /// States of the unit.
    pub states: u8,
    /// Of the unit's name and its states' names and types.
    pub unit: u64,
    pub by: ExtractionId,
    /// Chunks before it.
    pub number: u32,
}

/// A chunk being written.
pub(super) struct ChunkWriter {
    bytes: Vec<u8>,
    entries: usize,
}

/// How far a chunk was written.
#[derive(Clone, Copy)]
pub(super) struct ChunkMark {
    bytes: usize,
    entries: usize,
}

impl ChunkMark {
    /// Entries before it.
    pub fn entries(self) -> usize {
        self.entries
    }
}

impl ChunkWriter {
    pub fn new(bytes: usize) -> Self {
        let mut all = Vec::with_capacity(bytes);
        all.resize(HEAD_BYTES, 0);
        Self { bytes: all, entries: 0 }
    }

    pub fn len(&self) -> usize {
        self.bytes.len() + END_BYTES
    }

    /// Bytes with one entry more.
    pub fn would_be(&self, entry: &CanonicalEntry<'_>) -> usize {
        self.len() + ENTRY_BYTES + entry.key.len() + entry.value.len()
    }

    /// Bytes of an entry, on average.
    pub fn entry_bytes(&self) -> Option<usize> {
        (self.bytes.len() - HEAD_BYTES).checked_div(self.entries)
    }

    pub fn mark(&self) -> ChunkMark {
        ChunkMark { bytes: self.bytes.len(), entries: self.entries }
    }

    /// Drops what came after the mark.
    pub fn back_to(&mut self, mark: ChunkMark) {
        self.bytes.truncate(mark.bytes);
        self.entries = mark.entries;
    }

    /// # Errors
    /// Those of [`CanonicalEntry::lengths`].
    pub fn push(&mut self, state: u32, entry: CanonicalEntry<'_>) -> Result<()> {
        let [key, value] = entry.lengths()?;
        self.bytes.reserve_exact(ENTRY_BYTES + entry.key.len() + entry.value.len() + END_BYTES);
        [state, key, value].iter().for_each(|n| self.bytes.extend(n.to_le_bytes()));
        self.bytes.extend(entry.hash.to_le_bytes());
        self.bytes.extend(entry.order.to_le_bytes());
        self.bytes.extend(entry.key);
        self.bytes.extend(entry.value);
        self.entries += 1;
        Ok(())
    }

    pub fn finish(mut self, head: &ChunkHead) -> Vec<u8> {
        let mut at = Vec::with_capacity(HEAD_BYTES);
        at.extend(head.group.0.to_le_bytes());
        at.extend([u8::from(head.last), head.states]);
        at.extend(head.unit.to_le_bytes());
        at.extend(head.by.run.to_le_bytes());
        at.extend(head.by.freeze.to_le_bytes());
        at.extend(head.by.attempt.to_le_bytes());
        at.extend(head.number.to_le_bytes());
        self.bytes[..HEAD_BYTES].copy_from_slice(&at);
        let sum = crc32c::crc32c(&self.bytes);
        self.bytes.extend(sum.to_le_bytes());
        self.bytes
    }
}

/// A chunk that came, whole.
pub(super) struct ChunkReader<'a> {
    pub head: ChunkHead,
    rest: &'a [u8],
    key: AlignedVec,
    value: AlignedVec,
}

impl<'a> ChunkReader<'a> {
    /// # Errors
    /// [`ErrorKind::Corrupt`] if the bytes are not those of a chunk.
    pub fn new(bytes: &'a [u8]) -> Result<Self> {
        let damaged = || Error::new(ErrorKind::Corrupt, "the chunk of a key group is damaged");
        let (all, sum) = bytes.split_last_chunk::<END_BYTES>().ok_or_else(damaged)?;
        if crc32c::crc32c(all) != u32::from_le_bytes(*sum) || all.len() < HEAD_BYTES {
            return Err(damaged());
        }
        let (head, rest) = all.split_at(HEAD_BYTES);
        let head = ChunkHead {
            group: KeyGroup(u16::from_le_bytes(field(head, 0))),
            last: head[2] == 1,
            states: head[3],
            unit: u64::from_le_bytes(field(head, 4)),
            by: ExtractionId {
                run: u128::from_le_bytes(field(head, 12)),
                freeze: u64::from_le_bytes(field(head, 28)),
                attempt: u32::from_le_bytes(field(head, 36)),
            },
            number: u32::from_le_bytes(field(head, 40)),
        };
        Ok(Self { head, rest, key: AlignedVec::new(), value: AlignedVec::new() })
    }

    /// The next entry, and which state it is of.
    pub fn next(&mut self) -> Result<Option<(u32, CanonicalEntry<'_>)>> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let damaged = || Error::new(ErrorKind::Corrupt, "an entry of a chunk is cut off");
        let (head, rest) = self.rest.split_at_checked(ENTRY_BYTES).ok_or_else(damaged)?;
        let length = |at| u32::from_le_bytes(field(head, at)) as usize;
        let (key, rest) = rest.split_at_checked(length(4)).ok_or_else(damaged)?;
        let (value, rest) = rest.split_at_checked(length(8)).ok_or_else(damaged)?;
        self.rest = rest;
        self.key.clear();
        self.key.extend_from_slice(key);
        self.value.clear();
        self.value.extend_from_slice(value);
        let entry = CanonicalEntry {
            hash: u64::from_le_bytes(field(head, 12)),
            order: i64::from_le_bytes(field(head, 20)),
            key: &self.key,
            value: &self.value,
        };
        Ok(Some((length(0) as u32, entry)))
    }
}

/// `N` bytes of a header that is long enough.
fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("a header of that length")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_beyond_32_bits_is_refused_and_leaves_no_trace() {
        let long = vec![0u8; (1 << 32) + 7];
        let mut writer = ChunkWriter::new(100);
        let before = writer.len();
        for (key, value) in [(&b"k"[..], &long[..]), (&long[..], &b"v"[..])] {
            let error =
                writer.push(0, CanonicalEntry { hash: 1, order: 0, key, value }).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ValueTooLarge, "{error}");
            assert_eq!(writer.len(), before);
        }
    }

    #[test]
    fn chunks_come_back_and_damage_is_told() {
        let head = ChunkHead {
            group: KeyGroup(7),
            last: true,
            states: 2,
            unit: 99,
            by: ExtractionId { run: 1 << 100 | 6, freeze: 3, attempt: 4 },
            number: 5,
        };
        let mut writer = ChunkWriter::new(100);
        let entries = [(1, 11, -5, &b"key"[..], &b"value"[..]), (0, 12, 6, b"", b"x")];
        for (state, hash, order, key, value) in entries {
            writer.push(state, CanonicalEntry { hash, order, key, value }).unwrap();
        }
        let length = writer.len();
        let bytes = writer.finish(&head);
        assert_eq!(bytes.len(), length);
        let mut reader = ChunkReader::new(&bytes).unwrap();
        assert_eq!(reader.head, head);
        for (state, hash, order, key, value) in entries {
            assert_eq!(
                reader.next().unwrap(),
                Some((state, CanonicalEntry { hash, order, key, value }))
            );
        }
        assert_eq!(reader.next().unwrap(), None);
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert!(ChunkReader::new(&damaged).is_err_and(|e| e.kind() == ErrorKind::Corrupt));
            assert!(ChunkReader::new(&bytes[..at]).is_err());
        }
    }
}
