//! q14: `SELECT auction, bidder, 0.908 * price AS price, CASE WHEN HOUR(date_time) >= 8 AND
//! HOUR(date_time) <= 18 THEN 'dayTime' WHEN HOUR(date_time) <= 6 OR HOUR(date_time) >= 20 THEN
//! 'nightTime' ELSE 'otherTime' END AS bidTimeType, date_time, extra, count_char(extra, 'c') AS
//! c_counts FROM bid WHERE 0.908 * price > 1000000 AND 0.908 * price < 50000000`, hours in UTC.

use alluvium::types::hash_bytes;
use alluvium::{KeyHash, Time};
use alluvium_timely::{Changes, WorkerState};

use super::day::minute_of_day;
use super::q1::{converted, decimal};
use super::{Events, Fields, Query, Row, bids};
use crate::nexmark::Bid;

/// Selects bids by their price in euros, and says at which time of day each was made.
#[derive(Clone, Copy, Debug)]
pub struct Q14;

/// A bid in euros, with its time of day.
#[derive(Clone, Debug)]
pub struct TimedRow {
    bid: Bid,
    price_thousandths: i128,
}

/// Prices that are selected lie between these, in thousandths.
const PRICES: [i128; 2] = [1_000_000_000, 50_000_000_000];

/// The name of a time's part of its day.
fn time_type(at: Time) -> &'static str {
    match minute_of_day(at) / 60 {
        8..=18 => "dayTime",
        0..=6 | 20.. => "nightTime",
        _ => "otherTime",
    }
}

/// How many `c` there are.
fn c_count(text: &str) -> usize {
    text.bytes().filter(|byte| *byte == b'c').count()
}

impl Row for TimedRow {
    const COLUMNS: &'static [&'static str] =
        &["auction", "bidder", "price", "bidTimeType", "date_time", "extra", "c_counts"];

    fn fields(&self) -> Fields {
        let Bid { auction, bidder, date_time, .. } = &self.bid;
        let extra = self.bid.extra();
        vec![
            Some(auction.to_string()),
            Some(bidder.to_string()),
            Some(decimal(self.price_thousandths)),
            Some(time_type(*date_time).to_owned()),
            Some(date_time.as_ms().to_string()),
            Some(extra.to_string()),
            Some(c_count(&extra).to_string()),
        ]
    }

    fn digest(&self) -> u64 {
        let Bid { auction, bidder, date_time, .. } = &self.bid;
        let extra = self.bid.extra();
        let numbers = (*auction, *bidder, self.price_thousandths.cast_unsigned(), *date_time);
        let texts = (hash_bytes(extra.as_bytes()), hash_bytes(time_type(*date_time).as_bytes()));
        (numbers, texts, c_count(&extra) as u64).key_hash()
    }
}

impl Query for Q14 {
    type Row = TimedRow;
    const NAME: &'static str = "q14";

    fn build<'scope>(
        events: Events<'scope>,
        _: &WorkerState,
    ) -> alluvium::Result<Changes<'scope, i64, TimedRow>> {
        Ok(bids(events, |bid| {
            let price_thousandths = converted(bid.price);
            let [above, below] = PRICES;
            let is_selected = above < price_thousandths && price_thousandths < below;
            is_selected.then_some(TimedRow { bid, price_thousandths })
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hours_have_their_names_at_both_ends() {
        for (hour, expected) in [
            (0, "nightTime"),
            (6, "nightTime"),
            (7, "otherTime"),
            (8, "dayTime"),
            (18, "dayTime"),
            (19, "otherTime"),
            (20, "nightTime"),
            (23, "nightTime"),
        ] {
            for ms in [hour * 3_600_000, (hour + 1) * 3_600_000 - 1] {
                assert_eq!(time_type(Time::from_ms(ms)), expected, "{ms} ms");
            }
        }
        assert_eq!(time_type(Time::from_ms(-1)), "nightTime");
    }
}
