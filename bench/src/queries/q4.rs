//! q4: `SELECT Q.category, AVG(Q.final) FROM (SELECT MAX(B.price) AS final, A.category
//! FROM auction A, bid B WHERE A.id = B.auction AND B.date_time BETWEEN A.date_time AND A.expires
//! GROUP BY A.id, A.category) Q GROUP BY Q.category`, the average truncated.
//!
//! Two operators. `winning-bids` (see `winning.rs`, also for when its state goes) emits how the
//! highest price of an (id, category) changes. `category-averages` keeps sum and number of those
//! per category, for ever: what a closed auction added to its category's average stays.

use std::cmp::Reverse;

use alluvium::{AnyLayout, Heap, KeyHash, Map, State, Store, Time};
use alluvium_timely::{Aggregate, Changes, KeyBy, Rolling, Spec, WorkerState};
use serde::{Deserialize, Serialize};

use super::winning::{self, Rules, StraightWinning, winning};
use super::{Events, Fields, Query, Row, Straight};
use crate::nexmark::{Auction, Bid, Record};
use crate::queries::row_by_row::RowByRow;

/// The average price that the items of a category were sold for.
#[derive(Clone, Copy, Debug)]
pub struct Q4;

/// A category and its average.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AverageRow {
    pub(super) category: u64,
    pub(super) average: i64,
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

/// The highest price of an (auction id, category) was `from`, if it had a bid, and is `to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Raise {
    category: u64,
    from: Option<i64>,
    to: i64,
}

/// What is kept of a bid.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[derive(rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, State)]
pub(super) struct Price {
    pub(super) date_time: Time,
    pub(super) price: i64,
}

impl From<&Bid> for Price {
    fn from(bid: &Bid) -> Self {
        Self { date_time: bid.date_time, price: bid.price }
    }
}

/// The highest price of each (auction id, category).
struct ByCategory;

impl Rules for ByCategory {
    type Lot = u64;
    type Bid = Price;
    type Best = i64;
    type Rank = Reverse<i64>;
    type Out = Raise;

    fn lot(auction: &Auction, _: u64) -> u64 {
        auction.category
    }

    fn bid(bid: &Bid, _: u64) -> Price {
        bid.into()
    }

    fn time(bid: &Price) -> Time {
        bid.date_time
    }

    fn same_group(one: &u64, other: &u64) -> bool {
        one == other
    }

    fn best(bid: &Price) -> i64 {
        bid.price
    }

    fn rank_of_bid(_: &u64, bid: &Price) -> Reverse<i64> {
        Reverse(bid.price)
    }

    fn rank(_: &u64, price: &i64) -> Reverse<i64> {
        Reverse(*price)
    }

    fn raised(raise: winning::Raise<'_, Self>, mut out: impl FnMut(Raise, i64)) {
        if raise.is_new() {
            let from = raise.from.map(|from| *from.best);
            out(Raise { category: *raise.to.lot, from, to: *raise.to.best }, 1);
        }
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

    fn merge(&self, prices: &mut Prices, later: &Prices) {
        prices.sum += later.sum;
        prices.auctions += later.auctions;
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
        let raises = winning::<ByCategory>(events, state)?;
        let averages = raises
            .key_by(state, |raise: &(Raise, i64, i64)| raise.0.category)
            .rolling(Spec::new("category-averages").layout(Heap::new()), Average)?;
        Ok(averages.map(|((category, average), time, diff)| {
            (AverageRow { category, average }, time, diff)
        }))
    }
}

/// [`Q4`] without a dataflow.
pub struct StraightQ4 {
    winning: StraightWinning<ByCategory>,
    averages: Map<u64, Prices>,
}

impl std::fmt::Debug for StraightQ4 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StraightQ4").finish_non_exhaustive()
    }
}

impl Straight for StraightQ4 {
    type Query = Q4;

    fn open(store: &Store) -> alluvium::Result<Self> {
        let heap = AnyLayout::from(Heap::new());
        let averages = store.map("category-averages/groups").layout(heap).open()?;
        Ok(Self { winning: StraightWinning::open(store)?, averages })
    }

    fn apply(
        &mut self,
        events: Vec<Record>,
        mut change: impl FnMut(AverageRow, i64),
    ) -> alluvium::Result<()> {
        self.winning.apply(&events)?;
        let raises: Vec<(Raise, i64, i64)> =
            self.winning.emitted().map(|(raise, diff)| (raise, 0, diff)).collect();
        self.averages.update_batch(
            &raises,
            |raise| &raise.0.category,
            |_| Average.init(),
            |raise, prices| {
                let category = raise.0.category;
                Average.fold(prices, raise, |average, diff| {
                    change(AverageRow { category, average }, diff);
                });
            },
        )?;
        Ok(())
    }

    fn advance(&mut self, watermark: Time) -> alluvium::Result<()> {
        self.winning.advance(watermark)
    }
}
