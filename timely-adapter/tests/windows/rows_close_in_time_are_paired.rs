//! The interval join against a nested loop, on 1, 2 and 3 workers, in layouts of ours and of a user's, where
//! key groups stay and where they move.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use alluvium::backend::ListsLayout;
use alluvium::io::{Device, Faults, Simulated};
use alluvium::moving::KeyGroup;
use alluvium::{ErrorKind, KIB, KeyHash, MIB, StoreConfig, Time};
use alluvium_timely::{
    Changes, Fault, IntervalJoin, KeyBy, MoveGroup, NodeConfig, Spec, WorkerOverrides, WorkerState,
};
use timely::dataflow::operators::vec::{Filter, Input, Map};
use timely::dataflow::operators::{Inspect, Probe};
use timely::dataflow::{ProbeHandle, StreamVec};

use crate::btree_layout::BTree;
use crate::common;
use crate::dice::Dice;

/// Time, key and number of a row.
type Row = (i64, u64, i64);
/// Key, and numbers of the left and the right row.
type Pair = (u64, i64, i64);

fn batches() -> Vec<(i64, Vec<Row>)> {
    let mut dice = Dice(11);
    let mut below = |limit| dice.below(limit);
    let mut number = 0;
    let batches = (0..40).map(|n| {
        let sent = n * 7 - 60;
        let rows = (0..25).map(|_| {
            number += 1;
            let back = if below(4) == 0 { below(30) as i64 } else { 0 };
            (sent + below(12) as i64 - back, below(5), number)
        });
        (sent, rows.collect())
    });
    batches.collect()
}

fn is_left(row: &Row) -> bool {
    row.2 % 2 == 0
}

/// Pairs within the bounds, neither over when the other was sent: each with the time at which the later one was sent.
fn pairs_of(batches: Vec<(i64, Vec<Row>)>, (lower, upper): (i64, i64)) -> BTreeMap<Pair, i64> {
    let rows: Vec<(i64, Row)> = batches
        .into_iter()
        .flat_map(|(sent, rows)| rows.into_iter().map(move |row| (sent, row)))
        .collect();
    let mut pairs = BTreeMap::new();
    for (left_sent, left) in rows.iter().filter(|(_, row)| is_left(row)) {
        for (right_sent, right) in rows.iter().filter(|(_, row)| !is_left(row)) {
            let apart = right.0 - left.0;
            let in_time = left.0 + upper >= *right_sent && right.0 - lower >= *left_sent;
            if left.1 == right.1 && lower <= apart && apart <= upper && in_time {
                pairs.insert((left.1, left.2, right.2), *left_sent.max(right_sent));
            }
        }
    }
    pairs
}

#[test]
fn rows_within_the_bounds_are_paired_once() {
    are_paired(|| Spec::new("near"));
}

#[test]
fn rows_in_a_layout_of_a_users_are_paired_once() {
    are_paired(|| Spec::new("near").layout(BTree));
}

fn are_paired<L>(spec: impl Fn() -> Spec<L> + Copy + Send + Sync + 'static)
where
    L: ListsLayout<u64, (Time, (Time, Row))>,
{
    for (lower, upper) in [(-5, 5), (0, 0), (3, 20), (-20, -1)] {
        let pairs = pairs_of(batches(), (lower, upper)).into_keys();
        let expected: BTreeMap<Pair, i64> = pairs.map(|pair| (pair, 1)).collect();
        assert!(expected.len() > 20, "{}", expected.len());
        for workers in 1..=3 {
            let found = common::run(
                workers,
                NodeConfig::default(),
                WorkerOverrides::default(),
                batches(),
                move |rows, state| {
                    let left = rows.clone().filter(is_left).key_by(state, |row: &Row| row.1);
                    let right = rows.filter(|row| !is_left(row)).key_by(state, |row: &Row| row.1);
                    let at = |row: &Row| Time(row.0);
                    let bounds = (lower, upper);
                    left.interval_join(at, right, at, bounds, spec(), |key, a, b| (*key, a.2, b.2))
                },
            );
            assert_eq!(found.unwrap(), expected, "{lower} to {upper}, {workers} workers");
            let (found, has_moved) = moved((lower, upper), workers, spec);
            assert_eq!(found, expected, "{lower} to {upper}, moved, {workers} workers");
            assert_eq!(has_moved, workers > 1, "{workers} workers");
        }
    }
}

/// The pairs where key groups move with every third row, and whether some were away.
fn moved<L>(
    bounds: (i64, i64),
    workers: usize,
    spec: impl Fn() -> Spec<L> + Send + Sync + 'static,
) -> (BTreeMap<Pair, i64>, bool)
where
    L: ListsLayout<u64, (Time, (Time, Row))>,
{
    let has_moved = Arc::new(AtomicBool::new(false));
    let seen = has_moved.clone();
    let found = common::run(
        workers,
        NodeConfig::default(),
        WorkerOverrides::default(),
        batches(),
        move |rows, state| {
            let moves = rows.clone().filter(|row: &Row| row.2 % 3 == 0).map(move |row| MoveGroup {
                group: KeyGroup::of(row.1.key_hash(), StoreConfig::default().key_groups),
                to: (row.2 / 3) as u32 % workers as u32,
            });
            let left = rows.clone().filter(is_left).key_by(state, |row: &Row| row.1);
            let right = rows.filter(|row| !is_left(row)).key_by(state, |row: &Row| row.1);
            let at = |row: &Row| Time(row.0);
            let (seen, state) = (seen.clone(), state.clone());
            let pairs = left.migratable(moves).interval_join(
                at,
                right,
                at,
                bounds,
                spec(),
                |key, a, b| (*key, a.2, b.2),
            )?;
            Ok(pairs.inspect(move |_| {
                // It is refused while a group is on its way.
                let stays = state.store().moved_units().is_ok_and(|units| units.is_empty());
                seen.fetch_or(!stays, Ordering::SeqCst);
            }))
        },
    );
    (found.unwrap(), has_moved.load(Ordering::SeqCst))
}

/// What comes out of a join, in this order.
#[derive(Clone, Copy, Debug)]
enum Output {
    /// A pair and its timestamp.
    Pair(Pair, i64),
    /// The watermark of the output, as a worker sees it.
    Watermark(i64),
}

type Outputs = Arc<Mutex<Vec<Output>>>;

/// Joins left and right rows, and notes what comes out.
fn noted<'s>(
    rows: StreamVec<'s, i64, Row>,
    state: &WorkerState,
    bounds: (i64, i64),
    outputs: &Outputs,
) -> alluvium::Result<Changes<'s, i64, Pair>> {
    let left = rows.clone().filter(is_left).key_by(state, |row: &Row| row.1);
    let right = rows.filter(|row| !is_left(row)).key_by(state, |row: &Row| row.1);
    let (at, outputs) = (|row: &Row| Time(row.0), outputs.clone());
    let pair = |key: &u64, a: &Row, b: &Row| (*key, a.2, b.2);
    let pairs = left.interval_join(at, right, at, bounds, Spec::new("near"), pair)?;
    Ok(pairs.inspect_core(move |event| {
        let mut outputs = outputs.lock().unwrap();
        match event {
            Ok((time, pairs)) => {
                outputs.extend(pairs.iter().map(|(pair, _, _)| Output::Pair(*pair, *time)));
            }
            Err(frontier) => {
                outputs.push(Output::Watermark(frontier.first().copied().unwrap_or(i64::MAX)));
            }
        }
    }))
}

/// Asserts that at each watermark all pairs have come out that are before it. Returns the pairs that have come out.
fn assert_no_watermark_passes_a_pair(
    outputs: &[Output],
    expected: &BTreeMap<Pair, i64>,
) -> BTreeMap<Pair, i64> {
    let mut found = BTreeMap::new();
    for output in outputs {
        match *output {
            Output::Pair(pair, time) => assert_eq!(found.insert(pair, time), None, "{pair:?}"),
            Output::Watermark(watermark) => {
                let mut before = expected.iter().filter(|(_, time)| **time < watermark);
                let missing = before.find(|(pair, _)| !found.contains_key(pair));
                assert_eq!(missing, None, "watermark {watermark}");
            }
        }
    }
    found
}

#[test]
fn pairs_come_out_at_the_time_of_the_later_row_and_before_the_watermark_passes_it() {
    for bounds in [(-5, 5), (3, 20), (-20, -1)] {
        let expected = pairs_of(batches(), bounds);
        for workers in 1..=3 {
            let outputs = Outputs::default();
            let noting = outputs.clone();
            let (node, overrides) = (NodeConfig::default(), WorkerOverrides::default());
            common::run(workers, node, overrides, batches(), move |rows, state| {
                noted(rows, state, bounds, &noting)
            })
            .unwrap();
            let outputs = outputs.lock().unwrap();
            let found = assert_no_watermark_passes_a_pair(&outputs, &expected);
            assert_eq!(found, expected, "{bounds:?}, {workers} workers");
            // The watermark follows the input, batch by batch.
            let watermarks = outputs.iter().filter(|o| matches!(o, Output::Watermark(_))).count();
            assert!(watermarks >= batches().len(), "{watermarks} watermarks");
        }
    }
}

#[test]
fn the_watermark_waits_for_the_pairs_of_rows_behind_a_full_disk() {
    let device = Simulated::new(17, Faults::none());
    let scripted = device.clone();
    common::on_device(&device, MIB, Fault::WAIT, move |worker, state| {
        let (device, outputs, probe) = (&scripted, Outputs::default(), ProbeHandle::new());
        // No row is ever dropped, so that the disk fills.
        let bounds = (0, i64::MAX / 2);
        let mut input = worker.dataflow::<i64, _, _>(|scope| {
            let (mut input, rows) = scope.new_input::<Row>();
            input.advance_to(0);
            noted(rows, state, bounds, &outputs).unwrap().probe_with(&probe);
            input
        });
        device.set_capacity_bytes(Some(64 * KIB));
        let (mut expected, mut end, mut waiting) = (BTreeMap::new(), 0, 0);
        while waiting < 10 {
            assert!(end < 5_000, "the disk is never full");
            for number in (100 * end..100 * (end + 1)).step_by(2) {
                let key = number as u64 / 2;
                expected.insert((key, number, number + 1), end);
                input.send((end, key, number));
                input.send((end, key, number + 1));
            }
            end += 1;
            input.advance_to(end);
            device.drive();
            worker.step();
            waiting = if state.waiting().is_empty() { 0 } else { waiting + 1 };
        }
        let found = assert_no_watermark_passes_a_pair(&outputs.lock().unwrap(), &expected);
        assert!(found.len() < expected.len() && probe.less_than(&(end - 5)), "rows wait");
        device.set_capacity_bytes(None);
        while probe.less_than(&end) {
            device.drive();
            worker.step_or_park(Some(std::time::Duration::from_millis(1)));
        }
        let found = assert_no_watermark_passes_a_pair(&outputs.lock().unwrap(), &expected);
        assert_eq!(found, expected);
    });
}

#[test]
fn rows_at_both_ends_of_time_are_paired_and_those_after_all_time_are_not() {
    let (first, last) = (i64::MIN, i64::MAX - 1);
    let rows = [first, first + 3, last - 3, last, i64::MAX, i64::MAX];
    let rows: Vec<Row> = rows.into_iter().zip(1..).map(|(at, number)| (at, 1, number)).collect();
    for bounds in [(-5, 5), (0, i64::MAX), (i64::MIN, 0)] {
        let found = common::run(
            1,
            NodeConfig::default(),
            WorkerOverrides::default(),
            vec![(i64::MIN, rows.clone())],
            move |rows, state| {
                let left = rows.clone().filter(is_left).key_by(state, |row: &Row| row.1);
                let right = rows.filter(|row| !is_left(row)).key_by(state, |row: &Row| row.1);
                let at = |row: &Row| Time(row.0);
                left.interval_join(at, right, at, bounds, Spec::new("near"), |_, a, b| (a.2, b.2))
            },
        );
        let mut expected = BTreeMap::new();
        for a in rows.iter().filter(|row| is_left(row) && row.0 <= last) {
            for b in rows.iter().filter(|row| !is_left(row) && row.0 <= last) {
                let apart = i128::from(b.0) - i128::from(a.0);
                if (i128::from(bounds.0)..=i128::from(bounds.1)).contains(&apart) {
                    expected.insert((a.2, b.2), 1);
                }
            }
        }
        assert_eq!(found.unwrap(), expected, "{bounds:?}");
    }
}

#[test]
fn bounds_the_wrong_way_round_are_refused() {
    let refused = common::run(
        1,
        NodeConfig::default(),
        WorkerOverrides::default(),
        vec![(0i64, vec![(0i64, 0u64, 0i64)])],
        |rows, state| {
            let left = rows.clone().key_by(state, |row: &Row| row.1);
            let right = rows.key_by(state, |row: &Row| row.1);
            let at = |row: &Row| Time(row.0);
            left.interval_join(at, right, at, (1, 0), Spec::new("near"), |key, _, _| *key)
        },
    );
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Config);
}
