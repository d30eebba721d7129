//! What the helper still has of checkpoints that were given up: it stays booked until the helper answers.

use alluvium_pagestore::Result;

use super::{ListedDeaths, LogCheckpointPhase, PART, WrittenSets};
use crate::checkpoint::HelperJob;
use crate::hybrid_log::cold::{RunsWritten, let_go};
use crate::hybrid_log::core::LogCore;
use crate::hybrid_log::stored::StoredSegments;
use crate::support::booked::Booked;

/// What the helper has of checkpoints that were given up.
#[derive(Default)]
pub(in crate::hybrid_log) struct AbandonedCheckpoints {
    /// Sets, and what is booked for them.
    pub(super) sets: Vec<(HelperJob<WrittenSets>, u64)>,
    /// The deaths before a barrier, which are of the next checkpoint.
    pub(super) list: Option<HelperJob<ListedDeaths>>,
    /// Tombstones that are being written, and what is booked for that.
    pub(super) runs: Vec<(HelperJob<Result<RunsWritten>>, Option<Booked>)>,
}

impl AbandonedCheckpoints {
    /// Whether the helper has nothing of them.
    pub fn is_empty(&self) -> bool {
        self.sets.is_empty() && self.list.is_none() && self.runs.is_empty()
    }

    /// Booked for tombstones that are being written.
    pub fn runs_bytes(&self) -> u64 {
        self.runs.iter().filter_map(|(_, booked)| booked.as_ref()).map(Booked::bytes).sum()
    }
}

impl LogCore {
    /// Leaves to the helper what it has, until it answers.
    pub(super) fn leave(&mut self, step: LogCheckpointPhase) {
        match step {
            LogCheckpointPhase::WritingSets { bytes, job, .. } => self.late.sets.push((job, bytes)),
            LogCheckpointPhase::Complete { bytes, sets, .. } => self.drop_aside(sets, bytes),
            LogCheckpointPhase::Freeing { booked, .. } => self.release(booked),
            LogCheckpointPhase::Listing(job) => self.late.list = Some(job),
            LogCheckpointPhase::Naming(job) => self.late.runs.push((job, None)),
            LogCheckpointPhase::Foreseeing
            | LogCheckpointPhase::Writing
            | LogCheckpointPhase::Looking
            | LogCheckpointPhase::Beginning { .. }
            | LogCheckpointPhase::Sweeping { .. }
            | LogCheckpointPhase::Visiting { .. }
            | LogCheckpointPhase::Adding { .. }
            | LogCheckpointPhase::Recalling { .. }
            | LogCheckpointPhase::Done
            | LogCheckpointPhase::Overtaken => {}
        }
    }

    /// Takes back what the helper had of checkpoints that were given up, if it has answered.
    ///
    /// # Errors
    /// If it has lost what died before the barrier of one: a checkpoint that is being taken cannot tell it.
    pub(in crate::hybrid_log) fn take_late(&mut self, is_capturing: bool) -> Result<()> {
        for (job, bytes) in std::mem::take(&mut self.late.sets) {
            match job.poll() {
                Ok(None) => self.late.sets.push((job, bytes)),
                Ok(Some((sets, _))) if !sets.is_empty() => self.drop_aside(sets, bytes),
                _ => self.release(bytes),
            }
        }
        let store = self.log.stored.as_ref().map(StoredSegments::store);
        self.late.runs.retain(|(job, _)| match job.poll() {
            Ok(None) => true,
            Ok(Some(Ok(written))) => {
                store.iter().for_each(|store| let_go(store, &written));
                false
            }
            Ok(Some(Err(_))) | Err(_) => false,
        });
        let Some(answer) = self.late.list.as_ref().and_then(|job| job.poll().transpose()) else {
            return Ok(());
        };
        self.late.list = None;
        let stored = self.log.stored.as_mut().expect("a log with segments");
        match answer {
            Ok((deaths, _)) => {
                stored.give_back(deaths);
                if !is_capturing {
                    stored.deaths_are_unknown();
                }
                Ok(())
            }
            Err(error) => {
                stored.forget_deaths();
                Err(error.with("state", &self.context.name))
            }
        }
    }

    pub(super) fn give_sets_up(&mut self) {
        let sets = self.log.stored.as_mut().and_then(|stored| stored.sets.take());
        if let Some(sets) = sets {
            let bytes = sets.bytes;
            self.drop_aside(sets, bytes);
        }
    }

    /// Has the helper drop sets, which takes a while where they are many.
    pub(super) fn drop_aside(&mut self, sets: impl Send + 'static, bytes: u64) {
        let job = HelperJob::submit(&self.context.helper, PART, move || {
            drop(sets);
            (Vec::new(), Ok(Vec::new()))
        });
        self.late.sets.push((job, bytes));
    }
}
