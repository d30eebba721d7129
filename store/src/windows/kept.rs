//! Slices of aligned windows that have the events themselves, for a function of all of them.

use std::ops::Range;
use std::rc::Rc;

use alluvium_layouts::{Cursor, Elements, Lists};
use alluvium_pagestore::{Key, Rejected, Result, State, Time};

use super::contents::{Contents, Out, SliceCache};
use super::holistic::Process;
use super::{Grid, Window};
use crate::cells::ListsCell;

/// The events themselves.
pub(crate) struct Kept<K, E, F, L> {
    pub(crate) process: F,
    pub(crate) lists: Rc<ListsCell<K, E, L>>,
    /// The times of a batch whose slices stand where they stood.
    pub(crate) times: Vec<Time>,
}

/// Elements in memory.
struct Collected<'a, E> {
    elements: std::slice::Iter<'a, E>,
}

impl<E> Elements<E> for Collected<'_, E> {
    fn next(&mut self) -> Result<Option<&E>> {
        Ok(self.elements.next())
    }
}

impl<K, E, F, L> Contents<K> for Kept<K, E, F, L>
where
    K: Key,
    E: State,
    F: Process<K, E>,
    L: Lists<K, E>,
{
    type Element = E;
    type Item = E;
    type Row = F::Row;

    fn item(&self, element: &E) -> E {
        element.clone()
    }

    fn add_batch(&mut self, grid: &Grid, batch: &mut Vec<(Time, K, E)>) -> Result<()> {
        let slices = SliceCache::new(grid);
        self.times.clear();
        self.times.extend(batch.iter().map(|(at, ..)| *at));
        for (at, ..) in batch.iter_mut() {
            *at = slices.slice_of(*at);
        }
        let done = self.lists.0.run(batch.len(), |lists| lists.append_batch(batch))?;
        for ((place, ..), at) in batch.iter_mut().rev().zip(self.times.iter().rev()) {
            *place = *at;
        }
        done
    }

    fn put(&mut self, slice: Time, key: &K, item: E) -> std::result::Result<(), Rejected<E>> {
        match self.lists.0.enter() {
            Ok(mut lists) => lists.append(slice, key, item),
            Err(error) => Err(Rejected::new(error, item)),
        }
    }

    fn next_slice(&self, from: Time) -> Result<Option<Time>> {
        Ok(self.lists.0.enter()?.next_bucket(from))
    }

    fn fire(
        &mut self,
        slices: Range<Time>,
        window: Window,
        cursor: &mut Cursor,
        fuel: usize,
        out: Out<'_, K, F::Row>,
    ) -> Result<usize> {
        let process = &mut self.process;
        self.lists.0.run(0, |lists| {
            lists.fold(slices, cursor, fuel, &mut |key, elements| {
                process.process(key, window, elements, &mut |row| out(key, window, row, 1))
            })
        })??;
        Ok(0)
    }

    fn refire(
        &mut self,
        slices: Range<Time>,
        window: Window,
        key: &K,
        slice: Time,
        item: &E,
        out: Out<'_, K, F::Row>,
    ) -> Result<()> {
        let mut elements = Vec::new();
        let mut place = None;
        let mut lists = self.lists.0.enter()?;
        let mut next = lists.next_bucket(slices.start);
        while let Some(bucket) = next.filter(|bucket| slices.contains(bucket)) {
            if bucket > slice {
                place.get_or_insert(elements.len());
            }
            lists.read(bucket, key, &mut |element| {
                elements.push(element.clone());
                Ok(())
            })?;
            next = lists.next_bucket(bucket.plus(1));
        }
        drop(lists);
        let mut tell = |elements: &[E], diff| {
            let mut all = Collected { elements: elements.iter() };
            let out = &mut |row| out(key, window, row, diff);
            self.process.process(key, window, &mut all, out)
        };
        if !elements.is_empty() {
            tell(&elements, -1)?;
        }
        elements.insert(place.unwrap_or(elements.len()), item.clone());
        tell(&elements, 1)
    }

    fn purge(&mut self, before: Time, _: Time, fuel: usize) -> Result<bool> {
        self.lists.0.enter()?.purge(before, fuel)
    }

    fn prefetch(&mut self, until: Time) -> Result<()> {
        self.lists.0.enter()?.prefetch(until)
    }

    fn clear_poison(&mut self) {
        self.lists.0.clear_poison();
    }
}
