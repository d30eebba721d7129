//! q101: `SELECT A.id AS auction_id, A.item_name AS auction_item_name,
//! B.max_price AS current_highest_bid FROM auction A LEFT OUTER JOIN (SELECT auction,
//! MAX(price) AS max_price FROM bid GROUP BY auction) B ON A.id = B.auction`: NULL for an auction
//! without bids.
//!
//! Per auction id, `highest-bids/auctions` has the names of its auctions and the highest price,
//! for ever.

use alluvium::types::hash_bytes;
use alluvium::{KeyHash, State};
use alluvium_timely::{Changes, Spec, WorkerState};

use super::per_auction::{Entry, TableRow, per_auction};
use super::{Events, Fields, Query, Row};

/// Each auction with the highest bid for it.
#[derive(Clone, Copy, Debug)]
pub struct Q101;

/// An auction and a price.
#[derive(Clone, Debug)]
pub struct HighestRow {
    id: u64,
    item_name: String,
    highest: Option<i64>,
}

impl Row for HighestRow {
    const COLUMNS: &'static [&'static str] =
        &["auction_id", "auction_item_name", "current_highest_bid"];

    fn fields(&self) -> Fields {
        let highest = self.highest.map(|price| price.to_string());
        vec![Some(self.id.to_string()), Some(self.item_name.clone()), highest]
    }

    fn digest(&self) -> u64 {
        let highest = self.highest.map_or((0, 0), |price| (1, price));
        (self.id, hash_bytes(self.item_name.as_bytes()), highest).key_hash()
    }
}

/// What is kept of an auction id.
#[derive(Clone, Debug, Default, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, State)]
struct Highest {
    item_names: Vec<String>,
    price: Option<i64>,
}

fn fold(entry: &Entry, kept: &mut Highest, emit: &mut dyn FnMut(HighestRow, i64)) {
    let id = entry.auction_id();
    let mut emit = |item_name: &String, highest, diff| {
        emit(HighestRow { id, item_name: item_name.clone(), highest }, diff);
    };
    match &entry.row {
        TableRow::Auction(auction) => {
            let item_name = auction.item_name().into_owned();
            emit(&item_name, kept.price, 1);
            kept.item_names.push(item_name);
        }
        TableRow::Bid(bid) if kept.price.is_none_or(|highest| highest < bid.price) => {
            for item_name in &kept.item_names {
                emit(item_name, kept.price, -1);
                emit(item_name, Some(bid.price), 1);
            }
            kept.price = Some(bid.price);
        }
        TableRow::Bid(_) => {}
    }
}

impl Query for Q101 {
    type Row = HighestRow;
    const NAME: &'static str = "q101";

    fn build<'scope>(
        events: Events<'scope>,
        state: &WorkerState,
    ) -> alluvium::Result<Changes<'scope, i64, HighestRow>> {
        per_auction(events, state, Spec::new("highest-bids"), fold)
    }
}
