//! q21: `SELECT auction, bidder, price, channel, CASE WHEN lower(channel) = 'apple' THEN '0' WHEN
//! lower(channel) = 'google' THEN '1' WHEN lower(channel) = 'facebook' THEN '2' WHEN lower(channel) =
//! 'baidu' THEN '3' ELSE REGEXP_EXTRACT(url, '(&|^)channel_id=([^&]*)', 2) END AS channel_id FROM bid
//! WHERE REGEXP_EXTRACT(url, '(&|^)channel_id=([^&]*)', 2) IS NOT NULL OR lower(channel) IN ('apple',
//! 'google', 'facebook', 'baidu')`.

use alluvium::KeyHash;
use alluvium::types::hash_bytes;
use alluvium_timely::{Changes, WorkerState};

use super::{Events, Fields, Query, Row, bids};
use crate::nexmark::Bid;

/// Adds to bids the id of their channel.
#[derive(Clone, Copy, Debug)]
pub struct Q21;

/// A bid and the id of its channel.
#[derive(Clone, Debug)]
pub struct ChannelIdRow {
    bid: Bid,
    channel_id: String,
}

/// Channels with an id of their own: their places.
const CHANNELS: [&str; 4] = ["apple", "google", "facebook", "baidu"];

/// The id of a channel; `None` where its name and its page have none.
fn channel_id(channel: &str, url: &str) -> Option<String> {
    let channel = channel.to_lowercase();
    let place = CHANNELS.iter().position(|known| *known == channel);
    place.map(|place| place.to_string()).or_else(|| id_in(url).map(str::to_owned))
}

/// What follows the first `channel_id=` at the begin or after an `&`, up to the next `&`.
fn id_in(url: &str) -> Option<&str> {
    let mut parts = url.split('&');
    parts.find_map(|part| part.strip_prefix("channel_id="))
}

impl Row for ChannelIdRow {
    const COLUMNS: &'static [&'static str] =
        &["auction", "bidder", "price", "channel", "channel_id"];

    fn fields(&self) -> Fields {
        let Bid { auction, bidder, price, .. } = &self.bid;
        vec![
            Some(auction.to_string()),
            Some(bidder.to_string()),
            Some(price.to_string()),
            Some(self.bid.channel().into_owned()),
            Some(self.channel_id.clone()),
        ]
    }

    fn digest(&self) -> u64 {
        let Bid { auction, bidder, price, .. } = &self.bid;
        let channel = hash_bytes(self.bid.channel().as_bytes());
        let numbers = (*auction, *bidder, *price);
        (numbers, channel, hash_bytes(self.channel_id.as_bytes())).key_hash()
    }
}

impl Query for Q21 {
    type Row = ChannelIdRow;
    const NAME: &'static str = "q21";

    fn build<'scope>(
        events: Events<'scope>,
        _: &WorkerState,
    ) -> alluvium::Result<Changes<'scope, i64, ChannelIdRow>> {
        Ok(bids(events, |bid| {
            let channel_id = channel_id(&bid.channel(), &bid.url())?;
            Some(ChannelIdRow { bid, channel_id })
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_those_of_the_regular_expression() {
        for (channel, url, expected) in [
            ("Apple", "", Some("0")),
            ("gOOGLE", "x&channel_id=7", Some("1")),
            ("facebook", "channel_id=7", Some("2")),
            ("Baidu", "", Some("3")),
            ("channel-1", "https://a/item.htm?query=1&channel_id=99", Some("99")),
            ("channel-1", "channel_id=5&channel_id=6", Some("5")),
            ("channel-1", "a&channel_id=&channel_id=6", Some("")),
            ("channel-1", "a&channel_id=7&b=8", Some("7")),
            // Neither at the begin nor after an `&`.
            ("channel-1", "a?channel_id=7", None),
            ("channel-1", "a&xchannel_id=7", None),
            ("channel-1", "a&channel_id", None),
            ("apples", "", None),
        ] {
            assert_eq!(channel_id(channel, url).as_deref(), expected, "{channel} {url}");
        }
    }
}
