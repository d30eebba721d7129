//! q15 and q16: bids, bidders and auctions of a day.

use std::collections::{BTreeMap, BTreeSet};

use alluvium_bench::nexmark::Bid;
use alluvium_bench::queries::{Fields, Q15, Q16};

use super::ranked::date;
use super::{Oracle, Tables};
use crate::run::{Rows, consolidated};

/// The twelve figures: all bids and those of each rank, then distinct bidders, then auctions.
fn figures(bids: &[&Bid]) -> Vec<String> {
    let (min, max): (i128, i128) = (i64::MIN.into(), i64::MAX.into());
    let ranks = [min..max + 1, min..10_000, 10_000..1_000_000, 1_000_000..max + 1];
    let of_rank = |rank: &std::ops::Range<i128>| -> Vec<&Bid> {
        bids.iter().copied().filter(|bid| rank.contains(&bid.price.into())).collect()
    };
    let by_rank: Vec<_> = ranks.iter().map(of_rank).collect();
    let distinct = |ids: fn(&Bid) -> u64| {
        let sets = by_rank.iter().map(move |bids| {
            bids.iter().map(|bid| ids(bid)).collect::<BTreeSet<_>>().len().to_string()
        });
        sets.collect::<Vec<_>>()
    };
    let counts = by_rank.iter().map(|bids| bids.len().to_string());
    counts.chain(distinct(|bid| bid.bidder)).chain(distinct(|bid| bid.auction)).collect()
}

fn with_figures(group: Vec<String>, bids: &[&Bid]) -> (Fields, i64) {
    (group.into_iter().chain(figures(bids)).map(Some).collect(), 1)
}

/// By day.
pub fn q15(tables: &Tables) -> Rows {
    let mut days: BTreeMap<String, Vec<&Bid>> = BTreeMap::new();
    for bid in &tables.bids {
        days.entry(date(bid.date_time)).or_default().push(bid);
    }
    consolidated(days.into_iter().map(|(day, bids)| with_figures(vec![day], &bids)))
}

/// By channel and day, with the latest time of day, as hour and minute.
pub fn q16(tables: &Tables) -> Rows {
    let mut groups: BTreeMap<(String, String), Vec<&Bid>> = BTreeMap::new();
    for bid in &tables.bids {
        let group = (bid.channel().to_string(), date(bid.date_time));
        groups.entry(group).or_default().push(bid);
    }
    consolidated(groups.into_iter().map(|((channel, day), bids)| {
        let minutes = bids.iter().map(|bid| {
            let minute = bid.date_time.as_ms().div_euclid(60_000);
            format!("{:02}:{:02}", minute.div_euclid(60).rem_euclid(24), minute.rem_euclid(60))
        });
        let latest = minutes.max().unwrap_or_default();
        with_figures(vec![channel, day, latest], &bids)
    }))
}

impl Oracle for Q15 {
    fn oracle(tables: &Tables) -> Rows {
        q15(tables)
    }
}

impl Oracle for Q16 {
    fn oracle(tables: &Tables) -> Rows {
        q16(tables)
    }
}
