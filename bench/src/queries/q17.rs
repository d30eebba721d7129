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
use timely::dataflow::operators::vec::Map as _;

use super::{Events, Fields, Query, Row};
use crate::nexmark::Event;

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

/// Days since 1970.
type Day = i64;

const DAY_NS: i64 = 86_400_000_000_000;

/// The prices from which a bid has the second and the third rank.
const RANKS: [i64; 2] = [10_000, 1_000_000];

/// `yyyy-MM-dd`, of the Gregorian calendar.
///
/// Reckoned in years that begin in March, so that the leap day is the last, from 0000-03-01, in
/// eras of 400 years, after Howard Hinnant's `civil_from_days`.
fn date(day: Day) -> String {
    let days = day + 719_468;
    let (era, of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let of_month = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{of_month:02}")
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
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, State,
)]
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
        figures.bids[RANKS.iter().filter(|&&from| price >= from).count()] += 1;
        figures.min = figures.min.min(price);
        figures.max = figures.max.max(price);
        figures.sum += i128::from(price);
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
            .key_by(state, |bid: &Price| (bid.auction, bid.date_time.0.div_euclid(DAY_NS)))
            .rolling(Spec::new("bid-statistics"), Statistics)?;
        Ok(figures.map(|(((auction, day), figures), time, diff)| {
            (StatisticsRow { auction, day, figures }, time, diff)
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (day, expected) in [
            (0, "1970-01-01"),
            (-1, "1969-12-31"),
            (59, "1970-03-01"),
            (11_016, "2000-02-29"),
            (16_631, "2015-07-15"),
            (18_321, "2020-02-29"),
            (47_540, "2100-02-28"),
            (47_541, "2100-03-01"),
            (-106_752, "1677-09-21"),
        ] {
            assert_eq!(date(day), expected);
        }
    }
}
