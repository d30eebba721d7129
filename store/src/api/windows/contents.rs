//! What aligned windows need of the contents of their slices.

use std::ops::Range;

use alluvium_layouts::Cursor;
use alluvium_pagestore::{Key, Rejected, Result, State, Time};

use super::{Grid, Window};

/// Takes what comes out of windows: a row of a key and a window, and how many times more (or fewer)
/// it occurs.
pub type Out<'a, K, O> = &'a mut dyn FnMut(&K, Window, O, i64);

/// The contents of slices, by key.
pub(crate) trait SliceContents<K: Key>: 'static {
    /// What comes in.
    type Element: 'static;
    /// An event that has to wait before it may come in.
    type Item: State;
    /// What comes out.
    type Row: 'static;

    /// The form in which an event waits.
    fn item(&self, element: &Self::Element) -> Self::Item;

    /// Adds events of the given times; what was not added is left in the batch.
    fn add_batch(&mut self, grid: &Grid, batch: &mut Vec<(K, Time, Self::Element)>) -> Result<()>;

    /// Adds an event that has waited.
    fn put(
        &mut self,
        slice: Time,
        key: &K,
        item: Self::Item,
    ) -> std::result::Result<(), Rejected<Self::Item>>;

    /// The first slice at or after `from` that has something.
    fn next_slice(&self, from: Time) -> Result<Option<Time>>;

    /// A window is about to be fired.
    fn begin_window(&mut self) -> Result<()> {
        Ok(())
    }

    /// Tells the result of each key of the window whose slices are given; about `fuel` of them, or
    /// of their events where these are looked at. Says how much was looked at that nothing was told
    /// of. The flag says whether the window may have been told before.
    fn fire(
        &mut self,
        of: (Range<Time>, Window, bool),
        cursor: &mut Cursor,
        fuel: usize,
        out: Out<'_, K, Self::Row>,
    ) -> Result<usize>;

    /// Tells how the result of `key` in a window that has fired changes when `item` comes into
    /// `slice` of it.
    fn refire(
        &mut self,
        slices: Range<Time>,
        window: Window,
        key: &K,
        slice: Time,
        item: &Self::Item,
        out: Out<'_, K, Self::Row>,
    ) -> Result<()>;

    /// Drops the slices before `before`, and what is kept of windows that end before `open`; says
    /// whether that is done.
    fn purge(&mut self, before: Time, open: Time, fuel: usize) -> Result<bool>;

    /// Slices before `until` will be fired soon.
    fn prefetch(&mut self, until: Time) -> Result<()>;

    fn clear_poison(&mut self);
}

/// What was told of a window and key before, once that is known: to be told anew it is removed from
/// where it stands, and must not be forgotten if the new one finds no room there.
pub(crate) type PreviousResult<T> = Option<Option<T>>;

/// The slice of the last event, which is the slice of most of the next ones: saves divisions.
pub(crate) struct SliceCache<'a> {
    grid: &'a Grid,
    last: std::cell::Cell<(Time, Time)>,
}

impl<'a> SliceCache<'a> {
    pub(crate) fn new(grid: &'a Grid) -> Self {
        Self { grid, last: std::cell::Cell::new((Time::MAX, Time::MIN)) }
    }

    #[inline]
    pub(crate) fn slice_of(&self, at: Time) -> Time {
        let (mut start, end) = self.last.get();
        if at < start || at >= end {
            let span = self.grid.slice_span(at);
            self.last.set(span);
            start = span.0;
        }
        start
    }
}
