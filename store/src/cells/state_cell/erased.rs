//! What the store does with a cell between calls, whatever the types of its contents are: compiled once.

use std::cell::RefMut;

use alluvium_layouts::{CheckpointOutcome, Cursor, TableStats};
use alluvium_pagestore::{
    BlobWriter, Encoded, Error, ErrorKind, KeyGroup, ReclaimScope, Result, StateImage, Time,
};

use super::{CellContents, ContentsKind, Outgoing, PanicMark, StateCell};
use crate::api::expiring::Sweeping;
use crate::cells::pacing::Stream;
use crate::durability::export::{CanonicalEntry, Parts, VisitCanonical};
use crate::durability::moving::{EntryArrival, GroupCursor, Groups};

/// Slices of which a range of hashes of a few thousand accumulators has more than a hundred each.
const SLICES_IN_PARTS: usize = 32;
/// Accumulators of a slice that are visited together.
const VISITED_TOGETHER: usize = 4096;

/// A cell of any contents.
pub(crate) type AnyCell = StateCell<dyn CellContents>;

impl AnyCell {
    /// Has the entries of a state that is being opened expire.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](alluvium_pagestore::ErrorKind::Unsupported) if they cannot.
    pub(crate) fn expire_by(&self, sweeping: Sweeping, now: Time) -> Result<()> {
        let life_nanos = sweeping.life_nanos();
        assert!(self.core.sweeping.set(sweeping).is_ok(), "entries expire already");
        self.enter()?.stamp(now, life_nanos)
    }

    pub(crate) fn enter(&self) -> Result<RefMut<'_, dyn CellContents>> {
        self.contents.try_borrow_mut().map_err(|_| self.core.in_use())
    }

    /// Calls with the contents. If that may run a user's merge, a panic in it poisons the state.
    fn call<R>(&self, call: impl FnOnce(&mut dyn CellContents) -> Result<R>) -> Result<R> {
        let mut contents = self.enter()?;
        let mark = (self.core.kind == ContentsKind::Panes).then(|| PanicMark(&self.core.poisoned));
        let result = call(&mut *contents);
        std::mem::forget(mark);
        result
    }
}

/// Checkpoints.
impl AnyCell {
    /// The contents, if a checkpoint has them.
    fn of_checkpoints(&self) -> Result<Option<RefMut<'_, dyn CellContents>>> {
        if self.core.is_derived { Ok(None) } else { self.enter().map(Some) }
    }

    pub(super) fn checkpoint(&self, blobs: &mut BlobWriter) -> Result<StateImage> {
        match self.of_checkpoints()? {
            None => Ok(StateImage::default()),
            Some(mut contents) => contents.upkeep_mut().checkpoint(blobs),
        }
    }

    pub(super) fn begin_checkpoint(&self, blobs: &mut BlobWriter) -> Result<Option<StateImage>> {
        let Some(mut contents) = self.of_checkpoints()? else {
            return Ok(Some(StateImage::default()));
        };
        if let Some(outcome) = self.core.outcome.take() {
            contents.upkeep_mut().checkpointed(outcome);
        }
        self.core.pacing.begin(self.all_calls());
        contents.upkeep_mut().begin_checkpoint(blobs)
    }

    pub(super) fn pace_checkpoint(&self, stream: Stream) -> Result<()> {
        let mut contents = self.enter()?;
        let pace = self.core.pacing.pace(self.all_calls(), stream);
        contents.upkeep_mut().pace_checkpoint(pace);
        Ok(())
    }

    pub(super) fn continue_checkpoint(&self, blobs: &mut BlobWriter) -> Result<Option<StateImage>> {
        match self.of_checkpoints()? {
            None => Ok(Some(StateImage::default())),
            Some(mut contents) => contents.upkeep_mut().continue_checkpoint(blobs),
        }
    }

    pub(super) fn checkpointed(&self, outcome: CheckpointOutcome) {
        let core = &self.core;
        if core.is_derived {
            return;
        }
        core.look_again();
        match self.enter() {
            Ok(mut contents) => {
                let upkeep = contents.upkeep_mut();
                if let Some(before) = core.outcome.take() {
                    upkeep.checkpointed(before);
                }
                upkeep.checkpointed(outcome);
            }
            // One that could not be told yet is of the checkpoint that the contents have taken; this one is of
            // another, which they have not begun.
            Err(_) if core.outcome.get().is_some() => {}
            Err(_) => core.outcome.set(Some(outcome)),
        }
    }
}

/// Work in the background, memory and statistics.
impl AnyCell {
    pub(super) fn tick(&self, work: usize) -> Result<usize> {
        let mut contents = self.enter()?;
        let mut done = contents.upkeep_mut().tick(work)?;
        done += self.core.sweep(&mut *contents, work - done.min(work), true);
        Ok(done + self.core.compact(contents.upkeep_mut(), work - done.min(work)))
    }

    pub(super) fn finish_merging(&self) -> Result<()> {
        if self.core.is_merging() {
            self.core.end_merging(self.enter()?.upkeep_mut());
        }
        Ok(())
    }

    /// Has it give up memory; if that is not enough, and all is asked for, all of it that may be dropped.
    pub(super) fn reclaim(&self, asked: ReclaimScope, bytes: u64) -> Result<u64> {
        // A state that is in use is often the one that lacks memory: no error is made of that.
        let Ok(mut contents) = self.contents.try_borrow_mut() else { return Ok(0) };
        let given = self.give_up(&mut *contents, asked, bytes);
        given.map_err(|error| error.with("state", &self.core.name))
    }

    fn give_up(
        &self,
        contents: &mut dyn CellContents,
        asked: ReclaimScope,
        bytes: u64,
    ) -> Result<u64> {
        let mut given = contents.upkeep_mut().reclaim(bytes)?;
        if given < bytes && asked == ReclaimScope::All && self.core.droppable.take() {
            self.core.dropped.set(true);
            // Out of sight at once; the memory comes with what is asked for next.
            contents.purge()?;
            given += contents.upkeep_mut().reclaim(bytes - given)?;
        }
        Ok(given)
    }

    pub(super) fn fixed_bytes(&self) -> (u64, u64) {
        let contents = self.contents.try_borrow();
        contents.map_or((0, u64::MAX), |contents| contents.upkeep().fixed_bytes())
    }

    pub(super) fn kept_bytes(&self) -> u64 {
        let contents = self.contents.try_borrow();
        contents.map_or(0, |contents| contents.upkeep().kept_bytes())
    }

    pub(super) fn stats(&self) -> Result<TableStats> {
        let mut stats = self.enter()?.upkeep().stats();
        self.core.describe(&mut stats);
        stats.calls = self.all_calls();
        Ok(stats)
    }

    pub(super) fn compaction_error(&self) -> Option<String> {
        self.core.failed.borrow().as_ref().map(ToString::to_string)
    }
}

/// Entries that leave.
impl AnyCell {
    pub(super) fn export(&self, visit: VisitCanonical<'_>) -> Result<()> {
        let (mut encoded, over) = (Encoded::default(), self.core.over());
        let mut to = Outgoing::new(&mut encoded, over, visit);
        self.call(|contents| contents.export(&mut to))
    }

    /// Of a map, how many are over, and left out, is not known before. Slices in memory have their keys in the
    /// order of hashes, so that all of a range of hashes come together; of many slices a range has too little of
    /// each.
    pub(super) fn has_parts(&self) -> Result<bool> {
        if self.core.expires()
            || matches!(self.core.kind, ContentsKind::Lists | ContentsKind::Timers)
        {
            return Ok(false);
        }
        let mut contents = self.enter()?;
        let slices = parts_of(&*contents).take(SLICES_IN_PARTS + 1);
        let (count, last) = slices.fold((0, Time::MIN), |(count, _), slice| (count + 1, slice));
        let are_few = count <= SLICES_IN_PARTS && last < Time::MAX;
        Ok(are_few && contents.is_fast_in_order())
    }

    pub(super) fn export_in_parts(&self, parts: &mut dyn Parts) -> Result<()> {
        self.call(|contents| match self.core.kind {
            ContentsKind::Map => export_by_cursor(contents, parts),
            ContentsKind::Lists | ContentsKind::Panes | ContentsKind::Timers => {
                export_by_ranges(contents, parts)
            }
        })
    }

    /// Gives entries of a key group: each accumulator once, merged; elements of lists in runs.
    pub(super) fn extract(
        &self,
        group: KeyGroup,
        at: &mut GroupCursor,
        fuel: usize,
        visit: VisitCanonical<'_>,
    ) -> Result<()> {
        let hashes = Groups::hashes_of(self.core.groups(), group);
        let (mut encoded, over) = (Encoded::default(), self.core.over());
        let mut to = Outgoing::new(&mut encoded, over, visit);
        at.is_exact |= self.core.kind == ContentsKind::Lists;
        self.call(|contents| {
            if let Some(contents) = contents.in_groups() {
                at.cursor.done =
                    contents.visit_group(group, &mut at.after, fuel.max(1), &mut to)?;
                return Ok(());
            }
            self.each_of_group(at, fuel, contents, &mut |contents, part, cursor, fuel| {
                contents.visit_hashes(part, &hashes, cursor, fuel, &mut to)
            })
        })
    }

    pub(super) fn forget(&self, group: KeyGroup, at: &mut GroupCursor, fuel: usize) -> Result<()> {
        let hashes = Groups::hashes_of(self.core.groups(), group);
        let mut contents = self.enter()?;
        if let Some(contents) = contents.in_groups() {
            at.cursor.done = contents.remove_group(group, fuel.max(1))?;
            return Ok(());
        }
        self.each_of_group(at, fuel, &mut *contents, &mut |contents, part, cursor, fuel| {
            contents.remove_hashes(part, &hashes, cursor, fuel)
        })
    }

    /// Does a step of what a key group has here.
    fn each_of_group(
        &self,
        at: &mut GroupCursor,
        fuel: usize,
        contents: &mut dyn CellContents,
        step: PartStep<'_>,
    ) -> Result<()> {
        match self.core.kind {
            ContentsKind::Map => step(contents, Time::MIN, &mut at.cursor, fuel).map(drop),
            ContentsKind::Lists | ContentsKind::Panes | ContentsKind::Timers => {
                part_by_part(at, fuel, contents, step)
            }
        }
    }

    pub(super) fn wake(&self, group: KeyGroup, awake: bool) {
        // What has no timers is awake always, and may be in use.
        if self.core.kind == ContentsKind::Timers
            && let Some(contents) = self.contents.borrow_mut().in_groups()
        {
            contents.wake(group, awake);
        }
    }
}

/// Entries that come.
impl AnyCell {
    pub(super) fn expect(&self, entries: u64) -> Result<()> {
        let mut contents = self.enter()?;
        let there = contents.len();
        contents.expect(there.saturating_add(entries));
        Ok(())
    }

    pub(super) fn import(&self, entry: CanonicalEntry<'_>) -> Result<()> {
        self.call(|contents| contents.import(&self.core, entry))
    }

    pub(super) fn install(
        &self,
        entry: CanonicalEntry<'_>,
        arriving: &mut EntryArrival,
    ) -> Result<()> {
        self.enter()?.install(&self.core, entry, arriving)
    }
}

/// Does a step of a part; says how much of the fuel it took.
type PartStep<'s> =
    &'s mut dyn FnMut(&mut dyn CellContents, Time, &mut Cursor, usize) -> Result<usize>;

/// Steps through one slice or bucket after the other, from a place on.
fn part_by_part(
    at: &mut GroupCursor,
    fuel: usize,
    contents: &mut dyn CellContents,
    step: PartStep<'_>,
) -> Result<()> {
    let mut left = fuel.max(1);
    while left > 0 && !at.cursor.done {
        let Some(time) = at.within.or_else(|| contents.next_part(Time::MIN)) else {
            at.cursor.done = true;
            return Ok(());
        };
        let mut cursor = at.cursor;
        let taken = step(contents, time, &mut cursor, left);
        (at.within, at.cursor) = (Some(time), cursor);
        left = left.saturating_sub(taken?.max(1));
        if cursor.done {
            at.within = part_after(contents, time);
            at.cursor = Cursor { done: at.within.is_none(), ..Cursor::default() };
        }
    }
    Ok(())
}

/// The slice or bucket after one.
fn part_after(contents: &dyn CellContents, time: Time) -> Option<Time> {
    time.0.checked_add(1).and_then(|after| contents.next_part(Time(after)))
}

/// All slices or buckets, in order.
fn parts_of(contents: &dyn CellContents) -> impl Iterator<Item = Time> {
    let first = contents.next_part(Time::MIN);
    std::iter::successors(first, |time| part_after(contents, *time))
}

/// Gives the entries of a map in the order of hashes, as many in a part as it asks for.
fn export_by_cursor(contents: &mut dyn CellContents, parts: &mut dyn Parts) -> Result<()> {
    let (mut cursor, mut encoded) = (Cursor::default(), Encoded::default());
    parts.begin(contents.len())?;
    while !cursor.done {
        let (fuel, all) = (parts.fuel(), 0..=u64::MAX);
        let mut give = |entry: CanonicalEntry<'_>| parts.entry(entry);
        let mut to = Outgoing::new(&mut encoded, Time::MIN, &mut give);
        contents.visit_hashes(Time::MIN, &all, &mut cursor, fuel, &mut to)?;
        parts.end()?;
    }
    Ok(())
}

/// Gives the accumulators of all slices, range by range of the hashes.
fn export_by_ranges(contents: &mut dyn CellContents, parts: &mut dyn Parts) -> Result<()> {
    let (entries, mut given) = (contents.len(), 0);
    let mut encoded = Encoded::default();
    parts.begin(entries)?;
    let mut next = Some(0u64);
    while let Some(first) = next {
        let ranges = (entries / parts.fuel().max(1) as u64).max(1);
        let last = first.saturating_add(u64::MAX / ranges);
        let mut give = |entry: CanonicalEntry<'_>| parts.entry(entry);
        let mut to = Outgoing::new(&mut encoded, Time::MIN, &mut give);
        given += give_range(contents, first, last, &mut to)?;
        parts.end()?;
        next = last.checked_add(1);
    }
    if given == entries {
        return Ok(());
    }
    let message = format!("{given} accumulators are in the slices, {entries} expected");
    Err(Error::new(ErrorKind::Corrupt, message))
}

/// Gives what all slices have of a range of hashes; says how much that is.
fn give_range(
    contents: &mut dyn CellContents,
    first: u64,
    last: u64,
    to: &mut Outgoing<'_>,
) -> Result<u64> {
    let mut given = 0;
    let mut slice = contents.next_part(Time::MIN);
    while let Some(at) = slice {
        let (mut cursor, range) = (Cursor::default(), first..=last);
        while !cursor.done {
            given += contents.visit_hashes(at, &range, &mut cursor, VISITED_TOGETHER, to)? as u64;
        }
        slice = part_after(contents, at);
    }
    Ok(given)
}
