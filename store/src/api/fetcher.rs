//! Reading ahead of calls, whatever the type of the values: for operators that park what they
//! cannot apply at once.

use std::rc::Rc;
use std::sync::Arc;

use alluvium_layouts::{Fetch, Table, Ticket};
use alluvium_pagestore::io::Waker;
use alluvium_pagestore::{Key, Result};

use crate::cells::MapCell;

/// Reads of one keyed state, apart from its handle. Get one with
/// [`Map::fetcher`](crate::Map::fetcher) or [`Count::fetcher`](crate::Count::fetcher).
///
/// Its calls fail with [`ErrorKind::InUse`](crate::ErrorKind::InUse) while a value of the state is
/// borrowed or one of its closures runs.
pub trait Fetcher<K: Key> {
    /// Whether no call for any key has to wait for storage now.
    ///
    /// # Errors
    /// The state is in use.
    fn is_resident(&self) -> Result<bool>;

    /// Whether records of the state can be on storage at all.
    fn has_storage(&self) -> bool;

    /// Starts reading the record of `key`, if it is on storage only, and does not wait. See
    /// [`Map::fetch`](crate::Map::fetch).
    ///
    /// # Errors
    /// The state is in use.
    fn fetch(&self, key: &K) -> Result<Fetch>;

    /// Tells the tickets whose reads have ended since the last time, each once.
    ///
    /// # Errors
    /// The state is in use.
    fn fetched(&self, tell: &mut dyn FnMut(Ticket)) -> Result<()>;

    /// Gives up a read that was started; nothing happens if it was used already.
    ///
    /// # Errors
    /// The state is in use.
    fn release(&self, ticket: Ticket) -> Result<()>;

    /// Wakes `waker` whenever a read that is started from now on has ended.
    ///
    /// # Errors
    /// The state is in use.
    fn wake_with(&self, waker: Arc<Waker>) -> Result<()>;
}

impl<K: Key, V: 'static, T: Table<K, V>> Fetcher<K> for MapCell<K, V, T> {
    fn is_resident(&self) -> Result<bool> {
        Ok(self.enter()?.is_resident())
    }

    fn has_storage(&self) -> bool {
        self.look().is_ok_and(|table| table.has_storage())
    }

    fn fetch(&self, key: &K) -> Result<Fetch> {
        Ok(self.enter()?.fetch(key))
    }

    fn fetched(&self, tell: &mut dyn FnMut(Ticket)) -> Result<()> {
        self.enter()?.fetched(tell);
        Ok(())
    }

    fn release(&self, ticket: Ticket) -> Result<()> {
        self.enter()?.release(ticket);
        Ok(())
    }

    fn wake_with(&self, waker: Arc<Waker>) -> Result<()> {
        self.enter()?.wake_with(waker);
        Ok(())
    }
}

/// A state's fetcher.
pub(crate) fn of<K: Key, V: 'static, T: Table<K, V>>(
    cell: &Rc<MapCell<K, V, T>>,
) -> Rc<dyn Fetcher<K>> {
    cell.clone()
}
