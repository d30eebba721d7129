//! Counting: one sequence of keys is counted three times, in rounds taken in turns: straight on a state, in
//! batches; by an operator written by hand on plain Timely, with the same state in it; and by the
//! adapter's `rolling`. The two dataflows emit the same changes. Each of the three has a state of
//! its own, of `--memory`, in one store. At the end the counts must be the same.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Instant;

use alluvium::config::ByteSize;
use alluvium::{AnyLayout, Heap, HybridLog, Map, StoreConfig};
use alluvium_timely::{Counting, Gate, KeyBy, Rolling, Spec, WorkerState, execute};
use timely::container::CapacityContainerBuilder;
use timely::dataflow::channels::pact::Exchange;
use timely::dataflow::operators::generic::operator::Operator;
use timely::dataflow::operators::vec::Input;
use timely::dataflow::operators::{Inspect, Probe};
use timely::dataflow::{InputHandleVec, ProbeHandle};
use timely::worker::Worker;

use super::{Outcome, median, print_table};
use crate::args::AdapterArgs;
use crate::report::{Progress, Report, peak_rss_bytes};
use crate::run::state::temporary_dir;
use crate::workload::Keys;
use crate::{Error, Result};

/// Rows sent at a time.
const BATCH: usize = 1024;
/// Bytes of rows under way before no further batch is sent.
const AHEAD_BYTES: u64 = 16 * (BATCH * size_of::<u64>()) as u64;
/// Seed of the key stream.
const SEED: u64 = 42;

/// The three ways, in the order in which they take turns.
const WAYS: [&str; 3] = ["straight on the state", "operator by hand", "adapter"];

/// Counts keys in the three ways, prints a table and compares the counts.
///
/// The report is the adapter's, `vs` the straight way.
///
/// # Errors
/// Also if the counts are not the same.
pub(super) fn counting(args: &AdapterArgs, keys: u64, ops: u64) -> Result<Report> {
    let temporary = if args.state.dir.is_some() { None } else { Some(temporary_dir()?) };
    let directory = args.state.dir.clone().or(temporary.as_ref().map(|dir| dir.path().into()));
    let memory = args.state.memory.0;
    let config = StoreConfig {
        directory,
        // Each of the three takes its part; some is for timers and parked rows.
        memory: ByteSize(3 * memory + memory / 8 + (1 << 20)),
        max_value: Some(ByteSize(4096)),
        ..StoreConfig::default()
    };
    let job_args = args.clone();
    let outcomes = execute(timely::Config::thread(), config.into(), move |worker, state| {
        turns(worker, state, &job_args, keys, ops)
    })?;
    let (outcomes, mut report) = outcomes.into_iter().next().expect("one worker");
    print_table(&WAYS, &outcomes);
    let [straight, by_hand, ours] = &outcomes;
    if ours.checksum != straight.checksum || ours.checksum != by_hand.checksum {
        return Err(Error::Wrong(format!("the counts differ: {outcomes:?}")));
    }
    if ours.changes != by_hand.changes {
        let (ours, by_hand) = (ours.changes, by_hand.changes);
        return Err(Error::Wrong(format!("{ours} changes, and {by_hand} by hand")));
    }
    report.set_rate(ops, ops as f64 / median(&ours.rates));
    report.set_checksum(ours.checksum);
    report.set_versus(WAYS[0], median(&straight.rates), None);
    report.memory.peak_rss = peak_rss_bytes();
    Ok(report)
}

fn layout(args: &AdapterArgs) -> AnyLayout {
    match &args.state.layout.layout {
        AnyLayout::Heap(_) => Heap::new().memory(args.state.memory.0).into(),
        _ => HybridLog::new().memory(args.state.memory.0).into(),
    }
}

fn turns(
    worker: &mut Worker,
    state: &WorkerState,
    args: &AdapterArgs,
    count_of_keys: u64,
    ops: u64,
) -> alluvium::Result<([Outcome; 3], Report)> {
    let layout = layout(args);
    let mut straight = state.store().map::<u64, i64>("straight").layout(layout.clone()).open()?;
    let map = state.store().map::<u64, i64>("by-hand").layout(layout.clone()).open()?;
    let mut by_hand =
        Dataflow::new(worker, |scope, probe, emitted| by_hand(scope, map, probe, emitted))?;
    let mut ours = Dataflow::new(worker, |scope, probe, emitted| {
        let (input, rows) = scope.new_input::<u64>();
        rows.key_by(state, |key: &u64| *key)
            .rolling(Spec::new("adapter").layout(layout.clone()), Counting)?
            .inspect(move |((key, count), _, diff)| emitted.add(*key, *count, *diff))
            .probe_with(probe);
        Ok(input)
    })?;
    let mut outcomes: [Outcome; 3] = Default::default();
    // All keys once, then by chance; each way gets the same.
    let mut keys: Vec<u64> = (0..count_of_keys).collect();
    let mut drawn = Keys::new(count_of_keys, args.dist, SEED);
    let progress = Progress::new("adapter", args.rounds + 1);
    for round in 0..=args.rounds {
        for (way, outcome) in outcomes.iter_mut().enumerate() {
            let begin = Instant::now();
            match way {
                0 => count(&mut straight, &keys)?,
                1 => by_hand.feed(worker, state, &keys)?,
                _ => ours.feed(worker, state, &keys)?,
            }
            if round > 0 {
                outcome.rates.push(keys.len() as f64 / begin.elapsed().as_secs_f64());
            }
        }
        keys.clear();
        keys.extend(drawn.by_ref().take((ops / args.rounds) as usize));
        progress.set(round + 1);
    }
    drop(progress);
    let mut report = Report::new("adapter", &args.state.layout.name);
    let stats = state.store().stats()?;
    report.io.reads = stats.io.reads;
    report.io.bytes_read = stats.io.bytes_read;
    report.io.bytes_written = stats.io.bytes_written;
    report.memory.budget = stats.memory.limit;
    report.memory.peak_tracked = stats.memory.peak;
    report.memory.live_bytes = stats.total().live_bytes;
    report.memory.live_keys = stats.total().live_keys;
    straight.for_each(|key, count| {
        outcomes[0].checksum = outcomes[0].checksum.wrapping_add(mixed(*key, *count));
        Ok(())
    })?;
    for (outcome, dataflow) in outcomes[1..].iter_mut().zip([by_hand, ours]) {
        (outcome.checksum, outcome.changes) =
            (dataflow.emitted.sum.get(), dataflow.emitted.changes.get());
    }
    Ok((outcomes, report))
}

/// Counts keys in batches.
fn count(map: &mut Map<u64, i64>, keys: &[u64]) -> alluvium::Result<()> {
    for batch in keys.chunks(BATCH) {
        map.update_batch(batch, |key| key, |_| 0, |_, count| *count += 1)?;
    }
    Ok(())
}

fn mixed(key: u64, count: i64) -> u64 {
    crate::nexmark::random::mix(key ^ count.cast_unsigned().rotate_left(32))
}

/// What a dataflow has emitted: the changes add up to the counts.
#[derive(Clone, Default)]
struct Emitted {
    sum: Rc<Cell<u64>>,
    changes: Rc<Cell<u64>>,
}

impl Emitted {
    fn add(&self, key: u64, count: i64, diff: i64) {
        let change = mixed(key, count).wrapping_mul(diff.cast_unsigned());
        self.sum.set(self.sum.get().wrapping_add(change));
        self.changes.set(self.changes.get() + 1);
    }
}

/// A dataflow that counts, and its input.
struct Dataflow {
    input: InputHandleVec<i64, u64>,
    probe: ProbeHandle<i64>,
    gate: Gate<i64>,
    emitted: Emitted,
}

type Scope<'scope> = timely::dataflow::Scope<'scope, i64>;

impl Dataflow {
    fn new(
        worker: &mut Worker,
        build: impl FnOnce(
            Scope<'_>,
            &ProbeHandle<i64>,
            Emitted,
        ) -> alluvium::Result<InputHandleVec<i64, u64>>,
    ) -> alluvium::Result<Self> {
        let (probe, emitted) = (ProbeHandle::new(), Emitted::default());
        let input = worker.dataflow::<i64, _, _>(|scope| build(scope, &probe, emitted.clone()))?;
        let gate = Gate::new(probe.clone()).bytes_max(AHEAD_BYTES);
        Ok(Self { input, probe, gate, emitted })
    }

    /// Sends keys and steps until all are counted.
    fn feed(
        &mut self,
        worker: &mut Worker,
        state: &WorkerState,
        keys: &[u64],
    ) -> alluvium::Result<()> {
        for batch in keys.chunks(BATCH) {
            let time = *self.input.time();
            state.run_until(worker, || self.gate.admits(&time))?;
            self.gate.sent(&time, size_of_val(batch) as u64);
            batch.iter().for_each(|key| self.input.send(*key));
            self.input.advance_to(time + 1);
        }
        let end = *self.input.time();
        state.run_until(worker, || !self.probe.less_than(&end))
    }
}

/// The operator that one would write without the adapter: the same state, batches and changes.
fn by_hand(
    scope: Scope<'_>,
    mut map: Map<u64, i64>,
    probe: &ProbeHandle<i64>,
    emitted: Emitted,
) -> alluvium::Result<InputHandleVec<i64, u64>> {
    type Builder = CapacityContainerBuilder<Vec<((u64, i64), i64, i64)>>;
    let (input, rows) = scope.new_input::<u64>();
    let mut changes = Vec::new();
    rows.unary::<Builder, _, _, _>(Exchange::new(|key: &u64| *key), "by hand", |_, _| {
        move |input, output| {
            input.for_each_time(|capability, batches| {
                let time = *capability.time();
                for batch in batches {
                    let done = map.update_batch(
                        batch,
                        |key| key,
                        |_| 0,
                        |key, count| {
                            if *count > 0 {
                                changes.push(((*key, *count), time, -1));
                            }
                            *count += 1;
                            changes.push(((*key, *count), time, 1));
                        },
                    );
                    done.expect("a bench's state takes its keys");
                    batch.clear();
                    output.session(&capability).give_iterator(changes.drain(..));
                }
            });
        }
    })
    .inspect(move |((key, count), _, diff)| emitted.add(*key, *count, *diff))
    .probe_with(probe);
    Ok(input)
}
