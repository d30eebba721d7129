//! The random sequence of one event: SplitMix64, seeded by the stream's seed and the event's id.
//!
//! The sequence is part of the workload: it is fixed here, pinned by tests, and depends on no
//! library and no platform. Every event has its own, so no event depends on an earlier one.

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// SplitMix64's output function: a bijection of 64-bit words without visible structure.
pub(crate) const fn mix(mut word: u64) -> u64 {
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// A stream of random words; equal seeds give equal streams for ever.
#[derive(Clone, Debug)]
pub(crate) struct Random {
    state: u64,
}

impl Random {
    /// The sequence that belongs to `seed`.
    pub(crate) const fn new(seed: u64) -> Self {
        Random { state: seed }
    }

    /// The seed of event `id` in the stream of `seed`.
    pub(crate) const fn seed_of(seed: u64, id: u64) -> u64 {
        mix(seed ^ mix(id.wrapping_add(GOLDEN)))
    }

    /// The next word.
    pub(crate) const fn word(&mut self) -> u64 {
        self.state = self.state.wrapping_add(GOLDEN);
        mix(self.state)
    }

    /// A number in `0..bound`, by the high half of a product: the bias is below bound / 2^64.
    pub(crate) const fn below(&mut self, bound: u64) -> u64 {
        ((self.word() as u128 * bound as u128) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_is_the_published_one() {
        // First outputs of SplitMix64 for seed 1234567, as listed by Rosetta Code.
        let mut random = Random::new(1_234_567);
        let words = [random.word(), random.word(), random.word()];
        assert_eq!(words, [6457827717110365317, 3203168211198807973, 9817491932198370423]);
    }

    #[test]
    fn numbers_below_a_bound_fill_it_evenly() {
        let mut random = Random::new(1);
        let mut seen = [0u32; 13];
        (0..130_000).for_each(|_| seen[random.below(13) as usize] += 1);
        assert!(seen.iter().all(|&n| (9_500..10_500).contains(&n)), "{seen:?}");
    }
}
