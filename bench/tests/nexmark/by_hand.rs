//! q10 and q21, for which there are no shared cases: small inputs with rows worked out by hand.

use alluvium::{StoreConfig, Time};
use alluvium_bench::nexmark::{Auction, AuctionText, Bid, BidText, Event, Record, Text};
use alluvium_bench::queries::{Q10, Q21, Query};

use crate::run::{consolidated, run};

const DAY_MS: i64 = 86_400_000;

/// A bid on auction 1 by 2 for 3, with `extra` "x".
fn bid(channel: &str, url: &str, at_ms: i64) -> Event {
    let [channel, url, extra] = [channel, url, "x"].map(str::to_owned);
    let text = Text::Owned(BidText { channel, url, extra }.into());
    Event::Bid(Bid { auction: 1, bidder: 2, price: 3, date_time: Time::from_ms(at_ms), text })
}

/// Of which the two queries see nothing.
fn auction() -> Event {
    let (at, text) = (Time::from_ms(0), Text::Owned(AuctionText::default().into()));
    let (date_time, expires) = (at, at);
    let (initial_bid, reserve) = (1, 1);
    Event::Auction(Auction {
        id: 1,
        initial_bid,
        reserve,
        date_time,
        expires,
        seller: 9,
        category: 10,
        text,
    })
}

/// All events at one time before any of them: rows are the bids in some order.
fn the_rows_are<Q: Query>(events: &[Event], expected: &[&str]) {
    let records = events.iter().zip(0..);
    let records = records.map(|(event, ordinal)| Record { ordinal, event: event.clone() });
    let batches = vec![(i64::MIN, records.collect())];
    let rows = expected
        .iter()
        .map(|row| (row.split(' ').map(|field| Some(field.to_owned())).collect::<Vec<_>>(), 1));
    let expected = consolidated(rows);
    for workers in 1..=2 {
        let outcome = run::<Q>(workers, StoreConfig::default(), batches.clone()).unwrap();
        assert_eq!(outcome.result(), expected, "{workers} workers");
        assert!(outcome.live.is_empty(), "{:?}", outcome.live);
    }
}

#[test]
fn q10_gives_bids_their_date_and_minute() {
    let at = |ms| bid("", "", ms);
    // 2016-02-29 is day 16,860.
    let leap = 16_860 * DAY_MS;
    the_rows_are::<Q10>(
        &[at(0), auction(), at(59_999), at(60_000), at(DAY_MS - 1), at(leap + 13 * 3_600_000)],
        &[
            "1 2 3 0 x 1970-01-01 00:00",
            "1 2 3 59999 x 1970-01-01 00:00",
            "1 2 3 60000 x 1970-01-01 00:01",
            "1 2 3 86399999 x 1970-01-01 23:59",
            "1 2 3 1456750800000 x 2016-02-29 13:00",
        ],
    );
}

#[test]
fn q21_gives_bids_the_id_of_their_channel_and_drops_those_without() {
    let page = "https://www.nexmark.com/a/b/c/item.htm?query=1";
    the_rows_are::<Q21>(
        &[
            bid("Apple", page, 0),
            bid("GOOGLE", page, 0),
            bid("Facebook", &format!("{page}&channel_id=7"), 0),
            auction(),
            bid("baidu", page, 0),
            bid("channel-7", &format!("{page}&channel_id=3758096384"), 0),
            bid("channel-7", page, 0),
            // The same twice is two rows.
            bid("channel-8", "channel_id=4&channel_id=5", 0),
            bid("channel-8", "channel_id=4&channel_id=5", 1),
        ],
        &[
            "1 2 3 Apple 0",
            "1 2 3 GOOGLE 1",
            "1 2 3 Facebook 2",
            "1 2 3 baidu 3",
            "1 2 3 channel-7 3758096384",
            "1 2 3 channel-8 4",
            "1 2 3 channel-8 4",
        ],
    );
}
