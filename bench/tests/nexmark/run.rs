//! Runs a query over given events.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use alluvium::{Result, StoreConfig};
use alluvium_bench::nexmark::Record;
use alluvium_bench::queries::{Fields, Query, Row, SideTable};
use alluvium_timely::{NodeConfig, WorkerState, install};
use timely::dataflow::ProbeHandle;
use timely::dataflow::operators::vec::Input;
use timely::dataflow::operators::{Inspect, Probe};

/// How many times each row occurs.
pub type Rows = BTreeMap<Fields, i64>;

/// Adds rows up, leaving out those that do not occur.
pub fn consolidated(rows: impl IntoIterator<Item = (Fields, i64)>) -> Rows {
    let mut sums = Rows::new();
    for (row, diff) in rows {
        *sums.entry(row).or_default() += diff;
    }
    sums.retain(|_, diff| *diff != 0);
    sums
}

/// What came out of a run.
#[derive(Debug, Default)]
pub struct Outcome {
    /// The changes of each timestamp of the input.
    pub changes: BTreeMap<i64, Rows>,
    /// The wrapping sum of the rows' digests.
    pub checksum: u64,
    /// Live keys of each state before the input is closed and at the end.
    pub live: BTreeMap<String, (u64, u64)>,
    /// Bytes written to storage.
    pub written: u64,
}

impl Outcome {
    /// All changes together.
    pub fn result(&self) -> Rows {
        let all = self.changes.values().flatten().map(|(row, diff)| (row.clone(), *diff));
        consolidated(all)
    }
}

/// Sends each batch at its timestamp, record `n` by worker `n % workers`.
pub fn run<Q: Query>(
    workers: usize,
    store: StoreConfig,
    batches: Vec<(i64, Vec<Record>)>,
) -> Result<Outcome> {
    run_with::<Q>(workers, store.into(), &SideTable::Generated, batches)
}

/// [`run`] with a side input.
pub fn run_with<Q: Query>(
    workers: usize,
    node: NodeConfig,
    side_input: &SideTable,
    batches: Vec<(i64, Vec<Record>)>,
) -> Result<Outcome> {
    let mut config = timely::Config::process(workers);
    install(&mut config, Q::tables(node, side_input)?)?;
    let guards = timely::execute(config, move |worker| -> Result<Outcome> {
        let state = WorkerState::new(worker, Default::default())?;
        let outcome: Rc<RefCell<Outcome>> = Rc::default();
        let sink = outcome.clone();
        let probe = ProbeHandle::new();
        let mut input = worker.dataflow::<i64, _, _>(|scope| -> Result<_> {
            let (input, events) = scope.new_input::<Record>();
            Q::build(events, &state)?
                .inspect(move |(row, time, diff)| {
                    let outcome = &mut *sink.borrow_mut();
                    let digest = row.digest().wrapping_mul(diff.cast_unsigned());
                    outcome.checksum = outcome.checksum.wrapping_add(digest);
                    let rows = outcome.changes.entry(*time).or_default();
                    *rows.entry(row.fields()).or_default() += diff;
                })
                .probe_with(&probe);
            Ok(input)
        })?;
        for (at, (time, records)) in batches.iter().enumerate() {
            input.advance_to(*time);
            for record in records.iter().skip(worker.index()).step_by(worker.peers()) {
                input.send(record.clone());
            }
            // The last timestamp is left as well, so that all is applied before the input closes.
            let next = batches.get(at + 1).map_or(*time + 1, |(next, _)| *next);
            input.advance_to(next);
            while probe.less_than(&next) && !state.has_failed() {
                worker.step();
            }
        }
        let live = |state: &WorkerState| -> Result<BTreeMap<String, u64>> {
            let states = state.store().stats()?.states;
            Ok(states.into_iter().map(|state| (state.name, state.table.live_keys)).collect())
        };
        let before = live(&state)?;
        input.close();
        while !probe.done() && !state.has_failed() {
            worker.step();
        }
        state.abandon_if_failed(worker)?;
        let mut outcome = outcome.take();
        outcome.written = state.store().stats()?.io.bytes_written;
        for (name, end) in live(&state)? {
            let before = before[&name];
            outcome.live.insert(name, (before, end));
        }
        Ok(outcome)
    })
    .expect("timely starts");
    let mut all = Outcome::default();
    for result in guards.join() {
        let part = result.expect("no worker panics")?;
        all.checksum = all.checksum.wrapping_add(part.checksum);
        all.written += part.written;
        for (time, rows) in part.changes {
            let sums = all.changes.entry(time).or_default();
            for (row, diff) in rows {
                *sums.entry(row).or_default() += diff;
            }
        }
        for (name, (before, end)) in part.live {
            let sums = all.live.entry(name).or_default();
            *sums = (sums.0 + before, sums.1 + end);
        }
    }
    for rows in all.changes.values_mut() {
        rows.retain(|_, diff| *diff != 0);
    }
    all.changes.retain(|_, rows| !rows.is_empty());
    Ok(all)
}
