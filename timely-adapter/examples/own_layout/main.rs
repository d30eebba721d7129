//! A job whose states are in a layout of its own, a `BTreeMap`: counts, a join, and an operator of its own, whose key
//! groups move all the time. It is killed three times on the way and goes on each time, with another number of
//! workers; then its results are compared with those of a run that was left alone.
//!
//! `cargo run -p alluvium-timely --example own_layout`

mod btree;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use alluvium::moving::KeyGroup;
use alluvium::{Error, KeyHash, StoreConfig, Time};
use alluvium_timely::{
    Changes, Counting, JobCheckpoints, JobInput, Join, KeyBy, MoveGroup, Rolling, Spec, Stateful,
    Turn, WorkerState, execute,
};
use timely::dataflow::operators::core::Concat;
use timely::dataflow::operators::vec::{Filter, Input, Map};
use timely::dataflow::operators::{Inspect, Probe};
use timely::dataflow::{ProbeHandle, StreamVec};

use btree::BTree;

const KEYS: u64 = 40;
/// Numbers between two checkpoints.
const EVERY: u64 = 1_000;
/// Numbers in the input until it is left alone, and in the end: each result is told once more there.
const NUMBERS: u64 = 20_000;
const NUMBERS_IN_ALL: u64 = NUMBERS + 4 * KEYS;
/// Times between two moves of a key group.
const STAY: i64 = 23;

/// What a result is of, its key, and the result: it only grows.
type Result = (&'static str, u64, u64);
/// The greatest of each.
type Results = BTreeMap<(&'static str, u64), u64>;

/// When a number comes. Some come at the same time, and times never fall.
fn time_of(number: u64) -> Time {
    Time((number / 5).cast_signed())
}

fn results<'scope>(
    numbers: StreamVec<'scope, i64, u64>,
    moves: StreamVec<'scope, i64, MoveGroup>,
    state: &WorkerState,
) -> alluvium::Result<StreamVec<'scope, i64, Result>> {
    let spec = |id: &str| Spec::new(id).layout(BTree);
    let counted = |what: &'static str, counts: Changes<'scope, i64, (u64, i64)>| {
        counts.map(move |((key, count), _, diff)| {
            (what, key, if diff > 0 { count as u64 } else { 0 })
        })
    };
    let keyed = numbers.clone().key_by(state, |number| number % KEYS);
    let counts = keyed.migratable(moves.clone()).rolling(spec("counts"), Counting)?;

    let even = numbers.clone().filter(|number| number % 2 == 0).key_by(state, |number| number / 2);
    let odd = numbers.clone().filter(|number| number % 2 == 1).key_by(state, |number| number / 2);
    let even = even.migratable(moves.clone());
    let pairs = even.join(odd, spec("pairs"), |half, _, _| half % KEYS)?.map(|(key, _, _)| key);
    let pairs = pairs.key_by(state, |key| *key).rolling(spec("counted-pairs"), Counting)?;

    let keyed = numbers.key_by(state, |number| number % KEYS);
    let sums = keyed.migratable(moves).stateful(
        spec("sums"),
        |states| states.map::<u64, u64>("sums"),
        |sums, rows, context| {
            // What is left in it after an error comes again.
            while let Some(&(key, number)) = rows.last() {
                let sum = sums.update(
                    &key,
                    || 0,
                    |sum| {
                        *sum += number;
                        *sum
                    },
                )?;
                context.emit((key, sum), 1);
                rows.pop();
            }
            Ok(())
        },
        |_, _, _| Ok(()),
    )?;
    let sums = sums.map(|((key, sum), _, _)| ("sum", key, sum));
    Ok(counted("count", counts).concat(counted("pairs", pairs)).concat(sums))
}

/// Tells of the moves before `until`: those of every so manieth time are told by this worker.
fn tell_moves(
    control: &mut JobInput<i64, MoveGroup>,
    until: Time,
    mine: u64,
    workers: u64,
) -> alluvium::Result<()> {
    let first = (*control.time()).max(0);
    for nth in (first + STAY - 1) / STAY.. {
        let (at, nth) = (Time(nth * STAY), nth.cast_unsigned());
        if at >= until {
            break;
        }
        control.advance_to(at)?;
        if nth % workers == mine {
            let group = KeyGroup::of((nth % KEYS).key_hash(), StoreConfig::default().key_groups);
            control.send(at, MoveGroup { group, to: (nth / 3 % workers) as u32 })?;
        }
    }
    control.advance_to(until)
}

/// Runs the job over so many numbers on so many workers in `directory`, from the last checkpoint there on.
/// Gives the results, the number that it began at, and the operators whose key groups are away from home at its end.
fn run(
    directory: &Path,
    workers: u64,
    numbers: u64,
) -> alluvium::Result<(Results, u64, BTreeSet<String>)> {
    let store = StoreConfig { directory: Some(directory.into()), ..StoreConfig::default() };
    let config = timely::Config::process(workers as usize);
    let parts = execute(config, store.into(), move |worker, state| {
        let probe = ProbeHandle::new();
        let (told, heard) = std::sync::mpsc::channel();
        let (input, control) = worker.dataflow::<i64, _, _>(|scope| {
            let (input, rows) = scope.new_input::<u64>();
            let (control, moves) = scope.new_input::<MoveGroup>();
            results(rows, moves, state)?
                .inspect(move |result| {
                    let _ = told.send(*result);
                })
                .probe_with(&probe);
            Ok::<_, Error>((input, control))
        })?;
        // Of all workers' numbers each takes every so manieth, from the first that none had taken.
        let mine = state.index() as u64;
        let untaken =
            state.restored().and_then(|all| all.workers.iter().map(|w| w.position[0]).min());
        let untaken = untaken.unwrap_or(0);
        let begin = untaken + (mine + workers - untaken % workers) % workers;
        let (mut next, mut asked) = (begin, begin);
        let mut checkpoints = JobCheckpoints::new(state, probe)?;
        let (mut input, mut control) = (checkpoints.input(input), checkpoints.input(control));
        loop {
            if mine == 0 && next >= asked + EVERY {
                asked = next;
                checkpoints.request();
            }
            match checkpoints.turn(next >= numbers)? {
                Turn::Go if next < numbers => {
                    input.send(time_of(next), next)?;
                    next += workers;
                    input.advance_to(time_of(next))?;
                    tell_moves(&mut control, time_of(next), mine, workers)?;
                }
                Turn::Go | Turn::Wait => {}
                Turn::Until(until) => {
                    while next < numbers && time_of(next) < until {
                        input.send(time_of(next), next)?;
                        next += workers;
                    }
                    input.advance_to(until)?;
                    tell_moves(&mut control, until, mine, workers)?;
                }
                Turn::Seal { .. } => checkpoints.seal(&[next])?,
                Turn::End(_) => break,
            }
            state.step_or_nap(worker, Duration::from_micros(50))?;
        }
        drop((input, control));
        while worker.has_dataflows() {
            state.step(worker)?;
        }
        // No group is on its way any more.
        let moved = state.store().moved_units()?.into_iter().map(|(operator, _)| operator);
        let moved: BTreeSet<String> = moved.collect();
        Ok((heard.into_iter().collect::<Vec<Result>>(), begin, moved))
    })?;
    let begin = parts.iter().map(|part| part.1).min().unwrap_or(0);
    let moved = parts.iter().flat_map(|part| part.2.clone()).collect();
    let mut results = Results::new();
    for (what, key, result) in parts.into_iter().flat_map(|part| part.0) {
        let greatest = results.entry((what, key)).or_insert(result);
        *greatest = result.max(*greatest);
    }
    Ok((results, begin, moved))
}

/// What a run that was left alone gives.
fn expected() -> Results {
    let mut results = Results::new();
    for number in 0..NUMBERS_IN_ALL {
        *results.entry(("count", number % KEYS)).or_default() += 1;
        *results.entry(("pairs", number / 2 % KEYS)).or_default() += number % 2;
        *results.entry(("sum", number % KEYS)).or_default() += number;
    }
    results
}

/// The program that is killed: the job in a directory, on so many workers.
pub fn run_to_be_killed(directory: &Path, workers: u64) -> alluvium::Result<()> {
    run(directory, workers, NUMBERS).map(drop)
}

/// Has the job killed in processes that `start` starts, goes on with it, and compares the results.
pub fn kill_and_restore(
    start: impl Fn(&Path, u64) -> Command,
) -> std::result::Result<(), Box<dyn std::error::Error>> {
    let place = tempfile::tempdir()?;
    let directory = place.path().join("killed");
    let record = directory.join("COMMITTED");
    for workers in [2, 3, 1] {
        let written = || std::fs::read(&record).ok();
        let before = written();
        let mut child = start(&directory, workers).stdin(Stdio::null()).spawn()?;
        // Until it has made a checkpoint, and is somewhere after it.
        let begin = Instant::now();
        while written() == before && child.try_wait()?.is_none() {
            assert!(begin.elapsed() < Duration::from_secs(60), "there is no checkpoint");
            std::thread::sleep(Duration::from_millis(2));
        }
        std::thread::sleep(Duration::from_millis(15));
        child.kill()?;
        child.wait()?;
        println!("killed with {workers} workers");
    }
    let (results, begin, moved) = run(&directory, 2, NUMBERS_IN_ALL)?;
    println!("went on at number {begin} of {NUMBERS_IN_ALL}");
    assert!(begin > 0, "it went on");
    assert!(moved.iter().eq(["counts", "pairs", "sums"]), "key groups moved: {moved:?}");
    assert_eq!(results, expected(), "as if nothing had happened");
    println!("the {} results are those of a run that was left alone", results.len());
    Ok(())
}

#[allow(dead_code, reason = "a test has this program as a module")]
fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    // This program started again, to be killed.
    if let (Some(directory), Some(workers)) = (std::env::args().nth(1), std::env::args().nth(2)) {
        return Ok(run_to_be_killed(Path::new(&directory), workers.parse()?)?);
    }
    let exe = std::env::current_exe()?;
    kill_and_restore(|directory, workers| {
        let mut command = Command::new(&exe);
        command.arg(directory).arg(workers.to_string());
        command
    })
}
