//! Queries of windows against the oracle: on generated streams that have many windows, on hostile
//! small ones out of order, and by hand where a bid is at a window's end.

use alluvium::{StoreConfig, Time};
use alluvium_bench::nexmark::{
    Auction, AuctionText, Bid, BidText, Config, Event, Person, PersonText, Record, Text,
};
use alluvium_bench::queries::{
    Q5, Q5HotStorage, Q5Plain, Q7, Q7HotStorage, Q7Plain, Q8, Q8HotStorage, Q8Plain, Q11, Q12,
    Query,
};
use proptest::prelude::*;

use crate::generated::{OutOfOrder, Trial, the_result_is_the_oracles_of};
use crate::oracle::Oracle;
use crate::run::{Rows, consolidated, run};

/// Streams of half a minute and more.
fn the_result_is_the_oracles<Q: Oracle>() {
    let default = Config { rate: 200, ..Config::default() };
    let configs = [
        Config { in_flight: 6, ..default.clone() },
        Config { in_flight: 1_000, seed: 1, rate: 250, ..default.clone() },
        // A group's events, of more than a second, come in any order.
        Config { in_flight: 40, group: 400, ..default },
    ];
    the_result_is_the_oracles_of::<Q>(&configs, 7_500);
}

#[test]
fn q5_is_the_oracles() {
    the_result_is_the_oracles::<Q5>();
}

#[test]
fn q5_hotstorage_is_the_oracles() {
    the_result_is_the_oracles::<Q5HotStorage>();
}

#[test]
fn q5_q7_and_q8_of_the_testbed_on_plain_maps_are_the_oracles() {
    the_result_is_the_oracles::<Q5Plain>();
    the_result_is_the_oracles::<Q7Plain>();
    the_result_is_the_oracles::<Q8Plain>();
}

#[test]
fn q7_is_the_oracles() {
    the_result_is_the_oracles::<Q7>();
}

#[test]
fn q7_hotstorage_is_the_oracles() {
    the_result_is_the_oracles::<Q7HotStorage>();
}

#[test]
fn q8_is_the_oracles() {
    the_result_is_the_oracles::<Q8>();
}

#[test]
fn q8_hotstorage_is_the_oracles() {
    the_result_is_the_oracles::<Q8HotStorage>();
}

#[test]
fn q11_is_the_oracles() {
    the_result_is_the_oracles::<Q11>();
}

#[test]
fn q12_is_the_oracles() {
    the_result_is_the_oracles::<Q12>();
}

fn bid(auction: u64, bidder: u64, price: i64, at_ms: i64) -> Event {
    let text = Text::Owned(BidText::default().into());
    Event::Bid(Bid { auction, bidder, price, date_time: Time::from_ms(at_ms), text })
}

/// What comes of events that are sent at the times of the tables, each a batch of its own.
fn result<Q: Query>(events: &[(i64, Event)]) -> Rows {
    let batch = |(ordinal, (at_ms, event)): (u64, &(i64, Event))| {
        (Time::from_ms(*at_ms).0, vec![Record { ordinal, event: event.clone() }])
    };
    let batches = (0..).zip(events).map(batch).collect();
    run::<Q>(1, StoreConfig::default(), batches).unwrap().result()
}

fn rows(expected: &[&str]) -> Rows {
    let fields = |row: &&str| row.split(' ').map(|field| Some(field.replace('_', ""))).collect();
    consolidated(expected.iter().map(|row| (fields(row), 1)))
}

#[test]
fn a_bid_of_the_old_windows_price_at_its_end_is_in_q7_although_the_watermark_is_there() {
    let at_end = [
        // Sent when the watermark is at the end, which is the last moment there is.
        (14_000, bid(1, 7, 50, 14_000)),
        (20_000, bid(2, 8, 50, 20_000)),
        (21_000, bid(3, 9, 60, 21_000)),
    ];
    let expected = ["1 50 7 14000 _", "2 50 8 20000 _", "3 60 9 21000 _"];
    assert_eq!(result::<Q7>(&at_end), rows(&expected));
    // The same before the watermark is there, and with the highest price of the new window.
    let before = [(14_000, bid(1, 7, 50, 14_000)), (14_001, bid(2, 8, 50, 20_000))];
    let expected = ["1 50 7 14000 _", "2 50 8 20000 _", "2 50 8 20000 _"];
    assert_eq!(result::<Q7>(&before), rows(&expected));
    // Higher than all of the old window, it is no row of that.
    let higher = [(14_000, bid(1, 7, 50, 14_000)), (20_000, bid(2, 8, 51, 20_000))];
    assert_eq!(result::<Q7>(&higher), rows(&["1 50 7 14000 _", "2 51 8 20000 _"]));
    // Nor is it one if there is no old window.
    assert_eq!(result::<Q7>(&before[1..]), rows(&["2 50 8 20000 _"]));
}

/// Few ids and prices; times are half seconds, so that many are where windows end, and gaps are
/// as long as those of sessions.
fn event() -> impl Strategy<Value = Event> {
    let at_ms = || (-30i64..50).prop_map(|half| half * 500);
    let bid = (1u64..4, 1u64..4, 1i64..5, at_ms())
        .prop_map(|(auction, bidder, price, at)| bid(auction, bidder, price, at));
    let person = (1u64..4, 0..2, at_ms()).prop_map(|(id, name, at)| {
        let name = ["a", "b"][name as usize].to_owned();
        let text = Text::Owned(PersonText { name, ..PersonText::default() }.into());
        Event::Person(Person { id, date_time: Time::from_ms(at), text })
    });
    let auction = (1u64..4, 1u64..4, at_ms()).prop_map(|(id, seller, at)| {
        Event::Auction(Auction {
            id,
            initial_bid: 0,
            reserve: 0,
            date_time: Time::from_ms(at),
            expires: Time::from_ms(at),
            seller,
            category: 10,
            text: Text::Owned(AuctionText::default().into()),
        })
    });
    prop_oneof![3 => bid, 1 => person, 1 => auction]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn windows_are_the_oracles_when_events_arrive_out_of_order(
        events in prop::collection::vec((event(), 0i64..12_000), 0..60),
        slack in prop_oneof![Just(0i64), 0i64..12_000],
        workers in 1usize..3,
    ) {
        let trial = OutOfOrder::new(events, slack, workers);
        trial.on::<Q5>()?;
        trial.on::<Q5HotStorage>()?;
        trial.on::<Q7>()?;
        trial.on::<Q7HotStorage>()?;
        trial.on::<Q8>()?;
        trial.on::<Q8HotStorage>()?;
        trial.on::<Q11>()?;
        trial.on::<Q12>()?;
    }
}
