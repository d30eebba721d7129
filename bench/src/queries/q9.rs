//! q9: `SELECT id, item_name, description, initial_bid, reserve, date_time, expires, seller,
//! category, extra, auction, bidder, price, bid_date_time, bid_extra FROM (SELECT A.*, B.auction,
//! B.bidder, B.price, B.date_time AS bid_date_time, B.extra AS bid_extra, ROW_NUMBER() OVER
//! (PARTITION BY A.id ORDER BY B.price DESC, B.date_time ASC) AS rownum FROM auction A, bid B
//! WHERE A.id = B.auction AND B.date_time BETWEEN A.date_time AND A.expires) WHERE rownum <= 1`:
//! of bids of equal price and time the one that came first, and of auctions that it could be for.
//!
//! One operator, `winning-bids`; see `winning.rs`, also for when its state goes. A row of the
//! result stays when the state behind it has gone.

use std::cmp::Reverse;

use alluvium::types::hash_bytes;
use alluvium::{KeyHash, State, Time};
use alluvium_timely::{Changes, WorkerState};
use serde::{Deserialize, Serialize};

use super::whole::WholeAuction;
use super::winning::{Raise, Rules, Winner, winning};
use super::{Events, Fields, Query, Row};
use crate::nexmark::{Auction, Bid};

/// Each auction with the bid that wins it.
#[derive(Clone, Copy, Debug)]
pub struct Q9;

/// An auction and its winning bid.
#[derive(Clone, Debug)]
pub struct WinningRow {
    auction: WholeAuction,
    bid: WinningBid,
}

/// An auction with its place in the stream.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[derive(rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, State)]
struct Lot {
    ordinal: u64,
    auction: WholeAuction,
}

/// What the result shows of a bid, with its place in the stream.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[derive(rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, State)]
struct WinningBid {
    ordinal: u64,
    bidder: u64,
    price: i64,
    date_time: Time,
    extra: String,
}

impl Row for WinningRow {
    const COLUMNS: &'static [&'static str] = &[
        "id",
        "item",
        "description",
        "initialBid",
        "reserve",
        "date_time",
        "expires",
        "seller",
        "category",
        "extra",
        "auction",
        "bidder",
        "price",
        "bid_datetime",
        "bid_extra",
    ];

    fn fields(&self) -> Fields {
        let mut fields = self.auction.fields();
        fields.extend([
            Some(self.auction.id.to_string()),
            Some(self.bid.bidder.to_string()),
            Some(self.bid.price.to_string()),
            Some(self.bid.date_time.as_ms().to_string()),
            Some(self.bid.extra.clone()),
        ]);
        fields
    }

    fn digest(&self) -> u64 {
        let WinningBid { bidder, price, date_time, extra, .. } = &self.bid;
        let extra = hash_bytes(extra.as_bytes());
        (self.auction.digest(), (*bidder, *price, *date_time), extra).key_hash()
    }
}

/// The winner of each auction id.
struct ById;

impl Rules for ById {
    type Lot = Lot;
    type Bid = WinningBid;
    type Best = WinningBid;
    type Rank = (Reverse<i64>, Time, u64, u64);
    type Out = WinningRow;

    fn lot(auction: &Auction, ordinal: u64) -> Lot {
        Lot { ordinal, auction: auction.into() }
    }

    fn bid(bid: &Bid, ordinal: u64) -> WinningBid {
        let &Bid { bidder, price, date_time, .. } = bid;
        WinningBid { ordinal, bidder, price, date_time, extra: bid.extra().into_owned() }
    }

    fn time(bid: &WinningBid) -> Time {
        bid.date_time
    }

    fn same_group(_: &Lot, _: &Lot) -> bool {
        true
    }

    fn best(bid: &WinningBid) -> WinningBid {
        bid.clone()
    }

    fn rank_of_bid(lot: &Lot, bid: &WinningBid) -> Self::Rank {
        Self::rank(lot, bid)
    }

    fn rank(lot: &Lot, best: &WinningBid) -> Self::Rank {
        (Reverse(best.price), best.date_time, best.ordinal, lot.ordinal)
    }

    fn raised(raise: Raise<'_, Self>, mut out: impl FnMut(WinningRow, i64)) {
        if !raise.is_new() {
            return;
        }
        let row = |winner: Winner<'_, Self>| WinningRow {
            auction: winner.lot.auction.clone(),
            bid: winner.best.clone(),
        };
        if let Some(from) = raise.from {
            out(row(from), -1);
        }
        out(row(raise.to), 1);
    }
}

impl Query for Q9 {
    type Row = WinningRow;
    const NAME: &'static str = "q9";

    fn build<'scope>(
        events: Events<'scope>,
        state: &WorkerState,
    ) -> alluvium::Result<Changes<'scope, i64, WinningRow>> {
        winning::<ById>(events, state)
    }
}
