//! Joins whose key groups move between workers make each pair once, as a nested loop does, wherever the
//! groups are and whichever side is behind: joins of all rows, and of those that are close in time.
//!
//! What this catches: one side of a group that moves without the other; rows added where their group is
//! not, or before it has come; pairs made twice or never, of rows of the time of a move above all; rows
//! left behind by a move; times that end before a group has arrived; dataflows that never end.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

use alluvium::config::ByteSize;
use alluvium::io::{Device, Faults, Simulated};
use alluvium::moving::KeyGroup;
use alluvium::{AnyLayout, Heap, HybridLog, KIB, KeyHash, Layout, MIB, StoreConfig, Time};
use alluvium_timely::{
    Changes, IntervalJoin, Join, KeyBy, MoveGroup, NodeConfig, Spec, WorkerOverrides, WorkerState,
    execute_with,
};
use timely::dataflow::operators::vec::Input;
use timely::dataflow::operators::{Inspect, Probe};
use timely::dataflow::{ProbeHandle, StreamVec};
use timely::worker::Worker;

use crate::common::Consolidated;
use crate::groups_move_while_rows_come::{Dice, GROUPS, NAP, STEPS, TICK, moves};
use crate::own_layout::BTree;

/// Rows of a side and a step.
const ROWS: usize = 75;

/// Key, event time, value, and what makes it long.
type Row = (u64, i64, u64, String);
/// Key, and time and value of the left and of the right row.
type Pair = (u64, (i64, u64), (i64, u64));
type Result<T> = alluvium::Result<T>;

#[derive(Clone)]
struct Case {
    workers: usize,
    layout: AnyLayout,
    memory: u64,
    on_device: bool,
    keys: u64,
    /// By time.
    moves: Vec<(i64, MoveGroup)>,
    /// Steps that the right side is behind the left.
    lag: i64,
    /// Of pairs of rows that are close in time.
    bounds: Option<(i64, i64)>,
    seed: u64,
}

impl Case {
    /// Rows of a side, the first half of which comes before the moves of their time are known. Some are equal.
    fn rows(&self, side: u64, step: i64) -> Vec<Row> {
        let length = if self.on_device { 200 } else { 20 };
        let mut dice = Dice(self.seed << 40 | side << 36 | step.cast_unsigned() << 16);
        let row = |_| {
            let at = step * TICK + dice.below(3 * TICK as u64) as i64 - TICK;
            let (key, value) = (dice.below(self.keys), dice.below(3));
            (key, at / 5000 * 5000, value, "x".repeat(length))
        };
        if (0..STEPS).contains(&step) { (0..ROWS).map(row).collect() } else { Vec::new() }
    }

    /// All rows of a side, each with the time that it is sent with.
    fn all(&self, side: u64) -> Vec<(i64, Row)> {
        let sent = |step| self.rows(side, step).into_iter().map(move |row| (step * TICK, row));
        (0..STEPS).flat_map(sent).collect()
    }

    /// Whether rows of a key are a pair: if there are bounds, those within, neither over when the other was sent.
    fn is_pair(&self, (left_sent, left): &(i64, Row), (right_sent, right): &(i64, Row)) -> bool {
        self.bounds.is_none_or(|(lower, upper)| {
            let is_within = (lower..=upper).contains(&(right.1 - left.1));
            is_within && left.1 + upper >= *right_sent && right.1 - lower >= *left_sent
        })
    }

    /// Keys of both sides.
    fn entries(&self) -> u64 {
        let keys = [0, 1].map(|side| self.all(side).iter().map(|(_, row)| row.0).collect());
        keys.iter().map(|keys: &BTreeSet<u64>| keys.len() as u64).sum()
    }

    /// Moves that have rows of their group and time on both sides, before they are known and after.
    fn split(&self) -> usize {
        let is_split = |(time, one): &&(i64, MoveGroup)| {
            [0, 1].iter().all(|side| {
                let rows = self.rows(*side, time / TICK);
                rows.chunks(ROWS.div_ceil(2)).all(|half| {
                    half.iter().any(|row| KeyGroup::of(row.0.key_hash(), GROUPS) == one.group)
                })
            })
        };
        self.moves.iter().filter(is_split).count()
    }
}

fn pair_of(key: &u64, left: &Row, right: &Row) -> Pair {
    (*key, (left.1, left.2), (right.1, right.2))
}

fn nested_loop(case: &Case) -> Consolidated<Pair> {
    let (mut pairs, right) = (Consolidated::new(), case.all(1));
    for left in &case.all(0) {
        let of_key = right.iter().filter(|right| right.1.0 == left.1.0);
        for right in of_key.filter(|right| case.is_pair(left, right)) {
            *pairs.entry(pair_of(&left.1.0, &left.1, &right.1)).or_default() += 1;
        }
    }
    pairs
}

/// What a run gave.
#[derive(Default)]
struct Outcome {
    pairs: Consolidated<Pair>,
    /// Of all workers' states.
    entries: u64,
    cold_reads: u64,
    /// Workers that have others' groups in the end.
    away: usize,
}

/// Runs the case, joined by `build`.
fn run(
    case: &Case,
    build: impl for<'s> Fn(
        [StreamVec<'s, i64, Row>; 2],
        StreamVec<'s, i64, MoveGroup>,
        &WorkerState,
    ) -> Result<Changes<'s, i64, Pair>>
    + Send
    + Sync
    + 'static,
) -> Outcome {
    let store = StoreConfig {
        memory: ByteSize(case.memory * case.workers as u64),
        max_value: Some(ByteSize(8 * KIB)),
        key_groups: GROUPS,
        layout: case.layout.clone(),
        ..StoreConfig::default()
    };
    let (given, on_device) = (case.clone(), case.on_device);
    let overrides = move |index| {
        let device = || Arc::new(Simulated::new(index as u64, Faults::none())) as Arc<dyn Device>;
        WorkerOverrides { device: on_device.then(device), ..Default::default() }
    };
    let config = timely::Config::process(case.workers);
    let parts = execute_with(config, NodeConfig::from(store), overrides, move |worker, state| {
        let sums: Rc<RefCell<Consolidated<Pair>>> = Rc::default();
        let (sink, probe) = (sums.clone(), ProbeHandle::new());
        let inputs = worker.dataflow::<i64, _, _>(|scope| {
            let (left, left_rows) = scope.new_input::<Row>();
            let (right, right_rows) = scope.new_input::<Row>();
            let (control, moves) = scope.new_input::<MoveGroup>();
            build([left_rows, right_rows], moves, state)?
                .inspect(move |(pair, _, diff)| {
                    *sink.borrow_mut().entry(*pair).or_default() += diff;
                })
                .probe_with(&probe);
            Ok::<_, alluvium::Error>((left, right, control))
        })?;
        feed(worker, state, &given, inputs, &probe)?;
        let entries = state.store().export(std::io::sink())?.entries;
        let states = state.store().stats()?.states;
        let cold_reads = states.iter().map(|state| state.table.cold_reads).sum::<u64>();
        let away = usize::from(!state.store().moved_units()?.is_empty());
        Ok(Outcome { pairs: sums.take(), entries, cold_reads, away })
    });
    let mut all = Outcome::default();
    for part in parts.unwrap() {
        part.pairs.into_iter().for_each(|(pair, diff)| *all.pairs.entry(pair).or_default() += diff);
        all.entries += part.entries;
        all.cold_reads += part.cold_reads;
        all.away += part.away;
    }
    all
}

type Inputs = (
    timely::dataflow::InputHandle<i64, timely::container::CapacityContainerBuilder<Vec<Row>>>,
    timely::dataflow::InputHandle<i64, timely::container::CapacityContainerBuilder<Vec<Row>>>,
    timely::dataflow::InputHandle<i64, timely::container::CapacityContainerBuilder<Vec<MoveGroup>>>,
);

/// Sends all rows and moves, this worker's share of them, and waits for the end.
fn feed(
    worker: &mut Worker,
    state: &WorkerState,
    case: &Case,
    (mut left, mut right, mut control): Inputs,
    probe: &ProbeHandle<i64>,
) -> Result<()> {
    let mut told = case.moves.clone();
    told.sort_by_key(|(time, _)| *time);
    let mut told = told.into_iter().enumerate().peekable();
    let mut dice = Dice(case.seed << 50 | worker.index() as u64);
    let (index, peers) = (worker.index(), worker.peers());
    for step in 0..STEPS + case.lag {
        let of_right = step - case.lag;
        let (rows, right_rows) = (case.rows(0, step), case.rows(1, of_right));
        let mine = |(n, row): (usize, Row)| (n % peers == index).then_some(row);
        let mut rows = rows.into_iter().enumerate();
        let mut right_rows = right_rows.into_iter().enumerate();
        left.advance_to(step * TICK);
        right.advance_to(of_right.max(0) * TICK);
        rows.by_ref().take(ROWS.div_ceil(2)).filter_map(mine).for_each(|row| left.send(row));
        let first_half = right_rows.by_ref().take(ROWS.div_ceil(2));
        first_half.filter_map(mine).for_each(|row| right.send(row));
        while let Some((n, (time, one))) = told.next_if(|(_, (at, _))| *at <= step * TICK) {
            control.advance_to(time.max(*control.time()));
            // Any worker may tell it.
            if n % peers == index {
                control.send(one);
            }
        }
        control.advance_to(step * TICK + 1);
        for _ in 0..dice.below(20) {
            state.step_or_nap(worker, NAP)?;
        }
        rows.filter_map(mine).for_each(|row| left.send(row));
        right_rows.filter_map(mine).for_each(|row| right.send(row));
        left.advance_to((step + 1) * TICK);
        right.advance_to((of_right + 1).max(0) * TICK);
        // Some steps are under way at a time.
        while probe.less_than(&((of_right - 2) * TICK)) {
            state.step_or_nap(worker, NAP)?;
        }
    }
    left.close();
    right.close();
    control.close();
    while !worker.installed_dataflows().is_empty() {
        state.step_or_nap(worker, NAP)?;
    }
    Ok(())
}

/// The join of both sides, its states in a layout.
fn joined<'s, L>(
    [left, right]: [StreamVec<'s, i64, Row>; 2],
    moves: StreamVec<'s, i64, MoveGroup>,
    state: &WorkerState,
    spec: Spec<L>,
) -> Result<Changes<'s, i64, Pair>>
where
    L: Layout<u64, Vec<Row>>,
{
    let left = left.key_by(state, |row: &Row| row.0).migratable(moves);
    left.join(right.key_by(state, |row: &Row| row.0), spec, pair_of)
}

/// The join of rows that are close in time.
fn near(case: &Case) -> Outcome {
    let bounds = case.bounds.unwrap();
    run(case, move |[left, right], moves, state| {
        let left = left.key_by(state, |row: &Row| row.0).migratable(moves);
        let right = right.key_by(state, |row: &Row| row.0);
        let at = |row: &Row| Time(row.1);
        left.interval_join(at, right, at, bounds, Spec::new("near"), pair_of)
    })
}

const BOUNDS: [(i64, i64); 3] = [(0, 3 * TICK), (-TICK, TICK / 2), (-4 * TICK, -5000)];

/// Each group moves at the last time of all, to a worker that is mostly not its own.
fn at_the_end(workers: usize) -> impl Iterator<Item = (i64, MoveGroup)> {
    let to = move |group| (u32::from(group) + 1) % workers as u32;
    (0..GROUPS)
        .map(move |group| ((STEPS - 1) * TICK, MoveGroup { group: KeyGroup(group), to: to(group) }))
}

/// Compares with a nested loop, on one to three workers.
fn compare(
    name: &str,
    layout: &AnyLayout,
    (on_device, is_near): (bool, bool),
    join: impl Fn(&Case) -> Outcome,
) {
    for workers in 1..=3 {
        let seed = workers as u64 + 7;
        let case = Case {
            workers,
            layout: layout.clone(),
            memory: if on_device { MIB } else { 16 * MIB },
            on_device,
            keys: if on_device { 500 } else { 80 },
            moves: moves(seed, workers, 30, false).into_iter().chain(at_the_end(workers)).collect(),
            lag: [0, 0, 3, 1][workers],
            bounds: is_near.then(|| BOUNDS[workers - 1]),
            seed,
        };
        let when = format!("{name}, {workers} workers");
        let (expected, found) = (nested_loop(&case), join(&case));
        assert!(expected.len() > 200, "{when}: {} pairs", expected.len());
        let differs = |(pair, count): &(&Pair, &i64)| found.pairs.get(pair) != Some(count);
        let missing = expected.iter().filter(differs).count();
        let differs = |(pair, count): &(&Pair, &i64)| expected.get(pair) != Some(count);
        let extra: Vec<_> = found.pairs.iter().filter(differs).take(5).collect();
        assert!(missing == 0 && extra.is_empty(), "{when}: {missing} wrong or missing, {extra:?}");
        // Rows that are close in time are over in the end.
        let entries = if is_near { 0 } else { case.entries() };
        assert_eq!(found.entries, entries, "{when}: lost, left, or at two workers");
        assert_eq!(found.away > 0, workers > 1, "{when}: {} have others' groups", found.away);
        assert!(
            !on_device || is_near || found.cold_reads > 100,
            "{when}: {} reads",
            found.cold_reads
        );
        let (split, wanted) = (case.split(), if on_device { 1 } else { 5 });
        assert!(split >= wanted, "{when}: rows of {split} moves are on both sides of it");
    }
}

/// A hybrid log, or an append log, with little memory.
fn on_storage() -> AnyLayout {
    HybridLog::new().page_records(8).queue_depth(4).segment(64 * KIB).memory(256 * KIB).into()
}

fn configured(case: &Case) -> Outcome {
    run(case, |rows, moves, state| joined(rows, moves, state, Spec::new("pairs")))
}

#[test]
fn pairs_are_made_once_wherever_groups_are() {
    compare("auto", &AnyLayout::default(), (false, false), configured);
}

#[test]
fn pairs_on_the_heap_are_made_once_wherever_groups_are() {
    compare("heap", &Heap::new().into(), (false, false), configured);
}

#[test]
fn pairs_of_rows_on_storage_are_made_once_wherever_groups_are() {
    compare("hybrid log", &on_storage(), (true, false), configured);
}

#[test]
fn pairs_in_a_layout_of_ones_own_are_made_once_wherever_groups_are() {
    compare("btree", &AnyLayout::default(), (false, false), |case| {
        run(case, |rows, moves, state| joined(rows, moves, state, Spec::new("pairs").layout(BTree)))
    });
}

#[test]
fn rows_close_in_time_are_paired_once_wherever_groups_are() {
    compare("near, auto", &AnyLayout::default(), (false, true), near);
    compare("near, heap", &Heap::new().into(), (false, true), near);
    compare("near, hybrid log", &on_storage(), (true, true), near);
}
