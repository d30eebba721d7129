//! However a run ends, the next one goes on from a checkpoint that is whole on all workers: the sums
//! at the end are those of a run that nothing happened to. Runs end by errors on any worker at any
//! turn, by a device that fails, and by a loss of power, which takes what was not synced. Numbers are
//! counted by key; they are also counted in windows, whose results other workers count, so that
//! firings and what they send are under way at any time.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::TcpListener;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};

use alluvium::io::{CrashPolicy, Device, Fault, Faults, Simulated};
use alluvium::{
    ByteSize, Error, ErrorKind, Helpers, HybridLog, KIB, Result, StoreConfig, Time, Windows,
};
use alluvium_timely::{
    Counting, JobCheckpoint, JobCheckpoints, KeyBy, NodeConfig, Rolling, Spec, Turn, Windowing,
    WorkerOverrides, WorkerState, execute, execute_with,
};
use timely::CommunicationConfig;
use timely::dataflow::ProbeHandle;
use timely::dataflow::operators::core::Concat;
use timely::dataflow::operators::vec::{Input, Map};
use timely::dataflow::operators::{Inspect, Probe};
use timely::worker::Worker;

const KEYS: i64 = 40;
/// Numbers in a window: each key is in each.
const WINDOW: i64 = 50;
/// What the windows of a number's key are counted by.
const GROUPS: i64 = 5;

/// A stream of numbers, each at its own time; worker `w` of `n` has w, w + n and so on.
#[derive(Clone, Copy)]
struct Job {
    numbers: i64,
    /// A checkpoint is asked for each time so many numbers more were sent, by one of the workers.
    every: i64,
    /// Numbers sent at a time.
    batch: i64,
}

/// What ends a run.
#[derive(Default)]
struct Accident {
    /// Turns of all workers until one fails.
    turns: Option<AtomicI64>,
}

impl Accident {
    fn after(turns: i64) -> Self {
        Self { turns: Some(AtomicI64::new(turns)) }
    }

    fn happen(&self) -> Result<()> {
        match &self.turns {
            Some(turns) if turns.fetch_sub(1, Ordering::Relaxed) == 0 => {
                Err(Error::new(ErrorKind::Input, "an accident"))
            }
            _ => Ok(()),
        }
    }
}

#[derive(Debug, Default)]
struct End {
    /// The greatest count of each key that was emitted; the windows' groups are below 0.
    counts: BTreeMap<i64, i64>,
    committed: u64,
    abandoned: u64,
    sent: i64,
}

fn work(job: Job, worker: &mut Worker, state: &WorkerState, accident: &Accident) -> Result<End> {
    let (index, peers) = (worker.index() as i64, worker.peers() as i64);
    let (probe, counts) = (ProbeHandle::new(), Rc::new(RefCell::new(BTreeMap::new())));
    let sink = counts.clone();
    let mut input = worker.dataflow::<i64, _, _>(|scope| {
        let (input, rows) = scope.new_input::<i64>();
        let counts =
            rows.clone().key_by(state, |row| row % KEYS).rolling(Spec::new("counts"), Counting)?;
        let fired = rows
            .key_by(state, |row| row % KEYS)
            .window(Windows::tumbling(WINDOW), |row| Time(*row))
            .aggregate(Spec::new("windows"), Counting)?;
        let groups = fired
            .results
            .map(|((key, _, _), _, _)| -1 - key % GROUPS)
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
        Ok::<_, Error>(input)
    })?;
    let restored = state.restored().map(|all| all.workers[state.index()].position[0] as i64);
    let first = restored.unwrap_or(index);
    assert_eq!(first % peers, index);
    let (mut next, mut abandoned) = (first, 0);
    let mut asked = first;
    let mut checkpoints = JobCheckpoints::new(state, probe)?;
    loop {
        accident.happen()?;
        // The end is left to be done after any of them: it says every count once more.
        let is_early = next < job.numbers - 4 * WINDOW;
        if is_early && next - asked >= job.every && (next / job.every) % peers == index {
            asked = next;
            checkpoints.request();
        }
        let before = checkpoints.abandoned().is_some();
        let turn = checkpoints.turn(Time(next), next >= job.numbers)?;
        abandoned += u64::from(!before && checkpoints.abandoned().is_some());
        match turn {
            Turn::Go | Turn::Until(_) => {
                let until = if let Turn::Until(Time(until)) = turn { until } else { i64::MAX };
                // All rows of a batch at the time of its first.
                let end = until.min(job.numbers);
                let batch = end.min(next + peers * job.batch);
                while next < batch {
                    input.send(next);
                    next += peers;
                }
                let is_over = turn != Turn::Go && next >= end;
                input.advance_to(if is_over { until } else { next.max(*input.time()) });
            }
            Turn::Seal => checkpoints.seal(&[next as u64, 7])?,
            Turn::Wait => {}
            Turn::End(Time(latest)) => {
                assert!((job.numbers..job.numbers + peers).contains(&latest));
                break;
            }
        }
        state.step_or_nap(worker, std::time::Duration::from_millis(1))?;
    }
    let committed = checkpoints.committed().map_or(0, |checkpoint| checkpoint.number);
    drop(input);
    while worker.has_dataflows() {
        state.step(worker)?;
    }
    Ok(End { counts: counts.take(), committed, abandoned, sent: (next - first) / peers })
}

fn expected(job: Job) -> BTreeMap<i64, i64> {
    let mut counts = BTreeMap::new();
    (0..job.numbers).for_each(|n| *counts.entry(n % KEYS).or_insert(0) += 1);
    let windows: BTreeSet<_> = (0..job.numbers).map(|n| (n % KEYS, n / WINDOW)).collect();
    windows.iter().for_each(|(key, _)| *counts.entry(-1 - key % GROUPS).or_insert(0) += 1);
    counts
}

/// What the workers have counted together.
fn together(ends: &[End]) -> BTreeMap<i64, i64> {
    ends.iter().flat_map(|end| end.counts.clone()).collect()
}

fn node() -> NodeConfig {
    StoreConfig {
        memory: ByteSize(4096 * KIB),
        max_value: Some(ByteSize(4 * KIB)),
        layout: HybridLog::new().page_records(8).queue_depth(4).segment(16 * KIB).into(),
        helpers: Helpers::Inline,
        ..StoreConfig::default()
    }
    .into()
}

fn run_on(devices: &[Simulated], job: Job, accident: Accident) -> Result<Vec<End>> {
    let (config, devices) = (timely::Config::process(devices.len()), devices.to_vec());
    let overrides = move |index: usize| WorkerOverrides {
        device: Some(Arc::new(devices[index].clone()) as Arc<dyn Device>),
        ..WorkerOverrides::default()
    };
    execute_with(config, node(), overrides, move |worker, state| {
        work(job, worker, state, &accident)
    })
}

/// A small generator, so that runs repeat.
fn dice(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move |below| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    }
}

#[test]
fn runs_that_end_anywhere_add_up_to_one() {
    let rounds = if std::env::var_os("ALLUVIUM_LONG").is_some() { 300 } else { 12 };
    let (mut begun_again, mut from_a_checkpoint) = (0, 0);
    for seed in 1..=rounds {
        let mut dice = dice(seed);
        let workers = 1 + dice(3) as usize;
        let job = Job { numbers: 600, every: 20 + dice(60) as i64, batch: 1 + dice(3) as i64 };
        let mut devices: Vec<_> =
            (0..workers).map(|n| Simulated::new(seed + n as u64, Faults::late(2))).collect();
        let mut runs = 0;
        loop {
            runs += 1;
            let accident = match runs < 8 {
                true => Accident::after(dice(700 * workers as u64) as i64),
                false => Accident::default(),
            };
            if runs < 8 {
                let victim = &devices[dice(workers as u64) as usize];
                match dice(4) {
                    0 => victim.on_nth_directory_operation(dice(40), Fault::Error),
                    1 => victim.on_nth_sync(dice(20), Fault::Error),
                    2 => victim.on_nth_write(dice(60), Fault::DiskFull),
                    _ => {}
                }
            }
            match run_on(&devices, job, accident) {
                Ok(_) => break,
                Err(_) => begun_again += 1,
            }
            // Power is lost, and with it what was not synced.
            devices = devices.iter().map(|device| device.crash(CrashPolicy::Nothing)).collect();
        }
        // What was planned to fail and did not have to, does not any more.
        let devices: Vec<_> =
            devices.iter().map(|device| device.crash(CrashPolicy::Everything)).collect();
        // The last one has some numbers more, so that it says every count.
        let job = Job { numbers: job.numbers + 2 * WINDOW, ..job };
        let ends = run_on(&devices, job, Accident::default()).unwrap();
        assert_eq!(together(&ends), expected(job), "seed {seed}, {workers} workers");
        let sent: i64 = ends.iter().map(|end| end.sent).sum();
        from_a_checkpoint += u64::from(sent < job.numbers);
    }
    assert!(begun_again > rounds && from_a_checkpoint > rounds / 3, "the test has lost its point");
}

/// Addresses on this machine that nobody listens at. Not of the ports that the system gives to those
/// who call: one of them could be taken by a call before the process listens.
fn free_addresses(processes: usize) -> Vec<String> {
    static TAKEN: AtomicU32 = AtomicU32::new(0);
    let mut addresses = Vec::new();
    while addresses.len() < processes {
        // Other test programs begin elsewhere.
        let next = std::process::id() * 101 + TAKEN.fetch_add(1, Ordering::Relaxed);
        let address = format!("127.0.0.1:{}", 10_000 + next % 20_000);
        if TcpListener::bind(&address).is_ok() {
            addresses.push(address);
        }
    }
    addresses
}

fn cluster(threads: usize, process: usize, addresses: &[String]) -> timely::Config {
    let (addresses, report) = (addresses.to_vec(), false);
    let communication =
        CommunicationConfig::Cluster { threads, process, addresses, report, zerocopy: false };
    timely::Config { communication, worker: timely::WorkerConfig::default() }
}

/// Runs a job as several processes, which are threads here.
fn run_cluster(
    directory: &Path,
    processes: usize,
    threads: usize,
    job: Job,
    turns: Option<i64>,
) -> Vec<Result<Vec<End>>> {
    let addresses = free_addresses(processes);
    let start = |process: usize| {
        let config = cluster(threads, process, &addresses);
        let mut node = node();
        node.store.directory = Some(directory.join(process.to_string()));
        let accident = Arc::new(match turns.filter(|_| process == 1) {
            Some(turns) => Accident::after(turns),
            None => Accident::default(),
        });
        std::thread::spawn(move || {
            execute(config, node, move |worker, state| work(job, worker, state, &accident))
        })
    };
    let running: Vec<_> = (0..processes).map(start).collect();
    running.into_iter().map(|process| process.join().expect("no panic")).collect()
}

#[test]
fn processes_go_on_together_and_other_numbers_of_workers_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let job = Job { numbers: 2_000, every: 100, batch: 2 };
    let mut ended = 0;
    let ends = loop {
        // Later each time, until there was time for a checkpoint: then it goes on from that.
        let went_on = directory.path().join("0/COMMITTED").exists();
        let accident = (ended < 3 || !went_on).then_some(900 + 500 * ended);
        let outcomes = run_cluster(directory.path(), 2, 2, job, accident);
        if outcomes.iter().all(Result::is_ok) {
            break outcomes.into_iter().flat_map(Result::unwrap).collect::<Vec<_>>();
        }
        ended += 1;
        for outcome in outcomes {
            assert!(outcome.unwrap_err().to_string().contains("an accident"));
        }
    };
    assert_eq!(together(&ends), expected(job));
    let committed: Vec<_> = ends.iter().map(|end| end.committed).collect();
    assert!(committed[0] >= 1 && committed.iter().all(|n| *n == committed[0]), "{committed:?}");
    assert!(ends.iter().all(|end| end.abandoned == 0));
    // Unless it came to its end before there was one, and before the accident.
    let began_again = ends.iter().map(|end| end.sent).sum::<i64>() >= job.numbers;
    assert!(!began_again || ended < 3, "it began again");
    assert!(directory.path().join("0/COMMITTED").exists());
    assert!(!directory.path().join("1/COMMITTED").exists());
    let refusal = |processes: usize, threads: usize| {
        let outcomes = run_cluster(directory.path(), processes, threads, job, None);
        let texts = outcomes.into_iter().map(|outcome| outcome.unwrap_err().to_string());
        texts.collect::<Vec<_>>()
    };
    for text in refusal(2, 1) {
        assert!(text.contains("made by 4 workers, this run has 2"), "{text}");
    }
    // As many workers, which look for what the second process has.
    for text in refusal(1, 4) {
        for worker in [2, 3] {
            let expected = format!("worker {worker} does not see worker-{worker}/checkpoint-");
            assert!(text.contains(&expected), "{text}");
        }
        assert!(!text.contains("worker 1 does"), "{text}");
    }
    // Once they are where it sees them, one process goes on from what two have made.
    for worker in [2, 3] {
        let name = format!("worker-{worker}");
        let _ = std::fs::remove_dir_all(directory.path().join("0").join(&name));
        let (from, to) = (directory.path().join("1").join(&name), directory.path().join("0"));
        std::fs::rename(from, to.join(&name)).unwrap();
    }
    let mut outcomes = run_cluster(directory.path(), 1, 4, job, None);
    let ends = outcomes.pop().unwrap().unwrap();
    assert_eq!(ends.iter().map(|end| end.committed).max(), Some(committed[0]));
}

#[test]
fn a_full_disk_gives_a_checkpoint_up_and_the_one_before_counts() {
    let devices = [1, 2].map(|seed| Simulated::new(seed, Faults::none()));
    let begin = Job { numbers: 400, every: 50, batch: 1 };
    let ends = run_on(&devices, begin, Accident::default()).unwrap();
    assert!(ends[0].committed >= 2);
    // From here on there is no room, on one of the devices.
    devices[1].set_capacity_bytes(Some(devices[1].used_bytes()));
    let job = Job { numbers: 800, ..begin };
    let more = run_on(&devices, job, Accident::default()).unwrap();
    assert_eq!(more[0].committed, ends[0].committed);
    assert!(more.iter().all(|end| end.abandoned > 0), "{more:?}");
    assert_eq!(together(&more), expected(job));
    // And then there is.
    devices[1].set_capacity_bytes(None);
    let more = run_on(&devices, job, Accident::default()).unwrap();
    assert!(more[0].committed > ends[0].committed);
    assert_eq!(together(&more), expected(job));
}

#[test]
fn a_source_learns_what_is_committed() {
    static SEEN: AtomicU64 = AtomicU64::new(0);
    let directory = tempfile::tempdir().unwrap();
    let mut node = node();
    node.store.directory = Some(directory.path().to_owned());
    execute(timely::Config::process(2), node.clone(), |worker, state| {
        assert_eq!(state.restored(), None);
        let probe: ProbeHandle<i64> = ProbeHandle::new();
        let mut job = JobCheckpoints::new(state, probe)?;
        job.request();
        loop {
            match job.turn(Time(3), true)? {
                Turn::Seal => job.seal(&[40 + state.index() as u64])?,
                Turn::End(_) => break,
                _ => state.step(worker)?,
            }
        }
        let mine = |all: &JobCheckpoint| all.workers[state.index()].position[0];
        assert_eq!(job.committed().map(mine), Some(40 + state.index() as u64));
        SEEN.fetch_add(1, Ordering::Relaxed);
        Ok(())
    })
    .unwrap();
    assert_eq!(SEEN.load(Ordering::Relaxed), 2);
    let again = execute(timely::Config::process(2), node, |_, state| {
        assert_eq!(state.store().restored_position(), Some(40 + state.index() as u64));
        Ok(state.restored().cloned())
    });
    let again = again.unwrap();
    let checkpoint = again[0].as_ref().expect("it was committed");
    assert_eq!((checkpoint.number, checkpoint.until), (1, Time(3)));
    assert_eq!(checkpoint.workers[1].directory, "worker-1");
    // Single stores are not opened where a job has its checkpoints.
    let mut config = timely::Config::process(1);
    let mut node = self::node();
    node.store.directory = Some(directory.path().to_owned());
    alluvium_timely::install(&mut config, node).unwrap();
    let guards = timely::execute(config, |worker| {
        WorkerState::new(worker, WorkerOverrides::default()).unwrap_err().to_string()
    });
    let text = guards.unwrap().join().pop().unwrap().unwrap();
    assert!(text.contains("start it with `execute`"), "{text}");
}

#[test]
fn a_job_without_a_directory_takes_no_checkpoints() {
    let mut node = node();
    node.store.directory = None;
    let outcome = execute(timely::Config::thread(), node, |_, state| {
        JobCheckpoints::new(state, ProbeHandle::<i64>::new()).map(drop)
    });
    assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Unsupported);
}
