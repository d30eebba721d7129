//! Generated streams: the queries against the oracle, on one worker and on several, and hostile
//! small streams with every step against it.

use std::path::Path;

use alluvium::config::ByteSize;
use alluvium::{Heap, HybridLog, MIB, StoreConfig, Time};
use alluvium_bench::nexmark::{Auction, Config, Event, Generator, Record, Stride};
use alluvium_bench::nexmark::{AuctionText, Bid, BidText, Text};
use alluvium_bench::queries::{
    Q0, Q1, Q2, Q3, Q3Plain, Q4, Q4HotStorage, Q4Plain, Q6, Q6HotStorage, Q6Plain, Q9, Q10, Q13,
    Q14, Q15, Q16, Q17, Q18, Q19, Q20, Q21, Q22, Q101, Q102, Q103, Q104, Q105, Q106, Query,
};
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

fn on_heap() -> StoreConfig {
    StoreConfig { layout: Heap::new().into(), ..StoreConfig::default() }
}

/// Bytes of a worker that is short of memory.
const SHORT: u64 = 2 * MIB;

/// Hybrid logs in little memory. The side of q20 that grows has a limit of its own: what is left
/// is the other one's.
fn short_of_memory(query: &str, directory: &Path, workers: usize) -> StoreConfig {
    let bids = ("expanded-bids/left".to_owned(), HybridLog::new().memory(SHORT + MIB).into());
    // Its rows of one auction are one value.
    let max_value = (query == Q20::NAME).then_some(ByteSize(400 << 10));
    let worker = match query {
        // A set of bidders is one value, which is moved when it grows.
        Q16::NAME => SHORT + SHORT / 4,
        Q20::NAME => 3 * SHORT,
        _ => SHORT,
    };
    StoreConfig {
        directory: Some(directory.to_owned()),
        memory: ByteSize(workers as u64 * worker),
        max_value,
        states: [bids].into(),
        ..StoreConfig::default()
    }
}

/// The streams that the queries are tried on.
fn configs() -> [Config; 4] {
    let default = Config { rate: 10_000, ..Config::default() };
    [
        // Half of the bids are for one of six auctions, ten of which are yet to come.
        Config { in_flight: 6, ..default.clone() },
        Config { in_flight: 100, seed: 1, ..default.clone() },
        Config { in_flight: 3_000, seed: 2, ..default.clone() },
        // All of a group's events come in any order, one millisecond has many of them.
        Config { group: 700, rate: 100_000, in_flight: 40, ..default },
    ]
}

fn the_result_is_the_oracles<Q: Oracle>() {
    the_result_is_the_oracles_of::<Q>(&configs(), 3_000);
}

/// As many events as the state of some needs to outgrow the memory.
fn the_result_is_the_oracles_and_outgrows_memory<Q: Oracle>() {
    assert!(the_result_is_the_oracles_of::<Q>(&configs()[2..], 20_000) > 0);
}

/// The first events of each stream; gives the bytes that were written to storage in all runs.
pub fn the_result_is_the_oracles_of<Q: Oracle>(configs: &[Config], events: u64) -> u64 {
    let mut written = 0;
    for (number, config) in configs.iter().enumerate() {
        let batches = stream(config, events, 300);
        let records = batches.iter().flat_map(|(_, batch)| batch);
        let expected = Q::oracle(&Tables::of(records.map(|record| record.event.clone())));
        assert!(!expected.is_empty());
        let mut checksums = Vec::new();
        for (nth, workers) in [1, 3].into_iter().enumerate() {
            let directory = tempfile::tempdir().unwrap();
            // Each number of workers has either store with half of the streams.
            let store = match (number + nth) % 2 {
                0 => short_of_memory(Q::NAME, directory.path(), workers),
                _ => on_heap(),
            };
            let context = format!("{}, {workers} workers, {store:?}, {config:?}", Q::NAME);
            let outcome = run::<Q>(workers, store, batches.clone()).expect(&context);
            assert!(outcome.result() == expected, "{context}: the result is another");
            checksums.push(outcome.checksum);
            written += outcome.written;
            if let Some((before, end)) = outcome.live.get("winning-bids/items") {
                let most = 20 * config.in_flight + 2_000;
                assert!((1..most).contains(before) && *end == 0, "{before} live items, then {end}");
            }
            for (name, (_, end)) in &outcome.live {
                assert!(!name.contains("/windows") || *end == 0, "{context}: {end} in {name}");
            }
        }
        assert!(checksums.iter().all(|&sum| sum == checksums[0]), "{checksums:x?}");
    }
    written
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
fn q3_on_plain_maps_is_the_oracles() {
    the_result_is_the_oracles::<Q3Plain>();
}

#[test]
fn q4_and_q6_of_the_testbed_on_plain_maps_are_the_oracles() {
    the_result_is_the_oracles::<Q4Plain>();
    the_result_is_the_oracles::<Q6Plain>();
}

#[test]
fn q4_is_the_oracles() {
    the_result_is_the_oracles::<Q4>();
}

#[test]
fn q13_is_the_oracles() {
    the_result_is_the_oracles::<Q13>();
}

#[test]
fn q10_is_the_oracles() {
    the_result_is_the_oracles::<Q10>();
}

#[test]
fn q14_is_the_oracles() {
    the_result_is_the_oracles::<Q14>();
}

#[test]
fn q21_is_the_oracles() {
    the_result_is_the_oracles::<Q21>();
}

#[test]
fn q22_is_the_oracles() {
    the_result_is_the_oracles::<Q22>();
}

#[test]
fn q4_hotstorage_is_the_oracles() {
    the_result_is_the_oracles::<Q4HotStorage>();
}

#[test]
fn q6_is_the_oracles() {
    the_result_is_the_oracles::<Q6>();
}

#[test]
fn q6_hotstorage_is_the_oracles() {
    the_result_is_the_oracles::<Q6HotStorage>();
}

#[test]
fn q15_is_the_oracles() {
    the_result_is_the_oracles::<Q15>();
}

#[test]
fn q17_is_the_oracles() {
    the_result_is_the_oracles::<Q17>();
}

#[test]
fn q103_is_the_oracles() {
    the_result_is_the_oracles::<Q103>();
}

#[test]
fn q104_is_the_oracles() {
    the_result_is_the_oracles::<Q104>();
}

#[test]
fn q106_is_the_oracles() {
    the_result_is_the_oracles::<Q106>();
}

#[test]
fn q101_is_the_oracles() {
    the_result_is_the_oracles::<Q101>();
}

#[test]
fn q102_is_the_oracles() {
    the_result_is_the_oracles::<Q102>();
}

#[test]
fn q105_is_the_oracles() {
    the_result_is_the_oracles::<Q105>();
}

#[test]
fn q9_is_the_oracles_and_outgrows_memory() {
    the_result_is_the_oracles_and_outgrows_memory::<Q9>();
}

#[test]
fn q16_is_the_oracles_and_outgrows_memory() {
    the_result_is_the_oracles_and_outgrows_memory::<Q16>();
}

#[test]
fn q18_is_the_oracles_and_outgrows_memory() {
    the_result_is_the_oracles_and_outgrows_memory::<Q18>();
}

#[test]
fn q19_is_the_oracles_and_outgrows_memory() {
    the_result_is_the_oracles_and_outgrows_memory::<Q19>();
}

#[test]
fn q20_is_the_oracles_and_outgrows_memory() {
    the_result_is_the_oracles_and_outgrows_memory::<Q20>();
}

/// An auction or a bid of few ids, people, categories, names, times and prices.
fn event() -> impl Strategy<Value = Event> {
    let period = (0i64..12, 0i64..6);
    let auction = (1u64..4, period, 1u64..3, 1u64..3, 0i64..6, 0..2).prop_map(
        |(id, (start, length), category, seller, reserve, name)| {
            let item_name = ["a", "b"][name as usize].to_owned();
            let text = AuctionText { item_name, ..AuctionText::default() };
            Event::Auction(Auction {
                id,
                initial_bid: 0,
                reserve,
                date_time: Time::from_ms(start),
                expires: Time::from_ms(start + length),
                seller,
                category: 9 + category,
                text: Text::Owned(text.into()),
            })
        },
    );
    let bid = (1u64..4, 1u64..4, 0i64..14, 1i64..9).prop_map(|(auction, bidder, at, price)| {
        Event::Bid(Bid {
            auction,
            bidder,
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

/// What a hostile small stream is tried on.
pub trait Trial {
    fn on<Q: Oracle>(&self) -> Result<(), TestCaseError>;

    fn on_queries_in_sql(&self) -> Result<(), TestCaseError> {
        self.on::<Q4>()?;
        self.on::<Q6>()?;
        self.on::<Q9>()?;
        self.on::<Q15>()?;
        self.on::<Q16>()?;
        self.on::<Q17>()?;
        self.on::<Q18>()?;
        self.on::<Q19>()?;
        self.on::<Q20>()?;
        self.on::<Q101>()?;
        self.on::<Q102>()?;
        self.on::<Q103>()?;
        self.on::<Q104>()?;
        self.on::<Q105>()?;
        self.on::<Q106>()
    }
}

/// Auctions share ids and categories, bids come before them, nothing may go: the changes of each
/// step are those of the oracle.
struct Steps(Vec<Vec<Record>>);

impl Trial for Steps {
    fn on<Q: Oracle>(&self) -> Result<(), TestCaseError> {
        let batches: Vec<_> = (i64::MIN..).zip(self.0.iter().cloned()).collect();
        let outcome = run::<Q>(1, StoreConfig::default(), batches).unwrap();
        let mut before = Rows::new();
        let mut events = Vec::new();
        for (time, step) in (i64::MIN..).zip(&self.0) {
            events.extend(step.iter().map(|record| record.event.clone()));
            let after = Q::oracle(&Tables::of(events.clone()));
            let gone = before.into_iter().map(|(row, diff)| (row, -diff));
            let expected = consolidated(gone.chain(after.clone()));
            let found = outcome.changes.get(&time).cloned().unwrap_or_default();
            prop_assert_eq!(found, expected, "{} step {}", Q::NAME, time - i64::MIN);
            before = after;
        }
        Ok(())
    }
}

/// Batches at their watermarks, behind which events come out of order.
pub struct OutOfOrder {
    batches: Vec<(i64, Vec<Record>)>,
    workers: usize,
}

impl OutOfOrder {
    /// Events arrive after they happened by the given milliseconds, but by `slack` at most.
    pub fn new(mut events: Vec<(Event, i64)>, slack: i64, workers: usize) -> Self {
        let arrival = |(event, late): &(Event, i64)| event.time().as_ms() + late.min(&slack);
        events.sort_by_key(arrival);
        let arrivals: Vec<i64> = events.iter().map(arrival).collect();
        let events: Vec<_> = events.into_iter().map(|(event, _)| event).collect();
        let mut batches: Vec<(i64, Vec<Record>)> = Vec::new();
        for (at, record) in arrivals.into_iter().zip(records(events)) {
            let at = Time::from_ms(at - slack).0;
            match batches.last_mut() {
                Some((last, batch)) if *last == at => batch.push(record),
                _ => batches.push((at, vec![record])),
            }
        }
        OutOfOrder { batches, workers }
    }
}

impl Trial for OutOfOrder {
    fn on<Q: Oracle>(&self) -> Result<(), TestCaseError> {
        let records = self.batches.iter().flat_map(|(_, batch)| batch);
        let expected = Q::oracle(&Tables::of(records.map(|record| record.event.clone())));
        let batches = self.batches.clone();
        let outcome = run::<Q>(self.workers, StoreConfig::default(), batches).unwrap();
        prop_assert_eq!(outcome.result(), expected, "{}", Q::NAME);
        let items = outcome.live.get("winning-bids/items").map_or(0, |(_, end)| *end);
        prop_assert_eq!(items, 0, "{}", Q::NAME);
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn steps_are_the_oracles_for_multisets(
        events in prop::collection::vec(event(), 0..40),
        lengths in prop::collection::vec(0usize..12, 1..6),
    ) {
        let mut records = records(events).into_iter();
        let steps = lengths.into_iter().map(|length| records.by_ref().take(length).collect());
        Steps(steps.collect()).on_queries_in_sql()?;
    }

    /// The same in any order that the watermark allows: events arrive up to `slack` ms late.
    /// An auction id comes once here, as it may come back after it was forgotten.
    #[test]
    fn the_result_is_the_oracles_when_events_arrive_out_of_order(
        mut events in prop::collection::vec((event(), 0i64..5), 0..60),
        slack in 0i64..5,
        workers in 1usize..3,
    ) {
        let mut seen = std::collections::BTreeSet::new();
        events.retain(|(event, _)| match event {
            Event::Auction(auction) => seen.insert(auction.id),
            _ => true,
        });
        let trial = OutOfOrder::new(events, slack, workers);
        trial.on_queries_in_sql()?;
        trial.on::<Q4HotStorage>()?;
        trial.on::<Q6HotStorage>()?;
    }
}
