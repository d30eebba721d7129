//! What q15 and q16 count of each group of bids: bids, distinct bidders and distinct auctions, of
//! all prices and of each rank.
//!
//! A set of a day's bidders would grow all day as one value. Instead each (group, bidder) and each
//! (group, auction) is a key of its own, whose value says in which ranks it was seen, so that the
//! sets can be larger than memory. Three operators: `distinct-bidders` and `distinct-auctions` keep
//! those, and tell for each batch of bids what it adds to its groups, so that little travels to
//! the one worker that has a day; `group-figures` adds that up and emits how the figures change. All
//! state stays for ever: SQL says nothing of when a day is over.

use std::collections::BTreeMap;

use alluvium::{Key, Map, State};
use alluvium_timely::{Aggregate, Changes, Context, KeyBy, Rolling, Spec, Stateful, WorkerState};
use serde::{Deserialize, Serialize};
use timely::ExchangeData;
use timely::dataflow::StreamVec;
use timely::dataflow::operators::Concat;

use super::Events;
use super::day::{minute_of_day, rank};
use crate::nexmark::{Bid, Event};
use crate::queries::row_by_row::RowByRow;

/// What bids are grouped by.
pub(super) trait Group: ExchangeData + Key + Ord {
    fn of(bid: &Bid) -> Self;
}

/// What is counted of one group; the totals of bids follow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[derive(rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, State)]
pub(super) struct Figures {
    /// By rank.
    bids: [u64; 3],
    /// All, then by rank.
    bidders: [u64; 4],
    /// All, then by rank.
    auctions: [u64; 4],
    /// The latest minute of the day.
    pub(super) minute: u16,
}

impl Figures {
    /// The twelve figures: bids, bidders, auctions, of all ranks and of each.
    pub(super) fn columns(&self) -> [u64; 12] {
        let [first, second, third] = self.bids;
        let mut columns = [0; 12];
        columns[..4].copy_from_slice(&[self.bids.iter().sum(), first, second, third]);
        columns[4..8].copy_from_slice(&self.bidders);
        columns[8..].copy_from_slice(&self.auctions);
        columns
    }

    fn add(&mut self, other: &Figures) {
        fn sum<const N: usize>(to: &mut [u64; N], from: &[u64; N]) {
            to.iter_mut().zip(from).for_each(|(to, from)| *to += from);
        }
        sum(&mut self.bids, &other.bids);
        sum(&mut self.bidders, &other.bidders);
        sum(&mut self.auctions, &other.auctions);
        self.minute = self.minute.max(other.minute);
    }
}

/// What the query sees of a bid.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Sight<G> {
    group: G,
    bidder: u64,
    auction: u64,
    rank: u8,
    minute: u16,
}

impl<G: Group> Sight<G> {
    fn of(bid: &Bid) -> Self {
        Self {
            group: G::of(bid),
            bidder: bid.bidder,
            auction: bid.auction,
            // There are three.
            rank: rank(bid.price) as u8,
            minute: minute_of_day(bid.date_time),
        }
    }
}

/// Ranks in which an id was seen, a bit each.
type Seen = u8;

/// What a sight adds to one set: whether its id is new, and in its rank.
fn news(seen: &mut Seen, rank: u8) -> [u64; 4] {
    let (before, bit) = (*seen, 1 << rank);
    *seen |= bit;
    let mut added = [u64::from(before == 0), 0, 0, 0];
    added[1 + usize::from(rank)] = u64::from(before & bit == 0);
    added
}

/// Which of a bid's ids a set is of.
#[derive(Clone, Copy)]
enum Which {
    /// Counts bids as well.
    Bidders,
    Auctions,
}

impl Which {
    fn key<G: Clone>(self, sight: &Sight<G>) -> (G, u64) {
        match self {
            Which::Bidders => (sight.group.clone(), sight.bidder),
            Which::Auctions => (sight.group.clone(), sight.auction),
        }
    }

    /// What a sight adds to the figures of its group.
    fn added<G>(self, seen: &mut Seen, sight: &Sight<G>) -> Figures {
        let added = news(seen, sight.rank);
        match self {
            Which::Auctions => Figures { auctions: added, ..Figures::default() },
            Which::Bidders => {
                let mut bids = [0; 3];
                bids[usize::from(sight.rank)] = 1;
                Figures { bids, bidders: added, minute: sight.minute, ..Figures::default() }
            }
        }
    }
}

/// What batches of bids add to their groups.
fn added<'scope, G: Group>(
    sights: StreamVec<'scope, i64, Sight<G>>,
    state: &WorkerState,
    spec: Spec,
    which: Which,
) -> alluvium::Result<Changes<'scope, i64, (G, Figures)>>
where
    (G, u64): Key + Ord,
{
    let mut sums: BTreeMap<G, Figures> = BTreeMap::new();
    let apply = move |sets: &mut Map<(G, u64), Seen>,
                      rows: &mut Vec<((G, u64), Sight<G>)>,
                      context: &mut Context<'_, i64, (G, u64), (G, Figures)>| {
        let change = |(_, sight): &((G, u64), Sight<G>), seen: &mut Seen| {
            let added = which.added(seen, sight);
            if added != Figures::default() {
                match sums.get_mut(&sight.group) {
                    Some(sum) => sum.add(&added),
                    None => drop(sums.insert(sight.group.clone(), added)),
                }
            }
        };
        let done = sets.update_batch(rows, |row| &row.0, |_| 0, change);
        while let Some(sum) = sums.pop_first() {
            context.emit(sum, 1);
        }
        done.map_err(|error| error.leave_rest(rows))
    };
    sights.key_by(state, move |sight: &Sight<G>| which.key(sight)).stateful(
        spec,
        |states| states.map("sets"),
        apply,
        |_, _, _| Ok(()),
    )
}

/// The sum of what was added.
struct Sums;

impl<G> Aggregate<((G, Figures), i64, i64)> for Sums {
    type Acc = Figures;
    type Out = Figures;

    fn init(&self) -> Figures {
        Figures::default()
    }

    fn add(&self, sums: &mut Figures, ((_, added), ..): &((G, Figures), i64, i64)) {
        sums.add(added);
    }

    fn merge(&self, sums: &mut Figures, later: &Figures) {
        sums.add(later);
    }

    fn out(&self, sums: &Figures) -> Option<Figures> {
        (*sums != Figures::default()).then_some(*sums)
    }
}

/// How the figures of groups change.
///
/// # Errors
/// A state cannot be opened.
pub(super) fn figures<'scope, G: Group>(
    events: Events<'scope>,
    state: &WorkerState,
    spec: Spec,
) -> alluvium::Result<Changes<'scope, i64, (G, Figures)>>
where
    (G, u64): Key + Ord,
{
    let sights = events.flat_map(|record| match record.event {
        Event::Bid(bid) => Some(Sight::<G>::of(&bid)),
        _ => None,
    });
    let bidders = added(sights.clone(), state, Spec::new("distinct-bidders"), Which::Bidders)?;
    let auctions = added(sights, state, Spec::new("distinct-auctions"), Which::Auctions)?;
    bidders
        .concat(auctions)
        .key_by(state, |row: &((G, Figures), i64, i64)| row.0.0.clone())
        .rolling(spec, Sums)
}
