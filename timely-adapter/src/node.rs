//! Configuration of a node, which is one process: carried to its workers by Timely's own.

use std::sync::{Arc, Mutex, OnceLock};
use std::thread::Thread;

use alluvium::{Error, ErrorKind, Result, StoreConfig};
use timely::CommunicationConfig;
use timely::worker::Worker;

use crate::fault::Fault;

/// What all workers of a process share.
#[derive(Clone, Debug, Default)]
pub struct NodeConfig {
    /// The stores' options. `memory` is the whole node's, of which each worker gets an equal
    /// part; worker `n` lives in `worker-n` below `directory`. `layout` and `states` hold unless
    /// a worker or an operator says otherwise.
    pub store: StoreConfig,
    /// What operators do when a call on their state fails, unless a worker says otherwise.
    pub fault: Fault,
}

impl From<StoreConfig> for NodeConfig {
    fn from(store: StoreConfig) -> Self {
        Self { store, fault: Fault::default() }
    }
}

/// A node as its workers see it.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) config: NodeConfig,
    pub(crate) threads: u64,
    /// The first error of a state call in an operator of any worker of this process.
    pub(crate) fault: Arc<OnceLock<Error>>,
    /// The process's workers, which a fault wakes.
    pub(crate) workers: Arc<Mutex<Vec<Thread>>>,
}

const REGISTRY_KEY: &str = "alluvium.node";

/// Gives all workers started from `config` the node's configuration.
///
/// # Errors
/// [`ErrorKind::Config`] if there are more workers than key groups: some would own none.
pub fn install(config: &mut timely::Config, node: NodeConfig) -> Result<()> {
    let (threads, processes) = match &config.communication {
        CommunicationConfig::Thread => (1, 1),
        CommunicationConfig::Process(threads) | CommunicationConfig::ProcessBinary(threads) => {
            (*threads, 1)
        }
        CommunicationConfig::Cluster { threads, addresses, .. } => (*threads, addresses.len()),
    };
    let groups = node.store.key_groups;
    if threads * processes > usize::from(groups) {
        let workers = threads * processes;
        let message = format!("{workers} workers cannot share {groups} key groups");
        return Err(Error::new(ErrorKind::Config, message));
    }
    let node = Node {
        config: node,
        threads: threads.max(1) as u64,
        fault: Arc::default(),
        workers: Arc::default(),
    };
    config.worker.set(REGISTRY_KEY.into(), node);
    Ok(())
}

impl Node {
    pub(crate) fn of(worker: &Worker) -> Result<&Node> {
        worker.config().get::<Node>(REGISTRY_KEY).ok_or_else(|| {
            let message = "the worker has no node configuration: call install() before execute()";
            Error::new(ErrorKind::Config, message)
        })
    }
}
