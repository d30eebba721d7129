//! The entries of a range of hashes.
//!
//! A segment has the entries of one prefix, so that a range of hashes is a range of segments. What the
//! entry keeps of its hash tells which entries of the segments at both ends are of the range: no record
//! is read for that.

use super::{Index, IndexHash, PREFIX_BITS};
use crate::hybrid_log::address::Address;

/// At most so many levels deeper than an even split: the directory takes up to 12 bytes for each.
const ALIKE_MAX: u32 = 8;

impl IndexHash {
    /// The 23 bits that order the entries.
    pub fn prefix(self) -> u32 {
        self.0 >> 9
    }
}

impl Index {
    /// The prefix of a place among the hashes.
    pub fn prefix_of(place: u64) -> u32 {
        (place >> (64 - PREFIX_BITS)) as u32
    }

    /// The first place of a prefix.
    pub fn place_of(prefix: u32) -> u64 {
        u64::from(prefix) << (64 - PREFIX_BITS)
    }

    /// All keys may be of one of so many key groups.
    pub fn expect_few_of(&mut self, groups: u16) {
        self.alike = u16::BITS - groups.saturating_sub(1).leading_zeros();
        self.alike = self.alike.min(ALIKE_MAX);
    }

    /// Calls `visit` with the entries of the segment that holds prefix `from` whose prefixes are from
    /// there to `last`; returns how many there are in the segment, and the first prefix after it.
    pub fn visit_prefixes(
        &self,
        from: u32,
        last: u32,
        mut visit: impl FnMut(IndexHash, Address),
    ) -> (u64, Option<u32>) {
        let number = self.segment_of(IndexHash::new(from, 0));
        let (homes, mut looked_at) = (self.buckets - 1, 0);
        let mut give = |hash: IndexHash, address| {
            looked_at += 1;
            if (from..=last).contains(&hash.prefix()) {
                visit(hash, address);
            }
        };
        for (at, bucket) in self.segments.buckets(number).iter().enumerate() {
            bucket.for_each(|_, entry| {
                let home = at.wrapping_sub(entry.distance as usize) & homes;
                give(IndexHash::new(entry.prefix(), home as u32), entry.address);
            });
        }
        for &(hash, address) in &self.strays {
            if self.segment_of(hash) == number {
                give(hash, address);
            }
        }
        let (depth, prefix) = self.segments.shape(number);
        let end = (u64::from(prefix) + 1) << (PREFIX_BITS - depth);
        (looked_at, (end < 1 << PREFIX_BITS).then_some(end as u32))
    }
}
