//! The state of one worker: its store, where its key groups are, and what its operators wait for. How it
//! goes on together with others is in `steps`.

mod steps;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use alluvium::io::Device;
use alluvium::moving::{KeyGroup, KeyGroups};
use alluvium::{AnyLayout, Error, ErrorKind, Key, Result, State, Store};
use timely::worker::Worker;

use crate::intake::fault::Fault;
use crate::job::checkpoints::{COMMITTED, JobCheckpoint, WorkerCheckpoint, restore};
use crate::job::group::WorkerGroup;
use crate::job::node::Node;
use crate::job::place::StoreLocation;
use crate::job::sink::Sealed;
use crate::job::stats_log::StatsLog;
use crate::migration::MoveBarrier;
use crate::operators::shared_table::SharedTable;

/// Settings of one worker that differ from its node's.
#[derive(Clone, Debug, Default)]
pub struct WorkerOverrides {
    /// Memory of this worker's store, in bytes. Default: an equal part of what the node's shared
    /// tables leave of its memory. If you set it, see that all workers' parts add up to the node's
    /// memory at most: nothing checks it.
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
///
/// ```
/// use alluvium_timely::{NodeConfig, execute};
///
/// let keys = execute(timely::Config::process(2), NodeConfig::default(), |worker, state| {
///     // Workers say a number and hear the sum of all.
///     let met = state.meet(worker, state.index() as i64)?;
///     assert_eq!(met.sum, 1);
///     Ok(state.store().stats()?.total().live_keys)
/// })?;
/// assert_eq!(keys, [0, 0]);
/// # Ok::<(), alluvium::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct WorkerState(Rc<WorkerCore>);

/// Records and timers of one operator that wait for reads.
///
/// A row whose key is on storage is parked with its capability, and so are later rows of that key.
/// Rows of other keys continue. When the read ends, an I/O thread wakes the operator, which applies
/// the rows in order of arrival, at their own times. Timers of the key wait for its rows.
/// [`Spec::parked_max`](crate::Spec::parked_max) bounds how many wait.
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

/// What becomes visible with the job's checkpoints.
#[derive(Default)]
struct Sinks(Vec<Rc<dyn Sealed>>);

impl std::fmt::Debug for Sinks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} sinks", self.0.len())
    }
}

#[derive(Debug)]
struct WorkerCore {
    store: Store,
    key_groups: u16,
    index: usize,
    peers: usize,
    node: Arc<Node>,
    place: StoreLocation,
    /// All workers were started together.
    in_group: bool,
    restored: Option<JobCheckpoint>,
    /// The store has come with a checkpoint that no record of a job names.
    is_unrecorded: bool,
    meetings: Cell<u64>,
    policy: Fault,
    /// Operators that wait for storage, and why.
    waiting: RefCell<BTreeMap<String, Error>>,
    parked: RefCell<BTreeMap<String, Rc<Cell<Parked>>>>,
    /// The most bytes of key groups that were on their way from here, by operator.
    moved: RefCell<BTreeMap<String, Rc<Cell<u64>>>>,
    /// Where key groups were left by operators that are gone.
    homes: RefCell<BTreeMap<String, Vec<u32>>>,
    barrier: MoveBarrier,
    /// The store's checkpoints that the job's record names, by their numbers there.
    recorded: RefCell<BTreeMap<u64, u64>>,
    /// Of operators that are there.
    ids: RefCell<BTreeSet<String>>,
    /// Of operators that are or have been there.
    known: RefCell<BTreeSet<String>>,
    sinks: RefCell<Sinks>,
    stats_log: StatsLog,
}

impl Drop for WorkerCore {
    fn drop(&mut self) {
        self.stats_log.end(&self.store, self.index);
    }
}

impl WorkerState {
    /// Opens the worker's store as its node and `overrides` say. A worker needs one for all its
    /// dataflows; operators share it.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] without [`install`](crate::install). [`ErrorKind::Unsupported`] in a
    /// directory with [checkpoints of a job](crate::JobCheckpoints), which only
    /// [`execute`](crate::execute()) resumes. Those of
    /// [`StoreBuilder::open`](alluvium::StoreBuilder::open).
    pub fn new(worker: &Worker, overrides: WorkerOverrides) -> Result<Self> {
        let place = StoreLocation::new(worker, overrides)?;
        if worker.index() == 0 {
            restore::refuse_job(&place.record()?)?;
        }
        let store = place.open(restore::StoreBasis::Itself, false)?;
        Ok(Self::of(place, store, None, 0))
    }

    /// [`new`](WorkerState::new) for a worker that is started together with all others: restores
    /// what the job has committed last.
    pub(crate) fn in_group(worker: &Worker, overrides: WorkerOverrides) -> Result<Self> {
        let mut place = StoreLocation::new(worker, overrides)?;
        let restore::WorkerStart { checkpoint, recorded, home, basis } = restore::agree(&place, 0)?;
        place.home = home;
        let store = place.open(basis, true)?;
        let state = Self::of(place, store, checkpoint, 2);
        recorded.into_iter().for_each(|(number, own)| state.hold(number, own));
        Ok(state)
    }

    /// Holds the store's checkpoint `own`, which is of the job's `number`, as long as the record names
    /// that.
    pub(crate) fn hold(&self, number: u64, own: u64) {
        // One that is gone was damaged, and older than the last.
        if self.0.store.hold_checkpoint(own).is_ok() {
            self.0.recorded.borrow_mut().insert(number, own);
        }
    }

    /// Lets go of checkpoints that the record does not name any more.
    pub(crate) fn hold_only(&self, named: &[u64]) {
        self.0.recorded.borrow_mut().retain(|number, own| {
            let is_named = named.contains(number);
            if !is_named {
                self.0.store.release_checkpoint(*own);
            }
            is_named
        });
    }

    /// When key groups may begin to move.
    pub(crate) fn barrier(&self) -> &MoveBarrier {
        &self.0.barrier
    }

    /// The state of a worker that has been at so many meetings.
    fn of(
        place: StoreLocation,
        store: Store,
        restored: Option<JobCheckpoint>,
        meetings: u64,
    ) -> Self {
        let config = &place.node.config;
        let is_unrecorded = restored.is_none() && store.restored_position().is_some();
        Self(Rc::new(WorkerCore {
            is_unrecorded,
            store,
            key_groups: config.store.key_groups,
            index: place.index,
            peers: place.peers,
            policy: place.overrides.fault.unwrap_or(config.fault),
            node: place.node.clone(),
            in_group: meetings > 0,
            place,
            restored,
            meetings: Cell::new(meetings),
            waiting: RefCell::default(),
            parked: RefCell::default(),
            moved: RefCell::default(),
            homes: RefCell::default(),
            barrier: MoveBarrier::default(),
            recorded: RefCell::default(),
            ids: RefCell::default(),
            known: RefCell::default(),
            sinks: RefCell::default(),
            stats_log: StatsLog::default(),
        }))
    }

    /// Refuses a store in a group that goes on from a checkpoint which is none of a job.
    pub(crate) fn check_recorded(&self) -> Result<()> {
        if !self.0.is_unrecorded || !self.0.in_group {
            return Ok(());
        }
        let message = "the store has a checkpoint, but the job's record is not there";
        let message = self.0.place.with_checkpoints(message);
        Err(Error::new(ErrorKind::Missing, message).with("file", COMMITTED))
    }

    /// Returns the worker's store: statistics, checkpoints, background work.
    pub fn store(&self) -> &Store {
        &self.0.store
    }

    /// Returns the job checkpoint that this run resumes; `None` for a new job.
    pub fn restored(&self) -> Option<&JobCheckpoint> {
        self.0.restored.as_ref()
    }

    /// Whether all workers have been started together, so that they can take checkpoints together.
    pub(crate) fn is_in_group(&self) -> bool {
        self.0.in_group
    }

    /// Where the store is.
    pub(crate) fn place(&self) -> &StoreLocation {
        &self.0.place
    }

    pub(crate) fn key_groups(&self) -> u16 {
        self.0.key_groups
    }

    pub(crate) fn group(&self) -> &WorkerGroup {
        &self.0.node.group
    }

    /// Workers, of all processes.
    pub(crate) fn peers(&self) -> usize {
        self.0.peers
    }

    /// Where the store's statistics are logged.
    pub(crate) fn stats_log(&self) -> &StatsLog {
        &self.0.stats_log
    }

    /// Returns the worker's index.
    pub fn index(&self) -> usize {
        self.0.index
    }

    /// Returns the worker that owns the keys with this hash.
    #[inline]
    pub fn owner(&self, key_hash: u64) -> usize {
        owner(key_hash, self.0.key_groups, self.0.peers)
    }

    /// Notes where the key groups of an operator are that goes.
    pub(crate) fn leave_homes(&self, operator: &str, homes: Vec<u32>) {
        self.0.homes.borrow_mut().insert(operator.to_owned(), homes);
    }

    /// The worker that has each key group of an operator whose key groups move: at the begin of this
    /// run, or where an operator of this id has left them.
    pub(crate) fn homes(&self, operator: &str) -> Vec<u32> {
        if let Some(homes) = self.0.homes.borrow().get(operator) {
            return homes.clone();
        }
        let groups = 0..self.0.key_groups;
        let owner = |group| KeyGroup(group).owner(self.0.key_groups, self.0.peers) as u32;
        let mut homes: Vec<u32> = groups.map(owner).collect();
        let before = self.moved_before().unwrap_or_default();
        for (worker, part) in (0..).zip(before) {
            for group in part.moved.get(operator).into_iter().flat_map(KeyGroups::iter) {
                homes[usize::from(group.0)] = worker;
            }
        }
        homes
    }

    /// What the workers had, if each of them goes on with that.
    fn moved_before(&self) -> Option<&[WorkerCheckpoint]> {
        let restored = self.restored()?;
        let goes_on = restored.division == self.0.place.home.division;
        goes_on.then_some(&restored.workers[..])
    }

    /// The key groups that this worker has of operators whose groups are not where they began.
    pub(crate) fn moved_operators(&self) -> Result<BTreeMap<String, KeyGroups>> {
        let mut moved = BTreeMap::from_iter(self.0.store.moved_units()?);
        // Those of operators that are not in this dataflow stay where they were, with their states.
        let before = self.moved_before().map(|all| all[self.0.index].moved.clone());
        let known = self.0.known.borrow();
        for (operator, groups) in before.unwrap_or_default() {
            if !known.contains(&operator) {
                moved.insert(operator, groups);
            }
        }
        Ok(moved)
    }

    /// The function of [`owner`](WorkerState::owner), free of this worker's state.
    pub(crate) fn router(&self) -> impl Fn(u64) -> u64 + use<> {
        let (groups, peers) = (self.0.key_groups, self.0.peers);
        move |hash| owner(hash, groups, peers) as u64
    }

    /// Returns the table that the node declares under this name. The first worker of the process to
    /// ask loads it; the others wait.
    ///
    /// # Errors
    /// [`ErrorKind::UnknownState`] for an undeclared name. [`ErrorKind::Mismatch`] for other types.
    /// The errors of loading it.
    pub fn table<K: Key, V: State>(&self, name: &str) -> Result<SharedTable<K, V>> {
        self.0.node.tables.get(name)
    }

    /// Returns the operators of this worker that wait for storage to accept writes, each with its
    /// last error. See [`Fault`].
    pub fn waiting(&self) -> Vec<(String, String)> {
        let waiting = self.0.waiting.borrow();
        waiting.iter().map(|(operator, error)| (operator.clone(), error.to_string())).collect()
    }

    /// Returns what waits for reads, by operator.
    pub fn parked(&self) -> Vec<(String, Parked)> {
        let parked = self.0.parked.borrow();
        parked.iter().map(|(operator, gauge)| (operator.clone(), gauge.get())).collect()
    }

    /// Where an operator shows what it has parked.
    pub(crate) fn gauge(&self, operator: &str) -> Rc<Cell<Parked>> {
        self.0.parked.borrow_mut().entry(operator.to_owned()).or_default().clone()
    }

    /// Returns the most bytes of key groups in flight from this worker at a time, by operator whose
    /// key groups [move](crate::MoveGroup).
    pub fn moved_bytes_max(&self) -> Vec<(String, u64)> {
        let moved = self.0.moved.borrow();
        moved.iter().map(|(operator, gauge)| (operator.clone(), gauge.get())).collect()
    }

    /// Where an operator shows how much of its key groups is on its way.
    pub(crate) fn gauge_of_moves(&self, operator: &str) -> Rc<Cell<u64>> {
        self.0.moved.borrow_mut().entry(operator.to_owned()).or_default().clone()
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

    /// From now on the job's checkpoints commit this sink.
    pub(crate) fn add_sink(&self, sink: Rc<dyn Sealed>) {
        self.0.sinks.borrow_mut().0.push(sink);
    }

    pub(crate) fn sinks(&self) -> Vec<Rc<dyn Sealed>> {
        self.0.sinks.borrow().0.clone()
    }

    /// Takes the operator id, which no operator of this worker has, until what it gives is dropped. Its states
    /// go with the operator, too, and are opened again by the next one of this id.
    pub(crate) fn register(&self, id: &str) -> Result<Rc<Registered>> {
        if !self.0.ids.borrow_mut().insert(id.into()) {
            let message = "two operators have the same id";
            return Err(Error::new(ErrorKind::InUse, message).with("operator", id));
        }
        self.0.known.borrow_mut().insert(id.into());
        Ok(Rc::new(Registered { worker: self.clone(), id: id.into() }))
    }
}

/// An operator's id, taken as long as the operator is there.
#[derive(Debug)]
pub(crate) struct Registered {
    worker: WorkerState,
    id: String,
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.worker.0.ids.borrow_mut().remove(&self.id);
    }
}

#[inline]
fn owner(key_hash: u64, groups: u16, peers: usize) -> usize {
    KeyGroup::of(key_hash, groups).owner(groups, peers)
}
