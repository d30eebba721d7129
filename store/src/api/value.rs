//! One value.

use alluvium_layouts::Layout;
use alluvium_pagestore::{Result, State};

use crate::api::map::Map;
use crate::backend::any_layout::AnyLayout;
use crate::cells::state_cell::ValueRef;

/// One value, absent until set. Open one with [`Store::value`](crate::Store::value).
///
/// ```
/// use alluvium::{MIB, Store};
///
/// let store = Store::in_memory().memory(16 * MIB).open()?;
/// let mut latest = store.value::<u64>("latest").open()?;
/// latest.update(|| 0, |at| *at = 42.max(*at))?;
/// assert_eq!(latest.get()?.as_deref(), Some(&42));
/// # Ok::<(), alluvium::Error>(())
/// ```
#[derive(Debug)]
pub struct Value<V: State, L: Layout<(), V> = AnyLayout>(pub(crate) Map<(), V, L>);

impl<V: State, L: Layout<(), V>> Value<V, L> {
    /// Returns the value.
    ///
    /// # Errors
    /// Those of [a read](Map#errors-of-calls).
    pub fn get(&mut self) -> Result<Option<ValueRef<'_, V>>> {
        self.0.get(&())
    }

    /// Sets the value. An error returns it.
    ///
    /// # Errors
    /// Those of [a write](Map#errors-of-calls).
    pub fn set(&mut self, value: V) -> std::result::Result<(), alluvium_pagestore::Rejected<V>> {
        self.0
            .put((), value)
            .map(drop)
            .map_err(|rejected| alluvium_pagestore::Rejected::new(rejected.error, rejected.value.1))
    }

    /// Changes the value in place. Inserts `init()` first if it is absent.
    ///
    /// # Errors
    /// Those of [a write](Map#errors-of-calls).
    pub fn update<R>(
        &mut self,
        init: impl FnOnce() -> V,
        change: impl FnOnce(&mut V) -> R,
    ) -> Result<R> {
        self.0.update(&(), init, change)
    }

    /// Removes and returns the value.
    ///
    /// # Errors
    /// Those of [a write](Map#errors-of-calls).
    pub fn take(&mut self) -> Result<Option<V>> {
        self.0.take(&())
    }

    /// Removes the value.
    ///
    /// # Errors
    /// Those of [a write](Map#errors-of-calls).
    pub fn clear(&mut self) -> Result<()> {
        self.0.clear()
    }

    /// Returns whether a closure has panicked in this state since it was opened or last cleared.
    pub fn is_poisoned(&self) -> bool {
        self.0.is_poisoned()
    }

    /// Allows checkpoints again after a closure has panicked.
    pub fn clear_poison(&mut self) {
        self.0.clear_poison();
    }
}
