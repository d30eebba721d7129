//! q7: the bids with the highest price of each tumbling window of 10 s: `SELECT B.auction, B.price,
//! B.bidder, B.date_time, B.extra FROM bid B JOIN (SELECT MAX(price) AS price, window_end FROM
//! TUMBLE(bid, 10 s) GROUP BY window_end) M ON B.price = M.price AND B.date_time BETWEEN
//! M.window_end - 10 s AND M.window_end`. Both bounds are inclusive: a bid at the end of a window,
//! which is in the next one, is a row as well if it has the window's highest price.
//!
//! `q7-hotstorage` is the testbed's: the end of each window and the highest price in it.
//!
//! `highest` has of each window the highest price and the bids that have it, and the bids at its
//! end. A bid at the end may come when the watermark is at the end: so windows wait a nanosecond
//! longer, and to these such a bid is a late one that is still allowed.

use alluvium::backend::WindowLayout;
use alluvium::time::nanos;
use alluvium::types::hash_bytes;
use alluvium::{KeyHash, SECOND, State, Time, Window, Windows};
use alluvium_timely::{Aggregate, Changes, KeyBy, Spec, Windowing, WorkerState};
use serde::{Deserialize, Serialize};
use timely::dataflow::StreamVec;

use super::{Events, Fields, Query, Row};
use crate::nexmark::{Bid, Event};
use crate::queries::row_by_row::RowByRow;

pub(super) const LENGTH: i64 = 10 * SECOND;

/// The highest bids of tumbling windows.
#[derive(Clone, Copy, Debug)]
pub struct Q7;

/// The testbed's q7.
#[derive(Clone, Copy, Debug)]
pub struct Q7HotStorage;

/// The columns of a bid that are asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[derive(rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, State)]
pub struct HighestRow {
    auction: u64,
    price: i64,
    bidder: u64,
    date_time: Time,
    extra: String,
}

impl Row for HighestRow {
    const COLUMNS: &'static [&'static str] = &["auction", "price", "bidder", "date_time", "extra"];

    fn fields(&self) -> Fields {
        vec![
            Some(self.auction.to_string()),
            Some(self.price.to_string()),
            Some(self.bidder.to_string()),
            Some(self.date_time.as_ms().to_string()),
            Some(self.extra.clone()),
        ]
    }

    fn digest(&self) -> u64 {
        let numbers = (self.auction, self.price, self.bidder, self.date_time.0);
        (numbers, hash_bytes(self.extra.as_bytes())).key_hash()
    }
}

/// The end of a window and the highest price in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HighestPriceRow {
    pub(super) end: Time,
    pub(super) price: i64,
}

impl Row for HighestPriceRow {
    const COLUMNS: &'static [&'static str] = &["window_end", "price"];

    fn fields(&self) -> Fields {
        vec![Some(self.end.as_ms().to_string()), Some(self.price.to_string())]
    }

    fn digest(&self) -> u64 {
        (self.end.0, self.price).key_hash()
    }
}

/// A bid as a window sees it.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Seen {
    bid: Bid,
    /// It is not in the window, but at its end.
    is_at_end: bool,
}

impl Seen {
    /// When it counts.
    fn at(&self) -> Time {
        self.bid.date_time.plus(-i64::from(self.is_at_end))
    }
}

/// What is kept of a window.
#[derive(Clone, Debug, Default, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, State)]
struct Kept {
    price: Option<i64>,
    highest: Vec<HighestRow>,
    at_end: Vec<HighestRow>,
}

struct Highest;

impl Highest {
    fn row(bid: &Bid) -> HighestRow {
        let Bid { auction, price, bidder, date_time, .. } = *bid;
        HighestRow { auction, price, bidder, date_time, extra: bid.extra().into_owned() }
    }
}

impl Aggregate<Seen> for Highest {
    type Acc = Kept;
    type Out = Vec<HighestRow>;

    fn init(&self) -> Kept {
        Kept::default()
    }

    fn add(&self, kept: &mut Kept, seen: &Seen) {
        if seen.is_at_end {
            kept.at_end.push(Self::row(&seen.bid));
        } else if kept.price <= Some(seen.bid.price) {
            if kept.price < Some(seen.bid.price) {
                kept.price = Some(seen.bid.price);
                kept.highest.clear();
            }
            kept.highest.push(Self::row(&seen.bid));
        }
    }

    fn merge(&self, kept: &mut Kept, later: &Kept) {
        if kept.price < later.price {
            (kept.price, kept.highest) = (later.price, later.highest.clone());
        } else if kept.price == later.price {
            kept.highest.extend(later.highest.iter().cloned());
        }
        kept.at_end.extend(later.at_end.iter().cloned());
    }

    fn out(&self, kept: &Kept) -> Option<Vec<HighestRow>> {
        let price = kept.price?;
        let at_end = kept.at_end.iter().filter(|bid| bid.price == price);
        Some(kept.highest.iter().chain(at_end).cloned().collect())
    }
}

impl Query for Q7 {
    type Row = HighestRow;
    const NAME: &'static str = "q7";

    fn build<'scope>(
        events: Events<'scope>,
        state: &WorkerState,
    ) -> alluvium::Result<Changes<'scope, i64, HighestRow>> {
        let seen = events.flat_map(|record| {
            let bid = match record.event {
                Event::Bid(bid) => Some(bid),
                _ => None,
            };
            bid.into_iter().flat_map(|bid| {
                let ends_one = bid.date_time.0.rem_euclid(LENGTH) == 0;
                let again = ends_one.then(|| Seen { bid: bid.clone(), is_at_end: true });
                again.into_iter().chain([Seen { bid, is_at_end: false }])
            })
        });
        let windows = Windows::tumbling(nanos(LENGTH)).lateness(nanos(1));
        let highest = seen
            .key_by(state, |seen: &Seen| seen.at().0.div_euclid(LENGTH))
            .window(windows, Seen::at)
            .aggregate(Spec::new("highest"), Highest)?;
        Ok(highest.results.flat_map(|((_, _, rows), time, diff)| {
            rows.into_iter().map(move |row| (row, time, diff))
        }))
    }
}

/// The highest price.
struct Price;

impl Aggregate<(i64, Time)> for Price {
    type Acc = Option<i64>;
    type Out = i64;

    fn init(&self) -> Option<i64> {
        None
    }

    fn add(&self, highest: &mut Option<i64>, (price, _): &(i64, Time)) {
        *highest = (*highest).max(Some(*price));
    }

    fn merge(&self, highest: &mut Option<i64>, later: &Option<i64>) {
        *highest = (*highest).max(*later);
    }

    fn out(&self, highest: &Option<i64>) -> Option<i64> {
        *highest
    }
}

impl Query for Q7HotStorage {
    type Row = HighestPriceRow;
    const NAME: &'static str = "q7-hotstorage";

    fn build<'scope>(
        events: Events<'scope>,
        state: &WorkerState,
    ) -> alluvium::Result<Changes<'scope, i64, HighestPriceRow>> {
        highest_prices(events, state, Spec::new("highest"))
    }
}

/// The bids' prices and times.
pub(super) fn prices(events: Events<'_>) -> StreamVec<'_, i64, (i64, Time)> {
    events.flat_map(|record| match record.event {
        Event::Bid(bid) => Some((bid.price, bid.date_time)),
        _ => None,
    })
}

/// The testbed's windows, with their state in a layout.
pub(super) fn highest_prices<'scope, L: WindowLayout<i64, Option<i64>>>(
    events: Events<'scope>,
    state: &WorkerState,
    spec: Spec<L>,
) -> alluvium::Result<Changes<'scope, i64, HighestPriceRow>> {
    let highest = prices(events)
        .key_by(state, |(_, at): &(i64, Time)| at.0.div_euclid(LENGTH))
        .window(Windows::tumbling(nanos(LENGTH)), |(_, at): &(i64, Time)| *at)
        .aggregate(spec, Price)?;
    Ok(highest.results.map(|((_, Window { end, .. }, price), time, diff)| {
        (HighestPriceRow { end, price }, time, diff)
    }))
}
