//! The store: one worker's states under one budget and one directory.
//!
//! Here is what concerns all of them: memory, checkpoints, statistics, helpers. How single states are
//! opened is in the modules below.

pub(crate) mod aside;
#[cfg(test)]
mod asking_tests;
mod being_opened;
pub(crate) mod builder;
pub(crate) mod config;
pub(crate) mod crowded;
pub(crate) mod definition;
mod dropping;
mod expiring;
pub(crate) mod kept_back;
mod opening;
mod parts;
mod states;
pub(crate) mod stats;
mod stored_timers;
mod taking;

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::ops::Range;
use std::path::PathBuf;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use alluvium_layouts::trace_event;
use alluvium_pagestore::io::{Device, Patience, SureNames};
use alluvium_pagestore::{
    Account, Error, ErrorKind, Helper, MemoryKind, Reclaim, ReclaimScope, Result, SegmentStore,
    Served, StateManifest,
};

use alluvium_pagestore::channel::{RecvTimeoutError, unbounded};

use crate::api::expiring::Clock;
use crate::cells::cell_handle::Claimed;
use crate::cells::recording::{Recorder, Tracer};
use crate::cells::state_cell::{Hooks, Lock};
use crate::durability::checkpoints::{Checkpoint, Checkpoints, MOMENT, RetainedCheckpoint, Seal};
use crate::durability::moving::{GroupStock, Groups, Unit};
use crate::durability::sources::{RestoredFrom, Source, Sources};
use crate::store::builder::StoreBuilder;
use crate::store::config::{Helpers, StoreConfig};
use crate::store::crowded::CrowdedWarning;
use crate::store::kept_back::AllKeptBack;
use crate::store::stats::{StateStats, StoreStats};

pub(crate) use dropping::{Dropped, kept};
pub(crate) use opening::not_encoded;
pub use states::{CountOf, ListOf, MapOf, StateBuilder, ValueOf};
pub(crate) use stored_timers::STORED_TIMERS;
pub use stored_timers::StoredTimersOf;
pub(crate) use taking::{Pane, put, put_all, put_panes, put_records};

/// One worker's states under one memory budget and one directory. Cheap to clone; stays on its
/// thread.
///
/// State handles ([`Map`](crate::Map), [`Value`](crate::Value), [`Count`](crate::Count),
/// [`Timers`](crate::Timers)) own the record path; move them into operators. The store owns
/// checkpoints, statistics and the lock. A state has one handle at a time. A state whose handle you
/// drop stays in memory and in checkpoints, and can be opened again with the same types, the same
/// layout, and a definition that can continue it.
///
/// ```
/// use alluvium::{MIB, Store};
///
/// # let place = tempfile::tempdir().unwrap();
/// # let directory = place.path();
/// let store = Store::builder(directory).memory(16 * MIB).open()?;
/// let mut words = store.count::<String>("words").open()?;
/// words.add("be", 2)?;
/// store.checkpoint(1)?; // 1: where the input resumes
/// words.add("lost", 1)?;
/// drop((words, store));
///
/// let store = Store::builder(directory).memory(16 * MIB).open()?;
/// assert_eq!(store.restored_position(), Some(1));
/// let mut words = store.count::<String>("words").open()?;
/// assert_eq!((words.get("be")?, words.get("lost")?), (2, 0));
/// # Ok::<(), alluvium::Error>(())
/// ```
#[derive(Clone)]
pub struct Store(pub(crate) Rc<StoreCore>);

pub(crate) struct StoreCore {
    pub(crate) config: StoreConfig,
    pub(crate) root: Rc<Account>,
    pub(crate) segments: Option<SegmentStore>,
    pub(crate) helper: Helper,
    pub(crate) owned: Range<u16>,
    pub(crate) checkpoints: RefCell<Checkpoints>,
    pub(crate) sources: Option<Sources>,
    pub(crate) states: RefCell<Vec<OpenState>>,
    pub(crate) dropped: RefCell<Dropped>,
    /// Where the key groups are of states that move.
    pub(crate) units: RefCell<Vec<Unit>>,
    crowded: CrowdedWarning,
    elastic: ElasticStates,
    pub(crate) clock: Arc<dyn Clock>,
    /// Records calls on states.
    tracer: Option<Tracer>,
    leftovers: u64,
    /// Booked for requests that were given up while a state was opened or exported.
    left_bytes: Cell<u64>,
    pub(crate) kept_back: AllKeptBack,
    /// Released last, and not before the last handle that writes to the directory is gone.
    lock: Option<Lock>,
}

pub(crate) struct OpenState {
    pub(crate) manifest: StateManifest,
    account: Rc<Account>,
    pub(crate) hooks: Rc<dyn Hooks>,
    /// What `hooks` are of, for the next handle.
    cell: Rc<dyn Any>,
    claimed: Claimed,
    /// Can be made again: there is none of it once its handle is gone.
    is_derived: bool,
    /// Where its key groups are, if they move.
    pub(crate) groups: Option<Rc<Groups>>,
}

impl OpenState {
    /// What a checkpoint says of it that is taken now, but for its image.
    ///
    /// # Errors
    /// [`ErrorKind::InUse`] while a key group is on its way.
    pub(crate) fn manifest_now(&self) -> Result<StateManifest> {
        let definition = self.definition_now();
        let manifest =
            StateManifest { over: self.hooks.over(), definition, ..self.manifest.clone() };
        let Some(groups) = &self.groups else { return Ok(manifest) };
        let GroupStock { here, going } = groups.stock()?;
        let unit = Some(groups.name().to_owned());
        Ok(StateManifest { unit, groups: Some(here), going, ..manifest })
    }

    /// Its definition, with what a build has to know to go on with it as it is now.
    pub(crate) fn definition_now(&self) -> Option<serde_json::Value> {
        let definition = self.manifest.definition.as_ref();
        match self.hooks.need() {
            Some(need) => Some(definition::with_need(definition, need)),
            None => definition.cloned(),
        }
    }

    fn stats(&self) -> Result<StateStats> {
        let StateManifest { name, primitive, layout, .. } = self.manifest.clone();
        let (memory, table) = (self.account.stats(), self.hooks.stats()?);
        Ok(StateStats { name, primitive, layout, memory, table })
    }
}

/// The open states, as the root account knows them: it lives as long as any of them, also after
/// the store's last handle is gone.
#[derive(Clone)]
struct ElasticStates {
    states: Rc<RefCell<Vec<Weak<dyn Hooks>>>>,
    root: Weak<Account>,
}

impl Reclaim for ElasticStates {
    fn reclaim(&self, bytes: u64) -> Result<()> {
        let (mut lacking, mut failed) = (bytes, Ok(()));
        let asked = self.root.upgrade().map_or(ReclaimScope::All, |root| root.asked_for());
        for state in self.states.borrow().iter().filter_map(Weak::upgrade) {
            if lacking == 0 {
                break;
            }
            match state.reclaim(asked, lacking) {
                Ok(given) => lacking = lacking.saturating_sub(given),
                Err(error) => failed = Err(error),
            }
        }
        failed
    }
}

/// Memory that [`Store::reserve`] has reserved; dropping it returns the memory.
///
/// ```
/// use alluvium::{KIB, MIB, Store};
///
/// let store = Store::in_memory().memory(MIB).open()?;
/// let held = store.reserve(100 * KIB, "rows that wait")?;
/// assert_eq!(held.bytes(), 100 * KIB);
/// assert!(store.reserve(2 * MIB, "rows that wait").is_err());
/// # Ok::<(), alluvium::Error>(())
/// ```
#[derive(Debug)]
pub struct Reservation {
    account: Rc<Account>,
    bytes: u64,
}

impl Reservation {
    /// Returns the size.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.account.release(MemoryKind::Buffers, self.bytes);
    }
}

/// Bytes of the buffer that checkpoint files are written with.
pub(crate) const BLOB_CHUNK_BYTES: usize = 4 << 10;

impl Store {
    /// Returns a builder for a store in `directory`, which `open` creates if it is missing.
    pub fn builder(directory: impl Into<PathBuf>) -> StoreBuilder {
        StoreBuilder::new(StoreConfig { directory: Some(directory.into()), ..Default::default() })
    }

    /// Returns a builder for a store without a directory: everything stays in memory and nothing is
    /// durable.
    pub fn in_memory() -> StoreBuilder {
        StoreBuilder::new(StoreConfig::default())
    }

    /// Returns a builder with the options of a configuration.
    pub fn from_config(config: StoreConfig) -> StoreBuilder {
        StoreBuilder::new(config)
    }

    pub(crate) fn open(
        config: StoreConfig,
        device: Option<Arc<dyn Device>>,
        helper: Option<Helper>,
        owned: Range<u16>,
        restore: Option<u64>,
        sources: Option<Vec<Source>>,
        clock: Arc<dyn Clock>,
    ) -> Result<Store> {
        let lock = device.as_ref().map(|device| device.lock()).transpose()?;
        let lock = lock.map(|guard| Lock(Arc::from(guard)));
        let helper =
            helper.map_or_else(|| start_helper(&config, device.as_ref(), lock.as_ref()), Ok)?;
        let root = Account::root(config.memory.0);
        let elastic = ElasticStates { states: Rc::default(), root: Rc::downgrade(&root) };
        root.set_reclaim(Box::new(elastic.clone()));
        let tracer =
            config.trace.as_ref().map(|options| Tracer::start(options, config.patience_ms));
        let mut inner = StoreCore {
            kept_back: AllKeptBack::new(&root),
            root,
            segments: None,
            helper,
            owned,
            checkpoints: RefCell::default(),
            sources: None,
            states: RefCell::new(Vec::new()),
            dropped: RefCell::default(),
            units: RefCell::default(),
            crowded: CrowdedWarning::default(),
            elastic,
            leftovers: 0,
            left_bytes: Cell::new(0),
            lock,
            clock,
            tracer: tracer.transpose()?,
            config,
        };
        if let Some(device) = device {
            let device = Arc::new(SureNames::new(device));
            let what = "the buffer of checkpoints";
            inner.root.reserve(MemoryKind::Buffers, BLOB_CHUNK_BYTES as u64, what)?;
            let (checkpoints, segments, leftovers) =
                Checkpoints::recover(device, &inner.config, &inner.owned, restore)?;
            inner.checkpoints = RefCell::new(checkpoints);
            let segments = segments.removing_by(&inner.helper);
            (inner.segments, inner.leftovers) = (Some(segments), leftovers);
        }
        if let Some(sources) = sources {
            if let Some(base) = inner.checkpoints.get_mut().base() {
                let number = base.number;
                let message = format!(
                    "the directory has checkpoint {number}; a store that is \
                     restored from others is a new one"
                );
                return Err(Error::new(ErrorKind::Mismatch, message));
            }
            inner.sources = Some(Sources::open(&sources, &inner.config, &inner.owned)?);
        }
        Ok(Store(Rc::new(inner)))
    }

    /// Waits until the helper has finished, for instance removing files. The directory is free when
    /// the last handle of a state is gone too. Dropping the store does the same but reports no
    /// error.
    ///
    /// # Errors
    /// [`ErrorKind::Backpressure`] if the device hangs for [`StoreConfig::patience_ms`]. The
    /// remaining work runs when the device continues. Until then the directory stays locked, and no
    /// call waits for it.
    pub fn close(self) -> Result<()> {
        match self.0.segments {
            Some(_) => self.0.wait_for_helper(),
            None => Ok(()),
        }
    }

    /// Makes all states durable as they are now: [`seal`](Store::seal) and
    /// [`confirm`](Seal::confirm) in one call, which waits for all writes. Carries over states that
    /// are in the directory but not open. Merges small segments first if that takes no more than
    /// some milliseconds; with `seal`, later writes and [ticks](Store::tick) do it.
    ///
    /// `position` is yours: how much of the input the states reflect.
    /// [`restored_position`](Store::restored_position) returns it.
    ///
    /// # Errors
    /// Those of [`seal`](Store::seal) and [`confirm`](Seal::confirm).
    pub fn checkpoint(&self, position: u64) -> Result<Checkpoint> {
        for state in &*self.0.states.borrow() {
            state.hooks.finish_merging()?;
        }
        self.seal(position)?.confirm()
    }

    /// Starts a checkpoint of all states as they are now. You can use the states at once. Their
    /// contents become durable while you call [`Seal::advance`]. An open restores the checkpoint
    /// only after [`Seal::confirm`]. Dropping the seal aborts it.
    ///
    /// Each state writes its part in steps while the stream continues; see
    /// `docs/design/checkpoints.md`. A layout of your own without steps writes its part in this
    /// call.
    ///
    /// # Errors
    /// [`ErrorKind::Poisoned`] if a closure has panicked in a state. [`ErrorKind::InUse`] if a
    /// value is borrowed, a closure runs, another checkpoint is in progress, or a key group moves
    /// between this store and [another](crate::moving::Mover). [`ErrorKind::Unsupported`] without a
    /// directory. States and existing checkpoints stay as they were.
    pub fn seal(&self, position: u64) -> Result<Seal> {
        Seal::begin(self, position)
    }

    /// Lists the checkpoints that can be restored, oldest first, with the storage that each
    /// occupies.
    pub fn checkpoints(&self) -> Vec<RetainedCheckpoint> {
        self.0.checkpoints.borrow().describe()
    }

    /// Keeps a checkpoint and all files it names until you [release](Store::release_checkpoint) it
    /// or close the store, however many others are [retained](StoreBuilder::retain). Use it to
    /// commit checkpoints of several stores as one. A checkpoint in progress can be held after
    /// [`Seal::keep`].
    ///
    /// # Errors
    /// [`ErrorKind::Missing`] if there is no such checkpoint.
    pub fn hold_checkpoint(&self, number: u64) -> Result<()> {
        self.0.checkpoints.borrow_mut().hold(number)
    }

    /// Releases a held checkpoint. It is removed once enough newer ones are confirmed.
    pub fn release_checkpoint(&self, number: u64) {
        self.0.checkpoints.borrow_mut().release(number);
    }

    /// Returns the position of the checkpoint that this store was opened from, or of its last one
    /// since. For a store [restored from several](StoreBuilder::restore_from), returns it if all
    /// agree.
    pub fn restored_position(&self) -> Option<u64> {
        let own = self.0.checkpoints.borrow().base().map(|image| image.position);
        own.or_else(|| self.0.sources.as_ref()?.position())
    }

    /// Returns the checkpoints of other stores that this one was restored from, if they have key
    /// groups of it.
    pub fn restored_from(&self) -> &[RestoredFrom] {
        self.0.sources.as_ref().map_or(&[], |sources| &sources.restored_from)
    }

    /// Gives up a state of the checkpoints that this store is [restored
    /// from](StoreBuilder::restore_from): it will not be opened.
    ///
    /// # Errors
    /// [`ErrorKind::UnknownState`] if they have no unopened state of this name.
    pub fn leave_out(&self, state: &str) -> Result<()> {
        if self.0.sources.as_ref().is_some_and(|sources| sources.done_with(state)) {
            return Ok(());
        }
        let message = "there is no such state to restore";
        Err(Error::new(ErrorKind::UnknownState, message).with("state", state))
    }

    /// Does up to `work` units of background work over all states and returns how many it did; 0
    /// means that nothing is left to do now.
    ///
    /// # Errors
    /// Those of storage.
    pub fn tick(&self, work: usize) -> Result<usize> {
        let mut done = 0;
        self.watch();
        self.0.book_left();
        for state in &*self.0.states.borrow() {
            done += state.hooks.tick(work.saturating_sub(done))?;
        }
        Ok(done)
    }

    /// Memory that no eviction frees; there is a warning if it has come to fill too much.
    fn watch(&self) -> u64 {
        let inner = &*self.0;
        let states = inner.states.borrow();
        let fixed: u64 = states.iter().map(|state| state.hooks.fixed_bytes().0).sum();
        inner.crowded.watch(None, (fixed, inner.root.limit()));
        fixed
    }

    /// Reserves memory of the store's budget for data that you keep beside the states, such as
    /// records that wait for a read. An error names it `what`.
    ///
    /// # Errors
    /// [`ErrorKind::OverBudget`](crate::ErrorKind::OverBudget) with the numbers.
    pub fn reserve(&self, bytes: u64, what: &str) -> Result<Reservation> {
        self.0.root.reserve(MemoryKind::Buffers, bytes, what)?;
        Ok(Reservation { account: self.0.root.clone(), bytes })
    }

    pub(crate) fn root(&self) -> &Rc<Account> {
        &self.0.root
    }

    /// Names of states that the last checkpoint, or the sources, have and that are not open.
    pub(crate) fn unopened(&self) -> Vec<String> {
        let states = self.0.states.borrow();
        let is_open = |name: &str| states.iter().any(|state| state.manifest.name == name);
        let checkpoints = self.0.checkpoints.borrow();
        let dropped = self.0.dropped.borrow();
        let carried = checkpoints.base().into_iter().flat_map(|base| kept(base, &dropped));
        let carried = carried.filter(|state| state.image.entries > 0 && !is_open(&state.name));
        let carried = carried.map(|state| state.name.clone());
        let sources = self.0.sources.as_ref().map(Sources::unopened).unwrap_or_default();
        carried.chain(sources).collect()
    }

    /// Returns the memory this store may hold, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.0.config.memory.0
    }

    /// Returns whether states of this store can be on storage.
    pub fn has_storage(&self) -> bool {
        self.0.segments.is_some()
    }

    /// Returns counters and gauges of the store and of each open state. Cost: a pass over the
    /// states and their segments.
    ///
    /// # Errors
    /// [`ErrorKind::InUse`] if a value is borrowed or a closure runs.
    pub fn stats(&self) -> Result<StoreStats> {
        self.0.book_left();
        let open = self.0.states.borrow();
        let states = open.iter().map(OpenState::stats).collect::<Result<_>>()?;
        let io = self.0.segments.as_ref().map(|s| s.device().stats()).unwrap_or_default();
        let compaction_errors = open
            .iter()
            .filter_map(|state| {
                Some((state.manifest.name.clone(), state.hooks.compaction_error()?))
            })
            .collect();
        let (memory, fixed_bytes) = (self.0.root.stats(), self.watch());
        let traces = self.0.tracer.as_ref().map_or_else(Vec::new, Tracer::stats);
        let left_free_bytes = self.0.root.left_free();
        Ok(StoreStats {
            memory,
            io,
            states,
            compaction_errors,
            fixed_bytes,
            left_free_bytes,
            traces,
        })
    }

    /// Returns the I/O engine in use, and why it is not the requested one.
    pub fn engine(&self) -> (&'static str, Option<String>) {
        match &self.0.segments {
            Some(segments) => (segments.device().engine(), segments.device().fallback_reason()),
            None => ("none", None),
        }
    }

    /// Returns how many leftover files of a crash the open has removed.
    pub fn leftovers(&self) -> u64 {
        self.0.leftovers
    }
}

/// The helper that the configuration asks for. One with a thread keeps the lock as long as it writes.
fn start_helper(
    config: &StoreConfig,
    device: Option<&Arc<dyn Device>>,
    lock: Option<&Lock>,
) -> Result<Helper> {
    match (config.helpers, device, lock) {
        (Helpers::Inline, ..) => Ok(Helper::inline()),
        (Helpers::Thread, Some(device), Some(lock)) => Helper::thread_for(Served {
            device: device.clone(),
            patience: Duration::from_millis(config.patience_ms),
            lock: lock.0.clone(),
            left_alone: || trace_event!(WARN, "closed while storage did nothing"),
        }),
        (Helpers::Thread, ..) => Helper::thread(),
    }
}

impl StoreCore {
    /// The trace of a state that is being opened, if there is to be one.
    pub(crate) fn recorder_of(&self, state: &str) -> Result<Option<Recorder>> {
        self.tracer.as_ref().map_or(Ok(None), |tracer| tracer.recorder_of(state, &self.root))
    }

    /// The device of a store with a directory.
    pub(crate) fn device(&self) -> &dyn Device {
        self.segments.as_ref().expect("asked where there is a directory").device()
    }

    /// A wait for the device that begins now.
    pub(crate) fn patience(&self) -> Patience {
        Patience::new(Duration::from_millis(self.config.patience_ms), self.device())
    }

    /// Waits until all that was given to the helper is done, unless the device does nothing.
    fn wait_for_helper(&self) -> Result<()> {
        let (reply, ended) = unbounded();
        self.helper.submit(move || {
            let _ = reply.send(());
        });
        let mut patience = self.patience();
        while ended.recv_timeout(MOMENT) == Err(RecvTimeoutError::Timeout) {
            self.drive();
            if patience.is_over(self.device()) {
                self.helper.leave_alone();
                return Err(patience.error("the store's helper goes on alone, and keeps the lock"));
            }
        }
        Ok(())
    }

    /// Does the work of a helper without threads, and of a device that has to be driven.
    pub(crate) fn drive(&self) {
        self.helper.drive();
        self.segments.iter().for_each(|segments| segments.device().drive());
    }
}

impl Drop for StoreCore {
    /// What states wait for when they are dropped is then there, or will not be.
    fn drop(&mut self) {
        if self.segments.is_some() && !self.helper.is_inline() && !self.helper.is_left_alone() {
            // The helper tells it when its end is not waited for.
            let _ = self.wait_for_helper();
        }
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let states: Vec<_> =
            self.0.states.borrow().iter().map(|state| state.manifest.name.clone()).collect();
        f.debug_struct("Store").field("states", &states).field("memory", &self.0.root).finish()
    }
}
