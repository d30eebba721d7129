//! A small set of frame numbers that may have more than was put in.
//!
//! A segment that is given up asks it in which frames its records may be in memory too. Frames are copied
//! for a checkpoint in order, so that those of a segment are mostly neighbours: a bit for each range of
//! numbers tells them from the others, in as many bytes whatever the memory is.

/// Ranges of frame numbers: a bit for each, from the lowest numbers on, and above them the power of two
/// that says how many numbers a range has. In little memory a word more for each segment would be felt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameSet(u32);

/// How many ranges there are.
const RANGES: u32 = 27;

impl FrameSet {
    fn ranges(self) -> u32 {
        self.0 & ((1 << RANGES) - 1)
    }

    /// A range has 2 to the power of this numbers.
    fn bits(self) -> u32 {
        self.0 >> RANGES
    }

    /// Puts a number in, and with it those of its range.
    pub fn insert(&mut self, number: u32) {
        while number >> self.bits() >= RANGES {
            self.widen();
        }
        self.0 |= 1 << (number >> self.bits());
    }

    /// Puts in what another one has.
    pub fn insert_all(&mut self, mut other: Self) {
        while other.bits() < self.bits() {
            other.widen();
        }
        while self.bits() < other.bits() {
            self.widen();
        }
        self.0 |= other.ranges();
    }

    /// Whether a number was put in, or one of its range.
    pub fn may_have(self, number: u32) -> bool {
        let range = number >> self.bits();
        range < RANGES && self.ranges() >> range & 1 == 1
    }

    /// How many numbers it may have.
    pub fn count(self) -> u64 {
        u64::from(self.ranges().count_ones()) << self.bits()
    }

    /// Makes each two ranges one.
    fn widen(&mut self) {
        let all = self.ranges();
        let pairs = (0..RANGES.div_ceil(2)).filter(|range| all >> (2 * range) & 3 != 0);
        self.0 = pairs.fold((self.bits() + 1) << RANGES, |ranges, range| ranges | 1 << range);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn it_has_what_was_put_in_and_little_else() {
        for (first, count) in [(0, 100), (1000, 117), (3_000_000, 300), (u32::MAX - 50, 50)] {
            let (mut set, numbers) = (FrameSet::default(), first..first + count);
            let ranges = |set: &FrameSet| -> BTreeSet<u32> {
                numbers.clone().map(|number| number >> set.bits()).collect()
            };
            for number in numbers.clone() {
                set.insert(number);
            }
            assert!(numbers.clone().all(|number| set.may_have(number)));
            assert_eq!(set.count(), (ranges(&set).len() as u64) << set.bits());
            assert!(first == 0 || !set.may_have(first - (1 << set.bits())), "{set:?}");
        }
    }

    #[test]
    fn two_are_joined_whichever_has_the_wider_ranges() {
        let of = |numbers: &[u32]| {
            let mut set = FrameSet::default();
            numbers.iter().for_each(|&number| set.insert(number));
            set
        };
        let (narrow, wide) = (of(&[1, 2, 26]), of(&[300, 301, 5000]));
        for (mut into, other) in [(narrow, wide), (wide, narrow), (FrameSet::default(), wide)] {
            let before = into;
            into.insert_all(other);
            for number in 0..10_000 {
                let is_in = before.may_have(number) || other.may_have(number);
                assert!(into.may_have(number) || !is_in, "{number}");
            }
            assert!(into.count() <= before.count() + other.count() + 2 * (1 << into.bits()));
        }
    }

    #[test]
    fn ranges_are_widened_without_loss() {
        let mut set = FrameSet::default();
        for number in [0, 13, 26] {
            set.insert(number);
        }
        assert_eq!((set.count(), set.may_have(1)), (3, false));
        set.insert(27 + 5);
        assert_eq!(set.count(), 8);
        for number in [0, 1, 12, 13, 26, 27, 32, 33] {
            assert!(set.may_have(number), "{number}");
        }
        assert!(!set.may_have(2) && !set.may_have(34) && !set.may_have(u32::MAX));
        assert_eq!(FrameSet::default().count(), 0);
    }
}
