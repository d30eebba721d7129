//! q17 to q20: bids grouped, ranked and joined.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use alluvium::Time;
use alluvium_bench::nexmark::Bid;
use alluvium_bench::queries::{Q17, Q18, Q19, Q20};

use super::{Oracle, Tables, auction_fields, bid_fields, row};
use crate::run::{Rows, consolidated};

/// `yyyy-MM-dd`, by counting days year by year and month by month.
pub(super) fn date(time: Time) -> String {
    let leap = |year: i64| year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let (mut day, mut year) = (time.as_ms().div_euclid(86_400_000), 1970);
    while day >= 365 + i64::from(leap(year)) {
        day -= 365 + i64::from(leap(year));
        year += 1;
    }
    let february = 28 + i64::from(leap(year));
    let mut month = 1;
    for days in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if day < days {
            break;
        }
        day -= days;
        month += 1;
    }
    format!("{year:04}-{month:02}-{:02}", day + 1)
}

impl Oracle for Q17 {
    fn oracle(tables: &Tables) -> Rows {
        let mut groups: BTreeMap<(u64, String), Vec<i128>> = BTreeMap::new();
        for bid in &tables.bids {
            let group = (bid.auction, date(bid.date_time));
            groups.entry(group).or_default().push(bid.price.into());
        }
        consolidated(groups.into_iter().map(|((auction, day), prices)| {
            let count = |rank: std::ops::Range<i128>| {
                prices.iter().filter(|price| rank.contains(price)).count().to_string()
            };
            let (min, max): (i128, i128) = (i64::MIN.into(), i64::MAX.into());
            let sum: i128 = prices.iter().sum();
            row([
                auction.to_string(),
                day,
                prices.len().to_string(),
                count(min..10_000),
                count(10_000..1_000_000),
                count(1_000_000..max + 1),
                prices.iter().min().unwrap().to_string(),
                prices.iter().max().unwrap().to_string(),
                (sum / prices.len() as i128).to_string(),
                sum.to_string(),
            ])
        }))
    }
}

impl Oracle for Q18 {
    fn oracle(tables: &Tables) -> Rows {
        let mut pairs: BTreeMap<(u64, u64), Vec<(usize, &Bid)>> = BTreeMap::new();
        for (place, bid) in tables.bids.iter().enumerate() {
            pairs.entry((bid.bidder, bid.auction)).or_default().push((place, bid));
        }
        consolidated(pairs.into_values().map(|bids| {
            let last = bids.into_iter().max_by_key(|(place, bid)| (bid.date_time, *place));
            (bid_fields(last.unwrap().1), 1)
        }))
    }
}

impl Oracle for Q19 {
    fn oracle(tables: &Tables) -> Rows {
        let auctions = tables.bids_by_auction().into_values();
        consolidated(auctions.flat_map(|mut bids| {
            bids.sort_by_key(|(place, bid)| (Reverse(bid.price), bid.date_time, *place));
            let ranked = (1..=10).zip(bids).map(|(rank, (_, bid))| {
                let mut fields = bid_fields(bid);
                fields.push(Some(rank.to_string()));
                (fields, 1)
            });
            ranked.collect::<Vec<_>>()
        }))
    }
}

impl Oracle for Q20 {
    fn oracle(tables: &Tables) -> Rows {
        let bids = tables.bids_by_auction();
        let auctions = tables.auctions.iter().filter(|auction| auction.category == 10);
        consolidated(auctions.flat_map(|auction| {
            let bids = bids.get(&auction.id).into_iter().flatten();
            bids.map(|(_, bid)| {
                let mut fields = bid_fields(bid);
                fields.extend(auction_fields(auction).into_iter().skip(1));
                (fields, 1)
            })
        }))
    }
}
