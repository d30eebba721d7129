//! What a checkpoint does about packed slices: it waits for those of the barrier, and has the device keep their runs.

use alluvium_pagestore::{Result, RunId};

use super::{ListCheckpoint, ListCheckpointPhase, NamedRun};
use crate::append_log::core::ListsCore;
use crate::append_log::jobs::RunName;
use crate::append_log::packed::{PackedAtBarrier, PackedSlice};

impl ListCheckpoint {
    /// Whether it waits for a run to be written.
    pub(in crate::append_log) fn waits_for(&self, name: &RunName) -> bool {
        self.waiting.contains_key(name)
    }
}

impl ListsCore {
    /// Has synced what is packed.
    pub(super) fn sync_captured(&mut self, checkpoint: &mut ListCheckpoint) -> Result<()> {
        if let Some(error) = checkpoint.sync_failed.take() {
            return Err(error);
        }
        let files = checkpoint.packed.as_ref().map_or(&[][..], PackedAtBarrier::unsynced);
        if files.is_empty() {
            checkpoint.step = ListCheckpointPhase::Naming(0);
        } else if !checkpoint.is_syncing {
            self.jobs.sync(files.to_vec());
            checkpoint.is_syncing = true;
        }
        Ok(())
    }

    /// What is packed was synced, or some of it could not be: then the checkpoint that waits for it has failed.
    pub(in crate::append_log) fn take_synced(&mut self, result: Result<Vec<RunId>>) {
        if let Some(checkpoint) = &mut self.checkpoint {
            checkpoint.is_syncing = false;
        }
        match result {
            Ok(files) => {
                let at_barrier =
                    self.checkpoint.as_mut().and_then(|checkpoint| checkpoint.packed.as_mut());
                at_barrier.into_iter().for_each(|packed| packed.are_synced(&files));
                self.packed.iter_mut().for_each(|packed| packed.are_synced(&files));
            }
            Err(error) => {
                if let Some(checkpoint) = &mut self.checkpoint {
                    checkpoint.sync_failed = Some(error);
                }
            }
        }
    }

    /// A run was packed, which the checkpoint may wait for. Says whether it can do with that.
    pub(in crate::append_log) fn captured_packed(
        &mut self,
        name: RunName,
        slice: PackedSlice,
    ) -> bool {
        let Some(checkpoint) = &mut self.checkpoint else { return true };
        let Some(at) = checkpoint.waiting.get(&name).copied() else { return true };
        let NamedRun { elements, is_packed, may_be_packed, .. } = &mut checkpoint.runs[at];
        if !*may_be_packed {
            return false;
        }
        checkpoint.waiting.remove(&name);
        *is_packed = true;
        let slice = PackedSlice { elements: *elements, ..slice };
        let bytes = checkpoint.packed.as_mut().expect("it was packed").add(name.0, slice);
        checkpoint.booked.charge(bytes);
        self.forget_orphan(name);
        true
    }
}
