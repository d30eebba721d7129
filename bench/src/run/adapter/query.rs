//! A Nexmark query inside a dataflow, and the same events brought to the same states straight.
//!
//! The query is fed as `nexmark` feeds it: batches of events at their watermark, a bounded number of
//! bytes ahead. The straight way applies the same batches through the query's own state code
//! ([`Straight`]) and moves the watermark on between them, so that timers are due where they are in
//! the dataflow. Each way has a store of its own, of `--memory`. Both make rows of events and fold
//! the changes of the result into a checksum; the generator's time is counted for neither.
//!
//! The first half of the events builds the state up; the second half is measured.

use std::cell::Cell;
use std::path::Path;
use std::rc::Rc;
use std::time::Instant;

use alluvium::{Store, StoreConfig, Time};
use alluvium_timely::{Gate, WorkerState, execute};
use timely::dataflow::operators::vec::Input;
use timely::dataflow::operators::{Inspect, Probe};
use timely::dataflow::{InputHandleVec, ProbeHandle};
use timely::worker::Worker;

use super::{Outcome, median, print_table};
use crate::args::AdapterArgs;
use crate::nexmark::{Generator, Record, Stride};
use crate::queries::{Query, Row, Straight, StraightQ4, StraightQ20};
use crate::report::{Progress, Report, peak_rss_bytes};
use crate::run::nexmark::{AHEAD_BYTES, BATCH};
use crate::run::state::temporary_dir;
use crate::{Error, Result};

/// The two ways, in the order in which they take turns.
const WAYS: [&str; 2] = ["straight on the state", "dataflow"];

/// Runs the query in both ways.
pub(super) fn query(args: &AdapterArgs, name: &str, events: u64) -> Result<Report> {
    match name {
        "q4" => both::<StraightQ4>(args, events),
        "q20" => both::<StraightQ20>(args, events),
        _ => Err(Error::Usage(format!("{name:?} cannot be run straight, but q4 and q20 can"))),
    }
}

fn both<S: Straight>(args: &AdapterArgs, events: u64) -> Result<Report> {
    args.stream.config(None).schedule()?;
    let temporary = temporary_dir()?;
    let root = args.state.dir.clone().unwrap_or_else(|| temporary.path().to_owned());
    let node = config(args, &root.join("dataflow"));
    let job = args.clone();
    let parts = execute(timely::Config::thread(), node.into(), move |worker, state| {
        Ok(turns::<S>(worker, state, &job, &root.join("straight"), events)?)
    })?;
    let (outcomes, report) = parts.into_iter().next().expect("one worker");
    print_table(&WAYS, &outcomes);
    let (live, budget) = (report.memory.live_bytes, args.state.memory.0);
    println!("live state is {live} bytes, {:.1} times the memory", live as f64 / budget as f64);
    let [straight, flow] = &outcomes;
    if straight.checksum != flow.checksum {
        let (straight, flow) = (straight.checksum, flow.checksum);
        let message = format!("checksum {flow:016x}, and {straight:016x} straight on the state");
        return Err(Error::Wrong(message));
    }
    Ok(report)
}

fn config(args: &AdapterArgs, directory: &Path) -> StoreConfig {
    StoreConfig {
        directory: Some(directory.to_owned()),
        memory: args.state.memory,
        max_value: args.state.max_value,
        layout: args.state.layout.layout.clone(),
        ..StoreConfig::default()
    }
}

fn turns<S: Straight>(
    worker: &mut Worker,
    state: &WorkerState,
    args: &AdapterArgs,
    directory: &Path,
    events: u64,
) -> Result<([Outcome; 2], Report)> {
    let store = Store::from_config(config(args, directory)).open()?;
    let mut straight = S::open(&store)?;
    let mut flow = Dataflow::new::<S::Query>(worker, state)?;
    let mut generator = Generator::new(args.stream.config(None), Stride::ALL)?;
    let mut outcomes: [Outcome; 2] = Default::default();
    let (each, mut measured) = ((events / 2 / args.rounds).max(1), 0);
    let progress = Progress::new("adapter", 2 * args.rounds);
    for round in 0..2 * args.rounds {
        let batches = Batch::several(&mut generator, each);
        let count: usize = batches.iter().map(|batch| batch.events.len()).sum();
        let given = batches.clone();
        let begin = Instant::now();
        let sum = &mut outcomes[0].checksum;
        for Batch { events, end, .. } in given {
            straight.apply(events, |row, diff| *sum = sum.wrapping_add(weighed(&row, diff)))?;
            straight.advance(end)?;
        }
        let middle = Instant::now();
        flow.feed(worker, state, batches)?;
        if round >= args.rounds {
            measured += count as u64;
            let times = [middle - begin, middle.elapsed()];
            for (outcome, time) in outcomes.iter_mut().zip(times) {
                outcome.rates.push(count as f64 / time.as_secs_f64());
            }
        }
        progress.set(round + 1);
    }
    drop(progress);
    outcomes[1].checksum = flow.sum.get();
    let mut report = Report::new(format!("adapter-{}", S::Query::NAME), &args.state.layout.name);
    report.set_rate(measured, measured as f64 / median(&outcomes[1].rates));
    report.set_versus(WAYS[0], median(&outcomes[0].rates), None);
    report.set_checksum(outcomes[1].checksum);
    let stats = state.store().stats()?;
    report.io.reads = stats.io.reads;
    report.io.bytes_read = stats.io.bytes_read;
    report.io.bytes_written = stats.io.bytes_written;
    report.memory.budget = stats.memory.limit;
    report.memory.peak_tracked = stats.memory.peak;
    report.memory.peak_rss = peak_rss_bytes();
    report.memory.live_bytes = stats.total().live_bytes;
    report.memory.live_keys = stats.total().live_keys;
    Ok((outcomes, report))
}

/// Events that are sent at one time, and the watermark behind them.
#[derive(Clone)]
struct Batch {
    time: i64,
    events: Vec<Record>,
    end: Time,
}

impl Batch {
    /// Batches of `events` events or a few more. A batch ends where time moves on.
    fn several(generator: &mut Generator, events: u64) -> Vec<Batch> {
        let (mut batches, mut count) = (Vec::new(), 0);
        while count < events {
            let size = (events - count).min(BATCH);
            let mut batch =
                Batch { time: generator.watermark().0, events: Vec::new(), end: Time::MAX };
            while (batch.events.len() as u64) < size || generator.watermark().0 == batch.time {
                let Some(record) = generator.next() else { break };
                batch.events.push(record);
            }
            batch.end = generator.watermark();
            count += batch.events.len() as u64;
            batches.push(batch);
        }
        batches
    }
}

fn weighed<R: Row>(row: &R, diff: i64) -> u64 {
    row.digest().wrapping_mul(diff.cast_unsigned())
}

/// The query's dataflow, and its input.
struct Dataflow {
    input: InputHandleVec<i64, Record>,
    probe: ProbeHandle<i64>,
    gate: Gate<i64>,
    /// Of the digests of all changes.
    sum: Rc<Cell<u64>>,
}

impl Dataflow {
    fn new<Q: Query>(worker: &mut Worker, state: &WorkerState) -> alluvium::Result<Self> {
        let (probe, sum) = (ProbeHandle::new(), Rc::new(Cell::new(0u64)));
        let total = sum.clone();
        let input = worker.dataflow::<i64, _, _>(|scope| -> alluvium::Result<_> {
            let (input, events) = scope.new_input::<Record>();
            Q::build(events, state)?
                .inspect(move |(row, _, diff)| {
                    total.set(total.get().wrapping_add(weighed(row, *diff)));
                })
                .probe_with(&probe);
            Ok(input)
        })?;
        let gate = Gate::new(probe.clone()).bytes_max(AHEAD_BYTES);
        Ok(Self { input, probe, gate, sum })
    }

    /// Sends batches and steps until all are done.
    fn feed(
        &mut self,
        worker: &mut Worker,
        state: &WorkerState,
        batches: Vec<Batch>,
    ) -> alluvium::Result<()> {
        for Batch { time, events, end } in batches {
            self.input.advance_to(time);
            state.run_until(worker, || self.gate.admits(&time))?;
            self.gate.sent(&time, size_of_val(&events[..]) as u64);
            events.into_iter().for_each(|record| self.input.send(record));
            self.input.advance_to(end.0);
        }
        let end = *self.input.time();
        state.run_until(worker, || !self.probe.less_than(&end))
    }
}
