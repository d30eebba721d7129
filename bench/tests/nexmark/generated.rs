//! Generated streams: the queries against the oracle, on one worker and on several, and hostile
//! small streams with every step against it.

use alluvium::{StoreConfig, Time};
use alluvium_bench::nexmark::{Auction, Config, Event, Generator, Record, Stride};
use alluvium_bench::nexmark::{AuctionText, Bid, BidText, Text};
use alluvium_bench::queries::{Q0, Q1, Q2, Q3, Q4, Q13};
use proptest::prelude::*;

use crate::oracle::{Oracle, Tables};
use crate::run::{Rows, consolidated, run};

/// A stream in batches of `size`, each at the watermark of its first event.
fn stream(config: &Config, events: u64, size: usize) -> Vec<(i64, Vec<Record>)> {
    let mut generator = Generator::new(config.clone(), Stride::ALL).unwrap();
    let mut batches: Vec<(i64, Vec<Record>)> = Vec::new();
    while generator.ordinal() < events {
        let Time(at) = generator.watermark();
        let mut batch: Vec<_> = generator.by_ref().take(size).collect();
        batch.retain(|record| record.ordinal < events);
        match batches.last_mut() {
            Some((last, records)) if *last == at => records.append(&mut batch),
            _ => batches.push((at, batch)),
        }
    }
    batches
}

fn the_result_is_the_oracles<Q: Oracle>() {
    let default = Config { rate: 10_000, ..Config::default() };
    for config in [
        // Half of the bids are for one of six auctions, ten of which are yet to come.
        Config { in_flight: 6, ..default.clone() },
        Config { in_flight: 100, seed: 1, ..default.clone() },
        Config { in_flight: 3_000, seed: 2, ..default.clone() },
        // All of a group's events come in any order, one millisecond has many of them.
        Config { group: 700, rate: 100_000, in_flight: 40, ..default },
    ] {
        let batches = stream(&config, 20_000, 300);
        let events = batches.iter().flat_map(|(_, batch)| batch);
        let expected = Q::oracle(&Tables::of(events.map(|record| record.event.clone())));
        assert!(!expected.is_empty());
        let mut checksums = Vec::new();
        for workers in 1..=3 {
            let outcome = run::<Q>(workers, StoreConfig::default(), batches.clone()).unwrap();
            assert_eq!(outcome.result(), expected, "{}, {workers} workers, {config:?}", Q::NAME);
            checksums.push(outcome.checksum);
            if let Some((before, end)) = outcome.live.get("winning-bids/items") {
                let most = 20 * config.in_flight + 2_000;
                assert!((1..most).contains(before) && *end == 0, "{before} live items, then {end}");
            }
        }
        assert!(checksums.iter().all(|&sum| sum == checksums[0]), "{checksums:x?}");
    }
}

#[test]
fn q0_is_the_oracles() {
    the_result_is_the_oracles::<Q0>();
}

#[test]
fn q1_is_the_oracles() {
    the_result_is_the_oracles::<Q1>();
}

#[test]
fn q2_is_the_oracles() {
    the_result_is_the_oracles::<Q2>();
}

#[test]
fn q3_is_the_oracles() {
    the_result_is_the_oracles::<Q3>();
}

#[test]
fn q4_is_the_oracles() {
    the_result_is_the_oracles::<Q4>();
}

#[test]
fn q13_is_the_oracles() {
    the_result_is_the_oracles::<Q13>();
}

/// An auction or a bid of few ids, categories, times and prices.
fn event() -> impl Strategy<Value = Event> {
    let auction =
        (1u64..4, 0i64..12, 0i64..6, 1u64..3).prop_map(|(id, start, length, category)| {
            Event::Auction(Auction {
                id,
                initial_bid: 0,
                reserve: 0,
                date_time: Time::from_ms(start),
                expires: Time::from_ms(start + length),
                seller: 0,
                category,
                text: Text::Owned(AuctionText::default().into()),
            })
        });
    let bid = (1u64..4, 0i64..14, 1i64..9).prop_map(|(auction, at, price)| {
        Event::Bid(Bid {
            auction,
            bidder: 0,
            price,
            date_time: Time::from_ms(at),
            text: Text::Owned(BidText::default().into()),
        })
    });
    prop_oneof![1 => auction, 2 => bid]
}

fn records(events: Vec<Event>) -> Vec<Record> {
    (0..).zip(events).map(|(ordinal, event)| Record { ordinal, event }).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    /// Auctions share ids and categories, bids come before them, nothing may go: the changes of
    /// each step are those of the oracle.
    #[test]
    fn q4_steps_are_the_oracles_for_multisets(
        steps in prop::collection::vec(prop::collection::vec(event(), 0..8), 1..6),
    ) {
        let batches: Vec<_> = (i64::MIN..).zip(steps.iter().cloned().map(records)).collect();
        let outcome = run::<Q4>(1, StoreConfig::default(), batches).unwrap();
        let mut before = Rows::new();
        let mut events = Vec::new();
        for (time, step) in (i64::MIN..).zip(steps) {
            events.extend(step);
            let after = Q4::oracle(&Tables::of(events.clone()));
            let gone = before.into_iter().map(|(row, diff)| (row, -diff));
            let expected = consolidated(gone.chain(after.clone()));
            let found = outcome.changes.get(&time).cloned().unwrap_or_default();
            prop_assert_eq!(found, expected, "step {}", time - i64::MIN);
            before = after;
        }
    }

    /// The same in any order that the watermark allows: events arrive up to `slack` ms late.
    /// Categories are by id here, as an id may come back after it was forgotten.
    #[test]
    fn q4_is_the_oracles_when_events_arrive_out_of_order(
        mut events in prop::collection::vec((event(), 0i64..5), 0..60),
        slack in 0i64..5,
        workers in 1usize..3,
    ) {
        let mut seen = std::collections::BTreeSet::new();
        events.retain(|(event, _)| match event {
            Event::Auction(auction) => seen.insert(auction.id),
            _ => true,
        });
        events.sort_by_key(|(event, late)| event.time().as_ms() + late.min(&slack));
        let arrival: Vec<i64> =
            events.iter().map(|(event, late)| event.time().as_ms() + late.min(&slack)).collect();
        let mut batches: Vec<(i64, Vec<Record>)> = Vec::new();
        let events: Vec<_> = events.into_iter().map(|(event, _)| event).collect();
        for (at, record) in arrival.into_iter().zip(records(events.clone())) {
            let at = Time::from_ms(at - slack).0;
            match batches.last_mut() {
                Some((last, batch)) if *last == at => batch.push(record),
                _ => batches.push((at, vec![record])),
            }
        }
        let outcome = run::<Q4>(workers, StoreConfig::default(), batches).unwrap();
        prop_assert_eq!(outcome.result(), Q4::oracle(&Tables::of(events)));
        prop_assert_eq!(outcome.live["winning-bids/items"].1, 0);
    }
}
