//! q18: `SELECT auction, bidder, price, channel, url, date_time, extra FROM (SELECT *,
//! ROW_NUMBER() OVER (PARTITION BY bidder, auction ORDER BY date_time DESC) AS rank_number
//! FROM bid) WHERE rank_number <= 1`: of bids of equal time the one that came last.
//!
//! The last bid of each (auction, bidder) is in `last-bids/bids`, for ever: there can always be a
//! later one, which takes its place.

use alluvium::{Map, State, Time};
use alluvium_timely::{Changes, Context, KeyBy, Spec, Stateful, WorkerState};

use super::whole::{Offer, WholeBid};
use super::{Events, Fields, Query, Row};
use crate::queries::row_by_row::RowByRow;

/// The last bid of a bidder for an auction.
#[derive(Clone, Copy, Debug)]
pub struct Q18;

/// A bid.
#[derive(Clone, Debug)]
pub struct LastRow(WholeBid);

impl Row for LastRow {
    const COLUMNS: &'static [&'static str] =
        &["auction", "bidder", "price", "channel", "url", "date_time", "extra"];

    fn fields(&self) -> Fields {
        self.0.fields()
    }

    fn digest(&self) -> u64 {
        self.0.digest()
    }
}

/// An auction and a bidder.
type Pair = (u64, u64);

/// A pair's last bid so far.
#[derive(Clone, Debug, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, State)]
struct Last {
    ordinal: u64,
    bid: WholeBid,
}

impl Last {
    fn rank(&self) -> (Time, u64) {
        (self.bid.date_time, self.ordinal)
    }
}

type Bids = Map<Pair, Option<Last>>;

fn apply(
    bids: &mut Bids,
    rows: &mut Vec<(Pair, Offer)>,
    context: &mut Context<'_, i64, Pair, LastRow>,
) -> alluvium::Result<()> {
    let change = |(_, offer): &(Pair, Offer), last: &mut Option<Last>| {
        let rank = (offer.bid.date_time, offer.ordinal);
        if last.as_ref().is_some_and(|last| last.rank() > rank) {
            return;
        }
        let bid = WholeBid::from(&offer.bid);
        if let Some(old) = last.replace(Last { ordinal: offer.ordinal, bid: bid.clone() }) {
            context.emit(LastRow(old.bid), -1);
        }
        context.emit(LastRow(bid), 1);
    };
    let done = bids.update_batch(rows, |row| &row.0, |_| None, change);
    done.map_err(|error| error.leave_rest(rows))
}

impl Query for Q18 {
    type Row = LastRow;
    const NAME: &'static str = "q18";

    fn build<'scope>(
        events: Events<'scope>,
        state: &WorkerState,
    ) -> alluvium::Result<Changes<'scope, i64, LastRow>> {
        events
            .flat_map(Offer::of)
            .key_by(state, |offer: &Offer| (offer.bid.auction, offer.bid.bidder))
            .stateful(
                Spec::new("last-bids"),
                |states| states.map("bids"),
                |bids: &mut Bids, rows, context| apply(bids, rows, context),
                |_, _, _| Ok(()),
            )
    }
}
