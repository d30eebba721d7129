//! q20: `SELECT B.auction, B.bidder, B.price, B.channel, B.url, B.date_time, B.extra, A.item_name,
//! A.description, A.initial_bid, A.reserve, A.date_time, A.expires, A.seller, A.category, A.extra
//! FROM bid B JOIN auction A ON B.auction = A.id WHERE A.category = 10`.
//!
//! Both sides are kept for ever, as SQL bounds neither in time and an auction of any id may still
//! come: all bids by auction in `expanded-bids/left`, auctions of the category by id in
//! `expanded-bids/right`.

use alluvium::{KeyHash, Store};
use alluvium_timely::{Changes, Join, JoinSides, KeyBy, Spec, WorkerState};
use timely::container::buffer::default_capacity;
use timely::dataflow::operators::core::OkErr;

use super::whole::{WholeAuction, WholeBid};
use super::{Events, Fields, Query, Row, Straight};
use crate::nexmark::{Auction, Bid, Event, Record};
use crate::queries::row_by_row::RowByRow;

/// Bids with the auctions of a category that they are for.
#[derive(Clone, Copy, Debug)]
pub struct Q20;

/// A bid and its auction.
#[derive(Clone, Debug)]
pub struct ExpandedRow {
    bid: WholeBid,
    auction: WholeAuction,
}

const CATEGORY: u64 = 10;

impl Row for ExpandedRow {
    const COLUMNS: &'static [&'static str] = &[
        "auction",
        "bidder",
        "price",
        "channel",
        "url",
        "date_time",
        "extra",
        "itemName",
        "description",
        "initialBid",
        "reserve",
        "ADateTime",
        "expires",
        "seller",
        "category",
        "Aextra",
    ];

    fn fields(&self) -> Fields {
        let mut fields = self.bid.fields();
        // The id is the bid's auction.
        fields.extend(self.auction.fields().into_iter().skip(1));
        fields
    }

    fn digest(&self) -> u64 {
        (self.bid.digest(), self.auction.digest()).key_hash()
    }
}

impl ExpandedRow {
    fn pair(_: &u64, bid: &WholeBid, auction: &WholeAuction) -> Self {
        Self { bid: bid.clone(), auction: auction.clone() }
    }
}

/// What the query sees of an event.
fn relevant(event: Event) -> Option<Result<Bid, Auction>> {
    match event {
        Event::Bid(bid) => Some(Ok(bid)),
        Event::Auction(auction) if auction.category == CATEGORY => Some(Err(auction)),
        _ => None,
    }
}

impl Query for Q20 {
    type Row = ExpandedRow;
    const NAME: &'static str = "q20";

    fn build<'scope>(
        events: Events<'scope>,
        state: &WorkerState,
    ) -> alluvium::Result<Changes<'scope, i64, ExpandedRow>> {
        let (bids, auctions) = events.flat_map(|record| relevant(record.event)).ok_err(|side| side);
        let bids = bids.map(|bid| WholeBid::from(&bid));
        let auctions = auctions.map(|auction| WholeAuction::from(&auction));
        let auctions = auctions.key_by(state, |auction: &WholeAuction| auction.id);
        bids.key_by(state, |bid: &WholeBid| bid.auction).join(
            auctions,
            Spec::new("expanded-bids"),
            ExpandedRow::pair,
        )
    }
}

/// [`Q20`] without a dataflow.
#[derive(Debug)]
pub struct StraightQ20 {
    sides: JoinSides<u64, WholeBid, WholeAuction, ExpandedRow>,
    bids: Vec<(u64, WholeBid)>,
    auctions: Vec<(u64, WholeAuction)>,
}

impl Straight for StraightQ20 {
    type Query = Q20;

    fn open(store: &Store) -> alluvium::Result<Self> {
        let bids = store.map("expanded-bids/left").open()?;
        let auctions = store.map("expanded-bids/right").open()?;
        let sides = JoinSides::new(bids, auctions);
        Ok(Self { sides, bids: Vec::new(), auctions: Vec::new() })
    }

    fn apply(
        &mut self,
        events: Vec<Record>,
        mut change: impl FnMut(ExpandedRow, i64),
    ) -> alluvium::Result<()> {
        let mut auctions = Vec::new();
        let sides = events.into_iter().filter_map(|record| relevant(record.event));
        // As the dataflow does: of what is sent together, bids first, in batches of Timely's size.
        let mut bids = sides.filter_map(|side| side.map_err(|auction| auctions.push(auction)).ok());
        loop {
            let batch = bids.by_ref().take(default_capacity::<WholeBid>());
            self.bids.extend(batch.map(|bid| (bid.auction, WholeBid::from(&bid))));
            if self.bids.is_empty() {
                break;
            }
            let emit = |row| change(row, 1);
            self.sides.add_left(&mut self.bids, ExpandedRow::pair, emit)?;
        }
        drop(bids);
        for batch in auctions.chunks(default_capacity::<WholeAuction>()) {
            self.auctions
                .extend(batch.iter().map(|auction| (auction.id, WholeAuction::from(auction))));
            let emit = |row| change(row, 1);
            self.sides.add_right(&mut self.auctions, ExpandedRow::pair, emit)?;
        }
        Ok(())
    }
}
