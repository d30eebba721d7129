//! q19: `SELECT * FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY auction ORDER BY price DESC)
//! AS rank_number FROM bid) WHERE rank_number <= 10`: of bids of equal price the earlier one is in
//! front, of those of equal time the one that came first.
//!
//! The ten best bids of each auction are in `best-bids/bids`, for ever: there can always be a
//! better one. Other bids can never be among the ten and are not kept.

use std::cmp::Reverse;

use alluvium::{KeyHash, Map, State, Time};
use alluvium_timely::{Changes, Context, KeyBy, Spec, Stateful, WorkerState};

use super::top::{self, Ranked};
use super::whole::{Offer, WholeBid};
use super::{Events, Fields, Query, Row};
use crate::nexmark::Bid;
use crate::queries::row_by_row::RowByRow;

/// The ten best bids of each auction.
#[derive(Clone, Copy, Debug)]
pub struct Q19;

/// A bid and its rank from 1.
#[derive(Clone, Debug)]
pub struct RankedRow {
    bid: WholeBid,
    rank_number: u64,
}

impl Row for RankedRow {
    const COLUMNS: &'static [&'static str] =
        &["auction", "bidder", "price", "channel", "url", "date_time", "extra", "rank_number"];

    fn fields(&self) -> Fields {
        let mut fields = self.bid.fields();
        fields.push(Some(self.rank_number.to_string()));
        fields
    }

    fn digest(&self) -> u64 {
        (self.bid.digest(), self.rank_number).key_hash()
    }
}

/// Bids that are kept of an auction.
const LIMIT: usize = 10;

/// One of an auction's best bids.
#[derive(Clone, Debug, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, State)]
struct Good {
    ordinal: u64,
    bid: WholeBid,
}

type Rank = (Reverse<i64>, Time, u64);

fn rank(bid: &Bid, ordinal: u64) -> Rank {
    (Reverse(bid.price), bid.date_time, ordinal)
}

impl Ranked for Good {
    type Rank = Rank;

    fn rank(&self) -> Rank {
        (Reverse(self.bid.price), self.bid.date_time, self.ordinal)
    }
}

type Bids = Map<u64, Vec<Good>>;

fn apply(
    bids: &mut Bids,
    rows: &[(u64, Offer)],
    context: &mut Context<'_, i64, u64, RankedRow>,
) -> alluvium::Result<()> {
    let change = |(_, Offer { ordinal, bid }): &(u64, Offer), best: &mut Vec<Good>| {
        let Some(place) = top::place(best, &rank(bid, *ordinal), LIMIT) else { return };
        let good = Good { ordinal: *ordinal, bid: bid.into() };
        let last = top::put(best, place, good, LIMIT);
        // Each rank from there on has another row than before; the one more has none before.
        let old = best[place + 1..].iter().chain(&last);
        for (rank_number, old) in (place as u64 + 1..).zip(old) {
            context.emit(RankedRow { bid: old.bid.clone(), rank_number }, -1);
        }
        for (rank_number, new) in (place as u64 + 1..).zip(&best[place..]) {
            context.emit(RankedRow { bid: new.bid.clone(), rank_number }, 1);
        }
    };
    Ok(bids.update_batch(rows, |row| &row.0, |_| Vec::new(), change)?)
}

impl Query for Q19 {
    type Row = RankedRow;
    const NAME: &'static str = "q19";

    fn build<'scope>(
        events: Events<'scope>,
        state: &WorkerState,
    ) -> alluvium::Result<Changes<'scope, i64, RankedRow>> {
        events.flat_map(Offer::of).key_by(state, |offer: &Offer| offer.bid.auction).stateful(
            Spec::new("best-bids"),
            |states| states.map("bids"),
            |bids: &mut Bids, rows, context| apply(bids, rows, context),
            |_, _, _| Ok(()),
        )
    }
}
