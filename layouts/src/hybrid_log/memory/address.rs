//! The place of a record: in a frame of memory, or in a segment on storage.
//!
//! An address has 46 bits; the top bit distinguishes memory and storage. Neither half ever runs
//! out. Frame numbers are reused once no index entry points into the frame, segment numbers once
//! the segment is dropped and nothing points into it. Only the id in the segment's file name grows
//! for ever.

use alluvium_pagestore::GRAIN_BYTES;

/// Bits of an [`Address`].
pub const ADDRESS_BITS: u32 = 46;
const STORED: u64 = 1 << (ADDRESS_BITS - 1);
/// Bits of a grain.
pub const GRAIN_BITS: u32 = 21;

/// A record's place in memory or on storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Address(pub u64);

/// An [`Address`] taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location {
    /// The slot number, counted over all frames.
    Memory(u64),
    /// A record of a segment.
    Stored(StoredAt),
}

/// A record of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredAt {
    /// Number in the table of segments.
    pub segment: u32,
    /// Offset in the segment, in grains.
    pub grain: u32,
}

impl StoredAt {
    /// Byte offset in the segment.
    pub fn offset(self) -> u64 {
        u64::from(self.grain) * GRAIN_BYTES
    }
}

impl Address {
    /// The address of a slot in memory.
    #[inline]
    pub fn memory(slot: u64) -> Address {
        debug_assert!(slot < STORED);
        Address(slot)
    }

    /// The address of a record on storage.
    #[inline]
    pub fn stored(at: StoredAt) -> Address {
        debug_assert!(at.grain < 1 << GRAIN_BITS && u64::from(at.segment) << GRAIN_BITS < STORED);
        Address(STORED | u64::from(at.segment) << GRAIN_BITS | u64::from(at.grain))
    }

    /// Which of the two it is.
    #[inline]
    pub fn place(self) -> Location {
        if self.0 & STORED == 0 {
            return Location::Memory(self.0);
        }
        Location::Stored(StoredAt {
            segment: ((self.0 & !STORED) >> GRAIN_BITS) as u32,
            grain: (self.0 & ((1 << GRAIN_BITS) - 1)) as u32,
        })
    }

    /// Whether the record is in memory.
    #[inline]
    pub fn is_memory(self) -> bool {
        self.0 & STORED == 0
    }
}

/// Segments that can be told apart at one time.
pub const SEGMENTS_MAX: usize = 1 << (ADDRESS_BITS - 1 - GRAIN_BITS);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_apart_as_they_were_put_together() {
        for slot in [0, 1, STORED - 1] {
            assert_eq!(Address::memory(slot).place(), Location::Memory(slot));
        }
        for segment in [0, 1, SEGMENTS_MAX as u32 - 1] {
            for grain in [1, (1 << GRAIN_BITS) - 1] {
                let at = StoredAt { segment, grain };
                let address = Address::stored(at);
                assert_eq!(address.place(), Location::Stored(at));
                assert!(!address.is_memory() && address.0 < 1 << ADDRESS_BITS);
            }
        }
    }
}
