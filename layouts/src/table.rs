//! What a layout can do: the traits a backend implements, ours and a user's.
//!
//! A [`Layout`] is a description that opens a [`Table`]; a `Table` is one keyed state of one
//! worker. `get`, `update`, `modify`, `put`, `take`, `len`, `clear` and `scan` are required;
//! batches have defaults that loop. Everything is called by one thread.

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

use crate::by_hash::ByHash;
use crate::expiry::{self, ExpiryPass, Touched};
use crate::fetch::{Fetch, Ticket};
use crate::upkeep::Upkeep;

pub use pace::Pace;
pub use stats::TableStats;

/// What [`Table::peek`] can say without I/O.
#[derive(Debug, PartialEq, Eq)]
pub enum Peek<'a, V> {
    /// The value, in memory.
    Resident(&'a V),
    /// The key is not there.
    Absent,
    /// Only storage can tell.
    Unknown,
}

/// A batch stopped early.
#[derive(Debug)]
pub struct BatchError {
    /// Items of the batch, from its start, that were applied in full. The rest is unchanged.
    pub applied: usize,
    /// Why it stopped.
    pub error: alluvium_pagestore::Error,
}

impl BatchError {
    /// Takes the items that were applied out of their batch, which is left with those that a retry
    /// has to apply.
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

/// What became of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckpointOutcome {
    /// It is the one a reopen restores; older segments that nothing else needs may go.
    Committed,
    /// It will never be restored; what only it needs may go.
    Abandoned,
    /// The device failed so that nobody can tell; neither the old nor the new may go.
    Unknown,
}

/// Position of a [`Table::scan`]; start with `Cursor::default()`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    /// Where the next step starts, in a meaning private to the layout.
    pub position: u64,
    /// What the position is relative to, in a meaning private to the layout.
    pub version: u64,
    /// Whether everything was visited.
    pub done: bool,
}

/// One keyed state in one physical layout.
///
/// Calls either happen in full or change nothing, unless they say otherwise. References that a
/// call returns live until the next call.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no table of keys `{K}` and values `{V}`",
    label = "`Table<{K}, {V}>` is not implemented for `{Self}`"
)]
pub trait Table<K: Key, V>: Upkeep {
    /// Keys present. Cost: O(1).
    fn len(&self) -> u64;

    /// Whether no key is present.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The value of `key`. May read from storage and may move records in memory.
    fn get<Q: Lookup<K> + ?Sized>(&mut self, key: &Q) -> Result<Option<&V>>;

    /// The value of `key` if memory can tell.
    fn peek<Q: Lookup<K> + ?Sized>(&self, key: &Q) -> Peek<'_, V>;

    /// Read-modify-write: applies `change` to the value of `key` in place, after putting
    /// `init()` there if the key is absent.
    fn update<Q: Lookup<K> + ?Sized, R>(
        &mut self,
        key: &Q,
        init: impl FnOnce() -> V,
        change: impl FnOnce(&mut V) -> R,
    ) -> Result<R>;

    /// Applies `change` to the value of `key` in place; does nothing if the key is absent.
    fn modify<Q: Lookup<K> + ?Sized, R>(
        &mut self,
        key: &Q,
        change: impl FnOnce(&mut V) -> R,
    ) -> Result<Option<R>>;

    /// [`modify`](Table::modify) for a change that takes no heap, such as noting when the value was
    /// read: also of a value that is larger than `max_value`. The default is `modify`.
    fn touch<Q: Lookup<K> + ?Sized, R>(
        &mut self,
        key: &Q,
        change: impl FnOnce(&mut V) -> R,
    ) -> Result<Option<R>> {
        self.modify(key, change)
    }

    /// Sets the value of `key`; on an error key and value come back. Says whether the key was
    /// there before.
    fn put(&mut self, key: K, value: V) -> std::result::Result<bool, Rejected<(K, V)>>;

    /// Tells that about so many keys are going to be there, so that they may come in any order, that
    /// of their hashes too. Takes no memory. The default does nothing.
    fn expect(&mut self, keys: u64) {
        let _ = keys;
    }

    /// [`put`](Table::put) for each entry of `batch`, in order, leaving it empty. Layouts overlap the
    /// memory accesses of a batch. What was not put, because of an error, is left in it.
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

    /// Removes `key` and returns its value.
    fn take<Q: Lookup<K> + ?Sized>(&mut self, key: &Q) -> Result<Option<V>>;

    /// Removes `key` and says whether it was there.
    fn remove<Q: Lookup<K> + ?Sized>(&mut self, key: &Q) -> Result<bool> {
        Ok(self.take(key)?.is_some())
    }

    /// Removes all keys. The memory of what was there may come back later, a part with each call.
    fn clear(&mut self) -> Result<()>;

    /// Visits about `fuel` entries from `cursor` on. Entries that are present from the first step
    /// to the last are visited exactly once; others may or may not be. Order is unspecified.
    fn scan(
        &mut self,
        cursor: &mut Cursor,
        fuel: usize,
        visit: &mut dyn FnMut(&K, &V) -> Result<()>,
    ) -> Result<()>;

    /// Visits all entries once, in one call and in no useful order: as a [`scan`](Table::scan) does to
    /// the end, which is the default, or in an order that is faster to read.
    ///
    /// # Errors
    /// Those of `visit` and of `scan`; some entries were visited then.
    fn visit_all(&mut self, visit: &mut dyn FnMut(&K, &V) -> Result<()>) -> Result<()> {
        let mut cursor = Cursor::default();
        while !cursor.done {
            self.scan(&mut cursor, 4096, visit)?;
        }
        Ok(())
    }

    /// The table by ranges of its keys' hashes, if it stands in their order.
    fn by_hash(&mut self) -> Option<&mut dyn ByHash<K, V>> {
        None
    }

    /// [`update`](Table::update) for each item of `batch`, in order per key. Layouts overlap the
    /// memory and storage accesses of a batch; batches of 64 and more pay.
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

    /// [`get`](Table::get) for each item of `batch`, in order.
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

    /// Whether records can be on storage at all, so that calls may have to read them.
    fn has_storage(&self) -> bool {
        false
    }

    /// Whether no call has to wait for a read: nothing is on storage. Cost: a load.
    fn is_resident(&self) -> bool {
        true
    }

    /// Starts reading the record of `key`, if it is on storage only, and does not wait. What was
    /// read keeps a buffer until a call for the key uses it or its ticket is released; a read that
    /// failed fails that call. The default is always ready, as for a layout in memory.
    fn fetch<Q: Lookup<K> + ?Sized>(&mut self, key: &Q) -> Fetch {
        let _ = key;
        Fetch::Ready
    }

    /// Tells the tickets whose reads have ended since the last time, each once.
    fn fetched(&mut self, tell: &mut dyn FnMut(Ticket)) {
        let _ = tell;
    }

    /// Gives up a read that was started; nothing happens if it was used already.
    fn release(&mut self, ticket: Ticket) {
        let _ = ticket;
    }

    /// Wakes `waker` whenever a read that [`fetch`](Table::fetch) starts from now on has ended.
    fn wake_with(&mut self, waker: Arc<Waker>) {
        let _ = waker;
    }

    /// Tells when a value was touched last, of a table whose entries expire: once, before any other
    /// call. What is there already was not touched after `now`. A layout that writes segments notes
    /// the latest time in each, so that one whose records have all expired can go as a whole. The
    /// default does nothing.
    fn stamp_with(&mut self, touched: Touched<V>, now: Time) {
        let _ = (touched, now);
    }

    /// Goes on with a pass over the table for about `fuel` entries, and removes those that have
    /// expired; what is on storage may be left to [`rewriter`](Upkeep::rewriter). The default scans.
    ///
    /// # Errors
    /// Those of [`scan`](Table::scan) and [`take`](Table::take); the pass can go on.
    fn expire(&mut self, pass: &mut ExpiryPass<V>, fuel: usize) -> Result<()> {
        expiry::by_scan(self, pass, fuel)
    }
}

/// What a [`Layout`] gets to open a table.
#[derive(Clone, Debug)]
pub struct StateContext {
    /// Name of the state, for errors.
    pub name: String,
    /// The state's part of the budget.
    pub account: Rc<Account>,
    /// Where segments live; `None` for a store without a directory.
    pub segments: Option<SegmentStore>,
    /// Threads for background work.
    pub helper: Helper,
    /// No value may own more heap than this, together with its key.
    pub max_value_bytes: u64,
    /// Key groups of the job.
    pub key_groups: u16,
    /// The key groups this table owns.
    pub owned: Range<u16>,
    /// Whether key groups are to come and go, so that the table must find them by themselves
    /// ([`Table::by_hash`]). `owned` is all of them then, however few are here.
    pub movable: bool,
    /// What the last checkpoint says of this state, and its file of live records.
    pub restored: Option<(StateImage, BlobReader)>,
}

impl StateContext {
    /// Bytes of the longest record that the last checkpoint says of, 0 if there is none.
    pub(crate) fn longest_record(&self) -> u64 {
        let segments = self.restored.iter().flat_map(|(image, _)| image.segments());
        segments.map(|segment| segment.max_record_bytes).max().unwrap_or(0)
    }
}

/// A description of a physical layout that opens a table for keys `K` and values `V`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no layout for keys `{K}` and values `{V}`",
    label = "`Layout<{K}, {V}>` is not implemented for `{Self}`",
    note = "`Heap`, `HybridLog` and `AnyLayout` take values that are `State`; `Heap::volatile()` takes any"
)]
pub trait Layout<K: Key, V>: Clone + 'static {
    /// The opened form.
    type Table: Table<K, V>;

    /// Short name, as in configuration files and manifests.
    fn name(&self) -> &'static str;

    /// What a checkpoint says the value type is; another text is refused when it is opened. State of
    /// a layout that has a [`codec`](Layout::codec) moves to layouts that say `description_of::<V>()`.
    fn value_description(&self) -> String {
        std::any::type_name::<V>().into()
    }

    /// The most memory this state may take, if less than what the store has.
    fn memory_limit(&self) -> Option<u64> {
        None
    }

    /// How keys and values become bytes. State of a layout without that, which is the default, can
    /// neither be exported and imported nor restored by key groups.
    fn codec(&self) -> Option<EntryCodec<K, V>> {
        None
    }

    /// Opens the table, restoring what the context says.
    fn open(&self, context: StateContext) -> Result<Self::Table>;
}
