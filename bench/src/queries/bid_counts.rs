//! How many bids the auctions of each (id, name) have: the core of q102 and q105, which then look
//! at the numbers of all auctions in one place.
//!
//! `bid-counts/auctions` has, per auction id, the number of bids and the names of its auctions, for
//! ever. Auctions and bids are multisets: two auctions of the same id and name count each bid
//! twice.

use std::cmp::Reverse;

use alluvium::types::hash_bytes;
use alluvium::{KeyHash, State};
use alluvium_timely::{Changes, Spec, WorkerState};
use serde::{Deserialize, Serialize};

use super::per_auction::{Entry, TableRow, per_auction};
use super::top::Ranked;
use super::{Events, Fields, Row};

/// An auction and its number of bids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CountRow {
    pub(super) id: u64,
    pub(super) item_name: String,
    pub(super) bids: u64,
}

impl Row for CountRow {
    const COLUMNS: &'static [&'static str] = &["auction_id", "auction_item_name", "bid_count"];

    fn fields(&self) -> Fields {
        let (id, bids) = (self.id.to_string(), self.bids.to_string());
        vec![Some(id), Some(self.item_name.clone()), Some(bids)]
    }

    fn digest(&self) -> u64 {
        (self.id, hash_bytes(self.item_name.as_bytes()), self.bids).key_hash()
    }
}

/// The (id, name) of auctions: the id, and which of its names.
pub(super) type Group = (u64, u64);

/// A group has this many bids, or more by now: numbers only grow.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[derive(rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, State)]
pub(super) struct Counted {
    pub(super) group: Group,
    pub(super) item_name: String,
    pub(super) bids: u64,
    /// That of its first auction.
    pub(super) ordinal: u64,
}

impl Counted {
    /// The row that shows it.
    pub(super) fn row(&self) -> CountRow {
        CountRow { id: self.group.0, item_name: self.item_name.clone(), bids: self.bids }
    }
}

/// More bids first, then the group that came first.
impl Ranked for Counted {
    type Rank = (Reverse<u64>, u64, Group);

    fn rank(&self) -> Self::Rank {
        (Reverse(self.bids), self.ordinal, self.group)
    }
}

/// What is kept of an auction id.
#[derive(Clone, Debug, Default, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, State)]
struct Counts {
    bids: u64,
    groups: Vec<Auctions>,
}

/// The auctions of one id and name.
#[derive(Clone, Debug, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, State)]
struct Auctions {
    item_name: String,
    number: u64,
    ordinal: u64,
}

impl Counts {
    /// Adds an auction and gives the place of its group.
    fn add(&mut self, item_name: String, ordinal: u64) -> usize {
        match self.groups.iter().position(|group| group.item_name == item_name) {
            Some(place) => {
                let group = &mut self.groups[place];
                group.number += 1;
                group.ordinal = group.ordinal.min(ordinal);
                place
            }
            None => {
                self.groups.push(Auctions { item_name, number: 1, ordinal });
                self.groups.len() - 1
            }
        }
    }

    fn counted(&self, id: u64, place: usize) -> Option<Counted> {
        let Auctions { item_name, number, ordinal } = self.groups.get(place)?;
        let bids = number.saturating_mul(self.bids);
        let (group, item_name) = ((id, place as u64), item_name.clone());
        (bids > 0).then_some(Counted { group, item_name, bids, ordinal: *ordinal })
    }
}

/// Tells how the numbers grow, as `counted` makes it into what comes out, and of each bid whether
/// it is the first for its auction id, as `bid` does.
///
/// # Errors
/// The state cannot be opened.
pub(super) fn bid_counts<'scope, R: Clone + 'static>(
    events: Events<'scope>,
    state: &WorkerState,
    counted: impl Fn(Counted) -> R + 'static,
    bid: impl Fn(bool) -> Option<R> + 'static,
) -> alluvium::Result<Changes<'scope, i64, R>> {
    let fold = move |entry: &Entry, kept: &mut Counts, emit: &mut dyn FnMut(R, i64)| {
        let id = entry.auction_id();
        let mut tell = |kept: &Counts, place| {
            if let Some(news) = kept.counted(id, place) {
                emit(counted(news), 1);
            }
        };
        match &entry.row {
            TableRow::Auction(auction) => {
                let place = kept.add(auction.item_name().into_owned(), entry.ordinal);
                tell(kept, place);
            }
            TableRow::Bid(_) => {
                kept.bids += 1;
                (0..kept.groups.len()).for_each(|place| tell(kept, place));
                if let Some(news) = bid(kept.bids == 1) {
                    emit(news, 1);
                }
            }
        }
    };
    per_auction(events, state, Spec::new("bid-counts"), fold)
}
