//! One worker of a run: feeds its share of the events and bounds how far it is ahead.

use std::collections::VecDeque;
use std::path::Path;
use std::time::{Duration, Instant};

use alluvium::Time;
use alluvium::stats::StoreStats;
use alluvium_timely::{Gate, JobCheckpoints, JobInput, Met, Turn, WorkerState};
use timely::dataflow::InputHandleVec;
use timely::dataflow::operators::vec::Input;
use timely::worker::Worker;

use super::clock::{Clock, ClockKind};
use super::feed::Feed;
use super::output::Output;
use super::position::{Restored, Said};
use super::query::ErasedQuery;
use super::schedule::Schedule;
use crate::args::NexmarkArgs;
use crate::nexmark::Record;
use crate::report::{Latencies, Pauses, Progress};
use crate::{Error, Result};

/// Events sent at a time.
pub(in crate::run) const BATCH: u64 = 2_048;
/// Bytes of events that may be under way before no further batch is sent: four batches.
pub(in crate::run) const AHEAD_BYTES: u64 = 4 * BATCH * size_of::<Record>() as u64;
/// The longest time that a worker with nothing to do sleeps; it is woken when there is something.
const NAP: Duration = Duration::from_millis(5);

/// What a worker has to say at the end.
pub(super) struct Part {
    pub(super) ops: u64,
    pub(super) seconds: f64,
    /// Of all workers of all processes.
    pub(super) checksum: u64,
    pub(super) latencies: Latencies,
    pub(super) pauses: Pauses,
    /// The store with the last event applied, the input still open.
    pub(super) live: StoreStats,
    /// The store at the end.
    pub(super) end: StoreStats,
    /// Bytes of files of partitions.
    pub(super) partition_bytes: u64,
}

/// Does a worker's part of the run.
pub(super) fn work(
    query: &ErasedQuery,
    timely: &mut Worker,
    state: &WorkerState,
    args: &NexmarkArgs,
) -> Result<Part> {
    agree(timely, state, args)?;
    let Built { input, output, feed, restored } = build(query, timely, state, args)?;
    check_placements(args, &state.store().stats()?)?;
    // The last to know lets all begin.
    state.meet(timely, 0)?;
    let what = format!("{} on {}", query.name, args.state.layout.name);
    let is_first = timely.index() == 0;
    let checkpoints = JobCheckpoints::new(state, output.probe.clone())?;
    let input = checkpoints.input(input);
    let driver = Driver {
        peers: timely.peers() as u64,
        args,
        state,
        gate: Gate::new(output.probe.clone()).bytes_max(AHEAD_BYTES),
        schedule: Schedule::new(args, is_first, restored),
        checkpoints,
        pauses: Pauses::default(),
        progress: is_first.then(|| Progress::new(what, args.events.unwrap_or(0))),
        timely,
        input,
        output,
        feed,
        ops: 0,
        last: i64::MIN,
        under_way: VecDeque::new(),
        latencies: Latencies::new(),
        restored,
        begin: Instant::now(),
    };
    driver.run(query.columns)
}

/// Meets the other workers and makes sure that they do the same.
fn agree(timely: &mut Worker, state: &WorkerState, args: &NexmarkArgs) -> Result<()> {
    let options = args.common_digest();
    if state.meet(timely, options)?.max != options {
        let message = "the processes were started with different options";
        return Err(Error::Usage(message.to_owned()));
    }
    let none = |what: &str| {
        let dir = args.directory().unwrap_or(Path::new("the directory")).display();
        Err(Error::Usage(format!("{dir} has no checkpoint {what}")))
    };
    if args.restore.is_some() && state.restored().is_none() {
        return none("to go on from");
    }
    if state.restored().is_none() && state.store().restored_position().is_some() {
        return none("of all workers, but one of a single store; empty it and begin again");
    }
    Ok(())
}

/// Refuses layouts of states that the query does not have.
fn check_placements(args: &NexmarkArgs, stats: &StoreStats) -> Result<()> {
    let Some(name) = args.placements().into_keys().find(|name| stats.state(name).is_none()) else {
        return Ok(());
    };
    let known: Vec<_> = stats.states.iter().map(|state| &state.name[..]).collect();
    let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
    Err(Error::Usage(format!("--place: there is no state {name:?}, but {known}")))
}

/// A worker's dataflow, and what it is fed from.
struct Built {
    input: InputHandleVec<i64, Record>,
    output: Output,
    feed: Feed,
    restored: Option<u64>,
}

fn build(
    query: &ErasedQuery,
    timely: &mut Worker,
    state: &WorkerState,
    args: &NexmarkArgs,
) -> Result<Built> {
    let restored = state.restored().map(Restored::of).transpose()?;
    let begin = state.restored().map_or(Time::MIN, |all| all.until);
    let kind = args.clock.unwrap_or(ClockKind::Position);
    let rate = args.stream.config(args.rate).rate;
    let clock = query.is_in_processing_time.then(|| Clock::new(kind, rate));
    let (index, peers) = (timely.index(), timely.peers());
    let feed = Feed::open(args, index, peers, restored.as_ref(), begin, clock)?;
    let ledger_bytes = restored.as_ref().map_or(0, |all| all.ledger_bytes);
    let (input, output) = timely.dataflow::<i64, _, _>(|scope| -> Result<_> {
        let (input, events) = scope.new_input::<Record>();
        Ok((input, (query.build)(events, state, args, ledger_bytes)?))
    })?;
    // It is the sum over all workers that counts.
    if let Some(all) = restored.as_ref().filter(|_| index == 0) {
        output.checksum.set(all.checksum);
    }
    Ok(Built { input, output, feed, restored: restored.map(|all| all.next) })
}

/// Events that were sent at one timestamp.
struct Batch {
    time: i64,
    first_ordinal: u64,
    events: u64,
    sent: Instant,
}

struct Driver<'a> {
    timely: &'a mut Worker,
    args: &'a NexmarkArgs,
    state: &'a WorkerState,
    peers: u64,
    input: JobInput<i64, Record>,
    gate: Gate<i64>,
    output: Output,
    feed: Feed,
    schedule: Schedule,
    checkpoints: JobCheckpoints<i64>,
    pauses: Pauses,
    progress: Option<Progress>,
    ops: u64,
    /// What the events' watermark was when one was sent last.
    last: i64,
    under_way: VecDeque<Batch>,
    latencies: Latencies,
    /// The first event that is not in the checkpoint which this run goes on from.
    restored: Option<u64>,
    begin: Instant,
}

impl Driver<'_> {
    fn run(mut self, columns: &[&str]) -> Result<Part> {
        let latest = loop {
            if self.schedule.is_due(self.feed.ordinal()) {
                self.checkpoints.request();
            }
            match self.turn()? {
                Turn::Go => self.go()?,
                Turn::Until(Time(time)) => {
                    self.send_until(time)?;
                    self.step(NAP)?;
                }
                Turn::Seal { .. } => {
                    self.seal()?;
                    self.step(Duration::ZERO)?;
                }
                Turn::Wait => self.step(NAP)?,
                Turn::End(Time(latest)) => break latest,
            }
        };
        // As far as it goes without making time-bound state go: nothing comes at this time.
        self.input.advance_to(Time(latest))?;
        self.drain()?;
        let seconds = self.begin.elapsed().as_secs_f64();
        self.meet(0)?;
        let live = self.state.store().stats()?;
        self.meet(0)?;
        let Self { timely, args, state, input, output, ops, latencies, pauses, .. } = self;
        input.close();
        while !output.probe.done() {
            state.step_or_nap(timely, NAP)?;
        }
        output.finish_partitions()?;
        if timely.index() == 0 {
            output.finish(args, columns)?;
        }
        let all = state.meet(timely, output.checksum.get().cast_signed())?;
        let (checksum, end) = (all.sum.cast_unsigned(), state.store().stats()?);
        let partition_bytes = output.partition_bytes();
        Ok(Part { ops, seconds, checksum, latencies, pauses, live, end, partition_bytes })
    }

    /// Whether an event is to be sent by now.
    fn is_due(&self, ordinal: u64) -> bool {
        self.due(ordinal).is_none_or(|due| due <= self.begin.elapsed())
    }

    /// When an event is due after the begin, in an open loop.
    fn due(&self, ordinal: u64) -> Option<Duration> {
        let rate = u128::from(self.args.rate?);
        let since = ordinal.saturating_sub(self.restored.unwrap_or(0));
        let nanos = u128::from(since) * 1_000_000_000 / rate;
        Some(Duration::from_nanos(nanos.try_into().unwrap_or(u64::MAX)))
    }

    /// What this worker may do now.
    fn turn(&mut self) -> Result<Turn> {
        let committed = self.checkpoints.committed().map(|checkpoint| checkpoint.number);
        let was_abandoned = self.checkpoints.abandoned().is_some();
        let turn = self.checkpoints.turn(self.feed.ordinal().is_none())?;
        let is_new = self.checkpoints.committed().map(|checkpoint| checkpoint.number) != committed;
        let is_abandoned = self.checkpoints.abandoned().is_some() && !was_abandoned;
        if is_new || is_abandoned {
            let pause = u64::try_from(self.checkpoints.pause().as_nanos()).unwrap_or(u64::MAX);
            self.pauses.committed += u64::from(is_new);
            self.pauses.abandoned += u64::from(is_abandoned);
            self.pauses.pause_max_ns = self.pauses.pause_max_ns.max(pause);
            self.pauses.pause_sum_ns += pause;
        }
        Ok(turn)
    }

    /// Sends a batch if one is due and not too much is under way, and steps.
    fn go(&mut self) -> Result<()> {
        let next = self.feed.ordinal();
        let waits = self.can_be_left() && !self.gate.admits(self.input.time());
        let mut nap = NAP;
        match next {
            Some(ordinal) if !waits && self.is_due(ordinal) => {
                self.send(i64::MAX)?;
                nap = Duration::ZERO;
            }
            Some(ordinal) if !waits => {
                let due = self.due(ordinal).unwrap_or_default();
                nap = nap.min(due.saturating_sub(self.begin.elapsed()));
            }
            _ => {}
        }
        self.leave_time()?;
        self.step(nap)
    }

    /// Sends what is before `until`, so that all events before the next of any worker are sent and no
    /// other, and goes to that time. By the wall clock nothing at hand has come before it.
    fn send_until(&mut self, until: i64) -> Result<()> {
        self.feed.put_off(Time(until));
        while self.feed.ordinal().is_some() && self.feed.watermark().0 < until {
            self.send(until)?;
        }
        self.input.advance_to(Time(until))?;
        Ok(())
    }

    /// Seals this worker's part of a checkpoint.
    fn seal(&mut self) -> Result<()> {
        let said = Said {
            next: self.feed.ordinal().or(self.args.events).unwrap_or(u64::MAX),
            checksum: self.output.checksum.get(),
            ledger_bytes: self.output.sync_ledger()?,
        };
        self.checkpoints.seal(&said.words(self.feed.done()))?;
        Ok(())
    }

    /// Sends a batch of events that are due and before `until`. A batch ends where time moves on,
    /// so that its timestamp can be left, and it with its events be done; in processing time wherever
    /// that moves on, as the timestamp is when its events arrive.
    fn send(&mut self, until: i64) -> Result<()> {
        self.leave_time()?;
        let time = *self.input.time();
        let Some(first_ordinal) = self.feed.ordinal() else { return Ok(()) };
        let (mut events, sent) = (0, Instant::now());
        while let Some(ordinal) = self.feed.ordinal() {
            let Time(watermark) = self.feed.watermark();
            let is_long = events >= BATCH || (events > 0 && self.feed.has_clock());
            let full = is_long && watermark > time;
            // What is to be in a checkpoint is sent whether it is due or not.
            let waits = until == i64::MAX && events > 0 && !self.is_due(ordinal);
            if full || watermark >= until || waits {
                break;
            }
            self.send_next()?;
            events += 1;
        }
        self.ops += events;
        self.gate.sent(&time, events * size_of::<Record>() as u64);
        self.under_way.push_back(Batch { time, first_ordinal, events, sent });
        if let (Some(progress), Some(ordinal)) = (&self.progress, self.feed.ordinal()) {
            progress.set(ordinal);
        }
        Ok(())
    }

    fn send_next(&mut self) -> Result<()> {
        self.last = self.feed.watermark().0;
        if let Some(record) = self.feed.take()? {
            self.input.send(Time(self.last), record)?;
        }
        Ok(())
    }

    /// Advances the input as far as the events allow. Only taking events moves their watermark,
    /// so the worker never steps between sending at a time and leaving it for good, which Timely
    /// needs (see the adapter's documentation).
    ///
    /// Without events left it leaves the time of the last: others may have sent many batches since
    /// the time of its last batch, and wait for them before they come to the end themselves.
    fn leave_time(&mut self) -> Result<()> {
        let Time(watermark) = self.feed.watermark();
        let next = match self.feed.ordinal() {
            Some(_) => watermark,
            None => self.last.saturating_add(1),
        };
        Ok(self.input.advance_to(Time(next))?)
    }

    /// Whether the oldest batch can be done without further events being sent.
    fn can_be_left(&self) -> bool {
        self.under_way.front().is_some_and(|batch| batch.time < *self.input.time())
    }

    fn step(&mut self, nap: Duration) -> Result<()> {
        self.state.step_or_nap(self.timely, nap)?;
        self.output.finish_partitions()?;
        while self.under_way.front().is_some_and(|b| !self.output.probe.less_equal(&b.time)) {
            let Some(batch) = self.under_way.pop_front() else { break };
            self.record(&batch);
        }
        Ok(())
    }

    /// Records the latencies of a batch that is done.
    fn record(&mut self, batch: &Batch) {
        if self.args.rate.is_none() {
            let latency = u64::try_from(batch.sent.elapsed().as_nanos()).unwrap_or(u64::MAX);
            return self.latencies.record_n(latency, batch.events);
        }
        let now = self.begin.elapsed();
        for event in 0..batch.events {
            let due = self.due(batch.first_ordinal + event * self.peers).unwrap_or_default();
            let latency = now.saturating_sub(due).as_nanos();
            self.latencies.record(u64::try_from(latency).unwrap_or(u64::MAX));
        }
    }

    /// Steps until all that this worker sent is done.
    fn drain(&mut self) -> Result<()> {
        while !self.under_way.is_empty() {
            self.step(NAP)?;
        }
        Ok(())
    }

    /// Steps until all workers are here, and gives what they say.
    fn meet(&mut self, said: i64) -> Result<Met> {
        let meeting = self.state.arrive(said)?;
        loop {
            match self.state.met(&meeting) {
                Some(met) => return Ok(met),
                None => self.step(NAP)?,
            }
        }
    }
}
