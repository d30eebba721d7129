//! The view of a log that compaction has: its segments, and how to rewrite them in bounded steps.
//!
//! Layouts implement [`Rewrite`] and compaction drives it; neither depends on the other. The caller
//! chooses the segment and the time. The implementor guarantees three things: no live record is
//! lost; a record written while its older copy moves wins; a copy is served only once it is whole.

use crate::Result;

/// What a policy knows about one segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentMeta {
    /// Unique id, never reused.
    pub id: u64,
    /// Position in the order of sealing: lower is older.
    pub sequence: u64,
    /// Bytes the segment occupies.
    pub bytes: u64,
    /// Records in it.
    pub records: u64,
    /// Live records: the newest of their keys, and tombstones that still hide an older record in
    /// this or a retained image. At most `records`. Never rises once the segment is sealed.
    pub live_records: u64,
    /// Whether the segment is durable and never changes again.
    pub sealed: bool,
    /// Whether something else needs the file: a retained checkpoint names it, or a read or an
    /// export is in progress. A dead segment that is not pinned stays so.
    pub pinned: bool,
    /// Whether all records have expired. No call returns them any more, but the index still has
    /// those that count as live. Rewriting the segment copies nothing.
    pub expired: bool,
}

impl SegmentMeta {
    /// Returns the estimated bytes of the live records, `bytes * live_records / records`: all
    /// records count as equally long.
    #[inline]
    pub fn live_bytes(&self) -> u64 {
        if self.live_records >= self.records {
            return if self.records == 0 { 0 } else { self.bytes };
        }
        (self.bytes as f64 * (self.live_records as f64 / self.records as f64)) as u64
    }

    /// Returns whether the segment is sealed and has no live record.
    #[inline]
    pub fn is_dead(&self) -> bool {
        self.sealed && self.live_records == 0
    }
}

/// The progress of one [`Rewrite::step`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RewriteProgress {
    /// More is to do. `spent` counts the records examined or moved. At 0 the rewrite waits for a
    /// read or for memory; calling again at once achieves nothing.
    Working {
        /// Fuel used.
        spent: usize,
    },
    /// No record of the segment is live any more. Or the rest is postponed until something long
    /// ends, such as a checkpoint; until then [`segments`](Rewrite::segments) reports the segment
    /// as not sealed.
    Done {
        /// Fuel used.
        spent: usize,
    },
}

/// Fuel from which a caller lets steps [wait](Rewrite::be_patient): it is behind, or has time.
pub const PATIENT_FUEL: usize = 4096;

/// A log whose sealed segments can be rewritten: it appends their live records again and removes
/// the file.
///
/// One unit of fuel is one record examined or moved.
pub trait Rewrite {
    /// Announces the segments that will be rewritten next, in this order. An implementation can do
    /// work for all of them in the steps of the first. Cost: O(segments announced), no I/O.
    fn foresee(&mut self, segments: &[u64]) {
        let _ = segments;
    }

    /// Starts to rewrite a sealed segment. Gives up an unfinished rewrite of another; records it
    /// moved stay moved. Cost: O(1) and at most one read. An error means that nothing started.
    fn begin(&mut self, segment: u64) -> Result<()>;

    /// Sets whether steps may wait for a helper's answer, for up to about a millisecond.
    fn be_patient(&mut self, patient: bool) {
        let _ = patient;
    }

    /// Continues with the segment started last, using about `fuel`. An error loses nothing; another
    /// `step` continues where this one failed.
    fn step(&mut self, fuel: usize) -> Result<RewriteProgress>;

    /// Removes a dead segment that is not pinned. Gives up a running rewrite of it. Succeeds if the
    /// segment is gone already.
    fn unlink(&mut self, segment: u64) -> Result<()>;

    /// Appends all segments, in any order, to `out`. Cost: O(segments), no I/O.
    fn segments(&self, out: &mut Vec<SegmentMeta>);

    /// Returns the bytes below which a sealed segment is small: compaction merges many small ones.
    /// Default: 0, no segment.
    fn small_bytes(&self) -> u64 {
        0
    }

    /// Returns the estimated bytes on storage that the live records which are only in memory would
    /// take. Cost: as [`segments`](Rewrite::segments). Default: 0.
    fn unstored_bytes(&self) -> u64 {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn live_bytes_are_proportional_to_live_records() {
        let segment = SegmentMeta { bytes: 1000, records: 8, ..SegmentMeta::default() };
        assert_eq!(segment.live_bytes(), 0);
        assert_eq!(SegmentMeta { live_records: 2, ..segment }.live_bytes(), 250);
        assert_eq!(SegmentMeta { live_records: 8, ..segment }.live_bytes(), 1000);
        assert_eq!(SegmentMeta { records: 0, ..segment }.live_bytes(), 0);
    }
}
