//! q17: `SELECT auction, DATE_FORMAT(date_time, 'yyyy-MM-dd') AS day, COUNT(*) AS total_bids,
//! COUNT(*) FILTER (WHERE price < 10000) AS rank1_bids,
//! COUNT(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_bids,
//! COUNT(*) FILTER (WHERE price >= 1000000) AS rank3_bids, MIN(price) AS min_price,
//! MAX(price) AS max_price, AVG(price) AS avg_price, SUM(price) AS sum_price
//! FROM bid GROUP BY auction, day`, days in UTC, the average truncated.
//!
//! The figures of each (auction, day) are in `bid-statistics/groups`, for ever: SQL says nothing
//! of when bids for an auction end.

use alluvium::{KeyHash, State, Time};
use alluvium_timely::{Aggregate, Changes, KeyBy, Rolling, Spec, WorkerState};
use serde::{Deserialize, Serialize};

use super::day::{Day, date, day, rank};
use super::{Events, Fields, Query, Row};
use crate::nexmark::Event;
use crate::queries::row_by_row::RowByRow;

/// Statistics of the bids for an auction on a day.
#[derive(Clone, Copy, Debug)]
pub struct Q17;

/// An auction, a day and the figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatisticsRow {
    auction: u64,
    day: Day,
    figures: Figures,
}

impl Row for StatisticsRow {
    const COLUMNS: &'static [&'static str] = &[
        "auction",
        "day",
        "total_bids",
        "rank1_bids",
        "rank2_bids",
        "rank3_bids",
        "min_price",
        "max_price",
        "avg_price",
        "sum_price",
    ];

    fn fields(&self) -> Fields {
        let Figures { bids: [rank1, rank2, rank3], min, max, sum } = self.figures;
        vec![
            Some(self.auction.to_string()),
            Some(date(self.day)),
            Some(self.figures.total().to_string()),
            Some(rank1.to_string()),
            Some(rank2.to_string()),
            Some(rank3.to_string()),
            Some(min.to_string()),
            Some(max.to_string()),
            self.figures.average().map(|average| average.to_string()),
            Some(sum.to_string()),
        ]
    }

    fn digest(&self) -> u64 {
        let Figures { bids, min, max, sum } = self.figures;
        ((self.auction, self.day), bids, (min, max, sum.cast_unsigned())).key_hash()
    }
}

/// What the query sees of a bid.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Price {
    auction: u64,
    date_time: Time,
    price: i64,
}

/// The figures of one auction and day; the others follow from them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[derive(rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, State)]
struct Figures {
    /// By rank.
    bids: [u64; 3],
    min: i64,
    max: i64,
    sum: i128,
}

impl Figures {
    fn total(&self) -> u64 {
        self.bids.iter().sum()
    }

    fn average(&self) -> Option<i128> {
        self.sum.checked_div(self.total().into())
    }
}

/// The figures of prices.
struct Statistics;

impl Aggregate<Price> for Statistics {
    type Acc = Figures;
    type Out = Figures;

    fn init(&self) -> Figures {
        Figures { bids: [0; 3], min: i64::MAX, max: i64::MIN, sum: 0 }
    }

    fn add(&self, figures: &mut Figures, &Price { price, .. }: &Price) {
        figures.bids[rank(price)] += 1;
        figures.min = figures.min.min(price);
        figures.max = figures.max.max(price);
        figures.sum += i128::from(price);
    }

    fn merge(&self, figures: &mut Figures, later: &Figures) {
        figures.bids.iter_mut().zip(later.bids).for_each(|(bids, more)| *bids += more);
        figures.min = figures.min.min(later.min);
        figures.max = figures.max.max(later.max);
        figures.sum += later.sum;
    }

    fn out(&self, figures: &Figures) -> Option<Figures> {
        (figures.total() > 0).then_some(*figures)
    }
}

impl Query for Q17 {
    type Row = StatisticsRow;
    const NAME: &'static str = "q17";

    fn build<'scope>(
        events: Events<'scope>,
        state: &WorkerState,
    ) -> alluvium::Result<Changes<'scope, i64, StatisticsRow>> {
        let prices = events.flat_map(|record| match record.event {
            Event::Bid(bid) => {
                Some(Price { auction: bid.auction, date_time: bid.date_time, price: bid.price })
            }
            _ => None,
        });
        let figures = prices
            .key_by(state, |bid: &Price| (bid.auction, day(bid.date_time)))
            .rolling(Spec::new("bid-statistics"), Statistics)?;
        Ok(figures.map(|(((auction, day), figures), time, diff)| {
            (StatisticsRow { auction, day, figures }, time, diff)
        }))
    }
}
