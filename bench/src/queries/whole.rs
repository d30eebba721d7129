//! Rows of the tables with all their columns, as state keeps them and results show them.

use alluvium::types::hash_bytes;
use alluvium::{KeyHash, State, Time};
use serde::{Deserialize, Serialize};

use super::Fields;
use crate::nexmark::{Auction, Bid, Event, Record};

/// A bid with its place in the stream, cheap to send: its strings are not made yet.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Offer {
    pub(super) ordinal: u64,
    pub(super) bid: Bid,
}

impl Offer {
    /// The event, if it is a bid.
    pub(super) fn of(Record { ordinal, event }: Record) -> Option<Self> {
        match event {
            Event::Bid(bid) => Some(Self { ordinal, bid }),
            _ => None,
        }
    }
}

/// All columns of a bid.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[derive(rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, State)]
pub(super) struct WholeBid {
    pub(super) auction: u64,
    pub(super) bidder: u64,
    pub(super) price: i64,
    pub(super) channel: String,
    pub(super) url: String,
    pub(super) date_time: Time,
    pub(super) extra: String,
}

impl From<&Bid> for WholeBid {
    fn from(bid: &Bid) -> Self {
        Self {
            auction: bid.auction,
            bidder: bid.bidder,
            price: bid.price,
            channel: bid.channel().into_owned(),
            url: bid.url().into_owned(),
            date_time: bid.date_time,
            extra: bid.extra().into_owned(),
        }
    }
}

impl WholeBid {
    /// The columns as text, in the order of the table.
    pub(super) fn fields(&self) -> Fields {
        vec![
            Some(self.auction.to_string()),
            Some(self.bidder.to_string()),
            Some(self.price.to_string()),
            Some(self.channel.clone()),
            Some(self.url.clone()),
            Some(self.date_time.as_ms().to_string()),
            Some(self.extra.clone()),
        ]
    }

    /// A hash of all columns.
    pub(super) fn digest(&self) -> u64 {
        let numbers = (self.auction, self.bidder, self.price, self.date_time);
        let texts = [&self.channel, &self.url, &self.extra].map(|text| hash_bytes(text.as_bytes()));
        (numbers, texts).key_hash()
    }
}

/// All columns of an auction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[derive(rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, State)]
pub(super) struct WholeAuction {
    pub(super) id: u64,
    pub(super) item_name: String,
    pub(super) description: String,
    pub(super) initial_bid: i64,
    pub(super) reserve: i64,
    pub(super) date_time: Time,
    pub(super) expires: Time,
    pub(super) seller: u64,
    pub(super) category: u64,
    pub(super) extra: String,
}

impl From<&Auction> for WholeAuction {
    fn from(auction: &Auction) -> Self {
        Self {
            id: auction.id,
            item_name: auction.item_name().into_owned(),
            description: auction.description().into_owned(),
            initial_bid: auction.initial_bid,
            reserve: auction.reserve,
            date_time: auction.date_time,
            expires: auction.expires,
            seller: auction.seller,
            category: auction.category,
            extra: auction.extra().into_owned(),
        }
    }
}

impl WholeAuction {
    /// The columns as text, in the order of the table.
    pub(super) fn fields(&self) -> Fields {
        vec![
            Some(self.id.to_string()),
            Some(self.item_name.clone()),
            Some(self.description.clone()),
            Some(self.initial_bid.to_string()),
            Some(self.reserve.to_string()),
            Some(self.date_time.as_ms().to_string()),
            Some(self.expires.as_ms().to_string()),
            Some(self.seller.to_string()),
            Some(self.category.to_string()),
            Some(self.extra.clone()),
        ]
    }

    /// A hash of all columns.
    pub(super) fn digest(&self) -> u64 {
        let numbers = (self.id, self.initial_bid, self.reserve, self.date_time, self.expires);
        let ids = (self.seller, self.category);
        let texts = [&self.item_name, &self.description, &self.extra];
        (numbers, ids, texts.map(|text| hash_bytes(text.as_bytes()))).key_hash()
    }
}
