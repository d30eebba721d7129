//! q103: `SELECT A.id AS auction_id, A.item_name AS auction_item_name FROM auction A WHERE A.id IN
//! (SELECT auction FROM bid GROUP BY auction HAVING COUNT(*) >= 20)`.
//!
//! Per auction id, `listed-auctions/auctions` has the number of bids and the names of its
//! auctions. From the twentieth bid on the answer is final: then the names go and further bids are
//! not counted. All else stays for ever. q104 is the same but for which auctions it lists.

use alluvium::types::hash_bytes;
use alluvium::{KeyHash, State};
use alluvium_timely::{Changes, Spec, WorkerState};

use super::per_auction::{Entry, TableRow, per_auction};
use super::{Events, Fields, Query, Row};

/// The auctions with many bids.
#[derive(Clone, Copy, Debug)]
pub struct Q103;

/// An auction.
#[derive(Clone, Debug)]
pub struct ListedRow {
    id: u64,
    item_name: String,
}

impl Row for ListedRow {
    const COLUMNS: &'static [&'static str] = &["auction_id", "auction_item_name"];

    fn fields(&self) -> Fields {
        vec![Some(self.id.to_string()), Some(self.item_name.clone())]
    }

    fn digest(&self) -> u64 {
        (self.id, hash_bytes(self.item_name.as_bytes())).key_hash()
    }
}

/// As many bids as make no difference any more.
pub(super) const MANY: u64 = 20;

/// What is kept of an auction id.
#[derive(Clone, Debug, Default, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, State)]
struct Listed {
    /// At most [`MANY`].
    bids: u64,
    /// None from [`MANY`] bids on.
    item_names: Vec<String>,
}

impl Listed {
    fn apply(
        &mut self,
        entry: &Entry,
        is_listed: impl Fn(u64) -> bool,
        emit: &mut dyn FnMut(ListedRow, i64),
    ) {
        let row = |item_name| ListedRow { id: entry.auction_id(), item_name };
        match &entry.row {
            TableRow::Auction(auction) => {
                let item_name = auction.item_name().into_owned();
                if is_listed(self.bids) {
                    emit(row(item_name.clone()), 1);
                }
                if self.bids < MANY {
                    self.item_names.push(item_name);
                }
            }
            TableRow::Bid(_) if self.bids < MANY => {
                let was_listed = is_listed(self.bids);
                self.bids += 1;
                let diff = i64::from(is_listed(self.bids)) - i64::from(was_listed);
                if diff != 0 {
                    self.item_names.iter().for_each(|name| emit(row(name.clone()), diff));
                }
                if self.bids == MANY {
                    self.item_names = Vec::new();
                }
            }
            TableRow::Bid(_) => {}
        }
    }
}

/// The auctions with so many bids that they are listed; [`MANY`] stands for any larger number.
///
/// # Errors
/// The state cannot be opened.
pub(super) fn listed_auctions<'scope>(
    events: Events<'scope>,
    state: &WorkerState,
    is_listed: impl Fn(u64) -> bool + 'static,
) -> alluvium::Result<Changes<'scope, i64, ListedRow>> {
    let fold = move |entry: &Entry, kept: &mut Listed, emit: &mut dyn FnMut(ListedRow, i64)| {
        kept.apply(entry, &is_listed, emit);
    };
    per_auction(events, state, Spec::new("listed-auctions"), fold)
}

impl Query for Q103 {
    type Row = ListedRow;
    const NAME: &'static str = "q103";

    fn build<'scope>(
        events: Events<'scope>,
        state: &WorkerState,
    ) -> alluvium::Result<Changes<'scope, i64, ListedRow>> {
        listed_auctions(events, state, |bids| bids == MANY)
    }
}
