//! q4: `SELECT Q.category, AVG(Q.final) FROM (SELECT MAX(B.price) AS final, A.category
//! FROM auction A, bid B WHERE A.id = B.auction AND B.date_time BETWEEN A.date_time AND A.expires
//! GROUP BY A.id, A.category) Q GROUP BY Q.category`, the average truncated.
//!
//! Two operators. `winning-bids` keeps, per auction id, the auctions that a bid may still be for
//! and the bids that an auction may still come for, and emits how the highest price of an
//! (id, category) changes. `category-averages` keeps sum and number of those per category.
//!
//! # When state goes
//!
//! An auction goes when W > expires: no bid for it can come. What it added to its category's
//! average stays. A bid is for any auction of its id that began before it, so once W > its time
//! no auction can come that it is for: then it goes if its id has no auction, or else when room is
//! needed or the last auction of its id goes. An auction id is forgotten with its last auction and
//! bid; a further auction of the same id and category would be counted as another one.

use alluvium::{Heap, KeyHash, Map, State, Time};
use alluvium_timely::{Aggregate, Changes, Context, KeyBy, Rolling, Spec, Stateful, WorkerState};
use serde::{Deserialize, Serialize};
use timely::dataflow::operators::vec::Map as _;

use super::{Events, Fields, Query, Row};
use crate::nexmark::Event;

/// The average price that the items of a category were sold for.
#[derive(Clone, Copy, Debug)]
pub struct Q4;

/// A category and its average.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AverageRow {
    category: u64,
    average: i64,
}

impl Row for AverageRow {
    const COLUMNS: &'static [&'static str] = &["category", "final"];

    fn fields(&self) -> Fields {
        vec![Some(self.category.to_string()), Some(self.average.to_string())]
    }

    fn digest(&self) -> u64 {
        (self.category, self.average).key_hash()
    }
}

/// What the query sees of an event.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum Input {
    Auction { id: u64, category: u64, date_time: Time, expires: Time },
    Bid { auction: u64, price: i64, date_time: Time },
}

impl Input {
    fn of(event: Event) -> Option<Self> {
        match event {
            Event::Auction(auction) => Some(Input::Auction {
                id: auction.id,
                category: auction.category,
                date_time: auction.date_time,
                expires: auction.expires,
            }),
            Event::Bid(bid) => Some(Input::Bid {
                auction: bid.auction,
                price: bid.price,
                date_time: bid.date_time,
            }),
            Event::Person(_) => None,
        }
    }

    fn auction_id(&self) -> u64 {
        match self {
            Input::Auction { id, .. } => *id,
            Input::Bid { auction, .. } => *auction,
        }
    }
}

/// The highest price of an (auction id, category) was `from`, if it had a bid, and is `to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Raise {
    category: u64,
    from: Option<i64>,
    to: i64,
}

/// An auction that is not over.
#[derive(Clone, Debug, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, State)]
struct Auction {
    category: u64,
    date_time: Time,
    expires: Time,
    /// The highest price of all auctions of this id and category.
    highest: Option<i64>,
}

/// A bid that an auction may still come for.
#[derive(Clone, Copy, Debug, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, State)]
struct Bid {
    date_time: Time,
    price: i64,
}

/// What is kept of one auction id.
#[derive(Clone, Debug, Default, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, State)]
struct Item {
    /// The auction; nearly always there is one.
    auction: Option<Auction>,
    /// Further auctions of the same id.
    others: Vec<Auction>,
    bids: Vec<Bid>,
}

impl Auction {
    fn takes(&self, bid: &Bid) -> bool {
        (self.date_time..=self.expires).contains(&bid.date_time)
    }
}

impl Item {
    fn auctions(&self) -> impl Iterator<Item = &Auction> {
        self.auction.iter().chain(&self.others)
    }

    fn auctions_mut(&mut self) -> impl Iterator<Item = &mut Auction> {
        self.auction.iter_mut().chain(&mut self.others)
    }

    fn is_empty(&self) -> bool {
        self.auction.is_none() && self.bids.is_empty()
    }

    /// Adds an auction, to which bids that came before it apply.
    fn open(&mut self, mut auction: Auction, raised: impl FnOnce(Raise)) {
        let category = auction.category;
        let from = self.auctions().find(|a| a.category == category).and_then(|a| a.highest);
        let bids = self.bids.iter().filter(|bid| auction.takes(bid));
        let best = bids.map(|bid| bid.price).max();
        auction.highest = from.max(best);
        if let Some(to) = auction.highest.filter(|_| auction.highest != from) {
            self.raise(category, to);
            raised(Raise { category, from, to });
        }
        match &self.auction {
            None => self.auction = Some(auction),
            Some(_) => self.others.push(auction),
        }
    }

    /// Adds a bid, and keeps it for auctions to come.
    fn bid(&mut self, bid: Bid, watermark: Time, mut raised: impl FnMut(Raise)) {
        let wins = |a: &Auction| a.takes(&bid) && a.highest.is_none_or(|price| price < bid.price);
        loop {
            let won = self.auctions().find(|&a| wins(a)).map(|a| (a.category, a.highest));
            let Some((category, from)) = won else { break };
            self.raise(category, bid.price);
            raised(Raise { category, from, to: bid.price });
        }
        if bid.date_time >= watermark {
            if self.bids.len() == self.bids.capacity() {
                self.bids.retain(|bid| bid.date_time >= watermark);
            }
            self.bids.push(bid);
        }
    }

    fn raise(&mut self, category: u64, to: i64) {
        for auction in self.auctions_mut().filter(|auction| auction.category == category) {
            auction.highest = Some(to);
        }
    }

    /// Drops what nothing can come for.
    fn expire(&mut self, watermark: Time) {
        self.bids.retain(|bid| bid.date_time >= watermark);
        self.others.retain(|auction| auction.expires >= watermark);
        if self.auction.as_ref().is_some_and(|auction| auction.expires < watermark) {
            self.auction = self.others.pop();
        }
        if self.bids.is_empty() {
            self.bids = Vec::new();
        }
    }

    /// Whether a bid of this time would be the first that may go.
    fn needs_alarm(&self, at: Time) -> bool {
        self.auction.is_none() && self.bids.iter().all(|bid| bid.date_time > at)
    }

    /// When the item has to be looked at for its bids: when the first of them may go. Auctions
    /// have timers of their own, and bids stay as long as they do.
    fn bids_due(&self) -> Option<Time> {
        let first = self.bids.iter().map(|bid| bid.date_time).min();
        first.filter(|_| self.auction.is_none())
    }
}

/// The state of `winning-bids`.
struct Winning {
    items: Map<u64, Item>,
    alarms: Vec<(Time, u64)>,
    emptied: Vec<u64>,
}

type Cx<'a> = Context<'a, i64, u64, Raise>;

impl Winning {
    /// Applies auctions and bids.
    fn apply(
        &mut self,
        rows: &mut Vec<(u64, Input)>,
        context: &mut Cx<'_>,
    ) -> alluvium::Result<()> {
        let (alarms, watermark) = (&mut self.alarms, context.watermark());
        let change = |(id, input): &(u64, Input), item: &mut Item| match *input {
            Input::Auction { category, date_time, expires, .. } => {
                alarms.push((expires, *id));
                let auction = Auction { category, date_time, expires, highest: None };
                item.open(auction, |raise| context.emit(raise, 1));
            }
            Input::Bid { price, date_time, .. } => {
                if item.needs_alarm(date_time) {
                    alarms.push((date_time, *id));
                }
                item.bid(Bid { date_time, price }, watermark, |raise| context.emit(raise, 1));
            }
        };
        let done = self.items.update_batch(rows, |row| &row.0, |_| Item::default(), change);
        let done = done.map_err(|error| error.leave_rest(rows));
        self.set_alarms(context).and(done)
    }

    /// Looks at the items whose time has come.
    fn expire(&mut self, due: &mut Vec<(Time, u64)>, context: &mut Cx<'_>) -> alluvium::Result<()> {
        // Those that an error kept from being removed may have got bids since.
        due.extend(self.emptied.drain(..).map(|id| (Time::MIN, id)));
        let (alarms, emptied) = (&mut self.alarms, &mut self.emptied);
        let watermark = context.watermark();
        let change = |(_, id): &(Time, u64), item: &mut Item| {
            item.expire(watermark);
            alarms.extend(item.bids_due().map(|at| (at, *id)));
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

    fn set_alarms(&mut self, context: &mut Cx<'_>) -> alluvium::Result<()> {
        self.alarms.drain(..).try_for_each(|(at, id)| context.set_timer(at, id))
    }
}

/// Sum and number of the highest prices of a category's auctions.
#[derive(Clone, Copy, Debug, Default, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, State)]
struct Prices {
    sum: i128,
    auctions: u64,
}

/// The truncated average of prices.
struct Average;

impl Aggregate<(Raise, i64, i64)> for Average {
    type Acc = Prices;
    type Out = i64;

    fn init(&self) -> Prices {
        Prices::default()
    }

    fn add(&self, prices: &mut Prices, (raise, ..): &(Raise, i64, i64)) {
        prices.sum += i128::from(raise.to) - i128::from(raise.from.unwrap_or(0));
        prices.auctions += u64::from(raise.from.is_none());
    }

    fn out(&self, prices: &Prices) -> Option<i64> {
        let auctions = i128::from(prices.auctions);
        // An average of 64-bit numbers is one.
        prices.sum.checked_div(auctions).and_then(|average| average.try_into().ok())
    }
}

impl Query for Q4 {
    type Row = AverageRow;
    const NAME: &'static str = "q4";

    fn build<'scope>(
        events: Events<'scope>,
        state: &WorkerState,
    ) -> alluvium::Result<Changes<'scope, i64, AverageRow>> {
        let raises = events
            .flat_map(|record| Input::of(record.event))
            .key_by(state, Input::auction_id)
            .stateful(
                Spec::new("winning-bids"),
                |states| {
                    let items = states.map("items")?;
                    Ok(Winning { items, alarms: Vec::new(), emptied: Vec::new() })
                },
                |winning, rows, context| winning.apply(rows, context),
                Winning::expire,
            )?;
        let averages = raises
            .key_by(state, |raise: &(Raise, i64, i64)| raise.0.category)
            .rolling(Spec::new("category-averages").layout(Heap::new()), Average)?;
        Ok(averages.map(|((category, average), time, diff)| {
            (AverageRow { category, average }, time, diff)
        }))
    }
}
