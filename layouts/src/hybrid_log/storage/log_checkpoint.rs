//! Taking a checkpoint of a hybrid log while the stream goes on.
//!
//! It begins with a barrier, which costs the same whatever the log holds: what is fresh is what the
//! checkpoint is to have, and the frames that are there are *due*. What was fresh in a due frame does not
//! change until it is copied, or written; if it is to be changed before, it is cloned to the fill frame.
//! Copies and frames go to the helper a few at a time, then their segment is sealed.
//!
//! What a checkpoint says of records that have died is what the one before said, and a list of those
//! that have died between the two barriers. A segment whose deaths were not all noted is looked at in
//! full: frames and index are visited in steps, and what has died since the barrier is added again: what is
//! noted, and what there was no room to note, which is [kept on storage](crate::hybrid_log::spill) until then.
//! As many segments are looked at together as there is memory for their sets, and one at the least: pages
//! leave memory for it.
//!
//! What it keeps true:
//! - However large the state is beside its memory, a checkpoint ends, in bounded steps.
//! - The image is of the barrier: it has no record that was written after it, and every record that
//!   has died after it.
//! - While it is taken no record is copied from one segment to another, and no segment is removed that it may name; records in
//!   memory are taken back from segments that are given up, as if they were changed.

mod abandoned;
mod looking;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use alluvium_pagestore::{
    BlobRef, BlobWriter, Death, Error, ErrorKind, ImagePart, LiveSet, MemoryKind, RECORDS, Result,
    SegmentId, StateImage,
};

pub(in crate::hybrid_log) use self::abandoned::AbandonedCheckpoints;
use crate::checkpoint::{DeadListPosition, HelperJob, InSteps};
use crate::contract::table::CheckpointOutcome;
use crate::hybrid_log::cold::{RunsAtBarrier, RunsWritten, let_go};
use crate::hybrid_log::core::LogCore;
use crate::hybrid_log::log::SealProgress;
use crate::hybrid_log::spill::{DeathsRead, NextPart};
use crate::hybrid_log::stored::{SegmentBefore, StoredSegments};
use crate::support::booked::Booked;

/// Deaths added again at a time.
const AGAIN: usize = 1024;

/// What the helper has of one.
const PART: &str = "a part of a checkpoint";

/// A checkpoint being taken, or not decided yet.
pub struct LogCheckpoint {
    /// Keys at the barrier.
    entries: u64,
    step: LogCheckpointPhase,
    /// The segments at the barrier, by their ids; and the places of those to be looked at of which no set is being made or
    /// was made, the last ones first.
    segments: Vec<SegmentBefore>,
    left: Vec<usize>,
    /// The lists that the checkpoint goes on from, and then its own.
    deaths: Vec<BlobRef>,
    /// Whether it makes sets in place of all lists before it.
    begins_anew: bool,
    /// The runs at the barrier, what is booked for them, and what was written for them.
    runs: Option<(Arc<RunsAtBarrier>, Booked)>,
    written: Option<RunsWritten>,
}

enum LogCheckpointPhase {
    /// Sets for the segments that are known to need them are to be begun, before anything is written: what dies
    /// from then on is added to them, if it cannot be noted.
    Foreseeing,
    /// Due frames are being written.
    Writing,
    /// Segments are looked at, those in `left` still.
    Looking,
    /// Pages leave memory for the sets of the next so many of them, of which some bytes are booked.
    Freeing { count: usize, bytes: u64, booked: u64 },
    /// Sets are begun for a group of them: `wanted`, the last ones first; of those that were foreseen before anything is
    /// written.
    Beginning { wanted: Vec<SegmentBefore>, are_foreseen: bool },
    /// Their records are looked for: in the frames from a number on.
    Sweeping { frame: u32 },
    /// And then, for what is on storage only, in a part of the index and those after it: whatever leaves
    /// memory meanwhile is there.
    Visiting { from: u32 },
    /// What has died since the barrier is added again, from a place of its list on and before another.
    Adding { from: DeadListPosition, to: DeadListPosition },
    /// And what was kept on storage, part by part.
    Recalling { next: Option<NextPart>, reading: Option<DeathsRead> },
    /// The sets are complete, and to be written.
    Complete { bytes: u64, sets: SegmentSets },
    /// The helper writes the sets.
    WritingSets { bytes: u64, job: HelperJob<WrittenSets> },
    /// The helper has runs synced, and writes tombstones.
    Naming(HelperJob<Result<RunsWritten>>),
    /// The helper writes the list of what died before the barrier.
    Listing(HelperJob<ListedDeaths>),
    /// The image was given.
    Done,
    /// The state was cleared: there is nothing to go on with.
    Overtaken,
}

/// Sets of segments.
type SegmentSets = Vec<(SegmentId, LiveSet)>;

/// Sets that could not be written, and where they were written.
pub(in crate::hybrid_log) type WrittenSets = (SegmentSets, Result<Vec<(SegmentId, BlobRef)>>);

/// The list of what died before a barrier, and where it was written.
type ListedDeaths = (Vec<Vec<Death>>, Result<Vec<BlobRef>>);

impl LogCheckpoint {
    /// Booked for the runs at the barrier.
    pub fn runs_bytes(&self) -> u64 {
        self.runs.as_ref().map_or(0, |(_, booked)| booked.bytes())
    }

    /// Whether runs are to be synced, and tombstones written.
    fn has_runs_to_write(&self) -> bool {
        self.runs.is_some() && self.written.is_none()
    }

    /// Where a segment of the barrier stands among them.
    fn place_of(&self, id: SegmentId) -> usize {
        let found = self.segments.binary_search_by_key(&id, |segment| segment.image.id);
        found.expect("a segment stays while a checkpoint is taken")
    }

    /// Whether it makes a set for a segment.
    fn looks_at(&self, before: &SegmentBefore) -> bool {
        !before.is_known || self.begins_anew && before.has_dead
    }

    /// The segments at the barrier that it makes sets for, or those that it makes none for.
    fn segments_looked_at(&self, are: bool) -> impl Iterator<Item = &SegmentBefore> {
        self.segments.iter().filter(move |before| self.looks_at(before) == are)
    }
}

impl InSteps for LogCore {
    fn pause(&mut self) -> Result<()> {
        if self.log.pending() > 0 {
            return self.log.wait();
        }
        std::thread::yield_now();
        Ok(())
    }

    fn patience(&self) -> Duration {
        self.log.sizes.patience
    }
}

impl LogCore {
    /// Everything in the table now is of the checkpoint.
    pub(in crate::hybrid_log) fn begin_capture(&mut self, blobs: &BlobWriter) -> Result<()> {
        self.context.segment_store()?;
        self.put_rewrite_off();
        // What is lost is looked at.
        let _ = self.take_late(self.is_capturing());
        if self.has_handed_over() || self.checkpoint.is_some() {
            // The store has not said what became of the last one: if it was whole it may be either.
            let is_whole = match self.has_handed_over() {
                true => self.is_handed_over_whole(),
                false => !self.is_capturing(),
            };
            self.decide_capture(match is_whole {
                true => CheckpointOutcome::Unknown,
                false => CheckpointOutcome::Abandoned,
            });
        }
        // The error of a page that could not be written before now: it is tried again.
        let _ = self.log.poll();
        let runs = self.runs_at_barrier()?;
        self.log.barrier()?;
        if let Some((runs, _)) = &runs {
            self.named_runs.name(self.context.segment_store()?, runs.runs());
        }
        self.stored_mut().spill.begin(blobs);
        self.checkpoint = Some(Box::new(LogCheckpoint {
            entries: self.log.index.len(),
            step: LogCheckpointPhase::Foreseeing,
            segments: Vec::new(),
            left: Vec::new(),
            deaths: self.known_deaths.clone(),
            begins_anew: false,
            runs,
            written: None,
        }));
        Ok(())
    }

    /// The runs that the checkpoint has, and what is booked for them.
    fn runs_at_barrier(&mut self) -> Result<Option<(Arc<RunsAtBarrier>, Booked)>> {
        let Some(cold) = &self.log.cold else { return Ok(None) };
        let bytes = cold.barrier_bytes();
        self.log.make_free((bytes, "a checkpoint's list of runs"))?;
        let booked = Booked::buffers(self.log.account.clone(), bytes);
        let runs = self.log.cold.as_ref().map(|cold| Arc::new(cold.at_barrier()));
        Ok(runs.map(|runs| (runs, booked)))
    }

    /// Whether a checkpoint is being taken of what is there now.
    pub(in crate::hybrid_log) fn is_capturing(&self) -> bool {
        self.checkpoint
            .as_ref()
            .is_some_and(|checkpoint| !matches!(checkpoint.step, LogCheckpointPhase::Done))
    }

    /// Does a bounded share; the image at the end.
    pub(in crate::hybrid_log) fn continue_capture(
        &mut self,
        blobs: &BlobWriter,
    ) -> Result<Option<StateImage>> {
        if self.has_handed_over() {
            return self.continue_handed_over(blobs);
        }
        self.release_step();
        let Some(mut checkpoint) = self.checkpoint.take() else {
            return Err(Error::new(ErrorKind::Config, "no checkpoint was begun"));
        };
        self.context.helper.drive();
        let stepped = self.take_step(&mut checkpoint, blobs);
        let is_done = stepped.is_ok() && matches!(checkpoint.step, LogCheckpointPhase::Done);
        let image = is_done.then(|| self.image_of(&checkpoint));
        self.checkpoint = Some(checkpoint);
        stepped.map(|()| image)
    }

    /// Goes on to the next phase. After an error the checkpoint is in the one that is tried again, which is
    /// [`Writing`](LogCheckpointPhase::Writing) if it cannot be ended.
    fn take_step(&mut self, checkpoint: &mut LogCheckpoint, blobs: &BlobWriter) -> Result<()> {
        let step = std::mem::replace(&mut checkpoint.step, LogCheckpointPhase::Writing);
        if let Err(error) = self.take_late(!matches!(step, LogCheckpointPhase::Done)) {
            self.leave(step);
            return Err(self.cannot_end(error));
        }
        checkpoint.step = match step {
            LogCheckpointPhase::Foreseeing => self.foresee(checkpoint),
            LogCheckpointPhase::Writing => match self.log.seal_step()? {
                SealProgress::Sealed => {
                    self.look_over(checkpoint);
                    LogCheckpointPhase::Looking
                }
                SealProgress::Failed => {
                    let what = "a part of the checkpoint could not be written; begin it again";
                    return Err(Error::new(ErrorKind::Io, what).with("state", &self.context.name));
                }
                _ => LogCheckpointPhase::Writing,
            },
            // Those that were foreseen.
            LogCheckpointPhase::Looking if self.stored().sets.is_some() => {
                LogCheckpointPhase::Sweeping { frame: 0 }
            }
            LogCheckpointPhase::Looking if !checkpoint.left.is_empty() => {
                self.begin_looking(checkpoint)
            }
            LogCheckpointPhase::Looking if checkpoint.has_runs_to_write() => {
                self.begin_naming(checkpoint)
            }
            // Others are of the same list.
            LogCheckpointPhase::Looking if self.late.list.is_some() => LogCheckpointPhase::Looking,
            LogCheckpointPhase::Looking => self.begin_listing(checkpoint, blobs),
            LogCheckpointPhase::Naming(job) => {
                checkpoint.step = LogCheckpointPhase::Looking;
                match job.poll()? {
                    None => LogCheckpointPhase::Naming(job),
                    Some(written) => {
                        self.runs_were_written(checkpoint, written?);
                        LogCheckpointPhase::Looking
                    }
                }
            }
            LogCheckpointPhase::Freeing { count, bytes, booked } => {
                self.free_step(checkpoint, count, bytes, booked)?
            }
            LogCheckpointPhase::Beginning { mut wanted, are_foreseen } => {
                match self.begin_sets(&mut wanted) {
                    true if are_foreseen => LogCheckpointPhase::Writing,
                    true => LogCheckpointPhase::Sweeping { frame: 0 },
                    false => LogCheckpointPhase::Beginning { wanted, are_foreseen },
                }
            }
            LogCheckpointPhase::Sweeping { frame } => self.sweep(frame),
            LogCheckpointPhase::Visiting { from } => self.visit_stored(from),
            LogCheckpointPhase::Adding { from, to } if from != to => {
                let (added, from) = self.stored_mut().add_again(from, to, AGAIN);
                self.log.stats.checkpoint_looks += added;
                LogCheckpointPhase::Adding { from, to }
            }
            LogCheckpointPhase::Adding { .. } => self.begin_recalling(),
            LogCheckpointPhase::Recalling { next, reading } => {
                self.recall(checkpoint, next, reading)?
            }
            LogCheckpointPhase::Complete { bytes, sets } => self.write_sets(bytes, sets, blobs),
            LogCheckpointPhase::WritingSets { bytes, job } => match job.poll() {
                Ok(None) => LogCheckpointPhase::WritingSets { bytes, job },
                Ok(Some((sets, Err(error)))) => {
                    checkpoint.step = LogCheckpointPhase::Complete { bytes, sets };
                    return Err(error);
                }
                Ok(Some((_, Ok(written)))) => {
                    self.release(bytes);
                    for (id, set) in written {
                        let at = checkpoint.place_of(id);
                        checkpoint.segments[at].image.live = Some(set);
                    }
                    LogCheckpointPhase::Looking
                }
                Err(error) => {
                    self.release(bytes);
                    return Err(self.cannot_end(error));
                }
            },
            LogCheckpointPhase::Listing(job) => match job.poll() {
                Ok(None) => LogCheckpointPhase::Listing(job),
                Ok(Some((deaths, written))) => {
                    self.stored_mut().give_back(deaths);
                    checkpoint.step = LogCheckpointPhase::Looking;
                    checkpoint.deaths.extend(written?);
                    LogCheckpointPhase::Done
                }
                Err(error) => {
                    // What this one would say of the dead is lost: only the next can be whole.
                    self.stored_mut().forget_deaths();
                    return Err(self.cannot_end(error));
                }
            },
            LogCheckpointPhase::Done => LogCheckpointPhase::Done,
            LogCheckpointPhase::Overtaken => {
                checkpoint.step = LogCheckpointPhase::Overtaken;
                let what = "the state was cleared while the checkpoint was taken; begin it again";
                let error = Error::new(ErrorKind::Overtaken, what);
                return Err(error.with("state", &self.context.name));
            }
        };
        Ok(())
    }

    fn stored(&self) -> &StoredSegments {
        self.log.stored.as_ref().expect("a log with segments")
    }

    fn stored_mut(&mut self) -> &mut StoredSegments {
        self.log.stored.as_mut().expect("a log with segments")
    }

    /// Something of the checkpoint is lost: whoever tries again is told so.
    fn cannot_end(&mut self, error: Error) -> Error {
        self.give_sets_up();
        self.log.fail_sealing();
        error
    }

    fn begin_naming(&self, checkpoint: &LogCheckpoint) -> LogCheckpointPhase {
        let (runs, _) = checkpoint.runs.as_ref().expect("asked before");
        let runs = runs.clone();
        LogCheckpointPhase::Naming(HelperJob::submit(&self.context.helper, PART, move || {
            runs.write()
        }))
    }

    /// The device keeps all runs of the checkpoint.
    fn runs_were_written(&mut self, checkpoint: &mut LogCheckpoint, written: RunsWritten) {
        let store = self.stored().store();
        self.named_runs.name(&store, written.graves.iter().map(|run| run.id));
        // It goes with the checkpoints that name it.
        let_go(&store, &written);
        if let Some(cold) = &mut self.log.cold {
            cold.was_written(&written);
        }
        checkpoint.written = Some(written);
    }

    fn begin_listing(
        &mut self,
        checkpoint: &LogCheckpoint,
        blobs: &BlobWriter,
    ) -> LogCheckpointPhase {
        let mut deaths = self.log.stored.as_mut().expect("a log with segments").lend_deaths();
        let known = checkpoint.segments_looked_at(false);
        let wanted: HashSet<SegmentId> = known.map(|segment| segment.image.id).collect();
        let blobs = blobs.clone();
        LogCheckpointPhase::Listing(HelperJob::submit(&self.context.helper, PART, move || {
            let lists = deaths
                .iter_mut()
                .map(|part| Death::write(part, |id| wanted.contains(&id), &blobs).transpose());
            let written = lists.flatten().collect();
            (deaths, written)
        }))
    }

    fn image_of(&mut self, checkpoint: &LogCheckpoint) -> StateImage {
        self.log.end_sealing(false);
        self.stored_mut().spill.end();
        let segments = checkpoint.segments.iter().map(|s| s.image.clone()).collect();
        let part = ImagePart::new(RECORDS, segments, checkpoint.deaths.clone());
        assert_eq!(part.live_records(), checkpoint.entries, "every key has one live record");
        let image = StateImage::of(checkpoint.entries, part);
        match (&checkpoint.runs, &checkpoint.written) {
            (Some((runs, _)), Some(written)) => {
                let entries = checkpoint.entries + runs.keys();
                StateImage { entries, ..image.with(runs.part(written)) }
            }
            _ => image,
        }
    }

    /// What became of the checkpoint.
    pub(in crate::hybrid_log) fn decide_capture(&mut self, outcome: CheckpointOutcome) {
        if self.has_handed_over() {
            return self.decide_handed_over(outcome);
        }
        let Some(mut checkpoint) = self.checkpoint.take() else { return };
        self.forget_sweep();
        if let Ok(store) = self.context.segment_store() {
            self.named_runs.decide(store, outcome);
        }
        let booked = checkpoint.runs.take().map(|(_, booked)| booked);
        match std::mem::replace(&mut checkpoint.step, LogCheckpointPhase::Done) {
            LogCheckpointPhase::Naming(job) => {
                // What the helper has stays booked until it is through.
                self.late.runs.push((job, booked));
                self.stop(LogCheckpointPhase::Looking);
            }
            LogCheckpointPhase::Done => {}
            step => self.stop(step),
        }
        let Some(stored) = &mut self.log.stored else { return };
        if outcome == CheckpointOutcome::Abandoned {
            return stored.deaths_are_unknown();
        }
        let looked_at = checkpoint.segments_looked_at(true);
        stored.deaths_are_known(looked_at.map(|before| (before.image.id, before.image.live)));
        stored.decide(checkpoint.segments.iter().map(|segment| segment.image.id), outcome);
        self.known_deaths = checkpoint.deaths;
    }

    /// Gives up what was begun. Cost: O(1), whatever the log holds, and nothing is waited for.
    fn stop(&mut self, step: LogCheckpointPhase) {
        self.log.end_sealing(true);
        self.give_sets_up();
        self.stored_mut().spill.end();
        self.leave(step);
    }

    fn release(&self, bytes: u64) {
        self.log.account.release(MemoryKind::Buffers, bytes);
    }
}

impl LogCore {
    /// Whether the checkpoint that was taken is whole, or cannot be any more.
    pub(in crate::hybrid_log) fn has_ended(&self) -> bool {
        let is_over = |checkpoint: &LogCheckpoint| {
            matches!(checkpoint.step, LogCheckpointPhase::Done | LogCheckpointPhase::Overtaken)
        };
        self.checkpoint.as_deref().is_some_and(is_over)
    }

    /// Whether a checkpoint is being taken that is yet to have more of what is there.
    pub(in crate::hybrid_log) fn needs_more(&self) -> bool {
        let Some(checkpoint) = &self.checkpoint else { return false };
        let is_last = checkpoint.left.is_empty();
        match &checkpoint.step {
            LogCheckpointPhase::Listing(_)
            | LogCheckpointPhase::Done
            | LogCheckpointPhase::Overtaken => false,
            LogCheckpointPhase::WritingSets { .. } | LogCheckpointPhase::Complete { .. } => {
                !is_last
            }
            LogCheckpointPhase::Looking => !is_last || self.stored().sets.is_some(),
            _ => true,
        }
    }

    /// Everything is about to go, and cannot be handed over: a checkpoint that needs more of it ends. To write it first
    /// would be a call that waits for storage, for as long as the state is large, where all others are bounded; and who
    /// clears a state has a checkpoint of little to take when it is begun again.
    pub(in crate::hybrid_log) fn overtake_capture(&mut self) {
        if !self.needs_more() {
            return;
        }
        let Some(mut checkpoint) = self.checkpoint.take() else { return };
        let step = std::mem::replace(&mut checkpoint.step, LogCheckpointPhase::Overtaken);
        self.stop(step);
        self.checkpoint = Some(checkpoint);
    }
}
