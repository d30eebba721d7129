//! The driver: runs a job on the workers of a process, in a group that ends together.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use alluvium::{Error, ErrorKind, Result};
use timely::CommunicationConfig;
use timely::communication::Hooks;
use timely::communication::allocator::zero_copy::initialize::initialize_networking_from_sockets;
use timely::communication::allocator::{AllocatorBuilder, ProcessBuilder};
use timely::worker::Worker;

use crate::job::group::connect::{Terms, connect};
use crate::job::group::{Connected, Links, SILENCE, WorkerGroup};
use crate::job::node::{Node, NodeConfig, install_node};
use crate::job::worker::{WorkerOverrides, WorkerState};

/// How long a worker whose connection broke waits for the reason.
const REASON_PATIENCE: Duration = Duration::from_secs(3);

/// Runs `job` on each worker of this process and returns their results, ordered by worker.
///
/// `config` gives the numbers of workers and processes, as for [`timely::execute()`]. Each process
/// of a cluster calls this with the same `config` except for its own number, and with a directory
/// of its own in `node`. The job gets its worker and the worker's state after all workers of all
/// processes have opened theirs. When it returns, this steps its dataflows until they are complete.
///
/// Workers fail together. An error of a job, a panic, an error of state in an operator, or a lost
/// process ends the run on all workers of all processes. [`WorkerState::step`],
/// [`run_until`](WorkerState::run_until) and [`meet`](WorkerState::meet) then fail. A job that
/// waits in another way, such as for a lock, keeps its process from ending. Before this returns, it
/// drops the dataflows and releases the stores with their directories and memory.
///
/// # Errors
/// The first error that this process heard of, and the process it is from if that is another.
/// [`ErrorKind::Panicked`] with a panic's message. [`ErrorKind::PeerLost`] for a process that did
/// not connect or has disconnected. [`ErrorKind::Mismatch`] for one with other numbers of
/// processes, workers or key groups. The job's own. Those of [`install`](crate::install) and
/// [`WorkerState::new`].
///
/// ```
/// use alluvium_timely::{Counting, KeyBy, NodeConfig, Rolling, Spec, execute};
/// use timely::dataflow::ProbeHandle;
/// use timely::dataflow::operators::vec::Input;
/// use timely::dataflow::operators::{Inspect, Probe};
///
/// execute(timely::Config::process(2), NodeConfig::default(), |worker, state| {
///     let probe = ProbeHandle::new();
///     let mut words = worker.dataflow::<i64, _, _>(|scope| {
///         let (input, words) = scope.new_input::<String>();
///         words
///             .key_by(state, String::clone)
///             .rolling(Spec::new("words"), Counting)?
///             .inspect(|change| println!("{change:?}"))
///             .probe_with(&probe);
///         alluvium::Result::Ok(input)
///     })?;
///     words.send(format!("hello from {}", worker.index()));
///     words.close();
///     state.run_until(worker, || probe.done())
/// })?;
/// # Ok::<(), alluvium::Error>(())
/// ```
pub fn execute<R, J>(config: timely::Config, node: NodeConfig, job: J) -> Result<Vec<R>>
where
    R: Send + 'static,
    J: Fn(&mut Worker, &WorkerState) -> Result<R> + Send + Sync + 'static,
{
    execute_with(config, node, |_| WorkerOverrides::default(), job)
}

/// Does [`execute`] with `overrides` for each worker, by its index.
///
/// # Errors
/// As [`execute`].
pub fn execute_with<R, J>(
    config: timely::Config,
    node: NodeConfig,
    overrides: impl Fn(usize) -> WorkerOverrides + Send + Sync + 'static,
    job: J,
) -> Result<Vec<R>>
where
    R: Send + 'static,
    J: Fn(&mut Worker, &WorkerState) -> Result<R> + Send + Sync + 'static,
{
    let job = Box::new(move |worker: &mut Worker, state: &WorkerState| -> Result<JobResult> {
        Ok(Box::new(job(worker, state)?))
    });
    let results = execute_erased(config, node, Box::new(overrides), job)?;
    let native = |result: JobResult| *result.downcast().expect("a result of this job");
    Ok(results.into_iter().map(native).collect())
}

/// What a job returns, without its type: so threads and connections are compiled once for all jobs.
type JobResult = Box<dyn Any + Send>;
type Overrides = Box<dyn Fn(usize) -> WorkerOverrides + Send + Sync>;
type Job = Box<dyn Fn(&mut Worker, &WorkerState) -> Result<JobResult> + Send + Sync>;

fn execute_erased(
    mut config: timely::Config,
    node: NodeConfig,
    overrides: Overrides,
    job: Job,
) -> Result<Vec<JobResult>> {
    let node = install_node(&mut config, node)?;
    let group = node.group.clone();
    let (builders, threads, connected) = build(&config.communication, &node)?;
    let results: Arc<Vec<Mutex<Option<JobResult>>>> =
        Arc::new((0..node.threads).map(|_| Mutex::new(None)).collect());
    drop(node);
    let (of_workers, filled) = (group.clone(), results.clone());
    let started = timely::execute::execute_from(
        builders,
        Box::new(CommunicationThreads { group: group.clone(), guard: Some(threads) }),
        config.worker,
        move |worker| {
            let result = work(worker, &of_workers, &*overrides, &*job);
            let local = worker.index() % filled.len();
            *filled[local].lock().unwrap_or_else(PoisonError::into_inner) = result;
        },
    );
    match started {
        Ok(workers) => {
            // Timely's threads panic when a connection breaks, and joining them does so again.
            let joined = catch_unwind(AssertUnwindSafe(|| workers.join()));
            let broken = joined.map_or(true, |workers| workers.iter().any(|w| w.is_err()));
            if broken && !group.await_fault(REASON_PATIENCE) {
                group
                    .fail(Error::new(ErrorKind::PeerLost, "a connection to another process broke"));
            }
        }
        Err(message) => group.fail(Error::new(ErrorKind::Io, message)),
    }
    if let Some(connected) = connected {
        connected.finish();
    }
    group.check()?;
    let take = |result: &Mutex<Option<JobResult>>| {
        result.lock().unwrap_or_else(PoisonError::into_inner).take()
    };
    Ok(results.iter().filter_map(take).collect())
}

/// Timely's threads that move data between processes; waits for them when it is dropped, unless
/// the run has failed: then who is at their other ends may take any time, and those of a process
/// that is gone have panicked. They end by themselves.
struct CommunicationThreads {
    group: Arc<WorkerGroup>,
    guard: Option<Box<dyn Any + Send>>,
}

impl Drop for CommunicationThreads {
    fn drop(&mut self) {
        if self.group.fault().is_some() {
            std::mem::forget(self.guard.take());
        }
    }
}

type Built = (Vec<AllocatorBuilder>, Box<dyn Any + Send>, Option<Connected>);

/// What Timely's workers talk through; connects the processes of a cluster.
fn build(communication: &CommunicationConfig, node: &Node) -> Result<Built> {
    let CommunicationConfig::Cluster { threads, process, addresses, zerocopy, .. } = communication
    else {
        let built = communication.clone().try_build();
        let (builders, guard) = built.map_err(|message| Error::new(ErrorKind::Io, message))?;
        return Ok((builders, guard, None));
    };
    let config = &node.config;
    let key_groups = config.store.key_groups;
    let terms = Terms { processes: addresses.len(), threads: *threads, key_groups };
    let mesh = connect(*process, addresses, &terms, config.connect_within)?;
    let hooks = Hooks::default();
    let builders = match zerocopy {
        true => ProcessBuilder::new_bytes_vector,
        false => ProcessBuilder::new_typed_vector,
    };
    let builders = builders(*threads, hooks.refill.clone(), hooks.spill.clone());
    let data = initialize_networking_from_sockets(builders, mesh.data, *process, *threads, hooks);
    let failed = |error| Error::io("start the threads of connections", "Timely", error);
    let (builders, guard) = data.map_err(failed)?;
    node.group.attach(Links::new(*process, addresses, &mesh.group, SILENCE)?);
    let connected = Connected::start(&node.group, mesh.group)?;
    Ok((
        builders.into_iter().map(AllocatorBuilder::Tcp).collect(),
        Box::new(guard),
        Some(connected),
    ))
}

/// One worker's part; `None` if the run failed, the reason being noted.
fn work(
    worker: &mut Worker,
    group: &WorkerGroup,
    overrides: &dyn Fn(usize) -> WorkerOverrides,
    job: &dyn Fn(&mut Worker, &WorkerState) -> Result<JobResult>,
) -> Option<JobResult> {
    group.enlist();
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let state = WorkerState::in_group(worker, overrides(worker.index()))?;
        state.meet(worker, 0)?;
        let result = job(worker, &state)?;
        state.job_returned();
        while worker.has_dataflows() {
            state.step(worker)?;
        }
        Ok(result)
    }));
    let result = match outcome {
        Ok(Ok(result)) => Some(result),
        Ok(Err(error)) => {
            group.fail(error);
            None
        }
        Err(panic) => {
            note_panic(group, worker.index(), &*panic);
            None
        }
    };
    if group.fault().is_none() {
        return result;
    }
    // Here operators let go of their states, and the last of them of the store. A panic would be
    // a consequence of what is noted already.
    for dataflow in worker.installed_dataflows() {
        let _ = catch_unwind(AssertUnwindSafe(|| worker.drop_dataflow(dataflow)));
    }
    None
}

/// Ends the run with a worker's panic, or with what it is a consequence of.
fn note_panic(group: &WorkerGroup, worker: usize, panic: &(dyn Any + Send)) {
    let text = match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(text), _) => *text,
        (_, Some(text)) => text,
        _ => "it gave no text",
    };
    // So Timely says that a connection broke, for which the group has a better word soon.
    let is_broken = text.contains("MergeQueue poisoned") || text.contains("timely communication");
    if is_broken && group.await_fault(REASON_PATIENCE) {
        return;
    }
    group.fail(Error::new(ErrorKind::Panicked, format!("worker {worker} panicked: {text}")));
}
