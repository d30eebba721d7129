//! A layout chosen at run time, by configuration.

use std::sync::Arc;

use alluvium_layouts::{
    AppendLog, BatchError, ByHash, Cursor, ExpiryPass, Fetch, HasUpkeep, Heap, HeapTable,
    HybridLog, HybridLogTable, Layout, LoadRoom, OutOfLine, Peek, StateContext, Table, Ticket,
    Touched, Upkeep, WindowSegments,
};
use alluvium_pagestore::io::Waker;
use alluvium_pagestore::{EntryCodec, Key, Lookup, Rejected, Result, State, Time, description_of};
use serde::{Deserialize, Serialize};

/// Any of the built-in layouts; the default of every primitive. Which one is told by code or by
/// the store's configuration. A call costs one predictable branch more than on the layout itself.
///
/// ```
/// use alluvium::{AnyLayout, HybridLog, MIB, Store, StoreConfig};
///
/// // By code:
/// let store = Store::in_memory().memory(16 * MIB).open()?;
/// let layout = AnyLayout::from(HybridLog::new().memory(4 * MIB));
/// let mut counts = store.map::<u64, u64>("counts").layout(layout).open()?;
/// counts.put(7, 1)?;
///
/// // By configuration, where code leaves it open:
/// let config: StoreConfig = toml::from_str(r#"
///     memory = "16 MiB"
///     [states.counts]
///     kind = "heap"
/// "#).unwrap();
/// let store = Store::from_config(config).open()?;
/// let counts = store.map::<u64, u64>("counts").open()?;
/// # drop(counts);
/// # Ok::<(), alluvium::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum AnyLayout {
    /// What fits the primitive: a hybrid log for values by key, window segments for aggregated
    /// windows, an append-and-merge log for lists and for windows that keep their events.
    #[default]
    Auto,
    /// Plain heap state.
    Heap(Heap),
    /// The hash-indexed hybrid log: for values by key, and for aggregated windows, to compare. Lists are
    /// kept as by `Auto`.
    HybridLog(HybridLog),
    /// The append-and-merge log, for lists and for windows that keep their events. Other state is
    /// kept as by `Auto`.
    AppendLog(AppendLog),
    /// Window segments, for aggregated windows. Other state is kept as by `Auto`.
    WindowSegments(WindowSegments),
}

impl AnyLayout {
    /// The layout with this name and its default options: `heap`, `hybrid-log`, `append-log`,
    /// `window-segments`, `auto`.
    pub fn named(name: &str) -> Option<AnyLayout> {
        match name {
            "auto" => Some(AnyLayout::Auto),
            "heap" => Some(AnyLayout::Heap(Heap::new())),
            "hybrid-log" => Some(AnyLayout::HybridLog(HybridLog::new())),
            "append-log" => Some(AnyLayout::AppendLog(AppendLog::new())),
            "window-segments" => Some(AnyLayout::WindowSegments(WindowSegments::new())),
            _ => None,
        }
    }

    /// Names that [`named`](AnyLayout::named) knows of layouts for values by key.
    pub const NAMES: [&'static str; 2] = ["heap", "hybrid-log"];
}

macro_rules! from {
    ($($layout:ident)+) => {$(
        impl From<$layout> for AnyLayout {
            fn from(layout: $layout) -> Self {
                AnyLayout::$layout(layout)
            }
        }
    )+};
}

from! { Heap HybridLog AppendLog WindowSegments }

/// An open [`AnyLayout`].
#[derive(Debug)]
// There is one per state; a box would cost the heap layout a load per access.
#[allow(clippy::large_enum_variant)]
pub enum AnyTable<K: Key, V: State> {
    /// On the heap.
    Heap(OutOfLine<HeapTable<K, V>>),
    /// In a hybrid log.
    HybridLog(OutOfLine<Box<HybridLogTable<K, V>>>),
}

macro_rules! each {
    ($self:ident, $table:ident => $call:expr) => {
        match $self {
            AnyTable::Heap($table) => $call,
            AnyTable::HybridLog($table) => $call,
        }
    };
}

impl<K: Key, V: State> Layout<K, V> for AnyLayout {
    type Table = AnyTable<K, V>;

    fn name(&self) -> &'static str {
        match self {
            AnyLayout::Heap(layout) => Layout::<K, V>::name(layout),
            AnyLayout::HybridLog(layout) => Layout::<K, V>::name(layout),
            _ => Layout::<K, V>::name(&HybridLog::new()),
        }
    }

    fn value_description(&self) -> String {
        description_of::<V>()
    }

    fn codec(&self) -> Option<EntryCodec<K, V>> {
        Some(EntryCodec::new())
    }

    fn memory_limit(&self) -> Option<u64> {
        match self {
            AnyLayout::Heap(layout) => Layout::<K, V>::memory_limit(layout),
            AnyLayout::HybridLog(layout) => Layout::<K, V>::memory_limit(layout),
            _ => None,
        }
    }

    fn open(&self, context: StateContext) -> Result<Self::Table> {
        Ok(match self {
            AnyLayout::Heap(layout) => AnyTable::Heap(OutOfLine::new(layout.open(context)?)),
            AnyLayout::HybridLog(layout) => in_a_log(layout, context)?,
            _ => in_a_log(&HybridLog::new(), context)?,
        })
    }
}

fn in_a_log<K: Key, V: State>(layout: &HybridLog, context: StateContext) -> Result<AnyTable<K, V>> {
    let table = Box::new(layout.open(context)?);
    Ok(AnyTable::HybridLog(OutOfLine::new(table)))
}

impl<K: Key, V: State> Table<K, V> for AnyTable<K, V> {
    fn len(&self) -> u64 {
        each!(self, table => table.len())
    }

    #[inline]
    fn get<Q: Lookup<K> + ?Sized>(&mut self, key: &Q) -> Result<Option<&V>> {
        each!(self, table => table.get(key))
    }

    #[inline]
    fn peek<Q: Lookup<K> + ?Sized>(&self, key: &Q) -> Peek<'_, V> {
        each!(self, table => table.peek(key))
    }

    #[inline]
    fn update<Q: Lookup<K> + ?Sized, R>(
        &mut self,
        key: &Q,
        init: impl FnOnce() -> V,
        change: impl FnOnce(&mut V) -> R,
    ) -> Result<R> {
        each!(self, table => table.update(key, init, change))
    }

    #[inline]
    fn modify<Q: Lookup<K> + ?Sized, R>(
        &mut self,
        key: &Q,
        change: impl FnOnce(&mut V) -> R,
    ) -> Result<Option<R>> {
        each!(self, table => table.modify(key, change))
    }

    #[inline]
    fn touch<Q: Lookup<K> + ?Sized, R>(
        &mut self,
        key: &Q,
        change: impl FnOnce(&mut V) -> R,
    ) -> Result<Option<R>> {
        each!(self, table => table.touch(key, change))
    }

    #[inline]
    fn put(&mut self, key: K, value: V) -> std::result::Result<bool, Rejected<(K, V)>> {
        each!(self, table => table.put(key, value))
    }

    fn expect(&mut self, keys: u64) {
        each!(self, table => table.expect(keys));
    }

    fn put_batch(&mut self, batch: &mut Vec<(K, V)>) -> Result<()> {
        each!(self, table => table.put_batch(batch))
    }

    fn room_to_load(&mut self, more: u64) -> Option<LoadRoom> {
        each!(self, table => table.room_to_load(more))
    }

    fn load_batch(&mut self, batch: &mut Vec<(K, V)>, room: LoadRoom) -> Result<()> {
        each!(self, table => table.load_batch(batch, room))
    }

    #[inline]
    fn take<Q: Lookup<K> + ?Sized>(&mut self, key: &Q) -> Result<Option<V>> {
        each!(self, table => table.take(key))
    }

    #[inline]
    fn remove<Q: Lookup<K> + ?Sized>(&mut self, key: &Q) -> Result<bool> {
        each!(self, table => table.remove(key))
    }

    fn clear(&mut self) -> Result<()> {
        each!(self, table => table.clear())
    }

    fn scan(
        &mut self,
        cursor: &mut Cursor,
        fuel: usize,
        visit: &mut dyn FnMut(&K, &V) -> Result<()>,
    ) -> Result<()> {
        each!(self, table => table.scan(cursor, fuel, visit))
    }

    fn visit_all(&mut self, visit: &mut dyn FnMut(&K, &V) -> Result<()>) -> Result<()> {
        each!(self, table => table.visit_all(visit))
    }

    fn by_hash(&mut self) -> Option<&mut dyn ByHash<K, V>> {
        each!(self, table => table.by_hash())
    }

    fn update_batch<T, Q: Lookup<K> + ?Sized>(
        &mut self,
        batch: &[T],
        key: impl Fn(&T) -> &Q,
        init: impl FnMut(&T) -> V,
        change: impl FnMut(&T, &mut V),
    ) -> std::result::Result<(), BatchError> {
        each!(self, table => table.update_batch(batch, key, init, change))
    }

    fn read_batch<T, Q: Lookup<K> + ?Sized>(
        &mut self,
        batch: &[T],
        key: impl Fn(&T) -> &Q,
        read: impl FnMut(&T, Option<&V>),
    ) -> std::result::Result<(), BatchError> {
        each!(self, table => table.read_batch(batch, key, read))
    }

    fn has_storage(&self) -> bool {
        each!(self, table => table.has_storage())
    }

    #[inline]
    fn is_resident(&self) -> bool {
        each!(self, table => table.is_resident())
    }

    fn fetch<Q: Lookup<K> + ?Sized>(&mut self, key: &Q) -> Fetch {
        each!(self, table => table.fetch(key))
    }

    fn fetched(&mut self, tell: &mut dyn FnMut(Ticket)) {
        each!(self, table => table.fetched(tell))
    }

    fn release(&mut self, ticket: Ticket) {
        each!(self, table => table.release(ticket))
    }

    fn wake_with(&mut self, waker: Arc<Waker>) {
        each!(self, table => table.wake_with(waker))
    }

    fn can_expire(&self) -> Result<()> {
        each!(self, table => table.can_expire())
    }

    fn stamp_with(&mut self, touched: Touched<V>, now: Time) {
        each!(self, table => table.stamp_with(touched, now))
    }

    fn live_for(&mut self, nanos: u64) {
        each!(self, table => table.live_for(nanos))
    }

    fn expire(&mut self, pass: &mut ExpiryPass<V>, fuel: usize) -> Result<()> {
        each!(self, table => table.expire(pass, fuel))
    }
}

impl<K: Key, V: State> HasUpkeep for AnyTable<K, V> {
    fn upkeep(&self) -> &dyn Upkeep {
        each!(self, table => table.innermost())
    }

    fn upkeep_mut(&mut self) -> &mut dyn Upkeep {
        each!(self, table => table.innermost_mut())
    }
}
