//! Slices of aligned windows that have accumulators: events are folded in as they come.

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::ops::Range;
use std::rc::Rc;

use alluvium_layouts::{BatchError, Cursor, Panes};
use alluvium_pagestore::{ErrorKind, HeapSize, Key, Rejected, Result, State, Time};

use super::contents::{Out, PreviousResult, SliceCache, SliceContents};
use super::stacks::Stacks;
use super::totals::{Total, Totals};
use super::{Grid, Window};
use crate::api::aggregate::Aggregate;
use crate::cells::cell_handle::CellHandle;
use crate::cells::recording::{Access, Recorder};
use crate::cells::{PanesCell, put_anew, update_rarely};

/// An accumulator per slice and key.
pub(crate) struct FoldedSlices<K, E, A: Aggregate<E>, P, S> {
    pub(crate) aggregate: Rc<A>,
    pub(crate) panes: CellHandle<PanesCell<K, A::Acc, P>>,
    /// What was told of windows, by their ends, if it may be told before they end.
    pub(crate) told: Option<CellHandle<PanesCell<K, A::Acc, P>>>,
    /// What spares folding all slices of each window.
    pub(crate) running: RunningFold<K, A::Acc, S>,
    /// How often key groups had come or gone when that was begun.
    pub(crate) changes: u64,
    /// Where the fold of a window that is told stands, and what it gave that is not told yet.
    pub(crate) fold: Cursor,
    pub(crate) telling: VecDeque<(K, A::Acc, PreviousResult<A::Acc>)>,
    pub(crate) element: PhantomData<E>,
}

/// What is kept of the last window that fired for the next one, which shares slices with it.
pub(crate) enum RunningFold<K, A, S> {
    /// Nothing.
    Nothing,
    /// Of windows whose parts can be taken back.
    Totals(Totals<K, A, S>),
    /// Of others, of so many slices.
    Stacks(Stacks<K, A, S>, i128),
}

impl<K: Key, A: State, S: Panes<K, Total<A>>> RunningFold<K, A, S> {
    /// A window was folded without what is kept of the one before.
    fn has_rested(&mut self) {
        match self {
            RunningFold::Nothing => {}
            RunningFold::Totals(totals) => totals.has_rested(),
            RunningFold::Stacks(stacks, _) => stacks.has_rested(),
        }
    }
}

impl<K, E, A, P, S> FoldedSlices<K, E, A, P, S>
where
    K: Key,
    E: 'static,
    A: Aggregate<E>,
    P: Panes<K, A::Acc>,
    S: Panes<K, Total<A::Acc>>,
{
    /// Begins what is kept of the last window anew if key groups have come or gone. Not while a window is
    /// told, which none does meanwhile.
    fn regroup(&mut self) -> Result<()> {
        let changes = self.panes.changes();
        if self.changes != changes {
            match &mut self.running {
                RunningFold::Nothing => {}
                RunningFold::Totals(totals) => totals.begin_anew()?,
                RunningFold::Stacks(stacks, _) => stacks.begin_anew_next(),
            }
            self.changes = changes;
        }
        Ok(())
    }

    /// Tells results from what is kept of the last window; says whether these were the last, or
    /// nothing if the window is to be folded without. Takes fuel.
    fn fire_running(
        &mut self,
        slices: &Range<Time>,
        window: Window,
        fuel: &mut usize,
        out: Out<'_, K, A::Out>,
    ) -> Result<Option<bool>> {
        let (aggregate, panes) = (&*self.aggregate, &*self.panes);
        match &mut self.running {
            RunningFold::Nothing => Ok(None),
            RunningFold::Totals(totals) => totals.fire(aggregate, panes, slices, window, fuel, out),
            RunningFold::Stacks(stacks, windows) => {
                if !stacks.rests() {
                    match stacks.fire(aggregate, panes, slices, window, fuel, out) {
                        // What can be done without must not keep a window from firing.
                        Err(error)
                            if error.kind() == ErrorKind::OverBudget && !stacks.has_told() =>
                        {
                            stacks.rest_for(*windows);
                        }
                        done => return done.map(Some),
                    }
                }
                Ok((!stacks.clear(fuel)?).then_some(false))
            }
        }
    }

    /// Adds events one by one, which a trace gets.
    #[cold]
    fn add_recorded(
        &self,
        recorder: &Recorder,
        slices: &SliceCache<'_>,
        batch: &mut Vec<(K, Time, E)>,
    ) -> Result<()> {
        let aggregate = &*self.aggregate;
        let done = self.panes.run(batch.len(), |panes| {
            for (applied, (key, at, element)) in batch.iter().enumerate() {
                let (slice, mut bytes) = (slices.slice_of(*at), 0);
                let add = &mut |acc: &mut A::Acc| {
                    aggregate.add(acc, element);
                    bytes = size_of::<A::Acc>() + acc.heap_bytes();
                };
                let added = update_rarely(panes, (slice, key), &mut || aggregate.init(), add);
                added.map_err(|error| BatchError { applied, error })?;
                recorder.record_change(key, slice, bytes as u64);
            }
            Ok(())
        })?;
        done.map_err(|error: BatchError| error.leave_rest(batch))?;
        batch.clear();
        Ok(())
    }

    /// The accumulator of a key over some slices, as it is and with `item` in `slice`.
    fn folded_with(
        &self,
        slices: &Range<Time>,
        key: &K,
        slice: Time,
        item: &A::Acc,
    ) -> Result<(Option<A::Acc>, A::Acc)> {
        let aggregate = &*self.aggregate;
        let fold = |whole: &mut Option<A::Acc>, part: &A::Acc| match whole {
            None => *whole = Some(part.clone()),
            Some(whole) => aggregate.merge(whole, part),
        };
        let mut panes = self.panes.enter()?;
        let mut next = panes.next_slice(slices.start);
        // The second from the slice on in which they differ.
        let (mut whole, mut with) = (None, None);
        while let Some(at) = next.filter(|at| slices.contains(at)) {
            if at > slice && with.is_none() {
                with = whole.clone();
                fold(&mut with, item);
            }
            if let Some(part) = panes.get(at, key)? {
                fold(&mut whole, &part);
                with.iter_mut().for_each(|with| aggregate.merge(with, &part));
            }
            next = panes.next_slice(at.plus(1));
        }
        let with = with.unwrap_or_else(|| {
            let mut with = whole.clone();
            fold(&mut with, item);
            with.unwrap_or_else(|| aggregate.init())
        });
        Ok((whole, with))
    }
}

impl<K, E, A, P, S> SliceContents<K> for FoldedSlices<K, E, A, P, S>
where
    K: Key,
    E: 'static,
    A: Aggregate<E>,
    P: Panes<K, A::Acc>,
    S: Panes<K, Total<A::Acc>>,
{
    type Element = E;
    type Item = A::Acc;
    type Row = A::Out;

    fn item(&self, element: &E) -> A::Acc {
        let mut acc = self.aggregate.init();
        self.aggregate.add(&mut acc, element);
        acc
    }

    fn add_batch(&mut self, grid: &Grid, batch: &mut Vec<(K, Time, E)>) -> Result<()> {
        let aggregate = &*self.aggregate;
        let slices = SliceCache::new(grid);
        if let Some(recorder) = self.panes.recorder() {
            return self.add_recorded(recorder, &slices, batch);
        }
        let mut panes = self.panes.enter_to_run(batch.len())?;
        let done = panes.update_batch(
            batch,
            |(key, at, _)| (slices.slice_of(*at), key),
            |_| aggregate.init(),
            |(_, _, element), acc| aggregate.add(acc, element),
        );
        panes.end();
        done.map_err(|error| error.leave_rest(batch))?;
        batch.clear();
        Ok(())
    }

    fn put(
        &mut self,
        slice: Time,
        key: &K,
        item: A::Acc,
    ) -> std::result::Result<(), Rejected<A::Acc>> {
        let aggregate = &*self.aggregate;
        let totals = match &self.running {
            RunningFold::Totals(totals) if totals.has(slice) => Some(totals),
            _ => None,
        };
        let mut is_new = false;
        if totals.is_some() {
            match self.panes.enter().and_then(|mut panes| panes.get(slice, key)) {
                Ok(known) => is_new = known.is_none(),
                Err(error) => return Err(Rejected::new(error, item)),
            }
        }
        let add = &mut |acc: &mut A::Acc| aggregate.merge(acc, &item);
        let init = &mut || aggregate.init();
        let done = self.panes.run(1, |panes| update_rarely(panes, (slice, key), init, add));
        match done {
            Ok(Ok(())) => {
                if let Some(recorder) = self.panes.recorder() {
                    recorder.record_change(key, slice, size_of::<A::Acc>() as u64);
                }
                // It is in. What is derived from the slices can be made again.
                if let Some(totals) = totals
                    && totals.add(aggregate, key, &item, is_new).is_err()
                {
                    totals.give_up();
                }
                if let RunningFold::Stacks(stacks, _) = &mut self.running {
                    stacks.changed(aggregate, &self.panes, slice, key);
                }
                Ok(())
            }
            Ok(Err(error)) | Err(error) => Err(Rejected::new(error, item)),
        }
    }

    fn next_slice(&self, from: Time) -> Result<Option<Time>> {
        Ok(self.panes.enter()?.next_slice(from))
    }

    fn begin_window(&mut self) -> Result<()> {
        self.regroup()
    }

    fn fire(
        &mut self,
        (slices, window, may_be_told): (Range<Time>, Window, bool),
        cursor: &mut Cursor,
        fuel: usize,
        out: Out<'_, K, A::Out>,
    ) -> Result<usize> {
        let mut left = fuel;
        if let Some(done) = self.fire_running(&slices, window, &mut left, out)? {
            cursor.done = done;
            return Ok(fuel - left);
        }
        let aggregate = &*self.aggregate;
        let Some(told) = self.told.as_ref().filter(|_| may_be_told) else {
            let (recorder, first) = (self.panes.recorder(), slices.start);
            self.panes.run(0, |panes| {
                panes.visit(slices, cursor, left.max(1), |run| {
                    run.filter(|(key, _)| self.panes.counts(*key)).for_each(|(key, acc)| {
                        if let Some(recorder) = recorder {
                            recorder.record(Access::Get, key, Some(first), 0);
                        }
                        aggregate.out(acc).into_iter().for_each(|row| out(key, window, row, 1));
                    });
                })
            })??;
            if cursor.done {
                self.running.has_rested();
            }
            return Ok(fuel - left);
        };
        // Taken out first: what is visited may not come again, and telling it may fail.
        if self.telling.is_empty() {
            let telling = &mut self.telling;
            let (recorder, first) = (self.panes.recorder(), slices.start);
            self.panes.run(0, |panes| {
                panes.fold(slices, &mut self.fold, fuel, &mut |key, acc| {
                    if self.panes.counts(key) {
                        if let Some(recorder) = recorder {
                            recorder.record(Access::Get, key, Some(first), 0);
                        }
                        telling.push_back((key.clone(), acc, None));
                    }
                    Ok(())
                })
            })??;
        }
        while let Some((key, acc, was)) = self.telling.front_mut() {
            let mut told = told.enter()?;
            if was.is_none() {
                *was = Some(told.get(window.end, key)?);
            }
            let old = was.iter().flatten().next().and_then(|acc| aggregate.out(acc));
            let new = aggregate.out(acc);
            if old != new {
                // Put anew, not changed: a part of the old may be on storage.
                told.remove(window.end, key)?;
                put_anew(&mut *told, (window.end, key), &mut || acc.clone())?;
                old.into_iter().for_each(|row| out(key, window, row, -1));
                new.into_iter().for_each(|row| out(key, window, row, 1));
            }
            self.telling.pop_front();
        }
        if self.fold.done {
            (self.fold, cursor.done) = (Cursor::default(), true);
            self.running.has_rested();
        }
        Ok(0)
    }

    fn refire(
        &mut self,
        slices: Range<Time>,
        window: Window,
        key: &K,
        slice: Time,
        item: &A::Acc,
        out: Out<'_, K, A::Out>,
    ) -> Result<()> {
        let (old, new) = self.folded_with(&slices, key, slice, item)?;
        let old = old.and_then(|acc| self.aggregate.out(&acc));
        let new = self.aggregate.out(&new);
        if old != new {
            old.into_iter().for_each(|row| out(key, window, row, -1));
            new.into_iter().for_each(|row| out(key, window, row, 1));
        }
        Ok(())
    }

    fn purge(&mut self, before: Time, open: Time, fuel: usize) -> Result<bool> {
        self.regroup()?;
        let (aggregate, mut left) = (&*self.aggregate, fuel);
        let done = match &mut self.running {
            RunningFold::Nothing => true,
            RunningFold::Totals(totals) => {
                totals.purge(aggregate, &self.panes, before, &mut left)?
            }
            RunningFold::Stacks(stacks, _) => {
                stacks.purge(aggregate, &self.panes, before, &mut left)?
            }
        };
        if !done {
            return Ok(false);
        }
        if let Some(told) = &self.told
            && !told.enter()?.purge(open, fuel)?
        {
            return Ok(false);
        }
        let mut panes = self.panes.enter()?;
        if let Some(recorder) = self.panes.recorder() {
            recorder.record_purge(before);
        }
        panes.purge(before, fuel)
    }

    fn prefetch(&mut self, until: Time) -> Result<()> {
        self.panes.enter()?.prefetch(until)
    }

    fn clear_poison(&mut self) {
        self.panes.clear_poison();
        self.told.iter().for_each(|told| told.clear_poison());
        match &mut self.running {
            RunningFold::Nothing => {}
            RunningFold::Totals(totals) => totals.panes.clear_poison(),
            RunningFold::Stacks(stacks, _) => stacks.clear_poison(),
        }
    }
}
