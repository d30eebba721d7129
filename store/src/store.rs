//! The store: one worker's states under one budget and one directory.

mod expiring;
mod parts;
mod taking;

use std::cell::RefCell;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;
use std::path::PathBuf;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use alluvium_compaction::SpacePolicy;
use alluvium_layouts::{Layout, ListsLayout, StateContext, Table, trace_span};
use alluvium_pagestore::io::Device;
use alluvium_pagestore::{
    Account, BlobReader, CheckpointImage, Error, ErrorKind, Helper, Key, MemoryKind, Reclaim,
    Result, SegmentStore, State, StateManifest, Time, description_of,
};

use crate::aggregate::Aggregate;
use crate::any_layout::AnyLayout;
use crate::builder::StoreBuilder;
use crate::checkpoints::{Checkpoint, Checkpoints, RetainedCheckpoint, Seal};
use crate::config::{Helpers, StoreConfig};
use crate::count::Count;
use crate::expiring::{Clock, Sweeping};
use crate::list::List;
use crate::map::Map;
use crate::moving::{Groups, Mover, Stock};
use crate::patience::Patience;
use crate::sources::{RestoredFrom, Source, Sources};
use crate::state_cell::{Hooks, Lock, StateCell};
use crate::stats::{StateStats, StoreStats};
use crate::time_map::TimeMapOf;
use crate::timers::{Timers, TimersCell};
use crate::value::Value;
use crate::windows::{AggregatedOf, HolisticOf};
use expiring::Expiry;
pub(crate) use taking::put;
use taking::{batch_bytes, put_records};

/// One worker's states under one memory budget and one directory. Cheap to clone; stays on its
/// thread.
///
/// Handles ([`Map`], [`Value`], [`Count`], [`Timers`]) own the record path and can be moved into
/// operators; the store keeps what concerns all of them: checkpoints, statistics, the lock.
#[derive(Clone)]
pub struct Store(pub(crate) Rc<Inner>);

pub(crate) struct Inner {
    pub(crate) config: StoreConfig,
    root: Rc<Account>,
    pub(crate) segments: Option<SegmentStore>,
    pub(crate) helper: Helper,
    pub(crate) owned: Range<u16>,
    pub(crate) checkpoints: RefCell<Checkpoints>,
    pub(crate) sources: Option<Sources>,
    pub(crate) states: RefCell<Vec<OpenState>>,
    /// Where the key groups are of states that move.
    pub(crate) units: RefCell<Vec<Rc<Groups>>>,
    elastic: Elastic,
    pub(crate) clock: Arc<dyn Clock>,
    leftovers: u64,
    /// Released last, and not before the last handle that writes to the directory is gone.
    lock: Option<Lock>,
}

pub(crate) struct OpenState {
    pub(crate) manifest: StateManifest,
    account: Rc<Account>,
    pub(crate) hooks: Rc<dyn Hooks>,
    /// Where its key groups are, if they move.
    pub(crate) groups: Option<Rc<Groups>>,
}

impl OpenState {
    /// What a checkpoint says of it that is taken now, but for its image.
    ///
    /// # Errors
    /// [`ErrorKind::InUse`] while a key group is on its way.
    pub(crate) fn manifest_now(&self) -> Result<StateManifest> {
        let Some(groups) = &self.groups else { return Ok(self.manifest.clone()) };
        let Stock { here, going } = groups.stock()?;
        Ok(StateManifest { groups: Some(here), going, ..self.manifest.clone() })
    }

    fn stats(&self) -> Result<StateStats> {
        let StateManifest { name, primitive, layout, .. } = self.manifest.clone();
        let (memory, table) = (self.account.stats(), self.hooks.stats()?);
        Ok(StateStats { name, primitive, layout, memory, table })
    }
}

/// The open states, as the root account knows them: it lives as long as any of them, also after
/// the store's last handle is gone.
#[derive(Clone, Default)]
struct Elastic(Rc<RefCell<Vec<Weak<dyn Hooks>>>>);

impl Reclaim for Elastic {
    fn reclaim(&self, bytes: u64) -> Result<()> {
        let (mut lacking, mut failed) = (bytes, Ok(()));
        for state in self.0.borrow().iter().filter_map(Weak::upgrade) {
            if lacking == 0 {
                break;
            }
            match state.reclaim(lacking) {
                Ok(given) => lacking = lacking.saturating_sub(given),
                Err(error) => failed = Err(error),
            }
        }
        failed
    }
}

/// Memory booked with [`Store::reserve`]; given back when dropped.
#[derive(Debug)]
pub struct Reservation {
    account: Rc<Account>,
    bytes: u64,
}

impl Reservation {
    /// How much it is.
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
    /// A builder for a store in `directory`, which is created if missing.
    pub fn builder(directory: impl Into<PathBuf>) -> StoreBuilder {
        StoreBuilder::new(StoreConfig { directory: Some(directory.into()), ..Default::default() })
    }

    /// A builder for a store without a directory: everything stays in memory, nothing is durable.
    pub fn in_memory() -> StoreBuilder {
        StoreBuilder::new(StoreConfig::default())
    }

    /// A builder with the options of a configuration.
    pub fn from_config(config: StoreConfig) -> StoreBuilder {
        StoreBuilder::new(config)
    }

    pub(crate) fn open(
        config: StoreConfig,
        device: Option<Arc<dyn Device>>,
        owned: Range<u16>,
        restore: Option<u64>,
        sources: Option<Vec<Source>>,
        clock: Arc<dyn Clock>,
    ) -> Result<Store> {
        let helper = match config.helpers {
            Helpers::Thread => Helper::thread()?,
            Helpers::Inline => Helper::inline(),
        };
        let root = Account::root(config.memory.0);
        let elastic = Elastic::default();
        root.set_reclaim(Box::new(elastic.clone()));
        let mut inner = Inner {
            root,
            segments: None,
            helper,
            owned,
            checkpoints: RefCell::default(),
            sources: None,
            states: RefCell::new(Vec::new()),
            units: RefCell::default(),
            elastic,
            leftovers: 0,
            lock: None,
            clock,
            config,
        };
        if let Some(device) = device {
            inner.lock = Some(Lock::new(device.lock()?));
            let what = "the buffer of checkpoints";
            inner.root.reserve(MemoryKind::Buffers, BLOB_CHUNK_BYTES as u64, what)?;
            let (checkpoints, segments, leftovers) =
                Checkpoints::recover(device, &inner.config, &inner.owned, restore)?;
            inner.checkpoints = RefCell::new(checkpoints);
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

    /// The map `name`.
    ///
    /// ```
    /// # use alluvium::Store;
    /// let store = Store::in_memory().open()?;
    /// let mut counts = store.map::<u64, u64>("counts").open()?;
    /// counts.update(&7, || 0, |count| *count += 1)?;
    /// assert_eq!(counts.get(&7)?.as_deref(), Some(&1));
    /// # Ok::<(), alluvium::Error>(())
    /// ```
    pub fn map<K: Key, V: 'static>(&self, name: &str) -> StateBuilder<'_, MapOf<K, V>> {
        StateBuilder::new(self, name)
    }

    /// The keyed counters `name`.
    pub fn count<K: Key>(&self, name: &str) -> StateBuilder<'_, CountOf<K>> {
        StateBuilder::new(self, name)
    }

    /// The single value `name`.
    pub fn value<V: State>(&self, name: &str) -> StateBuilder<'_, ValueOf<V>> {
        StateBuilder::new(self, name)
    }

    /// The windows `name`, folded by an aggregate.
    ///
    /// ```
    /// # use alluvium::{Counting, SECOND, Store, Time, Windows};
    /// let store = Store::in_memory().open()?;
    /// let windows = Windows::sliding(10 * SECOND, 2 * SECOND);
    /// let mut counts = store.aggregated("counts").open(windows, Counting)?;
    /// let mut batch = vec![(Time(SECOND), "a".to_string(), ()), (Time(3 * SECOND), "a".to_string(), ())];
    /// counts.add_batch(Time::MIN, &mut batch, &mut |_| {}, &mut |_, _, _, _| {})?;
    /// let mut results = Vec::new();
    /// counts.advance(Time(6 * SECOND), 1000, &mut |_, window, count, _| {
    ///     results.push((window.end.0 / SECOND, count));
    /// })?;
    /// assert_eq!(results, [(2, 1), (4, 2), (6, 2)]);
    /// # Ok::<(), alluvium::Error>(())
    /// ```
    pub fn aggregated<K: Key + Ord, E: 'static, A: Aggregate<E>>(
        &self,
        name: &str,
    ) -> StateBuilder<'_, AggregatedOf<K, E, A>> {
        StateBuilder::new(self, name)
    }

    /// The windows `name`, which keep their events for a function of all of them.
    pub fn holistic<K: Key + Ord, E: State>(
        &self,
        name: &str,
    ) -> StateBuilder<'_, HolisticOf<K, E>> {
        StateBuilder::new(self, name)
    }

    /// The lists `name`.
    pub fn list<K: Key, E: State>(&self, name: &str) -> StateBuilder<'_, ListOf<K, E>> {
        StateBuilder::new(self, name)
    }

    /// The time-ordered map `name`.
    pub fn time_map<K: Key, V: State>(&self, name: &str) -> StateBuilder<'_, TimeMapOf<K, V>> {
        StateBuilder::new(self, name)
    }

    /// The timers `name`.
    pub fn timers<K: Key + Ord>(&self, name: &str) -> Result<Timers<K>> {
        self.timers_in(name)
    }

    /// The timers `name`, each of a key and a namespace.
    pub fn timers_in<K: Key + Ord, N: State + Ord>(&self, name: &str) -> Result<Timers<K, N>> {
        self.open_timers(name, None)
    }

    /// [`timers_in`](Store::timers_in) whose key groups come and go with the other states of a unit.
    /// Timers of a group that is not here in full, or being given away, are not due. They are in
    /// order of time, and of one time in the order of their key groups, then of their keys. Each
    /// group with timers takes a block of 64 at least.
    pub fn timers_moved_by<K: Key + Ord, N: State + Ord>(
        &self,
        mover: &Mover,
        name: &str,
    ) -> Result<Timers<K, N>> {
        self.open_timers(name, Some(mover))
    }

    pub(crate) fn open_timers<K: Key + Ord, N: State + Ord>(
        &self,
        name: &str,
        mover: Option<&Mover>,
    ) -> Result<Timers<K, N>> {
        let mut context = self.0.context(name, None)?;
        context.movable = mover.is_some();
        let types = (description_of::<(Time, K)>(), description_of::<N>());
        let manifest = manifest(name, "timers", "timers", types);
        let context = self.0.with_restored(context, &manifest)?;
        let groups = self.0.groups_in(mover, name)?;
        let account = context.account.clone();
        let opened = TimersCell::open(context.clone(), groups.clone());
        let cell = opened.map_err(|e| e.with("state", name))?;
        self.0.take_parts(&context, &manifest, 0, |part| part.read(|part| cell.take(part)))?;
        if let Some(mover) = mover {
            mover.add(&manifest, cell.clone());
        }
        self.0.register_in(groups, manifest, account, cell.clone());
        Ok(Timers::new(cell))
    }

    /// Makes all states durable as of now: [`seal`](Store::seal) and [`confirm`](Seal::confirm) in
    /// one, waiting for all that has to be written. States that are in the directory but not open
    /// are carried over.
    ///
    /// `position` is the caller's: how much of the input the states reflect. It comes back from
    /// [`restored_position`](Store::restored_position).
    ///
    /// # Errors
    /// Those of [`seal`](Store::seal) and [`confirm`](Seal::confirm).
    pub fn checkpoint(&self, position: u64) -> Result<Checkpoint> {
        self.seal(position)?.confirm()
    }

    /// Begins a checkpoint of all states as of now. The states can be used at once; what they are
    /// becomes durable while [`Seal::advance`] is called. Nothing is restored from it before it is
    /// [confirmed](Seal::confirm); one that is dropped is aborted.
    ///
    /// A hybrid log's part is taken in steps while the stream goes on, see
    /// `docs/design.md`; other states write theirs in this call.
    ///
    /// # Errors
    /// [`ErrorKind::Poisoned`] if a closure panicked in a state, [`ErrorKind::InUse`] if a value is
    /// borrowed, a closure is running, another checkpoint is under way or a key group is on its way
    /// between this store and [another](crate::Mover),
    /// [`ErrorKind::Unsupported`] without a directory. The states and the checkpoints there are stay
    /// as they were.
    pub fn seal(&self, position: u64) -> Result<Seal> {
        Seal::begin(self, position)
    }

    /// The checkpoints that can be restored, the oldest first, with what each keeps on storage.
    pub fn checkpoints(&self) -> Vec<RetainedCheckpoint> {
        self.0.checkpoints.borrow().describe()
    }

    /// The position of the last checkpoint, or of the one this store was opened from; of several it
    /// was [restored from](StoreBuilder::restore_from) if they all have the same.
    pub fn restored_position(&self) -> Option<u64> {
        let own = self.0.checkpoints.borrow().base().map(|image| image.position);
        own.or_else(|| self.0.sources.as_ref()?.position())
    }

    /// The checkpoints of other stores that this one was restored from, those that have key groups
    /// of it.
    pub fn restored_from(&self) -> &[RestoredFrom] {
        self.0.sources.as_ref().map_or(&[], |sources| &sources.restored_from)
    }

    /// Says that a state which the checkpoints have that this store is
    /// [restored from](StoreBuilder::restore_from) will not be opened: it is given up here.
    ///
    /// # Errors
    /// [`ErrorKind::UnknownState`] if they have none of this name that is not open.
    pub fn leave_out(&self, state: &str) -> Result<()> {
        if self.0.sources.as_ref().is_some_and(|sources| sources.done_with(state)) {
            return Ok(());
        }
        let message = "there is no such state to be restored";
        Err(Error::new(ErrorKind::UnknownState, message).with("state", state))
    }

    /// Does up to `work` units of background work over all states and says how many were done; 0
    /// means that there is nothing to do now.
    pub fn tick(&self, work: usize) -> Result<usize> {
        let mut done = 0;
        for state in &*self.0.states.borrow() {
            done += state.hooks.tick(work.saturating_sub(done))?;
        }
        Ok(done)
    }

    /// Books memory of the store's budget for what its user keeps beside the states, such as records
    /// that wait for a read; `what` names it in the error.
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
        let carried = checkpoints.base().into_iter().flat_map(|base| &base.states);
        let carried = carried.filter(|state| state.image.entries > 0 && !is_open(&state.name));
        let carried = carried.map(|state| state.name.clone());
        let sources = self.0.sources.as_ref().map(Sources::unopened).unwrap_or_default();
        carried.chain(sources).collect()
    }

    /// The memory this store may hold, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.0.config.memory.0
    }

    /// Whether states of this store can be on storage.
    pub fn has_storage(&self) -> bool {
        self.0.segments.is_some()
    }

    /// Counters and gauges, of the store and of each open state. Cost: a pass over the states and
    /// their segments; none while nobody asks.
    ///
    /// # Errors
    /// [`ErrorKind::InUse`] if a value is borrowed or a closure is running.
    pub fn stats(&self) -> Result<StoreStats> {
        let open = self.0.states.borrow();
        let states = open.iter().map(OpenState::stats).collect::<Result<_>>()?;
        let io = self.0.segments.as_ref().map(|s| s.device().stats()).unwrap_or_default();
        let compaction_errors = open
            .iter()
            .filter_map(|state| {
                Some((state.manifest.name.clone(), state.hooks.compaction_error()?))
            })
            .collect();
        Ok(StoreStats { memory: self.0.root.stats(), io, states, compaction_errors })
    }

    /// The I/O engine in use, and why it is not the one asked for.
    pub fn engine(&self) -> (&'static str, Option<String>) {
        match &self.0.segments {
            Some(segments) => (segments.device().engine(), segments.device().fallback_reason()),
            None => ("none", None),
        }
    }

    /// Files that a crash had left over and that opening removed.
    pub fn leftovers(&self) -> u64 {
        self.0.leftovers
    }
}

impl Inner {
    /// The device of a store with a directory.
    pub(crate) fn device(&self) -> &dyn Device {
        self.segments.as_ref().expect("asked where there is a directory").device()
    }

    /// A wait for the device that begins now.
    pub(crate) fn patience(&self) -> Patience {
        Patience::new(Duration::from_millis(self.config.patience_ms), self.device())
    }

    /// Does the work of a helper without threads, and of a device that has to be driven.
    pub(crate) fn drive(&self) {
        self.helper.drive();
        self.segments.iter().for_each(|segments| segments.device().drive());
    }

    fn context(&self, name: &str, limit: Option<u64>) -> Result<StateContext> {
        if name.is_empty() || name.len() > 200 {
            let message = format!("\"{name}\" cannot name a state; 1 to 200 bytes can");
            return Err(Error::new(ErrorKind::Config, message));
        }
        if self.states.borrow().iter().any(|state| state.manifest.name == name) {
            let message = "the state is open already";
            return Err(Error::new(ErrorKind::InUse, message).with("state", name));
        }
        Ok(StateContext {
            name: name.into(),
            account: Account::below(&self.root, name, limit.unwrap_or(u64::MAX)),
            segments: self.segments.clone(),
            helper: self.helper.clone(),
            max_value_bytes: self.config.max_value_bytes(),
            key_groups: self.config.key_groups,
            owned: self.owned.clone(),
            movable: false,
            restored: None,
        })
    }

    /// Adds what the last checkpoint says of the state, which must be of the same types.
    fn with_restored(
        &self,
        mut context: StateContext,
        asked: &StateManifest,
    ) -> Result<StateContext> {
        let checkpoints = self.checkpoints.borrow();
        let find = |base: &Arc<CheckpointImage>| {
            base.states.iter().find(|state| state.name == asked.name).cloned()
        };
        let own = checkpoints.base().map(find);
        let other = || self.sources.as_ref().and_then(|sources| sources.state(&asked.name));
        let is_own = own.is_some();
        let Some(stored) = own.unwrap_or_else(other) else { return Ok(context) };
        for (what, stored, asked) in [
            ("primitive", &stored.primitive, &asked.primitive),
            ("key type", &stored.key, &asked.key),
            ("value type", &stored.value, &asked.value),
        ] {
            if stored != asked {
                let message = format!("the stored {what} is {stored}, asked for is {asked}");
                return Err(Error::new(ErrorKind::Mismatch, message).with("state", &context.name));
            }
        }
        if !is_own {
            return Ok(context);
        }
        // Other primitives' layouts read each other's records.
        if matches!(&*asked.primitive, "list" | "lists") && stored.layout != asked.layout {
            let (stored, asked) = (&stored.layout, &asked.layout);
            let message = format!("the stored layout is {stored}, asked for is {asked}");
            return Err(Error::new(ErrorKind::Mismatch, message).with("state", &context.name));
        }
        let device = context.segment_store()?.shared_device();
        context.restored = Some((stored.image.clone(), BlobReader::new(device)));
        let stock = self.stock_of(&stored);
        if !context.movable && stock != Stock::of(self.owned.clone().into()) {
            let (has, Range { start, end }) = (stock.here, &self.owned);
            let message = format!(
                "the checkpoint has key groups {has} of the state, not {start}..{end}, as they have \
                 moved: open it to move again, or make a new store of the checkpoints of those that \
                 have the groups"
            );
            return Err(Error::new(ErrorKind::Mismatch, message).with("state", &context.name));
        }
        Ok(context)
    }

    /// The key groups that a checkpoint of this store has of a state.
    fn stock_of(&self, stored: &StateManifest) -> Stock {
        match &stored.groups {
            Some(here) => Stock { here: here.clone(), going: stored.going.clone() },
            None => Stock::of(self.owned.clone().into()),
        }
    }

    /// Has a state that is being opened move with the others of `mover`, if there is one.
    fn groups_in(&self, mover: Option<&Mover>, name: &str) -> Result<Option<Rc<Groups>>> {
        let Some(mover) = mover else { return Ok(None) };
        let checkpoints = self.checkpoints.borrow();
        let mut states = checkpoints.base().into_iter().flat_map(|base| &base.states);
        let restored = states.find(|state| state.name == name).map(|state| self.stock_of(state));
        let groups = mover.groups_for(&self.root, restored);
        groups.map(Some).map_err(|error| error.with("state", name))
    }

    fn register(&self, manifest: StateManifest, account: Rc<Account>, hooks: Rc<dyn Hooks>) {
        self.register_in(None, manifest, account, hooks);
    }

    /// The same of a state whose key groups may move.
    fn register_in(
        &self,
        groups: Option<Rc<Groups>>,
        manifest: StateManifest,
        account: Rc<Account>,
        hooks: Rc<dyn Hooks>,
    ) {
        self.elastic.0.borrow_mut().push(Rc::downgrade(&hooks));
        self.states.borrow_mut().push(OpenState { manifest, account, hooks, groups });
    }
}

/// What a checkpoint will say of a state.
fn manifest(
    name: &str,
    primitive: &str,
    layout: &str,
    (key, value): (String, String),
) -> StateManifest {
    let (name, primitive, layout) = (name.into(), primitive.into(), layout.into());
    let (groups, going, image) = Default::default();
    StateManifest { name, primitive, layout, key, value, groups, going, image }
}

/// The error of a layout that does not say how its entries become bytes.
pub(crate) fn not_encoded(what: &str) -> Error {
    let message = format!("state of a layout without a codec cannot be {what}");
    Error::new(ErrorKind::Unsupported, message)
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let states: Vec<_> =
            self.0.states.borrow().iter().map(|state| state.manifest.name.clone()).collect();
        f.debug_struct("Store").field("states", &states).field("memory", &self.0.root).finish()
    }
}

/// Opens one state of a store; made by [`Store::map`], [`Store::count`],
/// [`Store::list`] and [`Store::value`].
#[derive(Debug)]
pub struct StateBuilder<'a, P, L = AnyLayout> {
    store: &'a Store,
    name: String,
    layout: L,
    mover: Option<Mover>,
    primitive: PhantomData<P>,
}

/// The primitive of a [`Map`].
#[derive(Debug)]
pub struct MapOf<K, V>(PhantomData<(K, V)>);
/// The primitive of a [`Count`].
#[derive(Debug)]
pub struct CountOf<K>(PhantomData<K>);
/// The primitive of a [`List`].
#[derive(Debug)]
pub struct ListOf<K, E>(PhantomData<(K, E)>);
/// The primitive of a [`Value`].
#[derive(Debug)]
pub struct ValueOf<V>(PhantomData<V>);

impl<'a, P> StateBuilder<'a, P> {
    fn new(store: &'a Store, name: &str) -> Self {
        let config = &store.0.config;
        let layout = config.states.get(name).unwrap_or(&config.layout).clone();
        Self { store, name: name.into(), layout, mover: None, primitive: PhantomData }
    }
}

impl<'a, P, L> StateBuilder<'a, P, L> {
    /// Keeps the state in this layout, whatever the configuration says. Default: the one the
    /// configuration gives for the state's name, else for the store.
    #[must_use]
    pub fn layout<M>(self, layout: M) -> StateBuilder<'a, P, M> {
        let Self { store, name, mover, primitive, .. } = self;
        StateBuilder { store, name, layout, mover, primitive }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn store(&self) -> &'a Store {
        self.store
    }

    pub(crate) fn chosen_layout(&self) -> &L {
        &self.layout
    }

    pub(crate) fn mover(&self) -> Option<&Mover> {
        self.mover.as_ref()
    }

    fn open_map<K: Key, V: 'static>(self, primitive: &str) -> Result<Map<K, V, L>>
    where
        L: Layout<K, V>,
    {
        self.open_map_with(primitive, || Ok(None))
    }

    /// Opens a map, whose entries expire as `expiry` says, which is asked when the table is open.
    fn open_map_with<K: Key, V: 'static>(
        self,
        primitive: &str,
        expiry: impl FnOnce() -> Result<Option<Expiry<V>>>,
    ) -> Result<Map<K, V, L>>
    where
        L: Layout<K, V>,
    {
        let inner = &self.store.0;
        let mut context = inner.context(&self.name, self.layout.memory_limit())?;
        context.movable = self.mover.is_some();
        let types = (description_of::<K>(), self.layout.value_description());
        let manifest = manifest(&self.name, primitive, self.layout.name(), types);
        let context = inner.with_restored(context, &manifest)?;
        let account = context.account.clone();
        let groups = inner.groups_in(self.mover.as_ref(), &self.name)?;
        let mut own = context.clone();
        if groups.is_some() {
            own.owned = 0..context.key_groups;
        }
        let mut table = {
            let restored = context.restored.is_some();
            trace_span!(INFO, "open", state = self.name.as_str(), restored = restored);
            self.layout.open(own).map_err(|e| e.with("state", &self.name))?
        };
        let expiry = expiry()?;
        if let Some(expiry) = &expiry {
            table.stamp_with(expiry.touched, expiry.lifetime.moment().now);
        }
        let sweeping = expiry.map(|expiry| Sweeping::new(expiry.lifetime, expiry.touched));
        let codec = self.layout.codec();
        if groups.is_some() && (codec.is_none() || !table.has_order()) {
            let layout = self.layout.name();
            let message = format!("in the layout {layout} as it is, key groups cannot move");
            return Err(Error::new(ErrorKind::Unsupported, message).with("state", &self.name));
        }
        inner.take_parts(&context, &manifest, batch_bytes::<K, V>(), |part| {
            let Some(codec) = codec else { return Err(not_encoded("restored by key groups")) };
            part.read(|part| {
                table.expect(table.len() + part.entries_likely());
                put_records(part, &codec, &mut table)
            })
        })?;
        let cell = StateCell::new(&self.name, table, codec, inner.lock.clone());
        let policy = SpacePolicy::with_limit(inner.config.space_amplification)?;
        let cell = cell.compacting(policy).sweeping(sweeping).in_groups(groups.clone());
        let cell = Rc::new(cell);
        if let Some(mover) = &self.mover {
            mover.add(&manifest, cell.clone());
        }
        inner.register_in(groups, manifest, account, cell.clone());
        Ok(Map::new(cell))
    }
}

impl<K, V, L> StateBuilder<'_, MapOf<K, V>, L> {
    /// Lets key groups of the map come and go with the other states of this unit. Each write takes its
    /// key's hash once more, to see whether its group is here. The layout must keep an order:
    /// [`AnyLayout`], [`HybridLog`](crate::HybridLog), [`SplitHeap`](crate::SplitHeap).
    #[must_use]
    pub fn moved_by(self, mover: &Mover) -> Self {
        Self { mover: Some(mover.clone()), ..self }
    }
}

impl<K, V, L> StateBuilder<'_, MapOf<K, V>, L> {
    pub(crate) fn maybe_moved_by(self, mover: Option<&Mover>) -> Self {
        Self { mover: mover.cloned(), ..self }
    }
}

impl<K, L> StateBuilder<'_, CountOf<K>, L> {
    /// As for a map.
    #[must_use]
    pub fn moved_by(self, mover: &Mover) -> Self {
        Self { mover: Some(mover.clone()), ..self }
    }
}

impl<K, E, A, L> StateBuilder<'_, AggregatedOf<K, E, A>, L> {
    /// As for a map. A key group moves at one watermark: both stores have advanced to it, and are done.
    /// Until the other store has the group neither goes on to a later one. Running totals and stacks are
    /// made anew by the first window that fires after a move.
    #[must_use]
    pub fn moved_by(self, mover: &Mover) -> Self {
        Self { mover: Some(mover.clone()), ..self }
    }
}

impl<K: Key, V: 'static, L: Layout<K, V>> StateBuilder<'_, MapOf<K, V>, L> {
    /// Opens the map, restoring it from the last checkpoint.
    ///
    /// # Errors
    /// [`ErrorKind::InUse`] if the name is open, [`ErrorKind::Mismatch`] if the stored types are
    /// others, [`ErrorKind::Config`] and [`ErrorKind::OverBudget`] if the layout cannot work in
    /// the budget (the message names what it needs), [`ErrorKind::Corrupt`] for damaged segments.
    pub fn open(self) -> Result<Map<K, V, L>> {
        self.open_map("map")
    }
}

impl<K: Key, L: Layout<K, i64>> StateBuilder<'_, CountOf<K>, L> {
    /// Opens the counters; errors as for a map.
    pub fn open(self) -> Result<Count<K, L>> {
        self.open_map("count").map(Count)
    }
}

impl<K: Key, E: State, L: ListsLayout<K, E>> StateBuilder<'_, ListOf<K, E>, L> {
    /// Opens the lists, restoring them from the last checkpoint.
    ///
    /// # Errors
    /// As for a map; [`ErrorKind::Mismatch`] also if another layout has stored them.
    pub fn open(self) -> Result<List<K, E, L>> {
        self.store.open_lists_as("list", &self.name, &self.layout, None).map(List::new)
    }
}

impl<V: State, L: Layout<(), V>> StateBuilder<'_, ValueOf<V>, L> {
    /// Opens the value; errors as for a map.
    pub fn open(self) -> Result<Value<V, L>> {
        self.open_map("value").map(Value)
    }
}
