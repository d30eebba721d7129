//! Background work, checkpoints, statistics and memory of an open state.

use alluvium_pagestore::{BlobWriter, Result, Rewrite, StateImage};

use crate::contract::table::{CheckpointOutcome, Pace, TableStats};

/// The calls that the store makes on any open state: background work, freeing memory for others,
/// checkpoints and statistics.
///
/// A call takes effect in full or changes nothing, unless its documentation says otherwise.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no checkpoints and statistics",
    label = "`Upkeep` is not implemented for `{Self}`"
)]
pub trait Upkeep: 'static {
    /// Does up to `work` units of background work and returns the number done. A unit touches a few
    /// records. Calls do their own share; use this for idle time.
    fn tick(&mut self, work: usize) -> Result<usize> {
        let _ = work;
        Ok(0)
    }

    /// Frees about `bytes` of memory for another state of the store and returns the bytes freed.
    /// Called only between calls. May wait for storage. The default frees nothing.
    ///
    /// # Errors
    /// Those of storage. Memory freed before the error stays free; nothing else has changed.
    fn reclaim(&mut self, bytes: u64) -> Result<u64> {
        let _ = bytes;
        Ok(0)
    }

    /// Returns the state as a log of segments that compaction can rewrite, if it is one.
    fn rewriter(&mut self) -> Option<&mut dyn Rewrite> {
        None
    }

    /// Makes the whole state durable and returns the image that describes it. The state stays
    /// usable. Runs to the end before it returns. Cost: proportional to what is not durable yet,
    /// plus a bit per stored record.
    fn checkpoint(&mut self, blobs: &mut BlobWriter) -> Result<StateImage>;

    /// Starts a checkpoint of the current contents. Returns the image if it completed at once, else
    /// `None`: call [`continue_checkpoint`](Upkeep::continue_checkpoint), and use the state
    /// meanwhile. The default takes the whole checkpoint.
    fn begin_checkpoint(&mut self, blobs: &mut BlobWriter) -> Result<Option<StateImage>> {
        self.checkpoint(blobs).map(Some)
    }

    /// Reports the progress of the stream since the checkpoint's last step. A layout may pace work
    /// by it that nothing waits for.
    fn pace_checkpoint(&mut self, _pace: Pace) {}

    /// Does a bounded step of the running checkpoint. Returns the image once it is durable. An
    /// error gives the checkpoint up.
    fn continue_checkpoint(&mut self, blobs: &mut BlobWriter) -> Result<Option<StateImage>> {
        self.checkpoint(blobs).map(Some)
    }

    /// Reports the outcome of the last checkpoint.
    fn checkpointed(&mut self, outcome: CheckpointOutcome);

    /// Returns counters and gauges. Cost: O(1), or O(n) in the number of segments.
    fn stats(&self) -> TableStats;

    /// Returns two numbers of bytes: memory that eviction cannot free plus the least memory that
    /// the state works with, and the most memory that it may hold. The store warns before the first
    /// reaches the second. Cost: O(1). The default returns 0 and no limit.
    fn fixed_bytes(&self) -> (u64, u64) {
        (0, u64::MAX)
    }

    /// Returns the bytes that writes leave free, though they are not booked: for the next checkpoint, or
    /// for reading it. Whoever shares the memory has to leave them too. Cost: O(1). The default returns 0.
    fn kept_bytes(&self) -> u64 {
        0
    }

    /// Returns the state that does this work. A state that [delegates](HasUpkeep) returns its inner
    /// one.
    fn innermost(&self) -> &dyn Upkeep
    where
        Self: Sized,
    {
        self
    }

    /// Returns [`innermost`](Upkeep::innermost), mutable.
    fn innermost_mut(&mut self) -> &mut dyn Upkeep
    where
        Self: Sized,
    {
        self
    }
}

/// A state that delegates [`Upkeep`] to an inner one, for instance to one of several layouts chosen
/// at run time.
pub trait HasUpkeep: 'static {
    /// Returns the inner state.
    fn upkeep(&self) -> &dyn Upkeep;

    /// Returns the inner state, mutable.
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

    fn kept_bytes(&self) -> u64 {
        self.upkeep().kept_bytes()
    }

    fn innermost(&self) -> &dyn Upkeep {
        self.upkeep()
    }

    fn innermost_mut(&mut self) -> &mut dyn Upkeep {
        self.upkeep_mut()
    }
}
