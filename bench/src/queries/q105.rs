//! q105: `SELECT A.id AS auction_id, A.item_name AS auction_item_name, COUNT(B.auction) AS
//! bid_count FROM auction A JOIN bid B ON A.id = B.auction GROUP BY A.id, A.item_name
//! ORDER BY bid_count DESC LIMIT 1000`: of auctions with as many bids the one that came first.
//!
//! Two operators. `bid-counts` (see `bid_counts.rs`) keeps the numbers of all auctions.
//! `top-auctions` has one key, so one worker: it keeps the first thousand. Numbers only grow, so
//! one that falls behind can come back only by growing, and is told again when it does.

use alluvium::{Heap, Map};
use alluvium_timely::{Changes, KeyBy, Spec, Stateful, WorkerState};

use super::bid_counts::{CountRow, Counted, bid_counts};
use super::top::{self, Ranked};
use super::{Events, Query};

/// The auctions with the most bids.
#[derive(Clone, Copy, Debug)]
pub struct Q105;

/// Auctions in the result.
const LIMIT: usize = 1_000;

/// The one key.
const KEY: u64 = 0;

type News = (Counted, i64, i64);

/// Puts a number in its place among the first, and emits what changes.
fn record(first: &mut Vec<Counted>, new: &Counted, mut emit: impl FnMut(CountRow, i64)) {
    let Some(place) = top::place(first, &new.rank(), LIMIT) else { return };
    let last = match first.iter().position(|known| known.group == new.group) {
        // News that a later one has overtaken.
        Some(at) if at < place || first[at].rank() <= new.rank() => return,
        Some(at) => {
            let old = first.remove(at);
            first.insert(place, new.clone());
            Some(old)
        }
        None => top::put(first, place, new.clone(), LIMIT),
    };
    if let Some(last) = last {
        emit(last.row(), -1);
    }
    emit(new.row(), 1);
}

impl Query for Q105 {
    type Row = CountRow;
    const NAME: &'static str = "q105";

    fn build<'scope>(
        events: Events<'scope>,
        state: &WorkerState,
    ) -> alluvium::Result<Changes<'scope, i64, CountRow>> {
        bid_counts(events, state, |counted| counted, |_| None)?
            .key_by(state, |_: &News| KEY)
            .stateful(
                Spec::new("top-auctions").layout(Heap::new()),
                |states| states.map("first"),
                |first: &mut Map<u64, Vec<Counted>, Heap>, rows, context| {
                    first.update(&KEY, Vec::new, |first| {
                        for (_, (counted, ..)) in rows.iter() {
                            record(first, counted, |row, diff| context.emit(row, diff));
                        }
                    })
                },
                |_, _, _| Ok(()),
            )
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn the_first_thousand_are_those_of_all_even_when_news_are_late() {
        let counted = |id: u64, bids: u64| Counted {
            group: (id, 0),
            item_name: String::new(),
            bids,
            ordinal: id ^ 5,
        };
        let (mut first, mut rows) = (Vec::new(), BTreeMap::new());
        let (mut all, mut late) = (BTreeMap::new(), Vec::new());
        let mut record_one = |news: &Counted| {
            record(&mut first, news, |row, diff| {
                *rows.entry((row.id, row.bids)).or_insert(0) += diff
            });
        };
        for n in 0..20_000u64 {
            let id = (n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 30) % 1_500;
            let bids = all.entry(id).or_insert(0);
            *bids += 1;
            let news = counted(id, *bids);
            match n % 5 {
                0 => late.push(news),
                _ => record_one(&news),
            }
            if n % 700 == 0 {
                late.drain(..).rev().for_each(|news| record_one(&news));
            }
        }
        late.drain(..).rev().for_each(|news| record_one(&news));
        let mut expected: Vec<_> = all.iter().map(|(id, bids)| counted(*id, *bids)).collect();
        expected.sort_by_key(Ranked::rank);
        expected.truncate(LIMIT);
        let expected: Vec<_> = expected.iter().map(Ranked::rank).collect();
        assert_eq!(first.iter().map(Ranked::rank).collect::<Vec<_>>(), expected);
        rows.retain(|_, diff| *diff != 0);
        let shown: BTreeMap<_, _> = first.iter().map(|row| ((row.group.0, row.bids), 1)).collect();
        assert_eq!(rows, shown);
    }
}
