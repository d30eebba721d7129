//! q5: the auctions with most bids, all ties, of each window of 10 s that begins every 2 s:
//! `SELECT auction, num FROM (SELECT auction, COUNT(*) AS num, window_start FROM HOP(bid, 2 s, 10 s)
//! GROUP BY auction, window_start) WHERE num = MAX(num) OVER (PARTITION BY window_start)`.
//!
//! `q5-hotstorage` is the testbed's: windows of 60 s by 1 s, with their ends, and of the auctions
//! with most bids only the one with the largest id.
//!
//! Two operators. `bids` counts by auction and window; a count comes out when the watermark has
//! passed the window's end. `hottest` has the counts of a window, which all come out at once, in
//! a window of its own: it ends when the counted window does.

use alluvium::backend::WindowLayout;
use alluvium::time::nanos;
use alluvium::{KeyHash, SECOND, State, Time, Window, Windows};
use alluvium_timely::{Aggregate, Changes, Counting, KeyBy, Spec, Windowing, WorkerState};
use serde::{Deserialize, Serialize};

use super::{Events, Fields, Query, Row};
use crate::nexmark::Event;
use crate::queries::row_by_row::RowByRow;

/// The hottest auctions of sliding windows.
#[derive(Clone, Copy, Debug)]
pub struct Q5;

/// The testbed's q5.
#[derive(Clone, Copy, Debug)]
pub struct Q5HotStorage;

/// An auction and its bids in a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HottestRow {
    auction: u64,
    num: u64,
}

impl Row for HottestRow {
    const COLUMNS: &'static [&'static str] = &["auction", "num"];

    fn fields(&self) -> Fields {
        vec![Some(self.auction.to_string()), Some(self.num.to_string())]
    }

    fn digest(&self) -> u64 {
        (self.auction, self.num).key_hash()
    }
}

/// The end of a window, and the auction with most bids in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HottestOfWindowRow {
    end: Time,
    hottest: HottestRow,
}

impl Row for HottestOfWindowRow {
    const COLUMNS: &'static [&'static str] = &["window_end", "auction", "num"];

    fn fields(&self) -> Fields {
        let mut fields = vec![Some(self.end.as_ms().to_string())];
        fields.append(&mut self.hottest.fields());
        fields
    }

    fn digest(&self) -> u64 {
        (self.end.0, self.hottest.digest()).key_hash()
    }
}

impl HottestOfWindowRow {
    pub(super) fn new(end: Time, auction: u64, num: u64) -> Self {
        HottestOfWindowRow { end, hottest: HottestRow { auction, num } }
    }
}

/// How long the testbed's windows are, in nanoseconds.
pub(super) const LENGTH: i64 = 60 * SECOND;
/// How far apart they begin.
pub(super) const SLIDE: i64 = SECOND;

/// The bids for an auction in a window.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Counted {
    auction: u64,
    end: Time,
    num: u64,
}

/// Auctions with most bids, in order of their ids.
#[derive(Clone, Debug, Default, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, State)]
pub(super) struct Most {
    num: u64,
    auctions: Vec<u64>,
}

struct Hottest;

impl Aggregate<Counted> for Hottest {
    type Acc = Most;
    type Out = (u64, Vec<u64>);

    fn init(&self) -> Most {
        Most::default()
    }

    fn add(&self, most: &mut Most, counted: &Counted) {
        if counted.num > most.num {
            (most.num, most.auctions) = (counted.num, vec![counted.auction]);
        } else if counted.num == most.num {
            let place = most.auctions.partition_point(|auction| *auction < counted.auction);
            most.auctions.insert(place, counted.auction);
        }
    }

    fn merge(&self, most: &mut Most, later: &Most) {
        if later.num > most.num {
            *most = later.clone();
        } else if later.num == most.num {
            most.auctions.extend(&later.auctions);
            most.auctions.sort_unstable();
        }
    }

    fn out(&self, most: &Most) -> Option<(u64, Vec<u64>)> {
        (most.num > 0).then(|| (most.num, most.auctions.clone()))
    }
}

/// The end of a window, the most bids, and the auctions that have them.
type HottestOfWindow = (Time, u64, Vec<u64>);

/// The hottest auctions of windows.
fn hottest<'scope, L>(
    events: Events<'scope>,
    state: &WorkerState,
    (length, slide): (i64, i64),
    spec: impl Fn(&str) -> Spec<L>,
) -> alluvium::Result<Changes<'scope, i64, HottestOfWindow>>
where
    L: WindowLayout<u64, i64> + WindowLayout<Time, Most>,
{
    let bids = events.flat_map(|record| match record.event {
        Event::Bid(bid) => Some((bid.auction, bid.date_time)),
        _ => None,
    });
    let counts = bids
        .key_by(state, |bid: &(u64, Time)| bid.0)
        .window(Windows::sliding(nanos(length), nanos(slide)), |bid: &(u64, Time)| bid.1)
        .aggregate(spec("bids"), Counting)?;
    let counted = counts.results.map(|((auction, Window { end, .. }, num), ..)| Counted {
        auction,
        end,
        num: num.unsigned_abs(),
    });
    let hottest = counted
        .key_by(state, |counted: &Counted| counted.end)
        .window(Windows::tumbling(nanos(slide)), |counted: &Counted| counted.end.plus(-1))
        .aggregate(spec("hottest"), Hottest)?;
    let rows = hottest.results;
    Ok(rows.map(|((end, _, (num, auctions)), time, diff)| ((end, num, auctions), time, diff)))
}

impl Query for Q5 {
    type Row = HottestRow;
    const NAME: &'static str = "q5";

    fn build<'scope>(
        events: Events<'scope>,
        state: &WorkerState,
    ) -> alluvium::Result<Changes<'scope, i64, HottestRow>> {
        let hottest = hottest(events, state, (10 * SECOND, 2 * SECOND), |id| Spec::new(id))?;
        Ok(hottest.flat_map(|((_, num, auctions), time, diff)| {
            let rows = auctions.into_iter().map(move |auction| HottestRow { auction, num });
            rows.map(move |row| (row, time, diff))
        }))
    }
}

impl Query for Q5HotStorage {
    type Row = HottestOfWindowRow;
    const NAME: &'static str = "q5-hotstorage";

    fn build<'scope>(
        events: Events<'scope>,
        state: &WorkerState,
    ) -> alluvium::Result<Changes<'scope, i64, HottestOfWindowRow>> {
        hottest_of_windows(events, state, |id| Spec::new(id))
    }
}

/// The testbed's query, with its states in a layout.
pub(super) fn hottest_of_windows<'scope, L>(
    events: Events<'scope>,
    state: &WorkerState,
    spec: impl Fn(&str) -> Spec<L>,
) -> alluvium::Result<Changes<'scope, i64, HottestOfWindowRow>>
where
    L: WindowLayout<u64, i64> + WindowLayout<Time, Most>,
{
    let hottest = hottest(events, state, (LENGTH, SLIDE), spec)?;
    Ok(hottest.flat_map(|((end, num, auctions), time, diff)| {
        Some((HottestOfWindowRow::new(end, *auctions.last()?, num), time, diff))
    }))
}
