//! A checkpoint in one call: its steps, one after the other.

use std::time::{Duration, Instant};

use alluvium_pagestore::{BlobWriter, Error, ErrorKind, Result, StateImage};

use crate::contract::table::CheckpointOutcome;
use crate::contract::upkeep::Upkeep;

/// A state whose checkpoints are taken in steps.
pub trait InSteps: Upkeep {
    /// Waits briefly for what the last step has given to the helper.
    ///
    /// # Errors
    /// Those of storage that end the checkpoint.
    fn pause(&mut self) -> Result<()>;

    /// Returns the longest time that a checkpoint may take while nothing but the helper works on it.
    /// The default has no bound.
    fn patience(&self) -> Duration {
        Duration::MAX
    }
}

/// Takes a checkpoint in one call, for [`Upkeep::checkpoint`].
///
/// # Errors
/// Those of the steps; [`ErrorKind::Backpressure`] if storage does not take in time what they write. The checkpoint is
/// given up, unless it did not begin.
pub fn at_once(state: &mut dyn InSteps, blobs: &mut BlobWriter) -> Result<StateImage> {
    if let Some(image) = state.begin_checkpoint(blobs)? {
        return Ok(image);
    }
    let taken = take_steps(state, blobs);
    if taken.is_err() {
        state.checkpointed(CheckpointOutcome::Abandoned);
    }
    taken
}

fn take_steps(state: &mut dyn InSteps, blobs: &mut BlobWriter) -> Result<StateImage> {
    let (since, patience) = (Instant::now(), state.patience());
    loop {
        if let Some(image) = state.continue_checkpoint(blobs)? {
            return Ok(image);
        }
        if since.elapsed() > patience {
            let message = format!("storage has accepted no checkpoint write for {patience:?}");
            return Err(Error::new(ErrorKind::Backpressure, message));
        }
        state.pause()?;
    }
}
