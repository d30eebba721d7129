//! Opening timers on storage.

use std::marker::PhantomData;

use alluvium_layouts::{HybridLog, Layout};
use alluvium_pagestore::{Account, Key, Result};

use super::{StateBuilder, Store};
use crate::api::timers::{PendingTimer, StoredTimers};
use crate::backend::any_layout::AnyLayout;
use crate::durability::moving::Mover;

/// The primitive of timers on storage.
pub(crate) const STORED_TIMERS: &str = "stored-timers";

/// Type parameter of a [`StateBuilder`] for [`StoredTimers`].
#[derive(Debug)]
pub struct StoredTimersOf<K, N>(PhantomData<(K, N)>);

impl Store {
    /// Returns a builder for the timers `name`, each of a key and a namespace, in a layout. Storage
    /// bounds their number. Timers without a namespace have `()`.
    ///
    /// Default of the layout: the configured one if it is a heap or a hybrid log, else a hybrid log
    /// with [sorted runs](HybridLog::cold_runs_automatic) from 1 MiB of memory on. A hybrid log
    /// without them keeps an index entry in memory for each timer.
    ///
    /// ```
    /// use alluvium::states::Due;
    /// use alluvium::{HybridLog, MIB, Store, Time};
    ///
    /// let store = Store::in_memory().memory(16 * MIB).open()?;
    /// let layout = HybridLog::new().memory(4 * MIB);
    /// let mut timers = store.stored_timers::<u64, ()>("timeouts").layout(layout).open()?;
    /// assert!(timers.set(7, Time(100))?);
    /// assert_eq!(timers.pop_due(Time(100))?, Due::None); // due when the watermark passes it
    /// assert_eq!(timers.pop_due(Time(101))?, Due::Timer((Time(100), 7)));
    /// # Ok::<(), alluvium::Error>(())
    /// ```
    pub fn stored_timers<K: Key + Ord, N: Key + Ord>(
        &self,
        name: &str,
    ) -> StateBuilder<'_, StoredTimersOf<K, N>> {
        StateBuilder::new(self, name).layout_from(|layout| match layout {
            AnyLayout::Heap(_) | AnyLayout::HybridLog(_) => layout,
            _ => HybridLog::new().cold_runs_automatic().into(),
        })
    }
}

impl<K, N, L> StateBuilder<'_, StoredTimersOf<K, N>, L> {
    /// As for a map. Timers of a group that is incomplete here, or is being given away, are not due,
    /// and cannot be set or cancelled. When a group has come or gone, the next ones of all are found
    /// anew.
    #[must_use]
    pub fn moved_by(self, mover: &Mover) -> Self {
        self.in_unit_of(mover)
    }
}

impl<K: Key + Ord, N: Key + Ord, L: Layout<PendingTimer<K, N>, ()>>
    StateBuilder<'_, StoredTimersOf<K, N>, L>
{
    /// Opens the timers, restoring them from the last checkpoint, or as their last handle left them.
    /// The first call for a due one looks through all timers, in steps.
    ///
    /// # Errors
    /// As for a map. [`ErrorKind::Mismatch`](crate::ErrorKind::Mismatch) also for timers that were
    /// opened by [`Store::timers`].
    pub fn open(self) -> Result<StoredTimers<K, N, L>> {
        let (store, name, own) = (self.store(), self.name().to_owned(), self.own_keys());
        let limit = self.chosen_layout().memory_limit().unwrap_or(u64::MAX);
        let map = self.open_map_with(STORED_TIMERS, None, &mut || Ok(None))?;
        // The layout has its own account for itself.
        let account = Account::below(store.root(), &name, limit);
        let timers = StoredTimers::new(map, account, own);
        timers.map_err(|error| error.with("state", &name))
    }
}
