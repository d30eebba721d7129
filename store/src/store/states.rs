//! The states of a store by name: which primitive, in which layout, moved with which others.

use std::marker::PhantomData;

use alluvium_layouts::{Layout, ListsLayout, OutOfLine, Touched, trace_span};
use alluvium_pagestore::{Key, Result, State, Time, description_of};

use super::Store;
use super::being_opened::{CellParts, OpenLifetime, OpenedCell, RequestedState};
use super::opening::manifest;
use super::stored_timers::STORED_TIMERS;
use crate::api::aggregate::Aggregate;
use crate::api::count::Count;
use crate::api::list::List;
use crate::api::map::Map;
use crate::api::own_keys::{OwnKeys, RowKeys};
use crate::api::time_map::TimeMapOf;
use crate::api::timers::{TimerTable, Timers, TimersCell};
use crate::api::value::Value;
use crate::api::windows::{AggregatedOf, HolisticOf};
use crate::backend::any_layout::AnyLayout;
use crate::cells::WaysOfMap;
use crate::cells::state_cell::{ContentsKind, StateCell};
use crate::durability::moving::Mover;

impl Store {
    /// Returns a builder for the map `name`.
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

    /// Returns a builder for the keyed counters `name`.
    pub fn count<K: Key>(&self, name: &str) -> StateBuilder<'_, CountOf<K>> {
        StateBuilder::new(self, name)
    }

    /// Returns a builder for the single value `name`. Its key is `()`: a restore by key groups takes
    /// it to the store that owns that key's group.
    pub fn value<V: State>(&self, name: &str) -> StateBuilder<'_, ValueOf<V>> {
        StateBuilder::new(self, name)
    }

    /// Returns a builder for the windows `name`, folded by an aggregate.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use alluvium::{Counting, SECOND, Store, Time, Windows};
    /// let store = Store::in_memory().open()?;
    /// let windows = Windows::sliding(Duration::from_secs(10), Duration::from_secs(2));
    /// let mut counts = store.aggregated("counts").open(windows, Counting)?;
    /// let mut batch = vec![("a".to_string(), Time(SECOND), ()), ("a".to_string(), Time(3 * SECOND), ())];
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

    /// Returns a builder for the windows `name`, which keep their events for a function of all of
    /// them.
    pub fn holistic<K: Key + Ord, E: State>(
        &self,
        name: &str,
    ) -> StateBuilder<'_, HolisticOf<K, E>> {
        StateBuilder::new(self, name)
    }

    /// Returns a builder for the lists `name`.
    pub fn list<K: Key, E: State>(&self, name: &str) -> StateBuilder<'_, ListOf<K, E>> {
        StateBuilder::new(self, name)
    }

    /// Returns a builder for the time-ordered map `name`.
    pub fn time_map<K: Key, V: State>(&self, name: &str) -> StateBuilder<'_, TimeMapOf<K, V>> {
        StateBuilder::new(self, name)
    }

    /// Opens the timers `name`.
    pub fn timers<K: Key + Ord>(&self, name: &str) -> Result<Timers<K>> {
        self.timers_in(name)
    }

    /// Opens the timers `name`, each of a key and a namespace.
    pub fn timers_in<K: Key + Ord, N: State + Ord>(&self, name: &str) -> Result<Timers<K, N>> {
        self.open_timers(name, None)
    }

    /// Opens [`timers_in`](Store::timers_in) whose key groups move with the other states of a unit.
    /// Timers of a group that is incomplete here, or is being given away, are not due. They are
    /// ordered by time, then by key group, then by key. Each group with timers takes at least one
    /// block of 64.
    pub fn timers_moved_by<K: Key + Ord, N: State + Ord>(
        &self,
        mover: &Mover,
        name: &str,
    ) -> Result<Timers<K, N>> {
        self.open_timers(name, Some(mover))
    }

    /// Opens [`timers`](Store::timers) of [own keys only](StateBuilder::own_keys_only).
    pub fn timers_of_own_keys<K: Key + Ord>(&self, name: &str) -> Result<Timers<K>> {
        Ok(self.timers(name)?.keeping_to(self.own_keys().if_any()))
    }

    /// The keys of the key groups that the store owns; none if it owns all.
    fn own_keys(&self) -> OwnKeys {
        let (owned, groups) = (self.0.owned.clone(), self.0.config.key_groups);
        OwnKeys { groups: (owned != (0..groups)).then_some((owned, groups)), rows: None }
    }

    pub(crate) fn open_timers<K: Key + Ord, N: State + Ord>(
        &self,
        name: &str,
        mover: Option<&Mover>,
    ) -> Result<Timers<K, N>> {
        let types = (description_of::<(Time, K)>(), description_of::<N>());
        let manifest = manifest(name, "timers", "timers", types);
        let open_lifetime: OpenLifetime<'_> = &mut || Ok(None);
        let mut asked = RequestedState {
            manifest,
            kind: ContentsKind::Timers,
            limit: None,
            mover,
            open_lifetime,
        };
        let cell = self.0.open_cell(&mut asked, &mut |CellParts { context, core, lock }| {
            let table = TimerTable::open(context, core.shared_groups())?;
            Ok(OpenedCell::new(TimersCell::<K, N>::new(core, table, (), lock)))
        });
        Ok(Timers::new(cell?))
    }
}

/// Options of one state. [`Store::map`], [`Store::count`], [`Store::list`] and the like make one;
/// `open` returns the handle.
///
/// ```
/// use alluvium::{HybridLog, MIB, Store};
///
/// let store = Store::in_memory().memory(64 * MIB).open()?;
/// let mut bids = store.map::<u64, i64>("bids").layout(HybridLog::new().memory(8 * MIB)).open()?;
/// bids.put(7, 30)?;
/// # Ok::<(), alluvium::Error>(())
/// ```
#[derive(Debug)]
pub struct StateBuilder<'a, P, L = AnyLayout> {
    wishes: OutOfLine<StateOptions<'a>>,
    layout: L,
    primitive: PhantomData<P>,
}

/// What is asked of a state, but for its types and layout.
#[derive(Debug)]
struct StateOptions<'a> {
    store: &'a Store,
    name: String,
    mover: Option<Mover>,
    /// Whether keys of other stores are refused.
    keeps_to_own: bool,
    /// Keys of other rows than these are.
    rows: Option<RowKeys>,
    definition: Option<String>,
}

impl<'a> StateOptions<'a> {
    fn new(store: &'a Store, name: &str) -> Self {
        let (name, mover, rows, definition) = (name.into(), None, None, None);
        Self { store, name, mover, keeps_to_own: false, rows, definition }
    }

    /// The layout that the configuration gives for the state's name, else for the store.
    fn configured_layout(&self) -> AnyLayout {
        let config = &self.store.0.config;
        config.states.get(&self.name).unwrap_or(&config.layout).clone()
    }

    /// The keys that it takes, if these are not all.
    fn own_keys(&self) -> Option<OwnKeys> {
        let own = if self.keeps_to_own { self.store.own_keys() } else { OwnKeys::default() };
        OwnKeys { rows: self.rows.clone(), ..own }.if_any()
    }

    /// The keys that a map takes, if these are not all: a single value has none, and the keys of timers are looked
    /// at by their handle.
    fn own_keys_of(&self, primitive: &str) -> Option<OwnKeys> {
        let is_apart = primitive.starts_with("value") || primitive == STORED_TIMERS;
        if is_apart { None } else { self.own_keys() }
    }
}

/// Type parameter of a [`StateBuilder`] for a [`Map`].
#[derive(Debug)]
pub struct MapOf<K, V>(PhantomData<(K, V)>);
/// Type parameter of a [`StateBuilder`] for a [`Count`].
#[derive(Debug)]
pub struct CountOf<K>(PhantomData<K>);
/// Type parameter of a [`StateBuilder`] for a [`List`].
#[derive(Debug)]
pub struct ListOf<K, E>(PhantomData<(K, E)>);
/// Type parameter of a [`StateBuilder`] for a [`Value`].
#[derive(Debug)]
pub struct ValueOf<V>(PhantomData<V>);

impl<'a, P> StateBuilder<'a, P> {
    pub(super) fn new(store: &'a Store, name: &str) -> Self {
        let wishes = OutOfLine::new(StateOptions::new(store, name));
        Self { layout: wishes.configured_layout(), wishes, primitive: PhantomData }
    }
}

impl<'a, P, L> StateBuilder<'a, P, L> {
    /// Sets the layout, whatever the configuration says. Default: the configured layout of the
    /// state's name, else of the store.
    #[must_use]
    pub fn layout<M>(self, layout: M) -> StateBuilder<'a, P, M> {
        let Self { wishes, primitive, .. } = self;
        StateBuilder { wishes, layout, primitive }
    }

    /// Replaces the layout by `choose(current)`. At first the current one is the configuration's.
    #[must_use]
    pub fn layout_from<M>(self, choose: impl FnOnce(L) -> M) -> StateBuilder<'a, P, M> {
        let Self { wishes, layout, primitive } = self;
        StateBuilder { wishes, layout: choose(layout), primitive }
    }

    /// Refuses writes of keys outside the key groups that the store
    /// [owns](crate::StoreBuilder::owned_groups), with
    /// [`ErrorKind::Mismatch`](crate::ErrorKind::Mismatch): no store [restored by key
    /// groups](crate::StoreBuilder::restore_from) could take them over. Each write hashes its key
    /// once more. States whose groups move always check this. A single value has no keys.
    #[must_use]
    pub fn own_keys_only(self) -> Self {
        self.wish(|wishes| wishes.keeps_to_own = true)
    }

    /// Refuses writes of keys that are not among the rows at hand, with
    /// [`ErrorKind::Mismatch`](crate::ErrorKind::Mismatch), while an operator's closure runs. For
    /// code that calls a user's closures by row. Each write hashes its key once more. Windows check
    /// the keys of added events. A single value has no keys.
    #[must_use]
    pub fn keys_of(self, rows: &RowKeys) -> Self {
        self.wish(|wishes| wishes.rows = Some(rows.clone()))
    }

    /// The same with another wish.
    fn wish(mut self, wish: impl FnOnce(&mut StateOptions<'a>)) -> Self {
        wish(&mut self.wishes);
        self
    }

    /// The keys that it takes, if these are not all.
    pub(crate) fn own_keys(&self) -> Option<OwnKeys> {
        self.wishes.own_keys()
    }

    /// Has its key groups come and go with the other states of this unit.
    pub(super) fn in_unit_of(self, mover: &Mover) -> Self {
        self.wish(|wishes| wishes.mover = Some(mover.clone()))
    }

    pub(crate) fn name(&self) -> &str {
        &self.wishes.name
    }

    pub(crate) fn store(&self) -> &'a Store {
        self.wishes.store
    }

    pub(crate) fn chosen_layout(&self) -> &L {
        &self.layout
    }

    pub(crate) fn definition(&self) -> Option<&str> {
        self.wishes.definition.as_deref()
    }

    pub(crate) fn mover(&self) -> Option<&Mover> {
        self.wishes.mover.as_ref()
    }

    fn open_map<K: Key, V: 'static>(self, primitive: &str) -> Result<Map<K, V, L>>
    where
        L: Layout<K, V>,
    {
        self.open_map_with(primitive, None, &mut || Ok(None))
    }

    /// Opens a map. If its entries expire, `touched` says when a value was touched last, and
    /// `open_lifetime`, which is called when the table is open, opens their time.
    pub(super) fn open_map_with<K: Key, V: 'static>(
        self,
        primitive: &str,
        touched: Option<Touched<V>>,
        open_lifetime: OpenLifetime<'_>,
    ) -> Result<Map<K, V, L>>
    where
        L: Layout<K, V>,
    {
        let types = (description_of::<K>(), self.layout.value_description());
        let ways = WaysOfMap { codec: self.layout.codec(), touched };
        let mut make = |CellParts { context, core, lock }: CellParts| {
            let restored = context.restored.is_some();
            trace_span!(INFO, "open", state = core.name(), restored = restored);
            let table = self.layout.open(context)?;
            Ok(OpenedCell::new(StateCell::new(core, table, ways, lock)))
        };
        let manifest = manifest(self.name(), primitive, self.layout.name(), types);
        let (kind, limit) = (ContentsKind::Map, self.layout.memory_limit());
        let mut asked =
            RequestedState { manifest, kind, limit, mover: self.mover(), open_lifetime };
        let cell = self.store().0.open_cell(&mut asked, &mut make)?;
        Ok(Map::new(cell.keeping_to(self.wishes.own_keys_of(primitive)).watching()))
    }
}

impl<K, V, L> StateBuilder<'_, MapOf<K, V>, L> {
    /// Opens the map in the mover's unit: its key groups move with the unit's other states. Each write takes its
    /// key's hash once more, to see whether its group is here. The layout must keep an order:
    /// [`AnyLayout`], [`HybridLog`](crate::HybridLog), [`Heap`](crate::Heap).
    #[must_use]
    pub fn moved_by(self, mover: &Mover) -> Self {
        self.in_unit_of(mover)
    }
}

impl<K, V, L> StateBuilder<'_, MapOf<K, V>, L> {
    pub(crate) fn maybe_moved_by(self, mover: Option<&Mover>) -> Self {
        self.wish(|wishes| wishes.mover = mover.cloned())
    }
}

impl<K, L> StateBuilder<'_, CountOf<K>, L> {
    /// As for a map.
    #[must_use]
    pub fn moved_by(self, mover: &Mover) -> Self {
        self.in_unit_of(mover)
    }
}

impl<K, E, L> StateBuilder<'_, ListOf<K, E>, L> {
    /// As for a map. A list that is longer than a chunk moves in several. The layouts that keep an order are
    /// [`AnyLayout`], [`AppendLog`](crate::AppendLog) and [`Heap`](crate::Heap).
    #[must_use]
    pub fn moved_by(self, mover: &Mover) -> Self {
        self.in_unit_of(mover)
    }
}

impl<K, V, L> StateBuilder<'_, TimeMapOf<K, V>, L> {
    /// Records what the answers depend on beside types and width, such as the bounds of a join:
    /// data that one pair of bounds has purged is missing for another. Checkpoints contain it.
    /// Opening a map that was stored with another definition fails and names both. Default: none,
    /// which is not checked.
    #[must_use]
    pub fn defined_as(self, definition: impl Into<String>) -> Self {
        self.wish(|wishes| wishes.definition = Some(definition.into()))
    }

    /// As for a list. While a key group is on its way nothing is [purged](crate::TimeMap::purge).
    #[must_use]
    pub fn moved_by(self, mover: &Mover) -> Self {
        self.in_unit_of(mover)
    }
}

impl<K, E, L> StateBuilder<'_, HolisticOf<K, E>, L> {
    /// As for windows that fold their events; what moves is the events themselves.
    #[must_use]
    pub fn moved_by(self, mover: &Mover) -> Self {
        self.in_unit_of(mover)
    }
}

impl<K, E, A, L> StateBuilder<'_, AggregatedOf<K, E, A>, L> {
    /// As for a map. A key group moves at one watermark: both stores have advanced to it, and are done.
    /// Until the other store has the group neither goes on to a later one. Running totals and stacks are
    /// made anew by the first window that fires after a move.
    #[must_use]
    pub fn moved_by(self, mover: &Mover) -> Self {
        self.in_unit_of(mover)
    }
}

impl<K: Key, V: 'static, L> StateBuilder<'_, MapOf<K, V>, L> {
    /// Opens the map, restoring it from the last checkpoint, or as its last handle left it if there was one.
    ///
    /// # Errors
    /// [`ErrorKind::InUse`] if the state has a handle, [`ErrorKind::Mismatch`] if the stored types are
    /// others, [`ErrorKind::Config`] and [`ErrorKind::OverBudget`] if the layout cannot work in
    /// the budget (the message names what it needs), [`ErrorKind::Corrupt`] for damaged segments.
    ///
    /// [`ErrorKind::InUse`]: crate::ErrorKind::InUse
    /// [`ErrorKind::Mismatch`]: crate::ErrorKind::Mismatch
    /// [`ErrorKind::Config`]: crate::ErrorKind::Config
    /// [`ErrorKind::OverBudget`]: crate::ErrorKind::OverBudget
    /// [`ErrorKind::Corrupt`]: crate::ErrorKind::Corrupt
    pub fn open(self) -> Result<Map<K, V, L>>
    where
        // Here, and not of the whole: a type that is no state is told in the words of `State` then.
        L: Layout<K, V>,
    {
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
    /// As for a map; [`ErrorKind::Mismatch`](crate::ErrorKind::Mismatch) also if another layout has
    /// stored them.
    pub fn open(self) -> Result<List<K, E, L>> {
        let (store, name, mover) = (self.store(), self.name(), self.mover());
        let cell = store.open_lists_as(("list", None), name, &self.layout, mover)?;
        Ok(List::new(cell.keeping_to(self.own_keys()).watching()))
    }
}

impl<V: State, L: Layout<(), V>> StateBuilder<'_, ValueOf<V>, L> {
    /// Opens the value; errors as for a map.
    pub fn open(self) -> Result<Value<V, L>> {
        self.open_map("value").map(Value)
    }
}
