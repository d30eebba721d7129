//! `winning-bids` on a map of the standard library.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use alluvium::Time;

use super::super::Events;
use super::super::plain::{Alarm, Ask, Maps, on_maps};
use super::Rules;
use super::item::{Auction, ItemOf};
use super::operator::{Input, InputOf};
use crate::queries::row_by_row::RowByRow;
use alluvium_timely::Changes;

/// What is kept of each auction id.
struct Items<R: Rules>(HashMap<u64, ItemOf<R>>);

impl<R: Rules> Maps<InputOf<R>> for Items<R> {
    type Out = R::Out;

    fn take(&mut self, input: InputOf<R>, watermark: i64, ask: Ask<'_>) {
        let id = input.auction_id();
        let item = self.0.entry(id).or_default();
        match input {
            Input::Auction { date_time, expires, lot, .. } => {
                ask(expires.0, id);
                let auction = Auction { lot, date_time, expires, best: None };
                item.open::<R>(id, auction, |_, _| {});
            }
            Input::Bid { bid, .. } => {
                let at = R::time(&bid);
                if item.needs_alarm::<R>(at) {
                    ask(at.0, id);
                }
                item.bid::<R>(id, bid, Time(watermark), |_, _| {});
            }
        }
    }

    fn due(&mut self, alarm: Alarm, emit: &mut dyn FnMut(i64, R::Out), ask: Ask<'_>) {
        let Entry::Occupied(mut entry) = self.0.entry(alarm.key) else { return };
        let item = entry.get_mut();
        item.expire::<R>(Time(alarm.watermark), |winner, expires| {
            R::over(winner, expires, |row, _| emit(expires.0.max(alarm.at), row));
        });
        item.bids_due::<R>().into_iter().for_each(|at| ask(at.0, alarm.key));
        if item.is_empty() {
            entry.remove();
        }
    }
}

/// What `R`, which tells of winners when they are over, makes of the events.
pub(in crate::queries) fn winning_plain<'scope, R: Rules>(
    events: Events<'scope>,
) -> Changes<'scope, i64, R::Out> {
    let inputs = events.flat_map(|record| Input::of::<R>(&record));
    on_maps(inputs, "plain-winning-bids", InputOf::<R>::auction_id, Items::<R>(HashMap::new()))
}
