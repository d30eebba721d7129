//! Verifying a run from its first byte of meaning to its last, without a store.

use alluvium_pagestore::Result;
use alluvium_pagestore::SegmentStore;
use alluvium_pagestore::io::{BLOCK_BYTES, IoBuffer};

use super::chunk::{self, VerifiedChunk};
use super::damaged;
use super::directory::{Partition, RunInfo, check_header, directory_bytes};
use super::guide::Guide;
use super::run::{read_directory, read_into};

/// What a verified run has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerifiedRun {
    /// Records, each of which its guide leads to.
    pub records: u64,
    /// Chunks.
    pub chunks: u64,
}

/// Reads a whole run and verifies it: checksums, the order of its records, and that each record is found by the
/// guide that is on storage. Takes a buffer of the longest chunk, the longest guide or 256 KiB, and the longest guide
/// again. Cost: one read of the run, and 100 ns a record.
///
/// # Errors
/// [`ErrorKind::Corrupt`](alluvium_pagestore::ErrorKind::Corrupt) naming the file and the offset; those of the device.
pub fn verify(store: &SegmentStore, info: &RunInfo) -> Result<VerifiedRun> {
    let file = store.device().open(&info.id.file_name())?;
    let directory = directory_bytes(info.partitions as usize);
    let longest = (info.longest_chunk.max(info.longest_guide) as usize).max(directory);
    let mut buffer = IoBuffer::zeroed(longest.max(256 << 10));
    let partitions = read_directory(store.device(), &file, info, &mut buffer)?;
    read_into(store.device(), &file, 0, BLOCK_BYTES, &mut buffer)?;
    check_header(info.id.0, buffer.as_slice())?;
    let mut sum = VerifiedRun::default();
    let mut last = (0, Vec::new());
    for partition in partitions {
        let bytes = (partition.guide_bytes as usize).next_multiple_of(BLOCK_BYTES);
        read_into(store.device(), &file, partition.guide_offset(), bytes, &mut buffer)?;
        let place = (info.id.0, partition.guide_offset());
        let guide = buffer.as_slice().get(..partition.guide_bytes as usize);
        let guide = Guide::verified(place, guide.unwrap_or_default())?.owned();
        let mut walk =
            PartitionCheck { info, partition, guide, digest: 0, records: 0, last: &mut last };
        let mut block = 0;
        while block < partition.blocks {
            let offset = partition.offset() + u64::from(block) * BLOCK_BYTES as u64;
            let left = (partition.blocks - block) as usize * BLOCK_BYTES;
            let at_once = left.min(buffer.capacity());
            read_into(store.device(), &file, offset, at_once, &mut buffer)?;
            let (chunks, bytes) = walk.chunks(offset, block, buffer.as_slice())?;
            sum.chunks += chunks;
            block += (bytes / BLOCK_BYTES) as u32;
        }
        sum.records += walk.end()?;
    }
    match sum.records == info.records {
        true => Ok(sum),
        false => Err(damaged(info.id.0, 0, "records of a run are missing")),
    }
}

/// A partition on its way through.
struct PartitionCheck<'a> {
    info: &'a RunInfo,
    partition: Partition,
    guide: Guide,
    digest: u32,
    records: u32,
    /// The last record's hash and order.
    last: &'a mut (u64, Vec<u8>),
}

impl PartitionCheck<'_> {
    /// Verifies the whole chunks among bytes that begin at an offset, with this block of the partition. Gives how many
    /// these are, and their bytes.
    fn chunks(&mut self, offset: u64, block: u32, bytes: &[u8]) -> Result<(u64, usize)> {
        let (mut chunks, mut at) = (0, 0);
        while at < bytes.len() {
            let place = (self.info.id.0, offset + at as u64);
            let Some(chunk) = bytes.get(at..at + chunk::told_bytes(place, &bytes[at..])?) else {
                break;
            };
            self.chunk(place, block + (at / BLOCK_BYTES) as u32, chunk)?;
            chunks += 1;
            at += chunk.len();
        }
        match chunks {
            0 => Err(damaged(self.info.id.0, offset, "a chunk of a run is longer than told")),
            _ => Ok((chunks, at)),
        }
    }

    fn chunk(&mut self, place: (u64, u64), block: u32, bytes: &[u8]) -> Result<()> {
        let chunk = VerifiedChunk::verified(place, bytes)?;
        self.digest = crc32c::crc32c_append(self.digest, &chunk.crc.to_le_bytes());
        let mut count = 0;
        for record in chunk.records(bytes, self.info.order_bytes as usize) {
            count += 1;
            if !self.guide.blocks_of(record.hash).contains(&block) {
                return Err(damaged(place.0, place.1, "the guide does not lead to a record"));
            }
            if (self.last.0, self.last.1.as_slice()) > (record.hash, record.order) {
                return Err(damaged(place.0, place.1, "records of a run are not in order"));
            }
            self.last.0 = record.hash;
            self.last.1.clear();
            self.last.1.extend_from_slice(record.order);
        }
        self.records += count;
        match count == chunk.records {
            true => Ok(()),
            false => Err(damaged(place.0, place.1, "a chunk of a run is damaged")),
        }
    }

    fn end(self) -> Result<u64> {
        match (self.digest, self.records) == (self.partition.digest, self.partition.records) {
            true => Ok(u64::from(self.records)),
            false => {
                let what = "chunks of a partition are missing, or others";
                Err(damaged(self.info.id.0, self.partition.offset(), what))
            }
        }
    }
}
