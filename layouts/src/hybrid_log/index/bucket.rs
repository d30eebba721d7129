//! One cache line of the index: seven entries.
//!
//! ```text
//! byte 0      14                                63
//!      tag x7 | entry x7 of 56 bits             | meta
//!      entry: address 46 | extra 7 | distance 3
//!      meta:  bit i: slot i is used; bit 7: an entry whose home this is stands elsewhere
//! ```
//!
//! Tags are compared all at once. `extra` and tag together are the 23 bits of the hash that later
//! splits need, so a split never reads a record. `distance` says how many buckets before this one
//! the entry's home is.

use super::tags_unsafe::tags_equal;
use crate::hybrid_log::address::{ADDRESS_BITS, Address};

/// Entries per bucket.
pub const SLOTS: usize = 7;
/// An entry stands at most so many buckets after its home.
pub const DISTANCE_MAX: usize = 7;
/// Bits of an entry's hash beside its tag.
pub const EXTRA_BITS: u32 = 7;

const ENTRIES_AT: usize = 2 * SLOTS;
const META_AT: usize = 63;
const OVERFLOWED: u8 = 1 << 7;
const ENTRY_MASK: u64 = (1 << 56) - 1;
const ADDRESS_MASK: u64 = (1 << ADDRESS_BITS) - 1;

/// One cache line of entries.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub struct IndexBucket([u8; 64]);

/// One entry, as it is found in a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexEntry {
    /// The record.
    pub address: Address,
    /// The low 16 bits of the hash's prefix.
    pub tag: u16,
    /// The high 7 bits of the hash's prefix.
    pub extra: u8,
    /// Buckets from its home to here.
    pub distance: u8,
}

impl IndexEntry {
    /// The 23-bit prefix of the key's hash.
    pub fn prefix(&self) -> u32 {
        u32::from(self.extra) << 16 | u32::from(self.tag)
    }
}

impl IndexBucket {
    /// A bucket without entries.
    pub const EMPTY: IndexBucket = IndexBucket([0; 64]);

    #[inline(always)]
    fn word(&self, at: usize) -> u64 {
        u64::from_le_bytes(*self.0[at..].first_chunk().expect("eight bytes"))
    }

    /// The used slots, a bit each.
    #[inline(always)]
    pub fn used(&self) -> u8 {
        self.0[META_AT] & !OVERFLOWED
    }

    /// Whether an entry whose home this is stands in another bucket.
    #[inline(always)]
    pub fn overflowed(&self) -> bool {
        self.0[META_AT] & OVERFLOWED != 0
    }

    /// Sets or clears the mark that [`overflowed`](IndexBucket::overflowed) reads.
    pub fn set_overflowed(&mut self, overflowed: bool) {
        self.0[META_AT] = self.used() | if overflowed { OVERFLOWED } else { 0 };
    }

    /// The used slots with this tag, a bit each.
    #[inline(always)]
    pub fn matches(&self, tag: u16) -> u8 {
        tags_equal(self.word(0), self.word(8), tag) & self.used()
    }

    /// The entry in a used slot.
    #[inline(always)]
    pub fn entry(&self, slot: usize) -> IndexEntry {
        debug_assert!(self.used() & (1 << slot) != 0);
        let bits = self.word(ENTRIES_AT + 7 * slot) & ENTRY_MASK;
        IndexEntry {
            address: Address(bits & ADDRESS_MASK),
            tag: u16::from_le_bytes([self.0[2 * slot], self.0[2 * slot + 1]]),
            extra: (bits >> ADDRESS_BITS) as u8 & ((1 << EXTRA_BITS) - 1),
            distance: (bits >> (ADDRESS_BITS + EXTRA_BITS)) as u8,
        }
    }

    /// An unused slot.
    #[inline]
    pub fn vacant(&self) -> Option<usize> {
        let slot = (!self.used()).trailing_zeros() as usize;
        (slot < SLOTS).then_some(slot)
    }

    /// Puts an entry into an unused slot.
    pub fn put(&mut self, slot: usize, entry: IndexEntry) {
        debug_assert!(self.used() & (1 << slot) == 0 && slot < SLOTS);
        self.0[2 * slot..2 * slot + 2].copy_from_slice(&entry.tag.to_le_bytes());
        let bits = entry.address.0
            | u64::from(entry.extra) << ADDRESS_BITS
            | u64::from(entry.distance) << (ADDRESS_BITS + EXTRA_BITS);
        let at = ENTRIES_AT + 7 * slot;
        self.0[at..at + 7].copy_from_slice(&bits.to_le_bytes()[..7]);
        self.0[META_AT] |= 1 << slot;
    }

    /// Changes the address in a used slot.
    #[inline]
    pub fn set_address(&mut self, slot: usize, address: Address) {
        let at = ENTRIES_AT + 7 * slot;
        let bits = self.word(at) & ENTRY_MASK & !ADDRESS_MASK | address.0;
        self.0[at..at + 7].copy_from_slice(&bits.to_le_bytes()[..7]);
    }

    /// Makes a used slot unused.
    pub fn clear(&mut self, slot: usize) {
        debug_assert!(self.used() & (1 << slot) != 0);
        self.0[META_AT] &= !(1 << slot);
    }

    /// Calls `visit` with each used slot.
    pub fn for_each(&self, mut visit: impl FnMut(usize, IndexEntry)) {
        let mut used = self.used();
        while used != 0 {
            let slot = used.trailing_zeros() as usize;
            used &= used - 1;
            visit(slot, self.entry(slot));
        }
    }

    /// The address in a used slot, if the entry is of a hash with this `extra` and stands
    /// `distance` after its home.
    #[inline(always)]
    pub fn address_if(&self, slot: usize, extra: u8, distance: usize) -> Option<Address> {
        let bits = self.word(ENTRIES_AT + 7 * slot) & ENTRY_MASK;
        let expected = (distance as u64) << EXTRA_BITS | u64::from(extra);
        (bits >> ADDRESS_BITS == expected).then_some(Address(bits & ADDRESS_MASK))
    }

    /// [`address_if`](IndexBucket::address_if) the entry leads to memory.
    #[inline(always)]
    pub fn memory_if(&self, slot: usize, extra: u8, distance: usize) -> Option<u64> {
        // The bit below `extra` tells storage from memory, so that one comparison does.
        let bits = self.word(ENTRIES_AT + 7 * slot) << 8;
        let expected = ((distance as u64) << EXTRA_BITS | u64::from(extra)) << 1;
        (bits >> (ADDRESS_BITS + 7) == expected).then_some(bits << 11 >> 19)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_come_back_and_tags_match() {
        let mut bucket = IndexBucket::EMPTY;
        for slot in 0..SLOTS {
            assert_eq!(bucket.vacant(), Some(slot));
            let entry = IndexEntry {
                address: Address((1 << ADDRESS_BITS) - 1 - slot as u64),
                tag: if slot % 2 == 0 { 0xffff } else { slot as u16 },
                extra: 120 + (slot % 5) as u8,
                distance: (slot % 8) as u8,
            };
            bucket.put(slot, entry);
            assert_eq!(bucket.entry(slot), entry);
        }
        assert_eq!((bucket.vacant(), bucket.matches(0xffff)), (None, 0b101_0101));
        bucket.set_overflowed(true);
        bucket.clear(2);
        assert_eq!((bucket.vacant(), bucket.matches(0xffff)), (Some(2), 0b101_0001));
        bucket.set_address(6, Address(5));
        assert_eq!((bucket.entry(6).address, bucket.entry(6).extra), (Address(5), 121));
        assert!(bucket.overflowed());
        bucket.set_address(6, Address((1 << 45) - 1));
        assert_eq!(bucket.memory_if(6, 121, 6), Some((1 << 45) - 1));
        assert_eq!((bucket.memory_if(6, 120, 6), bucket.memory_if(6, 121, 5)), (None, None));
        let stored = bucket.entry(5);
        assert!(!stored.address.is_memory());
        assert_eq!(bucket.memory_if(5, stored.extra, stored.distance as usize), None);
        assert_eq!((bucket.entry(5).address.0, bucket.matches(0)), ((1 << ADDRESS_BITS) - 6, 0));
    }
}
