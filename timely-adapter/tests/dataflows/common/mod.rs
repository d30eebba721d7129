//! Runs a dataflow of changes over given batches on some workers.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use alluvium::config::{ByteSize, Helpers};
use alluvium::io::{Device, Simulated};
use alluvium::{HybridLog, KIB, StoreConfig};
use alluvium_timely::{
    Changes, EventTime, Fault, NodeConfig, WorkerOverrides, WorkerState, install,
};
use timely::ExchangeData;
use timely::dataflow::operators::vec::Input;
use timely::dataflow::operators::{Inspect, Probe};
use timely::dataflow::{ProbeHandle, StreamVec};
use timely::progress::timestamp::Refines;
use timely::worker::Worker;

/// What the changes add up to.
pub type Consolidated<R> = BTreeMap<R, i64>;

/// Feeds `batches`, each at its time, row `n` of a batch by worker `n % workers`, and consolidates
/// what `build` makes of them. Gives the error of the first worker that failed.
pub fn run<T, D, R>(
    workers: usize,
    node: NodeConfig,
    overrides: WorkerOverrides,
    batches: Vec<(T, Vec<D>)>,
    build: impl for<'s> Fn(StreamVec<'s, T, D>, &WorkerState) -> alluvium::Result<Changes<'s, T, R>>
    + Send
    + Sync
    + 'static,
) -> alluvium::Result<Consolidated<R>>
where
    T: EventTime + Refines<()> + Send + Sync,
    D: ExchangeData + Clone + Sync,
    R: Ord + Clone + Send + 'static,
{
    let mut config = timely::Config::process(workers);
    install(&mut config, node)?;
    let guards = timely::execute(config, move |worker| {
        let state = WorkerState::new(worker, overrides.clone())?;
        let sums: Rc<RefCell<Consolidated<R>>> = Rc::default();
        let sink = sums.clone();
        let probe = ProbeHandle::new();
        let mut input = worker.dataflow::<T, _, _>(|scope| {
            let (input, rows) = scope.new_input::<D>();
            build(rows, &state)?
                .inspect(move |(row, _, diff)| {
                    *sink.borrow_mut().entry(row.clone()).or_default() += diff;
                })
                .probe_with(&probe);
            Ok::<_, alluvium::Error>(input)
        })?;
        for (at, (time, rows)) in batches.iter().enumerate() {
            input.advance_to(time.clone());
            for row in rows.iter().skip(worker.index()).step_by(worker.peers()) {
                input.send(row.clone());
            }
            // Timely delivers what was sent at a time for certain only if the time is left before
            // the worker steps; see the crate's documentation.
            let Some((next, _)) = batches.get(at + 1) else { break };
            input.advance_to(next.clone());
            while probe.less_than(next) && !state.has_failed() {
                worker.step();
            }
        }
        input.close();
        while !probe.done() && !state.has_failed() {
            worker.step();
        }
        state.abandon_if_failed(worker)?;
        Ok(sums.take())
    })
    .expect("timely starts");
    let mut sums = Consolidated::new();
    let mut fault = Ok(());
    for result in guards.join() {
        match result.expect("no worker panics") {
            Ok(part) => {
                for (row, diff) in part {
                    *sums.entry(row).or_default() += diff;
                }
            }
            Err(error) => fault = fault.and(Err::<(), alluvium::Error>(error)),
        }
    }
    fault?;
    sums.retain(|_, diff| *diff != 0);
    Ok(sums)
}

/// A single worker on a simulated device, with memory for little.
pub fn on_device<R: Send + 'static>(
    device: &Simulated,
    memory: u64,
    fault: Fault,
    work: impl Fn(&mut Worker, &WorkerState) -> R + Send + Sync + 'static,
) -> R {
    let layout = HybridLog::new().page_records(8).queue_depth(4).segment(16 * KIB);
    let store = StoreConfig {
        memory: ByteSize(memory),
        max_value: Some(ByteSize(4 * KIB)),
        layout: layout.into(),
        helpers: Helpers::Inline,
        ..StoreConfig::default()
    };
    let mut config = timely::Config::thread();
    let mut node = NodeConfig::from(store);
    node.fault = fault;
    install(&mut config, node).expect("the configuration is sound");
    let device = device.clone();
    let guards = timely::execute(config, move |worker| {
        let device = Some(Arc::new(device.clone()) as Arc<dyn Device>);
        let overrides = WorkerOverrides { device, ..Default::default() };
        let state = WorkerState::new(worker, overrides).expect("the store opens");
        work(worker, &state)
    });
    let mut results = guards.expect("timely starts").join();
    results.pop().expect("one worker").expect("no panic")
}
