//! A key group that is told to move at the very time at which the job stops for a checkpoint: it moves
//! before that on all workers, or after it on all. So every checkpoint that is committed can be restored.
//!
//! What this catches: a store that seals before the group leaves, and another that seals after it has
//! come, because one worker is slower; a commit of such a checkpoint.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use alluvium::config::ByteSize;
use alluvium::moving::KeyGroup;
use alluvium::time::nanos;
use alluvium::{Error, MIB, Result, Time, Windows};
use alluvium_timely::{
    Counting, JobCheckpoints, JobInput, KeyBy, MoveGroup, Rolling, Spec, Turn, Windowing,
    WorkerState, execute,
};
use timely::dataflow::ProbeHandle;
use timely::dataflow::operators::core::Concat;
use timely::dataflow::operators::vec::{Input, Map};
use timely::dataflow::operators::{Inspect, Probe};
use timely::worker::Worker;

use crate::checker::{commit_only, committed, copy};
use crate::job::node;

const KEYS: i64 = 60;
/// Event time of a tick, and its rows: one for each key, sent by the workers in turns.
const TICK: i64 = 10;
/// When all key groups are told to move: once more at each later tick of ten.
const MOVED_AT: i64 = 500;

/// The greatest count of each key; of windows, whose keys are below 0, how many rows.
type Counts = BTreeMap<i64, i64>;

#[derive(Clone, Copy)]
struct Run {
    /// Event time of its end.
    end: i64,
    /// Milliseconds that each worker sleeps a turn, by index.
    naps: [u64; 2],
    /// Whether the control stream is closed, or moves with the input.
    is_closed: bool,
}

fn work(run: Run, worker: &mut Worker, state: &WorkerState) -> Result<(Counts, u64)> {
    let (index, peers) = (worker.index() as i64, worker.peers() as i64);
    let (probe, counts) = (ProbeHandle::new(), Rc::new(RefCell::new(Counts::new())));
    let sink = counts.clone();
    let (input, control) = worker.dataflow::<i64, _, _>(|scope| {
        let (input, rows) = scope.new_input::<(i64, i64)>();
        let (control, moves) = scope.new_input::<MoveGroup>();
        let counts = rows
            .clone()
            .key_by(state, |row| row.0)
            .migratable(moves.clone())
            .rolling(Spec::new("counts"), Counting)?;
        let fired = rows
            .key_by(state, |row| row.0)
            .migratable(moves)
            .window(Windows::tumbling(nanos(5 * TICK)), |row| Time(row.1))
            .aggregate(Spec::new("windows"), Counting)?;
        let fired =
            fired.results.map(|((key, _, count), time, diff)| ((-1 - key, count), time, diff));
        counts
            .concat(fired)
            .inspect(move |((key, count), _, diff)| {
                let mut sink = sink.borrow_mut();
                let known = sink.entry(*key).or_default();
                *known = if *key < 0 { *known + count * diff } else { (*known).max(*count) };
            })
            .probe_with(&probe);
        Ok::<_, Error>((input, control))
    })?;
    let begin = state.restored().map_or(0, |all| all.until.0);
    let mut control = Some(control);
    if let Some(control) = &mut control {
        let mut at = MOVED_AT;
        while at < run.end {
            if at >= begin {
                control.advance_to(at);
                for group in (0..state_groups()).filter(|_| index == 0) {
                    // Away from home, and home again.
                    let home = KeyGroup(group).owner(state_groups(), peers as usize) as i64;
                    let to = ((home + at / 100) % peers) as u32;
                    control.send(MoveGroup { group: KeyGroup(group), to });
                }
            }
            at += 100;
        }
        control.advance_to(run.end.max(begin));
    }
    control.take_if(|_| run.is_closed);
    let (mut next, mut asked) = (begin.div_euclid(TICK) + i64::from(begin % TICK != 0), begin);
    let mut job = JobCheckpoints::new(state, probe)?;
    // The control stream is ahead of the rows, so that it is none of the job's inputs.
    let mut input = job.input(input);
    loop {
        let at = next * TICK;
        // At the time of a move.
        if at > asked && at % 100 == 0 && !job.is_busy() {
            asked = at;
            job.request();
        }
        let is_asked = job.is_busy();
        let turn = job.turn(at >= run.end)?;
        let mut tick = |input: &mut JobInput<i64, (i64, i64)>| -> Result<()> {
            let (tick, at) = (next, next * TICK);
            next += 1;
            let mut rows = (0..KEYS).filter(|key| (key + tick) % peers == index);
            rows.try_for_each(|key| input.send(Time(at), (key, at)))
        };
        match turn {
            // Who has asked stays where it is until all stop.
            Turn::Go if at < run.end && !is_asked => {
                tick(&mut input)?;
                input.advance_to(Time(next * TICK))?;
            }
            Turn::Go | Turn::Wait => {}
            Turn::Until(Time(until)) => {
                if at < until.min(run.end) {
                    tick(&mut input)?;
                    input.advance_to(Time((next * TICK).min(until)))?;
                } else {
                    input.advance_to(Time(until))?;
                }
            }
            Turn::Seal { .. } => job.seal(&[at as u64])?,
            Turn::End(_) => break,
        }
        std::thread::sleep(Duration::from_millis(run.naps[state.index() % 2]));
        state.step_or_nap(worker, Duration::from_millis(1))?;
    }
    let committed = job.committed().map_or(0, |all| all.number);
    assert_eq!(job.abandoned(), None);
    drop((input, control));
    while worker.has_dataflows() {
        state.step(worker)?;
    }
    Ok((counts.take(), committed))
}

fn state_groups() -> u16 {
    node().store.key_groups
}

fn run_in(directory: &Path, workers: usize, run: Run) -> Result<Vec<(Counts, u64)>> {
    let mut node = node();
    node.store.directory = Some(directory.to_owned());
    node.store.memory = ByteSize(8 * MIB * workers as u64);
    execute(timely::Config::process(workers), node, move |worker, state| work(run, worker, state))
}

/// What the workers have counted together.
fn together(ends: &[(Counts, u64)]) -> Counts {
    let mut counts = Counts::new();
    for (key, count) in ends.iter().flat_map(|(counts, _)| counts) {
        let known = counts.entry(*key).or_default();
        *known = if *key < 0 { *known + count } else { (*known).max(*count) };
    }
    counts
}

#[test]
fn groups_that_move_at_the_time_of_a_checkpoint_are_in_one_part_of_it() {
    let rounds = if std::env::var_os("ALLUVIUM_LONG").is_some() { 40 } else { 1 };
    let mut opened = 0;
    for round in 0..rounds {
        for (naps, is_closed) in
            [([0, 3], true), ([3, 0], true), ([0, 3], false), ([round % 3, (round + 1) % 4], true)]
        {
            let place = tempfile::tempdir().unwrap();
            let run = Run { end: 900, naps, is_closed };
            let ends = run_in(place.path(), 2, run).unwrap();
            let when = format!("naps {naps:?}, closed {is_closed}");
            assert!(ends[0].1 > 4, "{when}: {} committed", ends[0].1);
            let all = run.end / TICK;
            let expected: Counts = (-KEYS..KEYS).map(|key| (key, all)).collect();
            let found = together(&ends);
            assert_eq!(found, expected, "{when}");
            for checkpoint in committed(place.path()) {
                for workers in [2, 1, 3] {
                    let again = tempfile::tempdir().unwrap();
                    copy(place.path(), again.path());
                    commit_only(again.path(), &checkpoint);
                    let when = format!("{when}: {workers} go on from {checkpoint:?}");
                    let run = Run { end: run.end + 100, naps: [0, 0], is_closed: true };
                    let ends = run_in(again.path(), workers, run);
                    let ends = ends.unwrap_or_else(|error| panic!("{when}: {error:?}"));
                    let found = together(&ends);
                    // All rows, also of the runs before; and all windows since the checkpoint.
                    let from = checkpoint.until.0.div_euclid(5 * TICK) * 5 * TICK;
                    let windows = (run.end - from) / TICK;
                    for key in 0..KEYS {
                        assert_eq!(found.get(&key), Some(&(run.end / TICK)), "{when}: {key}");
                        assert_eq!(
                            found.get(&(-1 - key)),
                            Some(&windows),
                            "{when}: windows of {key}"
                        );
                    }
                    opened += 1;
                }
            }
        }
    }
    assert!(opened >= 12 * rounds, "{opened} restored");
}
