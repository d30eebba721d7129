//! A job whose result shows each number that is lost or applied twice, and how it is run: on simulated
//! devices, in a directory, as several processes, with accidents. The key groups of its counts, windows,
//! lists and timers move between the workers all the time. After each run a checker restores what the
//! job's record names.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use alluvium::config::{ByteSize, Helpers};
use alluvium::io::{CrashPolicy, Device, Simulated};
use alluvium::moving::KeyGroup;
use alluvium::time::nanos;
use alluvium::{
    Error, ErrorKind, HybridLog, KIB, KeyHash, MIB, Result, StoreConfig, Time, Windows,
};
use alluvium_timely::{
    Counting, JobCheckpoints, JobInput, KeyBy, MoveGroup, NodeConfig, Rolling, Spec, Stateful,
    Turn, Windowing, WorkerOverrides, WorkerState, execute, execute_with,
};
use timely::dataflow::operators::core::Concat;
use timely::dataflow::operators::vec::{Input, Map};
use timely::dataflow::operators::{Inspect, Probe};
use timely::dataflow::{ProbeHandle, StreamVec};
use timely::worker::Worker;

use crate::checker::check_committed;
use crate::processes::{cluster, free_addresses};

const KEYS: i64 = 40;
/// Numbers in a window: each key is in each.
pub const WINDOW: i64 = 50;
/// What the windows of a number's key are counted by.
const GROUPS: i64 = 5;
/// No run has more.
const WORKERS_MAX: i64 = 8;
/// Numbers until the timer of one of them is due.
const ROUND: i64 = 30;
/// Numbers between two moves of a key group.
const STAY: i64 = 23;

/// A stream of numbers; worker `w` of `n` has w, w + n and so on.
#[derive(Clone, Copy)]
pub struct Job {
    /// So many numbers share a time: the first of them.
    pub ties: i64,
    pub numbers: i64,
    /// A checkpoint is asked for each time so many numbers more were sent, by one of the workers.
    pub every: i64,
    /// Numbers sent at a time.
    pub batch: i64,
}

impl Job {
    pub fn time_of(self, number: i64) -> Time {
        Time(number - number % self.ties)
    }
}

/// What ends a run.
#[derive(Default)]
pub struct Accident {
    /// Turns of all workers until one fails.
    turns: Option<AtomicI64>,
    /// The worker that fails as soon as it has begun the checkpoint of its store.
    sealed: Option<usize>,
    /// Turns of each worker, if somebody counts them: none that fails.
    counted: Vec<Arc<AtomicU64>>,
    /// The last checkpoint that any worker knows to be committed.
    committed: Arc<AtomicU64>,
}

impl Accident {
    pub fn after(turns: i64) -> Self {
        Self { turns: Some(AtomicI64::new(turns)), ..Self::default() }
    }

    /// One that lets no checkpoint be committed, if it is the first worker's.
    pub fn after_seal_of(worker: usize) -> Self {
        Self { sealed: Some(worker), ..Self::default() }
    }

    /// None; it counts the turns of each worker.
    pub fn counting(counted: Vec<Arc<AtomicU64>>) -> Self {
        Self { counted, ..Self::default() }
    }

    /// None; it tells the last checkpoint that is committed.
    pub fn telling(committed: Arc<AtomicU64>) -> Self {
        Self { committed, ..Self::default() }
    }

    pub fn happen(&self, worker: usize) -> Result<()> {
        if let Some(turns) = self.counted.get(worker) {
            turns.fetch_add(1, Ordering::Relaxed);
        }
        match &self.turns {
            Some(turns) if turns.fetch_sub(1, Ordering::Relaxed) == 0 => {
                Err(Error::new(ErrorKind::Input, "an accident"))
            }
            _ => Ok(()),
        }
    }
}

#[derive(Debug, Default)]
pub struct End {
    /// The greatest count of each key that was emitted; groups of windows are below 0, those of
    /// timers below -100.
    pub counts: BTreeMap<i64, i64>,
    pub committed: u64,
    /// The checkpoint that it has gone on from.
    pub restored: u64,
    pub abandoned: u64,
    pub sent: i64,
}

pub fn work(
    job: Job,
    worker: &mut Worker,
    state: &WorkerState,
    accident: &Accident,
) -> Result<End> {
    let (index, peers) = (worker.index() as i64, worker.peers() as i64);
    let (probe, counts) = (ProbeHandle::new(), Rc::new(RefCell::new(BTreeMap::new())));
    let sink = counts.clone();
    let (input, control) = worker.dataflow::<i64, _, _>(|scope| {
        let (input, rows) = scope.new_input::<i64>();
        let (control, moves) = scope.new_input::<MoveGroup>();
        let counts = rows
            .clone()
            .key_by(state, |row| row % KEYS)
            .migratable(moves.clone())
            .rolling(Spec::new("counts"), Counting)?;
        let listed = listed(rows.clone(), moves.clone(), state)?;
        let fired = rows
            .key_by(state, |row| row % KEYS)
            .migratable(moves)
            .window(Windows::tumbling(nanos(WINDOW)), |row| Time(*row))
            .aggregate(Spec::new("windows"), Counting)?;
        let groups = fired
            .results
            .map(|((key, _, _), _, _)| -1 - key % GROUPS)
            .concat(listed)
            .key_by(state, |group| *group)
            .rolling(Spec::new("groups"), Counting)?;
        counts
            .concat(groups)
            .inspect(move |((key, count), _, diff)| {
                if *diff > 0 {
                    let mut sink = sink.borrow_mut();
                    let most = sink.entry(*key).or_insert(*count);
                    *most = *count.max(most);
                }
            })
            .probe_with(&probe);
        Ok::<_, Error>((input, control))
    })?;
    let first = begin_of(state, peers);
    let (mut next, mut abandoned) = (first, 0);
    let mut asked = first;
    let mut checkpoints = JobCheckpoints::new(state, probe)?;
    let (mut input, mut control) = (checkpoints.input(input), checkpoints.input(control));
    loop {
        accident.happen(state.index())?;
        // The end is left to be done after any of them: it says every count once more.
        let is_early = next < job.numbers - 4 * WINDOW;
        if is_early && next - asked >= job.every && (next / job.every) % peers == index {
            asked = next;
            checkpoints.request();
        }
        let before = checkpoints.abandoned().is_some();
        let turn = checkpoints.turn(next >= job.numbers)?;
        let committed = checkpoints.committed().map_or(0, |checkpoint| checkpoint.number);
        accident.committed.fetch_max(committed, Ordering::SeqCst);
        abandoned += u64::from(!before && checkpoints.abandoned().is_some());
        match turn {
            Turn::Go | Turn::Until(_) => {
                let until = if let Turn::Until(until) = turn { until } else { Time::MAX };
                // All rows of a batch at the time of its first, one of them also if it is long.
                let batch = job.numbers.min(next + peers * job.batch);
                while next < job.numbers && job.time_of(next) < until {
                    if turn == Turn::Go && next >= batch {
                        break;
                    }
                    input.send(job.time_of(next), next)?;
                    next += peers;
                }
                input.advance_to(if turn == Turn::Go { job.time_of(next) } else { until })?;
                tell_moves(&mut control, *input.time(), index, peers)?;
            }
            Turn::Seal { .. } => {
                checkpoints.seal(&[next as u64, 7])?;
                if accident.sealed == Some(state.index()) {
                    return Err(Error::new(ErrorKind::Input, "an accident after sealing"));
                }
            }
            Turn::Wait => {}
            Turn::End(Time(latest)) => {
                // A run before this one may have come to its end with more workers.
                let last = job.time_of(job.numbers - 1).0;
                assert!((last + 1..job.numbers + WORKERS_MAX).contains(&latest), "{latest}");
                break;
            }
        }
        state.step_or_nap(worker, std::time::Duration::from_millis(1))?;
    }
    let committed = checkpoints.committed().map_or(0, |checkpoint| checkpoint.number);
    drop((input, control));
    while worker.has_dataflows() {
        state.step(worker)?;
    }
    let restored = state.restored().map_or(0, |checkpoint| checkpoint.number);
    Ok(End { counts: counts.take(), committed, restored, abandoned, sent: (next - first) / peers })
}

/// Tells of the moves before `until`, which are the same in each run of as many workers; any worker
/// may tell one.
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
            let group = KeyGroup::of(key.key_hash(), StoreConfig::default().key_groups);
            control.send(Time(nth * STAY), MoveGroup { group, to })?;
        }
    }
    control.advance_to(Time(until))
}

/// The first number of a worker: of its share, the first that is not in the checkpoint, which has all
/// numbers before one of them and none after.
pub fn begin_of(state: &WorkerState, peers: i64) -> i64 {
    let share = |from: i64, index: i64, peers: i64| from + (index - from).rem_euclid(peers);
    let Some(all) = state.restored() else { return state.index() as i64 };
    let positions = || all.workers.iter().map(|worker| worker.position[0] as i64);
    let least = positions().min().expect("there was a worker");
    for (worker, position) in (0..).zip(positions()) {
        assert_eq!(position, share(least, worker, all.workers.len() as i64), "worker {worker}");
    }
    share(least, state.index() as i64, peers)
}

/// Numbers go into lists by key, and come out, as their group, when the timer of their round is due.
fn listed<'scope>(
    rows: StreamVec<'scope, i64, i64>,
    moves: StreamVec<'scope, i64, MoveGroup>,
    state: &WorkerState,
) -> Result<StreamVec<'scope, i64, i64>> {
    let changes = rows.key_by(state, |row| row % KEYS).migratable(moves).stateful(
        Spec::new("rounds"),
        |states| states.list::<i64, i64>("numbers"),
        |lists, rows, context| {
            // What is left in it after an error comes again.
            while let Some(&(key, row)) = rows.last() {
                context.set_timer(key, Time((row / ROUND + 1) * ROUND))?;
                lists.append(&key, row)?;
                rows.pop();
            }
            Ok(())
        },
        |lists, due, context| {
            while let Some(&(Time(at), key)) = due.last() {
                for row in lists.to_vec(&key)? {
                    if (at - ROUND..at).contains(&row) {
                        context.emit(-101 - key % GROUPS, 1);
                    }
                }
                due.pop();
            }
            Ok(())
        },
    )?;
    Ok(changes.map(|(group, _, _)| group))
}

pub fn expected(job: Job) -> BTreeMap<i64, i64> {
    let mut counts = BTreeMap::new();
    (0..job.numbers).for_each(|n| *counts.entry(n % KEYS).or_insert(0) += 1);
    let windows: BTreeSet<_> = (0..job.numbers).map(|n| (n % KEYS, n / WINDOW)).collect();
    windows.iter().for_each(|(key, _)| *counts.entry(-1 - key % GROUPS).or_insert(0) += 1);
    (0..job.numbers).for_each(|n| *counts.entry(-101 - n % KEYS % GROUPS).or_insert(0) += 1);
    counts
}

/// What the workers have counted together: a key's count goes on where its group goes.
pub fn together(ends: &[End]) -> BTreeMap<i64, i64> {
    let mut counts = BTreeMap::new();
    for (key, count) in ends.iter().flat_map(|end| &end.counts) {
        let most = counts.entry(*key).or_insert(*count);
        *most = *count.max(most);
    }
    counts
}

pub fn node() -> NodeConfig {
    StoreConfig {
        memory: ByteSize(32 * MIB),
        max_value: Some(ByteSize(4 * KIB)),
        layout: HybridLog::new().page_records(8).queue_depth(4).segment(16 * KIB).into(),
        helpers: Helpers::Inline,
        ..StoreConfig::default()
    }
    .into()
}

pub fn run_on(devices: &[Simulated], job: Job, accident: Accident) -> Result<Vec<End>> {
    let ends = run_unchecked_on(devices, job, accident);
    let place = tempfile::tempdir().unwrap();
    bring(devices, place.path());
    check_committed(place.path(), "");
    ends
}

/// The same on devices whose checkpoints may be damaged.
pub fn run_unchecked_on(devices: &[Simulated], job: Job, accident: Accident) -> Result<Vec<End>> {
    let devices = devices.iter().map(|device| Arc::new(device.clone()) as Arc<dyn Device>);
    run_with(node(), devices.collect(), job, accident)
}

/// Puts what the devices of all workers have into the directory of a process.
pub fn bring(devices: &[Simulated], place: &Path) {
    for (worker, device) in devices.iter().enumerate() {
        let device = device.crash(CrashPolicy::Everything);
        let store = place.join(format!("worker-{worker}"));
        std::fs::create_dir(&store).unwrap();
        for name in device.list().unwrap() {
            // The record is the whole job's.
            let is_of_job = ["COMMITTED", "BEGUN"].iter().any(|of| name.starts_with(of));
            let at = if is_of_job { place } else { &store };
            std::fs::write(at.join(&name), device.bytes(&name).unwrap()).unwrap();
        }
    }
}

/// Runs a job on workers of which each has its device.
pub fn run_with(
    node: NodeConfig,
    devices: Vec<Arc<dyn Device>>,
    job: Job,
    accident: Accident,
) -> Result<Vec<End>> {
    let config = timely::Config::process(devices.len());
    let overrides = move |index: usize| WorkerOverrides {
        device: Some(devices[index].clone()),
        ..WorkerOverrides::default()
    };
    execute_with(config, node, overrides, move |worker, state| work(job, worker, state, &accident))
}

/// Runs a job on so many workers in a directory.
pub fn run_in(directory: &Path, workers: usize, job: Job, accident: Accident) -> Result<Vec<End>> {
    let ends = run_unchecked_in(directory, workers, job, accident);
    check_committed(directory, "");
    ends
}

/// The same, for the checker.
pub fn run_unchecked_in(
    directory: &Path,
    workers: usize,
    job: Job,
    accident: Accident,
) -> Result<Vec<End>> {
    let mut node = node();
    node.store.directory = Some(directory.to_owned());
    node.store.memory = ByteSize(8 * MIB * workers as u64);
    execute(timely::Config::process(workers), node, move |worker, state| {
        work(job, worker, state, &accident)
    })
}

/// A small generator, so that runs repeat.
pub fn dice(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move |below| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    }
}

/// Runs a job as several processes, which are threads here.
pub fn run_cluster(
    directory: &Path,
    processes: usize,
    threads: usize,
    job: Job,
    turns: Option<i64>,
) -> Vec<Result<Vec<End>>> {
    let accident = Arc::new(turns.map_or_else(Accident::default, Accident::after));
    let outcomes = run_processes(directory, processes, threads, move |worker, state| {
        let second = threads..2 * threads;
        let none = Accident::default();
        let accident = if second.contains(&state.index()) { &*accident } else { &none };
        work(job, worker, state, accident)
    });
    // Where directories are missing, that is the error.
    let is_accident = |error: &Error| error.to_string().contains("an accident");
    if outcomes.iter().all(|outcome| outcome.as_ref().err().is_none_or(is_accident)) {
        check_committed(directory, "0");
    }
    outcomes
}

/// Runs workers in several processes, which are threads here, each with its directory.
pub fn run_processes<R: Send + 'static>(
    directory: &Path,
    processes: usize,
    threads: usize,
    work: impl Fn(&mut Worker, &WorkerState) -> Result<R> + Clone + Send + Sync + 'static,
) -> Vec<Result<Vec<R>>> {
    let addresses = free_addresses(processes);
    let start = |process: usize| {
        let (config, work) = (cluster(threads, process, &addresses), work.clone());
        let mut node = node();
        node.store.directory = Some(directory.join(process.to_string()));
        std::thread::spawn(move || execute(config, node, work))
    };
    let running: Vec<_> = (0..processes).map(start).collect();
    running.into_iter().map(|process| process.join().expect("no panic")).collect()
}
