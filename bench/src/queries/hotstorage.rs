//! The variants of q4 and q6 of the HotStorage'20 testbed, `q4-hotstorage` and `q6-hotstorage`,
//! which are not the SQL queries: to be measured, never to be compared with those.
//!
//! A bid counts for an auction if it is in [date_time, expires) and not below the reserve; of equal
//! prices the earlier bid wins, of equal times the one that came first. A bid that comes before its
//! auction counts under the same conditions; the testbed lost or never checked such bids. When an
//! auction with a winner closes, a running integer average is emitted, as a row that stays: in q4
//! of all prices of the category so far, in q6 of the last ten prices that the winning bidder (not
//! the seller, as in the benchmark) has paid. Auctions close in order of `expires`, those of equal
//! time as they came.
//!
//! Two operators. `winning-bids` (see `winning.rs`, also for when its state goes) keeps each
//! auction with its best bid until it closes. `running-averages` keeps closed auctions until W > the
//! time of the close, so that they count in order, and what the average needs for ever.

mod plain;

use std::cmp::Reverse;
use std::marker::PhantomData;

use alluvium::backend::Layout;
use alluvium::{KeyHash, Map, State, Time};
use alluvium_gadget::by_bytes::ByBytes;
use alluvium_timely::{Changes, Context, KeyBy, Spec, Stateful, WorkerState};
use serde::{Deserialize, Serialize};

use super::q4::AverageRow;
use super::winning::{AuctionOf, ItemOf, Raise, Rules, WINNING, Winner, winning_in};
use super::{Events, Fields, Query, Row};
use crate::nexmark::{Auction, Bid};

pub use plain::{Q4Plain, Q6Plain};

/// q4 of the testbed: the running average of a category.
#[derive(Clone, Copy, Debug)]
pub struct Q4HotStorage;

/// q6 of the testbed: the running average of a bidder's last prices.
#[derive(Clone, Copy, Debug)]
pub struct Q6HotStorage;

/// A bidder and an average.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BidderAverageRow {
    bidder: u64,
    average: i64,
}

impl Row for BidderAverageRow {
    const COLUMNS: &'static [&'static str] = &["bidder", "avg"];

    fn fields(&self) -> Fields {
        vec![Some(self.bidder.to_string()), Some(self.average.to_string())]
    }

    fn digest(&self) -> u64 {
        (self.bidder, self.average).key_hash()
    }
}

/// An auction.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[derive(rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, State)]
struct Lot {
    ordinal: u64,
    category: u64,
    reserve: i64,
}

/// A bid.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[derive(rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, State)]
struct Offer {
    ordinal: u64,
    bidder: u64,
    price: i64,
    date_time: Time,
}

/// The winner of each single auction, told when it closes.
struct Closes;

impl Rules for Closes {
    type Lot = Lot;
    type Bid = Offer;
    type Best = Offer;
    type Rank = (Reverse<i64>, Time, u64);
    type Out = Close;

    fn lot(auction: &Auction, ordinal: u64) -> Lot {
        Lot { ordinal, category: auction.category, reserve: auction.reserve }
    }

    fn bid(bid: &Bid, ordinal: u64) -> Offer {
        Offer { ordinal, bidder: bid.bidder, price: bid.price, date_time: bid.date_time }
    }

    fn time(bid: &Offer) -> Time {
        bid.date_time
    }

    fn counts(auction: &AuctionOf<Self>, bid: &Offer) -> bool {
        let is_open = (auction.date_time..auction.expires).contains(&bid.date_time);
        is_open && bid.price >= auction.lot.reserve
    }

    fn same_group(one: &Lot, other: &Lot) -> bool {
        one.ordinal == other.ordinal
    }

    fn best(bid: &Offer) -> Offer {
        *bid
    }

    fn rank_of_bid(_: &Lot, bid: &Offer) -> Self::Rank {
        (Reverse(bid.price), bid.date_time, bid.ordinal)
    }

    fn rank(lot: &Lot, best: &Offer) -> Self::Rank {
        Self::rank_of_bid(lot, best)
    }

    fn raised(_: Raise<'_, Self>, _: impl FnMut(Close, i64)) {}

    fn over(winner: Winner<'_, Self>, expires: Time, mut out: impl FnMut(Close, i64)) {
        let (Lot { ordinal, category, .. }, Offer { bidder, price, .. }) =
            (*winner.lot, *winner.best);
        let sale = Sale { expires, ordinal, price };
        out(Close { category, bidder, sale }, 1);
    }
}

/// An auction has closed.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Close {
    category: u64,
    bidder: u64,
    sale: Sale,
}

/// What a closed auction brought.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[derive(rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, State)]
struct Sale {
    expires: Time,
    /// Of the auction.
    ordinal: u64,
    price: i64,
}

/// What is averaged by what.
trait Averaging: 'static {
    /// What is kept of the prices so far.
    type Prices: State + Default;
    /// What comes out.
    type Row: Clone + 'static;

    fn key(close: &Close) -> u64;

    /// Adds a price and gives the average.
    fn add(prices: &mut Self::Prices, price: i64) -> i64;

    fn row(key: u64, average: i64) -> Self::Row;
}

/// The sum and the number of prices.
#[derive(Clone, Copy, Debug, Default, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, State)]
struct Sum {
    sum: i128,
    number: u64,
}

struct ByCategory;

impl Averaging for ByCategory {
    type Prices = Sum;
    type Row = AverageRow;

    fn key(close: &Close) -> u64 {
        close.category
    }

    fn add(prices: &mut Sum, price: i64) -> i64 {
        prices.sum += i128::from(price);
        prices.number += 1;
        truncated(prices.sum, prices.number)
    }

    fn row(category: u64, average: i64) -> AverageRow {
        AverageRow { category, average }
    }
}

/// Prices that a bidder's average is of.
const LAST: usize = 10;

struct ByBidder;

impl Averaging for ByBidder {
    type Prices = Vec<i64>;
    type Row = BidderAverageRow;

    fn key(close: &Close) -> u64 {
        close.bidder
    }

    fn add(prices: &mut Vec<i64>, price: i64) -> i64 {
        if prices.len() == LAST {
            prices.remove(0);
        }
        prices.push(price);
        truncated(prices.iter().copied().map(i128::from).sum(), prices.len() as u64)
    }

    fn row(bidder: u64, average: i64) -> BidderAverageRow {
        BidderAverageRow { bidder, average }
    }
}

fn truncated(sum: i128, number: u64) -> i64 {
    // An average of 64-bit numbers is one.
    i64::try_from(sum / i128::from(number.max(1))).unwrap_or(i64::MAX)
}

/// What is kept of a category or bidder.
#[derive(Clone, Debug, Default, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, State)]
struct Running<P> {
    /// Closed auctions that do not count yet.
    waiting: Vec<Sale>,
    prices: P,
}

impl<P> Running<P> {
    /// Counts the auctions that have closed by `at`, in order; tells the average after each.
    fn count<A: Averaging<Prices = P>>(&mut self, at: i64, mut tell: impl FnMut(i64)) {
        let closed = self.waiting.extract_if(.., |sale| sale.expires.0 <= at);
        let mut sales: Vec<_> = closed.collect();
        sales.sort_by_key(|sale| (sale.expires, sale.ordinal));
        sales.into_iter().for_each(|sale| tell(A::add(&mut self.prices, sale.price)));
        if self.waiting.is_empty() {
            self.waiting = Vec::new();
        }
    }
}

/// The state of `running-averages`.
struct Averages<A: Averaging, L: Layout<u64, Running<A::Prices>>> {
    running: Map<u64, Running<A::Prices>, L>,
    alarms: Vec<(Time, u64)>,
    averaging: PhantomData<A>,
}

type Cx<'a, A> = Context<'a, i64, u64, <A as Averaging>::Row>;
type Keyed = (u64, (Close, i64, i64));

impl<A: Averaging, L: Layout<u64, Running<A::Prices>>> Averages<A, L>
where
    Running<A::Prices>: State,
{
    /// Lets closed auctions wait.
    fn apply(&mut self, rows: &mut Vec<Keyed>, context: &mut Cx<'_, A>) -> alluvium::Result<()> {
        let alarms = &mut self.alarms;
        let change = |(key, (close, ..)): &Keyed, running: &mut Running<A::Prices>| {
            if running.waiting.iter().all(|sale| sale.expires != close.sale.expires) {
                alarms.push((close.sale.expires, *key));
            }
            running.waiting.push(close.sale);
        };
        let done = self.running.update_batch(rows, |row| &row.0, |_| Running::default(), change);
        let done = done.map_err(|error| error.leave_rest(rows));
        self.alarms.drain(..).try_for_each(|(at, key)| context.set_timer(key, at)).and(done)
    }

    /// Counts those that no earlier one can come for.
    fn count(
        &mut self,
        due: &mut Vec<(Time, u64)>,
        context: &mut Cx<'_, A>,
    ) -> alluvium::Result<()> {
        let change = |&(at, key): &(Time, u64), running: &mut Running<A::Prices>| {
            running.count::<A>(at.0, |average| context.emit_at(at, A::row(key, average), 1));
        };
        let done = self.running.update_batch(due, |timer| &timer.1, |_| Running::default(), change);
        done.map_err(|error| error.leave_rest(due))
    }
}

fn averages<'scope, A: Averaging, L>(
    events: Events<'scope>,
    state: &WorkerState,
    spec: impl Fn(&str) -> Spec<L>,
) -> alluvium::Result<Changes<'scope, i64, A::Row>>
where
    Running<A::Prices>: State,
    L: Layout<u64, ItemOf<Closes>> + Layout<u64, Running<A::Prices>>,
{
    winning_in::<Closes, L>(events, state, spec(WINNING))?
        .key_by(state, |close: &(Close, i64, i64)| A::key(&close.0))
        .stateful(
            spec("running-averages"),
            |states| {
                let running = states.map("prices")?;
                Ok(Averages::<A, L> { running, alarms: Vec::new(), averaging: PhantomData })
            },
            |averages, rows, context| averages.apply(rows, context),
            Averages::count,
        )
}

/// q4 of the testbed in a layout.
pub(super) fn q4_in<'scope>(
    events: Events<'scope>,
    state: &WorkerState,
    layout: &ByBytes,
) -> alluvium::Result<Changes<'scope, i64, AverageRow>> {
    averages::<ByCategory, _>(events, state, |id| Spec::new(id).layout(layout.clone()))
}

/// q6 of the testbed in a layout.
pub(super) fn q6_in<'scope>(
    events: Events<'scope>,
    state: &WorkerState,
    layout: &ByBytes,
) -> alluvium::Result<Changes<'scope, i64, BidderAverageRow>> {
    averages::<ByBidder, _>(events, state, |id| Spec::new(id).layout(layout.clone()))
}

impl Query for Q4HotStorage {
    type Row = AverageRow;
    const NAME: &'static str = "q4-hotstorage";

    fn build<'scope>(
        events: Events<'scope>,
        state: &WorkerState,
    ) -> alluvium::Result<Changes<'scope, i64, AverageRow>> {
        averages::<ByCategory, _>(events, state, |id| Spec::new(id))
    }
}

impl Query for Q6HotStorage {
    type Row = BidderAverageRow;
    const NAME: &'static str = "q6-hotstorage";

    fn build<'scope>(
        events: Events<'scope>,
        state: &WorkerState,
    ) -> alluvium::Result<Changes<'scope, i64, BidderAverageRow>> {
        averages::<ByBidder, _>(events, state, |id| Spec::new(id))
    }
}
