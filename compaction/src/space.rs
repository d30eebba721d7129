//! The policy that bounds space: dead segments go, the oldest with garbage are rewritten.
//!
//! Notation: a segment has `b` bytes, an estimated `l` of them live, and garbage `g = b - l`;
//! its *yield* is `g / b`. `T` and `L` are the sums of `b` and `l` over all segments that are not
//! dead and `U` of the live records that are in memory alone; `a` is the limit of `T / (L + U)`, the
//! bytes on storage per byte of live state, `y` the least yield. [`SpacePolicy::new`] demands
//! `y <= 1 - 1/a`. Eligible is a sealed segment with `l > 0` and yield at least `y`; whenever
//! `T > a * (L + U)` as many are rewritten as hold the limit again, preferably unpinned, then the oldest.
//! They are chosen together, as a log may do for all of them at once what costs as much for one; the first is
//! rewritten, then it is planned anew.
//!
//! **It never gets stuck above the limit.** If no sealed segment is eligible, each has
//! `l > (1 - y) * b >= b / a`, so their sum is below `a` times their live bytes, and `T` exceeds
//! `a * L` by less than the bytes of the unsealed segments, of which a log has one or a few.
//!
//! **What is in memory alone counts as state.** A log that finds the frames of a segment still in
//! memory has nothing to copy: it takes back that they are stored, and they are written again later.
//! That moves `l` from `L` to `U`. Without `U` the limit would be passed as before, by less of both,
//! and one such rewrite would lead to the next until nothing was stored.
//!
//! **It stops.** Moving the live part of a segment leaves `L + U` as it is and lowers `T` by `g > 0`
//! (what was moved makes a segment without garbage, hence not eligible). From any population that
//! nobody writes to, at most `(T - a * L) / (y * b_min)` rewrites pass until `T <= a * L`. A
//! population that is live throughout has `T = L` and causes no work at all.
//!
//! **Copies are paid for by garbage.** A rewrite copies `l <= (1 - y) * b` and frees `g >= y * b`:
//! at most `(1 - y) / y` bytes copied per byte of garbage freed, 4 at the default yield. Garbage is
//! freed once, and a writer makes at most one byte of it per byte it writes (the copies make none:
//! their originals leave with the segment), so write amplification by rewriting is at most
//! `1 + (1 - y) / y = 1 / y`, 5 at the default, over any history. It is far lower in practice,
//! since the oldest segment has had the most time to die. The bound is exact in records; in bytes
//! it is as good as the estimate of [`SegmentMeta::live_bytes`].
//!
//! **Expiry.** A sealed segment all of whose records have expired is rewritten before any other, the
//! oldest first and whatever the amplification: nothing of it is copied, so that it costs one look
//! per record and is dead after it. Until then it is neither in `T` nor in `L`, or the policy would
//! copy other segments to make up for what leaves by itself. As each is rewritten once, this stops,
//! and the bound on copies is as it was.
//!
//! **Checkpoints.** A dead segment that a retained checkpoint names is garbage no rewriting can
//! free: it is left out of `T`, or the policy would rewrite everything else in vain. A pinned
//! segment that is partly live is still rewritten, after the unpinned ones: each new checkpoint
//! would name it again otherwise, and its garbage would stay for ever.

use std::collections::BinaryHeap;

use alluvium_pagestore::{Error, ErrorKind, Result, SegmentMeta};

/// Default limit of space amplification.
pub const DEFAULT_MAX_AMPLIFICATION: f64 = 1.5;

/// Default of the least fraction of garbage for which a segment is rewritten.
pub const DEFAULT_MIN_YIELD: f64 = 0.2;

/// Most segments of one plan.
pub const CHOSEN_MAX: usize = 256;

/// Lets limits such as 1.25 and 0.2 pass that are equal but for rounding.
const ROUNDING: f64 = 1e-9;

/// Bounds space amplification by rewriting segments.
///
/// ```
/// use alluvium_compaction::SpacePolicy;
///
/// let policy = SpacePolicy::with_limit(1.25)?;
/// assert_eq!(policy.max_amplification(), 1.25);
/// assert!(SpacePolicy::new(1.25, 0.5).is_err()); // no limit of 1.25 if half must be garbage
/// # Ok::<(), alluvium_pagestore::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SpacePolicy {
    max_amplification: f64,
    min_yield: f64,
}

impl Default for SpacePolicy {
    fn default() -> Self {
        Self { max_amplification: DEFAULT_MAX_AMPLIFICATION, min_yield: DEFAULT_MIN_YIELD }
    }
}

/// Next actions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SpacePlan {
    /// Dead segments that nothing needs: remove them.
    pub unlink: Vec<u64>,
    /// Segments to rewrite next, in this order: one whose records have all expired. Otherwise,
    /// above the limit of space amplification, as many with enough garbage as restore the limit, up
    /// to [`CHOSEN_MAX`].
    pub rewrite: Vec<u64>,
    /// Space once `unlink` is carried out.
    pub space: Space,
}

/// Bytes of a set of segments, without those that can be removed at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// Bytes of the segments that are not dead.
    pub total_bytes: u64,
    /// Estimated bytes of their live records.
    pub live_bytes: u64,
    /// Estimated bytes that the live records in memory alone would take.
    pub unstored_bytes: u64,
    /// Bytes of dead segments that a checkpoint or a read still holds.
    pub waiting_bytes: u64,
    /// Bytes of segments whose records have all expired and that are still to be inspected.
    pub expired_bytes: u64,
}

impl Space {
    /// Returns bytes occupied per byte of live state, without waiting segments; 1 if nothing is
    /// stored. Below 1 while much is in memory alone.
    pub fn amplification(&self) -> f64 {
        let state_bytes = self.live_bytes + self.unstored_bytes;
        if self.total_bytes == 0 { 1.0 } else { self.total_bytes as f64 / state_bytes as f64 }
    }
}

impl SpacePolicy {
    /// Makes a policy with these limits.
    ///
    /// A larger `max_amplification` takes more space and copies less. A larger `min_yield` copies
    /// less per byte freed. It must be at most `1 - 1 / max_amplification`, or the policy could not
    /// hold the limit. Defaults: [`DEFAULT_MAX_AMPLIFICATION`], [`DEFAULT_MIN_YIELD`].
    ///
    /// # Errors
    /// [`ErrorKind::Config`] for other limits.
    pub fn new(max_amplification: f64, min_yield: f64) -> Result<Self> {
        // Written so that NaN fails too.
        if !(max_amplification > 1.0 && max_amplification.is_finite()) {
            let message = format!("space amplification limit {max_amplification} is not above 1");
            return Err(Error::new(ErrorKind::Config, message));
        }
        let highest = 1.0 - 1.0 / max_amplification;
        if !(min_yield > 0.0 && min_yield <= highest + ROUNDING) {
            let message = format!(
                "least yield {min_yield} of a rewrite is not in 0 (excluded) to {highest}, the \
                 most that holds space amplification at {max_amplification}"
            );
            return Err(Error::new(ErrorKind::Config, message));
        }
        Ok(Self { max_amplification, min_yield })
    }

    /// Makes a policy with this limit, and the default least yield or the highest that the limit
    /// allows.
    ///
    /// # Errors
    /// As [`SpacePolicy::new`].
    pub fn with_limit(max_amplification: f64) -> Result<Self> {
        let highest = 1.0 - 1.0 / max_amplification;
        Self::new(max_amplification, highest.min(DEFAULT_MIN_YIELD))
    }

    /// Returns the limit of space amplification.
    pub fn max_amplification(&self) -> f64 {
        self.max_amplification
    }

    /// Returns the least fraction of garbage for which a segment is rewritten.
    pub fn min_yield(&self) -> f64 {
        self.min_yield
    }

    /// Plans for these segments, in any order. The log's live records that are in memory alone
    /// would take `unstored_bytes`. Cost: one pass, 6 to 16 ns per segment at a million of them,
    /// and a second above the limit. Allocates only if there is something to do.
    pub fn plan(&self, segments: &[SegmentMeta], unstored_bytes: u64) -> SpacePlan {
        let mut plan = SpacePlan::default();
        plan.space.unstored_bytes = unstored_bytes;
        let mut oldest_expired: Option<&SegmentMeta> = None;
        for segment in segments {
            if segment.is_dead() {
                if segment.pinned {
                    plan.space.waiting_bytes += segment.bytes;
                } else {
                    plan.unlink.push(segment.id);
                }
                continue;
            }
            if segment.expired && segment.sealed {
                plan.space.expired_bytes += segment.bytes;
                if oldest_expired.is_none_or(|o| order(segment) < order(o)) {
                    oldest_expired = Some(segment);
                }
                continue;
            }
            plan.space.total_bytes += segment.bytes;
            plan.space.live_bytes += segment.live_bytes();
        }
        match oldest_expired {
            Some(segment) => plan.rewrite.push(segment.id),
            None if self.is_exceeded(&plan.space) => self.choose(segments, &mut plan),
            None => {}
        }
        plan
    }

    /// Chooses the oldest that yield enough until the limit would be held.
    fn choose(&self, segments: &[SegmentMeta], plan: &mut SpacePlan) {
        let mut oldest = BinaryHeap::new();
        for (at, segment) in segments.iter().enumerate() {
            let is_candidate = !segment.is_dead() && self.is_eligible(segment);
            let (order, last) = (order(segment), oldest.peek());
            let is_older = oldest.len() < CHOSEN_MAX || last.is_some_and(|&(last, _)| order < last);
            if is_candidate && is_older {
                oldest.push((order, at));
                if oldest.len() > CHOSEN_MAX {
                    oldest.pop();
                }
            }
        }
        let mut left = plan.space;
        for (_, at) in oldest.into_sorted_vec() {
            if !self.is_exceeded(&left) {
                break;
            }
            let segment = &segments[at];
            left.total_bytes -= segment.bytes - segment.live_bytes();
            plan.rewrite.push(segment.id);
        }
    }

    /// True if this space is above the limit.
    fn is_exceeded(&self, space: &Space) -> bool {
        let state_bytes = space.live_bytes + space.unstored_bytes;
        space.total_bytes as f64 > self.max_amplification * state_bytes as f64
    }

    fn is_eligible(&self, segment: &SegmentMeta) -> bool {
        let garbage_bytes = segment.bytes - segment.live_bytes();
        segment.sealed && garbage_bytes as f64 >= self.min_yield * segment.bytes as f64
    }
}

/// Unpinned segments first, because rewriting them frees space at once; then by age.
fn order(segment: &SegmentMeta) -> (bool, u64) {
    (segment.pinned, segment.sequence)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(id: u64, live_records: u64) -> SegmentMeta {
        SegmentMeta {
            id,
            sequence: id,
            bytes: 1000,
            records: 100,
            live_records,
            sealed: true,
            pinned: false,
            expired: false,
        }
    }

    /// Bounds space at twice the live bytes.
    fn twice() -> SpacePolicy {
        SpacePolicy::with_limit(2.0).unwrap()
    }

    #[test]
    fn the_oldest_with_enough_garbage_is_chosen() {
        let policy = twice();
        let segments = [segment(4, 10), segment(3, 10), segment(2, 80), segment(1, 81)];
        assert_eq!(policy.plan(&segments, 0).rewrite, [2, 3], "{:?}", policy.plan(&segments, 0));
        let pinned = SegmentMeta { pinned: true, ..segments[2] };
        assert_eq!(
            policy.plan(&[segments[0], segments[1], pinned, segments[3]], 0).rewrite,
            [3],
            "an unpinned one goes first"
        );
        assert!(policy.plan(&[pinned, segment(9, 0)], 0).rewrite.is_empty());
    }

    #[test]
    fn as_many_are_chosen_as_hold_the_limit_and_no_more_than_the_most() {
        let policy = twice();
        // Each frees 600; 1000 segments occupy a million, of which 800,000 may be.
        let segments: Vec<_> = (1..=1000).rev().map(|id| segment(id, 40)).collect();
        let all = policy.plan(&segments, 0);
        assert_eq!(all.rewrite, (1..=CHOSEN_MAX as u64).collect::<Vec<_>>());
        let unstored = segments[0].bytes * 70;
        let some = policy.plan(&segments, unstored);
        assert_eq!(some.rewrite, (1..=100).collect::<Vec<_>>());
        // Carried out, those that hold the limit are just enough.
        let moved = |id: u64| SegmentMeta { bytes: 400, records: 40, ..segment(2000 + id, 40) };
        let carried_out = |count: u64| -> Vec<_> {
            let left = segments.iter().filter(|s| s.id > count).copied();
            left.chain((1..=count).map(moved)).collect()
        };
        assert!(policy.plan(&carried_out(100), unstored).rewrite.is_empty());
        assert_eq!(policy.plan(&carried_out(99), unstored).rewrite, [100]);
    }

    #[test]
    fn nothing_is_rewritten_at_the_limit() {
        let policy = twice();
        assert!(policy.plan(&[segment(1, 50), segment(2, 50)], 0).rewrite.is_empty());
        assert_eq!(policy.plan(&[segment(1, 50), segment(2, 49)], 0).rewrite, [1]);
        assert_eq!(policy.plan(&[], 0).space.amplification(), 1.0);
    }

    #[test]
    fn what_is_in_memory_alone_counts_as_state() {
        let (policy, segments) = (twice(), [segment(1, 20), segment(2, 60)]);
        assert_eq!(policy.plan(&segments, 0).rewrite, [1]);
        let bytes = segments[0].bytes * 20 / 100;
        assert_eq!(policy.plan(&segments, bytes - 1).rewrite, [1]);
        let plan = policy.plan(&segments, bytes);
        assert_eq!((plan.rewrite, plan.space.amplification()), (vec![], 2.0));
    }

    #[test]
    fn dead_segments_go_unless_pinned_or_unsealed() {
        let policy = twice();
        let pinned = SegmentMeta { pinned: true, ..segment(1, 0) };
        let unsealed = SegmentMeta { sealed: false, ..segment(2, 0) };
        let plan = policy.plan(&[pinned, unsealed, segment(3, 0), segment(4, 100)], 0);
        assert_eq!(plan.unlink, [3]);
        assert_eq!(plan.space.waiting_bytes, 1000);
        assert_eq!((plan.space.total_bytes, plan.space.live_bytes), (2000, 1000));
        assert!(plan.rewrite.is_empty());
    }

    #[test]
    fn what_has_expired_as_a_whole_goes_first_and_counts_for_nothing() {
        let policy = twice();
        let over = |id| SegmentMeta { expired: true, ..segment(id, 90) };
        // The others are below the limit: they stay, however much has expired.
        let plan = policy.plan(&[segment(1, 60), over(7), over(5), segment(2, 60)], 0);
        assert_eq!((plan.rewrite, plan.space.expired_bytes), (vec![5], 2000));
        assert_eq!((plan.space.total_bytes, plan.space.live_bytes), (2000, 1200));
        // Above the limit it goes first all the same, an unpinned one before a pinned.
        let pinned = SegmentMeta { pinned: true, ..over(5) };
        assert_eq!(policy.plan(&[segment(1, 10), pinned, over(7)], 0).rewrite, [7]);
        assert_eq!(policy.plan(&[segment(1, 10), pinned], 0).rewrite, [5]);
        // One that is written to, or given up, is as any other.
        let open = SegmentMeta { sealed: false, ..over(5) };
        let plan = policy.plan(&[segment(1, 60), open], 0);
        assert_eq!((plan.rewrite, plan.space.live_bytes), (vec![], 1500));
        let dead = SegmentMeta { live_records: 0, ..over(5) };
        assert_eq!(policy.plan(&[dead], 0).unlink, [5]);
    }

    #[test]
    fn an_empty_sealed_segment_is_dead() {
        let empty = SegmentMeta { records: 0, ..segment(1, 0) };
        assert_eq!(twice().plan(&[empty], 0).unlink, [1]);
    }

    #[test]
    fn impossible_limits_are_refused_by_number() {
        assert!(SpacePolicy::new(1.25, 0.2).is_ok());
        assert_eq!(SpacePolicy::with_limit(1.5).unwrap(), SpacePolicy::default());
        assert!(SpacePolicy::with_limit(1.1).unwrap().min_yield() < 0.1);
        assert!(SpacePolicy::with_limit(0.9).is_err());
        for (amplification, least_yield) in
            [(1.0, 0.2), (f64::NAN, 0.2), (f64::INFINITY, 0.2), (2.0, 0.0), (2.0, 0.51), (1.2, 0.2)]
        {
            let e = SpacePolicy::new(amplification, least_yield).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Config, "{amplification} {least_yield}");
        }
    }
}
