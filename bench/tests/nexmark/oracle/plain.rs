//! q0 to q4.

use std::collections::BTreeMap;

use alluvium_bench::queries::{Q0, Q1, Q2, Q3, Q4, Q13};

use super::{Oracle, Tables, row};
use crate::run::{Rows, consolidated};

fn bid_rows(tables: &Tables, price: impl Fn(i64) -> String) -> Rows {
    consolidated(tables.bids.iter().map(|bid| {
        row([
            bid.auction.to_string(),
            bid.bidder.to_string(),
            price(bid.price),
            bid.date_time.as_ms().to_string(),
            bid.extra().to_string(),
        ])
    }))
}

impl Oracle for Q0 {
    fn oracle(tables: &Tables) -> Rows {
        bid_rows(tables, |price| price.to_string())
    }
}

impl Oracle for Q1 {
    fn oracle(tables: &Tables) -> Rows {
        // Long multiplication in text: 0.908 has three places, trailing zeros go.
        bid_rows(tables, |price| {
            let digits = format!("{:04}", price * 908);
            let (whole, places) = digits.split_at(digits.len() - 3);
            match places.trim_end_matches('0') {
                "" => whole.to_owned(),
                places => format!("{whole}.{places}"),
            }
        })
    }
}

impl Oracle for Q2 {
    fn oracle(tables: &Tables) -> Rows {
        let bids = tables.bids.iter().filter(|bid| bid.auction % 123 == 0);
        consolidated(bids.map(|bid| row([bid.auction.to_string(), bid.price.to_string()])))
    }
}

impl Oracle for Q3 {
    fn oracle(tables: &Tables) -> Rows {
        let auctions = tables.auctions.iter().filter(|auction| auction.category == 10);
        consolidated(auctions.flat_map(|auction| {
            let people = tables.people.iter().filter(|person| person.id == auction.seller);
            let people = people.filter(|p| ["OR", "ID", "CA"].contains(&p.state().as_ref()));
            people.map(|p| {
                row([
                    p.name().to_string(),
                    p.city().to_string(),
                    p.state().to_string(),
                    auction.id.to_string(),
                ])
            })
        }))
    }
}

impl Oracle for Q4 {
    fn oracle(tables: &Tables) -> Rows {
        let bids = tables.bids_by_auction();
        let mut finals: BTreeMap<(u64, u64), i64> = BTreeMap::new();
        for auction in &tables.auctions {
            for (_, bid) in bids.get(&auction.id).into_iter().flatten() {
                if bid.date_time >= auction.date_time && bid.date_time <= auction.expires {
                    let highest = finals.entry((auction.id, auction.category)).or_insert(bid.price);
                    *highest = bid.price.max(*highest);
                }
            }
        }
        let mut categories: BTreeMap<u64, Vec<i128>> = BTreeMap::new();
        for ((_, category), highest) in finals {
            categories.entry(category).or_default().push(highest.into());
        }
        consolidated(categories.into_iter().map(|(category, prices)| {
            let average = prices.iter().sum::<i128>() / prices.len() as i128;
            row([category.to_string(), average.to_string()])
        }))
    }
}

impl Oracle for Q13 {
    fn oracle(tables: &Tables) -> Rows {
        // The side input that is generated has each key as its own value.
        let side: Vec<(u64, u64)> = (0..10_000).map(|key| (key, key)).collect();
        consolidated(tables.bids.iter().flat_map(|bid| {
            let rows = side.iter().filter(|(key, _)| *key == bid.auction % 10_000);
            rows.map(|(_, value)| {
                row([
                    bid.auction.to_string(),
                    bid.bidder.to_string(),
                    bid.price.to_string(),
                    bid.date_time.as_ms().to_string(),
                    value.to_string(),
                ])
            })
        }))
    }
}
