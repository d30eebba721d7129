//! The end of a checkpoint of heap state, once all is written: which records of segments of before are live is told, as sets
//! or as a list of those that have died.
//!
//! To sets that were made as all was read is added what has died since the barrier, some with each share; then the
//! helper writes them, or the list.
//!
//! What it keeps true:
//! - A set has as many records as are live.
//! - What the helper is lent comes back, also if the checkpoint is given up meanwhile.

use alluvium_pagestore::{
    BlobRef, BlobWriter, Death, Error, ErrorKind, Helper, Result, SegmentId, SegmentInfo,
};

use super::dead::{DeadListPosition, DeadPlaces};
use super::job::HelperJob;
use super::ledger::{HeapFiles, NamedSegments};
use super::live_sets::write_sets;
use super::naming::Naming;
use crate::contract::table::StateContext;
use crate::heap::record_position::RecordPosition;

/// What is named by a checkpoint of which all is written, and how far it is told.
#[derive(Debug)]
pub(crate) struct DeathsWriter {
    sealed: Vec<SegmentInfo>,
    named: NamedSegments,
    step: DeathsPhase,
}

#[derive(Debug)]
enum DeathsPhase {
    /// What has died since the barrier is added to sets, from a place of its list on and before another.
    Adding { from: DeadListPosition, to: DeadListPosition },
    /// The helper writes sets, or a list.
    Writing { has_sets: bool, job: HelperJob<WrittenDeaths> },
    /// All is told, or could not be.
    Over,
}

/// The helper's answer: the list of deaths; of each segment its set; and the places it was lent.
struct WrittenDeaths {
    list: Result<Option<BlobRef>>,
    sets: Result<Vec<(SegmentId, BlobRef)>>,
    lent: Vec<Vec<RecordPosition>>,
}

impl DeathsWriter {
    /// Nothing is told yet of what is named, segments of before and those that were `sealed`.
    pub fn new(files: &HeapFiles, named: NamedSegments, sealed: Vec<SegmentInfo>) -> Self {
        // What dies from now on was found when it was read.
        let step =
            DeathsPhase::Adding { from: DeadListPosition::default(), to: files.dead().end() };
        Self { sealed, named, step }
    }

    /// Whether the next [share](DeathsWriter::share) adds to sets.
    pub fn is_adding(&self, naming: &Naming) -> bool {
        let is_left = matches!(self.step, DeathsPhase::Adding { from, to } if from != to);
        is_left && !naming.sets.is_empty() && self.is_needed(naming)
    }

    /// Does a bounded share, and says whether all is told.
    ///
    /// # Errors
    /// Why it could not be told. The checkpoint has to be begun again.
    ///
    /// # Panics
    /// If a set does not have as many records as are live.
    pub fn share(
        &mut self,
        (context, files): (&StateContext, &HeapFiles),
        naming: &mut Naming,
        blobs: &BlobWriter,
    ) -> Result<bool> {
        let (has_sets, is_needed) = (!naming.sets.is_empty(), self.is_needed(naming));
        match &mut self.step {
            DeathsPhase::Adding { .. } if has_sets && files.is_broken() => {
                let message =
                    "no memory was left to note which records are live; begin the checkpoint again";
                Err(Error::new(ErrorKind::Overtaken, message))
            }
            DeathsPhase::Adding { .. } if !is_needed => {
                self.step = DeathsPhase::Over;
                Ok(true)
            }
            DeathsPhase::Adding { from, to } if has_sets && from != to => {
                *from = files.add_dead(&mut naming.sets, *from, *to);
                Ok(false)
            }
            DeathsPhase::Adding { .. } => {
                let job = self.begin_writing((context, files), naming, blobs);
                self.step = DeathsPhase::Writing { has_sets, job };
                Ok(false)
            }
            DeathsPhase::Writing { .. } => self.is_written(&context.helper, &mut naming.dead),
            DeathsPhase::Over => Ok(true),
        }
    }

    /// Whether there is something to be told of what is named beside the segments that were sealed.
    fn is_needed(&self, naming: &Naming) -> bool {
        let has_older = self.named.part.segments.len() > self.sealed.len();
        has_older && (!naming.sets.is_empty() || !naming.dead.list().is_empty())
    }

    /// Has the helper write which records are live of what is named.
    fn begin_writing(
        &self,
        (context, files): (&StateContext, &HeapFiles),
        naming: &mut Naming,
        blobs: &BlobWriter,
    ) -> HelperJob<WrittenDeaths> {
        let sets = std::mem::take(&mut naming.sets);
        let by_slot = files.by_slot(&self.named);
        // Sets tell all of it.
        let ids: Vec<_> = match sets.is_empty() {
            true => by_slot.iter().map(|segment| segment.map(|segment| segment.id)).collect(),
            false => Vec::new(),
        };
        let sets = sets.into_whole(|slot| by_slot[slot as usize]);
        let lent = naming.dead.lend();
        let blobs = blobs.clone();
        HelperJob::submit(
            &context.helper,
            "which records are live; begin the checkpoint again",
            move || {
                let death =
                    |at: &RecordPosition| Some(Death::of((*ids.get(at.slot())?)?, at.grain()));
                let mut deaths: Vec<Death> = Vec::with_capacity(lent.iter().map(Vec::len).sum());
                deaths.extend(lent.iter().flatten().filter_map(death));
                let list = Death::write(&mut deaths, |_| true, &blobs);
                let sets = write_sets(&sets, &blobs);
                WrittenDeaths { list, sets, lent }
            },
        )
    }

    /// Whether the helper has written it. What it was lent is given back then.
    fn is_written(&mut self, helper: &Helper, dead: &mut DeadPlaces) -> Result<bool> {
        let DeathsPhase::Writing { has_sets, job } = &self.step else {
            unreachable!("it was given it")
        };
        let Some(told) = job.poll_driving(helper, false)? else { return Ok(false) };
        let has_sets = *has_sets;
        dead.give_back(told.lent);
        self.step = DeathsPhase::Over;
        let (list, sets) = (told.list?, told.sets?);
        let part = &mut self.named.part;
        if has_sets {
            part.deaths = Vec::new();
        }
        part.deaths.extend(list);
        for (id, blob) in sets {
            let segment = part.segments.iter_mut().find(|segment| segment.id == id);
            segment.expect("it is named").live = Some(blob);
        }
        Ok(true)
    }

    /// What is named, once it is told.
    pub fn into_named(self) -> NamedSegments {
        self.named
    }

    /// The checkpoint is given up; what it has written is removed. What the helper was lent and has not given back.
    pub fn give_up(self, context: &StateContext) -> Option<LentPositions> {
        // One that cannot be removed now is removed at the next open.
        for segment in &self.sealed {
            let _ = context.segments.as_ref().map(|store| store.remove(segment.id));
        }
        match self.step {
            DeathsPhase::Writing { job, .. } => Some(LentPositions(job)),
            DeathsPhase::Adding { .. } | DeathsPhase::Over => None,
        }
    }
}

/// What the helper was lent for a checkpoint that was given up.
#[derive(Debug)]
pub(crate) struct LentPositions(HelperJob<WrittenDeaths>);

impl LentPositions {
    /// Takes it back before the next checkpoint. If the helper has it still, that one is full.
    pub fn take_back(self, helper: &Helper, files: &mut HeapFiles) {
        // Without a thread it is here that it does it.
        while helper.is_inline() && self.0.is_empty() && helper.drive() {}
        match self.0.poll() {
            Ok(Some(told)) => files.give_back(told.lent),
            Ok(None) | Err(_) => files.break_off(),
        }
    }
}
