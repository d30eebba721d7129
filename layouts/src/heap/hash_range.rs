//! The hashes of the key groups that a table owns.

use std::ops::Range;

/// The hashes of the key groups that a table owns, stretched over all of `u64`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashRange {
    lo: u64,
    shift: u32,
}

impl HashRange {
    /// Of the key groups `owned`, of `groups`.
    pub fn of(owned: &Range<u16>, groups: u16) -> Self {
        let first = |group: u16| (u64::from(group) << 16).div_ceil(u64::from(groups));
        let (lo, hi) = (first(owned.start), first(owned.end));
        Self { lo: lo << 48, shift: (((hi - lo) << 48).wrapping_sub(1)).leading_zeros() }
    }

    /// Where a key with this hash stands. Keeps the order of the hashes it owns.
    #[inline(always)]
    pub fn place(self, hash: u64) -> u64 {
        hash.wrapping_sub(self.lo) << self.shift
    }

    /// The lowest hash of the range.
    #[inline(always)]
    pub(crate) fn first_hash(self) -> u64 {
        self.lo
    }

    /// Upper bits that are the same in all hashes above the lowest.
    pub(crate) fn same_bits(self) -> u32 {
        self.shift
    }

    /// The first hash that does not stand before a place. None: all do.
    pub fn hash_from(self, place: u64) -> Option<u64> {
        self.lo.checked_add(place >> self.shift)
    }

    /// The hash that stands at a place.
    pub fn hash(self, place: u64) -> u64 {
        self.lo.wrapping_add(place >> self.shift)
    }
}
