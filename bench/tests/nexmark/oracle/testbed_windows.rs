//! q5, q7 and q8 as the HotStorage'20 testbed had them, which are not the SQL queries.
//!
//! Where the testbed's versions differ or have mistakes, what is meant: results are of all workers
//! together, state goes when it is not needed, and no row depends on the order of arrival.

use std::collections::BTreeMap;

use alluvium_bench::queries::{
    Q5HotStorage, Q5Plain, Q7HotStorage, Q7Plain, Q8HotStorage, Q8Plain,
};

use super::windows::starts_ms;
use super::{Tables, oracles, row};
use crate::run::{Rows, consolidated};

oracles! { Q5HotStorage: q5, Q7HotStorage: q7, Q8HotStorage: q8 }
oracles! { Q5Plain: q5, Q7Plain: q7, Q8Plain: q8 }

const SECOND_MS: i64 = 1_000;

/// The end of each window of 60 s by 1 s that has bids, the auction with most bids in it, of equal
/// ones that with the largest id, and how many they are.
pub fn q5(tables: &Tables) -> Rows {
    let length = 60 * SECOND_MS;
    let mut windows: BTreeMap<i64, BTreeMap<u64, u64>> = BTreeMap::new();
    for bid in &tables.bids {
        for start in starts_ms(bid.date_time, length, SECOND_MS) {
            *windows.entry(start).or_default().entry(bid.auction).or_default() += 1;
        }
    }
    consolidated(windows.into_iter().filter_map(|(start, counts)| {
        let (auction, count) =
            counts.into_iter().max_by_key(|&(auction, count)| (count, auction))?;
        Some(row([(start + length).to_string(), auction.to_string(), count.to_string()]))
    }))
}

/// The end of each tumbling window of 10 s that has bids, and the highest price in it. A bid at the
/// end is in the next window.
pub fn q7(tables: &Tables) -> Rows {
    let length = 10 * SECOND_MS;
    let mut windows: BTreeMap<i64, Vec<i64>> = BTreeMap::new();
    for bid in &tables.bids {
        for start in starts_ms(bid.date_time, length, length) {
            windows.entry(start + length).or_default().push(bid.price);
        }
    }
    consolidated(windows.into_iter().filter_map(|(end, prices)| {
        Some(row([end.to_string(), prices.into_iter().max()?.to_string()]))
    }))
}

/// The seller of each auction that opened before 12 hours after he registered; also of one that
/// opened before that.
pub fn q8(tables: &Tables) -> Rows {
    let within = 12 * 3_600 * SECOND_MS;
    consolidated(tables.auctions.iter().flat_map(|auction| {
        let people = tables.people.iter().filter(|person| {
            let until = person.date_time.as_ms() + within;
            person.id == auction.seller && auction.date_time.as_ms() < until
        });
        people.map(|person| row([person.id.to_string()]))
    }))
}
