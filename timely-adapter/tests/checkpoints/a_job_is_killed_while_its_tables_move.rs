//! A job whose tables move with the key groups of its stream ends by errors at any turn and goes on from its
//! last checkpoint, with as many workers or others: each row is answered once, by one worker, where its part of
//! the table is. Parts that were on their way follow in the next run. Rows that are close in time are paired once.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use alluvium::config::ByteSize;
use alluvium::moving::KeyGroup;
use alluvium::{Error, ErrorKind, KeyHash, MIB, Result, Time};
use alluvium_timely::{
    Changes, Counting, External, IntervalJoin, JobCheckpoints, JobInput, KeyBy, LookupExternal,
    LookupJoin, MoveGroup, OnThread, Rolling, Spec, Turn, WorkerState, execute,
};
use timely::dataflow::operators::core::Concat;
use timely::dataflow::operators::vec::{Input, Map};
use timely::dataflow::operators::{Inspect, Probe};
use timely::dataflow::{ProbeHandle, StreamVec};
use timely::worker::Worker;

use crate::job::{Accident, dice, node};

const KEYS: i64 = 40;
const NUMBERS: i64 = 1_200;
/// Numbers between two moves.
const STAY: i64 = 7;
/// The first number: what is before it is the table of state.
const BEGIN: i64 = 1;

/// The parts of a table, which outlives the runs.
#[derive(Debug, Default)]
struct World {
    /// Of key groups that have followed before.
    at: BTreeMap<u16, usize>,
    on_their_way: BTreeSet<u16>,
    /// Rows that were answered in this run, and by whom.
    answered: BTreeMap<i64, usize>,
    followed: u64,
    wrong: Vec<String>,
}

type Shared = Arc<Mutex<World>>;

fn group_of(key: i64) -> KeyGroup {
    KeyGroup::of(key.key_hash(), node().store.key_groups)
}

fn part(world: &Shared, worker: usize) -> Result<OnThread<i64, i64>> {
    let (asked, moved) = (world.clone(), world.clone());
    OnThread::following(
        "part",
        8,
        move |keys: &[i64], values: &mut Vec<Result<Option<i64>>>| {
            let mut world = asked.lock().unwrap();
            for key in keys {
                let KeyGroup(group) = group_of(*key);
                let at = world.at.get(&group).copied();
                if at != Some(worker) || world.on_their_way.contains(&group) {
                    world.wrong.push(format!("worker {worker} asks for {key}, which is at {at:?}"));
                }
                values.push(Ok(Some(-1 - key)));
            }
        },
        move |KeyGroup(group), _| {
            let mut world = moved.lock().unwrap();
            if world.at.get(&group) == Some(&worker) && !world.on_their_way.contains(&group) {
                return Ok(());
            }
            world.on_their_way.insert(group);
            drop(world);
            std::thread::sleep(Duration::from_micros(u64::from(group) % 4 * 100));
            let mut world = moved.lock().unwrap();
            // A run that ends leaves it on its way.
            world.on_their_way.remove(&group);
            world.at.insert(group, worker);
            world.followed += 1;
            Ok(())
        },
    )
}

fn work(
    worker: &mut Worker,
    state: &WorkerState,
    world: &Shared,
    accident: &Accident,
) -> Result<BTreeMap<i64, i64>> {
    let (index, peers) = (worker.index() as i64, worker.peers() as i64);
    let (probe, counts) = (ProbeHandle::new(), Rc::new(RefCell::new(BTreeMap::new())));
    let (sink, answered) = (counts.clone(), world.clone());
    let (input, control, table) = worker.dataflow::<i64, _, _>(|scope| {
        let (input, rows) = scope.new_input::<i64>();
        let (control, moves) = scope.new_input::<MoveGroup>();
        let (table, entries) = scope.new_input::<i64>();
        let by = state.index();
        let outside = rows
            .clone()
            .key_by(state, |row| row % KEYS)
            .migratable(moves.clone())
            .lookup_external(
                part(world, state.index())?,
                External::new("outside"),
                move |key, row, value: Option<&i64>| {
                    let mut world = answered.lock().unwrap();
                    if let Some(other) = world.answered.insert(*row, by) {
                        world.wrong.push(format!("{row} is answered by {other} and by {by}"));
                    }
                    if value != Some(&(-1 - key)) {
                        world.wrong.push(format!("{row} sees {value:?}"));
                    }
                    value.copied()
                },
            )?;
        let near = near(rows.clone(), moves.clone(), state)?;
        let inside = rows.key_by(state, |row| row % KEYS).migratable(moves).lookup_join(
            entries.key_by(state, |key| *key),
            Spec::new("inside"),
            |key| Some(key + 1_000),
            |_, _, value| value.copied(),
        )?;
        outside
            .concat(inside)
            .concat(near)
            .map(|(value, _, _)| value)
            .key_by(state, |value| *value)
            .rolling(Spec::new("counts"), Counting)?
            .inspect(move |((key, count), _, diff)| {
                if *diff > 0 {
                    let mut sink = sink.borrow_mut();
                    let most = sink.entry(*key).or_insert(*count);
                    *most = *count.max(most);
                }
            })
            .probe_with(&probe);
        Ok::<_, Error>((input, control, table))
    })?;
    let mut job = JobCheckpoints::new(state, probe.clone())?;
    let (mut input, mut control) = (job.input(input), job.input(control));
    let mut table = job.input(table);
    if state.restored().is_none() {
        for key in (0..KEYS).filter(|key| key % peers == index) {
            table.send(Time(0), key)?;
        }
        table.close();
        input.advance_to(Time(BEGIN))?;
        control.advance_to(Time(BEGIN))?;
        state.run_until(worker, || !probe.less_than(&BEGIN))?;
    } else {
        table.close();
    }
    let from = state.restored().map_or(BEGIN, |all| all.until.0);
    let mut next = from + (index - from).rem_euclid(peers);
    let mut asked = next;
    loop {
        accident.happen(state.index())?;
        if next - asked >= 150 && index == 0 {
            asked = next;
            job.request();
        }
        let turn = job.turn(next >= NUMBERS)?;
        match turn {
            Turn::Go | Turn::Until(_) => {
                let until = if let Turn::Until(Time(until)) = turn { until } else { i64::MAX };
                let batch = NUMBERS.min(next + peers * 10);
                while next < until.min(NUMBERS) && (next < batch || turn != Turn::Go) {
                    input.send(Time(next), next)?;
                    next += peers;
                }
                input.advance_to(Time(if turn == Turn::Go { next } else { until }))?;
                tell_moves(&mut control, *input.time(), index, peers)?;
            }
            Turn::Seal { .. } => job.seal(&[next as u64])?,
            Turn::Wait => {}
            Turn::End(_) => break,
        }
        state.step_or_nap(worker, Duration::from_millis(1))?;
    }
    drop((input, control));
    while worker.has_dataflows() {
        state.step(worker)?;
    }
    Ok(counts.take())
}

/// Pairs each number with the next one of its key.
fn near<'scope>(
    rows: StreamVec<'scope, i64, i64>,
    moves: StreamVec<'scope, i64, MoveGroup>,
    state: &WorkerState,
) -> Result<Changes<'scope, i64, i64>> {
    let others = rows.clone().key_by(state, |row| row % KEYS);
    let (at, bounds, spec) = (|row: &i64| Time(*row), (1, KEYS), Spec::new("near"));
    let rows = rows.key_by(state, |row| row % KEYS).migratable(moves);
    rows.interval_join(at, others, at, bounds, spec, |key, _, _| key + 2_000)
}

/// Tells of the moves before `until`, which are the same in each run of as many workers.
fn tell_moves(
    control: &mut JobInput<i64, MoveGroup>,
    until: i64,
    index: i64,
    peers: i64,
) -> Result<()> {
    let first = (*control.time()).max(0);
    for nth in (first + STAY - 1) / STAY.. {
        if nth * STAY >= until {
            break;
        }
        control.advance_to(Time(nth * STAY))?;
        let mut dice = dice(nth as u64 + 1);
        let (key, to) = (dice(KEYS as u64) as i64, dice(peers as u64) as u32);
        if nth % peers == index {
            control.send(Time(nth * STAY), MoveGroup { group: group_of(key), to })?;
        }
    }
    control.advance_to(Time(until))
}

fn run_in(
    directory: &Path,
    workers: usize,
    world: &Shared,
    accident: Accident,
) -> Result<BTreeMap<i64, i64>> {
    let mut node = node();
    node.store.directory = Some(directory.to_owned());
    // A list of 40 times keeps 3 MiB free to be read, beside what the other states of a worker have.
    node.store.memory = ByteSize(64 * MIB);
    {
        let mut world = world.lock().unwrap();
        world.answered.clear();
        world.on_their_way.clear();
    }
    let shared = world.clone();
    let ends = execute(timely::Config::process(workers), node, move |worker, state| {
        work(worker, state, &shared, &accident)
    })?;
    let mut counts = BTreeMap::new();
    for (key, count) in ends.into_iter().flatten() {
        let most = counts.entry(key).or_insert(count);
        *most = count.max(*most);
    }
    Ok(counts)
}

#[test]
fn each_row_is_answered_once_wherever_the_tables_are_when_the_job_is_killed() {
    let (mut died, mut followed) = (0, 0);
    for seed in 1..=4u64 {
        let (place, world) = (tempfile::tempdir().unwrap(), Shared::default());
        let (mut dice, mut counts) = (dice(seed), None);
        for run in 0..6 {
            let workers = if run < 4 { 3 } else { 1 + dice(3) as usize };
            let accident = Accident::after(150 + dice(900) as i64);
            match run_in(place.path(), workers, &world, accident) {
                Ok(found) => {
                    counts = Some(found);
                    break;
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Input, "seed {seed}: {error}");
                    died += 1;
                }
            }
        }
        let counts = counts.unwrap_or_else(|| {
            let last = run_in(place.path(), 3, &world, Accident::default());
            last.unwrap_or_else(|error| panic!("seed {seed}: {error}"))
        });
        // What the last run says of a key is the count of all runs.
        let each = |key: i64| (BEGIN..NUMBERS).filter(|row| row % KEYS == key).count() as i64;
        let mut was_paired = false;
        for (key, found) in counts {
            let expected = match key {
                2_000.. => each(key - 2_000) - 1,
                1_000.. => each(key - 1_000),
                _ => each(-1 - key),
            };
            assert_eq!(found, expected, "seed {seed}: {key}");
            was_paired |= key >= 2_000;
        }
        assert!(was_paired, "seed {seed}");
        let world = world.lock().unwrap();
        assert!(world.wrong.is_empty(), "seed {seed}: {:?}", world.wrong);
        followed += world.followed;
    }
    assert!(died >= 8 && followed > 300, "{died} died, {followed} followed");
}
