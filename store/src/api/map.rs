//! Keyed state: a value per key.

use std::cell::{Ref, RefMut};
use std::fmt;
use std::rc::Rc;

use alluvium_layouts::{
    BatchError, Cursor, Fetch, Layout, LoadRoom, Peek, Table, TableStats, Ticket,
};
use alluvium_pagestore::{Key, Lookup, Rejected, Result};

use crate::api::fetcher::{self, Fetcher};
use crate::backend::any_layout::AnyLayout;
use crate::cells::MapCell;
use crate::cells::cell_handle::{CellHandle, HasGroups};
use crate::cells::recording::Access;
use crate::cells::state_cell::{Hooks, ValueRef};
use crate::durability::moving::Groups;

/// Receives entries.
type VisitMapEntry<'v, K, V> = &'v mut dyn FnMut(&K, &V) -> Result<()>;

/// Entries that are loaded at once: so many at least, and as many as take so many bytes if they own no heap.
const LOAD_BATCH: usize = 64;
const LOAD_BATCH_BYTES: usize = 64 << 10;
const LOAD_BATCH_MAX: usize = 1024;
/// From so many entries on as many are loaded at once as the layout has room for.
const LOAD_MANY: u64 = 16 << 10;

/// A value per key. Open one with [`Store::map`](crate::Store::map).
///
/// Values are native Rust values, changed in place. A call takes effect in full or changes nothing.
/// Cost: a look-up and a bounded step of background work; for a key on storage, a read too.
///
/// A closure that panics leaves the value as it was at the panic and poisons the state: reads and
/// writes continue, but checkpoints fail until [`clear_poison`](Map::clear_poison).
///
/// ```
/// use alluvium::{MIB, Store};
///
/// let store = Store::in_memory().memory(16 * MIB).open()?;
/// let mut best = store.map::<u64, i64>("best-bid").open()?;
/// for (auction, price) in [(7, 30), (8, 12), (7, 45)] {
///     best.update(&auction, || price, |best| *best = price.max(*best))?;
/// }
/// assert_eq!(best.get(&7)?.as_deref(), Some(&45));
/// assert_eq!(best.take(&8)?, Some(12));
/// assert_eq!(best.len()?, 1);
/// # Ok::<(), alluvium::Error>(())
/// ```
///
/// # Errors of calls
///
/// After an error the map is as before; a batch says how far it came.
///
/// - **Any call**: [`ErrorKind::InUse`] from a closure of this state or while one of its values is
///   borrowed.
/// - **A read**, if the key is on storage: [`ErrorKind::Io`], [`ErrorKind::Corrupt`],
///   [`ErrorKind::Descriptors`], or [`ErrorKind::Backpressure`] if storage does nothing.
///   [`ErrorKind::OverBudget`] if memory has no room for the value.
/// - **A write**: those of a read. `OverBudget`, `Backpressure` or [`ErrorKind::DiskFull`] if
///   memory is full and cannot be freed. [`ErrorKind::ValueTooLarge`] for a value larger than
///   [`max_value`](crate::StoreBuilder::max_value), also one that was before the change: its closure
///   is not called then. `InUse` while the key's group moves, [`ErrorKind::Mismatch`] if it is in
///   another store. [`ErrorKind::Poisoned`] if a value panicked when it was encoded.
///
/// [`ErrorKind::InUse`]: crate::ErrorKind::InUse
/// [`ErrorKind::Io`]: crate::ErrorKind::Io
/// [`ErrorKind::Corrupt`]: crate::ErrorKind::Corrupt
/// [`ErrorKind::Descriptors`]: crate::ErrorKind::Descriptors
/// [`ErrorKind::Backpressure`]: crate::ErrorKind::Backpressure
/// [`ErrorKind::OverBudget`]: crate::ErrorKind::OverBudget
/// [`ErrorKind::DiskFull`]: crate::ErrorKind::DiskFull
/// [`ErrorKind::ValueTooLarge`]: crate::ErrorKind::ValueTooLarge
/// [`ErrorKind::Mismatch`]: crate::ErrorKind::Mismatch
/// [`ErrorKind::Poisoned`]: crate::ErrorKind::Poisoned
pub struct Map<K: Key, V: 'static, L: Layout<K, V> = AnyLayout> {
    cell: CellHandle<MapCell<K, V, L::Table>>,
}

impl<K: Key, V: 'static, L: Layout<K, V>> fmt::Debug for Map<K, V, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Map({})", self.cell.name())
    }
}

impl<K: Key, V: 'static, L: Layout<K, V>> Map<K, V, L> {
    pub(crate) fn new(cell: CellHandle<MapCell<K, V, L::Table>>) -> Self {
        Self { cell }
    }

    /// What the handle shares with the store.
    pub(crate) fn cell(&self) -> &MapCell<K, V, L::Table> {
        &self.cell
    }

    /// The table, for a read of `key`, which goes to the state's trace if there is one.
    #[inline]
    fn enter_to_read<Q: Lookup<K> + ?Sized>(&self, key: &Q) -> Result<RefMut<'_, L::Table>> {
        self.cell.enter_to_read(1, |recorder| recorder.record(Access::Get, key, None, 0))
    }

    /// Has a read that is not counted by key go to the state's trace, if there is one.
    #[inline]
    fn record_read<Q: Lookup<K> + ?Sized>(&self, key: &Q) {
        if let Some(recorder) = self.cell.recorder() {
            recorder.record(Access::Get, key, None, 0);
        }
    }

    /// Returns the state's name.
    pub fn name(&self) -> &str {
        self.cell.name()
    }

    /// Returns the number of keys. Cost: O(1).
    ///
    /// # Errors
    /// Those of [any call](Map#errors-of-calls).
    pub fn len(&self) -> Result<u64> {
        Ok(self.cell.enter()?.len())
    }

    /// Returns whether there is no key.
    ///
    /// # Errors
    /// Those of [any call](Map#errors-of-calls).
    pub fn is_empty(&self) -> Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Returns the value of `key`; may read from storage. Drop the returned borrow before you use
    /// the state again. [`read`](Map::read) saves a second look-up.
    ///
    /// # Errors
    /// Those of [a read](Map#errors-of-calls).
    pub fn get<Q: Lookup<K> + ?Sized>(&mut self, key: &Q) -> Result<Option<ValueRef<'_, V>>> {
        if self.cell.count_read() {
            return self.get_recorded(key);
        }
        let is_there = self.cell.enter()?.get(key)?.is_some();
        self.shown(key, is_there)
    }

    /// [`get`](Map::get) of a recorded state. It has no look-up of its own, and leaves nothing for the others to keep
    /// while they look up.
    #[cold]
    #[inline(never)]
    fn get_recorded<Q: Lookup<K> + ?Sized>(&mut self, key: &Q) -> Result<Option<ValueRef<'_, V>>> {
        self.cell.record_apart(key)?;
        self.get(key)
    }

    /// [`get`](Map::get) of what a call that was recorded asks once more.
    pub(crate) fn find<Q: Lookup<K> + ?Sized>(&self, key: &Q) -> Result<Option<ValueRef<'_, V>>> {
        let is_there = self.cell.enter_for(1)?.get(key)?.is_some();
        self.shown(key, is_there)
    }

    /// Lends a value that a look-up has made resident, if it is there.
    #[inline]
    fn shown<Q: Lookup<K> + ?Sized>(
        &self,
        key: &Q,
        is_there: bool,
    ) -> Result<Option<ValueRef<'_, V>>> {
        if !is_there {
            return Ok(None);
        }
        let found = Ref::filter_map(self.cell.look()?, |table| match table.peek(key) {
            Peek::Resident(value) => Some(value),
            Peek::Absent | Peek::Unknown => None,
        });
        Ok(found.ok().map(ValueRef))
    }

    /// Calls `read` with the value of `key`; may read from storage.
    ///
    /// # Errors
    /// Those of [a read](Map#errors-of-calls).
    #[inline]
    pub fn read<Q: Lookup<K> + ?Sized, R>(
        &mut self,
        key: &Q,
        read: impl FnOnce(Option<&V>) -> R,
    ) -> Result<R> {
        let mut table = self.enter_to_read(key)?;
        Ok(read(table.get(key)?))
    }

    /// Returns the value of `key` if it is in memory. `None` means that the key is absent or only
    /// on storage.
    ///
    /// # Errors
    /// Those of [any call](Map#errors-of-calls).
    pub fn peek<Q: Lookup<K> + ?Sized>(&self, key: &Q) -> Result<Option<ValueRef<'_, V>>> {
        self.record_read(key);
        let found = Ref::filter_map(self.cell.look()?, |table| match table.peek(key) {
            Peek::Resident(value) => Some(value),
            Peek::Absent | Peek::Unknown => None,
        });
        Ok(found.ok().map(ValueRef))
    }

    /// Returns whether `key` is present; may read from storage.
    ///
    /// # Errors
    /// Those of [a read](Map#errors-of-calls).
    pub fn contains<Q: Lookup<K> + ?Sized>(&mut self, key: &Q) -> Result<bool> {
        if self.cell.count_read() {
            return self.contains_recorded(key);
        }
        Ok(self.cell.enter()?.get(key)?.is_some())
    }

    /// [`contains`](Map::contains) of a recorded state.
    #[cold]
    #[inline(never)]
    fn contains_recorded<Q: Lookup<K> + ?Sized>(&mut self, key: &Q) -> Result<bool> {
        self.cell.record_apart(key)?;
        self.contains(key)
    }

    /// Applies `change` to the value of `key` in place: a read-modify-write. Inserts `init()` first
    /// if the key is absent.
    ///
    /// # Errors
    /// Those of [a write](Map#errors-of-calls).
    #[inline]
    pub fn update<Q: Lookup<K> + ?Sized, R>(
        &mut self,
        key: &Q,
        init: impl FnOnce() -> V,
        change: impl FnOnce(&mut V) -> R,
    ) -> Result<R> {
        if self.cell.is_watched() {
            return self.cell.update_watched(key, init, change);
        }
        self.cell.run_to_write(1, |table| table.update(key, init, change))?
    }

    /// Applies `change` to the value of `key` in place, if the key is present.
    ///
    /// # Errors
    /// Those of [a write](Map#errors-of-calls).
    #[inline]
    pub fn modify<Q: Lookup<K> + ?Sized, R>(
        &mut self,
        key: &Q,
        change: impl FnOnce(&mut V) -> R,
    ) -> Result<Option<R>> {
        if self.cell.is_watched() {
            return self.cell.modify_watched(key, change);
        }
        self.cell.run_to_write(1, |table| table.modify(key, change))?
    }

    /// [`modify`](Map::modify) for a change that takes no heap, also of a value that is too large.
    #[inline]
    pub(crate) fn touch<Q: Lookup<K> + ?Sized, R>(
        &mut self,
        key: &Q,
        change: impl FnOnce(&mut V) -> R,
    ) -> Result<Option<R>> {
        if self.cell.is_watched() {
            return self.cell.touch_watched(key, change);
        }
        self.cell.run_to_write(1, |table| table.touch(key, change))?
    }

    /// Applies `change` as [`modify`](Map::modify) does, and puts a clone of the old value back if
    /// `change` panics.
    ///
    /// # Errors
    /// Those of [a write](Map#errors-of-calls).
    pub fn modify_or_restore<Q: Lookup<K> + ?Sized, R>(
        &mut self,
        key: &Q,
        change: impl FnOnce(&mut V) -> R,
    ) -> Result<Option<R>>
    where
        V: Clone,
    {
        struct Restore<'a, V>(&'a mut V, Option<V>);
        impl<V> Drop for Restore<'_, V> {
            fn drop(&mut self) {
                if let Some(old) = self.1.take() {
                    *self.0 = old;
                }
            }
        }
        self.modify(key, |value| {
            let old = value.clone();
            let mut restore = Restore(value, Some(old));
            let result = change(restore.0);
            restore.1 = None;
            result
        })
    }

    /// Sets the value of `key` and returns whether the key was present. An error returns key and
    /// value.
    ///
    /// # Errors
    /// Those of [a write](Map#errors-of-calls).
    #[inline]
    pub fn put(&mut self, key: K, value: V) -> std::result::Result<bool, Rejected<(K, V)>> {
        if self.cell.is_watched() {
            return self.cell.put_watched(key, value);
        }
        match self.cell.enter_to_write(1) {
            Ok(mut table) => table.put(key, value),
            Err(error) => Err(Rejected::new(error, (key, value))),
        }
    }

    /// Removes `key` and returns its value.
    ///
    /// # Errors
    /// Those of [a write](Map#errors-of-calls).
    pub fn take<Q: Lookup<K> + ?Sized>(&mut self, key: &Q) -> Result<Option<V>> {
        if self.cell.is_watched() {
            return self.cell.take_watched(key);
        }
        self.cell.enter_to_write(1)?.take(key)
    }

    /// Removes `key` and returns whether it was present.
    ///
    /// # Errors
    /// Those of [a write](Map#errors-of-calls).
    pub fn remove<Q: Lookup<K> + ?Sized>(&mut self, key: &Q) -> Result<bool> {
        if self.cell.is_watched() {
            return self.cell.remove_watched(key);
        }
        self.cell.enter_to_write(1)?.remove(key)
    }

    /// Removes all keys. Cost on the heap: dropping them. Cost on a hybrid log: creating an empty
    /// one. Later calls drop the old log step by step, and its memory stays reserved until then. If
    /// memory has no room for an empty log beside the old one, this call drops as much as it needs,
    /// and may wait for storage.
    ///
    /// # Errors
    /// Those of [a write](Map#errors-of-calls).
    pub fn clear(&mut self) -> Result<()> {
        self.cell.groups().map_or(Ok(()), Groups::are_settled)?;
        self.cell.enter()?.clear()
    }

    /// Does [`update`](Map::update) for each item of `batch`, in order per key. Accesses of memory
    /// and storage overlap. On an error the first [`applied`](BatchError::applied) items are done
    /// and the others are untouched.
    ///
    /// # Errors
    /// Those of [a write](Map#errors-of-calls), with the number of items applied.
    #[inline]
    pub fn update_batch<T, Q: Lookup<K> + ?Sized>(
        &mut self,
        batch: &[T],
        key: impl Fn(&T) -> &Q,
        init: impl FnMut(&T) -> V,
        change: impl FnMut(&T, &mut V),
    ) -> std::result::Result<(), BatchError> {
        if self.cell.is_watched() {
            let checked = self.cell.check_all(batch.iter().map(|item| key(item).key_hash()));
            checked.map_err(|error| BatchError { applied: 0, error })?;
        }
        let done = self
            .cell
            .run_to_write(batch.len(), |table| table.update_batch(batch, &key, init, change));
        let done = done.unwrap_or_else(|error| Err(BatchError { applied: 0, error }));
        if let Some(recorder) = self.cell.recorder() {
            self.cell.record_batch(recorder, batch, key, &done);
        }
        done
    }

    /// Calls `read` with the value of each item's key, in order. Accesses overlap.
    ///
    /// # Errors
    /// Those of [a read](Map#errors-of-calls), with the number of items read.
    #[inline]
    pub fn read_batch<T, Q: Lookup<K> + ?Sized>(
        &mut self,
        batch: &[T],
        key: impl Fn(&T) -> &Q,
        read: impl FnMut(&T, Option<&V>),
    ) -> std::result::Result<(), BatchError> {
        if self.cell.is_watched() {
            batch.iter().for_each(|item| self.record_read(key(item)));
        }
        let done = self.cell.run(batch.len(), |table| table.read_batch(batch, key, read));
        done.unwrap_or_else(|error| Err(BatchError { applied: 0, error }))
    }

    /// Starts reading the value of `key` if it is only on storage. Does not wait.
    ///
    /// [`Fetch::Ready`] means: make the call now. It usually finds its data in memory;
    /// [`Fetch::Ready`] says when it still waits for storage. The data of a read occupies one of the state's read buffers until a call for the key uses it or you
    /// [release](Map::release) the ticket. [`Fetch::Busy`] means that all buffers are taken. If the
    /// read fails, the next call for the key fails.
    ///
    /// ```
    /// # use alluvium::Store;
    /// # use alluvium::states::Fetch;
    /// # let store = Store::in_memory().open()?;
    /// # let mut counts = store.map::<u64, u64>("counts").open()?;
    /// match counts.fetch(&7)? {
    ///     Fetch::Ready => counts.update(&7, || 0, |count| *count += 1)?,
    ///     Fetch::Pending(ticket) => { /* Set the record aside until `fetched` has its ticket. */ }
    ///     Fetch::Busy => { /* Use fetched data first. */ }
    /// }
    /// # Ok::<(), alluvium::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [any call](Map#errors-of-calls).
    pub fn fetch<Q: Lookup<K> + ?Sized>(&mut self, key: &Q) -> Result<Fetch> {
        Ok(self.cell.enter()?.fetch(key))
    }

    /// Reports the tickets of reads that have ended since the last call, each once.
    ///
    /// # Errors
    /// Those of [any call](Map#errors-of-calls).
    pub fn fetched(&mut self, mut tell: impl FnMut(Ticket)) -> Result<()> {
        self.cell.enter()?.fetched(&mut tell);
        Ok(())
    }

    /// Cancels a read. Does nothing if a call has used its data.
    ///
    /// # Errors
    /// Those of [any call](Map#errors-of-calls).
    pub fn release(&mut self, ticket: Ticket) -> Result<()> {
        self.cell.enter()?.release(ticket);
        Ok(())
    }

    /// Returns a handle to the state's reads, for code that drives the owner of this handle.
    pub fn fetcher(&self) -> Rc<dyn Fetcher<K>> {
        fetcher::of(self.cell.cell())
    }

    /// Visits about `fuel` entries from `cursor` on; the cursor tells when all were visited. Visits
    /// each entry that is present from the first step to the last exactly once, in unspecified
    /// order.
    ///
    /// # Errors
    /// Those of [a read](Map#errors-of-calls) and of `visit`.
    pub fn scan(
        &mut self,
        cursor: &mut Cursor,
        fuel: usize,
        mut visit: impl FnMut(&K, &V) -> Result<()>,
    ) -> Result<()> {
        let mut scan = |visit: VisitMapEntry<'_, K, V>| {
            self.cell.run(0, |table| table.scan(cursor, fuel, visit))?
        };
        match self.cell.recorder() {
            None => scan(&mut visit),
            Some(recorder) => scan(&mut |key, value| {
                recorder.record(Access::Get, key, None, 0);
                visit(key, value)
            }),
        }
    }

    /// Visits all entries in unspecified order. Cost: a pass over the state with all its reads, in
    /// the order of storage if that saves some.
    ///
    /// # Errors
    /// Those of [a read](Map#errors-of-calls) and of `visit`.
    pub fn for_each(&mut self, mut visit: impl FnMut(&K, &V) -> Result<()>) -> Result<()> {
        let visit_all =
            |visit: VisitMapEntry<'_, K, V>| self.cell.run(0, |table| table.visit_all(visit))?;
        match self.cell.recorder() {
            None => visit_all(&mut visit),
            Some(recorder) => visit_all(&mut |key, value| {
                recorder.record(Access::Get, key, None, 0);
                visit(key, value)
            }),
        }
    }

    /// Puts all entries and returns their number. Of several entries of a key the last one stays.
    /// They need not be sorted.
    ///
    /// Cost: a put per entry, of which 64 overlap their memory accesses. 64 entries, or 64 KiB of
    /// entries that own no heap, are put together: they belong to the caller's memory until they
    /// are in the state, and their reads are under way together. A new key causes no read from
    /// storage, unless its hash equals that of a stored key, or a filter of sorted runs is wrong.
    ///
    /// A hybrid log whose index has no room for all entries, which own no heap, takes as many at
    /// once as it has reserved memory for, and writes those of new keys to storage in one go. Give
    /// the iterator an exact `size_hint`.
    ///
    /// # Errors
    /// Those of [`put`](Map::put). The error returns the entries of the failed batch that are not
    /// in the state, in order. All entries before the first of them are in.
    pub fn load(
        &mut self,
        entries: impl IntoIterator<Item = (K, V)>,
    ) -> std::result::Result<u64, Rejected<Vec<(K, V)>>> {
        let (mut entries, mut loaded) = (entries.into_iter(), 0);
        let fit = LOAD_BATCH_BYTES / size_of::<(K, V)>().max(1);
        let owns_heap = std::mem::needs_drop::<(K, V)>();
        let at_once = if owns_heap { LOAD_BATCH } else { fit.clamp(LOAD_BATCH, LOAD_BATCH_MAX) };
        if let Ok(mut table) = self.cell.enter() {
            let there = table.len();
            table.expect(there.saturating_add(entries.size_hint().0 as u64));
        }
        let mut batch = Vec::new();
        loop {
            let (more, at_most) = entries.size_hint();
            let is_large = loaded + more as u64 >= LOAD_MANY && at_most != Some(0);
            let room = if is_large { self.room_to_load(more as u64) } else { None };
            let most = room.as_ref().map_or(at_once, LoadRoom::entries);
            batch.reserve_exact(at_most.map_or(most, |left| left.min(most)));
            batch.extend(entries.by_ref().take(most));
            let count = batch.len();
            if count == 0 {
                return Ok(loaded);
            }
            let checked = self.cell.check_all(batch.iter().map(|(key, _)| key.key_hash()));
            let put = checked.and_then(|()| match (self.cell.recorder(), room) {
                (Some(recorder), _) => self.cell.put_batch_recorded(recorder, &mut batch),
                (None, Some(room)) => self.cell.enter_to_write(count)?.load_batch(&mut batch, room),
                (None, None) => self.cell.enter_to_write(count)?.put_batch(&mut batch),
            });
            if let Err(error) = put {
                return Err(Rejected::new(error, batch));
            }
            loaded += count as u64;
        }
    }

    /// Room for many entries, if the layout loads so many faster. A recorded state loads few at once.
    fn room_to_load(&self, more: u64) -> Option<LoadRoom> {
        match self.cell.recorder() {
            Some(_) => None,
            None => self.cell.enter().ok()?.room_to_load(more),
        }
    }

    /// Returns counters and gauges.
    ///
    /// # Errors
    /// Those of [any call](Map#errors-of-calls).
    pub fn stats(&self) -> Result<TableStats> {
        self.cell.stats()
    }

    /// Returns whether a closure has panicked in this state since it was opened or last cleared.
    pub fn is_poisoned(&self) -> bool {
        self.cell.is_poisoned()
    }

    /// Declares the values correct again after a panic.
    pub fn clear_poison(&mut self) {
        self.cell.clear_poison();
    }
}
