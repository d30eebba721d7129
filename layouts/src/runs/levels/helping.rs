//! Merging levels on a helper's thread, in shares.
//!
//! The owner books the memory of a merge and hands it over with the merge; a share of some milliseconds comes back with
//! the work, and is handed over again with one of the owner's next steps. So the helper does what others have for it in
//! between, and what the merge wrote becomes a level on the owner's thread.
//!
//! What it keeps true: memory that a helper may use stays booked until its answer is there, also if the merge was given
//! up meanwhile.

use std::panic::resume_unwind;
use std::time::{Duration, Instant};

use alluvium_pagestore::{Helper, Result};

use super::Levels;
use super::work::{BoxedJudge, HelperShare, MergeShare, MergeWorker};
use crate::runs::writer::RunSizes;
use crate::support::booked::Booked;

/// What a step of a merge that a helper does came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HelpedStep {
    /// A share was handed over, or what was merged is a level.
    Something,
    /// The helper has not done its share yet.
    Waiting,
    /// No merge is due, or there is no memory for it.
    Nothing,
}

/// A merge that was given up while a helper had it, and the memory that it takes.
#[derive(Debug)]
pub(super) struct AbandonedMerge {
    away: HelperShare,
    memory: Booked,
}

impl Levels {
    /// Has a helper merge, if it has a thread: [`step_away`](Levels::step_away) is to be called then, and not
    /// [`step`](Levels::step).
    #[must_use]
    pub fn helped_by(self, helper: &Helper) -> Self {
        Self { helper: Some(helper.clone()).filter(|helper| !helper.is_inline()), ..self }
    }

    /// Whether a helper merges.
    pub fn is_helped(&self) -> bool {
        self.helper.is_some()
    }

    /// Begins the merge that is due, or has it go on, on the helper's thread. `judge_of` makes the judge of a merge, of
    /// which it is told whether the oldest level is part of it. Waits for a share up to a millisecond if it is `patient`.
    ///
    /// # Errors
    /// As for [`step`](Levels::step).
    pub fn step_away(
        &mut self,
        (runs, read_bytes): (RunSizes, usize),
        is_patient: bool,
        judge_of: &mut dyn FnMut(bool) -> BoxedJudge,
    ) -> Result<HelpedStep> {
        if !self.has_left(is_patient) {
            return Ok(HelpedStep::Waiting);
        }
        if self.merging.is_none() {
            let Some((due, work, memory)) = self.prepare(runs, read_bytes) else {
                return Ok(HelpedStep::Nothing);
            };
            let mut merging = self.merging_of(due, MergeWorker::Gone, memory);
            merging.worker = MergeWorker::Here(work, Some(judge_of(merging.is_last)));
            self.merging = Some(merging);
            self.is_early = false;
            self.hand_over();
            return Ok(HelpedStep::Something);
        }
        match self.take_share(is_patient)? {
            // One that has failed begins again.
            Some(Ok(false)) => self.hand_over(),
            Some(done) => {
                self.stepped(done)?;
            }
            None => return Ok(HelpedStep::Waiting),
        }
        Ok(HelpedStep::Something)
    }

    /// Takes what came of a share, if it is there. A share that was not begun has come to nothing.
    fn take_share(&mut self, is_patient: bool) -> Result<Option<Result<bool>>> {
        let helper = self.helper.as_ref().expect("a merge on a helper has one");
        let merging = self.merging.as_mut().expect("looked at before");
        let MergeWorker::Away(away) = &merging.worker else { return Ok(Some(Ok(false))) };
        match poll(helper, away, is_patient) {
            Ok(None) => Ok(None),
            Ok(Some(MergeShare { work, judge, done })) => {
                // A share in which one request of many fails has gone on.
                let has_gone_on = work.read_bytes() > merging.read_bytes;
                self.done.merge_read_bytes += work.read_bytes().saturating_sub(merging.read_bytes);
                merging.read_bytes = work.read_bytes();
                if has_gone_on || matches!(done, Ok(Ok(false))) {
                    merging.failed = 0;
                }
                merging.worker = MergeWorker::Here(work, Some(judge));
                Ok(Some(done.unwrap_or_else(|panic| resume_unwind(panic))))
            }
            Err(error) => {
                // Its memory went with it.
                self.merging = None;
                Err(error)
            }
        }
    }

    fn hand_over(&mut self) {
        let Self { helper: Some(helper), merging: Some(merging), .. } = self else { return };
        let worker = std::mem::replace(&mut merging.worker, MergeWorker::Gone);
        merging.worker = match worker {
            MergeWorker::Here(work, Some(judge)) => {
                MergeWorker::Away(HelperShare::begin(helper, work, judge))
            }
            other => other,
        };
    }

    /// A merge was given up while a helper has it.
    pub(super) fn leave_alone(&mut self, away: HelperShare, memory: Booked) {
        away.give_up();
        self.leaving.push(AbandonedMerge { away, memory });
    }

    /// Whether no helper has a merge that was given up; the memory of one that has ended comes back.
    pub fn has_left(&mut self, is_patient: bool) -> bool {
        if let Some(helper) = &self.helper {
            // A lost one is over as well.
            self.leaving.retain(|one| matches!(poll(helper, &one.away, is_patient), Ok(None)));
        }
        self.leaving.is_empty()
    }

    /// Waits until no helper has a merge that was given up, for so long at most.
    pub fn wait_to_leave(&mut self, most: Duration) {
        let start = Instant::now();
        let is_alone = |levels: &Self| levels.helper.as_ref().is_none_or(Helper::is_left_alone);
        while !self.has_left(true) && start.elapsed() < most && !is_alone(self) {}
    }

    /// Bytes that are booked for merges that were given up while a helper has them.
    pub fn leaving_bytes(&self) -> u64 {
        self.leaving.iter().map(|one| one.memory.bytes()).sum()
    }
}

/// What came of a share, if it is there. Has a helper that takes turns with this thread do it.
fn poll(helper: &Helper, away: &HelperShare, is_patient: bool) -> Result<Option<MergeShare>> {
    if is_patient {
        return away.job.poll_driving(helper, true);
    }
    helper.drive();
    away.job.poll()
}
