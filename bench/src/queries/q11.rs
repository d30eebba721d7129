//! q11 and q12: bids of each bidder by session (gap 10 s) and by tumbling window (10 s), in event
//! time: `SELECT bidder, COUNT(*) AS bid_count, SESSION_START, SESSION_END FROM bid GROUP BY bidder,
//! SESSION(date_time, 10 s)`, and with `TUMBLE`.
//!
//! A bid belongs to the session of the one before it if it comes 10 s after that or sooner; a session
//! ends 10 s after its last bid. State: `bids/windows`, dropped as windows close.
//!
//! `q12-processing-time` is q12 as it stands in the suite: windows of when bids arrive, `TUMBLE` of
//! `PROCTIME()`. That time is the timestamp which the caller sends an event with, by whatever clock he
//! has; so the frontier closes windows as in event time, no bid is late, and the result is a function
//! of the input and its timestamps.

use alluvium::time::nanos;
use alluvium::{KeyHash, SECOND, Time, Window, Windows};
use alluvium_timely::{Changes, Counting, KeyBy, Spec, Windowing, WorkerState};
use timely::container::CapacityContainerBuilder;
use timely::dataflow::StreamVec;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::generic::operator::Operator;

use super::{Events, Fields, Query, Row};
use crate::nexmark::Event;
use crate::queries::row_by_row::RowByRow;

/// Bids by session.
#[derive(Clone, Copy, Debug)]
pub struct Q11;

/// Bids by tumbling window.
#[derive(Clone, Copy, Debug)]
pub struct Q12;

/// Bids by tumbling window of the time at which they arrive.
#[derive(Clone, Copy, Debug)]
pub struct Q12ProcessingTime;

/// A bidder's bids in a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowBidsRow {
    bidder: u64,
    bids: i64,
    window: Window,
}

impl Row for WindowBidsRow {
    const COLUMNS: &'static [&'static str] = &["bidder", "bid_count", "starttime", "endtime"];

    fn fields(&self) -> Fields {
        vec![
            Some(self.bidder.to_string()),
            Some(self.bids.to_string()),
            Some(self.window.start.as_ms().to_string()),
            Some(self.window.end.as_ms().to_string()),
        ]
    }

    fn digest(&self) -> u64 {
        (self.bidder, self.bids, self.window.start.0, self.window.end.0).key_hash()
    }
}

/// The bids of each bidder in windows.
fn counted<'scope>(
    events: Events<'scope>,
    state: &WorkerState,
    windows: Windows,
) -> alluvium::Result<Changes<'scope, i64, WindowBidsRow>> {
    let bids = events.flat_map(|record| match record.event {
        Event::Bid(bid) => Some((bid.bidder, bid.date_time)),
        _ => None,
    });
    counted_bids(bids, state, windows)
}

/// The bidders of bids, with the times that count, in windows.
fn counted_bids<'scope>(
    bids: StreamVec<'scope, i64, (u64, Time)>,
    state: &WorkerState,
    windows: Windows,
) -> alluvium::Result<Changes<'scope, i64, WindowBidsRow>> {
    let counts = bids
        .key_by(state, |bid: &(u64, Time)| bid.0)
        .window(windows, |bid: &(u64, Time)| bid.1)
        .aggregate(Spec::new("bids"), Counting)?;
    Ok(counts.results.map(|((bidder, window, bids), time, diff)| {
        (WindowBidsRow { bidder, bids, window }, time, diff)
    }))
}

impl Query for Q11 {
    type Row = WindowBidsRow;
    const NAME: &'static str = "q11";

    fn build<'scope>(
        events: Events<'scope>,
        state: &WorkerState,
    ) -> alluvium::Result<Changes<'scope, i64, WindowBidsRow>> {
        counted(events, state, Windows::session(nanos(10 * SECOND)))
    }
}

impl Query for Q12 {
    type Row = WindowBidsRow;
    const NAME: &'static str = "q12";

    fn build<'scope>(
        events: Events<'scope>,
        state: &WorkerState,
    ) -> alluvium::Result<Changes<'scope, i64, WindowBidsRow>> {
        counted(events, state, Windows::tumbling(nanos(10 * SECOND)))
    }
}

impl Query for Q12ProcessingTime {
    type Row = WindowBidsRow;
    const NAME: &'static str = "q12-processing-time";
    const IN_PROCESSING_TIME: bool = true;

    fn build<'scope>(
        events: Events<'scope>,
        state: &WorkerState,
    ) -> alluvium::Result<Changes<'scope, i64, WindowBidsRow>> {
        type Builder = CapacityContainerBuilder<Vec<(u64, Time)>>;
        let arrived = events.unary::<Builder, _, _, _>(Pipeline, "arrived", |_, _| {
            move |input, output| {
                input.for_each_time(|capability, batches| {
                    let now = Time(*capability.time());
                    let events = batches.flat_map(|batch| batch.drain(..));
                    let bids = events.filter_map(|record| match record.event {
                        Event::Bid(bid) => Some((bid.bidder, now)),
                        _ => None,
                    });
                    output.session(&capability).give_iterator(bids);
                });
            }
        });
        counted_bids(arrived, state, Windows::tumbling(nanos(10 * SECOND)))
    }
}
