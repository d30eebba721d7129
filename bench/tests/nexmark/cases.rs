//! The shared cases: small inputs with the change of the result that each step must cause.

use std::collections::BTreeMap;

use alluvium::{StoreConfig, Time};
use alluvium_bench::input::{Case, Insert, read_cases, shared_dir};
use alluvium_bench::nexmark::{Bid, Event, Record};
use alluvium_bench::queries::{
    Fields, Q0, Q1, Q2, Q3, Q4, Q5, Q6, Q7, Q8, Q9, Q10, Q12, Q13, Q14, Q15, Q16, Q17, Q18, Q19,
    Q20, Q22, Query, Row, SideTable,
};

use crate::run::{Rows, consolidated, run_with};

fn cases<Q: Query>() -> Vec<Case> {
    cases_named(Q::NAME)
}

pub fn cases_named(query: &str) -> Vec<Case> {
    let Some(shared) = shared_dir(&format!("the cases of {query}")) else { return vec![] };
    read_cases(&shared.join(format!("data/nexmark-cases/{query}.jsonl"))).unwrap()
}

/// The records of each step, with ordinals over the whole case.
pub fn steps(case: &Case) -> Vec<Vec<Record>> {
    let mut ordinal = 0;
    let mut record = |insert: &Insert| {
        let Insert::Event(event) = insert else { return None };
        ordinal += 1;
        Some(Record { ordinal: ordinal - 1, event: event.clone() })
    };
    case.steps.iter().map(|step| step.inserts.iter().filter_map(&mut record).collect()).collect()
}

/// The side input of the case.
fn side_table(case: &Case) -> SideTable {
    let inserts = case.steps.iter().flat_map(|step| &step.inserts);
    let rows = inserts.filter_map(|insert| match insert {
        Insert::SideInput(row) => Some((row.key, row.value)),
        Insert::Event(_) => None,
    });
    SideTable::Rows(rows.collect())
}

/// The changes that the steps must cause, times written as we write them.
fn deltas<Q: Query>(case: &Case) -> Vec<Rows> {
    assert!(case.steps.iter().all(|step| step.columns == Q::Row::COLUMNS));
    expected_changes(case)
}

/// The changes that the steps must cause, whatever the columns are.
pub fn expected_changes(case: &Case) -> Vec<Rows> {
    let step_rows = |step: &alluvium_bench::input::CaseStep| {
        let rows = step.delta.iter().map(|delta| {
            let fields = delta.0.iter().zip(&step.columns);
            let fields = fields.map(|(field, column)| match &column[..] {
                "date_time" | "expires" | "bid_datetime" | "ADateTime" | "starttime"
                | "endtime" => field.as_deref().map(ms_of),
                _ => field.clone(),
            });
            (fields.collect::<Fields>(), delta.1)
        });
        consolidated(rows)
    };
    case.steps.iter().map(step_rows).collect()
}

/// Milliseconds of a time of the cases, all of which are in the first days of 1970, 2020 or 2022.
fn ms_of(text: &str) -> String {
    let (year, rest) = text.split_once("-01-").expect("a time of the cases");
    let new_year =
        BTreeMap::from([("1970", 0), ("2020", 1_577_836_800_000), ("2022", 1_640_995_200_000)])
            [year];
    let number = |range: std::ops::Range<usize>| rest[range].parse::<i64>().expect("digits");
    let seconds = (number(0..2) - 1) * 86_400 + number(3..5) * 3_600 + number(6..8) * 60;
    let fraction = rest.get(12..).unwrap_or("");
    let ms: i64 = format!("{fraction:0<3}").parse().expect("digits");
    (new_year + (seconds + number(9..11)) * 1_000 + ms).to_string()
}

/// One step is one timestamp, all of them long before any event: nothing may go.
fn each_step_changes_the_result_as_it_must<Q: Query>() {
    for case in cases::<Q>() {
        let batches: Vec<_> = (i64::MIN..).zip(steps(&case)).collect();
        for workers in 1..=2 {
            let node = StoreConfig::default().into();
            let outcome =
                run_with::<Q>(workers, node, &side_table(&case), batches.clone()).unwrap();
            let expected: BTreeMap<i64, Rows> =
                (i64::MIN..).zip(deltas::<Q>(&case)).filter(|(_, rows)| !rows.is_empty()).collect();
            let context = format!("{} case {}, {workers} workers", Q::NAME, case.number);
            assert_eq!(outcome.changes, expected, "{context}");
        }
    }
}

/// All events in order of time, the watermark behind them: the result is the sum of the steps,
/// and `live` says what is left of the states.
fn the_sum_is_right_when_the_watermark_advances<Q: Query>(live: impl Fn(&Case, &[Event]) -> Live) {
    for case in cases::<Q>() {
        let mut records = steps(&case).concat();
        records.sort_by_key(|record| (record.event.time(), record.ordinal));
        let mut batches: Vec<(i64, Vec<Record>)> = Vec::new();
        for record in records {
            let Time(at) = record.event.time();
            match batches.last_mut() {
                Some((last, batch)) if *last == at => batch.push(record),
                _ => batches.push((at, vec![record])),
            }
        }
        let events: Vec<_> = batches.iter().flat_map(|(_, batch)| batch).collect();
        let events: Vec<_> = events.into_iter().map(|record| record.event.clone()).collect();
        let node = StoreConfig::default().into();
        let outcome = run_with::<Q>(1, node, &side_table(&case), batches).unwrap();
        let sum = deltas::<Q>(&case).into_iter().flatten();
        let context = format!("{} case {}", Q::NAME, case.number);
        assert_eq!(outcome.result(), consolidated(sum), "{context}");
        let ends: Live = outcome.live.iter().map(|(name, (_, end))| (name.clone(), *end)).collect();
        assert_eq!(ends, live(&case, &events), "{context}");
    }
}

/// Keys of each state at the end.
type Live = BTreeMap<String, u64>;

fn live<const N: usize>(states: [(&str, usize); N]) -> Live {
    states.map(|(name, keys)| (name.to_owned(), keys as u64)).into()
}

fn distinct<K: Ord>(events: &[Event], key: impl Fn(&Event) -> Option<K>) -> usize {
    events.iter().filter_map(key).collect::<std::collections::BTreeSet<_>>().len()
}

fn auctions_bid_for(events: &[Event]) -> usize {
    distinct(events, |event| match event {
        Event::Bid(bid) => Some(bid.auction),
        _ => None,
    })
}

#[test]
fn q0_passes_bids_through() {
    each_step_changes_the_result_as_it_must::<Q0>();
    the_sum_is_right_when_the_watermark_advances::<Q0>(|_, _| Live::new());
}

#[test]
fn q1_multiplies_exactly() {
    each_step_changes_the_result_as_it_must::<Q1>();
    the_sum_is_right_when_the_watermark_advances::<Q1>(|_, _| Live::new());
}

#[test]
fn q2_selects_auctions() {
    each_step_changes_the_result_as_it_must::<Q2>();
    the_sum_is_right_when_the_watermark_advances::<Q2>(|_, _| Live::new());
}

/// The shared case is empty; `by_hand.rs` has more.
#[test]
fn q10_logs_bids() {
    each_step_changes_the_result_as_it_must::<Q10>();
    the_sum_is_right_when_the_watermark_advances::<Q10>(|_, _| Live::new());
}

#[test]
fn q14_selects_converts_and_counts() {
    each_step_changes_the_result_as_it_must::<Q14>();
    the_sum_is_right_when_the_watermark_advances::<Q14>(|_, _| Live::new());
}

#[test]
fn q22_splits_pages() {
    each_step_changes_the_result_as_it_must::<Q22>();
    the_sum_is_right_when_the_watermark_advances::<Q22>(|_, _| Live::new());
}

#[test]
fn q3_keeps_everything() {
    each_step_changes_the_result_as_it_must::<Q3>();
    the_sum_is_right_when_the_watermark_advances::<Q3>(|_, events| {
        let people = distinct(events, |event| match event {
            Event::Person(p) if ["OR", "ID", "CA"].contains(&&*p.state()) => Some(p.id),
            _ => None,
        });
        let sellers = distinct(events, |event| match event {
            Event::Auction(auction) if auction.category == 10 => Some(auction.seller),
            _ => None,
        });
        live([("local-sellers/left", people), ("local-sellers/right", sellers)])
    });
}

#[test]
fn q4_keeps_only_averages() {
    each_step_changes_the_result_as_it_must::<Q4>();
    the_sum_is_right_when_the_watermark_advances::<Q4>(|case, _| {
        let sum = consolidated(deltas::<Q4>(case).into_iter().flatten());
        live([
            ("category-averages/groups", sum.len()),
            ("winning-bids/items", 0),
            ("winning-bids/timers", 0),
        ])
    });
}

#[test]
fn q13_adds_the_side_input() {
    each_step_changes_the_result_as_it_must::<Q13>();
    the_sum_is_right_when_the_watermark_advances::<Q13>(|_, _| Live::new());
}

#[test]
fn q6_keeps_the_last_winners_of_sellers() {
    each_step_changes_the_result_as_it_must::<Q6>();
    the_sum_is_right_when_the_watermark_advances::<Q6>(|case, _| {
        let sum = consolidated(deltas::<Q6>(case).into_iter().flatten());
        let sellers: std::collections::BTreeSet<_> = sum.keys().map(|row| &row[0]).collect();
        live([
            ("seller-averages/sales", sellers.len()),
            ("seller-averages/timers", 0),
            ("winning-bids/items", 0),
            ("winning-bids/timers", 0),
        ])
    });
}

#[test]
fn q9_keeps_nothing() {
    each_step_changes_the_result_as_it_must::<Q9>();
    the_sum_is_right_when_the_watermark_advances::<Q9>(|_, _| {
        live([("winning-bids/items", 0), ("winning-bids/timers", 0)])
    });
}

/// Windows tell when they close, and not with each step: what comes out in the end is the sum.
fn nothing_is_left<const N: usize>(of: [&str; N]) -> impl Fn(&Case, &[Event]) -> Live {
    let live: Live = of.map(|name| (name.to_owned(), 0)).into();
    move |_, _| live.clone()
}

#[test]
fn q5_keeps_no_window_that_is_over() {
    the_sum_is_right_when_the_watermark_advances::<Q5>(nothing_is_left([
        "bids/windows",
        "bids/windows/late",
        "bids/windows/progress",
        "bids/windows/totals",
        "hottest/windows",
        "hottest/windows/late",
        "hottest/windows/progress",
    ]));
}

#[test]
fn q7_keeps_no_window_that_is_over() {
    the_sum_is_right_when_the_watermark_advances::<Q7>(nothing_is_left([
        "highest/windows",
        "highest/windows/late",
        "highest/windows/progress",
    ]));
}

#[test]
fn q8_keeps_no_window_that_is_over() {
    the_sum_is_right_when_the_watermark_advances::<Q8>(nothing_is_left([
        "newcomers/windows",
        "newcomers/windows/late",
        "newcomers/windows/progress",
    ]));
}

#[test]
fn q12_keeps_no_window_that_is_over() {
    the_sum_is_right_when_the_watermark_advances::<Q12>(nothing_is_left([
        "bids/windows",
        "bids/windows/late",
        "bids/windows/progress",
    ]));
}

/// Distinct bidders and auctions of each group of bids, and the groups.
fn ids_by<G: Ord + Clone>(events: &[Event], group: impl Fn(&Bid) -> G) -> Live {
    let of = |id: &dyn Fn(&Bid) -> u64| {
        distinct(events, |event| match event {
            Event::Bid(bid) => Some((group(bid), id(bid))),
            _ => None,
        })
    };
    live([
        ("distinct-auctions/sets", of(&|bid| bid.auction)),
        ("distinct-auctions/timers", 0),
        ("distinct-bidders/sets", of(&|bid| bid.bidder)),
        ("distinct-bidders/timers", 0),
        ("group-figures/groups", of(&|_| 0)),
    ])
}

#[test]
fn q15_keeps_bidders_and_auctions_of_days() {
    each_step_changes_the_result_as_it_must::<Q15>();
    the_sum_is_right_when_the_watermark_advances::<Q15>(|_, events| {
        ids_by(events, |bid| bid.date_time.as_ms().div_euclid(86_400_000))
    });
}

#[test]
fn q16_keeps_bidders_and_auctions_of_channels_and_days() {
    each_step_changes_the_result_as_it_must::<Q16>();
    the_sum_is_right_when_the_watermark_advances::<Q16>(|_, events| {
        ids_by(events, |bid| {
            (bid.channel().into_owned(), bid.date_time.as_ms().div_euclid(86_400_000))
        })
    });
}

#[test]
fn q17_keeps_figures_of_auctions_and_days() {
    each_step_changes_the_result_as_it_must::<Q17>();
    the_sum_is_right_when_the_watermark_advances::<Q17>(|case, _| {
        let sum = consolidated(deltas::<Q17>(case).into_iter().flatten());
        live([("bid-statistics/groups", sum.len())])
    });
}

#[test]
fn q18_keeps_a_bid_of_each_auction_and_bidder() {
    each_step_changes_the_result_as_it_must::<Q18>();
    the_sum_is_right_when_the_watermark_advances::<Q18>(|_, events| {
        let pairs = distinct(events, |event| match event {
            Event::Bid(bid) => Some((bid.auction, bid.bidder)),
            _ => None,
        });
        live([("last-bids/bids", pairs), ("last-bids/timers", 0)])
    });
}

#[test]
fn q19_keeps_the_best_bids_of_each_auction() {
    each_step_changes_the_result_as_it_must::<Q19>();
    the_sum_is_right_when_the_watermark_advances::<Q19>(|_, events| {
        live([("best-bids/bids", auctions_bid_for(events)), ("best-bids/timers", 0)])
    });
}

#[test]
fn q20_keeps_everything() {
    each_step_changes_the_result_as_it_must::<Q20>();
    the_sum_is_right_when_the_watermark_advances::<Q20>(|_, events| {
        let auctions = distinct(events, |event| match event {
            Event::Auction(auction) if auction.category == 10 => Some(auction.id),
            _ => None,
        });
        let bids = auctions_bid_for(events);
        live([("expanded-bids/left", bids), ("expanded-bids/right", auctions)])
    });
}
