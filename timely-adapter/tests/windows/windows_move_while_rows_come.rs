//! Windows whose key groups move between workers give what a plain re-computation gives, at whatever times
//! they move, the rows that were too late included.
//!
//! What this catches: windows that fire at two workers or at none; rows applied where their group is not,
//! or before it has come; rows that are late for one worker and not for another; times that end before a
//! group has arrived; dataflows that never end.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use alluvium::{AnyLayout, Emit, KeyGroup, StoreConfig, Time, Window, Windows};
use alluvium_timely::{
    Aggregate, KeyBy, MoveGroup, NodeConfig, Spec, Windowing, WorkerState, execute,
};
use timely::dataflow::ProbeHandle;
use timely::dataflow::operators::vec::Input;
use timely::dataflow::operators::{Inspect, Probe};

use crate::window_model::{self, Event, Results};

const GROUPS: u16 = 8;
const KEYS: u64 = 30;
const NAP: Duration = Duration::from_millis(1);

/// Time, key and value of a row.
type Row = (i64, u64, i64);
/// A result, or a late row and how late it was.
type Told = Result<(u64, Window, Vec<i64>), (Row, i64)>;

/// Seeded chance.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 += 1;
        alluvium::hash_word(alluvium::hash_word(self.0)) % limit
    }
}

/// The sorted values, and whether they can be taken out again.
#[derive(Clone, Copy)]
struct Sorted(bool);

impl Aggregate<Row> for Sorted {
    type Acc = Vec<i64>;
    type Out = Vec<i64>;

    fn init(&self) -> Vec<i64> {
        Vec::new()
    }

    fn add(&self, acc: &mut Vec<i64>, row: &Row) {
        acc.insert(acc.partition_point(|value| *value < row.2), row.2);
    }

    fn merge(&self, acc: &mut Vec<i64>, later: &Vec<i64>) {
        acc.extend(later);
        acc.sort_unstable();
    }

    fn out(&self, acc: &Vec<i64>) -> Option<Vec<i64>> {
        (!acc.is_empty()).then(|| acc.clone())
    }

    fn subtract(&self, acc: &mut Vec<i64>, first: &Vec<i64>) -> bool {
        if self.0 {
            for value in first {
                let place = acc.binary_search(value).expect("what was never added");
                acc.remove(place);
            }
        }
        self.0
    }
}

/// Batches of rows around the time that they are sent with, some late.
fn batches(seed: u64) -> Vec<(i64, Vec<Row>)> {
    let mut dice = Dice(seed << 20);
    let mut value = 0;
    let batches = (0..30).map(|n| {
        let sent = n * 9 - 60 + if n > 20 { 90 } else { 0 };
        let rows = (0..50).map(|_| {
            value += 1;
            let back = if dice.below(4) == 0 { dice.below(90) as i64 } else { 0 };
            (sent + dice.below(12) as i64 - back, dice.below(KEYS), value)
        });
        (sent, rows.collect())
    });
    batches.collect()
}

/// Moves of random groups to random workers at random times, by time.
fn moves(seed: u64, workers: usize, count: u64) -> Vec<(i64, MoveGroup)> {
    let mut dice = Dice(seed << 30);
    let mut moves: Vec<_> = (0..count)
        .map(|_| {
            let group = KeyGroup(dice.below(u64::from(GROUPS)) as u16);
            let to = dice.below(workers as u64) as u32;
            (dice.below(360) as i64 - 60, MoveGroup { group, to })
        })
        .collect();
    moves.sort_by_key(|(time, _)| *time);
    moves
}

#[derive(Clone)]
struct Case {
    workers: usize,
    layout: AnyLayout,
    windows: Windows,
    aggregate: Sorted,
    seed: u64,
    moves: Vec<(i64, MoveGroup)>,
}

/// What comes out, added up, and how many groups were away from home in the end.
fn run(case: &Case) -> (BTreeMap<Told, i64>, usize) {
    let store =
        StoreConfig { key_groups: GROUPS, layout: case.layout.clone(), ..StoreConfig::default() };
    let given = case.clone();
    let config = timely::Config::process(case.workers);
    let results =
        execute(config, NodeConfig::from(store), move |worker, state| feed(worker, state, &given));
    let (mut sums, mut away) = (BTreeMap::new(), 0);
    for (part, gone) in results.unwrap() {
        part.into_iter().for_each(|(row, diff)| *sums.entry(row).or_default() += diff);
        away += gone;
    }
    sums.retain(|_, diff| *diff != 0);
    (sums, away)
}

type Fed = alluvium::Result<(BTreeMap<Told, i64>, usize)>;

fn feed(worker: &mut timely::worker::Worker, state: &WorkerState, case: &Case) -> Fed {
    let sums: Rc<RefCell<BTreeMap<Told, i64>>> = Rc::default();
    let (results, late) = (sums.clone(), sums.clone());
    let probe = ProbeHandle::new();
    let (mut rows, mut control) = worker.dataflow::<i64, _, _>(|scope| {
        let (rows, stream) = scope.new_input::<Row>();
        let (control, told) = scope.new_input::<MoveGroup>();
        let keyed = stream.key_by(state, |row: &Row| row.1).migratable(told);
        let windows = keyed.window(case.windows, |row: &Row| Time(row.0));
        let fired = windows.aggregate(Spec::new("w"), case.aggregate)?;
        fired
            .results
            .inspect(move |(row, _, diff)| {
                *results.borrow_mut().entry(Ok(row.clone())).or_default() += diff;
            })
            .probe_with(&probe);
        fired.late.inspect(move |row| {
            *late.borrow_mut().entry(Err((row.element, row.lateness))).or_default() += 1;
        });
        Ok::<_, alluvium::Error>((rows, control))
    })?;
    let mut told = case.moves.iter().enumerate().peekable();
    for (sent, batch) in batches(case.seed) {
        while let Some((n, (time, one))) = told.next_if(|(_, (at, _))| *at <= sent) {
            control.advance_to((*time).max(*control.time()));
            if n % worker.peers() == worker.index() {
                control.send(*one);
            }
        }
        rows.advance_to(sent);
        for row in batch.iter().skip(worker.index()).step_by(worker.peers()) {
            rows.send(*row);
        }
        rows.advance_to(sent + 1);
        control.advance_to((sent + 1).max(*control.time()));
        // Some batches are under way at a time.
        while probe.less_than(&(sent - 15)) {
            state.step_or_nap(worker, NAP)?;
        }
    }
    rows.close();
    control.close();
    while !worker.installed_dataflows().is_empty() {
        state.step_or_nap(worker, NAP)?;
    }
    let away = usize::from(!state.store().moved_units()?.is_empty());
    Ok((sums.take(), away))
}

fn expected(seed: u64, shape: (i64, i64), lateness: i64) -> BTreeMap<Told, i64> {
    let mut events = Vec::new();
    for (sent, rows) in batches(seed) {
        events.extend(rows.into_iter().map(|(at, key, value)| Event { at, sent, key, value }));
    }
    let (results, dropped): (Results, _) = match shape {
        (gap, 0) => window_model::sessions(&events, gap, lateness),
        (length, slide) => window_model::aligned(&events, (length, slide, 0), lateness),
    };
    let results = results.into_iter().map(|((window, key), values)| Ok((key, window, values)));
    let late = dropped.into_iter().map(|e| Err(((e.at, e.key, e.value), e.sent - e.at)));
    results.chain(late).map(|told| (told, 1)).collect()
}

const SHAPES: [(i64, i64); 5] = [(10, 10), (30, 5), (10, 4), (48, 2), (6, 0)];

#[test]
fn windows_fire_once_wherever_their_groups_are() {
    let mut layouts = ["auto", "heap", "hybrid-log"].into_iter().cycle();
    let mut latenesses = [0, 12, 30, 0].into_iter().cycle();
    let mut emits = [Emit::OnClose, Emit::OnWatermark, Emit::Early(4)].into_iter().cycle();
    for (seed, shape) in (0..).zip(SHAPES) {
        for workers in 1..=3 {
            let (layout, lateness) = (layouts.next().unwrap(), latenesses.next().unwrap());
            let emit = emits.next().unwrap();
            let windows = match shape {
                (gap, 0) => Windows::session(gap),
                (length, slide) => Windows::sliding(length, slide),
            };
            let still = Case {
                workers,
                layout: AnyLayout::named(layout).unwrap(),
                windows: windows.lateness(lateness).emit(emit),
                aggregate: Sorted((seed + workers as u64) % 2 == 0),
                seed,
                moves: Vec::new(),
            };
            let moved = Case { moves: moves(seed, workers, 40), ..still.clone() };
            let what = format!("{shape:?} {layout} {lateness} {emit:?} {workers} workers");
            let expected = expected(seed, shape, lateness);
            assert!(expected.keys().any(Result::is_err), "{what}: no late rows");
            if workers == 1 {
                let (found, away) = run(&still);
                assert!(found == expected && away == 0, "{what}: without moves");
            }
            let (found, away) = run(&moved);
            let missing: Vec<_> =
                expected.iter().filter(|(k, v)| found.get(k) != Some(v)).collect();
            let extra: Vec<_> = found.iter().filter(|(k, v)| expected.get(k) != Some(v)).collect();
            assert!(
                missing.is_empty() && extra.is_empty(),
                "{what}: missing {missing:?}, not expected {extra:?}"
            );
            assert_eq!(away > 0, workers > 1, "{what}: {away} workers with others' groups");
        }
    }
}

#[test]
fn windows_that_keep_their_rows_are_refused_by_name() {
    let refused = execute(timely::Config::thread(), NodeConfig::default(), |worker, state| {
        worker.dataflow::<i64, _, _>(|scope| {
            let (_, stream) = scope.new_input::<Row>();
            let (_, told) = scope.new_input::<MoveGroup>();
            let keyed = stream.key_by(state, |row: &Row| row.1).migratable(told);
            let count = alluvium::process(
                |_: &u64, _, rows: &mut dyn alluvium::Elements<Row>, emit: &mut dyn FnMut(u64)| {
                    let mut count = 0;
                    while rows.next()?.is_some() {
                        count += 1;
                    }
                    emit(count);
                    Ok(())
                },
            );
            let windows = keyed.window(Windows::tumbling(10), |row: &Row| Time(row.0));
            windows.holistic(Spec::new("w"), count).map(drop)
        })
    });
    let error = refused.unwrap_err().to_string();
    assert!(error.contains("windows cannot move"), "{error}");
}
