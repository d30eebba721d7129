//! The queries as SQL (or, for some, the testbed) defines them, over all events at once: no store,
//! no Timely, no time.

mod counted;
pub mod days;
mod plain;
mod ranked;
pub mod testbed_windows;
pub mod windows;
mod winners;

use std::collections::BTreeMap;

use alluvium_bench::nexmark::{Auction, Bid, Event, Person};
use alluvium_bench::queries::{Fields, Query};

use crate::run::Rows;

/// The three tables, each in the order in which its rows arrived: that of their ordinals.
#[derive(Default)]
pub struct Tables {
    people: Vec<Person>,
    auctions: Vec<Auction>,
    bids: Vec<Bid>,
}

impl Tables {
    /// Sorts events into their tables.
    pub fn of(events: impl IntoIterator<Item = Event>) -> Self {
        let mut tables = Self::default();
        for event in events {
            match event {
                Event::Person(person) => tables.people.push(person),
                Event::Auction(auction) => tables.auctions.push(auction),
                Event::Bid(bid) => tables.bids.push(bid),
            }
        }
        tables
    }

    /// The bids for each auction id, with their places in the table. What follows is a nested
    /// loop but for this, to be done this year.
    fn bids_by_auction(&self) -> BTreeMap<u64, Vec<(usize, &Bid)>> {
        let mut bids: BTreeMap<u64, Vec<(usize, &Bid)>> = BTreeMap::new();
        for (place, bid) in self.bids.iter().enumerate() {
            bids.entry(bid.auction).or_default().push((place, bid));
        }
        bids
    }
}

/// A query with its slow, plain definition.
pub trait Oracle: Query {
    /// The result over all events.
    fn oracle(tables: &Tables) -> Rows;
}

/// Says which plain function is the definition of a query.
macro_rules! oracles {
    ($($query:ident: $model:ident),+) => {$(
        impl super::Oracle for $query {
            fn oracle(tables: &Tables) -> Rows {
                $model(tables)
            }
        }
    )+};
}

use oracles;

fn row<const N: usize>(fields: [String; N]) -> (Fields, i64) {
    (fields.map(Some).into(), 1)
}

/// All columns of a bid.
fn bid_fields(bid: &Bid) -> Fields {
    let fields = [
        bid.auction.to_string(),
        bid.bidder.to_string(),
        bid.price.to_string(),
        bid.channel().to_string(),
        bid.url().to_string(),
        bid.date_time.as_ms().to_string(),
        bid.extra().to_string(),
    ];
    fields.map(Some).into()
}

/// All columns of an auction.
fn auction_fields(auction: &Auction) -> Fields {
    let fields = [
        auction.id.to_string(),
        auction.item_name().to_string(),
        auction.description().to_string(),
        auction.initial_bid.to_string(),
        auction.reserve.to_string(),
        auction.date_time.as_ms().to_string(),
        auction.expires.as_ms().to_string(),
        auction.seller.to_string(),
        auction.category.to_string(),
        auction.extra().to_string(),
    ];
    fields.map(Some).into()
}
