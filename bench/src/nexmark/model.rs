//! The rows of the three tables, cheap to clone and ready to be sent to another worker.
//!
//! Numbers are fields; strings are behind accessors, because a generated row makes them only when
//! asked (see [`Text`]). Two rows are equal if all their columns are, wherever they came from.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::random::mix;
use super::strings::{AuctionText, BidText, PersonText, Text};
use alluvium::Time;

/// Somebody who opens auctions and bids.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Person {
    /// Who.
    pub id: u64,
    /// When he registered.
    pub date_time: Time,
    /// The strings.
    pub text: Text<PersonText>,
}

/// An item for sale.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Auction {
    /// Which.
    pub id: u64,
    /// Where bidding begins.
    pub initial_bid: i64,
    /// The seller's lowest price.
    pub reserve: i64,
    /// When it opened.
    pub date_time: Time,
    /// When it closes; a bid at this very time still counts.
    pub expires: Time,
    /// Who sells.
    pub seller: u64,
    /// What kind of item.
    pub category: u64,
    /// The strings.
    pub text: Text<AuctionText>,
}

/// An offer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Bid {
    /// For which auction.
    pub auction: u64,
    /// From whom.
    pub bidder: u64,
    /// How much.
    pub price: i64,
    /// When.
    pub date_time: Time,
    /// The strings.
    pub text: Text<BidText>,
}

/// One row of any table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// A new person.
    Person(Person),
    /// A new auction.
    Auction(Auction),
    /// A bid.
    Bid(Bid),
}

/// An event and its place in the stream, which breaks ties between rows of equal time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Position of arrival, from 0, over all workers.
    pub ordinal: u64,
    /// What arrived.
    pub event: Event,
}

impl Person {
    /// First and last name.
    pub fn name(&self) -> Cow<'_, str> {
        self.text.name()
    }

    /// Address for mail.
    pub fn email_address(&self) -> Cow<'_, str> {
        self.text.email_address()
    }

    /// Four groups of four digits.
    pub fn credit_card(&self) -> Cow<'_, str> {
        self.text.credit_card()
    }

    /// City.
    pub fn city(&self) -> Cow<'_, str> {
        self.text.city()
    }

    /// State, two upper-case letters in generated rows.
    pub fn state(&self) -> Cow<'_, str> {
        self.text.state()
    }

    /// Padding to an average of 200 bytes.
    pub fn extra(&self) -> Cow<'_, str> {
        self.text.extra()
    }
}

impl Auction {
    /// What is sold.
    pub fn item_name(&self) -> Cow<'_, str> {
        self.text.item_name()
    }

    /// More about it.
    pub fn description(&self) -> Cow<'_, str> {
        self.text.description()
    }

    /// Padding to an average of 500 bytes.
    pub fn extra(&self) -> Cow<'_, str> {
        self.text.extra()
    }
}

impl Bid {
    /// Where the bidder came from.
    pub fn channel(&self) -> Cow<'_, str> {
        self.text.channel()
    }

    /// The page he came from.
    pub fn url(&self) -> Cow<'_, str> {
        self.text.url()
    }

    /// Padding to an average of 100 bytes.
    pub fn extra(&self) -> Cow<'_, str> {
        self.text.extra()
    }
}

impl Event {
    /// When it happened.
    pub fn time(&self) -> Time {
        match self {
            Event::Person(person) => person.date_time,
            Event::Auction(auction) => auction.date_time,
            Event::Bid(bid) => bid.date_time,
        }
    }

    /// A word that changes with any number of the row; the strings have no part in it.
    pub fn digest(&self) -> u64 {
        match self {
            Event::Person(p) => fold(1, &[p.id, p.date_time.0.cast_unsigned()]),
            Event::Auction(a) => fold(
                2,
                &[
                    a.id,
                    a.initial_bid.cast_unsigned(),
                    a.reserve.cast_unsigned(),
                    a.date_time.0.cast_unsigned(),
                    a.expires.0.cast_unsigned(),
                    a.seller,
                    a.category,
                ],
            ),
            Event::Bid(b) => {
                let (price, time) = (b.price.cast_unsigned(), b.date_time.0.cast_unsigned());
                fold(3, &[b.auction, b.bidder, price, time])
            }
        }
    }
}

fn fold(table: u64, numbers: &[u64]) -> u64 {
    numbers.iter().fold(table, |digest, &number| mix(digest ^ number))
}

impl PartialEq for Person {
    fn eq(&self, other: &Self) -> bool {
        (self.id, self.date_time) == (other.id, other.date_time)
            && self.name() == other.name()
            && self.email_address() == other.email_address()
            && self.credit_card() == other.credit_card()
            && self.city() == other.city()
            && self.state() == other.state()
            && self.extra() == other.extra()
    }
}

impl Eq for Person {}

impl PartialEq for Auction {
    fn eq(&self, other: &Self) -> bool {
        let numbers = |a: &Self| {
            (a.id, a.initial_bid, a.reserve, a.date_time, a.expires, a.seller, a.category)
        };
        numbers(self) == numbers(other)
            && self.item_name() == other.item_name()
            && self.description() == other.description()
            && self.extra() == other.extra()
    }
}

impl Eq for Auction {}

impl PartialEq for Bid {
    fn eq(&self, other: &Self) -> bool {
        let numbers = |bid: &Self| (bid.auction, bid.bidder, bid.price, bid.date_time);
        numbers(self) == numbers(other)
            && self.channel() == other.channel()
            && self.url() == other.url()
            && self.extra() == other.extra()
    }
}

impl Eq for Bid {}
