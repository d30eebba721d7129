//! q5, q7, q8, q11 and q12: windows, found for each row by trying all that there are.

use std::collections::{BTreeMap, BTreeSet};

use alluvium::Time;
use alluvium_bench::queries::{Q5, Q7, Q8, Q11, Q12};

use super::{Tables, oracles, row};
use crate::run::{Rows, consolidated};

oracles! { Q5: q5, Q7: q7, Q8: q8, Q11: q11, Q12: q12 }

const SECOND_MS: i64 = 1_000;

/// Starts of the windows [start, start + length) that hold a time, all in milliseconds; windows
/// start at the multiples of `slide`, before 1970 as well.
pub(super) fn starts_ms(at: Time, length: i64, slide: i64) -> Vec<i64> {
    let (at, mut starts) = (at.as_ms(), Vec::new());
    let mut start = at.div_euclid(slide) * slide;
    while at < start + length {
        starts.push(start);
        start -= slide;
    }
    starts
}

/// The start of the tumbling window of 10 s that holds a time.
fn start_ms(at: Time) -> i64 {
    starts_ms(at, 10 * SECOND_MS, 10 * SECOND_MS)[0]
}

/// The auctions with most bids, all ties, of each window of 10 s by 2 s that has bids.
pub fn q5(tables: &Tables) -> Rows {
    let mut windows: BTreeMap<i64, BTreeMap<u64, u64>> = BTreeMap::new();
    for bid in &tables.bids {
        for start in starts_ms(bid.date_time, 10 * SECOND_MS, 2 * SECOND_MS) {
            *windows.entry(start).or_default().entry(bid.auction).or_default() += 1;
        }
    }
    consolidated(windows.into_values().flat_map(|counts| {
        let most = counts.values().copied().max();
        let hottest = counts.into_iter().filter(move |(_, count)| Some(*count) == most);
        hottest.map(|(auction, count)| row([auction.to_string(), count.to_string()]))
    }))
}

/// Bids with the highest price of a tumbling window of 10 s, joined by price and by time BETWEEN
/// the window's start and its end: a bid at the end, which is in the next window, is a row as well
/// if it has the price.
pub fn q7(tables: &Tables) -> Rows {
    let mut highest: BTreeMap<i64, i64> = BTreeMap::new();
    for bid in &tables.bids {
        let price = highest.entry(start_ms(bid.date_time)).or_insert(bid.price);
        *price = bid.price.max(*price);
    }
    consolidated(tables.bids.iter().flat_map(|bid| {
        let at = bid.date_time.as_ms();
        let windows = highest.iter().filter(move |(start, price)| {
            // Windows end at whole milliseconds, and times of the tables are whole ones.
            **start <= at && at <= **start + 10 * SECOND_MS && **price == bid.price
        });
        windows.map(move |_| {
            row([
                bid.auction.to_string(),
                bid.price.to_string(),
                bid.bidder.to_string(),
                at.to_string(),
                bid.extra().to_string(),
            ])
        })
    }))
}

/// People (id and name) that are in the same tumbling window of 10 s as an auction of theirs, once
/// for each window.
pub fn q8(tables: &Tables) -> Rows {
    let people: BTreeSet<(u64, String, i64)> = tables
        .people
        .iter()
        .map(|person| (person.id, person.name().to_string(), start_ms(person.date_time)))
        .collect();
    let sellers: BTreeSet<(u64, i64)> = tables
        .auctions
        .iter()
        .map(|auction| (auction.seller, start_ms(auction.date_time)))
        .collect();
    let joined = people.into_iter().filter(|(id, _, start)| sellers.contains(&(*id, *start)));
    consolidated(joined.map(|(id, name, start)| row([id.to_string(), name, start.to_string()])))
}

/// Bids of each bidder by session: a bid is in the session of the one before it if it comes 10 s
/// after it or sooner; a session ends 10 s after its last bid.
pub fn q11(tables: &Tables) -> Rows {
    let gap = 10 * SECOND_MS;
    let mut bidders: BTreeMap<u64, Vec<i64>> = BTreeMap::new();
    for bid in &tables.bids {
        bidders.entry(bid.bidder).or_default().push(bid.date_time.as_ms());
    }
    consolidated(bidders.into_iter().flat_map(|(bidder, mut times)| {
        times.sort_unstable();
        let sessions = times.chunk_by(|last, next| *next <= last + gap);
        let rows = sessions.map(|session| {
            row([
                bidder.to_string(),
                session.len().to_string(),
                session[0].to_string(),
                (session[session.len() - 1] + gap).to_string(),
            ])
        });
        rows.collect::<Vec<_>>()
    }))
}

/// Bids of each bidder by tumbling window of 10 s, in event time.
pub fn q12(tables: &Tables) -> Rows {
    let mut counts: BTreeMap<(u64, i64), u64> = BTreeMap::new();
    for bid in &tables.bids {
        *counts.entry((bid.bidder, start_ms(bid.date_time))).or_default() += 1;
    }
    consolidated(counts.into_iter().map(|((bidder, start), count)| {
        row([
            bidder.to_string(),
            count.to_string(),
            start.to_string(),
            (start + 10 * SECOND_MS).to_string(),
        ])
    }))
}
