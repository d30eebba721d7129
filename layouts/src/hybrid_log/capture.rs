//! Taking a checkpoint of a hybrid log while the stream goes on.
//!
//! It begins with a barrier, which costs the same whatever the log holds: what is fresh is what the
//! checkpoint is to have, and the frames that are there are *due*. What was fresh in a due frame does not
//! change until it is copied, or written; if it is to be changed before, it is cloned to the fill frame.
//! Copies and frames go to the helper a few at a time, then their segment is sealed.
//!
//! What a checkpoint says of records that have died is what the one before said, and a list of those
//! that have died between the two barriers. A segment whose deaths were not all noted is looked at in
//! full: frames and index are visited in steps, and what has died since the barrier is added again.
//!
//! What it keeps true:
//! - The image is of the barrier: it has no record that was written after it, and every record that
//!   has died after it.
//! - While it is taken no segment is rewritten or removed.

use std::collections::HashSet;
use std::ops::Range;
use std::time::Instant;

use alluvium_pagestore::{
    BlobRef, BlobWriter, Death, Error, ErrorKind, Key, LiveSet, MemoryKind, Result, SegmentId,
    State, StateImage,
};
use crossbeam_channel::{Receiver, TryRecvError, bounded};

use super::address::{Place, StoredAt};
use super::deaths::DeathList;
use super::log::{INDEX_SEGMENT_SLOTS, Sealing};
use super::stored::{SegmentBefore, Stored};
use super::table::HybridLogTable;
use crate::table::CheckpointOutcome;

/// Lists that a checkpoint refers to at most, before it looks at the segments again.
const LISTS_MAX: usize = 64;
/// Bytes of a death in a list.
const LISTED_BYTES: u64 = 4;
/// Slots that a share looks at.
const SWEPT: u32 = 4096;
/// Deaths added again at a time.
const AGAIN: usize = 4096;

/// A checkpoint being taken, or not decided yet.
pub struct Capture {
    /// Keys at the barrier.
    entries: u64,
    step: Step,
    /// The segments at the barrier; those to be looked at have their places in `looked_at`.
    segments: Vec<SegmentBefore>,
    looked_at: Vec<usize>,
    /// The lists that the checkpoint goes on from, and then its own.
    deaths: Vec<BlobRef>,
}

enum Step {
    /// Due frames are being written.
    Writing,
    /// Segments are looked at: those before `next` of `looked_at` have been.
    Looking { next: usize },
    /// A group of them is looked for: in the frames from a number on.
    Sweeping { sets: Sets, frame: u32 },
    /// And then, for what is on storage only, in a part of the index and those after it: whatever leaves
    /// memory meanwhile is there.
    Visiting { sets: Sets, from: u32 },
    /// What has died since the barrier is added again: those before `added` have been.
    Adding { sets: Sets, added: usize, all: usize },
    /// The helper writes the sets.
    WritingSets { group: Range<usize>, bytes: u64, answer: Receiver<Result<Vec<BlobRef>>> },
    /// The helper writes the list of what died before the barrier.
    Listing(Receiver<(DeathList, Result<Vec<BlobRef>>)>),
    /// The image was given.
    Done,
}

/// Live records of a group of the segments that are looked at, by their ids.
struct Sets {
    group: Range<usize>,
    sets: Vec<Counted>,
    /// Which of them is that of a segment, by its number.
    places: Vec<u32>,
    /// Booked for them.
    bytes: u64,
}

/// The place of a segment that none of the sets is of.
const NO_PLACE: u32 = u32::MAX;

/// Sets that the helper writes for a checkpoint that was given up, and what is booked for them.
pub(super) type LateSets = (Receiver<Result<Vec<BlobRef>>>, u64);

/// An answer has not come in time.
struct Late;

/// A set and how many are in it, so that no call counts them all.
struct Counted {
    id: SegmentId,
    number: u32,
    set: LiveSet,
    live: u64,
}

impl Sets {
    fn new(group: Range<usize>, sets: Vec<Counted>, bytes: u64) -> Self {
        debug_assert!(sets.is_sorted_by_key(|set| set.id), "segments are told by their ids");
        let numbers = sets.iter().map(|set| set.number as usize + 1).max().unwrap_or(0);
        let mut places = vec![NO_PLACE; numbers];
        for (place, set) in sets.iter().enumerate() {
            places[set.number as usize] = place as u32;
        }
        Self { group, sets, places, bytes }
    }

    /// A record of the segment with a number is live.
    fn insert(&mut self, at: StoredAt) {
        let place = self.places.get(at.segment as usize);
        // Most are of others where few are looked at.
        let Some(&place) = place.filter(|&&place| place != NO_PLACE) else { return };
        self.sets[place as usize].insert(at.grain);
    }

    /// A record was live. Its segment may be gone, and its number given to another.
    fn insert_again(&mut self, death: Death) {
        if let Ok(found) = self.sets.binary_search_by_key(&death.segment(), |set| set.id) {
            self.sets[found].insert(death.grain());
        }
    }
}

impl Counted {
    fn none_of(segment: &SegmentBefore) -> Self {
        let SegmentBefore { number, image, .. } = segment;
        Self { id: image.id, number: *number, set: LiveSet::new(image.bytes), live: 0 }
    }

    fn insert(&mut self, grain: u32) {
        self.live += u64::from(self.set.insert(grain));
    }
}

impl<K: Key, V: State> HybridLogTable<K, V> {
    /// Takes a checkpoint in one call.
    pub(super) fn take_at_once(&mut self, blobs: &BlobWriter) -> Result<StateImage> {
        self.begin_capture()?;
        let start = Instant::now();
        loop {
            match self.continue_capture(blobs) {
                Ok(Some(image)) => {
                    self.at_once = false;
                    return Ok(image);
                }
                Ok(None) if self.log.pending() > 0 => self.log.wait()?,
                Ok(None) => std::thread::yield_now(),
                Err(error) => {
                    self.decide_capture(CheckpointOutcome::Abandoned);
                    return Err(error);
                }
            }
            self.log.check_patience(start)?;
        }
    }

    /// Everything in the table now is of the checkpoint.
    pub(super) fn begin_capture(&mut self) -> Result<()> {
        self.context.segment_store()?;
        self.forget_scratch();
        self.give_up_rewrite();
        self.release_late_sets();
        if self.capture.is_some() {
            // The store has not said what became of the last one: if it was whole it may be either.
            let is_whole = !self.is_capturing();
            self.decide_capture(match is_whole {
                true => CheckpointOutcome::Unknown,
                false => CheckpointOutcome::Abandoned,
            });
        }
        // The error of a page that could not be written before now: it is tried again.
        let _ = self.log.poll();
        self.log.barrier()?;
        self.capture = Some(Box::new(Capture {
            entries: self.log.index.len(),
            step: Step::Writing,
            segments: Vec::new(),
            looked_at: Vec::new(),
            deaths: self.known_deaths.clone(),
        }));
        Ok(())
    }

    /// Whether a checkpoint is being taken.
    pub(super) fn is_capturing(&self) -> bool {
        self.capture.as_ref().is_some_and(|capture| !matches!(capture.step, Step::Done))
    }

    /// Does a bounded share; the image at the end.
    pub(super) fn continue_capture(&mut self, blobs: &BlobWriter) -> Result<Option<StateImage>> {
        let Some(mut capture) = self.capture.take() else {
            return Err(Error::new(ErrorKind::Config, "no checkpoint was begun"));
        };
        self.context.helper.drive();
        let step = std::mem::replace(&mut capture.step, Step::Writing);
        let next = self.take_step(&mut capture, step, blobs);
        let (next, failed) = match next {
            Ok(next) => (next, None),
            Err((step, error)) => (step, Some(error)),
        };
        let done = matches!(next, Step::Done) && failed.is_none();
        capture.step = next;
        let image = done.then(|| self.image_of(&capture));
        self.capture = Some(capture);
        failed.map_or(Ok(image), Err)
    }

    fn take_step(
        &mut self,
        capture: &mut Capture,
        step: Step,
        blobs: &BlobWriter,
    ) -> std::result::Result<Step, (Step, Error)> {
        match step {
            Step::Writing => match self.log.seal_some() {
                Ok(Sealing::Sealed) => {
                    self.look_over(capture);
                    Ok(Step::Looking { next: 0 })
                }
                Ok(Sealing::Failed) => {
                    let what = "a page of the checkpoint could not be written; begin it again";
                    let error = Error::new(ErrorKind::Io, what);
                    Err((Step::Writing, error.with("state", &self.context.name)))
                }
                Ok(_) => Ok(Step::Writing),
                Err(error) => Err((Step::Writing, error)),
            },
            Step::Looking { next } if next == capture.looked_at.len() => {
                Ok(self.begin_listing(capture, blobs))
            }
            Step::Looking { next } => {
                self.begin_looking(capture, next).map_err(|error| (Step::Looking { next }, error))
            }
            Step::Sweeping { mut sets, mut frame } => {
                let mut looked = 0;
                while (frame as usize) < self.log.frames.count() && looked < SWEPT {
                    if !self.log.pay(self.log.sizes.slots.into()) {
                        return Ok(Step::Sweeping { sets, frame });
                    }
                    self.log.visit_stored_of(frame, |at| sets.insert(at));
                    looked += self.log.sizes.slots;
                    frame += 1;
                }
                Ok(match (frame as usize) < self.log.frames.count() {
                    true => Step::Sweeping { sets, frame },
                    false => Step::Visiting { sets, from: 0 },
                })
            }
            Step::Visiting { mut sets, from } => {
                if !self.log.pay(INDEX_SEGMENT_SLOTS) {
                    return Ok(Step::Visiting { sets, from });
                }
                let next = self.log.index.visit(from, |address| {
                    if let Place::Stored(at) = address.place() {
                        sets.insert(at);
                    }
                });
                if let Some(from) = next {
                    return Ok(Step::Visiting { sets, from });
                }
                let stored = self.log.stored.as_ref().expect("a log with segments");
                let all = stored.count_since().unwrap_or(0);
                Ok(Step::Adding { sets, added: 0, all })
            }
            Step::Adding { mut sets, added, all } => {
                let stored = self.log.stored.as_ref().expect("a log with segments");
                if stored.count_since().is_none() {
                    self.release(sets.bytes);
                    self.at_once = true;
                    let next = sets.group.start;
                    let what = "more records died than there was room to note while the checkpoint \
                                was taken; the next one is taken at once";
                    let error = Error::new(ErrorKind::OverBudget, what);
                    return Err((Step::Looking { next }, error.with("state", &self.context.name)));
                }
                let deaths = stored.deaths_since(added, all.min(added + AGAIN));
                let end = added + deaths.len();
                deaths.iter().for_each(|&death| sets.insert_again(death));
                if end < all {
                    return Ok(Step::Adding { sets, added: end, all });
                }
                Ok(self.begin_writing_sets(capture, sets, blobs))
            }
            Step::WritingSets { group, bytes, answer } => match answer.try_recv() {
                Err(TryRecvError::Empty) => Ok(Step::WritingSets { group, bytes, answer }),
                Err(TryRecvError::Disconnected) => {
                    self.release(bytes);
                    Err((Step::Looking { next: group.start }, helper_is_lost()))
                }
                Ok(Err(error)) => {
                    self.release(bytes);
                    Err((Step::Looking { next: group.start }, error))
                }
                Ok(Ok(written)) => {
                    self.release(bytes);
                    let mut written = written.into_iter();
                    for at in &capture.looked_at[group.clone()] {
                        let image = &mut capture.segments[*at].image;
                        image.live = match image.live_records < image.records {
                            true => written.next(),
                            false => None,
                        };
                    }
                    Ok(Step::Looking { next: group.end })
                }
            },
            Step::Listing(answer) => match answer.try_recv() {
                Err(TryRecvError::Empty) => Ok(Step::Listing(answer)),
                Err(TryRecvError::Disconnected) => {
                    self.log.stored.as_mut().expect("a log with segments").forget_deaths();
                    // What this one would say of the dead is lost: only the next can be whole.
                    self.log.sealing = Sealing::Failed;
                    Err((Step::Writing, helper_is_lost()))
                }
                Ok((deaths, written)) => {
                    self.log.stored.as_mut().expect("a log with segments").give_back(deaths);
                    match written {
                        Ok(lists) => {
                            capture.deaths.extend(lists);
                            Ok(Step::Done)
                        }
                        Err(error) => Err((Step::Looking { next: capture.looked_at.len() }, error)),
                    }
                }
            },
            Step::Done => Ok(Step::Done),
        }
    }

    /// Everything is written: which segments there are, and which are to be looked at.
    fn look_over(&mut self, capture: &mut Capture) {
        capture.segments = self.log.at_barrier.clone();
        let listed: u64 = capture.deaths.iter().map(|blob| blob.len).sum();
        let stored = self.log.stored.as_ref().expect("a log with segments");
        // With those that are to be listed now: else the next checkpoint, however small, makes the sets.
        let listed = listed + LISTED_BYTES * stored.count_before();
        let sets = capture.segments.iter().map(|s| LiveSet::memory_bytes(s.image.bytes));
        // Lists are shorter than sets until many have died.
        let begin_anew = capture.deaths.len() >= LISTS_MAX || listed > sets.sum::<u64>() + 4096;
        if begin_anew {
            capture.deaths.clear();
        }
        let segments = capture.segments.iter().enumerate();
        let looked_at = segments.filter(|(_, s)| !s.is_known || begin_anew && s.has_dead);
        capture.looked_at = looked_at.map(|(at, _)| at).collect();
    }

    /// Begins to look at as many segments as half of the free memory has room for.
    fn begin_looking(&mut self, capture: &Capture, next: usize) -> Result<Step> {
        let allowance = self.log.account.available() / 2;
        let numbers = capture.segments.iter().map(|segment| u64::from(segment.number) + 1);
        let (mut bytes, mut end) = (4 * numbers.max().unwrap_or(0), next);
        for &at in &capture.looked_at[next..] {
            let more = LiveSet::memory_bytes(capture.segments[at].image.bytes) + 64;
            if end > next && bytes + more > allowance {
                break;
            }
            bytes += more;
            end += 1;
        }
        while self.log.account.available() < bytes {
            self.log.free_a_frame()?;
        }
        self.log.account.charge(MemoryKind::Buffers, bytes);
        let segments = capture.looked_at[next..end].iter().map(|&at| &capture.segments[at]);
        let sets: Vec<_> = segments.map(Counted::none_of).collect();
        Ok(Step::Sweeping { sets: Sets::new(next..end, sets, bytes), frame: 0 })
    }

    fn begin_writing_sets(&mut self, capture: &Capture, sets: Sets, blobs: &BlobWriter) -> Step {
        let Sets { group, sets, bytes, .. } = sets;
        let mut written = Vec::new();
        for (&at, counted) in capture.looked_at[group.clone()].iter().zip(sets) {
            let (image, Counted { set, live, .. }) = (&capture.segments[at].image, counted);
            assert_eq!(live, image.live_records, "every key has one live record: {image:?}");
            if image.live_records < image.records {
                written.push(set);
            }
        }
        let (reply, answer) = bounded(1);
        let blobs = blobs.clone();
        self.context.helper.submit(move || {
            let _ = reply.send(written.iter().map(|set| set.write(&blobs)).collect());
        });
        Step::WritingSets { group, bytes, answer }
    }

    fn begin_listing(&mut self, capture: &Capture, blobs: &BlobWriter) -> Step {
        let mut deaths = self.log.stored.as_mut().expect("a log with segments").lend_deaths();
        let looked_at: HashSet<usize> = capture.looked_at.iter().copied().collect();
        let known = capture.segments.iter().enumerate().filter(|(at, _)| !looked_at.contains(at));
        let wanted: HashSet<SegmentId> = known.map(|(_, segment)| segment.image.id).collect();
        let (reply, answer) = bounded(1);
        let blobs = blobs.clone();
        self.context.helper.submit(move || {
            let lists = deaths
                .iter_mut()
                .map(|part| Death::write(part, |id| wanted.contains(&id), &blobs).transpose());
            let written = lists.flatten().collect();
            let _ = reply.send((deaths, written));
        });
        Step::Listing(answer)
    }

    fn image_of(&mut self, capture: &Capture) -> StateImage {
        self.log.end_sealing(false);
        let segments: Vec<_> = capture.segments.iter().map(|s| s.image.clone()).collect();
        let live: u64 = segments.iter().map(|segment| segment.live_records).sum();
        assert_eq!(live, capture.entries, "every key has one live record");
        StateImage { entries: capture.entries, segments, deaths: capture.deaths.clone() }
    }

    /// What became of the checkpoint.
    pub(super) fn decide_capture(&mut self, outcome: CheckpointOutcome) {
        let Some(capture) = self.capture.take() else { return };
        let Capture { step, segments, looked_at, deaths, .. } = *capture;
        if !matches!(step, Step::Done) {
            self.stop(step);
        }
        let Some(stored) = &mut self.log.stored else { return };
        if outcome == CheckpointOutcome::Abandoned {
            return stored.deaths_are_unknown();
        }
        stored.deaths_are_known(looked_at.iter().map(|&at| {
            let image = &segments[at].image;
            (image.id, image.live)
        }));
        let keep_old = outcome == CheckpointOutcome::Unknown;
        stored.set_committed(segments.iter().map(|segment| segment.image.id), keep_old);
        self.known_deaths = deaths;
    }

    /// Gives up what was begun.
    fn stop(&mut self, step: Step) {
        self.log.end_sealing(true);
        match step {
            Step::Sweeping { sets, .. }
            | Step::Visiting { sets, .. }
            | Step::Adding { sets, .. } => self.release(sets.bytes),
            Step::WritingSets { bytes, answer, .. } => match self.wait_for(&answer) {
                Err(Late) => self.late_sets.push((answer, bytes)),
                Ok(_) => self.release(bytes),
            },
            Step::Listing(answer) => {
                let lent = self.wait_for(&answer).ok().flatten();
                let stored = self.log.stored.as_mut().expect("a log with segments");
                match lent {
                    Some((deaths, _)) => stored.give_back(deaths),
                    None => stored.forget_deaths(),
                }
            }
            Step::Writing | Step::Looking { .. } | Step::Done => {}
        }
    }

    /// The helper's answer; none if it is lost.
    fn wait_for<T>(&self, answer: &Receiver<T>) -> std::result::Result<Option<T>, Late> {
        let start = Instant::now();
        loop {
            self.context.helper.drive();
            self.log.stored.iter().for_each(Stored::drive);
            match answer.recv_timeout(std::time::Duration::from_millis(1)) {
                Ok(answer) => return Ok(Some(answer)),
                Err(crossbeam_channel::RecvTimeoutError::Disconnected) => return Ok(None),
                Err(crossbeam_channel::RecvTimeoutError::Timeout) => {
                    self.log.check_patience(start).map_err(|_| Late)?;
                }
            }
        }
    }

    /// Releases what sets took whose writing took longer than anybody waited, when it is over.
    fn release_late_sets(&mut self) {
        let late = std::mem::take(&mut self.late_sets);
        for (answer, bytes) in late {
            match answer.try_recv() {
                Err(TryRecvError::Empty) => self.late_sets.push((answer, bytes)),
                _ => self.release(bytes),
            }
        }
    }

    fn release(&self, bytes: u64) {
        self.log.account.release(MemoryKind::Buffers, bytes);
    }
}

fn helper_is_lost() -> Error {
    Error::new(ErrorKind::Io, "the helper lost a part of a checkpoint")
}
