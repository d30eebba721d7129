//! q4 and q6 of the testbed on maps of the standard library.

use std::collections::HashMap;

use alluvium_timely::Changes;

use super::super::Events;
use super::super::plain::{Alarm, Ask, Maps, on_maps, plain_query};
use super::super::q4::AverageRow;
use super::super::winning::winning_plain;
use super::{Averaging, BidderAverageRow, ByBidder, ByCategory, Close, Closes, Running};
use crate::queries::row_by_row::RowByRow;

plain_query! {
    /// The testbed's q4 on maps of the standard library.
    Q4Plain, "q4-hotstorage-plain", AverageRow: |events| averages::<ByCategory>(events)
}

plain_query! {
    /// The testbed's q6 on maps of the standard library.
    Q6Plain, "q6-hotstorage-plain", BidderAverageRow: |events| averages::<ByBidder>(events)
}

/// The running average of each category or bidder.
struct Averages<A: Averaging>(HashMap<u64, Running<A::Prices>>);

impl<A: Averaging> Maps<Close> for Averages<A> {
    type Out = A::Row;

    fn take(&mut self, close: Close, _: i64, ask: Ask<'_>) {
        let key = A::key(&close);
        let running = self.0.entry(key).or_default();
        if running.waiting.iter().all(|sale| sale.expires != close.sale.expires) {
            ask(close.sale.expires.0, key);
        }
        running.waiting.push(close.sale);
    }

    fn due(&mut self, alarm: Alarm, emit: &mut dyn FnMut(i64, A::Row), _: Ask<'_>) {
        let Some(running) = self.0.get_mut(&alarm.key) else { return };
        running.count::<A>(alarm.at, |average| emit(alarm.at, A::row(alarm.key, average)));
    }
}

fn averages<'scope, A: Averaging>(events: Events<'scope>) -> Changes<'scope, i64, A::Row> {
    let closes = winning_plain::<Closes>(events).map(|(close, ..)| close);
    on_maps(closes, "plain-running-averages", A::key, Averages::<A>(HashMap::new()))
}
