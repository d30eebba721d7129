//! One worker of a run: feeds its share of the events and bounds how far it is ahead.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use alluvium::{AnyLayout, Heap, StoreStats, Time, Value};
use alluvium_timely::{Gate, Met, WorkerState};
use timely::dataflow::InputHandleVec;
use timely::dataflow::operators::vec::Input;
use timely::worker::Worker;

use super::clock::{Clock, ClockKind};
use super::feed::Feed;
use super::output::Output;
use crate::args::NexmarkArgs;
use crate::nexmark::Record;
use crate::queries::Query;
use crate::report::{Latencies, Progress};
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
    /// The store with the last event applied, the input still open.
    pub(super) live: StoreStats,
    /// The store at the end.
    pub(super) end: StoreStats,
}

/// Does a worker's part of the run.
pub(super) fn work<Q: Query>(
    timely: &mut Worker,
    state: &WorkerState,
    args: &NexmarkArgs,
) -> Result<Part> {
    let Built { input, output, feed, checksum, restored } = build::<Q>(timely, state, args)?;
    agree(timely, state, args, restored.is_some())?;
    let what = format!("{} on {}", Q::NAME, args.state.layout.name);
    let progress = (timely.index() == 0).then(|| Progress::new(what, args.events.unwrap_or(0)));
    let gate = Gate::new(output.probe.clone()).bytes_max(AHEAD_BYTES);
    let driver = Driver {
        peers: timely.peers() as u64,
        timely,
        args,
        state,
        input,
        gate,
        output,
        feed,
        checksum,
        progress,
        ops: 0,
        last: i64::MIN,
        under_way: VecDeque::new(),
        latencies: Latencies::new(),
        restored,
        begin: Instant::now(),
    };
    driver.run::<Q>()
}

/// Meets the other workers, all having built their dataflows, and makes sure that they do the same.
fn agree(
    timely: &mut Worker,
    state: &WorkerState,
    args: &NexmarkArgs,
    restored: bool,
) -> Result<()> {
    let options = args.common_digest();
    if state.meet(timely, options)?.max != options {
        let message = "the processes were started with different options";
        return Err(Error::Usage(message.to_owned()));
    }
    let (all, found) = (timely.peers(), state.meet(timely, restored.into())?.sum);
    if found != 0 && found != all as i64 {
        let message = format!("{found} of {all} workers found a checkpoint");
        return Err(Error::Usage(message + "; empty the directory and begin again"));
    }
    // The last to know lets all begin.
    state.meet(timely, 0)?;
    Ok(())
}

/// A worker's dataflow, and what it is fed from.
struct Built {
    input: InputHandleVec<i64, Record>,
    output: Output,
    feed: Feed,
    checksum: Value<u64>,
    restored: Option<u64>,
}

fn build<Q: Query>(timely: &mut Worker, state: &WorkerState, args: &NexmarkArgs) -> Result<Built> {
    let restored = state.store().restored_position();
    let kind = args.clock.unwrap_or(ClockKind::Position);
    let rate = args.stream.config(args.rate).rate;
    let clock = Q::IN_PROCESSING_TIME.then(|| Clock::new(kind, rate));
    let feed = Feed::open(args, timely.index(), timely.peers(), restored.unwrap_or(0), clock)?;
    let mut checksum =
        state.store().value::<u64>("checksum").layout(AnyLayout::from(Heap::new())).open()?;
    let (input, output) = timely.dataflow::<i64, _, _>(|scope| -> Result<_> {
        let (input, events) = scope.new_input::<Record>();
        let changes = Q::build(events, state)?;
        Ok((input, Output::attach(changes, args, state)?))
    })?;
    output.checksum.set(checksum.get()?.map_or(0, |sum| *sum));
    Ok(Built { input, output, feed, checksum, restored })
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
    input: InputHandleVec<i64, Record>,
    gate: Gate<i64>,
    output: Output,
    feed: Feed,
    /// Takes the checksum into checkpoints.
    checksum: Value<u64>,
    progress: Option<Progress>,
    ops: u64,
    /// What the events' watermark was when one was sent last.
    last: i64,
    under_way: VecDeque<Batch>,
    latencies: Latencies,
    /// The event after those in the checkpoint that this run goes on from.
    restored: Option<u64>,
    begin: Instant,
}

impl Driver<'_> {
    fn run<Q: Query>(mut self) -> Result<Part> {
        // Each worker makes one, or all go on after one.
        let mut checkpoint_at = self.args.checkpoint_at.filter(|_| self.restored.is_none());
        while let Some(ordinal) = self.feed.ordinal() {
            if checkpoint_at.is_some_and(|at| ordinal >= at) {
                checkpoint_at = None;
                self.checkpoint()?;
            }
            if self.is_due(ordinal) {
                self.send(checkpoint_at.unwrap_or(u64::MAX))?;
            }
            self.leave_time();
            self.wait()?;
        }
        if checkpoint_at.is_some() {
            self.checkpoint()?;
        }
        // As far as it goes without making time-bound state go: nothing comes at this time.
        let end = self.latest()?.saturating_add(1);
        self.input.advance_to(end);
        self.drain()?;
        let seconds = self.begin.elapsed().as_secs_f64();
        self.meet(0)?;
        let live = self.state.store().stats()?;
        self.meet(0)?;
        let Self { timely, args, state, input, output, ops, latencies, .. } = self;
        input.close();
        while !output.probe.done() {
            state.step_or_nap(timely, NAP)?;
        }
        if timely.index() == 0 {
            output.finish::<Q::Row>(args)?;
        }
        let all = state.meet(timely, output.checksum.get().cast_signed())?;
        let (checksum, end) = (all.sum.cast_unsigned(), state.store().stats()?);
        Ok(Part { ops, seconds, checksum, latencies, live, end })
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

    /// Sends a batch of events that are due and have ordinals below `limit`. A batch ends where
    /// time moves on, so that its timestamp can be left, and it with its events be done; in
    /// processing time wherever that moves on, as the timestamp is when its events arrive.
    fn send(&mut self, limit: u64) -> Result<()> {
        self.leave_time();
        let time = *self.input.time();
        let Some(first_ordinal) = self.feed.ordinal() else { return Ok(()) };
        let (mut events, sent) = (0, Instant::now());
        while let Some(ordinal) = self.feed.ordinal() {
            let is_long = events >= BATCH || (events > 0 && self.feed.has_clock());
            let full = is_long && self.feed.watermark().0 > time;
            if full || ordinal >= limit || (events > 0 && !self.is_due(ordinal)) {
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
            self.input.send(record);
        }
        Ok(())
    }

    /// Advances the input as far as the events allow. Only taking events moves their watermark,
    /// so the worker never steps between sending at a time and leaving it for good, which Timely
    /// needs (see the adapter's documentation).
    ///
    /// Without events left it leaves the time of the last: others may have sent many batches since
    /// the time of its last batch, and wait for them before they come to the end themselves.
    fn leave_time(&mut self) {
        let Time(watermark) = self.feed.watermark();
        let next = match self.feed.ordinal() {
            Some(_) => watermark,
            None => self.last.saturating_add(1),
        };
        if next > *self.input.time() {
            self.input.advance_to(next);
        }
    }

    /// Steps until not too much is under way, and in an open loop until the next event is due.
    fn wait(&mut self) -> Result<()> {
        self.step(Duration::ZERO)?;
        while self.can_be_left() && !self.gate.admits(self.input.time()) {
            self.step(NAP)?;
        }
        while let Some(due) = self.feed.ordinal().and_then(|next| self.due(next)) {
            let left = due.saturating_sub(self.begin.elapsed());
            if left.is_zero() {
                break;
            }
            self.step(left.min(NAP))?;
        }
        Ok(())
    }

    /// Whether the oldest batch can be done without further events being sent.
    fn can_be_left(&self) -> bool {
        self.under_way.front().is_some_and(|batch| batch.time < *self.input.time())
    }

    fn step(&mut self, nap: Duration) -> Result<()> {
        self.state.step_or_nap(self.timely, nap)?;
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

    /// Meets the other workers and gives the latest timestamp that any of them has sent at.
    fn latest(&mut self) -> Result<i64> {
        Ok(self.meet(*self.input.time())?.max)
    }

    /// Makes a checkpoint of what was sent so far, together with the other workers.
    ///
    /// Each first sends what is not after the latest time that any of them has sent at: only then
    /// can all leave that time, and what was sent be done.
    fn checkpoint(&mut self) -> Result<()> {
        let latest = self.latest()?;
        while self.feed.ordinal().is_some() && self.feed.watermark().0 <= latest {
            self.send(u64::MAX)?;
        }
        match self.feed.ordinal() {
            Some(_) => self.leave_time(),
            None => self.input.advance_to(latest.saturating_add(1)),
        }
        self.drain()?;
        self.meet(0)?;
        let end = self.args.events.unwrap_or(u64::MAX);
        let position = self.feed.ordinal().unwrap_or(end);
        let set = self.checksum.set(self.output.checksum.get());
        set.map_err(|rejected| Error::Store(rejected.error))?;
        self.state.store().checkpoint(position)?;
        self.meet(0)?;
        Ok(())
    }
}
