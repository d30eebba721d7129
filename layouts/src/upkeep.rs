//! What the store does with an open state between calls, whatever the state keeps.

use alluvium_pagestore::{BlobWriter, Result, Rewrite, StateImage};

use crate::table::{CheckpointOutcome, Pace, TableStats};

/// An open state apart from what it keeps: work in the background, memory that others need,
/// checkpoints and statistics.
///
/// Calls either happen in full or change nothing, unless they say otherwise.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no checkpoints and statistics",
    label = "`Upkeep` is not implemented for `{Self}`"
)]
pub trait Upkeep: 'static {
    /// Does up to `work` units of background work (a unit touches a few records) and says how
    /// many it did. Calls do their own share; this is for idle time.
    fn tick(&mut self, work: usize) -> Result<usize> {
        let _ = work;
        Ok(0)
    }

    /// Gives up about `bytes` of memory that another state of the store needs, and says how many
    /// it gave up; called between calls only. May wait for storage. The default gives up nothing.
    ///
    /// # Errors
    /// Those of storage. The state stays as it was, but for what it gave up before.
    fn reclaim(&mut self, bytes: u64) -> Result<u64> {
        let _ = bytes;
        Ok(0)
    }

    /// The state as a log of segments that can be rewritten, if it is one: the store pairs it with
    /// a compaction policy.
    fn rewriter(&mut self) -> Option<&mut dyn Rewrite> {
        None
    }

    /// Makes everything in the state durable and describes where it is. The state stays usable.
    /// Synchronous; cost proportional to what is not durable yet, plus a bit per stored record.
    fn checkpoint(&mut self, blobs: &mut BlobWriter) -> Result<StateImage>;

    /// Begins a checkpoint of what the state is now; the image, if that is all. Else the state can be
    /// used, and the image comes from [`continue_checkpoint`](Upkeep::continue_checkpoint). The
    /// default takes it as a whole.
    fn begin_checkpoint(&mut self, blobs: &mut BlobWriter) -> Result<Option<StateImage>> {
        self.checkpoint(blobs).map(Some)
    }

    /// How far the stream has come since the last share of the checkpoint that was begun: work that nothing
    /// waits for may follow it.
    fn pace_checkpoint(&mut self, _pace: Pace) {}

    /// Does a bounded share of the checkpoint that was begun; the image, once that is durable. After
    /// an error it is given up.
    fn continue_checkpoint(&mut self, blobs: &mut BlobWriter) -> Result<Option<StateImage>> {
        self.checkpoint(blobs).map(Some)
    }

    /// Tells what became of the last [`checkpoint`](Upkeep::checkpoint)'s image.
    fn checkpointed(&mut self, outcome: CheckpointOutcome);

    /// Counters and gauges. Cost: O(1), or O(n) in the number of segments.
    fn stats(&self) -> TableStats;

    /// The memory that the state holds and that no eviction frees, with the least that it works with;
    /// and the most that it may hold. The store warns before the first fills the second. Cost: O(1).
    /// The default says nothing.
    fn fixed_bytes(&self) -> (u64, u64) {
        (0, u64::MAX)
    }

    /// The state that does all this: another one, where this one [leaves](HasUpkeep) it to that.
    fn innermost(&self) -> &dyn Upkeep
    where
        Self: Sized,
    {
        self
    }

    /// [`innermost`](Upkeep::innermost), to be worked on.
    fn innermost_mut(&mut self) -> &mut dyn Upkeep
    where
        Self: Sized,
    {
        self
    }
}

/// What leaves its upkeep to the state that it holds: one of several, chosen at run time.
pub trait HasUpkeep: 'static {
    /// The state.
    fn upkeep(&self) -> &dyn Upkeep;

    /// The state, to be worked on.
    fn upkeep_mut(&mut self) -> &mut dyn Upkeep;
}

impl<T: Upkeep> HasUpkeep for Box<T> {
    fn upkeep(&self) -> &dyn Upkeep {
        &**self
    }

    fn upkeep_mut(&mut self) -> &mut dyn Upkeep {
        &mut **self
    }
}

impl<T: HasUpkeep> Upkeep for T {
    fn tick(&mut self, work: usize) -> Result<usize> {
        self.upkeep_mut().tick(work)
    }

    fn reclaim(&mut self, bytes: u64) -> Result<u64> {
        self.upkeep_mut().reclaim(bytes)
    }

    fn rewriter(&mut self) -> Option<&mut dyn Rewrite> {
        self.upkeep_mut().rewriter()
    }

    fn checkpoint(&mut self, blobs: &mut BlobWriter) -> Result<StateImage> {
        self.upkeep_mut().checkpoint(blobs)
    }

    fn begin_checkpoint(&mut self, blobs: &mut BlobWriter) -> Result<Option<StateImage>> {
        self.upkeep_mut().begin_checkpoint(blobs)
    }

    fn pace_checkpoint(&mut self, pace: Pace) {
        self.upkeep_mut().pace_checkpoint(pace);
    }

    fn continue_checkpoint(&mut self, blobs: &mut BlobWriter) -> Result<Option<StateImage>> {
        self.upkeep_mut().continue_checkpoint(blobs)
    }

    fn checkpointed(&mut self, outcome: CheckpointOutcome) {
        self.upkeep_mut().checkpointed(outcome);
    }

    fn stats(&self) -> TableStats {
        self.upkeep().stats()
    }

    fn fixed_bytes(&self) -> (u64, u64) {
        self.upkeep().fixed_bytes()
    }

    fn innermost(&self) -> &dyn Upkeep {
        self.upkeep()
    }

    fn innermost_mut(&mut self) -> &mut dyn Upkeep {
        self.upkeep_mut()
    }
}
