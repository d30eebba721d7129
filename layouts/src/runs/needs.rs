//! What runs of so many records take in memory, without writing any.

use alluvium_pagestore::io::BLOCK_BYTES;

use super::directory::{Partition, directory_bytes};
use super::run::SortedRun;
use super::writer::{PARTITIONS_MAX, RunSizes};
use super::{chunk, guide};

/// Memory of runs, by what it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunsMemory {
    /// Filters and fences, which are in memory as far as there is room.
    pub guides: u64,
    /// Directories, which always are.
    pub directories: u64,
}

impl RunSizes {
    /// Bytes that a level of so many records of distinct hashes takes, whose payloads have so many bytes.
    pub fn in_memory(&self, records: u64, payload_bytes: usize) -> RunsMemory {
        if records == 0 {
            return RunsMemory { guides: 0, directories: 0 };
        }
        let sizes = self.expecting(records);
        let record = chunk::record_bytes(sizes.order_bytes, payload_bytes);
        let room = BLOCK_BYTES - chunk::HEADER_BYTES;
        let a_chunk = (room / record).max(1);
        let is_long = record > room;
        // A partition ends with its key groups, and before it is too long.
        let most = sizes.partition_hashes.min(sizes.chunks_max() * a_chunk) as u64;
        let ranges = u64::from(sizes.key_groups.div_ceil(sizes.groups_each)).min(records);
        let partitions = ranges * records.div_ceil(ranges).div_ceil(most);
        let hashes = records.div_ceil(partitions) as usize;
        let guide = guide::bytes_of(hashes, hashes.div_ceil(a_chunk), (is_long, sizes.is_wide));
        let bytes = records.saturating_mul(record as u64);
        let files =
            partitions.div_ceil(PARTITIONS_MAX as u64).max(bytes.div_ceil(sizes.file_bytes));
        RunsMemory {
            guides: partitions * guide,
            directories: SortedRun::directory_bytes(partitions, files),
        }
    }

    /// Bytes that the directories of so many records take at most, which had so many bytes of files, and reading one. As
    /// many partitions are written, and another one.
    pub(super) fn directories_most(&self, records: u64, bytes: u64, written: u64) -> u64 {
        let ranges = u64::from(self.key_groups.div_ceil(self.groups_each)).min(records);
        // Records of other levels come between, so that chunks are less full.
        let chunks = (bytes + bytes / 8) / BLOCK_BYTES as u64;
        let (hashes, most) = (self.partition_hashes as u64, self.chunks_max() as u64);
        let partitions = (ranges + records / hashes + chunks / most).min(written) + 1;
        // The last block of a partition is not full, and its guide stands behind it.
        let guide = guide::bytes_most(self.partition_hashes, self.chunks_max(), self.is_wide);
        let bytes = bytes + partitions * (2 * BLOCK_BYTES + guide) as u64;
        let files = partitions / PARTITIONS_MAX as u64 + bytes / self.file_bytes + 1;
        let reading = directory_bytes(PARTITIONS_MAX) + PARTITIONS_MAX * size_of::<Partition>();
        SortedRun::directory_bytes(partitions, files) + reading as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_takes_a_filter_of_ten_bits_and_a_place_for_thousands() {
        let sizes = RunSizes::within(512 << 10, 8 << 10, 128);
        let memory = sizes.in_memory(10_000_000, 80);
        let (guides, directories) = (memory.guides as f64 / 1e7, memory.directories as f64 / 1e7);
        assert!((1.25..1.4).contains(&guides), "{guides}");
        assert!((0.003..0.02).contains(&directories), "{directories}");
        // In little memory partitions are short.
        let sizes = RunSizes::within(32 << 10, 8 << 10, 128);
        let memory = sizes.in_memory(300_000, 16);
        let directories = memory.directories as f64 / 3e5;
        assert!((0.06..0.2).contains(&directories), "{directories}");
        assert_eq!(sizes.in_memory(0, 16).guides, 0);
        let wide = RunSizes { is_wide: true, ..RunSizes::within(512 << 10, 8 << 10, 128) };
        let guides = wide.in_memory(10_000_000, 80).guides as f64 / 1e7;
        assert!((2.5..2.8).contains(&guides), "{guides}");
    }
}
