//! `winning-bids` without a dataflow: the same state, rows and timers, driven by one loop.

use alluvium::{Map, State, Store, Time, Timers};

use super::Rules;
use super::item::ItemOf;
use super::operator::{Input, InputOf, Surroundings, Winning};
use crate::nexmark::Record;

/// Timers that are applied together, at most: as many as the operator gets at a time.
const DUE_BATCH: usize = 1024;

/// The operator's state, its timers and what it has emitted.
pub(in crate::queries) struct StraightWinning<R: Rules> {
    winning: Winning<R>,
    drive: Drive<R::Out>,
    rows: Vec<(u64, InputOf<R>)>,
    due: Vec<(Time, u64)>,
}

/// What takes the place of a dataflow.
struct Drive<Out> {
    watermark: Time,
    timers: Timers<u64>,
    emitted: Vec<(Out, i64)>,
}

impl<Out> Surroundings<Out> for Drive<Out> {
    fn watermark(&self) -> Time {
        self.watermark
    }

    fn set_timer(&mut self, id: u64, at: Time) -> alluvium::Result<()> {
        self.timers.set(id, at).map(drop)
    }

    fn emit(&mut self, row: Out, diff: i64) {
        self.emitted.push((row, diff));
    }

    fn emit_at(&mut self, _: Time, row: Out, diff: i64) {
        self.emitted.push((row, diff));
    }
}

impl<R: Rules> StraightWinning<R>
where
    ItemOf<R>: State,
{
    /// Opens the states that the operator has, by the same names.
    pub(in crate::queries) fn open(store: &Store) -> alluvium::Result<Self> {
        let items: Map<u64, ItemOf<R>> = store.map("winning-bids/items").open()?;
        let timers = store.timers("winning-bids/timers")?;
        let drive = Drive { watermark: Time::MIN, timers, emitted: Vec::new() };
        Ok(Self { winning: Winning::new(items), drive, rows: Vec::new(), due: Vec::new() })
    }

    /// Applies events, none of which is before the watermark, in batches as Timely makes them.
    pub(in crate::queries) fn apply(&mut self, events: &[Record]) -> alluvium::Result<()> {
        let batch = timely::container::buffer::default_capacity::<InputOf<R>>();
        let mut inputs = events.iter().filter_map(Input::of::<R>);
        loop {
            let batch = inputs.by_ref().take(batch).map(|input| (input.auction_id(), input));
            self.rows.extend(batch);
            if self.rows.is_empty() {
                return Ok(());
            }
            self.winning.apply(&mut self.rows, &mut self.drive)?;
            self.rows.clear();
        }
    }

    /// Moves the watermark on, and applies the timers that are due by then.
    pub(in crate::queries) fn advance(&mut self, watermark: Time) -> alluvium::Result<()> {
        self.drive.watermark = watermark;
        loop {
            while self.due.len() < DUE_BATCH
                && let Some(timer) = self.drive.timers.pop_due(watermark)
            {
                self.due.push(timer);
            }
            if self.due.is_empty() {
                return Ok(());
            }
            self.winning.expire(&mut self.due, &mut self.drive)?;
            self.due.clear();
        }
    }

    /// Takes what was emitted.
    pub(in crate::queries) fn emitted(&mut self) -> impl Iterator<Item = (R::Out, i64)> + '_ {
        self.drive.emitted.drain(..)
    }
}
