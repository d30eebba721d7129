//! What one operator says about its state, and how it opens it.

use std::any::Any;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use alluvium::backend::{HolisticLayout, ListsLayout, WindowLayout};
use alluvium::moving::{Mover, RowKeys};
use alluvium::states::{Fetcher, StateBuilder, Timed};
use alluvium::{
    Aggregate, Aggregated, AnyLayout, Count, Error, ErrorKind, ExpiringMap, Holistic, Key, Layout,
    List, Map, Process, Result, State, Store, Time, TimeMap, Timers, Ttl, Value, Windows,
};

use crate::job::worker::{Registered, WorkerState};

/// Names an operator's state and may choose its layout.
///
/// The id is stored. Keep it the same in all versions of a program, and different for each
/// operator. An id is free again when its operator's dataflow has ended or could not be built: the
/// next operator with this id and the same states continues from there.
///
/// ```
/// use alluvium::HybridLog;
/// use alluvium_timely::Spec;
///
/// let spec = Spec::new("sessions") // part of what checkpoints store
///     .layout(HybridLog::new())
///     .parked_max(512); // rows that may wait for reads
/// assert_eq!(spec.id(), "sessions");
/// ```
#[derive(Clone, Debug)]
pub struct Spec<L = AnyLayout> {
    id: String,
    layout: Choice<L>,
    parked_max: Option<usize>,
    any_keys: bool,
}

/// The layout of an operator's states: made of the one that is configured for a state, or one for all.
#[derive(Clone, Copy, Debug)]
enum Choice<L> {
    Configured(fn(AnyLayout) -> L),
    Chosen(L),
}

impl Spec {
    /// Names the state `id`. Its layout comes from the worker's configuration.
    pub fn new(id: impl Into<String>) -> Self {
        let layout = Choice::Configured(|configured| configured);
        Self { id: id.into(), layout, parked_max: None, any_keys: false }
    }
}

impl<L> Spec<L> {
    /// Sets the layout of the operator's states; overrides the worker and the node. It is one of
    /// ours, or any type that implements the traits of [`alluvium::backend`] for the states that the
    /// operator opens. The operator is compiled for this layout alone. To choose among ours at run
    /// time, pass an [`AnyLayout`].
    ///
    /// ```
    /// # use alluvium::{AnyLayout, Heap, HybridLog};
    /// # use alluvium_timely::Spec;
    /// let log = Spec::new("words").layout(HybridLog::new());
    /// let named = Spec::new("words").layout(AnyLayout::named("heap").unwrap());
    /// # let _: (Spec<HybridLog>, Spec) = (log, named);
    /// ```
    #[must_use]
    pub fn layout<M>(self, layout: M) -> Spec<M> {
        let Self { id, parked_max, any_keys, .. } = self;
        Spec { id, layout: Choice::Chosen(layout), parked_max, any_keys }
    }

    /// Sets how many records and timers may wait for reads. More let more reads overlap and cost
    /// memory, which the operator reserves when it is built. At the limit it takes no further
    /// input. With 0 nothing waits: the worker blocks on each read. Default: a 256th of the store's
    /// memory, between 16 and 4096 records.
    #[must_use]
    pub fn parked_max(mut self, records: usize) -> Self {
        self.parked_max = Some(records);
        self
    }

    /// Allows a [`stateful`](crate::Stateful::stateful) operator to write keys that are not the
    /// keys of its rows.
    ///
    /// By default such a write is an error, also with one worker: after a change of the number of
    /// workers, key and rows would be on different workers. With this option, resume with the same
    /// number of workers. Another number is refused if a key lies in a group of another worker.
    /// After a run with one worker it is accepted: all groups were there. The option also saves a
    /// check of some nanoseconds per write.
    #[must_use]
    pub fn any_keys(mut self) -> Self {
        self.any_keys = true;
        self
    }

    /// Returns the operator's id.
    pub fn id(&self) -> &str {
        &self.id
    }
}

/// Opens the states of one operator. Each is named `id/name` in the worker's store.
///
/// Rows wait for reads from storage if the state has the operator's own key type. Calls on states
/// with other key types may block on storage.
///
/// During a call of a closure, states accept only the keys of the rows or timers at hand, and keys
/// that hash like them. After an error they also accept the keys of the failed call until a call
/// succeeds. Another key fails with [`ErrorKind::Mismatch`], unless [`Spec::any_keys`] allows it.
/// For a composite key such as (auction, bidder) by auction, keep a map in the value, or give the
/// key a [`KeyHash`](alluvium::KeyHash) that hashes the auction alone. Keep what all rows share in
/// a [`value`](OperatorState::value). In `open`, keys of this worker's key groups may be written.
///
/// States use the layout `L` of the operator's [`Spec`]; [`layout`](OperatorState::layout) opens
/// some in another one.
pub struct OperatorState<'a, L = AnyLayout> {
    store: &'a Store,
    spec: Spec<L>,
    registered: Rc<Registered>,
    /// The rows at hand, if a user's closures write to the states, whose keys are looked at then.
    rows: Option<RowKeys>,
    /// Moves the operator's key groups.
    mover: Option<Mover>,
    /// `Rc<dyn Fetcher<K>>` of each keyed state.
    fetchers: Rc<RefCell<Vec<Box<dyn Any>>>>,
}

impl<L> std::fmt::Debug for OperatorState<'_, L> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OperatorState").field("id", &self.spec.id).finish_non_exhaustive()
    }
}

impl<'a, L: Clone> OperatorState<'a, L> {
    pub(crate) fn new(worker: &'a WorkerState, spec: Spec<L>) -> Result<Self> {
        let registered = worker.register(&spec.id)?;
        let (store, fetchers) = (worker.store(), Rc::default());
        Ok(Self { store, spec, registered, rows: None, mover: None, fetchers })
    }

    /// The states of an operator that a user's closures write to.
    pub(crate) fn of_closures(worker: &'a WorkerState, spec: Spec<L>) -> Result<Self> {
        let rows = (!spec.any_keys).then(RowKeys::new);
        Ok(Self { rows, ..Self::new(worker, spec)? })
    }

    /// The states of an operator whose key groups move.
    pub(crate) fn moving(worker: &'a WorkerState, spec: Spec<L>) -> Result<Self> {
        let mover = Some(worker.store().mover(&spec.id)?);
        Ok(Self { mover, ..Self::new(worker, spec)? })
    }

    /// The states of an operator whose key groups move, and that a user's closures write to.
    pub(crate) fn moving_of_closures(worker: &'a WorkerState, spec: Spec<L>) -> Result<Self> {
        let rows = (!spec.any_keys).then(RowKeys::new);
        Ok(Self { rows, ..Self::moving(worker, spec)? })
    }

    /// The same states of the operator, opened in another layout.
    #[must_use]
    pub fn layout<M>(&self, layout: M) -> OperatorState<'a, M> {
        OperatorState {
            store: self.store,
            spec: self.spec.clone().layout(layout),
            registered: self.registered.clone(),
            rows: self.rows.clone(),
            mover: self.mover.clone(),
            fetchers: self.fetchers.clone(),
        }
    }

    /// The rows at hand, whose keys may be written; all may if there is none.
    pub(crate) fn rows(&self) -> Option<RowKeys> {
        self.rows.clone()
    }

    /// What keeps the operator's id taken.
    pub(crate) fn registered(&self) -> Rc<Registered> {
        self.registered.clone()
    }

    /// What moves the operator's key groups, if they move.
    pub(crate) fn mover(&self) -> Option<&Mover> {
        self.mover.as_ref()
    }

    /// Refuses a state that cannot move.
    fn stays(&self, what: &str, name: &str) -> Result<()> {
        if self.mover.is_none() {
            return Ok(());
        }
        let message = format!("{what} cannot move between workers; the operator's key groups do");
        Err(Error::new(ErrorKind::Unsupported, message).with("state", self.name_of(name)))
    }

    /// Opens a value per key.
    ///
    /// # Errors
    /// Those of [opening the state](alluvium::states::StateBuilder).
    pub fn map<K: Key, V: State>(&self, name: &str) -> Result<Map<K, V, L>>
    where
        L: Layout<K, V>,
    {
        let mut map = self.placed(self.store.map(&self.name_of(name)));
        if let Some(mover) = &self.mover {
            map = map.moved_by(mover);
        }
        let map = map.open()?;
        self.fetchers.borrow_mut().push(Box::new(map.fetcher()));
        Ok(map)
    }

    /// Opens a value per key that expires. In event time [`advance`](ExpiringMap::advance) it by
    /// [`Context::watermark`](crate::Context::watermark).
    ///
    /// # Errors
    /// Those of [opening the state](alluvium::states::StateBuilder).
    pub fn expiring_map<K: Key, V: State>(
        &self,
        name: &str,
        ttl: Ttl,
    ) -> Result<ExpiringMap<K, V, L>>
    where
        L: Layout<K, Timed<V>>,
    {
        let mut map = self.placed(self.store.expiring_map(&self.name_of(name)));
        if let Some(mover) = &self.mover {
            map = map.moved_by(mover);
        }
        let map = map.open(ttl)?;
        self.fetchers.borrow_mut().push(Box::new(map.fetcher()));
        Ok(map)
    }

    /// Opens a counter per key.
    ///
    /// # Errors
    /// Those of [opening the state](alluvium::states::StateBuilder).
    pub fn count<K: Key>(&self, name: &str) -> Result<Count<K, L>>
    where
        L: Layout<K, i64>,
    {
        let mut count = self.placed(self.store.count(&self.name_of(name)));
        if let Some(mover) = &self.mover {
            count = count.moved_by(mover);
        }
        let count = count.open()?;
        self.fetchers.borrow_mut().push(Box::new(count.fetcher()));
        Ok(count)
    }

    /// Opens one value of this worker. It has no key.
    ///
    /// After a restart with another number of workers, only the worker that owns the key group of
    /// `()` has a value: that of the worker which owned the group before. The others are lost.
    ///
    /// # Errors
    /// Those of [opening the state](alluvium::states::StateBuilder).
    pub fn value<V: State>(&self, name: &str) -> Result<Value<V, L>>
    where
        L: Layout<(), V>,
    {
        self.placed(self.store.value(&self.name_of(name))).open()
    }

    /// Opens windows that fold the rows of a key.
    ///
    /// # Errors
    /// Those of [opening the state](alluvium::states::StateBuilder).
    pub fn aggregated<K: Key + Ord, E: 'static, A: Aggregate<E>>(
        &self,
        name: &str,
        windows: Windows,
        aggregate: A,
    ) -> Result<Aggregated<K, E, A, L>>
    where
        L: WindowLayout<K, A::Acc>,
    {
        self.stays("windows", name)?;
        self.moving_windows(name, windows, aggregate)
    }

    /// The same for an operator of windows, which moves them with the operator's key groups.
    pub(crate) fn moving_windows<K: Key + Ord, E: 'static, A: Aggregate<E>>(
        &self,
        name: &str,
        windows: Windows,
        aggregate: A,
    ) -> Result<Aggregated<K, E, A, L>>
    where
        L: WindowLayout<K, A::Acc>,
    {
        let mut state = self.placed(self.store.aggregated(&self.name_of(name)));
        if let Some(mover) = &self.mover {
            state = state.moved_by(mover);
        }
        state.open(windows, aggregate)
    }

    /// Opens windows that keep the rows of a key for a function of all of them.
    ///
    /// # Errors
    /// Those of [opening the state](alluvium::states::StateBuilder).
    pub fn holistic<K: Key + Ord, E: State, P: Process<K, E>>(
        &self,
        name: &str,
        windows: Windows,
        process: P,
    ) -> Result<Holistic<K, E, P, L>>
    where
        L: HolisticLayout<K, E>,
    {
        self.stays("windows", name)?;
        self.moving_holistic(name, windows, process)
    }

    /// The same for an operator of windows, which moves them with the operator's key groups.
    pub(crate) fn moving_holistic<K: Key + Ord, E: State, P: Process<K, E>>(
        &self,
        name: &str,
        windows: Windows,
        process: P,
    ) -> Result<Holistic<K, E, P, L>>
    where
        L: HolisticLayout<K, E>,
    {
        let mut state = self.placed(self.store.holistic(&self.name_of(name)));
        if let Some(mover) = &self.mover {
            state = state.moved_by(mover);
        }
        state.open(windows, process)
    }

    /// Values by key and time, in slices of `width`. What is purged while a key group moves is
    /// dropped by the first purge after that.
    ///
    /// # Errors
    /// Those of [opening the state](alluvium::states::StateBuilder).
    pub fn time_map<K: Key, V: State>(
        &self,
        name: &str,
        width: Duration,
    ) -> Result<TimeMap<K, V, L>>
    where
        L: ListsLayout<K, (Time, V)>,
    {
        self.rows_by_time(name, width, None)
    }

    /// The same of an operator of this definition.
    pub(crate) fn rows_by_time<K: Key, V: State>(
        &self,
        name: &str,
        width: Duration,
        definition: Option<&str>,
    ) -> Result<TimeMap<K, V, L>>
    where
        L: ListsLayout<K, (Time, V)>,
    {
        let mut map = self.placed(self.store.time_map(&self.name_of(name)));
        if let Some(definition) = definition {
            map = map.defined_as(definition);
        }
        if let Some(mover) = &self.mover {
            map = map.moved_by(mover);
        }
        map.open(width)
    }

    /// Opens a list per key.
    ///
    /// # Errors
    /// Those of [opening the state](alluvium::states::StateBuilder).
    pub fn list<K: Key, E: State>(&self, name: &str) -> Result<List<K, E, L>>
    where
        L: ListsLayout<K, E>,
    {
        let mut list = self.placed(self.store.list(&self.name_of(name)));
        if let Some(mover) = &self.mover {
            list = list.moved_by(mover);
        }
        list.open()
    }

    /// The operator's id.
    pub(crate) fn id(&self) -> &str {
        &self.spec.id
    }

    /// The reads of the states that were opened with keys of this type.
    pub(crate) fn fetchers<K: Key>(&self) -> Vec<Rc<dyn Fetcher<K>>> {
        let fetchers = self.fetchers.borrow();
        fetchers.iter().filter_map(|any| any.downcast_ref().cloned()).collect()
    }

    /// The most records of so many bytes each that may be parked.
    pub(crate) fn parked_max(&self, bytes_each: u64) -> usize {
        let share = self.store.memory_bytes() / 256 / bytes_each.max(1);
        let usual = usize::try_from(share).unwrap_or(usize::MAX).clamp(16, 4096);
        self.spec.parked_max.unwrap_or(usual)
    }

    /// The operator's pending timers.
    pub(crate) fn timers<K: Key + Ord>(&self) -> Result<Timers<K>> {
        let name = self.name_of("timers");
        let timers = match (&self.mover, &self.rows) {
            (Some(mover), _) => self.store.timers_moved_by(mover, &name)?,
            (None, Some(_)) => self.store.timers_of_own_keys(&name)?,
            (None, None) => self.store.timers(&name)?,
        };
        Ok(match &self.rows {
            Some(rows) => timers.keys_of(rows),
            None => timers,
        })
    }

    fn name_of(&self, name: &str) -> String {
        format!("{}/{name}", self.spec.id)
    }

    fn placed<'b, P>(&self, builder: StateBuilder<'b, P>) -> StateBuilder<'b, P, L> {
        let builder = match (&self.rows, &self.mover) {
            (Some(rows), None) => builder.own_keys_only().keys_of(rows),
            // Which groups are the worker's changes, and is looked at by the state itself.
            (Some(rows), Some(_)) => builder.keys_of(rows),
            (None, _) => builder,
        };
        match &self.spec.layout {
            Choice::Chosen(layout) => builder.layout(layout.clone()),
            Choice::Configured(of) => builder.layout_from(of),
        }
    }
}
