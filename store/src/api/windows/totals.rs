//! Running totals of sliding windows whose aggregate can be taken back.
//!
//! A total per key has the slices of the last window that fired: the next window adds the slices that
//! are new in it and takes out those that are not in it any more, so that a slide costs two steps
//! per key, whatever the length. Totals are derived from the slices: no checkpoint has them, and
//! the first window after a restore adds all of its slices.
//!
//! What it keeps true: all slices from `removed` on and before `added` are in the totals, each key
//! with the number of slices it has an accumulator in, and no others are.

use std::cell::Cell;
use std::ops::Range;

use alluvium_layouts::{Cursor, PaneRun, Panes};
use alluvium_pagestore::{ErrorKind, Key, Result, State, Time};

use super::Window;
use super::contents::Out;
use crate::api::aggregate::Aggregate;
use crate::cells::cell_handle::CellHandle;
use crate::cells::{PanesCell, update_rarely};

/// The one slice in which totals are kept.
const SLICE: Time = Time(0);

/// About so many accumulators of a slice are added or taken out in one call: those for which there
/// is no room are copied, on memory that nobody booked.
const MOVED_AT_ONCE: usize = 128;

/// A total, and in how many slices it has something.
pub(crate) type Total<A> = (A, i64);

pub(crate) struct Totals<K, A, P> {
    pub(crate) panes: CellHandle<PanesCell<K, Total<A>, P>>,
    added: Time,
    removed: Time,
    /// Something of a slice is missing.
    is_stale: Cell<bool>,
    /// The slice that is being added or taken out, and how far that is.
    moving: Option<(Time, Cursor)>,
    /// What of it found no room, and is not added or taken out yet.
    moved: Vec<(K, A)>,
    telling: Cursor,
    empty: Vec<K>,
    /// The slices of a window: after so many, totals that found no room are tried again.
    slices: i128,
    /// So many windows are folded without totals, since there was no room.
    resting: i128,
}

impl<K: Key, A: State, P: Panes<K, Total<A>>> Totals<K, A, P> {
    pub(crate) fn new(panes: CellHandle<PanesCell<K, Total<A>, P>>, slices: i128) -> Self {
        Self {
            panes,
            added: Time::MIN,
            removed: Time::MIN,
            is_stale: Cell::new(false),
            moving: None,
            moved: Vec::new(),
            telling: Cursor::default(),
            empty: Vec::new(),
            slices,
            resting: 0,
        }
    }

    /// Tells the results of some keys of the window whose slices are given, of which it adds those
    /// that are new and takes out those before; says whether these were the last, or nothing if the
    /// window is to be folded without, since there is no room for totals.
    pub(crate) fn fire<E, R>(
        &mut self,
        aggregate: &impl Aggregate<E, Acc = A, Out = R>,
        slices: &PanesCell<K, A, impl Panes<K, A>>,
        range: &Range<Time>,
        window: Window,
        fuel: &mut usize,
        out: Out<'_, K, R>,
    ) -> Result<Option<bool>> {
        if self.resting == 0 {
            let moved = self.leave(aggregate, slices, range.start, fuel);
            let moved =
                moved.and_then(|done| Ok(done && self.enter(aggregate, slices, range.end, fuel)?));
            let told = moved
                .and_then(|done| Ok(done && self.tell(aggregate, window, (*fuel).max(1), out)?));
            match told {
                // What can be done without must not keep a window from firing.
                Err(error) if error.kind() == ErrorKind::OverBudget && !self.has_told() => {
                    self.rest();
                }
                told => return told.map(Some),
            }
        }
        Ok((!self.clear(fuel)?).then_some(false))
    }

    /// Whether something of a window that is told was visited.
    fn has_told(&self) -> bool {
        self.telling != Cursor::default()
    }

    /// There is no room: as many windows as share a slice are folded without.
    fn rest(&mut self) {
        self.resting = self.slices;
        self.is_stale.set(true);
    }

    /// A window was folded without.
    pub(crate) fn has_rested(&mut self) {
        self.resting -= 1;
    }

    /// Gives up what it holds; says whether that is done.
    fn clear(&mut self, fuel: &mut usize) -> Result<bool> {
        self.is_stale.set(true);
        *fuel = fuel.saturating_sub(1);
        self.panes.enter()?.purge(SLICE.plus(1), (*fuel).max(1))
    }

    /// Takes the slices before `before` out, which are about to be dropped, and drops totals that
    /// nothing is in; says whether that is done.
    pub(crate) fn purge<E>(
        &mut self,
        aggregate: &impl Aggregate<E, Acc = A>,
        slices: &PanesCell<K, A, impl Panes<K, A>>,
        before: Time,
        fuel: &mut usize,
    ) -> Result<bool> {
        if self.resting == 0 {
            match self.leave(aggregate, slices, before, fuel) {
                Ok(true) => return self.drop_if_empty(slices, (*fuel).max(1)),
                Err(error) if error.kind() == ErrorKind::OverBudget && !self.has_told() => {
                    self.rest();
                }
                done => return done,
            }
        }
        self.clear(fuel)
    }

    /// Begins anew: key groups have come or gone, or something is missing. The next window adds all of
    /// its slices. Not while a window is told.
    pub(crate) fn begin_anew(&mut self) -> Result<()> {
        // Out of sight at once; the memory comes back as windows fire.
        self.panes.enter()?.purge(SLICE.plus(1), 1)?;
        (self.added, self.removed) = (Time::MIN, Time::MIN);
        self.moving = None;
        self.moved.clear();
        self.empty.clear();
        self.is_stale.set(false);
        Ok(())
    }

    /// What came into a slice found no room here: the next window begins anew.
    pub(crate) fn give_up(&self) {
        self.is_stale.set(true);
    }

    /// Whether what comes into this slice has to come into the totals too.
    pub(crate) fn has(&self, slice: Time) -> bool {
        !self.is_stale.get() && self.removed <= slice && slice < self.added
    }

    /// Adds what came late into a slice; `is_new` if its key had nothing there.
    pub(crate) fn add<E>(
        &self,
        aggregate: &impl Aggregate<E, Acc = A>,
        key: &K,
        item: &A,
        is_new: bool,
    ) -> Result<()> {
        let change = &mut |total: &mut Total<A>| {
            aggregate.merge(&mut total.0, item);
            total.1 += i64::from(is_new);
        };
        let init = &mut || (aggregate.init(), 0);
        self.panes.run(1, |panes| update_rarely(panes, (SLICE, key), init, change))?
    }

    /// Takes the slices before `before` out; says whether that is done.
    fn leave<E>(
        &mut self,
        aggregate: &impl Aggregate<E, Acc = A>,
        slices: &PanesCell<K, A, impl Panes<K, A>>,
        before: Time,
        fuel: &mut usize,
    ) -> Result<bool> {
        // Not while a window is told: what is late for that waits.
        if self.is_stale.get() {
            self.begin_anew()?;
        }
        while self.removed < before {
            let end = before.min(self.added);
            let Some(slice) = self.next_slice(slices, self.removed..end)? else {
                self.removed = before;
                self.added = self.added.max(before);
                return Ok(true);
            };
            let take_out = |acc: &A, total: &mut Total<A>| {
                aggregate.subtract(&mut total.0, acc);
                total.1 -= 1;
            };
            if !self.step(aggregate, slices, slice, fuel, take_out)? {
                return Ok(false);
            }
            self.removed = slice.plus(1);
        }
        Ok(true)
    }

    /// Drops all totals if no slice is in them, as when no window has had anything for a while, and
    /// goes on with what was dropped before; says whether that is done. Not while slices move.
    fn drop_if_empty(
        &mut self,
        slices: &PanesCell<K, A, impl Panes<K, A>>,
        fuel: usize,
    ) -> Result<bool> {
        let has_some = self.next_slice(slices, self.removed..self.added)?.is_some();
        let before = if has_some { SLICE } else { SLICE.plus(1) };
        self.panes.enter()?.purge(before, fuel)
    }

    /// Adds the slices before `before`; says whether that is done.
    fn enter<E>(
        &mut self,
        aggregate: &impl Aggregate<E, Acc = A>,
        slices: &PanesCell<K, A, impl Panes<K, A>>,
        before: Time,
        fuel: &mut usize,
    ) -> Result<bool> {
        while self.added < before {
            let Some(slice) = self.next_slice(slices, self.added..before)? else {
                self.added = before;
                return Ok(true);
            };
            let add = |acc: &A, total: &mut Total<A>| {
                aggregate.merge(&mut total.0, acc);
                total.1 += 1;
            };
            if !self.step(aggregate, slices, slice, fuel, add)? {
                return Ok(false);
            }
            self.added = slice.plus(1);
        }
        Ok(true)
    }

    /// The slice that is being moved, or the first of a range that has something.
    fn next_slice(
        &self,
        slices: &PanesCell<K, A, impl Panes<K, A>>,
        range: Range<Time>,
    ) -> Result<Option<Time>> {
        if let Some((slice, _)) = self.moving {
            return Ok(Some(slice));
        }
        let next = slices.enter()?.next_slice(range.start);
        Ok(next.filter(|slice| range.contains(slice)))
    }

    /// Moves some accumulators of a slice, as far as there is fuel; says whether that were the last.
    fn step<E>(
        &mut self,
        aggregate: &impl Aggregate<E, Acc = A>,
        slices: &PanesCell<K, A, impl Panes<K, A>>,
        slice: Time,
        fuel: &mut usize,
        change: impl Fn(&A, &mut Total<A>),
    ) -> Result<bool> {
        let (_, mut cursor) = *self.moving.get_or_insert((slice, Cursor::default()));
        // Until it has ended well: what a panic left halfway is made anew.
        self.is_stale.set(true);
        let done = self.try_step(aggregate, slices, (slice, &mut cursor), fuel, change);
        self.is_stale.set(false);
        self.moving = (!matches!(done, Ok(true))).then_some((slice, cursor));
        done
    }

    /// Changes the totals of the keys that have moved, in one batch. Compiled once for all aggregates of one type.
    fn apply_moved(
        &mut self,
        init: &dyn Fn() -> Total<A>,
        change: &dyn Fn(&A, &mut Total<A>),
    ) -> Result<()> {
        let Self { panes, moved, .. } = self;
        if moved.is_empty() {
            return Ok(());
        }
        let done = panes.run(moved.len(), |totals| {
            let change = |(_, acc): &(K, A), total: &mut _| change(acc, total);
            totals.update_batch(moved, |(key, _)| (SLICE, key), |_| init(), change)
        })?;
        done.map_err(|error| error.leave_rest(moved))?;
        moved.clear();
        Ok(())
    }

    fn try_step<E>(
        &mut self,
        aggregate: &impl Aggregate<E, Acc = A>,
        slices: &PanesCell<K, A, impl Panes<K, A>>,
        (slice, cursor): (Time, &mut Cursor),
        fuel: &mut usize,
        change: impl Fn(&A, &mut Total<A>),
    ) -> Result<bool> {
        let init = || (aggregate.init(), 0);
        loop {
            // What an error has left.
            self.apply_moved(&init, &change)?;
            let Self { panes, moved, .. } = self;
            if cursor.done || *fuel == 0 {
                return Ok(cursor.done);
            }
            let (mut count, mut failed) = (0, None);
            // What a key group that has gone left does not count.
            let all_count = slices.groups().is_none();
            let visited = panes.run(0, |totals| {
                let mut add = |mut run: PaneRun<'_, K, A>| {
                    count += run.len();
                    if all_count && failed.is_none() {
                        let change = |total: &mut _, acc: &_| change(acc, total);
                        let Err((error, key, acc)) =
                            totals.update_run(SLICE, &mut run, init, change)
                        else {
                            return;
                        };
                        failed = Some(error);
                        moved.push((key.clone(), acc.clone()));
                    }
                    // They do not come again.
                    let rest = run.filter(|(key, _)| slices.counts(*key));
                    moved.extend(rest.map(|(key, acc)| (key.clone(), acc.clone())));
                };
                slices.run(0, |panes| {
                    let slice = slice..slice.plus(1);
                    panes.visit(slice, cursor, (*fuel).min(MOVED_AT_ONCE), &mut add)
                })
            });
            panes.count(count);
            *fuel = fuel.saturating_sub(1 + count);
            visited???;
            // What is left over comes next: by then the slices can give up memory.
            failed.filter(|error| error.kind() != ErrorKind::OverBudget).map_or(Ok(()), Err)?;
        }
    }

    /// Tells the totals of some keys; says whether these were the last.
    fn tell<E, R>(
        &mut self,
        aggregate: &impl Aggregate<E, Acc = A, Out = R>,
        window: Window,
        fuel: usize,
        out: Out<'_, K, R>,
    ) -> Result<bool> {
        let empty = &mut self.empty;
        let telling = &mut self.telling;
        if !telling.done {
            self.panes.run(0, |panes| {
                panes.visit(SLICE..SLICE.plus(1), telling, fuel, |run| {
                    run.for_each(|(key, (acc, slices))| {
                        if *slices == 0 {
                            empty.push(key.clone());
                        } else if let Some(row) = aggregate.out(acc) {
                            out(key, window, row, 1);
                        }
                    });
                })
            })??;
            if !telling.done {
                return Ok(false);
            }
        }
        while let Some(key) = empty.last() {
            match self.panes.enter()?.remove(SLICE, key) {
                // All is told; the next window begins anew.
                Err(error) if error.kind() == ErrorKind::OverBudget => {
                    self.is_stale.set(true);
                    empty.clear();
                }
                removed => {
                    removed?;
                    empty.pop();
                }
            }
        }
        *telling = Cursor::default();
        Ok(true)
    }
}
