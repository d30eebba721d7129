//! A binary fuse filter: one byte a slot, about 1.2 slots a hash, wrong about one absent hash in 256. A *wide* one has a
//! second byte for each slot, in a table behind the first, and is wrong about one in 65,536.
//!
//! A hash has three slots, in three neighbouring segments of the table; it is in the filter if the bytes of the three
//! add up (by exclusive or) to its fingerprint. To build one is to find an order in which each hash has a slot that no
//! later one has (Graf and Lemire, "Binary Fuse Filters", 2022).
//!
//! The filter is ours because its bytes are stored: a release of a crate that chose slots in another way would say no
//! to hashes that are there, which is loss that nobody sees. And its builder takes no memory of its own: what it
//! works in is made once, of a size that is known before.

use crate::support::prefetch_unsafe::prefetch;

/// How the slots of a filter are chosen; stored beside them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FilterShape {
    /// Chooses the slots. The builder tries one after the other.
    pub seed: u32,
    /// A segment has two to this power slots.
    pub segment_log: u8,
    /// Places where three neighbouring segments begin. 0: there is no filter, and all hashes may be there.
    pub windows: u32,
    /// Whether there is a second table.
    pub is_wide: bool,
}

/// Seeds that are tried. One in a hundred fails, so that all of them never do.
const SEEDS: u32 = 64;
/// Three slots are chosen by twelve bits each.
const SEGMENT_LOG_MAX: u8 = 12;

impl FilterShape {
    /// That of a filter of so many hashes.
    pub fn of(hashes: usize, is_wide: bool) -> Self {
        let logarithm = (hashes.max(2) as f64).ln();
        let segment_log = (logarithm / 3.33f64.ln() + 2.25).floor() as u8;
        let segment_log = segment_log.min(SEGMENT_LOG_MAX);
        let factor = (0.875 + 0.25 * 1e6f64.ln() / logarithm).max(1.125);
        let segments = ((hashes as f64 * factor) as usize).div_ceil(1 << segment_log);
        let windows = segments.saturating_sub(2).max(1) as u32;
        Self { seed: 0, segment_log, windows, is_wide }
    }

    /// Bytes of all tables.
    pub fn bytes(&self) -> usize {
        self.slots() << u32::from(self.is_wide)
    }

    /// Slots, each a byte of a table.
    fn slots(&self) -> usize {
        if self.windows == 0 { 0 } else { (self.windows as usize + 2) << self.segment_log }
    }

    /// Whether a filter can have this shape.
    pub fn is_possible(&self) -> bool {
        self.segment_log <= SEGMENT_LOG_MAX
    }

    /// The most slots that filters of up to so many hashes have.
    fn slots_most(hashes: usize) -> usize {
        // Segments double in length where the number of hashes grows by 3.33; before that, two may be too many.
        let shape = Self::of(hashes, false);
        shape.slots() + (2 << shape.segment_log)
    }

    /// Bytes of the longest filter of up to so many hashes.
    pub fn bytes_most(hashes: usize, is_wide: bool) -> usize {
        Self::slots_most(hashes) << u32::from(is_wide)
    }

    /// What slots and fingerprint are chosen by. Hashes of a partition agree in their first bits.
    fn mixed(&self, hash: u64) -> u64 {
        let seeded = hash ^ (u64::from(self.seed) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = (seeded ^ (seeded >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
        (mixed ^ (mixed >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93) ^ (mixed >> 29)
    }

    fn slots_of(&self, mixed: u64) -> [usize; 3] {
        let window = ((u128::from(mixed) * u128::from(self.windows)) >> 64) as usize;
        let (log, mask) = (self.segment_log, (1usize << self.segment_log) - 1);
        [0, 1, 2].map(|nth| {
            let within = (mixed >> (nth * SEGMENT_LOG_MAX as usize)) as usize & mask;
            ((window + nth) << log) + within
        })
    }

    fn fingerprint(mixed: u64) -> u8 {
        (mixed >> 38) as u8
    }

    /// That of the second table.
    fn second_fingerprint(mixed: u64) -> u8 {
        (mixed >> 46) as u8
    }

    /// Hints the processor to load the slots of a hash.
    pub fn prefetch(&self, slots: &[u8], hash: u64) {
        if self.windows > 0 {
            self.slots_of(self.mixed(hash)).into_iter().for_each(|slot| prefetch(&slots[slot]));
        }
    }

    /// Whether the hash may be in the filter of this shape with these slots. It is for sure not, if not.
    pub fn may_have(&self, slots: &[u8], hash: u64) -> bool {
        if self.windows == 0 {
            return true;
        }
        let mixed = self.mixed(hash);
        let at = self.slots_of(mixed);
        let sum = |table: &[u8]| at.into_iter().fold(0, |sum, slot| sum ^ table[slot]);
        sum(slots) == Self::fingerprint(mixed)
            && (!self.is_wide || sum(&slots[self.slots()..]) == Self::second_fingerprint(mixed))
    }
}

/// What filters are built in.
#[derive(Debug)]
pub(super) struct FilterBuilder {
    /// For each slot the sum of the hashes that have it; of the slots that were taken, their hash.
    sums: Vec<u64>,
    counts: Vec<u8>,
    /// Slots that one hash has, in the order in which they are taken.
    single: Vec<u32>,
}

impl FilterBuilder {
    /// Bytes that a builder of filters of up to so many hashes takes.
    pub fn memory_bytes(hashes: usize) -> u64 {
        let slots = FilterShape::slots_most(hashes);
        (slots * (size_of::<u64>() + 1) + (slots + 1) * size_of::<u32>()) as u64
    }

    /// A builder for up to so many hashes.
    pub fn new(hashes: usize) -> Self {
        let slots = FilterShape::slots_most(hashes);
        Self {
            sums: Vec::with_capacity(slots),
            counts: Vec::with_capacity(slots),
            // One is written behind the last, and not counted.
            single: Vec::with_capacity(slots + 1),
        }
    }

    /// Builds the filter of distinct hashes at the end of `to`. If no seed does, there is none.
    pub fn build(&mut self, hashes: &[u64], is_wide: bool, to: &mut Vec<u8>) -> FilterShape {
        let mut shape = FilterShape::of(hashes.len(), is_wide);
        while shape.seed < SEEDS {
            if self.take_slots(shape, hashes) {
                let start = to.len();
                to.resize(start + shape.bytes(), 0);
                self.fill(shape, &mut to[start..]);
                return shape;
            }
            shape.seed += 1;
        }
        FilterShape::default()
    }

    /// Finds a slot for each hash, and says whether all have one.
    fn take_slots(&mut self, shape: FilterShape, hashes: &[u64]) -> bool {
        if !self.count(shape, hashes) {
            return false;
        }
        let slots = shape.slots();
        let Self { sums, counts, single } = self;
        // Without branches: which slots are single nobody can foretell. What is no single slot is written over.
        single.clear();
        single.resize(slots + 1, 0);
        let mut known = 0;
        for (slot, count) in counts[..slots].iter().enumerate() {
            single[known] = slot as u32;
            known += usize::from(*count == 1);
        }
        // Slots before `taken` are those of hashes; what stands from `next` on is to be looked at.
        let (mut taken, mut next) = (0, 0);
        while next < known {
            let slot = single[next] as usize;
            next += 1;
            if counts[slot] != 1 {
                continue;
            }
            single[taken] = slot as u32;
            taken += 1;
            let mixed = sums[slot];
            for other in shape.slots_of(mixed) {
                counts[other] -= 1;
                sums[other] ^= mixed;
                single[known] = other as u32;
                known += usize::from(counts[other] == 1);
            }
            sums[slot] = mixed;
        }
        single.truncate(taken);
        taken == hashes.len()
    }

    /// Counts the hashes of each slot. Says no if a slot has more than can be counted.
    fn count(&mut self, shape: FilterShape, hashes: &[u64]) -> bool {
        let Self { sums, counts, .. } = self;
        sums.clear();
        sums.resize(shape.slots(), 0);
        counts.clear();
        counts.resize(shape.slots(), 0);
        for &hash in hashes {
            let mixed = shape.mixed(hash);
            for slot in shape.slots_of(mixed) {
                sums[slot] ^= mixed;
                match counts[slot].checked_add(1) {
                    Some(count) => counts[slot] = count,
                    None => return false,
                }
            }
        }
        true
    }

    /// Fills the slots of all tables: the last taken first, as the others of its hash were taken later or by nobody.
    fn fill(&self, shape: FilterShape, tables: &mut [u8]) {
        let (first, second) = tables.split_at_mut(shape.slots());
        for &slot in self.single.iter().rev() {
            let mixed = self.sums[slot as usize];
            let [one, two, three] = shape.slots_of(mixed);
            // Its own slot is empty still.
            let sum = first[one] ^ first[two] ^ first[three];
            first[slot as usize] = sum ^ FilterShape::fingerprint(mixed);
            if shape.is_wide {
                let sum = second[one] ^ second[two] ^ second[three];
                second[slot as usize] = sum ^ FilterShape::second_fingerprint(mixed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alluvium_pagestore::hash_word;

    /// `count` distinct hashes of the 64th part of all.
    fn hashes(count: usize, seed: u64) -> Vec<u64> {
        let mut hashes: Vec<u64> =
            (0..count as u64).map(|nth| hash_word(nth ^ seed << 40) >> 6 | 7 << 58).collect();
        hashes.sort_unstable();
        hashes.dedup();
        hashes
    }

    #[test]
    fn no_hash_is_missed_and_few_are_supposed() {
        let counts = [1, 2, 3, 7, 20, 100, 999, 4096, 16384, 60000];
        let mut builder = FilterBuilder::new(60000);
        for count in counts {
            for seed in 0..if count < 1000 { 50 } else { 3 } {
                let there = hashes(count, seed);
                let mut slots = vec![1, 2, 3];
                let is_wide = seed % 2 == 1;
                let shape = builder.build(&there, is_wide, &mut slots);
                assert!(shape.windows > 0 && slots[..3] == [1, 2, 3], "{count} {seed}");
                let slots = &slots[3..];
                assert_eq!(slots.len(), shape.bytes());
                assert!(there.iter().all(|hash| shape.may_have(slots, *hash)), "{count} {seed}");
                let others = hashes(100_000, seed + 1000);
                let wrong = others.iter().filter(|hash| shape.may_have(slots, **hash)).count();
                assert!(
                    wrong < if is_wide { 12 } else { 560 },
                    "{count} {seed}: {wrong} of 100,000"
                );
            }
        }
    }

    #[test]
    fn a_filter_takes_the_bits_that_the_design_says_and_no_more_memory_than_told() {
        for (count, bits) in [(2048, 11.1), (16384, 10.1), (65536, 9.6)] {
            let bits_used = FilterShape::of(count, false).bytes() as f64 * 8.0 / count as f64;
            assert!(bits_used < bits, "{count}: {bits_used}");
        }
        for most in [1, 5, 100, 5000, 20000] {
            let mut builder = FilterBuilder::new(most);
            let held = |b: &FilterBuilder| {
                b.sums.capacity() * 8 + b.counts.capacity() + b.single.capacity() * 4
            };
            let told = FilterBuilder::memory_bytes(most);
            for count in [1, most / 3 + 1, most / 2 + 1, most - most / 10, most] {
                let shape = builder.build(&hashes(count, 9), true, &mut Vec::new());
                assert!(shape.bytes() <= FilterShape::bytes_most(most, true), "{count} of {most}");
                assert!(held(&builder) as u64 <= told, "{count} of {most}");
            }
        }
    }

    #[test]
    fn what_cannot_be_filtered_may_all_be_there() {
        // Equal hashes have no slots of their own.
        let shape = FilterBuilder::new(4).build(&[5, 5], true, &mut Vec::new());
        assert_eq!(shape, FilterShape::default());
        assert!(shape.may_have(&[], 9) && shape.slots() == 0);
    }

    /// Filters are stored: a change here needs a new version of the format.
    #[test]
    fn slots_are_pinned() {
        let shape = FilterShape { seed: 3, segment_log: 7, windows: 5, is_wide: true };
        let all = [0, 1, u64::MAX].map(|hash| shape.slots_of(shape.mixed(hash)));
        let prints = [0, 1, u64::MAX].map(|hash| FilterShape::fingerprint(shape.mixed(hash)));
        assert_eq!(all, [[217, 329, 397], [109, 206, 290], [404, 524, 667]]);
        assert_eq!(prints, [44, 244, 120]);
        let told = [0, 1, u64::MAX].map(|hash| FilterShape::second_fingerprint(shape.mixed(hash)));
        assert_eq!(told, [61, 184, 167]);
    }
}
