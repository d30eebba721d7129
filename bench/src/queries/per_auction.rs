//! What q101 to q105 fold of auctions and bids, per auction id and for ever.
//!
//! SQL bounds none of these queries in time: there can always be a further bid, and a further
//! auction of any id, which is for the bids that came before it.

use alluvium::{Map, State};
use alluvium_timely::{Changes, KeyBy, Spec, Stateful, WorkerState};
use serde::{Deserialize, Serialize};

use super::Events;
use crate::nexmark::{Auction, Bid, Event, Record};
use crate::queries::row_by_row::RowByRow;

/// A row that concerns an auction, with its place in the stream.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Entry {
    pub(super) ordinal: u64,
    pub(super) row: TableRow,
}

/// A row of one of the two tables.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum TableRow {
    Auction(Auction),
    Bid(Bid),
}

impl Entry {
    fn of(Record { ordinal, event }: Record) -> Option<Self> {
        let row = match event {
            Event::Auction(auction) => TableRow::Auction(auction),
            Event::Bid(bid) => TableRow::Bid(bid),
            Event::Person(_) => return None,
        };
        Some(Self { ordinal, row })
    }

    /// The auction's id.
    pub(super) fn auction_id(&self) -> u64 {
        match &self.row {
            TableRow::Auction(auction) => auction.id,
            TableRow::Bid(bid) => bid.auction,
        }
    }
}

/// Calls `fold` for each auction and bid with what is kept of the auction id, in the state
/// `spec/auctions`, and with a function that emits changes.
///
/// # Errors
/// The state cannot be opened.
pub(super) fn per_auction<'scope, S: State + Default, R: Clone + 'static>(
    events: Events<'scope>,
    state: &WorkerState,
    spec: Spec,
    fold: impl Fn(&Entry, &mut S, &mut dyn FnMut(R, i64)) + 'static,
) -> alluvium::Result<Changes<'scope, i64, R>> {
    events.flat_map(Entry::of).key_by(state, Entry::auction_id).stateful(
        spec,
        |states| states.map("auctions"),
        move |auctions: &mut Map<u64, S>, rows, context| {
            let change = |(_, entry): &(u64, Entry), kept: &mut S| {
                fold(entry, kept, &mut |row, diff| context.emit(row, diff));
            };
            let done = auctions.update_batch(rows, |row| &row.0, |_| S::default(), change);
            done.map_err(|error| error.leave_rest(rows))
        },
        |_, _, _| Ok(()),
    )
}
