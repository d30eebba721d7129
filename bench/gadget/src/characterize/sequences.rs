//! Spatial locality: how many different sequences of keys of each length a trace has.
//!
//! Sequences are told apart by hashes of 64 bits: of 10 million accesses two different ones count
//! as one with a chance of 1 in 100,000. Memory is 16 bytes an access.

use alluvium::types::{combine, hash_word};

/// The number of different sequences of each length from 1 to `lengths`.
pub fn unique(keys: &[u32], lengths: usize) -> Vec<u64> {
    let mut hashes: Vec<u64> = keys.iter().map(|key| hash_word(u64::from(*key))).collect();
    let (mut sorted, mut counts) = (Vec::with_capacity(keys.len()), Vec::new());
    for length in 1..=lengths.min(keys.len()) {
        if length > 1 {
            hashes.pop();
            let ends = keys[length - 1..].iter();
            hashes.iter_mut().zip(ends).for_each(|(hash, key)| {
                *hash = combine(*hash, u64::from(*key));
            });
        }
        sorted.clear();
        sorted.extend_from_slice(&hashes);
        sorted.sort_unstable();
        sorted.dedup();
        counts.push(sorted.len() as u64);
    }
    counts
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::random::Random;

    #[test]
    fn sequences_are_those_of_a_set() {
        for (seed, keys, accesses) in [(1, 3, 2000), (2, 40, 5000), (3, 10_000, 5000), (4, 5, 4)] {
            let mut random = Random::new(seed);
            let trace: Vec<u32> = (0..accesses).map(|_| random.below(keys) as u32).collect();
            let slow = |length| trace.windows(length).collect::<HashSet<_>>().len() as u64;
            let wanted: Vec<u64> = (1..=10.min(accesses)).map(slow).collect();
            assert_eq!(unique(&trace, 10), wanted, "seed {seed}");
        }
        assert!(unique(&[], 10).is_empty());
    }
}
