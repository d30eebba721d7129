//! q2: `SELECT auction, price FROM bid WHERE MOD(auction, 123) = 0`.

use alluvium::KeyHash;
use alluvium_timely::{Changes, WorkerState};

use super::{Events, Fields, Query, Row, bids};

/// Selects the bids on some auctions.
#[derive(Clone, Copy, Debug)]
pub struct Q2;

/// An auction and a price offered for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PriceRow {
    auction: u64,
    price: i64,
}

const SELECTED: u64 = 123;

impl Row for PriceRow {
    const COLUMNS: &'static [&'static str] = &["auction", "price"];

    fn fields(&self) -> Fields {
        vec![Some(self.auction.to_string()), Some(self.price.to_string())]
    }

    fn digest(&self) -> u64 {
        (self.auction, self.price).key_hash()
    }
}

impl Query for Q2 {
    type Row = PriceRow;
    const NAME: &'static str = "q2";

    fn build<'scope>(
        events: Events<'scope>,
        _: &WorkerState,
    ) -> alluvium::Result<Changes<'scope, i64, PriceRow>> {
        Ok(bids(events, |bid| {
            let row = PriceRow { auction: bid.auction, price: bid.price };
            bid.auction.is_multiple_of(SELECTED).then_some(row)
        }))
    }
}
