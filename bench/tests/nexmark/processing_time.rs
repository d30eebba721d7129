//! Windows of when bids arrive, by a clock of the test's: what comes out is what a plain count by that
//! clock gives, whenever the bids were made and whoever they come to.

use std::collections::BTreeMap;

use alluvium::{StoreConfig, Time};
use alluvium_bench::nexmark::{Bid, BidText, Config, Event, Generator, Record, Stride, Text};
use alluvium_bench::queries::Q12ProcessingTime;
use proptest::prelude::*;

use crate::run::{Rows, consolidated, run};

const WINDOW_MS: i64 = 10_000;

type Batches = Vec<(i64, Vec<Record>)>;

/// Bids of each bidder by the window of their batch's timestamp.
fn counted(batches: &Batches) -> Rows {
    let mut counts: BTreeMap<(u64, i64), u64> = BTreeMap::new();
    for (now, records) in batches {
        let start = Time(*now).as_ms().div_euclid(WINDOW_MS) * WINDOW_MS;
        for record in records {
            if let Event::Bid(bid) = &record.event {
                *counts.entry((bid.bidder, start)).or_default() += 1;
            }
        }
    }
    let fields = counts.into_iter().map(|((bidder, start), count)| {
        let end = start + WINDOW_MS;
        let numbers = [bidder.to_string(), count.to_string(), start.to_string(), end.to_string()];
        (numbers.map(Some).into(), 1)
    });
    consolidated(fields)
}

fn bid(ordinal: u64, bidder: u64, made_ms: i64) -> Record {
    let (date_time, text) = (Time::from_ms(made_ms), Text::Owned(BidText::default().into()));
    Record { ordinal, event: Event::Bid(Bid { auction: 1, bidder, price: 1, date_time, text }) }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 15, ..ProptestConfig::default() })]

    #[test]
    fn bids_count_where_the_clock_was_when_they_came(
        ticks in prop::collection::vec(
            (0i64..9_000, prop::collection::vec((1u64..5, -60_000i64..60_000), 0..6)),
            0..40,
        ),
        begin_ms in -30_000i64..30_000,
        workers in 1usize..4,
    ) {
        let (mut now, mut ordinal) = (begin_ms, 0);
        let mut batches = Batches::new();
        for (passed, bids) in ticks {
            // Time may stand still, and windows begin at its ticks.
            now = if passed % 7 == 0 { (now / 1_000 + 1) * 1_000 } else { now + passed };
            let records = bids.into_iter().map(|(bidder, made)| {
                ordinal += 1;
                bid(ordinal - 1, bidder, made)
            });
            batches.push((Time::from_ms(now).0, records.collect()));
        }
        let expected = counted(&batches);
        let outcome = run::<Q12ProcessingTime>(workers, StoreConfig::default(), batches).unwrap();
        prop_assert_eq!(outcome.result(), expected);
    }
}

#[test]
fn a_stream_counts_alike_on_one_worker_and_on_three_and_leaves_nothing() {
    let events: Vec<_> =
        Generator::new(Config::default(), Stride::ALL).unwrap().take(20_000).collect();
    // Two thousand events a second: a tick of half a second each.
    let tick = |(n, records): (i64, &[Record])| (Time::from_ms(n * 500).0, records.to_vec());
    let batches: Batches = (0..).zip(events.chunks(1_000)).map(tick).collect();
    let expected = counted(&batches);
    assert!(expected.len() > 100, "{} rows", expected.len());
    for workers in [1, 3] {
        let batches = batches.clone();
        let outcome = run::<Q12ProcessingTime>(workers, StoreConfig::default(), batches).unwrap();
        assert!(outcome.result() == expected, "{workers} workers");
        assert_eq!(outcome.live["bids/windows"].1, 0, "{workers} workers");
    }
}
