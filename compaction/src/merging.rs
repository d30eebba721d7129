//! The policy that bounds files: small segments are merged when there are too many of one size.
//!
//! A checkpoint seals what it wrote, so one after a few changes leaves a small segment. Nothing of it
//! need ever die: without this policy files would add up, and so would padding and what each
//! checkpoint says of each segment.
//!
//! Notation: a log with full segments of `S` bytes calls a sealed segment *small* below `s = S / 2`.
//! Small segments fall into tiers: tier 0 from `s / 8` to `s`, tier 1 from `s / 64`, and so on; the last
//! of [`TIERS`] has all that are smaller still. A tier with [`FAN_IN`] segments or more is merged: the
//! live records of its segments, the oldest first, are appended to the segment being written.
//!
//! **Files are bounded.** While merging keeps up, at most `TIERS * (FAN_IN - 1)` small segments are at
//! rest. The others have `s` bytes or more, so that they are fewer than `2 T / S` for `T` bytes.
//!
//! **Copies are bounded.** A tier begins a group while it has moved fewer records than
//! [`COPIES_PER_WRITE`] times those that were written. The group is the whole tier, up to
//! [`CHOSEN_MAX`] segments: a look through memory for their records costs as much for one as for all. So
//! merging adds at most `TIERS * COPIES_PER_WRITE` to write amplification, and a group for each tier. A record that climbs is moved
//! once by each tier.
//!
//! **Small groups go first.** A group of large segments takes long. Tiers of smaller segments take turns
//! with it, one segment at a time. Otherwise small segments would add up meanwhile.
//!
//! **It stops.** Nothing is begun without writes.

use alluvium_pagestore::{SegmentMeta, SortedSet, sort_rarely};

use crate::space::CHOSEN_MAX;

/// Segments of one tier that are merged.
pub const FAN_IN: usize = 8;

/// Tiers of small segments.
pub const TIERS: usize = 6;

/// Most records that merging moves per written record, in each tier.
pub const COPIES_PER_WRITE: u64 = 2;

/// What is being merged, and what may be: by tier.
#[derive(Debug, Default)]
pub(crate) struct TierMerges([Tier; TIERS]);

#[derive(Debug, Default)]
struct Tier {
    /// Records that may be moved; below 0 after a group that was larger.
    credit: i64,
    /// The group under way.
    group: SortedSet<u64>,
}

impl TierMerges {
    /// So many records were written.
    pub fn earn(&mut self, writes: usize) {
        let copies = (writes as u64).saturating_mul(COPIES_PER_WRITE);
        for tier in &mut self.0 {
            tier.credit = tier.credit.saturating_add_unsigned(copies);
        }
    }

    /// Whether a group is under way, as far as is known.
    pub fn is_under_way(&self) -> bool {
        self.0.iter().any(|tier| !tier.group.is_empty())
    }

    /// The segments to rewrite next, in this order: of the tier with the smallest segments that has a group under way, or can
    /// begin one. Cost: a pass over the segments.
    pub fn next(&mut self, segments: &[SegmentMeta], small_bytes: u64) -> Vec<u64> {
        let mut tiers: [Vec<&SegmentMeta>; TIERS] = Default::default();
        for segment in segments.iter().filter(|segment| segment.bytes < small_bytes) {
            if segment.live_records > 0 && !segment.expired {
                tiers[tier(segment.bytes, small_bytes)].push(segment);
            }
        }
        let smallest_first = self.0.iter_mut().zip(tiers).rev();
        smallest_first
            .map(|(tier, segments)| tier.next(segments))
            .find(|next| !next.is_empty())
            .unwrap_or_default()
    }
}

impl Tier {
    fn next(&mut self, mut live: Vec<&SegmentMeta>) -> Vec<u64> {
        if !self.group.is_empty() {
            let left = live.iter().map(|segment| segment.id).filter(|id| self.group.contains(id));
            self.group = SortedSet::of(left);
        }
        if self.group.is_empty() {
            // A segment that is put off shows as not sealed.
            live.retain(|segment| segment.sealed);
            if live.len() < FAN_IN || self.credit <= 0 {
                return Vec::new();
            }
            sort_rarely(&mut live, |segment| segment.sequence);
            live.truncate(CHOSEN_MAX);
            self.begin(&live);
        }
        live.retain(|segment| segment.sealed && self.group.contains(&segment.id));
        sort_rarely(&mut live, |segment| segment.sequence);
        live.into_iter().map(|segment| segment.id).collect()
    }

    /// Begins a group with these segments.
    fn begin(&mut self, segments: &[&SegmentMeta]) {
        for segment in segments {
            self.group.insert(segment.id);
            self.credit = self.credit.saturating_sub_unsigned(segment.live_records);
        }
    }
}

/// The tier of a small segment.
fn tier(bytes: u64, small_bytes: u64) -> usize {
    let times_smaller = small_bytes / bytes.max(1);
    (times_smaller.max(1).ilog2() as usize / FAN_IN.ilog2() as usize).min(TIERS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: u64 = 1 << 21;

    fn segment(id: u64, bytes: u64) -> SegmentMeta {
        SegmentMeta {
            id,
            sequence: id,
            bytes,
            records: 100,
            live_records: 100,
            sealed: true,
            ..SegmentMeta::default()
        }
    }

    #[test]
    fn tiers_are_eight_times_as_large() {
        let of = |bytes| tier(bytes, SMALL);
        assert_eq!([SMALL - 1, SMALL / 7, SMALL / 8, SMALL / 9].map(of), [0, 0, 1, 1]);
        assert_eq!([SMALL / 63, SMALL / 64, SMALL / 512, 1, 0].map(of), [1, 2, 3, 5, 5]);
    }

    #[test]
    fn the_smallest_with_enough_of_their_tier_are_merged_oldest_first() {
        let mut merging = TierMerges::default();
        let mut segments: Vec<_> = (0..20).rev().map(|id| segment(id, SMALL / 2)).collect();
        segments.extend((20..27).map(|id| segment(id, 4096)));
        assert!(merging.next(&segments, SMALL).is_empty(), "nothing was written");
        merging.earn(1000);
        assert_eq!(merging.next(&segments, SMALL), (0..20).collect::<Vec<_>>());
        // Smaller ones come: they go first, and then the first group goes on.
        segments.push(segment(27, 4096));
        assert_eq!(merging.next(&segments, SMALL), (20..28).collect::<Vec<_>>());
        segments[20..].iter_mut().for_each(|segment| segment.live_records = 0);
        segments[19].live_records = 0;
        assert_eq!(merging.next(&segments, SMALL), (1..20).collect::<Vec<_>>());
        assert!(TierMerges::default().next(&segments, 4096).is_empty());
        assert!(merging.next(&segments, 0).is_empty(), "none is small");
    }

    #[test]
    fn a_group_is_finished_before_another_is_begun_and_is_paid_for_once() {
        let mut merging = TierMerges::default();
        merging.earn(1);
        let mut segments: Vec<_> = (0..8).map(|id| segment(id, 4096)).collect();
        assert_eq!(merging.next(&segments, SMALL), (0..8).collect::<Vec<_>>());
        // Others come meanwhile; one is put off, one is done.
        segments.extend((8..20).map(|id| segment(id, 4096)));
        segments[3].sealed = false;
        segments[0].live_records = 0;
        assert_eq!(merging.next(&segments, SMALL), [1, 2, 4, 5, 6, 7]);
        segments[1..8].iter_mut().for_each(|segment| segment.live_records = 0);
        segments[3].live_records = 1;
        assert!(merging.next(&segments, SMALL).is_empty(), "one is still put off");
        segments[3].live_records = 0;
        assert!(merging.next(&segments, SMALL).is_empty(), "1 was written and 800 moved");
        merging.earn(400);
        // All that there are: what costs as much for one as for all is done once.
        assert_eq!(merging.next(&segments, SMALL), (8..20).collect::<Vec<_>>());
        let credit = merging.0[tier(4096, SMALL)].credit;
        assert_eq!(credit, 802 - 800 - 1200);
    }

    #[test]
    fn what_is_dead_expired_unsealed_or_large_is_left() {
        let mut merging = TierMerges::default();
        merging.earn(1000);
        let mut segments: Vec<_> = (0..11).map(|id| segment(id, 4096)).collect();
        segments[0].live_records = 0;
        segments[1].expired = true;
        segments[2].sealed = false;
        segments[3].bytes = SMALL;
        assert!(merging.next(&segments, SMALL).is_empty());
    }
}
