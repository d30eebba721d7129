//! q106: `SELECT MIN(final) AS min_final FROM (SELECT MAX(B.price) AS final FROM auction A, bid B
//! WHERE A.id = B.auction AND B.date_time BETWEEN A.date_time AND A.expires GROUP BY A.id)`: one
//! row always, NULL while no auction has a bid.
//!
//! Two operators. `winning-bids` (see `winning.rs`, also for when its state goes) tells how the
//! highest price of an auction id changes and when it is final. `lowest-final` has one key, so one
//! worker: it keeps the lowest price of what is over, and how often each lower price is the
//! highest of an auction that is not. Other prices can only rise and are never the lowest again,
//! so they go.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use alluvium::{AnyLayout, Heap, KeyHash, Map, State, Time};
use alluvium_timely::{Changes, Context, KeyBy, Spec, Stateful, WorkerState};
use serde::{Deserialize, Serialize};
use timely::dataflow::operators::{Concat, ToStream};

use super::q4::Price;
use super::winning::{Raise, Rules, Winner, winning};
use super::{Events, Fields, Query, Row};
use crate::nexmark::{Auction, Bid};

/// The lowest of all final prices.
#[derive(Clone, Copy, Debug)]
pub struct Q106;

/// The lowest price.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LowestRow(Option<i64>);

impl Row for LowestRow {
    const COLUMNS: &'static [&'static str] = &["min_final"];

    fn fields(&self) -> Fields {
        vec![self.0.map(|price| price.to_string())]
    }

    fn digest(&self) -> u64 {
        self.0.map_or((0, 0), |price| (1, price)).key_hash()
    }
}

/// The highest price of each auction id.
struct ById;

impl Rules for ById {
    type Lot = ();
    type Bid = Price;
    type Best = i64;
    type Rank = Reverse<i64>;
    type Out = Final;

    fn lot(_: &Auction, _: u64) {}

    fn bid(bid: &Bid, _: u64) -> Price {
        bid.into()
    }

    fn time(bid: &Price) -> Time {
        bid.date_time
    }

    fn same_group((): &(), (): &()) -> bool {
        true
    }

    fn best(bid: &Price) -> i64 {
        bid.price
    }

    fn rank_of_bid((): &(), bid: &Price) -> Reverse<i64> {
        Reverse(bid.price)
    }

    fn rank((): &(), price: &i64) -> Reverse<i64> {
        Reverse(*price)
    }

    fn raised(raise: Raise<'_, Self>, mut out: impl FnMut(Final, i64)) {
        if raise.is_new() {
            let from = raise.from.map(|from| *from.best);
            out(Final::Raised { from, to: *raise.to.best }, 1);
        }
    }

    fn over(winner: Winner<'_, Self>, _: Time, mut out: impl FnMut(Final, i64)) {
        out(Final::Over(*winner.best), 1);
    }
}

/// What happens to highest prices.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum Final {
    /// Nothing yet: the result is there from the beginning.
    Begin,
    Raised {
        from: Option<i64>,
        to: i64,
    },
    Over(i64),
}

/// What is kept of all highest prices.
#[derive(Clone, Debug, Default, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, State)]
struct Lowest {
    /// Whether the result has its row.
    begun: bool,
    /// The lowest price that is final.
    over: Option<i64>,
    /// How many auctions that may not be over have each lower price; less than none while the
    /// news of a raise is ahead of that of the price before.
    open: BTreeMap<i64, i64>,
}

impl Lowest {
    fn apply(&mut self, news: &Final) {
        match *news {
            Final::Begin => self.begun = true,
            Final::Raised { from, to } => {
                from.into_iter().for_each(|price| self.count(price, -1));
                self.count(to, 1);
            }
            Final::Over(price) if self.matters(price) => {
                self.over = Some(price);
                self.open.split_off(&price);
            }
            Final::Over(_) => {}
        }
    }

    fn matters(&self, price: i64) -> bool {
        self.over.is_none_or(|lowest| price < lowest)
    }

    fn count(&mut self, price: i64, auctions: i64) {
        if self.matters(price) {
            let count = self.open.entry(price).or_default();
            *count += auctions;
            if *count == 0 {
                self.open.remove(&price);
            }
        }
    }

    fn row(&self) -> Option<LowestRow> {
        let open = self.open.iter().find(|(_, count)| **count > 0).map(|(price, _)| *price);
        self.begun.then_some(LowestRow(open.or(self.over)))
    }
}

type Prices = Map<u64, Lowest>;
type News = (Final, i64, i64);

fn apply(
    lowest: &mut Prices,
    rows: &[(u64, News)],
    context: &mut Context<'_, i64, u64, LowestRow>,
) -> alluvium::Result<()> {
    let (before, after) = lowest.update(&KEY, Lowest::default, |lowest| {
        let before = lowest.row();
        rows.iter().for_each(|(_, (news, ..))| lowest.apply(news));
        (before, lowest.row())
    })?;
    if before != after {
        before.into_iter().for_each(|row| context.emit(row, -1));
        after.into_iter().for_each(|row| context.emit(row, 1));
    }
    Ok(())
}

/// The one key.
const KEY: u64 = 0;

impl Query for Q106 {
    type Row = LowestRow;
    const NAME: &'static str = "q106";

    fn build<'scope>(
        events: Events<'scope>,
        state: &WorkerState,
    ) -> alluvium::Result<Changes<'scope, i64, LowestRow>> {
        let scope = events.scope();
        let begin = (state.index() == 0).then_some((Final::Begin, i64::MIN, 1));
        let begin = begin.to_stream(scope).container::<Vec<News>>();
        winning::<ById>(events, state)?.concat(begin).key_by(state, |_: &News| KEY).stateful(
            Spec::new("lowest-final").layout(AnyLayout::from(Heap::new())),
            |states| states.map("prices"),
            |lowest: &mut Prices, rows, context| apply(lowest, rows, context),
            |_, _, _| Ok(()),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_is_known_in_any_order_of_news_and_the_rest_forgotten() {
        let raised = |from, to| Final::Raised { from, to };
        let news = [raised(None, 5), raised(Some(5), 7), Final::Over(7), raised(None, 9)];
        let mut orders = vec![vec![]];
        for _ in 0..news.len() {
            let longer = |order: Vec<usize>| {
                let next = (0..news.len()).filter(|next| !order.contains(next)).collect::<Vec<_>>();
                next.into_iter().map(move |next| [order.clone(), vec![next]].concat())
            };
            orders = orders.into_iter().flat_map(longer).collect();
        }
        assert_eq!(orders.len(), 24);
        for order in orders {
            let mut lowest = Lowest::default();
            assert_eq!(lowest.row(), None);
            lowest.apply(&Final::Begin);
            assert_eq!(lowest.row(), Some(LowestRow(None)));
            order.iter().for_each(|&at| lowest.apply(&news[at]));
            assert_eq!(lowest.row(), Some(LowestRow(Some(7))), "{order:?}");
            assert!(lowest.open.is_empty(), "{order:?}: {lowest:?}");
            lowest.apply(&raised(None, 3));
            assert_eq!(lowest.row(), Some(LowestRow(Some(3))));
        }
    }
}
