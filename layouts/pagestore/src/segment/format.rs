//! The bytes of a segment file. `docs/format.md` draws them.
//!
//! A segment is one block of header, page images, a directory of the images, and a tail. An image
//! is records, a footer with one entry per record, and a trailer, padded to whole blocks. Short
//! records of equal length need no footer: their headers are at known offsets and contain the same
//! facts. Every structure has a checksum seeded with the segment's id and its offset: bytes of
//! another place or file never verify.

use std::ops::Range;

use crate::io::{BLOCK_BYTES, FileHandle};
use crate::{Error, ErrorKind, FileKind, FileName, Result};

/// Version of a store's files: the oldest that this build reads.
pub const FORMAT_VERSION: u32 = 2;
/// Version of segments. Those of [`FORMAT_VERSION`] are read as well: each of their images has a
/// footer.
pub const SEGMENT_FORMAT_VERSION: u32 = 3;
/// Unit of record offsets, and alignment of records.
pub const GRAIN_BYTES: u64 = 16;
/// Largest segment: record offsets in units of [`GRAIN_BYTES`] take 21 bits.
pub const SEGMENT_BYTES_MAX: u64 = GRAIN_BYTES << 21;
/// Longest payload of a record in any segment. It limits a state's values.
pub const RECORD_BYTES_MAX: u64 = 31 << 20;
/// Room that a segment keeps behind its last record for footer, directory and tail, beside the
/// footer's entries.
pub const CLOSING_BYTES: u64 = 512 << 10;
/// Records up to this size, with their header, never straddle a block: one block read suffices.
pub const UNSPLIT_BYTES: u64 = 1024;
/// Bytes of the header before each record's payload.
pub const RECORD_HEADER_BYTES: usize = 16;
/// Bytes per record in an image's footer.
pub const FOOTER_ENTRY_BYTES: usize = 16;
/// Records that have no footer begin so far from each other: no more than two footer entries take.
pub const BARE_RECORD_BYTES: usize = 32;
/// Bytes of an image's trailer, of a directory entry and of the tail.
pub const TRAILER_BYTES: usize = 64;

/// The number of the schema that the records of a segment have among those of its state: that of
/// the checkpoint that names it. No other one is written or read yet.
const SCHEMA_OF_CHECKPOINT: u32 = 0;
/// The number of the codec that the images of a segment are written with: none, bytes are as they
/// are. No other one is written or read yet.
const CODEC_NONE: u32 = 0;

const HEADER_MAGIC: &[u8; 8] = b"ALVSEG\0H";
const IMAGE_MAGIC: &[u8; 8] = b"ALVSEG\0I";
const TAIL_MAGIC: &[u8; 8] = b"ALVSEG\0T";

/// Identifies a segment within a directory. Never reused.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    serde::Serialize,
    serde::Deserialize
)]
pub struct SegmentId(pub u64);

impl SegmentId {
    /// Returns the name of the segment's file.
    pub fn file_name(self) -> String {
        self.name().to_string()
    }

    /// Returns the segment with this file name.
    pub fn of_file(name: &str) -> Option<SegmentId> {
        FileKind::Segment.number_in(name).map(SegmentId)
    }

    /// Returns the name of the segment's file, as it is kept.
    pub fn name(self) -> FileName {
        FileName::numbered(FileKind::Segment, self.0)
    }
}

/// A footer's entry for one record of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FooterEntry {
    /// The key's hash.
    pub hash: u64,
    /// Offset in the segment, in units of [`GRAIN_BYTES`].
    pub grain: u32,
    /// Bytes of the payload.
    pub len: u32,
}

impl FooterEntry {
    /// Returns the byte offset of the record's header in the segment.
    pub fn offset(&self) -> u64 {
        u64::from(self.grain) * GRAIN_BYTES
    }

    /// Appends the entry to a footer.
    pub fn write_to(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.hash.to_le_bytes());
        out.extend_from_slice(&self.grain.to_le_bytes());
        out.extend_from_slice(&self.len.to_le_bytes());
    }

    /// What a header says of a record with a payload of `len` bytes, which begins at `offset`.
    pub(super) fn of_header(header: &[u8], offset: u64, len: u32) -> FooterEntry {
        FooterEntry { hash: u64_at(header, 8), grain: (offset / GRAIN_BYTES) as u32, len }
    }

    /// Reads the entry at the start of `bytes`.
    pub fn read_from(bytes: &[u8]) -> FooterEntry {
        FooterEntry { hash: u64_at(bytes, 0), grain: u32_at(bytes, 8), len: u32_at(bytes, 12) }
    }
}

/// Checksum of `bytes` that belong at `offset` of segment `id`.
pub fn checksum(id: SegmentId, offset: u64, bytes: &[u8]) -> u32 {
    let mut place = [0; 16];
    place[..8].copy_from_slice(&id.0.to_le_bytes());
    place[8..].copy_from_slice(&offset.to_le_bytes());
    crc32c::crc32c_append(crc32c::crc32c(&place), bytes)
}

/// The header of a record whose payload is these parts, one behind the other.
///
/// # Panics
/// If the payload is longer than a segment: the writer refuses it before.
pub fn record_header(id: SegmentId, offset: u64, hash: u64, payload: &[&[u8]]) -> [u8; 16] {
    let mut header = [0; RECORD_HEADER_BYTES];
    let length: usize = payload.iter().map(|part| part.len()).sum();
    assert!(length as u64 <= SEGMENT_BYTES_MAX, "a record of {length} bytes fits no segment");
    header[4..8].copy_from_slice(&(length as u32).to_le_bytes());
    header[8..].copy_from_slice(&hash.to_le_bytes());
    let crc = checksum(id, offset, &header[4..]);
    let crc = payload.iter().fold(crc, |crc, part| crc32c::crc32c_append(crc, part));
    header[..4].copy_from_slice(&crc.to_le_bytes());
    header
}

/// A verified record.
#[derive(Clone, Copy, Debug)]
pub struct RecordBytes<'a> {
    /// The key's hash.
    pub hash: u64,
    /// The archive of key and value.
    pub payload: &'a [u8],
}

/// The result of [`verify_record`].
#[derive(Debug)]
pub enum VerifiedRecord<'a> {
    /// The record.
    Record(RecordBytes<'a>),
    /// The record is longer than the given bytes: this many are needed from its offset on.
    Longer(usize),
}

/// Verifies the record at the start of `bytes`, which come from `offset` of `file`.
pub fn verify_record<'a>(
    file: &FileHandle,
    id: SegmentId,
    offset: u64,
    bytes: &'a [u8],
) -> Result<VerifiedRecord<'a>> {
    if bytes.len() < RECORD_HEADER_BYTES {
        return Ok(VerifiedRecord::Longer(RECORD_HEADER_BYTES));
    }
    let total = RECORD_HEADER_BYTES + u32_at(bytes, 4) as usize;
    if offset + total as u64 > SEGMENT_BYTES_MAX {
        return Err(damaged(file, offset, "a record's length runs past its segment"));
    }
    if bytes.len() < total {
        return Ok(VerifiedRecord::Longer(total));
    }
    let (found, expected) = (u32_at(bytes, 0), checksum(id, offset, &bytes[4..total]));
    if found != expected {
        let what = format!("a record's checksum is {found:#x}, its bytes give {expected:#x}");
        return Err(damaged(file, offset, &what));
    }
    Ok(VerifiedRecord::Record(RecordBytes {
        hash: u64_at(bytes, 8),
        payload: &bytes[RECORD_HEADER_BYTES..total],
    }))
}

/// The position and contents of one image: an entry of the segment's directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageInfo {
    /// First byte; a multiple of the block size.
    pub offset: u64,
    /// Length in bytes; whole blocks.
    pub bytes: u64,
    /// Records in the image.
    pub records: u32,
    /// Offset of the footer from the segment's start.
    pub footer_offset: u64,
    /// Checksum of the footer, or of all records' headers if there is none.
    pub footer_crc: u32,
    /// Bytes of each payload if the image is bare and has no footer, else 0.
    pub bare_len: u32,
}

/// Whether records of which each payload has so many bytes need no footer.
pub(super) fn is_bare(len: u32) -> bool {
    (1..=(BARE_RECORD_BYTES - RECORD_HEADER_BYTES) as u32).contains(&len)
}

impl ImageInfo {
    /// Returns the bytes of the footer.
    pub fn footer_bytes(&self) -> u64 {
        match self.bare_len {
            0 => u64::from(self.records) * FOOTER_ENTRY_BYTES as u64,
            _ => 0,
        }
    }

    /// Where it stands what records there are: in the footer, or with the records themselves.
    pub(super) fn told(&self) -> Range<u64> {
        match self.bare_len {
            0 => self.footer_offset..self.footer_offset.saturating_add(self.footer_bytes()),
            _ => self.offset..self.footer_offset,
        }
    }

    /// Whether records without a footer are where they should be.
    fn is_sound(&self) -> bool {
        let bytes = u64::from(self.records) * BARE_RECORD_BYTES as u64;
        let ends = self.offset.checked_add(bytes) == Some(self.footer_offset);
        self.bare_len == 0 || is_bare(self.bare_len) && ends
    }

    /// Returns the 64-byte form, which is both an image's trailer and a directory entry.
    pub fn to_bytes(self, id: SegmentId) -> [u8; TRAILER_BYTES] {
        let mut out = [0; TRAILER_BYTES];
        out[..8].copy_from_slice(IMAGE_MAGIC);
        out[8..16].copy_from_slice(&self.offset.to_le_bytes());
        out[16..24].copy_from_slice(&self.bytes.to_le_bytes());
        out[24..32].copy_from_slice(&self.footer_offset.to_le_bytes());
        out[32..36].copy_from_slice(&self.records.to_le_bytes());
        out[36..40].copy_from_slice(&self.footer_crc.to_le_bytes());
        out[40..44].copy_from_slice(&self.bare_len.to_le_bytes());
        let crc = checksum(id, self.offset, &out[..60]);
        out[60..].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Reads and verifies the form of [`to_bytes`](ImageInfo::to_bytes).
    pub fn from_bytes(file: &FileHandle, id: SegmentId, bytes: &[u8]) -> Result<ImageInfo> {
        let info = ImageInfo {
            offset: u64_at(bytes, 8),
            bytes: u64_at(bytes, 16),
            footer_offset: u64_at(bytes, 24),
            records: u32_at(bytes, 32),
            footer_crc: u32_at(bytes, 36),
            bare_len: u32_at(bytes, 40),
        };
        let sound = &bytes[..8] == IMAGE_MAGIC
            && u32_at(bytes, 60) == checksum(id, info.offset, &bytes[..60])
            && info.is_sound();
        if !sound {
            return Err(damaged(file, info.offset, "an image's directory entry is damaged"));
        }
        Ok(info)
    }
}

/// The segment's first block.
pub fn segment_header(id: SegmentId, state: u64) -> [u8; TRAILER_BYTES] {
    let mut out = [0; TRAILER_BYTES];
    out[..8].copy_from_slice(HEADER_MAGIC);
    out[8..12].copy_from_slice(&SEGMENT_FORMAT_VERSION.to_le_bytes());
    out[12..16].copy_from_slice(&crate::HASH_VERSION.to_le_bytes());
    out[16..24].copy_from_slice(&id.0.to_le_bytes());
    out[24..32].copy_from_slice(&state.to_le_bytes());
    out[32..36].copy_from_slice(&SCHEMA_OF_CHECKPOINT.to_le_bytes());
    out[36..40].copy_from_slice(&CODEC_NONE.to_le_bytes());
    let crc = checksum(id, 0, &out[..60]);
    out[60..].copy_from_slice(&crc.to_le_bytes());
    out
}

/// Verifies a segment's first block.
pub fn verify_header(file: &FileHandle, id: SegmentId, state: u64, bytes: &[u8]) -> Result<()> {
    if &bytes[..8] != HEADER_MAGIC {
        return Err(damaged(file, 0, "this is not a segment of Alluvium"));
    }
    let version = u32_at(bytes, 8);
    if !(FORMAT_VERSION..=SEGMENT_FORMAT_VERSION).contains(&version) {
        let what = format!(
            "segment format {version}; this build reads formats {FORMAT_VERSION} to \
             {SEGMENT_FORMAT_VERSION}"
        );
        return Err(Error::new(ErrorKind::FormatVersion, what).with("file", file.name()));
    }
    if u32_at(bytes, 60) != checksum(id, 0, &bytes[..60]) || u64_at(bytes, 16) != id.0 {
        return Err(damaged(file, 0, "the segment's header is damaged or another segment's"));
    }
    let hash_version = u32_at(bytes, 12);
    if hash_version != crate::HASH_VERSION {
        let what =
            format!("key hash version {hash_version}; this build has {}", crate::HASH_VERSION);
        return Err(Error::new(ErrorKind::FormatVersion, what).with("file", file.name()));
    }
    if u64_at(bytes, 24) != state {
        return Err(damaged(file, 24, "the segment belongs to another state"));
    }
    let numbers = [("schema", 32, SCHEMA_OF_CHECKPOINT), ("codec", 36, CODEC_NONE)];
    for (what, at, known) in numbers {
        let number = u32_at(bytes, at);
        if number != known {
            let what = format!("records of {what} {number}; this build reads {what} {known}");
            return Err(Error::new(ErrorKind::FormatVersion, what).with("file", file.name()));
        }
    }
    Ok(())
}

/// The end of a sealed segment: where its directory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentTail {
    /// First byte of the directory; a multiple of the block size.
    pub directory_offset: u64,
    /// Images in the segment.
    pub images: u32,
    /// Records in all images.
    pub records: u64,
    /// A checksum over those of all records: of two segments with one id, as copies of a directory
    /// may have, it tells which is which. 0 in segments of before.
    pub digest: u32,
}

impl SegmentTail {
    /// The segment's last 64 bytes.
    pub fn to_bytes(self, id: SegmentId) -> [u8; TRAILER_BYTES] {
        let mut out = [0; TRAILER_BYTES];
        out[..8].copy_from_slice(TAIL_MAGIC);
        out[8..16].copy_from_slice(&self.directory_offset.to_le_bytes());
        out[16..24].copy_from_slice(&self.records.to_le_bytes());
        out[24..28].copy_from_slice(&self.images.to_le_bytes());
        out[28..32].copy_from_slice(&self.digest.to_le_bytes());
        let crc = checksum(id, self.directory_offset, &out[..60]);
        out[60..].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Reads and verifies the last 64 bytes of a segment of `file_bytes`.
    pub fn from_bytes(
        file: &FileHandle,
        id: SegmentId,
        file_bytes: u64,
        bytes: &[u8],
    ) -> Result<SegmentTail> {
        let tail = SegmentTail {
            directory_offset: u64_at(bytes, 8),
            records: u64_at(bytes, 16),
            images: u32_at(bytes, 24),
            digest: u32_at(bytes, 28),
        };
        let directory_bytes = u64::from(tail.images) * TRAILER_BYTES as u64;
        let end = tail.directory_offset.checked_add(directory_bytes);
        let fits = tail.directory_offset.is_multiple_of(BLOCK_BYTES as u64)
            && end.is_some_and(|end| end <= file_bytes);
        let crc = checksum(id, tail.directory_offset, &bytes[..60]);
        if &bytes[..8] != TAIL_MAGIC || u32_at(bytes, 60) != crc || !fits {
            let what = "the segment's tail is damaged or the file is cut short";
            return Err(damaged(file, file_bytes.saturating_sub(TRAILER_BYTES as u64), what));
        }
        Ok(tail)
    }
}

/// Makes the error for bytes at `offset` of `file` that differ from what was written.
pub fn damaged(file: &FileHandle, offset: u64, what: &str) -> Error {
    Error::new(ErrorKind::Corrupt, what).with("file", file.name()).with("offset", offset)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}
