//! The state of one worker: its store, and what went wrong in it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::Thread;

use alluvium::io::Device;
use alluvium::{AnyLayout, ByteSize, Error, ErrorKind, KeyGroup, Result, Store};
use timely::worker::Worker;

use crate::fault::Fault;
use crate::node::Node;
use crate::stats_log::StatsLog;

/// What one worker does differently from its node.
#[derive(Clone, Debug, Default)]
pub struct WorkerOverrides {
    /// Memory of this worker's store, in bytes. Default: an equal part of the node's.
    pub memory_bytes: Option<u64>,
    /// The layout of states that are not named in any configuration. Default: the node's.
    pub layout: Option<AnyLayout>,
    /// Layouts of single states, by name; others keep the node's.
    pub states: BTreeMap<String, AnyLayout>,
    /// What operators do when a call on their state fails. Default: the node's.
    pub fault: Option<Fault>,
    /// Keeps this worker's files here instead of in a directory; for tests.
    pub device: Option<Arc<dyn Device>>,
}

/// One worker's state: a store that owns the worker's key groups. Cheap to clone; stays on its
/// thread.
#[derive(Clone, Debug)]
pub struct WorkerState(Rc<Inner>);

/// Records and timers of one operator that wait for reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parked {
    /// How many wait.
    pub now: usize,
    /// How many have waited at a time, at most.
    pub most: usize,
    /// Batches of input that are not taken yet, because too many records wait or storage takes no
    /// writes.
    pub staged: usize,
}

#[derive(Debug)]
struct Inner {
    store: Store,
    key_groups: u16,
    index: usize,
    peers: usize,
    fault: Arc<OnceLock<Error>>,
    policy: Fault,
    /// The process's workers.
    workers: Arc<Mutex<Vec<Thread>>>,
    /// Operators that wait for storage, and why.
    waiting: RefCell<BTreeMap<String, Error>>,
    parked: RefCell<BTreeMap<String, Rc<Cell<Parked>>>>,
    ids: RefCell<Vec<String>>,
    stats_log: StatsLog,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.stats_log.end(&self.store, self.index);
    }
}

impl WorkerState {
    /// Opens the worker's store as its node and `overrides` say. Operators share it; a worker
    /// needs one, for all its dataflows.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] without [`install`](crate::install); else as
    /// [`StoreBuilder::open`](alluvium::StoreBuilder::open).
    pub fn new(worker: &Worker, overrides: WorkerOverrides) -> Result<Self> {
        let node = Node::of(worker)?;
        let (index, peers) = (worker.index(), worker.peers());
        let mut config = node.config.store.clone();
        let groups = config.key_groups;
        config.directory = config.directory.map(|node| node.join(format!("worker-{index}")));
        config.memory = ByteSize(overrides.memory_bytes.unwrap_or(config.memory.0 / node.threads));
        config.layout = overrides.layout.unwrap_or(config.layout);
        config.states.extend(overrides.states);
        let owned = owned_groups(index, groups, peers);
        let mut builder = Store::from_config(config).owned_groups(owned);
        if let Some(device) = overrides.device {
            builder = builder.device(device);
        }
        let store = builder.open().map_err(|error| error.with("worker", index))?;
        let workers = node.workers.clone();
        workers.lock().unwrap_or_else(PoisonError::into_inner).push(std::thread::current());
        Ok(Self(Rc::new(Inner {
            store,
            key_groups: groups,
            index,
            peers,
            fault: node.fault.clone(),
            policy: overrides.fault.unwrap_or(node.config.fault),
            workers,
            waiting: RefCell::default(),
            parked: RefCell::default(),
            ids: RefCell::default(),
            stats_log: StatsLog::default(),
        })))
    }

    /// The worker's store: statistics, checkpoints, background work.
    pub fn store(&self) -> &Store {
        &self.0.store
    }

    /// Where the store's statistics are logged.
    pub(crate) fn stats_log(&self) -> &StatsLog {
        &self.0.stats_log
    }

    /// The worker's index.
    pub fn index(&self) -> usize {
        self.0.index
    }

    /// The worker that owns the keys with this hash.
    #[inline]
    pub fn owner(&self, key_hash: u64) -> usize {
        owner(key_hash, self.0.key_groups, self.0.peers)
    }

    /// The function of [`owner`](WorkerState::owner), free of this worker's state.
    pub(crate) fn router(&self) -> impl Fn(u64) -> u64 + use<> {
        let (groups, peers) = (self.0.key_groups, self.0.peers);
        move |hash| owner(hash, groups, peers) as u64
    }

    /// The first error of a state call in an operator of any worker of this process. The results
    /// so far are right and incomplete, and stay so: end the run.
    pub fn fault(&self) -> Option<&Error> {
        self.0.fault.get()
    }

    /// Whether there is a [`fault`](WorkerState::fault). Cost: one load.
    pub fn has_failed(&self) -> bool {
        self.fault().is_some()
    }

    /// Drops all dataflows of `worker` if there is a fault, and gives it. Each worker has to call
    /// it, as the dataflows cannot go on without any of them.
    ///
    /// # Errors
    /// The fault.
    pub fn abandon_if_failed(&self, worker: &mut Worker) -> Result<()> {
        let Some(fault) = self.fault() else { return Ok(()) };
        for dataflow in worker.installed_dataflows() {
            worker.drop_dataflow(dataflow);
        }
        Err(Error::new(fault.kind(), "state failed in an operator").caused_by(fault.to_string()))
    }

    /// Notes the error of a state call in an operator; the first one counts. For operators that
    /// are written on plain Timely; they should apply nothing more and keep a capability.
    pub fn fail(&self, error: Error) {
        // Later ones may be consequences of it.
        let _ = self.0.fault.set(error.with("worker", self.0.index));
        for worker in &*self.0.workers.lock().unwrap_or_else(PoisonError::into_inner) {
            worker.unpark();
        }
    }

    /// Operators of this worker that wait for storage to take writes again, and the error that
    /// each met last. See [`Fault`].
    pub fn waiting(&self) -> Vec<(String, String)> {
        let waiting = self.0.waiting.borrow();
        waiting.iter().map(|(operator, error)| (operator.clone(), error.to_string())).collect()
    }

    /// What waits for reads, by operator.
    pub fn parked(&self) -> Vec<(String, Parked)> {
        let parked = self.0.parked.borrow();
        parked.iter().map(|(operator, gauge)| (operator.clone(), gauge.get())).collect()
    }

    /// Where an operator shows what it has parked.
    pub(crate) fn gauge(&self, operator: &str) -> Rc<Cell<Parked>> {
        self.0.parked.borrow_mut().entry(operator.to_owned()).or_default().clone()
    }

    /// Notes that an operator waits, or that it does not any more.
    pub(crate) fn set_waiting(&self, operator: &str, error: Option<Error>) {
        let mut waiting = self.0.waiting.borrow_mut();
        match error {
            Some(error) => drop(waiting.insert(operator.to_owned(), error)),
            None => drop(waiting.remove(operator)),
        }
    }

    pub(crate) fn fault_policy(&self) -> Fault {
        self.0.policy
    }

    /// Takes the operator id, which must be new on this worker.
    pub(crate) fn register(&self, id: &str) -> Result<()> {
        let mut ids = self.0.ids.borrow_mut();
        if ids.iter().any(|known| known == id) {
            let message = "two operators have the same id";
            return Err(Error::new(ErrorKind::InUse, message).with("operator", id));
        }
        ids.push(id.into());
        Ok(())
    }
}

#[inline]
fn owner(key_hash: u64, groups: u16, peers: usize) -> usize {
    KeyGroup::of(key_hash, groups).owner(groups, peers)
}

/// The key groups of worker `index`: those whose owner it is, a contiguous range.
fn owned_groups(index: usize, groups: u16, peers: usize) -> Range<u16> {
    let first_of = |worker: usize| {
        let first = (worker * usize::from(groups)).div_ceil(peers);
        u16::try_from(first).unwrap_or(groups)
    };
    first_of(index)..first_of(index + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owned_groups_are_those_the_router_sends() {
        for groups in [1u16, 2, 7, 256, 1 << 15] {
            for peers in 1..=usize::from(groups).min(9) {
                for index in 0..peers {
                    let expected: Vec<_> = (0..groups)
                        .filter(|&group| KeyGroup(group).owner(groups, peers) == index)
                        .collect();
                    let owned: Vec<_> = owned_groups(index, groups, peers).collect();
                    assert_eq!(owned, expected, "{index} of {peers}, {groups} groups");
                }
            }
        }
    }
}
