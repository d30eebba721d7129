//! Slices of aligned windows that have accumulators: events are folded in as they come.

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::ops::Range;
use std::rc::Rc;

use alluvium_layouts::{Cursor, Panes};
use alluvium_pagestore::{Key, Rejected, Result, Time};

use super::contents::{Contents, Out, SliceCache};
use super::totals::{Total, Totals};
use super::{Grid, Window};
use crate::aggregate::Aggregate;
use crate::cells::PanesCell;

/// An accumulator per slice and key.
pub(crate) struct Folded<K, E, A: Aggregate<E>, P, S> {
    pub(crate) aggregate: Rc<A>,
    pub(crate) panes: Rc<PanesCell<K, A::Acc, P>>,
    /// What was told of windows, by their ends, if it may be told before they end.
    pub(crate) told: Option<Rc<PanesCell<K, A::Acc, P>>>,
    /// Of sliding windows whose parts can be taken back.
    pub(crate) totals: Option<Totals<K, A::Acc, S>>,
    /// Where the fold of a window that is told stands, and what it gave that is not told yet.
    pub(crate) fold: Cursor,
    pub(crate) telling: VecDeque<(K, A::Acc)>,
    pub(crate) element: PhantomData<E>,
}

impl<K, E, A, P, S> Folded<K, E, A, P, S>
where
    K: Key,
    E: 'static,
    A: Aggregate<E>,
    P: Panes<K, A::Acc>,
    S: Panes<K, Total<A::Acc>>,
{
    /// The accumulator of a key over some slices.
    fn folded(&self, slices: &Range<Time>, key: &K) -> Result<Option<A::Acc>> {
        let mut panes = self.panes.0.enter()?;
        let (mut next, mut whole) = (panes.next_slice(slices.start), None);
        while let Some(slice) = next.filter(|slice| slices.contains(slice)) {
            if let Some(part) = panes.get(slice, key)? {
                match &mut whole {
                    None => whole = Some(part),
                    Some(whole) => self.aggregate.merge(whole, &part),
                }
            }
            next = panes.next_slice(slice.plus(1));
        }
        Ok(whole)
    }
}

impl<K, E, A, P, S> Contents<K> for Folded<K, E, A, P, S>
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

    fn add_batch(&mut self, grid: &Grid, batch: &mut Vec<(Time, K, E)>) -> Result<()> {
        let aggregate = &*self.aggregate;
        let slices = SliceCache::new(grid);
        let done = self.panes.0.run(batch.len(), |panes| {
            panes.update_batch(
                batch,
                |(at, key, _)| (slices.slice_of(*at), key),
                |_| aggregate.init(),
                |(_, _, element), acc| aggregate.add(acc, element),
            )
        })?;
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
        let totals = self.totals.as_ref().filter(|totals| totals.has(slice));
        let mut is_new = false;
        if let Some(totals) = totals {
            let known = self.panes.0.enter().and_then(|mut panes| panes.get(slice, key));
            let added = known.and_then(|known| {
                is_new = known.is_none();
                totals.add(aggregate, key, &item, is_new)
            });
            if let Err(error) = added {
                return Err(Rejected::new(error, item));
            }
        }
        let add = |acc: &mut A::Acc| aggregate.merge(acc, &item);
        let done = self.panes.0.run(1, |panes| panes.update(slice, key, || aggregate.init(), add));
        match done {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) | Err(error) => {
                if let Some(totals) = totals {
                    // In memory since it was added just now: this finds room.
                    let _ = totals.take_back(aggregate, key, &item, is_new);
                }
                Err(Rejected::new(error, item))
            }
        }
    }

    fn next_slice(&self, from: Time) -> Result<Option<Time>> {
        Ok(self.panes.0.enter()?.next_slice(from))
    }

    fn fire(
        &mut self,
        slices: Range<Time>,
        window: Window,
        cursor: &mut Cursor,
        fuel: usize,
        out: Out<'_, K, A::Out>,
    ) -> Result<()> {
        let aggregate = &*self.aggregate;
        if let Some(totals) = &mut self.totals {
            cursor.done = totals.leave(aggregate, &self.panes, slices.start, fuel)?
                && totals.enter(aggregate, &self.panes, slices.end, fuel)?
                && totals.tell(aggregate, window, fuel, out)?;
            return Ok(());
        }
        let Some(told) = &self.told else {
            return self.panes.0.run(0, |panes| {
                panes.fold(slices, cursor, fuel, &mut |key, acc| {
                    aggregate.out(&acc).into_iter().for_each(|row| out(key, window, row, 1));
                    Ok(())
                })
            })?;
        };
        // Taken out first: what is visited may not come again, and telling it may fail.
        if self.telling.is_empty() {
            let telling = &mut self.telling;
            self.panes.0.run(0, |panes| {
                panes.fold(slices, &mut self.fold, fuel, &mut |key, acc| {
                    telling.push_back((key.clone(), acc));
                    Ok(())
                })
            })??;
        }
        while let Some((key, acc)) = self.telling.front() {
            let mut told = told.0.enter()?;
            let old = told.get(window.end, key)?.and_then(|acc| aggregate.out(&acc));
            let new = aggregate.out(acc);
            if old != new {
                // Put anew, not changed: a part of the old may be on storage.
                told.remove(window.end, key)?;
                told.update(window.end, key, || acc.clone(), |_| ())?;
                old.into_iter().for_each(|row| out(key, window, row, -1));
                new.into_iter().for_each(|row| out(key, window, row, 1));
            }
            self.telling.pop_front();
        }
        if self.fold.done {
            (self.fold, cursor.done) = (Cursor::default(), true);
        }
        Ok(())
    }

    fn refire(
        &mut self,
        slices: Range<Time>,
        window: Window,
        key: &K,
        _: Time,
        item: &A::Acc,
        out: Out<'_, K, A::Out>,
    ) -> Result<()> {
        let old = self.folded(&slices, key)?;
        let mut new = old.clone().unwrap_or_else(|| self.aggregate.init());
        self.aggregate.merge(&mut new, item);
        let old = old.and_then(|acc| self.aggregate.out(&acc));
        let new = self.aggregate.out(&new);
        if old != new {
            old.into_iter().for_each(|row| out(key, window, row, -1));
            new.into_iter().for_each(|row| out(key, window, row, 1));
        }
        Ok(())
    }

    fn purge(&mut self, before: Time, open: Time, fuel: usize) -> Result<bool> {
        if let Some(totals) = &mut self.totals
            && !(totals.leave(&*self.aggregate, &self.panes, before, fuel)?
                && totals.drop_if_empty(&self.panes, fuel)?)
        {
            return Ok(false);
        }
        if let Some(told) = &self.told
            && !told.0.enter()?.purge(open, fuel)?
        {
            return Ok(false);
        }
        self.panes.0.enter()?.purge(before, fuel)
    }

    fn prefetch(&mut self, until: Time) -> Result<()> {
        self.panes.0.enter()?.prefetch(until)
    }

    fn clear_poison(&self) {
        self.panes.0.clear_poison();
    }
}
