//! Reading lists: all of some buckets, or one.
//!
//! A fold walks memory part by part and runs block by block, all in the order of places. Between
//! two calls it keeps its cursors, so that nothing is read twice; they go when anything else is
//! done in between.

use std::ops::{Range, RangeBounds};
use std::sync::Arc;

use alluvium_pagestore::{ErrorKind, Result, Time};

use super::block::{ListElements, ListType};
use super::bucket::AppendBucket;
use super::core::ListsCore;
use super::frozen::{FrozenElements, LIVE, sooner};
use super::gather::{GatherStop, GatheredElements};
use super::key_unsafe::{KeyRef, OwnedKey, has};
use super::notes::{OwnedRuns, resolve, views};
use super::packed::is_paged;
use super::run::{ListRun, StoredRun, window_bytes_min};
use super::run_cursor::{CursorMark, CursorSource, RunCursor};
use crate::contract::lists::span;
use crate::contract::table::Cursor;

/// Most bytes that a fold reads of a run at once.
const WINDOW_BYTES_MAX: u64 = 256 << 10;

/// Runs of other buckets that one key is likely to be read from.
const OTHERS_AT_ONCE: u64 = 3;

/// Lists that are fetched into the cache ahead of the one that is read, by one step every few lists.
const AHEAD: usize = 16;
/// Steps of a list that are fetched ahead: what leads to its first chunk, and the first chunks.
const STEPS: usize = 4;

/// How cursors on several runs take memory for what they read through.
#[derive(Clone, Copy, Debug)]
enum CursorWindows {
    /// Each has a window as long as it is there.
    OfEach,
    /// There is no room for that: each has one while it reads a block.
    InTurns,
}

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

    /// The cursors of a fold that continues at a position, and where it stopped within a list there. Cursors are opened
    /// anew unless the fold was paused just there. `None` if more has to be loaded first than one call loads.
    #[expect(clippy::type_complexity, reason = "the parts of a resume")]
    pub(super) fn cursors_at(
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
    fn open_runs(
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
        let mut walk = BucketFold { log: self, buckets: &folded, views: Vec::new() };
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

    /// Cursors on those of the runs that views show that have something at the place of a key: there is no room for all.
    /// Each is looked into before, one after the other. Making room may put others in their place, of the same names: only the
    /// very runs that were looked into are left out.
    fn open_few(
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
    fn runs_to_read(&self, seen: &[OwnedRuns]) -> Vec<(Time, u64)> {
        let mut names = Vec::new();
        for view in seen {
            let visible = self.runs_of(view.source).filter(|run| {
                run.memory.is_none() && (view.runs.0..=view.runs.1).contains(&run.number)
            });
            names.extend(visible.map(|run| (view.source, run.number)));
        }
        names
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

/// What cursors have at a place.
pub struct CursorElements {
    /// Those that stand there.
    pub cursors: Vec<(usize, CursorMark)>,
    /// The first one's key, if there is nothing in memory.
    pub key: Option<OwnedKey>,
    /// Whether some cursors are to [rest](RunCursor::rest) afterwards.
    pub is_noted: bool,
}

/// A fold over some buckets, place by place.
pub struct BucketFold<'a> {
    log: &'a ListsCore,
    buckets: &'a [&'a AppendBucket],
    views: Vec<OwnedRuns>,
}

impl<'a> BucketFold<'a> {
    /// Visits the keys at `place`, of which there is hardly ever more than one, and tells how many
    /// elements were looked at.
    fn visit_place(
        &mut self,
        place: u64,
        pieces: &[FrozenElements<'a>],
        cursors: &mut [RunCursor],
        visit: VisitElements<'_>,
    ) -> Result<u64> {
        if let ([FrozenElements { key, source: (_, LIVE), chain: Some(chain), .. }], true) =
            (pieces, cursors.is_empty())
        {
            // All there is of the key, most often.
            visit(*key, ListElements::Chain(chain.chunks()))?;
            return Ok(chain.len());
        }
        let CursorElements { cursors: at_place, key, is_noted } =
            self.arrive(place, pieces, cursors)?;
        if at_place.is_empty() && pieces.iter().all(|piece| piece.key == pieces[0].key) {
            return self.visit_key((pieces[0].key, place), pieces, cursors, &mut Vec::new(), visit);
        }
        let mut keys: Vec<OwnedKey> = key.into_iter().collect();
        for piece in pieces {
            if !has(&keys, piece.key) {
                keys.push(piece.key.to_owned());
            }
        }
        let (mut looked_at, mut turn) = (0, 0);
        while turn < keys.len() {
            if turn > 0 {
                for (number, mark) in &at_place {
                    cursors[*number].rewind(*mark)?;
                }
            }
            let key = keys[turn].clone();
            let here = (key.get(), place);
            looked_at += self.visit_key(here, pieces, cursors, &mut keys, &mut *visit)?;
            turn += 1;
        }
        if is_noted {
            rest(cursors);
        }
        Ok(looked_at)
    }

    /// The types of the lists.
    pub(super) fn list_type(&self) -> &'static ListType {
        self.log.list_type
    }

    /// Has cursors come to a place.
    pub(super) fn arrive(
        &mut self,
        place: u64,
        pieces: &[FrozenElements<'a>],
        cursors: &mut [RunCursor],
    ) -> Result<CursorElements> {
        // Runs of other buckets have something only for keys that a note tells of.
        let mut noted = Vec::new();
        for piece in pieces.iter().filter(|piece| piece.chain.is_none()) {
            for (owner, bucket) in self.buckets.iter().enumerate() {
                views(bucket, owner, piece.key.key_hash(), piece.key, &mut noted);
            }
        }
        let mut at_place: Vec<(usize, CursorMark)> = Vec::new();
        let mut key = None;
        for (number, cursor) in cursors.iter_mut().enumerate() {
            if !cursor.drives {
                if resolve(&noted, (cursor.bucket, cursor.number)).is_none() {
                    continue;
                }
                cursor.seek(place)?;
            }
            if cursor.peek()? == Some(place) {
                at_place.push((number, cursor.mark()));
                if key.is_none() && pieces.is_empty() {
                    key = Some(cursor.key().to_owned());
                }
            } else if !cursor.drives {
                cursor.rest();
            }
        }
        Ok(CursorElements { cursors: at_place, key, is_noted: !noted.is_empty() })
    }

    fn visit_key(
        &mut self,
        (key, place): (KeyRef<'_>, u64),
        pieces: &[FrozenElements<'a>],
        cursors: &mut [RunCursor],
        others: &mut Vec<OwnedKey>,
        visit: VisitElements<'_>,
    ) -> Result<u64> {
        self.gather((key, place), pieces, cursors, others, |mut list| {
            if !list.is_empty() {
                visit(key, ListElements::Other(&mut list))?;
            }
            Ok(list.finish()?.max(1))
        })
    }

    /// Gathers what a key has, from memory and from cursors that stand at its place, for `read`.
    pub(super) fn gather<R>(
        &mut self,
        (key, place): (KeyRef<'_>, u64),
        pieces: &[FrozenElements<'a>],
        cursors: &mut [RunCursor],
        others: &mut Vec<OwnedKey>,
        read: impl FnOnce(GatheredElements<'_, 'a>) -> Result<R>,
    ) -> Result<R> {
        let hash = key.key_hash();
        self.views.clear();
        for (owner, bucket) in self.buckets.iter().enumerate() {
            views(bucket, owner, hash, key, &mut self.views);
        }
        let mut own: Vec<FrozenElements<'a>> =
            pieces.iter().filter(|piece| piece.key == key).copied().collect();
        let own_times = |time: &Time| self.buckets.iter().any(|bucket| bucket.time == *time);
        if self.views.len() > self.buckets.len() {
            // Runs of other buckets, and of those that were purged.
            let mut imported = Vec::new();
            self.log.find_imported(&self.views, hash, key, &mut imported);
            let known: Vec<_> = own.iter().map(|piece| piece.source).collect();
            imported.retain(|piece| !own_times(&piece.source.0) || !known.contains(&piece.source));
            own.extend(imported);
        }
        let pieces = own.into_iter();
        read(GatheredElements::new((key, place), &self.views, cursors, pieces, others)?)
    }
}

/// Has the cursors give memory back that are needed seldom.
pub fn rest(cursors: &mut [RunCursor]) {
    cursors.iter_mut().filter(|cursor| !cursor.drives).for_each(RunCursor::rest);
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
