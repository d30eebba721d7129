//! Slices of aligned windows that have the events themselves, for a function of all of them.
//!
//! Where results come early, what was told of a window is known by how many events of each slice it
//! was told from: slices only grow at their ends, so that the function gives it again.

use std::collections::VecDeque;
use std::ops::Range;

use alluvium_layouts::{Cursor, Elements, Lists, Panes, PanesLayout, WindowSegments};
use alluvium_pagestore::{Key, Rejected, Result, State, Time};

use super::come_out::ComeOut;
use super::contents::{Out, PreviousResult, SliceCache, SliceContents};
use super::holistic::Process;
use super::{Grid, Window};
use crate::cells::cell_handle::CellHandle;
use crate::cells::recording::{Access, Recorder};
use crate::cells::{ListsCell, PanesCell, put_anew};

/// Slices of a window, and how many events of a key each had.
pub(crate) type SliceCounts = Vec<(Time, u64)>;
/// Panes of these.
pub(crate) type CountsPanes<K> = <WindowSegments as PanesLayout<K, SliceCounts>>::Panes;

/// The events themselves.
pub(crate) struct KeptSlices<K: Key, E, F, L> {
    pub(crate) process: F,
    pub(crate) lists: CellHandle<ListsCell<K, E, L>>,
    /// What windows were told from, by their ends, if they may be told before they end.
    pub(crate) told: Option<CellHandle<PanesCell<K, SliceCounts, CountsPanes<K>>>>,
    /// Where the fold of a window that is told stands, and the keys it gave that are not told yet.
    pub(crate) fold: Cursor,
    pub(crate) telling: VecDeque<(K, PreviousResult<SliceCounts>)>,
    /// The times of a batch whose slices stand where they stood.
    pub(crate) times: Vec<Time>,
    /// The window and the hash of the key that was visited last by a fold that has failed, and its rows
    /// that came out. Keys of one hash are visited together.
    pub(crate) last: Option<(Window, u64)>,
    pub(crate) come_out: ComeOut,
}

/// Elements in memory.
struct CollectedElements<'a, E> {
    elements: Box<dyn Iterator<Item = &'a E> + 'a>,
}

impl<E> Elements<E> for CollectedElements<'_, E> {
    fn next(&mut self) -> Result<Option<&E>> {
        Ok(self.elements.next())
    }
}

impl<K, E, F, L> KeptSlices<K, E, F, L>
where
    K: Key,
    E: State,
    F: Process<K, E>,
    L: Lists<K, E>,
{
    /// The elements of a key in some slices, and how many each slice has of them.
    fn collect(&self, slices: &Range<Time>, key: &K) -> Result<(Vec<E>, SliceCounts)> {
        let (mut elements, mut counts) = (Vec::new(), SliceCounts::new());
        let mut lists = self.lists.enter()?;
        let mut next = lists.next_bucket(slices.start);
        while let Some(bucket) = next.filter(|bucket| slices.contains(bucket)) {
            let count = lists.read(bucket, key, &mut |element| {
                elements.push(element.clone());
                Ok(())
            })?;
            if count > 0 {
                counts.push((bucket, count));
            }
            next = lists.next_bucket(bucket.plus(1));
        }
        Ok((elements, counts))
    }

    /// Tells the result of a key in a window if it has changed since it was told, taking that back.
    fn tell_anew(
        &mut self,
        slices: &Range<Time>,
        window: Window,
        (key, was): &mut (K, PreviousResult<SliceCounts>),
        out: Out<'_, K, F::Row>,
    ) -> Result<()> {
        let Some(told) = self.told.clone() else { return Ok(()) };
        if was.is_none() {
            *was = Some(told.enter()?.get(window.end, key)?);
        }
        let old = was.iter().flatten().next();
        let (elements, counts) = self.collect(slices, key)?;
        if counts.is_empty() || old == Some(&counts) {
            return Ok(());
        }
        let mut rows = Vec::new();
        if let Some(old) = old {
            let elements = first_of(&elements, &counts, old);
            self.process.process(key, window, &mut CollectedElements { elements }, &mut |row| {
                rows.push((row, -1));
            })?;
        }
        let elements = Box::new(elements.iter());
        self.process.process(key, window, &mut CollectedElements { elements }, &mut |row| {
            rows.push((row, 1));
        })?;
        // Put anew, not changed: a part of the old may be on storage.
        let mut told = told.enter()?;
        told.remove(window.end, key)?;
        let mut counts = Some(counts);
        let made = &mut || counts.take().expect("made once");
        put_anew(&mut *told, (window.end, key), made)?;
        rows.into_iter().for_each(|(row, diff)| out(key, window, row, diff));
        Ok(())
    }
}

/// Appends one by one, which a trace gets; leaves what was not appended.
#[cold]
fn append_recorded<K: Key, E: State>(
    lists: &mut impl Lists<K, E>,
    recorder: &Recorder,
    batch: &mut Vec<(K, Time, E)>,
) -> Result<()> {
    let mut rest = std::mem::take(batch).into_iter();
    while let Some((key, slice, element)) = rest.next() {
        let bytes = (size_of::<E>() + element.heap_bytes()) as u64;
        if let Err(Rejected { error, value, .. }) = lists.append(slice, &key, element) {
            batch.push((key, slice, value));
            batch.extend(rest);
            return Err(error);
        }
        recorder.record(Access::Merge, &key, Some(slice), bytes);
    }
    Ok(())
}

/// Of the elements of some slices those that were there when the slices had `old`.
fn first_of<'a, E>(
    elements: &'a [E],
    counts: &'a SliceCounts,
    old: &'a SliceCounts,
) -> Box<dyn Iterator<Item = &'a E> + 'a> {
    let mut rest = elements;
    Box::new(counts.iter().flat_map(move |(slice, count)| {
        let (here, after) = rest.split_at(*count as usize);
        rest = after;
        let was = old.iter().find(|(at, _)| at == slice).map_or(0, |(_, count)| *count);
        here.iter().take(was as usize)
    }))
}

impl<K, E, F, L> SliceContents<K> for KeptSlices<K, E, F, L>
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

    fn add_batch(&mut self, grid: &Grid, batch: &mut Vec<(K, Time, E)>) -> Result<()> {
        let slices = SliceCache::new(grid);
        self.times.clear();
        self.times.extend(batch.iter().map(|(_, at, _)| *at));
        for (_, at, _) in batch.iter_mut() {
            *at = slices.slice_of(*at);
        }
        let done = match self.lists.recorder() {
            None => self.lists.run(batch.len(), |lists| lists.append_batch(batch))?,
            Some(recorder) => {
                self.lists.run(batch.len(), |lists| append_recorded(lists, recorder, batch))?
            }
        };
        for ((_, place, _), at) in batch.iter_mut().rev().zip(self.times.iter().rev()) {
            *place = *at;
        }
        done
    }

    fn put(&mut self, slice: Time, key: &K, item: E) -> std::result::Result<(), Rejected<E>> {
        match self.lists.enter() {
            Ok(mut lists) => {
                let bytes = (size_of::<E>() + item.heap_bytes()) as u64;
                lists.append(slice, key, item)?;
                if let Some(recorder) = self.lists.recorder() {
                    recorder.record(Access::Merge, key, Some(slice), bytes);
                }
                Ok(())
            }
            Err(error) => Err(Rejected::new(error, item)),
        }
    }

    fn next_slice(&self, from: Time) -> Result<Option<Time>> {
        Ok(self.lists.enter()?.next_bucket(from))
    }

    fn fire(
        &mut self,
        (slices, window, may_be_told): (Range<Time>, Window, bool),
        cursor: &mut Cursor,
        fuel: usize,
        out: Out<'_, K, F::Row>,
    ) -> Result<usize> {
        if self.told.is_some() && may_be_told {
            // Taken out first: what is visited may not come again, and telling it may fail.
            if self.telling.is_empty() {
                let telling = &mut self.telling;
                let (recorder, first) = (self.lists.recorder(), slices.start);
                self.lists.run(0, |lists| {
                    lists.fold(slices.clone(), &mut self.fold, fuel, &mut |key, _| {
                        if self.lists.counts(key) {
                            if let Some(recorder) = recorder {
                                recorder.record(Access::Get, key, Some(first), 0);
                            }
                            telling.push_back((key.clone(), None));
                        }
                        Ok(())
                    })
                })??;
            }
            while let Some(mut next) = self.telling.pop_front() {
                if let Err(error) = self.tell_anew(&slices, window, &mut next, out) {
                    self.telling.push_front(next);
                    return Err(error);
                }
            }
            if self.fold.done {
                (self.fold, cursor.done) = (Cursor::default(), true);
            }
            return Ok(0);
        }
        let Self { process, last, come_out, .. } = self;
        come_out.try_again();
        let (recorder, first) = (self.lists.recorder(), slices.start);
        let mut has_visited = false;
        self.lists.run(0, |lists| {
            lists.fold(slices, cursor, fuel, &mut |key, elements| {
                has_visited = true;
                if !self.lists.counts(key) {
                    return Ok(());
                }
                if let Some(recorder) = recorder {
                    recorder.record(Access::Get, key, Some(first), 0);
                }
                let this = Some((window, key.key_hash()));
                if *last != this {
                    (*last, *come_out) = (this, ComeOut::default());
                }
                process.process(key, window, elements, &mut |row| {
                    if come_out.is_new() {
                        out(key, window, row, 1);
                    }
                })
            })
        })??;
        // A fold may only have loaded what is packed: the key that failed is the first to come then.
        if has_visited || cursor.done {
            self.last = None;
        }
        // Who stops before the end has looked at as many elements.
        Ok(if cursor.done { 0 } else { fuel })
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
        let (mut elements, counts) = self.collect(&slices, key)?;
        let before = counts.iter().take_while(|(at, _)| *at <= slice);
        let place: u64 = before.map(|(_, count)| count).sum();
        let mut tell = |elements: &[E], diff| {
            let mut all = CollectedElements { elements: Box::new(elements.iter()) };
            let out = &mut |row| out(key, window, row, diff);
            self.process.process(key, window, &mut all, out)
        };
        if !elements.is_empty() {
            tell(&elements, -1)?;
        }
        elements.insert(place as usize, item.clone());
        tell(&elements, 1)
    }

    fn purge(&mut self, before: Time, open: Time, fuel: usize) -> Result<bool> {
        if let Some(told) = &self.told
            && !told.enter()?.purge(open, fuel)?
        {
            return Ok(false);
        }
        let mut lists = self.lists.enter()?;
        if let Some(recorder) = self.lists.recorder() {
            recorder.record_purge(before);
        }
        lists.purge(before, fuel)
    }

    fn prefetch(&mut self, until: Time) -> Result<()> {
        self.lists.enter()?.prefetch(until)
    }

    fn clear_poison(&mut self) {
        self.lists.clear_poison();
        self.told.iter().for_each(|told| told.clear_poison());
    }
}
