//! Carries out the plans of a [`SpacePolicy`] in steps that the caller pays for with fuel.
//!
//! One unit of fuel is one record looked at or moved. Everything else is priced in that unit:
//! planning one unit per [`SEGMENTS_PER_FUEL`] segments, removing a file [`UNLINK_FUEL`]. What an
//! action costs above the fuel at hand becomes debt, which the next calls pay before they do
//! anything; so over any sequence of calls the work done is at most the fuel given plus one action
//! (one plan, one unlink or the overshoot of one step), and no call does more than its fuel plus
//! one action. The largest action is a plan: 6 to 16 ns per segment.
//!
//! An error changes nothing here except that its call's fuel is lost: the next call tries the same
//! step again.

use alluvium_pagestore::{PATIENT_FUEL, Result, Rewrite, RewriteProgress, SegmentMeta, SortedSet};

use crate::merging::TierMerges;
use crate::space::{Space, SpacePolicy};

/// Segments whose metadata are read for one unit of fuel when planning.
pub const SEGMENTS_PER_FUEL: usize = 16;

/// After a plan without work, the next one waits until one of so many live records may have died.
pub const LIVE_PER_REST: u64 = 256;

/// Fuel for removing one file.
pub const UNLINK_FUEL: usize = 64;

/// Keeps space amplification at a policy's limit, and small segments few. One per log.
#[derive(Debug, Default)]
pub struct Compactor {
    policy: SpacePolicy,
    /// Segment that is being rewritten.
    rewriting: Option<u64>,
    /// Dead segments of the last plan that are not removed yet.
    unlinking: Vec<u64>,
    /// Segments that were given up by [`Compactor::park`].
    parked: SortedSet<u64>,
    /// Fuel used beyond what was given.
    debt: usize,
    space: Space,
    /// Writes before it is looked for work again that is paid with them.
    rest: u64,
    merging: TierMerges,
    /// Filled anew for each plan; kept for its capacity.
    segments: Vec<SegmentMeta>,
}

/// Work of one [`Compactor::tick`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// Fuel used, including paid debt of earlier calls. At most the fuel given.
    pub fuel: usize,
    /// Number of segments that were completely rewritten, or put off.
    pub rewritten: usize,
    /// Number of segments removed.
    pub unlinked: usize,
    /// True if there is nothing to do now, or nothing can continue before the target changes.
    pub idle: bool,
}

impl Compactor {
    /// Makes a compactor with this policy.
    pub fn new(policy: SpacePolicy) -> Self {
        Self { policy, ..Self::default() }
    }

    /// Works for about `fuel` on `target`: unlinks dead segments, continues the current rewrite,
    /// plans if there is none. Returns early if there is nothing to do. With [`PATIENT_FUEL`] or
    /// more it may wait for the target's helper.
    ///
    /// # Errors
    /// Those of the target. They lose nothing: the next call tries the same step again.
    /// [`park`](Compactor::park) gives up a segment that can never be read.
    pub fn tick(&mut self, target: &mut (impl Rewrite + ?Sized), fuel: usize) -> Result<Spent> {
        let mut spent = Spent::default();
        let mut left = fuel;
        target.be_patient(fuel >= PATIENT_FUEL);
        self.charge(0, &mut left);
        while left > 0 && !spent.idle {
            if let Some(&segment) = self.unlinking.last() {
                target.unlink(segment)?;
                self.unlinking.pop();
                self.parked.remove(&segment);
                spent.unlinked += 1;
                self.charge(UNLINK_FUEL, &mut left);
            } else if self.rewriting.is_some() {
                match target.step(left)? {
                    RewriteProgress::Working { spent: used } => {
                        spent.idle = used == 0;
                        self.charge(used, &mut left);
                    }
                    RewriteProgress::Done { spent: used } => {
                        self.rewriting = None;
                        spent.rewritten += 1;
                        self.charge(used, &mut left);
                    }
                }
            } else {
                spent.idle = !self.plan(target, &mut left)?;
            }
        }
        spent.fuel = fuel - left;
        Ok(spent)
    }

    /// Returns whether there can be no work after so many more writes since the last plan found
    /// none: fewer than one of [`LIVE_PER_REST`] live records may have died. Ask it before each
    /// [`tick`](Compactor::tick) that pays for writes: with many segments, planning each time would
    /// cost more than the writes.
    pub fn rests(&mut self, writes: usize) -> bool {
        self.merging.earn(writes);
        let rests = self.rest > writes as u64;
        self.rest = self.rest.saturating_sub(writes as u64);
        rests
    }

    /// Plans again soon, after a change that no write reports, such as the end of a checkpoint.
    pub fn look_again(&mut self) {
        self.rest = 0;
    }

    /// Plans anew and begins what the plan says. False if there is nothing to do.
    fn plan(&mut self, target: &mut (impl Rewrite + ?Sized), left: &mut usize) -> Result<bool> {
        self.segments.clear();
        target.segments(&mut self.segments);
        self.charge(1 + self.segments.len() / SEGMENTS_PER_FUEL, left);
        if !self.parked.is_empty() {
            for segment in &mut self.segments {
                // An unsealed segment is never chosen; a parked one that died is still removed.
                segment.sealed &= segment.is_dead() || !self.parked.contains(&segment.id);
            }
        }
        let mut plan = self.policy.plan(&self.segments, target.unstored_bytes());
        self.space = plan.space;
        self.unlinking = plan.unlink;
        if plan.rewrite.is_empty() {
            plan.rewrite = self.merging.next(&self.segments, target.small_bytes());
        }
        if let Some(&segment) = plan.rewrite.first() {
            target.foresee(&plan.rewrite);
            target.begin(segment)?;
            self.rewriting = Some(segment);
        }
        let found = self.rewriting.is_some() || !self.unlinking.is_empty();
        let live = || self.segments.iter().map(|segment| segment.live_records).sum::<u64>();
        self.rest = if found { 0 } else { live() / LIVE_PER_REST };
        Ok(found)
    }

    /// Pays `cost` and earlier debt out of `left`; the rest is debt.
    fn charge(&mut self, cost: usize, left: &mut usize) {
        let due = self.debt.saturating_add(cost);
        let paid = due.min(*left);
        *left -= paid;
        self.debt = due - paid;
    }

    /// Never chooses `segment` again, and stops rewriting it. For a segment that cannot be read. It
    /// is still removed when its last record dies.
    pub fn park(&mut self, segment: u64) {
        self.parked.insert(segment);
        if self.rewriting == Some(segment) {
            self.rewriting = None;
        }
    }

    /// Returns the segment that is being rewritten.
    pub fn rewriting(&self) -> Option<u64> {
        self.rewriting
    }

    /// Returns whether small segments are being merged; false after a plan that finds none.
    pub fn is_merging(&self) -> bool {
        self.merging.is_under_way()
    }

    /// Returns the space of the segments as of the last plan.
    pub fn space(&self) -> Space {
        self.space
    }

    /// Returns the heap bytes for planning: one [`SegmentMeta`] per segment, and the list of dead
    /// ones.
    pub fn heap_bytes(&self) -> usize {
        use alluvium_pagestore::rounded;
        rounded(self.segments.capacity() * size_of::<SegmentMeta>())
            + rounded(self.unlinking.capacity() * size_of::<u64>())
    }
}
