//! q0: `SELECT auction, bidder, price, date_time, extra FROM bid`.

use alluvium::KeyHash;
use alluvium::types::hash_bytes;
use alluvium_timely::{Changes, WorkerState};

use super::{Events, Fields, Query, Row, bids};
use crate::nexmark::Bid;

/// Passes bids through: what the stream costs without a query.
#[derive(Clone, Copy, Debug)]
pub struct Q0;

/// A bid without channel and url.
#[derive(Clone, Debug)]
pub struct BidRow(Bid);

impl Row for BidRow {
    const COLUMNS: &'static [&'static str] = &["auction", "bidder", "price", "date_time", "extra"];

    fn fields(&self) -> Fields {
        let Bid { auction, bidder, price, date_time, .. } = &self.0;
        vec![
            Some(auction.to_string()),
            Some(bidder.to_string()),
            Some(price.to_string()),
            Some(date_time.as_ms().to_string()),
            Some(self.0.extra().into_owned()),
        ]
    }

    fn digest(&self) -> u64 {
        let Bid { auction, bidder, price, date_time, .. } = &self.0;
        let numbers = (*auction, *bidder, *price, *date_time);
        (numbers, hash_bytes(self.0.extra().as_bytes())).key_hash()
    }
}

impl Query for Q0 {
    type Row = BidRow;
    const NAME: &'static str = "q0";

    fn build<'scope>(
        events: Events<'scope>,
        _: &WorkerState,
    ) -> alluvium::Result<Changes<'scope, i64, BidRow>> {
        Ok(bids(events, |bid| Some(BidRow(bid))))
    }
}
