//! The traits of a keyed layout, built in or of your own.
//!
//! A [`Layout`] describes a physical layout and opens a [`Table`]; a `Table` is one keyed state of
//! one worker. Required: `len`, `get`, `peek`, `update`, `modify`, `put`, `take`, `clear`, `scan`
//! and [`Upkeep`]. The batch calls have defaults that loop. One thread makes all calls.

pub(crate) mod pace;
mod stats;

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use alluvium_pagestore::io::Waker;
use alluvium_pagestore::{
    Account, BlobReader, EntryCodec, Helper, Key, Lookup, Rejected, Result, SegmentStore,
    StateImage, Time,
};

use crate::contract::by_hash::ByHash;
use crate::contract::expiry::{self, ExpiryPass, Touched};
use crate::contract::fetch::{Fetch, Ticket};
use crate::contract::loading::LoadRoom;
use crate::contract::upkeep::Upkeep;

pub use pace::Pace;
pub use stats::{RunStats, RunTimes, TableStats};

/// The answer of [`Table::peek`], given without I/O.
#[derive(Debug, PartialEq, Eq)]
pub enum Peek<'a, V> {
    /// The value is in memory.
    Resident(&'a V),
    /// The key is absent.
    Absent,
    /// Only a read from storage can tell.
    Unknown,
}

/// A batch that an error stopped.
#[derive(Debug)]
pub struct BatchError {
    /// Number of items, from the start of the batch, that took full effect. The others changed
    /// nothing.
    pub applied: usize,
    /// The error.
    pub error: alluvium_pagestore::Error,
}

impl BatchError {
    /// Removes the applied items from `batch`, and leaves the items that a retry has to apply.
    pub fn leave_rest<T>(self, batch: &mut Vec<T>) -> alluvium_pagestore::Error {
        batch.drain(..self.applied);
        self.error
    }
}

impl std::fmt::Display for BatchError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} (applied {})", self.error, self.applied)
    }
}

impl std::error::Error for BatchError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

impl From<BatchError> for alluvium_pagestore::Error {
    fn from(e: BatchError) -> Self {
        e.error.with("applied", e.applied)
    }
}

/// The outcome of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckpointOutcome {
    /// The checkpoint is committed: opening restores it. Segments that only older checkpoints need
    /// may be removed.
    Committed,
    /// The checkpoint will never be restored. Segments that only it needs may be removed.
    Abandoned,
    /// The device failed and the outcome is unknown. Keep the segments of both checkpoints.
    Unknown,
}

/// The position of a [`Table::scan`]; start with `Cursor::default()`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    /// Start of the next step. The layout defines its meaning.
    pub position: u64,
    /// The version that the position refers to. The layout defines its meaning.
    pub version: u64,
    /// Whether the scan has visited everything.
    pub done: bool,
}

impl Cursor {
    /// Continues at a position; `None` after the last.
    #[inline]
    pub(crate) fn go_on(&mut self, position: Option<u64>) {
        match position {
            Some(position) => self.position = position,
            None => self.done = true,
        }
    }
}

/// One keyed state in one physical layout.
///
/// A call takes effect in full or changes nothing, unless its documentation says otherwise. A
/// reference that a call returns lives until the next call.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no table of keys `{K}` and values `{V}`",
    label = "`Table<{K}, {V}>` is not implemented for `{Self}`"
)]
pub trait Table<K: Key, V>: Upkeep {
    /// Returns the number of keys. Cost: O(1).
    fn len(&self) -> u64;

    /// Returns whether there is no key.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the value of `key`. May read from storage, and may move records in memory.
    fn get<Q: Lookup<K> + ?Sized>(&mut self, key: &Q) -> Result<Option<&V>>;

    /// Returns the value of `key` if it is in memory. Never reads from storage.
    fn peek<Q: Lookup<K> + ?Sized>(&self, key: &Q) -> Peek<'_, V>;

    /// Applies `change` to the value of `key` in place: a read-modify-write. Inserts `init()` first
    /// if the key is absent.
    fn update<Q: Lookup<K> + ?Sized, R>(
        &mut self,
        key: &Q,
        init: impl FnOnce() -> V,
        change: impl FnOnce(&mut V) -> R,
    ) -> Result<R>;

    /// Applies `change` to the value of `key` in place. Does nothing if the key is absent.
    fn modify<Q: Lookup<K> + ?Sized, R>(
        &mut self,
        key: &Q,
        change: impl FnOnce(&mut V) -> R,
    ) -> Result<Option<R>>;

    /// Applies a `change` that allocates no heap, for instance one that notes when the value was
    /// read. Works also on a value that is larger than `max_value`. The default is
    /// [`modify`](Table::modify).
    fn touch<Q: Lookup<K> + ?Sized, R>(
        &mut self,
        key: &Q,
        change: impl FnOnce(&mut V) -> R,
    ) -> Result<Option<R>> {
        self.modify(key, change)
    }

    /// Sets the value of `key` and returns whether the key was present. An error returns key and
    /// value.
    fn put(&mut self, key: K, value: V) -> std::result::Result<bool, Rejected<(K, V)>>;

    /// Announces that the table will hold about `keys` keys. They may then arrive in any order,
    /// including the order of their hashes. Allocates nothing. The default does nothing.
    fn expect(&mut self, keys: u64) {
        let _ = keys;
    }

    /// Does [`put`](Table::put) for each entry of `batch`, in order, and leaves it empty. Layouts
    /// overlap the memory accesses of a batch. After an error the entries that were not put remain
    /// in `batch`.
    fn put_batch(&mut self, batch: &mut Vec<(K, V)>) -> Result<()> {
        let mut rest = batch.drain(..);
        while let Some((key, value)) = rest.next() {
            if let Err(rejected) = self.put(key, value) {
                let left = std::iter::once(rejected.value).chain(rest).collect();
                *batch = left;
                return Err(rejected.error);
            }
        }
        Ok(())
    }

    /// Returns room for more entries than [`put_batch`](Table::put_batch) is worth calling with, if
    /// the table loads so many in a faster way: see [`load_batch`](Table::load_batch). At least `more`
    /// entries are to come, as far as that is known. The default returns `None`.
    fn room_to_load(&mut self, more: u64) -> Option<LoadRoom> {
        let _ = more;
        None
    }

    /// Does [`put`](Table::put) for each entry of `batch`, for which there was room, and leaves it
    /// empty. Entries of one key are put in order. After an error the entries that were not put
    /// remain in `batch`, in order; entries behind them may have been put. The default is
    /// [`put_batch`](Table::put_batch).
    fn load_batch(&mut self, batch: &mut Vec<(K, V)>, room: LoadRoom) -> Result<()> {
        drop(room);
        self.put_batch(batch)
    }

    /// Removes `key` and returns its value.
    fn take<Q: Lookup<K> + ?Sized>(&mut self, key: &Q) -> Result<Option<V>>;

    /// Removes `key` and returns whether it was present.
    fn remove<Q: Lookup<K> + ?Sized>(&mut self, key: &Q) -> Result<bool> {
        Ok(self.take(key)?.is_some())
    }

    /// Removes all keys. A layout may free their memory step by step, with later calls.
    fn clear(&mut self) -> Result<()>;

    /// Visits about `fuel` entries from `cursor` on. A scan visits each entry once that is present
    /// from its first step to its last, and may visit others. The order is unspecified.
    fn scan(
        &mut self,
        cursor: &mut Cursor,
        fuel: usize,
        visit: &mut dyn FnMut(&K, &V) -> Result<()>,
    ) -> Result<()>;

    /// Visits each entry once, in one call and in no useful order. The default is a whole
    /// [`scan`](Table::scan); a layout may choose an order that it reads faster.
    ///
    /// # Errors
    /// Those of `visit` and of `scan`, after some entries were visited.
    fn visit_all(&mut self, visit: &mut dyn FnMut(&K, &V) -> Result<()>) -> Result<()> {
        let mut cursor = Cursor::default();
        while !cursor.done {
            self.scan(&mut cursor, 4096, visit)?;
        }
        Ok(())
    }

    /// Returns the table by ranges of key hashes, if it is stored in the order of hashes.
    fn by_hash(&mut self) -> Option<&mut dyn ByHash<K, V>> {
        None
    }

    /// Does [`update`](Table::update) for each item of `batch`, in order per key. Layouts overlap
    /// the memory and storage accesses of a batch; use batches of 64 items or more.
    fn update_batch<T, Q: Lookup<K> + ?Sized>(
        &mut self,
        batch: &[T],
        key: impl Fn(&T) -> &Q,
        mut init: impl FnMut(&T) -> V,
        mut change: impl FnMut(&T, &mut V),
    ) -> std::result::Result<(), BatchError> {
        for (applied, item) in batch.iter().enumerate() {
            self.update(key(item), || init(item), |value| change(item, value))
                .map_err(|error| BatchError { applied, error })?;
        }
        Ok(())
    }

    /// Calls `read` with the value of each item's key, in order.
    fn read_batch<T, Q: Lookup<K> + ?Sized>(
        &mut self,
        batch: &[T],
        key: impl Fn(&T) -> &Q,
        mut read: impl FnMut(&T, Option<&V>),
    ) -> std::result::Result<(), BatchError> {
        for (applied, item) in batch.iter().enumerate() {
            let value = self.get(key(item)).map_err(|error| BatchError { applied, error })?;
            read(item, value);
        }
        Ok(())
    }

    /// Returns whether records can be on storage, where calls have to read them.
    fn has_storage(&self) -> bool {
        false
    }

    /// Returns whether everything is in memory: no call waits for a read. Cost: one load.
    fn is_resident(&self) -> bool {
        true
    }

    /// Starts reading the record of `key` if it is only on storage. Does not wait. The data
    /// occupies a buffer until a call for the key uses it or [`release`](Table::release) gives up
    /// its ticket. If the read fails, the next call for the key fails. The default returns
    /// [`Fetch::Ready`], for layouts in memory.
    fn fetch<Q: Lookup<K> + ?Sized>(&mut self, key: &Q) -> Fetch {
        let _ = key;
        Fetch::Ready
    }

    /// Calls `tell` with the ticket of each read that has ended, once per read.
    fn fetched(&mut self, tell: &mut dyn FnMut(Ticket)) {
        let _ = tell;
    }

    /// Gives up a read. Does nothing if a call has used its data already.
    fn release(&mut self, ticket: Ticket) {
        let _ = ticket;
    }

    /// Wakes `waker` at the end of each read that [`fetch`](Table::fetch) starts from now on.
    fn wake_with(&mut self, waker: Arc<Waker>) {
        let _ = waker;
    }

    /// Checks that entries can expire in this table. Called once, before
    /// [`stamp_with`](Table::stamp_with). The default is `Ok`.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](alluvium_pagestore::ErrorKind::Unsupported) or
    /// [`ErrorKind::OverBudget`](alluvium_pagestore::ErrorKind::OverBudget) with the option that is
    /// in the way: the state does not open.
    fn can_expire(&self) -> Result<()> {
        Ok(())
    }

    /// Gives a table with expiring entries the function that tells when a value was last touched.
    /// Called once, before any other call; the entries already present were not touched after
    /// `now`. A layout that writes segments notes the latest time in each, and drops a segment
    /// whole once all its records have expired. The default does nothing.
    fn stamp_with(&mut self, touched: Touched<V>, now: Time) {
        let _ = (touched, now);
    }

    /// Tells a table with expiring entries how long they live without a touch, in nanoseconds.
    /// Called after [`stamp_with`](Table::stamp_with), before any other call. It may differ from
    /// what it was in an earlier run. The default does nothing.
    fn live_for(&mut self, nanos: u64) {
        let _ = nanos;
    }

    /// Continues a pass over the table for about `fuel` entries and removes the expired ones. A
    /// layout may leave records on storage to its [`rewriter`](Upkeep::rewriter). The default
    /// scans.
    ///
    /// # Errors
    /// Those of [`scan`](Table::scan) and [`take`](Table::take). The pass can be continued.
    fn expire(&mut self, pass: &mut ExpiryPass<V>, fuel: usize) -> Result<()> {
        expiry::by_scan(self, pass, fuel)
    }
}

/// What the store gives a layout to open a state.
#[derive(Clone, Debug)]
pub struct StateContext {
    /// Name of the state, for error messages.
    pub name: String,
    /// The state's account of the memory budget.
    pub account: Rc<Account>,
    /// Storage for segments; `None` in a store without a directory.
    pub segments: Option<SegmentStore>,
    /// Threads for background work.
    pub helper: Helper,
    /// Most heap that a key and its value may own together, in bytes.
    pub max_value_bytes: u64,
    /// Number of key groups of the job.
    pub key_groups: u16,
    /// The key groups this table owns.
    pub owned: Range<u16>,
    /// Whether key groups will move in and out, which requires [`Table::by_hash`]. Then `owned`
    /// names all groups, even if the store has few of them now.
    pub movable: bool,
    /// The state's image in the checkpoint to restore, and the reader of its live sets.
    pub restored: Option<(StateImage, BlobReader)>,
}

impl StateContext {
    /// Returns the bytes of the longest record in the restored checkpoint, 0 without one.
    pub(crate) fn longest_record(&self) -> u64 {
        let segments = self.restored.iter().flat_map(|(image, _)| image.segments());
        segments.map(|segment| segment.max_record_bytes).max().unwrap_or(0)
    }
}

/// Describes a physical layout and opens a table of keys `K` and values `V`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no layout for keys `{K}` and values `{V}`",
    label = "`Layout<{K}, {V}>` is not implemented for `{Self}`",
    note = "`Heap`, `HybridLog` and `AnyLayout` take values that are `State`; `Heap::volatile()` takes any"
)]
pub trait Layout<K: Key, V>: Clone + 'static {
    /// The opened table.
    type Table: Table<K, V>;

    /// Returns the layout's short name, used in configuration files and manifests.
    fn name(&self) -> &'static str;

    /// Returns the description of the value type that checkpoints record. Opening refuses a state
    /// whose recorded description differs. State moves only between layouts with a
    /// [`codec`](Layout::codec) whose description is `description_of::<V>()`.
    fn value_description(&self) -> String {
        std::any::type_name::<V>().into()
    }

    /// Returns the most memory that this state may take, if less than the store's.
    fn memory_limit(&self) -> Option<u64> {
        None
    }

    /// Returns the encoding of keys and values. Without one, which is the default, the state cannot
    /// be exported, imported, or restored by key groups.
    fn codec(&self) -> Option<EntryCodec<K, V>> {
        None
    }

    /// Opens the table and restores the image in `context`.
    fn open(&self, context: StateContext) -> Result<Self::Table>;
}
