//! The states of a store by name: which primitive, in which layout, moved with which others.

use std::marker::PhantomData;
use std::rc::Rc;

use alluvium_compaction::SpacePolicy;
use alluvium_layouts::{Layout, ListsLayout, Table, trace_span};
use alluvium_pagestore::{Key, Result, State, Time, description_of};

use super::Store;
use super::expiring::Expiry;
use super::opening::{manifest, not_encoded};
use super::parts::cannot_move;
use super::taking::put_records;
use crate::aggregate::Aggregate;
use crate::any_layout::AnyLayout;
use crate::batch::Batch;
use crate::count::Count;
use crate::expiring::Sweeping;
use crate::list::List;
use crate::map::Map;
use crate::moving::Mover;
use crate::own_keys::{OwnKeys, RowKeys};
use crate::state_cell::StateCell;
use crate::time_map::TimeMapOf;
use crate::timers::{Timers, TimersCell};
use crate::value::Value;
use crate::windows::{AggregatedOf, HolisticOf};

impl Store {
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

    /// [`timers`](Store::timers) of [own keys only](StateBuilder::own_keys_only).
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
        if let Some(left) = self.0.left::<TimersCell<K, N>>(&manifest, mover)? {
            return Ok(Timers::new(left));
        }
        let mut context = self.0.context(name, None)?;
        context.movable = mover.is_some();
        let context = self.0.with_restored(context, &manifest)?;
        let groups = self.0.groups_in(mover, name)?;
        let account = context.account.clone();
        let opened = TimersCell::open(context.clone(), groups.clone());
        let cell = self.0.opened(opened, name)?;
        self.0.take_parts(&context, &manifest, 0, &mut |part| part.read(|part| cell.take(part)))?;
        if let Some(mover) = mover {
            mover.add(&manifest, cell.clone());
        }
        Ok(Timers::new(self.0.register(groups, manifest, account, cell)))
    }
}

/// Opens one state of a store; made by [`Store::map`], [`Store::count`],
/// [`Store::list`] and [`Store::value`].
#[derive(Debug)]
pub struct StateBuilder<'a, P, L = AnyLayout> {
    store: &'a Store,
    name: String,
    layout: L,
    pub(super) mover: Option<Mover>,
    /// Whether keys of other stores are refused.
    keeps_to_own: bool,
    /// Keys of other rows than these are.
    rows: Option<RowKeys>,
    definition: Option<String>,
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
    pub(super) fn new(store: &'a Store, name: &str) -> Self {
        let config = &store.0.config;
        let layout = config.states.get(name).unwrap_or(&config.layout).clone();
        Self {
            store,
            name: name.into(),
            layout,
            mover: None,
            keeps_to_own: false,
            rows: None,
            definition: None,
            primitive: PhantomData,
        }
    }
}

impl<'a, P, L> StateBuilder<'a, P, L> {
    /// Keeps the state in this layout, whatever the configuration says. Default: the one the
    /// configuration gives for the state's name, else for the store.
    #[must_use]
    pub fn layout<M>(self, layout: M) -> StateBuilder<'a, P, M> {
        let Self { store, name, mover, keeps_to_own, rows, definition, primitive, .. } = self;
        StateBuilder { store, name, layout, mover, keeps_to_own, rows, definition, primitive }
    }

    /// Refuses to write keys whose key groups are not among those that the store
    /// [owns](crate::StoreBuilder::owned_groups), with [`ErrorKind::Mismatch`](crate::ErrorKind::Mismatch):
    /// no store that is [restored by key groups](crate::StoreBuilder::restore_from) could take them over.
    /// Each write takes its key's hash once more. Keys of a state whose groups move are always told
    /// apart; a single value has none.
    #[must_use]
    pub fn own_keys_only(self) -> Self {
        Self { keeps_to_own: true, ..self }
    }

    /// Refuses to write keys that are none of the rows at hand, while an operator's closure is called with
    /// them, with [`ErrorKind::Mismatch`](crate::ErrorKind::Mismatch). For whoever calls closures of a
    /// user's by row. Each write takes its key's hash once more; a single value has none. Windows look at the
    /// keys of events that are added.
    #[must_use]
    pub fn keys_of(self, rows: &RowKeys) -> Self {
        Self { rows: Some(rows.clone()), ..self }
    }

    /// The keys that it takes, if these are not all.
    pub(crate) fn own_keys(&self) -> Option<OwnKeys> {
        let own = if self.keeps_to_own { self.store.own_keys() } else { OwnKeys::default() };
        OwnKeys { rows: self.rows.clone(), ..own }.if_any()
    }

    /// Has its key groups come and go with the other states of this unit.
    pub(super) fn in_unit_of(self, mover: &Mover) -> Self {
        Self { mover: Some(mover.clone()), ..self }
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

    pub(crate) fn definition(&self) -> Option<&str> {
        self.definition.as_deref()
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
    pub(super) fn open_map_with<K: Key, V: 'static>(
        self,
        primitive: &str,
        expiry: impl FnOnce() -> Result<Option<Expiry<V>>>,
    ) -> Result<Map<K, V, L>>
    where
        L: Layout<K, V>,
    {
        let inner = &self.store.0;
        let own_keys = self.own_keys().filter(|_| !primitive.starts_with("value"));
        let types = (description_of::<K>(), self.layout.value_description());
        let manifest = manifest(&self.name, primitive, self.layout.name(), types);
        if let Some(left) =
            inner.left::<StateCell<K, V, L::Table>>(&manifest, self.mover.as_ref())?
        {
            expiry()?;
            return Ok(Map::new(left.keeping_to(own_keys)));
        }
        let mut context = inner.context(&self.name, self.layout.memory_limit())?;
        context.movable = self.mover.is_some();
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
            inner.opened(self.layout.open(own), &self.name)?
        };
        let expiry = expiry()?;
        if let Some(expiry) = &expiry {
            table.stamp_with(expiry.touched, expiry.lifetime.known().now);
        }
        let sweeping =
            expiry.map(|expiry| Sweeping::new(expiry.lifetime.cell().clone(), expiry.touched));
        let codec = self.layout.codec();
        if groups.is_some() && (codec.is_none() || table.by_hash().is_none()) {
            return Err(cannot_move(self.layout.name(), &self.name));
        }
        inner.take_parts(&context, &manifest, Batch::<(K, V)>::memory_bytes(), &mut |part| {
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
        let held = inner.register(groups, manifest, account, cell);
        Ok(Map::new(held.keeping_to(own_keys)))
    }
}

impl<K, V, L> StateBuilder<'_, MapOf<K, V>, L> {
    /// Lets key groups of the map come and go with the other states of this unit. Each write takes its
    /// key's hash once more, to see whether its group is here. The layout must keep an order:
    /// [`AnyLayout`], [`HybridLog`](crate::HybridLog), [`Heap`](crate::Heap).
    #[must_use]
    pub fn moved_by(self, mover: &Mover) -> Self {
        self.in_unit_of(mover)
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
    /// Says what the answers depend on beside types and width, such as the bounds of a join: what is
    /// purged by one pair of bounds is missing by another. It is part of checkpoints; a map that was
    /// stored with another definition is refused, naming both. Default: none, which is not checked.
    #[must_use]
    pub fn defined_as(self, definition: impl Into<String>) -> Self {
        Self { definition: Some(definition.into()), ..self }
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
        let mover = self.mover.as_ref();
        let cell = self.store.open_lists_as(("list", None), &self.name, &self.layout, mover)?;
        Ok(List::new(cell.keeping_to(self.own_keys())))
    }
}

impl<V: State, L: Layout<(), V>> StateBuilder<'_, ValueOf<V>, L> {
    /// Opens the value; errors as for a map.
    pub fn open(self) -> Result<Value<V, L>> {
        self.open_map("value").map(Value)
    }
}
