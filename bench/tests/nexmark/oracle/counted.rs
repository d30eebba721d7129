//! q101 to q105: auctions by their bids.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use alluvium_bench::queries::{Q101, Q102, Q103, Q104, Q105};

use super::{Oracle, Tables, row};
use crate::run::{Rows, consolidated};

impl Oracle for Q101 {
    fn oracle(tables: &Tables) -> Rows {
        let bids = tables.bids_by_auction();
        consolidated(tables.auctions.iter().map(|auction| {
            let bids = bids.get(&auction.id).into_iter().flatten();
            let highest = bids.map(|(_, bid)| bid.price).max().map(|price| price.to_string());
            let id = Some(auction.id.to_string());
            (vec![id, Some(auction.item_name().to_string()), highest], 1)
        }))
    }
}

/// An id and name of auctions, how many pairs of an auction and a bid it has, and the place of its
/// first auction.
struct Group {
    id: u64,
    item_name: String,
    pairs: u64,
    first: usize,
}

impl Group {
    fn row(self) -> (alluvium_bench::queries::Fields, i64) {
        row([self.id.to_string(), self.item_name, self.pairs.to_string()])
    }
}

/// `auction A JOIN bid B ON A.id = B.auction GROUP BY A.id, A.item_name`.
fn groups(tables: &Tables) -> Vec<Group> {
    let bids = tables.bids_by_auction();
    let mut groups: BTreeMap<(u64, String), (u64, usize)> = BTreeMap::new();
    for (place, auction) in tables.auctions.iter().enumerate() {
        let pairs = bids.get(&auction.id).map_or(0, Vec::len) as u64;
        let group = (auction.id, auction.item_name().to_string());
        groups.entry(group).or_insert((0, place)).0 += pairs;
    }
    let groups = groups.into_iter().filter(|(_, (pairs, _))| *pairs > 0);
    let group = |((id, item_name), (pairs, first))| Group { id, item_name, pairs, first };
    groups.map(group).collect()
}

impl Oracle for Q102 {
    fn oracle(tables: &Tables) -> Rows {
        let auctions = tables.bids_by_auction().len();
        let enough = |group: &Group| group.pairs >= (tables.bids.len() / auctions) as u64;
        consolidated(groups(tables).into_iter().filter(enough).map(Group::row))
    }
}

/// Auctions by the number of bids for their ids.
fn listed(tables: &Tables, is_listed: impl Fn(usize) -> bool) -> Rows {
    let bids = tables.bids_by_auction();
    let number = |id| bids.get(id).map_or(0, Vec::len);
    let auctions = tables.auctions.iter().filter(|auction| is_listed(number(&auction.id)));
    consolidated(auctions.map(|a| row([a.id.to_string(), a.item_name().to_string()])))
}

impl Oracle for Q103 {
    fn oracle(tables: &Tables) -> Rows {
        listed(tables, |bids| bids >= 20)
    }
}

impl Oracle for Q104 {
    fn oracle(tables: &Tables) -> Rows {
        // The inner query has no group of no rows.
        listed(tables, |bids| !(1..20).contains(&bids))
    }
}

impl Oracle for Q105 {
    fn oracle(tables: &Tables) -> Rows {
        let mut groups = groups(tables);
        groups.sort_by_key(|group| (Reverse(group.pairs), group.first));
        consolidated(groups.into_iter().take(1_000).map(Group::row))
    }
}
