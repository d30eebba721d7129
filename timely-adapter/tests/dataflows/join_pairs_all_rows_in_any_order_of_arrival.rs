//! Joins against a nested loop over the same rows.

use crate::common;
use alluvium_timely::{Join, KeyBy, NodeConfig, Spec, WorkerOverrides};
use proptest::prelude::*;
use timely::dataflow::operators::core::OkErr;

/// Left or right: side, key, row.
type Row = (bool, u8, String);

fn nested_loop(rows: &[Row]) -> common::Consolidated<(u8, String, String)> {
    let mut pairs = common::Consolidated::new();
    for (_, left_key, left) in rows.iter().filter(|row| row.0) {
        for (_, right_key, right) in rows.iter().filter(|row| !row.0) {
            if left_key == right_key {
                *pairs.entry((*left_key, left.clone(), right.clone())).or_default() += 1;
            }
        }
    }
    pairs
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn pairs_are_those_of_a_nested_loop(
        steps in prop::collection::vec(
            prop::collection::vec((any::<bool>(), 0u8..6, "[a-c]{0,2}"), 0..40), 1..6),
        workers in 1usize..4,
    ) {
        let expected = nested_loop(&steps.concat());
        let batches = steps.into_iter().enumerate().map(|(time, rows)| (time as i64, rows));
        let found = common::run(
            workers,
            NodeConfig::default(),
            WorkerOverrides::default(),
            batches.collect(),
            |rows, state| {
                let (left, right) = rows.ok_err(|row: Row| {
                    if row.0 { Ok((row.1, row.2)) } else { Err((row.1, row.2)) }
                });
                left.key_by(state, |row: &(u8, String)| row.0).join(
                    right.key_by(state, |row: &(u8, String)| row.0),
                    Spec::new("pairs"),
                    |key, left, right| (*key, left.1.clone(), right.1.clone()),
                )
            },
        );
        prop_assert_eq!(found.unwrap(), expected);
    }
}
