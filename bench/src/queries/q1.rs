//! q1: `SELECT auction, bidder, 0.908 * price AS price, date_time, extra FROM bid`.
//!
//! The product is an exact decimal with three places: an integer number of thousandths.

use alluvium::KeyHash;
use alluvium::types::hash_bytes;
use alluvium_timely::{Changes, WorkerState};

use super::{Events, Fields, Query, Row, bids};
use crate::nexmark::Bid;

/// Converts prices from dollars to euros.
#[derive(Clone, Copy, Debug)]
pub struct Q1;

/// A bid in euros.
#[derive(Clone, Debug)]
pub struct ConvertedRow {
    bid: Bid,
    price_thousandths: i128,
}

const RATE_THOUSANDTHS: i128 = 908;

/// A price in thousandths of euros.
pub(super) fn converted(price: i64) -> i128 {
    RATE_THOUSANDTHS * i128::from(price)
}

/// A number of thousandths as a decimal without trailing zeros.
pub(super) fn decimal(thousandths: i128) -> String {
    let sign = if thousandths < 0 { "-" } else { "" };
    let (whole, rest) = (thousandths.unsigned_abs() / 1_000, thousandths.unsigned_abs() % 1_000);
    let text = format!("{sign}{whole}.{rest:03}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

impl Row for ConvertedRow {
    const COLUMNS: &'static [&'static str] = &["auction", "bidder", "price", "date_time", "extra"];

    fn fields(&self) -> Fields {
        let Bid { auction, bidder, date_time, .. } = &self.bid;
        vec![
            Some(auction.to_string()),
            Some(bidder.to_string()),
            Some(decimal(self.price_thousandths)),
            Some(date_time.as_ms().to_string()),
            Some(self.bid.extra().into_owned()),
        ]
    }

    fn digest(&self) -> u64 {
        let Bid { auction, bidder, date_time, .. } = &self.bid;
        let price = self.price_thousandths.cast_unsigned();
        let numbers = (*auction, *bidder, price, *date_time);
        (numbers, hash_bytes(self.bid.extra().as_bytes())).key_hash()
    }
}

impl Query for Q1 {
    type Row = ConvertedRow;
    const NAME: &'static str = "q1";

    fn build<'scope>(
        events: Events<'scope>,
        _: &WorkerState,
    ) -> alluvium::Result<Changes<'scope, i64, ConvertedRow>> {
        Ok(bids(events, |bid| {
            let price_thousandths = converted(bid.price);
            Some(ConvertedRow { bid, price_thousandths })
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_are_exact_and_trimmed() {
        for (price, expected) in [
            (80, "72.64"),
            (100, "90.8"),
            (1_000, "908"),
            (1, "0.908"),
            (0, "0"),
            (-1, "-0.908"),
            (99_999_999, "90799999.092"),
            (i64::MAX, "8374821809464136432.756"),
        ] {
            assert_eq!(decimal(converted(price)), expected);
        }
    }
}
