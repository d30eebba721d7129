//! q13: `SELECT B.auction, B.bidder, B.price, B.date_time, S.value FROM bid B JOIN side_input S ON
//! mod(B.auction, 10000) = S.key`.
//!
//! The side input is bounded and does not change: a table that all workers of a process share. Bids
//! stay where they are, and there is no state.

use alluvium::config::ByteSize;
use alluvium::{KeyHash, Time};
use alluvium_timely::{Changes, KeyBy, LookupJoin, NodeConfig, TableLoader, WorkerState};
use serde::{Deserialize, Serialize};

use super::{Events, Fields, Query, Row, SideTable};
use crate::nexmark::Event;
use crate::queries::row_by_row::RowByRow;

/// Adds to each bid what the side input says.
#[derive(Clone, Copy, Debug)]
pub struct Q13;

/// A bid and the value of its key.
#[derive(Clone, Debug)]
pub struct SideRow {
    bid: Offer,
    value: i64,
}

/// What the query sees of a bid.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Offer {
    auction: u64,
    bidder: u64,
    price: i64,
    date_time: Time,
}

/// The name of the shared table.
const TABLE: &str = "side-input";
/// Auctions with the same remainder have the same value.
const KEYS: u64 = 10_000;

impl Row for SideRow {
    const COLUMNS: &'static [&'static str] = &["auction", "bidder", "price", "date_time", "value"];

    fn fields(&self) -> Fields {
        let Offer { auction, bidder, price, date_time } = self.bid;
        vec![
            Some(auction.to_string()),
            Some(bidder.to_string()),
            Some(price.to_string()),
            Some(date_time.as_ms().to_string()),
            Some(self.value.to_string()),
        ]
    }

    fn digest(&self) -> u64 {
        let Offer { auction, bidder, price, date_time } = self.bid;
        ((auction, bidder, price, date_time), self.value).key_hash()
    }
}

impl Query for Q13 {
    type Row = SideRow;
    const NAME: &'static str = "q13";

    fn tables(node: NodeConfig, side_input: &SideTable) -> crate::Result<NodeConfig> {
        let mut rows = 0;
        side_input.visit(|_, _| {
            rows += 1;
            Ok(())
        })?;
        let memory = ByteSize(TableLoader::<u64, i64>::bytes_for(rows));
        let side_input = side_input.clone();
        Ok(node.table(TABLE, memory, move |table: &mut TableLoader<u64, i64>| {
            Ok(side_input.visit(|key, value| Ok(table.insert(key, value)?))?)
        }))
    }

    fn build<'scope>(
        events: Events<'scope>,
        state: &WorkerState,
    ) -> alluvium::Result<Changes<'scope, i64, SideRow>> {
        let table = state.table::<u64, i64>(TABLE)?;
        let bids = events.flat_map(|record| match record.event {
            Event::Bid(bid) => {
                let crate::nexmark::Bid { auction, bidder, price, date_time, .. } = bid;
                Some(Offer { auction, bidder, price, date_time })
            }
            _ => None,
        });
        let keyed = bids.key_by(state, |bid: &Offer| bid.auction % KEYS);
        Ok(keyed.lookup_join_shared(&table, |_, bid, value| {
            Some(SideRow { bid: *bid, value: *value? })
        }))
    }
}
