//! The sets of sessions by key: a map in any layout. Sessions call it through a `dyn`, so they are
//! compiled once, whatever the layout is; where it is chosen at run time, no call is compiled for
//! each.

use alluvium_layouts::{BatchError, Cursor, Layout};
use alluvium_pagestore::{Key, Result, Time};

use super::super::session_set::SessionSet;
use crate::api::map::Map;

/// Changes the set of an event's key.
type ChangeSet<'c, K, P, E> = &'c mut dyn FnMut(&(K, Time, E), &mut SessionSet<P>);

/// Looks at the set of a key.
type VisitSet<'v, K, P> = &'v mut dyn FnMut(&K, &SessionSet<P>) -> Result<()>;

/// The sets of sessions by key. One indirect call for each batch or single event, and one more for
/// each event.
pub(crate) trait SessionSets<K, P, E> {
    /// Shows the set of a key, if it has one.
    fn read(&mut self, key: &K, read: &mut dyn FnMut(Option<&SessionSet<P>>)) -> Result<()>;

    /// Changes the set of a key, which is made if it has none.
    fn update(&mut self, key: &K, change: &mut dyn FnMut(&mut SessionSet<P>)) -> Result<()>;

    /// Changes the set of a key, if it has one.
    fn modify(&mut self, key: &K, change: &mut dyn FnMut(&mut SessionSet<P>)) -> Result<()>;

    /// Changes the sets of the keys of a batch, as [`Map::update_batch`] does.
    fn update_batch(
        &mut self,
        batch: &[(K, Time, E)],
        change: ChangeSet<'_, K, P, E>,
    ) -> std::result::Result<(), BatchError>;

    /// Visits about so many sets from a cursor on, as [`Map::scan`].
    fn scan(&mut self, cursor: &mut Cursor, fuel: usize, visit: VisitSet<'_, K, P>) -> Result<()>;

    /// Takes the set of a key out.
    fn take(&mut self, key: &K) -> Result<Option<SessionSet<P>>>;

    /// As [`Map::clear_poison`].
    fn clear_poison(&mut self);
}

impl<K, P, E, L> SessionSets<K, P, E> for Map<K, SessionSet<P>, L>
where
    K: Key,
    P: 'static,
    L: Layout<K, SessionSet<P>>,
{
    fn read(&mut self, key: &K, read: &mut dyn FnMut(Option<&SessionSet<P>>)) -> Result<()> {
        Map::read(self, key, read)
    }

    fn update(&mut self, key: &K, change: &mut dyn FnMut(&mut SessionSet<P>)) -> Result<()> {
        Map::update(self, key, SessionSet::new, change)
    }

    fn modify(&mut self, key: &K, change: &mut dyn FnMut(&mut SessionSet<P>)) -> Result<()> {
        Map::modify(self, key, change).map(drop)
    }

    fn update_batch(
        &mut self,
        batch: &[(K, Time, E)],
        change: ChangeSet<'_, K, P, E>,
    ) -> std::result::Result<(), BatchError> {
        Map::update_batch(self, batch, |(key, ..)| key, |_| SessionSet::new(), change)
    }

    fn scan(&mut self, cursor: &mut Cursor, fuel: usize, visit: VisitSet<'_, K, P>) -> Result<()> {
        Map::scan(self, cursor, fuel, visit)
    }

    fn take(&mut self, key: &K) -> Result<Option<SessionSet<P>>> {
        Map::take(self, key)
    }

    fn clear_poison(&mut self) {
        Map::clear_poison(self);
    }
}
