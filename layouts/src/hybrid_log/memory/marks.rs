//! The word of a slot: whether it is used, and what is known of its record.
//!
//! What it keeps true: the grain of a record and all that is said of it are in one word of 32 bits, which its owner and
//! the helper that writes it may both change.

use crate::hybrid_log::address::GRAIN_BITS;

pub(in crate::hybrid_log) const USED: u32 = 1 << 31;
/// The record has died, but stays for whoever writes it: in an even epoch, or in an odd one.
pub(in crate::hybrid_log) const DIED: [u32; 2] = [1 << 30, 1 << 29];
/// The record may have changed since it was copied. Of no meaning unless it is fresh.
///
/// Every change sets it, also one that finds it set: a store to a line that is changed anyway. To test
/// instead whether this is the first change would be a branch that goes either way at random.
pub(in crate::hybrid_log) const TOUCHED: u32 = 1 << 28;
/// The record is *fresh*, on storage nowhere, since it was changed in the epoch with this number; 0 if it is not. With
/// the barrier of a checkpoint all that are fresh since others become those it is to have. Numbers come again after
/// [`MarkEpoch::COUNT`] barriers: by then no record may have them.
pub(in crate::hybrid_log) const SINCE: u32 = 127 << GRAIN_BITS;
pub(in crate::hybrid_log) const GRAIN: u32 = (1 << GRAIN_BITS) - 1;
/// In a frame of copies, whose records neither die nor change: the first record of another frame.
pub(in crate::hybrid_log) const FIRST: u32 = TOUCHED;

/// What a mark has of an epoch: one of a few numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::hybrid_log) struct MarkEpoch(u32);

impl MarkEpoch {
    pub(in crate::hybrid_log) const FIRST: Self = Self(1 << GRAIN_BITS);
    /// So many after one comes the same again.
    pub(in crate::hybrid_log) const COUNT: u32 = SINCE >> GRAIN_BITS;

    /// The one after it.
    pub(in crate::hybrid_log) fn next(self) -> Self {
        if self.0 == SINCE { Self::FIRST } else { Self(self.0 + Self::FIRST.0) }
    }

    /// What is fresh since others than this one.
    pub(in crate::hybrid_log) fn due(self) -> FreshFilter {
        FreshFilter { not_since: self.0 }
    }

    #[inline(always)]
    pub(in crate::hybrid_log) fn mark(self) -> u32 {
        self.0
    }

    #[inline(always)]
    pub(in crate::hybrid_log) fn number(self) -> u8 {
        number_of(self.0)
    }
}

/// The number of the epoch since which a record is fresh; 0 if it is not.
#[inline(always)]
pub(in crate::hybrid_log) fn number_of(word: u32) -> u8 {
    ((word & SINCE) >> GRAIN_BITS) as u8
}

/// Which fresh records are meant.
#[derive(Clone, Copy, Debug)]
pub(in crate::hybrid_log) struct FreshFilter {
    /// Not those that are fresh since this epoch; 0 for all.
    pub(in crate::hybrid_log) not_since: u32,
}

impl FreshFilter {
    /// All that are fresh.
    pub(in crate::hybrid_log) const ALL: Self = Self { not_since: 0 };
}
