//! The part of the memory that the index may have, which is judged by the reads that look-ups make.
//!
//! The index entry of a record on storage saves no read: without it the key takes one read as well, if the guides of its
//! runs are in memory. A guide that has no room there takes a read for each look-up that needs it. These reads are the
//! ghost hits of what memory lacks. They are all counted, so that no list of what has left is kept.
//!
//! What it keeps true: the index may have no more than [`INDEX_PERCENT_MAX`], and no less than [`INDEX_PERCENT_MIN`]. It
//! has less than the most only where guides were read, and no less than before once they have [their part](GUIDE_SHARE).

use super::{ColdTier, GUIDE_SHARE};
use crate::runs::RunReads;

/// Hundredths of the memory that the index may have, at most and at least.
pub const INDEX_PERCENT_MAX: u64 = 50;
const INDEX_PERCENT_MIN: u64 = 12;
/// It may have one part in so many less for each move, if one read of guides or more comes for so many of records.
const LESS_SHARE: u64 = 8;
const MANY_GUIDES: u64 = 8;
/// It may have a hundredth more, if fewer come than for so many.
const FEW_GUIDES: u64 = 64;
/// Fewer reads say nothing.
const READS_MIN: u64 = 256;

/// The part of the memory that the index may have.
#[derive(Debug)]
pub struct IndexShare {
    percent: u64,
    is_fixed: bool,
    /// Reads of records and of guides when it was last judged.
    judged: (u64, u64),
}

impl IndexShare {
    /// The most, or what is told, for good.
    pub fn new(told: Option<u64>) -> Self {
        let percent = told.unwrap_or(INDEX_PERCENT_MAX);
        Self { percent, is_fixed: told.is_some(), judged: (0, 0) }
    }

    /// Hundredths of the memory.
    pub fn percent(&self) -> u64 {
        self.percent
    }

    /// Judges it by all reads so far. Guides may have room of more memory, or not.
    fn judge(&mut self, reads: RunReads, may_have_more: bool) {
        let records = reads.chunks.saturating_sub(self.judged.0);
        let guides = reads.guides.saturating_sub(self.judged.1);
        if self.is_fixed || records + guides < READS_MIN {
            return;
        }
        self.judged = (reads.chunks, reads.guides);
        if MANY_GUIDES * guides >= records && may_have_more {
            let less = self.percent - self.percent.div_ceil(LESS_SHARE);
            self.percent = less.max(INDEX_PERCENT_MIN);
        } else if FEW_GUIDES * guides < records {
            self.percent = (self.percent + 1).min(INDEX_PERCENT_MAX);
        }
    }
}

impl ColdTier {
    /// Judges what the index may have, after each move. Cost: O(runs).
    pub(super) fn judge_share(&mut self) {
        // The little memory of tests is no measure.
        if !self.is_of_test() {
            let may_have_more = self.guide_bytes() < self.wanted.memory / GUIDE_SHARE;
            self.share.judge(self.levels.reads(), may_have_more);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reads(chunks: u64, guides: u64) -> RunReads {
        RunReads { chunks, guides, ..RunReads::default() }
    }

    #[test]
    fn the_index_gives_memory_to_guides_that_are_read_and_takes_it_back() {
        let mut share = IndexShare::new(None);
        share.judge(reads(100, 100), true);
        assert_eq!(share.percent(), 50, "too few reads");
        share.judge(reads(1_000, 1_000), true);
        assert_eq!(share.percent(), 43);
        share.judge(reads(2_000, 2_000), false);
        assert_eq!(share.percent(), 43, "guides have their part");
        share.judge(reads(10_000, 2_500), true);
        assert_eq!(share.percent(), 43, "neither many nor few");
        let mut guides = 2_500;
        for step in 1..50 {
            guides += 10_000;
            share.judge(reads(10_000 + step, guides), true);
        }
        assert_eq!(share.percent(), INDEX_PERCENT_MIN);
        for step in 1..100 {
            share.judge(reads(20_000 + step * 1_000, guides), true);
        }
        assert_eq!(share.percent(), INDEX_PERCENT_MAX);
        let mut fixed = IndexShare::new(Some(80));
        fixed.judge(reads(10_000, 10_000), true);
        assert_eq!(fixed.percent(), 80);
    }
}
