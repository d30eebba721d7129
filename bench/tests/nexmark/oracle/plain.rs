//! Queries without windows and ranks: q0 to q4, q10, q13, q14, q21 and q22.

use std::collections::BTreeMap;

use alluvium_bench::nexmark::Bid;
use alluvium_bench::queries::{Q0, Q1, Q2, Q3, Q3Plain, Q4, Q10, Q13, Q14, Q21, Q22};

use super::ranked::date;
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

/// Long multiplication in text: 0.908 has three places, trailing zeros go.
fn euros(price: i64) -> String {
    let digits = format!("{:04}", price * 908);
    let (whole, places) = digits.split_at(digits.len() - 3);
    match places.trim_end_matches('0') {
        "" => whole.to_owned(),
        places => format!("{whole}.{places}"),
    }
}

impl Oracle for Q1 {
    fn oracle(tables: &Tables) -> Rows {
        bid_rows(tables, euros)
    }
}

impl Oracle for Q2 {
    fn oracle(tables: &Tables) -> Rows {
        let bids = tables.bids.iter().filter(|bid| bid.auction % 123 == 0);
        consolidated(bids.map(|bid| row([bid.auction.to_string(), bid.price.to_string()])))
    }
}

impl Oracle for Q3Plain {
    fn oracle(tables: &Tables) -> Rows {
        Q3::oracle(tables)
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

/// Minutes since 1970.
fn minutes(bid: &Bid) -> i64 {
    bid.date_time.as_ms().div_euclid(60_000)
}

impl Oracle for Q10 {
    fn oracle(tables: &Tables) -> Rows {
        consolidated(tables.bids.iter().map(|bid| {
            let (hours, minute) = (minutes(bid).div_euclid(60), minutes(bid).rem_euclid(60));
            row([
                bid.auction.to_string(),
                bid.bidder.to_string(),
                bid.price.to_string(),
                bid.date_time.as_ms().to_string(),
                bid.extra().to_string(),
                date(bid.date_time),
                format!("{:02}:{minute:02}", hours.rem_euclid(24)),
            ])
        }))
    }
}

impl Oracle for Q14 {
    fn oracle(tables: &Tables) -> Rows {
        // 0.908 * price > 1,000,000 from 1,101,322 on, < 50,000,000 up to 55,066,079.
        let bids = tables.bids.iter().filter(|bid| (1_101_322..=55_066_079).contains(&bid.price));
        consolidated(bids.map(|bid| {
            let hour = minutes(bid).div_euclid(60).rem_euclid(24);
            let kinds = ["night", "other", "day", "other", "night"];
            let kind = kinds[[7, 8, 19, 20].iter().filter(|from| hour >= **from).count()];
            row([
                bid.auction.to_string(),
                bid.bidder.to_string(),
                euros(bid.price),
                format!("{kind}Time"),
                bid.date_time.as_ms().to_string(),
                bid.extra().to_string(),
                bid.extra().matches('c').count().to_string(),
            ])
        }))
    }
}

impl Oracle for Q21 {
    fn oracle(tables: &Tables) -> Rows {
        consolidated(tables.bids.iter().filter_map(|bid| {
            let (channel, url) = (bid.channel().to_string(), bid.url().to_string());
            let id = match &channel[..] {
                "Apple" => "0",
                "Google" => "1",
                "Facebook" => "2",
                "Baidu" => "3",
                // Generated pages have no other parameter after it.
                _ => url.split_once("&channel_id=")?.1,
            };
            let numbers = [bid.auction.to_string(), bid.bidder.to_string(), bid.price.to_string()];
            let [auction, bidder, price] = numbers;
            Some(row([auction, bidder, price, channel.clone(), id.to_owned()]))
        }))
    }
}

impl Oracle for Q22 {
    fn oracle(tables: &Tables) -> Rows {
        consolidated(tables.bids.iter().map(|bid| {
            let url = bid.url().to_string();
            // Generated pages are https://host/dir/dir/dir/item.htm?...
            let parts: Vec<&str> = url.split('/').collect();
            assert_eq!(parts.len(), 7, "{url}");
            row([
                bid.auction.to_string(),
                bid.bidder.to_string(),
                bid.price.to_string(),
                bid.channel().to_string(),
                parts[3].to_owned(),
                parts[4].to_owned(),
                parts[5].to_owned(),
            ])
        }))
    }
}
