//! What memory a number of slices of time wants in an append log, before there is one of them.

use alluvium_layouts::{AppendLog, ExpectedSlices, MemoryNeeds};
use alluvium_pagestore::{Key, State, Time};

use crate::api::time_map::TimeMapOf;
use crate::backend::any_layout::AnyLayout;
use crate::store::StateBuilder;

impl<P> StateBuilder<'_, P> {
    fn memory_of_slices<K: Key, E: State>(&self, slices: &ExpectedSlices) -> Option<MemoryNeeds> {
        let context_of =
            &|memory| self.store().context_alone(self.name(), memory, self.mover().is_some());
        let log = match self.chosen_layout() {
            AnyLayout::AppendLog(log) => log.clone(),
            _ => AppendLog::new(),
        };
        log.memory_for::<K, E>(slices, context_of)
    }
}

impl<K: Key, V: State> StateBuilder<'_, TimeMapOf<K, V>> {
    /// Says what memory so many slices want in an append log, if the map has a store for itself: the smallest that does, where
    /// slices are on storage, the memory in which all of them stay, and what that is for. Options of an append log that the
    /// map was given count, but for its `memory`. None: no memory does. Cost: some tens of milliseconds, and up to 4 MiB
    /// beside the store's memory meanwhile.
    ///
    /// ```
    /// # use alluvium::Store;
    /// use alluvium::config::ExpectedSlices;
    ///
    /// let place = tempfile::tempdir()?;
    /// let store = Store::builder(place.path()).open()?;
    /// // Ten keys a slice, with two values each.
    /// let slices = ExpectedSlices::new(30_000, 10, 2);
    /// let needs = store.time_map::<u64, u64>("bids").explain_memory(&slices);
    /// assert!(needs.is_some_and(|needs| needs.smallest < 2 << 20));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn explain_memory(&self, slices: &ExpectedSlices) -> Option<MemoryNeeds> {
        self.memory_of_slices::<K, (Time, V)>(slices)
    }
}
