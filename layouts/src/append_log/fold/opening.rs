//! Which runs are read, and the cursors on them, within the memory there is.

use std::ops::{Range, RangeBounds};
use std::sync::Arc;

use alluvium_pagestore::{ErrorKind, Result, Time};

use super::PausedFold;
use crate::append_log::core::ListsCore;
use crate::append_log::gather::GatherStop;
use crate::append_log::key_unsafe::OwnedKey;
use crate::append_log::notes::OwnedRuns;
use crate::append_log::packed::is_paged;
use crate::append_log::run::{ListRun, StoredRun, window_bytes_min};
use crate::append_log::run_cursor::{CursorSource, RunCursor};
use crate::contract::lists::span;

/// Most bytes that a fold reads of a run at once.
const WINDOW_BYTES_MAX: u64 = 256 << 10;

/// Runs of other buckets that one key is likely to be read from.
const OTHERS_AT_ONCE: u64 = 3;

/// How cursors on several runs take memory for what they read through.
#[derive(Clone, Copy, Debug)]
pub(super) enum CursorWindows {
    /// Each has a window as long as it is there.
    OfEach,
    /// There is no room for that: each has one while it reads a block.
    InTurns,
}

impl ListsCore {
    /// The cursors of a fold that continues at a position, and where it stopped within a list there. Cursors are opened
    /// anew unless the fold was paused just there. `None` if more has to be loaded first than one call loads.
    #[expect(clippy::type_complexity, reason = "the parts of a resume")]
    pub(in crate::append_log) fn cursors_at(
        &mut self,
        buckets: &Range<Time>,
        position: (u64, u64),
    ) -> Result<Option<(Vec<RunCursor>, Option<(OwnedKey, GatherStop)>)>> {
        let merges = self.merges_of_levels();
        let is_known = |resume: &PausedFold| {
            let is_there = resume.buckets == *buckets
                && (resume.merges == merges || !resume.cursors.iter().any(RunCursor::is_paged));
            position != (0, 0) && is_there && resume.position == position
        };
        match self.resume.take().filter(is_known) {
            Some(resume) => Ok(Some((resume.cursors, resume.within))),
            None => {
                self.unload_others(buckets);
                let times = self.packed_within(buckets);
                if !self.load_some(buckets, &times)? {
                    return Ok(None);
                }
                Ok(Some((self.open_cursors(buckets, position.0)?, None)))
            }
        }
    }

    /// Opens cursors at `place` on the runs of these buckets that are not in memory, and on runs that their keys import.
    fn open_cursors(&mut self, buckets: &Range<Time>, place: u64) -> Result<Vec<RunCursor>> {
        // The runs of a purged bucket are there for the buckets that import them.
        let drives = |log: &Self, (time, number): &(Time, u64)| {
            let own = log.buckets.get(time).is_some_and(|bucket| bucket.first <= *number);
            own && span(buckets).contains(time)
        };
        let packed = |log: &Self| log.packed_within(buckets);
        let runs = |log: &Self| log.runs_to_fold(buckets);
        let mut cursors = match self.open_runs((packed, runs), drives, None, CursorWindows::OfEach)
        {
            Err(error) if error.kind() == ErrorKind::OverBudget => {
                self.open_runs((packed, runs), drives, None, CursorWindows::InTurns)?
            }
            cursors => cursors?,
        };
        for cursor in &mut cursors {
            cursor.drives = drives(self, &(cursor.bucket, cursor.number));
            if place > 0 && cursor.drives {
                cursor.seek(place)?;
            }
        }
        Ok(cursors)
    }

    fn runs_to_fold(&self, buckets: &Range<Time>) -> Vec<(Time, u64)> {
        let mut sources: Vec<Time> = Vec::new();
        for (time, bucket) in self.buckets.range(span(buckets)) {
            sources.push(*time);
            sources.extend(bucket.sources.keys().copied());
        }
        sources.sort_unstable();
        sources.dedup();
        let runs = sources.into_iter().flat_map(|time| self.runs_of(time).map(move |r| (time, r)));
        runs.filter(|(_, run)| run.memory.is_none()).map(|(time, run)| (time, run.number)).collect()
    }

    /// The packed slices among these buckets.
    fn packed_within(&self, buckets: &Range<Time>) -> Vec<Time> {
        let packed = self.packed.iter();
        packed.flat_map(|packed| packed.within(span(buckets))).collect()
    }

    /// Loads the `packed` slices, and opens cursors at the start of the runs that `named` gives, for all keys or for one
    /// with a hash. Making room may drop more runs from memory: both are asked again then.
    pub(super) fn open_runs(
        &mut self,
        (packed, named): (impl Fn(&Self) -> Vec<Time>, impl Fn(&Self) -> Vec<(Time, u64)>),
        driven: impl Fn(&Self, &(Time, u64)) -> bool,
        of_key: Option<u64>,
        windows: CursorWindows,
    ) -> Result<Vec<RunCursor>> {
        if self.source.is_none() {
            return Ok(Vec::new());
        }
        let of_place = of_key.map(|hash| self.range.place(hash));
        let stored = |run: &ListRun| run.stored.clone().expect("a run is somewhere");
        let (names, needed) = loop {
            // Making room may pack more of these slices, or drop other runs from memory.
            if self.load_packed(&packed(self), of_place)? {
                continue;
            }
            let names = named(self);
            self.wait_for_left(&names)?;
            let paged =
                self.packed.as_ref().map_or((0, 0), |p| (p.paged_bytes(), p.paging_bytes()));
            let in_turns = |run: &ListRun| {
                stored(run).reading_bytes_in_turns(self.list_type, self.sizes.block_bytes)
            };
            let least = |(time, number): &(Time, u64)| {
                let run = self.run(*time, *number).expect("a named run");
                match windows {
                    _ if is_paged(run) => paged.0,
                    CursorWindows::OfEach => self.least_to_read(&stored(run)),
                    CursorWindows::InTurns => in_turns(run).0,
                }
            };
            // Few runs of buckets that are not folded are read at a time.
            let (own, others): (Vec<_>, Vec<_>) = names.iter().partition(|name| driven(self, name));
            let own: u64 = own.into_iter().map(least).sum();
            let others = others.into_iter().map(least).max().unwrap_or(0);
            let once = |(time, number): &(Time, u64)| {
                let run = self.run(*time, *number).expect("a named run");
                match windows {
                    _ if is_paged(run) => paged.1,
                    CursorWindows::OfEach => stored(run).reading_bytes_once(),
                    CursorWindows::InTurns => in_turns(run).1,
                }
            };
            let once = names.iter().map(once).max().unwrap_or(0);
            let needed = own + OTHERS_AT_ONCE * others + once;
            if self.account.available() >= needed {
                break (names, needed);
            }
            self.make_room_to_read(needed, "reading runs")?;
        };
        let (Some(source), Some(reads), false) = (&self.source, &self.reads, names.is_empty())
        else {
            return Ok(Vec::new());
        };
        let source = CursorSource { store: reads.store().clone(), ..source.clone() };
        for (time, number) in &names {
            if let Some(cached) = self.run_mut(*time, *number).and_then(|run| run.cached.as_mut()) {
                cached.used = true;
            }
        }
        // A cursor takes what its run needs at least, and a share of what is free beside that.
        let spare = self.account.available().saturating_sub(needed);
        let share = spare / 2 / names.len() as u64;
        let are_paged =
            |(time, number): &&(Time, u64)| self.run(*time, *number).is_some_and(is_paged);
        let paged = names.iter().filter(are_paged).count();
        let open = |(time, number): &(Time, u64)| {
            let run = self.run(*time, *number).expect("a named run");
            let name = (*time, *number);
            let packed = self.packed.as_ref().filter(|_| is_paged(run));
            if let Some(slice) = packed.and_then(|packed| packed.paged(*time, paged, spare)) {
                return RunCursor::paged(source.clone(), self.account.clone(), name, slice);
            }
            let cached = run.cached.as_ref().map(|cached| cached.blocks.clone());
            let (account, stored) = (self.account.clone(), stored(run));
            // Of one key, the blocks of its list and no more; the cursor takes a window of one block at least.
            let window = (window_bytes_min(&stored) + share).min(WINDOW_BYTES_MAX);
            let wanted = of_key.map_or(window, |hash| stored.window_of(source.range, hash));
            let cursor =
                RunCursor::new(source.clone(), account, name, stored, cached, wanted.min(window));
            match windows {
                CursorWindows::OfEach => cursor,
                CursorWindows::InTurns => cursor.in_turns(),
            }
        };
        Ok(names.iter().map(open).collect())
    }

    /// Cursors on those of the runs that views show that have something at the place of a key: there is no room for all.
    /// Each is looked into before, one after the other. Making room may put others in their place, of the same names: only the
    /// very runs that were looked into are left out.
    pub(super) fn open_few(
        &mut self,
        packed: impl Fn(&Self) -> Vec<Time>,
        seen: &[OwnedRuns],
        (hash, place): (u64, u64),
    ) -> Result<Vec<RunCursor>> {
        let mut without: Vec<Arc<StoredRun>> = Vec::new();
        for (time, number) in self.runs_to_read(seen) {
            let stored = |log: &Self| {
                let run = log.run(time, number).filter(|run| run.memory.is_none());
                run.and_then(|run| run.stored.clone())
            };
            let named = |log: &Self| vec![(time, number); usize::from(stored(log).is_some())];
            let mut one = self.open_runs(
                (|_: &Self| Vec::new(), named),
                |_, _| true,
                Some(hash),
                CursorWindows::OfEach,
            )?;
            for cursor in &mut one {
                cursor.seek(place)?;
                if cursor.peek()? != Some(place) {
                    without.extend(stored(self));
                }
            }
            self.count_reads(&mut one);
        }
        let is_without = |log: &Self, (time, number): &(Time, u64)| {
            let stored = log.run(*time, *number).and_then(|run| run.stored.as_ref());
            stored.is_some_and(|stored| without.iter().any(|one| Arc::ptr_eq(one, stored)))
        };
        let runs = |log: &Self| {
            let all = log.runs_to_read(seen);
            all.into_iter().filter(|name| !is_without(log, name)).collect()
        };
        self.open_runs((packed, runs), |_, _| true, Some(hash), CursorWindows::InTurns)
    }

    /// Waits for reads that were left, unless all of the `named` runs were read ahead: so many windows and
    /// no more are the device's.
    fn wait_for_left(&self, names: &[(Time, u64)]) -> Result<()> {
        let Some(reads) = self.reads.as_ref().filter(|reads| reads.is_booked()) else {
            return Ok(());
        };
        let is_read = |(time, number): &(Time, u64)| {
            self.run(*time, *number).is_some_and(|run| run.cached.is_some())
        };
        if names.iter().all(is_read) {
            return Ok(());
        }
        let waited = reads.wait();
        self.book_left();
        waited.map_err(|error| error.with("state", &self.context.name))
    }

    /// The runs that are not in memory and that some view shows.
    pub(super) fn runs_to_read(&self, seen: &[OwnedRuns]) -> Vec<(Time, u64)> {
        let mut names = Vec::new();
        for view in seen {
            let visible = self.runs_of(view.source).filter(|run| {
                run.memory.is_none() && (view.runs.0..=view.runs.1).contains(&run.number)
            });
            names.extend(visible.map(|run| (view.source, run.number)));
        }
        names
    }
}
