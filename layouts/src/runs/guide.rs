//! The guide of a partition: what is asked before its records are read. A fence and a filter, under one checksum.
//!
//! In memory it is what it is on storage.

use std::ops::Range;

use alluvium_pagestore::Result;

use super::fence::{self, Fence, FenceShape, LastBucket, LongChunk};
use super::filter::{FilterBuilder, FilterShape};
use super::{checksum, damaged, put_u32, put_u64, u32_at, u64_at};

/// A guide that was verified: bytes that it owns, or that were read into a buffer.
#[derive(Debug)]
pub(super) struct Guide<B = Box<[u8]>> {
    bytes: B,
    fence: FenceShape,
    filter: FilterShape,
}

const HEADER_BYTES: usize = 48;

/// What a guide is built from.
pub(super) struct GuideInput<'a> {
    /// Distinct hashes, in order.
    pub hashes: &'a [u64],
    /// The first hash of each chunk.
    pub firsts: &'a [u64],
    pub long: &'a [LongChunk],
    /// Whether the filter has two bytes a slot.
    pub is_wide: bool,
}

/// Bytes of the longest guide of so many hashes and chunks.
pub(super) fn bytes_most(hashes: usize, chunks: usize, is_wide: bool) -> usize {
    let shape = FenceShape { chunks: chunks as u32, long: chunks as u32, ..FenceShape::default() };
    HEADER_BYTES + shape.bytes() + FilterShape::bytes_most(hashes, is_wide)
}

/// Bytes that a guide of so many hashes and chunks takes in memory, all chunks of one block or all longer.
pub(super) fn bytes_of(hashes: usize, chunks: usize, (is_long, is_wide): (bool, bool)) -> u64 {
    let long = if is_long { chunks as u32 } else { 0 };
    let shape = FenceShape { chunks: chunks as u32, long, ..FenceShape::default() };
    let bytes = HEADER_BYTES + shape.bytes() + FilterShape::of(hashes, is_wide).bytes();
    (bytes + size_of::<Guide>()) as u64
}

/// Builds the guide of a run's partition that stands at an offset into `to`, which it replaces.
///
/// # Errors
/// If the guide that was built does not lead each hash to its chunks.
pub(super) fn build(
    (run, offset): (u64, u64),
    contents: &GuideInput<'_>,
    builder: &mut FilterBuilder,
    to: &mut Vec<u8>,
) -> Result<()> {
    to.clear();
    to.resize(HEADER_BYTES, 0);
    let fence = fence::build(contents.firsts, contents.long, to);
    let filter = builder.build(contents.hashes, contents.is_wide, to);
    write_header(to, fence, filter);
    let crc = checksum(run, offset, &to[4..]);
    put_u32(to, 0, crc);
    check((run, offset), contents, to)
}

fn write_header(to: &mut [u8], fence: FenceShape, filter: FilterShape) {
    let bytes = to.len() as u32;
    put_u32(to, 4, bytes);
    put_u64(to, 8, fence.base);
    to[16] = fence.shift;
    to[17] = filter.segment_log;
    to[18] = u8::from(filter.is_wide);
    put_u32(to, 20, fence.chunks);
    put_u32(to, 24, fence.long);
    put_u32(to, 28, filter.windows);
    put_u32(to, 32, filter.seed);
}

/// Looks each hash up in what is about to be written.
fn check((run, offset): (u64, u64), contents: &GuideInput<'_>, bytes: &[u8]) -> Result<()> {
    let (fence, filter) = shapes((run, offset), bytes)?;
    // By what was written. Both lists are in order, so that each search goes on where the last one ended.
    let (mut below, mut end) = (0, 0);
    let mut chunks_written = |hash: u64| {
        below += contents.firsts[below..].iter().take_while(|first| **first < hash).count();
        end = below.max(end);
        end += contents.firsts[end..].iter().take_while(|first| **first <= hash).count();
        below.saturating_sub(1) as u32..end as u32
    };
    let (fence_bytes, slots) = bytes[HEADER_BYTES..].split_at(fence.bytes());
    let (fence, mut last) = (Fence::new(fence, fence_bytes), LastBucket::default());
    let is_led = |hash: &u64| {
        let found = match filter.may_have(slots, *hash) {
            true => fence.chunks_of_next(*hash, &mut last),
            false => 0..0,
        };
        let wanted = chunks_written(*hash);
        found.start <= wanted.start && wanted.end <= found.end && !wanted.is_empty()
    };
    match contents.hashes.iter().all(is_led) {
        true => Ok(()),
        false => Err(damaged(run, offset, "a new guide does not know a hash of its partition")),
    }
}

/// Verifies a guide and gives its shapes.
fn shapes((run, offset): (u64, u64), bytes: &[u8]) -> Result<(FenceShape, FilterShape)> {
    let corrupt = || damaged(run, offset, "the guide of a partition is damaged");
    if bytes.len() < HEADER_BYTES || checksum(run, offset, &bytes[4..]) != u32_at(bytes, 0) {
        return Err(corrupt());
    }
    let fence = FenceShape {
        base: u64_at(bytes, 8),
        shift: bytes[16],
        chunks: u32_at(bytes, 20),
        long: u32_at(bytes, 24),
    };
    let (segment_log, windows, seed) = (bytes[17], u32_at(bytes, 28), u32_at(bytes, 32));
    let filter = FilterShape { seed, segment_log, windows, is_wide: bytes[18] == 1 };
    let is_possible = fence.shift < 64 && bytes[18] <= 1 && filter.is_possible();
    let told = u32_at(bytes, 4) as usize == bytes.len();
    match is_possible && told && HEADER_BYTES + fence.bytes() + filter.bytes() == bytes.len() {
        true => Ok((fence, filter)),
        false => Err(corrupt()),
    }
}

fn chunks_of((fence, filter): (FenceShape, FilterShape), bytes: &[u8], hash: u64) -> Range<u32> {
    let (fence_bytes, slots) = bytes[HEADER_BYTES..].split_at(fence.bytes());
    match filter.may_have(slots, hash) {
        true => Fence::new(fence, fence_bytes).chunks_of(hash),
        false => 0..0,
    }
}

impl Guide<&[u8]> {
    /// The guide with bytes of its own, which take [`Guide::bytes`].
    pub fn owned(self) -> Guide {
        Guide { bytes: self.bytes.into(), fence: self.fence, filter: self.filter }
    }
}

impl<B: AsRef<[u8]>> Guide<B> {
    /// Verifies the guide that stands at an offset of a run.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`](alluvium_pagestore::ErrorKind::Corrupt) if these are not the bytes that were written.
    pub fn verified(place: (u64, u64), bytes: B) -> Result<Self> {
        let (fence, filter) = shapes(place, bytes.as_ref())?;
        Ok(Self { bytes, fence, filter })
    }

    pub fn bytes(&self) -> u64 {
        self.bytes.as_ref().len() as u64
    }

    /// Hints the processor to load what a look-up of a hash reads of the filter.
    pub fn prefetch(&self, hash: u64) {
        let slots = &self.bytes.as_ref()[HEADER_BYTES + self.fence.bytes()..];
        self.filter.prefetch(slots, hash);
    }

    /// Whether the filter may have a hash.
    pub fn may_have(&self, hash: u64) -> bool {
        let slots = &self.bytes.as_ref()[HEADER_BYTES + self.fence.bytes()..];
        self.filter.may_have(slots, hash)
    }

    /// Bytes of the fence alone.
    pub fn fence_bytes(&self) -> u64 {
        self.fence.bytes() as u64
    }

    /// The first block of the partition that may have a hash, or a higher one.
    pub fn block_before(&self, hash: u64) -> u32 {
        let bytes = self.bytes.as_ref();
        let fence = Fence::new(self.fence, &bytes[HEADER_BYTES..HEADER_BYTES + self.fence.bytes()]);
        fence.block_of(fence.chunks_of(hash).start)
    }

    /// The blocks, from the first of the partition on, that have the hash if it is there. None: it is not.
    pub fn blocks_of(&self, hash: u64) -> Range<u32> {
        let bytes = self.bytes.as_ref();
        let chunks = chunks_of((self.fence, self.filter), bytes, hash);
        let fence_bytes = &bytes[HEADER_BYTES..HEADER_BYTES + self.fence.bytes()];
        let fence = Fence::new(self.fence, fence_bytes);
        fence.block_of(chunks.start)..fence.block_of(chunks.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alluvium_pagestore::ErrorKind;

    fn built(hashes: &[u64], is_wide: bool) -> Vec<u8> {
        let mut to = Vec::new();
        let firsts: Vec<u64> = hashes.iter().copied().step_by(5).collect();
        let contents = GuideInput { hashes, firsts: &firsts, long: &[(1, 3)], is_wide };
        build((7, 4096), &contents, &mut FilterBuilder::new(hashes.len()), &mut to).unwrap();
        to
    }

    #[test]
    fn each_bit_of_a_guide_is_verified() {
        let hashes: Vec<u64> = (1..60).map(|nth| nth << 40).collect();
        let bytes = built(&hashes, true);
        let guide = Guide::verified((7, 4096), &bytes[..]).unwrap();
        assert_eq!(guide.bytes(), bytes.len() as u64);
        for (nth, hash) in hashes.iter().enumerate() {
            let blocks = guide.blocks_of(*hash);
            let chunk = nth as u32 / 5;
            let block = if chunk > 1 { chunk + 2 } else { chunk };
            assert!(blocks.contains(&block), "{nth}: {blocks:?}");
        }
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let error = Guide::verified((7, 4096), &flipped[..]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{bit}");
        }
        for (place, len) in [((8, 4096), 0), ((7, 8192), 0), ((7, 4096), 1)] {
            assert!(Guide::verified(place, &bytes[len..]).is_err());
        }
    }

    #[test]
    fn a_new_guide_that_misses_a_hash_is_refused() {
        let hashes: Vec<u64> = (1..60).map(|nth| nth << 40).collect();
        let mut bytes = built(&hashes, false);
        let firsts: Vec<u64> = hashes.iter().copied().step_by(5).collect();
        let contents =
            GuideInput { hashes: &hashes, firsts: &firsts, long: &[(1, 3)], is_wide: false };
        check((7, 4096), &contents, &bytes).unwrap();
        // A slot of the filter that is wrong before the checksum is taken.
        let mut refused = 0;
        for slot in bytes.len() - 40..bytes.len() {
            bytes[slot] ^= 1;
            let crc = checksum(7, 4096, &bytes[4..]);
            put_u32(&mut bytes, 0, crc);
            refused += usize::from(check((7, 4096), &contents, &bytes).is_err());
            bytes[slot] ^= 1;
        }
        assert!(refused > 10, "{refused}");
    }
    /// What a guide is built from is looked up in it, whoever builds it.
    #[test]
    fn no_guide_is_built_that_does_not_lead_to_a_hash() {
        let hashes: Vec<u64> = (1..60).map(|nth| nth << 40).collect();
        let firsts: Vec<u64> = hashes.iter().copied().step_by(5).collect();
        let build_of = |firsts: &[u64]| {
            let contents = GuideInput { hashes: &hashes, firsts, long: &[], is_wide: false };
            let (mut builder, mut to) = (FilterBuilder::new(hashes.len()), Vec::new());
            build((7, 4096), &contents, &mut builder, &mut to)
        };
        build_of(&firsts).unwrap();
        // The first chunk is not told of: no chunk has the hashes before the second.
        let error = build_of(&firsts[1..]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.to_string().contains("does not know a hash"), "{error}");
    }
}
