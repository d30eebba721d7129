//! The dataflow, and what drives it.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use alluvium::config::ByteSize;
use alluvium::moving::KeyGroup;
use alluvium::{Counting, Emit, Error, ErrorKind, KeyHash, MIB, State, StoreConfig, Time, Windows};
use alluvium_timely::{
    Changes, External, JobCheckpoints, JobInput, JobSink, KeyBy, LookupCounts, LookupExternal,
    LookupJoin, MoveGroup, NodeConfig, RedisConfig, Spec, TableLoader, Turn, Windowing,
    WorkerState, WriteTo, execute, redis_slot,
};
use serde::{Deserialize, Serialize};
use timely::dataflow::operators::Probe;
use timely::dataflow::operators::vec::{Filter, Input, Map};
use timely::dataflow::{InputHandleVec, ProbeHandle, StreamVec};
use timely::worker::Worker;

use crate::event::{BEGIN_NS, Event, Events, LATE_MS, VIEW, mixed, read_uuid, write_uuid};
use crate::sink::{RedisSink, Row};

/// Where the table of ads is.
#[derive(Clone, Debug)]
pub enum Placement {
    /// In the process, whole: read by all workers, no row moves for it.
    Shared,
    /// In the process, divided as the stream is: each worker has the ads of its key groups.
    Partitioned,
    /// In Redis.
    Redis(Remote),
}

/// How Redis is asked.
#[derive(Clone, Debug)]
pub struct Remote {
    /// Servers for each worker, taken in turns: one configuration for all, or one replica each.
    pub tables: Vec<RedisConfig>,
    /// Bytes of a cache in front, and how long it keeps what it has.
    pub cache: Option<(u64, Duration)>,
    /// Keys asked for at a time.
    pub asked_max: usize,
    /// How long a row waits for a server that is away.
    pub patience: Option<Duration>,
}

/// What a run does.
#[derive(Clone, Debug)]
pub struct Job {
    /// What comes.
    pub events: Events,
    /// Where the table is.
    pub placement: Placement,
    /// Divides the stream by the slots of a Redis Cluster instead of our hash.
    pub is_by_slot: bool,
    /// Operator instances: workers.
    pub workers: usize,
    /// Where checkpoints are.
    pub directory: PathBuf,
    /// Where results go.
    pub results: String,
    /// Events of a worker between two checkpoints; 0 is one at the end only.
    pub checkpoint_every: u64,
    /// Events of a batch, and batches under way at a time.
    pub batch: u64,
    /// See `batch`.
    pub under_way: usize,
    /// A worker sleeps so long after each batch; for tests that kill.
    pub nap: Duration,
    /// A key group of the join moves to another worker, with its part of the table, each time so many events
    /// have come; 0 is never.
    pub moves_every: u64,
}

/// What a run did.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// From the first event to when all results were visible.
    pub seconds: f64,
    /// Of these, until the last row was joined and counted.
    pub stream_seconds: f64,
    /// Views: rows that were joined.
    pub joined: u64,
    /// Rows that the cache answered.
    pub cached: u64,
    /// Questions to the table, those asked again included.
    pub asked: u64,
    /// GETs sent.
    pub gets: u64,
    /// Latencies of batches from being sent until all of their rows were counted, in nanoseconds: the
    /// median, 99 % and the longest.
    pub latency: [u64; 3],
}

/// The id of an ad, with its hash: by which the stream is divided, and the table.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    rkyv::Archive,
    rkyv::Serialize,
    rkyv::Deserialize,
    State
)]
pub struct Ad {
    hash: u64,
    id: u128,
}

impl Ad {
    /// The ad, by our hash or by its slot: the slot stands in the highest bits, which say the key group,
    /// so that a worker's key groups are a range of slots.
    pub fn new(id: u128, is_by_slot: bool) -> Self {
        let hash = id.key_hash();
        if !is_by_slot {
            return Self { hash, id };
        }
        let mut name = Vec::with_capacity(36);
        write_uuid(id, &mut name);
        Self { hash: u64::from(redis_slot(&name)) << 50 | hash >> 14, id }
    }

    /// The hash by which the stream and the table are divided.
    pub fn hash(&self) -> u64 {
        self.hash
    }
}

impl KeyHash for Ad {
    fn key_hash(&self) -> u64 {
        self.hash
    }
}

/// A view, projected: the ad and when.
type View = (u128, i64);
/// The campaign and when.
type Joined = (u128, i64);

/// The slots at which the shards of so many workers end, so that each worker's ads are on one.
pub fn slot_ends(workers: usize) -> Vec<u16> {
    let groups = StoreConfig::default().key_groups;
    let owner = |slot: u16| {
        let group = alluvium::moving::KeyGroup::of(u64::from(slot) << 50, groups);
        group.owner(groups, workers)
    };
    let ends = (1..workers).map(|worker| (0..16384).find(|&slot| owner(slot) >= worker));
    ends.map(|end| end.unwrap_or(16384)).chain([16384]).collect()
}

/// Runs the job, from its last checkpoint on if there is one.
///
/// # Errors
/// The first of any worker.
pub fn run(job: &Job) -> crate::Result<Figures> {
    let mut node = NodeConfig::from(StoreConfig {
        directory: Some(job.directory.clone()),
        memory: ByteSize(64 * MIB * job.workers as u64 + job.events.ads * 256),
        ..StoreConfig::default()
    });
    if matches!(job.placement, Placement::Shared) {
        let (events, is_by_slot) = (job.events, job.is_by_slot);
        let bytes = ByteSize(TableLoader::<Ad, u128>::bytes_for(events.ads as usize));
        node = node.table("ads", bytes, move |table: &mut TableLoader<Ad, u128>| {
            let ads = 0..events.ads;
            table.extend(ads.map(|ad| (Ad::new(events.ad(ad), is_by_slot), events.campaign(ad))))
        });
    }
    let gets = match &job.placement {
        Placement::Redis(remote) => remote.tables.iter().map(RedisConfig::gets).collect(),
        _ => Vec::new(),
    };
    let before = sum(&gets);
    let task = job.clone();
    let parts = execute(timely::Config::process(job.workers), node, move |worker, state| {
        work(worker, state, &task)
    })?;
    let mut all = Figures { gets: sum(&gets) - before, ..Figures::default() };
    let mut latencies = Vec::new();
    for (part, mut own) in parts {
        all.seconds = all.seconds.max(part.seconds);
        all.stream_seconds = all.stream_seconds.max(part.stream_seconds);
        all.joined += part.joined;
        all.cached += part.cached;
        all.asked += part.asked;
        latencies.append(&mut own);
    }
    latencies.sort_unstable();
    let at = |share: f64| latencies.get((latencies.len() as f64 * share) as usize).copied();
    let last = latencies.last().copied().unwrap_or_default();
    all.latency = [at(0.5).unwrap_or_default(), at(0.99).unwrap_or(last), last];
    Ok(all)
}

fn sum(gets: &[Arc<AtomicU64>]) -> u64 {
    let mut seen: Vec<*const AtomicU64> = Vec::new();
    let mut sum = 0;
    for counter in gets {
        if !seen.contains(&Arc::as_ptr(counter)) {
            seen.push(Arc::as_ptr(counter));
            sum += counter.load(Ordering::Relaxed);
        }
    }
    sum
}

/// The inputs of one worker's dataflow: events, and rows of the table where it is divided.
struct Inputs {
    events: InputHandleVec<i64, Sent>,
    table: Option<InputHandleVec<i64, (u128, u128)>>,
    control: Option<InputHandleVec<i64, MoveGroup>>,
    counts: Rc<std::cell::Cell<LookupCounts>>,
}

fn build(
    worker: &mut Worker,
    state: &WorkerState,
    job: &Job,
    sink: &JobSink<Row>,
    probe: &ProbeHandle<i64>,
) -> alluvium::Result<Inputs> {
    let counts = Rc::new(std::cell::Cell::new(LookupCounts::default()));
    worker.dataflow::<i64, _, _>(|scope| {
        let (events, stream) = scope.new_input::<Sent>();
        let views = stream.filter(|event| event.1 == VIEW).map(|event| (event.0, event.2));
        let (control, moves) = match job.moves_every {
            0 => (None, None),
            _ => Some(scope.new_input::<MoveGroup>()).unzip(),
        };
        let (table, joined) = match &job.placement {
            Placement::Shared => (None, shared(views, state, job)?),
            Placement::Partitioned => {
                let (table, rows) = scope.new_input::<(u128, u128)>();
                (Some(table), divided(views, rows, moves, state, job)?)
            }
            Placement::Redis(remote) => {
                (None, remotely(views, moves, state, job, (remote, &counts))?)
            }
        };
        let joined_rows = counts.clone();
        let is_external = matches!(job.placement, Placement::Redis(_));
        joined
            .map(move |(row, _, _)| {
                if !is_external {
                    let mut counts = joined_rows.get();
                    counts.rows += 1;
                    joined_rows.set(counts);
                }
                row
            })
            .key_by(state, |row: &Joined| row.0)
            .window(windows(job), |row: &Joined| Time(row.1))
            .aggregate(Spec::new("views"), Counting)?
            .results
            .map(|((campaign, window, views), _, diff)| (campaign, window.start.0, views * diff))
            .write_to(sink)
            .probe_with(probe);
        Ok(Inputs { events, table, control, counts })
    })
}

/// Late events correct what was said of their window.
fn windows(job: &Job) -> Windows {
    let windows = Windows::tumbling(Duration::from_secs(10));
    match job.events.is_skewed {
        true => windows.lateness(Duration::from_millis(LATE_MS + 1_000)).emit(Emit::OnWatermark),
        false => windows,
    }
}

fn shared<'s>(
    views: StreamVec<'s, i64, View>,
    state: &WorkerState,
    job: &Job,
) -> alluvium::Result<Changes<'s, i64, Joined>> {
    let (table, is_by_slot) = (state.table::<Ad, u128>("ads")?, job.is_by_slot);
    let keyed = views.key_by(state, move |view: &View| Ad::new(view.0, is_by_slot));
    Ok(keyed.lookup_join_shared(&table, |_, view, campaign| Some((*campaign?, view.1))))
}

fn divided<'s>(
    views: StreamVec<'s, i64, View>,
    table: StreamVec<'s, i64, (u128, u128)>,
    moves: Option<StreamVec<'s, i64, MoveGroup>>,
    state: &WorkerState,
    job: &Job,
) -> alluvium::Result<Changes<'s, i64, Joined>> {
    let is_by_slot = job.is_by_slot;
    let keyed = views.key_by(state, move |view: &View| Ad::new(view.0, is_by_slot));
    let table = table.key_by(state, move |row: &(u128, u128)| Ad::new(row.0, is_by_slot));
    let (spec, of_row) = (Spec::new("ads"), |row: &(u128, u128)| Some(row.1));
    let pair = |_: &Ad, view: &View, campaign: Option<&u128>| Some((*campaign?, view.1));
    match moves {
        Some(moves) => keyed.migratable(moves).lookup_join(table, spec, of_row, pair),
        None => keyed.lookup_join(table, spec, of_row, pair),
    }
}

fn remotely<'s>(
    views: StreamVec<'s, i64, View>,
    moves: Option<StreamVec<'s, i64, MoveGroup>>,
    state: &WorkerState,
    job: &Job,
    (remote, counts): (&Remote, &Rc<std::cell::Cell<LookupCounts>>),
) -> alluvium::Result<Changes<'s, i64, Joined>> {
    let mut external = External::new("ads")
        .asked_max(remote.asked_max)
        .patience(remote.patience)
        .counted_by(counts.clone());
    if let Some((bytes, ttl)) = remote.cache {
        external = external.cache(bytes, ttl);
    }
    let config = &remote.tables[state.index() % remote.tables.len()];
    let table = config.open(|ad: &Ad, name| write_uuid(ad.id, name), campaign_of)?;
    let is_by_slot = job.is_by_slot;
    let keyed = views.key_by(state, move |view: &View| Ad::new(view.0, is_by_slot));
    let pair = |_: &Ad, view: &View, campaign: Option<&u128>| Some((*campaign?, view.1));
    match moves {
        Some(moves) => keyed.migratable(moves).lookup_external(table, external, pair),
        None => keyed.lookup_external(table, external, pair),
    }
}

fn campaign_of(text: &[u8]) -> alluvium::Result<u128> {
    read_uuid(text).ok_or_else(|| {
        let text = String::from_utf8_lossy(text).into_owned();
        Error::new(ErrorKind::Mismatch, format!("{text:?} is no campaign"))
    })
}

/// Batches under way: until which time, and since when.
#[derive(Default)]
struct UnderWay {
    batches: VecDeque<(i64, Instant)>,
    latencies: Vec<u64>,
}

impl UnderWay {
    fn settle(&mut self, probe: &ProbeHandle<i64>) {
        while self.batches.front().is_some_and(|(until, _)| !probe.less_than(until)) {
            let Some((_, since)) = self.batches.pop_front() else { break };
            self.latencies.push(since.elapsed().as_nanos() as u64);
        }
    }
}

/// How long results wait for their server.
const PATIENCE: Duration = Duration::from_secs(20);

/// One worker's part of a run, and its latencies.
fn work(
    worker: &mut Worker,
    state: &WorkerState,
    job: &Job,
) -> alluvium::Result<(Figures, Vec<u64>)> {
    let sink = JobSink::open(worker, state, RedisSink::new(&job.results, state.index(), PATIENCE))?;
    let probe = ProbeHandle::new();
    let Inputs { events: input, table, control, counts } =
        build(worker, state, job, &sink, &probe)?;
    let checkpoints = JobCheckpoints::new(state, probe.clone())?;
    let input = checkpoints.input(input);
    let control = control.map(|control| checkpoints.input(control));
    let table = table.map(|table| checkpoints.input(table));
    let (peers, index) = (job.workers as u64, state.index() as u64);
    let unread = state.restored().map_or(0, |all| job.events.first_at(all.until.0));
    let next = unread + (index + peers - unread % peers) % peers;
    let source = Source { next, peers, events: job.events };
    let mut driver =
        Driver { job, source, input, control, checkpoints, probe, under_way: UnderWay::default() };
    if let Some(table) = table {
        driver.load(worker, state, table)?;
    }
    let figures = driver.drive(worker, state)?;
    let counts = counts.get();
    let (joined, cached, asked) = (counts.rows, counts.cached, counts.asked);
    Ok((Figures { joined, cached, asked, ..figures }, driver.under_way.latencies))
}

/// Sends what a worker has, and takes part in checkpoints.
struct Driver<'a> {
    job: &'a Job,
    source: Source,
    input: JobInput<i64, Sent>,
    control: Option<JobInput<i64, MoveGroup>>,
    checkpoints: JobCheckpoints<i64>,
    probe: ProbeHandle<i64>,
    under_way: UnderWay,
}

impl Driver<'_> {
    /// Loads this worker's part of the table, unless it came with a checkpoint, and waits until all of it
    /// is where it belongs.
    fn load(
        &mut self,
        worker: &mut Worker,
        state: &WorkerState,
        mut table: JobInput<i64, (u128, u128)>,
    ) -> alluvium::Result<()> {
        let Source { events, peers, .. } = self.source;
        if state.restored().is_none() {
            for ad in (0..events.ads).filter(|ad| ad % peers == state.index() as u64) {
                table.send(Time(0), (events.ad(ad), events.campaign(ad)))?;
            }
        }
        // Nothing follows: closed, it holds no time back.
        table.close();
        if state.restored().is_none() {
            self.input.advance_to(Time(BEGIN_NS))?;
            self.tell_moves(state)?;
            let probe = self.probe.clone();
            state.run_until(worker, || !probe.less_than(&BEGIN_NS))?;
        }
        Ok(())
    }

    fn drive(&mut self, worker: &mut Worker, state: &WorkerState) -> alluvium::Result<Figures> {
        let (begin, mut streamed, mut asked_at) = (Instant::now(), None, self.source.next);
        let every = self.job.checkpoint_every * self.source.peers;
        loop {
            self.under_way.settle(&self.probe);
            if every > 0 && state.index() == 0 && self.source.next >= asked_at + every {
                asked_at = self.source.next;
                self.checkpoints.request();
            }
            let end = self.source.events.end();
            let is_over = self.source.is_over() && *self.input.time() >= end;
            if is_over && self.under_way.batches.is_empty() {
                streamed.get_or_insert_with(|| begin.elapsed());
            }
            match self.checkpoints.turn(is_over)? {
                Turn::Go if self.source.is_over() => self.input.advance_to(Time(end))?,
                Turn::Go => self.send_a_batch()?,
                Turn::Until(until) => {
                    self.source.send(&mut self.input, u64::MAX, until.0)?;
                    self.input.advance_to(until)?;
                }
                Turn::Seal { .. } => self.checkpoints.seal(&[self.source.next])?,
                Turn::Wait => {}
                Turn::End(_) => break,
            }
            self.tell_moves(state)?;
            state.step_or_nap(worker, Duration::from_millis(1))?;
        }
        let seconds = begin.elapsed().as_secs_f64();
        let stream_seconds = streamed.map_or(seconds, |streamed| streamed.as_secs_f64());
        Ok(Figures { seconds, stream_seconds, ..Figures::default() })
    }

    /// Tells of the moves before the time of the input, which are the same in each run of as many workers.
    fn tell_moves(&mut self, state: &WorkerState) -> alluvium::Result<()> {
        let Source { events, peers, .. } = self.source;
        let (until, every) = (*self.input.time(), self.job.moves_every);
        let Some(control) = &mut self.control else { return Ok(()) };
        for nth in events.first_at(*control.time()).div_ceil(every).. {
            let at = events.time(nth * every);
            if at >= until || nth * every >= events.count {
                break;
            }
            control.advance_to(Time(at))?;
            let dice = mixed(events.seed ^ 9 << 48, nth);
            if nth % peers == state.index() as u64 {
                let groups = u64::from(StoreConfig::default().key_groups);
                let group = KeyGroup((dice % groups) as u16);
                control
                    .send(Time(at), MoveGroup { group, to: (dice >> 32) as u32 % peers as u32 })?;
            }
        }
        control.advance_to(Time(until))
    }

    fn send_a_batch(&mut self) -> alluvium::Result<()> {
        if self.under_way.batches.len() < self.job.under_way {
            let until = self.source.send(&mut self.input, self.job.batch, i64::MAX)?;
            self.under_way.batches.push_back((until, Instant::now()));
            std::thread::sleep(self.job.nap);
        }
        Ok(())
    }
}

/// What is sent of an event: parsing it and projecting it is one in a source of records.
type Sent = (u128, u8, i64);

/// One worker's events.
struct Source {
    next: u64,
    peers: u64,
    events: Events,
}

impl Source {
    fn is_over(&self) -> bool {
        self.next >= self.events.count
    }

    /// Sends up to `most` events before `until`, and leaves their time. Says which is next.
    fn send(
        &mut self,
        input: &mut JobInput<i64, Sent>,
        most: u64,
        until: i64,
    ) -> alluvium::Result<i64> {
        for _ in 0..most {
            let comes = self.events.time(self.next);
            if self.is_over() || comes >= until {
                break;
            }
            let Event { ad, kind, at, .. } = self.events.event(self.next);
            input.send(Time(comes), (ad, kind, at))?;
            self.next += self.peers;
        }
        let next = self.events.time(self.next).min(until);
        input.advance_to(Time(next))?;
        Ok(next)
    }
}
