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

use alluvium::moving::KeyGroup;
use alluvium::time::nanos;
use alluvium::{AnyLayout, Elements, Emit, StoreConfig, Time, Windows, process};
use alluvium_timely::{KeyBy, MoveGroup, NodeConfig, Spec, Windowing, WorkerState, execute};
use timely::dataflow::ProbeHandle;
use timely::dataflow::operators::vec::{Filter, Input};
use timely::dataflow::operators::{Inspect, Probe};

use crate::btree_layout::BTree;
use crate::outcomes::{Outcome, Row, Sorted, expected, sorted, windows};

const GROUPS: u16 = 8;
const KEYS: u64 = 30;
const NAP: Duration = Duration::from_millis(1);

/// Seeded chance.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 += 1;
        alluvium::types::hash_word(alluvium::types::hash_word(self.0)) % limit
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

/// What is made of the rows of a window.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// An accumulator; and whether it can subtract.
    Folded(bool),
    /// They are kept.
    Kept,
    /// Those of even values are paired with those of odd ones.
    Joined,
}

#[derive(Clone)]
struct Case {
    workers: usize,
    /// By its name; [`OWN`] is one from outside.
    layout: &'static str,
    windows: Windows,
    kind: Kind,
    seed: u64,
    moves: Vec<(i64, MoveGroup)>,
}

/// A layout that a user wrote.
const OWN: &str = "btree";

/// What comes out, added up, and how many groups were away from home in the end.
fn run(case: &Case) -> (BTreeMap<Outcome, i64>, usize) {
    let mut store = StoreConfig { key_groups: GROUPS, ..StoreConfig::default() };
    if case.layout != OWN {
        store.layout = AnyLayout::named(case.layout).unwrap();
    }
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

type Fed = alluvium::Result<(BTreeMap<Outcome, i64>, usize)>;

fn feed(worker: &mut timely::worker::Worker, state: &WorkerState, case: &Case) -> Fed {
    let sums: Rc<RefCell<BTreeMap<Outcome, i64>>> = Rc::default();
    let (results, late) = (sums.clone(), sums.clone());
    let probe = ProbeHandle::new();
    let (mut rows, mut control) = worker.dataflow::<i64, _, _>(|scope| {
        let (rows, stream) = scope.new_input::<Row>();
        let (control, orders) = scope.new_input::<MoveGroup>();
        let key = |row: &Row| row.1;
        let at = |row: &Row| Time(row.0);
        if case.kind == Kind::Joined {
            let (even, odd) = (stream.clone(), stream);
            let even = even.filter(|row: &Row| row.2 % 2 == 0).key_by(state, key);
            let odd = odd.filter(|row: &Row| row.2 % 2 != 0).key_by(state, key);
            let even = even.migratable(orders).window(case.windows, at);
            let odd = odd.window(case.windows, at);
            let pair = |key: &u64, window, l: &Row, r: &Row| Ok((*key, window, vec![l.2, r.2]));
            let paired = match case.layout {
                OWN => even.join(odd, Spec::new("w").layout(BTree), pair)?,
                _ => even.join(odd, Spec::new("w"), pair)?,
            };
            paired
                .results
                .inspect(move |(row, _, diff)| {
                    *results.borrow_mut().entry(row.clone()).or_default() += diff;
                })
                .probe_with(&probe);
            return Ok::<_, alluvium::Error>((rows, control));
        }
        let windows = stream.key_by(state, key).migratable(orders).window(case.windows, at);
        let sort = process(|_: &u64, _, rows: &mut dyn Elements<Row>, emit: &mut dyn FnMut(_)| {
            sorted(rows, emit)
        });
        let (ours, own) = (Spec::new("w"), Spec::new("w").layout(BTree));
        let fired = match (case.kind, case.layout) {
            (Kind::Folded(subtracts), OWN) => windows.aggregate(own, Sorted(subtracts))?,
            (Kind::Folded(subtracts), _) => windows.aggregate(ours, Sorted(subtracts))?,
            (_, OWN) => windows.holistic(own, sort)?,
            _ => windows.holistic(ours, sort)?,
        };
        fired
            .results
            .inspect(move |(row, _, diff)| {
                *results.borrow_mut().entry(Ok(row.clone())).or_default() += diff;
            })
            .probe_with(&probe);
        fired.late.inspect(move |row| {
            *late.borrow_mut().entry(Err((row.element, row.lateness))).or_default() += 1;
        });
        Ok((rows, control))
    })?;
    let mut orders = case.moves.iter().enumerate().peekable();
    for (sent, batch) in batches(case.seed) {
        while let Some((n, (time, one))) = orders.next_if(|(_, (at, _))| *at <= sent) {
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

const SHAPES: [(i64, i64); 5] = [(10, 10), (30, 5), (10, 4), (48, 2), (6, 0)];

/// Pairs of what the windows have, without rows that were too late.
fn paired(expected: BTreeMap<Outcome, i64>) -> BTreeMap<Outcome, i64> {
    let mut pairs = BTreeMap::new();
    for (key, window, values) in expected.into_keys().flatten() {
        for even in values.iter().filter(|value| **value % 2 == 0) {
            for odd in values.iter().filter(|value| **value % 2 != 0) {
                pairs.insert(Ok((key, window, vec![*even, *odd])), 1);
            }
        }
    }
    pairs
}

/// Compares windows without moves and with them, in all shapes.
fn compare(layouts: &[&'static str], emits: &[Emit], kind: impl Fn(u64, usize) -> Kind) {
    let mut layouts = layouts.iter().copied().cycle();
    let mut latenesses = [0, 12, 30, 0].into_iter().cycle();
    let mut emits = emits.iter().copied().cycle();
    for (seed, shape) in (0..).zip(SHAPES) {
        for workers in 1..=3 {
            let (layout, lateness) = (layouts.next().unwrap(), latenesses.next().unwrap());
            let emit = emits.next().unwrap();
            let still = Case {
                workers,
                layout,
                windows: windows(shape).lateness(nanos(lateness)).emit(emit),
                kind: kind(seed, workers),
                seed,
                moves: Vec::new(),
            };
            let moved = Case { moves: moves(seed, workers, 40), ..still.clone() };
            let what = format!(
                "{:?} {shape:?} {layout} {lateness} {emit:?} {workers} workers",
                still.kind
            );
            let mut expected = expected(batches(seed), shape, lateness);
            assert!(expected.keys().any(Result::is_err), "{what}: no late rows");
            if still.kind == Kind::Joined {
                expected = paired(expected);
            }
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

const EMITS: [Emit; 3] = [Emit::OnClose, Emit::OnWatermark, Emit::Early(nanos(4))];

#[test]
fn windows_fire_once_wherever_their_groups_are() {
    let kind = |seed, workers| Kind::Folded((seed + workers as u64) % 2 == 0);
    compare(&["auto", "heap", "hybrid-log", OWN], &EMITS, kind);
}

#[test]
fn windows_that_keep_their_rows_fire_once_wherever_their_groups_are() {
    compare(&["auto", "heap", OWN], &EMITS, |_, _| Kind::Kept);
}

#[test]
fn rows_of_windows_are_paired_wherever_their_groups_are() {
    compare(&["auto", "heap", OWN], &EMITS[..2], |_, _| Kind::Joined);
}
