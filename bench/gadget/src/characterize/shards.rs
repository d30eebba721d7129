//! An estimate of miss ratios from a sample of the keys, in fixed memory: SHARDS (Waldspurger and
//! others, FAST 2015), with a fixed number of keys and the correction for a sample that came out
//! too large or too small.
//!
//! A key is in the sample if its hash is below a limit. When there are too many the limit falls to
//! the largest hash, and what was counted is scaled down with it.

use std::collections::BinaryHeap;

use alluvium::types::hash_word;
use foldhash::fast::FixedState;
use hashbrown::HashMap;

use super::stack::Stack;

/// Hashes are below this.
const HASHES: u64 = 1 << 24;
/// Buckets of a doubling of distances.
const BUCKETS: u64 = 64;

/// A sample of a stream of accesses.
#[derive(Clone, Debug)]
pub struct Shards {
    keys_max: usize,
    /// Hashes from here on are not in the sample.
    limit: u64,
    slots: HashMap<u64, u32, FixedState>,
    free: Vec<u32>,
    held: BinaryHeap<(u64, u64)>,
    stack: Stack,
    /// How often distances came, scaled to the limit of now.
    counts: Vec<f64>,
    sampled: f64,
    seen: u64,
}

impl Shards {
    /// A sample of at most `keys_max` keys.
    pub fn new(keys_max: usize) -> Self {
        Shards {
            keys_max: keys_max.max(1),
            limit: HASHES,
            slots: HashMap::default(),
            free: Vec::new(),
            held: BinaryHeap::new(),
            stack: Stack::default(),
            counts: Vec::new(),
            sampled: 0.0,
            seen: 0,
        }
    }

    /// The share of keys that are in the sample.
    pub fn rate(&self) -> f64 {
        self.limit as f64 / HASHES as f64
    }

    /// Takes an access to a key, by its number or hash.
    pub fn access(&mut self, key: u64) {
        self.seen += 1;
        let hash = hash_word(key ^ 0x5a4d) % HASHES;
        if hash >= self.limit {
            return;
        }
        self.sampled += 1.0;
        let fresh = self.slots.len() as u32;
        let slot = match self.slots.get(&key) {
            Some(slot) => *slot,
            None => {
                let slot = self.free.pop().unwrap_or(fresh);
                self.slots.insert(key, slot);
                self.held.push((hash, key));
                slot
            }
        };
        if let Some(distance) = self.stack.access(slot) {
            let bucket = bucket((f64::from(distance) / self.rate()) as u64);
            self.counts.resize(self.counts.len().max(bucket + 1), 0.0);
            self.counts[bucket] += 1.0;
        }
        if self.held.len() > self.keys_max {
            self.shrink();
        }
    }

    /// Lowers the limit to the largest hash.
    fn shrink(&mut self) {
        let Some((limit, _)) = self.held.peek().copied() else { return };
        while let Some((hash, key)) = self.held.peek().copied() {
            if hash < limit {
                break;
            }
            self.held.pop();
            if let Some(slot) = self.slots.remove(&key) {
                self.stack.remove(slot);
                self.free.push(slot);
            }
        }
        let scale = limit as f64 / self.limit as f64;
        self.counts.iter_mut().for_each(|count| *count *= scale);
        self.sampled *= scale;
        self.limit = limit;
    }

    /// The estimated share of accesses that an LRU cache of each size, ascending, does not have.
    pub fn miss_ratios(&self, sizes: &[u64]) -> Vec<f64> {
        let wanted = self.seen as f64 * self.rate();
        // A sample of other size than expected has the hottest keys, or lacks them.
        let correction = wanted - self.sampled;
        let hits = |size: u64| {
            let buckets = self.counts.iter().enumerate();
            let near = buckets.take_while(|(bucket, _)| lower(*bucket) < size);
            near.map(|(_, count)| count).sum::<f64>() + if size > 0 { correction } else { 0.0 }
        };
        let ratio = |size: &u64| (1.0 - hits(*size) / wanted.max(1.0)).clamp(0.0, 1.0);
        sizes.iter().map(ratio).collect()
    }

    /// Bytes of memory, about.
    pub fn bytes(&self) -> u64 {
        let maps = self.slots.capacity() * 17 + self.held.capacity() * 16;
        (maps + self.counts.capacity() * 8) as u64 + self.stack.bytes()
    }
}

/// The bucket of a distance: exact up to twice [`BUCKETS`].
fn bucket(distance: u64) -> usize {
    let shift = (distance / BUCKETS).checked_ilog2().unwrap_or(0);
    (u64::from(shift) * BUCKETS + (distance >> shift)) as usize
}

/// The least distance of a bucket.
fn lower(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    let shift = (bucket / BUCKETS).saturating_sub(1);
    (bucket - shift * BUCKETS) << shift
}

#[cfg(test)]
mod tests {
    use super::super::stack::Distances;
    use super::*;
    use crate::random::{KeyDraw, KeyShape, Random};

    #[test]
    fn buckets_begin_where_they_say() {
        for distance in (0..5000).chain([1 << 20, (1 << 40) + 12345]) {
            let bucket = bucket(distance);
            assert!(lower(bucket) <= distance && distance < lower(bucket + 1), "{distance}");
        }
    }

    #[test]
    fn a_sample_of_all_keys_is_exact_and_a_small_one_near() {
        let (mut random, keys) = (Random::new(4), 50_000);
        let mut draw = KeyDraw::new(&KeyShape::Zipf(0.8), keys).unwrap();
        let trace: Vec<u32> = (0..400_000).map(|_| draw.draw(&mut random) as u32).collect();
        let sizes: Vec<u64> = (0..16).map(|power| 1 << power).collect();
        let exact = Distances::of(trace.iter().copied()).miss_ratios(&sizes);
        // The corrected sample is off where caches are smaller than the hottest keys are apart.
        for (keys_max, most, mean) in [(100_000, 0.003, 0.001), (4096, 0.08, 0.03)] {
            let mut shards = Shards::new(keys_max);
            trace.iter().for_each(|key| shards.access(u64::from(*key)));
            let found = shards.miss_ratios(&sizes);
            let errors: Vec<f64> =
                exact.iter().zip(&found).map(|(one, two)| (one - two).abs()).collect();
            let largest = errors.iter().copied().fold(0.0, f64::max);
            assert!(largest <= most, "{keys_max}: {errors:?}");
            assert!(errors.iter().sum::<f64>() / 16.0 <= mean, "{keys_max}: {errors:?}");
            assert!(shards.slots.len() <= keys_max);
        }
    }
}
