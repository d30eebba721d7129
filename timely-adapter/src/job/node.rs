//! Configuration of a node, which is one process: carried to its workers by Timely's own.
//!
//! The node's memory is divided once, before any worker starts: the tables it shares take what they
//! declare, and each worker gets an equal part of the rest.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use alluvium::config::{ByteSize, MEMORY_BYTES_MIN};
use alluvium::io::{DirectoryLock, lock_directory};
use alluvium::{Error, ErrorKind, Key, Result, State, StoreConfig};
use timely::CommunicationConfig;
use timely::worker::Worker;

use crate::intake::fault::Fault;
use crate::job::group::WorkerGroup;
use crate::operators::shared_table::{Declared, SharedTables, TableLoader};

/// Default of [`NodeConfig::connect_within`].
pub const DEFAULT_CONNECT_WITHIN: Duration = Duration::from_secs(60);

/// Configuration of a process, which all its workers share.
///
/// ```
/// use alluvium::{MIB, StoreConfig};
/// use alluvium_timely::NodeConfig;
///
/// let store = StoreConfig { memory: alluvium::config::ByteSize(256 * MIB), ..StoreConfig::default() };
/// let node = NodeConfig::from(store).connect_within(std::time::Duration::from_secs(10));
/// # let _ = node;
/// ```
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// The stores' options. `memory` is the whole node's, of which each worker gets an equal
    /// part; worker `n` of all processes lives in `worker-n` below `directory`, which belongs to
    /// this process alone (`worker-n.d` after its job has gone on with other numbers of workers or
    /// processes `d` times). `layout` and `states` hold unless a worker or an operator says
    /// otherwise.
    pub store: StoreConfig,
    /// What operators do when a call on their state fails, unless a worker says otherwise.
    pub fault: Fault,
    pub(crate) connect_within: Duration,
    pub(crate) restore: Option<u64>,
    tables: Vec<Declared>,
}

impl Default for NodeConfig {
    fn default() -> Self {
        StoreConfig::default().into()
    }
}

impl From<StoreConfig> for NodeConfig {
    fn from(store: StoreConfig) -> Self {
        Self {
            store,
            fault: Fault::default(),
            connect_within: DEFAULT_CONNECT_WITHIN,
            restore: None,
            tables: Vec::new(),
        }
    }
}

impl NodeConfig {
    /// Declares a read-only table for all workers of the process. Get it with
    /// [`WorkerState::table`](crate::WorkerState::table); see [`SharedTable`](crate::SharedTable).
    ///
    /// `memory` is taken from the node's memory once, whatever the table uses of it. The first
    /// worker that asks for the table calls `load`.
    #[must_use]
    pub fn table<K: Key, V: State>(
        mut self,
        name: impl Into<String>,
        memory: ByteSize,
        load: impl Fn(&mut TableLoader<K, V>) -> Result<()> + Send + Sync + 'static,
    ) -> Self {
        self.tables.push(Declared::new(name.into(), memory.0, load));
        self
    }

    /// Sets how long [`execute`](crate::execute()) waits for the other processes. Default:
    /// [`DEFAULT_CONNECT_WITHIN`].
    #[must_use]
    pub fn connect_within(mut self, within: Duration) -> Self {
        self.connect_within = within;
        self
    }

    /// Goes back to this [checkpoint of the job](crate::JobCheckpoint), instead of on from the last one. The job's
    /// record lists as many as stores retain. It forgets the later ones when the run begins: set this for one
    /// run only, on the first process. [`ErrorKind::Missing`] if the record has no such checkpoint.
    ///
    /// What [sinks](crate::JobSink) have shown of later checkpoints is shown already:
    /// [`FileSink`](crate::FileSink) refuses to go back behind it.
    #[must_use]
    pub fn restore(mut self, number: u64) -> Self {
        self.restore = Some(number);
        self
    }

    /// Memory of each of `threads` workers.
    fn share_bytes(&self, threads: u64) -> Result<u64> {
        let memory = self.store.memory.0;
        let mut left = memory;
        for table in &self.tables {
            let (name, needed) = (&table.name, table.memory_bytes);
            let rest = left.checked_sub(needed).filter(|rest| rest / threads >= MEMORY_BYTES_MIN);
            left = rest.ok_or_else(|| {
                let message = format!(
                    "shared table {name:?} needs {needed} of the node's {memory} bytes, of which \
                     {left} are left, and {threads} workers need {MEMORY_BYTES_MIN} each"
                );
                Error::new(ErrorKind::OverBudget, message)
            })?;
        }
        Ok(left / threads)
    }
}

/// A node as its workers see it.
pub(crate) struct Node {
    pub(crate) config: NodeConfig,
    /// Workers of this process.
    pub(crate) threads: usize,
    /// Memory of a worker that asks for none.
    pub(crate) share_bytes: u64,
    pub(crate) tables: SharedTables,
    pub(crate) group: Arc<WorkerGroup>,
    /// The lock of the node's directory, if it has one.
    pub(crate) lock: Option<DirectoryLock>,
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { config, threads, group, .. } = self;
        f.debug_struct("Node")
            .field("config", config)
            .field("threads", threads)
            .field("group", group)
            .finish_non_exhaustive()
    }
}

const REGISTRY_KEY: &str = "alluvium.node";

/// Passes the node's configuration to all workers started from `config`. Holds the lock of the
/// node's directory until the last of them has ended.
///
/// Use it for jobs started with [`timely::execute()`]; [`execute`](crate::execute()) calls it
/// itself. Such jobs ask [`WorkerState::has_failed`](crate::WorkerState::has_failed) themselves.
/// They learn nothing of panics and of other processes.
///
/// # Errors
/// [`ErrorKind::Config`] if there are more workers than key groups, or two shared tables of one
/// name. [`ErrorKind::OverBudget`], with the numbers, if a table leaves the workers too little
/// memory. [`ErrorKind::Locked`] if another process has the directory.
pub fn install(config: &mut timely::Config, node: NodeConfig) -> Result<()> {
    install_node(config, node).map(drop)
}

pub(crate) fn install_node(config: &mut timely::Config, mut node: NodeConfig) -> Result<Arc<Node>> {
    let refused = |message| Err(Error::new(ErrorKind::Config, message));
    let (threads, processes) = match &config.communication {
        CommunicationConfig::Thread => (1, 1),
        CommunicationConfig::Process(threads) | CommunicationConfig::ProcessBinary(threads) => {
            (*threads, 1)
        }
        CommunicationConfig::Cluster { threads, process, addresses, .. } => {
            let processes = addresses.len();
            if *process >= processes {
                return refused(format!("there is no process {process} of {processes}"));
            }
            (*threads, processes)
        }
    };
    let threads = threads.max(1);
    let groups = node.store.key_groups;
    if threads * processes > usize::from(groups) {
        let workers = threads * processes;
        return refused(format!("{workers} workers cannot share {groups} key groups"));
    }
    let lock = node.store.directory.as_deref().map(lock_directory).transpose()?;
    if let Some(directory) = &mut node.store.directory {
        // The directory that is locked, wherever the process or a link goes from here.
        let failed = |error| Error::io("open directory", directory.display(), error);
        *directory = directory.canonicalize().map_err(failed)?;
    }
    let node = Node {
        threads,
        share_bytes: node.share_bytes(threads as u64)?,
        tables: SharedTables::new(&node.tables)?,
        group: Arc::new(WorkerGroup::new(threads, processes)),
        lock,
        config: node,
    };
    let node = Arc::new(node);
    config.worker.set(REGISTRY_KEY.into(), node.clone());
    Ok(node)
}

impl Node {
    pub(crate) fn of(worker: &Worker) -> Result<Arc<Node>> {
        worker.config().get::<Arc<Node>>(REGISTRY_KEY).cloned().ok_or_else(|| {
            let message = "the worker has no node configuration: call install() before execute()";
            Error::new(ErrorKind::Config, message)
        })
    }
}
