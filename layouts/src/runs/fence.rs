//! A fence: which chunks of a partition may have a hash, in ten bits a chunk.
//!
//! The first hash of each chunk, less that of the partition, is cut to about 8 bits more than numbers the chunks (so
//! that one hash in 256 is led to two chunks), and the numbers, which never fall, are stored as Elias and Fano do: the
//! low byte of each as it is, the rest as the distances from one to the next, one bit for each step.
//!
//! A chunk that is longer than one block is on a list.

use std::ops::Range;

use super::{u32_at, u64_at};

/// The fence of a partition in its stored form.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fence<'a> {
    pub shape: FenceShape,
    /// For each chunk a one, after as many zeros as its high part has grown.
    high: &'a [u8],
    low: &'a [u8],
    /// For each chunk of more than one block its number and the blocks that it and those before it have too many.
    long: &'a [u8],
}

/// What a fence is read by; stored beside it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FenceShape {
    /// The first hash.
    pub base: u64,
    /// Bits of a hash that are cut off.
    pub shift: u8,
    pub chunks: u32,
    /// Chunks of more than one block.
    pub long: u32,
}

/// A chunk of more than one block: its number and its blocks.
pub(super) type LongChunk = (u32, u32);

const LOW_BITS: u32 = 8;

/// What the last of several look-ups has found: the next one of a hash close by need not search for it.
#[derive(Clone, Debug, Default)]
pub(super) struct LastBucket {
    high: u64,
    /// None before the first.
    chunks: Option<Range<u32>>,
}

impl FenceShape {
    fn of(firsts: &[u64], long: &[LongChunk]) -> Self {
        let base = firsts.first().copied().unwrap_or(0);
        let span = firsts.last().copied().unwrap_or(0) - base;
        let numbers = (firsts.len() as u128) << LOW_BITS;
        let needed = |shift: &u8| u128::from(span >> shift) < numbers;
        let shift = (0..64).find(needed).unwrap_or(63);
        Self { base, shift, chunks: firsts.len() as u32, long: long.len() as u32 }
    }

    fn high_bytes(&self) -> usize {
        (2 * self.chunks as usize).div_ceil(64) * 8
    }

    /// Bytes of the fence.
    pub fn bytes(&self) -> usize {
        self.high_bytes() + self.chunks as usize + self.long as usize * 8
    }

    /// The number that a hash is cut to, which is not below the first one.
    fn cut(&self, hash: u64) -> u64 {
        (hash - self.base) >> self.shift
    }
}

/// Appends the fence of chunks that begin with these hashes, which never fall.
pub(super) fn build(firsts: &[u64], long: &[LongChunk], to: &mut Vec<u8>) -> FenceShape {
    let shape = FenceShape::of(firsts, long);
    let start = to.len();
    to.resize(start + shape.high_bytes(), 0);
    for (nth, first) in firsts.iter().enumerate() {
        let one = (shape.cut(*first) >> LOW_BITS) as usize + nth;
        to[start + one / 8] |= 1 << (one % 8);
    }
    to.extend(firsts.iter().map(|first| shape.cut(*first) as u8));
    let mut beyond = 0;
    for &(chunk, blocks) in long {
        beyond += blocks - 1;
        to.extend_from_slice(&chunk.to_le_bytes());
        to.extend_from_slice(&beyond.to_le_bytes());
    }
    shape
}

impl<'a> Fence<'a> {
    /// The fence of this shape in these bytes, which are as many as it says.
    pub fn new(shape: FenceShape, bytes: &'a [u8]) -> Self {
        let (high, rest) = bytes.split_at(shape.high_bytes());
        let (low, long) = rest.split_at(shape.chunks as usize);
        Self { shape, high, low, long }
    }

    /// The chunks that may have the hash; none only if it is below the first one.
    pub fn chunks_of(&self, hash: u64) -> Range<u32> {
        self.chunks_of_next(hash, &mut LastBucket::default())
    }

    /// [`chunks_of`](Fence::chunks_of) one of several hashes.
    pub fn chunks_of_next(&self, hash: u64, last: &mut LastBucket) -> Range<u32> {
        if hash < self.shape.base || self.shape.chunks == 0 {
            return 0..0;
        }
        let cut = self.shape.cut(hash);
        let high = cut >> LOW_BITS;
        if last.high != high || last.chunks.is_none() {
            *last = LastBucket { high, chunks: Some(self.bucket(high)) };
        }
        let bucket = last.chunks.clone().unwrap_or_default();
        let low = cut as u8;
        let lows = &self.low[bucket.start as usize..bucket.end as usize];
        let below = bucket.start + lows.partition_point(|first| *first < low) as u32;
        let end = bucket.start + lows.partition_point(|first| *first <= low) as u32;
        // The last chunk that begins before the hash may end with it.
        below.saturating_sub(1)..end
    }

    /// The chunks whose numbers have this high part.
    fn bucket(&self, high: u64) -> Range<u32> {
        let start = self.ones_before_zero(high);
        start..self.ones_before_zero(high + 1)
    }

    /// How many numbers have a high part below `high`: the ones before the zero of that number, counted from one.
    fn ones_before_zero(&self, high: u64) -> u32 {
        let mut zeros = high;
        if zeros == 0 {
            return 0;
        }
        let mut ones = 0;
        for word in self.high.chunks_exact(8).map(|word| u64_at(word, 0)) {
            let zeros_here = u64::from(word.count_zeros());
            if zeros_here >= zeros {
                return (ones + ones_before_nth_zero(word, zeros as u32)).min(self.shape.chunks);
            }
            zeros -= zeros_here;
            ones += word.count_ones();
        }
        self.shape.chunks
    }

    /// The first block of a chunk, from that of the partition on; also of the one after the last.
    pub fn block_of(&self, chunk: u32) -> u32 {
        chunk + self.beyond(chunk)
    }

    /// Blocks that chunks before this one have beside their first.
    fn beyond(&self, chunk: u32) -> u32 {
        let (mut first, mut end) = (0, self.long.len() / 8);
        while first < end {
            let middle = usize::midpoint(first, end);
            if u32_at(self.long, middle * 8) < chunk { first = middle + 1 } else { end = middle }
        }
        if first == 0 { 0 } else { u32_at(self.long, (first - 1) * 8 + 4) }
    }
}

/// The ones before the nth zero of a word, counted from one, which it has.
fn ones_before_nth_zero(word: u64, nth: u32) -> u32 {
    let mut zeros = !word;
    for _ in 1..nth {
        zeros &= zeros - 1;
    }
    zeros.trailing_zeros() + 1 - nth
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a fence must say at least, and at most: where the hash is, by the first hashes alone.
    fn check(firsts: &[u64], long: &[LongChunk], asked: &[u64]) -> f64 {
        let mut bytes = vec![9];
        let shape = build(firsts, long, &mut bytes);
        assert_eq!(bytes.len(), 1 + shape.bytes());
        let fence = Fence::new(shape, &bytes[1..]);
        let mut more = 0;
        for &hash in asked {
            let found = fence.chunks_of(hash);
            let below = firsts.partition_point(|first| *first < hash) as u32;
            let end = firsts.partition_point(|first| *first <= hash) as u32;
            if end == 0 {
                assert!(found.is_empty() || hash >= firsts[0] || found == (0..0));
                continue;
            }
            let exact = below.saturating_sub(1)..end;
            assert!(found.start <= exact.start && found.end >= exact.end, "{hash}: {found:?}");
            more += usize::from(found != exact);
        }
        let mut block = 0;
        for chunk in 0..firsts.len() as u32 {
            assert_eq!(fence.block_of(chunk), block);
            block += long.iter().find(|one| one.0 == chunk).map_or(1, |one| one.1);
        }
        assert_eq!(fence.block_of(firsts.len() as u32), block);
        more as f64 / asked.len() as f64
    }

    #[test]
    fn each_hash_is_led_to_its_chunk_and_few_to_two() {
        let hash = alluvium_pagestore::hash_word;
        for chunks in [1u64, 2, 3, 31, 32, 33, 64, 321, 3000] {
            let mut firsts: Vec<u64> = (0..chunks).map(|nth| hash(nth) >> 9).collect();
            firsts.sort_unstable();
            let asked: Vec<u64> = (0..5000).map(|nth| hash(nth + 77) >> 9).collect();
            let more = check(&firsts, &[], &asked);
            assert!(more < 0.02, "{chunks}: {more}");
            check(
                &firsts,
                &[(0, 7), (chunks as u32 / 2 + 1, 3)][..if chunks > 2 { 2 } else { 1 }],
                &firsts,
            );
        }
    }

    #[test]
    fn equal_hashes_and_the_ends_of_all_hashes_are_right() {
        let few = [3, 3, 3, 9, 9, u64::MAX, u64::MAX];
        check(&few, &[(2, 4)], &[0, 2, 3, 4, 8, 9, 10, u64::MAX - 1, u64::MAX]);
        check(&[7; 200], &[], &[6, 7, 8]);
        check(&[0, u64::MAX], &[], &[0, 1, 1 << 63, u64::MAX]);
        check(&[5], &[(0, 9)], &[5, 6, u64::MAX]);
    }
}
