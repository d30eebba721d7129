//! q104: `SELECT A.id AS auction_id, A.item_name AS auction_item_name FROM auction A WHERE A.id NOT
//! IN (SELECT auction FROM bid GROUP BY auction HAVING COUNT(*) < 20)`: auctions with many bids,
//! and those with none, which the inner query does not know.
//!
//! What is kept, and when it goes, is as for q103.

use alluvium_timely::{Changes, WorkerState};

use super::q103::{ListedRow, MANY, listed_auctions};
use super::{Events, Query};

/// The auctions that do not have few bids.
#[derive(Clone, Copy, Debug)]
pub struct Q104;

impl Query for Q104 {
    type Row = ListedRow;
    const NAME: &'static str = "q104";

    fn build<'scope>(
        events: Events<'scope>,
        state: &WorkerState,
    ) -> alluvium::Result<Changes<'scope, i64, ListedRow>> {
        listed_auctions(events, state, |bids| bids == 0 || bids == MANY)
    }
}
