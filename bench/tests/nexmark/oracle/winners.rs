//! q6, q9, q106 and the HotStorage'20 variants: winning bids.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use alluvium_bench::nexmark::{Auction, Bid};
use alluvium_bench::queries::{Q4HotStorage, Q4Plain, Q6, Q6HotStorage, Q6Plain, Q9, Q106};

use super::{Oracle, Tables, auction_fields, row};
use crate::run::{Rows, consolidated};

/// An auction, a bid for it, and their places in the tables.
type Pair<'a> = ((usize, &'a Auction), (usize, &'a Bid));

impl Tables {
    /// All auctions with all bids that `counts`.
    fn pairs(&self, counts: impl Fn(&Auction, &Bid) -> bool) -> Vec<Pair<'_>> {
        let bids = self.bids_by_auction();
        let mut pairs = Vec::new();
        for auction in self.auctions.iter().enumerate() {
            let bids = bids.get(&auction.1.id).into_iter().flatten();
            pairs.extend(bids.filter(|bid| counts(auction.1, bid.1)).map(|&bid| (auction, bid)));
        }
        pairs
    }
}

/// The SQL condition.
fn in_period(auction: &Auction, bid: &Bid) -> bool {
    auction.date_time <= bid.date_time && bid.date_time <= auction.expires
}

/// The best pair of each group: by price, time, then arrival of the bid and of the auction.
fn winners<'a, G: Ord>(
    pairs: Vec<Pair<'a>>,
    group: impl Fn(&Pair<'a>) -> G,
) -> BTreeMap<G, Pair<'a>> {
    let mut groups: BTreeMap<G, Vec<Pair<'a>>> = BTreeMap::new();
    for pair in pairs {
        groups.entry(group(&pair)).or_default().push(pair);
    }
    let best = |mut pairs: Vec<Pair<'a>>| {
        pairs.sort_by_key(|(auction, (place, bid))| {
            (Reverse(bid.price), bid.date_time, *place, auction.0)
        });
        pairs[0]
    };
    groups.into_iter().map(|(group, pairs)| (group, best(pairs))).collect()
}

fn average(prices: &[i64]) -> String {
    let sum: i128 = prices.iter().copied().map(i128::from).sum();
    (sum / prices.len() as i128).to_string()
}

impl Oracle for Q6 {
    fn oracle(tables: &Tables) -> Rows {
        let winners = winners(tables.pairs(in_period), |((_, a), _)| (a.id, a.seller));
        let mut sellers: BTreeMap<u64, Vec<(usize, &Bid)>> = BTreeMap::new();
        for ((_, seller), (_, bid)) in winners {
            sellers.entry(seller).or_default().push(bid);
        }
        let mut rows = Vec::new();
        for (seller, mut bids) in sellers {
            bids.sort_by_key(|(place, bid)| (bid.date_time, *place));
            let prices: Vec<i64> = bids.iter().map(|(_, bid)| bid.price).collect();
            for current in 0..prices.len() {
                let first = current.saturating_sub(10);
                rows.push(row([seller.to_string(), average(&prices[first..=current])]));
            }
        }
        consolidated(rows)
    }
}

impl Oracle for Q9 {
    fn oracle(tables: &Tables) -> Rows {
        let winners = winners(tables.pairs(in_period), |((_, auction), _)| auction.id);
        consolidated(winners.into_values().map(|((_, auction), (_, bid))| {
            let mut fields = auction_fields(auction);
            fields.extend([
                Some(bid.auction.to_string()),
                Some(bid.bidder.to_string()),
                Some(bid.price.to_string()),
                Some(bid.date_time.as_ms().to_string()),
                Some(bid.extra().to_string()),
            ]);
            (fields, 1)
        }))
    }
}

impl Oracle for Q106 {
    fn oracle(tables: &Tables) -> Rows {
        let winners = winners(tables.pairs(in_period), |((_, auction), _)| auction.id);
        let lowest = winners.values().map(|(_, (_, bid))| bid.price).min();
        consolidated([(vec![lowest.map(|price| price.to_string())], 1)])
    }
}

/// The winners of single auctions in the order in which those close.
fn closes(tables: &Tables) -> Vec<Pair<'_>> {
    let pairs = tables.pairs(|auction, bid| {
        let is_open = auction.date_time <= bid.date_time && bid.date_time < auction.expires;
        is_open && bid.price >= auction.reserve
    });
    let winners = winners(pairs, |((place, _), _)| *place);
    let mut closes: Vec<_> = winners.into_values().collect();
    closes.sort_by_key(|((place, auction), _)| (auction.expires, *place));
    closes
}

/// A row per close: the key and the average of its last `limit` prices.
fn running(tables: &Tables, limit: usize, key: impl Fn(&Pair<'_>) -> u64) -> Rows {
    let mut prices: BTreeMap<u64, Vec<i64>> = BTreeMap::new();
    let mut rows = Vec::new();
    for pair in closes(tables) {
        let prices = prices.entry(key(&pair)).or_default();
        prices.push(pair.1.1.price);
        let last = &prices[prices.len().saturating_sub(limit)..];
        rows.push(row([key(&pair).to_string(), average(last)]));
    }
    consolidated(rows)
}

impl Oracle for Q4Plain {
    fn oracle(tables: &Tables) -> Rows {
        Q4HotStorage::oracle(tables)
    }
}

impl Oracle for Q4HotStorage {
    fn oracle(tables: &Tables) -> Rows {
        running(tables, usize::MAX, |((_, auction), _)| auction.category)
    }
}

impl Oracle for Q6Plain {
    fn oracle(tables: &Tables) -> Rows {
        Q6HotStorage::oracle(tables)
    }
}

impl Oracle for Q6HotStorage {
    fn oracle(tables: &Tables) -> Rows {
        running(tables, 10, |(_, (_, bid))| bid.bidder)
    }
}
