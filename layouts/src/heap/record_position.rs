//! The place on storage of a heap entry's record, in four bytes.

/// Bits of a place for the grain: those of the longest segment.
const GRAIN_BITS: u32 = 21;

/// The place of an entry's record: the number of a segment in the last checkpoints, and the
/// position in it. No record starts at the first grain of a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordPosition(u32);

impl RecordPosition {
    /// The place of an entry that no checkpoint contains.
    pub const NONE: Self = Self(0);
    /// Slots that there can be.
    pub(crate) const SLOTS_MAX: usize = 1 << (u32::BITS - GRAIN_BITS);

    pub(crate) fn of(slot: u32, grain: u32) -> Self {
        debug_assert!(grain > 0 && grain >> GRAIN_BITS == 0 && (slot as usize) < Self::SLOTS_MAX);
        Self(slot << GRAIN_BITS | grain)
    }

    pub(crate) fn slot(self) -> usize {
        (self.0 >> GRAIN_BITS) as usize
    }

    pub(crate) fn grain(self) -> u32 {
        self.0 & ((1 << GRAIN_BITS) - 1)
    }

    /// As a plain word: those can be had zeroed without being touched.
    #[inline]
    pub(crate) fn word(self) -> u32 {
        self.0
    }

    #[inline]
    pub(crate) fn from_word(word: u32) -> Self {
        Self(word)
    }
}
