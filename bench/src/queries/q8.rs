//! q8: people who opened an auction in the tumbling window of 10 s in which they registered:
//! `SELECT P.id, P.name, P.starttime FROM (SELECT id, name, window_start AS starttime FROM
//! TUMBLE(person, 10 s) GROUP BY id, name, starttime) P JOIN (SELECT seller, window_start AS starttime
//! FROM TUMBLE(auction, 10 s) GROUP BY seller, starttime) A ON P.id = A.seller AND P.starttime =
//! A.starttime`, once for each person, name and window.
//!
//! `q8-hotstorage` is the testbed's: the seller of each auction that was opened before 12 hours
//! after he registered, also before that.
//!
//! `newcomers` has by person and window the names and whether there was an auction. The testbed's
//! variant never knows whether a person is still to come, so it keeps both sides for ever, in
//! `sellers/left` and `sellers/right`.

use alluvium::backend::Layout;
use alluvium::time::nanos;
use alluvium::types::hash_bytes;
use alluvium::{KeyHash, SECOND, State, Time, Window, Windows};
use alluvium_timely::{Aggregate, Changes, Join, KeyBy, Spec, Windowing, WorkerState};
use serde::{Deserialize, Serialize};
use timely::dataflow::StreamVec;
use timely::dataflow::operators::core::OkErr;

use super::{Events, Fields, Query, Row};
use crate::nexmark::Event;
use crate::queries::row_by_row::RowByRow;

/// New people who opened auctions.
#[derive(Clone, Copy, Debug)]
pub struct Q8;

/// The testbed's q8.
#[derive(Clone, Copy, Debug)]
pub struct Q8HotStorage;

/// A person and the window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewcomerRow {
    id: u64,
    name: String,
    start: Time,
}

impl Row for NewcomerRow {
    const COLUMNS: &'static [&'static str] = &["id", "name", "starttime"];

    fn fields(&self) -> Fields {
        let start = self.start.as_ms().to_string();
        vec![Some(self.id.to_string()), Some(self.name.clone()), Some(start)]
    }

    fn digest(&self) -> u64 {
        (self.id, hash_bytes(self.name.as_bytes()), self.start.0).key_hash()
    }
}

/// A person who sells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SellerRow {
    pub(super) id: u64,
}

impl Row for SellerRow {
    const COLUMNS: &'static [&'static str] = &["id"];

    fn fields(&self) -> Fields {
        vec![Some(self.id.to_string())]
    }

    fn digest(&self) -> u64 {
        self.id.key_hash()
    }
}

/// A person, by name, or an auction of one.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Deed {
    person: u64,
    at: Time,
    /// Of an auction `None`.
    name: Option<String>,
}

impl Deed {
    fn of(event: &Event) -> Option<Self> {
        match event {
            Event::Person(person) => Some(Self {
                person: person.id,
                at: person.date_time,
                name: Some(person.name().into_owned()),
            }),
            Event::Auction(auction) => {
                Some(Self { person: auction.seller, at: auction.date_time, name: None })
            }
            Event::Bid(_) => None,
        }
    }
}

/// What a person did in a window.
#[derive(Clone, Debug, Default, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, State)]
struct Deeds {
    /// Each once, in order.
    names: Vec<String>,
    has_sold: bool,
}

struct Newcomers;

impl Aggregate<Deed> for Newcomers {
    type Acc = Deeds;
    type Out = Vec<String>;

    fn init(&self) -> Deeds {
        Deeds::default()
    }

    fn add(&self, deeds: &mut Deeds, deed: &Deed) {
        match &deed.name {
            None => deeds.has_sold = true,
            Some(name) => {
                if let Err(place) = deeds.names.binary_search(name) {
                    deeds.names.insert(place, name.clone());
                }
            }
        }
    }

    fn merge(&self, deeds: &mut Deeds, later: &Deeds) {
        deeds.has_sold |= later.has_sold;
        deeds.names.extend(later.names.iter().cloned());
        deeds.names.sort_unstable();
        deeds.names.dedup();
    }

    fn out(&self, deeds: &Deeds) -> Option<Vec<String>> {
        (deeds.has_sold && !deeds.names.is_empty()).then(|| deeds.names.clone())
    }
}

impl Query for Q8 {
    type Row = NewcomerRow;
    const NAME: &'static str = "q8";

    fn build<'scope>(
        events: Events<'scope>,
        state: &WorkerState,
    ) -> alluvium::Result<Changes<'scope, i64, NewcomerRow>> {
        let newcomers = events
            .flat_map(|record| Deed::of(&record.event))
            .key_by(state, |deed: &Deed| deed.person)
            .window(Windows::tumbling(nanos(10 * SECOND)), |deed: &Deed| deed.at)
            .aggregate(Spec::new("newcomers"), Newcomers)?;
        Ok(newcomers.results.flat_map(|((id, Window { start, .. }, names), time, diff)| {
            let rows = names.into_iter().map(move |name| NewcomerRow { id, name, start });
            rows.map(move |row| (row, time, diff))
        }))
    }
}

/// How long a person is new to the testbed.
const NEW: i64 = 12 * 3_600 * SECOND;

impl Query for Q8HotStorage {
    type Row = SellerRow;
    const NAME: &'static str = "q8-hotstorage";

    fn build<'scope>(
        events: Events<'scope>,
        state: &WorkerState,
    ) -> alluvium::Result<Changes<'scope, i64, SellerRow>> {
        sellers(events, state, Spec::new("sellers"))
    }
}

/// People, and those who opened auctions, with the times.
type Sides<'scope> = (StreamVec<'scope, i64, (u64, Time)>, StreamVec<'scope, i64, (u64, Time)>);

/// What the testbed's q8 sees of the events.
pub(super) fn deeds(events: Events<'_>) -> Sides<'_> {
    let deeds = events.flat_map(|record| match record.event {
        Event::Person(person) => Some(Ok((person.id, person.date_time))),
        Event::Auction(auction) => Some(Err((auction.seller, auction.date_time))),
        Event::Bid(_) => None,
    });
    deeds.ok_err(|deed| deed)
}

/// A person who opened an auction while new.
pub(super) fn is_seller(person: &(u64, Time), auction: &(u64, Time)) -> Option<SellerRow> {
    (auction.1 < person.1.plus(NEW)).then_some(SellerRow { id: person.0 })
}

/// The testbed's join, with its states in a layout.
pub(super) fn sellers<'scope, L: Layout<u64, Vec<(u64, Time)>>>(
    events: Events<'scope>,
    state: &WorkerState,
    spec: Spec<L>,
) -> alluvium::Result<Changes<'scope, i64, SellerRow>> {
    let (people, auctions) = deeds(events);
    let key = |row: &(u64, Time)| row.0;
    let auctions = auctions.key_by(state, key);
    let pairs = people
        .key_by(state, key)
        .join(auctions, spec, |_, person, auction| is_seller(person, auction))?;
    Ok(pairs.flat_map(|(row, time, diff)| row.map(|row| (row, time, diff))))
}
