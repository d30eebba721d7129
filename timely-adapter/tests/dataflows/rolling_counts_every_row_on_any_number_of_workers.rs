//! Rolling aggregates: their changes add up to one row per key, whoever counts.

use crate::common;
use std::collections::BTreeMap;

use alluvium_timely::{Aggregate, Counting, KeyBy, NodeConfig, Rolling, Spec, WorkerOverrides};

fn batches() -> Vec<(u64, Vec<String>)> {
    let word = |n: u64| format!("word-{}", n * n % 101);
    (0..20).map(|step| (step, (0..500).map(|n| word(step * 7 + n)).collect())).collect()
}

#[test]
fn counts_are_those_of_a_hash_map() {
    let mut expected = BTreeMap::new();
    for word in batches().into_iter().flat_map(|(_, words)| words) {
        *expected.entry(word).or_insert(0i64) += 1;
    }
    let expected: common::Consolidated<_> = expected.into_iter().map(|row| (row, 1)).collect();
    for workers in 1..=3 {
        let found = common::run(
            workers,
            NodeConfig::default(),
            WorkerOverrides::default(),
            batches(),
            |words, state| words.key_by(state, String::clone).rolling(Spec::new("words"), Counting),
        );
        assert_eq!(found.unwrap(), expected, "{workers} workers");
    }
}

/// The largest row, as an aggregate whose result often stays.
struct Largest;

impl Aggregate<(u64, i64)> for Largest {
    type Acc = Option<i64>;
    type Out = i64;

    fn init(&self) -> Option<i64> {
        None
    }

    fn add(&self, acc: &mut Option<i64>, row: &(u64, i64)) {
        *acc = Some(acc.map_or(row.1, |largest| largest.max(row.1)));
    }

    fn merge(&self, acc: &mut Option<i64>, later: &Option<i64>) {
        *acc = (*acc).max(*later);
    }

    fn out(&self, acc: &Option<i64>) -> Option<i64> {
        *acc
    }
}

#[test]
fn a_result_that_stays_is_not_emitted_again() {
    let rows = vec![(1, 5), (1, 3), (2, 7), (1, 9), (2, 7)];
    let found = common::run(
        1,
        NodeConfig::default(),
        WorkerOverrides::default(),
        vec![(0i64, rows)],
        |rows, state| {
            let changes = rows.key_by(state, |row| row.0).rolling(Spec::new("largest"), Largest)?;
            // Rows that come and go again would cancel out; count them instead.
            use timely::dataflow::operators::vec::Map;
            Ok(changes.map(|(row, time, diff)| ((row, diff), time, 1)))
        },
    );
    let expected = [(((1, 5), -1), 1), (((1, 5), 1), 1), (((1, 9), 1), 1), (((2, 7), 1), 1)];
    assert_eq!(found.unwrap(), expected.into_iter().collect());
}
