//! Reading lists: all of some buckets, or one.
//!
//! A fold walks memory part by part and runs block by block, all in the order of places. Between
//! two calls it keeps its cursors, so that nothing is read twice; they go when anything else is
//! done in between.

mod opening;
mod visiting;

use std::ops::Range;

use alluvium_pagestore::{ErrorKind, Result, Time};

use self::opening::CursorWindows;
pub use self::visiting::{BucketFold, CursorElements, rest};
use super::block::ListElements;
use super::bucket::AppendBucket;
use super::core::ListsCore;
use super::frozen::{FrozenElements, sooner};
use super::gather::{GatherStop, GatheredElements};
use super::key_unsafe::{KeyRef, OwnedKey};
use super::notes::{OwnedRuns, resolve, views};
use super::run_cursor::RunCursor;
use crate::contract::lists::span;
use crate::contract::table::Cursor;

/// Lists that are fetched into the cache ahead of the one that is read, by one step every few lists.
const AHEAD: usize = 16;
/// Steps of a list that are fetched ahead: what leads to its first chunk, and the first chunks.
const STEPS: usize = 4;

/// A fold between two calls.
#[derive(Debug)]
pub struct PausedFold {
    pub(super) buckets: Range<Time>,
    /// The next place, and how many of its elements were visited.
    pub(super) position: (u64, u64),
    pub(super) cursors: Vec<RunCursor>,
    /// Where the fold stopped within a list at that place, if it did.
    pub(super) within: Option<(OwnedKey, GatherStop)>,
    /// Merges of levels that had ended by then. Cursors are of no use after another one.
    pub(super) merges: u64,
}

/// How far a fold goes, and what it has looked at in memory.
#[derive(Clone, Copy, Debug)]
pub struct FoldBounds {
    pub fuel: usize,
    /// The last place.
    pub last: u64,
    pub looked_at: u64,
}

/// Takes the elements of a key.
pub type VisitElements<'v> = &'v mut dyn FnMut(KeyRef<'_>, ListElements<'_, '_>) -> Result<()>;

impl ListsCore {
    pub(super) fn fold_buckets(
        &mut self,
        buckets: Range<Time>,
        cursor: &mut Cursor,
        fuel: usize,
        visit: VisitElements<'_>,
    ) -> Result<()> {
        self.poll()?;
        if cursor.done {
            return Ok(());
        }
        let position = (cursor.position, 0);
        let Some((mut cursors, _)) = self.cursors_at(&buckets, position)? else { return Ok(()) };
        let mut bounds = FoldBounds { fuel, last: u64::MAX, looked_at: 0 };
        let folded = self.fold_from(
            &buckets,
            cursor,
            &mut bounds,
            &mut cursors,
            |walk, place, pieces, cursors| {
                Ok((walk.visit_place(place, pieces, cursors, &mut *visit)?, true))
            },
        );
        self.count_reads(&mut cursors);
        if cursor.done
            && let Some(packed) = &mut self.packed
        {
            packed.has_folded(&buckets);
        }
        if folded.is_ok() && !cursor.done {
            let position = (cursor.position, 0);
            let merges = self.merges_of_levels();
            self.resume = Some(PausedFold { buckets, position, cursors, within: None, merges });
        }
        folded
    }

    /// Calls `each` for one place after the other, while there is fuel. `each` returns the fuel that it spent, and
    /// whether the place is done; the fold stops at one that is not.
    pub(super) fn fold_from(
        &self,
        buckets: &Range<Time>,
        cursor: &mut Cursor,
        bounds: &mut FoldBounds,
        cursors: &mut [RunCursor],
        mut each: impl for<'a> FnMut(
            &mut BucketFold<'a>,
            u64,
            &[FrozenElements<'a>],
            &mut [RunCursor],
        ) -> Result<(u64, bool)>,
    ) -> Result<()> {
        let folded: Vec<&AppendBucket> =
            self.buckets.range(span(buckets)).map(|(_, bucket)| &**bucket).collect();
        let (mut spent, fuel, last) = (0, bounds.fuel.max(1) as u64, bounds.last);
        let mut pieces = Vec::new();
        let mut walk = BucketFold::new(self, &folded);
        loop {
            // A part of memory, and what runs have there.
            let (start, mut end) = (cursor.position, None);
            pieces.clear();
            for bucket in &folded {
                bucket.collect(start, &mut end, &mut pieces);
            }
            bounds.looked_at += pieces.len() as u64;
            pieces.retain(|piece| piece.is_within(start, end));
            pieces.sort_unstable_by_key(|piece| piece.place);
            let mut rest = &pieces[..];
            fetch_first(rest);
            loop {
                let mut place = rest.first().map(|piece| piece.place);
                for cursor in cursors.iter_mut().filter(|cursor| cursor.drives) {
                    place = sooner(place, cursor.peek()?);
                }
                let is_here = |place: &u64| end.is_none_or(|end| *place < end) && *place <= last;
                let Some(place) = place.filter(is_here) else { break };
                let count = rest.iter().take_while(|piece| piece.place == place).count();
                let (here, after) = rest.split_at(count);
                fetch_ahead(after);
                rest = after;
                let (taken, is_done) = each(&mut walk, place, here, cursors)?;
                spent += taken;
                if !is_done {
                    cursor.position = place;
                    return Ok(());
                }
                let Some(next) = place.checked_add(1) else {
                    cursor.done = true;
                    return Ok(());
                };
                cursor.position = next;
                if spent >= fuel {
                    return Ok(());
                }
            }
            match end.filter(|end| *end <= last) {
                Some(end) => cursor.position = end,
                None => {
                    cursor.done = true;
                    return Ok(());
                }
            }
        }
    }

    /// Hands over the elements of one key, if there are some.
    pub(super) fn read_key(
        &mut self,
        bucket: Time,
        key: KeyRef<'_>,
        visit: &mut dyn FnMut(ListElements<'_, '_>) -> Result<()>,
    ) -> Result<()> {
        self.poll()?;
        let hash = key.key_hash();
        let packed = |log: &Self| if log.is_packed(bucket) { vec![bucket] } else { Vec::new() };
        let place = self.range.place(hash);
        self.load_packed(&packed(self), Some(place))?;
        let Some(found) = self.buckets.get_mut(&bucket) else { return Ok(()) };
        if !found.is_read_singly {
            found.is_read_singly = true;
            self.crowded.insert(bucket);
        }
        let mut seen = Vec::new();
        views(found, 0, hash, key, &mut seen);
        let runs = |log: &Self| log.runs_to_read(&seen);
        let mut cursors =
            match self.open_runs((packed, runs), |_, _| true, Some(hash), CursorWindows::OfEach) {
                Err(error) if error.kind() == ErrorKind::OverBudget => {
                    self.open_few(packed, &seen, (hash, place))?
                }
                cursors => cursors?,
            };
        let read = self.read_from(bucket, key, (hash, place), &seen, &mut cursors, visit);
        self.count_reads(&mut cursors);
        read
    }

    fn read_from(
        &self,
        bucket: Time,
        key: KeyRef<'_>,
        (hash, place): (u64, u64),
        seen: &[OwnedRuns],
        cursors: &mut [RunCursor],
        visit: &mut dyn FnMut(ListElements<'_, '_>) -> Result<()>,
    ) -> Result<()> {
        let mut pieces = Vec::new();
        // Making room may have frozen what was in memory.
        if let Some(found) = self.buckets.get(&bucket) {
            found.find(hash, key, &mut pieces);
        }
        self.find_imported(seen, hash, key, &mut pieces);
        for cursor in cursors.iter_mut() {
            cursor.seek(place)?;
        }
        let (pieces, mut others) = (pieces.into_iter(), Vec::new());
        let mut list = GatheredElements::new((key, place), seen, cursors, pieces, &mut others)?;
        if !list.is_empty() {
            visit(ListElements::Other(&mut list))?;
        }
        Ok(())
    }

    /// Adds the pieces of a key that are in memory in runs of buckets that it imports from.
    fn find_imported<'a>(
        &'a self,
        seen: &[OwnedRuns],
        hash: u64,
        key: KeyRef<'_>,
        out: &mut Vec<FrozenElements<'a>>,
    ) {
        let mut sources: Vec<Time> = seen.iter().map(|view| view.source).collect();
        sources.sort_unstable();
        sources.dedup();
        for time in sources {
            for run in self.runs_of(time) {
                if let Some(frozen) = &run.memory {
                    if resolve(seen, (time, run.number)).is_some() {
                        frozen.find(hash, key, out);
                    }
                }
            }
        }
    }
}

/// Hints that the first of these lists will be read soon.
fn fetch_first(pieces: &[FrozenElements<'_>]) {
    for step in 0..STEPS {
        let soon = pieces.iter().take(AHEAD - step * (AHEAD / STEPS));
        soon.filter_map(|piece| piece.chain).for_each(|chain| chain.prefetch_read(step));
    }
}

/// Hints which lists will be read soon, those behind the one that is read now. One step of a list
/// leads to the next, so that each is given time.
#[inline]
fn fetch_ahead(pieces: &[FrozenElements<'_>]) {
    for step in 0..STEPS {
        let distance = AHEAD - 1 - step * (AHEAD / STEPS);
        if let Some(chain) = pieces.get(distance).and_then(|piece| piece.chain) {
            chain.prefetch_read(step);
        }
    }
}
