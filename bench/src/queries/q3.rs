//! q3: `SELECT P.name, P.city, P.state, A.id FROM auction A JOIN person P ON A.seller = P.id
//! WHERE A.category = 10 AND P.state IN ('OR', 'ID', 'CA')`.
//!
//! Both sides are kept for ever: people by id in `local-sellers/left`, ids of auctions by seller
//! in `local-sellers/right`.

use alluvium::backend::Layout;
use alluvium::types::hash_bytes;
use alluvium::{KeyHash, State};
use alluvium_timely::{Changes, Join, KeyBy, Spec, WorkerState};
use serde::{Deserialize, Serialize};
use timely::dataflow::operators::core::OkErr;

use super::{Events, Fields, Query, Row};
use crate::nexmark::Event;
use crate::queries::row_by_row::RowByRow;

/// Who sells items of a category in some states.
#[derive(Clone, Copy, Debug)]
pub struct Q3;

/// A person who may sell.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[derive(rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, State)]
pub(super) struct Seller {
    pub(super) id: u64,
    name: String,
    city: String,
    state: String,
}

/// An auction of the category.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[derive(rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, State)]
pub(super) struct Item {
    id: u64,
    pub(super) seller: u64,
}

/// A seller and an auction.
#[derive(Clone, Debug)]
pub struct SellerRow {
    name: String,
    city: String,
    state: String,
    id: u64,
}

impl SellerRow {
    pub(super) fn of(seller: &Seller, item: &Item) -> Self {
        Self {
            name: seller.name.clone(),
            city: seller.city.clone(),
            state: seller.state.clone(),
            id: item.id,
        }
    }
}

const CATEGORY: u64 = 10;
const STATES: [&str; 3] = ["OR", "ID", "CA"];

impl Row for SellerRow {
    const COLUMNS: &'static [&'static str] = &["name", "city", "state", "id"];

    fn fields(&self) -> Fields {
        let Self { name, city, state, id } = self.clone();
        vec![Some(name), Some(city), Some(state), Some(id.to_string())]
    }

    fn digest(&self) -> u64 {
        let [name, city, state] =
            [&self.name, &self.city, &self.state].map(|text| hash_bytes(text.as_bytes()));
        (name, city, state, self.id).key_hash()
    }
}

/// What the query sees of an event.
pub(super) fn relevant(event: Event) -> Option<Result<Seller, Item>> {
    match event {
        Event::Person(person) if STATES.contains(&&*person.state()) => Some(Ok(Seller {
            id: person.id,
            name: person.name().into_owned(),
            city: person.city().into_owned(),
            state: person.state().into_owned(),
        })),
        Event::Auction(auction) if auction.category == CATEGORY => {
            Some(Err(Item { id: auction.id, seller: auction.seller }))
        }
        _ => None,
    }
}

impl Query for Q3 {
    type Row = SellerRow;
    const NAME: &'static str = "q3";

    fn build<'scope>(
        events: Events<'scope>,
        state: &WorkerState,
    ) -> alluvium::Result<Changes<'scope, i64, SellerRow>> {
        local_sellers(events, state, Spec::new("local-sellers"))
    }
}

/// The join, with its states in a layout.
pub(super) fn local_sellers<'scope, L>(
    events: Events<'scope>,
    state: &WorkerState,
    spec: Spec<L>,
) -> alluvium::Result<Changes<'scope, i64, SellerRow>>
where
    L: Layout<u64, Vec<Seller>> + Layout<u64, Vec<Item>>,
{
    let (sellers, items) = events.flat_map(|record| relevant(record.event)).ok_err(|side| side);
    let items = items.key_by(state, |item: &Item| item.seller);
    sellers
        .key_by(state, |seller: &Seller| seller.id)
        .join(items, spec, |_, seller, item| SellerRow::of(seller, item))
}
