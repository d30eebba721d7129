//! Windows of rows, late ones among them, are those of a plain re-computation on 1, 2 and 3
//! workers, the rows that were too late included.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use alluvium::time::nanos;
use alluvium::{AnyLayout, Elements, Emit, Time, Window, Windows, process};
use alluvium_timely::{
    Changes, KeyBy, NodeConfig, Spec, Windowing, WorkerOverrides, WorkerState, install,
};
use timely::dataflow::StreamVec;
use timely::dataflow::operators::Inspect;
use timely::dataflow::operators::core::Concat;
use timely::dataflow::operators::vec::{Input, Map};

use crate::btree_layout::BTree;
use crate::common;
use crate::dice::Dice;
use crate::outcomes::{Outcome, Row, Sorted, expected, sorted, windows};

/// Batches of rows around the time that they are sent with, some late.
fn batches() -> Vec<(i64, Vec<Row>)> {
    let mut dice = Dice(7);
    let mut below = |limit| dice.below(limit);
    let mut value = 0;
    let batches = (0..40).map(|n| {
        let sent = n * 7 - 60 + if n > 20 { 90 } else { 0 };
        let rows = (0..25).map(|_| {
            value += 1;
            let back = if below(4) == 0 { below(50) as i64 } else { 0 };
            (sent + below(12) as i64 - back, below(5), value)
        });
        (sent, rows.collect())
    });
    batches.collect()
}

fn outcomes<'scope>(
    fired: alluvium_timely::Fired<'scope, i64, u64, Vec<i64>, Row>,
) -> Changes<'scope, i64, Outcome> {
    let results = fired.results.map(|(row, time, diff)| (Ok(row), time, diff));
    results.concat(fired.late.map(|late| (Err((late.element, late.lateness)), 0, 1)))
}

const SHAPES: [(i64, i64); 4] = [(10, 10), (30, 5), (10, 4), (6, 0)];

/// Each shape on 1, 2 and 3 workers, with layouts, latenesses and ways to emit in turn.
fn each_case(
    emits: &[Emit],
    build: impl for<'s> Fn(
        StreamVec<'s, i64, Row>,
        &WorkerState,
        Windows,
        Spec,
    ) -> alluvium::Result<Changes<'s, i64, Outcome>>
    + Copy
    + Send
    + Sync
    + 'static,
) {
    let mut layouts = ["auto", "heap"].into_iter().cycle();
    let mut latenesses = [0, 12, 12, 0, 0].into_iter().cycle();
    let mut emits = emits.iter().copied().cycle();
    let mut next = || Some((layouts.next()?, latenesses.next()?, emits.next()?));
    for shape in SHAPES {
        for workers in 1..=3 {
            let (layout, lateness, emit) = next().expect("they never end");
            let spec = windows(shape).lateness(nanos(lateness)).emit(emit);
            let found = common::run(
                workers,
                NodeConfig::default(),
                WorkerOverrides::default(),
                batches(),
                move |rows, state| {
                    let layout = AnyLayout::named(layout).expect("a name of ours");
                    build(rows, state, spec, Spec::new("w").layout(layout))
                },
            );
            let what = format!("{shape:?} {layout} {lateness} {emit:?} {workers} workers");
            assert_eq!(found.unwrap(), expected(batches(), shape, lateness), "{what}");
        }
    }
}

#[test]
fn aggregated_windows() {
    each_case(
        &[Emit::OnClose, Emit::OnWatermark, Emit::Early(nanos(4))],
        |rows, state, windows, spec| {
            let keyed = rows.key_by(state, |row| row.1);
            Ok(outcomes(
                keyed.window(windows, |row: &Row| Time(row.0)).aggregate(spec, Sorted(true))?,
            ))
        },
    );
}

#[test]
fn holistic_windows() {
    each_case(
        &[Emit::OnClose, Emit::OnWatermark, Emit::Early(nanos(4))],
        |rows, state, windows, spec| {
            let keyed = rows.key_by(state, |row| row.1);
            let sort =
                process(|_: &u64, _, rows: &mut dyn Elements<Row>, emit: &mut dyn FnMut(_)| {
                    sorted(rows, emit)
                });
            Ok(outcomes(keyed.window(windows, |row: &Row| Time(row.0)).holistic(spec, sort)?))
        },
    );
}

/// Panes, lists and sessions in layouts of a user's.
#[test]
fn windows_in_a_layout_of_a_users() {
    let emits = [Emit::OnClose, Emit::OnWatermark, Emit::Early(nanos(4))];
    each_case(&emits, |rows, state, windows, _| {
        let keyed = rows.key_by(state, |row| row.1).window(windows, |row: &Row| Time(row.0));
        Ok(outcomes(keyed.aggregate(Spec::new("w").layout(BTree), Sorted(true))?))
    });
    each_case(&emits, |rows, state, windows, _| {
        let keyed = rows.key_by(state, |row| row.1).window(windows, |row: &Row| Time(row.0));
        let sort = process(|_: &u64, _, rows: &mut dyn Elements<Row>, emit: &mut dyn FnMut(_)| {
            sorted(rows, emit)
        });
        Ok(outcomes(keyed.holistic(Spec::new("w").layout(BTree), sort)?))
    });
}

/// No worker waits for the others: rows come before rows of others that were sent before them. Late ones
/// of sessions wait for these, as they may join what these have made.
#[test]
fn late_rows_of_sessions_that_come_before_what_was_sent_before_them() {
    let mut batches = batches();
    batches.sort_by_key(|(sent, _)| *sent);
    for round in 0..12 {
        let (lateness, workers) = ([0, 5][round % 2], 2 + round % 2);
        let all = batches.clone();
        let sums: Arc<Mutex<BTreeMap<Outcome, i64>>> = Arc::default();
        let sink = sums.clone();
        let mut config = timely::Config::process(workers);
        install(&mut config, NodeConfig::default()).unwrap();
        let guards = timely::execute(config, move |worker| {
            let state = WorkerState::new(worker, WorkerOverrides::default()).unwrap();
            let sink = sink.clone();
            let mut input = worker.dataflow::<i64, _, _>(|scope| {
                let (input, rows) = scope.new_input::<Row>();
                let windows = Windows::session(nanos(6)).lateness(nanos(lateness));
                let keyed = rows.key_by(&state, |row: &Row| row.1);
                let keyed = keyed.window(windows, |row: &Row| Time(row.0));
                let fired = keyed.aggregate(Spec::new("w"), Sorted(false)).unwrap();
                outcomes(fired).inspect(move |(row, _, diff)| {
                    *sink.lock().unwrap().entry(row.clone()).or_default() += diff;
                });
                input
            });
            for (at, rows) in &all {
                input.advance_to(*at);
                for row in rows.iter().skip(worker.index()).step_by(worker.peers()) {
                    input.send(*row);
                }
                // Timely delivers what was sent at a time for certain only if the time is left before
                // the worker steps.
                input.advance_to(*at + 1);
                if (*at + worker.index() as i64 + round as i64) % 3 == 0 {
                    worker.step();
                }
            }
            input.close();
            while worker.has_dataflows() && !state.has_failed() {
                worker.step();
            }
            state.abandon_if_failed(worker).unwrap();
        });
        guards.unwrap().join().into_iter().for_each(|done| done.unwrap());
        let mut found = sums.lock().unwrap().clone();
        found.retain(|_, count| *count != 0);
        let expected = expected(batches.clone(), (6, 0), lateness);
        assert_eq!(found, expected, "lateness {lateness}, {workers} workers");
        let late = expected.keys().filter(|outcome| outcome.is_err()).count();
        assert!(late > 10, "{late} rows are late");
    }
}

/// A broken timestamp that was converted is no reason to stop, now and after each restart.
#[test]
fn rows_at_the_end_of_time_are_late() {
    for windows in [Windows::tumbling(nanos(10)), Windows::session(nanos(10))] {
        let batches = vec![(5, vec![(6, 1, 1), (i64::MAX, 2, 2)]), (8, vec![(9, 1, 3)])];
        let found = common::run(
            1,
            NodeConfig::default(),
            WorkerOverrides::default(),
            batches,
            move |rows, state| {
                let keyed = rows.key_by(state, |row: &Row| row.1);
                let keyed = keyed.window(windows, |row: &Row| Time(row.0));
                Ok(outcomes(keyed.aggregate(Spec::new("w"), Sorted(true))?))
            },
        );
        let found = found.unwrap();
        let late = Err(((i64::MAX, 2, 2), 5 - i64::MAX));
        assert_eq!(found.get(&late), Some(&1), "{found:?}");
        assert!(found.keys().any(|outcome| matches!(outcome, Ok((1, _, rows)) if *rows == [1, 3])));
    }
}

#[test]
fn rows_of_both_sides_meet_in_their_window() {
    let mut expected: BTreeMap<(u64, Window, i64, i64), i64> = BTreeMap::new();
    let rows: Vec<(i64, Row)> = batches()
        .into_iter()
        .flat_map(|(sent, rows)| rows.into_iter().map(move |row| (sent, row)))
        .filter(|(sent, row)| row.0 >= *sent)
        .collect();
    let start = |row: &Row| row.0.div_euclid(10) * 10;
    for (_, left) in rows.iter().filter(|(_, row)| row.2 % 2 == 0) {
        for (_, right) in rows.iter().filter(|(_, row)| row.2 % 2 == 1) {
            if left.1 == right.1 && start(left) == start(right) {
                let window = Window { start: Time(start(left)), end: Time(start(left) + 10) };
                expected.insert((left.1, window, left.2, right.2), 1);
            }
        }
    }
    assert!(expected.len() > 100);
    for workers in 1..=3 {
        let on_time: Vec<_> = batches()
            .into_iter()
            .map(|(sent, rows)| (sent, rows.into_iter().filter(|row| row.0 >= sent).collect()))
            .collect();
        let found = common::run(
            workers,
            NodeConfig::default(),
            WorkerOverrides::default(),
            on_time,
            |rows, state| {
                use timely::dataflow::operators::vec::Filter;
                let left = rows.clone().filter(|row: &Row| row.2 % 2 == 0);
                let right = rows.filter(|row: &Row| row.2 % 2 == 1);
                let windows = Windows::tumbling(nanos(10));
                let at = |row: &Row| Time(row.0);
                let left = left.key_by(state, |row| row.1).window(windows, at);
                let right = right.key_by(state, |row| row.1).window(windows, at);
                left.join(right, Spec::new("pairs"), |key, window, left: &Row, right: &Row| {
                    (*key, window, left.2, right.2)
                })
                .map(|paired| paired.results)
            },
        );
        assert_eq!(found.unwrap(), expected, "{workers} workers");
    }
}

#[test]
fn a_join_gives_the_late_rows_of_both_sides_out() {
    use timely::dataflow::operators::vec::Filter;
    let is_late = |sent: i64, row: &Row| row.0.div_euclid(10) * 10 + 10 <= sent;
    let late = batches().into_iter().flat_map(|(sent, rows)| {
        let late = rows.into_iter().filter(move |row| is_late(sent, row));
        late.map(move |row| ((row.2 % 2, row, sent - row.0), 1))
    });
    let mut expected = std::collections::BTreeMap::new();
    late.for_each(|(row, times)| *expected.entry(row).or_insert(0) += times);
    assert!(expected.keys().any(|row| row.0 == 0) && expected.keys().any(|row| row.0 != 0));
    for workers in 1..=2 {
        let found = common::run(
            workers,
            NodeConfig::default(),
            WorkerOverrides::default(),
            batches(),
            |rows, state| {
                let left = rows.clone().filter(|row: &Row| row.2 % 2 == 0);
                let right = rows.filter(|row: &Row| row.2 % 2 != 0);
                let at = |row: &Row| Time(row.0);
                let left = left.key_by(state, |row| row.1).window(Windows::tumbling(nanos(10)), at);
                let right =
                    right.key_by(state, |row| row.1).window(Windows::tumbling(nanos(10)), at);
                let paired = left.join(right, Spec::new("pairs"), |_, _, _, _| ())?;
                let change = |late: alluvium::windows::Late<u64, Row>| {
                    assert_eq!(late.key, late.element.1);
                    ((late.element.2 % 2, late.element, late.lateness), 0, 1)
                };
                let both = paired.late.map(change).concat(paired.late_other.map(change));
                // The pairs have a probe too.
                let pairs = paired.results.flat_map(|_| None::<((i64, Row, i64), i64, i64)>);
                Ok(both.concat(pairs))
            },
        );
        assert_eq!(found.unwrap(), expected, "{workers} workers");
    }
}

#[test]
fn a_join_of_windows_that_differ_is_refused() {
    for (one, two) in [
        (Windows::tumbling(nanos(10)), Windows::tumbling(nanos(20))),
        (Windows::tumbling(nanos(10)), Windows::tumbling(nanos(10)).lateness(nanos(1))),
        (Windows::session(nanos(10)), Windows::tumbling(nanos(10))),
    ] {
        let outcome = common::run(
            1,
            NodeConfig::default(),
            WorkerOverrides::default(),
            batches(),
            move |rows, state| {
                let at = |row: &Row| Time(row.0);
                let left = rows.clone().key_by(state, |row| row.1).window(one, at);
                let right = rows.key_by(state, |row| row.1).window(two, at);
                left.join(right, Spec::new("pairs"), |key, _, _, _| *key)
                    .map(|paired| paired.results)
            },
        );
        let error = outcome.unwrap_err();
        assert_eq!(error.kind(), alluvium::ErrorKind::Config, "{error}");
        assert_eq!(error.context("operator"), Some("pairs"));
        let text = error.to_string();
        assert!(text.contains(&format!("{one:?}")) && text.contains(&format!("{two:?}")), "{text}");
    }
}

#[test]
fn early_results_carry_the_time_at_which_they_were_told() {
    // A session takes its result back when a row comes, a window when it tells the next.
    for (windows, one) in [
        (Windows::tumbling(nanos(100)), [(10, 1), (35, -1)]),
        (Windows::session(nanos(60)), [(15, 1), (20, -1)]),
    ] {
        let rows = vec![(3, 1, 1)];
        let batches =
            vec![(0i64, rows), (10, vec![]), (15, vec![]), (20, vec![(25, 1, 2)]), (35, vec![])];
        let found = common::run(
            1,
            NodeConfig::default(),
            WorkerOverrides::default(),
            batches,
            move |rows, state| {
                let windows = windows.emit(Emit::Early(nanos(10)));
                let windowed = rows.key_by(state, |row: &Row| row.1).window(windows, |r| Time(r.0));
                let fired = windowed.aggregate(Spec::new("w"), alluvium_timely::Counting)?;
                Ok(fired.results.map(|((_, window, count), time, diff)| {
                    ((count, time, window.end.0), time, diff)
                }))
            },
        );
        let found = found.unwrap();
        let ends: Vec<i64> = found.keys().map(|(_, _, end)| *end).collect();
        let story = format!("{windows:?}: {found:?}");
        let times_of = |count: i64| {
            let of = found.iter().filter(move |((n, ..), _)| *n == count);
            of.map(|((_, time, _), diff)| (*time, *diff)).collect::<Vec<_>>()
        };
        assert_eq!(times_of(1), one, "{story}");
        assert_eq!(times_of(2), [(35, 1)], "{story}");
        assert!(ends.iter().all(|end| *end > 35), "{story}");
    }
}
