//! Two stacks of slices, for sliding windows of an aggregate that cannot be taken back.
//!
//! The slices of the last window that fired are in two stacks. The *front* has the newer ones, as
//! one sum per key, to which new slices are added. The *back* has the older ones: one sum per key of
//! what is in it, and per slice and key the sum as it was before that slice came, which is put back
//! when the slice leaves. The oldest slice of the back is on top, so that sums keep the order of
//! time. When the next window begins where the back is used up, the slices of the front that are in
//! it are *turned over*: they make a new back, the newest first. So what a slice has of a key is
//! merged once into the front, once into the back, and each result is one merge of the two.
//! Tangwongsan, Hirzel and Schneider (*Sliding-window aggregation algorithms*) have this for one key.
//!
//! What it keeps true: a key's sum in the back is the fold of its slices from `removed` on and
//! before `turned`, its sum in the front that of its slices from there on and before `added`. All of
//! it is derived from the slices: no checkpoint has it, it may be dropped between two windows to
//! make room, and the next window then begins anew. An event that comes into a slice of the stacks
//! has the sums of its key made anew.

use std::collections::VecDeque;
use std::ops::Range;

use alluvium_layouts::{Cursor, Panes};
use alluvium_pagestore::{Key, Result, State, Time};

use super::contents::Out;
use super::totals::Total;
use super::{Window, clipped};
use crate::api::aggregate::Aggregate;
use crate::cells::cell_handle::CellHandle;
use crate::cells::{PanesCell, put_anew};

/// Where the sums of the back are, among panes. What was there before a slice came is at a time
/// before this: as far before it as the slice is before the end of the back.
const BACK: Time = Time(0);
/// Where the sums of the front are.
const FRONT: Time = Time(1);
/// After all there is.
const END: Time = Time(2);

/// A sum: 1 and an accumulator, or 0 if there was none. So written that totals and stacks are in
/// panes of one type.
type OptionalSum<A> = Total<A>;

pub(crate) struct Stacks<K, A, P> {
    panes: CellHandle<PanesCell<K, OptionalSum<A>, P>>,
    removed: Time,
    turned: Time,
    added: Time,
    /// What is there does not belong to the slices any more, or is not whole.
    is_stale: bool,
    /// All that is there is being dropped.
    is_clearing: bool,
    /// The front is being turned over: slices before this are not in the back yet.
    turning: Option<Time>,
    /// The slice that comes or leaves, and how far that is.
    moving: Option<(Time, Cursor)>,
    /// What it has given that has not come or left yet.
    moved: VecDeque<(K, OptionalSum<A>)>,
    /// Sums that have to be put, or removed, before anything else is done.
    changes: VecDeque<(Time, K, Option<OptionalSum<A>>)>,
    telling: Cursor,
    /// So many windows are folded without stacks, since there was no room.
    resting: i128,
}

impl<K: Key, A: State, P: Panes<K, OptionalSum<A>>> Stacks<K, A, P> {
    pub(crate) fn new(panes: CellHandle<PanesCell<K, OptionalSum<A>, P>>) -> Self {
        Self {
            panes,
            removed: Time::MIN,
            turned: Time::MIN,
            added: Time::MIN,
            is_stale: true,
            is_clearing: false,
            turning: None,
            moving: None,
            moved: VecDeque::new(),
            changes: VecDeque::new(),
            telling: Cursor::default(),
            resting: 0,
        }
    }

    /// Tells the results of some keys of the window whose slices are given; says whether these were
    /// the last. Cost, spread over the windows: three merges and some ten look-ups per slice and
    /// key at most.
    pub(crate) fn fire<E, R>(
        &mut self,
        aggregate: &impl Aggregate<E, Acc = A, Out = R>,
        slices: &PanesCell<K, A, impl Panes<K, A>>,
        range: &Range<Time>,
        window: Window,
        fuel: &mut usize,
        out: Out<'_, K, R>,
    ) -> Result<bool> {
        self.panes.keep();
        if self.telling == Cursor::default() {
            self.look_after_drop();
            if self.is_stale {
                self.begin_anew(range.start);
            }
            if !self.reach(aggregate, slices, range, fuel)? {
                return Ok(false);
            }
        }
        if *fuel == 0 {
            return Ok(false);
        }
        let telling = &mut self.telling;
        self.panes.run(0, |panes| {
            panes.fold(BACK..END, telling, *fuel, &mut |key, (acc, _)| {
                aggregate.out(&acc).into_iter().for_each(|row| out(key, window, row, 1));
                Ok(())
            })
        })??;
        let done = telling.done;
        if done {
            self.telling = Cursor::default();
            self.panes.may_drop();
        }
        Ok(done)
    }

    /// Whether a window is told halfway, so that it has to be told by the stacks.
    pub(crate) fn has_told(&self) -> bool {
        self.telling != Cursor::default()
    }

    /// There is no room: so many windows are folded without.
    pub(crate) fn rest_for(&mut self, windows: i128) {
        self.resting = windows;
        self.is_stale = true;
    }

    /// Whether the next window is folded without.
    pub(crate) fn rests(&self) -> bool {
        self.resting > 0
    }

    /// A window was folded without.
    pub(crate) fn has_rested(&mut self) {
        self.resting -= 1;
    }

    /// Gives up what it holds; says whether that is done.
    pub(crate) fn clear(&mut self, fuel: &mut usize) -> Result<bool> {
        self.is_stale = true;
        spend(fuel, 1);
        self.panes.enter()?.purge(END, (*fuel).max(1))
    }

    /// Key groups have come or gone: the next window begins anew.
    pub(crate) fn begin_anew_next(&mut self) {
        self.is_stale = true;
    }

    /// A user's merge panicked: a sum may be half there.
    pub(crate) fn clear_poison(&mut self) {
        self.panes.clear_poison();
        self.is_stale = true;
    }

    /// Slices before `before` are in no window that is still to fire; says whether nothing is left of
    /// them.
    pub(crate) fn purge<E>(
        &mut self,
        aggregate: &impl Aggregate<E, Acc = A>,
        slices: &PanesCell<K, A, impl Panes<K, A>>,
        before: Time,
        fuel: &mut usize,
    ) -> Result<bool> {
        self.panes.keep();
        self.look_after_drop();
        let is_used = !self.is_stale && slices.enter()?.next_slice(before).is_some();
        let done = match is_used {
            // The front is left for the next window to turn over.
            true => self.reach(aggregate, slices, &(before.min(self.turned)..Time::MIN), fuel)?,
            false => self.clear(fuel)?,
        };
        self.panes.may_drop();
        Ok(done)
    }

    /// Something of `key` came into a slice.
    pub(crate) fn changed<E>(
        &mut self,
        aggregate: &impl Aggregate<E, Acc = A>,
        slices: &PanesCell<K, A, impl Panes<K, A>>,
        slice: Time,
        key: &K,
    ) {
        self.look_after_drop();
        if self.is_stale || slice < self.removed || self.added <= slice {
            return;
        }
        // The next window makes anew what could not be changed.
        self.is_stale = self.is_moving()
            || match slice < self.turned {
                true => self.refold_back(aggregate, slices, key),
                false => self.refold_front(aggregate, slices, key),
            }
            .is_err();
    }

    fn is_moving(&self) -> bool {
        self.is_clearing
            || self.turning.is_some()
            || self.moving.is_some()
            || !self.moved.is_empty()
            || !self.changes.is_empty()
    }

    fn look_after_drop(&mut self) {
        self.is_stale |= self.panes.was_dropped();
    }

    /// Drops everything; the slices from `start` on are to come.
    fn begin_anew(&mut self, start: Time) {
        (self.removed, self.turned, self.added) = (start, start, start);
        (self.is_stale, self.is_clearing, self.turning) = (false, true, None);
        self.forget_moves();
    }

    fn forget_moves(&mut self) {
        self.moving = None;
        self.moved.clear();
        self.changes.clear();
    }

    /// Lets the slices before the range leave and those of it come; says whether that is done.
    fn reach<E>(
        &mut self,
        aggregate: &impl Aggregate<E, Acc = A>,
        slices: &PanesCell<K, A, impl Panes<K, A>>,
        range: &Range<Time>,
        fuel: &mut usize,
    ) -> Result<bool> {
        self.put_changes()?;
        loop {
            if self.is_clearing {
                spend(fuel, 1);
                self.is_clearing = !self.panes.enter()?.purge(END, (*fuel).max(1))?;
                if self.is_clearing {
                    return Ok(false);
                }
            }
            if !self.turn_over(aggregate, slices, fuel)? {
                return Ok(false);
            }
            if range.start <= self.removed {
                break;
            }
            if range.start < self.turned || range.end == Time::MIN {
                if !self.leave(range.start, fuel)? {
                    return Ok(false);
                }
                break;
            }
            self.removed = range.start;
            self.added = self.added.max(range.start);
            self.turned = self.added;
            (self.is_clearing, self.turning) = (true, Some(self.added));
            self.forget_moves();
        }
        self.enter(aggregate, slices, range.end, fuel)
    }

    /// Adds slices before `end` to the front.
    fn enter<E>(
        &mut self,
        aggregate: &impl Aggregate<E, Acc = A>,
        slices: &PanesCell<K, A, impl Panes<K, A>>,
        end: Time,
        fuel: &mut usize,
    ) -> Result<bool> {
        while self.added < end {
            let slice = match self.moving {
                Some((slice, _)) => Some(slice),
                None => first_slice(slices, self.added..end)?,
            };
            let Some(slice) = slice else {
                self.added = end;
                break;
            };
            let done = self.step(
                slices,
                slice,
                fuel,
                |acc| (acc, 1),
                |this, key, sum| {
                    let is_new = std::cell::Cell::new(false);
                    let init = || {
                        is_new.set(true);
                        sum.clone()
                    };
                    let add = |front: &mut OptionalSum<A>| {
                        if !is_new.get() {
                            aggregate.merge(&mut front.0, &sum.0);
                        }
                    };
                    this.panes.run(1, |panes| panes.update(FRONT, key, init, add))?
                },
            )?;
            if !done {
                return Ok(false);
            }
            self.added = slice.plus(1);
        }
        Ok(true)
    }

    /// Goes on putting slices into the back, the newest first.
    fn turn_over<E>(
        &mut self,
        aggregate: &impl Aggregate<E, Acc = A>,
        slices: &PanesCell<K, A, impl Panes<K, A>>,
        fuel: &mut usize,
    ) -> Result<bool> {
        while let Some(before) = self.turning {
            let slice = match self.moving {
                Some((slice, _)) => Some(slice),
                None => last_slice(slices, self.removed..before)?,
            };
            let Some(slice) = slice else {
                self.turning = None;
                break;
            };
            let place = self.place(slice);
            let done = self.step(
                slices,
                slice,
                fuel,
                |acc| (acc, 1),
                |this, key, sum| {
                    let old = this.panes.enter()?.get(BACK, key)?;
                    this.push(aggregate, place, key, &sum.0, old);
                    Ok(())
                },
            )?;
            if !done {
                return Ok(false);
            }
            self.turning = Some(slice);
        }
        Ok(true)
    }

    /// What has to change when a slice comes on top of a key's sum in the back.
    fn push<E>(
        &mut self,
        aggregate: &impl Aggregate<E, Acc = A>,
        place: Time,
        key: &K,
        acc: &A,
        old: Option<OptionalSum<A>>,
    ) {
        let mut new = acc.clone();
        if let Some((old, _)) = &old {
            aggregate.merge(&mut new, old);
        }
        let old = old.unwrap_or_else(|| (aggregate.init(), 0));
        self.changes.push_back((place, key.clone(), Some(old)));
        self.changes.push_back((BACK, key.clone(), Some((new, 1))));
    }

    /// Takes slices before `before` off the back.
    fn leave(&mut self, before: Time, fuel: &mut usize) -> Result<bool> {
        let panes = self.panes.clone();
        while self.removed < before {
            let range = self.place(self.removed)..self.place(before);
            let place = match self.moving {
                Some((place, _)) => Some(place),
                None => first_slice(&panes, range)?,
            };
            let Some(place) = place else {
                self.removed = before;
                break;
            };
            let done = self.step(
                &panes,
                place,
                fuel,
                |sum| sum,
                |this, key, sum| {
                    let sum = (sum.1 != 0).then(|| sum.clone());
                    this.changes.push_back((BACK, key.clone(), sum));
                    Ok(())
                },
            )?;
            if !done {
                return Ok(false);
            }
            self.removed = Time(self.turned.0.saturating_add(place.0)).plus(1);
        }
        // What is left of it goes with the next.
        panes.enter()?.purge(self.place(before), (*fuel).max(1))?;
        Ok(true)
    }

    /// Moves some of what a slice has; says whether that was the last. An error leaves everything
    /// so that the next call goes on.
    fn step<B: State>(
        &mut self,
        source: &PanesCell<K, B, impl Panes<K, B>>,
        slice: Time,
        fuel: &mut usize,
        sum_of: impl Fn(B) -> OptionalSum<A>,
        mut apply: impl FnMut(&mut Self, &K, &OptionalSum<A>) -> Result<()>,
    ) -> Result<bool> {
        self.put_changes()?;
        loop {
            while let Some((key, sum)) = self.moved.pop_front() {
                // If a merge of the user's panics, all is made anew.
                self.is_stale = true;
                let applied = apply(self, &key, &sum);
                self.is_stale = false;
                if let Err(error) = applied {
                    self.moved.push_front((key, sum));
                    return Err(error);
                }
                self.put_changes()?;
            }
            let (_, mut cursor) = *self.moving.get_or_insert((slice, Cursor::default()));
            if cursor.done {
                self.moving = None;
                return Ok(true);
            }
            if *fuel == 0 {
                return Ok(false);
            }
            let moved = &mut self.moved;
            let drawn = source.run(0, |panes| {
                panes.fold(slice..slice.plus(1), &mut cursor, *fuel, &mut |key, item| {
                    if source.counts(key) {
                        moved.push_back((key.clone(), sum_of(item)));
                    }
                    Ok(())
                })
            });
            self.moving = Some((slice, cursor));
            spend(fuel, 1 + self.moved.len());
            drawn??;
        }
    }

    /// Puts sums in the place of what was there, which may be on storage: so it goes first.
    fn put_changes(&mut self) -> Result<()> {
        while let Some((place, key, sum)) = self.changes.front() {
            let mut panes = self.panes.enter()?;
            panes.remove(*place, key)?;
            if let Some(sum) = sum {
                put_anew(&mut *panes, (*place, key), &mut || sum.clone())?;
            }
            drop(panes);
            self.changes.pop_front();
        }
        Ok(())
    }

    fn refold_front<E>(
        &mut self,
        aggregate: &impl Aggregate<E, Acc = A>,
        slices: &PanesCell<K, A, impl Panes<K, A>>,
        key: &K,
    ) -> Result<()> {
        let mut sum: Option<OptionalSum<A>> = None;
        let mut from = self.turned;
        while let Some(slice) = first_slice(slices, from..self.added)? {
            let acc = slices.enter()?.get(slice, key)?;
            match (&mut sum, acc) {
                (_, None) => {}
                (None, Some(acc)) => sum = Some((acc, 1)),
                (Some(sum), Some(acc)) => aggregate.merge(&mut sum.0, &acc),
            }
            from = slice.plus(1);
        }
        self.changes.push_back((FRONT, key.clone(), sum));
        self.put_changes()
    }

    fn refold_back<E>(
        &mut self,
        aggregate: &impl Aggregate<E, Acc = A>,
        slices: &PanesCell<K, A, impl Panes<K, A>>,
        key: &K,
    ) -> Result<()> {
        let (mut before, mut sum) = (self.turned, None);
        while let Some(slice) = last_slice(slices, self.removed..before)? {
            let acc = slices.enter()?.get(slice, key)?;
            if let Some(acc) = acc {
                self.push(aggregate, self.place(slice), key, &acc, sum);
                sum = self.changes.back().and_then(|(.., sum)| sum.clone());
                self.put_changes()?;
            }
            before = slice;
        }
        Ok(())
    }

    /// Where the sums are kept that were there before a slice came into the back.
    fn place(&self, slice: Time) -> Time {
        clipped(i128::from(slice.0) - i128::from(self.turned.0))
    }
}

fn spend(fuel: &mut usize, units: usize) {
    *fuel = fuel.saturating_sub(units);
}

/// The first slice of a range that has something.
fn first_slice<K: Key, A: State>(
    slices: &PanesCell<K, A, impl Panes<K, A>>,
    range: Range<Time>,
) -> Result<Option<Time>> {
    let next = slices.enter()?.next_slice(range.start);
    Ok(next.filter(|slice| range.contains(slice)))
}

/// The last slice of a range that has something: halves the range, as panes are asked from the
/// front only.
fn last_slice<K: Key, A: State>(
    slices: &PanesCell<K, A, impl Panes<K, A>>,
    range: Range<Time>,
) -> Result<Option<Time>> {
    let Some(mut last) = first_slice(slices, range.clone())? else { return Ok(None) };
    let mut end = range.end;
    while last.plus(1) < end {
        // Between the two, and after the first.
        let half = (i128::from(last.0) + 1 + i128::from(end.0)).div_euclid(2);
        let half = clipped(half);
        match first_slice(slices, half..end)? {
            Some(found) => last = found,
            None => end = half,
        }
    }
    Ok(Some(last))
}
