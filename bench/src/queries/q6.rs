//! q6: `SELECT Q.seller, AVG(Q.price) OVER (PARTITION BY Q.seller ORDER BY Q.date_time
//! ROWS BETWEEN 10 PRECEDING AND CURRENT ROW) AS avg FROM (SELECT A.id, A.seller, B.price,
//! B.date_time, ROW_NUMBER() OVER (PARTITION BY A.id, A.seller ORDER BY B.price DESC) AS rownum
//! FROM auction A, bid B WHERE A.id = B.auction AND B.date_time BETWEEN A.date_time AND A.expires)
//! Q WHERE rownum <= 1`: a row per auction with a bid, averages truncated. Of bids of equal price
//! the earlier one wins, of those of equal time the one that came first; in a frame, which has
//! eleven rows, winners are ordered in the same way.
//!
//! Two operators. `winning-bids` (see `winning.rs`, also for when its state goes) tells which bid
//! wins each (id, seller). `seller-averages` keeps, per seller, the winners in the order of the
//! frame. A winner is settled when W > the close of its auction: it stays what it is, and winners
//! to come are after it. When a seller's list is full, all settled winners go but the last ten
//! before the first that is not settled, which later frames reach back to; those stay for ever.

use std::cmp::Reverse;

use alluvium::{KeyHash, Map, State, Time};
use alluvium_timely::{Changes, Context, KeyBy, Spec, Stateful, WorkerState};
use serde::{Deserialize, Serialize};

use super::winning::{Raise, Rules, winning};
use super::{Events, Fields, Query, Row};
use crate::nexmark::{Auction, Bid};

/// The averages of a seller's last prices.
#[derive(Clone, Copy, Debug)]
pub struct Q6;

/// A seller and an average.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SellerAverageRow {
    seller: u64,
    average: i64,
}

impl Row for SellerAverageRow {
    const COLUMNS: &'static [&'static str] = &["seller", "avg"];

    fn fields(&self) -> Fields {
        vec![Some(self.seller.to_string()), Some(self.average.to_string())]
    }

    fn digest(&self) -> u64 {
        (self.seller, self.average).key_hash()
    }
}

/// A bid as far as it matters for who wins and when.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[derive(rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, State)]
struct Offer {
    price: i64,
    date_time: Time,
    ordinal: u64,
}

impl Offer {
    fn rank(&self) -> (Reverse<i64>, Time, u64) {
        (Reverse(self.price), self.date_time, self.ordinal)
    }
}

/// The winner of each (auction id, seller).
struct BySeller;

impl Rules for BySeller {
    type Lot = u64;
    type Bid = Offer;
    type Best = Offer;
    type Rank = (Reverse<i64>, Time, u64);
    type Out = Won;

    fn lot(auction: &Auction, _: u64) -> u64 {
        auction.seller
    }

    fn bid(bid: &Bid, ordinal: u64) -> Offer {
        Offer { price: bid.price, date_time: bid.date_time, ordinal }
    }

    fn time(bid: &Offer) -> Time {
        bid.date_time
    }

    fn same_group(one: &u64, other: &u64) -> bool {
        one == other
    }

    fn best(bid: &Offer) -> Offer {
        *bid
    }

    fn rank_of_bid(_: &u64, bid: &Offer) -> Self::Rank {
        bid.rank()
    }

    fn rank(_: &u64, best: &Offer) -> Self::Rank {
        best.rank()
    }

    fn raised(raise: Raise<'_, Self>, mut out: impl FnMut(Won, i64)) {
        let Raise { auction, expires, to, .. } = raise;
        out(Won { seller: *to.lot, sale: Sale { auction, expires, bid: *to.best } }, 1);
    }
}

/// A seller's auction has this winner, or a better one.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Won {
    seller: u64,
    sale: Sale,
}

/// An auction with its winner.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[derive(rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, State)]
struct Sale {
    auction: u64,
    /// When the auction closes, as far as is known.
    expires: Time,
    bid: Offer,
}

impl Sale {
    /// Its place in the frame.
    fn order(&self) -> (Time, u64) {
        (self.bid.date_time, self.bid.ordinal)
    }
}

/// Rows of a frame that are before the current one.
const PRECEDING: usize = 10;

/// The truncated average of the frame of the row at `place`.
fn average(sales: &[Sale], place: usize) -> i64 {
    let frame = &sales[place.saturating_sub(PRECEDING)..=place];
    let sum: i128 = frame.iter().map(|sale| i128::from(sale.bid.price)).sum();
    // An average of 64-bit numbers is one.
    i64::try_from(sum / frame.len() as i128).unwrap_or(i64::MAX)
}

/// Drops what no frame will reach back to.
fn settle(sales: &mut Vec<Sale>, watermark: Time) {
    let open = sales.iter().position(|sale| sale.expires >= watermark).unwrap_or(sales.len());
    sales.drain(..open.saturating_sub(PRECEDING));
}

/// Puts `sale` in its place and says how the averages change. What is told in another order, or
/// twice, comes to the same.
fn record(sales: &mut Vec<Sale>, mut sale: Sale, watermark: Time, changed: impl FnMut((i64, i64))) {
    if sales.len() == sales.capacity() {
        settle(sales, watermark);
    }
    let is_same = |known: &Sale| known.auction == sale.auction && known.expires >= watermark;
    let known = sales.iter().position(is_same);
    if let Some(at) = known {
        sale.expires = sale.expires.max(sales[at].expires);
        if sales[at].bid.rank() <= sale.bid.rank() {
            sales[at].expires = sale.expires;
            return;
        }
    }
    let others = sales.iter().enumerate().filter(|(at, _)| Some(*at) != known);
    let place = others.filter(|(_, other)| other.order() < sale.order()).count();
    // The rows whose frames change, and how many there are of them before and after.
    let first = known.map_or(place, |at| at.min(place));
    let last = known.map_or(place, |at| at.max(place)) + PRECEDING;
    let averages = |sales: &[Sale], rows: std::ops::RangeInclusive<usize>, diff| {
        let rows = rows.take_while(|row| *row < sales.len());
        rows.map(|row| (average(sales, row), diff)).collect::<Vec<_>>()
    };
    let before = match known {
        Some(_) => averages(sales, first..=last, -1),
        None => averages(sales, first..=last - 1, -1),
    };
    if let Some(at) = known {
        sales.remove(at);
    }
    sales.insert(place, sale);
    let after = averages(sales, first..=last, 1);
    net(before.into_iter().chain(after)).for_each(changed);
}

/// Adds up the changes of each average and leaves out those that cancel.
fn net(changes: impl Iterator<Item = (i64, i64)>) -> impl Iterator<Item = (i64, i64)> {
    let mut changes: Vec<_> = changes.collect();
    changes.sort_unstable();
    let mut sums: Vec<(i64, i64)> = Vec::new();
    for (average, diff) in changes {
        match sums.last_mut() {
            Some(sum) if sum.0 == average => sum.1 += diff,
            _ => sums.push((average, diff)),
        }
    }
    sums.into_iter().filter(|sum| sum.1 != 0)
}

type Sales = Map<u64, Vec<Sale>>;
type Keyed = (u64, (Won, i64, i64));

fn apply(
    sales: &mut Sales,
    rows: &mut Vec<Keyed>,
    context: &mut Context<'_, i64, u64, SellerAverageRow>,
) -> alluvium::Result<()> {
    let watermark = context.watermark();
    let change = |(seller, (won, ..)): &Keyed, sales: &mut Vec<Sale>| {
        record(sales, won.sale, watermark, |(average, diff)| {
            context.emit(SellerAverageRow { seller: *seller, average }, diff);
        });
    };
    let done = sales.update_batch(rows, |row| &row.0, |_| Vec::new(), change);
    done.map_err(|error| error.leave_rest(rows))
}

impl Query for Q6 {
    type Row = SellerAverageRow;
    const NAME: &'static str = "q6";

    fn build<'scope>(
        events: Events<'scope>,
        state: &WorkerState,
    ) -> alluvium::Result<Changes<'scope, i64, SellerAverageRow>> {
        winning::<BySeller>(events, state)?
            .key_by(state, |won: &(Won, i64, i64)| won.0.seller)
            .stateful(
                Spec::new("seller-averages"),
                |states| states.map("sales"),
                |sales: &mut Sales, rows, context| apply(sales, rows, context),
                |_, _, _| Ok(()),
            )
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Changes of averages, added up.
    #[derive(Default)]
    struct Sums(BTreeMap<i64, i64>);

    impl Sums {
        fn add(&mut self, (average, diff): (i64, i64)) {
            *self.0.entry(average).or_default() += diff;
            self.0.retain(|_, sum| *sum != 0);
        }
    }

    fn sale(auction: u64, price: i64, time: i64, expires: i64) -> Sale {
        let date_time = Time(time);
        let bid = Offer { price, date_time, ordinal: 1000 * auction + price.unsigned_abs() };
        Sale { auction, expires: Time(expires), bid }
    }

    /// The averages of all frames over the best of each auction.
    fn recomputed(told: &[Sale]) -> BTreeMap<i64, i64> {
        let mut best: BTreeMap<u64, Sale> = BTreeMap::new();
        for sale in told {
            let known = best.entry(sale.auction).or_insert(*sale);
            if sale.bid.rank() < known.bid.rank() {
                *known = *sale;
            }
        }
        let mut sales: Vec<_> = best.into_values().collect();
        sales.sort_by_key(Sale::order);
        let mut sums = Sums::default();
        (0..sales.len()).for_each(|row| sums.add((average(&sales, row), 1)));
        sums.0
    }

    #[test]
    fn changes_add_up_whatever_the_order_in_which_winners_are_told() {
        let mut told = Vec::new();
        let (mut sales, mut sums) = (Vec::new(), Sums::default());
        for n in 0..600u64 {
            let word = n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20;
            let (auction, price) = (word % 40, (word >> 8) % 500);
            told.push(sale(auction, price as i64, (word >> 17) as i64 % 90, 100));
            record(&mut sales, told[told.len() - 1], Time::MIN, |change| sums.add(change));
            assert_eq!(sums.0, recomputed(&told), "after {n}");
        }
        assert_eq!(sales.len(), 40);
    }

    #[test]
    fn settled_winners_go_and_the_averages_stay_right() {
        let mut told = Vec::new();
        let (mut sales, mut sums) = (Vec::new(), Sums::default());
        for n in 0..500i64 {
            let word = (n as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20;
            // An auction opens at each instant and is open for up to 30; each gets three bids.
            let auction = n - (word % 3) as i64 * 8;
            let expires = auction + (auction * 7).rem_euclid(30);
            if auction >= 0 && n <= expires {
                told.push(sale(auction as u64, (word >> 9) as i64 % 99, n, expires));
                record(&mut sales, told[told.len() - 1], Time(n), |change| sums.add(change));
                assert_eq!(sums.0, recomputed(&told), "at {n}");
            }
            assert!(sales.capacity() <= 128, "{} of {}", sales.len(), told.len());
        }
        settle(&mut sales, Time::MAX);
        assert_eq!(sales.len(), PRECEDING);
    }
}
