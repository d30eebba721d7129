//! The operator `winning-bids`: what it sees of events, and its state, which is driven by a
//! dataflow or by whoever else has a watermark and timers.

use alluvium::backend::Layout;
use alluvium::{AnyLayout, Map, State, Time};
use alluvium_timely::{Changes, Context, KeyBy, Spec, Stateful, WorkerState};
use serde::{Deserialize, Serialize};

use super::super::Events;
use super::Rules;
use super::item::{Auction, Item, ItemOf};
use crate::nexmark::{Event, Record};
use crate::queries::row_by_row::RowByRow;

/// What the operator sees of an event.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Input<L, O> {
    Auction { id: u64, date_time: Time, expires: Time, lot: L },
    Bid { auction: u64, bid: O },
}

impl<L, O> Input<L, O> {
    pub(super) fn of<R: Rules<Lot = L, Bid = O>>(
        Record { ordinal, event }: &Record,
    ) -> Option<Self> {
        match event {
            Event::Auction(auction) => Some(Input::Auction {
                id: auction.id,
                date_time: auction.date_time,
                expires: auction.expires,
                lot: R::lot(auction, *ordinal),
            }),
            Event::Bid(bid) => {
                Some(Input::Bid { auction: bid.auction, bid: R::bid(bid, *ordinal) })
            }
            Event::Person(_) => None,
        }
    }

    pub(super) fn auction_id(&self) -> u64 {
        match self {
            Input::Auction { id, .. } => *id,
            Input::Bid { auction, .. } => *auction,
        }
    }
}

/// What the state of `winning-bids` is driven by.
pub(super) trait Surroundings<Out> {
    /// No event before this time is still to come.
    fn watermark(&self) -> Time;

    /// Asks for the id to be looked at when the watermark has passed `at`.
    fn set_timer(&mut self, id: u64, at: Time) -> alluvium::Result<()>;

    /// Emits a change.
    fn emit(&mut self, row: Out, diff: i64);

    /// Emits a change from `at` on.
    fn emit_at(&mut self, at: Time, row: Out, diff: i64);
}

impl<Out> Surroundings<Out> for Context<'_, i64, u64, Out> {
    fn watermark(&self) -> Time {
        Context::watermark(self)
    }

    fn set_timer(&mut self, id: u64, at: Time) -> alluvium::Result<()> {
        Context::set_timer(self, id, at)
    }

    fn emit(&mut self, row: Out, diff: i64) {
        Context::emit(self, row, diff);
    }

    fn emit_at(&mut self, at: Time, row: Out, diff: i64) {
        Context::emit_at(self, at, row, diff);
    }
}

/// The state of `winning-bids`.
pub(super) struct Winning<R: Rules, L: Layout<u64, ItemOf<R>> = AnyLayout> {
    items: Map<u64, ItemOf<R>, L>,
    alarms: Vec<(Time, u64)>,
    emptied: Vec<u64>,
}

pub(super) type InputOf<R> = Input<<R as Rules>::Lot, <R as Rules>::Bid>;

impl<R: Rules, L: Layout<u64, ItemOf<R>>> Winning<R, L>
where
    ItemOf<R>: State,
{
    pub(super) fn new(items: Map<u64, ItemOf<R>, L>) -> Self {
        Winning { items, alarms: Vec::new(), emptied: Vec::new() }
    }

    /// Applies auctions and bids.
    pub(super) fn apply(
        &mut self,
        rows: &mut Vec<(u64, InputOf<R>)>,
        context: &mut impl Surroundings<R::Out>,
    ) -> alluvium::Result<()> {
        let (alarms, watermark) = (&mut self.alarms, context.watermark());
        let change = |(id, input): &(u64, InputOf<R>), item: &mut ItemOf<R>| match input {
            Input::Auction { date_time, expires, lot, .. } => {
                alarms.push((*expires, *id));
                let (lot, date_time, expires) = (lot.clone(), *date_time, *expires);
                let auction = Auction { lot, date_time, expires, best: None };
                item.open::<R>(*id, auction, |row, diff| context.emit(row, diff));
            }
            Input::Bid { bid, .. } => {
                let at = R::time(bid);
                if item.needs_alarm::<R>(at) {
                    alarms.push((at, *id));
                }
                let out = |row, diff| context.emit(row, diff);
                item.bid::<R>(*id, bid.clone(), watermark, out);
            }
        };
        let done = self.items.update_batch(rows, |row| &row.0, |_| Item::default(), change);
        let done = done.map_err(|error| error.leave_rest(rows));
        self.set_alarms(context).and(done)
    }

    /// Looks at the items whose time has come.
    pub(super) fn expire(
        &mut self,
        due: &mut Vec<(Time, u64)>,
        context: &mut impl Surroundings<R::Out>,
    ) -> alluvium::Result<()> {
        // Those that an error kept from being removed may have got bids since.
        due.extend(self.emptied.drain(..).map(|id| (Time::MIN, id)));
        let (alarms, emptied) = (&mut self.alarms, &mut self.emptied);
        let watermark = context.watermark();
        let change = |(_, id): &(Time, u64), item: &mut ItemOf<R>| {
            item.expire::<R>(watermark, |winner, expires| {
                R::over(winner, expires, |row, diff| context.emit_at(expires, row, diff));
            });
            alarms.extend(item.bids_due::<R>().map(|at| (at, *id)));
            if item.is_empty() {
                emptied.push(*id);
            }
        };
        let done = self.items.update_batch(due, |timer| &timer.1, |_| Item::default(), change);
        let done = done.map_err(|error| error.leave_rest(due));
        while let Some(id) = self.emptied.pop() {
            self.items.remove(&id).inspect_err(|_| self.emptied.push(id))?;
        }
        self.set_alarms(context).and(done)
    }

    fn set_alarms(&mut self, context: &mut impl Surroundings<R::Out>) -> alluvium::Result<()> {
        self.alarms.drain(..).try_for_each(|(at, id)| context.set_timer(id, at))
    }
}

/// What `R` makes of the winners among the events.
///
/// # Errors
/// A state cannot be opened.
pub(in crate::queries) fn winning<'scope, R: Rules>(
    events: Events<'scope>,
    state: &WorkerState,
) -> alluvium::Result<Changes<'scope, i64, R::Out>>
where
    ItemOf<R>: State,
{
    winning_in::<R, _>(events, state, Spec::new(WINNING))
}

/// The name of the operator.
pub(in crate::queries) const WINNING: &str = "winning-bids";

/// [`winning`] with its state in a layout.
///
/// # Errors
/// A state cannot be opened.
pub(in crate::queries) fn winning_in<'scope, R: Rules, L: Layout<u64, ItemOf<R>>>(
    events: Events<'scope>,
    state: &WorkerState,
    spec: Spec<L>,
) -> alluvium::Result<Changes<'scope, i64, R::Out>>
where
    ItemOf<R>: State,
{
    events
        .flat_map(|record| Input::of::<R>(&record))
        .key_by(state, InputOf::<R>::auction_id)
        .stateful(
            spec,
            |states| Ok(Winning::<R, L>::new(states.map("items")?)),
            |winning, rows, context| winning.apply(rows, context),
            |winning, due, context| winning.expire(due, context),
        )
}
