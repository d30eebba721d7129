//! Looking at segments in full: the sets of what is live in those of which not all deaths were noted.
//!
//! Sets are begun for as many segments as there is memory for. The records in frames are added to them, then those
//! that only the index knows of on storage, and then what has died since the barrier, from the notes and from what was
//! [kept on storage](crate::hybrid_log::spill).

use alluvium_pagestore::{BlobWriter, LiveSet, MemoryKind, Result};

use super::{LogCheckpoint, LogCheckpointPhase, PART, SegmentSets};
use crate::checkpoint::{DeadListPosition, HelperJob, LiveSets, write_sets};
use crate::hybrid_log::address::Location;
use crate::hybrid_log::core::LogCore;
use crate::hybrid_log::log::INDEX_SEGMENT_SLOTS;
use crate::hybrid_log::spill::{DeathsRead, NextPart};
use crate::hybrid_log::stored::SegmentBefore;

/// Lists that a checkpoint refers to at most, before it looks at the segments again.
const LISTS_MAX: usize = 64;
/// Bytes of a death in a list, about.
const LISTED_BYTES: u64 = 2;
/// Slots that a share looks at.
const SWEPT: u32 = 4096;
/// Sets begun at a time, and the bytes that are cleared for them, but for the last of these.
const BEGUN: usize = 16;
const BEGUN_BYTES: u64 = 128 << 10;
/// Sets that are made together take at least this part of the memory, if they take less than this part of
/// what pages take.
const SETS_OF_MEMORY: u64 = 32;
const SETS_OF_PAGES: u64 = 4;

impl LogCore {
    /// Which segments have to be looked at in full is known of those that there are at the barrier: books sets for all of
    /// them, if there are some, and memory that nobody misses.
    pub(super) fn foresee(&mut self, checkpoint: &mut LogCheckpoint) -> LogCheckpointPhase {
        checkpoint.segments = self.stored().segments_before();
        checkpoint.begins_anew = self.are_lists_longer(checkpoint);
        if checkpoint.begins_anew {
            checkpoint.deaths.clear();
        }
        // What is not sealed grows yet.
        let wanted = checkpoint.segments_looked_at(true).filter(|before| before.was_sealed);
        let mut wanted: Vec<_> = wanted.cloned().collect();
        wanted.reverse();
        self.settle_known(checkpoint);
        let bytes = self.bytes_of_sets(checkpoint, wanted.iter());
        if wanted.is_empty() || bytes > self.log.account.available() / 2 {
            return LogCheckpointPhase::Writing;
        }
        self.book_sets(checkpoint, wanted.len(), bytes);
        LogCheckpointPhase::Beginning { wanted, are_foreseen: true }
    }

    /// Of segments that are known and do not change any more nobody asks what dies.
    pub(super) fn settle_known(&mut self, checkpoint: &LogCheckpoint) {
        let stored = self.log.stored.as_mut().expect("a log with segments");
        for before in checkpoint.segments_looked_at(false).filter(|before| before.was_sealed) {
            stored.settle(before.number);
        }
    }

    /// Whether the lists of what has died, with the one that is to be written now, are longer than sets of all
    /// that is live.
    pub(super) fn are_lists_longer(&self, checkpoint: &LogCheckpoint) -> bool {
        let listed: u64 = checkpoint.deaths.iter().map(|blob| blob.len).sum();
        // With those that are to be listed now: else the next checkpoint, however small, makes the sets.
        let listed = listed + LISTED_BYTES * self.stored().count_before();
        let sets = checkpoint.segments.iter().map(|s| LiveSet::memory_bytes(s.image.bytes));
        let most = (sets.sum::<u64>() + 4096).min(self.log.sizes.lists_max);
        checkpoint.deaths.len() >= LISTS_MAX || listed > most
    }

    /// Everything is written: which segments there are, and which are to be looked at.
    pub(super) fn look_over(&mut self, checkpoint: &mut LogCheckpoint) {
        checkpoint.segments = self.log.segments_at_barrier().to_vec();
        let sets = self.stored().sets.as_ref();
        let is_left = |(_, before): &(usize, &SegmentBefore)| {
            let has_set = sets.is_some_and(|sets| sets.has(before.image.id));
            checkpoint.looks_at(before) && !has_set
        };
        let segments = checkpoint.segments.iter().enumerate().rev();
        checkpoint.left = segments.filter(is_left).map(|(at, _)| at).collect();
        self.stored_mut().settle_others(|id| {
            let found = checkpoint.segments.binary_search_by_key(&id, |before| before.image.id);
            found.is_ok_and(|at| checkpoint.looks_at(&checkpoint.segments[at]))
        });
    }

    /// What sets for segments take, with the table of their numbers.
    pub(super) fn bytes_of_sets<'a>(
        &self,
        checkpoint: &LogCheckpoint,
        segments: impl Iterator<Item = &'a SegmentBefore>,
    ) -> u64 {
        LiveSets::places_bytes(numbers_of(checkpoint)) + segments.map(bytes_of_set).sum::<u64>()
    }

    pub(super) fn book_sets(&mut self, checkpoint: &LogCheckpoint, count: usize, bytes: u64) {
        self.log.account.charge(MemoryKind::Buffers, bytes);
        let sets = LiveSets::none(numbers_of(checkpoint), count, bytes);
        self.log.stored.as_mut().expect("a log with segments").sets = Some(sets);
    }

    /// Begins to look at as many segments as half of the free memory has room for, or what pages can leave.
    pub(super) fn begin_looking(&mut self, checkpoint: &LogCheckpoint) -> LogCheckpointPhase {
        let account = &self.log.account;
        let of_memory = account.limit() / SETS_OF_MEMORY;
        let of_pages = account.used_for(MemoryKind::Pages) / SETS_OF_PAGES;
        let allowance = (account.available() / 2).max(of_memory.min(of_pages));
        let mut bytes = self.bytes_of_sets(checkpoint, std::iter::empty());
        let mut count = 0;
        for &at in checkpoint.left.iter().rev() {
            let more = bytes_of_set(&checkpoint.segments[at]);
            if count > 0 && bytes + more > allowance {
                break;
            }
            bytes += more;
            count += 1;
        }
        LogCheckpointPhase::Freeing { count, bytes, booked: 0 }
    }

    /// Books what sets take, a page at a time while memory is short: the stream would take what is free.
    pub(super) fn free_step(
        &mut self,
        checkpoint: &mut LogCheckpoint,
        count: usize,
        bytes: u64,
        mut booked: u64,
    ) -> Result<LogCheckpointPhase> {
        let wanted = bytes - booked;
        if self.log.account.available() < wanted {
            let freed = match self.log.free_step() {
                Ok(true) => Ok(()),
                Ok(false) => self.log.account.ensure(wanted, "a set of live records"),
                Err(error) => Err(error),
            };
            let page = self.log.sizes.frame_bytes.min(self.log.account.available());
            let more = wanted.min(page);
            self.log.account.charge(MemoryKind::Buffers, more);
            booked += more;
            let step = || LogCheckpointPhase::Freeing { count, bytes, booked };
            checkpoint.step = step();
            return freed.map(|()| step());
        }
        self.release(booked);
        self.book_sets(checkpoint, count, bytes);
        let group = checkpoint.left.split_off(checkpoint.left.len() - count);
        let wanted = group.into_iter().map(|at| checkpoint.segments[at].clone()).collect();
        Ok(LogCheckpointPhase::Beginning { wanted, are_foreseen: false })
    }

    /// Begins some of the sets that are wanted; says whether those were the last.
    pub(super) fn begin_sets(&mut self, wanted: &mut Vec<SegmentBefore>) -> bool {
        let sets = &mut self.log.stored.as_mut().expect("a log with segments").sets;
        let sets = sets.as_mut().expect("they are booked");
        let mut cleared = 0;
        for _ in 0..BEGUN {
            let Some(segment) = wanted.pop() else { break };
            let SegmentBefore { number, image, .. } = segment;
            sets.add_made(number, image.id, image.bytes);
            cleared += LiveSet::memory_bytes(image.bytes);
            if cleared >= BEGUN_BYTES {
                break;
            }
        }
        wanted.is_empty()
    }

    /// Adds what frames have of the segments that are looked at.
    pub(super) fn sweep(&mut self, mut frame: u32) -> LogCheckpointPhase {
        let mut looked = 0;
        let count = self.log.frames.count() as u32;
        while frame < count && looked < SWEPT {
            if !self.log.pay(self.log.sizes.slots.into()) {
                return LogCheckpointPhase::Sweeping { frame };
            }
            self.log.add_live_of(frame);
            looked += self.log.sizes.slots;
            frame += 1;
        }
        self.log.stats.checkpoint_looks += u64::from(looked);
        match frame < count {
            true => LogCheckpointPhase::Sweeping { frame },
            false => LogCheckpointPhase::Visiting { from: 0 },
        }
    }

    /// Adds what a part of the index has of them on storage only.
    pub(super) fn visit_stored(&mut self, from: u32) -> LogCheckpointPhase {
        if self.log.index.stored() == 0 {
            return LogCheckpointPhase::Adding {
                from: DeadListPosition::default(),
                to: self.stored().end_since(),
            };
        }
        if !self.log.pay(INDEX_SEGMENT_SLOTS) {
            return LogCheckpointPhase::Visiting { from };
        }
        let stored = self.log.stored.as_mut().expect("a log with segments");
        let sets = stored.sets.as_mut().expect("sets are being made");
        let mut looked = 0;
        let next = self.log.index.visit(from, |address| {
            looked += 1;
            if let Location::Stored(at) = address.place() {
                sets.insert(at.segment, at.grain);
            }
        });
        self.log.stats.checkpoint_looks += looked;
        match next {
            Some(from) => LogCheckpointPhase::Visiting { from },
            None => LogCheckpointPhase::Adding {
                from: DeadListPosition::default(),
                to: stored.end_since(),
            },
        }
    }

    /// What has died and was not noted is added: first what is here, then what is on storage.
    pub(super) fn begin_recalling(&mut self) -> LogCheckpointPhase {
        let stored = self.log.stored.as_mut().expect("a log with segments");
        let deaths = stored.spill.in_memory();
        let sets = stored.sets.as_mut().expect("sets are being made");
        sets.insert_again(deaths);
        self.log.stats.checkpoint_looks += deaths.len() as u64;
        let next = stored.spill.has_written().then_some(NextPart::Last);
        LogCheckpointPhase::Recalling { next, reading: None }
    }

    /// Adds the next part of it, when it is read.
    pub(super) fn recall(
        &mut self,
        checkpoint: &mut LogCheckpoint,
        next: Option<NextPart>,
        reading: Option<DeathsRead>,
    ) -> Result<LogCheckpointPhase> {
        let stored = self.log.stored.as_mut().expect("a log with segments");
        if let Err(error) = stored.spill.check() {
            return Err(self.cannot_end(error).with("state", &self.context.name));
        }
        let Some(next) = next else { return Ok(self.complete_sets(checkpoint)) };
        let Some(reading) = reading else {
            let reading = stored.spill.start_reading(next);
            return Ok(LogCheckpointPhase::Recalling { next: Some(next), reading });
        };
        match stored.spill.take_read(&reading) {
            None => Ok(LogCheckpointPhase::Recalling { next: Some(next), reading: Some(reading) }),
            Some(Err(error)) => {
                checkpoint.step = LogCheckpointPhase::Recalling { next: Some(next), reading: None };
                Err(error)
            }
            Some(Ok(recalled)) => {
                self.log.stats.checkpoint_looks += recalled.deaths().len() as u64;
                let sets = stored.sets.as_mut().expect("sets are being made");
                sets.insert_again(recalled.deaths());
                let before = stored.spill.give_back(recalled);
                Ok(LogCheckpointPhase::Recalling { next: before.map(NextPart::At), reading: None })
            }
        }
    }

    /// The sets have all that was live at the barrier: what dies from now on is nobody's concern.
    pub(super) fn complete_sets(&mut self, checkpoint: &LogCheckpoint) -> LogCheckpointPhase {
        let stored = self.log.stored.as_mut().expect("a log with segments");
        let all = stored.sets.take().expect("sets are being made");
        let bytes = all.bytes;
        let sets = all.into_whole(|number| {
            stored.settle(number);
            Some(&checkpoint.segments[checkpoint.place_of(stored.info(number).id)].image)
        });
        LogCheckpointPhase::Complete { bytes, sets }
    }

    pub(super) fn write_sets(
        &mut self,
        bytes: u64,
        sets: SegmentSets,
        blobs: &BlobWriter,
    ) -> LogCheckpointPhase {
        let blobs = blobs.clone();
        let job = HelperJob::submit(&self.context.helper, PART, move || {
            let written = write_sets(&sets, &blobs);
            // Those that were written are dropped here: the owner would take long where they are many.
            let left = match written.is_ok() {
                true => {
                    drop(sets);
                    Vec::new()
                }
                false => sets,
            };
            (left, written)
        });
        LogCheckpointPhase::WritingSets { bytes, job }
    }
}

/// What a set for a segment takes.
fn bytes_of_set(segment: &SegmentBefore) -> u64 {
    LiveSets::bytes_of(segment.image.bytes)
}

/// One more than the greatest number of a segment.
fn numbers_of(checkpoint: &LogCheckpoint) -> u32 {
    checkpoint.segments.iter().map(|segment| segment.number + 1).max().unwrap_or(0)
}
