//! The columns of the three CSV files, and their rows as [`Event`]s in both directions.
//!
//! Times are milliseconds in the files and [`Time`] in the rows. What a field may hold is decided
//! here and nowhere else: whole numbers within their type, any UTF-8 text.

use std::borrow::Cow;
use std::sync::Arc;

use crate::nexmark::{Auction, AuctionText, Bid, BidText, Event, Person, PersonText, Text};
use alluvium::Time;

/// A table, in the order in which rows of equal time are merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Table {
    Person,
    Auction,
    Bid,
}

impl Table {
    pub(super) const ALL: [Table; 3] = [Table::Person, Table::Auction, Table::Bid];

    pub(super) fn file_name(self) -> &'static str {
        match self {
            Table::Person => "person.csv",
            Table::Auction => "auction.csv",
            Table::Bid => "bid.csv",
        }
    }

    /// Column names, in the order in which [`event`] and [`fields`] have them.
    pub(super) fn columns(self) -> &'static [&'static str] {
        match self {
            Table::Person => &[
                "id",
                "name",
                "email_address",
                "credit_card",
                "city",
                "state",
                "date_time_ms",
                "extra",
            ],
            Table::Auction => &[
                "id",
                "item_name",
                "description",
                "initial_bid",
                "reserve",
                "date_time_ms",
                "expires_ms",
                "seller",
                "category",
                "extra",
            ],
            Table::Bid => {
                &["auction", "bidder", "price", "channel", "url", "date_time_ms", "extra"]
            }
        }
    }

    pub(super) fn of(event: &Event) -> Self {
        match event {
            Event::Person(_) => Table::Person,
            Event::Auction(_) => Table::Auction,
            Event::Bid(_) => Table::Bid,
        }
    }
}

/// A field that does not hold what its column promises.
#[derive(Debug)]
pub(super) struct Malformed {
    pub(super) column: usize,
    pub(super) message: String,
}

/// The row of `table` whose fields are `field(0)`, `field(1)`, ... in the order of
/// [`Table::columns`].
pub(super) fn event<'a>(
    table: Table,
    field: impl Fn(usize) -> &'a str,
) -> Result<Event, Malformed> {
    let text = |column| field(column).to_owned();
    let id = |column| number::<u64>(column, field(column), "a whole number from 0");
    let amount = |column| number::<i64>(column, field(column), "a whole number");
    let time = |column| {
        let ms = number::<i64>(column, field(column), "a time in milliseconds")?;
        let in_range = ms.checked_mul(1_000_000).map(Time);
        in_range.ok_or_else(|| malformed(column, field(column), "a time in milliseconds"))
    };
    Ok(match table {
        Table::Person => Event::Person(Person {
            id: id(0)?,
            date_time: time(6)?,
            text: Text::Owned(Arc::new(PersonText {
                name: text(1),
                email_address: text(2),
                credit_card: text(3),
                city: text(4),
                state: text(5),
                extra: text(7),
            })),
        }),
        Table::Auction => Event::Auction(Auction {
            id: id(0)?,
            initial_bid: amount(3)?,
            reserve: amount(4)?,
            date_time: time(5)?,
            expires: time(6)?,
            seller: id(7)?,
            category: id(8)?,
            text: Text::Owned(Arc::new(AuctionText {
                item_name: text(1),
                description: text(2),
                extra: text(9),
            })),
        }),
        Table::Bid => Event::Bid(Bid {
            auction: id(0)?,
            bidder: id(1)?,
            price: amount(2)?,
            date_time: time(5)?,
            text: Text::Owned(Arc::new(BidText { channel: text(3), url: text(4), extra: text(6) })),
        }),
    })
}

/// The fields of `event`, in the order of its table's columns.
pub(super) fn fields(event: &Event) -> Vec<Cow<'_, str>> {
    fn shown<'a>(value: impl ToString) -> Cow<'a, str> {
        Cow::Owned(value.to_string())
    }
    match event {
        Event::Person(p) => vec![
            shown(p.id),
            p.name(),
            p.email_address(),
            p.credit_card(),
            p.city(),
            p.state(),
            shown(p.date_time.as_ms()),
            p.extra(),
        ],
        Event::Auction(a) => vec![
            shown(a.id),
            a.item_name(),
            a.description(),
            shown(a.initial_bid),
            shown(a.reserve),
            shown(a.date_time.as_ms()),
            shown(a.expires.as_ms()),
            shown(a.seller),
            shown(a.category),
            a.extra(),
        ],
        Event::Bid(b) => vec![
            shown(b.auction),
            shown(b.bidder),
            shown(b.price),
            b.channel(),
            b.url(),
            shown(b.date_time.as_ms()),
            b.extra(),
        ],
    }
}

fn number<N: std::str::FromStr>(column: usize, text: &str, what: &str) -> Result<N, Malformed> {
    text.parse().map_err(|_| malformed(column, text, what))
}

fn malformed(column: usize, text: &str, what: &str) -> Malformed {
    let shown: String = text.chars().take(40).collect();
    Malformed { column, message: format!("{shown:?} is not {what} that fits 64 bits") }
}
