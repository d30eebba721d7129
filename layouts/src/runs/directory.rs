//! The frame of a run: its header, its directory of partitions and its tail.

use std::ops::Range;

use alluvium_pagestore::io::BLOCK_BYTES;
use alluvium_pagestore::{Error, ErrorKind, HASH_VERSION, Result};
pub(super) use alluvium_pagestore::{RunId, RunInfo};

use super::{RUN_VERSION, checksum, damaged, put_u32, put_u64, u32_at, u64_at};

/// One partition, as the directory tells it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Partition {
    pub first_hash: u64,
    pub last_hash: u64,
    /// The first block of its records.
    pub block: u32,
    /// Blocks of its records; the guide stands behind.
    pub blocks: u32,
    pub guide_bytes: u32,
    pub records: u32,
    pub marked: u32,
    /// The checksum of its chunks' checksums.
    pub digest: u32,
}

pub(super) const ENTRY_BYTES: usize = 48;
pub(super) const FRAME_BYTES: usize = 64;
const MAGIC_HEADER: &[u8; 8] = b"ALVRUN\0H";
const MAGIC_TAIL: &[u8; 8] = b"ALVRUN\0T";

impl Partition {
    pub fn offset(&self) -> u64 {
        u64::from(self.block) * BLOCK_BYTES as u64
    }

    pub fn guide_offset(&self) -> u64 {
        (u64::from(self.block) + u64::from(self.blocks)) * BLOCK_BYTES as u64
    }

    pub fn write(&self, to: &mut [u8]) {
        put_u64(to, 0, self.first_hash);
        put_u64(to, 8, self.last_hash);
        let words =
            [self.block, self.blocks, self.guide_bytes, self.records, self.marked, self.digest];
        words.iter().enumerate().for_each(|(nth, word)| put_u32(to, 16 + nth * 4, *word));
    }

    pub fn read(bytes: &[u8]) -> Self {
        let word = |nth: usize| u32_at(bytes, 16 + nth * 4);
        Self {
            first_hash: u64_at(bytes, 0),
            last_hash: u64_at(bytes, 8),
            block: word(0),
            blocks: word(1),
            guide_bytes: word(2),
            records: word(3),
            marked: word(4),
            digest: word(5),
        }
    }
}

/// What a look-up needs of a partition.
#[derive(Clone, Copy, Debug)]
pub(super) struct PartitionPlace {
    pub first_hash: u64,
    block: u32,
    blocks: u32,
    pub guide_bytes: u32,
    /// Whether the partition before ends with the first hash.
    goes_on: bool,
}

impl PartitionPlace {
    /// The places of all partitions of a run.
    pub fn all(partitions: &[Partition]) -> Vec<Self> {
        let mut last = None;
        let mut places = Vec::with_capacity(partitions.len());
        for partition in partitions {
            let Partition { first_hash, block, blocks, guide_bytes, .. } = *partition;
            let goes_on = last == Some(first_hash);
            places.push(Self { first_hash, block, blocks, guide_bytes, goes_on });
            last = Some(partition.last_hash);
        }
        places
    }

    /// Where its chunks begin.
    pub fn offset(&self) -> u64 {
        u64::from(self.block) * BLOCK_BYTES as u64
    }

    /// Where its guide begins.
    pub fn guide_offset(&self) -> u64 {
        (u64::from(self.block) + u64::from(self.blocks)) * BLOCK_BYTES as u64
    }

    /// Those that may have a hash: several only if a hash has more records than fit one.
    pub fn of_hash(places: &[Self], hash: u64) -> Range<usize> {
        let start = first_not_below(places, hash, |place| place.first_hash);
        let begin = places[start..].iter().take_while(|place| place.first_hash == hash).count();
        match places.get(start) {
            Some(place) if begin > 0 && !place.goes_on => start..start + begin,
            _ => start.saturating_sub(1)..start + begin,
        }
    }
}

/// Steps from where a hash is expected. It is searched for after that.
const STEPS_MAX: usize = 8;

/// Where the first element stands whose hash is not below this one. Their hashes never fall and are spread evenly, more or
/// less: a few neighbours are looked at then, where a search would wait for one cache line after the other.
pub(super) fn first_not_below<T>(list: &[T], hash: u64, hash_of: impl Fn(&T) -> u64) -> usize {
    let (Some(first), Some(last)) = (list.first().map(&hash_of), list.last().map(&hash_of)) else {
        return 0;
    };
    if hash <= first || hash > last {
        return if hash <= first { 0 } else { list.len() };
    }
    // The first is below, the last is not: so a step never leaves the list.
    let share = (hash - first) as f64 / (last - first) as f64;
    let mut at = ((share * (list.len() - 1) as f64) as usize).clamp(1, list.len() - 1);
    for _ in 0..STEPS_MAX {
        match (hash_of(&list[at - 1]) < hash, hash_of(&list[at]) < hash) {
            (true, false) => return at,
            (_, true) => at += 1,
            (false, _) => at -= 1,
        }
    }
    list.partition_point(|one| hash_of(one) < hash)
}

/// Writes the header of a run, of the state whose name has this hash.
pub(super) fn write_header(run: u64, state: u64, to: &mut [u8]) {
    to[..8].copy_from_slice(MAGIC_HEADER);
    put_u32(to, 8, RUN_VERSION);
    put_u32(to, 12, HASH_VERSION);
    put_u64(to, 16, run);
    put_u64(to, 24, state);
    let crc = checksum(run, 0, &to[..60]);
    put_u32(to, 60, crc);
}

/// Verifies the header of a run.
pub(super) fn check_header(run: u64, bytes: &[u8]) -> Result<()> {
    if checksum(run, 0, &bytes[..60]) != u32_at(bytes, 60) || bytes[..8] != *MAGIC_HEADER {
        return Err(damaged(run, 0, "the header of a run is damaged"));
    }
    check_versions(run, bytes)
}

/// The hash of the name of the state that a verified header tells.
pub(super) fn state_of_header(bytes: &[u8]) -> u64 {
    u64_at(bytes, 24)
}

/// What the tail of a run says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RunTail {
    pub directory_offset: u64,
    pub state: u64,
    pub records: u64,
    pub partitions: u32,
    pub order_bytes: u32,
    /// Checksum of the directory at its offset.
    pub digest: u32,
}

impl RunTail {
    /// Writes the tail, which stands in the last bytes of the file.
    pub fn write(&self, run: u64, to: &mut [u8]) {
        to[..8].copy_from_slice(MAGIC_TAIL);
        put_u32(to, 8, RUN_VERSION);
        put_u32(to, 12, HASH_VERSION);
        put_u64(to, 16, self.directory_offset);
        put_u64(to, 24, self.state);
        put_u64(to, 32, self.records);
        put_u32(to, 40, self.partitions);
        put_u32(to, 44, self.order_bytes);
        put_u32(to, 48, self.digest);
        let crc = checksum(run, self.directory_offset, &to[..60]);
        put_u32(to, 60, crc);
    }

    /// Reads and verifies the tail of a run.
    pub fn read(run: u64, file_bytes: u64, bytes: &[u8]) -> Result<Self> {
        let offset = file_bytes - FRAME_BYTES as u64;
        let directory_offset = u64_at(bytes, 16);
        if checksum(run, directory_offset, &bytes[..60]) != u32_at(bytes, 60)
            || bytes[..8] != *MAGIC_TAIL
        {
            return Err(damaged(run, offset, "the tail of a run is damaged"));
        }
        check_versions(run, bytes)?;
        Ok(Self {
            directory_offset,
            state: u64_at(bytes, 24),
            records: u64_at(bytes, 32),
            partitions: u32_at(bytes, 40),
            order_bytes: u32_at(bytes, 44),
            digest: u32_at(bytes, 48),
        })
    }

    pub fn directory_bytes(&self) -> usize {
        directory_bytes(self.partitions as usize)
    }

    /// Whether it is the tail of the run that a checkpoint names so.
    pub fn is_of(&self, info: &RunInfo) -> bool {
        let told = (info.records, info.partitions, info.order_bytes, info.digest);
        (self.records, self.partitions, self.order_bytes, self.digest) == told
            && self.directory_offset.checked_add(self.directory_bytes() as u64) == Some(info.bytes)
    }
}

/// Whole blocks that a directory of so many partitions takes, with the tail.
pub(super) fn directory_bytes(partitions: usize) -> usize {
    (partitions * ENTRY_BYTES + FRAME_BYTES).next_multiple_of(BLOCK_BYTES)
}

fn check_versions(run: u64, bytes: &[u8]) -> Result<()> {
    let (version, hash_version) = (u32_at(bytes, 8), u32_at(bytes, 12));
    if (1..=RUN_VERSION).contains(&version) && hash_version == HASH_VERSION {
        return Ok(());
    }
    let message = format!(
        "the run has format version {version} and key hash version {hash_version}; \
         this build reads 1 to {RUN_VERSION} and {HASH_VERSION}"
    );
    let error = Error::new(ErrorKind::FormatVersion, message);
    Err(error.with("file", RunId(run).file_name()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alluvium_pagestore::hash_word;

    #[test]
    fn the_first_that_is_not_below_is_found_however_hashes_are_spread() {
        let even = (0..500).map(|nth| nth << 55).collect::<Vec<u64>>();
        let mut random: Vec<u64> = (0..300).map(hash_word).collect();
        random.extend([5; 20].iter().chain(&[u64::MAX; 9]));
        random.sort_unstable();
        let powers: Vec<u64> = (0..64).map(|nth| 1 << nth).collect();
        for list in [even, random, powers, vec![7; 30], vec![3], vec![]] {
            let around =
                list.iter().flat_map(|hash| [hash.wrapping_sub(1), *hash, hash.wrapping_add(1)]);
            for hash in around.chain([0, u64::MAX]).chain((0..100).map(hash_word)) {
                let wanted = list.partition_point(|one| *one < hash);
                assert_eq!(first_not_below(&list, hash, |one| *one), wanted, "{hash} in {list:?}");
            }
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let partition = Partition {
            first_hash: 1 << 60,
            last_hash: (1 << 60) + 5,
            block: 3,
            blocks: 4,
            guide_bytes: 5,
            records: 6,
            marked: 1,
            digest: 7,
        };
        let mut bytes = [0; ENTRY_BYTES];
        partition.write(&mut bytes);
        assert_eq!(Partition::read(&bytes), partition);
        let tail = RunTail {
            directory_offset: 8192,
            state: 3,
            records: 9,
            partitions: 2,
            order_bytes: 8,
            digest: 11,
        };
        let mut bytes = [0; FRAME_BYTES];
        tail.write(5, &mut bytes);
        assert_eq!(RunTail::read(5, 1 << 20, &bytes).unwrap(), tail);
        assert!(RunTail::read(6, 1 << 20, &bytes).is_err());
        let mut older = bytes;
        older[8] = 1;
        let crc = checksum(5, 8192, &older[..60]);
        put_u32(&mut older, 60, crc);
        assert_eq!(RunTail::read(5, 1 << 20, &older).unwrap(), tail, "version 1 is read");
        let mut newer = bytes;
        newer[8] = 99;
        let crc = checksum(5, 8192, &newer[..60]);
        put_u32(&mut newer, 60, crc);
        let error = RunTail::read(5, 1 << 20, &newer).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::FormatVersion);
        assert!(error.to_string().contains("version 99"), "{error}");
    }

    #[test]
    fn a_hash_is_in_the_partitions_that_span_it() {
        let of = |first_hash, last_hash| Partition { first_hash, last_hash, ..Default::default() };
        let all = [of(3, 5), of(8, 8), of(8, 8), of(8, 20), of(30, u64::MAX)];
        let places = PartitionPlace::all(&all);
        let found = |hash| PartitionPlace::of_hash(&places, hash);
        // Between two, the one before is asked: its filter says no.
        assert_eq!((found(0), found(3), found(4), found(6)), (0..0, 0..1, 0..1, 0..1));
        assert_eq!((found(8), found(9), found(25), found(u64::MAX)), (1..4, 3..4, 3..4, 4..5));
        let places = PartitionPlace::all(&[of(3, 8), of(8, 9)]);
        assert_eq!(PartitionPlace::of_hash(&places, 8), 0..2);
        assert_eq!(PartitionPlace::of_hash(&[], 8), 0..0);
    }
}
