//! What a log shows of its segments, and how it lets them be rewritten in bounded steps.
//!
//! Layouts implement [`Rewrite`], compaction drives it, neither knows the other. Which segment,
//! and when, is the caller's business; that no live record is lost, that a record written while
//! its older copy is being moved wins, and that a copy is never served before it is whole, is the
//! implementor's.

use crate::Result;

/// What a policy may know of one segment.
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
    /// Records that cannot be missed: the newest of their keys, and tombstones that still hide an
    /// older record in this or a retained image. At most `records`; of a sealed segment it never
    /// rises.
    pub live_records: u64,
    /// True once the segment is durable and never changes again.
    pub sealed: bool,
    /// True while something else needs the file: a retained checkpoint names it, a read or an
    /// export is under way. A dead segment that is not pinned stays so.
    pub pinned: bool,
    /// True once the time of all of its records is over: nobody sees them any more, but those that
    /// count as live are still indexed. Rewriting it copies nothing.
    pub expired: bool,
}

impl SegmentMeta {
    /// Estimated bytes of the live records: `bytes * live_records / records`, as if all records
    /// had one size.
    #[inline]
    pub fn live_bytes(&self) -> u64 {
        if self.live_records >= self.records {
            return if self.records == 0 { 0 } else { self.bytes };
        }
        (self.bytes as f64 * (self.live_records as f64 / self.records as f64)) as u64
    }

    /// True for a sealed segment without live records.
    #[inline]
    pub fn is_dead(&self) -> bool {
        self.sealed && self.live_records == 0
    }
}

/// How far one [`Rewrite::step`] came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// More is to do. `spent` counts the records looked at or moved; 0 means that the target
    /// waits (for a read, for memory) and that calling again at once is of no use.
    Working {
        /// Fuel used.
        spent: usize,
    },
    /// No record of the segment is live any more; or the rest is put off until something is over that
    /// lasts, such as a checkpoint: until then the segment is shown as if it were not sealed.
    Done {
        /// Fuel used.
        spent: usize,
    },
}

/// Whoever has so much fuel to spend lets steps [wait](Rewrite::be_patient): it is behind, or has the time.
pub const PATIENT_FUEL: usize = 4096;

/// A log whose sealed segments can be rewritten: its live records appended anew, its file removed.
///
/// One unit of fuel is one record looked at or moved.
pub trait Rewrite {
    /// The first of these segments is begun next, and after it the others, in this order, as things are now. What
    /// costs as much for one as for all of them is best done once, in the steps of the first. Cost: O(their
    /// number), no I/O.
    fn foresee(&mut self, segments: &[u64]) {
        let _ = segments;
    }

    /// Starts to rewrite a sealed segment. An unfinished rewrite of another one is given up: what
    /// it moved stays moved. Cost: O(1) and at most one read. After an error nothing has begun.
    fn begin(&mut self, segment: u64) -> Result<()>;

    /// Whether steps may wait from now on, for up to about a millisecond, until a helper has answered.
    fn be_patient(&mut self, patient: bool) {
        let _ = patient;
    }

    /// Goes on with the segment begun last, using about `fuel`. An error loses nothing and may be
    /// followed by another `step`, which takes up where this one failed.
    fn step(&mut self, fuel: usize) -> Result<Progress>;

    /// Removes a dead segment that is not pinned, and gives up a rewrite of it that is under way.
    /// A segment that is gone already is no error.
    fn unlink(&mut self, segment: u64) -> Result<()>;

    /// Appends all segments, in any order, to `out`. Cost: O(segments), no I/O.
    fn segments(&self, out: &mut Vec<SegmentMeta>);

    /// Sealed segments of fewer bytes are small: many of them are merged. None unless a log says
    /// otherwise.
    fn small_bytes(&self) -> u64 {
        0
    }

    /// Estimated bytes that the live records which no segment has would take in one: they are in
    /// memory alone. Cost: as [`segments`](Rewrite::segments). None unless a log says otherwise.
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
